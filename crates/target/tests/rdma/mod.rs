//! NVMe/RDMA through the whole target, by a host over the simulated network, with TCP hosts on the same core.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod attacks;
mod bad_input;
mod by_hand;
mod cores;
mod host;
mod in_place;
mod lines;
mod lines_by_seed;
mod lost_queue;
mod one_port;
mod removal;
#[path = "../../../rdma/tests/pairs/wild.rs"]
#[allow(dead_code, reason = "the tests of the crate use the rest of it")]
mod wild;

use std::net::SocketAddr;
use std::time::Duration;

use raceline_proto::nvme::discovery::DiscoveryEntry;
use raceline_proto::nvme::fabrics::{ConnectData, ConnectWords};
use raceline_proto::nvme::identify::IdentifyController;
use raceline_proto::nvme::opcode::{admin, io};
use raceline_proto::nvme::{ControllerId, HostId, Nqn, QueueId, Sqe, Status};
use raceline_proto::rdma::{KeyedBlock, TRTYPE_RDMA, Tsas};
use raceline_rdma::fake::{NetworkConfig, Profile};
use raceline_rdma::{HostTransfer, Loss};
use raceline_reactor::Backend;
use raceline_target::{Target, TargetConfig};
use zerocopy::{FromBytes, IntoBytes};

use crate::common::{
    RawHost, Wants, block_sqe, config, eventually, host_nqn, nqn, pattern, ram, status,
};
use host::{Fabric, Host};

const BS: u32 = 512;
/// Where tests keep data in the host's memory.
const DATA: u32 = 64 * 1024;

fn blocks(bytes: u32) -> u32 {
    bytes / BS
}

/// Writes from `at`, reads to `at` + 1 MiB, and compares.
fn write_and_read(host: &mut Host, queue: raceline_rdma::verbs::ConnectionId, slba: u64, len: u32) {
    let data = pattern(slba + u64::from(len), usize::try_from(len).unwrap());
    host.put(DATA, &data);
    let cqe = host.command(queue, &block_sqe(io::WRITE, 1, slba, blocks(len)), DATA, len);
    assert!(cqe.status.is_success(), "write of {len}: {}", cqe.status);
    let back = DATA + (1 << 20);
    let cqe = host.command(queue, &block_sqe(io::READ, 1, slba, blocks(len)), back, len);
    assert!(cqe.status.is_success(), "read of {len}: {}", cqe.status);
    assert!(host.get(back, len) == data, "{len} bytes at block {slba}");
}

fn nobody_is_left(target: &Target) {
    eventually("all associations are gone", || {
        let stats = target.stats();
        stats.controllers == 0 && stats.connections.iter().all(|n| *n == 0)
    });
}

fn each_kind(test: impl Fn(TargetConfig, NetworkConfig)) {
    for profile in [Profile::Roce, Profile::Iwarp] {
        for backend in [Backend::Uring, Backend::Epoll] {
            let network = NetworkConfig { profile, ..NetworkConfig::default() };
            test(TargetConfig { backend, ..config(1) }, network);
        }
    }
}

/// What a target with two queues of each protocol counts.
fn counts_are_of_both(target: &Target, fabric: &Fabric, rdma: SocketAddr) {
    let queues = target.queues(&nqn());
    assert_eq!(queues.len(), 4, "{queues:?}");
    assert_eq!(queues.iter().filter(|queue| queue.is_rdma).count(), 2, "{queues:?}");
    assert!(queues.iter().all(|queue| queue.is_rdma == (queue.local == rdma)));
    let by_address = target.by_address();
    assert_eq!(by_address.get(&(rdma, true)).map(|it| it.queues), Some(2), "{by_address:?}");
    assert_eq!(by_address.values().map(|it| it.queues).sum::<usize>(), 4, "{by_address:?}");
    assert!(by_address.keys().all(|(local, is_rdma)| *is_rdma == (*local == rdma)));
    let group = target.poll_groups()[0];
    assert_eq!((group.rdma.admin_queues, group.rdma.io_queues), (1, 1));
    let devices = fabric.devices();
    assert_eq!((devices[0].address, &devices[0].name[..]), (rdma, "simulated"));
    let counts = devices[0].counts;
    assert!(counts.requests > 120 && counts.sends > 240, "{counts:?}");
    assert!(counts.send_posts < counts.sends && counts.idle_polls < counts.polls);
    assert!(counts.receives > 120 && counts.completions > 240, "{counts:?}");
}

#[test]
fn rdma_and_tcp_hosts_of_one_core_see_the_same_data() {
    each_kind(|config, network| {
        let fabric = Fabric::new(network);
        // By IPv6 where the connections are those of iWARP.
        let address = match network.profile {
            Profile::Roce => "192.0.2.1:4420",
            Profile::Iwarp => "[2001:db8::1]:4420",
        };
        let streams = fabric.streams(&config);
        let at = (streams, address.parse().unwrap());
        let (target, tcp, rdma) = fabric.target_at(config, at, ram("16M"));
        let mut host = Host::new(&fabric, rdma);
        let (admin, cntlid) = host.admin(&nqn(), 0);
        let (_tcp_admin, tcp_cntlid) = RawHost::admin(tcp, Wants::default());
        let mut tcp_queue = RawHost::io(tcp, tcp_cntlid, 1, Wants::default());

        let identify = Sqe { opc: admin::IDENTIFY, cdw10: 1.into(), ..Sqe::default() };
        assert!(host.command(admin, &identify, DATA, 4096).status.is_success());
        let page = host.get(DATA, 4096);
        let controller = IdentifyController::ref_from_bytes(&page).unwrap();
        assert_eq!(controller.sgls.get(), 1 | 1 << 2 | 1 << 20, "keyed, and data in capsules");
        assert_eq!((controller.ioccsz.get(), controller.msdbd), (260, 16));
        assert_eq!(host.keep_alive(admin), Status::SUCCESS);

        let queue = host.io(cntlid, 1, 128);
        for (slba, len) in [(0, 512), (8, 4096), (100, 128 << 10), (1000, 1 << 20), (5, 8192)] {
            write_and_read(&mut host, queue, slba, len);
        }
        // What one transport writes, the other reads.
        let data = pattern(1, 128 << 10);
        assert!(status(&tcp_queue.write(1, 300, &data, BS)).is_success());
        let cqe = host.command(queue, &block_sqe(io::READ, 1, 300, 256), DATA, 128 << 10);
        assert!(cqe.status.is_success());
        assert!(host.get(DATA, 128 << 10) == data);
        // In the capsule, and from a list of odd blocks.
        let data = pattern(2, 4096);
        let write = block_sqe(io::WRITE, 1, 700, 8);
        let cid = host.submit(queue, &write, HostTransfer::InCapsule(&data));
        assert!(host.wait(queue, cid).status.is_success());
        assert!(tcp_queue.read(1, 700, 8, BS).data == data);
        let data = pattern(3, 8192);
        host.put(DATA, &data);
        let parts = [(0, 100), (100, 4000), (4100, 1), (4101, 4091)];
        let list = parts.map(|(at, len)| host.block(DATA + at, len));
        let cid = host.submit(queue, &block_sqe(io::WRITE, 1, 800, 16), HostTransfer::List(&list));
        assert!(host.wait(queue, cid).status.is_success());
        assert!(tcp_queue.read(1, 800, 16, BS).data == data);

        // Compare, and commands that fail: they move nothing.
        host.put(DATA, &data);
        let compare = |slba| block_sqe(io::COMPARE, 1, slba, 16);
        assert!(host.command(queue, &compare(800), DATA, 8192).status.is_success());
        let cqe = host.command(queue, &compare(801), DATA, 8192);
        assert!(cqe.status.same_code(Status::COMPARE_FAILURE), "{}", cqe.status);
        let beyond = block_sqe(io::READ, 1, 1 << 30, 16);
        let cqe = host.command(queue, &beyond, DATA, 8192);
        assert!(cqe.status.same_code(Status::LBA_OUT_OF_RANGE), "{}", cqe.status);
        assert!(host.get(DATA, 8192) == data, "no data came with an error");

        // A full queue, of both transports.
        let cids: Vec<_> = (0..120)
            .map(|n| {
                let block = host.block(DATA + n * 4096, 4096);
                let transfer = HostTransfer::Keyed { block, invalidate: false };
                host.submit(queue, &block_sqe(io::READ, 1, 300 + u64::from(n), 8), transfer)
            })
            .collect();
        let there = tcp_queue.read(1, 300, 256, BS).data;
        for (n, cid) in cids.into_iter().enumerate() {
            assert!(host.wait(queue, cid).status.is_success());
            let at = DATA + u32::try_from(n).unwrap() * 4096;
            assert!(host.get(at, 4096) == there[n * 512..][..4096], "read {n}");
        }
        counts_are_of_both(&target, &fabric, rdma);
        host.close(queue);
        host.close(admin);
        drop((tcp_queue, _tcp_admin));
        nobody_is_left(&target);
        target.shutdown().unwrap();
        fabric.end();
    });
}

#[test]
fn a_wrong_key_ends_its_own_rdma_connection_only() {
    each_kind(|config, network| {
        let fabric = Fabric::new(network);
        let (target, _, rdma) = fabric.target(config);
        let mut host = Host::new(&fabric, rdma);
        let (admin, cntlid) = host.admin(&nqn(), 0);
        let good = host.io(cntlid, 1, 32);
        for (qid, opc) in [(2, io::READ), (3, io::WRITE)] {
            let bad = host.io(cntlid, qid, 32);
            let mut block = host.block(DATA, 4096);
            block.key ^= 0x100;
            let transfer = HostTransfer::Keyed { block, invalidate: false };
            host.submit(bad, &block_sqe(opc, 1, 0, 8), transfer);
            let loss = host.until("the loss of the connection", |host| {
                Some(host.losses.iter().find(|(of, _)| *of == bad)?.1)
            });
            assert_ne!(loss, Loss::Closed);
            write_and_read(&mut host, good, 64, 128 << 10);
        }
        // The controller and its other queue live.
        assert_eq!(host.keep_alive(admin), Status::SUCCESS);
        eventually("the bad queues are gone", || target.queues(&nqn()).len() == 2);
        host.close(good);
        host.close(admin);
        nobody_is_left(&target);
        target.shutdown().unwrap();
        fabric.end();
    });
}

/// Over iWARP, a buffer for the data of a write is registered for each, so there may be none that comes back.
#[test]
fn a_write_is_tried_again_once_the_device_has_memory() {
    each_kind(|config, network| {
        let fabric = Fabric::new(network);
        let (target, _, rdma) = fabric.target(config);
        let mut host = Host::new(&fabric, rdma);
        let (admin, cntlid) = host.admin(&nqn(), 0);
        let queue = host.io(cntlid, 1, 32);
        let len = 64 << 10;
        host.put(DATA, &pattern(1, 64 << 10));
        fabric.network.refuse_memory(true);
        let transfer = HostTransfer::Keyed { block: host.block(DATA, len), invalidate: false };
        let write = host.submit(queue, &block_sqe(io::WRITE, 1, 0, blocks(len)), transfer);
        host.until("a refusal", |_| (fabric.network.memory_refusals() > 0).then_some(()));
        fabric.network.refuse_memory(false);
        assert!(host.wait(queue, write).status.is_success());
        write_and_read(&mut host, queue, 256, len);
        host.close(queue);
        host.close(admin);
        nobody_is_left(&target);
        target.shutdown().unwrap();
        fabric.end();
    });
}

#[test]
fn an_rdma_host_that_leaves_under_io_leaves_nothing() {
    for seed in 0..6 {
        let profile = if seed % 2 == 0 { Profile::Roce } else { Profile::Iwarp };
        let delay = Duration::from_micros(20);
        let network = NetworkConfig { seed, profile, delay, ..NetworkConfig::default() };
        let fabric = Fabric::new(network);
        // On two cores, too: a device is the listener's core's, and its connections are on both.
        let (target, tcp, rdma) = fabric.target(config(if seed < 3 { 1 } else { 2 }));
        let (_tcp_admin, tcp_cntlid) = RawHost::admin(tcp, Wants::default());
        let mut tcp_queue = RawHost::io(tcp, tcp_cntlid, 1, Wants::default());
        for round in 0..3 {
            let mut host = Host::new(&fabric, rdma);
            let (admin, cntlid) = host.admin(&nqn(), 0);
            let queue = host.io(cntlid, 1, 64);
            for n in 0..60u32 {
                let len = if n % 3 == 0 { 128 << 10 } else { 4096 };
                let block = host.block(DATA + n * (128 << 10), len);
                let opc = if n % 2 == 0 { io::READ } else { io::WRITE };
                let transfer = HostTransfer::Keyed { block, invalidate: false };
                host.submit(queue, &block_sqe(opc, 1, u64::from(n) * 8, blocks(len)), transfer);
            }
            for _ in 0..round * 7 {
                host.turn();
            }
            if round == 1 {
                fabric.network.cut_all();
            }
            host.close(queue);
            host.close(admin);
        }
        let data = pattern(seed, 4096);
        assert!(status(&tcp_queue.write(1, 0, &data, BS)).is_success());
        assert!(tcp_queue.read(1, 0, 8, BS).data == data);
        let mut host = Host::new(&fabric, rdma);
        let (_, cntlid) = host.admin(&nqn(), 0);
        let queue = host.io(cntlid, 1, 64);
        write_and_read(&mut host, queue, 0, 1 << 20);
        drop((tcp_queue, _tcp_admin));
        target.shutdown().unwrap();
        host.until("the target has closed the connections", |host| {
            (host.losses.len() == 2).then_some(())
        });
        fabric.end();
    }
}

#[test]
fn an_rdma_connect_that_does_not_fit_its_queue_is_refused() {
    let fabric = Fabric::new(NetworkConfig::default());
    let (target, _, rdma) = fabric.target(config(1));
    let mut host = Host::new(&fabric, rdma);
    let (admin, cntlid) = host.admin(&nqn(), 0);
    let data = ConnectData::new(HostId([7; 16]), cntlid, &nqn(), &host_nqn());
    for (qid, sqsize, place) in [(2, 31, 42), (1, 32, 44)] {
        let queue = host.dial(QueueId(1), 32).unwrap();
        let words = ConnectWords { qid: QueueId(qid), sqsize, ..ConnectWords::default() };
        let cqe = host.connect(queue, words, &data);
        assert!(cqe.status.same_code(Status::CONNECT_INVALID_PARAMETERS), "{}", cqe.status);
        assert_eq!(cqe.dw0, place);
        host.close(queue);
    }
    // Data that are longer than the longest transfer, and a descriptor of no known type.
    let queue = host.io(cntlid, 1, 32);
    let read = block_sqe(io::READ, 1, 0, 4096);
    let cqe = host.command(queue, &read, 0, 2 << 20);
    assert!(cqe.status.same_code(Status::DATA_SGL_LENGTH_INVALID), "{}", cqe.status);
    let list = vec![KeyedBlock::default(); 17];
    let cid = host.submit(queue, &block_sqe(io::WRITE, 1, 0, 8), HostTransfer::List(&list));
    let cqe = host.wait(queue, cid);
    assert!(cqe.status.same_code(Status::INVALID_SGL_COUNT), "{}", cqe.status);
    write_and_read(&mut host, queue, 0, 4096);
    host.close(admin);
    nobody_is_left(&target);
    target.shutdown().unwrap();
    fabric.end();
}

#[test]
fn an_rdma_host_without_keep_alive_is_lost() {
    let fabric = Fabric::new(NetworkConfig::default());
    let (target, _, rdma) = fabric.target(config(1));
    let mut host = Host::new(&fabric, rdma);
    let (admin, cntlid) = host.admin(&nqn(), 4000);
    let queue = host.io(cntlid, 1, 32);
    write_and_read(&mut host, queue, 0, 4096);
    assert_eq!(host.keep_alive(admin), Status::SUCCESS);
    // From now on it is silent; both queues end from the target's side.
    host.until("the loss of both queues", |host| (host.losses.len() == 2).then_some(()));
    nobody_is_left(&target);
    target.shutdown().unwrap();
    fabric.end();
}

/// SPDK's host puts data of admin commands into the capsule, as it does on I/O queues.
#[test]
fn data_in_capsules_of_the_admin_queue_are_taken() {
    each_kind(|config, network| {
        let fabric = Fabric::new(network);
        let (target, _, rdma) = fabric.target(config);
        let mut host = Host::new(&fabric, rdma);
        let id = host.dial_with(QueueId::ADMIN, 32, 64 + 4096).unwrap();
        let words = ConnectWords { sqsize: 31, ..ConnectWords::default() };
        let data = ConnectData::new(HostId([7; 16]), ControllerId::DYNAMIC, &nqn(), &host_nqn());
        let cid = host.submit(id, &words.to_sqe(), HostTransfer::InCapsule(data.as_bytes()));
        let cqe = host.wait(id, cid);
        assert!(cqe.status.is_success(), "{}", cqe.status);
        host.enable(id);
        // Host Behavior Support, with its 512 bytes, and the same with a value that is not allowed.
        let set = Sqe { opc: admin::SET_FEATURES, cdw10: 0x16.into(), ..Sqe::default() };
        for (acre, status) in [(1, Status::SUCCESS), (2, Status::INVALID_FIELD)] {
            let mut page = [0; 512];
            page[0] = acre;
            let cid = host.submit(id, &set, HostTransfer::InCapsule(&page));
            let cqe = host.wait(id, cid);
            assert!(cqe.status.same_code(status), "{acre}: {}", cqe.status);
        }
        assert_eq!(host.keep_alive(id), Status::SUCCESS);
        host.close(id);
        nobody_is_left(&target);
        target.shutdown().unwrap();
        fabric.end();
    });
}

#[test]
fn the_discovery_log_names_rdma_listeners() {
    // The listener for TCP is shown to those only that come from this machine.
    rdma_listeners_are_named("127.0.0.1", 1, 2);
    rdma_listeners_are_named("2001:db8::1", 2, 1);
}

fn rdma_listeners_are_named(ip: &str, adrfam: u8, records: u8) {
    let fabric = Fabric::new(NetworkConfig::default());
    let config = config(1);
    let at = (fabric.streams(&config), SocketAddr::new(ip.parse().unwrap(), 4420));
    let (target, _, rdma) = fabric.target_at(config, at, ram("16M"));
    let mut host = Host::new(&fabric, rdma);
    let (admin, _) = host.admin(&Nqn::discovery(), 0);
    let len = 3072;
    let log = Sqe {
        opc: admin::GET_LOG_PAGE,
        cdw10: (0x70 | (len / 4 - 1) << 16).into(),
        ..Sqe::default()
    };
    let cqe = host.command(admin, &log, DATA, len);
    assert!(cqe.status.is_success(), "{}", cqe.status);
    let page = host.get(DATA, len);
    let entries: Vec<_> = page[1024..]
        .chunks(1024)
        .map(|entry| DiscoveryEntry::ref_from_bytes(entry).unwrap())
        .collect();
    assert_eq!(page[8], records, "records");
    let entry = entries.iter().find(|entry| entry.trtype == TRTYPE_RDMA).expect("the listener");
    assert_eq!((entry.adrfam, &entry.trsvcid[..4]), (adrfam, &b"4420"[..]));
    assert!(entry.traddr.starts_with(ip.as_bytes()));
    let (tsas, _) = Tsas::ref_from_prefix(&entry.tsas).unwrap();
    assert!(tsas.is_usable());
    assert_eq!(tsas.prtype, 1, "no provider is named");
    assert_eq!(ControllerId(entry.cntlid.get()), ControllerId::DYNAMIC);
    // Without its listener, a connection ends.
    target.remove_listener(rdma).unwrap();
    host.until("the loss of the queue", |host| (!host.losses.is_empty()).then_some(()));
    nobody_is_left(&target);
    target.shutdown().unwrap();
    fabric.end();
}
