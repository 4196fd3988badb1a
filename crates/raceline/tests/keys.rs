//! Keys as operators make and use them: `raceline key`, a daemon that demands them, and their rotation under load.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{Output, Served, call, configure, run, run_by, run_with_input, start, wait_for};
use tempfile::TempDir;

const NQN: &str = "nqn.2016-06.io.spdk:cnode1";
const HOST: &str = "nqn.2014-08.org.example:friend";
const SECRET: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

/// A state directory, and a daemon over it.
struct Place {
    dir: TempDir,
    socket: PathBuf,
    state: PathBuf,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (socket, state) = (dir.path().join("run/rpc.sock"), dir.path().join("state"));
        Self { dir, socket, state }
    }

    fn serve(&self) -> Served {
        Served::start(&self.socket, &["--state-dir", self.state.to_str().unwrap()])
    }

    /// A daemon that exports a device to nobody.
    fn export(&self) -> Served {
        let served = self.serve();
        configure(&self.socket, NQN, 8192);
        let closed = json!({ "nqn": NQN, "allow_any_host": false });
        call(&self.socket, "nvmf_subsystem_allow_any_host", closed).unwrap();
        served
    }

    fn key(&self, words: &[&str]) -> Output {
        run(&[&["key", "--state-dir", self.state.to_str().unwrap()], words].concat())
    }

    /// A verb on the daemon that has to succeed; gives what it prints.
    fn manage(&self, words: &[&str]) -> String {
        let output = run(&[words, &["-s", self.socket.to_str().unwrap()]].concat());
        assert_eq!(output.code, Some(0), "{words:?}: {}", output.stderr);
        output.stdout
    }

    fn file(&self, name: &str) -> PathBuf {
        self.state.join("keys").join(name)
    }

    /// The same key, on the host.
    fn copied(&self, name: &str, to: &str) -> String {
        let path = self.dir.path().join(to);
        std::fs::copy(self.file(name), &path).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn port(&self) -> String {
        let params = json!({ "nqn": NQN });
        let listeners = call(&self.socket, "nvmf_subsystem_get_listeners", params).unwrap();
        listeners[0]["address"]["trsvcid"].as_str().unwrap().to_owned()
    }

    /// Whether a host has queues for its commands.
    fn has_queues(&self) -> bool {
        let all = call(&self.socket, "nvmf_subsystem_get_controllers", json!({ "nqn": NQN }));
        let all = all.unwrap();
        let mut controllers = all.as_array().unwrap().iter();
        controllers.any(|controller| controller["num_io_qpairs"].as_u64() > Some(0))
    }

    /// The exit code of `identify` with this key.
    fn identify(&self, key: Option<&str>) -> Option<i32> {
        let port = self.port();
        let mut words = vec!["identify", "-a", "127.0.0.1", "-s", &port, "-n", NQN, "-q", HOST];
        words.extend(key.iter().flat_map(|key| ["-S", *key]));
        run(&words).code
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o7777
}

fn listed(output: &Output) -> Value {
    serde_json::from_str(&output.stdout).unwrap()
}

#[test]
fn keys_are_made_kept_listed_and_removed_and_never_printed() {
    let place = Place::new();
    let made = place.key(&["gen", "web1", "-q", HOST, "-n", NQN, "-a", "192.0.2.1"]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let connect = format!(
        "nvme connect -t tcp -a 192.0.2.1 -s 4420 -n {NQN} -q {HOST} --dhchap-secret \"$(cat web1.key)\""
    );
    assert!(made.stdout.contains(&connect), "{}", made.stdout);
    let tls = place.key(&["gen", "web1-tls", "--kind", "tls", "--hash", "sha384"]);
    assert!(tls.stdout.contains("nvme check-tls-key --insert "), "{}", tls.stdout);
    assert_eq!((mode(&place.file("web1")), mode(&place.state.join("keys"))), (0o600, 0o700));
    let words = ["key", "--state-dir", place.state.to_str().unwrap(), "import", "foreign"];
    let imported = run_with_input(&words, SECRET.as_bytes());
    assert_eq!(imported.code, Some(0), "{}", imported.stderr);
    assert_eq!(std::fs::read_to_string(place.file("foreign")).unwrap().trim(), SECRET);
    let rotated = place.key(&["rotate", "web1-tls"]);
    assert_eq!(rotated.code, Some(0), "{}", rotated.stderr);
    let all = place.key(&["ls", "-o", "json"]);
    let brief: Vec<String> = listed(&all)
        .as_array()
        .unwrap()
        .iter()
        .map(|key| format!("{} {} {}", key["name"], key["kind"], key["hash"]).replace('"', ""))
        .collect();
    let expected = [
        "foreign dhchap sha256",
        "web1 dhchap sha256",
        "web1-tls tls sha384",
        "web1-tls.old tls sha384",
    ];
    assert_eq!(brief, expected);
    let mut printed = String::new();
    for output in [&made, &tls, &imported, &rotated, &all, &place.key(&["ls"])] {
        printed.push_str(&output.stdout);
        printed.push_str(&output.stderr);
    }
    for name in ["web1", "foreign", "web1-tls", "web1-tls.old"] {
        let text = std::fs::read_to_string(place.file(name)).unwrap();
        assert!(!printed.contains(&text[16..40]), "a secret was printed");
    }
    assert_eq!(place.key(&["rm", "web1", "foreign"]).code, Some(0));
    assert_eq!(listed(&place.key(&["ls", "-o", "json"])).as_array().unwrap().len(), 2);
    for (words, why) in [
        (&["gen", "web1-tls"][..], "already"),
        (&["gen", "../web"], "cannot be the name"),
        (&["gen", "x", "--kind", "tls", "--hash", "sha512"], "SHA-512"),
        (&["rotate", "none"], "there is no key none"),
        (&["rm", "none"], "there is no key none"),
        (&["import", "x", "/dev/null"], "a device"),
    ] {
        let refused = place.key(words);
        assert!(refused.code != Some(0) && refused.stderr.contains(why), "{}", refused.stderr);
    }
    let words = ["key", "--state-dir", place.state.to_str().unwrap(), "import", "x"];
    let refused = run_with_input(&words, &SECRET.as_bytes()[..40]);
    assert!(refused.code != Some(0) && !refused.stderr.contains("AAEC"), "{}", refused.stderr);
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(place.state.join("keys"), open).unwrap();
    let refused = place.key(&["ls"]);
    assert!(refused.stderr.contains("chmod 700"), "{}", refused.stderr);
}

#[test]
fn a_daemon_takes_hosts_by_a_key_of_its_state_directory_and_rotates_it_under_load() {
    let place = Place::new();
    assert_eq!(place.key(&["gen", "web1"]).code, Some(0));
    let served = place.export();
    place.manage(&["host", "add", NQN, HOST, "--dhchap-key", "web1"]);
    let old = place.copied("web1", "old.key");
    assert_eq!(place.identify(Some(&old)), Some(0));
    assert_eq!(place.identify(None), Some(3));
    let foreign = place.dir.path().join("foreign");
    std::fs::write(&foreign, SECRET).unwrap();
    std::fs::set_permissions(&foreign, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(place.identify(foreign.to_str()), Some(3));
    let port = place.port();
    let at = ["-a", "127.0.0.1", "-s", &port, "-n", NQN, "-q", HOST, "-S", &old];
    let work = ["--rw", "randwrite", "--bs", "4k", "--iodepth", "8", "--verify"];
    let time = ["--ramp_time", "0", "--runtime", "3600"];
    let load = start(&[&["perf"], &at[..], &work[..], &time[..]].concat());
    wait_for("the queues of the load", || place.has_queues());
    let rotated = place.key(&["rotate", "web1", "-q", HOST, "-n", NQN]);
    let words = ["host", "set", NQN, HOST, "--dhchap-key", "web1"];
    place.manage(&[&words[..], &["--previous-dhchap-key", "web1.old"]].concat());
    let new = place.copied("web1", "new.key");
    assert_eq!((place.identify(Some(&old)), place.identify(Some(&new))), (Some(0), Some(0)));
    let table = place.manage(&["host", "ls"]);
    assert!(table.contains("web1.old"), "{table}");
    // At once, for this test.
    place.manage(&[&words[..], &["--overlap", "0"]].concat());
    assert_eq!((place.identify(Some(&old)), place.identify(Some(&new))), (Some(3), Some(0)));
    // The load is still there: a signal ends it, and nothing has failed.
    let finished = load.interrupt();
    assert_eq!(finished.code, Some(130), "{}", finished.stderr);
    let advice =
        format!("raceline host set {NQN} {HOST} --dhchap-key web1 --previous-dhchap-key web1.old");
    assert!(rotated.stdout.contains(&advice), "{}", rotated.stdout);

    served.end(Signal::KILL);
    let served = place.serve();
    let new = place.copied("web1", "new.key");
    assert_eq!((place.identify(Some(&old)), place.identify(Some(&new))), (Some(3), Some(0)));
    assert_eq!(place.identify(None), Some(3));
    // A saved configuration has names and no secret, and makes the same of a daemon without keys.
    let saved = place.dir.path().join("saved.json");
    place.manage(&["config", "save", saved.to_str().unwrap()]);
    let text = std::fs::read_to_string(&saved).unwrap();
    assert!(text.contains(r#""dhchap_key": "web1""#) && !text.contains("DHHC-1"), "{text}");
    place.manage(&["host", "set", NQN, HOST, "--no-dhchap"]);
    assert_eq!(place.identify(None), Some(0));
    place.manage(&["config", "restore", saved.to_str().unwrap()]);
    assert_eq!((place.identify(None), place.identify(Some(&new))), (Some(3), Some(0)));
    let output = served.end(Signal::TERM);
    assert_eq!(output.code, Some(0));
    for key in [&old, &new] {
        let secret = std::fs::read_to_string(key).unwrap();
        assert!(!output.stderr.contains(&secret[10..40]), "a secret was logged");
    }
}

#[test]
fn names_of_keys_are_taken_where_files_are() {
    let place = Place::new();
    assert_eq!(place.key(&["gen", "web1"]).code, Some(0));
    let served = place.export();
    place.manage(&["host", "add", NQN, HOST, "--dhchap-key", "web1"]);
    let port = place.port();
    let words = ["identify", "-a", "127.0.0.1", "-s", &port, "-n", NQN, "-q", HOST, "-S", "web1"];
    let state = format!("RACELINE_STATE_DIR={}", place.state.display());
    let found = run_by(&["env", &state], &words);
    assert_eq!(found.code, Some(0), "{}", found.stderr);
    // systemd's credentials come first. They may belong to root, with rights for the service's group.
    let credentials = place.dir.path().join("credentials");
    std::fs::create_dir(&credentials).unwrap();
    std::fs::write(credentials.join("web1"), SECRET).unwrap();
    let shared = std::fs::Permissions::from_mode(0o440);
    std::fs::set_permissions(credentials.join("web1"), shared).unwrap();
    let credentials = format!("CREDENTIALS_DIRECTORY={}", credentials.display());
    let foreign = run_by(&["env", &state, &credentials], &words);
    assert_eq!(foreign.code, Some(3), "{}", foreign.stderr);
    // Neither a key nor a file.
    let nothing = run_by(&["env", "RACELINE_STATE_DIR=/nonexistent"], &words);
    assert_eq!(nothing.code, Some(2), "{}", nothing.stderr);
    assert!(nothing.stderr.contains("--dhchap-secret: cannot read web1"), "{}", nothing.stderr);
    served.end(Signal::TERM);
}
