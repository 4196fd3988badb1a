//! What an initiator has to be told before its next command: one set per I_T nexus and logical unit
//! (SAM-6, 5.14; SPC-5, 6.9).

use raceline_proto::nvme::reservation::NoticeKind;

use crate::sense::{Sense, SenseKey};

/// Something that has changed. Those that come first are reported first, and the first four stand for all that was
/// pending when they came (SAM-6, table 44).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UnitAttention {
    /// The I_T nexus is new, or the target has started.
    PowerOn,
    /// The target was reset.
    TargetReset,
    /// The logical unit was reset.
    LunReset,
    /// The I_T nexus was lost.
    NexusLoss,
    /// Another I_T nexus has changed a mode page.
    ModeChanged,
    /// Clear has removed the nexus's registration, or the reservation.
    ReservationsPreempted,
    /// The reservation that let the nexus in is gone.
    ReservationsReleased,
    /// Preempt has removed the nexus's registration.
    RegistrationsPreempted,
    /// The state of a target port group is another one.
    PortStateChanged,
    /// The disk has another size.
    CapacityChanged,
    /// Another I_T nexus has ended commands of this one.
    CommandsCleared,
    /// What Inquiry tells is different.
    InquiryChanged,
    /// The target has other logical units. Report LUNs answers it.
    LunsChanged,
}

impl From<NoticeKind> for UnitAttention {
    /// What an I_T nexus is told where a host of NVMe gets a notification.
    fn from(kind: NoticeKind) -> Self {
        match kind {
            NoticeKind::RegistrationPreempted => Self::RegistrationsPreempted,
            NoticeKind::ReservationReleased => Self::ReservationsReleased,
            NoticeKind::ReservationPreempted => Self::ReservationsPreempted,
        }
    }
}

impl UnitAttention {
    /// All, in the order in which they are reported.
    pub const ALL: [Self; 13] = [
        Self::PowerOn,
        Self::TargetReset,
        Self::LunReset,
        Self::NexusLoss,
        Self::ModeChanged,
        Self::ReservationsPreempted,
        Self::ReservationsReleased,
        Self::RegistrationsPreempted,
        Self::PortStateChanged,
        Self::CapacityChanged,
        Self::CommandsCleared,
        Self::InquiryChanged,
        Self::LunsChanged,
    ];

    /// As sense data.
    #[must_use]
    pub const fn sense(self) -> Sense {
        let code = match self {
            Self::PowerOn => 0x2900,
            Self::TargetReset => 0x2902,
            Self::LunReset => 0x2903,
            Self::NexusLoss => 0x2907,
            Self::ModeChanged => 0x2a01,
            Self::ReservationsPreempted => 0x2a03,
            Self::ReservationsReleased => 0x2a04,
            Self::RegistrationsPreempted => 0x2a05,
            Self::PortStateChanged => 0x2a06,
            Self::CapacityChanged => 0x2a09,
            Self::CommandsCleared => 0x2f00,
            Self::InquiryChanged => 0x3f03,
            Self::LunsChanged => 0x3f0e,
        };
        Sense::new(SenseKey::UnitAttention, code)
    }

    fn bit(self) -> u16 {
        1 << (self as u8)
    }

    /// Whether it says that everything may be different.
    fn is_reset(self) -> bool {
        self <= Self::NexusLoss
    }
}

/// What is pending for one I_T nexus at one logical unit. Each kind is pending once, so there is no limit to reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attentions(u16);

impl Attentions {
    /// Nothing is pending.
    pub const NONE: Self = Self(0);

    /// Adds one. A reset or a loss takes the place of all that is pending and less than it.
    pub fn add(&mut self, attention: UnitAttention) {
        if attention.is_reset() {
            self.0 &= attention.bit() - 1;
        }
        self.0 |= attention.bit();
    }

    /// Whether nothing is pending.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Takes the one that is reported next.
    pub fn take(&mut self) -> Option<UnitAttention> {
        let first =
            UnitAttention::ALL.into_iter().find(|attention| self.0 & attention.bit() != 0)?;
        self.0 &= !first.bit();
        Some(first)
    }

    /// Report LUNs has told which logical units there are.
    pub fn luns_are_known(&mut self) {
        self.0 &= !UnitAttention::LunsChanged.bit();
    }
}
