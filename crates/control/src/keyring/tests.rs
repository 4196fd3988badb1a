//! Keys are added, found, removed and read, and no text shows a secret.

use std::os::unix::fs::PermissionsExt as _;

use tempfile::TempDir;

use super::*;

const SECRET: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const PSK: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

fn file(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// The key of that name, which is looked for if it is not known.
fn get(keyring: &mut Keyring, name: &str, places: &Places) -> Result<KeyRef, KeyringError> {
    if let Some(known) = keyring.known(name)? {
        return Ok(known);
    }
    let missing = || KeyringError::Missing(name.to_owned());
    keyring.take_found(name, places.find(bare_name(name)?).ok_or_else(missing)?)
}

fn errno<T: fmt::Debug>(result: Result<T, KeyringError>) -> i32 {
    result.unwrap_err().errno()
}

#[test]
fn a_key_has_one_name_and_a_private_file() {
    let folder = tempfile::tempdir().unwrap();
    let (path, nowhere) = (file(&folder, "a", SECRET), Places::default());
    let mut keyring = Keyring::default();
    assert_eq!(errno(keyring.add("a", Path::new("a"))), libc::EPERM);
    let none = file::check(&folder.path().join("none"), Protection::File);
    assert_eq!(none.unwrap_err().errno(), libc::ENOENT);
    for name in ["", ":", "a:b", "ring:a", "a\n", &"x".repeat(256)] {
        assert_eq!(errno(keyring.add(name, &path)), libc::EINVAL, "{name:?}");
    }
    keyring.add(":a", &path).unwrap();
    assert_eq!(errno(keyring.add("a", &path)), libc::EEXIST);
    assert_eq!(errno(get(&mut keyring, "b", &nowhere)), libc::ENOKEY);
    assert_eq!(errno(keyring.remove("b")), libc::ENOKEY);
    let key = get(&mut keyring, "a", &nowhere).unwrap();
    assert_eq!(*key.dhchap().unwrap().to_text(), SECRET);
    let error = key.tls().unwrap_err();
    assert!(error.to_string().contains("NVMeTLSkey-1") && !error.to_string().contains("AAEC"));
    // The text is read each time.
    std::fs::write(&path, PSK).unwrap();
    assert_eq!(*key.tls().unwrap().to_text(), PSK);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(errno(key.tls()), libc::EPERM);
}

#[test]
fn a_removed_key_is_shown_as_long_as_somebody_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let (path, nowhere) = (file(&folder, "a", SECRET), Places::default());
    let mut keyring = Keyring::default();
    keyring.add("a", &path).unwrap();
    let key = get(&mut keyring, "a", &nowhere).unwrap();
    let held = Held::read(key, Key::dhchap).unwrap();
    assert!(held.secret().is_some());
    let info = |path: Option<&PathBuf>, references| KeyInfo {
        name: "a".to_owned(),
        path: path.cloned(),
        found: false,
        references,
    };
    assert_eq!(keyring.list(), [info(Some(&path), 2)]);
    keyring.remove("a").unwrap();
    assert!(held.secret().is_none());
    assert_eq!(errno(held.key().dhchap()), libc::ENOKEY);
    assert_eq!(keyring.list(), [info(None, 1)]);
    // Another key of that name is another key.
    keyring.add("a", &path).unwrap();
    assert!(held.secret().is_none());
    assert_eq!(keyring.list(), [info(Some(&path), 1), info(None, 1)]);
    drop(held);
    assert_eq!(keyring.list(), [info(Some(&path), 1)]);
}

#[test]
fn a_key_is_found_by_its_name_while_it_is_used() {
    let state = tempfile::tempdir().unwrap();
    let places = Places::of(Some(state.path()));
    let mut keyring = Keyring::default();
    assert_eq!(errno(get(&mut keyring, "a", &places)), libc::ENOKEY);
    let path = KeyFolder::open(state.path()).unwrap().add("a", SECRET).unwrap();
    let key = get(&mut keyring, ":a", &places).unwrap();
    assert!(Arc::ptr_eq(&key, &get(&mut keyring, "a", &places).unwrap()));
    assert!(key.is_found() && key.path() == path && key.dhchap().is_ok());
    assert_eq!(keyring.list().len(), 1);
    assert_eq!(errno(keyring.remove("a")), libc::EINVAL);
    assert_eq!(errno(keyring.add("a", &path)), libc::EEXIST);
    drop(key);
    assert!(keyring.list().is_empty());
    assert_eq!(errno(keyring.remove("a")), libc::ENOKEY);
}

#[test]
fn nothing_shows_a_secret() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, "a", SECRET);
    let mut keyring = Keyring::default();
    keyring.add("a", &path).unwrap();
    let key = get(&mut keyring, "a", &Places::default()).unwrap();
    let held = Held::read(key, Key::dhchap).unwrap();
    let mut shown = format!("{keyring:?} {held:?} {:?}", keyring.list());
    for text in ["DHHC-1:01:AAECAwQF", &SECRET[..50], "DHHC-1:01:AAECAwQFBgcICQ=:"] {
        std::fs::write(&path, text).unwrap();
        shown.push_str(&held.key().dhchap().unwrap_err().to_string());
    }
    assert!(!shown.contains("AAEC"), "{shown}");
}
