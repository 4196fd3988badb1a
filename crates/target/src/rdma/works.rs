//! What all connections of a device share: the device, and the memory for data.

use raceline_rdma::TargetPort;
use raceline_rdma::verbs::{ConnectionId, Region};

use super::buffers::Buffers;
use super::config::Device;
use super::places::Places;
use super::sources::{SourceId, Sources};

/// The device, and the memory for data.
pub(super) struct Works {
    pub(super) port: TargetPort<Device>,
    /// For data from hosts.
    pub(super) fetched: Buffers,
    /// For data to hosts.
    pub(super) given: Buffers,
    /// What hosts have of both.
    pub(super) sources: Sources,
    /// Where data for hosts are that need no copy.
    pub(super) places: Places,
    /// Connections that have found no buffer.
    pub(super) starved: Vec<ConnectionId>,
    /// A buffer has come back since the starved ones have tried.
    pub(super) released: bool,
}

impl Works {
    /// A buffer for data from a host. `None`: the host has its share, or there is none.
    pub(super) fn take_fetched(&mut self, source: SourceId, len: u32) -> Option<Region> {
        let held = self.sources.held(source);
        if !self.fetched.may_hold(held.fetched, len) {
            return None;
        }
        let region = self.fetched.take(self.port.provider(), len)?;
        held.fetched += u64::from(region.len);
        Some(region)
    }

    /// A buffer for data to a host. `None`: the host has its share, or there is none.
    pub(super) fn take_given(&mut self, source: SourceId, len: u32) -> Option<Region> {
        let held = self.sources.held(source);
        if !self.given.may_hold(held.given, len) {
            return None;
        }
        let region = self.given.take(self.port.provider(), len)?;
        held.given += u64::from(region.len);
        Some(region)
    }

    pub(super) fn give_fetched(&mut self, source: SourceId, region: Region) {
        self.sources.held(source).fetched -= u64::from(region.len);
        self.fetched.give(self.port.provider(), region);
        self.released = true;
    }

    pub(super) fn give_given(&mut self, source: SourceId, region: Region) {
        self.sources.held(source).given -= u64::from(region.len);
        self.given.give(self.port.provider(), region);
        self.released = true;
    }
}
