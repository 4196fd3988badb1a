//! Clients that get no connection: the log names them, and says why.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use raceline_nbd::Endpoint;

use crate::client::{Bed, PATIENCE, go, option};

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Keeps the messages of all tests from now on.
pub(crate) fn keep_log() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing_subscriber::fmt().with_ansi(false).with_writer(|| Log).init());
}

/// Waits for a message about a peer.
#[track_caller]
pub(crate) fn expect_logged(peer: &str, why: &str) {
    let end = Instant::now() + PATIENCE;
    loop {
        let log = String::from_utf8(LOG.lock().unwrap().clone()).unwrap();
        if log.lines().any(|line| line.contains(peer) && line.contains(why)) {
            return;
        }
        assert!(Instant::now() < end, "{peer}: {why}: {log}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn serve(device: &str, max_connections: usize) -> (Bed, SocketAddr) {
    keep_log();
    let bed = Bed::start_with(device, |config| {
        config.endpoints = vec![Endpoint::Tcp("127.0.0.1:0".parse().unwrap())];
        config.max_connections = max_connections;
    });
    let Endpoint::Tcp(address) = bed.listening() else { panic!("it listens by TCP") };
    (bed, address)
}

/// A connection, and its address.
fn connect(address: SocketAddr) -> (TcpStream, String) {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let own = stream.local_addr().unwrap().to_string();
    (stream, own)
}

#[test]
fn who_is_refused_is_named_with_the_reason() {
    let (_bed, address) = serve("ram:1M,bs=4096", 64);
    let flags = [0, 0, 0, 3];
    let other = option(7, &[&[0, 0, 0, 4], b"none".as_slice(), &[0, 0]].concat());
    for (bytes, why) in [
        (vec![0xff; 4], "flags"),
        ([&flags[..], &[b'x'; 16]].concat(), "instead of IHAVEOPT"),
        ([&flags[..], &option(1, b"none")].concat(), "the export \"none\""),
        ([&flags[..], &other].concat(), "the export \"none\""),
        ([&flags[..], &option(6, &[0; 6])].concat(), "does not ask for the block size"),
        ([&flags[..], &go(), &[7; 28]].concat(), "without the magic number"),
    ] {
        let (mut stream, own) = connect(address);
        stream.write_all(&bytes).unwrap();
        expect_logged(&own, why);
    }
}

#[test]
fn who_finds_no_place_is_named() {
    let (_bed, address) = serve("ram:1M", 1);
    let (mut first, _) = connect(address);
    first.read_exact(&mut [0; 18]).unwrap();
    let (mut second, own) = connect(address);
    assert_eq!(second.read(&mut [0; 18]).unwrap_or(0), 0);
    expect_logged(&own, "as many connections as it may have");
}

/// The timer of the server's end of a connection, and when it runs out, in hundredths of a second (proc_net_tcp(5)).
fn timer(server: u16, client: u16) -> Option<(u8, u64)> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table.lines().skip(1).find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let has = |word: &str, port: u16| word.ends_with(&format!(":{port:04X}"));
        let (timer, when) = words[5].split_once(':')?;
        let is_it = has(words[1], server) && has(words[2], client);
        is_it.then(|| Some((timer.parse().ok()?, u64::from_str_radix(when, 16).ok()?)))?
    })
}

#[test]
fn a_client_that_is_silent_is_asked_soon_whether_it_is_there() {
    const ASKS: u8 = 2;
    let (_bed, address) = serve("ram:1M", 64);
    let (mut stream, _) = connect(address);
    stream.read_exact(&mut [0; 18]).unwrap();
    let client = stream.local_addr().unwrap().port();
    let end = Instant::now() + PATIENCE;
    loop {
        match timer(address.port(), client) {
            Some((ASKS, when)) if when <= 3000 => return,
            other => assert!(Instant::now() < end, "{other:?}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
