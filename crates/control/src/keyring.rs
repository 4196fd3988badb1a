//! Keys by name: where the text of each is, who has it, and the reading of it. No secret is kept here.
//!
//! A key is added by the path of its file, as in SPDK, or found by its name ([`Places`]). Its text is read when a
//! host or a controller gets the key, and again after a restart. A key that is removed while somebody has it is
//! removed for them as well: they keep its name, and nobody can authenticate by it any more.

pub mod file;
pub mod folder;
pub mod kernel;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use raceline_auth::{DhchapSecret, KeyError, TlsKey};
use zeroize::Zeroizing;

use file::{FileError, Protection};
pub use folder::{KeyFolder, Places};
pub use kernel::{KernelKey, KernelKeyError, WantedPsk};

/// The longest name of a key in bytes.
const MAX_NAME_BYTES: usize = 255;

/// A key, as those that use it hold it.
pub type KeyRef = Arc<Key>;

/// A key: its name, and where its text is.
#[derive(Debug)]
pub struct Key {
    name: String,
    path: PathBuf,
    protection: Protection,
    /// It was found by its name, and is forgotten when nobody has it.
    found: bool,
    removed: AtomicBool,
}

/// Why a key cannot be had or used. No error shows a part of the key.
#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    /// A name that no key can have.
    #[error("`{}` is no name of a key: {why}", .name.escape_debug())]
    Name {
        /// The name.
        name: String,
        /// Why not.
        why: &'static str,
    },
    /// There is a key of that name.
    #[error(
        "there is a key `{0}` already: choose another name, or remove it with keyring_file_remove_key"
    )]
    Exists(String),
    /// There is no key of that name.
    #[error(
        "there is no key `{0}`: keyring_get_keys lists the keys, keyring_file_add_key adds one, and raceline key gen \
         {0} makes one in the state directory"
    )]
    Missing(String),
    /// A key that was found by its name cannot be removed from the keyring.
    #[error(
        "key `{0}` was not added by keyring_file_add_key but found by its name in {path}: remove its file", path = .1.display()
    )]
    Found(String, PathBuf),
    /// It was removed.
    #[error(
        "key `{0}` was removed from the keyring: add it again, and then set it anew where it is used"
    )]
    Removed(String),
    /// Its file cannot be used.
    #[error("key `{name}`: {error}")]
    File {
        /// The key.
        name: String,
        /// What is wrong with the file.
        error: FileError,
    },
    /// Its text is no key of the kind that is needed.
    #[error("key `{name}` in {path}: {error}", path = .path.display())]
    Text {
        /// The key.
        name: String,
        /// Its file.
        path: PathBuf,
        /// What is wrong with the text.
        error: KeyError,
    },
}

impl KeyringError {
    /// The errno that SPDK gives for it.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Name { .. } | Self::Found(..) | Self::Text { .. } => libc::EINVAL,
            Self::Exists(_) => libc::EEXIST,
            Self::Missing(_) | Self::Removed(_) => libc::ENOKEY,
            Self::File { error, .. } => error.errno(),
        }
    }
}

impl Key {
    fn new(name: &str, path: PathBuf, protection: Protection, found: bool) -> KeyRef {
        let (name, removed) = (name.to_owned(), AtomicBool::new(false));
        Arc::new(Self { name, path, protection, found, removed })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its text is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it was found by its name, and not added.
    #[must_use]
    pub fn is_found(&self) -> bool {
        self.found
    }

    /// Whether it was removed, and only those that had it then have it still.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// Reads it as a secret of DH-HMAC-CHAP.
    ///
    /// # Errors
    /// When it was removed, its file cannot be used, or it is no such secret.
    pub fn dhchap(&self) -> Result<DhchapSecret, KeyringError> {
        self.read(DhchapSecret::parse)
    }

    /// Reads it as a pre-shared key of TLS.
    ///
    /// # Errors
    /// When it was removed, its file cannot be used, or it is no such key.
    pub fn tls(&self) -> Result<TlsKey, KeyringError> {
        self.read(TlsKey::parse)
    }

    /// Reads it as a secret of CHAP, as iSCSI has it: all bytes but the end of a last line.
    ///
    /// # Errors
    /// When it was removed, or its file cannot be used.
    pub fn chap(&self) -> Result<Zeroizing<Vec<u8>>, KeyringError> {
        self.read(|text| Ok(Zeroizing::new(text.trim_end_matches('\n').as_bytes().to_vec())))
    }

    fn read<T>(&self, parse: impl FnOnce(&str) -> Result<T, KeyError>) -> Result<T, KeyringError> {
        let name = || self.name.clone();
        if self.is_removed() {
            return Err(KeyringError::Removed(name()));
        }
        let text = file::read(&self.path, self.protection)
            .map_err(|error| KeyringError::File { name: name(), error })?;
        parse(&text).map_err(|error| KeyringError::Text {
            name: name(),
            path: self.path.clone(),
            error,
        })
    }
}

/// A secret that somebody has been given, and the key that it is of.
pub struct Held<T> {
    key: KeyRef,
    /// `None`: it could not be read at the start.
    secret: Option<T>,
}

impl<T> Held<T> {
    /// A secret, read just now.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(
        key: KeyRef,
        read: impl FnOnce(&Key) -> Result<T, KeyringError>,
    ) -> Result<Self, KeyringError> {
        let secret = Some(read(&key)?);
        Ok(Self { key, secret })
    }

    /// A key that cannot be read now: nobody can authenticate by it.
    #[must_use]
    pub fn unreadable(key: KeyRef) -> Self {
        Self { key, secret: None }
    }

    /// The key's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.key.name()
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &KeyRef {
        &self.key
    }

    /// The secret, unless its key was removed or could not be read.
    #[must_use]
    pub fn secret(&self) -> Option<&T> {
        self.secret.as_ref().filter(|_| !self.key.is_removed())
    }
}

impl<T: Clone> Clone for Held<T> {
    fn clone(&self) -> Self {
        Self { key: Arc::clone(&self.key), secret: self.secret.clone() }
    }
}

impl<T> fmt::Debug for Held<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({})", self.key.name)
    }
}

/// The keys of a daemon.
#[derive(Debug, Default)]
pub struct Keyring {
    /// Keys that were added, by name.
    added: BTreeMap<String, KeyRef>,
    /// Keys that were found by name or were removed, as long as somebody has them.
    others: Vec<Weak<Key>>,
}

/// A key, as `keyring_get_keys` shows it.
#[derive(Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// Its name.
    pub name: String,
    /// Where its text is; `None` after its removal.
    pub path: Option<PathBuf>,
    /// Whether it was found by its name.
    pub found: bool,
    /// Those that have it, the keyring included.
    pub references: usize,
}

impl Keyring {
    /// Checks that a key can be added under this name and path.
    ///
    /// # Errors
    /// When the name is taken or none, or the path is not absolute.
    pub fn check_new(&self, name: &str, path: &Path) -> Result<(), KeyringError> {
        let bare = bare_name(name)?;
        if self.added.contains_key(bare) || self.found(bare).is_some() {
            return Err(KeyringError::Exists(name.to_owned()));
        }
        if !path.is_absolute() {
            let error = FileError::Relative(path.to_owned());
            return Err(KeyringError::File { name: name.to_owned(), error });
        }
        Ok(())
    }

    /// Adds a key. Its file is not looked at: [`file::check`] does that.
    ///
    /// # Errors
    /// As [`Self::check_new`].
    pub fn add(&mut self, name: &str, path: &Path) -> Result<(), KeyringError> {
        self.check_new(name, path)?;
        let key = Key::new(name, path.to_owned(), Protection::File, false);
        self.added.insert(bare_name(name)?.to_owned(), key);
        Ok(())
    }

    /// Removes a key that was added, and gives it. Those that have it cannot use it any more.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn remove(&mut self, name: &str) -> Result<KeyRef, KeyringError> {
        let bare = bare_name(name)?;
        let Some(key) = self.added.remove(bare) else {
            return Err(match self.found(bare) {
                Some(key) => KeyringError::Found(name.to_owned(), key.path.clone()),
                None => KeyringError::Missing(name.to_owned()),
            });
        };
        key.removed.store(true, Ordering::Release);
        self.others.push(Arc::downgrade(&key));
        Ok(key)
    }

    /// The key of that name: one that was added, or one that was found and is in use. `None`: it has to be looked for.
    ///
    /// # Errors
    /// When no key can have that name.
    pub fn known(&self, name: &str) -> Result<Option<KeyRef>, KeyringError> {
        let bare = bare_name(name)?;
        Ok(self.added.get(bare).cloned().or_else(|| self.found(bare)))
    }

    /// Takes a key that was found by its name; it is in the keyring as long as somebody has it.
    ///
    /// # Errors
    /// When no key can have that name.
    pub fn take_found(
        &mut self,
        name: &str,
        (path, protection): (PathBuf, Protection),
    ) -> Result<KeyRef, KeyringError> {
        let key = Key::new(bare_name(name)?, path, protection, true);
        self.others.retain(|other| other.strong_count() > 0);
        self.others.push(Arc::downgrade(&key));
        Ok(key)
    }

    /// A key that is not there any more, for somebody who had it before a restart.
    pub fn lost(&mut self, name: &str) -> KeyRef {
        let key = Key::new(name, PathBuf::new(), Protection::File, false);
        key.removed.store(true, Ordering::Release);
        self.others.push(Arc::downgrade(&key));
        key
    }

    /// All keys: those that were added by name, then those that were found and those that were removed.
    #[must_use]
    pub fn list(&self) -> Vec<KeyInfo> {
        let info = |key: &Key, references| KeyInfo {
            name: key.name.clone(),
            path: (!key.is_removed()).then(|| key.path.clone()),
            found: key.found,
            references,
        };
        let added = self.added.values().map(|key| info(key, Arc::strong_count(key)));
        // The upgrade is a reference of its own.
        let others = self.others.iter().filter_map(Weak::upgrade);
        let others = others.map(|key| info(&key, Arc::strong_count(&key) - 1));
        added.chain(others).collect()
    }

    /// The key that was found under this name and is still in use.
    fn found(&self, bare: &str) -> Option<KeyRef> {
        let mut others = self.others.iter().filter_map(Weak::upgrade);
        others.find(|key| key.found && !key.is_removed() && key.name == bare)
    }
}

/// A name without the colon that stands for the only keyring there is: `:key` is `key`, as in SPDK.
pub(crate) fn bare_name(name: &str) -> Result<&str, KeyringError> {
    let wrong = |why| Err(KeyringError::Name { name: name.to_owned(), why });
    let bare = name.strip_prefix(':').unwrap_or(name);
    if bare.is_empty() || bare.len() > MAX_NAME_BYTES {
        return wrong("a name has 1 to 255 bytes");
    }
    if bare.contains(':') {
        return wrong(
            "what stands before a colon is the name of a keyring, and there is only one, without a name",
        );
    }
    if bare.chars().any(char::is_control) {
        return wrong("it has control characters");
    }
    Ok(bare)
}

#[cfg(test)]
mod tests;
