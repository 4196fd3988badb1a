//! The connection manager: every reject, private data of every length, storms of requests, orders that differ.

use std::time::{Duration, Instant};

use raceline_proto::nvme::QueueId;
use raceline_proto::rdma::{QueueRequest, RejectData, RejectStatus};
use raceline_rdma::fake::{FakeDevice, Faults, Network, NetworkConfig, Profile};
use raceline_rdma::verbs::{
    Access, ConnectionId, DomainId, Event, Operation, PairConfig, Provider, RecvWork, Rejection,
    SendWork,
};
use raceline_rdma::{ConnectError, Loss, PortConfig, Refusal};
use zerocopy::IntoBytes;

use super::raw::{Raw, command};
use super::support::{Host, Pair, address, port_config};

/// Asks with these bytes, and gives the reject.
fn ask(
    pair: &mut Pair,
    device: &mut FakeDevice,
    private: &[u8],
    reads: u8,
) -> Option<RejectStatus> {
    let id = device.resolve(address(), None).unwrap();
    let mut answer = None;
    while answer.is_none() {
        assert!(pair.step(), "it stands still");
        match device.next_event() {
            Some(Event::Resolved(id)) => {
                let config = PairConfig {
                    domain: DomainId::OWN,
                    sends: 1,
                    receives: 1,
                    shares_receives: false,
                    inline_bytes: 0,
                };
                device.create_pair(id, &config).unwrap();
                device.connect(id, private, reads).unwrap();
            }
            Some(Event::Rejected { reason: Rejection::Consumer(private), .. }) => {
                answer = Some(Some(RejectData::parse(&private).unwrap()));
            }
            Some(Event::Established { .. }) => answer = Some(None),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
    device.destroy(id);
    pair.settle(Duration::from_secs(2));
    answer.unwrap()
}

#[test]
fn requests_of_every_length() {
    // iWARP gives the exact bytes; InfiniBand pads them, so that a short request has zeroes in its fields.
    for profile in [Profile::Iwarp, Profile::Roce] {
        let config = NetworkConfig { profile, ..NetworkConfig::default() };
        let mut pair = Pair::new(config, port_config());
        let mut device = pair.network.add_device();
        let request = QueueRequest { qid: QueueId(1), receives: 8, entries: 8, cntlid: None };
        let whole = [&request.to_bytes()[..], &[0xee; 24]].concat();
        for len in 0..=56 {
            let answer = ask(&mut pair, &mut device, &whole[..len], 1);
            let expected = match (profile, len) {
                (Profile::Iwarp, 0..=31) => Some(RejectStatus::Length),
                (Profile::Roce, 0..=6) => Some(RejectStatus::Hsqsize),
                _ => None,
            };
            assert_eq!(answer, expected, "{profile:?}, {len} bytes");
        }
        pair.end();
    }
}

#[test]
fn requests_that_are_refused() {
    let mut pair = Pair::new(NetworkConfig::default(), port_config());
    let mut device = pair.network.add_device();
    let request = QueueRequest { qid: QueueId(1), receives: 8, entries: 8, cntlid: None };
    let with = |at: usize, value: u8| {
        let mut bytes = request.to_bytes();
        bytes[at] = value;
        bytes
    };
    assert_eq!(ask(&mut pair, &mut device, &with(0, 1), 1), Some(RejectStatus::Recfmt));
    assert_eq!(ask(&mut pair, &mut device, &with(2, 9), 1), Some(RejectStatus::QueueId));
    assert_eq!(ask(&mut pair, &mut device, &with(4, 0), 1), Some(RejectStatus::Hrqsize));
    assert_eq!(ask(&mut pair, &mut device, &with(6, 0), 1), Some(RejectStatus::Hsqsize));
    assert_eq!(ask(&mut pair, &mut device, &request.to_bytes(), 0), Some(RejectStatus::Ird));
    assert_eq!(ask(&mut pair, &mut device, &request.to_bytes(), 1), None);
    assert_eq!(pair.target.port.counts().refused, 5);
    pair.end();
}

#[test]
fn a_host_says_why_it_was_refused() {
    let other = RejectStatus::Other(0x77);
    let statuses = RejectStatus::ALL.iter().copied().chain([other]).map(Some);
    // Of a program that writes nothing, zeroes come, or nothing.
    for status in statuses.chain([None]) {
        let network = Network::new(NetworkConfig::default());
        let mut device = network.add_device();
        device.listen(address()).unwrap();
        let mut host = Host::new(network.add_device());
        let now = Instant::now();
        host.connect(1, now).unwrap();
        while host.failures.is_empty() {
            let stepped = network.step();
            host.poll(now);
            if let Some(Event::Request { connection, .. }) = device.next_event() {
                let data = status.map(RejectData::new);
                device.reject(connection, data.as_ref().map_or(&[], |data| data.as_bytes()));
                device.destroy(connection);
            } else {
                assert!(stepped || !host.failures.is_empty(), "it stands still");
            }
        }
        let error = status.map_or(ConnectError::Unexplained, ConnectError::Rejected);
        assert_eq!(host.failures, [error]);
        assert_eq!(host.port.connections(), 0);
    }
}

#[test]
fn stale_connections_and_missing_listeners() {
    let faults = Faults { stale: 1, ..Faults::default() };
    let mut pair = Pair::new(NetworkConfig { faults, ..NetworkConfig::default() }, port_config());
    let now = pair.now();
    pair.host.connect(1, now).unwrap();
    pair.settle(Duration::from_secs(1));
    assert_eq!(pair.host.failures, [ConnectError::Stale]);
    assert!(pair.host.failures[0].is_transient());
    pair.network.stop_faults();
    assert_eq!(pair.connect(&[1]).len(), 1, "the next attempt succeeds");
    pair.end();

    let network = Network::new(NetworkConfig::default());
    let mut host = Host::new(network.add_device());
    host.connect(1, now).unwrap();
    for _ in 0..10 {
        network.step();
        host.poll(now);
    }
    assert!(matches!(host.failures[..], [ConnectError::Manager(8)]), "{:?}", host.failures);
}

#[test]
fn a_target_that_does_not_answer_costs_a_host_3_s() {
    let network = Network::new(NetworkConfig::default());
    let mut silent = network.add_device();
    silent.listen(address()).unwrap();
    let mut host = Host::new(network.add_device());
    let start = Instant::now();
    host.connect(1, start).unwrap();
    for seconds in 0..4 {
        while network.step() {}
        let now = start + Duration::from_secs(seconds);
        host.poll(now);
        host.port.check_deadlines(now);
        host.poll(now);
        assert_eq!(host.failures.len(), usize::from(seconds >= 3), "after {seconds} s");
    }
    assert_eq!(host.failures, [ConnectError::TimedOut("connecting")]);
}

#[test]
fn a_storm_of_requests_takes_what_is_allowed_and_no_more() {
    let mut port = port_config();
    port.connections = 4;
    let mut pair = Pair::new(NetworkConfig::default(), port);
    pair.connect(&[1, 2]);
    let now = pair.now();
    for n in 0..200u16 {
        pair.host.connect(1 + n % 8, now).unwrap();
    }
    while pair.host.connecting > 0 {
        pair.host.submit(&mut pair.dice);
        pair.step();
    }
    assert_eq!(pair.host.live.len(), 4);
    let refused = ConnectError::Rejected(RejectStatus::NoResources);
    assert_eq!(pair.host.failures.iter().filter(|&error| *error == refused).count(), 198);
    assert!(pair.host.completed > 0, "the first connections have gone on");
    pair.end();
}

#[test]
fn no_queue_pair_more_than_the_completion_queue_holds() {
    // A queue of 16 entries can have 48 completions.
    let config = NetworkConfig { completions: 100, ..NetworkConfig::default() };
    let mut pair = Pair::new(config, port_config());
    pair.connect(&[1, 2, 3]);
    let refused = ConnectError::Rejected(RejectStatus::NoResources);
    assert_eq!((pair.host.live.len(), &pair.host.failures[..]), (2, &[refused][..]));
    let refusal = Refusal::Completions { needed: 48, free: 4, all: 100 };
    assert_eq!(pair.target.refusals, [refusal]);
    for _ in 0..2000 {
        pair.host.submit(&mut pair.dice);
        pair.step();
    }
    pair.end();
}

/// A queue of 16 entries has 32 requests in the send queue of the target, and 15 in that of the host.
#[test]
fn queue_pairs_that_are_longer_than_a_device_has_them_are_refused() {
    for (work_requests, shared_receives) in [(32, 0), (32, 64), (31, 0), (31, 64), (14, 0)] {
        let config = NetworkConfig { work_requests, ..NetworkConfig::default() };
        let mut pair = Pair::new(config, PortConfig { shared_receives, ..port_config() });
        pair.connect(&[1]);
        match work_requests {
            32 => assert_eq!((pair.host.live.len(), &pair.host.failures[..]), (1, &[][..])),
            31 => {
                let refused = ConnectError::Rejected(RejectStatus::NoResources);
                assert_eq!(pair.host.failures, [refused]);
                let refusal = Refusal::Requests { needed: 32, most: 31 };
                assert_eq!(pair.target.refusals, [refusal]);
            }
            most => {
                let error = ConnectError::Requests { needed: 15, most, entries: 15 };
                assert!(error.to_string().ends_with("use queues of 15 entries at most"), "{error}");
                assert_eq!(pair.host.failures, [error]);
                assert_eq!(pair.target.refusals, []);
            }
        }
        pair.settle(Duration::from_secs(2));
        pair.end();
    }
}

#[test]
fn queues_beyond_the_shared_receives_have_their_own() {
    // Of queues with 16 entries, two take shared receives on RoCE, and none on iWARP.
    let cases = [(Profile::Roce, 0), (Profile::Roce, 40), (Profile::Iwarp, 40)];
    for (profile, shared_receives) in cases {
        let config = NetworkConfig { profile, ..NetworkConfig::default() };
        let port = PortConfig { shared_receives, ..port_config() };
        let mut pair = Pair::new(config, port);
        // Each round begins with other queues, and no receive gets lost.
        for round in 0..20 {
            let queues = pair.connect(&[1, 2, 3, 4]);
            for _ in 0..400 {
                pair.host.submit(&mut pair.dice);
                pair.step();
            }
            assert_eq!(pair.host.live.len(), 4, "round {round}: {:?}", pair.host.losses);
            let now = pair.now();
            queues.into_iter().for_each(|id| pair.host.port.close(id, now));
            pair.settle(Duration::from_secs(3));
            pair.host.losses.clear();
        }
        assert!(pair.host.completed > 1000, "{}", pair.host.completed);
        assert_eq!(pair.network.waits(), 0, "{profile:?}: each message has found a receive");
        pair.end();
    }
}

/// A target answers, and leaves; the host looks when all of that is there.
#[test]
fn responses_that_came_before_the_end_count() {
    for profile in [Profile::Roce, Profile::Iwarp] {
        let config = NetworkConfig { profile, ..NetworkConfig::default() };
        let mut pair = Pair::new(config, port_config());
        pair.connect(&[1]);
        while pair.host.outstanding() < 10 {
            pair.host.submit(&mut pair.dice);
        }
        pair.host.port.post();
        let now = pair.now();
        let alone = |pair: &mut Pair| {
            for _ in 0..1000 {
                pair.network.step();
                pair.target.poll(now);
                pair.target.execute(&mut pair.dice);
            }
        };
        alone(&mut pair);
        assert_eq!(pair.target.executed, 10);
        pair.target.port.close(pair.target.accepted[0], now);
        alone(&mut pair);
        pair.settle(Duration::from_secs(1));
        assert_eq!((pair.host.completed, pair.host.ended), (10, 0), "{profile:?}");
        assert_eq!(pair.host.losses, [Loss::Disconnected]);
        pair.end();
    }
}

#[test]
fn the_simulated_network_notices_who_sends_first() {
    let config = NetworkConfig { profile: Profile::Iwarp, ..NetworkConfig::default() };
    let network = Network::new(config);
    let (mut passive, mut active) = (network.add_device(), network.add_device());
    passive.listen(address()).unwrap();
    let memory = passive.register(DomainId::OWN, 64, Access::LOCAL).unwrap();
    let sink = active.register(DomainId::OWN, 64, Access::LOCAL).unwrap();
    let id = active.resolve(address(), None).unwrap();
    let pair = PairConfig {
        domain: DomainId::OWN,
        sends: 1,
        receives: 1,
        shares_receives: false,
        inline_bytes: 0,
    };
    let mut target: Option<ConnectionId> = None;
    while network.step() {
        match (active.next_event(), passive.next_event()) {
            (Some(Event::Resolved(_)), _) => {
                active.create_pair(id, &pair).unwrap();
                active.post_recv(id, &[RecvWork { id: 0, local: sink.slice(0, 64) }]).unwrap();
                active.connect(id, &[], 1).unwrap();
            }
            (_, Some(Event::Request { connection, .. })) => {
                passive.create_pair(connection, &pair).unwrap();
                let local = memory.slice(0, 64);
                passive.post_recv(connection, &[RecvWork { id: 0, local }]).unwrap();
                passive.accept(connection, &[], 1).unwrap();
                target = Some(connection);
            }
            (Some(Event::Established { .. }), _) => {
                let work = SendWork {
                    id: 0,
                    operation: Operation::Send { invalidate: None },
                    local: memory.slice(0, 16),
                    signalled: true,
                    inline: false,
                };
                passive.post_send(target.unwrap(), &[work]).unwrap();
            }
            _ => {}
        }
    }
    let misuses = network.misuses();
    assert_eq!(misuses, ["the passive side of an iWARP connection has sent first"]);
}

#[test]
fn a_connection_comes_from_an_address_of_its_device() {
    let network = Network::new(NetworkConfig::default());
    let mut device = network.add_device();
    device.set_address([192, 0, 2, 9].into());
    let from = |device: &mut FakeDevice, source: &str| {
        device.resolve(address(), Some(source.parse().unwrap())).map(|_| ())
    };
    let error = from(&mut device, "192.0.2.8:0").unwrap_err().to_string();
    assert!(error.contains("source"), "{error}");
    from(&mut device, "192.0.2.9:0").unwrap();
    assert_eq!(network.sources(), [Some("192.0.2.9:0".parse().unwrap())]);
}

#[test]
fn a_completion_is_not_that_of_the_next_queue_with_the_number() {
    let mut late = 0;
    for seed in 0..8 {
        let config = NetworkConfig { seed, reuses_numbers: true, ..NetworkConfig::default() };
        let mut pair = Pair::new(config, port_config());
        let mut raw = Raw::new(&pair.network);
        let first = raw.connect(&mut pair, 8);
        (0..4).for_each(|n| raw.send(first, command(n).as_bytes()));
        pair.settle(Duration::from_millis(300));
        // Nobody has looked at its completions.
        raw.device.destroy(first);
        let next = raw.connect(&mut pair, 8);
        let done = raw.completions();
        assert!(done.iter().all(|done| done.connection != next), "seed {seed}: {done:?}");
        late += done.len();
        raw.send(next, command(9).as_bytes());
        pair.settle(Duration::from_millis(300));
        let done = raw.completions();
        assert_eq!(done.len(), 2, "a message and its answer");
        assert!(done.iter().all(|done| done.connection == next), "seed {seed}: {done:?}");
        raw.leave(next);
        pair.end();
    }
    assert!(late > 0, "devices take all completions away");
}

#[test]
fn a_message_says_that_the_connection_is_established() {
    let faults = Faults { lost_word: 1, ..Faults::default() };
    let config = NetworkConfig { faults, ..NetworkConfig::default() };
    for shared_receives in [0, 64] {
        let mut pair = Pair::new(config, PortConfig { shared_receives, ..port_config() });
        let mut raw = Raw::new(&pair.network);
        let silent = raw.connect(&mut pair, 8);
        pair.connect(&[1]);
        for _ in 0..100 {
            pair.host.submit(&mut pair.dice);
            pair.step();
        }
        pair.settle(Duration::from_secs(9));
        assert_eq!(pair.target.losses, [], "they have 10 s");
        pair.settle(Duration::from_secs(20));
        // The first one has sent nothing.
        assert_eq!(pair.target.losses, [(pair.target.accepted[0], Loss::Disconnected)]);
        let before = pair.host.completed;
        for _ in 0..100 {
            pair.host.submit(&mut pair.dice);
            pair.step();
        }
        pair.settle(Duration::from_secs(1));
        assert_eq!(pair.host.losses, []);
        assert!(pair.host.completed > before, "the second one goes on");
        raw.leave(silent);
        pair.end();
    }
}
