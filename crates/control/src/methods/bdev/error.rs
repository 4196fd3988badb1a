//! `bdev_error_*`: a device that fails, holds or corrupts requests on demand.

use std::any::Any;
use std::num::NonZeroU8;
use std::sync::Arc;

use raceline_bdev::{InjectBdev, InjectControl, Injected, Injection, OpKind};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::Name;
use super::stacked::{self, Stacked};
use crate::error::RpcError;
use crate::manager::bdevs::{Details, Entry};
use crate::manager::catalogue::Key;
use crate::method::{Call, Registry, States};

/// What SPDK puts before the name of the device below.
const PREFIX: &str = "EE_";

pub(super) fn register(registry: &mut Registry) {
    registry.change("bdev_error_create", States::Runtime, create);
    registry.alias("construct_error_bdev", "bdev_error_create");
    registry.change("bdev_error_delete", States::Runtime, delete);
    registry.alias("delete_error_bdev", "bdev_error_delete");
    registry.change("bdev_error_inject_error", States::Runtime, inject);
    registry.alias("bdev_inject_error", "bdev_error_inject_error");
    registry.change("bdev_error_resume_pending", States::Runtime, resume);
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Create {
    base_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<Uuid>,
}

struct Injecting {
    control: InjectControl,
    base: String,
}

impl Details for Injecting {
    fn driver_specific(&self) -> Value {
        json!({ "error_disk": { "base_bdev": self.base } })
    }

    /// Held requests would keep the device from becoming quiet.
    fn before_removal(&self) {
        self.control.clear();
        self.control.resume();
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Stacked for Create {
    const METHOD: &'static str = "bdev_error_create";
    const MODULE: &'static str = "error";

    fn base(&self) -> &str {
        &self.base_name
    }

    fn key(&self) -> Key {
        Key::new(&["bdev", &format!("{PREFIX}{}", self.base_name)])
    }

    fn make(&self, base: &Entry) -> Result<Vec<Entry>, RpcError> {
        super::check_levels(base)?;
        let (device, control) = InjectBdev::new(base.device.clone());
        let details = Injecting { control, base: base.name.clone() };
        let uuid = super::uuid_on(base, Self::MODULE, self.uuid);
        let name = format!("{PREFIX}{}", self.base_name);
        let product = "Error Injection Disk";
        Ok(vec![
            Entry::with_uuid(&name, uuid, Self::MODULE, product, Arc::new(device))
                .described_by(details),
        ])
    }
}

fn create(call: &Call<'_>, params: Create) -> Result<bool, RpcError> {
    stacked::create(call, &params)?;
    Ok(true)
}

fn delete(call: &Call<'_>, Name { name }: Name) -> Result<bool, RpcError> {
    stacked::delete::<Create>(call, &name, Key::new(&["bdev", &name]))
}

#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum IoType {
    Clear,
    Read,
    Write,
    Unmap,
    Flush,
    All,
}

impl IoType {
    fn kinds(self) -> &'static [OpKind] {
        match self {
            Self::Clear => &[],
            Self::Read => &[OpKind::Read],
            Self::Write => &[OpKind::Write],
            Self::Unmap => &[OpKind::Deallocate],
            Self::Flush => &[OpKind::Flush],
            Self::All => &[OpKind::Read, OpKind::Write, OpKind::Deallocate, OpKind::Flush],
        }
    }
}

#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ErrorType {
    Failure,
    Pending,
    CorruptData,
    Nomem,
    NvmeFailure,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Inject {
    name: String,
    io_type: IoType,
    error_type: ErrorType,
    #[serde(default)]
    nvme_sct: u32,
    #[serde(default)]
    nvme_sc: u32,
    #[serde(default = "one")]
    num: u32,
    #[serde(default)]
    queue_depth: u64,
    #[serde(default)]
    corrupt_offset: u64,
    #[serde(default)]
    corrupt_value: u8,
}

const fn one() -> u32 {
    1
}

impl Inject {
    fn what(&self) -> Result<Injected, RpcError> {
        let invalid = |detail: &str| RpcError::errno(libc::EINVAL).because(detail);
        let has_status = self.nvme_sct != 0 || self.nvme_sc != 0;
        if has_status != (self.error_type == ErrorType::NvmeFailure) {
            let text = "nvme_sct or nvme_sc should be specified for NVMe error injection";
            return Err(RpcError::new(-libc::EINVAL, text));
        }
        Ok(match self.error_type {
            ErrorType::Failure => Injected::Failure,
            ErrorType::Pending => Injected::Held,
            ErrorType::Nomem => Injected::NoMemory,
            ErrorType::CorruptData => Injected::Corrupt {
                offset: self.corrupt_offset,
                bits: NonZeroU8::new(self.corrupt_value)
                    .ok_or_else(|| invalid("corrupt_value 0 corrupts nothing"))?,
            },
            ErrorType::NvmeFailure => {
                let sct = u8::try_from(self.nvme_sct).ok().filter(|sct| *sct <= 7);
                let sc = u8::try_from(self.nvme_sc).ok();
                let (Some(sct), Some(sc)) = (sct, sc) else {
                    return Err(invalid("nvme_sct has 3 bits, nvme_sc has 8"));
                };
                Injected::Status { sct, sc }
            }
        })
    }
}

fn inject(call: &Call<'_>, params: Inject) -> Result<bool, RpcError> {
    let what = params.what()?;
    with_control(call, &params.name, |control| {
        if params.io_type == IoType::Clear {
            control.clear();
        }
        let injection = Injection { what, count: params.num, depth: params.queue_depth };
        for kind in params.io_type.kinds() {
            control.inject(*kind, injection);
        }
    })
}

fn resume(call: &Call<'_>, Name { name }: Name) -> Result<bool, RpcError> {
    with_control(call, &name, InjectControl::resume)
}

/// Injected errors are not part of the configuration: a restart forgets them.
fn with_control(
    call: &Call<'_>,
    name: &str,
    act: impl FnOnce(&InjectControl),
) -> Result<bool, RpcError> {
    let model = call.manager.model();
    let bdev = model.bdev(name)?;
    let Some(Injecting { control, .. }) = bdev.details.as_any().downcast_ref() else {
        let detail = format!("`{name}` is a {} device: bdev_error_create makes one", bdev.module);
        return Err(RpcError::errno(libc::ENODEV).because(detail));
    };
    act(control);
    Ok(true)
}
