//! Memory that a core receives into, whichever of its sockets has data.
//!
//! A socket's own staging memory has left the caches by the time its turn comes again, and what all
//! sockets have cannot be large. A core needs few buffers at a time, so these can be, and the one
//! that was used last is taken first (lab 0031).

use crate::io::RecvBuffers;
use crate::memory::buffer::IoBuf;

/// Most buffers that sockets have at a time; one more receives into its own staging memory. Usually
/// they have as many as one poll finishes receives, and give them back before the next.
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
    /// A socket will want so many bytes.
    pub(crate) fn expect(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.bytes = bytes;
            self.free.clear();
            self.free.reserve(LENT_MAX);
        }
    }

    /// Before a receive of a socket that may use so many bytes of it: offers a buffer of it in place of
    /// all of the socket's own staging memory, which is given; `None` if it stays as it is.
    #[inline]
    pub(crate) fn offer(&mut self, bytes: usize, buffers: &mut RecvBuffers) -> Option<IoBuf> {
        let whole = buffers.staging_range == (0..buffers.staging.len());
        if bytes == 0 || !whole {
            return None;
        }
        self.lend().map(|core| buffers.swap_staging(core, bytes))
    }

    /// That receive found nothing: the socket has its own memory back.
    pub(crate) fn withdraw(&mut self, own: IoBuf, buffers: &mut RecvBuffers) {
        let len = own.len();
        self.give_back(buffers.swap_staging(own, len));
    }

    /// The next receive of a socket whose last one ended here: it has its own memory back, too.
    #[inline]
    pub(crate) fn restore(&mut self, own: IoBuf, buffers: &mut RecvBuffers) {
        let end = buffers.staging_range.end.min(own.len());
        buffers.staging_range = buffers.staging_range.start.min(end)..end;
        self.give_back(std::mem::replace(&mut buffers.staging, own));
    }

    /// A buffer, if not too many are lent.
    fn lend(&mut self) -> Option<IoBuf> {
        let buf = match self.free.pop() {
            None if self.lent >= LENT_MAX => return None,
            None => IoBuf::heap(self.bytes),
            Some(buf) => buf,
        };
        self.lent += 1;
        Some(buf)
    }

    /// A buffer comes back; the next to be lent.
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
