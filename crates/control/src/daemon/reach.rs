//! The directories that a daemon needs, for a process that gives up the rest before it starts one.

use std::path::{Path, PathBuf};

use super::{DaemonConfig, PROTECTED, RESERVATIONS, StartError, read_config};
use crate::cores::LOCK_DIRECTORY;
use crate::folders::make_durable;
use crate::server::socket_directory;
use crate::state::{RealDisk, StateError};

/// Only the owner may enter a folder.
const DIRECTORY_MODE: u32 = 0o700;

/// What a daemon needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Directories in which it makes and removes files: of the socket, of the state, of locks.
    pub own: Vec<PathBuf>,
}

impl Reach {
    /// Finds it out, and makes the directories that [`Daemon::start`](super::Daemon::start) would make. Reads the
    /// configuration into `config`. Starts no thread.
    ///
    /// # Errors
    /// When the configuration or the state cannot be read, as the start of the daemon would say.
    pub fn of(config: &mut DaemonConfig) -> Result<Self, StartError> {
        let mut reach = Self::default();
        if let Some(file) = &config.config {
            config.calls = Some(read_config(file)?);
        }
        if let Some(dir) = &config.state_dir {
            // Makes it, and says now if another daemon uses it.
            drop(RealDisk::open(dir)?);
            make_folders(dir)?;
            reach.own.push(dir.clone());
        }
        reach.own.push(socket_directory(&config.socket)?);
        if !config.cores.is_empty() {
            reach.own.push(LOCK_DIRECTORY.into());
        }
        Ok(reach)
    }
}

/// Makes the folders of a state directory: the daemon itself may only make files there.
fn make_folders(state_dir: &Path) -> Result<(), StateError> {
    for name in [RESERVATIONS, PROTECTED] {
        let folder = state_dir.join(name);
        make_durable(&folder, DIRECTORY_MODE).map_err(|error| StateError::Io {
            action: "make the folder",
            file: folder,
            reason: error.to_string(),
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn directories_are_made_and_the_configuration_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.json");
        let calls = json!({ "subsystems": [{ "subsystem": "bdev", "config": [
            { "method": "bdev_aio_create", "params": { "name": "A", "filename": "/srv/a.img" } },
        ] }] });
        std::fs::write(&file, calls.to_string()).unwrap();
        let state = folder.path().join("state");
        let mut config = DaemonConfig {
            socket: folder.path().join("run/rpc.sock"),
            config: Some(file),
            state_dir: Some(state.clone()),
            cores: vec![0],
            ..DaemonConfig::default()
        };
        let reach = Reach::of(&mut config).unwrap();
        assert_eq!(config.calls.unwrap()[0].config.len(), 1);
        assert!(["reservations", "protected"].iter().all(|name| state.join(name).is_dir()));
        assert_eq!(reach.own, [state, folder.path().join("run"), "/var/tmp".into()]);
        assert!(reach.own.iter().all(|directory| directory.is_dir()));
    }

    #[test]
    fn what_cannot_be_read_ends_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = DaemonConfig {
            socket: folder.path().join("rpc.sock"),
            config: Some(folder.path().join("missing.json")),
            ..DaemonConfig::default()
        };
        assert!(matches!(Reach::of(&mut config), Err(StartError::Config { .. })));
    }
}
