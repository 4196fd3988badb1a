//! What a connection has and what is demanded of it: TLS, authentication, or that it makes a key for TLS.

use raceline_auth::{Concatenation, identity_is_generated};
use raceline_proto::controller::{Channel, ConnectError, ConnectRequest, Role, find_subsystem};
use raceline_proto::nvme::HostNqn;
use raceline_reactor::Context;

use super::Connection;
use crate::path::authentication::Proof;
use crate::path::core::Core;

impl Connection {
    /// What its handshake has shown.
    pub(super) fn channel(&self, cx: &Context<'_>) -> Channel {
        match cx.io.peer_identity(self.socket) {
            None => Channel::Plain,
            Some(identity) if identity_is_generated(identity) => Channel::Concatenated,
            Some(_) => Channel::Tls,
        }
    }

    /// Looks the subsystem up for a Connect. A refusal for want of TLS is told to operators: the host gets a status that
    /// has other causes, too.
    pub(super) fn find(
        &self,
        core: &Core,
        request: &ConnectRequest,
        channel: Channel,
    ) -> Result<Role, ConnectError> {
        let (snapshot, port_id) = (&core.snapshot.target, self.ends.port_id);
        let found = find_subsystem(snapshot, request, (port_id, channel));
        if found.is_err() && channel == Channel::Plain {
            let subsystem = snapshot.subsystem(&request.subnqn).map(|subsystem| &**subsystem);
            let admits = subsystem.is_none_or(|it| it.hosts.admits(&request.hostnqn));
            if admits && snapshot.demands(port_id, subsystem, &request.hostnqn).tls {
                self.tell_refusal(request, "it has to come over TLS, and has come without");
            }
        }
        found
    }

    /// How the host proves itself on this queue; `None`: it need not.
    ///
    /// # Errors
    /// When it has to, and has no keys.
    pub(super) fn demanded_proof(
        &self,
        core: &Core,
        request: &ConnectRequest,
        channel: Channel,
    ) -> Result<Option<Proof>, ConnectError> {
        let (snapshot, port_id) = (&core.snapshot.target, self.ends.port_id);
        let has_keys = match &request.hostnqn {
            HostNqn::Named(host) => {
                let secrets = core.snapshot.secrets(&request.subnqn);
                secrets.is_some_and(|secrets| secrets.hosts.contains_key(host))
            }
            HostNqn::Unnamed => false,
        };
        if channel == Channel::Concatenated && !has_keys {
            self.tell_refusal(
                request,
                "its key for TLS is of an authentication, and it has lost the secret of that",
            );
            return Err(ConnectError::TOO_LITTLE_SECURITY);
        }
        if channel == Channel::Concatenated {
            // The host has proved itself for the key of this connection. Its admin queue can replace the key.
            let proof = Proof { concatenation: Concatenation::Replace, is_given: true };
            return Ok(request.qid.is_admin().then_some(proof));
        }
        let concatenates = snapshot.must_concatenate(port_id, channel);
        let subsystem = snapshot.subsystem(&request.subnqn).map(|subsystem| &**subsystem);
        let demanded = snapshot.demands(port_id, subsystem, &request.hostnqn).authentication;
        // The discovery service asks for a proof only where its listener does.
        let proves = concatenates || demanded || has_keys && !request.subnqn.is_discovery();
        if !proves {
            return Ok(None);
        }
        if !has_keys {
            self.tell_refusal(request, "it has to authenticate, and has no key (dhchap_key)");
            return Err(ConnectError::TOO_LITTLE_SECURITY);
        }
        let concatenation = if concatenates { Concatenation::New } else { Concatenation::None };
        Ok(Some(Proof { concatenation, is_given: false }))
    }

    /// One line for operators about a host that may not connect in the way in which it came.
    fn tell_refusal(&self, request: &ConnectRequest, why: &str) {
        let (host, subsystem) = (&request.hostnqn, &request.subnqn);
        tracing::warn!(event = "refused", peer = %self.ends.peer, %host, %subsystem, local = %self.ends.local, "refused a host: {why}");
        tracing::info!(
            target: "raceline::audit",
            event = "connect",
            host = host.to_string(),
            subsystem = subsystem.as_str(),
            qid = request.qid.0,
            peer = %self.ends.peer,
            result = "refused",
            why,
        );
    }
}
