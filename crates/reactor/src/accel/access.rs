//! Lets the acceleration framework read and write I/O buffers, payloads and regions.

#![allow(unsafe_code)]

use raceline_accel::{Piece, PieceMut, Source, Target, Upcoming};

use crate::memory::buffer::{IoBuf, SharedBuf};
use crate::send::Payload;

// SAFETY: a buffer's memory stays where it is and its owner's until it is dropped; it is
// initialised, and `len` <= capacity.
unsafe impl Source for IoBuf {
    #[inline]
    fn pieces(&self, list: &mut Vec<Piece>) {
        list.extend(self.one_piece());
    }

    #[inline]
    fn one_piece(&self) -> Option<Piece> {
        Some(Piece::new(self.as_io_ptr(), self.len()))
    }
}

// SAFETY: as above, and an `IoBuf` is the only owner.
unsafe impl Target for IoBuf {
    #[inline]
    fn pieces(&mut self, list: &mut Vec<PieceMut>) {
        list.extend(self.one_piece());
    }

    #[inline]
    fn one_piece(&mut self) -> Option<PieceMut> {
        Some(PieceMut::new(self.as_io_ptr(), self.len()))
    }
}

// SAFETY: as for `IoBuf`; all owners only read.
unsafe impl Source for SharedBuf {
    #[inline]
    fn pieces(&self, list: &mut Vec<Piece>) {
        list.extend(self.one_piece());
    }

    #[inline]
    fn one_piece(&self) -> Option<Piece> {
        Some(Piece::new(self.as_io_ptr(), self.len()))
    }
}

// SAFETY: buffers as above; a region's mapping lives as long as a handle to it, and is named as
// memory that changes; zeroes are static. Ranges are checked before an address is given.
unsafe impl Source for Payload {
    /// # Panics
    /// If its range is not inside its buffer or region, as [`crate::SendBatch::push_payload`].
    fn pieces(&self, list: &mut Vec<Piece>) {
        if let Some(piece) = self.one_piece() {
            list.push(piece);
            return;
        }
        let mut skip = 0;
        while skip < self.len() {
            let (start, len) = self.segment(skip);
            list.push(Piece::new(start, len));
            skip += len;
        }
    }

    /// # Panics
    /// As above.
    #[inline]
    fn one_piece(&self) -> Option<Piece> {
        self.validate();
        match self {
            Payload::Zeroes(_) => None,
            Payload::Region(..) => {
                let (start, len) = self.segment(0);
                Some(Piece::changing(start, len))
            }
            Payload::Buf(..) | Payload::Shared(..) => {
                let (start, len) = self.segment(0);
                Some(Piece::new(start, len))
            }
        }
    }
}

impl Payload {
    /// Its memory, if it may be in no cache yet.
    #[inline]
    #[must_use]
    pub fn upcoming(&self) -> Option<Upcoming> {
        match self {
            Payload::Region(region, range) => {
                let len = self.len();
                Some(Upcoming::at(region.range(range.start, len)))
            }
            Payload::Buf(..) | Payload::Shared(..) | Payload::Zeroes(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use raceline_accel::{ChannelConfig, Framework, Output, Part, Submitted, Work, crc32c};

    use super::*;
    use crate::memory::buffer::{HugePages, Region, RegionHandle};

    #[test]
    fn every_payload_is_copied_with_its_digest() {
        let region = Arc::new(Region::new(8192, HugePages::None).unwrap());
        region.copy_in(4000, &[3; 200]);
        let payloads = [
            Payload::Buf(IoBuf::from_slice(b"payload"), 1..4),
            Payload::Shared(IoBuf::from_slice(b"0123456789").share(), 5..10),
            Payload::Region(RegionHandle::new(region), 3999..4201),
            Payload::Zeroes(200_000),
            Payload::Zeroes(0),
        ];
        let framework = Framework::software();
        let mut channel =
            framework.open_channel::<Payload, IoBuf>(&ChannelConfig::default()).unwrap();
        for payload in payloads {
            let mut expected = vec![1; payload.len()];
            payload.copy_to(&mut expected);
            let target = Part::range(IoBuf::heap(expected.len() + 5), 5..expected.len() + 5);
            let work = Work::copy_crc32c(0, payload, target);
            let Submitted::Done(done) = channel.submit(1, work) else { panic!("not at once") };
            assert_eq!(done.result, Ok(Output::Crc32c(crc32c(&expected))));
            let (_, [target, _]) = done.work.unwrap().into_memory();
            assert_eq!(target.unwrap()[5..], expected);
        }
    }

    #[test]
    #[should_panic(expected = "payload range")]
    fn ranges_of_payloads_are_checked() {
        let framework = Framework::software();
        let mut channel = framework.open_channel::<Payload, ()>(&ChannelConfig::default()).unwrap();
        let _ = channel.submit(0, Work::crc32c(0, Payload::Buf(IoBuf::heap(4), 0..5)));
    }
}
