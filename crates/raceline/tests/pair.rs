//! Two daemons with the same namespace over one file, one of them active: what hosts see of it, and how it changes over.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{Scratch, Served, call, run, run_with_input};

const NQN: &str = "nqn.2026-01.io.raceline:pair";
const UUID: &str = "6b9f2f8c-0d3a-4c55-9a2f-00000000abcd";

/// One daemon of the pair.
struct Node {
    served: Served,
    socket: PathBuf,
    port: String,
}

impl Node {
    /// A daemon that exports the file, and gives its controllers these numbers.
    fn start(scratch: &Scratch, name: &str, file: &str, numbers: &str) -> Self {
        let socket = PathBuf::from(scratch.path(&format!("{name}/rpc.sock")));
        let state = scratch.path(&format!("{name}-state"));
        let served = Served::start(&socket, &["--state-dir", &state, "--quiesce-time", "2"]);
        let mut node = Self { served, socket, port: String::new() };
        let device = format!("file:{file},shared");
        node.ok(&["bdev", "add", &device, "--name", "disk"]);
        let identity = ["--serial", "PAIR1", "--model", "Raceline pair"];
        let subsystem = ["subsys", "add", NQN, "--allow-any-host", "--ana", "--cntlids", numbers];
        node.ok(&[&subsystem[..], &identity].concat());
        node.ok(&["ns", "add", NQN, "disk", "--uuid", UUID, "--ana-group", "7"]);
        node.ok(&["port", "add", NQN, "127.0.0.1:0"]);
        let ports: Value = serde_json::from_str(&node.ok(&["port", "ls", "-o", "json"])).unwrap();
        node.port = ports[0]["trsvcid"].as_str().unwrap().to_owned();
        node
    }

    fn words<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        [words, &["--socket", self.socket.to_str().unwrap()]].concat()
    }

    /// Standard output of a verb that has to succeed.
    fn ok(&self, words: &[&str]) -> String {
        let output = run(&self.words(words));
        assert_eq!(output.code, Some(0), "{words:?}: {}", output.stderr);
        output.stdout
    }

    fn set(&self, state: &str, more: &[&str]) -> String {
        let address = format!("127.0.0.1:{}", self.port);
        self.ok(&[&["port", "set", NQN, &address, "--ana", state][..], more].concat())
    }

    /// The state of the namespace's group by the daemon's listener.
    fn state(&self) -> Value {
        let listeners = call(&self.socket, "nvmf_subsystem_get_listeners", json!({ "nqn": NQN }));
        let states = &listeners.unwrap()[0]["ana_states"];
        let group = states.as_array().unwrap().iter().find(|state| state["ana_group"] == 7);
        group.unwrap()["ana_state"].clone()
    }

    /// The arguments of a host verb.
    fn host<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        [words, &["-a", "127.0.0.1", "-s", &self.port, "-n", NQN]].concat()
    }

    fn identify(&self) -> Value {
        let output = run(&self.host(&["identify", "-o", "json"]));
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        serde_json::from_str(&output.stdout).unwrap()
    }
}

#[test]
fn a_pair_has_one_namespace_and_changes_over() {
    let scratch = Scratch::new();
    let file = scratch.file("disk", &vec![0; 1 << 20]);
    let one = Node::start(&scratch, "one", &file, "1-32759");
    let two = Node::start(&scratch, "two", &file, "32760-65519");
    assert!(two.set("inaccessible", &[]).contains("inaccessible"));
    assert_eq!([one.state(), two.state()], ["optimized", "inaccessible"]);

    // The same to hosts, but for the numbers of controllers.
    let seen = [one.identify(), two.identify()];
    let cntlids = seen.each_ref().map(|seen| seen["controller"]["cntlid"].as_u64().unwrap());
    assert!(cntlids[0] < 32760 && cntlids[1] >= 32760, "{cntlids:?}");
    for member in ["serial", "model", "subnqn"] {
        assert_eq!(seen[0]["controller"][member], seen[1]["controller"][member]);
    }
    assert_eq!(seen[0]["controller"]["serial"], "PAIR1");
    for member in ["nsid", "uuid", "nguid", "block_size", "block_count"] {
        assert_eq!(seen[0]["namespaces"][0][member], seen[1]["namespaces"][0][member]);
    }
    assert_eq!(seen[0]["namespaces"][0]["uuid"], UUID);

    // What the active one has written is there after the change over.
    let data: Vec<u8> = (0..4096_u32).flat_map(u32::to_le_bytes).collect();
    let wrote = run_with_input(&one.host(&["write"]), &data);
    assert_eq!(wrote.code, Some(0), "{}", wrote.stderr);
    one.set("inaccessible", &["--group", "7"]);
    two.set("optimized", &[]);
    assert_eq!([one.state(), two.state()], ["inaccessible", "optimized"]);
    let read = run(&two.host(&["read", "--blocks", "32"]));
    assert_eq!((read.code, read.bytes == data), (Some(0), true), "{}", read.stderr);

    // Nobody who does not say so shares the file.
    let alone = run(&two.words(&["bdev", "add", &format!("file:{file}"), "--name", "again"]));
    assert!(alone.code == Some(1) && alone.stderr.contains("open already"), "{}", alone.stderr);
    assert_eq!(one.served.end(Signal::TERM).code, Some(0));
    let other = Served::start(&PathBuf::from(scratch.path("other/rpc.sock")), &[]);
    let socket = scratch.path("other/rpc.sock");
    let alone = run(&["bdev", "add", &format!("file:{file}"), "--socket", &socket]);
    assert!(alone.code == Some(1) && alone.stderr.contains("locked"), "{}", alone.stderr);
    drop(other);

    // States and groups survive.
    ok_after_restart(two, &scratch);
}

/// The second daemon comes back as it was, also with the numbers of its controllers, of which it gives out others.
fn ok_after_restart(node: Node, scratch: &Scratch) {
    let before = node.identify()["controller"]["cntlid"].as_u64().unwrap();
    let Node { served, socket, port } = node;
    served.end(Signal::KILL);
    let state = scratch.path("two-state");
    let served = Served::start(&socket, &["--state-dir", &state]);
    let node = Node { served, socket, port };
    assert_eq!(node.state(), "optimized");
    let after = node.identify()["controller"]["cntlid"].as_u64().unwrap();
    assert!(after >= 32760 && after.abs_diff(before) > 1000, "{before} and {after}");
    node.set("non-optimized", &[]);
    node.ok(&["ns", "set", NQN, "1", "--ana-group", "3"]);
    assert_eq!(node.served.end(Signal::TERM).code, Some(0));
}
