//! Deterministic simulation: the production host against the production target, in virtual time.
//!
//! A seed decides the plan of a run (cores, hosts, queues, digests, limits, pools, network,
//! faults), and everything that happens in it. All written data name their write, and a
//! [`model`] of every block judges what is read. A run has a part with faults, one without, in
//! which everything must recover, a verification of all blocks, a rest, and a regular end after
//! which the target must be as empty as it was.

pub mod campaign;
pub mod command;
pub mod content;
pub mod control;
pub mod copies;
pub mod device;
pub mod fencing;
pub mod host;
pub mod link;
pub mod model;
pub mod paths;
pub mod plan;
pub mod proofs;
mod secrets;
pub mod shared;
pub mod simulation;
pub mod world;

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use device::Lie;
pub use paths::{Paths, SEEDS_FOR_ALL};
pub use plan::Plan;
pub use world::{Log, Totals};

/// Commands of one run by default.
pub const DEFAULT_COMMANDS: u64 = 400;

/// A run that went wrong, with all information to repeat it.
#[derive(Debug)]
pub struct Failure {
    /// The plan, which has the seed.
    pub plan: Plan,
    /// What went wrong.
    pub what: String,
    /// The last events.
    pub events: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { seed, commands, .. } = self.plan;
        writeln!(f, "seed {seed} failed: {}", self.what)?;
        writeln!(f, "plan: {:#?}", self.plan)?;
        writeln!(f, "last events:")?;
        for event in &self.events {
            writeln!(f, "  {event}")?;
        }
        writeln!(f, "seed {seed} failed: {}", self.what)?;
        write!(f, "to repeat: cargo xtask sim --seed {seed}")?;
        if commands != DEFAULT_COMMANDS {
            write!(f, " -- --commands {commands}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// Runs one plan.
///
/// When the run went wrong, panics included.
pub fn run(plan: Plan) -> Result<Totals, Box<Failure>> {
    let log = Log::default();
    let result = catch_unwind(AssertUnwindSafe(|| simulation::run(plan.clone(), &log)));
    let what = match result {
        Ok(Ok(totals)) => return Ok(totals),
        Ok(Err(what)) => what,
        Err(panic) => format!("panic: {}", message(&*panic)),
    };
    Err(Box::new(Failure { plan, what, events: log.events() }))
}

fn message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}
