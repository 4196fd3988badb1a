//! Program and machine of a measurement, for reports that are read later: version, time, processor, kernel.

use std::time::SystemTime;

use serde::Serialize;

/// Program and machine, read once when a measurement begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// Version of this program.
    pub version: &'static str,
    /// Seconds since 1970, in UTC.
    pub unix_s: u64,
    /// Number of cores and type of the processor, e.g. `2 cores of AMD EPYC`.
    pub processor: String,
    /// Release of the kernel.
    pub kernel: String,
}

impl Origin {
    /// This program and machine, now; values that /proc does not give are `unknown`.
    #[must_use]
    pub fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let kernel = read("/proc/sys/kernel/osrelease");
        Self {
            version: env!("CARGO_PKG_VERSION"),
            unix_s: since.as_secs(),
            processor: format!("{cores} cores of {}", model(&read("/proc/cpuinfo"))),
            kernel: known(kernel.trim()).to_owned(),
        }
    }
}

fn model(cpuinfo: &str) -> &str {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"));
    known(line.and_then(|line| line.split_once(": ")).map_or("", |(_, model)| model.trim()))
}

fn known(text: &str) -> &str {
    if text.is_empty() { "unknown" } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_found() {
        assert_eq!(model("processor\t: 0\nmodel name\t: AMD EPYC\nflags\t: a\n"), "AMD EPYC");
        assert_eq!(model(""), "unknown");
        let here = Origin::here();
        assert!(here.unix_s > 1_700_000_000 && here.processor.contains(" cores of "), "{here:?}");
    }
}
