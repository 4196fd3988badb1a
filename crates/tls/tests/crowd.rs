//! Strangers hold thousands of handshakes open, and a real host connects all the same.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::{BLOCK, NS, Served, nqn};
use raceline_auth::{Hash, IdentityVersion, TlsKey};
use raceline_host::HostError;
use raceline_host::blocking::Host;
use raceline_reactor::core::Backend;
use raceline_tls::{ClientPsk, Handshake};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, SockAddr, Socket, Type};

/// Handshakes that are held open.
const CROWD: usize = 10_000;
/// How long a host may take to connect: an admin queue and I/O queues.
const LIMIT: Duration = Duration::from_secs(1);
/// Or so many times what it takes without the crowd, where the machine is too slow or too busy for that.
const SLOWER: u32 = 4;
const QUEUES: u16 = 6;
/// A test shares its machine with others: one of so many connections has to be in time, and all have to be made.
const TRIES: u32 = 5;
/// New strangers in the time that a host may take, while they keep coming. Each takes the place of the oldest of a thousand.
const NEWCOMERS: u32 = 500;
/// The tests take turns: together they would have more files open than a process may.
static TURN: Mutex<()> = Mutex::new(());
const NAMES: (&str, &str) = ("nqn.host", "nqn.sub");

/// Permits as many open files as this process may have; says whether they are enough for the crowd.
fn raise_open_files() -> bool {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    maximum.is_none_or(|most| most >= CROWD as u64 + 2000)
}

/// What a stranger sends and leaves it at: nothing, half of a first message, or all of one that it has recorded.
fn beginnings(key: &TlsKey) -> [Vec<u8>; 3] {
    let psk = ClientPsk::new(key, IdentityVersion::One, &nqn(NAMES.0), &nqn(NAMES.1)).unwrap();
    let hello = Handshake::client(&psk).unwrap().take_output();
    [Vec::new(), hello[..hello.len() / 2].to_vec(), hello]
}

fn begin(target: SocketAddr, from: Ipv4Addr, bytes: &[u8]) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SockAddr::from(SocketAddr::from((from, 0))))?;
    socket.connect_timeout(&SockAddr::from(target), Duration::from_secs(10))?;
    let mut stream = TcpStream::from(socket);
    stream.write_all(bytes)?;
    Ok(stream)
}

/// The address of a stranger; each of them is used `each` times.
fn stranger(number: usize, each: usize) -> Ipv4Addr {
    let [.., a, b] = u32::try_from(number / each).unwrap().to_be_bytes();
    Ipv4Addr::new(127, 1, a, b)
}

fn connect(served: &Served, key: &TlsKey) -> Result<Duration, HostError> {
    let begun = Instant::now();
    let mut config = served.config(NAMES, key, NAMES);
    config.io_queues = QUEUES;
    let host = Host::connect(config)?;
    host.read(NS, 0, &mut [0; BLOCK])?;
    let took = begun.elapsed();
    host.disconnect();
    Ok(took)
}

fn times(served: &Served, key: &TlsKey) -> Vec<Duration> {
    (0..TRIES).map(|_| connect(served, key).unwrap()).collect()
}

/// How long a host may take beside a crowd, as there is none yet.
fn limit(served: &Served, key: &TlsKey) -> Duration {
    let alone = times(served, key).into_iter().min().unwrap();
    println!("without a crowd: {alone:?}");
    LIMIT.max(SLOWER * alone)
}

fn in_time(served: &Served, key: &TlsKey, limit: Duration) {
    let times = times(served, key);
    println!("beside the crowd: {times:?}, at most {limit:?}");
    assert!(times.iter().any(|time| *time < limit), "{times:?}, at most {limit:?}");
}

#[test]
fn a_host_connects_within_a_second_while_a_crowd_shakes_hands() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if !raise_open_files() {
        println!("SKIPPED: this process may not open {CROWD} files");
        return;
    }
    let key = TlsKey::generate(Hash::Sha256).unwrap();
    for (backend, each) in [(Backend::Epoll, 1), (Backend::Auto, 100)] {
        let served = Served::start(backend);
        served.table.insert(&key, &nqn(NAMES.0), &nqn(NAMES.1)).unwrap();
        let limit = limit(&served, &key);
        let beginnings = beginnings(&key);
        let mut crowd = Vec::with_capacity(CROWD);
        for number in 0..CROWD {
            let bytes = &beginnings[number % beginnings.len()];
            // One whose place was given to another may be closed before it has sent anything.
            crowd.extend(begin(served.address, stranger(number, each), bytes).ok());
        }
        assert!(crowd.len() > CROWD / 2, "{} of {CROWD} are open", crowd.len());
        in_time(&served, &key, limit);
        drop(crowd);
        served.target.shutdown().unwrap();
    }
}

/// The crowd goes on coming while the host connects.
#[test]
fn a_host_connects_while_a_crowd_keeps_coming() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if !raise_open_files() {
        println!("SKIPPED: this process may not open {CROWD} files");
        return;
    }
    let key = TlsKey::generate(Hash::Sha256).unwrap();
    let served = Served::start(Backend::Auto);
    served.table.insert(&key, &nqn(NAMES.0), &nqn(NAMES.1)).unwrap();
    let limit = limit(&served, &key);
    let (stopping, come) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let strangers = {
        let (target, beginnings) = (served.address, beginnings(&key));
        let (stopping, come) = (Arc::clone(&stopping), Arc::clone(&come));
        std::thread::spawn(move || {
            let mut open = std::collections::VecDeque::with_capacity(2000);
            for number in 0.. {
                if stopping.load(Ordering::Relaxed) {
                    break;
                }
                // Silence, and half of a message. Whole ones cost the target's core as much as the host's own.
                let bytes = &beginnings[number % 2];
                open.extend(begin(target, stranger(number % 50_000, 1), bytes).ok());
                if open.len() == 2000 {
                    open.pop_front();
                }
                come.store(number, Ordering::Relaxed);
                if number > 2000 {
                    std::thread::sleep(limit / NEWCOMERS);
                }
            }
        })
    };
    // All places are taken before the host comes.
    let deadline = Instant::now() + Duration::from_secs(60);
    while come.load(Ordering::Relaxed) < 2000 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(10));
    }
    in_time(&served, &key, limit);
    stopping.store(true, Ordering::Relaxed);
    strangers.join().unwrap();
    served.target.shutdown().unwrap();
}
