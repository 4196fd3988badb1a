//! The secrets with which queues authenticate, and how they are replaced while the queues are in use.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use raceline_auth::{Algorithms, DhchapSecret};

/// The secrets of an authentication (DH-HMAC-CHAP), and how it may be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// By which this host proves itself.
    pub secret: DhchapSecret,
    /// By which the controller has to prove itself; `None`: it need not.
    pub controller_secret: Option<DhchapSecret>,
    /// The hash functions and groups that this host allows.
    pub algorithms: Algorithms,
}

/// The credentials of a controller's queues. They can be replaced while the controller is in use: each queue looks at
/// them when it authenticates. A clone is another handle to the same credentials.
#[derive(Clone, Debug, Default)]
pub struct CredentialStore(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    stored: RwLock<Stored>,
    /// Counts the calls of [`CredentialStore::renew`]. Queues look at it without a lock.
    version: AtomicU64,
    /// Queues compute on their own core.
    computes_here: bool,
}

#[derive(Debug, Default)]
struct Stored {
    credentials: Option<Arc<Credentials>>,
    withdrawn: bool,
}

impl CredentialStore {
    /// These, for queues without a helper thread for arithmetic: each computes on its own core, which stands still
    /// meanwhile. Runs of a simulation can then be repeated.
    #[must_use]
    pub fn without_thread(credentials: Credentials) -> Self {
        let stored = Stored { credentials: Some(Arc::new(credentials)), withdrawn: false };
        let shared =
            Shared { stored: RwLock::new(stored), computes_here: true, ..Shared::default() };
        Self(Arc::new(shared))
    }

    pub(crate) fn computes_here(&self) -> bool {
        self.0.computes_here
    }

    /// The credentials now; `None`: queues cannot authenticate.
    #[must_use]
    pub fn get(&self) -> Option<Arc<Credentials>> {
        self.read().credentials.clone()
    }

    /// Replaces them. Queues that are connected stay so, and use them when they authenticate next.
    pub fn set(&self, credentials: Option<Arc<Credentials>>) {
        *self.write() = Stored { credentials, withdrawn: false };
    }

    /// Replaces them, by equal ones if they have not changed. Each connected queue that has authenticated does so again
    /// within 1 s, without an interruption of its commands. A queue whose authentication fails loses its connection.
    pub fn renew(&self, credentials: Credentials) {
        self.set(Some(Arc::new(credentials)));
        // After the credentials: who sees this version finds these or later ones.
        self.0.version.fetch_add(1, Ordering::Release);
    }

    /// Takes them away. Queues that are connected stay so, and no queue connects before others are set: it must not do
    /// without a proof that was asked for.
    pub fn withdraw(&self) {
        *self.write() = Stored { credentials: None, withdrawn: true };
    }

    /// Whether they were taken away.
    #[must_use]
    pub fn are_withdrawn(&self) -> bool {
        self.read().withdrawn
    }

    /// The credentials, and a version that is not newer than they are.
    pub(crate) fn current(&self) -> Option<(u64, Arc<Credentials>)> {
        // The version first: a renewal that comes in between is seen later.
        let version = self.version();
        Some((version, self.get()?))
    }

    /// How often they were renewed.
    pub(crate) fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }

    fn read(&self) -> RwLockReadGuard<'_, Stored> {
        self.0.stored.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Stored> {
        self.0.stored.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Credentials> for CredentialStore {
    fn from(credentials: Credentials) -> Self {
        let store = Self::default();
        store.set(Some(Arc::new(credentials)));
        store
    }
}
