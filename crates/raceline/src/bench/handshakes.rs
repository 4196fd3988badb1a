//! `raceline bench handshakes`: what connections over TLS cost those who are connected.

use raceline_bench::handshakes::report::Report;
use raceline_bench::handshakes::{Handshakes, HandshakesConfig};
use raceline_bench::machine::Origin;

use crate::cli::bench::handshakes::HandshakesArgs;
use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::signals::Interrupt;
use crate::{limits, shell};

/// Measures all depths and prints the report.
pub(crate) fn run(args: &HandshakesArgs) -> Result<(), Failure> {
    limits::raise_file_descriptors();
    let interrupt = Interrupt::catch().map_err(Failure::runtime)?;
    let config = config(args);
    let mut handshakes = Handshakes::start(&config).map_err(Failure::runtime)?;
    let mut report = Report { config, origin: Origin::here(), points: Vec::new() };
    let table = args.output == OutputFormat::Table;
    if table {
        shell::print(report.heading().as_bytes())?;
    }
    for &depth in &args.depth {
        let point = handshakes.measure(depth, &|| interrupt.requested().is_some());
        if let Some(signal) = interrupt.requested() {
            return Err(Failure::signal(signal));
        }
        let point = point.map_err(Failure::runtime)?;
        if table {
            shell::print(report.row(&point).as_bytes())?;
        }
        report.points.push(point);
    }
    handshakes.stop().map_err(Failure::runtime)?;
    if table { Ok(()) } else { shell::print(report.to_json().as_bytes()) }
}

fn config(args: &HandshakesArgs) -> HandshakesConfig {
    HandshakesConfig {
        suite: args.suite.into(),
        rate: args.rate,
        io_bytes: args.io_size,
        rounds: args.rounds.into(),
        ramp: args.ramp_time,
        time: args.runtime,
        mode: args.mode.into(),
        backend: args.io.into(),
        target_core: args.cores.target_core,
        host_core: args.cores.host_core,
        seed: args.seed,
    }
}
