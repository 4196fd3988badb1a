//! The server by its socket and rings: what it does for guests, and what it bears of guests that lie.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cloud_hypervisor;
mod guest;
mod hostile;
mod restart;
mod spy;

use guest::{Bed, DATA, DISCARD, FLUSH, Guest, IDENTIFY, READ, USUAL, WRITE, ZEROES};
use raceline_bdev::DiskTotals;
use raceline_reactor::Backend;
use vhost::vhost_user::VhostUserFrontend as _;
use vhost::vhost_user::message::VhostUserConfigFlags;

/// Bytes that tell where they belong: each sector has a number of its own.
pub(crate) fn pattern(sector: u64, len: usize) -> Vec<u8> {
    let words = (sector..).take(len / 512);
    let words = words.map(|it| (it + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    words.flat_map(|word| word.repeat(64)).collect()
}

#[test]
fn what_is_written_is_read() {
    for device in ["ram:64M", "file:DIR/disk,size=64M,buffered"] {
        for (backend, event_index, indirect) in [
            (Backend::Auto, true, true),
            (Backend::Auto, false, false),
            (Backend::Epoll, true, false),
        ] {
            let bed = Bed::start(device, |config| {
                config.backend = backend;
                config.cores = vec![None, None];
            });
            let manner = guest::Manner { event_index, indirect, ..USUAL };
            let mut guest = Guest::boot(&bed.path(), manner);
            let lengths = [(0, 512), (8, 4096), (2048, 300 << 10), (16384, 3 << 20)];
            for (queue, (sector, len)) in [0, 1, 0, 1].into_iter().zip(lengths) {
                assert_eq!(guest.write(queue, sector, &pattern(sector, len)), 0, "{device}");
            }
            assert_eq!(guest.call(1, (FLUSH, 0), &[]), (0, 1));
            for (sector, len) in lengths {
                for queue in [0, 1] {
                    let read = guest.read(queue, sector, u32::try_from(len).unwrap());
                    assert!(read == pattern(sector, len), "{device} {sector} {len}");
                }
            }
            assert_eq!(guest.read(0, 4, 512), [0; 512]);
            // Many at a time.
            let mut posted = Vec::new();
            for part in 0..8_u64 {
                let at = DATA + part * 4096;
                guest.memory.put(at, &pattern(100 + part * 8, 4096));
                posted.push(guest.post(0, (WRITE, 100 + part * 8), &[(at, 4096)]));
            }
            guest.kick(0);
            let mut returned: Vec<u16> = posted.iter().map(|_| guest.next_used(0).0).collect();
            returned.sort_unstable();
            posted.sort_unstable();
            assert_eq!(returned, posted);
            assert!(guest.read(1, 100, 32768) == pattern(100, 32768));
            drop(guest);
            bed.stop();
        }
    }
}

#[test]
fn what_guests_have_done_is_counted() {
    for device in ["ram:16M,error=read@16-23", "file:DIR/disk,size=16M,buffered,error=read@16-23"] {
        let bed = Bed::start(device, |config| config.cores = vec![None, None]);
        let mut guest = Guest::boot(&bed.path(), USUAL);
        // Two queues on two cores.
        assert_eq!(guest.write(0, 0, &pattern(0, 4096)), 0);
        assert_eq!(guest.write(1, 2048, &pattern(2048, 3 << 20)), 0, "more than one piece");
        assert!(guest.read(1, 0, 4096) == pattern(0, 4096));
        assert_eq!(guest.call(1, (FLUSH, 0), &[]).0, 0);
        assert_eq!(guest.ranges(ZEROES, &[(8, 8, 0), (64, 16, 0)]), 0);
        assert_eq!(guest.ranges(DISCARD, &[(0, 2048, 0)]), 0);
        assert_eq!(guest.call(0, (IDENTIFY, 0), &[(DATA, 20)]).0, 0);
        // One that fails, and one that is refused.
        assert_eq!(guest.call(0, (READ, 16), &[(DATA, 512)]).0, 1);
        assert_eq!(guest.call(0, (READ, u64::MAX), &[(DATA, 512)]).0, 1);
        let totals = bed.totals();
        let DiskTotals { reads, writes, flushes, discards, zeroes, errors, .. } = totals;
        assert_eq!([reads, writes, flushes, discards, zeroes, errors], [1, 2, 1, 1, 1, 2]);
        assert_eq!((totals.read_bytes, totals.written_bytes), (4096, 4096 + (3 << 20)));
        assert_eq!((totals.discarded_bytes, totals.zeroed_bytes), (1 << 20, 24 * 512));
        assert_eq!(totals.queues(), 2);
        drop(guest);
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while bed.totals().queues() > 0 {
            assert!(std::time::Instant::now() < end, "the queues are still counted");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        bed.stop();
    }
}

#[test]
fn ranges_are_zeroed_and_released() {
    for device in ["ram:16M", "file:DIR/disk,size=16M,buffered", "ram:16M,error=zeroes:unsupported"]
    {
        let bed = Bed::start(device, |_| {});
        let mut guest = Guest::boot(&bed.path(), USUAL);
        for flags in [0, 1] {
            assert_eq!(guest.write(0, 0, &pattern(0, 4 << 20)), 0);
            let zeroed = guest.ranges(ZEROES, &[(8, 4096, flags), (6144, 8, flags)]);
            assert_eq!(zeroed, 0, "{device}");
            let read = guest.read(0, 0, 4 << 20);
            let is_zero = |sectors: std::ops::Range<usize>| {
                read[sectors.start * 512..sectors.end * 512].iter().all(|&byte| byte == 0)
            };
            assert!(is_zero(8..4104) && is_zero(6144..6152), "{device}");
            assert!(read[..4096] == pattern(0, 4096));
            assert!(read[4104 * 512..6144 * 512] == pattern(4104, 2040 * 512), "{device}");
            assert!(read[6152 * 512..] == pattern(6152, 2040 * 512), "{device}");
        }
        assert_eq!(guest.ranges(DISCARD, &[(0, 2048, 0)]), 0, "{device}");
        assert_eq!(guest.ranges(DISCARD, &[(0, 2048, 1)]), 2, "a discard has no flags");
        assert_eq!(guest.ranges(ZEROES, &[(0, 8, 2)]), 2, "there is no such flag");
        assert_eq!(guest.ranges(ZEROES, &[(32768, 8, 0)]), 1, "that is beyond the end");
        assert_eq!(guest.ranges(ZEROES, &[(0, 0, 0)]), 1, "that is nothing");
        assert_eq!(guest.ranges(ZEROES, &[(0, 8, 0); 17]), 1, "those are too many");
    }
}

#[test]
fn what_cannot_be_is_refused_and_the_ring_goes_on() {
    let bed = Bed::start("ram:1M,bs=4096", |config| {
        config.serial = "a serial of 20 bytes and more".into()
    });
    let mut guest = Guest::boot(&bed.path(), USUAL);
    for (what, len, status) in [
        ((WRITE, 1), 4096, 1),
        ((WRITE, 0), 512, 1),
        ((READ, 256 * 8), 4096, 1),
        ((READ, 255 * 8), 8192, 1),
        ((READ, u64::MAX), 4096, 1),
        ((READ, u64::MAX / 512), 4096, 1),
        ((99, 0), 4096, 2),
    ] {
        assert_eq!(guest.call(0, what, &[(DATA, len)]).0, status, "{what:?} {len}");
    }
    assert_eq!(guest.call(0, (READ, 0), &[]).0, 1, "there is nothing to read");
    assert_eq!(guest.call(0, (READ, 0), &[(guest::MEMORY, 4096)]).0, 1);
    assert_eq!(guest.call(0, (WRITE, 0), &[(guest::MEMORY - 2048, 4096)]).0, 1);
    assert_eq!(guest.call(0, (IDENTIFY, 0), &[(DATA, 20)]), (0, 21));
    assert_eq!(guest.memory.get(DATA, 20), b"a serial of 20 bytes");
    assert_eq!(guest.write(0, 8, &pattern(8, 8192)), 0);
    assert!(guest.read(1, 8, 8192) == pattern(8, 8192));

    let bed = Bed::start("ram:1M", |config| config.read_only = true);
    let mut guest = Guest::boot(&bed.path(), USUAL);
    assert_eq!(guest.write(0, 0, &pattern(0, 4096)), 1);
    assert_eq!(guest.ranges(ZEROES, &[(0, 8, 0)]), 1);
    assert_eq!(guest.read(0, 0, 4096), [0; 4096]);
    use vhost::VhostBackend as _;
    assert!(guest.front.get_features().unwrap() & 1 << 5 != 0);
}

#[test]
fn the_guest_is_told_what_the_disk_is_and_that_it_has_grown() {
    let bed = Bed::start("file:DIR/disk,size=16M,buffered", |config| config.queues = 3);
    let mut guest = Guest::prepare(&bed.path(), USUAL);
    let (back, told) = std::os::unix::net::UnixStream::pair().unwrap();
    guest.front.set_backend_request_fd(&back).unwrap();
    drop(back);
    guest.start();
    let mut space = |from: u32, len: u32| {
        let empty = vec![0; len as usize];
        guest.front.get_config(from, len, VhostUserConfigFlags::empty(), &empty).unwrap().1
    };
    assert_eq!(space(0, 8), (32_768_u64).to_le_bytes());
    assert_eq!(space(34, 2), 3_u16.to_le_bytes());
    assert_eq!(space(32, 1), [1]);
    assert_eq!(space(0, 60).len(), 60);
    // A device that grows is seen once the server looks.
    std::fs::File::options().write(true).open(bed.file("disk")).unwrap().set_len(24 << 20).unwrap();
    bed.device.rescan().unwrap();
    bed.server().refresh();
    let mut message = [0; 12];
    told.set_read_timeout(Some(guest::PATIENCE)).unwrap();
    std::io::Read::read_exact(&mut &told, &mut message).unwrap();
    assert_eq!(message, [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(space(0, 8), (49_152_u64).to_le_bytes());
    assert_eq!(bed.server().bytes(), 24 << 20);
    assert_eq!(guest.write(0, 40_000, &pattern(40_000, 4096)), 0);
    assert!(guest.read(1, 40_000, 4096) == pattern(40_000, 4096));
    // The guest turns its cache off, and writes still arrive.
    guest.front.set_config(32, VhostUserConfigFlags::WRITABLE, &[0]).unwrap();
    let off = guest.front.get_config(32, 1, VhostUserConfigFlags::empty(), &[0]).unwrap().1;
    assert_eq!(off, [0]);
    assert_eq!(guest.write(0, 0, &pattern(0, 4096)), 0);
    assert!(guest.read(1, 0, 4096) == pattern(0, 4096));
}

#[test]
fn writes_are_durable_where_the_guest_does_not_flush() {
    use std::sync::atomic::Ordering;
    use vhost::VhostBackend as _;
    let spy = spy::Spy::new("ram:1M");
    let durable = std::sync::Arc::clone(&spy.durable);
    let bed = Bed::start("ram:1M", |config| config.device = std::sync::Arc::new(spy));
    let mut guest = Guest::boot(&bed.path(), USUAL);
    assert_eq!(guest.write(0, 0, &pattern(0, 4096)), 0);
    assert_eq!(durable.load(Ordering::Relaxed), 0, "the guest has a cache to flush");
    guest.front.set_config(32, VhostUserConfigFlags::WRITABLE, &[0]).unwrap();
    assert_eq!(guest.write(0, 0, &pattern(0, 4096)), 0);
    assert_eq!(guest.ranges(ZEROES, &[(0, 8, 0)]), 0);
    assert_eq!(durable.load(Ordering::Relaxed), 2, "the guest has turned its cache off");
    guest.front.set_config(32, VhostUserConfigFlags::WRITABLE, &[1]).unwrap();
    assert_eq!(guest.write(0, 0, &pattern(0, 4096)), 0);
    assert_eq!(durable.load(Ordering::Relaxed), 2);
    drop(guest);
    let mut guest = Guest::boot(&bed.path(), guest::Manner { flush: false, ..USUAL });
    assert_eq!(guest.front.get_config(32, 1, VhostUserConfigFlags::empty(), &[9]).unwrap().1, [0]);
    assert_eq!(guest.write(0, 0, &pattern(0, 4096)), 0);
    assert_eq!(durable.load(Ordering::Relaxed), 3, "the guest does not know of caches");
    guest.front.get_features().unwrap();
}
