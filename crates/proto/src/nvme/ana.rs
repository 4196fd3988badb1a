//! Asymmetric Namespace Access: states, and the log page (Base 2.0, 5.16.1.13 and 8.1).

use zerocopy::little_endian::{U16, U32, U64};

use super::Status;
use super::wire::wire;

/// CDW10 LSP bit 0, RGO: the page without NSIDs.
pub const LSP_GROUPS_ONLY: u8 = 1;

/// What a controller can do with the namespaces of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AnaState {
    /// Commands run, and this path is a preferred one.
    #[default]
    Optimized,
    /// Commands run; a host uses the path when no optimized one is left.
    NonOptimized,
    /// Commands fail until the state changes.
    Inaccessible,
    /// Commands fail, and the path does not come back.
    PersistentLoss,
    /// The state is about to change: commands fail, and a host tries again within ANATT.
    Change,
}

impl AnaState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 5] = [
        Self::Optimized,
        Self::NonOptimized,
        Self::Inaccessible,
        Self::PersistentLoss,
        Self::Change,
    ];

    /// The number in the log page.
    #[must_use]
    pub fn to_wire(self) -> u8 {
        match self {
            Self::Optimized => 0x1,
            Self::NonOptimized => 0x2,
            Self::Inaccessible => 0x3,
            Self::PersistentLoss => 0x4,
            Self::Change => 0xf,
        }
    }

    /// The state of a number in the log page, bits 3:0; `None`: the number is reserved.
    #[must_use]
    pub fn from_wire(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.to_wire() == byte & 0xf)
    }

    /// The status of a command that does not run in this state; `None`: commands run.
    ///
    /// Never with Do Not Retry: a host would report the error instead of taking another path.
    #[must_use]
    pub fn refusal(self) -> Option<Status> {
        match self {
            Self::Optimized | Self::NonOptimized => None,
            Self::Inaccessible => Some(Status::ANA_INACCESSIBLE),
            Self::PersistentLoss => Some(Status::ANA_PERSISTENT_LOSS),
            Self::Change => Some(Status::ANA_TRANSITION),
        }
    }
}

wire! {
    /// Header of the log page (LID 0Ch; Base 2.0, figure 221).
    pub struct AnaLogHeader[16] {
        /// Change Count: moves with every change of the page.
        pub change_count: U64,
        /// Number of ANA Group Descriptors.
        pub groups: U16,
        /// Reserved.
        pub reserved_10: [u8; 6],
    }
}

wire! {
    /// ANA Group Descriptor, which the group's NSIDs follow (Base 2.0, figure 222).
    pub struct AnaGroupDescriptor[32] {
        /// ANA Group ID.
        pub group: U32,
        /// Number of NSID Values.
        pub namespaces: U32,
        /// Change Count of the group; 0: not reported.
        pub change_count: U64,
        /// Bits 3:0: the state.
        pub state: u8,
        /// Reserved.
        pub reserved_17: [u8; 15],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_statuses_are_those_of_the_specification() {
        let of = |state: AnaState| (state.to_wire(), state.refusal().map(|s| (s.sct(), s.sc())));
        assert_eq!(
            AnaState::ALL.map(of),
            [
                (1, None),
                (2, None),
                (3, Some((3, 0x02))),
                (4, Some((3, 0x01))),
                (0xf, Some((3, 0x03)))
            ]
        );
        for byte in 0..=u8::MAX {
            let known = matches!(byte & 0xf, 1..=4 | 0xf);
            assert_eq!(AnaState::from_wire(byte).is_some(), known, "{byte:#x}");
        }
        for state in AnaState::ALL {
            assert_eq!(AnaState::from_wire(state.to_wire()), Some(state));
            assert!(!state.refusal().is_some_and(Status::is_dnr));
        }
    }
}
