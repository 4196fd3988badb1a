//! Where commands may read and write in a namespace.

use super::subsystem::Namespace;
use crate::nvme::Status;

/// Checks that blocks lie within the namespace.
pub(super) fn check_range(
    slba: u64,
    block_count: u32,
    namespace: &Namespace,
) -> Result<(), Status> {
    match slba.checked_add(block_count.into()) {
        Some(end) if end <= namespace.block_count => Ok(()),
        _ => Err(Status::LBA_OUT_OF_RANGE.dnr()),
    }
}

/// Checks that the namespace takes writes.
pub(super) fn refuse_read_only(namespace: &Namespace) -> Result<(), Status> {
    if namespace.read_only { Err(Status::NAMESPACE_WRITE_PROTECTED.dnr()) } else { Ok(()) }
}
