//! The server by its wire: what it does for clients, and what it bears of clients that lie.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod client;
mod ends;
mod hostile;
mod order;
mod refusals;
mod tls;

use client::{Bed, Client, request};
use raceline_bdev::DiskTotals;
use raceline_nbd::Endpoint;
use raceline_reactor::Backend;

const READ: (u16, u16) = (0, 0);
const FLUSH: (u16, u16) = (3, 0);
const TRIM: (u16, u16) = (4, 0);
const ZEROES: (u16, u16) = (6, 0);
const STATUS: (u16, u16) = (7, 0);
const FUA: u16 = 1;
const NO_HOLE: u16 = 2;
const REQ_ONE: u16 = 8;
const FAST_ZERO: u16 = 16;

/// Bytes that tell where they belong: each block of 512 has a number of its own.
fn pattern(offset: u64, len: usize) -> Vec<u8> {
    assert!(offset.is_multiple_of(512) && len.is_multiple_of(512));
    let blocks = (offset / 512..).take(len / 512);
    let words = blocks.map(|block| (block + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    let blocks: Vec<Vec<u8>> = words.map(|word| word.repeat(64)).collect();
    blocks.concat()
}

fn extents(data: &[u8]) -> Vec<(u32, u32)> {
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
    assert_eq!(number(&data[..4]), 1);
    data[4..].chunks_exact(8).map(|it| (number(&it[..4]), number(&it[4..]))).collect()
}

#[test]
fn who_connects_again_learns_of_a_device_that_has_grown() {
    let bed = Bed::start("file:DIR/disk,size=1M,buffered", Backend::Auto);
    let (mut before, mut agreed) = (bed.client(true), bed.agreed());
    before.write(0, &pattern(0, 4096));
    let file = std::fs::File::options().write(true).open(bed.file("disk")).unwrap();
    file.set_len(2 << 20).unwrap();
    bed.device.rescan().unwrap();
    let mut after = bed.client(true);
    assert_eq!((before.bytes, after.bytes), (1 << 20, 2 << 20));
    after.write((2 << 20) - 4096, &pattern(0, 4096));
    // NBD tells no size later: for who is connected, the disk ends where it did.
    assert_eq!(before.call(READ, (1 << 20, 4096), b"").error, 22);
    before.write((1 << 20) - 4096, &pattern(8192, 4096));
    assert!(after.read((1 << 20) - 4096, 4096) == pattern(8192, 4096), "its I/O goes on");
    assert!(before.read(0, 4096) == pattern(0, 4096));
    // The client within the process is told by another way.
    assert_eq!(agreed.call(READ, (2 << 20, 4096), b"").error, 22);
    agreed.write((2 << 20) - 8192, &pattern(0, 4096));
    // A smaller file keeps its size: what is behind its end fails, and the rest is as it was.
    file.set_len(1 << 20).unwrap();
    assert!(bed.device.rescan().is_err());
    let mut last = bed.client(true);
    assert_eq!(last.bytes, 2 << 20);
    assert_ne!(last.call(READ, (1 << 20, 4096), b"").error, 0);
    assert!(last.read(0, 4096) == pattern(0, 4096));
}

#[test]
fn what_is_written_is_read() {
    for device in ["ram:64M", "file:DIR/disk,size=64M,buffered"] {
        for backend in [Backend::Auto, Backend::Epoll] {
            for structured in [true, false] {
                let bed = Bed::start(device, backend);
                let mut client = bed.client(structured);
                assert_eq!(client.bytes, 64 << 20);
                for (offset, len) in
                    [(0, 512), (4096, 4096), (1 << 20, 300 << 10), (8 << 20, 32 << 20)]
                {
                    client.write(offset, &pattern(offset, len));
                }
                assert_eq!(client.call((1, FUA), (512, 512), &pattern(512, 512)).error, 0);
                assert_eq!(client.call(FLUSH, (0, 0), b"").error, 0);
                let mut other = bed.client(!structured);
                for (offset, len) in
                    [(0, 1024), (4096, 4096), (1 << 20, 300 << 10), (8 << 20, 32 << 20)]
                {
                    let read = other.read(offset, len);
                    assert!(read == pattern(offset, read.len()), "{device} {offset} {len}");
                }
                assert_eq!(other.read(2048, 512), [0; 512]);
            }
        }
    }
}

#[test]
fn ranges_are_zeroed_and_released() {
    for device in ["ram:16M", "file:DIR/disk,size=16M,buffered", "ram:16M,error=zeroes:unsupported"]
    {
        let bed = Bed::start(device, Backend::Auto);
        let mut client = bed.client(true);
        let unsupported = device.contains("error");
        for flags in [0, FUA, NO_HOLE, NO_HOLE | FUA] {
            client.write(0, &pattern(0, 4 << 20));
            let zeroed = client.call((ZEROES.0, flags), (4096, 3 << 20), b"");
            assert_eq!(zeroed.error, 0, "{device} {flags}");
            let read = client.read(0, 4 << 20);
            let end = 4096 + (3 << 20);
            assert!(read[..4096] == pattern(0, 4096) && read[4096..end].iter().all(|&it| it == 0));
            assert!(read[end..] == pattern(end as u64, read.len() - end), "{device} {flags}");
        }
        let fast = client.call((ZEROES.0, FAST_ZERO), (0, 4096), b"");
        assert_eq!(fast.error, if unsupported { 95 } else { 0 }, "{device}");
        let slow = client.call((ZEROES.0, FAST_ZERO | NO_HOLE), (0, 4096), b"");
        assert_eq!(slow.error, 95, "{device}");
        for flags in [0, FUA] {
            assert_eq!(client.call((TRIM.0, flags), (0, 1 << 20), b"").error, 0, "{device}");
        }
        // CACHE has nothing to do for memory, and is not there for other devices.
        let has_cache = client.flags & 1 << 10 != 0;
        assert_eq!(has_cache, device.starts_with("ram"));
        let cached = client.call((5, 0), (0, 4096), b"").error;
        assert_eq!(cached, if has_cache { 0 } else { 95 });
    }
}

#[test]
fn holes_of_a_file_are_told() {
    let bed = Bed::start("file:DIR/disk,size=16M,buffered", Backend::Auto);
    let mut client = bed.client(true);
    assert_eq!(client.contexts, 1);
    client.write(1 << 20, &pattern(0, 1 << 20));
    client.write(4 << 20, &pattern(0, 1 << 20));
    assert_eq!(client.call(FLUSH, (0, 0), b"").error, 0);
    let status = client.call(STATUS, (0, 16 << 20), b"");
    assert_eq!(status.chunk, Some(5));
    let all = [(1 << 20, 3), (1 << 20, 0), (2 << 20, 3), (1 << 20, 0), (11 << 20, 3)];
    assert_eq!(extents(&status.data), all);
    let status = client.call((STATUS.0, REQ_ONE), (1 << 20, 8 << 20), b"");
    assert_eq!(extents(&status.data), [(1 << 20, 0)]);
    // Memory does not know, and a client that has not asked for structured replies cannot be told.
    let bed = Bed::start("ram:1M", Backend::Auto);
    let mut client = bed.client(true);
    assert_eq!((client.contexts, client.call(STATUS, (0, 4096), b"").error), (0, 22));
}

#[test]
fn what_cannot_be_is_refused_and_the_connection_lives() {
    let bed = Bed::start_with("ram:1M,bs=4096", |_| {});
    for structured in [true, false] {
        let mut client = bed.client(structured);
        for (command, range, error) in [
            (READ, (1 << 20, 4096), 22),
            (READ, (512, 4096), 22),
            (READ, (0, 0), 22),
            (READ, (u64::MAX - 4095, 4096), 22),
            (READ, (0, u32::MAX - 4095), 22),
            ((0, 1 << 9), (0, 4096), 22),
            ((77, 0), (0, 4096), 22),
            (FLUSH, (4096, 0), 22),
            (ZEROES, (1 << 20, 4096), 28),
        ] {
            assert_eq!(client.call(command, range, b"").error, error, "{command:?} {range:?}");
        }
        for (offset, len, error) in [(1 << 20, 4096, 28), (100, 100, 22), (0, 5000, 22)] {
            let data = vec![7; len as usize];
            assert_eq!(client.call((1, 0), (offset, len), &data).error, error);
        }
        assert_eq!(client.read(0, 1 << 20), vec![0; 1 << 20]);
    }
    let bed = Bed::start_with("ram:1M", |config| config.exports[0].read_only = true);
    let mut client = bed.client(true);
    assert_eq!(client.flags & 2, 2);
    assert_eq!(client.call((1, 0), (0, 512), &[1; 512]).error, 1);
    assert_eq!(client.call(TRIM, (0, 512), b"").error, 1);
    assert_eq!(client.read(0, 512), [0; 512]);
}

#[test]
fn who_does_not_ask_for_large_blocks_does_no_harm_by_smaller_ones() {
    const BLOCK: u32 = 4096;
    let bed = Bed::start("ram:1M,bs=4096", Backend::Auto);
    let mut client = bed.careless_client();
    assert_eq!(client.bytes, 1 << 20);
    client.write(0, &pattern(0, 2 * BLOCK as usize));
    for (command, _) in [READ, (1, 0), TRIM, ZEROES] {
        for (offset, len) in [(512, 512), (0, 512), (512, BLOCK), (BLOCK.into(), BLOCK + 512)] {
            let data = vec![7; if command == 1 { len as usize } else { 0 }];
            let error = client.call((command, 0), (offset, len), &data).error;
            assert_eq!(error, 22, "command {command} at {offset}, {len} bytes");
        }
    }
    assert!(client.read(0, 2 * BLOCK) == pattern(0, 2 * BLOCK as usize), "nothing has changed");
    client.write(BLOCK.into(), &pattern(0, BLOCK as usize));
    assert!(client.read(BLOCK.into(), BLOCK) == pattern(0, BLOCK as usize));
}

#[test]
fn what_clients_have_done_is_counted() {
    for device in ["ram:1M,error=read@16-23", "file:DIR/disk,size=1M,buffered,error=read@16-23"] {
        let bed = Bed::start(device, Backend::Auto);
        let mut client = bed.client(true);
        client.write(0, &pattern(0, 4096));
        client.write(4096, &pattern(4096, 512));
        client.read(0, 4096);
        assert_eq!(client.call(FLUSH, (0, 0), b"").error, 0);
        // Zeroes that the device writes as data, and a release that it flushes, are one request each.
        assert_eq!(client.call((ZEROES.0, NO_HOLE), (65_536, 512 << 10), b"").error, 0);
        assert_eq!(client.call((TRIM.0, FUA), (0, 8192), b"").error, 0);
        // One that fails, and two that are refused: one of them with data.
        assert_ne!(client.call(READ, (8192, 512), b"").error, 0);
        assert_ne!(client.call(READ, (1 << 20, 512), b"").error, 0);
        assert_ne!(client.call((1, 0), (1 << 20, 512), &[1; 512]).error, 0);
        let totals = bed.totals();
        let DiskTotals { reads, writes, flushes, discards, zeroes, errors, .. } = totals;
        assert_eq!([reads, writes, flushes, discards, zeroes, errors], [1, 2, 1, 1, 1, 3]);
        assert_eq!((totals.read_bytes, totals.written_bytes), (4096, 4608));
        assert_eq!((totals.discarded_bytes, totals.zeroed_bytes), (8192, 512 << 10));
        assert_eq!(totals.queues(), 1);
        drop(client);
        let end = std::time::Instant::now() + client::PATIENCE;
        while bed.totals().queues() > 0 {
            assert!(std::time::Instant::now() < end, "the connection is still counted");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(bed.totals().queues_ever, 1);
    }
}

#[test]
fn errors_of_the_device_reach_the_client() {
    let bed = Bed::start("ram:1M,error=write@8-15:nospace+read@16-23+flush/2", Backend::Auto);
    let mut client = bed.client(true);
    assert_eq!(client.call((1, 0), (4096, 512), &[1; 512]).error, 28);
    let reply = client.call(READ, (8192, 512), b"");
    assert_eq!((reply.error, reply.chunk), (5, Some(0x8001)));
    assert_eq!(client.call(FLUSH, (0, 0), b"").error, 0);
    assert_eq!(client.call(FLUSH, (0, 0), b"").error, 5);
    assert_eq!(client.read(0, 512), [0; 512]);
}

#[test]
fn many_requests_at_once_are_all_answered() {
    let bed = Bed::start_with("file:DIR/disk,size=16M,buffered", |config| {
        config.cores = vec![None, None];
    });
    let work = |mut client: Client, base: u64| {
        // More than the places of a connection, so that requests wait for each other's replies.
        const COUNT: u64 = 400;
        let mut writer = client.stream.try_clone().unwrap();
        let sender = std::thread::spawn(move || {
            use std::io::Write as _;
            for number in 0..COUNT {
                let offset = base + number * 4096;
                let header = client::request(1, 0, number, offset, 4096);
                writer.write_all(&[header, pattern(offset, 4096)].concat()).unwrap();
            }
        });
        let mut seen = vec![false; 400];
        for _ in 0..COUNT {
            let reply = client.reply(0).unwrap();
            assert_eq!(reply.error, 0);
            let seen = &mut seen[usize::try_from(reply.cookie).unwrap()];
            assert!(!std::mem::replace(seen, true), "answered twice");
        }
        sender.join().unwrap();
        let read = client.read(base, 400 * 4096);
        assert!(read == pattern(base, read.len()));
    };
    std::thread::scope(|scope| {
        for part in 0..4_u64 {
            let client = bed.client(part % 2 == 0);
            scope.spawn(move || work(client, part * (4 << 20)));
        }
    });
}

#[test]
fn a_server_that_ends_answers_what_has_come() {
    let mut bed = Bed::start("ram:1M,delay=200000", Backend::Auto);
    let mut client = bed.client(true);
    let path = bed.path();
    // The next reply shows that the write has come, too: both come at once.
    let write = [&request(1, 0, 1, 0, 512)[..], &[5; 512]].concat();
    let (command, flags) = READ;
    let read = request(command, flags, 2, 1 << 20, 512);
    std::io::Write::write_all(&mut client.stream, &[&write[..], &read].concat()).unwrap();
    let cookie = 1;
    let refused = client.reply(0).unwrap();
    assert_eq!((refused.cookie, refused.error), (cookie + 1, 22));
    bed.stop();
    let reply = client.reply(0).unwrap();
    assert_eq!((reply.cookie, reply.error), (cookie, 0));
    assert!(client.reply(0).is_err());
    assert!(!path.exists());
}

#[test]
fn listening_goes_wrong_with_a_reason() {
    let bed = Bed::start("ram:1M", Backend::Auto);
    let start = |path: &std::path::Path| {
        let device = raceline_bdev::open(
            &"ram:1M".parse().unwrap(),
            &raceline_bdev::Identity::from_seed(b"test"),
        );
        let export = raceline_nbd::Export {
            name: "x".into(),
            description: String::new(),
            device: device.unwrap(),
            read_only: false,
        };
        let endpoint = Endpoint::Unix(path.to_owned());
        raceline_nbd::Server::start(&raceline_nbd::ServerConfig::new(vec![export], vec![endpoint]))
    };
    let error = start(&bed.path()).err().unwrap().to_string();
    assert!(error.contains("another process listens there"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    let error = start(&file).err().unwrap().to_string();
    assert!(error.contains("a file that is no socket"), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    // What a killed process has left is in nobody's way.
    let left = dir.path().join("left");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    let server = start(&left).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(std::fs::metadata(&left).unwrap().permissions().mode() & 0o777, 0o600);
    server.stop();
}

#[test]
fn a_connection_within_the_process_begins_with_requests() {
    let bed = Bed::start("ram:16M", Backend::Auto);
    let mut other = bed.client(true);
    other.write(4096, &pattern(4096, 4096));
    let mut client = bed.agreed();
    assert!(client.read(4096, 4096) == pattern(4096, 4096));
    client.write(0, &pattern(0, 1 << 20));
    assert_eq!(client.call(FLUSH, (0, 0), b"").error, 0);
    assert!(other.read(0, 1 << 20) == pattern(0, 1 << 20));
    // Simple replies only: a request that needs structured ones is refused.
    assert_eq!(client.call(STATUS, (0, 4096), b"").error, 22);
}

#[test]
fn connections_within_the_process_count() {
    let bed = Bed::start_with("ram:1M", |config| {
        config.max_connections = 1;
        config.endpoints.clear();
    });
    let client = bed.agreed();
    let error = bed.connect().unwrap_err().to_string();
    assert!(error.contains("as many connections"), "{error}");
    drop(client);
    let end = std::time::Instant::now() + client::PATIENCE;
    while bed.connect().is_err() {
        assert!(std::time::Instant::now() < end, "the place was not given back");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
