//! Keys in the kernel's keyrings (keyrings(7)), where nvme-cli and tlshd keep those of TLS.
//!
//! A key of the type `psk` (Linux 6.7) has an identity as its description, and holds what TLS gets. nvme-cli puts it
//! into the keyring `.nvme`, which belongs to root. A key of the type `user` holds text: a key in the form in which
//! people exchange it.
//!
//! By default, a key is read by a process that possesses it: a keyring of the process leads to it. So what leads to a key
//! is linked to the keyring of the calling thread, which ends with the thread, when the kernel refuses to let it be read.

mod listing;

use std::cmp::Reverse;

use linux_keyutils::{Key, KeyError as SystemError, KeyRing, KeyRingIdentifier, KeySerialId};
use raceline_auth::{
    Derivation, IdentityVersion, KeyError, PskIdentity, TlsKey, TlsPsk, identity_is_generated,
};
use raceline_proto::nvme::Nqn;
use raceline_tls::ClientPsk;
use zeroize::Zeroizing;

use super::file::MAX_FILE_BYTES;
use listing::Entry;

/// What the name of a key of the kernel begins with. No other key has a colon in its name.
const PREFIX: &str = "kernel:";
/// What the kernel shows of the keys that a process may know of.
const LISTING: &str = "/proc/keys";
/// The keyring of keys for NVMe over TLS.
const NVME_KEYRING: &str = ".nvme";

/// A key of the kernel, as people name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelKey {
    /// `kernel:`, the key of type `psk` for the names of host and subsystem, as the kernel's own host finds it.
    ForNames,
    /// `kernel:SERIAL`, the key with this serial number, decimal or with 0x.
    Serial(i32),
    /// `kernel:DESCRIPTION`, the key of type `user` with this description, in the session's or the user's keyring.
    User(String),
}

/// Why a key of the kernel cannot be had or used. No error shows a part of the key.
#[derive(Debug, thiserror::Error)]
pub enum KernelKeyError {
    /// No keyrings at all.
    #[error(
        "the kernel's keyrings cannot be used ({0}): the kernel needs CONFIG_KEYS, and containers and services need a \
         system call filter that permits keyctl(2). Or give the key in a file"
    )]
    Unavailable(&'static str),
    /// No key for these names.
    #[error(
        "the kernel has no key of type psk for host {host} and subsystem {subsystem} that this user can see \
         ({others} for other names). As root, insert it: nvme check-tls-key --insert --identity 1 --hostnqn {host} \
         --subsysnqn {subsystem} --keydata KEY"
    )]
    NoneForNames {
        /// NQN of the host.
        host: String,
        /// NQN of the subsystem.
        subsystem: String,
        /// Keys of type `psk` for other names.
        others: usize,
    },
    /// No such key.
    #[error("there is no {0} that this user can see: keyctl show and /proc/keys list the keys")]
    Missing(String),
    /// The key may not be read.
    #[error(
        "this user may not read the {0}. Run this as root; or link the keyring that holds it to your session \
         (keyctl link %:.nvme @s), or permit reading (keyctl setperm SERIAL 0x3f030000)"
    )]
    Denied(String),
    /// The time of the key is over.
    #[error("the {0} has expired: insert it again")]
    Expired(String),
    /// Somebody has revoked the key.
    #[error("the {0} was revoked: insert it again")]
    Revoked(String),
    /// A type that cannot be used.
    #[error(
        "the {what} is of type {kind}: keys of types psk and user can be used, and no program can read one of type logon"
    )]
    Kind {
        /// The key.
        what: String,
        /// Its type.
        kind: String,
    },
    /// A key that is no text is asked for as text.
    #[error(
        "{PREFIX} alone, and a key of type psk, is for TLS of hosts only: name a key of type user ({PREFIX}DESCRIPTION)"
    )]
    OnlyForTls,
    /// What it holds is no key of the kind that is needed.
    #[error("the {what}: {error}")]
    Contents {
        /// The key.
        what: String,
        /// What is wrong with it.
        error: KeyError,
    },
    /// A key of type `psk` for other names than those of the connection.
    #[error(
        "the {what} is for other names (`{identity}`): name the key for this host and this subsystem"
    )]
    OtherNames {
        /// The key.
        what: String,
        /// Its description.
        identity: String,
    },
    /// No key of type `psk` with the identity that is wanted.
    #[error(
        "the kernel has no key of type psk with the identity `{identity}` that this user can see ({others} with other \
         identities for the same host and subsystem): /proc/keys lists the identities"
    )]
    NoneOfIdentity {
        /// What is wanted.
        identity: String,
        /// Keys with other identities for the same names.
        others: usize,
    },
    /// The key that is named has another identity than the one that is wanted.
    #[error("the {what} is offered as `{found}`, and not as `{wanted}`")]
    OtherIdentity {
        /// The key.
        what: String,
        /// Its identity.
        found: String,
        /// What is wanted.
        wanted: String,
    },
    /// Its text is too long, or is no text.
    #[error("the {0} holds no text of at most {MAX_FILE_BYTES} bytes, so it is no key")]
    NoText(String),
    /// The system said something else.
    #[error("cannot read the {what}: {why}")]
    System {
        /// The key.
        what: String,
        /// What it said.
        why: String,
    },
}

/// Which of the keys of a host for a subsystem is wanted. A pair can have several: of both versions of the identity, and for
/// both hashes.
#[derive(Clone, Copy, Debug)]
pub enum WantedPsk<'a> {
    /// The one that the kernel would choose. [`IdentityVersion::Zero`]: only of those with an identity of version 0; else
    /// those of version 1 come first, and of one version that for SHA-384.
    Best(IdentityVersion),
    /// The one with this identity, and no other one.
    Identity(&'a PskIdentity),
}

impl WantedPsk<'_> {
    /// The version of the identity by which it is offered.
    #[must_use]
    pub fn version(self) -> IdentityVersion {
        match self {
            Self::Best(version) => version,
            Self::Identity(identity) => identity.version(),
        }
    }

    /// The identity that is wanted, if a key with this identity is another one.
    #[must_use]
    pub fn instead_of(&self, found: &PskIdentity) -> Option<&PskIdentity> {
        match self {
            Self::Identity(wanted) if wanted.as_str() != found.as_str() => Some(wanted),
            _ => None,
        }
    }
}

/// What a key holds.
enum Contents {
    Psk(PskIdentity, TlsPsk),
    Text(Zeroizing<String>),
}

impl KernelKey {
    /// The key that is named; `None`: the text does not begin with `kernel:`, and means another place.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let name = text.strip_prefix(PREFIX)?;
        if name.is_empty() {
            return Some(Self::ForNames);
        }
        let serial = match name.strip_prefix("0x") {
            Some(digits) => i32::from_str_radix(digits, 16),
            None => name.parse(),
        };
        // Numbers below 1 stand for special keyrings.
        Some(match serial {
            Ok(serial) if serial > 0 => Self::Serial(serial),
            _ => Self::User(name.to_owned()),
        })
    }

    /// The text of a key of type `user`.
    ///
    /// # Errors
    /// When there is no such key, it cannot be read, or is of another type.
    pub fn text(&self) -> Result<Zeroizing<String>, KernelKeyError> {
        let contents = match self {
            Self::ForNames => return Err(KernelKeyError::OnlyForTls),
            Self::Serial(serial) => by_serial(*serial)?,
            Self::User(description) => by_description(description)?,
        };
        match contents {
            Contents::Text(text) => Ok(text),
            Contents::Psk(..) => Err(KernelKeyError::OnlyForTls),
        }
    }

    /// The key that a host offers to a subsystem. Of keys of type `psk` it is what they hold. From the text of a key of type
    /// `user` it is derived.
    ///
    /// # Errors
    /// When there is no such key, it cannot be read, or cannot be used for these names, or has another identity than the one
    /// that is wanted.
    pub fn client_psk(
        &self,
        (host, subsystem): (&Nqn, &Nqn),
        wanted: WantedPsk<'_>,
        derivation: Derivation,
    ) -> Result<ClientPsk, KernelKeyError> {
        let (what, contents) = match self {
            Self::ForNames => {
                let entries = listing()?;
                let entry = choose(&entries, (host, subsystem), wanted)?;
                (what(entry.serial), read(entry)?)
            }
            Self::Serial(serial) => (what(*serial), by_serial(*serial)?),
            Self::User(description) => (what_user(description), by_description(description)?),
        };
        let psk = match contents {
            Contents::Psk(identity, psk) if identity.names(host, subsystem) => {
                ClientPsk { identity, psk }
            }
            Contents::Psk(identity, _) => {
                return Err(KernelKeyError::OtherNames { what, identity: identity.to_string() });
            }
            Contents::Text(text) => {
                let key = TlsKey::parse(&text).map(|key| key.with_derivation(derivation));
                let psk =
                    key.and_then(|key| ClientPsk::new(&key, wanted.version(), host, subsystem));
                match psk {
                    Ok(psk) => psk,
                    Err(error) => return Err(KernelKeyError::Contents { what, error }),
                }
            }
        };
        if let Some(wanted) = wanted.instead_of(&psk.identity) {
            let (found, wanted) = (psk.identity.to_string(), wanted.to_string());
            return Err(KernelKeyError::OtherIdentity { what, found, wanted });
        }
        Ok(psk)
    }
}

/// The key of type `psk` for these names that is to be taken.
fn choose<'a>(
    entries: &'a [Entry],
    (host, subsystem): (&Nqn, &Nqn),
    wanted: WantedPsk<'_>,
) -> Result<&'a Entry, KernelKeyError> {
    let all = entries.iter().filter(|entry| entry.kind == "psk");
    let mut others = 0;
    let mut found = Vec::new();
    for entry in all {
        match PskIdentity::parse(&entry.description) {
            Some(identity)
                if identity.names(host, subsystem) && !identity_is_generated(identity.as_str()) =>
            {
                let is_zero = identity.version() == IdentityVersion::Zero;
                let order = (!entry.is_alive, is_zero, Reverse(identity.hash().len()));
                found.push((order, identity, entry));
            }
            _ => others += 1,
        }
    }
    let for_names = found.len();
    found.retain(|(_, identity, _)| match wanted {
        WantedPsk::Best(version) => {
            identity.version() == IdentityVersion::Zero || version == IdentityVersion::One
        }
        WantedPsk::Identity(_) => wanted.instead_of(identity).is_none(),
    });
    let first = found.into_iter().min_by_key(|(order, ..)| *order);
    first.map(|(.., entry)| entry).ok_or_else(|| match wanted {
        WantedPsk::Best(_) => KernelKeyError::NoneForNames {
            host: host.as_str().escape_debug().to_string(),
            subsystem: subsystem.as_str().escape_debug().to_string(),
            others,
        },
        WantedPsk::Identity(identity) => {
            let identity = identity.as_str().escape_debug().to_string();
            KernelKeyError::NoneOfIdentity { identity, others: for_names }
        }
    })
}

fn listing() -> Result<Vec<Entry>, KernelKeyError> {
    match std::fs::read_to_string(LISTING) {
        Ok(text) => Ok(text.lines().filter_map(Entry::parse).collect()),
        Err(_) => Err(KernelKeyError::Unavailable("there is no /proc/keys")),
    }
}

fn by_serial(serial: i32) -> Result<Contents, KernelKeyError> {
    let entries = listing()?;
    let entry = entries.iter().find(|entry| entry.serial == serial);
    read(entry.ok_or_else(|| KernelKeyError::Missing(what(serial)))?)
}

fn by_description(description: &str) -> Result<Contents, KernelKeyError> {
    let what = what_user(description);
    let mut seen = None;
    for place in [KeyRingIdentifier::Session, KeyRingIdentifier::User] {
        let found =
            KeyRing::from_special_id(place, false).and_then(|ring| ring.search(description));
        match found {
            Ok(key) => return text(&what, key),
            Err(SystemError::KeyDoesNotExist) => {}
            // Another keyring may have another key of that description.
            Err(error) => seen = Some(error),
        }
    }
    Err(match seen {
        Some(error) => failed(what, error),
        None => KernelKeyError::Missing(what),
    })
}

fn read(entry: &Entry) -> Result<Contents, KernelKeyError> {
    let what = what(entry.serial);
    let key = Key::from_id(KeySerialId::new(entry.serial));
    match &*entry.kind {
        "user" => text(&what, key),
        "psk" => {
            let Some(identity) = PskIdentity::parse(&entry.description) else {
                let identity = entry.description.escape_debug().to_string();
                return Err(KernelKeyError::OtherNames { what, identity });
            };
            let bytes = bytes(&what, key)?;
            let psk = TlsPsk::new(&bytes, identity.hash());
            let psk = psk.map_err(|error| KernelKeyError::Contents { what, error })?;
            Ok(Contents::Psk(identity, psk))
        }
        kind => Err(KernelKeyError::Kind { what, kind: kind.escape_debug().to_string() }),
    }
}

fn text(what: &str, key: Key) -> Result<Contents, KernelKeyError> {
    let bytes = bytes(what, key)?;
    let text = std::str::from_utf8(&bytes);
    let text = text.map_err(|_| KernelKeyError::NoText(what.to_owned()))?;
    Ok(Contents::Text(Zeroizing::new(text.to_owned())))
}

fn bytes(what: &str, key: Key) -> Result<Zeroizing<Vec<u8>>, KernelKeyError> {
    let mut buffer = Zeroizing::new(vec![0; MAX_FILE_BYTES]);
    let mut len = key.read(&mut *buffer);
    if len == Err(SystemError::AccessDenied) && possess() {
        len = key.read(&mut *buffer);
    }
    let len = len.map_err(|error| failed(what.to_owned(), error))?;
    // The kernel gives the length of the whole key, however small the buffer is.
    if len > buffer.len() {
        return Err(KernelKeyError::NoText(what.to_owned()));
    }
    buffer.truncate(len);
    Ok(buffer)
}

/// Makes the calling thread possess the keys of the user's keyring and of `.nvme`; false if it cannot.
fn possess() -> bool {
    let Ok(own) = KeyRing::from_special_id(KeyRingIdentifier::Thread, true) else { return false };
    let user = own.link_keyring_id(KeyRingIdentifier::User).is_ok();
    let entries = listing().unwrap_or_default();
    let is_nvme = |entry: &&Entry| entry.kind == "keyring" && entry.description == NVME_KEYRING;
    let nvme = entries.iter().find(is_nvme).is_some_and(|entry| {
        // The call is the same for a keyring as for a key.
        own.link_key(Key::from_id(KeySerialId::new(entry.serial))).is_ok()
    });
    user || nvme
}

fn failed(what: String, error: SystemError) -> KernelKeyError {
    match error {
        SystemError::AccessDenied => KernelKeyError::Denied(what),
        SystemError::KeyDoesNotExist => KernelKeyError::Missing(what),
        SystemError::KeyExpired => KernelKeyError::Expired(what),
        SystemError::KeyRevoked => KernelKeyError::Revoked(what),
        SystemError::Unknown(libc::ENOSYS) => KernelKeyError::Unavailable("ENOSYS"),
        SystemError::PermissionDenied => KernelKeyError::Unavailable("EPERM"),
        error => KernelKeyError::System { what, why: error.to_string() },
    }
}

fn what(serial: i32) -> String {
    format!("key {serial:#x} of the kernel")
}

fn what_user(description: &str) -> String {
    format!("key `{}` (type user) of the kernel", description.escape_debug())
}

#[cfg(test)]
mod tests;
