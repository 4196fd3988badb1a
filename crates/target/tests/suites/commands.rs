//! Abort, Verify, Copy and write protection over sockets.
#![allow(clippy::unwrap_used)] // a test

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{
    Heard, RawHost, Wants, block_sqe, config, eventually, namespace, nqn, pattern, ram, start,
    status, subsystem,
};
use raceline_proto::nvme::opcode::{admin, io};
use raceline_proto::nvme::rw::CopyRange;
use raceline_proto::nvme::{CommandId, Direction, Sqe, Status};
use raceline_target::{NamespaceConfig, ProtectionPlace, ProtectionStore, Target, TargetConfig};
use zerocopy::IntoBytes;

const BS: u32 = 512;
const ABORTED: Status = Status::ABORT_REQUESTED.dnr();

// ------------------------------------------------------------------------------------------- abort

/// Aborts a command of queue 1; gives bit 0 of the answer: it was not completed.
fn abort(admin: &mut RawHost, cid: CommandId) -> bool {
    let word = u32::from(cid.0) << 16 | 1;
    let answer =
        admin.plain_command(Sqe { opc: admin::ABORT, cdw10: word.into(), ..Sqe::default() });
    assert!(status(&answer).is_success(), "{}", status(&answer));
    answer.cqe.dw0 & 1 == 1
}

tcp_only! {
    #[test]
    fn a_command_that_waits_for_a_buffer_is_aborted_at_once() {
        const LEN: u32 = 128 << 10;
        let config = TargetConfig {
            max_io_bytes: LEN,
            large_buffers_per_core: 4,
            small_buffers_per_core: 4,
            ..config(1)
        };
        let (target, address) = start(config, vec![ram("4M")]);
        let (mut admin, cntlid) = RawHost::admin(address, Wants::default());
        let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
        // Four writes hold the four buffers, and wait for their data; a fifth waits for a buffer.
        let write = |queue: &mut RawHost, slba| {
            queue.submit(block_sqe(io::WRITE, 1, slba, 256), Direction::HostToController, LEN)
        };
        let writes: Vec<CommandId> = (0..4).map(|place| write(&mut queue, place * 256)).collect();
        let grants: Vec<_> = (0..4)
            .map(|_| match queue.listen() {
                Heard::SendData(grant) => grant,
                other => panic!("{other:?}"),
            })
            .collect();
        let waiting = write(&mut queue, 1024);
        let waits = || target.stats().subsystems[0].1.buffer_waits == 1;
        eventually("the fifth waits for a buffer", waits);
        assert!(!abort(&mut admin, waiting), "it is completed");
        assert_eq!(status(&queue.wait(waiting, &[])), ABORTED);
        assert!(abort(&mut admin, waiting), "it is gone");
        assert!(abort(&mut admin, CommandId(0x7777)), "there is no such command");
        // One whose data are under way is aborted when they have come, and writes nothing.
        let data = pattern(5, LEN as usize);
        assert!(abort(&mut admin, writes[1]), "not yet");
        for (grant, (place, cid)) in grants.iter().zip(writes.iter().enumerate()) {
            queue.send_data(grant, &data);
            let expected = if place == 1 { ABORTED } else { Status::SUCCESS };
            assert_eq!(status(&queue.wait(*cid, &data)), expected, "write {place}");
        }
        let read = |queue: &mut RawHost, place: u64| queue.read(1, place * 256, 256, BS).data;
        assert_eq!(read(&mut queue, 0), data);
        for place in [1, 4] {
            assert!(read(&mut queue, place).iter().all(|byte| *byte == 0), "{place} was written");
        }
        // All buffers are free again.
        for place in 0..8 {
            assert!(status(&queue.write(1, place * 256, &data, BS)).is_success());
        }
        target.shutdown().unwrap();
    }
}

tcp_only! {
    #[test]
    fn half_of_a_fused_operation_takes_the_other_along() {
        let (target, address) = start(config(1), vec![ram("1M")]);
        let (mut admin, cntlid) = RawHost::admin(address, Wants::default());
        let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
        let data = vec![0; 512];
        let half = |opcode, flags| Sqe { flags, ..block_sqe(opcode, 1, 0, 1) };
        let first = queue.submit_in_capsule(half(io::COMPARE, 1), &data);
        // The second half waits for its data.
        let second = queue.submit(half(io::WRITE, 2), Direction::HostToController, 512);
        let Heard::SendData(grant) = queue.listen() else { panic!("no R2T") };
        assert!(!abort(&mut admin, first));
        assert_eq!(status(&queue.wait(first, &[])), ABORTED);
        queue.send_data(&grant, &pattern(1, 512));
        let verdict = status(&queue.wait(second, &[]));
        assert_eq!(verdict, Status::ABORTED_FAILED_FUSED.dnr());
        // A first half whose second never comes.
        let first = queue.submit_in_capsule(half(io::COMPARE, 1), &data);
        assert!(!abort(&mut admin, first));
        assert_eq!(status(&queue.wait(first, &[])), ABORTED);
        let second = queue.submit_in_capsule(half(io::WRITE, 2), &data);
        assert_eq!(status(&queue.wait(second, &[])), Status::ABORTED_FAILED_FUSED.dnr());
        assert_eq!(queue.read(1, 0, 1, BS).data, data);
        assert!(status(&queue.write(1, 0, &pattern(2, 512), BS)).is_success());
        target.shutdown().unwrap();
    }
}

// ------------------------------------------------------------------------------------------ verify

#[test]
fn verify_reads_and_tells_nothing_else() {
    let (target, address) = start(config(1), vec![ram("1M")]);
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    let verify = |queue: &mut RawHost, slba, blocks| {
        let answer = queue.plain_command(block_sqe(io::VERIFY, 1, slba, blocks));
        assert!(answer.data.is_empty());
        status(&answer)
    };
    assert_eq!(verify(&mut queue, 0, 256), Status::SUCCESS);
    assert_eq!(verify(&mut queue, 2047, 1), Status::SUCCESS);
    assert_eq!(verify(&mut queue, 2047, 2), Status::LBA_OUT_OF_RANGE.dnr());
    target.shutdown().unwrap();
}

// -------------------------------------------------------------------------------------------- copy

fn copy(queue: &mut RawHost, sdlba: u64, ranges: &[(u64, u32)]) -> (Status, u32) {
    let range = |&(slba, blocks): &(u64, u32)| CopyRange {
        slba: slba.into(),
        nlb: u16::try_from(blocks - 1).unwrap().into(),
        ..CopyRange::default()
    };
    let data: Vec<CopyRange> = ranges.iter().map(range).collect();
    let count = u32::try_from(ranges.len()).unwrap();
    // NR has the place of NLB.
    let sqe = block_sqe(io::COPY, 1, sdlba, count);
    let answer = queue.write_command(sqe, data.as_bytes(), true);
    (status(&answer), answer.cqe.dw0)
}

/// Block after block: what is there before, what a model of the copy makes of it, and what is there after.
#[test]
fn copies_are_those_of_a_model() {
    let file = tempfile("copy.img", 4 << 20);
    for device in [ram("4M"), file.device] {
        let (target, address) = start(config(2), vec![device]);
        let (_admin, cntlid) = RawHost::admin(address, Wants::default());
        let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
        let mut model = pattern(3, 4 << 20);
        for (place, part) in model.chunks(128 << 10).enumerate() {
            let answer = queue.write(1, place as u64 * 256, part, BS);
            assert!(status(&answer).is_success());
        }
        let wanted: [(u64, &[(u64, u32)]); 4] = [
            (4000, &[(0, 1)]),
            // one piece and a bit, ranges that overlap each other
            (4000, &[(100, 257), (300, 3), (100, 1)]),
            (0, &[(5000, 2048)]),
            // as many ranges as there may be
            (6000, &[(7, 2); 128]),
        ];
        for (sdlba, ranges) in wanted {
            assert_eq!(copy(&mut queue, sdlba, ranges), (Status::SUCCESS, 0), "to {sdlba}");
            let byte = |block: u64| usize::try_from(block * 512).unwrap();
            let mut at = byte(sdlba);
            for &(slba, blocks) in ranges {
                let (from, len) = (byte(slba), byte(blocks.into()));
                model.copy_within(from..from + len, at);
                at += len;
            }
        }
        for (place, part) in model.chunks(128 << 10).enumerate() {
            assert!(queue.read(1, place as u64 * 256, 256, BS).data == part, "part {place}");
        }
        target.shutdown().unwrap();
    }
}

#[test]
fn a_copy_that_is_refused_writes_nothing() {
    let (target, address) = start(config(1), vec![ram("1M")]);
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    assert!(status(&queue.write(1, 0, &pattern(1, 4096), BS)).is_success());
    let overlap = Status::OVERLAPPING_IO_RANGE.dnr();
    for (sdlba, ranges, expected) in [
        (100, vec![(0, 8), (104, 8)], (overlap, 1)),
        (4, vec![(0, 8)], (overlap, 0)),
        (100, vec![(0, 8), (2044, 5)], (Status::LBA_OUT_OF_RANGE.dnr(), 1)),
        (2044, vec![(0, 4), (0, 1)], (Status::LBA_OUT_OF_RANGE.dnr(), 1)),
        (100, vec![(0, 8), (0, 2049)], (Status::COMMAND_SIZE_LIMIT_EXCEEDED.dnr(), 1)),
    ] {
        assert_eq!(copy(&mut queue, sdlba, &ranges), expected, "{ranges:?} to {sdlba}");
    }
    for slba in [100, 2040] {
        assert!(queue.read(1, slba, 8, BS).data.iter().all(|byte| *byte == 0), "{slba}");
    }
    target.shutdown().unwrap();
}

// -------------------------------------------------------------------------------- write protection

const PROTECTED: Status = Status::NAMESPACE_WRITE_PROTECTED.dnr();

/// Set Features of Namespace Write Protection Config.
fn protect(admin: &mut RawHost, state: u32) -> Status {
    let sqe = Sqe {
        opc: admin::SET_FEATURES,
        nsid: 1.into(),
        cdw10: 0x84.into(),
        cdw11: state.into(),
        ..Sqe::default()
    };
    status(&admin.plain_command(sqe))
}

fn protection(admin: &mut RawHost) -> u32 {
    let sqe =
        Sqe { opc: admin::GET_FEATURES, nsid: 1.into(), cdw10: 0x84.into(), ..Sqe::default() };
    admin.plain_command(sqe).cqe.dw0
}

tcp_only! {
    /// Its data come when the namespace is protected.
    #[test]
    fn a_write_that_waits_for_its_data_meets_the_protection() {
        let (target, address) = start(config(1), vec![ram("1M")]);
        let (mut admin, cntlid) = RawHost::admin(address, Wants::default());
        let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
        let waiting = queue.submit(block_sqe(io::WRITE, 1, 0, 32), Direction::HostToController, 16384);
        let Heard::SendData(grant) = queue.listen() else { panic!("no R2T") };
        assert_eq!(protect(&mut admin, 2), Status::SUCCESS);
        queue.send_data(&grant, &pattern(2, 16384));
        assert_eq!(status(&queue.wait(waiting, &[])), PROTECTED);
        assert_eq!(queue.read(1, 0, 32, BS).data, vec![0; 16384]);
        target.shutdown().unwrap();
    }
}

#[test]
fn a_protected_namespace_takes_no_writes_until_the_target_ends() {
    let (target, address) = start(config(2), vec![ram("1M"), ram("1M")]);
    let (mut admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    let (mut other_admin, other) = RawHost::admin(address, Wants::default());
    let mut other_queue = RawHost::io(address, other, 1, Wants::default());
    let data = pattern(1, 16384);
    assert!(status(&queue.write(1, 0, &data, BS)).is_success());
    assert_eq!(protect(&mut admin, 1), Status::FEATURE_NOT_CHANGEABLE.dnr(), "it has no place");
    assert_eq!(protect(&mut admin, 2), Status::SUCCESS);
    for queue in [&mut queue, &mut other_queue] {
        assert_eq!(status(&queue.write(1, 0, &data, BS)), PROTECTED);
        assert_eq!(status(&queue.plain_command(block_sqe(io::WRITE_ZEROES, 1, 0, 8))), PROTECTED);
        assert_eq!(copy(queue, 100, &[(0, 8)]).0, PROTECTED);
        assert!(status(&queue.plain_command(block_sqe(io::FLUSH, 1, 0, 1))).is_success());
        assert_eq!(queue.read(1, 0, 32, BS).data, data);
        assert!(status(&queue.write(2, 0, &data, BS)).is_success());
    }
    assert_eq!((protection(&mut admin), protection(&mut other_admin)), (2, 2));
    for state in [0, 1] {
        assert_eq!(protect(&mut other_admin, state), Status::FEATURE_NOT_CHANGEABLE.dnr());
    }
    assert_eq!(protect(&mut admin, 2), Status::SUCCESS, "it is so already");
    target.shutdown().unwrap();
}

#[derive(Default)]
struct Store {
    is_protected: Mutex<bool>,
    broken: AtomicBool,
}

impl ProtectionStore for Store {
    fn save(&self, is_protected: bool) -> std::io::Result<()> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        *self.is_protected.lock().unwrap() = is_protected;
        Ok(())
    }
}

fn with_store(store: &Arc<Store>) -> (Target, SocketAddr) {
    let is_protected = *store.is_protected.lock().unwrap();
    let place = ProtectionPlace { store: Arc::clone(store) as _, is_protected };
    let target = Target::start(config(1)).unwrap();
    target.add_subsystem(subsystem()).unwrap();
    let exported = NamespaceConfig { protection: Some(place), ..namespace(ram("1M")) };
    target.add_namespace(&nqn(), exported).unwrap();
    let address = crate::common::listen(&target);
    (target, address)
}

#[test]
fn protection_that_is_to_last_is_kept_before_the_answer() {
    let store = Arc::new(Store::default());
    for (state, kept, after) in [(1, true, 1), (0, false, 0), (2, false, 0)] {
        let (target, address) = with_store(&store);
        let (mut admin, cntlid) = RawHost::admin(address, Wants::default());
        let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
        store.broken.store(true, Ordering::Relaxed);
        let before = protection(&mut admin);
        assert_eq!(protect(&mut admin, state), Status::INTERNAL, "it cannot be kept");
        assert_eq!(protection(&mut admin), before);
        store.broken.store(false, Ordering::Relaxed);
        assert_eq!(protect(&mut admin, state), Status::SUCCESS);
        assert_eq!(*store.is_protected.lock().unwrap(), kept);
        let expected = if state == 0 { Status::SUCCESS } else { PROTECTED };
        assert_eq!(status(&queue.write(1, 0, &pattern(1, 512), BS)), expected, "state {state}");
        target.shutdown().unwrap();
        let (target, address) = with_store(&store);
        let (mut admin, _) = RawHost::admin(address, Wants::default());
        assert_eq!(protection(&mut admin), after, "after a restart");
        target.shutdown().unwrap();
    }
}

struct Image {
    device: raceline_bdev::SharedBdev,
}

/// A file in the folder for temporary files of this build, as a device.
fn tempfile(name: &str, bytes: u64) -> Image {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    let spec = format!("file:{},bs=512,buffered", path.display()).parse().unwrap();
    let identity = raceline_bdev::Identity::of_this_machine();
    Image { device: raceline_bdev::open(&spec, &identity).unwrap() }
}
