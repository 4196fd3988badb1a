//! Authentication of a queue after its Connect (DH-HMAC-CHAP): the queue takes no command before it.

use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use raceline_auth::{Finished, Initiator, InitiatorConfig, InitiatorStep, Names, Work, Worker};
use raceline_proto::nvme::authentication::{
    MAX_MESSAGE_BYTES, authentication_receive, authentication_send,
};
use raceline_proto::nvme::{CommandId, ControllerId, Status};
use raceline_reactor::{Context, IoBuf};

use super::send::to_usize;
use super::{Ending, QueuePair, State};
use crate::command::{Command, Data};
use crate::config::Credentials;
use crate::error::HostError;

/// How often a queue looks whether its computation is done, which takes milliseconds.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// Computations of this process that may wait: more than the queues that connect at the same time.
const MAX_WAITING: usize = 4096;

/// An authentication that is under way.
#[derive(Debug)]
pub(super) struct Proving {
    initiator: Initiator,
    cntlid: ControllerId,
    /// The command that is outstanding.
    pub(super) command: Option<CommandId>,
    /// The computation that is under way.
    result: Option<Receiver<Finished>>,
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
        credentials: &Credentials,
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
        };
        // The number of the connection, so that it differs from that of the last transaction.
        let initiator = Initiator::new(config, self.token.generation);
        self.state =
            State::Proving(Box::new(Proving { initiator, cntlid, command: None, result: None }));
        self.expect(cx, self.config.connect_timeout);
        self.prove_on(cx);
    }

    /// Does what the transaction asks for next.
    fn prove_on(&mut self, cx: &mut Context<'_>) {
        let State::Proving(proving) = &mut self.state else { return };
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
                let cntlid = proving.cntlid;
                tracing::debug!(qid = self.config.qid.0, "authenticated");
                self.get_ready(cx, cntlid);
            }
            Some(InitiatorStep::Failed(error)) => {
                let error = HostError::Authentication(self.config.address, error);
                self.lose(cx, Ending::Lost(error), None);
            }
            None => {}
        }
    }

    fn send_proof(&mut self, command: Command, len: u32) {
        let cid = self.insert(command, 0, len, None);
        // Before all commands that wait already.
        self.pending.rotate_right(1);
        if let State::Proving(proving) = &mut self.state {
            proving.command = Some(cid);
        }
    }

    fn compute(&mut self, cx: &mut Context<'_>, work: Work) {
        let (sender, receiver) = channel();
        let done = move |finished| drop(sender.send(finished));
        // If it is refused, the receiver says so.
        if let Some(worker) = worker() {
            let _ = worker.submit(work, done);
        }
        if let State::Proving(proving) = &mut self.state {
            proving.result = Some(receiver);
        }
        self.arm(cx, cx.now + LOOK_INTERVAL);
    }

    /// Whether the queue waits for a computation.
    pub(super) fn is_computing(&self) -> bool {
        matches!(&self.state, State::Proving(proving) if proving.result.is_some())
    }

    /// Looks whether the computation is done.
    pub(super) fn look_for_result(&mut self, cx: &mut Context<'_>) {
        let State::Proving(proving) = &mut self.state else { return };
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

    /// Whether this is the command of an authentication before the queue is ready.
    pub(super) fn is_proof(&self, cid: CommandId) -> bool {
        matches!(&self.state, State::Proving(proving) if proving.command == Some(cid))
    }

    /// The command of an authentication has ended.
    #[cold]
    pub(super) fn handle_proof(&mut self, cx: &mut Context<'_>, cid: CommandId, status: Status) {
        let Some(mut entry) = self.commands.remove(cid) else { return };
        self.under_way.end(&entry);
        let spoiled = entry.digest_failed;
        let data = std::mem::take(&mut entry.data);
        let State::Proving(proving) = &mut self.state else { return };
        proving.command = None;
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
