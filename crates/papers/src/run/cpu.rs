//! Processor time by part of a measurement: threads of the target, of the host, and of others; soft interrupts.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Unit of times in /proc/PID/stat and /proc/stat.
const TICK: Duration = Duration::from_millis(10);
/// Position of the soft interrupts in a line of /proc/stat, after the name.
const SOFTIRQ: usize = 6;
/// Position of the user time in /proc/PID/stat, after the name; system time follows.
const UTIME: usize = 11;

/// Processor time of some threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    /// Exact.
    pub(crate) all: Duration,
    /// In user mode, to 10 ms.
    pub(crate) user: Duration,
    /// In the kernel, to 10 ms.
    pub(crate) system: Duration,
    /// Context switches.
    pub(crate) switches: u64,
}

impl Used {
    fn add(&mut self, other: Self) {
        self.all += other.all;
        self.user += other.user;
        self.system += other.system;
        self.switches += other.switches;
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            all: self.all.saturating_sub(earlier.all),
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
            switches: self.switches.saturating_sub(earlier.switches),
        }
    }

    /// Exact user and system time: the exact sum, divided as the ticks are.
    pub(crate) fn split(&self) -> (Duration, Duration) {
        let ticks = self.user + self.system;
        if ticks.is_zero() {
            return (self.all, Duration::ZERO);
        }
        let user = self.all.mul_f64(self.user.as_secs_f64() / ticks.as_secs_f64());
        (user, self.all.saturating_sub(user))
    }
}

/// The part that a thread belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// The target's cores and its workers for files.
    Target,
    /// The host's cores.
    Host,
    /// Others, such as a thread that plays a digest engine.
    Other,
}

impl Part {
    fn of(name: &str) -> Self {
        if name.starts_with("target-") || name.starts_with("file-io") {
            Self::Target
        } else if name.starts_with("perf-") || name.starts_with("local-") {
            Self::Host
        } else {
            Self::Other
        }
    }
}

/// Processor time so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    threads: BTreeMap<u32, (Part, Used)>,
    softirq: Duration,
}

/// Processor time of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Costs {
    pub(crate) target: Used,
    pub(crate) host: Used,
    pub(crate) other: Used,
    /// Soft interrupts on the target's CPUs, to 10 ms.
    pub(crate) softirq: Duration,
}

impl Sample {
    /// Reads the clocks of this process, and of a target that is another process. `cpus` are the target's.
    pub(crate) fn now(target: Option<u32>, cpus: &[usize]) -> Self {
        let mut threads = BTreeMap::new();
        read_tasks(Path::new("/proc/self/task"), None, &mut threads);
        if let Some(pid) = target {
            let path = format!("/proc/{pid}/task");
            read_tasks(Path::new(&path), Some(Part::Target), &mut threads);
        }
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        Self { threads, softirq: softirq(&stat, cpus) }
    }

    /// The time since `earlier`. A thread that has ended is not counted.
    pub(crate) fn since(&self, earlier: &Self) -> Costs {
        let mut costs =
            Costs { softirq: self.softirq.saturating_sub(earlier.softirq), ..Costs::default() };
        for (id, (part, used)) in &self.threads {
            let before = earlier.threads.get(id).map_or(Used::default(), |(_, used)| *used);
            let used = used.since(before);
            match part {
                Part::Target => costs.target.add(used),
                Part::Host => costs.host.add(used),
                Part::Other => costs.other.add(used),
            }
        }
        costs
    }
}

fn read_tasks(tasks: &Path, part: Option<Part>, threads: &mut BTreeMap<u32, (Part, Used)>) {
    let own = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    for entry in fs::read_dir(tasks).into_iter().flatten().flatten() {
        let id = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(id) = id.filter(|&id: &u32| id != own) else { continue };
        let file = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let part = part.unwrap_or_else(|| Part::of(file("comm").trim()));
        if let Some(used) = used(&file("schedstat"), &file("stat"), &file("status")) {
            threads.insert(id, (part, used));
        }
    }
}

fn used(schedstat: &str, stat: &str, status: &str) -> Option<Used> {
    let (_, after_name) = stat.rsplit_once(") ")?;
    let mut fields = after_name.split_ascii_whitespace().skip(UTIME);
    let mut ticks = || fields.next()?.parse().ok().map(|ticks: u32| ticks * TICK);
    let (user, system) = (ticks()?, ticks()?);
    let exact = schedstat.split_ascii_whitespace().next().and_then(|ns| ns.parse().ok());
    let switches = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    };
    Some(Used {
        all: exact.map_or(user + system, Duration::from_nanos),
        user,
        system,
        switches: switches("voluntary_ctxt_switches:") + switches("nonvoluntary_ctxt_switches:"),
    })
}

fn softirq(stat: &str, cpus: &[usize]) -> Duration {
    let of = |line: &str| -> Option<Duration> {
        let mut fields = line.strip_prefix("cpu")?.split_ascii_whitespace();
        let cpu: usize = fields.next()?.parse().ok()?;
        let ticks: u32 = fields.nth(SOFTIRQ)?.parse().ok()?;
        cpus.contains(&cpu).then(|| ticks * TICK)
    };
    stat.lines().filter(|line| !line.starts_with("cpu ")).filter_map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_read_from_its_files() {
        let stat = "7 (a) b) R 1 1 1 0 -1 4194560 1 0 0 0 12 34 0 0 20 0 1 0 1 1 1";
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t2\n";
        let used = used("460000001 5 6\n", stat, status).unwrap();
        assert_eq!((used.user.as_millis(), used.system.as_millis()), (120, 340));
        assert_eq!((used.all.as_nanos(), used.switches), (460_000_001, 7));
        let (user, system) = used.split();
        assert_eq!(user + system, used.all);
        assert!((user.as_secs_f64() / 0.12 - 1.0).abs() < 1e-6);
    }

    #[test]
    fn soft_interrupts_of_some_cpus() {
        let stat = "cpu  1 2 3 4 5 6 70 8 0 0\ncpu0 1 2 3 4 5 6 30 8 0 0\ncpu1 1 2 3 4 5 6 40 8 0 0\nintr 1\n";
        assert_eq!(softirq(stat, &[1]), Duration::from_millis(400));
        assert_eq!(softirq(stat, &[0, 1]), Duration::from_millis(700));
        assert_eq!(softirq("", &[0]), Duration::ZERO);
    }

    #[test]
    fn threads_belong_to_parts() {
        assert_eq!((Part::of("target-0"), Part::of("file-io")), (Part::Target, Part::Target));
        assert_eq!((Part::of("perf-1"), Part::of("dsa-emulated")), (Part::Host, Part::Other));
    }
}
