//! Hosts that reach for memory of the target: no byte of it changes, their own queues end, and others go on.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use raceline_proto::nvme::Sqe;
use raceline_proto::nvme::opcode::{admin, io};
use raceline_proto::rdma::WorkStatus;
use raceline_rdma::fake::{FakeDevice, Network, NetworkConfig, Profile};
use raceline_rdma::verbs::{Access, DomainId, Event, Operation, Provider, Region, SendWork};
use raceline_rdma::{HostTransfer, PortCounts};
use raceline_target::RdmaConfig;

use super::bad_input::{Scene, ask, request};
use super::host::Host;
use super::{DATA, blocks, write_and_read};
use crate::common::{block_sqe, config, eventually, nqn, pattern};

/// The number of a request that no queue of a host has posted.
const FOREIGN_REQUEST: u64 = 1 << 40;

#[test]
fn a_key_that_an_rdma_read_has_told_is_dead_for_data_of_others() {
    const LEN: u32 = 64 << 10;
    let delay = Duration::from_micros(100);
    let network = NetworkConfig { profile: Profile::Iwarp, delay, ..NetworkConfig::default() };
    let mut scene = Scene::new(network);
    let mut host = Host::new(&scene.fabric, scene.rdma);
    let (_, cntlid) = host.admin(&nqn(), 0);
    let queue = host.io(cntlid, 1, 32);
    write_and_read(&mut host, queue, 0, LEN);
    let told = host.port.provider().sinks(queue)[0];
    assert_eq!(told.len, LEN, "the buffer of the write");

    // Data of another host come in parts. Meanwhile the first host writes over all of them again and again.
    scene.fabric.halt(true);
    let data = pattern(5, usize::try_from(LEN).unwrap());
    scene.good.put(DATA, &data);
    let list: Vec<_> = (0..16).map(|n| scene.good.block(DATA + n * 4096, 4096)).collect();
    let write = block_sqe(io::WRITE, 1, 2048, blocks(LEN));
    let cid = scene.good.submit(scene.queue, &write, HostTransfer::List(&list));
    host.put(DATA, &vec![0xa5; usize::try_from(LEN).unwrap()]);
    let work = SendWork {
        id: FOREIGN_REQUEST,
        operation: Operation::Write { remote: told.address, key: told.lkey },
        local: host.memory.slice(DATA, LEN),
        signalled: true,
        inline: false,
    };
    for n in 0..600 {
        // A WRITE takes two steps of the network.
        if n % 3 == 0 && host.losses.is_empty() {
            host.port.provider().post_raw(queue, work).unwrap();
        }
        scene.fabric.network.step();
        scene.good.turn();
        host.turn();
    }
    scene.fabric.halt(false);
    assert!(scene.good.wait(scene.queue, cid).status.is_success());
    let read = block_sqe(io::READ, 1, 2048, blocks(LEN));
    let back = DATA + (1 << 20);
    assert!(scene.good.command(scene.queue, &read, back, LEN).status.is_success());
    assert!(scene.good.get(back, LEN) == data, "another host has written into the data");
    host.until("the loss of the queue", |host| {
        host.losses.iter().any(|(of, _)| *of == queue).then_some(())
    });
    scene.goes_on();
    scene.fabric.network.remove(host.port.provider());
    scene.end();
}

#[test]
fn a_host_that_takes_nothing_leaves_memory_for_data_of_others() {
    let mut scene = Scene::new(NetworkConfig::default());
    let mut host = Host::new(&scene.fabric, scene.rdma);
    host.port.provider().set_address([192, 0, 2, 7].into());
    let (_, cntlid) = host.admin(&nqn(), 0);
    let queues: Vec<_> = (1..=6).map(|qid| host.io(cntlid, qid, 32)).collect();
    let before = scene.fabric.devices()[0].counts.sends;
    host.port.provider().take_nothing(true);
    // These are 96 MiB for the host, and the listener has 32 MiB for data to hosts.
    for queue in queues {
        for _ in 0..16 {
            let block = host.block(0, 1 << 20);
            let transfer = HostTransfer::Keyed { block, invalidate: false };
            host.submit(queue, &block_sqe(io::READ, 1, 0, blocks(1 << 20)), transfer);
        }
    }
    host.turn();
    let start = Instant::now();
    eventually("16 MiB are under way", || {
        scene.fabric.devices()[0].counts.sends >= before + 2 * 16
    });
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(scene.fabric.devices()[0].counts.sends, before + 2 * 16, "one half, and no more");
    for _ in 0..8 {
        scene.goes_on();
    }
    // The host loses its queues after 30 s.
    assert!(start.elapsed() < Duration::from_secs(20), "it has waited for {:?}", start.elapsed());
    assert_eq!(host.losses, []);
    host.port.provider().take_nothing(false);
    host.until("the rest of the data", |_| {
        (scene.fabric.devices()[0].counts.sends >= before + 2 * 96).then_some(())
    });
    scene.fabric.network.remove(host.port.provider());
    scene.end();
}

#[test]
fn a_host_that_takes_nothing_is_lost_while_nothing_else_happens() {
    let config = config(1);
    let rdma = RdmaConfig { stuck_after: Duration::from_secs(2), ..RdmaConfig::of(&config) };
    let scene = Scene::of(NetworkConfig::default(), config, rdma);
    let mut host = Host::new(&scene.fabric, scene.rdma);
    let (_, cntlid) = host.admin(&nqn(), 0);
    let queue = host.io(cntlid, 1, 32);
    host.port.provider().take_nothing(true);
    let transfer = HostTransfer::Keyed { block: host.block(DATA, 4096), invalidate: false };
    host.submit(queue, &block_sqe(io::READ, 1, 0, 8), transfer);
    host.turn();
    eventually("the queue is gone", || scene.target.queues(&nqn()).len() == 3);
    scene.fabric.network.remove(host.port.provider());
    scene.end();
}

/// What a host tries with a key of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    Read,
    Write,
    /// A message that invalidates the key.
    Invalidate,
}

const ATTACKS: [Attack; 3] = [Attack::Read, Attack::Write, Attack::Invalidate];

/// A device of its own for a host without rules, and its memory.
struct Attacker {
    device: FakeDevice,
    memory: Region,
}

impl Attacker {
    fn new(network: &Network) -> Self {
        let mut device = network.add_device();
        let memory = device.register(DomainId::OWN, 4096, Access::HOST_DATA).unwrap();
        Self { device, memory }
    }

    /// Connects, attacks 64 bytes of the target, and waits for the end of its connection.
    fn attack(&mut self, address: SocketAddr, attack: Attack, (remote, key): (u64, u32)) {
        let (id, answer) = ask(&mut self.device, address, &request());
        assert!(matches!(answer, Event::Established { .. }), "{answer:?}");
        let operation = match attack {
            Attack::Read => Operation::Read { remote, key },
            Attack::Write => Operation::Write { remote, key },
            Attack::Invalidate => Operation::Send { invalidate: Some(key) },
        };
        self.device.write(&self.memory, 0, &[0xa5; 64]);
        // A message without bytes changes no receive.
        let local = self.memory.slice(0, if attack == Attack::Invalidate { 0 } else { 64 });
        let work = SendWork { id: 7, operation, local, signalled: true, inline: false };
        self.device.post_raw(id, work).unwrap();
        let mut done = Vec::with_capacity(8);
        eventually("the request has failed", || {
            self.device.poll(&mut done);
            !done.is_empty()
        });
        assert_eq!(done[0].id, 7);
        let expected = match attack {
            Attack::Invalidate => WorkStatus::REM_INV_REQ_ERR,
            _ => WorkStatus::REM_ACCESS_ERR,
        };
        assert_eq!(done[0].status, expected, "{attack:?} {remote:#x} {key:#x}");
        let mut bytes = [0; 64];
        self.device.read(&self.memory, 0, &mut bytes);
        assert_eq!(bytes, [0xa5; 64], "{attack:?} has read memory of the target");
        self.device.destroy(id);
    }
}

/// A target whose listener has all kinds of memory: capsules, responses, buffers both ways, and memory of others.
fn furnished(profile: Profile) -> Scene {
    let network = NetworkConfig { profile, ..NetworkConfig::default() };
    let config = config(1);
    let rdma = RdmaConfig { reads_regions: true, ..RdmaConfig::of(&config) };
    let mut scene = Scene::of(network, config, rdma);
    scene.goes_on();
    // These data are not in memory that lasts: they are copied.
    let identify = Sqe { opc: admin::IDENTIFY, cdw10: 1.into(), ..Sqe::default() };
    assert!(scene.good.command(scene.admin, &identify, DATA, 4096).status.is_success());
    assert!(scene.fabric.devices()[0].in_place > 0, "memory of others");
    scene
}

/// What is in registered memory of the target.
fn bytes(scene: &Scene, region: &Region) -> Vec<u8> {
    let mut all = scene.fabric.network.memory_of(scene.rdma).into_iter();
    all.find_map(|(of, bytes)| (of == *region).then_some(bytes)).expect("it is there")
}

#[test]
fn a_target_that_ends_amid_transfers_destroys_queue_pairs_before_memory() {
    for profile in [Profile::Roce, Profile::Iwarp] {
        let mut scene = Scene::new(NetworkConfig { profile, ..NetworkConfig::default() });
        scene.goes_on();
        let PortCounts { sends, requests, .. } = scene.fabric.devices()[0].counts;
        scene.fabric.halt(true);
        for n in 0..8u32 {
            let block = scene.good.block(DATA + n * (64 << 10), 64 << 10);
            let transfer = HostTransfer::Keyed { block, invalidate: false };
            let opc = if n % 2 == 0 { io::WRITE } else { io::READ };
            scene.good.submit(scene.queue, &block_sqe(opc, 1, u64::from(n) * 128, 128), transfer);
        }
        scene.good.turn();
        // The commands arrive, and what the target posts for them does not leave.
        eventually("the commands are there", || {
            let are_there = scene.fabric.devices()[0].counts.requests >= requests + 8;
            if !are_there {
                scene.fabric.network.step();
            }
            are_there
        });
        eventually("transfers", || scene.fabric.devices()[0].counts.sends >= sends + 4);
        scene.target.shutdown().unwrap();
        scene.fabric.end();
    }
}

#[test]
fn memory_of_the_target_is_closed_to_hosts() {
    for profile in [Profile::Roce, Profile::Iwarp] {
        let mut scene = furnished(profile);
        let mut attacker = Attacker::new(&scene.fabric.network);
        let kinds = scene.fabric.network.memory_of(scene.rdma).into_iter();
        let kinds: Vec<Region> = kinds.map(|(region, _)| region).collect();
        // Responses and capsules, a buffer of data to hosts, the namespace, and on RoCE buffers of data from hosts.
        assert!(kinds.len() >= 6, "{profile:?}: {} registrations", kinds.len());
        for region in kinds {
            let before = bytes(&scene, &region);
            for (n, attack) in ATTACKS.into_iter().enumerate() {
                let offset = [0, (region.len - 64) / 2, region.len - 64][n];
                let place = (region.address + u64::from(offset), region.rkey);
                attacker.attack(scene.rdma, attack, place);
            }
            assert!(bytes(&scene, &region) == before, "{profile:?}: memory has changed");
            scene.goes_on();
        }
        eventually("the attackers are gone", || {
            scene.target.stats().connections.iter().sum::<usize>() == 2
        });
        scene.goes_on();
        attacker.device.deregister(attacker.memory);
        scene.end();
    }
}
