//! Reservations at a controller: Identify, features, the notification log and its event.

use std::sync::Arc;

use raceline_proto::controller::{Action, AdminOutcome, Pool, Subsystem};
use raceline_proto::nvme::event::AsyncEvent;
use raceline_proto::nvme::feature::fid;
use raceline_proto::nvme::identify::cns;
use raceline_proto::nvme::log::lid;
use raceline_proto::nvme::opcode::{admin, io};
use raceline_proto::nvme::reservation::{NoticeKind, ReservationType};
use raceline_proto::nvme::{HostId, HostNqn, NamespaceId, Sqe, Status};
use raceline_proto::reservation::{
    Held, Registrant, ReservationCommand, Reservations, ReservingHost,
};

use super::support::{HOSTID, HOSTNQN, Host, OTHER_HOSTNQN, nqn, subsystem};

fn reservable(state: Reservations) -> Subsystem {
    let state = Reservations { can_persist: true, ..state };
    Subsystem { reservations: Some([(1, Arc::new(state))].into()), ..subsystem() }
}

fn ready() -> Host {
    Host::ready_with(reservable(Reservations::default()))
}

/// Get Features, or with a value Set Features, of a namespace.
fn feature(
    host: &mut Host,
    fid: u8,
    nsid: u32,
    value: Option<u32>,
) -> Result<AdminOutcome, Status> {
    let opcode = if value.is_some() { admin::SET_FEATURES } else { admin::GET_FEATURES };
    let sqe = Sqe {
        nsid: nsid.into(),
        cdw10: u32::from(fid).into(),
        cdw11: value.unwrap_or(0).into(),
        ..Host::admin(opcode, 0)
    };
    host.submit(&sqe)
}

fn done(dw0: u32) -> Result<AdminOutcome, Status> {
    Ok(AdminOutcome::success(dw0))
}

fn failed(status: Status) -> Result<AdminOutcome, Status> {
    Ok(AdminOutcome::status(status.dnr()))
}

#[test]
fn identify_says_what_can_be_reserved() {
    let mut host = ready();
    let page = host.identify(cns::CONTROLLER, 0).ok().data;
    assert_eq!(page[520] & 1 << 5, 1 << 5, "ONCS bit 5");
    for (nsid, rescap) in [(1, 0xff), (2, 0xfe)] {
        assert_eq!(host.identify(cns::NAMESPACE, nsid).ok().data[31], rescap, "only 1 persists");
        assert_eq!(host.identify(cns::INDEPENDENT_NAMESPACE, nsid).ok().data[2], rescap);
    }
    let effects = host.log(lid::EFFECTS, 0, 4096, false).ok().data;
    for opcode in [
        io::RESERVATION_REGISTER,
        io::RESERVATION_REPORT,
        io::RESERVATION_ACQUIRE,
        io::RESERVATION_RELEASE,
    ] {
        assert_eq!(effects[1024 + usize::from(opcode) * 4], 1, "{opcode:#x}");
    }
    // A subsystem that shares its controller numbers with another target has none of it.
    let mut host = Host::ready();
    assert_eq!(host.identify(cns::CONTROLLER, 0).ok().data[520] & 1 << 5, 0);
    assert_eq!(host.identify(cns::NAMESPACE, 1).ok().data[31], 0);
    let status = host.log(lid::RESERVATION_NOTIFICATION, 0, 64, false).status;
    assert_eq!(status, Status::INVALID_LOG_PAGE.dnr());
}

#[test]
fn the_mask_is_that_of_a_namespace() {
    let mut host = ready();
    let mask = fid::RESERVATION_NOTIFICATION_MASK;
    assert_eq!(feature(&mut host, mask, 1, None), done(0));
    assert_eq!(feature(&mut host, mask, 1, Some(0b0110)), done(0));
    assert_eq!(feature(&mut host, mask, 1, None), done(0b0110));
    assert_eq!(feature(&mut host, mask, 2, None), done(0));
    assert_eq!(feature(&mut host, mask, u32::MAX, Some(0b1110)), done(0));
    assert_eq!(feature(&mut host, mask, 2, None), done(0b1110));
    for (nsid, value, status) in [
        (1, 1, Status::INVALID_FIELD),
        (1, 0b1_0000, Status::INVALID_FIELD),
        (3, 0, Status::INVALID_NAMESPACE),
        (0, 0, Status::INVALID_NAMESPACE),
    ] {
        assert_eq!(feature(&mut host, mask, nsid, Some(value)), failed(status), "{nsid} {value}");
    }
    assert_eq!(feature(&mut host, mask, u32::MAX, None), failed(Status::INVALID_NAMESPACE));
    for fid in [mask, fid::RESERVATION_PERSISTENCE] {
        let sqe =
            Sqe { cdw10: (u32::from(fid) | 3 << 8).into(), ..Host::admin(admin::GET_FEATURES, 0) };
        assert_eq!(host.submit(&sqe), done(0b110), "changeable, and of a namespace");
    }
}

#[test]
fn persistence_is_for_the_driver_to_keep() {
    let mut host =
        Host::ready_with(reservable(Reservations { persists: true, ..Reservations::default() }));
    let fid = fid::RESERVATION_PERSISTENCE;
    assert_eq!(
        (feature(&mut host, fid, 1, None), feature(&mut host, fid, 2, None)),
        (done(1), done(0))
    );
    for on in [false, true] {
        let command = ReservationCommand::Persist(on);
        let expected = AdminOutcome::Reserve { nsid: NamespaceId(1), command };
        assert_eq!(feature(&mut host, fid, 1, Some(on.into())), Ok(expected));
    }
    assert_eq!(feature(&mut host, fid, 1, Some(2)), failed(Status::INVALID_FIELD));
    assert_eq!(feature(&mut host, fid, u32::MAX, Some(1)), failed(Status::INVALID_NAMESPACE));
}

#[test]
fn notices_come_one_after_the_other() {
    let mut host = ready();
    let cid = host.request_event();
    let page = |host: &mut Host, retain| {
        let page = host.log(lid::RESERVATION_NOTIFICATION, 0, 64, retain).ok().data;
        let count = u64::from_le_bytes(page[..8].try_into().unwrap());
        (count, page[8], page[9], u32::from_le_bytes(page[12..16].try_into().unwrap()))
    };
    assert_eq!(page(&mut host, false), (0, 0, 0, 0), "there is none");
    host.controller.note_reservation(NamespaceId(1), NoticeKind::ReservationReleased);
    let dw0 = AsyncEvent::RESERVATION.to_dw0();
    let told = |cid| vec![Action::CompleteAer { cid, status: Status::SUCCESS, dw0 }];
    assert_eq!(host.actions(), told(cid));
    host.controller.note_reservation(NamespaceId(2), NoticeKind::RegistrationPreempted);
    // a namespace that the host does not see
    host.controller.note_reservation(NamespaceId(3), NoticeKind::RegistrationPreempted);
    let cid = host.request_event();
    assert_eq!(host.actions(), [], "the first has not been read");
    assert_eq!(page(&mut host, true), (1, 2, 1, 1));
    assert_eq!(page(&mut host, false), (1, 2, 1, 1), "RAE keeps it");
    assert_eq!(host.actions(), told(cid), "another one is left");
    assert_eq!(page(&mut host, false), (2, 1, 0, 2));
    assert_eq!(page(&mut host, false), (0, 0, 0, 0));
    let cid = host.request_event();
    assert_eq!(host.actions(), []);
    // What is masked is not even counted.
    let mask = fid::RESERVATION_NOTIFICATION_MASK;
    feature(&mut host, mask, 1, Some(NoticeKind::ReservationPreempted.mask_bit())).unwrap();
    host.controller.note_reservation(NamespaceId(1), NoticeKind::ReservationPreempted);
    assert_eq!((host.actions(), page(&mut host, false)), (vec![], (0, 0, 0, 0)));
    // What is too much leaves a gap.
    for _ in 0..100 {
        host.controller.note_reservation(NamespaceId(1), NoticeKind::RegistrationPreempted);
    }
    assert_eq!(host.actions(), told(cid));
    for count in 3..=66 {
        assert_eq!(page(&mut host, false), (count, 1, u8::try_from(66 - count).unwrap(), 1));
    }
    assert_eq!(page(&mut host, false), (0, 0, 0, 0));
    host.controller.note_reservation(NamespaceId(1), NoticeKind::RegistrationPreempted);
    assert_eq!(page(&mut host, false), (103, 1, 0, 1));
}

#[test]
fn a_reservation_of_another_host_forbids_to_manage_the_namespace() {
    let other = ReservingHost { id: HostId([9; 16]), name: HostNqn::Named(nqn(OTHER_HOSTNQN)) };
    let own = ReservingHost { id: HOSTID, name: HostNqn::Named(nqn(HOSTNQN)) };
    for (holder, forbidden) in [(&other, true), (&own, false)] {
        let registrant = Registrant::host(holder.id, Some(holder.name.clone()), 1);
        let held = Some(Held { kind: ReservationType::WriteExclusive, holder: holder.id });
        let state = Reservations { registrants: vec![registrant], held, ..Reservations::default() };
        let mut subsystem = reservable(state);
        subsystem.namespaces[0].pool_bytes = Some(1 << 20);
        subsystem.pool = Some(Pool {
            total_bytes: 1 << 30,
            free_bytes: 1 << 29,
            block_sizes: vec![512],
            managers: raceline_proto::controller::HostAccess::Any,
        });
        let mut host = Host::ready_with(subsystem);
        let delete = Sqe { cdw10: 1.into(), ..Host::admin(admin::NAMESPACE_MANAGEMENT, 0) };
        for sqe in [Host::admin(admin::FORMAT_NVM, 0), delete] {
            let outcome = host.submit(&Sqe { nsid: 1.into(), ..sqe });
            if forbidden {
                assert_eq!(outcome, failed(Status::RESERVATION_CONFLICT));
            } else {
                assert!(matches!(outcome, Ok(AdminOutcome::Manage(_))), "{outcome:?}");
            }
        }
    }
}
