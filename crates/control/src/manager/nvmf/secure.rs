//! Listeners with a secure channel: TLS 1.3 with the pre-shared keys of the hosts that may connect.

use std::sync::Arc;

use raceline_auth::TlsKey;
use raceline_proto::nvme::Nqn;
use raceline_reactor::StreamProvider;
use raceline_tls::{PskTable, TlsAcceptor};

use crate::manager::ManagerError;

/// The keys of a target's hosts, and what carries the connections that come by its secure listeners.
#[derive(Debug)]
pub struct SecureChannel {
    keys: Arc<PskTable>,
    streams: Arc<TlsAcceptor>,
}

impl Default for SecureChannel {
    fn default() -> Self {
        let keys = Arc::new(PskTable::new());
        let streams = Arc::new(TlsAcceptor::new(Arc::clone(&keys) as _));
        Self { keys, streams }
    }
}

impl SecureChannel {
    /// What a secure listener has; the same for all listeners of the target.
    pub(super) fn streams(&self) -> Arc<dyn StreamProvider> {
        Arc::clone(&self.streams) as _
    }

    /// Gives a host this key for a subsystem and for discovery; `None`: takes it away. Connections stay.
    ///
    /// # Errors
    /// When a name cannot be part of an identity.
    pub(super) fn set(
        &self,
        nqn: &Nqn,
        host: &Nqn,
        key: Option<&TlsKey>,
    ) -> Result<(), ManagerError> {
        for subsystem in [nqn, &Nqn::discovery()] {
            match key {
                Some(key) => self.keys.insert(key, host, subsystem).map_err(|error| {
                    ManagerError::Invalid(format!("psk of {host} for {subsystem}: {error}"))
                })?,
                None => drop(self.keys.remove(host, subsystem)),
            }
        }
        Ok(())
    }
}
