//! The configuration of the kernel's target: from a file and from a tree as in configfs into a daemon, and back.

use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};

use super::{Daemon, HOST};

const NQN: &str = "nqn.2014-08.org.example:moved";
const SECRET: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";

fn disk(daemon: &Daemon, name: &str) -> String {
    let path = daemon.file(name);
    std::fs::File::create(&path).unwrap().set_len(8 << 20).unwrap();
    path
}

fn put(root: &Path, values: &[(&str, &str)]) {
    for (name, value) in values {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{value}\n")).unwrap();
    }
}

/// A tree as the kernel shows it: one subsystem with a namespace, one host with a key, an address with a state of its own.
fn tree(daemon: &Daemon, port: &str) -> String {
    let root = daemon.file("nvmet");
    let folder = Path::new(&root);
    let file = disk(daemon, "disk.img");
    let subsystem = format!("subsystems/{NQN}");
    for (name, value) in [
        ("attr_allow_any_host", "0"),
        ("attr_serial", "MOVED-1"),
        ("attr_model", "Linux"),
        ("namespaces/1/device_path", file.as_str()),
        ("namespaces/1/device_uuid", "8a1b2c3d-0000-4000-8000-00000000000a"),
        ("namespaces/1/device_nguid", "00000000-0000-0000-0000-000000000000"),
        ("namespaces/1/ana_grpid", "2"),
        ("namespaces/1/buffered_io", "0"),
        ("namespaces/1/enable", "1"),
        ("passthru/enable", "0"),
    ] {
        put(folder, &[(&format!("{subsystem}/{name}"), value)]);
    }
    let host = format!("hosts/{HOST}/dhchap_key");
    put(
        folder,
        &[
            (&host, SECRET),
            ("ports/1/addr_trtype", "tcp"),
            ("ports/1/addr_adrfam", "ipv4"),
            ("ports/1/addr_traddr", "127.0.0.1"),
            ("ports/1/addr_trsvcid", port),
            ("ports/1/addr_treq", "not specified"),
            ("ports/1/param_inline_data_size", "16384"),
            ("ports/1/param_max_queue_size", "64"),
            ("ports/1/ana_groups/1/ana_state", "optimized"),
            ("ports/1/ana_groups/2/ana_state", "non-optimized"),
            ("ports/2/addr_trtype", "rdma"),
        ],
    );
    // Links as the kernel has them, and one that leads back to its own folder.
    for (from, to) in [
        (folder.join("hosts").join(HOST), folder.join(&subsystem).join("allowed_hosts").join(HOST)),
        (folder.join(&subsystem), folder.join("ports/1/subsystems").join(NQN)),
        (folder.join("ports"), folder.join("ports/1/referrals/loop")),
    ] {
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        symlink(from, to).unwrap();
    }
    root
}

/// A port that nothing listens at.
fn free_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

#[test]
fn a_tree_moves_into_a_daemon_and_back() {
    let daemon = Daemon::start();
    let port = free_port();
    let root = tree(&daemon, &port);
    let state = daemon.file("state");
    let import = ["nvmet", "import", &root, "--state-dir", &state];
    let planned = daemon.ok(&[&import[..], &["--dry-run"]].concat());
    assert!(planned.contains(&format!("would make namespace 1 of {NQN}\n")), "{planned}");
    assert!(planned.contains("not the same: /ports/2: transport rdma"), "{planned}");
    assert!(!Path::new(&state).join("keys").exists() && !planned.contains(&SECRET[10..]));
    assert_eq!(daemon.json(&["subsys", "ls"]), json!([]));

    daemon.ok(&import);
    let subsystem = &daemon.json(&["subsys", "ls"])[0];
    assert_eq!(subsystem["serial_number"], "MOVED-1");
    let namespace = &subsystem["namespaces"][0];
    assert_eq!(
        (&namespace["anagrpid"], &namespace["uuid"]),
        (&2.into(), &"8a1b2c3d-0000-4000-8000-00000000000a".into())
    );
    // The kernel has no NGUID for it, and a host that connects again expects the same identifiers.
    assert_eq!(namespace["nguid"], "0".repeat(32));
    assert_eq!(subsystem["hosts"][0]["dhchap_key"], "nvmet-nqn.2014-08.org.nvmexpress-host");
    // The host comes in by its secret, and not without.
    let secret = daemon.file("secret");
    std::fs::write(&secret, SECRET).unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let connect =
        ["id-ns", "-a", "127.0.0.1", "-s", &port, "-n", NQN, "-q", HOST, "--namespace-id", "1"];
    assert_eq!(daemon.json(&[&connect[..], &["-S", &secret]].concat())["nsze"], 2048);
    assert_eq!(daemon.output(&connect).status.code(), Some(3));

    // A second import is refused as a whole, and takes nothing away.
    let refused = daemon.refused(&import);
    assert!(
        refused.contains("nothing was imported") || refused.contains("could not be removed"),
        "{refused}"
    );
    assert_eq!(daemon.json(&["subsys", "ls"]).as_array().map(Vec::len), Some(1));

    let file = daemon.file("saved.json");
    let output = daemon.output(&["nvmet", "export", &file]);
    assert!(output.status.success(), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("the daemon shows no secret"),
        "{output:?}"
    );
    let text = std::fs::read_to_string(&file).unwrap();
    let saved: Value = serde_json::from_str(&text).unwrap();
    assert!(!text.contains(&SECRET[10..]));
    assert_eq!(saved["ports"][0]["ana_groups"][1]["ana"]["state"], "non-optimized");
    assert_eq!(saved["ports"][0]["addr"]["trsvcid"], port);
    assert_eq!(saved["subsystems"][0]["allowed_hosts"], json!([HOST]));
    let param = json!({ "inline_data_size": "16384", "max_queue_size": "64" });
    assert_eq!(saved["ports"][0]["param"], param);
    let there = daemon.output(&["nvmet", "export", &file]);
    assert_eq!(there.status.code(), Some(2), "{there:?}");
    daemon.ok(&["nvmet", "export", &file, "--force"]);

    // What was written comes back the same.
    daemon.ok(&["subsys", "rm", NQN]);
    daemon.ok(&["bdev", "rm", "disk.img"]);
    let planned = daemon.ok(&["nvmet", "import", &file, "--dry-run"]);
    assert!(!planned.contains("is not set") && !planned.contains("/ports/1"), "{planned}");
    daemon.ok(&["nvmet", "import", &file]);
    // Limits, which nvmet has for nothing, are named.
    daemon.ok(&["qos", "set", "bdev", "disk.img", "--iops", "5000"]);
    let output = daemon.output(&["nvmet", "export"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("limits of device disk.img"), "{said}");
    let again: Value = serde_json::from_str(&daemon.ok(&["nvmet", "export"])).unwrap();
    assert_eq!(again, saved);
}

#[test]
fn what_is_no_configuration_is_refused_with_its_place() {
    let daemon = Daemon::start();
    let file = daemon.file("wrong.json");
    let deep = "[".repeat(100_000);
    for (text, says) in [
        ("", "not the JSON that nvmetcli saves"),
        ("{\"hosts\":", "line 1"),
        (deep.as_str(), "not the JSON that nvmetcli saves"),
        ("[]", "the configuration has to be an object"),
        ("{\"subsystems\": {}}", "/subsystems has to be a list"),
    ] {
        std::fs::write(&file, text).unwrap();
        refused(&daemon, &file, says);
    }
    std::fs::File::create(&file).unwrap().set_len(17 << 20).unwrap();
    refused(&daemon, &file, "more than 16 MiB");
    refused(&daemon, &daemon.file("none"), "No such file");
    // A folder of configfs that the kernel does not have, whatever is loaded.
    for says in
        ["modprobe nvmet", "mount -t configfs none /sys/kernel/config", "/etc/nvmet/config.json"]
    {
        refused(&daemon, "/sys/kernel/config/nvmet-that-is-not-there", says);
    }
    refused(&daemon, "/dev/null", "neither a file nor a folder");
    refused(&daemon, &daemon.file(""), "has no folders `subsystems` and `ports`");
    let root = tree(&daemon, "4420");
    let long = Path::new(&root).join("ports/1/addr_traddr");
    std::fs::write(&long, "1".repeat(5000)).unwrap();
    refused(&daemon, &root, "longer than any attribute");
    std::fs::write(&long, [0xff, 0xfe]).unwrap();
    refused(&daemon, &root, "is no text");
    std::fs::remove_file(&long).unwrap();
    symlink("addr_traddr", &long).unwrap();
    refused(&daemon, &root, "addr_traddr has to be an IP address");
    assert_eq!(daemon.json(&["subsys", "ls"]), json!([]));
}

#[track_caller]
fn refused(daemon: &Daemon, from: &str, says: &str) {
    let output = daemon.output(&["nvmet", "import", from]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{from}: {error}");
    assert!(error.contains(says) && error.lines().count() == 1, "{from}: {error}");
}
