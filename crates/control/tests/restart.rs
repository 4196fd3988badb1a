//! A target with a state directory is the same after a restart, whatever changes were made.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use serde_json::json;
use support::Kept;

fn nqn(number: usize) -> String {
    format!("nqn.2026-01.io.raceline:s{number}")
}

#[test]
fn identities_access_and_addresses_survive() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Kept::start(dir.path());
    let change = |method, params| daemon.call(method, params).unwrap();
    change("nvmf_create_transport", json!({ "trtype": "tcp" }));
    for number in 0..3 {
        change("bdev_malloc_create", json!({ "num_blocks": 64, "block_size": 512 }));
        change("nvmf_create_subsystem", json!({ "nqn": nqn(number), "allow_any_host": true }));
        let namespace = json!({ "bdev_name": format!("Malloc{number}") });
        change("nvmf_subsystem_add_ns", json!({ "nqn": nqn(number), "namespace": namespace }));
    }
    change("nvmf_subsystem_allow_any_host", json!({ "nqn": nqn(0), "allow_any_host": false }));
    change("nvmf_subsystem_add_host", json!({ "nqn": nqn(0), "host": "nqn.2014-08.org:h" }));
    let address = json!({ "trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": "0" });
    change("nvmf_subsystem_add_listener", json!({ "nqn": nqn(0), "listen_address": address }));
    change("nvmf_delete_subsystem", json!({ "nqn": nqn(1) }));
    change("nvmf_subsystem_remove_ns", json!({ "nqn": nqn(2), "nsid": 1 }));
    change("bdev_malloc_delete", json!({ "name": "Malloc2" }));
    let before = daemon.picture();
    daemon.kill();
    let daemon = Kept::start(dir.path());
    assert_eq!(daemon.picture(), before);
    // Ends in good order, twice: a start from a configuration file without a log.
    for _ in 0..2 {
        daemon.manager.close_journal().unwrap();
    }
    daemon.kill();
    let daemon = Kept::start(dir.path());
    assert_eq!(daemon.picture(), before);
    daemon.kill();
}

#[test]
fn a_default_target_that_was_deleted_stays_so_and_can_be_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Kept::start(dir.path());
    let name = json!({ "name": "nvmf_tgt" });
    daemon.call("nvmf_delete_target", name.clone()).unwrap();
    daemon.kill();
    let daemon = Kept::start(dir.path());
    assert_eq!(daemon.call("nvmf_get_targets", json!(null)).unwrap(), json!([]));
    daemon.call("nvmf_create_target", name).unwrap();
    daemon.call("nvmf_create_subsystem", json!({ "nqn": nqn(1) })).unwrap();
    let before = daemon.picture();
    daemon.kill();
    let daemon = Kept::start(dir.path());
    assert_eq!(daemon.picture(), before);
    daemon.kill();
}

#[test]
fn random_lives_survive_random_ends() {
    let dir = tempfile::tempdir().unwrap();
    // A linear congruential generator (Knuth, MMIX) is random enough to choose between methods.
    let mut state = 2026u64;
    let mut below = move |limit: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((state >> 33) % limit).unwrap()
    };
    let mut daemon = Kept::start(dir.path());
    let (mut made, mut refused) = (0, 0);
    for _ in 0..400 {
        let (name, nqn) = (format!("m{}", below(6)), nqn(below(4)));
        let host = format!("nqn.2014-08.org:h{}", below(3));
        let result = match below(10) {
            0 | 1 => daemon.call(
                "bdev_malloc_create",
                json!({ "name": name, "num_blocks": 8 + below(99), "block_size": 512 }),
            ),
            2 => daemon.call("bdev_malloc_delete", json!({ "name": name })),
            3 => daemon.call("nvmf_create_subsystem", json!({ "nqn": nqn, "serial_number": name })),
            4 if below(3) == 0 => daemon.call("nvmf_delete_subsystem", json!({ "nqn": nqn })),
            5 | 6 => daemon.call(
                "nvmf_subsystem_add_ns",
                json!({ "nqn": nqn, "namespace": { "bdev_name": name } }),
            ),
            7 => daemon.call("nvmf_subsystem_remove_ns", json!({ "nqn": nqn, "nsid": 1 })),
            8 => daemon.call("nvmf_subsystem_add_host", json!({ "nqn": nqn, "host": host })),
            _ => daemon.call("nvmf_subsystem_remove_host", json!({ "nqn": nqn, "host": host })),
        };
        if result.is_ok() {
            made += 1
        } else {
            refused += 1
        }
        if below(20) == 0 {
            let before = daemon.picture();
            if below(2) == 0 {
                daemon.manager.close_journal().unwrap();
            }
            daemon.kill();
            daemon = Kept::start(dir.path());
            assert_eq!(daemon.picture(), before);
        }
    }
    assert!(made > 100 && refused > 50, "{made} made, {refused} refused");
    daemon.kill();
}
