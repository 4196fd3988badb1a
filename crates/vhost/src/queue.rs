//! A ring and its requests, carried out piece by piece.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use raceline_bdev::{BdevError, Done, Op};
use raceline_reactor::io::SocketId;
use raceline_reactor::{Context, IoBuf, Payload};

use crate::devices::{Devices, PIECE};
use crate::eventfd::Interrupt;
use crate::inflight::Part;
use crate::memory::{Memory, Segment};
use crate::request::{self, Extent, Work, status};
use crate::ring::{Chain, Fault, Ring};

/// Requests of a ring that begin in one turn of the loop.
const TURN: usize = 128;

/// A request on its way.
#[derive(Debug)]
struct Running {
    work: Work,
    /// Where its status belongs.
    status: u64,
    /// Bytes that are done, of its data or of the range that it is at.
    done: u64,
    /// Bytes of the piece at the device.
    piece: u64,
    /// The range that it is at.
    range: usize,
    /// Zeroes are written, since the device cannot zero.
    writes_zeroes: bool,
    /// Bytes of the budget that it holds.
    held: usize,
}

/// The place of a request: its head.
#[derive(Debug, Default)]
struct Slot {
    running: Option<Running>,
    chain: Chain,
}

/// What a request does next.
enum Step {
    /// It waits for the device.
    Submit(Op),
    /// A piece is done.
    Goes,
    /// It ends.
    Ends(u8),
}

/// What a queue begins with.
pub(crate) struct Start {
    pub(crate) number: u16,
    pub(crate) ring: Ring,
    pub(crate) memory: Arc<Memory>,
    pub(crate) interrupt: Option<Interrupt>,
    pub(crate) inflight: Option<Part>,
    /// Requests that another process has taken and not returned.
    pub(crate) again: Vec<u16>,
    pub(crate) enabled: bool,
}

/// A queue that is served.
pub(crate) struct Queue {
    start: Start,
    /// Where kicks come from.
    pub(crate) kicks: SocketId,
    slots: Vec<Slot>,
    in_flight: usize,
    /// Something may be in the ring.
    is_ready: bool,
    fault: Option<Fault>,
    /// Whoever waits for its end.
    stopping: Option<SyncSender<u16>>,
    /// Up to which available index requests are still taken before the queue is disabled, and whoever waits for that.
    draining: Option<(u16, SyncSender<()>)>,
}

impl Queue {
    pub(crate) fn new(mut start: Start, kicks: SocketId) -> Self {
        let slots = (0..start.ring.size()).map(|_| Slot::default()).collect();
        // The last one is taken first.
        start.again.reverse();
        let (fault, stopping, draining) = (None, None, None);
        let queue =
            Self { start, kicks, slots, in_flight: 0, is_ready: true, fault, stopping, draining };
        // A process that was killed may have returned a request and not interrupted.
        queue.raise();
        queue
    }

    /// Something may be in the ring.
    pub(crate) fn wake(&mut self) {
        self.is_ready = true;
    }

    pub(crate) fn set_enabled(&mut self, enabled: bool) {
        self.start.enabled = enabled;
        self.is_ready = true;
        self.draining = None;
    }

    /// Returns what is in the ring now, and then is disabled.
    pub(crate) fn drain(&mut self, drained: SyncSender<()>) {
        match self.start.ring.available(&self.start.memory) {
            Ok(until) => self.draining = Some((until, drained)),
            Err(fault) => self.break_off(fault),
        }
        self.is_ready = true;
    }

    /// Nothing that comes is taken before the queue is enabled again.
    fn is_drained(&self) -> bool {
        let next = self.start.ring.next_available();
        self.draining.as_ref().is_some_and(|(until, _)| *until == next)
    }

    /// Ends a drain that is over, or that cannot go on.
    pub(crate) fn settle_drain(&mut self) {
        // A guest may have taken back what it had given: there is nothing left to take then, either.
        let has_taken = self.is_drained() || !self.is_ready;
        let is_over = has_taken && self.start.again.is_empty();
        let is_over = is_over || !self.start.enabled || self.fault.is_some();
        if self.in_flight > 0 || !is_over {
            return;
        }
        if let Some((_, drained)) = self.draining.take() {
            self.start.enabled = false;
            // Whoever has asked may have gone.
            let _ = drained.send(());
        }
    }

    pub(crate) fn set_interrupt(&mut self, interrupt: Option<Interrupt>) {
        self.start.interrupt = interrupt;
        // What it has missed may have gone to the former one.
        self.raise();
    }

    pub(crate) fn set_memory(&mut self, memory: Arc<Memory>) {
        self.start.memory = memory;
    }

    /// Takes no more requests.
    pub(crate) fn stop(&mut self, ended: SyncSender<u16>) {
        self.stopping = Some(ended);
    }

    /// Says where the ring has ended, once nothing is in flight; true if it is over.
    pub(crate) fn is_over(&mut self) -> bool {
        let may_begin = self.fault.is_none() && self.start.enabled && !self.start.again.is_empty();
        if self.in_flight > 0 || may_begin {
            return false;
        }
        let Some(ended) = self.stopping.take() else { return false };
        // Whoever has asked may have gone.
        let _ = ended.send(self.start.ring.next_available());
        true
    }

    /// Tells whoever stops it to wait no more for what is at the device, if another start of the ring finds that noted;
    /// gives the number of those requests, and the bytes of the budget that they hold.
    pub(crate) fn leave(&mut self) -> Option<(usize, usize)> {
        self.start.inflight.as_ref()?;
        let ended = self.stopping.take()?;
        // Whoever has asked may have gone.
        let _ = ended.send(self.start.ring.next_available());
        let running = self.slots.iter().filter_map(|slot| slot.running.as_ref());
        Some((self.in_flight, running.map(|running| running.held).sum()))
    }

    /// Whether there may be something to take.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready && self.start.enabled && self.fault.is_none()
    }

    /// Begins requests that have come.
    pub(crate) fn take(&mut self, cx: &mut Context<'_>, devices: &mut Devices) {
        if !self.is_ready() {
            return;
        }
        match self.take_some(cx, devices) {
            Ok(more) => self.is_ready = more,
            Err(fault) => self.break_off(fault),
        }
    }

    fn take_some(&mut self, cx: &mut Context<'_>, devices: &mut Devices) -> Result<bool, Fault> {
        for _ in 0..TURN {
            if !devices.has_room() {
                return Ok(true);
            }
            let memory = &self.start.memory;
            let head = match self.start.again.pop() {
                Some(head) => head,
                // What its predecessor has taken still ends.
                None if self.stopping.is_some() || self.is_drained() => return Ok(false),
                None => match self.start.ring.next(memory)? {
                    Some(head) => head,
                    None if self.start.ring.await_kick(memory)? => continue,
                    None => return self.check().map(|()| false),
                },
            };
            self.begin(cx, devices, head)?;
            self.check()?;
        }
        Ok(true)
    }

    /// Whether the memory is still there.
    fn check(&self) -> Result<(), Fault> {
        if self.start.memory.is_whole() { Ok(()) } else { Err(Fault::Lost) }
    }

    /// Serves the ring no more: what it says cannot be believed.
    fn break_off(&mut self, fault: Fault) {
        // What is read from memory that is gone breaks rules of its own.
        let fault = self.check().err().unwrap_or(fault);
        if self.fault.is_none() {
            let number = self.start.number;
            tracing::warn!("ring {number} of a guest is not served any more: {fault}");
            self.fault = Some(fault);
        }
    }

    /// Why the front end has to go, if it has.
    pub(crate) fn is_lost(&self) -> bool {
        self.fault == Some(Fault::Lost)
    }

    fn begin(
        &mut self,
        cx: &mut Context<'_>,
        devices: &mut Devices,
        head: u16,
    ) -> Result<(), Fault> {
        let memory = Arc::clone(&self.start.memory);
        let slot = &mut self.slots[usize::from(head)];
        if slot.running.is_some() {
            return Err(Fault::Twice(head));
        }
        self.start.ring.read_chain(&memory, head, &mut slot.chain)?;
        let frame = request::take_frame(&memory, &mut slot.chain)?;
        if let Some(inflight) = &mut self.start.inflight {
            inflight.note_taken(head)?;
        }
        let planned = request::plan(&devices.facts, &memory, &frame, &slot.chain);
        let held = match planned {
            Ok(Work::Read { len, .. } | Work::Write { len, .. }) => piece_of(len),
            Ok(Work::Ranges { zeroes: true, .. }) => PIECE,
            _ => 0,
        };
        devices.budget = devices.budget.saturating_sub(held);
        let (work, refusal) = match planned {
            Ok(work) => (work, None),
            Err(status) => (Work::Flush, Some(status)),
        };
        slot.running = Some(Running {
            work,
            status: frame.status,
            done: 0,
            piece: 0,
            range: 0,
            writes_zeroes: false,
            held,
        });
        self.in_flight += 1;
        match refusal {
            None => self.advance(cx, devices, head),
            Some(status) => self.end(devices, head, status),
        }
        Ok(())
    }

    /// Goes on with a request until it waits or ends.
    fn advance(&mut self, cx: &mut Context<'_>, devices: &mut Devices, head: u16) {
        loop {
            match self.step(cx, devices, head) {
                Step::Submit(op) => return devices.submit(cx, (self.start.number, head), op),
                Step::Goes => {}
                Step::Ends(status) => return self.end(devices, head, status),
            }
        }
    }

    fn step(&mut self, cx: &mut Context<'_>, devices: &mut Devices, head: u16) -> Step {
        let memory = &self.start.memory;
        let Slot { running: Some(running), chain } = &mut self.slots[usize::from(head)] else {
            return Step::Ends(status::IO_ERROR);
        };
        match &running.work {
            Work::Flush => Step::Submit(Op::Flush),
            Work::Identify => {
                let id = &devices.facts.id;
                let len = request::total(&chain.writable).min(id.len() as u64);
                let len = usize::try_from(len).unwrap_or(0);
                match memory.scatter(&chain.writable, 0, &id[..len]) {
                    Ok(()) => {
                        running.done = len as u64;
                        Step::Ends(status::OK)
                    }
                    Err(_) => Step::Ends(status::IO_ERROR),
                }
            }
            &Work::Read { len, .. } | &Work::Write { len, .. } if running.done == len => {
                Step::Ends(status::OK)
            }
            &Work::Read { offset, len } => {
                let piece = piece_of(len - running.done);
                running.piece = piece as u64;
                read(cx, devices, (running, chain, memory), (offset, piece))
            }
            &Work::Write { offset, len } => {
                let piece = piece_of(len - running.done);
                running.piece = piece as u64;
                write(cx, devices, (running, chain, memory), (offset, piece))
            }
            Work::Ranges { zeroes, list } => {
                let (zeroes, extent) = (*zeroes, list.get(running.range).copied());
                step_range(devices, running, zeroes, extent)
            }
        }
    }

    /// Takes what the device has finished.
    pub(crate) fn handle_done(
        &mut self,
        cx: &mut Context<'_>,
        devices: &mut Devices,
        head: u16,
        done: Done,
    ) {
        let memory = &self.start.memory;
        let Some(Slot { running: Some(running), chain }) = self.slots.get_mut(usize::from(head))
        else {
            return;
        };
        let is_zeroes = matches!(running.work, Work::Ranges { zeroes: true, .. });
        match done.result {
            Err(BdevError::NotSupported) if is_zeroes && !running.writes_zeroes => {
                running.writes_zeroes = true;
                return self.advance(cx, devices, head);
            }
            Err(BdevError::NotSupported) => {
                return self.end(devices, head, status::UNSUPPORTED);
            }
            Err(_) => return self.end(devices, head, status::IO_ERROR),
            Ok(()) => {}
        }
        match running.work {
            Work::Read { .. } => {
                let skip = usize::try_from(running.done).unwrap_or(usize::MAX);
                let len = usize::try_from(running.piece).unwrap_or(0);
                let copied = done.payload.is_some_and(|payload| {
                    let to = (memory.as_ref(), chain.writable.as_slice(), skip);
                    copy_out(&payload, to, len, &mut devices.scratch)
                });
                if !copied {
                    return self.end(devices, head, status::IO_ERROR);
                }
            }
            Work::Flush => return self.end(devices, head, status::OK),
            Work::Write { .. } | Work::Ranges { .. } | Work::Identify => {}
        }
        running.done += running.piece;
        self.advance(cx, devices, head);
    }

    /// Returns a request to the guest.
    fn end(&mut self, devices: &mut Devices, head: u16, verdict: u8) {
        let Some(running) = self.slots[usize::from(head)].running.take() else { return };
        self.in_flight -= 1;
        devices.budget += running.held;
        let (kind, bytes) = running.work.measure();
        devices.counters.count(kind, bytes, verdict == status::OK);
        let written = match running.work {
            Work::Read { .. } | Work::Identify => running.done,
            _ => 0,
        };
        let written = u32::try_from(written + 1).unwrap_or(u32::MAX);
        if self.fault.is_some() {
            return;
        }
        if let Err(fault) = self.give_back(head, running.status, verdict, written) {
            self.break_off(fault);
        }
    }

    fn give_back(&mut self, head: u16, at: u64, status: u8, written: u32) -> Result<(), Fault> {
        let memory = &self.start.memory;
        memory.write(at, &[status])?;
        if let Some(inflight) = &mut self.start.inflight {
            inflight.note_returning(head)?;
        }
        self.start.ring.put_used(memory, head, written)?;
        if let Some(inflight) = &mut self.start.inflight {
            inflight.note_returned(head, self.start.ring.next_used())?;
        }
        self.check()
    }

    /// Interrupts the guest, if it wants that for what was returned.
    pub(crate) fn notify(&mut self) {
        if self.fault.is_some() {
            return;
        }
        match self.start.ring.wants_interrupt(&self.start.memory) {
            Ok(true) => self.raise(),
            Ok(false) => {}
            Err(fault) => self.break_off(fault),
        }
    }

    fn raise(&self) {
        if let Some(interrupt) = &self.start.interrupt {
            interrupt.raise();
        }
    }
}

/// A request, its segments, and where they are.
type Parts<'a> = (&'a mut Running, &'a Chain, &'a Arc<Memory>);

fn read(
    cx: &mut Context<'_>,
    devices: &mut Devices,
    (running, chain, memory): Parts<'_>,
    (offset, len): (u64, usize),
) -> Step {
    let offset = offset + running.done;
    if devices.reads_now()
        && let Some(payload) = devices.read_now(offset, len)
    {
        let skip = usize::try_from(running.done).unwrap_or(usize::MAX);
        let to = (memory.as_ref(), chain.writable.as_slice(), skip);
        if !copy_out(&payload, to, len, &mut devices.scratch) {
            return Step::Ends(status::IO_ERROR);
        }
        running.done += len as u64;
        return Step::Goes;
    }
    let buf = (!devices.facts.reads_in_place).then(|| take_buf(cx, len));
    Step::Submit(Op::Read { offset, len, buf })
}

fn write(
    cx: &mut Context<'_>,
    devices: &mut Devices,
    (running, chain, memory): Parts<'_>,
    (offset, len): (u64, usize),
) -> Step {
    let offset = offset + running.done;
    let skip = usize::try_from(running.done).unwrap_or(usize::MAX);
    let mut data = take_buf(cx, len);
    // What a lost page reads as must not reach the device.
    if memory.gather(&chain.readable, skip, &mut data).is_err() || !memory.is_whole() {
        return Step::Ends(status::IO_ERROR);
    }
    if !devices.writes_now() {
        let fua = devices.facts.writes_through();
        return Step::Submit(Op::Write { offset, data: data.share(), fua });
    }
    match devices.write_now(offset, &data) {
        Ok(()) => {
            running.done += len as u64;
            Step::Goes
        }
        Err(_) => Step::Ends(status::IO_ERROR),
    }
}

fn step_range(
    devices: &Devices,
    running: &mut Running,
    zeroes: bool,
    extent: Option<Extent>,
) -> Step {
    let Some(Extent { offset, len, unmap }) = extent else { return Step::Ends(status::OK) };
    if running.done == len {
        running.range += 1;
        running.done = 0;
        return Step::Goes;
    }
    let fua = devices.facts.writes_through();
    running.piece = len;
    Step::Submit(match (zeroes, running.writes_zeroes) {
        (false, _) => Op::Deallocate { offset, len },
        (true, false) => Op::WriteZeroes { offset, len, deallocate: unmap, fua },
        (true, true) => {
            let piece = piece_of(len - running.done);
            running.piece = piece as u64;
            let data = IoBuf::heap(piece).share();
            Op::Write { offset: offset + running.done, data, fua }
        }
    })
}

/// What of a length is carried out at once.
fn piece_of(len: u64) -> usize {
    usize::try_from(len).map_or(PIECE, |len| len.min(PIECE))
}

/// Memory for data. What the pool does not have is allocated: the budget has been asked.
fn take_buf(cx: &Context<'_>, len: usize) -> IoBuf {
    cx.pool.take(len).unwrap_or_else(|| IoBuf::heap(len))
}

/// Copies `len` bytes of a payload to the guest; false if that is not possible.
fn copy_out(
    payload: &Payload,
    (memory, segments, skip): (&Memory, &[Segment], usize),
    len: usize,
    scratch: &mut [u8],
) -> bool {
    if payload.len() != len {
        return false;
    }
    match payload {
        Payload::Buf(buf, range) => memory.scatter(segments, skip, &buf[range.clone()]).is_ok(),
        Payload::Shared(buf, range) => memory.scatter(segments, skip, &buf[range.clone()]).is_ok(),
        Payload::Region(region, range) => (0..len).step_by(scratch.len()).all(|at| {
            let now = (len - at).min(scratch.len());
            region.copy_out(range.start + at as u64, &mut scratch[..now]);
            memory.scatter(segments, skip + at, &scratch[..now]).is_ok()
        }),
        Payload::Zeroes(_) => {
            scratch.fill(0);
            (0..len).step_by(scratch.len()).all(|at| {
                let now = (len - at).min(scratch.len());
                memory.scatter(segments, skip + at, &scratch[..now]).is_ok()
            })
        }
    }
}
