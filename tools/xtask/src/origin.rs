//! The origin of a measurement: the tree, the time, the machine.

use std::time::SystemTime;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::child::Task;
use crate::raceline::Tree;

/// The system's TCP congestion control, which matters on loopback, too.
const CONGESTION_CONTROL_FILE: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
const DAY_S: u64 = 24 * 3600;

/// The origin that measured figures carry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// The tree that Raceline was built from, by `git describe`.
    pub(crate) raceline: String,
    /// The time, in seconds since 1970.
    pub(crate) unix_s: u64,
    pub(crate) kernel: String,
    /// The congestion control of the system's TCP, e.g. cubic.
    pub(crate) congestion_control: String,
    pub(crate) processor: String,
}

impl Origin {
    /// The origin of a measurement of this tree that is made now.
    pub(crate) fn here(tree: &Tree) -> Result<Self> {
        let describe = ["describe", "--always", "--dirty"];
        let build = Task::new("git").args(describe).dir(&tree.root).check()?.stdout;
        let info = std::fs::read_to_string("/proc/cpuinfo")?;
        let model = info.lines().find(|line| line.starts_with("model name"));
        let model = model.and_then(|line| line.split_once(": ")).map_or("", |(_, model)| model);
        let cores = std::thread::available_parallelism()?;
        let line = |path| anyhow::Ok(std::fs::read_to_string(path)?.trim().to_owned());
        Ok(Self {
            raceline: build.trim().to_owned(),
            unix_s: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs(),
            kernel: line("/proc/sys/kernel/osrelease")?,
            congestion_control: line(CONGESTION_CONTROL_FILE)?,
            processor: format!("{cores} cores of {model}"),
        })
    }
}

/// The day in UTC as year-month-day (the inverse of days_from_civil, as in Hinnant's "chrono-Compatible
/// Low-Level Date Algorithms").
pub(crate) fn date(unix_s: u64) -> String {
    let days = unix_s / DAY_S + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Years begin in March here, so that the leap day is the last one.
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_their_dates() {
        for (unix_s, day) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_795_564_799, "2026-11-24"),
            (1_795_564_800, "2026-11-25"),
            (1_798_761_599, "2026-12-31"),
        ] {
            assert_eq!(date(unix_s), day);
        }
    }
}
