//! Streams of a provider against peers that speak its records by hand.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use raceline_reactor::io::SocketId;
use raceline_reactor::socket::BufferSizes;
use raceline_reactor::{
    Payload, SendBatch, Socket, Source, StreamListener, StreamProvider as _, Wait,
};

use crate::bed::Bed;
use crate::common::{errno, pattern};
use crate::cpu_time;
use crate::scramble::{DATA, END, HELLO, RECORD_MAX, Scrambler, record};

const KEY: u8 = 77;

/// An adopted socket of the provider, which was accepted, and its peer.
fn pair(bed: &mut Bed) -> (SocketId, TcpStream) {
    let (listener, address, token) = bed.listen("127.0.0.1:0");
    let peer = TcpStream::connect(address).unwrap();
    peer.set_nodelay(true).unwrap();
    let socket = bed.accepted(token);
    bed.io.close_listener(listener);
    let socket = Scrambler::new(KEY, "near").accepted(socket).unwrap();
    // Options are those of the kernel's socket under it.
    socket.set_buffer_sizes(BufferSizes { send: Some(16 << 10), receive: None }).unwrap();
    (bed.io.adopt(socket).unwrap(), peer)
}

fn hello() -> Vec<u8> {
    record(KEY, HELLO, 0, b"hello from peer")
}

/// What the peer gets in answer.
fn answer() -> Vec<u8> {
    record(KEY, HELLO, 0, b"hello from near")
}

/// A pair after its handshake.
fn greeted_pair(bed: &mut Bed) -> (SocketId, TcpStream) {
    let (socket, mut peer) = pair(bed);
    peer.write_all(&hello()).unwrap();
    while bed.io.peer_identity(socket).is_none() {
        bed.poll(Wait::No);
    }
    let mut came = vec![0; answer().len()];
    peer.read_exact(&mut came).unwrap();
    assert_eq!(came, answer());
    (socket, peer)
}

pub(crate) fn a_peer_that_sends_single_bytes_is_understood(mut bed: Bed) {
    let (socket, mut peer) = pair(&mut bed);
    let text = pattern(300, 1);
    let mut wire = hello();
    wire.extend(record(KEY, DATA, 1, &text[..7]));
    wire.extend(record(KEY, DATA, 2, &text[7..]));
    let received = bed.start_recv(socket, 100, 500);
    for (at, byte) in wire.iter().enumerate() {
        assert_eq!(bed.io.peer_identity(socket).is_some(), at >= hello().len());
        assert!(bed.done.is_empty() || at > hello().len());
        peer.write_all(&[*byte]).unwrap();
        for _ in 0..3 {
            bed.poll(Wait::No);
        }
        while at + 1 == hello().len() && bed.io.peer_identity(socket).is_none() {
            bed.poll(Wait::No);
        }
    }
    assert_eq!(bed.io.peer_identity(socket), Some("peer"));
    let (result, buffers) = bed.recv_result(received);
    let mut bytes = crate::common::received(&buffers, result.unwrap());
    assert!(!bytes.is_empty());
    bytes.extend(bed.recv_exactly(socket, text.len() - bytes.len()));
    assert_eq!(bytes, text);
    // A record that stays incomplete gives nothing, and does not stop the other direction.
    let half = record(KEY, DATA, 3, &text);
    peer.write_all(&half[..100]).unwrap();
    let waiting = bed.start_recv(socket, 0, 100);
    bed.send_bytes(socket, &text);
    let mut came = vec![0; answer().len()];
    peer.read_exact(&mut came).unwrap();
    let mut came = vec![0; record(KEY, DATA, 1, &text).len()];
    peer.read_exact(&mut came).unwrap();
    assert_eq!(came, record(KEY, DATA, 1, &text));
    assert!(bed.take(waiting).is_none());
    peer.write_all(&half[100..]).unwrap();
    assert_eq!(bed.recv_result(waiting).0.unwrap(), 100);
    assert_eq!(bed.io.unread(socket), 200);
    bed.io.close(socket, false);
}

pub(crate) fn a_peer_that_is_killed_ends_its_connection(mut bed: Bed) {
    let available = bed.pool.available_total();
    // Before a word, amid its greeting, amid a record; with and without a reset.
    for (part, reset) in [0, 3, 19, 25].into_iter().flat_map(|part| [(part, false), (part, true)]) {
        let (socket, mut peer) = pair(&mut bed);
        let received = bed.start_recv(socket, 10, 100);
        let mut batch = SendBatch::new(16, 1);
        batch.push_bytes(b"to somebody");
        let sent = bed.start_send(socket, batch);
        let mut wire = hello();
        wire.extend(record(KEY, DATA, 1, b"never whole"));
        peer.write_all(&wire[..part]).unwrap();
        bed.poll(Wait::No);
        if reset {
            socket2::SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
        }
        drop(peer);
        let error = bed.recv_result(received).0.unwrap_err();
        let expected =
            [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
        assert!(expected.contains(&error.kind()), "{part} {reset}: {error}");
        let result = bed.sent(sent).0;
        assert!(result.is_err() || part >= hello().len(), "{part} {reset}: {result:?}");
        // It stays so.
        assert!(bed.recv(socket, 0, 10).is_err());
        bed.io.close(socket, false);
    }
    assert_eq!(bed.pool.available_total(), available);
}

pub(crate) fn a_wrong_key_ends_both_ends(mut bed: Bed) {
    let (one, two) = bed.raw_pair();
    let one = Scrambler::new(1, "one").connected(one).unwrap();
    let two = Scrambler::new(2, "two").accepted(two).unwrap();
    let (one, two) = (bed.io.adopt(one).unwrap(), bed.io.adopt(two).unwrap());
    let (first, second) = (bed.start_recv(one, 0, 10), bed.start_recv(two, 0, 10));
    let error = bed.recv_result(second).0.unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::InvalidData, "another key"));
    bed.io.close(two, false);
    assert!(bed.recv_result(first).0.is_err());
    bed.io.close(one, false);
}

/// Its owner closes it in the end, by a timer of its own.
pub(crate) fn a_handshake_that_stalls_costs_nothing(mut bed: Bed) {
    let (socket, mut peer) = pair(&mut bed);
    peer.write_all(&hello()[..10]).unwrap();
    let received = bed.start_recv(socket, 0, 100);
    let mut batch = SendBatch::new(16, 1);
    batch.push_bytes(b"too early");
    let sent = bed.start_send(socket, batch);
    let timer = bed.token();
    let (start, used) = (Instant::now(), cpu_time());
    bed.io.timer(start + Duration::from_millis(300), timer);
    bed.wait_for(timer);
    let used = cpu_time() - used;
    assert!(used < Duration::from_millis(30), "{used:?} of processor time");
    bed.io.close(socket, true);
    assert_eq!(errno(&bed.recv_result(received).0.unwrap_err()), libc::ECANCELED);
    assert_eq!(errno(&bed.sent(sent).0.unwrap_err()), libc::ECANCELED);
    let mut rest = Vec::new();
    assert_eq!(peer.read_to_end(&mut rest).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(rest.is_empty());
}

/// Closed while the socket is full: what was begun is not ended as if it were whole.
pub(crate) fn what_is_cut_off_does_not_end_well(mut bed: Bed) {
    let available = bed.pool.available_total();
    let (socket, mut peer) = greeted_pair(&mut bed);
    let mut batch = SendBatch::new(0, 4);
    batch.push_payload(Payload::Zeroes(64 << 20));
    batch.push_payload(Payload::Shared(bed.pool.take(4096).unwrap().share(), 0..4096));
    let sent = bed.start_send(socket, batch);
    let waiting = bed.start_recv(socket, 0, 10);
    let mut last = 0;
    // Until the socket is full.
    loop {
        bed.poll(Wait::No);
        match bed.io.counts().sent_bytes {
            now if now == last => break,
            now => last = now,
        }
    }
    bed.io.close(socket, false);
    assert_eq!(errno(&bed.recv_result(waiting).0.unwrap_err()), libc::ECANCELED);
    let (result, batch) = bed.sent(sent);
    assert_eq!(errno(&result.unwrap_err()), libc::ECANCELED);
    assert!(!batch.is_empty());
    drop(batch);
    assert_eq!(bed.pool.available_total(), available);
    bed.poll(Wait::No);
    let mut wire = Vec::new();
    peer.read_to_end(&mut wire).unwrap();
    let mut rest = &wire[..];
    while let [a, b, kind, _, bytes @ ..] = rest {
        let len = usize::from(u16::from_le_bytes([*a, *b]));
        assert!(len <= RECORD_MAX && *kind == DATA && *kind != END);
        let Some((_, after)) = bytes.split_at_checked(len) else { break };
        rest = after;
    }
    assert!(!wire.is_empty() && wire.len() < 64 << 20);
}

/// Of what was sent nothing is owed, so closing loses nothing, however slowly the peer reads.
pub(crate) fn what_was_sent_arrives_whole(mut bed: Bed) {
    for len in [1, RECORD_MAX, 100_000, 777_777] {
        let (socket, mut peer) = greeted_pair(&mut bed);
        let text = pattern(len, 5);
        let mut batch = SendBatch::new(len, 1);
        batch.push_bytes(&text);
        let sent = bed.start_send(socket, batch);
        let reader = std::thread::spawn(move || {
            let (mut wire, mut piece) = (Vec::<u8>::new(), [0; 10_000]);
            loop {
                std::thread::sleep(Duration::from_micros(200));
                match peer.read(&mut piece).unwrap() {
                    0 => return wire,
                    count => wire.extend(&piece[..count]),
                }
            }
        });
        bed.sent(sent).0.unwrap();
        bed.io.close(socket, false);
        bed.poll(Wait::No);
        let mut expected = Vec::new();
        let mut numbers = (1..=u8::MAX).chain(0..=u8::MAX).cycle();
        for part in text.chunks(RECORD_MAX) {
            expected.extend(record(KEY, DATA, numbers.next().unwrap(), part));
        }
        expected.extend(record(KEY, END, numbers.next().unwrap(), b""));
        let wire = reader.join().unwrap();
        assert_eq!(wire.len(), expected.len());
        assert!(wire == expected);
    }
}

/// The kernel's and a provider's, in turn, as their ids come and go.
pub(crate) fn kinds_of_sockets_live_side_by_side(mut bed: Bed) {
    for round in 0..50u8 {
        let plain = bed.pair();
        let (socket, mut peer) = greeted_pair(&mut bed);
        assert_eq!(bed.io.peer_identity(plain.0), None);
        bed.send_bytes(plain.0, &[round; 40]);
        bed.send_bytes(socket, &[round; 40]);
        assert_eq!(bed.recv_exactly(plain.1, 40), [round; 40]);
        let mut came = vec![0; record(KEY, DATA, 1, &[round; 40]).len()];
        peer.read_exact(&mut came).unwrap();
        assert_eq!(came, record(KEY, DATA, 1, &[round; 40]));
        bed.io.close(socket, false);
        let mut end = Vec::new();
        peer.read_to_end(&mut end).unwrap();
        assert_eq!(end, record(KEY, END, 2, b""));
        // What is closed names nothing, of whichever kind.
        for stale in [socket, plain.0] {
            bed.io.close(stale, true);
            let late = bed.start_recv(stale, 0, 10);
            assert_eq!(errno(&bed.recv_result(late).0.unwrap_err()), libc::EBADF);
            assert_eq!((bed.io.unread(stale), bed.io.peer_identity(stale)), (0, None));
        }
        bed.io.close(plain.1, false);
    }
}

/// A listener that says whether a try without news is worth it, and counts tries and questions.
struct Choosy {
    listener: TcpListener,
    tries: Arc<AtomicUsize>,
    spins: Arc<AtomicUsize>,
    may_find: Arc<AtomicBool>,
}

impl StreamListener for Choosy {
    fn accept(&mut self) -> io::Result<Socket> {
        self.tries.fetch_add(1, Ordering::Relaxed);
        // What would end the next wait at once is taken.
        let _ = self.listener.accept();
        Err(ErrorKind::WouldBlock.into())
    }

    fn spin(&mut self) -> bool {
        self.spins.fetch_add(1, Ordering::Relaxed);
        self.may_find.load(Ordering::Relaxed)
    }

    fn local_address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    fn source(&self) -> Source<'_> {
        Source::descriptor(self.listener.as_fd())
    }

    fn stop(&mut self) {}
}

/// More of them than are tried whatever they do, without the ring's wait.
pub(crate) fn listeners_that_answer_by_themselves_stay_in_line(mut bed: Bed) {
    const LISTENERS: usize = 6;
    const POLLS: usize = 50;
    let all: Vec<(Arc<AtomicUsize>, _)> = (0..LISTENERS)
        .map(|_| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let spins = Arc::<AtomicUsize>::default();
            let choosy = Choosy {
                listener,
                tries: Arc::default(),
                spins: Arc::clone(&spins),
                may_find: Arc::default(),
            };
            let token = bed.token();
            (spins, bed.io.listen_provided(Box::new(choosy), token).unwrap().0)
        })
        .collect();
    (0..POLLS).for_each(|_| bed.poll(Wait::No));
    for (spins, id) in all {
        let asked = spins.load(Ordering::Relaxed);
        assert!(asked >= POLLS - 1, "asked {asked} times in {POLLS} polls");
        bed.io.close_listener(id);
    }
    bed.poll(Wait::No);
}

/// System calls of tries are saved while a core spins, and news are never missed.
pub(crate) fn a_spinning_core_asks_whether_to_try(mut bed: Bed) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let (tries, spins, may_find) =
        (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default(), Arc::default());
    let choosy = Choosy {
        listener,
        tries: Arc::clone(&tries),
        spins: Arc::clone(&spins),
        may_find: Arc::clone(&may_find),
    };
    let count = |of: &AtomicUsize| of.load(Ordering::Relaxed);
    let token = bed.token();
    let (id, _) = bed.io.listen_provided(Box::new(choosy), token).unwrap();
    bed.poll(Wait::No);
    let before = count(&tries);
    assert!(before > 0, "it is tried when it comes");
    (0..50).for_each(|_| bed.poll(Wait::No));
    assert_eq!(count(&tries), before, "it finds nothing without news");
    let asked = count(&spins);
    if bed.is_ring {
        assert!(asked >= 49, "{asked}");
    }
    may_find.store(true, Ordering::Relaxed);
    (0..50).for_each(|_| bed.poll(Wait::No));
    assert_eq!(
        count(&tries) - before,
        count(&spins) - asked,
        "each time that it may find something"
    );
    may_find.store(false, Ordering::Relaxed);
    let before = count(&tries);
    // News are told whatever it says. If they are not, the test ends with the bed's time limit.
    let peer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        TcpStream::connect(address).unwrap()
    });
    while count(&tries) == before {
        let watch = bed.token();
        bed.io.timer(Instant::now() + Duration::from_millis(20), watch);
        bed.wait_for(watch);
    }
    peer.join().unwrap();
    bed.io.close_listener(id);
    bed.poll(Wait::No);
}

/// A listener that says when it takes no more, and whose descriptor a back end can watch.
struct Told {
    listener: TcpListener,
    is_stopped: Arc<AtomicBool>,
}

impl StreamListener for Told {
    fn accept(&mut self) -> io::Result<Socket> {
        Err(ErrorKind::WouldBlock.into())
    }

    fn local_address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    fn source(&self) -> Source<'_> {
        Source::descriptor(self.listener.as_fd())
    }

    fn stop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }
}

/// Whoever removes a listener may take its address the moment after, watched or not.
pub(crate) fn a_closed_listener_takes_no_more(mut bed: Bed) {
    for turns in [0, 1, 100] {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let told = Told { listener, is_stopped: Arc::clone(&is_stopped) };
        let token = bed.token();
        let (listener, _) = bed.io.listen_provided(Box::new(told), token).unwrap();
        for _ in 0..turns {
            let pause = bed.token();
            bed.io.timer(Instant::now() + Duration::from_millis(1), pause);
            bed.wait_for(pause);
        }
        assert!(!is_stopped.load(Ordering::Relaxed));
        bed.io.close_listener(listener);
        assert!(is_stopped.load(Ordering::Relaxed), "after {turns} turns");
        bed.poll(Wait::No);
    }
}
