//! `bdev_aio_*` and `bdev_uring_*`: files and block devices, both through the core's own ring.

use std::io;

use raceline_bdev::{Backing, BlockSize, DeviceSpec};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use super::{Name, Plain, Zero, block_size_of, open};
use crate::error::RpcError;
use crate::manager::Change;
use crate::manager::bdevs::Entry;
use crate::manager::catalogue::{self, Key, Section};
use crate::method::{Call, Registry, States};

const AIO: &str = "aio";
const URING: &str = "uring";

pub(super) fn register(registry: &mut Registry) {
    registry.change("bdev_aio_create", States::Runtime, create_aio);
    registry.alias("construct_aio_bdev", "bdev_aio_create");
    registry.change("bdev_aio_rescan", States::Runtime, rescan_aio);
    registry.change("bdev_aio_delete", States::Runtime, delete_aio);
    registry.alias("delete_aio_bdev", "bdev_aio_delete");
    registry.change("bdev_uring_create", States::Runtime, create_uring);
    registry.change("bdev_uring_rescan", States::Runtime, rescan_uring);
    registry.change("bdev_uring_delete", States::Runtime, delete_uring);
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateAio {
    name: String,
    filename: String,
    /// 0: the smallest block size that the file or device supports.
    #[serde(default, skip_serializing_if = "Zero::is_zero")]
    block_size: u32,
    #[serde(default)]
    readonly: bool,
    /// Ignored: holes are always punched where the file system can.
    #[serde(default)]
    fallocate: bool,
    uuid: Option<Uuid>,
    /// Ignored: no submission ever waits, because the ring has threads for operations that would.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    nowait: bool,
    /// Uses the page cache where direct I/O does not work. SPDK falls back to it without being asked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    buffered: bool,
    /// Other programs that say so too may have it open, such as the other daemon of a pair. SPDK never looks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    shared: bool,
}

fn create_aio(call: &Call<'_>, params: CreateAio) -> Result<String, RpcError> {
    let spec = spec(&params.filename, params.block_size, params.uuid)?;
    let backing = backing(&params.filename, params.buffered);
    let spec = DeviceSpec { read_only: params.readonly, shared: params.shared, backing, ..spec };
    let details = Plain(json!({ "aio": {
        "filename": params.filename,
        "block_size_override": params.block_size != 0,
        "readonly": params.readonly,
        "fallocate": params.fallocate,
        "nowait": params.nowait,
    } }));
    call.manager.change(|change| {
        let (name, bdev) = make(change, &params.name, (AIO, "AIO disk"), &spec)?;
        let canonical = CreateAio { uuid: Some(bdev.uuid), ..params };
        let entry = catalogue::Entry::new(Section::Bdev, "bdev_aio_create", &canonical)?;
        super::add(change, bdev.described_by(details), entry)?;
        Ok(name)
    })
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateUring {
    name: String,
    filename: String,
    #[serde(default, skip_serializing_if = "Zero::is_zero")]
    block_size: u32,
    uuid: Option<Uuid>,
    /// As with `bdev_aio_create`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    buffered: bool,
    /// Other programs that say so too may have it open, such as the other daemon of a pair. SPDK never looks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    shared: bool,
}

fn create_uring(call: &Call<'_>, params: CreateUring) -> Result<String, RpcError> {
    let spec = spec(&params.filename, params.block_size, params.uuid)?;
    let backing = backing(&params.filename, params.buffered);
    let spec = DeviceSpec { backing, shared: params.shared, ..spec };
    let details = Plain(json!({ "uring": { "filename": params.filename } }));
    call.manager.change(|change| {
        let made = make(change, &params.name, (URING, "URING bdev"), &spec);
        // SPDK has one answer to every failure.
        let (name, bdev) = made
            .map_err(|error| RpcError::internal("Unable to create URING bdev.").because(error))?;
        let canonical = CreateUring { uuid: Some(bdev.uuid), ..params };
        let entry = catalogue::Entry::new(Section::Bdev, "bdev_uring_create", &canonical)?;
        super::add(change, bdev.described_by(details), entry)?;
        Ok(name)
    })
}

fn spec(filename: &str, block_size: u32, uuid: Option<Uuid>) -> Result<DeviceSpec, RpcError> {
    let block_size: Option<BlockSize> =
        if block_size == 0 { None } else { Some(block_size_of(block_size)?) };
    let uuid = uuid.filter(|uuid| !uuid.is_nil());
    Ok(DeviceSpec { block_size, uuid, ..DeviceSpec::new(backing(filename, false)) })
}

/// A file is never created, as in SPDK.
fn backing(filename: &str, buffered: bool) -> Backing {
    let path = filename.into();
    if buffered { Backing::File { path, size: None, buffered } } else { Backing::Path { path } }
}

fn make(
    change: &Change<'_>,
    name: &str,
    (module, product_name): (&'static str, &'static str),
    spec: &DeviceSpec,
) -> Result<(String, Entry), RpcError> {
    change.model().bdevs.check_name(name)?;
    let bdev = Entry::new(name, module, product_name, open(change, spec)?);
    Ok((name.to_owned(), bdev.kept_as(Key::new(&["bdev", name]))))
}

fn delete_aio(call: &Call<'_>, Name { name }: Name) -> Result<bool, RpcError> {
    super::delete(call, &name, AIO)
}

fn delete_uring(call: &Call<'_>, Name { name }: Name) -> Result<bool, RpcError> {
    super::delete(call, &name, URING)
}

fn rescan_aio(call: &Call<'_>, Name { name }: Name) -> Result<bool, RpcError> {
    rescan(call, &name, AIO)
}

fn rescan_uring(call: &Call<'_>, Name { name }: Name) -> Result<bool, RpcError> {
    rescan(call, &name, URING)
}

/// Hosts are told of a device that has grown. A device that has shrunk keeps its size: the data beyond its
/// end are lost, and reading them must fail.
fn rescan(call: &Call<'_>, name: &str, module: &str) -> Result<bool, RpcError> {
    call.manager.change(|change| {
        let bdev = super::find(change, name, module)?;
        bdev.device.rescan().map_err(|error| {
            let errno = match error.kind() {
                io::ErrorKind::InvalidInput => libc::EBUSY,
                _ => error.raw_os_error().unwrap_or(libc::EIO),
            };
            RpcError::errno(errno).because(error)
        })?;
        change.manager().sizes_changed()?;
        Ok(true)
    })
}
