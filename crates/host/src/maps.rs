//! Queue maps: which I/O queue takes which command, from which CPU.
//!
//! The I/O queues of an association are divided as Linux's NVMe over Fabrics hosts do it
//! (`--nr-io-queues`, `--nr-write-queues` and `--nr-poll-queues` of nvme-cli): queues for reads,
//! so that a read never stands behind a large write on its socket; queues for polled commands, whose
//! completions wake no thread; and default queues for everything else. Each map is laid over the CPUs by
//! itself, starting at the first, so that a CPU has its own queue of every map. If the maps were laid one
//! after the other, the second would begin where the first ended.
//!
//! A kernel makes at most one queue per CPU and map. This host makes as many as it is asked for: queues
//! beyond the number of CPUs begin at the first CPU again.

use std::fmt;
use std::ops::Range;

use raceline_proto::nvme::QueueId;
use raceline_proto::nvme::opcode::io;

/// What a queue is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QueueKind {
    /// Writes, and all commands that the other kinds do not take.
    Default,
    /// Reads.
    Read,
    /// Commands whose submitter polls for their completion.
    Poll,
}

impl QueueKind {
    /// All kinds, in the order of their queue identifiers.
    pub const ALL: [Self; 3] = [Self::Default, Self::Read, Self::Poll];

    /// The kind that a command asks for, by its opcode: polling comes before reading, and only Read
    /// is a read.
    #[must_use]
    pub fn of(opcode: u8, polled: bool) -> Self {
        match opcode {
            _ if polled => Self::Poll,
            io::READ => Self::Read,
            _ => Self::Default,
        }
    }

    fn index(self) -> usize {
        match self {
            Self::Default => 0,
            Self::Read => 1,
            Self::Poll => 2,
        }
    }
}

impl fmt::Display for QueueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Default => "default",
            Self::Read => "read",
            Self::Poll => "poll",
        })
    }
}

/// How many I/O queues to ask a controller for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRequest {
    /// Queues for everything, or only for reads when there are `write` ones (`--nr-io-queues`).
    pub io: u16,
    /// More queues, for commands that are not reads (`--nr-write-queues`).
    pub write: u16,
    /// More queues, for polled commands (`--nr-poll-queues`).
    pub poll: u16,
}

impl QueueRequest {
    /// All of them.
    #[must_use]
    pub fn total(self) -> u16 {
        self.io.saturating_add(self.write).saturating_add(self.poll)
    }

    /// Divides the queues that the controller granted, maybe fewer than asked for.
    ///
    /// Reads come first. There are default queues of their own only when reads have all that were asked for
    /// and some are left; else both share. Poll queues get the rest.
    #[must_use]
    pub fn grant(self, granted: u16) -> QueueMaps {
        let mut left = granted.min(self.total());
        let mut take = |wanted: u16| {
            let taken = wanted.min(left);
            left -= taken;
            taken
        };
        let (read, default) = if self.write > 0 && self.io < granted {
            (take(self.io), take(self.write))
        } else {
            (0, take(self.io))
        };
        QueueMaps { counts: [default, read, take(self.poll)] }
    }
}

/// The division of an association's I/O queues.
///
/// Queue identifiers count from 1 through the default queues, then the read queues, then the poll
/// queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueMaps {
    /// By [`QueueKind::index`].
    counts: [u16; 3],
}

impl QueueMaps {
    /// Queues of this kind's own; 0 when its commands use those of another kind.
    #[must_use]
    pub fn count(&self, kind: QueueKind) -> u16 {
        self.counts[kind.index()]
    }

    /// All queues.
    #[must_use]
    pub fn total(&self) -> u16 {
        self.counts.iter().sum()
    }

    /// The kind of the queues that really take commands of this kind. Without queues of their own, reads
    /// and polled commands take the default ones, and a polled read takes those for reads.
    #[must_use]
    pub fn resolve(&self, kind: QueueKind, opcode: u8) -> QueueKind {
        match kind {
            _ if self.count(kind) > 0 => kind,
            QueueKind::Poll => self.resolve(QueueKind::of(opcode, false), opcode),
            QueueKind::Read | QueueKind::Default => QueueKind::Default,
        }
    }

    /// Identifiers of this kind's own queues.
    #[must_use]
    pub fn qids(&self, kind: QueueKind) -> Range<u16> {
        let first = 1 + self.counts[..kind.index()].iter().sum::<u16>();
        first..first + self.count(kind)
    }

    /// The kind of a queue; `None` when there is no such I/O queue.
    #[must_use]
    pub fn kind_of(&self, qid: QueueId) -> Option<QueueKind> {
        QueueKind::ALL.into_iter().find(|&kind| self.qids(kind).contains(&qid.0))
    }

    /// The queue of this kind that a CPU uses, by the CPU's position among those in use; `None` when
    /// the kind has no queues of its own. With fewer queues than CPUs, several share one.
    #[must_use]
    pub fn queue_of(&self, kind: QueueKind, cpu: usize) -> Option<QueueId> {
        let qids = self.qids(kind);
        let position = cpu.checked_rem(qids.len())?;
        Some(QueueId(qids.start + u16::try_from(position).ok()?))
    }

    /// The CPU that a queue lives on, by its position among `cpus` of them.
    ///
    /// # Panics
    /// If `cpus` is 0.
    #[must_use]
    pub fn owner(&self, qid: QueueId, cpus: usize) -> Option<usize> {
        let kind = self.kind_of(qid)?;
        Some(usize::from(qid.0 - self.qids(kind).start) % cpus)
    }

    /// The queues that live on a CPU.
    #[must_use]
    pub fn core(&self, core: CorePlace) -> CoreMaps {
        let mut maps = CoreMaps { maps: *self, qids: Vec::new(), ends: [0; 3] };
        for kind in QueueKind::ALL {
            let here = self.qids(kind).skip(core.index).step_by(core.count.max(1));
            maps.qids.extend(here);
            maps.ends[kind.index()] = maps.qids.len();
        }
        maps
    }
}

/// The place of one CPU among those in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorePlace {
    /// Its position, from 0.
    pub index: usize,
    /// How many CPUs are in use.
    pub count: usize,
}

impl CorePlace {
    /// The only CPU.
    pub const ALONE: Self = Self { index: 0, count: 1 };
}

/// The queues of one CPU, in the order of their identifiers; named by their position here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreMaps {
    maps: QueueMaps,
    qids: Vec<u16>,
    /// Where the positions of each kind end, by [`QueueKind::index`].
    ends: [usize; 3],
}

impl CoreMaps {
    /// The division that they are part of.
    #[must_use]
    pub fn maps(&self) -> &QueueMaps {
        &self.maps
    }

    /// Their identifiers.
    #[must_use]
    pub fn qids(&self) -> &[u16] {
        &self.qids
    }

    /// Positions of this kind's own queues on this CPU.
    #[must_use]
    pub fn positions(&self, kind: QueueKind) -> Range<usize> {
        let start = kind.index().checked_sub(1).map_or(0, |before| self.ends[before]);
        start..self.ends[kind.index()]
    }

    /// The position of the queue for a command. Where this CPU has several of the kind, `lane`, the number
    /// of the submitter, chooses, so that a submitter stays with its queue. `None` when the queue of this
    /// CPU lives on another.
    #[must_use]
    pub fn route(&self, opcode: u8, polled: bool, lane: usize) -> Option<usize> {
        let kind = self.maps.resolve(QueueKind::of(opcode, polled), opcode);
        let positions = self.positions(kind);
        Some(positions.start + lane.checked_rem(positions.len())?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn maps(request: QueueRequest, granted: u16) -> [Vec<u16>; 3] {
        let maps = request.grant(granted);
        QueueKind::ALL.map(|kind| maps.qids(kind).collect())
    }

    #[test]
    fn queues_are_divided_as_linux_does() {
        let plain = QueueRequest { io: 4, write: 0, poll: 0 };
        assert_eq!(maps(plain, 4), [vec![1, 2, 3, 4], vec![], vec![]]);
        assert_eq!(maps(plain, 9), [vec![1, 2, 3, 4], vec![], vec![]]);
        assert_eq!(maps(plain, 2), [vec![1, 2], vec![], vec![]]);
        let all = QueueRequest { io: 2, write: 2, poll: 2 };
        assert_eq!(maps(all, 6), [vec![1, 2], vec![3, 4], vec![5, 6]]);
        // Poll queues go first when there are too few, then default queues; reads keep theirs.
        assert_eq!(maps(all, 5), [vec![1, 2], vec![3, 4], vec![5]]);
        assert_eq!(maps(all, 4), [vec![1, 2], vec![3, 4], vec![]]);
        assert_eq!(maps(all, 3), [vec![1], vec![2, 3], vec![]]);
        // Nothing is left for default queues of their own: both share.
        assert_eq!(maps(all, 2), [vec![1, 2], vec![], vec![]]);
        assert_eq!(maps(all, 1), [vec![1], vec![], vec![]]);
        assert_eq!(maps(all, 0), [vec![], vec![], vec![]]);
        let polled = QueueRequest { io: 2, write: 0, poll: 4 };
        assert_eq!(maps(polled, 3), [vec![1, 2], vec![], vec![3]]);
    }

    #[test]
    fn commands_go_to_the_map_of_their_kind() {
        let request = QueueRequest { io: 1, write: 1, poll: 1 };
        let route = |granted, opcode, polled| {
            let core = request.grant(granted).core(CorePlace::ALONE);
            core.route(opcode, polled, 0).map(|position| core.qids()[position])
        };
        for (opcode, expected) in [(io::READ, 2), (io::WRITE, 1), (io::FLUSH, 1), (io::COMPARE, 1)]
        {
            assert_eq!(route(3, opcode, false), Some(expected), "opcode {opcode:x}h");
            assert_eq!(route(3, opcode, true), Some(3), "opcode {opcode:x}h");
            assert_eq!(route(2, opcode, true), Some(expected), "no poll queue was granted");
            assert_eq!(route(1, opcode, false), Some(1), "all share what was granted");
            assert_eq!(route(0, opcode, false), None);
        }
    }

    #[test]
    fn every_map_starts_at_the_first_cpu() {
        let maps = QueueRequest { io: 3, write: 1, poll: 2 }.grant(6);
        let row = |kind| [0, 1, 2, 3].map(|cpu| maps.queue_of(kind, cpu).map(|qid| qid.0));
        assert_eq!(row(QueueKind::Default), [Some(1); 4]);
        assert_eq!(row(QueueKind::Read), [Some(2), Some(3), Some(4), Some(2)]);
        assert_eq!(row(QueueKind::Poll), [Some(5), Some(6), Some(5), Some(6)]);
        let qids = [0, 1, 2, 3].map(|index| maps.core(CorePlace { index, count: 4 }).qids);
        assert_eq!(qids, [vec![1, 2, 5], vec![3, 6], vec![4], vec![]]);
        assert_eq!(maps.core(CorePlace { index: 1, count: 2 }).qids, [3, 6]);
    }

    fn request() -> impl Strategy<Value = QueueRequest> {
        (1u16..40, 0u16..40, 0u16..40).prop_map(|(io, write, poll)| QueueRequest {
            io,
            write,
            poll,
        })
    }

    proptest! {
        #[test]
        fn every_queue_is_used_once_and_every_cpu_has_one(
            request in request(),
            granted in 1u16..130,
            cpus in 1usize..12,
        ) {
            let maps = request.grant(granted);
            prop_assert_eq!(maps.total(), match request.write {
                // Too few for default queues of their own: what reads leave goes to polling.
                0 => granted.min(request.io + request.poll),
                _ if granted <= request.io => granted,
                _ => granted.min(request.total()),
            });
            prop_assert!(maps.count(QueueKind::Default) > 0);
            let cores: Vec<CoreMaps> =
                (0..cpus).map(|index| maps.core(CorePlace { index, count: cpus })).collect();
            let mut qids: Vec<u16> = cores.iter().flat_map(|core| core.qids.clone()).collect();
            qids.sort_unstable();
            prop_assert_eq!(qids, (1..=maps.total()).collect::<Vec<u16>>());
            for kind in QueueKind::ALL.into_iter().filter(|&kind| maps.count(kind) > 0) {
                for cpu in 0..cpus {
                    let qid = maps.queue_of(kind, cpu).unwrap();
                    prop_assert_eq!(maps.kind_of(qid), Some(kind));
                    let owner = maps.owner(qid, cpus).unwrap();
                    // At home, unless there are fewer queues than CPUs.
                    prop_assert!(owner == cpu || cpu >= usize::from(maps.count(kind)));
                    prop_assert!(cores[owner].qids.contains(&qid.0));
                }
                prop_assert_eq!(maps.owner(QueueId(maps.qids(kind).start), cpus), Some(0));
            }
        }

        #[test]
        fn a_core_routes_to_its_own_queue_of_the_right_kind(
            request in request(),
            granted in 1u16..130,
            count in 1usize..6,
            opcode in prop::sample::select(vec![io::READ, io::WRITE, io::FLUSH]),
            polled: bool,
            lane in 0usize..50,
        ) {
            let maps = request.grant(granted);
            let kind = maps.resolve(QueueKind::of(opcode, polled), opcode);
            for index in 0..count {
                let core = maps.core(CorePlace { index, count });
                match core.route(opcode, polled, lane) {
                    Some(position) => {
                        let qid = QueueId(core.qids()[position]);
                        prop_assert_eq!(maps.kind_of(qid), Some(kind));
                        prop_assert_eq!(maps.owner(qid, count), Some(index));
                        if lane == 0 {
                            prop_assert_eq!(maps.queue_of(kind, index), Some(qid));
                        }
                    }
                    None => prop_assert!(index >= usize::from(maps.count(kind))),
                }
            }
        }
    }
}
