//! What a simulated device does with work requests: the checks, the copies, the completions.

use std::collections::VecDeque;

use raceline_proto::rdma::WorkStatus;

use super::state::{
    Pair, PairState, Phase, Posted, Progress, SINKS, Shared, State, Step, id, index,
};
use super::{Trouble, gone};
use crate::verbs::{
    Completion, ConnectionId, Event, Operation, PostError, ProviderError, RecvWork, SendWork, Slice,
};

/// What becomes of a request.
enum Outcome {
    /// The peer has it; its acknowledgement comes later.
    Sent,
    /// A part of it has a receive of the peer, and nothing else comes.
    Stopped,
    /// The peer has no receive: the same again later.
    NotReady,
    /// The requester's queue pair fails.
    Failed(WorkStatus),
    /// Both ends fail.
    BothFailed(WorkStatus),
}

impl State {
    pub(super) fn post_send(
        &mut self,
        node: usize,
        connection: ConnectionId,
        work: &[SendWork],
        is_raw: bool,
    ) -> Result<(), PostError> {
        let at = index(connection);
        if self.nodes[node].is_removed {
            return Err(PostError { posted: 0 });
        }
        if self.pairs[at].phase == Phase::Destroyed || self.pairs[at].config.is_none() {
            self.misuse("a request is posted without a queue pair");
            return Err(PostError { posted: 0 });
        }
        if self.pairs[at].state == PairState::Init {
            self.misuse("a request is posted before the queue pair is connected");
            return Err(PostError { posted: 0 });
        }
        let refused = self.config.faults.refused_post;
        let fails_at = if !is_raw && self.random_fault(refused) {
            let len = u64::try_from(work.len()).unwrap_or(0);
            usize::try_from(self.random.below(len)).unwrap_or(0)
        } else {
            usize::MAX
        };
        for (n, work) in work.iter().enumerate() {
            let room = self.pairs[at].config.map_or(0, |config| config.sends);
            if self.pairs[at].taken >= room {
                self.misuse("a send queue has overflowed");
                return Err(PostError { posted: n });
            }
            if n == fails_at {
                return Err(PostError { posted: n });
            }
            let inline = self.inline_bytes(at, work);
            let pair = &mut self.pairs[at];
            pair.taken += 1;
            pair.sends.push_back(Posted { work: *work, inline, progress: Progress::Waiting });
        }
        self.wake_engine(at);
        Ok(())
    }

    fn inline_bytes(&mut self, at: usize, work: &SendWork) -> Option<([u8; 64], u8)> {
        if !work.inline {
            return None;
        }
        let Slice { address, len, lkey } = work.local;
        let mut bytes = [0; 64];
        let (node, domain) = (self.pairs[at].node, self.pairs[at].domain());
        let source = self.nodes[node].memory.local(domain, lkey, address, len, false);
        let Some(source) = source else {
            self.misuse("an inline request is not of this end's memory");
            return None;
        };
        let granted = self.pairs[at].config.map_or(0, |config| config.inline_bytes);
        if len > granted || source.len() > bytes.len() {
            self.misuse("an inline request is too long");
            return None;
        }
        bytes[..source.len()].copy_from_slice(source);
        Some((bytes, u8::try_from(len).unwrap_or(0)))
    }

    pub(super) fn post_recv(
        &mut self,
        node: usize,
        connection: ConnectionId,
        work: &[RecvWork],
    ) -> Result<(), PostError> {
        let at = index(connection);
        if self.nodes[node].is_removed {
            return Err(PostError { posted: 0 });
        }
        let Some(config) =
            self.pairs[at].config.filter(|_| self.pairs[at].phase != Phase::Destroyed)
        else {
            self.misuse("a receive is posted without a queue pair");
            return Err(PostError { posted: 0 });
        };
        for (n, work) in work.iter().enumerate() {
            if self.pairs[at].receives_taken >= config.receives {
                self.misuse("a receive queue has overflowed");
                return Err(PostError { posted: n });
            }
            self.pairs[at].receives_taken += 1;
            self.pairs[at].receives.push_back(*work);
        }
        if self.pairs[at].state == PairState::Error {
            self.wake_flush(at);
        }
        Ok(())
    }

    pub(super) fn share_receives(
        &mut self,
        node: usize,
        entries: u32,
    ) -> Result<(), ProviderError> {
        let what = "making a shared receive queue";
        if self.nodes[node].is_removed {
            return Err(gone(what));
        }
        if entries > self.config.shared_receives {
            return Err(ProviderError::new(what, "too many receives"));
        }
        if self.nodes[node].shared.is_some() {
            self.misuse("a second shared receive queue is made");
        }
        let receives = VecDeque::new();
        self.nodes[node].shared = Some(Shared { capacity: entries, taken: 0, receives });
        Ok(())
    }

    pub(super) fn unshare_receives(&mut self, node: usize) {
        let is_used = |pair: &Pair| {
            pair.node == node && pair.phase != Phase::Destroyed && pair.shares_receives()
        };
        if self.pairs.iter().any(is_used) {
            self.misuse("a shared receive queue ends before its queue pairs");
        }
        self.nodes[node].shared = None;
    }

    pub(super) fn post_shared(&mut self, node: usize, work: &[RecvWork]) -> Result<(), PostError> {
        if self.nodes[node].is_removed {
            return Err(PostError { posted: 0 });
        }
        let refused = self.config.faults.refused_post;
        let fails_at = if self.random_fault(refused) {
            let len = u64::try_from(work.len()).unwrap_or(0);
            usize::try_from(self.random.below(len)).unwrap_or(0)
        } else {
            usize::MAX
        };
        for (n, work) in work.iter().enumerate() {
            let Some(shared) = &mut self.nodes[node].shared else {
                self.misuse("a receive is posted to a shared queue that is not there");
                return Err(PostError { posted: n });
            };
            if shared.taken >= shared.capacity {
                self.misuse("a shared receive queue has overflowed");
                return Err(PostError { posted: n });
            }
            if n == fails_at {
                return Err(PostError { posted: n });
            }
            shared.taken += 1;
            shared.receives.push_back(*work);
        }
        Ok(())
    }

    /// Notes a registration that ends while a request can touch its memory: one of a queue pair, or a shared receive.
    pub(super) fn check_unused(&mut self, node: usize, lkey: u32) {
        if self.nodes[node].is_removed {
            return;
        }
        let receives = |receive: &RecvWork| receive.local.lkey == lkey;
        let sends = |posted: &Posted| {
            let is_over = matches!(posted.progress, Progress::Done(_)) || posted.inline.is_some();
            !is_over && posted.work.local.lkey == lkey
        };
        let touches = |pair: &Pair| {
            let is_there = pair.node == node && pair.phase != Phase::Destroyed;
            let has_receive = pair.receives.iter().chain(&pair.amid).any(receives);
            is_there && (pair.sends.iter().any(sends) || has_receive)
        };
        let shared = self.nodes[node].shared.as_ref();
        let is_shared = shared.is_some_and(|shared| shared.receives.iter().any(receives));
        if is_shared || self.pairs.iter().any(touches) {
            self.misuse("a registration ends while a request can touch its memory");
        }
    }

    pub(super) fn wake_engine(&mut self, at: usize) {
        if self.pairs[at].state == PairState::Error {
            return self.wake_flush(at);
        }
        if !self.pairs[at].engine_is_due {
            self.pairs[at].engine_is_due = true;
            self.soon(Step::Engine(at));
        }
    }

    fn wake_flush(&mut self, at: usize) {
        let pair = &mut self.pairs[at];
        let has_any = !pair.sends.is_empty() || !pair.receives.is_empty() || pair.amid.is_some();
        let has_last = pair.shares_receives() && !pair.has_told_last;
        if (has_any || has_last) && !pair.flush_is_due {
            pair.flush_is_due = true;
            self.soon(Step::Flush(at));
        }
    }

    /// Sends the next request, or in a network without delays all of them.
    pub(super) fn run_engine(&mut self, at: usize) {
        self.pairs[at].engine_is_due = false;
        loop {
            let pair = &self.pairs[at];
            let waiting = usize::try_from(pair.next - pair.first).unwrap_or(usize::MAX);
            if pair.state != PairState::Ready || waiting >= pair.sends.len() {
                return;
            }
            if self.nodes[pair.node].is_removed {
                return;
            }
            let outcome = self.send(at, waiting);
            let number = self.pairs[at].next;
            match outcome {
                Outcome::NotReady => {
                    self.pairs[at].engine_is_due = true;
                    let wait = u64::try_from(self.config.not_ready.as_nanos()).unwrap_or(u64::MAX);
                    return self.after(wait, Step::Engine(at));
                }
                Outcome::Sent => {
                    self.pairs[at].sends[waiting].progress = Progress::UnderWay;
                    self.pairs[at].next += 1;
                    self.soon(Step::Acknowledged(at, number));
                }
                Outcome::Stopped => {
                    self.pairs[at].sends[waiting].progress = Progress::UnderWay;
                    self.pairs[at].next += 1;
                    return;
                }
                Outcome::Failed(status) => return self.fail_request(at, waiting, status),
                Outcome::BothFailed(status) => {
                    self.fail_request(at, waiting, status);
                    if let Some(peer) = self.pairs[at].peer {
                        self.fail_pair(peer);
                    }
                    return;
                }
            }
            if !self.config.delay.is_zero() {
                return self.wake_engine(at);
            }
        }
    }

    /// One request reaches the peer, or does not.
    fn send(&mut self, at: usize, waiting: usize) -> Outcome {
        let (node, work) = (self.pairs[at].node, self.pairs[at].sends[waiting].work);
        let lost = self.config.faults.lost_peer;
        let peer = self.pairs[at].peer.filter(|&peer| {
            self.pairs[peer].state == PairState::Ready
                && !self.nodes[self.pairs[peer].node].is_removed
        });
        let Some(peer) = peer.filter(|_| !self.random_fault(lost)) else {
            return self.unreachable_peer(at);
        };
        if self.nodes[self.pairs[peer].node].takes_nothing {
            return Outcome::NotReady;
        }
        if let Some(outcome) = self.meets_trouble(peer, &work) {
            return outcome;
        }
        // An iWARP connection begins with a message of the host (RFC 5044, 7.1).
        if self.is_iwarp() && !self.pairs[at].is_active && !self.pairs[at].has_received {
            self.misuse("the passive side of an iWARP connection has sent first");
            return Outcome::BothFailed(WorkStatus::REM_ABORT_ERR);
        }
        match work.operation {
            Operation::Send { invalidate: Some(_) }
                if self.fails_invalidation || !self.config.invalidates =>
            {
                Outcome::Failed(WorkStatus::LOC_QP_OP_ERR)
            }
            Operation::Send { invalidate } => self.deliver(at, peer, waiting, invalidate),
            Operation::Write { remote, key } => {
                let Some(bytes) = self.local_bytes(at, waiting) else {
                    return Outcome::Failed(WorkStatus::LOC_PROT_ERR);
                };
                let peer_node = self.pairs[peer].node;
                let domain = self.pairs[peer].domain();
                let memory = &mut self.nodes[peer_node].memory;
                let place = memory.remote(domain, key, remote, work.local.len, true);
                let Some(place) = place else {
                    return Outcome::BothFailed(WorkStatus::REM_ACCESS_ERR);
                };
                place.copy_from_slice(&bytes);
                Outcome::Sent
            }
            Operation::Read { remote, key } => {
                let Slice { address, len, lkey } = work.local;
                let sink_is_open = self.nodes[node].memory.is_open_to_writes(lkey);
                let domain = self.pairs[at].domain();
                let sink = self.nodes[node].memory.local(domain, lkey, address, len, true);
                if sink.is_none() || self.is_iwarp() && !sink_is_open {
                    return Outcome::Failed(WorkStatus::LOC_PROT_ERR);
                }
                let peer_node = self.pairs[peer].node;
                let domain = self.pairs[peer].domain();
                let memory = &mut self.nodes[peer_node].memory;
                if memory.remote(domain, key, remote, len, false).is_none() {
                    return Outcome::BothFailed(WorkStatus::REM_ACCESS_ERR);
                }
                if self.pairs[at].reads >= self.pairs[at].max_reads {
                    self.misuse("more RDMA READs are under way than were agreed");
                    return Outcome::BothFailed(WorkStatus::REM_INV_REQ_ERR);
                }
                if self.is_iwarp() {
                    let sinks = &mut self.pairs[peer].sinks;
                    sinks.truncate(SINKS - 1);
                    sinks.push_front(work.local);
                }
                // The bytes are those at the time of the answer.
                self.pairs[at].reads += 1;
                Outcome::Sent
            }
        }
    }

    /// What is wrong with one queue pair only.
    fn meets_trouble(&mut self, peer: usize, work: &SendWork) -> Option<Outcome> {
        let is_message = matches!(work.operation, Operation::Send { .. });
        match self.pairs[peer].trouble? {
            Trouble::BadKey if !is_message => Some(Outcome::BothFailed(WorkStatus::REM_ACCESS_ERR)),
            Trouble::NoReceives if is_message => Some(self.without_receive()),
            _ => None,
        }
    }

    /// A message without a receive.
    fn without_receive(&mut self) -> Outcome {
        self.waits += 1;
        if self.is_iwarp() {
            Outcome::BothFailed(WorkStatus::REM_ABORT_ERR)
        } else {
            Outcome::NotReady
        }
    }

    /// The peer does not answer: the request fails. How long the device has tried does not matter here.
    fn unreachable_peer(&self, at: usize) -> Outcome {
        // The accept, or the host's word that it has it, is still on its way.
        if let Some(peer) = self.pairs[at].peer
            && self.pairs[peer].state == PairState::Init
            && self.pairs[peer].phase == Phase::Asked
        {
            return Outcome::NotReady;
        }
        Outcome::Failed(WorkStatus::RETRY_EXC_ERR)
    }

    fn local_bytes(&self, at: usize, place: usize) -> Option<Vec<u8>> {
        let posted = &self.pairs[at].sends[place];
        if let Some((bytes, len)) = &posted.inline {
            return Some(bytes[..usize::from(*len)].to_vec());
        }
        let Slice { address, len, lkey } = posted.work.local;
        let (node, domain) = (self.pairs[at].node, self.pairs[at].domain());
        self.nodes[node].memory.peek(domain, lkey, address, len)
    }

    /// A message takes a receive of the peer.
    fn deliver(&mut self, at: usize, peer: usize, waiting: usize, key: Option<u32>) -> Outcome {
        let Some(bytes) = self.local_bytes(at, waiting) else {
            return Outcome::Failed(WorkStatus::LOC_PROT_ERR);
        };
        let peer_node = self.pairs[peer].node;
        let receives = match &mut self.nodes[peer_node].shared {
            Some(shared) if self.pairs[peer].shares_receives() => &mut shared.receives,
            _ => &mut self.pairs[peer].receives,
        };
        let Some(receive) = receives.pop_front() else {
            return self.without_receive();
        };
        if let Some(outcome) = self.stop_amid(at, peer, receive) {
            return outcome;
        }
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let Slice { address, len: room, lkey } = receive.local;
        let mut done = Completion {
            connection: id(peer),
            id: receive.id,
            status: WorkStatus::SUCCESS,
            bytes: len,
            invalidated: key,
        };
        let domain = self.pairs[peer].domain_of_receives();
        let memory = &mut self.nodes[peer_node].memory;
        let place = memory.local(domain, lkey, address, len.min(room), true);
        let failure = match place {
            None => Some((WorkStatus::LOC_PROT_ERR, WorkStatus::REM_OP_ERR)),
            Some(_) if len > room => Some((WorkStatus::LOC_LEN_ERR, WorkStatus::REM_INV_REQ_ERR)),
            Some(place) => {
                place.copy_from_slice(&bytes);
                None
            }
        };
        let domain = self.pairs[peer].domain();
        let memory = &mut self.nodes[peer_node].memory;
        let is_bad_key = key.is_some_and(|key| !memory.invalidate(domain, key));
        if let Some((here, there)) = failure {
            done.status = here;
            self.complete(peer, done, 0);
            return Outcome::BothFailed(there);
        }
        if is_bad_key {
            done.status = WorkStatus::LOC_ACCESS_ERR;
            self.complete(peer, done, 0);
            return Outcome::BothFailed(WorkStatus::REM_INV_REQ_ERR);
        }
        self.pairs[peer].has_received = true;
        self.complete(peer, done, 0);
        Outcome::Sent
    }

    /// Keeps the receive of a message that comes in part only.
    fn stop_amid(&mut self, at: usize, peer: usize, receive: RecvWork) -> Option<Outcome> {
        let faults = self.config.faults;
        let is_cut = self.random_fault(faults.cut_message);
        if !is_cut && !std::mem::take(&mut self.pairs[at].stops_amid) {
            return None;
        }
        self.pairs[peer].amid = Some(receive);
        if is_cut {
            self.cut(at);
        }
        Some(Outcome::Stopped)
    }

    /// The peer has acknowledged a request, or the data of an RDMA READ are here.
    pub(super) fn acknowledge(&mut self, at: usize, number: u64) {
        let pair = &self.pairs[at];
        let Some(place) = number.checked_sub(pair.first) else { return };
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        let Some(posted) = pair.sends.get(place) else { return };
        if posted.progress != Progress::UnderWay {
            return;
        }
        let mut status = WorkStatus::SUCCESS;
        if let Operation::Read { remote, key } = posted.work.operation {
            let Slice { address, len, lkey } = posted.work.local;
            self.pairs[at].reads -= 1;
            status = self.finish_read(at, (remote, key), (address, len, lkey));
        }
        self.pairs[at].sends[place].progress = Progress::Done(status);
        if !status.is_success() {
            self.fail_pair(at);
            if let Some(peer) = self.pairs[at].peer {
                self.fail_pair(peer);
            }
        }
        if self.pairs[at].state == PairState::Ready || !status.is_success() {
            self.retire(at);
        }
    }

    fn finish_read(
        &mut self,
        at: usize,
        (remote, key): (u64, u32),
        (address, len, lkey): (u64, u32, u32),
    ) -> WorkStatus {
        let Some(peer) = self.pairs[at].peer else { return WorkStatus::RETRY_EXC_ERR };
        if self.pairs[peer].state != PairState::Ready {
            return WorkStatus::RETRY_EXC_ERR;
        }
        let (node, peer_node) = (self.pairs[at].node, self.pairs[peer].node);
        let (domain, peer_domain) = (self.pairs[at].domain(), self.pairs[peer].domain());
        let memory = &mut self.nodes[peer_node].memory;
        let Some(bytes) = memory.remote(peer_domain, key, remote, len, false) else {
            return WorkStatus::REM_ACCESS_ERR;
        };
        let bytes = bytes.to_vec();
        match self.nodes[node].memory.local(domain, lkey, address, len, true) {
            Some(place) => place.copy_from_slice(&bytes),
            None => return WorkStatus::LOC_PROT_ERR,
        }
        WorkStatus::SUCCESS
    }

    /// Completes what is done at the head of the send queue.
    fn retire(&mut self, at: usize) {
        loop {
            let pair = &mut self.pairs[at];
            let Some(Posted { work, progress: Progress::Done(status), .. }) = pair.sends.front()
            else {
                return;
            };
            let (number, status) = (work.id, *status);
            let has_completion = work.signalled || !status.is_success();
            pair.sends.pop_front();
            pair.first += 1;
            pair.next = pair.next.max(pair.first);
            pair.unreported += 1;
            if has_completion {
                let ends = std::mem::take(&mut pair.unreported);
                self.complete(at, completion(at, number, status), ends);
            }
        }
    }

    fn fail_request(&mut self, at: usize, place: usize, status: WorkStatus) {
        self.pairs[at].sends[place].progress = Progress::Done(status);
        self.fail_pair(at);
    }

    /// A queue pair goes to the error state, and flushes.
    pub(super) fn fail_pair(&mut self, at: usize) {
        if self.pairs[at].state == PairState::Error {
            return;
        }
        self.pairs[at].state = PairState::Error;
        self.wake_flush(at);
    }

    /// Completes one request of a queue pair that has failed: of the send queue or of the receive queue.
    pub(super) fn flush(&mut self, at: usize) {
        self.pairs[at].flush_is_due = false;
        let pair = &self.pairs[at];
        if pair.phase == Phase::Destroyed || self.nodes[pair.node].is_removed {
            return;
        }
        if let Some(receive) = self.pairs[at].amid.take() {
            self.end_amid(at, receive);
            return self.wake_flush(at);
        }
        if self.pairs[at].shares_receives() && !self.pairs[at].has_told_last {
            self.pairs[at].has_told_last = true;
            // Also a device that loses receives tells of the last one, as soft RoCE does from Linux 6.5 on.
            if !self.config.promises_to_tell {
                self.soon(Step::Tell(at, Event::ReceivesEnded(id(at))));
            }
        }
        let pair = &self.pairs[at];
        let (sends, receives) = (!pair.sends.is_empty(), !pair.receives.is_empty());
        if sends && (!receives || self.random.below(2) == 0) {
            let pair = &mut self.pairs[at];
            let Some(posted) = pair.sends.pop_front() else { return };
            pair.first += 1;
            pair.next = pair.next.max(pair.first);
            let status = match posted.progress {
                Progress::Done(status) => status,
                Progress::UnderWay | Progress::Waiting => WorkStatus::WR_FLUSH_ERR,
            };
            // Flushed requests complete also without a signal.
            let ends = std::mem::take(&mut pair.unreported) + 1;
            self.complete(at, completion(at, posted.work.id, status), ends);
        } else if receives && let Some(receive) = self.pairs[at].receives.pop_front() {
            self.complete(at, completion(at, receive.id, WorkStatus::WR_FLUSH_ERR), 0);
        }
        self.wake_flush(at);
    }
}

impl State {
    /// The receive of a message that has come in part ends, or is lost: then its place is free, and nobody learns of it.
    fn end_amid(&mut self, at: usize, receive: RecvWork) {
        if self.config.tells_last_receive || !self.pairs[at].shares_receives() {
            self.complete(at, completion(at, receive.id, WorkStatus::WR_FLUSH_ERR), 0);
        } else {
            self.nodes[self.pairs[at].node].end_shared(1);
        }
    }
}

fn completion(at: usize, number: u64, status: WorkStatus) -> Completion {
    Completion { connection: id(at), id: number, status, bytes: 0, invalidated: None }
}
