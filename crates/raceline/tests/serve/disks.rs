//! Disks and exports that run for long: a controller that is given up, and noisy peers in the log.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::{Disk, Export, Scratch};

/// How many messages about one peer a place in the program shows in 10 s (src/log/limit.rs).
const SHOWN: usize = 5;
/// These 10 s.
const WINDOW_S: u64 = 10;
/// How many times a peer does the same.
const ROUNDS: usize = 25;

#[test]
fn a_disk_whose_controller_is_given_up_ends_with_an_error() {
    for kind in ["nbd", "vhost-user"] {
        let folder = Scratch::new();
        let socket = folder.path("disk.sock");
        let target = Export::start(&["ram:4M"]);
        // A unit has the first of the two numbers, and its options the second.
        let words = ["--as", kind, "--socket", &socket, "-l", "-1", "-l", "1", "-c", "1"];
        let disk = Disk::start(&target.host(&words));
        drop(target);
        let (code, people) = disk.finish();
        assert_eq!(code, Some(1), "{kind}: {people}");
        let logged = "the last path to the controller is given up, and all its I/O fails";
        let said =
            "every request fails: this process ends. The same command line makes the disk anew";
        assert!(people.contains(logged) && people.contains(said), "{kind}: {people}");
    }
}

/// Fails unless the log has the first messages of each 10 s that the rounds took, and says how many there were more.
fn assert_bounded(people: &str, message: &str, took: Duration) {
    let lines: Vec<&str> = people.lines().filter(|line| line.contains(message)).collect();
    // The number of messages that a line stands for without showing them.
    let left_out = |line: &&str| -> Option<usize> {
        let (before, _) = line.split_once(" more in the last")?;
        before.rsplit(|it: char| !it.is_ascii_digit()).next()?.parse().ok()
    };
    let sums: Vec<usize> = lines.iter().filter_map(left_out).collect();
    let shown = lines.len() - sums.len();
    // The next 10 s begin with a message, never before the last ones are over.
    let windows = usize::try_from(took.as_secs() / WINDOW_S).unwrap() + 1;
    let most = (windows * SHOWN).min(ROUNDS);
    assert!((SHOWN..=most).contains(&shown), "{shown} of at most {most}: {people}");
    assert!(sums.len() <= windows, "{people}");
    assert_eq!(shown + sums.iter().sum::<usize>(), ROUNDS, "{people}");
}

/// A client of NBD that has the disk open, and so has its place for as long as it likes.
fn nbd_client(address: &str) -> TcpStream {
    /// NBD_OPT_GO, with the default name and no wishes, after the flags of the client (fixed newstyle, no zeroes).
    const GO: &[u8] = b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0";
    /// NBD_REP_ACK.
    const ACK: [u8; 4] = [0, 0, 0, 1];
    let mut client = TcpStream::connect(address).unwrap();
    client.read_exact(&mut [0; 18]).unwrap();
    client.write_all(GO).unwrap();
    loop {
        let mut reply = [0; 20];
        client.read_exact(&mut reply).unwrap();
        let [.., a, b, c, d] = reply;
        let mut data = vec![0; u32::from_be_bytes([a, b, c, d]) as usize];
        client.read_exact(&mut data).unwrap();
        if reply[12..16] == ACK {
            return client;
        }
    }
}

#[test]
fn clients_without_a_place_do_not_fill_the_log_of_a_disk() {
    let disk = Disk::start(&[
        "--as",
        "nbd",
        "--bdev",
        "ram:1M",
        "--listen",
        "0",
        "--max-connections",
        "1",
    ]);
    let address = disk.ready["device"].as_str().unwrap().to_owned();
    let _first = nbd_client(&address);
    let start = Instant::now();
    for _ in 0..ROUNDS {
        let mut refused = TcpStream::connect(&address).unwrap();
        assert_eq!(refused.read(&mut [0; 18]).unwrap_or(0), 0);
    }
    let people = disk.disconnect();
    assert_bounded(&people, "refused an NBD client", start.elapsed());
}

#[test]
fn hosts_that_break_the_protocol_do_not_fill_the_log_of_an_export() {
    let export = Export::start(&["ram:1M"]);
    let address = format!("{}:{}", export.address, export.port);
    let start = Instant::now();
    for _ in 0..ROUNDS {
        let mut host = TcpStream::connect(&address).unwrap();
        host.write_all(&[0xff; 128]).unwrap();
        // The answer names the error; the export then waits for the end of the connection.
        assert_ne!(host.read(&mut [0; 64]).unwrap(), 0);
    }
    let people = export.terminate();
    assert_bounded(&people, "the host broke the protocol", start.elapsed());
}
