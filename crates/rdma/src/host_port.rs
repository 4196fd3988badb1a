//! All queues of a host on one core and one device: connecting step by step, deadlines, drained ends.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use raceline_proto::rdma::{AcceptData, QueueRequest, RejectData, RejectStatus};

use crate::Loss;
use crate::host_queue::{HostEvent, HostQueue, HostQueueConfig};
use crate::verbs::{
    Access, Completion, ConnectionId, DomainId, Event, POLL_BATCH, PairConfig, Provider,
    ProviderError, Region, Rejection,
};

/// Each step of connecting has this long.
const STEP: Duration = Duration::from_secs(3);
/// After this time nobody waits for the completions of a queue pair that has ended.
const DRAIN: Duration = Duration::from_secs(1);

/// A queue to connect.
#[derive(Clone, Copy, Debug)]
pub struct ConnectConfig {
    /// The target's listener.
    pub address: SocketAddr,
    /// Where the connection comes from; `None`: from where the address is reached.
    pub source: Option<SocketAddr>,
    /// Where the queue pair and the memory of its capsules and responses are, and what the target can reach. It has to be there
    /// until nothing is left of the connection.
    pub domain: DomainId,
    /// What the target is asked for. Commands outstanding are one fewer than the entries, and receives as many.
    pub request: QueueRequest,
    /// Bytes of memory for each capsule: 64, and the data or descriptors of those that are not made elsewhere
    /// ([`HostTransfer::CapsuleIn`](crate::HostTransfer)).
    pub capsule_len: u32,
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The target refuses the queue.
    #[error("the target rejected the queue: {0}")]
    Rejected(RejectStatus),
    /// The target refuses the queue, and gives no reason.
    #[error(
        "the target rejected the queue and gave no reason; is it one for NVMe/RDMA, and does its log say why?"
    )]
    Unexplained,
    /// The target still has an older connection of the same numbers.
    #[error("the target still has a connection from before; try again shortly")]
    Stale,
    /// The connection manager refuses.
    #[error(
        "the connection manager rejected the connection (status {0}); is there a listener for RDMA at the address?"
    )]
    Manager(i32),
    /// A step failed.
    #[error("{0} failed")]
    Failed(&'static str),
    /// A step took too long.
    #[error("{0} took longer than 3 s")]
    TimedOut(&'static str),
    /// This end's device refuses.
    #[error("{0}")]
    Provider(ProviderError),
    /// The completion queue would overflow, and end all queues.
    #[error(
        "the queue needs {needed} entries of this end's completion queue, and {free} of {all} are left: use shorter \
         queues"
    )]
    Completions {
        /// Of this queue.
        needed: u32,
        /// Those that no queue has.
        free: u32,
        /// Those that the device has made.
        all: u32,
    },
    /// The device's queue pairs are too short (`max_qp_wr`).
    #[error(
        "the queue needs {needed} requests in its queue pair, and this end's device has {most}: use queues of {entries} \
         entries at most"
    )]
    Requests {
        /// Of this queue.
        needed: u32,
        /// Most that the device has.
        most: u32,
        /// Entries of the longest queue.
        entries: u32,
    },
}

impl ConnectError {
    /// A queue pair of this end's device has no room for as many commands.
    fn requests(needed: u32, most: u32) -> Self {
        Self::Requests { needed, most, entries: most.saturating_add(1) }
    }

    /// Whether the same may succeed shortly.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Stale)
    }
}

/// What a port tells.
#[derive(Debug, PartialEq, Eq)]
pub enum HostPortEvent {
    /// Commands can be sent.
    Connected,
    /// There is no connection.
    Failed(ConnectError),
    /// Of the queue.
    Queue(HostEvent),
    /// Nothing is left of the connection.
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Resolving { since: Instant },
    Connecting { since: Instant },
    Live,
    Draining { since: Instant },
}

#[derive(Debug)]
struct Connection {
    stage: Stage,
    config: ConnectConfig,
    queue: Option<HostQueue>,
    regions: Vec<Region>,
    /// Completions that it can have at a time.
    completions: u32,
    is_dirty: bool,
}

/// All queues of a host on one core and one device.
#[derive(Debug)]
pub struct HostPort<P> {
    provider: P,
    connections: BTreeMap<ConnectionId, Connection>,
    events: VecDeque<(ConnectionId, HostPortEvent)>,
    completions: Vec<Completion>,
    /// Completions that all connections can have at a time.
    promised: u32,
    dirty: Vec<ConnectionId>,
    /// Connections that are ending.
    ending: usize,
    /// The device was removed.
    is_device_gone: bool,
}

impl<P: Provider> HostPort<P> {
    /// A port on a device.
    pub fn new(provider: P) -> Self {
        Self {
            provider,
            connections: BTreeMap::new(),
            events: VecDeque::new(),
            completions: Vec::with_capacity(POLL_BATCH),
            promised: 0,
            dirty: Vec::new(),
            ending: 0,
            is_device_gone: false,
        }
    }

    /// The device, to register memory for data.
    pub fn provider(&mut self) -> &mut P {
        &mut self.provider
    }

    /// Whether the device was removed, or has lost its address: it makes no connection any more.
    #[must_use]
    pub fn is_device_gone(&self) -> bool {
        self.is_device_gone
    }

    /// Connections, those that are ending included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Whether a connection is ending, and waits for what its device still has to say: until [`Self::check_deadlines`]
    /// gives up.
    #[must_use]
    pub fn has_ending(&self) -> bool {
        self.ending > 0
    }

    /// Begins a connection.
    ///
    /// # Errors
    /// When the device does not reach the address.
    pub fn connect(
        &mut self,
        config: ConnectConfig,
        now: Instant,
    ) -> Result<ConnectionId, ConnectError> {
        let id =
            self.provider.resolve(config.address, config.source).map_err(ConnectError::Provider)?;
        let stage = Stage::Resolving { since: now };
        let connection = Connection {
            stage,
            config,
            queue: None,
            regions: Vec::new(),
            completions: 0,
            is_dirty: false,
        };
        self.connections.insert(id, connection);
        Ok(id)
    }

    /// A queue that is connected, and the device, to submit commands. They leave with the next [`Self::poll`].
    pub fn queue(&mut self, id: ConnectionId) -> Option<(&mut HostQueue, &mut P)> {
        let connection = self.connections.get_mut(&id)?;
        if connection.stage != Stage::Live {
            return None;
        }
        if !connection.is_dirty {
            connection.is_dirty = true;
            self.dirty.push(id);
        }
        Some((connection.queue.as_mut()?, &mut self.provider))
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<(ConnectionId, HostPortEvent)> {
        self.events.pop_front()
    }

    /// Takes events and completions, and posts what there is to post. False when there were none.
    pub fn poll(&mut self, now: Instant) -> bool {
        let mut is_busy = false;
        while let Some(event) = self.provider.next_event() {
            is_busy = true;
            self.handle_event(event, now);
        }
        self.poll_work(now) || is_busy
    }

    /// [`Self::poll`], of completions alone: it costs no system call.
    pub fn poll_work(&mut self, now: Instant) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        self.provider.poll(&mut completions);
        let is_busy = !completions.is_empty();
        for done in completions.drain(..) {
            let Some(connection) = self.connections.get_mut(&done.connection) else { continue };
            let Some(queue) = &mut connection.queue else { continue };
            queue.handle_completion(&self.provider, &done);
            if !connection.is_dirty {
                connection.is_dirty = true;
                self.dirty.push(done.connection);
            }
        }
        self.completions = completions;
        while let Some(id) = self.dirty.pop() {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            connection.is_dirty = false;
            if let Some(queue) = &mut connection.queue {
                queue.flush(&mut self.provider);
            }
            self.tell(id);
            self.advance(id, now);
        }
        is_busy
    }

    /// Posts what was submitted, and takes nothing. Whether a queue is lost by that: then [`Self::poll`] has news.
    pub fn post(&mut self) -> bool {
        let dirty = std::mem::take(&mut self.dirty);
        let mut is_lost = false;
        for id in &dirty {
            is_lost |= self.post_to(*id);
        }
        // Their events are told by the next poll.
        self.dirty = dirty;
        is_lost
    }

    /// The same for one queue.
    pub fn post_to(&mut self, id: ConnectionId) -> bool {
        let Some(Connection { queue: Some(queue), .. }) = self.connections.get_mut(&id) else {
            return false;
        };
        queue.flush(&mut self.provider);
        queue.loss().is_some()
    }

    /// Looks at the deadlines of all connections. Call it every second or so.
    pub fn check_deadlines(&mut self, now: Instant) {
        let ids: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for id in ids {
            let Some(connection) = self.connections.get(&id) else { continue };
            match connection.stage {
                Stage::Resolving { since } if now >= since + STEP => {
                    self.fail(id, ConnectError::TimedOut("resolving the address"));
                }
                Stage::Connecting { since } if now >= since + STEP => {
                    self.fail(id, ConnectError::TimedOut("connecting"));
                }
                Stage::Draining { since } if now >= since + DRAIN => self.finish(id),
                _ => {}
            }
        }
    }

    /// Ends all connections at once, as [`Self::abandon_one`] does.
    pub fn abandon(&mut self) {
        let ids: Vec<ConnectionId> = self.connections.keys().copied().collect();
        ids.into_iter().for_each(|id| self.abandon_one(id));
    }

    /// Ends a connection at once, for an owner that waits for nothing: the peer is told, the queue pair is destroyed, and
    /// nothing reaches memory any more. No event of it comes any more, either.
    pub fn abandon_one(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.remove(&id) else { return };
        self.provider.disconnect(id);
        self.provider.destroy(id);
        self.free(connection);
        self.events.retain(|(of, _)| *of != id);
    }

    /// Ends a connection from this end.
    pub fn close(&mut self, id: ConnectionId, now: Instant) {
        self.lose(id, Loss::Closed, now);
    }

    fn tell(&mut self, id: ConnectionId) {
        let Some(Connection { queue: Some(queue), .. }) = self.connections.get_mut(&id) else {
            return;
        };
        while let Some(event) = queue.poll_event() {
            self.events.push_back((id, HostPortEvent::Queue(event)));
        }
    }

    fn handle_event(&mut self, event: Event, now: Instant) {
        let id = event.connection();
        self.is_device_gone |= matches!(event, Event::DeviceRemoved(_) | Event::AddressMoved);
        if event == Event::DeviceRemoved(ConnectionId::NOBODY) {
            let all: Vec<ConnectionId> = self.connections.keys().copied().collect();
            return all.into_iter().for_each(|id| self.lose_device(id, now));
        }
        let Some(connection) = self.connections.get_mut(&id) else {
            // Nobody listens here.
            if let Event::Request { .. } = event {
                self.provider.reject(id, &[]);
                self.provider.destroy(id);
            }
            return;
        };
        match event {
            Event::Resolved(_) => {
                if let Stage::Resolving { .. } = connection.stage
                    && let Err(error) = self.begin(id, now)
                {
                    self.fail(id, error);
                }
            }
            Event::Established { private, .. } => {
                if let Stage::Connecting { .. } = connection.stage {
                    connection.stage = Stage::Live;
                    // CRQSIZE is information; hosts take what they have asked for.
                    let _ = AcceptData::parse(&private);
                    self.events.push_back((id, HostPortEvent::Connected));
                }
            }
            Event::Rejected { reason, .. } => {
                let error = match reason {
                    Rejection::Stale => ConnectError::Stale,
                    Rejection::Manager(status) => ConnectError::Manager(status),
                    Rejection::Consumer(private) => match RejectData::parse(&private) {
                        // Private data that nobody has written are zeroes, or missing.
                        None | Some(RejectStatus::Other(0)) => ConnectError::Unexplained,
                        Some(status) => ConnectError::Rejected(status),
                    },
                };
                self.refused(id, error, now);
            }
            Event::Failed { why, .. } => self.refused(id, ConnectError::Failed(why), now),
            Event::Disconnected(_) => self.lose(id, Loss::Disconnected, now),
            Event::DeviceRemoved(_) => self.lose_device(id, now),
            Event::ReceivesEnded(_) | Event::Request { .. } | Event::AddressMoved => {}
        }
    }

    /// The address is known: makes the queue pair, posts the receives, and asks.
    fn begin(&mut self, id: ConnectionId, now: Instant) -> Result<(), ConnectError> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let config = connection.config;
        let can = self.provider.capabilities();
        let entries = u16::try_from(config.request.entries).unwrap_or(u16::MAX);
        let commands = entries.saturating_sub(1).max(1);
        if u32::from(commands) > can.work_requests {
            return Err(ConnectError::requests(commands.into(), can.work_requests));
        }
        // A completion queue that overflows ends all its queue pairs.
        let needed = u32::from(commands) * 2;
        let free = can.completions.saturating_sub(self.promised);
        if needed > free {
            return Err(ConnectError::Completions { needed, free, all: can.completions });
        }
        connection.completions = needed;
        self.promised += needed;
        let bytes = [
            HostQueueConfig::capsule_bytes(commands, config.capsule_len),
            HostQueueConfig::response_bytes(commands),
        ];
        for bytes in bytes {
            let region = self.provider.register(config.domain, bytes, Access::LOCAL);
            connection.regions.push(region.map_err(ConnectError::Provider)?);
        }
        let (sends, receives) = (commands.into(), commands.into());
        let pair = PairConfig {
            domain: config.domain,
            sends,
            receives,
            shares_receives: false,
            inline_bytes: 64.min(can.inline_bytes),
        };
        let made = self.provider.create_pair(id, &pair).map_err(ConnectError::Provider)?;
        let queue_config = HostQueueConfig {
            commands,
            capsule_len: config.capsule_len,
            inline_bytes: made.inline_bytes,
            capsules: connection.regions[0],
            responses: connection.regions[1],
        };
        let mut queue = HostQueue::new(id, queue_config);
        let posted = queue.post_receives(&mut self.provider);
        connection.queue = Some(queue);
        posted.map_err(|_| ConnectError::Failed("posting receives"))?;
        let reads = can.reads_answered.max(1);
        self.provider
            .connect(id, &config.request.to_bytes(), reads)
            .map_err(ConnectError::Provider)?;
        connection.stage = Stage::Connecting { since: now };
        Ok(())
    }

    fn refused(&mut self, id: ConnectionId, error: ConnectError, now: Instant) {
        let stage = self.connections.get(&id).map(|connection| connection.stage);
        match stage {
            Some(Stage::Resolving { .. } | Stage::Connecting { .. }) => self.fail(id, error),
            _ => self.lose(id, Loss::Disconnected, now),
        }
    }

    /// There is no connection: nothing but receives is posted, and they go with the queue pair.
    fn fail(&mut self, id: ConnectionId, error: ConnectError) {
        self.provider.destroy(id);
        let Some(connection) = self.connections.remove(&id) else { return };
        self.free(connection);
        self.events.push_back((id, HostPortEvent::Failed(error)));
    }

    fn lose(&mut self, id: ConnectionId, loss: Loss, now: Instant) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match (&mut connection.queue, connection.stage) {
            (Some(queue), Stage::Live | Stage::Draining { .. }) => queue.close(loss),
            _ => return self.fail(id, ConnectError::Failed("connecting")),
        }
        self.tell(id);
        self.advance(id, now);
    }

    /// No completion comes any more, and destroying is all that the device still does.
    fn lose_device(&mut self, id: ConnectionId, now: Instant) {
        self.lose(id, Loss::DeviceRemoved, now);
        self.finish(id);
    }

    /// Takes the next step of a connection that ends.
    fn advance(&mut self, id: ConnectionId, now: Instant) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(queue) = &connection.queue else { return };
        if queue.loss().is_none() {
            return;
        }
        if connection.stage == Stage::Live {
            self.provider.disconnect(id);
            connection.stage = Stage::Draining { since: now };
            self.ending += 1;
        }
        if queue.is_drained() {
            self.finish(id);
        }
    }

    /// Destroys the queue pair, after which nothing reaches memory, and ends its commands.
    fn finish(&mut self, id: ConnectionId) {
        if !self.connections.contains_key(&id) {
            return;
        }
        self.provider.destroy(id);
        if let Some(Connection { queue: Some(queue), .. }) = self.connections.get_mut(&id) {
            queue.end();
        }
        self.tell(id);
        let Some(connection) = self.connections.remove(&id) else { return };
        self.free(connection);
        self.events.push_back((id, HostPortEvent::Closed));
    }

    /// The queue pair is no more, and neither are its completions.
    fn free(&mut self, connection: Connection) {
        self.promised -= connection.completions;
        self.ending -= usize::from(matches!(connection.stage, Stage::Draining { .. }));
        for region in connection.regions {
            self.provider.deregister(region);
        }
    }
}
