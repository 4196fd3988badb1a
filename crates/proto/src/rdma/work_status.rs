//! Outcomes of work requests, and what each means for a queue and its commands.

use std::fmt;

use crate::nvme::Status;

/// The status of a work completion, as verbs number it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkStatus(pub u32);

/// Who or what made a work request fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Nothing of its own: the queue pair had ended before.
    Flushed,
    /// The peer does not answer.
    PeerLost,
    /// The peer has no receives.
    PeerNotReady,
    /// The peer refuses the request: a key, a range, a message longer than its receive.
    PeerRefused,
    /// The peer or a device failed.
    PeerFailed,
    /// This end has asked for what it may not.
    Local,
}

macro_rules! work_statuses {
    ($( $name:ident = $value:literal, $cause:expr, $text:literal; )*) => {
        impl WorkStatus {
            $( #[doc = $text] pub const $name: Self = Self($value); )*

            /// In words.
            #[must_use]
            pub fn text(self) -> &'static str {
                match self.0 { $( $value => $text, )* _ => "unknown work completion status" }
            }

            /// Why, of a failure.
            #[must_use]
            pub fn cause(self) -> Option<Cause> {
                match self.0 { $( $value => $cause, )* _ => Some(Cause::Local) }
            }
        }
    };
}

work_statuses! {
    SUCCESS = 0, None, "success";
    LOC_LEN_ERR = 1, Some(Cause::Local), "local length error";
    LOC_QP_OP_ERR = 2, Some(Cause::Local), "local queue pair operation error";
    LOC_PROT_ERR = 4, Some(Cause::Local), "local protection error";
    WR_FLUSH_ERR = 5, Some(Cause::Flushed), "flushed";
    MW_BIND_ERR = 6, Some(Cause::Local), "memory window bind error";
    BAD_RESP_ERR = 7, Some(Cause::PeerFailed), "bad response";
    LOC_ACCESS_ERR = 8, Some(Cause::Local), "local access error";
    REM_INV_REQ_ERR = 9, Some(Cause::PeerRefused), "remote invalid request";
    REM_ACCESS_ERR = 10, Some(Cause::PeerRefused), "remote access error";
    REM_OP_ERR = 11, Some(Cause::PeerFailed), "remote operation error";
    RETRY_EXC_ERR = 12, Some(Cause::PeerLost), "retries exceeded";
    RNR_RETRY_EXC_ERR = 13, Some(Cause::PeerNotReady), "receiver-not-ready retries exceeded";
    REM_ABORT_ERR = 16, Some(Cause::PeerFailed), "remote aborted";
    FATAL_ERR = 19, Some(Cause::PeerFailed), "fatal error of the device";
    RESP_TIMEOUT_ERR = 20, Some(Cause::PeerLost), "response timed out";
    GENERAL_ERR = 21, Some(Cause::Local), "general error";
}

impl WorkStatus {
    /// Whether the work was done.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::SUCCESS
    }

    /// What the commands of a host's queue end with when the queue pair is lost: they may be sent again on another path.
    #[must_use]
    pub fn status_of_outstanding() -> Status {
        Status::HOST_PATH_ERROR
    }
}

impl fmt::Display for WorkStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (work completion status {})", self.text(), self.0)
    }
}
