//! `raceline serve`: a target that SPDK's clients configure, which runs until a signal.

use std::net::SocketAddr;
use std::sync::Arc;

use raceline_control::daemon::{Daemon, DaemonConfig, Reach};
use raceline_control::events::EventJournal;
use raceline_control::hand_over::{LastWords, Predecessor};
use raceline_control::logging::{LogSettings, Logging};
use raceline_reactor::{inheritance, room};
use raceline_target::load_rdma_libraries;
use sd_notify::NotifyState;
use serde::Serialize;

use crate::cli::serve::ServeArgs;
use crate::failure::Failure;
use crate::http::Prepared;
use crate::profile::Judge;
use crate::signals::Interrupt;
use crate::watch::Watchdog;
use crate::{activation, limits, log, owner, sandbox, shell, successor};

/// The line on standard output that reports readiness.
#[derive(Debug, Serialize)]
struct Ready {
    ready: bool,
    socket: String,
    /// Whether options can still be set, because the daemon waits for framework_start_init.
    waits_for_rpc: bool,
    pid: u32,
    /// Where it serves HTTP.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    http: Vec<String>,
}

/// Serves until SIGINT or SIGTERM.
pub(crate) fn run(
    args: &ServeArgs,
    settings: LogSettings,
    events: Arc<EventJournal>,
) -> Result<(), Failure> {
    owner::check(args)?;
    if args.detach {
        return successor::start_detached();
    }
    successor::wait_until_left();
    if args.keep_ram {
        inheritance::keep_memory();
    }
    inheritance::enable();
    if args.take_over {
        // If this fails, what the daemon shares with this process must stay as it is.
        return serve(args, settings, events)
            .map_err(limits::explain)
            .map_err(successor::told)
            .map_err(successor::exit);
    }
    serve(args, settings, events).map_err(limits::explain).map_err(successor::told)
}

fn serve(
    args: &ServeArgs,
    settings: LogSettings,
    events: Arc<EventJournal>,
) -> Result<(), Failure> {
    limits::raise_file_descriptors();
    room::watch_memory();
    // The kernel is asked for what the machine is while it still answers: a sandbox forbids that, and /proc/self/auxv is root's
    // once the memory of the process is hidden.
    let _ = rustix::param::page_size();
    activation::take_sockets(args)?;
    let cores = args.cores.clone().unwrap_or_default().0;
    check_cores(&cores)?;
    let predecessor =
        args.take_over.then(|| Predecessor::meet(&args.socket, args.state_dir.clone()));
    let predecessor = predecessor.transpose().map_err(|error| Failure::take_over(&error))?;
    let http = Prepared::new(&args.http, args.state_dir.as_deref())?;
    let addresses = http.as_ref().map(Prepared::addresses).unwrap_or_default();
    let mut config = DaemonConfig {
        socket: args.socket.clone(),
        admins: args.admins.clone(),
        cores,
        config: args.config.clone(),
        state_dir: args.state_dir.clone(),
        wait_for_rpc: args.wait_for_rpc,
        connections: args.connections.options(),
        mdns: args.mdns,
        events,
        logging: Logging::new(settings, Box::new(log::apply)),
        beside: http.map(Prepared::into_beside),
        ..DaemonConfig::default()
    };
    // The sandbox holds for threads that start in it: no other has started but the judge.
    let profile = args.connections.profile;
    let judge = profile.map(|_| Judge::start()).transpose().map_err(Failure::runtime)?;
    if args.rdma && load_rdma_libraries().map_err(Failure::runtime)? == 0 {
        tracing::warn!(
            "--rdma: this machine has no RDMA device yet (rdma link shows them); one that comes later needs a restart of \
             this daemon"
        );
    }
    sandbox::enter_serve(args, || Reach::of(&mut config).map_err(Failure::runtime))?;
    log::begin_serving();
    let interrupt = Interrupt::catch_with_successors().map_err(Failure::runtime)?;
    let mut daemon = match predecessor {
        Some(mut predecessor) => {
            predecessor.unless(interrupt.asker());
            Daemon::take_over(config, &predecessor).map_err(|error| Failure::take_over(&error))?
        }
        None => Daemon::start(config).map_err(Failure::runtime)?,
    };
    daemon.await_successor(last_words()).map_err(Failure::runtime)?;
    if let Some(judge) = judge {
        judge.tell(listeners(&daemon));
    }
    let ready = Ready {
        ready: true,
        socket: daemon.socket().display().to_string(),
        waits_for_rpc: args.wait_for_rpc,
        pid: std::process::id(),
        http: addresses.iter().map(|address| format!("http://{address}")).collect(),
    };
    let line = serde_json::to_string(&ready).map_err(Failure::runtime)?;
    shell::print(format!("{line}\n").as_bytes())?;
    tell(&[NotifyState::Ready]);

    let ended = watch(&daemon, &interrupt);
    tell(&[NotifyState::Stopping]);
    let stopped = daemon.stop().map_err(Failure::runtime);
    ended.and(stopped)
}

/// Where the subsystems of the configuration listen.
fn listeners(daemon: &Daemon) -> Vec<SocketAddr> {
    let model = daemon.manager().model();
    let targets = model.nvmf.targets.values();
    let subsystems = targets.flat_map(|target| target.subsystems.values());
    let all = subsystems.flat_map(|subsystem| &subsystem.listeners);
    let mut sockets: Vec<SocketAddr> = all.filter_map(|address| address.socket().ok()).collect();
    sockets.sort_unstable();
    sockets.dedup();
    sockets
}

/// Waits for the signal to end, and feeds systemd's watchdog while the daemon is healthy.
fn watch(daemon: &Daemon, interrupt: &Interrupt) -> Result<(), Failure> {
    let mut watchdog = Watchdog::new();
    loop {
        if let Some(signal) = interrupt.wait(watchdog.interval()) {
            tracing::info!("signal {signal}: draining");
            return Ok(());
        }
        if interrupt.successor_requested() {
            successor::start();
        }
        if let Some(failure) = daemon.manager().failure() {
            return Err(Failure::runtime(failure));
        }
        if !daemon.manager().is_healthy() {
            return Err(Failure::runtime("a core has stopped: see the messages above"));
        }
        watchdog.look();
    }
}

/// What this process does when another one has taken its place.
fn last_words() -> LastWords {
    let before = |pid: i32| {
        if let Ok(pid) = u32::try_from(pid) {
            tell(&[NotifyState::MainPid(pid)]);
        }
    };
    let after = |pid: i32| {
        tracing::info!("process {pid} has taken the place of this one");
        log::finish();
        std::process::exit(0);
    };
    LastWords { before: Box::new(before), after: Box::new(after) }
}

/// Notifies systemd; without systemd this does nothing.
pub(crate) fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot notify systemd: {error}");
    }
}

/// Refuses a core that this process may not use, at the start instead of when a transport is made.
fn check_cores(cores: &[usize]) -> Result<(), Failure> {
    let allowed = raceline_reactor::affinity::allowed_cores().map_err(Failure::runtime)?;
    match cores.iter().find(|core| !allowed.contains(core)) {
        None => Ok(()),
        Some(core) => {
            let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
            let allowed = allowed.join(",");
            Err(Failure::usage(format!(
                "core {core} is not one that this process may use: choose of [{allowed}] with -m"
            )))
        }
    }
}
