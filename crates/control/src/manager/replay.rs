//! The seam to the methods: the manager makes the calls of a configuration again without knowing them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use super::catalogue::Key;
use super::{Change, Manager, Phase, lock};
use crate::error::RpcError;

/// Makes the calls that a configuration consists of. The layer of methods implements it, and passes itself
/// to [`Manager::new`]: the manager imports no method.
pub trait Replay: Send + Sync {
    /// The name that the method has now; `None` if there is no such method under this or an older name.
    fn current_name(&self, method: &str) -> Option<&'static str>;

    /// Whether the method may be called in this phase; `None` if there is no such method.
    fn admits(&self, method: &str, phase: Phase) -> Option<bool>;

    /// Checks whether the method takes these parameters, as far as possible without calling it.
    ///
    /// # Errors
    /// When there is no such method, or a parameter is missing, unknown or of the wrong type.
    fn check(&self, method: &str, params: Option<&Value>) -> Result<(), RpcError>;

    /// Calls the method on behalf of this program.
    ///
    /// # Errors
    /// The method's error; or that there is no such method.
    fn call(&self, manager: &Manager, method: &str, params: Option<&Value>)
    -> Result<(), RpcError>;

    /// A device has come: makes the configured devices that stand on it and are missing, unless clients
    /// have asked that this waits for their call.
    fn examine(&self, change: &mut Change<'_>, device: &str);
}

/// The manager's state for making calls again.
pub(super) struct Replaying {
    /// Makes the calls.
    pub(super) methods: Arc<dyn Replay>,
    /// Whether changes are being made that have been written down before.
    restoring: AtomicBool,
    /// The missing part that is being made now.
    coming: Mutex<Option<Key>>,
    /// How long the start has waited for things outside, in milliseconds.
    waited_ms: AtomicU64,
}

impl Replaying {
    pub(super) fn new(methods: Arc<dyn Replay>) -> Self {
        Self {
            methods,
            restoring: AtomicBool::new(false),
            coming: Mutex::default(),
            waited_ms: AtomicU64::new(0),
        }
    }

    /// Whether changes are being made that have been written down before.
    pub(super) fn is_restoring(&self) -> bool {
        self.restoring.load(Ordering::Acquire)
    }

    /// While the result lives, changes are not written down.
    pub(super) fn restore(&self) -> Restoring<'_> {
        self.restoring.store(true, Ordering::Release);
        Restoring(&self.restoring)
    }

    /// Whether the missing part under this key is being made now.
    pub(super) fn is_coming(&self, key: &Key) -> bool {
        lock(&self.coming).as_ref() == Some(key)
    }

    /// Calls `make`, which makes the missing part under this key.
    pub(super) fn come<T>(&self, key: &Key, make: impl FnOnce() -> T) -> T {
        *lock(&self.coming) = Some(key.clone());
        let made = make();
        *lock(&self.coming) = None;
        made
    }

    /// How long the start has waited for things outside.
    pub(super) fn waited(&self) -> Duration {
        Duration::from_millis(self.waited_ms.load(Ordering::Relaxed))
    }

    /// Adds to the time that the start has waited for things outside.
    pub(super) fn note_waited(&self, time: Duration) {
        let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.waited_ms.fetch_add(time_ms, Ordering::Relaxed);
    }
}

/// Ends the restoring when dropped.
pub(super) struct Restoring<'a>(&'a AtomicBool);

impl Drop for Restoring<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
