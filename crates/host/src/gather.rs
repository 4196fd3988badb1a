//! When a queue sends its commands: at once, or gathered, so that one send carries several.
//!
//! A queue that is asked to send ([`crate::QueuePair::flush`], once per turn) sends all it has. That
//! alone gathers what one turn submits, and what comes while a send is under way. The gathering
//! of i10 (Hwang et al., "TCP ≈ RDMA: CPU-efficient Remote Storage Access with i10", NSDI 2020) goes
//! further: a queue waits until it has enough commands, or bytes, or the first of them has waited
//! long enough. That trades a bounded delay for fewer system calls and packets (lab 0026). (The
//! paper calls it a delayed doorbell. In NVMe a doorbell is a register, which NVMe/TCP does not have.)
//!
//! Commands that are not worth the wait go at once, and take waiting commands with them: a command marked
//! as of high priority, data that the controller asked for, and whatever is ready on a queue with nothing
//! in flight. The last includes every command at depth 1: no completion is on its way that could add to the
//! batch.

use std::time::{Duration, Instant};

use crate::command::Hints;

/// Commands that are worth a send (i10's default).
pub const DEFAULT_REQUESTS: u16 = 16;
/// Bytes of data, to be read or written, that are worth a send (i10's default).
pub const DEFAULT_BYTES: u32 = 64 << 10;
/// How long the first of a batch waits at most (i10's default).
pub const DEFAULT_DELAY: Duration = Duration::from_micros(50);
/// Longest delay that can be asked for: more would look like a controller that hangs.
pub const MAX_DELAY: Duration = Duration::from_millis(100);

/// How a queue gathers commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct I10Config {
    /// As soon as this many commands wait, they are sent.
    pub requests: u16,
    /// As soon as the waiting commands have this many bytes of data, they are sent.
    pub bytes: u32,
    /// No command waits longer than this, up to [`MAX_DELAY`].
    pub delay: Duration,
}

impl Default for I10Config {
    fn default() -> Self {
        Self { requests: DEFAULT_REQUESTS, bytes: DEFAULT_BYTES, delay: DEFAULT_DELAY }
    }
}

/// Decides when a queue sends the commands that wait.
///
/// Every command that waits is either released or has a time at which it will be: none is forgotten. The
/// queue keeps the order; all commands that wait are released together.
#[derive(Debug)]
pub(crate) struct Gathering {
    i10: Option<I10Config>,
    /// When the first waiting command came; `None`: no command waits, or all are released.
    since: Option<Instant>,
    /// Bytes of data of the commands that wait.
    bytes: u64,
    /// The last command promised another.
    more: bool,
    /// Waiting commands leave with the next send. Until none waits any more, new commands do, too.
    released: bool,
    /// When the queue's timer expires: there is one at a time, for none can be cancelled.
    alarm: Option<Instant>,
}

/// What to do about the commands that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Send all.
    Send,
    /// Send none; a timer that is already set asks again in time.
    Wait,
    /// Send none, and set a timer for this time, to ask again.
    WaitUntil(Instant),
}

impl Gathering {
    /// For a queue on which no command waits.
    pub(crate) fn new(i10: Option<I10Config>) -> Self {
        Self { i10, since: None, bytes: 0, more: false, released: false, alarm: None }
    }

    /// Changes how it gathers; commands that wait are judged by that too.
    pub(crate) fn set(&mut self, i10: Option<I10Config>) {
        self.i10 = i10;
    }

    /// How it gathers.
    pub(crate) fn i10(&self) -> Option<I10Config> {
        self.i10
    }

    /// A command of `bytes` bytes of data waits from now on.
    #[inline]
    pub(crate) fn handle_submitted(&mut self, now: Instant, bytes: u32, hints: Hints) {
        if self.released {
            return;
        }
        self.since.get_or_insert(now);
        self.bytes += u64::from(bytes);
        self.more = hints.more;
        self.released = hints.high_priority;
    }

    /// Releases all commands that wait: those that come back to the queue have waited already.
    pub(crate) fn release(&mut self) {
        self.released = true;
    }

    /// A timer of the queue has expired.
    pub(crate) fn handle_timer(&mut self, now: Instant) {
        self.alarm = self.alarm.filter(|&alarm| now < alarm);
    }

    /// Whether `waiting` commands, with `in_flight` sent and not completed, are to be sent now.
    pub(crate) fn decide(&mut self, now: Instant, waiting: usize, in_flight: usize) -> Decision {
        let Some(since) = self.since.filter(|_| !self.released) else { return Decision::Send };
        let limits = self.i10.unwrap_or_default();
        let due = since + limits.delay.min(MAX_DELAY);
        let enough = waiting >= usize::from(limits.requests)
            || self.bytes >= u64::from(limits.bytes)
            || now >= due;
        let gathers = self.more || (self.i10.is_some() && in_flight > 0);
        if enough || !gathers {
            self.released = true;
            return Decision::Send;
        }
        if self.alarm.is_some_and(|alarm| alarm <= due) {
            return Decision::Wait;
        }
        self.alarm = Some(due);
        Decision::WaitUntil(due)
    }

    /// A send was made; `waiting` commands did not fit, and go with the next send.
    pub(crate) fn handle_sent(&mut self, waiting: usize) {
        self.since = None;
        self.bytes = 0;
        self.more = false;
        self.released = waiting > 0;
    }

    /// The timer that was set belongs to an earlier connection.
    pub(crate) fn forget_alarm(&mut self) {
        self.alarm = None;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLAIN: Hints = Hints { high_priority: false, more: false };
    const MORE: Hints = Hints { high_priority: false, more: true };
    const URGENT: Hints = Hints { high_priority: true, more: false };

    fn at(start: Instant, us: u64) -> Instant {
        start + Duration::from_micros(us)
    }

    #[test]
    fn without_i10_everything_leaves_at_once() {
        let start = Instant::now();
        let mut gathering = Gathering::new(None);
        gathering.handle_submitted(start, 4096, PLAIN);
        assert_eq!(gathering.decide(start, 1, 5), Decision::Send);
    }

    #[test]
    fn depth_one_passes() {
        let start = Instant::now();
        let mut gathering = Gathering::new(Some(I10Config::default()));
        gathering.handle_submitted(start, 4096, PLAIN);
        assert_eq!(gathering.decide(start, 1, 0), Decision::Send);
        gathering.handle_sent(0);
        gathering.handle_submitted(start, 4096, PLAIN);
        assert_eq!(gathering.decide(start, 1, 1), Decision::WaitUntil(at(start, 50)));
        assert_eq!(gathering.decide(at(start, 10), 1, 0), Decision::Send, "its pipe ran dry");
    }

    #[test]
    fn enough_commands_bytes_or_time_send() {
        let start = Instant::now();
        let mut gathering = Gathering::new(Some(I10Config::default()));
        for count in 1..=16 {
            gathering.handle_submitted(start, 512, PLAIN);
            let sends = gathering.decide(start, count, 9) == Decision::Send;
            assert_eq!(sends, count == 16, "{count} commands");
        }
        gathering.handle_sent(0);
        gathering.handle_timer(at(start, 50));
        gathering.handle_submitted(start, 60 << 10, PLAIN);
        assert_ne!(gathering.decide(start, 1, 9), Decision::Send);
        gathering.handle_submitted(start, 4 << 10, PLAIN);
        assert_eq!(gathering.decide(start, 2, 9), Decision::Send);
        gathering.handle_sent(0);
        gathering.handle_submitted(at(start, 100), 512, PLAIN);
        gathering.handle_submitted(at(start, 140), 512, PLAIN);
        assert_eq!(gathering.decide(at(start, 149), 2, 9), Decision::Wait, "one timer is enough");
        assert_eq!(
            gathering.decide(at(start, 150), 2, 9),
            Decision::Send,
            "counted from the first"
        );
    }

    #[test]
    fn a_stale_timer_is_followed_by_one_in_time() {
        let start = Instant::now();
        let mut gathering = Gathering::new(Some(I10Config::default()));
        gathering.handle_submitted(start, 512, PLAIN);
        assert_eq!(gathering.decide(start, 1, 1), Decision::WaitUntil(at(start, 50)));
        gathering.handle_submitted(at(start, 20), 512, URGENT);
        assert_eq!(gathering.decide(at(start, 20), 2, 1), Decision::Send);
        gathering.handle_sent(0);
        gathering.handle_submitted(at(start, 30), 512, PLAIN);
        assert_eq!(gathering.decide(at(start, 30), 1, 1), Decision::Wait);
        gathering.handle_timer(at(start, 50));
        assert_eq!(gathering.decide(at(start, 50), 1, 1), Decision::WaitUntil(at(start, 80)));
    }

    #[test]
    fn what_did_not_fit_does_not_wait_again() {
        let start = Instant::now();
        let mut gathering = Gathering::new(Some(I10Config::default()));
        (0..16).for_each(|_| gathering.handle_submitted(start, 512, PLAIN));
        assert_eq!(gathering.decide(start, 16, 1), Decision::Send);
        gathering.handle_sent(3);
        gathering.handle_submitted(at(start, 1), 512, PLAIN);
        assert_eq!(gathering.decide(at(start, 1), 4, 12), Decision::Send);
    }

    #[test]
    fn more_is_a_promise_with_a_limit() {
        let start = Instant::now();
        let mut gathering = Gathering::new(None);
        gathering.handle_submitted(start, 512, MORE);
        assert_eq!(gathering.decide(start, 1, 0), Decision::WaitUntil(at(start, 50)));
        gathering.handle_submitted(start, 512, PLAIN);
        assert_eq!(gathering.decide(start, 2, 0), Decision::Send);
        gathering.handle_sent(0);
        gathering.handle_submitted(at(start, 60), 512, MORE);
        assert_eq!(gathering.decide(at(start, 110), 1, 0), Decision::Send, "it was broken");
    }

    /// One thing that happens to a queue.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Submit(u32, Hints),
        Complete(usize),
        Set(Option<I10Config>),
        Pass(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let hints = (prop::bool::weighted(0.05), any::<bool>())
            .prop_map(|(high_priority, more)| Hints { high_priority, more });
        let i10 = (1u16..20, 1u32..100_000, 0u64..80).prop_map(|(requests, bytes, us)| I10Config {
            requests,
            bytes,
            delay: Duration::from_micros(us),
        });
        prop_oneof![
            6 => (0u32..20_000, hints).prop_map(|(bytes, hints)| Step::Submit(bytes, hints)),
            3 => (1usize..4).prop_map(Step::Complete),
            1 => prop::option::of(i10).prop_map(Step::Set),
            4 => (1u64..40).prop_map(Step::Pass),
        ]
    }

    proptest! {
        /// Turns only happen when something does, as on a core that sleeps.
        #[test]
        fn nothing_waits_longer_than_the_delay(
            steps in prop::collection::vec(step(), 1..80),
            room in 1usize..20,
        ) {
            let start = Instant::now();
            let mut now = start;
            let mut gathering = Gathering::new(Some(I10Config::default()));
            let mut longest = DEFAULT_DELAY;
            let (mut waiting, mut in_flight) = (Vec::<Instant>::new(), 0usize);
            let mut timers = Vec::<Instant>::new();
            for step in steps {
                let mut turns = vec![now];
                match step {
                    Step::Submit(bytes, hints) => {
                        waiting.push(now);
                        gathering.handle_submitted(now, bytes, hints);
                    }
                    Step::Complete(count) => in_flight -= count.min(in_flight),
                    Step::Set(i10) => {
                        // Those that wait are judged anew, with timers of the longer one.
                        longest = longest.max(i10.unwrap_or_default().delay);
                        gathering.set(i10);
                    }
                    Step::Pass(us) => {
                        let end = at(now, us);
                        turns = Vec::new();
                        let mut due = timers.clone();
                        while let Some(&first) = due.iter().filter(|&&timer| timer <= end).min() {
                            due.retain(|&timer| timer != first);
                            timers.retain(|&timer| timer != first);
                            now = now.max(first);
                            gathering.handle_timer(now);
                            turn(&mut gathering, now, (&mut waiting, &mut in_flight), &mut timers, room);
                            due = timers.clone();
                        }
                        now = end;
                    }
                }
                for now in turns {
                    turn(&mut gathering, now, (&mut waiting, &mut in_flight), &mut timers, room);
                }
                if let Some(&first) = waiting.first() {
                    prop_assert!(now < first + longest, "waits since {:?}", now - first);
                }
                prop_assert!(timers.len() <= 4, "{} timers", timers.len());
            }
        }
    }

    /// What a queue's flush does, with sends that take no time.
    fn turn(
        gathering: &mut Gathering,
        now: Instant,
        (waiting, in_flight): (&mut Vec<Instant>, &mut usize),
        timers: &mut Vec<Instant>,
        room: usize,
    ) {
        while !waiting.is_empty() {
            match gathering.decide(now, waiting.len(), *in_flight) {
                Decision::Send => {
                    let count = room.min(waiting.len());
                    waiting.drain(..count);
                    *in_flight += count;
                    gathering.handle_sent(waiting.len());
                }
                Decision::Wait => return,
                Decision::WaitUntil(until) => return timers.push(until),
            }
        }
    }
}
