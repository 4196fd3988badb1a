//! Arguments of the verbs that watch a daemon: `events`, `top`, `support`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};

use crate::cli::manage::DaemonArgs;

/// Arguments of `events`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
A daemon keeps its last 1,024 changes and its last 4,096 other events. Each has a number. A follower that \
comes too late for some of them is told how many it has missed. When the daemon restarts, it goes on with the \
new one.

Example: raceline events --since 1h --kind connect,disconnect,refused")]
pub(crate) struct EventsArgs {
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
    /// Begin with this event: its number, how long ago (90s, 10m, 2h, 1d), or "start" for the oldest that is kept
    /// [default: the last 10]
    #[arg(long, value_name = "N|TIME|start", value_parser = since)]
    pub(crate) since: Option<Since>,
    /// Only these kinds: change, connect, disconnect, refused, authentication, namespace, device, path, reservation, log
    #[arg(long = "kind", value_name = "KIND", value_delimiter = ',')]
    pub(crate) kinds: Vec<String>,
    /// Only warnings and errors
    #[arg(long)]
    pub(crate) problems: bool,
    /// One JSON object in a line for each event; the same as -o json
    #[arg(long)]
    pub(crate) json: bool,
    /// Print what there is, and end
    #[arg(long)]
    pub(crate) once: bool,
}

/// Where to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// With the event of this number.
    Number(u64),
    /// With events that are not older than this.
    Ago(Duration),
}

fn since(text: &str) -> Result<Since, String> {
    let wrong =
        || "give a number of an event, a time ago such as 90s, 10m, 2h or 1d, or start".to_owned();
    if text == "start" {
        return Ok(Since::Number(0));
    }
    if let Ok(number) = text.parse() {
        return Ok(Since::Number(number));
    }
    let unit = text.chars().next_back().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let count: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    count
        .checked_mul(seconds)
        .map(|seconds| Since::Ago(Duration::from_secs(seconds)))
        .ok_or_else(wrong)
}

/// Arguments of `top`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Keys: Tab or 1-5 view, s next column to sort by, r other order, / filter, p or space pause, h latencies \
(percentiles) on and off, + and - interval, arrows and PgUp/PgDn scroll, q end.

Rates are those of the last interval. Percentiles need the latency histograms of devices, which cost a look at \
the clock for each request: they are off until h or --latencies turns them on, and those that top has turned on \
are off again when it ends.

Example: raceline top --once -o json --interval 5")]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
    /// Seconds between two looks
    #[arg(long, short = 'i', value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(crate) interval: Duration,
    /// Print all views after one interval, and end
    #[arg(long, visible_alias = "batch")]
    pub(crate) once: bool,
    /// Turn on the latency histograms of all devices while it runs
    #[arg(long)]
    pub(crate) latencies: bool,
    /// No colours; so does the environment variable NO_COLOR
    #[arg(long)]
    pub(crate) no_color: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "give a number of seconds".to_owned())?;
    if (0.1..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("give 0.1 to 3600 seconds".to_owned())
    }
}

/// Arguments of `support`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
The archive has versions, the kernel, what doctor finds, and of a daemon that answers: its configuration, \
counters, events and limits. Keys, secrets, passwords and tokens are replaced by [removed]; names of hosts and \
addresses stay, because without them most reports cannot be understood. Look into it before you send it: \
tar xzf FILE, all of it is text.

Example: raceline support --log /var/log/raceline.log")]
pub(crate) struct SupportArgs {
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
    /// Where to write it [default: raceline-support-TIME.tar.gz here]
    #[arg(long, short = 'f', value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
    /// A file with the log of the daemon, repeatable; its last MiB is taken [default: what journalctl has of the units]
    #[arg(long = "log", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) logs: Vec<PathBuf>,
    /// The systemd unit whose messages are taken, or a pattern [default: raceline*, the daemon and its disks]
    #[arg(long, value_name = "NAME")]
    pub(crate) unit: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_are_numbers_or_times() {
        assert_eq!(since("start"), Ok(Since::Number(0)));
        assert_eq!(since("17"), Ok(Since::Number(17)));
        assert_eq!(since("2h"), Ok(Since::Ago(Duration::from_secs(7200))));
        for wrong in ["", "h", "2w", "-1s", "99999999999999999999d", "1ä"] {
            assert!(since(wrong).is_err(), "{wrong}");
        }
        assert!(interval("0.05").is_err() && interval("NaN").is_err() && interval("2.5").is_ok());
    }
}
