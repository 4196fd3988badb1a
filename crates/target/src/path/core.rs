//! What all connections of one core share: devices, the snapshot of the target, wait queues.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_accel::Upcoming;
use raceline_bdev::{BdevError, BdevInfo, Channel, Done, Meter, Op, OpKind, Request, SharedBdev};
use raceline_reactor::{Completion, Context, Payload};

use crate::changes::config::TargetError;
use crate::changes::message::{Message, Reply};
use crate::changes::snapshot::{DeviceId, Snapshot};
use crate::path::buffers::BufferLines;
use crate::path::choice::Takes;
use crate::path::range_lock::{Fences, LockId, Order, Warden};
use crate::path::shares::{ShareId, Shares};
use crate::path::slots::Measured;
use crate::path::wipe::Wipes;
use crate::records::names::{CommandPlace, ConnKey, LocalCommand, Place, SlotKey, Tag};
use crate::records::registry::Shared;

/// Whether a device answers reads without a request. Known since its channel was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AtHand {
    /// It needs a request.
    Never,
    /// It always has its data at hand, and does not count its reads.
    Uncounted,
    /// It always has its data at hand, and counts its reads. While its meter takes times, it needs a request.
    Counted,
}

/// One core's way to one device.
pub(crate) struct Device {
    pub(crate) info: BdevInfo,
    channel: Box<dyn Channel>,
    /// [`Channel::writes_now`].
    writes_now: bool,
    /// [`Channel::reads_now`].
    at_hand: AtHand,
    /// Counts for the device, if the device wants that.
    pub(crate) meter: Option<Meter>,
    /// Requests in flight.
    in_flight: usize,
    /// The channel may have gathered something to send.
    unflushed: bool,
    fences: Fences<LocalCommand>,
    /// On the device's warden core: orders its range locks.
    warden: Option<Warden<CommandPlace>>,
    /// The control thread waits for the device to be quiet and closed.
    closing: Option<Reply<()>>,
}

impl Device {
    /// The channel has finished this number of requests, which were in flight there.
    fn finished(&mut self, requests: usize) {
        self.in_flight = self.in_flight.checked_sub(requests).unwrap_or_else(|| {
            let device = &self.info.name;
            tracing::error!(
                device,
                "it finished more requests than it had; those beyond are ignored"
            );
            0
        });
        if let Some(meter) = &self.meter {
            meter.set_in_flight(self.in_flight);
        }
    }
}

/// Most time between two moments at which the timers of silent sessions expire.
const TOGETHER_MAX: Duration = Duration::from_millis(250);

/// What the iSCSI connections of a core share.
#[derive(Default)]
pub(crate) struct IscsiCore {
    /// Connections with something to send.
    pub(crate) dirty: Vec<ConnKey>,
    /// Connections that have had their share of this pass, each once.
    pub(crate) deferred: Vec<ConnKey>,
    /// Commands of many steps that found no share of the turn, and go on in the next pass.
    pub(crate) resting: Vec<(ConnKey, SlotKey)>,
    /// The timer of the next pass is set.
    pub(crate) next_pass: bool,
    /// A command that was aborted has come back from its device.
    pub(crate) ended: bool,
    /// When the first connection came.
    pub(crate) epoch: Option<Instant>,
}

impl IscsiCore {
    /// Whether nothing is to be done at the end of the turn.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.dirty.is_empty() && self.deferred.is_empty() && self.resting.is_empty() && !self.ended
    }

    /// The first moment from `at` on at which the timers of silent sessions expire, which wait for `span`. They expire
    /// together: a core that sleeps wakes for many sessions at a time, and not for each.
    pub(crate) fn together(&self, at: Instant, span: Duration) -> Instant {
        let step = (span / 16).min(TOGETHER_MAX).as_nanos();
        let Some(epoch) = self.epoch.filter(|_| step > 0) else { return at };
        let past = at.saturating_duration_since(epoch).as_nanos() % step;
        let missing = if past == 0 { 0 } else { step - past };
        at + Duration::from_nanos(u64::try_from(missing).unwrap_or_default())
    }
}

/// What all connections of one core share.
pub(crate) struct Core {
    pub(crate) index: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) snapshot: Arc<Snapshot>,
    /// At least one device here counts, or did: requests are to be measured.
    pub(crate) meters: bool,
    /// By [`DeviceId`].
    devices: Vec<Option<Device>>,
    /// Devices with events in this turn: a core may have thousands of others.
    unflushed: Vec<DeviceId>,
    /// At least one host has asked for data digests.
    pub(crate) digests: bool,
    /// The data of the finished request after the current one.
    pub(crate) upcoming: Option<Upcoming>,
    /// Finished device requests that are not handled yet.
    pub(crate) done: Vec<Done>,
    /// Commands that wait for an I/O buffer.
    pub(crate) buffer_lines: BufferLines<LocalCommand>,
    /// Connections with something to send.
    pub(crate) dirty: Vec<ConnKey>,
    /// Connections that have had their share of this pass, each once.
    pub(crate) deferred: Vec<ConnKey>,
    /// The parts of hosts, while any host has a weight.
    pub(crate) shares: Shares,
    /// Commands that a lowered fence releases.
    pub(crate) released: Vec<LocalCommand>,
    /// What iSCSI connections share besides.
    pub(crate) iscsi: IscsiCore,
    /// Devices that are being zeroed, by the number in the tags of the requests.
    wipes: Wipes,
}

impl Core {
    pub(crate) fn new(index: usize, shared: Arc<Shared>) -> Self {
        Self {
            index,
            shared,
            snapshot: Arc::default(),
            meters: false,
            devices: Vec::new(),
            unflushed: Vec::new(),
            digests: false,
            upcoming: None,
            done: Vec::new(),
            buffer_lines: BufferLines::default(),
            dirty: Vec::new(),
            deferred: Vec::new(),
            shares: Shares::default(),
            released: Vec::new(),
            iscsi: IscsiCore::default(),
            wipes: Wipes::default(),
        }
    }

    /// A connection has changed from one part of the core to another, or to none: commands of its that wait for a buffer
    /// go with it.
    pub(crate) fn change_share(
        &mut self,
        key: ConnKey,
        (before, after): (Option<ShareId>, Option<ShareId>),
    ) {
        if before != after {
            self.buffer_lines.regroup(|waiter| waiter.key == key, after);
        }
        if let Some(share) = before {
            self.leave_share(share);
        }
    }

    /// A connection has left a part of the core.
    pub(crate) fn leave_share(&mut self, share: ShareId) {
        if self.shares.leave(share) {
            self.buffer_lines.forget(share);
        }
    }

    pub(crate) fn place(&self, key: ConnKey) -> Place {
        Place { core: self.index, key }
    }

    pub(crate) fn send(&self, core: usize, message: Message) {
        self.shared.send(core, message);
    }

    #[inline]
    pub(crate) fn device(&mut self, id: DeviceId) -> Option<&mut Device> {
        self.devices.get_mut(usize::from(id.0))?.as_mut()
    }

    pub(crate) fn open_device(
        &mut self,
        cx: &mut Context<'_>,
        id: DeviceId,
        bdev: &SharedBdev,
    ) -> Result<(), TargetError> {
        let info = bdev.info();
        let channel = bdev
            .open_channel(cx, id.0)
            .map_err(|error| TargetError::Device { device: info.name.clone(), error })?;
        let index = usize::from(id.0);
        if self.devices.len() <= index {
            self.devices.resize_with(index + 1, || None);
        }
        let cores = self.shared.cores();
        let warden = (id.warden(cores) == self.index).then(|| Warden::new(cores));
        let fences = Fences::default();
        let meter = bdev.stats().map(|stats| stats.meter());
        self.meters |= meter.is_some();
        let at_hand = match (channel.reads_now(), &meter) {
            (false, _) => AtHand::Never,
            (true, None) => AtHand::Uncounted,
            (true, Some(_)) => AtHand::Counted,
        };
        self.devices[index] = Some(Device {
            info,
            writes_now: channel.writes_now(),
            at_hand,
            channel,
            meter,
            in_flight: 0,
            unflushed: false,
            fences,
            warden,
            closing: None,
        });
        Ok(())
    }

    /// Closes a device as soon as nothing is in flight there.
    pub(crate) fn close_device(&mut self, cx: &mut Context<'_>, id: DeviceId, reply: Reply<()>) {
        match self.device(id) {
            Some(device) => device.closing = Some(reply),
            None => drop(reply.send((self.index, ()))),
        }
        self.close_if_quiet(cx, id);
    }

    /// Closes every device that still is open; the core ends.
    pub(crate) fn close_devices(&mut self, cx: &mut Context<'_>) {
        for mut device in self.devices.iter_mut().filter_map(Option::take) {
            device.channel.close(cx);
        }
    }

    fn close_if_quiet(&mut self, cx: &mut Context<'_>, id: DeviceId) {
        let Some(entry) = self.devices.get_mut(usize::from(id.0)) else { return };
        let quiet = |device: &mut Device| device.closing.is_some() && device.in_flight == 0;
        if let Some(mut device) = entry.take_if(quiet) {
            device.channel.close(cx);
            self.released.append(&mut device.fences.lower_all());
            for who in device.warden.take().into_iter().flat_map(Warden::abandon) {
                self.send(who.conn.core, Message::LockGranted { to: who, device: id, lock: None });
            }
            if let Some(reply) = device.closing {
                // The control thread may have given up waiting.
                let _ = reply.send((self.index, ()));
            }
        }
    }

    /// Starts a device request; its result appears in `done`, maybe at once.
    #[inline(always)]
    pub(crate) fn submit(&mut self, cx: &mut Context<'_>, id: DeviceId, tag: Tag, op: Op) {
        let entry = self.devices.get_mut(usize::from(id.0)).and_then(Option::as_mut);
        let device = entry.expect("snapshots show only devices that are open");
        let before = self.done.len();
        device.in_flight += 1;
        device.channel.submit(cx, Request { tag: tag.to_bits(), op }, &mut self.done);
        device.finished(self.done.len() - before);
        if !std::mem::replace(&mut device.unflushed, true) {
            self.unflushed.push(id);
        }
    }

    /// Notes when a request starts, for a device that counts.
    #[inline(never)]
    pub(crate) fn measure(
        &mut self,
        id: DeviceId,
        now: Instant,
        kind: OpKind,
        bytes: u64,
    ) -> Option<Measured> {
        let meter = self.device(id)?.meter.as_mut()?;
        Some(Measured { kind, bytes, started: meter.start(now) })
    }

    /// Counts what [`Self::measure`] has noted.
    pub(crate) fn count(
        &mut self,
        id: DeviceId,
        measured: Measured,
        now: Instant,
        result: Result<(), BdevError>,
    ) {
        let Measured { kind, bytes, started } = measured;
        if let Some(meter) = self.device(id).and_then(|device| device.meter.as_ref()) {
            meter.finish(kind, bytes, (started, now), result);
        }
    }

    /// Whether a device takes writes from any memory.
    pub(crate) fn takes(&mut self, id: DeviceId) -> Takes {
        match self.device(id) {
            Some(device) if device.writes_now && device.fences.is_empty() => Takes::Now,
            Some(device) if device.writes_now => Takes::Later,
            _ => Takes::Never,
        }
    }

    /// Whether a device takes writes from any memory, and nothing holds them back there.
    #[inline]
    pub(crate) fn writes_now(&mut self, id: DeviceId) -> bool {
        self.device(id).is_some_and(|device| device.writes_now && device.fences.is_empty())
    }

    /// Tells a device in memory which bytes will probably be read soon.
    #[inline]
    pub(crate) fn prefetch(&mut self, id: DeviceId, offset: u64, len: usize) {
        if let Some(device) = self.device(id).filter(|device| device.info.copies_data) {
            device.channel.prefetch(offset, len);
        }
    }

    /// Reads from a device that has data at hand, and counts the read. `None` while the meter takes times:
    /// then the read needs a request.
    #[inline(always)]
    pub(crate) fn read_now(&mut self, id: DeviceId, offset: u64, len: usize) -> Option<Payload> {
        let device = self.device(id)?;
        if device.at_hand == AtHand::Uncounted {
            return device.channel.read_now(offset, len);
        }
        let meter = device.meter.as_mut().filter(|_| device.at_hand == AtHand::Counted)?;
        if meter.is_precise() {
            return None;
        }
        let payload = device.channel.read_now(offset, len)?;
        meter.tick(OpKind::Read, len as u64);
        Some(payload)
    }

    /// Whether a device takes writes from any memory, nothing holds them back, and its meter takes no times.
    #[inline(always)]
    pub(crate) fn writes_at_once(&mut self, id: DeviceId) -> bool {
        let Some(device) = self.device(id) else { return false };
        let mut is_timed = || device.meter.as_mut().is_some_and(Meter::is_precise);
        device.writes_now && device.fences.is_empty() && !is_timed()
    }

    /// [`Self::write_now`] for [`Self::writes_at_once`]: also counts the write.
    #[inline(always)]
    pub(crate) fn write_at_once(
        &mut self,
        id: DeviceId,
        offset: u64,
        data: &[u8],
    ) -> Result<(), BdevError> {
        let device = self.device(id).ok_or(BdevError::Gone)?;
        device.channel.write_now(offset, data)?;
        if let Some(meter) = &device.meter {
            meter.tick(OpKind::Write, data.len() as u64);
        }
        Ok(())
    }

    /// Writes to a device for which [`Self::writes_now`] is true.
    pub(crate) fn write_now(
        &mut self,
        id: DeviceId,
        offset: u64,
        data: &[u8],
    ) -> Result<(), BdevError> {
        self.device(id)
            .map_or(Err(BdevError::Gone), |device| device.channel.write_now(offset, data))
    }

    /// A completion of a device's own operation.
    pub(crate) fn device_completion(&mut self, cx: &mut Context<'_>, completion: Completion) {
        let completion_owner = completion.token.owner;
        let owner = usize::from(completion_owner);
        let before = self.done.len();
        if let Some(Some(device)) = self.devices.get_mut(owner) {
            device.channel.handle_completion(cx, completion, &mut self.done);
            device.finished(self.done.len() - before);
            if !std::mem::replace(&mut device.unflushed, true) {
                self.unflushed.push(DeviceId(completion_owner));
            }
            if device.closing.is_some() {
                self.close_if_quiet(cx, DeviceId(completion_owner));
            }
        }
    }

    /// Lets channels send what they have gathered.
    pub(crate) fn flush_devices(&mut self, cx: &mut Context<'_>) {
        while let Some(id) = self.unflushed.pop() {
            let device = self.devices.get_mut(usize::from(id.0)).and_then(Option::as_mut);
            let Some(device) = device else { continue };
            device.unflushed = false;
            let before = self.done.len();
            device.channel.flush(cx, &mut self.done);
            device.finished(self.done.len() - before);
            if device.closing.is_some() {
                self.close_if_quiet(cx, id);
            }
        }
    }

    // ------------------------------------------------------------------------ zeroing

    /// Zeroes the first `bytes` of a device that no snapshot shows, and says when that is done and on
    /// stable media.
    pub(crate) fn wipe(
        &mut self,
        cx: &mut Context<'_>,
        device: DeviceId,
        bytes: u64,
        reply: Reply<Result<(), BdevError>>,
    ) {
        let number = self.wipes.begin(device, bytes, reply);
        self.wipe_on(cx, number, Ok(()));
    }

    /// A request of a zeroing has finished.
    #[cold]
    pub(crate) fn wipe_on(
        &mut self,
        cx: &mut Context<'_>,
        number: u16,
        result: Result<(), BdevError>,
    ) {
        let Some(device) = self.wipes.device(number) else { return };
        let result = if self.device(device).is_some() { result } else { Err(BdevError::Gone) };
        if let Some(op) = self.wipes.go_on(number, self.index, result) {
            self.submit(cx, device, Tag::other(number), op);
        }
    }

    // ------------------------------------------------------------------ range locks

    /// Holds a write back if its range is fenced. True: the write has to wait.
    pub(crate) fn hold(&mut self, id: DeviceId, bytes: &Range<u64>, write: LocalCommand) -> bool {
        match self.device(id) {
            Some(device) if !device.fences.is_empty() => device.fences.hold(bytes, write).is_none(),
            _ => false,
        }
    }

    /// A write has left the device: fences may be waiting for it.
    pub(crate) fn write_drained(&mut self, id: DeviceId, bytes: &Range<u64>) {
        let Some(device) = self.device(id) else { return };
        if device.fences.is_empty() {
            return;
        }
        let mut quiet = Vec::new();
        device.fences.drained(bytes, &mut quiet);
        for lock in quiet {
            self.tell_fenced(id, lock);
        }
    }

    fn tell_fenced(&self, device: DeviceId, lock: LockId) {
        let warden = device.warden(self.shared.cores());
        self.send(warden, Message::Fenced { device, lock });
    }

    /// Puts up a fence over a range in which `draining` writes of this core are in flight.
    pub(crate) fn fence(&mut self, id: DeviceId, lock: LockId, bytes: Range<u64>, draining: usize) {
        let quiet = match self.device(id) {
            Some(device) => device.fences.raise(lock, bytes, draining),
            None => true,
        };
        if quiet {
            self.tell_fenced(id, lock);
        }
    }

    /// Gives a range back to the device's warden, if it is locked.
    pub(crate) fn unlock(&self, device: DeviceId, lock: Option<LockId>) {
        if let Some(lock) = lock {
            let warden = device.warden(self.shared.cores());
            self.send(warden, Message::UnlockRange { device, lock });
        }
    }

    /// Takes a fence down; the writes that it held are in `released`.
    pub(crate) fn unfence(&mut self, id: DeviceId, lock: LockId) {
        let Some(device) = self.device(id) else { return };
        let mut held = device.fences.lower(lock);
        self.released.append(&mut held);
    }

    /// On the warden core: one event of the device's range locks.
    pub(crate) fn warden(
        &mut self,
        id: DeviceId,
        event: impl FnOnce(&mut Warden<CommandPlace>, &mut Vec<Order<CommandPlace>>),
    ) {
        let mut orders = Vec::new();
        let Some(warden) = self.device(id).and_then(|device| device.warden.as_mut()) else {
            return;
        };
        event(warden, &mut orders);
        for order in orders {
            self.carry_out(id, order);
        }
    }

    fn carry_out(&self, device: DeviceId, order: Order<CommandPlace>) {
        match order {
            Order::Fence(lock, bytes) => {
                for core in 0..self.shared.cores() {
                    self.send(core, Message::Fence { device, lock, bytes: bytes.clone() });
                }
            }
            Order::Unfence(lock) => {
                for core in 0..self.shared.cores() {
                    self.send(core, Message::Unfence { device, lock });
                }
            }
            Order::Granted(lock, to) => {
                self.send(to.conn.core, Message::LockGranted { to, device, lock: Some(lock) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_of_silent_sessions_expire_together_and_not_early() {
        let epoch = Instant::now();
        let core = IscsiCore { epoch: Some(epoch), ..IscsiCore::default() };
        let span = Duration::from_secs(30);
        let after = |ms| core.together(epoch + Duration::from_millis(ms), span) - epoch;
        assert_eq!(after(30_000), Duration::from_secs(30), "on time");
        for ms in [30_001, 30_100, 30_250] {
            assert_eq!(after(ms), Duration::from_millis(30_250), "{ms}");
        }
        assert_eq!(after(30_251), Duration::from_millis(30_500));
        // Short times are met as well as long ones.
        let at = epoch + Duration::from_millis(33);
        let quick = core.together(at, Duration::from_millis(160)) - epoch;
        assert_eq!(quick, Duration::from_millis(40));
        assert_eq!(core.together(at, Duration::from_nanos(15)), at);
        assert_eq!(IscsiCore::default().together(at, span), at, "nobody has come");
    }
}
