//! The emulated DSA device by itself: what it does with descriptors that no queue would write.
//!
//! Sections are those of the Intel Data Streaming Accelerator Architecture Specification, order
//! number 341204-006US, revision 3.0.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use raceline_accel::crc32c;
use raceline_dsa::descriptor::{
    Completion, CompletionRecord, CrcSeed, Descriptor, DescriptorSlot, Flags, Status,
};
use raceline_dsa::discover::Mode;
use raceline_dsa::emulated::{EmulatedConfig, EmulatedDevice, EmulatedPortal};
use raceline_dsa::portal::{Portal, Submission};

/// No test waits longer than this for the device.
const LIMIT: Duration = Duration::from_secs(30);

/// A device, and memory that outlives it: the fields are dropped in this order.
struct Rig {
    portal: EmulatedPortal,
    device: EmulatedDevice,
    records: Arc<[CompletionRecord]>,
    list: Arc<[DescriptorSlot]>,
    memory: Arc<[std::sync::atomic::AtomicU8]>,
}

const BYTES: usize = 16384;

impl Rig {
    fn new(config: EmulatedConfig) -> Self {
        let device = EmulatedDevice::start(config).expect("a thread");
        Self {
            portal: device.portal(usize::MAX).expect("room"),
            device,
            records: (0..8).map(|_| CompletionRecord::default()).collect(),
            list: (0..64).map(|_| DescriptorSlot::default()).collect(),
            memory: (0..=250).cycle().take(BYTES).map(std::sync::atomic::AtomicU8::new).collect(),
        }
    }

    fn record(&self, index: usize) -> u64 {
        (&raw const self.records[index]).expose_provenance() as u64
    }

    fn list(&self) -> u64 {
        self.list.as_ptr().expose_provenance() as u64
    }

    fn at(&self, offset: usize) -> u64 {
        self.memory.as_ptr().expose_provenance() as u64 + offset as u64
    }

    fn bytes(&self, from: usize, count: usize) -> Vec<u8> {
        let bytes = self.memory[from..from + count].iter();
        bytes.map(|byte| byte.load(std::sync::atomic::Ordering::Relaxed)).collect()
    }

    fn submit(&mut self, descriptor: &Descriptor) -> Submission {
        // SAFETY: all memory named in these tests is the rig's, which outlives the device, and
        // consists of atomics; or the device is expected to refuse the descriptor.
        unsafe { self.portal.submit(descriptor) }
    }

    fn wait(&self, index: usize) -> Completion {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(completion) = self.records[index].poll() {
                return completion;
            }
            assert!(Instant::now() < end, "record {index} is not written");
            thread::yield_now();
        }
    }

    /// The status that the device answers with, in record 0.
    fn answer(&mut self, descriptor: &Descriptor) -> Status {
        self.records[0].clear();
        assert_eq!(self.submit(descriptor), Submission::Accepted);
        self.wait(0).status
    }
}

/// The descriptor with a byte changed.
fn with(descriptor: Descriptor, offset: usize, value: u8) -> Descriptor {
    let mut bytes = *descriptor.bytes();
    bytes[offset] = value;
    Descriptor::from_bytes(bytes)
}

/// 5.4, 5.5, and the status codes of table 5-6.
#[test]
fn what_the_specification_refuses_is_refused() {
    let mut rig = Rig::new(EmulatedConfig::default());
    let (none, record, zero) = (Flags::NONE, rig.record(0), CrcSeed::Value(0));
    let (a, b, c) = (rig.at(0), rig.at(4096), rig.at(8192));
    let list = rig.list();
    let copy = Descriptor::memory_move(record, none, a, b, 64);
    let crc = Descriptor::crc(record, none, a, 64, zero);
    let compare = Descriptor::compare(record, none, a, b, 64);
    let cases = [
        (with(copy, 7, 0x06), Status::BAD_OPERATION), // compare pattern: not emulated
        (with(copy, 7, 0xFF), Status::BAD_OPERATION),
        (Descriptor::memory_move(record, Flags::FENCE, a, b, 64), Status::BAD_FLAGS),
        (Descriptor::memory_move(record, Flags::BLOCK_ON_FAULT, a, b, 64), Status::BAD_FLAGS),
        (Descriptor::memory_move(record, Flags::CHECK_RESULT, a, b, 64), Status::BAD_FLAGS),
        (Descriptor::crc(record, Flags::CACHE_CONTROL, a, 64, zero), Status::BAD_FLAGS),
        (Descriptor::nop(record, Flags::REQUEST_INTERRUPT), Status::BAD_FLAGS),
        (with(crc, 4, 0x04), Status::BAD_FLAGS), // a CRC needs its record (table 5-5)
        (with(copy, 36, 1), Status::RESERVED_NOT_ZERO),
        (with(copy, 63, 1), Status::RESERVED_NOT_ZERO),
        (with(crc, 24, 1), Status::RESERVED_NOT_ZERO),
        (with(crc, 48, 1), Status::RESERVED_NOT_ZERO),
        (with(compare, 41, 1), Status::RESERVED_NOT_ZERO),
        (Descriptor::memory_move(record, none, a, b, 0), Status::BAD_TRANSFER_SIZE),
        (Descriptor::fill(record, none, 0, b, (2 << 20) + 1), Status::BAD_TRANSFER_SIZE),
        (Descriptor::memory_move(record, none, a, a + 63, 64), Status::OVERLAP),
        (Descriptor::copy_crc(record, none, b, b - 63, 64, zero), Status::OVERLAP),
        (Descriptor::dualcast(record, none, a, [b, c + 1], 64), Status::DUALCAST_MISALIGNED),
        (Descriptor::dualcast(record, none, a, [b, b], 64), Status::OVERLAP),
        (Descriptor::crc(record, none, a, 64, CrcSeed::At(b + 2)), Status::ADDRESS_MISALIGNED),
        (Descriptor::batch(record, none, list, 0), Status::BAD_DESCRIPTOR_COUNT),
        (Descriptor::batch(record, none, list, 1), Status::BAD_DESCRIPTOR_COUNT),
        (Descriptor::batch(record, none, list, 33), Status::BAD_DESCRIPTOR_COUNT),
        (Descriptor::batch(record, none, list + 32, 2), Status::LIST_MISALIGNED),
    ];
    let before = rig.bytes(0, BYTES);
    for (descriptor, status) in cases {
        assert_eq!(rig.answer(&descriptor), Status::Error(status), "{descriptor:?}");
    }
    assert_eq!(rig.bytes(0, BYTES), before);
    assert_eq!(rig.device.counts().refused, 24);
    // The flags that are wrong stand at 16 of the record (8.2.6).
    rig.answer(&Descriptor::memory_move(record, Flags::CHECK_RESULT, a, b, 64));
    assert_eq!(rig.wait(0).crc, Flags::CHECK_RESULT.bits());
}

/// A record that is not aligned is not written; the device goes on (5.4).
#[test]
fn without_a_place_for_the_answer_there_is_none() {
    let mut rig = Rig::new(EmulatedConfig::default());
    let misaligned = Descriptor::nop(rig.record(0) + 8, Flags::NONE);
    assert_eq!(rig.submit(&misaligned), Submission::Accepted);
    let nop = Descriptor::nop(rig.record(1), Flags::NONE);
    assert_eq!(rig.submit(&nop), Submission::Accepted);
    assert_eq!(rig.wait(1).status, Status::Success);
    assert_eq!(rig.records[0].bytes(), [0; 32]);
}

#[test]
fn nop_and_drain_complete() {
    let mut rig = Rig::new(EmulatedConfig::default());
    let record = rig.record(0);
    assert_eq!(rig.answer(&Descriptor::nop(record, Flags::NONE)), Status::Success);
    assert_eq!(rig.answer(&Descriptor::drain(record, Flags::NONE)), Status::Success);
}

/// Seeds and results are finished CRCs (8.3.12, appendix A), from the descriptor or from memory.
#[test]
fn a_crc_goes_on_from_a_finished_one() {
    let mut rig = Rig::new(EmulatedConfig::default());
    let data = rig.bytes(0, 3000);
    let first = Descriptor::crc(rig.record(0), Flags::NONE, rig.at(0), 1000, CrcSeed::Value(0));
    assert_eq!(rig.answer(&first), Status::Success);
    assert_eq!(rig.wait(0).crc, crc32c(&data[..1000]));
    rig.list[0].store(&Descriptor::crc(
        rig.record(1),
        Flags::NONE,
        rig.at(1000),
        1000,
        CrcSeed::Value(crc32c(&data[..1000])),
    ));
    let seed = CrcSeed::At(rig.record(1) + CompletionRecord::CRC_OFFSET);
    let (from, to) = (rig.at(2000), rig.at(8192));
    rig.list[1].store(&Descriptor::copy_crc(rig.record(2), Flags::FENCE, from, to, 1000, seed));
    let batch = Descriptor::batch(rig.record(0), Flags::NONE, rig.list(), 2);
    assert_eq!(rig.answer(&batch), Status::Success);
    assert_eq!(rig.wait(0).bytes_completed, 2);
    assert_eq!(rig.wait(1).crc, crc32c(&data[..2000]));
    assert_eq!(rig.wait(2).crc, crc32c(&data));
    assert_eq!(rig.bytes(8192, 1000), data[2000..]);
}

/// Behind a failure a fence ends the batch; without one it goes on (3.9, 8.3.2).
#[test]
fn a_fence_behind_a_failure_ends_the_batch() {
    let mut rig = Rig::new(EmulatedConfig::default());
    let bad = Descriptor::memory_move(rig.record(1), Flags::NONE, rig.at(0), rig.at(4096), 0);
    rig.list[0].store(&bad);
    rig.list[1].store(&Descriptor::nop(rig.record(2), Flags::NONE));
    rig.list[2].store(&Descriptor::nop(rig.record(3), Flags::FENCE));
    rig.list[3].store(&Descriptor::nop(rig.record(4), Flags::NONE));
    let batch = Descriptor::batch(rig.record(0), Flags::NONE, rig.list(), 4);
    assert_eq!(rig.answer(&batch), Status::BatchFailed);
    assert_eq!((rig.wait(0).bytes_completed, rig.wait(0).result), (2, 1));
    assert_eq!(rig.wait(1).status, Status::Error(Status::BAD_TRANSFER_SIZE));
    assert_eq!(rig.wait(2).status, Status::Success);
    assert_eq!((rig.records[3].poll(), rig.records[4].poll()), (None, None));
    // Neither a batch nor a drain may be in a batch (3.8, 8.3.3).
    rig.list[0].store(&Descriptor::drain(rig.record(1), Flags::NONE));
    rig.list[1].store(&Descriptor::batch(rig.record(2), Flags::NONE, rig.list(), 2));
    rig.records[1..].iter().for_each(CompletionRecord::clear);
    let batch = Descriptor::batch(rig.record(0), Flags::NONE, rig.list(), 2);
    assert_eq!(rig.answer(&batch), Status::BatchFailed);
    for index in [1, 2] {
        assert_eq!(rig.wait(index).status, Status::Error(Status::BAD_OPERATION));
    }
}

/// A difference is reported instead of a fault behind it; the status can depend on it (8.3.6).
#[test]
fn a_comparison_says_where() {
    let mut rig = Rig::new(EmulatedConfig::default());
    let record = rig.record(0);
    let (a, same) = (rig.at(0), rig.at(251));
    let equal = Descriptor::compare(record, Flags::NONE, a, same, 5000);
    assert_eq!(rig.answer(&equal), Status::Success);
    assert_eq!((rig.wait(0).result, rig.wait(0).bytes_completed), (0, 0));
    rig.memory[251 + 4500].store(0xFF, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(rig.answer(&equal), Status::Success);
    assert_eq!((rig.wait(0).result, rig.wait(0).bytes_completed), (1, 4500));
}

/// 3.3.1 and 3.3.2.
#[test]
fn a_full_queue_answers_or_loses() {
    for mode in [Mode::Shared, Mode::Dedicated] {
        let config = EmulatedConfig {
            mode,
            depth: 4,
            bytes_per_second: std::num::NonZeroU64::new(1000),
            ..EmulatedConfig::default()
        };
        let mut rig = Rig::new(config);
        // The first keeps it busy for seconds. One more can be taken, four wait, and then it is
        // full.
        let copy =
            Descriptor::memory_move(rig.record(0), Flags::NONE, rig.at(0), rig.at(8192), 8000);
        let answers: Vec<_> = (0..20).map(|_| rig.submit(&copy)).collect();
        let counts = rig.device.counts();
        let accepted = answers.iter().filter(|answer| **answer == Submission::Accepted).count();
        match mode {
            Mode::Shared => {
                assert!((4..=7).contains(&accepted), "{accepted} of 20");
                assert_eq!((counts.retries, counts.lost), (20 - accepted as u64, 0));
            }
            Mode::Dedicated => {
                assert_eq!(accepted, 20);
                assert!((13..=16).contains(&counts.lost), "{} of 20", counts.lost);
            }
        }
    }
}

/// Never sooner; how much later is the machine's business.
#[test]
fn rate_and_latency_take_their_time() {
    let config = EmulatedConfig {
        latency: Duration::from_millis(20),
        bytes_per_second: std::num::NonZeroU64::new(1_000_000),
        ..EmulatedConfig::default()
    };
    let mut rig = Rig::new(config);
    let begin = Instant::now();
    for index in 0..3 {
        let record = rig.record(index);
        let copy = Descriptor::memory_move(record, Flags::NONE, rig.at(0), rig.at(8192), 8000);
        assert_eq!(rig.submit(&copy), Submission::Accepted);
    }
    for index in 0..3_u32 {
        assert_eq!(rig.wait(index as usize).status, Status::Success);
        let least = Duration::from_millis(8) * (index + 1) + Duration::from_millis(20);
        assert!(begin.elapsed() >= least, "{index} after {:?}", begin.elapsed());
    }
}

/// After `stop` nothing is touched, and submissions are answered with Retry.
#[test]
fn a_stopped_device_touches_nothing() {
    let config = EmulatedConfig { latency: Duration::from_millis(5), ..EmulatedConfig::default() };
    for _ in 0..20 {
        let mut rig = Rig::new(config.clone());
        for index in 0..8 {
            let fill = Descriptor::fill(rig.record(index), Flags::NONE, !0, rig.at(0), 16384);
            assert_eq!(rig.submit(&fill), Submission::Accepted);
        }
        assert!(!rig.portal.is_stopped());
        rig.device.stop();
        assert!(rig.portal.is_stopped());
        rig.memory.iter().for_each(|byte| byte.store(0, std::sync::atomic::Ordering::Relaxed));
        rig.records.iter().for_each(CompletionRecord::clear);
        let nop = Descriptor::nop(rig.record(0), Flags::NONE);
        assert_eq!(rig.submit(&nop), Submission::Retry);
        thread::sleep(Duration::from_millis(6));
        assert!(rig.bytes(0, BYTES).iter().all(|byte| *byte == 0));
        assert!(rig.records.iter().all(|record| record.poll().is_none()));
    }
}
