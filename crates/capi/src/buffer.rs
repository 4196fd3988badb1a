//! Page-aligned memory for callers that want some.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{LazyLock, Mutex, PoisonError};

use raceline_reactor::{HugePages, PageBuf};

use crate::boundary::guard;
use crate::status::{Failure, RACELINE_NO_MEMORY, RACELINE_OK, report};

/// All buffers by their address; taking one and giving it back are no part of the I/O path.
static BUFFERS: LazyLock<Mutex<HashMap<usize, PageBuf>>> = LazyLock::new(Mutex::default);

/// Memory of `bytes` zeroes that begins at a page, in huge pages where the kernel has some. Data move
/// without a copy from and to any memory; this is what direct I/O would want, too. NULL when there is
/// no memory.
#[unsafe(no_mangle)]
pub extern "C" fn raceline_buffer_alloc(bytes: usize) -> *mut c_void {
    let mut start: *mut c_void = null_mut();
    guard(|| {
        let failure = |why: String| Failure {
            code: RACELINE_NO_MEMORY,
            text: format!("no memory for a buffer of {bytes} bytes: {why}"),
        };
        let pages = PageBuf::new(bytes, HugePages::Transparent);
        let mut pages = pages.map_err(|error| failure(error.to_string()))?;
        start = pages.as_mut_ptr().cast();
        let mut buffers = BUFFERS.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.insert(start.addr(), pages);
        Ok(RACELINE_OK)
    });
    start
}

/// Gives memory of raceline_buffer_alloc() back. No operation may have it. NULL is nothing to give;
/// any other address is refused.
#[unsafe(no_mangle)]
pub extern "C" fn raceline_buffer_free(buffer: *mut c_void) -> i32 {
    if buffer.is_null() {
        return RACELINE_OK;
    }
    let found = BUFFERS.lock().unwrap_or_else(PoisonError::into_inner).remove(&buffer.addr());
    match found {
        Some(_) => RACELINE_OK,
        None => report(Failure::invalid("buffer is not one of raceline_buffer_alloc()")),
    }
}
