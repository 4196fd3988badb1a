//! Errors that are injected into the commands of a remote controller, to see what becomes of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use raceline_proto::nvme::Status;

use super::RemoteController;

/// The longest time after which a command that is not sent ends.
pub const MAX_INJECTED_DELAY: Duration = Duration::from_secs(600);

/// Which commands a controller's errors are injected into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InjectedKind {
    /// Admin commands that calls cause. Keep alive, and what a controller is connected by, are left alone.
    Admin,
    /// Requests to its devices, each of which may be several commands of that opcode.
    Io,
}

/// An error that commands end with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injection {
    /// The command is not sent, and ends after this time. `None`: it is sent, and ends with the error instead of what
    /// the controller says.
    pub instead: Option<Duration>,
    /// How many more commands end so, over all cores and paths.
    pub count: u32,
    /// What they end with.
    pub status: Status,
}

/// The injected errors of a controller.
#[derive(Debug, Default)]
pub(super) struct Injections {
    /// Whether there are any: requests look at nothing else while there are none.
    has_any: AtomicBool,
    by_opcode: Mutex<BTreeMap<(InjectedKind, u8), Injection>>,
}

impl Injections {
    /// The error for the next command of this opcode, which counts as injected.
    #[inline]
    pub(super) fn take(&self, kind: InjectedKind, opc: u8) -> Option<Injection> {
        if self.has_any.load(Ordering::Relaxed) { self.take_one(kind, opc) } else { None }
    }

    #[cold]
    fn take_one(&self, kind: InjectedKind, opc: u8) -> Option<Injection> {
        let mut by_opcode = self.lock();
        let injection = by_opcode.get_mut(&(kind, opc))?;
        injection.count = injection.count.checked_sub(1)?;
        let taken = *injection;
        if taken.count == 0 {
            by_opcode.remove(&(kind, opc));
            self.has_any.store(!by_opcode.is_empty(), Ordering::Relaxed);
        }
        Some(taken)
    }

    fn add(&self, kind: InjectedKind, opc: u8, injection: Injection) {
        let mut by_opcode = self.lock();
        by_opcode.insert((kind, opc), injection);
        self.has_any.store(true, Ordering::Relaxed);
    }

    fn remove(&self, kind: InjectedKind, opc: u8) -> bool {
        let mut by_opcode = self.lock();
        let was_there = by_opcode.remove(&(kind, opc)).is_some();
        self.has_any.store(!by_opcode.is_empty(), Ordering::Relaxed);
        was_there
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(InjectedKind, u8), Injection>> {
        self.by_opcode.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RemoteController {
    /// Has the next commands of this opcode end with an error. It replaces what was there for the opcode.
    pub fn inject(&self, kind: InjectedKind, opc: u8, injection: Injection) {
        let instead = injection.instead.map(|delay| delay.min(MAX_INJECTED_DELAY));
        if injection.count == 0 {
            self.remote.injections.remove(kind, opc);
        } else {
            self.remote.injections.add(kind, opc, Injection { instead, ..injection });
        }
    }

    /// Ends the injection of errors into commands of this opcode; gives whether there was one. Commands that wait for
    /// their error still get it.
    pub fn remove_injection(&self, kind: InjectedKind, opc: u8) -> bool {
        self.remote.injections.remove(kind, opc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ERROR: Injection = Injection { instead: None, count: 2, status: Status::INTERNAL };

    #[test]
    fn an_error_is_for_one_kind_and_opcode_and_a_number_of_commands() {
        let injections = Injections::default();
        assert_eq!(injections.take(InjectedKind::Io, 2), None);
        injections.add(InjectedKind::Io, 2, ERROR);
        assert_eq!(injections.take(InjectedKind::Admin, 2), None);
        assert_eq!(injections.take(InjectedKind::Io, 1), None);
        for left in [1, 0] {
            assert_eq!(injections.take(InjectedKind::Io, 2).map(|it| it.count), Some(left));
        }
        assert_eq!(injections.take(InjectedKind::Io, 2), None);
        assert!(!injections.has_any.load(Ordering::Relaxed));
    }

    #[test]
    fn what_is_removed_is_injected_no_more() {
        let injections = Injections::default();
        injections.add(InjectedKind::Io, 2, ERROR);
        injections.add(InjectedKind::Admin, 2, ERROR);
        assert!(injections.remove(InjectedKind::Io, 2) && !injections.remove(InjectedKind::Io, 2));
        assert_eq!(injections.take(InjectedKind::Io, 2), None);
        assert!(injections.take(InjectedKind::Admin, 2).is_some());
        // A second one replaces the first.
        injections.add(InjectedKind::Admin, 2, Injection { count: 1, ..ERROR });
        assert!(injections.take(InjectedKind::Admin, 2).is_some());
        assert_eq!(injections.take(InjectedKind::Admin, 2), None);
    }
}
