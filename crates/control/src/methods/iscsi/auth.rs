//! Auth groups: the secrets of CHAP. Only admins are shown them, and no log has them.

use std::fmt;

use raceline_target::ChapSecret;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use serde_json::Value;

use super::{invalid, tag};
use crate::error::RpcError;
use crate::manager::iscsi::auth_group_params;
use crate::masked::without_secrets;
use crate::method::{Call, Registry, States};
use crate::params::NoParams;
use crate::role::Role;

/// The shortest secret with which RFC 7143, 9.2.1 lets CHAP go without IPsec.
const SHORT_SECRET: usize = 12;

pub(super) fn register(registry: &mut Registry) {
    registry.change("iscsi_create_auth_group", States::Runtime, create);
    registry.change("iscsi_delete_auth_group", States::Runtime, delete);
    registry.read("iscsi_get_auth_groups", States::Runtime, get);
    registry.change("iscsi_auth_group_add_secret", States::Runtime, add_secret);
    registry.change("iscsi_auth_group_remove_secret", States::Runtime, remove_secret);
}

/// A secret; an error about it does not show it.
struct SecretText(String);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(..)")
    }
}

impl<'de> Deserialize<'de> for SecretText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(Self(text)),
            _ => Err(D::Error::custom("a secret must be a string")),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Secret {
    user: String,
    secret: SecretText,
    muser: Option<String>,
    msecret: Option<SecretText>,
}

impl Secret {
    fn checked(self) -> Result<ChapSecret, RpcError> {
        let mutual = match (self.muser, self.msecret) {
            (Some(user), Some(secret)) => Some((user, secret.0)),
            (None, None) => None,
            _ => return Err(RpcError::invalid_params("muser and msecret come together")),
        };
        let all = [Some((&self.user, &self.secret.0)), mutual.as_ref().map(|(u, s)| (u, s))];
        for (user, secret) in all.into_iter().flatten() {
            if user.is_empty() || secret.is_empty() {
                return Err(RpcError::invalid_params("a user and a secret are not empty"));
            }
            if secret.len() < SHORT_SECRET {
                tracing::warn!(
                    "the secret of `{}` has less than {SHORT_SECRET} bytes: who listens on the network finds it by trying \
                     (RFC 7143, 9.2.1)",
                    user.escape_debug()
                );
            }
        }
        Ok(ChapSecret { user: self.user, secret: self.secret.0, mutual })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    tag: i32,
    #[serde(default)]
    secrets: Vec<Secret>,
}

fn create(call: &Call<'_>, params: Create) -> Result<bool, RpcError> {
    let tag = tag(params.tag)?;
    let secrets: Result<Vec<ChapSecret>, RpcError> =
        params.secrets.into_iter().map(Secret::checked).collect();
    let secrets = secrets?;
    call.manager.change(|change| change.create_auth_group(tag, secrets)).map_err(invalid)?;
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Delete {
    tag: i32,
}

fn delete(call: &Call<'_>, params: Delete) -> Result<bool, RpcError> {
    let tag = tag(params.tag)?;
    call.manager.change(|change| change.delete_auth_group(tag)).map_err(invalid)?;
    Ok(true)
}

fn get(call: &Call<'_>, _params: NoParams) -> Result<Vec<Value>, RpcError> {
    let model = call.manager.model();
    let groups = model.iscsi.auth_groups.iter();
    let groups = groups.map(|(tag, secrets)| auth_group_params(*tag, secrets));
    match call.peer.role {
        Role::Admin => Ok(groups.collect()),
        Role::ReadOnly => Ok(groups.map(|group| without_secrets(&group)).collect()),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AddSecret {
    tag: i32,
    user: String,
    secret: SecretText,
    muser: Option<String>,
    msecret: Option<SecretText>,
}

fn add_secret(call: &Call<'_>, params: AddSecret) -> Result<bool, RpcError> {
    let tag = tag(params.tag)?;
    let AddSecret { user, secret, muser, msecret, .. } = params;
    let secret = Secret { user, secret, muser, msecret }.checked()?;
    call.manager.change(|change| change.add_auth_secret(tag, secret)).map_err(invalid)?;
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RemoveSecret {
    tag: i32,
    user: String,
}

fn remove_secret(call: &Call<'_>, params: RemoveSecret) -> Result<bool, RpcError> {
    let tag = tag(params.tag)?;
    call.manager.change(|change| change.remove_auth_secret(tag, &params.user)).map_err(invalid)?;
    Ok(true)
}
