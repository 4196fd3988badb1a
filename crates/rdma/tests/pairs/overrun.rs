//! As many queues as a completion queue holds, each with all that it can have outstanding, and nobody looks.

use std::time::Duration;

use raceline_proto::nvme::{QueueId, Sqe};
use raceline_proto::rdma::{KeyedBlock, RejectStatus};
use raceline_rdma::fake::{NetworkConfig, Profile};
use raceline_rdma::verbs::{ConnectionId, Event, Provider};
use raceline_rdma::{ConnectError, PortConfig};
use zerocopy::IntoBytes;

use super::raw::{Raw, command};
use super::support::{BLOCK, Pair, port_config};

/// Lets the network do all that it can, while the target does not look.
fn alone(pair: &mut Pair) {
    let end = pair.network.now() + Duration::from_millis(20);
    while pair.network.now() < end && pair.network.step() {}
}

/// Commands of a queue: reads of a block, whose data go to the host's memory.
fn send(raw: &mut Raw, id: ConnectionId, commands: u16) {
    for cid in 0..commands {
        let block = KeyedBlock { address: raw.memory.address, len: BLOCK, key: raw.memory.rkey };
        let sqe = Sqe { sgl1: block.descriptor(false), ..command(cid) };
        raw.send(id, sqe.as_bytes());
    }
}

/// All queues that the target gives.
fn connect_all(pair: &mut Pair, raw: &mut Raw) -> Vec<ConnectionId> {
    // Receives for few answers: the others wait.
    std::iter::from_fn(|| raw.try_connect(pair, QueueId(3), 4)).collect()
}

#[test]
fn the_completion_queue_never_overflows() {
    // A queue with 16 entries has 32 requests in its send queue, and 16 receives of its own or 16 of those that are shared.
    let cases =
        [(Profile::Roce, 0), (Profile::Roce, 64), (Profile::Roce, 200), (Profile::Iwarp, 0)];
    for (profile, shared_receives) in cases {
        for completions in [100, 150, 200, 260] {
            let what = format!("{profile:?}, {shared_receives} shared, {completions} entries");
            let config = NetworkConfig { profile, completions, ..NetworkConfig::default() };
            let port = PortConfig { shared_receives, connections: 64, ..port_config() };
            let mut pair = Pair::new(config, port);
            let mut raw = Raw::new(&pair.network);
            raw.device.set_completions(1 << 16);
            // Receives that queues have had are kept.
            let before = connect_all(&mut pair, &mut raw);
            before.into_iter().for_each(|id| raw.device.destroy(id));
            pair.settle(Duration::from_secs(3));
            let queues = connect_all(&mut pair, &mut raw);
            assert!(queues.len() > 1, "{what}");
            queues.iter().for_each(|&id| send(&mut raw, id, 16));
            alone(&mut pair);
            // The target takes what has come and answers it, and does not look again.
            let now = pair.now();
            (0..10).for_each(|_| pair.target.poll(now));
            while pair.target.jobs() > 0 {
                pair.target.execute(&mut pair.dice);
            }
            pair.target.port.settle(now);
            // More commands than entries, and then the end of all that is posted.
            queues.iter().for_each(|&id| send(&mut raw, id, 40));
            alone(&mut pair);
            pair.network.cut_all();
            alone(&mut pair);
            assert_eq!(pair.network.misuses(), Vec::<String>::new(), "{what}");
            pair.settle(Duration::from_secs(3));
            assert!(!pair.target.port.is_device_gone(), "{what}");
            queues.into_iter().for_each(|id| raw.device.destroy(id));
            raw.device.deregister(raw.memory);
            pair.end();
        }
    }
}

/// The device gives 64 completions at a time, in the order in which the messages came.
#[test]
fn commands_of_all_hosts_are_seen_before_any_is_served() {
    for shared_receives in [0, 200] {
        let port = PortConfig { shared_receives, connections: 64, ..port_config() };
        let mut pair = Pair::new(NetworkConfig::default(), port);
        let mut raw = Raw::new(&pair.network);
        let queues: Vec<_> = (0..10).map(|_| raw.connect(&mut pair, 16)).collect();
        queues.iter().for_each(|&id| send(&mut raw, id, 16));
        alone(&mut pair);
        let now = pair.now();
        pair.target.poll(now);
        assert_eq!(pair.target.jobs(), 160, "{shared_receives} shared receives");
        pair.settle(Duration::from_secs(1));
        assert_eq!(pair.target.jobs(), 0, "all are served");
        queues.into_iter().for_each(|id| raw.device.destroy(id));
        raw.device.deregister(raw.memory);
        pair.settle(Duration::from_secs(3));
        pair.end();
    }
}

#[test]
fn a_completion_queue_that_overflows_is_the_end_of_its_device() {
    let mut pair = Pair::new(NetworkConfig::default(), port_config());
    let mut raw = Raw::new(&pair.network);
    raw.device.set_completions(2);
    let id = raw.connect(&mut pair, 4);
    send(&mut raw, id, 4);
    alone(&mut pair);
    assert_eq!(pair.network.misuses(), ["a completion queue has overflowed"]);
    let events: Vec<Event> = std::iter::from_fn(|| raw.device.next_event()).collect();
    assert!(events.contains(&Event::DeviceRemoved(ConnectionId::NOBODY)), "{events:?}");
}

#[test]
fn a_host_has_no_more_queues_than_its_completion_queue_holds() {
    // A queue with 16 entries has 15 commands, each with a send and a receive.
    let config = NetworkConfig { completions: 100, ..NetworkConfig::default() };
    let mut pair = Pair::new(config, PortConfig { shared_receives: 0, ..port_config() });
    let now = pair.now();
    // The target has room for two.
    let ids: Vec<_> = (1..=4).map(|qid| pair.host.connect(qid, now).unwrap()).collect();
    while pair.host.connecting > 0 {
        assert!(pair.step() || pair.host.connecting == 0, "connecting stands still");
    }
    let own = ConnectError::Completions { needed: 30, free: 10, all: 100 };
    let of_target = ConnectError::Rejected(RejectStatus::NoResources);
    assert_eq!(pair.host.failures, [own, of_target]);
    // What has ended makes room.
    pair.host.port.close(ids[0], now);
    pair.settle(Duration::from_secs(2));
    pair.host.failures.clear();
    pair.connect(&[5]);
    assert_eq!((pair.host.live.len(), &pair.host.failures[..]), (2, &[][..]));
    pair.end();
}
