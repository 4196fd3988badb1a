//! `raceline_get_events`: what has happened, from a number on.

use std::time::Duration;

use serde::Deserialize;

use crate::error::RpcError;
use crate::events::Batch;
use crate::method::{Call, Registry, States};

/// Events in one answer at most.
const MAX_EVENTS: usize = 1000;
/// The longest wait for an event. A client holds a thread for that long.
const MAX_WAIT_MS: u64 = 30_000;

pub(super) fn register(registry: &mut Registry) {
    registry.read("raceline_get_events", States::Both, get);
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Get {
    /// The number of the first event; the oldest if it is left out.
    #[serde(default)]
    since: u64,
    /// How many at most.
    max: Option<usize>,
    /// For how long to wait for an event if there is none.
    #[serde(default)]
    wait_ms: u64,
}

fn get(call: &Call<'_>, Get { since, max, wait_ms }: Get) -> Result<Batch, RpcError> {
    if wait_ms > MAX_WAIT_MS {
        let detail = format!("wait_ms {wait_ms}: wait {MAX_WAIT_MS} ms at most, and ask again");
        return Err(RpcError::invalid_params(detail));
    }
    let max = max.unwrap_or(MAX_EVENTS).min(MAX_EVENTS);
    let wait = Duration::from_millis(wait_ms);
    let events = &call.manager.config().events;
    call.allowance.wait(wait, |limit| events.wait(since, limit).then_some(()));
    Ok(events.since(since, max, Duration::ZERO))
}
