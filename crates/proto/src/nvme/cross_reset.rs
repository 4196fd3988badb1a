//! Cross-Controller Reset: a host has one controller end another one of its own, whose commands are then known to
//! execute no more (TP8028; Base 2.3, 5.4.3 and 8.3.3).

use zerocopy::little_endian::U16;

use super::opcode::admin;
use super::wire::wire;
use super::{ControllerId, Sqe};

/// Bit 0 of DW0 of a successful completion: the reset is done already.
pub const IMMEDIATE: u32 = 1 << 0;
/// CDW10 LSP bit 0 of Get Log Page, RMC: entries of resets that are over leave the log when it was read.
pub const LSP_REMOVE_COMPLETED: u8 = 1;
/// Most entries of the log page.
pub const MAX_LOG_ENTRIES: u16 = 511;

/// An instance of a controller: the number alone may have had another association before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ControllerInstance {
    /// ICID: CNTLID of the impacted controller.
    pub cntlid: ControllerId,
    /// CIU.
    pub ciu: u8,
    /// CIRN: no other host can guess it.
    pub cirn: u64,
}

impl ControllerInstance {
    /// The command that resets it, for the admin queue of another controller of the subsystem.
    #[must_use]
    pub fn reset(self) -> Sqe {
        let [a, b, c, d, e, f, g, h] = self.cirn.to_le_bytes();
        Sqe {
            opc: admin::CROSS_CONTROLLER_RESET,
            cdw10: (u32::from(self.cntlid.0) | u32::from(self.ciu) << 16).into(),
            cdw12: u32::from_le_bytes([a, b, c, d]).into(),
            cdw13: u32::from_le_bytes([e, f, g, h]).into(),
            ..Sqe::default()
        }
    }

    /// The instance that such a command names.
    #[must_use]
    pub fn of(sqe: &Sqe) -> Self {
        let [c0, c1, ciu, _] = sqe.cdw10.get().to_le_bytes();
        Self {
            cntlid: ControllerId(u16::from_le_bytes([c0, c1])),
            ciu,
            cirn: u64::from(sqe.cdw13.get()) << 32 | u64::from(sqe.cdw12.get()),
        }
    }
}

/// CCRS: how far a reset is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetStatus {
    /// Commands of the impacted controller may still execute.
    InProgress,
    /// No command of the impacted controller executes any more.
    Succeeded,
    /// Nothing is known of the impacted controller.
    Failed,
}

impl ResetStatus {
    /// The number in the log page.
    #[must_use]
    pub fn to_wire(self) -> u8 {
        match self {
            Self::InProgress => 0,
            Self::Succeeded => 1,
            Self::Failed => 2,
        }
    }

    /// The status of a number in the log page; `None`: the number is reserved.
    #[must_use]
    pub fn from_wire(byte: u8) -> Option<Self> {
        [Self::InProgress, Self::Succeeded, Self::Failed]
            .into_iter()
            .find(|status| status.to_wire() == byte)
    }
}

wire! {
    /// Header of the log page (LID 1Eh).
    pub struct CrossResetLogHeader[8] {
        /// NE: number of entries.
        pub entries: U16,
        /// Reserved.
        pub reserved_2: [u8; 6],
    }
}

wire! {
    /// An entry of the log page.
    pub struct CrossResetLogEntry[8] {
        /// ICID: impacted controller.
        pub cntlid: U16,
        /// CIU of the impacted controller.
        pub ciu: u8,
        /// Reserved.
        pub reserved_3: u8,
        /// ACID: the controller that was asked for the reset.
        pub active_cntlid: U16,
        /// CCRS: how far the reset is.
        pub status: u8,
        /// CCRF: flags.
        pub flags: u8,
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn the_command_on_the_wire() {
        let instance = ControllerInstance {
            cntlid: ControllerId(0x1234),
            ciu: 0x56,
            cirn: 0x0102_0304_0506_0708,
        };
        let sqe = instance.reset();
        let bytes = sqe.as_bytes();
        assert_eq!(bytes[0], 0x38);
        assert_eq!(bytes[40..44], [0x34, 0x12, 0x56, 0]);
        assert_eq!(bytes[48..56], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(ControllerInstance::of(&sqe), instance);
    }

    #[test]
    fn statuses() {
        for byte in 0..=u8::MAX {
            let status = ResetStatus::from_wire(byte);
            assert_eq!(status.map(ResetStatus::to_wire), (byte < 3).then_some(byte));
        }
    }
}
