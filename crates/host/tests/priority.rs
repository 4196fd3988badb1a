//! The priority of what is sent, read back from the sockets of a host and of a target.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use raceline_host::blocking::Host;
use raceline_host::{HostConfig, HostError};
use raceline_proto::nvme::{HostId, NamespaceId, Nqn};
use raceline_reactor::socket::Interface;
use raceline_reactor::{Backend, Mode, Socket};
use raceline_target::{NamespaceConfig, SubsystemConfig, Target, TargetConfig};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

const NSID: NamespaceId = NamespaceId(1);

fn start(backend: Backend, socket_priority: u32) -> (Target, SocketAddr, Nqn) {
    let config = TargetConfig {
        backend,
        socket_priority,
        mode: Mode::Interrupt,
        large_buffers_per_core: 16,
        small_buffers_per_core: 64,
        ..TargetConfig::default()
    };
    let target = Target::start(config).unwrap();
    let nqn = Nqn::new("nqn.2026-01.io.raceline:priority").unwrap();
    target.add_subsystem(SubsystemConfig::new(nqn.clone())).unwrap();
    let identity = raceline_bdev::Identity::of_this_machine();
    let ram = raceline_bdev::open(&"ram:1M".parse().unwrap(), &identity).unwrap();
    assert_eq!(target.add_namespace(&nqn, NamespaceConfig::new(ram)).unwrap(), NSID);
    let address = target.add_listener("127.0.0.1:0".parse().unwrap()).unwrap();
    (target, address, nqn)
}

fn host_config(address: SocketAddr, nqn: &Nqn, priority: Option<u32>) -> HostConfig {
    let hostnqn = Nqn::new("nqn.2026-01.io.raceline:host").unwrap();
    HostConfig { priority, ..HostConfig::new(address, nqn.clone(), hostnqn, HostId([5; 16])) }
}

/// How many connected sockets of this process have which priority: of those whose own address is
/// `listener` (the target's), and of those whose peer is (the host's).
fn priorities(listener: SocketAddr) -> [BTreeMap<u32, usize>; 2] {
    let own = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let mut found = [BTreeMap::new(), BTreeMap::new()];
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let number = entry.unwrap().file_name().into_string().unwrap().parse().unwrap();
        // A descriptor may have gone meanwhile.
        let Ok(fd) = pidfd_getfd(&own, number, PidfdGetfdFlags::empty()) else { continue };
        let Ok(socket) = Socket::from_fd(fd) else { continue };
        let priority = socket.priority().unwrap().unwrap();
        for (side, address) in [socket.local_address(), socket.peer_address()].iter().enumerate() {
            if *address == listener {
                *found[side].entry(priority).or_default() += 1;
            }
        }
    }
    found
}

/// The tests that look at the descriptors of this process take turns: each copies them, and would find the copies of another.
static TURN: Mutex<()> = Mutex::new(());

fn my_turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn both_ends_have_the_priority_that_was_asked_for() {
    let _turn = my_turn();
    for backend in [Backend::Auto, Backend::Epoll] {
        for (targets, hosts) in [(5, Some(4)), (0, None)] {
            let (target, address, nqn) = start(backend, targets);
            let host = Host::connect(host_config(address, &nqn, hosts)).unwrap();
            host.write(NSID, 1, &[7; 512], false).unwrap();
            let mut back = [0; 512];
            host.read(NSID, 1, &mut back).unwrap();
            assert_eq!(back, [7; 512]);
            // The admin queue and one I/O queue.
            let expected =
                [BTreeMap::from([(targets, 2)]), BTreeMap::from([(hosts.unwrap_or_default(), 2)])];
            let give_up = Instant::now() + Duration::from_secs(5);
            while priorities(address) != expected && Instant::now() < give_up {
                std::thread::sleep(Duration::from_millis(10));
            }
            assert_eq!(priorities(address), expected, "{backend:?}");
            host.disconnect();
            target.shutdown().unwrap();
        }
    }
}

#[test]
fn connections_have_the_type_of_service_and_the_interface_that_were_asked_for() {
    let _turn = my_turn();
    for backend in [Backend::Auto, Backend::Epoll] {
        let (target, address, nqn) = start(backend, 0);
        let interface = Interface::named("lo");
        let config = HostConfig { tos: 0x28, interface, ..host_config(address, &nqn, None) };
        let host = Host::connect(config).unwrap();
        host.write(NSID, 1, &[7; 512], false).unwrap();
        let own = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
            let number = entry.unwrap().file_name().into_string().unwrap().parse().unwrap();
            let Ok(fd) = pidfd_getfd(&own, number, PidfdGetfdFlags::empty()) else { continue };
            let socket = socket2::SockRef::from(&fd);
            let peer = socket.peer_addr().ok().and_then(|peer| peer.as_socket());
            if peer == Some(address) {
                found.push((socket.tos_v4().unwrap(), socket.device().unwrap()));
            }
        }
        // The admin queue and one I/O queue.
        assert_eq!(found, vec![(0x28, Some(b"lo".to_vec())); 2], "{backend:?}");
        host.disconnect();
        let interface = Interface::named("no-such0");
        let config = HostConfig { interface, ..host_config(address, &nqn, None) };
        let error = Host::connect(config).unwrap_err();
        let text = "cannot use the interface no-such0: there is none";
        assert!(error.to_string().contains(text), "{error}");
        target.shutdown().unwrap();
    }
}

#[test]
fn a_priority_that_cannot_be_set_is_an_error_that_says_so() {
    let (target, address, nqn) = start(Backend::Auto, 0);
    let error = Host::connect(host_config(address, &nqn, Some(u32::MAX))).unwrap_err();
    assert!(matches!(error, HostError::Tcp(..)), "{error}");
    let text = "socket priority 4294967295 is above 2147483647";
    assert!(error.to_string().contains(text), "{error}");
    target.shutdown().unwrap();
    let config = TargetConfig { socket_priority: u32::MAX, ..TargetConfig::default() };
    assert_eq!(Target::start(config).err().unwrap().to_string(), text);
}
