//! Namespaces that hosts make of a pool: created, attached, formatted, deleted; kept; refused.
#![allow(clippy::unwrap_used)] // a test

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use raceline_bdev::{InjectBdev, InjectControl, Injected, Injection, OpKind, SharedBdev};
use raceline_proto::nvme::identify::{ControllerList, IdentifyNamespace, cns};
use raceline_proto::nvme::opcode::{admin, io};
use raceline_proto::nvme::{
    ControllerId, Direction, HostNqn, NamespaceId, Nqn, QueueId, Sqe, Status,
};
use raceline_target::{
    HostAccess, ManagementCommand, PoolConfig, PoolMap, PoolStore, Target, TargetError,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::common::{
    RawHost, Wants, block_sqe, config, eventually, host_nqn, nqn, pattern, ram, start, status,
    subsystem,
};

const MIB: u64 = 1 << 20;
const CC: u32 = 0x14;
const ENABLED: u64 = 0x0046_0001;

/// A store that a test can inspect and make fail.
#[derive(Default)]
struct Shelf {
    saved: Mutex<Option<PoolMap>>,
    broken: AtomicBool,
}

impl Shelf {
    fn map(&self) -> PoolMap {
        self.saved.lock().unwrap().clone().expect("something was saved")
    }
}

impl PoolStore for Shelf {
    fn save(&self, subsystem: &Nqn, map: &PoolMap) -> std::io::Result<()> {
        assert_eq!(*subsystem, nqn());
        if self.broken.load(Ordering::Relaxed) {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        *self.saved.lock().unwrap() = Some(map.clone());
        Ok(())
    }
}

fn pool(bdev: &SharedBdev, map: PoolMap, shelf: &Arc<Shelf>) -> PoolConfig {
    let store: Arc<dyn PoolStore> = shelf.clone();
    PoolConfig { bdev: Arc::clone(bdev), map, store, managers: HostAccess::Any }
}

/// A target whose subsystem has a pool over that device and no namespace.
fn start_pool(bdev: &SharedBdev) -> (Target, SocketAddr, Arc<Shelf>) {
    let (target, address) = start(config(2), vec![]);
    let shelf = Arc::new(Shelf::default());
    target.set_pool(&nqn(), pool(bdev, PoolMap::new(MIB), &shelf)).unwrap();
    (target, address, shelf)
}

// ----------------------------------------------------------------------- what nvme-cli would send

fn create(admin: &mut RawHost, bytes: u64, format: u8, shared: bool) -> Result<u32, Status> {
    let block_size = [512, 4096][usize::from(format)];
    let wanted = IdentifyNamespace {
        nsze: (bytes / block_size).into(),
        ncap: (bytes / block_size).into(),
        flbas: format,
        nmic: shared.into(),
        ..IdentifyNamespace::default()
    };
    let sqe = Sqe { opc: admin::NAMESPACE_MANAGEMENT, ..Sqe::default() };
    let answer = admin.write_command(sqe, wanted.as_bytes(), true);
    if answer.cqe.status.is_success() { Ok(answer.cqe.dw0) } else { Err(answer.cqe.status) }
}

fn delete(admin: &mut RawHost, nsid: u32) -> Status {
    let sqe = Sqe {
        opc: admin::NAMESPACE_MANAGEMENT,
        nsid: nsid.into(),
        cdw10: 1.into(),
        ..Sqe::default()
    };
    status(&admin.plain_command(sqe))
}

fn attachment(
    admin: &mut RawHost,
    nsid: u32,
    detach: bool,
    controllers: &[ControllerId],
) -> Status {
    let count = u16::try_from(controllers.len()).unwrap().into();
    let mut list = ControllerList { count, ..ControllerList::default() };
    for (place, cntlid) in list.ids.iter_mut().zip(controllers) {
        *place = cntlid.0.into();
    }
    let sqe = Sqe {
        opc: admin::NAMESPACE_ATTACHMENT,
        nsid: nsid.into(),
        cdw10: u32::from(detach).into(),
        ..Sqe::default()
    };
    status(&admin.write_command(sqe, list.as_bytes(), true))
}

fn attach(admin: &mut RawHost, nsid: u32, cntlid: ControllerId) -> Status {
    attachment(admin, nsid, false, &[cntlid])
}

fn format(admin: &mut RawHost, nsid: u32, format: u32) -> Status {
    let sqe =
        Sqe { opc: admin::FORMAT_NVM, nsid: nsid.into(), cdw10: format.into(), ..Sqe::default() };
    status(&admin.plain_command(sqe))
}

fn identify(admin: &mut RawHost, cns: u8, nsid: u32) -> Vec<u8> {
    let sqe = Sqe {
        opc: admin::IDENTIFY,
        nsid: nsid.into(),
        cdw10: u32::from(cns).into(),
        ..Sqe::default()
    };
    let answer = admin.read_command(sqe, 4096);
    assert!(answer.cqe.status.is_success(), "{}", answer.cqe.status);
    answer.data
}

fn nsids(admin: &mut RawHost, cns: u8) -> Vec<u32> {
    let data = identify(admin, cns, 0);
    let words = data.chunks_exact(4);
    let nsids = words.map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    nsids.take_while(|&nsid| nsid != 0).collect()
}

fn free_bytes(admin: &mut RawHost) -> u64 {
    let data = admin.identify_controller();
    u64::from_le_bytes(data[296..304].try_into().unwrap())
}

fn other_host(address: SocketAddr) -> (RawHost, ControllerId) {
    let name = Nqn::new("nqn.2026-01.io.raceline:another-host").unwrap();
    let mut host = RawHost::open(address, Wants::default());
    let cqe = host.connect_as(QueueId::ADMIN, 32, ControllerId::DYNAMIC, &nqn(), &name, 0);
    assert!(cqe.status.is_success(), "{}", cqe.status);
    assert!(host.set_property(CC, ENABLED).status.is_success());
    (host, ControllerId(u16::try_from(cqe.dw0 & 0xffff).unwrap()))
}

// -------------------------------------------------------------------------------------- the tests

#[test]
fn a_host_carves_attaches_uses_detaches_and_deletes() {
    let device = ram("8M");
    let (target, address, shelf) = start_pool(&device);
    let (mut admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    assert_eq!(free_bytes(&mut admin), 8 * MIB);

    assert_eq!(create(&mut admin, MIB + 512, 0, false), Ok(1));
    assert_eq!(create(&mut admin, 2 * MIB, 1, true), Ok(2));
    assert_eq!(free_bytes(&mut admin), 4 * MIB, "units of 1 MiB");
    assert_eq!(nsids(&mut admin, cns::ALLOCATED_NAMESPACES), [1, 2]);
    assert_eq!(nsids(&mut admin, cns::ACTIVE_NAMESPACES), []);
    assert!(status(&queue.read(1, 0, 1, 512)).same_code(Status::INVALID_NAMESPACE));

    assert_eq!(attach(&mut admin, 1, cntlid), Status::SUCCESS);
    assert_eq!(attach(&mut admin, 2, cntlid), Status::SUCCESS);
    assert_eq!(nsids(&mut admin, cns::ACTIVE_NAMESPACES), [1, 2]);
    let data = identify(&mut admin, cns::NAMESPACE, 2);
    let second = IdentifyNamespace::read_from_bytes(&data).unwrap();
    assert_eq!((second.nsze.get(), second.block_size()), (512, Some(4096)));
    assert_eq!(second.nvmcap.get(), u128::from(2 * MIB));

    // The last block of the first and the first of the second are not the same.
    let (first, second) = (pattern(1, 512), pattern(2, 4096));
    assert!(status(&queue.write(1, 2048, &first, 512)).is_success());
    assert!(status(&queue.write(2, 0, &second, 4096)).is_success());
    assert_eq!(queue.read(1, 2048, 1, 512).data, first);
    assert_eq!(queue.read(2, 0, 1, 4096).data, second);
    assert!(status(&queue.read(1, 2049, 1, 512)).same_code(Status::LBA_OUT_OF_RANGE));

    assert_eq!(attachment(&mut admin, 1, true, &[cntlid]), Status::SUCCESS);
    assert!(status(&queue.read(1, 0, 1, 512)).same_code(Status::INVALID_NAMESPACE));
    let again = attachment(&mut admin, 1, true, &[cntlid]);
    assert_eq!(again, Status::NAMESPACE_NOT_ATTACHED.dnr());
    assert_eq!(shelf.map().namespaces.len(), 2);
    assert_eq!(delete(&mut admin, 1), Status::SUCCESS);
    assert_eq!(free_bytes(&mut admin), 6 * MIB);
    assert_eq!(nsids(&mut admin, cns::ALLOCATED_NAMESPACES), [2]);
    assert_eq!(queue.read(2, 0, 1, 4096).data, second, "nobody else notices");

    // The namespace in its place shows nothing of its data.
    assert_eq!(create(&mut admin, MIB + 512, 0, false), Ok(1));
    assert_eq!(attach(&mut admin, 1, cntlid), Status::SUCCESS);
    assert!(queue.read(1, 2048, 1, 512).data.iter().all(|&b| b == 0));
    assert_eq!(delete(&mut admin, u32::MAX), Status::SUCCESS);
    assert_eq!(free_bytes(&mut admin), 8 * MIB);
    assert_eq!(shelf.map(), PoolMap::new(MIB));
    target.shutdown().unwrap();
}

#[test]
fn what_does_not_fit_is_refused_and_large_gaps_stay_large() {
    let device = ram("8M");
    let (target, address, shelf) = start_pool(&device);
    let mut admin = RawHost::admin(address, Wants::default()).0;
    let too_large = Err(Status::NAMESPACE_INSUFFICIENT_CAPACITY.dnr());
    assert_eq!(create(&mut admin, 9 * MIB, 0, false), too_large);
    for (nsid, units) in [(1, 2), (2, 1), (3, 1), (4, 1)] {
        assert_eq!(create(&mut admin, units * MIB, 0, false), Ok(nsid));
    }
    // There are gaps of 2, 1 and 3 MiB; the one of 1 MiB is taken first.
    assert_eq!(delete(&mut admin, 1), Status::SUCCESS);
    assert_eq!(delete(&mut admin, 3), Status::SUCCESS);
    assert_eq!(create(&mut admin, MIB, 0, false), Ok(1));
    assert_eq!(shelf.map().namespaces[0].units, 3..4);
    assert_eq!(create(&mut admin, 4 * MIB, 0, false), too_large);
    assert_eq!(create(&mut admin, 3 * MIB, 0, false), Ok(3));
    assert_eq!(create(&mut admin, 2 * MIB, 0, false), Ok(5));
    assert_eq!(create(&mut admin, 512, 0, false), too_large);
    assert_eq!(free_bytes(&mut admin), 0);

    let absurd = Sqe { opc: admin::NAMESPACE_MANAGEMENT, ..Sqe::default() };
    let wanted = IdentifyNamespace {
        nsze: u64::MAX.into(),
        ncap: u64::MAX.into(),
        ..IdentifyNamespace::default()
    };
    let answer = admin.write_command(absurd, wanted.as_bytes(), true);
    assert_eq!(Err(answer.cqe.status), too_large);
    target.shutdown().unwrap();
}

#[test]
fn a_private_namespace_has_one_host_and_a_shared_one_many() {
    let device = ram("8M");
    let (target, address, _) = start_pool(&device);
    let (mut admin, cntlid) = RawHost::admin(address, Wants::default());
    let (mut second_path, second) = RawHost::admin(address, Wants::default());
    let (mut other, others) = other_host(address);
    assert_eq!(create(&mut admin, MIB, 0, false), Ok(1));
    assert_eq!(create(&mut admin, MIB, 0, true), Ok(2));

    assert_eq!(attach(&mut admin, 1, cntlid), Status::SUCCESS);
    // It belongs to the host: all its controllers see it.
    assert_eq!(nsids(&mut second_path, cns::ACTIVE_NAMESPACES), [1]);
    assert_eq!(attach(&mut admin, 1, second), Status::NAMESPACE_ALREADY_ATTACHED.dnr());
    assert_eq!(attach(&mut admin, 1, others), Status::NAMESPACE_IS_PRIVATE.dnr());
    let unknown = ControllerId(999);
    assert_eq!(attach(&mut admin, 1, unknown), Status::CONTROLLER_LIST_INVALID.dnr());
    assert_eq!(attachment(&mut admin, 2, false, &[cntlid, second, others]), Status::SUCCESS);
    assert_eq!(nsids(&mut other, cns::ACTIVE_NAMESPACES), [2]);
    let attached = identify(&mut admin, cns::NAMESPACE_CONTROLLERS, 2);
    assert_eq!(attached[..2], [3, 0]);
    assert_eq!(delete(&mut other, 1), Status::SUCCESS, "any manager may");
    assert_eq!(nsids(&mut second_path, cns::ACTIVE_NAMESPACES), [2]);
    target.shutdown().unwrap();
}

#[test]
fn the_map_brings_the_same_namespaces_back() {
    let device = ram("8M");
    let (target, address, shelf) = start_pool(&device);
    let (mut admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    assert_eq!(create(&mut admin, MIB, 0, false), Ok(1));
    assert_eq!(create(&mut admin, MIB, 1, false), Ok(2));
    assert_eq!(attach(&mut admin, 2, cntlid), Status::SUCCESS);
    let data = pattern(1, 4096);
    assert!(status(&queue.write(2, 7, &data, 4096)).is_success());
    let identity = |target: &Target| {
        let namespaces = target.subsystem(&nqn()).unwrap().namespaces;
        namespaces.iter().map(|ns| (ns.nsid, ns.uuid, ns.nguid)).collect::<Vec<_>>()
    };
    let before = identity(&target);
    target.shutdown().unwrap();

    let (target, address) = start(config(1), vec![]);
    target.set_pool(&nqn(), pool(&device, shelf.map(), &shelf)).unwrap();
    assert_eq!(identity(&target), before);
    let (mut admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    assert_eq!(nsids(&mut admin, cns::ACTIVE_NAMESPACES), [2]);
    assert_eq!(queue.read(2, 7, 1, 4096).data, data);
    assert_eq!(create(&mut admin, MIB, 0, false), Ok(3));

    let twice = target.set_pool(&nqn(), pool(&device, shelf.map(), &shelf));
    assert!(matches!(twice, Err(TargetError::PoolExists(_))), "{twice:?}");
    target.remove_pool(&nqn()).unwrap();
    assert!(target.subsystem(&nqn()).unwrap().namespaces.is_empty());
    assert!(status(&queue.read(2, 7, 1, 4096)).same_code(Status::INVALID_NAMESPACE));
    let mut broken = shelf.map();
    broken.namespaces[1].units = 7..9;
    let refused = target.set_pool(&nqn(), pool(&device, broken, &shelf));
    assert!(matches!(refused, Err(TargetError::PoolMap { .. })), "{refused:?}");
    assert!(target.pool(&nqn()).unwrap().is_none());
    target.shutdown().unwrap();
}

#[test]
fn a_change_that_cannot_be_saved_is_not_made() {
    let device = ram("8M");
    let (target, address, shelf) = start_pool(&device);
    let (mut admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    assert_eq!(create(&mut admin, MIB, 0, false), Ok(1));
    shelf.broken.store(true, Ordering::Relaxed);
    assert_eq!(create(&mut admin, MIB, 0, false), Err(Status::INTERNAL));
    assert_eq!(attach(&mut admin, 1, cntlid), Status::INTERNAL);
    assert_eq!(delete(&mut admin, 1), Status::INTERNAL);
    assert_eq!(format(&mut admin, 1, 1), Status::INTERNAL);
    assert_eq!(nsids(&mut admin, cns::ALLOCATED_NAMESPACES), [1]);
    assert_eq!(nsids(&mut admin, cns::ACTIVE_NAMESPACES), []);
    assert_eq!(free_bytes(&mut admin), 7 * MIB);

    shelf.broken.store(false, Ordering::Relaxed);
    assert_eq!(attach(&mut admin, 1, cntlid), Status::SUCCESS);
    assert!(status(&queue.read(1, 2047, 1, 512)).is_success(), "still of 512-byte blocks");
    assert_eq!(create(&mut admin, 7 * MIB, 0, false), Ok(2), "nothing is lost");
    target.shutdown().unwrap();
}

#[test]
fn format_zeroes_and_may_change_the_block_size() {
    let device = ram("8M");
    let (target, address, shelf) = start_pool(&device);
    let (mut admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    for nsid in 1..=2 {
        assert_eq!(create(&mut admin, MIB, 0, false), Ok(nsid));
        assert_eq!(attach(&mut admin, nsid, cntlid), Status::SUCCESS);
        assert!(status(&queue.write(nsid, 8, &pattern(1, 4096), 512)).is_success());
    }
    let uuid = target.subsystem(&nqn()).unwrap().namespaces[0].uuid;
    assert_eq!(format(&mut admin, 1, 1), Status::SUCCESS);
    let answer = queue.read(1, 1, 1, 4096);
    assert!(status(&answer).is_success() && answer.data.iter().all(|&b| b == 0));
    assert_eq!(queue.read(2, 8, 8, 512).data, pattern(1, 4096), "the other one is as it was");
    let info = target.subsystem(&nqn()).unwrap();
    assert_eq!((info.namespaces[0].block_size, info.namespaces[0].block_count), (4096, 256));
    assert_eq!(info.namespaces[0].uuid, uuid);
    assert_eq!(shelf.map().namespaces[0].block_size, 4096);

    assert_eq!(format(&mut admin, u32::MAX, 0), Status::SUCCESS);
    for nsid in 1..=2 {
        assert!(queue.read(nsid, 8, 8, 512).data.iter().all(|&b| b == 0));
    }
    target.shutdown().unwrap();
}

/// Orders that the device holds the next request that zeroes blocks.
fn hold_zeroes(orders: &InjectControl) {
    orders.inject(OpKind::WriteZeroes, Injection { what: Injected::Held, count: 1, depth: 0 });
}

#[test]
fn while_a_namespace_is_formatted_its_commands_say_so_and_others_go_on() {
    let (device, orders) = InjectBdev::new(ram("8M"));
    let device: SharedBdev = Arc::new(device);
    let (target, address, _) = start_pool(&device);
    let (mut admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    for nsid in 1..=2 {
        assert_eq!(create(&mut admin, MIB, 0, false), Ok(nsid));
        assert_eq!(attach(&mut admin, nsid, cntlid), Status::SUCCESS);
    }
    hold_zeroes(&orders);
    let sqe = Sqe { opc: admin::FORMAT_NVM, nsid: 1.into(), ..Sqe::default() };
    let formatting = admin.submit(sqe, Direction::None, 0);
    eventually("the format has begun", || {
        status(&queue.read(1, 0, 1, 512)).same_code(Status::FORMAT_IN_PROGRESS)
    });
    let refused = queue.write(1, 0, &pattern(1, 512), 512);
    assert_eq!(status(&refused), Status::FORMAT_IN_PROGRESS, "it may be tried again");
    let zeroes = queue.plain_command(block_sqe(io::WRITE_ZEROES, 1, 0, 1));
    assert_eq!(status(&zeroes), Status::FORMAT_IN_PROGRESS);
    assert!(status(&queue.write(2, 0, &pattern(1, 512), 512)).is_success());
    let busy = target.remove_namespace(&nqn(), NamespaceId(1));
    assert!(matches!(busy, Err(TargetError::PoolBusy(_))), "{busy:?}");
    let busy = target.remove_pool(&nqn());
    assert!(matches!(busy, Err(TargetError::PoolBusy(_))), "{busy:?}");
    // The control plane is not held up.
    target.allow_any_host(&nqn(), true).unwrap();
    orders.resume();
    assert!(status(&admin.wait(formatting, &[])).is_success());
    assert!(status(&queue.read(1, 0, 1, 512)).is_success());
    target.shutdown().unwrap();
}

#[test]
fn a_subsystem_that_goes_during_a_change_takes_it_along() {
    let (device, orders) = InjectBdev::new(ram("8M"));
    let device: SharedBdev = Arc::new(device);
    let (target, _, shelf) = start_pool(&device);
    let target = Arc::new(target);
    let host = HostNqn::Named(host_nqn());
    let run = |command: ManagementCommand| {
        let (target, host) = (Arc::clone(&target), host.clone());
        std::thread::spawn(move || target.manage_namespaces(&nqn(), &host, &command))
    };
    let create = ManagementCommand::Create { block_count: 2048, block_size: 512, shared: false };
    assert_eq!(run(create.clone()).join().unwrap(), Ok(1));
    for command in [ManagementCommand::Format { nsid: NamespaceId(1), block_size: 4096 }, create] {
        let before = shelf.map();
        hold_zeroes(&orders);
        let running = run(command);
        eventually("the change has begun", || orders.left(OpKind::WriteZeroes) == 0);
        target.remove_subsystem(&nqn()).unwrap();
        target.add_subsystem(subsystem()).unwrap();
        target.set_pool(&nqn(), pool(&device, before.clone(), &shelf)).unwrap();
        orders.resume();
        assert!(running.join().unwrap().is_err());
        assert_eq!(shelf.map(), before);
        assert_eq!(target.subsystem(&nqn()).unwrap().namespaces[0].block_size, 512);
        assert_eq!(target.pool(&nqn()).unwrap().unwrap().free_bytes, 7 * MIB);
    }
    Arc::into_inner(target).unwrap().shutdown().unwrap();
}

#[test]
fn a_device_that_cannot_be_zeroed_makes_no_namespace_and_spoils_none() {
    let (device, orders) = InjectBdev::new(ram("8M"));
    let device: SharedBdev = Arc::new(device);
    let (target, address, _) = start_pool(&device);
    let (mut admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    assert_eq!(create(&mut admin, MIB, 0, false), Ok(1));
    assert_eq!(attach(&mut admin, 1, cntlid), Status::SUCCESS);
    let fail = Injection { what: Injected::Failure, count: 2, depth: 0 };
    orders.inject(OpKind::WriteZeroes, fail);
    assert_eq!(create(&mut admin, MIB, 0, false), Err(Status::INTERNAL));
    assert_eq!(free_bytes(&mut admin), 7 * MIB);
    assert_eq!(format(&mut admin, 1, 1), Status::INTERNAL);
    let data = pattern(1, 512);
    assert!(status(&queue.write(1, 2047, &data, 512)).is_success());
    assert_eq!(queue.read(1, 2047, 1, 512).data, data);
    target.shutdown().unwrap();
}
