//! `bdev_nvme_attach_controller` with `trtype` PCIe: a local drive, which stays with the kernel's driver.

use raceline_bdev::{IoPath, PciAddress};
use serde::{Deserialize, Serialize};

use super::{Attach, invalid};
use crate::error::RpcError;
use crate::manager::controllers::drive::LocalDrive;
use crate::manager::controllers::link::Link;
use crate::manager::{Manager, ManagerError};
use crate::method::Call;
use crate::params::refuse;

/// How SPDK spells the transport.
const PCIE: &str = "PCIe";

/// How clients spell the path of data.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Way {
    Block,
    Passthrough,
}

pub(super) fn is_local(params: &Attach) -> bool {
    params.trtype.eq_ignore_ascii_case(PCIE)
}

/// The PCI address of a drive; `None` if the parameters name no local drive.
pub(super) fn address(params: &Attach) -> Option<PciAddress> {
    params.traddr.parse().ok().filter(|_| is_local(params))
}

pub(super) fn attach(
    call: &Call<'_>,
    params: Attach,
    max_bdevs: usize,
) -> Result<Vec<String>, RpcError> {
    refuse(&[
        ("adrfam", params.adrfam.is_some()),
        ("trsvcid", params.trsvcid.is_some()),
        ("subnqn", params.subnqn.is_some()),
        ("hdgst", params.hdgst),
        ("ddgst", params.ddgst),
        ("hostaddr", params.hostaddr.is_some()),
        ("priority", params.priority.is_some()),
        ("dhchap_key", params.dhchap_key.is_some()),
        ("dhchap_ctrlr_key", params.dhchap_ctrlr_key.is_some()),
        ("fabrics_connect_timeout_us", params.fabrics_connect_timeout_us.is_some()),
    ])?;
    let address = params.traddr.parse();
    let address: PciAddress =
        address.map_err(|error| invalid("traddr is no PCI address".to_owned()).because(error))?;
    refuse_attached(call.manager, address)?;
    let drives = &call.manager.config().drives;
    let io_path = match params.io_path {
        None | Some(Way::Block) => IoPath::Block,
        Some(Way::Passthrough) => IoPath::Passthrough,
    };
    let drive = LocalDrive::find(drives, address, params.serial.as_deref(), io_path);
    let drive = drive.map_err(ManagerError::from)?;
    // After a restart, another drive in the same place must not be mistaken for this one.
    let serial = Some(drive.serial().to_owned()).filter(|serial| !serial.is_empty());
    let canonical =
        Attach { trtype: PCIE.to_owned(), traddr: address.to_string(), serial, ..params };
    super::take(call, Link::Drive(Box::new(drive)), (None, None), &canonical, max_bdevs)
}

/// Refuses a drive that is attached already: a drive has one address.
fn refuse_attached(manager: &Manager, address: PciAddress) -> Result<(), RpcError> {
    let model = manager.model();
    let other = model.controllers.values().find(|controller| match &controller.link {
        Link::Drive(drive) => drive.address() == address,
        Link::Remote(_) => false,
    });
    let Some(other) = other else { return Ok(()) };
    let detail = format!("the drive at {address} is attached already, as `{}`", other.name);
    Err(RpcError::errno(libc::EEXIST).because(detail))
}
