//! Which core gets a new connection: the least loaded one, or the one its packets come in by.

use std::collections::HashMap;
use std::num::NonZeroU32;

/// The target reads it once, at accept: from the last packet of the handshake.
pub(crate) use raceline_reactor::Arrival;

/// How connections are placed on the cores of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlacementPolicy {
    /// On the core with the fewest connections.
    #[default]
    Balanced,
    /// All connections whose packets come from one receive queue (NAPI id) on one core, and the
    /// queues spread over the cores; where the queue is not known, as [`Self::Balanced`].
    Napi,
    /// On the core bound to the CPU that processed the packets of the connection's handshake; where
    /// the target has no such core, as [`Self::Balanced`].
    Cpu,
    /// All connections with one mark of the packet filter (SO_MARK) on one core, and the marks spread
    /// over the cores; without a mark, as [`Self::Balanced`].
    Mark,
    /// On the core that has accepted it: every core listens, and the kernel gives a connection to the
    /// listener of the core whose CPU processed the request for it (SO_REUSEPORT with a BPF program). Where
    /// the target has no such core, the kernel chooses one by a hash. All cores are bound.
    Listener,
}

/// A connection's place on a core, to be given back by [`Placement::unplace`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a seat that is not given back counts forever"]
pub(crate) struct Seat {
    core: usize,
    /// The receive queue, or the mark, that counts this connection.
    queue: Option<NonZeroU32>,
}

/// The connections and receive queues of every core.
#[derive(Debug)]
pub(crate) struct Placement {
    policy: PlacementPolicy,
    cores: Vec<Load>,
    /// Receive queues, or marks, that have connections, so never more than there are connections.
    queues: HashMap<NonZeroU32, Queue>,
}

#[derive(Debug, Default)]
struct Load {
    /// The CPU that the core is bound to.
    cpu: Option<usize>,
    connections: usize,
    queues: usize,
}

#[derive(Debug)]
struct Queue {
    core: usize,
    connections: usize,
}

impl Seat {
    /// The core, by its index.
    pub(crate) fn core(&self) -> usize {
        self.core
    }
}

impl Placement {
    /// No connections yet; core `i` is bound to `cpus[i]`, and cores beyond are not bound. A
    /// target without cores (a test replaces a target that ends by one) has nothing to place.
    pub(crate) fn new(policy: PlacementPolicy, cpus: &[usize], cores: usize) -> Self {
        let load = |core| Load { cpu: cpus.get(core).copied(), ..Load::default() };
        Self { policy, cores: (0..cores).map(load).collect(), queues: HashMap::new() }
    }

    /// Chooses a core for a new connection, which core `listener` has accepted, and counts it there.
    pub(crate) fn place(&mut self, arrival: Arrival, listener: usize) -> Seat {
        let seat = match (self.policy, arrival) {
            (PlacementPolicy::Napi, Arrival { napi_id: Some(id), .. })
            | (PlacementPolicy::Mark, Arrival { mark: Some(id), .. }) => {
                Seat { core: self.core_of_queue(id), queue: Some(id) }
            }
            (PlacementPolicy::Listener, _) => Seat { core: listener, queue: None },
            (PlacementPolicy::Cpu, Arrival { cpu: Some(cpu), .. }) => {
                let bound = self.cores.iter().position(|load| load.cpu == Some(cpu));
                Seat { core: bound.unwrap_or_else(|| self.least_connections()), queue: None }
            }
            _ => Seat { core: self.least_connections(), queue: None },
        };
        self.cores[seat.core].connections += 1;
        seat
    }

    /// Counts a connection on this core, whatever the policy would choose.
    pub(crate) fn seat(&mut self, core: usize) -> Seat {
        self.cores[core].connections += 1;
        Seat { core, queue: None }
    }

    /// A connection is gone; with the last one of a receive queue, the queue is forgotten.
    pub(crate) fn unplace(&mut self, seat: Seat) {
        let load = &mut self.cores[seat.core];
        load.connections -= 1;
        let Some(id) = seat.queue else { return };
        if let Some(queue) = self.queues.get_mut(&id) {
            queue.connections -= 1;
            if queue.connections == 0 {
                self.queues.remove(&id);
                load.queues -= 1;
            }
        }
    }

    /// Whether connections may move to another core than the one that they were placed on: not if a policy has chosen
    /// the core for what their packets say.
    pub(crate) fn may_move(&self) -> bool {
        self.policy == PlacementPolicy::Balanced
    }

    /// A connection moves to another core. Gives its seat there.
    pub(crate) fn reseat(&mut self, seat: Seat, core: usize) -> Seat {
        self.unplace(seat);
        self.cores[core].connections += 1;
        Seat { core, queue: None }
    }

    /// Connections on each core.
    pub(crate) fn connections(&self) -> Vec<usize> {
        self.cores.iter().map(|load| load.connections).collect()
    }

    /// Where the queue's connections are; a new queue goes where the fewest queues are.
    fn core_of_queue(&mut self, id: NonZeroU32) -> usize {
        let fewest = self.fewest_by(|load| (load.queues, load.connections));
        let queue = self.queues.entry(id).or_insert_with(|| {
            self.cores[fewest].queues += 1;
            Queue { core: fewest, connections: 0 }
        });
        queue.connections += 1;
        queue.core
    }

    fn least_connections(&self) -> usize {
        self.fewest_by(|load| load.connections)
    }

    /// The first of the cores with the smallest `key`.
    fn fewest_by<K: Ord>(&self, key: impl Fn(&Load) -> K) -> usize {
        let smallest = self.cores.iter().enumerate().min_by_key(|(_, load)| key(load));
        smallest.map_or(0, |(core, _)| core)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_queue(id: u32) -> Arrival {
        Arrival { napi_id: NonZeroU32::new(id), cpu: Some(0), mark: None }
    }

    fn on_cpu(cpu: usize) -> Arrival {
        Arrival { napi_id: NonZeroU32::new(9), cpu: Some(cpu), mark: None }
    }

    fn place_all(
        placement: &mut Placement,
        arrivals: impl IntoIterator<Item = Arrival>,
    ) -> Vec<Seat> {
        arrivals.into_iter().map(|arrival| placement.place(arrival, 0)).collect()
    }

    fn cores(seats: &[Seat]) -> Vec<usize> {
        seats.iter().map(Seat::core).collect()
    }

    #[test]
    fn balanced_looks_at_connections_only() {
        let mut placement = Placement::new(PlacementPolicy::Balanced, &[0, 1], 2);
        let seats = place_all(&mut placement, [7, 7, 7, 0].map(from_queue));
        assert_eq!(cores(&seats), [0, 1, 0, 1]);
        assert!(placement.queues.is_empty());
    }

    #[test]
    fn connections_of_one_queue_share_a_core_and_queues_are_spread() {
        let mut placement = Placement::new(PlacementPolicy::Napi, &[0, 1], 2);
        let seats = place_all(&mut placement, [21, 21, 21, 22, 21, 22, 23].map(from_queue));
        // Queue 23 is the third: both cores have one queue, and core 1 has fewer connections.
        assert_eq!(cores(&seats), [0, 0, 0, 1, 0, 1, 1]);
    }

    #[test]
    fn more_queues_than_cores_are_dealt_out_evenly() {
        let mut placement = Placement::new(PlacementPolicy::Napi, &[], 3);
        place_all(&mut placement, (1..=9).map(from_queue)).iter().for_each(drop);
        assert_eq!(placement.connections(), [3, 3, 3]);
        assert!(placement.cores.iter().all(|load| load.queues == 3));
    }

    #[test]
    fn an_unknown_queue_is_no_queue() {
        let mut placement = Placement::new(PlacementPolicy::Napi, &[0, 1], 2);
        let seats = place_all(&mut placement, [0; 8].map(from_queue));
        assert_eq!(placement.connections(), [4, 4], "loopback must not end on one core");
        assert!(placement.queues.is_empty());
        for seat in seats {
            placement.unplace(seat);
        }
        assert_eq!(placement.connections(), [0, 0]);
    }

    #[test]
    fn a_queue_is_forgotten_with_its_last_connection() {
        let mut placement = Placement::new(PlacementPolicy::Napi, &[0, 1], 2);
        let mut seats = place_all(&mut placement, [1, 1, 2].map(from_queue));
        placement.unplace(seats.remove(0));
        assert_eq!(placement.place(from_queue(1), 0).core(), 0, "it still has one");
        assert_eq!(placement.connections(), [2, 1]);

        let mut placement = Placement::new(PlacementPolicy::Napi, &[0, 1], 2);
        let seat = placement.place(from_queue(1), 0);
        let other = placement.place(from_queue(0), 0);
        assert_eq!((seat.core(), other.core()), (0, 1));
        placement.unplace(seat);
        assert!(placement.queues.is_empty());
        assert_eq!(placement.cores[0].queues, 0);
        assert_eq!(placement.place(from_queue(2), 0).core(), 0);
        assert_eq!(placement.place(from_queue(1), 0).core(), 1, "a new life may be elsewhere");
    }

    #[test]
    fn a_cpu_of_ours_gets_its_connections_and_others_are_balanced() {
        let mut placement = Placement::new(PlacementPolicy::Cpu, &[4, 6], 2);
        let seats = place_all(&mut placement, [6, 6, 4, 6].map(on_cpu));
        assert_eq!(cores(&seats), [1, 1, 0, 1]);
        let foreign = place_all(&mut placement, [on_cpu(5), Arrival::default(), on_cpu(0)]);
        assert_eq!(cores(&foreign), [0, 0, 0]);
        assert_eq!(placement.connections(), [4, 3]);
    }

    #[test]
    fn a_core_that_is_not_bound_is_no_cpu() {
        let mut placement = Placement::new(PlacementPolicy::Cpu, &[], 2);
        let seats = place_all(&mut placement, [1, 1, 1].map(on_cpu));
        assert_eq!(cores(&seats), [0, 1, 0]);
    }

    #[test]
    fn connections_of_one_mark_share_a_core() {
        let marked = |mark| Arrival { mark: NonZeroU32::new(mark), ..from_queue(7) };
        let mut placement = Placement::new(PlacementPolicy::Mark, &[0, 1], 2);
        let seats = place_all(&mut placement, [5, 5, 6, 5, 0].map(marked));
        // Without a mark: where the fewest connections are, whatever the queue.
        assert_eq!(cores(&seats), [0, 0, 1, 0, 1]);
        seats.into_iter().for_each(|seat| placement.unplace(seat));
        assert!(placement.queues.is_empty());
    }

    #[test]
    fn who_has_accepted_a_connection_keeps_it() {
        let mut placement = Placement::new(PlacementPolicy::Listener, &[4, 6], 2);
        let seats = [1, 1, 0, 1].map(|core| placement.place(on_cpu(4), core));
        assert_eq!(cores(&seats), [1, 1, 0, 1]);
        assert_eq!(placement.connections(), [1, 3]);
    }
}
