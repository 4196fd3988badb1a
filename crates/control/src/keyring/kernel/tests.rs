//! Which key of the kernel is meant, what it holds, and what is said when it cannot be used.

use raceline_auth::Hash;

use super::*;

const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

const BEST: WantedPsk<'_> = WantedPsk::Best(IdentityVersion::One);

fn names() -> (Nqn, Nqn) {
    (Nqn::new("nqn.psk-test-host").unwrap(), Nqn::new("nqn.psk-test-subsys").unwrap())
}

/// A key of this test in the user's keyring; dropping takes it away.
struct Added(Key);

impl Added {
    /// `None`: this kernel, or the filter that the test runs under, has no keyrings.
    fn new(description: &str, contents: &[u8]) -> Option<Self> {
        match KeyRing::from_special_id(KeyRingIdentifier::User, true) {
            Ok(ring) => Some(Self(ring.add_key(description, contents).unwrap())),
            Err(error) => {
                let error = failed(String::new(), error);
                assert!(matches!(error, KernelKeyError::Unavailable(_)), "{error}");
                eprintln!("SKIPPED: {error}");
                None
            }
        }
    }

    fn serial(&self) -> i32 {
        self.0.get_id().as_raw_id()
    }
}

impl Drop for Added {
    fn drop(&mut self) {
        // It may be gone by now: some tests end its life.
        let _ = self.0.invalidate();
    }
}

/// A description that no other run of this test has.
fn unique(name: &str) -> String {
    format!("raceline-test-{name}-{}", std::process::id())
}

#[test]
fn names_of_keys_of_the_kernel() {
    let user = |name: &str| Some(KernelKey::User(name.to_owned()));
    for (text, wanted) in [
        ("kernel:", Some(KernelKey::ForNames)),
        ("kernel:305419896", Some(KernelKey::Serial(0x1234_5678))),
        ("kernel:0x12345678", Some(KernelKey::Serial(0x1234_5678))),
        ("kernel:web1", user("web1")),
        ("kernel:a:b", user("a:b")),
        ("kernel:-3", user("-3")),
        ("kernel:0", user("0")),
        ("kernel:99999999999", user("99999999999")),
        ("kernel", None),
        ("./kernel:web1", None),
    ] {
        assert_eq!(KernelKey::parse(text), wanted, "{text}");
    }
}

#[test]
fn the_kernels_own_order_of_keys() {
    let (host, subsystem) = names();
    let line = |serial: u32, time: &str, kind: &str, form: &str, digest: &str| {
        let text = format!(
            "{serial:08x} I--Q---     1 {time} 3f010000     0     0 {kind:9} \
             {form} nqn.psk-test-host nqn.psk-test-subsys{digest}: 32"
        );
        Entry::parse(&text).unwrap()
    };
    let all = || {
        vec![
            line(1, "perm", "psk", "NVMe0R01", ""),
            line(2, "perm", "psk", "NVMe0R02", ""),
            line(3, "perm", "psk", "NVMe1R01", " a="),
            line(4, "perm", "psk", "NVMe1G02", " b="),
            line(5, "perm", "user", "NVMe1R02", " c="),
            line(6, "expd", "psk", "NVMe1R02", " d="),
            line(7, "perm", "psk", "NVMe1R02", " e="),
        ]
    };
    let mut entries = all();
    let chosen = |entries: &[Entry], version| {
        let best = WantedPsk::Best(version);
        choose(entries, (&host, &subsystem), best).map(|entry| entry.serial).ok()
    };
    let one = IdentityVersion::One;
    assert_eq!(chosen(&entries, IdentityVersion::Zero), Some(2));
    for wanted in [7, 3, 2, 1, 6] {
        assert_eq!(chosen(&entries, one), Some(wanted));
        entries.retain(|entry| entry.serial != wanted);
    }
    assert_eq!(chosen(&entries, one), None);
    let error = choose(&entries, (&host, &subsystem), BEST).unwrap_err().to_string();
    let words = "--hostnqn nqn.psk-test-host --subsysnqn nqn.psk-test-subsys";
    assert!(error.contains("(1 for other names)") && error.contains(words), "{error}");
    let other = Nqn::new("nqn.psk-test-host2").unwrap();
    assert!(choose(&entries, (&other, &subsystem), BEST).is_err());
    // An identity names one key, whatever the order: its version, its hash and its digest.
    let entries = all();
    let named = |form: &str, digest: &str| {
        let text = format!("{form} nqn.psk-test-host nqn.psk-test-subsys{digest}");
        let identity = PskIdentity::parse(&text).unwrap();
        let found = choose(&entries, (&host, &subsystem), WantedPsk::Identity(&identity));
        found.map(|entry| entry.serial).map_err(|error| error.to_string())
    };
    for (serial, form, digest) in
        [(1, "NVMe0R01", ""), (2, "NVMe0R02", ""), (3, "NVMe1R01", " a="), (7, "NVMe1R02", " e=")]
    {
        assert_eq!(named(form, digest), Ok(serial));
    }
    for (form, digest) in [("NVMe1R01", " e="), ("NVMe1R02", " a=")] {
        let error = named(form, digest).unwrap_err();
        assert!(error.contains("(5 with other identities") && error.contains(digest), "{error}");
    }
}

#[test]
fn a_key_of_type_user_is_read_by_description_and_by_serial_number() {
    let description = unique("text");
    let Some(added) = Added::new(&description, format!("{KEY}\n").as_bytes()) else { return };
    let (host, subsystem) = names();
    let wanted =
        ClientPsk::new(&TlsKey::parse(KEY).unwrap(), IdentityVersion::One, &host, &subsystem);
    let wanted = wanted.unwrap();
    for name in [format!("kernel:{description}"), format!("kernel:{:#x}", added.serial())] {
        let key = KernelKey::parse(&name).unwrap();
        assert_eq!(key.text().unwrap().trim(), KEY, "{name}");
        let of = |derivation| key.client_psk((&host, &subsystem), BEST, derivation).unwrap();
        let psk = of(Derivation::Standard);
        assert_eq!((psk.identity, psk.psk), (wanted.identity.clone(), wanted.psk.clone()));
        assert_ne!(of(Derivation::OldLibnvme).psk, wanted.psk);
    }
    assert_eq!(wanted.psk.hash(), Hash::Sha256);
    // A key that is named twice has to be the one that is meant.
    let key = KernelKey::Serial(added.serial());
    let by = |identity: &PskIdentity| {
        let identity = WantedPsk::Identity(identity);
        key.client_psk((&host, &subsystem), identity, Derivation::Standard)
    };
    assert_eq!(by(&wanted.identity).unwrap().identity, wanted.identity);
    let other = wanted.identity.to_string().replace("NVMe1R01", "NVMe1R02");
    let error = by(&PskIdentity::parse(&other).unwrap()).unwrap_err().to_string();
    assert!(error.contains(&other) && error.contains(wanted.identity.as_str()), "{error}");
}

#[test]
fn what_is_no_key_says_so_and_shows_nothing() {
    let description = unique("none");
    let Some(added) = Added::new(&description, b"open sesame") else { return };
    let (host, subsystem) = names();
    let key = KernelKey::Serial(added.serial());
    let error = key.client_psk((&host, &subsystem), BEST, Derivation::Standard);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("NVMeTLSkey-1") && !error.contains("sesame"), "{error}");
    for (name, contents) in [("bytes", vec![0xff; 40]), ("large", vec![b'x'; MAX_FILE_BYTES + 1])] {
        let Some(added) = Added::new(&unique(name), &contents) else { return };
        let error = KernelKey::Serial(added.serial()).text().unwrap_err();
        assert!(matches!(error, KernelKeyError::NoText(_)), "{error}");
    }
    let ring = KeyRing::from_special_id(KeyRingIdentifier::User, false).unwrap();
    let entries = listing().unwrap();
    let own = entries.iter().find(|entry| entry.description.starts_with("_uid.")).unwrap();
    let error = KernelKey::Serial(own.serial).text().unwrap_err();
    assert!(matches!(&error, KernelKeyError::Kind { kind, .. } if kind == "keyring"), "{error}");
    assert!(ring.search(&description).is_ok());
}

#[test]
fn keys_that_are_gone_say_why() {
    let description = unique("gone");
    let Some(added) = Added::new(&description, KEY.as_bytes()) else { return };
    let key = KernelKey::User(description.clone());
    assert!(key.text().is_ok());
    added.0.revoke().unwrap();
    let error = key.text().unwrap_err();
    assert!(matches!(error, KernelKeyError::Revoked(_) | KernelKeyError::Missing(_)), "{error}");
    assert!(matches!(failed(String::new(), SystemError::KeyExpired), KernelKeyError::Expired(_)));
    for (errno, words) in [
        (SystemError::Unknown(libc::ENOSYS), "CONFIG_KEYS"),
        (SystemError::PermissionDenied, "permits keyctl(2)"),
        (SystemError::AccessDenied, "keyctl link %:.nvme @s"),
        (SystemError::KeyExpired, "insert it again"),
        (SystemError::KeyRevoked, "was revoked"),
        (SystemError::KeyDoesNotExist, "keyctl show"),
    ] {
        let error = failed(what(7), errno).to_string();
        assert!(error.contains(words), "{error}");
    }
    let missing = KernelKey::User(unique("never")).text().unwrap_err();
    assert!(matches!(missing, KernelKeyError::Missing(_)), "{missing}");
    let missing = KernelKey::Serial(i32::MAX).text().unwrap_err();
    assert!(matches!(missing, KernelKeyError::Missing(_)), "{missing}");
    let error = KernelKey::ForNames.text().unwrap_err();
    assert!(matches!(error, KernelKeyError::OnlyForTls), "{error}");
}
