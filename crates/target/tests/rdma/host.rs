//! A host over the simulated network, for tests.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use raceline_bdev::SharedBdev;
use raceline_proto::nvme::fabrics::{ConnectData, ConnectWords};
use raceline_proto::nvme::opcode::{admin, fabrics};
use raceline_proto::nvme::{CommandId, ControllerId, Cqe, HostId, Nqn, QueueId, Sqe, Status};
use raceline_proto::rdma::{KeyedBlock, QueueRequest};
use raceline_rdma::fake::{FakeDevice, Network, NetworkConfig};
use raceline_rdma::verbs::{Access, ConnectionId, DomainId, Provider, ProviderError, Region};
use raceline_rdma::{
    ConnectConfig, ConnectError, HostEvent, HostPort, HostPortEvent, HostTransfer, Loss,
};
use raceline_target::{RdmaConfig, RdmaDeviceStats, RdmaStreams, Target, TargetConfig};
use zerocopy::IntoBytes;

use crate::common::{host_nqn, namespace, nqn, ram, subsystem};

/// How long a test waits for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of the host's memory.
const MEMORY: u32 = 16 << 20;
/// The network has rested when its time goes on by so much.
const LONG: Duration = Duration::from_micros(500);

/// The simulated network, in motion.
pub(crate) struct Fabric {
    pub(crate) network: Network,
    stop: Arc<AtomicBool>,
    /// The network moves only by [`Network::step`].
    halted: Arc<AtomicBool>,
    /// Times that nothing was left to do.
    rests: Arc<AtomicUsize>,
    engine: Option<JoinHandle<()>>,
    carried: Mutex<Vec<Arc<RdmaStreams>>>,
    /// No device of a target can be opened.
    pub(crate) are_devices_away: Arc<AtomicBool>,
    /// Times that a target has tried to open one.
    pub(crate) tries: Arc<AtomicUsize>,
}

impl Fabric {
    pub(crate) fn new(config: NetworkConfig) -> Self {
        let network = Network::new(config);
        let stop = Arc::new(AtomicBool::new(false));
        let halted = Arc::new(AtomicBool::new(false));
        let rests = Arc::new(AtomicUsize::new(0));
        let (moved, stopped, halts) = (network.clone(), Arc::clone(&stop), Arc::clone(&halted));
        let rested = Arc::clone(&rests);
        let engine = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let before = moved.now();
                let is_halted = halts.load(Ordering::Relaxed);
                let has_moved = !is_halted && moved.step();
                // Time goes on by much when there is nothing to do but to try something again.
                let rests = !is_halted && (!has_moved || moved.now() >= before + LONG);
                rested.fetch_add(usize::from(rests), Ordering::Release);
                if !has_moved {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        });
        Self {
            network,
            stop,
            halted,
            rests,
            engine: Some(engine),
            carried: Mutex::default(),
            are_devices_away: Arc::default(),
            tries: Arc::default(),
        }
    }

    /// From now on nothing moves by itself, or all does again.
    pub(crate) fn halt(&self, halts: bool) {
        self.halted.store(halts, Ordering::Relaxed);
        // A step may be under way.
        std::thread::sleep(Duration::from_millis(5));
    }

    /// Waits until all that was sent before has come, or waits for a receive.
    #[allow(dead_code, reason = "for the suites that run over either transport")]
    pub(crate) fn settle(&self) {
        let (start, before) = (Instant::now(), self.rests.load(Ordering::Acquire));
        while self.rests.load(Ordering::Acquire) < before + 2 {
            assert!(start.elapsed() < PATIENCE, "the network has always something to do");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// What carries a target's listeners.
    pub(crate) fn streams(&self, config: &TargetConfig) -> Arc<RdmaStreams> {
        self.streams_of(RdmaConfig::of(config))
    }

    pub(crate) fn streams_of(&self, config: RdmaConfig) -> Arc<RdmaStreams> {
        let network = self.network.clone();
        let (are_away, tries) = (Arc::clone(&self.are_devices_away), Arc::clone(&self.tries));
        let open = move |_| {
            tries.fetch_add(1, Ordering::Relaxed);
            if are_away.load(Ordering::Relaxed) {
                return Err(ProviderError::new("opening", "no device has the address"));
            }
            Ok(Box::new(network.add_device()) as _)
        };
        let streams = Arc::new(RdmaStreams::over(config, open));
        self.carried.lock().unwrap().push(Arc::clone(&streams));
        streams
    }

    /// What the devices of the targets have done.
    pub(crate) fn devices(&self) -> Vec<RdmaDeviceStats> {
        self.carried.lock().unwrap().iter().flat_map(|streams| streams.devices()).collect()
    }

    /// A target with a namespace of 16 MiB, that listens for TCP and for RDMA.
    pub(crate) fn target(&self, config: TargetConfig) -> (Target, SocketAddr, SocketAddr) {
        let streams = self.streams(&config);
        self.target_of(config, streams, ram("16M"))
    }

    /// The same with another device.
    pub(crate) fn target_of(
        &self,
        config: TargetConfig,
        streams: Arc<RdmaStreams>,
        device: SharedBdev,
    ) -> (Target, SocketAddr, SocketAddr) {
        self.target_at(config, (streams, "127.0.0.1:4420".parse().unwrap()), device)
    }

    /// The same with another address for RDMA.
    pub(crate) fn target_at(
        &self,
        config: TargetConfig,
        (streams, address): (Arc<RdmaStreams>, SocketAddr),
        device: SharedBdev,
    ) -> (Target, SocketAddr, SocketAddr) {
        let target = Target::start(config).unwrap();
        target.add_subsystem(subsystem()).unwrap();
        target.add_namespace(&nqn(), namespace(device)).unwrap();
        let tcp = target.add_listener("127.0.0.1:0".parse().unwrap()).unwrap();
        let rdma = target.add_listener_with(address, Some(streams as _)).unwrap();
        assert_eq!(rdma, address);
        (target, tcp, rdma)
    }

    /// Nobody has done what a device does not allow.
    pub(crate) fn end(self) {
        let misuses = self.network.misuses();
        assert!(misuses.is_empty(), "{misuses:?}");
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.engine.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking());
    }
}

/// A host with one device.
pub(crate) struct Host {
    pub(crate) port: HostPort<FakeDevice>,
    pub(crate) memory: Region,
    address: SocketAddr,
    completed: Vec<(ConnectionId, CommandId, Cqe)>,
    pub(crate) losses: Vec<(ConnectionId, Loss)>,
    pub(crate) ended: usize,
    outcomes: Vec<(ConnectionId, Result<(), ConnectError>)>,
    closed: Vec<ConnectionId>,
}

impl Host {
    pub(crate) fn new(fabric: &Fabric, address: SocketAddr) -> Self {
        let mut device = fabric.network.add_device();
        let memory = device.register(DomainId::OWN, MEMORY, Access::HOST_DATA).unwrap();
        Self {
            port: HostPort::new(device),
            memory,
            address,
            completed: Vec::new(),
            losses: Vec::new(),
            ended: 0,
            outcomes: Vec::new(),
            closed: Vec::new(),
        }
    }

    /// Takes what has come.
    pub(crate) fn turn(&mut self) {
        let busy = self.port.poll(Instant::now());
        while let Some((id, event)) = self.port.poll_event() {
            match event {
                HostPortEvent::Connected => self.outcomes.push((id, Ok(()))),
                HostPortEvent::Failed(error) => self.outcomes.push((id, Err(error))),
                HostPortEvent::Queue(HostEvent::Completed { cid, cqe, .. }) => {
                    self.completed.push((id, cid, cqe));
                }
                HostPortEvent::Queue(HostEvent::Ended(_)) => self.ended += 1,
                HostPortEvent::Queue(HostEvent::Lost(loss)) => self.losses.push((id, loss)),
                HostPortEvent::Closed => self.closed.push(id),
            }
        }
        if !busy {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Waits until there is something.
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        mut found: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        let start = Instant::now();
        loop {
            self.turn();
            if let Some(found) = found(self) {
                return found;
            }
            assert!(start.elapsed() < PATIENCE, "not in time: {what}; {:?}", self.losses);
        }
    }

    // ---------------------------------------------------------------------- connecting

    pub(crate) fn dial(
        &mut self,
        qid: QueueId,
        entries: u16,
    ) -> Result<ConnectionId, ConnectError> {
        self.dial_with(qid, entries, if qid.is_admin() { 64 } else { 64 + 4096 })
    }

    /// The same, with capsules of up to so many bytes.
    pub(crate) fn dial_with(
        &mut self,
        qid: QueueId,
        entries: u16,
        capsule_len: u32,
    ) -> Result<ConnectionId, ConnectError> {
        let request =
            QueueRequest { qid, receives: entries, entries: entries.into(), cntlid: None };
        let config = ConnectConfig {
            address: self.address,
            source: None,
            domain: DomainId::OWN,
            request,
            capsule_len,
        };
        let id = self.port.connect(config, Instant::now())?;
        self.until("a connection", |host| {
            let at = host.outcomes.iter().position(|(of, _)| *of == id)?;
            Some(host.outcomes.remove(at).1)
        })?;
        Ok(id)
    }

    /// What has come of the requests for queues that nobody has waited for.
    #[allow(dead_code, reason = "for the tests of bad input")]
    pub(crate) fn answers(&self) -> Vec<Result<(), ConnectError>> {
        self.outcomes.iter().map(|(_, outcome)| outcome.clone()).collect()
    }

    pub(crate) fn connect(
        &mut self,
        id: ConnectionId,
        words: ConnectWords,
        data: &ConnectData,
    ) -> Cqe {
        self.put(0, data.as_bytes());
        self.command(id, &words.to_sqe(), 0, 1024)
    }

    /// An admin queue whose controller is enabled; gives its number.
    pub(crate) fn admin(&mut self, subnqn: &Nqn, kato: u32) -> (ConnectionId, ControllerId) {
        let id = self.dial(QueueId::ADMIN, 32).unwrap();
        let words = ConnectWords { sqsize: 31, kato, ..ConnectWords::default() };
        let data = ConnectData::new(HostId([7; 16]), ControllerId::DYNAMIC, subnqn, &host_nqn());
        let cqe = self.connect(id, words, &data);
        assert!(cqe.status.is_success(), "{}", cqe.status);
        self.enable(id);
        (id, ControllerId(u16::try_from(cqe.dw0 & 0xffff).unwrap()))
    }

    /// Enables the controller of an admin queue.
    pub(crate) fn enable(&mut self, id: ConnectionId) {
        let enable = Sqe {
            opc: fabrics::OPCODE,
            nsid: u32::from(fabrics::PROPERTY_SET).into(),
            cdw11: 0x14.into(),
            cdw12: 0x0046_0001.into(),
            ..Sqe::default()
        };
        assert_eq!(self.command(id, &enable, 0, 0).status, Status::SUCCESS);
    }

    /// An I/O queue of a controller.
    pub(crate) fn io(&mut self, cntlid: ControllerId, qid: u16, entries: u16) -> ConnectionId {
        let id = self.dial(QueueId(qid), entries).unwrap();
        let qid = QueueId(qid);
        let words = ConnectWords { qid, sqsize: entries - 1, ..ConnectWords::default() };
        let data = ConnectData::new(HostId([7; 16]), cntlid, &nqn(), &host_nqn());
        let cqe = self.connect(id, words, &data);
        assert!(cqe.status.is_success(), "{}", cqe.status);
        id
    }

    /// Closes a connection, and waits until nothing is left of it.
    pub(crate) fn close(&mut self, id: ConnectionId) {
        self.port.close(id, Instant::now());
        let mut checked = Instant::now();
        self.until("the end of a connection", |host| {
            if checked.elapsed() > Duration::from_secs(1) {
                checked = Instant::now();
                host.port.check_deadlines(checked);
            }
            host.closed.contains(&id).then_some(())
        });
    }

    // ------------------------------------------------------------------------ commands

    pub(crate) fn put(&mut self, at: u32, bytes: &[u8]) {
        let memory = self.memory;
        self.port.provider().write(&memory, at, bytes);
    }

    pub(crate) fn get(&mut self, at: u32, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(len).unwrap()];
        let memory = self.memory;
        self.port.provider().read(&memory, at, &mut bytes);
        bytes
    }

    /// A part of the host's memory, as the controller is told of it.
    pub(crate) fn block(&self, at: u32, len: u32) -> KeyedBlock {
        KeyedBlock { address: self.memory.address + u64::from(at), len, key: self.memory.rkey }
    }

    pub(crate) fn submit(
        &mut self,
        id: ConnectionId,
        sqe: &Sqe,
        transfer: HostTransfer<'_>,
    ) -> CommandId {
        let (queue, provider) = self.port.queue(id).expect("a connection");
        queue.submit(provider, sqe, transfer).unwrap()
    }

    /// Submits a command with this memory, if the connection is there and has a place for it.
    pub(crate) fn try_submit(&mut self, id: ConnectionId, sqe: &Sqe, block: KeyedBlock) {
        if let Some((queue, provider)) = self.port.queue(id) {
            let _ = queue.submit(provider, sqe, HostTransfer::Keyed { block, invalidate: false });
        }
    }

    /// Whether the response to a command has come, and nobody has waited for it.
    #[allow(dead_code, reason = "for the tests of RDMA alone")]
    pub(crate) fn is_answered(&self, id: ConnectionId, cid: CommandId) -> bool {
        self.completed.iter().any(|done| (done.0, done.1) == (id, cid))
    }

    pub(crate) fn wait(&mut self, id: ConnectionId, cid: CommandId) -> Cqe {
        self.until("a response", |host| {
            let at = host.completed.iter().position(|done| (done.0, done.1) == (id, cid))?;
            Some(host.completed.swap_remove(at).2)
        })
    }

    /// A command with these bytes of memory, to its end.
    pub(crate) fn command(&mut self, id: ConnectionId, sqe: &Sqe, at: u32, len: u32) -> Cqe {
        let transfer = match len {
            0 => HostTransfer::None,
            len => HostTransfer::Keyed { block: self.block(at, len), invalidate: false },
        };
        let cid = self.submit(id, sqe, transfer);
        self.wait(id, cid)
    }

    pub(crate) fn keep_alive(&mut self, id: ConnectionId) -> Status {
        let sqe = Sqe { opc: admin::KEEP_ALIVE, ..Sqe::default() };
        self.command(id, &sqe, 0, 0).status
    }
}
