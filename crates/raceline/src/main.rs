//! The `raceline` program: NVMe over TCP in user space.

mod accel;
mod admission;
mod bench;
mod cli;
mod demo;
mod discover;
mod export;
mod failure;
mod identify;
mod limits;
mod manage;
mod naming;
mod perf;
mod remote;
mod rpc;
mod shell;
mod signals;
mod table;
mod tally;
mod transfer;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};
use tracing_subscriber::EnvFilter;

use crate::cli::{Cli, LogArgs, Verb};
use crate::failure::Failure;

/// The environment variable that filters messages, as in `RACELINE_LOG=raceline_target=trace`.
const LOG_VARIABLE: &str = "RACELINE_LOG";

fn main() -> ExitCode {
    // Only when a shell asks for completions; does not return then.
    clap_complete::CompleteEnv::with_factory(Cli::command).complete();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return command_line_error(&error),
    };
    start_log(&cli.log);
    match run(cli.verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::Export(args) => export::run(&args),
        Verb::Discover(args) => discover::run(&args),
        Verb::Identify(args) => identify::run(&args),
        Verb::Read(args) => transfer::read(&args),
        Verb::Write(args) => transfer::write(&args),
        Verb::Perf(args) => perf::run(&args),
        Verb::Bdev(args) => manage::bdev(&args),
        Verb::Subsys(args) => manage::subsystem(&args),
        Verb::Ns(args) => manage::namespace(&args),
        Verb::Port(args) => manage::port(&args),
        Verb::Host(args) => manage::host(&args),
        Verb::Config(args) => manage::config(&args),
        Verb::Rpc(args) => rpc::run(&args),
        Verb::Bench(args) => bench::run(&args),
        Verb::Demo(args) => demo::run(&args),
        Verb::Completions(args) => shell::completions(&args),
        Verb::Man(args) => shell::man(&args),
    }
}

/// Help and version go to standard output; anything else is one line and exit code 2.
fn command_line_error(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A reader that has seen enough is no failure.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(failure::code::USAGE)
        }
        _ => {
            let words: Vec<String> =
                std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
            Failure::usage(failure::usage_line(error, &words)).report()
        }
    }
}

fn start_log(args: &LogArgs) {
    let level = match (args.quiet, args.verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "info",
        (false, 2) => "debug",
        (false, _) => "trace",
    };
    let filter = EnvFilter::try_from_env(LOG_VARIABLE).unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(args.verbose > 1)
        .init();
}
