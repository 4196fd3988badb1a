//! Operations on data, done by the CPU at once or by an offload engine later: the core's way to
//! the acceleration framework.

use std::time::Instant;

use raceline_accel::{
    AccelError, Channel, ChannelConfig, Copier, Framework, OpCode, Submitted, Upcoming,
};

use crate::io::slab::Slab;
use crate::io::{Completion, Outcome, Token};
use crate::memory::buffer::IoBuf;
use crate::send::Payload;

/// An operation with its operands.
pub type Work = raceline_accel::Work<Payload, IoBuf>;

/// An operation that is complete; its operands come back with it.
pub type WorkDone = raceline_accel::Done<Payload, IoBuf>;

/// What became of an operation that was started.
#[derive(Debug)]
#[must_use]
#[allow(clippy::large_enum_variant, reason = "a box would be an allocation per operation")]
pub enum Accelerated {
    /// The CPU has done it.
    Now(WorkDone),
    /// An engine has it: [`Outcome::Accelerated`] will come.
    Later,
}

/// Names an operation that an engine has finished, until [`Accelerator::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FinishedId(u32);

/// One core's channel to all engines.
#[derive(Debug)]
pub struct Accelerator {
    channel: Channel<Payload, IoBuf>,
    finished: Slab<WorkDone>,
    /// Collected and not yet announced.
    collected: Vec<WorkDone>,
}

impl Default for Accelerator {
    /// The CPU alone.
    fn default() -> Accelerator {
        let channel = Framework::software()
            .open_channel(&ChannelConfig::default())
            .unwrap_or_else(|error| unreachable!("the software engine is always there: {error}"));
        Accelerator::new(channel)
    }
}

impl Accelerator {
    /// Over a channel, which stays on this thread.
    #[must_use]
    pub fn new(channel: Channel<Payload, IoBuf>) -> Accelerator {
        let collected = Vec::with_capacity(COLLECTED_CAPACITY);
        Accelerator { channel, finished: Slab::new(), collected }
    }

    /// True if operations of this kind are done when they are started.
    #[inline]
    #[must_use]
    pub fn is_immediate(&self, code: OpCode) -> bool {
        self.channel.is_immediate(code)
    }

    /// The CRC32C of bytes that need no owner, because it is computed now, by the CPU.
    ///
    /// # Errors
    /// An error only if error injection asks for one.
    #[inline]
    pub fn crc32c_now(&mut self, bytes: &[u8]) -> Result<u32, AccelError> {
        self.channel.crc32c_now(bytes)
    }

    /// Copies a payload now, on the CPU, and gives the CRC32C of the copy. The operands are not moved
    /// about: that is a cost of operations that may wait. `upcoming` is what will be copied next.
    ///
    /// # Errors
    /// If the lengths differ, or if error injection asks for an error.
    #[inline]
    pub fn copy_crc32c_now(
        &mut self,
        payload: &Payload,
        copy: &mut IoBuf,
        upcoming: Option<Upcoming>,
    ) -> Result<u32, AccelError> {
        self.channel.copy_crc32c_now(payload, copy, upcoming)
    }

    /// True if a batch may copy and digest on the way ([`Channel::copier`]).
    #[inline]
    #[must_use]
    pub fn is_copier(&self) -> bool {
        self.channel.copier().is_some()
    }

    /// How a batch copies and digests `bytes` bytes on their way. They are counted now.
    #[inline]
    pub fn copier(&mut self, bytes: usize) -> Option<Copier> {
        let copier = self.channel.copier()?;
        self.channel.count_copied(bytes);
        Some(copier)
    }

    /// As [`Self::copy_crc32c_now`], for bytes that nothing else writes.
    ///
    /// # Errors
    /// As [`Self::copy_crc32c_now`].
    #[inline]
    pub fn copy_bytes_crc32c_now(&mut self, from: &[u8], to: &mut [u8]) -> Result<u32, AccelError> {
        self.channel.copy_bytes_crc32c_now(from, to, None)
    }

    /// Starts an operation. If its engine has no room, the CPU does it now: a core that has commands to
    /// answer does not wait for a busy device.
    #[inline]
    pub fn start(&mut self, work: Work, token: Token) -> Accelerated {
        let token = pack(token);
        match self.channel.submit(token, work) {
            Submitted::Done(done) => Accelerated::Now(done),
            Submitted::Pending => Accelerated::Later,
            Submitted::Full(work) => Accelerated::Now(self.channel.submit_now(token, work)),
        }
    }

    /// Whether engines have operations. Only a poll finds out that one has ended.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.channel.is_busy()
    }

    /// Takes a finished operation, once.
    pub fn take(&mut self, finished: FinishedId) -> Option<WorkDone> {
        self.finished.remove(finished.0)
    }

    /// Keeps an operation that has finished elsewhere, for [`Self::take`].
    pub(crate) fn keep(&mut self, done: WorkDone) -> Option<FinishedId> {
        // There are never more of them than can be in flight, so there is room.
        self.finished.insert(done).ok().map(FinishedId)
    }

    /// Lets engines begin what was started, and announces what they have finished. True while they have
    /// operations, whose end only a poll finds. Memory of operations that were given up comes back as
    /// well, but no core stays awake for it.
    #[inline]
    pub(crate) fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) -> bool {
        if !self.channel.is_busy() {
            return false;
        }
        self.poll_engines(now, completions);
        self.channel.in_flight() > 0
    }

    #[cold]
    fn poll_engines(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        self.channel.kick();
        self.channel.poll(now, &mut self.collected);
        let mut collected = std::mem::take(&mut self.collected);
        for done in collected.drain(..) {
            let token = unpack(done.token);
            if let Some(finished) = self.keep(done) {
                completions.push(Completion { token, outcome: Outcome::Accelerated(finished) });
            }
        }
        self.collected = collected;
    }
}

/// Room for completions of one poll made ready in advance.
const COLLECTED_CAPACITY: usize = 256;

fn pack(token: Token) -> u64 {
    let Token { owner, generation, index } = token;
    u64::from(owner) << 48 | u64::from(generation) << 32 | u64::from(index)
}

fn unpack(packed: u64) -> Token {
    let [i0, i1, i2, i3, g0, g1, o0, o1] = packed.to_le_bytes();
    Token {
        owner: u16::from_le_bytes([o0, o1]),
        generation: u16::from_le_bytes([g0, g1]),
        index: u32::from_le_bytes([i0, i1, i2, i3]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_the_way_through_an_engine() {
        let token = Token { owner: 0x0102, generation: 0xa3a4, index: 0x0506_0708 };
        assert_eq!(unpack(pack(token)), token);
    }

    #[test]
    fn the_cpu_is_done_at_once() {
        let mut accelerator = Accelerator::default();
        let token = Token { owner: 0, generation: 1, index: 2 };
        let payload = Payload::Buf(IoBuf::from_slice(b"123456789"), 0..9);
        let Accelerated::Now(done) = accelerator.start(Work::crc32c(0, payload), token) else {
            panic!("not at once");
        };
        assert_eq!(done.result, Ok(raceline_accel::Output::Crc32c(0xE306_9283)));
        assert!(!accelerator.poll(Instant::now(), &mut Vec::new()));
    }
}
