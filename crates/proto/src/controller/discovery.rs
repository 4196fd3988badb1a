//! The Discovery log page of one host (Fabrics 1.1, 5.3).
//!
//! A host reads the page in pieces and checks with GENCTR that they belong together. All
//! pieces therefore come from the same snapshot as the first piece.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use zerocopy::IntoBytes;

use super::snapshot::{DiscoveryFilter, ListenerInfo, Referral, TargetSnapshot, Transport};
use super::subsystem::Limits;
use crate::nvme::discovery::{
    DiscoveryEntry, DiscoveryHeader, EFLAGS_DUPLICATE, EFLAGS_PERSISTENT, SECTYPE_TLS_1_3,
    SUBTYPE_CURRENT_DISCOVERY, SUBTYPE_NVM, SUBTYPE_REFERRAL, TREQ_DISABLE_SQ_FLOW,
    TREQ_SECURE_NOT_REQUIRED, TREQ_SECURE_REQUIRED, TRTYPE_TCP,
};
use crate::nvme::identify::ascii_field;
use crate::nvme::{ControllerId, HostNqn, Nqn, Status};
use crate::rdma::{PRTYPE_NONE, TRTYPE_RDMA, Tsas};

/// The limits that discovery controllers grant by default.
pub const DISCOVERY_LIMITS: Limits =
    Limits { max_admin_entries: 128, max_io_queues: 0, ..Limits::DEFAULT };

/// Header and entries have the same size.
const RECORD_LEN: usize = DiscoveryEntry::LEN;
const _: () = assert!(DiscoveryHeader::LEN == RECORD_LEN);

impl TargetSnapshot {
    /// What this target offers to any host, as it registers it with a centralized discovery controller: the subsystems
    /// that admit every host, and the entrances to the discovery service. A listener on every address is given without an
    /// address: it is where the registration comes from. Listeners on loopback are left out unless the other end is there
    /// as well.
    #[must_use]
    pub fn offered(&self, to_loopback: bool) -> Vec<DiscoveryEntry> {
        // Filters are about the connection that reads the log.
        let filter = DiscoveryFilter::default();
        let snapshot = Arc::new(Self { discovery_filter: filter, ..self.clone() });
        // An unspecified address stands for the one that the registration comes from.
        let anywhere = [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()];
        let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        let locals = anywhere.into_iter().chain(loopback.into_iter().filter(|_| to_loopback));
        let mut entries = Vec::new();
        for local in locals {
            let local = SocketAddr::new(local, 0);
            let log = DiscoveryLog::new(Arc::clone(&snapshot), &HostNqn::Unnamed, local);
            for record in log.own_records(&snapshot) {
                let mut entry = record.entry();
                if anywhere.iter().any(|ip| entry.traddr == ascii_field(&ip.to_string())) {
                    entry.traddr = [0; 256];
                }
                if !entries.contains(&entry) {
                    entries.push(entry);
                }
            }
        }
        entries
    }
}

/// The page as it was at one moment.
#[derive(Clone, Debug)]
struct Edition {
    /// GENCTR: the generation of the snapshot when what this host sees last changed.
    genctr: u64,
    snapshot: Arc<TargetSnapshot>,
}

/// The Discovery log of one association.
#[derive(Debug)]
pub(crate) struct DiscoveryLog {
    host: HostNqn,
    /// The address that the host connected to.
    local: SocketAddr,
    current: Edition,
    /// What the host is reading.
    reading: Edition,
}

impl DiscoveryLog {
    pub(crate) fn new(snapshot: Arc<TargetSnapshot>, host: &HostNqn, local: SocketAddr) -> Self {
        let current = Edition { genctr: snapshot.generation, snapshot };
        let local = SocketAddr::new(local.ip().to_canonical(), local.port());
        Self { host: host.clone(), local, reading: current.clone(), current }
    }

    /// Takes a new snapshot; says whether this host sees a difference.
    pub(crate) fn update(&mut self, snapshot: Arc<TargetSnapshot>) -> bool {
        let changed = !self.records(&self.current.snapshot).eq(self.records(&snapshot));
        let genctr = if changed { snapshot.generation } else { self.current.genctr };
        self.current = Edition { genctr, snapshot };
        changed
    }

    /// Copies the page from an offset on into a zeroed reply; says whether it is up to date.
    pub(crate) fn read(&mut self, offset: u64, reply: &mut [u8]) -> Result<bool, Status> {
        if offset == 0 {
            self.reading = self.current.clone();
        }
        let count = self.records(&self.reading.snapshot).count();
        let offset = usize::try_from(offset).map_err(|_| Status::INVALID_FIELD.dnr())?;
        if offset > (count + 1) * RECORD_LEN {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let header = DiscoveryHeader {
            genctr: self.reading.genctr.into(),
            numrec: (count as u64).into(),
            ..DiscoveryHeader::default()
        };
        let mut page = Copier { skip: offset, reply };
        page.copy(header.as_bytes());
        for record in self.records(&self.reading.snapshot) {
            if page.reply.is_empty() {
                break;
            }
            if !page.skips(RECORD_LEN) {
                page.copy(record.entry().as_bytes());
            }
        }
        Ok(self.reading.genctr == self.current.genctr)
    }

    /// What this host sees: its own records, the referrals to other places, and what has registered.
    fn records<'a>(
        &'a self,
        snapshot: &'a TargetSnapshot,
    ) -> impl Iterator<Item = Record<'a>> + 'a {
        let referrals =
            snapshot.referrals.iter().filter(|referral| referral.hosts.admits(&self.host));
        let registered = snapshot.registered.iter().flat_map(|it| it.iter());
        self.own_records(snapshot)
            .chain(referrals.map(Record::Referral))
            .chain(registered.map(Record::Registered))
    }

    /// The records of this target: every subsystem that admits it at every listener that leads there,
    /// and the entrances to this service.
    fn own_records<'a>(
        &'a self,
        snapshot: &'a TargetSnapshot,
    ) -> impl Iterator<Item = Record<'a>> + 'a {
        let admitted =
            snapshot.subsystems.iter().filter(|subsystem| subsystem.hosts.admits(&self.host));
        let subsystems = admitted.flat_map(move |subsystem| {
            let demanded = subsystem.demands(&self.host);
            let leads = move |l: &&ListenerInfo| l.leads_to(subsystem) && l.can_have(demanded);
            let listeners = snapshot.listeners.iter().filter(leads);
            listeners.filter_map(move |listener| {
                Some(Record::Subsystem {
                    nqn: &subsystem.nqn,
                    admin_entries: subsystem.limits.max_admin_entries,
                    place: self.place(snapshot, listener)?,
                })
            })
        });
        let entrances = snapshot.discovery_ports.iter().filter_map(move |&port_id| {
            let place = self.place(snapshot, snapshot.listener(port_id)?)?;
            let admin_entries = snapshot.discovery_limits.max_admin_entries;
            Some(Record::Entrance { admin_entries, place })
        });
        subsystems.chain(entrances)
    }

    fn place(&self, snapshot: &TargetSnapshot, listener: &ListenerInfo) -> Option<Place> {
        let address = self.address(snapshot, listener)?;
        let ListenerInfo { port_id, security, concatenates, transport, .. } = *listener;
        Some(Place { address, port_id, secure: security.tls, concatenates, transport })
    }

    /// The listener's address as this host can use it. A listener on every address is given as the
    /// address that the host connected to, and a loopback address only to hosts on loopback.
    fn address(&self, snapshot: &TargetSnapshot, listener: &ListenerInfo) -> Option<SocketAddr> {
        let (bound, local) = (listener.address.ip(), self.local.ip());
        let ip = if bound.is_unspecified() {
            (bound.is_ipv6() || local.is_ipv4()).then_some(local)?
        } else {
            (!bound.is_loopback() || local.is_loopback()).then_some(bound.to_canonical())?
        };
        let address = SocketAddr::new(ip, listener.address.port());
        let filter = snapshot.discovery_filter;
        let shown = !(filter.address && address.ip() != local
            || filter.service && address.port() != self.local.port());
        shown.then_some(address)
    }
}

/// A listener as a host sees it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    address: SocketAddr,
    port_id: u16,
    secure: bool,
    concatenates: bool,
    transport: Transport,
}

/// One entry of the page, before it is encoded.
#[derive(PartialEq, Eq)]
enum Record<'a> {
    /// An NVM subsystem at one listener.
    Subsystem { nqn: &'a Nqn, admin_entries: u16, place: Place },
    /// This discovery service at one listener.
    Entrance { admin_entries: u16, place: Place },
    /// Another place.
    Referral(&'a Referral),
    /// What a discovery controller has registered.
    Registered(&'a DiscoveryEntry),
}

impl Record<'_> {
    fn entry(&self) -> DiscoveryEntry {
        match *self {
            Self::Subsystem { nqn, admin_entries, place } => DiscoveryEntry {
                subtype: SUBTYPE_NVM,
                asqsz: admin_entries.into(),
                subnqn: nqn.to_field(),
                ..Self::here(place)
            },
            Self::Entrance { admin_entries, place } => DiscoveryEntry {
                subtype: SUBTYPE_CURRENT_DISCOVERY,
                asqsz: admin_entries.into(),
                eflags: (EFLAGS_DUPLICATE | EFLAGS_PERSISTENT).into(),
                subnqn: Nqn::discovery().to_field(),
                ..Self::here(place)
            },
            Self::Registered(entry) => *entry,
            Self::Referral(referral) => DiscoveryEntry {
                trtype: referral.trtype,
                adrfam: referral.adrfam,
                subtype: if referral.subnqn.is_discovery() {
                    SUBTYPE_REFERRAL
                } else {
                    SUBTYPE_NVM
                },
                treq: if referral.secure_channel {
                    TREQ_SECURE_REQUIRED
                } else {
                    TREQ_SECURE_NOT_REQUIRED
                },
                cntlid: ControllerId::DYNAMIC.0.into(),
                trsvcid: ascii_field(&referral.trsvcid),
                subnqn: referral.subnqn.to_field(),
                traddr: ascii_field(&referral.traddr),
                tsas: if referral.trtype == TRTYPE_RDMA {
                    Tsas::new(PRTYPE_NONE).to_bytes()
                } else {
                    [0; 256]
                },
                ..DiscoveryEntry::default()
            },
        }
    }

    /// What all entries for a listener of this target have in common.
    fn here(Place { address, port_id, secure, concatenates, transport }: Place) -> DiscoveryEntry {
        let ip = address.ip();
        let (treq, sectype) = match (secure, concatenates) {
            (true, false) => (TREQ_SECURE_REQUIRED, SECTYPE_TLS_1_3),
            // Hosts read this as: begin without TLS, and make the key by an authentication.
            (true, true) => (TREQ_SECURE_NOT_REQUIRED, SECTYPE_TLS_1_3),
            (false, _) => (TREQ_SECURE_NOT_REQUIRED, 0),
        };
        let (trtype, treq, tsas) = match transport {
            Transport::Tcp => {
                let mut tsas = [0; 256];
                tsas[0] = sectype;
                (TRTYPE_TCP, treq | TREQ_DISABLE_SQ_FLOW, tsas)
            }
            Transport::Rdma => (TRTYPE_RDMA, treq, Tsas::new(PRTYPE_NONE).to_bytes()),
        };
        DiscoveryEntry {
            trtype,
            adrfam: DiscoveryEntry::address_family(ip),
            treq,
            portid: port_id.into(),
            cntlid: ControllerId::DYNAMIC.0.into(),
            trsvcid: ascii_field(&address.port().to_string()),
            traddr: ascii_field(&ip.to_string()),
            tsas,
            ..DiscoveryEntry::default()
        }
    }
}

/// Copies a sequence of pieces from an offset on, as far as the reply reaches.
struct Copier<'a> {
    skip: usize,
    reply: &'a mut [u8],
}

impl Copier<'_> {
    /// Skips a piece of that length, if all of it is before the offset.
    fn skips(&mut self, len: usize) -> bool {
        let before = self.skip >= len;
        if before {
            self.skip -= len;
        }
        before
    }

    fn copy(&mut self, piece: &[u8]) {
        if self.skips(piece.len()) {
            return;
        }
        let rest = &piece[std::mem::take(&mut self.skip)..];
        let len = rest.len().min(self.reply.len());
        let (place, after) = std::mem::take(&mut self.reply).split_at_mut(len);
        place.copy_from_slice(&rest[..len]);
        self.reply = after;
    }
}
