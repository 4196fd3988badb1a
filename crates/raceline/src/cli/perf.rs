//! Arguments of `raceline perf`, named as in fio where fio has them.

use std::time::Duration;

use raceline_bdev::ByteSize;
use raceline_bench::RwMode;
use raceline_proto::nvme::NamespaceId;

use super::host::{ConnectArgs, namespace};
use super::queues::QueueArgs;
use super::values::{self, ACCEL_HELP, CoreList, IoChoice, ModeChoice};
use crate::accel::{AccelChoice, accel_choice};

/// Arguments of `perf`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Workloads that write destroy what the namespace holds. With --verify, each block written says \
where and when it was written, and every block is read back at the end; a workload that only reads \
checks what an earlier run with --verify and the same --seed, --bs and --offset wrote.

Example: raceline perf -a 127.0.0.1 -n NQN --rw randread --bs 4k --iodepth 32 -o json")]
pub(crate) struct PerfArgs {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    /// The namespace
    #[arg(long, value_name = "N", default_value = "1", value_parser = namespace)]
    pub(crate) namespace: NamespaceId,

    /// I/O queues, one TCP connection each
    #[arg(short = 'i', long = "nr-io-queues", value_name = "QUEUES", help_heading = "Connection")]
    #[arg(default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) queues: u16,

    #[command(flatten)]
    pub(crate) maps: QueueArgs,

    /// Entries of each queue [default: 128, or iodepth + 1]
    #[arg(short = 'Q', long = "queue-size", value_name = "DEPTH", help_heading = "Connection")]
    #[arg(value_parser = clap::value_parser!(u16).range(2..=4096))]
    pub(crate) queue_size: Option<u16>,

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

    /// How long to measure
    #[arg(long, value_name = "TIME", default_value = "8", value_parser = values::positive_time)]
    #[arg(help_heading = "Workload")]
    pub(crate) runtime: Duration,

    /// How long to run before measuring
    #[arg(long = "ramp_time", alias = "ramp-time", value_name = "TIME", default_value = "2")]
    #[arg(value_parser = values::time, help_heading = "Workload")]
    pub(crate) ramp_time: Duration,

    /// Percentage of reads, for rw and randrw
    #[arg(long, value_name = "PERCENT", default_value_t = 50, help_heading = "Workload")]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) rwmixread: u8,

    /// Commands per second of all queues; latency counts from when a command was due
    #[arg(long = "rate_iops", alias = "rate-iops", value_name = "N", help_heading = "Workload")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) rate_iops: Option<u64>,

    /// Write data that can be recognised, and check what is read
    #[arg(long, help_heading = "Workload")]
    pub(crate) verify: bool,

    /// First byte to use
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = values::size)]
    #[arg(help_heading = "Workload")]
    pub(crate) offset: ByteSize,

    /// Bytes to use [default: all from --offset]
    #[arg(long, value_name = "SIZE", value_parser = values::size, help_heading = "Workload")]
    pub(crate) size: Option<ByteSize>,

    /// The same seed gives the same addresses and data
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Workload")]
    pub(crate) seed: u64,

    /// Cores to run on, e.g. 0,2-4; queues are dealt out to them [default: one thread, not bound]
    #[arg(long, value_name = "LIST", value_parser = values::core_list)]
    pub(crate) cores: Option<CoreList>,

    /// What a core does when it has nothing to do
    #[arg(long, value_enum, default_value_t)]
    pub(crate) mode: ModeChoice,

    /// How to do I/O
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    pub(crate) io: IoChoice,

    /// Look for packets in the network device's queue so long before waiting for an interrupt
    #[arg(long, value_name = "MICROSECONDS", value_parser = values::busy_poll)]
    pub(crate) busy_poll: Option<Duration>,

    /// Which engine does which operation on data [default: software]; needs -G
    #[arg(long, value_name = "LIST", value_parser = accel_choice, long_help = ACCEL_HELP)]
    pub(crate) accel: Option<AccelChoice>,
}
