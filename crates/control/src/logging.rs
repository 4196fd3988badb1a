//! The log, as clients configure it: levels, flags of components, timestamps.
//!
//! There is one log, standard error, which under systemd goes to the journal. SPDK has two: standard error
//! (the print level) and the system's log (the level). Here a message is shown if either level would take
//! it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// How much is logged, by SPDK's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum LogLevel {
    /// Failures.
    Error,
    /// Signs of a possible failure.
    Warning,
    /// Events that operators want to know, among them every change.
    Notice,
    /// Normal events.
    Info,
    /// Details that are needed to find a fault.
    Debug,
}

impl LogLevel {
    fn filter(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning | Self::Notice => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

/// Messages that nobody took, or that found no room among those that wait, since the start of the program.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Counts a message that is lost: whoever takes them refused it, or was too slow.
pub fn count_lost_message() {
    LOST.fetch_add(1, Ordering::Relaxed);
}

/// How many messages are lost since the start of the program.
#[must_use]
pub fn lost_messages() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Components that can be set to log everything: SPDK's name of the flag, our module.
pub const FLAGS: [(&str, &str); 10] = [
    ("accel", "raceline_accel"),
    ("bdev", "raceline_bdev"),
    ("bdev_nvme", "raceline_control::manager::controllers"),
    ("nvme", "raceline_host"),
    ("nvme_tcp", "raceline_proto::host"),
    ("nvmf", "raceline_target"),
    ("nvmf_tcp", "raceline_proto::tcp"),
    ("reactor", "raceline_reactor"),
    ("rpc", "raceline_control"),
    ("state", "raceline_control::state"),
];

/// The settings of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// SPDK's print level.
    pub print_level: LogLevel,
    /// SPDK's log level.
    pub level: LogLevel,
    /// Components that log everything.
    pub flags: BTreeSet<&'static str>,
    /// Whether lines begin with the time.
    pub timestamps: bool,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self {
            print_level: LogLevel::Notice,
            level: LogLevel::Notice,
            flags: BTreeSet::new(),
            timestamps: true,
        }
    }
}

impl LogSettings {
    /// The same as a filter of `tracing_subscriber`.
    #[must_use]
    pub fn directives(&self) -> String {
        let level = self.print_level.max(self.level);
        let mut text = level.filter().to_owned();
        // The audit is for operators, so it is shown from the level of notices on.
        if level >= LogLevel::Notice {
            text.push_str(",raceline::audit=info");
        }
        for (_, target) in FLAGS.iter().filter(|(flag, _)| self.flags.contains(flag)) {
            // Writing to a string does not fail.
            let _ = write!(text, ",{target}=trace");
        }
        text
    }
}

/// The settings that a client has changed, or that a process begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All, at the beginning.
    All,
    /// Levels and flags: what is logged.
    Filter,
    /// Whether lines begin with the time.
    Timestamps,
}

/// Puts settings into effect, of which this part is new.
type Apply = Box<dyn Fn(&LogSettings, Part) + Send + Sync>;

/// The log of a process.
pub struct Logging {
    settings: Mutex<LogSettings>,
    apply: Apply,
}

impl Logging {
    /// A log whose settings this function applies; it is called at once, for [`Part::All`].
    #[must_use]
    pub fn new(settings: LogSettings, apply: Apply) -> Self {
        apply(&settings, Part::All);
        Self { settings: Mutex::new(settings), apply }
    }

    /// The current settings.
    #[must_use]
    pub fn settings(&self) -> LogSettings {
        self.lock().clone()
    }

    /// Changes levels or flags. Settings that stay as they are do not replace the filter that the process began with,
    /// which may be finer than any settings.
    pub fn change(&self, change: impl FnOnce(&mut LogSettings)) {
        let mut settings = self.lock();
        let before = settings.clone();
        change(&mut settings);
        if *settings != before {
            (self.apply)(&settings, Part::Filter);
        }
    }

    /// Says whether lines begin with the time.
    pub fn show_time(&self, timestamps: bool) {
        let mut settings = self.lock();
        settings.timestamps = timestamps;
        (self.apply)(&settings, Part::Timestamps);
    }

    fn lock(&self) -> MutexGuard<'_, LogSettings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Logging {
    /// A log that cannot be changed: the settings are only kept.
    fn default() -> Self {
        Self::new(LogSettings::default(), Box::new(|_, _| {}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_to_what_it_is_keeps_the_filter() {
        static FILTERS: AtomicU64 = AtomicU64::new(0);
        let count = |_: &LogSettings, part| {
            FILTERS.fetch_add(u64::from(part == Part::Filter), Ordering::Relaxed);
        };
        let logging = Logging::new(LogSettings::default(), Box::new(count));
        logging.change(|settings| settings.level = LogLevel::Notice);
        logging.change(|settings| settings.print_level = LogLevel::Notice);
        logging.change(|settings| settings.flags.retain(|_| false));
        assert_eq!(FILTERS.load(Ordering::Relaxed), 0);
        logging.change(|settings| settings.level = LogLevel::Info);
        logging.change(|settings| settings.flags.extend(["nvmf"]));
        assert_eq!(FILTERS.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn settings_are_filters() {
        let mut settings = LogSettings::default();
        assert_eq!(settings.directives(), "warn,raceline::audit=info");
        settings.print_level = LogLevel::Debug;
        settings.flags.insert("nvmf");
        assert_eq!(settings.directives(), "debug,raceline::audit=info,raceline_target=trace");
        (settings.print_level, settings.level) = (LogLevel::Error, LogLevel::Error);
        settings.flags.clear();
        assert_eq!(settings.directives(), "error");
    }
}
