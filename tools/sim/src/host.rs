//! A simulated host: the production host, and a program that keeps it busy.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use raceline_host::{
    BackoffConfig, Command, CommandDone, ControllerEvent, CredentialStore, Data, Hints, HostConfig,
    MultipathConfig, PathAddress, PathEvent, PathSet, PathSetEvent, Paths, QueueCounters,
    Transport,
};
use raceline_proto::nvme::feature::{COPY_FORMAT_2_ENABLED, HOST_BEHAVIOR_LEN, fid};
use raceline_proto::nvme::opcode::admin;
use raceline_proto::nvme::{HostId, Nqn, Sqe};
use raceline_reactor::{BufferPool, Completion, Context, Io, IoBuf, PoolConfig, Token, Wait};

use crate::command::{Kind, Operation};
use crate::content::{Content, Place, WriteId};
use crate::link::FaultIo;
use crate::model::Fate;
use crate::plan::HostPlan;
use crate::secrets;
use crate::world::{Duty, Shared};

/// Index of the first I/O queue in tokens; each of two controllers has two below.
const FIRST_QUEUE_INDEX: u32 = 4;
/// A host has two staging buffers; with more queues, further ones come from the heap.
const POOL: &[(usize, usize)] = &[(128 << 10, 2)];
/// Blocks of one verifying read.
const VERIFY_BLOCKS: u64 = 8;
/// Blocks of a fused operation.
const FUSED_BLOCKS: u64 = 4;
/// Most ranges of one Copy.
const COPY_RANGES: u64 = 3;
/// Most ranges of one Deallocate.
const DEALLOCATE_RANGES: u64 = 3;
/// Names the command that says what the host can do.
const BEHAVIOR: u64 = 0;
/// Blocks that get most commands when there is a hot spot.
const HOT_BLOCKS: u64 = 12;

/// The state of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It works.
    Working,
    /// It was asked to disconnect, or has given up.
    Leaving,
    /// Its controller and queues are closed.
    Ended,
}

/// One host.
pub struct Host {
    /// Its number.
    pub index: usize,
    /// Its I/O.
    pub io: FaultIo,
    /// Its state.
    pub life: Life,
    plan: HostPlan,
    pool: BufferPool,
    completions: Vec<Completion>,
    paths: Paths,
    queues: PathSet,
    operations: BTreeMap<u64, Operation>,
    was_up: bool,
    has_greeted: bool,
    /// It got a request outside of a turn.
    awake: bool,
}

impl Host {
    /// Starts connecting.
    ///
    /// # Errors
    /// When there is no memory, or the plan is impossible.
    pub fn start(
        index: usize,
        mut io: FaultIo,
        addresses: &[SocketAddr],
        subnqn: &Nqn,
        plan: &HostPlan,
        reauthenticate_after: Option<Duration>,
    ) -> Result<Self, String> {
        let pool = BufferPool::new(&PoolConfig::new(POOL)).map_err(|error| error.to_string())?;
        let hostnqn = secrets::host_nqn(index)?;
        let mut id = [1; 16];
        id[0] = u8::try_from(index).unwrap_or(u8::MAX);
        let config = HostConfig {
            kato_ms: plan.kato_ms,
            header_digest: plan.header_digest,
            data_digest: plan.data_digest,
            io_queues: plan.queues,
            io_entries: plan.entries,
            disable_sq_flow: plan.disable_sq_flow,
            command_timeout: Some(plan.command_timeout),
            backoff: BackoffConfig {
                first: Duration::from_millis(2),
                longest: Duration::from_millis(200),
                give_up_after: None,
            },
            credentials: match reauthenticate_after {
                Some(_) => secrets::credentials()?,
                None => CredentialStore::default(),
            },
            reauthenticate_after,
            more_paths: addresses[1..]
                .iter()
                .map(|&address| PathAddress { address, source: None, transport: Transport::Tcp })
                .collect(),
            multipath: plan.paths.as_ref().map(|paths| MultipathConfig {
                policy: paths.policy,
                failback: paths.failback,
                default_quiesce: paths.quiesce,
                ..MultipathConfig::default()
            }),
            ..HostConfig::new(addresses[0], subnqn.clone(), hostnqn, HostId(id))
        };
        let token = Token { owner: 0, generation: 0, index: 0 };
        let first_queue = Token { index: FIRST_QUEUE_INDEX, ..token };
        let now = io.now();
        let mut cx = Context { io: &mut io, pool: &pool, now };
        let queues = PathSet::new(&cx, &config, 1..=plan.queues, first_queue);
        let paths = Paths::connect(&mut cx, &config, token);
        Ok(Self {
            index,
            io,
            life: Life::Working,
            plan: plan.clone(),
            pool,
            completions: Vec::new(),
            paths,
            queues,
            operations: BTreeMap::new(),
            was_up: false,
            has_greeted: false,
            awake: true,
        })
    }

    /// The counters of its I/O queues.
    #[must_use]
    pub fn queue_counters(&self) -> Arc<QueueCounters> {
        Arc::clone(self.queues.counters())
    }

    /// One turn of its loop, unless it sleeps. True: it had work.
    ///
    /// When a rule is broken; says which.
    pub fn turn(&mut self, shared: &mut Shared) -> Result<bool, String> {
        let may_submit = self.life == Life::Working && self.operations.len() < self.plan.depth;
        let may_submit = may_submit && shared.has_work();
        if !self.io.has_completions() && !std::mem::take(&mut self.awake) && !may_submit {
            return Ok(false);
        }
        let mut completions = std::mem::take(&mut self.completions);
        self.io.poll(Wait::No, &mut completions).map_err(|error| error.to_string())?;
        let now = self.io.now();
        let Self { io, pool, paths, queues, .. } = self;
        let mut cx = Context { io, pool, now };
        let busy = !completions.is_empty();
        for completion in completions.drain(..) {
            if completion.token.index < FIRST_QUEUE_INDEX {
                paths.handle_completion(&mut cx, completion);
            } else {
                queues.handle_completion(&mut cx, completion);
            }
        }
        self.completions = completions;
        self.handle_events(shared)?;
        while let Some(done) = self.paths.poll_done() {
            if done.user == BEHAVIOR && done.result.is_ok() {
                shared.greeted += usize::from(!std::mem::replace(&mut self.has_greeted, true));
            }
        }
        while let Some((queue, done)) = self.queues.poll_done() {
            self.end(queue, &done, shared)?;
        }
        if self.life == Life::Working && shared.duty != Duty::Rest {
            self.submit_some(shared)?;
        }
        let mut cx = Context { io: &mut self.io, pool: &self.pool, now };
        self.paths.flush(&mut cx);
        self.queues.flush(&mut cx);
        let ended =
            self.paths.is_finished() && self.queues.is_closed() && self.operations.is_empty();
        if self.life == Life::Leaving && ended {
            self.life = Life::Ended;
        }
        Ok(busy)
    }

    /// Disconnects regularly.
    pub fn disconnect(&mut self) {
        let now = self.io.now();
        let mut cx = Context { io: &mut self.io, pool: &self.pool, now };
        self.queues.close(&mut cx);
        self.paths.disconnect(&mut cx);
        self.life = Life::Leaving;
        self.awake = true;
    }

    /// The host ends without a disconnect: the fate of its commands stays unknown.
    ///
    /// # Errors
    /// When the model does not know a command.
    pub fn crash(self, shared: &mut Shared) -> Result<(), String> {
        let Self { operations, .. } = self;
        for operation in operations.into_values() {
            shared.set_busy(&operation, false);
            operation.decide(Fate::Unknown, shared)?;
            shared.totals.unknown_fates += 1;
        }
        Ok(())
    }

    /// Whether commands flow on all queues.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let paths = self.queues.summaries();
        !paths.is_empty()
            && paths.iter().all(|path| {
                let controller = self.paths.controller(path.id);
                path.is_ready && controller.is_some_and(|it| it.association().is_some())
            })
    }

    /// Commands outstanding.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.operations.len()
    }

    /// The beginning of its oldest command.
    #[must_use]
    pub fn oldest(&self) -> Option<u64> {
        self.operations.values().map(|operation| operation.begun).min()
    }

    /// What it is waiting for, for error messages.
    #[must_use]
    pub fn describe(&self) -> String {
        let (index, life) = (self.index, self.life);
        let ready = self.is_ready();
        let kinds: Vec<String> = self
            .operations
            .iter()
            .take(5)
            .map(|(user, operation)| format!("{user}: {:?}", operation.kind))
            .collect();
        let count = self.operations.len();
        let text = format!("host {index}: {life:?}, ready: {ready}, {count} outstanding {kinds:?}");
        if ready {
            return text;
        }
        format!("{text}\n{:?}\n{:?}", self.paths, self.queues)
    }

    fn handle_events(&mut self, shared: &mut Shared) -> Result<(), String> {
        let now = self.io.now();
        let index = self.index;
        let mut cx = Context { io: &mut self.io, pool: &self.pool, now };
        while let Some(PathEvent { path, event }) = self.paths.poll_event() {
            match event {
                ControllerEvent::Up(association) => {
                    let cntlid = association.cntlid;
                    shared.note(format_args!("host {index} is up by path {path}: {cntlid}"));
                    shared.totals.reconnects +=
                        u64::from(std::mem::replace(&mut self.was_up, true));
                    self.queues.handle_up(&mut cx, path, &association);
                    // The first path that is up: the other controller may never learn of it.
                    if let Err(rejected) = self.paths.submit(&mut cx, host_behavior(), BEHAVIOR) {
                        shared.note(format_args!("host {index}: {}", rejected.reason));
                    }
                }
                ControllerEvent::Down(error) => {
                    shared.note(format_args!("host {index} is down by path {path}: {error}"));
                    lost(shared, &error)?;
                    self.queues.handle_down(&mut cx, path, &error);
                }
                ControllerEvent::Namespaces(namespaces) => {
                    shared.totals.namespace_events += 1;
                    self.queues.handle_namespaces(&mut cx, path, &namespaces);
                }
                ControllerEvent::DiscoveryChanged | ControllerEvent::Ana(_) => {}
                ControllerEvent::Failed(error) => {
                    shared.note(format_args!("host {index} gives up path {path}: {error}"));
                    lost(shared, &error)?;
                    self.queues.handle_failed(&mut cx, path);
                    if self.paths.count() == 0 {
                        self.queues.close(&mut cx);
                        self.life = Life::Leaving;
                    }
                }
                ControllerEvent::Closed => {
                    shared.note(format_args!("path {path} of host {index} is closed"));
                }
            }
        }
        while let Some(event) = self.queues.poll_event() {
            if let PathSetEvent::Lost { path, cntlid, error } = event {
                shared.note(format_args!("host {index} has lost a queue of path {path}: {error}"));
                lost(shared, &error)?;
                self.paths.queue_lost(&mut cx, path, cntlid, error);
            }
        }
        Ok(())
    }

    /// A command has ended: it must end once, and for a reason.
    fn end(&mut self, queue: usize, done: &CommandDone, shared: &mut Shared) -> Result<(), String> {
        let user = done.user;
        let ended = match &done.result {
            Ok(_) => "done".to_owned(),
            Err(error) => error.to_string(),
        };
        let index = self.index;
        shared.note(format_args!("host {index} queue {queue} command {user}: {ended}"));
        let Some(operation) = self.operations.remove(&user) else {
            return Err(format!("host {index}: command {user} has ended twice, or never began"));
        };
        shared.set_busy(&operation, false);
        shared.totals.commands += 1;
        shared.totals.reads += u64::from(operation.kind == Kind::Read);
        operation
            .end(done, shared)
            .map_err(|error| format!("host {index}, {}, command {user}: {error}", done.summary))?;
        if let Some(partner) = operation.partner.and_then(|user| self.operations.get_mut(&user)) {
            partner.partner_ok = Some(done.result.is_ok());
        }
        Ok(())
    }

    fn submit_some(&mut self, shared: &mut Shared) -> Result<(), String> {
        while self.operations.len() < self.plan.depth && !self.queues.is_empty() {
            let queue = shared.pick(self.queues.len());
            // Sometimes all free entries at once, sometimes one at a time.
            if self.queues.room(queue) < 2 || shared.below(3) == 0 {
                return Ok(());
            }
            let operation = match shared.duty {
                Duty::Rest => None,
                Duty::Verify => next_verification(shared),
                Duty::Work if shared.issued >= shared.issue_until => None,
                Duty::Work => {
                    shared.issued += 1;
                    Some(random_operation(shared)?)
                }
            };
            let Some(operation) = operation else { return Ok(()) };
            if !shared.may_begin(&operation)? {
                continue;
            }
            if operation.kind == Kind::FusedCompare {
                self.submit_fused(queue, operation, shared)?;
            } else {
                let user = shared.next_user();
                self.submit(queue, user, operation, shared)?;
            }
        }
        Ok(())
    }

    fn submit_fused(
        &mut self,
        queue: usize,
        mut first: Operation,
        shared: &mut Shared,
    ) -> Result<(), String> {
        let (one, two) = (shared.next_user(), shared.next_user());
        let write = shared.next_write();
        let second =
            Operation { kind: Kind::FusedWrite, write, partner: Some(one), ..first.clone() };
        first.partner = Some(two);
        shared.totals.fused += 1;
        self.submit(queue, one, first, shared)?;
        self.submit(queue, two, second, shared)
    }

    fn submit(
        &mut self,
        queue: usize,
        user: u64,
        mut operation: Operation,
        shared: &mut Shared,
    ) -> Result<(), String> {
        operation.begin(shared)?;
        let block_size = shared.block_size(operation.namespace);
        let command = operation.command(block_size)?;
        let (index, len) = (self.index, command.data.len());
        let Operation { kind, namespace, ranges, write, .. } = &operation;
        shared.note(format_args!(
            "host {index} queue {queue} command {user}: {kind:?} of namespace {} at {ranges:?}, {write}",
            namespace + 1
        ));
        if matches!(kind, Kind::Write { .. } | Kind::FusedWrite) {
            let in_capsule = len as u64 <= u64::from(shared.plan.target.in_capsule_bytes);
            shared.totals.in_capsule_writes += u64::from(in_capsule);
            shared.totals.r2t_writes += u64::from(!in_capsule);
        }
        let now = self.io.now();
        let mut cx = Context { io: &mut self.io, pool: &self.pool, now };
        match self.queues.submit(&mut cx, queue, command, user) {
            Ok(()) => {
                shared.set_busy(&operation, true);
                self.operations.insert(user, operation);
            }
            Err(rejected) => {
                return Err(format!("there was room, but {}", rejected.reason));
            }
        }
        Ok(())
    }
}

/// Host Behavior Support: the host uses source ranges of Copy that name their namespaces.
fn host_behavior() -> Command {
    let mut page = [0; HOST_BEHAVIOR_LEN];
    page[4..6].copy_from_slice(&COPY_FORMAT_2_ENABLED.to_le_bytes());
    let sqe = Sqe {
        opc: admin::SET_FEATURES,
        cdw10: u32::from(fid::HOST_BEHAVIOR).into(),
        ..Sqe::default()
    };
    let data = Data::Write(IoBuf::from_slice(&page).share());
    Command { sqe, data, hints: Hints::default() }
}

/// A connection is lost: checks that there is a reason.
fn lost(shared: &mut Shared, error: &raceline_host::HostError) -> Result<(), String> {
    shared.losses += 1;
    if shared.losses_excused {
        return Ok(());
    }
    Err(format!("a connection was lost without reason: {error}"))
}

fn next_verification(shared: &mut Shared) -> Option<Operation> {
    let Place { namespace, lba } = *shared.unverified.last()?;
    let most = shared.plan.max_blocks.min(VERIFY_BLOCKS);
    let mut count = 0;
    let next = |count| move |place: &mut Place| *place == Place { namespace, lba: lba + count };
    while count < most && shared.unverified.pop_if(next(count)).is_some() {
        count += 1;
    }
    let ranges = vec![(lba, count)];
    Some(Operation::new(Kind::Read, namespace, ranges, WriteId::ZEROES))
}

fn random_operation(shared: &mut Shared) -> Result<Operation, String> {
    let mix = shared.plan.mix;
    let namespace = shared.pick(shared.plan.block_sizes.len());
    let fua = shared.below(4) == 0;
    let weights = [
        (mix.read, Kind::Read),
        (mix.write, Kind::Write { fua }),
        (mix.compare, Kind::Compare),
        (mix.fused, Kind::FusedCompare),
        (mix.write_zeroes, Kind::WriteZeroes),
        (mix.deallocate, Kind::Deallocate),
        (mix.copy, Kind::Copy),
        (mix.flush, Kind::Flush),
    ];
    let mut dice = shared.below(weights.iter().map(|(weight, _)| weight).sum());
    let mut chosen = Kind::Read;
    for (weight, kind) in weights {
        if dice < weight {
            chosen = kind;
            break;
        }
        dice -= weight;
    }
    if chosen == Kind::Copy {
        return Ok(random_copy(shared, namespace));
    }
    let most = if chosen == Kind::FusedCompare { FUSED_BLOCKS } else { u64::MAX };
    let ranges = match chosen {
        Kind::Flush => Vec::new(),
        Kind::Deallocate => random_ranges(shared),
        _ => vec![random_range(shared, most)],
    };
    let write = match chosen {
        Kind::Write { .. } => shared.next_write(),
        _ => WriteId::ZEROES,
    };
    let mut operation = Operation::new(chosen, namespace, ranges, write);
    if chosen.compares() {
        expect(&mut operation, shared)?;
    }
    Ok(operation)
}

/// Chooses what a comparison expects: mostly contents that are there.
fn expect(operation: &mut Operation, shared: &mut Shared) -> Result<(), String> {
    let wrong = shared.below(5) == 0;
    for place in operation.places() {
        let now = shared.model.tick();
        let mut known = Vec::new();
        for write in shared.model.candidates(place, now)? {
            let content = shared.copies.only_content(place, write);
            known.extend(content.map(|content| (write, content)));
        }
        let pick = shared.pick(known.len().max(1));
        let guess = (WriteId::ZEROES, Content::new(place, WriteId::ZEROES));
        let (write, content) = known.get(pick).copied().unwrap_or(guess);
        operation.expected.push(write);
        operation.images.push(content);
    }
    if wrong {
        let at = shared.pick(operation.expected.len());
        let write = WriteId(u64::MAX - shared.below(9));
        operation.expected[at] = write;
        operation.images[at].write = write;
    }
    Ok(())
}

/// A Copy of up to three ranges, from this namespace or from several. No range overlaps with what is written.
fn random_copy(shared: &mut Shared, namespace: usize) -> Operation {
    let across = shared.below(2) == 0;
    let block_size = shared.plan.block_sizes[namespace];
    let alike = |&other: &usize| shared.plan.block_sizes[other] == block_size;
    let namespaces: Vec<usize> = match across {
        true => (0..shared.plan.block_sizes.len()).filter(alike).collect(),
        false => vec![namespace],
    };
    // What is written is in one half of the blocks, what is read in the other one.
    let half = shared.plan.block_count / 2;
    let (reads_at, writes_at) = if shared.below(2) == 0 { (0, half) } else { (half, 0) };
    let share = half.min(shared.plan.max_blocks) / COPY_RANGES;
    let mut sources = Vec::new();
    for _ in 0..1 + shared.below(COPY_RANGES) {
        let count = 1 + shared.below(share.clamp(1, 8));
        let from = namespaces[shared.pick(namespaces.len())];
        sources.push((from, reads_at + shared.below(half - count + 1), count));
    }
    let total = sources.iter().map(|(_, _, count)| count).sum();
    let to = writes_at + shared.below(half - total + 1);
    let write = shared.next_write();
    let ranges = vec![(to, total)];
    Operation { sources, across, ..Operation::new(Kind::Copy, namespace, ranges, write) }
}

fn random_range(shared: &mut Shared, most: u64) -> (u64, u64) {
    let most = shared.plan.max_blocks.min(most);
    let hot = shared.plan.hot_spot && shared.below(5) > 0;
    let blocks = shared.plan.block_count;
    let space = if hot { blocks.min(HOT_BLOCKS) } else { blocks };
    let count = shared.random.size(usize::try_from(most.min(space)).unwrap_or(1)) as u64;
    (shared.below(space - count + 1), count)
}

/// Ranges that do not overlap.
fn random_ranges(shared: &mut Shared) -> Vec<(u64, u64)> {
    let count = 1 + shared.below(DEALLOCATE_RANGES);
    let share = shared.plan.block_count / count;
    let range = |index: u64| {
        let start = shared.below(share);
        (index * share + start, 1 + shared.below((share - start).min(8)))
    };
    (0..count).map(range).collect()
}
