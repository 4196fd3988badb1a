//! I/O through the whole target, by an independent host: data, digests, fused
//! commands, many connections and cores.

use std::io::Write as _;

use crate::common::{
    ANSWERS_OF_A_READ, RawHost, Wants, block_sqe, config, eventually, pattern, ram, start, status,
};
use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::{Direction, Sqe, Status};
use raceline_reactor::Backend;

const BS: u32 = 512;

fn all_wants() -> Vec<Wants> {
    [(false, false), (true, false), (false, true), (true, true)]
        .iter()
        .flat_map(|&(hdgst, ddgst)| [0, 3, 31].map(|hpda| Wants { hdgst, ddgst, hpda }))
        .collect()
}

#[test]
fn what_is_written_is_read_back_whatever_the_digests_and_sizes() {
    for backend in [Backend::Uring, Backend::Epoll] {
        let config = raceline_target::TargetConfig { backend, ..config(2) };
        let (target, address) = start(config, vec![ram("4M")]);
        let baseline = target.stats();
        assert_eq!(baseline.controllers, 0);
        for wants in all_wants() {
            let (admin, cntlid) = RawHost::admin(address, wants);
            let mut queue = RawHost::io(address, cntlid, 1, wants);
            for (i, blocks) in [1u32, 2, 8, 16, 17, 100, 256].into_iter().enumerate() {
                let data = pattern(u64::from(blocks) + i as u64, (blocks * BS) as usize);
                let slba = u64::from(blocks) * 3;
                assert!(status(&queue.write(1, slba, &data, BS)).is_success());
                let answer = queue.read(1, slba, blocks, BS);
                assert!(status(&answer).is_success());
                assert_eq!(answer.data, data, "{blocks} blocks");
            }
            drop((admin, queue));
        }
        eventually("all associations are gone", || {
            let stats = target.stats();
            stats.controllers == 0 && stats.connections.iter().all(|n| *n == 0)
        });
        target.shutdown().unwrap();
    }
}

tcp_only! {
    /// A write whose capsule lies whole in the staging buffer goes to RAM from there; one that comes
    /// in pieces takes the way through an I/O buffer. Both come in one stream, cut anywhere.
    #[test]
    fn a_write_that_comes_in_pieces_is_written_whole() {
        const BLOCKS: u32 = 8;
        const WRITES: u64 = 3;
        let (target, address) = start(config(1), vec![ram("1M")]);
        let copied = || target.stats().subsystems[0].1.copied_bytes;
        for wants in [Wants::default(), Wants { hdgst: true, ddgst: true, hpda: 0 }] {
            let (_admin, cntlid) = RawHost::admin(address, wants);
            let mut queue = RawHost::io(address, cntlid, 1, wants);
            let whole = 72 + (BLOCKS * BS) as usize + if wants.ddgst { 8 } else { 0 };
            for cut in
                [0, 1, 71, 72, 73, 80, 2000, whole - 1, whole, whole + 60, whole + 72, whole * 2 + 80]
            {
                let writes: Vec<_> = (0..WRITES)
                    .map(|n| {
                        let slba = n * u64::from(BLOCKS);
                        let data = pattern(cut as u64 * WRITES + n, (BLOCKS * BS) as usize);
                        let (cid, capsule) =
                            queue.capsule(block_sqe(io::WRITE, 1, slba, BLOCKS), &data);
                        (slba, data, cid, capsule)
                    })
                    .collect();
                let stream: Vec<u8> = writes.iter().flat_map(|write| write.3.clone()).collect();
                let before = copied();
                queue.stream.write_all(&stream[..cut]).unwrap();
                // Long enough that the target nearly always receives the first piece alone.
                std::thread::sleep(std::time::Duration::from_millis(5));
                queue.stream.write_all(&stream[cut..]).unwrap();
                for (_, _, cid, _) in &writes {
                    assert!(status(&queue.wait(*cid, &[])).is_success(), "cut at {cut}");
                }
                let copies = (copied() - before) / u64::from(BLOCKS * BS);
                assert!((WRITES..=2 * WRITES).contains(&copies), "{copies} copies, cut at {cut}");
                for (slba, data, _, _) in &writes {
                    assert_eq!(queue.read(1, *slba, BLOCKS, BS).data, *data, "cut at {cut}");
                }
            }
        }
        target.shutdown().unwrap();
    }
}

#[test]
fn a_read_only_device_refuses_what_is_staged() {
    let (target, address) = start(config(1), vec![ram("1M,readonly")]);
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    let answer = queue.write(1, 0, &pattern(1, 4096), BS);
    assert_eq!(status(&answer), Status::NAMESPACE_WRITE_PROTECTED.dnr());
    assert_eq!(queue.read(1, 0, 8, BS).data, vec![0; 4096]);
    target.shutdown().unwrap();
}

#[test]
fn counts_are_exact() {
    const COUNT: u64 = 10;
    for backend in [Backend::Uring, Backend::Epoll] {
        let config = raceline_target::TargetConfig { backend, ..config(1) };
        let (target, address) = start(config, vec![ram("1M")]);
        let (_admin, cntlid) = RawHost::admin(address, Wants::default());
        let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
        let totals = || target.stats().subsystems[0].1;

        // One capsule in and one C2HData with SUCCESS out, sent from the device's memory. Over RDMA, a response as well.
        let before = totals();
        for block in 0..COUNT {
            assert!(status(&queue.read(1, 8 * block, 8, BS)).is_success());
        }
        let reads = totals().since(&before);
        assert_eq!((reads.commands, reads.reads), (COUNT, COUNT));
        assert_eq!((reads.receives, reads.pdus_received), (COUNT, COUNT));
        assert_eq!((reads.sends, reads.pdus_sent), (COUNT, ANSWERS_OF_A_READ * COUNT));
        assert_eq!(reads.copied_bytes, 0);

        // In the capsule: copied into the namespace, and before that into a buffer if the data were
        // received with other bytes.
        let before = totals();
        for block in 0..COUNT {
            assert!(status(&queue.write(1, 8 * block, &pattern(block, 4096), BS)).is_success());
        }
        let writes = totals().since(&before);
        assert_eq!((writes.pdus_received, writes.pdus_sent), (COUNT, COUNT));
        let once = COUNT * 4096;
        assert!((once..=2 * once).contains(&writes.copied_bytes), "{writes:?}");

        // By R2T: R2T and response out, capsule and H2CData in.
        let before = totals();
        assert!(status(&queue.write(1, 0, &pattern(1, 16 << 10), BS)).is_success());
        let write = totals().since(&before);
        assert_eq!((write.pdus_received, write.pdus_sent), (2, 2));
        target.shutdown().unwrap();
    }
}

tcp_only! {
    #[test]
    fn a_bad_data_digest_fails_the_command_and_spares_device_and_connection() {
        let (target, address) = start(config(1), vec![ram("1M")]);
        let wants = Wants { ddgst: true, ..Wants::default() };
        let (_admin, cntlid) = RawHost::admin(address, wants);
        let mut queue = RawHost::io(address, cntlid, 1, wants);
        let good = pattern(1, 4096);
        assert!(status(&queue.write(1, 0, &good, BS)).is_success());

        // In the capsule, with the digest of other data.
        let sqe = Sqe { cid: 77.into(), ..block_sqe(io::WRITE, 1, 0, 8) };
        let mut out = Vec::new();
        queue.queue.command(&sqe, Direction::HostToController, 4096, true, &mut out);
        out.extend_from_slice(&pattern(2, 4096));
        out.extend_from_slice(&raceline_accel::crc32c(&good).to_le_bytes());
        std::io::Write::write_all(&mut queue.stream, &out).unwrap();
        let answer = queue.wait(sqe.command_id(), &[]);
        assert!(status(&answer).same_code(Status::TRANSIENT_TRANSPORT_ERROR));
        assert!(!status(&answer).is_dnr());

        assert_eq!(queue.read(1, 0, 8, BS).data, good, "the write did not reach the device");
        let stats = target.stats();
        assert_eq!(stats.subsystems[0].1.digest_errors, 1);
        target.shutdown().unwrap();
    }
}

#[test]
fn the_commands_of_the_nvm_command_set() {
    let (target, address) = start(config(2), vec![ram("1M")]);
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    let data = pattern(3, 64 << 10);
    assert!(status(&queue.write(1, 0, &data, BS)).is_success());

    let compare = block_sqe(io::COMPARE, 1, 0, 8);
    assert!(status(&queue.write_command(compare, &data[..4096], true)).is_success());
    let answer = queue.write_command(compare, &data[1..4097], true);
    assert!(status(&answer).same_code(Status::COMPARE_FAILURE));

    assert!(status(&queue.plain_command(block_sqe(io::WRITE_ZEROES, 1, 8, 8))).is_success());
    assert_eq!(queue.read(1, 8, 8, BS).data, vec![0; 4096]);

    // Dataset Management: two ranges, deallocate.
    let mut ranges = vec![0u8; 4096];
    for (i, (slba, count)) in [(16u64, 4u32), (32, 8)].into_iter().enumerate() {
        ranges[i * 16 + 4..i * 16 + 8].copy_from_slice(&count.to_le_bytes());
        ranges[i * 16 + 8..i * 16 + 16].copy_from_slice(&slba.to_le_bytes());
    }
    let sqe = Sqe {
        opc: io::DATASET_MANAGEMENT,
        nsid: 1.into(),
        cdw10: 1.into(),
        cdw11: 4.into(),
        ..Sqe::default()
    };
    assert!(status(&queue.write_command(sqe, &ranges, true)).is_success());
    assert_eq!(queue.read(1, 16, 4, BS).data, vec![0; 2048]);
    assert_eq!(queue.read(1, 20, 12, BS).data, data[20 * 512..32 * 512]);
    assert_eq!(queue.read(1, 32, 8, BS).data, vec![0; 4096]);

    let flush = Sqe { opc: io::FLUSH, nsid: 1.into(), ..Sqe::default() };
    assert!(status(&queue.plain_command(flush)).is_success());

    let answer = queue.read(1, 2047, 2, BS);
    assert!(status(&answer).same_code(Status::LBA_OUT_OF_RANGE));
    let answer = queue.read(2, 0, 1, BS);
    assert!(status(&answer).same_code(Status::INVALID_NAMESPACE));
    let answer = queue.plain_command(Sqe { opc: 0x7d, nsid: 1.into(), ..Sqe::default() });
    assert!(status(&answer).same_code(Status::INVALID_OPCODE));
    target.shutdown().unwrap();
}

fn fused(opc: u8, fuse: u8, slba: u64, blocks: u32) -> Sqe {
    Sqe { flags: fuse, ..block_sqe(opc, 1, slba, blocks) }
}

#[test]
fn fused_compare_and_write_swaps_or_does_nothing() {
    for blocks in [1u32, 8, 64] {
        let (target, address) = start(config(2), vec![ram("1M")]);
        let (_admin, cntlid) = RawHost::admin(address, Wants::default());
        let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
        let [old, new] = [1, 2].map(|seed| pattern(seed, (blocks * BS) as usize));
        assert!(status(&queue.write(1, 4, &old, BS)).is_success());

        let mut swap = |expect: &[u8], write: &[u8]| {
            let len = blocks * BS;
            let first = fused(io::COMPARE, 1, 4, blocks);
            let second = fused(io::WRITE, 2, 4, blocks);
            if len <= 8192 {
                let one = queue.submit_in_capsule(first, expect);
                let two = queue.submit_in_capsule(second, write);
                (queue.wait(one, &[]).cqe.status, queue.wait(two, &[]).cqe.status)
            } else {
                let one = queue.submit_write(first, expect);
                let two = queue.submit_write(second, write);
                // Over TCP, the target asks for the data of both before either completes.
                for _ in 0..2 {
                    match queue.listen() {
                        crate::common::Heard::SendData(grant) => {
                            let data = if grant.cid == one { expect } else { write };
                            queue.send_data(&grant, data);
                        }
                        other => queue.heard.push(other),
                    }
                }
                (queue.wait(one, &[]).cqe.status, queue.wait(two, &[]).cqe.status)
            }
        };
        let (compare, write) = swap(&new, &old);
        assert!(compare.same_code(Status::COMPARE_FAILURE), "{compare}");
        assert!(write.same_code(Status::ABORTED_FAILED_FUSED), "{write}");
        let (compare, write) = swap(&old, &new);
        assert!(compare.is_success() && write.is_success(), "{compare} {write}");
        assert_eq!(queue.read(1, 4, blocks, BS).data, new);

        // A first without a second, a second without a first.
        let one = queue.submit_in_capsule(fused(io::COMPARE, 1, 4, 1), &new[..512]);
        let read = queue.submit(block_sqe(io::READ, 1, 4, 1), Direction::ControllerToHost, BS);
        assert!(queue.wait(one, &[]).cqe.status.same_code(Status::ABORTED_MISSING_FUSED));
        assert!(queue.wait(read, &[]).cqe.status.is_success());
        let answer = queue.write_command(fused(io::WRITE, 2, 4, 1), &old[..512], true);
        assert!(status(&answer).same_code(Status::ABORTED_MISSING_FUSED));
        assert_eq!(queue.read(1, 4, blocks, BS).data, new);
        target.shutdown().unwrap();
    }
}

#[test]
fn a_fused_operation_is_no_longer_than_its_buffers_may_be() {
    let (target, address) = start(config(1), vec![ram("1M")]);
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    let blocks = (128 << 10) / BS + 1;
    let submit = |queue: &mut RawHost, opc, fuse| {
        queue.submit(fused(opc, fuse, 0, blocks), Direction::HostToController, blocks * BS)
    };
    let one = submit(&mut queue, io::COMPARE, 1);
    let two = submit(&mut queue, io::WRITE, 2);
    let (one, two) = (queue.wait(one, &[]).cqe.status, queue.wait(two, &[]).cqe.status);
    assert!(one.same_code(Status::ATOMIC_WRITE_UNIT_EXCEEDED), "{one}");
    assert!(two.same_code(Status::ABORTED_FAILED_FUSED), "{two}");
    target.shutdown().unwrap();
}

#[test]
fn counters_kept_by_fused_compare_and_write_lose_no_increment() {
    const HOSTS: u64 = 4;
    const ROUNDS: u64 = 50;
    let (target, address) = start(config(2), vec![ram("1M")]);
    let threads: Vec<_> = (0..HOSTS)
        .map(|_| {
            std::thread::spawn(move || {
                let (_admin, cntlid) = RawHost::admin(address, Wants::default());
                let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
                let mut done = 0;
                while done < ROUNDS {
                    let old = queue.read(1, 9, 1, BS).data;
                    let count = u64::from_le_bytes(old[..8].try_into().unwrap());
                    let mut new = old.clone();
                    new[..8].copy_from_slice(&(count + 1).to_le_bytes());
                    let one = queue.submit_in_capsule(fused(io::COMPARE, 1, 9, 1), &old);
                    let two = queue.submit_in_capsule(fused(io::WRITE, 2, 9, 1), &new);
                    let compare = queue.wait(one, &[]).cqe.status;
                    let write = queue.wait(two, &[]).cqe.status;
                    assert_eq!(compare.is_success(), write.is_success());
                    done += u64::from(write.is_success());
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    let count = u64::from_le_bytes(queue.read(1, 9, 1, BS).data[..8].try_into().unwrap());
    assert_eq!(count, HOSTS * ROUNDS);
    target.shutdown().unwrap();
}

tcp_only! {
    #[test]
    fn commands_of_16_kib_have_buffers_of_their_own() {
        // Two buffers of 16 KiB for each large one, and the large ones, are 12: the thirteenth command waits.
        const BUFFERS: usize = 12;
        const LEN: u32 = 16 << 10;
        let config = raceline_target::TargetConfig {
            max_io_bytes: 128 << 10,
            large_buffers_per_core: 4,
            small_buffers_per_core: 4,
            ..config(1)
        };
        let (target, address) = start(config, vec![ram("16M")]);
        let (_admin, cntlid) = RawHost::admin(address, Wants::default());
        let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
        let data = pattern(1, LEN as usize);
        for i in 0..=BUFFERS as u64 {
            let sqe = block_sqe(io::WRITE, 1, i * 32, 32);
            queue.submit(sqe, Direction::HostToController, LEN);
        }
        let mut grants = std::collections::VecDeque::new();
        while grants.len() < BUFFERS {
            match queue.listen() {
                crate::common::Heard::SendData(grant) => grants.push_back(grant),
                other => panic!("unexpected {other:?}"),
            }
        }
        eventually("the last command waits", || target.stats().subsystems[0].1.buffer_waits == 1);
        let mut done = 0;
        while done <= BUFFERS {
            if let Some(grant) = grants.pop_front() {
                queue.send_data(&grant, &data);
            }
            match queue.listen() {
                crate::common::Heard::SendData(grant) => grants.push_back(grant),
                crate::common::Heard::Response(cqe) => {
                    assert!(cqe.status.is_success());
                    done += 1;
                }
                other => panic!("unexpected {other:?}"),
            }
        }
        for i in 0..=BUFFERS as u64 {
            assert_eq!(queue.read(1, i * 32, 32, BS).data, data);
        }
        let totals = target.stats().subsystems[0].1;
        assert_eq!((totals.large_buffers, totals.buffer_waits, totals.small_buffer_waits), (13, 1, 0));
        target.shutdown().unwrap();
    }
}

tcp_only! {
    #[test]
    fn a_small_write_does_not_wait_behind_large_ones() {
        const LARGE: u32 = 1 << 20;
        let small_only = raceline_target::TargetConfig {
            max_io_bytes: LARGE,
            large_buffers_per_core: 4,
            small_buffers_per_core: 4,
            ..config(1)
        };
        let (target, address) = start(small_only, vec![ram("16M")]);
        let (_admin, cntlid) = RawHost::admin(address, Wants::default());
        let mut writer = RawHost::io(address, cntlid, 1, Wants::default());
        let mut neighbour = RawHost::io(address, cntlid, 2, Wants::default());
        // There are four buffers of 1 MiB; the writer holds them all by not sending its data.
        for i in 0..6 {
            let sqe = block_sqe(io::WRITE, 1, i * 2048, 2048);
            writer.submit(sqe, Direction::HostToController, LARGE);
        }
        let mut grants = std::collections::VecDeque::new();
        while grants.len() < 4 {
            match writer.listen() {
                crate::common::Heard::SendData(grant) => grants.push_back(grant),
                other => panic!("unexpected {other:?}"),
            }
        }
        eventually("two wait", || target.stats().subsystems[0].1.buffer_waits == 2);
        // Larger than a capsule, so that the commands need buffers, and the target asks for their data.
        for (len, blocks) in [(4096, 8), (64 << 10, 128)] {
            let data = pattern(u64::from(blocks), len);
            let sqe = block_sqe(io::WRITE, 1, 30_000, blocks);
            assert!(status(&neighbour.write_command(sqe, &data, false)).is_success());
            assert_eq!(neighbour.read(1, 30_000, blocks, BS).data, data);
        }
        let data = pattern(9, LARGE as usize);
        let mut done = 0;
        while done < 6 {
            if let Some(grant) = grants.pop_front() {
                writer.send_data(&grant, &data);
            }
            match writer.listen() {
                crate::common::Heard::SendData(grant) => grants.push_back(grant),
                crate::common::Heard::Response(cqe) => {
                    assert!(cqe.status.is_success());
                    done += 1;
                }
                other => panic!("unexpected {other:?}"),
            }
        }
        assert_eq!(writer.read(1, 5 * 2048, 2048, BS).data, data);
        target.shutdown().unwrap();
    }
}

#[test]
fn commands_wait_for_buffers_in_order_and_none_is_lost() {
    // 4 + 4 buffers for 64 writes at a time. Reads of memory need no buffer.
    let config = raceline_target::TargetConfig {
        max_io_bytes: 128 << 10,
        large_buffers_per_core: 4,
        small_buffers_per_core: 4,
        ..config(1)
    };
    let (target, address) = start(config, vec![ram("16M")]);
    let wants = Wants { ddgst: true, ..Wants::default() };
    let (_admin, cntlid) = RawHost::admin(address, wants);
    let mut queue = RawHost::io(address, cntlid, 1, wants);
    let data: Vec<Vec<u8>> = (0..64).map(|i| pattern(i, 64 << 10)).collect();
    let cids: Vec<_> = (0..64u64)
        .map(|i| {
            let sqe = block_sqe(io::WRITE, 1, i * 128, 128);
            queue.submit_write(sqe, &data[usize::try_from(i).unwrap()])
        })
        .collect();
    let mut done = 0;
    while done < 64 {
        match queue.listen() {
            crate::common::Heard::SendData(grant) => {
                let i = cids.iter().position(|cid| *cid == grant.cid).unwrap();
                queue.send_data(&grant, &data[i]);
            }
            crate::common::Heard::Response(cqe) => {
                assert!(cqe.status.is_success());
                done += 1;
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    for (i, expected) in data.iter().enumerate() {
        assert_eq!(queue.read(1, i as u64 * 128, 128, BS).data, *expected);
    }
    // One buffer for its own data, and one for the data that are compared with them.
    let compare = block_sqe(io::COMPARE, 1, 0, 8);
    assert!(status(&queue.write_command(compare, &data[0][..8 * 512], true)).is_success());
    let totals = target.stats().subsystems[0].1;
    assert!(totals.buffer_waits > 0);
    assert_eq!((totals.large_buffers, totals.small_buffers, totals.small_buffer_waits), (64, 2, 0));
    target.shutdown().unwrap();
}
