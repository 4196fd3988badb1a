//! The ways to do an operation: called directly, or through a channel to an engine.

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::{Duration, Instant};

use raceline_accel::{Channel, Done, OpCode, Output, Submitted};

use super::AccelBenchError;
use super::operands::WorkingSet;

/// A channel for operations in buffers of their own.
pub(super) type BenchChannel = Channel<Vec<u8>, Vec<u8>>;
type BenchDone = Done<Vec<u8>, Vec<u8>>;

/// How long one operation may take: emulated engines that hang are not measured here.
const GIVE_UP: Duration = Duration::from_secs(10);
/// Wait for an engine before its completions are collected for [`core_time`], beyond twice their average
/// time.
const SETTLE: Duration = Duration::from_micros(20);

/// A loop over operands without the framework; its parameters are the number of operands and of operations.
type Directly = fn(&mut WorkingSet, usize, u64) -> Duration;
/// The same through the framework.
type AtOnce =
    fn(&mut BenchChannel, &mut WorkingSet, usize, u64) -> Result<Duration, AccelBenchError>;

/// A loop for each operation, in the order of [`OpCode::ALL`]: a program knows its operation when it is
/// compiled.
const DIRECTLY: [Directly; OpCode::COUNT] = [
    directly::<0>,
    directly::<1>,
    directly::<2>,
    directly::<3>,
    directly::<4>,
    directly::<5>,
    directly::<6>,
    directly::<7>,
];
/// The same through the framework.
const AT_ONCE: [AtOnce; OpCode::COUNT] = [
    at_once::<0>,
    at_once::<1>,
    at_once::<2>,
    at_once::<3>,
    at_once::<4>,
    at_once::<5>,
    at_once::<6>,
    at_once::<7>,
];

/// Does an operation `count` times without the framework.
pub(super) fn run_directly(
    set: &mut WorkingSet,
    code: OpCode,
    limit: usize,
    count: u64,
) -> Duration {
    DIRECTLY[code.index()](set, limit, count)
}

fn directly<const INDEX: usize>(set: &mut WorkingSet, limit: usize, count: u64) -> Duration {
    let begun = Instant::now();
    for _ in 0..count {
        let index = set.next(limit);
        black_box(set.operands[index].run_directly(OpCode::ALL[INDEX]));
    }
    begun.elapsed()
}

/// Submits an operation `count` times; each is complete at once.
pub(super) fn run_at_once(
    channel: &mut BenchChannel,
    set: &mut WorkingSet,
    code: OpCode,
    limit: usize,
    count: u64,
) -> Result<Duration, AccelBenchError> {
    AT_ONCE[code.index()](channel, set, limit, count)
}

fn at_once<const INDEX: usize>(
    channel: &mut BenchChannel,
    set: &mut WorkingSet,
    limit: usize,
    count: u64,
) -> Result<Duration, AccelBenchError> {
    let code = OpCode::ALL[INDEX];
    let begun = Instant::now();
    for _ in 0..count {
        let index = set.next(limit);
        let work = set.operands[index].take_work(code);
        match channel.submit(black_box(index as u64), work) {
            Submitted::Done(Done { token, result: Ok(output), work: Some(work) }) => {
                black_box((token, output));
                set.operands[index].put_back(work);
            }
            Submitted::Done(done) => finish(set, code, done)?,
            Submitted::Pending | Submitted::Full(_) => {
                return Err(AccelBenchError::NotAtOnce(code));
            }
        }
    }
    Ok(begun.elapsed())
}

/// Keeps `depth` operations in flight until `count` of them are complete.
pub(super) fn run_in_flight(
    channel: &mut BenchChannel,
    set: &mut WorkingSet,
    code: OpCode,
    limit: usize,
    depth: usize,
    count: u64,
) -> Result<Duration, AccelBenchError> {
    let mut free: VecDeque<usize> = set.order().iter().copied().take(limit).collect();
    let mut done = Vec::with_capacity(depth);
    let (mut submitted, mut completed) = (0u64, 0u64);
    let begun = Instant::now();
    let mut now = begun;
    while completed < count {
        while submitted < count && submitted - completed < depth as u64 {
            let Some(index) = free.pop_front() else { break };
            let work = set.operands[index].take_work(code);
            match channel.submit(index as u64, work) {
                Submitted::Pending => submitted += 1,
                Submitted::Done(at_once) => {
                    submitted += 1;
                    completed += 1;
                    finish(set, code, at_once)?;
                    free.push_back(index);
                }
                Submitted::Full(work) => {
                    set.operands[index].put_back(work);
                    free.push_front(index);
                    break;
                }
            }
        }
        channel.kick();
        now = Instant::now();
        channel.poll(now, &mut done);
        for one in done.drain(..) {
            completed += 1;
            free.extend(usize::try_from(one.token));
            finish(set, code, one)?;
        }
        if now - begun > GIVE_UP {
            return Err(AccelBenchError::Stuck { operation: code, completed, count });
        }
    }
    Ok(now - begun)
}

/// The core's time for `depth` operations that are submitted together and collected together: submitting,
/// ringing, and one poll that finds all of them. `typical` is their usual duration. `None` if the poll came
/// too early.
pub(super) fn core_time(
    channel: &mut BenchChannel,
    set: &mut WorkingSet,
    code: OpCode,
    depth: usize,
    typical: Duration,
) -> Result<Option<Duration>, AccelBenchError> {
    let mut done = Vec::with_capacity(depth);
    let (mut at_once, mut pending) = (0, 0);
    let begun = Instant::now();
    for _ in 0..depth {
        let index = set.next(set.operands.len());
        let work = set.operands[index].take_work(code);
        match channel.submit(index as u64, work) {
            Submitted::Pending => pending += 1,
            Submitted::Done(one) => {
                at_once += 1;
                finish(set, code, one)?;
            }
            Submitted::Full(work) => {
                set.operands[index].put_back(work);
                break;
            }
        }
    }
    channel.kick();
    let submitting = begun.elapsed();
    let ready = begun + typical * 2 + SETTLE;
    while Instant::now() < ready {
        // The engine may run on a thread that needs this core.
        std::thread::yield_now();
    }
    let polling = Instant::now();
    channel.poll(polling, &mut done);
    let time = submitting + polling.elapsed();
    let complete = at_once == 0 && pending == depth && done.len() == depth;
    while done.len() < pending {
        channel.kick();
        channel.poll(Instant::now(), &mut done);
        if begun.elapsed() > GIVE_UP {
            let (completed, count) = (done.len() as u64, pending as u64);
            return Err(AccelBenchError::Stuck { operation: code, completed, count });
        }
    }
    for one in done {
        finish(set, code, one)?;
    }
    Ok(complete.then_some(time))
}

/// Does the operation on some operands and checks the results.
pub(super) fn check(
    channel: &mut BenchChannel,
    set: &mut WorkingSet,
    code: OpCode,
    count: usize,
) -> Result<(), AccelBenchError> {
    for index in 0..count.min(set.operands.len()) {
        let work = set.operands[index].take_work(code);
        let done = match channel.submit(index as u64, work) {
            Submitted::Done(done) => done,
            Submitted::Pending => wait(channel, code)?,
            Submitted::Full(_) => return Err(AccelBenchError::NotAtOnce(code)),
        };
        let digest = match done.result {
            Ok(Output::Crc32c(digest)) => Some(digest),
            _ => None,
        };
        let equal = done.result != Ok(Output::Equal(false));
        finish(set, code, done)?;
        if !equal || !set.operands[index].is_right(code, digest) {
            return Err(AccelBenchError::Wrong(code));
        }
    }
    Ok(())
}

/// Does the operation on one set of operands, and gives the bytes that it wrote.
pub(super) fn written(
    channel: &mut BenchChannel,
    set: &mut WorkingSet,
    code: OpCode,
    index: usize,
) -> Result<usize, AccelBenchError> {
    match channel.submit(index as u64, set.operands[index].take_work(code)) {
        Submitted::Done(done) => {
            let result = done.result;
            finish(set, code, done)?;
            match result {
                Ok(Output::Written(bytes)) => Ok(bytes),
                _ => Err(AccelBenchError::Wrong(code)),
            }
        }
        Submitted::Pending | Submitted::Full(_) => Err(AccelBenchError::NotAtOnce(code)),
    }
}

fn wait(channel: &mut BenchChannel, code: OpCode) -> Result<BenchDone, AccelBenchError> {
    let (begun, mut done) = (Instant::now(), Vec::new());
    channel.kick();
    loop {
        channel.poll(Instant::now(), &mut done);
        if let Some(done) = done.pop() {
            return Ok(done);
        }
        if begun.elapsed() > GIVE_UP {
            return Err(AccelBenchError::Stuck { operation: code, completed: 0, count: 1 });
        }
    }
}

#[inline]
fn finish(set: &mut WorkingSet, code: OpCode, done: BenchDone) -> Result<(), AccelBenchError> {
    if let Err(error) = done.result {
        return Err(AccelBenchError::Failed { operation: code, error });
    }
    let place = usize::try_from(done.token).ok().and_then(|index| set.operands.get_mut(index));
    if let (Some(operands), Some(work)) = (place, done.work) {
        operands.put_back(work);
    }
    Ok(())
}
