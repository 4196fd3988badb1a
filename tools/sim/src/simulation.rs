//! One run: work with faults, work without, verification, rest, and the end.

use std::time::{Duration, Instant};

use raceline_reactor::{Io as _, SimWorld};

use crate::content::Place;
use crate::control::SimTarget;
use crate::host::{Host, Life};
use crate::link::FaultIo;
use crate::paths::Paths;
use crate::plan::Plan;
use crate::world::{Duty, Log, Shared, Totals};

/// Share of the commands during which faults come; the rest must succeed without faults.
const FAULTY_SHARE: (u64, u64) = (3, 4);
/// Virtual time in which everything must work again when faults have ended, and in which each
/// later part of the run must end. Far longer than any timeout.
const PATIENCE: Duration = Duration::from_secs(300);
/// Virtual time without commands: several keep alive timeouts.
const REST: Duration = Duration::from_secs(16);
/// Virtual time in which a fault in the network must become visible.
const AFTERMATH: Duration = Duration::from_secs(1);
/// The same where paths fall silent: a lost answer to Keep Alive shows within two times of 1 s.
const SILENT_AFTERMATH: Duration = Duration::from_secs(3);
/// The same where bits are flipped: TermReq has no digest. A host that does not understand it sees no more
/// than that the target closes, after 30 s.
const FLIPPED_AFTERMATH: Duration = Duration::from_secs(31);
/// Events after which a run counts as an endless loop.
const MAX_EVENTS: u64 = 60_000_000;
/// Cores may be late by this much.
const SLACK: Duration = Duration::from_micros(20);

/// A fault.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Cut,
    Storm,
    Silence,
    Crash,
    Disconnect,
    RemoveNamespace,
    AddNamespace(usize),
    /// A queue of the target moves to another core.
    Move,
}

/// Runs a plan to its end.
///
/// When the run went wrong; says how.
pub fn run(plan: Plan, log: &Log) -> Result<Totals, String> {
    let mut run = Run::start(plan, log)?;
    run.work_with_faults()?;
    run.work_without_faults()?;
    run.verify()?;
    run.rest()?;
    run.end()
}

struct Run {
    world: SimWorld,
    epoch: Instant,
    events: u64,
    shared: Shared,
    target: SimTarget,
    hosts: Vec<Host>,
    lives: u64,
    /// Faults and the numbers of ended commands at which they come, latest first.
    faults: Vec<(u64, Fault)>,
}

impl Run {
    fn start(plan: Plan, log: &Log) -> Result<Self, String> {
        let world = SimWorld::new(plan.seed, plan.network.clone());
        let epoch = world.now();
        let mut target = SimTarget::start(&world, &plan)?;
        for (_, io) in &mut target.cores {
            io.flips_per_million = plan.faults.flips_per_million;
        }
        let shared = Shared::new(plan, log.clone());
        let mut run = Self {
            world,
            epoch,
            events: 0,
            shared,
            target,
            hosts: Vec::new(),
            lives: 0,
            faults: Vec::new(),
        };
        run.shared.losses_excused = run.is_faulty();
        for index in 0..run.shared.plan.hosts.len() {
            let host = run.new_host(index)?;
            run.hosts.push(host);
        }
        run.schedule_faults();
        Ok(run)
    }

    fn is_faulty(&self) -> bool {
        let faults = self.shared.plan.faults;
        faults.cuts + faults.storms + faults.silences + faults.crashes + faults.disconnects > 0
            || faults.flips_per_million > 0
    }

    fn new_host(&mut self, index: usize) -> Result<Host, String> {
        self.lives += 1;
        let mut io = FaultIo::new(self.world.io(), self.shared.plan.seed ^ self.lives << 32);
        io.flips_per_million = self.flips();
        let plan = &self.shared.plan.hosts[index];
        let (addresses, nqn) = (&self.target.addresses, &self.target.nqn);
        let again = self.shared.plan.reauthenticate_after;
        let host = Host::start(index, io, addresses, nqn, plan, again)?;
        self.shared.queue_counters.push(host.queue_counters());
        Ok(host)
    }

    /// Bits are flipped as long as faults are allowed.
    fn flips(&self) -> u32 {
        let faulty = self.target.cores.first().is_some_and(|(_, io)| io.flips_per_million > 0);
        if faulty { self.shared.plan.faults.flips_per_million } else { 0 }
    }

    fn schedule_faults(&mut self) {
        let plan = self.shared.plan.faults;
        let kinds = [
            (plan.cuts, Fault::Cut),
            (plan.storms, Fault::Storm),
            (plan.silences, Fault::Silence),
            (plan.crashes, Fault::Crash),
            (plan.disconnects, Fault::Disconnect),
            (plan.hot_removals, Fault::RemoveNamespace),
            (self.shared.plan.moves, Fault::Move),
        ];
        let span = self.faulty_commands();
        for (count, fault) in kinds {
            for _ in 0..count {
                let at = self.shared.below(span);
                self.faults.push((at, fault));
            }
        }
        self.faults.sort_by_key(|&(at, _)| std::cmp::Reverse(at));
    }

    fn faulty_commands(&self) -> u64 {
        let (part, whole) = FAULTY_SHARE;
        self.shared.plan.commands * part / whole
    }

    // ---------------------------------------------------------------------- the parts of a run

    fn work_with_faults(&mut self) -> Result<(), String> {
        let commands = self.faulty_commands();
        self.shared.issue_until = commands;
        self.until("the work with faults", |run| {
            run.shared.issued >= commands && (run.faults.is_empty() || run.outstanding() == 0)
        })
    }

    fn work_without_faults(&mut self) -> Result<(), String> {
        self.shared.note(format_args!("faults end"));
        self.target.heal();
        for host in &mut self.hosts {
            self.shared.totals.flips += std::mem::take(&mut host.io.flips);
            host.io.flips_per_million = 0;
        }
        // Removed namespaces come back; other planned faults are dropped.
        self.faults.retain(|(_, fault)| matches!(fault, Fault::AddNamespace(_)));
        self.faults.iter_mut().for_each(|(at, _)| *at = 0);
        // The last faults may become known up to that time later.
        let known_within = match self.shared.plan.faults {
            faults if faults.flips_per_million > 0 => FLIPPED_AFTERMATH,
            faults if faults.silences > 0 => SILENT_AFTERMATH,
            _ => AFTERMATH,
        };
        let aftermath = self.world.elapsed() + known_within;
        self.until("the recovery", |run| {
            run.world.elapsed() > aftermath
                && run.faults.is_empty()
                && !run.target.is_removing()
                && !run.hosts.iter().any(|host| host.io.is_muted())
                && run.all_ready()
        })?;
        self.shared.losses_excused = false;
        self.shared.issue_until = self.shared.plan.commands;
        self.until("the work without faults", |run| {
            run.shared.issued >= run.shared.issue_until && run.outstanding() == 0
        })
    }

    fn verify(&mut self) -> Result<(), String> {
        self.shared.note(format_args!("verification begins"));
        let blocks = self.shared.plan.block_count;
        for namespace in (0..self.shared.plan.block_sizes.len()).rev() {
            let places = (0..blocks).rev().map(|lba| Place { namespace, lba });
            self.shared.unverified.extend(places);
        }
        self.shared.duty = Duty::Verify;
        self.until("the verification", |run| {
            run.shared.unverified.is_empty() && run.outstanding() == 0
        })
    }

    /// Hosts send no commands for [`REST`]: controllers are kept alive, no connection is lost.
    fn rest(&mut self) -> Result<(), String> {
        self.shared.duty = Duty::Rest;
        let end = self.world.elapsed() + REST;
        self.until("the rest", |run| run.world.elapsed() >= end)?;
        if self.all_ready() { Ok(()) } else { Err("a host was lost while nothing happened".into()) }
    }

    fn end(mut self) -> Result<Totals, String> {
        self.hosts.iter_mut().for_each(Host::disconnect);
        self.until("the disconnection", |run| {
            run.hosts.iter().all(|host| host.life == Life::Ended)
        })?;
        let empty = self.until("the target to be empty", |run| run.target.check_empty().is_ok());
        empty.or_else(|_| self.target.check_empty())?;
        let (digest_errors, buffer_waits) = self.target.counts();
        let moves = self.target.moves();
        self.shared.totals.paths.add(&self.target.paths());
        if self.shared.plan.weight.is_some() {
            self.shared.totals.paths.add(&Paths::of_weights(buffer_waits));
        }
        self.shared.totals.throttled = self.target.throttled();
        self.target.begin_shutdown()?;
        self.until("the target to stop", |run| run.target.is_stopped())?;
        let open = self.world.open_connections();
        if open > 0 {
            return Err(format!("{open} connections are open after the end"));
        }
        let flips: u64 = self.target.cores.iter().map(|(_, io)| io.flips).sum();
        let mut totals = self.shared.totals;
        totals.flips += flips;
        totals.digest_errors = digest_errors;
        totals.buffer_waits = buffer_waits;
        totals.moves = moves;
        totals.device_errors = self.target.device_errors();
        totals.paths.add(&self.paths());
        totals.simulated = self.world.elapsed();
        // Challenges are random, so messages of authentications differ from run to run. Their times and lengths do not.
        let has_random_bytes = self.shared.plan.reauthenticate_after.is_some();
        totals.fingerprint = if has_random_bytes { 0 } else { self.world.fingerprint() };
        if totals.device_errors_seen > totals.device_errors {
            return Err("hosts were told of more device errors than there were".into());
        }
        Ok(totals)
    }

    /// The paths that bytes have taken in queues of hosts and in sockets, except the sockets of hosts that
    /// have crashed.
    fn paths(&self) -> Paths {
        let mut paths = Paths::default();
        for counters in &self.shared.queue_counters {
            paths.add(&Paths::of_host(&counters.totals()));
        }
        let targets = self.target.cores.iter().map(|(_, io)| io);
        for io in self.hosts.iter().map(|host| &host.io).chain(targets) {
            paths.add(&Paths::of_io(&io.counts()));
        }
        paths
    }

    // ------------------------------------------------------------------------ time

    /// Lets time pass until `done` holds.
    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        let deadline = self.world.elapsed() + PATIENCE;
        loop {
            let busy = self.turn()?;
            if done(self) {
                return Ok(());
            }
            let late = self.world.elapsed() > deadline || self.events > MAX_EVENTS;
            let stepped = !late && self.step();
            if !stepped && (late || !(busy || self.target.has_messages())) {
                let hosts: Vec<String> = self.hosts.iter().map(Host::describe).collect();
                let why = if late { "takes too long" } else { "will never end" };
                return Err(format!("{what} {why}:\n  {}", hosts.join("\n  ")));
            }
        }
    }

    fn step(&mut self) -> bool {
        self.events += 1;
        let turned = self.world.now();
        let soon = |world: &SimWorld| world.next_event_at().is_some_and(|at| at <= turned + SLACK);
        if self.target.has_messages() && !soon(&self.world) {
            return true; // messages between cores do not take as long as that
        }
        let mut stepped = self.world.step();
        // Cores that are late by up to [`SLACK`] find more than one event.
        while stepped && self.shared.below(3) == 0 && soon(&self.world) {
            self.events += 1;
            stepped |= self.world.step();
        }
        stepped
    }

    /// One turn of every host and core, in a random order.
    fn turn(&mut self) -> Result<bool, String> {
        self.shared.now = self.world.now().duration_since(self.epoch);
        self.shared.settle_ghosts()?;
        self.do_faults()?;
        let first = self.shared.pick(self.target.cores.len());
        let mut busy = self.target.turn(first)?;
        if let Some(namespace) = self.target.finish_removal()? {
            self.shared.note(format_args!("namespace {} is removed", namespace + 1));
            let again = self.shared.totals.commands + self.shared.below(20);
            self.faults.push((again, Fault::AddNamespace(namespace)));
            self.faults.sort_by_key(|&(at, _)| std::cmp::Reverse(at));
        }
        let first = self.shared.pick(self.hosts.len());
        for index in 0..self.hosts.len() {
            let index = (index + first) % self.hosts.len();
            busy |= self.hosts[index].turn(&mut self.shared)?;
            if self.hosts[index].life == Life::Ended && self.shared.duty != Duty::Rest {
                self.hosts[index] = self.new_host(index)?;
                busy = true;
            }
        }
        let oldest = self.hosts.iter().filter_map(Host::oldest).min();
        self.shared.oldest = oldest.unwrap_or_else(|| self.shared.model.tick());
        Ok(busy)
    }

    fn outstanding(&self) -> usize {
        self.hosts.iter().map(Host::outstanding).sum()
    }

    fn all_ready(&self) -> bool {
        self.hosts.iter().all(|host| host.life == Life::Working && host.is_ready())
    }

    // ---------------------------------------------------------------------- faults

    fn do_faults(&mut self) -> Result<(), String> {
        let ended = self.shared.totals.commands;
        // With nothing outstanding and all issued, the numbers no longer grow.
        let idle = self.shared.issued >= self.shared.issue_until && self.outstanding() == 0;
        loop {
            // One change of the target at a time.
            let must_wait = self.target.is_removing();
            let is_due = |&mut (at, fault): &mut (u64, Fault)| {
                (at <= ended || idle) && !(must_wait && matches!(fault, Fault::AddNamespace(_)))
            };
            let Some((_, fault)) = self.faults.pop_if(is_due) else { return Ok(()) };
            self.shared.note(format_args!("fault: {fault:?}"));
            self.do_fault(fault)?;
        }
    }

    fn do_fault(&mut self, fault: Fault) -> Result<(), String> {
        match fault {
            Fault::Cut => {
                let hosts = self.hosts.iter();
                let all: Vec<_> = hosts.flat_map(|host| host.io.connections()).collect();
                if !all.is_empty() {
                    let address = all[self.shared.pick(all.len())];
                    self.world.reset_connections(address);
                    self.shared.losses += 1;
                }
            }
            Fault::Storm => {
                let address = self.some_address();
                self.world.reset_connections(address);
                self.shared.losses += 1;
            }
            Fault::Silence => {
                let address = self.some_address();
                let index = self.shared.pick(self.hosts.len());
                self.hosts[index].io.mute(address);
                self.shared.losses += 1;
            }
            Fault::Crash => {
                let index = self.shared.pick(self.hosts.len());
                let host = self.new_host(index)?;
                let crashed = std::mem::replace(&mut self.hosts[index], host);
                self.shared.totals.flips += crashed.io.flips;
                self.shared.losses += 1;
                crashed.crash(&mut self.shared)?;
            }
            Fault::Disconnect => {
                let index = self.shared.pick(self.hosts.len());
                if self.hosts[index].life == Life::Working {
                    self.shared.losses += 1;
                    self.hosts[index].disconnect();
                }
            }
            Fault::Move => {
                // No fault: nobody may notice, so no error is excused.
                let (queue, core) = (self.shared.below(1 << 32), self.shared.below(1 << 32));
                return self.target.move_queue(queue, core);
            }
            Fault::RemoveNamespace => return self.remove_namespace(),
            Fault::AddNamespace(namespace) => {
                self.target.add_namespace(namespace)?;
                let now = self.shared.model.tick();
                let presence = &mut self.shared.namespaces[namespace];
                (presence.absent, presence.absent_at) = (false, now);
            }
        }
        self.shared.totals.faults += 1;
        Ok(())
    }

    /// The address of one of the paths.
    fn some_address(&mut self) -> std::net::SocketAddr {
        match self.target.addresses[..] {
            [only] => only,
            ref several => several[self.shared.pick(several.len())],
        }
    }

    /// Removes one namespace at a time; further removals are dropped.
    fn remove_namespace(&mut self) -> Result<(), String> {
        let namespace = self.shared.pick(self.shared.namespaces.len());
        if self.target.is_removing() || self.shared.namespaces[namespace].absent {
            return Ok(());
        }
        self.shared.namespaces[namespace].absent = true;
        self.shared.totals.faults += 1;
        self.target.begin_removal(namespace)
    }
}
