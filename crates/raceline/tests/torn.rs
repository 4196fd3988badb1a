//! Blocks of files and block devices are never torn: not under concurrent reads and writes from several connections, and
//! not when the target is killed in the midst. In the page cache a read may see parts of two writes that are under way,
//! and what stays is whole.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod support;

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use raceline_host::blocking::Host;
use raceline_host::{BackoffConfig, HostConfig};
use raceline_proto::nvme::{HostId, NamespaceId, Nqn};
use support::{Export, Scratch};

const TARGET: &str = "nqn.2026-01.io.raceline:torn";
const NS: NamespaceId = NamespaceId(1);
const BYTES: u64 = 1 << 20;
const WRITERS: u64 = 3;
const READERS: u64 = 2;
/// Blocks that all writers write, from block 0 on. Each writer has one of its own behind them.
const SHARED: u64 = 4;
/// Writes of each writer before the target is killed, and after that.
const WRITES: u64 = 400;
const LIMIT: Duration = Duration::from_secs(60);

/// What a writer has asked for, and what was acknowledged to it. A value is the writer's number and a count.
#[derive(Default)]
struct Progress {
    begun: AtomicU64,
    acknowledged: AtomicU64,
}

struct Run {
    address: std::net::SocketAddr,
    nqn: Nqn,
    block_size: usize,
    writers: Vec<Progress>,
    over: AtomicBool,
    /// A block that is read while it is written may be a mixture.
    mixes: bool,
}

impl Run {
    fn connect(&self, number: u64) -> Host {
        let hostnqn = Nqn::new(&format!("nqn.2026-01.io.raceline:torn-{number}")).unwrap();
        let id = HostId([u8::try_from(number).unwrap(); 16]);
        let config = HostConfig {
            io_queues: 1,
            backoff: BackoffConfig {
                first: Duration::from_millis(10),
                longest: Duration::from_millis(50),
                give_up_after: Some(LIMIT),
            },
            ..HostConfig::new(self.address, self.nqn.clone(), hostnqn, id)
        };
        Host::connect(config).unwrap()
    }

    /// The block that a writer alone writes.
    fn own(writer: u64) -> u64 {
        SHARED + writer
    }

    /// Writes until the run is over, the shared blocks and its own by turns.
    fn write(&self, writer: u64) {
        let host = self.connect(1 + writer);
        let progress = &self.writers[usize::try_from(writer).unwrap()];
        let mut count = 0;
        while !self.over.load(Ordering::SeqCst) {
            count += 1;
            progress.begun.store(count, Ordering::SeqCst);
            let word = (writer << 48 | count).to_le_bytes();
            let block = word.repeat(self.block_size / 8);
            let _ = host.write(NS, count % SHARED, &block, false);
            // The connection may be lost: then the write may or may not have happened.
            if host.write(NS, Self::own(writer), &block, false).is_ok() {
                progress.acknowledged.store(count, Ordering::SeqCst);
            }
        }
        host.disconnect();
    }

    /// Reads until the run is over; every block must be whole, and must be one that its writer wrote when it can be.
    fn read(&self, reader: u64) -> u64 {
        let host = self.connect(1 + WRITERS + reader);
        let mut count = 0;
        while !self.over.load(Ordering::SeqCst) {
            count += 1;
            let slba = count % (SHARED + WRITERS);
            let before: Vec<u64> = self.writers.iter().map(Self::acknowledged).collect();
            let mut block = vec![0; self.block_size];
            if host.read(NS, slba, &mut block).is_ok()
                && (!self.mixes || block.chunks_exact(8).all(|word| *word == block[..8]))
            {
                self.check(slba, &block, &before);
            }
        }
        host.disconnect();
        count
    }

    fn acknowledged(progress: &Progress) -> u64 {
        progress.acknowledged.load(Ordering::SeqCst)
    }

    fn check(&self, slba: u64, block: &[u8], before: &[u64]) {
        let words: Vec<u64> = block
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect();
        let value = words[0];
        let other = words.iter().position(|word| *word != value);
        assert_eq!(
            other,
            None,
            "block {slba} is torn: {value:x}, then {:x?}",
            other.map(|at| words[at])
        );
        let (writer, count) = (value >> 48, value & ((1 << 48) - 1));
        if let Some(own) = slba.checked_sub(SHARED) {
            let acknowledged = before[usize::try_from(own).unwrap()];
            assert!(count >= acknowledged, "block {slba}: {count} after {acknowledged} was done");
            assert!(count == 0 || writer == own, "block {slba} has a value of writer {writer}");
        }
        let begun = self.writers[usize::try_from(writer).unwrap()].begun.load(Ordering::SeqCst);
        assert!(count <= begun, "block {slba}: {count} of writer {writer}, which is at {begun}");
    }

    /// Waits until each writer has made so many writes since then.
    fn progress(&self, writes: u64) {
        let goal: Vec<u64> =
            self.writers.iter().map(|writer| Self::acknowledged(writer) + writes).collect();
        let start = Instant::now();
        let is_behind = |(writer, goal): (&Progress, &u64)| Self::acknowledged(writer) < *goal;
        while self.writers.iter().zip(&goal).any(is_behind) {
            assert!(start.elapsed() < LIMIT, "the writers have stopped");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Reads and writes from several connections; the target is killed and started again meanwhile, `kills` times.
fn is_never_torn(device: &str, block_size: usize, kills: u32) {
    let listener = support::own_address().to_string();
    let target = Export::start(&[device, "--nqn", TARGET, "-l", &listener]);
    let run = Run {
        address: listener.parse().unwrap(),
        nqn: Nqn::new(&target.nqn).unwrap(),
        block_size,
        writers: (0..WRITERS).map(|_| Progress::default()).collect(),
        over: AtomicBool::new(false),
        mixes: device.contains(",buffered"),
    };
    let reads: u64 = std::thread::scope(|scope| {
        let run = &run;
        let over = Over(&run.over);
        let writers: Vec<_> =
            (0..WRITERS).map(|writer| scope.spawn(move || run.write(writer))).collect();
        let readers: Vec<_> =
            (0..READERS).map(|reader| scope.spawn(move || run.read(reader))).collect();
        run.progress(WRITES);
        let mut target = target;
        for _ in 0..kills {
            drop(target); // kill -9
            target = Export::start(&[device, "--nqn", TARGET, "-l", &listener]);
            run.progress(WRITES);
        }
        drop(over);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let reads = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        drop(target);
        reads
    });
    assert!(reads > WRITES, "only {reads} reads");
    // Once more, without anybody else.
    let target = Export::start(&[device, "--nqn", TARGET, "-l", &listener]);
    let host = run.connect(99);
    let before: Vec<u64> = run.writers.iter().map(Run::acknowledged).collect();
    for slba in 0..SHARED + WRITERS {
        let mut block = vec![0; block_size];
        host.read(NS, slba, &mut block).unwrap();
        run.check(slba, &block, &before);
    }
    host.disconnect();
    target.terminate();
}

/// Ends the run, also when the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn blocks_of_files_are_whole_over_direct_io_and_kills() {
    let scratch = Scratch::new();
    for block_size in [512, 4096] {
        let file = scratch.path(&format!("direct-{block_size}"));
        is_never_torn(&format!("file:{file},size=1M,bs={block_size}"), block_size, 2);
    }
}

#[test]
fn blocks_of_files_are_whole_in_the_page_cache_and_over_kills() {
    let scratch = Scratch::new();
    for block_size in [512, 4096] {
        let file = scratch.path(&format!("buffered-{block_size}"));
        is_never_torn(&format!("file:{file},size=1M,buffered,bs={block_size}"), block_size, 2);
    }
}

#[test]
fn blocks_of_block_devices_are_whole_and_over_kills() {
    let scratch = Scratch::new();
    let image = scratch.path("image");
    std::fs::File::create(&image).unwrap().set_len(BYTES).unwrap();
    let found =
        Command::new("losetup").args(["--find", "--show", "--direct-io=on", &image]).output();
    let Some(found) = found.ok().filter(|found| found.status.success()) else {
        eprintln!("SKIPPED: no loop device");
        return;
    };
    let disk = Disk(String::from_utf8(found.stdout).unwrap().trim().to_owned());
    is_never_torn(&disk.0, 512, 2);
}

/// A loop device.
struct Disk(String);

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}
