//! The machine resources that this process uses: CPU time, context switches, instructions (proc(5),
//! perf_event_open(2)).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};

use crate::cpu::CpuTime;

/// The threads of this process.
const TASKS: &str = "/proc/self/task";

/// The usage of all threads of this process except the measuring one.
#[derive(Clone, Debug, PartialEq)]
pub struct Usage {
    /// CPU time in user mode.
    pub user: Duration,
    /// CPU time in the kernel. The sum with `user` is exact to the nanosecond; the division between the two
    /// only to 10 ms.
    pub system: Duration,
    /// Share of soft interrupts in the busy time of the measured cores, including other processes; `None`
    /// if the cores were not busy.
    pub softirq_percent: Option<f64>,
    /// Number of times that a thread went to sleep.
    pub voluntary_switches: u64,
    /// Number of times that a thread had to make way for another.
    pub involuntary_switches: u64,
    /// Instructions in user mode, or why they could not be counted.
    pub instructions: Result<u64, String>,
}

impl Default for Usage {
    fn default() -> Self {
        Self {
            user: Duration::ZERO,
            system: Duration::ZERO,
            softirq_percent: None,
            voluntary_switches: 0,
            involuntary_switches: 0,
            instructions: Err("nothing was measured".to_owned()),
        }
    }
}

/// A measurement from its start on.
pub struct Meter {
    cores: Vec<usize>,
    threads: BTreeMap<u32, ThreadUsage>,
    core_time: CoreTime,
    instructions: Result<Vec<Counter>, String>,
}

impl Meter {
    /// Starts to measure all threads except the calling one, and the share of soft interrupts on `cores`
    /// (on all cores if it is empty). Instructions are counted for threads that exist now.
    #[must_use]
    pub fn start(cores: &[usize]) -> Self {
        let threads = threads();
        Self {
            cores: cores.to_vec(),
            instructions: count_instructions(threads.keys().copied()),
            core_time: CoreTime::now(cores),
            threads,
        }
    }

    /// The usage since the start. A thread that has ended is not counted.
    pub fn usage(&mut self) -> Usage {
        let instructions = match &mut self.instructions {
            // A thread that has ended keeps its count.
            Ok(counters) => Ok(counters.iter_mut().filter_map(|counter| counter.read().ok()).sum()),
            Err(why) => Err(why.clone()),
        };
        let mut sum = ThreadUsage::default();
        for (id, now) in threads() {
            sum.add(&now.since(self.threads.get(&id).copied().unwrap_or_default()));
        }
        let (user, system) = sum.split();
        let core_time = CoreTime::now(&self.cores).since(self.core_time);
        Usage {
            user,
            system,
            softirq_percent: core_time.softirq_percent(),
            voluntary_switches: sum.voluntary_switches,
            involuntary_switches: sum.involuntary_switches,
            instructions,
        }
    }
}

/// The usage of one thread since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ThreadUsage {
    /// Exact time on a core; zero where the kernel does not report it.
    run: Duration,
    /// The same by the kernel's tick, divided into user and system time.
    ticks: CpuTime,
    voluntary_switches: u64,
    involuntary_switches: u64,
}

impl ThreadUsage {
    fn read(directory: &Path) -> Option<Self> {
        let file = |name| std::fs::read_to_string(directory.join(name));
        let status = file("status").ok()?;
        let switches = |name| field(&status, name).unwrap_or(0);
        Some(Self {
            // Without CONFIG_SCHED_INFO there is no such file.
            run: file("schedstat").ok().and_then(|text| run_time(&text)).unwrap_or_default(),
            ticks: CpuTime::parse(&file("stat").ok()?)?,
            voluntary_switches: switches("voluntary_ctxt_switches:"),
            involuntary_switches: switches("nonvoluntary_ctxt_switches:"),
        })
    }

    fn add(&mut self, other: &Self) {
        self.run += other.run;
        self.ticks.user += other.ticks.user;
        self.ticks.system += other.ticks.system;
        self.voluntary_switches += other.voluntary_switches;
        self.involuntary_switches += other.involuntary_switches;
    }

    fn since(self, earlier: Self) -> Self {
        let switches = |now: u64, before: u64| now.saturating_sub(before);
        Self {
            run: self.run.saturating_sub(earlier.run),
            ticks: self.ticks.since(earlier.ticks),
            voluntary_switches: switches(self.voluntary_switches, earlier.voluntary_switches),
            involuntary_switches: switches(self.involuntary_switches, earlier.involuntary_switches),
        }
    }

    /// User and system time: the exact sum, divided in the ratio of the ticks.
    fn split(self) -> (Duration, Duration) {
        let CpuTime { user, system } = self.ticks;
        let ticks = user + system;
        if self.run.is_zero() || ticks.is_zero() {
            return (user.max(self.run), system);
        }
        let user = self.run.mul_f64(user.as_secs_f64() / ticks.as_secs_f64()).min(self.run);
        (user, self.run - user)
    }
}

/// All threads except the calling one; none where /proc is not mounted.
fn threads() -> BTreeMap<u32, ThreadUsage> {
    // The link reads "PROCESS/task/THREAD".
    let own = std::fs::read_link("/proc/thread-self").ok();
    let own = own.as_deref().and_then(Path::file_name);
    let mut threads = BTreeMap::new();
    for entry in std::fs::read_dir(TASKS).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if Some(name.as_os_str()) == own {
            continue;
        }
        let id = name.to_str().and_then(|name| name.parse().ok());
        if let (Some(id), Some(usage)) = (id, ThreadUsage::read(&entry.path())) {
            threads.insert(id, usage);
        }
    }
    threads
}

/// The first field of schedstat: nanoseconds on a core.
fn run_time(schedstat: &str) -> Option<Duration> {
    let ns = schedstat.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(ns))
}

/// The number after a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

/// Busy time of some cores in the kernel's ticks, of all processes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CoreTime {
    busy: u64,
    softirq: u64,
}

impl CoreTime {
    fn now(cores: &[usize]) -> Self {
        Self::parse(&std::fs::read_to_string("/proc/stat").unwrap_or_default(), cores)
    }

    fn parse(stat: &str, cores: &[usize]) -> Self {
        let mut sum = Self::default();
        for line in stat.lines() {
            let mut fields = line.split_ascii_whitespace();
            let name = fields.next().and_then(|name| name.strip_prefix("cpu"));
            let Some(name) = name else { continue };
            let wanted = match name.parse::<usize>() {
                Ok(core) => cores.contains(&core),
                Err(_) => cores.is_empty(), // the sum of all
            };
            let ticks: Vec<u64> = fields.filter_map(|field| field.parse().ok()).collect();
            if let (true, [user, nice, system, _idle, _iowait, irq, softirq, ..]) =
                (wanted, &ticks[..])
            {
                sum.busy += user + nice + system + irq + softirq;
                sum.softirq += softirq;
            }
        }
        sum
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            busy: self.busy.saturating_sub(earlier.busy),
            softirq: self.softirq.saturating_sub(earlier.softirq),
        }
    }

    fn softirq_percent(self) -> Option<f64> {
        (self.busy > 0).then(|| 100.0 * self.softirq as f64 / self.busy as f64)
    }
}

/// A counter of instructions in user mode for each thread.
fn count_instructions(threads: impl Iterator<Item = u32>) -> Result<Vec<Counter>, String> {
    threads.map(|id| open_counter(id).map_err(|error| missing(&error))).collect()
}

fn open_counter(thread: u32) -> std::io::Result<Counter> {
    let thread = i32::try_from(thread).map_err(std::io::Error::other)?;
    let mut counter = Builder::new(Hardware::INSTRUCTIONS).observe_pid(thread).build()?;
    counter.enable()?;
    Ok(counter)
}

/// Why there is no count, and a possible remedy.
fn missing(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            "not permitted: set kernel.perf_event_paranoid to 2 or less".to_owned()
        }
        // ENOENT or EOPNOTSUPP: most virtual machines give these.
        std::io::ErrorKind::NotFound | std::io::ErrorKind::Unsupported => {
            "this machine shows no hardware counters".to_owned()
        }
        _ => format!("perf_event_open failed: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_texts_are_read() {
        assert_eq!(run_time("1500 7 3\n"), Some(Duration::from_nanos(1500)));
        assert_eq!(run_time(""), None);
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(field(status, "voluntary_ctxt_switches:"), Some(12));
        assert_eq!(field(status, "nonvoluntary_ctxt_switches:"), Some(3));
        assert_eq!(field(status, "Threads:"), None);
    }

    #[test]
    fn the_softirq_share_is_that_of_the_cores_asked_for() {
        let stat = "cpu  30 0 30 500 9 10 30 5 0 0\n\
                    cpu0 10 0 10 250 4 0 20 5 0 0\n\
                    cpu1 20 0 20 250 5 10 10 0 0 0\n\
                    intr 1 2 3\n";
        let share = |cores: &[usize]| CoreTime::parse(stat, cores).softirq_percent();
        assert_eq!(share(&[0]), Some(50.0));
        assert_eq!(share(&[0, 1]), Some(30.0));
        assert_eq!(share(&[]), Some(30.0));
        assert_eq!(share(&[2]), None);
    }

    #[test]
    fn time_is_exact_and_divides_as_the_ticks_do() {
        let ticks = CpuTime { user: Duration::from_millis(30), system: Duration::from_millis(10) };
        let usage = ThreadUsage { run: Duration::from_nanos(2000), ticks, ..Default::default() };
        assert_eq!(usage.split(), (Duration::from_nanos(1500), Duration::from_nanos(500)));
        let unknown = ThreadUsage { run: Duration::ZERO, ..usage };
        assert_eq!(unknown.split(), (ticks.user, ticks.system));
        let short = ThreadUsage { ticks: CpuTime::default(), ..usage };
        assert_eq!(short.split(), (Duration::from_nanos(2000), Duration::ZERO));
    }

    #[test]
    fn other_threads_are_counted_and_the_own_is_not() {
        let (work, wait) = (Duration::from_millis(5), Duration::from_secs(10));
        let (started, start) = std::sync::mpsc::channel();
        let (finish, finished) = std::sync::mpsc::channel::<()>();
        let worker = std::thread::spawn(move || {
            start.recv().unwrap();
            let began = std::time::Instant::now();
            while began.elapsed() < work {
                std::hint::spin_loop();
            }
            let _ = finished.recv_timeout(wait);
        });
        let mut meter = Meter::start(&[]);
        started.send(()).unwrap();
        let began = std::time::Instant::now();
        let usage = loop {
            let usage = meter.usage();
            if usage.user + usage.system > Duration::ZERO && usage.voluntary_switches > 0 {
                break usage;
            }
            assert!(began.elapsed() < wait, "the worker's time is not seen: {usage:?}");
        };
        assert!(usage.instructions.as_ref().map_or_else(|why| !why.is_empty(), |&n| n > 0));
        drop(finish);
        worker.join().unwrap();
    }
}
