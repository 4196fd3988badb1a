//! Sending: everything that is ready to go leaves in one batch.

use raceline_proto::nvme::opcode::fabrics;
use raceline_proto::nvme::{CommandId, Direction};
use raceline_proto::tcp::{ADMIN_IN_CAPSULE_BYTES, DIGEST_LEN, HostQueue, R2tGrant};
use raceline_reactor::flow::{Regime, policy};
use raceline_reactor::{Accelerator, Context, SendBatch, SharedBuf};

use super::{Entry, Link, QueuePair, SqFlow, State};
use crate::command::Data;
use crate::counters::QueueCounters;
use crate::gather::Decision;

/// An R2T and how much of it has been answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) r2t: R2tGrant,
    pub(super) sent: u32,
}

/// A batch that is being filled.
struct Filling<'a> {
    batch: &'a mut SendBatch,
    /// Its number.
    number: u64,
    pdus_left: usize,
    /// Bytes that its commands may still ask for; the last command may exceed them.
    asked_left: usize,
}

impl Filling<'_> {
    /// Whether another PDU of `bytes` bytes without payload fits, and its payload.
    fn has_room(&self, bytes: usize) -> bool {
        self.pdus_left > 0 && self.batch.has_room(bytes, 1)
    }
}

impl QueuePair {
    /// Sends what is ready, unless a send is in flight: then it leaves with the next. To be called
    /// once per turn of the loop.
    // Inline, as most turns have nothing to do for a queue.
    #[inline]
    pub fn flush(&mut self, cx: &mut Context<'_>) {
        let load = self.under_way.load();
        if (load.counts() || self.told.counts()) && self.told != load {
            self.make_plan(cx);
        }
        if !self.pending.is_empty() || !self.grants.is_empty() {
            self.flush_ready(cx);
        }
        if self.can_receive() {
            self.post_receive(cx);
        }
    }

    fn flush_ready(&mut self, cx: &mut Context<'_>) {
        if !matches!(self.state, State::Ready | State::Connect(_) | State::Proving) {
            return;
        }
        let Some(link) = &mut self.link else { return self.flush_rdma(cx) };
        if link.sending || link.closed || self.waits_for_more(cx) {
            return;
        }
        let asked_left = self.bytes_to_ask_for(cx);
        let before_data = self.commands_go_before_data();
        let Some(link) = &mut self.link else { return };
        let Some(mut batch) = self.batch.take() else { return };
        let number = link.batches_started + 1;
        let accelerator = cx.io.accelerator();
        let pdus_left = self.config.send_pdus.into();
        let mut filling = Filling { batch: &mut batch, number, pdus_left, asked_left };
        if before_data {
            self.counters.commands_before_data.add(1);
            self.put_some_commands(accelerator, &mut filling);
        }
        self.put_data(accelerator, &mut filling);
        self.put_commands(accelerator, &mut filling);
        let full = filling.pdus_left == 0;
        self.gathering.handle_sent(self.pending.len());
        if batch.is_empty() {
            self.batch = Some(batch);
            return;
        }
        if self.config.send_flags {
            // Only where nothing but the size of this batch keeps the rest back.
            batch.set_followed(full && !(self.pending.is_empty() && self.grants.is_empty()));
        }
        self.start_send(cx, batch);
        self.watch_deadlines(cx);
    }

    /// Whether the commands that are ready are kept back so that others go with them. Data that the
    /// controller has asked for are not kept back: the controller keeps a buffer for them.
    pub(super) fn waits_for_more(&mut self, cx: &mut Context<'_>) -> bool {
        if !matches!(self.state, State::Ready) || !self.grants.is_empty() {
            return false;
        }
        let in_flight = self.commands.len() - self.pending.len();
        match self.gathering.decide(cx.now, self.pending.len(), in_flight) {
            Decision::Send => false,
            Decision::Wait => true,
            Decision::WaitUntil(at) => {
                cx.io.timer(at, self.token);
                true
            }
        }
    }

    /// The bytes that the commands of the next send may ask for. Commands that are kept back go when
    /// something has been received, or when that send is over.
    fn bytes_to_ask_for(&self, cx: &mut Context<'_>) -> usize {
        let Some(link) = &self.link else { return 0 };
        if self.pending.is_empty() || self.plan.reading < Regime::Flooded {
            return usize::MAX;
        }
        self.counters.commands_kept_back.add(1);
        let unread = cx.io.unread(link.socket);
        policy::bytes_to_ask(unread, self.asked(), cx.io.flight().share_to_ask())
    }

    /// Sends what `fill` puts into an empty batch, if none is in flight.
    pub(super) fn send_with(
        &mut self,
        cx: &mut Context<'_>,
        fill: impl FnOnce(&mut HostQueue, &mut SendBatch),
    ) {
        let Some(link) = &mut self.link else { return };
        let Some(mut batch) = self.batch.take() else { return };
        fill(&mut link.queue, &mut batch);
        if batch.is_empty() {
            self.batch = Some(batch);
        } else {
            self.counters.pdus_sent.add(1);
            self.start_send(cx, batch);
        }
    }

    fn start_send(&mut self, cx: &mut Context<'_>, batch: Box<SendBatch>) {
        let Some(link) = &mut self.link else { return };
        link.sending = true;
        link.batches_started += 1;
        self.counters.sends.add(1);
        cx.io.send(link.socket, batch, self.token);
    }

    /// Whether commands go before data that the controller waits for.
    fn commands_go_before_data(&self) -> bool {
        !self.pending.is_empty()
            && !self.grants.is_empty()
            && policy::commands_before_data(self.plan.writing)
    }

    /// Uses half of the PDUs for commands at most, so that data do not wait for ever.
    fn put_some_commands(&mut self, accelerator: &mut Accelerator, filling: &mut Filling<'_>) {
        let kept = filling.pdus_left.div_ceil(2);
        filling.pdus_left -= kept;
        self.put_commands(accelerator, filling);
        filling.pdus_left += kept;
    }

    /// Answers R2Ts, in the order in which they came.
    fn put_data(&mut self, accelerator: &mut Accelerator, filling: &mut Filling<'_>) {
        let Some(link) = &mut self.link else { return };
        while let Some(grant) = self.grants.front_mut() {
            let Some(entry) = self.commands.get_mut(grant.r2t.cid) else {
                self.grants.pop_front();
                continue;
            };
            entry.batch = filling.number;
            if !put_grant(link, accelerator, filling, grant, entry, &self.counters) {
                return; // the batch is full
            }
            self.grants.pop_front();
        }
    }

    /// The one command that may be sent, while commands do not flow; `None`: they do.
    #[inline(always)]
    pub(super) fn only(&self) -> Option<Option<CommandId>> {
        match &self.state {
            State::Connect(cid) => Some(Some(*cid)),
            State::Proving => Some(self.proving.as_ref().and_then(|proving| proving.command)),
            _ => None,
        }
    }

    /// Sends commands, as many as the submission queue takes.
    fn put_commands(&mut self, accelerator: &mut Accelerator, filling: &mut Filling<'_>) {
        let only = self.only();
        let Some(link) = &mut self.link else { return };
        let admin = self.config.qid.is_admin();
        let room = link.queue.capsule_overhead() + DIGEST_LEN;
        while filling.has_room(room)
            && filling.asked_left > 0
            && let Some(cid) = self.pending.pop_front()
        {
            let sent = self.commands.len() - self.pending.len() - 1;
            let Some(entry) = self.commands.get_mut(cid) else { continue };
            let limit = if admin || entry.sqe.opc == fabrics::OPCODE {
                ADMIN_IN_CAPSULE_BYTES
            } else {
                self.config.in_capsule_bytes
            };
            let is_first = only.is_none_or(|only| only == Some(cid));
            if is_first && entry.digest.is_with_engine() && entry.len <= limit {
                continue; // it comes back when its data can go with it
            }
            // Besides the program's commands, the queue may have one of its own, for an authentication.
            let is_full = sent >= usize::from(self.config.entries) - 1;
            if !is_first || is_full || !link.flow.take_entry(self.config.entries, sent) {
                self.pending.push_front(cid);
                return;
            }
            entry.sent = true;
            entry.batch = filling.number;
            put_command(link, accelerator, filling.batch, cid, entry, limit);
            filling.pdus_left -= 1;
            filling.asked_left = filling.asked_left.saturating_sub(entry.read_bytes());
            self.counters.pdus_sent.add(1);
        }
    }
}

#[inline(always)]
fn put_command(
    link: &mut Link,
    accelerator: &mut Accelerator,
    batch: &mut SendBatch,
    cid: CommandId,
    entry: &mut Entry,
    limit: u32,
) {
    entry.sqe.cid = cid.0.into();
    let in_capsule = entry.direction == Direction::HostToController && entry.len <= limit;
    let queue = &mut link.queue;
    batch.append(|out| queue.command(&entry.sqe, entry.direction, entry.len, in_capsule, out));
    if in_capsule && let Data::Write(buf) = &entry.data {
        put_payload(&link.queue, accelerator, batch, (buf, entry.digest.known), 0..buf.len());
    }
}

/// Puts H2CData PDUs for the rest of a grant; false when the batch is full before its end.
fn put_grant(
    link: &mut Link,
    accelerator: &mut Accelerator,
    filling: &mut Filling<'_>,
    grant: &mut Grant,
    entry: &Entry,
    counters: &QueueCounters,
) -> bool {
    let Data::Write(buf) = &entry.data else {
        unreachable!("an R2T of a command that does not write is refused");
    };
    let room = link.queue.h2c_overhead() + DIGEST_LEN;
    let most = link.queue.max_h2c_data();
    while grant.sent < grant.r2t.len {
        if !filling.has_room(room) {
            return false;
        }
        filling.pdus_left -= 1;
        let batch = &mut *filling.batch;
        let left = grant.r2t.len - grant.sent;
        let len = left.min(most);
        // Both were checked against the command's length when the R2T came.
        let offset = grant.r2t.offset + grant.sent;
        let queue = &mut link.queue;
        batch.append(|out| queue.h2c_data(&grant.r2t, offset, len, len == left, out));
        counters.pdus_sent.add(1);
        grant.sent += len;
        let (start, len) = (to_usize(offset), to_usize(len));
        let data = (buf, entry.digest.known);
        put_payload(&link.queue, accelerator, batch, data, start..start + len);
    }
    true
}

/// Puts payload and, if negotiated, its digest.
fn put_payload(
    queue: &HostQueue,
    accelerator: &mut Accelerator,
    batch: &mut SendBatch,
    (buf, known): (&SharedBuf, Option<u32>),
    range: std::ops::Range<usize>,
) {
    let digest = || Entry::digest_of(known, accelerator, buf, range.clone());
    let digest = queue.data_digest().then(digest);
    // Its owner gets the buffer back when the controller has answered.
    batch.push_kept(buf.clone(), range);
    if let Some(digest) = digest {
        batch.push_bytes(&digest.to_le_bytes());
    }
}

/// A length that is a buffer's, so it fits.
pub(super) fn to_usize(len: u32) -> usize {
    usize::try_from(len).expect("32 bits fit a usize")
}

impl SqFlow {
    /// Whether another entry fits; if so, takes it. With nothing outstanding there is always room: a
    /// controller that reports wrong heads must not stop us for ever.
    pub(super) fn take_entry(&mut self, entries: u16, outstanding: usize) -> bool {
        let Self::On { tail, head } = self else { return true };
        if outstanding == 0 {
            *head = *tail;
        }
        let next = (*tail + 1) % entries;
        if next == *head {
            return false;
        }
        *tail = next;
        true
    }

    /// Takes the head of a completion, which says how far the controller is.
    pub(super) fn handle_head(&mut self, sqhd: u16, entries: u16) {
        if let Self::On { head, .. } = self {
            *head = sqhd % entries;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_entry_stays_free() {
        let mut flow = SqFlow::On { tail: 3, head: 3 };
        assert!(flow.take_entry(4, 0));
        assert!(flow.take_entry(4, 1));
        assert!(flow.take_entry(4, 2));
        assert!(!flow.take_entry(4, 3));
        flow.handle_head(0, 4);
        assert!(flow.take_entry(4, 2));
        assert!(!flow.take_entry(4, 3));
        assert!(flow.take_entry(4, 0), "an idle queue is never stuck");
        let mut off = SqFlow::Off;
        assert!((0..100).all(|outstanding| off.take_entry(4, outstanding)));
    }
}
