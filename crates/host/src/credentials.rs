//! The secrets with which queues authenticate, and how they are replaced while the queues are in use.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

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

/// The [`Credentials`] that all queues of a host share.
#[derive(Debug)]
pub struct SharedCredentials {
    current: Mutex<Arc<Credentials>>,
    /// Counts the calls of [`Self::renew`]. Queues look at it without a lock.
    version: AtomicU64,
}

impl SharedCredentials {
    /// Shares these.
    #[must_use]
    pub fn new(credentials: Credentials) -> Arc<Self> {
        let (current, version) = (Mutex::new(Arc::new(credentials)), AtomicU64::new(0));
        Arc::new(Self { current, version })
    }

    /// Those that the next authentication uses.
    #[must_use]
    pub fn current(&self) -> Arc<Credentials> {
        Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces them, by equal ones if they have not changed. Each connected queue that has authenticated does so again
    /// within 1 s, without an interruption of its commands. A queue whose authentication fails loses its connection.
    pub fn renew(&self, credentials: Credentials) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(credentials);
        // After the credentials: who sees this version finds these or later ones.
        self.version.fetch_add(1, Ordering::Release);
    }

    /// How often they were renewed.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }
}
