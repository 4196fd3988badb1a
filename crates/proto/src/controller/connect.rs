//! Connect: its parsing and the checks that need no controller (Fabrics 1.1, 3.3).
//!
//! A Connect goes through [`connect_transfer`] (how much data), [`parse_connect`] (form),
//! [`find_subsystem`] (host and subsystem), and then either [`Controller::new`] for the admin queue or
//! [`Controller::handle_io_connect`] for an I/O queue. The form of all names is checked before
//! any of them is looked up.
//!
//! Do Not Retry is set only where a retry cannot help: a Linux host never reconnects after it.
//! An unknown subsystem or controller may be one that does not exist yet, or no longer exists,
//! because the target restarts.
//!
//! [`Controller::new`]: super::Controller::new
//! [`Controller::handle_io_connect`]: super::Controller::handle_io_connect

use std::fmt;
use std::sync::Arc;

use zerocopy::FromBytes;

use super::security::Channel;
use super::sgl::sgl_transfer;
use super::snapshot::TargetSnapshot;
use super::subsystem::{Limits, Subsystem};
use crate::nvme::fabrics::{CATTR_DISABLE_SQ_FLOW, ConnectData, ConnectWords};
use crate::nvme::opcode::fabrics;
use crate::nvme::{ControllerId, Direction, HostId, HostNqn, Nqn, QueueId, Sqe, Status, Transfer};

/// A Connect whose form is correct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// QID: the admin queue or an I/O queue.
    pub qid: QueueId,
    /// Entries of the queue: SQSIZE + 1, of which [`find_subsystem`] refuses 1.
    pub queue_entries: u32,
    /// The host asked that SQHD not be used.
    pub disable_sq_flow: bool,
    /// KATO: keep alive timeout in milliseconds; 0 is none.
    pub kato_ms: u32,
    /// HOSTID.
    pub hostid: HostId,
    /// CNTLID: [`ControllerId::DYNAMIC`] on the admin queue.
    pub cntlid: ControllerId,
    /// SUBNQN.
    pub subnqn: Nqn,
    /// HOSTNQN.
    pub hostnqn: HostNqn,
}

/// Why a Connect is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectError {
    /// Status of the response.
    pub status: Status,
    /// IPO: offset of the invalid parameter.
    pub ipo: u16,
    /// IATTR: the offset is into the Connect data, not into the SQE.
    pub in_data: bool,
}

impl ConnectError {
    /// No controller number is left: the host may try again later.
    pub const BUSY: Self = Self { status: Status::CONNECT_CONTROLLER_BUSY, ipo: 0, in_data: false };
    /// An I/O queue names a controller that does not exist (any more).
    pub const UNKNOWN_CONTROLLER: Self =
        Self { status: Status::CONNECT_INVALID_PARAMETERS, ipo: IPO_CNTLID, in_data: true };

    /// The host is not the one that it has proved to be.
    pub const OTHER_HOST: Self =
        Self { status: Status::CONNECT_INVALID_HOST.dnr(), ipo: IPO_HOSTNQN, in_data: true };

    /// The host has to come over TLS, or has to authenticate and has no key to do it with. It is told what every host is
    /// told that may not connect this way; a retry by the same way does not help.
    pub const TOO_LITTLE_SECURITY: Self = Self::OTHER_HOST;

    /// An invalid parameter in the SQE, which a retry does not make valid.
    pub(crate) const fn in_sqe(ipo: u16) -> Self {
        Self { status: Status::CONNECT_INVALID_PARAMETERS.dnr(), ipo, in_data: false }
    }

    /// An invalid parameter in the Connect data, which a retry does not make valid.
    pub(crate) const fn in_data(ipo: u16) -> Self {
        Self { status: Status::CONNECT_INVALID_PARAMETERS.dnr(), ipo, in_data: true }
    }

    /// A status without a parameter.
    pub(crate) const fn status(status: Status) -> Self {
        Self { status, ipo: 0, in_data: false }
    }

    /// The same, but a retry may help.
    pub(crate) const fn transient(self) -> Self {
        let status = Status::new(self.status.sct(), self.status.sc());
        Self { status, ..self }
    }

    /// DW0 of the response: IPO in bits 15:0, IATTR in bits 23:16.
    #[must_use]
    pub fn dw0(&self) -> u32 {
        u32::from(self.ipo) | u32::from(self.in_data) << 16
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.in_data { "data" } else { "command" };
        write!(f, "{} at byte {} of the Connect {place}", self.status, self.ipo)
    }
}

impl std::error::Error for ConnectError {}

/// Offset of QID in the SQE.
pub(crate) const IPO_QID: u16 = 42;
/// Offset of SQSIZE in the SQE.
pub(crate) const IPO_SQSIZE: u16 = 44;
/// Offset of CNTLID in the data.
pub(crate) const IPO_CNTLID: u16 = 16;
/// Offset of SUBNQN in the data.
pub(crate) const IPO_SUBNQN: u16 = 256;
/// Offset of HOSTNQN in the data.
pub(crate) const IPO_HOSTNQN: u16 = 512;

/// The data of the first command of a queue, which must be Connect.
///
/// # Errors
/// Command Sequence Error for any other command; an SGL that does not describe 1024 bytes.
pub fn connect_transfer(sqe: &Sqe) -> Result<Transfer, Status> {
    if sqe.opc != fabrics::OPCODE || sqe.fctype() != fabrics::CONNECT {
        return Err(Status::COMMAND_SEQUENCE_ERROR.dnr());
    }
    let max = u32::try_from(ConnectData::LEN).unwrap_or(u32::MAX);
    let transfer = sgl_transfer(sqe, Direction::HostToController, max)?;
    if transfer.len != max {
        return Err(Status::INVALID_FIELD.dnr());
    }
    Ok(transfer)
}

/// Reads a Connect and checks its form.
///
/// When a check fails: the error of the first that does.
pub fn parse_connect(sqe: &Sqe, data: &[u8]) -> Result<ConnectRequest, ConnectError> {
    let Ok(data) = ConnectData::ref_from_bytes(data) else {
        return Err(ConnectError::status(Status::INVALID_FIELD.dnr()));
    };
    let words = ConnectWords::parse(sqe);
    if words.recfmt != 0 {
        return Err(ConnectError::status(Status::CONNECT_INCOMPATIBLE_FORMAT.dnr()));
    }
    let subnqn = Nqn::from_field(&data.subnqn).map_err(|_| ConnectError::in_data(IPO_SUBNQN))?;
    let hostnqn =
        HostNqn::from_field(&data.hostnqn).map_err(|_| ConnectError::in_data(IPO_HOSTNQN))?;
    Ok(ConnectRequest {
        qid: words.qid,
        queue_entries: u32::from(words.sqsize) + 1,
        disable_sq_flow: words.cattr & CATTR_DISABLE_SQ_FLOW != 0,
        kato_ms: words.kato,
        hostid: HostId(data.hostid),
        cntlid: ControllerId(data.cntlid.get()),
        subnqn,
        hostnqn,
    })
}

/// The kind of controller that a Connect leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// A controller of an NVM subsystem.
    Io(Arc<Subsystem>),
    /// A controller of the discovery service.
    Discovery,
}

impl Role {
    /// The limits that it grants, in a target of that snapshot.
    #[must_use]
    pub fn limits<'a>(&'a self, snapshot: &'a TargetSnapshot) -> &'a Limits {
        match self {
            Self::Io(subsystem) => &subsystem.limits,
            Self::Discovery => &snapshot.discovery_limits,
        }
    }

    /// The subsystem, unless it is the discovery service.
    #[must_use]
    pub fn subsystem(&self) -> Option<&Arc<Subsystem>> {
        match self {
            Self::Io(subsystem) => Some(subsystem),
            Self::Discovery => None,
        }
    }
}

/// Looks the subsystem up and checks that the host may connect to it with such a queue, having
/// come by the listener `port_id` in this way. The discovery service answers at every listener.
///
/// When a check fails: the error of the first that does.
pub fn find_subsystem(
    snapshot: &TargetSnapshot,
    request: &ConnectRequest,
    (port_id, channel): (u16, Channel),
) -> Result<Role, ConnectError> {
    let role = if request.subnqn.is_discovery() {
        Role::Discovery
    } else {
        match snapshot.subsystem(&request.subnqn) {
            Some(subsystem) => Role::Io(Arc::clone(subsystem)),
            None => return Err(ConnectError::in_data(IPO_SUBNQN).transient()),
        }
    };
    if role.subsystem().is_some_and(|subsystem| !subsystem.hosts.admits(&request.hostnqn)) {
        let status = Status::CONNECT_INVALID_HOST.dnr();
        return Err(ConnectError { status, ipo: IPO_HOSTNQN, in_data: true });
    }
    if role.subsystem().is_some_and(|subsystem| !snapshot.leads_to(port_id, subsystem)) {
        // the listener may be about to be added, as after a restart
        let status = Status::CONNECT_INVALID_HOST;
        return Err(ConnectError { status, ipo: IPO_SUBNQN, in_data: true });
    }
    let subsystem = role.subsystem().map(|subsystem| &**subsystem);
    let demands = snapshot.demands(port_id, subsystem, &request.hostnqn);
    let concatenates = snapshot.must_concatenate(port_id, channel) && request.qid.is_admin();
    if demands.tls && channel == Channel::Plain && !concatenates {
        return Err(ConnectError::TOO_LITTLE_SECURITY);
    }
    let limits = role.limits(snapshot);
    let most =
        if request.qid.is_admin() { limits.max_admin_entries } else { limits.max_queue_entries };
    check_entries(request, most)?;
    if request.qid.is_admin() && request.cntlid != ControllerId::DYNAMIC {
        return Err(ConnectError::in_data(IPO_CNTLID));
    }
    Ok(role)
}

/// SQSIZE: one entry is always empty, so a queue needs two.
pub(crate) fn check_entries(request: &ConnectRequest, most: u16) -> Result<(), ConnectError> {
    if (2..=u32::from(most)).contains(&request.queue_entries) {
        Ok(())
    } else {
        Err(ConnectError::in_sqe(IPO_SQSIZE))
    }
}
