//! The plan of a run: the command line or a job file, as stages that follow each other.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hasher as _};
use std::time::Duration;

use raceline_accel::Framework;
use raceline_bench::fio::{self, FioJob, Lines, RemoteKeys};
use raceline_bench::job::Batch;
use raceline_bench::report::binary_bytes;
use raceline_bench::runner::stage::{
    Cpus, FileSpec, JobSpec, Misfit, Route, Size, StageConfig, Volume,
};
use raceline_bench::{Access, RwMode};
use raceline_reactor::Mode;

use super::targets::Targets;
use crate::cli::perf::{CpusPolicy, PerfArgs};
use crate::failure::Failure;

/// Entries of a queue, unless its depth needs more.
const DEFAULT_ENTRIES: u16 = 128;
/// Largest command for filling; the controller's limit may make commands smaller.
pub(super) const FILL_BYTES: u32 = 512 << 10;
/// Depth for filling.
const FILL_DEPTH: u16 = 64;
/// Size of the commands that overwrite the filled namespaces.
const OVERWRITE_BYTES: u32 = 4096;
/// Depth for overwriting.
const OVERWRITE_DEPTH: u16 = 32;

/// Jobs that run at the same time, and how to report them.
pub(super) struct Stage {
    pub(super) config: StageConfig,
    pub(super) jobs: Vec<Described>,
    /// Its targets are iSCSI targets.
    pub(super) is_iscsi: bool,
}

/// How to report a job.
#[derive(Clone)]
pub(super) struct Described {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) group: u32,
    /// Whether its clones, and other jobs of its group, are reported as one.
    pub(super) grouped: bool,
    pub(super) percentiles: Option<Vec<f64>>,
    pub(super) options: BTreeMap<String, String>,
    /// Its place in a job file, if it comes from one.
    pub(super) origin: Option<Origin>,
}

/// The place of a job in a job file.
#[derive(Clone)]
pub(super) struct Origin {
    pub(super) file: String,
    lines: Lines,
    /// The line that names each of its namespaces.
    files: Vec<usize>,
}

impl Origin {
    /// What does not fit, with the line of the responsible key; in a job file, the names of options have no
    /// dashes.
    pub(super) fn describe(&self, misfit: &Misfit) -> String {
        let named = misfit.file.and_then(|file| self.files.get(file)).copied();
        let line = match misfit.key {
            "filename" => named.unwrap_or_else(|| self.lines.of(&["filename"])),
            "size" => self.lines.of(&["size", "filesize"]),
            "offset" => self.lines.of(&["offset", "offset_increment"]),
            key => self.lines.of(&[key]),
        };
        let mut message = misfit.message.clone();
        for key in ["bs", "iodepth", "offset", "size"] {
            message = message.replace(&format!("--{key} "), &format!("{key} "));
        }
        format!("{}:{line}: {message}", self.file)
    }
}

/// The stages of a command line.
pub(super) fn stages(args: &PerfArgs, targets: &mut Targets) -> Result<Vec<Stage>, Failure> {
    let jobs = match &args.job {
        None => vec![command_line(args, targets)?],
        Some(path) => {
            let file = path.display().to_string();
            let bytes = std::fs::read(path)
                .map_err(|error| Failure::runtime(format!("cannot read {file}: {error}")))?;
            // A comment may be in any character set.
            let text = String::from_utf8_lossy(&bytes);
            let environment = |name: &str| std::env::var(name).ok();
            let jobs = fio::parse(&file, &text, &environment).map_err(Failure::usage)?;
            from_file(args, &file, jobs, targets)?
        }
    };
    let mut stages: Vec<Vec<Planned>> = Vec::new();
    for job in jobs {
        match stages.last_mut() {
            Some(stage) if !job.stonewall => stage.push(job),
            _ => stages.push(vec![job]),
        }
    }
    stages.into_iter().map(|jobs| stage(args, jobs, targets)).collect()
}

/// A job, on the targets of the whole run.
struct Planned {
    spec: JobSpec,
    described: Described,
    stonewall: bool,
    exit_all: bool,
}

/// A stage connects to the targets that it uses, with queues as deep as it needs.
fn stage(args: &PerfArgs, jobs: Vec<Planned>, targets: &Targets) -> Result<Stage, Failure> {
    let exit_all = jobs.iter().any(|job| job.exit_all);
    let (mut specs, mut described) = (Vec::new(), Vec::new());
    for job in jobs {
        specs.push(job.spec);
        described.push(job.described);
    }
    let entries = entries(args, &specs).map_err(|message| {
        let deepest = (0..specs.len()).max_by_key(|&job| specs[job].depth).unwrap_or(0);
        match described.get(deepest).and_then(|job: &Described| job.origin.as_ref()) {
            Some(origin) => {
                let misfit = Misfit { job: deepest, key: "iodepth", file: None, message };
                Failure::usage(origin.describe(&misfit))
            }
            None => Failure::usage(message),
        }
    })?;
    let mut used: Vec<usize> = Vec::new();
    for file in specs.iter_mut().flat_map(|spec| &mut spec.files) {
        let position = used.iter().position(|&host| host == file.host);
        file.host = position.unwrap_or_else(|| {
            used.push(file.host);
            used.len() - 1
        });
    }
    let host = |&index: &usize| {
        let mut host = targets.host(index).clone();
        host.io_entries = entries;
        // Used if queues are mapped; otherwise jobs have their own queues.
        host.io_queues = args.queues;
        (host.write_queues, host.poll_queues) = (args.maps.write, args.maps.poll);
        host.i10 = args.maps.i10;
        host.send_flags = args.maps.send_flags;
        host.placement = args.maps.placement.into();
        host
    };
    let config = StageConfig {
        hosts: used.iter().map(host).collect(),
        accel: None,
        jobs: specs,
        exit_all,
        // A core that sleeps would have to be woken for a completion.
        reactor_mode: if args.maps.hipri { Mode::Poll } else { args.mode.into() },
        backend: args.io.into(),
    };
    Ok(Stage { config, jobs: described, is_iscsi: args.connect.address.iscsi.iscsi })
}

/// The number of entries of queues.
fn entries(args: &PerfArgs, specs: &[JobSpec]) -> Result<u16, String> {
    let depth = specs.iter().map(|spec| spec.depth).max().unwrap_or(1);
    let in_flight = if args.maps.are_mapped() { shared_depth(args, specs) } else { depth };
    match args.queue_size {
        Some(entries) if in_flight >= entries => {
            let shared = if in_flight > depth { " where queues are shared" } else { "" };
            Err(format!(
                "--iodepth {depth}{shared} needs -Q {} or more: a queue holds one command less than it has entries",
                u32::from(in_flight) + 1
            ))
        }
        Some(entries) => Ok(entries),
        None => Ok(DEFAULT_ENTRIES.max(in_flight.saturating_add(1))),
    }
}

/// Largest number of commands in flight on one mapped queue: jobs on one core share its queues of a map.
/// The one job of a command line is spread evenly; several jobs might all be on the same core.
fn shared_depth(args: &PerfArgs, specs: &[JobSpec]) -> u16 {
    let total = |spec: &JobSpec| {
        let submitters = spec.clones.saturating_mul(spec.queues);
        submitters.saturating_mul(spec.depth)
    };
    let ([spec], 1) = (specs, args.numjobs) else {
        return specs.iter().map(total).fold(0, u16::saturating_add);
    };
    let cores = args.cores.as_ref().map_or(0, |cores| cores.0.len());
    let threads = u16::try_from(cores.max(1)).unwrap_or(u16::MAX);
    let submitters = spec.queues.div_ceil(threads);
    let fewest =
        [args.queues, args.maps.write, args.maps.poll].into_iter().filter(|&n| n > 0).min();
    let here = (fewest.unwrap_or(1) / threads).max(1);
    spec.depth.saturating_mul(submitters.div_ceil(here))
}

/// The queues of jobs: their own, or those of the maps.
fn route(args: &PerfArgs) -> Route {
    if args.maps.are_mapped() { Route::Maps { polled: args.maps.hipri } } else { Route::Own }
}

/// The one job of a command line.
fn command_line(args: &PerfArgs, targets: &Targets) -> Result<Planned, Failure> {
    let cores = args.cores.clone().unwrap_or_default().0;
    let queues = u32::from(args.queues) * u32::from(args.numjobs);
    if u32::try_from(cores.len()).is_ok_and(|cores| cores > queues) {
        let (count, queues) = (cores.len(), args.queues);
        return Err(Failure::usage(match args.numjobs {
            1 => format!(
                "--cores names {count} cores and -i {queues} queues cannot use them all: use -i {count}"
            ),
            jobs => format!(
                "--cores names {count} cores, and {jobs} jobs of {queues} queues cannot use them all"
            ),
        }));
    }
    let (min, max) = (args.iodepth_batch_complete_min, args.iodepth_batch_complete_max);
    if let Some(max) = max.filter(|&max| max < min) {
        return Err(Failure::usage(format!(
            "--iodepth_batch_complete_max {max} is less than --iodepth_batch_complete_min {min}"
        )));
    }
    let spec = JobSpec {
        files: targets.all(),
        mode: args.rw,
        mixed_read_percent: args.rwmixread,
        io_bytes: args.bs,
        depth: args.iodepth,
        batch: Batch {
            submit: args.iodepth_batch,
            complete_min: min,
            complete_max: max,
            low: None,
        },
        clones: args.numjobs,
        queues: args.queues,
        random_map: !args.norandommap,
        offset_bytes: args.offset.0,
        offset_increment_bytes: 0,
        size: args.size.map_or(Size::Rest, |size| Size::Bytes(size.0)),
        volume: Volume::Endless,
        seed: args.seed,
        verify: args.verify,
        rate_iops: args.rate_iops,
        ramp: args.ramp_time,
        runtime: Some(args.runtime),
        cpus: match (cores.is_empty(), args.cpus_allowed_policy) {
            (true, _) => Cpus::Any,
            (false, CpusPolicy::Split) => Cpus::Split(cores),
            (false, CpusPolicy::Shared) => Cpus::Shared(cores),
        },
        route: route(args),
    };
    let described = Described {
        name: title(&spec),
        title: title(&spec),
        group: 0,
        grouped: args.group_reporting,
        percentiles: args.percentile_list.clone().map(|list| list.0),
        options: options(args),
        origin: None,
    };
    Ok(Planned { spec, described, stonewall: true, exit_all: false })
}

/// `randread 4 KiB, 2 jobs of 1 queue of depth 32`.
fn title(spec: &JobSpec) -> String {
    let count = |number: u16, what: &str| match number {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    };
    let jobs = if spec.clones == 1 { String::new() } else { format!("{} jobs of ", spec.clones) };
    let spread = match spec.files.len() {
        1 => String::new(),
        files => format!(" over {files} namespaces"),
    };
    format!(
        "{} {}, {jobs}{} of depth {}{spread}",
        spec.mode,
        binary_bytes(u64::from(spec.io_bytes)),
        count(spec.queues, "queue"),
        spec.depth
    )
}

/// The jobs of a file.
fn from_file(
    args: &PerfArgs,
    file: &str,
    jobs: Vec<FioJob>,
    targets: &mut Targets,
) -> Result<Vec<Planned>, Failure> {
    if args.queues > 1 && !args.maps.are_mapped() {
        return Err(Failure::usage(
            "with --job, each job has one queue of its own: use numjobs, or -i with -W or -P",
        ));
    }
    let mut group = 0;
    let mut planned = Vec::with_capacity(jobs.len());
    for (position, job) in jobs.into_iter().enumerate() {
        group += u32::from(position > 0 && (job.stonewall || job.new_group));
        let at =
            |(line, message): (usize, String)| Failure::usage(format!("{file}:{line}: {message}"));
        let mut spec = job.spec.clone();
        let (files, lines) = files(&job, targets).map_err(at)?;
        spec.files = files;
        spec.route = route(args);
        if let Some(bytes) = job.size_bytes {
            spec.size =
                share(bytes, &spec).map_err(|error| at((job.lines.of(&["size"]), error)))?;
        }
        if job.any_seed {
            spec.seed = any_seed();
        }
        let described = Described {
            title: format!("{}: {}", job.name, title(&spec)),
            name: job.name,
            group,
            grouped: job.group_reporting,
            percentiles: job.percentiles,
            options: options_of_file(args, job.options),
            origin: Some(Origin { file: file.to_owned(), lines: job.lines, files: lines }),
        };
        let (stonewall, exit_all) = (job.stonewall, job.exit_all);
        planned.push(Planned { spec, described, stonewall, exit_all });
    }
    Ok(planned)
}

/// Divides a job's size among its namespaces as fio does, in whole commands.
fn share(bytes: u64, spec: &JobSpec) -> Result<Size, String> {
    let files = u64::try_from(spec.files.len()).unwrap_or(1).max(1);
    let each = bytes / files;
    let each = each - each % u64::from(spec.io_bytes.max(1));
    if each == 0 {
        let io_bytes = spec.io_bytes;
        return Err(format!(
            "size: {bytes} bytes for {files} namespaces are less than a command of {io_bytes} bytes for each"
        ));
    }
    Ok(Size::Bytes(each))
}

/// The namespaces of a job in a file, and the line that names each of them.
fn files(
    job: &FioJob,
    targets: &mut Targets,
) -> Result<(Vec<FileSpec>, Vec<usize>), (usize, String)> {
    if !job.filenames.is_empty() {
        let mut named = Vec::with_capacity(job.filenames.len());
        for file in &job.filenames {
            named.push(targets.named(&file.name).map_err(|error| (file.line, error))?);
        }
        return Ok((named, job.filenames.iter().map(|file| file.line).collect()));
    }
    if job.remote == RemoteKeys::default() {
        let all = targets.all();
        let lines = vec![job.lines.of(&[]); all.len()];
        return Ok((all, lines));
    }
    let file = targets.remote(&job.remote).map_err(|(key, error)| (job.lines.of(&[key]), error))?;
    Ok((vec![file], vec![job.lines.of(&["nsid"])]))
}

/// A seed that differs on each call.
fn any_seed() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// The largest transfer and the block size of a namespace.
type LimitsOf<'a> = dyn FnMut(&StageConfig, FileSpec) -> Result<(u32, u32), Failure> + 'a;

/// Stages that fill all namespaces of a run, and then overwrite them. `limits` gives the largest transfer
/// and the block size of each file.
pub(super) fn precondition(
    args: &PerfArgs,
    stages: &[Stage],
    limits: &mut LimitsOf<'_>,
) -> Result<Vec<Stage>, Failure> {
    let mut passes: Vec<Stage> = Vec::new();
    let depth_max = args.queue_size.map_or(u16::MAX, |entries| entries - 1);
    for (mode, depth) in [(RwMode::Write, FILL_DEPTH), (RwMode::RandWrite, OVERWRITE_DEPTH)] {
        let mut pass: Option<Stage> = None;
        for stage in stages {
            for spec in &stage.config.jobs {
                for &file in &spec.files {
                    let host = stage.config.hosts[file.host].clone();
                    let pass = pass.get_or_insert_with(|| Stage {
                        config: StageConfig {
                            hosts: Vec::new(),
                            jobs: Vec::new(),
                            ..stage.config.clone()
                        },
                        jobs: Vec::new(),
                        is_iscsi: stage.is_iscsi,
                    });
                    let hosts = &mut pass.config.hosts;
                    let same = |other: &raceline_host::HostConfig| {
                        (other.address, &other.subnqn) == (host.address, &host.subnqn)
                    };
                    let index = hosts.iter().position(same).unwrap_or_else(|| {
                        hosts.push(host);
                        hosts.len() - 1
                    });
                    let known = FileSpec { host: index, ..file };
                    if pass.config.jobs.iter().any(|job| job.files == [known]) {
                        continue;
                    }
                    let (largest, block) = limits(&stage.config, file)?;
                    let io_bytes = match mode.access() {
                        Access::Sequential => FILL_BYTES.min(largest),
                        Access::Random => OVERWRITE_BYTES.max(block),
                    };
                    let volume = Volume::Passes(1);
                    let job = JobSpec {
                        files: vec![known],
                        mode,
                        random_map: true,
                        volume,
                        runtime: None,
                        ramp: Duration::ZERO,
                        seed: args.seed,
                        cpus: spec.cpus.clone(),
                        route: spec.route,
                        ..JobSpec::new(io_bytes, depth.min(depth_max))
                    };
                    pass.config.jobs.push(job);
                }
            }
        }
        passes.extend(pass);
    }
    Ok(passes)
}

/// Uses this framework for the digests of all stages.
pub(super) fn set_framework(stages: &mut [Stage], framework: &Framework) {
    for stage in stages {
        stage.config.accel = Some(framework.clone());
    }
}

/// The chosen options, by name.
fn options(args: &PerfArgs) -> BTreeMap<String, String> {
    let mut options = connect_options(args);
    let mut set = |name: &str, value: String| options.insert(name.to_owned(), value);
    set("rw", args.rw.to_string());
    set("bs", args.bs.to_string());
    set("iodepth", args.iodepth.to_string());
    set("nr_io_queues", args.queues.to_string());
    if args.maps.hipri {
        set("hipri", "1".to_owned());
    }
    set("runtime", seconds(args.runtime));
    set("ramp_time", seconds(args.ramp_time));
    set("seed", args.seed.to_string());
    set("offset", args.offset.to_string());
    let namespaces: Vec<String> = args.namespace.0.iter().map(ToString::to_string).collect();
    set("namespace", namespaces.join(","));
    set("numjobs", args.numjobs.to_string());
    set("norandommap", u8::from(args.norandommap).to_string());
    let numbers = [
        ("iodepth_batch", args.iodepth_batch),
        ("iodepth_batch_complete_max", args.iodepth_batch_complete_max),
        ("rwmixread", args.rw.is_mixed().then_some(u16::from(args.rwmixread))),
        ("iodepth_batch_complete_min", Some(args.iodepth_batch_complete_min)),
    ];
    for (name, number) in numbers {
        if let Some(number) = number {
            set(name, number.to_string());
        }
    }
    if let Some(rate) = args.rate_iops {
        set("rate_iops", rate.to_string());
    }
    if let Some(size) = args.size {
        set("size", size.to_string());
    }
    if let Some(cores) = &args.cores {
        set("cores", cores.to_string());
    }
    if args.verify {
        set("verify", "crc32c".to_owned());
    }
    options
}

/// The options of a job file, and the address of the first target.
fn options_of_file(args: &PerfArgs, own: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut options = connect_options(args);
    options.extend(own);
    options
}

fn connect_options(args: &PerfArgs) -> BTreeMap<String, String> {
    let mut options = BTreeMap::new();
    let mut set = |name: &str, value: String| options.insert(name.to_owned(), value);
    set("traddr", args.connect.address.address.clone());
    set("trsvcid", args.connect.address.port.to_string());
    set("nqn", args.connect.nqn.as_str().to_owned());
    if args.connect.address.iscsi.iscsi {
        set("iscsi", "1".to_owned());
        set("lun", args.connect.address.iscsi.lun.unwrap_or(0).to_string());
    }
    set("hdr_digest", args.connect.header_digest.to_string());
    set("data_digest", args.connect.data_digest.to_string());
    if args.maps.are_mapped() {
        set("nr_write_queues", args.maps.write.to_string());
        set("nr_poll_queues", args.maps.poll.to_string());
    }
    if let Some(i10) = args.maps.i10 {
        set("i10", format!("{},{},{}", i10.requests, i10.bytes, i10.delay.as_micros()));
    }
    if let Some(accel) = &args.accel {
        set("accel", accel.to_string());
    }
    options
}

fn seconds(time: Duration) -> String {
    time.as_secs_f64().to_string()
}

#[cfg(test)]
mod tests;
