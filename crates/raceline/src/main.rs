//! The `raceline` program: NVMe over TCP in user space.

mod accel;
mod admission;
mod adq;
mod bench;
mod cli;
mod demo;
mod discover;
mod doctor;
mod export;
mod export_iscsi;
mod export_key;
mod failure;
mod http;
mod identify;
mod initiator;
mod key;
mod limits;
mod log;
mod manage;
mod naming;
mod perf;
mod profile;
mod read_write;
mod remote;
mod rpc;
mod sandbox;
mod secrets;
mod serve;
mod shell;
mod signals;
mod successor;
mod table;
mod tally;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};

use crate::cli::{Cli, Verb};
use crate::failure::Failure;

fn main() -> ExitCode {
    // Only when a shell asks for completions; in that case the call does not return.
    clap_complete::CompleteEnv::with_factory(Cli::command).complete();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return command_line_error(&error),
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    let settings = log::start(&cli.log);
    if let Some(machine) = cli.caches {
        machine.set_current();
    }
    match cli.verb {
        Verb::Export(args) => export::run(&args),
        Verb::Serve(args) => serve::run(&args, settings),
        Verb::Discover(args) => discover::run(&args),
        Verb::Identify(args) => identify::run(&args),
        Verb::Read(args) => read_write::read(&args),
        Verb::Write(args) => read_write::write(&args),
        Verb::Perf(args) => perf::run(&args),
        Verb::Bdev(args) => manage::bdev(&args),
        Verb::Subsys(args) => manage::subsystem(&args),
        Verb::Ns(args) => manage::namespace(&args),
        Verb::Pool(args) => manage::pool(&args),
        Verb::Port(args) => manage::port(&args),
        Verb::Qos(args) => manage::qos(&args),
        Verb::Host(args) => manage::host(&args),
        Verb::Iscsi(args) => manage::iscsi(&args),
        Verb::Key(args) => key::run(&args),
        Verb::Config(args) => manage::config(&args),
        Verb::Rpc(args) => rpc::run(&args),
        Verb::Bench(args) => bench::run(&args),
        Verb::Adq(args) => adq::run(&args),
        Verb::Doctor(args) => doctor::run(&args),
        Verb::Demo(args) => demo::run(&args),
        Verb::Completions(args) => shell::completions(&args),
        Verb::Man(args) => shell::man(&args),
    }
}

/// Help and version are printed to standard output; any other result is one line and exit code 2.
fn command_line_error(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A reader that closes the pipe early is no failure.
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
