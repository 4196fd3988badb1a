//! Reservations of a device: who is registered, who holds it, what each may do (Base 2.0, 8.19; SPC-5, 5.14).
//!
//! [`Reservations`] is the state of one device. Hosts of NVMe and I_T nexuses of iSCSI are registrants of the same one.
//! [`Reservations::apply`] gives what a command of NVMe makes of it, without changing it; commands of SCSI are made of
//! the same operations ([`Change`]). The driver keeps the new state on stable media if it persists, shows it to all
//! cores, and only then answers the command. Others are told by the notices of the [`Outcome`].

mod access;
mod apply;
mod change;
mod command;
mod nexus;
mod report;
mod state;

pub use access::{AccessGroup, Rights, Role, access_group, rights};
pub use change::{Change, Denied};
pub use command::{
    AcquireAction, Persistence, RegisterAction, ReleaseAction, ReservationCommand,
    is_reservation_command, parse_reservation,
};
pub use nexus::{Nexus, Port};
pub use report::{parse_report, put_report};
pub use state::{
    Held, MAX_REGISTRANTS, Notice, Outcome, Registrant, Reservations, ReservingHost, Who,
};
