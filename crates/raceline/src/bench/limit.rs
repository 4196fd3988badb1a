//! `raceline bench limit`: a grid of points, each calibrated and then measured several times.

use std::time::Duration;

use raceline_bench::congestion::CongestionControl;
use raceline_bench::distance::Distance;
use raceline_bench::limit::report::{Point, Report, Variant};
use raceline_bench::limit::{self, Fixed, Limit, LimitConfig, LimitError, fill_region};

use crate::cli::bench::{Direction, LimitArgs};
use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::signals::Interrupt;
use crate::{limits, shell};

/// The longest ramp of a repetition before it is measured.
const RAMP_MAX: Duration = Duration::from_millis(100);
/// Repetitions during which the cores moved apart are repeated until this many times the requested number
/// of repetitions has been run.
const ATTEMPTS_FACTOR: u32 = 3;

/// Measures all points and prints the report.
pub(crate) fn run(args: &LimitArgs) -> Result<(), Failure> {
    limits::raise_file_descriptors();
    let interrupt = Interrupt::catch().map_err(Failure::runtime)?;
    let configs = grid(args);
    if args.data_digest && configs.iter().any(|config| config.write) {
        return Err(Failure::usage("--data-digest measures reads: leave out --rw write"));
    }
    for config in &configs {
        config.check().map_err(failure)?;
    }
    let mut region = Some(fill_region(args.memory, args.pages.into(), args.seed).map_err(failure)?);
    let stop = || interrupt.requested().is_some();
    let cores = args.cores;
    let mut distance = Distance::between(Some(cores.target_core), Some(cores.host_core));
    distance.wait(&stop);
    let mut report = Report {
        pages: args.pages.name().to_owned(),
        congestion_control: CongestionControl::of_system(),
        distance,
        points: Vec::new(),
    };
    if args.output == OutputFormat::Table {
        shell::print(report.heading().as_bytes())?;
    }
    for config in configs {
        if let Some(signal) = interrupt.requested() {
            return Err(Failure::signal(signal));
        }
        let memory = match region.take() {
            Some(memory) => memory,
            None => fill_region(args.memory, args.pages.into(), args.seed).map_err(failure)?,
        };
        let mut limit = Limit::start(&config, memory).map_err(failure)?;
        let point = measure(args, config, &mut limit, &mut report.distance, &stop);
        region = limit.stop();
        let point = point.map_err(failure)?;
        if args.output == OutputFormat::Table {
            shell::print(report.row(&point).as_bytes())?;
        }
        report.points.push(point);
    }
    match args.output {
        OutputFormat::Table => Ok(()),
        OutputFormat::Json => shell::print(report.to_json().as_bytes()),
    }
}

fn measure(
    args: &LimitArgs,
    config: LimitConfig,
    limit: &mut Limit,
    distance: &mut Distance,
    stop: &dyn Fn() -> bool,
) -> Result<Point, LimitError> {
    distance.wait(stop);
    limit.calibrate()?;
    if args.data_digest {
        limit.calibrate_with_digests()?;
    }
    if args.tls.is_some() {
        limit.calibrate_with_tls()?;
    }
    let (ramp, time) = (RAMP_MAX.min(args.runtime / 4), args.runtime);
    let (mut windows, mut round_trips) = (Vec::new(), Vec::new());
    let (mut digests, mut tls) = (Vec::new(), Vec::new());
    let (mut repeated, mut spare) = (0, args.repeat * (ATTEMPTS_FACTOR - 1));
    while round_trips.len() < args.repeat as usize {
        let near = distance.wait(stop);
        let window = limit.run(ramp, time)?;
        let digest =
            if args.data_digest { Some(limit.run_with_digests(ramp, time)?) } else { None };
        let over_tls = args.tls.map(|_| limit.run_with_tls(ramp, time)).transpose()?;
        let round_trip = near.max(distance.look());
        if distance.is_far(round_trip) && spare > 0 && !stop() {
            (repeated, spare) = (repeated + 1, spare - 1);
            continue;
        }
        windows.push(window);
        digests.extend(digest);
        tls.extend(over_tls);
        round_trips.push(round_trip);
    }
    let tuning = limit.digest_tuning();
    let digests = args.data_digest.then_some(Variant { tuning, windows: digests });
    let tuning = limit.tls_tuning();
    let tls = args.tls.map(|_| Variant { tuning, windows: tls });
    Ok(Point { config, tuning: limit.tuning(), windows, digests, tls, round_trips, repeated })
}

/// All points, in the order of their sizes.
fn grid(args: &LimitArgs) -> Vec<LimitConfig> {
    let mut configs = Vec::new();
    for &io_size in &args.io_size {
        for &rw in &args.rw {
            for &connections in &args.connections {
                for &depth in &args.depth {
                    configs.push(LimitConfig {
                        io_bytes: usize::try_from(io_size).unwrap_or(usize::MAX),
                        write: rw == Direction::Write,
                        depth,
                        connections,
                        memory_bytes: args.memory,
                        pages: args.pages.into(),
                        mode: args.mode.into(),
                        target_core: Some(args.cores.target_core),
                        host_core: Some(args.cores.host_core),
                        fixed: fixed(args),
                        tls: args.tls.map(Into::into),
                        seed: args.seed,
                    });
                }
            }
        }
    }
    configs
}

fn fixed(args: &LimitArgs) -> Fixed {
    let chunk = match (args.per_pdu, args.coalesce) {
        (true, _) => Some(1),
        (false, true) => Some(limit::ALL),
        (false, false) => args.chunk.0,
    };
    Fixed {
        receive_bytes: args.receive_size.0,
        chunk,
        prefetch: args.prefetch.0,
        buffer_each: args.buffer_each,
        staged: args.staged,
        work: Duration::from_nanos(args.work),
    }
}

/// An error of the limit as a failure of the verb.
pub(crate) fn failure(error: LimitError) -> Failure {
    match error {
        LimitError::Invalid(message) => Failure::usage(message),
        other => Failure::runtime(other),
    }
}
