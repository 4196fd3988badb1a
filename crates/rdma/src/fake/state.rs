//! What a simulated network consists of, and its steps in the order of their times.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{PipeWriter, Write};
use std::net::{IpAddr, SocketAddr};

use raceline_proto::rdma::WorkStatus;

use super::memory::Memory;
use super::random::Random;
use super::{NetworkConfig, Profile};
use crate::verbs::{Completion, ConnectionId, Event, PairConfig, RecvWork, SendWork, Slice};

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

/// One device.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) memory: Memory,
    /// Completions, with how many requests of the send queue each ends.
    pub(super) completions: VecDeque<(Completion, u32)>,
    pub(super) events: VecDeque<Event>,
    pub(super) listeners: Vec<SocketAddr>,
    pub(super) shared: Option<Shared>,
    pub(super) is_removed: bool,
    /// Its address, as the connection managers of others tell it.
    pub(super) address: Option<IpAddr>,
    /// Nothing that is sent to it arrives: the senders try again and again.
    pub(super) takes_nothing: bool,
    /// Takes a byte when there are news, and no second one before they were looked at.
    ringer: PipeWriter,
    pub(super) has_rung: bool,
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
        if !self.has_rung {
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
    pub(super) peer: Option<usize>,
    pub(super) address: SocketAddr,
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
    /// Places in the receive queue that are taken.
    pub(super) receives_taken: u32,
    pub(super) reads: u8,
    pub(super) max_reads: u8,
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
            peer: None,
            address,
            is_known: is_active,
            is_active,
            has_received: false,
            sends: VecDeque::new(),
            first: 0,
            next: 0,
            taken: 0,
            unreported: 0,
            receives: VecDeque::new(),
            receives_taken: 0,
            reads: 0,
            max_reads: 0,
            sinks: VecDeque::new(),
            engine_is_due: false,
            flush_is_due: false,
        }
    }
}

impl Pair {
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
    pub(super) misuses: Vec<String>,
    /// Times that a message has found no receive.
    pub(super) waits: u64,
    /// Devices refuse to register memory.
    pub(super) refuses_memory: bool,
    /// How often they have.
    pub(super) memory_refusals: u64,
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
            misuses: Vec::new(),
            waits: 0,
            refuses_memory: false,
            memory_refusals: 0,
            later: BinaryHeap::new(),
            at_once: VecDeque::new(),
            count: 0,
            max_delay: u64::try_from(config.delay.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    pub(super) fn add_node(&mut self, ringer: PipeWriter) -> usize {
        self.nodes.push(Node {
            memory: Memory::default(),
            completions: VecDeque::new(),
            events: VecDeque::new(),
            listeners: Vec::new(),
            shared: None,
            is_removed: false,
            address: None,
            takes_nothing: false,
            ringer,
            has_rung: false,
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

    /// Registrations and connections.
    pub(super) fn leftovers(&self) -> (usize, usize) {
        let live = self.pairs.iter().filter(|pair| pair.is_known && pair.phase != Phase::Destroyed);
        (self.nodes.iter().map(|node| node.memory.live()).sum(), live.count())
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
            self.remove_node(usize::try_from(node).unwrap_or(0));
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

    /// Puts a completion into the device's queue. One that overflows ends all queue pairs of the device.
    pub(super) fn complete(&mut self, pair: usize, done: Completion, ends: u32) {
        let node = self.pairs[pair].node;
        if self.nodes[node].is_removed || self.pairs[pair].phase == Phase::Destroyed {
            return;
        }
        let capacity = usize::try_from(self.config.completions).unwrap_or(usize::MAX);
        if self.nodes[node].completions.len() < capacity {
            self.nodes[node].completions.push_back((done, ends));
            return self.nodes[node].ring();
        }
        self.misuse("a completion queue has overflowed");
        for other in 0..self.pairs.len() {
            if self.pairs[other].node == node {
                self.fail_pair(other);
            }
        }
    }

    pub(super) fn poll(&mut self, node: usize, into: &mut Vec<Completion>) {
        while into.len() < into.capacity() {
            let Some((done, ends)) = self.nodes[node].completions.pop_front() else { break };
            let pair = &mut self.pairs[index(done.connection)];
            if ends == 0 && pair.shares_receives() {
                self.nodes[node].end_shared(1);
            } else if ends == 0 {
                pair.receives_taken -= 1;
            } else {
                pair.taken -= ends;
            }
            into.push(done);
        }
    }
}

pub(super) fn index(connection: ConnectionId) -> usize {
    usize::try_from(connection.0).unwrap_or(usize::MAX)
}

pub(super) fn id(pair: usize) -> ConnectionId {
    ConnectionId(u32::try_from(pair).unwrap_or(u32::MAX))
}
