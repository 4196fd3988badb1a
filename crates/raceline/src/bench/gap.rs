//! `raceline bench gap`: the points of a grid, each in pairs of runs.

use std::time::Duration;

use raceline_bench::congestion::CongestionControl;
use raceline_bench::distance::Distances;
use raceline_bench::gap::report::Report;
use raceline_bench::gap::{self, Case, Gap, GapConfig, GapError, Subject};
use raceline_bench::limit::{CONNECTIONS_MAX, DEPTH_MAX};
use raceline_bench::machine::Origin;

use super::progress;
use crate::cli::bench::GapArgs;
use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::signals::Interrupt;
use crate::{limits, shell};

/// Default number of pairs of a point: two targets differ by less than a target and the limit.
const PAIRS: u16 = 5;
const PAIRS_BOTH: u16 = 30;

/// Measures all points and prints the report.
pub(crate) fn run(args: &GapArgs) -> Result<(), Failure> {
    let cases = cases(args)?;
    limits::raise_file_descriptors();
    let interrupt = Interrupt::catch().map_err(Failure::runtime)?;
    let config = config(args);
    let mut gap = Gap::start(&config, &cases).map_err(failure)?;
    let report = Report {
        config,
        pages: args.pages.name().to_owned(),
        congestion_control: CongestionControl::of_system(),
        origin: Origin::here(),
        points: Vec::new(),
    };
    let measured = measure(args, &cases, &mut gap, report, &interrupt);
    let stopped = gap.stop().map_err(failure);
    let report = measured?;
    stopped?;
    match args.run.output {
        OutputFormat::Table => shell::print(report.summary().as_bytes()),
        OutputFormat::Json => shell::print(report.to_json().as_bytes()),
    }
}

fn measure(
    args: &GapArgs,
    cases: &[Case],
    gap: &mut Gap,
    mut report: Report,
    interrupt: &Interrupt,
) -> Result<Report, Failure> {
    let table = args.run.output == OutputFormat::Table;
    if table {
        shell::print(report.heading().as_bytes())?;
    }
    let measure = |case, stop: &dyn Fn() -> bool| gap.measure(case, stop).map_err(failure);
    let rows = |point: &_| table.then(|| report.row(point));
    report.points = progress::measure_each(cases, interrupt, measure, rows)?;
    Ok(report)
}

fn cases(args: &GapArgs) -> Result<Vec<Case>, Failure> {
    let selection = args.points.clone().unwrap_or_default();
    let cases = if args.quick { gap::quick(&selection) } else { gap::full(&selection) };
    if cases.is_empty() {
        return Err(Failure::usage("--points leaves none of the points of --quick"));
    }
    let fits = |case: &&Case| {
        usize::from(case.depth) < DEPTH_MAX && usize::from(case.connections) <= CONNECTIONS_MAX
    };
    if let Some(case) = cases.iter().find(|case| !fits(case)) {
        return Err(Failure::usage(format!(
            "{case}: a connection carries at most {} commands, and there are at most {CONNECTIONS_MAX} connections",
            DEPTH_MAX - 1
        )));
    }
    Ok(cases)
}

fn config(args: &GapArgs) -> GapConfig {
    let subject = args.target.into();
    let pairs = if subject == Subject::Both { PAIRS_BOTH } else { PAIRS };
    GapConfig {
        subject,
        memory_bytes: args.memory,
        pages: args.pages.into(),
        null: args.null,
        buffer_each: args.buffer_each,
        staged: args.staged,
        work: Duration::from_nanos(args.work),
        tls: args.tls.map(Into::into),
        mode: args.run.mode.into(),
        backend: args.run.io.into(),
        target_core: Some(args.run.cores.target_core),
        host_core: Some(args.run.cores.host_core),
        pairs: args.pairs.unwrap_or(pairs).into(),
        ramp: args.ramp_time,
        time: args.run.runtime,
        seed: args.run.seed,
        distances: Distances::default(),
    }
}

fn failure(error: GapError) -> Failure {
    match error {
        GapError::Limit(error) => super::limit::failure(error),
        GapError::Invalid(message) => Failure::usage(message),
        other => Failure::runtime(other),
    }
}
