//! A target and a host over TLS: data of all sizes, many queues, and names that are not those of the handshake.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use common::{BLOCK, NS, Served, backends, nqn};
use raceline_auth::{Hash, TlsKey};
use raceline_host::blocking::Host;
use raceline_host::{HostConfig, HostError, RemoteNamespace};
use raceline_proto::nvme::HostId;
use raceline_reactor::core::Backend;
use raceline_target::{NamespaceConfig, SubsystemConfig, Target, TargetConfig};

#[test]
fn data_of_all_sizes() {
    for (backend, hash) in backends().zip([Hash::Sha256, Hash::Sha384]) {
        let served = Served::start(backend);
        let key = TlsKey::generate(hash).unwrap();
        served.table.insert(&key, &nqn("nqn.host"), &nqn("nqn.sub")).unwrap();
        let names = ("nqn.host", "nqn.sub");
        let host = served.connect(names, &key, names).unwrap();
        for blocks in [1, 7, 8, 31, 32, 33, 64, 257, 2048, 5000] {
            let len = blocks * BLOCK;
            let data: Vec<u8> = (0..len).map(|i| (i / 3 + blocks).to_le_bytes()[0]).collect();
            host.write(NS, 11, &data, false).unwrap();
            let mut back = vec![0; len];
            host.read(NS, 11, &mut back).unwrap();
            assert!(back == data, "{blocks} blocks");
        }
        // A key that is taken away ends no connection, and lets nobody in.
        assert!(served.table.remove(&nqn("nqn.host"), &nqn("nqn.sub")));
        host.read(NS, 0, &mut [0; BLOCK]).unwrap();
        let error = served.connect(names, &key, names).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("unknown_psk_identity"), "{error}");
        host.disconnect();
        served.target.shutdown().unwrap();
    }
}

/// A host that proves one name and claims another is refused, and so is a key for another subsystem.
#[test]
fn names_of_connect_are_those_of_the_handshake() {
    let served = Served::start(Backend::Epoll);
    let key = TlsKey::generate(Hash::Sha256).unwrap();
    served.table.insert(&key, &nqn("nqn.host"), &nqn("nqn.sub")).unwrap();
    for claimed in [("nqn.victim", "nqn.sub"), ("nqn.host", "nqn.other-sub")] {
        let error = served.connect(claimed, &key, ("nqn.host", "nqn.sub")).map(|_| ());
        let error = error.unwrap_err();
        let HostError::ConnectRefused { status, .. } = &error else { panic!("{error}") };
        assert!(status.to_string().contains("Connect Invalid Host"), "{error}");
    }
    served.connect(("nqn.host", "nqn.sub"), &key, ("nqn.host", "nqn.sub")).unwrap();
    served.target.shutdown().unwrap();
}

/// Hands connections on, and changes the byte at `at` of each in one direction. Gives its address.
fn meddler(target: SocketAddr, of_host: bool, at: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for host in listener.incoming().map_while(Result::ok) {
            let Ok(target) = TcpStream::connect(target) else { return };
            let [from_host, from_target] = [host.try_clone().unwrap(), target.try_clone().unwrap()];
            for (changes, mut from, mut to) in
                [(of_host, from_host, target), (!of_host, from_target, host)]
            {
                std::thread::spawn(move || {
                    let (mut passed, mut piece) = (0, vec![0; 100_000]);
                    while let Ok(count @ 1..) = from.read(&mut piece) {
                        if changes && (passed..passed + count).contains(&at) {
                            piece[at - passed] ^= 1;
                        }
                        passed += count;
                        if to.write_all(&piece[..count]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    address
}

/// A byte that was changed on its way ends the connection at the end that gets it. Data are right, or there are none.
#[test]
fn changed_bytes_end_connections_and_never_become_data() {
    let names = ("nqn.host", "nqn.sub");
    let key = TlsKey::generate(Hash::Sha384).unwrap();
    let data: Vec<u8> = (0..1 << 20).map(|i: usize| (i / 5).to_le_bytes()[0]).collect();
    let mut broken = 0;
    for backend in backends() {
        let mut served = Served::start(backend);
        served.table.insert(&key, &nqn(names.0), &nqn(names.1)).unwrap();
        let target = served.address;
        // The handshakes have about 700 bytes of the host and 300 of the target.
        for (of_host, at) in [(false, 90_000), (false, 600_003), (true, 90_000), (true, 700_001)] {
            served.address = meddler(target, of_host, at);
            let host = served.connect(names, &key, names).unwrap();
            let done = host.write(NS, 0, &data, false).and_then(|()| {
                let mut back = vec![0; data.len()];
                host.read(NS, 0, &mut back).map(|()| back)
            });
            match done {
                Ok(back) => assert!(back == data, "byte {at}"),
                Err(_) => broken += 1,
            }
        }
        served.target.shutdown().unwrap();
    }
    assert!(broken >= 2, "no connection was broken");
}

/// A remote namespace with a queue for reads and one for writes, exported again.
#[test]
fn maps_of_queues_go_over_tls() {
    let names = ("nqn.host", "nqn.sub");
    let key = TlsKey::generate(Hash::Sha256).unwrap();
    for backend in backends() {
        let served = Served::start(backend);
        served.table.insert(&key, &nqn(names.0), &nqn(names.1)).unwrap();
        let config = served.config(names, &key, names);
        let config = HostConfig { io_queues: 1, write_queues: 1, ..config };
        let remote = Arc::new(RemoteNamespace::open_exactly(config, NS).unwrap());
        let gateway = TargetConfig { backend, cores: vec![0], ..TargetConfig::default() };
        let gateway = Target::start(gateway).unwrap();
        gateway.add_subsystem(SubsystemConfig::new(nqn("nqn.again"))).unwrap();
        let namespace = NamespaceConfig::new(remote.clone());
        assert_eq!(gateway.add_namespace(&nqn("nqn.again"), namespace).unwrap(), NS);
        let front = gateway.add_listener("127.0.0.1:0".parse().unwrap()).unwrap();
        let host = HostConfig::new(front, nqn("nqn.again"), nqn("nqn.host"), HostId([8; 16]));
        let host = Host::connect(host).unwrap();
        let data: Vec<u8> = (0..3000 * BLOCK).map(|i| (i / 7).to_le_bytes()[0]).collect();
        host.write(NS, 5, &data, false).unwrap();
        let mut back = vec![0; data.len()];
        host.read(NS, 5, &mut back).unwrap();
        assert!(back == data);
        let moved = u64::try_from(data.len()).unwrap();
        let mut found: Vec<(u16, u64, u64)> = served
            .target
            .queues(&nqn(names.1))
            .into_iter()
            .map(|queue| (queue.qid.0, queue.totals.read_bytes, queue.totals.written_bytes))
            .filter(|(qid, ..)| *qid > 0)
            .collect();
        found.sort_unstable();
        assert_eq!(found, [(1, 0, moved), (2, moved, 0)]);
        host.disconnect();
        gateway.shutdown().unwrap();
        remote.disconnect();
        served.target.shutdown().unwrap();
    }
}
