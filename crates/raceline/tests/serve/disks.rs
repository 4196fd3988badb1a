//! Disks and exports that run for long: a controller that is given up, and noisy peers in the log.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::support::{Disk, Export, Scratch};

/// How many messages about one peer a place in the program shows in 10 s (src/log/limit.rs).
const SHOWN: usize = 5;
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

/// How often a text for users has a message.
fn count(people: &str, message: &str) -> usize {
    people.lines().filter(|line| line.contains(message)).count()
}

/// Fails unless the log has the first messages, and at the end of the program how many there were more.
fn assert_bounded(people: &str, message: &str) {
    let rest = format!("{} more in the last", ROUNDS - SHOWN);
    let told = people.lines().filter(|line| line.contains(&rest) && line.contains(message)).count();
    assert_eq!((count(people, message), told), (SHOWN + 1, 1), "{people}");
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
    let mut first = TcpStream::connect(&address).unwrap();
    first.read_exact(&mut [0; 18]).unwrap();
    for _ in 0..ROUNDS {
        let mut refused = TcpStream::connect(&address).unwrap();
        assert_eq!(refused.read(&mut [0; 18]).unwrap_or(0), 0);
    }
    let people = disk.disconnect();
    assert_bounded(&people, "refused an NBD client");
}

#[test]
fn hosts_that_break_the_protocol_do_not_fill_the_log_of_an_export() {
    let export = Export::start(&["ram:1M"]);
    let address = format!("{}:{}", export.address, export.port);
    for _ in 0..ROUNDS {
        let mut host = TcpStream::connect(&address).unwrap();
        host.write_all(&[0xff; 128]).unwrap();
        // The answer names the error; the export then waits for the end of the connection.
        assert_ne!(host.read(&mut [0; 64]).unwrap(), 0);
    }
    let people = export.terminate();
    assert_bounded(&people, "the host broke the protocol");
}
