//! Clients that are slow, large, many or wrong: each is refused, and others are served meanwhile.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use raceline_http::{MAX_CONNECTIONS, MAX_CONNECTIONS_OF_ADDRESS, Parts};
use serde_json::json;

use crate::support::{Client, LIMIT, Served, TOKEN};

/// A server that closes slow clients, and leaves a busy machine time to send what is not slow.
fn impatient() -> Served {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let parts = Parts { rpc: true, metrics: true, page: false };
    Served::start_with(address, parts, |config| config.patience = Duration::from_secs(3))
}

#[test]
fn methods_that_a_path_does_not_have_are_refused() {
    let served = Served::start();
    for (method, path, allowed) in [
        ("PUT", "/rpc", "POST"),
        ("GET", "/rpc", "POST"),
        ("DELETE", "/metrics", "GET, HEAD"),
        ("POST", "/metrics", "GET, HEAD"),
        ("OPTIONS", "/", "GET, HEAD"),
        ("TRACE", "/healthz", "GET, HEAD"),
        ("BREW", "/healthz", "GET, HEAD"),
    ] {
        let refused = served.ask(method, path, &[], "");
        assert_eq!((refused.status, refused.header("allow")), (405, Some(allowed)), "{method}");
    }
    for path in ["/../etc/passwd", "//", "/metrics/", "/rpc?x", "/%00", "/healthz%2f"] {
        let status = served.ask("GET", path, &[], "").status;
        assert!(status == 404 || status == 405, "{path}: {status}");
    }
    assert_eq!(served.get("/metrics?names=other").status, 400);
}

#[test]
fn bytes_that_are_no_request_end_their_connection_only() {
    let served = Served::start();
    let mut good = served.connect();
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"[..],
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n",
        b"POST /rpc HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /rpc HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: \x00\r\n\r\n",
    ] {
        let mut client = served.connect();
        client.stream.write_all(bytes).unwrap();
        let answer = client.answer("GET");
        assert_eq!(answer.status, 400, "{bytes:?}");
        assert!(client.is_closed());
    }
    good.send("GET", "/healthz", &[], "");
    assert_eq!(good.answer("GET").status, 200);
}

#[test]
fn what_is_too_large_is_refused() {
    let served = Served::start();
    let long = format!("X: {}", "x".repeat(64 << 10));
    let mut client = served.connect();
    // The server may close before all of it is sent.
    let head = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\n{long}\r\n\r\n");
    let _ = client.stream.write_all(head.as_bytes());
    assert_eq!(client.answer("GET").status, 431);
    let many: Vec<String> = (0..200).map(|n| format!("X-{n}: 1")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(served.ask("GET", "/healthz", &many, "").status, 431);
    // The length is believed before a byte of the body has come.
    let mut client = served.connect();
    client.send("POST", "/rpc", &["Content-Length: 99999999999"], "");
    assert_eq!(client.answer("POST").status, 413);
    assert!(client.is_closed());
    // Without a length, the bytes are counted.
    let mut client = served.connect();
    client.send("POST", "/rpc", &["Transfer-Encoding: chunked"], "");
    let piece = format!("10000\r\n{}\r\n", " ".repeat(64 << 10));
    while client.stream.write_all(piece.as_bytes()).is_ok() {}
    assert_eq!(served.get("/healthz").status, 200);
    // The largest request that fits is read.
    let padding = " ".repeat((1 << 20) - 100);
    let request = format!(r#"{{"jsonrpc":"2.0","id":1,{padding}"method":"spdk_get_version"}}"#);
    let answer = served.ask("POST", "/rpc", &[], &request);
    assert!(answer.body.contains("Raceline"), "{}", answer.body);
}

#[test]
fn requests_in_a_row_are_answered_in_a_row() {
    let served = Served::start();
    let mut client = served.connect();
    for path in ["/healthz", "/nothing", "/readyz"] {
        client.send("GET", path, &[], "");
    }
    let statuses: Vec<u16> = (0..3).map(|_| client.answer("GET").status).collect();
    assert_eq!(statuses, [200, 404, 200]);
}

#[test]
fn slow_clients_are_closed() {
    let served = impatient();
    let mut silent = served.connect();
    let mut half = served.connect();
    half.stream.write_all(b"GET /healthz HT").unwrap();
    let mut without_body = served.connect();
    without_body.send("POST", "/rpc", &["Content-Length: 10"], "");
    assert_eq!(without_body.answer("POST").status, 408);
    assert!(without_body.is_closed() && silent.is_closed());
    // One that was closed within a head may be told so.
    while !half.is_closed() {}
    // A client that asks and never reads: its answers fill all buffers, and then its time runs out.
    let mut deaf = served.connect();
    deaf.stream.set_write_timeout(Some(LIMIT)).unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\n\r\n", served.address);
    let deadline = Instant::now() + LIMIT;
    while deaf.stream.write_all(request.repeat(16).as_bytes()).is_ok() {
        assert!(Instant::now() < deadline, "a client that reads nothing is served for ever");
    }
    assert_eq!(served.get("/healthz").status, 200);
}

/// A small call.
const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"spdk_get_version"}"#;

/// Sends the head of [`CALL`]. Until its body has come, the server is busy with it, as it says itself.
fn begin_call(client: &mut Client) {
    let length = format!("Content-Length: {}", CALL.len());
    client.send("POST", "/rpc", &["Expect: 100-continue", &length], "");
    assert_eq!(client.answer("POST").status, 100);
}

fn end_call(client: &mut Client) {
    client.stream.write_all(CALL.as_bytes()).unwrap();
    assert_eq!(client.answer("POST").status, 200, "its call was under way");
}

#[test]
fn connections_beyond_the_limit_are_told_so() {
    let served = Served::start();
    let is_refused = |mut client: Client| {
        let refused = client.answer("GET");
        assert_eq!((refused.status, refused.body.as_str()), (503, "Too many connections.\n"));
    };
    let share = 0..MAX_CONNECTIONS_OF_ADDRESS;
    let mut busy: Vec<Client> = share.clone().map(|_| served.connect()).collect();
    busy.iter_mut().for_each(begin_call);
    is_refused(served.connect());
    // Another address has the rest.
    let others = share.map(|_| served.connect_from([127, 0, 0, 2]));
    let mut others: Vec<Client> = others.collect();
    others.iter_mut().for_each(begin_call);
    is_refused(served.connect_from([127, 0, 0, 3]));
    others.iter_mut().for_each(end_call);
    // They are idle now, and give way to whoever has no share yet.
    is_refused(served.connect());
    assert!(served.connect_from([127, 0, 0, 3]).is_served());
    busy.iter_mut().for_each(end_call);
    assert!(served.connect().is_served());
}

#[test]
fn the_longest_idle_connection_gives_way() {
    let served = Served::start();
    let mut first = served.connect();
    begin_call(&mut first);
    let mut silent = served.connect();
    silent.stream.write_all(b"GET /hea").unwrap();
    let mut clients = Vec::new();
    // Each asks once and stays: three times as many as there are places.
    for number in 0..3 * MAX_CONNECTIONS {
        let mut client = served.connect_from([127, 0, 0, u8::try_from(1 + number % 3).unwrap()]);
        assert!(client.is_served(), "{number}");
        clients.push(client);
    }
    assert!(silent.is_closed(), "it holds a place with half a head");
    end_call(&mut first);
    let (newest, oldest) = (clients.pop().unwrap(), clients.remove(0));
    let ends = |mut client: Client| {
        // The rest of the first answer.
        while client.stream.read(&mut [0; 4096]).is_ok_and(|len| len > 0) {}
    };
    ends(oldest);
    newest.stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut newest = newest;
    let mut rest = Vec::new();
    let end = newest.stream.read_to_end(&mut rest).unwrap_err();
    assert_eq!(end.kind(), ErrorKind::WouldBlock, "the newest is still there");
    assert_eq!(served.get("/readyz").status, 200);
}

/// Calls that wait have threads of their own, and there are only so many.
#[test]
fn clients_that_are_gone_hold_up_nobody() {
    let served = Served::start();
    let wait = |id, ms| json!({ "method": "bdev_get_bdevs", "id": id, "params": { "name": "none", "timeout": ms } });
    let batch = json!([wait(1, 600_000), wait(2, 600_000)]).to_string();
    let all = (0..MAX_CONNECTIONS)
        .map(|number| served.connect_from([127, 0, 0, 2 + u8::from(number % 2 == 0)]));
    let mut clients: Vec<Client> = all.collect();
    clients.iter_mut().for_each(|client| client.send("POST", "/rpc", &[], &batch));
    // All of them wait by now, as a rule.
    std::thread::sleep(Duration::from_millis(250));
    drop(clients);
    let deadline = Instant::now() + LIMIT;
    while served.get("/metrics").status != 200 {
        assert!(Instant::now() < deadline, "places are not given back");
    }
}

#[test]
fn tokens_cannot_be_tried_fast() {
    let served = Served::start();
    let began = Instant::now();
    let attempts: Vec<u16> = std::thread::scope(|scope| {
        let tries = (0..16).map(|number| {
            let served = &served;
            let header = format!("Authorization: Bearer guess-{number}");
            scope.spawn(move || served.ask("GET", "/metrics", &[&header], "").status)
        });
        let tries: Vec<_> = tries.collect();
        tries.into_iter().map(|attempt| attempt.join().unwrap()).collect()
    });
    assert!(attempts.iter().all(|status| [401, 429].contains(status)), "{attempts:?}");
    let told = attempts.iter().filter(|status| **status == 401).count();
    // Four at a time, each half a second.
    let took = began.elapsed().as_secs_f64();
    assert!(told >= 1 && (told as f64) <= 4.0 * (took / 0.5 + 1.0), "{told} in {took} s");
}

#[test]
fn an_address_with_many_wrong_tokens_is_told_to_wait() {
    let served = Served::start();
    let ask = |token: &str| {
        let header = format!("Authorization: Bearer {token}");
        served.ask("GET", "/metrics", &[&header], "")
    };
    let mut tries = 0;
    let refused = loop {
        let answer = ask(&format!("guess-{tries}"));
        if answer.status == 429 {
            break answer;
        }
        assert_eq!(answer.status, 401);
        tries += 1;
        assert!(tries < 100, "tokens can be tried without end");
    };
    assert!(tries >= 8, "{tries}");
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=4).contains(&wait), "{wait}");
    assert!(refused.body.contains("from this address"), "{}", refused.body);
    // A request without a token is no guess.
    assert_eq!(served.get("/metrics").status, 200);
    assert_eq!(served.get("/healthz").status, 200);
    // Whoever has the token is not locked out.
    assert_eq!(ask(TOKEN).status, 200);
    served.change("bdev_malloc_create", json!({ "name": "M", "num_blocks": 8, "block_size": 512 }));
}

#[test]
fn a_scrape_during_changes_is_whole() {
    let served = Served::start();
    served.export("nqn.2016-06.io.spdk:cnode1");
    let folder = tempfile::tempdir().unwrap();
    let still = whole(&served);
    let (done, mut met) = (AtomicBool::new(false), BTreeSet::new());
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            for round in 0.. {
                if done.load(Ordering::Relaxed) {
                    return round;
                }
                change_and_undo(&served, folder.path(), round);
            }
            unreachable!("there is always another round")
        });
        let begun = Instant::now();
        // As long as it takes on a busy machine to come half way.
        while !changing.is_finished() && not_seen(&met).is_some() && begun.elapsed() < LONG {
            let seen = whole(&served);
            assert!(seen.contains("raceline_bdev_capacity_bytes{bdev_name=\"M0\"}"), "{seen:?}");
            met.insert(seen.difference(&still).cloned().collect::<BTreeSet<String>>());
        }
        done.store(true, Ordering::Relaxed);
        assert!(changing.join().unwrap() > 0);
    });
    assert_eq!(not_seen(&met), None, "all scrapes came before or after: {met:?}");
}

/// How long it may take to see all that [`not_seen`] looks for.
const LONG: Duration = Duration::from_secs(120);

/// What was in all scrapes of a daemon that changes, or in none: what is made in one round, and goes at its end, is seen in parts
/// by scrapes that come half way.
fn not_seen(met: &BTreeSet<BTreeSet<String>>) -> Option<&'static str> {
    let kinds = [
        "bdev_metadata",
        "subsystem_metadata",
        "listener_connections",
        "disk_metadata",
        "host_connection_state",
    ];
    let is_partly = |kind: &&str| {
        let start = format!("raceline_{kind}{{");
        let is_there = |seen: &&BTreeSet<String>| seen.iter().any(|one| one.starts_with(&start));
        let with = met.iter().filter(is_there).count();
        0 < with && with < met.len()
    };
    match kinds.into_iter().find(|kind| !is_partly(kind)) {
        None if met.len() <= kinds.len() => Some("more than one kind of series for each"),
        missing => missing,
    }
}

/// A device, a disk, a subsystem, a namespace, a host and a listener come and go.
fn change_and_undo(served: &Served, folder: &std::path::Path, round: usize) {
    let nqn = format!("nqn.2016-06.io.spdk:more{round}");
    let host = format!("nqn.2014-08.org.example:h{round}");
    for name in ["N", "V"] {
        served.change(
            "bdev_malloc_create",
            json!({ "name": name, "num_blocks": 8, "block_size": 512 }),
        );
    }
    let socket = folder.join(format!("{round}.sock"));
    served.change("vhost_create_blk_controller", json!({ "ctrlr": socket, "dev_name": "V" }));
    served.change("nvmf_create_subsystem", json!({ "nqn": nqn }));
    let namespace = json!({ "nqn": nqn, "namespace": { "bdev_name": "N" } });
    served.change("nvmf_subsystem_add_ns", namespace);
    served.change("nvmf_subsystem_add_host", json!({ "nqn": nqn, "host": host }));
    let address =
        json!({ "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": "0" });
    served.change("nvmf_subsystem_add_listener", json!({ "nqn": nqn, "listen_address": address }));
    let listeners = served.change("nvmf_subsystem_get_listeners", json!({ "nqn": nqn }));
    let port = listeners[0]["address"]["trsvcid"].as_str().unwrap();
    drop(crate::counts::connect(port, &nqn, &host));
    served.change("nvmf_subsystem_remove_host", json!({ "nqn": nqn, "host": host }));
    served.change("nvmf_delete_subsystem", json!({ "nqn": nqn }));
    served.change("vhost_delete_controller", json!({ "ctrlr": socket }));
    for name in ["N", "V"] {
        served.change("bdev_malloc_delete", json!({ "name": name }));
    }
}

/// The series of a scrape, which is whole: it ends as it has to, each series is there once, and each sample stands below
/// the declaration of its family, with a number as its value.
fn whole(served: &Served) -> BTreeSet<String> {
    let accept = "Accept: application/openmetrics-text;version=1.0.0";
    let text = served.ask("GET", "/metrics", &[accept], "").body;
    let samples = text.strip_suffix("# EOF\n").unwrap_or_else(|| panic!("no end: {text}"));
    let (mut all, mut families, mut suffixes) = (BTreeSet::new(), BTreeSet::new(), &[""][..]);
    let mut family = "";
    for line in samples.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(families.insert(name), "{name} is declared twice");
            family = name;
            suffixes = match kind {
                "counter" => &["_total"],
                "gauge" => &[""],
                "histogram" => &["_bucket", "_sum", "_count"],
                other => panic!("{name} is a {other}"),
            };
        } else if !line.starts_with("# HELP ") {
            let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
            let name = series.split('{').next().unwrap_or_default();
            let suffix = name.strip_prefix(family).unwrap_or("?");
            assert!(suffixes.contains(&suffix), "{line} does not belong to {family}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(all.insert(series.to_owned()), "{series} is there twice");
        }
    }
    assert!(families.len() > 100, "{}", families.len());
    all
}
