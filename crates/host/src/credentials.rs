//! The secrets with which queues authenticate, and how they are replaced while the queues are in use.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
use std::time::Duration;

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
    /// The versions that connected queues have authenticated with, or are about to.
    in_use: Mutex<InUse>,
    in_use_changed: Condvar,
    /// Queues compute on their own core.
    computes_here: bool,
}

#[derive(Debug, Default)]
struct InUse {
    last: u64,
    versions: BTreeMap<u64, u64>,
}

/// A connected queue that has authenticated, or is about to, with one version of the credentials. It counts until it is
/// dropped.
#[derive(Debug)]
pub(crate) struct Use {
    store: CredentialStore,
    id: u64,
}

impl Use {
    /// The queue uses this version now.
    pub(crate) fn set_version(&self, version: u64) {
        self.store.in_use().versions.insert(self.id, version);
        self.store.0.in_use_changed.notify_all();
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.store.in_use().versions.remove(&self.id);
        self.store.0.in_use_changed.notify_all();
    }
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

    /// Waits until no connected queue uses credentials from before the last [`Self::renew`]: each has authenticated by
    /// these, or has lost its connection. Says whether that was so within `limit`.
    #[must_use]
    pub fn wait_renewed(&self, limit: Duration) -> bool {
        let version = self.version();
        let is_behind = |in_use: &mut InUse| in_use.versions.values().any(|it| *it < version);
        let changed = &self.0.in_use_changed;
        let waited = changed.wait_timeout_while(self.in_use(), limit, is_behind);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// A queue is about to authenticate with this version.
    pub(crate) fn begin_use(&self, version: u64) -> Use {
        let mut in_use = self.in_use();
        in_use.last += 1;
        let id = in_use.last;
        in_use.versions.insert(id, version);
        Use { store: self.clone(), id }
    }

    fn in_use(&self) -> MutexGuard<'_, InUse> {
        self.0.in_use.lock().unwrap_or_else(PoisonError::into_inner)
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
