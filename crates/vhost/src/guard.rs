//! A guard against SIGBUS: a file that another process truncates must not end this one.
//!
//! Memory of a front end is a mapped file. The front end can truncate that file, and then an access raises
//! SIGBUS. The handler here replaces the mapping by memory of this process and notes that it was lost. The
//! access then succeeds, and whoever uses the mapping sees by [`Guard::is_whole`] that the data mean nothing.
#![allow(unsafe_code, reason = "a signal handler, and mmap(2) in it")]

use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::{io, ptr};

/// Mappings at a time: those of one front end, twice, while its memory is exchanged.
const MAX_GUARDS: usize = 256;

/// The place of a mapping. `end` is 0 while it has none.
struct Place {
    taken: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
    lost: AtomicBool,
}

static PLACES: [Place; MAX_GUARDS] = [const {
    Place {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
    }
}; MAX_GUARDS];

/// What was installed before, for faults that are not of a guarded mapping.
static EARLIER: OnceLock<libc::sigaction> = OnceLock::new();

/// A mapping that is guarded. It is dropped before the mapping is.
#[derive(Debug)]
pub(crate) struct Guard(usize);

impl Guard {
    /// Guards `len` bytes from `start`, a mapping of whole pages.
    ///
    /// # Errors
    /// When there are too many guards, or the handler cannot be installed.
    pub(crate) fn new(start: usize, len: usize) -> io::Result<Self> {
        install()?;
        let end = start.checked_add(len).ok_or(io::ErrorKind::InvalidInput)?;
        for (index, place) in PLACES.iter().enumerate() {
            if place.taken.swap(true, Ordering::AcqRel) {
                continue;
            }
            place.lost.store(false, Ordering::Relaxed);
            place.start.store(start, Ordering::Relaxed);
            place.end.store(end, Ordering::Release);
            return Ok(Self(index));
        }
        Err(io::Error::other(format!("more than {MAX_GUARDS} memory regions are shared")))
    }

    /// False once an access has met a part of the file that is gone.
    pub(crate) fn is_whole(&self) -> bool {
        !PLACES[self.0].lost.load(Ordering::Acquire)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let place = &PLACES[self.0];
        place.end.store(0, Ordering::Release);
        place.taken.store(false, Ordering::Release);
    }
}

/// Installs the handler once for this process.
fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        let mut earlier = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the old action is written to memory of its type, and is valid also if it is all zeroes.
        let asked = unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), earlier.as_mut_ptr()) };
        if asked != 0 {
            return Err(last_error());
        }
        // SAFETY: it was zeroed, and has been written.
        EARLIER.get_or_init(|| unsafe { earlier.assume_init() });
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_fault;
        // SAFETY: all zeroes is a valid action, whose fields are set below.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: the handler has the signature that SA_SIGINFO asks for, and makes only calls that may be made
        // in a handler.
        match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(last_error()),
        }
    });
    (*installed).map_err(io::Error::from_raw_os_error)
}

fn last_error() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

extern "C" fn on_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel gives a valid siginfo to a handler with SA_SIGINFO; for SIGBUS it has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    for place in &PLACES {
        let end = place.end.load(Ordering::Acquire);
        let start = place.start.load(Ordering::Relaxed);
        if end == 0 || address < start || address >= end {
            continue;
        }
        place.lost.store(true, Ordering::Release);
        // SAFETY: the range is a mapping of this process that its guard's owner keeps mapped, and that is accessed
        // only through volatile accesses; it stays mapped, readable and writable.
        let replaced = unsafe {
            libc::mmap(
                start as *mut libc::c_void,
                end - start,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if replaced != libc::MAP_FAILED {
            return;
        }
    }
    // The access is repeated after this, and meets what was installed before.
    if let Some(earlier) = EARLIER.get() {
        // SAFETY: it is the action that sigaction(2) gave.
        unsafe { libc::sigaction(signal, earlier, ptr::null_mut()) };
    }
}
