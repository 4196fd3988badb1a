//! Messages on standard error: their level and form, which can change while the program runs.

mod journal;

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
use tracing_subscriber::{EnvFilter, Layer as _, Registry, reload};

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
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(args.verbose > 1)
        .with_timer(Timer)
        .with_filter(filter_fn(|event| event.target() != AUDIT));
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
    let shown = lines.and_then(audit).with_filter(filter);
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

/// Prints the time, if it is wanted.
struct Timer;

impl FormatTime for Timer {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        if TIMESTAMPS.load(Ordering::Relaxed) { SystemTime.format_time(writer) } else { Ok(()) }
    }
}
