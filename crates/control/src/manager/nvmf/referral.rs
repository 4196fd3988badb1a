//! Referrals: other places where hosts may look.

use raceline_proto::nvme::Nqn;
use raceline_target::HostAccess;
use serde::Serialize;

use super::ListenAddress;
use crate::manager::ManagerError;

/// TRTYPE of RDMA in the Discovery log.
const TRTYPE_RDMA: u8 = 1;
/// TRTYPE of TCP in the Discovery log.
const TRTYPE_TCP: u8 = 3;

/// Another place that discovery points to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Referral {
    /// Where it is.
    pub address: ListenAddress,
    /// Whether it requires a secure channel.
    pub secure_channel: bool,
    /// The name of a discovery service, or of the one subsystem there.
    pub subnqn: String,
}

impl Referral {
    /// Whether another referral points to the same place; the secure channel does not matter.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.address, &self.subnqn) == (&other.address, &other.subnqn)
    }

    /// The referral in the form that the target takes.
    ///
    /// # Errors
    /// When the name is invalid.
    pub(super) fn to_target(&self) -> Result<raceline_target::Referral, ManagerError> {
        let subnqn =
            Nqn::new(&self.subnqn).map_err(|error| ManagerError::Invalid(error.to_string()))?;
        let ListenAddress { adrfam, traddr, trsvcid, .. } = self.address.clone();
        Ok(raceline_target::Referral {
            trtype: if self.address.is_rdma() { TRTYPE_RDMA } else { TRTYPE_TCP },
            adrfam: if adrfam == "IPv6" { 2 } else { 1 },
            traddr,
            trsvcid,
            subnqn,
            secure_channel: self.secure_channel,
            hosts: HostAccess::Any,
        })
    }
}
