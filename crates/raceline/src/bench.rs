//! `raceline bench`: experiments that measure how fast this machine and this program are.

mod accel;
mod agent;
mod bed;
mod digest;
mod distance;
mod engines;
mod gap;
mod handshakes;
mod host;
mod limit;
mod local;
mod papers;
mod progress;

use crate::cli::bench::{BenchArgs, Experiment};
use crate::failure::Failure;

/// Runs the experiment.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    match &args.experiment {
        Experiment::List(args) => papers::list(args),
        Experiment::Show(args) => papers::show(args),
        Experiment::Run(args) => papers::run(args),
        Experiment::Report(args) => papers::report(args),
        Experiment::Compare(args) => papers::compare(args),
        Experiment::Limit(args) => limit::run(args),
        Experiment::Gap(args) => gap::run(args),
        Experiment::Handshakes(args) => handshakes::run(args),
        Experiment::Accel(args) => accel::run(args),
        Experiment::Digest(args) => digest::run(args),
        Experiment::Host(args) => host::run(args),
        Experiment::Local(args) => local::run(args),
        Experiment::Distance(args) => distance::run(args),
        Experiment::Bed(args) => bed::run(args),
        Experiment::Agent(args) => agent::agent(args),
        Experiment::Fleet(args) => agent::fleet(args),
    }
}
