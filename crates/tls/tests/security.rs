//! Levels of security over real connections: who is refused, and keys for TLS that an authentication makes.
#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use raceline_auth::{GeneratedKeys, Hash, IdentityVersion, TlsKey};
use raceline_bdev::{DeviceSpec, Identity};
use raceline_host::blocking::Host;
use raceline_host::{Algorithms, Credentials, DhGroup, HostConfig, HostError};
use raceline_proto::nvme::{HostId, NamespaceId, Nqn, Status};
use raceline_reactor::StreamProvider;
use raceline_reactor::core::Backend;
use raceline_target::{
    DhchapSecret, Entrance, HostAccess, HostDemands, Keys, NamespaceConfig, Security,
    SubsystemConfig, Target, TargetConfig,
};
use raceline_tls::{ClientPsk, PskTable, TlsAcceptor, TlsConnector, concatenate};

const HOST: &str = "nqn.2014-08.org.example:host";
const SUBSYSTEM: &str = "nqn.2026-01.io.raceline:sub";

fn nqn(name: &str) -> Nqn {
    Nqn::new(name).unwrap()
}

/// A target whose one host has a secret of both ends and a key for TLS, with a listener of each kind.
struct Served {
    target: Target,
    table: Arc<PskTable>,
    secret: DhchapSecret,
    controller_secret: DhchapSecret,
    key: TlsKey,
    plain: SocketAddr,
    authenticated: SocketAddr,
    tls: SocketAddr,
    both: SocketAddr,
    concat: SocketAddr,
}

impl Served {
    fn start(backend: Backend, demands: Security, has_secret: bool) -> Served {
        let table = Arc::new(PskTable::new());
        let generated_keys = Some(Arc::clone(&table) as Arc<dyn GeneratedKeys>);
        let config = TargetConfig { backend, generated_keys, ..TargetConfig::default() };
        let target = Target::start(config).unwrap();
        let hosts = HostAccess::List(Vec::new());
        target
            .add_subsystem(SubsystemConfig { hosts, ..SubsystemConfig::new(nqn(SUBSYSTEM)) })
            .unwrap();
        let spec: DeviceSpec = "ram:1M".parse().unwrap();
        let device = raceline_bdev::open(&spec, &Identity::of_this_machine()).unwrap();
        target.add_namespace(&nqn(SUBSYSTEM), NamespaceConfig::new(device)).unwrap();
        let [secret, controller_secret] =
            [(); 2].map(|()| DhchapSecret::generate(Some(Hash::Sha256)).unwrap());
        let keys = has_secret.then(|| Keys::new(secret.clone(), Some(controller_secret.clone())));
        let demands = HostDemands { keys, security: demands };
        target.add_host_with(&nqn(SUBSYSTEM), &nqn(HOST), demands).unwrap();
        let key = TlsKey::generate(Hash::Sha256).unwrap();
        for subsystem in [nqn(SUBSYSTEM), Nqn::discovery()] {
            table.insert(&key, &nqn(HOST), &subsystem).unwrap();
        }
        let acceptor = || TlsAcceptor::new(Arc::clone(&table) as Arc<_>);
        let listen = |streams: Option<TlsAcceptor>, authentication| {
            let streams = streams.map(|streams| Arc::new(streams) as Arc<dyn StreamProvider>);
            let any_port = "127.0.0.1:0".parse().unwrap();
            target.add_listener_with(any_port, Entrance { streams, authentication }).unwrap()
        };
        let [plain, authenticated, tls, both, concat] = [
            listen(None, false),
            listen(None, true),
            listen(Some(acceptor()), false),
            listen(Some(acceptor()), true),
            listen(Some(acceptor().or_plain()), false),
        ];
        Served {
            target,
            table,
            secret,
            controller_secret,
            key,
            plain,
            authenticated,
            tls,
            both,
            concat,
        }
    }

    fn config(&self, address: SocketAddr) -> HostConfig {
        let mut config = HostConfig::new(address, nqn(SUBSYSTEM), nqn(HOST), HostId([7; 16]));
        config.backoff.give_up_after = Some(std::time::Duration::ZERO);
        config
    }

    fn with_secret(&self, mut config: HostConfig) -> HostConfig {
        config.credentials = Credentials {
            secret: self.secret.clone(),
            controller_secret: Some(self.controller_secret.clone()),
            algorithms: Algorithms {
                hashes: Hash::ALL.to_vec(),
                groups: vec![DhGroup::Null, DhGroup::Ffdhe2048],
            },
        }
        .into();
        config
    }

    fn with_tls(&self, mut config: HostConfig) -> HostConfig {
        let version = IdentityVersion::One;
        let psk = ClientPsk::new(&self.key, version, &config.hostnqn, &config.subnqn).unwrap();
        config.streams = Some(Arc::new(TlsConnector::new(psk)));
        config
    }

    fn with_concatenation(&self, config: HostConfig) -> HostConfig {
        HostConfig { concatenator: Some(concatenate), ..self.with_secret(config) }
    }
}

fn works(config: HostConfig) -> Result<(), HostError> {
    let host = Host::connect(config)?;
    let data = [7; 4096];
    host.write(NamespaceId(1), 8, &data, false)?;
    let mut back = [0; 4096];
    host.read(NamespaceId(1), 8, &mut back)?;
    assert_eq!(back, data);
    host.disconnect();
    Ok(())
}

#[test]
fn each_listener_takes_what_has_its_level_and_that_of_the_host() {
    let levels = [Security::PLAIN, Security::AUTHENTICATED, Security::TLS, Security::BOTH];
    for demanded in levels {
        for has_secret in [false, true] {
            let served = Served::start(Backend::Auto, demanded, has_secret);
            let ports = [served.plain, served.authenticated, served.tls, served.both];
            for (address, of_port) in ports.into_iter().zip(levels) {
                for comes in levels {
                    let mut config = served.config(address);
                    if comes.authentication {
                        config = served.with_secret(config);
                    }
                    if comes.tls {
                        config = served.with_tls(config);
                    }
                    let needed = demanded.or(of_port);
                    let is_encrypted = comes.tls == of_port.tls && (comes.tls || !needed.tls);
                    // A host that has a secret always proves itself. One that has not asks for the controller's proof all
                    // the same, if it comes with a secret.
                    let is_proved = match has_secret {
                        true => comes.authentication,
                        false => !(needed.authentication || comes.authentication),
                    };
                    let admitted = is_encrypted && is_proved;
                    let result = works(config);
                    assert_eq!(
                        result.is_ok(),
                        admitted,
                        "host {demanded}, port {of_port}, comes {comes}, {has_secret}: {result:?}"
                    );
                }
            }
            served.target.shutdown().unwrap();
        }
    }
}

#[test]
fn a_host_that_has_to_come_over_tls_is_told_so() {
    let served = Served::start(Backend::Auto, Security::TLS, false);
    let error = works(served.config(served.plain)).unwrap_err();
    let refused = matches!(
        error, HostError::ConnectRefused { status, .. } if status == Status::CONNECT_INVALID_HOST.dnr()
    );
    assert!(refused && error.is_permanent(), "{error}");
    assert!(error.to_string().contains("--tls-psk"), "{error}");
    // Where a key is made, the host that makes none is told what to do.
    let error = works(served.config(served.concat)).unwrap_err();
    assert!(error.to_string().contains("--tls-psk"), "{error}");
    let served = Served::start(Backend::Auto, Security::TLS, true);
    let error = works(served.with_secret(served.config(served.concat))).unwrap_err();
    assert!(matches!(error, HostError::SecureChannelRequired(_)), "{error}");
    assert!(error.to_string().contains("--concat"), "{error}");
}

/// What a host has sent and got, by connection, and the connection itself.
type Seen = Arc<Mutex<Vec<([Vec<u8>; 2], TcpStream)>>>;

/// Hands connections on, and keeps what passes by.
fn wiretap(target: SocketAddr, seen: &Seen) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::clone(seen);
    std::thread::spawn(move || {
        for host in listener.incoming().map_while(Result::ok) {
            let Ok(target) = TcpStream::connect(target) else { return };
            let number = {
                let mut seen = seen.lock().unwrap();
                seen.push(([Vec::new(), Vec::new()], host.try_clone().unwrap()));
                seen.len() - 1
            };
            let [from_host, from_target] = [host.try_clone().unwrap(), target.try_clone().unwrap()];
            for (direction, mut from, mut to) in [(0, from_host, target), (1, from_target, host)] {
                let seen = Arc::clone(&seen);
                std::thread::spawn(move || {
                    let mut piece = [0; 4096];
                    while let Ok(count @ 1..) = from.read(&mut piece) {
                        seen.lock().unwrap()[number].0[direction].extend(&piece[..count]);
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

#[test]
fn an_authentication_makes_the_key_and_all_else_is_tls() {
    for backend in [Backend::Auto, Backend::Epoll] {
        let served = Served::start(backend, Security::BOTH, true);
        let seen = Seen::default();
        let config = served.config(wiretap(served.concat, &seen));
        works(HostConfig { io_queues: 2, ..served.with_concatenation(config) }).unwrap();
        {
            let seen = seen.lock().unwrap();
            let firsts: Vec<u8> = seen.iter().map(|([sent, _], _)| sent[0]).collect();
            assert_eq!(firsts, [0, 22, 22, 22], "one connection in the clear, then TLS");
            // Nothing but ICReq, Connect and the authentication: no property, no Identify.
            let plain = &seen[0].0[0];
            let mut at = 0;
            let mut types = Vec::new();
            while at < plain.len() {
                let plen = u32::from_le_bytes(plain[at + 4..at + 8].try_into().unwrap());
                if plain[at] == 4 {
                    types.push((plain[at + 8], plain[at + 12]));
                }
                at += usize::try_from(plen).unwrap();
            }
            assert_eq!(types[0], (0x7f, 1), "Connect");
            let authenticates = |(opcode, fctype)| opcode == 0x7f && (fctype == 5 || fctype == 6);
            assert!(types.len() >= 5 && types[1..].iter().all(|kind| authenticates(*kind)));
        }
        // The key goes with its association.
        eventually(|| format!("{:?}", served.table).contains(" 0 generated"));
        // The given key is good at the same listener, and no bytes in the clear are.
        works(served.with_secret(served.with_tls(served.config(served.concat)))).unwrap();
        assert!(works(served.with_secret(served.config(served.concat))).is_err());
        served.target.shutdown().unwrap();
    }
}

fn eventually(mut holds: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !holds() {
        assert!(std::time::Instant::now() < end, "not within 20 s");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn each_association_makes_its_own_key_and_a_lost_one_makes_another() {
    let served = Served::start(Backend::Auto, Security::BOTH, true);
    let seen = Seen::default();
    let mut config = served.with_concatenation(served.config(wiretap(served.concat, &seen)));
    config.backoff.give_up_after = Some(std::time::Duration::from_secs(20));
    let first = Host::connect(config).unwrap();
    let second = Host::connect(served.with_concatenation(served.config(served.concat))).unwrap();
    assert!(format!("{:?}", served.table).contains(" 2 generated"), "{:?}", served.table);
    second.disconnect();
    eventually(|| format!("{:?}", served.table).contains(" 1 generated"));
    let mut block = [0; 512];
    first.read(NamespaceId(1), 0, &mut block).unwrap();
    let before = seen.lock().unwrap().len();
    for (_, connection) in &*seen.lock().unwrap() {
        let _ = connection.shutdown(Shutdown::Both);
    }
    eventually(|| first.read(NamespaceId(1), 0, &mut block).is_ok());
    let seen = seen.lock().unwrap();
    let firsts: Vec<u8> = seen[before..].iter().map(|([sent, _], _)| sent[0]).collect();
    assert_eq!(firsts[..2], [0, 22], "the new association begins with an authentication");
    first.disconnect();
    // Whoever loses its secret makes no key any more.
    served.target.set_host_keys(&nqn(SUBSYSTEM), &nqn(HOST), None).unwrap();
    let error = works(served.with_concatenation(served.config(served.concat))).unwrap_err();
    assert!(error.is_permanent(), "{error}");
}

/// REPLACETLSPSK on the admin queue. The target keeps the newest key and the one before it.
#[test]
fn a_key_is_replaced_while_its_association_is_in_use() {
    let served = Served::start(Backend::Auto, Security::BOTH, true);
    let seen = Seen::default();
    let config = served.with_concatenation(served.config(wiretap(served.concat, &seen)));
    let credentials = config.credentials.clone();
    let host = Host::connect(HostConfig { io_queues: 2, ..config }).unwrap();
    let mut block = [0; 512];
    host.read(NamespaceId(1), 0, &mut block).unwrap();
    let connections = seen.lock().unwrap().len();
    assert!(format!("{:?}", served.table).contains(" 1 generated"), "{:?}", served.table);
    for _ in 0..3 {
        credentials.renew(Credentials::clone(&credentials.get().unwrap()));
        assert!(credentials.wait_renewed(std::time::Duration::from_secs(30)));
        host.read(NamespaceId(1), 0, &mut block).unwrap();
        assert!(format!("{:?}", served.table).contains(" 2 generated"), "{:?}", served.table);
    }
    assert_eq!(seen.lock().unwrap().len(), connections, "a connection was made anew");
    host.disconnect();
    eventually(|| format!("{:?}", served.table).contains(" 0 generated"));
    served.target.shutdown().unwrap();
}

#[test]
fn a_host_that_wants_a_key_gets_it_or_nothing() {
    let served = Served::start(Backend::Auto, Security::PLAIN, true);
    // Listeners that make none refuse, and the host does not go on in the clear.
    for address in [served.plain, served.authenticated] {
        let error = works(served.with_concatenation(served.config(address))).unwrap_err();
        assert!(matches!(error, HostError::Authentication(..)), "{error}");
    }
    assert!(works(served.with_concatenation(served.config(served.tls))).is_err());
    // Without a secret there is nothing to make it with.
    let config = HostConfig { concatenator: Some(concatenate), ..served.config(served.concat) };
    assert!(matches!(works(config).unwrap_err(), HostError::AuthenticationRequired(_)));
}

#[test]
fn the_discovery_service_asks_for_what_its_listener_demands() {
    let served = Served::start(Backend::Auto, Security::PLAIN, true);
    let log = |config: HostConfig| {
        let config = HostConfig { subnqn: Nqn::discovery(), io_queues: 0, ..config };
        let config = if config.streams.is_some() { served.with_tls(config) } else { config };
        let host = Host::connect(config)?;
        let log = host.discover();
        host.disconnect();
        log.map(|log| log.records.len())
    };
    let config = |address| served.config(address);
    assert!(log(config(served.plain)).is_ok());
    assert!(log(config(served.authenticated)).is_err());
    assert!(log(served.with_secret(config(served.authenticated))).is_ok());
    assert!(log(served.with_tls(config(served.tls))).is_ok());
    assert!(log(served.with_tls(config(served.both))).is_err());
    assert!(log(served.with_secret(served.with_tls(config(served.both)))).is_ok());
    assert!(log(served.with_concatenation(config(served.concat))).is_ok());
}
