//! Exports that demand a proof, and the verbs that give it.

mod support;

use std::os::unix::fs::PermissionsExt as _;

use support::{Export, Scratch, run};

const HOST: &str = "nqn.2014-08.org.example:friend";
const KEY: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:\n";
const OTHER: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:\n";

/// A file that only its owner can read.
fn private(scratch: &Scratch, name: &str, text: &str) -> String {
    let path = scratch.file(name, text.as_bytes());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
        .expect("it is our file");
    path
}

/// Exit code and what the verb says to people.
fn identify(export: &Export, options: &[&str]) -> (Option<i32>, String) {
    let arguments = [&["identify", "-q", HOST], options].concat();
    let output = run(&export.host(&arguments));
    (output.code, output.stderr)
}

#[test]
fn an_export_with_a_key_takes_only_hosts_that_know_it() {
    let scratch = Scratch::new();
    let key = private(&scratch, "key", KEY);
    let other = private(&scratch, "other", OTHER);
    let export = Export::start(&[
        "ram:1M",
        "--host",
        HOST,
        "--dhchap-key",
        &key,
        "--dhchap-ctrlr-key",
        &other,
    ]);
    assert_eq!(identify(&export, &["--dhchap-secret", &key]).0, Some(0));
    let mutual = ["--dhchap-secret", &key, "--dhchap-ctrl-secret", &other];
    assert_eq!(identify(&export, &mutual).0, Some(0));
    let (code, text) = identify(&export, &[]);
    assert!(code == Some(3) && text.contains("--dhchap-secret"), "{text}");
    let (code, text) = identify(&export, &["--dhchap-secret", &other]);
    assert!(code == Some(3) && text.contains("Compare the keys"), "{text}");
    let (code, text) = identify(&export, &["-S", &key, "-C", &key]);
    assert!(code == Some(3) && text.contains("did not prove"), "{text}");
    let people = export.terminate();
    assert!(people.contains("which has to prove itself"), "{people}");
    for secret in [KEY, OTHER] {
        assert!(!people.contains(&secret[10..40]), "a secret was printed");
    }
}

#[test]
fn secrets_that_others_can_read_are_refused() {
    let scratch = Scratch::new();
    let key = scratch.file("key", KEY.as_bytes());
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let output = run(&["export", "ram:1M", "--host", HOST, "--dhchap-key", &key]);
    assert_eq!(output.code, Some(2));
    assert!(output.stderr.contains("chmod 600"), "{}", output.stderr);
    let output = run(&["export", "ram:1M", "--dhchap-key", &key]);
    assert_eq!(output.code, Some(2), "a key without a host is for nobody: {}", output.stderr);
}
