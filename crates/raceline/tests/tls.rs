//! Exports over TLS, and the verbs that use them: right keys, wrong keys, and an end without TLS.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use support::{Export, Scratch, Served, call, run};

const HOST: &str = "nqn.2014-08.org.example:friend";
const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:\n";
const KEY_384: &str =
    "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:\n";
const OTHER: &str = "NVMeTLSkey-1:01:MDAxMTIyMzM0NDU1NjY3Nzg4OTlhYWJiY2NkZGVlZmZwJEiQ:\n";

/// A file that only its owner can read.
fn private(scratch: &Scratch, name: &str, text: &str) -> String {
    let path = scratch.file(name, text.as_bytes());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
        .expect("it is our file");
    path
}

/// Exit code and what the verb says to people. Nothing waits for a controller that refuses.
fn identify(export: &Export, options: &[&str]) -> (Option<i32>, String) {
    let arguments = [&["identify", "-q", HOST, "-l", "0"], options].concat();
    let output = run(&export.host(&arguments));
    (output.code, output.stderr)
}

#[test]
fn keys_of_both_lengths_and_identities_of_both_versions() {
    let scratch = Scratch::new();
    for text in [KEY, KEY_384] {
        let key = private(&scratch, "key", text);
        let export = Export::start(&["ram:64M", "--host", HOST, "--tls-psk", &key]);
        for version in ["0", "1"] {
            let (code, text) = identify(&export, &["--tls-psk", &key, "--tls-identity", version]);
            assert_eq!(code, Some(0), "{text}");
        }
        for (mode, size) in [("randrw", "4k"), ("randrw", "20k"), ("rw", "1M")] {
            let mut arguments = vec!["perf", "--verify", "-q", HOST, "--tls-psk", &key, "-i", "2"];
            arguments.extend(["--iodepth", "8", "--runtime", "1", "--ramp_time", "0"]);
            arguments.extend(["--rw", mode, "--bs", size, "-o", "json"]);
            let output = run(&export.host(&arguments));
            assert_eq!(output.code, Some(0), "{}", output.stderr);
            let document: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
            assert!(document["jobs"][0]["verified_ios"].as_u64().unwrap() > 0, "{mode} {size}");
        }
        let address = ["discover", "-q", HOST, "--tls-psk", &key];
        let output = run(&[&address[..], &["-a", &export.address, "-s", &export.port]].concat());
        assert!(output.code == Some(0) && output.stdout.contains(&export.nqn), "{}", output.stderr);
        let people = export.terminate();
        assert!(people.contains("over TLS") && people.contains(" --tls\n"), "{people}");
        assert!(!people.contains(&text[20..40]), "a key was printed");
    }
}

#[test]
fn nobody_without_the_key() {
    let scratch = Scratch::new();
    let key = private(&scratch, "key", KEY);
    let other = private(&scratch, "other", OTHER);
    let export = Export::start(&["ram:1M", "--host", HOST, "--tls-psk", &key]);
    let (code, text) = identify(&export, &["--tls-psk", &other]);
    assert!(code == Some(3) && text.contains("unknown_psk_identity (115)"), "{text}");
    // In version 0 the identity is the same, and the key is not.
    let (code, text) = identify(&export, &["--tls-psk", &other, "--tls-identity", "0"]);
    assert!(code == Some(3) && text.contains("TLS"), "{text}");
    let stranger = ["-q", "nqn.2014-08.org.example:stranger", "--tls-psk", &key];
    let output = run(&export.host(&[&["identify", "-l", "0"], &stranger[..]].concat()));
    assert!(output.code == Some(3) && output.stderr.contains("(115)"), "{}", output.stderr);
    let (code, text) = identify(&export, &[]);
    assert!(code == Some(3) && text.contains("over TLS only (--tls-psk, in RPC psk)"), "{text}");
    let people = export.terminate();
    for words in ["no key is known for what the host offered", "without TLS"] {
        assert!(people.contains(words), "{people}");
    }
}

/// Whatever the kernel has, `auto` finds a way; `on` has the kernel make the records, or says what is missing.
#[test]
fn the_kernel_makes_the_records_if_it_can() {
    let scratch = Scratch::new();
    let key = private(&scratch, "key", KEY);
    let export = Export::start(&["ram:1M", "--host", HOST, "--tls-psk", &key, "--ktls", "auto"]);
    for ktls in ["off", "auto"] {
        let (code, text) = identify(&export, &["--tls-psk", &key, "--ktls", ktls]);
        assert_eq!(code, Some(0), "{ktls}: {text}");
    }
    let (code, text) = identify(&export, &["--tls-psk", &key, "--ktls", "on"]);
    assert!(
        code == Some(0) || code == Some(1) && text.contains("modprobe tls"),
        "{code:?}: {text}"
    );
    let output = run(&["export", "ram:1M", "--ktls", "on"]);
    assert!(output.code == Some(2) && output.stderr.contains("--tls-psk"), "{}", output.stderr);
}

#[test]
fn a_host_with_tls_says_that_the_target_has_none() {
    let scratch = Scratch::new();
    let key = private(&scratch, "key", KEY);
    let export = Export::start(&["ram:1M", "--host", HOST]);
    let (code, text) = identify(&export, &["--tls-psk", &key]);
    assert!(code == Some(3) && text.contains("without TLS"), "{text}");
    let people = export.terminate();
    assert!(people.contains("these bytes are TLS"), "{people}");
}

/// What a stranger gets is an alert in the clear and the end, whatever it sends first.
#[test]
fn plain_bytes_get_an_alert_and_the_end() {
    let scratch = Scratch::new();
    let key = private(&scratch, "key", KEY);
    let export = Export::start(&["ram:1M", "--host", HOST, "--tls-psk", &key]);
    for first in [&[0, 0, 128, 0, 128, 0, 0, 0][..], b"GET / HTTP/1.0\r\n", &[23, 3, 3, 0, 20]] {
        let address = format!("{}:{}", export.address, export.port);
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(first).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer, [21, 3, 3, 0, 2, 2, 10], "{first:?}");
    }
}

#[test]
fn rules_of_the_command_line() {
    let scratch = Scratch::new();
    let key = private(&scratch, "key", KEY);
    let output = run(&["export", "ram:1M", "--tls-psk", &key]);
    assert_eq!(output.code, Some(2), "a key without a host is for nobody: {}", output.stderr);
    let output = run(&["export", "ram:1M", "--host", HOST, "--insecure", "--tls-psk", &key]);
    assert_eq!(output.code, Some(2), "{}", output.stderr);
    let output = run(&["export", "ram:1M", "--host", HOST, "--tls-psk", KEY]);
    assert!(output.code == Some(2) && output.stderr.contains("mode 0600"), "{}", output.stderr);
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let output = run(&["export", "ram:1M", "--host", HOST, "--tls-psk", &key]);
    assert!(output.code == Some(2) && output.stderr.contains("chmod 600"), "{}", output.stderr);
}

#[test]
fn a_key_is_made_on_first_use_and_any_host_that_has_it_may_connect() {
    let scratch = Scratch::new();
    let state = format!("RACELINE_STATE_DIR={}", scratch.path("state"));
    let by = ["env", &state];
    let options = ["ram:1M", "--tls", "-n", "nqn.2026-01.io.raceline:disk"];
    let export = Export::start_by(&by, &options);
    let file = scratch.path("state/keys/export-nqn.2026-01.io.raceline-disk");
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    for host in [HOST, "nqn.2014-08.org.example:anybody"] {
        let verb = ["identify", "-l", "0", "-q", host, "--tls-psk", &file];
        let output = run(&export.host(&verb));
        assert_eq!(output.code, Some(0), "{}", output.stderr);
    }
    let other = private(&scratch, "other", OTHER);
    let (code, told) = identify(&export, &["--tls-psk", &other]);
    assert!(code == Some(3) && told.contains("(115)"), "{told}");
    let (code, told) = identify(&export, &[]);
    assert!(code == Some(3) && told.contains("--tls-psk"), "{told}");
    let people = export.terminate();
    for words in [
        "admits any host that has the key, over TLS",
        "  raceline identify -a 127.0.0.1 -s ",
        "--tls-psk ./export-nqn.2026-01.io.raceline-disk.key\n",
        "  nvme check-tls-key --insert --identity 1 ",
        "nvme connect -t tcp -a 127.0.0.1 ",
        &file,
    ] {
        assert!(people.contains(words), "{words}: {people}");
    }
    assert!(!people.contains(&text[20..40]), "a key was printed");
    // The next export takes the same key; only these hosts may connect by it.
    let export = Export::start_by(&by, &[&options[..], &["--host", HOST]].concat());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    assert_eq!(identify(&export, &["--tls-psk", &file]).0, Some(0));
    let verb = ["identify", "-l", "0", "-q", "nqn.2014-08.org.example:anybody"];
    let output = run(&export.host(&[&verb[..], &["--tls-psk", &file]].concat()));
    assert_eq!(output.code, Some(3), "{}", output.stderr);
    drop(export);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    let output = support::run_by(&by, &[&["export"], &options[..]].concat());
    assert!(output.code == Some(1) && output.stderr.contains("chmod 600"), "{}", output.stderr);
}

#[test]
fn an_authentication_makes_the_key_on_request() {
    let scratch = Scratch::new();
    let secret = |name: &str| {
        let secret = raceline_auth::DhchapSecret::generate(None).unwrap();
        private(&scratch, name, &secret.to_text())
    };
    let [host, controller] = ["host", "controller"].map(secret);
    let keys = ["--host", HOST, "--dhchap-key", &host, "--dhchap-ctrlr-key", &controller];
    let export = Export::start(&[&["ram:1M", "--concat"], &keys[..]].concat());
    let secrets = ["-S", &host, "-C", &controller];
    let (code, text) = identify(&export, &[&secrets[..], &["--concat"]].concat());
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = identify(&export, &secrets);
    assert!(code == Some(3) && text.contains("--concat"), "{text}");
    let (code, text) = identify(&export, &["-S", &host, "--concat"]);
    assert!(code == Some(2) && text.contains("--dhchap-ctrl-secret"), "{text}");
    let people = export.terminate();
    assert!(people.contains("which has to prove itself, over TLS"), "{people}");
    assert!(people.contains(" --concat\n"), "{people}");
    // A target that makes no key gets no connection in the clear instead.
    let export = Export::start(&[&["ram:1M"], &keys[..]].concat());
    let (code, text) = identify(&export, &[&secrets[..], &["--concat"]].concat());
    assert!(code == Some(3) && text.contains("--concat"), "{text}");
    drop(export);
}

/// Bytes of connections by direction: what the hosts have sent, and what they have got.
type Seen = Arc<Mutex<Vec<[Vec<u8>; 2]>>>;

/// Hands connections on to an export, and keeps what passes by. Gives its port.
fn wiretap(export: &Export, seen: &Seen) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (target, seen) = (format!("{}:{}", export.address, export.port), Arc::clone(seen));
    std::thread::spawn(move || {
        for host in listener.incoming().map_while(Result::ok) {
            let Ok(target) = TcpStream::connect(&target) else { return };
            let number = {
                let mut seen = seen.lock().unwrap();
                seen.push([Vec::new(), Vec::new()]);
                seen.len() - 1
            };
            let ends = [host.try_clone().unwrap(), target.try_clone().unwrap()];
            let [from_host, from_target] = ends;
            for (direction, mut from, mut to) in [(0, from_host, target), (1, from_target, host)] {
                let seen = Arc::clone(&seen);
                std::thread::spawn(move || {
                    let mut piece = [0; 4096];
                    while let Ok(count @ 1..) = from.read(&mut piece) {
                        seen.lock().unwrap()[number][direction].extend(&piece[..count]);
                        if to.write_all(&piece[..count]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    port
}

/// Everything after the first record of each connection is a record of TLS, and shows neither names nor data.
#[test]
fn who_taps_the_wire_sees_names_in_the_first_message_only() {
    const WORD: &[u8] = b"-- a secret of the company --";
    let contains = |bytes: &[u8], word: &[u8]| bytes.windows(word.len()).any(|part| part == word);
    let scratch = Scratch::new();
    let key = private(&scratch, "key", KEY);
    let data = WORD.repeat(600)[..16384].to_vec();
    let (input, output) = (scratch.file("in", &data), scratch.path("out"));
    for tls in [false, true] {
        let key = if tls { vec!["--tls-psk", &key] } else { Vec::new() };
        let words = [&["ram:1M", "--host", HOST], &key[..]].concat();
        let export = Export::start(&words);
        let seen = Seen::default();
        let port = wiretap(&export, &seen).to_string();
        for verb in [&["write", &input][..], &["read", "--blocks", "32", &output]] {
            let place = ["-a", "127.0.0.1", "-s", &port, "-n", &export.nqn, "-q", HOST];
            let ended = run(&[verb, &place, &key].concat());
            assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        }
        assert!(std::fs::read(&output).unwrap() == data);
        let seen = seen.lock().unwrap();
        assert!(seen.len() >= 4, "an admin queue and an I/O queue of each verb");
        let mut first_messages = 0;
        let mut shown = [0; 3];
        for [sent, got] in &*seen {
            let first = if tls {
                let length = usize::from(u16::from_be_bytes([sent[3], sent[4]]));
                assert_eq!(sent[0], 22);
                first_messages += usize::from(contains(&sent[..5 + length], HOST.as_bytes()));
                5 + length
            } else {
                0
            };
            for bytes in [&sent[first..], got] {
                for (count, word) in
                    shown.iter_mut().zip([HOST.as_bytes(), export.nqn.as_bytes(), WORD])
                {
                    *count += usize::from(contains(bytes, word));
                }
            }
        }
        if tls {
            assert_eq!((shown, first_messages), ([0; 3], seen.len()));
        } else {
            // The check can fail.
            assert!(shown.iter().all(|count| *count > 0), "{shown:?}");
        }
    }
}

/// A host can have keys of both hashes for one subsystem, so the version alone names none of them.
#[test]
fn the_key_that_is_offered_is_the_one_whose_identity_is_named() {
    let scratch = Scratch::new();
    let (key, key_384) = (private(&scratch, "key", KEY), private(&scratch, "384", KEY_384));
    let export = Export::start(&["ram:1M", "--host", HOST, "--tls-psk", &key]);
    let by = |key: &str, identity: &str| {
        identify(&export, &["--tls-psk", key, "--tls-key-identity", identity])
    };
    // What the key would be offered by is said, and is taken.
    let other = format!("NVMe1R02 {HOST} {} AAAA", export.nqn);
    let (code, text) = by(&key, &other);
    assert!(code == Some(2) && text.contains(&format!("and not as `{other}`")), "{text}");
    let own = text.split('`').nth(1).expect("the identity of the key").to_owned();
    assert!(own.starts_with(&format!("NVMe1R01 {HOST} {} ", export.nqn)), "{own}");
    let (code, text) = by(&key, &own);
    assert_eq!(code, Some(0), "{text}");
    // A key of the other hash is not offered in its place.
    let (code, text) = by(&key_384, &own);
    assert!(code == Some(2) && text.contains("is offered as `NVMe1R02 "), "{text}");
    // Without a key in a file it is the kernel's.
    let (code, text) = identify(&export, &["--tls-key-identity", &own]);
    let is_known = text.contains("no key of type psk with the identity `NVMe1R01 ");
    // Where there are no keyrings at all, that is said first.
    assert!(code == Some(2) && (is_known || text.contains("keyrings cannot be used")), "{text}");
}

/// A key of this test in the user's keyring; dropping takes it away.
struct KernelKey(linux_keyutils::Key);

impl KernelKey {
    /// `None`: this kernel has no keyrings, or the filter that the test runs under forbids them.
    fn add(description: &str, text: &str) -> Option<Self> {
        use linux_keyutils::{KeyRing, KeyRingIdentifier};
        let ring = KeyRing::from_special_id(KeyRingIdentifier::User, true);
        let ring = ring.inspect_err(|error| eprintln!("SKIPPED: no keyrings ({error})")).ok()?;
        Some(Self(ring.add_key(description, text).unwrap()))
    }
}

impl Drop for KernelKey {
    fn drop(&mut self) {
        self.0.invalidate().expect("it is there until now");
    }
}

/// By verbs, and by a daemon in its sandbox.
#[test]
fn hosts_take_keys_from_the_keyring_of_the_kernel() {
    let description = format!("raceline-test-tls-{}", std::process::id());
    let name = format!("kernel:{description}");
    let Some(kept) = KernelKey::add(&description, KEY) else { return };
    let scratch = Scratch::new();
    let key = private(&scratch, "key", KEY);
    let export = Export::start(&["ram:1M", "--host", HOST, "--tls-psk", &key]);
    let serial = format!("kernel:{}", kept.0.get_id().as_raw_id());
    for name in [&name, &serial] {
        let (code, text) = identify(&export, &["--tls-psk", name]);
        assert_eq!(code, Some(0), "{text}");
    }
    // As nvme-cli names it.
    let number = kept.0.get_id().as_raw_id().to_string();
    for option in ["--tls-key", "--tls_key"] {
        let (code, text) = identify(&export, &["--tls", option, &number, "--keyring", "%:.nvme"]);
        assert_eq!(code, Some(0), "{text}");
    }
    let (code, text) = identify(&export, &["--tls-psk", "kernel:"]);
    assert!(code == Some(2) && text.contains("no key of type psk for host"), "{text}");
    let (code, text) = identify(&export, &["--tls-psk", "kernel:no-such-key"]);
    assert!(code == Some(2) && text.contains("no key `no-such-key`"), "{text}");

    let socket = PathBuf::from(scratch.path("rpc.sock"));
    let daemon = Served::start(&socket, &[]);
    let attach = |psk: &str| {
        let address = json!({
            "name": "Nvme0", "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1",
            "trsvcid": export.port, "subnqn": export.nqn, "hostnqn": HOST, "psk": psk,
        });
        call(&socket, "bdev_nvme_attach_controller", address)
    };
    let error = attach("kernel:no-such-key").unwrap_err().to_string();
    assert!(error.contains("no key `no-such-key`"), "{error}");
    assert_eq!(attach(&name).unwrap(), json!(["Nvme0n1"]));
    assert_eq!(daemon.end(Signal::TERM).code, Some(0));
}
