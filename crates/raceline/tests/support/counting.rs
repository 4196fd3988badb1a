//! A daemon whose namespaces count their requests, to show where commands go.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{Output, Scratch, Served, call, run};

const NQN: &str = "nqn.2014-08.org.example:counting";

/// A daemon with namespaces in memory, which counts the requests of each.
pub(crate) struct Counting {
    served: Served,
    socket: PathBuf,
    port: String,
    _scratch: Scratch,
}

impl Counting {
    /// Starts with this many namespaces of 2 MiB, numbered from 1.
    pub(crate) fn start(namespaces: usize) -> Self {
        let scratch = Scratch::new();
        let socket = PathBuf::from(scratch.path("rpc.sock"));
        let served = Served::start(&socket, &[]);
        let ask = |method: &str, params: Value| call(&socket, method, params).unwrap();
        ask("nvmf_create_transport", json!({ "trtype": "TCP" }));
        ask("nvmf_create_subsystem", json!({ "nqn": NQN, "allow_any_host": true }));
        for number in 1..=namespaces {
            let name = format!("M{number}");
            ask(
                "bdev_malloc_create",
                json!({ "name": name, "num_blocks": 4096, "block_size": 512 }),
            );
            let namespace = json!({ "bdev_name": name, "nsid": number });
            ask("nvmf_subsystem_add_ns", json!({ "nqn": NQN, "namespace": namespace }));
        }
        let address = json!({ "trtype": "TCP", "traddr": "127.0.0.1", "trsvcid": "0" });
        ask("nvmf_subsystem_add_listener", json!({ "nqn": NQN, "listen_address": address }));
        let listeners = ask("nvmf_subsystem_get_listeners", json!({ "nqn": NQN }));
        let port = listeners[0]["address"]["trsvcid"].as_str().unwrap().to_owned();
        Self { served, socket, port, _scratch: scratch }
    }

    /// Runs a job file on these namespaces.
    pub(crate) fn perf(&self, file: &str) -> Output {
        let target = ["-a", "127.0.0.1", "-s", &self.port, "-n", NQN];
        run(&[&["perf", "--job", file, "-o", "json"], &target[..]].concat())
    }

    /// The number of reads of each namespace.
    pub(crate) fn reads(&self) -> Vec<u64> {
        let iostat = call(&self.socket, "bdev_get_iostat", Value::Null).unwrap();
        let mut reads: Vec<(String, u64)> = iostat["bdevs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|bdev| {
                let count = bdev["num_read_ops"].as_u64().unwrap();
                (bdev["name"].as_str().unwrap().to_owned(), count)
            })
            .collect();
        reads.sort();
        reads.into_iter().map(|(_, count)| count).collect()
    }

    pub(crate) fn end(self) {
        assert_eq!(self.served.end(rustix::process::Signal::TERM).code, Some(0));
    }
}
