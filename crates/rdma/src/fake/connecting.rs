//! The connection manager of a simulated network.

use std::net::SocketAddr;

use super::state::{Pair, PairState, Phase, State, Step, id, index};
use super::{MOST_INLINE, gone};
use crate::verbs::{Completion, ConnectionId, Event, PairConfig, ProviderError, Rejection};

/// Private data are padded to these lengths where the manager is InfiniBand's: of a request, an accept, a reject.
const PADDED: [usize; 3] = [56, 196, 148];
/// The status of a manager that finds no listener.
const NO_LISTENER: i32 = 8;

fn refused(what: &'static str, why: &str) -> ProviderError {
    ProviderError::new(what, why)
}

impl State {
    pub(super) fn listen(&mut self, node: usize, address: SocketAddr) -> Result<(), ProviderError> {
        if self.nodes[node].is_removed {
            return Err(gone("listening"));
        }
        let mut alive = self.nodes.iter().filter(|node| !node.is_removed);
        if alive.any(|node| node.listeners.contains(&address)) {
            let error = refused("listening", "the address is in use");
            return Err(error.of_kind(std::io::ErrorKind::AddrInUse));
        }
        self.nodes[node].listeners.push(address);
        Ok(())
    }

    pub(super) fn resolve(
        &mut self,
        node: usize,
        address: SocketAddr,
        source: Option<SocketAddr>,
    ) -> Result<ConnectionId, ProviderError> {
        let what = "resolving an address";
        if self.nodes[node].is_removed {
            return Err(gone(what));
        }
        let own = self.nodes[node].address;
        if source.zip(own).is_some_and(|(source, own)| source.ip() != own) {
            return Err(refused(what, "the source is not an address of the device"));
        }
        let pair = self.pairs.len();
        self.pairs.push(Pair { source, ..Pair::new(node, address, true) });
        self.soon(Step::Tell(pair, Event::Resolved(id(pair))));
        Ok(id(pair))
    }

    /// The connection, if it is alive and this device's.
    fn live(&mut self, node: usize, connection: ConnectionId, what: &str) -> Option<usize> {
        let at = index(connection);
        let is_live = self
            .pairs
            .get(at)
            .is_some_and(|pair| pair.node == node && pair.phase != Phase::Destroyed);
        if !is_live {
            self.misuse(format!("{what} of a connection that is destroyed or another's"));
        }
        is_live.then_some(at)
    }

    pub(super) fn create_pair(
        &mut self,
        node: usize,
        connection: ConnectionId,
        config: &PairConfig,
    ) -> Result<PairConfig, ProviderError> {
        let what = "making a queue pair";
        if self.nodes[node].is_removed {
            return Err(gone(what));
        }
        let at = self.live(node, connection, what).ok_or(refused(what, "no such connection"))?;
        if !self.nodes[node].memory.has_domain(config.domain) {
            self.misuse("a queue pair is made in a domain that is closed");
            return Err(refused(what, "there is no such domain"));
        }
        let can = self.config;
        // As the kernel says it of a queue pair that the device cannot have.
        if config.sends.max(config.receives) > can.work_requests {
            return Err(refused(what, "Invalid argument"));
        }
        let inline_bytes = config.inline_bytes.min(can.inline_bytes).min(MOST_INLINE);
        let granted = PairConfig { inline_bytes, ..*config };
        self.pairs[at].config = Some(granted);
        self.give_number(at);
        Ok(granted)
    }

    pub(super) fn connect(
        &mut self,
        node: usize,
        connection: ConnectionId,
        private: &[u8],
        reads: u8,
    ) -> Result<(), ProviderError> {
        let what = "connecting";
        if self.nodes[node].is_removed {
            return Err(gone(what));
        }
        let at = self.live(node, connection, what).ok_or(refused(what, "no such connection"))?;
        if self.pairs[at].phase != Phase::Idle || self.pairs[at].config.is_none() {
            self.misuse("a connection asks before its address is known and its queue pair is made");
            return Err(refused(what, "out of order"));
        }
        if reads > self.config.reads_answered {
            self.misuse("a host offers to answer more RDMA READs than its device can");
        }
        (self.pairs[at].phase, self.pairs[at].answers) = (Phase::Asked, reads);
        let address = self.pairs[at].address;
        let listener = self
            .nodes
            .iter()
            .position(|node| node.listeners.contains(&address) && !node.is_removed);
        let stale = self.config.faults.stale;
        if self.random_fault(stale) {
            let event = Event::Rejected { connection, reason: Rejection::Stale };
            self.soon(Step::Tell(at, event));
            return Ok(());
        }
        let Some(listener) = listener else {
            let reason = Rejection::Manager(NO_LISTENER);
            self.soon(Step::Tell(at, Event::Rejected { connection, reason }));
            return Ok(());
        };
        let peer = self.pairs.len();
        self.pairs.push(Pair::new(listener, address, false));
        self.pairs[peer].peer = Some(at);
        self.pairs[at].peer = Some(peer);
        let private = self.padded(private, PADDED[0]);
        let event =
            Event::Request { connection: id(peer), listener: address, private, host_reads: reads };
        self.soon(Step::Tell(peer, event));
        Ok(())
    }

    fn padded(&self, private: &[u8], len: usize) -> Vec<u8> {
        let mut private = private.to_vec();
        if !self.is_iwarp() {
            private.resize(len.max(private.len()), 0);
        }
        private
    }

    pub(super) fn accept(
        &mut self,
        node: usize,
        connection: ConnectionId,
        private: &[u8],
        reads: u8,
    ) -> Result<(), ProviderError> {
        let what = "accepting";
        if self.nodes[node].is_removed {
            return Err(gone(what));
        }
        let at = self.live(node, connection, what).ok_or(refused(what, "no such connection"))?;
        let peer = self.pairs[at].peer.filter(|&peer| self.pairs[peer].phase == Phase::Asked);
        let Some(peer) = peer else { return Err(refused(what, "the peer is gone")) };
        if reads > self.config.reads_begun.min(self.pairs[peer].answers) {
            self.misuse(
                "a target begins more RDMA READs than its device can, or than the host answers",
            );
        }
        let shares = self.pairs[at].shares_receives();
        if self.pairs[at].config.is_none() || self.pairs[at].receives.is_empty() && !shares {
            self.misuse("a request is accepted before its receives are posted");
        }
        let pair = &mut self.pairs[at];
        (pair.phase, pair.state, pair.max_reads) = (Phase::Connected, PairState::Ready, reads);
        let lost = self.config.faults.lost_accept;
        if self.random_fault(lost) {
            let why = "the accept, because no answer came,";
            self.soon(Step::Tell(at, Event::Failed { connection, why }));
            let (connection, why) = (id(peer), "reaching the target");
            self.soon(Step::Tell(peer, Event::Failed { connection, why }));
            return Ok(());
        }
        let private = self.padded(private, PADDED[1]);
        self.soon(Step::AcceptArrives(peer, private));
        Ok(())
    }

    /// The host learns of the accept: from now on both ends are connected, and the target is told so, too.
    pub(super) fn accept_arrives(&mut self, at: usize, private: Vec<u8>) {
        if self.pairs[at].phase != Phase::Asked || self.nodes[self.pairs[at].node].is_removed {
            if let Some(peer) = self.pairs[at].peer {
                let why = "the accept, because the host is gone,";
                self.soon(Step::Tell(peer, Event::Failed { connection: id(peer), why }));
            }
            return;
        }
        self.pairs[at].phase = Phase::Connected;
        self.pairs[at].state = PairState::Ready;
        let node = self.pairs[at].node;
        self.nodes[node].events.push_back(Event::Established { connection: id(at), private });
        self.nodes[node].ring();
        let lost = self.config.faults.lost_word;
        if let Some(peer) = self.pairs[at].peer
            && !self.random_fault(lost)
        {
            let event = Event::Established { connection: id(peer), private: Vec::new() };
            self.soon(Step::Tell(peer, event));
        }
    }

    pub(super) fn reject(&mut self, node: usize, connection: ConnectionId, private: &[u8]) {
        let Some(at) = self.live(node, connection, "rejecting") else { return };
        self.pairs[at].phase = Phase::Ended;
        let private = self.padded(private, PADDED[2]);
        let peer = self.pairs[at].peer.filter(|&peer| self.pairs[peer].phase == Phase::Asked);
        if let Some(peer) = peer {
            let reason = Rejection::Consumer(private);
            self.soon(Step::Tell(peer, Event::Rejected { connection: id(peer), reason }));
        }
    }

    /// An event reaches its owner, if that is still there.
    pub(super) fn tell(&mut self, at: usize, event: Event) {
        let pair = &mut self.pairs[at];
        if pair.phase == Phase::Destroyed {
            return;
        }
        if self.nodes[pair.node].is_removed && !matches!(event, Event::DeviceRemoved(_)) {
            return;
        }
        pair.is_known = true;
        match event {
            Event::Resolved(_) => pair.phase = Phase::Idle,
            Event::Rejected { .. } | Event::Failed { .. } => pair.phase = Phase::Ended,
            _ => {}
        }
        let node = pair.node;
        self.nodes[node].events.push_back(event);
        self.nodes[node].ring();
    }

    /// Both ends are told, in any order and at any time; their queue pairs fail when they say so themselves.
    fn end(&mut self, at: usize) {
        if self.pairs[at].phase == Phase::Connected {
            self.pairs[at].phase = Phase::Ended;
            self.soon(Step::Tell(at, Event::Disconnected(id(at))));
        }
    }

    pub(super) fn disconnect(&mut self, node: usize, connection: ConnectionId) {
        let Some(at) = self.live(node, connection, "disconnecting") else { return };
        self.fail_pair(at);
        self.end(at);
        if let Some(peer) = self.pairs[at].peer {
            self.end(peer);
        }
    }

    /// The network ends a connection.
    pub(super) fn cut(&mut self, at: usize) {
        self.fail_pair(at);
        self.end(at);
        if let Some(peer) = self.pairs[at].peer {
            self.fail_pair(peer);
            self.end(peer);
        }
    }

    /// Cuts all connections with an end like this.
    pub(super) fn cut_all_of(&mut self, is_meant: impl Fn(&Pair) -> bool) {
        for at in 0..self.pairs.len() {
            if self.pairs[at].phase == Phase::Connected && is_meant(&self.pairs[at]) {
                self.cut(at);
            }
        }
    }

    pub(super) fn destroy(&mut self, node: usize, connection: ConnectionId) {
        let Some(at) = self.live(node, connection, "destroying") else { return };
        let was_asked = self.pairs[at].phase;
        let pair = &mut self.pairs[at];
        pair.phase = Phase::Destroyed;
        pair.state = PairState::Error;
        pair.sends.clear();
        pair.receives.clear();
        let peer = pair.peer;
        // A receive that its message has taken goes with it: nobody learns of that.
        if pair.amid.take().is_some() && pair.shares_receives() {
            self.nodes[node].end_shared(1);
        }
        // Some devices take completions of a destroyed queue pair away, others leave them.
        if self.random.below(2) == 0 {
            let shares = self.pairs[at].shares_receives();
            let completions = &mut self.nodes[node].completions;
            let is_receive = |(done, ends): &&(Completion, u32)| {
                done.connection == connection && *ends == 0 && shares
            };
            let receives = completions.iter().filter(is_receive).count();
            completions.retain(|(done, _)| done.connection != connection);
            self.nodes[node].end_shared(u32::try_from(receives).unwrap_or(0));
        }
        if self.pairs[at].config.is_some() {
            self.end_number(at);
        }
        self.nodes[node].events.retain(|event| event.connection() != connection);
        let Some(peer) = peer else { return };
        match was_asked {
            Phase::Connected => self.end(peer),
            // A request that nobody has answered.
            Phase::Idle if self.pairs[peer].phase == Phase::Asked => {
                let why = "reaching the target";
                self.soon(Step::Tell(peer, Event::Failed { connection: id(peer), why }));
            }
            _ => {}
        }
    }

    /// Gives a request to another node of its device, with its events.
    pub(super) fn give_to(&mut self, at: usize, node: usize) -> Result<(), ProviderError> {
        let what = "taking a request over";
        let from = self.pairs[at].node;
        if self.nodes[node].is_removed {
            return Err(gone(what));
        }
        if self.nodes[from].device != self.nodes[node].device {
            return Err(refused(what, "it is another device's"));
        }
        if self.pairs[at].config.is_some() || self.pairs[at].phase == Phase::Destroyed {
            self.misuse("a connection that is no request goes to another core");
        }
        self.pairs[at].node = node;
        self.nodes[node].taken += usize::from(from != node);
        let events = std::mem::take(&mut self.nodes[from].events);
        let (taken, kept) = events.into_iter().partition(|event| event.connection() == id(at));
        self.nodes[from].events = kept;
        let taken: std::collections::VecDeque<Event> = taken;
        if !taken.is_empty() {
            self.nodes[node].events.extend(taken);
            self.nodes[node].ring();
        }
        Ok(())
    }

    /// A device is gone, with all its nodes; this is one of them.
    pub(super) fn remove_device(&mut self, node: usize) {
        let device = self.nodes[node].device;
        for other in 0..self.nodes.len() {
            if self.nodes[other].device == device {
                self.remove_node(other);
            }
        }
    }

    /// Connections are told that their device is gone, and no completion comes any longer.
    pub(super) fn remove_node(&mut self, node: usize) {
        if std::mem::replace(&mut self.nodes[node].is_removed, true) {
            return;
        }
        self.nodes[node].completions.clear();
        self.nodes[node].events.push_back(Event::DeviceRemoved(ConnectionId::NOBODY));
        self.nodes[node].ring();
        for at in 0..self.pairs.len() {
            let pair = &self.pairs[at];
            // A request that its target has not seen yet is never seen.
            if pair.node != node || pair.phase == Phase::Destroyed || !pair.is_known {
                continue;
            }
            self.pairs[at].state = PairState::Error;
            self.soon(Step::Tell(at, Event::DeviceRemoved(id(at))));
            if let Some(peer) = self.pairs[at].peer {
                self.end(peer);
            }
        }
    }
}
