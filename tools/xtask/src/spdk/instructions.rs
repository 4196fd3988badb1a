//! `cargo xtask spdk --instructions`: the cost of a command in user space, Raceline's beside SPDK's.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::point::{Host, Point, Target};
use super::program::{Programs, RunningTarget};
use super::steps::{self, Count, Side};

/// Most commands in flight: with more, cycles do not fit into the time.
const IN_FLIGHT_MAX: u32 = 32;
/// How long a host gets to connect and reach its rate, in seconds.
const RAMP_S: u32 = 4;
/// Bytes of a capsule without data, and of the header of an H2CData PDU.
const CAPSULE_BYTES: u32 = 72;
const DATA_HEADER_BYTES: u32 = 24;
/// Data in a capsule that both targets accept.
const IN_CAPSULE_BYTES: u32 = 8192;

/// Counts and prints.
pub(crate) fn run(programs: &Programs<'_>, points: &[Point], seconds: u32) -> Result<()> {
    let points: Vec<Point> = points
        .iter()
        .copied()
        // Commands are counted by the bytes that they send, without digests.
        .filter(|point| !point.digests && point.depth * point.connections <= IN_FLIGHT_MAX)
        .collect();
    ensure!(
        !points.is_empty(),
        "only points without digests and with at most {IN_FLIGHT_MAX} commands in flight"
    );
    let ours = start(programs, Target::Raceline)?;
    let theirs = start(programs, Target::SpdkTuned)?;
    let mut text = format!(
        "Instructions per command in user space, by single-stepping for {seconds} s (commands counted). \
         Targets under our host; hosts over our target without storage.\n\n\
         | point | our target | SPDK tuned | ratio | our host | SPDK's host | ratio |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n"
    );
    for point in points {
        let null = Point { null: true, ..point };
        let counts = [
            count(programs, &ours, Host::Raceline, point, Side::Target, seconds)?,
            count(programs, &theirs, Host::Raceline, point, Side::Target, seconds)?,
            count(programs, &ours, Host::Raceline, null, Side::Host, seconds)?,
            count(programs, &ours, Host::Spdk, null, Side::Host, seconds)?,
        ];
        let cell = |count: Count| format!("{:.0} ({:.0})", count.instructions, count.commands);
        let ratio = |at: usize| counts[at].instructions / counts[at + 1].instructions;
        let cells = counts.map(cell);
        eprintln!("{point}: target {:.2}, host {:.2}", ratio(0), ratio(2));
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "| {point} | {} | {} | {:.2} | {} | {} | {:.2} |",
            cells[0],
            cells[1],
            ratio(0),
            cells[2],
            cells[3],
            ratio(2)
        );
    }
    print!("{text}");
    Ok(())
}

fn start(programs: &Programs<'_>, kind: Target) -> Result<RunningTarget> {
    let target = programs.start(kind, "poll")?;
    programs.fill(&target).with_context(|| format!("target {}", kind.name()))?;
    target.pause();
    Ok(target)
}

fn count(
    programs: &Programs<'_>,
    target: &RunningTarget,
    host: Host,
    point: Point,
    side: Side,
    seconds: u32,
) -> Result<Count> {
    target.resume();
    let mut running = programs.start_host(host, target, point, 2 * RAMP_S + seconds)?;
    std::thread::sleep(Duration::from_secs(u64::from(RAMP_S)));
    let (process, name) = match (side, host) {
        (Side::Target, _) if target.kind.is_spdk() => (target.pid(), "reactor_0"),
        (Side::Target, _) => (target.pid(), "target-0"),
        (Side::Host, Host::Raceline) => (running.pid(), "perf-1"),
        (Side::Host, Host::Spdk) => (running.pid(), "spdk_nvme_perf"),
    };
    let time = Duration::from_secs(u64::from(seconds));
    let counted = thread(process, name)
        .and_then(|thread| steps::count(thread, side, target.port(), command_bytes(point), time));
    running.end();
    target.pause();
    counted.with_context(|| format!("{point}, {} -> {}", host.name(), target.kind.name()))
}

/// The thread of a process that has this name.
fn thread(process: u32, name: &str) -> Result<u32> {
    for task in
        std::fs::read_dir(format!("/proc/{process}/task")).context("the process has ended")?
    {
        let task = task?;
        let comm = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if comm.trim_end() == name {
            return task.file_name().to_string_lossy().parse().context("a thread's number");
        }
    }
    anyhow::bail!("process {process} has no thread {name}")
}

/// Bytes that a command sends to the target.
fn command_bytes(point: Point) -> u32 {
    match (point.write, point.io_bytes) {
        (false, _) => CAPSULE_BYTES,
        (true, bytes) if bytes <= IN_CAPSULE_BYTES => CAPSULE_BYTES + bytes,
        (true, bytes) => CAPSULE_BYTES + DATA_HEADER_BYTES + bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::super::point::grid;
    use super::*;

    #[test]
    fn commands_are_as_long_as_on_the_wire() {
        let of = |name: &str| {
            let points = grid(false);
            let point = points.iter().find(|point| point.to_string() == name);
            command_bytes(*point.unwrap())
        };
        assert_eq!(of("4k read 32x1"), 72);
        assert_eq!(of("4k write 32x1"), 72 + 4096);
        assert_eq!(of("128k write 8x1"), 72 + 24 + (128 << 10));
    }

    #[test]
    fn threads_are_found_by_name() {
        let named = std::thread::Builder::new().name("to-be-found".to_owned());
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let handle = named.spawn(move || receiver.recv()).unwrap();
        let process = std::process::id();
        let found = (0..100).find_map(|_| {
            std::thread::sleep(Duration::from_millis(5));
            thread(process, "to-be-found").ok()
        });
        assert!(found.is_some_and(|found| found != process));
        assert!(thread(process, "never-there").is_err());
        drop(sender);
        handle.join().unwrap().unwrap_err();
    }
}
