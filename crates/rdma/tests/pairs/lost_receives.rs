//! Hosts whose connections end amid a capsule: no receive of others goes with them.

use std::time::Duration;

use raceline_rdma::fake::{CoreUse, NetworkConfig};
use raceline_rdma::verbs::Provider;
use zerocopy::IntoBytes;

use super::raw::{Raw, command};
use super::support::{Pair, address, port_config};

/// Connections that end amid a capsule.
const CONNECTIONS: usize = 10_000;

fn core(pair: &Pair) -> CoreUse {
    pair.network.cores_of(address())[0]
}

/// A host connects, sends part of a capsule, and is gone.
fn end_amid_a_capsule(pair: &mut Pair, raw: &mut Raw) {
    let id = raw.connect(pair, 4);
    raw.device.stop_amid_message(id);
    raw.send(id, command(1).as_bytes());
    while pair.network.step() {}
    raw.device.destroy(id);
    pair.settle(Duration::from_millis(10));
    assert!(pair.target.port.connections() <= 16, "connections are left");
}

/// The other host's commands complete.
fn others_are_served(pair: &mut Pair, when: usize) {
    let before = pair.host.completed;
    for _ in 0..60 {
        pair.host.submit(&mut pair.dice);
        pair.step();
    }
    pair.settle(Duration::from_millis(10));
    assert_eq!(pair.host.losses, [], "connection {when}");
    assert_eq!(pair.host.outstanding(), 0, "connection {when}");
    assert!(pair.host.completed > before + 5, "connection {when}");
}

#[test]
fn a_connection_that_ends_amid_a_capsule_takes_no_receive_along() {
    let mut pair = Pair::new(NetworkConfig::default(), port_config());
    pair.connect(&[1]);
    let mut raw = Raw::new(&pair.network);
    others_are_served(&mut pair, 0);
    let posted = core(&pair).posted;
    assert!(posted > 0, "receives are shared");
    for n in 1..=CONNECTIONS {
        end_amid_a_capsule(&mut pair, &mut raw);
        // To look costs a walk over all connections that ever were.
        if n < 10 || n % 100 == 0 {
            assert_eq!(core(&pair).posted, posted, "receives after {n} connections");
            others_are_served(&mut pair, n);
        }
    }
    assert_eq!((core(&pair).pairs, core(&pair).sharing), (1, 1), "all queues share");
    assert_eq!(pair.target.port.counts().lost_receives, 0);
    raw.device.deregister(raw.memory);
    pair.end();
}

#[test]
fn what_a_device_loses_is_made_up_for_and_comes_back_when_no_queue_shares() {
    let config = NetworkConfig { tells_last_receive: false, ..NetworkConfig::default() };
    let mut pair = Pair::new(config, port_config());
    let queues = pair.connect(&[1]);
    let mut raw = Raw::new(&pair.network);
    let mut own = 0;
    for n in 1..=CONNECTIONS / 10 {
        let lost = pair.target.port.counts().lost_receives;
        end_amid_a_capsule(&mut pair, &mut raw);
        own += usize::from(pair.target.port.counts().lost_receives == lost);
        // What was promised to the queue that is there is there.
        assert!(core(&pair).posted >= 16, "{} receives, {n} connections", core(&pair).posted);
        if n % 100 == 0 {
            others_are_served(&mut pair, n);
        }
    }
    // Of 64 receives, 16 are promised to the first queue, and each other needs 16: the rest can get lost.
    assert_eq!(pair.target.port.counts().lost_receives, 33);
    assert_eq!(own, CONNECTIONS / 10 - 33, "queues without enough shared receives have their own");
    let now = pair.now();
    pair.host.port.close(queues[0], now);
    pair.settle(Duration::from_secs(3));
    pair.host.losses.clear();
    // Nobody shares: all receives are free, and the next queues share them again.
    pair.connect(&[1, 2, 3, 4]);
    assert_eq!((core(&pair).sharing, core(&pair).posted), (4, 64));
    others_are_served(&mut pair, CONNECTIONS);
    raw.device.deregister(raw.memory);
    pair.end();
}

/// A device promises to tell of the last receive, and does not: a queue pair is there until its time is over, as its messages may
/// still take receives. Then a receive counts as lost, and none is used twice.
#[test]
fn a_device_that_breaks_its_promise_costs_time_and_no_receive_of_others() {
    let config = NetworkConfig {
        tells_last_receive: false,
        promises_to_tell: true,
        ..NetworkConfig::default()
    };
    let mut pair = Pair::new(config, port_config());
    let queues = pair.connect(&[1]);
    let mut raw = Raw::new(&pair.network);
    for n in 1..=4 {
        let id = raw.connect(&mut pair, 4);
        // One command comes whole: the place of its message is known, and is used again. One comes in part.
        raw.send(id, command(1).as_bytes());
        while pair.network.step() {}
        raw.device.stop_amid_message(id);
        raw.send(id, command(2).as_bytes());
        while pair.network.step() {}
        raw.device.destroy(id);
        pair.settle(Duration::from_millis(500));
        assert_eq!(core(&pair).pairs, 2, "its time is not over");
        pair.settle(Duration::from_secs(1));
        assert_eq!(core(&pair).pairs, 1, "its time is over");
        assert_eq!(pair.target.port.counts().lost_receives, n);
        others_are_served(&mut pair, usize::try_from(n).unwrap());
        assert!(core(&pair).posted >= 16, "{:?}", core(&pair));
    }
    let now = pair.now();
    pair.host.port.close(queues[0], now);
    pair.settle(Duration::from_secs(3));
    pair.host.losses.clear();
    pair.connect(&[1, 2, 3, 4]);
    assert_eq!((core(&pair).sharing, core(&pair).posted), (4, 64), "all have come back");
    others_are_served(&mut pair, 5);
    raw.device.deregister(raw.memory);
    pair.end();
}

/// The adapter is told to end the queue pair while the message is under way: nothing is waited for.
#[test]
fn a_receive_of_a_queue_that_is_ended_at_once_is_counted() {
    let mut pair = Pair::new(NetworkConfig::default(), port_config());
    pair.connect(&[1]);
    let mut raw = Raw::new(&pair.network);
    let id = raw.connect(&mut pair, 4);
    raw.device.stop_amid_message(id);
    raw.send(id, command(1).as_bytes());
    while pair.network.step() {}
    let now = pair.now();
    let victim = *pair.target.accepted.last().unwrap();
    pair.target.port.abort(victim, now);
    assert_eq!(pair.target.port.counts().lost_receives, 1);
    // The next queue is promised as many as ever.
    pair.connect(&[2]);
    assert!(core(&pair).posted >= 32, "{:?}", core(&pair));
    others_are_served(&mut pair, 1);
    raw.leave(id);
    pair.end();
}

/// Soft RoCE tells of the last receive while a command of the queue is at the device, and has lost the receive of the message
/// in part all the same.
#[test]
fn the_word_of_a_device_that_loses_receives_does_not_count() {
    let config = NetworkConfig { tells_last_receive: false, ..NetworkConfig::default() };
    let mut pair = Pair::new(config, port_config());
    pair.connect(&[1]);
    let mut raw = Raw::new(&pair.network);
    let id = raw.connect(&mut pair, 4);
    raw.send(id, command(1).as_bytes());
    // Nobody executes it yet.
    while pair.target.jobs() == 0 {
        assert!(pair.network.step(), "the command does not come");
        let now = pair.now();
        pair.target.poll(now);
    }
    raw.device.stop_amid_message(id);
    raw.send(id, command(2).as_bytes());
    while pair.network.step() {}
    raw.device.destroy(id);
    for _ in 0..100 {
        pair.network.step();
        let now = pair.now();
        pair.target.poll(now);
    }
    assert_eq!((pair.target.jobs(), pair.target.port.counts().lost_receives), (1, 0));
    pair.settle(Duration::from_millis(10));
    assert_eq!(pair.target.port.counts().lost_receives, 1);
    others_are_served(&mut pair, 1);
    raw.device.deregister(raw.memory);
    pair.end();
}
