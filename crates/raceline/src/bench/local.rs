//! `raceline bench local`: a workload on a device in this process, without a network.

use raceline_bdev::Identity;
use raceline_bench::local::{Local, LocalError, LocalJob, Ring, RingError};
use raceline_bench::{JobResult, Latencies};
use raceline_reactor::affinity::pin_to_core;
use serde_json::json;

use crate::cli::bench::local::LocalArgs;
use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::shell;
use crate::signals::Interrupt;
use crate::table::Table;

/// Runs the workload once and prints what it measured.
pub(crate) fn run(args: &LocalArgs) -> Result<(), Failure> {
    let interrupt = Interrupt::catch().map_err(Failure::runtime)?;
    let job = LocalJob {
        mode: args.rw,
        mixed_read_percent: args.rwmixread,
        io_bytes: args.bs,
        depth: args.iodepth,
        rate_iops: args.rate_iops,
        ramp: args.ramp_time,
        time: args.runtime,
        seed: args.seed,
    };
    let result = match (&args.device, &args.file) {
        (Some(spec), _) => {
            let device = raceline_bdev::open(spec, &Identity::of_this_machine());
            let device = device.map_err(Failure::runtime)?;
            Local::start(&device, args.core, &job).and_then(|local| local.run(job))
        }
        (None, Some(path)) => {
            if let Some(core) = args.core {
                pin_to_core(core).map_err(Failure::usage)?;
            }
            Ring::open(path, args.iopoll, &job)
                .and_then(|mut ring| ring.run(&job, &|| interrupt.requested().is_some()))
        }
        (None, None) => return Err(Failure::usage("name a device, or a file by --file")),
    };
    if let Some(signal) = interrupt.requested() {
        return Err(Failure::signal(signal));
    }
    let result = result.map_err(failure)?;
    let text = match args.output {
        OutputFormat::Table => table(&result),
        OutputFormat::Json => format!("{:#}\n", value(args, &result)),
    };
    shell::print(text.as_bytes())
}

fn failure(error: LocalError) -> Failure {
    match error {
        LocalError::Workload(_) | LocalError::Size(_) => Failure::usage(error),
        LocalError::Ring(RingError::NoPolling { .. }) => {
            Failure::runtime(format!("{error}; without --iopoll the file can be measured"))
        }
        error => Failure::runtime(error),
    }
}

/// Both kinds of command by name; those of which there are any.
fn sides(result: &JobResult) -> impl Iterator<Item = (&'static str, &Latencies)> {
    let sides = [("read", &result.read), ("write", &result.write)];
    sides.into_iter().filter(|(_, latencies)| latencies.count() > 0)
}

fn rate(latencies: &Latencies, result: &JobResult) -> f64 {
    latencies.count() as f64 / result.measured.as_secs_f64().max(f64::MIN_POSITIVE)
}

fn table(result: &JobResult) -> String {
    let mut table =
        Table::new(&["local", "IOPS", "mean us", "P50 us", "P99 us", "P99.9 us", "max us"]);
    let micros = |ns: f64| format!("{:.2}", ns / 1000.0);
    for (name, latencies) in sides(result) {
        let percentile = |percent| micros(latencies.percentile_ns(percent) as f64);
        table.row([
            name.to_owned(),
            format!("{:.0}", rate(latencies, result)),
            micros(latencies.mean_ns()),
            percentile(50.0),
            percentile(99.0),
            percentile(99.9),
            micros(latencies.max_ns() as f64),
        ]);
    }
    let missed = match result.missed {
        0 => String::new(),
        missed => format!("{missed} commands were due and not issued in time\n"),
    };
    format!("{}{missed}", table.render(""))
}

fn value(args: &LocalArgs, result: &JobResult) -> serde_json::Value {
    let side = |(name, latencies): (&str, &Latencies)| {
        let value = json!({
            "count": latencies.count(),
            "iops": rate(latencies, result),
            "mean_ns": latencies.mean_ns(),
            "p50_ns": latencies.percentile_ns(50.0),
            "p99_ns": latencies.percentile_ns(99.0),
            "p999_ns": latencies.percentile_ns(99.9),
            "p9999_ns": latencies.percentile_ns(99.99),
            "max_ns": latencies.max_ns(),
        });
        (name.to_owned(), value)
    };
    let mut whole: serde_json::Map<String, serde_json::Value> = sides(result).map(side).collect();
    let engine = match (&args.file, args.iopoll) {
        (None, _) => "reactor",
        (Some(_), false) => "io_uring",
        (Some(_), true) => "io_uring, polled completions",
    };
    whole.insert("engine".to_owned(), engine.into());
    whole.insert("measured_s".to_owned(), result.measured.as_secs_f64().into());
    whole.insert("missed".to_owned(), result.missed.into());
    whole.into()
}
