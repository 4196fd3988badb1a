//! What a queue knows of the authentication of its host (DH-HMAC-CHAP).
//!
//! A host whose keys are known has to authenticate on every queue. Until then its connection counts among the sockets
//! before Connect, takes no other command, and has a deadline. Later it may authenticate again at any time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_auth::{
    Concatenation, Finished, GeneratedPsk, Keys, Names, Received, Responder, ResponderConfig,
    Verdict,
};
use raceline_proto::controller::ConnectRequest;
use raceline_proto::nvme::{HostNqn, Status};

use crate::changes::snapshot::Secrets;

/// How a host proves itself on a queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Proof {
    /// Which secure channel is made afterwards.
    pub(crate) concatenation: Concatenation,
    /// It has proved itself already; it may do so again.
    pub(crate) is_given: bool,
}

/// What a queue knows about the authentication of its host.
pub(crate) struct Authentication {
    responder: Responder,
    concatenation: Concatenation,
    /// The host has proved itself at least once.
    proven: bool,
    /// When the transaction began that is under way.
    began: Option<Instant>,
}

impl Authentication {
    /// Of a queue whose host proves itself by these secrets; without a secret of its own it cannot. `None`: it has no
    /// name, and is not asked.
    pub(crate) fn new(
        secrets: Option<&Arc<Secrets>>,
        request: &ConnectRequest,
        Proof { concatenation, is_given: proven }: Proof,
    ) -> Option<Box<Self>> {
        let HostNqn::Named(host) = &request.hostnqn else { return None };
        let (keys, algorithms) = secrets.and_then(|it| it.of(host)).unwrap_or_default();
        let names = Names { host: host.clone(), subsystem: request.subnqn.clone() };
        let config = ResponderConfig { names, keys, algorithms, concatenation };
        Some(Box::new(Self {
            responder: Responder::new(config),
            concatenation,
            proven,
            began: None,
        }))
    }

    /// The keys have changed, maybe. A host that has lost its key cannot authenticate any more.
    pub(crate) fn update(&mut self, secrets: &Secrets) {
        let host = &self.responder.names().host;
        let keys = secrets.of(host).map_or_else(Keys::default, |(keys, _)| keys);
        self.responder.set_keys(keys);
    }

    /// Whether the queue is there only to make a key for TLS.
    pub(crate) fn only_makes_key(&self) -> bool {
        self.concatenation == Concatenation::New
    }

    /// The key for TLS that the last transaction has made, once.
    pub(crate) fn take_generated(&mut self) -> Option<GeneratedPsk> {
        self.responder.take_generated()
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

    /// Whether the host has proved itself, and no transaction is under way: another process can go on with that alone.
    pub(crate) fn rests(&self) -> bool {
        self.proven && !self.only_makes_key() && self.began.is_none()
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
        // Who has made a key for TLS comes back by TLS.
        self.proven |= verdict == Some(Verdict::Authenticated) && !self.only_makes_key();
        verdict
    }
}
