//! The Discovery log page of one host (Fabrics 1.1, 5.3).
//!
//! A host reads the page in pieces and checks with GENCTR that they belong together. So the
//! pieces after the first come from the view that the first came from.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use zerocopy::IntoBytes;

use super::subsystem::{Limits, ListenerInfo, TargetView};
use crate::nvme::discovery::{
    DiscoveryEntry, DiscoveryHeader, SUBTYPE_NVM, TREQ_DISABLE_SQ_FLOW, TREQ_SECURE_NOT_REQUIRED,
    TRTYPE_TCP,
};
use crate::nvme::identify::ascii_field;
use crate::nvme::{ControllerId, HostNqn, Nqn, Status};

/// What discovery controllers grant.
pub const DISCOVERY_LIMITS: Limits =
    Limits { max_admin_entries: 128, max_io_queues: 0, ..Limits::DEFAULT };

/// Header and entries have the same size.
const RECORD_LEN: usize = DiscoveryEntry::LEN;
const _: () = assert!(DiscoveryHeader::LEN == RECORD_LEN);

/// The page as it was at one moment.
#[derive(Clone, Debug)]
struct Snapshot {
    /// GENCTR: the generation of the view when what this host sees last changed.
    genctr: u64,
    view: Arc<TargetView>,
}

/// The Discovery log of one association.
#[derive(Debug)]
pub(crate) struct DiscoveryLog {
    host: HostNqn,
    /// The address that the host connected to.
    local: IpAddr,
    current: Snapshot,
    /// What the host is reading.
    reading: Snapshot,
}

impl DiscoveryLog {
    pub(crate) fn new(view: Arc<TargetView>, host: &HostNqn, local: IpAddr) -> Self {
        let current = Snapshot { genctr: view.generation, view };
        Self { host: host.clone(), local: local.to_canonical(), reading: current.clone(), current }
    }

    /// Takes a new view; says whether this host sees a difference.
    pub(crate) fn update(&mut self, view: Arc<TargetView>) -> bool {
        let changed = !self.records(&self.current.view).eq(self.records(&view));
        let genctr = if changed { view.generation } else { self.current.genctr };
        self.current = Snapshot { genctr, view };
        changed
    }

    /// Copies the page from an offset on into a zeroed reply; says whether it is up to date.
    pub(crate) fn read(&mut self, offset: u64, reply: &mut [u8]) -> Result<bool, Status> {
        if offset == 0 {
            self.reading = self.current.clone();
        }
        let count = self.records(&self.reading.view).count();
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
        for record in self.records(&self.reading.view) {
            if page.reply.is_empty() {
                break;
            }
            if !page.skips(RECORD_LEN) {
                page.copy(record.entry().as_bytes());
            }
        }
        Ok(self.reading.genctr == self.current.genctr)
    }

    /// What this host sees: every subsystem that admits it, at every listener.
    fn records<'a>(&'a self, view: &'a TargetView) -> impl Iterator<Item = Record<'a>> + 'a {
        let admitted =
            view.subsystems.iter().filter(|subsystem| subsystem.hosts.admits(&self.host));
        admitted.flat_map(move |subsystem| {
            view.listeners.iter().filter_map(move |listener| {
                Some(Record {
                    nqn: &subsystem.nqn,
                    admin_entries: subsystem.limits.max_admin_entries,
                    address: self.address(listener)?,
                    port_id: listener.port_id,
                })
            })
        })
    }

    /// The listener's address as this host can use it: one that listens on every address is
    /// reached where this host reached us, and loopback only from loopback.
    fn address(&self, listener: &ListenerInfo) -> Option<SocketAddr> {
        let bound = listener.address.ip();
        if bound.is_unspecified() {
            let reachable = bound.is_ipv6() || self.local.is_ipv4();
            return reachable.then(|| SocketAddr::new(self.local, listener.address.port()));
        }
        let reachable = !bound.is_loopback() || self.local.is_loopback();
        reachable.then(|| SocketAddr::new(bound.to_canonical(), listener.address.port()))
    }
}

/// One entry of the page, before it is bytes.
#[derive(PartialEq, Eq)]
struct Record<'a> {
    nqn: &'a Nqn,
    admin_entries: u16,
    address: SocketAddr,
    port_id: u16,
}

impl Record<'_> {
    fn entry(&self) -> DiscoveryEntry {
        let ip = self.address.ip();
        DiscoveryEntry {
            trtype: TRTYPE_TCP,
            adrfam: DiscoveryEntry::address_family(ip),
            subtype: SUBTYPE_NVM,
            treq: TREQ_SECURE_NOT_REQUIRED | TREQ_DISABLE_SQ_FLOW,
            portid: self.port_id.into(),
            cntlid: ControllerId::DYNAMIC.0.into(),
            asqsz: self.admin_entries.into(),
            trsvcid: ascii_field(&self.address.port().to_string()),
            subnqn: self.nqn.to_field(),
            traddr: ascii_field(&ip.to_string()),
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
    /// Passes over a piece of that length, if all of it is before the offset.
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
