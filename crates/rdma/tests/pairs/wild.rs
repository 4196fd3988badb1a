//! A device that does whatever the bytes of an input say, within what devices do: messages with any bytes, any status, events
//! at any time, posts that it refuses. It notes what a user of verbs must not do.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use raceline_proto::nvme::QueueId;
use raceline_proto::rdma::{QueueRequest, WorkStatus};
use raceline_rdma::Foreign;
use raceline_rdma::verbs::{
    Access, Capabilities, Completion, ConnectionId, DomainId, Event, Operation, PairConfig,
    PostError, Provider, ProviderError, RecvWork, Region, Rejection, SendWork, Slice,
};

/// What is left of an input. An input that has ended says 0.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl Input<'_> {
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        let (first, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        let mut bytes = first.to_vec();
        bytes.resize(len, 0);
        bytes
    }
}

#[derive(Default)]
struct Posted {
    sends: VecDeque<SendWork>,
    receives: VecDeque<RecvWork>,
    config: Option<PairConfig>,
    /// Everything that is posted is flushed.
    has_failed: bool,
    is_accepted: bool,
    /// Messages that have come, and messages that were posted.
    came: usize,
    sent: usize,
}

/// The device.
pub(crate) struct Wild {
    listener: SocketAddr,
    regions: BTreeMap<u32, (Region, Vec<u8>)>,
    pairs: BTreeMap<ConnectionId, Posted>,
    shared: Option<VecDeque<RecvWork>>,
    events: VecDeque<Event>,
    completions: VecDeque<Completion>,
    next: u32,
    is_removed: bool,
    is_iwarp: bool,
    /// What else it can do: [`Self::vary`].
    can_invalidate: bool,
    inline_bytes: u32,
    reads_begun: u8,
    /// Requests that the next posts take, all together; then one fails.
    pub(crate) takes: Option<usize>,
    pub(crate) refuses_memory: bool,
    /// Memory of others, by key; `None`: it takes none.
    pub(crate) foreign: Option<BTreeMap<u32, Foreign>>,
    /// Nothing of what the input says happens to this one.
    pub(crate) spared: Option<ConnectionId>,
    /// The connection that was accepted last.
    pub(crate) accepted: Option<ConnectionId>,
    /// Messages answer messages.
    pub(crate) is_of_target: bool,
}

fn refused(what: &'static str) -> ProviderError {
    ProviderError::new(what, "the input says so")
}

impl Wild {
    pub(crate) fn new(listener: SocketAddr, is_iwarp: bool) -> Self {
        Self {
            listener,
            regions: BTreeMap::new(),
            pairs: BTreeMap::new(),
            shared: None,
            events: VecDeque::new(),
            completions: VecDeque::new(),
            next: 1,
            is_removed: false,
            is_iwarp,
            can_invalidate: true,
            inline_bytes: 64,
            reads_begun: 4,
            takes: None,
            refuses_memory: false,
            foreign: None,
            spared: None,
            accepted: None,
            is_of_target: false,
        }
    }

    /// Devices differ: by the high bits of this byte, it invalidates no keys of the peer, has no inline requests, and begins one
    /// RDMA READ at a time.
    #[must_use]
    pub(crate) fn vary(self, kind: u8) -> Self {
        Self {
            can_invalidate: kind & 0x80 == 0,
            inline_bytes: if kind & 0x40 == 0 { 64 } else { 0 },
            reads_begun: if kind & 0x20 == 0 { 4 } else { 1 },
            ..self
        }
    }

    /// Registrations and connections that are left.
    pub(crate) fn leftovers(&self) -> (usize, usize) {
        (self.regions.len(), self.pairs.len())
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn check(&self, slice: &Slice) {
        if let Some(memory) = self.foreign.as_ref().and_then(|known| known.get(&slice.lkey)) {
            let end = memory.address() + u64::try_from(memory.len()).expect("it fits");
            let is_within = slice.address >= memory.address();
            assert!(is_within && slice.address + u64::from(slice.len) <= end, "{slice:?}");
            return;
        }
        let (region, _) = self.regions.get(&slice.lkey).expect("memory of a request is registered");
        let end = slice.address + u64::from(slice.len);
        let is_within = slice.address >= region.address;
        assert!(
            is_within && end <= region.address + u64::from(region.len),
            "{slice:?} of {region:?}"
        );
    }

    fn put(&mut self, slice: &Slice, bytes: &[u8]) {
        let (region, memory) = self.regions.get_mut(&slice.lkey).expect("it was checked");
        let at = usize::try_from(slice.address - region.address).expect("it fits");
        memory[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn taken(&mut self, len: usize) -> Result<(), PostError> {
        let Some(takes) = &mut self.takes else { return Ok(()) };
        if *takes >= len {
            *takes -= len;
            return Ok(());
        }
        let posted = std::mem::take(takes);
        self.takes = None;
        Err(PostError { posted })
    }

    fn some_connection(&self, input: &mut Input<'_>) -> Option<ConnectionId> {
        let known = self.pairs.keys().copied().filter(|id| Some(*id) != self.spared);
        let known: Vec<ConnectionId> = known.collect();
        (!known.is_empty()).then(|| known[input.below(known.len())])
    }

    /// A host asks for a queue.
    pub(crate) fn ask(&mut self, input: &mut Input<'_>) {
        let connection = ConnectionId(self.number());
        let entries = 2 + u16::from(input.byte() % 18);
        let qid = QueueId(u16::from(input.byte() % 3));
        let request =
            QueueRequest { qid, receives: entries, entries: entries.into(), cntlid: None };
        let private = match input.below(4) {
            0 => input.take(40),
            _ => request.to_bytes().to_vec(),
        };
        let host_reads = input.byte() % 5;
        self.pairs.insert(connection, Posted::default());
        let listener = self.listener;
        self.events.push_back(Event::Request { connection, listener, private, host_reads });
    }

    /// A host asks for a usual queue.
    pub(crate) fn ask_well(&mut self) {
        self.ask(&mut Input(&[6, 1, 1, 4]));
    }

    /// What each connection waits for comes.
    pub(crate) fn go_on_with_all(&mut self) {
        for number in 0..u8::try_from(self.pairs.len()).expect("a few") {
            self.go_on(&mut Input(&[number]));
        }
    }

    /// Something that the manager says of a connection.
    pub(crate) fn say(&mut self, input: &mut Input<'_>) {
        let Some(connection) = self.some_connection(input) else { return };
        let event = match input.below(8) {
            0 => Event::Disconnected(connection),
            1 => Event::Rejected { connection, reason: Rejection::Consumer(input.take(4)) },
            2 => Event::Rejected { connection, reason: Rejection::Stale },
            3 => Event::Failed { connection, why: "what the input names" },
            4 => Event::Resolved(connection),
            5 => Event::DeviceRemoved(connection),
            6 => Event::ReceivesEnded(connection),
            _ => Event::Established { connection, private: input.take(6) },
        };
        self.events.push_back(event);
    }

    /// Whether nobody has heard yet that the device is gone.
    #[allow(dead_code, reason = "for the target's streams")]
    pub(crate) fn says_that_it_is_gone(&self) -> bool {
        self.events.iter().any(|event| matches!(event, Event::DeviceRemoved(_)))
    }

    /// Messages of a connection that are not answered.
    #[allow(dead_code, reason = "for the target's streams")]
    pub(crate) fn unanswered(&self, connection: ConnectionId) -> usize {
        self.pairs.get(&connection).map_or(0, |pair| pair.came - pair.sent)
    }

    /// Requests of hosts of which nobody has heard.
    #[allow(dead_code, reason = "for the target's streams")]
    pub(crate) fn untold(&self) -> usize {
        let is_request = |event: &&Event| matches!(event, Event::Request { .. });
        self.events.iter().filter(is_request).count()
    }

    /// The connection is made, as far as both have come.
    pub(crate) fn go_on(&mut self, input: &mut Input<'_>) {
        let Some(connection) = self.some_connection(input) else { return };
        let has_pair = self.pairs[&connection].config.is_some();
        let event = match has_pair {
            true => Event::Established { connection, private: vec![0; 32] },
            false => Event::Resolved(connection),
        };
        self.events.push_back(event);
    }

    pub(crate) fn remove(&mut self) {
        self.is_removed = true;
        self.completions.clear();
        self.events.push_back(Event::DeviceRemoved(ConnectionId::NOBODY));
    }

    fn status(input: &mut Input<'_>) -> WorkStatus {
        match input.below(48) {
            0 => WorkStatus::REM_ACCESS_ERR,
            1 => WorkStatus::RETRY_EXC_ERR,
            2 => WorkStatus::WR_FLUSH_ERR,
            _ => WorkStatus::SUCCESS,
        }
    }

    /// Whether something can still read memory of others for a connection.
    #[allow(dead_code, reason = "for the target's streams")]
    pub(crate) fn reads_foreign(&self, connection: ConnectionId) -> bool {
        let Some(foreign) = &self.foreign else { return false };
        let posted = self.pairs.get(&connection);
        let reads =
            |pair: &Posted| pair.sends.iter().any(|work| foreign.contains_key(&work.local.lkey));
        !self.is_removed && posted.is_some_and(reads)
    }

    /// The next request of a connection ends well. False when there is none.
    #[allow(dead_code, reason = "for the target's streams")]
    pub(crate) fn end_send_well(&mut self, connection: ConnectionId) -> bool {
        let pair = self.pairs.get_mut(&connection).filter(|pair| !pair.has_failed);
        let Some(work) = pair.and_then(|pair| pair.sends.pop_front()) else { return false };
        if work.signalled {
            let (id, status) = (work.id, WorkStatus::SUCCESS);
            let done = Completion { connection, id, status, bytes: 0, invalidated: None };
            self.completions.push_back(done);
        }
        true
    }

    /// The next request of a send queue ends, or several of them by one completion.
    pub(crate) fn end_send(&mut self, input: &mut Input<'_>) {
        let Some(connection) = self.some_connection(input) else { return };
        if self.is_removed {
            return;
        }
        let posted = self.pairs.get_mut(&connection).expect("it is there");
        let Some(work) = posted.sends.pop_front() else { return };
        let status = if posted.has_failed { WorkStatus::WR_FLUSH_ERR } else { Self::status(input) };
        posted.has_failed |= !status.is_success();
        if let (Operation::Read { .. }, true) = (work.operation, status.is_success()) {
            let bytes = input.take(usize::try_from(work.local.len.min(8)).expect("it fits"));
            self.put(&work.local, &bytes);
        }
        if work.signalled || !status.is_success() {
            let done = Completion { connection, id: work.id, status, bytes: 0, invalidated: None };
            self.completions.push_back(done);
        }
    }

    /// A message comes to a connection, or its receive is flushed.
    pub(crate) fn end_receive(
        &mut self,
        connection: Option<ConnectionId>,
        message: &[u8],
        input: &mut Input<'_>,
    ) {
        let Some(connection) = connection.or_else(|| self.some_connection(input)) else { return };
        if self.is_removed {
            return;
        }
        let Some(posted) = self.pairs.get_mut(&connection).filter(|pair| pair.is_accepted) else {
            return;
        };
        let shares = posted.config.is_some_and(|config| config.shares_receives);
        let status = if posted.has_failed { WorkStatus::WR_FLUSH_ERR } else { Self::status(input) };
        let receive = match &mut self.shared {
            // A queue pair that has failed takes no shared receive.
            Some(_) if shares && posted.has_failed => None,
            Some(shared) if shares => shared.pop_front(),
            _ => posted.receives.pop_front(),
        };
        let Some(RecvWork { id, local }) = receive else { return };
        posted.has_failed |= !status.is_success();
        let mut done = Completion { connection, id, status, bytes: 0, invalidated: None };
        if status.is_success() {
            let len = message.len().min(usize::try_from(local.len).expect("it fits"));
            self.put(&local, &message[..len]);
            self.pairs.get_mut(&connection).expect("it is there").came += 1;
            done.bytes = u32::try_from(len).expect("it fits");
            done.invalidated = (input.below(64) == 0).then(|| u32::from(input.byte()));
        }
        self.completions.push_back(done);
    }

    /// Everything that is posted ends, but for the connection that is spared.
    pub(crate) fn flush_all(&mut self) {
        let spared = self.spared;
        let pairs = self.pairs.iter_mut().filter(|(id, _)| Some(**id) != spared);
        let failing: Vec<ConnectionId> = pairs
            .map(|(id, posted)| {
                posted.has_failed = true;
                *id
            })
            .collect();
        for connection in failing {
            while !self.is_removed {
                let posted = self.pairs.get_mut(&connection).expect("it is there");
                let id = match (posted.sends.pop_front(), posted.receives.pop_front()) {
                    (None, None) => break,
                    (Some(send), receive) => {
                        receive.into_iter().for_each(|back| posted.receives.push_front(back));
                        send.id
                    }
                    (None, Some(receive)) => receive.id,
                };
                let status = WorkStatus::WR_FLUSH_ERR;
                self.completions.push_back(Completion {
                    connection,
                    id,
                    status,
                    bytes: 0,
                    invalidated: None,
                });
            }
        }
    }
}

impl Provider for Wild {
    fn name(&self) -> &str {
        "wild"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            completions: 1 << 10,
            work_requests: 1 << 10,
            shared_receives: 32,
            tells_last_receive: true,
            reads_answered: 4,
            reads_begun: self.reads_begun,
            inline_bytes: self.inline_bytes,
            send_with_invalidate: self.can_invalidate,
            is_iwarp: self.is_iwarp,
        }
    }

    fn register(&mut self, _: DomainId, len: u32, _: Access) -> Result<Region, ProviderError> {
        if self.is_removed || self.refuses_memory {
            return Err(refused("registering memory"));
        }
        let lkey = self.number();
        let region = Region { address: u64::from(lkey) << 32, len, lkey, rkey: !lkey };
        self.regions.insert(lkey, (region, vec![0; usize::try_from(len).expect("it fits")]));
        Ok(region)
    }

    fn deregister(&mut self, region: Region) {
        let is_used = |posted: &Posted| {
            let sends = posted.sends.iter().any(|work| work.local.lkey == region.lkey);
            sends || posted.receives.iter().any(|work| work.local.lkey == region.lkey)
        };
        assert!(self.is_removed || !self.pairs.values().any(is_used), "a request can touch it");
        let shared = self.shared.iter().flatten().any(|work| work.local.lkey == region.lkey);
        assert!(!shared, "a shared receive can touch it");
        assert!(self.regions.remove(&region.lkey).is_some(), "a registration ends twice");
    }

    fn register_foreign(&mut self, memory: Foreign) -> Result<u32, ProviderError> {
        let lkey = self.number();
        let takes = !self.is_removed && !self.refuses_memory;
        let Some(known) = self.foreign.as_mut().filter(|_| takes) else {
            return Err(refused("registering memory of others"));
        };
        known.insert(lkey, memory);
        Ok(lkey)
    }

    fn deregister_foreign(&mut self, lkey: u32) {
        let is_used = |pair: &Posted| pair.sends.iter().any(|work| work.local.lkey == lkey);
        assert!(self.is_removed || !self.pairs.values().any(is_used), "a request can touch it");
        let known = self.foreign.as_mut().and_then(|known| known.remove(&lkey));
        assert!(known.is_some(), "a registration ends twice");
    }

    fn read(&self, region: &Region, offset: u32, into: &mut [u8]) {
        let at = usize::try_from(offset).expect("it fits");
        into.copy_from_slice(&self.regions[&region.lkey].1[at..at + into.len()]);
    }

    fn fill(&mut self, region: &Region, offset: u32, len: u32, fill: &mut dyn FnMut(&mut [u8])) {
        let at = usize::try_from(offset).expect("it fits");
        let len = usize::try_from(len).expect("it fits");
        fill(&mut self.regions.get_mut(&region.lkey).expect("it is registered").1[at..at + len]);
    }

    fn write(&mut self, region: &Region, offset: u32, bytes: &[u8]) {
        let len = u32::try_from(bytes.len()).expect("it fits");
        self.put(&region.slice(offset, len), bytes);
    }

    fn listen(&mut self, _: SocketAddr) -> Result<(), ProviderError> {
        Ok(())
    }

    fn stop_listening(&mut self) {}

    fn resolve(
        &mut self,
        _: SocketAddr,
        _: Option<SocketAddr>,
    ) -> Result<ConnectionId, ProviderError> {
        if self.is_removed {
            return Err(refused("resolving"));
        }
        let connection = ConnectionId(self.number());
        self.pairs.insert(connection, Posted::default());
        Ok(connection)
    }

    fn create_pair(
        &mut self,
        connection: ConnectionId,
        config: &PairConfig,
    ) -> Result<PairConfig, ProviderError> {
        if self.is_removed {
            return Err(refused("making a queue pair"));
        }
        let posted = self.pairs.get_mut(&connection).expect("a connection that is there");
        assert!(posted.config.is_none(), "two queue pairs of a connection");
        let inline_bytes = config.inline_bytes.min(self.inline_bytes);
        let granted = PairConfig { inline_bytes, ..*config };
        posted.config = Some(granted);
        Ok(granted)
    }

    fn connect(&mut self, id: ConnectionId, _: &[u8], _: u8) -> Result<(), ProviderError> {
        let posted = self.pairs.get_mut(&id).expect("a connection that is there");
        posted.is_accepted = true;
        assert!(posted.config.is_some(), "a connection without a queue pair");
        self.accepted = Some(id);
        Ok(())
    }

    fn accept(&mut self, id: ConnectionId, _: &[u8], _: u8) -> Result<(), ProviderError> {
        self.connect(id, &[], 0)
    }

    fn reject(&mut self, connection: ConnectionId, _: &[u8]) {
        assert!(self.pairs.contains_key(&connection), "a connection that is there");
    }

    fn disconnect(&mut self, connection: ConnectionId) {
        self.pairs.get_mut(&connection).expect("a connection that is there").has_failed = true;
    }

    fn destroy(&mut self, connection: ConnectionId) {
        assert!(self.pairs.remove(&connection).is_some(), "a connection is destroyed twice");
        self.events.retain(|event| event.connection() != connection);
        // Completions of it may still come.
    }

    fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn post_send(&mut self, connection: ConnectionId, work: &[SendWork]) -> Result<(), PostError> {
        work.iter().for_each(|work| self.check(&work.local));
        let posted = self.pairs.get(&connection).expect("a connection that is there");
        let PairConfig { sends: room, inline_bytes, .. } =
            posted.config.expect("it has a queue pair");
        for work in work {
            assert!(
                !work.inline || work.local.len <= inline_bytes,
                "an inline request is too long"
            );
            let invalidates = matches!(work.operation, Operation::Send { invalidate: Some(_) });
            assert!(!invalidates || self.can_invalidate, "the device invalidates no keys");
        }
        let is_spared = self.spared == Some(connection);
        let taken = if is_spared { Ok(()) } else { self.taken(work.len()) };
        let count = taken.map_or_else(|error| error.posted, |()| work.len());
        let posted = self.pairs.get_mut(&connection).expect("a connection that is there");
        let is_message = |work: &&SendWork| matches!(work.operation, Operation::Send { .. });
        posted.sent += work[..count].iter().filter(is_message).count();
        assert!(!self.is_of_target || posted.sent <= posted.came, "an answer to nothing");
        posted.sends.extend(&work[..count]);
        assert!(posted.sends.len() <= usize::try_from(room).expect("it fits"), "too many requests");
        taken
    }

    fn post_recv(&mut self, connection: ConnectionId, work: &[RecvWork]) -> Result<(), PostError> {
        work.iter().for_each(|work| self.check(&work.local));
        let is_spared = self.spared == Some(connection);
        let taken = if is_spared { Ok(()) } else { self.taken(work.len()) };
        let count = taken.map_or_else(|error| error.posted, |()| work.len());
        let posted = self.pairs.get_mut(&connection).expect("a connection that is there");
        posted.receives.extend(&work[..count]);
        let room = posted.config.expect("it has a queue pair").receives;
        assert!(
            posted.receives.len() <= usize::try_from(room).expect("it fits"),
            "too many receives"
        );
        taken
    }

    fn share_receives(&mut self, _: u32) -> Result<(), ProviderError> {
        if self.is_iwarp {
            return Err(refused("sharing receives"));
        }
        self.shared = Some(VecDeque::new());
        Ok(())
    }

    fn unshare_receives(&mut self) {
        self.shared = None;
    }

    fn post_shared(&mut self, work: &[RecvWork]) -> Result<(), PostError> {
        work.iter().for_each(|work| self.check(&work.local));
        let taken = self.taken(work.len());
        let count = taken.map_or_else(|error| error.posted, |()| work.len());
        self.shared.as_mut().expect("a shared queue").extend(&work[..count]);
        taken
    }

    fn poll(&mut self, into: &mut Vec<Completion>) {
        let room = into.capacity() - into.len();
        let count = room.min(self.completions.len());
        into.extend(self.completions.drain(..count));
    }
}
