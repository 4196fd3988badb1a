//! The production target and the production host, wired together in memory, turn by turn.
//!
//! One side goes on until it has nothing to do, then the other: whatever a side sends in one
//! round arrives in as few receives as its peer's buffers allow. So the cost of one side does not
//! depend on how the other cuts its sends.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use raceline_bdev::{DeviceSpec, Identity, NamedBdev, SharedBdev};
use raceline_host::{HostConfig, Transport};
use raceline_initiator::{Name, SessionConfig};
use raceline_proto::nvme::{HostId, Nqn};
use raceline_rdma::fake::{Network, NetworkConfig};
use raceline_target::{
    InitiatorGroupConfig, LunConfig, ManualCore, NamespaceConfig, PortalGroupConfig, PortalMap,
    RdmaConfig, RdmaStreams, SubsystemConfig, Target, TargetConfig, TargetNodeConfig,
};

use crate::asked::AskedBdev;
use crate::device::{Device, HostDevices};
use crate::host::{Host, Way};
use crate::memory_io::{MemoryIo, Wire};
use crate::shape::{Case, Protocol, Shape, Side};

const SUBNQN: &str = "nqn.2025-01.io.raceline:cost";
const HOSTNQN: &str = "nqn.2025-01.io.raceline:cost-host";
const TARGET_NAME: &str = "iqn.2025-01.io.raceline:cost";
const INITIATOR_NAME: &str = "iqn.2025-01.io.raceline:cost-host";
/// The namespace: memory, and larger than a core's second cache.
const DEVICE: &str = "ram:64M,bs=4096";
pub(crate) const DEVICE_BYTES: u64 = 64 << 20;
pub(crate) const BLOCK_BYTES: usize = 4096;
/// Virtual time that a round takes.
const ROUND: Duration = Duration::from_micros(10);
/// Rounds without progress after which a run is given up; each waits for the next timer.
const MAX_STALLS: usize = 64;

/// Both sides, connected and ready.
pub(crate) struct World {
    case: Case,
    wire: Wire,
    /// The network of a case over RDMA.
    network: Option<Network>,
    host: Host,
    core: ManualCore,
    target_io: MemoryIo,
    _target: Arc<Target>,
    /// The next turns are counted.
    counted: bool,
}

impl World {
    /// Starts a target and a host, and connects them.
    pub(crate) fn start(case: Case) -> Result<Self> {
        Self::with(case, TargetConfig::default(), 1)
    }

    /// The same with these settings and I/O queues.
    fn with(case: Case, config: TargetConfig, queues: u16) -> Result<Self> {
        let now = Instant::now();
        let mut target_io = MemoryIo::new(now);
        let (target, mut cores) = Target::manual(config.clone(), &[&target_io])?;
        let mut core = cores.pop().context("a target without cores")?;
        let target = Arc::new(target);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 4420));
        let network =
            (case.protocol == Protocol::NvmeRdma).then(|| Network::new(NetworkConfig::default()));
        let streams = network.clone().map(|network| rdma_streams(network, &config));
        let export =
            Export { device: device(case.shape)?, address, protocol: case.protocol, streams };
        configure(&target, &mut core, &mut target_io, export)?;
        let way = match case.protocol {
            Protocol::NvmeTcp => Way::NvmeTcp(nvme_config(case.shape, address, queues)?),
            Protocol::Iscsi => Way::Iscsi(iscsi_config(case.shape, address)?),
            Protocol::NvmeRdma => {
                let network = network.clone().context("a case over RDMA without a network")?;
                let config = nvme_config(case.shape, address, queues)?;
                Way::NvmeTcp(HostConfig {
                    transport: Transport::Rdma,
                    rdma_devices: Arc::new(HostDevices(network)),
                    ..config
                })
            }
        };
        let host = Host::start(case.shape, MemoryIo::new(now), way)?;
        let mut world = Self {
            case,
            wire: Wire::default(),
            network,
            host,
            core,
            target_io,
            _target: target,
            counted: false,
        };
        world.until("connecting", |world| world.host.is_ready())?;
        Ok(world)
    }

    /// Does the case's I/Os once without counting, so that all memory has grown to its size, and once
    /// counted. Gives the number of I/Os that were counted.
    pub(crate) fn run(&mut self, rounds: usize) -> Result<usize> {
        let count = rounds * self.case.shape.depth;
        self.work(count)?;
        self.counted = true;
        self.target_io.accepts = false;
        crate::device::set_counting(true);
        self.work(count)?;
        crate::device::set_counting(false);
        self.counted = false;
        Ok(count)
    }

    fn work(&mut self, count: usize) -> Result<()> {
        self.host.program.begin(count);
        self.turn_host()?;
        self.until("the work", |world| world.host.program.has_finished(count))
    }

    /// Runs round by round until `is_done`, and further until nothing is in flight.
    fn until(&mut self, what: &str, is_done: impl Fn(&Self) -> bool) -> Result<()> {
        let mut stalls = 0;
        loop {
            let busy = self.round()?;
            if let Some(failure) = self.host.program.failure() {
                bail!("{what}: {failure}");
            }
            if busy {
                stalls = 0;
                continue;
            }
            if is_done(self) {
                return Ok(());
            }
            stalls += 1;
            ensure!(stalls <= MAX_STALLS, "{what}: nothing happens any more");
            let timers = [self.host.io.next_timer_in(), self.target_io.next_timer_in()];
            let next = timers.into_iter().flatten().min();
            self.advance(next.with_context(|| format!("{what}: nothing will ever happen"))?);
        }
    }

    /// Lets each side work until it has nothing to do; false when neither did anything.
    fn round(&mut self) -> Result<bool> {
        if self.network.is_some() {
            return self.round_over_rdma();
        }
        let mut busy = false;
        loop {
            self.wire.collect(&mut self.host.io, &mut self.target_io)?;
            self.wire.deliver(&mut self.host.io);
            if !self.host.io.has_completions() {
                break;
            }
            self.turn_host()?;
            busy = true;
        }
        loop {
            self.wire.collect(&mut self.target_io, &mut self.host.io)?;
            self.wire.deliver(&mut self.target_io);
            if !self.target_io.has_completions() && self.core.waiting_messages() == 0 {
                break;
            }
            self.turn_target()?;
            busy = true;
        }
        if busy {
            self.advance(ROUND);
        }
        Ok(busy)
    }

    /// The network does what it has to do; gives whether that was something.
    fn step_network(&self) -> bool {
        let steps = || self.network.as_ref().is_some_and(Network::step);
        let stepped = steps();
        while steps() {}
        stepped
    }

    /// [`Self::round`]: messages go through the network, and a side has a turn when something has come.
    fn round_over_rdma(&mut self) -> Result<bool> {
        let mut busy = self.step_network();
        loop {
            self.host.io.try_streams();
            if !self.host.io.has_completions() {
                break;
            }
            self.turn_host()?;
            busy = true;
            self.step_network();
        }
        let mut news = busy;
        while news
            || self.target_io.has_completions()
            || self.target_io.has_unread()
            || self.core.waiting_messages() > 0
        {
            self.turn_target()?;
            news = false;
            busy = true;
        }
        if busy {
            self.advance(ROUND);
        }
        Ok(busy)
    }

    fn advance(&mut self, by: Duration) {
        self.host.io.advance(by);
        self.target_io.advance(by);
    }

    fn turn_host(&mut self) -> Result<()> {
        if self.counted && self.case.side == Side::Host {
            counted_host_turn(&mut self.host)
        } else {
            self.host.turn()
        }
    }

    fn turn_target(&mut self) -> Result<()> {
        if self.counted && self.case.side == Side::Target {
            counted_target_turn(&mut self.core, &mut self.target_io)
        } else {
            self.core.turn(&mut self.target_io).map(drop).context("the target")
        }
    }
}

/// Callgrind counts this function on the host, and finds it by its name.
#[inline(never)]
fn counted_host_turn(host: &mut Host) -> Result<()> {
    std::hint::black_box(host.turn())
}

/// Callgrind counts this function on the target, and finds it by its name.
#[inline(never)]
fn counted_target_turn(core: &mut ManualCore, io: &mut MemoryIo) -> Result<()> {
    std::hint::black_box(core.turn(io).map(drop).context("the target"))
}

/// The device behind the namespace.
fn device(shape: Shape) -> Result<SharedBdev> {
    let spec: DeviceSpec = DEVICE.parse().map_err(|error| anyhow!("{error}"))?;
    let bdev = raceline_bdev::open(&spec, &Identity::of_this_machine())?;
    let counting = |bdev| Arc::new(NamedBdev::new(bdev, "counted".to_owned(), None));
    let bdev = if shape.asked { Arc::new(AskedBdev(bdev)) } else { bdev };
    Ok(if shape.counted { counting(bdev) } else { bdev })
}

/// What the target exports, where, and by which protocol.
struct Export {
    device: SharedBdev,
    address: SocketAddr,
    protocol: Protocol,
    /// What carries its bytes, beside TCP.
    streams: Option<Arc<RdmaStreams>>,
}

impl Export {
    fn add_to(self, target: &Target) -> Result<()> {
        match self.protocol {
            Protocol::NvmeTcp | Protocol::NvmeRdma => {
                let nqn = Nqn::new(SUBNQN).map_err(|error| anyhow!("{error}"))?;
                target.add_subsystem(SubsystemConfig {
                    serial: "COST".into(),
                    model: "Raceline cost".into(),
                    ..SubsystemConfig::new(nqn.clone())
                })?;
                target.add_namespace(&nqn, NamespaceConfig::new(self.device))?;
                target.add_listener_with(self.address, self.streams.map(|streams| streams as _))?;
            }
            Protocol::Iscsi => {
                let iscsi = target.iscsi();
                iscsi.set_initiator_group(InitiatorGroupConfig::any(1))?;
                let portals = PortalGroupConfig::new(1, vec![self.address]);
                iscsi.add_portal_group(PortalGroupConfig { wait: true, ..portals })?;
                iscsi.add_target_node(TargetNodeConfig {
                    maps: vec![PortalMap { portal_group: 1, initiator_group: 1 }],
                    luns: vec![LunConfig::new(self.device)],
                    ..TargetNodeConfig::new(TARGET_NAME)
                })?;
                iscsi.start_portal_group(1)?;
            }
        }
        Ok(())
    }
}

/// Listeners with a simulated device, which reads the memory of the namespace where it is.
fn rdma_streams(network: Network, config: &TargetConfig) -> Arc<RdmaStreams> {
    let open = move |_| Ok(Box::new(Device(network.add_device())) as _);
    let config = RdmaConfig { reads_regions: true, ..RdmaConfig::of(config) };
    Arc::new(RdmaStreams::over(config, open))
}

/// Configures the target on another thread, because these calls block.
fn configure(
    target: &Arc<Target>,
    core: &mut ManualCore,
    io: &mut MemoryIo,
    export: Export,
) -> Result<()> {
    let thread = std::thread::spawn({
        let target = Arc::clone(target);
        move || export.add_to(&target)
    });
    while !thread.is_finished() {
        core.turn(io)?;
        std::thread::yield_now();
    }
    let result = thread.join().map_err(|_| anyhow!("configuring the target has panicked"))?;
    result.context("configuring the target")
}

/// Without keep alive: time passes only when nothing else happens.
fn nvme_config(shape: Shape, address: SocketAddr, queues: u16) -> Result<HostConfig> {
    let nqn = |text| Nqn::new(text).map_err(|error| anyhow!("{error}"));
    Ok(HostConfig {
        kato_ms: 0,
        io_queues: queues,
        data_digest: shape.data_digest,
        ..HostConfig::new(address, nqn(SUBNQN)?, nqn(HOSTNQN)?, HostId([1; 16]))
    })
}

/// Without pings, for the same reason.
fn iscsi_config(shape: Shape, address: SocketAddr) -> Result<SessionConfig> {
    let name = |text| Name::new(text).map_err(|error| anyhow!("{error}"));
    Ok(SessionConfig {
        ping_interval: Duration::ZERO,
        data_digest: shape.data_digest,
        ..SessionConfig::new(address, name(INITIATOR_NAME)?, Some(name(TARGET_NAME)?))
    })
}

#[cfg(test)]
mod tests {
    use raceline_host::Command;
    use raceline_proto::host::command::BlockRange;
    use raceline_proto::nvme::NamespaceId;
    use raceline_reactor::{Context, Io, IoBuf};

    use super::*;
    use crate::host::Link;

    // All of them together do not flood the caches, so the host asks for them at once.
    const LARGE: usize = 512 << 10;
    const LARGE_READS: usize = 15;

    /// Submits 15 reads of 512 KiB on one connection and one of 4 KiB on another, and lets the target
    /// take turns; gives the bytes that each had to send after every turn, until all was sent.
    fn turns_of_neighbours(data_digest: bool, copies_first: bool) -> Vec<(usize, usize)> {
        let mut case = Case::all().next().unwrap();
        case.shape.data_digest = data_digest;
        let config = TargetConfig { max_io_bytes: 1 << 20, ..TargetConfig::default() };
        let mut world = World::with(case, config, 2).unwrap();
        world.target_io.copies_first = copies_first;
        let Host { link: Link::NvmeTcp { queues, .. }, io, pool, .. } = &mut world.host else {
            panic!("the first case is NVMe/TCP's")
        };
        let now = io.now();
        let mut cx = Context { io, pool, now };
        let mut read = |queue, bytes: usize| {
            let range = BlockRange::new(0, u32::try_from(bytes / BLOCK_BYTES).unwrap()).unwrap();
            let command = Command::read(NamespaceId(1), range, IoBuf::heap(bytes));
            queues.submit(&mut cx, queue, command, 0).unwrap();
        };
        (0..LARGE_READS).for_each(|_| read(0, LARGE));
        read(1, 4096);
        queues.flush(&mut cx);
        world.wire.collect(&mut world.host.io, &mut world.target_io).unwrap();
        world.wire.deliver(&mut world.target_io);
        let mut turns = Vec::new();
        let mut sent = 0;
        while sent < LARGE_READS * LARGE {
            assert!(turns.len() < 100, "the rest never comes: {turns:?}");
            world.turn_target().unwrap();
            let sending = world.target_io.sending();
            turns.push((sending[1], sending[2]));
            sent += sending[1];
            world.wire.collect(&mut world.target_io, &mut world.host.io).unwrap();
            world.advance(ROUND);
        }
        turns
    }

    #[test]
    fn a_neighbour_waits_for_one_share_of_a_large_reader() {
        let turns = turns_of_neighbours(true, true);
        let (large, small) = turns[0];
        assert!(small > 4096, "the small read was served in the first turn: {turns:?}");
        // The share ends within the first command, and no other was begun after it.
        assert!(large < LARGE + 4096, "{turns:?}");
        // Then the large reader goes on, a command in each turn.
        assert_eq!(turns.len(), LARGE_READS, "{turns:?}");
    }

    #[test]
    fn what_costs_nothing_is_not_counted() {
        // Responses to reads of memory only name the memory, and are digested while they are sent: here
        // the share limits the send.
        for data_digest in [false, true] {
            let turns = turns_of_neighbours(data_digest, false);
            assert_eq!(turns.len(), 1, "{turns:?}");
        }
    }

    #[test]
    fn every_case_comes_to_its_end() {
        for case in Case::all() {
            let counted = World::start(case).unwrap().run(3).unwrap();
            assert_eq!(counted, 3 * case.shape.depth, "{}", case.name());
        }
    }
}
