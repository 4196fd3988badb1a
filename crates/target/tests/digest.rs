//! Data digests computed by an engine that is slow, disorderly, wrong or dead, under I/O.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::io::Write as _;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{Heard, RawHost, Wants, block_sqe, config, eventually, pattern, ram, start, status};
use raceline_accel::{Framework, Injection, InjectionKind, OpCode};
use raceline_dsa::EmulatedEngine;
use raceline_dsa::emulated::EmulatedConfig;
use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::{Direction, Status};
use raceline_target::{Target, TargetConfig};

const BS: u32 = 512;
const DIGESTS: Wants = Wants { hdgst: true, ddgst: true, hpda: 0 };

/// A target whose digests an emulated device computes.
fn offloaded(device: EmulatedConfig) -> (Target, std::net::SocketAddr, EmulatedEngine, Framework) {
    let engine = EmulatedEngine::start(device, 2).unwrap();
    let framework = Framework::new(vec![Arc::new(engine.clone())]).unwrap();
    framework.assign(OpCode::Crc32c, "dsa_emulated").unwrap();
    framework.assign(OpCode::CopyCrc32c, "dsa_emulated").unwrap();
    let config = TargetConfig { accel: Some(framework.clone()), ..config(2) };
    let (target, address) = start(config, vec![ram("4M")]);
    (target, address, engine, framework)
}

fn every(count: u64) -> Option<NonZeroU64> {
    NonZeroU64::new(count)
}

/// Writes and reads back data of many sizes, and repeats a command after a transport error; gives the
/// number of repetitions.
fn exercise(queue: &mut RawHost, rounds: u64) -> u64 {
    let mut again = 0;
    let mut retry = |what: &mut dyn FnMut() -> common::Answer| {
        for _ in 0..20 {
            let answer = what();
            if status(&answer).is_success() {
                return answer;
            }
            assert_eq!(status(&answer), Status::TRANSIENT_TRANSPORT_ERROR, "may be sent again");
            again += 1;
        }
        panic!("twenty transport errors in a row");
    };
    for round in 0..rounds {
        for blocks in [1u32, 8, 16, 17, 100, 256] {
            let data = pattern(round << 10 | u64::from(blocks), (blocks * BS) as usize);
            let slba = u64::from(blocks) * 3 + round;
            retry(&mut || queue.write(1, slba, &data, BS));
            let answer = retry(&mut || queue.read(1, slba, blocks, BS));
            assert_eq!(answer.data, data, "{blocks} blocks, round {round}");
        }
    }
    again
}

fn ends_clean(target: Target) {
    eventually("all associations are gone", || {
        let stats = target.stats();
        stats.controllers == 0 && stats.connections.iter().all(|n| *n == 0)
    });
    target.shutdown().unwrap();
}

#[test]
fn an_engine_computes_what_is_sent_and_what_has_come() {
    let device = EmulatedConfig { reorder: 8, fault_every: every(3), ..EmulatedConfig::default() };
    let (target, address, engine, framework) = offloaded(device);
    {
        let (_admin, cntlid) = RawHost::admin(address, DIGESTS);
        let mut queue = RawHost::io(address, cntlid, 1, DIGESTS);
        assert_eq!(exercise(&mut queue, 4), 0, "page faults are finished in software");
    }
    assert!(engine.device().counts().completed >= 40, "{:?}", engine.device().counts());
    let statistics = framework.statistics();
    assert!(statistics.of(OpCode::Crc32c).executed >= 20, "{statistics:?}");
    assert!(statistics.of(OpCode::CopyCrc32c).executed >= 24, "{statistics:?}");
    ends_clean(target);
}

#[test]
fn commands_go_on_while_an_engine_has_the_data_of_others() {
    const READS: u64 = 60;
    let latency = Duration::from_millis(100);
    let device = EmulatedConfig { latency, reorder: 16, ..EmulatedConfig::default() };
    let (target, address, ..) = offloaded(device);
    {
        let (_admin, cntlid) = RawHost::admin(address, DIGESTS);
        let mut queue = RawHost::io(address, cntlid, 1, DIGESTS);
        let data = pattern(1, (8 * BS) as usize);
        let begun = Instant::now();
        for slba in 0..READS {
            queue.submit_in_capsule(block_sqe(io::WRITE, 1, slba * 8, 8), &data);
            queue.submit(block_sqe(io::READ, 1, slba * 8, 8), Direction::ControllerToHost, 8 * BS);
        }
        let mut ended = 0;
        while ended < 2 * READS {
            match queue.listen() {
                Heard::Response(cqe) => {
                    assert!(cqe.status.is_success(), "{}", cqe.status);
                    ended += 1;
                }
                Heard::DataEnd { success: true, .. } => ended += 1,
                Heard::Closed | Heard::Terminated(_) => panic!("the connection has ended"),
                _ => {}
            }
        }
        let serially = latency * u32::try_from(2 * READS).unwrap();
        assert!(begun.elapsed() < serially / 2, "one after another: {:?}", begun.elapsed());
    }
    ends_clean(target);
}

#[test]
fn an_engine_that_fails_costs_the_command_only() {
    let device = EmulatedConfig { error_every: every(5), ..EmulatedConfig::default() };
    let (target, address, ..) = offloaded(device);
    {
        let (_admin, cntlid) = RawHost::admin(address, DIGESTS);
        let mut queue = RawHost::io(address, cntlid, 1, DIGESTS);
        assert!(exercise(&mut queue, 4) > 4);
    }
    ends_clean(target);
}

#[test]
fn an_engine_that_hangs_costs_the_command_and_then_is_not_used() {
    let device = EmulatedConfig { hang_every: every(4), ..EmulatedConfig::default() };
    let (target, address, engine, framework) = offloaded(device);
    {
        let (_admin, cntlid) = RawHost::admin(address, DIGESTS);
        let mut queue = RawHost::io(address, cntlid, 1, DIGESTS);
        let again = exercise(&mut queue, 4);
        assert!((1..=4).contains(&again), "{again} commands had to be sent again");
        let statistics = framework.statistics();
        assert!(statistics.of(OpCode::Crc32c).fallbacks > 10, "{statistics:?}");
    }
    engine.device().release_hung();
    ends_clean(target);
}

#[test]
fn connections_may_die_while_an_engine_has_their_data() {
    let latency = Duration::from_millis(20);
    let device = EmulatedConfig { latency, reorder: 8, ..EmulatedConfig::default() };
    let (target, address, ..) = offloaded(device);
    for round in 0..20u64 {
        let (_admin, cntlid) = RawHost::admin(address, DIGESTS);
        let mut queue = RawHost::io(address, cntlid, 1, DIGESTS);
        let data = pattern(round, (8 * BS) as usize);
        for slba in 0..20 {
            queue.submit_in_capsule(block_sqe(io::WRITE, 1, slba * 8, 8), &data);
            queue.submit(block_sqe(io::READ, 1, slba * 8, 8), Direction::ControllerToHost, 8 * BS);
        }
        if round % 2 == 0 {
            std::thread::sleep(Duration::from_millis(round));
        }
    }
    {
        let (_admin, cntlid) = RawHost::admin(address, DIGESTS);
        let mut queue = RawHost::io(address, cntlid, 1, DIGESTS);
        assert_eq!(exercise(&mut queue, 1), 0);
    }
    ends_clean(target);
}

/// Data come in the staging buffer, in pieces and by R2T. The bad write is
/// refused, and does not reach the memory.
#[test]
fn corruption_is_injected_where_digests_are_checked() {
    let framework = Framework::software();
    let config = TargetConfig { accel: Some(framework.clone()), ..config(1) };
    let (target, address) = start(config, vec![ram("4M")]);
    {
        let (_admin, cntlid) = RawHost::admin(address, DIGESTS);
        let mut queue = RawHost::io(address, cntlid, 1, DIGESTS);
        for blocks in [1u32, 8, 100] {
            let before = pattern(7, (blocks * BS) as usize);
            assert!(status(&queue.write(1, 0, &before, BS)).is_success());
            let hit = Injection { kind: InjectionKind::Corrupt, interval: 1, count: 1 };
            framework.inject(OpCode::Crc32c, Some(hit));
            let data = pattern(8, (blocks * BS) as usize);
            let answer = queue.write(1, 0, &data, BS);
            assert_eq!(status(&answer), Status::TRANSIENT_TRANSPORT_ERROR, "{blocks} blocks");
            assert_eq!(queue.read(1, 0, blocks, BS).data, before, "{blocks} blocks");
            assert!(status(&queue.write(1, 0, &data, BS)).is_success(), "once only");
        }
    }
    ends_clean(target);
}

/// Another core writes the data that are read, in every way in which memory can be written.
#[test]
fn digests_are_those_of_the_data_though_others_write_them() {
    const BLOCKS: u32 = 256;
    let (target, address) = start(config(2), vec![ram("1M")]);
    let stop = AtomicBool::new(false);
    let written = AtomicUsize::new(0);
    {
        let (_admin, cntlid) = RawHost::admin(address, DIGESTS);
        // The queues of a target with two cores are on both cores.
        let mut queues: Vec<_> =
            (1..=4).map(|qid| RawHost::io(address, cntlid, qid, DIGESTS)).collect();
        let mut readers = queues.split_off(2);
        std::thread::scope(|scope| {
            for queue in &mut queues {
                let (stop, written) = (&stop, &written);
                scope.spawn(move || {
                    let mut round = 0;
                    while !stop.load(Ordering::Relaxed) {
                        round += 1;
                        let large = pattern(round, (BLOCKS * BS) as usize);
                        assert!(status(&queue.write(1, round % 64, &large, BS)).is_success());
                        let small = pattern(round, 4096);
                        let sqe = block_sqe(io::WRITE, 1, round % 250, 8);
                        assert!(status(&queue.write_command(sqe, &small, true)).is_success());
                        let sqe = block_sqe(io::WRITE_ZEROES, 1, round % 200, 50);
                        assert!(status(&queue.plain_command(sqe)).is_success());
                        written.fetch_add(3, Ordering::Relaxed);
                    }
                });
            }
            // Each reader checks the digests of its data.
            let readers = readers.iter_mut().map(|queue| {
                scope.spawn(move || {
                    for round in 0..1000 {
                        let blocks = [BLOCKS, 8][usize::from(round % 4 == 3)];
                        assert!(status(&queue.read(1, round % 64, blocks, BS)).is_success());
                    }
                })
            });
            let readers: Vec<_> = readers.collect();
            let results: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
            stop.store(true, Ordering::Relaxed);
            assert!(results.iter().all(Result::is_ok));
        });
    }
    assert!(written.into_inner() > 100, "writers must get on, too");
    ends_clean(target);
}

/// A write in several H2CData PDUs, of which the first or the last has a wrong digest, is refused; the next
/// write, in as many PDUs, succeeds.
#[test]
fn one_of_several_h2c_data_may_be_bad() {
    const PART: u32 = 16 << 10;
    const PARTS: u32 = 4;
    let (target, address, ..) = offloaded(EmulatedConfig::default());
    {
        let (_admin, cntlid) = RawHost::admin(address, DIGESTS);
        let mut queue = RawHost::io(address, cntlid, 1, DIGESTS);
        let blocks = PARTS * PART / BS;
        let before = pattern(1, (PARTS * PART) as usize);
        let data = pattern(2, (PARTS * PART) as usize);
        let mut write = |bytes: &[u8], bad: Option<u32>| {
            let sqe = block_sqe(io::WRITE, 1, 0, blocks);
            queue.submit(sqe, Direction::HostToController, PARTS * PART);
            let Heard::SendData(grant) = queue.listen() else { panic!("no R2T") };
            for part in 0..PARTS {
                let (mut pdu, offset) = (Vec::new(), part * PART);
                queue.queue.h2c_data(&grant, offset, PART, part + 1 == PARTS, &mut pdu);
                let bytes = &bytes[offset as usize..][..PART as usize];
                let digest = raceline_accel::crc32c(bytes) ^ u32::from(bad == Some(part));
                pdu.extend_from_slice(bytes);
                pdu.extend_from_slice(&digest.to_le_bytes());
                queue.stream.write_all(&pdu).unwrap();
            }
            let Heard::Response(cqe) = queue.listen() else { panic!("no response") };
            cqe.status
        };
        assert!(write(&before, None).is_success());
        for bad in 0..PARTS {
            assert_eq!(write(&data, Some(bad)), Status::TRANSIENT_TRANSPORT_ERROR, "part {bad}");
        }
        assert_eq!(queue.read(1, 0, blocks, BS).data, before);
    }
    ends_clean(target);
}

/// Data of the commands whose bits are flipped, and their digests.
const FLIPPED_BYTES: usize = 4096 + 4;

/// One bit flipped at every offset of data and digest, in the capsule and in H2CData, with the CPU
/// and with an engine: each write is refused, and the memory is as before.
#[test]
fn no_flipped_bit_reaches_the_memory() {
    for engines in [false, true] {
        let device = EmulatedConfig { reorder: 8, ..EmulatedConfig::default() };
        let (target, address) = if engines {
            let (target, address, ..) = offloaded(device);
            (target, address)
        } else {
            start(config(1), vec![ram("4M")])
        };
        {
            let (_admin, cntlid) = RawHost::admin(address, DIGESTS);
            let mut queue = RawHost::io(address, cntlid, 1, DIGESTS);
            let (before, data) = (pattern(7, 4096), pattern(8, 4096));
            assert!(status(&queue.write(1, 0, &before, BS)).is_success());
            flip_all(&mut queue, &data, true);
            flip_all(&mut queue, &data, false);
            assert_eq!(queue.read(1, 0, 8, BS).data, before);
            assert!(status(&queue.write(1, 0, &data, BS)).is_success());
            assert_eq!(queue.read(1, 0, 8, BS).data, data);
        }
        ends_clean(target);
    }
}

/// Writes `data` with one bit flipped, at each offset in turn; each write must be refused.
fn flip_all(queue: &mut RawHost, data: &[u8], in_capsule: bool) {
    /// Commands in flight.
    const DEPTH: usize = 64;
    let sqe = block_sqe(io::WRITE, 1, 0, 8);
    let flip = |pdu: &mut Vec<u8>, offset: usize| {
        let begin = pdu.len() - FLIPPED_BYTES;
        pdu[begin + offset] ^= 1 << (offset * 3 % 8);
    };
    let (mut flipped, mut sent, mut ended) = (0, 0, 0);
    while ended < FLIPPED_BYTES {
        while sent < FLIPPED_BYTES && sent - ended < DEPTH {
            if in_capsule {
                let (_, mut capsule) = queue.capsule(sqe, data);
                flip(&mut capsule, flipped);
                flipped += 1;
                queue.stream.write_all(&capsule).unwrap();
            } else {
                queue.submit(sqe, Direction::HostToController, 4096);
            }
            sent += 1;
        }
        match queue.listen() {
            Heard::Response(cqe) => {
                let at = format!("{ended}, in capsule {in_capsule}");
                assert_eq!(cqe.status, Status::TRANSIENT_TRANSPORT_ERROR, "{at}");
                ended += 1;
            }
            Heard::SendData(grant) => {
                let mut pdu = Vec::new();
                queue.queue.h2c_data(&grant, 0, 4096, true, &mut pdu);
                pdu.extend_from_slice(data);
                pdu.extend_from_slice(&raceline_accel::crc32c(data).to_le_bytes());
                flip(&mut pdu, flipped);
                flipped += 1;
                queue.stream.write_all(&pdu).unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(flipped, FLIPPED_BYTES);
}
