//! What both ends of DH-HMAC-CHAP have in common: names, algorithms, and how responses are computed
//! (Base 2.0, 8.13.5).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use raceline_proto::nvme::Nqn;

use crate::group::DhGroup;
use crate::hash::Hash;
use crate::interchange::KeyError;
use crate::secret::SecretBytes;

/// Who authenticates to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// HOSTNQN of the queue's Connect.
    pub host: Nqn,
    /// SUBNQN of the queue's Connect.
    pub subsystem: Nqn,
}

/// The hash functions and groups that one end allows, the preferred first. The controller's order decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Algorithms {
    /// Hash functions.
    pub hashes: Vec<Hash>,
    /// Groups.
    pub groups: Vec<DhGroup>,
}

impl Default for Algorithms {
    /// All but the NULL group. ffdhe3072 comes first: 128 bits of strength for the least work.
    fn default() -> Self {
        Self {
            hashes: Hash::ALL.to_vec(),
            groups: vec![
                DhGroup::Ffdhe3072,
                DhGroup::Ffdhe4096,
                DhGroup::Ffdhe6144,
                DhGroup::Ffdhe8192,
                DhGroup::Ffdhe2048,
            ],
        }
    }
}

/// What a response is computed of, besides the names.
pub(crate) struct Proof<'a> {
    pub(crate) hash: Hash,
    pub(crate) challenge: &'a [u8],
    pub(crate) session_key: Option<&'a SecretBytes>,
    pub(crate) seqnum: u32,
    pub(crate) t_id: u16,
    pub(crate) concatenation: Concatenation,
}

/// Which secure channel is made after an authentication (SC_C): secure channel concatenation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Concatenation {
    /// None.
    #[default]
    None,
    /// TLS with the key that the authentication makes, on connections that are made after it (NEWTLSPSK).
    New,
    /// The same, on a connection that is TLS with such a key already (REPLACETLSPSK).
    Replace,
}

impl Concatenation {
    pub(crate) fn sc_c(self) -> u8 {
        match self {
            Self::None => 0,
            Self::New => 2,
            Self::Replace => 3,
        }
    }

    /// Whether a key for TLS is made.
    #[must_use]
    pub fn makes_key(self) -> bool {
        self != Self::None
    }

    /// Whether a key for TLS can be made with this hash: TLS 1.3 has no suite with SHA-512.
    pub(crate) fn allows_hash(self, hash: Hash) -> bool {
        !self.makes_key() || hash != Hash::Sha512
    }

    /// The same for a group: without one there is no secret that only the two ends know.
    pub(crate) fn allows_group(self, group: DhGroup) -> bool {
        !self.makes_key() || group != DhGroup::Null
    }
}

impl Proof<'_> {
    /// R1, with the transformed key of the host.
    pub(crate) fn of_host(&self, key: &SecretBytes, names: &Names) -> SecretBytes {
        self.response(key, b"HostHost", &names.host, &names.subsystem)
    }

    /// R2, with the transformed key of the controller.
    pub(crate) fn of_controller(&self, key: &SecretBytes, names: &Names) -> SecretBytes {
        self.response(key, b"Controller", &names.subsystem, &names.host)
    }

    fn response(&self, key: &SecretBytes, who: &[u8], first: &Nqn, second: &Nqn) -> SecretBytes {
        let augmented = self.session_key.map(|key| self.hash.hmac(key.expose(), &[self.challenge]));
        let challenge = augmented.as_ref().map_or(self.challenge, SecretBytes::expose);
        let parts: [&[u8]; 8] = [
            challenge,
            &self.seqnum.to_le_bytes(),
            &self.t_id.to_le_bytes(),
            &[self.concatenation.sc_c()],
            who,
            first.as_str().as_bytes(),
            &[0],
            second.as_str().as_bytes(),
        ];
        self.hash.hmac(key.expose(), &parts)
    }
}

/// A fresh challenge.
pub(crate) fn challenge(hash: Hash) -> Result<Vec<u8>, KeyError> {
    Ok(SecretBytes::random(hash.len())?.expose().to_vec())
}

/// The next sequence number of this process: it counts up from a random one, and is never 0.
pub(crate) fn sequence_number() -> Result<u32, KeyError> {
    static NEXT: OnceLock<AtomicU32> = OnceLock::new();
    let first = getrandom::u32().map_err(|_| KeyError::NoRandomness)?;
    let next = NEXT.get_or_init(|| AtomicU32::new(first));
    match next.fetch_add(1, Ordering::Relaxed) {
        0 => Ok(next.fetch_add(1, Ordering::Relaxed)),
        number => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::DhchapSecret;

    fn hex(secret: &SecretBytes) -> String {
        secret.expose().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Computed by an independent program from the formula of the specification.
    #[test]
    fn responses_of_hosts_without_a_group() {
        let names = Names {
            host: Nqn::new("nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001")
                .unwrap(),
            subsystem: Nqn::new("nqn.2026-01.io.raceline:subsys1").unwrap(),
        };
        for (transform, hash, wanted) in [
            (0, Hash::Sha256, "d3caadf10eeb01f5b2ba659a35e712dfc45301ffe223456fe599216fe2720c3f"),
            (1, Hash::Sha256, "67ee1861be503e53e9756390be4f5a63b98db9e2737568b39da49080aef1c9a1"),
            (
                0,
                Hash::Sha384,
                "f7ef07c2f80e3e80f73dd9f1eacac17ed62a0819dec4cf74c75bc6059c4f71bdcc404b99787143dd6747dbb9c1c81202",
            ),
            (
                0,
                Hash::Sha512,
                "678bebc7e314c5858134315af412cbe3f5ac949bcd39d80e497c96cfcad9c47cf1330c8a364790808c3da42da4f8fa414229d312ef6368ab64975f321df0a4e3",
            ),
        ] {
            let text =
                format!("DHHC-1:0{transform}:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:");
            let key = DhchapSecret::parse(&text).unwrap().key_of(&names.host);
            let challenge = (0x40..).take(hash.len()).collect::<Vec<u8>>();
            let proof = Proof {
                hash,
                challenge: &challenge,
                session_key: None,
                seqnum: 0x1122_3344,
                t_id: 0x5566,
                concatenation: Concatenation::None,
            };
            assert_eq!(hex(&proof.of_host(&key, &names)), wanted, "{hash} {transform}");
            assert_ne!(hex(&proof.of_controller(&key, &names)), wanted);
        }
    }

    #[test]
    fn sequence_numbers_are_never_zero_and_never_the_same() {
        let [one, two] = [(); 2].map(|()| sequence_number().unwrap());
        assert!(one != 0 && two != 0 && one != two);
    }
}
