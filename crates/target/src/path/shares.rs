//! Which host a full core serves next: each gets a part of the core by its weight, however many connections it has.
//!
//! Start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair Queueing", SIGCOMM 1996). Each host of a subsystem has a
//! clock, which goes on with what the host is served, divided by its weight. The host whose clock is furthest behind is
//! served next: one of its connections, which wait in a line, has a slice. The reactor has a turn after each
//! [`TURN_BYTES`], so that answers leave and commands come while many still wait.
//!
//! While one host alone has commands, its connections have whole passes.
//!
//! The lines for I/O buffers ([`crate::path::buffers`]) have clocks of their own for the same parts.

mod clock;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use raceline_proto::nvme::{HostNqn, Nqn};

use crate::records::limited::Weight;
use crate::records::names::ConnKey;

#[cfg(test)]
pub(crate) use clock::CREDIT_BYTES;
pub(crate) use clock::Clock;

/// What a command counts for besides its data: about what its handling costs, in bytes that are moved (lab 0062).
const COMMAND_BYTES: usize = 4096;
/// What a connection is served at a time (lab 0062).
const SLICE_BYTES: usize = 64 * 1024;
/// What is served before the reactor has a turn (lab 0062).
const TURN_BYTES: usize = 128 * 1024;
/// For how long after two hosts had commands by turns they compete. As long as for small senders (lab 0042).
const COMPETING: Duration = Duration::from_millis(100);

/// One owner's part of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ShareId(u32);

impl ShareId {
    /// Its place in a table of the parts of a core. A part that has ended leaves its place to a later one.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Whose part of a core it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A host's in a subsystem.
    Host(Nqn, HostNqn),
    /// An iSCSI initiator's at a target node. It has a part of the I/O buffers only.
    Initiator {
        /// Name of the initiator.
        initiator: String,
        /// Name of the target node.
        node: String,
    },
}

/// The parts of a core.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    parts: Vec<Part>,
    /// Indices of parts that no connection has.
    free: Vec<ShareId>,
    /// The parts with connections that wait, and their clocks as they were then; none twice.
    waiting: BinaryHeap<Reverse<(Clock, ShareId)>>,
    /// The clock of the part that was served last.
    clock: Clock,
    /// Whose commands came last.
    latest: Option<ShareId>,
    /// When the commands came from another host than those before.
    switched_at: Option<Instant>,
}

#[derive(Debug)]
struct Part {
    owner: Owner,
    weight: Weight,
    /// Its connections.
    members: usize,
    clock: Clock,
    /// What it was served since its clock went on.
    served: u64,
    line: VecDeque<ConnKey>,
    /// It is among those that wait, or is being served.
    listed: bool,
}

impl Part {
    fn go_on(&mut self) {
        self.clock = self.clock.after(std::mem::take(&mut self.served), self.weight);
    }
}

impl Shares {
    /// A connection of this owner has this weight from now on. It belongs to the part that is given, until
    /// [`Self::leave`].
    pub(crate) fn join(&mut self, owner: Owner, weight: Weight) -> ShareId {
        let is_it = |part: &Part| part.members > 0 && part.owner == owner;
        if let Some(index) = self.parts.iter().position(is_it) {
            let part = &mut self.parts[index];
            part.go_on();
            (part.weight, part.members) = (weight, part.members + 1);
            return ShareId(u32::try_from(index).expect("fewer parts than connections"));
        }
        let part = Part {
            owner,
            weight,
            members: 1,
            clock: self.clock,
            served: 0,
            line: VecDeque::new(),
            listed: false,
        };
        if let Some(id) = self.free.pop() {
            self.parts[id.index()] = part;
            return id;
        }
        let id = ShareId(u32::try_from(self.parts.len()).expect("fewer parts than connections"));
        self.parts.push(part);
        id
    }

    /// A connection is gone, or has no weight any more. Gives whether its part has ended with it.
    pub(crate) fn leave(&mut self, id: ShareId) -> bool {
        let part = self.part(id);
        part.members -= 1;
        let ends = part.members == 0;
        if ends {
            part.line.clear();
            if !part.listed {
                self.free.push(id);
            }
        }
        ends
    }

    /// The weight of a part.
    pub(crate) fn weight(&self, id: ShareId) -> Weight {
        self.parts[id.index()].weight
    }

    fn part(&mut self, id: ShareId) -> &mut Part {
        &mut self.parts[id.index()]
    }

    /// Begins a turn of the core.
    pub(crate) fn begin_turn(&self, now: Instant) -> Turn {
        match self.waiting.as_slice() {
            [Reverse((_, alone))] if !self.compete(now) => {
                // At least one, so that a part whose connections have all left is put down.
                Turn::Alone { connections: self.parts[alone.index()].line.len().max(1) }
            }
            _ => Turn::Shared { left: TURN_BYTES },
        }
    }

    /// Whether several hosts have had commands lately.
    fn compete(&self, now: Instant) -> bool {
        self.switched_at.is_some_and(|at| now.saturating_duration_since(at) < COMPETING)
    }

    /// Whether connections wait for their turn.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Has a connection wait for its turn.
    pub(crate) fn enqueue(&mut self, id: ShareId, key: ConnKey, now: Instant) {
        if self.latest.is_some_and(|latest| latest != id) {
            self.switched_at = Some(now);
        }
        self.latest = Some(id);
        let earliest = self.clock;
        let part = self.part(id);
        part.line.push_back(key);
        if !part.listed {
            part.listed = true;
            part.clock = part.clock.caught_up(earliest);
            let clock = part.clock;
            self.waiting.push(Reverse((clock, id)));
        }
    }

    /// The connection whose turn it is. Once it was served, its part [settles](Self::settle).
    pub(crate) fn next(&mut self) -> Option<(ShareId, ConnKey)> {
        while let Some(Reverse((_, id))) = self.waiting.pop() {
            let part = self.part(id);
            if part.served > 0 {
                part.go_on();
                let clock = part.clock;
                self.waiting.push(Reverse((clock, id)));
                continue;
            }
            let Some(key) = part.line.pop_front() else {
                self.put_down(id);
                continue;
            };
            self.clock = self.clock.max(self.parts[id.index()].clock);
            return Some((id, key));
        }
        None
    }

    /// The connection that [`Self::next`] has given was served.
    pub(crate) fn settle(&mut self, id: ShareId) {
        let part = self.part(id);
        part.go_on();
        if part.line.is_empty() {
            return self.put_down(id);
        }
        let clock = part.clock;
        self.waiting.push(Reverse((clock, id)));
    }

    /// None of its connections waits any more.
    fn put_down(&mut self, id: ShareId) {
        let part = self.part(id);
        part.listed = false;
        if part.members == 0 {
            self.free.push(id);
        }
    }

    /// A host was served this much.
    pub(crate) fn charge(&mut self, id: ShareId, bytes: usize) {
        let earliest = self.clock;
        let part = self.part(id);
        part.served += bytes as u64;
        if !part.listed {
            let began = part.clock.caught_up(earliest);
            part.clock = began;
            part.go_on();
            self.clock = self.clock.max(began);
        }
    }
}

/// What is left of a turn.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// One host alone has commands: this number of its connections have a whole pass.
    Alone {
        /// How many are left.
        connections: usize,
    },
    /// Several hosts have commands, and are served this number of bytes together.
    Shared {
        /// How many are left.
        left: usize,
    },
}

impl Turn {
    /// What the next connection is served at most, where `pass` bytes are a whole pass; `None`: the turn is over.
    pub(crate) fn slice(&self, pass: usize) -> Option<usize> {
        match *self {
            Self::Alone { connections } => (connections > 0).then_some(pass),
            Self::Shared { left } => (left > 0).then(|| SLICE_BYTES.min(left).min(pass)),
        }
    }

    /// A connection was served this much.
    pub(crate) fn pass(&mut self, bytes: usize) {
        match self {
            Self::Alone { connections } => *connections -= 1,
            Self::Shared { left } => *left = left.saturating_sub(bytes.max(1)),
        }
    }
}

/// What a command with this number of data bytes counts for.
#[inline]
pub(crate) fn charge_of(data_bytes: u32) -> usize {
    COMMAND_BYTES.saturating_add(data_bytes as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host with connections that always have commands.
    struct Busy {
        id: ShareId,
        command: u32,
        commands: u64,
        bytes: u64,
    }

    fn nqn(text: &str) -> Nqn {
        Nqn::new(&format!("nqn.2026-01.org.example:{text}")).unwrap()
    }

    fn of(host: &str) -> Owner {
        Owner::Host(nqn("s"), HostNqn::Named(nqn(host)))
    }

    fn key(index: usize) -> ConnKey {
        ConnKey { index: u32::try_from(index).unwrap(), generation: 0 }
    }

    /// Serves hosts of (weight, connections, bytes of a command), all of which always have commands.
    fn serve(hosts: &[(u16, usize, u32)], slices: usize) -> Vec<Busy> {
        let mut shares = Shares::default();
        let mut owner = Vec::new();
        let mut busy: Vec<Busy> = Vec::new();
        for (place, &(weight, connections, command)) in hosts.iter().enumerate() {
            let weight = Weight::new(weight).unwrap();
            for _ in 0..connections {
                let id = shares.join(of(&place.to_string()), weight);
                shares.enqueue(id, key(owner.len()), Instant::now());
                owner.push(place);
                if busy.len() == place {
                    busy.push(Busy { id, command, commands: 0, bytes: 0 });
                }
                assert_eq!(busy[place].id, id);
            }
        }
        for _ in 0..slices {
            let (id, key) = shares.next().unwrap();
            let host = &mut busy[owner[key.index as usize]];
            let mut served = 0;
            while served < SLICE_BYTES {
                served += charge_of(host.command);
                host.commands += 1;
                host.bytes += u64::from(host.command);
            }
            shares.charge(id, served);
            shares.enqueue(id, key, Instant::now());
            shares.settle(id);
        }
        busy
    }

    fn assert_ratio(of: u64, to: u64, wanted: f64) {
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let ratio = of as f64 / to as f64;
        assert!((ratio / wanted - 1.0).abs() < 0.02, "{of} : {to} is {ratio}, not {wanted}");
    }

    #[test]
    fn hosts_are_served_by_their_weights_whatever_their_connections() {
        for (light, heavy) in [(100, 100), (100, 300), (1, 10), (1, 10_000)] {
            for (few, many) in [(1, 1), (1, 16), (16, 1)] {
                let busy = serve(&[(light, few, 4096), (heavy, many, 4096)], 100_000);
                let wanted = f64::from(heavy) / f64::from(light);
                assert_ratio(busy[1].commands, busy[0].commands.max(1), wanted);
            }
        }
    }

    #[test]
    fn large_commands_count_for_more_and_small_ones_are_not_free() {
        let busy = serve(&[(100, 4, 512), (100, 4, 131_072), (200, 1, 0)], 100_000);
        let served = |host: &Busy| host.bytes + host.commands * COMMAND_BYTES as u64;
        assert_ratio(served(&busy[1]), served(&busy[0]), 1.0);
        assert_ratio(served(&busy[2]), served(&busy[0]), 2.0);
        assert!(busy[0].commands > 20 * busy[1].commands);
    }

    #[test]
    fn the_connections_of_a_host_take_turns() {
        let mut shares = Shares::default();
        for index in 0..5 {
            let id = shares.join(of("h"), Weight::DEFAULT);
            shares.enqueue(id, key(index), Instant::now());
        }
        for round in 0..20 {
            let (id, next) = shares.next().unwrap();
            assert_eq!(next, key(round % 5));
            shares.charge(id, 1 << 20);
            shares.enqueue(id, next, Instant::now());
            shares.settle(id);
        }
    }

    #[test]
    fn who_was_silent_catches_up_with_a_bounded_part() {
        let mut shares = Shares::default();
        let [silent, busy] = ["a", "b"].map(|name| shares.join(of(name), Weight::DEFAULT));
        for _ in 0..1000 {
            shares.charge(busy, SLICE_BYTES);
        }
        shares.enqueue(busy, key(1), Instant::now());
        shares.enqueue(silent, key(0), Instant::now());
        let mut alone = 0;
        loop {
            let (id, next) = shares.next().unwrap();
            if id == busy {
                break;
            }
            alone += SLICE_BYTES;
            shares.charge(id, SLICE_BYTES);
            shares.enqueue(id, next, Instant::now());
            shares.settle(id);
        }
        let credit = usize::try_from(CREDIT_BYTES).unwrap();
        assert!((credit..=credit + 2 * SLICE_BYTES).contains(&alone), "{alone}");
    }

    #[test]
    fn one_host_alone_has_whole_passes_and_two_have_slices_for_a_time() {
        let mut shares = Shares::default();
        let start = Instant::now();
        let [first, second] = ["a", "b"].map(|name| shares.join(of(name), Weight::DEFAULT));
        let serve_one = |shares: &mut Shares| {
            let (id, _) = shares.next().unwrap();
            shares.settle(id);
            id
        };
        let pass = 4 * SLICE_BYTES;
        shares.enqueue(first, key(0), start);
        shares.enqueue(first, key(1), start);
        let mut turn = shares.begin_turn(start);
        for _ in 0..2 {
            assert_eq!(turn.slice(pass), Some(pass));
            turn.pass(pass);
            assert_eq!(serve_one(&mut shares), first);
        }
        assert_eq!(turn.slice(pass), None);
        assert_eq!(shares.next(), None);

        shares.enqueue(second, key(2), start);
        assert_eq!(serve_one(&mut shares), second);
        let soon = start + COMPETING / 2;
        shares.enqueue(first, key(0), soon);
        let mut turn = shares.begin_turn(soon);
        assert_eq!(turn.slice(pass), Some(SLICE_BYTES));
        turn.pass(TURN_BYTES - 1);
        assert_eq!(turn.slice(pass), Some(1));
        turn.pass(COMMAND_BYTES);
        assert_eq!(turn.slice(pass), None);
        let later = soon + COMPETING;
        assert_eq!(shares.begin_turn(later), Turn::Alone { connections: 1 });
        shares.enqueue(second, key(2), later);
        assert_eq!(shares.begin_turn(later + COMPETING), Turn::Shared { left: TURN_BYTES });
    }

    #[test]
    fn parts_go_with_their_last_connection_and_are_used_again() {
        let mut shares = Shares::default();
        let host = |n: usize| of(&n.to_string());
        for round in 0..1000 {
            let id = shares.join(host(round), Weight::DEFAULT);
            assert_eq!(shares.join(host(round), Weight::DEFAULT), id);
            let elsewhere = Owner::Host(nqn("t"), HostNqn::Named(nqn(&round.to_string())));
            assert_ne!(shares.join(elsewhere, Weight::DEFAULT), id);
            shares.enqueue(id, key(round), Instant::now());
            assert!(!shares.leave(id), "the part has another connection");
            // It goes while its line waits, or while it is served.
            let other = ShareId(1 - id.0);
            if round % 2 == 0 {
                assert!(shares.leave(id));
                let later = Instant::now() + COMPETING;
                assert_eq!(shares.begin_turn(later).slice(4096), Some(4096), "it is looked at");
                assert_eq!(shares.next(), None);
                assert!(!shares.is_waiting());
            } else {
                assert_eq!(shares.next(), Some((id, key(round))));
                shares.leave(id);
                shares.settle(id);
                assert_eq!(shares.next(), None);
            }
            shares.leave(other);
            assert!(!shares.is_waiting());
        }
        assert_eq!(shares.parts.len(), 2);
    }
}
