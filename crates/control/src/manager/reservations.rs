//! Files of the state directory in which reservations persist, for namespaces and for LUNs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use raceline_target::ReservationPlace;
use uuid::Uuid;

use crate::folders::make_durable;
use crate::manager::{ManagerConfig, ManagerError};
use crate::ptpl::{ReservationFile, ReservationFileError};

/// Only the owner may enter the directory.
const DIRECTORY_MODE: u32 = 0o700;

/// Makes sure of a directory for files of the state.
///
/// # Errors
/// When it cannot be made.
pub(super) fn made(directory: PathBuf) -> Result<PathBuf, ManagerError> {
    make_durable(&directory, DIRECTORY_MODE).map_err(|error| {
        let directory = directory.display();
        ManagerError::Invalid(format!(
            "cannot make {directory}, where the state of namespaces and LUNs is kept: {error}"
        ))
    })?;
    Ok(directory)
}

/// The place in a file; `what`: whose it is, for the log.
///
/// # Errors
/// When the file cannot be used, or is damaged.
pub(super) fn place(
    path: &Path,
    uuid: Uuid,
    what: &str,
) -> Result<ReservationPlace, ReservationFileError> {
    let file = ReservationFile::open(path, uuid)?;
    let saved = file.load()?;
    if !saved.registrants.is_empty() {
        let (registrants, held) = (saved.registrants.len(), saved.held.map(|held| held.kind));
        tracing::info!(what, file = %path.display(), registrants, ?held, "reservations are back");
    }
    Ok(ReservationPlace { store: Arc::new(file), saved })
}

/// The place of the logical unit over a device of this UUID, which all LUNs over the device are; `None`: there is no state
/// directory, so reservations cannot persist.
///
/// # Errors
/// When the file cannot be used, or is damaged.
pub(super) fn place_of_unit(
    config: &ManagerConfig,
    uuid: Uuid,
) -> Result<Option<ReservationPlace>, ManagerError> {
    let Some(directory) = config.reservations.clone() else { return Ok(None) };
    let path = made(directory)?.join(format!("{uuid}-iscsi.json"));
    Ok(Some(place(&path, uuid, "the LUNs over a device")?))
}
