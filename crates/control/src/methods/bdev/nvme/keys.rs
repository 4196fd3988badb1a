//! The keys of a remote controller, and `bdev_nvme_set_keys`.

use std::sync::Arc;
use std::time::Duration;

use raceline_auth::{Derivation, IdentityVersion, TlsKey};
use raceline_host::{CredentialStore, Credentials, HostConfig, RemoteController, RemoteState};
use raceline_reactor::StreamProvider;
use raceline_tls::{ClientPsk, ClientPskStore, Offload, TlsConnector};
use serde::Deserialize;
use serde_json::Value;

use super::no_controller;
use super::options::Options;
use crate::error::RpcError;
use crate::keyring::{self, Held, KernelKey, WantedPsk};
use crate::manager::Manager;
use crate::manager::catalogue;
use crate::manager::controllers::link::Link;
use crate::manager::keys::{ChapKeys, HeldPsk};
use crate::manager::missing::CONNECT_TIMEOUT;
use crate::method::{Call, Registry, States};

/// How long the connections of a controller may take to authenticate by new keys.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn register(registry: &mut Registry) {
    registry.change("bdev_nvme_set_keys", States::Runtime, set);
}

/// Gets the keys of these names.
pub(in crate::methods) fn hold(
    call: &Call<'_>,
    host: Option<&str>,
    controller: Option<&str>,
) -> Result<Option<ChapKeys>, RpcError> {
    if host.is_none() && controller.is_none() {
        return Ok(None);
    }
    let held = call.manager.change(|change| change.hold_pair("dhchap_ctrlr_key", host, controller));
    Ok(held?)
}

/// The secrets of keys for connections with today's options.
pub(in crate::methods) fn credentials(
    manager: &Manager,
    held: Option<&ChapKeys>,
) -> Result<Option<Arc<Credentials>>, RpcError> {
    let Some(held) = held else { return Ok(None) };
    let credentials = held.credentials(Options::current(manager).algorithms()?);
    let credentials = credentials.ok_or_else(|| {
        let detail =
            format!("key `{}` or that of the controller cannot be used now", held.host.name());
        RpcError::errno(libc::ENOKEY).because(detail)
    })?;
    Ok(Some(Arc::new(credentials)))
}

/// A pre-shared key by its name.
pub(in crate::methods) enum NamedPsk {
    /// The kernel holds it.
    Kernel(KernelKey),
    /// The keyring holds it.
    Held(Held<TlsKey>),
}

impl NamedPsk {
    /// Gets the key of this name.
    pub(in crate::methods) fn hold(call: &Call<'_>, name: &str) -> Result<Self, RpcError> {
        if let Some(key) = KernelKey::parse(name) {
            return Ok(Self::Kernel(key));
        }
        Ok(Self::Held(call.manager.change(|change| change.hold(name, keyring::Key::tls))?))
    }

    /// The key for connections between these names. The identity is of version 0, as SPDK offers it, unless the key is the
    /// kernel's.
    pub(in crate::methods) fn psk(&self, config: &HostConfig) -> Result<HeldPsk, String> {
        match self {
            Self::Kernel(key) => {
                // What nvme-cli has inserted may be of either version.
                let names = (&config.hostnqn, &config.subnqn);
                let psk = key.client_psk(
                    names,
                    WantedPsk::Best(IdentityVersion::One),
                    Derivation::Standard,
                );
                let psk = psk.map_err(|error| format!("psk: {error}"))?;
                Ok(HeldPsk { key: None, store: ClientPskStore::new(psk) })
            }
            Self::Held(held) => {
                let name = held.name();
                let unusable = || format!("key `{name}` cannot be used now");
                let key = held.secret().ok_or_else(unusable)?;
                let version = IdentityVersion::Zero;
                let psk = ClientPsk::new(key, version, &config.hostnqn, &config.subnqn)
                    .map_err(|error| format!("key `{name}`: {error}"))?;
                Ok(HeldPsk { key: Some(held.clone()), store: ClientPskStore::new(psk) })
            }
        }
    }
}

/// The key of this name for connections over TLS; `None`: no key is named, and nothing is encrypted.
pub(super) fn hold_psk(
    call: &Call<'_>,
    psk: Option<&str>,
    config: &HostConfig,
) -> Result<Option<HeldPsk>, RpcError> {
    let Some(name) = psk else { return Ok(None) };
    let psk = NamedPsk::hold(call, name)?.psk(config);
    Ok(Some(psk.map_err(|detail| RpcError::errno(libc::ENOKEY).because(detail))?))
}

/// TLS with this key.
pub(in crate::methods) fn streams(
    manager: &Manager,
    psk: &HeldPsk,
) -> Result<Arc<dyn StreamProvider>, RpcError> {
    let ktls = manager.model().ktls();
    let offload = Offload::decide(ktls);
    let offload = offload.map_err(|error| RpcError::errno(libc::EIO).because(error))?;
    Ok(Arc::new(TlsConnector::new(psk.store.clone()).with_offload(offload)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetKeys {
    name: String,
    dhchap_key: Option<String>,
    dhchap_ctrlr_key: Option<String>,
}

/// One connection more shows that the controller takes the new keys; then the connections that there are authenticate by
/// them, without an interruption of their commands.
fn set(call: &Call<'_>, params: SetKeys) -> Result<bool, RpcError> {
    let (host, controller_key) = (params.dhchap_key.as_deref(), params.dhchap_ctrlr_key.as_deref());
    let held = hold(call, host, controller_key)?;
    let found = call.manager.model().controllers.get(&params.name).cloned();
    let controller = found.ok_or_else(|| no_controller(&params.name))?;
    let Link::Remote(remote) = &controller.link else {
        let detail = format!("`{}` is a local drive, and has no keys", params.name);
        return Err(RpcError::errno(libc::EINVAL).because(detail));
    };
    let credentials = credentials(call.manager, held.as_ref())?;
    if let (Some(credentials), RemoteState::Up) = (&credentials, remote.state()) {
        try_out(remote.config(), credentials)?;
    }
    let set = call.manager.change(|change| {
        let attached = change.model().controllers.get(&params.name).cloned();
        if !attached.is_some_and(|attached| Arc::ptr_eq(&attached, &controller)) {
            return Err(no_controller(&params.name));
        }
        let entry = change.model().catalogue.get(&controller.key).cloned();
        match &credentials {
            Some(credentials) => remote.config().credentials.renew(Credentials::clone(credentials)),
            None => remote.config().credentials.set(None),
        }
        controller.set_keys(held);
        if let Some(entry) = entry {
            change.put(controller.key.clone(), with_keys(entry, &params));
        }
        Ok::<_, RpcError>(true)
    })?;
    // The caller may take the old keys away at the other end as soon as this returns.
    if !remote.config().credentials.wait_renewed(RENEWAL_TIMEOUT) {
        let name = &params.name;
        tracing::warn!(
            "not all connections of controller {name} have authenticated by its new keys yet"
        );
    }
    Ok(set)
}

/// Connects once with these keys.
fn try_out(config: &HostConfig, credentials: &Arc<Credentials>) -> Result<(), RpcError> {
    let store = CredentialStore::default();
    store.set(Some(Arc::clone(credentials)));
    let config = HostConfig { credentials: store, io_queues: 1, ..config.clone() };
    let tried = RemoteController::connect_exactly(config.within(CONNECT_TIMEOUT));
    let tried = tried.map_err(|error| {
        let detail = format!("{error}. The keys are as before");
        RpcError::errno(libc::EACCES).because(detail)
    })?;
    tried.disconnect();
    Ok(())
}

/// The call that makes the controller, with the names of its keys.
fn with_keys(mut entry: catalogue::Entry, params: &SetKeys) -> catalogue::Entry {
    if let Value::Object(members) = &mut entry.params {
        let keys =
            [("dhchap_key", &params.dhchap_key), ("dhchap_ctrlr_key", &params.dhchap_ctrlr_key)];
        for (name, key) in keys {
            members.shift_remove(name);
            members.extend(key.clone().map(|key| (name.to_owned(), key.into())));
        }
    }
    entry
}
