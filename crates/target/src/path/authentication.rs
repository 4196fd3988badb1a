//! What a queue knows of the authentication of its host (DH-HMAC-CHAP).
//!
//! A host whose keys are known has to authenticate on every queue. Until then its connection counts among the sockets
//! before Connect, takes no other command, and has a deadline. Later it may authenticate again at any time.

use std::time::{Duration, Instant};

use raceline_auth::{Finished, Keys, Names, Received, Responder, ResponderConfig, Verdict};
use raceline_proto::controller::ConnectRequest;
use raceline_proto::nvme::{HostNqn, Status};

use crate::changes::snapshot::SubsystemDevices;

/// What a queue knows about the authentication of its host.
pub(crate) struct Authentication {
    responder: Responder,
    /// The host has proved itself at least once.
    proven: bool,
    /// When the transaction began that is under way.
    began: Option<Instant>,
}

impl Authentication {
    /// Whether this host has to prove itself.
    pub(crate) fn is_required(subsystem: Option<&SubsystemDevices>, host: &HostNqn) -> bool {
        match (subsystem, host) {
            (Some(subsystem), HostNqn::Named(host)) => subsystem.secrets.hosts.contains_key(host),
            _ => false,
        }
    }

    /// Of a queue whose host has to prove itself; `None`: it need not.
    pub(crate) fn required(
        subsystem: Option<&SubsystemDevices>,
        request: &ConnectRequest,
    ) -> Option<Box<Self>> {
        let HostNqn::Named(host) = &request.hostnqn else { return None };
        let (keys, algorithms) = subsystem?.secrets.of(host)?;
        let names = Names { host: host.clone(), subsystem: request.subnqn.clone() };
        let config = ResponderConfig { names, keys, algorithms };
        Some(Box::new(Self { responder: Responder::new(config), proven: false, began: None }))
    }

    /// The keys have changed, maybe. A host that has lost its key cannot authenticate any more.
    pub(crate) fn update(&mut self, subsystem: &SubsystemDevices) {
        let host = &self.responder.names().host;
        let keys = subsystem.secrets.of(host).map_or_else(Keys::default, |(keys, _)| keys);
        self.responder.set_keys(keys);
    }

    /// Who authenticates to whom.
    pub(crate) fn names(&self) -> &Names {
        self.responder.names()
    }

    /// The place of the secret, among the keys of then, that the host has proved last.
    pub(crate) fn key_of_proof(&self) -> Option<usize> {
        self.responder.key_of_proof()
    }

    /// Whether the host has proved itself at least once.
    pub(crate) fn is_proven(&self) -> bool {
        self.proven
    }

    /// An Authentication Send has come. A transaction that has taken longer than `limit` is given up before. Gives what
    /// to do with the command, and what follows for the connection.
    pub(crate) fn handle_send(
        &mut self,
        now: Instant,
        limit: Duration,
        message: &[u8],
    ) -> (Received, Option<Verdict>) {
        if self.began.is_some_and(|began| now.saturating_duration_since(began) > limit) {
            self.give_up();
        }
        let received = self.responder.handle_send(message);
        self.began = self.responder.is_busy().then(|| self.began.unwrap_or(now));
        (received, self.take_verdict())
    }

    /// An Authentication Receive has come, for at most `len` bytes. Gives the message, or the status of the command;
    /// and what follows for the connection.
    pub(crate) fn handle_receive(
        &mut self,
        len: usize,
    ) -> (Result<Vec<u8>, Status>, Option<Verdict>) {
        let message = self.responder.handle_receive(len);
        if !self.responder.is_busy() {
            self.began = None;
        }
        (message, self.take_verdict())
    }

    /// A computation is done.
    pub(crate) fn handle_finished(&mut self, finished: Finished) {
        self.responder.handle_finished(finished);
    }

    /// The transaction is given up.
    pub(crate) fn give_up(&mut self) {
        self.responder.give_up();
        self.began = None;
    }

    fn take_verdict(&mut self) -> Option<Verdict> {
        let verdict = self.responder.poll_verdict();
        self.proven |= verdict == Some(Verdict::Authenticated);
        verdict
    }
}
