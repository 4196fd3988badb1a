//! Runs simulations of host and target: many seeds, or one again.

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use sim::{DEFAULT_COMMANDS, Plan, SEEDS_FOR_ALL, Totals, run};

/// Runs the production host against the production target in virtual time.
#[derive(Parser)]
#[command(name = "cargo xtask sim", bin_name = "cargo xtask sim")]
struct Arguments {
    /// How many seeds.
    #[arg(long, default_value_t = 300, conflicts_with = "seed")]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1, conflicts_with = "seed")]
    first: u64,
    /// Just this seed, as a failure printed it.
    #[arg(long)]
    seed: Option<u64>,
    /// Commands of each run.
    #[arg(long, default_value_t = DEFAULT_COMMANDS, value_parser = clap::value_parser!(u64).range(1..))]
    commands: u64,
    /// Go on after failures, and list their seeds.
    #[arg(long)]
    keep_going: bool,
    /// Say what each run did; twice, what host and target log.
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.verbose > 1 {
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_writer(std::io::stderr)
            .init();
    }
    let seeds = match arguments.seed {
        Some(seed) => seed..seed + 1,
        None => arguments.first..arguments.first.saturating_add(arguments.seeds),
    };
    let begun = Instant::now();
    let mut totals = Totals::default();
    let mut failed = Vec::new();
    let mut count = 0;
    for seed in seeds {
        let started = Instant::now();
        match run(Plan::new(seed, arguments.commands)) {
            Ok(run) => {
                if arguments.verbose > 0 {
                    println!("seed {seed}: {:.2} s, {run:?}", started.elapsed().as_secs_f64());
                }
                totals.add(&run);
            }
            Err(failure) => {
                if arguments.keep_going {
                    println!("seed {seed} failed: {}", failure.what);
                } else {
                    println!("{failure}");
                }
                failed.push(seed);
            }
        }
        count += 1;
        if !failed.is_empty() && !arguments.keep_going {
            break;
        }
    }
    println!("{}", summary(count, &totals, begun.elapsed().as_secs_f64()));
    for (path, count) in totals.paths.taken().filter(|_| arguments.verbose > 0) {
        println!("{count:>12}  {path}");
    }
    let enough = count >= SEEDS_FOR_ALL;
    let missed: Vec<&str> = totals.paths.missed().filter(|_| enough).collect();
    for path in &missed {
        println!("no seed has taken this way: {path}");
    }
    if failed.is_empty() && missed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("failed: {failed:?}");
    ExitCode::FAILURE
}

/// All of it in one line.
fn summary(seeds: u64, totals: &Totals, wall_s: f64) -> String {
    let Totals {
        commands,
        reads,
        r2t_writes,
        in_capsule_writes,
        fused,
        failures,
        miscompares,
        unknown_fates,
        torn_reads,
        reconnects,
        faults,
        flips,
        digest_errors,
        device_errors,
        buffer_waits,
        throttled,
        namespace_events,
        moves,
        simulated,
        fingerprint,
        ..
    } = totals;
    let simulated = simulated.as_secs_f64();
    format!(
        "sim: {seeds} seeds, {commands} commands ({reads} reads, {r2t_writes} writes by R2T, \
         {in_capsule_writes} in capsule, {fused} fused), {simulated:.0} s simulated in {wall_s:.1} s, \
         {faults} faults, {reconnects} reconnects, {unknown_fates} unknown fates, {failures} error \
         statuses ({miscompares} miscompares), {flips} bits flipped, {digest_errors} data digest \
         errors, {device_errors} device errors, {buffer_waits} buffer waits, {throttled} held up by \
         limits, {torn_reads} torn reads in place, {namespace_events} namespace events, {moves} moves \
         between cores, fingerprint {fingerprint:016x}"
    )
}
