//! Arguments of `raceline key`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use raceline_host::Hash;
use raceline_proto::nvme::Nqn;

use super::values::{self, OutputFormat};

/// The environment variable with the state directory.
pub(crate) const STATE_VARIABLE: &str = "RACELINE_STATE_DIR";
/// The state directory of the systemd unit.
pub(crate) const DEFAULT_STATE_DIR: &str = "/var/lib/raceline";

/// Arguments of `key`.
#[derive(Clone, Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "\
Keys lie in the folder `keys` of the state directory, a file each, that only its owner can read. A daemon \
with that state directory, `export` and the host's verbs take the name of a key wherever they take a \
file. No verb takes or prints a secret.

Example: raceline key gen web1 --hostnqn HOSTNQN -n NQN")]
pub(crate) struct KeyArgs {
    /// The state directory, as of serve
    #[arg(long, value_name = "DIR", env = STATE_VARIABLE, default_value = DEFAULT_STATE_DIR, global = true)]
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) state_dir: PathBuf,
    /// Form of the output
    #[arg(short = 'o', long, value_enum, value_name = "FORM", default_value_t, global = true)]
    pub(crate) output: OutputFormat,
    #[command(subcommand)]
    pub(crate) verb: KeyVerb,
}

/// What to do with keys.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum KeyVerb {
    /// Make a key, and print what to do on both sides
    Gen {
        /// Its name
        name: String,
        /// What it is for
        #[arg(long, value_enum, value_name = "KIND", default_value_t)]
        kind: KeyKind,
        /// The hash that binds it to its owner, which also gives its length [default: sha256]
        #[arg(long, value_name = "HASH")]
        hash: Option<Hash>,
        #[command(flatten)]
        ends: EndsArgs,
    },
    /// Keep a key that was made elsewhere, as nvme gen-dhchap-key and gen-tls-key print it
    Import {
        /// Its name
        name: String,
        /// The file with the key; - is standard input
        #[arg(default_value = "-", value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
    /// List keys, never their secrets
    Ls,
    /// Make another key under the same name; the old one is kept as NAME.old
    Rotate {
        /// Its name
        name: String,
        #[command(flatten)]
        ends: EndsArgs,
    },
    /// Remove keys
    Rm {
        /// Their names
        #[arg(required = true)]
        names: Vec<String>,
    },
}

/// The two ends, for the commands that are printed.
#[derive(Clone, Debug, Args)]
pub(crate) struct EndsArgs {
    /// NQN of the host that gets it
    #[arg(short = 'q', long, value_name = "HOSTNQN", value_parser = values::nqn)]
    pub(crate) hostnqn: Option<Nqn>,
    /// NQN of the subsystem
    #[arg(short = 'n', long, value_name = "NQN", value_parser = values::nqn)]
    pub(crate) nqn: Option<Nqn>,
    /// Address at which the host reaches it
    #[arg(short = 'a', long, value_name = "ADDR")]
    pub(crate) traddr: Option<String>,
    /// Port at which the host reaches it
    #[arg(short = 's', long, value_name = "PORT", default_value_t = values::DEFAULT_PORT)]
    pub(crate) trsvcid: u16,
}

/// What a key is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum KeyKind {
    /// To prove who one is (DH-HMAC-CHAP, DHHC-1:...)
    #[default]
    Dhchap,
    /// To encrypt (a pre-shared key of TLS, NVMeTLSkey-1:...)
    Tls,
}
