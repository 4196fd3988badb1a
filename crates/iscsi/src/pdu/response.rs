//! PDUs that a target sends (RFC 7143, 11.4, 11.6, 11.7, 11.8, 11.9, 11.11, 11.13, 11.15, 11.17, 11.19).

use super::field::pdu;
use super::{LoginStatus, Stage, flags};

pdu! {
    /// NOP-In (11.19); its data are those of the NOP-Out that it answers.
    NopIn = NOP_IN {
        /// F, always set.
        flags: u8 = 1,
        /// LUN, with a valid Target Transfer Tag.
        lun: u64 = 8,
        /// Initiator Task Tag of the NOP-Out; reserved in a ping of the target.
        itt: u32 = 16,
        /// Target Transfer Tag that the answer must carry, or reserved.
        ttt: u32 = 20,
        /// StatSN.
        stat_sn: u32 = 24,
        /// ExpCmdSN.
        exp_cmd_sn: u32 = 28,
        /// MaxCmdSN.
        max_cmd_sn: u32 = 32,
    }
}

pdu! {
    /// SCSI Response (11.4); its data are the sense data, behind their length in 16 bits.
    ScsiResponse = SCSI_RESPONSE {
        /// F, o, u, O, U.
        flags: u8 = 1,
        /// Response: 0 completed at the target, 1 target failure.
        response: u8 = 2,
        /// SCSI status.
        status: u8 = 3,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// SNACK Tag, or 0.
        snack_tag: u32 = 20,
        /// StatSN.
        stat_sn: u32 = 24,
        /// ExpCmdSN.
        exp_cmd_sn: u32 = 28,
        /// MaxCmdSN.
        max_cmd_sn: u32 = 32,
        /// ExpDataSN: how many Data-In or R2T PDUs were sent for the command.
        exp_data_sn: u32 = 36,
        /// Bidirectional Read Residual Count.
        bidi_residual: u32 = 40,
        /// Residual Count.
        residual: u32 = 44,
    }
}

pdu! {
    /// Task Management Function Response (11.6).
    TmfResponse = TMF_RESPONSE {
        /// F, always set.
        flags: u8 = 1,
        /// Response.
        response: u8 = 2,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// StatSN.
        stat_sn: u32 = 24,
        /// ExpCmdSN.
        exp_cmd_sn: u32 = 28,
        /// MaxCmdSN.
        max_cmd_sn: u32 = 32,
    }
}

pdu! {
    /// Login Response (11.13); its data are text.
    LoginResponse = LOGIN_RESPONSE {
        /// T, C, CSG, NSG.
        flags: u8 = 1,
        /// Version-max.
        version_max: u8 = 2,
        /// Version-active.
        version_active: u8 = 3,
        /// ISID.
        isid: [u8; 6] = 8,
        /// TSIH: 0 until the last response of a login that makes a session.
        tsih: u16 = 14,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// StatSN.
        stat_sn: u32 = 24,
        /// ExpCmdSN.
        exp_cmd_sn: u32 = 28,
        /// MaxCmdSN.
        max_cmd_sn: u32 = 32,
        /// Status-Class and Status-Detail.
        status: [u8; 2] = 36,
    }
}

impl LoginResponse {
    /// Status-Class and Status-Detail as one value.
    #[must_use]
    pub const fn login_status(&self) -> LoginStatus {
        LoginStatus(u16::from_be_bytes(self.status))
    }

    /// CSG.
    #[must_use]
    pub const fn current_stage(&self) -> Option<Stage> {
        Stage::from_bits(self.flags >> 2)
    }

    /// NSG; means something with T only.
    #[must_use]
    pub const fn next_stage(&self) -> Option<Stage> {
        Stage::from_bits(self.flags)
    }

    /// T: the stage changes.
    #[must_use]
    pub const fn transits(&self) -> bool {
        self.flags & flags::TRANSIT != 0
    }

    /// C: the text goes on in the next response.
    #[must_use]
    pub const fn continues(&self) -> bool {
        self.flags & flags::CONTINUE != 0
    }
}

pdu! {
    /// Text Response (11.11); its data are text.
    TextResponse = TEXT_RESPONSE {
        /// F, C.
        flags: u8 = 1,
        /// LUN.
        lun: u64 = 8,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// Target Transfer Tag that the next request must carry, or reserved.
        ttt: u32 = 20,
        /// StatSN.
        stat_sn: u32 = 24,
        /// ExpCmdSN.
        exp_cmd_sn: u32 = 28,
        /// MaxCmdSN.
        max_cmd_sn: u32 = 32,
    }
}

pdu! {
    /// SCSI Data-In (11.7).
    DataIn = DATA_IN {
        /// F, A, O, U, S.
        flags: u8 = 1,
        /// SCSI status, with S.
        status: u8 = 3,
        /// LUN, with A.
        lun: u64 = 8,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// Target Transfer Tag, with A; else reserved.
        ttt: u32 = 20,
        /// StatSN, with S.
        stat_sn: u32 = 24,
        /// ExpCmdSN.
        exp_cmd_sn: u32 = 28,
        /// MaxCmdSN.
        max_cmd_sn: u32 = 32,
        /// DataSN.
        data_sn: u32 = 36,
        /// Buffer Offset.
        buffer_offset: u32 = 40,
        /// Residual Count, with S.
        residual: u32 = 44,
    }
}

pdu! {
    /// Logout Response (11.15).
    LogoutResponse = LOGOUT_RESPONSE {
        /// F, always set.
        flags: u8 = 1,
        /// Response.
        response: u8 = 2,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// StatSN.
        stat_sn: u32 = 24,
        /// ExpCmdSN.
        exp_cmd_sn: u32 = 28,
        /// MaxCmdSN.
        max_cmd_sn: u32 = 32,
        /// Time2Wait in seconds.
        time2wait: u16 = 40,
        /// Time2Retain in seconds.
        time2retain: u16 = 42,
    }
}

pdu! {
    /// Ready To Transfer (11.8).
    R2t = R2T {
        /// F, always set.
        flags: u8 = 1,
        /// LUN.
        lun: u64 = 8,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// Target Transfer Tag that the data must carry.
        ttt: u32 = 20,
        /// StatSN: the next one, which this PDU does not use up.
        stat_sn: u32 = 24,
        /// ExpCmdSN.
        exp_cmd_sn: u32 = 28,
        /// MaxCmdSN.
        max_cmd_sn: u32 = 32,
        /// R2TSN.
        r2t_sn: u32 = 36,
        /// Buffer Offset.
        buffer_offset: u32 = 40,
        /// Desired Data Transfer Length in bytes; never 0.
        desired_len: u32 = 44,
    }
}

pdu! {
    /// Asynchronous Message (11.9); its data are sense data and event data.
    AsyncMessage = ASYNC_MESSAGE {
        /// F, always set.
        flags: u8 = 1,
        /// LUN.
        lun: u64 = 8,
        /// Reserved tag.
        itt: u32 = 16,
        /// StatSN.
        stat_sn: u32 = 24,
        /// ExpCmdSN.
        exp_cmd_sn: u32 = 28,
        /// MaxCmdSN.
        max_cmd_sn: u32 = 32,
        /// AsyncEvent.
        event: u8 = 36,
        /// AsyncVCode.
        vcode: u8 = 37,
        /// Parameter1.
        parameter1: u16 = 38,
        /// Parameter2.
        parameter2: u16 = 40,
        /// Parameter3.
        parameter3: u16 = 42,
    }
}

pdu! {
    /// Reject (11.17); its data are the header of the PDU that is rejected.
    Reject = REJECT {
        /// F, always set.
        flags: u8 = 1,
        /// Reason.
        reason: u8 = 2,
        /// Reserved tag.
        itt: u32 = 16,
        /// StatSN.
        stat_sn: u32 = 24,
        /// ExpCmdSN.
        exp_cmd_sn: u32 = 28,
        /// MaxCmdSN.
        max_cmd_sn: u32 = 32,
        /// DataSN or R2TSN.
        data_sn: u32 = 36,
    }
}
