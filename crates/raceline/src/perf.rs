//! `raceline perf`: measures, and with `--verify` proves, what a namespace does.

mod maps;

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use raceline_accel::{Framework, Statistics};
use raceline_bench::acceleration::Acceleration;
use raceline_bench::engine::{self, EngineConfig, EngineError, Outcome, Progress};
use raceline_bench::job::JobError;
use raceline_bench::report::{Report, binary_bytes};
use raceline_reactor::Mode;

use crate::cli::perf::PerfArgs;
use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::signals::Interrupt;
use crate::{limits, remote, shell};

/// Entries of a queue unless it has to be deeper.
const DEFAULT_ENTRIES: u16 = 128;

/// Runs the workload and prints the report.
pub(crate) fn run(args: &PerfArgs) -> Result<(), Failure> {
    let mut config = engine_config(args)?;
    if args.maps.show_maps {
        return maps::show(config.host, &config.cores, args.connect.address.output);
    }
    let framework = args.accel.clone().unwrap_or_default().framework(config.cores.len())?;
    config.accel = Some(framework.clone());
    limits::raise_file_descriptors();
    let interrupt = Interrupt::catch().map_err(Failure::runtime)?;
    let mut bar = Bar::new();
    let outcome = engine::run(&config, &mut |progress| {
        bar.show(progress);
        interrupt.requested().is_none()
    });
    bar.clear();
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(EngineError::Stopped) => {
            return Err(Failure::signal(interrupt.requested().unwrap_or(0)));
        }
        Err(error) => return Err(failure(error)),
    };
    let error = outcome.error.clone();
    let report = report(args, &outcome, &framework);
    let text = match args.connect.address.output {
        OutputFormat::Table => report.to_table(),
        OutputFormat::Json => report.to_json(),
    };
    shell::print(text.as_bytes())?;
    match (error, interrupt.requested()) {
        (Some(JobError::Mismatch(mismatch)), _) => {
            Err(Failure::mismatch(format!("namespace {}, {mismatch}", args.namespace)))
        }
        (Some(JobError::Io(why)), _) => Err(Failure::runtime(why)),
        (None, Some(signal)) => Err(Failure::signal(signal)),
        (None, None) => Ok(()),
    }
}

/// An error of the engine as a failure of the verb.
pub(crate) fn failure(error: EngineError) -> Failure {
    match error {
        EngineError::Host(error) => remote::failure(&error),
        EngineError::Invalid(message) => Failure::usage(message),
        EngineError::Workload(error) => Failure::usage(error),
        other => Failure::runtime(other),
    }
}

fn engine_config(args: &PerfArgs) -> Result<EngineConfig, Failure> {
    let cores = args.cores.clone().unwrap_or_default().0;
    if cores.len() > usize::from(args.queues) {
        return Err(Failure::usage(format!(
            "--cores names {} cores and -i {} queues cannot use them all: use -i {}",
            cores.len(),
            args.queues,
            cores.len()
        )));
    }
    if args.accel.is_some() && !args.connect.data_digest {
        return Err(Failure::usage("--accel has nothing to do without -G (--data-digest)"));
    }
    let (entries, in_flight) = (args.queue_size, commands_per_queue(args, cores.len()));
    let entries = match entries {
        Some(entries) if in_flight >= entries => {
            let depth = args.iodepth;
            let shared = if in_flight > depth { " where queues are shared" } else { "" };
            return Err(Failure::usage(format!(
                "--iodepth {depth}{shared} needs -Q {} or more: a queue holds one command less than it has entries",
                u32::from(in_flight) + 1
            )));
        }
        Some(entries) => entries,
        None => DEFAULT_ENTRIES.max(in_flight.saturating_add(1)),
    };
    let mut host = remote::config(&args.connect)?;
    host.io_queues = args.queues;
    (host.write_queues, host.poll_queues) = (args.maps.write, args.maps.poll);
    host.io_entries = entries;
    host.i10 = args.maps.i10;
    host.priority = args.maps.priority;
    host.placement = args.maps.placement.into();
    if let Some(priority) = host.priority {
        raceline_reactor::socket::check_priority(priority).map_err(Failure::runtime)?;
    }
    if let Some(time) = args.busy_poll {
        raceline_reactor::socket::check_busy_poll(time).map_err(Failure::runtime)?;
        host.busy_poll = Some(time);
    }
    Ok(EngineConfig {
        host,
        accel: None,
        nsid: args.namespace,
        mode: args.rw,
        mixed_read_percent: args.rwmixread,
        io_bytes: args.bs,
        depth: args.iodepth,
        offset_bytes: args.offset.0,
        size_bytes: args.size.map(|size| size.0),
        seed: args.seed,
        verify: args.verify,
        rate_iops: args.rate_iops,
        ramp: args.ramp_time,
        runtime: args.runtime,
        polled: args.maps.hipri,
        cores,
        // A core that slept would have to be woken for a completion.
        reactor_mode: if args.maps.hipri { Mode::Poll } else { args.mode.into() },
        backend: args.io.into(),
    })
}

/// Commands in flight on one queue at most: there are as many times the depth as there are queues of
/// -i, and those who submit on one core share its queues of a map.
fn commands_per_queue(args: &PerfArgs, cores: usize) -> u16 {
    if !args.maps.are_mapped() {
        return args.iodepth;
    }
    let threads = u16::try_from(cores.max(1)).unwrap_or(u16::MAX);
    let submitters = args.queues.div_ceil(threads);
    let fewest =
        [args.queues, args.maps.write, args.maps.poll].into_iter().filter(|&n| n > 0).min();
    let here = (fewest.unwrap_or(1) / threads).max(1);
    args.iodepth.saturating_mul(submitters.div_ceil(here))
}

fn report(args: &PerfArgs, outcome: &Outcome, framework: &Framework) -> Report {
    let queues =
        if args.queues == 1 { "1 queue".to_owned() } else { format!("{} queues", args.queues) };
    let name = format!(
        "{} {}, {queues} of depth {}",
        args.rw,
        binary_bytes(u64::from(args.bs)),
        args.iodepth
    );
    let error = outcome.error.as_ref().map(|error| match error {
        JobError::Io(why) => why.clone(),
        JobError::Mismatch(mismatch) => mismatch.to_string(),
    });
    Report {
        name,
        options: options(args),
        io_bytes: u64::from(args.bs),
        measured: outcome.measured,
        read: outcome.read.clone(),
        write: outcome.write.clone(),
        cpu: outcome.cpu,
        loops: outcome.loops,
        cost: outcome.cost.clone(),
        acceleration: Acceleration::since(framework, &Statistics::default()),
        missed: outcome.missed,
        verified: (args.verify && error.is_none()).then_some(outcome.verified),
        error,
    }
}

/// What was asked for, under the names of the options.
fn options(args: &PerfArgs) -> BTreeMap<String, String> {
    let mut options = BTreeMap::new();
    let mut set = |name: &str, value: String| options.insert(name.to_owned(), value);
    set("rw", args.rw.to_string());
    set("bs", args.bs.to_string());
    set("iodepth", args.iodepth.to_string());
    set("nr_io_queues", args.queues.to_string());
    if args.maps.are_mapped() {
        set("nr_write_queues", args.maps.write.to_string());
        set("nr_poll_queues", args.maps.poll.to_string());
    }
    if args.maps.hipri {
        set("hipri", "1".to_owned());
    }
    if let Some(i10) = args.maps.i10 {
        let text = format!("{},{},{}", i10.requests, i10.bytes, i10.delay.as_micros());
        set("i10", text);
    }
    set("runtime", seconds(args.runtime));
    set("ramp_time", seconds(args.ramp_time));
    set("seed", args.seed.to_string());
    set("offset", args.offset.to_string());
    set("traddr", args.connect.address.address.clone());
    set("trsvcid", args.connect.address.port.to_string());
    set("nqn", args.connect.nqn.to_string());
    set("namespace", args.namespace.to_string());
    set("hdr_digest", args.connect.header_digest.to_string());
    set("data_digest", args.connect.data_digest.to_string());
    if args.rw.is_mixed() {
        set("rwmixread", args.rwmixread.to_string());
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
    if let Some(accel) = &args.accel {
        set("accel", accel.to_string());
    }
    if args.verify {
        set("verify", "crc32c".to_owned());
    }
    options
}

fn seconds(time: Duration) -> String {
    time.as_secs_f64().to_string()
}

/// A line on standard error that shows how far the run is, if that is a terminal.
struct Bar(ProgressBar);

impl Bar {
    fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {msg}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    fn show(&mut self, progress: Progress) {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        match progress {
            Progress::Connecting => self.0.set_message("connecting"),
            Progress::Running(done, total) => {
                self.0.set_position(millis(done));
                if let Some(total) = total {
                    self.0.set_length(millis(total));
                    self.0.set_message(format!("{} of {} s", done.as_secs(), total.as_secs()));
                } else {
                    self.0.set_message(format!("{} s", done.as_secs()));
                }
            }
            Progress::Finishing => self.0.set_message("finishing"),
        }
        self.0.tick();
    }

    fn clear(&self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Verb};

    fn config(options: &str) -> Result<EngineConfig, String> {
        let line = format!("raceline perf -a 127.0.0.1 -n nqn.2014-08.org.example:1 {options}");
        let Verb::Perf(args) = Cli::try_parse_from(line.split_whitespace()).unwrap().verb else {
            unreachable!()
        };
        engine_config(&args).map_err(|failure| failure.message)
    }

    #[test]
    fn queues_are_as_deep_as_they_have_to_be() {
        assert_eq!(config("").unwrap().host.io_entries, 128);
        assert_eq!(config("--iodepth 128").unwrap().host.io_entries, 129);
        assert_eq!(config("--iodepth 32 -Q 33").unwrap().host.io_entries, 33);
        assert_eq!(
            config("--iodepth 32 -Q 32").unwrap_err(),
            "--iodepth 32 needs -Q 33 or more: a queue holds one command less than it has entries"
        );
    }

    #[test]
    fn queues_of_maps_hold_what_their_submitters_have_in_flight() {
        let entries = |options: &str| config(options).map(|config| config.host.io_entries);
        assert_eq!(entries("-i 4 -W 4 --iodepth 32"), Ok(128));
        assert_eq!(entries("-i 8 -W 2 --iodepth 32"), Ok(129));
        assert_eq!(entries("-i 8 -W 2 --iodepth 32 --cores 0,1"), Ok(129));
        let message = "--iodepth 32 where queues are shared needs -Q 129 or more: a queue holds one command less than it has entries";
        assert_eq!(entries("-i 8 -W 2 --iodepth 32 -Q 64"), Err(message.to_owned()));
    }

    #[test]
    fn polled_commands_have_cores_that_poll() {
        assert_eq!(config("--hipri -P 1 --mode interrupt").unwrap().reactor_mode, Mode::Poll);
        assert!(config("--i10=8").unwrap().host.i10.is_some_and(|i10| i10.requests == 8));
        assert!(config("--i10").unwrap().host.i10.is_some());
        assert!(config("").unwrap().host.i10.is_none());
    }

    #[test]
    fn engines_need_digests() {
        assert!(config("--accel crc32c=software -G").is_ok());
        let message = "--accel has nothing to do without -G (--data-digest)";
        assert_eq!(config("--accel crc32c=software").unwrap_err(), message);
    }

    #[test]
    fn cores_without_a_queue_are_refused() {
        assert!(config("--cores 0,1 -i 2").is_ok());
        assert_eq!(
            config("--cores 0,1").unwrap_err(),
            "--cores names 2 cores and -i 1 queues cannot use them all: use -i 2"
        );
    }
}
