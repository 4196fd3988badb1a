//! Arguments of `raceline bench local`.

use std::path::PathBuf;
use std::time::Duration;

use raceline_bdev::DeviceSpec;
use raceline_bench::RwMode;

use crate::cli::values::{self, OutputFormat};

/// Arguments of `bench local`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
The generator of `raceline perf` drives a device in this process: the latencies are those that a host would see if the \
network took no time. Subtract them from those of `raceline perf` on the same device, exported by a target. Workloads \
that write destroy what the device holds.

Examples: raceline bench local ram:1g --rw randread --bs 4k --iodepth 1
          raceline bench local --file /dev/nvme0n1 --iopoll --iodepth 1")]
pub(crate) struct LocalArgs {
    /// A device as `raceline export` takes it, driven by a reactor
    #[arg(value_name = "DEVICE", required_unless_present = "file", conflicts_with = "file")]
    pub(crate) device: Option<DeviceSpec>,

    /// A file or a block device, driven by an io_uring of its own past the page cache (O_DIRECT)
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Poll the file's device for completions (IOPOLL)
    #[arg(long, requires = "file")]
    pub(crate) iopoll: bool,

    /// read, write, randread, randwrite, rw or randrw
    #[arg(long, value_name = "MODE", default_value = "randread", help_heading = "Workload")]
    pub(crate) rw: RwMode,

    /// Percentage of reads, for rw and randrw
    #[arg(long, value_name = "PERCENT", default_value_t = 50, help_heading = "Workload")]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) rwmixread: u8,

    /// Bytes per command
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = values::io_size)]
    #[arg(help_heading = "Workload")]
    pub(crate) bs: u32,

    /// Commands in flight
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Workload")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4095))]
    pub(crate) iodepth: u16,

    /// Commands per second (open loop) [default: as many as possible]
    #[arg(long, value_name = "N", help_heading = "Workload")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) rate_iops: Option<u64>,

    /// How long to run before measuring
    #[arg(long = "ramp_time", alias = "ramp-time", value_name = "TIME", default_value = "1")]
    #[arg(value_parser = values::time, help_heading = "Workload")]
    pub(crate) ramp_time: Duration,

    /// How long to measure
    #[arg(long, value_name = "TIME", default_value = "8", value_parser = values::positive_time)]
    #[arg(help_heading = "Workload")]
    pub(crate) runtime: Duration,

    /// The same seed gives the same addresses
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Workload")]
    pub(crate) seed: u64,

    /// The core of the generator [default: any]
    #[arg(long, value_name = "N", help_heading = "Cores")]
    pub(crate) core: Option<usize>,

    /// For people or for programs
    #[arg(short = 'o', long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: OutputFormat,
}
