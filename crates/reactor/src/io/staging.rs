//! Memory that a core receives into, whichever of its sockets has data.
//!
//! A socket's own staging memory has left the caches by the time its turn comes again, and it cannot be
//! large, as every socket has some. A core needs few buffers at a time, so its buffers can be large. The
//! one that was used last is taken first (lab 0031).

use crate::io::RecvBuffers;
use crate::memory::buffer::IoBuf;

/// Most buffers that sockets have at a time; one more socket receives into its own staging memory. Usually
/// sockets have one for each receive that a poll finishes, and give them back before the next poll.
const LENT_MAX: usize = 16;

/// The staging memory of one core.
#[derive(Debug, Default)]
pub(crate) struct CoreStaging {
    /// The size of each: the most that a socket has asked for.
    bytes: usize,
    free: Vec<IoBuf>,
    lent: usize,
}

impl CoreStaging {
    /// A socket will want `bytes` bytes.
    pub(crate) fn expect(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.bytes = bytes;
            self.free.clear();
            self.free.reserve(LENT_MAX);
        }
    }

    /// Called before a receive of a socket that may use `bytes` bytes of this memory. Offers a buffer in
    /// place of all of the socket's own staging memory, and gives the latter; `None` if the socket keeps
    /// its own.
    #[inline]
    pub(crate) fn offer(&mut self, bytes: usize, buffers: &mut RecvBuffers) -> Option<IoBuf> {
        let whole = buffers.staging_range == (0..buffers.staging.len());
        if bytes == 0 || !whole {
            return None;
        }
        self.lend().map(|core| buffers.swap_staging(core, bytes))
    }

    /// The receive found nothing: the socket gets its own memory back.
    pub(crate) fn withdraw(&mut self, own: IoBuf, buffers: &mut RecvBuffers) {
        let len = own.len();
        self.give_back(buffers.swap_staging(own, len));
    }

    /// The last receive of the socket ended in a buffer of the core. For the next, the socket gets its
    /// own memory back.
    #[inline]
    pub(crate) fn restore(&mut self, own: IoBuf, buffers: &mut RecvBuffers) {
        let end = buffers.staging_range.end.min(own.len());
        buffers.staging_range = buffers.staging_range.start.min(end)..end;
        self.give_back(std::mem::replace(&mut buffers.staging, own));
    }

    /// A free buffer, or a new one while fewer than [`LENT_MAX`] are lent.
    fn lend(&mut self) -> Option<IoBuf> {
        let buf = match self.free.pop() {
            None if self.lent >= LENT_MAX => return None,
            None => IoBuf::heap(self.bytes),
            Some(buf) => buf,
        };
        self.lent += 1;
        Some(buf)
    }

    /// A buffer comes back; it is the next to be lent.
    fn give_back(&mut self, buf: IoBuf) {
        self.lent -= 1;
        if buf.len() == self.bytes {
            self.free.push(buf);
        }
    }

    /// A buffer went away with its socket.
    pub(crate) fn lose(&mut self) {
        self.lent -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_used_is_the_next() {
        let mut staging = CoreStaging::default();
        staging.expect(4096);
        let (first, second) = (staging.lend().unwrap(), staging.lend().unwrap());
        let address = first.as_ptr();
        staging.give_back(second);
        staging.give_back(first);
        assert_eq!(staging.lend().unwrap().as_ptr(), address);
    }

    #[test]
    fn few_are_lent_and_none_is_kept_that_is_too_small() {
        let mut staging = CoreStaging::default();
        staging.expect(4096);
        let mut lent: Vec<_> = std::iter::from_fn(|| staging.lend()).collect();
        assert_eq!(lent.len(), LENT_MAX);
        staging.lose();
        assert!(staging.lend().is_some());
        staging.expect(8192);
        staging.give_back(lent.remove(0));
        assert_eq!(staging.lend().unwrap().len(), 8192);
        staging.expect(4096);
        staging.give_back(lent.remove(0));
        assert_eq!(staging.lend().unwrap().len(), 8192, "sizes only grow");
    }
}
