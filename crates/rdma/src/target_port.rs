//! All queues of a target on one core and one device: requests, grants, deadlines, drained ends.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use raceline_proto::nvme::{ControllerId, QueueId};
use raceline_proto::rdma::{
    AcceptData, CapsuleLimits, Grant, GrantLimits, QueueRequest, RejectData, RejectStatus,
};
use zerocopy::IntoBytes;

use crate::Loss;
use crate::port_counts::PortCounts;
use crate::refusal::Refusal;
use crate::shared_receives::SharedReceives;
use crate::table::Table;
use crate::target_queue::{TargetEvent, TargetQueue, TargetQueueConfig};
use crate::verbs::{
    Access, Completion, ConnectionId, DomainId, Event, POLL_BATCH, PairConfig, Provider, Region,
};

/// Times that one call of [`TargetPort::poll`] asks the device at most, while that gives a whole batch. A completion queue has
/// the commands of all hosts in the order in which they came: whoever serves hosts by their weights has to see those of all.
const POLLS: usize = 64;
/// Connections in the array of [`Table`].
const CONNECTIONS_NEAR: usize = 64;
/// Events of the connection manager that one call takes at most, so that a storm of them does not stop the queues.
const EVENTS_PER_POLL: usize = 16;

/// What a port allows.
#[derive(Clone, Copy, Debug)]
pub struct PortConfig {
    /// Most of what a queue is granted.
    pub grant: GrantLimits,
    /// Capsules of I/O queues. Those of admin queues follow ([`CapsuleLimits::admin`]).
    pub io: CapsuleLimits,
    /// Receives that all queues share, at most; 0: each queue has its own. So has a queue for which they do not suffice,
    /// and every queue where the device shares none or is iWARP.
    pub shared_receives: u32,
    /// Connections at a time, those that are ending included.
    pub connections: usize,
    /// A host that has taken nothing for this long has lost its queue.
    pub stuck_after: Duration,
    /// An accepted connection must be established within this time: by word of the connection manager, or by the host's
    /// first message.
    pub establish_within: Duration,
    /// After this time nobody waits for the completions of a queue pair that has ended.
    pub drain_within: Duration,
}

/// A request of a host for a queue, which could be granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Where it was listened.
    pub listener: SocketAddr,
    /// Private data, maybe padded.
    pub private: Vec<u8>,
    /// RDMA READs that the host answers at a time.
    pub host_reads: u8,
}

/// What a port tells.
#[derive(Debug, PartialEq, Eq)]
pub enum TargetPortEvent {
    /// A host has a queue. Commands may come before the connection manager says that it is established.
    Accepted {
        /// Where it was listened.
        listener: SocketAddr,
        /// Which queue.
        qid: QueueId,
        /// The controller of an I/O queue, from a host that says it.
        cntlid: Option<ControllerId>,
        /// Its sizes.
        grant: Grant,
    },
    /// A host asks for a queue, of a port that holds requests. [`TargetPort::admit`] answers it, or
    /// [`TargetPort::turn_away`].
    Asked(Asked),
    /// A host was refused a queue. Nothing else comes of this connection.
    Refused {
        /// The host, if the connection manager tells it.
        peer: Option<SocketAddr>,
        /// Why.
        refusal: Refusal,
    },
    /// Of the queue.
    Queue(TargetEvent),
    /// Nothing is left of the connection.
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Accepted {
        since: Instant,
    },
    Live,
    /// The queue pair has ended, and its completions are awaited.
    Draining {
        since: Instant,
    },
    /// The queue pair is no more; the driver still has commands.
    Destroyed,
}

#[derive(Debug)]
struct Connection {
    queue: TargetQueue,
    stage: Stage,
    reserved: Reserved,
    /// How far the host had come, and when that was first seen.
    progress: (u64, Instant),
    /// It has something to flush or to tell.
    is_dirty: bool,
    /// It is among [`TargetPort::telling`].
    is_telling: bool,
}

/// What a connection has of its port.
#[derive(Debug, Default)]
struct Reserved {
    regions: Vec<Region>,
    /// Shared receives that it was promised.
    receives: u16,
    /// Completions that it can have at a time, those of shared receives aside.
    completions: u32,
    /// Its queue pair takes none any longer, and those that it has taken are completed.
    receives_ended: bool,
}

/// All queues of a target on one core and one device.
#[derive(Debug)]
pub struct TargetPort<P> {
    provider: P,
    config: PortConfig,
    connections: Table<Connection>,
    /// What is not of a queue, and the last words of queues that are no more.
    events: VecDeque<(ConnectionId, TargetPortEvent)>,
    /// Queues that have something to tell.
    telling: VecDeque<ConnectionId>,
    completions: Vec<Completion>,
    /// Completions that were taken before a queue pair was destroyed, and are still to be handled.
    late: VecDeque<Completion>,
    shared: Option<SharedReceives>,
    counts: PortCounts,
    /// Completions that all connections can have at a time, those of shared receives aside.
    promised: u32,
    dirty: Vec<ConnectionId>,
    /// Those whose turn it is. The memory is kept.
    turn: Vec<ConnectionId>,
    is_device_gone: bool,
    has_address_moved: bool,
    /// The driver answers requests.
    holds_requests: bool,
    /// Nobody gets in any more.
    is_closed: bool,
}

impl<P: Provider> TargetPort<P> {
    /// A port on a device.
    pub fn new(mut provider: P, config: PortConfig) -> Self {
        let shared = SharedReceives::new(&mut provider, config.shared_receives, &config.io);
        Self {
            provider,
            config,
            connections: Table::new(CONNECTIONS_NEAR),
            events: VecDeque::new(),
            telling: VecDeque::new(),
            completions: Vec::with_capacity(POLL_BATCH),
            late: VecDeque::new(),
            shared,
            counts: PortCounts::default(),
            promised: 0,
            dirty: Vec::new(),
            turn: Vec::new(),
            is_device_gone: false,
            has_address_moved: false,
            holds_requests: false,
            is_closed: false,
        }
    }

    /// From now on, the driver answers requests ([`TargetPortEvent::Asked`]). Those that no port could grant are refused
    /// at once.
    pub fn hold_requests(&mut self) {
        self.holds_requests = true;
    }

    /// The device, to listen and to register memory for data.
    pub fn provider(&mut self) -> &mut P {
        &mut self.provider
    }

    /// A queue, to read host data and to respond. What it has to post leaves with the next [`Self::poll`] or [`Self::flush`].
    #[inline]
    pub fn queue(&mut self, id: ConnectionId) -> Option<&mut TargetQueue> {
        let connection = self.connections.get_mut(id.0)?;
        if !connection.is_dirty {
            connection.is_dirty = true;
            self.dirty.push(id);
        }
        Some(&mut connection.queue)
    }

    /// A queue and the device, to read what came in a capsule.
    pub fn queue_and_provider(&mut self, id: ConnectionId) -> Option<(&mut TargetQueue, &mut P)> {
        self.queue(id)?;
        let connection = self.connections.get_mut(id.0)?;
        Some((&mut connection.queue, &mut self.provider))
    }

    /// Connections, those that are ending included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// What it has done so far.
    #[must_use]
    pub fn counts(&self) -> PortCounts {
        self.counts
    }

    /// Listens no longer: hosts that come are refused, and the address is free. Those that are there stay.
    pub fn stop_listening(&mut self) {
        self.is_closed = true;
        self.provider.stop_listening();
    }

    /// Whether the device was removed, or has lost its address: none comes any more. If it was removed, its connections end.
    #[must_use]
    pub fn is_device_gone(&self) -> bool {
        self.is_device_gone
    }

    /// Whether another device has the address by now.
    #[must_use]
    pub fn has_address_moved(&self) -> bool {
        self.has_address_moved
    }

    /// The next event.
    #[inline]
    pub fn poll_event(&mut self) -> Option<(ConnectionId, TargetPortEvent)> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        while let Some(&id) = self.telling.front() {
            if let Some(connection) = self.connections.get_mut(id.0) {
                if let Some(event) = connection.queue.poll_event() {
                    self.counts.requests += is_request(&event);
                    return Some((id, TargetPortEvent::Queue(event)));
                }
                connection.is_telling = false;
            }
            self.telling.pop_front();
        }
        None
    }

    /// Takes events and completions, and posts what they lead to. Gives whether there were any.
    pub fn poll(&mut self, now: Instant) -> bool {
        let mut events = 0;
        while events < EVENTS_PER_POLL
            && let Some(event) = self.provider.next_event()
        {
            self.handle_event(event, now);
            events += 1;
        }
        self.poll_work(now) || events > 0
    }

    /// [`Self::poll`], of completions alone: it costs no system call.
    pub fn poll_work(&mut self, now: Instant) -> bool {
        // Newer ones must not overtake them.
        self.complete_late();
        let mut any = false;
        for _ in 0..POLLS {
            let count = self.poll_once();
            any |= count > 0;
            if count < POLL_BATCH {
                break;
            }
        }
        self.settle(now);
        any
    }

    /// Handles some completions. Gives how many.
    #[inline]
    fn poll_once(&mut self) -> usize {
        let mut completions = std::mem::take(&mut self.completions);
        self.provider.poll(&mut completions);
        let count = completions.len();
        self.counts.polls += 1;
        self.counts.idle_polls += u64::from(count == 0);
        self.counts.completions += u64::try_from(count).unwrap_or(0);
        for done in completions.drain(..) {
            self.complete(&done);
        }
        self.completions = completions;
        count
    }

    #[inline]
    fn complete(&mut self, done: &Completion) {
        let place = self.shared.as_mut().and_then(|shared| shared.take(done.id));
        let Some(connection) = self.connections.get_mut(done.connection.0) else {
            // Completions of a queue pair that was destroyed name a connection that is no more.
            if let (Some(shared), Some(place)) = (&mut self.shared, place) {
                shared.give_back(place.receive);
            }
            return;
        };
        match place {
            Some(place) => connection.queue.handle_shared(&self.provider, done, place),
            None => connection.queue.handle_completion(&self.provider, done),
        }
        if !connection.is_dirty {
            connection.is_dirty = true;
            self.dirty.push(done.connection);
        }
    }

    /// Handles completions that were taken on the way to something else.
    #[inline]
    fn complete_late(&mut self) {
        while let Some(done) = self.late.pop_front() {
            self.complete(&done);
        }
    }

    /// Posts what drivers have given to queues, and tells what that leads to.
    pub fn settle(&mut self, now: Instant) {
        while !self.dirty.is_empty() || !self.late.is_empty() {
            self.complete_late();
            let mut turn = std::mem::take(&mut self.turn);
            std::mem::swap(&mut turn, &mut self.dirty);
            for &id in &turn {
                let Some(connection) = self.connections.get_mut(id.0) else { continue };
                connection.is_dirty = false;
                connection.queue.prepare(&mut self.provider);
                take_returned(&mut self.shared, connection);
            }
            // Receives first, for all queues at once: a host may use an entry again as soon as it has the response.
            self.post_shared();
            for id in turn.drain(..) {
                let Some(connection) = self.connections.get_mut(id.0) else { continue };
                connection.queue.post(&mut self.provider, &mut self.counts);
                self.tell(id);
                self.advance(id, now);
            }
            self.turn = turn;
        }
        self.post_shared();
    }

    fn post_shared(&mut self) {
        if let Some(shared) = &mut self.shared {
            shared.post(&mut self.provider, &mut self.counts);
        }
    }

    #[inline]
    fn tell(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(id.0) else { return };
        take_returned(&mut self.shared, connection);
        if connection.queue.has_events() && !connection.is_telling {
            connection.is_telling = true;
            self.telling.push_back(id);
        }
    }

    /// Looks at the deadlines of all connections. Call it every second or so.
    pub fn check_deadlines(&mut self, now: Instant) {
        for id in self.connections.numbers().into_iter().map(ConnectionId) {
            self.check_deadline(id, now);
            self.tell(id);
            self.advance(id, now);
        }
    }

    fn check_deadline(&mut self, id: ConnectionId, now: Instant) {
        let Some(connection) = self.connections.get_mut(id.0) else { return };
        match connection.stage {
            // The connection manager may never say so: its message can get lost, and the host's is as good (InfiniBand 1.2.1,
            // 12.9.6).
            Stage::Accepted { .. } if connection.queue.has_received() => {
                connection.stage = Stage::Live;
            }
            Stage::Accepted { since } if now >= since + self.config.establish_within => {
                connection.queue.close(Loss::Disconnected);
            }
            Stage::Draining { since } if now >= since + self.config.drain_within => {
                connection.queue.give_up();
                connection.stage = Stage::Destroyed;
                self.destroy(id);
            }
            _ => {}
        }
        let Some(connection) = self.connections.get_mut(id.0) else { return };
        let progress = connection.queue.progress();
        if !connection.queue.awaits_host() || progress != connection.progress.0 {
            connection.progress = (progress, now);
        } else if now >= connection.progress.1 + self.config.stuck_after {
            connection.queue.close(Loss::Stuck);
        }
    }

    /// Ends a queue from this end.
    pub fn close(&mut self, id: ConnectionId, now: Instant) {
        if let Some(connection) = self.connections.get_mut(id.0) {
            connection.queue.close(Loss::Closed);
        }
        self.tell(id);
        self.advance(id, now);
    }

    /// Ends a queue from this end at once: no request of it is carried out any longer when this returns.
    pub fn abort(&mut self, id: ConnectionId, now: Instant) {
        let Some(connection) = self.connections.get_mut(id.0) else { return };
        connection.queue.give_up();
        let is_there = connection.stage != Stage::Destroyed;
        let is_connected = matches!(connection.stage, Stage::Accepted { .. } | Stage::Live);
        connection.stage = Stage::Destroyed;
        if is_connected {
            self.provider.disconnect(id);
        }
        if is_there {
            self.destroy(id);
        }
        self.tell(id);
        self.advance(id, now);
    }

    /// Takes the next step of a connection that ends.
    #[inline]
    fn advance(&mut self, id: ConnectionId, now: Instant) {
        let Some(connection) = self.connections.get_mut(id.0) else { return };
        let Some(loss) = connection.queue.loss() else { return };
        if matches!(connection.stage, Stage::Accepted { .. } | Stage::Live) {
            if loss == Loss::DeviceRemoved {
                self.provider.destroy(id);
                connection.stage = Stage::Destroyed;
            } else {
                self.provider.disconnect(id);
                connection.stage = Stage::Draining { since: now };
            }
        }
        if !connection.queue.is_drained() {
            return;
        }
        if connection.stage != Stage::Destroyed {
            // Its messages may still take shared receives, or have them: those would go with the queue pair.
            let has_receives =
                connection.reserved.receives > 0 && !connection.reserved.receives_ended;
            if has_receives && self.provider.capabilities().tells_last_receive {
                return;
            }
            self.destroy(id);
        }
        let Some(mut connection) = self.connections.remove(id.0) else { return };
        while let Some(event) = connection.queue.poll_event() {
            self.counts.requests += is_request(&event);
            self.events.push_back((id, TargetPortEvent::Queue(event)));
        }
        self.free(connection.reserved);
        self.events.push_back((id, TargetPortEvent::Closed));
    }

    /// Destroys a queue pair. Devices may take its completions away with it, and with them the names of the shared receives
    /// that its messages have taken: so they are taken before.
    fn destroy(&mut self, id: ConnectionId) {
        if self.shared.is_some() {
            self.take_late();
        }
        self.provider.destroy(id);
    }

    /// Takes all completions that are there.
    fn take_late(&mut self) {
        let mut late = Vec::with_capacity(POLL_BATCH);
        loop {
            self.provider.poll(&mut late);
            if late.is_empty() {
                break;
            }
            self.late.extend(late.drain(..));
        }
    }

    fn free(&mut self, reserved: Reserved) {
        self.promised -= reserved.completions;
        for region in reserved.regions {
            self.provider.deregister(region);
        }
        if let Some(shared) = self.shared.as_mut().filter(|_| reserved.receives > 0) {
            shared.release(reserved.receives, !reserved.receives_ended);
            self.counts.lost_receives += u64::from(!reserved.receives_ended);
        }
    }

    /// Gets receives back that the device has lost, if no queue shares any. Nothing else has them once all completions are
    /// handled: of a queue pair that is no more, none comes any longer.
    fn renew_shared(&mut self) {
        if !self.shared.as_ref().is_some_and(SharedReceives::needs_renewal) {
            return;
        }
        self.take_late();
        self.complete_late();
        if let Some(mut shared) = self.shared.take() {
            if shared.renew(&mut self.provider) {
                self.shared = Some(shared);
            } else {
                shared.end(&mut self.provider);
            }
        }
    }

    /// Ends all queue pairs at once, and gives the memory of shared receives back. Drivers have no command any longer.
    pub fn end(&mut self) {
        for (id, connection) in self.connections.drain() {
            if connection.stage != Stage::Destroyed {
                self.provider.destroy(ConnectionId(id));
            }
            self.free(connection.reserved);
        }
        if let Some(shared) = self.shared.take() {
            shared.end(&mut self.provider);
        }
    }

    fn handle_event(&mut self, event: Event, now: Instant) {
        let id = event.connection();
        match event {
            Event::Request { .. } if self.is_closed => {
                self.provider.reject(id, RejectData::new(RejectStatus::NoResources).as_bytes());
                self.destroy(id);
            }
            Event::Request { listener, private, host_reads, .. } => {
                let asked = Asked { listener, private, host_reads };
                let event = if self.holds_requests {
                    match self.judge(&asked) {
                        Ok(_) => TargetPortEvent::Asked(asked),
                        Err(refusal) => {
                            let peer = self.provider.peer(id);
                            self.refuse_with(id, refusal.status());
                            TargetPortEvent::Refused { peer, refusal }
                        }
                    }
                } else {
                    let peer = self.provider.peer(id);
                    match self.admit(id, &asked, now) {
                        Ok((request, grant)) => {
                            let (qid, cntlid) = (request.qid, request.cntlid);
                            TargetPortEvent::Accepted { listener, qid, cntlid, grant }
                        }
                        Err(refusal) => TargetPortEvent::Refused { peer, refusal },
                    }
                };
                self.events.push_back((id, event));
            }
            Event::Established { .. } => {
                if let Some(connection) = self.connections.get_mut(id.0)
                    && matches!(connection.stage, Stage::Accepted { .. })
                {
                    connection.stage = Stage::Live;
                }
            }
            // Soft RoCE tells of the last receive as well, and loses that of a message in part all the same.
            Event::ReceivesEnded(_) if !self.provider.capabilities().tells_last_receive => {}
            Event::ReceivesEnded(_) => {
                if let Some(connection) = self.connections.get_mut(id.0) {
                    connection.reserved.receives_ended = true;
                }
                self.tell(id);
                self.advance(id, now);
            }
            Event::DeviceRemoved(_) => {
                self.is_device_gone = true;
                let lost = match id {
                    ConnectionId::NOBODY => self.connections.numbers(),
                    id => vec![id.0],
                };
                for id in lost.into_iter().map(ConnectionId) {
                    self.lose(id, Loss::DeviceRemoved, now);
                }
            }
            Event::Disconnected(_) | Event::Rejected { .. } | Event::Failed { .. } => {
                self.lose(id, Loss::Disconnected, now);
            }
            Event::AddressMoved => {
                (self.is_device_gone, self.has_address_moved) = (true, true);
            }
            Event::Resolved(_) => {}
        }
    }

    fn lose(&mut self, id: ConnectionId, loss: Loss, now: Instant) {
        let Some(connection) = self.connections.get_mut(id.0) else { return };
        connection.queue.close(loss);
        if loss == Loss::DeviceRemoved && matches!(connection.stage, Stage::Draining { .. }) {
            connection.stage = Stage::Destroyed;
            self.provider.destroy(id);
        }
        self.tell(id);
        self.advance(id, now);
    }

    /// What a host asks for, and what it would be granted.
    fn judge(&self, asked: &Asked) -> Result<(QueueRequest, Grant), Refusal> {
        let request = QueueRequest::parse(&asked.private)?;
        let can = self.provider.capabilities();
        let mut limits = self.config.grant;
        limits.reads = limits.reads.min(can.reads_begun).max(1);
        let grant = request.grant(&limits, asked.host_reads)?;
        Ok((request, grant))
    }

    /// Gives a host its queue, or refuses it: then nothing is left of the request.
    ///
    /// # Errors
    /// Why it was refused.
    pub fn admit(
        &mut self,
        id: ConnectionId,
        asked: &Asked,
        now: Instant,
    ) -> Result<(QueueRequest, Grant), Refusal> {
        let mut reserved = Reserved::default();
        let admitted = self.try_admit(id, asked, &mut reserved, now);
        if let Err(refusal) = &admitted {
            // Messages come once the host may have been told.
            reserved.receives_ended = !matches!(refusal, Refusal::Accept(_));
            self.refuse_with(id, refusal.status());
            self.free(reserved);
        }
        admitted
    }

    /// Refuses a request that nobody has answered, for want of resources.
    pub fn turn_away(&mut self, id: ConnectionId) {
        self.refuse_with(id, RejectStatus::NoResources);
    }

    /// Refuses a request that nobody has answered, for this reason.
    pub fn refuse(&mut self, id: ConnectionId, status: RejectStatus) {
        self.refuse_with(id, status);
    }

    fn refuse_with(&mut self, id: ConnectionId, status: RejectStatus) {
        self.counts.refused += 1;
        self.provider.reject(id, RejectData::new(status).as_bytes());
        self.destroy(id);
    }

    /// `reserved` is what the queue was given of the port.
    fn try_admit(
        &mut self,
        id: ConnectionId,
        asked: &Asked,
        reserved: &mut Reserved,
        now: Instant,
    ) -> Result<(QueueRequest, Grant), Refusal> {
        let (request, grant) = self.judge(asked)?;
        self.renew_shared();
        let limits = if request.qid.is_admin() {
            CapsuleLimits::admin(&self.config.io)
        } else {
            self.config.io
        };
        let sends = TargetQueueConfig::sends_for(grant.entries, &limits);
        self.check_room(sends)?;
        let mut queue = self.make_queue(id, &grant, limits, sends, reserved)?;
        queue.post_receives(&mut self.provider).map_err(Refusal::Receives)?;
        self.provider
            .accept(id, AcceptData::new(grant.entries).as_bytes(), grant.reads)
            .map_err(Refusal::Accept)?;
        let connection = Connection {
            queue,
            stage: Stage::Accepted { since: now },
            reserved: std::mem::take(reserved),
            progress: (0, now),
            is_dirty: false,
            is_telling: false,
        };
        self.connections.insert(id.0, connection);
        Ok((request, grant))
    }

    /// Whether there is room for another queue with so many requests.
    fn check_room(&self, sends: u32) -> Result<(), Refusal> {
        let can = self.provider.capabilities();
        if self.connections.len() >= self.config.connections {
            return Err(Refusal::Connections(self.connections.len()));
        }
        if sends > can.work_requests {
            return Err(Refusal::Requests { needed: sends, most: can.work_requests });
        }
        Ok(())
    }

    /// Completions that no queue can have. A completion queue that overflows ends all its queue pairs. Any queue can take all
    /// shared receives, so each of these counts once, and not as those of a queue.
    fn free_completions(&self) -> u32 {
        let shared = self.shared.as_ref().map_or(0, SharedReceives::made);
        self.provider.capabilities().completions.saturating_sub(self.promised + shared)
    }

    /// Promises a queue its completions, and shared receives if there are enough. Gives whether it shares.
    fn reserve(
        &mut self,
        sends: u32,
        entries: u16,
        reserved: &mut Reserved,
    ) -> Result<bool, Refusal> {
        let room = self.free_completions().saturating_sub(sends);
        let shares = self
            .shared
            .as_mut()
            .is_some_and(|shared| shared.promise(&mut self.provider, entries, room));
        let needed = if shares { sends } else { sends + u32::from(entries) };
        reserved.receives = if shares { entries } else { 0 };
        let free = self.free_completions();
        if needed > free {
            let all = self.provider.capabilities().completions;
            return Err(Refusal::Completions { needed, free, all });
        }
        reserved.completions = needed;
        self.promised += needed;
        Ok(shares)
    }

    /// Makes a queue pair with its memory, and the queue over it.
    fn make_queue(
        &mut self,
        id: ConnectionId,
        grant: &Grant,
        limits: CapsuleLimits,
        sends: u32,
        reserved: &mut Reserved,
    ) -> Result<TargetQueue, Refusal> {
        let shares = self.reserve(sends, grant.entries, reserved)?;
        let capsules = TargetQueueConfig::capsule_bytes(grant.entries, &limits);
        let responses = TargetQueueConfig::response_bytes(sends);
        for bytes in [responses, capsules].into_iter().take(if shares { 1 } else { 2 }) {
            let region = self.provider.register(DomainId::OWN, bytes, Access::LOCAL);
            reserved.regions.push(region.map_err(Refusal::Memory)?);
        }
        let can = self.provider.capabilities();
        let pair = PairConfig {
            domain: DomainId::OWN,
            sends,
            receives: if shares { 0 } else { grant.entries.into() },
            shares_receives: shares,
            inline_bytes: 16.min(can.inline_bytes),
        };
        let made = self.provider.create_pair(id, &pair).map_err(Refusal::Pair)?;
        let config = TargetQueueConfig {
            entries: grant.entries,
            limits,
            reads: grant.reads,
            sends,
            inline: made.inline_bytes >= 16,
            invalidates: can.send_with_invalidate,
            capsules: reserved.regions.get(1).copied(),
            responses: reserved.regions[0],
        };
        Ok(TargetQueue::new(id, config))
    }
}

fn is_request(event: &TargetEvent) -> u64 {
    u64::from(matches!(event, TargetEvent::Command { .. }))
}

/// Takes the shared receives that a connection does not need any longer.
#[inline]
fn take_returned(shared: &mut Option<SharedReceives>, connection: &mut Connection) {
    if let Some(shared) = shared {
        while let Some(receive) = connection.queue.take_returned() {
            shared.give_back(receive);
        }
    }
}
