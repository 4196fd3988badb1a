//! A long batch leaves in shares, one in each poll, while another socket makes small sends.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "each test uses a part of it")]
mod common;
#[path = "common/scramble.rs"]
mod scramble;

use std::io::Read as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use common::pattern;
use raceline_reactor::core::{Backend, open_io};
use raceline_reactor::flow::{SocketClass, Traffic};
use raceline_reactor::io::SocketId;
use raceline_reactor::{
    Completion, Io, IoBuf, Outcome, Payload, SendBatch, Socket, StreamProvider as _, Token, Wait,
};
use scramble::HandedOn;

const SHARE: usize = 16 << 10;
const TOTAL: usize = 20 * SHARE;

/// Which of the long and the small sender's sockets go by way of a provider.
const KINDS: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];

/// A socket of the back end, as it is or by way of a provider, and its peer.
fn pair(io: &mut dyn Io, handed_on: bool) -> (SocketId, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    let mut socket = Socket::from_fd(near.into()).unwrap();
    if handed_on {
        socket = HandedOn.accepted(socket).unwrap();
    }
    let socket = io.adopt(socket).unwrap();
    let class = SocketClass { traffic: Traffic::Responses, share: SHARE, ..SocketClass::ADMIN };
    io.declare(socket, class);
    (socket, peer)
}

fn batch(seed: u32) -> Box<SendBatch> {
    let mut batch = SendBatch::new(64, 4);
    batch.push_payload(Payload::Buf(IoBuf::from_slice(&pattern(TOTAL, seed)), 0..TOTAL));
    batch
}

/// A small batch for another socket, for whose sake long batches take turns.
fn small() -> Box<SendBatch> {
    let mut batch = SendBatch::new(64, 1);
    batch.push_bytes(b"small");
    batch
}

fn sent(done: &mut Vec<Completion>) -> bool {
    done.drain(..).any(|completion| match completion.outcome {
        Outcome::Sent(result, _) => result.is_ok(),
        other => panic!("{other:?}"),
    })
}

fn received(peer: &mut TcpStream) -> Vec<u8> {
    let mut bytes = vec![0; TOTAL];
    peer.read_exact(&mut bytes).unwrap();
    bytes
}

/// With both sockets as they are, or the long or the small sender's by way of a provider.
fn check(io: &mut dyn Io, (long, short): (bool, bool)) {
    let (socket, mut peer) = pair(io, long);
    let token = Token { owner: 1, generation: 0, index: 0 };
    let mut done = Vec::new();
    // No small sender waits: it leaves as fast as it can.
    io.send(socket, batch(3), token);
    let mut polls = 0;
    while !sent(&mut done) {
        io.poll(Wait::No, &mut done).unwrap();
        polls += 1;
    }
    assert!(polls < 5, "{polls} polls");
    assert!(received(&mut peer) == pattern(TOTAL, 3));

    let (other, _other_peer) = pair(io, short);
    io.send(other, small(), token);
    while !sent(&mut done) {
        io.poll(Wait::No, &mut done).unwrap();
    }
    let mut last = io.counts().sent_bytes;
    io.send(socket, batch(1), token);
    let (mut polls, mut most) = (0, 0);
    while !sent(&mut done) {
        io.poll(Wait::No, &mut done).unwrap();
        polls += 1;
        let now = io.counts().sent_bytes;
        most = most.max(now - last);
        last = now;
    }
    // One share when it is started, and one in each poll; the socket has room for all of it.
    assert!(most <= 2 * SHARE as u64, "{most} bytes in one poll");
    assert!(polls >= 10, "{polls} polls");
    assert!(received(&mut peer) == pattern(TOTAL, 1));
    // A poll that waits goes on with the shares, and does not sleep on them.
    io.send(socket, batch(2), token);
    while !sent(&mut done) {
        io.poll(Wait::Yes, &mut done).unwrap();
    }
    assert!(received(&mut peer) == pattern(TOTAL, 2));
}

#[test]
fn with_epoll() {
    for kinds in KINDS {
        let (mut io, _) = open_io(Backend::Epoll).unwrap();
        check(&mut *io, kinds);
    }
}

#[test]
fn with_the_ring() {
    for kinds in KINDS {
        match open_io(Backend::Uring) {
            Ok((mut io, _)) => check(&mut *io, kinds),
            Err(error) => return eprintln!("SKIPPED: io_uring cannot be used here: {error}"),
        }
    }
}
