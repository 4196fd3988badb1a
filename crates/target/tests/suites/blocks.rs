//! Large writes to memory. Over TCP their blocks are written as they come: cut anywhere, broken off, and beside locks. Over
//! RDMA the data of a write come whole, or not at all.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::{ControllerId, Direction, Sqe};
use raceline_proto::tcp::R2tGrant;
use raceline_target::{Target, TargetConfig};

use crate::common::{
    Answer, Heard, RawHost, Wants, block_sqe, config, eventually, pattern, ram, start, status,
};

const BS: u32 = 512;
const BLOCKS: u32 = 64;
const BYTES: u32 = BLOCKS * BS;
const LEN: usize = BYTES as usize;
/// Buffers of 128 KiB, more than 8 MiB.
const WAITING: usize = 70;
/// Where these would write.
const ELSEWHERE: u64 = 1900;

/// A target whose caches do not hold the data in flight.
fn start_target(cores: usize) -> (Target, SocketAddr) {
    let config = TargetConfig { large_buffers_per_core: 2 * WAITING, ..config(cores) };
    start(config, vec![ram("1M")])
}

/// A queue with [`WAITING`] writes. Over TCP they are granted and their data do not come, so that all others go by blocks.
fn busy_queue(address: SocketAddr, cntlid: ControllerId, qid: u16) -> RawHost {
    let mut queue = RawHost::io(address, cntlid, qid, Wants::default());
    (0..WAITING).for_each(|_| ask(&mut queue, ELSEWHERE));
    let grants = queue.grants(WAITING);
    assert!(grants.iter().all(|heard| matches!(heard, Heard::SendData(_))), "{grants:?}");
    queue
}

/// Asks for a write.
fn ask(queue: &mut RawHost, slba: u64) {
    queue.submit(block_sqe(io::WRITE, 1, slba, BLOCKS), Direction::HostToController, BYTES);
}

/// Waits until the controller has nothing but its admin queue.
fn only_admin(target: &Target) {
    eventually("the queue is gone", || target.stats().connections.iter().sum::<usize>() == 1);
}

/// Its host leaves before the data come, and while they come.
#[test]
fn a_write_whose_host_leaves_has_whole_blocks() {
    const ROUNDS: u64 = 12;
    let (target, address) = start_target(1);
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    for round in 0..ROUNDS {
        let mut queue = busy_queue(address, cntlid, 1);
        let [old, new] = [1, 2].map(|n| pattern(n + 2 * round, LEN));
        assert!(status(&queue.write(1, 9, &old, BS)).is_success());
        let keeps = round % 2 == 0;
        queue.keep_data(keeps);
        queue.submit_write(block_sqe(io::WRITE, 1, 9, BLOCKS), &new);
        let grants = queue.grants(1);
        if !keeps {
            for grant in &grants {
                let Heard::SendData(grant) = grant else { panic!("{grant:?}") };
                queue.send_data(grant, &new);
            }
            std::thread::sleep(Duration::from_micros(200 * round));
        }
        drop(queue);
        only_admin(&target);
        let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
        let found = queue.read(1, 9, BLOCKS, BS).data;
        for (index, block) in found.chunks(BS as usize).enumerate() {
            let at = index * BS as usize..(index + 1) * BS as usize;
            let is_new = block == &new[at.clone()];
            assert!(is_new || block == &old[at], "block {index} is torn in round {round}");
            assert!(!(is_new && keeps), "block {index} was not sent in round {round}");
        }
        drop(queue);
        only_admin(&target);
    }
    target.shutdown().unwrap();
}

tcp_only! {
    /// Asks for a write; gives what the target grants.
    fn granted(queue: &mut RawHost, slba: u64) -> R2tGrant {
        ask(queue, slba);
        match queue.listen() {
            Heard::SendData(grant) => grant,
            other => panic!("expected R2T, got {other:?}"),
        }
    }

    /// Sends in pieces that end at `cuts`; the target nearly always receives each piece alone.
    fn send_cut(queue: &mut RawHost, bytes: &[u8], cuts: &[usize]) {
        let mut sent = 0;
        for &cut in cuts.iter().filter(|&&cut| cut < bytes.len()) {
            queue.send_bytes(&bytes[sent..cut]);
            std::thread::sleep(Duration::from_millis(3));
            sent = cut;
        }
        queue.send_bytes(&bytes[sent..]);
    }

    fn write_cut(queue: &mut RawHost, slba: u64, data: &[u8], pdu: u32, cuts: &[usize]) -> Answer {
        let grant = granted(queue, slba);
        let bytes = queue.h2c_data(&grant, data, pdu);
        send_cut(queue, &bytes, cuts);
        queue.wait(grant.cid, data)
    }

    #[test]
    fn data_that_are_cut_anywhere_are_written_whole() {
        let (target, address) = start_target(1);
        let (_admin, cntlid) = RawHost::admin(address, Wants::default());
        let mut queue = busy_queue(address, cntlid, 1);
        let ends = || target.stats().subsystems[0].1.writes;
        let cuts: [&[usize]; 7] = [
            &[],
            &[24],
            &[25, 26, 27],
            &[24 + 511, 24 + 512, 24 + 513],
            &[24 + 511, 24 + 1025, 24 + 5000, 24 + 5001],
            &[24 + 512 * 20, 24 + LEN - 1],
            &[24 + 100, 24 + LEN - 511, 24 + LEN - 100],
        ];
        let mut seed = 0;
        for pdu in [BYTES, 48 << 10, 1000, 516, 4] {
            for cuts in cuts {
                seed += 1;
                let (data, before) = (pattern(seed, LEN), ends());
                let answer = write_cut(&mut queue, seed % 7, &data, pdu, cuts);
                assert!(status(&answer).is_success());
                assert_eq!(ends() - before, 1, "PDUs of {pdu}, cut at {cuts:?}");
                let found = queue.read(1, seed % 7, BLOCKS, BS).data;
                assert!(found == data, "PDUs of {pdu}, cut at {cuts:?}");
            }
        }
        target.shutdown().unwrap();
    }

    #[test]
    fn a_write_that_breaks_off_leaves_whole_blocks() {
        let (target, address) = start_target(1);
        let (_admin, cntlid) = RawHost::admin(address, Wants::default());
        for (round, cut) in [0, 1, 511, 512, 700, 1024, 5000, LEN - 1].into_iter().enumerate() {
            let mut queue = busy_queue(address, cntlid, 1);
            let [old, new] = [1, 2].map(|n| pattern(n + 2 * round as u64, LEN));
            assert!(status(&queue.write(1, 9, &old, BS)).is_success());
            let grant = granted(&mut queue, 9);
            let bytes = queue.h2c_data(&grant, &new, BYTES);
            send_cut(&mut queue, &bytes[..24 + cut], &[24 + cut / 2]);
            drop(queue);
            only_admin(&target);
            let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
            let found = queue.read(1, 9, BLOCKS, BS).data;
            for (index, block) in found.chunks(BS as usize).enumerate() {
                let at = index * BS as usize..(index + 1) * BS as usize;
                let is_new = block == &new[at.clone()];
                assert!(is_new || block == &old[at.clone()], "block {index} is torn, cut at {cut}");
                assert!(!is_new || at.end <= cut, "block {index} was not sent, cut at {cut}");
            }
            drop(queue);
            only_admin(&target);
        }
        target.shutdown().unwrap();
    }
}

/// Compare-and-write elsewhere on the device repeatedly holds all blocks back for a short time, in the
/// middle of writes.
#[test]
fn locks_that_come_and_go_lose_no_block() {
    const ROUNDS: usize = 200;
    let (target, address) = start_target(2);
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for qid in 1..=2 {
            let stop = &stop;
            scope.spawn(move || {
                let mut queue = RawHost::io(address, cntlid, qid, Wants::default());
                let fused = |opc, fuse| Sqe { flags: fuse, ..block_sqe(opc, 1, 1000, 1) };
                let data = vec![0; BS as usize];
                while !stop.load(Ordering::Relaxed) {
                    let one = queue.submit_in_capsule(fused(io::COMPARE, 1), &data);
                    let two = queue.submit_in_capsule(fused(io::WRITE, 2), &data);
                    assert!(queue.wait(one, &[]).cqe.status.is_success());
                    assert!(queue.wait(two, &[]).cqe.status.is_success());
                    std::thread::sleep(Duration::from_micros(300));
                }
            });
        }
        let mut queue = busy_queue(address, cntlid, 4);
        for round in 0..ROUNDS {
            let data = pattern(round as u64, LEN);
            let sqe = block_sqe(io::WRITE, 1, 3, BLOCKS);
            let answer = queue.write_in_pieces(sqe, &data, 3000, 50 + round * 97);
            let right = status(&answer).is_success() && queue.read(1, 3, BLOCKS, BS).data == data;
            if !right || round + 1 == ROUNDS {
                stop.store(true, Ordering::Relaxed);
            }
            assert!(right, "round {round}: {}", status(&answer));
        }
    });
    target.shutdown().unwrap();
}
