//! SIGKILL ends a daemon under a stream of changes; all changes that it acknowledged are there again.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod killed;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use killed::{Daemon, START_TIMEOUT, call, connect};
use raceline_control::manager::ManagerConfig;
use serde_json::{Value, json};

/// Kills of a run; RACELINE_STATE_KILLS sets another number.
const KILLS: u32 = 50;
const KILLS_VARIABLE: &str = "RACELINE_STATE_KILLS";
/// Clients at a time, each with names of its own.
const CLIENTS: usize = 4;
/// Answers of a round before the clock of its kill starts, however slow the machine is.
const LEAST_ANSWERS: u64 = 2;
/// Names of each client.
const NAMES: usize = 8;

/// Not a test but the daemon of the test below, which starts this program again.
#[test]
fn a_daemon_to_be_killed() {
    let Some(dir) = killed::directory() else { return };
    killed::serve(&dir, ManagerConfig::default(), |manager, line| {
        // Checkpoints come on the test's command, as they come otherwise when the log has grown.
        if line == "checkpoint" {
            manager.close_journal().unwrap();
        }
    });
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
    /// Makes and deletes devices until the daemon dies, and counts the answers.
    fn run(&mut self, number: usize, socket: &Path, answers: &AtomicU64) {
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
            answers.fetch_add(1, Ordering::Relaxed);
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

/// Waits until the clients of a round have had enough answers.
fn wait_for_answers(answers: &AtomicU64) {
    let deadline = Instant::now() + START_TIMEOUT;
    while answers.load(Ordering::Relaxed) < LEAST_ANSWERS && Instant::now() < deadline {
        std::thread::sleep(Duration::from_micros(100));
    }
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
        let (there, uuids) = listed(&daemon.ok("bdev_get_bdevs", Value::Null));
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
        let answers = &AtomicU64::new(0);
        std::thread::scope(|scope| {
            for (number, client) in clients.iter_mut().enumerate() {
                let socket = &socket;
                scope.spawn(move || client.run(number, socket, answers));
            }
            wait_for_answers(answers);
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
