//! Shared queues against a real target: threads of all kinds at once, cancellation, lost connections.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::served::{BLOCK, HAS_DIGESTS, NS, any_port, config, memory, serve, serve_device};
use raceline_host::caller::{Finished, Operation, Refusal};
use raceline_host::{
    CallerHost, CommandError, HostConfig, Pending, SharedError, SharedOptions, SharedQueues,
};
use raceline_proto::nvme::{NamespaceId, Status};
use raceline_reactor::Mode;

/// Bound of everything that waits.
const LIMIT: Duration = Duration::from_secs(60);
/// Blocks that each thread of the stress test has for itself.
const REGION: u64 = 2048;

/// Without spinning, so that tests leave each other the processor.
fn options() -> SharedOptions {
    SharedOptions { mode: Mode::Interrupt, ..SharedOptions::default() }
}

fn read(slba: u64, len: usize) -> Operation {
    Operation::Read { nsid: NS, slba, memory: vec![0; len].into() }
}

fn write(slba: u64, data: &[u8]) -> Operation {
    Operation::Write { nsid: NS, slba, memory: data.to_vec().into(), fua: false }
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|index| (index / 3 + seed * 7).to_le_bytes()[0]).collect()
}

#[track_caller]
fn wait(pending: Pending) -> Result<Finished, SharedError> {
    match pending.wait_until(Instant::now() + LIMIT) {
        Ok(end) => end,
        Err(pending) => panic!("{pending:?} does not end"),
    }
}

#[track_caller]
fn data(end: Result<Finished, SharedError>) -> Vec<u8> {
    let finished = end.unwrap();
    finished.result.unwrap();
    finished.memory.unwrap().into_bytes().unwrap()
}

/// An executor of one future: the smallest that there is.
fn execute<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    let start = Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park_timeout(LIMIT);
        assert!(start.elapsed() < LIMIT, "a future does not end");
    }
}

#[test]
fn all_faces_give_what_was_written() {
    let (target, address) = serve(any_port());
    let host =
        CallerHost::connect(HostConfig { data_digest: HAS_DIGESTS, ..config(address) }).unwrap();
    for direct_send in [true, false] {
        let options = SharedOptions { queues: 2, direct_send, ..options() };
        let queues = SharedQueues::open(&host, &options).unwrap();
        let data_of = |blocks: usize| pattern(blocks * BLOCK, blocks as u64);
        for blocks in [1, 8, 3001] {
            wait(queues.submit(write(5, &data_of(blocks))).unwrap()).unwrap().result.unwrap();
            let back = execute(async { queues.submit(read(5, blocks * BLOCK)).unwrap().await });
            assert!(data(back) == data_of(blocks));
            let mut poller = queues.poller();
            let pending = poller.submit(read(5, blocks * BLOCK)).unwrap();
            assert!(data(poller.wait(pending)) == data_of(blocks));
        }
        let mut pending = Vec::new();
        queues.submit_batch((0..20).map(|slba| read(slba, BLOCK)), &mut pending).unwrap();
        assert_eq!(pending.len(), 20);
        for pending in pending {
            wait(pending).unwrap().result.unwrap();
        }
        let totals = queues.totals();
        assert_eq!((totals.ended, totals.dropped), (29, 0));
        assert_eq!(totals.direct + totals.handed_off, 29);
        assert!(direct_send || totals.direct <= 3, "only the poller's: {totals:?}");
        queues.close();
    }
    host.disconnect();
    target.shutdown().unwrap();
}

/// Voluntary context switches of the calling thread.
fn switches() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

#[test]
fn a_poller_needs_nobody() {
    let (target, address) = serve(any_port());
    let host = CallerHost::connect(config(address)).unwrap();
    let queues = SharedQueues::open(&host, &options()).unwrap();
    let mut poller = queues.poller();
    let pending = poller.submit(read(0, BLOCK)).unwrap();
    poller.wait(pending).unwrap().result.unwrap();
    let (before, switched) = (queues.totals(), switches());
    let start = Instant::now();
    for slba in 0..500 {
        let pending = poller.submit(read(slba, 8 * BLOCK)).unwrap();
        assert_eq!(data(poller.wait(pending)).len(), 8 * BLOCK);
    }
    let switched = switches() - switched;
    let after = queues.totals();
    // The worker looks ten times a second whether the poller polls, and helps one that was stopped.
    // Memory that is mapped may make any thread wait.
    let looks = u64::try_from(start.elapsed().as_millis() / 100).unwrap() + 1;
    assert!(after.direct - before.direct + looks >= 500, "{after:?}");
    assert!(after.handed_off - before.handed_off <= looks, "{after:?}");
    assert!(after.worker_turns - before.worker_turns <= looks, "{after:?}");
    assert!(switched < 50, "{switched} context switches");
    // What another thread submits is handed to the poller, and wakes only that thread.
    let other = queues.clone();
    let thread = std::thread::spawn(move || wait(other.submit(read(3, BLOCK)).unwrap()).is_ok());
    let start = Instant::now();
    while !thread.is_finished() {
        poller.poll();
        assert!(start.elapsed() < LIMIT);
    }
    assert!(thread.join().unwrap());
    assert!(queues.totals().handed_off > after.handed_off);
    // With the poller gone, the worker receives.
    drop(poller);
    assert_eq!(data(wait(queues.submit(read(0, BLOCK)).unwrap())).len(), BLOCK);
    drop(queues);
    host.disconnect();
    target.shutdown().unwrap();
}

#[test]
fn a_poller_that_does_not_poll_stops_nobody_for_long() {
    let (target, address) = serve(any_port());
    let host = CallerHost::connect(config(address)).unwrap();
    let queues = SharedQueues::open(&host, &options()).unwrap();
    let poller = queues.poller();
    for slba in 0..3 {
        assert_eq!(data(wait(queues.submit(read(slba, BLOCK)).unwrap())).len(), BLOCK);
    }
    drop(poller);
    host.disconnect();
    target.shutdown().unwrap();
}

/// A read. An operation that has ended is counted a moment before there is room for the next one.
fn accepted(queues: &SharedQueues, slba: u64) -> Pending {
    let start = Instant::now();
    loop {
        match queues.submit(read(slba, BLOCK)) {
            Ok(pending) => return pending,
            Err(refused) => assert_eq!(refused.reason, Refusal::Full),
        }
        assert!(start.elapsed() < LIMIT, "there is no room");
        std::thread::yield_now();
    }
}

#[test]
fn more_than_there_may_be_is_refused_and_dropped_operations_make_room() {
    let (target, address) = serve(any_port());
    let host = CallerHost::connect(HostConfig { io_entries: 3, ..config(address) }).unwrap();
    let options = SharedOptions { operations: 8, ..options() };
    let queues = SharedQueues::open(&host, &options).unwrap();
    let mut submitted = 0;
    for round in 0..20 {
        // The poller does not poll, so no operation ends meanwhile, unless the worker helps after 100 ms:
        // then there is room for some more.
        let poller = queues.poller();
        let mut pending: Vec<_> = (0..8).map(|slba| accepted(&queues, slba)).collect();
        let refused = loop {
            match queues.submit(write(0, &[7; BLOCK])) {
                Ok(more) => pending.push(more),
                Err(refused) => break refused,
            }
            assert!(pending.len() < 1000);
        };
        submitted += pending.len() as u64;
        assert!(refused.reason == Refusal::Full, "{refused}");
        assert!(matches!(refused.operation, Operation::Write { memory, .. } if memory[0] == 7));
        pending.truncate(round % 9);
        drop(poller);
        for pending in pending {
            wait(pending).unwrap().result.unwrap();
        }
        let start = Instant::now();
        while queues.totals().ended < submitted {
            assert!(start.elapsed() < LIMIT, "{:?}", queues.totals());
            std::thread::yield_now();
        }
    }
    assert_eq!(queues.totals().ended, submitted);
    host.disconnect();
    target.shutdown().unwrap();
}

#[test]
fn what_cannot_be_done_is_told_by_its_end() {
    let (target, address) = serve(any_port());
    let host = CallerHost::connect(config(address)).unwrap();
    let queues = SharedQueues::open(&host, &options()).unwrap();
    let refused = |operation| match wait(queues.submit(operation).unwrap()) {
        Err(SharedError::Refused(refused)) => refused.reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        refused(Operation::Flush { nsid: NamespaceId(9) }),
        Refusal::NoNamespace(NamespaceId(9))
    );
    assert!(matches!(refused(read(0, 100)), Refusal::NotWholeBlocks { bytes: 100, .. }));
    let failure = wait(queues.submit(read(1 << 40, BLOCK)).unwrap()).unwrap().result.unwrap_err();
    assert_eq!(failure.error, CommandError::Status(Status::LBA_OUT_OF_RANGE.dnr()));
    let error = SharedQueues::open(&host, &SharedOptions { queues: 2, ..options() }).unwrap_err();
    assert!(error.to_string().contains("2 I/O queues cannot be opened"), "{error}");
    let other = queues.clone();
    let pending: Vec<_> = (0..50).map(|slba| queues.submit(write(slba, &[1; BLOCK]))).collect();
    queues.close();
    for pending in pending {
        // Executed, unknown or refused, but ended.
        drop(wait(pending.unwrap()));
    }
    assert_eq!(other.submit(read(0, BLOCK)).unwrap_err().reason, Refusal::Closed);
    host.disconnect();
    target.shutdown().unwrap();
}

#[test]
fn partial_sends_go_on_whoever_drives() {
    let (target, address) = serve(any_port());
    let host = CallerHost::connect(config(address)).unwrap();
    let queues = SharedQueues::open(&host, &options()).unwrap();
    // Far more than a socket takes at once, from two threads, with small commands in between.
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let queues = queues.clone();
            scope.spawn(move || {
                let first = thread * 16_384;
                for round in 0..4 {
                    let large = pattern(4 << 20, thread + round);
                    let pending = queues.submit(write(first, &large)).unwrap();
                    let small = queues.submit(write(first + 10_000, &[3; BLOCK])).unwrap();
                    wait(small).unwrap().result.unwrap();
                    wait(pending).unwrap().result.unwrap();
                    assert!(data(wait(queues.submit(read(first, 4 << 20)).unwrap())) == large);
                    let small = data(wait(queues.submit(read(first + 10_000, BLOCK)).unwrap()));
                    assert_eq!(small, [3; BLOCK]);
                }
            });
        }
    });
    host.disconnect();
    target.shutdown().unwrap();
}

/// One thread of the stress test: writes and reads its own blocks in the way that its number says,
/// and drops some of what it has submitted.
fn exercise(queues: &SharedQueues, thread: u64, stop: &AtomicBool, verified: &AtomicU32) {
    let first = thread * REGION;
    let mut random = thread.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut poller = None;
    while !stop.load(Ordering::Relaxed) {
        let most = if next(8) == 0 { 600 } else { 16 };
        let blocks = 1 + next(most);
        let slba = first + next(REGION - blocks);
        let bytes = usize::try_from(blocks).unwrap() * BLOCK;
        let written = pattern(bytes, next(256));
        if thread % 4 == 3 {
            poller = (next(20) != 0).then(|| poller.take().unwrap_or_else(|| queues.poller()));
        }
        let mut run = |operation: Operation| {
            let pending = match &mut poller {
                Some(poller) => poller.submit(operation).unwrap(),
                None => queues.submit(operation).unwrap(),
            };
            match (&mut poller, thread % 2) {
                (Some(poller), _) => poller.wait(pending),
                (None, 0) => wait(pending),
                (None, _) => execute(pending),
            }
        };
        let end = run(write(slba, &written)).unwrap();
        if end.result.is_err() {
            continue; // the connection was lost: what the blocks hold is unknown
        }
        // Reads that no thread waits for, into memory that only the queues may free.
        for _ in 0..next(4) {
            drop(queues.submit(read(slba, bytes)).unwrap());
        }
        let back = run(read(slba, bytes)).unwrap();
        if back.result.is_ok() {
            assert!(back.memory.unwrap()[..] == written, "thread {thread}, block {slba}");
            verified.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn threads_of_all_kinds_while_the_target_goes_and_comes() {
    let device = memory();
    let (target, address) = serve_device(any_port(), Arc::clone(&device));
    let host = CallerHost::connect(config(address)).unwrap();
    let queues = SharedQueues::open(&host, &SharedOptions { queues: 2, ..options() }).unwrap();
    let (stop, verified) = (AtomicBool::new(false), AtomicU32::new(0));
    let target = std::thread::scope(|scope| {
        for thread in 0..6 {
            let (queues, stop, verified) = (queues.clone(), &stop, &verified);
            scope.spawn(move || exercise(&queues, thread, stop, verified));
        }
        let more = |than: u32| {
            let start = Instant::now();
            while verified.load(Ordering::Relaxed) < than {
                assert!(start.elapsed() < LIMIT, "{verified:?} {:?}", queues.totals());
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        more(300);
        let mut target = target;
        for round in 1..=3 {
            // Every connection breaks under load, and what it held with it.
            target.shutdown().unwrap();
            target = serve_device(address, Arc::clone(&device)).0;
            more(300 * round + 300);
        }
        stop.store(true, Ordering::Relaxed);
        target
    });
    // All slots are free again, so no operation was forgotten, whichever thread dropped it.
    let start = Instant::now();
    let count = raceline_host::shared::DEFAULT_OPERATIONS;
    loop {
        let poller = queues.poller();
        let mut pending = Vec::new();
        let all = queues.submit_batch((0..count).map(|_| read(0, BLOCK)), &mut pending);
        drop(poller);
        let taken = pending.len();
        for pending in pending {
            wait(pending).unwrap().result.unwrap();
        }
        match all {
            Ok(()) => break,
            Err(refused) => {
                assert!(start.elapsed() < LIMIT, "{refused} after {taken}: {:?}", queues.totals());
            }
        }
    }
    assert!(queues.totals().dropped > 0);
    host.disconnect();
    target.shutdown().unwrap();
}
