//! The simulated target: its cores, and changes made from a helper thread in a repeatable way.
//!
//! The control calls of a target wait for answers of its cores, so they are made on a thread of
//! their own while the clock stands still. The cores take a turn only when each of them has the
//! message of the call's next step: then the result does not depend on the speed of the thread.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use raceline_bdev::{DeviceSpec, Identity, SharedBdev};
use raceline_proto::nvme::Nqn;
use raceline_reactor::SimWorld;
use raceline_target::{
    HostAccess, HostLimit, InitiatorGroupConfig, LunConfig, ManualCore, NamespaceConfig,
    PortalGroupConfig, PortalMap, QosLimits, SubsystemConfig, Target, TargetError,
    TargetNodeConfig,
};

use crate::command::nsid_of;
use crate::device::{Faults, FaultyBdev, Landing};
use crate::link::FaultIo;
use crate::paths::Paths;
use crate::plan::Plan;
use crate::secrets;

/// How long, in real time, a step of a control call may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The name of the initiators of iSCSI.
pub const ISCSI_INITIATOR: &str = "iqn.2026-01.io.raceline:sim-initiator";
/// The target node of iSCSI, if there is one.
pub const ISCSI_TARGET: &str = "iqn.2026-01.io.raceline:sim";

/// Cores that get a message in one step of a control call.
#[derive(Clone, Copy)]
enum Step {
    First,
    All,
}

/// The target of a run.
pub struct SimTarget {
    /// Where it listens: by one address or two.
    pub addresses: Vec<SocketAddr>,
    /// The subsystem.
    pub nqn: Nqn,
    /// Its cores and their I/O.
    pub cores: Vec<(ManualCore, FaultIo)>,
    target: Arc<Target>,
    devices: Vec<(SharedBdev, Arc<Faults>)>,
    baseline: Vec<usize>,
    /// A removal whose device is not quiet yet, and its namespace.
    removal: Option<(usize, JoinHandle<Result<(), TargetError>>)>,
    /// How often the cores have been asked all together when the reserver was idle last.
    rounds: u64,
}

impl SimTarget {
    /// A target that listens, with all namespaces of the plan.
    ///
    /// When the target cannot start; says why.
    pub fn start(world: &SimWorld, plan: &Plan) -> Result<Self, String> {
        let ios: Vec<_> = (0..plan.target_cores).map(|_| world.io()).collect();
        let references: Vec<&dyn raceline_reactor::Io> = ios.iter().map(|io| io as _).collect();
        let (target, cores) =
            Target::manual(plan.target.clone(), &references).map_err(|e| e.to_string())?;
        let baseline = cores.iter().map(ManualCore::free_buffers).collect();
        let seeds = (0u64..).map(|core| plan.seed ^ core << 40 ^ 0xc0);
        let ios = ios.into_iter().zip(seeds).map(|(io, seed)| FaultIo::new(io, seed));
        let mut simulated = Self {
            addresses: Vec::new(),
            nqn: Nqn::new("nqn.2025-01.io.raceline:sim").map_err(|error| error.to_string())?,
            cores: cores.into_iter().zip(ios).collect(),
            target: Arc::new(target),
            devices: devices(plan)?,
            baseline,
            removal: None,
            rounds: 0,
        };
        let nqn = simulated.nqn.clone();
        simulated.call(&[Step::All], move |target| {
            target.add_subsystem(SubsystemConfig {
                serial: "SIM".into(),
                model: "Raceline simulation".into(),
                ..SubsystemConfig::new(nqn)
            })
        })?;
        if plan.reauthenticate_after.is_some() {
            simulated.demand_proofs(plan.hosts.len())?;
        }
        for namespace in 0..simulated.devices.len() {
            simulated.add_namespace(namespace)?;
        }
        if let Some(limits) = plan.limits {
            simulated.limit(limits)?;
        }
        if plan.weight.is_some() {
            let (nqn, host, weight) = (simulated.nqn.clone(), secrets::host_nqn(0)?, plan.weight);
            simulated
                .call(&[Step::All], move |target| target.set_host_weight(&nqn, &host, weight))?;
        }
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let steps = [Step::First, Step::All];
        for _ in 0..if plan.has_two_paths() { 2 } else { 1 } {
            let address = simulated.call(&steps, move |target| target.add_listener(address))?;
            simulated.addresses.push(address);
        }
        Ok(simulated)
    }

    /// Exports the first device by iSCSI as well, as LUN 0 of [`ISCSI_TARGET`]. Gives where it listens.
    ///
    /// # Errors
    /// When the target refuses.
    pub fn export_by_iscsi(&mut self) -> Result<SocketAddr, String> {
        let group = InitiatorGroupConfig::any(1);
        self.call(&[Step::All], move |target| target.iscsi().set_initiator_group(group))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let group = PortalGroupConfig::new(1, vec![address]);
        let steps = [Step::All, Step::All, Step::First, Step::All];
        let real = self.call(&steps, move |target| target.iscsi().add_portal_group(group))?;
        let map = PortalMap { portal_group: 1, initiator_group: 1 };
        let luns = vec![LunConfig::new(Arc::clone(&self.devices[0].0))];
        let node =
            TargetNodeConfig { maps: vec![map], luns, ..TargetNodeConfig::new(ISCSI_TARGET) };
        let steps = [Step::All, Step::All];
        self.call(&steps, move |target| target.iscsi().add_target_node(node))?;
        self.rounds = self.target.reserver_progress().rounds;
        real.first().copied().ok_or_else(|| "a portal group without a portal".into())
    }

    /// As [`Self::turn`], where hosts and initiators change reservations: after each core, the thread that makes the changes
    /// goes on until it has nothing to do, or waits for commands to end, while the clock stands still. So the result does
    /// not depend on the speed of the thread.
    ///
    /// # Errors
    /// When that thread does not go on, or the I/O of a core is broken.
    pub fn turn_and_settle(&mut self, first: usize) -> Result<bool, String> {
        let mut busy = false;
        for index in 0..self.cores.len() {
            let index = (index + first) % self.cores.len();
            let (core, io) = &self.cores[index];
            if io.has_completions() || core.waiting_messages() > 0 {
                busy = true;
                self.turn_core(index)?;
                self.settle()?;
            }
        }
        Ok(busy)
    }

    /// Has the thread that changes reservations look whether the commands have ended for which it waits.
    ///
    /// # Errors
    /// As [`Self::turn_and_settle`].
    pub fn look_after_reservations(&mut self) -> Result<(), String> {
        self.target.look_after_reservations();
        self.settle()
    }

    fn settle(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let progress = self.target.reserver_progress();
            if progress.rounds > self.rounds {
                self.rounds += 1;
                for core in 0..self.cores.len() {
                    self.turn_core(core)?;
                }
            } else if progress.is_idle {
                return Ok(());
            } else if Instant::now() > deadline {
                return Err("the thread that changes reservations does not go on".into());
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Only these hosts may connect from here on, and have to prove themselves.
    fn demand_proofs(&mut self, count: usize) -> Result<(), String> {
        self.call(&[Step::All], |target| target.set_algorithms(secrets::algorithms()))?;
        let hosts = (0..count).map(secrets::host_nqn).collect::<Result<Vec<_>, _>>()?;
        let (nqn, list) = (self.nqn.clone(), HostAccess::List(hosts.clone()));
        self.call(&[Step::All], move |target| target.set_hosts(&nqn, list))?;
        for host in hosts {
            let (nqn, keys) = (self.nqn.clone(), secrets::keys()?);
            self.call(&[Step::All], move |target| target.set_host_keys(&nqn, &host, Some(keys)))?;
        }
        Ok(())
    }

    /// Limits the first namespace, and the first host together with the initiators.
    fn limit(&mut self, limits: QosLimits) -> Result<(), String> {
        let nqn = self.nqn.clone();
        self.call(&[Step::All], move |target| {
            let throttle = target.throttle(limits)?;
            target.set_namespace_limits(&nqn, nsid_of(0), Some(throttle))
        })?;
        let host = secrets::host_nqn(0)?;
        self.call(&[Step::All], move |target| {
            let throttle = target.throttle(limits)?;
            let initiators = vec![ISCSI_INITIATOR.to_owned()];
            target.set_host_limits(vec![HostLimit { hosts: vec![host], initiators, throttle }])
        })
    }

    /// Commands that limits have held up.
    #[must_use]
    pub fn throttled(&self) -> u64 {
        self.target.stats().subsystems.iter().map(|(_, totals)| totals.throttled).sum()
    }

    /// Adds a namespace of the plan, for the first time or again.
    ///
    /// When the namespace cannot be added; says why.
    pub fn add_namespace(&mut self, namespace: usize) -> Result<(), String> {
        let nqn = self.nqn.clone();
        let bdev = Arc::clone(&self.devices[namespace].0);
        let nsid = Some(nsid_of(namespace));
        let config = NamespaceConfig { nsid, ..NamespaceConfig::new(bdev) };
        let add = move |target: &Target| target.add_namespace(&nqn, config).map(drop);
        self.call(&[Step::All, Step::All], add)
    }

    /// Begins to remove a namespace: hosts no longer see it, commands in flight finish.
    ///
    /// When the removal cannot begin; says why.
    pub fn begin_removal(&mut self, namespace: usize) -> Result<(), String> {
        let nqn = self.nqn.clone();
        let nsid = nsid_of(namespace);
        let steps = [Step::All, Step::All];
        let thread = self.drive(&steps, move |target| target.remove_namespace(&nqn, nsid))?;
        self.removal = Some((namespace, thread));
        Ok(())
    }

    /// The namespace whose removal has begun, once its device is closed on all cores.
    ///
    /// # Errors
    /// When the removal failed.
    pub fn finish_removal(&mut self) -> Result<Option<usize>, String> {
        let quiet = |&mut (namespace, _): &mut (usize, _)| {
            self.devices[namespace].1.open_channels.load(Ordering::Relaxed) == 0
        };
        let Some((namespace, thread)) = self.removal.take_if(quiet) else { return Ok(None) };
        join(thread)?;
        Ok(Some(namespace))
    }

    /// Whether a namespace is being removed.
    #[must_use]
    pub fn is_removing(&self) -> bool {
        self.removal.is_some()
    }

    /// Asks for one of the I/O queues to move to another core.
    ///
    /// # Errors
    /// When the target refuses.
    pub fn move_queue(&self, queue: u64, core: u64) -> Result<(), String> {
        let queues = self.target.queues(&self.nqn);
        let io: Vec<_> = queues.iter().filter(|queue| !queue.qid.is_admin()).collect();
        let pick = |number: u64, of: usize| usize::try_from(number % of.max(1) as u64).unwrap_or(0);
        let Some(queue) = io.get(pick(queue, io.len())) else { return Ok(()) };
        let core = pick(core, self.cores.len());
        let moved = self.target.move_queue(&self.nqn, queue.cntlid, queue.qid, core);
        moved.map_err(|error| format!("a queue cannot move: {error}"))
    }

    /// Queues that have come to another core.
    #[must_use]
    pub fn moves(&self) -> u64 {
        self.target.stats().moves
    }

    /// Ends the faults of devices and network.
    pub fn heal(&mut self) {
        for (_, faults) in &self.devices {
            faults.errors_per_thousand.store(0, Ordering::Relaxed);
        }
        for (_, io) in &mut self.cores {
            io.flips_per_million = 0;
        }
    }

    /// The blocks that the first device has written.
    #[must_use]
    pub fn landings(&self) -> Vec<Landing> {
        let first = self.devices.first();
        first.map(|(_, faults)| faults.landings()).unwrap_or_default()
    }

    /// Requests that devices have failed.
    #[must_use]
    pub fn device_errors(&self) -> u64 {
        self.devices.iter().map(|(_, faults)| faults.failed.load(Ordering::Relaxed)).sum()
    }

    /// One turn of all cores that do not sleep, beginning with `first`. True: at least one took a turn.
    ///
    /// # Errors
    /// When the I/O of a core is broken.
    pub fn turn(&mut self, first: usize) -> Result<bool, String> {
        let mut busy = false;
        for index in 0..self.cores.len() {
            let index = (index + first) % self.cores.len();
            let (core, io) = &self.cores[index];
            if io.has_completions() || core.waiting_messages() > 0 {
                busy = true;
                self.turn_core(index)?;
            }
        }
        Ok(busy)
    }

    fn turn_core(&mut self, index: usize) -> Result<(), String> {
        let (core, io) = &mut self.cores[index];
        core.turn(io).map(drop).map_err(|error| format!("target core {index}: {error}"))
    }

    /// Whether a core has a message that it has not taken.
    #[must_use]
    pub fn has_messages(&self) -> bool {
        self.cores.iter().any(|(core, _)| core.waiting_messages() > 0)
    }

    /// The paths that the data of its commands have taken.
    #[must_use]
    pub fn paths(&self) -> Paths {
        let mut paths = Paths::default();
        for (_, totals) in &self.target.stats().subsystems {
            paths.add(&Paths::of_target(totals));
        }
        paths
    }

    /// Digest errors found, and times that commands waited for buffers, so far.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let stats = self.target.stats();
        let sum = |count: fn(&raceline_target::QueueTotals) -> u64| {
            stats.subsystems.iter().map(|(_, totals)| count(totals)).sum()
        };
        (sum(|totals| totals.digest_errors), sum(|totals| totals.buffer_waits))
    }

    /// Whether the target has taken back everything that hosts used.
    ///
    /// # Errors
    /// When something has leaked; says what.
    pub fn check_empty(&self) -> Result<(), String> {
        let stats = self.target.stats();
        let free: Vec<usize> = self.cores.iter().map(|(core, _)| core.free_buffers()).collect();
        let connections: usize = stats.connections.iter().sum();
        let left = [connections, stats.controllers, stats.pre_connect];
        if left == [0; 3] && free == self.baseline {
            return Ok(());
        }
        Err(format!(
            "the target still has {connections} connections, {} controllers, {} sockets before \
             Connect, and {free:?} of {:?} buffers free",
            stats.controllers, stats.pre_connect, self.baseline
        ))
    }

    /// Stops the target.
    ///
    /// # Errors
    /// When it is in use or does not stop.
    pub fn begin_shutdown(&mut self) -> Result<(), String> {
        // The handle is consumed; a new one without cores takes its place.
        let (replacement, _) = Target::manual(raceline_target::TargetConfig::default(), &[])
            .map_err(|e| e.to_string())?;
        let target = std::mem::replace(&mut self.target, Arc::new(replacement));
        let target = Arc::try_unwrap(target).map_err(|_| "the target is in use")?;
        target.shutdown().map_err(|error| error.to_string())
    }

    /// Whether all cores have stopped, and all devices are closed.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.cores.iter().all(|(core, _)| core.is_finished())
            && self.devices.iter().all(|(_, f)| f.open_channels.load(Ordering::Relaxed) == 0)
    }

    fn call<T: Send + 'static>(
        &mut self,
        steps: &[Step],
        call: impl FnOnce(&Target) -> Result<T, TargetError> + Send + 'static,
    ) -> Result<T, String> {
        join(self.drive(steps, call)?)
    }

    /// Makes a call on a helper thread, and lets the cores take its messages step by step.
    fn drive<T: Send + 'static>(
        &mut self,
        steps: &[Step],
        call: impl FnOnce(&Target) -> Result<T, TargetError> + Send + 'static,
    ) -> Result<JoinHandle<Result<T, TargetError>>, String> {
        while self.turn(0)? {}
        let target = Arc::clone(&self.target);
        let thread = std::thread::spawn(move || call(&target));
        let deadline = Instant::now() + PATIENCE;
        for step in steps {
            let count = match step {
                Step::First => 1,
                Step::All => self.cores.len(),
            };
            let missing = |cores: &[(ManualCore, FaultIo)]| {
                cores[..count].iter().any(|(core, _)| core.waiting_messages() == 0)
            };
            while missing(&self.cores) && !thread.is_finished() {
                if Instant::now() > deadline {
                    return Err("a control call does not come to its next step".into());
                }
                std::thread::yield_now();
            }
            for core in 0..count {
                self.turn_core(core)?;
            }
        }
        Ok(thread)
    }
}

fn join<T>(thread: JoinHandle<Result<T, TargetError>>) -> Result<T, String> {
    let result = thread.join().map_err(|_| "a control call has panicked".to_owned())?;
    result.map_err(|error| format!("a control call failed: {error}"))
}

fn devices(plan: &Plan) -> Result<Vec<(SharedBdev, Arc<Faults>)>, String> {
    let identity = Identity::of_this_machine();
    let device = |(index, block_size): (u64, &u32)| {
        let bytes = plan.block_count * u64::from(*block_size);
        let spec: DeviceSpec =
            format!("ram:{bytes},bs={block_size}").parse().map_err(|e| format!("{e}"))?;
        let ram = raceline_bdev::open(&spec, &identity).map_err(|error| error.to_string())?;
        let faults = Arc::new(Faults::default());
        let nanos = u64::try_from(plan.device_delay.as_nanos()).unwrap_or(u64::MAX);
        faults.max_delay_ns.store(nanos, Ordering::Relaxed);
        faults.errors_per_thousand.store(plan.faults.device_errors_per_thousand, Ordering::Relaxed);
        let seed = plan.seed ^ index << 48 ^ 0xde;
        let faulty = FaultyBdev::new(ram, Arc::clone(&faults), seed, plan.copy_reads, plan.lie);
        let faulty = if plan.is_prompt() { faulty.prompt() } else { faulty };
        Ok((Arc::new(faulty) as SharedBdev, faults))
    };
    (0u64..).zip(&plan.block_sizes).map(device).collect()
}
