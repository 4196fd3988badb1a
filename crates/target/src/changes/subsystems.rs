//! Changes of subsystems and of the hosts that may connect to them.

use raceline_auth::{Algorithms, Keys};
use raceline_proto::controller::{HostAccess, Security};
use raceline_proto::nvme::Nqn;

use crate::changes::config::{SubsystemConfig, TargetError};
use crate::changes::control::Entry;
use crate::changes::target::Target;

/// What is demanded of a host.
#[derive(Clone, Debug, Default)]
pub struct HostDemands {
    /// The keys of [`Target::set_host_keys`].
    pub keys: Option<Keys>,
    /// The level of [`Target::set_host_security`].
    pub security: Security,
}

impl Target {
    /// Creates a subsystem without namespaces.
    ///
    /// # Errors
    /// When it exists, or its texts or limits break a rule.
    pub fn add_subsystem(&self, config: SubsystemConfig) -> Result<(), TargetError> {
        config.check()?;
        let mut state = self.control.lock();
        if state.subsystems.contains_key(&config.nqn) {
            return Err(TargetError::SubsystemExists(config.nqn));
        }
        let nqn = config.nqn.clone();
        let mut entry = Entry::new(config);
        self.control.prepare(&mut entry, state.common())?;
        state.subsystems.insert(nqn, entry);
        self.control.publish(&mut state)
    }

    /// Removes a subsystem: its controllers are closed, then its devices. Listeners that led to
    /// nothing else are closed, too.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn remove_subsystem(&self, nqn: &Nqn) -> Result<(), TargetError> {
        let mut state = self.control.lock();
        let entry =
            state.subsystems.remove(nqn).ok_or_else(|| TargetError::NoSubsystem(nqn.clone()))?;
        self.close_unused_listeners(&mut state)?;
        self.control.publish(&mut state)?;
        for exported in entry.namespaces.values() {
            self.control.close_device(&mut state, exported.device)?;
        }
        self.control.shared.forget_numbers(nqn);
        self.control.shared.ledger().forget(nqn);
        Ok(())
    }

    /// Sets which hosts may connect: any and an empty list, or those of a list. Controllers of
    /// hosts that may no longer connect are closed.
    ///
    /// # Errors
    /// When there is no such subsystem.
    pub fn set_hosts(&self, nqn: &Nqn, hosts: HostAccess) -> Result<(), TargetError> {
        self.change(nqn, |entry| {
            (entry.any_host, entry.hosts) = match hosts {
                HostAccess::Any => (true, Vec::new()),
                HostAccess::List(hosts) => (false, hosts),
            };
            entry.keys.retain(|host, _| entry.hosts.contains(host));
            entry.host_security.retain(|host, _| entry.hosts.contains(host));
            Ok(())
        })
    }

    /// Sets whether any host may connect, or only those of the list, which stays as it is.
    /// Controllers of hosts that may no longer connect are closed.
    ///
    /// # Errors
    /// When there is no such subsystem.
    pub fn allow_any_host(&self, nqn: &Nqn, allow: bool) -> Result<(), TargetError> {
        self.change(nqn, |entry| {
            entry.any_host = allow;
            Ok(())
        })
    }

    /// Adds a host to the list of those that may connect even when not every host may.
    ///
    /// # Errors
    /// When there is no such subsystem, or the host is on its list.
    pub fn add_host(&self, nqn: &Nqn, host: &Nqn) -> Result<(), TargetError> {
        self.add_host_with(nqn, host, HostDemands::default())
    }

    /// As [`Self::add_host`], with what is demanded of the host: at no time may it connect without.
    ///
    /// # Errors
    /// As [`Self::add_host`].
    pub fn add_host_with(
        &self,
        nqn: &Nqn,
        host: &Nqn,
        HostDemands { keys, security }: HostDemands,
    ) -> Result<(), TargetError> {
        self.change(nqn, |entry| {
            if entry.hosts.contains(host) {
                return Err(TargetError::HostExists { nqn: nqn.clone(), host: host.clone() });
            }
            entry.hosts.push(host.clone());
            if let Some(keys) = keys {
                entry.keys.insert(host.clone(), keys);
            }
            entry.set_host_security(host, security);
            Ok(())
        })
    }

    /// Takes a host from the list and closes its controllers. Where any host may connect, the host may
    /// come back.
    ///
    /// # Errors
    /// When there is no such subsystem, or the host is not on its list.
    pub fn remove_host(&self, nqn: &Nqn, host: &Nqn) -> Result<(), TargetError> {
        self.change(nqn, |entry| match entry.hosts.iter().position(|listed| listed == host) {
            Some(place) => {
                entry.hosts.remove(place);
                entry.keys.remove(host);
                entry.host_security.remove(host);
                Ok(())
            }
            None => Err(TargetError::NoHost { nqn: nqn.clone(), host: host.clone() }),
        })?;
        self.control.disconnect_host(nqn, host)
    }

    /// Sets the keys by which a host of the list has to prove itself, also where any host may connect; `None`: it need
    /// not. With keys that have no pair, it has to and cannot. Connections that there are stay; the keys hold from
    /// their next authentication on.
    ///
    /// # Errors
    /// When there is no such subsystem, or the host is not on its list.
    pub fn set_host_keys(
        &self,
        nqn: &Nqn,
        host: &Nqn,
        keys: Option<Keys>,
    ) -> Result<(), TargetError> {
        self.change(nqn, |entry| {
            if !entry.hosts.contains(host) {
                return Err(TargetError::NoHost { nqn: nqn.clone(), host: host.clone() });
            }
            match keys {
                Some(keys) => entry.keys.insert(host.clone(), keys),
                None => entry.keys.remove(host),
            };
            Ok(())
        })
    }

    /// Sets what the connections of every host of a subsystem have to have. Controllers of hosts whose connections have
    /// less are closed.
    ///
    /// # Errors
    /// When there is no such subsystem.
    pub fn set_security(&self, nqn: &Nqn, security: Security) -> Result<(), TargetError> {
        self.change(nqn, |entry| {
            entry.security = security;
            Ok(())
        })
    }

    /// Sets what the connections of a host of the list have to have besides what its subsystem demands. Its controllers
    /// close if their connections have less.
    ///
    /// # Errors
    /// When there is no such subsystem, or the host is not on its list.
    pub fn set_host_security(
        &self,
        nqn: &Nqn,
        host: &Nqn,
        security: Security,
    ) -> Result<(), TargetError> {
        self.change(nqn, |entry| {
            if !entry.hosts.contains(host) {
                return Err(TargetError::NoHost { nqn: nqn.clone(), host: host.clone() });
            }
            entry.set_host_security(host, security);
            Ok(())
        })
    }

    /// Sets with which hash functions and groups hosts may authenticate, the preferred first.
    ///
    /// # Errors
    /// When a list is empty, or a core does not answer.
    pub fn set_algorithms(&self, algorithms: Algorithms) -> Result<(), TargetError> {
        if algorithms.hashes.is_empty() || algorithms.groups.is_empty() {
            let what = "hash functions and groups of authentication";
            return Err(TargetError::Config { what, need: "at least one of each" });
        }
        let mut state = self.control.lock();
        state.algorithms = algorithms;
        state.describe_all_anew();
        self.control.publish(&mut state)
    }

    /// Sets CRDT1 to 3: after how many units of 100 ms hosts may retry commands that were refused with
    /// a retry delay. Hosts read these values when they connect.
    ///
    /// # Errors
    /// When a core does not answer.
    pub fn set_retry_delays(&self, delays: [u16; 3]) -> Result<(), TargetError> {
        let mut state = self.control.lock();
        state.retry_delays = delays;
        state.describe_all_anew();
        self.control.publish(&mut state)
    }

    /// Makes one change of one subsystem and shows it to all cores.
    pub(crate) fn change<T>(
        &self,
        nqn: &Nqn,
        change: impl FnOnce(&mut Entry) -> Result<T, TargetError>,
    ) -> Result<T, TargetError> {
        let mut state = self.control.lock();
        let result = self.control.change(&mut state, nqn, change)?;
        self.control.publish(&mut state)?;
        Ok(result)
    }
}
