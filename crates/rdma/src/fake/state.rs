//! What a simulated network consists of, and its steps in the order of their times.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{PipeWriter, Write};
use std::net::{IpAddr, SocketAddr};

use raceline_proto::rdma::WorkStatus;

use super::memory::Memory;
use super::random::Random;
use super::{CoreUse, NetworkConfig, Profile, Trouble};
use crate::invalidation::Invalidation;
use crate::numbers::Numbers;
use crate::verbs::{
    Completion, ConnectionId, DomainId, Event, POLL_BATCH, PairConfig, RecvWork, SendWork, Slice,
};

/// Sinks of RDMA READs that a connection remembers.
pub(super) const SINKS: usize = 32;

/// A step of the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A queue pair looks at its send queue.
    Engine(usize),
    /// The request of this number is acknowledged by the peer, or its data have come.
    Acknowledged(usize, u64),
    /// A queue pair that has failed completes a request that is left.
    Flush(usize),
    /// The connection manager tells a connection something.
    Tell(usize, Event),
    /// The accept of a target reaches its host.
    AcceptArrives(usize, Vec<u8>),
}

/// A step with its time, in the order in which steps are done.
#[derive(Debug)]
struct Timed {
    at: u64,
    number: u64,
    step: Step,
}

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Timed {}

impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// Receives that all queue pairs of a device share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) capacity: u32,
    /// Places that are taken, also by receives whose completion nobody has seen.
    pub(super) taken: u32,
    pub(super) receives: VecDeque<RecvWork>,
}

/// What one core has of one device.
#[derive(Debug)]
pub(super) struct Node {
    /// Which device it is: nodes of one device are removed together.
    pub(super) device: usize,
    pub(super) memory: Memory,
    /// Completions, with how many requests of the send queue each ends. The device knows their queue pairs, and tells its user
    /// only the numbers.
    pub(super) completions: VecDeque<(Completion, u32)>,
    /// The most of them.
    pub(super) capacity: u32,
    /// What its user knows of them.
    pub(super) numbers: Numbers,
    pub(super) events: VecDeque<Event>,
    pub(super) listeners: Vec<SocketAddr>,
    pub(super) shared: Option<Shared>,
    pub(super) is_removed: bool,
    /// Requests that it has taken over from other nodes.
    pub(super) taken: usize,
    /// Its address, as the connection managers of others tell it.
    pub(super) address: Option<IpAddr>,
    /// Nothing that is sent to it arrives: the senders try again and again.
    pub(super) takes_nothing: bool,
    /// Takes a byte when there are news, and no second one before they were looked at.
    ringer: PipeWriter,
    pub(super) has_rung: bool,
    /// Whether it invalidates, as its user has found out.
    pub(super) invalidation: Invalidation,
    /// It tells of nothing.
    pub(super) is_mute: bool,
    /// Times that its user has asked for more than completions.
    pub(super) looks: u64,
}

impl Node {
    /// So many shared receives have ended.
    pub(super) fn end_shared(&mut self, count: u32) {
        if let Some(shared) = &mut self.shared {
            shared.taken -= count;
        }
    }

    /// Tells whoever waits for the device that it has something.
    pub(super) fn ring(&mut self) {
        if !self.has_rung && !self.is_mute {
            // Without a reader, nobody waits.
            self.has_rung = self.ringer.write_all(&[1]).is_ok();
        }
    }
}

/// Where a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its address is not known.
    Resolving,
    /// It is known, or a request has come.
    Idle,
    /// A host has asked.
    Asked,
    /// A target has accepted, or a host has been told so.
    Connected,
    /// It has ended.
    Ended,
    /// It is no more.
    Destroyed,
}

/// The state of a queue pair, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PairState {
    /// There is none, or it takes receives only.
    Init,
    /// It takes and sends.
    Ready,
    /// It flushes.
    Error,
}

/// How far a request of the send queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Waiting,
    UnderWay,
    Done(WorkStatus),
}

/// A request of the send queue.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) work: SendWork,
    /// The bytes of an inline request.
    pub(super) inline: Option<([u8; 64], u8)>,
    pub(super) progress: Progress,
}

/// A connection, and its queue pair.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) node: usize,
    pub(super) phase: Phase,
    pub(super) state: PairState,
    pub(super) config: Option<PairConfig>,
    /// The number of the queue pair.
    pub(super) number: u32,
    pub(super) peer: Option<usize>,
    pub(super) address: SocketAddr,
    /// Where its owner wants to come from.
    pub(super) source: Option<SocketAddr>,
    /// Its owner has its name.
    pub(super) is_known: bool,
    /// It has asked, and not been asked.
    pub(super) is_active: bool,
    /// A message has come.
    pub(super) has_received: bool,
    pub(super) sends: VecDeque<Posted>,
    /// The number of the first of them.
    pub(super) first: u64,
    /// The first that waits.
    pub(super) next: u64,
    /// Requests whose place in the send queue is taken, and those among them that no completion has ended yet.
    pub(super) taken: u32,
    pub(super) unreported: u32,
    pub(super) receives: VecDeque<RecvWork>,
    /// The receive of a message that has come in part.
    pub(super) amid: Option<RecvWork>,
    /// The next message to the peer stops amid.
    pub(super) stops_amid: bool,
    /// What the peer's requests meet here.
    pub(super) trouble: Option<Trouble>,
    /// Its owner knows that it takes no shared receive any longer.
    pub(super) has_told_last: bool,
    /// Places in the receive queue that are taken.
    pub(super) receives_taken: u32,
    pub(super) reads: u8,
    pub(super) max_reads: u8,
    /// RDMA READs that its owner has said it answers at a time.
    pub(super) answers: u8,
    /// Where the data of the peer's last RDMA READs went, as iWARP's requests say it.
    pub(super) sinks: VecDeque<Slice>,
    pub(super) engine_is_due: bool,
    pub(super) flush_is_due: bool,
}

impl Pair {
    pub(super) fn new(node: usize, address: SocketAddr, is_active: bool) -> Self {
        Self {
            node,
            phase: if is_active { Phase::Resolving } else { Phase::Idle },
            state: PairState::Init,
            config: None,
            number: 0,
            peer: None,
            address,
            source: None,
            is_known: is_active,
            is_active,
            has_received: false,
            sends: VecDeque::new(),
            first: 0,
            next: 0,
            taken: 0,
            unreported: 0,
            receives: VecDeque::new(),
            amid: None,
            stops_amid: false,
            trouble: None,
            has_told_last: false,
            receives_taken: 0,
            reads: 0,
            max_reads: 0,
            answers: 0,
            sinks: VecDeque::new(),
            engine_is_due: false,
            flush_is_due: false,
        }
    }
}

impl Pair {
    /// The domain of its queue pair.
    pub(super) fn domain(&self) -> DomainId {
        self.config.map_or(DomainId::OWN, |config| config.domain)
    }

    /// The domain of the receives that its messages take.
    pub(super) fn domain_of_receives(&self) -> DomainId {
        if self.shares_receives() { DomainId::OWN } else { self.domain() }
    }

    pub(super) fn shares_receives(&self) -> bool {
        self.config.is_some_and(|config| config.shares_receives)
    }
}

/// The whole network.
#[derive(Debug)]
pub(super) struct State {
    pub(super) config: NetworkConfig,
    pub(super) now: u64,
    pub(super) random: Random,
    pub(super) nodes: Vec<Node>,
    pub(super) pairs: Vec<Pair>,
    /// Numbers of queue pairs that were destroyed.
    free_numbers: Vec<u32>,
    pub(super) misuses: Vec<String>,
    /// Times that a message has found no receive.
    pub(super) waits: u64,
    /// Devices refuse to register memory.
    pub(super) refuses_memory: bool,
    /// How often they have.
    pub(super) memory_refusals: u64,
    /// They refuse to make protection domains.
    pub(super) refuses_domains: bool,
    /// SENDs that invalidate keys fail.
    pub(super) fails_invalidation: bool,
    /// Steps of later times, and those that are to be done at once, in order.
    later: BinaryHeap<Reverse<Timed>>,
    at_once: VecDeque<Step>,
    count: u64,
    max_delay: u64,
}

impl State {
    pub(super) fn new(config: NetworkConfig) -> Self {
        Self {
            config,
            now: 0,
            random: Random::new(config.seed),
            nodes: Vec::new(),
            pairs: Vec::new(),
            free_numbers: Vec::new(),
            misuses: Vec::new(),
            waits: 0,
            refuses_memory: false,
            memory_refusals: 0,
            refuses_domains: false,
            fails_invalidation: false,
            later: BinaryHeap::new(),
            at_once: VecDeque::new(),
            count: 0,
            max_delay: u64::try_from(config.delay.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// Adds a device, or one more node of a device.
    pub(super) fn add_node(&mut self, ringer: PipeWriter, device: Option<usize>) -> usize {
        let address = device.and_then(|device| self.nodes[device].address);
        self.nodes.push(Node {
            device: device.unwrap_or(self.nodes.len()),
            memory: Memory::default(),
            completions: VecDeque::new(),
            capacity: self.config.completions,
            numbers: Numbers::default(),
            events: VecDeque::new(),
            listeners: Vec::new(),
            shared: None,
            is_removed: false,
            taken: 0,
            address,
            takes_nothing: false,
            ringer,
            has_rung: false,
            invalidation: Invalidation::default(),
            is_mute: false,
            looks: 0,
        });
        self.nodes.len() - 1
    }

    pub(super) fn misuse(&mut self, what: impl Into<String>) {
        if self.misuses.len() < 16 {
            self.misuses.push(what.into());
        }
    }

    pub(super) fn is_iwarp(&self) -> bool {
        self.config.profile == Profile::Iwarp
    }

    /// The nodes of the device that listens at an address, and is there.
    pub(super) fn nodes_at(&self, address: SocketAddr) -> Vec<usize> {
        let listens = |node: &&Node| !node.is_removed && node.listeners.contains(&address);
        let Some(device) = self.nodes.iter().find(listens).map(|node| node.device) else {
            return Vec::new();
        };
        (0..self.nodes.len()).filter(|&node| self.nodes[node].device == device).collect()
    }

    pub(super) fn core_use(&self, node: usize) -> CoreUse {
        let is_there = |pair: &&Pair| {
            pair.node == node && pair.config.is_some() && pair.phase != Phase::Destroyed
        };
        let pairs = || self.pairs.iter().filter(is_there);
        CoreUse {
            pairs: pairs().count(),
            sharing: pairs().filter(|pair| pair.shares_receives()).count(),
            shared_receives: self.nodes[node].shared.as_ref().map_or(0, |shared| shared.capacity),
            posted: self.nodes[node].shared.as_ref().map_or(0, |shared| shared.receives.len()),
            taken: self.nodes[node].taken,
            registered: self.nodes[node].memory.registered(),
            domains: self.nodes[node].memory.domains(),
        }
    }

    pub(super) fn make_trouble(&mut self, node: usize, nth: usize, trouble: Trouble) {
        let is_there = |at: &usize| {
            let pair = &self.pairs[*at];
            pair.node == node && pair.phase == Phase::Connected
        };
        let at = (0..self.pairs.len()).filter(is_there).nth(nth).expect("a connected queue pair");
        self.pairs[at].trouble = Some(trouble);
        if trouble == Trouble::Cut {
            self.cut(at);
        }
    }

    /// Registrations and domains, and connections.
    pub(super) fn leftovers(&self) -> (usize, usize) {
        let live = self.pairs.iter().filter(|pair| pair.is_known && pair.phase != Phase::Destroyed);
        let of_node = |node: &Node| node.memory.live() + node.memory.domains();
        (self.nodes.iter().map(of_node).sum(), live.count())
    }

    pub(super) fn close_domain(&mut self, node: usize, domain: DomainId) {
        let is_in_it = |pair: &Pair| {
            let is_there = pair.node == node && pair.phase != Phase::Destroyed;
            is_there && pair.config.is_some_and(|config| config.domain == domain)
        };
        if self.pairs.iter().any(is_in_it) {
            self.misuse("a protection domain ends before its queue pairs");
        }
        if !self.nodes[node].memory.close_domain(domain) {
            self.misuse("a protection domain ends twice, or before its registrations");
        }
    }

    /// Does something after a delay of the seed's choice.
    pub(super) fn soon(&mut self, step: Step) {
        if self.max_delay == 0 {
            return self.at_once.push_back(step);
        }
        let delay = 1 + self.random.below(self.max_delay);
        self.after(delay, step);
    }

    pub(super) fn after(&mut self, delay: u64, step: Step) {
        self.count += 1;
        self.later.push(Reverse(Timed { at: self.now + delay, number: self.count, step }));
    }

    pub(super) fn step(&mut self) -> bool {
        let step = match self.at_once.pop_front() {
            Some(step) => step,
            None => {
                let Some(Reverse(timed)) = self.later.pop() else { return false };
                self.now = self.now.max(timed.at);
                timed.step
            }
        };
        match step {
            Step::Engine(pair) => self.run_engine(pair),
            Step::Acknowledged(pair, number) => self.acknowledge(pair, number),
            Step::Flush(pair) => self.flush(pair),
            Step::Tell(pair, event) => self.tell(pair, event),
            Step::AcceptArrives(pair, private) => self.accept_arrives(pair, private),
        }
        self.cut_something();
        true
    }

    /// Faults that no request is to blame for.
    fn cut_something(&mut self) {
        let faults = self.config.faults;
        if self.random_fault(faults.cut)
            && let Some(pair) = self.any_connected()
        {
            self.cut(pair);
        }
        if self.random_fault(faults.removal) {
            let node = self.random.below(u64::try_from(self.nodes.len()).unwrap_or(0));
            self.remove_device(usize::try_from(node).unwrap_or(0));
        }
    }

    pub(super) fn random_fault(&mut self, many: u32) -> bool {
        many != 0 && self.random.once_in(many)
    }

    fn any_connected(&mut self) -> Option<usize> {
        let connected: Vec<usize> = (0..self.pairs.len())
            .filter(|&pair| self.pairs[pair].phase == Phase::Connected)
            .collect();
        let choice = self.random.below(u64::try_from(connected.len()).unwrap_or(0));
        connected.get(usize::try_from(choice).unwrap_or(0)).copied()
    }

    /// Puts a completion into the device's queue. One that overflows is the end of the device for its user: no completion
    /// comes any longer (`IBV_EVENT_CQ_ERR`).
    pub(super) fn complete(&mut self, pair: usize, done: Completion, ends: u32) {
        let node = self.pairs[pair].node;
        if self.nodes[node].is_removed || self.pairs[pair].phase == Phase::Destroyed {
            return;
        }
        let capacity = usize::try_from(self.nodes[node].capacity).unwrap_or(usize::MAX);
        if self.nodes[node].completions.len() < capacity {
            self.nodes[node].completions.push_back((done, ends));
            return self.nodes[node].ring();
        }
        self.misuse("a completion queue has overflowed");
        self.remove_node(node);
    }

    pub(super) fn poll(&mut self, node: usize, into: &mut Vec<Completion>) {
        self.nodes[node].numbers.give_kept(into);
        let most = into.capacity().min(POLL_BATCH);
        while into.len() < most {
            let Some(done) = self.take_completion(node) else { break };
            into.push(done);
        }
    }

    /// What the device has in its queue. Its user knows whose that is by the number of the queue pair.
    fn take_completion(&mut self, node: usize) -> Option<Completion> {
        let (done, ends) = self.nodes[node].completions.pop_front()?;
        let pair = &mut self.pairs[index(done.connection)];
        let number = pair.number;
        if ends == 0 && pair.shares_receives() {
            self.nodes[node].end_shared(1);
        } else if ends == 0 {
            pair.receives_taken -= 1;
        } else {
            pair.taken -= ends;
        }
        Some(Completion { connection: self.nodes[node].numbers.of(number), ..done })
    }

    /// A queue pair has a number from now on.
    pub(super) fn give_number(&mut self, at: usize) {
        let free = if self.config.reuses_numbers { self.free_numbers.pop() } else { None };
        let number = free.unwrap_or(id(at).0);
        self.pairs[at].number = number;
        self.nodes[self.pairs[at].node].numbers.add(number, id(at));
    }

    /// A queue pair is destroyed, and its number is free.
    pub(super) fn end_number(&mut self, at: usize) {
        let (node, number) = (self.pairs[at].node, self.pairs[at].number);
        while let Some(done) = self.take_completion(node) {
            self.nodes[node].numbers.keep(done);
        }
        self.nodes[node].numbers.forget(number);
        self.free_numbers.push(number);
    }
}

pub(super) fn index(connection: ConnectionId) -> usize {
    usize::try_from(connection.0).unwrap_or(usize::MAX)
}

pub(super) fn id(pair: usize) -> ConnectionId {
    ConnectionId(u32::try_from(pair).unwrap_or(u32::MAX))
}
