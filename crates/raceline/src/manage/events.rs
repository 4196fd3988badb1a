//! `raceline events`: what happens in a daemon, as it happens.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use raceline_control::client::ClientError;
use serde_json::{Value, json};

use super::{Daemon, elements, failure, text};
use crate::cli::values::OutputFormat;
use crate::cli::watch::{EventsArgs, Since};
use crate::failure::Failure;
use crate::shell;
use crate::table::printable;

/// How long one call waits for an event.
const WAIT: Duration = Duration::from_secs(20);
/// Time between two attempts to reach a daemon that has gone.
const RETRY: Duration = Duration::from_millis(500);
/// How many events are shown that were before the start, unless the user says so.
const LAST: u64 = 10;

/// What the user wants to see.
struct Wanted<'a> {
    kinds: BTreeSet<&'a str>,
    problems: bool,
    not_before_ms: u64,
    json: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &EventsArgs) -> Result<(), Failure> {
    let mut daemon = Daemon::connect(&args.daemon)?;
    let not_before_ms = match args.since {
        Some(Since::Ago(ago)) => millis(SystemTime::now().checked_sub(ago)),
        _ => 0,
    };
    let wanted = Wanted {
        kinds: args.kinds.iter().map(String::as_str).collect(),
        problems: args.problems,
        not_before_ms,
        json: args.json || args.daemon.output == OutputFormat::Json,
    };
    let mut since = first(&mut daemon, args.since)?;
    let mut journal = Value::Null;
    // A call waits no longer than the user lets the daemon take.
    let wait = if args.once { Duration::ZERO } else { WAIT.min(args.daemon.timeout / 2) };
    let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(0);
    loop {
        let asked =
            daemon.try_call("raceline_get_events", json!({ "since": since, "wait_ms": wait_ms }));
        let batch = match asked {
            Ok(batch) => batch,
            Err(ClientError::Closed | ClientError::Socket(_)) if !args.once => {
                shell::note("the daemon has ended; waiting for the next one");
                daemon = again(args)?;
                continue;
            }
            Err(error) => return Err(failure(error)),
        };
        if !journal.is_null() && journal != batch["journal"] {
            shell::note("the daemon has started anew; its events are counted from 1 again");
            journal = batch["journal"].clone();
            since = 0;
            continue;
        }
        journal = batch["journal"].clone();
        print(&batch, &wanted)?;
        let next = batch["next"].as_u64().unwrap_or(since);
        let is_end = elements(&batch, "events").is_empty() && next <= since.max(1);
        since = next;
        if args.once && is_end {
            return Ok(());
        }
    }
}

/// The number of the first event to ask for.
fn first(daemon: &mut Daemon, since: Option<Since>) -> Result<u64, Failure> {
    match since {
        Some(Since::Number(number)) => Ok(number),
        Some(Since::Ago(_)) => Ok(0),
        None => {
            let probe = daemon.call("raceline_get_events", json!({ "since": u64::MAX }))?;
            Ok(probe["next"].as_u64().unwrap_or(1).saturating_sub(LAST))
        }
    }
}

/// Waits for the daemon that follows one that has ended. A signal ends the wait.
fn again(args: &EventsArgs) -> Result<Daemon, Failure> {
    loop {
        match Daemon::connect(&args.daemon) {
            Ok(daemon) => return Ok(daemon),
            Err(error) if error.code == crate::failure::code::CONNECT => std::thread::sleep(RETRY),
            Err(error) => return Err(error),
        }
    }
}

fn print(batch: &Value, wanted: &Wanted<'_>) -> Result<(), Failure> {
    let mut out = String::new();
    // With "start" or a time ago, what is no longer kept was not asked for by its number.
    if let Some(missed) = batch["missed"].as_u64().filter(|missed| *missed > 0) {
        if wanted.json {
            out.push_str(&format!("{}\n", json!({ "missed": missed })));
        } else {
            out.push_str(&format!("-- {missed} events are no longer kept --\n"));
        }
    }
    for event in elements(batch, "events").iter().filter(|event| wanted.admits(event)) {
        let line = if wanted.json { event.to_string() } else { line(event) };
        out.push_str(&line);
        out.push('\n');
    }
    if out.is_empty() { Ok(()) } else { shell::print(out.as_bytes()) }
}

impl Wanted<'_> {
    fn admits(&self, event: &Value) -> bool {
        let kind = event["kind"].as_str().unwrap_or_default();
        (self.kinds.is_empty() || self.kinds.contains(kind))
            && (!self.problems || event["severity"] != "info")
            && event["time_ms"].as_u64().unwrap_or(0) >= self.not_before_ms
    }
}

/// An event in one line: number, time, kind, message, and the facts by name.
pub(super) fn line(event: &Value) -> String {
    let mark = match event["severity"].as_str() {
        Some("error") => "ERROR ",
        Some("warning") => "WARNING ",
        _ => "",
    };
    let mut line = format!(
        "{:>6}  {}  {:<14}  {mark}{}",
        event["seq"].as_u64().unwrap_or(0),
        time(event["time_ms"].as_u64().unwrap_or(0)),
        text(&event["kind"]),
        text(&event["message"]),
    );
    for (name, value) in event["fields"].as_object().into_iter().flatten() {
        // The message of a change says its method and outcome.
        if event["kind"] != "change" || !["method", "outcome"].contains(&name.as_str()) {
            line.push_str(&format!("  {name}={}", text(value)));
        }
    }
    printable(&line)
}

fn millis(time: Option<SystemTime>) -> u64 {
    let since = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The time now in seconds, minutes and so on, without characters that a file's name may not have.
pub(super) fn stamp() -> String {
    let whole = time(millis(Some(SystemTime::now())));
    whole[..19].replace([' ', ':'], "-")
}

/// Milliseconds since 1970 as a date and time, UTC.
pub(super) fn time(ms: u64) -> String {
    let (seconds, ms) = (ms / 1000, ms % 1000);
    // Eras of 400 years that begin in March.
    let days = (seconds / 86_400).min(2_900_000) + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    let year = year + era * 400 + next;
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02}.{ms:03}Z", seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        assert_eq!(time(0), "1970-01-01 00:00:00.000Z");
        assert_eq!(time(951_827_696_789), "2000-02-29 12:34:56.789Z");
        assert_eq!(time(1_795_564_800_001), "2026-11-25 00:00:00.001Z");
        assert_eq!(time(u64::MAX).len(), 24);
        assert_eq!(stamp().len(), 19);
    }

    #[test]
    fn a_line_has_no_control_characters() {
        let event = json!({
            "seq": 7, "time_ms": 0, "kind": "connect", "severity": "warning",
            "message": "host\u{1b}[31m", "fields": { "cntlid": 3, "host": "nqn.x:\n" },
        });
        let expected = "     7  1970-01-01 00:00:00.000Z  connect         WARNING host\u{fffd}[31m  cntlid=3  \
                        host=nqn.x:\u{fffd}";
        assert_eq!(line(&event), expected);
    }

    #[test]
    fn filters_go_together() {
        let kinds = BTreeSet::from(["path"]);
        let wanted = Wanted { kinds, problems: true, not_before_ms: 5, json: true };
        let event = |kind: &str, severity: &str, time_ms: u64| json!({ "kind": kind, "severity": severity, "time_ms": time_ms });
        assert!(wanted.admits(&event("path", "warning", 5)));
        assert!(!wanted.admits(&event("path", "info", 5)));
        assert!(!wanted.admits(&event("log", "error", 5)));
        assert!(!wanted.admits(&event("path", "error", 4)));
    }
}
