//! What calls give: codes, and texts for people.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

use raceline_host::caller::Refusal;
use raceline_host::{CommandError, HostError};

/// All is well.
pub const RACELINE_OK: i32 = 0;
/// An argument is not one that the call can use: the text names it.
pub const RACELINE_INVALID: i32 = -1;
/// The queue is full: take completions, then submit again.
pub const RACELINE_FULL: i32 = -2;
/// The controller was given up or disconnected, or the handle was closed: there is nothing to wait
/// for.
pub const RACELINE_CLOSED: i32 = -3;
/// The controller cannot be reached.
pub const RACELINE_CANNOT_CONNECT: i32 = -4;
/// The controller was reached, and refuses or cannot be used.
pub const RACELINE_REFUSED: i32 = -5;
/// The controller completed the command with an error: the completion has its status.
pub const RACELINE_COMMAND_FAILED: i32 = -6;
/// The connection was lost after the command may have been sent: it may have been executed.
pub const RACELINE_UNKNOWN_FATE: i32 = -7;
/// The connection was lost for good before the command had an effect.
pub const RACELINE_NOT_SENT: i32 = -8;
/// The command was not completed in time.
pub const RACELINE_TIMEOUT: i32 = -9;
/// Data arrived spoiled, again and again.
pub const RACELINE_DIGEST: i32 = -10;
/// Another thread is in a call with the same queues.
pub const RACELINE_BUSY: i32 = -11;
/// The operating system has no memory or descriptors left.
pub const RACELINE_NO_MEMORY: i32 = -12;
/// A fault of the library. The handle is of no use any more but to be closed.
pub const RACELINE_INTERNAL: i32 = -13;

/// A code, and a text that says more.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: i32,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self { code: RACELINE_INVALID, text: text.into() }
    }
}

impl From<HostError> for Failure {
    fn from(error: HostError) -> Self {
        let code = match &error {
            HostError::Tcp(..) | HostError::NoAnswer(..) => RACELINE_CANNOT_CONNECT,
            HostError::ConnectRefused { .. }
            | HostError::AuthenticationRequired(_)
            | HostError::BringUp(..)
            | HostError::Scan(_)
            | HostError::Protocol(..)
            | HostError::Terminated(..) => RACELINE_REFUSED,
            HostError::Invalid(_) => RACELINE_INVALID,
            HostError::Reactor(_) => RACELINE_NO_MEMORY,
            HostError::Command(failure) => code_of(failure.error),
            _ => RACELINE_CLOSED,
        };
        Self { code, text: error.to_string() }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal {
            Refusal::Full => RACELINE_FULL,
            Refusal::Closed => RACELINE_CLOSED,
            _ => RACELINE_INVALID,
        };
        Self { code, text: refusal.to_string() }
    }
}

/// The code of a failed command.
pub(crate) fn code_of(error: CommandError) -> i32 {
    match error {
        CommandError::Status(_) => RACELINE_COMMAND_FAILED,
        CommandError::UnknownFate => RACELINE_UNKNOWN_FATE,
        CommandError::NotSent | CommandError::Disconnected => RACELINE_NOT_SENT,
        CommandError::Digest => RACELINE_DIGEST,
        CommandError::Timeout => RACELINE_TIMEOUT,
    }
}

thread_local! {
    /// Of the last call that failed on this thread.
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps the text of a failure for [`raceline_error_text`], and gives its code.
pub(crate) fn report(failure: Failure) -> i32 {
    let text = CString::new(failure.text.replace('\0', "?")).unwrap_or_default();
    // A thread that is about to end has no place for it any more; the code is enough then.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
    failure.code
}

/// What was wrong with the last call that failed on this thread, and what to do about it; empty when
/// none has. Valid until the next call that fails on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn raceline_error_text() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// What a code means, in a few words. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn raceline_code_text(code: i32) -> *const c_char {
    let text: &CStr = match code {
        RACELINE_OK => c"success",
        RACELINE_INVALID => c"invalid argument",
        RACELINE_FULL => c"the queue is full",
        RACELINE_CLOSED => c"closed, or the controller was given up",
        RACELINE_CANNOT_CONNECT => c"the controller cannot be reached",
        RACELINE_REFUSED => c"the controller refuses or cannot be used",
        RACELINE_COMMAND_FAILED => c"the controller completed the command with an error",
        RACELINE_UNKNOWN_FATE => c"the connection was lost; the command may have been executed",
        RACELINE_NOT_SENT => c"the connection was lost before the command had an effect",
        RACELINE_TIMEOUT => c"no completion in time",
        RACELINE_DIGEST => c"data arrived spoiled",
        RACELINE_BUSY => c"another thread uses these queues",
        RACELINE_NO_MEMORY => c"no memory or no descriptors",
        RACELINE_INTERNAL => c"a fault of the library",
        _ => c"unknown code",
    };
    text.as_ptr()
}

/// The library's version, major << 16 | minor << 8 | patch.
#[unsafe(no_mangle)]
pub extern "C" fn raceline_version() -> u32 {
    let number = |text: &str| text.bytes().fold(0, |sum, b| sum * 10 + u32::from(b - b'0'));
    let [major, minor, patch] = [
        env!("CARGO_PKG_VERSION_MAJOR"),
        env!("CARGO_PKG_VERSION_MINOR"),
        env!("CARGO_PKG_VERSION_PATCH"),
    ];
    number(major) << 16 | number(minor) << 8 | number(patch)
}
