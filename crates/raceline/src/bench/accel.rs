//! `raceline bench accel`: measures operations in every available way.

use raceline_accel::OpCode;
use raceline_bench::accel::report::Report;
use raceline_bench::accel::{AccelBench, AccelBenchError, AccelConfig, Device};
use raceline_reactor::affinity::pin_to_core;

use super::{engines, papers};
use crate::cli::bench::{AccelArgs, EngineChoice};
use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::shell;
use crate::signals::Interrupt;

/// Measures all cases and prints the report.
pub(crate) fn run(args: &AccelArgs) -> Result<(), Failure> {
    let interrupt = Interrupt::catch().map_err(Failure::runtime)?;
    let config = config(args)?;
    if let Some(core) = args.core {
        pin_to_core(core).map_err(Failure::runtime)?;
    }
    let mut bench = AccelBench::open(config).map_err(failure)?;
    let mut report = Report::default();
    let table = args.output == OutputFormat::Table;
    if table {
        shell::print(Report::heading().as_bytes())?;
    }
    for case in bench.cases() {
        if let Some(signal) = interrupt.requested() {
            return Err(Failure::signal(signal));
        }
        let rows = bench.measure(case).map_err(failure)?;
        if table {
            rows.iter().try_for_each(|row| shell::print(Report::row(row).as_bytes()))?;
        }
        report.rows.extend(rows);
    }
    if report.rows.is_empty() {
        return Err(Failure::usage("none of the engines can do any of the operations"));
    }
    match args.output {
        OutputFormat::Table => {
            shell::print(Report::legend().as_bytes())?;
            papers::name_beside("accel");
            Ok(())
        }
        OutputFormat::Json => shell::print(report.to_json().as_bytes()),
    }
}

fn config(args: &AccelArgs) -> Result<AccelConfig, Failure> {
    let has = |engine| args.engine.contains(&engine);
    let mut devices: Vec<Device> = Vec::new();
    if has(EngineChoice::Dsa) {
        devices.push(engines::dsa()?);
    }
    if has(EngineChoice::DsaEmulated) {
        devices.push(engines::emulated_dsa(args.device_core)?);
    }
    let all = || OpCode::ALL.to_vec();
    Ok(AccelConfig {
        operations: if args.operations.is_empty() { all() } else { args.operations.clone() },
        paths: if has(EngineChoice::Software) { args.path.clone() } else { Vec::new() },
        devices,
        sizes: args.size.clone(),
        depths: args.depth.clone(),
        working_sets: args.working_set.clone(),
        runs: args.runs.into(),
        time: args.runtime,
        seed: args.seed,
    })
}

fn failure(error: AccelBenchError) -> Failure {
    match error {
        AccelBenchError::Path(error) => Failure::usage(error),
        other => Failure::runtime(other),
    }
}
