//! Devices that are gone: the kernel may wait for programs to let go of them.
//!
//! librdmacm opens each device once, shares it among all users of this process, and keeps it open when the last of them
//! leaves. The driver of a device may be one that cannot take it away from a program that has it open (soft RoCE's cannot):
//! then the removal waits for ever. So the last user of a device that is gone closes the kernel's files of it.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::layout::VerbsContext;
use crate::invalidation::Invalidation;

/// The users of a device of librdmacm.
#[derive(Debug, Default)]
struct Users {
    count: usize,
    /// Those that have entered since there was none.
    entered: u32,
    /// The kernel has said that the device is gone.
    is_gone: bool,
    /// Whether it invalidates keys of peers, as they find out.
    invalidation: Arc<Invalidation>,
}

/// By the address of the device's context.
static USERS: Mutex<BTreeMap<usize, Users>> = Mutex::new(BTreeMap::new());

fn users() -> MutexGuard<'static, BTreeMap<usize, Users>> {
    USERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Somebody uses a device from now on. Gives how many have entered before, since there was no user.
pub(super) fn enter(context: *mut VerbsContext) -> u32 {
    let mut all = users();
    let users = all.entry(context.addr()).or_default();
    users.count += 1;
    let before = users.entered;
    users.entered = before.wrapping_add(1);
    before
}

/// Whether a device invalidates keys of peers, as its users find out: they share this.
pub(super) fn invalidation(context: *mut VerbsContext) -> Arc<Invalidation> {
    users().get(&context.addr()).map(|users| Arc::clone(&users.invalidation)).unwrap_or_default()
}

/// The kernel says that a device is gone.
pub(super) fn note(context: *mut VerbsContext) {
    if let Some(users) = users().get_mut(&context.addr()) {
        users.is_gone = true;
    }
}

/// Whether the kernel has said that a device is gone.
pub(super) fn is_noted(context: *mut VerbsContext) -> bool {
    users().get(&context.addr()).is_some_and(|users| users.is_gone)
}

/// Somebody who has entered leaves, and has nothing of the device any longer but an identifier that is bound to it: by that
/// the context is alive.
pub(super) fn leave(context: *mut VerbsContext) {
    let mut all = users();
    let Some(users) = all.get_mut(&context.addr()) else { return };
    users.count -= 1;
    if users.count > 0 {
        return;
    }
    if users.is_gone {
        close_files(context);
    }
    all.remove(&context.addr());
}

/// Closes the kernel's files of a device. Its numbers stay taken, by files that do nothing: librdmacm closes them when it
/// finds out that the device is gone, and what it asks of it until then fails.
fn close_files(context: *mut VerbsContext) {
    // SAFETY: no memory is involved.
    let nothing = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if nothing < 0 {
        return;
    }
    // SAFETY: a descriptor that was just made, and that nobody else has.
    let nothing = unsafe { OwnedFd::from_raw_fd(nothing) };
    // SAFETY: the context is alive, as the caller says.
    let files = unsafe { [(*context).async_fd, (*context).cmd_fd] };
    for file in files {
        // SAFETY: both are open descriptors of the context, which nobody uses any longer: its last user leaves.
        unsafe { libc::dup3(nothing.as_raw_fd(), file, libc::O_CLOEXEC) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::IntoRawFd;

    use super::*;

    /// A context with two files, and the other ends of these, which break when the files are closed.
    fn context() -> (VerbsContext, [std::io::PipeWriter; 2]) {
        // SAFETY: a structure of numbers, pointers and optional functions, for which zeroes are valid.
        let mut context: VerbsContext = unsafe { std::mem::zeroed() };
        let pipes = [(); 2].map(|()| std::io::pipe().unwrap());
        let [(cmd, one), (events, two)] = pipes;
        (context.cmd_fd, context.async_fd) = (cmd.into_raw_fd(), events.into_raw_fd());
        (context, [one, two])
    }

    fn close(context: &VerbsContext) {
        // SAFETY: the test's own descriptors, which nobody uses any longer.
        unsafe { (libc::close(context.cmd_fd), libc::close(context.async_fd)) };
    }

    #[test]
    fn the_last_user_of_a_device_that_is_gone_closes_its_files() {
        let (mut context, mut ends) = context();
        let device = &raw mut context;
        enter(device);
        enter(device);
        note(device);
        leave(device);
        assert!(ends.iter_mut().all(|end| end.write_all(b"x").is_ok()), "closed under a user");
        leave(device);
        assert!(ends.iter_mut().all(|end| end.write_all(b"x").is_err()), "still open");
        // The numbers are still taken.
        close(&context);
    }

    #[test]
    fn a_device_that_is_there_stays_open() {
        let (mut context, mut ends) = context();
        let device = &raw mut context;
        enter(device);
        leave(device);
        assert!(ends.iter_mut().all(|end| end.write_all(b"x").is_ok()), "closed");
        close(&context);
    }
}
