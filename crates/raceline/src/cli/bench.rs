//! Arguments of `raceline bench`.

pub(crate) mod agent;
pub(crate) mod bed;
pub(crate) mod distance;
pub(crate) mod handshakes;
pub(crate) mod host;
pub(crate) mod local;
pub(crate) mod papers;

use std::time::Duration;

use raceline_accel::{CrcPath, OpCode};
use raceline_bdev::ByteSize;
use raceline_bench::{accel, digest, gap, limit};
use raceline_reactor::HugePages;

pub(crate) use self::distance::DistanceArgs;
use super::values::{self, IoChoice, ModeChoice, OutputFormat};

/// Arguments of `bench`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) experiment: Experiment,
}

/// What to measure.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Experiment {
    /// List the experiments of the catalogue: those of the field's papers, and Raceline's own
    List(papers::ListArgs),
    /// Show what an experiment varies, measures and compares, with all published numbers
    Show(papers::ShowArgs),
    /// Run experiments of the catalogue
    Run(papers::RunArgs),
    /// Make a page about what was measured, with plots, beside the published numbers
    Report(papers::ReportArgs),
    /// Compare two runs, point by point
    Compare(papers::CompareArgs),
    /// Measure what this machine's TCP gives to a pair that does nothing but move NVMe's bytes
    Limit(LimitArgs),
    /// Measure target and host against that limit, pair of short runs by pair
    Gap(GapArgs),
    /// Measure what handshakes of TLS do to the latencies of those who are connected
    Handshakes(handshakes::HandshakesArgs),
    /// Measure operations on data: called directly, through the framework, and on engines
    Accel(AccelArgs),
    /// Measure what data digests cost a target's core: none, in software, and offloaded
    Digest(DigestArgs),
    /// Measure what the host's ways of using queues bring: maps, gathered commands
    Host(host::HostBenchArgs),
    /// Measure a device in this process, without a network: what remote latencies are compared with
    Local(local::LocalArgs),
    /// Measure how far cores are apart: how long a cache line takes from one to another and back
    Distance(DistanceArgs),
    /// Make, show or remove a test bed: two network namespaces and the link between them
    Bed(bed::BedArgs),
    /// Run loads for a fleet, on this machine
    Agent(agent::AgentArgs),
    /// Run a load on several agents at the same time, and merge what they measure
    Fleet(agent::FleetArgs),
}

/// Arguments of `bench limit`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Two threads exchange the bytes of NVMe/TCP commands over the loopback: payload leaves from, and \
lands in, random places of a filled region. What is left to `auto` is tried for some tens of \
milliseconds each before every point, and the fastest is used. Lists make a grid: every size with \
every direction, number of connections and depth. Measurements wait until the two cores are as near \
as they were before (see `bench distance`).

Example: raceline bench limit --io-size 4k --depth 1,8,32,128 --connections 1,16 -o json")]
pub(crate) struct LimitArgs {
    /// Bytes per command
    #[arg(long, value_name = "SIZE,...", default_value = "4k", value_delimiter = ',')]
    #[arg(value_parser = values::io_size, help_heading = "Workload")]
    pub(crate) io_size: Vec<u32>,

    /// Direction of the payload
    #[arg(long, value_enum, value_name = "RW,...", default_value = "read", value_delimiter = ',')]
    #[arg(help_heading = "Workload")]
    pub(crate) rw: Vec<Direction>,

    /// Commands in flight, per connection
    #[arg(long, value_name = "N,...", default_value = "32", value_delimiter = ',')]
    #[arg(value_parser = depth, help_heading = "Workload")]
    pub(crate) depth: Vec<usize>,

    /// TCP connections
    #[arg(long, value_name = "N,...", default_value = "1", value_delimiter = ',')]
    #[arg(value_parser = connections, help_heading = "Workload")]
    pub(crate) connections: Vec<usize>,

    /// Size of the region, or `hot`: 1M, which the caches hold
    #[arg(long, value_name = "SIZE", default_value = "512m", value_parser = memory)]
    #[arg(help_heading = "Workload")]
    pub(crate) memory: usize,

    /// The region's pages; huge ones must be reserved (sysctl vm.nr_hugepages)
    #[arg(long, value_enum, value_name = "KIND", default_value_t, help_heading = "Workload")]
    pub(crate) pages: PagesChoice,

    /// A buffer for each command in flight on the host's side, as programs have, in which what is read
    /// ends; else caches hold what is sent, and what comes lands as it comes, headers and all
    #[arg(long, help_heading = "Workload")]
    pub(crate) buffer_each: bool,

    /// Writes come through staging memory, as with a target that must not leave half a block behind;
    /// else large ones may be received in the region itself
    #[arg(long, help_heading = "Workload")]
    pub(crate) staged: bool,

    /// Nanoseconds that each side works on each command, as looking it up and checking it takes
    #[arg(long, value_name = "NS", default_value_t = 0, help_heading = "Workload")]
    #[arg(value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub(crate) work: u64,

    /// How long to measure
    #[arg(long, alias = "seconds", value_name = "TIME", default_value = "1")]
    #[arg(value_parser = values::positive_time, help_heading = "Workload")]
    pub(crate) runtime: Duration,

    /// How often to measure each point; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, help_heading = "Workload")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: u32,

    /// After each measurement, the same with data digests: copied and digested on one side, checked
    /// on the other; reads only
    #[arg(short = 'G', long, help_heading = "Workload")]
    pub(crate) data_digest: bool,

    /// After each measurement, the same in records of TLS, by the library and with the sizes of records and calls of
    /// our TLS, and nothing else of it
    #[arg(long, value_enum, value_name = "SUITE", num_args = 0..=1, help_heading = "Workload")]
    #[arg(
        default_missing_value = "aes-128",
        require_equals = true,
        conflicts_with = "data_digest"
    )]
    pub(crate) tls: Option<SuiteChoice>,

    /// The same seed gives the same addresses and data
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Workload")]
    pub(crate) seed: u64,

    /// Look for work without a pause, or sleep in the kernel
    #[arg(long, value_enum, value_name = "HOW", default_value_t, help_heading = "Tuning")]
    pub(crate) mode: WaitChoice,

    /// Answer all that one receive brought in one send (this is the default)
    #[arg(long, conflicts_with_all = ["per_pdu", "chunk"], help_heading = "Tuning")]
    pub(crate) coalesce: bool,

    /// Send each PDU by itself
    #[arg(long, conflicts_with = "chunk", help_heading = "Tuning")]
    pub(crate) per_pdu: bool,

    /// The most PDUs in one send, on both sides
    #[arg(long, value_name = "auto|N", default_value = "auto", value_parser = chunk)]
    #[arg(help_heading = "Tuning")]
    pub(crate) chunk: Auto<usize>,

    /// The most bytes of one receive of payload
    #[arg(long, value_name = "auto|SIZE", default_value = "auto", value_parser = receive_size)]
    #[arg(help_heading = "Tuning")]
    pub(crate) receive_size: Auto<usize>,

    /// Fetch payload into the cache before it is sent: by each line (on), or the first lines of
    /// each page as soon as the command comes (ahead)
    #[arg(long, value_name = "auto|on|ahead|off", default_value = "auto", value_parser = prefetch)]
    #[arg(help_heading = "Tuning")]
    pub(crate) prefetch: Auto<limit::Prefetch>,

    #[command(flatten)]
    pub(crate) cores: CoreArgs,

    /// For people or for programs
    #[arg(short = 'o', long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: OutputFormat,
}

/// Arguments of `bench gap`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
The bare pair of `bench limit` and Raceline's target and host are measured in turn, on the same \
two cores with the same amount of memory of the same pages; what counts is the median of the \
ratios of neighbouring runs. Pairs during which other processes used more than 5 % of the cores, \
or the hypervisor took more than 1 % away, or the two cores were further apart than before (see \
`bench distance`), are repeated, and reported if that does not help. \
Against --mode interrupt, the limit blocks, too.

The target is the daemon of `raceline serve` with a configuration file, or that of `raceline export`. --target both \
measures the daemon beside export: two targets with the same limits and as much memory each run in this process on the \
same core. A pair is a run of each; who goes first changes from pair to pair. The one whose turn it is not sleeps in the \
kernel, as its host does, so that it takes nothing of the core.

Examples: raceline bench gap --points io=4k,depth=1|32,connections=1 -o json
          raceline bench gap --target both --points io=4k,rw=read,depth=32,connections=1|16")]
pub(crate) struct GapArgs {
    /// 24 points that say most, in a few minutes
    #[arg(long, help_heading = "Points")]
    pub(crate) quick: bool,

    /// Which points, as in io=4k|16k,rw=read,depth=1|32,connections=16 [default: all]
    #[arg(long, value_name = "FILTER", help_heading = "Points")]
    pub(crate) points: Option<gap::Selection>,

    /// What is measured
    #[arg(long, value_enum, value_name = "TARGET", default_value_t, help_heading = "Points")]
    pub(crate) target: SubjectChoice,

    /// Size of the namespace, and of the limit's region
    #[arg(long, value_name = "SIZE", default_value = "512m", value_parser = memory)]
    #[arg(help_heading = "Workload")]
    pub(crate) memory: usize,

    /// The pages of both; huge ones must be reserved (sysctl vm.nr_hugepages)
    #[arg(long, value_enum, value_name = "KIND", default_value_t, help_heading = "Workload")]
    pub(crate) pages: PagesChoice,

    /// A namespace without storage, against the limit out of 1M that the caches hold
    #[arg(long, help_heading = "Workload")]
    pub(crate) null: bool,

    /// A buffer for each command in flight on the limit's host, too, as ours has, in which what is read
    /// ends; else caches hold what it sends, and what comes lands as it comes, headers and all
    #[arg(long, help_heading = "Workload")]
    pub(crate) buffer_each: bool,

    /// Writes of the limit come through staging memory, as with a target that must not leave half a block
    /// behind; else large ones may be received in the region itself
    #[arg(long, help_heading = "Workload")]
    pub(crate) staged: bool,

    /// Nanoseconds that each side of the limit works on each command, as looking it up and checking it takes
    #[arg(long, value_name = "NS", default_value_t = 0, help_heading = "Workload")]
    #[arg(value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub(crate) work: u64,

    /// Target and host over TLS, beside the bare pair over TLS (see `bench limit --tls`), and then without TLS; needs
    /// --target export
    #[arg(long, value_enum, value_name = "SUITE", num_args = 0..=1, help_heading = "Workload")]
    #[arg(default_missing_value = "aes-128", require_equals = true)]
    pub(crate) tls: Option<SuiteChoice>,

    /// Pairs of runs per point [default: 5, with --target both 30]
    #[arg(long, value_name = "N", help_heading = "Workload")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) pairs: Option<u16>,

    /// How long each run goes before it is measured
    #[arg(long = "ramp_time", alias = "ramp-time", value_name = "TIME", default_value = "200ms")]
    #[arg(value_parser = values::time, help_heading = "Workload")]
    pub(crate) ramp_time: Duration,

    #[command(flatten)]
    pub(crate) run: ProductArgs,
}

/// Arguments of `bench accel`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Every way to do an operation takes its turn, run by short run: called directly (crc-fast, memcpy...), through the \
framework in software, and on each engine at each depth. The ratio is taken run beside run. dsa_emulated is a thread \
that plays a DSA device: it shows that things work, and says nothing of a device's speed.

Example: raceline bench accel --op crc32c,copy_crc32c --size 4k,128k --path table,avx512 -o json")]
pub(crate) struct AccelArgs {
    /// Operations [default: all]
    #[arg(long = "op", value_name = "OP,...", value_delimiter = ',', help_heading = "What")]
    pub(crate) operations: Vec<OpCode>,

    /// Engines
    #[arg(long, value_enum, value_name = "ENGINE,...", value_delimiter = ',')]
    #[arg(default_value = "software,dsa_emulated", help_heading = "What")]
    pub(crate) engine: Vec<EngineChoice>,

    /// Paths of CRC32C in software: auto, table, sse4.2, avx512, neon
    #[arg(long, value_name = "PATH,...", default_value = "auto", value_delimiter = ',')]
    #[arg(help_heading = "What")]
    pub(crate) path: Vec<CrcPath>,

    /// Bytes of an operand
    #[arg(long, value_name = "SIZE,...", default_value = "4k,16k,128k", value_delimiter = ',')]
    #[arg(value_parser = operand_size, help_heading = "What")]
    pub(crate) size: Vec<usize>,

    /// Operations in flight, on engines that complete later
    #[arg(long, value_name = "N,...", default_value = "1,32", value_delimiter = ',')]
    #[arg(value_parser = operations_in_flight, help_heading = "What")]
    pub(crate) depth: Vec<usize>,

    /// Bytes of all operands together: more than the caches hold, or `hot`, as few as there can be
    #[arg(long, value_name = "hot|SIZE,...", default_value = "hot,64m", value_delimiter = ',')]
    #[arg(value_parser = working_set, help_heading = "What")]
    pub(crate) working_set: Vec<usize>,

    /// Runs of each way; the median counts
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "How")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) runs: u16,

    /// How long one run takes
    #[arg(long, alias = "seconds", value_name = "TIME", default_value = "10ms")]
    #[arg(value_parser = values::positive_time, help_heading = "How")]
    pub(crate) runtime: Duration,

    /// The same seed gives the same data
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "How")]
    pub(crate) seed: u64,

    /// The core that asks [default: any]
    #[arg(long, value_name = "N", help_heading = "Cores")]
    pub(crate) core: Option<usize>,

    /// The core of an emulated device [default: any]
    #[arg(long, value_name = "N", help_heading = "Cores")]
    pub(crate) device_core: Option<usize>,

    /// For people or for programs
    #[arg(short = 'o', long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: OutputFormat,
}

/// Arguments of `bench digest`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Targets on one core export the same memory: one without data digests, one for each path of CRC32C in software, and \
one that offloads. They take turns, run by short run; what is compared is the busy time of the core per command. \
Beside what was measured stand a model of an engine, and what was published of Intel DSA; lines say which they are.

Example: raceline bench digest --io-size 128k --depth 128,1024 -o json")]
pub(crate) struct DigestArgs {
    /// The lowest and the highest depth only
    #[arg(long, conflicts_with = "depth", help_heading = "Workload")]
    pub(crate) quick: bool,

    /// Direction of the payload
    #[arg(long, value_enum, value_name = "RW,...", default_value = "read", value_delimiter = ',')]
    #[arg(help_heading = "Workload")]
    pub(crate) rw: Vec<Direction>,

    /// Bytes per command [default: 4k,16k,128k]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = values::io_size)]
    #[arg(help_heading = "Workload")]
    pub(crate) io_size: Vec<u32>,

    /// Commands in flight, 64 at most on a queue [default: 128,256,512,1024]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = reads_in_flight)]
    #[arg(help_heading = "Workload")]
    pub(crate) depth: Vec<u32>,

    /// Size of the namespace
    #[arg(long, value_name = "SIZE", default_value = "512m", value_parser = memory)]
    #[arg(help_heading = "Workload")]
    pub(crate) memory: usize,

    /// Its pages; huge ones must be reserved (sysctl vm.nr_hugepages)
    #[arg(long, value_enum, value_name = "KIND", default_value_t, help_heading = "Workload")]
    pub(crate) pages: PagesChoice,

    /// Paths of CRC32C in software, the usual one last [default: all that this machine has]
    #[arg(long, value_name = "PATH,...", value_delimiter = ',', help_heading = "Digests")]
    pub(crate) path: Vec<CrcPath>,

    /// What to offload to
    #[arg(long, value_enum, value_name = "ENGINE", default_value = "dsa_emulated")]
    #[arg(help_heading = "Digests")]
    pub(crate) offload: OffloadChoice,

    /// Rounds, in which each way has its turn; the median counts
    #[arg(long, value_name = "N", default_value_t = 9, help_heading = "How")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,

    /// How long each run goes before it is measured
    #[arg(long = "ramp_time", alias = "ramp-time", value_name = "TIME", default_value = "100ms")]
    #[arg(value_parser = values::time, help_heading = "How")]
    pub(crate) ramp_time: Duration,

    #[command(flatten)]
    pub(crate) run: ProductArgs,
}

/// The options that experiments with our own target and host share.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct ProductArgs {
    /// How long each run is measured
    #[arg(long, alias = "seconds", value_name = "TIME", default_value = "300ms")]
    #[arg(value_parser = values::positive_time, help_heading = "Workload")]
    pub(crate) runtime: Duration,

    /// The same seed gives the same addresses and data
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Workload")]
    pub(crate) seed: u64,

    /// What a core does when it has nothing to do
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

/// `--tls` of `bench limit` and `bench gap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SuiteChoice {
    /// TLS_AES_128_GCM_SHA256
    #[value(name = "aes-128")]
    Aes128,
    /// TLS_AES_256_GCM_SHA384
    #[value(name = "aes-256")]
    Aes256,
}

impl From<SuiteChoice> for raceline_tls::Suite {
    fn from(choice: SuiteChoice) -> Self {
        match choice {
            SuiteChoice::Aes128 => Self::Aes128GcmSha256,
            SuiteChoice::Aes256 => Self::Aes256GcmSha384,
        }
    }
}

/// `--target` of `bench gap`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SubjectChoice {
    /// A daemon, beside the limit
    #[default]
    Serve,
    /// The target of `raceline export`, beside the limit
    Export,
    /// A daemon beside the target of `raceline export`
    Both,
}

impl From<SubjectChoice> for gap::Subject {
    fn from(choice: SubjectChoice) -> Self {
        match choice {
            SubjectChoice::Serve => Self::Serve,
            SubjectChoice::Export => Self::Export,
            SubjectChoice::Both => Self::Both,
        }
    }
}

/// `--engine` of `bench accel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum EngineChoice {
    /// The CPU
    Software,
    /// Intel DSA, by the idxd driver's work queues
    Dsa,
    /// A thread that plays a DSA device
    DsaEmulated,
}

/// `--offload` of `bench digest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum OffloadChoice {
    /// Nothing
    None,
    /// Intel DSA, by the idxd driver's work queues
    Dsa,
    /// A thread that plays a DSA device, on the host's core
    DsaEmulated,
}

/// The cores of the two sides.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct CoreArgs {
    /// The core of the target's side
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Cores")]
    pub(crate) target_core: usize,

    /// The core of the host's side
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Cores")]
    pub(crate) host_core: usize,
}

/// Direction of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Direction {
    /// To the host
    Read,
    /// To the target
    Write,
}

/// `--pages`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PagesChoice {
    /// Normal pages
    Plain,
    /// Huge pages where the kernel has some
    #[default]
    Transparent,
    /// Reserved huge pages
    Huge,
}

impl From<PagesChoice> for HugePages {
    fn from(choice: PagesChoice) -> Self {
        match choice {
            PagesChoice::Plain => Self::None,
            PagesChoice::Transparent => Self::Transparent,
            PagesChoice::Huge => Self::Explicit,
        }
    }
}

impl PagesChoice {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Transparent => "transparent",
            Self::Huge => "huge",
        }
    }
}

/// `--mode` of `bench limit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum WaitChoice {
    /// Look for work without a pause
    #[default]
    Polled,
    /// Sleep in the kernel
    Blocking,
}

impl From<WaitChoice> for limit::Mode {
    fn from(choice: WaitChoice) -> Self {
        match choice {
            WaitChoice::Polled => Self::Polled,
            WaitChoice::Blocking => Self::Blocking,
        }
    }
}

/// A choice, or the best value found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Auto<T>(pub(crate) Option<T>);

fn auto_or<T>(
    text: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Auto<T>, String> {
    if text == "auto" { Ok(Auto(None)) } else { parse(text).map(|value| Auto(Some(value))) }
}

fn chunk(text: &str) -> Result<Auto<usize>, String> {
    auto_or(text, |text| match text.parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err("auto, or the number of PDUs in one send".to_owned()),
    })
}

fn receive_size(text: &str) -> Result<Auto<usize>, String> {
    auto_or(text, |text| {
        let ByteSize(bytes) = values::size(text)?;
        let bytes = usize::try_from(bytes).ok();
        let bytes = bytes.filter(|bytes| (RECEIVE_MIN..=RECEIVE_MAX).contains(bytes));
        bytes.ok_or_else(|| "auto, or a size from 128 bytes to 16M".to_owned())
    })
}

/// Smallest limit on the bytes of one receive: a capsule must fit.
const RECEIVE_MIN: usize = 128;
const RECEIVE_MAX: usize = 16 << 20;

fn prefetch(text: &str) -> Result<Auto<limit::Prefetch>, String> {
    auto_or(text, |text| match text {
        "on" => Ok(limit::Prefetch::Lines),
        "ahead" => Ok(limit::Prefetch::Ahead),
        "off" => Ok(limit::Prefetch::Off),
        _ => Err("auto, on, ahead or off".to_owned()),
    })
}

fn depth(text: &str) -> Result<usize, String> {
    number(text, limit::DEPTH_MAX)
}

fn connections(text: &str) -> Result<usize, String> {
    number(text, limit::CONNECTIONS_MAX)
}

fn operations_in_flight(text: &str) -> Result<usize, String> {
    number(text, accel::DEPTH_MAX)
}

fn reads_in_flight(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=digest::DEPTH_MAX).contains(number));
    number.ok_or_else(|| format!("a number from 1 to {}", digest::DEPTH_MAX))
}

fn operand_size(text: &str) -> Result<usize, String> {
    let ByteSize(bytes) = values::size(text)?;
    let bytes = usize::try_from(bytes).ok();
    let bytes = bytes.filter(|bytes| (1..=accel::SIZE_MAX).contains(bytes));
    bytes.ok_or_else(|| "an operand has 1 byte to 64M".to_owned())
}

fn working_set(text: &str) -> Result<usize, String> {
    if text == "hot" { Ok(accel::HOT) } else { memory(text) }
}

fn number(text: &str, most: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("a number from 1 to {most}"))
}

fn memory(text: &str) -> Result<usize, String> {
    if text == "hot" {
        return Ok(limit::HOT_BYTES);
    }
    let ByteSize(bytes) = values::size(text)?;
    usize::try_from(bytes).map_err(|_| "more than this machine can address".to_owned())
}
