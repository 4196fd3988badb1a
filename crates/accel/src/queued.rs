//! A channel's dealings with queues that complete later: steps, back-pressure, deadlines, the end.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use crate::channel::Channel;
use crate::engine::{Capabilities, EngineQueue, RawResult, Refused};
use crate::flights::Report;
use crate::memory::{Source, Target};
use crate::operation::{AccelError, Operation, Output};
use crate::work::Done;

/// Deadline checks within a channel's timeout.
const CHECKS: u32 = 8;

/// Polls in a row at which a queue may be too busy for an operation while it has none of this channel,
/// before the operation is done in software. Other users may fill a shared queue.
const BUSY_POLLS: u32 = 128;

/// How often a channel that is dropped looks whether an engine is done.
const DRAIN_INTERVAL: Duration = Duration::from_micros(20);

/// One queue of a channel.
pub(crate) struct Queue {
    name: &'static str,
    queue: Box<dyn EngineQueue>,
    capabilities: Capabilities,
    /// Operations that it has and that are not given up.
    submitted: usize,
    /// Operations that it has and that are given up.
    quarantined: usize,
    /// Slots of operations that it has not taken yet, in order.
    line: VecDeque<u32>,
    /// Polls in a row at which it was too busy, with no operation of this channel.
    busy_polls: u32,
    /// Something was submitted since the last kick.
    needs_kick: bool,
    /// It hung once: it gets nothing more.
    is_given_up: bool,
}

/// What became of an operation that was offered to a queue.
enum Offer {
    Taken,
    Busy,
    /// It must be done in software.
    Unsuitable,
}

impl Queue {
    pub(crate) fn new(name: &'static str, queue: Box<dyn EngineQueue>, slots: usize) -> Queue {
        Queue {
            name,
            capabilities: queue.capabilities(),
            queue,
            submitted: 0,
            quarantined: 0,
            line: VecDeque::with_capacity(slots),
            busy_polls: 0,
            needs_kick: false,
            is_given_up: false,
        }
    }

    /// False if operations should go elsewhere.
    pub(crate) fn is_usable(&self) -> bool {
        !self.is_given_up && self.queue.is_healthy()
    }

    /// True if polling it makes sense.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.submitted > 0 || !self.line.is_empty() || self.quarantined > 0
    }

    /// Operations that are to be reported to their owners.
    #[inline]
    pub(crate) fn outstanding(&self) -> usize {
        self.submitted + self.line.len()
    }

    #[inline]
    pub(crate) fn kick(&mut self) {
        if std::mem::take(&mut self.needs_kick) {
            self.queue.kick();
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(self.name)
            .field("submitted", &self.submitted)
            .field("waiting", &self.line.len())
            .field("quarantined", &self.quarantined)
            .field("usable", &self.is_usable())
            .finish()
    }
}

impl<S: Source, T: Target> Channel<S, T> {
    /// Offers an operation that is in no line yet to its queue. If it must be done in software, it is
    /// done.
    pub(crate) fn start(&mut self, queue: usize, index: u32) -> Option<Done<S, T>> {
        let offer =
            if self.queues[queue].line.is_empty() { self.offer(queue, index) } else { Offer::Busy };
        match offer {
            Offer::Taken => None,
            Offer::Busy => {
                self.queues[queue].line.push_back(index);
                None
            }
            Offer::Unsuitable => Some(self.finish_in_software(index)),
        }
    }

    /// Offers the next step of an operation to a queue.
    fn offer(&mut self, queue: usize, index: u32) -> Offer {
        let Queue { queue, capabilities, submitted, needs_kick, .. } = &mut self.queues[queue];
        let (id, flight) = self.flights.waiting(index);
        let operation = flight.work.operation();
        if flight.total == 0
            || !capabilities.operations.contains(operation.code())
            || (flight.total > capabilities.max_bytes && !operation.is_divisible())
        {
            return Offer::Unsuitable;
        }
        if *submitted >= capabilities.depth {
            return Offer::Busy;
        }
        let step = flight.work.step(&mut self.pieces, flight.progress, capabilities.max_bytes);
        let Ok(request) = step else { return Offer::Unsuitable };
        let most = |lists: [usize; 2]| lists[0].max(lists[1]);
        let pieces = most(request.sources().map(<[_]>::len));
        if pieces.max(most(request.targets().map(<[_]>::len))) > capabilities.max_pieces {
            return Offer::Unsuitable;
        }
        let bytes = request.bytes();
        // SAFETY: the operands stay in their slot, which is not touched before the queue has
        // reported it, and are leaked if the queue never does.
        match unsafe { queue.submit(id, &request) } {
            Err(Refused::Busy) => Offer::Busy,
            Err(Refused::Unsuitable) => Offer::Unsuitable,
            Ok(()) => {
                flight.step = bytes;
                (*submitted, *needs_kick) = (*submitted + 1, true);
                self.flights.set_submitted(index);
                Offer::Taken
            }
        }
    }

    /// Takes an operation out of its slot and does what is left of it.
    fn finish_in_software(&mut self, index: u32) -> Done<S, T> {
        let flight = self.flights.take(index);
        let code = flight.work.operation().code();
        self.counters.operations[code.index()].in_flight.subtract(1);
        self.run(flight.token, flight.work, flight.progress, true)
    }

    /// Collects reports, and lets operations in line go on.
    pub(crate) fn poll_queues(&mut self, done: &mut Vec<Done<S, T>>) {
        for queue in 0..self.queues.len() {
            self.collect(queue);
            while let Some((index, flight, result)) = self.flights.next_reported() {
                let (operation, step) = (flight.work.operation(), flight.step);
                let whole = flight.progress.bytes == 0 && step == flight.total;
                let mut outcome = judge(operation, step, whole, result);
                if let Outcome::Finished(Output::Written(bytes)) = outcome
                    && !flight.work.target_holds(&mut self.pieces, bytes)
                {
                    outcome = Outcome::Nonsense;
                }
                match outcome {
                    Outcome::Finished(output) => done.push(self.finish(index, Ok(output))),
                    Outcome::Failed(status) => {
                        let engine = self.queues[queue].name;
                        done.push(self.finish(index, Err(AccelError::Engine { engine, status })));
                    }
                    Outcome::Advanced { bytes, crc32c, goes_on } => {
                        flight.progress.bytes += bytes;
                        flight.progress.crc32c = crc32c;
                        if flight.progress.bytes == flight.total {
                            let output = match operation {
                                Operation::Compare => Output::Equal(true),
                                Operation::Crc32c { .. } | Operation::CopyCrc32c { .. } => {
                                    Output::Crc32c(crc32c)
                                }
                                _ => Output::Nothing,
                            };
                            done.push(self.finish(index, Ok(output)));
                        } else if goes_on {
                            self.flights.set_waiting(index);
                            // Ahead of those that have not begun.
                            self.queues[queue].line.push_front(index);
                        } else {
                            done.push(self.finish_in_software(index));
                        }
                    }
                    Outcome::Nonsense => {
                        self.counters.bogus.add(1);
                        done.push(self.finish_in_software(index));
                    }
                }
            }
            self.move_line(queue, done);
            self.queues[queue].kick();
        }
    }

    /// Takes an operation out of its slot with its result.
    fn finish(&mut self, index: u32, result: Result<Output, AccelError>) -> Done<S, T> {
        let flight = self.flights.take(index);
        let code = flight.work.operation().code();
        self.counters.operations[code.index()].in_flight.subtract(1);
        self.complete(flight.token, flight.work, flight.total, result)
    }

    /// Lets a queue report.
    fn collect(&mut self, queue: usize) {
        let Channel { queues, flights, counters, .. } = self;
        let Queue { queue: engine, submitted, quarantined, .. } = &mut queues[queue];
        engine.poll(&mut |id, result| match flights.report(queue, id, result) {
            Report::Expected => *submitted -= 1,
            Report::Late => {
                *quarantined -= 1;
                counters.quarantined.subtract(1);
            }
            Report::Bogus => counters.bogus.add(1),
        });
    }

    /// Offers operations in line to their queue, until it takes no more.
    fn move_line(&mut self, queue: usize, done: &mut Vec<Done<S, T>>) {
        while let Some(&index) = self.queues[queue].line.front() {
            let offer = if self.queues[queue].is_usable() {
                self.offer(queue, index)
            } else {
                Offer::Unsuitable
            };
            let state = &mut self.queues[queue];
            if matches!(offer, Offer::Busy) {
                state.busy_polls = if state.submitted == 0 { state.busy_polls + 1 } else { 0 };
                if state.busy_polls <= BUSY_POLLS {
                    return;
                }
            }
            state.busy_polls = 0;
            state.line.pop_front();
            if !matches!(offer, Offer::Taken) {
                done.push(self.finish_in_software(index));
            }
        }
    }

    /// Gives up on operations that engines had for too long, and on these engines.
    pub(crate) fn check_deadlines(&mut self, now: Instant, done: &mut Vec<Done<S, T>>) {
        // A check that comes late counts once: a core that slept is no engine that hung.
        if self.next_check.is_some_and(|at| now < at) {
            return;
        }
        self.next_check = Some(now + self.timeout / CHECKS);
        let Channel { queues, flights, counters, .. } = self;
        flights.check_deadlines(CHECKS, |flight| {
            let queue = &mut queues[flight.queue];
            if !queue.is_given_up {
                tracing::error!(
                    "acceleration engine {} did not complete {} of {} bytes in time: it gets \
                     nothing more, and its operations are done in software",
                    queue.name,
                    flight.work.operation().code(),
                    flight.total,
                );
            }
            (queue.submitted, queue.quarantined) = (queue.submitted - 1, queue.quarantined + 1);
            queue.is_given_up = true;
            let operation = &counters.operations[flight.work.operation().code().index()];
            operation.in_flight.subtract(1);
            operation.failed.add(1);
            counters.timed_out.add(1);
            counters.quarantined.add(1);
            let result = Err(AccelError::TimedOut { engine: queue.name });
            done.push(Done { token: flight.token, result, work: None });
        });
    }

    /// Waits for the operations in flight, a bounded time; leaks what engines do not give back.
    pub(crate) fn shut_down(&mut self) {
        self.kick();
        let end = Instant::now() + self.timeout;
        let has = |queue: &Queue| queue.submitted > 0 && !queue.is_given_up;
        while self.queues.iter().any(has) && Instant::now() < end {
            for queue in 0..self.queues.len() {
                self.collect(queue);
            }
            std::thread::sleep(DRAIN_INTERVAL);
        }
        for (index, mut queue) in self.queues.drain(..).enumerate() {
            let stopped = queue.queue.stop();
            let mut leaked = 0;
            self.flights.abandon(index, |flight| {
                if !stopped {
                    // Never free memory under a device.
                    leaked += 1;
                    std::mem::forget(flight);
                }
            });
            if !stopped {
                tracing::error!(
                    "acceleration engine {} could not be stopped: the memory of {leaked} \
                     operations is lost",
                    queue.name,
                );
                self.counters.leaked.add(leaked);
                std::mem::forget(queue);
            }
        }
        for operation in &self.counters.operations {
            operation.in_flight.subtract(operation.in_flight.get());
        }
        self.counters.quarantined.subtract(self.counters.quarantined.get());
    }
}

/// What a report means for its operation.
enum Outcome {
    /// It is complete.
    Finished(Output),
    Failed(u32),
    /// This much more of it is done; the queue gets the next step if it goes on.
    Advanced {
        bytes: usize,
        crc32c: u32,
        goes_on: bool,
    },
    /// The report does not fit the operation.
    Nonsense,
}

/// What a report of a step of `step` bytes means; `whole` if that is the whole operation.
fn judge(operation: Operation, step: usize, whole: bool, result: RawResult) -> Outcome {
    let advanced = |crc32c| Outcome::Advanced { bytes: step, crc32c, goes_on: true };
    match (result, operation) {
        (RawResult::Failed { status }, _) => Outcome::Failed(status),
        (RawResult::Partial { bytes_completed, crc32c }, _) => {
            if bytes_completed > step {
                return Outcome::Nonsense;
            }
            // A stream cannot be resumed: software begins again.
            let bytes = if operation.is_divisible() { bytes_completed } else { 0 };
            Outcome::Advanced { bytes, crc32c, goes_on: false }
        }
        (
            RawResult::Completed(Output::Crc32c(crc)),
            Operation::Crc32c { .. } | Operation::CopyCrc32c { .. },
        ) => advanced(crc),
        (RawResult::Completed(Output::Equal(false)), Operation::Compare) => {
            Outcome::Finished(Output::Equal(false))
        }
        (RawResult::Completed(Output::Equal(true)), Operation::Compare) => advanced(0),
        (
            RawResult::Completed(Output::Nothing),
            Operation::Copy | Operation::Fill { .. } | Operation::DualCast,
        ) => advanced(0),
        (
            RawResult::Completed(Output::Written(bytes)),
            Operation::Compress { .. } | Operation::Decompress,
        ) if whole => Outcome::Finished(Output::Written(bytes)),
        (RawResult::Completed(_), _) => Outcome::Nonsense,
    }
}
