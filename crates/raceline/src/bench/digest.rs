//! `raceline bench digest`: the cost of data digests for a target's core, way by way.

use raceline_bench::digest::report::Report;
use raceline_bench::digest::{self, Case, DigestBench, DigestConfig, DigestError};

use super::{engines, papers, progress};
use crate::cli::bench::{DigestArgs, Direction, OffloadChoice};
use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::signals::Interrupt;
use crate::{limits, shell};

/// Measures all cases and prints the report.
pub(crate) fn run(args: &DigestArgs) -> Result<(), Failure> {
    limits::raise_file_descriptors();
    let interrupt = Interrupt::catch().map_err(Failure::runtime)?;
    let (cases, config) = (cases(args), config(args)?);
    let mut bench = DigestBench::start(config.clone(), &cases).map_err(failure)?;
    let (ways, pages) = (bench.ways(), args.pages.name().to_owned());
    let report = Report { config, pages, ways, points: Vec::new() };
    let measured = measure(args, &cases, &mut bench, report, &interrupt);
    let stopped = bench.stop().map_err(failure);
    let report = measured?;
    stopped?;
    match args.run.output {
        OutputFormat::Table => {
            shell::print(report.summary().as_bytes())?;
            papers::name_beside("digest");
            Ok(())
        }
        OutputFormat::Json => shell::print(report.to_json().as_bytes()),
    }
}

fn measure(
    args: &DigestArgs,
    cases: &[Case],
    bench: &mut DigestBench,
    mut report: Report,
    interrupt: &Interrupt,
) -> Result<Report, Failure> {
    let table = args.run.output == OutputFormat::Table;
    if table {
        shell::print(report.heading().as_bytes())?;
    }
    let measure = |case, stop: &dyn Fn() -> bool| bench.measure(case, stop).map_err(failure);
    let rows = |point: &_| table.then(|| report.rows(point));
    report.points = progress::measure_each(cases, interrupt, measure, rows)?;
    Ok(report)
}

/// The published cases, or all combinations of the chosen values.
fn cases(args: &DigestArgs) -> Vec<Case> {
    let published = digest::cases(args.quick);
    let mut sizes = args.io_size.clone();
    if sizes.is_empty() {
        sizes = published.iter().map(|case| case.io_bytes).collect();
        sizes.dedup();
    }
    let mut depths = args.depth.clone();
    if depths.is_empty() {
        let first = published.iter().take_while(|case| case.io_bytes == published[0].io_bytes);
        depths = first.map(|case| case.depth).collect();
    }
    let mut cases = Vec::new();
    for &rw in &args.rw {
        for &io_bytes in &sizes {
            let write = rw == Direction::Write;
            cases.extend(depths.iter().map(|&depth| Case { io_bytes, depth, write }));
        }
    }
    cases
}

fn config(args: &DigestArgs) -> Result<DigestConfig, Failure> {
    let device = match args.offload {
        OffloadChoice::None => None,
        OffloadChoice::Dsa => Some(engines::dsa()?),
        OffloadChoice::DsaEmulated => Some(engines::emulated_dsa(Some(args.run.cores.host_core))?),
    };
    Ok(DigestConfig {
        memory_bytes: args.memory,
        pages: args.pages.into(),
        paths: if args.path.is_empty() { digest::paths() } else { args.path.clone() },
        device,
        mode: args.run.mode.into(),
        backend: args.run.io.into(),
        target_core: Some(args.run.cores.target_core),
        host_core: Some(args.run.cores.host_core),
        rounds: args.rounds.into(),
        ramp: args.ramp_time,
        time: args.run.runtime,
        seed: args.run.seed,
    })
}

fn failure(error: DigestError) -> Failure {
    match error {
        DigestError::Path(error) => Failure::usage(error),
        other => Failure::runtime(other),
    }
}
