//! A server in a temporary directory, and a client that speaks raw bytes.

#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

pub(crate) mod discovery;

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_control::manager::{Manager, ManagerConfig};
use raceline_control::method::Registry;
use raceline_control::role::{Peer, Roles};
use raceline_control::server::{Server, ServerConfig};
use raceline_control::state::StateJournal;
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long a test waits for an answer before it fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "not within {} s: {what}", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A server and the objects that it needs.
pub(crate) struct Daemon {
    pub(crate) manager: Arc<Manager>,
    pub(crate) server: Option<Server>,
    pub(crate) directory: TempDir,
}

impl Daemon {
    /// A server whose framework has been started.
    pub(crate) fn started() -> Self {
        let daemon = Self::waiting();
        daemon.client().call("framework_start_init", Value::Null).unwrap();
        daemon
    }

    /// A server that waits for framework_start_init.
    pub(crate) fn waiting() -> Self {
        Self::waiting_with(ManagerConfig::default())
    }

    /// As [`Self::waiting`], with a command line.
    pub(crate) fn waiting_with(config: ManagerConfig) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let manager = Arc::new(Manager::new(config, Arc::new(Registry::new())));
        let config =
            ServerConfig { path: directory.path().join("run/rpc.sock"), roles: Roles::default() };
        let server = Some(Server::start(config, Arc::clone(&manager)).unwrap());
        Self { manager, server, directory }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.server.as_ref().unwrap().path().to_owned()
    }

    pub(crate) fn client(&self) -> Client {
        let stream = UnixStream::connect(self.path()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client { stream, rest: Vec::new(), last_id: 0 }
    }
}

/// A connection.
pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    rest: Vec<u8>,
    last_id: u64,
}

impl Client {
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next line; `None` at the end of the stream.
    pub(crate) fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(String::from_utf8(line).unwrap());
            }
            let mut piece = [0; 4096];
            match self.stream.read(&mut piece) {
                Ok(0) => return None,
                Ok(len) => self.rest.extend_from_slice(&piece[..len]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no answer: {error}"),
            }
        }
    }

    /// Calls a method; `Null` sends no parameters. The error is (code, message).
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Result<Value, (i64, String)> {
        self.last_id += 1;
        let mut request = json!({ "jsonrpc": "2.0", "method": method, "id": self.last_id });
        if !params.is_null() {
            request["params"] = params;
        }
        self.send(serde_json::to_string_pretty(&request).unwrap().as_bytes());
        let answer: Value = serde_json::from_str(&self.line().expect("an answer")).unwrap();
        assert_eq!(answer["id"], self.last_id, "{answer}");
        assert_eq!(answer["jsonrpc"], "2.0");
        match answer.get("error") {
            Some(error) => {
                let code = error["code"].as_i64().unwrap();
                Err((code, error["message"].as_str().unwrap().to_owned()))
            }
            None => Ok(answer["result"].clone()),
        }
    }
}

/// A daemon with a state directory and without a socket. Dropping it without an orderly end leaves the same
/// state as a kill.
pub(crate) struct Kept {
    pub(crate) manager: Arc<Manager>,
    registry: Arc<Registry>,
}

impl Kept {
    pub(crate) fn start(dir: &Path) -> Self {
        Self::start_with(dir, ManagerConfig::default())
    }

    pub(crate) fn start_with(dir: &Path, config: ManagerConfig) -> Self {
        let (journal, kept) = StateJournal::open(dir).unwrap();
        let changes_before = journal.begin(&kept);
        let config = ManagerConfig { journal: Box::new(journal), changes_before, ..config };
        let registry = Arc::new(Registry::new());
        let manager = Arc::new(Manager::new(config, registry.clone()));
        manager.share();
        manager.restore(&kept.catalogue).unwrap();
        manager.at_start(Box::new(move |manager| {
            manager.restore(&kept.catalogue).map_err(|error| error.to_string())
        }));
        manager.start_all().unwrap();
        Self { manager, registry }
    }

    /// Calls a method and waits until its effect is durable; the error is its text.
    pub(crate) fn call(&self, method: &str, params: Value) -> Result<Value, String> {
        let raw = serde_json::value::to_raw_value(&params).unwrap();
        let params = (!params.is_null()).then_some(&*raw);
        let result = self.registry.call(&self.manager, Peer::this_process(), method, params);
        let result = result.map_err(|error| format!("{method}: {error}"))?;
        self.manager.wait_durable().unwrap();
        Ok(result)
    }

    /// Everything that a client can see of the configuration.
    pub(crate) fn picture(&self) -> Value {
        let sections = ok(self.call("framework_get_subsystems", Value::Null));
        let config = |section: &Value| {
            ok(self.call("framework_get_config", json!({ "name": section["subsystem"] })))
        };
        let config: Vec<Value> = sections.as_array().unwrap().iter().map(config).collect();
        json!({
            "config": config,
            "bdevs": ok(self.call("bdev_get_bdevs", Value::Null)),
            "subsystems": ok(self.call("nvmf_get_subsystems", Value::Null)),
        })
    }

    pub(crate) fn kill(self) {
        self.manager.shut_down().unwrap();
    }
}

/// The result of a call that has to succeed.
pub(crate) fn ok(result: Result<Value, String>) -> Value {
    result.unwrap_or_else(|error| panic!("{error}"))
}
