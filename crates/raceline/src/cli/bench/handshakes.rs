//! Arguments of `raceline bench handshakes`.

use std::time::Duration;

use super::{CoreArgs, SuiteChoice};
use crate::cli::values::{self, IoChoice, ModeChoice, OutputFormat};

/// Arguments of `bench handshakes`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
A target on one core serves random reads over TLS, alone and while a thread connects over TLS at a fixed rate, in turn. \
The ratio is that of P99 beside the handshakes over P99 alone, in the same round. The thread runs on the host's core and \
gives way to the host, which sleeps when it waits; so the ratio says what handshakes do to the target's core.

Example: raceline bench handshakes --rate 500 --depth 1,32 -o json")]
pub(crate) struct HandshakesArgs {
    /// Handshakes per second
    #[arg(long, value_name = "N", default_value_t = 500, help_heading = "Workload")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rate: u32,

    /// The suite of TLS
    #[arg(long, value_enum, value_name = "SUITE", default_value = "aes-128")]
    #[arg(help_heading = "Workload")]
    pub(crate) suite: SuiteChoice,

    /// Commands in flight
    #[arg(long, value_name = "N,...", default_value = "1,32", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=128), help_heading = "Workload")]
    pub(crate) depth: Vec<u16>,

    /// Bytes per command
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = values::io_size)]
    #[arg(help_heading = "Workload")]
    pub(crate) io_size: u32,

    /// Rounds for each depth; the median counts
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "Workload")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,

    /// How long each run goes before it is measured
    #[arg(long = "ramp_time", alias = "ramp-time", value_name = "TIME", default_value = "200ms")]
    #[arg(value_parser = values::time, help_heading = "Workload")]
    pub(crate) ramp_time: Duration,

    /// How long each run is measured
    #[arg(long, alias = "seconds", value_name = "TIME", default_value = "2")]
    #[arg(value_parser = values::positive_time, help_heading = "Workload")]
    pub(crate) runtime: Duration,

    /// The same seed gives the same addresses
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Workload")]
    pub(crate) seed: u64,

    /// What the target's core does when it has nothing to do
    #[arg(long, value_enum, default_value = "poll")]
    pub(crate) mode: ModeChoice,

    /// How to do I/O
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    pub(crate) io: IoChoice,

    #[command(flatten)]
    pub(crate) cores: CoreArgs,

    /// For people or for programs
    #[arg(short = 'o', long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: OutputFormat,
}
