//! Connected controllers and their namespaces.

#![allow(unsafe_code)]

use std::ptr::null_mut;

use ::raceline_host::{CallerHost, NamespaceInfo};
use raceline_proto::nvme::NamespaceId;
use raceline_proto::nvme::identify::{ONCS_DATASET_MANAGEMENT, ONCS_WRITE_ZEROES};

use crate::boundary::{check, guard, write};
use crate::config::{raceline_config, sized_config};
use crate::handle::{Named, Shared};
use crate::status::{Failure, RACELINE_OK};

/// Flag of raceline_namespace: the controller refuses writes to the namespace.
pub const RACELINE_NAMESPACE_READ_ONLY: u32 = 1;
/// Flag of raceline_namespace: the controller supports raceline_write_zeroes().
pub const RACELINE_NAMESPACE_WRITE_ZEROES: u32 = 2;
/// Flag of raceline_namespace: the controller supports raceline_deallocate().
pub const RACELINE_NAMESPACE_DEALLOCATE: u32 = 4;
/// Flag of raceline_namespace: the controller has a volatile write cache. Written data are on stable media
/// only after raceline_flush() or with RACELINE_FUA.
pub const RACELINE_NAMESPACE_CACHE: u32 = 8;

/// A connected controller. raceline_connect() makes it, and raceline_disconnect() ends it. Several threads
/// may use it at a time. A thread of the library sends its keep alives, and reconnects it when it is lost.
pub struct raceline_host {
    _private: [u8; 0],
}

impl Named for CallerHost {
    const NAME: &'static str = "host";
    const MAGIC: u64 = u64::from_be_bytes(*b"rl:host:");
}

/// What the controller says of a namespace. The caller owns the structure.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct raceline_namespace {
    /// Identifier of the namespace.
    pub nsid: u32,
    /// Bytes of a block.
    pub block_size: u32,
    /// Number of blocks.
    pub block_count: u64,
    /// Most bytes that one command moves; UINT32_MAX: the controller sets no limit. The library sends a
    /// larger operation as several commands, which are not one atomic write.
    pub max_transfer_bytes: u32,
    /// Any of RACELINE_NAMESPACE_*.
    pub flags: u32,
    /// UUID; zeroes: the namespace has none.
    pub uuid: [u8; 16],
    /// NGUID; zeroes: the namespace has none.
    pub nguid: [u8; 16],
}

/// Connects to a controller, and waits until the controller is ready and the library knows its namespaces.
///
/// On success `*host` is a handle, which the caller ends with raceline_disconnect(). On failure `*host` is
/// NULL. The call makes one attempt. The three steps of connecting take at most connect_timeout_ms
/// each, and each admin command after them takes at most command_timeout_ms.
///
/// It gives RACELINE_INVALID when `config` cannot be used, RACELINE_CANNOT_CONNECT when the controller
/// cannot be reached, and RACELINE_REFUSED when the controller refuses this host or cannot be used.
///
/// # Safety
/// `config` is valid for reads of the bytes that its `size` says; its texts are null or end with a 0 byte;
/// `host` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raceline_connect(
    config: *const raceline_config,
    host: *mut *mut raceline_host,
) -> i32 {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe { write(host, "host", null_mut()) }?;
        // SAFETY: as the caller promises.
        let config = unsafe { sized_config(config) }?;
        // SAFETY: as the caller promises.
        let config = unsafe { config.parse() }?;
        let handle = Shared::open(CallerHost::connect(config)?).cast();
        // SAFETY: as the caller promises.
        unsafe { write(host, "host", handle) }?;
        Ok(RACELINE_OK)
    })
}

/// Shuts the controller down in order, waits until that has ended, and closes the handle.
///
/// Later calls on the handle give RACELINE_CLOSED. Queues of this host that are still open take no more
/// operations, and their outstanding operations end with an error. The caller still closes each of them
/// with raceline_queues_close().
///
/// # Safety
/// `host` is a handle of raceline_connect().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raceline_disconnect(host: *mut raceline_host) -> i32 {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe { Shared::<CallerHost>::close(host.cast()) }?.disconnect();
        Ok(RACELINE_OK)
    })
}

/// Writes the identifiers of the active namespaces to `nsids`, in ascending order and at most `max` of them.
///
/// It gives the number of active namespaces, which may be more than `max`. While the controller is lost,
/// it gives those that the library knew at raceline_connect().
///
/// # Safety
/// `host` is a handle of raceline_connect(); `nsids` is valid for writes of `max` numbers, or null
/// when `max` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raceline_namespace_ids(
    host: *const raceline_host,
    nsids: *mut u32,
    max: usize,
) -> i32 {
    guard(|| {
        // SAFETY: as the caller promises.
        let namespaces = unsafe { host_of(host) }?.admin().namespaces();
        if max > 0 {
            check(nsids, "nsids")?;
        }
        for (index, info) in namespaces.iter().enumerate().take(max) {
            // SAFETY: `index` is less than `max`, and the caller promises room for `max` numbers.
            unsafe { nsids.add(index).write(info.nsid.0) };
        }
        Ok(i32::try_from(namespaces.len()).unwrap_or(i32::MAX))
    })
}

/// Describes a namespace as the library knows it now. `size` is sizeof(raceline_namespace) of the caller.
///
/// It gives RACELINE_INVALID when the controller has no active namespace `nsid`: raceline_error_text() then
/// lists those that it has.
///
/// # Safety
/// `host` is a handle of raceline_connect(); `namespace_info` is valid for writes of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raceline_namespace_info(
    host: *const raceline_host,
    nsid: u32,
    namespace_info: *mut raceline_namespace,
    size: usize,
) -> i32 {
    guard(|| {
        if size < size_of::<raceline_namespace>() {
            return Err(Failure::invalid(
                "size is too small: build with the header of this library",
            ));
        }
        // SAFETY: as the caller promises.
        let host = unsafe { host_of(host) }?;
        let Some(info) = host.admin().namespace(NamespaceId(nsid)) else {
            let all: Vec<String> =
                host.admin().namespaces().iter().map(|info| info.nsid.to_string()).collect();
            return Err(Failure::invalid(format!(
                "{} has no namespace {nsid}; it has: {}",
                host.config().subnqn,
                if all.is_empty() { "none".to_owned() } else { all.join(", ") }
            )));
        };
        // SAFETY: as the caller promises.
        unsafe { write(namespace_info, "namespace_info", describe(&host, &info)) }?;
        Ok(RACELINE_OK)
    })
}

/// The controller of a handle.
///
/// # Safety
/// As [`Shared::get`].
pub(crate) unsafe fn host_of(host: *const raceline_host) -> Result<CallerHost, Failure> {
    // SAFETY: as the caller promises.
    unsafe { Shared::get(host.cast()) }
}

fn describe(host: &CallerHost, info: &NamespaceInfo) -> raceline_namespace {
    let controller = host.admin().controller();
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    raceline_namespace {
        nsid: info.nsid.0,
        block_size: info.block_size,
        block_count: info.block_count,
        max_transfer_bytes: controller.max_transfer_bytes.unwrap_or(u32::MAX),
        flags: flag(info.read_only, RACELINE_NAMESPACE_READ_ONLY)
            | flag(controller.oncs & ONCS_WRITE_ZEROES != 0, RACELINE_NAMESPACE_WRITE_ZEROES)
            | flag(controller.oncs & ONCS_DATASET_MANAGEMENT != 0, RACELINE_NAMESPACE_DEALLOCATE)
            | flag(controller.volatile_write_cache, RACELINE_NAMESPACE_CACHE),
        uuid: info.uuid,
        nguid: info.nguid,
    }
}
