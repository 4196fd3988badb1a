//! Fencing: a host loses one of two paths while writes are under way on it, and replays on the other.
//!
//! The lost path falls silent: its queues neither read nor write, as behind a network that drops everything, and the
//! target keeps what has arrived. The host then has its lost controller reset by the other one (Cross-Controller Reset),
//! or waits for as long as the target says that it needs (three keep alive timeouts and CQT). Then it writes. Every write
//! that lands on the device is recorded, and [`check`] says whether one of the lost path came too late.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use raceline_host::{
    BlockRange, Command, CommandDone, Controller, ControllerEvent, Data, HostConfig, IoQueueEvent,
    IoQueueSet,
};
use raceline_proto::nvme::cross_reset::{
    ControllerInstance, CrossResetLogEntry, CrossResetLogHeader, IMMEDIATE, ResetStatus,
};
use raceline_proto::nvme::identify::{IdentifyController, cns};
use raceline_proto::nvme::log::{GetLogPage, lid};
use raceline_proto::nvme::opcode::admin;
use raceline_proto::nvme::{ControllerId, HostId, NamespaceId, Nqn, Sqe};
use raceline_reactor::sim::Random;
use raceline_reactor::{
    BufferPool, Completion, Context, Io, IoBuf, PoolConfig, SimConfig, SimIo, SimWorld, Token, Wait,
};
use raceline_target::TargetConfig;
use zerocopy::FromBytes;

use crate::control::SimTarget;
use crate::device::Landing;
use crate::plan::Plan;
use crate::secrets;

const BLOCK: usize = 512;
const BLOCKS: u64 = 16;
const MAX_BLOCKS: u64 = 4;
const QUEUES: u16 = 2;
const DEPTH: usize = 12;
/// Keep alive timeout of both paths.
const KATO: Duration = Duration::from_secs(1);
/// Index of the first I/O queue in tokens; the controller has two below.
const FIRST_QUEUE_INDEX: u32 = 2;
const POOL: &[(usize, usize)] = &[(128 << 10, 2)];
/// Virtual time in which a step must be done.
const PATIENCE: Duration = Duration::from_secs(60);
/// Names of writes by the path that is not lost begin here.
const SECOND_PATH: u64 = 1 << 32;
/// Names of admin commands begin here.
const ADMIN: u64 = 1 << 40;

/// How a host comes to know that nothing of the lost path happens any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// Cross-Controller Reset by the other controller.
    Reset,
    /// Time.
    Silence,
}

/// What a run has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Writes that were under way on the lost path.
    pub outstanding: u64,
    /// Blocks that the lost path wrote after it fell silent.
    pub late: u64,
    /// The reset was done when the target answered.
    pub immediate: bool,
    /// The reset succeeded later.
    pub succeeded: bool,
    /// The target could not say that the controller has ended.
    pub not_done: bool,
    /// A hash over everything that happened.
    pub fingerprint: u64,
}

/// Runs a seed.
///
/// # Errors
/// When a write of the lost path came too late, or anything else went wrong.
pub fn run(seed: u64, fence: Fence) -> Result<Seen, String> {
    let mut dice = Random::new(seed ^ 0xfe7ce);
    let quiesce = Duration::from_millis(20);
    // In one run of three, requests take longer than the target says that they do.
    let hangs = dice.below(3) == 0;
    let delay = if hangs { quiesce * 6 } else { quiesce / 4 };
    let mut run = Run::start(seed, quiesce, delay)?;
    run.until("both paths are up", |run| run.paths.iter().all(Path::is_ready))?;
    let lost = run.identify(0)?;
    let working = Duration::from_nanos(dice.below(2 * 5_000_000));
    let end = run.world.elapsed() + working;
    run.writing = true;
    run.until("the first path has worked", |run| run.world.elapsed() >= end)?;
    run.writing = false;
    run.paths[0].silent = true;
    let mut seen = Seen { outstanding: run.paths[0].outstanding.len() as u64, ..Seen::default() };
    let before = run.target.landings().len();
    let is_fenced = match fence {
        Fence::Reset => run.reset(lost, quiesce, &mut seen)?,
        Fence::Silence => {
            let until = run.world.elapsed() + 3 * KATO + quiesce;
            run.until("the time is over", |run| run.world.elapsed() >= until)?;
            !hangs
        }
    };
    let fenced = run.target.landings().len();
    run.replay()?;
    let rest = run.world.elapsed() + 20 * delay;
    run.until("nothing is left", |run| run.world.elapsed() >= rest)?;
    let landings = run.target.landings();
    let of_lost = |landing: &&Landing| landing.write < SECOND_PATH;
    seen.late = landings[before..].iter().filter(of_lost).count() as u64;
    check(&landings, is_fenced.then_some(fenced))?;
    seen.fingerprint = run.world.fingerprint();
    Ok(seen)
}

/// Whether no write of the lost path came too late: after the moment at which the host was told that there is none
/// (`fenced`, a place in the list), or to a block after a write of the other path.
///
/// # Errors
/// When one did; says which.
pub fn check(landings: &[Landing], fenced: Option<usize>) -> Result<(), String> {
    let mut replayed = BTreeSet::new();
    for (place, landing) in landings.iter().enumerate() {
        let Landing { block, write } = *landing;
        if write >= SECOND_PATH {
            replayed.insert(block);
        } else if replayed.contains(&block) {
            return Err(format!(
                "write {write} of the lost path overtook a later one of block {block}"
            ));
        } else if fenced.is_some_and(|fenced| place >= fenced) {
            return Err(format!("write {write} of the lost path landed after it was fenced"));
        }
    }
    Ok(())
}

struct Run {
    world: SimWorld,
    target: SimTarget,
    paths: [Path; 2],
    random: Random,
    /// The first path writes.
    writing: bool,
    next_write: u64,
}

impl Run {
    fn start(seed: u64, quiesce: Duration, delay: Duration) -> Result<Self, String> {
        let mut random = Random::new(seed);
        let network = SimConfig {
            max_delay: Duration::from_micros(1 + random.below(300)),
            ..SimConfig::default()
        };
        let in_capsule_bytes = if random.below(2) == 0 { 8 << 10 } else { 512 };
        let plan = Plan {
            target_cores: 1 + random.below(3),
            target: TargetConfig {
                quiesce_time: quiesce,
                in_capsule_bytes,
                large_buffers_per_core: 64,
                small_buffers_per_core: 64,
                ..TargetConfig::default()
            },
            network,
            block_sizes: vec![512],
            block_count: BLOCKS,
            device_delay: delay,
            copy_reads: true,
            reauthenticate_after: None,
            limits: None,
            ..Plan::new(seed, 1).without_faults()
        };
        let world = SimWorld::new(seed, plan.network.clone());
        let target = SimTarget::start(&world, &plan)?;
        let (address, nqn) = (target.addresses[0], target.nqn.clone());
        let paths =
            [Path::start(world.io(), address, &nqn)?, Path::start(world.io(), address, &nqn)?];
        Ok(Self { world, target, paths, random, writing: false, next_write: 1 })
    }

    /// Lets time pass until `done` holds.
    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        let deadline = self.world.elapsed() + PATIENCE;
        loop {
            while self.turn()? {}
            if done(self) {
                return Ok(());
            }
            if self.world.elapsed() > deadline || !self.world.step() {
                return Err(format!("it takes too long until {what}"));
            }
        }
    }

    fn turn(&mut self) -> Result<bool, String> {
        let first = usize::try_from(self.random.below(self.target.cores.len() as u64));
        let mut busy = self.target.turn(first.unwrap_or(0))?;
        for path in &mut self.paths {
            busy |= path.turn()?;
        }
        while self.writing && self.paths[0].outstanding.len() < DEPTH {
            let block = self.random.below(BLOCKS - MAX_BLOCKS + 1);
            let count = 1 + self.random.below(MAX_BLOCKS);
            let queue = usize::try_from(self.random.below(u64::from(QUEUES))).unwrap_or(0);
            self.next_write += 1;
            self.paths[0].write(queue, self.next_write, (block, count))?;
            busy = true;
        }
        Ok(busy)
    }

    /// The instance of a path's controller.
    fn identify(&mut self, path: usize) -> Result<ControllerInstance, String> {
        let sqe = Sqe {
            opc: admin::IDENTIFY,
            cdw10: u32::from(cns::CONTROLLER).into(),
            ..Sqe::default()
        };
        let data = self.admin(path, sqe, 4096)?.1;
        let controller =
            IdentifyController::read_from_bytes(&data).map_err(|error| error.to_string())?;
        Ok(ControllerInstance {
            cntlid: ControllerId(controller.cntlid.get()),
            ciu: controller.ciu,
            cirn: controller.cirn.get(),
        })
    }

    /// Executes an admin command that reads `len` bytes. Gives DW0 and the bytes.
    fn admin(&mut self, path: usize, sqe: Sqe, len: usize) -> Result<(u32, Vec<u8>), String> {
        self.paths[path].submit_admin(sqe, len)?;
        self.until("an admin command is done", |run| run.paths[path].answer.is_some())?;
        let done = self.paths[path].answer.take().ok_or("no answer")?;
        let cqe = done.result.map_err(|error| format!("{}: {error}", done.summary))?;
        Ok((cqe.dw0, done.data.into_read().map(|buf| buf.to_vec()).unwrap_or_default()))
    }

    /// Has the second controller reset the lost one. Gives whether the target says that nothing of it is left.
    fn reset(
        &mut self,
        lost: ControllerInstance,
        quiesce: Duration,
        seen: &mut Seen,
    ) -> Result<bool, String> {
        let begun = self.world.elapsed();
        let (dw0, _) = self.admin(1, lost.reset(), 0)?;
        if dw0 & IMMEDIATE != 0 {
            seen.immediate = true;
            return Ok(true);
        }
        loop {
            if let Some(status) = self.reset_status(lost)? {
                seen.succeeded = status == ResetStatus::Succeeded;
                seen.not_done = !seen.succeeded;
                return Ok(seen.succeeded);
            }
            let waited = self.world.elapsed() - begun;
            if waited > quiesce + Duration::from_millis(20) {
                return Err(format!("the reset is in progress after {waited:?}"));
            }
            let next = self.world.elapsed() + Duration::from_millis(1);
            self.until("the next look", |run| run.world.elapsed() >= next)?;
        }
    }

    /// How the reset has ended, if it has.
    fn reset_status(&mut self, lost: ControllerInstance) -> Result<Option<ResetStatus>, String> {
        let mut sqe = Sqe { opc: admin::GET_LOG_PAGE, ..Sqe::default() };
        let lid = lid::CROSS_CONTROLLER_RESET;
        GetLogPage { lid, lsp: 0, retain_event: false, len_bytes: 64, offset: 0, csi: 0 }
            .write(&mut sqe);
        let page = self.admin(1, sqe, 64)?.1;
        let (header, rest) =
            CrossResetLogHeader::read_from_prefix(&page).map_err(|error| error.to_string())?;
        let (entry, _) =
            CrossResetLogEntry::read_from_prefix(rest).map_err(|error| error.to_string())?;
        let named = (header.entries.get(), entry.cntlid.get(), entry.ciu);
        if named != (1, lost.cntlid.0, lost.ciu) {
            return Err(format!("the log page is about another reset: {named:?}"));
        }
        match ResetStatus::from_wire(entry.status) {
            Some(ResetStatus::InProgress) => Ok(None),
            Some(status) => Ok(Some(status)),
            None => Err(format!("a reset in the state {}", entry.status)),
        }
    }

    /// Writes every block by the second path.
    fn replay(&mut self) -> Result<(), String> {
        for round in 0..2 {
            for block in 0..BLOCKS {
                let write = SECOND_PATH + round * BLOCKS + block;
                self.until("there is room", |run| run.paths[1].outstanding.len() < DEPTH)?;
                self.paths[1].write(0, write, (block, 1))?;
            }
        }
        self.until("all is written again", |run| run.paths[1].outstanding.is_empty())
    }
}

/// One path of the host.
struct Path {
    io: SimIo,
    pool: BufferPool,
    completions: Vec<Completion>,
    controller: Controller,
    queues: IoQueueSet,
    outstanding: BTreeSet<u64>,
    answer: Option<CommandDone>,
    /// Nothing goes by this path any more.
    silent: bool,
    awake: bool,
}

impl Path {
    fn start(mut io: SimIo, address: SocketAddr, subnqn: &Nqn) -> Result<Self, String> {
        let pool = BufferPool::new(&PoolConfig::new(POOL)).map_err(|error| error.to_string())?;
        let config = HostConfig {
            kato_ms: u32::try_from(KATO.as_millis()).unwrap_or(u32::MAX),
            io_queues: QUEUES,
            io_entries: 32,
            ..HostConfig::new(address, subnqn.clone(), secrets::host_nqn(0)?, HostId([9; 16]))
        };
        let token = Token { owner: 0, generation: 0, index: 0 };
        let first_queue = Token { index: FIRST_QUEUE_INDEX, ..token };
        let queues = IoQueueSet::new(&config, 1..=QUEUES, first_queue);
        let now = io.now();
        let mut cx = Context { io: &mut io, pool: &pool, now };
        let controller = Controller::connect(&mut cx, config, token);
        Ok(Self {
            io,
            pool,
            completions: Vec::new(),
            controller,
            queues,
            outstanding: BTreeSet::new(),
            answer: None,
            silent: false,
            awake: true,
        })
    }

    fn is_ready(&self) -> bool {
        self.controller.association().is_some() && self.queues.is_ready()
    }

    /// One turn of its loop, unless it sleeps. True: it had work.
    fn turn(&mut self) -> Result<bool, String> {
        if self.silent || !self.io.has_completions() && !std::mem::take(&mut self.awake) {
            return Ok(false);
        }
        let mut completions = std::mem::take(&mut self.completions);
        self.io.poll(Wait::No, &mut completions).map_err(|error| error.to_string())?;
        let now = self.io.now();
        let Self { io, pool, controller, queues, .. } = self;
        let mut cx = Context { io, pool, now };
        for completion in completions.drain(..) {
            if completion.token.index < FIRST_QUEUE_INDEX {
                controller.handle_completion(&mut cx, completion);
            } else {
                queues.handle_completion(&mut cx, completion);
            }
        }
        while let Some(event) = controller.poll_event() {
            match event {
                ControllerEvent::Up(association) => queues.handle_up(&mut cx, &association),
                ControllerEvent::Down(error) => return Err(format!("a path is down: {error}")),
                _ => {}
            }
        }
        while let Some(event) = queues.poll_event() {
            if let IoQueueEvent::Lost { error, .. } = event {
                return Err(format!("a queue is lost: {error}"));
            }
        }
        while let Some(done) = controller.poll_done() {
            self.answer = Some(done);
        }
        while let Some((_, done)) = queues.poll_done() {
            done.result.map_err(|error| format!("{}: {error}", done.summary))?;
            self.outstanding.remove(&done.user);
        }
        controller.flush(&mut cx);
        queues.flush(&mut cx);
        self.completions = completions;
        Ok(true)
    }

    /// Writes blocks whose content names the write.
    fn write(
        &mut self,
        queue: usize,
        write: u64,
        (block, count): (u64, u64),
    ) -> Result<(), String> {
        let len = usize::try_from(count).unwrap_or(1) * BLOCK;
        let mut data = IoBuf::heap(len);
        data.chunks_exact_mut(8).for_each(|place| place.copy_from_slice(&write.to_le_bytes()));
        let range = u32::try_from(count).ok().and_then(|count| BlockRange::new(block, count));
        let range = range.ok_or("an impossible range")?;
        let command = Command::write(NamespaceId(1), range, data.share(), false);
        let now = self.io.now();
        let mut cx = Context { io: &mut self.io, pool: &self.pool, now };
        let submitted = self.queues.submit(&mut cx, queue, command, write);
        submitted.map_err(|rejected| rejected.to_string())?;
        self.outstanding.insert(write);
        self.awake = true;
        Ok(())
    }

    fn submit_admin(&mut self, sqe: Sqe, len: usize) -> Result<(), String> {
        let data = if len > 0 { Data::Read(IoBuf::heap(len)) } else { Data::None };
        let now = self.io.now();
        let mut cx = Context { io: &mut self.io, pool: &self.pool, now };
        let submitted = self.controller.submit(&mut cx, Command::new(sqe, data), ADMIN);
        self.awake = true;
        submitted.map_err(|rejected| rejected.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: u64 = 7;

    fn landing(block: u64, write: u64) -> Landing {
        Landing { block, write }
    }

    #[test]
    fn the_check_finds_a_write_that_overtakes_or_comes_after_the_fence() {
        let fine = [landing(1, LOST), landing(2, LOST), landing(1, SECOND_PATH)];
        assert_eq!(check(&fine, Some(2)), Ok(()));
        assert_eq!(check(&fine, None), Ok(()));
        assert!(check(&fine, Some(1)).unwrap_err().contains("after it was fenced"));
        let overtaken = [landing(1, LOST), landing(1, SECOND_PATH), landing(1, LOST)];
        assert!(check(&overtaken, None).unwrap_err().contains("overtook"));
        let elsewhere = [landing(1, SECOND_PATH), landing(2, LOST)];
        assert_eq!(check(&elsewhere, None), Ok(()));
        assert!(check(&elsewhere, Some(1)).is_err());
    }
}
