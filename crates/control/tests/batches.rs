//! Batches that ask for more than a daemon can give at a time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use raceline_control::allowance::{MOST_ANSWER_BYTES, MOST_CALLS};
use raceline_control::events::Severity;
use raceline_control::server::MAX_CONNECTIONS;
use serde_json::{Map, Value, json};
use support::discovery::{address, free_port};
use support::{Daemon, eventually};

fn batch(calls: impl IntoIterator<Item = Value>) -> String {
    Value::Array(calls.into_iter().collect()).to_string()
}

fn events(id: usize, wait_ms: u64) -> Value {
    let params = json!({ "since": if wait_ms > 0 { 1_u64 << 40 } else { 1 }, "wait_ms": wait_ms });
    json!({ "method": "raceline_get_events", "id": id, "params": params })
}

fn create(id: usize, name: &str) -> Value {
    let params = json!({ "name": name, "num_blocks": 8, "block_size": 512 });
    json!({ "method": "bdev_malloc_create", "id": id, "params": params })
}

#[test]
fn a_batch_of_too_many_calls_is_refused_whole() {
    let daemon = Daemon::started();
    let mut client = daemon.client();
    let mut ask = |count: usize| {
        client
            .send(batch((1..count).map(|id| events(id, 0)).chain([create(count, "M")])).as_bytes());
        serde_json::from_str::<Value>(&client.line().unwrap()).unwrap()
    };
    let refused = ask(MOST_CALLS + 1);
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&Value::Null, &json!(-32600)));
    let why = refused["error"]["data"].as_str().unwrap();
    assert!(why.contains("1025 calls") && why.contains("1024") && why.contains("several"), "{why}");
    assert!(daemon.manager.model().bdevs.find("M").is_none());
    let made = ask(MOST_CALLS);
    assert_eq!(made.as_array().unwrap().len(), MOST_CALLS);
    assert!(daemon.manager.model().bdevs.find("M").is_some());
}

#[test]
fn no_call_is_made_once_the_answer_is_full() {
    let daemon = Daemon::started();
    let fields: Map<String, Value> =
        (0..10).map(|number| (number.to_string(), "x".repeat(512).into())).collect();
    for _ in 0..1000 {
        let journal = &daemon.manager.config().events;
        journal.push(Severity::Info, "test", "test", "text", fields.clone());
    }
    let mut client = daemon.client();
    let calls = [create(0, "early")].into_iter().chain((1..100).map(|id| events(id, 0)));
    client.send(batch(calls.chain([create(100, "late"), json!(7)])).as_bytes());
    let mut line = String::new();
    BufReader::new(&client.stream).read_line(&mut line).unwrap();
    let one = 6 << 20;
    assert!((MOST_ANSWER_BYTES..MOST_ANSWER_BYTES + one).contains(&line.len()), "{}", line.len());
    let answers: Vec<Value> = serde_json::from_str(&line).unwrap();
    assert_eq!(answers.len(), 102);
    let made = answers.iter().take_while(|answer| answer["error"].is_null()).count();
    assert!((3..6).contains(&made), "{made}");
    for (id, answer) in answers.iter().enumerate().take(101).skip(made) {
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(id), &json!(-32603)));
        let why = answer["error"]["data"].as_str().unwrap();
        assert!(why.contains("16777216") && why.contains("smaller batch"), "{why}");
    }
    assert_eq!(answers[101]["error"]["code"], -32600);
    let model = daemon.manager.model();
    assert!(model.bdevs.find("early").is_some() && model.bdevs.find("late").is_none());
}

#[test]
fn the_waits_of_a_batch_take_no_longer_than_the_longest_alone() {
    let daemon = Daemon::started();
    let mut client = daemon.client();
    let device = |id| {
        let params = json!({ "name": "none", "timeout": 400 });
        json!({ "method": "bdev_get_bdevs", "id": id, "params": params })
    };
    let began = Instant::now();
    let calls = (0..MOST_CALLS).map(|id| if id % 2 == 0 { events(id, 300) } else { device(id) });
    client.send(batch(calls).as_bytes());
    let answers: Vec<Value> = serde_json::from_str(&client.line().unwrap()).unwrap();
    assert_eq!(answers.len(), MOST_CALLS);
    let took = began.elapsed();
    assert!((Duration::from_millis(400)..Duration::from_secs(20)).contains(&took), "{took:?}");
    // The next request has time of its own.
    let began = Instant::now();
    client.call("raceline_get_events", json!({ "since": 1_u64 << 40, "wait_ms": 300 })).unwrap();
    assert!(began.elapsed() >= Duration::from_millis(300));
}

/// At the end of its wait it is undone, so another call must not bring that about.
#[test]
fn a_change_waits_as_long_as_it_would_alone() {
    let daemon = Daemon::started();
    let mut client = daemon.client();
    let mut params = address(free_port());
    params["name"] = "D".into();
    params["attach_timeout_ms"] = 400.into();
    let follow = json!({ "method": "bdev_nvme_start_discovery", "id": 2, "params": params });
    let began = Instant::now();
    client.send(batch([events(1, 400), follow]).as_bytes());
    let answers: Vec<Value> = serde_json::from_str(&client.line().unwrap()).unwrap();
    assert_eq!(answers[1]["error"]["code"], -110, "{answers:?}");
    assert!(began.elapsed() >= Duration::from_millis(800), "{:?}", began.elapsed());
}

/// What changes something is done all the same: a client may send it and go.
#[test]
fn nothing_is_read_for_a_client_that_is_gone() {
    let daemon = Daemon::started();
    let wait = json!({ "name": "none", "timeout": 600_000 });
    let wait = json!({ "method": "bdev_get_bdevs", "id": 3, "params": wait });
    let began = Instant::now();
    // They have all places.
    let mut clients: Vec<_> = (0..MAX_CONNECTIONS).map(|_| daemon.client()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        let (early, late) = (create(0, &format!("E{number}")), create(2, &format!("M{number}")));
        let first = if number % 2 == 0 { events(1, 30_000) } else { wait.clone() };
        client.send(batch([early, first, late, wait.clone()]).as_bytes());
    }
    let made = || daemon.manager.model().bdevs.iter().count();
    eventually("they wait", || made() == MAX_CONNECTIONS);
    drop(clients);
    eventually("a place is free", || {
        // Until then it is refused, and may find its socket closed.
        let mut next = daemon.client();
        let call = br#"{"method":"notify_get_types","id":1}"#;
        let mut answer = String::new();
        let is_sent = next.stream.write_all(call).is_ok();
        is_sent
            && BufReader::new(&next.stream).read_line(&mut answer).is_ok()
            && answer.contains("bdev_register")
    });
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    eventually("all changes are made", || made() == 2 * MAX_CONNECTIONS);
    // A client that only sends no more is not gone.
    let mut quiet = daemon.client();
    quiet.send(batch([events(1, 200), events(2, 0)]).as_bytes());
    quiet.stream.shutdown(Shutdown::Write).unwrap();
    let answers: Vec<Value> = serde_json::from_str(&quiet.line().unwrap()).unwrap();
    assert!(answers[1]["result"]["events"].is_array(), "{answers:?}");
}
