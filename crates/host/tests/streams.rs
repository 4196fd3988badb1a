//! Host and target over streams of providers: data, kinds side by side, bad peers, killed peers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
#[path = "../../reactor/tests/common/scramble.rs"]
mod scramble;
#[path = "common/served.rs"]
mod served;
#[path = "../../reactor/tests/common/stack.rs"]
mod stack;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::core::Core;
use raceline_host::blocking::Host;
use raceline_host::{HostConfig, HostError};
use raceline_reactor::core::Backend;
use raceline_reactor::{Accelerator, StreamProvider};
use raceline_target::{Target, TargetConfig};
use scramble::{HELLO, Scrambler, record};
use served::{BLOCK, NS, any_port, memory, serve_with};
use stack::Stack;

type Streams = Option<Arc<dyn StreamProvider>>;

/// Longer than anything takes.
const LIMIT: Duration = Duration::from_secs(20);

fn scrambler(key: u8) -> Streams {
    Some(Arc::new(Scrambler::new(key, "")))
}

fn config(address: SocketAddr, streams: &Streams) -> HostConfig {
    HostConfig { streams: streams.clone(), ..served::config(address) }
}

/// A target over a back end, on two cores, so that connections move between them.
fn target(backend: Backend) -> Target {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = vec![0, 1 % processors];
    serve_with(TargetConfig { backend, cores, ..served::small() }, memory())
}

fn backends() -> impl Iterator<Item = Backend> {
    let usable = |backend: &Backend| raceline_reactor::core::open_io(*backend).is_ok();
    [Backend::Uring, Backend::Epoll].into_iter().filter(usable)
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|index| (index / 3 + seed * 7 + index / 1000).to_le_bytes()[0]).collect()
}

fn move_data(host: &Host, seed: usize) {
    for (slba, blocks) in [(0, 1), (9, 64), (1000, 3000)] {
        let data = pattern(blocks * BLOCK, seed + blocks);
        host.write(NS, slba, &data, false).unwrap();
        let mut back = vec![0; data.len()];
        host.read(NS, slba, &mut back).unwrap();
        assert!(back == data, "{blocks} blocks");
    }
}

/// Three listeners of one target, and a host for each, at the same time. The hosts' own queues are
/// on epoll, driven by the caller.
#[test]
fn listeners_and_connections_have_streams_of_their_own() {
    for backend in backends() {
        let target = target(backend);
        let kinds = [None, scrambler(3), Some(Arc::new(Stack::default()) as _)];
        let hosts: Vec<Host> = kinds
            .iter()
            .map(|streams| {
                let address = target.add_listener_with(any_port(), streams.clone()).unwrap();
                Host::connect(config(address, streams)).unwrap()
            })
            .collect();
        for (seed, host) in hosts.iter().enumerate() {
            move_data(host, seed);
        }
        std::thread::scope(|scope| {
            for (seed, host) in hosts.iter().enumerate() {
                scope.spawn(move || {
                    // Each in blocks of its own.
                    let slba = 10_000 + 2000 * seed as u64;
                    let data = pattern(300 * BLOCK, seed);
                    let mut back = vec![0; data.len()];
                    for _ in 0..5 {
                        host.write(NS, slba, &data, false).unwrap();
                        host.read(NS, slba, &mut back).unwrap();
                        assert!(back == data);
                        back.fill(0);
                    }
                });
            }
        });
        hosts.into_iter().for_each(Host::disconnect);
        target.shutdown().unwrap();
    }
}

/// The host's queues on a core of its own, whichever back end that has.
#[test]
fn a_host_core_uses_a_provider() {
    for streams in [scrambler(4), Some(Arc::new(Stack::default()) as _)] {
        let target = target(Backend::Auto);
        let address = target.add_listener_with(any_port(), streams.clone()).unwrap();
        let mut core = Core::new(config(address, &streams), Accelerator::default(), None);
        for user in 0..40 {
            let data = pattern(128 * BLOCK, usize::try_from(user).unwrap());
            core.write(user * 128, &data, user);
        }
        for user in 0..40 {
            core.take_done(user).result.unwrap();
            core.read(user * 128, 128, user);
        }
        for user in 0..40 {
            let done = core.take_done(user);
            done.result.unwrap();
            let bytes = done.data.into_read().unwrap();
            assert!(bytes[..] == pattern(128 * BLOCK, usize::try_from(user).unwrap()));
        }
        core.ends_clean();
        target.shutdown().unwrap();
    }
}

#[test]
fn who_speaks_otherwise_is_refused_and_disturbs_nobody() {
    for backend in backends() {
        let target = target(backend);
        let streams = scrambler(5);
        let address = target.add_listener_with(any_port(), streams.clone()).unwrap();
        let host = Host::connect(config(address, &streams)).unwrap();
        // Another key, and no provider at all.
        for other in [scrambler(6), None] {
            let error = Host::connect(config(address, &other)).unwrap_err();
            let lost = matches!(
                error,
                HostError::Broken(..) | HostError::ClosedByPeer(_) | HostError::ClosedEarly(_)
            );
            assert!(lost, "{error:?}");
        }
        // A provider where there is none: its handshake is no ICReq.
        let plain = target.add_listener(any_port()).unwrap();
        Host::connect(config(plain, &streams)).unwrap_err();
        move_data(&host, 1);
        host.disconnect();
        target.shutdown().unwrap();
    }
}

/// A handshake has the time that a connection has until ICReq: 5 s.
#[test]
fn handshakes_that_stall_are_ended() {
    let target = target(Backend::Auto);
    let address = target.add_listener_with(any_port(), scrambler(5)).unwrap();
    let hello = record(5, HELLO, 0, b"hello from peer");
    let start = Instant::now();
    let peers: Vec<TcpStream> = [0, 3, hello.len()]
        .into_iter()
        .map(|part| {
            let mut peer = TcpStream::connect(address).unwrap();
            peer.set_read_timeout(Some(LIMIT)).unwrap();
            peer.write_all(&hello[..part]).unwrap();
            peer
        })
        .collect();
    // Meanwhile, a target that does not answer: the time until ICResp.
    let silent = TcpListener::bind(any_port()).unwrap();
    let limit = Duration::from_millis(200);
    let config = config(silent.local_addr().unwrap(), &scrambler(5)).within(limit);
    let error = Host::connect(config).unwrap_err();
    assert!(matches!(error, HostError::NoAnswer(..)), "{error:?}");
    assert!(start.elapsed() >= limit && start.elapsed() < LIMIT);
    for mut peer in peers {
        // The end, or a reset, and no time-out of ours.
        let result = peer.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
        assert!(matches!(result, Ok(_) | Err(ErrorKind::ConnectionReset)), "{result:?}");
        assert!(start.elapsed() >= Duration::from_secs(4) && start.elapsed() < LIMIT);
    }
    target.shutdown().unwrap();
}

/// Passes bytes on until it cuts all connections off.
struct Cutter {
    address: SocketAddr,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Cutter {
    fn start(target: SocketAddr) -> Cutter {
        let listener = TcpListener::bind(any_port()).unwrap();
        let address = listener.local_addr().unwrap();
        let streams = Arc::<Mutex<Vec<TcpStream>>>::default();
        let shared = Arc::clone(&streams);
        std::thread::spawn(move || {
            for host in listener.incoming() {
                let (host, target) = (host.unwrap(), TcpStream::connect(target).unwrap());
                shared.lock().unwrap().extend([&host, &target].map(|one| one.try_clone().unwrap()));
                let back = (target.try_clone().unwrap(), host.try_clone().unwrap());
                for (mut from, mut to) in [(host, target), back] {
                    std::thread::spawn(move || {
                        to.set_nodelay(true).unwrap();
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Cutter { address, streams }
    }

    fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            // It may be gone already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

#[test]
fn killed_connections_are_made_again() {
    for backend in backends() {
        let target = target(backend);
        let streams = scrambler(8);
        let address = target.add_listener_with(any_port(), streams.clone()).unwrap();
        let proxy = Cutter::start(address);
        let host = Host::connect(config(proxy.address, &streams)).unwrap();
        for round in 0..4 {
            move_data(&host, round);
            proxy.cut();
            let data = pattern(BLOCK, round);
            // What was under way may be of unknown fate; soon it works again.
            let start = Instant::now();
            while host.write(NS, 5, &data, false).is_err() {
                assert!(start.elapsed() < LIMIT, "it does not come back");
            }
        }
        move_data(&host, 9);
        host.disconnect();
        target.shutdown().unwrap();
    }
}

#[test]
fn a_listener_keeps_its_kind() {
    let target = target(Backend::Auto);
    let streams = scrambler(5);
    let nqn = served::nqn();
    let address = target.add_subsystem_listener_with(&nqn, any_port(), streams.clone()).unwrap();
    for other in [None, scrambler(5)] {
        let error = target.add_listener_with(address, other).unwrap_err().to_string();
        assert!(error.contains("has other byte streams"), "{error}");
    }
    target.add_listener_with(address, streams.clone()).unwrap();
    target.remove_listener(address).unwrap();
    // Nothing is left of it.
    assert_eq!(target.add_listener(address).unwrap(), address);
    Host::connect(config(address, &None)).unwrap().disconnect();
    target.shutdown().unwrap();
}
