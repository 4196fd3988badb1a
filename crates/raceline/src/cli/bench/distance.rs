//! Arguments of `raceline bench distance`.

use crate::cli::values::{self, CoreList, OutputFormat};

/// Arguments of `bench distance`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Two threads on two cores throw one cache line to each other; what it takes there and back decides what \
target and host on these cores can do together. Choose near cores for them; and on a virtual machine, \
see whether its cores are moved: then the least and the greatest of the looks are far from each other.

Example: raceline bench distance --cores 0-3")]
pub(crate) struct DistanceArgs {
    /// The cores, each of which is paired with each [default: all that may be used]
    #[arg(long, value_name = "LIST", value_parser = values::core_list)]
    pub(crate) cores: Option<CoreList>,

    /// Look once at each pair, some milliseconds long, instead of for a second
    #[arg(long)]
    pub(crate) once: bool,

    /// Look until the two cores are near, for at most 20 s: at most twice as far apart as the least
    /// that was seen
    #[arg(long, conflicts_with = "once")]
    pub(crate) wait: bool,

    /// The least nanoseconds that were seen before
    #[arg(long, value_name = "NS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) least: Option<u64>,

    /// For people or for programs
    #[arg(short = 'o', long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: OutputFormat,
}
