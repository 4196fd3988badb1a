//! The connection of one I/O queue is lost, and its admin queue stays: that queue ends with its commands, and nothing else.

use std::sync::Arc;
use std::time::Duration;

use raceline_bdev::{DelayBdev, Delays};
use raceline_proto::nvme::opcode::{fabrics, io};
use raceline_proto::nvme::{CommandId, Sqe, Status};
use raceline_rdma::HostTransfer;
use raceline_rdma::verbs::ConnectionId;
use raceline_target::{RdmaConfig, Target};

use super::host::{Fabric, Host};
use super::{BS, DATA, blocks, each_kind, nobody_is_left, write_and_read};
use crate::common::{block_sqe, config, eventually, nqn, pattern, ram};

/// Bytes of a write.
const LEN: u32 = 64 << 10;
/// Writes of a queue.
const WRITES: u32 = 8;
/// As often as the target's buffers are used several times over.
const ROUNDS: u64 = 8;

/// Where a queue writes, in blocks and in the host's memory.
fn place(qid: u16, n: u32) -> (u64, u32) {
    let n = u32::from(qid - 1) * WRITES + n;
    (u64::from(n) * u64::from(blocks(LEN)), DATA + n * LEN)
}

fn data(round: u64, qid: u16, n: u32) -> Vec<u8> {
    pattern(round * 100 + u64::from(qid) * 10 + u64::from(n), usize::try_from(LEN).unwrap())
}

/// Has writes under way on a queue.
fn write_all(host: &mut Host, queue: ConnectionId, qid: u16, round: u64) -> Vec<CommandId> {
    let write = |n| {
        let (slba, at) = place(qid, n);
        host.put(at, &data(round, qid, n));
        let transfer = HostTransfer::Keyed { block: host.block(at, LEN), invalidate: false };
        host.submit(queue, &block_sqe(io::WRITE, 1, slba, blocks(LEN)), transfer)
    };
    (0..WRITES).map(write).collect()
}

/// What is written where a queue has written last.
fn written(host: &mut Host, queue: ConnectionId, qid: u16, n: u32) -> Vec<u8> {
    let at = DATA + (4 << 20);
    let read = block_sqe(io::READ, 1, place(qid, n).0, blocks(LEN));
    assert_eq!(host.command(queue, &read, at, LEN).status, Status::SUCCESS);
    host.get(at, LEN)
}

/// The numbers of the queues that the target has.
fn qids(target: &Target) -> Vec<u16> {
    let mut qids: Vec<_> = target.queues(&nqn()).iter().map(|queue| queue.qid.0).collect();
    qids.sort_unstable();
    qids
}

/// The admin queue works, and its controller is ready and has not failed.
fn is_ready(host: &mut Host, admin: ConnectionId) {
    assert_eq!(host.keep_alive(admin), Status::SUCCESS);
    let csts = Sqe {
        opc: fabrics::OPCODE,
        nsid: u32::from(fabrics::PROPERTY_GET).into(),
        cdw11: 0x1c.into(),
        ..Sqe::default()
    };
    assert_eq!(host.command(admin, &csts, 0, 0).dw0, 1, "CSTS");
}

#[test]
fn an_io_queue_that_is_lost_ends_alone() {
    each_kind(|target_config, network| {
        let fabric = Fabric::new(network);
        let streams = fabric.streams_of(RdmaConfig::of(&config(1)));
        let slow = DelayBdev::new(ram("16M"), Delays::all(Duration::from_millis(3)));
        let (target, _, rdma) = fabric.target_of(target_config, streams, Arc::new(slow));
        let mut host = Host::new(&fabric, rdma);
        let (admin, cntlid) = host.admin(&nqn(), 0);
        let stays = host.io(cntlid, 2, 32);
        for round in 0..ROUNDS {
            let lost = host.io(cntlid, 1, 32);
            let before = host.losses.len();
            write_all(&mut host, lost, 1, round);
            let others = write_all(&mut host, stays, 2, round);
            // The connection is lost sooner or later after the commands have left.
            (0..round * 6).for_each(|_| host.turn());
            host.port.provider().cut(lost);
            host.until("the loss of the queue", |host| (host.losses.len() > before).then_some(()));
            assert!(host.losses[before..].iter().all(|(queue, _)| *queue == lost));
            for cid in others {
                assert_eq!(host.wait(stays, cid).status, Status::SUCCESS);
            }
            is_ready(&mut host, admin);
            eventually("the queue is gone", || qids(&target) == [0, 2]);
            for n in 0..WRITES {
                assert!(written(&mut host, stays, 2, n) == data(round, 2, n), "round {round}");
                let found = written(&mut host, stays, 1, n);
                let [old, new] = [round.saturating_sub(1), round].map(|at| data(at, 1, n));
                let size = usize::try_from(BS).unwrap();
                for (at, block) in found.chunks(size).enumerate() {
                    let range = at * size..(at + 1) * size;
                    let is_whole = block == &new[range.clone()] || block == &old[range];
                    let never = round == 0 && block.iter().all(|byte| *byte == 0);
                    assert!(is_whole || never, "block {at} of write {n} in round {round}");
                }
            }
            host.close(lost);
            // The same number is free for another connection. All that was written is known again for the next round.
            let again = host.io(cntlid, 1, 32);
            for cid in write_all(&mut host, again, 1, round) {
                assert_eq!(host.wait(again, cid).status, Status::SUCCESS);
            }
            write_and_read(&mut host, again, 20_000, 4096);
            host.close(again);
            eventually("the queue is gone", || qids(&target) == [0, 2]);
        }
        is_ready(&mut host, admin);
        assert_eq!(target.stats().controllers, 1, "the first one");
        host.close(stays);
        host.close(admin);
        nobody_is_left(&target);
        target.shutdown().unwrap();
        fabric.end();
    });
}

/// The admin queue is lost, so the target closes the I/O queue once its last response has left. A command that comes meanwhile is
/// not answered, as on a socket that is closed: the host may send it again.
#[test]
fn a_queue_that_is_closed_answers_no_later_command() {
    each_kind(|target_config, network| {
        let fabric = Fabric::new(network);
        let (target, _, rdma) = fabric.target(target_config);
        let mut host = Host::new(&fabric, rdma);
        let (admin, cntlid) = host.admin(&nqn(), 0);
        let queue = host.io(cntlid, 1, 32);
        write_and_read(&mut host, queue, 0, 4096);
        let reads = || target.stats().subsystems[0].1.reads;
        let before = reads();
        // Its response cannot leave.
        host.port.provider().take_nothing(true);
        let read = |host: &mut Host| {
            let transfer = HostTransfer::Keyed { block: host.block(DATA, BS), invalidate: false };
            let cid = host.submit(queue, &block_sqe(io::READ, 1, 0, 1), transfer);
            host.port.post();
            cid
        };
        let first = read(&mut host);
        eventually("the first command is executed", || reads() > before);
        host.port.provider().cut(admin);
        eventually("the target has closed the queues", || target.stats().controllers == 0);
        let later = read(&mut host);
        std::thread::sleep(Duration::from_millis(100));
        host.port.provider().take_nothing(false);
        host.until("the loss of both queues", |host| (host.losses.len() == 2).then_some(()));
        assert!(host.is_answered(queue, first), "the last response has left");
        assert!(!host.is_answered(queue, later), "it came too late");
        nobody_is_left(&target);
        target.shutdown().unwrap();
        fabric.end();
    });
}
