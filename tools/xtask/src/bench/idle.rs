//! A target with 1,000 idle connections: its CPU, its memory, and the first command afterwards.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use serde_json::{Value, json};

use super::Options;
use super::figures::{Figure, at_most};
use super::process::{Resident, allow_files, bind_to_core, cpu_ns};
use super::simple::{Admin, Queue};
use crate::quiet::watched;
use crate::raceline::{Export, Tree};

/// Controllers, and I/O queues over all of them.
const CONTROLLERS: u16 = 16;
const IO_QUEUES: u16 = 1000;
/// Files of this process: both ends of the bare pair, and what a process has anyhow.
const FILES_MAX: u32 = 2048;
/// Keep alive: the timeout, and how often it is sent.
const KATO_MS: u32 = 5000;
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(2);
/// How long the target is left alone first: until the timers have run out within which a new
/// connection must have completed Connect, which cannot be cancelled and wake it for nothing.
const SETTLE: Duration = Duration::from_secs(11);
/// Reads on each queue before all that: a target may give a queue more memory when it is used.
const FIRST_READS: usize = 4;
/// How long the CPU is watched.
const WATCHED: Duration = Duration::from_secs(10);
/// Pause before each command, and how many there are on either side.
const PAUSE: Duration = Duration::from_millis(300);
const COMMANDS: u16 = 40;
/// What goes either way for a read of 4 KiB.
const REQUEST_BYTES: usize = 72;
const RESPONSE_BYTES: usize = 4120;
/// Time for an answer of the bare pair.
const ANSWER: Duration = Duration::from_secs(5);
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
                for _ in 0..FIRST_READS {
                    queue.read()?;
                }
                host.queues.push(queue);
            }
            host.admins.push(admin);
            host.keep_alive()?;
        }
        Ok(host)
    }

    /// Does nothing else for so long.
    fn stay(&mut self, time: Duration) -> Result<()> {
        let from = Instant::now();
        while from.elapsed() < time {
            self.keep_alive()?;
            thread::sleep(PAUSE.min(time.saturating_sub(from.elapsed())));
        }
        Ok(())
    }

    /// Sends what is due.
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

/// Measures and prints.
pub(super) fn run(tree: &Tree, options: &Options) -> Result<Value> {
    allow_files(FILES_MAX)?;
    let target = Export::start(tree, &["ram:64m", "--cores", "0", "--mode", "adaptive"])?;
    let before = Resident::of(target.pid())?;
    // A thread of its own can be bound to a core without its children.
    let (pid, port, nqn, noisy) = (target.pid(), target.port, target.nqn.clone(), options.noisy);
    let host = thread::spawn(move || measure(pid, port, &nqn, noisy)).join();
    let measured = host.unwrap_or_else(|_| Err(anyhow!("the host's thread panicked")));
    let (cpu_percent, rejected, after, [ours, bare]) = measured?;
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
    println!("first 4 KiB read after {} ms of silence, us: {ours}", PAUSE.as_millis());
    println!("the same bytes over a bare blocking pair, us: {bare}");
    let bars = [
        at_most("CPU while idle", cpu_percent, CPU_PERCENT_MAX, "% of a core"),
        at_most("first command, later than bare", ours.median - bare.median, LATER_US_MAX, "us"),
    ];
    target.stop("TERM")?;
    Ok(json!({
        "connections": IO_QUEUES, "controllers": CONTROLLERS, "rejected": rejected,
        "resident_bytes": after.now_bytes, "bytes_per_connection": per_connection,
        "first_us": ours.json(), "bare_us": bare.json(), "bars": bars,
    }))
}

/// CPU in percent of a core, runs rejected, memory, and the latencies of ours and of the bare pair.
fn measure(
    pid: u32,
    port: u16,
    nqn: &str,
    noisy: bool,
) -> Result<(f64, u32, Resident, [Figure; 2])> {
    bind_to_core(1)?;
    let mut host = Host::connect(port, nqn)?;
    host.stay(SETTLE)?;
    let idle = || {
        let (from, used) = (Instant::now(), cpu_ns(pid)?);
        host.stay(WATCHED)?;
        let used = Duration::from_nanos(cpu_ns(pid)?.saturating_sub(used));
        Ok(100.0 * used.as_secs_f64() / from.elapsed().as_secs_f64())
    };
    let (percent, rejected) = watched("idle", noisy, &[pid], idle)?;
    let resident = Resident::of(pid)?;
    let latencies = || first_commands(&mut host);
    let (latencies, disturbed) = watched("first command", noisy, &[pid], latencies)?;
    Ok((percent, rejected + disturbed, resident, latencies))
}

/// Latencies in microseconds, each after a pause: of reads, each on another queue, and of the bare
/// pair in turn.
fn first_commands(host: &mut Host) -> Result<[Figure; 2]> {
    let mut bare = BarePair::start()?;
    let (mut ours_us, mut bare_us) = (Vec::new(), Vec::new());
    for nth in 0..COMMANDS {
        host.keep_alive()?;
        thread::sleep(PAUSE);
        let queue = usize::from(nth) * host.queues.len() / usize::from(COMMANDS);
        let started = Instant::now();
        host.queues[queue].read()?;
        ours_us.push(started.elapsed().as_secs_f64() * 1e6);
        thread::sleep(PAUSE);
        let started = Instant::now();
        bare.exchange()?;
        bare_us.push(started.elapsed().as_secs_f64() * 1e6);
    }
    bare.stop()?;
    Ok([Figure::of(ours_us)?, Figure::of(bare_us)?])
}

/// Two blocking sockets, the other with a thread on the target's core.
struct BarePair {
    near: TcpStream,
    far: JoinHandle<Result<()>>,
}

impl BarePair {
    fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        let (mut socket, _) = listener.accept()?;
        near.set_nodelay(true)?;
        near.set_read_timeout(Some(ANSWER))?;
        socket.set_nodelay(true)?;
        let far = thread::spawn(move || {
            bind_to_core(0)?;
            let (mut request, response) = ([0; REQUEST_BYTES], [0; RESPONSE_BYTES]);
            // The end of the connection is the end of the thread.
            while socket.read_exact(&mut request).is_ok() {
                socket.write_all(&response)?;
            }
            Ok(())
        });
        Ok(Self { near, far })
    }

    fn exchange(&mut self) -> Result<()> {
        self.near.write_all(&[0; REQUEST_BYTES])?;
        // In two parts, as a PDU is read whose length is not known before.
        let mut response = [0; RESPONSE_BYTES];
        let (head, rest) = response.split_at_mut(8);
        self.near.read_exact(head)?;
        Ok(self.near.read_exact(rest)?)
    }

    fn stop(self) -> Result<()> {
        drop(self.near);
        self.far.join().unwrap_or_else(|_| Err(anyhow!("the bare pair's thread panicked")))
    }
}
