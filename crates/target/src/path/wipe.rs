//! Zeroing all of a device, one request after the other, beside whatever else the core does.

use raceline_bdev::{BdevError, Done, Op};
use raceline_reactor::Context;

use crate::changes::message::{ConnKey, Reply};
use crate::changes::snapshot::DeviceId;
use crate::path::core::{Core, LocalCommand};

/// What one request zeroes: large enough that requests cost nothing, small enough that nobody
/// who shares the device waits behind it for long.
const BYTES_PER_REQUEST: u64 = 64 << 20;

/// The connection index in the tags of these requests; no connection has it.
const NO_CONNECTION: u32 = u32::MAX;

/// A device that is being zeroed.
pub(crate) struct Wipe {
    device: DeviceId,
    offset: u64,
    bytes: u64,
    /// The last request is on its way: that the zeroes are on stable media.
    flushing: bool,
    reply: Reply<Result<(), BdevError>>,
}

impl Core {
    /// Zeroes the first `bytes` of a device that no view shows, and says when that is done and on
    /// stable media.
    pub(crate) fn wipe(
        &mut self,
        cx: &mut Context<'_>,
        device: DeviceId,
        bytes: u64,
        reply: Reply<Result<(), BdevError>>,
    ) {
        let wipe = Wipe { device, offset: 0, bytes, flushing: false, reply };
        let place = match self.wipes.iter().position(Option::is_none) {
            Some(place) => place,
            None => {
                self.wipes.push(None);
                self.wipes.len() - 1
            }
        };
        self.wipes[place] = Some(wipe);
        self.wipe_on(cx, place, Ok(()));
    }

    /// Whether a finished request is one of these, and not a command's.
    pub(crate) fn is_wipe(done: &Done) -> bool {
        LocalCommand::from_tag(done.tag).key.index == NO_CONNECTION
    }

    /// Takes such a request.
    #[cold]
    pub(crate) fn wipe_done(&mut self, cx: &mut Context<'_>, done: Done) {
        let place = LocalCommand::from_tag(done.tag).slot;
        self.wipe_on(cx, place.into(), done.result);
    }

    /// The request before has ended like that: on to the next.
    fn wipe_on(&mut self, cx: &mut Context<'_>, place: usize, result: Result<(), BdevError>) {
        let Some(mut wipe) = self.wipes.get_mut(place).and_then(Option::take) else { return };
        let device = wipe.device;
        let result = if self.device(device).is_some() { result } else { Err(BdevError::Gone) };
        if result.is_err() || wipe.flushing {
            // The control thread may have given up waiting.
            let _ = wipe.reply.send((self.index, result));
            return;
        }
        let left = wipe.bytes - wipe.offset;
        let op = if left == 0 {
            wipe.flushing = true;
            Op::Flush
        } else {
            let (offset, len) = (wipe.offset, left.min(BYTES_PER_REQUEST));
            wipe.offset += len;
            Op::WriteZeroes { offset, len, deallocate: true, fua: false }
        };
        self.wipes[place] = Some(wipe);
        // There are fewer of them than control threads.
        let slot = u16::try_from(place).unwrap_or(u16::MAX);
        let key = ConnKey { index: NO_CONNECTION, generation: 0 };
        self.submit(cx, device, LocalCommand { key, slot }.tag(), op);
    }
}
