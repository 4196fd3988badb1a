//! Caller-driven queues against a real target: data, limits, lost targets, threads.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::served::{BLOCK, HAS_DIGESTS, NS, any_port, config, serve};
use raceline_host::caller::{Finished, Memory, Operation, Refusal};
use raceline_host::{
    BackoffConfig, CallerHost, CallerOptions, CallerQueues, CommandError, HostConfig, HostError,
};
use raceline_proto::nvme::{NamespaceId, Status};

/// Bound of everything that waits.
const LIMIT: Duration = Duration::from_secs(30);

fn options(queues: u16) -> CallerOptions {
    CallerOptions { queues, ..CallerOptions::default() }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|index| (index / 3 + seed * 7).to_le_bytes()[0]).collect()
}

fn read(slba: u64, len: usize) -> Operation {
    Operation::Read { nsid: NS, slba, memory: vec![0; len].into() }
}

fn write(slba: u64, data: &[u8]) -> Operation {
    Operation::Write { nsid: NS, slba, memory: data.to_vec().into(), fua: false }
}

/// The next end, whenever it comes.
#[track_caller]
fn next(queues: &mut CallerQueues) -> Finished {
    let start = Instant::now();
    loop {
        if let Some(finished) = queues.next_finished() {
            return finished;
        }
        assert!(start.elapsed() < LIMIT, "nothing ends");
        queues.wait(Duration::from_millis(100)).unwrap();
    }
}

#[track_caller]
fn execute(queues: &mut CallerQueues, operation: Operation) -> Finished {
    queues.submit(0, operation, 42).unwrap();
    let finished = next(queues);
    assert_eq!((finished.user, finished.queue), (42, 0));
    finished
}

#[test]
fn what_is_written_is_read_from_whatever_thread() {
    let (target, address) = serve(any_port());
    let host =
        CallerHost::connect(HostConfig { data_digest: HAS_DIGESTS, ..config(address) }).unwrap();
    let mut queues = host.open(&options(2)).unwrap();
    assert_eq!((host.free_queues(), queues.len()), (0, 2));
    // In one command, in several, and in more than fit the queue at once.
    for (slba, blocks) in [(0, 1), (9, 256), (1000, 3001), (8000, 20_000)] {
        let data = pattern(blocks * BLOCK, blocks);
        execute(&mut queues, write(slba, &data)).result.unwrap();
        queues = std::thread::spawn(move || {
            let finished = execute(&mut queues, read(slba, data.len()));
            finished.result.unwrap();
            assert!(finished.memory.unwrap().into_bytes().unwrap() == data);
            let memory = Memory::from(data);
            let compare = Operation::Compare { nsid: NS, slba, memory };
            execute(&mut queues, compare).result.unwrap();
            queues
        })
        .join()
        .unwrap();
    }
    let zero =
        Operation::WriteZeroes { nsid: NS, slba: 9, block_count: 2, deallocate: false, fua: true };
    execute(&mut queues, zero).result.unwrap();
    let free = Operation::Deallocate { nsid: NS, ranges: vec![(11, 1), (20, 4)] };
    execute(&mut queues, free).result.unwrap();
    execute(&mut queues, Operation::Flush { nsid: NS }).result.unwrap();
    let data = execute(&mut queues, read(9, 16 * BLOCK)).memory.unwrap();
    let mut expected = pattern(256 * BLOCK, 256)[..16 * BLOCK].to_vec();
    expected[..3 * BLOCK].fill(0);
    expected[11 * BLOCK..15 * BLOCK].fill(0);
    assert!(data[..] == expected);
    // Pages, once allocated, go around.
    let mut memory = Memory::pages(8 * BLOCK).unwrap();
    for slba in 0..8 {
        let finished = execute(&mut queues, Operation::Read { nsid: NS, slba: 100 + slba, memory });
        finished.result.unwrap();
        memory = finished.memory.unwrap();
        assert_eq!(
            memory[..],
            pattern(256 * BLOCK, 256)[..][(91 + usize::try_from(slba).unwrap()) * BLOCK..]
                [..8 * BLOCK]
        );
    }
    host.disconnect();
    target.shutdown().unwrap();
}

#[test]
fn a_full_queue_says_so_and_takes_more_later() {
    let (target, address) = serve(any_port());
    let host = CallerHost::connect(HostConfig { io_entries: 5, ..config(address) }).unwrap();
    let mut queues = host.open(&options(2)).unwrap();
    let mut taken = [0u64; 2];
    for queue in [0, 1] {
        loop {
            assert_eq!(queues.room(queue), 4 - usize::try_from(taken[queue]).unwrap());
            match queues.submit(queue, read(taken[queue], BLOCK), taken[queue]) {
                Ok(()) => taken[queue] += 1,
                Err(refused) => {
                    assert_eq!(refused.reason, Refusal::Full);
                    assert!(
                        matches!(refused.operation, Operation::Read { memory, .. } if memory.len() == BLOCK)
                    );
                    break;
                }
            }
        }
    }
    assert_eq!((taken, queues.outstanding()), ([4, 4], 8));
    let mut seen = [0; 2];
    for _ in 0..8 {
        let finished = next(&mut queues);
        finished.result.unwrap();
        seen[finished.queue] |= 1 << finished.user;
    }
    assert_eq!((seen, queues.outstanding()), ([15, 15], 0));
    // 2 MiB are at least sixteen commands of this controller, and the queue has room for four; a
    // second operation waits until the first is on its way.
    queues.submit(0, write(0, &pattern(2 << 20, 1)), 1).unwrap();
    assert_eq!((queues.room(0), queues.room(1)), (0, 4));
    queues.submit(1, read(0, BLOCK), 2).unwrap();
    let mut users = [next(&mut queues).user, next(&mut queues).user];
    users.sort_unstable();
    assert_eq!(users, [1, 2]);
    let back = execute(&mut queues, read(0, 2 << 20)).memory.unwrap();
    assert!(back[..] == pattern(2 << 20, 1));
    host.disconnect();
    target.shutdown().unwrap();
}

#[test]
fn what_cannot_be_done_is_refused_or_fails_by_name() {
    let (target, address) = serve(any_port());
    let host = CallerHost::connect(config(address)).unwrap();
    let mut queues = host.open(&options(1)).unwrap();
    let mut refuse = |queue, operation| queues.submit(queue, operation, 0).unwrap_err().reason;
    assert_eq!(refuse(1, read(0, BLOCK)), Refusal::NoQueue { queue: 1, count: 1 });
    assert_eq!(
        refuse(0, Operation::Flush { nsid: NamespaceId(7) }),
        Refusal::NoNamespace(NamespaceId(7))
    );
    assert!(matches!(refuse(0, read(0, 100)), Refusal::NotWholeBlocks { bytes: 100, .. }));
    assert!(matches!(refuse(0, read(0, 0)), Refusal::NotWholeBlocks { bytes: 0, .. }));
    assert_eq!(refuse(0, read(u64::MAX, 2 * BLOCK)), Refusal::BadBlocks);
    let failure = execute(&mut queues, read(1 << 40, BLOCK)).result.unwrap_err();
    assert_eq!(failure.error, CommandError::Status(Status::LBA_OUT_OF_RANGE.dnr()));
    assert!(failure.to_string().contains("LBA 1099511627776"), "{failure}");
    let memory = vec![1; BLOCK].into();
    let failure = execute(&mut queues, Operation::Compare { nsid: NS, slba: 0, memory });
    assert!(matches!(failure.result.unwrap_err().error, CommandError::Status(_)));
    let error = host.open(&options(2)).unwrap_err().to_string();
    assert!(error.contains("2 I/O queues cannot be opened: 1 are left of 2"), "{error}");
    // The numbers of closed queues are used again, whatever the target knows by then.
    for _ in 0..20 {
        let mut other = host.open(&options(1)).unwrap();
        execute(&mut other, read(0, BLOCK)).result.unwrap();
    }
    host.disconnect();
    target.shutdown().unwrap();
}

#[test]
fn a_wait_ends_in_time_or_when_it_is_woken() {
    let (target, address) = serve(any_port());
    let host = CallerHost::connect(config(address)).unwrap();
    let mut queues = host.open(&options(1)).unwrap();
    let start = Instant::now();
    assert_eq!(queues.wait(Duration::from_millis(60)).unwrap(), 0);
    assert!(start.elapsed() >= Duration::from_millis(60), "{:?}", start.elapsed());
    let waker = queues.waker();
    let (ready, is_ready) = mpsc::channel();
    let waiting = std::thread::spawn(move || {
        ready.send(()).unwrap();
        let start = Instant::now();
        let mut rounds = 0;
        // Other wake-ups, like the look at the association, do not end it.
        queues.wait(LIMIT).unwrap();
        while start.elapsed() < Duration::from_millis(50) && rounds < 100 {
            rounds += 1;
            queues.wait(LIMIT).unwrap();
        }
        start.elapsed()
    });
    is_ready.recv_timeout(LIMIT).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    while !waiting.is_finished() {
        waker.wake();
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(waiting.join().unwrap() < LIMIT / 2);
    host.disconnect();
    target.shutdown().unwrap();
}

#[test]
fn a_lost_target_that_comes_back_is_used_again() {
    let (target, address) = serve(any_port());
    let host = CallerHost::connect(config(address)).unwrap();
    let mut queues = host.open(&options(2)).unwrap();
    for round in 0..3u64 {
        execute(&mut queues, read(round, BLOCK)).result.unwrap();
    }
    target.shutdown().unwrap();
    // Reads wait for the target to come back; the program is not told that it was away.
    for user in 0..4 {
        let queue = usize::try_from(user % 2).unwrap();
        queues.submit(queue, read(user, BLOCK), user).unwrap();
    }
    for _ in 0..20 {
        assert_eq!(queues.wait(Duration::from_millis(5)).unwrap(), 0);
    }
    assert!(!queues.is_ready());
    let (target, again) = serve(address);
    assert_eq!(again, address);
    let mut users: Vec<u64> = (0..4)
        .map(|_| {
            let finished = next(&mut queues);
            finished.result.unwrap();
            finished.user
        })
        .collect();
    users.sort_unstable();
    assert_eq!(users, [0, 1, 2, 3]);
    assert!(queues.is_ready() && queues.failure().is_none());
    execute(&mut queues, write(0, &pattern(BLOCK, 2))).result.unwrap();
    host.disconnect();
    target.shutdown().unwrap();
}

#[test]
fn a_target_that_comes_back_unseen_is_used_again() {
    let (target, address) = serve(any_port());
    let host = CallerHost::connect(config(address)).unwrap();
    let mut queues = host.open(&options(1)).unwrap();
    execute(&mut queues, read(0, BLOCK)).result.unwrap();
    target.shutdown().unwrap();
    // The group is not polled until the controller is up again, with the number that it had.
    let (target, _) = serve(address);
    let start = Instant::now();
    while host.admin().identify(1, NamespaceId(0)).is_err() {
        assert!(start.elapsed() < LIMIT, "it does not come back");
        std::thread::sleep(Duration::from_millis(10));
    }
    execute(&mut queues, read(1, BLOCK)).result.unwrap();
    host.disconnect();
    target.shutdown().unwrap();
}

#[test]
fn a_target_that_stays_away_ends_everything_with_its_memory() {
    let (target, address) = serve(any_port());
    let backoff = BackoffConfig {
        give_up_after: Some(Duration::from_millis(300)),
        ..config(address).backoff
    };
    let config = HostConfig { io_entries: 5, backoff, ..config(address) };
    let host = CallerHost::connect(config).unwrap();
    let mut queues = host.open(&options(1)).unwrap();
    target.shutdown().unwrap();
    // One fits, one needs more commands than there is room for.
    queues.submit(0, read(0, BLOCK), 1).unwrap();
    queues.submit(0, read(0, 2 << 20), 2).unwrap();
    for _ in 0..2 {
        let finished = next(&mut queues);
        let failure = finished.result.unwrap_err();
        assert!(
            matches!(failure.error, CommandError::NotSent | CommandError::Disconnected),
            "{failure}"
        );
        assert_eq!(
            finished.memory.unwrap().len(),
            if finished.user == 1 { BLOCK } else { 2 << 20 }
        );
    }
    assert_eq!(queues.submit(0, read(0, BLOCK), 3).unwrap_err().reason, Refusal::Closed);
    let failure = queues.failure();
    assert!(matches!(failure, Some(HostError::Tcp(..) | HostError::Rdma(..))), "{failure:?}");
}

#[test]
fn closing_ends_what_is_outstanding() {
    let (target, address) = serve(any_port());
    let host = CallerHost::connect(HostConfig { io_entries: 5, ..config(address) }).unwrap();
    let mut queues = host.open(&options(1)).unwrap();
    queues.submit(0, write(0, &pattern(3 * BLOCK, 1)), 1).unwrap();
    queues.submit(0, write(8, &pattern(2 << 20, 1)), 2).unwrap();
    queues.flush();
    queues.close();
    let ends = [queues.next_finished().unwrap(), queues.next_finished().unwrap()];
    assert!(queues.next_finished().is_none() && queues.outstanding() == 0);
    assert!(ends.iter().all(|end| end.memory.is_some()));
    // Its first block may have been written; whether it was is unknown.
    assert!(ends.iter().any(|end| end.result.is_err()));
    assert_eq!(queues.submit(0, read(0, BLOCK), 3).unwrap_err().reason, Refusal::Closed);
    drop(queues);
    // What is dropped with operations on their way leaves its memory alone.
    let mut queues = host.open(&options(1)).unwrap();
    queues.submit(0, write(8, &pattern(2 << 20, 1)), 2).unwrap();
    queues.flush();
    drop(queues);
    let mut queues = host.open(&options(1)).unwrap();
    execute(&mut queues, read(0, BLOCK)).result.unwrap();
    host.disconnect();
    target.shutdown().unwrap();
}
