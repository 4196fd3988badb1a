//! Which cores this process may use, and binding a thread to one.

#![allow(unsafe_code)]

use std::fmt::Write;
use std::io;

/// The cores that the calling thread may run on.
///
/// # Errors
/// The error of sched_getaffinity(2).
pub fn allowed_cores() -> io::Result<Vec<usize>> {
    let set = affinity(CALLING_THREAD)?;
    // SAFETY: every index is below the set's size.
    Ok((0..MAX_CORES).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect())
}

/// Binds the calling thread to one core.
///
/// # Errors
/// `InvalidInput`, naming the core and the allowed ones, when it is not among them.
pub fn pin_to_core(core: usize) -> io::Result<()> {
    let allowed = allowed_cores()?;
    if !allowed.contains(&core) {
        let message =
            format!("core {core} cannot be used: this process may use {}", core_list(&allowed));
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    // SAFETY: a cpu_set_t is plain bits, all zeroes is the empty set, and an allowed core is
    // below its size.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        set
    };
    set_affinity(&set)
}

/// Lets the calling thread run wherever the process's first thread may. A thread that a pinned
/// one starts would otherwise have to share its core, and get no turn while that one spins.
pub(crate) fn unpin() -> io::Result<()> {
    let process = libc::pid_t::try_from(std::process::id()).map_err(io::Error::other)?;
    set_affinity(&affinity(process)?)
}

/// Cores that a `cpu_set_t` can name.
const MAX_CORES: usize = 1024;

const CALLING_THREAD: libc::pid_t = 0;

fn affinity(thread: libc::pid_t) -> io::Result<libc::cpu_set_t> {
    // SAFETY: all zeroes is the empty set; the kernel writes at most the size given.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let result = libc::sched_getaffinity(thread, size_of::<libc::cpu_set_t>(), &raw mut set);
        if result == 0 { Ok(set) } else { Err(io::Error::last_os_error()) }
    }
}

fn set_affinity(set: &libc::cpu_set_t) -> io::Result<()> {
    // SAFETY: the set lives across the call.
    let result = unsafe {
        libc::sched_setaffinity(CALLING_THREAD, size_of::<libc::cpu_set_t>(), &raw const *set)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Writes cores as `0-3,8`.
fn core_list(cores: &[usize]) -> String {
    let mut list = String::new();
    for run in cores.chunk_by(|&one, &next| next == one + 1) {
        let comma = if list.is_empty() { "" } else { "," };
        let (first, last) = (run[0], run[run.len() - 1]);
        // Writing to a string cannot fail.
        let _ = if first == last {
            write!(list, "{comma}{first}")
        } else {
            write!(list, "{comma}{first}-{last}")
        };
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_stays_on_its_core() {
        let all = allowed_cores().unwrap();
        let core = *all.last().unwrap();
        let unpinned = std::thread::spawn(move || {
            pin_to_core(core).unwrap();
            assert_eq!(allowed_cores().unwrap(), [core]);
            std::thread::spawn(|| {
                assert_eq!(allowed_cores().unwrap().len(), 1, "inherited");
                unpin().unwrap();
                allowed_cores().unwrap()
            })
            .join()
            .unwrap()
        })
        .join()
        .unwrap();
        assert_eq!(unpinned, all);
    }

    #[test]
    fn an_impossible_core_is_named_with_the_possible_ones() {
        let error = pin_to_core(5000).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let allowed = core_list(&allowed_cores().unwrap());
        assert_eq!(
            error.to_string(),
            format!("core 5000 cannot be used: this process may use {allowed}")
        );
        assert_eq!(core_list(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }
}
