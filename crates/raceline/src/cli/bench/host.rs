//! Arguments of `raceline bench host`.

use std::net::SocketAddr;
use std::time::Duration;

use raceline_bench::host::Case;
use raceline_host::I10Config;
use raceline_proto::nvme::Nqn;

use super::{ProductArgs, memory};
use crate::cli::queues::i10;
use crate::cli::values;

/// Arguments of `bench host`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Each way of doing the same work has its own connections to one target; the ways take turns, short \
run by short run, and ratios are of runs of the same round. Rounds in which others used the machine \
are repeated.

The loopback has no queue in which a large write could delay a read for long. To see what queue maps \
bring on a link, let `raceline export` run in a network namespace of its own behind a veth pair that \
tc slows down, and name it with --target.

Example: raceline bench host --case maps,i10 -o json")]
pub(crate) struct HostBenchArgs {
    /// What to compare [default: all]
    #[arg(long, value_enum, value_name = "CASE,...", value_delimiter = ',')]
    pub(crate) case: Vec<CaseChoice>,

    /// A target that runs already, and takes commands of 1 MiB (--max-io-size 1m)
    #[arg(long, value_name = "ADDR:PORT,NQN", value_parser = target)]
    pub(crate) target: Option<(SocketAddr, Nqn)>,

    /// Size of the namespace, unless there is a --target
    #[arg(long, value_name = "SIZE", default_value = "512m", value_parser = memory)]
    #[arg(help_heading = "Workload")]
    pub(crate) memory: usize,

    /// What a capped writer writes per second
    #[arg(long, value_name = "SIZE", default_value = "200m", value_parser = values::size)]
    #[arg(help_heading = "Workload")]
    pub(crate) writer: raceline_bdev::ByteSize,

    /// How commands are gathered where they are
    #[arg(long, value_name = "REQUESTS[,BYTES[,MICROSECONDS]]", default_value = "16,64k,50")]
    #[arg(value_parser = i10, help_heading = "Workload")]
    pub(crate) i10: I10Config,

    /// Operations in flight in the case share
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Workload")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=127))]
    pub(crate) iodepth: u16,

    /// Rounds of each comparison
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "Workload")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,

    /// How long each run goes before it is measured
    #[arg(long = "ramp_time", alias = "ramp-time", value_name = "TIME", default_value = "50ms")]
    #[arg(value_parser = values::time, help_heading = "Workload")]
    pub(crate) ramp_time: Duration,

    #[command(flatten)]
    pub(crate) run: ProductArgs,
}

/// `--case`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum CaseChoice {
    /// Queues for reads of their own, against queues shared with a large writer
    Maps,
    /// Commands gathered as i10 does, against one PDU per send and against the usual
    I10,
    /// Which thread sends and which receives on queues that threads share
    Share,
    /// What a submission costs threads that do not drive the queue
    Submit,
}

impl From<CaseChoice> for Case {
    fn from(choice: CaseChoice) -> Self {
        match choice {
            CaseChoice::Maps => Self::Maps,
            CaseChoice::I10 => Self::I10,
            CaseChoice::Share => Self::Share,
            CaseChoice::Submit => Self::Submit,
        }
    }
}

/// `ADDR:PORT,NQN`.
pub(super) fn target(text: &str) -> Result<(SocketAddr, Nqn), String> {
    let parts = text.split_once(',').and_then(|(at, nqn)| Some((at.parse().ok()?, nqn)));
    let (address, nqn): (SocketAddr, _) =
        parts.ok_or("a target is written ADDR:PORT,NQN, as in 10.0.0.2:4420,NQN")?;
    if address.ip().is_unspecified() || address.port() == 0 {
        return Err(format!(
            "nobody can connect to {address}: name the address and port at which the target listens"
        ));
    }
    Ok((address, values::nqn(nqn)?))
}
