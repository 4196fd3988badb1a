//! Keys by their identity: the one that a host offers, and the table that a target looks them up in.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use raceline_auth::{
    GeneratedKeys, GeneratedPsk, IdentityVersion, KeyError, Names, PskIdentity, TlsKey, TlsPsk,
};
use raceline_proto::nvme::Nqn;

/// Generated keys of one host for one subsystem that a table holds; the oldest gives way. A host has at most as many
/// controllers of a target.
pub const GENERATED_MAX: usize = 64;
/// Generated keys that a table holds for all hosts together.
const GENERATED_TOTAL_MAX: usize = 4096;

/// Finds keys by their identity while a handshake runs. The answers may change at any time; a connection keeps the
/// key with which it was made.
pub trait PskLookup: Send + Sync {
    /// The key of an identity that a host offers. The bytes are a stranger's.
    fn find(&self, identity: &[u8]) -> Option<TlsPsk>;

    /// All keys of an identity: identities of version 0 do not tell keys of the same length apart. Which of them a host
    /// has is told by its binder.
    fn find_all(&self, identity: &[u8]) -> Vec<TlsPsk> {
        self.find(identity).into_iter().collect()
    }
}

impl<F: Fn(&[u8]) -> Option<TlsPsk> + Send + Sync> PskLookup for F {
    fn find(&self, identity: &[u8]) -> Option<TlsPsk> {
        self(identity)
    }
}

/// Keys of hosts, each under both versions of its identity. It may change while listeners use it.
#[derive(Default)]
pub struct PskTable {
    keys: RwLock<Keys>,
}

#[derive(Default)]
struct Keys {
    /// Those that people have given, by identity.
    given: HashMap<Vec<u8>, Vec<Entry>>,
    /// Those that authentications have made, the oldest first.
    generated: VecDeque<(Vec<u8>, Entry)>,
}

#[derive(Clone)]
struct Entry {
    psk: TlsPsk,
    host: Nqn,
    subsystem: Nqn,
}

impl Entry {
    fn is_of(&self, host: &Nqn, subsystem: &Nqn) -> bool {
        self.host == *host && self.subsystem == *subsystem
    }
}

impl PskTable {
    /// A table without keys.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives a host a key for a subsystem, and takes the keys away that it was given for it.
    ///
    /// # Errors
    /// When a name has a space, which separates the names of an identity.
    pub fn insert(&self, key: &TlsKey, host: &Nqn, subsystem: &Nqn) -> Result<(), KeyError> {
        self.set(&[key], host, subsystem)
    }

    /// Gives a host these keys for a subsystem, any of which will do, and takes others away that it was given for it.
    ///
    /// # Errors
    /// When a name has a space, which separates the names of an identity. Then nothing has changed.
    pub fn set(&self, keys: &[&TlsKey], host: &Nqn, subsystem: &Nqn) -> Result<(), KeyError> {
        let mut entries = Vec::with_capacity(2 * keys.len());
        for key in keys {
            let retained = key.retained(host);
            let one = retained.for_tls(IdentityVersion::One, host, subsystem)?;
            if !one.0.names(host, subsystem) {
                return Err(KeyError::NameWithSpace);
            }
            entries.push(one);
            // Names can be too long for version 0 only. Such a host has to offer version 1.
            entries.extend(retained.for_tls(IdentityVersion::Zero, host, subsystem).ok());
        }
        let mut table = self.write();
        table.take_given(host, subsystem);
        for (identity, psk) in entries {
            let same = table.given.entry(identity.as_str().as_bytes().to_vec()).or_default();
            if !same.iter().any(|entry| entry.psk == psk) {
                let (host, subsystem) = (host.clone(), subsystem.clone());
                same.push(Entry { psk, host, subsystem });
            }
        }
        Ok(())
    }

    /// Takes the keys of a host for a subsystem away, those that it was given and those that it has generated. Says
    /// whether it had one.
    pub fn remove(&self, host: &Nqn, subsystem: &Nqn) -> bool {
        let mut table = self.write();
        let had_given = table.take_given(host, subsystem);
        table.take_generated(host, subsystem) || had_given
    }

    /// Takes a key that an authentication of a host has made. Of a host's keys for a subsystem, the newest
    /// [`GENERATED_MAX`] are held.
    pub fn add_generated(&self, identity: &PskIdentity, psk: TlsPsk, host: &Nqn, subsystem: &Nqn) {
        let mut table = self.write();
        let of_host = |(_, entry): &&(Vec<u8>, Entry)| entry.is_of(host, subsystem);
        if table.generated.iter().filter(of_host).count() >= GENERATED_MAX {
            let oldest = table.generated.iter().position(|(_, entry)| entry.is_of(host, subsystem));
            oldest.and_then(|place| table.generated.remove(place));
        }
        if table.generated.len() >= GENERATED_TOTAL_MAX {
            table.generated.pop_front();
        }
        let entry = Entry { psk, host: host.clone(), subsystem: subsystem.clone() };
        table.generated.push_back((identity.as_str().as_bytes().to_vec(), entry));
    }

    /// Takes the key away that an authentication has made: nobody connects by it any more. Says whether it was there.
    pub fn forget_generated(&self, identity: &str) -> bool {
        let mut table = self.write();
        let before = table.generated.len();
        table.generated.retain(|(name, _)| name != identity.as_bytes());
        table.generated.len() < before
    }

    /// Takes the keys away that a host has generated for a subsystem. Says whether there were any.
    pub fn remove_generated(&self, host: &Nqn, subsystem: &Nqn) -> bool {
        self.write().take_generated(host, subsystem)
    }

    fn read(&self) -> RwLockReadGuard<'_, Keys> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Keys> {
        self.keys.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keys {
    fn take_given(&mut self, host: &Nqn, subsystem: &Nqn) -> bool {
        let before = self.given.len();
        self.given.retain(|_, entries| {
            entries.retain(|entry| !entry.is_of(host, subsystem));
            !entries.is_empty()
        });
        // The names are a part of each identity, so entries of one identity have the same names.
        self.given.len() < before
    }

    fn take_generated(&mut self, host: &Nqn, subsystem: &Nqn) -> bool {
        let before = self.generated.len();
        self.generated.retain(|(_, entry)| !entry.is_of(host, subsystem));
        self.generated.len() < before
    }
}

impl PskLookup for PskTable {
    fn find(&self, identity: &[u8]) -> Option<TlsPsk> {
        self.find_all(identity).into_iter().next()
    }

    fn find_all(&self, identity: &[u8]) -> Vec<TlsPsk> {
        let table = self.read();
        let given = table.given.get(identity).into_iter().flatten();
        let generated = table.generated.iter().filter(|(name, _)| name == identity);
        given.chain(generated.map(|(_, entry)| entry)).map(|entry| entry.psk.clone()).collect()
    }
}

impl GeneratedKeys for PskTable {
    fn add(&self, psk: &GeneratedPsk, Names { host, subsystem }: &Names) {
        match psk.for_tls(host, subsystem) {
            Ok((identity, psk)) if identity.names(host, subsystem) => {
                self.add_generated(&identity, psk, host, subsystem);
            }
            Ok(_) => {
                tracing::warn!(%host, %subsystem, "no key for TLS: {}", KeyError::NameWithSpace)
            }
            Err(error) => tracing::warn!(%host, %subsystem, "no key for TLS: {error}"),
        }
    }

    fn forget(&self, identity: &str) {
        self.forget_generated(identity);
    }
}

impl fmt::Debug for PskTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.read();
        let (given, generated) = (keys.given.len(), keys.generated.len());
        write!(f, "PskTable({given} identities of given keys, {generated} generated keys)")
    }
}

/// One key that any host may use, whatever its name: the key is what admits it.
#[derive(Clone, Debug)]
pub struct SharedPsk {
    key: TlsKey,
    subsystems: Vec<Nqn>,
}

impl SharedPsk {
    /// For these subsystems.
    #[must_use]
    pub fn new(key: TlsKey, subsystems: Vec<Nqn>) -> Self {
        Self { key, subsystems }
    }
}

impl PskLookup for SharedPsk {
    /// Derives the key for the names in the identity, and looks whether it has this identity.
    fn find(&self, identity: &[u8]) -> Option<TlsPsk> {
        let identity = std::str::from_utf8(identity).ok()?;
        let mut words = identity.split(' ');
        let (form, host, subsystem) = (words.next()?, words.next()?, words.next()?);
        let version = match form.get(..5)? {
            "NVMe0" => IdentityVersion::Zero,
            "NVMe1" => IdentityVersion::One,
            _ => return None,
        };
        let host = Nqn::new(host).ok()?;
        let subsystem = self.subsystems.iter().find(|known| known.as_str() == subsystem)?;
        let (own, psk) = self.key.retained(&host).for_tls(version, &host, subsystem).ok()?;
        (own.as_str() == identity).then_some(psk)
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

/// The key of a host's connections, which can be taken away: no connection is made without it then. A clone is another
/// handle to the same key.
#[derive(Clone, Debug)]
pub struct ClientPskStore(Arc<RwLock<Option<ClientPsk>>>);

impl ClientPskStore {
    /// With this key.
    #[must_use]
    pub fn new(psk: ClientPsk) -> Self {
        Self(Arc::new(RwLock::new(Some(psk))))
    }

    /// The key; `None`: it was taken away.
    #[must_use]
    pub fn get(&self) -> Option<ClientPsk> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes the key away. Connections that there are stay.
    pub fn withdraw(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl ClientPsk {
    /// The key that an authentication of the host has made (secure channel concatenation).
    ///
    /// # Errors
    /// When a name has a space.
    pub fn generated(psk: &GeneratedPsk, names: &Names) -> Result<Self, KeyError> {
        let Names { host, subsystem } = names;
        let (identity, psk) = psk.for_tls(host, subsystem)?;
        if !identity.names(host, subsystem) {
            return Err(KeyError::NameWithSpace);
        }
        Ok(Self { identity, psk })
    }
}

impl From<ClientPsk> for ClientPskStore {
    fn from(psk: ClientPsk) -> Self {
        Self::new(psk)
    }
}
