//! Arguments of `raceline adq`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use raceline_adq::journal::DEFAULT_FOLDER;
use raceline_adq::plan::{Profile, QUEUES_MAX, Role};

use super::values::{self, OutputFormat};

/// Arguments of `adq`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
plan shows each step with its command, its reason and its undo, and changes nothing. apply makes the \
steps, reads each value back, and gives everything back at the first failure. revert gives back what \
apply changed, also after a crash. apply and revert need root.

Example: raceline adq plan eth0 --listener 192.0.2.1:4420")]
pub(crate) struct AdqArgs {
    #[command(subcommand)]
    pub(crate) action: Action,
}

/// What to do with the device.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Action {
    /// Show what would be done, and why
    Plan(PlanArgs),
    /// Do it
    Apply(ApplyArgs),
    /// Compare what was done with what there is
    Show(ShowArgs),
    /// Give everything back
    Revert(RevertArgs),
}

/// What is wanted.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RecipeArgs {
    /// The network interface, as `ip link` names it
    #[arg(value_name = "IFACE")]
    pub(crate) interface: String,

    /// Address and port of a listener, repeatable; on a host, those of the target
    #[arg(long = "listener", value_name = "ADDR:PORT", value_parser = listener)]
    pub(crate) listeners: Vec<SocketAddr>,

    /// The side that this machine is on
    #[arg(long, value_enum, default_value_t)]
    pub(crate) role: RoleChoice,

    /// Queues for the application [default: as many as CPUs near the device and its channels, at most 8]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(QUEUES_MAX)))]
    pub(crate) queues: Option<u32>,

    /// The recipe
    #[arg(long, value_enum, default_value_t)]
    pub(crate) profile: ProfileChoice,

    /// For people or for programs
    #[arg(short = 'o', long = "output-format", value_enum, value_name = "FORMAT")]
    #[arg(default_value_t)]
    pub(crate) output: OutputFormat,
}

/// Arguments of `adq plan`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,

    /// Plan for the device in this file, which `plan -o json` has printed, perhaps on another machine
    #[arg(long, value_name = "FILE")]
    pub(crate) facts: Option<PathBuf>,
}

/// Arguments of `adq apply`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,

    /// Give everything back unless Enter is pressed within this time, as 60s
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub(crate) confirm_within: Option<Duration>,

    /// Where the journal is kept
    #[arg(long, value_name = "DIR", default_value = DEFAULT_FOLDER)]
    pub(crate) state_dir: PathBuf,
}

/// Arguments of `adq show`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// The network interface, by its name when the recipe was applied
    #[arg(value_name = "IFACE")]
    pub(crate) interface: String,

    /// Where the journal is kept
    #[arg(long, value_name = "DIR", default_value = DEFAULT_FOLDER)]
    pub(crate) state_dir: PathBuf,

    /// For people or for programs
    #[arg(short = 'o', long = "output-format", value_enum, value_name = "FORMAT")]
    #[arg(default_value_t)]
    pub(crate) output: OutputFormat,
}

/// Arguments of `adq revert`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RevertArgs {
    #[command(flatten)]
    pub(crate) journal: ShowArgs,

    /// Also give back what someone else has changed since
    #[arg(long)]
    pub(crate) force: bool,
}

/// `--role`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RoleChoice {
    /// It has the listeners
    #[default]
    Target,
    /// It connects to them
    Host,
}

impl From<RoleChoice> for Role {
    fn from(choice: RoleChoice) -> Self {
        match choice {
            RoleChoice::Target => Self::Target,
            RoleChoice::Host => Self::Host,
        }
    }
}

/// `--profile` of `adq`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ProfileChoice {
    /// The best that the device has: ADQ, or what comes close to it
    #[default]
    Adq,
    /// Without ADQ, also where the device has it
    Rss,
    /// As the papers print it, with what today's kernels need
    Paper,
}

impl From<ProfileChoice> for Profile {
    fn from(choice: ProfileChoice) -> Self {
        match choice {
            ProfileChoice::Adq => Self::Adq,
            ProfileChoice::Rss => Self::Rss,
            ProfileChoice::Paper => Self::Paper,
        }
    }
}

fn listener(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "write ADDR:PORT, as in 192.0.2.1:4420 or [2001:db8::1]:4420".to_owned())
}
