//! Whether I/O queues move between cores: what SPDK calls the scheduler.

use std::time::Duration;

use raceline_target::{BALANCE_INTERVAL, ConnectionOptions, Target, TargetError};
use serde_json::Value;

use super::Model;
use super::catalogue::Key;
use super::options::option_key;

/// The scheduler that moves queues from full cores to those that have time.
pub(crate) const DYNAMIC: &str = "dynamic";
/// The call that chooses one.
pub(crate) const SET_SCHEDULER: &str = "framework_set_scheduler";

/// The time between two looks at the cores, by the parameters of the call; `None`: nothing moves.
pub(crate) fn interval(params: &Value) -> Option<Duration> {
    let period = params.get("period").and_then(Value::as_u64).filter(|period| *period > 0);
    let is_dynamic = params.get("name").is_some_and(|name| name == DYNAMIC);
    is_dynamic.then(|| period.map_or(BALANCE_INTERVAL, Duration::from_micros))
}

impl Model {
    /// Has a target that starts move its queues as the last call has said, or else the command line.
    pub(crate) fn start_balancing(&self, target: &Target, options: &ConnectionOptions) {
        let key: Key = option_key(SET_SCHEDULER);
        let interval = match self.catalogue.get(&key) {
            Some(entry) => interval(&entry.params),
            None => options.balances.then_some(BALANCE_INTERVAL),
        };
        if interval.is_some() {
            balance(target, interval);
        }
    }

    /// Has all targets move their queues at this interval, or not.
    pub(crate) fn set_balancing(&self, interval: Option<Duration>) {
        let all = self.nvmf.targets.values().filter_map(|target| target.running.as_ref());
        all.for_each(|running| balance(&running.target, interval));
    }

    /// Whether the queues of a target move.
    pub(crate) fn is_balancing(&self) -> bool {
        let mut all = self.nvmf.targets.values().filter_map(|target| target.running.as_ref());
        all.any(|running| running.target.balancing().is_some())
    }
}

fn balance(target: &Target, interval: Option<Duration>) {
    match target.set_balancing(interval) {
        Ok(()) => {}
        // Another setting has chosen the cores: it stays in effect.
        Err(error @ TargetError::PlacedByPolicy) => {
            tracing::warn!("{SET_SCHEDULER} {DYNAMIC}: {error}")
        }
        Err(error) => tracing::error!("{SET_SCHEDULER} {DYNAMIC}: {error}"),
    }
}
