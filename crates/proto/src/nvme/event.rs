//! Asynchronous events as DW0 of a completed request (Base 2.0, 5.2.1).

/// What an Asynchronous Event Request completes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// Asynchronous Event Type, 3 bits.
    pub kind: u8,
    /// Asynchronous Event Information.
    pub info: u8,
    /// Log Page Identifier whose reading clears the event.
    pub lid: u8,
}

/// Event type: error.
pub const TYPE_ERROR: u8 = 0;
/// Event type: SMART / health.
pub const TYPE_SMART: u8 = 1;
/// Event type: notice.
pub const TYPE_NOTICE: u8 = 2;
/// Event type: specific to an I/O command.
pub const TYPE_IO_COMMAND: u8 = 6;

/// Bits of OAES and of feature 0Bh: Namespace Attribute Notices.
pub const CONFIG_NAMESPACE_ATTRIBUTE: u32 = 1 << 8;
/// Bits of OAES and of feature 0Bh: Asymmetric Namespace Access Change Notices.
pub const CONFIG_ANA_CHANGE: u32 = 1 << 11;
/// Bits of OAES and of feature 0Bh: Cross-Controller Reset Completed Notices (TP8028).
pub const CONFIG_CROSS_CONTROLLER_RESET: u32 = 1 << 20;
/// Bits of OAES and of feature 0Bh: Discovery Log Page Change Notification.
pub const CONFIG_DISCOVERY_CHANGE: u32 = 1 << 31;
/// Bits 7:0 of feature 0Bh: SMART critical warnings.
pub const CONFIG_SMART: u32 = 0xff;

impl AsyncEvent {
    /// Namespace Attribute Changed; log 04h says which.
    pub const NAMESPACE_CHANGED: Self =
        Self { kind: TYPE_NOTICE, info: 0x00, lid: super::log::lid::CHANGED_NAMESPACES };
    /// Asymmetric Namespace Access Change; log 0Ch says which.
    pub const ANA_CHANGED: Self = Self { kind: TYPE_NOTICE, info: 0x03, lid: super::log::lid::ANA };
    /// Cross-Controller Reset Completed; log 1Eh says which (TP8028).
    pub const CROSS_CONTROLLER_RESET: Self =
        Self { kind: TYPE_NOTICE, info: 0xf4, lid: super::log::lid::CROSS_CONTROLLER_RESET };
    /// Discovery Log Page Change.
    pub const DISCOVERY_CHANGED: Self =
        Self { kind: TYPE_NOTICE, info: 0xf0, lid: super::log::lid::DISCOVERY };
    /// Reservation Log Page Available; log 80h tells what has happened.
    pub const RESERVATION: Self =
        Self { kind: TYPE_IO_COMMAND, info: 0x00, lid: super::log::lid::RESERVATION_NOTIFICATION };

    /// As DW0 of the completion.
    #[must_use]
    pub fn to_dw0(self) -> u32 {
        u32::from_le_bytes([self.kind & 7, self.info, self.lid, 0])
    }

    /// From DW0 of the completion.
    #[must_use]
    pub fn from_dw0(dw0: u32) -> Self {
        let [kind, info, lid, _] = dw0.to_le_bytes();
        Self { kind: kind & 7, info, lid }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dw0_layout() {
        assert_eq!(AsyncEvent::NAMESPACE_CHANGED.to_dw0(), 0x0004_0002);
        assert_eq!(AsyncEvent::ANA_CHANGED.to_dw0(), 0x000c_0302);
        assert_eq!(AsyncEvent::CROSS_CONTROLLER_RESET.to_dw0(), 0x001e_f402);
        assert_eq!(AsyncEvent::DISCOVERY_CHANGED.to_dw0(), 0x0070_f002);
        assert_eq!(AsyncEvent::RESERVATION.to_dw0(), 0x0080_0006);
        assert_eq!(AsyncEvent::from_dw0(0x0070_f002), AsyncEvent::DISCOVERY_CHANGED);
    }
}
