//! Levels of security: what the connections need that come by a listener, of a host, or to a subsystem.

use std::fmt;
use std::str::FromStr;

use raceline_proto::nvme::Nqn;
use raceline_target::Security;
use serde::Serializer;

use super::change::{key, subsystem_entry};
use super::{AllowedHost, SubsystemOptions};
use crate::manager::{Change, ManagerError};

/// The word for a listener where authentications make keys for TLS.
const CONCAT: &str = "concat";

/// What the connections need that come by a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortLevel {
    /// TLS, authentication, both or neither.
    pub security: Security,
    /// Hosts may begin in the clear, with an authentication that makes the key for TLS (secure channel concatenation).
    pub concatenates: bool,
}

impl PortLevel {
    /// TLS with the keys of hosts: what SPDK's `secure_channel` says.
    pub const TLS: Self = Self { security: Security::TLS, concatenates: false };

    /// Whether SPDK's `secure_channel` says all of it.
    #[must_use]
    pub fn is_of_spdk(self) -> bool {
        self == Self::default() || self == Self::TLS
    }
}

impl fmt::Display for PortLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.concatenates { f.write_str(CONCAT) } else { self.security.fmt(f) }
    }
}

impl FromStr for PortLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == CONCAT {
            return Ok(Self { security: Security::TLS, concatenates: true });
        }
        let security = text.parse().map_err(|error| format!("{error}, or concat"))?;
        Ok(Self { security, concatenates: false })
    }
}

/// A level as its word.
pub(super) fn word<S: Serializer>(security: &Security, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(security)
}

pub(super) fn is_plain(security: &Security) -> bool {
    *security == Security::PLAIN
}

impl AllowedHost {
    /// What its connections need besides what the subsystem demands of every host: TLS if it has a key for that, unless
    /// the subsystem leaves that to the host.
    #[must_use]
    pub(super) fn demands(&self, options: &SubsystemOptions) -> Security {
        let tls = self.keys.psk.is_some() && !options.psk_optional;
        self.security.or(Security { authentication: false, tls })
    }
}

impl Change<'_> {
    /// Sets what the connections of every host need, and whether hosts that have a key for TLS may come without it; what
    /// is `None` stays. Controllers whose connections have less close.
    ///
    /// # Errors
    /// When there is no such subsystem, or a core does not answer.
    pub fn set_security(
        &mut self,
        target: &str,
        nqn: &Nqn,
        (security, psk_optional): (Option<Security>, Option<bool>),
    ) -> Result<(), ManagerError> {
        let cores = self.cores_of(target, nqn)?;
        let (options, hosts) = {
            let model = self.model();
            let subsystem = model.nvmf.target(target)?.subsystem(nqn)?;
            let before = subsystem.options.clone();
            let options = SubsystemOptions {
                security: security.unwrap_or(before.security),
                psk_optional: psk_optional.unwrap_or(before.psk_optional),
                ..before
            };
            (options, subsystem.hosts.clone())
        };
        if let Some(cores) = cores {
            cores.set_security(nqn, options.security)?;
            for host in hosts {
                cores.set_host_security(nqn, &host.nqn, host.demands(&options))?;
            }
        }
        let entry = subsystem_entry(target, &options);
        self.with_subsystem(target, nqn, |subsystem| subsystem.options = options)?;
        self.put(key(target, &["subsystem", nqn.as_str()]), entry);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_ports() {
        for word in ["plain", "authenticated", "tls", "both", "concat"] {
            let level: PortLevel = word.parse().unwrap();
            assert_eq!(level.to_string(), word);
            assert_eq!(level.is_of_spdk(), matches!(word, "plain" | "tls"));
        }
        let error = "TLS".parse::<PortLevel>().unwrap_err();
        assert!(error.contains("`TLS`") && error.contains("concat"), "{error}");
    }
}
