//! Initiator groups and auth groups.

use raceline_target::{ChapSecret, InitiatorGroupConfig, InitiatorPattern, Netmask};
use serde_json::{Value, json};

use super::{entry, key, refused};
use crate::manager::{Change, ManagerError};

impl Change<'_> {
    /// Makes an initiator group.
    ///
    /// # Errors
    /// When there is one of that tag, or it has no initiator, no netmask, or a name that is none.
    pub fn create_initiator_group(
        &mut self,
        group: InitiatorGroupConfig,
    ) -> Result<(), ManagerError> {
        if self.model().iscsi.initiator_groups.contains_key(&group.tag) {
            return Err(ManagerError::exists("initiator group", &group.tag.to_string()));
        }
        if group.initiators.is_empty() || group.netmasks.is_empty() {
            let text = "an initiator group needs at least one initiator and one netmask (ANY)";
            return Err(ManagerError::Invalid(text.to_owned()));
        }
        self.set_initiator_group(group)
    }

    /// Adds initiators and netmasks to a group.
    ///
    /// # Errors
    /// When there is no such group, or it has one of them already.
    pub fn add_initiators(
        &mut self,
        tag: u32,
        initiators: Vec<InitiatorPattern>,
        netmasks: Vec<Netmask>,
    ) -> Result<(), ManagerError> {
        let mut group = self.model().iscsi.initiator_group(tag)?.clone();
        for initiator in initiators {
            if group.initiators.contains(&initiator) {
                return Err(ManagerError::exists("initiator", &initiator.to_string()));
            }
            group.initiators.push(initiator);
        }
        for netmask in netmasks {
            if group.netmasks.contains(&netmask) {
                return Err(ManagerError::exists("netmask", &netmask.to_string()));
            }
            group.netmasks.push(netmask);
        }
        self.set_initiator_group(group)
    }

    /// Removes initiators and netmasks from a group; sessions that may not be any more close.
    ///
    /// # Errors
    /// When there is no such group, or it does not have one of them.
    pub fn remove_initiators(
        &mut self,
        tag: u32,
        initiators: &[InitiatorPattern],
        netmasks: &[Netmask],
    ) -> Result<(), ManagerError> {
        let mut group = self.model().iscsi.initiator_group(tag)?.clone();
        for initiator in initiators {
            let missing = || ManagerError::missing("initiator", &initiator.to_string());
            let place = group.initiators.iter().position(|other| other == initiator);
            group.initiators.remove(place.ok_or_else(missing)?);
        }
        for netmask in netmasks {
            let missing = || ManagerError::missing("netmask", &netmask.to_string());
            let place = group.netmasks.iter().position(|other| other == netmask);
            group.netmasks.remove(place.ok_or_else(missing)?);
        }
        self.set_initiator_group(group)
    }

    fn set_initiator_group(&mut self, group: InitiatorGroupConfig) -> Result<(), ManagerError> {
        group.check().map_err(refused)?;
        let live = group.clone();
        self.on_iscsi_cores(|cores| cores.set_initiator_group(live))?;
        let params = initiator_group_params(&group);
        let tag = group.tag.to_string();
        self.put(key(&["initiators", &tag]), entry("iscsi_create_initiator_group", params));
        self.model_mut().iscsi.initiator_groups.insert(group.tag, group);
        Ok(())
    }

    /// Removes an initiator group and the maps that name it.
    ///
    /// # Errors
    /// When there is no such group.
    pub fn delete_initiator_group(&mut self, tag: u32) -> Result<(), ManagerError> {
        self.model().iscsi.initiator_group(tag)?;
        self.forget_maps(|map| map.initiator_group == tag)?;
        self.on_iscsi_cores(|cores| cores.remove_initiator_group(tag))?;
        self.model_mut().iscsi.initiator_groups.remove(&tag);
        self.remove(key(&["initiators", &tag.to_string()]));
        Ok(())
    }

    /// Makes an auth group.
    ///
    /// # Errors
    /// When there is one of that tag, or two secrets of one user.
    pub fn create_auth_group(
        &mut self,
        tag: u32,
        secrets: Vec<ChapSecret>,
    ) -> Result<(), ManagerError> {
        if self.model().iscsi.auth_groups.contains_key(&tag) {
            return Err(ManagerError::exists("auth group", &tag.to_string()));
        }
        let mut all = Vec::new();
        secrets.into_iter().try_for_each(|secret| add_secret(&mut all, secret))?;
        self.set_auth_group(tag, all)
    }

    /// Adds the secret of a user to an auth group.
    ///
    /// # Errors
    /// When there is no such group, or the user has a secret already.
    pub fn add_auth_secret(&mut self, tag: u32, secret: ChapSecret) -> Result<(), ManagerError> {
        let mut secrets = self.auth_group(tag)?;
        add_secret(&mut secrets, secret)?;
        self.set_auth_group(tag, secrets)
    }

    /// Removes the secret of a user from an auth group.
    ///
    /// # Errors
    /// When there is no such group or user.
    pub fn remove_auth_secret(&mut self, tag: u32, user: &str) -> Result<(), ManagerError> {
        let mut secrets = self.auth_group(tag)?;
        let place = secrets.iter().position(|secret| secret.user == user);
        secrets.remove(place.ok_or_else(|| ManagerError::missing("secret of user", user))?);
        self.set_auth_group(tag, secrets)
    }

    fn auth_group(&self, tag: u32) -> Result<Vec<ChapSecret>, ManagerError> {
        let missing = || ManagerError::missing("auth group", &tag.to_string());
        self.model().iscsi.auth_groups.get(&tag).cloned().ok_or_else(missing)
    }

    fn set_auth_group(&mut self, tag: u32, secrets: Vec<ChapSecret>) -> Result<(), ManagerError> {
        let live = secrets.clone();
        self.on_iscsi_cores(|cores| cores.set_auth_group(tag, live))?;
        let params = auth_group_params(tag, &secrets);
        self.put(key(&["auth", &tag.to_string()]), entry("iscsi_create_auth_group", params));
        self.model_mut().iscsi.auth_groups.insert(tag, secrets);
        Ok(())
    }

    /// Removes an auth group. Who has to prove who it is with its secrets cannot log in any more.
    ///
    /// # Errors
    /// When there is no such group.
    pub fn delete_auth_group(&mut self, tag: u32) -> Result<(), ManagerError> {
        self.auth_group(tag)?;
        self.on_iscsi_cores(|cores| cores.remove_auth_group(tag))?;
        self.model_mut().iscsi.auth_groups.remove(&tag);
        self.remove(key(&["auth", &tag.to_string()]));
        Ok(())
    }
}

fn add_secret(secrets: &mut Vec<ChapSecret>, secret: ChapSecret) -> Result<(), ManagerError> {
    if secrets.iter().any(|other| other.user == secret.user) {
        return Err(ManagerError::exists("secret of user", &secret.user));
    }
    secrets.push(secret);
    Ok(())
}

/// An initiator group as SPDK has it.
#[must_use]
pub(crate) fn initiator_group_params(group: &InitiatorGroupConfig) -> Value {
    let initiators: Vec<String> = group.initiators.iter().map(ToString::to_string).collect();
    let netmasks: Vec<String> = group.netmasks.iter().map(ToString::to_string).collect();
    json!({ "tag": group.tag, "initiators": initiators, "netmasks": netmasks })
}

/// An auth group as SPDK has it, with its secrets.
#[must_use]
pub(crate) fn auth_group_params(tag: u32, secrets: &[ChapSecret]) -> Value {
    let describe = |secret: &ChapSecret| {
        let mut shown = json!({ "user": secret.user, "secret": secret.secret });
        if let Some((user, secret)) = &secret.mutual {
            shown["muser"] = user.as_str().into();
            shown["msecret"] = secret.as_str().into();
        }
        shown
    };
    let secrets: Vec<Value> = secrets.iter().map(describe).collect();
    json!({ "tag": tag, "secrets": secrets })
}
