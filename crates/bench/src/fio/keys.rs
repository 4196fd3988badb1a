//! Every key that a job file may have, and what it does here.

use std::collections::BTreeMap;
use std::time::Duration;

use super::units::{self, KbBase};
use super::{FioJob, RemoteKeys};
use crate::engine::stage::{Cpus, JobSpec, Size, Volume};
use crate::workload::RwMode;

/// Most clones of a job.
const CLONES_MAX: u64 = 4096;
/// Deepest queue.
const DEPTH_MAX: u64 = 4095;
/// Smallest and largest command, as on the command line.
const IO_BYTES: std::ops::RangeInclusive<u64> = 512..=16 << 20;
/// Highest rate.
const RATE_MAX: u64 = 1_000_000_000;

/// A key of a job file.
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Its other names.
    pub aliases: &'static [&'static str],
    /// Why it changes nothing, if it does not: it is accepted because it is true of every job here,
    /// or because it has no meaning over NVMe/TCP.
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
        let text = needed(value)?;
        job.spec.mode = text.parse().map_err(|error| format!("`{text}` is {error}"))?;
        Ok(())
    }),
    key("rwmixread", &[], |job, value| {
        job.spec.mixed_read_percent = units::number(needed(value)?, 0, 100)?;
        Ok(())
    }),
    key("rwmixwrite", &[], |job, value| {
        job.spec.mixed_read_percent = 100 - units::number::<u8>(needed(value)?, 0, 100)?;
        Ok(())
    }),
    key("bs", &["blocksize"], |job, value| {
        job.spec.io_bytes = block_size(needed(value)?, job.base)?;
        Ok(())
    }),
    key("iodepth", &[], |job, value| {
        job.spec.depth = units::number(needed(value)?, 1, DEPTH_MAX)?;
        Ok(())
    }),
    key("iodepth_batch", &["iodepth_batch_submit"], |job, value| {
        job.spec.batch.submit = Some(units::number(needed(value)?, 1, DEPTH_MAX)?);
        Ok(())
    }),
    key("iodepth_batch_complete_min", &["iodepth_batch_complete"], |job, value| {
        job.spec.batch.complete_min = units::number(needed(value)?, 0, DEPTH_MAX)?;
        Ok(())
    }),
    key("iodepth_batch_complete_max", &[], |job, value| {
        job.spec.batch.complete_max = Some(units::number(needed(value)?, 1, DEPTH_MAX)?);
        Ok(())
    }),
    key("iodepth_low", &[], |job, value| {
        job.spec.batch.low = Some(units::number(needed(value)?, 0, DEPTH_MAX)?);
        Ok(())
    }),
    key("numjobs", &[], |job, value| {
        job.spec.clones = units::number(needed(value)?, 1, CLONES_MAX)?;
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
    key("size", &["filesize"], |job, value| {
        let text = needed(value)?;
        (job.size_bytes, job.spec.size) = match text.strip_suffix('%') {
            Some(percent) => (None, Size::Percent(units::number(percent, 1, 100)?)),
            None => (Some(units::size(text, job.base)?), Size::Rest),
        };
        Ok(())
    }),
    key("io_size", &["io_limit"], |job, value| {
        job.io_size = Some(units::size(needed(value)?, job.base)?);
        Ok(())
    }),
    key("loops", &[], |job, value| {
        job.loops = units::number(needed(value)?, 1, u64::from(u32::MAX))?;
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
        job.spec.rate_iops = Some(units::number(needed(value)?, 1, RATE_MAX)?);
        Ok(())
    }),
    key("rate", &[], |job, value| {
        job.rate_bytes = Some(units::size(needed(value)?, job.base)?);
        Ok(())
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
        job.filenames = units::filenames(needed(value)?)?;
        Ok(())
    }),
    key("traddr", &[], |job, value| {
        job.remote.address = Some(needed(value)?.to_owned());
        Ok(())
    }),
    key("trsvcid", &[], |job, value| {
        job.remote.port = Some(units::number(needed(value)?, 1, 65_535)?);
        Ok(())
    }),
    key("nqn", &["subnqn"], |job, value| {
        job.remote.nqn = Some(needed(value)?.to_owned());
        Ok(())
    }),
    key("nsid", &[], |job, value| {
        job.remote.nsid = Some(units::number(needed(value)?, 1, 0xffff_fffe)?);
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
        job.spec.seed = units::number(needed(value)?, 0, u64::MAX)?;
        Ok(())
    }),
    key("randrepeat", &[], |job, value| {
        job.any_seed = !flag(value)?;
        Ok(())
    }),
    key("verify", &[], |job, value| {
        job.spec.verify = match needed(value)? {
            "0" => false,
            "crc32c" => true,
            other => return Err(format!("`{other}` is not how blocks are verified: write crc32c")),
        };
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
    key("nrfiles", &[], |_, value| units::number::<u8>(needed(value)?, 1, 1).map(|_| ())),
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
    idle("name", "the section's name counts"),
    idle("description", "a comment"),
    idle("unit_base", "it changes only how fio prints"),
    idle("nr_io_queues", "each job has one queue on each controller that it uses"),
    idle("refill_buffers", "with verify every block is new; otherwise data do not matter"),
    idle("clat_percentiles", "they are always reported"),
];

/// A job, while its keys are read.
pub(super) struct Draft {
    spec: JobSpec,
    base: KbBase,
    size_bytes: Option<u64>,
    io_size: Option<u64>,
    loops: u64,
    time_based: bool,
    rate_bytes: Option<u64>,
    cpus: Vec<usize>,
    split: bool,
    filenames: Vec<String>,
    remote: RemoteKeys,
    percentiles: Option<Vec<f64>>,
    group_reporting: bool,
    new_group: bool,
    stonewall: bool,
    exit_all: bool,
    any_seed: bool,
}

impl Draft {
    /// fio's defaults.
    pub(super) fn new() -> Self {
        Self {
            spec: JobSpec {
                mode: RwMode::Read,
                random_map: true,
                runtime: None,
                ramp: Duration::ZERO,
                ..JobSpec::new(4096, 1)
            },
            base: KbBase::Binary,
            size_bytes: None,
            io_size: None,
            loops: 1,
            time_based: false,
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

    /// Checks what only all keys together show.
    pub(super) fn finish(
        self,
        name: String,
        line: usize,
        options: BTreeMap<String, String>,
    ) -> Result<FioJob, String> {
        let mut spec = self.spec;
        if self.time_based && spec.runtime.is_none() {
            return Err("time_based needs a runtime".to_owned());
        }
        let (min, max) = (spec.batch.complete_min, spec.batch.complete_max);
        if max.is_some_and(|max| max < min) {
            return Err(format!(
                "iodepth_batch_complete_max {} is less than iodepth_batch_complete_min {min}",
                max.unwrap_or_default()
            ));
        }
        if !self.filenames.is_empty() && self.remote != RemoteKeys::default() {
            return Err(
                "filename and traddr, nqn or nsid both say where: use one of them".to_owned()
            );
        }
        spec.volume = match (self.time_based, self.io_size) {
            (true, _) => Volume::Endless,
            (false, Some(bytes)) => Volume::Bytes(bytes.saturating_mul(self.loops)),
            (false, None) => Volume::Passes(self.loops),
        };
        if let Some(bytes) = self.rate_bytes {
            spec.rate_iops = Some((bytes / u64::from(spec.io_bytes)).clamp(1, RATE_MAX));
        }
        spec.cpus = match (self.cpus.is_empty(), self.split) {
            (true, _) => Cpus::Any,
            (false, true) => Cpus::Split(self.cpus),
            (false, false) => Cpus::Shared(self.cpus),
        };
        Ok(FioJob {
            name,
            line,
            stonewall: self.stonewall,
            new_group: self.new_group,
            group_reporting: self.group_reporting,
            exit_all: self.exit_all,
            percentiles: self.percentiles,
            any_seed: self.any_seed,
            filenames: self.filenames,
            remote: self.remote,
            spec,
            size_bytes: self.size_bytes,
            options,
        })
    }
}

fn needed(value: Option<&str>) -> Result<&str, String> {
    value.filter(|value| !value.is_empty()).ok_or_else(|| "a value is needed".to_owned())
}

/// A switch; it is on when it has no value.
fn flag(value: Option<&str>) -> Result<bool, String> {
    match value {
        None | Some("1") => Ok(true),
        Some("0") => Ok(false),
        Some(other) => Err(format!("`{other}` is neither 0 nor 1")),
    }
}

/// Bytes per command; fio allows different sizes of reads, writes and trims.
fn block_size(text: &str, base: KbBase) -> Result<u32, String> {
    let mut sizes = text.split(',').map(|part| units::size(part, base));
    let first = sizes.next().unwrap_or(Ok(0))?;
    for other in sizes {
        if other? != first {
            return Err(format!("`{text}`: reads and writes have the same size here"));
        }
    }
    let fits = IO_BYTES.contains(&first) && first.is_multiple_of(*IO_BYTES.start());
    let size = u32::try_from(first).ok().filter(|_| fits);
    size.ok_or_else(|| {
        format!("`{text}` is {first} bytes: a command moves a multiple of 512 bytes, at most 16m")
    })
}
