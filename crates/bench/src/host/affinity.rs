//! One thread of the program and the worker that owns its queue, on the same CPU and on different ones.
//!
//! The thread keeps a number of 4 KiB reads under way. It hands each one to the worker, which sends and
//! receives.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use raceline_host::caller::{Memory, Operation};
use raceline_host::{CallerHost, Pending, SharedError, SharedOptions, SharedQueues};
use raceline_reactor::Mode;

use super::bed::Bed;
use super::share::{Blocks, IO_BYTES, NSID, context_switches, failed, pin, unpin};
use super::{HostBenchConfig, HostBenchError};
use crate::histogram::Latencies;
use crate::random::Random;

const WAY: &str = "affinity";

/// What a run measured.
#[derive(Clone, Debug)]
pub struct AffinityRun {
    /// Latencies from submission until the thread has the end.
    pub latencies: Latencies,
    /// How long they were measured.
    pub measured: Duration,
    /// Context switches of the whole process per read.
    pub switches_per_io: f64,
    /// Operations that were handed to the worker, per read.
    pub handed_off_per_io: f64,
}

/// One run: the thread on the host's core, the worker on `worker_core`.
///
/// # Errors
/// When either side fails, or `stop` says true.
pub fn run(
    config: &HostBenchConfig,
    worker_core: usize,
    depth: u16,
    stop: &dyn Fn() -> bool,
) -> Result<AffinityRun, HostBenchError> {
    let bed = Bed::start(config, stop)?;
    let before = pin(worker_core);
    let measured = measure(&bed, config, depth);
    unpin(before);
    let ended = bed.end();
    if stop() {
        return Err(HostBenchError::Stopped);
    }
    let measured = measured?;
    ended?;
    Ok(measured)
}

fn measure(
    bed: &Bed<'_>,
    config: &HostBenchConfig,
    depth: u16,
) -> Result<AffinityRun, HostBenchError> {
    let host = CallerHost::connect(bed.host_config(1)).map_err(failed(WAY))?;
    // The worker inherits the core of the thread that starts it.
    let options =
        SharedOptions { mode: Mode::Interrupt, direct_send: false, ..SharedOptions::default() };
    let queues = SharedQueues::open(&host, &options).map_err(failed(WAY))?;
    let blocks = Blocks::of(&host)?;
    let before = pin(config.host_core);
    let run = drive(config, depth, &queues, &blocks);
    unpin(before);
    drop(queues);
    host.disconnect();
    run.map_err(|error| HostBenchError::Command { way: WAY.to_owned(), why: error.to_string() })
}

fn drive(
    config: &HostBenchConfig,
    depth: u16,
    queues: &SharedQueues,
    blocks: &Blocks,
) -> Result<AffinityRun, SharedError> {
    let mut random = Random::new(config.seed);
    let mut submit = |memory| {
        let slba = blocks.pick(&mut random);
        queues.submit(Operation::Read { nsid: NSID, slba, memory })
    };
    let mut under_way: VecDeque<(Instant, Pending)> = VecDeque::with_capacity(depth.into());
    for _ in 0..depth {
        under_way.push_back((Instant::now(), submit(Memory::from(vec![0; IO_BYTES]))?));
    }
    let begun = Instant::now();
    let mut latencies = Latencies::new();
    let mut counted = None;
    while let Some((submitted, pending)) = under_way.pop_front() {
        let finished = pending.wait()?;
        let now = Instant::now();
        if counted.is_some() {
            latencies.record(now - submitted);
        } else if now - begun >= config.ramp {
            counted = Some((now, context_switches(), queues.totals().handed_off));
        }
        if now - begun >= config.ramp + config.time {
            break;
        }
        let memory = finished.memory.unwrap_or_else(|| Memory::from(vec![0; IO_BYTES]));
        under_way.push_back((Instant::now(), submit(memory)?));
    }
    let (since, switches, handed_off) = counted.unwrap_or((begun, 0, 0));
    let (measured, count) = (since.elapsed(), latencies.count().max(1) as f64);
    let switches = context_switches().saturating_sub(switches);
    let handed_off = queues.totals().handed_off.saturating_sub(handed_off);
    for (_, pending) in under_way {
        pending.wait()?;
    }
    Ok(AffinityRun {
        latencies,
        measured,
        switches_per_io: switches as f64 / count,
        handed_off_per_io: handed_off as f64 / count,
    })
}
