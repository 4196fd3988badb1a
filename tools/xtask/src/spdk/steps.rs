//! Instructions per I/O of one thread in user space, counted by single-stepping it with ptrace(2).
//!
//! Works on any binary and on machines without hardware counters. The stepped side becomes slower by
//! orders of magnitude, so its peer always waits for it: it spends no instruction on looking for work
//! that is not there. Whole cycles are counted: from one moment at which the thread has just sent
//! bytes to another.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Steps between two looks at the connections.
const STEPS_PER_LOOK: u32 = 1024;
/// Fewest commands for a valid result.
const COMMANDS_MIN: f64 = 30.0;

/// The result of a count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Count {
    /// Instructions in user space per command.
    pub(crate) instructions: f64,
    /// Commands in the interval.
    pub(crate) commands: f64,
}

/// Which end of the connections is stepped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Target,
    Host,
}

/// One moment between two steps.
#[derive(Clone, Copy)]
struct Sample {
    instructions: u64,
    /// Bytes of all connections, as the target sees them.
    bytes: Bytes,
}

#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Bytes {
    sent: u64,
    received: u64,
}

/// For the given time, steps a thread that serves or uses the connections of the target's `port`.
/// `command_bytes` go to the target with each command.
pub(crate) fn count(
    thread: u32,
    side: Side,
    port: u16,
    command_bytes: u32,
    time: Duration,
) -> Result<Count> {
    let pid = Pid::from_raw(i32::try_from(thread)?);
    // On the same core as the thread, switching between the two needs no interrupt.
    let before = sched_getaffinity(Pid::from_raw(0)).context("this thread's cores")?;
    let core: CpuSet = sched_getaffinity(pid).context("the thread's cores")?;
    sched_setaffinity(Pid::from_raw(0), &core).context("the thread's core")?;
    let samples = step(pid, port, time);
    sched_setaffinity(Pid::from_raw(0), &before).context("this thread's cores")?;
    evaluate(&samples?, side, command_bytes)
}

fn step(pid: Pid, port: u16, time: Duration) -> Result<Vec<Sample>> {
    ptrace::seize(pid, ptrace::Options::empty()).with_context(|| {
        format!("cannot trace thread {pid}: it takes root; without a sandbox, ptrace_scope 0 does")
    })?;
    ptrace::interrupt(pid).context("stopping the thread")?;
    stopped(pid)?;
    let end = Instant::now() + time;
    let mut samples = vec![Sample { instructions: 0, bytes: bytes(port)? }];
    let (mut instructions, mut last) = (0, 0);
    while Instant::now() < end {
        for _ in 0..STEPS_PER_LOOK {
            ptrace::step(pid, None).context("a step")?;
            stopped(pid)?;
            let address = std::mem::offset_of!(nix::libc::user_regs_struct, rip);
            let rip = ptrace::read_user(pid, std::ptr::without_provenance_mut(address));
            let rip = rip.context("the thread's instruction pointer")?;
            // An instruction with a repeat prefix counts as one, however many steps it takes.
            instructions += u64::from(rip != last);
            last = rip;
        }
        samples.push(Sample { instructions, bytes: bytes(port)? });
    }
    ptrace::detach(pid, None).context("letting the thread go")?;
    Ok(samples)
}

fn stopped(pid: Pid) -> Result<()> {
    match waitpid(pid, Some(WaitPidFlag::__WALL)).context("waiting for the thread")? {
        WaitStatus::Exited(..) | WaitStatus::Signaled(..) => bail!("the thread has ended"),
        _ => Ok(()),
    }
}

/// Counts from the first to the last sample before which the stepped side had just sent bytes: its
/// peer, which is fast, has answered by then.
fn evaluate(samples: &[Sample], side: Side, command_bytes: u32) -> Result<Count> {
    let sent = |sample: &Sample| match side {
        Side::Target => sample.bytes.sent,
        Side::Host => sample.bytes.received,
    };
    let mut after_send = samples.windows(2).filter(|pair| sent(&pair[0]) != sent(&pair[1]));
    let first = after_send.next().map(|pair| pair[1]);
    let last = after_send.next_back().map(|pair| pair[1]);
    let (Some(first), Some(last)) = (first, last) else {
        bail!("the thread sent less than twice: count for longer");
    };
    let received = last.bytes.received.checked_sub(first.bytes.received).context(
        "a connection was given up meanwhile: count for a shorter time than the keep alive timeout",
    )?;
    let commands = to_f64(received)? / f64::from(command_bytes);
    ensure!(commands >= COMMANDS_MIN, "only {commands} commands were seen: count for longer");
    Ok(Count { instructions: to_f64(last.instructions - first.instructions)? / commands, commands })
}

fn to_f64(count: u64) -> Result<f64> {
    Ok(f64::from(u32::try_from(count).context("more than a run can count")?))
}

/// What the target's ends of the connections on `port` have sent and received, by ss(8).
fn bytes(port: u16) -> Result<Bytes> {
    let port = format!("sport = :{port}");
    let output = Command::new("ss").args(["-tinH", &port]).output();
    let output = output.context("cannot run ss: install the package iproute2")?;
    ensure!(output.status.success(), "ss: {}", String::from_utf8_lossy(&output.stderr));
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

fn parse(output: &str) -> Bytes {
    let sum = |name: &str| {
        let values = output.split_whitespace().filter_map(|word| word.strip_prefix(name));
        values.filter_map(|value| value.parse::<u64>().ok()).sum()
    };
    Bytes { sent: sum("bytes_sent:"), received: sum("bytes_received:") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_all_connections_are_added() {
        let line = "\t cubic bytes_sent:100 bytes_acked:100 bytes_received:72 segs_out:3\n";
        assert_eq!(parse(&line.repeat(2)), Bytes { sent: 200, received: 144 });
    }

    #[test]
    fn whole_cycles_are_counted() {
        let sample =
            |instructions, sent, received| Sample { instructions, bytes: Bytes { sent, received } };
        // 100 commands of 72 bytes cost 1,000 instructions each; the looks in between and the steps
        // before and after do not count.
        let samples = [
            sample(0, 0, 0),
            sample(500, 10, 7200),
            sample(50_000, 10, 7200),
            sample(100_500, 20, 14_400),
            sample(100_900, 20, 14_400),
        ];
        let count = evaluate(&samples, Side::Target, 72).unwrap();
        assert_eq!(count, Count { instructions: 1000.0, commands: 100.0 });
        assert!(evaluate(&samples[..3], Side::Target, 72).is_err());
        let lost = [samples[0], samples[3], sample(200_000, 5, 72)];
        assert!(evaluate(&lost, Side::Target, 72).is_err());
        assert!(evaluate(&samples, Side::Target, 720).is_err());
    }
}
