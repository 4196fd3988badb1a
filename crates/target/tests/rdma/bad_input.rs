//! Hosts that keep no rule, and devices that go: what they do ends their own queues, and others go on.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use raceline_proto::nvme::fabrics::{ConnectData, ConnectWords};
use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::{ControllerId, HostId, QueueId, Sqe};
use raceline_proto::rdma::{KeyedBlock, QueueRequest, RejectData, RejectStatus};
use raceline_rdma::fake::{FakeDevice, NetworkConfig, Profile};
use raceline_rdma::verbs::{
    Access, ConnectionId, DomainId, Event, Operation, PairConfig, Provider, Rejection, SendWork,
};
use raceline_rdma::{ConnectConfig, HostTransfer};
use raceline_target::{RdmaConfig, Target, TargetConfig};
use zerocopy::IntoBytes;

use super::host::{Fabric, Host, PATIENCE};
use super::{DATA, blocks, nobody_is_left, write_and_read};
use crate::common::{
    RawHost, Wants, block_sqe, config, eventually, host_nqn, nqn, pattern, ram, status,
};

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
        // RoCE pads them with zeroes to 56 bytes: 7 bytes say all that is not zero. iWARP gives them as they are.
        let least = match scene.profile {
            Profile::Roce => 7,
            Profile::Iwarp => 32,
        };
        for len in 0..=56 {
            let (id, answer) = ask(&mut device, scene.rdma, &whole[..len]);
            match answer {
                Event::Rejected { reason: Rejection::Consumer(data), .. } => {
                    // With padding, other fields than the length are wrong.
                    let status = RejectData::parse(&data).unwrap();
                    assert!(len < least, "{:?}: {len} bytes say enough: {status}", scene.profile);
                    assert!(
                        status == RejectStatus::Length || scene.profile == Profile::Roce,
                        "{len}: {status}"
                    );
                }
                Event::Established { .. } => {
                    assert!(len >= least, "{:?}: {len} bytes do not say enough", scene.profile);
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

/// The target answers its Connect, and the answer never arrives: over RoCE the device sends it again until the target gives
/// the queue up, over iWARP the connection ends at once.
#[test]
fn a_host_that_never_posts_receives() {
    const STUCK_AFTER: Duration = Duration::from_secs(2);
    for profile in [Profile::Roce, Profile::Iwarp] {
        let config = config(1);
        let rdma = RdmaConfig { stuck_after: STUCK_AFTER, ..RdmaConfig::of(&config) };
        let mut scene =
            Scene::of(NetworkConfig { profile, ..NetworkConfig::default() }, config, rdma);
        let (mut host, mut device) =
            (Host::new(&scene.fabric, scene.rdma), scene.fabric.network.add_device());
        let (_admin, cntlid) = host.admin(&nqn(), 0);
        let memory = device.register(DomainId::OWN, 4096, Access::HOST_DATA).unwrap();
        let (id, answer) = ask(&mut device, scene.rdma, &request());
        assert!(matches!(answer, Event::Established { .. }), "{answer:?}");
        let data = ConnectData::new(HostId([7; 16]), cntlid, &nqn(), &host_nqn());
        device.write(&memory, 1024, data.as_bytes());
        let words = ConnectWords { qid: QueueId(1), sqsize: 31, ..ConnectWords::default() };
        let block = KeyedBlock { address: memory.address + 1024, len: 1024, key: memory.rkey };
        let sgl1 = block.descriptor(false);
        let sqe = Sqe { flags: Sqe::PSDT_SGL, sgl1, ..words.to_sqe() };
        device.write(&memory, 0, sqe.as_bytes());
        let begun = Instant::now();
        let work = SendWork {
            id: 0,
            operation: Operation::Send { invalidate: None },
            local: memory.slice(0, 64),
            signalled: true,
            inline: true,
        };
        device.post_raw(id, work).unwrap();
        let queues = |scene: &Scene| {
            scene.target.queues(&nqn()).iter().filter(|queue| queue.cntlid == cntlid).count()
        };
        if profile == Profile::Roce {
            eventually("the queue is connected", || queues(&scene) == 2);
        }
        // Others notice nothing meanwhile.
        while device.next_event().is_none() {
            scene.goes_on();
            assert!(begun.elapsed() < PATIENCE, "the queue has not ended");
        }
        let took = begun.elapsed();
        match profile {
            Profile::Roce => assert!(took >= STUCK_AFTER, "{took:?}"),
            Profile::Iwarp => assert!(took < STUCK_AFTER, "{took:?}"),
        }
        eventually("the queue is gone", || queues(&scene) == 1);
        host.turn();
        assert_eq!(host.losses, [], "its controller lives");
        device.destroy(id);
        device.deregister(memory);
        drop(host);
        scene.fabric.network.cut_all();
        scene.target.shutdown().unwrap();
        scene.fabric.end();
    }
}

#[test]
fn a_host_that_leaves_amid_rdma_reads() {
    for mut scene in Scene::of_each_profile(Duration::from_millis(1)) {
        for round in 0..4 {
            let mut host = Host::new(&scene.fabric, scene.rdma);
            let (admin, cntlid) = host.admin(&nqn(), 0);
            let queue = host.io(cntlid, 1, 32);
            let counts = || scene.fabric.devices()[0].counts;
            let before = counts();
            scene.fabric.halt(true);
            for n in 0..16u32 {
                let block = host.block(DATA + n * (64 << 10), 64 << 10);
                let transfer = HostTransfer::Keyed { block, invalidate: false };
                let slba = 4096 + u64::from(n) * 128;
                host.submit(queue, &block_sqe(io::WRITE, 1, slba, 128), transfer);
            }
            // Nothing but an RDMA READ is sent before there are data. It stays under way, as nothing moves by itself.
            let begun = Instant::now();
            while counts().sends == before.sends {
                assert!(begun.elapsed() < PATIENCE, "no RDMA READ");
                scene.fabric.network.step();
                host.turn();
            }
            let (now, taken) = (counts(), scene.target.queues(&nqn()));
            let own = taken.iter().filter(|it| it.cntlid == cntlid && it.qid == QueueId(1));
            let done = own.map(|queue| queue.totals.writes).sum::<u64>();
            // A write that is complete has sent its READ and its response.
            let under_way = now.sends - before.sends - 2 * done;
            assert!(under_way > 0 && done < 16, "{under_way} READs are under way, {done} are done");
            if round % 2 == 0 {
                host.port.close(queue, Instant::now());
                scene.fabric.halt(false);
                host.close(queue);
                host.close(admin);
            } else {
                host.port.provider().destroy(queue);
                host.port.provider().destroy(admin);
                scene.fabric.halt(false);
            }
            scene.goes_on();
        }
        scene.end();
    }
}

#[test]
fn a_storm_of_requests() {
    const REQUESTS: usize = 600;
    for mut scene in Scene::of_each_profile(Duration::ZERO) {
        let mut host = Host::new(&scene.fabric, scene.rdma);
        host.port.provider().set_address([192, 0, 2, 66].into());
        let address = scene.rdma;
        let mut left = 0;
        for n in 0..REQUESTS {
            let qid = QueueId(u16::try_from(n % 3).unwrap());
            let request = QueueRequest { qid, receives: 32, entries: 32, cntlid: None };
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
                left += 1;
            }
            host.turn();
            if n % 100 == 0 {
                scene.goes_on();
            }
            // While the storm is there, a host with another address gets in.
            if n % 200 == 199 {
                come_in(&scene);
            }
        }
        host.until("an answer to each request", |host| {
            (host.answers().len() + left >= REQUESTS).then_some(())
        });
        let answers = host.answers();
        let held = answers.iter().filter(|answer| answer.is_ok()).count();
        let refused = answers.len() - held;
        // One source has so many connections without Connect, and no more.
        assert!(held > 0 && refused > 0, "{held} held, {refused} refused, {left} left");
        assert!(held + refused + left >= REQUESTS, "{held} held, {refused} refused, {left} left");
        scene.goes_on();
        come_in(&scene);
        scene.fabric.network.remove(host.port.provider());
        eventually("nothing is left of the storm", || scene.target.stats().pre_connect == 0);
        scene.end();
    }
}

/// A new host connects a controller and a queue, uses both, and leaves.
fn come_in(scene: &Scene) {
    let mut host = Host::new(&scene.fabric, scene.rdma);
    host.port.provider().set_address([192, 0, 2, 7].into());
    let (admin, cntlid) = host.admin(&nqn(), 0);
    let queue = host.io(cntlid, 1, 32);
    write_and_read(&mut host, queue, 256, 4096);
    host.close(queue);
    host.close(admin);
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
