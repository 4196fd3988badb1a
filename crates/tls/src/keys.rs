//! Keys by their identity: the one that a host offers, and the table that a target looks them up in.

use std::collections::HashMap;
use std::fmt;
use std::sync::RwLock;

use raceline_auth::{IdentityVersion, KeyError, PskIdentity, TlsKey, TlsPsk};
use raceline_proto::nvme::Nqn;

/// Finds keys by their identity while a handshake runs. The answers may change at any time; a connection keeps the
/// key with which it was made.
pub trait PskLookup: Send + Sync {
    /// The key of an identity that a host offers. The bytes are a stranger's.
    fn find(&self, identity: &[u8]) -> Option<TlsPsk>;
}

impl<F: Fn(&[u8]) -> Option<TlsPsk> + Send + Sync> PskLookup for F {
    fn find(&self, identity: &[u8]) -> Option<TlsPsk> {
        self(identity)
    }
}

/// Keys of hosts, each under both versions of its identity. It may change while listeners use it.
#[derive(Default)]
pub struct PskTable {
    keys: RwLock<HashMap<Vec<u8>, Entry>>,
}

struct Entry {
    psk: TlsPsk,
    host: Nqn,
    subsystem: Nqn,
}

impl PskTable {
    /// A table without keys.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives a host a key for a subsystem, and takes the key away that it had for it.
    ///
    /// # Errors
    /// When a name has a space, which separates the names of an identity.
    pub fn insert(&self, key: &TlsKey, host: &Nqn, subsystem: &Nqn) -> Result<(), KeyError> {
        let retained = key.retained(host);
        let (one, psk) = retained.for_tls(IdentityVersion::One, host, subsystem)?;
        if !one.names(host, subsystem) {
            return Err(KeyError::NameWithSpace);
        }
        let mut entries = vec![(one, psk)];
        // Names can be too long for version 0 only. Such a host has to offer version 1.
        entries.extend(retained.for_tls(IdentityVersion::Zero, host, subsystem).ok());
        let mut keys = self.keys.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        keys.retain(|_, entry| !(entry.host == *host && entry.subsystem == *subsystem));
        for (identity, psk) in entries {
            let entry = Entry { psk, host: host.clone(), subsystem: subsystem.clone() };
            keys.insert(identity.as_str().as_bytes().to_vec(), entry);
        }
        Ok(())
    }

    /// Takes the key of a host for a subsystem away. Says whether it had one.
    pub fn remove(&self, host: &Nqn, subsystem: &Nqn) -> bool {
        let mut keys = self.keys.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let before = keys.len();
        keys.retain(|_, entry| !(entry.host == *host && entry.subsystem == *subsystem));
        keys.len() < before
    }
}

impl PskLookup for PskTable {
    fn find(&self, identity: &[u8]) -> Option<TlsPsk> {
        let keys = self.keys.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        keys.get(identity).map(|entry| entry.psk.clone())
    }
}

impl fmt::Debug for PskTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.keys.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        write!(f, "PskTable({} identities)", keys.len())
    }
}

/// The one key that a host offers.
#[derive(Clone, Debug)]
pub struct ClientPsk {
    /// What it is called.
    pub identity: PskIdentity,
    /// What it is.
    pub psk: TlsPsk,
}

impl ClientPsk {
    /// The key of a host for a subsystem.
    ///
    /// # Errors
    /// When the names do not fit into an identity of this version, or have a space.
    pub fn new(
        key: &TlsKey,
        version: IdentityVersion,
        host: &Nqn,
        subsystem: &Nqn,
    ) -> Result<Self, KeyError> {
        let (identity, psk) = key.retained(host).for_tls(version, host, subsystem)?;
        if !identity.names(host, subsystem) {
            return Err(KeyError::NameWithSpace);
        }
        Ok(Self { identity, psk })
    }
}
