//! The work of a core: its rings, and its channel to the device.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use raceline_bdev::{DiskCounters, SharedBdev};
use raceline_reactor::io::RecvBuffers;
use raceline_reactor::{Completion, Context, IoBuf, Outcome, Service, Socket, Token};

use crate::config::Facts;
use crate::devices::Devices;
use crate::eventfd::Interrupt;
use crate::link::Link;
use crate::memory::Memory;
use crate::queue::{Queue, Start};

/// The owner of kicks.
const KICKS: u16 = 0;
/// The owner of the device's operations.
const CHANNEL: u16 = 1;
/// The owner of the timer for another turn.
const TURN: u16 = u16::MAX;

/// How often a core looks whether requests that were left at the device are over.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// What other threads tell a core.
pub(crate) enum Message {
    /// Serve a queue, whose kicks come from this socket.
    Start(Box<Start>, Socket),
    /// A queue interrupts by another counter.
    Interrupt(u16, Option<Interrupt>),
    /// A queue may be served, or not.
    Enable(u16, bool),
    /// A queue may be served until it has returned what is in its ring now; answered then, or when it cannot.
    Drain(u16, SyncSender<()>),
    /// The memory has changed; answered once it is used.
    Memory(Arc<Memory>, SyncSender<()>),
    /// Take no more of a queue; answered with its available index once nothing of it is in flight.
    Stop(u16, SyncSender<u16>),
    /// A queue that was stopped waits no more for what the device has, if the front end keeps note of it.
    Leave(u16),
    /// End.
    End,
}

/// A place for a queue, and how many have had it.
#[derive(Default)]
struct Slot {
    generation: u16,
    queue: Option<Queue>,
    /// Requests at the device of a queue that has left them, and the bytes of the budget that these hold.
    left: usize,
    held: usize,
}

impl Slot {
    fn end(&mut self, cx: &mut Context<'_>) {
        if let Some(queue) = self.queue.take() {
            cx.io.close(queue.kicks, true);
            self.generation = self.generation.wrapping_add(1);
        }
    }
}

/// The service.
pub(crate) struct Core {
    devices: Devices,
    slots: Vec<Slot>,
    /// Requests that queues have left at the device, on all cores. No queue begins anything while there are any: they must
    /// not end after what comes later.
    left: Arc<AtomicUsize>,
    link: Arc<Link>,
    /// A timer for another turn is on its way.
    turning: bool,
    ending: bool,
    finished: bool,
}

impl Core {
    pub(crate) fn new(
        cx: &mut Context<'_>,
        device: &SharedBdev,
        (facts, link): (Arc<Facts>, Arc<Link>),
        (left, counters): (Arc<AtomicUsize>, Arc<DiskCounters>),
    ) -> io::Result<Self> {
        let slots = (0..facts.queues).map(|_| Slot::default()).collect();
        let devices = Devices::new(facts, device.open_channel(cx, CHANNEL)?, counters);
        Ok(Self { devices, slots, left, link, turning: false, ending: false, finished: false })
    }

    fn start(&mut self, cx: &mut Context<'_>, start: Start, kicks: Socket) {
        let number = start.number;
        let Some(slot) = self.slots.get_mut(usize::from(number)) else { return };
        let socket = match cx.io.adopt(kicks) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::warn!("ring {number} of a guest is not served: its kicks: {error}");
                return self.link.cut();
            }
        };
        let token = Token { owner: KICKS, generation: slot.generation, index: number.into() };
        slot.queue = Some(Queue::new(start, socket));
        self.devices.counters.queue_began();
        // A byte for each kick; the next receive follows it.
        let staging = IoBuf::heap(64);
        cx.io.recv(socket, RecvBuffers { payload: None, staging, staging_range: 0..64 }, token);
    }

    fn queue(&mut self, number: u16) -> Option<&mut Queue> {
        self.slots.get_mut(usize::from(number))?.queue.as_mut()
    }

    fn stop(&mut self, number: u16, ended: SyncSender<u16>) {
        match self.queue(number) {
            Some(queue) => queue.stop(ended),
            // It has not been started: whoever asks knows where it is.
            None => drop(ended),
        }
    }

    /// Ends a queue that was stopped without what the device has of it. The front end has a note of that, and asks for it
    /// again when it starts the ring.
    fn leave(&mut self, cx: &mut Context<'_>, number: u16) {
        let Some(slot) = self.slots.get_mut(usize::from(number)) else { return };
        // It may have ended by now.
        let Some((count, held)) = slot.queue.as_mut().and_then(Queue::leave) else { return };
        tracing::warn!(
            "ring {number} of a guest was stopped while {count} requests were at the device: they are carried out again when \
             it is started, after they have ended"
        );
        self.left.fetch_add(count, Ordering::AcqRel);
        // A queue that has begun nothing itself may have a former one's.
        slot.left += count;
        slot.held += held;
        slot.end(cx);
        self.devices.counters.queue_ended();
    }

    /// Whether something that was left is still at the device.
    fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire) > 0
    }

    /// Gives what the device has finished to its queues.
    fn collect(&mut self, cx: &mut Context<'_>) {
        while let Some(done) = self.devices.done.pop() {
            let [h0, h1, q0, q1, ..] = done.tag.to_le_bytes();
            let (number, head) = (u16::from_le_bytes([q0, q1]), u16::from_le_bytes([h0, h1]));
            let Some(slot) = self.slots.get_mut(usize::from(number)) else { continue };
            if slot.left > 0 {
                // Nothing of a new queue is there before.
                slot.left -= 1;
                if slot.left == 0 {
                    self.devices.budget += std::mem::take(&mut slot.held);
                }
                self.left.fetch_sub(1, Ordering::AcqRel);
            } else if let Some(queue) = &mut slot.queue {
                queue.handle_done(cx, &mut self.devices, head, done);
            }
        }
    }

    fn handle_kick(&mut self, cx: &mut Context<'_>, token: Token, outcome: Outcome) {
        let Outcome::Received(result, buffers) = outcome else { return };
        let slot = usize::try_from(token.index).ok().and_then(|it| self.slots.get_mut(it));
        let Some(slot) = slot.filter(|slot| slot.generation == token.generation) else { return };
        let Some(queue) = &mut slot.queue else { return };
        match result {
            Ok(count) if count > 0 => {
                queue.wake();
                cx.io.recv(queue.kicks, buffers, token);
            }
            Ok(_) => tracing::warn!("ring {} of a guest can no longer be kicked", token.index),
            Err(error) => tracing::warn!("kicks of ring {} of a guest: {error}", token.index),
        }
    }

    /// Takes from all rings in turn.
    fn take(&mut self, cx: &mut Context<'_>) {
        if self.has_left() {
            return;
        }
        for slot in &mut self.slots {
            if let Some(queue) = &mut slot.queue {
                queue.take(cx, &mut self.devices);
            }
        }
    }

    /// Interrupts guests, and drops what is over.
    fn settle(&mut self, cx: &mut Context<'_>) {
        for slot in &mut self.slots {
            let Some(queue) = &mut slot.queue else { continue };
            queue.notify();
            queue.settle_drain();
            if queue.is_lost() {
                self.link.cut();
            }
            if queue.is_over() {
                slot.end(cx);
                self.devices.counters.queue_ended();
            }
        }
    }
}

impl Service for Core {
    type Message = Message;

    fn handle_message(&mut self, cx: &mut Context<'_>, message: Message) {
        match message {
            Message::Start(start, kicks) => self.start(cx, *start, kicks),
            Message::Interrupt(number, interrupt) => {
                if let Some(queue) = self.queue(number) {
                    queue.set_interrupt(interrupt);
                }
            }
            Message::Enable(number, enabled) => {
                if let Some(queue) = self.queue(number) {
                    queue.set_enabled(enabled);
                }
            }
            Message::Drain(number, drained) => match self.queue(number) {
                Some(queue) => queue.drain(drained),
                None => drop(drained),
            },
            Message::Memory(memory, taken) => {
                for slot in &mut self.slots {
                    if let Some(queue) = &mut slot.queue {
                        queue.set_memory(Arc::clone(&memory));
                    }
                }
                // Whoever has asked may have gone.
                let _ = taken.send(());
            }
            Message::Stop(number, ended) => self.stop(number, ended),
            Message::Leave(number) => self.leave(cx, number),
            Message::End => self.ending = true,
        }
    }

    fn handle_completion(&mut self, cx: &mut Context<'_>, completion: Completion) {
        match completion.token.owner {
            TURN => self.turning = false,
            KICKS => self.handle_kick(cx, completion.token, completion.outcome),
            _ => self.devices.channel.handle_completion(cx, completion, &mut self.devices.done),
        }
        self.collect(cx);
    }

    fn flush(&mut self, cx: &mut Context<'_>) {
        self.take(cx);
        self.devices.channel.flush(cx, &mut self.devices.done);
        // What has ended may have made room, and its next piece wants to leave.
        while !self.devices.done.is_empty() {
            self.collect(cx);
            self.devices.channel.flush(cx, &mut self.devices.done);
        }
        self.settle(cx);
        let is_ready = |slot: &Slot| slot.queue.as_ref().is_some_and(Queue::is_ready);
        if self.devices.has_room() && !self.turning && self.slots.iter().any(is_ready) {
            self.turning = true;
            // What was left may be at another core's channel, which tells nobody of its end.
            let at = if self.has_left() { cx.now + LOOK_INTERVAL } else { cx.now };
            cx.io.timer(at, Token { owner: TURN, generation: 0, index: 0 });
        }
        let is_idle = self.slots.iter().all(|slot| slot.queue.is_none() && slot.left == 0);
        if self.ending && is_idle && !self.finished {
            self.finished = true;
            self.devices.channel.close(cx);
        }
    }

    fn is_finished(&self) -> bool {
        self.finished
    }
}
