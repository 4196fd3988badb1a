//! SIGKILL ends a daemon under a stream of changes; all changes that it acknowledged are there again.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
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

/// Kills of a run; RACELINE_STATE_KILLS sets another number.
const KILLS: u32 = 50;
const KILLS_VARIABLE: &str = "RACELINE_STATE_KILLS";
/// Turns the test `a_daemon_to_be_killed` into a daemon on this directory.
const CHILD_VARIABLE: &str = "RACELINE_STATE_KILL_DIR";
/// Clients at a time, each with names of its own.
const CLIENTS: usize = 4;
/// Names of each client.
const NAMES: usize = 8;
/// How long a daemon may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Not a test but the daemon of the test below, which starts this program again.
#[test]
fn a_daemon_to_be_killed() {
    let Some(dir) = std::env::var_os(CHILD_VARIABLE).map(PathBuf::from) else { return };
    let (journal, kept) = StateJournal::open(&dir.join("state")).unwrap();
    let config = ManagerConfig { journal: Box::new(journal), ..ManagerConfig::default() };
    let manager = Arc::new(Manager::new(config, Arc::new(Registry::new())));
    manager.restore(&kept.catalogue).unwrap();
    manager.start();
    manager.restore(&kept.catalogue).unwrap();
    // The socket of a killed daemon is found stale: its lock is gone.
    let config = ServerConfig { path: dir.join("run/rpc.sock"), roles: Roles::default() };
    let _server = Server::start(config, Arc::clone(&manager)).unwrap();
    for line in std::io::stdin().lines() {
        // Checkpoints come on the test's command, as they come otherwise when the log has grown.
        if line.is_ok_and(|line| line == "checkpoint") {
            manager.close_journal().unwrap();
        }
    }
}

/// The daemon's process.
struct Daemon {
    child: Child,
    socket: PathBuf,
}

impl Daemon {
    fn start(dir: &Path) -> Self {
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

    fn bdevs(&self) -> Value {
        call(&mut connect(&self.socket).unwrap(), "bdev_get_bdevs", Value::Null).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // SIGKILL; the daemon may have ended by itself, which the next start will show.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn connect(socket: &Path) -> std::io::Result<BufReader<UnixStream>> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(START_TIMEOUT))?;
    Ok(BufReader::new(stream))
}

/// The result of a call, or `None` when the daemon has died.
fn call(stream: &mut BufReader<UnixStream>, method: &str, params: Value) -> Option<Value> {
    let mut request = json!({ "jsonrpc": "2.0", "id": 1, "method": method });
    if !params.is_null() {
        request["params"] = params;
    }
    stream.get_mut().write_all(request.to_string().as_bytes()).ok()?;
    let mut line = String::new();
    // A line without its end is a truncated answer: not an acknowledgement.
    stream.read_line(&mut line).ok().filter(|_| line.ends_with('\n'))?;
    let answer: Value = serde_json::from_str(&line).unwrap();
    assert!(answer.get("error").is_none(), "{method}: {answer}");
    Some(answer["result"].clone())
}

/// The knowledge of one client: acknowledged devices by name, with their blocks; and the change whose
/// answer has not come.
#[derive(Clone, Default)]
struct Client {
    devices: BTreeMap<String, u64>,
    in_flight: Option<(String, Option<u64>)>,
    changes: u64,
}

impl Client {
    /// Makes and deletes devices until the daemon dies.
    fn run(&mut self, number: usize, socket: &Path) {
        let Ok(mut stream) = connect(socket) else { return };
        loop {
            self.changes += 1;
            let place = usize::try_from(self.changes * 7 % 5).unwrap() + number;
            let name = format!("client{number}-{}", place % NAMES);
            let made = if self.devices.contains_key(&name) { None } else { Some(self.changes) };
            self.in_flight = Some((name.clone(), made));
            let answer = match made {
                Some(blocks) => {
                    let params = json!({ "name": name, "num_blocks": blocks, "block_size": 512 });
                    call(&mut stream, "bdev_malloc_create", params)
                }
                None => call(&mut stream, "bdev_malloc_delete", json!({ "name": name })),
            };
            if answer.is_none() {
                return;
            }
            self.settle();
        }
    }

    /// Notes that the change in flight has happened.
    fn settle(&mut self) {
        match self.in_flight.take() {
            Some((name, Some(blocks))) => {
                self.devices.insert(name, blocks);
            }
            Some((name, None)) => {
                self.devices.remove(&name);
            }
            None => {}
        }
    }

    /// Compares with the devices after a restart; learns whether the change in flight happened.
    fn check(&mut self, number: usize, there: &BTreeMap<String, u64>) {
        let prefix = format!("client{number}-");
        let mine: BTreeMap<String, u64> = there
            .iter()
            .filter(|(name, _)| name.starts_with(&prefix))
            .map(|(name, blocks)| (name.clone(), *blocks))
            .collect();
        if mine != self.devices {
            let before = self.clone();
            self.settle();
            assert_eq!(
                mine, self.devices,
                "acknowledged: {:?}, in flight: {:?}",
                before.devices, before.in_flight
            );
        }
        self.in_flight = None;
    }
}

/// Devices by name: their blocks, and their identities.
fn listed(bdevs: &Value) -> (BTreeMap<String, u64>, BTreeMap<String, String>) {
    let bdevs = bdevs.as_array().unwrap();
    let name = |bdev: &Value| bdev["name"].as_str().unwrap().to_owned();
    let blocks = bdevs.iter().map(|bdev| (name(bdev), bdev["num_blocks"].as_u64().unwrap()));
    let uuids = bdevs.iter().map(|bdev| (name(bdev), bdev["uuid"].as_str().unwrap().to_owned()));
    (blocks.collect(), uuids.collect())
}

#[test]
fn what_was_acknowledged_survives_sigkill() {
    let kills = std::env::var(KILLS_VARIABLE).ok().and_then(|text| text.parse().ok());
    let kills = kills.unwrap_or(KILLS);
    let dir = tempfile::tempdir().unwrap();
    let mut clients = vec![Client::default(); CLIENTS];
    // No two devices have the same blocks, so the blocks tell devices of one name apart.
    let mut identities: BTreeMap<(String, u64), String> = BTreeMap::new();
    for round in 0..=kills {
        let mut daemon = Daemon::start(dir.path());
        let (there, uuids) = listed(&daemon.bdevs());
        for (number, client) in clients.iter_mut().enumerate() {
            client.check(number, &there);
        }
        for (name, uuid) in uuids {
            let first = identities.entry((name.clone(), there[&name])).or_insert(uuid.clone());
            assert_eq!(*first, uuid, "{name} has another identity");
        }
        if round == kills {
            break;
        }
        let socket = daemon.socket.clone();
        std::thread::scope(|scope| {
            for (number, client) in clients.iter_mut().enumerate() {
                let socket = &socket;
                scope.spawn(move || client.run(number, socket));
            }
            std::thread::sleep(Duration::from_millis(u64::from(round * 37 % 41)));
            if round % 3 == 0 {
                // Killed also while it writes its configuration.
                daemon.child.stdin.as_mut().unwrap().write_all(b"checkpoint\n").unwrap();
                std::thread::sleep(Duration::from_millis(u64::from(round % 7)));
            }
            drop(daemon);
        });
    }
    let changes: u64 = clients.iter().map(|client| client.changes).sum();
    assert!(changes > u64::from(kills), "{changes} changes under {kills} kills");
    println!("{kills} kills, {changes} changes");
}
