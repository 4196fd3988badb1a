//! All queues of a target on one core and one device: requests, grants, deadlines, drained ends.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use raceline_proto::nvme::{ControllerId, QueueId};
use raceline_proto::rdma::{
    AcceptData, CapsuleLimits, Grant, GrantLimits, QueueRequest, RejectData,
};
use zerocopy::IntoBytes;

use crate::Loss;
use crate::refusal::Refusal;
use crate::shared_receives::SharedReceives;
use crate::table::Table;
use crate::target_queue::{TargetEvent, TargetQueue, TargetQueueConfig};
use crate::verbs::{Access, Completion, ConnectionId, Event, PairConfig, Provider, Region};

/// Completions that one call of [`TargetPort::poll`] takes at most.
const COMPLETIONS_PER_POLL: usize = 64;
/// Connections in the array of [`Table`].
const CONNECTIONS_NEAR: usize = 64;
/// Events of the connection manager that one call takes at most, so that a storm of them does not stop the queues.
const EVENTS_PER_POLL: usize = 16;

/// What a port allows.
#[derive(Clone, Copy, Debug)]
pub struct PortConfig {
    /// Most of what a queue is granted.
    pub grant: GrantLimits,
    /// Capsules of I/O queues.
    pub io: CapsuleLimits,
    /// Receives that all queues share, at most; 0: each queue has its own. So has a queue for which they do not suffice,
    /// and every queue where the device shares none or is iWARP.
    pub shared_receives: u32,
    /// Connections at a time, those that are ending included.
    pub connections: usize,
    /// A host that has taken nothing for this long has lost its queue.
    pub stuck_after: Duration,
    /// An accepted connection must be established within this time.
    pub establish_within: Duration,
    /// After this time nobody waits for the completions of a queue pair that has ended.
    pub drain_within: Duration,
}

/// What a port has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Looks for completions.
    pub polls: u64,
    /// Those that found none.
    pub idle_polls: u64,
    /// Completions.
    pub completions: u64,
    /// Commands of hosts.
    pub requests: u64,
    /// Requests that were posted to send queues.
    pub sends: u64,
    /// Calls that posted them: each takes one to the device's doorbell.
    pub send_posts: u64,
    /// Receives that were posted after those with which queues begin.
    pub receives: u64,
    /// Calls that posted them.
    pub receive_posts: u64,
    /// Requests for queues that were refused.
    pub refused: u64,
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
    /// Completions that it can have at a time.
    completions: u32,
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
    /// Completions that all connections can have at a time.
    promised: u32,
    dirty: Vec<ConnectionId>,
    /// Those whose turn it is. The memory is kept.
    turn: Vec<ConnectionId>,
    is_device_gone: bool,
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
            completions: Vec::with_capacity(COMPLETIONS_PER_POLL),
            late: VecDeque::new(),
            shared,
            counts: PortCounts::default(),
            promised: 0,
            dirty: Vec::new(),
            turn: Vec::new(),
            is_device_gone: false,
        }
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

    /// Whether the device was removed: its connections end, and none comes any more.
    #[must_use]
    pub fn is_device_gone(&self) -> bool {
        self.is_device_gone
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
        let mut completions = std::mem::take(&mut self.completions);
        self.provider.poll(&mut completions);
        let any = !completions.is_empty();
        self.counts.polls += 1;
        self.counts.idle_polls += u64::from(!any);
        self.counts.completions += u64::try_from(completions.len()).unwrap_or(0);
        for done in completions.drain(..) {
            self.complete(&done);
        }
        self.completions = completions;
        self.settle(now);
        any
    }

    #[inline]
    fn complete(&mut self, done: &Completion) {
        let place = self.shared.as_ref().and_then(|shared| shared.place(done.id));
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
            self.destroy(id);
        }
        let Some(mut connection) = self.connections.remove(id.0) else { return };
        while let Some(event) = connection.queue.poll_event() {
            self.counts.requests += is_request(&event);
            self.events.push_back((id, TargetPortEvent::Queue(event)));
        }
        self.promised -= connection.completions;
        self.free(connection.reserved);
        self.events.push_back((id, TargetPortEvent::Closed));
    }

    /// Destroys a queue pair. Devices may take its completions away with it, and with them the names of the shared receives
    /// that its messages have taken: so they are taken before.
    fn destroy(&mut self, id: ConnectionId) {
        while self.shared.is_some() {
            let mut late = Vec::with_capacity(COMPLETIONS_PER_POLL);
            self.provider.poll(&mut late);
            if late.is_empty() {
                break;
            }
            self.late.extend(late);
        }
        self.provider.destroy(id);
    }

    fn free(&mut self, reserved: Reserved) {
        for region in reserved.regions {
            self.provider.deregister(region);
        }
        if let Some(shared) = &mut self.shared {
            shared.release(reserved.receives);
        }
    }

    /// Ends all queue pairs at once, and gives the memory of shared receives back. Drivers have no command any longer.
    pub fn end(&mut self) {
        for (id, connection) in self.connections.drain() {
            if connection.stage != Stage::Destroyed {
                self.provider.destroy(ConnectionId(id));
            }
            self.promised -= connection.completions;
            self.free(connection.reserved);
        }
        if let Some(shared) = self.shared.take() {
            shared.end(&mut self.provider);
        }
    }

    fn handle_event(&mut self, event: Event, now: Instant) {
        let id = event.connection();
        match event {
            Event::Request { listener, private, host_reads, .. } => {
                let mut reserved = Reserved::default();
                let asked = (listener, &private[..], host_reads);
                if let Err(refusal) = self.admit(id, asked, &mut reserved, now) {
                    self.counts.refused += 1;
                    let peer = self.provider.peer(id);
                    self.provider.reject(id, RejectData::new(refusal.status()).as_bytes());
                    self.destroy(id);
                    self.free(reserved);
                    self.events.push_back((id, TargetPortEvent::Refused { peer, refusal }));
                }
            }
            Event::Established { .. } => {
                if let Some(connection) = self.connections.get_mut(id.0)
                    && matches!(connection.stage, Stage::Accepted { .. })
                {
                    connection.stage = Stage::Live;
                }
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

    /// Gives a host its queue. `reserved` is what it was given of the port.
    fn admit(
        &mut self,
        id: ConnectionId,
        (listener, private, host_reads): (SocketAddr, &[u8], u8),
        reserved: &mut Reserved,
        now: Instant,
    ) -> Result<(), Refusal> {
        let request = QueueRequest::parse(private)?;
        let can = self.provider.capabilities();
        let mut limits = self.config.grant;
        limits.reads = limits.reads.min(can.reads_begun).max(1);
        let grant = request.grant(&limits, host_reads)?;
        let limits = if request.qid.is_admin() {
            CapsuleLimits::admin(self.config.io.transfer_bytes)
        } else {
            self.config.io
        };
        let sends = TargetQueueConfig::sends_for(grant.entries, &limits);
        let completions = sends + u32::from(grant.entries);
        self.check_room(sends, completions)?;
        let mut queue = self.make_queue(id, &grant, limits, sends, reserved)?;
        queue.post_receives(&mut self.provider).map_err(Refusal::Receives)?;
        self.provider
            .accept(id, AcceptData::new(grant.entries).as_bytes(), grant.reads)
            .map_err(Refusal::Accept)?;
        self.promised += completions;
        let connection = Connection {
            queue,
            stage: Stage::Accepted { since: now },
            reserved: std::mem::take(reserved),
            completions,
            progress: (0, now),
            is_dirty: false,
            is_telling: false,
        };
        self.connections.insert(id.0, connection);
        let (qid, cntlid) = (request.qid, request.cntlid);
        let event = TargetPortEvent::Accepted { listener, qid, cntlid, grant };
        self.events.push_back((id, event));
        Ok(())
    }

    /// Whether there is room for another queue with so many requests and completions.
    fn check_room(&self, sends: u32, completions: u32) -> Result<(), Refusal> {
        let can = self.provider.capabilities();
        // A completion queue that overflows ends all its queue pairs.
        let free = can.completions.saturating_sub(self.promised);
        if completions > free {
            let all = can.completions;
            return Err(Refusal::Completions { needed: completions, free, all });
        }
        if self.connections.len() >= self.config.connections {
            return Err(Refusal::Connections(self.connections.len()));
        }
        if sends > can.work_requests {
            return Err(Refusal::Requests { needed: sends, most: can.work_requests });
        }
        Ok(())
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
        let shares = self
            .shared
            .as_mut()
            .is_some_and(|shared| shared.promise(&mut self.provider, grant.entries));
        reserved.receives = if shares { grant.entries } else { 0 };
        let capsules = TargetQueueConfig::capsule_bytes(grant.entries, &limits);
        let responses = TargetQueueConfig::response_bytes(sends);
        for bytes in [responses, capsules].into_iter().take(if shares { 1 } else { 2 }) {
            let region = self.provider.register(bytes, Access::LOCAL);
            reserved.regions.push(region.map_err(Refusal::Memory)?);
        }
        let can = self.provider.capabilities();
        let pair = PairConfig {
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
