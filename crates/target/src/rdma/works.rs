//! What all connections of a device share: the device, and the memory for data.

use raceline_rdma::TargetPort;
use raceline_rdma::verbs::{ConnectionId, Region};

use super::buffers::Buffers;
use super::config::Device;
use super::places::Places;

/// The device, and the memory for data.
pub(super) struct Works {
    pub(super) port: TargetPort<Device>,
    /// For data from hosts.
    pub(super) fetched: Buffers,
    /// For data to hosts.
    pub(super) given: Buffers,
    /// Where data for hosts are that need no copy.
    pub(super) places: Places,
    /// Connections that have found no buffer.
    pub(super) starved: Vec<ConnectionId>,
    /// A buffer has come back since the starved ones have tried.
    pub(super) released: bool,
}

impl Works {
    pub(super) fn give_fetched(&mut self, region: Region) {
        self.fetched.give(self.port.provider(), region);
        self.released = true;
    }

    pub(super) fn give_given(&mut self, region: Region) {
        self.given.give(self.port.provider(), region);
        self.released = true;
    }
}
