//! Batches that are not simply copied: kept by the back end until the kernel has done with them, or sent
//! with what is known of the bytes that follow.

use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_reactor::flow::{Departure, SocketClass, Traffic};
use raceline_reactor::stats::DepartureCounts;
use raceline_reactor::{HugePages, Io, Payload, Region, RegionHandle, SendBatch, Wait};

use crate::bed::Bed;
use crate::common::pattern;

const LEN: usize = 128 << 10;

fn class(departure: Departure) -> SocketClass {
    SocketClass { departure, ..SocketClass::ADMIN }
}

fn counts(io: &dyn Io) -> DepartureCounts {
    io.departures().snapshot()
}

/// A region with a pattern, and that pattern.
fn region() -> (Arc<Region>, Vec<u8>) {
    let data = pattern(2 * LEN, 3);
    let region = Region::new(2 * LEN, HugePages::None).unwrap();
    region.copy_in(0, &data);
    (Arc::new(region), data)
}

/// Two payloads with headers before, between and after them; and the bytes that must come.
fn sample(region: &Arc<Region>, data: &[u8]) -> (Box<SendBatch>, Vec<u8>) {
    let handle = RegionHandle::new(Arc::clone(region));
    let mut batch = SendBatch::new(64, 16);
    batch.push_bytes(b"first");
    batch.push_payload(Payload::Region(handle.clone(), 0..LEN as u64));
    batch.push_bytes(b"second");
    batch.push_payload(Payload::Region(handle, 77..77 + LEN as u64));
    batch.push_bytes(b"end");
    let expected = [b"first", &data[..LEN], b"second", &data[77..77 + LEN], b"end"].concat();
    (batch, expected)
}

/// Polls until the kernel has done with the region.
fn until_free(bed: &mut Bed, region: &Arc<Region>) {
    let give_up = Instant::now() + Duration::from_secs(5);
    while Arc::strong_count(region) > 1 {
        assert!(Instant::now() < give_up, "the kernel does not give the memory back");
        bed.poll(Wait::No);
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn regions_leave_without_a_copy_and_are_kept_meanwhile(mut bed: Bed) {
    let (region, data) = region();
    let (one, two) = bed.pair();
    bed.io.declare(one, class(Departure::ZeroCopy(4096)));
    let is_ring = bed.is_ring;
    for round in 0..3 {
        let (batch, expected) = sample(&region, &data);
        let send = bed.start_send(one, batch);
        let came = bed.recv_exactly(two, expected.len());
        assert!(came == expected, "round {round}");
        let (result, mut batch) = bed.sent(send);
        result.unwrap();
        // The owner may fill what it gets back at once.
        batch.clear();
        batch.push_bytes(b"small");
        let send = bed.start_send(one, batch);
        assert_eq!(bed.recv_exactly(two, 5), b"small");
        bed.sent(send).0.unwrap();
        until_free(&mut bed, &region);
    }
    let counts = counts(&*bed.io);
    if is_ring && counts.zero_copy_refused == 0 {
        // The kernel copies between sockets of one machine, says so, and is not asked again.
        let DepartureCounts { zero_copy_sends, zero_copy_copied, zero_copy_bytes, .. } = counts;
        assert_eq!((zero_copy_sends, zero_copy_copied), (1, 1));
        assert_eq!(zero_copy_bytes, 2 * LEN as u64 + 14);
    } else if !is_ring {
        assert_eq!(counts, DepartureCounts::default());
    }
}

pub(crate) fn a_close_keeps_what_the_kernel_still_reads(mut bed: Bed) {
    let (region, data) = region();
    for reset in [false, true] {
        let (one, two) = bed.pair();
        bed.io.declare(one, class(Departure::ZeroCopy(4096)));
        let handle = RegionHandle::new(Arc::clone(&region));
        let mut batch = SendBatch::new(600, 1200);
        for _ in 0..500 {
            batch.push_bytes(b"h");
            batch.push_payload(Payload::Region(handle.clone(), 0..LEN as u64));
        }
        drop(handle);
        // More than the sockets take.
        let send = bed.start_send(one, batch);
        for _ in 0..5 {
            bed.poll(Wait::No);
        }
        bed.io.close(one, reset);
        let (result, batch) = bed.sent(send);
        assert!(result.is_err());
        drop(batch);
        let (mut came, mut ends_well) = (Vec::new(), false);
        while let Ok(bytes) = bed.recv(two, 0, 60_000) {
            if bytes.is_empty() {
                ends_well = true;
                break;
            }
            came.extend(bytes);
        }
        assert!(came.len() < 500 * (1 + LEN) && !(reset && ends_well));
        for (index, chunk) in came.chunks(1 + LEN).enumerate() {
            assert!(chunk[0] == b'h' && chunk[1..] == data[..chunk.len() - 1], "{index}");
        }
        bed.io.close(two, false);
        until_free(&mut bed, &region);
    }
}

pub(crate) fn a_back_end_that_ends_amid_a_kept_send_is_bounded(mut bed: Bed) {
    let (region, data) = region();
    let (one, _two) = bed.pair();
    bed.io.declare(one, class(Departure::ZeroCopy(4096)));
    let (batch, _) = sample(&region, &data);
    bed.start_send(one, batch);
    for _ in 0..5 {
        bed.poll(Wait::No);
    }
    let start = Instant::now();
    drop(bed);
    assert!(start.elapsed() < Duration::from_secs(4));
}

/// What comes does not depend on the flags, whether batches leave whole, in shares or by a full socket.
pub(crate) fn flagged_batches_arrive_whole(mut bed: Bed) {
    let (region, data) = region();
    for share in [usize::MAX, 10_000] {
        let (one, two) = bed.pair();
        let traffic = if share == usize::MAX { Traffic::Admin } else { Traffic::Responses };
        let class = SocketClass { traffic, share, ..class(Departure::Flagged) };
        bed.io.declare(one, class);
        bed.io.declare(two, class);
        for _ in 0..5 {
            // While another socket makes small sends, long batches leave in shares.
            bed.send_bytes(two, b"small");
            assert_eq!(bed.recv_exactly(one, 5), b"small");
            let (batch, expected) = sample(&region, &data);
            let send = bed.start_send(one, batch);
            assert!(bed.recv_exactly(two, expected.len()) == expected, "{share}");
            bed.sent(send).0.unwrap();
        }
    }
    let counts = counts(&*bed.io);
    assert!(counts.eor_sends >= 20 && counts.more_sends >= 5 * 20, "{counts:?}");
    assert_eq!((counts.uncorks, counts.zero_copy_sends), (0, 0));
}

/// The kernel would keep the last bytes for 200 ms.
pub(crate) fn what_should_have_been_followed_leaves_soon(mut bed: Bed) {
    let (one, two) = bed.pair();
    bed.io.declare(one, class(Departure::Flagged));
    let mut times = Vec::new();
    for _ in 0..5 {
        let mut batch = SendBatch::new(64, 16);
        batch.push_bytes(b"followed by nothing");
        batch.set_followed(true);
        let start = Instant::now();
        let send = bed.start_send(one, batch);
        assert_eq!(bed.recv_exactly(two, 19), b"followed by nothing");
        times.push(start.elapsed());
        bed.sent(send).0.unwrap();
    }
    let counts = counts(&*bed.io);
    assert_eq!((counts.more_sends, counts.eor_sends, counts.uncorks), (5, 0, 5));
    // A busy machine may delay one of them.
    let shortest = times.iter().min().unwrap();
    assert!(*shortest < Duration::from_millis(100), "{times:?}");

    // Followed at once, nobody looks for what is missing.
    for _ in 0..3 {
        let mut batch = SendBatch::new(64, 16);
        batch.push_bytes(b"one");
        batch.set_followed(true);
        let send = bed.start_send(one, batch);
        let (result, mut batch) = bed.sent(send);
        result.unwrap();
        batch.clear();
        batch.set_followed(false);
        batch.push_bytes(b"two");
        let send = bed.start_send(one, batch);
        assert_eq!(bed.recv_exactly(two, 6), b"onetwo");
        bed.sent(send).0.unwrap();
    }
    assert_eq!(bed.io.departures().snapshot().eor_sends, 3);
}
