//! What a host sends to have namespaces or their reservations changed.

use std::net::IpAddr;

use raceline_proto::controller::ManagementCommand;
use raceline_proto::nvme::feature::WriteProtection;
use raceline_proto::nvme::registration::Registration;
use raceline_proto::nvme::{HostNqn, NamespaceId, Nqn};
use raceline_proto::reservation::{ReservationCommand, ReservingHost};
use raceline_scsi::{Change, Nexus};

use crate::records::names::{CommandPlace, DeviceId};

/// A host's request.
pub(crate) struct ManagementRequest {
    pub(crate) nqn: Nqn,
    pub(crate) host: HostNqn,
    pub(crate) wish: HostWish,
    /// The command that is answered.
    pub(crate) from: CommandPlace,
}

/// What a host wants the thread that executes requests to do.
#[derive(Clone, Debug)]
pub(crate) enum HostWish {
    /// A change of the namespaces of a subsystem.
    Namespaces(ManagementCommand),
    /// A registration with this centralized discovery controller, from this address.
    Register(Box<Registration>, IpAddr),
}

/// What the thread that changes reservations is asked for.
pub(crate) enum DeviceRequest {
    /// By a host of NVMe.
    Namespace(ReservationRequest),
    /// By an I_T nexus of iSCSI.
    Unit(UnitRequest),
    /// By nobody: an I_T nexus has given up what it held by Reserve.
    Released(DeviceId),
    /// By the driver of manual cores: whether the commands that are waited for have ended.
    Look,
}

/// An I_T nexus's request about the reservations of a logical unit.
pub(crate) struct UnitRequest {
    pub(crate) device: DeviceId,
    pub(crate) nexus: Nexus,
    pub(crate) change: Change,
    /// The command that is answered.
    pub(crate) from: CommandPlace,
}

/// A host's request about the reservations or the write protection of a namespace.
pub(crate) struct ReservationRequest {
    pub(crate) nqn: Nqn,
    pub(crate) nsid: NamespaceId,
    pub(crate) host: ReservingHost,
    pub(crate) wish: NamespaceWish,
    /// The command that is answered.
    pub(crate) from: CommandPlace,
}

/// What a host wants of a namespace that it does not own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NamespaceWish {
    Reserve(ReservationCommand),
    Protect(WriteProtection),
}
