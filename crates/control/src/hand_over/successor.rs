//! The beginning of a successor: meets the daemon, and takes its place step by step.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use raceline_proto::nvme::{NamespaceId, Nqn};
use raceline_proto::reservation::Reservations;
use raceline_reactor::inheritance;
use raceline_target::Target;

use super::late::LateJournal;
use super::wire::{Wire, is_other};
use super::{
    FromDaemon, FromSuccessor, HandedNamespace, HandedReservations, HandedState, Hello, OTHER_FORM,
    Offered, Reserved, TakeOverError, socket_of,
};
use crate::manager::catalogue::{Catalogue, Record};
use crate::manager::nvmf::DEFAULT_TARGET;
use crate::manager::{Manager, ManagerConfig};
use crate::ptpl;
use crate::state::StateJournal;

/// How long the daemon may take to let go of what it has, once it is asked; a change may be under way there.
const OFFER_LIMIT: Duration = Duration::from_secs(60);
/// How long it may take to have its connections rest, and to end what it cannot hand over.
const STATE_LIMIT: Duration = Duration::from_secs(30);

/// A daemon whose place this process is about to take.
pub struct Predecessor {
    wire: Wire,
    offered: Offered,
    pub(crate) journal: Option<(LateJournal, PathBuf)>,
    /// Whether this process was asked to end.
    is_ending: Option<Box<dyn Fn() -> bool>>,
}

impl Predecessor {
    /// Meets the daemon that has this RPC socket. From here on, what it has handed over is found in
    /// [`inheritance`]: this process must not end it in good order unless [`Self::take`] has succeeded, but end at once.
    ///
    /// # Errors
    /// When there is none, or it does not agree.
    pub fn meet(rpc_socket: &Path, state_dir: Option<PathBuf>) -> Result<Self, TakeOverError> {
        let path = socket_of(rpc_socket);
        let wire = Wire::connect(&path).map_err(|error| TakeOverError::NotThere { path, error })?;
        wire.limit(OFFER_LIMIT).map_err(TakeOverError::Lost)?;
        let hello = Hello::of_this_program(state_dir.clone());
        let said = wire.send(&FromSuccessor::Hello(hello));
        let offered = match (receive(&wire)?, said) {
            (FromDaemon::Offer(offered), Ok(())) => offered,
            (_, Err(error)) => return Err(TakeOverError::Lost(error)),
            (_, Ok(())) => return Err(out_of_order()),
        };
        let descriptors =
            wire.receive_descriptors(offered.descriptors()).map_err(TakeOverError::Lost)?;
        inheritance::receive(offered.descriptors.iter().cloned().zip(descriptors));
        let journal = state_dir.map(|dir| (LateJournal::default(), dir));
        Ok(Self { wire, offered, journal, is_ending: None })
    }

    /// The daemon's configuration.
    pub(crate) fn catalogue(&self) -> Catalogue {
        let mut catalogue = Catalogue::default();
        for (key, entry) in &self.offered.catalogue {
            catalogue.apply(Record::Put { key: key.clone(), entry: entry.clone() });
        }
        catalogue
    }

    /// Has a manager go on where that of the daemon ends.
    pub(crate) fn continue_in(&self, config: &mut ManagerConfig) {
        config.run = self.offered.run.map(|run| run + 1);
        config.changes_before = self.offered.changes + 1;
        if let Some((journal, _)) = &self.journal {
            config.journal = Box::new(journal.clone());
        }
    }

    /// This process cannot: the daemon goes on, if it is there to hear that.
    pub(crate) fn give_up(&self, why: String) -> TakeOverError {
        match self.wire.send(&FromSuccessor::Failed(why.clone())) {
            Ok(()) => TakeOverError::Unable(why),
            // Why the daemon went, if it has said so.
            Err(_) => match receive(&self.wire) {
                Err(refused @ TakeOverError::Refused(_)) => refused,
                _ => TakeOverError::Gone(why),
            },
        }
    }

    /// Everything but the connections exists: takes those over, and goes on with them.
    ///
    /// # Errors
    /// When that fails: the daemon goes on.
    pub(crate) fn take(&self, manager: &Manager) -> Result<(), TakeOverError> {
        self.check_wanted()?;
        let absent = manager.model().absent();
        let mut absent = absent.iter();
        if let Some((new, why)) = absent.find(|(name, _)| !self.offered.missing.contains(name)) {
            return Err(TakeOverError::Unable(format!("{new} is missing here: {why}")));
        }
        self.check_state()?;
        self.say(&FromSuccessor::Ready)?;
        self.wire.limit(STATE_LIMIT).map_err(TakeOverError::Lost)?;
        let FromDaemon::State(state) = receive(&self.wire)? else { return Err(out_of_order()) };
        let sockets = self.wire.receive_descriptors(state.sockets());
        let mut sockets = sockets.map_err(TakeOverError::Lost)?.into_iter();
        let targets = manager.running_targets();
        let HandedState { targets: handed, reservations, protected } = state;
        for reservation in &reservations {
            restore(&targets, reservation)?;
        }
        for HandedNamespace { target: name, nqn, nsid } in &protected {
            let nqn = Nqn::new(nqn).map_err(unable)?;
            let restored = target(&targets, name)?.restore_protection(&nqn, NamespaceId(*nsid));
            restored.map_err(unable)?;
        }
        // A target that nothing leads to may not be running here.
        for (name, state) in handed.iter().filter(|(_, state)| state.connections() > 0) {
            let target = target(&targets, name)?;
            let own = sockets.by_ref().take(state.connections()).collect();
            target.install(state, own).map_err(unable)?;
        }
        self.check_wanted()?;
        self.say(&FromSuccessor::Taken)?;
        let FromDaemon::Go = receive(&self.wire)? else { return Err(out_of_order()) };
        targets.iter().for_each(|(_, target)| target.resume());
        Ok(())
    }

    /// The state is opened when the daemon is gone, and then there is no way back.
    fn check_state(&self) -> Result<(), TakeOverError> {
        let Some((_, dir)) = &self.journal else { return Ok(()) };
        let problem = match StateJournal::look(dir) {
            Err(error) => error.to_string(),
            Ok(kept) if kept.sequence == 0 && !self.offered.catalogue.is_empty() => {
                format!("{} holds no state any more, so somebody has removed it", dir.display())
            }
            Ok(_) => return Ok(()),
        };
        Err(unable(format!(
            "it could keep no change in the state directory: {problem}. The daemon that runs has the whole configuration: \
             save it by raceline config save FILE before you end that daemon"
        )))
    }

    /// From here on, this process takes the place of the daemon only as long as it is not asked to end.
    pub fn unless(&mut self, is_ending: impl Fn() -> bool + 'static) {
        self.is_ending = Some(Box::new(is_ending));
    }

    fn check_wanted(&self) -> Result<(), TakeOverError> {
        match &self.is_ending {
            Some(is_ending) if is_ending() => Err(unable("it was asked to end")),
            _ => Ok(()),
        }
    }

    /// The daemon is gone: opens its journal, and gives back what nobody has taken.
    pub(crate) fn settle(&self) {
        if let Some((journal, dir)) = &self.journal
            && let Err(error) = journal.open(dir)
        {
            tracing::error!("{error}");
        }
        for name in inheritance::settle() {
            tracing::debug!("not taken over: {name}");
        }
    }

    fn say(&self, what: &FromSuccessor) -> Result<(), TakeOverError> {
        let Err(error) = self.wire.send(what) else { return Ok(()) };
        // It may have said why.
        match receive(&self.wire) {
            Err(refused @ (TakeOverError::Refused(_) | TakeOverError::OtherForm(_))) => {
                Err(refused)
            }
            _ => Err(TakeOverError::Lost(error)),
        }
    }
}

fn receive(wire: &Wire) -> Result<FromDaemon, TakeOverError> {
    match wire.receive() {
        Ok(FromDaemon::Refused(reason)) if reason.contains(OTHER_FORM) => {
            Err(TakeOverError::OtherForm(reason))
        }
        Ok(FromDaemon::Refused(reason)) => Err(TakeOverError::Refused(reason)),
        Ok(said) => Ok(said),
        Err(error) if is_other(&error) => {
            Err(unable(format!("the daemon says what this version does not understand: {error}")))
        }
        Err(error) => Err(TakeOverError::Lost(error)),
    }
}

fn out_of_order() -> TakeOverError {
    TakeOverError::Unable("the daemon does not keep to the order of the steps".to_owned())
}

fn unable(error: impl ToString) -> TakeOverError {
    TakeOverError::Unable(error.to_string())
}

fn target<'a>(
    targets: &'a [(String, Arc<Target>)],
    name: &str,
) -> Result<&'a Target, TakeOverError> {
    let found = targets.iter().find(|(known, _)| known == name);
    found.map(|(_, target)| &**target).ok_or_else(|| unable(format!("there is no target {name}")))
}

fn restore(
    targets: &[(String, Arc<Target>)],
    handed: &HandedReservations,
) -> Result<(), TakeOverError> {
    let kept = ptpl::decode_any(handed.content.as_bytes()).map_err(unable)?;
    let reservations = Reservations { generation: handed.generation, ..kept };
    let restored = match &handed.of {
        Reserved::Namespace { target: name, nqn, nsid } => {
            let (target, nqn) = (target(targets, name)?, Nqn::new(nqn).map_err(unable)?);
            target.restore_reservations(&nqn, NamespaceId(*nsid), reservations)
        }
        Reserved::Lun { node, number } => {
            let target = target(targets, DEFAULT_TARGET)?;
            target.iscsi().restore_reservations(node, *number, reservations)
        }
    };
    restored.map_err(unable)
}
