//! Command opcodes: admin, I/O (NVM command set) and Fabrics.

/// Admin commands (Base 2.0, figure 138).
pub mod admin {
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request.
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0c;
    /// Namespace Management.
    pub const NAMESPACE_MANAGEMENT: u8 = 0x0d;
    /// Namespace Attachment.
    pub const NAMESPACE_ATTACHMENT: u8 = 0x15;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
    /// Discovery Information Management (TP8010).
    pub const DISCOVERY_INFORMATION_MANAGEMENT: u8 = 0x21;
    /// Cross-Controller Reset (TP8028).
    pub const CROSS_CONTROLLER_RESET: u8 = 0x38;
    /// Format NVM.
    pub const FORMAT_NVM: u8 = 0x80;
    /// Get LBA Status.
    pub const GET_LBA_STATUS: u8 = 0x86;
}

/// I/O commands (NVM Command Set 1.0, figure 17).
pub mod io {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Write Uncorrectable.
    pub const WRITE_UNCORRECTABLE: u8 = 0x04;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Verify.
    pub const VERIFY: u8 = 0x0c;
    /// Reservation Register.
    pub const RESERVATION_REGISTER: u8 = 0x0d;
    /// Reservation Report.
    pub const RESERVATION_REPORT: u8 = 0x0e;
    /// Reservation Acquire.
    pub const RESERVATION_ACQUIRE: u8 = 0x11;
    /// Reservation Release.
    pub const RESERVATION_RELEASE: u8 = 0x15;
    /// Copy.
    pub const COPY: u8 = 0x19;
}

/// Fabrics commands: opcode 7Fh, told apart by FCTYPE (Fabrics 1.1, 3).
pub mod fabrics {
    /// The opcode of all Fabrics commands.
    pub const OPCODE: u8 = 0x7f;
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Authentication Send.
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    /// Authentication Receive.
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
    /// Disconnect.
    pub const DISCONNECT: u8 = 0x08;
}
