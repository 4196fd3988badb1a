//! Get and Set Features: identifiers and command words (Base 2.0, 5.15 and 5.27).

use super::command::Sqe;

/// FID: feature identifiers (Base 2.0, figure 317).
pub mod fid {
    /// Arbitration.
    pub const ARBITRATION: u8 = 0x01;
    /// Power Management.
    pub const POWER_MANAGEMENT: u8 = 0x02;
    /// Temperature Threshold.
    pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
    /// Error Recovery.
    pub const ERROR_RECOVERY: u8 = 0x05;
    /// Volatile Write Cache.
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    /// Number of Queues.
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    /// Write Atomicity Normal.
    pub const WRITE_ATOMICITY: u8 = 0x0a;
    /// Asynchronous Event Configuration.
    pub const ASYNC_EVENT_CONFIG: u8 = 0x0b;
    /// Keep Alive Timer.
    pub const KEEP_ALIVE_TIMER: u8 = 0x0f;
    /// Host Behavior Support.
    pub const HOST_BEHAVIOR: u8 = 0x16;
    /// I/O Command Set Profile: which combination of command sets is in use.
    pub const COMMAND_SET_PROFILE: u8 = 0x19;
    /// Host Identifier.
    pub const HOST_IDENTIFIER: u8 = 0x81;
    /// Reservation Notification Mask.
    pub const RESERVATION_NOTIFICATION_MASK: u8 = 0x82;
    /// Reservation Persistence.
    pub const RESERVATION_PERSISTENCE: u8 = 0x83;
    /// Namespace Write Protection Config.
    pub const WRITE_PROTECTION: u8 = 0x84;
}

/// Size of the data of Host Behavior Support; its byte 0 is ACRE, whether the host waits for CRDT
/// before a retry, and its bytes 5:4 are CDFE, the formats of Copy that the host enables (Base 2.1, 5.1.25.1.14).
pub const HOST_BEHAVIOR_LEN: usize = 512;

/// CDFE bit 2: source ranges of format 2h, which name their namespaces.
pub const COPY_FORMAT_2_ENABLED: u16 = 1 << 2;

/// I/O Command Set Profile: CDW11 bits 8:0, the index of the combination (Base 2.0, 5.27.1.21).
pub const COMMAND_SET_INDEX: u32 = 0x1ff;

/// Write Protection State, CDW11 bits 2:0 of Namespace Write Protection Config (Base 2.0, 5.27.1.28). Permanent
/// protection is not among them: no operator could take it back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WriteProtection {
    /// Writes are allowed.
    #[default]
    None,
    /// Until it is set otherwise, also after a restart.
    On,
    /// Until the target is restarted, and not to be set otherwise before.
    UntilPowerCycle,
}

impl WriteProtection {
    /// From CDW11 or DW0; `None` for what does not exist here.
    #[must_use]
    pub fn from_wire(word: u32) -> Option<Self> {
        match word {
            0 => Some(Self::None),
            1 => Some(Self::On),
            2 => Some(Self::UntilPowerCycle),
            _ => None,
        }
    }

    /// As CDW11 or DW0.
    #[must_use]
    pub fn to_wire(self) -> u32 {
        match self {
            Self::None => 0,
            Self::On => 1,
            Self::UntilPowerCycle => 2,
        }
    }
}

/// SEL: which value Get Features returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    /// The current value.
    Current,
    /// The value after a reset.
    Default,
    /// The saved value.
    Saved,
    /// What can be done with the feature.
    Capabilities,
}

impl Select {
    /// From CDW10 bits 10:8; `None` for the reserved values.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Option<Self> {
        match sqe.cdw10.get() >> 8 & 0b111 {
            0 => Some(Self::Current),
            1 => Some(Self::Default),
            2 => Some(Self::Saved),
            3 => Some(Self::Capabilities),
            _ => None,
        }
    }
}

/// Capabilities in DW0 when SEL is 011b: bit 1, the feature is namespace specific.
pub const CAPABILITY_NAMESPACE_SPECIFIC: u32 = 1 << 1;
/// Capabilities in DW0 when SEL is 011b: bit 2, the feature is changeable.
pub const CAPABILITY_CHANGEABLE: u32 = 1 << 2;

/// FID of Get or Set Features: CDW10 bits 7:0.
#[must_use]
pub fn feature_id(sqe: &Sqe) -> u8 {
    sqe.cdw10.get().to_le_bytes()[0]
}

/// SV of Set Features: CDW10 bit 31.
#[must_use]
pub fn save(sqe: &Sqe) -> bool {
    sqe.cdw10.get() & 1 << 31 != 0
}

/// Number of Queues as asked or granted, both 0's based on the wire: CDW11 and DW0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCounts {
    /// NSQR, NSQA: I/O submission queues, 1..=65535.
    pub submission: u32,
    /// NCQR, NCQA: I/O completion queues, 1..=65535.
    pub completion: u32,
}

impl QueueCounts {
    /// From CDW11 or DW0.
    #[must_use]
    pub fn from_dword(dword: u32) -> Self {
        Self { submission: (dword & 0xffff) + 1, completion: (dword >> 16) + 1 }
    }

    /// As CDW11 or DW0; a count of 0 has no encoding and becomes 1.
    #[must_use]
    pub fn to_dword(self) -> u32 {
        let wire = |count: u32| count.clamp(1, 0x1_0000) - 1;
        wire(self.completion) << 16 | wire(self.submission)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feature_words() {
        let sqe = Sqe { cdw10: 0x8000_030b.into(), ..Sqe::default() };
        assert_eq!(feature_id(&sqe), fid::ASYNC_EVENT_CONFIG);
        assert_eq!(Select::parse(&sqe), Some(Select::Capabilities));
        assert!(save(&sqe));
        let sqe = Sqe { cdw10: 0x400.into(), ..Sqe::default() };
        assert_eq!(Select::parse(&sqe), None);
    }

    #[test]
    fn queue_counts() {
        let counts = QueueCounts { submission: 4, completion: 8 };
        assert_eq!(counts.to_dword(), 0x0007_0003);
        assert_eq!(QueueCounts::from_dword(0x0007_0003), counts);
        assert_eq!(QueueCounts { submission: 0, completion: 70_000 }.to_dword(), 0xffff_0000);
    }
}
