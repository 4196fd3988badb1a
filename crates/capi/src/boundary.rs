//! What every entry has in common: no panic leaves the library, and every pointer is checked before its use.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::status::{Failure, RACELINE_INTERNAL, report};

/// The most bytes of a text that the library takes from a caller, without the 0 at the text's end.
const MAX_TEXT_BYTES: usize = 4096;

/// Runs the body of an entry. A failure becomes its code; a panic ends here and becomes `RACELINE_INTERNAL`.
#[inline(always)]
pub(crate) fn guard(body: impl FnOnce() -> Result<i32, Failure>) -> i32 {
    // What the body was changing when it panicked is not used again: `Exclusive` marks its handle as broken.
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

/// Refuses a pointer that is null, and one that is not aligned for a `T`.
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

/// A structure of the caller's that the library reads.
///
/// # Safety
/// `pointer` is null, not aligned, or valid for reads while the structure is borrowed.
pub(crate) unsafe fn read<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    check(pointer, name)?;
    // SAFETY: not null, aligned, and valid as the caller promises.
    Ok(unsafe { &*pointer })
}

/// Writes a result to where the caller wants it.
///
/// # Safety
/// `pointer` is null, not aligned, or valid for writes of a `T`.
pub(crate) unsafe fn write<T>(pointer: *mut T, name: &str, value: T) -> Result<(), Failure> {
    check(pointer, name)?;
    // SAFETY: not null, aligned, and valid as the caller promises.
    unsafe { pointer.write(value) };
    Ok(())
}

/// A text of the caller's; `None` for null.
///
/// # Safety
/// `pointer` is null, or its text ends with a 0 byte and is valid for reads while the text is borrowed.
pub(crate) unsafe fn text<'a>(
    pointer: *const c_char,
    name: &str,
) -> Result<Option<&'a str>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and ended by a 0 byte, as the caller promises.
    let bytes = unsafe { CStr::from_ptr(pointer) }.to_bytes();
    if bytes.len() > MAX_TEXT_BYTES {
        return Err(Failure::invalid(format!("{name} has more than {MAX_TEXT_BYTES} bytes")));
    }
    let text = std::str::from_utf8(bytes);
    text.map(Some).map_err(|_| Failure::invalid(format!("{name} is not UTF-8")))
}
