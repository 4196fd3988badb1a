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

/// Disks of virtual machines by absolute paths: this daemon listens nowhere.
#[test]
fn a_disk_of_a_virtual_machine_lives_with_its_device_and_comes_back_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vm1.sock");
    let ctrlr = path.to_str().unwrap();
    let state = dir.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let daemon = Kept::start(&state);
    let change = |method, params| daemon.call(method, params).unwrap();
    let fails = |method, params, why: &str| {
        let error = daemon.call(method, params).unwrap_err();
        assert!(error.contains(why), "{method}: {error}");
    };
    let device = |name| json!({ "name": name, "num_blocks": 2048, "block_size": 512 });
    change("bdev_malloc_create", device("M0"));
    change("bdev_malloc_create", device("M1"));
    let disk = json!({ "ctrlr": ctrlr, "dev_name": "M0", "readonly": true });
    assert_eq!(change("vhost_create_blk_controller", disk.clone()), json!(true));
    assert!(path.exists());
    fails("vhost_create_blk_controller", disk, "File exists");
    let other = json!({ "ctrlr": format!("{ctrlr}2"), "dev_name": "M0" });
    fails("vhost_create_blk_controller", other, "used by disk");
    let none = json!({ "ctrlr": format!("{ctrlr}2"), "dev_name": "M9" });
    fails("vhost_create_blk_controller", none, "No such device");
    let packed = json!({ "ctrlr": "x", "dev_name": "M1", "packed_ring": true });
    fails("vhost_create_blk_controller", packed, "packed_ring is not supported");
    let nowhere = json!({ "ctrlr": "../x", "dev_name": "M1" });
    fails("vhost_create_blk_controller", nowhere, "Invalid argument");
    let values = json!({ "ctrlr": ctrlr, "delay_base_us": 100, "iops_threshold": 60000 });
    change("vhost_controller_set_coalescing", values);
    let known = change("vhost_get_controllers", json!({ "name": ctrlr }));
    assert_eq!(known[0]["backend_specific"]["block"]["bdev"], "M0");
    assert_eq!(known[0]["backend_specific"]["block"]["readonly"], true);
    assert_eq!((&known[0]["delay_base_us"], &known[0]["socket"]), (&json!(100), &json!(ctrlr)));
    fails("vhost_get_controllers", json!({ "name": "none" }), "No such device");
    fails("vhost_delete_controller", json!({ "ctrlr": "none" }), "No such device");
    let before = daemon.picture();
    daemon.kill();

    let daemon = Kept::start(&state);
    assert_eq!(daemon.picture(), before);
    assert_eq!(daemon.call("vhost_get_controllers", json!({})).unwrap(), known);
    // Where the device goes, the disk has gone before.
    daemon.call("bdev_malloc_delete", json!({ "name": "M0" })).unwrap();
    assert_eq!(daemon.call("vhost_get_controllers", json!({})).unwrap(), json!([]));
    assert!(!path.exists());
    let disk = json!({ "ctrlr": ctrlr, "dev_name": "M1" });
    daemon.call("vhost_create_blk_controller", disk).unwrap();
    daemon.call("vhost_delete_controller", json!({ "ctrlr": ctrlr })).unwrap();
    assert!(!path.exists());
    // The device is free again.
    daemon.call("bdev_malloc_delete", json!({ "name": "M1" })).unwrap();
    let before = daemon.picture();
    daemon.kill();
    let daemon = Kept::start(&state);
    assert_eq!(daemon.picture(), before);
    daemon.kill();
}

/// What is refused where no disk of the kernel is made; the step kernel-6.12-ublk makes some.
#[test]
fn disks_of_the_kernel_need_a_target_and_a_driver() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Kept::start(dir.path());
    let fails = |method, params, why: &str| {
        let error = daemon.call(method, params).unwrap_err();
        assert!(error.contains(why), "{method}: {error}");
    };
    let disk = json!({ "bdev_name": "M0", "ublk_id": 1 });
    fails("ublk_start_disk", disk.clone(), "No such device");
    fails("ublk_destroy_target", json!(null), "No such file");
    fails("ublk_stop_disk", json!({ "ublk_id": 1 }), "No such device");
    fails("ublk_get_disks", json!({ "ublk_id": 1 }), "No such device");
    fails("ublk_create_target", json!({ "cpumask": "x" }), "Invalid argument");
    assert_eq!(daemon.call("ublk_get_disks", json!({})).unwrap(), json!([]));
    if std::path::Path::new("/dev/ublk-control").exists() {
        eprintln!("SKIPPED: a target of ublk is refused only where the driver is not there");
    } else {
        let why = daemon.call("ublk_create_target", json!({})).unwrap_err();
        assert!(why.contains("no ublk driver") || why.contains("io_uring"), "{why}");
    }
    daemon.kill();
}

/// What is refused where no disk of the kernel's NBD client is made; the step kernel-6.12-disk makes some.
#[test]
fn disks_by_nbd_need_a_device_and_the_module() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Kept::start(dir.path());
    daemon
        .call("bdev_malloc_create", json!({ "num_blocks": 64, "block_size": 512, "name": "D" }))
        .unwrap();
    let fails = |method, params, why: &str| {
        let error = daemon.call(method, params).unwrap_err();
        assert!(error.contains(why), "{method}: {error}");
    };
    let disk = |device: &str| json!({ "bdev_name": "D", "nbd_device": device });
    for wrong in ["/dev/sda", "/dev/nbd0p1", "nbd0"] {
        fails("nbd_start_disk", disk(wrong), &format!("illegal nbd device {wrong} (-19)"));
        fails("nbd_stop_disk", json!({ "nbd_device": wrong }), "No such device (-19)");
    }
    fails("nbd_start_disk", json!({ "bdev_name": "none" }), "No such device (-19)");
    fails("nbd_get_disks", json!({ "nbd_device": "/dev/nbd7" }), "No such device (-19)");
    fails("get_nbd_disks", json!({ "nbd_device": "/dev/nbd7" }), "nbd_get_disks lists them");
    assert_eq!(daemon.call("nbd_get_disks", json!({})).unwrap(), json!([]));
    if std::path::Path::new("/sys/module/nbd").exists() {
        eprintln!("SKIPPED: a disk of NBD is refused only where the module is not there");
    } else {
        for disk in [disk("/dev/nbd7"), json!({ "bdev_name": "D" })] {
            let why = daemon.call("nbd_start_disk", disk).unwrap_err();
            assert!(why.contains("modprobe nbd"), "{why}");
        }
    }
    // Nothing of it is left: the device is free.
    daemon.call("bdev_malloc_delete", json!({ "name": "D" })).unwrap();
    daemon.kill();
}
