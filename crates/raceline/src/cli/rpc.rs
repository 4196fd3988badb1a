//! Arguments of `rpc`: before the method they are those of SPDK's `rpc.py`.

use std::time::Duration;

use raceline_control::client::DEFAULT_PORT;

use super::manage::SOCKET_VARIABLE;

const AFTER_HELP: &str = "\
METHOD and its options are spelled as rpc.py of SPDK v20.10 to 26.9 spells them; raceline rpc METHOD --help \
lists them. Methods that SPDK does not have take parameter=value, or one JSON object. save_config, load_config, \
save_subsystem_config and load_subsystem_config are also methods here.

Without METHOD, lines of a script on standard input are run like METHODs; where there are none, all methods of \
the daemon are listed.

Exit codes: 0 done, 1 the daemon said no (its code and text are on standard error), 2 wrong usage, 3 cannot \
connect.";

/// Arguments of `rpc`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct RpcArgs {
    /// The daemon's socket, or its IP address [default: /run/raceline/rpc.sock, or else /var/tmp/spdk.sock]
    #[arg(short = 's', long = "server-addr", visible_alias = "socket", value_name = "PATH|IP")]
    #[arg(env = SOCKET_VARIABLE)]
    pub(crate) server: Option<String>,

    /// The daemon's port, with an IP address
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = DEFAULT_PORT)]
    pub(crate) port: u16,

    /// How long to wait for a reply, in seconds
    #[arg(short = 't', long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub(crate) timeout: Duration,

    /// How often to try again to connect, every 0.2 s
    #[arg(short = 'r', long = "conn-retries", value_name = "N", default_value_t = 0)]
    pub(crate) retries: u32,

    /// Send all lines of the script as one batch
    #[arg(short = 'b', long)]
    pub(crate) batch_mode: bool,

    /// Answer each line of standard input with **STATUS=0 or **STATUS=1 after its output
    #[arg(long = "server", conflicts_with_all = ["batch_mode", "dry_run", "command"])]
    pub(crate) serve_lines: bool,

    /// Print the result in one line of JSON, whatever rpc.py would print
    #[arg(long)]
    pub(crate) raw: bool,

    /// Print the request and do not send it
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// The method, and what it takes
    #[arg(value_name = "METHOD", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<String>,
}

/// A time in seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || "not a time in seconds".to_owned();
    let time = Duration::try_from_secs_f64(text.parse().map_err(|_| wrong())?);
    time.ok().filter(|time| !time.is_zero()).ok_or_else(wrong)
}
