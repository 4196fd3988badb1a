//! What the framework costs over its kernels, and what copying and digesting in one pass saves.
//!
//! `cargo run --release -p raceline-accel --example cost`
//!
//! The variants take turns of some 100 microseconds, so that most turns are not interrupted; every
//! figure is the lower quartile of its turns, with the median. The bytes are hot in the cache, except
//! those copied: they come from a buffer larger than the second-level cache and go to one of a few
//! targets, as data of a RAM namespace do on their way out.

use std::hint::black_box;
use std::time::{Duration, Instant};

use raceline_accel::{Channel, ChannelConfig, Crc32c, Framework, Part, Submitted, Work, crc32c};

/// How often each variant has its turn.
const ROUNDS: usize = 2000;

/// How long a turn takes, about.
const TURN: Duration = Duration::from_micros(100);

/// Bytes that are copied from; larger than a second-level cache.
const SOURCE_BYTES: usize = 64 << 20;

/// Bytes of a page.
const PAGE_BYTES: usize = 4096;

/// Buffers that are copied to in turn.
const TARGETS: usize = 32;

/// Bytes that are digested while they are hot in the cache.
const CHUNK_BYTES: usize = 16 << 10;

type Bytes = Box<[u8]>;

/// Something to measure: its name, and one operation on a fixed number of bytes.
type Variant<'a> = (&'static str, Box<dyn FnMut() + 'a>);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for bytes in [512, 4096, 16 << 10, 128 << 10] {
        digests(bytes)?;
        copies(bytes)?;
    }
    Ok(())
}

fn open<S: raceline_accel::Source, T: raceline_accel::Target>()
-> Result<Channel<S, T>, raceline_accel::TableError> {
    Framework::software().open_channel(&ChannelConfig::default())
}

/// CRC32C directly and through a channel.
fn digests(bytes: usize) -> Result<(), raceline_accel::TableError> {
    let direct = pattern(bytes);
    let mut channel = open::<Bytes, Bytes>()?;
    let mut lent = Some(pattern(bytes));
    let (mut empty, mut nothing) = (open::<Bytes, Bytes>()?, Some(Bytes::default()));
    let variants: Vec<Variant<'_>> = vec![
        (
            "crc32c, crc-fast directly",
            Box::new(|| {
                black_box(crc_fast::crc32_iscsi(black_box(&direct)));
            }),
        ),
        ("crc32c, through a channel", Box::new(|| digest(&mut channel, &mut lent))),
        ("a channel alone (0 bytes)", Box::new(|| digest(&mut empty, &mut nothing))),
    ];
    measure(bytes, variants);
    Ok(())
}

fn digest(channel: &mut Channel<Bytes, Bytes>, lent: &mut Option<Bytes>) {
    let source = lent.take().expect("it came back");
    if let Submitted::Done(done) = channel.submit(black_box(1), Work::crc32c(0, source)) {
        let _ = black_box((done.token, done.result));
        *lent = done.work.and_then(|work| work.into_memory().0[0].take());
    }
}

/// Ways to copy with a digest of the copy.
fn copies(bytes: usize) -> Result<(), raceline_accel::TableError> {
    // One source for each way: bytes that one has read would be in the cache for the next.
    let [plain_from, two_from, chunks_from, fused_from] = [(); 4].map(|()| {
        let source: &'static [u8] = Box::leak(pattern(SOURCE_BYTES + PAGE_BYTES));
        &source[page_start(source)..][..SOURCE_BYTES]
    });
    let parts = SOURCE_BYTES / bytes;
    // The same walk for all: random parts, so that no prefetcher knows the next.
    let walk = |at: &mut usize| {
        *at = (*at * 5 + 12_345) % parts;
        *at * bytes..(*at + 1) * bytes
    };
    let targets = || (0..TARGETS).map(|_| pattern(bytes + PAGE_BYTES)).collect::<Vec<_>>();
    let starts = |targets: &[Bytes]| targets.iter().map(|to| page_start(to)).collect::<Vec<_>>();
    let mut channel = open::<&'static [u8], Bytes>()?;
    let (mut plain, mut two, mut chunks, fused) = (targets(), targets(), targets(), targets());
    let (plain_at, two_at, chunks_at) = (starts(&plain), starts(&two), starts(&chunks));
    let fused_at = starts(&fused);
    let mut lent: Vec<Option<Bytes>> = fused.into_iter().map(Some).collect();
    let (mut a, mut b, mut c, mut d) = (0, 0, 0, 0);
    let variants: Vec<Variant<'_>> = vec![
        (
            "copy alone",
            Box::new(|| {
                let (from, turn) = (walk(&mut a), a % TARGETS);
                let to = &mut plain[turn][plain_at[turn]..][..bytes];
                black_box(to).copy_from_slice(&plain_from[from]);
            }),
        ),
        (
            "copy, then crc32c",
            Box::new(|| {
                let (from, turn) = (walk(&mut b), b % TARGETS);
                let to = &mut two[turn][two_at[turn]..][..bytes];
                to.copy_from_slice(&two_from[from]);
                black_box(crc32c(black_box(to)));
            }),
        ),
        (
            "copy, crc32c by chunks",
            Box::new(|| {
                let (from, turn) = (walk(&mut c), c % TARGETS);
                let to = &mut chunks[turn][chunks_at[turn]..][..bytes];
                let mut digest = Crc32c::new();
                for (to, from) in
                    to.chunks_mut(CHUNK_BYTES).zip(chunks_from[from].chunks(CHUNK_BYTES))
                {
                    to.copy_from_slice(from);
                    digest.update(black_box(to));
                }
                black_box(digest.finalize());
            }),
        ),
        (
            "copy_crc32c, a channel",
            Box::new(|| {
                let (from, turn) = (walk(&mut d), d % TARGETS);
                let range = fused_at[turn]..fused_at[turn] + bytes;
                let to = Part::range(lent[turn].take().expect("it came back"), range);
                let work = Work::copy_crc32c(0, &fused_from[from], to);
                if let Submitted::Done(done) = channel.submit(1, work) {
                    let _ = black_box((done.token, done.result));
                    lent[turn] = done.work.and_then(|work| work.into_memory().1[0].take());
                }
            }),
        ),
    ];
    measure(bytes, variants);
    Ok(())
}

/// Where the first page starts in some bytes: payloads are aligned.
fn page_start(bytes: &[u8]) -> usize {
    bytes.as_ptr().addr().wrapping_neg() % PAGE_BYTES
}

/// Lets the variants take turns, and prints what they took.
fn measure(bytes: usize, mut variants: Vec<Variant<'_>>) {
    let batch = |run: &mut dyn FnMut(), count: u32| {
        let start = Instant::now();
        (0..count).for_each(|_| run());
        start.elapsed().as_secs_f64() * 1e9 / f64::from(count)
    };
    let counts: Vec<u32> = variants
        .iter_mut()
        .map(|(_, run)| {
            let once = (0..50).map(|_| batch(run, 10)).fold(f64::MAX, f64::min);
            (1..100_000).rev().find(|&n| f64::from(n) * once < TURN.as_secs_f64() * 1e9)
        })
        .map(|count| count.unwrap_or(1))
        .collect();
    let mut taken = vec![Vec::with_capacity(ROUNDS); variants.len()];
    for _ in 0..ROUNDS {
        for (((_, run), &count), taken) in variants.iter_mut().zip(&counts).zip(&mut taken) {
            taken.push(batch(run, count));
        }
    }
    for ((name, _), mut taken) in variants.into_iter().zip(taken) {
        taken.sort_by(f64::total_cmp);
        let (quartile, median) = (taken[ROUNDS / 4], taken[ROUNDS / 2]);
        let rate = bytes as f64 / quartile;
        println!("{bytes:>7}  {name:<26} {quartile:>9.1} ns ({median:.1}), {rate:.1} GB/s");
    }
}

fn pattern(bytes: usize) -> Bytes {
    (0..=255).cycle().take(bytes).collect()
}
