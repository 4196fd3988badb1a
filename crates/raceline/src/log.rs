//! Messages on standard error: their level and form, which can change while the program runs.

mod journal;
mod journald;
pub(crate) mod limit;
mod outlet;
mod stderr;

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use raceline_control::events::EventJournal;
use raceline_control::logging::{LogLevel, LogSettings, Logging, Part};
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use self::journald::{Journald, JournaldLayer};
use self::outlet::{Outlet, Sink as _};
use self::stderr::{Lines, Stderr};
use crate::cli::LogArgs;

/// The environment variable that filters messages, as in `RACELINE_LOG=raceline_target=trace`.
const VARIABLE: &str = "RACELINE_LOG";

/// The target of messages about who has changed what, and who has authenticated: one JSON object in a line each.
const AUDIT: &str = "raceline::audit";

/// By these names the journal's messages are found.
const IDENTIFIER: &str = "raceline";
const AUDIT_IDENTIFIER: &str = "raceline-audit";

/// Messages that have not left by then are lost when the program ends.
const LAST_MESSAGES: Duration = Duration::from_secs(1);

/// Where messages go.
#[derive(Clone, Copy)]
enum Way {
    Stderr(&'static Outlet<Stderr>),
    Journal(&'static Outlet<Journald>),
}

static WAY: OnceLock<Way> = OnceLock::new();
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();
/// What the command line asks for.
static SETTINGS: OnceLock<LogSettings> = OnceLock::new();
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
    let way = *WAY.get_or_init(Way::choose);
    let (text, journal) = match way {
        Way::Stderr(outlet) => (Some(outlet), None),
        Way::Journal(outlet) => (None, Some(outlet)),
    };
    let is_audit = || filter_fn(|event| event.target() == AUDIT);
    let without_audit = || limit::Limit { without: AUDIT };
    let to_journal = |identifier| journal.map(|outlet| JournaldLayer { outlet, identifier });
    let journal_lines = to_journal(IDENTIFIER).map(|layer| layer.with_filter(without_audit()));
    let journal_audit = to_journal(AUDIT_IDENTIFIER).map(|layer| layer.with_filter(is_audit()));
    let lines = |outlet| {
        tracing_subscriber::fmt::layer()
            .with_writer(move || Lines(outlet))
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .with_target(args.verbose > 1)
            .with_timer(Timer)
            .with_filter(without_audit())
    };
    // Programs read these.
    let audit = |outlet| {
        tracing_subscriber::fmt::layer()
            .json()
            .flatten_event(true)
            .with_writer(move || Lines(outlet))
            .with_timer(Timer)
            .with_filter(is_audit())
    };
    let events = events.map(|journal| {
        let is_event = filter_fn(journal::is_event).with_max_level_hint(LevelFilter::INFO);
        journal::JournalLayer(journal).with_filter(is_event)
    });
    let text = Layer::and_then(text.map(lines), text.map(audit));
    let shown = text.and_then(journal_lines).and_then(journal_audit).with_filter(filter);
    tracing_subscriber::registry().with(shown).with(events).init();
    // Cannot fail: this function is called once.
    let _ = FILTER.set(handle);
    let level = match (args.quiet, args.verbose) {
        (true, _) => LogLevel::Error,
        (false, 0) => LogLevel::Notice,
        (false, 1) => LogLevel::Info,
        (false, _) => LogLevel::Debug,
    };
    let settings = LogSettings { print_level: level, level, ..LogSettings::default() };
    SETTINGS.get_or_init(|| settings).clone()
}

/// The log of this process for clients of its socket, who may change it.
pub(crate) fn for_clients() -> Logging {
    Logging::new(SETTINGS.get().cloned().unwrap_or_default(), Box::new(apply))
}

/// Applies new settings. What is logged at the beginning, [`start`] has seen to by the command line or the environment variable;
/// from the first call of a client on that changes levels or flags, it is what these calls say.
pub(crate) fn apply(settings: &LogSettings, part: Part) {
    TIMESTAMPS.store(settings.timestamps, Ordering::Relaxed);
    if part != Part::Filter {
        return;
    }
    if let Some(handle) = FILTER.get()
        && let Err(error) = handle.reload(EnvFilter::new(settings.directives()))
    {
        tracing::warn!("cannot change what is logged: {error}");
    }
}

impl Way {
    /// The journal takes fields as they are; elsewhere they become text.
    fn choose() -> Self {
        if is_journal(std::env::var("JOURNAL_STREAM").ok().as_deref())
            && let Ok(journald) = Journald::open(Path::new(journald::SOCKET))
        {
            return Self::Journal(Box::leak(Box::new(Outlet::new(journald))));
        }
        Self::Stderr(Box::leak(Box::new(Outlet::new(Stderr::new()))))
    }
}

/// For programs that serve until they are ended: repeated messages have a limit from here on, and who logs does not wait for who
/// reads. It starts threads, so the sandbox comes before it.
pub(crate) fn begin_serving() {
    stop_waiting();
    limit::start();
}

/// From here on who logs does not wait for who reads.
fn stop_waiting() {
    let started = match WAY.get() {
        Some(Way::Stderr(outlet)) => outlet.start("log"),
        Some(Way::Journal(outlet)) => outlet.start("log"),
        None => return,
    };
    if let Err(error) = started {
        tracing::warn!(
            "who reads the log can hold up connections: there is no thread for it: {error}"
        );
        return;
    }
    // The standard library's writes to standard error itself.
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name").to_owned();
        let trace = std::backtrace::Backtrace::capture();
        print(&format!("thread {name}: {panic}\n{trace}\n"), Duration::ZERO);
        if thread.name() == Some("main") {
            // Then the program ends.
            finish();
        }
    }));
}

/// Prints a line on standard error for people, who see it as the last one: no longer than a moment does a daemon wait for
/// who reads it.
pub(crate) fn last_line(line: &str) {
    limit::finish();
    print(&format!("{line}\n"), LAST_MESSAGES);
    finish();
}

/// Prints on standard error. Where the log goes to the journal, it waits no longer than this for who reads it.
pub(crate) fn print(text: &str, within: Duration) {
    match WAY.get() {
        Some(Way::Stderr(outlet)) => outlet.emit(text.as_bytes()),
        Some(Way::Journal(_)) if !Stderr::has_room(within) => {}
        // What it loses is lost: there is no other place to say so.
        Some(Way::Journal(_)) | None => _ = Stderr::new().put(text.as_bytes()),
    }
}

/// Says what was left out of the log, and waits for the last messages, before the program ends.
pub(crate) fn finish() {
    limit::finish();
    match WAY.get() {
        Some(Way::Stderr(outlet)) => _ = outlet.finish(LAST_MESSAGES),
        Some(Way::Journal(outlet)) => _ = outlet.finish(LAST_MESSAGES),
        None => {}
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
