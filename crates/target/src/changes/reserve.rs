//! Changes of reservations that hosts ask for (Base 2.0, 8.19).
//!
//! A thread of its own makes them, one after the other, because each waits for the cores and for stable media.
//! The order is: the new state is kept, if it persists; all cores see it; hosts are told; the command is answered.
//! So whatever a host was told is true after a crash, and on every queue.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use raceline_proto::controller::ReservedNamespaces;
use raceline_proto::nvme::{NamespaceId, Nqn, Status};
use raceline_proto::reservation::{Outcome, Registrant, Reservations};

use crate::changes::config::{SubsystemConfig, TargetError};
use crate::changes::control::{Control, Entry};
use crate::changes::management::ReservationRequest;
use crate::changes::message::Message;
use crate::changes::reservation_state::KeptReservations;
use crate::changes::snapshot::DeviceId;
use crate::changes::target::Target;
use crate::records::names::CommandPlace;

/// How long commands of preempted hosts may stay at their device; after that, Preempt and Abort gives up waiting.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the cores are asked for such commands.
const ABORT_INTERVAL: Duration = Duration::from_millis(1);

impl Entry {
    /// The reservations as controllers show them; `None`: namespaces cannot be reserved. That is so if other numbers
    /// of controllers are those of another target: what it lets hosts do does not depend on the reservations here.
    pub(crate) fn shown_reservations(&self) -> Option<ReservedNamespaces> {
        let is_alone = self.config.controller_ids == SubsystemConfig::CONTROLLER_IDS;
        let shown = self.reservations.iter().map(|(nsid, kept)| (*nsid, Arc::clone(&kept.state)));
        is_alone.then(|| shown.collect())
    }
}

impl Target {
    /// The reservations of a namespace.
    ///
    /// # Errors
    /// When there is no such subsystem or namespace.
    pub fn reservations(
        &self,
        nqn: &Nqn,
        nsid: NamespaceId,
    ) -> Result<Arc<Reservations>, TargetError> {
        let mut state = self.control.lock();
        let entry = state.entry(nqn)?;
        entry.namespace(nsid)?;
        let kept = entry.reservations.get(&nsid.0);
        Ok(kept.map(|kept| Arc::clone(&kept.state)).unwrap_or_default())
    }

    /// Starts the thread that changes reservations, unless it runs.
    pub(crate) fn start_reserver(&self) -> Result<(), TargetError> {
        let mut reserver = self.control.shared.reserver();
        if reserver.is_some() {
            return Ok(());
        }
        let (sender, requests) = mpsc::channel();
        let control = Arc::clone(&self.control);
        std::thread::Builder::new()
            .name("target-reserve".into())
            .spawn(move || run(&control, &requests))
            .map_err(TargetError::Manager)?;
        *reserver = Some(sender);
        Ok(())
    }
}

/// A Preempt and Abort that waits for the commands of the hosts that it preempted.
struct Aborting {
    device: DeviceId,
    hosts: Arc<[Registrant]>,
    give_up: Instant,
    from: CommandPlace,
}

/// Executes requests until the target is shut down.
fn run(control: &Control, requests: &Receiver<ReservationRequest>) {
    let mut aborting: Vec<Aborting> = Vec::new();
    loop {
        let next = if aborting.is_empty() {
            requests.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            requests.recv_timeout(ABORT_INTERVAL)
        };
        match next {
            Ok(request) => aborting.extend(control.execute(request)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        aborting.retain(|waiting| !control.has_ended(waiting));
    }
}

impl Control {
    fn answer_reservation(&self, to: CommandPlace, result: Result<u32, Status>) {
        self.shared.send(to.conn.core, Message::Managed { to, result });
    }

    /// Executes a request and answers it, unless commands have to end before.
    fn execute(&self, request: ReservationRequest) -> Option<Aborting> {
        let from = request.from;
        let (nqn, nsid, host) = (&request.nqn, request.nsid, &request.host.name);
        match self.reserve(&request) {
            Ok((device, outcome)) => {
                let command = &request.command;
                tracing::debug!(%nqn, %nsid, %host, ?command, "reservations");
                if outcome.aborted.is_empty() {
                    self.answer_reservation(from, Ok(0));
                    return None;
                }
                let give_up = Instant::now() + ABORT_TIMEOUT;
                Some(Aborting { device, hosts: outcome.aborted.into(), give_up, from })
            }
            Err(status) => {
                tracing::debug!(%nqn, %nsid, %host, command = ?request.command, %status, "refused");
                self.answer_reservation(from, Err(status));
                None
            }
        }
    }

    /// Makes the change, keeps it, shows it to all cores, and tells hosts.
    fn reserve(&self, request: &ReservationRequest) -> Result<(DeviceId, Outcome), Status> {
        let ReservationRequest { nqn, nsid, host, command, .. } = request;
        let gone = Status::INVALID_NAMESPACE.dnr();
        let mut state = self.lock();
        let entry = state.entry(nqn).map_err(|_| gone)?;
        if entry.shown_reservations().is_none() {
            return Err(Status::INVALID_OPCODE.dnr());
        }
        let exported = entry.namespace(*nsid).map_err(|_| gone)?;
        if !exported.namespace.visibility.includes(&host.name) {
            return Err(gone);
        }
        let device = exported.device;
        let kept = entry.reservations.get(&nsid.0).cloned().unwrap_or_default();
        let outcome = kept.state.apply(host, command)?;
        if let Some(next) = &outcome.next {
            kept.save(next).map_err(|error| {
                tracing::error!(%nqn, %nsid, %error, "cannot keep reservations: nothing has changed");
                Status::INTERNAL
            })?;
            let next = KeptReservations { state: Arc::new(next.clone()), ..kept };
            let shown = self
                .change(&mut state, nqn, |entry| {
                    entry.reservations.insert(nsid.0, next);
                    Ok(())
                })
                .and_then(|()| self.publish(&mut state));
            shown.map_err(|error| {
                tracing::error!(%nqn, %nsid, %error, "cannot show reservations to all cores");
                Status::INTERNAL
            })?;
        }
        drop(state);
        self.tell(nqn, *nsid, &outcome);
        Ok((device, outcome))
    }

    fn tell(&self, nqn: &Nqn, nsid: NamespaceId, outcome: &Outcome) {
        if outcome.notices.is_empty() {
            return;
        }
        let notices: Arc<[_]> = outcome.notices.as_slice().into();
        for core in 0..self.shared.cores() {
            let (nqn, notices) = (nqn.clone(), Arc::clone(&notices));
            self.shared.send(core, Message::ReservationNotices { nqn, nsid, notices });
        }
    }

    /// Whether no command of the preempted hosts is at the device any more, or the wait has been too long; then the
    /// command is answered.
    fn has_ended(&self, waiting: &Aborting) -> bool {
        let Aborting { device, ref hosts, give_up, from } = *waiting;
        let counts = self.ask_all(ABORT_TIMEOUT, |reply| {
            let hosts = Arc::clone(hosts);
            Message::AbortPreempted { device, hosts, reply }
        });
        let result = match counts {
            Ok(counts) if counts.iter().all(|count| *count == 0) => Ok(0),
            Ok(_) if Instant::now() < give_up => return false,
            // The reservation has changed hands; what is left at the device may still change data.
            Ok(counts) => {
                let commands: usize = counts.iter().sum();
                tracing::warn!(?device, commands, "commands of preempted hosts do not end");
                Err(Status::COMMAND_INTERRUPTED)
            }
            Err(error) => {
                tracing::error!(%error, "a core does not abort commands of preempted hosts");
                Err(Status::INTERNAL)
            }
        };
        self.answer_reservation(from, result);
        true
    }
}
