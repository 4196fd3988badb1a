//! Changes of reservations and of write protection that hosts ask for (Base 2.0, 8.19 and 8.12).
//!
//! A thread of its own makes them, one after the other, because each waits for the cores and for stable media.
//! The order is: the new state is kept, if it persists; all cores see it; hosts are told; the command is answered.
//! So whatever a host was told is true after a crash, and on every queue.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use raceline_proto::controller::ReservedNamespaces;
use raceline_proto::nvme::feature::WriteProtection;
use raceline_proto::nvme::{NamespaceId, Nqn, Status};
use raceline_proto::reservation::{Outcome, Registrant, ReservationCommand, Reservations};

use crate::changes::config::{SubsystemConfig, TargetError};
use crate::changes::control::{Control, Entry, Exported, State};
use crate::changes::management::{NamespaceWish, ReservationRequest};
use crate::changes::message::Message;
use crate::changes::reservation_state::KeptReservations;
use crate::changes::snapshot::DeviceId;
use crate::changes::target::Target;
use crate::records::names::CommandPlace;

/// How long commands that have to end may stay at their device; after that, the command that waits is answered.
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the cores are asked for such commands.
const WAIT_INTERVAL: Duration = Duration::from_millis(1);

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

/// A command whose answer waits for others to end at a device.
struct Waiting {
    device: DeviceId,
    on: WaitsOn,
    give_up: Instant,
    from: CommandPlace,
}

/// The commands that have to end.
enum WaitsOn {
    /// All of these hosts, which Preempt and Abort has preempted.
    Hosts(Arc<[Registrant]>),
    /// Those that change data.
    Writes,
}

/// Executes requests until the target is shut down.
fn run(control: &Control, requests: &Receiver<ReservationRequest>) {
    let mut waiting: Vec<Waiting> = Vec::new();
    loop {
        let next = if waiting.is_empty() {
            requests.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            requests.recv_timeout(WAIT_INTERVAL)
        };
        match next {
            Ok(request) => waiting.extend(control.execute(request)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        waiting.retain(|one| !control.has_ended(one));
    }
}

impl Control {
    fn answer_reservation(&self, to: CommandPlace, result: Result<u32, Status>) {
        self.shared.send(to.conn.core, Message::Managed { to, result });
    }

    /// Executes a request and answers it, unless commands have to end before.
    fn execute(&self, request: ReservationRequest) -> Option<Waiting> {
        let from = request.from;
        let (nqn, nsid, host) = (&request.nqn, request.nsid, &request.host.name);
        let wish = request.wish;
        let made = match wish {
            NamespaceWish::Reserve(command) => self.reserve(&request, &command),
            NamespaceWish::Protect(protection) => self.protect(&request, protection),
        };
        match made {
            Ok(None) => {
                tracing::debug!(%nqn, %nsid, %host, ?wish, "made");
                self.answer_reservation(from, Ok(0));
                None
            }
            Ok(Some((device, on))) => {
                tracing::debug!(%nqn, %nsid, %host, ?wish, "waits for commands");
                Some(Waiting { device, on, give_up: Instant::now() + WAIT_TIMEOUT, from })
            }
            Err(status) => {
                tracing::debug!(%nqn, %nsid, %host, ?wish, %status, "refused");
                self.answer_reservation(from, Err(status));
                None
            }
        }
    }

    /// Sets the write protection of a namespace: keeps it, and shows it to all cores. Gives what the answer waits
    /// for: a write that was let in before ends before the host is told that nothing is written any more.
    fn protect(
        &self,
        request: &ReservationRequest,
        protection: WriteProtection,
    ) -> Result<Option<(DeviceId, WaitsOn)>, Status> {
        let ReservationRequest { nqn, nsid, .. } = request;
        let mut state = self.lock();
        let exported = state.seen_by(request)?;
        let device = exported.device;
        match exported.namespace.protection {
            now if now == protection => return Ok(None),
            WriteProtection::UntilPowerCycle => return Err(Status::FEATURE_NOT_CHANGEABLE.dnr()),
            WriteProtection::None | WriteProtection::On => {}
        }
        let is_on = protection == WriteProtection::On;
        match exported.protection.clone() {
            Some(store) => store.save(is_on).map_err(|error| {
                tracing::error!(%nqn, %nsid, %error, "cannot keep write protection: nothing has changed");
                Status::INTERNAL
            })?,
            // It would end with the target, which the host has not asked for.
            None if is_on => return Err(Status::FEATURE_NOT_CHANGEABLE.dnr()),
            None => {}
        }
        self.show_change(&mut state, request, |entry| {
            entry.namespace(*nsid)?.namespace.protection = protection;
            Ok(())
        })?;
        let protects = protection != WriteProtection::None;
        Ok(protects.then_some((device, WaitsOn::Writes)))
    }

    fn show_change(
        &self,
        state: &mut State,
        request: &ReservationRequest,
        change: impl FnOnce(&mut Entry) -> Result<(), TargetError>,
    ) -> Result<(), Status> {
        let changed = self.change(state, &request.nqn, change);
        changed.and_then(|()| self.publish(state)).map_err(|error| {
            let ReservationRequest { nqn, nsid, .. } = request;
            tracing::error!(%nqn, %nsid, %error, "cannot show a change of a namespace to all cores");
            Status::INTERNAL
        })
    }

    /// Changes reservations: keeps the change, shows it to all cores, and tells hosts. Gives what the answer waits
    /// for.
    fn reserve(
        &self,
        request: &ReservationRequest,
        command: &ReservationCommand,
    ) -> Result<Option<(DeviceId, WaitsOn)>, Status> {
        let ReservationRequest { nqn, nsid, host, .. } = request;
        let mut state = self.lock();
        let device = state.seen_by(request)?.device;
        let entry = state.entry(nqn).map_err(|_| Status::INVALID_NAMESPACE.dnr())?;
        if entry.shown_reservations().is_none() {
            return Err(Status::INVALID_OPCODE.dnr());
        }
        let kept = entry.reservations.get(&nsid.0).cloned().unwrap_or_default();
        let registers = matches!(command, ReservationCommand::Register { .. });
        let unit = state.iscsi.unit(device);
        if registers && unit.is_some_and(|unit| unit.as_foreign().has_registrants) {
            // Who is registered by iSCSI with the same device keeps hosts from registering.
            return Err(Status::RESERVATION_CONFLICT.dnr());
        }
        let outcome = kept.state.apply(host, command)?;
        if let Some(next) = &outcome.next {
            kept.save(next).map_err(|error| {
                tracing::error!(%nqn, %nsid, %error, "cannot keep reservations: nothing has changed");
                Status::INTERNAL
            })?;
            let next = KeptReservations { state: Arc::new(next.clone()), ..kept };
            self.show_change(&mut state, request, |entry| {
                entry.reservations.insert(nsid.0, next);
                Ok(())
            })?;
        }
        drop(state);
        self.tell(nqn, *nsid, &outcome);
        let aborts = !outcome.aborted.is_empty();
        Ok(aborts.then(|| (device, WaitsOn::Hosts(outcome.aborted.into()))))
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

    /// Whether nothing that the answer waits for is at the device any more, or the wait has been too long; then the
    /// command is answered.
    fn has_ended(&self, waiting: &Waiting) -> bool {
        let Waiting { device, ref on, give_up, from } = *waiting;
        let counts = self.ask_all(WAIT_TIMEOUT, |reply| match on {
            WaitsOn::Hosts(hosts) => {
                Message::AbortPreempted { device, hosts: Arc::clone(hosts), reply }
            }
            WaitsOn::Writes => Message::CountWrites { device, reply },
        });
        let result = match counts {
            Ok(counts) if counts.iter().all(|count| *count == 0) => Ok(0),
            Ok(_) if Instant::now() < give_up => return false,
            // The change is made; what is left at the device may still change data.
            Ok(counts) => {
                let commands: usize = counts.iter().sum();
                tracing::warn!(?device, commands, "commands that have to end do not");
                Err(Status::COMMAND_INTERRUPTED)
            }
            Err(error) => {
                tracing::error!(%error, "a core does not count commands");
                Err(Status::INTERNAL)
            }
        };
        self.answer_reservation(from, result);
        true
    }
}

impl State {
    /// The namespace that a request names, if its host sees it.
    fn seen_by(&mut self, request: &ReservationRequest) -> Result<&mut Exported, Status> {
        let gone = Status::INVALID_NAMESPACE.dnr();
        let entry = self.entry(&request.nqn).map_err(|_| gone)?;
        let exported = entry.namespace(request.nsid).map_err(|_| gone)?;
        if exported.namespace.visibility.includes(&request.host.name) {
            Ok(exported)
        } else {
            Err(gone)
        }
    }
}
