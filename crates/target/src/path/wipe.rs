//! Zeroing a whole device, one request after the other, beside the core's other work.

use raceline_bdev::{BdevError, Op};

use crate::changes::message::Reply;
use crate::changes::snapshot::DeviceId;

/// What one request zeroes: large enough that the cost of requests does not count, small enough that
/// other users of the device do not wait behind it for long.
const BYTES_PER_REQUEST: u64 = 64 << 20;

/// A device that is being zeroed.
pub(crate) struct Wipe {
    device: DeviceId,
    offset: u64,
    bytes: u64,
    /// The last request is in flight: a flush, which puts the zeroes on stable media.
    flushing: bool,
    reply: Reply<Result<(), BdevError>>,
}

/// The devices of a core that are being zeroed.
#[derive(Default)]
pub(crate) struct Wipes {
    wipes: Vec<Option<Wipe>>,
}

impl Wipes {
    /// Begins to zero the first `bytes` of a device that no snapshot shows; says when that is done and on
    /// stable media. Gives the number under which [`Self::go_on`] knows it.
    pub(crate) fn begin(
        &mut self,
        device: DeviceId,
        bytes: u64,
        reply: Reply<Result<(), BdevError>>,
    ) -> u16 {
        let wipe = Wipe { device, offset: 0, bytes, flushing: false, reply };
        let place = match self.wipes.iter().position(Option::is_none) {
            Some(place) => place,
            None => {
                self.wipes.push(None);
                self.wipes.len() - 1
            }
        };
        self.wipes[place] = Some(wipe);
        // There are fewer zeroings than control threads.
        u16::try_from(place).unwrap_or(u16::MAX)
    }

    /// The device with this number, if one is being zeroed.
    pub(crate) fn device(&self, number: u16) -> Option<DeviceId> {
        let wipe = self.wipes.get(usize::from(number))?.as_ref()?;
        Some(wipe.device)
    }

    /// The last request has ended with `result`: gives the next one, unless all is over. `core` is the core
    /// that reports it.
    pub(crate) fn go_on(
        &mut self,
        number: u16,
        core: usize,
        result: Result<(), BdevError>,
    ) -> Option<Op> {
        let place = self.wipes.get_mut(usize::from(number))?;
        let wipe = place.as_mut()?;
        if result.is_err() || wipe.flushing {
            // The control thread may have given up waiting.
            let _ = wipe.reply.send((core, result));
            *place = None;
            return None;
        }
        let left = wipe.bytes - wipe.offset;
        if left == 0 {
            wipe.flushing = true;
            return Some(Op::Flush);
        }
        let (offset, len) = (wipe.offset, left.min(BYTES_PER_REQUEST));
        wipe.offset += len;
        Some(Op::WriteZeroes { offset, len, deallocate: true, fua: false })
    }
}
