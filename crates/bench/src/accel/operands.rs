//! The memory that operations work on: as many sets of operands as the working set holds.

use std::mem::take;

use raceline_accel::{OpCode, Work};

use crate::random::Random;

/// One byte in this number of bytes to be compressed is random; the others repeat.
const COMPRESSIBLE_STEP: usize = 4;
/// A generous bound on the bytes that DEFLATE adds to data that do not compress.
const COMPRESSED_EXTRA_BYTES: usize = 64;
/// DEFLATE's effort, from 1 to 9.
const LEVEL: u8 = 1;
/// The byte for the fill operation.
const FILL: u8 = 0xA5;

/// The operands of one operation. Operands that the operation does not have are empty.
#[derive(Clone, Debug, Default)]
pub(super) struct Operands {
    pub(super) sources: [Vec<u8>; 2],
    pub(super) targets: [Vec<u8>; 2],
}

impl Operands {
    /// Operands of `size` bytes; those that the operation reads are random.
    pub(super) fn new(code: OpCode, size: usize, random: &mut Random) -> Self {
        let mut source = vec![0; size];
        random.fill(&mut source);
        if matches!(code, OpCode::Compress | OpCode::Decompress) {
            for (index, byte) in source.iter_mut().enumerate() {
                if !index.is_multiple_of(COMPRESSIBLE_STEP) {
                    *byte = FILL;
                }
            }
        }
        let target = || vec![0; size];
        let (none, mut operands) = (Vec::new(), Self::default());
        operands.targets = match code {
            OpCode::Crc32c | OpCode::Compare => [none, Vec::new()],
            OpCode::Copy | OpCode::Fill | OpCode::CopyCrc32c => [target(), none],
            OpCode::DualCast => [target(), target()],
            OpCode::Compress | OpCode::Decompress => {
                [vec![0; size + size / 8 + COMPRESSED_EXTRA_BYTES], none]
            }
        };
        operands.sources = match code {
            OpCode::Fill => [Vec::new(), Vec::new()],
            OpCode::Compare => [source.clone(), source],
            _ => [source, Vec::new()],
        };
        operands
    }

    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> usize {
        self.sources.iter().chain(&self.targets).map(Vec::len).sum()
    }

    /// The operation on these operands; they are absent until [`Self::put_back`].
    #[inline(always)]
    pub(super) fn take_work(&mut self, code: OpCode) -> Work<Vec<u8>, Vec<u8>> {
        let [source, other] = &mut self.sources;
        let [target, second] = &mut self.targets;
        match code {
            OpCode::Crc32c => Work::crc32c(0, take(source)),
            OpCode::Copy => Work::copy(take(source), take(target)),
            OpCode::Fill => Work::fill(FILL, take(target)),
            OpCode::Compare => Work::compare(take(source), take(other)),
            OpCode::DualCast => Work::dual_cast(take(source), take(target), take(second)),
            OpCode::CopyCrc32c => Work::copy_crc32c(0, take(source), take(target)),
            OpCode::Compress => Work::compress(LEVEL, take(source), take(target)),
            OpCode::Decompress => Work::decompress(take(source), take(target)),
        }
    }

    /// Takes back the memory of a completed operation.
    #[inline(always)]
    pub(super) fn put_back(&mut self, work: Work<Vec<u8>, Vec<u8>>) {
        let (sources, targets) = work.into_memory();
        for (place, memory) in self.sources.iter_mut().zip(sources) {
            *place = memory.unwrap_or_default();
        }
        for (place, memory) in self.targets.iter_mut().zip(targets) {
            *place = memory.unwrap_or_default();
        }
    }

    /// The same operation without the framework. Gives its digest, or 0; `None` if there is no obvious
    /// function to call.
    #[inline(always)]
    pub(super) fn run_directly(&mut self, code: OpCode) -> Option<u32> {
        let [source, other] = &self.sources;
        let [target, second] = &mut self.targets;
        match code {
            OpCode::Crc32c => return Some(crc_fast::crc32_iscsi(source)),
            OpCode::Copy => target.copy_from_slice(source),
            OpCode::Fill => target.fill(FILL),
            OpCode::Compare => return Some(u32::from(source == other)),
            OpCode::DualCast => {
                target.copy_from_slice(source);
                second.copy_from_slice(source);
            }
            OpCode::CopyCrc32c => {
                target.copy_from_slice(source);
                return Some(crc_fast::crc32_iscsi(target));
            }
            OpCode::Compress | OpCode::Decompress => return None,
        }
        Some(0)
    }

    /// Whether an operation with this digest, if it has one, gave the right result.
    pub(super) fn is_right(&self, code: OpCode, digest: Option<u32>) -> bool {
        let ([source, _], [target, second]) = (&self.sources, &self.targets);
        match code {
            OpCode::Crc32c => digest == Some(crc_fast::crc32_iscsi(source)),
            OpCode::Copy => target == source,
            OpCode::Fill => target.iter().all(|&byte| byte == FILL),
            OpCode::DualCast => target == source && second == source,
            OpCode::CopyCrc32c => target == source && digest == Some(crc_fast::crc32_iscsi(source)),
            // The framework's own tests check the results of these.
            OpCode::Compare | OpCode::Compress | OpCode::Decompress => true,
        }
    }
}

/// The function in [`Operands::run_directly`], in words.
pub(super) const fn direct_name(code: OpCode) -> &'static str {
    match code {
        OpCode::Crc32c => "crc-fast called directly",
        OpCode::CopyCrc32c => "memcpy, then crc-fast",
        OpCode::Copy => "memcpy",
        OpCode::Fill => "memset",
        OpCode::Compare => "memcmp",
        OpCode::DualCast => "memcpy twice",
        OpCode::Compress | OpCode::Decompress => "",
    }
}

/// Sets of operands, visited in an order that prefetchers cannot predict.
pub(super) struct WorkingSet {
    pub(super) operands: Vec<Operands>,
    order: Vec<usize>,
    cursor: usize,
}

impl WorkingSet {
    /// Operands of `bytes` in total, and at least `least` sets of them.
    pub(super) fn new(code: OpCode, size: usize, bytes: usize, least: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let first = Operands::new(code, size, &mut random);
        let count = bytes.div_ceil(first.bytes().max(1)).max(least).max(1);
        let mut operands = vec![first];
        operands.extend((1..count).map(|_| Operands::new(code, size, &mut random)));
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            let other = random.below(last as u64 + 1);
            order.swap(last, usize::try_from(other).unwrap_or(last));
        }
        Self { operands, order, cursor: 0 }
    }

    /// Bytes of all operands.
    pub(super) fn bytes(&self) -> usize {
        self.operands.iter().map(Operands::bytes).sum()
    }

    /// The next, among the first `limit` in order.
    #[inline]
    pub(super) fn next(&mut self, limit: usize) -> usize {
        if self.cursor >= limit {
            self.cursor = 0;
        }
        let index = self.order[self.cursor];
        self.cursor += 1;
        index
    }

    /// The order of the visits.
    pub(super) fn order(&self) -> &[usize] {
        &self.order
    }
}
