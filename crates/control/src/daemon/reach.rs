//! The part of the file system that a daemon needs, for a process that gives up the rest before it starts one.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;

use super::{DaemonConfig, StartError, read_config};
use crate::cores::LOCK_DIRECTORY;
use crate::server::socket_directory;
use crate::state::read_catalogue;

/// The parameters of methods that name files.
const FILE_PARAMETERS: [&str; 2] = ["filename", "path"];

/// What a daemon needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Directories in which it makes and removes files: of the socket, of the state, of locks.
    pub own: Vec<PathBuf>,
    /// Files and devices that the configuration names, kept or to be loaded. They need not be there.
    pub data: Vec<PathBuf>,
}

impl Reach {
    /// Finds it out, and makes the directories that [`Daemon::start`](super::Daemon::start) would make. Reads the
    /// configuration into `config`. Starts no thread.
    ///
    /// # Errors
    /// When the configuration or the state cannot be read, as the start of the daemon would say.
    pub fn of(config: &mut DaemonConfig) -> Result<Self, StartError> {
        let mut reach = Self::default();
        let mut data = BTreeSet::new();
        if let Some(file) = &config.config {
            let sections = config.calls.insert(read_config(file)?);
            let calls = sections.iter().flat_map(|section| &section.config);
            calls.filter_map(|call| call.params.as_ref()).for_each(|all| collect(all, &mut data));
        }
        if let Some(dir) = &config.state_dir {
            let catalogue = read_catalogue(dir)?;
            catalogue.entries().for_each(|(_, entry)| collect(&entry.params, &mut data));
            reach.own.push(dir.clone());
        }
        reach.own.push(socket_directory(&config.socket)?);
        if !config.cores.is_empty() {
            reach.own.push(LOCK_DIRECTORY.into());
        }
        reach.data = data.into_iter().collect();
        Ok(reach)
    }
}

/// Adds the files that a call names, as the system resolves names: against the working directory.
fn collect(params: &Value, files: &mut BTreeSet<PathBuf>) {
    let named = FILE_PARAMETERS.iter().filter_map(|name| params.get(name)?.as_str());
    files.extend(named.filter_map(|name| std::path::absolute(name).ok()));
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    #[test]
    fn the_files_of_a_configuration_are_within_reach() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.json");
        let calls = json!({ "subsystems": [{ "subsystem": "bdev", "config": [
            { "method": "bdev_aio_create", "params": { "name": "A", "filename": "/srv/a.img" } },
            { "method": "bdev_uring_create", "params": { "name": "B", "filename": "b.img" } },
            { "method": "bdev_malloc_create", "params": { "name": "/srv/no", "num_blocks": 8 } },
            { "method": "bdev_aio_create", "params": { "name": "A2", "filename": "/srv/a.img" } },
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
        assert_eq!(config.calls.unwrap()[0].config.len(), 4);
        let relative = std::env::current_dir().unwrap().join("b.img");
        let mut data = vec!["/srv/a.img".into(), relative];
        data.sort();
        assert_eq!(reach.data, data);
        assert_eq!(reach.own, [state, folder.path().join("run"), "/var/tmp".into()]);
        assert!(reach.own.iter().all(|directory| directory.is_dir()));
    }

    #[test]
    fn what_is_kept_is_within_reach() {
        use crate::manager::catalogue::{Catalogue, Entry, Key, Record, Section};
        use crate::manager::journal::Journal as _;
        use crate::state::StateJournal;
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let (journal, _) = StateJournal::open(&state).unwrap();
        let params = json!({ "name": "A", "filename": "/srv/kept.img" });
        let entry = Entry { section: Section::Bdev, method: "bdev_aio_create".to_owned(), params };
        let record = Record::Put { key: Key::new(&["bdev", "A"]), entry };
        let position = journal.keep(&record).unwrap();
        journal.wait(position).unwrap();
        drop(journal);
        let mut config = DaemonConfig {
            socket: folder.path().join("rpc.sock"),
            state_dir: Some(state.clone()),
            ..DaemonConfig::default()
        };
        assert_eq!(Reach::of(&mut config).unwrap().data, [Path::new("/srv/kept.img")]);
        // Reading changed nothing, and the directory is free again.
        let (_, kept) = StateJournal::open(&state).unwrap();
        let mut expected = Catalogue::default();
        expected.apply(record);
        assert_eq!(kept.catalogue, expected);
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
