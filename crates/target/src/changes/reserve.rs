//! Changes of reservations that hosts and initiators ask for, and of write protection that hosts ask for (Base 2.0, 8.19
//! and 8.12; SPC-5, 5.14).
//!
//! A thread of its own makes them, one after the other, because each waits for the cores and for stable media.
//! The order is: the new state is kept, if it persists; all cores see it, for both protocols; hosts and initiators are
//! told; the command is answered. So whatever was answered is true after a crash, on every queue and in every session.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use raceline_proto::controller::ReservedNamespaces;
use raceline_proto::nvme::feature::WriteProtection;
use raceline_proto::nvme::{NamespaceId, Nqn, Status};
use raceline_proto::reservation::{Notice, Registrant, ReservationCommand, Reservations};
use raceline_scsi::{Refusal, Sense};

use crate::changes::config::{SubsystemConfig, TargetError};
use crate::changes::control::{Control, Entry, Exported, State};
use crate::changes::iscsi_message::IscsiMessage;
use crate::changes::management::{DeviceRequest, NamespaceWish, ReservationRequest, UnitRequest};
use crate::changes::message::Message;
use crate::changes::snapshot::DeviceId;
use crate::changes::target::Target;
use crate::records::names::CommandPlace;

/// How long commands that have to end may stay at their device; after that, the command that waits is answered.
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the cores are asked for such commands.
const WAIT_INTERVAL: Duration = Duration::from_millis(1);

impl Entry {
    /// Whether no other numbers of controllers are those of another target, so that what hosts may do depends on the
    /// reservations here alone.
    pub(super) fn is_alone(&self) -> bool {
        self.config.controller_ids == SubsystemConfig::CONTROLLER_IDS
    }

    /// The reservations as controllers show them; `None`: namespaces cannot be reserved.
    pub(crate) fn shown_reservations(&self) -> Option<ReservedNamespaces> {
        let is_alone = self.is_alone();
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
    /// The cores were asked before.
    again: bool,
}

/// The commands that have to end.
enum WaitsOn {
    /// All of these, which Preempt and Abort has preempted.
    Preempted(Arc<[Registrant]>),
    /// Those that change data.
    Writes,
}

/// Executes requests until the target is shut down.
fn run(control: &Control, requests: &Receiver<DeviceRequest>) {
    let mut waiting: Vec<Waiting> = Vec::new();
    let progress = &control.shared.reserver_progress;
    loop {
        // Drivers of manual cores say when to look.
        let next = if waiting.is_empty() || control.shared.is_manual() {
            requests.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            requests.recv_timeout(WAIT_INTERVAL)
        };
        let is_request = next.is_ok();
        match next {
            Ok(DeviceRequest::Namespace(request)) => waiting.extend(control.execute(request)),
            Ok(DeviceRequest::Unit(request)) => waiting.extend(control.execute_for_unit(&request)),
            Ok(DeviceRequest::Released(device)) => control.show_released(device),
            Ok(DeviceRequest::Look) => {}
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                // The cores end commands in flight before they end.
                let answer =
                    |one: Waiting| control.answer(one.from, Err(Status::COMMAND_INTERRUPTED));
                return waiting.into_iter().for_each(answer);
            }
        }
        waiting.retain_mut(|one| !control.has_ended(one));
        progress.waiting.store(waiting.len(), Ordering::SeqCst);
        if is_request {
            progress.done.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Control {
    /// Answers the command of a host or of an I_T nexus.
    fn answer(&self, to: CommandPlace, result: Result<(), Status>) {
        if to.conn.key.is_iscsi() {
            // The only statuses are those of waits that were given up.
            self.answer_unit(to, result.map_err(|_| Sense::INTERNAL_FAILURE.into()));
        } else {
            self.shared.send(to.conn.core, Message::Managed { to, result: result.map(|()| 0) });
        }
    }

    fn answer_unit(&self, to: CommandPlace, result: Result<(), Refusal>) {
        let answer = IscsiMessage::Reserved { to, result };
        self.shared.send(to.conn.core, Message::Iscsi(answer));
    }

    /// Executes a host's request and answers it, unless commands have to end before.
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
                self.answer(from, Ok(()));
                None
            }
            Ok(Some((device, on))) => {
                tracing::debug!(%nqn, %nsid, %host, ?wish, "waits for commands");
                Some(Waiting::new(device, on, from))
            }
            Err(status) => {
                tracing::debug!(%nqn, %nsid, %host, ?wish, %status, "refused");
                self.answer(from, Err(status));
                None
            }
        }
    }

    /// Executes an I_T nexus's request and answers it, unless commands have to end before.
    fn execute_for_unit(&self, request: &UnitRequest) -> Option<Waiting> {
        let UnitRequest { device, nexus, change, from } = request;
        let initiator = nexus.initiator_port();
        match self.reserve_unit(request) {
            Ok(preempted) if preempted.is_empty() => {
                tracing::debug!(?device, initiator, ?change, "made");
                self.answer_unit(*from, Ok(()));
                None
            }
            Ok(preempted) => {
                tracing::debug!(?device, initiator, ?change, "waits for commands");
                Some(Waiting::new(*device, WaitsOn::Preempted(preempted.into()), *from))
            }
            Err(why) => {
                tracing::debug!(?device, initiator, ?change, ?why, "refused");
                self.answer_unit(*from, Err(why));
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
        state.check_changeable()?;
        if state.holds_namespaces {
            return Err(Status::COMMAND_INTERRUPTED);
        }
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

    /// Changes reservations for a host: keeps the change, shows it to all cores, and tells others. Gives what the answer
    /// waits for.
    fn reserve(
        &self,
        request: &ReservationRequest,
        command: &ReservationCommand,
    ) -> Result<Option<(DeviceId, WaitsOn)>, Status> {
        let ReservationRequest { nqn, nsid, host, .. } = request;
        let mut state = self.lock();
        state.check_changeable()?;
        let device = state.seen_by(request)?.device;
        let entry = state.entry(nqn).map_err(|_| Status::INVALID_NAMESPACE.dnr())?;
        if entry.shown_reservations().is_none() {
            return Err(Status::INVALID_OPCODE.dnr());
        }
        let unit = state.iscsi.units.get(&device).map(|exported| Arc::clone(&exported.unit));
        let before = match &unit {
            Some(unit) => unit.state().reservations.clone(),
            None => state.kept(nqn, *nsid).state.as_ref().clone(),
        };
        let outcome = before.apply(host, command)?;
        if let Some(next) = &outcome.next {
            let replaced = self.replace_reservations(&mut state, device, (&before, next));
            replaced.map_err(|error| {
                tracing::error!(%nqn, %nsid, %error, "a change of reservations fails");
                Status::INTERNAL
            })?;
        }
        drop(state);
        if outcome.next.is_some() {
            // Without its keys: who knows them can preempt.
            let what = match command {
                ReservationCommand::Register { .. } => "register",
                ReservationCommand::Acquire { .. } => "acquire",
                ReservationCommand::Release { .. } => "release",
                ReservationCommand::Persist(_) => "persist",
            };
            tracing::info!(event = "reservation", %nqn, %nsid, host = %host.name, what, "reservations have changed");
        }
        if !outcome.notices.is_empty() {
            unit.iter().for_each(|unit| unit.notify(&outcome.notices));
            self.tell(nqn, *nsid, &outcome.notices);
        }
        let aborts = !outcome.aborted.is_empty();
        Ok(aborts.then(|| (device, WaitsOn::Preempted(outcome.aborted.into()))))
    }

    /// Changes reservations for an I_T nexus, likewise. Gives whose commands have to end before the answer.
    fn reserve_unit(&self, request: &UnitRequest) -> Result<Vec<Registrant>, Refusal> {
        let UnitRequest { device, nexus, change, .. } = request;
        let mut state = self.lock();
        state.check_changeable().map_err(|_| Refusal::Busy)?;
        let exported = state.iscsi.units.get(device).ok_or(Sense::NO_SUCH_LUN)?;
        let unit = Arc::clone(&exported.unit);
        let namespace = state.namespace_on(*device);
        let before = unit.state();
        let outcome = before.apply(nexus, change)?;
        if let Some(next) = &outcome.next {
            if matches!(namespace, Some((_, _, false))) {
                tracing::warn!(
                    ?device,
                    "its subsystem shares controllers with another target, whose hosts no reservation would bind: \
                     initiators cannot register or reserve"
                );
                return Err(Refusal::Conflict);
            }
            let (before, next) = (&before.reservations, &next.reservations);
            let replaced = self.replace_reservations(&mut state, *device, (before, next));
            replaced.map_err(|error| {
                tracing::error!(?device, %error, "a change of reservations fails");
                Refusal::from(Sense::INTERNAL_FAILURE)
            })?;
        }
        drop(state);
        unit.tell_changed(nexus, &outcome.told);
        if let Some((nqn, nsid, _)) = namespace.filter(|_| !outcome.notices.is_empty()) {
            self.tell(&nqn, nsid, &outcome.notices);
        }
        Ok(outcome.aborted)
    }

    /// An I_T nexus has given up what it held by Reserve: hosts are let in again.
    fn show_released(&self, device: DeviceId) {
        let mut state = self.lock();
        let Some(exported) = state.iscsi.units.get(&device) else { return };
        let unit = exported.unit.state();
        let Some((nqn, nsid, true)) = state.namespace_on(device) else { return };
        if *state.kept(&nqn, nsid).state == unit.reservations {
            return;
        }
        if let Err(error) = self.show_reservations(&mut state, device, &unit.reservations) {
            tracing::error!(?device, %error, "the end of a Reserve cannot be shown to hosts");
        }
    }

    fn tell(&self, nqn: &Nqn, nsid: NamespaceId, notices: &[Notice]) {
        let notices: Arc<[_]> = notices.into();
        for core in 0..self.shared.cores() {
            let (nqn, notices) = (nqn.clone(), Arc::clone(&notices));
            self.shared.send(core, Message::ReservationNotices { nqn, nsid, notices });
        }
    }

    /// Whether nothing that the answer waits for is at the device any more, or the wait has been too long; then the
    /// command is answered.
    fn has_ended(&self, waiting: &mut Waiting) -> bool {
        let Waiting { device, ref on, give_up, from, again } = *waiting;
        let counts = self.ask_all(WAIT_TIMEOUT, |reply| match on {
            WaitsOn::Preempted(preempted) => {
                Message::AbortPreempted { device, preempted: Arc::clone(preempted), again, reply }
            }
            WaitsOn::Writes => Message::CountWrites { device, reply },
        });
        waiting.again = true;
        let result = match counts {
            Ok(counts) if counts.iter().all(|count| *count == 0) => Ok(()),
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
        self.answer(from, result);
        true
    }
}

impl Waiting {
    fn new(device: DeviceId, on: WaitsOn, from: CommandPlace) -> Self {
        Self { device, on, give_up: Instant::now() + WAIT_TIMEOUT, from, again: false }
    }
}

impl State {
    /// Refuses a change that a process which takes the place of this one would not learn of. It can be asked for again.
    fn check_changeable(&self) -> Result<(), Status> {
        if self.holds_reservations { Err(Status::COMMAND_INTERRUPTED) } else { Ok(()) }
    }

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
