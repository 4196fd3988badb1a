//! Status field of a completion: type, code, more, do not retry (Base 2.0, 3.3.3.2.1).

use std::fmt;

/// Status without the phase tag: SC 7:0, SCT 10:8, CRD 12:11, M 13, DNR 14.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Status(u16);

macro_rules! statuses {
    ($( $name:ident = $sct:literal, $sc:literal, $text:literal; )*) => {
        impl Status {
            $(
                #[doc = $text]
                pub const $name: Self = Self::new($sct, $sc);
            )*

            /// The specification's name for it.
            #[must_use]
            pub fn text(self) -> &'static str {
                match (self.sct(), self.sc()) {
                    $( ($sct, $sc) => $text, )*
                    _ => "Unknown Status",
                }
            }
        }
    };
}

statuses! {
    SUCCESS = 0, 0x00, "Successful Completion";
    INVALID_OPCODE = 0, 0x01, "Invalid Command Opcode";
    INVALID_FIELD = 0, 0x02, "Invalid Field in Command";
    CID_CONFLICT = 0, 0x03, "Command ID Conflict";
    DATA_TRANSFER_ERROR = 0, 0x04, "Data Transfer Error";
    INTERNAL = 0, 0x06, "Internal Error";
    ABORT_REQUESTED = 0, 0x07, "Command Abort Requested";
    ABORTED_SQ_DELETION = 0, 0x08, "Command Aborted due to SQ Deletion";
    ABORTED_FAILED_FUSED = 0, 0x09, "Command Aborted due to Failed Fused Command";
    ABORTED_MISSING_FUSED = 0, 0x0a, "Command Aborted due to Missing Fused Command";
    INVALID_NAMESPACE = 0, 0x0b, "Invalid Namespace or Format";
    COMMAND_SEQUENCE_ERROR = 0, 0x0c, "Command Sequence Error";
    INVALID_SGL_SEGMENT = 0, 0x0d, "Invalid SGL Segment Descriptor";
    INVALID_SGL_COUNT = 0, 0x0e, "Invalid Number of SGL Descriptors";
    DATA_SGL_LENGTH_INVALID = 0, 0x0f, "Data SGL Length Invalid";
    SGL_DESCRIPTOR_TYPE_INVALID = 0, 0x11, "SGL Descriptor Type Invalid";
    ATOMIC_WRITE_UNIT_EXCEEDED = 0, 0x14, "Atomic Write Unit Exceeded";
    INVALID_SGL_OFFSET = 0, 0x16, "SGL Offset Invalid";
    HOST_ID_INCONSISTENT = 0, 0x18, "Host Identifier Inconsistent Format";
    KEEP_ALIVE_EXPIRED = 0, 0x19, "Keep Alive Timer Expired";
    KEEP_ALIVE_INVALID = 0, 0x1a, "Keep Alive Timeout Invalid";
    ABORTED_BY_PREEMPT = 0, 0x1b, "Command Aborted due to Preempt and Abort";
    NAMESPACE_WRITE_PROTECTED = 0, 0x20, "Namespace is Write Protected";
    COMMAND_INTERRUPTED = 0, 0x21, "Command Interrupted";
    TRANSIENT_TRANSPORT_ERROR = 0, 0x22, "Transient Transport Error";
    LBA_OUT_OF_RANGE = 0, 0x80, "LBA Out of Range";
    CAPACITY_EXCEEDED = 0, 0x81, "Capacity Exceeded";
    NAMESPACE_NOT_READY = 0, 0x82, "Namespace Not Ready";
    RESERVATION_CONFLICT = 0, 0x83, "Reservation Conflict";
    FORMAT_IN_PROGRESS = 0, 0x84, "Format In Progress";
    INVALID_QUEUE_ID = 1, 0x01, "Invalid Queue Identifier";
    INVALID_QUEUE_SIZE = 1, 0x02, "Invalid Queue Size";
    ABORT_LIMIT_EXCEEDED = 1, 0x03, "Abort Command Limit Exceeded";
    AER_LIMIT_EXCEEDED = 1, 0x05, "Asynchronous Event Request Limit Exceeded";
    INVALID_LOG_PAGE = 1, 0x09, "Invalid Log Page";
    INVALID_FORMAT = 1, 0x0a, "Invalid Format";
    FEATURE_NOT_SAVEABLE = 1, 0x0d, "Feature Identifier Not Saveable";
    FEATURE_NOT_CHANGEABLE = 1, 0x0e, "Feature Not Changeable";
    FEATURE_NOT_NAMESPACE_SPECIFIC = 1, 0x0f, "Feature Not Namespace Specific";
    NAMESPACE_INSUFFICIENT_CAPACITY = 1, 0x15, "Namespace Insufficient Capacity";
    NAMESPACE_ID_UNAVAILABLE = 1, 0x16, "Namespace Identifier Unavailable";
    NAMESPACE_ALREADY_ATTACHED = 1, 0x18, "Namespace Already Attached";
    NAMESPACE_IS_PRIVATE = 1, 0x19, "Namespace Is Private";
    NAMESPACE_NOT_ATTACHED = 1, 0x1a, "Namespace Not Attached";
    THIN_PROVISIONING_NOT_SUPPORTED = 1, 0x1b, "Thin Provisioning Not Supported";
    CONTROLLER_LIST_INVALID = 1, 0x1c, "Controller List Invalid";
    INVALID_CONTROLLER_ID = 1, 0x1f, "Invalid Controller Identifier";
    COMMAND_SETS_REJECTED = 1, 0x2b, "I/O Command Set Combination Rejected";
    INVALID_DISCOVERY_INFORMATION = 1, 0x2f, "Invalid Discovery Information";
    INSUFFICIENT_DISCOVERY_RESOURCES = 1, 0x32, "Insufficient Discovery Resources";
    CCR_IN_PROGRESS = 1, 0x3f, "Controller Reset In Progress";
    CCR_LOG_FULL = 1, 0x40, "Cross-Controller Reset Log Page Full";
    CCR_LIMIT_EXCEEDED = 1, 0x41, "Cross-Controller Reset Limit Exceeded";
    CONNECT_INCOMPATIBLE_FORMAT = 1, 0x80, "Connect Incompatible Format";
    CONNECT_CONTROLLER_BUSY = 1, 0x81, "Connect Controller Busy";
    CONNECT_INVALID_PARAMETERS = 1, 0x82, "Connect Invalid Parameters";
    CONNECT_RESTART_DISCOVERY = 1, 0x83, "Connect Restart Discovery, or Command Size Limit Exceeded";
    CONNECT_INVALID_HOST = 1, 0x84, "Connect Invalid Host";
    INCOMPATIBLE_NAMESPACE = 1, 0x85, "Incompatible Namespace or Format";
    FAST_COPY_NOT_POSSIBLE = 1, 0x86, "Fast Copy Not Possible";
    OVERLAPPING_IO_RANGE = 1, 0x87, "Overlapping I/O Range";
    DISCOVERY_RESTART = 1, 0x90, "Discovery Restart";
    AUTHENTICATION_REQUIRED = 1, 0x91, "Authentication Required";
    WRITE_FAULT = 2, 0x80, "Write Fault";
    UNRECOVERED_READ_ERROR = 2, 0x81, "Unrecovered Read Error";
    COMPARE_FAILURE = 2, 0x85, "Compare Failure";
    ACCESS_DENIED = 2, 0x86, "Access Denied";
    INTERNAL_PATH_ERROR = 3, 0x00, "Internal Path Error";
    ANA_PERSISTENT_LOSS = 3, 0x01, "Asymmetric Access Persistent Loss";
    ANA_INACCESSIBLE = 3, 0x02, "Asymmetric Access Inaccessible";
    ANA_TRANSITION = 3, 0x03, "Asymmetric Access Transition";
    CONTROLLER_PATH_ERROR = 3, 0x60, "Controller Pathing Error";
    HOST_PATH_ERROR = 3, 0x70, "Host Pathing Error";
    HOST_ABORTED = 3, 0x71, "Command Aborted By Host";
}

impl Status {
    /// Command Size Limit Exceeded: with I/O commands the code means this, with Connect
    /// [`Self::CONNECT_RESTART_DISCOVERY`].
    pub const COMMAND_SIZE_LIMIT_EXCEEDED: Self = Self::new(1, 0x83);

    /// From status code type and status code.
    #[must_use]
    pub const fn new(sct: u8, sc: u8) -> Self {
        Self(((sct & 7) as u16) << 8 | sc as u16)
    }

    /// The same with Do Not Retry set.
    #[must_use]
    pub const fn dnr(self) -> Self {
        Self(self.0 | 1 << 14)
    }

    /// Status code type.
    #[must_use]
    pub const fn sct(self) -> u8 {
        self.0.to_le_bytes()[1] & 7
    }

    /// Status code.
    #[must_use]
    pub const fn sc(self) -> u8 {
        self.0.to_le_bytes()[0]
    }

    /// Whether a retry is pointless.
    #[must_use]
    pub const fn is_dnr(self) -> bool {
        self.0 & 1 << 14 != 0
    }

    /// Whether type and code are 0.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 & 0x7ff == 0
    }

    /// Whether type and code are equal, whatever CRD, M and DNR say.
    #[must_use]
    pub const fn same_code(self, other: Self) -> bool {
        self.0 & 0x7ff == other.0 & 0x7ff
    }

    /// As in the upper 15 bits of a completion's last word (phase tag in bit 0).
    #[must_use]
    pub const fn to_wire(self) -> u16 {
        self.0 << 1
    }

    /// From a completion's last word, phase tag dropped.
    #[must_use]
    pub const fn from_wire(word: u16) -> Self {
        Self(word >> 1)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SCT {:x}h SC {:02x}h", self.text(), self.sct(), self.sc())?;
        f.write_str(if self.is_dnr() { ", DNR)" } else { ")" })
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
