//! Which connections a core keeps: those whose packets come in where it wants them.
//!
//! A network device spreads connections over its receive queues by a hash of their addresses and
//! ports. A host cannot choose the receive queue, but it chooses ports: it connects again, from another
//! port, until the first packets have come in at the right place or its attempts are used up. The host
//! decides this once per connection, at connect; the target does so at accept.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use raceline_reactor::Arrival;
use raceline_reactor::affinity::allowed_cores;

/// Connections that a queue makes to find a good one. With hashing over 8 receive queues, one in 10
/// searches ends without a good connection; then the last one is used as it is.
pub const ATTEMPTS_MAX: u8 = 16;

/// Which connections are good for a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostPlacement {
    /// All.
    #[default]
    Any,
    /// Those whose packets the core's own CPU processes: no other CPU is interrupted for them.
    Cpu,
    /// Those of one receive queue, which the first connection of the core settles: one busy poll looks for
    /// the packets of all connections.
    Napi,
}

/// The receive queue of a core's connections, once it is settled; shared by the core's queues.
#[derive(Clone, Debug, Default)]
pub(crate) struct NapiGroup(Arc<AtomicU32>);

/// One queue's search for a connection.
#[derive(Debug)]
pub(crate) struct Search {
    placement: HostPlacement,
    group: NapiGroup,
    /// The CPU that this thread is bound to, if it is bound to one.
    own_cpu: Option<usize>,
    attempts: u8,
}

impl Search {
    pub(crate) fn new(placement: HostPlacement) -> Self {
        Self { placement, group: NapiGroup::default(), own_cpu: None, attempts: 0 }
    }

    /// Shares the receive queue with others of the core.
    pub(crate) fn join(&mut self, group: &NapiGroup) {
        self.group = group.clone();
    }

    /// A new connection is needed, on the calling thread.
    pub(crate) fn begin(&mut self) {
        let allowed = allowed_cores().unwrap_or_default();
        self.own_cpu = if let [only] = allowed[..] { Some(only) } else { None };
        self.attempts = 0;
    }

    /// The CPU that this thread is bound to, as of the last connection, if it is bound to one.
    pub(crate) fn own_cpu(&self) -> Option<usize> {
        self.own_cpu
    }

    /// How many connections were looked at, as of now.
    pub(crate) fn attempts(&self) -> u8 {
        self.attempts
    }

    /// Whether to keep a connection. It is also kept if the kernel does not tell where its packets come in,
    /// or with [`HostPlacement::Cpu`] if this thread is not bound to one CPU.
    pub(crate) fn accepts(&mut self, arrival: Arrival) -> bool {
        self.attempts += 1;
        let good = match (self.placement, arrival) {
            (HostPlacement::Cpu, Arrival { cpu: Some(cpu), .. }) => {
                self.own_cpu.is_none_or(|own| own == cpu)
            }
            (HostPlacement::Napi, Arrival { napi_id: Some(id), .. }) => self.group.is(id),
            _ => true,
        };
        good || self.attempts >= ATTEMPTS_MAX
    }
}

impl NapiGroup {
    /// Whether this is the core's receive queue; the first one that is asked about becomes it.
    fn is(&self, id: NonZeroU32) -> bool {
        let order = Ordering::Relaxed; // one thread
        let settled = self.0.compare_exchange(0, id.get(), order, order);
        settled.is_ok() || settled == Err(id.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(napi_id: u32, cpu: usize) -> Arrival {
        Arrival { napi_id: NonZeroU32::new(napi_id), cpu: Some(cpu), mark: None }
    }

    fn on_cpu(own: usize) -> Search {
        Search { own_cpu: Some(own), ..Search::new(HostPlacement::Cpu) }
    }

    #[test]
    fn a_core_keeps_what_its_cpu_processes() {
        let mut search = on_cpu(2);
        assert!(!search.accepts(from(1, 3)));
        assert!(search.accepts(from(1, 2)));
        assert!(search.accepts(Arrival::default()), "unknown is no reason to look on");
        assert!(Search::new(HostPlacement::Cpu).accepts(from(1, 3)), "nor is running anywhere");
        assert!(Search::new(HostPlacement::Any).accepts(from(1, 3)));
    }

    #[test]
    fn queues_of_a_core_share_a_receive_queue() {
        let group = NapiGroup::default();
        let mut searches = [0, 1].map(|_| Search::new(HostPlacement::Napi));
        searches.iter_mut().for_each(|search| search.join(&group));
        let [first, second] = &mut searches;
        assert!(second.accepts(from(0, 0)), "loopback has no receive queue");
        assert!(first.accepts(from(7, 0)));
        assert!(!second.accepts(from(8, 0)));
        assert!(second.accepts(from(7, 0)));
        first.begin();
        assert!(!first.accepts(from(8, 0)), "it stays when connections are made anew");
    }

    #[test]
    fn a_search_ends() {
        let mut search = on_cpu(2);
        let tried = (1..).find(|_| search.accepts(from(1, 3)));
        assert_eq!(tried, Some(ATTEMPTS_MAX));
        let mut napi = Search::new(HostPlacement::Napi);
        assert!(napi.accepts(from(1, 0)));
        napi.begin();
        assert!(!napi.accepts(from(2, 0)), "each connection has its own search");
    }
}
