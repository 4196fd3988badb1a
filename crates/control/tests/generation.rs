//! The generation of the Discovery log never goes back, however a daemon ends.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Kept, ok};

const NQN: &str = "nqn.2026-01.io.raceline:g";
const BEHIND: &str = "nqn.2026-01.io.raceline:behind";

/// How long a test waits for an expected state.
const PATIENCE: Duration = Duration::from_secs(60);

fn generation(daemon: &Kept) -> u64 {
    daemon.manager.cores()[0].generation()
}

/// A daemon with one namespace at a port, behind the one under test.
fn behind(dir: &std::path::Path) -> (Kept, Value) {
    let daemon = Kept::start(dir);
    let address = json!({ "trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": "0" });
    for (method, params) in [
        ("nvmf_create_transport", json!({ "trtype": "tcp" })),
        ("bdev_malloc_create", json!({ "name": "m", "num_blocks": 64, "block_size": 512 })),
        ("nvmf_create_subsystem", json!({ "nqn": BEHIND, "allow_any_host": true })),
        ("nvmf_subsystem_add_listener", json!({ "nqn": BEHIND, "listen_address": address })),
    ] {
        ok(daemon.call(method, params));
    }
    let listeners = ok(daemon.call("nvmf_subsystem_get_listeners", json!({ "nqn": BEHIND })));
    let port = listeners[0]["address"]["trsvcid"].clone();
    (daemon, port)
}

/// Shows or hides the namespace behind, and waits until the daemon in front has seen it.
fn show(back: &Kept, front: &Kept, is_shown: bool) {
    let (method, params) = match is_shown {
        true => {
            ("nvmf_subsystem_add_ns", json!({ "nqn": BEHIND, "namespace": { "bdev_name": "m" } }))
        }
        false => ("nvmf_subsystem_remove_ns", json!({ "nqn": BEHIND, "nsid": 1 })),
    };
    ok(back.call(method, params));
    let deadline = Instant::now() + PATIENCE;
    while front.manager.model().bdevs.find("Nn1").is_some() != is_shown {
        assert!(Instant::now() < deadline, "the change behind is not seen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn it_grows_over_kills_also_when_devices_come_and_go_without_a_change() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (back, port) = behind(dirs[0].path());
    let front = Kept::start(dirs[1].path());
    let attach = json!({
        "name": "N", "trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": port, "subnqn": BEHIND,
    });
    for (method, params) in [
        ("nvmf_create_transport", json!({ "trtype": "tcp" })),
        ("bdev_nvme_attach_controller", attach),
        ("nvmf_create_subsystem", json!({ "nqn": NQN })),
    ] {
        ok(front.call(method, params));
    }
    show(&back, &front, true);
    let namespace = json!({ "nqn": NQN, "namespace": { "bdev_name": "Nn1" } });
    ok(front.call("nvmf_subsystem_add_ns", namespace));
    let mut last = generation(&front);
    front.kill();
    for round in 0..8 {
        let front = Kept::start(dirs[1].path());
        let first = generation(&front);
        assert!(first > last, "{first} after {last} in round {round}");
        for _ in 0..round {
            let before = generation(&front);
            show(&back, &front, false);
            show(&back, &front, true);
            assert!(generation(&front) > before);
        }
        last = generation(&front);
        front.kill();
    }
    back.kill();
}

#[test]
fn a_target_that_is_made_anew_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Kept::start(dir.path());
    let mut last = 0;
    for number in 0..3 {
        ok(daemon.call("nvmf_create_target", json!({ "name": "t" })));
        ok(daemon.call("nvmf_create_transport", json!({ "trtype": "tcp", "tgt_name": "t" })));
        let nqn = format!("{NQN}{number}");
        ok(daemon.call("nvmf_create_subsystem", json!({ "nqn": nqn, "tgt_name": "t" })));
        let now = generation(&daemon);
        assert!(now > last, "{now} after {last}");
        last = now;
        ok(daemon.call("nvmf_delete_target", json!({ "name": "t" })));
    }
    daemon.kill();
}
