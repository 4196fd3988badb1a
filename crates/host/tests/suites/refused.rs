//! A target that refuses a host as if for good, because it has begun again and does not know that host yet.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use raceline_bdev::SharedBdev;
use raceline_host::blocking::Host;
use raceline_host::{
    Algorithms, BackoffConfig, Credentials, DhchapSecret, HostConfig, HostError, MultipathConfig,
    PathAddress, RemoteController, RemoteState,
};
use raceline_proto::nvme::Nqn;
use raceline_target::{HostAccess, Keys, NamespaceConfig, SubsystemConfig, Target};

use crate::served::{BLOCK, NS, any_port, config, listen, memory, nqn, second_path, small};

const LIMIT: Duration = Duration::from_secs(60);
/// Tries that are refused before the target admits the host.
const REFUSED_TRIES: u64 = 4;

#[track_caller]
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LIMIT, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A target that admits one host.
fn target_for(hostnqn: &Nqn, keys: Option<Keys>, device: &SharedBdev) -> Target {
    let target = Target::start(small()).unwrap();
    let hosts = HostAccess::List(vec![hostnqn.clone()]);
    let subsystem = SubsystemConfig { ana_reporting: true, ..SubsystemConfig::new(nqn()) };
    target.add_subsystem(subsystem).unwrap();
    target.set_hosts(&nqn(), hosts).unwrap();
    target.set_host_keys(&nqn(), hostnqn, keys).unwrap();
    target.add_namespace(&nqn(), NamespaceConfig::new(device.clone())).unwrap();
    target
}

fn stranger() -> Nqn {
    Nqn::new("nqn.2026-01.io.raceline:stranger").unwrap()
}

/// A host that never gives a controller up, and tries again soon after a refusal.
fn without_limit(address: SocketAddr) -> HostConfig {
    let config = config(address);
    let backoff = BackoffConfig { give_up_after: None, ..config.backoff };
    HostConfig { backoff, refused_delay: Duration::from_millis(50), ..config }
}

/// Has I/O begin while `wrong` refuses the host, and go on when `right` is there. Both listen at the addresses of `first`.
fn waits(
    first: Target,
    config: &HostConfig,
    wrong: impl FnOnce() -> Target,
    right: impl FnOnce() -> Target,
) {
    let host = Host::connect(config.clone()).unwrap();
    let other = RemoteController::connect(config.clone()).unwrap();
    host.write(NS, 5, &[5; BLOCK], false).unwrap();
    first.shutdown().unwrap();
    let is_waiting = || matches!(other.state(), RemoteState::Reconnecting);
    wait_for("the loss", || is_waiting() && !host.is_up());
    let target = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut back = [0; BLOCK];
            host.read(NS, 5, &mut back).map(|()| back)
        });
        let wrong = wrong();
        // One try of each path may have begun before that.
        let paths = config.paths().len() as u64;
        let enough = other.counts().link.failed_connects + paths * (1 + REFUSED_TRIES);
        wait_for("refused tries", || {
            assert!(is_waiting(), "{:?}", other.state());
            other.counts().link.failed_connects >= enough
        });
        assert!(!reader.is_finished(), "it waits");
        wrong.shutdown().unwrap();
        let right = right();
        assert_eq!(reader.join().unwrap().unwrap(), [5; BLOCK]);
        right
    });
    wait_for("all paths", || {
        other.paths().iter().all(|path| matches!(path.state, RemoteState::Up))
    });
    assert_eq!(other.paths().len(), config.paths().len());
    other.disconnect();
    host.disconnect();
    target.shutdown().unwrap();
}

#[test]
fn io_waits_for_a_target_that_did_not_know_its_host_at_first() {
    for paths in [1, 2] {
        let device = memory();
        let own = config(any_port()).hostnqn;
        let first = target_for(&own, None, &device);
        let address = listen(&first, any_port());
        let more_paths: Vec<PathAddress> = (1..paths).map(|_| second_path(&first)).collect();
        let config = HostConfig { more_paths: more_paths.clone(), ..without_limit(address) };
        let serve = |hostnqn: &Nqn| {
            let target = target_for(hostnqn, None, &device);
            listen(&target, address);
            more_paths.iter().for_each(|path| {
                listen(&target, path.address);
            });
            target
        };
        waits(first, &config, || serve(&stranger()), || serve(&own));
    }
}

#[test]
fn io_waits_for_a_target_that_did_not_have_the_secret_of_its_host_at_first() {
    let device = memory();
    let own = config(any_port()).hostnqn;
    let [right, wrong] = [(); 2].map(|()| DhchapSecret::generate(None).unwrap());
    let keys = |secret: &DhchapSecret| Some(Keys::new(secret.clone(), None));
    let first = target_for(&own, keys(&right), &device);
    let address = listen(&first, any_port());
    let credentials = Credentials {
        secret: right.clone(),
        controller_secret: None,
        algorithms: Algorithms::default(),
    };
    let config = HostConfig { credentials: credentials.into(), ..without_limit(address) };
    let serve = |secret: &DhchapSecret| {
        let target = target_for(&own, keys(secret), &device);
        listen(&target, address);
        target
    };
    waits(first, &config, || serve(&wrong), || serve(&right));
}

#[test]
fn a_path_that_is_refused_at_the_start_is_tried_again_while_another_is_there() {
    let device = memory();
    let own = config(any_port()).hostnqn;
    let target = target_for(&own, None, &device);
    let other = target_for(&stranger(), None, &device);
    let second = second_path(&other);
    let first = without_limit(listen(&target, any_port()));
    let config = HostConfig { more_paths: vec![second], ..first };
    let host = RemoteController::connect(config).unwrap();
    let enough = REFUSED_TRIES;
    wait_for("refused tries", || host.counts().link.failed_connects >= enough);
    let up = |path: usize| matches!(host.paths()[path].state, RemoteState::Up);
    assert!(up(0) && !up(1));
    other.set_hosts(&nqn(), HostAccess::List(vec![own])).unwrap();
    wait_for("the second path", || up(1));
    host.disconnect();
    target.shutdown().unwrap();
    other.shutdown().unwrap();
}

#[test]
fn whoever_connects_is_told_of_a_refusal_at_once() {
    let device = memory();
    let own = config(any_port()).hostnqn;
    let refusing = target_for(&stranger(), None, &device);
    let address = listen(&refusing, any_port());
    // Far longer than this test may take.
    let slow = |address| HostConfig { refused_delay: 2 * LIMIT, ..without_limit(address) };
    let is_refusal =
        |error: &HostError| assert!(matches!(error, HostError::ConnectRefused { .. }), "{error}");
    is_refusal(&Host::connect(slow(address)).map(drop).unwrap_err());
    let config = HostConfig { more_paths: vec![second_path(&refusing)], ..slow(address) };
    is_refusal(&Host::connect(config).map(drop).unwrap_err());

    let target = target_for(&own, None, &device);
    let multipath = Some(MultipathConfig::default());
    let config = HostConfig { multipath, ..slow(listen(&target, any_port())) };
    let host = RemoteController::connect(config).unwrap();
    is_refusal(&host.add_path(slow(address)).unwrap_err());
    wait_for("one path", || host.paths().len() == 1);
    host.disconnect();
    target.shutdown().unwrap();
    refusing.shutdown().unwrap();
}
