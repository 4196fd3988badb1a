//! One path of a set: its queues on this core, and what is known of it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::{NamespaceId, Status};
use raceline_reactor::Context;

use crate::command::{Command, Rejected};
use crate::config::Association;
use crate::error::HostError;
use crate::multipath::{Access, MultipathConfig, PathAna, PathId, Policy};
use crate::path::{Topology, current_core};
use crate::queue_set::IoQueueSet;

/// For how long a path is not tried again for a namespace whose commands it has refused, unless its ANA log is read
/// before.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// What a path has done, over all cores; counted only where that was asked for.
#[derive(Debug, Default)]
pub struct PathCounters {
    /// Reads given to the path.
    pub reads: AtomicU64,
    /// Bytes of these reads.
    pub read_bytes: AtomicU64,
    /// Writes given to the path.
    pub writes: AtomicU64,
    /// Bytes of these writes.
    pub write_bytes: AtomicU64,
    /// Other commands given to the path.
    pub others: AtomicU64,
}

impl PathCounters {
    fn count(&self, command: &Command) {
        let bytes = u64::try_from(command.data.len()).unwrap_or(u64::MAX);
        let add = |counter: &AtomicU64, number| counter.fetch_add(number, Ordering::Relaxed);
        match command.sqe.opc {
            io::READ => {
                add(&self.reads, 1);
                add(&self.read_bytes, bytes);
            }
            io::WRITE => {
                add(&self.writes, 1);
                add(&self.write_bytes, bytes);
            }
            _ => {
                add(&self.others, 1);
            }
        }
    }
}

/// How a path is on one core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathSummary {
    /// Its name.
    pub id: PathId,
    /// Whether commands flow on its queues.
    pub is_ready: bool,
    /// Whether it was given up or removed, and is being closed.
    pub is_ending: bool,
    /// What its controller says of its namespaces, if it says anything.
    pub ana: Option<Arc<PathAna>>,
}

/// A path of a set.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) id: PathId,
    pub(super) queues: IoQueueSet,
    pub(super) ana: Option<Arc<PathAna>>,
    /// Those that its controller leads to, in ascending order.
    pub(super) namespaces: Vec<NamespaceId>,
    pub(super) counters: Option<Arc<PathCounters>>,
    /// How far its network device is from this core; 0 unless the policy wants to know.
    pub(super) distance: u32,
    /// Where it begins, if that was said, and where it ends.
    place: (Option<IpAddr>, SocketAddr),
    is_up: bool,
    given_up: bool,
    /// Since when commands have not flown.
    waiting_since: Option<Instant>,
    refused: Vec<Refused>,
}

/// A namespace whose commands were refused for a reason of the path.
#[derive(Debug)]
struct Refused {
    nsid: NamespaceId,
    /// The reading of the ANA log that said otherwise.
    reading: Option<u64>,
    until: Instant,
}

impl Member {
    pub(super) fn new(
        id: PathId,
        queues: IoQueueSet,
        now: Instant,
        place: (Option<IpAddr>, SocketAddr),
    ) -> Self {
        Self {
            id,
            queues,
            ana: None,
            namespaces: Vec::new(),
            counters: None,
            distance: 0,
            place,
            is_up: false,
            given_up: false,
            waiting_since: Some(now),
            refused: Vec::new(),
        }
    }

    /// Finds out how far it is from the core of the calling thread, if the policy wants to know.
    pub(super) fn measure(&mut self, options: Option<&MultipathConfig>) {
        let options = options.filter(|options| options.policy == Policy::Numa);
        self.distance = options.map_or(0, |options| {
            let distance = options.topology.distance(current_core(), self.place);
            distance.unwrap_or_else(Topology::unknown_distance)
        });
    }

    pub(super) fn summary(&self) -> PathSummary {
        PathSummary {
            id: self.id,
            is_ready: self.queues.is_ready(),
            is_ending: self.given_up,
            ana: self.ana.clone(),
        }
    }

    pub(super) fn handle_up(&mut self, cx: &mut Context<'_>, association: &Association) {
        self.is_up = true;
        self.ana.clone_from(&association.ana);
        self.namespaces = association.namespaces.iter().map(|info| info.nsid).collect();
        self.refused.clear();
        self.queues.handle_up(cx, association);
    }

    pub(super) fn handle_down(&mut self, cx: &mut Context<'_>, error: &HostError) {
        self.is_up = false;
        self.note_lost(cx.now);
        self.queues.handle_down(cx, error);
    }

    pub(super) fn give_up(&mut self) {
        self.is_up = false;
        self.given_up = true;
    }

    /// Whether it was given up, and nothing of it is left.
    pub(super) fn is_gone(&self) -> bool {
        self.given_up && self.queues.is_closed() && self.queues.done_count() == 0
    }

    pub(super) fn note_ready(&mut self) {
        if self.queues.is_ready() {
            self.waiting_since = None;
        }
    }

    pub(super) fn note_lost(&mut self, now: Instant) {
        self.waiting_since.get_or_insert(now);
    }

    /// A command for this namespace was refused for a reason of the path: its ANA state is not what was known.
    pub(super) fn note_refused(&mut self, nsid: NamespaceId, status: Status, now: Instant) {
        tracing::debug!(path = %self.id, %nsid, %status, "a command was refused on its path");
        let reading = self.ana.as_ref().map(|ana| ana.reading);
        self.refused.retain(|refused| refused.nsid != nsid && now < refused.until);
        self.refused.push(Refused { nsid, reading, until: now + REFUSED_FOR });
    }

    /// What the path can do for a namespace. Of a path that is being connected, it is lost after `fast_fail`.
    pub(super) fn access(
        &self,
        nsid: NamespaceId,
        now: Instant,
        fast_fail: Option<Duration>,
    ) -> Access {
        if self.given_up {
            return Access::Lost;
        }
        if let (Some(since), Some(limit)) = (self.waiting_since, fast_fail)
            && now >= since + limit
        {
            return Access::Lost;
        }
        if !self.is_up {
            return Access::Awaited;
        }
        let said = self.ana.as_ref().map_or(Access::Optimized, |ana| ana.access(nsid, now));
        let reading = self.ana.as_ref().map(|ana| ana.reading);
        let is_refused = |refused: &Refused| {
            refused.nsid == nsid && refused.reading == reading && now < refused.until
        };
        if said.is_usable() && self.refused.iter().any(is_refused) {
            return Access::Awaited;
        }
        said
    }

    /// The position of a queue among those of this path, which may be fewer than those of others.
    pub(super) fn position(&self, queue: usize) -> usize {
        queue.checked_rem(self.queues.len()).unwrap_or(0)
    }

    /// How many commands its queue takes now.
    pub(super) fn room(&self, queue: usize) -> usize {
        let queue = self.position(queue);
        if self.queues.is_queue_ready(queue) { self.queues.room(queue) } else { 0 }
    }

    /// Another path may have executed the command that was submitted last to its queue.
    pub(super) fn note_tried(&mut self, queue: usize) {
        self.queues.note_tried(self.position(queue));
    }

    /// Whether its queue takes this command.
    pub(super) fn takes(&self, queue: usize, command: &Command) -> bool {
        self.queues.takes(self.position(queue), command)
    }

    /// Whether its queue takes a command now.
    pub(super) fn has_room(&self, queue: usize) -> bool {
        self.room(queue) > 0
    }

    pub(super) fn submit(
        &mut self,
        cx: &mut Context<'_>,
        queue: usize,
        command: Command,
        user: u64,
        counts: bool,
    ) -> Result<(), Rejected> {
        if counts && let Some(counters) = &self.counters {
            counters.count(&command);
        }
        let queue = self.position(queue);
        self.queues.submit(cx, queue, command, user)
    }
}

#[cfg(test)]
mod tests {
    use raceline_proto::nvme::ana::AnaState;
    use raceline_proto::nvme::{HostId, Nqn};
    use raceline_reactor::Token;

    use super::*;
    use crate::config::HostConfig;
    use crate::path::ana::tests::log;

    const NS: NamespaceId = NamespaceId(1);
    const FAST: Option<Duration> = Some(Duration::from_secs(5));

    fn member(now: Instant) -> Member {
        let address = "127.0.0.1:4420".parse().unwrap();
        let nqn = Nqn::new("nqn.2026-01.io.raceline:member").unwrap();
        let config = HostConfig::new(address, nqn.clone(), nqn, HostId([3; 16]));
        let token = Token { owner: 0, generation: 0, index: 0 };
        let place = (None, config.address);
        Member::new(PathId(0), IoQueueSet::new(&config, [1], token), now, place)
    }

    #[test]
    fn a_path_that_is_being_connected_is_awaited_for_a_time() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut member = member(start);
        assert_eq!(member.access(NS, at(1000), None), Access::Awaited);
        assert_eq!(member.access(NS, at(4), FAST), Access::Awaited);
        assert_eq!(member.access(NS, at(5), FAST), Access::Lost);
        member.waiting_since = None;
        member.is_up = true;
        assert_eq!(member.access(NS, at(5), FAST), Access::Optimized, "without ANA, all is");
        member.note_lost(at(10));
        member.note_lost(at(14));
        assert_eq!(member.access(NS, at(15), FAST), Access::Lost, "counted from the first loss");
        member.give_up();
        assert_eq!(member.access(NS, at(10), None), Access::Lost);
    }

    #[test]
    fn a_refusal_is_believed_until_the_log_is_read_or_a_while() {
        let start = Instant::now();
        let mut member = member(start);
        (member.is_up, member.waiting_since) = (true, None);
        let ana = PathAna::new(log(1, &[AnaState::NonOptimized]), FAST.unwrap(), start);
        member.ana = Some(Arc::new(ana.clone()));
        assert_eq!(member.access(NS, start, None), Access::NonOptimized);
        member.note_refused(NS, Status::ANA_INACCESSIBLE, start);
        assert_eq!(member.access(NS, start, None), Access::Awaited);
        assert_eq!(member.access(NamespaceId(2), start, None), Access::Awaited, "it is not named");
        let next = ana.followed_by(log(2, &[AnaState::Optimized]), start);
        member.ana = Some(Arc::new(next));
        assert_eq!(member.access(NS, start, None), Access::Optimized);
        member.ana = None;
        member.note_refused(NS, Status::INTERNAL_PATH_ERROR, start);
        assert_eq!(member.access(NS, start, None), Access::Awaited);
        assert_eq!(member.access(NS, start + REFUSED_FOR, None), Access::Optimized);
    }
}
