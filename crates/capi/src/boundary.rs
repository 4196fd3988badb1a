//! What every entry has in common: no panic goes out, and no pointer comes in unchecked.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::status::{Failure, RACELINE_INTERNAL, report};

/// The longest text that is read from a caller.
const MAX_TEXT_BYTES: usize = 4096;

/// Runs the body of an entry: a failure becomes its code, and a panic does not go on.
#[inline(always)]
pub(crate) fn guard(body: impl FnOnce() -> Result<i32, Failure>) -> i32 {
    // After a panic, what the body was about to change is not used again: handles are poisoned.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => report(failure),
        Err(_) => report(Failure {
            code: RACELINE_INTERNAL,
            text: "the library has a fault: please report what it printed; close the handle"
                .to_owned(),
        }),
    }
}

/// Refuses null and what is not aligned for a `T`.
#[inline(always)]
pub(crate) fn check<T>(pointer: *const T, name: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::invalid(format!("{name} is null")));
    }
    if !pointer.is_aligned() {
        return Err(Failure::invalid(format!(
            "{name} is not aligned: {} bytes are needed",
            align_of::<T>()
        )));
    }
    Ok(())
}

/// A structure of the caller's, to be read.
///
/// # Safety
/// Unless null or not aligned, it is valid for reads while it is borrowed.
pub(crate) unsafe fn read<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    check(pointer, name)?;
    // SAFETY: not null, aligned, and valid as the caller promises.
    Ok(unsafe { &*pointer })
}

/// Where a result goes.
///
/// # Safety
/// Unless null or not aligned, it is valid for writes of a `T`.
pub(crate) unsafe fn write<T>(pointer: *mut T, name: &str, value: T) -> Result<(), Failure> {
    check(pointer, name)?;
    // SAFETY: not null, aligned, and valid as the caller promises.
    unsafe { pointer.write(value) };
    Ok(())
}

/// A text of the caller's; `None` for null.
///
/// # Safety
/// Unless null, it ends with a 0 byte and is valid for reads while it is borrowed.
pub(crate) unsafe fn text<'a>(
    pointer: *const c_char,
    name: &str,
) -> Result<Option<&'a str>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and ends, as the caller promises.
    let bytes = unsafe { CStr::from_ptr(pointer) }.to_bytes();
    if bytes.len() > MAX_TEXT_BYTES {
        return Err(Failure::invalid(format!("{name} has more than {MAX_TEXT_BYTES} bytes")));
    }
    let text = std::str::from_utf8(bytes);
    text.map(Some).map_err(|_| Failure::invalid(format!("{name} is not UTF-8")))
}
