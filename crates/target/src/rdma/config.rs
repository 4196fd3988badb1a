//! What an RDMA listener grants, and the memory that it uses.

use std::net::SocketAddr;
use std::time::Duration;

use raceline_proto::controller::rdma_in_capsule_bytes;
use raceline_proto::rdma::{CapsuleLimits, GrantLimits, MAX_DESCRIPTORS};
use raceline_rdma::verbs::ProviderError;
use raceline_rdma::waiting::WaitingDevice;
use raceline_rdma::{PortConfig, TargetQueueConfig};

use crate::changes::config::TargetConfig;

/// As many as SPDK's `max_srq_depth` unless set.
pub const SHARED_RECEIVES: u32 = 4096;

/// Entries of the completion queue of a core, as soft RoCE has them at most. Adapters have one entry more, round that up to a
/// power of two, and lock the memory: 32,768 entries of 64 bytes are 2 MiB for each core of each listener.
const COMPLETIONS: u32 = (1 << 15) - 1;

/// A device of a listener.
pub(super) type Device = Box<dyn WaitingDevice>;

/// Opens the device that has an address.
pub type OpenDevice =
    dyn Fn(SocketAddr) -> Result<Box<dyn WaitingDevice>, ProviderError> + Send + Sync;

/// What a listener for RDMA grants, and the memory that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaConfig {
    /// Entries of an admin queue.
    pub admin_entries: u16,
    /// Entries of an I/O queue.
    pub io_entries: u16,
    /// I/O queues of a controller.
    pub io_queues: u16,
    /// Bytes of data in a capsule of an I/O queue.
    pub in_capsule_bytes: u32,
    /// Bytes that a command moves.
    pub transfer_bytes: u32,
    /// Bytes of registered memory for data, besides the capsules of each queue. The cores share it out: each has a part of
    /// it, and at least four of the largest transfers.
    pub buffer_bytes: u64,
    /// Receives that all queue pairs of a listener on one core share, at most; 0: each has its own.
    pub shared_receives: u32,
    /// The device reads data of namespaces in memory where they are, without a copy. That memory is then pinned: all of it is
    /// allocated, and deallocated blocks give none of it back. Buffers of the cores are read in place in any case.
    pub reads_regions: bool,
    /// Queue pairs at a time on each core.
    pub connections: usize,
    /// A host that has taken nothing for this long loses its queue.
    pub stuck_after: Duration,
    /// Entries of the completion queue of each core: queue pairs whose completions do not fit are refused.
    pub completions: u32,
}

impl RdmaConfig {
    /// What agrees with the limits of a target: 64 MiB of memory for data (more for large transfers), 1024 queue pairs.
    #[must_use]
    pub fn of(config: &TargetConfig) -> Self {
        let transfer_bytes = config.max_io_bytes;
        Self {
            admin_entries: config.max_admin_entries,
            io_entries: config.max_queue_entries,
            io_queues: config.max_io_queues,
            in_capsule_bytes: rdma_in_capsule_bytes(config.in_capsule_bytes),
            transfer_bytes,
            buffer_bytes: (64 << 20).max(u64::from(transfer_bytes) * 4),
            shared_receives: SHARED_RECEIVES,
            reads_regions: false,
            connections: 1024,
            stuck_after: Duration::from_secs(30),
            completions: COMPLETIONS,
        }
    }

    /// Bytes for data that each of so many cores has.
    pub(super) fn buffer_bytes_of_core(&self, cores: usize) -> u64 {
        let cores = u64::try_from(cores).unwrap_or(u64::MAX).max(1);
        let least = u64::from(self.transfer_bytes) * 4;
        (self.buffer_bytes / cores).max(least.min(self.buffer_bytes))
    }

    /// Requests in the queue pair of the longest queue that hosts may have.
    fn requests(&self) -> u32 {
        let io = self.port().io;
        let admin = TargetQueueConfig::sends_for(self.admin_entries, &CapsuleLimits::admin(&io));
        TargetQueueConfig::sends_for(self.io_entries, &io).max(admin)
    }

    /// Whether a device with so many requests in a queue pair has the queues that hosts are offered (CAP.MQES). Hosts would
    /// try again and again to connect what it cannot have.
    ///
    /// # Errors
    /// What the device has, what is needed, and what to do.
    pub(super) fn check_requests(&self, device: &str, most: u32) -> Result<(), ProviderError> {
        let needed = self.requests();
        if needed <= most {
            return Ok(());
        }
        let (io, admin) = (self.io_entries, self.admin_entries);
        // Hosts may ask for one entry more than the commands that a queue holds.
        let depth = (most / 2).saturating_sub(1);
        let why = format!(
            "the device {device} takes {most} requests in a queue pair, and a queue of {} entries needs {needed} (I/O \
             queues may have {io} entries, admin queues {admin}): allow queues of {depth} commands at most \
             (--max-queue-depth; max_queue_depth and max_aq_depth of the transport), or listen at an address of another \
             device",
            io.max(admin)
        );
        Err(ProviderError::new("offering queues over RDMA", why))
    }

    pub(super) fn port(&self) -> PortConfig {
        PortConfig {
            grant: GrantLimits {
                admin_entries: self.admin_entries,
                io_entries: self.io_entries,
                io_queues: self.io_queues,
                reads: u8::MAX,
            },
            io: CapsuleLimits {
                in_capsule_bytes: self.in_capsule_bytes,
                descriptors: MAX_DESCRIPTORS,
                transfer_bytes: self.transfer_bytes,
            },
            shared_receives: self.shared_receives,
            connections: self.connections,
            stuck_after: self.stuck_after,
            establish_within: Duration::from_secs(10),
            drain_within: Duration::from_secs(2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_queue_fills_a_power_of_two() {
        // A single entry more doubles what an adapter locks.
        assert!((RdmaConfig::of(&TargetConfig::default()).completions + 1).is_power_of_two());
        assert_eq!((COMPLETIONS + 1) * 64, 2 << 20);
    }

    #[test]
    fn cores_share_the_memory_for_data_out() {
        let config =
            RdmaConfig { transfer_bytes: 1 << 20, ..RdmaConfig::of(&TargetConfig::default()) };
        assert_eq!(config.buffer_bytes, 64 << 20);
        let of = |cores| config.buffer_bytes_of_core(cores) >> 20;
        assert_eq!([of(0), of(1), of(2), of(16)], [64, 64, 32, 4]);
        assert_eq!(of(64), 4, "room for four of the largest transfers");
        // Whoever says less means it.
        let small = RdmaConfig { buffer_bytes: 3 << 20, ..config };
        assert_eq!(small.buffer_bytes_of_core(8), 3 << 20);
    }
}
