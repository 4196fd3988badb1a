//! Hosts see what RPC says of devices: every effect is checked by I/O.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::fs::File;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use raceline_host::HostConfig;
use raceline_host::blocking::Host;
use raceline_proto::nvme::{HostId, NamespaceId, Nqn};
use serde_json::{Value, json};
use support::{Client, Daemon, eventually};

const NQN: &str = "nqn.2016-06.io.spdk:devices";

/// A daemon with a subsystem, and a host that is connected to it.
struct Served {
    daemon: Daemon,
    client: Client,
    host: Host,
}

impl Served {
    /// Exports devices, which the calls make, as namespaces 1, 2 and so on.
    fn new(calls: &[(&str, Value)], names: &[&str]) -> Self {
        let daemon = Daemon::started();
        let mut client = daemon.client();
        for (method, params) in calls {
            client
                .call(method, params.clone())
                .unwrap_or_else(|error| panic!("{method} {error:?}"));
        }
        let address = export(&mut client, NQN, names);
        let host = Host::connect(host_config(address, NQN)).unwrap();
        Self { daemon, client, host }
    }

    fn ok(&mut self, method: &str, params: Value) -> Value {
        let text = format!("{method} {params}");
        self.client.call(method, params).unwrap_or_else(|error| panic!("{text}: {error:?}"))
    }

    fn bdev(&mut self, name: &str) -> Value {
        self.ok("bdev_get_bdevs", json!({ "name": name }))[0].clone()
    }

    fn iostat(&mut self, name: &str) -> Value {
        self.ok("bdev_get_iostat", json!({ "names": [name] }))["bdevs"][0].clone()
    }

    fn read(&self, nsid: u32, slba: u64, len: usize) -> Result<Vec<u8>, raceline_host::HostError> {
        let mut buf = vec![0; len];
        self.host.read(NamespaceId(nsid), slba, &mut buf).map(|()| buf)
    }

    fn write(&self, nsid: u32, slba: u64, byte: u8) {
        self.host.write(NamespaceId(nsid), slba, &[byte; 4096], false).unwrap();
    }

    fn end(self) {
        self.host.disconnect();
        self.daemon.manager.shut_down().unwrap();
    }
}

fn export(client: &mut Client, nqn: &str, names: &[&str]) -> SocketAddr {
    let ok = Ok(json!(true));
    assert_eq!(client.call("nvmf_create_transport", json!({ "trtype": "tcp" })), ok);
    let subsystem = json!({ "nqn": nqn, "allow_any_host": true });
    assert_eq!(client.call("nvmf_create_subsystem", subsystem), ok);
    for name in names {
        let namespace = json!({ "nqn": nqn, "namespace": { "bdev_name": name } });
        client.call("nvmf_subsystem_add_ns", namespace).unwrap();
    }
    let address = json!({ "trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": "0" });
    let listener = json!({ "nqn": nqn, "listen_address": address });
    assert_eq!(client.call("nvmf_subsystem_add_listener", listener), ok);
    let listeners = client.call("nvmf_subsystem_get_listeners", json!({ "nqn": nqn })).unwrap();
    let port = listeners[0]["address"]["trsvcid"].as_str().unwrap();
    format!("127.0.0.1:{port}").parse().unwrap()
}

fn host_config(address: SocketAddr, nqn: &str) -> HostConfig {
    let hostnqn = Nqn::new("nqn.2014-08.org.example:host").unwrap();
    HostConfig::new(address, Nqn::new(nqn).unwrap(), hostnqn, HostId([7; 16]))
}

fn malloc(name: &str) -> (&'static str, Value) {
    let params = json!({ "name": name, "num_blocks": 2048, "block_size": 512 });
    ("bdev_malloc_create", params)
}

#[test]
fn files_grow_and_are_refused_with_a_reason() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("disk");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let create =
        |method, name: &str| (method, json!({ "name": name, "filename": path, "block_size": 512 }));
    let mut served = Served::new(&[create("bdev_aio_create", "aio0")], &["aio0"]);
    served.write(1, 8, 7);
    assert_eq!(std::fs::read(&path).unwrap()[4096..8192], [7; 4096]);
    let bdev = served.bdev("aio0");
    assert_eq!((&bdev["product_name"], &bdev["num_blocks"]), (&json!("AIO disk"), &json!(2048)));
    assert_eq!(bdev["driver_specific"]["aio"]["filename"], path.to_str().unwrap());

    File::options().write(true).open(&path).unwrap().set_len(2 << 20).unwrap();
    assert!(served.read(1, 4000, 512).is_err());
    served.ok("bdev_aio_rescan", json!({ "name": "aio0" }));
    assert_eq!(served.bdev("aio0")["num_blocks"], 4096);
    served.write(1, 4088, 9);
    File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    let call = served.client.call("bdev_aio_rescan", json!({ "name": "aio0" }));
    assert_eq!(call.unwrap_err().0, -16, "data are lost beyond the end");
    let busy = create("bdev_uring_create", "uring0");
    let error = served.client.call(busy.0, busy.1.clone()).unwrap_err();
    assert_eq!(error, (-32603, "Unable to create URING bdev.".to_owned()));
    for (params, code) in [
        (json!({ "name": "x", "filename": "/nonexistent/file" }), -2),
        (json!({ "name": "x", "filename": "/" }), -22),
        (json!({ "name": "aio0", "filename": "/dev/null" }), -17),
        (json!({ "filename": path }), -32602),
    ] {
        assert_eq!(
            served.client.call("bdev_aio_create", params.clone()).unwrap_err().0,
            code,
            "{params}"
        );
    }
    assert_eq!(
        served.client.call("bdev_uring_delete", json!({ "name": "aio0" })).unwrap_err().0,
        -19
    );
    // Deleted in use: its namespace disappears, and the file is free.
    served.ok("bdev_aio_delete", json!({ "name": "aio0" }));
    assert!(served.read(1, 0, 512).is_err());
    served.ok(busy.0, busy.1);
    assert_eq!(served.bdev("uring0")["product_name"], "URING bdev");
    let saved = served.ok("framework_get_config", json!({ "name": "bdev" }));
    assert_eq!(saved[0]["method"], "bdev_uring_create");
    assert_eq!(saved[0]["params"]["uuid"], served.bdev("uring0")["uuid"]);
    served.ok("bdev_uring_rescan", json!({ "name": "uring0" }));
    served.ok("bdev_uring_delete", json!({ "name": "uring0" }));
    served.end();
}

#[test]
fn a_read_only_file_is_not_written() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("disk");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let create = json!({ "name": "ro", "filename": path, "readonly": true });
    let mut served = Served::new(&[("bdev_aio_create", create)], &["ro"]);
    assert_eq!(served.bdev("ro")["supported_io_types"]["write"], false);
    assert!(served.host.write(NamespaceId(1), 0, &[1; 4096], false).is_err());
    assert_eq!(served.read(1, 0, 4096).unwrap(), [0; 4096]);
    served.end();
}

#[test]
fn null_devices_give_zeroes_and_grow() {
    let create = json!({ "name": "Null0", "num_blocks": 2048, "block_size": 512 });
    let mut served = Served::new(&[("bdev_null_create", create)], &["Null0"]);
    served.write(1, 0, 1);
    assert_eq!(served.read(1, 0, 512).unwrap(), [0; 512]);
    let resize = |size: u64| json!({ "name": "Null0", "new_size": size });
    assert_eq!(served.client.call("bdev_null_resize", resize(0)).unwrap_err().0, -22);
    assert_eq!(served.client.call("bdev_null_resize", resize(u64::MAX)).unwrap_err().0, -22);
    served.ok("bdev_null_resize", resize(4));
    assert_eq!(served.read(1, 8191, 512).unwrap(), [0; 512]);
    let saved = served.ok("framework_get_config", json!({ "name": "bdev" }));
    assert_eq!(saved[0]["params"]["num_blocks"], 8192);
    let missing = served.client.call("bdev_null_resize", json!({ "name": "x", "new_size": 1 }));
    assert_eq!(missing.unwrap_err(), (-19, "No such device".to_owned()));
    served.end();
}

#[test]
fn a_split_device_is_its_parts() {
    let calls =
        [malloc("M0"), ("bdev_split_create", json!({ "base_bdev": "M0", "split_count": 4 }))];
    let mut served = Served::new(&calls, &["M0p0", "M0p3"]);
    served.write(1, 0, 1);
    served.write(2, 504, 4);
    assert!(served.read(1, 512, 512).is_err(), "parts end");
    assert_eq!(served.bdev("M0p3")["driver_specific"]["split"]["offset_blocks"], 1536);
    assert_eq!(served.bdev("M0")["claimed"], true);
    let namespace = json!({ "nqn": NQN, "namespace": { "bdev_name": "M0" } });
    assert!(served.client.call("nvmf_subsystem_add_ns", namespace.clone()).is_err());
    let again = json!({ "base_bdev": "M0", "split_count": 2 });
    let error = served.client.call("bdev_split_create", again).unwrap_err();
    assert_eq!(error, (-32602, "Failed to create 2 split bdevs from 'M0': File exists".to_owned()));
    // The whole device has the data that were written to its parts.
    served.ok("bdev_split_delete", json!({ "base_bdev": "M0" }));
    assert!(served.read(1, 0, 512).is_err(), "the namespaces went with the parts");
    served.ok("nvmf_subsystem_add_ns", namespace);
    eventually("the namespace comes", || served.host.namespace(NamespaceId(1)).is_some());
    eventually("it is the whole device", || {
        served.host.namespace(NamespaceId(1)).is_some_and(|info| info.block_count == 2048)
    });
    assert_eq!(served.read(1, 0, 4096).unwrap(), [1; 4096]);
    assert_eq!(served.read(1, 2040, 4096).unwrap(), [4; 4096]);
    let error = served.client.call("bdev_split_delete", json!({ "base_bdev": "M0" })).unwrap_err();
    assert_eq!(error, (-32602, "No such file or directory".to_owned()));
    served.end();
}

#[test]
fn stacked_devices_wait_for_their_base_and_go_with_it() {
    let daemon = Daemon::started();
    let mut client = daemon.client();
    let passthru = json!({ "name": "P0", "base_bdev_name": "M0" });
    assert_eq!(client.call("bdev_passthru_create", passthru.clone()), Ok(json!("P0")));
    assert_eq!(client.call("bdev_error_create", json!({ "base_name": "P0" })), Ok(json!(true)));
    assert_eq!(client.call("bdev_get_bdevs", Value::Null), Ok(json!([])));
    assert_eq!(client.call("bdev_passthru_create", passthru).unwrap_err().0, -17);
    let (method, params) = malloc("M0");
    client.call(method, params.clone()).unwrap();
    let names = |client: &mut Client| -> Vec<String> {
        let bdevs = client.call("bdev_get_bdevs", Value::Null).unwrap();
        let names = bdevs.as_array().unwrap().iter();
        names.map(|bdev| bdev["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&mut client), ["M0", "P0", "EE_P0"]);
    let first = client.call("bdev_get_bdevs", json!({ "name": "EE_P0" })).unwrap();
    // The upper device holds the claim.
    let second = json!({ "name": "P1", "base_bdev_name": "M0" });
    let error = client.call("bdev_passthru_create", second).unwrap_err();
    assert_eq!(error, (-1, "Operation not permitted".to_owned()));
    client.call("bdev_malloc_delete", json!({ "name": "M0" })).unwrap();
    assert!(names(&mut client).is_empty());
    let saved = client.call("framework_get_config", json!({ "name": "bdev" })).unwrap();
    assert_eq!(saved, json!([]), "what was deleted does not come back");
    assert_eq!(first[0]["product_name"], "Error Injection Disk");
    // A call that waits can be undone.
    client.call("bdev_error_create", json!({ "base_name": "M0" })).unwrap();
    client.call("bdev_error_delete", json!({ "name": "EE_M0" })).unwrap();
    client.call(method, params).unwrap();
    assert_eq!(names(&mut client), ["M0"]);
    assert_eq!(client.call("bdev_wait_for_examine", Value::Null), Ok(json!(true)));
    assert_eq!(client.call("bdev_examine", json!({ "name": "M0" })).unwrap_err().0, -22);
}

#[test]
fn devices_are_examined_by_order_if_that_is_wanted() {
    let daemon = Daemon::waiting();
    let mut client = daemon.client();
    let options = json!({ "bdev_io_pool_size": 100, "bdev_io_cache_size": 256 });
    let error = client.call("bdev_set_options", options).unwrap_err();
    assert_eq!(error, (-32602, "Pool size 100 too small for cache size 256".to_owned()));
    let options = json!({ "bdev_auto_examine": false });
    assert_eq!(client.call("bdev_set_options", options), Ok(json!(true)));
    client.call("framework_start_init", Value::Null).unwrap();
    client.call("bdev_passthru_create", json!({ "name": "P", "base_bdev_name": "M" })).unwrap();
    let (method, params) = malloc("M");
    client.call(method, params).unwrap();
    let find = json!({ "name": "P" });
    assert_eq!(client.call("bdev_get_bdevs", find.clone()).unwrap_err().0, -19);
    assert_eq!(client.call("bdev_examine", json!({ "name": "M" })), Ok(json!(true)));
    assert_eq!(client.call("bdev_get_bdevs", find).unwrap()[0]["uuid"].as_str().unwrap().len(), 36);
}

#[test]
fn delays_are_felt_and_changed() {
    let delay = json!({
        "name": "D0", "base_bdev_name": "M0",
        "avg_read_latency": 60_000, "p99_read_latency": 60_000,
        "avg_write_latency": 0, "p99_write_latency": 0,
    });
    let mut served = Served::new(&[malloc("M0"), ("bdev_delay_create", delay)], &["D0"]);
    let time = |served: &Served| {
        let start = Instant::now();
        served.read(1, 0, 512).unwrap();
        start.elapsed()
    };
    assert!(time(&served) >= Duration::from_millis(60));
    for latency_type in ["avg_read", "p99_read"] {
        let update = json!({
            "delay_bdev_name": "D0", "latency_type": latency_type, "latency_us": 2_000_000,
        });
        served.ok("bdev_delay_update_latency", update);
    }
    assert!(time(&served) >= Duration::from_secs(2));
    assert_eq!(served.bdev("D0")["driver_specific"]["delay"]["avg_read_latency"], 2_000_000);
    let saved = served.ok("framework_get_config", json!({ "name": "bdev" }));
    assert_eq!(saved[1]["params"]["p99_read_latency"], 2_000_000);
    let totals = served.iostat("D0");
    assert_eq!(totals["num_read_ops"], 2);
    assert!(totals["max_read_latency_ticks"].as_u64().unwrap() >= 2_000_000_000, "{totals}");
    assert!(totals["min_read_latency_ticks"].as_u64().unwrap() < 2_000_000_000, "{totals}");
    let update = |name: &str| json!({ "delay_bdev_name": name, "latency_type": "avg_read", "latency_us": 1 });
    for name in ["x", "M0"] {
        let error = served.client.call("bdev_delay_update_latency", update(name)).unwrap_err();
        assert_eq!(error, (-32602, "The requested bdev does not exist.".to_owned()));
    }
    served.ok("bdev_delay_delete", json!({ "name": "D0" }));
    assert_eq!(served.bdev("M0")["claimed"], false);
    served.end();
}

#[test]
fn errors_are_injected_counted_and_resumed() {
    let calls = [malloc("M0"), ("bdev_error_create", json!({ "base_name": "M0" }))];
    let mut served = Served::new(&calls, &["EE_M0"]);
    let inject = |io: &str, kind: &str, more: Value| {
        let mut params = json!({ "name": "EE_M0", "io_type": io, "error_type": kind });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        params
    };
    served.ok("bdev_error_inject_error", inject("read", "failure", json!({ "num": 2 })));
    assert!(served.read(1, 0, 512).is_err() && served.read(1, 0, 512).is_err());
    assert!(served.read(1, 0, 512).is_ok());
    assert_eq!(served.iostat("EE_M0")["io_error"]["failed"], 2);

    let corrupt = json!({ "corrupt_offset": 5, "corrupt_value": 1 });
    served.ok("bdev_error_inject_error", inject("write", "corrupt_data", corrupt));
    served.write(1, 0, 2);
    let data = served.read(1, 0, 4096).unwrap();
    assert_eq!((data[5], data[6]), (3, 2));
    let status = json!({ "nvme_sct": 2, "nvme_sc": 0x86 });
    served.ok("bdev_error_inject_error", inject("flush", "nvme_failure", status));
    let error = served.host.flush(NamespaceId(1)).unwrap_err().to_string();
    assert!(error.contains("Access Denied"), "{error}");

    // Requests are held until the test releases them, then done.
    served.ok("bdev_error_inject_error", inject("write", "pending", json!({})));
    let (mut resumer, client) = (served.daemon.client(), &mut served.client);
    client.call("bdev_set_qd_sampling_period", json!({ "name": "EE_M0", "period": 1000 })).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| served.host.write(NamespaceId(1), 0, &[9; 512], false));
        eventually("one request is in flight", || {
            let stat = client.call("bdev_get_iostat", json!({ "name": "EE_M0" })).unwrap();
            stat["bdevs"][0]["queue_depth"] == 1
        });
        assert!(!writer.is_finished());
        resumer.call("bdev_error_resume_pending", json!({ "name": "EE_M0" })).unwrap();
        writer.join().unwrap().unwrap();
    });
    assert_eq!(served.read(1, 0, 512).unwrap(), [9; 512]);
    let stat = served.iostat("EE_M0");
    assert!(stat["io_time"].as_u64().unwrap() > 0 && stat["queue_depth_polling_period"] == 1000);
    served.ok("bdev_set_qd_sampling_period", json!({ "name": "EE_M0", "period": 0 }));
    assert_eq!(served.iostat("EE_M0").get("queue_depth"), None);

    for (params, code) in [
        (inject("read", "corrupt_data", json!({})), -22),
        (inject("read", "failure", json!({ "nvme_sc": 1 })), -22),
        (inject("read", "nvme_failure", json!({})), -22),
        (inject("reed", "failure", json!({})), -32602),
        (json!({ "name": "M0", "io_type": "read", "error_type": "failure" }), -19),
        (json!({ "name": "x", "io_type": "read", "error_type": "failure" }), -19),
    ] {
        let error = served.client.call("bdev_error_inject_error", params.clone()).unwrap_err();
        assert_eq!(error.0, code, "{params}");
    }

    // A device that holds requests can still be deleted.
    served.ok("bdev_error_inject_error", inject("all", "pending", json!({ "num": 5 })));
    served.ok("bdev_set_qd_sampling_period", json!({ "name": "EE_M0", "period": 1000 }));
    let (mut deleter, host) = (served.daemon.client(), &served.host);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| host.read(NamespaceId(1), 0, &mut [0; 512]));
        eventually("the request is in flight", || {
            let stat = deleter.call("bdev_get_iostat", json!({ "name": "EE_M0" })).unwrap();
            stat["bdevs"][0]["queue_depth"] == 1
        });
        assert!(!reader.is_finished());
        deleter.call("bdev_malloc_delete", json!({ "name": "M0" })).unwrap();
        reader.join().unwrap().unwrap();
    });
    served.end();
}

#[test]
fn what_is_done_is_counted() {
    let passthru = json!({ "name": "P0", "base_bdev_name": "M0" });
    let mut served = Served::new(&[malloc("M0"), ("bdev_passthru_create", passthru)], &["P0"]);
    let histogram = json!({ "name": "P0", "enable": true, "opc": "read" });
    served.ok("bdev_enable_histogram", histogram);
    for _ in 0..3 {
        served.write(1, 0, 1);
        served.read(1, 0, 512).unwrap();
    }
    served.host.deallocate(NamespaceId(1), &[(0, 8)]).unwrap();
    for name in ["P0", "M0"] {
        let stat = served.iostat(name);
        let numbers = [
            "bytes_read",
            "num_read_ops",
            "bytes_written",
            "num_write_ops",
            "num_unmap_ops",
            "bytes_unmapped",
        ];
        let numbers = numbers.map(|number| stat[number].as_u64().unwrap());
        assert_eq!(numbers, [1536, 3, 3 * 4096, 3, 1, 4096], "{name}: {stat}");
        assert_eq!(stat["io_error"], json!({}));
    }
    let histogram = served.ok("bdev_get_histogram", json!({ "name": "P0" }));
    use base64::Engine as _;
    let text = histogram["histogram"].as_str().unwrap();
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).unwrap();
    let counts = bytes.chunks(8).map(|count| u64::from_le_bytes(count.try_into().unwrap()));
    assert_eq!(counts.sum::<u64>(), 3);
    let ranges =
        histogram["max_range"].as_u64().unwrap() - histogram["min_range"].as_u64().unwrap();
    assert_eq!(bytes.len() as u64, (ranges + 1) << 7 << 3);
    let borders = json!({ "name": "P0", "borders": [0, 100_000_000] });
    let counts = served.ok("bdev_get_histogram_borders", borders);
    assert_eq!(counts["borders_count"][2], 3);
    assert_eq!(counts["borders_count"][1], 3);

    let whole = served.ok("bdev_get_iostat", Value::Null);
    assert_eq!(whole["bdevs"].as_array().unwrap().len(), 2);
    assert_eq!(whole["tick_rate"], 1_000_000_000);
    let channels = served.ok("bdev_get_iostat", json!({ "names": ["P0"], "per_channel": true }));
    let sum: u64 = channels["channels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["num_read_ops"].as_u64().unwrap())
        .sum();
    assert_eq!((&channels["name"], sum), (&json!("P0"), 3));
    served.ok("bdev_reset_iostat", json!({ "name": "P0" }));
    assert_eq!(served.iostat("P0")["num_read_ops"], 0);
    assert_eq!(served.iostat("M0")["num_read_ops"], 3);
    served.ok("bdev_get_iostat", json!({ "reset_mode": "all" }));
    assert_eq!(served.iostat("M0")["num_read_ops"], 0);

    for (method, params, code) in [
        ("bdev_get_iostat", json!({ "names": ["x"] }), -19),
        ("bdev_get_iostat", json!({ "per_channel": true }), -22),
        ("bdev_reset_iostat", json!({ "name": "x" }), -19),
        ("bdev_enable_histogram", json!({ "name": "x", "enable": true }), -19),
        ("bdev_enable_histogram", json!({ "name": "P0", "enable": true, "opc": "x" }), -32603),
        ("bdev_enable_histogram", json!({ "name": "P0", "enable": true, "granularity": 60 }), -22),
        ("bdev_get_histogram", json!({ "name": "M0" }), -32603),
        ("bdev_get_histogram_borders", json!({ "name": "P0", "borders": [2, 1] }), -32602),
        ("bdev_set_qd_sampling_period", json!({ "name": "x", "period": 1 }), -19),
    ] {
        let error = served.client.call(method, params.clone()).unwrap_err();
        assert_eq!(error.0, code, "{method} {params}: {error:?}");
    }
    served.ok("bdev_enable_histogram", json!({ "name": "P0", "enable": false }));
    let error = served.client.call("bdev_get_histogram", json!({ "name": "P0" })).unwrap_err();
    assert_eq!(error, (-32603, "Bad address".to_owned()));
    served.end();
}

/// The daemon behind; the daemon in front exports its devices again.
struct Behind {
    daemon: Daemon,
    client: Client,
    address: SocketAddr,
}

const BEHIND: &str = "nqn.2016-06.io.spdk:behind";

impl Behind {
    fn new() -> Self {
        let daemon = Daemon::started();
        let mut client = daemon.client();
        let null = json!({ "name": "Null0", "num_blocks": 2048, "block_size": 512 });
        client.call("bdev_null_create", null).unwrap();
        let (method, params) = malloc("M0");
        client.call(method, params).unwrap();
        let address = export(&mut client, BEHIND, &["M0", "Null0"]);
        Self { daemon, client, address }
    }

    fn attach(&self) -> Value {
        json!({
            "name": "Nvme0", "trtype": "tcp", "traddr": "127.0.0.1", "adrfam": "ipv4",
            "trsvcid": self.address.port().to_string(), "subnqn": BEHIND,
            "hdgst": false, "ddgst": true, "prchk_reftag": false,
        })
    }
}

#[test]
fn a_remote_controller_is_exported_again() {
    let mut behind = Behind::new();
    let calls = [
        // Waits for a namespace that is absent.
        ("bdev_passthru_create", json!({ "name": "P", "base_bdev_name": "Nvme0n7" })),
        ("bdev_nvme_set_options", json!({ "keep_alive_timeout_ms": 2000 })),
        ("bdev_nvme_set_options", json!({ "delay_cmd_submit": true })),
        ("bdev_nvme_attach_controller", behind.attach()),
    ];
    let mut served = Served::new(&calls, &["Nvme0n1", "Nvme0n2"]);
    served.write(1, 8, 0x77);
    let direct = Host::connect(host_config(behind.address, BEHIND)).unwrap();
    let mut data = [0; 4096];
    direct.read(NamespaceId(1), 8, &mut data).unwrap();
    assert_eq!(data, [0x77; 4096]);
    let bdev = served.bdev("Nvme0n1");
    assert_eq!((&bdev["product_name"], &bdev["num_blocks"]), (&json!("NVMe disk"), &json!(2048)));
    assert_eq!(bdev["driver_specific"]["nvme"][0]["trid"]["subnqn"], BEHIND);
    assert_eq!(served.iostat("Nvme0n1")["num_write_ops"], 1);

    let listed = served.ok("bdev_nvme_get_controllers", Value::Null);
    assert_eq!(
        (&listed[0]["name"], &listed[0]["ctrlrs"][0]["state"]),
        (&json!("Nvme0"), &json!("enabled"))
    );
    let health = served.ok("bdev_nvme_get_controller_health_info", json!({ "name": "Nvme0" }));
    assert_eq!((&health["traddr"], &health["media_errors"]), (&json!("127.0.0.1"), &json!(0)));
    assert!(health["temperature_celsius"].is_number(), "{health}");
    let cntlid = listed[0]["ctrlrs"][0]["cntlid"].clone();
    served.ok("bdev_nvme_reset_controller", json!({ "name": "Nvme0" }));
    eventually("a new association", || {
        let listed = served.client.call("bdev_nvme_get_controllers", Value::Null).unwrap();
        listed[0]["ctrlrs"][0]["cntlid"] != cntlid && listed[0]["ctrlrs"][0]["state"] == "enabled"
    });
    assert_eq!(served.read(1, 8, 4096).unwrap(), [0x77; 4096]);

    // One namespace grows, one appears, one disappears: hosts in front see it.
    behind.client.call("bdev_null_resize", json!({ "name": "Null0", "new_size": 4 })).unwrap();
    eventually("it grows", || {
        served.host.namespace(NamespaceId(2)).is_some_and(|info| info.block_count == 8192)
    });
    let (method, params) = malloc("M1");
    behind.client.call(method, params).unwrap();
    let seventh = json!({ "nqn": BEHIND, "namespace": { "bdev_name": "M1", "nsid": 7 } });
    behind.client.call("nvmf_subsystem_add_ns", seventh.clone()).unwrap();
    let mut client = served.daemon.client();
    let mut has = |name: &str| client.call("bdev_get_bdevs", json!({ "name": name })).is_ok();
    eventually("what waited is there", || has("Nvme0n7") && has("P"));
    let remove = |nsid: u32| json!({ "nqn": BEHIND, "nsid": nsid });
    behind.client.call("nvmf_subsystem_remove_ns", remove(7)).unwrap();
    eventually("it goes with its base", || !has("Nvme0n7") && !has("P"));
    behind.client.call("nvmf_subsystem_add_ns", seventh).unwrap();
    eventually("and comes back with it", || has("P"));
    behind.client.call("nvmf_subsystem_remove_ns", remove(1)).unwrap();
    eventually("its namespace goes in front too", || {
        served.host.namespace(NamespaceId(1)).is_none() && !has("Nvme0n1")
    });

    served.ok("bdev_nvme_detach_controller", json!({ "name": "Nvme0" }));
    assert!(!has("Nvme0n2") && !has("P"));
    assert_eq!(served.ok("bdev_nvme_get_controllers", Value::Null), json!([]));
    let saved = served.ok("framework_get_config", json!({ "name": "bdev" }));
    let options = json!({ "keep_alive_timeout_ms": 2000, "delay_cmd_submit": true });
    assert_eq!(saved, json!([{ "method": "bdev_nvme_set_options", "params": options }]));
    direct.disconnect();
    served.end();
    behind.daemon.manager.shut_down().unwrap();
}

#[test]
fn a_controller_has_as_many_queues_as_were_asked_for() {
    let behind = Behind::new();
    // This daemon has one core, which takes a queue for each namespace that is exported.
    for (queues, expected) in [(json!(1), 1), (json!(2), 2), (Value::Null, 2)] {
        let daemon = Daemon::started();
        let mut client = daemon.client();
        let mut params = behind.attach();
        params["num_io_queues"] = queues.clone();
        let names = client.call("bdev_nvme_attach_controller", params).unwrap();
        assert_eq!(names, json!(["Nvme0n1", "Nvme0n2"]));
        export(&mut client, NQN, &["Nvme0n1"]);
        let second = json!({ "nqn": NQN, "namespace": { "bdev_name": "Nvme0n2" } });
        let second = client.call("nvmf_subsystem_add_ns", second);
        assert_eq!(1 + u32::from(second.is_ok()), expected, "{queues}: {second:?}");
        daemon.manager.shut_down().unwrap();
    }
    behind.daemon.manager.shut_down().unwrap();
}

#[test]
fn bad_controllers_are_refused_whole() {
    let behind = Behind::new();
    let daemon = Daemon::started();
    let mut client = daemon.client();
    let with = |more: Value| {
        let mut params = behind.attach();
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        params
    };
    let long = "h".repeat(224);
    for (more, code, text) in [
        (json!({ "trtype": "fc" }), -22, "Invalid argument"),
        (json!({ "trtype": "PCIe" }), -32602, "parameter adrfam is not supported"),
        (json!({ "serial": "S1" }), -32602, "parameter serial is not supported"),
        (json!({ "traddr": "x" }), -22, "Invalid argument"),
        (json!({ "trsvcid": "1" }), -5, "Input/output error"),
        (json!({ "subnqn": "" }), -22, "subnqn is no name of a host or a subsystem"),
        (json!({ "hostnqn": long }), -22, "hostnqn is no name of a host or a subsystem"),
        (json!({ "subnqn": "nobody" }), -5, "Input/output error"),
        (json!({ "subnqn": "nqn.2016-06.io.spdk:nobody" }), -5, "Input/output error"),
        (json!({ "max_bdevs": 0 }), -22, "max_bdevs cannot be zero"),
        (json!({ "num_io_queues": 0 }), -22, "num_io_queues out of bounds, min: 1 max: 65536"),
        (json!({ "psk": "key0" }), -126, "Required key not available"),
        (json!({ "prchk_guard": true }), -32602, "parameter prchk_guard is not supported"),
        (json!({ "ctrlr_loss_timeout_sec": -1 }), -22, "Invalid argument"),
        (json!({ "ctrlr_loss_timeout_sec": 2, "reconnect_delay_sec": 3 }), -22, "Invalid argument"),
        (json!({ "colour": 1 }), -32602, "Invalid parameters"),
    ] {
        let error = client.call("bdev_nvme_attach_controller", with(more.clone())).unwrap_err();
        assert_eq!(error, (code, text.to_owned()), "{more}");
    }
    assert_eq!(client.call("bdev_get_bdevs", Value::Null), Ok(json!([])));
    let patient = json!({ "ctrlr_loss_timeout_sec": 9, "reconnect_delay_sec": 3, "max_bdevs": 1 });
    let names = client.call("bdev_nvme_attach_controller", with(patient)).unwrap();
    assert_eq!(names, json!(["Nvme0n1"]));
    let error = client.call("bdev_nvme_attach_controller", behind.attach()).unwrap_err();
    let text = "A controller named Nvme0 already exists with the specified network path";
    assert_eq!(error, (-114, text.to_owned()));
    let error = client.call("bdev_nvme_set_options", json!({})).unwrap_err();
    assert_eq!(error.0, -1);
    for (method, params, code) in [
        ("bdev_nvme_detach_controller", json!({ "name": "x" }), -19),
        ("bdev_nvme_detach_controller", json!({ "name": "Nvme0", "traddr": "10.0.0.1" }), -19),
        ("bdev_nvme_get_controllers", json!({ "name": "x" }), -22),
        ("bdev_nvme_reset_controller", json!({ "name": "x" }), -19),
        ("bdev_nvme_reset_controller", json!({ "name": "Nvme0", "cntlid": 65000 }), -19),
        ("bdev_nvme_get_controller_health_info", json!({ "name": "x" }), -32603),
        ("bdev_malloc_delete", json!({ "name": "Nvme0n1" }), -19),
    ] {
        let error = client.call(method, params.clone()).unwrap_err();
        assert_eq!(error.0, code, "{method} {params}: {error:?}");
    }
    daemon.manager.shut_down().unwrap();
    behind.daemon.manager.shut_down().unwrap();
}
