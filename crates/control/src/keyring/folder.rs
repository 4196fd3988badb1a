//! The folder `keys` of a state directory, and the other place where a key is found by its name.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::file::{self, FileError, Protection};
use crate::folders::make_durable;

/// The folder below a state directory.
const FOLDER: &str = "keys";
/// The variable in which systemd names the folder of a service's credentials.
const CREDENTIALS_VARIABLE: &str = "CREDENTIALS_DIRECTORY";
/// The longest name of a key that has a file of the same name.
const MAX_NAME_BYTES: usize = 128;
/// What the name of a key ends with that another one has replaced.
pub const OLD_SUFFIX: &str = ".old";

/// Where keys are found by their names.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// systemd's credentials of this service.
    pub credentials: Option<PathBuf>,
    /// The folder `keys` of the state directory.
    pub folder: Option<PathBuf>,
}

impl Places {
    /// The credentials of this service, if it has any, and the folder of a state directory.
    #[must_use]
    pub fn of(state_dir: Option<&Path>) -> Self {
        let credentials = std::env::var_os(CREDENTIALS_VARIABLE).map(PathBuf::from);
        let credentials = credentials.filter(|path| path.is_absolute());
        Self { credentials, folder: state_dir.map(|dir| dir.join(FOLDER)) }
    }

    /// The file of a key, and whom its protection is left to.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<(PathBuf, Protection)> {
        check_name(name).ok()?;
        let places = [(&self.credentials, Protection::Folder), (&self.folder, Protection::File)];
        places.into_iter().find_map(|(place, protection)| {
            let path = place.as_ref()?.join(name);
            // What is no regular file is found as well, and then refused with the reason.
            path.symlink_metadata().is_ok().then_some((path, protection))
        })
    }
}

/// The folder of a state directory in which keys lie, a file each. No other user can look into it.
#[derive(Clone, Debug)]
pub struct KeyFolder {
    path: PathBuf,
}

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A name that no file of a key can have.
    #[error(
        "`{}` cannot be the name of a key: a name has 1 to {MAX_NAME_BYTES} letters, digits, and characters of \
         `.`, `_`, `-`, and begins with a letter or a digit", .0.escape_debug()
    )]
    Name(String),
    /// There is a key of that name.
    #[error(
        "there is a key {0} already: choose another name, or take it away with raceline key rm {0}"
    )]
    Exists(String),
    /// There is no key of that name.
    #[error("there is no key {0} in {dir}: raceline key ls lists the keys", dir = .1.display())]
    Missing(String, PathBuf),
    /// Other users may look into the folder.
    #[error("{path}: other users have rights to this folder (mode {mode:04o}). Run chmod 700 {path}", path = .path.display())]
    Mode {
        /// The folder.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The folder belongs to another user.
    #[error(
        "{path} belongs to user {owner}, who has to be able to read the keys: run this as that user (sudo -u '#{owner}')",
        path = .path.display()
    )]
    Owner {
        /// The folder, or the state directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// It is no folder.
    #[error("{0} is not a folder: move it away, keys lie in a folder of that name")]
    NoFolder(PathBuf),
    /// The operating system says no.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file of a key cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
}

impl KeyFolder {
    /// The folder of a state directory, which need not exist yet.
    ///
    /// # Errors
    /// When it or the state directory is there, and another user's; or when it is open to others.
    pub fn open(state_dir: &Path) -> Result<Self, FolderError> {
        let folder = Self { path: state_dir.join(FOLDER) };
        if let Ok(info) = std::fs::metadata(state_dir)
            && info.uid() != rustix::process::geteuid().as_raw()
        {
            // Keys that root makes for a daemon of another user would be of no use to it.
            return Err(FolderError::Owner { path: state_dir.to_owned(), owner: info.uid() });
        }
        match std::fs::metadata(&folder.path) {
            Ok(info) => folder.check(&info).map(|()| folder),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(folder),
            Err(source) => Err(folder.io(source)),
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file of a key.
    ///
    /// # Errors
    /// When no key can have that name.
    pub fn file(&self, name: &str) -> Result<PathBuf, FolderError> {
        check_name(name)?;
        Ok(self.path.join(name))
    }

    /// The names of its keys, in order.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn names(&self) -> Result<Vec<String>, FolderError> {
        let entries = match std::fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(self.io(source)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry.map_err(|source| self.io(source))?.file_name();
            // Files that are being written begin with a dot.
            names.extend(name.to_str().filter(|name| check_name(name).is_ok()).map(str::to_owned));
        }
        names.sort_unstable();
        Ok(names)
    }

    /// The text of a key.
    ///
    /// # Errors
    /// When there is none of that name, or its file cannot be used.
    pub fn read(&self, name: &str) -> Result<zeroize::Zeroizing<String>, FolderError> {
        let path = self.file(name)?;
        if path.symlink_metadata().is_err() {
            return Err(FolderError::Missing(name.to_owned(), self.path.clone()));
        }
        Ok(file::read(&path, Protection::File)?)
    }

    /// Keeps a new key; gives its file. The file is whole and on stable media when this returns.
    ///
    /// # Errors
    /// When there is a key of that name, or the folder cannot be written.
    pub fn add(&self, name: &str, text: &str) -> Result<PathBuf, FolderError> {
        let path = self.file(name)?;
        self.make()?;
        let draft = self.draft(name, text)?;
        // Unlike a rename, a link never replaces a file.
        let linked = std::fs::hard_link(&draft, &path);
        let removed = std::fs::remove_file(&draft);
        match linked {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(FolderError::Exists(name.to_owned()));
            }
            Err(source) => return Err(FolderError::Io { path, source }),
            Ok(()) => {}
        }
        removed.and_then(|()| self.sync()).map_err(|source| self.io(source))?;
        Ok(path)
    }

    /// Replaces a key; the old one is kept under the name with [`OLD_SUFFIX`], which it may replace. At each moment
    /// there is a whole key of that name.
    ///
    /// # Errors
    /// When there is no such key, or the folder cannot be written.
    pub fn replace(&self, name: &str, text: &str) -> Result<PathBuf, FolderError> {
        let before = self.read(name)?;
        let path = self.file(name)?;
        let old = self.file(&format!("{name}{OLD_SUFFIX}"))?;
        let kept = self.draft(name, &before)?;
        std::fs::rename(&kept, &old).map_err(|source| FolderError::Io { path: old, source })?;
        let draft = self.draft(name, text)?;
        std::fs::rename(&draft, &path)
            .map_err(|source| FolderError::Io { path: path.clone(), source })?;
        self.sync().map_err(|source| self.io(source))?;
        Ok(path)
    }

    /// Removes a key.
    ///
    /// # Errors
    /// When there is none of that name, or it cannot be removed.
    pub fn remove(&self, name: &str) -> Result<(), FolderError> {
        let path = self.file(name)?;
        match std::fs::remove_file(&path) {
            Ok(()) => self.sync().map_err(|source| self.io(source)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(FolderError::Missing(name.to_owned(), self.path.clone()))
            }
            Err(source) => Err(FolderError::Io { path, source }),
        }
    }

    /// Makes the folder, and those above it, if it is not there.
    fn make(&self) -> Result<(), FolderError> {
        make_durable(&self.path, 0o700).map_err(|source| self.io(source))?;
        self.check(&std::fs::metadata(&self.path).map_err(|source| self.io(source))?)
    }

    fn check(&self, info: &std::fs::Metadata) -> Result<(), FolderError> {
        if !info.is_dir() {
            return Err(FolderError::NoFolder(self.path.clone()));
        }
        let path = self.path.clone();
        match file::check_owner(&path, info) {
            Err(FileError::Mode { mode, .. }) => Err(FolderError::Mode { path, mode }),
            Err(_) => Err(FolderError::Owner { path, owner: info.uid() }),
            Ok(()) => Ok(()),
        }
    }

    /// A file with this text under a name that no key has.
    fn draft(&self, name: &str, text: &str) -> Result<PathBuf, FolderError> {
        let path = self.path.join(format!(".{name}.{}", std::process::id()));
        let write = || -> io::Result<()> {
            // One that a crash has left.
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all(text.trim_end().as_bytes())?;
            file.write_all(b"\n")?;
            file.sync_all()
        };
        match write() {
            Ok(()) => Ok(path),
            Err(source) => Err(FolderError::Io { path, source }),
        }
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn io(&self, source: io::Error) -> FolderError {
        FolderError::Io { path: self.path.clone(), source }
    }
}

/// Whether a key of this name can have a file of the same name.
fn check_name(name: &str) -> Result<(), FolderError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if begins && name.len() <= MAX_NAME_BYTES && name.bytes().all(plain) {
        Ok(())
    } else {
        Err(FolderError::Name(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn keys_are_kept_replaced_and_removed() {
        let state = tempfile::tempdir().unwrap();
        let folder = KeyFolder::open(&state.path().join("deep/state")).unwrap();
        assert!(folder.names().unwrap().is_empty());
        let path = folder.add("a", "one").unwrap();
        assert_eq!((mode(&path), mode(folder.path())), (0o600, 0o700));
        assert!(matches!(folder.add("a", "two"), Err(FolderError::Exists(_))));
        assert_eq!(*folder.read("a").unwrap(), "one\n");
        folder.replace("a", "two\n").unwrap();
        assert_eq!(*folder.read("a").unwrap(), "two\n");
        assert_eq!(*folder.read("a.old").unwrap(), "one\n");
        folder.replace("a", "three").unwrap();
        assert_eq!(*folder.read("a.old").unwrap(), "two\n");
        assert_eq!(folder.names().unwrap(), ["a", "a.old"]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "a draft is left");
        folder.remove("a").unwrap();
        for missing in [folder.remove("a").err(), folder.replace("a", "x").err()] {
            assert!(matches!(missing, Some(FolderError::Missing(..))), "{missing:?}");
        }
    }

    #[test]
    fn names_are_file_names_and_nothing_else() {
        let state = tempfile::tempdir().unwrap();
        let folder = KeyFolder::open(state.path()).unwrap();
        let long = "x".repeat(MAX_NAME_BYTES + 1);
        for name in ["", ".", "..", ".a", "-a", "a/b", "../a", "a b", "a\n", "\u{e4}", &long] {
            assert!(matches!(folder.add(name, "x"), Err(FolderError::Name(_))), "{name:?}");
            assert!(Places::of(Some(state.path())).find(name).is_none());
        }
        folder.add(&long[1..], "x").unwrap();
    }

    #[test]
    fn a_folder_that_is_open_to_others_is_refused() {
        let state = tempfile::tempdir().unwrap();
        let folder = KeyFolder::open(state.path()).unwrap();
        folder.add("a", "one").unwrap();
        let open = std::fs::Permissions::from_mode(0o750);
        std::fs::set_permissions(folder.path(), open).unwrap();
        let error = KeyFolder::open(state.path()).unwrap_err().to_string();
        assert!(error.contains("mode 0750") && error.contains("chmod 700"), "{error}");
        assert!(folder.add("b", "two").is_err());
        std::fs::remove_dir_all(folder.path()).unwrap();
        std::fs::write(folder.path(), "").unwrap();
        assert!(matches!(KeyFolder::open(state.path()), Err(FolderError::NoFolder(_))));
    }

    #[test]
    fn a_state_directory_of_another_user_is_left_alone() {
        let state = tempfile::tempdir().unwrap();
        if let Err(error) = std::os::unix::fs::chown(state.path(), Some(65_534), None) {
            return eprintln!("SKIPPED: only root can give files away: {error}");
        }
        let error = KeyFolder::open(state.path()).unwrap_err().to_string();
        assert!(error.contains("user 65534") && error.contains("sudo -u"), "{error}");
    }

    #[test]
    fn a_credential_of_the_service_comes_before_the_folder() {
        let state = tempfile::tempdir().unwrap();
        let credentials = state.path().join("credentials");
        std::fs::create_dir(&credentials).unwrap();
        std::fs::write(credentials.join("a"), "of the service").unwrap();
        let folder = KeyFolder::open(state.path()).unwrap();
        for name in ["a", "b"] {
            folder.add(name, "of the folder").unwrap();
        }
        let mut places = Places::of(Some(state.path()));
        places.credentials = Some(credentials.clone());
        assert_eq!(places.find("a"), Some((credentials.join("a"), Protection::Folder)));
        assert_eq!(places.find("b"), Some((folder.path().join("b"), Protection::File)));
        assert_eq!(places.find("c"), None);
    }
}
