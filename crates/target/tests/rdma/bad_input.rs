//! Hosts that keep no rule, and devices that go: what they do ends their own queues, and others go on.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::{ControllerId, QueueId, Sqe};
use raceline_proto::rdma::{QueueRequest, RejectData, RejectStatus};
use raceline_rdma::fake::{FakeDevice, NetworkConfig, Profile};
use raceline_rdma::verbs::{
    Access, ConnectionId, DomainId, Event, Operation, PairConfig, Provider, Rejection, SendWork,
};
use raceline_rdma::{ConnectConfig, HostTransfer};
use raceline_target::{RdmaConfig, Target, TargetConfig};
use zerocopy::IntoBytes;

use super::host::{Fabric, Host, PATIENCE};
use super::{DATA, blocks, nobody_is_left, write_and_read};
use crate::common::{RawHost, Wants, block_sqe, config, eventually, nqn, pattern, ram, status};

/// A target, and a host that keeps the rules.
pub(super) struct Scene {
    pub(super) fabric: Fabric,
    pub(super) target: Target,
    pub(super) tcp: SocketAddr,
    pub(super) rdma: SocketAddr,
    pub(super) good: Host,
    pub(super) admin: ConnectionId,
    pub(super) queue: ConnectionId,
    pub(super) profile: Profile,
}

impl Scene {
    /// One with each kind of devices, whose steps take up to so long.
    pub(super) fn of_each_profile(delay: Duration) -> impl Iterator<Item = Self> {
        let scene =
            move |profile| Self::new(NetworkConfig { profile, delay, ..NetworkConfig::default() });
        [Profile::Roce, Profile::Iwarp].into_iter().map(scene)
    }

    pub(super) fn new(network: NetworkConfig) -> Self {
        let config = config(1);
        let rdma = RdmaConfig::of(&config);
        Self::of(network, config, rdma)
    }

    pub(super) fn of(network: NetworkConfig, config: TargetConfig, rdma: RdmaConfig) -> Self {
        let fabric = Fabric::new(network);
        let streams = fabric.streams_of(rdma);
        let (target, tcp, rdma) = fabric.target_of(config, streams, ram("16M"));
        let mut good = Host::new(&fabric, rdma);
        let (admin, cntlid) = good.admin(&nqn(), 0);
        let queue = good.io(cntlid, 1, 32);
        Self { fabric, target, tcp, rdma, good, admin, queue, profile: network.profile }
    }

    /// The host that keeps the rules has noticed nothing.
    pub(super) fn goes_on(&mut self) {
        assert_eq!(self.good.losses, []);
        write_and_read(&mut self.good, self.queue, 64, 4096);
        write_and_read(&mut self.good, self.queue, 128, 128 << 10);
    }

    pub(super) fn end(mut self) {
        self.goes_on();
        eventually("only the good host is left", || self.target.stats().controllers == 1);
        self.target.shutdown().unwrap();
        self.fabric.end();
    }
}

/// The next event, for which the network has time.
fn event(device: &mut FakeDevice) -> Event {
    let start = Instant::now();
    loop {
        if let Some(event) = device.next_event() {
            return event;
        }
        assert!(start.elapsed() < PATIENCE, "no event of the connection manager");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Asks for a queue with these private data.
pub(super) fn ask(
    device: &mut FakeDevice,
    address: SocketAddr,
    private: &[u8],
) -> (ConnectionId, Event) {
    let id = device.resolve(address, None).unwrap();
    assert_eq!(event(device), Event::Resolved(id));
    let pair = PairConfig {
        domain: DomainId::OWN,
        sends: 64,
        receives: 64,
        shares_receives: false,
        inline_bytes: 64,
    };
    device.create_pair(id, &pair).unwrap();
    device.connect(id, private, 4).unwrap();
    (id, event(device))
}

pub(super) fn request() -> [u8; 32] {
    QueueRequest { qid: QueueId(1), receives: 32, entries: 32, cntlid: None }.to_bytes()
}

#[test]
fn private_data_of_every_length() {
    for mut scene in Scene::of_each_profile(Duration::ZERO) {
        let mut device = scene.fabric.network.add_device();
        let whole = [&request()[..], &[0x5a; 24]].concat();
        for len in 0..=56 {
            let (id, answer) = ask(&mut device, scene.rdma, &whole[..len]);
            match answer {
                Event::Rejected { reason: Rejection::Consumer(data), .. } => {
                    // RoCE pads them with zeroes, so that other fields than the length are wrong.
                    let status = RejectData::parse(&data).unwrap();
                    assert!(
                        status == RejectStatus::Length || scene.profile == Profile::Roce,
                        "{len}: {status}"
                    );
                }
                Event::Established { .. } => {
                    assert!(len >= 7, "{len} bytes do not say how large the queue is");
                }
                other => panic!("{len}: {other:?}"),
            }
            device.destroy(id);
        }
        scene.goes_on();
        scene.end();
    }
}

#[test]
fn a_queue_of_a_controller_that_is_not_there_is_refused() {
    for mut scene in Scene::of_each_profile(Duration::ZERO) {
        let mut device = scene.fabric.network.add_device();
        let mut host = Host::new(&scene.fabric, scene.rdma);
        let (admin, cntlid) = host.admin(&nqn(), 0);
        let mut reject = |qid, cntlid| {
            let request = QueueRequest { qid: QueueId(qid), receives: 32, entries: 32, cntlid };
            let (id, answer) = ask(&mut device, scene.rdma, &request.to_bytes());
            device.destroy(id);
            match answer {
                Event::Rejected { reason: Rejection::Consumer(data), .. } => {
                    Some(RejectData::parse(&data).unwrap())
                }
                Event::Established { .. } => None,
                other => panic!("{other:?}"),
            }
        };
        let unknown = Some(ControllerId(cntlid.0 ^ 0x4000));
        assert_eq!(reject(1, unknown), Some(RejectStatus::ControllerId));
        assert_eq!(reject(1, Some(cntlid)), None);
        assert_eq!(reject(1, None), None, "a host need not say it");
        assert_eq!(reject(0, unknown), None, "an admin queue has no controller yet");
        host.close(admin);
        eventually("the controller has ended", || scene.target.stats().controllers == 1);
        assert_eq!(reject(1, Some(cntlid)), Some(RejectStatus::ControllerId));
        drop(host);
        scene.goes_on();
        scene.end();
    }
}

#[test]
fn lengths_beyond_the_registration() {
    for mut scene in Scene::of_each_profile(Duration::ZERO) {
        let mut host = Host::new(&scene.fabric, scene.rdma);
        let (_admin, cntlid) = host.admin(&nqn(), 0);
        let secret = pattern(9, 4096);
        host.put(host.memory.len - 4096, &secret);
        for (qid, opc) in [(1, io::READ), (2, io::WRITE)] {
            for as_list in [false, true] {
                let bad = host.io(cntlid, qid, 32);
                // It begins in the registration and ends behind it.
                let mut block = host.block(host.memory.len - 4096, 4096);
                block.len = 8192;
                let transfer = match as_list {
                    true => HostTransfer::List(std::slice::from_ref(&block)),
                    false => HostTransfer::Keyed { block, invalidate: false },
                };
                host.submit(bad, &block_sqe(opc, 1, 0, blocks(8192)), transfer);
                host.until("the loss of the connection", |host| {
                    host.losses.iter().any(|(of, _)| *of == bad).then_some(())
                });
                eventually("the target has let the queue go", || {
                    scene.target.queues(&nqn()).iter().filter(|q| q.qid.0 == qid).count()
                        == usize::from(qid == 1)
                });
            }
        }
        assert!(host.get(host.memory.len - 4096, 4096) == secret, "nothing was written");
        scene.goes_on();
        drop(host);
        scene.fabric.network.cut_all();
        scene.target.shutdown().unwrap();
        scene.fabric.end();
    }
}

#[test]
fn a_host_that_never_posts_receives() {
    let mut scene = Scene::new(NetworkConfig::default());
    let mut device = scene.fabric.network.add_device();
    let memory = device.register(DomainId::OWN, 4096, Access::HOST_DATA).unwrap();
    let (id, answer) = ask(&mut device, scene.rdma, &request());
    assert!(matches!(answer, Event::Established { .. }), "{answer:?}");
    // The target answers each of them, and no answer arrives.
    let sqe = Sqe { flags: 0x40, ..Sqe::default() };
    device.write(&memory, 0, sqe.as_bytes());
    for n in 0..32 {
        let work = SendWork {
            id: n,
            operation: Operation::Send { invalidate: None },
            local: memory.slice(0, 64),
            signalled: true,
            inline: true,
        };
        device.post_raw(id, work).unwrap();
    }
    for _ in 0..20 {
        scene.goes_on();
    }
    device.destroy(id);
    device.deregister(memory);
    scene.end();
}

#[test]
fn a_host_that_leaves_amid_rdma_reads() {
    for mut scene in Scene::of_each_profile(Duration::from_millis(1)) {
        for round in 0..4 {
            let mut host = Host::new(&scene.fabric, scene.rdma);
            let (admin, cntlid) = host.admin(&nqn(), 0);
            let queue = host.io(cntlid, 1, 32);
            let before = scene.fabric.devices()[0].counts.sends;
            for n in 0..16u32 {
                let block = host.block(DATA + n * (64 << 10), 64 << 10);
                let transfer = HostTransfer::Keyed { block, invalidate: false };
                let slba = 4096 + u64::from(n) * 128;
                host.submit(queue, &block_sqe(io::WRITE, 1, slba, 128), transfer);
            }
            // Nothing but an RDMA READ is sent before there are data.
            host.until("an RDMA READ", |_| {
                (scene.fabric.devices()[0].counts.sends > before).then_some(())
            });
            if round % 2 == 0 {
                host.close(queue);
                host.close(admin);
            } else {
                host.port.provider().destroy(queue);
                host.port.provider().destroy(admin);
            }
            scene.goes_on();
        }
        scene.end();
    }
}

#[test]
fn a_storm_of_requests() {
    let mut scene = Scene::new(NetworkConfig::default());
    let mut host = Host::new(&scene.fabric, scene.rdma);
    let address = scene.rdma;
    for n in 0..600u16 {
        let request = QueueRequest { qid: QueueId(n % 3), receives: 32, entries: 32, cntlid: None };
        let config = ConnectConfig {
            address,
            source: None,
            domain: DomainId::OWN,
            request,
            capsule_len: 64,
        };
        let id = host.port.connect(config, Instant::now()).unwrap();
        // Some leave before they are answered, some never say Connect, some leave at once.
        if n % 3 == 0 {
            host.port.close(id, Instant::now());
        }
        host.turn();
        if n % 100 == 0 {
            scene.goes_on();
        }
    }
    scene.goes_on();
    scene.fabric.network.remove(host.port.provider());
    scene.end();
}

#[test]
fn the_removal_of_the_targets_device() {
    for mut scene in Scene::of_each_profile(Duration::ZERO) {
        scene.goes_on();
        let (_tcp_admin, cntlid) = RawHost::admin(scene.tcp, Wants::default());
        let mut tcp_queue = RawHost::io(scene.tcp, cntlid, 1, Wants::default());
        for n in 0..16u32 {
            let block = scene.good.block(DATA + n * 4096, 4096);
            let transfer = HostTransfer::Keyed { block, invalidate: false };
            scene.good.submit(scene.queue, &block_sqe(io::READ, 1, 0, 8), transfer);
        }
        scene.fabric.network.remove_listening(scene.rdma);
        scene.good.until("the loss of both queues", |host| (host.losses.len() == 2).then_some(()));
        eventually("the queues over RDMA are gone", || scene.target.queues(&nqn()).len() == 2);
        let data = pattern(3, 4096);
        assert!(status(&tcp_queue.write(1, 0, &data, 512)).is_success());
        assert!(tcp_queue.read(1, 0, 8, 512).data == data);
        drop((tcp_queue, _tcp_admin));
        nobody_is_left(&scene.target);
        scene.target.shutdown().unwrap();
        scene.fabric.end();
    }
}
