//! The work of a core: its connections, and its channels to the devices.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_bdev::{Channel, DiskCounters, Done, Op, Request};
use raceline_reactor::{
    Completion, Context, IoBuf, Outcome, PartPool, Service, SharedBuf, Socket, Token,
};

use super::budget::Budget;
use super::connection::Connection;
use super::listen::Place;
use super::order::{Changes, Hold, Peers};
use super::{Export, ServerTls};

/// The owner of operations on sockets.
const CONNECTIONS: u16 = 0;
/// The owner of the timer; channels have the owners from 1 on.
const TICK: u16 = u16::MAX;

/// How often connections that are late are looked for.
const TICK_TIME: Duration = Duration::from_secs(1);

/// Bytes of zeroes that one write carries, where a device cannot zero by itself.
const ZERO_BYTES: usize = 256 << 10;

/// Writes of zeroes at a time that use the same memory; others allocate.
const ZERO_PARTS: usize = 256;

/// What other threads tell a core.
pub(super) enum Message {
    /// A connection that was accepted.
    Connection(Socket, Place),
    /// A connection whose client knows the first export, and does not negotiate.
    Agreed(Socket, Place),
    /// All cores; the first message.
    Peers(Peers),
    /// Another connection to this export begins: drop this when what has come and what is at the device now is over.
    Settle { export: usize, hold: Arc<Hold> },
    /// A connection of this core need not wait for earlier ones any more: it knows that by itself, and looks.
    Settled { connection: u32 },
    /// End.
    Stop,
}

/// The channels of a core, and what their requests need.
pub(super) struct Devices {
    pub(super) exports: Vec<Export>,
    channels: Vec<Box<dyn Channel>>,
    /// What changes the exports and is at their devices.
    pub(super) changes: Vec<Changes>,
    pub(super) peers: Peers,
    done: Vec<Done>,
    pub(super) budget: Budget,
    zeroes: SharedBuf,
    parts: PartPool,
}

impl Devices {
    /// Starts a request; [`Core::collect`] learns of its end.
    pub(super) fn submit(&mut self, cx: &mut Context<'_>, export: usize, request: Request) {
        self.channels[export].submit(cx, request, &mut self.done);
    }

    /// Whether writes to the export need no buffer.
    pub(super) fn writes_now(&self, export: usize) -> bool {
        self.channels[export].writes_now()
    }

    /// Writes at once ([`Channel::write_now`]).
    pub(super) fn write_now(
        &mut self,
        export: usize,
        offset: u64,
        data: &[u8],
    ) -> Result<(), raceline_bdev::BdevError> {
        self.channels[export].write_now(offset, data)
    }

    /// A write of zeroes to the beginning of a range of `len` bytes; gives how much of it that is.
    pub(super) fn zero_write(&mut self, offset: u64, len: u64, fua: bool) -> (Op, u64) {
        let piece = usize::try_from(len).map_or(ZERO_BYTES, |len| len.min(ZERO_BYTES));
        let data = self.parts.share(&self.zeroes, 0..piece);
        let data = data.unwrap_or_else(|| IoBuf::heap(piece).share());
        (Op::Write { offset, data, fua }, piece as u64)
    }
}

/// A place for a connection, and how many have had it.
#[derive(Default)]
struct Slot {
    generation: u16,
    connection: Option<Connection>,
}

/// The service.
pub(super) struct Core {
    devices: Devices,
    tls: Option<ServerTls>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Connections that may have something to send, or to end with.
    touched: Vec<u32>,
    /// Connections whose next request waits for memory or a place, in order.
    waiting: VecDeque<u32>,
    ticking: bool,
    stopping: bool,
    finished: bool,
    /// How long a client that is slow may hold the first changes of later connections up.
    hold_time: Duration,
    counters: Arc<DiskCounters>,
}

impl Core {
    pub(super) fn new(
        cx: &mut Context<'_>,
        exports: Vec<Export>,
        (tls, hold_time): (Option<ServerTls>, Duration),
        counters: Arc<DiskCounters>,
    ) -> io::Result<Self> {
        let mut channels = Vec::with_capacity(exports.len());
        for (owner, export) in (1_u16..).zip(&exports) {
            channels.push(export.device.open_channel(cx, owner)?);
        }
        let devices = Devices {
            changes: exports.iter().map(|_| Changes::new()).collect(),
            peers: Peers::default(),
            exports,
            channels,
            done: Vec::new(),
            budget: Budget::new(),
            zeroes: IoBuf::heap(ZERO_BYTES).share(),
            parts: PartPool::new(ZERO_PARTS),
        };
        Ok(Self {
            devices,
            tls,
            slots: Vec::new(),
            free: Vec::new(),
            touched: Vec::new(),
            waiting: VecDeque::new(),
            ticking: false,
            stopping: false,
            finished: false,
            hold_time,
            counters,
        })
    }

    fn accept(&mut self, cx: &mut Context<'_>, socket: Socket, place: Place, negotiates: bool) {
        if self.stopping {
            return;
        }
        let socket = match cx.io.adopt(socket) {
            Ok(socket) => socket,
            Err(error) => {
                return tracing::warn!(
                    peer = place.peer(),
                    "an NBD connection was closed: {error}"
                );
            }
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).expect("fewer connections than 2^32")
        });
        let slot = &mut self.slots[index as usize];
        let token = Token { owner: CONNECTIONS, generation: slot.generation, index };
        let mut exports = self.devices.exports.iter().map(Export::facts);
        let counters = Arc::clone(&self.counters);
        slot.connection = if negotiates {
            let offer = (exports.collect(), self.tls.clone());
            Some(Connection::new(cx, (socket, place, counters), token, offer))
        } else {
            let ends = (socket, place, counters);
            exports.next().map(|facts| Connection::agreed(cx, ends, token, facts))
        };
        if slot.connection.is_some() {
            self.counters.queue_began();
        }
        self.touched.push(index);
        if !self.ticking {
            self.ticking = true;
            tick(cx);
        }
    }

    /// Gives what has finished to its connections.
    fn collect(&mut self, cx: &mut Context<'_>) {
        while let Some(done) = self.devices.done.pop() {
            let (index, slot) = split_tag(done.tag);
            let connection = self.slots.get_mut(index as usize);
            let connection = connection.and_then(|it| it.connection.as_mut());
            if let Some(connection) = connection {
                connection.handle_done(cx, &mut self.devices, slot, done);
                self.touched.push(index);
            }
        }
    }

    /// Lets connections go on that waited for memory.
    fn resume(&mut self, cx: &mut Context<'_>) {
        for _ in 0..self.waiting.len() {
            let Some(index) = self.waiting.pop_front() else { return };
            let slot = self.slots.get_mut(index as usize);
            let Some(connection) = slot.and_then(|slot| slot.connection.as_mut()) else { continue };
            connection.resume(cx, &mut self.devices);
            self.touched.push(index);
        }
    }

    /// Sends what is ready, and drops what has ended.
    fn settle(&mut self, cx: &mut Context<'_>) {
        while let Some(index) = self.touched.pop() {
            let slot = &mut self.slots[index as usize];
            let Some(connection) = &mut slot.connection else { continue };
            connection.settle(cx);
            connection.let_go(&mut self.devices);
            if connection.is_gone() {
                if let Some(mut connection) = slot.connection.take() {
                    connection.give_back(&mut self.devices.budget);
                    self.counters.queue_ended();
                }
                slot.generation = slot.generation.wrapping_add(1);
                self.free.push(index);
            } else if connection.is_waiting() && !self.waiting.contains(&index) {
                self.waiting.push_back(index);
            }
        }
    }

    /// Lets a connection begin. Another one may have its place by now, which looks for nothing.
    fn let_begin(&mut self, cx: &mut Context<'_>, index: u32) {
        let slot = self.slots.get_mut(index as usize);
        if let Some(connection) = slot.and_then(|slot| slot.connection.as_mut()) {
            connection.look_whether_settled(cx, &mut self.devices);
            self.touched.push(index);
        }
    }

    /// Keeps a connection back until the others have begun what has come for them, and what they have begun is over.
    fn keep_back(&mut self, cx: &mut Context<'_>, export: usize, hold: &Arc<Hold>) {
        for slot in &mut self.slots {
            if let Some(connection) = &mut slot.connection {
                connection.keep_back(cx, export, hold);
            }
        }
        self.devices.changes[export].hold(Arc::clone(hold));
    }

    fn look_for_late(&mut self, cx: &mut Context<'_>, now: Instant) {
        let mut some = false;
        let mut all = self.slots.iter().filter_map(|slot| slot.connection.as_ref());
        let is_memory_needed = all.any(Connection::needs_memory_for_others);
        self.devices.budget.is_reserved = is_memory_needed;
        for (index, slot) in (0_u32..).zip(&mut self.slots) {
            let Some(connection) = &mut slot.connection else { continue };
            some = true;
            // The word of it may have found the mailbox full.
            connection.look_whether_settled(cx, &mut self.devices);
            connection.let_go_in_time(&mut self.devices);
            self.touched.push(index);
            connection.end_if_late(cx, now);
            connection.end_if_in_the_way(cx, is_memory_needed, self.hold_time);
        }
        self.ticking = some;
        if some {
            tick(cx);
        }
    }

    fn stop(&mut self, cx: &mut Context<'_>) {
        self.stopping = true;
        for (index, slot) in (0_u32..).zip(&mut self.slots) {
            if let Some(connection) = &mut slot.connection {
                connection.drain(cx.now);
                self.touched.push(index);
            }
        }
    }
}

/// The name of a request at a device: its connection, and its place there.
pub(super) fn tag(index: u32, slot: u16) -> u64 {
    u64::from(index) << 16 | u64::from(slot)
}

fn split_tag(tag: u64) -> (u32, u16) {
    let [s0, s1, i0, i1, i2, i3, ..] = tag.to_le_bytes();
    (u32::from_le_bytes([i0, i1, i2, i3]), u16::from_le_bytes([s0, s1]))
}

fn tick(cx: &mut Context<'_>) {
    cx.io.timer(cx.now + TICK_TIME, Token { owner: TICK, generation: 0, index: 0 });
}

impl Service for Core {
    type Message = Message;

    fn handle_message(&mut self, cx: &mut Context<'_>, message: Message) {
        match message {
            Message::Connection(socket, place) => self.accept(cx, socket, place, true),
            Message::Agreed(socket, place) => self.accept(cx, socket, place, false),
            Message::Peers(peers) => self.devices.peers = peers,
            Message::Settle { export, hold } => self.keep_back(cx, export, &hold),
            Message::Settled { connection } => self.let_begin(cx, connection),
            Message::Stop => self.stop(cx),
        }
    }

    fn handle_completion(&mut self, cx: &mut Context<'_>, completion: Completion) {
        let token = completion.token;
        match token.owner {
            TICK => return self.look_for_late(cx, cx.now),
            CONNECTIONS => {}
            owner => {
                let channel = &mut self.devices.channels[usize::from(owner) - 1];
                channel.handle_completion(cx, completion, &mut self.devices.done);
                return self.collect(cx);
            }
        }
        let Some(slot) = self.slots.get_mut(token.index as usize) else { return };
        let Some(connection) =
            slot.connection.as_mut().filter(|_| slot.generation == token.generation)
        else {
            return;
        };
        match completion.outcome {
            Outcome::Received(result, buffers) => {
                connection.handle_received(cx, &mut self.devices, result, buffers);
            }
            Outcome::Sent(result, batch) => {
                connection.handle_sent(cx, &mut self.devices, result, batch);
            }
            _ => {}
        }
        self.touched.push(token.index);
        self.collect(cx);
    }

    fn flush(&mut self, cx: &mut Context<'_>) {
        for channel in &mut self.devices.channels {
            channel.flush(cx, &mut self.devices.done);
        }
        self.collect(cx);
        if !self.waiting.is_empty() {
            self.resume(cx);
            for channel in &mut self.devices.channels {
                channel.flush(cx, &mut self.devices.done);
            }
            self.collect(cx);
        }
        self.settle(cx);
        let is_over = self.stopping && self.slots.iter().all(|slot| slot.connection.is_none());
        if is_over && !self.finished {
            self.finished = true;
            for channel in &mut self.devices.channels {
                channel.close(cx);
            }
        }
    }

    fn is_finished(&self) -> bool {
        self.finished
    }
}
