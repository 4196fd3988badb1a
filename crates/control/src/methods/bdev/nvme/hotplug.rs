//! `bdev_nvme_set_hotplug`: attaches local drives that are plugged in.

use crate::error::RpcError;
use crate::manager::controllers::hotplug::{HotplugOptions, MAX_DRIVES, METHOD};
use crate::method::{Call, Registry, States};

pub(super) fn register(registry: &mut Registry) {
    registry.change(METHOD, States::Runtime, set);
    registry.alias("set_bdev_nvme_hotplug", METHOD);
}

fn set(call: &Call<'_>, params: HotplugOptions) -> Result<bool, RpcError> {
    let HotplugOptions { drives, detached, .. } = &params;
    let is_bad = |serial: &String| serial.is_empty() || serial.len() > 20;
    if drives.len() > MAX_DRIVES || drives.iter().chain(detached).any(is_bad) {
        let detail = format!(
            "drives and detached are serial numbers of 1 to 20 bytes, drives at most {MAX_DRIVES}"
        );
        return Err(RpcError::invalid_params(detail));
    }
    call.manager.change(|change| change.set_hotplug(params))?;
    Ok(true)
}
