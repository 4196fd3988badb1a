//! Arguments of `raceline bench list`, `show`, `run` and `compare`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use raceline_proto::nvme::Nqn;

use super::OffloadChoice;
use super::host::target;
use crate::cli::values::{self, OutputFormat};

/// Arguments of `bench list`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Add the experiment of a file of your own
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Vec<PathBuf>,

    /// For people or for programs
    #[arg(short = 'o', long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: OutputFormat,
}

/// Arguments of `bench show`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// The experiment
    #[arg(value_name = "ID")]
    pub(crate) id: String,

    /// Add the experiment of a file of your own
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Vec<PathBuf>,

    /// For people or for programs
    #[arg(short = 'o', long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: OutputFormat,
}

/// Arguments of `bench run`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Every run of an experiment goes into a record, ID.json in the folder of --out. The runs of a block are made one after \
the other, forward in one block and backward in the next; ratios are taken within a block. Blocks during which other \
programs used more than 5 % of the CPUs are thrown away and repeated. A run that breaks off goes on when the same \
command is given again. What the machine lacks is listed in the record, with what stands in for it.

Examples: raceline bench run all --quick
          raceline bench run ADQ-F6 CH-T2 --out results
          raceline bench run CH-F2 --spdk ~/spdk
          raceline bench run CH-F1 --rdma 192.0.2.1 --nvmet-rdma 192.0.2.2:4420,NQN")]
pub(crate) struct RunArgs {
    /// The experiments, or `all`; those of --file if none is named
    #[arg(value_name = "ID", required_unless_present = "file")]
    pub(crate) ids: Vec<String>,

    /// Short runs and fewer points: all experiments within 15 minutes on two cores
    #[arg(long, conflicts_with = "full")]
    pub(crate) quick: bool,

    /// Runs as long as those of the papers
    #[arg(long)]
    pub(crate) full: bool,

    /// The folder of the records
    #[arg(long, value_name = "DIR", default_value = "raceline-results")]
    pub(crate) out: PathBuf,

    /// Add the experiment of a file of your own
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Vec<PathBuf>,

    /// The network between host and target
    #[arg(long, value_enum, value_name = "BED", default_value_t)]
    pub(crate) bed: BedChoice,

    /// The folder in which SPDK was built: its target is measured, too
    #[arg(long, value_name = "DIR", help_heading = "Subjects")]
    pub(crate) spdk: Option<PathBuf>,

    /// A target that runs already stands for Raceline's; commands have up to 1 MiB
    #[arg(long, value_name = "ADDR:PORT,NQN", value_parser = target, help_heading = "Subjects")]
    pub(crate) target: Option<(SocketAddr, Nqn)>,

    /// A namespace of up to 1 MiB per command that the kernel's target exports: it is measured, too
    #[arg(long, value_name = "ADDR:PORT,NQN", value_parser = target, help_heading = "Subjects")]
    pub(crate) nvmet: Option<(SocketAddr, Nqn)>,

    /// The same over RDMA, reached by the device of --rdma
    #[arg(long, value_name = "ADDR:PORT,NQN", value_parser = target, help_heading = "Subjects")]
    #[arg(requires = "rdma")]
    pub(crate) nvmet_rdma: Option<(SocketAddr, Nqn)>,

    /// The address of an interface of this machine that has an RDMA device: NVMe/RDMA takes part in CONVERGED, CH-F1,
    /// CH-F2 and CH-T2
    #[arg(long, value_name = "ADDR", help_heading = "Subjects")]
    pub(crate) rdma: Option<IpAddr>,

    /// The engine that computes digests, in experiments that have one [default: a DSA device, or a thread
    /// that plays one]
    #[arg(long, value_enum, value_name = "ENGINE", help_heading = "Subjects")]
    pub(crate) offload: Option<OffloadChoice>,

    /// The CPUs to use, those of the target first [default: all]
    #[arg(long, value_name = "N,...", value_delimiter = ',', help_heading = "Cores")]
    pub(crate) cpus: Vec<usize>,

    /// Blocks of each point [default: 6 with --quick or --full, else 12]
    #[arg(long, value_name = "N", help_heading = "Effort")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) blocks: Option<u32>,

    /// How long a run is measured [default: 200ms with --quick, else 2; with --full as long as the source's, 60
    /// where it states nothing]
    #[arg(long, value_name = "TIME", value_parser = values::positive_time, help_heading = "Effort")]
    pub(crate) runtime: Option<Duration>,

    /// How long a run goes before it is measured [default: 40ms with --quick, else 200ms; with
    /// --full as long as the source's, 10 where it states nothing]
    #[arg(long = "ramp_time", alias = "ramp-time", value_name = "TIME", value_parser = values::time)]
    #[arg(help_heading = "Effort")]
    pub(crate) ramp_time: Option<Duration>,

    /// The same seed gives the same addresses and data
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Arguments of `bench report`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
The page needs no network and no scripts; it follows the system's light or dark colours, and prints. It has a summary, \
and for each experiment our ratios beside the published ones, plots, what stood in for what, and every value. Beside it \
are the same tables as Markdown, JSON and CSV, and each plot as SVG.

Example: raceline bench report raceline-results --out report.html")]
pub(crate) struct ReportArgs {
    /// The folder of the records
    #[arg(value_name = "DIR", default_value = "raceline-results")]
    pub(crate) folder: PathBuf,

    /// The page [default: report/report.html in the folder]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,

    /// Add the experiment of a file of your own
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Vec<PathBuf>,
}

/// `--bed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum BedChoice {
    /// What fits each experiment best, of those that can be made here
    #[default]
    Auto,
    /// The loopback device
    Loopback,
    /// Two network namespaces and a veth pair with 4 queues; takes root
    Veth,
    /// The same, with a link of 1 Gbit/s
    Shaped,
}

/// Arguments of `bench compare`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CompareArgs {
    /// The folder of the first run
    #[arg(value_name = "A")]
    pub(crate) a: PathBuf,

    /// The folder of the second run
    #[arg(value_name = "B")]
    pub(crate) b: PathBuf,

    /// Compare even if the machines or settings differ
    #[arg(long)]
    pub(crate) anyway: bool,

    /// For people or for programs
    #[arg(short = 'o', long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: OutputFormat,
}
