//! Handles: each points at a header, which outlives the value that the header names.
//!
//! The library never frees a header or uses it again. So a call on a closed handle is always recognised,
//! also when other handles were opened since. The cost is one header per handle that was ever opened.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use crate::boundary::check;
use crate::status::{Failure, RACELINE_BUSY, RACELINE_CLOSED, RACELINE_INTERNAL};

const OPEN: u32 = 1;
const IN_USE: u32 = 2;
const CLOSED: u32 = 3;
/// A call has panicked: the handle can only be closed.
const BROKEN: u32 = 4;

/// What a type of values tells about itself, so that a handle can name such a value.
pub(crate) trait Named {
    /// The word for the value in messages.
    const NAME: &'static str;
    /// The first bytes of a header of this type.
    const MAGIC: u64;
}

/// The header of a value that one thread at a time uses.
#[repr(C)]
pub(crate) struct Exclusive<T> {
    magic: u64,
    state: AtomicU32,
    value: UnsafeCell<Option<Box<T>>>,
}

// SAFETY: the value is reached only by the thread that has put `IN_USE` into `state`; between two
// uses it goes from thread to thread, which `Send` allows.
unsafe impl<T: Send> Sync for Exclusive<T> {}

impl<T: Named + Send> Exclusive<T> {
    /// A handle to a value.
    pub(crate) fn open(value: T) -> *mut Self {
        keep(Box::new(Self {
            magic: T::MAGIC,
            state: AtomicU32::new(OPEN),
            value: UnsafeCell::new(Some(Box::new(value))),
        }))
    }

    /// Runs `body` on the value of a handle.
    ///
    /// # Safety
    /// The handle is null, not aligned, or valid for reads of a header. A pointer to anything else is refused
    /// if its first bytes are not [`Named::MAGIC`].
    #[inline(always)]
    pub(crate) unsafe fn with<R>(
        handle: *const Self,
        body: impl FnOnce(&mut T) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        // SAFETY: as the caller promises.
        let guard = unsafe { Self::enter(handle) }?;
        // SAFETY: `state` says that this thread alone has it.
        let value = unsafe { &mut *guard.header.value.get() };
        match value {
            Some(value) => guard.leave(OPEN, body(value)),
            None => Err(closed(T::NAME)),
        }
    }

    /// Takes the value out: the handle is closed from now on.
    ///
    /// # Safety
    /// As [`Self::with`].
    pub(crate) unsafe fn close(handle: *const Self) -> Result<Box<T>, Failure> {
        // SAFETY: as the caller promises.
        let guard = unsafe { Self::enter_with(handle, true) }?;
        // SAFETY: `state` says that this thread alone has it.
        let value = unsafe { &mut *guard.header.value.get() }.take();
        guard.leave(CLOSED, value.ok_or_else(|| closed(T::NAME)))
    }

    #[inline(always)]
    unsafe fn enter<'a>(handle: *const Self) -> Result<Guard<'a, T>, Failure> {
        // SAFETY: as the caller promises.
        unsafe { Self::enter_with(handle, false) }
    }

    #[inline(always)]
    unsafe fn enter_with<'a>(
        handle: *const Self,
        broken_too: bool,
    ) -> Result<Guard<'a, T>, Failure> {
        check(handle, T::NAME)?;
        // SAFETY: valid, as the caller promises; headers are never freed.
        let header = unsafe { &*handle };
        if header.magic != T::MAGIC {
            return Err(Failure::invalid(format!("{} is no such handle", T::NAME)));
        }
        let take = |state: u32| {
            header.state.compare_exchange(state, IN_USE, Ordering::Acquire, Ordering::Relaxed)
        };
        match take(OPEN) {
            Ok(_) => Ok(Guard { header, after: BROKEN }),
            Err(CLOSED) => Err(closed(T::NAME)),
            Err(BROKEN) if broken_too && take(BROKEN).is_ok() => {
                Ok(Guard { header, after: BROKEN })
            }
            Err(BROKEN) => Err(Failure {
                code: RACELINE_INTERNAL,
                text: format!("a fault of the library has broken {}: close it", T::NAME),
            }),
            Err(_) => Err(Failure {
                code: RACELINE_BUSY,
                text: format!("another thread uses {}: one thread at a time", T::NAME),
            }),
        }
    }
}

/// The header of a value that several threads use at a time.
#[repr(C)]
pub(crate) struct Shared<T> {
    magic: u64,
    value: RwLock<Option<T>>,
}

impl<T: Named + Clone> Shared<T> {
    /// A handle to a value.
    pub(crate) fn open(value: T) -> *mut Self {
        keep(Box::new(Self { magic: T::MAGIC, value: RwLock::new(Some(value)) }))
    }

    /// A clone of the value of a handle.
    ///
    /// # Safety
    /// As [`Exclusive::with`].
    pub(crate) unsafe fn get(handle: *const Self) -> Result<T, Failure> {
        // SAFETY: as the caller promises.
        let header = unsafe { Self::header(handle) }?;
        let value = header.value.read().unwrap_or_else(PoisonError::into_inner);
        value.clone().ok_or_else(|| closed(T::NAME))
    }

    /// Takes the value out: the handle is closed from now on.
    ///
    /// # Safety
    /// As [`Exclusive::with`].
    pub(crate) unsafe fn close(handle: *const Self) -> Result<T, Failure> {
        // SAFETY: as the caller promises.
        let header = unsafe { Self::header(handle) }?;
        let value = header.value.write().unwrap_or_else(PoisonError::into_inner).take();
        value.ok_or_else(|| closed(T::NAME))
    }

    unsafe fn header<'a>(handle: *const Self) -> Result<&'a Self, Failure> {
        check(handle, T::NAME)?;
        // SAFETY: valid, as the caller promises; headers are never freed.
        let header = unsafe { &*handle };
        if header.magic == T::MAGIC {
            Ok(header)
        } else {
            Err(Failure::invalid(format!("{} is no such handle", T::NAME)))
        }
    }
}

/// Gives a header to the caller for ever. A list keeps its address, so that leak checkers find a pointer to it.
fn keep<T>(header: Box<T>) -> *mut T {
    static ALL: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let pointer = Box::into_raw(header);
    ALL.lock().unwrap_or_else(PoisonError::into_inner).push(pointer.expose_provenance());
    pointer
}

/// The use of a header by one thread. Its end puts `after` into the state: `BROKEN` unless [`Guard::leave`] was
/// called.
struct Guard<'a, T> {
    header: &'a Exclusive<T>,
    after: u32,
}

impl<T> Guard<'_, T> {
    fn leave<R>(mut self, after: u32, result: R) -> R {
        self.after = after;
        result
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.header.state.store(self.after, Ordering::Release);
    }
}

fn closed(name: &str) -> Failure {
    Failure { code: RACELINE_CLOSED, text: format!("{name} was closed") }
}
