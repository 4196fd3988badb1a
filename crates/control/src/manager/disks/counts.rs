//! What the disks of this machine and of its virtual machines have done, whatever kind they are of.

use raceline_bdev::DiskTotals;
use raceline_reactor::CoreLoop;
use raceline_ublk::Disk;
use raceline_vhost::Server;

use super::{Disks, UBLK, VHOST, nbd};

/// A disk and what it has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCounts {
    /// `vhost_blk`, `ublk` or `nbd`.
    pub kind: &'static str,
    /// The path of a disk of the kernel, or the name of a controller for a virtual machine.
    pub name: String,
    /// Its device.
    pub bdev_name: String,
    /// Since it was made; `None` while its device is missing.
    pub totals: Option<DiskTotals>,
    /// Its cores, and what their loops have done; none while its device is missing.
    pub cores: Vec<CoreLoop>,
}

impl Disks {
    /// All disks, those that wait for their devices included.
    #[must_use]
    pub fn counts(&self) -> Vec<DiskCounts> {
        let vhost = self.vhost.iter().map(|(name, disk)| DiskCounts {
            kind: VHOST,
            name: name.clone(),
            bdev_name: disk.params.bdev_name.clone(),
            totals: disk.server.as_ref().map(Server::totals),
            cores: disk.server.as_ref().map(Server::core_loops).unwrap_or_default(),
        });
        let ublk = self.ublk.iter().flat_map(|target| &target.disks).map(|(id, disk)| DiskCounts {
            kind: UBLK,
            name: raceline_ublk::path(*id),
            bdev_name: disk.params.bdev_name.clone(),
            totals: disk.disk.as_ref().map(Disk::totals),
            cores: disk.disk.as_ref().map(Disk::core_loops).unwrap_or_default(),
        });
        let nbd = self.nbd.iter().map(|(index, disk)| DiskCounts {
            kind: nbd::NBD,
            name: raceline_nbd::path(*index),
            bdev_name: disk.bdev_name.clone(),
            totals: disk.disk.as_ref().map(raceline_nbd::Disk::totals),
            cores: disk.disk.as_ref().map(raceline_nbd::Disk::core_loops).unwrap_or_default(),
        });
        vhost.chain(ublk).chain(nbd).collect()
    }
}
