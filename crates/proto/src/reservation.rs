//! Reservations of a namespace: who is registered, who holds it, what each host may do (Base 2.0, 8.19).
//!
//! [`Reservations`] is the state of one namespace. [`Reservations::apply`] gives what a command makes of it,
//! without changing it: the driver keeps the new state on stable media if it persists, shows it to all cores,
//! and only then answers the command. Hosts are told by the notices of the [`Outcome`].

mod access;
mod command;
mod report;
mod state;

pub use access::{AccessGroup, Rights, Role, access_group, rights};
pub use command::{
    AcquireAction, Persistence, RegisterAction, ReleaseAction, ReservationCommand,
    is_reservation_command, parse_reservation,
};
pub use report::{parse_report, put_report};
pub use state::{Held, MAX_REGISTRANTS, Notice, Outcome, Registrant, Reservations, ReservingHost};
