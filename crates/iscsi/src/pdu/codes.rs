//! Codes in PDUs that stand for something: reasons, functions, responses, stages, login status.

use std::fmt;

/// Makes an enum of a one-byte code; bytes without a meaning are none.
macro_rules! codes {
    (
        $(#[$doc:meta])*
        $name:ident { $( $variant:ident = $value:literal, $text:literal; )* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name {
            $( #[doc = concat!("In words: ", $text, ".")] $variant = $value, )*
        }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$( Self::$variant, )*];

            /// From the wire; a byte that means nothing is none.
            #[must_use]
            pub const fn from_wire(byte: u8) -> Option<Self> {
                Some(match byte { $( $value => Self::$variant, )* _ => return None })
            }

            /// As on the wire.
            #[must_use]
            pub const fn to_wire(self) -> u8 {
                self as u8
            }

            /// In words.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $( Self::$variant => $text, )* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.text())
            }
        }
    };
}

codes! {
    /// Why a PDU is rejected (RFC 7143, 11.17.1).
    RejectReason {
        DataDigest = 0x02, "the data digest is wrong";
        Snack = 0x03, "SNACK is not supported";
        Protocol = 0x04, "protocol error";
        Unsupported = 0x05, "the command is not supported";
        ImmediateCommand = 0x06, "too many immediate commands";
        TaskInProgress = 0x07, "the task is in progress";
        InvalidDataAck = 0x08, "the data acknowledgement is invalid";
        InvalidField = 0x09, "a field of the PDU is invalid";
        LongOperation = 0x0a, "the operation needs a target transfer tag";
        NegotiationReset = 0x0b, "the negotiation is reset";
        WaitingForLogout = 0x0c, "the target waits for a logout";
    }
}

codes! {
    /// What a task management request asks for (RFC 7143, 11.5.1; 9 to 12: RFC 7144, 4.1).
    TmfFunction {
        AbortTask = 1, "ABORT TASK";
        AbortTaskSet = 2, "ABORT TASK SET";
        ClearAca = 3, "CLEAR ACA";
        ClearTaskSet = 4, "CLEAR TASK SET";
        LogicalUnitReset = 5, "LOGICAL UNIT RESET";
        TargetWarmReset = 6, "TARGET WARM RESET";
        TargetColdReset = 7, "TARGET COLD RESET";
        TaskReassign = 8, "TASK REASSIGN";
        QueryTask = 9, "QUERY TASK";
        QueryTaskSet = 10, "QUERY TASK SET";
        NexusReset = 11, "I_T NEXUS RESET";
        QueryAsyncEvent = 12, "QUERY ASYNCHRONOUS EVENT";
    }
}

codes! {
    /// How a task management request ended (RFC 7143, 11.6.1; 7: RFC 7144, 4.2).
    TmfResponseCode {
        Complete = 0, "function complete";
        NoTask = 1, "the task does not exist";
        NoLun = 2, "the LUN does not exist";
        StillAllegiant = 3, "the task is still allegiant";
        ReassignUnsupported = 4, "task reassignment is not supported";
        Unsupported = 5, "the function is not supported";
        NotAuthorized = 6, "the function is not authorised";
        Succeeded = 7, "function succeeded";
        Rejected = 0xff, "function rejected";
    }
}

codes! {
    /// Why an initiator logs out (RFC 7143, 11.14.1).
    LogoutReason {
        CloseSession = 0, "close the session";
        CloseConnection = 1, "close the connection";
        RemoveForRecovery = 2, "remove the connection for recovery";
    }
}

codes! {
    /// How a logout ended (RFC 7143, 11.15.1).
    LogoutResponseCode {
        Closed = 0, "closed";
        NoCid = 1, "the CID does not exist";
        RecoveryUnsupported = 2, "connection recovery is not supported";
        CleanupFailed = 3, "cleaning up failed";
    }
}

codes! {
    /// What an asynchronous message says (RFC 7143, 11.9.1; 5: RFC 7143, 4.2.3.6 and RFC 5048).
    AsyncEvent {
        ScsiEvent = 0, "a SCSI event with sense data";
        LogoutRequested = 1, "the target asks for a logout";
        DropConnection = 2, "the target will drop a connection";
        DropSession = 3, "the target will drop all connections";
        NegotiationRequested = 4, "the target asks for a negotiation";
        TasksTerminated = 5, "tasks of a logical unit were terminated";
        Vendor = 255, "a vendor's event";
    }
}

codes! {
    /// Stage of a login: CSG and NSG (RFC 7143, 11.12.3).
    Stage {
        Security = 0, "security negotiation";
        Operational = 1, "operational negotiation";
        FullFeature = 3, "full feature phase";
    }
}

impl Stage {
    /// From the two lowest bits of a byte; 2 is reserved.
    #[must_use]
    pub const fn from_bits(byte: u8) -> Option<Self> {
        Self::from_wire(byte & 3)
    }
}

/// Status-Class and Status-Detail of a Login Response (RFC 7143, 11.13.5), class in the upper byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct LoginStatus(pub u16);

macro_rules! login_status {
    ($( $name:ident = $value:literal, $text:literal; )*) => {
        impl LoginStatus {
            $( #[doc = concat!("In words: ", $text, ".")] pub const $name: Self = Self($value); )*

            /// All that RFC 7143 names.
            pub const ALL: &[Self] = &[$( Self::$name, )*];

            /// In words.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self.0 { $( $value => $text, )* _ => "a login status that RFC 7143 does not name" }
            }
        }
    };
}

login_status! {
    SUCCESS = 0x0000, "success";
    MOVED_TEMPORARILY = 0x0101, "the target has moved temporarily";
    MOVED_PERMANENTLY = 0x0102, "the target has moved permanently";
    INITIATOR_ERROR = 0x0200, "initiator error";
    AUTHENTICATION_FAILED = 0x0201, "authentication failed";
    NOT_AUTHORIZED = 0x0202, "the initiator is not allowed to use the target";
    NOT_FOUND = 0x0203, "there is no such target";
    TARGET_REMOVED = 0x0204, "the target has been removed";
    UNSUPPORTED_VERSION = 0x0205, "the protocol version is not supported";
    TOO_MANY_CONNECTIONS = 0x0206, "the session has too many connections";
    MISSING_PARAMETER = 0x0207, "a parameter is missing";
    CANNOT_JOIN_SESSION = 0x0208, "the connection cannot join the session";
    SESSION_TYPE_UNSUPPORTED = 0x0209, "the session type is not supported";
    NO_SESSION = 0x020a, "there is no such session";
    INVALID_DURING_LOGIN = 0x020b, "the request is invalid during a login";
    TARGET_ERROR = 0x0300, "target error";
    SERVICE_UNAVAILABLE = 0x0301, "the target is unavailable";
    OUT_OF_RESOURCES = 0x0302, "the target is out of resources";
}

impl LoginStatus {
    /// Status-Class: 0 success, 1 redirection, 2 initiator error, 3 target error.
    #[must_use]
    pub const fn class(self) -> u8 {
        self.0.to_be_bytes()[0]
    }

    /// Status-Detail.
    #[must_use]
    pub const fn detail(self) -> u8 {
        self.0.to_be_bytes()[1]
    }

    /// Whether the login goes on.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.class() == 0
    }
}

impl fmt::Display for LoginStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (status {:04x}h)", self.text(), self.0)
    }
}
