//! The HTTP server as clients meet it: callers, scrapers, browsers, and those that mean harm.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "http/calls.rs"]
mod calls;
#[path = "http/counts.rs"]
mod counts;
#[path = "http/exhaustion.rs"]
mod exhaustion;
#[path = "http/filled.rs"]
mod filled;
#[path = "http/hostile.rs"]
mod hostile;
#[path = "http/metrics.rs"]
mod metrics;
#[path = "http/prometheus.rs"]
mod prometheus;
#[path = "http/scale.rs"]
mod scale;
#[path = "http/support.rs"]
mod support;
