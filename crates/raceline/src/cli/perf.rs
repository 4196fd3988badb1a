//! Arguments of `raceline perf`, named as in fio where fio has them.

use std::path::PathBuf;
use std::time::Duration;

use raceline_bdev::ByteSize;
use raceline_bench::RwMode;
use raceline_bench::fio::percentile_list;
use raceline_proto::nvme::{NamespaceId, Nqn};

use super::host::{ConnectArgs, namespace};
use super::queues::QueueArgs;
use super::values::{self, ACCEL_HELP, CoreList, IoChoice, ModeChoice};
use crate::accel::{AccelChoice, accel_choice};

/// Arguments of `perf`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Workloads that write destroy what the namespace holds. With --verify, each block written says \
where and when it was written, and every block is read back at the end; a workload that only reads \
checks what an earlier run with --verify and the same --seed, --bs and --offset wrote.

Several targets: -a and -n name the first, which job files call Nvme0; --target adds others.

Example: raceline perf -a 127.0.0.1 -n NQN --rw randread --bs 4k --iodepth 32 -o json
         raceline perf -a 127.0.0.1 -n NQN --job adq.fio
         raceline perf --iscsi -a 127.0.0.1 -n IQN --lun 0 --rw randread --bs 4k --iodepth 32")]
pub(crate) struct PerfArgs {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    /// Namespaces of each target, e.g. 1,3-5: commands go to them in turn
    #[arg(long, value_name = "LIST", default_value = "1", value_parser = namespaces)]
    pub(crate) namespace: NamespaceList,

    /// Another target, NAME=ADDR[:PORT],NQN; may be repeated
    #[arg(long, value_name = "TARGET", value_parser = target, help_heading = "Target")]
    pub(crate) target: Vec<TargetSpec>,

    /// Run the jobs of this fio job file
    #[arg(long, value_name = "FILE", help_heading = "Workload", conflicts_with_all = JOB_OPTIONS)]
    pub(crate) job: Option<PathBuf>,

    /// First fill the namespaces once in order, then overwrite all of them in random order
    #[arg(long, help_heading = "Workload")]
    pub(crate) precondition: bool,

    /// I/O queues, one TCP connection each
    #[arg(short = 'i', long = "nr-io-queues", value_name = "QUEUES", help_heading = "Connection")]
    #[arg(default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) queues: u16,

    #[command(flatten)]
    pub(crate) maps: QueueArgs,

    /// Authenticate again so often while the work goes on, with the secrets that the files then have
    #[arg(long, value_name = "TIME", help_heading = "Connection", value_parser = values::time)]
    pub(crate) reauthenticate: Option<Duration>,

    /// Entries of each queue [default: 128, or iodepth + 1]
    #[arg(short = 'Q', long = "queue-size", value_name = "DEPTH", help_heading = "Connection")]
    #[arg(value_parser = clap::value_parser!(u16).range(2..=4096))]
    pub(crate) queue_size: Option<u16>,

    /// read, write, randread, randwrite, rw or randrw
    #[arg(long, value_name = "MODE", default_value = "randread", help_heading = "Workload")]
    pub(crate) rw: RwMode,

    /// Bytes per command
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = values::io_size)]
    #[arg(help_heading = "Workload")]
    pub(crate) bs: u32,

    /// Commands in flight, per queue
    #[arg(long, value_name = "N", default_value_t = 32, help_heading = "Workload")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4095))]
    pub(crate) iodepth: u16,

    /// Number of clones of the job that run at the same time, each with its own queues
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Workload")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) numjobs: u16,

    /// Commands that leave together [default: all that are due]
    #[arg(long = "iodepth_batch", aliases = ["iodepth-batch", "iodepth_batch_submit"])]
    #[arg(value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4095))]
    #[arg(help_heading = "Workload")]
    pub(crate) iodepth_batch: Option<u16>,

    /// With the depth reached, completions to await before the next command
    #[arg(long = "iodepth_batch_complete_min", default_value_t = 1, value_name = "N")]
    #[arg(aliases = ["iodepth-batch-complete-min", "iodepth_batch_complete"])]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=4095), help_heading = "Workload")]
    pub(crate) iodepth_batch_complete_min: u16,

    /// Completions to take together before commands are issued [default: all there are]
    #[arg(long = "iodepth_batch_complete_max", alias = "iodepth-batch-complete-max")]
    #[arg(value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4095))]
    #[arg(help_heading = "Workload")]
    pub(crate) iodepth_batch_complete_max: Option<u16>,

    /// Random access goes anywhere each time, rather than to each address once before any again
    #[arg(long, help_heading = "Workload")]
    pub(crate) norandommap: bool,

    /// Percentiles to report, e.g. 99:99.9:99.99
    #[arg(long = "percentile_list", alias = "percentile-list", value_name = "LIST")]
    #[arg(value_parser = percentiles)]
    pub(crate) percentile_list: Option<Percentiles>,

    /// Report all of --numjobs together
    #[arg(long = "group_reporting", alias = "group-reporting")]
    pub(crate) group_reporting: bool,

    /// How long to measure
    #[arg(long, value_name = "TIME", default_value = "8", value_parser = values::positive_time)]
    #[arg(help_heading = "Workload")]
    pub(crate) runtime: Duration,

    /// How long to run before measuring
    #[arg(long = "ramp_time", alias = "ramp-time", value_name = "TIME", default_value = "2")]
    #[arg(value_parser = values::time, help_heading = "Workload")]
    pub(crate) ramp_time: Duration,

    /// Percentage of reads, for rw and randrw
    #[arg(long, value_name = "PERCENT", default_value_t = 50, help_heading = "Workload")]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) rwmixread: u8,

    /// Commands per second of all queues; latency counts from when a command was due
    #[arg(long = "rate_iops", alias = "rate-iops", value_name = "N", help_heading = "Workload")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) rate_iops: Option<u64>,

    /// Write data that can be recognised, and check what is read
    #[arg(long, help_heading = "Workload")]
    pub(crate) verify: bool,

    /// First byte to use
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = values::size)]
    #[arg(help_heading = "Workload")]
    pub(crate) offset: ByteSize,

    /// Bytes to use [default: all from --offset]
    #[arg(long, value_name = "SIZE", value_parser = values::size, help_heading = "Workload")]
    pub(crate) size: Option<ByteSize>,

    /// The same seed gives the same addresses and data
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Workload")]
    pub(crate) seed: u64,

    /// Cores to run on, e.g. 0,2-4; queues are dealt out to them [default: one thread for each of
    /// --numjobs, not bound]
    #[arg(long, alias = "cpus_allowed", value_name = "LIST", value_parser = values::core_list)]
    pub(crate) cores: Option<CoreList>,

    /// Whether each thread is bound to one of --cores, or runs on any of them
    #[arg(long = "cpus_allowed_policy", alias = "cpus-allowed-policy", value_enum)]
    #[arg(value_name = "POLICY", default_value_t)]
    pub(crate) cpus_allowed_policy: CpusPolicy,

    /// What a core does when it has nothing to do
    #[arg(long, value_enum, default_value_t)]
    pub(crate) mode: ModeChoice,

    /// How to do I/O
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    pub(crate) io: IoChoice,

    /// How long to look for packets in the network device's queue before waiting for an interrupt
    #[arg(long, value_name = "MICROSECONDS", value_parser = values::busy_poll)]
    pub(crate) busy_poll: Option<Duration>,

    /// Which engine does which operation on data [default: software]; needs -G
    #[arg(long, value_name = "LIST", value_parser = accel_choice, long_help = ACCEL_HELP)]
    pub(crate) accel: Option<AccelChoice>,
}

/// Options that describe a job: in a job file, keys do that.
const JOB_OPTIONS: [&str; 21] = [
    "rw",
    "bs",
    "iodepth",
    "numjobs",
    "iodepth_batch",
    "iodepth_batch_complete_min",
    "iodepth_batch_complete_max",
    "norandommap",
    "percentile_list",
    "group_reporting",
    "runtime",
    "ramp_time",
    "rwmixread",
    "rate_iops",
    "verify",
    "offset",
    "size",
    "seed",
    "cores",
    "cpus_allowed_policy",
    "namespace",
];

/// Most namespaces in a list.
const NAMESPACES_MAX: usize = 1024;

/// `--cpus_allowed_policy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum CpusPolicy {
    /// A thread bound to each of them
    #[default]
    Split,
    /// A thread for each of --numjobs, which runs on any of them
    Shared,
}

/// Namespaces, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamespaceList(pub(crate) Vec<NamespaceId>);

/// Percentiles, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Percentiles(pub(crate) Vec<f64>);

/// `--target`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TargetSpec {
    /// Its name in job files.
    pub(crate) name: String,
    /// Its address, or its name in DNS.
    pub(crate) address: String,
    /// Its port.
    pub(crate) port: u16,
    /// Its subsystem.
    pub(crate) nqn: Nqn,
}

/// `1,3-5`.
fn namespaces(text: &str) -> Result<NamespaceList, String> {
    let mut list = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (NamespaceId(first), NamespaceId(last)) = (namespace(first)?, namespace(last)?);
        if first > last {
            return Err(format!("{part} runs backwards: write {last}-{first}"));
        }
        for nsid in (first..=last).map(NamespaceId) {
            if list.contains(&nsid) {
                return Err(format!("namespace {nsid} is there twice"));
            }
            if list.len() == NAMESPACES_MAX {
                return Err(format!("at most {NAMESPACES_MAX} namespaces"));
            }
            list.push(nsid);
        }
    }
    Ok(NamespaceList(list))
}

fn percentiles(text: &str) -> Result<Percentiles, String> {
    percentile_list(text).map(Percentiles)
}

/// `NAME=ADDR[:PORT],NQN`.
fn target(text: &str) -> Result<TargetSpec, String> {
    let wrong = || "a target is written NAME=ADDR[:PORT],NQN".to_owned();
    let (name, rest) = text.split_once('=').ok_or_else(wrong)?;
    let (address, nqn) = rest.split_once(',').ok_or_else(wrong)?;
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-') {
        return Err(format!("`{name}` is not a name: letters, digits, - and _"));
    }
    let (address, port) = split_port(address).ok_or_else(wrong)?;
    Ok(TargetSpec {
        name: name.to_owned(),
        address: address.to_owned(),
        port,
        nqn: values::nqn(nqn)?,
    })
}

/// `host:port`, `host`, `[::1]:port` or `::1`.
pub(crate) fn split_port(text: &str) -> Option<(&str, u16)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        let port = match port.strip_prefix(':') {
            Some(port) => port.parse().ok()?,
            None if port.is_empty() => values::DEFAULT_PORT,
            None => return None,
        };
        return Some((address, port));
    }
    match text.split_once(':') {
        Some((address, port)) if !port.contains(':') => Some((address, port.parse().ok()?)),
        // More than one colon: IPv6 without a port.
        _ => Some((text, values::DEFAULT_PORT)),
    }
    .filter(|(address, port)| !address.is_empty() && *port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_namespaces() {
        let list =
            |text| namespaces(text).map(|list| list.0.iter().map(|ns| ns.0).collect::<Vec<_>>());
        assert_eq!(list("1,3-5"), Ok(vec![1, 3, 4, 5]));
        let form = "a namespace is a number from 1 to 4294967294";
        for (text, message) in [
            ("0", form),
            ("", form),
            ("1-", form),
            ("5-3", "5-3 runs backwards: write 3-5"),
            ("1,1", "namespace 1 is there twice"),
            ("1-4294967294", "at most 1024 namespaces"),
        ] {
            assert_eq!(list(text), Err(message.to_owned()), "{text}");
        }
    }

    #[test]
    fn targets() {
        let nqn = "nqn.2014-08.org.example:1";
        for (address, host, port) in [
            ("192.0.2.1", "192.0.2.1", 4420),
            ("192.0.2.1:77", "192.0.2.1", 77),
            ("host:77", "host", 77),
            ("[::1]:77", "::1", 77),
            ("[::1]", "::1", 4420),
            ("::1", "::1", 4420),
        ] {
            let spec = target(&format!("Nvme1={address},{nqn}")).unwrap();
            assert_eq!((spec.address.as_str(), spec.port), (host, port), "{address}");
            assert_eq!((spec.name.as_str(), spec.nqn.to_string().as_str()), ("Nvme1", nqn));
        }
        let form = "a target is written NAME=ADDR[:PORT],NQN";
        for (text, message) in [
            ("192.0.2.1", form),
            ("a=192.0.2.1", form),
            ("a=:1,nqn", form),
            ("a=h:x,nqn", form),
            ("a=h:0,nqn", form),
            ("=h,nqn", "`` is not a name: letters, digits, - and _"),
            ("a b=h,nqn", "`a b` is not a name: letters, digits, - and _"),
            ("a=h,", "a name has at least 1 byte"),
        ] {
            assert_eq!(target(text), Err(message.to_owned()), "{text}");
        }
    }
}
