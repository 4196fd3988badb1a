//! Connect: its command, its data and its response (Fabrics 1.1, 3.3).

use zerocopy::little_endian::{U16, U32};

use super::command::{SglDescriptor, Sqe};
use super::id::{ControllerId, HostId, Nqn, QueueId};
use super::opcode::fabrics;
use super::wire::wire;

wire! {
    /// Connect data.
    pub struct ConnectData[1024] {
        /// HOSTID.
        pub hostid: [u8; 16],
        /// CNTLID: FFFFh asks for any controller.
        pub cntlid: U16,
        /// Reserved.
        pub reserved_18: [u8; 238],
        /// SUBNQN: zero terminated.
        pub subnqn: [u8; 256],
        /// HOSTNQN: zero terminated.
        pub hostnqn: [u8; 256],
        /// Reserved.
        pub reserved_768: [u8; 256],
    }
}

impl ConnectData {
    /// Data for a Connect.
    #[must_use]
    pub fn new(hostid: HostId, cntlid: ControllerId, subnqn: &Nqn, hostnqn: &Nqn) -> Self {
        Self {
            hostid: hostid.0,
            cntlid: cntlid.0.into(),
            subnqn: subnqn.to_field(),
            hostnqn: hostnqn.to_field(),
            ..Self::default()
        }
    }
}

/// The words of Connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectWords {
    /// RECFMT: 0.
    pub recfmt: u16,
    /// QID.
    pub qid: QueueId,
    /// SQSIZE: queue entries, 0's based.
    pub sqsize: u16,
    /// CATTR: bit 2 disables SQ flow control.
    pub cattr: u8,
    /// KATO: keep alive timeout in milliseconds.
    pub kato: u32,
}

/// CATTR bit 2: disable SQ flow control.
pub const CATTR_DISABLE_SQ_FLOW: u8 = 1 << 2;

impl ConnectWords {
    /// Reads the words.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [r0, r1, q0, q1] = sqe.cdw10.get().to_le_bytes();
        let [s0, s1, cattr, _] = sqe.cdw11.get().to_le_bytes();
        Self {
            recfmt: u16::from_le_bytes([r0, r1]),
            qid: QueueId(u16::from_le_bytes([q0, q1])),
            sqsize: u16::from_le_bytes([s0, s1]),
            cattr,
            kato: sqe.cdw12.get(),
        }
    }

    /// The command, with its data in the capsule.
    #[must_use]
    pub fn to_sqe(self) -> Sqe {
        let [r0, r1] = self.recfmt.to_le_bytes();
        let [q0, q1] = self.qid.0.to_le_bytes();
        let [s0, s1] = self.sqsize.to_le_bytes();
        Sqe {
            opc: fabrics::OPCODE,
            flags: Sqe::PSDT_SGL,
            nsid: U32::new(fabrics::CONNECT.into()),
            sgl1: SglDescriptor::in_capsule(1024),
            cdw10: u32::from_le_bytes([r0, r1, q0, q1]).into(),
            cdw11: u32::from_le_bytes([s0, s1, self.cattr, 0]).into(),
            cdw12: self.kato.into(),
            ..Sqe::default()
        }
    }
}

/// DW0 of a successful Connect: the controller, and whether it asks for authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectResponse {
    /// CNTLID.
    pub cntlid: ControllerId,
    /// ATR: authentication transaction required.
    pub authentication_required: bool,
    /// ASCR: authentication and secure channel required.
    pub secure_channel_required: bool,
}

impl ConnectResponse {
    /// From DW0.
    #[must_use]
    pub fn from_dw0(dw0: u32) -> Self {
        let [c0, c1, flags, _] = dw0.to_le_bytes();
        Self {
            cntlid: ControllerId(u16::from_le_bytes([c0, c1])),
            authentication_required: flags & 0b010 != 0,
            secure_channel_required: flags & 0b100 != 0,
        }
    }

    /// As DW0.
    #[must_use]
    pub fn to_dw0(self) -> u32 {
        u32::from(self.cntlid.0)
            | u32::from(self.authentication_required) << 17
            | u32::from(self.secure_channel_required) << 18
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn connect_layout() {
        assert_eq!(offset_of!(ConnectData, cntlid), 16);
        assert_eq!(offset_of!(ConnectData, subnqn), 256);
        assert_eq!(offset_of!(ConnectData, hostnqn), 512);
        let words = ConnectWords {
            recfmt: 0x0102,
            qid: QueueId(0x0304),
            sqsize: 0x0506,
            cattr: 4,
            kato: 0x0708_090a,
        };
        let sqe = words.to_sqe();
        let bytes = sqe.as_bytes();
        assert_eq!(bytes[4], 1, "FCTYPE");
        assert_eq!(bytes[40..52], [2, 1, 4, 3, 6, 5, 4, 0, 0x0a, 9, 8, 7]);
        assert_eq!(ConnectWords::parse(&sqe), words);
    }

    #[test]
    fn connect_response_layout() {
        let response = ConnectResponse {
            cntlid: ControllerId(0x1234),
            authentication_required: true,
            secure_channel_required: false,
        };
        assert_eq!(response.to_dw0(), 0x0002_1234);
        assert_eq!(ConnectResponse::from_dw0(0x0002_1234), response);
    }
}
