//! Multicast DNS between network namespaces: daemons that find each other, and an implementation that is not ours.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{Scratch, Served, call, run, run_by};

const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// What has to come true within this time. Records live for minutes, so withdrawals are announced.
const PATIENCE: Duration = Duration::from_secs(60);
/// Debian's Python, for which `python3-zeroconf` is installed.
const PYTHON: &str = "/usr/bin/python3";
/// The addresses of both sides.
const SHELF: &str = "192.0.2.1";
const HOST: &str = "192.0.2.2";

/// Two namespaces with a veth pair between them. They go with the value.
struct Bed {
    shelf: String,
    host: String,
}

impl Bed {
    /// Makes them, or says on standard error why they cannot be made.
    fn make(test: &str) -> Option<Self> {
        let name = |side: &str| format!("raceline-mdns-{}-{test}-{side}", std::process::id());
        let bed = Self { shelf: name("a"), host: name("b") };
        for namespace in [&bed.shelf, &bed.host] {
            if let Err(error) = ip(&format!("netns add {namespace}")) {
                eprintln!("SKIPPED: a network namespace cannot be made here (root?): {error}");
                return None;
            }
        }
        let Self { shelf, host } = &bed;
        for line in [
            format!("-n {shelf} link add va type veth peer name vb netns {host}"),
            format!("-n {shelf} address add {SHELF}/24 dev va"),
            format!("-n {host} address add {HOST}/24 dev vb"),
            format!("-n {shelf} link set lo up"),
            format!("-n {host} link set lo up"),
            format!("-n {shelf} link set va up"),
            format!("-n {host} link set vb up"),
        ] {
            ip(&line).unwrap();
        }
        // Until then, a search leaves the interface out, and looks again every 5 s.
        for (namespace, interface) in [(shelf, "va"), (host, "vb")] {
            let file = format!("/sys/class/net/{interface}/operstate");
            wait("a veth pair does not come up", || {
                let [ip, words @ ..] = Self::within(namespace);
                let output = Command::new(ip).args(words).args(["cat", &file]).output().unwrap();
                output.stdout == b"up\n"
            });
        }
        Some(bed)
    }

    fn within(namespace: &str) -> [&str; 4] {
        ["ip", "netns", "exec", namespace]
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for namespace in [&self.shelf, &self.host] {
            let _ = ip(&format!("netns del {namespace}"));
        }
    }
}

fn ip(line: &str) -> Result<(), String> {
    let output = Command::new("ip").args(line.split(' ')).output().map_err(|it| it.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(said) }
}

/// A daemon in a namespace.
struct Daemon {
    served: Served,
    socket: PathBuf,
}

impl Daemon {
    fn start(namespace: &str, scratch: &Scratch, name: &str) -> Self {
        let socket = PathBuf::from(scratch.path(&format!("{name}.sock")));
        let state = scratch.path(name);
        let options = ["--mdns", "--state-dir", &state];
        let served = Served::start_by(&Bed::within(namespace), &socket, &options);
        Self { served, socket }
    }

    fn ok(&self, method: &str, params: Value) -> Value {
        call(&self.socket, method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Exports a device in a subsystem, and lists it in a discovery service that two addresses lead to.
    fn export(&self, name: &str) {
        let nqn = format!("nqn.2026-01.io.raceline:{name}");
        let address =
            |ip: &str, port: &str| json!({ "trtype": "tcp", "traddr": ip, "trsvcid": port });
        let listen = |nqn: &str, at: Value| json!({ "nqn": nqn, "listen_address": at });
        let namespace = json!({ "nqn": nqn, "namespace": { "bdev_name": name } });
        for (method, params) in [
            ("nvmf_create_transport", json!({ "trtype": "tcp" })),
            ("bdev_malloc_create", json!({ "name": name, "num_blocks": 64, "block_size": 512 })),
            ("nvmf_create_subsystem", json!({ "nqn": nqn, "allow_any_host": true })),
            ("nvmf_subsystem_add_ns", namespace),
            ("nvmf_subsystem_add_listener", listen(&nqn, address(SHELF, "4420"))),
            ("nvmf_subsystem_add_listener", listen(DISCOVERY, address("127.0.0.1", "8010"))),
            ("nvmf_subsystem_add_listener", listen(DISCOVERY, address(SHELF, "8009"))),
        ] {
            self.ok(method, params);
        }
    }

    fn devices(&self) -> Vec<String> {
        let list = self.ok("bdev_get_bdevs", Value::Null);
        let name = |device: &Value| device["name"].as_str().unwrap().to_owned();
        list.as_array().unwrap().iter().map(name).collect()
    }

    fn info(&self) -> Value {
        self.ok("bdev_nvme_get_mdns_discovery_info", Value::Null)
    }
}

fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn search() -> Value {
    json!({ "name": "M", "svcname": "_nvme-disc._tcp" })
}

#[test]
fn what_a_daemon_announces_is_found_followed_and_let_go() {
    let Some(bed) = Bed::make("pair") else { return };
    let scratch = Scratch::new();
    let shelf = Daemon::start(&bed.shelf, &scratch, "shelf");
    shelf.export("disk");

    // A person looks: only the address that other machines can reach is there.
    let mut found = Value::Null;
    wait("nothing is found", || {
        let words = ["discover", "--mdns", "--wait", "2", "-o", "json"];
        let output = run_by(&Bed::within(&bed.host), &words);
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        found = serde_json::from_str::<Value>(&output.stdout).unwrap()["services"].take();
        found.as_array().is_some_and(|found| !found.is_empty())
    });
    assert_eq!(found.as_array().unwrap().len(), 1, "{found}");
    assert_eq!(found[0]["subnqn"], DISCOVERY);
    assert_eq!(found[0]["addresses"], json!([{ "traddr": SHELF, "trsvcid": "8009" }]));

    // A daemon looks, and has the device.
    let front = Daemon::start(&bed.host, &scratch, "front");
    front.ok("bdev_nvme_start_mdns_discovery", search());
    wait("the device does not come", || front.devices() == ["M0_nvme0n1"]);
    let info = front.info();
    assert_eq!((&info[0]["name"], &info[0]["svcname"]), (&json!("M"), &json!("_nvme-disc._tcp")));
    let referral = &info[0]["referrals"][0];
    assert_eq!(referral["name"], "M0_nvme", "{info}");
    assert_eq!(
        (&referral["trid"]["traddr"], &referral["trid"]["subnqn"]),
        (&json!(SHELF), &json!(DISCOVERY))
    );
    let services = front.ok("bdev_nvme_get_discovery_info", Value::Null);
    assert_eq!(services[0]["name"], "M0_nvme");
    for (method, params, code) in [
        ("bdev_nvme_start_mdns_discovery", search(), -17),
        ("bdev_nvme_stop_discovery", json!({ "name": "M0_nvme" }), -16),
        ("bdev_nvme_stop_mdns_discovery", json!({ "name": "N" }), -2),
    ] {
        let error = call(&front.socket, method, params).unwrap_err();
        assert_eq!(error["code"], code, "{method}: {error}");
    }

    // A restart keeps the number.
    front.served.end(Signal::TERM);
    let front = Daemon::start(&bed.host, &scratch, "front");
    wait("the device does not come back", || front.devices() == ["M0_nvme0n1"]);

    // What is announced no more stays while it is connected, whoever has said so, and goes with its target.
    shelf.ok("nvmf_stop_mdns_prr", json!({}));
    let unheard = || {
        let words = ["discover", "--mdns", "--wait", "2"];
        run_by(&Bed::within(&bed.host), &words).stdout.contains("no discovery controller")
    };
    wait("it is still announced", unheard);
    assert_eq!(front.devices(), ["M0_nvme0n1"]);
    shelf.served.end(Signal::TERM);
    wait("the device stays", || front.devices().is_empty());
    wait("the service stays", || front.info()[0]["referrals"] == json!([]));

    // The same shelf has the same number again; then the search ends.
    let shelf = Daemon::start(&bed.shelf, &scratch, "shelf");
    wait("the device does not come anew", || front.devices() == ["M0_nvme0n1"]);
    front.ok("bdev_nvme_stop_mdns_discovery", json!({ "name": "M" }));
    assert!(front.devices().is_empty());
    assert_eq!(front.info(), json!([]));
    for daemon in [front, shelf] {
        let output = daemon.served.end(Signal::TERM);
        assert_eq!(output.code, Some(0), "{}", output.stderr);
    }
}

/// A program in Python that lives as long as its standard input.
struct Judge {
    child: Child,
    lines: mpsc::Receiver<Value>,
    /// Closed, it ends the program.
    _stdin: ChildStdin,
}

impl Judge {
    /// Starts it, or says on standard error why it cannot be started.
    fn start(namespace: &str, program: &str, arguments: &[&str]) -> Option<Self> {
        let has = Command::new(PYTHON).args(["-c", "import zeroconf"]).output();
        if !has.is_ok_and(|output| output.status.success()) {
            eprintln!(
                "SKIPPED: {PYTHON} has no zeroconf (Debian: apt-get install python3-zeroconf)"
            );
            return None;
        }
        let [ip, words @ ..] = Bed::within(namespace);
        let mut child = Command::new(ip)
            .args(words)
            .args([PYTHON, "-c", program])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).unwrap_or(Value::String(line)));
            }
        });
        let stdin = child.stdin.take().unwrap();
        Some(Self { child, lines, _stdin: stdin })
    }

    /// The next thing that it says.
    fn next(&self) -> Value {
        self.lines.recv_timeout(PATIENCE).expect("the judge says nothing")
    }
}

impl Drop for Judge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says what it finds, and what is withdrawn.
const FIND: &str = r#"
import json, sys
from zeroconf import ServiceBrowser, Zeroconf
class Listener:
    def add_service(self, zeroconf, kind, name):
        info = zeroconf.get_service_info(kind, name, 10000)
        txt = {key.decode(): value.decode() for key, value in info.properties.items()}
        found = {"name": name, "addresses": info.parsed_addresses(), "port": info.port, "txt": txt}
        print(json.dumps(found), flush=True)
    def update_service(self, zeroconf, kind, name):
        pass
    def remove_service(self, zeroconf, kind, name):
        print(json.dumps({"removed": name}), flush=True)
zeroconf = Zeroconf(interfaces=[sys.argv[1]])
ServiceBrowser(zeroconf, "_nvme-disc._tcp.local.", Listener())
sys.stdin.read()
"#;

/// Announces a discovery controller, and some that nobody should connect to.
const ANNOUNCE: &str = r#"
import json, socket, sys
from zeroconf import ServiceInfo, Zeroconf
own = sys.argv[1]
zeroconf = Zeroconf(interfaces=[own])
kind = "_nvme-disc._tcp.local."
def announce(name, address, txt):
    info = ServiceInfo(kind, name + "." + kind, addresses=[socket.inet_aton(address)], port=8009,
                       properties=txt, server=name.lower().replace(" ", "-") + ".local.")
    zeroconf.register_service(info)
announce("rdma", own, {"p": "roce"})
announce("none", own, {})
announce("inside", "127.0.0.1", {"p": "tcp"})
announce("nqn", own, {"p": "tcp", "nqn": "x" * 240})
announce("Shelf 7", own, {"p": "tcp", "NQN": "nqn.2014-08.org.nvmexpress.discovery"})
print(json.dumps("announced"), flush=True)
sys.stdin.read()
"#;

#[test]
fn another_implementation_finds_a_daemon_and_sees_it_go() {
    let Some(bed) = Bed::make("found") else { return };
    let Some(judge) = Judge::start(&bed.host, FIND, &[HOST]) else { return };
    let scratch = Scratch::new();
    let shelf = Daemon::start(&bed.shelf, &scratch, "shelf");
    shelf.export("disk");
    let found = judge.next();
    let name = found["name"].as_str().unwrap();
    assert!(name.ends_with("-192-0-2-1-8009._nvme-disc._tcp.local."), "{found}");
    assert_eq!((&found["addresses"], &found["port"]), (&json!([SHELF]), &json!(8009)));
    assert_eq!(found["txt"], json!({ "p": "tcp", "nqn": DISCOVERY }));
    // A listener that goes is withdrawn.
    let address = json!({ "trtype": "tcp", "traddr": SHELF, "trsvcid": "8009" });
    let gone = json!({ "nqn": DISCOVERY, "listen_address": address });
    shelf.ok("nvmf_subsystem_remove_listener", gone.clone());
    assert_eq!(judge.next(), json!({ "removed": name }));
    shelf.ok("nvmf_subsystem_add_listener", gone);
    assert_eq!(judge.next()["name"], name);
    // So is everything at the end.
    shelf.served.end(Signal::TERM);
    assert_eq!(judge.next(), json!({ "removed": name }));
}

#[test]
fn a_daemon_finds_what_another_implementation_announces() {
    let Some(bed) = Bed::make("finds") else { return };
    let scratch = Scratch::new();
    // Nobody announces this daemon itself.
    let socket = PathBuf::from(scratch.path("shelf.sock"));
    let served = Served::start_by(&Bed::within(&bed.shelf), &socket, &[]);
    let shelf = Daemon { served, socket };
    shelf.export("disk");
    let front = Daemon::start(&bed.host, &scratch, "front");
    front.ok("bdev_nvme_start_mdns_discovery", search());
    // The search comes first: python-zeroconf 0.47 puts a malformed NSEC record into its answers (two bytes for the
    // length of the bitmap instead of one), and not into its announcements.
    let Some(judge) = Judge::start(&bed.shelf, ANNOUNCE, &[SHELF]) else { return };
    assert_eq!(judge.next(), "announced");
    wait("the device does not come", || front.devices() == ["M0_nvme0n1"]);
    let info = front.info();
    let referrals = info[0]["referrals"].as_array().unwrap();
    assert_eq!(referrals.len(), 1, "{info}");
    assert!(referrals[0]["instance"].as_str().unwrap().starts_with("Shelf"), "{info}");
    for daemon in [front, shelf] {
        daemon.served.end(Signal::TERM);
    }
}

/// Whether the kernel filters the system calls of a process.
fn is_filtered(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|it| it.trim() == "2"))
}

#[test]
fn a_daemon_in_a_sandbox_says_that_it_needs_the_option() {
    let scratch = Scratch::new();
    let socket = scratch.path("rpc.sock");
    let socket = Path::new(&socket);
    let served = Served::start(socket, &[]);
    if is_filtered(served.pid()) {
        for (method, params) in
            [("nvmf_publish_mdns_prr", json!({})), ("bdev_nvme_start_mdns_discovery", search())]
        {
            let error = call(socket, method, params).unwrap_err();
            assert_eq!(error["code"], -1, "{error}");
            assert!(error["data"].as_str().unwrap().contains("--mdns"), "{error}");
        }
    } else {
        eprintln!("SKIPPED: this kernel does not filter system calls");
    }
    served.end(Signal::TERM);
}

#[test]
fn an_export_without_a_listener_for_others_announces_nothing() {
    let output = run(&["export", "ram:1M", "--mdns", "-l", "127.0.0.1:0"]);
    assert_eq!(output.code, Some(2), "{}", output.stderr);
    assert!(output.stderr.contains("there is none: name an address"), "{}", output.stderr);
}
