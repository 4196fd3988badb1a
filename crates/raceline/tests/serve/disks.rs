//! Disks and exports that run for long: noisy peers in the log.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::support::{Disk, Export};

/// How many messages about one peer a place in the program shows in 10 s (src/log/limit.rs).
const SHOWN: usize = 5;
/// How many times a peer does the same.
const ROUNDS: usize = 25;

/// How often a text for users has a message.
fn count(people: &str, message: &str) -> usize {
    people.lines().filter(|line| line.contains(message)).count()
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
    assert_eq!(count(&people, "refused an NBD client"), SHOWN, "{people}");
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
    assert_eq!(count(&people, "the host broke the protocol"), SHOWN, "{people}");
}
