//! PDUs that an initiator sends (RFC 7143, 11.3, 11.5, 11.7, 11.10, 11.12, 11.14, 11.16, 11.18).

use super::field::pdu;
use super::{Stage, flags};

pdu! {
    /// NOP-Out (11.18); its data are the ping.
    NopOut = NOP_OUT {
        /// I: immediate delivery.
        immediate: bool = 0,
        /// F, always set.
        flags: u8 = 1,
        /// LUN, a copy of that of the NOP-In that is answered.
        lun: u64 = 8,
        /// Initiator Task Tag; [`RESERVED_TAG`](super::RESERVED_TAG): no answer is wanted.
        itt: u32 = 16,
        /// Target Transfer Tag of the NOP-In that is answered, or reserved.
        ttt: u32 = 20,
        /// CmdSN.
        cmd_sn: u32 = 24,
        /// ExpStatSN.
        exp_stat_sn: u32 = 28,
    }
}

pdu! {
    /// SCSI Command (11.3); its data are immediate data.
    ScsiCommand = SCSI_COMMAND {
        /// I: immediate delivery.
        immediate: bool = 0,
        /// F, R, W, ATTR.
        flags: u8 = 1,
        /// LUN.
        lun: u64 = 8,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// Expected Data Transfer Length in bytes.
        edtl: u32 = 20,
        /// CmdSN.
        cmd_sn: u32 = 24,
        /// ExpStatSN.
        exp_stat_sn: u32 = 28,
        /// CDB, or its first 16 bytes.
        cdb: [u8; 16] = 32,
    }
}

impl ScsiCommand {
    /// R: the command reads.
    #[inline]
    #[must_use]
    pub const fn reads(&self) -> bool {
        self.flags & flags::READ != 0
    }

    /// W: the command writes.
    #[inline]
    #[must_use]
    pub const fn writes(&self) -> bool {
        self.flags & flags::WRITE != 0
    }

    /// F: no unsolicited Data-Out follows.
    #[inline]
    #[must_use]
    pub const fn is_final(&self) -> bool {
        self.flags & flags::FINAL != 0
    }

    /// ATTR: 0 untagged, 1 simple, 2 ordered, 3 head of queue, 4 ACA.
    #[inline]
    #[must_use]
    pub const fn attribute(&self) -> u8 {
        self.flags & flags::ATTRIBUTE
    }
}

pdu! {
    /// Task Management Function Request (11.5).
    TmfRequest = TMF_REQUEST {
        /// I: immediate delivery.
        immediate: bool = 0,
        /// F and the function.
        flags: u8 = 1,
        /// LUN.
        lun: u64 = 8,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// Referenced Task Tag.
        rtt: u32 = 20,
        /// CmdSN.
        cmd_sn: u32 = 24,
        /// ExpStatSN.
        exp_stat_sn: u32 = 28,
        /// RefCmdSN.
        ref_cmd_sn: u32 = 32,
        /// ExpDataSN, for reassigning.
        exp_data_sn: u32 = 36,
    }
}

pdu! {
    /// Login Request (11.12); its data are text.
    LoginRequest = LOGIN_REQUEST {
        /// I, always set.
        immediate: bool = 0,
        /// T, C, CSG, NSG.
        flags: u8 = 1,
        /// Version-max.
        version_max: u8 = 2,
        /// Version-min.
        version_min: u8 = 3,
        /// ISID.
        isid: [u8; 6] = 8,
        /// TSIH.
        tsih: u16 = 14,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// CID.
        cid: u16 = 20,
        /// CmdSN.
        cmd_sn: u32 = 24,
        /// ExpStatSN.
        exp_stat_sn: u32 = 28,
    }
}

impl LoginRequest {
    /// CSG: the stage that the initiator is in.
    #[must_use]
    pub const fn current_stage(&self) -> Option<Stage> {
        Stage::from_bits(self.flags >> 2)
    }

    /// NSG: the stage that follows; means something with T only.
    #[must_use]
    pub const fn next_stage(&self) -> Option<Stage> {
        Stage::from_bits(self.flags)
    }

    /// T: the initiator is ready to leave the stage.
    #[must_use]
    pub const fn transits(&self) -> bool {
        self.flags & flags::TRANSIT != 0
    }

    /// C: the text goes on in the next request.
    #[must_use]
    pub const fn continues(&self) -> bool {
        self.flags & flags::CONTINUE != 0
    }
}

pdu! {
    /// Text Request (11.10); its data are text.
    TextRequest = TEXT_REQUEST {
        /// I: immediate delivery.
        immediate: bool = 0,
        /// F, C.
        flags: u8 = 1,
        /// LUN, a copy of that of the Text Response.
        lun: u64 = 8,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// Target Transfer Tag of the Text Response that is continued, or reserved.
        ttt: u32 = 20,
        /// CmdSN.
        cmd_sn: u32 = 24,
        /// ExpStatSN.
        exp_stat_sn: u32 = 28,
    }
}

pdu! {
    /// SCSI Data-Out (11.7).
    DataOut = DATA_OUT {
        /// F.
        flags: u8 = 1,
        /// LUN, with a valid Target Transfer Tag.
        lun: u64 = 8,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// Target Transfer Tag of the R2T, or reserved: unsolicited.
        ttt: u32 = 20,
        /// ExpStatSN.
        exp_stat_sn: u32 = 28,
        /// DataSN.
        data_sn: u32 = 36,
        /// Buffer Offset.
        buffer_offset: u32 = 40,
    }
}

pdu! {
    /// Logout Request (11.14).
    LogoutRequest = LOGOUT_REQUEST {
        /// I: immediate delivery.
        immediate: bool = 0,
        /// F and the reason.
        flags: u8 = 1,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// CID.
        cid: u16 = 20,
        /// CmdSN.
        cmd_sn: u32 = 24,
        /// ExpStatSN.
        exp_stat_sn: u32 = 28,
    }
}

pdu! {
    /// SNACK Request (11.16).
    Snack = SNACK {
        /// F and the type.
        flags: u8 = 1,
        /// LUN.
        lun: u64 = 8,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// Target Transfer Tag or SNACK Tag.
        ttt: u32 = 20,
        /// ExpStatSN.
        exp_stat_sn: u32 = 28,
        /// BegRun.
        beg_run: u32 = 40,
        /// RunLength.
        run_length: u32 = 44,
    }
}
