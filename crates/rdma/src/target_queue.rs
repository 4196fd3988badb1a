//! The controller's end of a queue: commands come, their data are moved, responses go.
//!
//! The buffer that a command came in is posted again just before the command's response, so a host never meets a
//! controller without receives while it keeps to the queue's size. A queue has receives of its own, each of which is a
//! command slot, or takes those that all queues of a port share. All memory is there from the beginning. The driver names its buffers in [`TargetQueue::read_host_data`] and [`TargetQueue::respond`], and has
//! each of them back with exactly one event.

mod slot;

use std::collections::VecDeque;

use raceline_proto::nvme::{Cqe, Sqe, Status};
use raceline_proto::rdma::{
    CAPSULE_HEAD_LEN, CapsuleLimits, CommandCapsule, HostData, RESPONSE_CAPSULE_LEN, Violation,
    WorkStatus,
};

use crate::Loss;
use crate::port_counts::PortCounts;
use crate::send_queue::{RECEIVE, SendQueue};
use crate::verbs::{
    Completion, ConnectionId, Operation, Provider, RecvWork, Region, SendWork, Slice,
};
pub(crate) use slot::Place;
use slot::{Slot, Stage};

/// Bytes of a response, as lengths in work requests are.
const RESPONSE_LEN: u32 = 16;
const _: () = assert!(RESPONSE_CAPSULE_LEN == 16);

/// Sizes and memory of a queue.
#[derive(Clone, Copy, Debug)]
pub struct TargetQueueConfig {
    /// Commands: the receives that are posted.
    pub entries: u16,
    /// What capsules may hold.
    pub limits: CapsuleLimits,
    /// RDMA READs under way at a time.
    pub reads: u8,
    /// Requests that the send queue takes.
    pub sends: u32,
    /// Responses are posted inline.
    pub inline: bool,
    /// Keys are invalidated where hosts ask for it.
    pub invalidates: bool,
    /// Memory for capsules: [`Self::capsule_bytes`]. `None`: messages take shared receives.
    pub capsules: Option<Region>,
    /// Memory for responses: [`Self::response_bytes`].
    pub responses: Region,
}

impl TargetQueueConfig {
    /// Requests of the send queue of a queue of this size: each command has at least a transfer and a response.
    #[must_use]
    pub fn sends_for(entries: u16, limits: &CapsuleLimits) -> u32 {
        (u32::from(entries) * 2).max(u32::from(limits.descriptors) + 2)
    }

    /// Bytes for the capsules of a queue of this size.
    #[must_use]
    pub fn capsule_bytes(entries: u16, limits: &CapsuleLimits) -> u32 {
        u32::from(entries) * capsule_stride(limits)
    }

    /// Bytes for the responses of a send queue of this size.
    #[must_use]
    pub fn response_bytes(sends: u32) -> u32 {
        sends * RESPONSE_LEN
    }
}

/// Bytes of one receive; data in capsules begin at multiples of 64.
pub(crate) fn capsule_stride(limits: &CapsuleLimits) -> u32 {
    u32::try_from(limits.capsule_len()).unwrap_or(u32::MAX).next_multiple_of(64)
}

/// The right to go on with a command. The response consumes it.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct CommandToken(u16);

impl CommandToken {
    /// The command's slot, below the queue's entries: for tables of the driver.
    #[must_use]
    pub fn slot(&self) -> u16 {
        self.0
    }
}

/// What a queue tells its driver.
#[derive(Debug, PartialEq, Eq)]
pub enum TargetEvent {
    /// A command, as a controller reads it (SGL1 asks for a transfer by the transport), and where its data are.
    Command {
        /// The command.
        token: CommandToken,
        /// Its entry.
        sqe: Sqe,
        /// Where its data are, or what the response has to say.
        data: Result<HostData, Status>,
    },
    /// The data of [`TargetQueue::read_host_data`] are in the buffer.
    DataHere(CommandToken),
    /// The queue has ended before they were: the buffer is free, the command is over.
    DataLost(u16),
    /// The response with this tag has left, or never will: its buffer is free.
    Responded(u32),
    /// The queue has ended. Nothing will be sent; tokens are still to be given back with responses.
    Lost(Loss),
}

/// A request of the send queue.
#[derive(Clone, Copy, Debug)]
enum Sent {
    /// A block of a command's data from the host.
    Read(u16),
    /// A block of a command's data to the host.
    Write,
    /// A response, with the driver's tag.
    Response(u32),
    /// The same, of one that invalidates a key.
    Invalidating(u32),
}

/// The controller's end of one queue.
#[derive(Debug)]
pub struct TargetQueue {
    connection: ConnectionId,
    config: TargetQueueConfig,
    slots: Vec<Slot>,
    sends: SendQueue<Sent>,
    /// Receives that are posted.
    receives: u16,
    reads: u8,
    /// Commands with blocks to read, and with a response to send, oldest first.
    to_read: VecDeque<u16>,
    to_respond: VecDeque<u16>,
    /// Commands that the driver has.
    held: u16,
    sqhd: u16,
    sq_entries: u16,
    /// A message has come.
    has_received: bool,
    /// Requests of the send queue that have ended.
    completed: u64,
    loss: Option<Loss>,
    is_told: bool,
    events: VecDeque<TargetEvent>,
    batch: Vec<SendWork>,
    receive_batch: Vec<RecvWork>,
    /// Room for a capsule's head. Only bytes of the message at hand are read from it.
    head: Box<[u8; CAPSULE_HEAD_LEN]>,
    /// Slots without a command, and shared receives that are free again: of a queue without receives of its own.
    free: Vec<u16>,
    returned: Vec<u32>,
}

impl TargetQueue {
    /// A queue of a connection whose queue pair is made. Its receives are to be posted before it is accepted.
    #[must_use]
    pub fn new(connection: ConnectionId, config: TargetQueueConfig) -> Self {
        let entries = usize::from(config.entries);
        let sends = usize::try_from(config.sends).unwrap_or(usize::MAX);
        Self {
            connection,
            config,
            slots: (0..entries).map(|_| Slot::default()).collect(),
            sends: SendQueue::new(config.sends),
            receives: 0,
            reads: 0,
            to_read: VecDeque::with_capacity(entries),
            to_respond: VecDeque::with_capacity(entries),
            held: 0,
            sqhd: 0,
            sq_entries: config.entries,
            has_received: false,
            completed: 0,
            loss: None,
            is_told: false,
            events: VecDeque::with_capacity(entries),
            batch: Vec::with_capacity(sends),
            receive_batch: Vec::with_capacity(entries),
            head: Box::new([0; CAPSULE_HEAD_LEN]),
            free: if config.capsules.is_none() {
                (0..config.entries).collect()
            } else {
                Vec::new()
            },
            returned: Vec::with_capacity(entries),
        }
    }

    /// Posts all receives that are its own.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn post_receives<P: Provider>(&mut self, provider: &mut P) -> Result<(), Loss> {
        if self.config.capsules.is_some() {
            (0..self.config.entries).for_each(|index| self.repost(index));
        }
        self.post(provider, &mut PortCounts::default());
        self.loss.map_or(Ok(()), Err)
    }

    /// The host's Connect has said how many entries the submission queue has; SQHD counts modulo that.
    pub fn set_sq_entries(&mut self, entries: u16) {
        self.sq_entries = entries.max(1);
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<TargetEvent> {
        self.events.pop_front()
    }

    /// Whether there is an event.
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Why the queue has ended.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.loss
    }

    /// Whether no request of the queue pair is outstanding and the driver has no command: memory can go.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.sends.is_empty() && self.receives == 0 && self.held == 0
    }

    /// Whether responses or data are on their way to the host or from it.
    #[must_use]
    pub fn awaits_host(&self) -> bool {
        !self.sends.is_empty() || !self.to_respond.is_empty() || !self.to_read.is_empty()
    }

    /// Requests of the send queue that have ended; it stands still when the host takes nothing.
    #[must_use]
    pub fn progress(&self) -> u64 {
        self.completed
    }

    /// Whether a message of the host has come: then the host has the accept.
    #[must_use]
    pub fn has_received(&self) -> bool {
        self.has_received
    }

    /// Where data are that came in a capsule: from an offset of this memory on, so many bytes.
    ///
    /// # Panics
    /// When the data are not in the capsule: that is a bug of the caller.
    #[must_use]
    pub fn in_capsule(&self, token: &CommandToken, data: &HostData) -> (Region, u32, u32) {
        let HostData::InCapsule { start, len } = *data else {
            unreachable!("the data of the command are in the host's memory")
        };
        let place = &self.slots[usize::from(token.0)].place;
        (place.region, place.offset + start, len)
    }

    /// A shared receive that is free again.
    pub(crate) fn take_returned(&mut self) -> Option<u32> {
        self.returned.pop()
    }

    // -------------------------------------------------------------------------- completions

    /// A request of this queue has ended.
    pub fn handle_completion<P: Provider>(&mut self, provider: &P, done: &Completion) {
        if done.id & RECEIVE != 0 {
            return self.handle_receive(provider, done);
        }
        let succeeded = done.status.is_success();
        if !succeeded {
            if is_of_operation(done.status)
                && let Some(Sent::Invalidating(_)) = self.sends.get(done.id)
            {
                provider.note_failed_invalidation();
            }
            self.note_failure("a request to the host", done);
        }
        while let Some(sent) = self.sends.pop_until(done.id) {
            if succeeded && matches!(sent, Sent::Invalidating(_)) {
                provider.note_invalidation();
            }
            self.end_send(sent, succeeded);
        }
        self.tell_loss();
    }

    fn end_send(&mut self, sent: Sent, succeeded: bool) {
        self.completed += 1;
        match sent {
            Sent::Write => {}
            Sent::Response(tag) | Sent::Invalidating(tag) => {
                self.events.push_back(TargetEvent::Responded(tag))
            }
            Sent::Read(index) => {
                self.reads -= 1;
                let slot = &mut self.slots[usize::from(index)];
                slot.blocks_under_way -= 1;
                let is_whole = slot.next_block == slot.blocks.len();
                slot.failed |= !succeeded;
                if slot.blocks_under_way == 0 && (is_whole || self.loss.is_some()) {
                    let failed = slot.failed;
                    self.end_data(index, failed);
                }
            }
        }
    }

    /// All that was to be read of a command is there, or never will be.
    fn end_data(&mut self, index: u16, failed: bool) {
        let slot = &mut self.slots[usize::from(index)];
        if failed || slot.next_block < slot.blocks.len() {
            self.end_slot(index);
            self.held -= 1;
            self.events.push_back(TargetEvent::DataLost(index));
        } else {
            slot.stage = Stage::Held;
            self.events.push_back(TargetEvent::DataHere(CommandToken(index)));
        }
    }

    fn handle_receive<P: Provider>(&mut self, provider: &P, done: &Completion) {
        let index = u16::try_from(done.id & !RECEIVE).unwrap_or(u16::MAX);
        let Some(slot) = self.slots.get_mut(usize::from(index)) else { return };
        if slot.stage != Stage::Posted {
            return;
        }
        slot.stage = Stage::Over;
        self.receives -= 1;
        if !done.status.is_success() {
            return self.note_failure("a receive", done);
        }
        if self.loss.is_none() {
            self.take_message(provider, index, done.bytes);
        }
    }

    /// A message for this queue has taken a shared receive.
    pub(crate) fn handle_shared<P: Provider>(
        &mut self,
        provider: &P,
        done: &Completion,
        place: Place,
    ) {
        if !done.status.is_success() || self.loss.is_some() {
            self.returned.push(place.receive);
            if !done.status.is_success() {
                self.note_failure("a receive", done);
            }
            return self.tell_loss();
        }
        let Some(index) = self.free.pop() else {
            self.returned.push(place.receive);
            return self.lose(Loss::Violation(Violation::QueueOverrun));
        };
        self.slots[usize::from(index)].place = place;
        self.take_message(provider, index, done.bytes);
    }

    /// A message of so many bytes has come for a slot.
    fn take_message<P: Provider>(&mut self, provider: &P, index: u16, bytes: u32) {
        let Place { region, offset, .. } = self.slots[usize::from(index)].place;
        self.has_received = true;
        // Shared receives have room for the longest capsule of any queue.
        if bytes > u32::try_from(self.config.limits.capsule_len()).unwrap_or(u32::MAX) {
            self.end_slot(index);
            return self.lose(Loss::Violation(Violation::CommandLong));
        }
        let most = usize::try_from(bytes).unwrap_or(0).min(CAPSULE_HEAD_LEN);
        // Only commands with data in lists need more than their own bytes.
        let command_len = most.min(Sqe::LEN);
        provider.read(&region, offset, &mut self.head[..command_len]);
        let is_list = is_list(&self.head[..command_len]);
        if is_list {
            provider.read(&region, offset + 64, &mut self.head[command_len..most]);
        }
        let head = &self.head[..if is_list { most } else { command_len }];
        let received = usize::try_from(bytes).unwrap_or(0);
        match CommandCapsule::parse_head(head, received, &self.config.limits) {
            Ok(capsule) => self.take_command(index, &capsule),
            Err(violation) => {
                self.end_slot(index);
                self.lose(Loss::Violation(violation));
            }
        }
    }

    /// The command whose head was read last.
    fn take_command(&mut self, index: u16, capsule: &CommandCapsule) {
        let slot = &mut self.slots[usize::from(index)];
        slot.begin();
        let mut sqe = capsule.sqe;
        if let Ok(data) = &capsule.data {
            sqe = data.for_controller(&sqe);
            slot.key = data.key_to_invalidate().filter(|_| self.config.invalidates);
            slot.blocks.extend(data.blocks(&self.head[..]));
        }
        self.held += 1;
        // A head pointer names the next entry (Base 2.0, 3.3.1.2).
        self.sqhd = (self.sqhd + 1) % self.sq_entries;
        let token = CommandToken(index);
        self.events.push_back(TargetEvent::Command { token, sqe, data: capsule.data });
    }

    // -------------------------------------------------------------------------- driver

    /// Moves the data of a command from the host's memory into a buffer of as many bytes.
    ///
    /// # Panics
    /// When the command's data are not in the host's memory, or are not as long as the buffer: bugs of the caller.
    pub fn read_host_data(&mut self, token: CommandToken, buffer: Slice) {
        let CommandToken(index) = token;
        let lost = self.loss.is_some();
        let slot = &mut self.slots[usize::from(index)];
        assert_eq!(slot.bytes(), buffer.len, "the buffer of a command's data");
        assert_ne!(buffer.len, 0, "data to read");
        slot.stage = Stage::Reading;
        slot.buffer = buffer;
        if lost {
            return self.end_data(index, true);
        }
        self.to_read.push_back(index);
    }

    /// Ends a command. `data` is where the data for the host are, exactly as many bytes as the command has; they are
    /// sent only with success. The event that gives the buffer back has the `tag`.
    ///
    /// # Panics
    /// When there are not as many bytes: that is a bug of the caller.
    pub fn respond(&mut self, token: CommandToken, cqe: Cqe, data: Option<Slice>, tag: u32) {
        let CommandToken(index) = token;
        let lost = self.loss.is_some();
        let slot = &mut self.slots[usize::from(index)];
        let data = data.filter(|_| cqe.status.is_success());
        slot.buffer = data.unwrap_or_default();
        assert!(data.is_none() || slot.buffer.len == slot.bytes(), "the data of a response");
        slot.stage = Stage::Responding;
        (slot.response, slot.tag) = (cqe, tag);
        self.held -= 1;
        if lost {
            self.end_slot(index);
            return self.events.push_back(TargetEvent::Responded(tag));
        }
        self.to_respond.push_back(index);
    }

    /// Gives a command up that nobody answers: its entry is free for another one.
    pub fn forget(&mut self, token: CommandToken) {
        let CommandToken(index) = token;
        self.held -= 1;
        if self.config.capsules.is_some() && self.loss.is_none() {
            self.repost(index);
        } else {
            self.end_slot(index);
        }
    }

    /// Ends the queue from this end, or because of an event.
    pub fn close(&mut self, loss: Loss) {
        self.lose(loss);
        if loss == Loss::DeviceRemoved {
            self.give_up();
        }
    }

    /// No further completions will come, or nobody waits for them any longer: the queue pair is destroyed.
    pub fn give_up(&mut self) {
        self.lose(Loss::Closed);
        while let Some(sent) = self.sends.pop() {
            self.end_send(sent, false);
        }
        self.receives = 0;
        for slot in &mut self.slots {
            if slot.stage == Stage::Posted {
                slot.stage = Stage::Over;
            }
        }
        self.tell_loss();
    }

    /// Gathers what there is to post. Receives that are free again are known afterwards: those that are shared are to be
    /// posted before [`Self::post`].
    pub(crate) fn prepare<P: Provider>(&mut self, provider: &mut P) {
        if self.loss.is_none() {
            self.prepare_responses(provider);
            self.prepare_reads();
        }
    }

    /// Posts what was gathered.
    pub(crate) fn post<P: Provider>(&mut self, provider: &mut P, counts: &mut PortCounts) {
        if self.loss.is_some() {
            while let Some(work) = self.receive_batch.pop() {
                self.unpost_receive(&work);
            }
            return self.unpost_from(0);
        }
        // Receives first: the host may use an entry again as soon as it has the response.
        if !self.receive_batch.is_empty() {
            counts.receives += u64::try_from(self.receive_batch.len()).unwrap_or(0);
            counts.receive_posts += 1;
            let posted = provider.post_recv(self.connection, &self.receive_batch);
            if let Err(error) = posted {
                for work in self.receive_batch.split_off(error.posted) {
                    self.unpost_receive(&work);
                }
                // The others are posted, and complete.
                self.receive_batch.clear();
                self.lose(Loss::Refused("a receive"));
                return self.unpost_from(0);
            }
            self.receive_batch.clear();
        }
        if !self.batch.is_empty() {
            counts.sends += u64::try_from(self.batch.len()).unwrap_or(0);
            counts.send_posts += 1;
            match provider.post_send(self.connection, &self.batch) {
                Ok(()) => self.batch.clear(),
                Err(error) => {
                    let refused = self.batch.get(error.posted).map(|work| work.operation);
                    // A queue pair that is in error may refuse whatever it is.
                    if self.loss.is_none()
                        && let Some(Operation::Send { invalidate: Some(_) }) = refused
                    {
                        provider.note_failed_invalidation();
                    }
                    self.lose(Loss::Refused("a request to the host"));
                    self.unpost_from(error.posted);
                }
            }
        }
    }

    /// A receive of the batch is not posted.
    fn unpost_receive(&mut self, work: &RecvWork) {
        let index = usize::try_from(work.id & !RECEIVE).unwrap_or(usize::MAX);
        if let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.stage == Stage::Posted) {
            slot.stage = Stage::Over;
            self.receives -= 1;
        }
    }

    /// The requests of the batch from this one on are not posted.
    fn unpost_from(&mut self, posted: usize) {
        let mut ended = Vec::new();
        self.sends.take_back(self.batch.len() - posted, |sent| ended.push(sent));
        self.batch.clear();
        for sent in ended {
            self.end_send(sent, false);
        }
    }

    fn prepare_responses<P: Provider>(&mut self, provider: &mut P) {
        while let Some(&index) = self.to_respond.front() {
            let slot = &self.slots[usize::from(index)];
            let writes = if slot.buffer.len == 0 { 0 } else { slot.blocks.len() };
            if self.sends.room() < writes + 1 {
                break;
            }
            self.to_respond.pop_front();
            let mut local = slot.buffer;
            for at in 0..writes {
                let block = self.slots[usize::from(index)].blocks[at];
                let operation = Operation::Write { remote: block.address, key: block.key };
                let id = self.sends.push(Sent::Write);
                let part = Slice { len: block.len, ..local };
                self.batch.push(SendWork {
                    id,
                    operation,
                    local: part,
                    signalled: false,
                    inline: false,
                });
                local.address += u64::from(block.len);
            }
            self.prepare_response(provider, index);
            if self.config.capsules.is_some() {
                self.repost(index);
            } else {
                self.end_slot(index);
            }
        }
    }

    fn prepare_response<P: Provider>(&mut self, provider: &mut P, index: u16) {
        let Slot { tag, key, .. } = self.slots[usize::from(index)];
        // Another queue may have found out that the device cannot.
        let key = key.filter(|_| provider.capabilities().send_with_invalidate);
        let sent = if key.is_some() { Sent::Invalidating(tag) } else { Sent::Response(tag) };
        let id = self.sends.push(sent);
        let place = u32::try_from(id % u64::from(self.config.sends)).unwrap_or(0) * RESPONSE_LEN;
        let slot = &self.slots[usize::from(index)];
        let cqe = Cqe { sqhd: self.sqhd, ..slot.response };
        provider.write(&self.config.responses, place, &cqe.to_bytes());
        self.batch.push(SendWork {
            id,
            operation: Operation::Send { invalidate: key },
            local: self.config.responses.slice(place, RESPONSE_LEN),
            signalled: true,
            inline: self.config.inline,
        });
    }

    fn prepare_reads(&mut self) {
        while let Some(&index) = self.to_read.front() {
            let slot = &mut self.slots[usize::from(index)];
            while let Some(&block) = slot.blocks.get(slot.next_block) {
                if self.reads == self.config.reads || self.sends.room() == 0 {
                    return;
                }
                let id = self.sends.push(Sent::Read(index));
                self.batch.push(SendWork {
                    id,
                    operation: Operation::Read { remote: block.address, key: block.key },
                    local: Slice { len: block.len, ..slot.buffer },
                    signalled: true,
                    inline: false,
                });
                slot.buffer.address += u64::from(block.len);
                slot.next_block += 1;
                slot.blocks_under_way += 1;
                self.reads += 1;
            }
            self.to_read.pop_front();
        }
    }

    fn repost(&mut self, index: u16) {
        let Some(region) = self.config.capsules else { return };
        let stride = capsule_stride(&self.config.limits);
        let len = u32::try_from(self.config.limits.capsule_len()).unwrap_or(stride);
        let offset = u32::from(index) * stride;
        let local = region.slice(offset, len);
        self.receive_batch.push(RecvWork { id: RECEIVE | u64::from(index), local });
        let slot = &mut self.slots[usize::from(index)];
        slot.stage = Stage::Posted;
        slot.place = Place { receive: 0, region, offset };
        self.receives += 1;
    }

    /// The slot has no command any longer, and no receive of its own.
    fn end_slot(&mut self, index: u16) {
        let slot = &mut self.slots[usize::from(index)];
        slot.stage = Stage::Over;
        if self.config.capsules.is_none() {
            self.returned.push(slot.place.receive);
            self.free.push(index);
        }
    }

    // -------------------------------------------------------------------------- the end

    fn note_failure(&mut self, what: &'static str, done: &Completion) {
        self.lose(Loss::Work(what, done.status));
    }

    /// The driver learns of the loss once the cause is known, or no better one can come.
    fn tell_loss(&mut self) {
        let Some(loss) = self.loss else { return };
        let is_final = !loss.is_consequence() || self.sends.is_empty() && self.receives == 0;
        if is_final && !std::mem::replace(&mut self.is_told, true) {
            self.events.push_back(TargetEvent::Lost(loss));
        }
    }

    fn lose(&mut self, loss: Loss) {
        let is_first = self.loss.is_none();
        let known = self.loss.get_or_insert(loss);
        if known.is_consequence() && loss.is_cause() {
            *known = loss;
        }
        self.tell_loss();
        if !is_first {
            return;
        }
        // What was not posted ends here, what was posted ends with its completion.
        for index in std::mem::take(&mut self.to_respond) {
            let tag = self.slots[usize::from(index)].tag;
            self.end_slot(index);
            self.events.push_back(TargetEvent::Responded(tag));
        }
        for index in std::mem::take(&mut self.to_read) {
            if self.slots[usize::from(index)].blocks_under_way == 0 {
                self.end_data(index, true);
            }
        }
    }
}

/// Whether this is what a device says at this end of an operation that it does not have. A device may say it of other failures,
/// too. What the peer says, such as of a key that it has invalidated itself, is no word about this device.
fn is_of_operation(status: WorkStatus) -> bool {
    matches!(status, WorkStatus::LOC_QP_OP_ERR | WorkStatus::MW_BIND_ERR)
}

/// Whether a command's descriptor names descriptors behind it.
fn is_list(command: &[u8]) -> bool {
    command.get(39).is_some_and(|kind| kind >> 4 == 3)
}
