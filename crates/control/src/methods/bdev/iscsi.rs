//! `bdev_iscsi_*`: logical units of iSCSI targets as devices.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use raceline_initiator::{Chap, IscsiUrl, LunBdev, Name as IscsiName, Secret, SessionConfig};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Name;
use crate::error::RpcError;
use crate::keyring;
use crate::manager::Manager;
use crate::manager::bdevs::{Details, Entry};
use crate::manager::catalogue::{self, Key, Section};
use crate::manager::missing::CONNECT_TIMEOUT;
use crate::masked;
use crate::method::{Call, Registry, States};

const MODULE: &str = "iscsi";
/// SPDK's time limit of a command.
const TIMEOUT_SECS: u64 = 30;
/// The longest time limit: a day.
const MAX_TIMEOUT_SECS: u64 = 86_400;

pub(super) fn register(registry: &mut Registry) {
    registry.change("bdev_iscsi_create", States::Runtime, create);
    registry.alias("construct_iscsi_bdev", "bdev_iscsi_create");
    registry.change("bdev_iscsi_delete", States::Runtime, delete);
    registry.alias("delete_iscsi_bdev", "bdev_iscsi_delete");
    registry.change("bdev_iscsi_set_options", States::Both, set_options);
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    name: String,
    initiator_iqn: String,
    /// `iscsi://[user[%password]@]host[:port]/iqn/lun`.
    url: String,
    /// Of our own: the key of the keyring that has the secret of the URL's user.
    #[serde(skip_serializing_if = "Option::is_none")]
    chap_key: Option<String>,
    /// Of our own: the name by which the target has to prove itself, and the key with its secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    chap_target_user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chap_target_key: Option<String>,
    /// Of our own: digests.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    hdgst: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    ddgst: bool,
}

/// What is shown of a device beside what all have.
struct Shown {
    initiator_iqn: String,
    url: String,
}

impl Details for Shown {
    fn driver_specific(&self) -> Value {
        json!({ "iscsi": { "initiator_iqn": self.initiator_iqn, "url": self.url } })
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

fn create(call: &Call<'_>, params: Create) -> Result<String, RpcError> {
    let key = Key::new(&["bdev", &params.name]);
    call.manager.change(|change| {
        change.check_not_missing(&key)?;
        change.model().bdevs.check_name(&params.name)
    })?;
    let config = session(call, &params)?;
    // Others wait for a change: the target is asked outside of one.
    let device = LunBdev::open(config)
        .map_err(|error| RpcError::errno(libc::EIO).because(format!("{}: {error}", params.name)))?;
    let shown = Shown {
        initiator_iqn: params.initiator_iqn.clone(),
        url: masked::without_password(&params.url, None),
    };
    call.manager.change(|change| {
        let entry = catalogue::Entry::new(Section::Bdev, "bdev_iscsi_create", &params)?;
        let bdev = Entry::new(&params.name, MODULE, "iSCSI LUN", std::sync::Arc::new(device))
            .described_by(shown)
            .kept_as(key);
        super::add(change, bdev, entry)?;
        Ok(params.name)
    })
}

/// How sessions with the target are made.
fn session(call: &Call<'_>, params: &Create) -> Result<SessionConfig, RpcError> {
    let invalid = |detail: String| RpcError::invalid_params(detail);
    let url: IscsiUrl = params.url.parse().map_err(|error| invalid(format!("url: {error}")))?;
    let initiator = IscsiName::new(&params.initiator_iqn)
        .map_err(|error| invalid(format!("initiator_iqn: {error}")))?;
    let mut config = SessionConfig::new(resolve(&url)?, initiator, Some(url.target.clone()));
    config.lun = url.lun;
    (config.header_digest, config.data_digest) = (params.hdgst, params.ddgst);
    config.task_timeout = Duration::from_secs(Options::current(call.manager).timeout_sec);
    // As SPDK's, it is tried again for ever.
    config.backoff.give_up_after = None;
    config.chap = chap(call, params, url)?;
    if call.peer.is_internal {
        // During a start or a retry, others wait for this.
        config.connect_timeout = CONNECT_TIMEOUT;
        config.login_timeout = CONNECT_TIMEOUT;
    }
    Ok(config)
}

/// The address of the portal; of several, the first.
fn resolve(url: &IscsiUrl) -> Result<SocketAddr, RpcError> {
    let host = url.host.escape_default();
    let found = (url.host.as_str(), url.port).to_socket_addrs();
    let found = found.map(|mut addresses| addresses.next());
    match found {
        Ok(Some(address)) => Ok(address),
        Ok(None) => {
            Err(RpcError::errno(libc::EHOSTUNREACH).because(format!("{host} has no address")))
        }
        Err(error) => Err(RpcError::errno(libc::EHOSTUNREACH)
            .because(format!("cannot find the address of {host}: {error}"))),
    }
}

/// What CHAP needs: the password of the URL, or the keys that are named.
fn chap(call: &Call<'_>, params: &Create, url: IscsiUrl) -> Result<Option<Chap>, RpcError> {
    let invalid = |detail: &str| Err(RpcError::invalid_params(detail.to_owned()));
    let secret = match (url.password, &params.chap_key) {
        (Some(_), Some(_)) => {
            return invalid("url has a password, and chap_key names a key: leave one out");
        }
        (Some(password), None) => Some(password),
        (None, Some(key)) => Some(secret_of(call, key)?),
        (None, None) => None,
    };
    let target = match (&params.chap_target_user, &params.chap_target_key) {
        (Some(user), Some(key)) => Some((user.clone(), secret_of(call, key)?)),
        (None, None) => None,
        _ => return invalid("chap_target_user and chap_target_key come together"),
    };
    match (url.user, secret, target) {
        (Some(user), Some(secret), target) => Ok(Some(Chap { user, secret, target })),
        (None, None, None) => Ok(None),
        (None, Some(_), _) => invalid("chap_key needs the user in url: iscsi://user@host/..."),
        (Some(_), None, _) => {
            invalid("url has a user without a secret: name the key with its secret by chap_key")
        }
        (None, None, Some(_)) => invalid(
            "a target proves itself to an initiator that proves itself: add a user and chap_key",
        ),
    }
}

fn secret_of(call: &Call<'_>, key: &str) -> Result<Secret, RpcError> {
    let held = call.manager.change(|change| change.hold(key, keyring::Key::chap))?;
    let text = held.secret().filter(|text| !text.is_empty()).ok_or_else(|| {
        RpcError::errno(libc::ENOKEY)
            .because(format!("key `{key}` is empty, or cannot be used now"))
    })?;
    Ok(Secret::new(text.to_vec()))
}

fn delete(call: &Call<'_>, Name { name }: Name) -> Result<bool, RpcError> {
    super::delete(call, &name, MODULE)
}

/// Options of devices that are made from now on.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    /// Time limit of a command in seconds.
    #[serde(default = "default_timeout")]
    timeout_sec: u64,
}

fn default_timeout() -> u64 {
    TIMEOUT_SECS
}

fn options_key() -> Key {
    Key::new(&["bdev-iscsi-options"])
}

impl Options {
    fn current(manager: &Manager) -> Self {
        let model = manager.model();
        let kept = model.catalogue.get(&options_key());
        kept.and_then(|entry| serde_json::from_value(entry.params.clone()).ok())
            .unwrap_or(Self { timeout_sec: TIMEOUT_SECS })
    }
}

fn set_options(call: &Call<'_>, options: Options) -> Result<bool, RpcError> {
    if !(1..=MAX_TIMEOUT_SECS).contains(&options.timeout_sec) {
        let detail = format!("timeout_sec is a number of seconds from 1 to {MAX_TIMEOUT_SECS}");
        return Err(RpcError::invalid_params(detail));
    }
    call.manager.change(|change| {
        let entry = catalogue::Entry::new(Section::Bdev, "bdev_iscsi_set_options", &options)?;
        change.put(options_key(), entry);
        Ok(true)
    })
}
