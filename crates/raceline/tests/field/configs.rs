//! Configurations that SPDK has saved or that guides print, given to `raceline serve -c` and `config restore`.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::support::{Output, Served, call, run, run_with_input};

/// The sections that keep the settings of parts that are not here.
const KEPT: [(&str, &str); 9] = [
    ("vmd", "vmd_enable"),
    ("keyring", "keyring_linux_set_options"),
    ("accel", "ioat_scan_accel_module"),
    ("accel", "dsa_scan_accel_module"),
    ("accel", "mlx5_scan_accel_module"),
    ("accel", "dpdk_cryptodev_set_driver"),
    ("bdev", "bdev_virtio_blk_set_hotplug"),
    ("fsdev", "fsdev_set_opts"),
    ("vfio_user_target", "vfu_tgt_set_base_path"),
];
/// Calls that are orders, and are not kept.
const ORDERS: [&str; 1] = ["bdev_wait_for_examine"];

fn input(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/field/inputs").join(name);
    path.to_str().unwrap().to_owned()
}

/// A folder with a socket in it.
struct Place {
    directory: tempfile::TempDir,
    socket: PathBuf,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("run/rpc.sock");
        Self { directory, socket }
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    fn serve(&self, arguments: &[&str]) -> Served {
        Served::start(&self.socket, arguments)
    }

    fn call(&self, method: &str, params: Value) -> Value {
        call(&self.socket, method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// A verb of the program for this daemon: `rpc` has its socket before the method, others after the
    /// verb.
    fn verb(&self, words: &[&str], stdin: &[u8]) -> Output {
        let socket = self.socket.to_str().unwrap();
        let mut all = words.to_vec();
        match words[0] {
            "rpc" => drop(all.splice(1..1, ["-s", socket])),
            _ => all.extend(["-s", socket]),
        }
        if stdin.is_empty() { run(&all) } else { run_with_input(&all, stdin) }
    }

    fn names(&self) -> Vec<String> {
        let bdevs = self.call("bdev_get_bdevs", Value::Null);
        let names = bdevs.as_array().unwrap().iter().map(|bdev| bdev["name"].as_str().unwrap());
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort();
        names
    }

    /// The configuration that the daemon's own client would save.
    fn saved(&self) -> Value {
        let output = self.verb(&["rpc", "save_config"], b"");
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        serde_json::from_str(&output.stdout).unwrap()
    }
}

/// The calls of a configuration: section, method and parameters.
fn calls(config: &Value) -> Vec<(String, String, Value)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut all = Vec::new();
    for section in config["subsystems"].as_array().unwrap() {
        for call in section["config"].as_array().into_iter().flatten() {
            all.push((text(&section["subsystem"]), text(&call["method"]), call["params"].clone()));
        }
    }
    all
}

fn read(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(input(name)).unwrap()).unwrap()
}

/// Checks that every call of the file is there; for absent parts, with exactly its parameters.
fn assert_round_trip(file: &Value, saved: &Value) {
    let saved = calls(saved);
    for (section, method, params) in calls(file) {
        if ORDERS.contains(&method.as_str()) {
            continue;
        }
        let found =
            saved.iter().find(|(in_section, name, _)| (in_section, name) == (&section, &method));
        let (_, _, found) = found.unwrap_or_else(|| panic!("{section}: {method} is lost"));
        if KEPT.iter().any(|(_, kept)| *kept == method) {
            // An empty object is given back as no parameters, which all of SPDK's methods accept.
            let params = if params == json!({}) { Value::Null } else { params };
            assert_eq!(*found, params, "{method}");
        }
    }
}

#[test]
fn what_spdk_tgt_has_saved_is_served_and_comes_back() {
    let place = Place::new();
    let (file, state) = (input("spdk-tgt-saved.json"), place.path("state"));
    let served = place.serve(&["-c", &file, "--state-dir", &state]);
    assert_eq!(place.names(), ["Store0"]);
    let saved = place.saved();
    assert_round_trip(&read("spdk-tgt-saved.json"), &saved);
    let scheduler = place.call("framework_get_scheduler", Value::Null);
    assert_eq!(scheduler["scheduler_name"], "dynamic", "{scheduler}");
    assert_eq!(scheduler["in_effect"], "dynamic", "{scheduler}");
    let log = served.end(Signal::TERM).stderr;
    let told: Vec<&str> = log.lines().filter(|line| line.contains("kept without effect")).collect();
    assert_eq!(told.len(), 1, "one line for a start: {log}");
    for (section, method) in KEPT {
        assert!(told[0].contains(section) && told[0].contains(method), "{method}: {}", told[0]);
    }
    // From the state directory, also after a kill.
    let served = place.serve(&["--state-dir", &state]);
    assert_eq!(place.saved(), saved);
    let log = served.end(Signal::KILL).stderr;
    assert_eq!(log.matches("kept without effect").count(), 1, "{log}");
    let served = place.serve(&["--state-dir", &state]);
    assert_eq!(place.saved(), saved);
    assert_eq!(served.end(Signal::TERM).code, Some(0));
    // The saved configuration can be loaded again.
    let again = place.path("again.json");
    std::fs::write(&again, saved.to_string()).unwrap();
    let served = place.serve(&["-c", &again]);
    assert_eq!(place.saved(), saved);
    assert_eq!(served.end(Signal::TERM).code, Some(0));
}

fn assert_kept(place: &Place) {
    let saved = calls(&place.saved());
    for (section, method) in KEPT {
        let is_it =
            |(inside, name, _): &(String, String, Value)| inside == section && name == method;
        assert!(saved.iter().any(is_it), "{method}: {saved:?}");
    }
}

#[test]
fn what_spdk_tgt_has_saved_is_loaded_by_a_client() {
    let place = Place::new();
    let served = place.serve(&["--wait-for-rpc"]);
    let output = place.verb(&["rpc", "load_config", "-j", &input("spdk-tgt-saved.json")], b"");
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert_eq!(output.stderr.matches("kept without effect").count(), 1, "{}", output.stderr);
    assert_round_trip(&read("spdk-tgt-saved.json"), &place.saved());
    assert_kept(&place);
    assert_eq!(place.names(), ["Store0"]);
    served.end(Signal::TERM);
}

/// Settings of present parts that are accepted only before the start: a running daemon refuses them.
const EARLY: [&str; 6] = [
    "iobuf_set_options",
    "sock_set_default_impl",
    "accel_set_options",
    "bdev_set_options",
    "nvmf_set_max_subsystems",
    "iscsi_set_options",
];

#[test]
fn what_spdk_tgt_has_saved_is_restored_in_a_daemon_that_runs() {
    let place = Place::new();
    let served = place.serve(&[]);
    let mut file = read("spdk-tgt-saved.json");
    for section in file["subsystems"].as_array_mut().unwrap() {
        if let Some(config) = section["config"].as_array_mut() {
            config.retain(|call| !EARLY.contains(&call["method"].as_str().unwrap()));
            // Port 0 would become another port in the second daemon.
            config.retain(|call| call["method"] != "nvmf_subsystem_add_listener");
        }
    }
    let late = place.path("late.json");
    std::fs::write(&late, file.to_string()).unwrap();
    for _ in 0..2 {
        let output = place.verb(&["config", "restore", &late], b"");
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        assert_eq!(output.stderr.matches("kept without effect").count(), 1, "{}", output.stderr);
        assert_kept(&place);
        assert_eq!(place.names(), ["Store0"]);
    }
    let output = place.verb(&["config", "diff", &late], b"");
    assert_eq!((output.code, &*output.stdout), (Some(0), ""), "{}", output.stderr);
    served.end(Signal::TERM);
}

/// All five refused calls, with section, place and the part that they belong to.
const REFUSED: [&str; 5] = [
    "bdev config[1] bdev_raid_create belongs to SPDK's RAID devices (bdev_raid)",
    "bdev config[2] construct_lvol_store (now bdev_lvol_create_lvstore) belongs to SPDK's logical volumes (bdev_lvol)",
    "fsdev config[0] fsdev_aio_create belongs to SPDK's file system devices (fsdev)",
    "vfio_user_target config[1] vfu_virtio_create_blk_endpoint belongs to SPDK's vfio-user target (vfu_tgt)",
    "vhost_scsi config[0] vhost_create_scsi_controller belongs to SPDK's SCSI controllers of the vhost target (vhost)",
];

#[test]
fn what_makes_something_that_is_not_here_is_refused_all_at_once() {
    let place = Place::new();
    let (file, state) = (input("creates-absent.json"), place.path("state"));
    let output = Served::fail(&place.socket, &["-c", &file, "--state-dir", &state]);
    assert_eq!(output.code, Some(1), "{}", output.stderr);
    for part in REFUSED.iter().chain(&["nothing was made"]) {
        assert!(output.stderr.contains(part), "{part}: {}", output.stderr);
    }
    assert!(!output.stderr.contains("vfio_user_target config[0]"), "a setting: {}", output.stderr);
    // For clients: no call is made, and none is kept.
    let served = place.serve(&["--state-dir", &state]);
    let before = place.saved();
    for words in [
        ["config", "restore", &file].as_slice(),
        ["config", "restore", &file, "--dry-run"].as_slice(),
        ["rpc", "load_config", "-j", &file].as_slice(),
    ] {
        let output = place.verb(words, b"");
        assert_eq!(output.code, Some(1), "{words:?}: {}", output.stdout);
        for part in REFUSED {
            assert!(output.stderr.contains(part), "{words:?}: {part}: {}", output.stderr);
        }
        assert_eq!(place.saved(), before, "{words:?} has made something");
    }
    served.end(Signal::TERM);
}

#[test]
fn a_file_that_fails_in_the_middle_leaves_nothing_in_the_state_directory() {
    let place = Place::new();
    let (file, state) = (input("fails-in-the-middle.json"), place.path("state"));
    let arguments = ["-c", &file, "--state-dir", &state];
    // Twice with the same result: the first start leaves nothing for the second.
    for _ in 0..2 {
        let output = Served::fail(&place.socket, &arguments);
        assert_eq!(output.code, Some(1), "{}", output.stderr);
        let expected = "nvmf config[1] nvmf_create_transport: Invalid transport type 'VFIOUSER'";
        assert!(output.stderr.contains(expected), "{}", output.stderr);
    }
    let served = place.serve(&["--state-dir", &state]);
    assert!(place.names().is_empty(), "{:?}", place.names());
    served.end(Signal::TERM);
}

#[test]
fn a_script_that_needs_what_is_not_here_is_refused_before_its_first_line() {
    let place = Place::new();
    let served = place.serve(&[]);
    let script = std::fs::read(input("absent.rpc")).unwrap();
    for words in [["rpc"].as_slice(), ["rpc", "-b"].as_slice()] {
        let output = place.verb(words, &script);
        assert_eq!(output.code, Some(1), "{}", output.stdout);
        for part in [
            "no line was run",
            "line 4: bdev_lvol_create_lvstore belongs to SPDK's logical volumes",
            "line 5: vfu_virtio_create_blk_endpoint belongs to SPDK's vfio-user target",
        ] {
            assert!(output.stderr.contains(part), "{part}: {}", output.stderr);
        }
        assert!(place.names().is_empty(), "{:?}", place.names());
    }
    let output = place.verb(&["rpc"], &std::fs::read(input("kept.rpc")).unwrap());
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let told =
        output.stderr.contains("kept without effect") && output.stderr.contains("vmd (vmd_enable)");
    assert!(told, "{}", output.stderr);
    assert_eq!(place.names(), ["Scripted"]);
    let log = served.end(Signal::TERM).stderr;
    assert!(
        log.contains("vmd_enable: the options of SPDK's user-space driver of Intel VMD are kept"),
        "{log}"
    );
}

#[test]
fn comments_are_taken_wherever_a_configuration_is_read() {
    let (whole, part) = (input("comments.json"), input("comments-part.json"));
    let place = Place::new();
    let served = place.serve(&["-c", &whole]);
    assert_eq!(place.names(), ["Noted//0"]);
    served.end(Signal::TERM);
    for (words, expected) in [
        (["config", "restore", &whole].as_slice(), "Noted//0"),
        (["rpc", "load_config", "-j", &whole].as_slice(), "Noted//0"),
        (["rpc", "load_subsystem_config", "-j", &part].as_slice(), "Part/*0*/"),
    ] {
        let served = place.serve(&[]);
        let output = place.verb(words, b"");
        assert_eq!(output.code, Some(0), "{words:?}: {}", output.stderr);
        assert_eq!(place.names(), [expected], "{words:?}");
        served.end(Signal::TERM);
    }
    // With a byte order mark at the beginning, and with the file on standard input.
    let served = place.serve(&[]);
    let mut marked = "\u{feff}".as_bytes().to_vec();
    marked.extend(std::fs::read(&whole).unwrap());
    let output = place.verb(&["rpc", "load_config"], &marked);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert_eq!(place.names(), ["Noted//0"]);
    served.end(Signal::TERM);
}

#[test]
fn what_is_wrong_in_a_file_is_placed() {
    let place = Place::new();
    for (name, expected) in [
        ("comment-without-end.json", "line 3 column 43 has no end"),
        ("member-twice.json", "duplicate field `name` at line 2"),
    ] {
        let file = input(name);
        let output = Served::fail(&place.socket, &["-c", &file]);
        assert_eq!(output.code, Some(1), "{}", output.stderr);
        assert!(output.stderr.contains(expected), "{name}: {}", output.stderr);
        let served = place.serve(&[]);
        for words in [
            ["config", "restore", &file].as_slice(),
            ["rpc", "load_config", "-j", &file].as_slice(),
        ] {
            let output = place.verb(words, b"");
            assert_eq!(output.code, Some(1), "{words:?}");
            assert!(output.stderr.contains(expected), "{words:?}: {}", output.stderr);
        }
        served.end(Signal::TERM);
    }
}

#[test]
fn calls_in_batches_and_under_old_names_are_made() {
    let place = Place::new();
    let served = place.serve(&["-c", &input("batches.json")]);
    assert_eq!(place.names(), ["Batch0", "Batch1", "Single"]);
    served.end(Signal::TERM);
    let served = place.serve(&["-c", &input("old-names.json")]);
    assert_eq!(place.names(), ["Old0"]);
    let saved = calls(&place.saved());
    let kept = saved.iter().find(|(_, method, _)| method == "iscsi_set_options").unwrap();
    assert_eq!(kept.2["min_connections_per_session"], 1, "what an older release has is given back");
    served.end(Signal::TERM);
    // Through the client, which lists the daemon's methods first.
    let served = place.serve(&["--wait-for-rpc"]);
    let output = place.verb(&["rpc", "load_config", "-j", &input("old-names.json")], b"");
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert_eq!(place.names(), ["Old0"]);
    served.end(Signal::TERM);
}

#[test]
fn a_method_that_is_not_here_says_what_it_belongs_to() {
    let place = Place::new();
    let served = place.serve(&[]);
    for (method, expected) in [
        ("bdev_lvol_create", "bdev_lvol_create belongs to SPDK's logical volumes (bdev_lvol)"),
        (
            "get_lvol_stores",
            "get_lvol_stores (now bdev_lvol_get_lvstores) belongs to SPDK's logical volumes",
        ),
        ("accel_crypto_keys_get", "encryption of data (accel_crypto)"),
        ("trace_get_info", "trace points (trace)"),
    ] {
        let error = call(&place.socket, method, json!({})).unwrap_err();
        assert_eq!(
            (&error["code"], &error["message"]),
            (&json!(-32601), &json!("Method not found"))
        );
        let data = error["data"].as_str().unwrap_or_default();
        assert!(
            data.contains(expected) && data.contains("Raceline does not have"),
            "{method}: {error}"
        );
    }
    // Methods that neither SPDK nor Raceline has.
    let error = call(&place.socket, "bdev_null_creat", json!({})).unwrap_err();
    assert_eq!(error["data"], "did you mean bdev_null_create?");
    let error = call(&place.socket, "format_all", json!({})).unwrap_err();
    assert_eq!(error["data"], Value::Null, "{error}");
    served.end(Signal::TERM);
}

#[test]
fn a_scheduler_with_its_own_options_is_kept_and_given_back() {
    let place = Place::new();
    let served = place.serve(&[]);
    let set = "framework_set_scheduler dynamic -p 500000 --load-limit 25 --core-limit 75 --core-busy 90\n\
               scheduler_set_options --scheduling-core 0 -i 0x2\n";
    let output = place.verb(&["rpc"], set.as_bytes());
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let scheduler = place.call("framework_get_scheduler", Value::Null);
    let expected = [
        ("scheduler_name", json!("dynamic")),
        ("scheduler_period", json!(500_000)),
        ("load_limit", json!(25)),
        ("core_limit", json!(75)),
        ("core_busy", json!(90)),
        ("isolated_core_mask", json!("0x2")),
        ("in_effect", json!("static")),
    ];
    for (name, value) in expected {
        assert_eq!(scheduler[name], value, "{name}: {scheduler}");
    }
    let log = served.end(Signal::TERM).stderr;
    assert!(
        log.contains("framework_set_scheduler: the options are kept, and have no effect"),
        "{log}"
    );
}

#[test]
fn a_discovery_service_without_a_port_is_looked_for_at_the_registered_one() {
    let place = Place::new();
    let served = place.serve(&[]);
    let start = "bdev_nvme_start_discovery -b Far -t tcp -a 127.0.0.9 -f ipv4\n";
    let output = place.verb(&["rpc"], start.as_bytes());
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let info = place.call("bdev_nvme_get_discovery_info", Value::Null);
    assert_eq!(info[0]["trid"]["trsvcid"], "8009", "{info}");
    let saved = calls(&place.saved());
    let kept = saved.iter().find(|(_, method, _)| method == "bdev_nvme_start_discovery").unwrap();
    assert_eq!(kept.2["trsvcid"], "8009", "{kept:?}");
    place.call("bdev_nvme_stop_discovery", json!({ "name": "Far" }));
    served.end(Signal::TERM);
}
