//! Requests of a block device as guests write them (VIRTIO 1.2, 5.2.6).

use raceline_bdev::OpKind;

use crate::config::{Facts, MAX_RANGE_SECTORS, MAX_RANGES, SECTOR};
use crate::memory::{Memory, Segment};
use crate::ring::{Chain, Fault};

/// Bytes of a request's header.
const HEADER_LEN: u32 = 16;
/// Bytes of a range to discard or zero.
const RANGE_LEN: usize = 16;

/// The last byte of a request: how it has ended.
pub(crate) mod status {
    /// Well.
    pub(crate) const OK: u8 = 0;
    /// Not.
    pub(crate) const IO_ERROR: u8 = 1;
    /// It is not there.
    pub(crate) const UNSUPPORTED: u8 = 2;
}

mod kind {
    pub(super) const READ: u32 = 0;
    pub(super) const WRITE: u32 = 1;
    pub(super) const FLUSH: u32 = 4;
    pub(super) const IDENTIFY: u32 = 8;
    pub(super) const DISCARD: u32 = 11;
    pub(super) const ZEROES: u32 = 13;
}

/// A range of the device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// The device may release it.
    pub(crate) unmap: bool,
}

/// What is to be done. Lengths are of whole blocks inside of the device.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Data from the device.
    Read { offset: u64, len: u64 },
    /// Data to the device.
    Write { offset: u64, len: u64 },
    /// Everything before it on stable media.
    Flush,
    /// The device's identity.
    Identify,
    /// These ranges released, or zeroed.
    Ranges { zeroes: bool, list: Box<[Extent]> },
}

impl Work {
    /// What kind of request it is, and its bytes. The identity is of none of the kinds that are counted.
    pub(crate) fn measure(&self) -> (OpKind, u64) {
        match self {
            Self::Read { len, .. } => (OpKind::Read, *len),
            Self::Write { len, .. } => (OpKind::Write, *len),
            Self::Flush => (OpKind::Flush, 0),
            Self::Identify => (OpKind::Find, 0),
            Self::Ranges { zeroes, list } => {
                let kind = if *zeroes { OpKind::WriteZeroes } else { OpKind::Deallocate };
                (kind, list.iter().map(|extent| extent.len).sum())
            }
        }
    }
}

/// The outer parts of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    kind: u32,
    sector: u64,
    /// Where its status belongs.
    pub(crate) status: u64,
}

/// Takes header and status off a chain, of which the data are left.
///
/// # Errors
/// When there is no room for them.
pub(crate) fn take_frame(memory: &Memory, chain: &mut Chain) -> Result<Frame, Fault> {
    let mut header = [0; HEADER_LEN as usize];
    if total(&chain.readable) < u64::from(HEADER_LEN) {
        return Err(Fault::Headless);
    }
    memory.gather(&chain.readable, 0, &mut header)?;
    drop_front(&mut chain.readable, HEADER_LEN);
    while chain.writable.last().is_some_and(|last| last.len == 0) {
        chain.writable.pop();
    }
    let last = chain.writable.last_mut().ok_or(Fault::Headless)?;
    last.len -= 1;
    let status = last.address.checked_add(u64::from(last.len)).ok_or(Fault::Headless)?;
    if !memory.contains(status, 1) {
        return Err(Fault::Headless);
    }
    let [k0, k1, k2, k3, _, _, _, _, s0, s1, s2, s3, s4, s5, s6, s7] = header;
    let kind = u32::from_le_bytes([k0, k1, k2, k3]);
    let sector = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
    Ok(Frame { kind, sector, status })
}

/// What a request asks for.
///
/// # Errors
/// The status with which it ends at once.
pub(crate) fn plan(
    facts: &Facts,
    memory: &Memory,
    frame: &Frame,
    chain: &Chain,
) -> Result<Work, u8> {
    let extent = |len: u64| facts.extent(frame.sector, len).ok_or(status::IO_ERROR);
    let writable = || if facts.read_only { Err(status::IO_ERROR) } else { Ok(()) };
    match frame.kind {
        kind::READ => {
            let len = total(&chain.writable);
            extent(len).map(|offset| Work::Read { offset, len })
        }
        kind::WRITE => {
            writable()?;
            let len = total(&chain.readable);
            extent(len).map(|offset| Work::Write { offset, len })
        }
        kind::FLUSH => Ok(Work::Flush),
        kind::IDENTIFY => Ok(Work::Identify),
        kind::DISCARD if facts.deallocates => {
            writable()?;
            ranges(facts, memory, chain, false)
        }
        kind::ZEROES => {
            writable()?;
            ranges(facts, memory, chain, true)
        }
        _ => Err(status::UNSUPPORTED),
    }
}

fn ranges(facts: &Facts, memory: &Memory, chain: &Chain, zeroes: bool) -> Result<Work, u8> {
    const UNMAP: u32 = 1;
    let bytes = usize::try_from(total(&chain.readable)).map_err(|_| status::IO_ERROR)?;
    let count = bytes / RANGE_LEN;
    if bytes % RANGE_LEN != 0 || count == 0 || count > MAX_RANGES {
        return Err(status::IO_ERROR);
    }
    let mut list = vec![Extent::default(); count];
    for (index, extent) in list.iter_mut().enumerate() {
        let mut raw = [0; RANGE_LEN];
        let read = memory.gather(&chain.readable, index * RANGE_LEN, &mut raw);
        read.map_err(|_| status::IO_ERROR)?;
        let [s0, s1, s2, s3, s4, s5, s6, s7, n0, n1, n2, n3, f0, f1, f2, f3] = raw;
        let sector = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
        let sectors = u32::from_le_bytes([n0, n1, n2, n3]);
        let flags = u32::from_le_bytes([f0, f1, f2, f3]);
        // 5.2.6.2: unknown flags, and UNMAP of a discard, are not supported.
        if flags & !UNMAP != 0 || (!zeroes && flags != 0) {
            return Err(status::UNSUPPORTED);
        }
        let len = u64::from(sectors) * SECTOR;
        let offset = facts.extent(sector, len).filter(|_| sectors <= MAX_RANGE_SECTORS);
        let offset = offset.ok_or(status::IO_ERROR)?;
        *extent = Extent { offset, len, unmap: flags & UNMAP != 0 };
    }
    Ok(Work::Ranges { zeroes, list: list.into() })
}

/// The bytes of segments.
pub(crate) fn total(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.len)).sum()
}

/// Removes bytes from the front.
fn drop_front(segments: &mut Vec<Segment>, mut bytes: u32) {
    let mut whole = 0;
    for segment in segments.iter_mut() {
        if segment.len > bytes {
            segment.len -= bytes;
            segment.address = segment.address.wrapping_add(u64::from(bytes));
            break;
        }
        bytes -= segment.len;
        whole += 1;
    }
    segments.drain(..whole);
}
