//! `/healthz` and `/readyz`: what an orchestrator or a load balancer asks for. They need no token and tell no name.

use hyper::StatusCode;
use raceline_control::manager::{Manager, Phase};

use crate::answer::{Answer, text};

/// Whether the daemon does its work: an orchestrator restarts it otherwise.
pub(crate) fn alive(manager: &Manager) -> Answer {
    match manager.is_healthy() {
        true => text(StatusCode::OK, "ok"),
        false => text(StatusCode::SERVICE_UNAVAILABLE, "A core of the target has stopped."),
    }
}

/// Whether hosts can be sent here.
pub(crate) fn ready(manager: &Manager) -> Answer {
    let reason = match manager.phase() {
        _ if manager.failure().is_some() => "The start has failed.",
        _ if manager.is_ending() => "The daemon ends.",
        Phase::Startup => "The daemon waits for framework_start_init.",
        Phase::Starting => "The configuration is being made.",
        Phase::Runtime if !manager.is_healthy() => "A core of the target has stopped.",
        Phase::Runtime => return text(StatusCode::OK, "ok"),
    };
    text(StatusCode::SERVICE_UNAVAILABLE, reason)
}
