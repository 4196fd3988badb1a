//! Get Log Page: its command words and the pages (Base 2.0, 5.16).

use zerocopy::little_endian::{U16, U32, U64, U128};

use super::command::Sqe;
use super::wire::wire;

/// LID: log page identifiers (Base 2.0, figure 202).
pub mod lid {
    /// Error Information.
    pub const ERROR: u8 = 0x01;
    /// SMART / Health Information.
    pub const SMART: u8 = 0x02;
    /// Firmware Slot Information.
    pub const FIRMWARE: u8 = 0x03;
    /// Changed Namespace List.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands Supported and Effects.
    pub const EFFECTS: u8 = 0x05;
    /// Asymmetric Namespace Access.
    pub const ANA: u8 = 0x0c;
    /// Cross-Controller Reset (TP8028).
    pub const CROSS_CONTROLLER_RESET: u8 = 0x1e;
    /// Discovery.
    pub const DISCOVERY: u8 = 0x70;
    /// Reservation Notification.
    pub const RESERVATION_NOTIFICATION: u8 = 0x80;
}

/// The words of Get Log Page (Base 2.0, figures 197 to 201).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GetLogPage {
    /// LID: which page.
    pub lid: u8,
    /// LSP: log specific, 7 bits.
    pub lsp: u8,
    /// RAE: do not clear the event.
    pub retain_event: bool,
    /// How many bytes: (NUMD + 1) * 4.
    pub len_bytes: u64,
    /// LPO: offset in bytes.
    pub offset: u64,
    /// CSI: command set identifier, for pages that exist once for each I/O command set.
    pub csi: u8,
}

impl GetLogPage {
    /// Reads the words.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [lid, lsp, numdl @ ..] = sqe.cdw10.get().to_le_bytes();
        let [n2, n3, ..] = sqe.cdw11.get().to_le_bytes();
        let numd = u32::from_le_bytes([numdl[0], numdl[1], n2, n3]);
        let [.., csi] = sqe.cdw14.get().to_le_bytes();
        Self {
            csi,
            lid,
            lsp: lsp & 0x7f,
            retain_event: lsp & 0x80 != 0,
            len_bytes: (u64::from(numd) + 1) * 4,
            offset: u64::from(sqe.cdw13.get()) << 32 | u64::from(sqe.cdw12.get()),
        }
    }

    /// Sets the words; `len_bytes` must be a positive multiple of 4 of at most 16 GiB.
    pub fn write(&self, sqe: &mut Sqe) {
        let numd = u32::try_from((self.len_bytes / 4).saturating_sub(1)).unwrap_or(u32::MAX);
        let [n0, n1, n2, n3] = numd.to_le_bytes();
        let lsp = self.lsp & 0x7f | u8::from(self.retain_event) << 7;
        let [o0, o1, o2, o3, o4, o5, o6, o7] = self.offset.to_le_bytes();
        sqe.cdw10 = u32::from_le_bytes([self.lid, lsp, n0, n1]).into();
        sqe.cdw11 = u32::from_le_bytes([n2, n3, 0, 0]).into();
        sqe.cdw12 = u32::from_le_bytes([o0, o1, o2, o3]).into();
        sqe.cdw13 = u32::from_le_bytes([o4, o5, o6, o7]).into();
        sqe.cdw14 = (u32::from(self.csi) << 24).into();
    }
}

wire! {
    /// Error Information log entry (LID 01h; Base 2.0, figure 206).
    pub struct ErrorLogEntry[64] {
        /// Error Count: unique, counts up; 0 marks an empty entry.
        pub error_count: U64,
        /// SQID of the command.
        pub sqid: U16,
        /// CID of the command.
        pub cid: U16,
        /// Status Field of its completion, phase tag in bit 0.
        pub status: U16,
        /// Parameter Error Location: byte 7:0, bit 10:8; FFFFh none.
        pub parameter_location: U16,
        /// LBA: the first that failed.
        pub lba: U64,
        /// NSID.
        pub nsid: U32,
        /// Vendor Specific Information Available.
        pub vendor: u8,
        /// TRTYPE.
        pub trtype: u8,
        /// Reserved.
        pub reserved_30: [u8; 2],
        /// Command Specific Information.
        pub command_specific: U64,
        /// Transport Type Specific Information.
        pub transport_specific: U16,
        /// Reserved.
        pub reserved_42: [u8; 22],
    }
}

wire! {
    /// SMART / Health Information (LID 02h; Base 2.0, figure 207).
    pub struct SmartLog[512] {
        /// Critical Warning.
        pub critical_warning: u8,
        /// Composite Temperature in kelvin.
        pub composite_temperature: U16,
        /// Available Spare in percent.
        pub available_spare: u8,
        /// Available Spare Threshold in percent.
        pub available_spare_threshold: u8,
        /// Percentage Used.
        pub percentage_used: u8,
        /// Endurance Group Critical Warning Summary.
        pub endurance_group_warning: u8,
        /// Reserved.
        pub reserved_7: [u8; 25],
        /// Data Units Read: thousands of 512 bytes, rounded up.
        pub data_units_read: U128,
        /// Data Units Written: thousands of 512 bytes, rounded up.
        pub data_units_written: U128,
        /// Host Read Commands.
        pub host_read_commands: U128,
        /// Host Write Commands.
        pub host_write_commands: U128,
        /// Controller Busy Time in minutes.
        pub controller_busy_time: U128,
        /// Power Cycles.
        pub power_cycles: U128,
        /// Power On Hours.
        pub power_on_hours: U128,
        /// Unsafe Shutdowns.
        pub unsafe_shutdowns: U128,
        /// Media and Data Integrity Errors.
        pub media_errors: U128,
        /// Number of Error Information Log Entries, ever.
        pub error_log_entries: U128,
        /// Warning Composite Temperature Time in minutes.
        pub warning_temperature_time: U32,
        /// Critical Composite Temperature Time in minutes.
        pub critical_temperature_time: U32,
        /// Temperature Sensors 1 to 8 in kelvin.
        pub temperature_sensors: [U16; 8],
        /// Reserved.
        pub reserved_216: [u8; 296],
    }
}

wire! {
    /// Firmware Slot Information (LID 03h; Base 2.0, figure 208).
    pub struct FirmwareLog[512] {
        /// AFI: bits 2:0 the active slot.
        pub afi: u8,
        /// Reserved.
        pub reserved_1: [u8; 7],
        /// FRS1 to 7: the revision in each slot.
        pub frs: [[u8; 8]; 7],
        /// Reserved.
        pub reserved_64: [u8; 448],
    }
}

wire! {
    /// Commands Supported and Effects (LID 05h; Base 2.0, figure 210).
    pub struct EffectsLog[4096] {
        /// ACS: admin commands, by opcode.
        pub acs: [U32; 256],
        /// IOCS: I/O commands, by opcode.
        pub iocs: [U32; 256],
        /// Reserved.
        pub reserved_2048: [u8; 2048],
    }
}

/// CSUPP: the command is supported.
pub const EFFECT_SUPPORTED: u32 = 1 << 0;
/// LBCC: the command may change the content of logical blocks.
pub const EFFECT_CONTENT_CHANGE: u32 = 1 << 1;
/// NCC: what Identify says of a namespace may change.
pub const EFFECT_NAMESPACE_CHANGE: u32 = 1 << 2;
/// NIC: namespaces may come, go, be attached or detached.
pub const EFFECT_INVENTORY_CHANGE: u32 = 1 << 3;

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn log_offsets() {
        assert_eq!(offset_of!(ErrorLogEntry, status), 12);
        assert_eq!(offset_of!(ErrorLogEntry, lba), 16);
        assert_eq!(offset_of!(ErrorLogEntry, nsid), 24);
        assert_eq!(offset_of!(ErrorLogEntry, command_specific), 32);
        assert_eq!(offset_of!(SmartLog, data_units_read), 32);
        assert_eq!(offset_of!(SmartLog, power_on_hours), 128);
        assert_eq!(offset_of!(SmartLog, media_errors), 160);
        assert_eq!(offset_of!(SmartLog, error_log_entries), 176);
        assert_eq!(offset_of!(SmartLog, temperature_sensors), 200);
        assert_eq!(offset_of!(FirmwareLog, frs), 8);
        assert_eq!(offset_of!(EffectsLog, iocs), 1024);
    }

    #[test]
    fn get_log_page_words() {
        // LID 70h, LSP 5, RAE, NUMD 0001_0002h, LPO 3_0000_0004h, CSI 2
        let sqe = Sqe {
            cdw10: 0x0002_8570.into(),
            cdw11: 1.into(),
            cdw12: 4.into(),
            cdw13: 3.into(),
            cdw14: 0x0200_0000.into(),
            ..Sqe::default()
        };
        let command = GetLogPage::parse(&sqe);
        assert_eq!(
            command,
            GetLogPage {
                lid: 0x70,
                lsp: 5,
                retain_event: true,
                len_bytes: 0x1_0003 * 4,
                offset: 0x3_0000_0004,
                csi: 2,
            }
        );
        let mut again = Sqe::default();
        command.write(&mut again);
        assert_eq!(again, sqe);
    }
}
