//! What is logged, as clients set it: levels, flags of components, timestamps.
//!
//! There is one log, standard error, which under systemd is the journal. SPDK has two: what goes to
//! standard error (the print level) and what goes to the system's log (the level). Here a message
//! is shown when either would take it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// How much is said, by SPDK's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum LogLevel {
    /// What failed.
    Error,
    /// What may fail.
    Warning,
    /// What operators want to know: also every change.
    Notice,
    /// What happens.
    Info,
    /// What is needed to find a fault.
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

/// Components that can be set to say everything: SPDK's name of the flag, our module.
pub const FLAGS: [(&str, &str); 9] = [
    ("accel", "raceline_accel"),
    ("bdev", "raceline_bdev"),
    ("nvme", "raceline_host"),
    ("nvme_tcp", "raceline_proto::host"),
    ("nvmf", "raceline_target"),
    ("nvmf_tcp", "raceline_proto::tcp"),
    ("reactor", "raceline_reactor"),
    ("rpc", "raceline_control"),
    ("state", "raceline_control::state"),
];

/// What is logged now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// SPDK's print level.
    pub print_level: LogLevel,
    /// SPDK's log level.
    pub level: LogLevel,
    /// Components that say everything.
    pub flags: BTreeSet<&'static str>,
    /// Lines begin with the time.
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
        // The audit is for operators: it goes with notices.
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

/// Puts settings into effect.
type Apply = Box<dyn Fn(&LogSettings) + Send + Sync>;

/// The log of a process.
pub struct Logging {
    settings: Mutex<LogSettings>,
    apply: Apply,
}

impl Logging {
    /// A log that is set by this function; it is called at once.
    #[must_use]
    pub fn new(settings: LogSettings, apply: Apply) -> Self {
        apply(&settings);
        Self { settings: Mutex::new(settings), apply }
    }

    /// What is logged now.
    #[must_use]
    pub fn settings(&self) -> LogSettings {
        self.lock().clone()
    }

    /// Changes it.
    pub fn change(&self, change: impl FnOnce(&mut LogSettings)) {
        let mut settings = self.lock();
        change(&mut settings);
        (self.apply)(&settings);
    }

    fn lock(&self) -> MutexGuard<'_, LogSettings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Logging {
    /// A log that nothing can be done about: the settings are kept.
    fn default() -> Self {
        Self::new(LogSettings::default(), Box::new(|_| {}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
