//! Arguments of `raceline bench agent` and `bench fleet`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use raceline_bench::RwMode;
use raceline_proto::nvme::Nqn;

use super::host::target;
use crate::cli::values::{self, CoreList, OutputFormat};

/// Arguments of `bench agent`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
An agent runs the loads of `bench fleet`. With --stdio a fleet starts it by a command such as ssh, and it needs no port. \
With --listen it serves one controller after the other. What goes over --listen is not encrypted; an address other \
than the loopback's needs --token.

Examples: raceline bench agent --listen 192.0.2.2:4500 --token /etc/raceline/token
          ssh host2 raceline bench agent --stdio")]
pub(crate) struct AgentArgs {
    /// Wait for controllers here
    #[arg(long, value_name = "ADDR:PORT", value_parser = values::listen_address)]
    #[arg(required_unless_present = "stdio", conflicts_with = "stdio")]
    pub(crate) listen: Option<SocketAddr>,

    /// Serve one controller over standard input and output
    #[arg(long)]
    pub(crate) stdio: bool,

    /// The file with the secret that controllers must have, 16 bytes or more
    #[arg(long, value_name = "FILE", requires = "listen")]
    pub(crate) token: Option<PathBuf>,
}

/// Arguments of `bench fleet`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
All agents connect first, then start at the same time; their histograms are merged. An agent that vanishes, is late or has \
another version is named, and nothing is reported: a run without it would be another load.

Examples: raceline bench fleet --target 192.0.2.1:4420,nqn.2026-01.io.example:x --agent 192.0.2.2:4500 --token FILE
          raceline bench fleet --target 192.0.2.1:4420,nqn.2026-01.io.example:x \\
              --spawn 'ssh host1 raceline bench agent --stdio' --spawn 'ssh host2 raceline bench agent --stdio'")]
pub(crate) struct FleetArgs {
    /// The target, as the agents reach it
    #[arg(long, value_name = "ADDR:PORT,NQN", value_parser = target)]
    pub(crate) target: (SocketAddr, Nqn),

    /// An agent that listens; may be repeated
    #[arg(long, value_name = "ADDR:PORT", required_unless_present = "spawn")]
    pub(crate) agent: Vec<SocketAddr>,

    /// A command that starts an agent with --stdio; may be repeated
    #[arg(long, value_name = "COMMAND")]
    pub(crate) spawn: Vec<String>,

    /// The file with the secret of the agents that listen
    #[arg(long, value_name = "FILE")]
    pub(crate) token: Option<PathBuf>,

    /// The namespace
    #[arg(long, value_name = "NSID", default_value_t = 1, help_heading = "Workload")]
    pub(crate) nsid: u32,

    /// read, write, randread, randwrite, rw or randrw
    #[arg(long, value_name = "MODE", default_value = "randread", help_heading = "Workload")]
    pub(crate) rw: RwMode,

    /// Bytes per command
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = values::io_size)]
    #[arg(help_heading = "Workload")]
    pub(crate) bs: u32,

    /// Commands in flight, per queue
    #[arg(long, value_name = "N", default_value_t = 32, help_heading = "Workload")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4095))]
    pub(crate) iodepth: u16,

    /// I/O queues of each agent, one TCP connection each
    #[arg(short = 'i', long = "nr-io-queues", value_name = "QUEUES", help_heading = "Workload")]
    #[arg(default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) queues: u16,

    /// Commands per second of each agent (open loop) [default: as many as possible]
    #[arg(long, value_name = "N", help_heading = "Workload")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) rate_iops: Option<u64>,

    /// How long the agents run before they record
    #[arg(long = "ramp_time", alias = "ramp-time", value_name = "TIME", default_value = "1")]
    #[arg(value_parser = values::time, help_heading = "Workload")]
    pub(crate) ramp_time: Duration,

    /// How long the agents record
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = values::positive_time)]
    #[arg(help_heading = "Workload")]
    pub(crate) runtime: Duration,

    /// Cores of each agent's machine [default: one thread on any core]
    #[arg(long, value_name = "LIST", value_parser = values::core_list, help_heading = "Workload")]
    pub(crate) cores: Option<CoreList>,

    /// The agents' cores look for work without a pause
    #[arg(long, help_heading = "Workload")]
    pub(crate) poll: bool,

    /// The same seed gives the same addresses and data
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Workload")]
    pub(crate) seed: u64,

    /// For people or for programs
    #[arg(short = 'o', long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: OutputFormat,
}
