//! Runs simulations of host and target: many seeds, or one again.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum as _};
use sim::campaign::{Campaign, Findings, Scenario};
use sim::proofs::{FULL, PROOFS, prove};
use sim::{DEFAULT_COMMANDS, SEEDS_FOR_ALL, Totals};

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
    /// What is run with each seed.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "one-path")]
    scenario: Vec<Scenario>,
    /// Every scenario with each seed: also lost paths, dead targets, late writes and both protocols on one device.
    #[arg(long, conflicts_with = "scenario")]
    all: bool,
    /// Threads [default: one for each core].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Begin no further run after so many minutes.
    #[arg(long, value_name = "N")]
    minutes: Option<u64>,
    /// Commands of each run.
    #[arg(long, default_value_t = DEFAULT_COMMANDS, value_parser = clap::value_parser!(u64).range(1..))]
    commands: u64,
    /// Prove what the simulation is worth: that its seeds meet everything, are repeatable, and find devices that lie.
    #[arg(long, exclusive = true)]
    proofs: bool,
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
    if arguments.proofs {
        return proofs();
    }
    let campaign = campaign(&arguments);
    let begun = Instant::now();
    let each = |seed: u64, scenario: Scenario, result: &Result<Totals, String>, took: Duration| {
        let name = scenario.name();
        match result {
            Ok(run) if arguments.verbose > 0 => {
                println!("seed {seed}, {name}: {:.2} s, {run:?}", took.as_secs_f64());
            }
            Ok(_) => {}
            Err(what) if arguments.keep_going => {
                println!("seed {seed}, {name} failed: {}", what.lines().next().unwrap_or_default());
            }
            Err(what) => println!("{what}"),
        }
    };
    let findings = campaign.run(each, |progress| println!("{progress}"));
    let Findings { totals, seeds, runs, failed } = &findings;
    println!("{}", summary((*seeds, *runs), totals, begun.elapsed().as_secs_f64()));
    for (path, count) in totals.paths.taken().filter(|_| arguments.verbose > 0) {
        println!("{count:>12}  {path}");
    }
    let enough = *seeds >= SEEDS_FOR_ALL && campaign.scenarios.contains(&Scenario::OnePath);
    let missed: Vec<&str> = totals.paths.missed().filter(|_| enough).collect();
    for path in &missed {
        println!("no seed has taken this way: {path}");
    }
    for (seed, scenario, _) in failed {
        println!("failed: {}", scenario.repeat(*seed, arguments.commands));
    }
    if failed.is_empty() && missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Carries out all proofs.
fn proofs() -> ExitCode {
    let begun = Instant::now();
    let failed = prove(&FULL, cores(), |name, result| match result {
        Ok(()) => println!("ok {name}"),
        Err(why) => println!("not ok {name}: {why}"),
    });
    let (all, took) = (PROOFS.len(), begun.elapsed().as_secs_f64());
    println!("sim: {} of {all} proofs in {took:.1} s", all - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn campaign(arguments: &Arguments) -> Campaign {
    let (first, seeds) = match arguments.seed {
        Some(seed) => (seed, 1),
        None => (arguments.first, arguments.seeds),
    };
    let mut scenarios = arguments.scenario.clone();
    if arguments.all {
        scenarios = Scenario::value_variants().to_vec();
    }
    Campaign {
        first,
        seeds,
        scenarios,
        commands: arguments.commands,
        jobs: arguments.jobs.map_or_else(cores, usize::from),
        time: arguments.minutes.map(|minutes| Duration::from_secs(60 * minutes)),
        keep_going: arguments.keep_going,
    }
}

/// All of it in one line.
fn summary((seeds, runs): (u64, u64), totals: &Totals, wall_s: f64) -> String {
    let Totals {
        commands,
        reads,
        r2t_writes,
        in_capsule_writes,
        fused,
        copies,
        copies_across,
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
        "sim: {seeds} seeds, {runs} runs, {commands} commands ({reads} reads, {r2t_writes} writes by R2T, \
         {in_capsule_writes} in capsule, {fused} fused, {copies} copies of which {copies_across} name namespaces), {simulated:.0} s simulated in {wall_s:.1} s, \
         {faults} faults, {reconnects} reconnects, {unknown_fates} unknown fates, {failures} error \
         statuses ({miscompares} miscompares), {flips} bits flipped, {digest_errors} data digest \
         errors, {device_errors} device errors, {buffer_waits} buffer waits, {throttled} held up by \
         limits, {torn_reads} torn reads in place, {namespace_events} namespace events, {moves} moves \
         between cores, fingerprint {fingerprint:016x}"
    )
}
