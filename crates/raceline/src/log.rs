//! Messages on standard error: their level and form, which can change while the program runs.

mod journal;
pub(crate) mod limit;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use raceline_control::events::EventJournal;
use raceline_control::logging::{LogLevel, LogSettings};
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use crate::cli::LogArgs;

/// The environment variable that filters messages, as in `RACELINE_LOG=raceline_target=trace`.
const VARIABLE: &str = "RACELINE_LOG";

/// The target of messages about who has changed what, and who has authenticated: one JSON object in a line each.
const AUDIT: &str = "raceline::audit";

static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();
static TIMESTAMPS: AtomicBool = AtomicBool::new(true);

/// Begins to log; gives the settings that the command line asks for. The journal of events is filled whatever these
/// settings are.
pub(crate) fn start(args: &LogArgs, events: Option<Arc<EventJournal>>) -> LogSettings {
    let level = match (args.quiet, args.verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "info",
        (false, 2) => "debug",
        (false, _) => "trace",
    };
    let directives = if args.quiet { level.to_owned() } else { format!("{level},{AUDIT}=info") };
    let filter = EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new(directives));
    let (filter, handle) = reload::Layer::new(filter);
    // The journal takes fields as they are; elsewhere they become text.
    let journal = is_journal(std::env::var("JOURNAL_STREAM").ok().as_deref())
        .then(tracing_journald::layer)
        .and_then(Result::ok)
        .map(|layer| layer.with_syslog_identifier("raceline".to_owned()));
    let is_text = journal.is_none();
    let journal_audit = (!is_text).then(tracing_journald::layer).and_then(Result::ok);
    let journal = journal.map(|layer| layer.with_filter(limit::Limit { without: AUDIT }));
    let journal_audit = journal_audit.map(|layer| {
        layer
            .with_syslog_identifier("raceline-audit".to_owned())
            .with_filter(filter_fn(|event| event.target() == AUDIT))
    });
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(args.verbose > 1)
        .with_timer(Timer)
        .with_filter(limit::Limit { without: AUDIT });
    // Programs read these.
    let audit = tracing_subscriber::fmt::layer()
        .json()
        .flatten_event(true)
        .with_writer(std::io::stderr)
        .with_timer(Timer)
        .with_filter(filter_fn(|event| event.target() == AUDIT));
    let events = events.map(|journal| {
        let is_event = filter_fn(journal::is_event).with_max_level_hint(LevelFilter::INFO);
        journal::JournalLayer(journal).with_filter(is_event)
    });
    let text = Layer::and_then(is_text.then_some(lines), is_text.then_some(audit));
    let shown = text.and_then(journal).and_then(journal_audit).with_filter(filter);
    tracing_subscriber::registry().with(shown).with(events).init();
    // Cannot fail: this function is called once.
    let _ = FILTER.set(handle);
    let level = match (args.quiet, args.verbose) {
        (true, _) => LogLevel::Error,
        (false, 0) => LogLevel::Notice,
        (false, 1) => LogLevel::Info,
        (false, _) => LogLevel::Debug,
    };
    LogSettings { print_level: level, level, ..LogSettings::default() }
}

/// Applies new settings. The environment variable overrides all of them.
pub(crate) fn apply(settings: &LogSettings) {
    TIMESTAMPS.store(settings.timestamps, Ordering::Relaxed);
    if std::env::var_os(VARIABLE).is_some() {
        return;
    }
    if let Some(handle) = FILTER.get()
        && let Err(error) = handle.reload(EnvFilter::new(settings.directives()))
    {
        tracing::warn!("cannot change what is logged: {error}");
    }
}

/// Whether standard error goes to the journal: `JOURNAL_STREAM` then has its device and inode (systemd.exec(5)).
fn is_journal(stream: Option<&str>) -> bool {
    let Some((device, inode)) = stream.and_then(|stream| stream.split_once(':')) else {
        return false;
    };
    let Ok(is) = rustix::fs::fstat(rustix::stdio::stderr()) else { return false };
    device.parse() == Ok(is.st_dev) && inode.parse() == Ok(is.st_ino)
}

/// Prints the time, if it is wanted.
struct Timer;

impl FormatTime for Timer {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        if TIMESTAMPS.load(Ordering::Relaxed) { SystemTime.format_time(writer) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_standard_error_itself_is_the_journal() {
        let is = rustix::fs::fstat(rustix::stdio::stderr()).unwrap();
        assert!(is_journal(Some(&format!("{}:{}", is.st_dev, is.st_ino))));
        // A child whose standard error goes elsewhere inherits the variable.
        assert!(!is_journal(Some(&format!("{}:{}", is.st_dev, is.st_ino + 1))));
        assert!(!is_journal(Some("nonsense")) && !is_journal(None));
    }
}
