//! Listeners with a secure channel: TLS 1.3 with the pre-shared keys of the hosts that may connect.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use raceline_auth::{GeneratedKeys, TlsKey};
use raceline_proto::nvme::Nqn;
use raceline_target::Entrance;
use raceline_tls::{Ktls, Offload, PskTable, TlsAcceptor};

use super::PortLevel;
use crate::manager::{ManagerError, lock};

/// The keys of one host, by the subsystem that they are for.
type HostPsks = BTreeMap<Nqn, TlsKey>;

/// The keys of a target's hosts, and what carries the connections that come by its secure listeners.
#[derive(Debug, Default)]
pub struct SecureChannel {
    keys: Arc<PskTable>,
    /// What carries TLS, and the same for listeners where authentications make keys for it. The first listener decides
    /// whether the kernel makes the records.
    streams: OnceLock<[Arc<TlsAcceptor>; 2]>,
    /// The keys by host. Any of them holds for discovery.
    given: Mutex<BTreeMap<Nqn, HostPsks>>,
}

impl SecureChannel {
    /// How connections come in by a listener of this level; what carries them is the same for all such listeners.
    pub(super) fn entrance(&self, level: PortLevel, ktls: Ktls) -> Entrance {
        let make = || {
            // A kernel that refuses is an error for `on` alone, which no method asks for.
            let offload = Offload::decide(ktls).unwrap_or_default();
            let acceptor = || TlsAcceptor::new(Arc::clone(&self.keys) as _).with_offload(offload);
            [Arc::new(acceptor()), Arc::new(acceptor().or_plain())]
        };
        let streams = || {
            let [tls, concatenating] = self.streams.get_or_init(make);
            Arc::clone(if level.concatenates { concatenating } else { tls }) as _
        };
        let streams = level.security.tls.then(streams);
        Entrance { streams, authentication: level.security.authentication }
    }

    /// Where the keys go that authentications make.
    pub(super) fn generated_keys(&self) -> Arc<dyn GeneratedKeys> {
        Arc::clone(&self.keys) as _
    }

    /// Takes the keys away that a host has made for a subsystem, because it has lost what it proves itself by.
    pub(super) fn forget_generated(&self, nqn: &Nqn, host: &Nqn) {
        for subsystem in [nqn, &Nqn::discovery()] {
            self.keys.remove_generated(host, subsystem);
        }
    }

    /// Gives a host this key for a subsystem; `None`: takes it away. For discovery, the host has the keys of all its
    /// subsystems. Connections stay.
    ///
    /// # Errors
    /// When a name cannot be part of an identity. Then nothing has changed.
    pub(super) fn set(
        &self,
        nqn: &Nqn,
        host: &Nqn,
        key: Option<&TlsKey>,
    ) -> Result<(), ManagerError> {
        let mut given = lock(&self.given);
        let mut keys = given.get(host).cloned().unwrap_or_default();
        match key {
            Some(key) => drop(keys.insert(nqn.clone(), key.clone())),
            None => drop(keys.remove(nqn)),
        }
        let own: Vec<&TlsKey> = key.into_iter().collect();
        let all: Vec<&TlsKey> = keys.values().collect();
        for (subsystem, keys) in [(nqn, &own), (&Nqn::discovery(), &all)] {
            self.keys.set(keys, host, subsystem).map_err(|error| {
                ManagerError::Invalid(format!("psk of {host} for {subsystem}: {error}"))
            })?;
        }
        if keys.is_empty() {
            given.remove(host);
        } else {
            given.insert(host.clone(), keys);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use raceline_auth::{Hash, IdentityVersion};
    use raceline_tls::{ClientPsk, PskLookup as _};

    use super::*;

    fn nqn(name: &str) -> Nqn {
        Nqn::new(&format!("nqn.2014-08.org.example:{name}")).unwrap()
    }

    /// Whether a host with this key finds it at a subsystem, by both versions of the identity.
    fn holds(channel: &SecureChannel, key: &TlsKey, host: &Nqn, subsystem: &Nqn) -> bool {
        let [zero, one] = [IdentityVersion::Zero, IdentityVersion::One].map(|version| {
            let offered = ClientPsk::new(key, version, host, subsystem).unwrap();
            let found = channel.keys.find_all(offered.identity.as_str().as_bytes());
            found.contains(&offered.psk)
        });
        assert_eq!(zero, one);
        one
    }

    #[test]
    fn every_key_of_a_host_holds_for_discovery_as_long_as_one_subsystem_has_it() {
        let channel = SecureChannel::default();
        let (host, other, discovery) = (nqn("host"), nqn("other"), Nqn::discovery());
        let [a, b, c] = ["a", "b", "c"].map(nqn);
        let [one, two] = [(); 2].map(|()| TlsKey::generate(Hash::Sha256).unwrap());
        let set = |subsystem: &Nqn, key| channel.set(subsystem, &host, key).unwrap();
        set(&a, Some(&one));
        set(&b, Some(&one));
        set(&c, Some(&two));
        channel.set(&a, &other, Some(&two)).unwrap();
        let known = |key| holds(&channel, key, &host, &discovery);
        assert!(known(&one) && known(&two));
        assert!(holds(&channel, &one, &host, &b) && !holds(&channel, &two, &host, &b));
        set(&a, None);
        assert!(known(&one) && known(&two), "b has the first key still");
        assert!(!holds(&channel, &one, &host, &a));
        set(&b, None);
        assert!(!known(&one) && known(&two));
        set(&c, Some(&one));
        assert!(known(&one) && !known(&two), "another key has taken its place");
        set(&c, None);
        assert!(!known(&one));
        assert!(holds(&channel, &two, &other, &discovery), "another host keeps its own");
    }

    #[test]
    fn a_name_that_fits_into_no_identity_changes_nothing() {
        let channel = SecureChannel::default();
        let (host, a) = (nqn("host"), nqn("a"));
        let key = TlsKey::generate(Hash::Sha384).unwrap();
        channel.set(&a, &host, Some(&key)).unwrap();
        let spaced = Nqn::new("a name").unwrap();
        assert!(channel.set(&spaced, &host, Some(&key)).is_err());
        assert!(channel.set(&a, &spaced, Some(&key)).is_err());
        channel.set(&a, &host, None).unwrap();
        assert!(!holds(&channel, &key, &host, &Nqn::discovery()));
    }
}
