//! Runs random operations through a channel and checks each of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_accel::{
    AccelError, Channel, ChannelConfig, Done, Engine, Framework, OpCode, Submitted,
};

use super::memory::Counted;
use super::model::{Expected, Sizes, check, random_work};
use super::random::Random;

/// More polls than any operation takes that completes at all.
const MOST_POLLS: usize = 20_000;

/// A channel of counted memory.
pub(crate) type TestChannel = Channel<Counted, Counted>;

/// A table in which one engine has every operation that it can do.
pub(crate) fn framework_of(engine: Arc<dyn Engine>) -> Framework {
    let (name, operations) = (engine.name(), engine.operations());
    let framework = Framework::new(vec![engine]).unwrap();
    operations.iter().for_each(|code| framework.assign(code, name).unwrap());
    framework
}

/// A channel with `slots` slots.
pub(crate) fn channel_of(framework: &Framework, slots: usize, timeout: Duration) -> TestChannel {
    framework.open_channel(&ChannelConfig { slots, timeout, cpu: None }).unwrap()
}

/// Operations in flight and what they must give, and a clock that the driver moves.
pub(crate) struct Driver {
    pub(crate) channel: TestChannel,
    pub(crate) alive: Arc<()>,
    pub(crate) now: Instant,
    pub(crate) random: Random,
    pub(crate) expected: HashMap<u64, Expected>,
    pub(crate) allow: fn(AccelError) -> bool,
    next_token: u64,
    done: Vec<Done<Counted, Counted>>,
}

impl Driver {
    /// A driver that allows these errors.
    pub(crate) fn new(channel: TestChannel, seed: u64, allow: fn(AccelError) -> bool) -> Driver {
        Driver {
            channel,
            alive: Arc::new(()),
            now: Instant::now(),
            random: Random(seed),
            expected: HashMap::new(),
            allow,
            next_token: 0,
            done: Vec::new(),
        }
    }

    /// Submits random operations, polling now and then.
    pub(crate) fn submit(&mut self, count: usize, sizes: Sizes) -> Result<(), String> {
        for _ in 0..count {
            let (mut work, expected) = random_work(&mut self.random, sizes, &self.alive);
            let token = self.next_token;
            self.next_token += 1;
            let mut polls = 0;
            let now = loop {
                match self.channel.submit(token, work) {
                    Submitted::Done(done) => break Some(done),
                    Submitted::Pending => break None,
                    Submitted::Full(back) => {
                        work = back;
                        self.poll()?;
                        polls += 1;
                        if polls > MOST_POLLS {
                            return Err("a channel stays full".to_owned());
                        }
                    }
                }
            };
            self.expected.insert(token, expected);
            if let Some(done) = now {
                self.finish(done)?;
            }
            if self.random.one_in(3) {
                self.poll()?;
            }
        }
        Ok(())
    }

    /// One poll, a millisecond after the last.
    pub(crate) fn poll(&mut self) -> Result<(), String> {
        self.now += Duration::from_millis(1);
        self.channel.kick();
        self.channel.poll(self.now, &mut self.done);
        for done in std::mem::take(&mut self.done) {
            self.finish(done)?;
        }
        if self.channel.in_flight() != self.expected.len() {
            let (flights, open) = (self.channel.in_flight(), self.expected.len());
            return Err(format!("{flights} operations in flight, but {open} are open"));
        }
        Ok(())
    }

    /// Polls until everything is complete.
    pub(crate) fn drain(&mut self) -> Result<(), String> {
        self.poll_until(|driver| driver.expected.is_empty())
    }

    /// Polls until `is_so` says so.
    pub(crate) fn poll_until(&mut self, is_so: impl Fn(&Driver) -> bool) -> Result<(), String> {
        for _ in 0..MOST_POLLS {
            if is_so(self) {
                return Ok(());
            }
            self.poll()?;
        }
        let (open, alive) = (self.expected.len(), self.alive());
        Err(format!("{open} operations open and {alive} operands left after {MOST_POLLS} polls"))
    }

    /// Owners of memory besides the driver.
    pub(crate) fn alive(&self) -> usize {
        Arc::strong_count(&self.alive) - 1
    }

    fn finish(&mut self, done: Done<Counted, Counted>) -> Result<(), String> {
        let Some(expected) = self.expected.remove(&done.token) else {
            return Err(format!("{} completed twice, or was never submitted", done.token));
        };
        check(&done, &expected, self.allow)
    }
}

/// Sums of all operations' counts: executed, failed, fallbacks, in flight.
pub(crate) fn totals(framework: &Framework) -> [u64; 4] {
    let statistics = framework.statistics();
    let mut sums = [0; 4];
    for code in OpCode::ALL {
        let of = statistics.of(code);
        for (sum, count) in
            sums.iter_mut().zip([of.executed, of.failed, of.fallbacks, of.in_flight])
        {
            *sum += count;
        }
    }
    sums
}
