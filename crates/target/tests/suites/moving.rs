//! I/O queues that move from core to core while they are used.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use crate::common::{
    RawHost, Wants, block_sqe, config, eventually, nqn, pattern, ram, start, status,
};
use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::{ControllerId, Direction, QueueId};
use raceline_reactor::Backend;
use raceline_target::{PlacementPolicy, Target, TargetConfig, TargetError};

const BS: u32 = 512;
const CC: u32 = 0x14;
const DISABLED: u64 = 0x0046_0000;

fn core_of(target: &Target, qid: u16) -> usize {
    let queues = target.queues(&nqn());
    queues.iter().find(|queue| queue.qid == QueueId(qid)).unwrap().core
}

fn move_to(target: &Target, cntlid: ControllerId, qid: u16, core: usize) {
    target.move_queue(&nqn(), cntlid, QueueId(qid), core).unwrap();
}

#[test]
fn a_queue_moves_between_its_commands() {
    for backend in [Backend::Auto, Backend::Epoll] {
        for wants in [Wants::default(), Wants { hdgst: true, ddgst: true, hpda: 0 }] {
            let config = TargetConfig { backend, ..config(2) };
            let (target, address) = start(config, vec![ram("4M")]);
            let (_admin, cntlid) = RawHost::admin(address, wants);
            let mut queue = RawHost::io(address, cntlid, 1, wants);
            let (mut came, mut blocks_moved) = (0, 0_u64);
            for turn in 0..40_u64 {
                let before = core_of(&target, 1);
                move_to(&target, cntlid, 1, 1 - before);
                // In the capsule, by R2T, and by several R2Ts.
                let blocks = [1, 8, 64, 512][usize::try_from(turn % 4).unwrap()];
                let data = pattern(turn, (blocks * BS) as usize);
                assert!(status(&queue.write(1, turn, &data, BS)).is_success());
                assert!(queue.read(1, turn, blocks, BS).data == data, "turn {turn}");
                blocks_moved += u64::from(blocks);
                came += usize::from(core_of(&target, 1) != before);
            }
            assert!(came >= 20, "{came} of 40 moves");
            let stats = target.poll_groups();
            assert!(stats.iter().all(|core| core.totals.reads > 5), "{stats:?}");
            let written: u64 = stats.iter().map(|core| core.totals.written_bytes).sum();
            assert_eq!(written, blocks_moved * u64::from(BS));
            assert_eq!(target.stats().connections.iter().sum::<usize>(), 2);
            target.shutdown().unwrap();
        }
    }
}

#[test]
fn commands_that_come_together_stay_in_order() {
    let (target, address) = start(config(2), vec![ram("4M")]);
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    for turn in 0..60_u64 {
        // The last of the writes to one block decides; a queue of RAM executes them as they come.
        move_to(&target, cntlid, 1, usize::try_from(turn % 2).unwrap());
        let writes: Vec<_> = (0..8_u64)
            .map(|number| {
                let data = pattern(turn << 8 | number, BS as usize);
                queue.submit_in_capsule(block_sqe(io::WRITE, 1, 3, 1), &data)
            })
            .collect();
        let read = queue.submit(block_sqe(io::READ, 1, 3, 1), Direction::ControllerToHost, BS);
        for write in writes {
            assert!(status(&queue.wait(write, &[])).is_success());
        }
        assert_eq!(queue.wait(read, &[]).data, pattern(turn << 8 | 7, BS as usize));
    }
    assert!(target.stats().moves >= 20, "{}", target.stats().moves);
    target.shutdown().unwrap();
}

#[test]
fn a_controller_that_is_reset_closes_queues_on_their_way() {
    let (target, address) = start(config(2), vec![ram("1M")]);
    for turn in 0..60_u64 {
        let (mut admin, cntlid) = RawHost::admin(address, Wants::default());
        let mut queues: Vec<_> =
            (1..4).map(|qid| RawHost::io(address, cntlid, qid, Wants::default())).collect();
        for (qid, queue) in (1..).zip(&mut queues) {
            move_to(&target, cntlid, qid, usize::try_from(turn % 2).unwrap());
            assert!(status(&queue.write(1, 0, &pattern(turn, BS as usize), BS)).is_success());
        }
        if turn % 3 == 0 {
            drop(admin);
        } else {
            assert!(admin.set_property(CC, DISABLED).status.is_success());
        }
        for queue in &mut queues {
            assert_eq!(queue.until_closed(), None);
        }
    }
    eventually("all connections are gone", || target.stats().connections == [0, 0]);
    assert!(target.stats().moves >= 30, "{}", target.stats().moves);
    target.shutdown().unwrap();
}

#[test]
fn writes_that_wait_for_the_move_are_written_after_it() {
    let (target, address) = start(config(2), vec![ram("64M")]);
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    const BLOCKS: u32 = 256;
    let bytes = (BLOCKS * BS) as usize;
    let data: Vec<Vec<u8>> = (0..64).map(|number| pattern(number, bytes)).collect();
    let data_of = |number: u64| &data[usize::try_from(number % 64).unwrap()][..];
    // 16 writes by R2T are outstanding all the time, so the queue never has none.
    let write = |queue: &mut RawHost, number: u64| {
        let sqe = block_sqe(io::WRITE, 1, number % 64 * u64::from(BLOCKS), BLOCKS);
        queue.submit_write(sqe, data_of(number))
    };
    let mut outstanding: std::collections::VecDeque<_> =
        (0..16).map(|number| (write(&mut queue, number), number)).collect();
    for number in 16..400 {
        if number % 8 == 0 {
            let core = usize::try_from(number / 8 % 2).unwrap();
            move_to(&target, cntlid, 1, core);
        }
        let (cid, first) = outstanding.pop_front().unwrap();
        assert!(status(&queue.wait(cid, data_of(first))).is_success());
        outstanding.push_back((write(&mut queue, number), number));
    }
    for (cid, first) in outstanding {
        assert!(status(&queue.wait(cid, data_of(first))).is_success());
    }
    for number in 0..64 {
        let read = queue.read(1, number * u64::from(BLOCKS), BLOCKS, BS);
        assert!(read.data == data_of(number), "{number}");
    }
    assert!(target.stats().moves >= 8, "{}", target.stats().moves);
    target.shutdown().unwrap();
}

#[test]
fn a_silent_queue_stays_and_works_on() {
    let (target, address) = start(config(2), vec![ram("1M")]);
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    let core = core_of(&target, 1);
    move_to(&target, cntlid, 1, 1 - core);
    std::thread::sleep(Duration::from_millis(300));
    let data = pattern(1, BS as usize);
    assert!(status(&queue.write(1, 0, &data, BS)).is_success());
    assert_eq!(queue.read(1, 0, 1, BS).data, data);
    assert_eq!((core_of(&target, 1), target.stats().moves), (core, 0));
    target.shutdown().unwrap();
}

#[test]
fn a_target_stops_with_queues_on_their_way() {
    for turn in 0..30_u64 {
        let (target, address) = start(config(2), vec![ram("1M")]);
        let (_admin, cntlid) = RawHost::admin(address, Wants::default());
        let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
        move_to(&target, cntlid, 1, 1 - core_of(&target, 1));
        assert!(status(&queue.write(1, 0, &pattern(turn, BS as usize), BS)).is_success());
        target.shutdown().unwrap();
    }
}

#[test]
fn what_cannot_move_is_refused() {
    let (target, address) = start(config(2), vec![ram("1M")]);
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let _queue = RawHost::io(address, cntlid, 1, Wants::default());
    for (cntlid, qid, core) in
        [(cntlid, 2, 0), (cntlid, 1, 2), (ControllerId(77), 1, 0), (cntlid, 0, 1)]
    {
        let error = target.move_queue(&nqn(), cntlid, QueueId(qid), core).unwrap_err();
        assert!(matches!(error, TargetError::NoQueue { .. }), "{error}");
    }
    target.set_balancing(Some(Duration::from_millis(10))).unwrap();
    assert_eq!(target.balancing(), Some(Duration::from_millis(10)));
    target.set_balancing(None).unwrap();
    assert_eq!(target.balancing(), None);
    target.shutdown().unwrap();
    let config = TargetConfig { placement: PlacementPolicy::Cpu, ..config(2) };
    let (target, _) = start(config, vec![ram("1M")]);
    let error = target.set_balancing(Some(Duration::from_secs(1))).unwrap_err();
    assert!(error.to_string().contains("only with balanced placement"), "{error}");
    target.shutdown().unwrap();
}
