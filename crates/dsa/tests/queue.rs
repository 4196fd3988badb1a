//! The DSA queue over the emulated device: every operation against a naive model, and everything
//! that a device may do wrong.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use raceline_accel::{
    Engine, EngineQueue, OpCode, OpSet, Operation, Output, Piece, PieceMut, RawRequest, RawResult,
    Refused, SlotId, crc32c,
};
use raceline_dsa::EmulatedEngine;
use raceline_dsa::discover::Mode;
use raceline_dsa::emulated::EmulatedConfig;

/// No test waits longer than this for the device.
const LIMIT: Duration = Duration::from_secs(30);
const PAGE: usize = 4096;

/// A piece of memory at a chosen place in its page.
#[derive(Debug)]
struct Memory {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
    offset: usize,
}

impl Memory {
    fn new(offset: usize, data: &[u8]) -> Self {
        let mut bytes = vec![0; data.len() + 2 * PAGE];
        let start = bytes.as_ptr().addr().next_multiple_of(PAGE) - bytes.as_ptr().addr() + offset;
        bytes[start..start + data.len()].copy_from_slice(data);
        Self { bytes, start, len: data.len(), offset }
    }

    fn data(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    fn data_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

impl Clone for Memory {
    fn clone(&self) -> Self {
        Self::new(self.offset, self.data())
    }
}

/// An operand in pieces.
type Pieces = Vec<Memory>;

/// An operation with its memory.
#[derive(Clone, Debug)]
struct Case {
    operation: Operation,
    sources: [Pieces; 2],
    targets: [Pieces; 2],
}

fn joined(pieces: &Pieces) -> Vec<u8> {
    pieces.iter().flat_map(|piece| piece.data().iter().copied()).collect()
}

fn patterned(length: usize) -> Vec<u8> {
    let byte = |at: usize| (at * 31 + at / 251).to_le_bytes()[0];
    (0..length).map(byte).collect()
}

/// What comes before the data of a digest; its CRC is the seed.
const PREFIX: &[u8] = b"what came before";

impl Case {
    /// One of each kind. `cuts` are the lengths of the pieces of each operand, which all have the
    /// same sum.
    fn new(code: OpCode, offset: usize, cuts: &[Vec<usize>; 3]) -> Self {
        let seed = crc32c(PREFIX);
        let cut = |cuts: &[usize], data: &[u8]| {
            let mut at = 0;
            let pieces = cuts.iter().map(|length| {
                at += length;
                Memory::new(offset, &data[at - length..at])
            });
            pieces.collect::<Pieces>()
        };
        let data = patterned(cuts[0].iter().sum());
        let source = || cut(&cuts[0], &data);
        let target = |index: usize| cut(&cuts[index], &vec![0xEE; data.len()]);
        let none = Pieces::new;
        let (operation, sources, targets) = match code {
            OpCode::Copy => (Operation::Copy, [source(), none()], [target(1), none()]),
            OpCode::Fill => (Operation::Fill { byte: 0x5A }, [none(), none()], [target(1), none()]),
            OpCode::DualCast => (Operation::DualCast, [source(), none()], [target(1), target(2)]),
            OpCode::Compare => {
                (Operation::Compare, [source(), cut(&cuts[1], &data)], [none(), none()])
            }
            OpCode::Crc32c => (Operation::Crc32c { seed }, [source(), none()], [none(), none()]),
            OpCode::CopyCrc32c => {
                (Operation::CopyCrc32c { seed }, [source(), none()], [target(1), none()])
            }
            OpCode::Compress | OpCode::Decompress => unreachable!("not DSA's"),
        };
        Self { operation, sources, targets }
    }

    /// With operands in one piece each.
    fn whole(code: OpCode, size: usize) -> Self {
        Self::new(code, 0, &[vec![size], vec![size], vec![size]])
    }

    fn size(&self) -> usize {
        match self.operation {
            Operation::Fill { .. } => joined(&self.targets[0]).len(),
            _ => joined(&self.sources[0]).len(),
        }
    }

    /// What the first `count` bytes of the operation make, by the naive model; the output is that
    /// of an operation of that length.
    fn model(&self, count: usize) -> (Output, [Vec<u8>; 2]) {
        let [source, other] = self.sources.each_ref().map(joined);
        let mut targets = self.targets.each_ref().map(joined);
        for target in targets.iter_mut().filter(|target| !target.is_empty()) {
            match self.operation {
                Operation::Fill { byte } => target[..count].fill(byte),
                _ => target[..count].copy_from_slice(&source[..count]),
            }
        }
        let output = match self.operation {
            Operation::Compare => Output::Equal(source[..count] == other[..count]),
            Operation::Crc32c { .. } | Operation::CopyCrc32c { .. } => {
                Output::Crc32c(crc32c(&[PREFIX, &source[..count]].concat()))
            }
            _ => Output::Nothing,
        };
        (output, targets)
    }

    /// Checks a result and what is in the operands now against what was in them.
    fn check(&self, before: &Case, result: RawResult) {
        let now = self.targets.each_ref().map(joined);
        match result {
            RawResult::Completed(output) => {
                let (expected, targets) = before.model(before.size());
                assert_eq!(output, expected, "{:?}", self.operation);
                assert!(now == targets, "{:?}: the targets differ", self.operation);
            }
            RawResult::Partial { bytes_completed, crc32c } => {
                let (output, targets) = before.model(bytes_completed);
                for (now, target) in now.iter().zip(&targets) {
                    let done = bytes_completed.min(now.len());
                    assert!(now[..done] == target[..done], "{:?}", self.operation);
                }
                match output {
                    Output::Crc32c(crc) => assert_eq!(crc32c, crc, "after {bytes_completed}"),
                    Output::Equal(equal) => assert!(equal, "a difference is no partial result"),
                    _ => {}
                }
            }
            RawResult::Failed { .. } => {}
        }
    }
}

/// A queue with the memory of what is in flight.
struct Rig {
    engine: EmulatedEngine,
    queue: Box<dyn EngineQueue>,
    flying: HashMap<u64, Case>,
    next: u64,
    results: HashMap<u64, (RawResult, Case)>,
    /// Slots in the order in which they were reported.
    order: Vec<u64>,
}

impl Rig {
    fn new(config: EmulatedConfig) -> Self {
        let engine = EmulatedEngine::start(config, 1).expect("a thread");
        let queue = engine.open_queue(None).expect("a queue");
        let (flying, results) = (HashMap::new(), HashMap::new());
        Self { engine, queue, flying, next: 0, results, order: Vec::new() }
    }

    fn submit(&mut self, case: &Case) -> Result<u64, Refused> {
        let mut case = case.clone();
        let piece = |piece: &Memory| Piece::new(piece.data().as_ptr(), piece.len);
        let piece_mut = |piece: &mut Memory| {
            let len = piece.len;
            PieceMut::new(piece.data_mut().as_mut_ptr(), len)
        };
        let size = case.size();
        let sources: [Vec<Piece>; 2] =
            case.sources.each_ref().map(|pieces| pieces.iter().map(piece).collect());
        let targets: [Vec<PieceMut>; 2] =
            case.targets.each_mut().map(|pieces| pieces.iter_mut().map(piece_mut).collect());
        let (slot, operation) = (self.next, case.operation);
        // SAFETY: the pieces are in vectors that the case owns, which is kept until its completion is
        // reported, or leaked; nothing looks into it meanwhile.
        unsafe {
            let sources = sources.each_ref().map(Vec::as_slice);
            let targets = targets.each_ref().map(Vec::as_slice);
            let request = RawRequest::new(operation, sources, targets, size);
            self.queue.submit(SlotId(slot), &request)?;
        }
        self.flying.insert(slot, case);
        self.next += 1;
        Ok(slot)
    }

    fn poll(&mut self) {
        let Self { flying, results, order, .. } = self;
        self.queue.poll(&mut |slot, result| {
            let case = flying.remove(&slot.0).expect("a slot is reported once, and was submitted");
            results.insert(slot.0, (result, case));
            order.push(slot.0);
        });
    }

    fn poll_until(&mut self, done: impl Fn(&Self) -> bool) {
        let end = Instant::now() + LIMIT;
        while !done(self) {
            assert!(Instant::now() < end, "{} operations in flight", self.flying.len());
            self.poll();
            thread::yield_now();
        }
    }

    /// Submits all, waiting for room, collects all, and checks what is not failed.
    fn run(&mut self, cases: &[Case]) -> Vec<RawResult> {
        let mut slots = Vec::new();
        for case in cases {
            let slot = loop {
                match self.submit(case) {
                    Ok(slot) => break slot,
                    Err(Refused::Busy) => {
                        self.queue.kick();
                        let flying = self.flying.len();
                        self.poll_until(|rig| rig.flying.len() < flying);
                    }
                    Err(Refused::Unsuitable) => panic!("{:?} is refused", case.operation),
                }
            };
            slots.push(slot);
        }
        self.queue.kick();
        self.poll_until(|rig| rig.flying.is_empty());
        let results = slots.iter().zip(cases).map(|(slot, case)| {
            let (result, after) = self.results.remove(slot).expect("it was reported");
            after.check(case, result);
            result
        });
        results.collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if !self.queue.stop() {
            std::mem::forget(std::mem::take(&mut self.flying));
        }
    }
}

fn every(count: u64) -> Option<NonZeroU64> {
    NonZeroU64::new(count)
}

/// Operations that DSA does.
fn codes() -> impl Iterator<Item = OpCode> {
    let others = [OpCode::Compress, OpCode::Decompress];
    OpCode::ALL.into_iter().filter(move |code| !others.contains(code))
}

fn is_complete(result: &RawResult) -> bool {
    matches!(result, RawResult::Completed(_))
}

#[test]
fn compression_is_not_its_business() {
    let mut rig = Rig::new(EmulatedConfig::default());
    let operations: Vec<_> = rig.queue.capabilities().operations.iter().collect();
    assert_eq!(operations, codes().collect::<Vec<_>>());
    assert!(!OpSet::of(&operations).contains(OpCode::Compress));
    let mut case = Case::whole(OpCode::Copy, 64);
    case.operation = Operation::Compress { level: 1 };
    assert_eq!(rig.submit(&case), Err(Refused::Unsuitable));
}

#[test]
fn every_operation_at_every_size_around_the_limits() {
    let config = EmulatedConfig { transfer_bytes_max: 65536, ..EmulatedConfig::default() };
    let mut rig = Rig::new(config);
    assert_eq!(rig.queue.capabilities().max_bytes, 65536);
    for code in codes() {
        for size in [1, 2, 7, 8, 63, 64, 65, 4095, 4096, 4097, 65535, 65536] {
            for offset in [0, 1, 4095] {
                let case = Case::new(code, offset, &[vec![size], vec![size], vec![size]]);
                let results = rig.run(&[case]);
                assert!(is_complete(&results[0]), "{code} {size}: {results:?}");
            }
        }
        for size in [0, 65537] {
            assert_eq!(rig.submit(&Case::whole(code, size)), Err(Refused::Unsuitable), "{size}");
        }
    }
    assert_eq!(rig.engine.device().counts().refused, 0);
}

/// DSA specification 8.3.10.
#[test]
fn a_dual_cast_to_places_that_do_not_match_is_not_for_the_device() {
    let mut rig = Rig::new(EmulatedConfig::default());
    let mut case = Case::whole(OpCode::DualCast, 100);
    case.targets[1][0] = Memory::new(8, &[0xEE; 100]);
    assert_eq!(rig.submit(&case), Err(Refused::Unsuitable));
    // Nothing of it was kept: all places are still free.
    let cases = vec![Case::whole(OpCode::DualCast, 100); 300];
    assert!(rig.run(&cases).iter().all(is_complete));
}

#[test]
fn a_comparison_that_differs_says_so() {
    let mut rig = Rig::new(EmulatedConfig { fault_every: every(3), ..EmulatedConfig::default() });
    for at in [0, 1, 4095, 4096, 8191] {
        let mut case = Case::new(OpCode::Compare, 3, &[vec![8192], vec![5000, 3192], vec![]]);
        let (piece, at) = if at < 5000 { (0, at) } else { (1, at - 5000) };
        case.sources[1][piece].data_mut()[at] ^= 0x10;
        // One of three parts stops at a fault; what is reported is never wrong, and soon complete.
        let results: Vec<_> = (0..6).map(|_| rig.run(std::slice::from_ref(&case))[0]).collect();
        assert!(results.contains(&RawResult::Completed(Output::Equal(false))), "{results:?}");
    }
}

/// Several pieces are several descriptors; a digest goes from one to the next.
#[test]
fn operands_in_pieces() {
    // With latency a record is written long after the work: without a fence it would be read too
    // early.
    let latency = Duration::from_micros(200);
    let mut rig = Rig::new(EmulatedConfig { latency, ..EmulatedConfig::default() });
    assert_eq!(rig.queue.capabilities().max_pieces, 4);
    let cuts = [vec![1, 4095, 0, 4096], vec![4096, 96, 3904, 96], vec![8192]];
    for code in codes() {
        // The parts of a dual cast must match in their low address bits; whole pages do.
        let cuts = match code {
            OpCode::DualCast => [vec![4096, 4096], vec![4096, 4096], vec![4096, 4096]],
            _ => cuts.clone(),
        };
        let results = rig.run(&vec![Case::new(code, 0, &cuts); 40]);
        assert!(results.iter().all(is_complete), "{code}: {results:?}");
    }
    // A device without batches gets nothing in pieces.
    let mut rig = Rig::new(EmulatedConfig { batch_max: 0, ..EmulatedConfig::default() });
    assert_eq!(rig.queue.capabilities().max_pieces, 1);
    assert!(rig.run(&vec![Case::whole(OpCode::Copy, 512); 100]).iter().all(is_complete));
    assert_eq!(rig.engine.device().counts().batches, 0);
}

#[test]
fn a_page_fault_at_every_offset() {
    let size = 100;
    for after in 0..=100 {
        let config = EmulatedConfig {
            fault_every: every(1),
            fault_after: Some(after),
            ..EmulatedConfig::default()
        };
        let mut rig = Rig::new(config);
        for code in codes() {
            let results = rig.run(&[Case::whole(code, size)]);
            let done = match results[0] {
                RawResult::Partial { bytes_completed, .. } => bytes_completed,
                RawResult::Completed(_) => size,
                RawResult::Failed { .. } => panic!("{code}: {results:?}"),
            };
            assert_eq!(done, after as usize, "{code}");
        }
    }
}

#[test]
fn a_page_fault_in_any_piece() {
    let cuts = [vec![50, 60, 70], vec![180], vec![180]];
    for code in [OpCode::Copy, OpCode::Compare, OpCode::Crc32c, OpCode::CopyCrc32c] {
        for (faulty, expected) in [(1, 10), (2, 60), (3, 120)] {
            let config = EmulatedConfig {
                fault_every: every(faulty),
                fault_after: Some(10),
                ..EmulatedConfig::default()
            };
            let results = Rig::new(config).run(&[Case::new(code, 0, &cuts)]);
            let RawResult::Partial { bytes_completed, .. } = results[0] else {
                panic!("{code}: {results:?}");
            };
            assert_eq!(bytes_completed, expected, "{code}");
        }
    }
}

#[test]
fn an_error_is_that_operations_own() {
    let config =
        EmulatedConfig { error_every: every(3), error_status: 0x22, ..EmulatedConfig::default() };
    let mut rig = Rig::new(config);
    let results = rig.run(&vec![Case::whole(OpCode::CopyCrc32c, 1000); 99]);
    let failed = RawResult::Failed { status: 0x22 };
    assert_eq!(results.iter().filter(|result| **result == failed).count(), 33);
    assert_eq!(results.iter().filter(|result| is_complete(result)).count(), 66);
}

#[test]
fn many_go_in_batches() {
    let mut rig = Rig::new(EmulatedConfig::default());
    let results = rig.run(&vec![Case::whole(OpCode::Crc32c, 64); 200]);
    assert!(results.iter().all(is_complete));
    let counts = rig.engine.device().counts();
    assert_eq!(counts.completed, 200);
    assert_eq!(counts.batches, 200_u64.div_ceil(32));
}

#[test]
fn a_full_work_queue_is_waited_for() {
    for mode in [Mode::Shared, Mode::Dedicated] {
        let config = EmulatedConfig {
            mode,
            depth: 2,
            batch_max: 0,
            latency: Duration::from_micros(200),
            bytes_per_second: every(100_000_000),
            ..EmulatedConfig::default()
        };
        let mut rig = Rig::new(config);
        let results = rig.run(&vec![Case::whole(OpCode::Copy, 4096); 100]);
        assert!(results.iter().all(is_complete));
        let counts = rig.engine.device().counts();
        assert_eq!((counts.completed, counts.lost, counts.refused), (100, 0, 0), "{mode}");
    }
}

/// A shared work queue that another submitter keeps full.
#[test]
fn what_finds_no_room_is_given_back() {
    let config = EmulatedConfig {
        depth: 2,
        batch_max: 0,
        hang_every: every(1),
        ..EmulatedConfig::default()
    };
    let mut rig = Rig::new(config);
    let cases = vec![Case::whole(OpCode::CopyCrc32c, 4096); 5];
    let slots: Vec<_> = cases.iter().map(|case| rig.submit(case).expect("a place")).collect();
    rig.queue.kick();
    // The device hangs with two; the others never reach it.
    rig.poll_until(|rig| rig.results.len() == 3);
    assert_eq!(rig.flying.len(), 2);
    for slot in &slots[2..] {
        let (result, after) = rig.results.remove(slot).expect("it was given back");
        assert!(matches!(result, RawResult::Partial { bytes_completed: 0, .. }));
        after.check(&cases[0], result);
    }
    assert!(!rig.queue.stop());
    rig.engine.device().release_hung();
    rig.poll_until(|rig| rig.flying.is_empty());
    assert!(rig.queue.stop());
    assert!(!rig.queue.is_healthy());
    assert_eq!(rig.submit(&cases[0]), Err(Refused::Unsuitable));
}

/// A work queue that is disabled, or a halted device, has no room for ever.
#[test]
fn a_queue_that_never_has_room_gets_no_more() {
    let config = EmulatedConfig {
        depth: 1,
        batch_max: 0,
        hang_every: every(1),
        ..EmulatedConfig::default()
    };
    let mut rig = Rig::new(config);
    let case = Case::whole(OpCode::Copy, 64);
    rig.submit(&case).expect("a place");
    rig.queue.kick();
    let end = Instant::now() + LIMIT;
    while rig.queue.is_healthy() {
        assert!(Instant::now() < end, "it goes on");
        rig.submit(&case).expect("a place");
        rig.queue.kick();
        rig.poll_until(|rig| rig.flying.len() == 1);
    }
    assert!(rig.results.len() >= 16);
    rig.engine.device().release_hung();
    rig.poll_until(|rig| rig.flying.is_empty());
}

#[test]
fn a_seed_decides_what_goes_wrong() {
    let run = |seed| {
        let config = EmulatedConfig { fault_every: every(2), seed, ..EmulatedConfig::default() };
        Rig::new(config).run(&vec![Case::whole(OpCode::CopyCrc32c, 5000); 50])
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn completions_in_any_order() {
    let config = EmulatedConfig { reorder: 16, seed: 5, batch_max: 0, ..EmulatedConfig::default() };
    let mut rig = Rig::new(config);
    let codes: Vec<_> = codes().collect();
    let cases: Vec<_> = (0..200).map(|i| Case::whole(codes[i % 6], 100 + i)).collect();
    assert!(rig.run(&cases).iter().all(is_complete));
    assert!(!rig.order.is_sorted(), "the device kept the order");
}

#[test]
fn what_hangs_comes_late() {
    let mut rig = Rig::new(EmulatedConfig { hang_every: every(7), ..EmulatedConfig::default() });
    let cases = vec![Case::whole(OpCode::CopyCrc32c, 500); 70];
    for case in &cases {
        rig.submit(case).expect("a place");
    }
    rig.queue.kick();
    rig.poll_until(|rig| rig.flying.len() == 10);
    assert_eq!(rig.engine.device().counts().hung, 10);
    rig.engine.device().release_hung();
    rig.poll_until(|rig| rig.flying.is_empty());
    for (result, after) in rig.results.values() {
        assert!(is_complete(result));
        after.check(&cases[0], *result);
    }
}

#[test]
fn a_device_that_stops_gives_everything_back() {
    for (hang, batch_max) in [(every(2), 32), (every(1), 0), (None, 32)] {
        let config = EmulatedConfig {
            depth: 4,
            batch_max,
            hang_every: hang,
            latency: Duration::from_millis(2),
            ..EmulatedConfig::default()
        };
        let mut rig = Rig::new(config);
        let case = Case::new(OpCode::CopyCrc32c, 0, &[vec![3000], vec![3000], vec![]]);
        for _ in 0..50 {
            rig.submit(&case).expect("a place");
        }
        rig.queue.kick();
        rig.poll();
        rig.engine.device().stop();
        assert!(!rig.queue.is_healthy());
        rig.poll();
        assert_eq!(rig.flying.len(), 0);
        for (result, after) in rig.results.values() {
            assert!(!matches!(result, RawResult::Failed { .. }));
            after.check(&case, *result);
        }
        assert_eq!(rig.submit(&case), Err(Refused::Unsuitable));
        assert!(rig.queue.stop());
    }
}

#[test]
fn cores_share_a_dedicated_queue_without_losing_anything() {
    let config = EmulatedConfig {
        mode: Mode::Dedicated,
        depth: 5,
        latency: Duration::from_micros(50),
        ..EmulatedConfig::default()
    };
    let engine = EmulatedEngine::start(config, 3).expect("a thread");
    let cores: Vec<_> = (0..3)
        .map(|_| {
            let engine = engine.clone();
            thread::spawn(move || {
                let queue = engine.open_queue(None).expect("a queue");
                let (flying, results) = (HashMap::new(), HashMap::new());
                let mut rig = Rig { engine, queue, flying, next: 0, results, order: Vec::new() };
                let results = rig.run(&vec![Case::whole(OpCode::CopyCrc32c, 600); 300]);
                assert!(results.iter().all(is_complete));
            })
        })
        .collect();
    for core in cores {
        core.join().expect("no core fails");
    }
    let counts = engine.device().counts();
    assert_eq!((counts.completed, counts.lost), (900, 0));
    // Their room is free again: 5 among 3 is 2, 2 and 1.
    let queues: Vec<_> = (0..3).map(|_| engine.open_queue(None).expect("room")).collect();
    let error = engine.open_queue(None).err().expect("no room is left");
    assert!(error.to_string().contains("all are given to other cores"), "{error}");
    drop(queues);
}

/// Lengths that sum to `size`, in up to four pieces.
fn cut(size: usize, mut places: Vec<usize>) -> Vec<usize> {
    places.iter_mut().for_each(|place| *place %= size + 1);
    places.extend([0, size]);
    places.sort_unstable();
    places.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

fn case() -> impl Strategy<Value = Case> {
    let places = || prop::collection::vec(any::<usize>(), 0..4);
    (0..6_usize, 1..9000_usize, 0..PAGE, places(), places(), any::<Option<usize>>()).prop_map(
        |(code, size, offset, first, second, difference)| {
            let code = OpCode::ALL[code];
            let cuts = match code {
                OpCode::DualCast => [vec![size], vec![size], vec![size]],
                _ => [cut(size, first), cut(size, second), vec![]],
            };
            let mut case = Case::new(code, offset, &cuts);
            if let (OpCode::Compare, Some(at)) = (code, difference) {
                let mut at = at % size;
                for piece in &mut case.sources[1] {
                    if at < piece.len {
                        piece.data_mut()[at] ^= 1;
                        break;
                    }
                    at -= piece.len;
                }
            }
            case
        },
    )
}

fn config() -> impl Strategy<Value = EmulatedConfig> {
    let times = || prop_oneof![Just(None), (1..9_u64).prop_map(NonZeroU64::new)];
    let shape = (any::<bool>(), 1..20_usize, prop_oneof![Just(0), 2..40_usize]);
    let latency = prop_oneof![Just(0), Just(30)].prop_map(Duration::from_micros);
    let luck = (0..9_usize, any::<u64>(), latency);
    (shape, times(), times(), luck).prop_map(
        |((shared, depth, batch_max), fault_every, error_every, (reorder, seed, latency))| {
            EmulatedConfig {
                mode: if shared { Mode::Shared } else { Mode::Dedicated },
                depth,
                batch_max,
                fault_every,
                error_every,
                reorder,
                seed,
                latency,
                ..EmulatedConfig::default()
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the device is like, what it says it has done agrees with the model.
    #[test]
    fn any_operations_on_any_device(
        config in config(),
        cases in prop::collection::vec(case(), 1..40),
    ) {
        let calm = config.fault_every.is_none() && config.error_every.is_none();
        let mut rig = Rig::new(config);
        let pieces_max = rig.queue.capabilities().max_pieces;
        let most = |case: &Case| case.sources.iter().chain(&case.targets).map(Vec::len).max();
        let cases: Vec<_> =
            cases.into_iter().filter(|case| most(case) <= Some(pieces_max)).collect();
        let results = rig.run(&cases);
        if calm {
            prop_assert!(results.iter().all(is_complete), "{results:?}");
        }
        let counts = rig.engine.device().counts();
        prop_assert_eq!((counts.lost, counts.refused), (0, 0));
    }
}
