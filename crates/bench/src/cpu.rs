//! CPU time of this process, as the kernel counts it (proc(5), /proc/self/stat).

use std::time::Duration;

/// Fields of /proc/self/stat after the command name: utime is the 12th, stime the 13th.
const UTIME_AFTER_NAME: usize = 11;

/// The unit in which the kernel shows times to user space (USER_HZ), on every Linux architecture that
/// Raceline runs on.
const TICKS_PER_SECOND: u64 = 100;

/// CPU time used so far by all threads, to 10 ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// In user mode.
    pub user: Duration,
    /// In the kernel.
    pub system: Duration,
}

impl CpuTime {
    /// Reads the clock of this process; zero where /proc is not mounted.
    #[must_use]
    pub fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        Self::parse(&stat).unwrap_or_default()
    }

    /// The time used since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
        }
    }

    /// User and system time in percent of one core over `wall`.
    #[must_use]
    pub fn percent_of(self, wall: Duration) -> (f64, f64) {
        if wall.is_zero() {
            return (0.0, 0.0);
        }
        let percent = |time: Duration| 100.0 * time.as_secs_f64() / wall.as_secs_f64();
        (percent(self.user), percent(self.system))
    }

    pub(crate) fn parse(stat: &str) -> Option<Self> {
        // The name is in parentheses and may contain any characters, including parentheses and spaces.
        let (_, after_name) = stat.rsplit_once(") ")?;
        let mut fields = after_name.split_ascii_whitespace().skip(UTIME_AFTER_NAME);
        let mut time = || {
            let ticks: u64 = fields.next()?.parse().ok()?;
            Some(Duration::from_millis(ticks.checked_mul(1000 / TICKS_PER_SECOND)?))
        };
        Some(Self { user: time()?, system: time()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "12 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 150 25 0 0 20 0 1 0 100";
        let time = CpuTime::parse(stat).unwrap();
        assert_eq!(time.user, Duration::from_millis(1500));
        assert_eq!(time.system, Duration::from_millis(250));
        assert_eq!(CpuTime::parse("1 (short) S 1"), None);
    }

    #[test]
    fn percentages() {
        let time = CpuTime { user: Duration::from_secs(3), system: Duration::from_secs(1) };
        let earlier = CpuTime { user: Duration::from_secs(1), system: Duration::from_secs(1) };
        let (user, system) = time.since(earlier).percent_of(Duration::from_secs(4));
        assert!(user == 50.0 && system == 0.0);
        assert!(time.percent_of(Duration::ZERO) == (0.0, 0.0));
    }

    #[test]
    fn this_process_uses_time() {
        let before = CpuTime::now();
        let mut sum = 0u64;
        // Work until the clock moves; it moves every 10 ms of work.
        while CpuTime::now() == before {
            sum = (0..1_000_000u64).fold(sum, |sum, n| sum.wrapping_mul(31) ^ n);
        }
        assert!(std::hint::black_box(sum) != 1);
    }
}
