//! What calls give: codes for programs, and texts for people.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

use raceline_host::caller::Refusal;
use raceline_host::{CommandError, HostError};

/// The call, or the operation of a completion, has succeeded.
pub const RACELINE_OK: i32 = 0;
/// The call cannot use an argument: raceline_error_text() names it.
pub const RACELINE_INVALID: i32 = -1;
/// The queues have no room for the operation: take completions, then submit it again.
pub const RACELINE_FULL: i32 = -2;
/// The controller was given up or disconnected, or the handle was closed. No completion will come any
/// more.
pub const RACELINE_CLOSED: i32 = -3;
/// The controller cannot be reached: its name has no address, or the connection failed or timed out.
pub const RACELINE_CANNOT_CONNECT: i32 = -4;
/// The controller was reached, but it refuses the host, or the library cannot use it.
pub const RACELINE_REFUSED: i32 = -5;
/// The controller completed the command with an error: `status` of the completion says which.
pub const RACELINE_COMMAND_FAILED: i32 = -6;
/// The connection was lost when the command may already have been sent. The controller may have
/// executed the command, or may still do so. The library does not send it again.
pub const RACELINE_UNKNOWN_FATE: i32 = -7;
/// The connection was lost before the command had an effect. The library does not send the command
/// again.
pub const RACELINE_NOT_SENT: i32 = -8;
/// The command was not completed within command_timeout_ms.
pub const RACELINE_TIMEOUT: i32 = -9;
/// The data of a read had a wrong data digest each time, also after the library had sent the command
/// again, up to 5 times.
pub const RACELINE_DIGEST: i32 = -10;
/// Another thread is in a call on the same queues; this call has done nothing.
pub const RACELINE_BUSY: i32 = -11;
/// The operating system has refused memory, a file descriptor, or an operation on one.
pub const RACELINE_NO_MEMORY: i32 = -12;
/// The library has a fault. If the call was on queues, only raceline_queues_close() still works on them.
pub const RACELINE_INTERNAL: i32 = -13;

/// A code, and the text that explains it to people.
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
            HostError::Tcp(..) | HostError::Rdma(..) | HostError::NoAnswer(..) => {
                RACELINE_CANNOT_CONNECT
            }
            HostError::ConnectRefused { .. }
            | HostError::AuthenticationRequired(_)
            | HostError::SecureChannelRequired(_)
            | HostError::Authentication(..)
            | HostError::AuthenticationBroken(..)
            | HostError::BringUp(..)
            | HostError::Scan(_)
            | HostError::OtherProtocol(..)
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
        CommandError::NotSent | CommandError::Disconnected | CommandError::NoPath => {
            RACELINE_NOT_SENT
        }
        CommandError::Digest => RACELINE_DIGEST,
        CommandError::Timeout => RACELINE_TIMEOUT,
    }
}

thread_local! {
    /// The text of the last call that failed on this thread.
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps the text of a failure for [`raceline_error_text`], and gives its code.
pub(crate) fn report(failure: Failure) -> i32 {
    let text = CString::new(failure.text.replace('\0', "?")).unwrap_or_default();
    // A thread that is about to end may have no `LAST` any more: then the caller gets the code alone.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
    failure.code
}

/// Says what was wrong with the last call that failed on this thread, and what to do about it.
///
/// The text is empty when no call has failed on this thread. The library owns the text: it is valid
/// until the next call that fails on this thread, or until the thread ends. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn raceline_error_text() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Says what a code means. The library owns the text, which is valid for as long as the library is
/// loaded. Never NULL: a code that the library does not know is called unknown.
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

/// Gives the library's version: major << 16 | minor << 8 | patch.
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
