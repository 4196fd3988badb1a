//! The verbs of nvme-cli against the target of a daemon, and the files in which nvme-cli keeps connections.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use super::{Daemon, NQN};

/// A daemon whose subsystem has a pool of 64 MiB, a namespace of 8 MiB and an address; the options of a connection to it.
fn target() -> (Daemon, Vec<String>) {
    let daemon = Daemon::start();
    daemon.ok(&["bdev", "add", "ram:8M", "-n", "m0"]);
    daemon.ok(&["bdev", "add", "ram:64M", "-n", "pool"]);
    daemon.ok(&["subsys", "add", NQN, "--serial", "RL1", "--allow-any-host"]);
    daemon.ok(&["ns", "add", NQN, "m0", "--nsid", "7"]);
    daemon.ok(&["pool", "add", NQN, "pool"]);
    daemon.ok(&["port", "add", NQN, "127.0.0.1:0"]);
    let port = daemon.json(&["port", "ls"])[0]["trsvcid"].as_str().unwrap().to_owned();
    // Some verbs refuse -s: it has two meanings there.
    let options = ["-t", "tcp", "-a", "127.0.0.1", "--trsvcid", &port, "-n", NQN];
    (daemon, options.map(str::to_owned).to_vec())
}

/// The namespaces that `list` shows of a daemon. It also shows disks of this user, which other tests have.
fn of_daemon(daemon: &Daemon) -> Vec<Value> {
    let listed = daemon.json(&["list"]);
    // A disk is at a file or an address.
    let is_of_daemon = |it: &&Value| !it["DevicePath"].as_str().unwrap().contains(['/', ':']);
    listed["Devices"].as_array().unwrap().iter().filter(is_of_daemon).cloned().collect()
}

fn with<'a>(verb: &[&'a str], options: &'a [String]) -> Vec<&'a str> {
    verb.iter().copied().chain(options.iter().map(String::as_str)).collect()
}

#[test]
fn controllers_and_namespaces_are_shown_as_nvme_cli_shows_them() {
    let (daemon, options) = target();
    let shown = daemon.json(&with(&["id-ctrl"], &options));
    assert_eq!(shown["subnqn"], NQN);
    assert_eq!(shown["sn"].as_str().unwrap().trim_end(), "RL1");
    assert_eq!(daemon.output(&with(&["id-ctrl", "-b"], &options)).stdout.len(), 4096);
    let namespace = daemon.json(&with(&["id-ns"], &options));
    assert_eq!(
        (namespace["nsze"].as_u64(), &namespace["lbafs"][0]["ds"]),
        (Some(16384), &9.into())
    );
    assert!(
        daemon
            .ok(&with(&["id-ns", "--namespace-id", "7"], &options))
            .starts_with("NVME Identify Namespace 7:\nnsze    : 0x4000\n")
    );
    assert_eq!(daemon.json(&with(&["smart-log"], &options))["avail_spare"], 100);
    for (verb, says) in [
        (&["id-ctrl", "-H"][..], "\n  [0:0] : 0x1\tCompare: supported\n"),
        (
            &["id-ns", "-H", "-N", "7"],
            " - Data Size: 512 bytes - Relative Performance: 0 Best (in use)\n",
        ),
        (&["smart-log", "-H"], "\n  [3:3] : 0\tMedia can be written\n"),
        (&["error-log", "-H", "-e", "1"], "\tStatus Code: "),
    ] {
        let shown = daemon.ok(&with(verb, &options));
        assert!(shown.contains(says), "{verb:?}: {shown}");
    }
    daemon.refused(&with(&["get-log", "-i", "0xc0", "--log-len", "64"], &options));
    let errors = daemon.json(&with(&["error-log", "-e", "2"], &options));
    assert!(errors["errors"].as_array().is_some_and(|list| !list.is_empty()), "{errors}");
    let bytes =
        daemon.output(&with(&["get-log", "-i", "2", "--log-len", "512", "-o", "binary"], &options));
    assert_eq!(bytes.stdout.len(), 512);
    assert!(
        daemon
            .ok(&with(&["get-log", "-i", "2", "--log-len", "16"], &options))
            .contains("\n0000: 00 ")
    );
    let flat = daemon.json(&with(&["list"], &options));
    let namespace = &flat["Devices"][0];
    assert_eq!((&namespace["NameSpace"], &namespace["SerialNumber"]), (&7.into(), &"RL1".into()));
    assert_eq!(namespace["PhysicalSize"], 8 << 20);
    let listed = daemon.json(&with(&["list", "-v"], &options));
    let subsystem = &listed["Devices"][0]["Subsystems"][0];
    assert_eq!(subsystem["SubsystemNQN"], NQN);
    assert_eq!(subsystem["Namespaces"][0]["PhysicalSize"], 8 << 20);
    let text = daemon.ok(&with(&["list-subsys"], &options[..6]));
    assert!(text.contains(&format!("NQN={NQN}\n")) && text.contains(" live\n"), "{text}");
    assert_eq!(daemon.ok(&with(&["ns-rescan"], &options)), "[   0]:0x7\n");
    assert!(daemon.ok(&with(&["reset"], &options)).ends_with(" was reset\n"));
    // Zeroes are all that a controller says of a namespace that does not exist.
    wrong(&daemon, &with(&["id-ns", "-N", "3"], &options), "no namespace 3; the controller has 7");
}

#[test]
fn a_subsystem_without_a_pool_says_what_it_needs() {
    let daemon = Daemon::start();
    daemon.ok(&["bdev", "add", "ram:8M", "-n", "m0"]);
    daemon.ok(&["subsys", "add", NQN, "--allow-any-host"]);
    daemon.ok(&["subsys", "add", "nqn.2014-08.org.example:other"]);
    let listed = daemon.json(&["subsys", "ls"]);
    let serials: Vec<&str> =
        [0, 1].map(|at| listed[at]["serial_number"].as_str().unwrap()).to_vec();
    assert!(serials[0].starts_with("RL") && serials[0] != serials[1], "{serials:?}");
    daemon.ok(&["ns", "add", NQN, "m0"]);
    daemon.ok(&["port", "add", NQN, "127.0.0.1:0"]);
    let port = daemon.json(&["port", "ls"])[0]["trsvcid"].as_str().unwrap().to_owned();
    let options = ["-a", "127.0.0.1", "--trsvcid", &port, "-n", NQN].map(str::to_owned);
    for verb in [
        &["create-ns", "--nsze", "8"][..],
        &["delete-ns", "-N", "1"],
        &["attach-ns", "-N", "1"],
        // The size of blocks is looked up first, and that fails as well.
        &["create-ns", "--nsze", "8", "--block-size", "512"],
        &["format", "-N", "1", "--force"],
    ] {
        let error = daemon.refused(&with(verb, &options));
        assert!(error.contains("raceline pool add NQN DEVICE"), "{verb:?}: {error}");
    }
    wrong(&daemon, &with(&["id-ns", "-N", "3"], &options), "no namespace 3; the controller has 1");
}

#[test]
fn blocks_are_zeroed_compared_freed_and_flushed() {
    let (daemon, options) = target();
    let file = daemon.file("data");
    std::fs::write(&file, vec![7; 8192]).unwrap();
    daemon.ok(&with(&["write", "--namespace", "7", "--slba", "8", &file], &options));
    let same = ["compare", "--start-block", "8", "--block-count", "15", "--data", &file];
    assert_eq!(daemon.ok(&with(&same, &options)), "compare: Success\n");
    let timed = daemon.json(&with(&[&same[..], &["--latency"]].concat(), &options));
    assert!(timed["latency_us"].as_u64().is_some_and(|us| us > 0), "{timed}");
    assert_eq!(daemon.ok(&with(&["flush"], &options)), "NVMe Flush: success\n");
    daemon.ok(&with(
        &["write-zeroes", "--start-block", "8", "--block-count", "7", "--deac"],
        &options,
    ));
    let output = daemon.output(&with(&same, &options));
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("Compare Failure"), "{output:?}");
    daemon.ok(&with(&["dsm", "--slbs", "16,0", "--blocks", "8,8", "--ad"], &options));
    std::fs::write(&file, vec![0; 8192]).unwrap();
    daemon.ok(&with(&same, &options));
    for (verb, words) in [
        (&["dsm", "--slbs", "0", "--blocks", "8"][..], "add --ad"),
        (&["dsm", "--slbs", "0,1", "--blocks", "8", "--ad"], "the same number of ranges"),
        (&["write-zeroes", "--start-block", "16384", "--block-count", "0"], "has 16384"),
        (
            &["write-zeroes", "--start-block", "0", "--block-count", "0xffffffffffffffff"],
            "too large",
        ),
        (&["write-zeroes", "-s", "8"], "write --trsvcid 8 or --start-block 8"),
        (&["compare", "--data-size", "100", "--data", &file], "whole number of blocks"),
        (
            &["compare", "--data-size", "512", "--block-count", "1", "--data", &file],
            "number of blocks less one",
        ),
        (&["compare", "--data", "/nowhere"], "No such file"),
        (&["flush", "-o", "binary"], "no binary output"),
        (&["format"], "add --force"),
        (&["get-log", "-i", "2", "--log-len", "6"], "multiple of 4"),
        (&["get-log", "-i", "2", "--log-len", "8", "-o", "json"], "smart-log"),
        (&["flush", "--namespace-id", "9"], "the controller has 7"),
    ] {
        wrong(&daemon, &with(verb, &options), words);
    }
}

/// Runs a verb that is used wrongly; its only line says what to do.
#[track_caller]
fn wrong(daemon: &Daemon, words: &[&str], says: &str) {
    let output = daemon.output(words);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{words:?}: {error}");
    assert!(error.contains(says) && error.lines().count() == 1, "{words:?}: {error}");
}

#[test]
fn namespaces_are_made_attached_formatted_and_deleted() {
    let (daemon, options) = target();
    let made =
        daemon.ok(&with(&["create-ns", "--nsze-si", "8Mi", "--block-size", "512"], &options));
    assert_eq!(made, "create-ns: Success, created nsid:1\n");
    let more = daemon
        .json(&with(&["create-ns", "--nsze", "2048", "--ncap", "2048", "--flbas", "0"], &options));
    assert_eq!(more["nsid"], 2);
    assert!(
        daemon
            .refused(&with(&["create-ns", "--nsze", "0x1000000"], &options))
            .contains("Insufficient Capacity")
    );
    let missing = daemon.refused(&with(&["id-ns", "--namespace-id", "1"], &options));
    assert!(missing.contains("raceline attach-ns does that"), "{missing}");
    assert_eq!(
        daemon.ok(&with(&["attach-ns", "--namespace-id", "1"], &options)),
        "attach-ns: Success, nsid:1\n"
    );
    assert_eq!(daemon.json(&with(&["id-ns", "--namespace-id", "1"], &options))["nsze"], 16384);
    assert!(
        daemon
            .refused(&with(&["attach-ns", "--namespace-id", "1"], &options))
            .contains("Already Attached")
    );
    let several = daemon.output(&with(&["flush"], &options));
    assert!(
        String::from_utf8_lossy(&several.stderr).contains("the controller has 1, 7"),
        "{several:?}"
    );
    daemon
        .ok(&with(&["format", "--namespace-id", "1", "--block-size", "4096", "--force"], &options));
    assert_eq!(daemon.json(&with(&["id-ns", "--namespace-id", "1"], &options))["nsze"], 2048);
    daemon.ok(&with(&["detach-ns", "--namespace-id", "1"], &options));
    assert_eq!(
        daemon.ok(&with(&["delete-ns", "--namespace-id", "1"], &options)),
        "delete-ns: Success, deleted nsid:1\n"
    );
    daemon.refused(&with(&["delete-ns", "--namespace-id", "1"], &options));
    wrong(
        &daemon,
        &with(&["create-ns", "--nsze", "8", "--block-size", "777"], &options),
        "there are no blocks of 777 bytes",
    );
}

#[test]
fn a_controller_of_a_daemon_is_named_by_its_name() {
    // A daemon takes no device of its own for another one's, so that there are two.
    let (target, options) = target();
    let daemon = Daemon::start();
    let port = &options[5];
    daemon.ok(&[
        "rpc",
        "bdev_nvme_attach_controller",
        "-b",
        "Nvme0",
        "-t",
        "tcp",
        "-f",
        "ipv4",
        "-a",
        "127.0.0.1",
        "-s",
        port,
        "-n",
        NQN,
    ]);
    let text = daemon.ok(&["list"]);
    assert!(
        text.lines()
            .nth(2)
            .is_some_and(|line| line.starts_with("Nvme0n7 ") && line.contains("0x7 ")),
        "{text}"
    );
    assert!(daemon.ok(&["list-subsys"]).contains(" +- Nvme0 tcp traddr=127.0.0.1,"));
    assert_eq!(daemon.json(&["id-ctrl", "Nvme0"])["subnqn"], NQN);
    assert_eq!(daemon.json(&["id-ns", "Nvme0n7"])["nsze"], 16384);
    // The identifier of the host is what the target sees.
    let listed = daemon.json(&["list-subsys"]);
    let sees = target.ok(&["rpc", "nvmf_subsystem_get_controllers", NQN]);
    let sees: Value = serde_json::from_str(&sees).unwrap();
    assert!(
        sees[0]["hostid"].is_string() && listed[0]["HostID"] == sees[0]["hostid"],
        "{listed} {sees}"
    );
    assert_eq!(daemon.ok(&["reset", "Nvme0"]), "Nvme0 was reset\n");
    let path = &daemon.json(&["list-subsys"])[0]["Subsystems"][0]["Paths"][0];
    assert_eq!(path["State"], "live", "it is back: {path}");

    // Lines in nvme-cli's letters do what they do in nvme-cli.
    let file = daemon.file("data");
    std::fs::write(&file, vec![7; 65536]).unwrap();
    daemon.ok(&with(&["write", "--namespace", "7", &file], &options));
    assert_eq!(
        daemon.ok(&["write-zeroes", "Nvme0n7", "-s", "100", "-c", "7"]),
        "NVME Write Zeroes Success\n"
    );
    let mut wanted = vec![7; 65536];
    wanted[100 * 512..108 * 512].fill(0);
    std::fs::write(&file, &wanted).unwrap();
    assert_eq!(daemon.ok(&["compare", "Nvme0n7", "-s", "0", "-d", &file]), "compare: Success\n");
    std::fs::write(&file, vec![0; 4096]).unwrap();
    daemon.ok(&["compare", "Nvme0n7", "-s", "100", "-c", "7", "-d", &file]);
    let elsewhere = daemon.output(&["compare", "Nvme0n7", "-s", "99", "-c", "7", "-d", &file]);
    assert_eq!(elsewhere.status.code(), Some(4), "{elsewhere:?}");
    daemon.ok(&["dsm", "Nvme0", "-n", "7", "-s", "0", "-b", "8", "-d"]);
    daemon.ok(&["compare", "Nvme0n7", "-s", "0", "-c", "7", "-d", &file]);
    wrong(&daemon, &["write-zeroes", "Nvme0n7"], "required");
    let known = of_daemon(&daemon);
    assert_eq!(known[0]["SerialNumber"], "RL1");
    wrong(&daemon, &["id-ctrl", "Nvme1"], "it has Nvme0");
    wrong(&daemon, &["id-ctrl", "Nvme0", "-a", "127.0.0.1"], "cannot be used with");
    // What a controller is, is known while it is lost.
    drop(target);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let is_live = |line: &str| line.starts_with(" +- Nvme0 ") && line.ends_with(" live");
    while daemon.ok(&["list-subsys"]).lines().any(is_live) {
        assert!(std::time::Instant::now() < until, "the loss was not noticed");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(of_daemon(&daemon), known);
}

#[test]
fn a_daemon_connects_to_all_that_is_offered_and_skips_what_it_has() {
    const SECOND: &str = "nqn.2014-08.org.example:second";
    let (target, options) = target();
    target.ok(&["bdev", "add", "ram:4M", "-n", "m1"]);
    target.ok(&["subsys", "add", SECOND, "--allow-any-host"]);
    target.ok(&["ns", "add", SECOND, "m1"]);
    target.ok(&["port", "add", SECOND, &format!("127.0.0.1:{}", options[5])]);
    let daemon = Daemon::start();
    let place = ["-a", "127.0.0.1", "-s", &options[5]];
    let all = [&["connect-all"][..], &place].concat();
    let made = daemon.json(&all);
    let mut found: Vec<&str> =
        made.as_array().unwrap().iter().map(|one| one["subnqn"].as_str().unwrap()).collect();
    found.sort_unstable();
    assert_eq!(found, [SECOND, NQN]);
    assert!(made.as_array().unwrap().iter().all(|one| one["new"] == true), "{made}");
    let again = daemon.ok(&all);
    assert_eq!(again.matches(" was already connected to nqn.").count(), 2, "{again}");
    assert_eq!(of_daemon(&daemon).len(), 2);

    // A file with a service and a subsystem, and lines of discovery.conf.
    let lines = daemon.file("discovery.conf");
    std::fs::write(&lines, format!("-t tcp -a 127.0.0.1 -s {}\n", options[5])).unwrap();
    let again = daemon.ok(&["connect-all", "--config", &lines]);
    assert_eq!(again.matches(" was already connected to nqn.").count(), 2, "{again}");

    let follower = Daemon::start();
    let persistent = [&["connect-all", "--persistent"][..], &place].concat();
    assert!(follower.ok(&persistent).starts_with("Discovery0 follows nqn.2014-08.org.nvmexpress."));
    assert!(follower.ok(&persistent).starts_with("Discovery0 was already following "));
    assert_eq!(of_daemon(&follower).len(), 2);
    for (words, says) in [
        (&["--persistent", "--hdr-digest"][..], "--persistent cannot have digests"),
        (&["-S", "/nowhere/key"], "/nowhere/key"),
        (&["--path", "127.0.0.2"], "--path: every address that is listed becomes a path"),
        (&["-o", "binary"], "no binary output"),
    ] {
        wrong(&daemon, &[&all[..], words].concat(), says);
    }
    wrong(&daemon, &["connect-all", "-n", NQN], "-a says where it is");
    wrong(&daemon, &["connect-all", "Nvme0"], "takes no DEVICE");
}

#[test]
fn a_namespace_that_becomes_no_device_is_a_failure_with_its_reason() {
    let (target, options) = target();
    let devices = target.json(&["bdev", "ls", "m0"]);
    let uuid = devices[0]["uuid"].as_str().unwrap();
    for more in [&[][..], &["--persistent"]] {
        let daemon = Daemon::start();
        daemon.ok(&["bdev", "add", &format!("ram:8M,uuid={uuid}"), "-n", "mine"]);
        let all = [&["connect-all", "-a", "127.0.0.1", "-s", &options[5]][..], more].concat();
        // What was connected before is told in the same way.
        for _ in 0..2 {
            let output = daemon.output(&all);
            let error = String::from_utf8_lossy(&output.stderr);
            let text = String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.code(), Some(1), "{text}{error}");
            assert!(text.contains("but for namespaces that are no devices: 7\n"), "{text}");
            for part in ["namespace 7 of ", "`mine` has the UUID", uuid, "give one of the two"] {
                assert!(error.contains(part) && !error.contains("another name"), "{error}");
            }
        }
        let output = daemon.output(&[&all[..], &["-o", "json"]].concat());
        let made: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(made[0]["unopened"][0]["nsid"], 7, "{made}");
        let output = daemon.output(&["list"]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && error.contains("`mine` has the UUID"), "{error}");
        let listed = daemon.json(&["list", "-v"]).to_string();
        assert!(listed.contains("\"Unopened\":[{\"NSID\":7"), "{listed}");
        // When the other device is gone, the namespace is a device, and all is well.
        daemon.ok(&["bdev", "rm", "mine"]);
        super::wait_for(|| daemon.ok(&["bdev", "ls"]).contains(uuid));
        assert!(!daemon.ok(&all).contains("no devices"));
        assert!(!daemon.json(&["list", "-v"]).to_string().contains("Unopened"));
    }
}

/// An address of this machine that only one test of one process has: ports that are not chosen freely are free there.
fn own_address(number: u8) -> String {
    let [.., high, low] = std::process::id().to_be_bytes();
    format!("127.{}.{low}.{number}", high | 0x80)
}

#[test]
fn without_a_port_a_discovery_controller_is_asked_at_its_own_or_at_that_of_subsystems() {
    let (target, _) = target();
    let [own, of_subsystems, nobody] = [1, 2, 3].map(own_address);
    target.ok(&["port", "add", NQN, &format!("{own}:8009")]);
    target.ok(&["port", "add", NQN, &format!("{of_subsystems}:4420")]);
    for (address, port) in [(&own, "8009"), (&of_subsystems, "4420")] {
        let daemon = Daemon::start();
        let found = daemon.json(&["discover", "-a", address]);
        assert!(found.to_string().contains(NQN), "{found}");
        let made = daemon.json(&["connect-all", "-a", address]);
        assert!(made.as_array().is_some_and(|all| all.iter().any(|one| one["new"] == true)));
        let said = Daemon::start().ok(&["connect-all", "-a", address, "--persistent"]);
        assert!(said.ends_with(&format!(" at {address}:{port}\n")), "{said}");
    }
    // Over RDMA there is one port, as with nvme-cli; with -s there is that one.
    let at = |words: &[&str]| {
        let output = target.output(words);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{words:?}: {error}");
        error
    };
    for verb in [&["discover"][..], &["connect-all"], &["connect-all", "--persistent"]] {
        let error = at(&[verb, &["-a", &nobody]].concat());
        let both = [format!("{nobody}:8009 ("), format!("{nobody}:4420 (")];
        assert!(both.iter().all(|place| error.contains(place)), "{verb:?}: {error}");
        assert!(error.contains("name its port with -s"), "{verb:?}: {error}");
    }
    let error = at(&["discover", "-a", &own, "-s", "4420"]);
    assert!(error.contains(&format!("cannot connect to {own}:4420")), "{error}");
}

#[test]
fn a_daemon_follows_referrals_and_has_a_path_by_each_address() {
    const AFAR: &str = "nqn.2014-08.org.example:afar";
    let (first, options) = target();
    first.ok(&["port", "add", NQN, "127.0.0.1:0"]);
    // The second daemon is known by the first one's referral only, and names the first one in turn.
    let second = Daemon::start();
    second.ok(&["bdev", "add", "ram:4M", "-n", "m1"]);
    second.ok(&["subsys", "add", AFAR, "--allow-any-host"]);
    second.ok(&["ns", "add", AFAR, "m1"]);
    second.ok(&["port", "add", AFAR, "127.0.0.1:0"]);
    let afar = second.json(&["port", "ls"])[0]["trsvcid"].as_str().unwrap().to_owned();
    let refer = |from: &Daemon, port: &str| {
        let place = ["-t", "tcp", "-a", "127.0.0.1", "-f", "ipv4", "-s", port];
        from.ok(&[&["rpc", "nvmf_discovery_add_referral"][..], &place].concat());
    };
    refer(&first, &afar);
    refer(&second, &options[5]);

    let daemon = Daemon::start();
    let all = ["connect-all", "-a", "127.0.0.1", "-s", &options[5]];
    let made = daemon.json(&all);
    let made = made.as_array().unwrap();
    let names = |nqn: &str| -> Vec<&str> {
        let of_nqn = made.iter().filter(|one| one["subnqn"] == nqn);
        of_nqn.map(|one| one["name"].as_str().unwrap()).collect()
    };
    assert_eq!((made.len(), names(AFAR).len()), (3, 1), "{made:?}");
    let paths = names(NQN);
    assert_eq!(paths.len(), 2, "{made:?}");
    assert_eq!(paths[0], paths[1], "one controller with two paths: {made:?}");
    let shown = daemon.ok(&["list-subsys"]);
    assert_eq!(shown.matches(&format!(" +- {} tcp ", paths[0])).count(), 2, "{shown}");
    assert_eq!(of_daemon(&daemon).len(), 2);
    assert_eq!(daemon.ok(&all).matches(" was already connected to nqn.").count(), 3);

    // A service that is gone does not keep the others from being connected, and has the last word.
    drop(second);
    let other = Daemon::start();
    let output = other.output(&all);
    assert!(!output.status.success(), "{output:?}");
    let (said, failed) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(said).matches(" is connected to nqn.").count(), 2);
    assert!(failed.contains(&format!("127.0.0.1:{afar}")), "{failed}");
}

#[test]
fn connections_come_from_the_files_of_nvme_cli() {
    let (daemon, options) = target();
    let port = &options[5];
    let json = daemon.file("config.json");
    let secret = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
    let config = format!(
        r#"[{{"hostnqn": "nqn.2014-08.org.example:h", "subsystems": [
            {{"nqn": "{NQN}", "ports": [
                {{"transport": "fc", "traddr": "127.0.0.1"}},
                {{"transport": "tcp", "traddr": "127.0.0.1", "trsvcid": "{port}", "nr_io_queues": 2, "dhchap_key": "{secret}"}}]}},
            {{"nqn": "nqn.2014-08.org.nvmexpress.discovery", "ports": [
                {{"transport": "tcp", "traddr": "127.0.0.1", "trsvcid": "{port}"}}]}}]}}]"#
    );
    std::fs::write(&json, &config).unwrap();
    std::fs::set_permissions(&json, std::fs::Permissions::from_mode(0o644)).unwrap();
    let output = daemon.output(&["id-ctrl", "--config", &json, "-n", NQN]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    assert!(
        error.contains("transport is fc")
            && error.contains("chmod 600")
            && !error.contains(&secret[10..]),
        "{error}"
    );
    let listed = daemon.json(&["list", "-v", "--config", &json]);
    assert_eq!(listed["Devices"][0]["HostNQN"], "nqn.2014-08.org.example:h");
    assert!(daemon.ok(&["discover", "--config", &json]).contains(NQN));
    wrong_file(&daemon, &json, "[{\"subsystems\": 7}]", "hosts[0].subsystems: it has to be a list");
    wrong_file(&daemon, &json, "{}", "a list of hosts");
    wrong_file(&daemon, &json, "[{", "ends too early");
    wrong_file(&daemon, &json, "[{\"subsystems\": [{\"ports\": []}]}]", "it has no nqn");
    let port_of = |members: &str| {
        format!(r#"[{{"subsystems": [{{"nqn": "{NQN}", "ports": [{members}]}}]}}]"#)
    };
    wrong_file(&daemon, &json, &port_of("7"), "ports[0]: it has to be an object");
    wrong_file(&daemon, &json, &port_of("{}"), "-a ADDRESS is missing");
    wrong_file(&daemon, &json, &port_of(r#"{"traddr": "a", "trsvcid": "99999"}"#), "99999");
    wrong_file(
        &daemon,
        &json,
        &port_of(r#"{"traddr": "a", "dhchap_key": "DHHC-1:00:c2VjcmV0:"}"#),
        "dhchap_key",
    );
    wrong_file(
        &daemon,
        &json,
        &port_of(r#"{"traddr": "a", "queue_size": []}"#),
        "queue_size: it has to be a number",
    );

    let lines = daemon.file("discovery.conf");
    std::fs::write(&lines, format!("# comment\n\n-t tcp -a 127.0.0.1 -s {port} -i 4 # comment\n"))
        .unwrap();
    assert!(daemon.ok(&["discover", "--config", &lines]).contains(NQN));
    std::fs::write(
        &lines,
        format!("--transport=tcp --traddr=127.0.0.1 --trsvcid={port} -i 4 -S {secret}\n"),
    )
    .unwrap();
    assert!(daemon.ok(&["discover", "--config", &lines]).contains(NQN));
    std::fs::write(&lines, format!("-t fc -a nn-0x1:pn-0x2\n-t tcp -a 127.0.0.1 -s {port}\n"))
        .unwrap();
    let output = daemon.output(&["discover", "--config", &lines]);
    let (text, remark) = (String::from_utf8(output.stdout), String::from_utf8(output.stderr));
    assert!(text.unwrap().contains(NQN));
    let remark = remark.unwrap();
    assert!(remark.contains("discovery.conf:1 is passed over: its transport is fc"), "{remark}");
    for (text, says) in [
        ("-t tcp -a", "discovery.conf:1: "),
        ("-t fc -a 127.0.0.1", "no line names"),
        ("-a 'x", "a quote is not closed"),
        ("\n# nothing\n", "no line names"),
        ("-a 127.0.0.1 --dhchap-secret=DHHC-1:00:c2VjcmV0:", "--dhchap-secret"),
    ] {
        wrong_file(&daemon, &lines, text, says);
    }
}

#[test]
fn options_of_the_command_line_come_before_those_of_a_file() {
    let (daemon, options) = target();
    let (json, lines) = (daemon.file("config.json"), daemon.file("discovery.conf"));
    let config = format!(
        r#"[{{"hostnqn": "nqn.2014-08.org.example:h", "subsystems": [{{"nqn": "{NQN}", "ports": [
            {{"traddr": "127.0.0.1", "trsvcid": "{}"}}]}}]}}]"#,
        options[5]
    );
    std::fs::write(&json, config).unwrap();
    std::fs::write(&lines, format!("-t tcp -a 127.0.0.1 -s {} -f no-such1\n", options[5])).unwrap();
    let words = ["list", "-v", "--config", &json];
    assert_eq!(daemon.json(&words)["Devices"][0]["HostNQN"], "nqn.2014-08.org.example:h");
    let words = [&words[..], &["-q", "nqn.2014-08.org.example:line"]].concat();
    assert_eq!(daemon.json(&words)["Devices"][0]["HostNQN"], "nqn.2014-08.org.example:line");
    for (verb, file) in [("connect-all", &json), ("connect-all", &lines), ("discover", &lines)] {
        let output = daemon.output(&[verb, "--config", file, "-f", "no-such0"]);
        let error = String::from_utf8_lossy(&output.stderr);
        let says = error.contains("there is no interface no-such0");
        assert!(!output.status.success() && says, "{verb} {file}: {error}");
    }
    let found = daemon.ok(&["discover", "--config", &lines, "-f", "lo"]);
    assert!(found.contains(NQN), "{found}");
}

/// A file that is wrong is refused by its place, and no secret is shown.
#[track_caller]
fn wrong_file(daemon: &Daemon, path: &str, text: &str, says: &str) {
    std::fs::write(path, text).unwrap();
    let output = daemon.output(&["discover", "--config", path]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}: {error}");
    assert!(error.contains(says) && !error.contains("c2VjcmV0"), "{text}: {error}");
}

#[test]
fn what_does_not_say_which_controller_is_refused() {
    let daemon = Daemon::start();
    wrong(&daemon, &["id-ctrl"], "say which controller");
    wrong(&daemon, &["id-ctrl", "-a", "127.0.0.1"], "say which controller");
    wrong(&daemon, &["id-ctrl", "-n", NQN, "--config", "/nowhere"], "No such file");
    wrong(
        &daemon,
        &["id-ctrl", "-n", NQN, "-a", "127.0.0.1", "--host-iface", "nowhere0"],
        "there is no interface nowhere0",
    );
    wrong(&daemon, &["id-ctrl", "--iscsi", "-n", NQN, "-a", "127.0.0.1"], "for NVMe");
    wrong(&daemon, &["id-ctrl", "Nvme0"], "it has none");
}
