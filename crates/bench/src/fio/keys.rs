//! Every key that a job file may have, and what it does here.

use std::collections::BTreeMap;
use std::time::Duration;

use super::units::{self, KbBase};
use super::{FileName, FioJob, Lines, Problem, RemoteKeys};
use crate::runner::stage::{Cpus, JobSpec, Size, Volume};
use crate::workload::RwMode;

/// Most clones of a job.
const CLONES_MAX: u64 = 4096;
/// Deepest queue.
const DEPTH_MAX: u64 = 4095;
/// Smallest and largest command, with the limits of the command line.
const IO_BYTES: std::ops::RangeInclusive<u64> = 512..=16 << 20;
/// Default size of a command in bytes.
const DEFAULT_IO_BYTES: u32 = 4096;
/// Highest rate.
const RATE_MAX: u64 = 1_000_000_000;

/// A key of a job file.
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Its other names.
    pub aliases: &'static [&'static str],
    /// Why it has no effect, if it has none: it is accepted because it is true of every job here, or
    /// because it has no meaning over NVMe/TCP.
    pub without_effect: Option<&'static str>,
    pub(super) apply: Apply,
}

type Apply = fn(&mut Draft, Option<&str>) -> Result<(), String>;

/// The key of this name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name || key.aliases.contains(&name))
}

const fn key(name: &'static str, aliases: &'static [&'static str], apply: Apply) -> Key {
    Key { name, aliases, without_effect: None, apply }
}

const fn idle(name: &'static str, why: &'static str) -> Key {
    Key { name, aliases: &[], without_effect: Some(why), apply: |_, _| Ok(()) }
}

/// All keys.
pub const KEYS: &[Key] = &[
    key("rw", &["readwrite"], |job, value| {
        job.spec.mode = mode(needed(value)?)?;
        Ok(())
    }),
    key("rwmixread", &[], |job, value| {
        job.spec.mixed_read_percent = units::number(needed(value)?, 0, 100, job.base)?;
        Ok(())
    }),
    key("rwmixwrite", &[], |job, value| {
        job.spec.mixed_read_percent = 100 - units::number::<u8>(needed(value)?, 0, 100, job.base)?;
        Ok(())
    }),
    key("bs", &["blocksize"], |job, value| {
        let base = job.base;
        job.sizes.set(needed(value)?, &|text| block_size(text, base))
    }),
    key("iodepth", &[], |job, value| {
        job.spec.depth = units::number(needed(value)?, 1, DEPTH_MAX, job.base)?;
        Ok(())
    }),
    key("iodepth_batch", &["iodepth_batch_submit"], |job, value| {
        job.spec.batch.submit = Some(units::number(needed(value)?, 1, DEPTH_MAX, job.base)?);
        Ok(())
    }),
    key("iodepth_batch_complete_min", &["iodepth_batch_complete"], |job, value| {
        job.spec.batch.complete_min = units::number(needed(value)?, 0, DEPTH_MAX, job.base)?;
        Ok(())
    }),
    key("iodepth_batch_complete_max", &[], |job, value| {
        job.spec.batch.complete_max = Some(units::number(needed(value)?, 1, DEPTH_MAX, job.base)?);
        Ok(())
    }),
    key("iodepth_low", &[], |job, value| {
        job.spec.batch.low = Some(units::number(needed(value)?, 0, DEPTH_MAX, job.base)?);
        Ok(())
    }),
    key("numjobs", &[], |job, value| {
        job.spec.clones = units::number(needed(value)?, 1, CLONES_MAX, job.base)?;
        Ok(())
    }),
    key("norandommap", &[], |job, value| {
        job.spec.random_map = !flag(value)?;
        Ok(())
    }),
    key("offset", &[], |job, value| {
        job.spec.offset_bytes = units::size(needed(value)?, job.base)?;
        Ok(())
    }),
    key("offset_increment", &[], |job, value| {
        job.spec.offset_increment_bytes = units::size(needed(value)?, job.base)?;
        Ok(())
    }),
    key("size", &[], |job, value| {
        let text = needed(value)?;
        (job.size_bytes, job.percent) = match text.strip_suffix('%') {
            Some(percent) => (None, Some(units::number(percent, 1, 100, job.base)?)),
            None => (Some(units::size(text, job.base)?), None),
        };
        Ok(())
    }),
    key("filesize", &[], |job, value| {
        job.file_bytes = Some(units::size(needed(value)?, job.base)?);
        Ok(())
    }),
    key("io_size", &["io_limit"], |job, value| {
        job.io_size = Some(units::size(needed(value)?, job.base)?);
        Ok(())
    }),
    key("loops", &[], |job, value| {
        job.loops = units::number(needed(value)?, 1, u64::from(u32::MAX), job.base)?;
        Ok(())
    }),
    key("runtime", &["timeout"], |job, value| {
        let time = units::time(needed(value)?)?;
        job.spec.runtime = Some(time).filter(|time| !time.is_zero());
        Ok(())
    }),
    key("ramp_time", &[], |job, value| {
        job.spec.ramp = units::time(needed(value)?)?;
        Ok(())
    }),
    key("time_based", &[], |job, value| {
        job.time_based = flag(value)?;
        Ok(())
    }),
    key("rate_iops", &[], |job, value| {
        let base = job.base;
        let rate = |text: &str| units::number(text, 0, RATE_MAX, base);
        job.rate_iops.get_or_insert_default().set(needed(value)?, &rate)
    }),
    key("rate", &[], |job, value| {
        let base = job.base;
        let rate = |text: &str| units::size(text, base);
        job.rate_bytes.get_or_insert_default().set(needed(value)?, &rate)
    }),
    key("cpus_allowed", &[], |job, value| {
        job.cpus = units::cpus(needed(value)?)?;
        Ok(())
    }),
    key("cpus_allowed_policy", &[], |job, value| {
        job.split = match needed(value)? {
            "split" => true,
            "shared" => false,
            other => return Err(format!("`{other}` is not a policy: write shared or split")),
        };
        Ok(())
    }),
    key("filename", &[], |job, value| {
        // As in fio, each line adds to earlier ones, also to those of [global].
        let (line, names) = (job.line, units::filenames(needed(value)?)?);
        job.filenames.extend(names.into_iter().map(|name| FileName { line, name }));
        Ok(())
    }),
    key("traddr", &[], |job, value| {
        job.remote.address = Some(needed(value)?.to_owned());
        Ok(())
    }),
    key("trsvcid", &[], |job, value| {
        job.remote.port = Some(units::number(needed(value)?, 1, 65_535, job.base)?);
        Ok(())
    }),
    key("nqn", &["subnqn"], |job, value| {
        job.remote.nqn = Some(needed(value)?.to_owned());
        Ok(())
    }),
    key("nsid", &[], |job, value| {
        job.remote.nsid = Some(units::number(needed(value)?, 1, 0xffff_fffe, job.base)?);
        Ok(())
    }),
    key("hostnqn", &[], |job, value| {
        job.remote.hostnqn = Some(needed(value)?.to_owned());
        Ok(())
    }),
    key("hdr_digest", &[], |job, value| {
        job.remote.header_digest = Some(flag(value)?);
        Ok(())
    }),
    key("data_digest", &[], |job, value| {
        job.remote.data_digest = Some(flag(value)?);
        Ok(())
    }),
    key("percentile_list", &[], |job, value| {
        job.percentiles = Some(units::percentile_list(needed(value)?)?);
        Ok(())
    }),
    key("group_reporting", &[], |job, value| {
        job.group_reporting = flag(value)?;
        Ok(())
    }),
    key("new_group", &[], |job, value| {
        job.new_group = flag(value)?;
        Ok(())
    }),
    key("stonewall", &["wait_for_previous"], |job, value| {
        job.stonewall = flag(value)?;
        Ok(())
    }),
    key("exitall", &[], |job, value| {
        job.exit_all = flag(value)?;
        Ok(())
    }),
    key("randseed", &[], |job, value| {
        job.spec.seed = units::number(needed(value)?, 0, u64::MAX, job.base)?;
        Ok(())
    }),
    key("randrepeat", &[], |job, value| {
        job.any_seed = !flag(value)?;
        Ok(())
    }),
    key("verify", &[], |job, value| {
        job.spec.verify = match needed(value)? {
            "0" => false,
            "crc32c" | "crc32c-intel" => true,
            other => return Err(format!("`{other}` is not how blocks are verified: write crc32c")),
        };
        Ok(())
    }),
    key("name", &[], |job, value| {
        job.name = Some(needed(value)?.to_owned());
        Ok(())
    }),
    key("kb_base", &[], |job, value| {
        job.base = match needed(value)? {
            "1024" => KbBase::Binary,
            "1000" => KbBase::Decimal,
            other => return Err(format!("`{other}` is neither 1000 nor 1024")),
        };
        Ok(())
    }),
    key("nrfiles", &[], |job, value| {
        units::number::<u8>(needed(value)?, 1, 1, job.base).map(|_| ())
    }),
    key("file_service_type", &[], |_, value| match needed(value)? {
        "roundrobin" => Ok(()),
        other => Err(format!("`{other}` is not supported: namespaces take turns, roundrobin")),
    }),
    idle("ioengine", "NVMe/TCP is the engine, whatever the file names"),
    idle("spdk_conf", "-a, -n and --target say where the namespaces are"),
    idle("spdk_json_conf", "as `spdk_conf`"),
    idle("direct", "there is no page cache on the way"),
    idle("buffered", "as `direct`"),
    idle("invalidate", "there is no page cache to invalidate"),
    idle("thread", "jobs are threads"),
    idle("fsync_on_close", "nothing is closed; what was written is as durable as the target says"),
    idle("description", "a comment"),
    idle("unit_base", "it changes only how fio prints"),
    idle("nr_io_queues", "each job has one queue on each controller that it uses"),
    idle("refill_buffers", "with verify every block is new; otherwise data do not matter"),
    idle("clat_percentiles", "they are always reported"),
    idle("lat_percentiles", "latency and completion latency are the same here"),
    idle("gtod_reduce", "times are always taken"),
    idle("disable_lat", "as `gtod_reduce`"),
    idle("disable_clat", "as `gtod_reduce`"),
    idle("disable_slat", "as `gtod_reduce`"),
    idle("fixedbufs", "buffers are always made before the run"),
    idle("registerfiles", "connections are no files of the ring"),
    idle("hipri", "--hipri of the command line counts"),
    idle("sqthread_poll", "--mode of the command line counts"),
    idle("overwrite", "a namespace has all its blocks"),
    idle("fallocate", "as `overwrite`"),
];

/// Keys of fio that are refused, and their substitutes.
pub const REFUSED: &[(&[&str], &str)] = &[
    (
        &["bsrange", "blocksize_range", "bssplit", "bs_unaligned", "blocksize_unaligned"],
        "a job has one size: write bs, and a job for each size",
    ),
    (
        &[
            "thinktime",
            "thinktime_blocks",
            "thinktime_spin",
            "rate_min",
            "rate_iops_min",
            "rate_process",
        ],
        "a job goes on at once, or at a fixed rate: write rate_iops",
    ),
    (
        &["random_distribution", "percentage_random", "random_generator", "rw_sequencer"],
        "random access is uniform: leave the key out",
    ),
    (
        &["directory", "opendir", "filename_format", "unique_filename"],
        "namespaces are not in directories: write filename",
    ),
    (
        &["fsync", "fdatasync", "end_fsync", "sync", "sync_file_range"],
        "jobs send no flush: leave the key out if that is meant",
    ),
    (
        &[
            "verify_pattern",
            "verify_interval",
            "verify_backlog",
            "verify_async",
            "verify_only",
            "do_verify",
            "verify_fatal",
        ],
        "with verify=crc32c all that was written is read back, and the first difference ends the run: leave the key out",
    ),
    (
        &[
            "write_bw_log",
            "write_lat_log",
            "write_iops_log",
            "write_hist_log",
            "log_avg_msec",
            "per_job_logs",
        ],
        "there are no logs over time: read the report, -o json",
    ),
    (
        &["startdelay", "start_delay", "wait_for", "flow", "flow_watermark", "flow_sleep"],
        "jobs begin together: write stonewall where one has to wait",
    ),
    (&["cpumask", "numa_cpu_nodes", "numa_mem_policy"], "write cpus_allowed"),
    (
        &["zonemode", "zonesize", "zonerange", "zoneskip", "zonecapacity"],
        "zones are not supported: write offset and size",
    ),
    (
        &["read_iolog", "write_iolog", "replay_no_stall", "replay_redirect"],
        "recorded commands are not replayed: write rw",
    ),
];

/// Values for reads and for writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sides {
    read: Option<u64>,
    write: Option<u64>,
}

impl Sides {
    /// Sets the given values; the others stay as they were.
    fn set(
        &mut self,
        text: &str,
        parse: &dyn Fn(&str) -> Result<u64, String>,
    ) -> Result<(), String> {
        let [read, write] = units::sides(text, parse)?;
        (self.read, self.write) = (read.or(self.read), write.or(self.write));
        Ok(())
    }

    /// The value for a job that only reads or only writes; `None`: the job does both.
    fn of(&self, read_percent: u8) -> Option<Option<u64>> {
        match read_percent {
            100 => Some(self.read),
            0 => Some(self.write),
            _ => None,
        }
    }
}

/// A job, while its keys are read.
pub(super) struct Draft {
    pub(super) lines: Lines,
    /// The line of the key that is being read.
    pub(super) line: usize,
    name: Option<String>,
    spec: JobSpec,
    base: KbBase,
    sizes: Sides,
    size_bytes: Option<u64>,
    percent: Option<u8>,
    file_bytes: Option<u64>,
    io_size: Option<u64>,
    loops: u64,
    time_based: bool,
    rate_iops: Option<Sides>,
    rate_bytes: Option<Sides>,
    cpus: Vec<usize>,
    split: bool,
    filenames: Vec<FileName>,
    remote: RemoteKeys,
    percentiles: Option<Vec<f64>>,
    group_reporting: bool,
    new_group: bool,
    stonewall: bool,
    exit_all: bool,
    any_seed: bool,
}

impl Draft {
    /// fio's defaults, for a section that begins at this line.
    pub(super) fn new(line: usize) -> Self {
        Self {
            lines: Lines { section: line, keys: BTreeMap::new() },
            line,
            name: None,
            spec: JobSpec {
                mode: RwMode::Read,
                random_map: true,
                runtime: None,
                ramp: Duration::ZERO,
                ..JobSpec::new(DEFAULT_IO_BYTES, 1)
            },
            base: KbBase::Binary,
            sizes: Sides {
                read: Some(DEFAULT_IO_BYTES.into()),
                write: Some(DEFAULT_IO_BYTES.into()),
            },
            size_bytes: None,
            percent: None,
            file_bytes: None,
            io_size: None,
            loops: 1,
            time_based: false,
            rate_iops: None,
            rate_bytes: None,
            cpus: Vec::new(),
            split: false,
            filenames: Vec::new(),
            remote: RemoteKeys::default(),
            percentiles: None,
            group_reporting: false,
            new_group: false,
            stonewall: false,
            exit_all: false,
            any_seed: false,
        }
    }

    /// Checks that need all keys together.
    pub(super) fn finish(
        mut self,
        name: String,
        options: BTreeMap<String, String>,
    ) -> Result<FioJob, Problem> {
        self.check_pairs()?;
        self.spec.io_bytes = self.io_bytes()?;
        self.set_rate()?;
        self.spec.size = match (self.percent, self.file_bytes) {
            (Some(percent), _) => Size::Percent(percent),
            (None, Some(bytes)) => Size::Bytes(bytes),
            (None, None) => Size::Rest,
        };
        self.spec.volume = match (self.time_based, self.io_size) {
            (true, _) => Volume::Endless,
            (false, Some(bytes)) => Volume::Bytes(bytes.saturating_mul(self.loops)),
            (false, None) => Volume::Passes(self.loops),
        };
        self.spec.cpus = match (self.cpus.is_empty(), self.split) {
            (true, _) => Cpus::Any,
            (false, true) => Cpus::Split(self.cpus),
            (false, false) => Cpus::Shared(self.cpus),
        };
        Ok(FioJob {
            name: self.name.unwrap_or(name),
            lines: self.lines,
            stonewall: self.stonewall,
            new_group: self.new_group,
            group_reporting: self.group_reporting,
            exit_all: self.exit_all,
            percentiles: self.percentiles,
            any_seed: self.any_seed,
            filenames: self.filenames,
            remote: self.remote,
            spec: self.spec,
            size_bytes: self.size_bytes,
            options,
        })
    }

    /// Checks for keys that exclude each other; the error is at the line of the last of them.
    fn check_pairs(&self) -> Result<(), Problem> {
        let at = |keys: &[&str], message: String| Err((self.lines.of(keys), message));
        if self.time_based && self.spec.runtime.is_none() {
            return at(&["time_based", "runtime"], "time_based needs a runtime".to_owned());
        }
        let (min, max) = (self.spec.batch.complete_min, self.spec.batch.complete_max);
        if let Some(max) = max.filter(|&max| max < min) {
            let message = format!(
                "iodepth_batch_complete_max {max} is less than iodepth_batch_complete_min {min}"
            );
            return at(&["iodepth_batch_complete_max", "iodepth_batch_complete_min"], message);
        }
        if !self.filenames.is_empty() && self.remote != RemoteKeys::default() {
            let message = "filename and traddr, nqn or nsid both say where: use one of them";
            let keys = [&["filename"][..], RemoteKeys::KEYS].concat();
            return at(&keys, message.to_owned());
        }
        if self.file_bytes.is_some() && (self.size_bytes.is_some() || self.percent.is_some()) {
            let message = "filesize and size both say how much of each namespace is used: write size for \
                           all namespaces of the job together, or filesize for each";
            return at(&["filesize", "size"], message.to_owned());
        }
        Ok(())
    }

    /// The size of the job's commands.
    fn io_bytes(&self) -> Result<u32, Problem> {
        let Sides { read, write } = self.sizes;
        let bytes = self.sizes.of(self.read_percent());
        let bytes = bytes.or_else(|| (read == write).then_some(read)).flatten();
        let bytes = bytes.and_then(|bytes| u32::try_from(bytes).ok());
        bytes.ok_or_else(|| {
            let [read, write] = [read, write].map(Option::unwrap_or_default);
            let message = format!(
                "bs: {read} bytes for reads and {write} for writes: a job that does both has one size \
                 here; write two jobs, one that reads and one that writes"
            );
            (self.lines.of(&["bs", "rw"]), message)
        })
    }

    /// Sets the rate in commands per second. fio limits the reads and the writes of a job separately: a job
    /// that does both gets the sum, mixed in the ratio of the limits, whatever rwmixread says.
    fn set_rate(&mut self) -> Result<(), Problem> {
        let rates = [("rate_iops", self.rate_iops), ("rate", self.rate_bytes)];
        let set: Vec<(&str, Sides)> =
            rates.into_iter().filter_map(|(key, sides)| Some((key, sides?))).collect();
        let (key, sides) = match set[..] {
            [] => return Ok(()),
            [one] => one,
            _ => {
                let message = "rate and rate_iops both say how fast: use one of them";
                return Err((self.lines.of(&["rate_iops", "rate"]), message.to_owned()));
            }
        };
        let io_bytes = u64::from(self.spec.io_bytes.max(1));
        // As in fio, 0 means no limit.
        let commands = |limit: Option<u64>| match limit.filter(|&limit| limit > 0)? {
            bytes if key == "rate" => Some((bytes / io_bytes).clamp(1, RATE_MAX)),
            commands => Some(commands),
        };
        let (reads, writes) = (commands(sides.read), commands(sides.write));
        self.spec.rate_iops = match (self.read_percent(), reads, writes) {
            (100, reads, _) => reads,
            (0, _, writes) => writes,
            (_, None, None) => None,
            (_, Some(reads), Some(writes)) if (100 * reads).is_multiple_of(reads + writes) => {
                let percent = 100 * reads / (reads + writes);
                self.spec.mixed_read_percent = u8::try_from(percent).unwrap_or(100);
                Some(reads + writes)
            }
            _ => {
                let message = format!(
                    "{key}: a job that reads and writes has limits for both here, which make whole \
                     percents of all: write one limit, or two jobs, one that reads and one that writes"
                );
                return Err((self.lines.of(&[key, "rw"]), message));
            }
        };
        Ok(())
    }

    fn read_percent(&self) -> u8 {
        self.spec.mode.read_percent(self.spec.mixed_read_percent)
    }
}

fn needed(value: Option<&str>) -> Result<&str, String> {
    value.filter(|value| !value.is_empty()).ok_or_else(|| "a value is needed".to_owned())
}

/// A switch; without a value it is on.
fn flag(value: Option<&str>) -> Result<bool, String> {
    match value {
        None | Some("1") => Ok(true),
        Some("0") => Ok(false),
        Some(other) => Err(format!("`{other}` is neither 0 nor 1")),
    }
}

/// Order and kind of commands.
fn mode(text: &str) -> Result<RwMode, String> {
    let name = text.split_once(':').map(|(name, _)| name);
    if let Some(name) = name.filter(|name| name.parse::<RwMode>().is_ok()) {
        return Err(format!(
            "`{text}`: fio's number after the colon is not supported: write {name}"
        ));
    }
    text.parse().map_err(|error| format!("`{text}` is {error}"))
}

/// Bytes of a command.
fn block_size(text: &str, base: KbBase) -> Result<u64, String> {
    let bytes = units::size(text, base)?;
    if IO_BYTES.contains(&bytes) && bytes.is_multiple_of(*IO_BYTES.start()) {
        return Ok(bytes);
    }
    let why = match base {
        KbBase::Decimal => " (kb_base is 1000: write kib for 1024)",
        KbBase::Binary => "",
    };
    Err(format!(
        "`{text}` is {bytes} bytes{why}: a command moves a multiple of 512 bytes, at most 16m"
    ))
}
