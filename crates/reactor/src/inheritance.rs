//! Descriptors that a process hands to the one that takes its place.
//!
//! What has a descriptor that only one process can have (a listener, a lock, a device that is opened exclusively, memory)
//! offers it under a name. A successor is handed all offers, and takes each of them where it would otherwise open the
//! same thing. The two processes then share it: the lock of a file belongs to its open description.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whether this process may have a successor; otherwise nothing is offered.
static ENABLED: AtomicBool = AtomicBool::new(false);
/// Whether this process shares what it was handed with its predecessor.
static SHARING: AtomicBool = AtomicBool::new(false);
/// Whether anything was handed to this process at all.
static ANY: AtomicBool = AtomicBool::new(false);
/// Whether memory of devices can be handed over.
static MEMORY: AtomicBool = AtomicBool::new(false);
/// What this process offers, by name, with the number of the offer.
static OFFERED: Mutex<BTreeMap<String, (u64, OwnedFd)>> = Mutex::new(BTreeMap::new());
/// What this process was handed and has not taken.
static HANDED: Mutex<BTreeMap<String, OwnedFd>> = Mutex::new(BTreeMap::new());
/// The number of the next offer.
static NEXT: Mutex<u64> = Mutex::new(0);

/// A descriptor that a successor would get, until dropped.
#[derive(Debug)]
#[must_use = "the offer ends when this is dropped"]
pub struct Offer {
    name: String,
    number: u64,
}

impl Drop for Offer {
    fn drop(&mut self) {
        let mut offered = lock(&OFFERED);
        // A later offer of the same name stays.
        if offered.get(&self.name).is_some_and(|(number, _)| *number == self.number) {
            offered.remove(&self.name);
        }
    }
}

/// Has this process offer descriptors from here on.
pub fn enable() {
    ENABLED.store(true, Ordering::SeqCst);
}

/// Whether this process offers descriptors.
#[must_use]
pub fn is_enabled() -> bool {
    ENABLED.load(Ordering::SeqCst)
}

/// Offers a copy of a descriptor. `None`: this process has no successor, or no copy can be made, which is logged.
pub fn offer(name: String, fd: impl AsFd) -> Option<Offer> {
    if !is_enabled() {
        return None;
    }
    match fd.as_fd().try_clone_to_owned() {
        Ok(fd) => Some(offer_owned(name, fd)),
        Err(error) => {
            tracing::warn!("{name} cannot be handed over: {error}");
            None
        }
    }
}

/// [`offer`] of a descriptor that has no other use here.
pub fn offer_owned(name: String, fd: OwnedFd) -> Offer {
    let mut next = lock(&NEXT);
    *next += 1;
    let number = *next;
    drop(next);
    lock(&OFFERED).insert(name.clone(), (number, fd));
    Offer { name, number }
}

/// Copies of everything that is offered, by name.
///
/// # Errors
/// When descriptors have run out.
pub fn offers() -> io::Result<Vec<(String, OwnedFd)>> {
    let offered = lock(&OFFERED);
    offered.iter().map(|(name, (_, fd))| Ok((name.clone(), fd.try_clone()?))).collect()
}

/// This process has been handed these descriptors, and shares them until [`settle`].
pub fn receive(all: impl IntoIterator<Item = (String, OwnedFd)>) {
    SHARING.store(true, Ordering::SeqCst);
    ANY.store(true, Ordering::SeqCst);
    lock(&HANDED).extend(all);
}

/// This process was started with this descriptor, which it shares with no predecessor.
pub fn bring(name: String, fd: OwnedFd) {
    ANY.store(true, Ordering::SeqCst);
    lock(&HANDED).insert(name, fd);
}

/// Takes what was handed over under this name.
#[must_use]
pub fn take(name: &str) -> Option<OwnedFd> {
    // Nearly always nothing was handed over at all.
    if !ANY.load(Ordering::SeqCst) {
        return None;
    }
    lock(&HANDED).remove(name)
}

/// A copy of what was handed over under this name, which stays there until [`settle`].
#[must_use]
pub fn copy(name: &str) -> Option<OwnedFd> {
    lock(&HANDED).get(name).and_then(|fd| fd.try_clone().ok())
}

/// Has devices in memory use memory that can be handed over.
pub fn keep_memory() {
    MEMORY.store(true, Ordering::SeqCst);
}

/// Whether devices in memory use memory that can be handed over.
#[must_use]
pub fn keeps_memory() -> bool {
    MEMORY.load(Ordering::SeqCst)
}

/// Whether what this process was handed still belongs to its predecessor as well: then a lock must not be given up.
#[must_use]
pub fn is_sharing() -> bool {
    SHARING.load(Ordering::SeqCst)
}

/// The predecessor is gone. What was not taken is closed; its names are given.
pub fn settle() -> Vec<String> {
    SHARING.store(false, Ordering::SeqCst);
    std::mem::take(&mut *lock(&HANDED)).into_keys().collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_lasts_until_it_is_dropped() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(offer("before".to_owned(), &file).is_none(), "nobody would take it");
        enable();
        let names = || -> Vec<String> { offers().unwrap().into_iter().map(|(n, _)| n).collect() };
        let first = offer("one".to_owned(), &file).unwrap();
        let again = offer("one".to_owned(), &file).unwrap();
        drop(first);
        assert_eq!(names(), ["one"], "the later offer stays");
        drop(again);
        assert_eq!(names(), [""; 0]);
        assert!(take("one").is_none());
        receive([("one".to_owned(), OwnedFd::from(file))]);
        assert!(is_sharing());
        assert!(take("one").is_some());
        assert!(take("one").is_none(), "each is taken once");
        assert_eq!(settle(), [""; 0]);
        assert!(!is_sharing());
        bring("two".to_owned(), std::fs::File::open("/dev/null").unwrap().into());
        assert!(!is_sharing(), "nobody else has it");
        assert!(take("two").is_some());
    }
}
