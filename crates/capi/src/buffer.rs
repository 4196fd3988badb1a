//! Page-aligned memory that callers may take and give back.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{LazyLock, Mutex, PoisonError};

use raceline_reactor::{HugePages, PageBuf};

use crate::boundary::guard;
use crate::status::{Failure, RACELINE_NO_MEMORY, RACELINE_OK, report};

/// All buffers by their address. The lock is not on the I/O path: no operation takes a buffer or gives one back.
static BUFFERS: LazyLock<Mutex<HashMap<usize, PageBuf>>> = LazyLock::new(Mutex::default);

/// Allocates `bytes` bytes of zeroes that begin at a page, in huge pages where the kernel has some.
///
/// The caller owns the memory until it calls raceline_buffer_free(). Operations do not need such memory:
/// they move data to and from any memory without a copy. NULL means failure (RACELINE_NO_MEMORY):
/// raceline_error_text() says why.
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

/// Frees memory of raceline_buffer_alloc(), on any thread. No outstanding operation may use the memory.
///
/// For NULL the call does nothing and gives RACELINE_OK. For any address that raceline_buffer_alloc()
/// has not given, or that was freed, it gives RACELINE_INVALID.
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
