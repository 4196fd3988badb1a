//! The command line of `doctor`.

use clap::{Args, ValueEnum};
use raceline_environment::check::Role;

use super::values::OutputFormat;

const AFTER_HELP: &str = "\
It changes nothing, and needs no privileges. Values that root alone may read say so.

Exit codes: 0 nothing worse than remarks, 1 warnings, 2 failures (and, as always, wrong usage).

Examples:
  raceline doctor
  raceline doctor eth0 --role target --measure
  raceline doctor eth0 -o json > environment.json";

/// Arguments of `doctor`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct DoctorArgs {
    /// The network interface that Raceline is used over
    #[arg(value_name = "IFACE")]
    pub(crate) interface: Option<String>,
    /// What this machine does in the measurement [default: both]
    #[arg(long, value_enum, value_name = "ROLE")]
    pub(crate) role: Option<RoleChoice>,
    /// Measure as well what clock, system calls and waking up cost here, and what else runs; takes about 2 s
    #[arg(long)]
    pub(crate) measure: bool,
    /// For people or for programs
    #[arg(short = 'o', long = "output-format", value_enum, value_name = "FORMAT")]
    #[arg(default_value_t)]
    pub(crate) output: OutputFormat,
}

/// `--role`: the side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleChoice {
    /// It exports namespaces
    Target,
    /// It uses them
    Host,
}

impl From<RoleChoice> for Role {
    fn from(role: RoleChoice) -> Self {
        match role {
            RoleChoice::Target => Self::Target,
            RoleChoice::Host => Self::Host,
        }
    }
}
