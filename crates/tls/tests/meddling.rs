//! Somebody on the way changes one byte of a connection: each byte of the handshake and of the records behind it in turn.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{BLOCK, NS, Served, nqn};
use raceline_auth::{Hash, TlsKey};
use raceline_host::blocking::Host;
use raceline_reactor::core::Backend;

/// Bytes of the handshake, of ICReq and Connect and their answers: at least as many pass in each direction.
const OF_HOST: usize = 1900;
const OF_TARGET: usize = 500;
/// How long an end may wait for the rest of a record whose length was changed.
const PATIENCE: Duration = Duration::from_millis(300);

/// What is to be done with the next connection, and what has passed of it: bytes of the host, bytes of the target.
#[derive(Default)]
struct Wire {
    change: Option<(bool, usize)>,
    passed: [usize; 2],
}

/// Hands connections on. Gives its address.
fn meddler(target: SocketAddr, wire: &Arc<Mutex<Wire>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let wire = Arc::clone(wire);
    std::thread::spawn(move || {
        for host in listener.incoming().map_while(Result::ok) {
            let Ok(target) = TcpStream::connect(target) else { return };
            // The admin queue comes first, and is the one to be changed.
            let change = wire.lock().unwrap().change.take();
            let [from_host, from_target] = [host.try_clone().unwrap(), target.try_clone().unwrap()];
            for (of_host, from, to) in [(true, from_host, target), (false, from_target, host)] {
                let at = change.filter(|(changed, _)| *changed == of_host).map(|(_, at)| at);
                let wire = change.map(|_| Arc::clone(&wire));
                std::thread::spawn(move || hand_on(from, to, of_host, at, wire.as_deref()));
            }
        }
    });
    address
}

fn hand_on(
    mut from: TcpStream,
    mut to: TcpStream,
    of_host: bool,
    at: Option<usize>,
    wire: Option<&Mutex<Wire>>,
) {
    let (mut passed, mut piece) = (0, vec![0; 16 << 10]);
    while let Ok(count @ 1..) = from.read(&mut piece) {
        if let Some(at) = at.filter(|at| (passed..passed + count).contains(at)) {
            piece[at - passed] ^= 1 << (at % 8);
        }
        passed += count;
        if let Some(wire) = wire {
            wire.lock().unwrap().passed[usize::from(!of_host)] = passed;
        }
        if to.write_all(&piece[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Connects, and reads what was written before. `Err`: there is no connection, or none any more.
fn read(served: &Served, key: &TlsKey, data: &[u8]) -> Result<(), ()> {
    let names = ("nqn.host", "nqn.sub");
    let mut config = served.config(names, key, names);
    config.connect_timeout = PATIENCE;
    config.io_queues = 1;
    let host = Host::connect(config).map_err(|_| ())?;
    let mut back = vec![0; data.len()];
    host.read(NS, 0, &mut back).map_err(|_| ())?;
    assert!(back == data, "other data");
    host.disconnect();
    Ok(())
}

#[test]
fn any_byte_of_the_host_that_is_changed_ends_the_connection() {
    change_each(true, OF_HOST, 640);
}

#[test]
fn any_byte_of_the_target_that_is_changed_ends_the_connection() {
    change_each(false, OF_TARGET, 330);
}

/// Changes one byte of this side per connection; the handshake has about the first `handshake` of `bytes`.
fn change_each(of_host: bool, bytes: usize, handshake: usize) {
    let names = ("nqn.host", "nqn.sub");
    let key = TlsKey::generate(Hash::Sha256).unwrap();
    let data: Vec<u8> = (0..8 * BLOCK).map(|i| (i / 5).to_le_bytes()[0]).collect();
    let mut served = Served::start(Backend::Epoll);
    served.table.insert(&key, &nqn(names.0), &nqn(names.1)).unwrap();
    served.connect(names, &key, names).unwrap().write(NS, 0, &data, false).unwrap();
    let wire = Arc::new(Mutex::new(Wire::default()));
    served.address = meddler(served.address, &wire);
    let mut survived = Vec::new();
    for at in 0..bytes {
        *wire.lock().unwrap() = Wire { change: Some((of_host, at)), passed: [0; 2] };
        if read(&served, &key, &data).is_ok() {
            let passed = wire.lock().unwrap().passed[usize::from(!of_host)];
            assert!(passed > at, "{passed} bytes have passed, and byte {at} was to be changed");
            survived.push(at);
        }
    }
    // What carries no meaning may change: change_cipher_spec, and versions in the headers of the handshake's records.
    assert!(survived.len() <= 12, "{survived:?}");
    assert!(survived.iter().all(|at| *at < handshake), "{survived:?}");
    served.target.shutdown().unwrap();
}
