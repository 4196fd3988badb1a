//! An initiator on a blocking socket, to try the initiator's end with targets of others: it lists the targets, logs in,
//! and writes and reads the first 4 MiB of a disk, whose content is lost.
//!
//! `cargo run -p raceline-iscsi --example initiator -- 127.0.0.1:3260 iqn.2026-11.example:disk LUN [digests]
//! [user secret [target-name target-secret]]`

use std::io::{Error, Read, Write};
use std::net::TcpStream;

use raceline_iscsi::chap::{Algorithm, Secret};
use raceline_iscsi::initiator::{InitiatorConfig, InitiatorCredentials};
use raceline_iscsi::names::{Isid, Name};

#[path = "../tests/common/mod.rs"]
#[allow(missing_docs, unused_imports, reason = "tests use the rest")]
mod common;

use common::host::{Host, cdb16};

/// A host and its socket.
struct Connection {
    host: Host,
    stream: TcpStream,
    out: Vec<u8>,
}

impl Connection {
    fn log_in(address: &str, config: InitiatorConfig) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(std::time::Duration::from_secs(30)))?;
        let mut connection = Self { host: Host::new(config), stream, out: Vec::new() };
        connection.host.initiator.login(&mut connection.out);
        connection.run_until(|host| host.logged_in || host.refused.is_some())?;
        match connection.host.refused {
            Some(status) => Err(Error::other(format!("the login was refused: {status}"))),
            None => Ok(connection),
        }
    }

    /// Sends and receives until something is true.
    fn run_until(&mut self, done: impl Fn(&Host) -> bool) -> std::io::Result<()> {
        let mut buffer = vec![0; 1 << 16];
        loop {
            self.stream.write_all(&self.out)?;
            self.out.clear();
            if done(&self.host) {
                return Ok(());
            }
            let count = self.stream.read(&mut buffer)?;
            if count == 0 {
                return Err(Error::other("the target closed the connection"));
            }
            self.host.feed(&buffer[..count], &mut self.out).map_err(Error::other)?;
        }
    }

    fn log_out(mut self) -> std::io::Result<()> {
        self.host.initiator.logout(&mut self.out);
        self.run_until(|host| host.logged_out.is_some())?;
        println!("logout: {:?}", self.host.logged_out);
        Ok(())
    }
}

fn main() -> std::io::Result<()> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let digests = arguments.iter().position(|argument| argument == "digests");
    if let Some(at) = digests {
        arguments.remove(at);
    }
    let [address, target, lun, rest @ ..] = arguments.as_slice() else {
        return Err(Error::other(
            "usage: ADDRESS TARGET LUN [digests] [user secret [name secret]]",
        ));
    };
    let secret = |text: &String| Secret::new(text.clone().into_bytes());
    let initiator = Name::new("iqn.2026-11.test.raceline:host").map_err(Error::other)?;
    let target = Name::new(target).map_err(Error::other)?;
    let mut config = InitiatorConfig::new(initiator, None, Isid::random(1, 1));
    let discovery = Connection::log_in(address, config.clone());
    match discovery {
        Ok(mut discovery) => {
            discovery.host.initiator.send_targets("All", &mut discovery.out);
            discovery.run_until(|host| host.targets)?;
            println!("targets: {:?}", discovery.host.initiator.targets());
            discovery.log_out()?;
        }
        Err(error) => println!("discovery: {error}"),
    }
    config.target_name = Some(target);
    config.wishes.header_digest = digests.is_some();
    config.wishes.data_digest = digests.is_some();
    if let [user, own, of_target @ ..] = rest {
        // An example: an initiator for use takes random bytes here.
        config.credentials = Some(InitiatorCredentials {
            name: user.clone(),
            secret: secret(own),
            // tgt takes 7, the number of SHA-256, for SHA-1.
            algorithms: &[Algorithm::Md5],
            target: of_target.first_chunk::<2>().map(|[name, text]| (name.clone(), secret(text))),
            id: 42,
            challenge: [0x77; 32],
        });
    }
    let lun = lun.parse::<u8>().map_err(Error::other)?;
    exercise(Connection::log_in(address, config)?, u64::from(lun) << 48)
}

/// Writes and reads in many sizes.
fn exercise(mut connection: Connection, lun: u64) -> std::io::Result<()> {
    println!("parameters: {:?}", connection.host.initiator.parameters());
    connection.host.lun = lun;
    // The first command may meet a unit attention.
    for _ in 0..3 {
        connection.host.command(0, &[0], 0, &mut connection.out);
        connection.run_until(|host| !host.ended.is_empty())?;
        println!("TEST UNIT READY: {:?}", connection.host.take_ended());
    }
    connection.host.command(0, &[0x12, 0, 0, 0, 255, 0], 255, &mut connection.out);
    connection.run_until(|host| !host.ended.is_empty())?;
    println!("INQUIRY: {:?}", connection.host.take_ended().1);
    println!("  {}", String::from_utf8_lossy(&connection.host.buffer(0)[8..36]));
    let mut commands = 0;
    for blocks in [1_u32, 8, 127, 512, 1024, 2048, 8192] {
        for unsolicited in [false, true] {
            for immediate in [0, 512, u32::MAX] {
                connection.host.unsolicited = unsolicited;
                connection.host.immediate_limit = immediate;
                let salt = commands * 7 + blocks as usize;
                let bytes = (0..blocks as usize * 512).map(|at| (at / 3 + at / 512 + salt) as u64);
                let data: Vec<u8> = bytes.map(|value| value.to_be_bytes()[7]).collect();
                connection.host.write(1, 0, &data, &mut connection.out);
                connection.run_until(|host| !host.ended.is_empty())?;
                let (_, written, sense) = connection.host.take_ended();
                let len = blocks * 512;
                connection.host.command(2, &cdb16(0x88, 0, blocks), len, &mut connection.out);
                connection.run_until(|host| !host.ended.is_empty())?;
                let (_, read, _) = connection.host.take_ended();
                if (written.status, read.status, read.missing) != (0, 0, 0) {
                    return Err(Error::other(format!("{written:?} {sense:?} {read:?}")));
                }
                if connection.host.buffer(2) != data {
                    return Err(Error::other("the data differ"));
                }
                commands += 2;
            }
        }
    }
    println!("{commands} writes and reads, {} R2Ts: all data as written", connection.host.r2ts);
    connection.host.initiator.ping(&mut connection.out);
    connection.run_until(|host| host.pongs > 0)?;
    connection.log_out()
}
