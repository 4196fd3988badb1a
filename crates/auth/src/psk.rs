//! Pre-shared keys of TLS 1.3: configured, retained, generated, and as TLS gets them (NVMe/TCP 1.1, 3.6.1).

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use raceline_proto::nvme::Nqn;
use zeroize::Zeroizing;

use crate::chap::Names;
use crate::hash::Hash;
use crate::interchange::{self, KeyError};
use crate::secret::SecretBytes;

const PREFIX: &str = "NVMeTLSkey-1";

/// A configured key in the form in which people exchange it: `NVMeTLSkey-1:<hash>:<base64 of key and CRC-32>:`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsKey {
    psk: SecretBytes,
    /// The hash that binds the key to a host; `None`: it is used as it is.
    hash: Option<Hash>,
    derivation: Derivation,
}

/// How other keys are derived from a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Derivation {
    /// As the specification says.
    #[default]
    Standard,
    /// As old versions of libnvme do it, such as that of nvme-cli 2.13 (Debian 13). New ones do it with `--compat`.
    OldLibnvme,
}

impl Derivation {
    fn derive(
        self,
        hash: Hash,
        (key, label, context): (&SecretBytes, &str, &[u8]),
        len: usize,
    ) -> Option<SecretBytes> {
        match self {
            Self::Standard => hash.derive(key.expose(), label, context, len),
            Self::OldLibnvme => hash.derive_as_old_libnvme(key.expose(), label, context, len),
        }
    }
}

impl TlsKey {
    /// Makes a new key for SHA-256 (32 bytes) or SHA-384 (48 bytes).
    ///
    /// # Errors
    /// With SHA-512, which TLS 1.3 has no suite for, and when the operating system gives no randomness.
    pub fn generate(hash: Hash) -> Result<Self, KeyError> {
        if hash == Hash::Sha512 {
            return Err(KeyError::UnknownHash);
        }
        let derivation = Derivation::Standard;
        Ok(Self { psk: SecretBytes::random(hash.len())?, hash: Some(hash), derivation })
    }

    /// Reads a key. Space around it is ignored.
    ///
    /// # Errors
    /// When the text is no key; the error never shows a part of it.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let (id, psk) = interchange::parse(text, PREFIX)?;
        let hash = match (id, psk.expose().len()) {
            (0, 32 | 48) => None,
            (1, 32) => Some(Hash::Sha256),
            (2, 48) => Some(Hash::Sha384),
            (0..=2, _) => return Err(KeyError::Length),
            _ => return Err(KeyError::UnknownHash),
        };
        Ok(Self { psk, hash, derivation: Derivation::Standard })
    }

    /// The same key, from which other keys are derived in this way.
    #[must_use]
    pub fn with_derivation(self, derivation: Derivation) -> Self {
        Self { derivation, ..self }
    }

    /// The key as text. The text is overwritten when it is dropped.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        interchange::print(PREFIX, self.hash.map_or(0, Hash::id), &self.psk)
    }

    /// The hash of the cipher suite that the key is for.
    #[must_use]
    pub fn cipher_hash(&self) -> Hash {
        match self.psk.expose().len() {
            32 => Hash::Sha256,
            _ => Hash::Sha384,
        }
    }

    /// The key of one host.
    #[must_use]
    pub fn retained(&self, host: &Nqn) -> RetainedPsk {
        let len = self.psk.expose().len();
        let psk = match self.hash {
            None => self.psk.clone(),
            Some(hash) => self
                .derivation
                .derive(hash, (&self.psk, "HostNQN", host.as_str().as_bytes()), len)
                .expect("an NQN has at most 223 bytes"),
        };
        RetainedPsk { psk, hash: self.cipher_hash(), derivation: self.derivation }
    }
}

impl FromStr for TlsKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        Self::parse(text)
    }
}

/// The key of one host and any subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetainedPsk {
    psk: SecretBytes,
    hash: Hash,
    derivation: Derivation,
}

/// The key that an authentication on the admin queue has made (secure channel concatenation).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedPsk {
    psk: SecretBytes,
    hash: Hash,
}

/// The form of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IdentityVersion {
    /// Version 0: the names only (NVMe/TCP 1.0).
    Zero,
    /// Version 1: the names and a digest of the key (NVMe/TCP 1.1).
    One,
}

/// The text by which peers name a key. It is public.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PskIdentity {
    text: String,
    version: IdentityVersion,
    /// Where the context of the derivation begins: `<hash> <digest>` in version 1.
    digest: Option<String>,
    hash: Hash,
}

impl PskIdentity {
    fn new(
        (psk, hash, kind): (&SecretBytes, Hash, char),
        version: IdentityVersion,
        host: &Nqn,
        subsystem: &Nqn,
    ) -> Self {
        let (host, subsystem, id) = (host.as_str(), subsystem.as_str(), hash.id());
        match version {
            IdentityVersion::Zero => {
                let text = format!("NVMe0{kind}{id:02} {host} {subsystem}");
                Self { text, version, digest: None, hash }
            }
            IdentityVersion::One => {
                let names = format!("{host} {subsystem} NVMe-over-Fabrics");
                let digest = hash.hmac(psk.expose(), &[names.as_bytes()]);
                let digest = STANDARD.encode(digest.expose());
                let text = format!("NVMe1{kind}{id:02} {host} {subsystem} {digest}");
                Self { text, version, digest: Some(digest), hash }
            }
        }
    }

    /// Reads the identity of a retained or of a generated key: `NVMe<version><R|G><hash> <host> <subsystem>`, and in
    /// version 1 the digest. Linux keeps keys for TLS under it. `None`: the text is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (form, names) = text.split_once(' ')?;
        let version = match form.get(..6)? {
            "NVMe0R" | "NVMe0G" => IdentityVersion::Zero,
            "NVMe1R" | "NVMe1G" => IdentityVersion::One,
            _ => return None,
        };
        let hash = match form.get(6..)? {
            "01" => Hash::Sha256,
            "02" => Hash::Sha384,
            _ => return None,
        };
        let words: Vec<&str> = names.split(' ').collect();
        let digest = match (version, &words[..]) {
            (IdentityVersion::Zero, [_, _]) => None,
            (IdentityVersion::One, [_, _, digest]) => Some((*digest).to_owned()),
            _ => return None,
        };
        words.iter().all(|word| !word.is_empty()).then(|| {
            let text = text.to_owned();
            Self { text, version, digest, hash }
        })
    }

    /// The hash of the cipher suite that goes with the key.
    #[must_use]
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// The identity, as TLS carries it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Its form.
    #[must_use]
    pub fn version(&self) -> IdentityVersion {
        self.version
    }

    /// Whether it names this host and this subsystem.
    #[must_use]
    pub fn names(&self, host: &Nqn, subsystem: &Nqn) -> bool {
        identity_names(&self.text, host, subsystem)
    }

    /// The key that TLS gets.
    fn tls_psk(&self, psk: &SecretBytes, derivation: Derivation) -> Result<TlsPsk, KeyError> {
        let context = match &self.digest {
            Some(digest) => format!("{:02} {digest}", self.hash.id()),
            None => self.text.clone(),
        };
        let input = (psk, "nvme-tls-psk", context.as_bytes());
        let key =
            derivation.derive(self.hash, input, self.hash.len()).ok_or(KeyError::NamesTooLong)?;
        Ok(TlsPsk { key, hash: self.hash })
    }
}

impl fmt::Display for PskIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names may have characters that terminals obey.
        write!(f, "{}", self.text.escape_debug())
    }
}

/// Whether an identity that a handshake has proved names this host and this subsystem. Names with a space are in no
/// identity, since a space ends a name there.
#[must_use]
pub fn identity_names(identity: &str, host: &Nqn, subsystem: &Nqn) -> bool {
    let (host, subsystem) = (host.as_str(), subsystem.as_str());
    if host.contains(' ') || subsystem.contains(' ') {
        return false;
    }
    let mut words = identity.split(' ');
    let (form, found) = (words.next(), (words.next(), words.next()));
    let (digest, more) = (words.next(), words.next());
    let form_is = |version: &str| form.is_some_and(|form| form.starts_with(version));
    found == (Some(host), Some(subsystem))
        && more.is_none()
        && (form_is("NVMe0") && digest.is_none() || form_is("NVMe1") && digest.is_some())
}

/// Whether an identity names a key that an authentication has made.
#[must_use]
pub fn identity_is_generated(identity: &str) -> bool {
    // Between the version and the hash.
    identity.as_bytes().get(5) == Some(&b'G')
}

/// Where the keys go that authentications make: what connects over TLS finds them there.
pub trait GeneratedKeys: Send + Sync + fmt::Debug {
    /// Takes the key of a host for a subsystem.
    fn add(&self, psk: &GeneratedPsk, names: &Names);

    /// Takes a key away, by its identity.
    fn forget(&self, identity: &str);
}

impl RetainedPsk {
    /// The identity for a subsystem, and the key that TLS gets.
    ///
    /// # Errors
    /// In version 0 when both names together are too long.
    pub fn for_tls(
        &self,
        version: IdentityVersion,
        host: &Nqn,
        subsystem: &Nqn,
    ) -> Result<(PskIdentity, TlsPsk), KeyError> {
        let identity = PskIdentity::new((&self.psk, self.hash, 'R'), version, host, subsystem);
        let key = identity.tls_psk(&self.psk, self.derivation)?;
        Ok((identity, key))
    }
}

impl GeneratedPsk {
    /// The key of an authentication: of the session key (the hash of what both ends computed in their group), the
    /// controller's challenge and the host's.
    ///
    /// # Errors
    /// With SHA-512, which TLS 1.3 has no suite for.
    pub fn new(
        hash: Hash,
        session_key: &SecretBytes,
        controller_challenge: &[u8],
        host_challenge: &[u8],
    ) -> Result<Self, KeyError> {
        if hash == Hash::Sha512 {
            return Err(KeyError::UnknownHash);
        }
        let psk = hash.hmac(session_key.expose(), &[controller_challenge, host_challenge]);
        Ok(Self { psk, hash })
    }

    /// The identity (of version 1) for a subsystem, and the key that TLS gets.
    ///
    /// # Errors
    /// Never; the type is that of [`RetainedPsk::for_tls`].
    pub fn for_tls(&self, host: &Nqn, subsystem: &Nqn) -> Result<(PskIdentity, TlsPsk), KeyError> {
        let version = IdentityVersion::One;
        let identity = PskIdentity::new((&self.psk, self.hash, 'G'), version, host, subsystem);
        let key = identity.tls_psk(&self.psk, Derivation::Standard)?;
        Ok((identity, key))
    }
}

/// The key that TLS 1.3 gets as its external PSK, and the hash of its cipher suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsPsk {
    key: SecretBytes,
    hash: Hash,
}

impl TlsPsk {
    /// A key that was derived elsewhere, for a suite with this hash.
    ///
    /// # Errors
    /// When it does not have as many bytes as the hash.
    pub fn new(key: &[u8], hash: Hash) -> Result<Self, KeyError> {
        if key.len() != hash.len() || hash == Hash::Sha512 {
            return Err(KeyError::Length);
        }
        Ok(Self { key: SecretBytes::new(key), hash })
    }

    /// A key that was agreed on without NVMe, of 16 to 64 bytes. Its hash is SHA-256, as for each external key of which
    /// nothing else is known (RFC 8446, 4.2.11).
    ///
    /// # Errors
    /// When it has another length.
    pub fn external(key: &[u8]) -> Result<Self, KeyError> {
        if !(16..=64).contains(&key.len()) {
            return Err(KeyError::Length);
        }
        Ok(Self { key: SecretBytes::new(key), hash: Hash::Sha256 })
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &SecretBytes {
        &self.key
    }

    /// The hash: SHA-256 goes with TLS_AES_128_GCM_SHA256, SHA-384 with TLS_AES_256_GCM_SHA384.
    #[must_use]
    pub fn hash(&self) -> Hash {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P32: &str = "5512DBB6737D0106F65975B773DFB011FFC344BCF442E2DD6D8BC4870B5D5B03";
    const TEXT_00: &str = "NVMeTLSkey-1:00:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    const TEXT_01: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    const TEXT_02: &str =
        "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn nqn(name: &str) -> Nqn {
        Nqn::new(name).unwrap()
    }

    #[test]
    fn keys_are_read_and_printed() {
        for text in [
            TEXT_00,
            TEXT_01,
            TEXT_02,
            "NVMeTLSkey-1:01:MDAxMTIyMzM0NDU1NjY3Nzg4OTlhYWJiY2NkZGVlZmZwJEiQ:",
        ] {
            assert_eq!(*TlsKey::parse(text).unwrap().to_text(), text);
        }
        assert_eq!(hex(TlsKey::parse(TEXT_00).unwrap().psk.expose()), P32.to_lowercase());
        for (text, error) in [
            (TEXT_01.replace(":01:", ":02:"), KeyError::Length),
            (TEXT_02.replace(":02:", ":01:"), KeyError::Length),
            (TEXT_02.replace(":02:", ":03:"), KeyError::UnknownHash),
            (TEXT_01.replace("VRLb", "VRLc"), KeyError::Checksum),
            (TEXT_01.replace("NVMeTLSkey-1", "NVMeTLSkey-2"), KeyError::Form(PREFIX)),
        ] {
            assert_eq!(TlsKey::parse(&text), Err(error), "{text}");
        }
        for hash in [Hash::Sha256, Hash::Sha384] {
            let key = TlsKey::generate(hash).unwrap();
            assert_eq!(TlsKey::parse(&key.to_text()), Ok(key));
        }
        assert!(TlsKey::generate(Hash::Sha512).is_err());
    }

    #[test]
    fn keys_and_identities_of_version_1() {
        let (host, subsystem) = (nqn("nqn.psk-test-host"), nqn("nqn.psk-test-subsys"));
        for (text, identity, retained, tls) in [
            (
                TEXT_01,
                "NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys \
                 iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=",
                "073311dec37e219ff3acd43f130130c5bdd443c066e1cc3424e49030234ff7d5",
                "8fc3c0badfd4c0c66fa3ca33aadd0314f85536cc9bc47338b60f3e6e563786ca",
            ),
            (
                TEXT_02,
                "NVMe1R02 nqn.psk-test-host nqn.psk-test-subsys \
                 QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a",
                "73973a1b51a9acdde29a0610ac6a3ef852cf45936cca6830a661d18f68502f1a4c7a8ecb37524e0b1f7087cb4d680ad9",
                "a2b2f943f479fc682555cec89857c80ed004ce92f32a973d5764155bb7e36b17a85368a0666d250afac9282dda2e62ca",
            ),
        ] {
            let psk = TlsKey::parse(text).unwrap().retained(&host);
            assert_eq!(hex(psk.psk.expose()), retained);
            let (found, key) = psk.for_tls(IdentityVersion::One, &host, &subsystem).unwrap();
            assert_eq!(found.as_str(), identity);
            assert_eq!(hex(key.key().expose()), tls);
        }
    }

    /// The digests are those of libnvme's own tests for its old derivation.
    #[test]
    fn keys_and_identities_of_old_versions_of_libnvme() {
        let (host, subsystem) = (nqn("nqn.psk-test-host"), nqn("nqn.psk-test-subsys"));
        for (text, digest) in [
            (TEXT_01, "66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM="),
            (TEXT_02, "RsKmYJ3nAn1ApjjMloJFbAkLPivONDAX/xW327YBUsn2eGShXSjCZvBaOxscLqmz"),
        ] {
            let standard = TlsKey::parse(text).unwrap();
            let old = standard.clone().with_derivation(Derivation::OldLibnvme);
            let of = |key: &TlsKey, version| {
                key.retained(&host).for_tls(version, &host, &subsystem).unwrap()
            };
            let (identity, key) = of(&old, IdentityVersion::One);
            assert!(identity.as_str().ends_with(digest), "{identity}");
            assert_ne!(of(&standard, IdentityVersion::One).1, key);
            let zero = IdentityVersion::Zero;
            assert_eq!(of(&old, zero).0, of(&standard, zero).0);
            assert_ne!(of(&old, zero).1, of(&standard, zero).1);
        }
    }

    #[test]
    fn keys_and_identities_of_version_0() {
        let host = nqn("nqn.2016-06.io.spdk:host1");
        let subsystem = nqn("nqn.2016-06.io.spdk:cnode1");
        let psk = TlsKey::parse(TEXT_01).unwrap().retained(&host);
        let wanted = "b984602631ba729339562d4d3fed69a588dbbbf14b74d7f3d1dd890093d5f607";
        assert_eq!(hex(psk.psk.expose()), wanted);
        let (identity, key) = psk.for_tls(IdentityVersion::Zero, &host, &subsystem).unwrap();
        let wanted = "NVMe0R01 nqn.2016-06.io.spdk:host1 nqn.2016-06.io.spdk:cnode1";
        assert_eq!(identity.as_str(), wanted);
        let wanted = "f68998173a208526b3e5b21ccca3f7d87c6d229af58bc59a04cc29459caa4ae8";
        assert_eq!(hex(key.key().expose()), wanted);
    }

    #[test]
    fn names_that_do_not_fit_are_refused_in_version_0_only() {
        let host = nqn(&"h".repeat(223));
        let psk = TlsKey::parse(TEXT_01).unwrap().retained(&host);
        let version = IdentityVersion::Zero;
        assert_eq!(psk.for_tls(version, &host, &host).unwrap_err(), KeyError::NamesTooLong);
        assert!(psk.for_tls(IdentityVersion::One, &host, &host).is_ok());
    }

    #[test]
    fn identities_name_two_names() {
        let names = |identity: &str| identity_names(identity, &nqn("nqn.host"), &nqn("nqn.sub"));
        for (identity, wanted) in [
            ("NVMe0R01 nqn.host nqn.sub", true),
            ("NVMe1R02 nqn.host nqn.sub digest=", true),
            ("NVMe1G01 nqn.host nqn.sub digest=", true),
            ("NVMe0R01 nqn.host nqn.sub digest=", false),
            ("NVMe1R01 nqn.host nqn.sub", false),
            ("NVMe1R01 nqn.host nqn.sub digest= more", false),
            ("NVMe0R01 nqn.host nqn.su", false),
            ("NVMe0R01 nqn.hos nqn.sub", false),
            ("NVMe0R01  nqn.host nqn.sub", false),
            ("NVMe2R01 nqn.host nqn.sub", false),
            ("", false),
        ] {
            assert_eq!(names(identity), wanted, "{identity}");
        }
        let (host, rest) = (nqn("a b"), nqn("c"));
        assert!(!identity_names("NVMe0R01 a b c", &host, &rest));
        assert!(!identity_names("NVMe1R01 a b c", &nqn("a"), &nqn("b c")));
    }

    #[test]
    fn identities_are_read_back() {
        let (host, subsystem) = (nqn("nqn.host"), nqn("nqn.sub"));
        for text in [TEXT_01, TEXT_02] {
            let psk = TlsKey::parse(text).unwrap().retained(&host);
            for version in [IdentityVersion::Zero, IdentityVersion::One] {
                let (identity, key) = psk.for_tls(version, &host, &subsystem).unwrap();
                assert_eq!(PskIdentity::parse(identity.as_str()), Some(identity.clone()));
                let bytes = key.key().expose();
                assert_eq!(TlsPsk::new(bytes, identity.hash()), Ok(key.clone()));
                assert_eq!(TlsPsk::new(&bytes[1..], identity.hash()), Err(KeyError::Length));
            }
        }
        assert_eq!(TlsPsk::new(&[0; 64], Hash::Sha512), Err(KeyError::Length));
        for text in [
            "",
            "NVMe0R01",
            "NVMe0R01 nqn.host",
            "NVMe0R01 nqn.host nqn.sub digest=",
            "NVMe1R01 nqn.host nqn.sub",
            "NVMe1R01 nqn.host nqn.sub digest= more",
            "NVMe1R01 nqn.host  digest=",
            "NVMe1R03 nqn.host nqn.sub digest=",
            "NVMe1R0 nqn.host nqn.sub digest=",
            "NVMe1X01 nqn.host nqn.sub digest=",
            "NVMe2R01 nqn.host nqn.sub digest=",
            "NVM\u{e9}R01 nqn.host nqn.sub",
        ] {
            assert_eq!(PskIdentity::parse(text), None, "{text}");
        }
    }

    #[test]
    fn generated_keys() {
        let (host, subsystem) = (nqn("hostnqn"), nqn("subsysnqn"));
        for (hash, psk, digest, tls) in [
            (
                Hash::Sha256,
                "1733c59fa7f48fcf37f5f26fc4ff0268ad4f78e030f4f3b0bfd1d47e7bb1447a",
                "OldoKuTfKddMuyCznAZojkWD7P4D9/AtzDzLimtOxqI=",
                "3c17da628474a04d2247c4cab47968c915388193f7c071bd9489cc3666cd7cc8",
            ),
            (
                Hash::Sha384,
                "f14b2dd3234c459694d3bc63f8968bd6b37c2c6de849e22e118749001ce4bbe8640b9e3a748cb11ce4b1d71d359cce39",
                "cffMWk8TSS7HOQebjgYEIkrPrjWPV4JE5cdPB8WhEvY4JBW5YynKyv66XscN4A9n",
                "2774753233537b3fa50eb7d16a8e43457d85f4906c005b2236616c5d80939d0898fff15bb8b77119d2be0aac423e7590",
            ),
        ] {
            let bytes = || 0..u8::try_from(hash.len()).unwrap();
            let session = bytes().map(|i| b'A' + i).collect::<Vec<_>>();
            let c1 = bytes().collect::<Vec<_>>();
            let c2 = bytes().map(|i| 0xff - i).collect::<Vec<_>>();
            let made = GeneratedPsk::new(hash, &SecretBytes::new(&session), &c1, &c2).unwrap();
            assert_eq!(hex(made.psk.expose()), psk);
            let (identity, key) = made.for_tls(&host, &subsystem).unwrap();
            let id = hash.id();
            assert_eq!(identity.as_str(), format!("NVMe1G{id:02} hostnqn subsysnqn {digest}"));
            assert_eq!(hex(key.key().expose()), tls);
        }
    }
}
