//! The host over RDMA: its usual faces over a simulated network, against a target with the target's queue pairs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use raceline_host::blocking::Host;
use raceline_host::{BackoffConfig, CommandError, HostConfig, HostError, PathAddress, Transport};
use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::{NamespaceId, Nqn, Status};
use raceline_proto::rdma::{QueueRequest, RejectData, RejectStatus};
use raceline_rdma::fake::{Faults, Network, NetworkConfig, Profile};
use raceline_rdma::verbs::{Event, Provider};
use zerocopy::IntoBytes;

use super::common::config;
use super::rdma_target::{BLOCK, BLOCKS, Devices, Served};
use super::served;

const NS: NamespaceId = NamespaceId(1);
const LIMIT: Duration = Duration::from_secs(30);

fn over(network: &Network) -> HostConfig {
    let backoff = BackoffConfig {
        first: Duration::from_millis(5),
        longest: Duration::from_millis(20),
        ..BackoffConfig::default()
    };
    HostConfig {
        transport: Transport::Rdma,
        rdma_devices: Arc::new(Devices(network.clone())),
        backoff,
        io_queues: 2,
        ..config()
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 3 + seed).to_le_bytes()[0]).collect()
}

/// Writes and reads every size that goes another way: in a capsule, in one block, in several commands.
fn verify(host: &Host) {
    for (blocks, seed) in [(1, 1), (8, 2), (9, 3), (256, 4), (1000, 5)] {
        let data = pattern(blocks * BLOCK, seed);
        host.write(NS, 5, &data, seed == 2).unwrap();
        let mut back = vec![0; data.len()];
        host.read(NS, 5, &mut back).unwrap();
        assert!(back == data, "{blocks} blocks");
        host.compare(NS, 5, &data).unwrap();
    }
    host.flush(NS).unwrap();
}

#[test]
fn what_is_written_is_read_over_roce_and_iwarp() {
    for profile in [Profile::Roce, Profile::Iwarp] {
        let delay = Duration::from_micros(20);
        let served = Served::start(NetworkConfig { profile, delay, ..NetworkConfig::default() });
        let host = Host::connect(over(&served.network)).unwrap();
        assert_eq!(host.namespaces().len(), 1);
        assert_eq!(host.identify(2, NamespaceId(0)).unwrap()[0], 1);
        verify(&host);
        let io = served.seen().io;
        assert!(io.contains(&(io::WRITE, true)), "4 KiB go in the capsule");
        assert!(io.contains(&(io::WRITE, false)), "more does not");
        host.disconnect();
        served.finish();
    }
}

/// As Linux does: data go in capsules where SGLs may have an offset, and without keyed SGLs there is no controller.
#[test]
fn a_controller_says_by_its_sgls_what_goes_in_capsules() {
    let served = Served::start(NetworkConfig::default());
    served.shared.lacks_sgls.store(1 << 20, Ordering::Relaxed);
    let host = Host::connect(over(&served.network)).unwrap();
    verify(&host);
    host.disconnect();
    let io = served.seen().io;
    assert!(io.contains(&(io::WRITE, false)) && io.iter().all(|(_, in_capsule)| !in_capsule));
    for subnqn in [config().subnqn, Nqn::discovery()] {
        served.shared.lacks_sgls.store(1 << 2, Ordering::Relaxed);
        let error = Host::connect(HostConfig { subnqn, ..over(&served.network) }).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("keyed SGLs (SGLS bit 2 is 0)") && text.contains("TCP"), "{text}");
    }
    served.finish();
}

#[test]
fn connections_come_from_the_address_that_is_named() {
    let served = Served::start(NetworkConfig::default());
    let source = Some("127.0.0.9".parse().unwrap());
    let host = Host::connect(HostConfig { source, ..over(&served.network) }).unwrap();
    verify(&host);
    host.disconnect();
    let sources = served.network.sources();
    assert!(sources.len() >= 3, "an admin queue and two for I/O: {sources:?}");
    let named = Some("127.0.0.9:0".parse().unwrap());
    assert!(sources.iter().all(|source| *source == named), "{sources:?}");
    served.finish();
}

#[test]
fn a_discovery_controller_is_read() {
    let served = Served::start(NetworkConfig::default());
    let config = HostConfig { subnqn: Nqn::discovery(), ..over(&served.network) };
    let host = Host::connect(config).unwrap();
    let log = host.discover().unwrap();
    let entry = &log.records[0];
    assert_eq!((log.records.len(), entry.trtype), (1, 1));
    host.disconnect();
    served.finish();
}

#[test]
fn errors_of_commands_are_those_of_the_controller() {
    let served = Served::start(NetworkConfig::default());
    let host = Host::connect(over(&served.network)).unwrap();
    let last = u64::try_from(BLOCKS).unwrap() - 1;
    // Checked by the controller, as the host does not know what lies behind the end: with and without its data.
    for blocks in [2, 256] {
        let data = pattern(blocks * BLOCK, 1);
        let error = host.write(NS, last, &data, false).unwrap_err();
        let HostError::Command(failure) = error else { panic!("{error}") };
        assert_eq!(failure.error, CommandError::Status(Status::LBA_OUT_OF_RANGE.dnr()));
    }
    let error = host.compare(NS, 0, &[1; BLOCK]).unwrap_err();
    let HostError::Command(failure) = error else { panic!("{error}") };
    assert_eq!(failure.error, CommandError::Status(Status::COMPARE_FAILURE));
    verify(&host);
    host.disconnect();
    served.finish();
}

#[test]
fn many_threads_share_the_queues() {
    let delay = Duration::from_micros(50);
    let served = Served::start(NetworkConfig { delay, ..NetworkConfig::default() });
    let host = Host::connect(HostConfig { io_entries: 4, ..over(&served.network) }).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let host = &host;
            scope.spawn(move || {
                for round in 0..20 {
                    let data = pattern(40 * BLOCK, thread * 100 + round);
                    let slba = u64::try_from(thread).unwrap() * 64;
                    host.write(NS, slba, &data, false).unwrap();
                    let mut back = vec![0; data.len()];
                    host.read(NS, slba, &mut back).unwrap();
                    assert!(back == data, "thread {thread} round {round}");
                }
            });
        }
    });
    host.disconnect();
    served.finish();
}

/// Waits until something holds.
fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_connection_that_ends_under_io_is_made_again() {
    let served = Served::start(NetworkConfig::default());
    let host = Host::connect(over(&served.network)).unwrap();
    verify(&host);
    served.shared.holds_io.store(true, Ordering::Relaxed);
    let before = served.seen();
    std::thread::scope(|scope| {
        let read = scope.spawn(|| {
            let mut back = vec![0; 1000 * BLOCK];
            host.read(NS, 5, &mut back).map(|()| back)
        });
        let write = scope.spawn(|| host.write(NS, 2000, &[1; 20 * BLOCK], false));
        // A read of 1,000 blocks is four commands.
        wait_for("the commands come", || served.seen().io.len() >= before.io.len() + 5);
        served.shared.holds_io.store(false, Ordering::Relaxed);
        served.network.cut_all();
        // Reads are sent again. Nobody knows whether the write was executed.
        assert!(read.join().unwrap().unwrap() == pattern(1000 * BLOCK, 5));
        let error = write.join().unwrap().unwrap_err();
        let HostError::Command(failure) = error else { panic!("{error}") };
        assert_eq!(failure.error, CommandError::UnknownFate);
    });
    assert!(served.seen().connects > before.connects);
    verify(&host);
    host.disconnect();
    served.finish();
}

#[test]
fn a_command_that_takes_too_long_costs_the_connection() {
    let served = Served::start(NetworkConfig::default());
    // It holds for the commands that are answered, too, which a busy machine delays.
    let command_timeout = Some(Duration::from_secs(3));
    let admin_timeout = Some(LIMIT);
    // A queue looks at its commands once the time of its last step of connecting is over.
    let connect_timeout = Duration::from_secs(3);
    let config =
        HostConfig { command_timeout, admin_timeout, connect_timeout, ..over(&served.network) };
    let host = Host::connect(config).unwrap();
    served.shared.holds_io.store(true, Ordering::Relaxed);
    let error = host.write(NS, 0, &[1; 16 * BLOCK], false).unwrap_err();
    let HostError::Command(failure) = error else { panic!("{error}") };
    assert_eq!(failure.error, CommandError::UnknownFate);
    served.shared.holds_io.store(false, Ordering::Relaxed);
    verify(&host);
    host.disconnect();
    served.finish();
}

#[test]
fn an_idle_host_keeps_its_association_alive() {
    let served = Served::start(NetworkConfig::default());
    let host = Host::connect(HostConfig { kato_ms: 3000, ..over(&served.network) }).unwrap();
    wait_for("keep alives", || served.seen().keep_alives >= 3);
    assert_eq!(served.seen().connects, 1);
    host.disconnect();
    served.finish();
}

#[test]
fn a_target_that_has_a_connection_from_before_is_asked_again() {
    // Eight attempts of a queue: that all of them meet it is less likely than one in 10^8.
    let faults = Faults { stale: 8, ..Faults::default() };
    let served = Served::start(NetworkConfig { faults, ..NetworkConfig::default() });
    for _ in 0..5 {
        let host = Host::connect(over(&served.network)).unwrap();
        host.write(NS, 0, &[7; BLOCK], false).unwrap();
        host.disconnect();
    }
    served.finish();
    let always = Faults { stale: 1, ..Faults::default() };
    let served = Served::start(NetworkConfig { faults: always, ..NetworkConfig::default() });
    let error = Host::connect(over(&served.network)).unwrap_err().to_string();
    assert!(error.contains("10.0.0.1:4420") && error.contains("from before"), "{error}");
    served.finish();
}

/// A target that refuses every queue.
#[test]
fn every_reject_of_a_target_says_why() {
    let network = Network::new(NetworkConfig::default());
    let mut device = network.add_device();
    device.listen(over(&network).address).unwrap();
    for &status in RejectStatus::ALL {
        let host = std::thread::spawn({
            let config = over(&network);
            move || Host::connect(config).unwrap_err()
        });
        let mut is_refused = false;
        wait_for("the host hears of it", || {
            while network.step() {}
            while let Some(event) = device.next_event() {
                let Event::Request { connection, private, .. } = event else { continue };
                let request = QueueRequest::parse(&private).unwrap();
                assert_eq!((request.entries, request.receives), (32, 32), "of an admin queue");
                device.reject(connection, RejectData::new(status).as_bytes());
                device.destroy(connection);
                is_refused = true;
            }
            host.is_finished()
        });
        assert!(is_refused);
        let error = host.join().unwrap();
        assert!(matches!(error, HostError::Rdma(..)), "{error}");
        assert!(error.to_string().contains(&status.to_string()), "{error}");
    }
    assert_eq!(network.misuses(), Vec::<String>::new());
    assert_eq!(network.leftovers(), (0, 0));
}

#[test]
fn an_address_without_a_listener_is_told() {
    let served = Served::start(NetworkConfig::default());
    let address = "10.0.0.9:4420".parse().unwrap();
    let error = Host::connect(HostConfig { address, ..over(&served.network) }).unwrap_err();
    assert!(error.to_string().contains("listener for RDMA"), "{error}");
    served.finish();
}

#[test]
fn what_rdma_does_not_have_is_refused() {
    let network = Network::new(NetworkConfig::default());
    let config = over(&network);
    for (config, why) in [
        (HostConfig { header_digest: true, ..config.clone() }, "no digests"),
        (HostConfig { data_digest: true, ..config.clone() }, "no digests"),
        (
            HostConfig {
                concatenator: Some(|_, _| unreachable!("there is no key")),
                ..config.clone()
            },
            "no TLS",
        ),
    ] {
        let error = Host::connect(config).unwrap_err();
        assert!(matches!(&error, HostError::Invalid(text) if text.contains(why)), "{error}");
    }
    // With the devices of this machine, of which there are none at this address.
    let config =
        HostConfig { address: "127.0.0.1:4420".parse().unwrap(), ..super::common::config() };
    let error = Host::connect(HostConfig { transport: Transport::Rdma, ..config }).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, HostError::Rdma(..)), "{text}");
    assert!(
        ["install Debian's packages", "RDMA device", "rdma_ucm"].iter().any(|it| text.contains(it)),
        "{text}"
    );
}

/// One namespace, with a path over RDMA and one over TCP to a target of ours. Each target has data of its own, so that
/// the data tell the path.
#[test]
fn a_path_over_tcp_takes_over_from_one_over_rdma() {
    let (target, tcp) = served::serve(served::any_port());
    let plain = served::config(tcp);
    let known = Host::connect(plain.clone()).unwrap();
    let pages = [0, 3].map(|cns| known.identify(cns, NS).unwrap());
    known.write(NS, 0, &[0x22; BLOCK], false).unwrap();
    known.disconnect();
    let served = Served::start(NetworkConfig::default());
    *served.shared.namespace.lock().unwrap() = Some(pages);
    let over = over(&served.network);
    let transport = Transport::Tcp;
    let host = Host::connect(HostConfig {
        address: over.address,
        transport: over.transport,
        rdma_devices: over.rdma_devices,
        backoff: over.backoff,
        more_paths: vec![PathAddress { address: tcp, source: None, transport }],
        ..plain
    })
    .unwrap();
    let read = || {
        let mut data = [0; BLOCK];
        host.read(NS, 0, &mut data).map(|()| data[0])
    };
    // Whichever path is up first is used until the better one is.
    wait_for("the first path is up", || {
        read().unwrap();
        !served.seen().io.is_empty()
    });
    host.write(NS, 0, &[0x11; BLOCK], false).unwrap();
    assert_eq!(read().unwrap(), 0x11, "the first path is RDMA");
    served.shared.is_away.store(true, Ordering::Relaxed);
    served.network.cut_all();
    wait_for("reads go over TCP", || read().unwrap() == 0x22);
    served.shared.is_away.store(false, Ordering::Relaxed);
    wait_for("the first path is back", || read().unwrap() == 0x11);
    host.disconnect();
    served.finish();
    target.shutdown().unwrap();
}
