//! Asymmetric Namespace Access: what a controller reports, tells and refuses (Base 2.0, 8.1).

use std::sync::Arc;

use raceline_proto::controller::{Action, Ana, Namespace, Subsystem, Visibility};
use raceline_proto::nvme::ana::{AnaGroupDescriptor, AnaLogHeader, AnaState};
use raceline_proto::nvme::event::CONFIG_ANA_CHANGE;
use raceline_proto::nvme::feature::fid;
use raceline_proto::nvme::identify::{
    IdentifyController, IdentifyNamespace, IdentifyNamespaceIndependent, cns,
};
use raceline_proto::nvme::log::{GetLogPage, lid};
use raceline_proto::nvme::opcode::admin;
use raceline_proto::nvme::{NamespaceId, Status};
use zerocopy::FromBytes;

use super::support::{Host, OTHER_HOSTNQN, PORT, namespace, nqn, snapshot, subsystem};

const OTHER_PORT: u16 = PORT + 1;

/// A subsystem with ANA whose namespaces have these numbers and groups.
fn reporting(namespaces: &[(u32, u32)], set: impl FnOnce(&mut Ana)) -> Subsystem {
    let namespaces: Vec<Namespace> = namespaces
        .iter()
        .map(|&(nsid, ana_group)| Namespace { ana_group, ..namespace(nsid) })
        .collect();
    let mut ana = Ana::default();
    ana.set_members(&namespaces);
    set(&mut ana);
    let subsystem = Subsystem { namespaces, max_nsid: 32, ana: Some(ana), ..subsystem() };
    subsystem.validated().unwrap()
}

/// The groups of a page: number, state, namespaces; and the header's change count.
fn parse(page: &[u8]) -> (u64, Vec<(u32, u8, Vec<u32>)>) {
    let (header, mut rest) = AnaLogHeader::read_from_prefix(page).unwrap();
    let mut groups = Vec::new();
    for _ in 0..header.groups.get() {
        let (descriptor, after) = AnaGroupDescriptor::read_from_prefix(rest).unwrap();
        let (nsids, after) = after.split_at(4 * descriptor.namespaces.get() as usize);
        let nsids = nsids.chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
        groups.push((descriptor.group.get(), descriptor.state, nsids));
        rest = after;
    }
    assert!(rest.iter().all(|&byte| byte == 0), "nothing follows the last group");
    (header.change_count.get(), groups)
}

fn page(host: &mut Host) -> (u64, Vec<(u32, u8, Vec<u32>)>) {
    parse(&host.log(lid::ANA, 0, 4096, false).ok().data)
}

#[test]
fn a_controller_reports_what_hosts_need() {
    let mut host = Host::ready_with(reporting(&[(1, 7), (2, 2)], |_| {}));
    let data = host.identify(cns::CONTROLLER, 0).ok().data;
    let controller = IdentifyController::read_from_bytes(&data).unwrap();
    assert_eq!(controller.cmic, 0x0b);
    assert_eq!((controller.anatt, controller.anacap), (10, 0x1f));
    assert_eq!((controller.anagrpmax.get(), controller.nanagrpid.get()), (32, 32));
    assert_eq!(controller.mnan.get(), 32);
    assert_eq!(controller.oaes.get() & CONFIG_ANA_CHANGE, CONFIG_ANA_CHANGE);
    let data = host.identify(cns::NAMESPACE, 1).ok().data;
    let first = IdentifyNamespace::read_from_bytes(&data).unwrap();
    assert_eq!(first.anagrpid.get(), 7);
    let data = host.identify(cns::INDEPENDENT_NAMESPACE, 1).ok().data;
    let first = IdentifyNamespaceIndependent::read_from_bytes(&data).unwrap();
    assert_eq!(first.anagrpid.get(), 7);
}

#[test]
fn without_reporting_there_is_no_trace_of_it() {
    let mut host = Host::ready();
    let data = host.identify(cns::CONTROLLER, 0).ok().data;
    let controller = IdentifyController::read_from_bytes(&data).unwrap();
    assert_eq!((controller.cmic, controller.anatt, controller.anacap), (0x03, 0, 0));
    assert_eq!(controller.oaes.get() & CONFIG_ANA_CHANGE, 0);
    assert_eq!(host.log(lid::ANA, 0, 64, false).status, Status::INVALID_LOG_PAGE.dnr());
    let set = host.set_feature(fid::ASYNC_EVENT_CONFIG, CONFIG_ANA_CHANGE);
    assert_eq!(set.status, Status::INVALID_FIELD.dnr());
}

#[test]
fn the_page_has_groups_and_namespaces_in_ascending_order() {
    let set = |ana: &mut Ana| {
        ana.set(PORT, 9, AnaState::NonOptimized);
        ana.set(OTHER_PORT, 2, AnaState::Inaccessible);
        ana.set(PORT, 30, AnaState::PersistentLoss);
    };
    let mut host = Host::ready_with(reporting(&[(1, 9), (3, 2), (4, 9), (5, 3)], set));
    let (_, groups) = page(&mut host);
    assert_eq!(groups, [(2, 1, vec![3]), (3, 1, vec![5]), (9, 2, vec![1, 4])]);
    // RGO: without the namespaces
    let words = GetLogPage { lid: lid::ANA, lsp: 1, len_bytes: 4096, ..GetLogPage::default() };
    let mut sqe = Host::admin(admin::GET_LOG_PAGE, 4096);
    words.write(&mut sqe);
    let data = host.command(&sqe).ok().data;
    let (_, groups) = parse(&data);
    assert_eq!(groups, [(2, 1, vec![]), (3, 1, vec![]), (9, 2, vec![])]);
}

#[test]
fn a_page_read_in_pieces_is_of_one_moment() {
    let mut host = Host::ready_with(reporting(&[(1, 1), (2, 2)], |_| {}));
    let whole = host.log(lid::ANA, 0, 88, false).ok().data;
    let first = host.log(lid::ANA, 0, 16, true).ok().data;
    let lost = |ana: &mut Ana| ana.set(PORT, 2, AnaState::Inaccessible);
    host.controller.handle_snapshot(snapshot(2, reporting(&[(1, 1), (2, 2)], lost)));
    let rest = host.log(lid::ANA, 16, 72, true).ok().data;
    assert_eq!([first, rest].concat(), whole);
    assert_eq!(page(&mut host).1, [(1, 1, vec![1]), (2, 3, vec![2])]);
    let beyond = host.log(lid::ANA, 4096, 16, true).status;
    assert_eq!(beyond, Status::INVALID_FIELD.dnr());
}

#[test]
fn hosts_of_the_port_are_told_of_a_state_and_no_others() {
    let namespaces = [(1, 1), (2, 2)];
    let mut host = Host::ready_with(reporting(&namespaces, |_| {}));
    host.set_feature(fid::ASYNC_EVENT_CONFIG, CONFIG_ANA_CHANGE).ok();
    let event = host.request_event();
    let other = |ana: &mut Ana| ana.set(OTHER_PORT, 1, AnaState::Inaccessible);
    host.controller.handle_snapshot(snapshot(2, reporting(&namespaces, other)));
    assert_eq!(host.actions(), [], "of the other port");
    let own = |ana: &mut Ana| ana.set(PORT, 1, AnaState::Change);
    host.controller.handle_snapshot(snapshot(3, reporting(&namespaces, own)));
    let told = Action::CompleteAer { cid: event, status: Status::SUCCESS, dw0: 0x000c_0302 };
    assert_eq!(host.actions(), [told]);
    // masked until the page is read
    let event = host.request_event();
    let lost = |ana: &mut Ana| ana.set(PORT, 1, AnaState::Inaccessible);
    host.controller.handle_snapshot(snapshot(4, reporting(&namespaces, lost)));
    assert_eq!(host.actions(), []);
    assert_eq!(page(&mut host).1[0], (1, 3, vec![1]));
    assert_eq!(host.actions(), [], "the reading showed it");
    host.controller.handle_snapshot(snapshot(5, reporting(&namespaces, |_| {})));
    let told = Action::CompleteAer { cid: event, status: Status::SUCCESS, dw0: 0x000c_0302 };
    assert_eq!(host.actions(), [told]);
}

#[test]
fn a_move_to_another_group_is_a_change_of_the_namespace_and_of_the_groups() {
    let mut host = Host::ready_with(reporting(&[(1, 1)], |_| {}));
    host.set_feature(fid::ASYNC_EVENT_CONFIG, CONFIG_ANA_CHANGE | 1 << 8).ok();
    host.request_event();
    host.request_event();
    host.controller.handle_snapshot(snapshot(2, reporting(&[(1, 5)], |_| {})));
    let told: Vec<u32> = host
        .actions()
        .into_iter()
        .map(|action| match action {
            Action::CompleteAer { dw0, .. } => dw0,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(told, [0x0004_0002, 0x000c_0302]);
    let changed = host.log(lid::CHANGED_NAMESPACES, 0, 4096, false).ok().data;
    assert_eq!(changed[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn counts_move_with_every_change_and_stay_otherwise() {
    let mut ana = Ana::default();
    let both = [namespace(1), namespace(2)].map(|ns| Namespace { ana_group: ns.nsid.0, ..ns });
    ana.set_members(&both);
    let before = ana.clone();
    ana.set_members(&both);
    ana.set(PORT, 1, AnaState::Optimized);
    assert_eq!(ana, before, "nothing has changed");
    let count = |ana: &Ana| {
        let subsystem =
            Subsystem { namespaces: both.to_vec(), ana: Some(ana.clone()), ..subsystem() };
        page(&mut Host::ready_with(subsystem)).0
    };
    let first = count(&ana);
    ana.set(PORT, 1, AnaState::NonOptimized);
    let second = count(&ana);
    ana.set_members(&both[..1]);
    let third = count(&ana);
    assert!(first < second && second < third, "{first} {second} {third}");
}

#[test]
fn states_that_forbid_commands_forbid_features_of_the_namespace() {
    for (state, refusal) in [
        (AnaState::Optimized, None),
        (AnaState::NonOptimized, None),
        (AnaState::Inaccessible, Some(Status::ANA_INACCESSIBLE)),
        (AnaState::PersistentLoss, Some(Status::ANA_PERSISTENT_LOSS)),
        (AnaState::Change, Some(Status::ANA_TRANSITION)),
    ] {
        let set = |ana: &mut Ana| ana.set(PORT, 1, state);
        let mut host = Host::ready_with(reporting(&[(1, 1), (2, 2)], set));
        let mut get = |nsid: u32, fid: u8| {
            let mut sqe = Host::admin(admin::GET_FEATURES, 0);
            sqe.nsid = nsid.into();
            sqe.cdw10 = u32::from(fid).into();
            host.command(&sqe).status
        };
        assert_eq!(get(1, fid::ERROR_RECOVERY), refusal.unwrap_or_default(), "{state:?}");
        assert_eq!(get(2, fid::ERROR_RECOVERY), Status::SUCCESS, "another group");
        assert_eq!(get(0, fid::ERROR_RECOVERY), Status::SUCCESS);
        assert_eq!(get(u32::MAX, fid::ERROR_RECOVERY), Status::SUCCESS);
        assert_eq!(get(1, fid::ARBITRATION), Status::SUCCESS, "of the controller");
        let identify = host.identify(cns::NAMESPACE, 1).ok().data;
        let used = IdentifyNamespace::read_from_bytes(&identify).unwrap().nuse.get();
        assert_eq!(used == 0, refusal.is_some());
    }
}

#[test]
fn hidden_namespaces_are_in_no_group_of_the_page() {
    let mut subsystem = reporting(&[(1, 1), (2, 2)], |_| {});
    subsystem.namespaces[1].visibility = Visibility::Hosts(Arc::new([nqn(OTHER_HOSTNQN)]));
    assert_eq!(page(&mut Host::ready_with(subsystem)).1, [(1, 1, vec![1])]);
}

#[test]
fn groups_out_of_range_are_refused() {
    for (group, ana) in [(0, true), (33, true), (1, false)] {
        let wrong = Namespace { ana_group: group, ..namespace(1) };
        let subsystem = Subsystem {
            namespaces: vec![wrong],
            max_nsid: 32,
            ana: ana.then(Ana::default),
            ..subsystem()
        };
        let error = subsystem.validated().unwrap_err().to_string();
        assert!(error.contains("the ANA group of namespace 1"), "{error}");
    }
    let refused = reporting(&[(1, 1)], |ana| ana.set(PORT, 1, AnaState::Change));
    let first = refused.namespace(NamespaceId(1)).unwrap();
    assert_eq!(refused.refusal(PORT, first), Some(Status::ANA_TRANSITION));
    assert_eq!(refused.refusal(OTHER_PORT, first), None);
}

#[test]
fn a_host_is_told_that_its_controller_departs() {
    let mut host = Host::ready_with(reporting(&[(1, 1), (2, 2)], |_| {}));
    let before = page(&mut host);
    // Of a host that does not follow ANA, nothing is waited for.
    host.controller.announce_departure();
    assert!(host.actions().is_empty() && host.controller.departure_is_known());
    host.controller.withdraw_departure();
    host.set_feature(fid::ASYNC_EVENT_CONFIG, CONFIG_ANA_CHANGE).ok();
    let event = host.request_event();
    host.controller.announce_departure();
    let told = |cid| [Action::CompleteAer { cid, status: Status::SUCCESS, dw0: 0x000c_0302 }];
    assert_eq!(host.actions(), told(event));
    assert!(!host.controller.departure_is_known());
    let shown = page(&mut host);
    let changing = AnaState::Change.to_wire();
    assert!(shown.1.iter().all(|(_, state, _)| *state == changing), "{shown:?}");
    assert!(shown.0 > before.0 && host.controller.departure_is_known());
    // It stays: the states are those from before.
    let event = host.request_event();
    host.controller.withdraw_departure();
    assert_eq!(host.actions(), told(event));
    assert_eq!(page(&mut host).1, before.1);
    host.controller.withdraw_departure();
    host.request_event();
    assert!(host.actions().is_empty());
}
