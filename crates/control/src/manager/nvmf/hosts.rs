//! The hosts that may connect, their keys, and the time in which an old and a new key both hold.

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use raceline_auth::{DhchapSecret, Keys, TlsKey};
use raceline_proto::nvme::Nqn;
use raceline_target::{HostDemands, Security};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::MAX_HOSTS;
use super::change::{entry, key};
use crate::keyring::{self, Held, KeyRef};
use crate::manager::keys::ChapKeys;
use crate::manager::threads::End;
use crate::manager::{Change, Manager, ManagerError};

/// How often it is looked whether an overlap is over.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A host that may connect.
#[derive(Clone, Debug)]
pub struct AllowedHost {
    /// Its name.
    pub nqn: Nqn,
    /// Its keys.
    pub keys: HostKeys,
    /// What its connections need besides.
    pub security: Security,
}

/// The keys of a host.
#[derive(Clone, Debug, Default)]
pub struct HostKeys {
    /// The pre-shared key for listeners with a secure channel.
    pub psk: Option<Held<TlsKey>>,
    /// The secrets by which host and controller prove themselves; `None`: the host need not.
    pub dhchap: Option<ChapKeys>,
    /// The secrets before, and until when they hold as well, in seconds since 1970 (UTC).
    pub previous: Option<(ChapKeys, u64)>,
}

/// The names of the keys that a call gives to a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyNames {
    /// The pre-shared key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psk: Option<String>,
    /// The host's secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dhchap_key: Option<String>,
    /// The controller's secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dhchap_ctrlr_key: Option<String>,
    /// The host's secret before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous_dhchap_key: Option<String>,
    /// The controller's secret before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous_dhchap_ctrlr_key: Option<String>,
    /// Until when the secrets before hold as well, in seconds since 1970 (UTC).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous_until: Option<u64>,
}

/// How long the secrets before go on holding beside new ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    /// For how long; zero: not at all.
    pub time: Duration,
    /// The host's secret before; `None`: the one that it has.
    pub dhchap_key: Option<String>,
    /// The controller's secret before, if the host's is named.
    pub dhchap_ctrlr_key: Option<String>,
}

impl HostKeys {
    /// What the target needs to know: `None` if the host need not authenticate. Keys that cannot be used leave no
    /// pair, so that the host cannot connect.
    #[must_use]
    pub(super) fn for_target(&self) -> Option<Keys> {
        let dhchap = self.dhchap.as_ref()?;
        let previous = self.previous.iter().filter(|(_, until)| *until > now());
        let all = std::iter::once(dhchap).chain(previous.map(|(keys, _)| keys));
        Some(Keys { pairs: all.filter_map(ChapKeys::pair).collect() })
    }

    /// The names of the keys.
    #[must_use]
    pub fn names(&self) -> KeyNames {
        let name = |held: &Held<DhchapSecret>| held.name().to_owned();
        let host = |keys: &ChapKeys| name(&keys.host);
        let controller = |keys: &ChapKeys| keys.controller.as_ref().map(name);
        let previous = self.previous.as_ref().map(|(keys, _)| keys);
        KeyNames {
            psk: self.psk.as_ref().map(|held| held.name().to_owned()),
            dhchap_key: self.dhchap.as_ref().map(host),
            dhchap_ctrlr_key: self.dhchap.as_ref().and_then(controller),
            previous_dhchap_key: previous.map(host),
            previous_dhchap_ctrlr_key: previous.and_then(controller),
            previous_until: self.previous.as_ref().map(|(_, until)| *until),
        }
    }

    fn has(&self, key: &KeyRef) -> bool {
        let chap = self.dhchap.iter().chain(self.previous.iter().map(|(keys, _)| keys));
        self.psk.as_ref().is_some_and(|held| Arc::ptr_eq(held.key(), key))
            || chap.into_iter().any(|keys| keys.has(key))
    }
}

impl Change<'_> {
    /// Puts a host on the list of those that may connect, with its keys.
    ///
    /// # Errors
    /// When there is no such subsystem, the host is on its list, or a key cannot be used.
    pub fn add_host(
        &mut self,
        target: &str,
        nqn: &Nqn,
        host: &Nqn,
        (names, security): (&KeyNames, Security),
    ) -> Result<(), ManagerError> {
        let cores = self.cores_of(target, nqn)?;
        let options = {
            let model = self.model();
            let hosts = &model.nvmf.target(target)?.subsystem(nqn)?.hosts;
            if hosts.iter().any(|listed| listed.nqn == *host) {
                return Err(ManagerError::exists("host", host.as_str()));
            }
            if hosts.len() >= MAX_HOSTS {
                let text = format!("{nqn} has {MAX_HOSTS} hosts already");
                return Err(ManagerError::Invalid(text));
            }
            model.nvmf.target(target)?.subsystem(nqn)?.options.clone()
        };
        let keys = self.hold_all(names)?;
        let allowed = AllowedHost { nqn: host.clone(), keys, security };
        self.tell_psk(target, nqn, host, &allowed.keys)?;
        let (keys, security) = (allowed.keys.for_target(), allowed.demands(&options));
        let demands = HostDemands { keys, security };
        let added = cores.map_or(Ok(()), |cores| cores.add_host_with(nqn, host, demands));
        if added.is_err() {
            self.tell_psk(target, nqn, host, &HostKeys::default())?;
        }
        added?;
        let added = allowed;
        self.put_host(target, nqn, &added);
        self.with_subsystem(target, nqn, |subsystem| subsystem.hosts.push(added))
    }

    /// Takes a host from the list; its controllers close.
    ///
    /// # Errors
    /// When there is no such subsystem, or the host is not on its list.
    pub fn remove_host(&mut self, target: &str, nqn: &Nqn, host: &Nqn) -> Result<(), ManagerError> {
        let cores = self.cores_of(target, nqn)?;
        self.keys_of(target, nqn, host)?;
        if let Some(cores) = cores {
            cores.remove_host(nqn, host)?;
        }
        self.tell_psk(target, nqn, host, &HostKeys::default())?;
        self.model().nvmf.target(target)?.secure_channel.forget_generated(nqn, host);
        self.with_subsystem(target, nqn, |subsystem| {
            subsystem.hosts.retain(|listed| listed.nqn != *host);
        })?;
        self.remove(host_key(target, nqn, host));
        Ok(())
    }

    /// Gives a host of the list other secrets; the ones before go on holding for a time. Its connections stay.
    ///
    /// # Errors
    /// When there is no such subsystem or host, or a key cannot be used.
    pub fn set_host_keys(
        &mut self,
        target: &str,
        nqn: &Nqn,
        host: &Nqn,
        (dhchap_key, dhchap_ctrlr_key): (Option<String>, Option<String>),
        overlap: Overlap,
    ) -> Result<(), ManagerError> {
        let before = self.keys_of(target, nqn, host)?;
        let previous_until = now().saturating_add(overlap.time.as_secs());
        let lasts = !overlap.time.is_zero() && dhchap_key.is_some();
        let is_named = overlap.dhchap_key.is_some();
        let names = KeyNames {
            psk: None,
            dhchap_key,
            dhchap_ctrlr_key,
            previous_dhchap_key: overlap.dhchap_key,
            previous_dhchap_ctrlr_key: overlap.dhchap_ctrlr_key,
            previous_until: (lasts && is_named).then_some(previous_until),
        };
        let mut keys = HostKeys { psk: before.psk.clone(), ..self.hold_all(&names)? };
        let pair = |keys: &HostKeys| keys.dhchap.as_ref().and_then(ChapKeys::pair);
        if lasts && !is_named {
            keys.previous = match pair(&keys) == pair(&before) {
                // A call that is made again ends no overlap.
                true => before.previous,
                // With the secret that the host has, whatever the file of its key holds by now.
                false => before.dhchap.map(|keys| (keys, previous_until)),
            };
        }
        self.replace_keys(target, nqn, host, keys)
    }

    /// Tells the secure listeners of the target the pre-shared key of a host, or that it has none that can be used.
    fn tell_psk(
        &self,
        target: &str,
        nqn: &Nqn,
        host: &Nqn,
        keys: &HostKeys,
    ) -> Result<(), ManagerError> {
        let key = keys.psk.as_ref().and_then(Held::secret);
        self.model().nvmf.target(target)?.secure_channel.set(nqn, host, key)
    }

    /// Reads the keys of a host.
    fn hold_all(&mut self, names: &KeyNames) -> Result<HostKeys, ManagerError> {
        let psk = names.psk.as_deref().map(|name| self.hold(name, keyring::Key::tls));
        let (host, controller) = (&names.dhchap_key, &names.dhchap_ctrlr_key);
        let dhchap = self.hold_pair("dhchap_ctrlr_key", host.as_deref(), controller.as_deref())?;
        let (host, controller) = (&names.previous_dhchap_key, &names.previous_dhchap_ctrlr_key);
        let (host, controller) = (host.as_deref(), controller.as_deref());
        let previous = self.hold_pair("previous_dhchap_ctrlr_key", host, controller)?;
        let previous = previous.zip(names.previous_until);
        Ok(HostKeys { psk: psk.transpose()?, dhchap, previous })
    }

    /// Tells the cores the keys of all hosts that have this key; gives the number of these hosts.
    pub(in crate::manager) fn renew_hosts_with(
        &mut self,
        key: &KeyRef,
    ) -> Result<usize, ManagerError> {
        let found = self.hosts_whose(|keys| keys.has(key));
        for (target, nqn, host) in &found {
            let keys = self.keys_of(target, nqn, host)?;
            self.tell_psk(target, nqn, host, &keys)?;
            self.model().nvmf.target(target)?.secure_channel.forget_generated(nqn, host);
            if let Some(cores) = self.cores_of(target, nqn)? {
                cores.set_host_keys(nqn, host, keys.for_target())?;
            }
        }
        Ok(found.len())
    }

    fn replace_keys(
        &mut self,
        target: &str,
        nqn: &Nqn,
        host: &Nqn,
        keys: HostKeys,
    ) -> Result<(), ManagerError> {
        if let Some(cores) = self.cores_of(target, nqn)? {
            cores.set_host_keys(nqn, host, keys.for_target())?;
        }
        let changed = AllowedHost { keys, ..self.listed(target, nqn, host)? };
        self.put_host(target, nqn, &changed);
        self.with_subsystem(target, nqn, |subsystem| {
            if let Some(listed) = subsystem.hosts.iter_mut().find(|listed| listed.nqn == *host) {
                *listed = changed;
            }
        })
    }

    fn put_host(&mut self, target: &str, nqn: &Nqn, host: &AllowedHost) {
        // Texts and numbers can always be JSON.
        let mut params = serde_json::to_value(host.keys.names()).unwrap_or_default();
        if let Value::Object(members) = &mut params {
            let keys = std::mem::take(members);
            members.insert("nqn".to_owned(), nqn.as_str().into());
            members.insert("host".to_owned(), host.nqn.as_str().into());
            members.extend(keys);
            if host.security != Security::PLAIN {
                members.insert("security".to_owned(), host.security.to_string().into());
            }
        }
        let made = entry(target, "nvmf_subsystem_add_host", params);
        self.put(host_key(target, nqn, &host.nqn), made);
    }

    fn keys_of(&self, target: &str, nqn: &Nqn, host: &Nqn) -> Result<HostKeys, ManagerError> {
        Ok(self.listed(target, nqn, host)?.keys)
    }

    fn listed(&self, target: &str, nqn: &Nqn, host: &Nqn) -> Result<AllowedHost, ManagerError> {
        let model = self.model();
        let hosts = &model.nvmf.target(target)?.subsystem(nqn)?.hosts;
        let found = hosts.iter().find(|listed| listed.nqn == *host);
        let missing = || ManagerError::missing("host", host.as_str());
        Ok(found.ok_or_else(missing)?.clone())
    }

    /// The hosts of all targets whose keys are such, as (target, subsystem, host).
    fn hosts_whose(&self, is_such: impl Fn(&HostKeys) -> bool) -> Vec<(String, Nqn, Nqn)> {
        let model = self.model();
        let mut found = Vec::new();
        for (name, target) in &model.nvmf.targets {
            for (nqn, subsystem) in &target.subsystems {
                let such = subsystem.hosts.iter().filter(|host| is_such(&host.keys));
                found.extend(such.map(|host| (name.clone(), nqn.clone(), host.nqn.clone())));
            }
        }
        found
    }

    /// Ends the overlaps whose time is over.
    fn end_overlaps(&mut self) -> Result<(), ManagerError> {
        let now = now();
        let is_over = |keys: &HostKeys| keys.previous.as_ref().is_some_and(|it| it.1 <= now);
        for (target, nqn, host) in self.hosts_whose(is_over) {
            let keys = HostKeys { previous: None, ..self.keys_of(&target, &nqn, &host)? };
            self.replace_keys(&target, &nqn, &host, keys)?;
            tracing::info!(subsystem = %nqn, %host, "the keys before hold no longer");
        }
        Ok(())
    }
}

impl Manager {
    /// Has a thread end overlaps of old and new keys, if there are any and none does.
    pub fn follow_overlaps(&self) {
        let Some(manager) = self.threads.shared.get().cloned() else { return };
        {
            let mut model = self.model_mut();
            if model.nvmf.ends_overlaps || model.nvmf.overlaps().next().is_none() {
                return;
            }
            model.nvmf.ends_overlaps = true;
        }
        let end = Arc::clone(&self.threads.end);
        if let Err(error) = self.threads.spawn("keys", move || follow(&manager, &end)) {
            tracing::error!("old keys go on holding: no thread: {error}");
            self.model_mut().nvmf.ends_overlaps = false;
        }
    }
}

impl super::Nvmf {
    /// When the overlaps of old and new keys end.
    fn overlaps(&self) -> impl Iterator<Item = u64> {
        let subsystems = self.targets.values().flat_map(|target| target.subsystems.values());
        let hosts = subsystems.flat_map(|subsystem| &subsystem.hosts);
        hosts.filter_map(|host| host.keys.previous.as_ref().map(|(_, until)| *until))
    }
}

/// Ends overlaps until none is left, or the manager ends.
fn follow(manager: &Weak<Manager>, end: &End) {
    while !end.wait(LOOK_INTERVAL) {
        let Some(manager) = manager.upgrade() else { return };
        let is_over = manager.model().nvmf.overlaps().any(|until| until <= now());
        if is_over && let Err(error) = manager.change(|change| change.end_overlaps()) {
            tracing::warn!("old keys go on holding for now: {error}");
        }
        let mut model = manager.model_mut();
        if model.nvmf.overlaps().next().is_none() {
            model.nvmf.ends_overlaps = false;
            return;
        }
    }
}

fn host_key(target: &str, nqn: &Nqn, host: &Nqn) -> crate::manager::catalogue::Key {
    key(target, &["subsystem", nqn.as_str(), "host", host.as_str()])
}

/// Seconds since 1970 (UTC).
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
