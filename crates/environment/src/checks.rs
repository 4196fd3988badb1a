//! All checks of an environment, worst first within each area.

mod drives;
mod interface;
mod kernel;
mod memory;
mod network;
mod platform;
mod processor;
mod services;

use crate::check::{Check, Role, Severity};
use crate::measure::Costs;
use crate::snapshot::Environment;

/// What the checks look at.
pub(crate) struct Subject<'a> {
    /// What was read.
    pub(crate) environment: &'a Environment,
    /// What was measured, if anything was.
    pub(crate) costs: Option<&'a Costs>,
}

/// Checks an environment for a role, or for both. The areas with the worst results come first; so do the worst
/// results within an area.
#[must_use]
pub fn check(environment: &Environment, role: Option<Role>, costs: Option<&Costs>) -> Vec<Check> {
    let subject = Subject { environment, costs };
    let mut checks = Vec::new();
    for area in [
        processor::checks,
        platform::checks,
        memory::checks,
        kernel::checks,
        network::checks,
        interface::checks,
        drives::checks,
        services::checks,
    ] {
        checks.extend(area(&subject));
    }
    checks.retain(|check| role.is_none_or(|role| check.roles.contains(&role)));
    let worst = |check: &Check| {
        let same = checks.iter().filter(|other| other.area == check.area);
        same.map(|other| other.severity).max().unwrap_or(Severity::Ok)
    };
    let mut ordered: Vec<(Severity, Check)> =
        checks.iter().map(|check| (worst(check), check.clone())).collect();
    ordered.sort_by_key(|(worst, check)| {
        (std::cmp::Reverse(*worst), check.area, std::cmp::Reverse(check.severity))
    });
    ordered.into_iter().map(|(_, check)| check).collect()
}

/// A list in one line, or `none`.
pub(crate) fn joined<T: AsRef<str>>(words: impl IntoIterator<Item = T>) -> String {
    let words: Vec<String> = words.into_iter().map(|word| word.as_ref().to_owned()).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}
