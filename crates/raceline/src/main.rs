//! The `raceline` program: NVMe over TCP in user space.

mod accel;
mod activation;
mod admission;
mod adq;
mod bench;
mod cli;
mod connect;
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
mod interfaces;
mod key;
mod limits;
mod log;
mod manage;
mod names;
mod naming;
mod nvme;
mod owner;
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
mod sizes;
mod successor;
mod table;
mod tally;
mod watch;

use std::process::ExitCode;
use std::sync::Arc;

use clap::error::ErrorKind;
use raceline_control::events::EventJournal;

use crate::cli::{Cli, Verb};
use crate::failure::Failure;

#[global_allocator]
static HEAP: raceline_reactor::Heap =
    raceline_reactor::Heap { exit_code: failure::code::RUNTIME as i32 };

fn main() -> ExitCode {
    names::use_built_in_ways();
    // Only when a shell asks for completions; in that case the call does not return.
    clap_complete::CompleteEnv::with_factory(cli::letters::definition).complete();
    let cli = match cli::letters::parse_from(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => return command_line_error(&error),
    };
    match run(cli) {
        Ok(()) => {
            log::finish();
            ExitCode::SUCCESS
        }
        Err(failure) => failure.report(),
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    // Only a daemon has clients that ask what has happened.
    let is_daemon = matches!(cli.verb, Verb::Serve(_));
    let events = is_daemon.then(Arc::<EventJournal>::default);
    let settings = log::start(&cli.log, events.clone());
    if let Some(machine) = cli.caches {
        machine.set_current();
    }
    match cli.verb {
        Verb::Export(args) => export::run(&args),
        Verb::Serve(args) => serve::run(&args, settings, events.unwrap_or_default()),
        Verb::Discover(args) => discover::run(&args),
        Verb::Connect(args) => connect::connect(&args),
        Verb::Disconnect(args) => connect::disconnect(&args),
        Verb::DisconnectAll(args) => connect::disconnect(&args.into()),
        Verb::Identify(args) => identify::run(&args),
        Verb::Read(args) => read_write::read(&args),
        Verb::Write(args) => read_write::write(&args),
        Verb::Perf(args) => perf::run(&args),
        Verb::ConnectAll(args) => nvme::connect_all::run(&args),
        Verb::List(args) => nvme::list::namespaces(&args, cli.log.verbose > 0),
        Verb::ListSubsys(args) => nvme::list::subsystems(&args),
        Verb::IdCtrl(args) => nvme::identify::controller(&args),
        Verb::IdNs(args) => nvme::identify::namespace(&args),
        Verb::GetLog(args) => nvme::log::get(&args),
        Verb::SmartLog(args) => nvme::log::smart(&args),
        Verb::ErrorLog(args) => nvme::log::errors(&args),
        Verb::CreateNs(args) => nvme::namespaces::create(&args),
        Verb::AttachNs(args) => nvme::namespaces::attach(&args),
        Verb::DetachNs(args) => nvme::namespaces::detach(&args),
        Verb::DeleteNs(args) => nvme::namespaces::delete(&args),
        Verb::Format(args) => nvme::namespaces::format(&args),
        Verb::NsRescan(args) => nvme::namespaces::rescan(&args),
        Verb::Reset(args) => nvme::namespaces::reset(&args),
        Verb::Flush(args) => nvme::blocks::flush(&args),
        Verb::Dsm(args) => nvme::blocks::dsm(&args),
        Verb::WriteZeroes(args) => nvme::blocks::write_zeroes(&args),
        Verb::Compare(args) => nvme::blocks::compare(&args),
        Verb::Bdev(args) => manage::bdev(&args),
        Verb::Subsys(args) => manage::subsystem(&args),
        Verb::Ns(args) => manage::namespace(&args),
        Verb::Pool(args) => manage::pool(&args),
        Verb::Port(args) => manage::port(&args),
        Verb::Qos(args) => manage::qos(&args),
        Verb::Host(args) => manage::host(&args),
        Verb::Nvmet(args) => manage::nvmet(&args),
        Verb::Iscsi(args) => manage::iscsi(&args),
        Verb::Key(args) => key::run(&args),
        Verb::Config(args) => manage::config(&args),
        Verb::Rpc(args) => rpc::run(&args),
        Verb::Events(args) => manage::events(&args),
        Verb::Top(args) => manage::top(&args),
        Verb::Support(args) => manage::support(&args),
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
