//! The host's end of a queue: commands go in capsules, responses come.
//!
//! The memory of a command belongs to the controller until the command has ended with an event: by its response, or,
//! when the queue is lost, after the queue pair is drained and nothing can reach memory any longer.

use std::collections::VecDeque;

use raceline_proto::host::CommandTable;
use raceline_proto::nvme::{CommandId, Cqe, SglDescriptor, Sqe};
use raceline_proto::rdma::{
    KeyedBlock, RESPONSE_CAPSULE_LEN, Violation, WorkStatus, parse_response,
};
use zerocopy::IntoBytes;

use crate::Loss;
use crate::send_queue::{RECEIVE, SendQueue};
use crate::verbs::{Completion, ConnectionId, Operation, Provider, RecvWork, Region, SendWork};

/// Bytes of a receive.
const RESPONSE_LEN: u32 = 16;
const _: () = assert!(RESPONSE_CAPSULE_LEN == 16);

/// Sizes and memory of a queue.
#[derive(Clone, Copy, Debug)]
pub struct HostQueueConfig {
    /// Commands outstanding, at most: entries of the submission queue - 1.
    pub commands: u16,
    /// Bytes of memory for each capsule: 64, and the data or descriptors of those that are made there.
    pub capsule_len: u32,
    /// Bytes of a capsule that is posted inline, at most.
    pub inline_bytes: u32,
    /// Memory for capsules: [`Self::capsule_bytes`].
    pub capsules: Region,
    /// Memory for responses: [`Self::response_bytes`].
    pub responses: Region,
}

impl HostQueueConfig {
    /// Bytes for the capsules of a queue.
    #[must_use]
    pub fn capsule_bytes(commands: u16, capsule_len: u32) -> u32 {
        u32::from(commands.next_power_of_two()) * capsule_len
    }

    /// Bytes for the responses of a queue.
    #[must_use]
    pub fn response_bytes(commands: u16) -> u32 {
        u32::from(commands) * RESPONSE_LEN
    }
}

/// Where the data of a command are.
#[derive(Clone, Copy, Debug)]
pub enum HostTransfer<'a> {
    /// There are none.
    None,
    /// These bytes, in the capsule.
    InCapsule(&'a [u8]),
    /// In the capsule, which is made in this memory: behind its first 64 bytes, which are written here, lie so many bytes of
    /// data. The memory belongs to the queue until the command has ended.
    CapsuleIn {
        /// Registered for local use.
        memory: Region,
        /// Bytes of data.
        len: u32,
    },
    /// In registered memory. The controller may be asked to invalidate the key, if it can be: that ends the registration.
    Keyed {
        /// The memory.
        block: KeyedBlock,
        /// The key may be invalidated.
        invalidate: bool,
    },
    /// In several blocks of registered memory, as many as MSDBD allows.
    List(&'a [KeyedBlock]),
}

/// What a queue tells its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostEvent {
    /// A command has its response.
    Completed {
        /// The command.
        cid: CommandId,
        /// Its response.
        cqe: Cqe,
        /// The command's key is no longer valid.
        invalidated: bool,
    },
    /// A command was lost with its queue; the controller may have executed it. Nothing can reach its memory.
    Ended(CommandId),
    /// The queue has ended.
    Lost(Loss),
}

/// A command cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// All commands are outstanding.
    Full,
    /// The queue has ended.
    Lost,
    /// A capsule does not hold these data.
    TooLong,
}

/// One command.
#[derive(Debug, Default)]
struct Entry {
    /// The key that its response may invalidate.
    offered: Option<u32>,
    /// Its capsule has left: the memory of the capsule is free.
    sent: bool,
    response: Option<(Cqe, bool)>,
}

/// The host's end of one queue.
#[derive(Debug)]
pub struct HostQueue {
    connection: ConnectionId,
    config: HostQueueConfig,
    commands: CommandTable<Entry>,
    sends: SendQueue<CommandId>,
    receives: u16,
    loss: Option<Loss>,
    events: VecDeque<HostEvent>,
    batch: Vec<SendWork>,
    receive_batch: Vec<RecvWork>,
    ended: bool,
    is_told: bool,
}

impl HostQueue {
    /// A queue of a connection whose queue pair is made. Its receives are to be posted before it connects.
    #[must_use]
    pub fn new(connection: ConnectionId, config: HostQueueConfig) -> Self {
        let count = usize::from(config.commands);
        Self {
            connection,
            config,
            commands: CommandTable::new(config.commands),
            sends: SendQueue::new(config.commands.into()),
            receives: 0,
            loss: None,
            events: VecDeque::with_capacity(count + 1),
            batch: Vec::with_capacity(count),
            receive_batch: Vec::with_capacity(count),
            ended: false,
            is_told: false,
        }
    }

    /// Posts all receives.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn post_receives<P: Provider>(&mut self, provider: &mut P) -> Result<(), Loss> {
        for index in 0..self.config.commands {
            self.repost(index);
        }
        self.flush(provider);
        self.loss.map_or(Ok(()), Err)
    }

    /// Takes a command: its capsule leaves with [`Self::flush`]. The command's identifier and SGL1 are written here.
    ///
    /// # Errors
    /// When the queue is full or lost, or the data do not fit into a capsule.
    pub fn submit<P: Provider>(
        &mut self,
        provider: &mut P,
        sqe: &Sqe,
        transfer: HostTransfer<'_>,
    ) -> Result<CommandId, SubmitError> {
        if self.loss.is_some() {
            return Err(SubmitError::Lost);
        }
        if self.commands.len() >= usize::from(self.config.commands) || self.sends.room() == 0 {
            return Err(SubmitError::Full);
        }
        let (sgl1, behind) = descriptor(&transfer);
        let room = match transfer {
            HostTransfer::CapsuleIn { memory, .. } => memory.len,
            _ => self.config.capsule_len,
        };
        if behind > room.saturating_sub(64) {
            return Err(SubmitError::TooLong);
        }
        let offered = match transfer {
            HostTransfer::Keyed { block, invalidate: true } => Some(block.key),
            _ => None,
        };
        let entry = Entry { offered, ..Entry::default() };
        let cid = self.commands.insert(entry).map_err(|_| SubmitError::Full)?;
        let slot = usize::from(cid.0) & (self.commands.capacity() - 1);
        let (capsules, at) = match transfer {
            HostTransfer::CapsuleIn { memory, .. } => (memory, 0),
            _ => (self.config.capsules, u32::try_from(slot).unwrap_or(0) * self.config.capsule_len),
        };
        let sqe = Sqe { cid: cid.0.into(), flags: sqe.flags | Sqe::PSDT_SGL, sgl1, ..*sqe };
        provider.write(&capsules, at, sqe.as_bytes());
        match transfer {
            HostTransfer::InCapsule(bytes) => provider.write(&capsules, at + 64, bytes),
            HostTransfer::List(list) => {
                for (n, block) in (0..).zip(list) {
                    let descriptor = block.descriptor(false);
                    provider.write(&capsules, at + 64 + n * 16, descriptor.as_bytes());
                }
            }
            HostTransfer::None | HostTransfer::CapsuleIn { .. } | HostTransfer::Keyed { .. } => {}
        }
        let len = 64 + behind;
        let id = self.sends.push(cid);
        self.batch.push(SendWork {
            id,
            operation: Operation::Send { invalidate: None },
            local: capsules.slice(at, len),
            signalled: true,
            inline: len <= self.config.inline_bytes,
        });
        Ok(cid)
    }

    /// Posts what there is to post. Call it at the end of a turn.
    pub fn flush<P: Provider>(&mut self, provider: &mut P) {
        if self.loss.is_some() {
            return;
        }
        if !self.receive_batch.is_empty() {
            if let Err(error) = provider.post_recv(self.connection, &self.receive_batch) {
                self.receive_batch.drain(..error.posted);
                self.lose(Loss::Refused("a receive"));
            }
            self.receive_batch.clear();
        }
        if !self.batch.is_empty() {
            if let Err(error) = provider.post_send(self.connection, &self.batch) {
                self.batch.drain(..error.posted);
                self.lose(Loss::Refused("a command"));
            }
            self.batch.clear();
        }
    }

    /// A request of this queue has ended.
    pub fn handle_completion<P: Provider>(&mut self, provider: &P, done: &Completion) {
        if done.id & RECEIVE != 0 {
            return self.handle_receive(provider, done);
        }
        if !done.status.is_success() {
            self.lose(Loss::Work("a command capsule", done.status));
        }
        while let Some(cid) = self.sends.pop_until(done.id) {
            if let Some(entry) = self.commands.get_mut(cid) {
                entry.sent = true;
                if entry.response.is_some() && takes_responses(self.loss) {
                    self.complete(cid);
                }
            }
        }
        self.tell_loss();
    }

    fn handle_receive<P: Provider>(&mut self, provider: &P, done: &Completion) {
        let index = u16::try_from(done.id & !RECEIVE).unwrap_or(u16::MAX);
        if index >= self.config.commands || self.receives == 0 {
            return;
        }
        self.receives -= 1;
        if !done.status.is_success() {
            return self.lose(Loss::Work("a receive", done.status));
        }
        if !takes_responses(self.loss) {
            return;
        }
        let mut bytes = [0; RESPONSE_CAPSULE_LEN];
        let len = usize::try_from(done.bytes).unwrap_or(usize::MAX);
        provider.read(&self.config.responses, u32::from(index) * RESPONSE_LEN, &mut bytes);
        let message = if len == bytes.len() { &bytes[..] } else { &[] };
        match self.take_response(message, done.invalidated) {
            Ok(()) if self.loss.is_none() => self.repost(index),
            Ok(()) => self.tell_loss(),
            Err(violation) => self.lose(Loss::Violation(violation)),
        }
    }

    fn take_response(&mut self, message: &[u8], key: Option<u32>) -> Result<(), Violation> {
        let cqe = parse_response(message)?;
        let entry = self.commands.get_mut(cqe.cid).ok_or(Violation::ResponseUnknown)?;
        if entry.response.is_some() {
            return Err(Violation::ResponseUnknown);
        }
        // Another command's key: its memory would have been taken away from it.
        if key.is_some() && key != entry.offered {
            return Err(Violation::KeyInvalidated);
        }
        entry.response = Some((cqe, key.is_some()));
        // The device may still need the capsule's bytes, to send them again.
        if entry.sent {
            self.complete(cqe.cid);
        }
        Ok(())
    }

    /// Ends a command, if its response has come.
    fn complete(&mut self, cid: CommandId) {
        let is_answered = self.commands.get_mut(cid).is_some_and(|entry| entry.response.is_some());
        if is_answered
            && let Some(Entry { response: Some((cqe, invalidated)), .. }) =
                self.commands.remove(cid)
        {
            self.events.push_back(HostEvent::Completed { cid, cqe, invalidated });
        }
    }

    fn repost(&mut self, index: u16) {
        let local = self.config.responses.slice(u32::from(index) * RESPONSE_LEN, RESPONSE_LEN);
        self.receive_batch.push(RecvWork { id: RECEIVE | u64::from(index), local });
        self.receives += 1;
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<HostEvent> {
        self.events.pop_front()
    }

    /// Why the queue has ended.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.loss
    }

    /// Commands outstanding.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.commands.len()
    }

    /// Whether no request of the queue pair is outstanding.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.sends.is_empty() && self.receives == 0
    }

    /// Ends the queue from this end, or because of an event.
    pub fn close(&mut self, loss: Loss) {
        self.lose(loss);
    }

    /// The queue pair is drained or destroyed: nothing reaches memory any longer, and all commands end.
    pub fn end(&mut self) {
        self.lose(Loss::Closed);
        while self.sends.pop().is_some() {}
        self.receives = 0;
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        // A response that has come counts, whatever became of the capsule.
        let left: Vec<CommandId> = self.commands.ids().collect();
        for &cid in &left {
            self.complete(cid);
        }
        self.tell_loss();
        for cid in left {
            if self.commands.remove(cid).is_some() {
                self.events.push_back(HostEvent::Ended(cid));
            }
        }
    }

    /// The driver learns of the loss once the cause is known, or no better one can come; and not before the responses that
    /// have come.
    fn tell_loss(&mut self) {
        let Some(loss) = self.loss else { return };
        let is_final = !takes_responses(self.loss) || self.is_drained();
        if is_final && !std::mem::replace(&mut self.is_told, true) {
            self.events.push_back(HostEvent::Lost(loss));
        }
    }

    fn lose(&mut self, loss: Loss) {
        if let Some(known) = &mut self.loss {
            if known.is_consequence() && loss.is_cause() {
                *known = loss;
            }
            return self.tell_loss();
        }
        self.loss = Some(loss);
        // What was not posted never will be.
        self.receives -= u16::try_from(self.receive_batch.len()).unwrap_or(0).min(self.receives);
        self.receive_batch.clear();
        let unsent = std::mem::take(&mut self.batch).len();
        self.sends.take_back(unsent, |_| {});
        self.tell_loss();
    }

    /// What commands end with that were lost with their queue.
    #[must_use]
    pub fn status_of_ended() -> raceline_proto::nvme::Status {
        WorkStatus::status_of_outstanding()
    }
}

/// Whether responses still count. A peer that disconnects has sent its last ones before that, and a device may tell of the
/// disconnection first.
fn takes_responses(loss: Option<Loss>) -> bool {
    loss.is_none_or(|loss| loss.is_consequence() || loss == Loss::Disconnected)
}

/// SGL1 of a command, and how many bytes stand behind it in the capsule.
fn descriptor(transfer: &HostTransfer<'_>) -> (SglDescriptor, u32) {
    match transfer {
        HostTransfer::None => (KeyedBlock::default().descriptor(false), 0),
        HostTransfer::Keyed { block, invalidate } => (block.descriptor(*invalidate), 0),
        HostTransfer::InCapsule(bytes) => {
            let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            (SglDescriptor::in_capsule(len), len)
        }
        HostTransfer::CapsuleIn { len, .. } => (SglDescriptor::in_capsule(*len), *len),
        HostTransfer::List(list) => {
            let sgl = KeyedBlock::list_descriptor(list.len());
            (sgl, sgl.length.get())
        }
    }
}
