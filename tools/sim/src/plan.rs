//! Everything that a seed decides before a run begins.

use std::time::Duration;

use raceline_host::Policy;
use raceline_reactor::SimConfig;
use raceline_reactor::sim::Random;
use raceline_target::{
    DEFAULT_BURST, DEFAULT_PASS_BYTES, MIN_PASS_BYTES, PreConnectLimits, QosLimits, TargetConfig,
    Weight,
};

use crate::device::Lie;

/// Most hosts of a run.
pub const MAX_HOSTS: u64 = 4;
/// Most cores of the target.
const MAX_TARGET_CORES: u64 = 3;
/// Bytes per command that a run with the slowest network (single bytes) can move.
const SLOW_IO_BYTES: u64 = 4096;
/// Longest request delay of devices that serve I/O without a request where they can.
const PROMPT_DELAY_MAX: Duration = Duration::from_micros(20);

/// One host.
#[derive(Clone, Debug)]
pub struct HostPlan {
    /// I/O queues.
    pub queues: u16,
    /// Entries of each.
    pub entries: u16,
    /// Commands that it keeps outstanding over all queues.
    pub depth: usize,
    /// Header digests.
    pub header_digest: bool,
    /// Data digests.
    pub data_digest: bool,
    /// Asks for queues without flow control.
    pub disable_sq_flow: bool,
    /// Keep alive timeout.
    pub kato_ms: u32,
    /// Gives commands up after this time.
    pub command_timeout: Duration,
    /// It uses both listeners of the target; `None`: one.
    pub paths: Option<PathPlan>,
}

/// How a host uses two paths.
#[derive(Clone, Debug)]
pub struct PathPlan {
    /// Which path a command takes.
    pub policy: Policy,
    /// Whether the first path is used again when it is back.
    pub failback: bool,
    /// The quiesce time that the host assumes of the target.
    pub quiesce: Duration,
}

/// How often each kind of command is chosen.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Reads.
    pub read: u64,
    /// Writes.
    pub write: u64,
    /// Compares.
    pub compare: u64,
    /// Fused Compare and Write.
    pub fused: u64,
    /// Write Zeroes.
    pub write_zeroes: u64,
    /// Deallocate.
    pub deallocate: u64,
    /// Copies.
    pub copy: u64,
    /// Flushes.
    pub flush: u64,
}

/// How many of each fault a run has; they come at random times.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultPlan {
    /// One connection breaks.
    pub cuts: u32,
    /// All connections break; of two paths, those of one.
    pub storms: u32,
    /// A host's connections by one path take bytes and send none, until they are closed.
    pub silences: u32,
    /// A host ends without a disconnect, and another takes its place.
    pub crashes: u32,
    /// A host disconnects regularly, and connects again.
    pub disconnects: u32,
    /// A namespace is removed, and added again later.
    pub hot_removals: u32,
    /// Receives with one flipped bit, of a million.
    pub flips_per_million: u32,
    /// Device requests that fail, of a thousand.
    pub device_errors_per_thousand: u32,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed of everything else.
    pub seed: u64,
    /// Commands before the run ends.
    pub commands: u64,
    /// Cores of the target.
    pub target_cores: u64,
    /// Limits and pools of the target.
    pub target: TargetConfig,
    /// Hosts.
    pub hosts: Vec<HostPlan>,
    /// The network.
    pub network: SimConfig,
    /// Block size of each namespace.
    pub block_sizes: Vec<u32>,
    /// Blocks of each namespace.
    pub block_count: u64,
    /// Blocks of one command at most.
    pub max_blocks: u64,
    /// Few blocks get most of the commands.
    pub hot_spot: bool,
    /// Longest time of a device request.
    pub device_delay: Duration,
    /// Reads are copied by the device, so that they are never torn.
    pub copy_reads: bool,
    /// The mix of commands.
    pub mix: Mix,
    /// The faults.
    pub faults: FaultPlan,
    /// Hosts and the target prove themselves to each other, and hosts do so again after this time; `None`: they need
    /// not.
    pub reauthenticate_after: Option<Duration>,
    /// Times that a queue of the target is asked to move to another core.
    pub moves: u32,
    /// Limits of the first namespace, and of the first host; `None`: there are none.
    pub limits: Option<QosLimits>,
    /// The weight of the first host; `None`: no host has one.
    pub weight: Option<Weight>,
    /// The device lies: a test of the checker.
    pub lie: Option<Lie>,
}

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn new(seed: u64, commands: u64) -> Self {
        let mut dice = Dice(Random::new(seed ^ 0x5eed));
        let network = dice.network();
        let slow = network.max_chunk < 64;
        let faults = dice.faults(slow);
        let digests = faults.flips_per_million > 0;
        let target = dice.target();
        let hosts = if slow { dice.between(1, 2) } else { dice.between(1, MAX_HOSTS) };
        let hosts = (0..hosts).map(|_| dice.host(digests)).collect();
        let namespaces = dice.between(1, 3);
        let block_sizes: Vec<u32> = (0..namespaces).map(|_| dice.of(&[512, 512, 4096])).collect();
        let largest = block_sizes.iter().copied().max().map_or(512, u64::from);
        let most_bytes = if slow { SLOW_IO_BYTES } else { u64::from(target.max_io_bytes) };
        let block_count = dice.between(16, 160);
        Self {
            seed,
            commands,
            target_cores: dice.between(1, MAX_TARGET_CORES),
            target,
            hosts,
            network,
            block_sizes,
            block_count,
            max_blocks: (most_bytes / largest).clamp(1, block_count),
            hot_spot: dice.chance(1, 2),
            device_delay: dice.of(&[
                Duration::ZERO,
                Duration::from_micros(20),
                Duration::from_micros(500),
                Duration::from_millis(5),
            ]),
            copy_reads: dice.chance(2, 3),
            mix: Mix { copy: Dice(Random::new(seed ^ 0xc0b1e5)).copies(), ..dice.mix() },
            faults,
            reauthenticate_after: dice.reauthenticate_after(slow),
            moves: dice.moves(),
            limits: dice.limits(slow),
            weight: Dice(Random::new(seed ^ 0x3e16)).weight(),
            lie: None,
        }
    }

    /// Devices serve I/O without a request where they can: they are otherwise fast, too, and do not lie.
    #[must_use]
    pub fn is_prompt(&self) -> bool {
        self.device_delay <= PROMPT_DELAY_MAX && !self.copy_reads && self.lie.is_none()
    }

    /// The same, with hosts that use two paths to the target, which are cut and fall silent. The device does what it is
    /// told: a write that is sent again would otherwise have two fates.
    #[must_use]
    pub fn with_two_paths(mut self) -> Self {
        let mut dice = Dice(Random::new(self.seed ^ 0x2a7b5));
        for host in &mut self.hosts {
            host.kato_ms = 1000; // a target must notice silence
            let round_robin = Policy::RoundRobin { min_io: 2 };
            host.paths = Some(PathPlan {
                policy: dice.of(&[Policy::ActivePassive, round_robin, Policy::QueueDepth]),
                failback: dice.chance(1, 2),
                quiesce: 4 * (self.device_delay + self.network.max_delay)
                    + Duration::from_millis(10),
            });
        }
        let faults = &mut self.faults;
        (faults.device_errors_per_thousand, faults.hot_removals) = (0, 0);
        (faults.storms, faults.silences) = (faults.storms.max(1), 2);
        self
    }

    /// Whether hosts use two paths.
    #[must_use]
    pub fn has_two_paths(&self) -> bool {
        self.hosts.iter().any(|host| host.paths.is_some())
    }

    /// The same hosts and commands, without any fault.
    #[must_use]
    pub fn without_faults(mut self) -> Self {
        self.faults = FaultPlan::default();
        self
    }
}

/// Random choices.
struct Dice(Random);

impl Dice {
    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.0.below(most - least + 1)
    }

    fn chance(&mut self, of: u64, all: u64) -> bool {
        self.0.below(all) < of
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.0.below(all.len() as u64)).unwrap_or(0)]
    }

    fn network(&mut self) -> SimConfig {
        let max_chunk = self.of(&[1, 7, 100, 1500, 9000, 64 << 10, usize::MAX, usize::MAX]);
        let slow = max_chunk < 64;
        let longest = if slow { Duration::from_micros(3) } else { Duration::from_micros(300) };
        SimConfig {
            min_delay: Duration::from_nanos(100),
            max_delay: if self.chance(1, 3) { Duration::from_micros(2) } else { longest },
            socket_buffer: self.of(&[1 << 10, 16 << 10, 64 << 10, 1 << 20]),
            max_chunk,
            broken_per_thousand: 0,
            break_within: 1 << 20,
            llc_bytes: self.of(&[64 << 10, 1 << 20, 32 << 20]),
            engines: self.chance(1, 2),
        }
    }

    fn moves(&mut self) -> u32 {
        if self.chance(1, 3) { 0 } else { u32::try_from(self.between(1, 60)).unwrap_or(0) }
    }

    fn faults(&mut self, slow: bool) -> FaultPlan {
        // One run in five has no faults: then no error is excused.
        if self.chance(1, 5) {
            return FaultPlan::default();
        }
        let most = if slow { 2 } else { 8 };
        let mut some = |most: u64| {
            let count = if self.chance(1, 2) { self.between(1, most) } else { 0 };
            u32::try_from(count).unwrap_or(0)
        };
        FaultPlan {
            cuts: some(most),
            storms: some(most / 2),
            silences: 0,
            crashes: some(most / 2),
            disconnects: some(most / 2),
            hot_removals: some(4),
            flips_per_million: some(2).min(1) * if slow { 100 } else { 3000 },
            device_errors_per_thousand: some(60),
        }
    }

    fn target(&mut self) -> TargetConfig {
        let tiny = self.chance(1, 2);
        TargetConfig {
            max_io_bytes: self.of(&[8 << 10, 32 << 10, 128 << 10]),
            in_capsule_bytes: self.of(&[0, 512, 4 << 10, 8 << 10]),
            max_queue_entries: self.of(&[16, 32, 128]),
            pass_bytes: self.of(&[MIN_PASS_BYTES, DEFAULT_PASS_BYTES]),
            max_io_queues: self.of(&[2, 4, 128]),
            // Connections that break while they authenticate count as failures. All hosts are one source here.
            pre_connect: PreConnectLimits {
                failures_per_source: u32::MAX,
                ..PreConnectLimits::default()
            },
            large_buffers_per_core: if tiny { self.of(&[4, 5, 8]) } else { 64 },
            small_buffers_per_core: if tiny { self.of(&[4, 6]) } else { 256 },
            ..TargetConfig::default()
        }
    }

    fn host(&mut self, digests: bool) -> HostPlan {
        let queues = u16::try_from(self.between(1, 4)).unwrap_or(1);
        HostPlan {
            queues,
            entries: self.of(&[4, 16, 33, 128]),
            depth: usize::try_from(self.between(1, 24)).unwrap_or(1),
            header_digest: digests || self.chance(1, 3),
            data_digest: digests || self.chance(1, 3),
            disable_sq_flow: self.chance(2, 3),
            kato_ms: self.of(&[0, 1000, 5000]),
            command_timeout: self.of(&[Duration::from_secs(2), Duration::from_secs(30)]),
            paths: None,
        }
    }

    /// Not over slow networks, where the 4 KiB buffers of messages cost more than the commands.
    fn reauthenticate_after(&mut self, slow: bool) -> Option<Duration> {
        let some = [300, 1000].map(|ms| Some(Duration::from_millis(ms)));
        if self.chance(1, 4) && !slow { self.of(&some) } else { None }
    }

    /// Limits that hold most commands up for less than any timeout. Not over slow networks, which hold up more.
    fn limits(&mut self, slow: bool) -> Option<QosLimits> {
        let limits = QosLimits {
            rw_ios_per_sec: self.of(&[0, 2_000, 400_000]),
            w_bytes_per_sec: self.of(&[0, 40 << 20]),
            rw_bytes_per_sec: self.of(&[0, 100 << 20]),
            burst: self.of(&[Duration::ZERO, DEFAULT_BURST]),
            ..QosLimits::default()
        };
        (self.chance(1, 3) && !slow && !limits.is_unlimited()).then_some(limits)
    }

    /// Apart from the rest, as the copies.
    fn weight(&mut self) -> Option<Weight> {
        let some = [1, 100, Weight::MAX].map(Weight::new);
        if self.chance(1, 2) { self.of(&some) } else { None }
    }

    /// Apart from the rest, so that a seed decides all else as before there were copies.
    fn copies(&mut self) -> u64 {
        if self.chance(3, 4) { self.between(1, 4) } else { 0 }
    }

    fn mix(&mut self) -> Mix {
        let mut weight = |most| if self.chance(3, 4) { self.between(0, most) } else { 0 };
        Mix {
            compare: weight(3),
            fused: weight(4),
            write_zeroes: weight(3),
            deallocate: weight(3),
            copy: 0,
            flush: weight(2),
            read: 4 + weight(8),
            write: 4 + weight(8),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_differ_and_plans_are_possible() {
        let plans: Vec<Plan> = (0..500).map(|seed| Plan::new(seed, 100)).collect();
        assert!(plans.iter().any(|plan| plan.network.max_chunk == 1));
        assert!(plans.iter().any(|plan| plan.target.small_buffers_per_core == 4));
        assert!(plans.iter().any(|plan| plan.hosts.len() == 4 && plan.target_cores == 3));
        assert!(plans.iter().any(|plan| plan.faults.flips_per_million > 0));
        assert!(plans.iter().any(|plan| plan.reauthenticate_after.is_some()));
        for plan in plans {
            assert!(plan.max_blocks >= 1 && plan.max_blocks <= plan.block_count);
            assert_eq!(format!("{plan:?}"), format!("{:?}", Plan::new(plan.seed, 100)));
            let protected = plan.hosts.iter().all(|host| host.header_digest && host.data_digest);
            assert!(plan.faults.flips_per_million == 0 || protected);
        }
    }
}
