//! Queues of one core to several targets: each target has a protection domain of its own, and memory that one gives back is there
//! for the others.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use raceline_bdev::{Bdev, BdevError, Channel, Done, Op, Request};
use raceline_host::{BackoffConfig, HostConfig, RdmaDevices, RemoteNamespace, Transport};
use raceline_proto::nvme::NamespaceId;
use raceline_rdma::WaitingDevice;
use raceline_rdma::fake::{Network, NetworkConfig, Profile};
use raceline_rdma::verbs::ProviderError;
use raceline_reactor::core::{Backend, open_io};
use raceline_reactor::{BufferPool, Context, Io, IoBuf, Payload, PoolConfig, Wait};

use super::common::config;
use super::rdma_target::{BLOCK, JUNK, Served, Step, Wrong};

const NS: NamespaceId = NamespaceId(1);
const LIMIT: Duration = Duration::from_secs(60);
/// Bytes of a request: more than a capsule takes.
const LEN: usize = 24 * BLOCK;

/// An adapter of the host with one address.
#[derive(Debug)]
struct Adapter {
    network: Network,
    opened: Mutex<Vec<usize>>,
}

impl RdmaDevices for Adapter {
    fn open(
        &self,
        _: SocketAddr,
        _: Option<IpAddr>,
        _: u32,
    ) -> Result<Box<dyn WaitingDevice>, ProviderError> {
        let device = self.network.add_device();
        self.opened.lock().unwrap().push(device.number());
        Ok(Box::new(device))
    }
}

/// A core of a host with channels to some targets.
struct Host {
    /// What the core has of the adapter.
    device: usize,
    io: Box<dyn Io>,
    pool: BufferPool,
    namespaces: Vec<RemoteNamespace>,
    channels: Vec<Option<Box<dyn Channel>>>,
    done: Vec<Done>,
}

impl Host {
    /// With so many channels to each target.
    fn new(network: &Network, targets: &[SocketAddr], of_each: usize) -> Self {
        let adapter =
            Arc::new(Adapter { network: network.clone(), opened: Mutex::new(Vec::new()) });
        let over = |&address: &SocketAddr| HostConfig {
            address,
            // Both targets are reached by the same device.
            source: Some("10.0.0.100".parse().unwrap()),
            transport: Transport::Rdma,
            rdma_devices: Arc::clone(&adapter) as _,
            backoff: BackoffConfig {
                first: Duration::from_millis(5),
                longest: Duration::from_millis(20),
                ..BackoffConfig::default()
            },
            io_queues: 2,
            command_timeout: Some(LIMIT),
            admin_timeout: Some(LIMIT),
            connect_timeout: LIMIT,
            ..config()
        };
        let open = |address| RemoteNamespace::open(over(address), NS).unwrap();
        let namespaces: Vec<_> = targets.iter().map(open).collect();
        let (mut io, _) = open_io(Backend::Auto).unwrap();
        let pool = BufferPool::new(&PoolConfig::new(&[(128 << 10, 4)])).unwrap();
        let mut channels = Vec::new();
        let all = namespaces.iter().flat_map(|namespace| std::iter::repeat_n(namespace, of_each));
        for (namespace, owner) in all.zip(1..) {
            let now = io.now();
            let mut cx = Context { io: &mut *io, pool: &pool, now };
            channels.push(Some(namespace.open_channel(&mut cx, owner).unwrap()));
        }
        // Those before are of the threads of the admin queues.
        let device = *adapter.opened.lock().unwrap().last().unwrap();
        let mut host = Self { device, io, pool, namespaces, channels, done: Vec::new() };
        let queues = targets.len() * of_each;
        host.until("all are connected", |_| network.core_numbered(device).pairs == queues);
        host
    }

    fn submit(&mut self, n: usize, op: Op) {
        let now = self.io.now();
        let mut cx = Context { io: &mut *self.io, pool: &self.pool, now };
        let channel = self.channels[n].as_mut().unwrap();
        channel.submit(&mut cx, Request { tag: n as u64, op }, &mut self.done);
        channel.flush(&mut cx, &mut self.done);
    }

    fn read(&mut self, n: usize) {
        self.submit(n, Op::Read { offset: 0, len: LEN, buf: Some(IoBuf::heap(LEN)) });
    }

    fn write(&mut self, n: usize, byte: u8) {
        let data = IoBuf::from_slice(&[byte; LEN]).share();
        self.submit(n, Op::Write { offset: 0, data, fua: false });
    }

    /// A turn of the core, which calls those for whom something has come. The timers by which channels look after their controllers
    /// are no reason to send again what could not be sent.
    fn turn(&mut self) {
        let mut completions = Vec::new();
        self.io.poll(Wait::No, &mut completions).unwrap();
        if completions.is_empty() {
            std::thread::sleep(Duration::from_micros(50));
        }
        let now = self.io.now();
        for completion in completions {
            let mut cx = Context { io: &mut *self.io, pool: &self.pool, now };
            let (n, queue) = (usize::from(completion.token.owner) - 1, completion.token.index);
            if let Some(channel) = &mut self.channels[n] {
                channel.handle_completion(&mut cx, completion, &mut self.done);
                if queue == 0 {
                    channel.flush(&mut cx, &mut self.done);
                }
            }
        }
    }

    fn until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + LIMIT;
        while !holds(self) {
            assert!(Instant::now() < end, "{what}");
            self.turn();
        }
    }

    /// The end of a channel's request, and what it has read.
    fn end_of(&mut self, n: usize) -> Result<Vec<u8>, BdevError> {
        let place = |this: &Self| this.done.iter().position(|done| done.tag == n as u64);
        self.until("a request ends", |this| place(this).is_some());
        let done = self.done.remove(place(self).unwrap());
        done.result.map(|()| match done.payload {
            Some(Payload::Buf(buf, range)) => buf[range].to_vec(),
            _ => Vec::new(),
        })
    }

    /// Closes what is left.
    fn close(mut self) {
        let now = self.io.now();
        let mut cx = Context { io: &mut *self.io, pool: &self.pool, now };
        for mut channel in self.channels.drain(..).flatten() {
            channel.close(&mut cx);
        }
        self.namespaces.iter().for_each(RemoteNamespace::disconnect);
    }
}

/// A target that has got hold of the key of another one's command has nothing by it.
#[test]
fn a_key_of_another_targets_command_opens_nothing() {
    for (profile, writes) in [Profile::Roce, Profile::Iwarp]
        .into_iter()
        .flat_map(|profile| [true, false].map(|writes| (profile, writes)))
    {
        let network = Network::new(NetworkConfig { profile, ..NetworkConfig::default() });
        let addresses = ["10.0.0.1:4420", "10.0.0.2:4420"].map(|at| at.parse().unwrap());
        let [honest, hostile] = addresses.map(|address| Served::start_at(&network, address));
        let mut host = Host::new(&network, &addresses, 1);
        let core = network.core_numbered(host.device);
        assert_eq!((core.pairs, core.domains), (2, 2), "both queues are of one device");
        // A write to the honest target is under way, and its key is good.
        honest.shared.keeps_writes.store(true, Ordering::Relaxed);
        host.write(0, 0x55);
        host.until("the write comes", |_| !honest.seen().kept.is_empty());
        let block = honest.seen().kept[0];
        let before = hostile.seen().connects;
        let wrong = if writes { Wrong::Write(block) } else { Wrong::Read(block) };
        *hostile.shared.wrong.lock().unwrap() = Some((Step::Io, wrong));
        host.read(1);
        host.until("the hostile target reaches for it", |_| {
            hostile.shared.wrong.lock().unwrap().is_none()
        });
        let device = host.device;
        host.until("its queue ends", |_| {
            let of_hostile = network.memory_of(addresses[1]);
            let has_it = of_hostile.iter().any(|(_, bytes)| bytes.starts_with(&[0x55; 64]));
            assert!(!has_it, "{profile:?}: the hostile target has the data");
            let of_host = network.memory_numbered(device);
            let is_junk = of_host.iter().any(|(_, bytes)| bytes.starts_with(&[JUNK; 64]));
            assert!(!is_junk, "{profile:?}: the hostile target has changed the data");
            hostile.seen().connects > before
        });
        assert_eq!(host.end_of(1).unwrap(), [0; LEN], "the read is sent again");
        // The other queue has not noticed anything.
        honest.shared.keeps_writes.store(false, Ordering::Relaxed);
        host.end_of(0).unwrap();
        host.read(0);
        assert_eq!(host.end_of(0).unwrap(), [0x55; LEN]);
        assert_eq!(honest.seen().connects, 1, "{profile:?}: it has lost its connection");
        host.close();
        Served::finish_all([honest, hostile]);
    }
}

/// Nobody is called when a queue is dropped with its commands, and their memory comes back all the same.
#[test]
fn who_waits_for_memory_goes_on_after_a_queue_was_dropped() {
    let network = Network::new(NetworkConfig::default());
    let address = "10.0.0.1:4420".parse().unwrap();
    let served = Served::start_at(&network, address);
    let mut host = Host::new(&network, &[address], 2);
    assert_eq!(network.core_numbered(host.device).domains, 1, "both queues are of one target");
    // Both are ready, and have no block of the size of the reads that follow.
    for n in [0, 1] {
        host.submit(n, Op::Read { offset: 0, len: BLOCK, buf: Some(IoBuf::heap(BLOCK)) });
        assert_eq!(host.end_of(n).unwrap(), [0; BLOCK]);
    }
    served.shared.holds_io.store(true, Ordering::Relaxed);
    let before = served.seen().io.len();
    host.read(0);
    host.until("the read comes", |_| served.seen().io.len() > before);
    network.refuse_memory(true);
    host.read(1);
    assert!(network.memory_refusals() > 0);
    served.shared.holds_io.store(false, Ordering::Relaxed);
    host.channels[0] = None;
    network.refuse_memory(false);
    let start = Instant::now();
    assert_eq!(host.end_of(1).unwrap(), [0; LEN]);
    // A timer of the connecting queue, after LIMIT, would wake it at the latest.
    assert!(start.elapsed() < LIMIT / 2, "it has waited for {:?}", start.elapsed());
    host.close();
    served.finish();
}
