//! Errors that are injected into a remote controller's commands, and a preferred path over a restart.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use raceline_host::blocking::Host;
use raceline_host::{CommandError, HostConfig, HostError};
use raceline_proto::nvme::{HostId, NamespaceId, Nqn, Status};
use serde_json::{Value, json};
use support::{Kept, ok};

const BACK: &str = "nqn.2026-01.io.raceline:back";
const FRONT: &str = "nqn.2026-01.io.raceline:front";
const NSID: NamespaceId = NamespaceId(1);
/// What stands in for the requests' data.
const BLOCK: usize = 512;

fn export(daemon: &Kept, nqn: &str, device: &str, listeners: usize) -> Vec<SocketAddr> {
    let listener = json!({ "trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": "0" });
    let namespace = json!({ "nqn": nqn, "namespace": { "bdev_name": device } });
    ok(daemon.call("nvmf_create_subsystem", json!({ "nqn": nqn, "allow_any_host": true })));
    ok(daemon.call("nvmf_subsystem_add_ns", namespace));
    for _ in 0..listeners {
        let params = json!({ "nqn": nqn, "listen_address": listener });
        ok(daemon.call("nvmf_subsystem_add_listener", params));
    }
    let listed = ok(daemon.call("nvmf_subsystem_get_listeners", json!({ "nqn": nqn })));
    let address = |listener: &Value| {
        let port = listener["address"]["trsvcid"].as_str().unwrap();
        format!("127.0.0.1:{port}").parse().unwrap()
    };
    listed.as_array().unwrap().iter().map(address).collect()
}

/// A daemon that exports memory.
fn back(dir: &std::path::Path, listeners: usize) -> (Kept, Vec<SocketAddr>) {
    let back = Kept::start(dir);
    ok(back.call("nvmf_create_transport", json!({ "trtype": "tcp" })));
    let memory = json!({ "name": "M", "num_blocks": 2048, "block_size": BLOCK });
    ok(back.call("bdev_malloc_create", memory));
    let addresses = export(&back, BACK, "M", listeners);
    (back, addresses)
}

fn attach(address: SocketAddr) -> Value {
    json!({
        "name": "R", "trtype": "tcp", "traddr": address.ip().to_string(),
        "trsvcid": address.port().to_string(), "subnqn": BACK,
    })
}

fn status(result: Result<(), HostError>) -> Result<(), Status> {
    result.map_err(|error| match error {
        HostError::Command(failure) => match failure.error {
            CommandError::Status(status) => status,
            other => panic!("{other}"),
        },
        other => panic!("{other}"),
    })
}

#[test]
fn injected_errors_are_what_hosts_see_and_end() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (back, addresses) = back(dirs[0].path(), 1);
    let front = Kept::start(dirs[1].path());
    ok(front.call("nvmf_create_transport", json!({ "trtype": "tcp" })));
    ok(front.call("bdev_nvme_attach_controller", attach(addresses[0])));
    let at = export(&front, FRONT, "Rn1", 1)[0];
    let nqn = |text: &str| Nqn::new(text).unwrap();
    let host = nqn("nqn.2014-08.org.example:host");
    let host = Host::connect(HostConfig::new(at, nqn(FRONT), host, HostId([7; 16]))).unwrap();
    let read = || {
        let mut buf = [0; BLOCK];
        status(host.read(NSID, 0, &mut buf)).map(|()| buf[0])
    };
    let write = |byte: u8| status(host.write(NSID, 0, &[byte; BLOCK], false));
    let inject = |params: Value| {
        let mut all = json!({ "name": "R" });
        all.as_object_mut().unwrap().extend(params.as_object().unwrap().clone());
        front.call("bdev_nvme_add_error_injection", all)
    };
    write(1).unwrap();

    // A read that is sent, twice; then reads work again.
    ok(inject(json!({ "cmd_type": "io", "opc": 2, "err_count": 2, "sct": 2, "sc": 0x81 })));
    write(2).unwrap();
    for _ in 0..2 {
        assert!(read().unwrap_err().same_code(Status::UNRECOVERED_READ_ERROR));
    }
    assert_eq!(read(), Ok(2));

    // A write that is sent, and executed; and one that is not, which waits.
    ok(inject(json!({ "cmd_type": "io", "opc": 1, "sct": 2, "sc": 0x80 })));
    assert!(write(3).unwrap_err().same_code(Status::WRITE_FAULT));
    assert_eq!(read(), Ok(3));
    let delay_us = 50_000;
    ok(inject(json!({
        "cmd_type": "io", "opc": 1, "do_not_submit": true, "timeout_in_us": delay_us, "sct": 2, "sc": 0x80,
    })));
    let began = Instant::now();
    assert!(write(4).unwrap_err().same_code(Status::WRITE_FAULT));
    assert!(began.elapsed() >= Duration::from_micros(delay_us));
    assert_eq!(read(), Ok(3));

    // What is removed is injected no more; success without an execution is what was asked for.
    ok(inject(json!({ "cmd_type": "io", "opc": 1, "err_count": 1000, "sct": 2, "sc": 0x80 })));
    let removed = json!({ "name": "R", "cmd_type": "io", "opc": 1 });
    ok(front.call("bdev_nvme_remove_error_injection", removed.clone()));
    ok(front.call("bdev_nvme_remove_error_injection", removed));
    write(5).unwrap();
    ok(inject(json!({ "cmd_type": "io", "opc": 1, "do_not_submit": true })));
    write(6).unwrap();
    assert_eq!(read(), Ok(5));

    // Administration: the health log.
    let health = || front.call("bdev_nvme_get_controller_health_info", json!({ "name": "R" }));
    ok(health());
    ok(inject(json!({ "cmd_type": "admin", "opc": 2, "do_not_submit": true, "sc": 6 })));
    assert!(health().unwrap_err().contains("Internal Error"));
    ok(health());

    for wrong in [
        json!({ "cmd_type": "io", "opc": 0x19 }),
        json!({ "cmd_type": "admin", "opc": 6 }),
        json!({ "cmd_type": "both", "opc": 2 }),
        json!({ "cmd_type": "io", "opc": 2, "sct": 8 }),
        json!({ "cmd_type": "io", "opc": 2, "timeout_in_us": 1 }),
        json!({ "cmd_type": "io", "opc": 2, "do_not_submit": true, "timeout_in_us": u64::MAX }),
        json!({ "cmd_type": "io", "opc": 2, "name": "none" }),
    ] {
        inject(wrong.clone()).expect_err(&wrong.to_string());
    }
    assert_eq!(read(), Ok(5));
    host.disconnect();
    front.kill();
    back.kill();
}

#[test]
fn a_preferred_path_is_preferred_after_a_restart() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (back, addresses) = back(dirs[0].path(), 2);
    let front = Kept::start(dirs[1].path());
    for address in &addresses {
        ok(front.call("bdev_nvme_attach_controller", attach(*address)));
    }
    let second = addresses[1].port().to_string();
    let paths = |front: &Kept| {
        let shown = ok(front.call("bdev_nvme_get_io_paths", json!({ "name": "Rn1" })));
        shown["poll_groups"][0]["io_paths"].as_array().unwrap().clone()
    };
    let current = |front: &Kept| {
        let current = |path: &Value| path["current"] == true;
        let found = paths(front).into_iter().find(current)?;
        Some(found["transport"]["trsvcid"].as_str().unwrap().to_owned())
    };
    let is = |path: &Value| path["transport"]["trsvcid"] == *second;
    let cntlid = paths(&front).into_iter().find(is).unwrap()["cntlid"].clone();
    assert_ne!(current(&front), Some(second.clone()));
    let prefer = json!({ "name": "Rn1", "cntlid": cntlid });
    ok(front.call("bdev_nvme_set_preferred_path", prefer));
    assert_eq!(current(&front), Some(second.clone()));
    front.kill();

    let front = Kept::start(dirs[1].path());
    let wait = |is_so: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < deadline, "{:?}", paths(&front));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait(&|| current(&front) == Some(second.clone()));
    // A path that goes is preferred no more.
    let mut gone = attach(addresses[1]);
    gone.as_object_mut().unwrap().remove("subnqn");
    ok(front.call("bdev_nvme_detach_controller", gone));
    wait(&|| current(&front).is_some_and(|port| port != second));
    let config = ok(front.call("framework_get_config", json!({ "name": "bdev" })));
    assert!(!config.to_string().contains("preferred_path"), "{config}");
    front.kill();
    back.kill();
}
