//! The end of a daemon: meets its successor, and lets go step by step.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use raceline_proto::nvme::feature::WriteProtection;
use raceline_proto::nvme::{NamespaceId, Nqn};
use raceline_proto::reservation::Reservations;
use raceline_reactor::inheritance;
use raceline_reactor::private_socket::{self, SocketError, SocketFile};
use raceline_target::{HandOver, PoolNamespace, Target};
use uuid::Uuid;

use super::wire::{Wire, is_other};
use super::{
    FORM, FromDaemon, FromSuccessor, HandedNamespace, HandedReservations, HandedState, Hello,
    OTHER_FORM, Offered, Reserved, TakeOverError,
};
use crate::manager::nvmf::{DEFAULT_TARGET, Namespace};
use crate::manager::{Manager, Phase, lock};
use crate::ptpl;

/// How long a successor may take to say who it is, or to read a refusal.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
/// How long it may take to make everything anew; changes wait for that.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// How long hosts may take to hear that their connections will end; everything is served meanwhile.
const NOTICE_LIMIT: Duration = Duration::from_secs(1);
/// How long hosts may wait for connections to rest; those that do not are not handed over.
const REST_LIMIT: Duration = Duration::from_secs(2);
/// How long it may take to make the connections; hosts wait for that.
const TAKEN_LIMIT: Duration = Duration::from_secs(10);
/// How long what is not handed over may take to end.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);
/// Why a daemon that ends has no successor.
const ENDS: &str = "it was asked to end, and ends";
/// Successors that may wait to be met.
const BACKLOG: i32 = 8;

/// A namespace: its target, subsystem, NSID and UUID.
type ReservableNamespace = (String, Nqn, u32, Uuid);
/// A LUN: its target node and number.
type ReservableLun = (String, u16);

/// What a daemon does besides, given the process of its successor.
pub struct LastWords {
    /// Before the successor goes on.
    pub before: Box<dyn Fn(i32) + Send>,
    /// After that: it ends the process, without closing anything in good order.
    pub after: Box<dyn Fn(i32) + Send>,
}

/// Waits for a successor, on a thread of its own.
pub struct Successors {
    /// Whether this daemon is ending. Who has it locked lets nobody begin to end it.
    is_ending: Arc<Mutex<bool>>,
    /// The successor that is being met, of which nothing more is heard once this daemon ends: no change waits for it then.
    met: Arc<Mutex<Option<Wire>>>,
    file: SocketFile,
}

impl Drop for Successors {
    fn drop(&mut self) {
        // Who is about to take the place of this process does so first, and then this one is gone.
        *lock(&self.is_ending) = true;
        if let Some(wire) = &*lock(&self.met) {
            wire.hear_no_more();
        }
        // The thread ends with the process.
        self.file.remove();
    }
}

impl Successors {
    /// Listens. The lock of the RPC socket says that no other daemon listens here.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn start(
        path: PathBuf,
        manager: Arc<Manager>,
        last: LastWords,
    ) -> Result<Self, SocketError> {
        let (listener, file) =
            private_socket::listen_locked(&path, private_socket::OWNER, BACKLOG)?;
        let (is_ending, met) = (Arc::new(Mutex::new(false)), Arc::new(Mutex::new(None)));
        let (ending, meets) = (Arc::clone(&is_ending), Arc::clone(&met));
        let thread = std::thread::Builder::new().name("successors".to_owned()).spawn(move || {
            for stream in listener.incoming() {
                match stream {
                    Ok(stream) => {
                        let wire = Wire::new(stream);
                        *lock(&meets) = wire.again();
                        meet(&wire, &manager, &last, &ending);
                        *lock(&meets) = None;
                    }
                    Err(error) => {
                        tracing::warn!("cannot meet a successor: {error}");
                        std::thread::sleep(HELLO_LIMIT);
                    }
                }
            }
        });
        match thread {
            Ok(_) => Ok(Self { is_ending, met, file }),
            Err(source) => {
                file.remove();
                Err(SocketError::Refused { path, source })
            }
        }
    }
}

/// One attempt. Comes back if this daemon goes on.
fn meet(wire: &Wire, manager: &Manager, last: &LastWords, is_ending: &Mutex<bool>) {
    let pid = wire.peer().map_or(0, |(_, pid)| pid);
    tracing::info!(pid, "a process wants to take the place of this one");
    let handed = hand_over(wire, manager, last, is_ending);
    let is_ending = *lock(is_ending);
    match handed {
        Ok(never) => match never {},
        // It is this daemon that has not heard.
        Err(TakeOverError::Lost(_)) if is_ending => {
            let _ = wire.send(&FromDaemon::Refused(ENDS.to_owned()));
        }
        Err(TakeOverError::Refused(reason)) => {
            tracing::warn!(pid, "it may not: {reason}");
            // It may be sending: then it sees that this fails, and reads the reason first.
            if wire.send(&FromDaemon::Refused(reason)).is_ok() {
                let _ = wire.limit(HELLO_LIMIT);
                wire.wait_for_end();
            }
        }
        Err(TakeOverError::Lost(error)) => {
            tracing::warn!(pid, "this daemon goes on, as that process is gone or silent: {error}");
        }
        Err(error) => tracing::warn!(pid, "this daemon goes on: {error}"),
    }
}

enum Never {}

fn refused(reason: impl ToString) -> TakeOverError {
    TakeOverError::Refused(reason.to_string())
}

fn hand_over(
    wire: &Wire,
    manager: &Manager,
    last: &LastWords,
    is_ending: &Mutex<bool>,
) -> Result<Never, TakeOverError> {
    let lost = TakeOverError::Lost;
    wire.limit(HELLO_LIMIT).map_err(lost)?;
    let pid = check_peer(wire, manager)?;
    check_lasting(*lock(is_ending))?;
    // No change from here on, unless it fails: neither by a client nor by a host.
    let _changes = manager.hold_changes();
    let held = HeldBack::all(manager);
    // The successor reads it from the file.
    manager.save_history();
    if manager.model().disks.any_is_there() {
        return Err(refused(
            "it serves disks (vhost_get_controllers, ublk_get_disks, nbd_get_disks), which only one process can: end them first, or \
             restart the daemon",
        ));
    }
    let descriptors = inheritance::offers().map_err(refused)?;
    let (names, descriptors): (Vec<String>, Vec<OwnedFd>) = descriptors.into_iter().unzip();
    wire.send(&FromDaemon::Offer(offered(manager, names))).map_err(lost)?;
    wire.send_descriptors(&descriptors).map_err(lost)?;
    drop(descriptors);
    wire.limit(READY_LIMIT).map_err(lost)?;
    expect(wire, |said| matches!(said, FromSuccessor::Ready))?;

    let suspended = Suspended::all(manager)?;
    let (state, sockets) = suspended.state(manager)?;
    wire.limit(TAKEN_LIMIT).map_err(lost)?;
    wire.send(&FromDaemon::State(state)).map_err(lost)?;
    wire.send_descriptors(&sockets).map_err(lost)?;
    expect(wire, |said| matches!(said, FromSuccessor::Taken))?;
    // From here on the end of this daemon waits for the successor.
    let is_ending = lock(is_ending);
    check_lasting(*is_ending)?;
    suspended.leave();
    (last.before)(pid);
    wire.send(&FromDaemon::Go).map_err(lost)?;
    tracing::info!(
        pid,
        connections = sockets.len(),
        pause_us = suspended.since.elapsed().as_micros(),
        "the other process goes on with these connections"
    );
    // Nothing here may touch them, not even by going on.
    std::mem::forget((suspended, held));
    (last.after)(pid);
    loop {
        std::thread::park();
    }
}

fn check_lasting(is_ending: bool) -> Result<(), TakeOverError> {
    if is_ending { Err(refused(ENDS)) } else { Ok(()) }
}

/// Who it is, and whether it can be the successor. Gives its process.
fn check_peer(wire: &Wire, manager: &Manager) -> Result<i32, TakeOverError> {
    let (uid, pid) = wire.peer().map_err(TakeOverError::Lost)?;
    let own = rustix::process::geteuid().as_raw();
    if uid != own {
        return Err(refused(format!(
            "it runs as user {uid}, and the daemon as user {own}: run it as the daemon's user"
        )));
    }
    let hello = match wire.receive() {
        Ok(FromSuccessor::Hello(hello)) => hello,
        Ok(_) => return Err(refused("it does not say who it is")),
        Err(error) if is_other(&error) => return Err(refused(other_version(None))),
        Err(error) => return Err(TakeOverError::Lost(error)),
    };
    if hello.form != FORM || hello.connections != raceline_target::FORM {
        return Err(refused(other_version(Some(&hello))));
    }
    let state_dir = manager.config().state_dir.clone();
    let canonical = |dir: &Option<PathBuf>| dir.as_ref().map(|dir| dir.canonicalize().ok());
    if canonical(&hello.state_dir) != canonical(&state_dir) {
        let text = |dir: &Option<PathBuf>| {
            let given = dir.as_ref().map(|dir| format!("--state-dir {}", dir.display()));
            given.unwrap_or_else(|| "no --state-dir".to_owned())
        };
        return Err(refused(format!(
            "the daemon was started with {}, and this process with {}: give it the same",
            text(&state_dir),
            text(&hello.state_dir)
        )));
    }
    if manager.phase() != Phase::Runtime {
        return Err(refused("it has not started yet: wait until it is ready"));
    }
    Ok(pid)
}

fn other_version(hello: Option<&Hello>) -> String {
    let whose = hello.map_or("an unknown version".to_owned(), |hello| {
        format!("version {} (forms {}.{})", hello.version, hello.form, hello.connections)
    });
    let (own, connections) = (env!("CARGO_PKG_VERSION"), raceline_target::FORM);
    format!(
        "{whose} {OTHER_FORM} {own} (forms {FORM}.{connections}): end the daemon and start \
         the new version; its hosts connect anew"
    )
}

/// Takes what the successor says next.
fn expect(wire: &Wire, is_it: impl Fn(&FromSuccessor) -> bool) -> Result<(), TakeOverError> {
    match wire.receive().map_err(TakeOverError::Lost)? {
        FromSuccessor::Failed(why) => Err(TakeOverError::Unable(why)),
        said if is_it(&said) => Ok(()),
        _ => Err(refused("it does not keep to the order of the steps")),
    }
}

fn offered(manager: &Manager, descriptors: Vec<String>) -> Offered {
    let model = manager.model();
    Offered {
        catalogue: model.catalogue.entries().map(|(k, e)| (k.clone(), e.clone())).collect(),
        missing: model.absent().into_keys().collect(),
        run: manager.config().run,
        changes: manager.changes_so_far(),
        descriptors,
    }
}

/// Reservations, if there are or were any, as the successor needs them.
fn handed(
    of: Reserved,
    kept: &Reservations,
    uuid: Uuid,
) -> Result<Option<HandedReservations>, TakeOverError> {
    if kept.registrants.is_empty() && kept.generation == 0 {
        return Ok(None);
    }
    let content = ptpl::encode(kept, uuid).map_err(refused)?;
    let content = String::from_utf8(content).map_err(refused)?;
    Ok(Some(HandedReservations { of, generation: kept.generation, content }))
}

/// Targets whose hosts change neither pools nor write protection. Dropped, they may again.
struct HeldBack(Vec<Arc<Target>>);

impl HeldBack {
    fn all(manager: &Manager) -> Self {
        let targets: Vec<_> = manager.running_targets().into_iter().map(|(_, it)| it).collect();
        targets.iter().for_each(|target| target.hold_back());
        Self(targets)
    }
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        self.0.iter().for_each(|target| target.let_go());
    }
}

/// All targets at rest. Dropped, they go on.
struct Suspended {
    targets: BTreeMap<String, (Arc<Target>, HandOver)>,
    since: Instant,
}

impl Suspended {
    fn all(manager: &Manager) -> Result<Self, TakeOverError> {
        let targets = manager.running_targets();
        let with_nothing = |(name, target)| (name, (target, HandOver::default()));
        let targets = targets.into_iter().map(with_nothing).collect();
        let mut suspended = Self { targets, since: Instant::now() };
        let mut all_know = true;
        for (target, _) in suspended.targets.values() {
            all_know &= target.give_notice(NOTICE_LIMIT).all_know;
        }
        if !all_know {
            let limit = NOTICE_LIMIT;
            tracing::warn!("not all hosts whose connections end have heard of it within {limit:?}");
        }
        suspended.since = Instant::now();
        for (target, handed) in suspended.targets.values_mut() {
            *handed = target.suspend(REST_LIMIT).map_err(refused)?;
            for left in &handed.left {
                tracing::warn!("not handed over, its host connects anew: {left}");
            }
        }
        Ok(suspended)
    }

    /// What the successor needs.
    fn state(&self, manager: &Manager) -> Result<(HandedState, Vec<OwnedFd>), TakeOverError> {
        let (mut targets, mut sockets) = (BTreeMap::new(), Vec::new());
        for (name, (_, handed)) in &self.targets {
            targets.insert(name.clone(), handed.state.clone());
            for socket in &handed.sockets {
                sockets.push(socket.try_clone().map_err(refused)?);
            }
        }
        let reservations = self.reservations(manager)?;
        Ok((HandedState { targets, reservations, protected: self.protected() }, sockets))
    }

    /// What hosts have write protected until a power cycle.
    fn protected(&self) -> Vec<HandedNamespace> {
        let mut all = Vec::new();
        for (name, (cores, _)) in &self.targets {
            for subsystem in cores.subsystems() {
                let mut namespaces = subsystem.namespaces;
                namespaces.retain(|it| it.protection == WriteProtection::UntilPowerCycle);
                let nqn = subsystem.nqn.as_str();
                all.extend(namespaces.iter().map(|it| HandedNamespace {
                    target: name.clone(),
                    nqn: nqn.to_owned(),
                    nsid: it.nsid.0,
                }));
            }
        }
        all
    }

    fn reservations(&self, manager: &Manager) -> Result<Vec<HandedReservations>, TakeOverError> {
        let (namespaces, luns) = self.units(manager);
        let mut all = Vec::new();
        for (name, nqn, nsid, uuid) in namespaces {
            let Some((cores, _)) = self.targets.get(&name) else { continue };
            // A namespace that is missing has none.
            let Ok(kept) = cores.reservations(&nqn, NamespaceId(nsid)) else { continue };
            let of = Reserved::Namespace { target: name, nqn: nqn.as_str().to_owned(), nsid };
            all.extend(handed(of, &kept, uuid)?);
        }
        let Some((cores, _)) = self.targets.get(DEFAULT_TARGET) else { return Ok(all) };
        for (node, number) in luns {
            // A LUN that is missing has none.
            let Ok(kept) = cores.iscsi().reservations(&node, number) else { continue };
            all.extend(handed(Reserved::Lun { node, number }, &kept, Uuid::nil())?);
        }
        Ok(all)
    }

    /// What can be reserved: namespaces with their targets and UUIDs, and LUNs with their nodes. The model is free again
    /// before a target is called.
    fn units(&self, manager: &Manager) -> (Vec<ReservableNamespace>, Vec<ReservableLun>) {
        let model = manager.model();
        let targets =
            model.nvmf.targets.iter().filter(|(name, _)| self.targets.contains_key(*name));
        let subsystems = targets.flat_map(|(name, target)| {
            target.subsystems.iter().map(move |(nqn, subsystem)| (name, nqn, subsystem))
        });
        let namespaces = subsystems.flat_map(|(name, nqn, subsystem)| {
            let of = move |(nsid, uuid)| (name.clone(), nqn.clone(), nsid, uuid);
            let own = |(nsid, namespace): (&u32, &Namespace)| (*nsid, namespace.uuid);
            let carved = |it: &PoolNamespace| (it.nsid.0, Uuid::from_bytes(it.uuid));
            let pool = subsystem.pool.iter().flat_map(|pool| &pool.map.namespaces).map(carved);
            subsystem.namespaces.iter().map(own).chain(pool).map(of)
        });
        let nodes = model.iscsi.nodes.iter();
        let luns = nodes
            .flat_map(|(name, node)| node.luns.keys().map(move |number| (name.clone(), *number)));
        (namespaces.collect(), luns.collect())
    }

    /// Ends what is not handed over.
    fn leave(&self) {
        for (target, handed) in self.targets.values() {
            if let Err(error) = target.leave(handed, LEAVE_LIMIT) {
                tracing::warn!("what is not handed over has not ended in time: {error}");
            }
        }
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        for (target, _) in self.targets.values() {
            target.resume();
        }
    }
}
