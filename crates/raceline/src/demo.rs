//! `raceline demo`: a target and a host in one process, to show everything at work in seconds.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use raceline_bdev::{DeviceSpec, Identity};
use raceline_bench::acceleration::Acceleration;
use raceline_bench::cost::Counts;
use raceline_bench::distance::{SURELY_NEAR, round_trip};
use raceline_bench::job::JobError;
use raceline_bench::report::{
    JobReport, Report, Side, StageReport, binary_bytes, grouped, latency_text,
};
use raceline_bench::runner::{self, Outcome, RunConfig};
use raceline_bench::{Latencies, RwMode};
use raceline_host::HostConfig;
use raceline_proto::nvme::{NamespaceId, Nqn};
use raceline_reactor::affinity::allowed_cores;
use raceline_reactor::{Backend, Mode};
use raceline_target::{NamespaceConfig, SubsystemConfig, Target, TargetConfig};

use serde_json::{Value, json};

use crate::cli::DemoArgs;
use crate::cli::values::OutputFormat;
use crate::export::MODEL;
use crate::failure::Failure;
use crate::signals::Interrupt;
use crate::tally::work_of;
use crate::{limits, naming, perf, shell};

/// The duration of the demo by default.
pub(crate) const DEFAULT_SECONDS: u32 = 10;

const NQN: &str = "nqn.2026-01.io.raceline:demo";
const DEVICE: &str = "ram:64M";
const IO_BYTES: u32 = 4096;
const SEED: u64 = 1;

/// The measurements, in the order of the output.
const MEASUREMENTS: [(RwMode, u16); 4] = [
    (RwMode::RandRead, 1),
    (RwMode::RandRead, 32),
    (RwMode::RandWrite, 1),
    (RwMode::RandWrite, 32),
];

/// The measurement whose cost is explained.
const EXPLAINED: (RwMode, u16) = (RwMode::RandRead, 32);

/// Runs the demo.
pub(crate) fn run(args: &DemoArgs) -> Result<(), Failure> {
    limits::raise_file_descriptors();
    let interrupt = Interrupt::catch().map_err(Failure::runtime)?;
    let identity = Identity::of_this_machine();
    let voice = Voice::new(args.output);
    let style = &voice.style;
    let backend: Backend = args.io.into();

    let target = start_target(&identity, backend)?;
    let address = target
        .add_listener(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0))
        .map_err(Failure::runtime)?;
    voice.say(&format!(
        "{}\n\n",
        style.bold("Raceline demo: an NVMe/TCP target and host in one process")
    ))?;
    voice.say(&step(style, "target", &format!("{DEVICE} exported at {address}, in user space")))?;

    let measured = measure(args, &target, address, &identity, backend, &interrupt, &voice);
    let shutdown = target.shutdown().map_err(Failure::runtime);
    let document = measured.and_then(|measured| shutdown.map(|()| measured.document(address)))?;
    voice.say(&next_steps(style))?;
    match args.output {
        OutputFormat::Table => Ok(()),
        OutputFormat::Json => shell::print(format!("{document:#}\n").as_bytes()),
    }
}

/// The results of the demo.
struct Measured {
    /// Bytes that were written, read back and compared.
    verified_bytes: u64,
    report: Report,
    apart: Apart,
}

impl Measured {
    /// The results for programs: in the layout of `perf`'s report, with the demo's own figures beside it.
    fn document(&self, address: SocketAddr) -> Value {
        let mut document: Value =
            serde_json::from_str(&self.report.to_json()).unwrap_or_else(|_| json!({}));
        document["demo"] = json!({
            "device": DEVICE,
            "address": address.to_string(),
            "nqn": NQN,
            "verified_bytes": self.verified_bytes,
            "core_round_trip_ns": self.apart.span().map(|(least, most)| {
                json!({ "least": nanos(least), "most": nanos(most) })
            }),
        });
        document
    }
}

fn start_target(identity: &Identity, backend: Backend) -> Result<Target, Failure> {
    let spec: DeviceSpec = DEVICE.parse().map_err(Failure::runtime)?;
    let bdev = raceline_bdev::open(&spec, identity).map_err(Failure::runtime)?;
    let nqn = demo_nqn();
    let serial = naming::serial(identity, &nqn);
    let target = Target::start(TargetConfig { backend, ..TargetConfig::default() })
        .map_err(Failure::runtime)?;
    let subsystem = SubsystemConfig {
        nqn: nqn.clone(),
        serial,
        model: MODEL.to_owned(),
        ..SubsystemConfig::new(nqn.clone())
    };
    target.add_subsystem(subsystem).map_err(Failure::runtime)?;
    let namespace = NamespaceConfig::new(bdev);
    target.add_namespace(&nqn, namespace).map_err(Failure::runtime)?;
    Ok(target)
}

/// Verifies first: figures of a target that returns wrong data mean nothing.
fn measure(
    args: &DemoArgs,
    target: &Target,
    address: SocketAddr,
    identity: &Identity,
    backend: Backend,
    interrupt: &Interrupt,
    voice: &Voice,
) -> Result<Measured, Failure> {
    let style = &voice.style;
    let part = part_time(args.seconds);
    let config = |mode, depth, verify| RunConfig {
        mode,
        depth,
        verify,
        ..usual(address, identity, backend, part)
    };
    let go = |config: &RunConfig| {
        let outcome = runner::run(config, &mut |_| interrupt.requested().is_none());
        if let Some(signal) = interrupt.requested() {
            return Err(Failure::signal(signal));
        }
        check(outcome.map_err(perf::failure)?)
    };

    let outcome = go(&config(RwMode::Write, 32, true))?;
    let size = binary_bytes(outcome.namespace.size_bytes());
    voice.say(&step(
        style,
        "connect",
        &format!("namespace 1, {size} in blocks of {}", outcome.namespace.block_size),
    ))?;
    let verified_bytes = outcome.verified.saturating_mul(u64::from(IO_BYTES));
    let verified = binary_bytes(verified_bytes);
    let text = format!("{verified} written, read back and compared: every block is as written");
    voice.say(&step(style, "verify", &text))?;

    let mut apart = Apart::default();
    apart.look();
    voice.say(&format!("\n{}\n", style.bold(&heading())))?;
    let mut explanation = String::new();
    let mut report = Report { precondition: Vec::new(), stages: Vec::new() };
    for (mode, depth) in MEASUREMENTS {
        let before = work_of(target);
        let outcome = go(&config(mode, depth, false))?;
        let after = work_of(target);
        voice.say(&row(mode, depth, &outcome))?;
        apart.look();
        if (mode, depth) == EXPLAINED {
            explanation = explain(&outcome, after.0 - before.0, after.1.since(before.1));
        }
        report.stages.push(stage_report(mode, depth, outcome));
    }
    voice.say(&explanation)?;
    voice.say(&format!(
        "\n4 KiB commands over one TCP connection on the loopback, target and host sharing {}; CPU is of \
         both together, in percent of one core. Across a network, expect its latency on top.\n",
        cores_text()
    ))?;
    voice.say(&apart.text())?;
    Ok(Measured { verified_bytes, report, apart })
}

/// The configuration that all parts of the demo share.
fn usual(address: SocketAddr, identity: &Identity, backend: Backend, part: Duration) -> RunConfig {
    let (hostnqn, hostid) = naming::host(identity, None, None);
    RunConfig {
        host: HostConfig::new(address, demo_nqn(), hostnqn, hostid),
        accel: None,
        nsid: NamespaceId(1),
        mode: RwMode::RandRead,
        mixed_read_percent: 50,
        io_bytes: IO_BYTES,
        depth: 1,
        offset_bytes: 0,
        size_bytes: None,
        seed: SEED,
        verify: false,
        rate_iops: None,
        ramp: part / 8,
        runtime: part - part / 8,
        polled: false,
        cores: Vec::new(),
        reactor_mode: Mode::default(),
        backend,
    }
}

/// A measurement in the form of `perf`'s report. CPU time and costs belong to the process, and so to both
/// sides.
fn stage_report(mode: RwMode, depth: u16, outcome: Outcome) -> StageReport {
    let options = [
        ("rw", mode.to_string()),
        ("bs", IO_BYTES.to_string()),
        ("iodepth", depth.to_string()),
        ("seed", SEED.to_string()),
    ];
    let name = format!("{mode} depth {depth}");
    let job = JobReport {
        title: name.clone(),
        name,
        group: 0,
        options: BTreeMap::from(options.map(|(key, value)| (key.to_owned(), value))),
        percentiles: None,
        measured: outcome.measured,
        read: Side::new(outcome.read, IO_BYTES),
        write: Side::new(outcome.write, IO_BYTES),
        missed: outcome.missed,
        beyond_end: outcome.beyond_end,
        verified: None,
        error: None,
    };
    StageReport {
        jobs: vec![job],
        window: outcome.measured,
        cpu: outcome.cpu,
        loops: outcome.loops,
        cost: outcome.cost,
        acceleration: Acceleration::default(),
        reconnects: 0,
    }
}

/// The distance of the two cores that target and host share, look by look: it may differ tomorrow on the
/// same machine, because virtual machines are moved.
#[derive(Default)]
struct Apart(Vec<Duration>);

impl Apart {
    /// Looks only if there are exactly two cores: otherwise the cores of the two sides are unknown.
    fn look(&mut self) {
        let cores = allowed_cores().ok().and_then(|cores| <[usize; 2]>::try_from(cores).ok());
        self.0.extend(cores.and_then(|[a, b]| round_trip(a, b).ok()));
    }

    /// The least and the greatest distance.
    fn span(&self) -> Option<(Duration, Duration)> {
        Some((*self.0.iter().min()?, *self.0.iter().max()?))
    }

    fn text(&self) -> String {
        let Some((least, most)) = self.span() else { return String::new() };
        let [from, to] = [least, most].map(nanos);
        if most < SURELY_NEAR {
            return format!(
                "The cores were {from} to {to} ns apart (a cache line there and back).\n"
            );
        }
        format!(
            "The cores were {from} to {to} ns apart (a cache line there and back). Between cores that share \
             a cache, some 50 to 100 ns apart, deep queues are two to four times as fast as between far ones.\n"
        )
    }
}

/// The time of each part, verification included, out of the total time.
fn part_time(seconds: u32) -> Duration {
    let parts = u32::try_from(MEASUREMENTS.len() + 1).unwrap_or(1);
    // A tenth of the time is for connecting, reading back, and ending.
    Duration::from_secs(u64::from(seconds)) * 9 / 10 / parts
}

fn check(outcome: Outcome) -> Result<Outcome, Failure> {
    match &outcome.error {
        None => Ok(outcome),
        Some(JobError::Io(why)) => Err(Failure::runtime(why)),
        Some(JobError::Mismatch(mismatch)) => Err(Failure::mismatch(mismatch)),
    }
}

fn demo_nqn() -> Nqn {
    Nqn::new(NQN).expect("a constant NQN")
}

fn step(style: &Style, name: &str, text: &str) -> String {
    format!("  {} {name:<9}{text}\n", style.green("ok"))
}

fn heading() -> String {
    format!(
        "  {:<12}{:>6}{:>12}{:>14}{:>10}{:>10}{:>10}{:>8}",
        "", "depth", "IOPS", "bandwidth", "mean", "p99", "p99.99", "CPU"
    )
}

fn row(mode: RwMode, depth: u16, outcome: &Outcome) -> String {
    let side: &Latencies = if outcome.read.count() > 0 { &outcome.read } else { &outcome.write };
    let nanos = outcome.measured.as_nanos().max(1);
    let per_second =
        |count: u64| u64::try_from(u128::from(count) * 1_000_000_000 / nanos).unwrap_or(u64::MAX);
    let bytes = side.count().saturating_mul(u64::from(IO_BYTES));
    let (user, system) = outcome.cpu.percent_of(outcome.measured);
    format!(
        "  {:<12}{depth:>6}{:>12}{:>14}{:>10}{:>10}{:>10}{:>7.0}%\n",
        mode.name(),
        grouped(per_second(side.count())),
        format!("{}/s", binary_bytes(per_second(bytes))),
        latency_text(side.mean_ns()),
        latency_text(side.percentile_ns(99.0) as f64),
        latency_text(side.percentile_ns(99.99) as f64),
        user + system
    )
}

/// The cost of one command of a measurement. CPU time belongs to the process and so to both sides; `ios`
/// and `counts` belong to the target.
fn explain(outcome: &Outcome, ios: u64, counts: Counts) -> String {
    let (mode, depth) = EXPLAINED;
    let cost = &outcome.cost;
    format!(
        "\n  One {} at depth {depth} costs\n    CPU of both  {}\n    target       {}\n    host         {}\n",
        mode.name(),
        cost.describe_cpu(),
        counts.describe(ios),
        cost.counts.describe(cost.ios)
    )
}

fn cores_text() -> String {
    match std::thread::available_parallelism().map_or(1, usize::from) {
        1 => "1 core".to_owned(),
        cores => format!("{cores} cores"),
    }
}

fn next_steps(style: &Style) -> String {
    format!(
        "\n{}\n  raceline export ram:1G           export memory to this machine; prints the line to connect\n  \
         raceline export /srv/disk.img    the same with a file or a block device\n  \
         nvme connect -t tcp -a 127.0.0.1 -s 4420 -n NQN\n                                   \
         use it with the kernel's host (root, module nvme-tcp)\n  \
         raceline perf -a ADDRESS -n NQN  measure any NVMe/TCP target\n",
        style.bold("Next")
    )
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The stream for text for users: standard output, unless that is for a program.
struct Voice {
    output: OutputFormat,
    style: Style,
}

impl Voice {
    fn new(output: OutputFormat) -> Self {
        let terminal = match output {
            OutputFormat::Table => std::io::stdout().is_terminal(),
            OutputFormat::Json => std::io::stderr().is_terminal(),
        };
        Self { output, style: Style::on(terminal) }
    }

    fn say(&self, text: &str) -> Result<(), Failure> {
        match self.output {
            OutputFormat::Table => shell::print(text.as_bytes()),
            OutputFormat::Json => {
                // Standard error may have no reader: only the document matters.
                let _ = std::io::stderr().write_all(text.as_bytes());
                Ok(())
            }
        }
    }
}

/// Colours, if they are wanted.
struct Style {
    colour: bool,
}

impl Style {
    /// Colours on a terminal, unless NO_COLOR is set.
    fn on(terminal: bool) -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { colour: terminal && !unwanted }
    }

    fn bold(&self, text: &str) -> String {
        self.wrap("1", text)
    }

    fn green(&self, text: &str) -> String {
        self.wrap("32", text)
    }

    fn wrap(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_fit_the_time() {
        assert_eq!(part_time(10), Duration::from_millis(1800));
        assert!(part_time(2) * 5 < Duration::from_secs(2));
    }

    #[test]
    fn far_cores_are_explained() {
        let text =
            |looks: &[u64]| Apart(looks.iter().copied().map(Duration::from_nanos).collect()).text();
        assert_eq!(text(&[]), "");
        let near = text(&[80, 60]);
        assert!(near.contains("60 to 80 ns") && !near.contains("far"), "{near}");
        let far = text(&[80, 300]);
        assert!(far.contains("80 to 300 ns") && far.contains("far ones"), "{far}");
    }

    #[test]
    fn no_colour_without_a_terminal() {
        let plain = Style { colour: false };
        assert_eq!(plain.bold("x"), "x");
        assert!(!next_steps(&plain).contains('\x1b'));
        assert_eq!(Style { colour: true }.green("x"), "\x1b[32mx\x1b[0m");
    }
}
