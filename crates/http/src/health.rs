//! `/healthz` and `/readyz`: what an orchestrator or a load balancer asks for. They need no token and tell no name.

use hyper::StatusCode;
use raceline_control::manager::{Manager, Phase};

use crate::answer::{Answer, text};

/// Whether the daemon does its work: an orchestrator restarts it otherwise.
pub(crate) fn alive(manager: &Manager) -> Answer {
    match manager.is_healthy() {
        true => text(StatusCode::OK, "ok"),
        false => text(StatusCode::SERVICE_UNAVAILABLE, "A core has stopped."),
    }
}

/// Whether hosts can be sent here.
pub(crate) fn ready(manager: &Manager) -> Answer {
    match why_not_ready(manager) {
        None => text(StatusCode::OK, "ok"),
        Some(reason) => text(StatusCode::SERVICE_UNAVAILABLE, reason),
    }
}

/// Why hosts should not be sent here, if so.
pub(crate) fn why_not_ready(manager: &Manager) -> Option<&'static str> {
    match manager.phase() {
        _ if manager.failure().is_some() => Some("The start has failed."),
        _ if manager.is_ending() => Some("The daemon ends."),
        Phase::Startup => Some("The daemon waits for framework_start_init."),
        Phase::Starting => Some("The configuration is being made."),
        Phase::Runtime if !manager.is_healthy() => Some("A core has stopped."),
        Phase::Runtime if manager.config().journal.failure().is_some() => Some(
            "The state directory cannot be used: changes are refused until the daemon is restarted. The log says why.",
        ),
        Phase::Runtime => None,
    }
}
