//! Where the reservations of namespaces persist: in the file that their call names, or in the state directory.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use raceline_proto::nvme::Nqn;
use raceline_target::ReservationPlace;

use super::Namespace;
use crate::manager::{Manager, ManagerError};
use crate::ptpl::ReservationFile;

/// Only the owner may enter the directory.
const DIRECTORY_MODE: u32 = 0o700;

/// The place for the reservations of a namespace; `None`: they cannot persist.
///
/// # Errors
/// When the file cannot be used, or is damaged.
pub(super) fn reservation_place(
    manager: &Manager,
    nqn: &Nqn,
    namespace: &Namespace,
) -> Result<Option<ReservationPlace>, ManagerError> {
    let path = match (&namespace.ptpl_file, &manager.config().reservations) {
        (Some(file), _) => file.clone(),
        (None, Some(directory)) => in_directory(directory.clone(), nqn, namespace)?,
        (None, None) => return Ok(None),
    };
    let file = ReservationFile::open(&path, namespace.uuid)?;
    let saved = file.load()?;
    if !saved.registrants.is_empty() {
        let (registrants, held) = (saved.registrants.len(), saved.held.map(|held| held.kind));
        tracing::info!(%nqn, file = %path.display(), registrants, ?held, "reservations are back");
    }
    Ok(Some(ReservationPlace { store: Arc::new(file), saved }))
}

/// The file of a namespace in the state directory. It has the namespace's identity in its name, and not its number,
/// so that registrations stay with the data. The same device may be in several subsystems, one after the other.
fn in_directory(
    directory: PathBuf,
    nqn: &Nqn,
    namespace: &Namespace,
) -> Result<PathBuf, ManagerError> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(&directory);
    made.map_err(|error| {
        let directory = directory.display();
        ManagerError::Invalid(format!(
            "cannot make {directory}, where reservations are kept: {error}"
        ))
    })?;
    let subsystem = raceline_crc32c::crc32c(nqn.as_str().as_bytes());
    Ok(directory.join(format!("{}-{subsystem:08x}.json", namespace.uuid)))
}
