//! Levels of security: which hosts may come in which way, what they are shown, and what a change ends.

use std::sync::Arc;

use raceline_proto::controller::{
    AbandonReason, Action, Channel, HostAccess, ListenerInfo, Security, Subsystem, TargetSnapshot,
    find_subsystem,
};
use raceline_proto::nvme::discovery::DiscoveryEntry;
use raceline_proto::nvme::log::lid;
use raceline_proto::nvme::{HostNqn, Nqn, Status};
use zerocopy::FromBytes as _;

use super::support::{
    Connect, HOSTNQN, Host, OTHER_HOSTNQN, SUBNQN, listener, nqn, snapshot, subsystem,
};

const CHANNELS: [Channel; 3] = [Channel::Plain, Channel::Tls, Channel::Concatenated];
const LEVELS: [Security; 4] =
    [Security::PLAIN, Security::AUTHENTICATED, Security::TLS, Security::BOTH];

/// Ports 1 to 4 are of the four levels; 5 makes keys for TLS.
fn target(of_all: Security, of_host: Security) -> TargetSnapshot {
    let port = |port_id, security, concatenates| ListenerInfo {
        security,
        concatenates,
        ..listener(&format!("192.0.2.1:{}", 4420 + port_id), port_id)
    };
    let mut listeners: Vec<ListenerInfo> =
        (1..).zip(LEVELS).map(|(port_id, security)| port(port_id, security, false)).collect();
    listeners.push(port(5, Security::TLS, true));
    let subsystem = Subsystem {
        hosts: HostAccess::List(vec![nqn(HOSTNQN), nqn(OTHER_HOSTNQN)]),
        security: of_all,
        host_security: vec![(nqn(HOSTNQN), of_host)],
        ..subsystem()
    };
    TargetSnapshot { listeners, ..TargetSnapshot::clone(&snapshot(1, subsystem)) }
}

#[test]
fn who_has_to_come_over_tls_comes_by_no_other_way() {
    for of_all in LEVELS {
        for of_host in LEVELS {
            let snapshot = target(of_all, of_host);
            for (name, own) in [(HOSTNQN, of_host), (OTHER_HOSTNQN, Security::PLAIN)] {
                for (port_id, of_port) in (1..).zip(LEVELS) {
                    let host = HostNqn::Named(nqn(name));
                    let subsystem = snapshot.subsystem(&nqn(SUBNQN)).map(|it| &**it);
                    let demands = snapshot.demands(port_id, subsystem, &host);
                    assert_eq!(demands, of_all.or(own).or(of_port));
                    for channel in CHANNELS {
                        for mut connect in [Connect::admin(SUBNQN), Connect::io(1)] {
                            connect.data.hostnqn = nqn(name).to_field();
                            let request = connect.parse().unwrap();
                            let found = find_subsystem(&snapshot, &request, (port_id, channel));
                            let may = !demands.tls || channel != Channel::Plain;
                            assert_eq!(found.is_ok(), may, "{demands} {channel:?}");
                            if let Err(error) = found {
                                assert_eq!(error.status, Status::CONNECT_INVALID_HOST.dnr());
                                assert_eq!((error.ipo, error.in_data), (512, true));
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Where keys for TLS are made, an admin queue may come without TLS, and only for that.
#[test]
fn an_admin_queue_may_come_in_the_clear_to_make_a_key() {
    let snapshot = target(Security::BOTH, Security::PLAIN);
    let discovery = Connect::admin(Nqn::discovery().as_str());
    for (connect, may) in
        [(Connect::admin(SUBNQN), true), (discovery, true), (Connect::io(1), false)]
    {
        let request = connect.parse().unwrap();
        let found = find_subsystem(&snapshot, &request, (5, Channel::Plain));
        assert_eq!(found.is_ok(), may);
        assert!(find_subsystem(&snapshot, &request, (5, Channel::Concatenated)).is_ok());
    }
    assert!(snapshot.must_concatenate(5, Channel::Plain));
    assert!(CHANNELS[1..].iter().all(|channel| !snapshot.must_concatenate(5, *channel)));
    assert!((1..=4).all(|port_id| !snapshot.must_concatenate(port_id, Channel::Plain)));
}

/// What the host reads by a discovery controller: TRSVCID, TREQ and SECTYPE of each entry.
fn log(snapshot: TargetSnapshot) -> Vec<(String, u8, u8)> {
    let mut host = Host::discovery(&Arc::new(snapshot), 0, "192.0.2.1:8009");
    let page = host.log(lid::DISCOVERY, 0, 16384, true).ok().data;
    let count = usize::from(page[8]);
    let entries = page[1024..].chunks_exact(1024).take(count);
    let entry = |bytes| DiscoveryEntry::read_from_bytes(bytes).unwrap();
    entries
        .map(entry)
        .map(|entry| (entry.address().unwrap().1.to_owned(), entry.treq & 3, entry.tsas[0]))
        .collect()
}

#[test]
fn the_discovery_log_leaves_out_what_a_host_cannot_use() {
    let row = |port: u16, treq, sectype| (port.to_string(), treq, sectype);
    let secure = [row(4423, 1, 2), row(4424, 1, 2), row(4425, 2, 2)];
    let plain = [row(4421, 2, 0), row(4422, 2, 0)];
    let all = [plain, [secure[0].clone(), secure[1].clone()]].concat();
    let all = [all, vec![secure[2].clone()]].concat();
    for (of_all, of_host, shown) in [
        (Security::PLAIN, Security::PLAIN, &all[..]),
        (Security::AUTHENTICATED, Security::AUTHENTICATED, &all[..]),
        (Security::PLAIN, Security::TLS, &secure[..]),
        (Security::BOTH, Security::PLAIN, &secure[..]),
    ] {
        // The discovery controller itself is reached by port 1, without TLS.
        assert_eq!(log(target(of_all, of_host)), shown, "{of_all} {of_host}");
    }
}

#[test]
fn a_level_that_rises_ends_the_controllers_below_it() {
    for (of_all, of_host, ends) in [
        (Security::PLAIN, Security::PLAIN, false),
        (Security::TLS, Security::PLAIN, true),
        (Security::PLAIN, Security::AUTHENTICATED, true),
    ] {
        let mut host = Host::ready();
        let subsystem = Subsystem {
            security: of_all,
            host_security: vec![(nqn(HOSTNQN), of_host)],
            ..subsystem()
        };
        host.controller.handle_snapshot(snapshot(2, subsystem));
        let reason = AbandonReason::TooLittleSecurity;
        let expected = ends.then_some(Action::Abandon { reason });
        assert_eq!(host.controller.poll_action(), expected);
    }
}
