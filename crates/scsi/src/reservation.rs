//! Persistent reservations and the older Reserve and Release: who is registered, who holds the logical unit, what
//! each I_T nexus may do (SPC-5, 5.14; SPC-2, 5.5).
//!
//! The state is that of [`raceline_proto::reservation`]: a device has one registry, in which I_T nexuses of iSCSI and
//! hosts of NVMe are registrants beside each other. The six types and what they leave to whom are the same in both
//! protocols, and so are keys and preemption. Here is what SCSI has of its own: the commands and their checks, sense
//! data, reports, and how an initiator sees a host.

mod apply;
mod parameters;
mod report;
mod types;

pub use parameters::ReserveOutParameters;
pub use raceline_proto::reservation::{
    Held, MAX_REGISTRANTS, Nexus, Notice, Registrant, Reservations, Who,
};
pub use report::{host_transport_id, report, transport_id};
pub use types::{type_from_wire, type_to_wire};

pub(crate) use apply::{release, reserve, reserve_out};

use raceline_proto::reservation::{AccessGroup, Rights};

/// What an I_T nexus may do with a logical unit. It is made when the state of the reservations changes and costs a
/// command one comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// What persistent reservations leave.
    pub rights: Rights,
    /// Another I_T nexus holds the logical unit by Reserve.
    pub reserved_by_other: bool,
    /// Some I_T nexus does, maybe this one.
    pub reserved: bool,
}

impl Admission {
    /// Everything: there is no reservation.
    pub const ALL: Self = Self { rights: Rights::ALL, reserved_by_other: false, reserved: false };

    /// Of an I_T nexus.
    #[must_use]
    pub fn of(nexus: &Nexus, reservations: &Reservations) -> Self {
        let by = reservations.reserved_by.as_ref();
        Self {
            rights: reservations.rights_of_nexus(nexus),
            reserved_by_other: by.is_some_and(|by| by != nexus),
            reserved: by.is_some(),
        }
    }

    /// Whether a command may run: `None` are commands that always may.
    #[must_use]
    pub fn admits(self, group: Option<AccessGroup>) -> bool {
        group.is_none_or(|group| !self.reserved_by_other && self.rights.allow(group))
    }
}
