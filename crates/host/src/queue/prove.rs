//! Authentication of a queue (DH-HMAC-CHAP): after its Connect, before it takes commands, and again while it is in use.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use raceline_auth::{
    Concatenation, Finished, GeneratedPsk, Initiator, InitiatorConfig, InitiatorStep, Names,
    Waiting, Work, Worker,
};
use raceline_proto::nvme::authentication::{
    MAX_MESSAGE_BYTES, authentication_receive, authentication_send,
};
use raceline_proto::nvme::{CommandId, ControllerId, Status};
use raceline_reactor::{Context, IoBuf};

use super::send::to_usize;
use super::{Ending, QueuePair, State, TIMEOUT_CHECKS};
use crate::command::{Command, Data};
use crate::credentials::{Credentials, Use};
use crate::error::{HostError, Phase};
use crate::generated::GeneratedStreams;

/// How often a queue looks whether its computation is done, which takes milliseconds.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// How often a queue in use looks whether it has to authenticate again.
const RENEWAL_INTERVAL: Duration = Duration::from_millis(500);
/// Computations of this process that may wait: more than the queues that connect at the same time.
const MAX_WAITING: Waiting = Waiting { total: 4096, of_one: 4096 };
/// The one source of these computations.
const THIS_HOST: u64 = 0;

/// An authentication that is under way.
#[derive(Debug)]
pub(super) struct Proving {
    initiator: Initiator,
    cntlid: ControllerId,
    /// The version of the credentials that it uses.
    version: u64,
    /// When it has to be over, on a queue in use. Before, the deadline is that of the queue's phase.
    deadline: Instant,
    /// The command that is outstanding.
    pub(super) command: Option<CommandId>,
    /// The computation that is under way.
    result: Option<Receiver<Finished>>,
}

/// When a connection has to authenticate again.
#[derive(Debug, Default)]
pub(super) struct Renewal {
    /// The version of the credentials with which it has authenticated; `None`: it has not.
    version: Option<u64>,
    /// The time has come, whatever the version.
    due: Option<Instant>,
    /// T_ID of the last transaction.
    t_id: u16,
    /// Notes which credentials the connection uses.
    in_use: Option<Use>,
}

impl Renewal {
    /// The connection is gone.
    pub(super) fn forget_use(&mut self) {
        self.in_use = None;
    }
}

/// The thread that computes for all queues of this process; `None`: it could not be started.
fn worker() -> Option<&'static Worker> {
    static WORKER: OnceLock<Option<Worker>> = OnceLock::new();
    let start = || match Worker::start(MAX_WAITING) {
        Ok(worker) => Some(worker),
        Err(error) => {
            tracing::error!(%error, "cannot start the thread for authentications");
            None
        }
    };
    WORKER.get_or_init(start).as_ref()
}

impl QueuePair {
    /// Connect is done, and the controller has to know who this host is.
    pub(super) fn prove(
        &mut self,
        cx: &mut Context<'_>,
        credentials: &(u64, Arc<Credentials>),
        cntlid: ControllerId,
    ) {
        self.state = State::Proving;
        self.expect(cx, self.config.connect_timeout);
        self.renewal.in_use = Some(self.config.credentials.begin_use(credentials.0));
        self.begin_transaction(cx, credentials, cntlid);
    }

    fn begin_transaction(
        &mut self,
        cx: &mut Context<'_>,
        (version, credentials): &(u64, Arc<Credentials>),
        cntlid: ControllerId,
    ) {
        let config = InitiatorConfig {
            names: Names {
                host: self.config.hostnqn.clone(),
                subsystem: self.config.subnqn.clone(),
            },
            secret: credentials.secret.clone(),
            controller_secret: credentials.controller_secret.clone(),
            algorithms: credentials.algorithms.clone(),
            concatenation: self.concatenation(),
        };
        self.renewal.t_id = self.renewal.t_id.wrapping_add(1);
        self.proving = Some(Box::new(Proving {
            initiator: Initiator::new(config, self.renewal.t_id),
            cntlid,
            version: *version,
            deadline: cx.now + self.config.connect_timeout,
            command: None,
            result: None,
        }));
        self.prove_on(cx);
    }

    /// Looks after the authentication of a queue in use: of one that is under way, and whether another is due.
    pub(super) fn tend_authentication(&mut self, cx: &mut Context<'_>) {
        let Some(version) = self.renewal.version else { return };
        match &self.proving {
            Some(proving) if cx.now >= proving.deadline => {
                let error = HostError::NoAnswer(self.config.address, Phase::Authentication);
                return self.lose(cx, Ending::Lost(error), None);
            }
            Some(_) => self.look_for_result(cx),
            None => {
                let is_due = self.renewal.due.is_some_and(|due| cx.now >= due);
                let is_stale = version != self.config.credentials.version();
                // Credentials that were taken away leave connected queues as they are.
                if (is_due || is_stale)
                    && let Some(credentials) = self.config.credentials.current()
                {
                    self.begin_transaction(cx, &credentials, self.config.cntlid);
                }
            }
        }
        self.watch_renewal(cx);
    }

    /// Sees to it that [`Self::tend_authentication`] is called. Deadlines of commands are looked at then, too.
    fn watch_renewal(&mut self, cx: &mut Context<'_>) {
        if self.is_ready() && self.renewal.version.is_some() {
            let deadlines = self.config.command_timeout.map(|limit| limit / TIMEOUT_CHECKS);
            let others = [deadlines, self.config.reauthenticate_after].into_iter().flatten();
            self.arm(cx, cx.now + others.fold(RENEWAL_INTERVAL, Duration::min));
        }
    }

    /// The transaction has succeeded.
    fn proved(&mut self, cx: &mut Context<'_>, proving: &Proving) {
        self.counters.authentications.add(1);
        self.renewal.version = Some(proving.version);
        if let Some(in_use) = &self.renewal.in_use {
            in_use.set_version(proving.version);
        }
        self.renewal.due = self.config.reauthenticate_after.map(|time| cx.now + time);
        tracing::debug!(qid = self.config.qid.0, "authenticated");
        if matches!(self.state, State::Proving) {
            self.get_ready(cx, proving.cntlid);
        }
        self.watch_renewal(cx);
    }

    /// The connection is TLS with the key that an authentication has made on the connection before it. Other
    /// authentications replace this key when credentials are renewed, or after a time.
    pub(super) fn begin_renewals(&mut self, cx: &mut Context<'_>, version: Option<u64>) {
        let Some(version) = version else { return };
        self.renewal.in_use = Some(self.config.credentials.begin_use(version));
        self.renewal.version = Some(version);
        self.renewal.due = self.config.reauthenticate_after.map(|time| cx.now + time);
        self.watch_renewal(cx);
    }

    /// The credentials with which the key of this connection was made; `None`: no authentication has made it, or this is
    /// an I/O queue, which makes none.
    pub(super) fn version_of_key(&self) -> Option<u64> {
        self.renewal.version.filter(|_| self.concatenation() == Concatenation::Replace)
    }

    /// The transaction has made a key, by which later connections are made. The first one of an association ends the
    /// connection, which has done its work.
    fn take_key(&mut self, cx: &mut Context<'_>, psk: &GeneratedPsk, proving: &Proving) {
        let Some(concatenator) = self.config.concatenator else { return };
        let (host, subsystem) = (self.config.hostnqn.clone(), self.config.subnqn.clone());
        let before = self.config.generated.clone();
        match (concatenator(psk, &Names { host, subsystem }), before) {
            (Ok(streams), Some(generated)) => {
                generated.replace(streams);
                self.proved(cx, proving);
            }
            (Ok(streams), None) => {
                self.counters.authentications.add(1);
                self.config.generated = Some(GeneratedStreams::new(streams));
                self.lose(cx, Ending::RetryOverTls, None);
                // For the connection that begins with it.
                self.renewal.version = Some(proving.version);
            }
            (Err(error), _) => {
                let error = HostError::Authentication(self.config.address, error.into());
                self.lose(cx, Ending::Lost(error), None);
            }
        }
    }

    /// Does what the transaction asks for next.
    fn prove_on(&mut self, cx: &mut Context<'_>) {
        let Some(proving) = &mut self.proving else { return };
        match proving.initiator.poll_step() {
            Some(InitiatorStep::Send(message)) => {
                let len = u32::try_from(message.len()).unwrap_or(u32::MAX);
                let data = Data::Write(IoBuf::from_slice(&message).share());
                self.send_proof(Command::new(authentication_send(len), data), len);
            }
            Some(InitiatorStep::Receive) => {
                let len = MAX_MESSAGE_BYTES;
                let data = Data::Read(IoBuf::heap(to_usize(len)));
                self.send_proof(Command::new(authentication_receive(len), data), len);
            }
            Some(InitiatorStep::Compute(work)) => self.compute(cx, work),
            Some(InitiatorStep::Done) => {
                if let Some(mut proving) = self.proving.take() {
                    match proving.initiator.take_generated() {
                        Some(psk) => self.take_key(cx, &psk, &proving),
                        None => self.proved(cx, &proving),
                    }
                }
            }
            Some(InitiatorStep::Failed(error)) => {
                let error = HostError::Authentication(self.config.address, error);
                self.lose(cx, Ending::Lost(error), None);
            }
            None => {}
        }
    }

    /// Why this host has refused the controller, which may close the connection before it has answered that.
    pub(super) fn refusal(&self) -> Option<HostError> {
        let error = self.proving.as_ref()?.initiator.refusal()?;
        Some(HostError::Authentication(self.config.address, error.clone()))
    }

    fn send_proof(&mut self, command: Command, len: u32) {
        let cid = self.insert(command, 0, len, None);
        if matches!(self.state, State::Proving) {
            // Before all commands that wait already.
            self.pending.rotate_right(1);
        } else {
            self.gathering.release();
        }
        if let Some(proving) = &mut self.proving {
            proving.command = Some(cid);
        }
    }

    fn compute(&mut self, cx: &mut Context<'_>, work: Work) {
        let (sender, receiver) = channel();
        let done = move |finished| drop(sender.send(finished));
        if self.config.credentials.computes_here() {
            done(work.run());
        } else if let Some(worker) = worker() {
            // If it is refused, the receiver says so.
            let _ = worker.submit(THIS_HOST, work, done);
        }
        if let Some(proving) = &mut self.proving {
            proving.result = Some(receiver);
        }
        self.arm(cx, cx.now + LOOK_INTERVAL);
    }

    /// Whether the queue waits for a computation.
    pub(super) fn is_computing(&self) -> bool {
        self.proving.as_ref().is_some_and(|proving| proving.result.is_some())
    }

    /// Looks whether the computation is done.
    pub(super) fn look_for_result(&mut self, cx: &mut Context<'_>) {
        let Some(proving) = &mut self.proving else { return };
        let Some(result) = &proving.result else { return };
        match result.try_recv() {
            Ok(finished) => {
                proving.result = None;
                proving.initiator.handle_finished(finished);
                self.prove_on(cx);
            }
            Err(TryRecvError::Empty) => self.arm(cx, cx.now + LOOK_INTERVAL),
            Err(TryRecvError::Disconnected) => {
                let text = "too many authentications are under way in this process".to_owned();
                self.lose(cx, Ending::Lost(HostError::Invalid(text)), None);
            }
        }
    }

    /// Whether this is the command of an authentication.
    #[inline]
    pub(super) fn is_proof(&self, cid: CommandId) -> bool {
        self.proving.as_ref().is_some_and(|proving| proving.command == Some(cid))
    }

    /// The command of an authentication has ended.
    #[cold]
    pub(super) fn handle_proof(&mut self, cx: &mut Context<'_>, cid: CommandId, status: Status) {
        let Some(mut entry) = self.commands.remove(cid) else { return };
        self.under_way.end(&entry);
        let spoiled = entry.digest_failed;
        let data = std::mem::take(&mut entry.data);
        let is_in_use = self.is_ready();
        let Some(proving) = &mut self.proving else { return };
        proving.command = None;
        if status.same_code(Status::COMMAND_INTERRUPTED) && is_in_use {
            // The controller has no time for it now. The queue has proved itself before, and may try again.
            self.proving = None;
            self.renewal.due = Some(cx.now + RENEWAL_INTERVAL);
            return;
        }
        if !status.is_success() || spoiled {
            let address = self.config.address;
            let error = if spoiled {
                HostError::Protocol(address, "wrong data digest of an authentication".to_owned())
            } else {
                HostError::AuthenticationBroken(address, status)
            };
            self.lose(cx, Ending::Lost(error), None);
            return;
        }
        match data {
            Data::Read(buf) => proving.initiator.handle_received(&buf),
            _ => proving.initiator.handle_sent(),
        }
        self.prove_on(cx);
    }
}
