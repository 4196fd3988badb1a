//! Random operations, and what each must give, computed from vectors the slow way.

use std::ops::Range;
use std::sync::Arc;

use raceline_accel::{AccelError, Done, OpCode, Operation, Output, Part, Work};

use super::memory::Counted;
use super::random::Random;

/// What an operation must give.
#[derive(Debug)]
pub(crate) struct Expected {
    operation: Operation,
    /// `None`: compress, of which only the way back is known.
    output: Option<Output>,
    /// The bytes of each target, whole, once the operation has succeeded.
    targets: Vec<Vec<u8>>,
    /// The source, to compare what compress made of it.
    source: Vec<u8>,
}

/// CRC32C, bit by bit.
pub(crate) fn crc32c_by_bits(seed: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!seed, |register, &byte| {
        (0..8).fold(register ^ u32::from(byte), |register, _| {
            (register >> 1) ^ (0x82F6_3B78 * (register & 1))
        })
    })
}

/// How large operations get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Most bytes of an operand.
    pub(crate) bytes: usize,
    /// Most pieces.
    pub(crate) pieces: usize,
}

/// A random operation that is right, and what it must give.
pub(crate) fn random_work(
    random: &mut Random,
    sizes: Sizes,
    alive: &Arc<()>,
) -> (Work<Counted, Counted>, Expected) {
    let code = OpCode::ALL[random.below(OpCode::COUNT)];
    work_of(code, random, sizes, alive)
}

/// A random operation of one kind, and what it must give.
pub(crate) fn work_of(
    code: OpCode,
    random: &mut Random,
    sizes: Sizes,
    alive: &Arc<()>,
) -> (Work<Counted, Counted>, Expected) {
    let len = match random.below(8) {
        0 => 0,
        1 => sizes.bytes,
        _ => random.below(sizes.bytes + 1),
    };
    let mut bytes = random.bytes(len);
    if random.one_in(3) {
        bytes.fill(0x77); // something that compresses, and is often equal
    }
    let seed = if random.one_in(2) { 0 } else { random.next().to_le_bytes()[0].into() };
    let mut operands = Operands { random, sizes, alive, targets: Vec::new() };
    let (work, output) = match code {
        OpCode::Crc32c => {
            let digest = Output::Crc32c(crc32c_by_bits(seed, &bytes));
            (Work::crc32c(seed, operands.source(&bytes)), Some(digest))
        }
        OpCode::Copy => {
            let source = operands.source(&bytes);
            (Work::copy(source, operands.target(&bytes)), Some(Output::Nothing))
        }
        OpCode::CopyCrc32c => {
            let digest = Output::Crc32c(crc32c_by_bits(seed, &bytes));
            let source = operands.source(&bytes);
            (Work::copy_crc32c(seed, source, operands.target(&bytes)), Some(digest))
        }
        OpCode::Fill => {
            let byte = operands.random.next().to_le_bytes()[0];
            (Work::fill(byte, operands.target(&vec![byte; len])), Some(Output::Nothing))
        }
        OpCode::DualCast => {
            let source = operands.source(&bytes);
            let (first, second) = (operands.target(&bytes), operands.target(&bytes));
            (Work::dual_cast(source, first, second), Some(Output::Nothing))
        }
        OpCode::Compare => {
            let mut other = bytes.clone();
            if len > 0 && operands.random.one_in(2) {
                let at = operands.random.below(len);
                other[at] ^= 1 << operands.random.below(8);
            }
            let equal = Output::Equal(other == bytes);
            (Work::compare(operands.source(&bytes), operands.source(&other)), Some(equal))
        }
        OpCode::Compress => {
            let level = operands.random.next().to_le_bytes()[0];
            let target = Part::whole(operands.memory(&vec![0x11; len + len / 8 + 64]));
            (Work::compress(level, operands.source(&bytes), target), None)
        }
        OpCode::Decompress => {
            let stream = deflate(&bytes);
            let source = operands.source(&stream);
            (Work::decompress(source, operands.target(&bytes)), Some(Output::Written(len)))
        }
    };
    let targets = operands.targets;
    let operation = work.operation();
    (work, Expected { operation, output, targets, source: bytes })
}

/// Checks a completion; what went wrong is returned.
pub(crate) fn check(
    done: &Done<Counted, Counted>,
    expected: &Expected,
    allow: impl FnOnce(AccelError) -> bool,
) -> Result<(), String> {
    let fail = |what: &str| Err(format!("{what}: {:?} of {:?}", done.result, expected.operation));
    let output = match done.result {
        Ok(output) => output,
        Err(error) if allow(error) => return Ok(()),
        Err(_) => return fail("failed"),
    };
    let Some(work) = &done.work else { return fail("succeeded without its memory") };
    let targets: Vec<&Counted> = work.targets().collect();
    if !work.sources().chain(work.targets()).all(Counted::is_unharmed) {
        return fail("wrote outside");
    }
    match expected.output {
        Some(expected) if expected != output => return fail("wrong output"),
        Some(_) => {}
        None => {
            let Output::Written(len) = output else { return fail("wrong kind of output") };
            if inflate(&targets[0].bytes()[..len]) != expected.source {
                return fail("what was compressed is not the source");
            }
            return Ok(());
        }
    }
    for (target, expected) in targets.iter().zip(&expected.targets) {
        if target.bytes() != *expected {
            return fail("wrong bytes in a target");
        }
    }
    Ok(())
}

struct Operands<'a> {
    random: &'a mut Random,
    sizes: Sizes,
    alive: &'a Arc<()>,
    /// What they must hold, whole, in the order of creation.
    targets: Vec<Vec<u8>>,
}

impl Operands<'_> {
    fn memory(&mut self, bytes: &[u8]) -> Counted {
        Counted::new(bytes, self.sizes.pieces, self.random, self.alive)
    }

    /// Something around `bytes`, or nothing, and where they are in it.
    fn surround(&mut self, bytes: &[u8]) -> (Vec<u8>, Option<Range<usize>>) {
        if self.random.one_in(2) {
            return (bytes.to_vec(), None);
        }
        let mut around = vec![0xab; self.random.below(5000)];
        let start = around.len();
        around.extend_from_slice(bytes);
        let end = around.len();
        around.extend(std::iter::repeat_n(0xba, self.random.below(50)));
        (around, Some(start..end))
    }

    fn source(&mut self, bytes: &[u8]) -> Part<Counted> {
        let (memory, range) = self.surround(bytes);
        let memory = self.memory(&memory);
        part(memory, range)
    }

    /// A target that must become `bytes`.
    fn target(&mut self, bytes: &[u8]) -> Part<Counted> {
        let (expected, range) = self.surround(bytes);
        let mut before = expected.clone();
        before[range.clone().unwrap_or(0..bytes.len())].fill(0xee);
        let memory = self.memory(&before);
        self.targets.push(expected);
        part(memory, range)
    }
}

fn part(memory: Counted, range: Option<Range<usize>>) -> Part<Counted> {
    match range {
        None => Part::whole(memory),
        Some(range) => Part::range(memory, range),
    }
}

/// A raw DEFLATE stream of stored blocks (RFC 1951 section 3.2.4), so that the way back is tested
/// without the way there.
fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    let mut blocks = bytes.chunks(60_000).peekable();
    if blocks.peek().is_none() {
        return vec![1, 0, 0, 0xff, 0xff];
    }
    while let Some(block) = blocks.next() {
        let len = u16::try_from(block.len()).unwrap();
        stream.push(u8::from(blocks.peek().is_none()));
        stream.extend_from_slice(&len.to_le_bytes());
        stream.extend_from_slice(&(!len).to_le_bytes());
        stream.extend_from_slice(block);
    }
    stream
}

/// What a raw DEFLATE stream holds.
pub(crate) fn inflate(stream: &[u8]) -> Vec<u8> {
    use std::io::Read;
    let mut bytes = Vec::new();
    flate2::read::DeflateDecoder::new(stream).read_to_end(&mut bytes).unwrap();
    bytes
}
