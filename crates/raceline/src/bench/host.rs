//! `raceline bench host`: ways of using queues, case by case.

use raceline_bench::distance::Distances;
use raceline_bench::host::{self, Case, HostBenchConfig, HostBenchError, report};

use super::papers;
use crate::cli::bench::host::HostBenchArgs;
use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::signals::Interrupt;
use crate::{limits, shell};

/// Measures the cases and prints a table of each.
pub(crate) fn run(args: &HostBenchArgs) -> Result<(), Failure> {
    limits::raise_file_descriptors();
    let interrupt = Interrupt::catch().map_err(Failure::runtime)?;
    let config = config(args);
    let cases = match &args.case[..] {
        [] => Case::ALL.to_vec(),
        chosen => chosen.iter().map(|&case| case.into()).collect(),
    };
    let mut sections = Vec::with_capacity(cases.len());
    for case in cases {
        let section = host::run(case, &config, &|| interrupt.requested().is_some());
        if let Some(signal) = interrupt.requested() {
            return Err(Failure::signal(signal));
        }
        let section = section.map_err(failure)?;
        if args.run.output == OutputFormat::Table {
            shell::print(format!("{}\n", section.to_text()).as_bytes())?;
            papers::name_beside(&format!("host --case {}", case.name()));
        }
        sections.push(section);
    }
    match args.run.output {
        OutputFormat::Table => Ok(()),
        OutputFormat::Json => shell::print(report::to_json(&sections).as_bytes()),
    }
}

fn config(args: &HostBenchArgs) -> HostBenchConfig {
    HostBenchConfig {
        target: args.target.clone(),
        memory_bytes: args.memory,
        mode: args.run.mode.into(),
        backend: args.run.io.into(),
        target_core: args.run.cores.target_core,
        host_core: args.run.cores.host_core,
        rounds: args.rounds.into(),
        ramp: args.ramp_time,
        time: args.run.runtime,
        seed: args.run.seed,
        writer_bytes: args.writer.0,
        i10: args.i10,
        depth: args.iodepth,
        distances: Distances::default(),
    }
}

fn failure(error: HostBenchError) -> Failure {
    match error {
        HostBenchError::Host(error) => crate::perf::failure(error),
        other => Failure::runtime(other),
    }
}
