//! What a target has and what it has done, for callers that list it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use raceline_bdev::SharedBdev;
use raceline_proto::controller::{Namespace, Visibility};
use raceline_proto::nvme::feature::WriteProtection;
use raceline_proto::nvme::{ControllerId, HostId, HostNqn, NamespaceId, Nqn, QueueId, Status};

use crate::changes::config::TargetError;
use crate::changes::control::{Control, Entry, State};
use crate::changes::target::Target;
use crate::records::counters::QueueTotals;
use crate::records::ledger::{AddressStats, QueueRecord};
use crate::records::names::Place;

/// A subsystem, as it is configured now.
#[derive(Clone)]
pub struct SubsystemInfo {
    /// Its name.
    pub nqn: Nqn,
    /// Serial number.
    pub serial: String,
    /// Model number.
    pub model: String,
    /// Most namespaces, and the greatest namespace number.
    pub max_namespaces: u32,
    /// The numbers that its controllers get.
    pub controller_ids: RangeInclusive<u16>,
    /// Any host may connect.
    pub allow_any_host: bool,
    /// The hosts that may connect otherwise.
    pub hosts: Vec<Nqn>,
    /// Its own listeners.
    pub listeners: Vec<SocketAddr>,
    /// Its namespaces, by ascending number.
    pub namespaces: Vec<NamespaceInfo>,
}

/// A namespace, as it is configured now.
#[derive(Clone)]
pub struct NamespaceInfo {
    /// Its number.
    pub nsid: NamespaceId,
    /// The device behind it.
    pub bdev: SharedBdev,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Its NGUID; zeroes are none.
    pub nguid: [u8; 16],
    /// Its EUI64; zeroes are none.
    pub eui64: [u8; 8],
    /// Which hosts see it.
    pub visibility: Visibility,
    /// Block size in bytes.
    pub block_size: u32,
    /// Capacity in blocks.
    pub block_count: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// Whether a host has write protected it.
    pub protection: WriteProtection,
    /// Bytes that it takes from the pool of its subsystem; `None`: it is not of the pool.
    pub pool_bytes: Option<u64>,
}

/// A controller: one association of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerInfo {
    /// Its subsystem, or the discovery service.
    pub nqn: Nqn,
    /// Its number in the subsystem.
    pub cntlid: ControllerId,
    /// Its host.
    pub host: HostNqn,
    /// The identifier of its host.
    pub hostid: HostId,
    /// I/O queues that are connected.
    pub io_queues: usize,
}

/// A queue, which is a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueInfo {
    /// Its subsystem, or the discovery service.
    pub nqn: Nqn,
    /// Its controller.
    pub cntlid: ControllerId,
    /// Its number in the controller; 0 is the admin queue.
    pub qid: QueueId,
    /// Entries of the queue: one more than the commands that the host may have outstanding.
    pub entries: u16,
    /// The core that it lives on, by its index in the target.
    pub core: usize,
    /// Its host.
    pub host: HostNqn,
    /// Where its host is.
    pub peer: SocketAddr,
    /// Where its host has connected to.
    pub local: SocketAddr,
    /// RDMA carries it, and not TCP.
    pub is_rdma: bool,
    /// What it has done.
    pub totals: QueueTotals,
}

/// The queues of one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollGroupStats {
    /// Admin queues that ever connected.
    pub admin_queues_ever: u64,
    /// I/O queues that ever connected.
    pub io_queues_ever: u64,
    /// Admin queues that are connected.
    pub admin_queues: usize,
    /// I/O queues that are connected.
    pub io_queues: usize,
    /// Sockets that have not completed Connect, or are closing.
    pub unassociated: usize,
    /// What its I/O queues have done so far. A command counts when it arrives, so the commands that are
    /// not completed are at most those outstanding. Commands waited for an I/O buffer `buffer_waits`
    /// times. `throttled` and `throttled_us` count the commands of its iSCSI sessions as well.
    pub totals: QueueTotals,
    /// What RDMA carries of it.
    pub rdma: RdmaQueues,
}

/// The queues over RDMA of one core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RdmaQueues {
    /// Admin queues that are connected.
    pub admin_queues: usize,
    /// I/O queues that are connected.
    pub io_queues: usize,
    /// How often their commands have waited for an I/O buffer, those of closed queues included.
    pub buffer_waits: u64,
}

/// What a host has done with a subsystem, over all its present and past queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostStats {
    /// The subsystem, or the discovery service.
    pub nqn: Nqn,
    /// The host.
    pub host: HostNqn,
    /// Its controllers now.
    pub controllers: usize,
    /// Its I/O queues now.
    pub io_queues: usize,
    /// Its controllers that were given up because its keep alive timer ran out.
    pub keep_alive_timeouts: u64,
    /// That has happened, and it has not connected since.
    pub is_timed_out: bool,
    /// What its queues have done.
    pub totals: QueueTotals,
}

impl Target {
    /// All subsystems, by name.
    #[must_use]
    pub fn subsystems(&self) -> Vec<SubsystemInfo> {
        let state = self.control.lock();
        state.subsystems.values().map(|entry| describe(&state, entry)).collect()
    }

    /// One subsystem.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn subsystem(&self, nqn: &Nqn) -> Result<SubsystemInfo, TargetError> {
        let state = self.control.lock();
        let entry = state.subsystems.get(nqn);
        let missing = || TargetError::NoSubsystem(nqn.clone());
        entry.map(|entry| describe(&state, entry)).ok_or_else(missing)
    }

    /// The addresses that the target listens on, and whether they lead to every subsystem.
    #[must_use]
    pub fn listeners(&self) -> Vec<(SocketAddr, bool)> {
        let state = self.control.lock();
        state.listeners.iter().map(|listener| (listener.address, listener.open)).collect()
    }

    /// The generation counter of the Discovery log (GENCTR).
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.control.lock().generation
    }

    /// The addresses that the Discovery log names as entrances to the discovery service.
    #[must_use]
    pub fn discovery_listeners(&self) -> Vec<SocketAddr> {
        let state = self.control.lock();
        addresses(&state, &state.discovery_ports)
    }

    /// The controllers of a subsystem or of the discovery service, by number.
    #[must_use]
    pub fn controllers(&self, nqn: &Nqn) -> Vec<ControllerInfo> {
        let queues = records(&self.control, nqn);
        let io_queues = |cntlid| {
            let of_controller = |(_, record): &&(Place, QueueRecord)| {
                record.cntlid == cntlid && !record.qid.is_admin()
            };
            queues.iter().filter(of_controller).count()
        };
        let admin = queues.iter().filter(|(_, record)| record.qid.is_admin());
        admin
            .map(|(_, record)| ControllerInfo {
                nqn: nqn.clone(),
                cntlid: record.cntlid,
                host: record.host.clone(),
                hostid: record.hostid,
                io_queues: io_queues(record.cntlid),
            })
            .collect()
    }

    /// The queues of a subsystem or of the discovery service, by controller and number.
    #[must_use]
    pub fn queues(&self, nqn: &Nqn) -> Vec<QueueInfo> {
        let queues = records(&self.control, nqn).into_iter();
        queues
            .map(|(place, record)| QueueInfo {
                nqn: record.subsystem,
                cntlid: record.cntlid,
                qid: record.qid,
                entries: record.entries,
                core: place.core,
                host: record.host,
                peer: record.peer,
                local: record.local,
                is_rdma: record.is_rdma,
                totals: record.counters.totals(),
            })
            .collect()
    }

    /// What has come by each local address, and whether by RDMA: a listener for TCP at all addresses may have the port of
    /// one for RDMA. The counts of closed queues stay, for the 4096 addresses that the target remembers.
    #[must_use]
    pub fn by_address(&self) -> BTreeMap<(SocketAddr, bool), AddressStats> {
        self.control.shared.ledger().by_address()
    }

    /// How many namespaces have registrants, and how many of these are held, by subsystem.
    #[must_use]
    pub fn reserved(&self) -> Vec<(Nqn, usize, usize)> {
        let state = self.control.lock();
        let of = |(nqn, entry): (&Nqn, &Entry)| {
            let all = entry.reservations.values().map(|kept| &kept.state);
            let registered = all.clone().filter(|state| !state.registrants.is_empty()).count();
            let held = all.filter(|state| state.held.is_some()).count();
            (nqn.clone(), registered, held)
        };
        state.subsystems.iter().map(of).filter(|(_, registered, _)| *registered > 0).collect()
    }

    /// How often commands of all hosts have ended with which error.
    #[must_use]
    pub fn statuses(&self) -> Vec<(Status, u64)> {
        self.control.shared.statuses.all()
    }

    /// What each core has, in the order of [`crate::TargetConfig::cores`].
    #[must_use]
    pub fn poll_groups(&self) -> Vec<PollGroupStats> {
        let connections = self.control.shared.loads();
        let ledger = self.control.shared.ledger();
        let groups = connections.into_iter().enumerate().map(|(core, connections)| {
            let (admin_queues, io_queues, mut totals) = ledger.of_core(core);
            let iscsi = &self.control.shared.iscsi_waits[core];
            totals.throttled += iscsi.count.get();
            totals.throttled_us += iscsi.us.get();
            let (rdma_admin, rdma_io, buffer_waits) = ledger.rdma_of_core(core);
            PollGroupStats {
                admin_queues_ever: ledger.cores[core].admin_queues,
                io_queues_ever: ledger.cores[core].io_queues,
                admin_queues,
                io_queues,
                unassociated: connections.saturating_sub(admin_queues + io_queues),
                totals,
                rdma: RdmaQueues { admin_queues: rdma_admin, io_queues: rdma_io, buffer_waits },
            }
        });
        groups.collect()
    }

    /// What each host has done with each subsystem. Hosts without a connection are listed, too, until
    /// the target forgets them: it remembers 4096 pairs of subsystem and host.
    #[must_use]
    pub fn hosts(&self) -> Vec<HostStats> {
        let hosts = self.control.shared.ledger().by_host().into_iter();
        hosts
            .map(|(nqn, host, queues, controllers, io_queues)| HostStats {
                nqn,
                host,
                controllers,
                io_queues,
                keep_alive_timeouts: queues.keep_alive_timeouts,
                is_timed_out: queues.is_timed_out,
                totals: queues.closed,
            })
            .collect()
    }
}

fn describe(state: &State, entry: &Entry) -> SubsystemInfo {
    let config = &entry.config;
    let namespaces = entry.namespaces.values().map(|exported| {
        let bdev = exported.bdev.clone();
        let Namespace { nsid, uuid, nguid, eui64, block_size, block_count, .. } =
            exported.namespace;
        NamespaceInfo {
            nsid,
            bdev,
            uuid,
            nguid,
            eui64,
            visibility: exported.namespace.visibility.clone(),
            block_size,
            block_count,
            read_only: exported.namespace.read_only,
            protection: exported.namespace.protection,
            pool_bytes: exported.namespace.pool_bytes,
        }
    });
    SubsystemInfo {
        nqn: config.nqn.clone(),
        serial: config.serial.clone(),
        model: config.model.clone(),
        max_namespaces: config.max_namespaces,
        controller_ids: config.controller_ids.clone(),
        allow_any_host: entry.any_host,
        hosts: entry.hosts.clone(),
        listeners: addresses(state, &entry.ports),
        namespaces: namespaces.collect(),
    }
}

/// The addresses of these ports, in the same order.
fn addresses(state: &State, ports: &[u16]) -> Vec<SocketAddr> {
    let listener = |id| state.listeners.iter().find(|listener| listener.port_id == id);
    ports.iter().filter_map(|&id| listener(id)).map(|listener| listener.address).collect()
}

/// The queues of a subsystem, by controller and number.
fn records(control: &Control, nqn: &Nqn) -> Vec<(Place, QueueRecord)> {
    let ledger = control.shared.ledger();
    let of_subsystem = ledger.live.iter().filter(|(_, record)| record.subsystem == *nqn);
    let mut records: Vec<_> =
        of_subsystem.map(|(place, record)| (*place, record.clone())).collect();
    records.sort_by_key(|(_, record)| (record.cntlid, record.qid));
    records
}
