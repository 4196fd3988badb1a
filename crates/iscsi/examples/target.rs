//! A RAM disk over iSCSI on blocking sockets, to try the target's end with initiators of others.
//!
//! `cargo run -p raceline-iscsi --example target -- 127.0.0.1:3260 [user secret [own-name own-secret]]`

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use raceline_iscsi::chap::{Algorithm, Secret};
use raceline_iscsi::target::{Authentication, ChapDemand, Credentials};

#[path = "../tests/common/disk.rs"]
#[allow(dead_code, missing_docs, reason = "tests use the rest")]
mod disk;

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let address = arguments.first().map_or("127.0.0.1:3260", String::as_str);
    let mut setup = disk::Setup::default();
    if let [_, user, secret, own @ ..] = arguments.as_slice() {
        let secret_of = |text: &String| Secret::new(text.clone().into_bytes());
        let own = match own {
            [name, secret, ..] => Some((name.clone(), secret_of(secret))),
            _ => None,
        };
        // An example: a target for use takes random bytes here.
        setup.authentication = Authentication::Chap(ChapDemand {
            required: true,
            mutual: own.is_some(),
            algorithms: Algorithm::ALL,
            id: 1,
            challenge: [0x5a; 32],
        });
        setup.accounts = vec![(user.clone(), Credentials { secret: secret_of(secret), own })];
    }
    let listener = TcpListener::bind(address)?;
    setup.portal = listener.local_addr()?;
    println!("listening on {}", setup.portal);
    for stream in listener.incoming() {
        let (stream, setup) = (stream?, setup.clone());
        std::thread::spawn(move || match serve(stream, setup) {
            Ok(()) => println!("connection closed"),
            Err(error) => println!("connection lost: {error}"),
        });
    }
    Ok(())
}

fn serve(mut stream: TcpStream, setup: disk::Setup) -> std::io::Result<()> {
    let mut disk = disk::Disk::new(setup, 131_072);
    let mut buffer = vec![0; 1 << 16];
    let mut out = Vec::new();
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        let fed = disk.feed(&buffer[..count], &mut out);
        stream.write_all(&out)?;
        out.clear();
        if let Err(error) = fed {
            println!("protocol error: {error}");
        }
        if disk.closing {
            if let Some((status, text)) = disk.target.refusal() {
                println!("login refused: {status}: {text}");
            }
            return Ok(());
        }
    }
}
