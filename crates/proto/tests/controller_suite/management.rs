//! Namespace Management, Attachment and Format: what hosts see, and which commands are valid.

use raceline_proto::controller::{
    AdminOutcome, HostAccess, ManagementCommand, Namespace, Pool, Subsystem, Visibility,
};
use raceline_proto::nvme::identify::{
    ControllerList, IdentifyController, IdentifyNamespace, NamespaceList, cns,
};
use raceline_proto::nvme::log::{EffectsLog, lid};
use raceline_proto::nvme::opcode::admin;
use raceline_proto::nvme::{ControllerId, HostNqn, NamespaceId, Sqe, Status};
use zerocopy::{FromBytes, IntoBytes};

use super::support::{CNTLID, Host, OTHER_HOSTNQN, namespace, nqn, subsystem};

const MANAGE: u8 = admin::NAMESPACE_MANAGEMENT;
const ATTACH: u8 = admin::NAMESPACE_ATTACHMENT;
const FORMAT: u8 = admin::FORMAT_NVM;

/// For the host of these tests: 1 is not of the pool, 2 is and visible, 3 is and not visible.
fn pooled() -> Subsystem {
    let carved = |nsid, visibility| Namespace {
        pool_bytes: Some(1 << 20),
        shared: false,
        visibility,
        ..namespace(nsid)
    };
    let other = Visibility::Hosts([nqn(OTHER_HOSTNQN)].into());
    Subsystem {
        namespaces: vec![namespace(1), carved(2, Visibility::All), carved(3, other)],
        pool: Some(Pool {
            total_bytes: 1 << 40,
            free_bytes: 3 << 20,
            block_sizes: vec![512, 4096],
            managers: HostAccess::Any,
        }),
        ..subsystem()
    }
}

fn host() -> Host {
    let mut host = Host::ready_with(pooled());
    let named = |name| HostNqn::Named(nqn(name));
    host.facts.controllers =
        vec![(ControllerId(9), named(OTHER_HOSTNQN)), (CNTLID, named(super::support::HOSTNQN))];
    host
}

fn create_data(change: impl FnOnce(&mut IdentifyNamespace)) -> IdentifyNamespace {
    let mut data =
        IdentifyNamespace { nsze: 100.into(), ncap: 100.into(), ..IdentifyNamespace::default() };
    change(&mut data);
    data
}

fn command(opcode: u8, nsid: u32, cdw10: u32, len: u32) -> Sqe {
    Sqe { nsid: nsid.into(), cdw10: cdw10.into(), ..Host::admin(opcode, len) }
}

fn manage(sqe: &Sqe, data: &[u8]) -> Result<ManagementCommand, Status> {
    match host().submit_with(sqe, data)?.0 {
        AdminOutcome::Manage(command) => Ok(*command),
        AdminOutcome::Complete { status, .. } => Err(status),
        other => panic!("{other:?}"),
    }
}

fn create(change: impl FnOnce(&mut IdentifyNamespace)) -> Result<ManagementCommand, Status> {
    manage(&command(MANAGE, 0, 0, 4096), create_data(change).as_bytes())
}

fn controllers(ids: &[u16]) -> ControllerList {
    let mut list =
        ControllerList { count: u16::try_from(ids.len()).unwrap().into(), ..Default::default() };
    for (place, &id) in list.ids.iter_mut().zip(ids) {
        *place = id.into();
    }
    list
}

#[test]
fn without_a_pool_there_is_nothing_to_manage() {
    let mut host = Host::ready();
    for opcode in [MANAGE, ATTACH, FORMAT] {
        assert_eq!(host.submit(&Host::admin(opcode, 0)), Err(Status::INVALID_OPCODE.dnr()));
    }
    let data = host.identify(cns::CONTROLLER, 0).ok().data;
    let controller = IdentifyController::read_from_bytes(&data).unwrap();
    assert_eq!((controller.oacs.get(), controller.tnvmcap.get()), (0, 0));
    for cns in [0x10, 0x11, 0x12, 0x13, 0x1a, 0x1b] {
        assert_eq!(host.identify(cns, 1).status, Status::INVALID_FIELD.dnr(), "CNS {cns:x}h");
    }
    assert_eq!(host.identify(cns::NAMESPACE, u32::MAX).status, Status::INVALID_NAMESPACE.dnr());
}

#[test]
fn a_host_that_is_no_manager_sees_no_pool() {
    let mut subsystem = pooled();
    subsystem.pool.as_mut().unwrap().managers = HostAccess::List(vec![nqn(OTHER_HOSTNQN)]);
    let mut host = Host::ready_with(subsystem);
    assert_eq!(host.submit(&Host::admin(FORMAT, 0)), Err(Status::INVALID_OPCODE.dnr()));
    let data = host.identify(cns::CONTROLLER, 0).ok().data;
    assert_eq!(IdentifyController::read_from_bytes(&data).unwrap().oacs.get(), 0);
    assert_eq!(host.identify(cns::ALLOCATED_NAMESPACES, 0).status, Status::INVALID_FIELD.dnr());
}

#[test]
fn identify_tells_of_the_pool() {
    let mut host = host();
    let data = host.identify(cns::CONTROLLER, 0).ok().data;
    let controller = IdentifyController::read_from_bytes(&data).unwrap();
    assert_eq!(controller.oacs.get(), 0b1010, "Format NVM, Namespace Management");
    assert_eq!(controller.tnvmcap.get(), 1 << 40);
    assert_eq!(controller.unvmcap.get(), 3 << 20);

    let data = host.identify(cns::NAMESPACE, u32::MAX).ok().data;
    let common = IdentifyNamespace::read_from_bytes(&data).unwrap();
    assert_eq!((common.nlbaf, common.lbaf[0].lbads, common.lbaf[1].lbads), (1, 9, 12));
    assert_eq!((common.nsze.get(), common.nmic), (0, 1));

    let lists = [
        (cns::ACTIVE_NAMESPACES, [1, 2, 0]),
        (cns::ALLOCATED_NAMESPACES, [1, 2, 3]),
        (cns::COMMAND_SET_ALLOCATED_NAMESPACES, [1, 2, 3]),
    ];
    for (cns, expected) in lists {
        let data = host.identify(cns, 0).ok().data;
        let list = NamespaceList::read_from_bytes(&data).unwrap();
        assert_eq!(list.nsids.map(|nsid| nsid.get())[..3], expected, "CNS {cns:x}h");
    }
    let data = host.identify(cns::NAMESPACE, 3).ok().data;
    assert!(data.iter().all(|&b| b == 0), "not attached");
    let data = host.identify(cns::ALLOCATED_NAMESPACE, 3).ok().data;
    let carved = IdentifyNamespace::read_from_bytes(&data).unwrap();
    assert_eq!((carved.nsze.get(), carved.nvmcap.get(), carved.nmic), (2048, 1 << 20, 0));
    assert_eq!((carved.nlbaf, carved.flbas), (1, 0));
    let data = host.identify(cns::COMMAND_SET_ALLOCATED_NAMESPACE, 3).ok().data;
    assert!(data.iter().all(|&b| b == 0), "no field of it applies");
    for cns in [cns::COMMAND_SET_ALLOCATED_NAMESPACES, cns::COMMAND_SET_ALLOCATED_NAMESPACE] {
        let mut zoned = command(admin::IDENTIFY, 1, cns.into(), 4096);
        zoned.cdw11 = (2 << 24).into();
        assert_eq!(host.command(&zoned).status, Status::INVALID_FIELD.dnr(), "CNS {cns:x}h");
    }

    let list = |host: &mut Host, cns: u8, nsid: u32, from: u32| {
        let sqe = command(admin::IDENTIFY, nsid, u32::from(cns) | from << 16, 4096);
        let list = ControllerList::read_from_bytes(&host.command(&sqe).ok().data).unwrap();
        list.ids[..usize::from(list.count.get())].iter().map(|id| id.get()).collect::<Vec<_>>()
    };
    assert_eq!(list(&mut host, cns::CONTROLLERS, 0, 0), [7, 9]);
    assert_eq!(list(&mut host, cns::CONTROLLERS, 0, 8), [9]);
    assert_eq!(list(&mut host, cns::NAMESPACE_CONTROLLERS, 2, 0), [7, 9]);
    assert_eq!(list(&mut host, cns::NAMESPACE_CONTROLLERS, 3, 0), [9]);
}

#[test]
fn the_effects_log_says_which_commands_change_namespaces() {
    let effects = |host: &mut Host| {
        let data = host.log(lid::EFFECTS, 0, 4096, false).ok().data;
        let log = EffectsLog::read_from_bytes(&data).unwrap();
        [MANAGE, ATTACH, FORMAT].map(|opcode| log.acs[usize::from(opcode)].get())
    };
    assert_eq!(effects(&mut host()), [0b1001, 0b1001, 0b0111]);
    assert_eq!(effects(&mut Host::ready()), [0, 0, 0]);
}

#[test]
fn create_says_size_format_and_whether_shared() {
    assert_eq!(
        create(|_| {}),
        Ok(ManagementCommand::Create { block_count: 100, block_size: 512, shared: false })
    );
    assert_eq!(
        create(|data| (data.flbas, data.nmic) = (1, 1)),
        Ok(ManagementCommand::Create { block_count: 100, block_size: 4096, shared: true })
    );
    type Change = fn(&mut IdentifyNamespace);
    let wrong: [(Change, Status); 11] = [
        (|data| (data.nsze, data.ncap) = (0.into(), 0.into()), Status::INVALID_FIELD),
        (|data| data.ncap = 101.into(), Status::INVALID_FIELD),
        (|data| data.ncap = 99.into(), Status::THIN_PROVISIONING_NOT_SUPPORTED),
        (|data| data.flbas = 2, Status::INVALID_FORMAT),
        (|data| data.flbas = 0x10, Status::INVALID_FORMAT),
        (|data| data.flbas = 0x20, Status::INVALID_FORMAT),
        (|data| data.dps = 1, Status::INVALID_FIELD),
        (|data| data.nmic = 2, Status::INVALID_FIELD),
        (|data| data.anagrpid = 1.into(), Status::INVALID_FIELD),
        (|data| data.nvmsetid = 1.into(), Status::INVALID_FIELD),
        (|data| data.endgid = 1.into(), Status::INVALID_FIELD),
    ];
    for (number, (change, status)) in wrong.into_iter().enumerate() {
        assert_eq!(create(change), Err(status.dnr()), "case {number}");
    }
    let short = command(MANAGE, 0, 0, 512);
    assert_eq!(manage(&short, &[]), Err(Status::DATA_SGL_LENGTH_INVALID.dnr()));
    let zoned = Sqe { cdw11: (2 << 24).into(), ..command(MANAGE, 0, 0, 4096) };
    assert_eq!(manage(&zoned, create_data(|_| {}).as_bytes()), Err(Status::INVALID_FIELD.dnr()));
    assert_eq!(manage(&command(MANAGE, 0, 2, 4096), &[]), Err(Status::INVALID_FIELD.dnr()));
}

#[test]
fn only_namespaces_of_the_pool_can_be_deleted_attached_and_formatted() {
    let delete = |nsid| manage(&command(MANAGE, nsid, 1, 0), &[]);
    assert_eq!(delete(2), Ok(ManagementCommand::Delete { nsid: NamespaceId(2) }));
    assert_eq!(delete(3), Ok(ManagementCommand::Delete { nsid: NamespaceId(3) }));
    let all = NamespaceId::BROADCAST;
    assert_eq!(delete(all.0), Ok(ManagementCommand::Delete { nsid: all }));
    assert_eq!(delete(1), Err(Status::INVALID_FIELD.dnr()));
    assert_eq!(delete(4), Err(Status::INVALID_NAMESPACE.dnr()));
    assert_eq!(delete(0), Err(Status::INVALID_NAMESPACE.dnr()));

    let attach = |nsid, select, ids: &[u16]| {
        manage(&command(ATTACH, nsid, select, 4096), controllers(ids).as_bytes())
    };
    let ids = vec![ControllerId(7), ControllerId(9)];
    let nsid = NamespaceId(3);
    let expected = ManagementCommand::Attach { nsid, controllers: ids.clone() };
    assert_eq!(attach(3, 0, &[7, 9]), Ok(expected));
    let expected = ManagementCommand::Detach { nsid, controllers: ids };
    assert_eq!(attach(3, 1, &[7, 9]), Ok(expected));
    for ids in [&[][..], &[9, 7], &[7, 7]] {
        assert_eq!(attach(3, 0, ids), Err(Status::CONTROLLER_LIST_INVALID.dnr()), "{ids:?}");
    }
    assert_eq!(attach(1, 0, &[7]), Err(Status::INVALID_FIELD.dnr()));
    assert_eq!(attach(all.0, 0, &[7]), Err(Status::INVALID_NAMESPACE.dnr()));
    let mut overlong = controllers(&[7]);
    overlong.count = u16::MAX.into();
    let answer = manage(&command(ATTACH, 3, 0, 4096), overlong.as_bytes());
    assert_eq!(answer, Err(Status::CONTROLLER_LIST_INVALID.dnr()));
}

#[test]
fn format_takes_a_block_size_and_no_cryptographic_erase() {
    let format = |nsid, word| manage(&command(FORMAT, nsid, word, 0), &[]);
    let expected =
        |nsid, block_size| Ok(ManagementCommand::Format { nsid: NamespaceId(nsid), block_size });
    assert_eq!(format(2, 0), expected(2, 512));
    assert_eq!(format(2, 1 | 1 << 9), expected(2, 4096));
    assert_eq!(format(u32::MAX, 1), expected(u32::MAX, 4096));
    for (word, status) in [
        (2, Status::INVALID_FORMAT),
        (1 | 1 << 12, Status::INVALID_FORMAT),
        (1 << 5, Status::INVALID_FIELD),
        (2 << 9, Status::INVALID_FIELD),
    ] {
        assert_eq!(format(2, word), Err(status.dnr()), "{word:x}h");
    }
    assert_eq!(format(1, 0), Err(Status::INVALID_FIELD.dnr()));
}
