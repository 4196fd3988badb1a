//! Clients that lie, and a client beside them that has to notice nothing.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use raceline_nbd::DEFAULT_MAX_CONNECTIONS;
use raceline_reactor::Backend;

use crate::client::{Bed, go, option, request};
use crate::pattern;

/// Reads until the server closes; gives how much came.
fn read_to_end(stream: &mut UnixStream) -> usize {
    let mut all = Vec::new();
    // A reset is an end as well.
    let _ = stream.read_to_end(&mut all);
    all.len()
}

#[test]
fn bad_negotiations_end_and_disturb_nobody() {
    let bed = Bed::start("ram:16M", Backend::Auto);
    let mut good = bed.client(true);
    let flags = [0, 0, 0, 3];
    let mut long = option(3, b"");
    long[12..].copy_from_slice(&u32::MAX.to_be_bytes());
    for bytes in [
        vec![0xff; 100],
        [&flags[..], &[b'x'; 200]].concat(),
        [&flags[..], &long].concat(),
        [&flags[..], &option(1, b"no such export")].concat(),
        [&flags[..], &option(3, b"").repeat(1000)].concat(),
        [&flags[..], &option(7, &[0xff; 64]).repeat(200)].concat(),
        [&flags[..], &go(), &[7; 28]].concat(),
    ] {
        let mut stream = bed.raw();
        // The server may close before it has taken all.
        let _ = stream.write_all(&bytes);
        assert!(read_to_end(&mut stream) < 1 << 20);
        good.write(4096, &pattern(4096, 4096));
    }
    assert!(good.read(4096, 4096) == pattern(4096, 4096));
}

#[test]
fn clients_that_stop_amid_a_request_leave_nothing_behind() {
    let bed = Bed::start("file:DIR/disk,size=64M,buffered", Backend::Auto);
    let mut good = bed.client(true);
    good.write(0, &pattern(0, 8192));
    // More than there are places, so that each has to give its place back.
    for round in 0..2 * DEFAULT_MAX_CONNECTIONS {
        let mut bad = bed.client(round % 2 == 0);
        let mut bytes = request(1, 0, 1, 0, 32 << 20);
        bytes.extend(vec![0xee; if round % 3 == 0 { 0 } else { 100_000 }]);
        bytes.truncate(if round % 5 == 0 { 20 } else { bytes.len() });
        bad.stream.write_all(&bytes).unwrap();
    }
    // Nothing of a write that did not come whole is on the device.
    assert!(good.read(0, 8192) == pattern(0, 8192));
}

#[test]
fn a_client_that_never_reads_holds_up_only_itself() {
    let bed = Bed::start("file:DIR/disk,size=64M,buffered", Backend::Auto);
    let mut good = bed.client(true);
    let mut greedy: Vec<_> = (0..8).map(|_| bed.client(false)).collect();
    for client in &mut greedy {
        client.stream.set_nonblocking(true).unwrap();
        for cookie in 0..1000 {
            // What no more goes in shows that the server has stopped to read.
            if client.stream.write_all(&request(0, 0, cookie, 0, 32 << 20)).is_err() {
                break;
            }
        }
    }
    for round in 0..100_u64 {
        good.write(round * 4096, &pattern(round * 4096, 4096));
        assert!(good.read(round * 4096, 4096) == pattern(round * 4096, 4096));
    }
    // Large requests wait for what the greedy ones hold, and go on when those are gone.
    good.send((0, 0), (0, 32 << 20), b"");
    drop(greedy);
    assert_eq!(good.reply(0).unwrap().error, 0);
}

#[test]
fn writes_that_never_come_hold_up_only_themselves() {
    let bed = Bed::start("ram:64M", Backend::Auto);
    let mut good = bed.client(true);
    let mut bad: Vec<_> = (0..8).map(|_| bed.client(true)).collect();
    for client in &mut bad {
        client.stream.write_all(&request(1, 0, 1, 0, 32 << 20)).unwrap();
        client.stream.write_all(&[1; 5000]).unwrap();
    }
    for round in 0..100_u64 {
        good.write(round * 4096, &pattern(round * 4096, 4096));
    }
    assert!(good.read(0, 4096) == pattern(0, 4096));
    drop(bad);
    good.write(32 << 20, &pattern(32 << 20, 32 << 20));
    assert!(good.read(0, 4096) == pattern(0, 4096));
}

#[test]
fn a_length_beyond_all_limits_ends_the_connection() {
    let bed = Bed::start("ram:64M", Backend::Auto);
    let mut bad = bed.client(true);
    let reply = bad.call((1, 0), (0, u32::MAX), &[0; 100]);
    assert_eq!(reply.error, 22);
    assert_eq!(read_to_end(&mut bad.stream), 0);
    // A length that is wrong, but not absurd, is thrown away with its data.
    let mut wrong = bed.client(true);
    assert_eq!(wrong.call((1, 0), (0, 1_000_001), &vec![9; 1_000_001]).error, 22);
    assert_eq!(wrong.read(0, 4096), [0; 4096]);
}

#[test]
fn connections_beyond_the_limit_are_closed() {
    let bed = Bed::start_with("ram:1M", |config| config.max_connections = 2);
    let mut first = bed.client(true);
    let second = bed.client(true);
    let mut third = bed.raw();
    assert_eq!(read_to_end(&mut third), 0);
    drop(second);
    first.write(0, &[1; 512]);
    // The place is free when the server has seen the end.
    let end = std::time::Instant::now() + crate::client::PATIENCE;
    loop {
        let mut stream = bed.raw();
        if stream.read(&mut [0; 1]).is_ok_and(|count| count == 1) {
            break;
        }
        assert!(std::time::Instant::now() < end, "the place never came free");
    }
}
