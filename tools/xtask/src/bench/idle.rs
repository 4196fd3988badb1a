//! A target with 1,000 idle connections: its CPU, its memory, and the first command afterwards.

mod blocking;
mod first;

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use serde_json::{Value, json};

use self::blocking::Blocking;
use self::first::{Firsts, PAUSE, Pairs, Quartiles, ROUNDS};
use super::figures::at_most;
use super::process::{Resident, allow_files, bind_to_core, cpu_ns};
use super::simple::{Admin, Queue};
use super::{Options, fill};
use crate::quiet::watched;
use crate::raceline::{Export, Tree};

pub(crate) use self::blocking::answer as answer_blocking;

/// Controllers, and I/O queues over all of them.
const CONTROLLERS: u16 = 16;
const IO_QUEUES: u16 = 1000;
/// The namespace, and the memory that the blocking limit has instead.
const NAMESPACE: &str = "ram:64m";
const MEMORY_BYTES: usize = 64 << 20;
/// The core of the target and of the limit, and the core of the host.
const TARGET_CORE: usize = 0;
const HOST_CORE: usize = 1;
/// Most files of this process: the limit's connections, and the files of any process.
const FILES_MAX: u32 = 2048;
/// Keep alive: the timeout, and how often it is sent.
const KATO_MS: u32 = 5000;
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(2);
/// How long the target is left alone first: until the timers have expired within which a new
/// connection must complete Connect. They cannot be cancelled, and would wake the target for nothing.
const SETTLE: Duration = Duration::from_secs(11);
/// Reads on each queue before that: a target may give a queue more memory at its first use.
const FIRST_READS: usize = 4;
/// How long the CPU is measured.
const WATCHED: Duration = Duration::from_secs(10);
/// Time between two checks whether a keep alive is due.
const NAP: Duration = Duration::from_millis(300);
/// Bars.
const CPU_PERCENT_MAX: f64 = 0.5;
const LATER_US_MAX: f64 = 5.0;

/// Connected controllers with their queues.
struct Host {
    admins: Vec<Admin>,
    queues: Vec<Queue>,
    kept_alive: Instant,
}

impl Host {
    fn connect(port: u16, nqn: &str) -> Result<Self> {
        let mut host = Self { admins: Vec::new(), queues: Vec::new(), kept_alive: Instant::now() };
        for nth in 0..CONTROLLERS {
            let count = IO_QUEUES / CONTROLLERS + u16::from(nth < IO_QUEUES % CONTROLLERS);
            let admin = Admin::connect(port, nqn, count, KATO_MS)?;
            for id in 1..=count {
                let mut queue = admin.io_queue(id)?;
                first_reads(&mut queue)?;
                host.queues.push(queue);
            }
            host.admins.push(admin);
            host.keep_alive()?;
        }
        Ok(host)
    }

    /// Only sends keep alives for this time.
    fn stay(&mut self, time: Duration) -> Result<()> {
        let from = Instant::now();
        while from.elapsed() < time {
            self.keep_alive()?;
            thread::sleep(NAP.min(time.saturating_sub(from.elapsed())));
        }
        Ok(())
    }

    /// Sends the keep alives that are due.
    fn keep_alive(&mut self) -> Result<()> {
        if self.kept_alive.elapsed() >= KEEP_ALIVE_EVERY {
            self.kept_alive = Instant::now();
            for admin in &mut self.admins {
                admin.keep_alive()?;
            }
        }
        Ok(())
    }
}

fn first_reads(queue: &mut Queue) -> Result<()> {
    (0..FIRST_READS).try_for_each(|_| queue.read(0))
}

/// Measures and prints.
pub(super) fn run(tree: &Tree, options: &Options) -> Result<Value> {
    allow_files(FILES_MAX)?;
    let core = TARGET_CORE.to_string();
    let target = Export::start(tree, &[NAMESPACE, "--cores", &core, "--mode", "adaptive"])?;
    fill(tree, &target)?;
    let before = Resident::of(target.pid())?;
    // A thread of its own can be bound to a core without binding its children.
    let (pid, port, nqn, noisy) = (target.pid(), target.port, target.nqn.clone(), options.noisy);
    let host = thread::spawn(move || measure(pid, port, &nqn, noisy)).join();
    let measured = host.unwrap_or_else(|_| Err(anyhow!("the host's thread panicked")));
    let (cpu_percent, rejected, after, firsts) = measured?;
    let per_connection =
        after.now_bytes.saturating_sub(before.now_bytes) / u64::from(IO_QUEUES + CONTROLLERS);
    println!(
        "{IO_QUEUES} I/O connections of {CONTROLLERS} controllers, keep alive every {} s, adaptive",
        KEEP_ALIVE_EVERY.as_secs()
    );
    println!(
        "memory: {} KiB resident; {per_connection} bytes per connection; {rejected} runs rejected",
        after.now_bytes >> 10
    );
    let (same, other) = (Latencies::of(firsts.same), Latencies::of(firsts.other));
    println!(
        "first 4 KiB read after {} ms of silence, {ROUNDS} times, us: median (quartiles)",
        PAUSE.as_millis()
    );
    println!("on one connection again and again: {same}");
    println!("on another one each time: {other}");
    let later =
        |what, latencies: &Latencies| at_most(what, latencies.later.median, LATER_US_MAX, "us");
    let bars = [
        at_most("CPU while idle", cpu_percent, CPU_PERCENT_MAX, "% of a core"),
        later("first command, later than the blocking limit's, one connection", &same),
        later("the same, another connection each time", &other),
    ];
    target.stop("TERM")?;
    Ok(json!({
        "connections": IO_QUEUES, "controllers": CONTROLLERS, "rejected": rejected,
        "resident_bytes": after.now_bytes, "bytes_per_connection": per_connection,
        "first_same": same.json(), "first_other": other.json(), "bars": bars,
    }))
}

/// The results of the pairs of one kind.
struct Latencies {
    ours: Quartiles,
    limit: Quartiles,
    later: Quartiles,
}

impl Latencies {
    fn of(pairs: Pairs) -> Self {
        let later = pairs.later_us();
        Self { ours: Quartiles::of(pairs.ours_us), limit: Quartiles::of(pairs.limit_us), later }
    }

    fn json(&self) -> Value {
        json!({
            "us": self.ours.json(), "limit_us": self.limit.json(), "later_us": self.later.json(),
        })
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ours, limit, later } = self;
        write!(f, "{ours}, limit {limit}, pair by pair later by {later}")
    }
}

/// CPU in percent of a core, runs rejected, memory, and the latencies of first commands.
fn measure(pid: u32, port: u16, nqn: &str, noisy: bool) -> Result<(f64, u32, Resident, Firsts)> {
    bind_to_core(HOST_CORE)?;
    let mut host = Host::connect(port, nqn)?;
    // The memory and the connections of the limit are silent for as long as the target's.
    let mut limit = Blocking::start(TARGET_CORE, ROUNDS + 1, MEMORY_BYTES)?;
    for queue in &mut limit.queues {
        first_reads(queue)?;
    }
    host.stay(SETTLE)?;
    let idle = || {
        let (from, used) = (Instant::now(), cpu_ns(pid)?);
        host.stay(WATCHED)?;
        let used = Duration::from_nanos(cpu_ns(pid)?.saturating_sub(used));
        Ok(100.0 * used.as_secs_f64() / from.elapsed().as_secs_f64())
    };
    let (percent, rejected) = watched("idle", noisy, &[pid, limit.pid()], idle)?;
    let resident = Resident::of(pid)?;
    let limit_pid = limit.pid();
    let firsts = || first::measure(&mut host, &mut limit);
    let (firsts, disturbed) = watched("first command", noisy, &[pid, limit_pid], firsts)?;
    limit.stop()?;
    Ok((percent, rejected + disturbed, resident, firsts))
}
