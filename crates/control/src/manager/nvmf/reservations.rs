//! Where the reservations of namespaces persist, in the file that their call names or in the state directory, and
//! where their write protection does, in the state directory.

use std::path::PathBuf;
use std::sync::Arc;

use raceline_proto::nvme::Nqn;
use raceline_target::{ProtectionPlace, ReservationPlace};

use super::Namespace;
use crate::manager::{Manager, ManagerError, reservations};
use crate::ptpl::ProtectionFile;

/// The places for the reservations and for the write protection of a namespace.
pub(super) type Places = (Option<ReservationPlace>, Option<ProtectionPlace>);

/// The places for what hosts decide about a namespace.
///
/// # Errors
/// When a file cannot be used, or is damaged.
pub(super) fn places_of(
    manager: &Manager,
    nqn: &Nqn,
    namespace: &Namespace,
) -> Result<Places, ManagerError> {
    let reservations = reservation_place(manager, nqn, namespace)?;
    let Some(directory) = manager.config().protected.clone() else {
        return Ok((reservations, None));
    };
    let path = in_directory(directory, nqn, namespace, "protected")?;
    let file = ProtectionFile::open(&path)?;
    let is_protected = file.is_protected()?;
    if is_protected {
        tracing::info!(%nqn, bdev = namespace.bdev_name, "a host has write protected this namespace");
    }
    Ok((reservations, Some(ProtectionPlace { store: Arc::new(file), is_protected })))
}

/// The place for the reservations of a namespace; `None`: they cannot persist.
///
/// # Errors
/// When the file cannot be used, or is damaged.
fn reservation_place(
    manager: &Manager,
    nqn: &Nqn,
    namespace: &Namespace,
) -> Result<Option<ReservationPlace>, ManagerError> {
    let path = match (&namespace.ptpl_file, &manager.config().reservations) {
        (Some(file), _) => file.clone(),
        (None, Some(directory)) => in_directory(directory.clone(), nqn, namespace, "json")?,
        (None, None) => return Ok(None),
    };
    Ok(Some(reservations::place(&path, namespace.uuid, nqn.as_str())?))
}

/// The file of a namespace in the state directory. It has the namespace's identity in its name, and not its number,
/// so that registrations stay with the data. The same device may be in several subsystems, one after the other.
fn in_directory(
    directory: PathBuf,
    nqn: &Nqn,
    namespace: &Namespace,
    extension: &str,
) -> Result<PathBuf, ManagerError> {
    let directory = reservations::made(directory)?;
    let subsystem = raceline_crc32c::crc32c(nqn.as_str().as_bytes());
    Ok(directory.join(format!("{}-{subsystem:08x}.{extension}", namespace.uuid)))
}
