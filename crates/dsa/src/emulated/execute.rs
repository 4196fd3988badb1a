//! What the emulated device checks in a descriptor, and what it does to memory.

#![allow(unsafe_code)]

use std::ptr;

use raceline_crc32c::Crc32c;

use crate::descriptor::{
    BATCH_MIN, Completion, CompletionRecord, CrcSeed, DUALCAST_SAME_BITS, Descriptor,
    DescriptorSlot, DeviceOperation, Flags, Status,
};

/// What a work queue is configured for.
pub(super) struct Limits {
    pub(super) batch_max: usize,
    pub(super) transfer_bytes_max: u64,
}

/// What goes wrong with an operation.
#[derive(Clone, Copy)]
pub(super) enum Fault {
    /// It stops after this many bytes.
    Page { after: u32 },
    /// It fails with this status.
    Error(u8),
}

/// Bytes that are copied at a time, so that a CRC is of bytes that nothing changes.
const CHUNK_BYTES: usize = 4096;
/// What an undefined field holds, so that a reader of it notices (8.3.12).
const UNDEFINED: u32 = 0xDEAD_BEEF;
/// A page, for fault addresses (8.2.5: bits 11:0 may be reported as 0).
const PAGE_MASK: u64 = !0xFFF;

/// Whether a device executes this (5.4, 5.5); the status it refuses with if not.
pub(super) fn check(descriptor: &Descriptor, in_batch: bool, limits: &Limits) -> Result<(), u8> {
    use DeviceOperation as Op;
    let operation = Op::from_code(descriptor.operation_code()).ok_or(Status::BAD_OPERATION)?;
    if in_batch && matches!(operation, Op::Batch | Op::Drain) {
        return Err(Status::BAD_OPERATION);
    }
    if !descriptor.record_address().is_multiple_of(32) {
        return Err(0x1B);
    }
    if invalid_flags(descriptor, operation, in_batch) != Flags::NONE {
        return Err(Status::BAD_FLAGS);
    }
    if !reserved_is_zero(descriptor, operation) {
        return Err(Status::RESERVED_NOT_ZERO);
    }
    let size = u64::from(descriptor.transfer_size());
    match operation {
        Op::Nop | Op::Drain => return Ok(()),
        Op::Batch => {
            let allowed = BATCH_MIN..=limits.batch_max;
            let count = usize::try_from(size).unwrap_or(usize::MAX);
            if !allowed.contains(&count) {
                return Err(Status::BAD_DESCRIPTOR_COUNT);
            }
            let aligned = descriptor.source().is_multiple_of(64);
            return if aligned { Ok(()) } else { Err(Status::LIST_MISALIGNED) };
        }
        _ => {}
    }
    if size == 0 || size > limits.transfer_bytes_max {
        return Err(Status::BAD_TRANSFER_SIZE);
    }
    let (from, to) = (descriptor.source(), descriptor.destination());
    let overlap = |a: u64, b: u64| a.abs_diff(b) < size;
    match operation {
        Op::Dualcast => {
            let second = descriptor.second_destination();
            if (to ^ second) & DUALCAST_SAME_BITS != 0 {
                return Err(Status::DUALCAST_MISALIGNED);
            }
            if overlap(from, to) || overlap(from, second) || overlap(to, second) {
                return Err(Status::OVERLAP);
            }
        }
        Op::MemoryMove | Op::CopyCrc if overlap(from, to) => return Err(Status::OVERLAP),
        _ => {}
    }
    match (operation, descriptor.crc_seed()) {
        (Op::CrcGeneration | Op::CopyCrc, CrcSeed::At(address)) if !address.is_multiple_of(4) => {
            Err(Status::ADDRESS_MISALIGNED)
        }
        _ => Ok(()),
    }
}

/// Flags that this device does not know, or that are reserved for the operation (tables 5-3, 5-4),
/// and required ones that are missing (table 5-5).
fn invalid_flags(descriptor: &Descriptor, operation: DeviceOperation, in_batch: bool) -> Flags {
    use DeviceOperation as Op;
    let required = Flags::RECORD_ADDRESS_VALID.union(Flags::REQUEST_RECORD);
    let mut allowed = required;
    if in_batch {
        allowed = allowed.union(Flags::FENCE);
    }
    if matches!(operation, Op::MemoryMove | Op::Fill | Op::Dualcast | Op::CopyCrc) {
        allowed = allowed.union(Flags::CACHE_CONTROL).union(Flags::STRICT_ORDERING);
    }
    if operation == Op::Compare {
        allowed = allowed.union(Flags::CHECK_RESULT);
    }
    if matches!(operation, Op::CrcGeneration | Op::CopyCrc) {
        allowed = allowed.union(Flags::CRC_READ_SEED);
    }
    let flags = descriptor.flags();
    let mut invalid = flags.without(allowed);
    if matches!(operation, Op::Compare | Op::CrcGeneration | Op::CopyCrc | Op::Drain) {
        invalid = invalid.union(required.without(flags));
    }
    invalid
}

/// Whether the bytes that the operation does not use are zero (table 5-3). The completion
/// interrupt handle, bytes 36 and 37, is reserved because no interrupt is requested.
fn reserved_is_zero(descriptor: &Descriptor, operation: DeviceOperation) -> bool {
    use DeviceOperation as Op;
    let reserved: &[(usize, usize)] = match operation {
        Op::Nop | Op::Drain => &[(16, 64)],
        Op::Batch => &[(24, 32), (36, 64)],
        Op::MemoryMove | Op::Fill => &[(36, 64)],
        Op::Compare => &[(36, 40), (41, 64)],
        Op::Dualcast => &[(36, 40), (48, 64)],
        Op::CrcGeneration => match descriptor.crc_seed() {
            CrcSeed::Value(_) => &[(24, 32), (36, 40), (44, 64)],
            CrcSeed::At(_) => &[(24, 32), (36, 48), (56, 64)],
        },
        Op::CopyCrc => match descriptor.crc_seed() {
            CrcSeed::Value(_) => &[(36, 40), (44, 64)],
            CrcSeed::At(_) => &[(36, 48), (56, 64)],
        },
    };
    let bytes = descriptor.bytes();
    reserved.iter().all(|&(from, to)| bytes[from..to].iter().all(|byte| *byte == 0))
}

/// The completion of a descriptor that [`check`] refuses. The invalid flags stand in the place of the CRC
/// (8.2.6).
pub(super) fn refusal(descriptor: &Descriptor, status: u8) -> Completion {
    let operation = DeviceOperation::from_code(descriptor.operation_code());
    let crc = match (status, operation) {
        (Status::BAD_FLAGS, Some(operation)) => invalid_flags(descriptor, operation, false).bits(),
        _ => 0,
    };
    Completion {
        status: Status::Error(status),
        fault_on_write: false,
        result: 0,
        bytes_completed: 0,
        fault_address: 0,
        crc,
    }
}

/// An entry of a batch's list.
///
/// # Safety
///
/// At `list` there are more than `index` [`DescriptorSlot`]s.
pub(super) unsafe fn list_entry(list: u64, index: u32) -> Descriptor {
    let list: *const DescriptorSlot = ptr::with_exposed_provenance(address(list));
    // SAFETY: the caller's.
    unsafe { (*list.wrapping_add(usize::try_from(index).unwrap_or(0))).load() }
}

/// Writes a completion record.
///
/// # Safety
///
/// At `record` there is a [`CompletionRecord`].
pub(super) unsafe fn write_record(record: u64, completion: &Completion) {
    let record: *const CompletionRecord = ptr::with_exposed_provenance(address(record));
    // SAFETY: the caller's.
    unsafe { (*record).write(completion) };
}

/// Does what the descriptor says, up to a fault.
///
/// # Safety
///
/// [`check`] found it valid; the memory that it names is valid for the accesses, and nothing else writes
/// its destinations.
pub(super) unsafe fn execute(descriptor: &Descriptor, fault: Option<Fault>) -> Completion {
    let size = descriptor.transfer_size();
    let mut completion = Completion {
        status: Status::Success,
        fault_on_write: false,
        result: 0,
        bytes_completed: 0,
        fault_address: 0,
        crc: UNDEFINED,
    };
    let bytes = match fault {
        Some(Fault::Error(status)) => {
            completion.status = Status::Error(status);
            return completion;
        }
        Some(Fault::Page { after }) if after < size => {
            completion.status = Status::PageFault;
            completion.bytes_completed = after;
            after
        }
        _ => size,
    };
    // SAFETY: the caller's; no more than the transfer size is touched.
    unsafe { perform(descriptor, bytes, &mut completion) };
    if completion.status == Status::PageFault {
        let reads = matches!(
            DeviceOperation::from_code(descriptor.operation_code()),
            Some(DeviceOperation::Compare | DeviceOperation::CrcGeneration)
        );
        let place = if reads { descriptor.source() } else { descriptor.destination() };
        completion.fault_on_write = !reads;
        completion.fault_address = (place + u64::from(bytes)) & PAGE_MASK;
        if bytes == 0 {
            completion.crc = UNDEFINED;
        }
    }
    completion
}

/// Does the first `bytes` of an operation.
///
/// # Safety
///
/// As of [`execute`].
unsafe fn perform(descriptor: &Descriptor, bytes: u32, completion: &mut Completion) {
    use DeviceOperation as Op;
    let len = usize::try_from(bytes).unwrap_or(0);
    let source: *const u8 = ptr::with_exposed_provenance(address(descriptor.source()));
    let target: *mut u8 = ptr::with_exposed_provenance_mut(address(descriptor.destination()));
    // SAFETY: the caller's: `len` bytes at the addresses are valid, and targets overlap nothing.
    unsafe {
        match Op::from_code(descriptor.operation_code()) {
            Some(Op::MemoryMove) => ptr::copy_nonoverlapping(source, target, len),
            Some(Op::Fill) => {
                let pattern = descriptor.source().to_le_bytes();
                for at in 0..len {
                    *target.add(at) = pattern[at % pattern.len()];
                }
            }
            Some(Op::Dualcast) => {
                let second = address(descriptor.second_destination());
                let second: *mut u8 = ptr::with_exposed_provenance_mut(second);
                each_chunk(source, len, |at, chunk| {
                    ptr::copy_nonoverlapping(chunk.as_ptr(), target.add(at), chunk.len());
                    ptr::copy_nonoverlapping(chunk.as_ptr(), second.add(at), chunk.len());
                });
            }
            Some(Op::Compare) => {
                if let Some(at) = first_difference(source, target, len) {
                    // A difference is reported instead of the fault behind it (8.3.6).
                    completion.status = Status::Success;
                    completion.result = 1;
                    completion.bytes_completed = u32::try_from(at).unwrap_or(0);
                }
            }
            Some(Op::CrcGeneration) => {
                let mut crc = seed(descriptor);
                each_chunk(source, len, |_, chunk| crc.update(chunk));
                completion.crc = crc.finalize();
            }
            Some(Op::CopyCrc) => {
                let mut crc = seed(descriptor);
                each_chunk(source, len, |at, chunk| {
                    crc.update(chunk);
                    ptr::copy_nonoverlapping(chunk.as_ptr(), target.add(at), chunk.len());
                });
                completion.crc = crc.finalize();
            }
            Some(Op::Nop | Op::Drain | Op::Batch) | None => {}
        }
    }
}

/// The CRC to go on from.
///
/// # Safety
///
/// A seed in memory can be read.
unsafe fn seed(descriptor: &Descriptor) -> Crc32c {
    Crc32c::resume(match descriptor.crc_seed() {
        CrcSeed::Value(value) => value,
        CrcSeed::At(place) => {
            let place: *const u32 = ptr::with_exposed_provenance(address(place));
            // SAFETY: the caller's, and it was found aligned.
            u32::from_le(unsafe { place.read_volatile() })
        }
    })
}

/// Gives copies of the source's bytes, piece by piece, with their offset.
///
/// # Safety
///
/// `len` bytes at `source` can be read; others may change them.
unsafe fn each_chunk(source: *const u8, len: usize, mut use_chunk: impl FnMut(usize, &[u8])) {
    let mut chunk = [0; CHUNK_BYTES];
    for at in (0..len).step_by(CHUNK_BYTES) {
        let size = CHUNK_BYTES.min(len - at);
        // SAFETY: inside the source; the chunk is ours.
        unsafe { ptr::copy_nonoverlapping(source.add(at), chunk.as_mut_ptr(), size) };
        use_chunk(at, &chunk[..size]);
    }
}

/// Where two regions differ first.
///
/// # Safety
///
/// `len` bytes at both can be read; others may change them.
unsafe fn first_difference(first: *const u8, second: *const u8, len: usize) -> Option<usize> {
    let mut difference = None;
    // SAFETY: the caller's.
    unsafe {
        each_chunk(first, len, |at, chunk| {
            if difference.is_none() {
                let mut other = [0; CHUNK_BYTES];
                ptr::copy_nonoverlapping(second.add(at), other.as_mut_ptr(), chunk.len());
                let equal = chunk.iter().zip(&other).take_while(|(a, b)| a == b).count();
                difference = (equal < chunk.len()).then_some(at + equal);
            }
        });
    }
    difference
}

fn address(address: u64) -> usize {
    usize::try_from(address).unwrap_or(0)
}
