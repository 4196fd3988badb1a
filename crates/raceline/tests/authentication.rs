//! Exports that demand a proof, and the verbs that give it.

mod support;

use std::os::unix::fs::PermissionsExt as _;

use rustix::fs::Mode;
use support::{Export, Scratch, own_ip, run};

const HOST: &str = "nqn.2014-08.org.example:friend";
const KEY: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:\n";
const OTHER: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:\n";

const WRONG: &str = "DHHC-1:00:opdXssgtulUGtA7urcpHIqTK3wJJ5Y7anIl1sUVNsng3PXjQ:\n";

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
fn a_new_secret_is_used_while_a_job_runs_and_operators_see_it() {
    let scratch = Scratch::new();
    let (old, new) = (private(&scratch, "old", KEY), private(&scratch, "new", OTHER));
    let now = private(&scratch, "now", KEY);
    let keys = ["--dhchap-key", &old, "--dhchap-key", &new];
    let export = Export::start(&[&["ram:16M", "--host", HOST][..], &keys].concat());
    let job = ["-q", HOST, "-S", &now, "--rw", "randwrite", "--bs", "4k", "--iodepth", "8"];
    let next = private(&scratch, "next", OTHER);
    let time = ["--runtime", "9", "--verify", "--reauthenticate", "500ms"];
    let words = export.host(&[&["perf"], &job[..], &time].concat());
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(4500));
            // At once: it is never read half.
            std::fs::rename(&next, &now).expect("they are our files");
        });
        run(&words)
    });
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let wrong = identify(&export, &["-S", &private(&scratch, "wrong", WRONG)]);
    assert_eq!(wrong.0, Some(3), "{}", wrong.1);
    let lines: Vec<serde_json::Value> = export
        .terminate()
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|line: &serde_json::Value| line["event"] == "authentication")
        .collect();
    let of_queue = |key: u64| {
        let is = |line: &&serde_json::Value| line["qid"] == 1 && line["key"] == key;
        lines.iter().filter(is).collect::<Vec<_>>()
    };
    // At the start and again, then with the other one; all of it on one connection.
    assert!(of_queue(1).len() >= 2 && of_queue(2).len() >= 2, "{lines:?}");
    for line in [of_queue(1), of_queue(2)].concat() {
        assert_eq!(line["result"], "authenticated", "{line}");
        assert_eq!(line["host"], HOST, "{line}");
        assert_eq!(line["peer"], of_queue(1)[0]["peer"], "{line}");
    }
    let refused = lines.iter().find(|line| line["result"] == "refused").expect("one was refused");
    assert!(refused["qid"] == 0 && refused["key"].is_null() && refused["why"] == "Failed");
}

/// As with `--dhchap-secret <(pass show key)`: what is read from a pipe is there once.
#[test]
fn a_secret_of_a_pipe_is_read_once_although_two_ports_are_asked() {
    let scratch = Scratch::new();
    let key = private(&scratch, "key", KEY);
    let listen = format!("{}:4420", own_ip());
    let export = Export::start(&["ram:1M", "--host", HOST, "--dhchap-key", &key, "-l", &listen]);
    let pipe = scratch.path("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
    let there = pipe.clone();
    // It waits for the reader.
    let writer = std::thread::spawn(move || std::fs::write(there, KEY));
    let address = listen.split(':').next().unwrap();
    let output = run(&["discover", "-a", address, "-q", HOST, "-S", &pipe, "-o", "json"]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert!(output.stdout.contains(&export.nqn), "{}", output.stdout);
    writer.join().unwrap().unwrap();
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
