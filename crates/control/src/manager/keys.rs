//! Changes of the keyring, and what they mean for those that have a key.

use std::path::Path;
use std::sync::Arc;

use raceline_auth::{Algorithms, DhchapSecret, KeyPair, TlsKey};
use raceline_host::Credentials;
use raceline_tls::ClientPskStore;
use serde_json::json;

use super::catalogue::{Entry, Key, Section};
use super::{Change, ManagerError};
use crate::keyring::file::{self, Protection};
use crate::keyring::{self, Held, KeyRef, KeyringError, bare_name};

/// The secrets of a host and of the controller that hold together.
#[derive(Clone, Debug)]
pub struct ChapKeys {
    /// Of the host.
    pub host: Held<DhchapSecret>,
    /// Of the controller; `None`: it does not prove itself.
    pub controller: Option<Held<DhchapSecret>>,
}

impl ChapKeys {
    /// Whether one of the secrets is of this key.
    #[must_use]
    pub fn has(&self, key: &KeyRef) -> bool {
        let is_it = |held: &Held<DhchapSecret>| Arc::ptr_eq(held.key(), key);
        is_it(&self.host) || self.controller.as_ref().is_some_and(is_it)
    }

    /// The secrets for a target, unless the host's cannot be used.
    #[must_use]
    pub fn pair(&self) -> Option<KeyPair> {
        let controller = self.controller.as_ref().and_then(|held| held.secret().cloned());
        Some(KeyPair { host: self.host.secret()?.clone(), controller })
    }

    /// The secrets for a host, unless one of them cannot be used.
    #[must_use]
    pub fn credentials(&self, algorithms: Algorithms) -> Option<Credentials> {
        let secret = self.host.secret()?.clone();
        let controller_secret = match &self.controller {
            None => None,
            Some(held) => Some(held.secret()?.clone()),
        };
        Some(Credentials { secret, controller_secret, algorithms })
    }
}

/// The pre-shared key with which a controller's connections are made.
#[derive(Clone, Debug)]
pub struct HeldPsk {
    /// The key of the keyring; `None`: it is the kernel's.
    pub key: Option<Held<TlsKey>>,
    /// What the connections have of it.
    pub store: ClientPskStore,
}

/// The part of the configuration that a key is.
fn key_of(name: &str) -> Key {
    Key::new(&["keyring", name])
}

impl Change<'_> {
    /// Adds a key by the path of its file. During a restart, a file that cannot be used does not end the start: those
    /// that have the key then cannot authenticate by it.
    ///
    /// # Errors
    /// When the name is taken or none, or the file cannot hold a key.
    pub fn add_key(&mut self, name: &str, path: &Path) -> Result<(), ManagerError> {
        self.model().keyring.check_new(name, path)?;
        if let Err(error) = file::check(path, Protection::File) {
            let error = KeyringError::File { name: name.to_owned(), error };
            if !self.manager().replaying.is_restoring() {
                return Err(error.into());
            }
            tracing::error!("{error}; nobody can authenticate by this key");
        }
        self.model_mut().keyring.add(name, path)?;
        let (section, method) = (Section::Keyring, "keyring_file_add_key".to_owned());
        let entry = Entry { section, method, params: json!({ "name": name, "path": path }) };
        self.put(key_of(bare_name(name)?), entry);
        Ok(())
    }

    /// Removes a key that was added. Hosts and controllers that have it stay connected, and cannot authenticate by it
    /// any more.
    ///
    /// # Errors
    /// When there is none of that name, or a core does not answer.
    pub fn remove_key(&mut self, name: &str) -> Result<(), ManagerError> {
        let key = self.model_mut().keyring.remove(name)?;
        self.remove(key_of(bare_name(name)?));
        let hosts = self.renew_hosts_with(&key)?;
        let controllers: Vec<_> = self.model().controllers.values().cloned().collect();
        let controllers = controllers.iter().filter(|it| it.withdraw(&key)).count();
        if hosts + controllers > 0 {
            tracing::warn!(
                "key `{name}` was removed: {hosts} hosts and {controllers} controllers that have it stay connected, \
                 and cannot authenticate by it any more"
            );
        }
        Ok(())
    }

    /// Gives a key to somebody, and reads it. During a restart, a key that is not there or cannot be read does not end
    /// the start: nobody can authenticate by it then.
    ///
    /// # Errors
    /// When there is no such key, or it is none of the kind that is needed.
    pub fn hold<T>(
        &mut self,
        name: &str,
        read: fn(&keyring::Key) -> Result<T, KeyringError>,
    ) -> Result<Held<T>, ManagerError> {
        let is_restoring = self.manager().replaying.is_restoring();
        let tell = |error: &KeyringError| {
            tracing::error!("{error}; nobody can authenticate by this key until it is set anew");
        };
        let key = match self.find_key(name) {
            Err(error) if is_restoring => {
                tell(&error);
                return Ok(Held::unreadable(self.model_mut().keyring.lost(name)));
            }
            found => found?,
        };
        match Held::read(key.clone(), read) {
            Err(error) if is_restoring => {
                tell(&error);
                Ok(Held::unreadable(key))
            }
            held => Ok(held?),
        }
    }

    /// Gives somebody the secrets of a host and of the controller; `what` is the parameter that names the latter.
    /// `None` without a host's.
    ///
    /// # Errors
    /// As [`Self::hold`], and when only the controller's is named.
    pub fn hold_pair(
        &mut self,
        what: &str,
        host: Option<&str>,
        controller: Option<&str>,
    ) -> Result<Option<ChapKeys>, ManagerError> {
        let Some(host) = host else {
            return match controller {
                None => Ok(None),
                Some(_) => Err(ManagerError::Invalid(format!(
                    "{what}: a controller proves itself only to a host that proves itself: name the host's key as well"
                ))),
            };
        };
        let host = self.hold(host, keyring::Key::dhchap)?;
        let controller = controller.map(|name| self.hold(name, keyring::Key::dhchap));
        Ok(Some(ChapKeys { host, controller: controller.transpose()? }))
    }

    /// The key of that name, which is looked for where keys are found by their names.
    fn find_key(&mut self, name: &str) -> Result<KeyRef, KeyringError> {
        let known = self.model().keyring.known(name)?;
        if let Some(known) = known {
            return Ok(known);
        }
        let found = self.manager().config().key_places.find(bare_name(name)?);
        let found = found.ok_or_else(|| KeyringError::Missing(name.to_owned()))?;
        self.model_mut().keyring.take_found(name, found)
    }
}
