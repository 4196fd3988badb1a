//! Jobs that run at the same time: their threads and queues, and whether they fit the namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use raceline_accel::Framework;
use raceline_host::{Association, CorePlace, HostConfig, NamespaceInfo, QueueKind, QueueMaps};
use raceline_proto::nvme::NamespaceId;
use raceline_reactor::{Backend, Mode};

use super::RunError;
use crate::job::{Batch, JobConfigError};
use crate::workload::{RwMode, Span, Workload};

/// Jobs that run at the same time.
#[derive(Clone, Debug)]
pub struct StageConfig {
    /// The controllers. Each gets as many I/O queues as the jobs use; `io_queues` and related fields are
    /// used only if jobs take the queues of maps.
    pub hosts: Vec<HostConfig>,
    /// The engine that computes digests; `None`: the CPU.
    pub accel: Option<Framework>,
    /// The jobs, at least one.
    pub jobs: Vec<JobSpec>,
    /// Whether the first job that ends, ends all.
    pub exit_all: bool,
    /// What a core does when it is idle.
    pub reactor_mode: Mode,
    /// How to do I/O.
    pub backend: Backend,
}

/// A job and its number of clones.
#[derive(Clone, Debug)]
pub struct JobSpec {
    /// The namespaces: commands go to them in turn.
    pub files: Vec<FileSpec>,
    /// Order and kind of the commands.
    pub mode: RwMode,
    /// Percentage of reads where `mode` is mixed.
    pub mixed_read_percent: u8,
    /// Bytes per command.
    pub io_bytes: u32,
    /// Commands in flight per queue.
    pub depth: u16,
    /// How commands are gathered.
    pub batch: Batch,
    /// Number of clones, which run at the same time.
    pub clones: u16,
    /// Queues of each clone on each of its controllers; each has the whole depth.
    pub queues: u16,
    /// Random access visits each address once before any a second time.
    pub random_map: bool,
    /// First byte of the range in each namespace.
    pub offset_bytes: u64,
    /// Distance in bytes between the beginnings of successive clones.
    pub offset_increment_bytes: u64,
    /// Size of the range in each namespace.
    pub size: Size,
    /// The amount of work after which the job ends.
    pub volume: Volume,
    /// The same seed gives the same addresses and the same data.
    pub seed: u64,
    /// Writes blocks that can be recognised, and checks the data of reads.
    pub verify: bool,
    /// Commands per second of all queues of a clone together (open loop).
    pub rate_iops: Option<u64>,
    /// How long it runs before recording.
    pub ramp: Duration,
    /// How long it records; `None`: until the volume is done.
    pub runtime: Option<Duration>,
    /// The CPUs of its threads.
    pub cpus: Cpus,
    /// The queues of its commands.
    pub route: Route,
}

impl JobSpec {
    /// Random reads of this size and depth by one queue, for a second; the namespaces are still to be set.
    #[must_use]
    pub fn new(io_bytes: u32, depth: u16) -> Self {
        Self {
            files: Vec::new(),
            mode: RwMode::RandRead,
            mixed_read_percent: 50,
            io_bytes,
            depth,
            batch: Batch::NONE,
            clones: 1,
            queues: 1,
            random_map: false,
            offset_bytes: 0,
            offset_increment_bytes: 0,
            size: Size::Rest,
            volume: Volume::Endless,
            seed: 1,
            verify: false,
            rate_iops: None,
            ramp: Duration::ZERO,
            runtime: Some(Duration::from_secs(1)),
            cpus: Cpus::Any,
            route: Route::Own,
        }
    }
}

/// The queues of a job's commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Route {
    /// Queues that only this job uses: on each controller as many as the job asks for.
    #[default]
    Own,
    /// The queues of the controller's maps ([`raceline_host::maps`]), whose size its [`HostConfig`] gives,
    /// shared with all other jobs on it.
    Maps {
        /// Whether the commands use the map for polled completions.
        polled: bool,
    },
}

/// A namespace of one of the controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSpec {
    /// Position of the controller in [`StageConfig::hosts`].
    pub host: usize,
    /// The namespace.
    pub nsid: NamespaceId,
}

/// The part of a namespace that is used, from the offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// All bytes after the offset.
    Rest,
    /// This number of bytes.
    Bytes(u64),
    /// This percentage of the bytes after the offset, rounded down to whole commands.
    Percent(u8),
}

/// The amount of work of a clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Volume {
    /// Only time ends it.
    Endless,
    /// This number of passes; a pass is as many commands as fit into the range.
    Passes(u64),
    /// This number of bytes.
    Bytes(u64),
}

/// The CPUs on which the threads of a job run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cpus {
    /// Anywhere: a thread for each clone, but no more than there are CPUs.
    #[default]
    Any,
    /// Each thread on any of these: a thread for each clone, but no more than CPUs.
    Shared(Vec<usize>),
    /// A thread bound to each of these; queues are dealt out to them in turn, and jobs that name
    /// the same CPU share its thread.
    Split(Vec<usize>),
}

/// Stands for the identifier of a queue that a map chooses, for each command.
pub(super) const BY_MAP: u16 = 0;

/// One queue job: its job, clone and queue, and the thread that runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) job: usize,
    pub(super) clone: u16,
    pub(super) queue: u16,
    pub(super) thread: usize,
    /// Queue identifiers by host, for the hosts that the job uses.
    pub(super) qids: BTreeMap<usize, u16>,
}

/// The threads, with their CPUs, loads and queues.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// The CPUs of each thread; empty: any.
    pub(super) threads: Vec<Vec<usize>>,
    pub(super) loads: Vec<Load>,
    /// Number of I/O queues of each host that belong to single jobs.
    pub(super) queues: Vec<u16>,
    /// Whether jobs take the queues of each host's maps.
    pub(super) mapped: Vec<bool>,
    /// The thread with each host's admin queue: the first thread that uses the host.
    pub(super) admins: Vec<usize>,
}

impl StageConfig {
    /// Assigns queues and threads.
    pub(super) fn layout(&self) -> Result<Layout, RunError> {
        let machine = std::thread::available_parallelism().map_or(1, usize::from);
        let mut layout = Layout {
            threads: Vec::new(),
            loads: Vec::new(),
            queues: vec![0; self.hosts.len()],
            mapped: vec![false; self.hosts.len()],
            admins: vec![usize::MAX; self.hosts.len()],
        };
        for (index, job) in self.jobs.iter().enumerate() {
            let clones = usize::from(job.clones.max(1));
            let first = layout.threads.len();
            let own = match &job.cpus {
                Cpus::Any => clones.min(machine),
                Cpus::Shared(cpus) => clones.min(cpus.len()),
                Cpus::Split(_) => 0,
            };
            let cpus = if let Cpus::Shared(cpus) = &job.cpus { cpus.clone() } else { Vec::new() };
            layout.threads.extend(std::iter::repeat_n(cpus, own));
            let queues = usize::from(job.queues.max(1));
            for (position, (clone, queue)) in (0..job.clones.max(1))
                .flat_map(|c| (0..job.queues.max(1)).map(move |q| (c, q)))
                .enumerate()
            {
                let thread = match &job.cpus {
                    Cpus::Split(cpus) => layout.bound_thread(cpus[position % cpus.len()]),
                    Cpus::Any | Cpus::Shared(_) => first + position / queues % own,
                };
                let qids = layout.take_queues(job, thread)?;
                layout.loads.push(Load { job: index, clone, queue, thread, qids });
            }
        }
        Ok(layout)
    }
}

impl Layout {
    /// The thread that is bound to this CPU; all jobs share it.
    fn bound_thread(&mut self, cpu: usize) -> usize {
        let found = self.threads.iter().position(|cpus| cpus == &[cpu]);
        found.unwrap_or_else(|| {
            self.threads.push(vec![cpu]);
            self.threads.len() - 1
        })
    }

    /// Takes a queue on each controller that the job uses.
    fn take_queues(
        &mut self,
        job: &JobSpec,
        thread: usize,
    ) -> Result<BTreeMap<usize, u16>, RunError> {
        let mut qids = BTreeMap::new();
        for file in &job.files {
            if qids.contains_key(&file.host) {
                continue;
            }
            let admin = &mut self.admins[file.host];
            *admin = (*admin).min(thread);
            let queues = &mut self.queues[file.host];
            let mapped = &mut self.mapped[file.host];
            let (own, others) = (job.route == Route::Own, *queues > 0 || *mapped);
            if others && own == *mapped {
                return Err(invalid("jobs with queues of their own and jobs on queue maps need controllers of their own".to_owned()));
            }
            if !own {
                *mapped = true;
                qids.insert(file.host, BY_MAP);
                continue;
            }
            *queues = queues.checked_add(1).ok_or_else(|| {
                RunError::Invalid("a controller has at most 65535 I/O queues".to_owned())
            })?;
            qids.insert(file.host, *queues);
        }
        Ok(qids)
    }

    /// The position of a thread among the threads that use the maps of a host.
    pub(super) fn place(&self, host: usize, thread: usize) -> CorePlace {
        let uses = |load: &&Load| load.qids.contains_key(&host);
        let threads: BTreeSet<usize> =
            self.loads.iter().filter(uses).map(|load| load.thread).collect();
        let index = threads.iter().take_while(|&&other| other != thread).count();
        CorePlace { index, count: threads.len() }
    }

    /// Checks that every thread that uses a host's maps has a queue of each map.
    pub(super) fn check_maps(&self, host: usize, maps: &QueueMaps) -> Result<(), RunError> {
        let threads = self.place(host, usize::MAX).count;
        for kind in QueueKind::ALL {
            let count = usize::from(maps.count(kind));
            if count > 0 && count < threads || maps.total() == 0 {
                return Err(invalid(format!(
                    "{count} {kind} queues, of the {} that the controller grants, are fewer than the {threads} threads: ask for at least one for each, or use fewer --cores",
                    maps.total()
                )));
            }
        }
        Ok(())
    }

    /// The CPUs that threads are bound to; empty if a thread may run anywhere.
    pub(super) fn bound_cores(&self) -> Vec<usize> {
        if self.threads.iter().any(Vec::is_empty) {
            return Vec::new();
        }
        let all: BTreeSet<usize> = self.threads.iter().flatten().copied().collect();
        all.into_iter().collect()
    }

    /// The hosts that a thread talks to, each with its queue identifiers and, for each queue, the position
    /// of its load among the thread's loads.
    pub(super) fn ports(&self, thread: usize) -> BTreeMap<usize, Vec<(u16, usize)>> {
        let mut ports: BTreeMap<usize, Vec<(u16, usize)>> = BTreeMap::new();
        let loads = self.loads.iter().filter(|load| load.thread == thread);
        for (position, load) in loads.enumerate() {
            for (&host, &qid) in &load.qids {
                ports.entry(host).or_default().push((qid, position));
            }
        }
        ports
    }
}

/// A part of a job that does not fit its namespaces and controllers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// Position of the job in its stage.
    pub job: usize,
    /// The key that does not fit, under its name in [`crate::fio::KEYS`].
    pub key: &'static str,
    /// The namespace at fault, by its position in [`JobSpec::files`], if there is one.
    pub file: Option<usize>,
    /// What does not fit, and what would; options begin with two dashes.
    pub message: String,
}

impl Misfit {
    /// A range that is too small or too large, or blocks that are too small.
    pub(super) fn of_workload(job: usize, error: JobConfigError) -> Self {
        let key = match error {
            JobConfigError::RangeTooSmall { .. }
            | JobConfigError::RangeBelowDepth { .. }
            | JobConfigError::RangeTooLarge { .. } => "size",
            JobConfigError::BlockTooSmall(_) => "verify",
            JobConfigError::Nothing | JobConfigError::Endless => "runtime",
        };
        Self { job, key, file: None, message: error.to_string() }
    }
}

/// The work of a job's clones: one job for each of their queues, in the order of the loads.
pub(super) fn plan(
    (position, job): (usize, &JobSpec),
    hosts: &[HostConfig],
    associations: &[Association],
) -> Result<Vec<Plan>, RunError> {
    let mut find = |file: &FileSpec, job: &JobSpec| {
        let association = &associations[file.host];
        let namespace = find_namespace(association, file.nsid)
            .map_err(|error| ("filename", error.to_string()))?;
        check_limits(job, &hosts[file.host], association, &namespace)?;
        Ok(namespace)
    };
    plan_with((position, job), &mut find)
}

/// Gives the namespace of a file, if a job can use it.
type Find<'a> = dyn FnMut(&FileSpec, &JobSpec) -> Result<NamespaceInfo, Problem> + 'a;

/// The same, where `find` knows the namespaces.
pub(super) fn plan_with(
    (position, job): (usize, &JobSpec),
    find: &mut Find<'_>,
) -> Result<Vec<Plan>, RunError> {
    let misfit = |file: Option<usize>, (key, message): Problem| {
        RunError::Misfit(Misfit { job: position, key, file, message })
    };
    let mut plans = Vec::with_capacity(usize::from(job.clones));
    for clone in 0..job.clones.max(1) {
        let offset = job.offset_increment_bytes.checked_mul(u64::from(clone));
        let offset = offset.and_then(|more| job.offset_bytes.checked_add(more));
        let offset = offset
            .ok_or_else(|| misfit(None, ("offset", "--offset is past any namespace".to_owned())))?;
        let mut spans = Vec::with_capacity(job.files.len());
        for (index, file) in job.files.iter().enumerate() {
            let at = |problem| misfit(Some(index), problem);
            let namespace = find(file, job).map_err(at)?;
            spans.push(span(job, offset, &namespace).map_err(at)?);
        }
        plans.push(Plan::new(job, clone, spans));
    }
    Ok(plans)
}

/// The work of one clone of a job.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) workload: Workload,
    /// The first of the parts of this clone's queues, and the number of parts: each queue has a part of its
    /// clone's range, or of the job's range if that is verified.
    pub(super) first_part: u64,
    pub(super) parts: u64,
    /// Commands of all its queues together.
    pub(super) commands: Option<u64>,
}

impl Plan {
    fn new(job: &JobSpec, clone: u16, spans: Vec<Span>) -> Self {
        let queues = u64::from(job.queues.max(1));
        let clones = u64::from(job.clones.max(1));
        // Clones that write the same blocks at once could not be verified.
        let divided = job.verify && job.offset_increment_bytes == 0;
        let (first_part, parts) =
            if divided { (u64::from(clone) * queues, clones * queues) } else { (0, queues) };
        let workload = Workload {
            mode: job.mode,
            mixed_read_percent: job.mixed_read_percent,
            spans,
            random_map: job.random_map,
            seed: job.seed,
            verify: job.verify,
            // The queues that share the range also share the arrivals by taking turns.
            rate_iops: job.rate_iops.map(|rate| rate.saturating_mul(parts / queues)),
        };
        let commands = match job.volume {
            Volume::Endless => None,
            Volume::Passes(passes) => {
                let all = workload.units().saturating_mul(passes);
                Some(if divided { all / clones } else { all })
            }
            Volume::Bytes(bytes) => Some(bytes.div_ceil(u64::from(job.io_bytes.max(1)))),
        };
        Self { workload, first_part, parts, commands }
    }

    /// The commands of one of the clone's queues.
    pub(super) fn commands_of(&self, queue: u16, queues: u16) -> Option<u64> {
        let (queue, queues) = (u64::from(queue), u64::from(queues.max(1)));
        self.commands.map(|all| all / queues + u64::from(queue < all % queues))
    }
}

/// Checks that no other job or clone writes the blocks that a job verifies.
pub(super) fn check_overlaps(jobs: &[JobSpec], plans: &[Vec<Plan>]) -> Result<(), RunError> {
    let misfit = |job: usize, key: &'static str, message: String| {
        RunError::Misfit(Misfit { job, key, file: None, message })
    };
    check_twice(jobs)?;
    let ranges: Vec<Vec<(FileSpec, u64, u64)>> = jobs
        .iter()
        .zip(plans)
        .map(|(job, plans)| {
            let spans = plans.iter().flat_map(|plan| job.files.iter().zip(&plan.workload.spans));
            spans
                .map(|(file, at)| (*file, at.first_block, at.first_block + at.block_count))
                .collect()
        })
        .collect();
    let overlap = |one: &[(FileSpec, u64, u64)], other: &[(FileSpec, u64, u64)]| {
        one.iter().any(|a| other.iter().any(|b| a.0 == b.0 && a.1 < b.2 && b.1 < a.2))
    };
    for (one, job) in jobs.iter().enumerate().filter(|(_, job)| job.verify) {
        for (other, neighbour) in jobs.iter().enumerate() {
            let writes = |job: &JobSpec| job.mode.read_percent(job.mixed_read_percent) < 100;
            if one != other
                && (writes(job) || writes(neighbour))
                && overlap(&ranges[one], &ranges[other])
            {
                let message = "two jobs use the same blocks at once and one of them verifies: give each a range of its own, or let one wait (stonewall)";
                return Err(misfit(one, "verify", message.to_owned()));
            }
        }
        let increment = job.offset_increment_bytes;
        let too_long = |plan: &Plan| {
            plan.workload
                .spans
                .iter()
                .any(|at| at.block_count * u64::from(at.block_size) > increment)
        };
        if increment > 0 && job.clones > 1 && plans[one].iter().any(too_long) {
            let message = format!(
                "to verify, clones may not overlap: use a --size of at most {increment}, the offset_increment"
            );
            return Err(misfit(one, "size", message));
        }
    }
    Ok(())
}

/// Refuses to verify a namespace that a job names twice: two passes over it cannot be verified.
fn check_twice(jobs: &[JobSpec]) -> Result<(), RunError> {
    for (job, spec) in jobs.iter().enumerate().filter(|(_, spec)| spec.verify) {
        let known = |index: &usize| spec.files[..*index].contains(&spec.files[*index]);
        if let Some(file) = (0..spec.files.len()).find(known) {
            let nsid = spec.files[file].nsid;
            let message = format!(
                "to verify, a job may use namespace {nsid} of a target only once: name it once"
            );
            return Err(RunError::Misfit(Misfit {
                job,
                key: "filename",
                file: Some(file),
                message,
            }));
        }
    }
    Ok(())
}

fn invalid(message: String) -> RunError {
    RunError::Invalid(message)
}

/// The namespace, if it exists in the subsystem.
pub(super) fn find_namespace(
    association: &Association,
    nsid: NamespaceId,
) -> Result<NamespaceInfo, RunError> {
    let found = association.namespaces.iter().find(|namespace| namespace.nsid == nsid);
    found.cloned().ok_or_else(|| {
        let known: Vec<String> =
            association.namespaces.iter().map(|ns| ns.nsid.to_string()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        invalid(format!("there is no namespace {nsid}; the subsystem has {known}"))
    })
}

/// A key, and what is wrong with its value.
pub(super) type Problem = (&'static str, String);

/// Checks that controller and namespace can do what the job asks.
fn check_limits(
    job: &JobSpec,
    host: &HostConfig,
    association: &Association,
    namespace: &NamespaceInfo,
) -> Result<(), Problem> {
    let (block_size, io_bytes) = (namespace.block_size, job.io_bytes);
    if io_bytes == 0 || !io_bytes.is_multiple_of(block_size) {
        let message = format!("--bs {io_bytes} is not a multiple of the block size {block_size}");
        return Err(("bs", message));
    }
    if let Some(max) = association.controller.max_transfer_bytes.filter(|max| io_bytes > *max) {
        let message =
            format!("--bs {io_bytes} is more than the controller's largest transfer {max}");
        return Err(("bs", message));
    }
    check_depth(job.depth, host.io_entries, association.max_entries)?;
    let writes = job.mode.read_percent(job.mixed_read_percent) < 100;
    if writes && namespace.read_only {
        return Err(("rw", format!("namespace {} is write protected", namespace.nsid)));
    }
    Ok(())
}

/// Checks that a queue can hold the commands: the job asks for `asked` entries, and the controller allows
/// `allowed` (CAP.MQES + 1). One entry of a queue is always empty.
fn check_depth(depth: u16, asked: u16, allowed: u16) -> Result<(), Problem> {
    let entries = asked.min(allowed);
    if depth < entries {
        return Ok(());
    }
    let (needed, most) = (u32::from(depth) + 1, entries.saturating_sub(1));
    let message = if allowed < asked {
        format!(
            "--iodepth {depth} needs a queue of {needed} entries and the controller allows {allowed} \
             (CAP.MQES): use --iodepth {most}, or let the target allow more (raceline export \
             --max-queue-depth, max_queue_depth of nvmf_create_transport)"
        )
    } else {
        format!("--iodepth {depth} needs a queue of {needed} entries, and {asked} were asked for")
    };
    Err(("iodepth", message))
}

/// The part of a namespace that the job uses, from `offset` on.
fn span(job: &JobSpec, offset: u64, namespace: &NamespaceInfo) -> Result<Span, Problem> {
    let block = u64::from(namespace.block_size);
    let asked = if let Size::Bytes(bytes) = job.size { bytes } else { 0 };
    for (key, bytes) in [("offset", offset), ("size", asked)] {
        if !bytes.is_multiple_of(block) {
            let message = format!("--{key} {bytes} is not a multiple of the block size {block}");
            return Err((key, message));
        }
    }
    let available = namespace.size_bytes().saturating_sub(offset);
    let size = match job.size {
        Size::Rest => available,
        Size::Bytes(bytes) => bytes,
        Size::Percent(percent) => {
            let part = u128::from(available) * u128::from(percent) / 100;
            let part = u64::try_from(part).unwrap_or(available);
            part - part % u64::from(job.io_bytes)
        }
    };
    if size > available || available == 0 {
        let message = format!(
            "the namespace has {} bytes, and --offset and --size reach to {}",
            namespace.size_bytes(),
            offset.saturating_add(size)
        );
        return Err((if available == 0 { "offset" } else { "size" }, message));
    }
    Ok(Span {
        block_size: namespace.block_size,
        blocks_per_io: job.io_bytes / namespace.block_size,
        first_block: offset / block,
        block_count: size / block,
    })
}

#[cfg(test)]
mod tests;
