//! Which queues are connected, their hosts, and what closed queues have done.
//!
//! Written when a queue comes or goes and read by the control thread; a command only updates the
//! counters of its queue.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use raceline_proto::nvme::{ControllerId, HostId, HostNqn, Nqn, QueueId};

use crate::records::counters::{QueueCounters, QueueTotals};
use crate::records::names::Place;

/// Pairs of subsystem and host whose counts are kept. Beyond that, a new pair displaces one without a
/// connection: a peer that may connect under any name must not fill the memory with names.
const MAX_REMEMBERED_HOSTS: usize = 4096;
/// Local addresses whose counts are kept. A listener of all addresses is reached by each address of the machine, and
/// these come and go. Beyond that, a new address displaces one without a connection.
const MAX_REMEMBERED_ADDRESSES: usize = 4096;

/// A connected queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueRecord {
    pub(crate) qid: QueueId,
    pub(crate) entries: u16,
    pub(crate) cntlid: ControllerId,
    /// The subsystem, or the discovery service.
    pub(crate) subsystem: Nqn,
    pub(crate) host: HostNqn,
    pub(crate) hostid: HostId,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) is_rdma: bool,
    pub(crate) counters: Arc<QueueCounters>,
    /// What it had done when it came to its core from another one.
    pub(crate) before: QueueTotals,
}

impl QueueRecord {
    /// What it has done on its present core.
    pub(crate) fn here(&self) -> QueueTotals {
        self.counters.totals().since(&self.before)
    }
}

/// The queues of one core.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CoreQueues {
    /// Admin queues that ever connected.
    pub(crate) admin_queues: u64,
    /// I/O queues that ever connected.
    pub(crate) io_queues: u64,
    /// What the closed I/O queues have done.
    pub(crate) closed: QueueTotals,
    /// How often those over RDMA have waited for a buffer.
    pub(crate) closed_rdma_waits: u64,
}

impl CoreQueues {
    /// An I/O queue has left the core.
    fn close(&mut self, record: &QueueRecord) {
        let here = record.here();
        self.closed.add(&here);
        if record.is_rdma {
            self.closed_rdma_waits += here.buffer_waits;
        }
    }
}

/// A host of a subsystem, over all its queues.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HostQueues {
    /// What its closed queues have done.
    pub(crate) closed: QueueTotals,
    /// Its controllers that were given up because its keep alive timer ran out.
    pub(crate) keep_alive_timeouts: u64,
    /// That has happened, and it has not connected since.
    pub(crate) is_timed_out: bool,
    connected: usize,
}

/// All queues that have come by one local address and one transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressStats {
    /// Queues that are connected, admin queues included.
    pub queues: usize,
    /// Queues that have ever connected.
    pub queues_ever: u64,
    /// What these have done, admin commands included.
    pub totals: QueueTotals,
}

/// All queues of a target.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) live: HashMap<Place, QueueRecord>,
    pub(crate) cores: Vec<CoreQueues>,
    pub(crate) hosts: HashMap<(Nqn, HostNqn), HostQueues>,
    /// By local address, and whether RDMA carries them. The totals are those of closed queues.
    addresses: HashMap<(SocketAddr, bool), AddressStats>,
    /// Queues that have moved to another core.
    pub(crate) moves: u64,
}

impl Ledger {
    pub(crate) fn new(cores: usize) -> Self {
        let cores = vec![CoreQueues::default(); cores];
        let (live, hosts, addresses) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { live, cores, hosts, addresses, moves: 0 }
    }

    /// A queue has connected.
    pub(crate) fn attach(&mut self, place: Place, record: QueueRecord) {
        let core = &mut self.cores[place.core];
        if record.qid.is_admin() {
            core.admin_queues += 1;
        } else {
            core.io_queues += 1;
        }
        let host = (record.subsystem.clone(), record.host.clone());
        if !self.hosts.contains_key(&host) {
            self.make_room();
        }
        let host = self.hosts.entry(host).or_default();
        host.connected += 1;
        host.is_timed_out = false;
        let address = (record.local, record.is_rdma);
        if !self.addresses.contains_key(&address) {
            self.make_room_for_address();
        }
        let address = self.addresses.entry(address).or_default();
        address.queues += 1;
        address.queues_ever += 1;
        self.live.insert(place, record);
    }

    /// A queue is gone, if it had connected.
    pub(crate) fn detach(&mut self, place: Place) {
        let Some(record) = self.live.remove(&place) else { return };
        let totals = record.counters.totals();
        if !record.qid.is_admin() {
            self.cores[place.core].close(&record);
        }
        if let Some(address) = self.addresses.get_mut(&(record.local, record.is_rdma)) {
            address.totals.add(&totals);
            address.queues -= 1;
        }
        if let Some(host) = self.hosts.get_mut(&(record.subsystem, record.host)) {
            host.closed.add(&totals);
            host.connected -= 1;
        }
    }

    /// A controller is given up because the keep alive timer of its host has run out.
    pub(crate) fn note_keep_alive_timeout(&mut self, subsystem: &Nqn, host: &HostNqn) {
        if let Some(host) = self.hosts.get_mut(&(subsystem.clone(), host.clone())) {
            host.keep_alive_timeouts += 1;
            host.is_timed_out = true;
        }
    }

    /// A queue has moved to another core. What it has done so far stays with the core that it comes from.
    pub(crate) fn moved(&mut self, from: Place, to: Place) {
        let Some(mut record) = self.live.remove(&from) else { return };
        self.cores[from.core].close(&record);
        record.before = record.counters.totals();
        self.moves += 1;
        self.live.insert(to, record);
    }

    /// The subsystem is gone, and with it what its hosts have done.
    pub(crate) fn forget(&mut self, subsystem: &Nqn) {
        self.hosts.retain(|(of, _), host| of != subsystem || host.connected > 0);
    }

    /// Forgets a host that is not connected, when [`MAX_REMEMBERED_HOSTS`] are kept.
    fn make_room(&mut self) {
        if self.hosts.len() < MAX_REMEMBERED_HOSTS {
            return;
        }
        let gone = self.hosts.iter().find(|(_, host)| host.connected == 0).map(|(key, _)| key);
        if let Some(key) = gone.cloned() {
            self.hosts.remove(&key);
        }
    }

    /// Forgets an address without a connection, when [`MAX_REMEMBERED_ADDRESSES`] are kept.
    fn make_room_for_address(&mut self) {
        if self.addresses.len() < MAX_REMEMBERED_ADDRESSES {
            return;
        }
        let gone = self.addresses.iter().find(|(_, address)| address.queues == 0);
        if let Some(key) = gone.map(|(key, _)| *key) {
            self.addresses.remove(&key);
        }
    }

    /// What has come by each local address and transport, closed queues included.
    pub(crate) fn by_address(&self) -> BTreeMap<(SocketAddr, bool), AddressStats> {
        let mut all: BTreeMap<_, _> =
            self.addresses.iter().map(|(key, address)| (*key, *address)).collect();
        for record in self.live.values() {
            if let Some(address) = all.get_mut(&(record.local, record.is_rdma)) {
                address.totals.add(&record.counters.totals());
            }
        }
        all
    }

    /// Connected queues of one core: admin queues, I/O queues, and what all its I/O queues have done.
    pub(crate) fn of_core(&self, core: usize) -> (usize, usize, QueueTotals) {
        let (mut admin, mut io, mut totals) = (0, 0, self.cores[core].closed);
        for (_, record) in self.live.iter().filter(|(place, _)| place.core == core) {
            if record.qid.is_admin() {
                admin += 1;
            } else {
                io += 1;
                totals.add(&record.here());
            }
        }
        (admin, io, totals)
    }

    /// Of these, the queues over RDMA: admin queues, I/O queues, and how often all I/O queues over RDMA have waited for a
    /// buffer.
    pub(crate) fn rdma_of_core(&self, core: usize) -> (usize, usize, u64) {
        let (mut admin, mut io, mut waits) = (0, 0, self.cores[core].closed_rdma_waits);
        let here = self.live.iter().filter(|(place, record)| place.core == core && record.is_rdma);
        for (_, record) in here {
            if record.qid.is_admin() {
                admin += 1;
            } else {
                io += 1;
                waits += record.here().buffer_waits;
            }
        }
        (admin, io, waits)
    }

    /// Every remembered host with or without queues: subsystem, host, what it and its queues have done, its present number
    /// of controllers and I/O queues.
    pub(crate) fn by_host(&self) -> Vec<(Nqn, HostNqn, HostQueues, usize, usize)> {
        let mut hosts: HashMap<_, (HostQueues, HashSet<ControllerId>, usize)> =
            self.hosts.iter().map(|(key, host)| (key, (*host, HashSet::new(), 0))).collect();
        for record in self.live.values() {
            let key = (record.subsystem.clone(), record.host.clone());
            let Some((host, controllers, io_queues)) = hosts.get_mut(&key) else { continue };
            host.closed.add(&record.counters.totals());
            controllers.insert(record.cntlid);
            *io_queues += usize::from(!record.qid.is_admin());
        }
        let mut list: Vec<_> = hosts
            .into_iter()
            .map(|((nqn, host), (queues, controllers, io_queues))| {
                (nqn.clone(), host.clone(), queues, controllers.len(), io_queues)
            })
            .collect();
        list.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::names::ConnKey;

    fn record(qid: u16, host: &str) -> (Place, QueueRecord) {
        let place = Place { core: 0, key: ConnKey { index: qid.into(), generation: 0 } };
        let address = "127.0.0.1:1".parse().unwrap();
        let record = QueueRecord {
            qid: QueueId(qid),
            entries: 2,
            cntlid: ControllerId(1),
            subsystem: Nqn::new("nqn.2026-01.io.raceline:s").unwrap(),
            host: HostNqn::Named(Nqn::new(host).unwrap()),
            hostid: HostId([0; 16]),
            peer: address,
            local: address,
            is_rdma: false,
            counters: Arc::default(),
            before: QueueTotals::default(),
        };
        (place, record)
    }

    #[test]
    fn counts_outlive_their_queue() {
        let mut ledger = Ledger::new(1);
        for qid in 0..3 {
            let (place, record) = record(qid, "nqn.2026-01.io.raceline:h");
            record.counters.reads_buffered.add(10);
            ledger.attach(place, record);
            assert_eq!(ledger.of_core(0).2.reads, u64::from(qid) * 10, "I/O queues only");
        }
        let (place, _) = record(1, "nqn.2026-01.io.raceline:h");
        ledger.detach(place);
        ledger.detach(place);
        let (admin, io, totals) = ledger.of_core(0);
        assert_eq!((admin, io, totals.reads), (1, 1, 20));
        let [(_, _, host, controllers, io_queues)] = &ledger.by_host()[..] else {
            panic!("one host")
        };
        assert_eq!((host.closed.reads, *controllers, *io_queues), (30, 1, 1));
        assert_eq!((ledger.cores[0].admin_queues, ledger.cores[0].io_queues), (1, 2));
    }

    #[test]
    fn what_a_queue_has_done_stays_where_it_was_done() {
        let mut ledger = Ledger::new(2);
        let (from, record) = record(1, "nqn.2026-01.io.raceline:h");
        let counters = Arc::clone(&record.counters);
        ledger.attach(from, record);
        counters.reads_buffered.add(10);
        let to = Place { core: 1, ..from };
        ledger.moved(from, to);
        counters.reads_buffered.add(5);
        assert_eq!([0, 1].map(|core| ledger.of_core(core).2.reads), [10, 5]);
        ledger.moved(to, from);
        counters.reads_buffered.add(1);
        ledger.detach(from);
        assert_eq!([0, 1].map(|core| ledger.of_core(core).2.reads), [11, 5]);
        assert_eq!((ledger.by_host()[0].2.closed.reads, ledger.moves), (16, 2));
    }

    #[test]
    fn a_listener_keeps_the_counts_of_its_closed_queues() {
        let mut ledger = Ledger::new(1);
        for qid in 0..3 {
            let (place, mut record) = record(qid, "nqn.2026-01.io.raceline:h");
            // One of three came by RDMA at the same address.
            record.is_rdma = qid == 2;
            record.counters.reads_buffered.add(10);
            record.counters.read_bytes.add(u64::from(qid));
            ledger.attach(place, record);
        }
        let (place, first) = record(1, "nqn.2026-01.io.raceline:h");
        ledger.detach(place);
        ledger.detach(place);
        let all = ledger.by_address();
        let of = |is_rdma| {
            let address: AddressStats = all[&(first.local, is_rdma)];
            let AddressStats { queues, queues_ever, totals } = address;
            (queues, queues_ever, totals.reads, totals.read_bytes)
        };
        assert_eq!((of(false), of(true), all.len()), ((1, 2, 20, 1), (1, 1, 10, 2), 2));
    }

    #[test]
    fn a_host_that_comes_back_is_no_longer_timed_out() {
        let mut ledger = Ledger::new(1);
        let (place, first) = record(0, "nqn.2026-01.io.raceline:h");
        let (subsystem, host) = (first.subsystem.clone(), first.host.clone());
        let state = |ledger: &Ledger| {
            let (_, _, host, controllers, _) = ledger.by_host()[0].clone();
            (host.keep_alive_timeouts, host.is_timed_out, controllers)
        };
        ledger.attach(place, first.clone());
        ledger.note_keep_alive_timeout(&subsystem, &host);
        ledger.detach(place);
        assert_eq!(state(&ledger), (1, true, 0));
        ledger.attach(place, first);
        assert_eq!(state(&ledger), (1, false, 1));
        ledger.note_keep_alive_timeout(&subsystem, &HostNqn::Unnamed);
        assert_eq!(state(&ledger), (1, false, 1));
    }

    #[test]
    fn addresses_do_not_fill_the_memory() {
        let mut ledger = Ledger::new(1);
        for number in 0..MAX_REMEMBERED_ADDRESSES * 2 {
            let (place, mut record) = record(0, "nqn.2026-01.io.raceline:h");
            record.local.set_port(u16::try_from(number).unwrap());
            ledger.attach(place, record);
            ledger.detach(place);
        }
        assert_eq!(ledger.by_address().len(), MAX_REMEMBERED_ADDRESSES);
    }

    #[test]
    fn names_do_not_fill_the_memory() {
        let mut ledger = Ledger::new(1);
        for number in 0..MAX_REMEMBERED_HOSTS * 2 {
            let (place, record) = record(0, &format!("nqn.2026-01.io.raceline:{number}"));
            ledger.attach(place, record);
            ledger.detach(place);
        }
        assert_eq!(ledger.hosts.len(), MAX_REMEMBERED_HOSTS);
    }
}
