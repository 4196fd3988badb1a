//! Peers that keep no rule: the queue ends, nothing else does, and no memory beyond what was granted is touched.

use std::time::Duration;

use raceline_proto::nvme::{CommandId, Cqe, QueueId};
use raceline_proto::rdma::{AcceptData, CapsuleLimits, KeyedBlock, Violation, WorkStatus};
use raceline_rdma::fake::{FakeDevice, Network, NetworkConfig, Profile};
use raceline_rdma::verbs::{
    Access, ConnectionId, DomainId, Event, Operation, PairConfig, Provider, RecvWork, Region,
    SendWork,
};
use raceline_rdma::{HostTransfer, Loss, PortConfig};
use zerocopy::IntoBytes;

use super::raw::{Raw, command};
use super::support::{BLOCK, Host, IO, Pair, READ, WRITE, address, io, port_config};

/// Two connections, of which the second must not notice what the first does.
fn two(profile: Profile) -> (Pair, ConnectionId) {
    let mut pair = Pair::new(NetworkConfig { profile, ..NetworkConfig::default() }, port_config());
    let first = pair.connect(&[1, 2])[0];
    (pair, first)
}

/// The first connection ends, the second still works.
fn only_the_first_ends(mut pair: Pair) -> Pair {
    pair.settle(Duration::from_secs(2));
    assert_eq!(pair.host.live.len(), 1, "one connection has ended");
    let before = pair.host.completed;
    for _ in 0..200 {
        pair.host.submit(&mut pair.dice);
        pair.step();
    }
    pair.settle(Duration::from_secs(1));
    assert!(pair.host.completed > before + 20, "the other connection goes on");
    pair
}

#[test]
fn keys_and_ranges_that_were_not_granted() {
    for profile in [Profile::Roce, Profile::Iwarp] {
        for opc in [READ, WRITE] {
            for wrong in ["key", "beyond the end", "before the start", "far away"] {
                let (mut pair, first) = two(profile);
                let memory = pair.host.memory;
                let mut block =
                    KeyedBlock { address: memory.address, len: BLOCK, key: memory.rkey };
                match wrong {
                    "key" => block.key ^= 0x100,
                    "beyond the end" => block.address += u64::from(memory.len) - 511,
                    "before the start" => block.address -= 1,
                    _ => block.address = u64::MAX - 100,
                }
                let transfer = HostTransfer::Keyed { block, invalidate: false };
                let cid = pair.host.send(first, &io(opc, 0, 1), transfer).unwrap();
                let mut pair = only_the_first_ends_of(pair, cid, first);
                let failed = Loss::Work("a request to the host", WorkStatus::REM_ACCESS_ERR);
                assert_eq!(pair.target.losses.len(), 1);
                assert_eq!(pair.target.losses[0].1, failed, "{profile:?} {opc} {wrong}");
                pair.host.losses.clear();
                pair.end();
            }
        }
    }
}

/// [`only_the_first_ends`], for a command that the host's model does not know.
fn only_the_first_ends_of(mut pair: Pair, cid: CommandId, connection: ConnectionId) -> Pair {
    pair.host.expect_end(connection, cid);
    only_the_first_ends(pair)
}

#[test]
fn a_window_for_reading_is_not_written() {
    let (mut pair, first) = two(Profile::Roce);
    let memory = pair.host.memory;
    let access = Access { remote_read: true, ..Access::default() };
    let key = pair.host.port.provider().bind(&memory, 0, BLOCK, access);
    let block = KeyedBlock { address: memory.address, len: BLOCK, key };
    let before = bytes(pair.host.port.provider(), &memory);
    let transfer = HostTransfer::Keyed { block, invalidate: true };
    let cid = pair.host.send(first, &io(READ, 0, 1), transfer).unwrap();
    pair.host.expect_end(first, cid);
    pair.settle(Duration::from_secs(2));
    assert_eq!(bytes(pair.host.port.provider(), &memory), before);
    only_the_first_ends(pair).end();
}

/// A peer can cause errors of that kind, and does so to itself alone: where a key was invalidated, others' will be, too.
#[test]
fn a_device_that_has_invalidated_is_asked_to_after_a_failure() {
    let mut pair = Pair::new(NetworkConfig::default(), port_config());
    let first = pair.connect(&[1])[0];
    // Some of these offer keys of windows.
    for _ in 0..300 {
        pair.host.submit(&mut pair.dice);
        pair.step();
    }
    pair.settle(Duration::from_secs(1));
    pair.network.fail_invalidation(true);
    let cid = read_with_window(&mut pair, first);
    pair.host.expect_end(first, cid);
    pair.settle(Duration::from_secs(2));
    let failed = Loss::Work("a request to the host", WorkStatus::LOC_QP_OP_ERR);
    assert_eq!(pair.target.losses.len(), 1);
    assert_eq!(pair.target.losses[0].1, failed);
    assert!(pair.target.port.provider().capabilities().send_with_invalidate);
    pair.end();
}

/// A read into a window, whose key the response is to invalidate.
fn read_with_window(pair: &mut Pair, connection: ConnectionId) -> CommandId {
    let memory = pair.host.memory;
    let access = Access { remote_write: true, ..Access::default() };
    let key = pair.host.port.provider().bind(&memory, 0, BLOCK, access);
    let block = KeyedBlock { address: memory.address, len: BLOCK, key };
    let transfer = HostTransfer::Keyed { block, invalidate: true };
    pair.host.send(connection, &io(READ, 0, 1), transfer).unwrap()
}

/// What one queue has found out, all of them know. The host offers keys of windows all the time.
#[test]
fn a_device_that_fails_to_invalidate_costs_one_queue() {
    let mut pair = Pair::new(NetworkConfig::default(), port_config());
    let first = pair.connect(&[1, 2])[0];
    pair.network.fail_invalidation(true);
    let cid = read_with_window(&mut pair, first);
    pair.host.expect_end(first, cid);
    pair.settle(Duration::from_secs(2));
    let failed = Loss::Work("a request to the host", WorkStatus::LOC_QP_OP_ERR);
    assert_eq!(pair.target.losses[0].1, failed);
    // The queue that was open all the time, then one more.
    for queues in [1, 2] {
        let before = pair.host.completed;
        for _ in 0..300 {
            pair.host.submit(&mut pair.dice);
            pair.step();
        }
        pair.settle(Duration::from_secs(2));
        assert!(pair.host.completed > before + 20, "{before}, then {}", pair.host.completed);
        assert_eq!((pair.host.live.len(), pair.target.losses.len()), (queues, 1));
        if queues == 1 {
            pair.connect(&[3]);
        }
    }
    pair.end();
}

fn bytes(device: &FakeDevice, region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(BLOCK.min(region.len)).unwrap()];
    device.read(region, 0, &mut bytes);
    bytes
}

// -------------------------------------------------------------------------- raw peers

#[test]
fn messages_that_are_no_capsules() {
    for profile in [Profile::Roce, Profile::Iwarp] {
        for len in [0, 1, 63, 1024 + 65, 4096] {
            let mut pair =
                Pair::new(NetworkConfig { profile, ..NetworkConfig::default() }, port_config());
            pair.connect(&[1]);
            let mut raw = Raw::new(&pair.network);
            let id = raw.connect(&mut pair, 8);
            raw.send(id, &vec![0x40; len]);
            pair.settle(Duration::from_secs(2));
            let expected = if len < 64 {
                Loss::Violation(Violation::CommandShort)
            } else {
                Loss::Work("a receive", WorkStatus::LOC_LEN_ERR)
            };
            assert_eq!(pair.target.losses[0].1, expected, "{len} bytes");
            assert_eq!(pair.target.port.connections(), 1, "the other one");
            raw.leave(id);
            pair.end();
        }
    }
}

#[test]
fn a_host_that_never_posts_receives() {
    let mut pair = Pair::new(NetworkConfig::default(), port_config());
    let mut raw = Raw::new(&pair.network);
    let id = raw.connect(&mut pair, 0);
    for n in 0..16u16 {
        let mut sqe = io(READ, 0, 1);
        sqe.cid = n.into();
        sqe.flags = 0x40;
        sqe.sgl1 = KeyedBlock { address: raw.memory.address, len: BLOCK, key: raw.memory.rkey }
            .descriptor(false);
        raw.send(id, sqe.as_bytes());
    }
    pair.settle(Duration::from_secs(10));
    assert_eq!(pair.target.losses, [], "it has 30 s");
    pair.settle(Duration::from_secs(40));
    assert_eq!(pair.target.losses.len(), 1);
    assert_eq!(pair.target.losses[0].1, Loss::Stuck);
    assert_eq!(pair.target.port.connections(), 0);
    raw.leave(id);
    pair.end();
}

#[test]
fn more_commands_than_entries_meet_no_receive() {
    // In iWARP that ends the connection at once; in RoCE the host's device waits until there is one.
    for profile in [Profile::Roce, Profile::Iwarp] {
        let config = NetworkConfig { profile, ..NetworkConfig::default() };
        let port = PortConfig { shared_receives: 0, ..port_config() };
        let mut pair = Pair::new(config, port);
        let mut raw = Raw::new(&pair.network);
        let id = raw.connect(&mut pair, 60);
        for n in 0..40u16 {
            raw.send(id, command(n).as_bytes());
        }
        pair.settle(Duration::from_secs(2));
        let completions = [raw.completions(), raw.completions()].concat();
        let answers = completions.iter().filter(|done| done.bytes == 16).count();
        match profile {
            Profile::Roce => assert_eq!((answers, pair.target.losses.len()), (40, 0)),
            Profile::Iwarp => assert_eq!(pair.target.losses.len(), 1),
        }
        raw.leave(id);
        pair.settle(Duration::from_secs(5));
        pair.end();
    }
}

#[test]
fn a_host_that_takes_all_receives_ends_alone() {
    for profile in [Profile::Roce, Profile::Iwarp] {
        let config = NetworkConfig { profile, ..NetworkConfig::default() };
        let mut pair = Pair::new(config, port_config());
        pair.connect(&[1, 2]);
        let mut raw = Raw::new(&pair.network);
        let id = raw.connect(&mut pair, 60);
        // There are 64 shared receives. All are taken before the target looks, and before commands of others come.
        for n in 0..100u16 {
            raw.send(id, command(n).as_bytes());
        }
        while pair.host.outstanding() < 20 {
            pair.host.submit(&mut pair.dice);
        }
        pair.host.poll(pair.now());
        let (before, end) = (pair.host.completed, pair.network.now() + Duration::from_millis(5));
        while pair.network.now() < end && pair.network.step() {}
        let has_waited = pair.network.waits() > 0;
        assert!(has_waited, "{profile:?}: the burst was too short");
        pair.settle(Duration::from_secs(2));
        // iWARP ends the connection by itself, because its own receives are used up.
        assert_eq!(pair.target.losses.len(), 1, "{profile:?}: {:?}", pair.target.losses);
        let overrun = Loss::Violation(Violation::QueueOverrun);
        assert!(profile == Profile::Iwarp || pair.target.losses[0].1 == overrun);
        assert_eq!(pair.host.losses, [], "{profile:?}");
        assert_eq!((pair.host.outstanding(), pair.host.ended), (0, 0), "{profile:?}");
        assert!(pair.host.completed >= before + 20, "commands under way go on");
        let before = pair.host.completed;
        for _ in 0..400 {
            pair.host.submit(&mut pair.dice);
            pair.step();
        }
        pair.settle(Duration::from_secs(1));
        assert!(pair.host.losses.is_empty() && pair.host.completed > before + 20);
        raw.leave(id);
        pair.end();
    }
}

/// What a target that takes `data` bytes of data in a capsule makes of a capsule of `len` bytes on its admin queue.
fn admin_capsule(data: u32, shared_receives: u32, len: usize) -> Option<Loss> {
    let io = CapsuleLimits { in_capsule_bytes: data, ..IO };
    let port = PortConfig { io, shared_receives, ..port_config() };
    let mut pair = Pair::new(NetworkConfig::default(), port);
    let mut raw = Raw::new(&pair.network);
    let id = raw.connect_as(&mut pair, QueueId::ADMIN, 8);
    let mut capsule = command(1).as_bytes().to_vec();
    capsule.resize(len, 0x5a);
    raw.send(id, &capsule);
    pair.settle(Duration::from_secs(2));
    let loss = pair.target.losses.first().map(|(_, loss)| *loss);
    let is_answered = raw.completions().iter().any(|done| done.bytes == 16);
    assert_ne!(is_answered, loss.is_some(), "{len} bytes");
    raw.leave(id);
    pair.settle(Duration::from_secs(2));
    pair.end();
    loss
}

#[test]
fn capsules_of_an_admin_queue_hold_as_much_data_as_those_of_others() {
    for shared_receives in [64, 0] {
        let take = |data, len| admin_capsule(data, shared_receives, len);
        for len in [64, 65, 64 + 1024] {
            assert_eq!(take(1024, len), None, "{len} bytes of 64 + 1024");
        }
        let long = Loss::Work("a receive", WorkStatus::LOC_LEN_ERR);
        assert_eq!(take(1024, 64 + 1025), Some(long), "no receive has room for it");
        // Without data, I/O queues still have room for lists, and so has a shared receive.
        let loss = if shared_receives > 0 { Loss::Violation(Violation::CommandLong) } else { long };
        assert_eq!((take(0, 64), take(0, 65)), (None, Some(loss)));
    }
}

/// A target that answers one command with whatever it likes.
fn evil_target(answer: impl Fn(&mut Host, &mut Raw, ConnectionId, [u8; 16])) -> Vec<Loss> {
    let network = Network::new(NetworkConfig::default());
    let mut raw = Raw::new(&network);
    raw.device.listen(address()).unwrap();
    let mut host = Host::new(network.add_device());
    let start = std::time::Instant::now();
    host.connect(1, start).unwrap();
    let mut accepted = None;
    let mut sent = None;
    for _ in 0..1000 {
        network.step();
        host.poll(start);
        if let Some(Event::Request { connection, .. }) = raw.device.next_event() {
            let config = PairConfig {
                domain: DomainId::OWN,
                sends: 8,
                receives: 8,
                shares_receives: false,
                inline_bytes: 16,
            };
            raw.device.create_pair(connection, &config).unwrap();
            let work = RecvWork { id: 0, local: raw.memory.slice(1024, 1024) };
            raw.device.post_recv(connection, &[work]).unwrap();
            raw.device.accept(connection, AcceptData::new(8).as_bytes(), 1).unwrap();
            accepted = Some(connection);
        }
        if let (Some(&live), None) = (host.live.first(), sent) {
            let memory = host.memory;
            let key = host.port.provider().bind(&memory, 0, BLOCK, Access::HOST_DATA);
            let block = KeyedBlock { address: memory.address, len: BLOCK, key };
            let transfer = HostTransfer::Keyed { block, invalidate: true };
            let cid = host.send(live, &io(READ, 0, 1), transfer).unwrap();
            host.expect_end(live, cid);
            sent = Some(cid);
        }
        if let (Some(connection), Some(cid)) = (accepted, sent)
            && raw.completions().iter().any(|done| done.bytes >= 64)
        {
            let cqe = Cqe { cid, ..Cqe::default() };
            answer(&mut host, &mut raw, connection, cqe.to_bytes());
        }
    }
    for _ in 0..10 {
        host.port.check_deadlines(start + Duration::from_secs(60));
        host.poll(start + Duration::from_secs(60));
    }
    assert_eq!(host.outstanding(), 0);
    host.losses
}

fn send_with(raw: &mut Raw, id: ConnectionId, message: &[u8], invalidate: Option<u32>) {
    raw.device.write(&raw.memory, 0, message);
    let local = raw.memory.slice(0, u32::try_from(message.len()).unwrap());
    let operation = Operation::Send { invalidate };
    let work = SendWork { id: 9, operation, local, signalled: true, inline: false };
    raw.device.post_raw(id, work).unwrap();
}

#[test]
fn responses_that_no_controller_sends() {
    let losses = evil_target(|_, raw, id, cqe| send_with(raw, id, &cqe[..15], None));
    assert_eq!(losses, [Loss::Violation(Violation::ResponseLength)]);
    let losses = evil_target(|_, raw, id, mut cqe| {
        cqe[12] ^= 1;
        send_with(raw, id, &cqe, None);
    });
    assert_eq!(losses, [Loss::Violation(Violation::ResponseUnknown)]);
    // The key of another command of the host.
    let losses = evil_target(|host, raw, id, cqe| {
        let memory = host.memory;
        let other = host.port.provider().bind(&memory, 0, BLOCK, Access::HOST_DATA);
        send_with(raw, id, &cqe, Some(other));
    });
    assert_eq!(losses, [Loss::Violation(Violation::KeyInvalidated)]);
    // A key that cannot be invalidated: the host's device ends the queue pair.
    let losses = evil_target(|host, raw, id, cqe| {
        let key = host.memory.rkey;
        send_with(raw, id, &cqe, Some(key));
    });
    assert_eq!(losses, [Loss::Work("a receive", WorkStatus::LOC_ACCESS_ERR)]);
    let losses =
        evil_target(|_, raw, id, cqe| send_with(raw, id, &[&cqe[..], &[0]].concat(), None));
    assert_eq!(losses, [Loss::Work("a receive", WorkStatus::LOC_LEN_ERR)]);
}
