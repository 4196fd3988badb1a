//! A daemon in a process of its own, which SIGKILL ends: the test program, started again.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_control::manager::{Manager, ManagerConfig};
use raceline_control::method::Registry;
use raceline_control::role::Roles;
use raceline_control::server::{Server, ServerConfig};
use raceline_control::state::StateJournal;
use serde_json::{Value, json};

/// Holds the daemon's directory in its process; no other process has it.
const CHILD_VARIABLE: &str = "RACELINE_KILLED_DAEMON_DIR";
/// How long a daemon may take to start.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The directory, if this process is to be the daemon.
pub(crate) fn directory() -> Option<PathBuf> {
    std::env::var_os(CHILD_VARIABLE).map(PathBuf::from)
}

/// Is the daemon until its input ends; gives every line of it to `told`.
pub(crate) fn serve(dir: &Path, config: ManagerConfig, told: impl Fn(&Manager, &str)) {
    let (journal, kept) = StateJournal::open(&dir.join("state")).unwrap();
    let config = ManagerConfig { journal: Box::new(journal), ..config };
    let manager = Arc::new(Manager::new(config, Arc::new(Registry::new())));
    manager.restore(&kept.catalogue).unwrap();
    manager.start();
    manager.restore(&kept.catalogue).unwrap();
    // The socket of a killed daemon is found stale: its lock is gone.
    let config = ServerConfig { path: dir.join("run/rpc.sock"), roles: Roles::default() };
    let _server = Server::start(config, Arc::clone(&manager)).unwrap();
    for line in std::io::stdin().lines().map_while(Result::ok) {
        told(&manager, &line);
    }
}

/// The daemon's process.
pub(crate) struct Daemon {
    pub(crate) child: Child,
    pub(crate) socket: PathBuf,
}

impl Daemon {
    /// Starts the test `a_daemon_to_be_killed` of this program as a daemon on this directory.
    pub(crate) fn start(dir: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "a_daemon_to_be_killed", "--nocapture"]);
        command.env(CHILD_VARIABLE, dir).stdin(Stdio::piped()).stdout(Stdio::null());
        let child = command.spawn().unwrap();
        let mut daemon = Self { child, socket: dir.join("run/rpc.sock") };
        let deadline = Instant::now() + START_TIMEOUT;
        while UnixStream::connect(&daemon.socket).is_err() {
            assert!(Instant::now() < deadline, "the daemon does not answer");
            let ended = daemon.child.try_wait().unwrap();
            assert!(ended.is_none(), "the daemon did not start: {ended:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
        daemon
    }

    /// The answer to a call, which may be an error.
    pub(crate) fn answer(&self, method: &str, params: Value) -> Value {
        answer(&mut connect(&self.socket).unwrap(), method, params).unwrap()
    }

    /// The result of a call.
    pub(crate) fn ok(&self, method: &str, params: Value) -> Value {
        call(&mut connect(&self.socket).unwrap(), method, params).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // SIGKILL; the daemon may have ended by itself, which the next start will show.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn connect(socket: &Path) -> std::io::Result<BufReader<UnixStream>> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(START_TIMEOUT))?;
    Ok(BufReader::new(stream))
}

/// The answer to a call, or `None` when the daemon has died.
fn answer(stream: &mut BufReader<UnixStream>, method: &str, params: Value) -> Option<Value> {
    let mut request = json!({ "jsonrpc": "2.0", "id": 1, "method": method });
    if !params.is_null() {
        request["params"] = params;
    }
    stream.get_mut().write_all(request.to_string().as_bytes()).ok()?;
    let mut line = String::new();
    // A line without its end is a truncated answer: not an acknowledgement.
    stream.read_line(&mut line).ok().filter(|_| line.ends_with('\n'))?;
    Some(serde_json::from_str(&line).unwrap())
}

/// The result of a call, or `None` when the daemon has died.
pub(crate) fn call(
    stream: &mut BufReader<UnixStream>,
    method: &str,
    params: Value,
) -> Option<Value> {
    let answer = answer(stream, method, params)?;
    assert!(answer.get("error").is_none(), "{method}: {answer}");
    Some(answer["result"].clone())
}
