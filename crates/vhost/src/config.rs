//! What a guest is told of the device: features and configuration space (VIRTIO 1.2, 5.2.3 and 5.2.4).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use raceline_bdev::BdevInfo;

/// Bytes of a sector, in which requests count.
pub(crate) const SECTOR: u64 = 512;

/// Bytes of an identity.
pub(crate) const ID_LEN: usize = 20;

/// Most ranges of a discard or a write of zeroes.
pub(crate) const MAX_RANGES: usize = 16;

/// Most sectors of such a range: 1 GiB.
pub(crate) const MAX_RANGE_SECTORS: u32 = 1 << 21;

/// Most rings of a device.
pub const MAX_QUEUES: u16 = 64;

/// Data segments of a request, as QEMU's own device has it: with header and status the 128 entries of its ring.
const SEGMENTS: u32 = 126;

/// Bytes of the configuration space that front ends may ask for.
const SPACE_LEN: usize = 256;

/// Where the configuration space says whether writes may be cached.
const WRITEBACK: usize = 32;

/// Features of virtio, and of its block device.
pub(crate) mod feature {
    pub(crate) const SEG_MAX: u64 = 1 << 2;
    pub(crate) const RO: u64 = 1 << 5;
    pub(crate) const BLK_SIZE: u64 = 1 << 6;
    pub(crate) const FLUSH: u64 = 1 << 9;
    pub(crate) const TOPOLOGY: u64 = 1 << 10;
    pub(crate) const CONFIG_WCE: u64 = 1 << 11;
    pub(crate) const MQ: u64 = 1 << 12;
    pub(crate) const DISCARD: u64 = 1 << 13;
    pub(crate) const WRITE_ZEROES: u64 = 1 << 14;
    pub(crate) const RING_INDIRECT_DESC: u64 = 1 << 28;
    pub(crate) const RING_EVENT_IDX: u64 = 1 << 29;
    pub(crate) const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub(crate) const VERSION_1: u64 = 1 << 32;
}

/// What the threads of a server share of the device.
#[derive(Debug)]
pub(crate) struct Facts {
    /// The size; a resize changes it.
    bytes: AtomicU64,
    pub(crate) block_bytes: u32,
    physical_bytes: u32,
    pub(crate) read_only: bool,
    pub(crate) deallocates: bool,
    pub(crate) reads_in_place: bool,
    pub(crate) queues: u16,
    /// Writes may be cached until a flush.
    writeback: AtomicBool,
    pub(crate) id: [u8; ID_LEN],
}

impl Facts {
    pub(crate) fn new(info: &BdevInfo, read_only: bool, queues: u16, serial: &str) -> Self {
        let mut id = [0; ID_LEN];
        for (to, from) in id.iter_mut().zip(serial.bytes()) {
            *to = from;
        }
        Self {
            bytes: AtomicU64::new(bytes(info)),
            block_bytes: info.block_size,
            physical_bytes: info.physical_block_size.max(info.block_size),
            read_only: read_only || info.read_only,
            deallocates: info.deallocate,
            reads_in_place: info.reads_in_place,
            queues,
            writeback: AtomicBool::new(false),
            id,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Takes a new size over; true if it is another.
    pub(crate) fn resize(&self, info: &BdevInfo) -> bool {
        let new = bytes(info);
        self.bytes.swap(new, Ordering::AcqRel) != new
    }

    /// Whether a write is on stable media before it completes.
    pub(crate) fn writes_through(&self) -> bool {
        !self.writeback.load(Ordering::Relaxed)
    }

    pub(crate) fn set_writeback(&self, writeback: bool) {
        self.writeback.store(writeback, Ordering::Relaxed);
    }

    /// The offset in bytes of whole blocks inside of the device.
    pub(crate) fn extent(&self, sector: u64, len: u64) -> Option<u64> {
        let block = u64::from(self.block_bytes);
        let offset = sector.checked_mul(SECTOR)?;
        let end = offset.checked_add(len)?;
        let is_whole = offset.is_multiple_of(block) && len.is_multiple_of(block);
        (is_whole && len > 0 && end <= self.bytes()).then_some(offset)
    }

    pub(crate) fn features(&self) -> u64 {
        let mut features = feature::SEG_MAX
            | feature::BLK_SIZE
            | feature::FLUSH
            | feature::TOPOLOGY
            | feature::CONFIG_WCE
            | feature::RING_INDIRECT_DESC
            | feature::RING_EVENT_IDX
            | feature::PROTOCOL_FEATURES
            | feature::VERSION_1;
        if self.queues > 1 {
            features |= feature::MQ;
        }
        if self.read_only {
            return features | feature::RO;
        }
        if self.deallocates {
            features |= feature::DISCARD;
        }
        features | feature::WRITE_ZEROES
    }

    /// The configuration space. What is not set below is zero.
    pub(crate) fn space(&self) -> [u8; SPACE_LEN] {
        let mut space = [0; SPACE_LEN];
        let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
        let block_sectors = u64::from(self.block_bytes) / SECTOR;
        let exponent = (self.physical_bytes / self.block_bytes).checked_ilog2().unwrap_or(0);
        let range_sectors = MAX_RANGE_SECTORS.to_le_bytes();
        let ranges = u32::try_from(MAX_RANGES).unwrap_or(1).to_le_bytes();
        put(0, &(self.bytes() / SECTOR).to_le_bytes());
        put(12, &SEGMENTS.to_le_bytes());
        put(20, &self.block_bytes.to_le_bytes());
        put(24, &[u8::try_from(exponent).unwrap_or(0)]);
        put(WRITEBACK, &[u8::from(!self.writes_through())]);
        put(34, &self.queues.to_le_bytes());
        if self.deallocates {
            put(36, &range_sectors);
            put(40, &ranges);
            put(44, &u32::try_from(block_sectors).unwrap_or(1).to_le_bytes());
        }
        put(48, &range_sectors);
        put(52, &ranges);
        put(56, &[u8::from(self.deallocates)]);
        space
    }
}

/// What a guest that writes into the configuration space chooses: only [`WRITEBACK`] can be written.
pub(crate) fn chosen_writeback(offset: u32, bytes: &[u8]) -> Option<bool> {
    let at = (WRITEBACK as u64).checked_sub(u64::from(offset))?;
    bytes.get(usize::try_from(at).ok()?).map(|&value| value != 0)
}

fn bytes(info: &BdevInfo) -> u64 {
    info.block_count * u64::from(info.block_size)
}
