//! iSCSI on the command line: the verbs of a daemon, and `export --iscsi`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use support::{Export, Output, Served};

const NODE: &str = "iqn.2026-01.io.raceline:disk";
const SECRET: &str = "a-secret-of-the-test";

/// What a tool of libiscsi prints; `None` where it is not installed.
fn tool(name: &str, url: &[&str]) -> Option<String> {
    let output = Command::new("timeout").arg("30").arg(name).args(url).output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if output.status.code() == Some(127) {
        eprintln!("SKIPPED: {name} is not installed");
        return None;
    }
    Some(text)
}

/// A file that only its owner can read.
fn secret_file(dir: &std::path::Path) -> String {
    let path = dir.join("secret");
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&path).unwrap();
    writeln!(file, "{SECRET}").unwrap();
    path.to_str().unwrap().to_owned()
}

/// A daemon, and the program that manages it.
struct Daemon {
    socket: String,
    dir: tempfile::TempDir,
    serve: Served,
}

impl Daemon {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("run/rpc.sock");
        let serve = Served::start(&socket, &["-v"]);
        Self { socket: socket.to_str().unwrap().to_owned(), dir, serve }
    }

    fn output(&self, words: &[&str]) -> Output {
        support::run(&[words, &["-s", &self.socket]].concat())
    }

    fn ok(&self, words: &[&str]) -> String {
        let output = self.output(words);
        assert_eq!(output.code, Some(0), "{words:?}: {}", output.stderr);
        output.stdout
    }

    fn refused(&self, words: &[&str]) -> String {
        let output = self.output(words);
        assert_eq!(output.code, Some(1), "{words:?}: {}", output.stderr);
        output.stderr
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[words, &["-o", "json"]].concat())).unwrap()
    }
}

#[test]
fn three_commands_export_a_device_and_others_change_and_end_it() {
    let daemon = Daemon::start();
    daemon.ok(&["bdev", "add", "ram:1M", "--name", "m0"]);
    daemon.ok(&["bdev", "add", "ram:2M", "--name", "m1"]);
    let error = daemon.refused(&["iscsi", "target", "add", NODE, "m0"]);
    assert!(error.contains("there is no portal group"), "{error}");
    daemon.ok(&["iscsi", "portal", "add", "127.0.0.1:0"]);
    daemon.ok(&["iscsi", "initiator", "add", "ANY", "--from", "127.0.0.0/8"]);
    daemon.ok(&["iscsi", "target", "add", NODE, "m0", "--alias", "one"]);
    daemon.ok(&["iscsi", "lun", "add", NODE, "m1", "--lun", "9"]);
    let portals = daemon.json(&["iscsi", "portal", "ls"]);
    let address = format!("127.0.0.1:{}", portals[0]["portals"][0]["port"].as_str().unwrap());
    if let Some(found) = tool("iscsi-ls", &["-s", &format!("iscsi://{address}")]) {
        assert!(
            found.contains(NODE) && found.contains("Lun:0 ") && found.contains("Lun:9 "),
            "{found}"
        );
    }
    let luns = daemon.ok(&["iscsi", "lun", "ls"]);
    let error = daemon.refused(&["bdev", "rm", "m1"]);
    assert!(error.contains(&format!("LUN 9 of {NODE}")), "{error}");
    assert!(luns.lines().count() == 3 && luns.contains("m1"), "{luns}");
    let secret = secret_file(daemon.dir.path());
    daemon.ok(&["iscsi", "auth", "add", "me", &secret]);
    for shown in
        [daemon.ok(&["iscsi", "auth", "ls"]), daemon.json(&["iscsi", "auth", "ls"]).to_string()]
    {
        assert!(shown.contains("me") && !shown.contains(SECRET), "{shown}");
    }
    let usage = daemon.output(&["iscsi", "target", "set", NODE, "--chap", "required"]);
    assert_eq!(usage.code, Some(2), "{}", usage.stderr);
    daemon.ok(&["iscsi", "target", "set", NODE, "--chap", "required", "--auth", "1"]);
    if let Some(text) = tool("iscsi-inq", &[&format!("iscsi://me%{SECRET}@{address}/{NODE}/0")]) {
        assert!(text.contains("Peripheral"), "{text}");
        let text = tool("iscsi-inq", &[&format!("iscsi://{address}/{NODE}/0")]).unwrap();
        assert!(!text.contains("Peripheral"), "{text}");
    }
    let listed = daemon.ok(&["iscsi", "target", "ls"]);
    assert!(listed.contains("required") && listed.contains("1:1"), "{listed}");
    daemon.ok(&[
        "iscsi",
        "initiator",
        "set",
        "1",
        "--add",
        "iqn.2026-01.io.raceline:i",
        "--rm-from",
        "127.0.0.0/8",
        "--add-from",
        "::1",
    ]);
    let groups = daemon.json(&["iscsi", "initiator", "ls"]);
    assert_eq!(groups[0]["netmasks"][0], "[::1]/128");
    daemon.ok(&["iscsi", "target", "set", NODE, "--rm-map", "1:1"]);
    daemon.ok(&["iscsi", "lun", "rm", NODE, "9"]);
    assert_eq!(daemon.json(&["iscsi", "connections"]), Value::Array(vec![]));
    let error = daemon.refused(&["iscsi", "target", "rm", "iqn.2026-01.io.raceline:disc"]);
    assert!(error.contains("there is only"), "{error}");
    daemon.ok(&["iscsi", "target", "rm", NODE]);
    daemon.ok(&["iscsi", "auth", "rm", "1", "--user", "me"]);
    daemon.ok(&["iscsi", "auth", "rm", "1"]);
    daemon.ok(&["iscsi", "initiator", "rm", "1"]);
    daemon.ok(&["iscsi", "portal", "rm", "1"]);
    for kind in ["target", "lun", "portal", "initiator", "auth"] {
        assert_eq!(daemon.json(&["iscsi", kind, "ls"]), Value::Array(vec![]), "{kind}");
    }
    let log = daemon.serve.end(Signal::TERM).stderr;
    assert!(log.contains("iscsi_auth_group_add_secret"), "the audit has the call: {log}");
    assert!(!log.contains(SECRET), "{log}");
}

#[test]
fn a_logical_unit_becomes_a_device_of_the_daemon() {
    let daemon = Daemon::start();
    let secret = secret_file(daemon.dir.path());
    let export = Export::start(&[
        "ram:8M",
        &format!("--iscsi={NODE}"),
        "--iscsi-listen",
        "127.0.0.1:0",
        "--chap-user",
        "me",
        "--chap-secret",
        &secret,
    ]);
    let portal = export.ready["iscsi"]["portals"][0].as_str().unwrap();
    let (url, open) =
        (format!("iscsi://me@{portal}/{NODE}/0"), format!("iscsi://{portal}/{NODE}/0"));
    let key = serde_json::json!({ "name": "far", "path": secret });
    support::call(daemon.socket.as_ref(), "keyring_file_add_key", key).unwrap();
    daemon.ok(&["bdev", "add", &url, "--chap-key", "far", "--name", "f0"]);
    let listed = daemon.json(&["bdev", "ls", "f0"]);
    assert_eq!(listed[0]["product_name"], "iSCSI LUN");
    assert_eq!(listed[0]["driver_specific"]["iscsi"]["url"], *url);
    let refused =
        daemon.refused(&["bdev", "add", &open, "--initiator", "iqn.2026-01.io.raceline:i"]);
    assert!(refused.contains("CHAP"), "{refused}");
    for words in [&["bdev", "add", &url][..], &["bdev", "add", "ram:1M", "--chap-key", "far"]] {
        assert_eq!(daemon.output(words).code, Some(2), "{words:?}");
    }
    daemon.ok(&["bdev", "rm", "f0"]);
    export.terminate();
}

#[test]
fn an_export_is_reached_by_both_protocols() {
    let dir = tempfile::tempdir().unwrap();
    let secret = secret_file(dir.path());
    let name = format!("--iscsi={NODE}");
    let export = Export::start(&[
        "ram:8M",
        "-l",
        "127.0.0.1:0",
        &name,
        "--iscsi-listen",
        "127.0.0.1:0",
        "--chap-user",
        "me",
        "--chap-secret",
        &secret,
    ]);
    let ready = &export.ready;
    assert_eq!((&ready["iscsi"]["name"], &ready["iscsi"]["chap"]), (&NODE.into(), &true.into()));
    let portal = ready["iscsi"]["portals"][0].as_str().unwrap();
    if let Some(text) = tool(
        "iscsi-inq",
        &["-e", "1", "-c", "128", &format!("iscsi://me%{SECRET}@{portal}/{NODE}/0")],
    ) {
        let uuid = ready["namespaces"][0]["uuid"].as_str().unwrap();
        assert!(text.contains(uuid) || text.contains(&uuid.replace('-', "")), "{uuid}: {text}");
    }
    let identified = support::run(&export.host(&["identify"]));
    assert_eq!(identified.code, Some(0), "{}", identified.stderr);
    export.terminate();
}

/// A file of LIO over files of this directory, with a port that is free.
fn saved(daemon: &Daemon, change: impl FnOnce(String) -> String) -> (String, String) {
    let address = support::own_address();
    let dir = daemon.dir.path().to_str().unwrap();
    let disk = std::fs::File::create(daemon.dir.path().join("disk.img")).unwrap();
    disk.set_len(4 << 20).unwrap();
    let text = include_str!("data/saveconfig.json");
    let text = text.replace("@DIR@", dir).replace("@PORT@", &address.port().to_string());
    let text = text.replace("\"127.0.0.1\"", &format!("\"{}\"", address.ip()));
    let path = daemon.dir.path().join("saveconfig.json");
    std::fs::write(&path, change(text)).unwrap();
    (path.to_str().unwrap().to_owned(), address.to_string())
}

#[test]
fn a_file_of_lio_is_imported_whole_or_not_at_all() {
    let open = "iqn.2003-01.org.linux-iscsi.jbof:open";
    let daemon = Daemon::start();
    let (file, _) = saved(&daemon, |text| text);
    let picture = || {
        ["target", "portal", "initiator", "auth"].map(|what| daemon.json(&["iscsi", what, "ls"]))
    };
    let empty = picture();
    let shown = daemon.ok(&["iscsi", "import", &file, "--dry-run"]);
    assert!(shown.contains(&format!("would make target node {open} with 1 LUN")), "{shown}");
    assert!(shown.contains("not the same: ") && !shown.contains("secret-of"), "{shown}");
    assert_eq!(picture(), empty);

    // The last target node cannot be made: what came before it is taken back.
    let (wrong, _) = saved(&daemon, |text| text.replace("iscsi.jbof:closed", "iscsi.jbof:open"));
    let error = daemon.refused(&["iscsi", "import", &wrong]);
    assert!(error.contains(open) && error.contains("nothing was imported"), "{error}");
    assert!(!error.contains("secret-of"), "{error}");
    assert_eq!(picture(), empty);
    assert_eq!(daemon.json(&["bdev", "ls"]).as_array().unwrap().len(), 0);

    let (file, address) = saved(&daemon, |text| text);
    let report = daemon.json(&["iscsi", "import", &file]);
    assert_eq!(report["dry_run"], false);
    assert!(!report.to_string().contains("secret-of"), "{report}");
    let listed = daemon.ok(&["iscsi", "target", "ls"]);
    assert!(listed.contains(open) && listed.contains("disabled"), "{listed}");
    let users = daemon.ok(&["iscsi", "auth", "ls"]);
    assert!(users.contains("full") && users.contains("finder"), "{users}");
    if let Some(text) = tool("iscsi-inq", &[&format!("iscsi://{address}/{open}/0")]) {
        assert!(text.contains("Peripheral"), "{text}");
    }
    // Once more, the addresses are taken.
    let error = daemon.refused(&["iscsi", "import", &file]);
    assert!(error.contains("nothing was imported"), "{error}");
    let nonsense = daemon.dir.path().join("nonsense");
    std::fs::write(&nonsense, "{\"targets\": 7}").unwrap();
    let output = daemon.output(&["iscsi", "import", nonsense.to_str().unwrap()]);
    assert!(output.code == Some(2) && output.stderr.contains("line 1"), "{}", output.stderr);
}

/// A session of hand-made PDUs. It has used its disk: what a target makes at the first use is there.
struct Used {
    stream: TcpStream,
    cmd_sn: u32,
}

impl Used {
    fn begin(portal: &str, number: u16) -> Self {
        let stream = TcpStream::connect(portal).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut used = Self { stream, cmd_sn: 1 };
        let keys = format!(
            "InitiatorName=iqn.2026-01.io.raceline:idle\0TargetName={NODE}\0SessionType=Normal\0"
        );
        let mut login = [0; 48];
        (login[0], login[1], login[8]) = (0x43, 0x87, 0x80);
        login[12..14].copy_from_slice(&number.to_be_bytes());
        let answer = used.exchange(login, keys.as_bytes());
        assert_eq!((answer[0], answer[36], answer[37]), (0x23, 0, 0), "the login");
        for _ in 0..4 {
            // READ (10) of 8 blocks.
            let mut read = [0; 48];
            (read[0], read[1], read[32], read[40]) = (0x01, 0xc1, 0x28, 8);
            read[20..24].copy_from_slice(&4096_u32.to_be_bytes());
            let answer = used.exchange(read, &[]);
            assert_eq!((answer[0], answer[1] & 1, answer[3]), (0x25, 1, 0), "data with status");
            used.cmd_sn += 1;
        }
        used
    }

    /// Sends a request, and gives the header of the answer.
    fn exchange(&mut self, mut header: [u8; 48], data: &[u8]) -> [u8; 48] {
        header[5..8].copy_from_slice(&u32::try_from(data.len()).unwrap().to_be_bytes()[1..]);
        header[16..20].copy_from_slice(&self.cmd_sn.to_be_bytes());
        header[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        let mut bytes = [&header[..], data].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        self.stream.write_all(&bytes).unwrap();
        let mut answer = [0; 48];
        self.stream.read_exact(&mut answer).unwrap();
        let len = u32::from_be_bytes([0, answer[5], answer[6], answer[7]]) as usize;
        self.stream.read_exact(&mut vec![0; len.next_multiple_of(4)]).unwrap();
        answer
    }
}

/// Memory of a process that is there, in KiB.
fn resident_kib(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn an_idle_session_takes_little_memory() {
    const SESSIONS: u16 = 200;
    /// The bar is 64 KiB for a session that is idle.
    const MOST_KIB: usize = 56;
    let name = format!("--iscsi={NODE}");
    let words =
        ["ram:8M", "-l", "127.0.0.1:0", &name, "--iscsi-listen", "127.0.0.1:0", "--cores", "0"];
    let export = Export::start(&words);
    let portal = export.ready["iscsi"]["portals"][0].as_str().unwrap();
    // What all sessions share is there after some.
    let mut sessions: Vec<_> = (0..20).map(|number| Used::begin(portal, number)).collect();
    let before = resident_kib(export.pid());
    sessions.extend((20..20 + SESSIONS).map(|number| Used::begin(portal, number)));
    let after = resident_kib(export.pid());
    let each = (after - before) / usize::from(SESSIONS);
    assert!(each <= MOST_KIB, "{each} KiB for each session: from {before} to {after}");
    println!("{each} KiB for each session");
    drop(sessions);
    export.terminate();
}
