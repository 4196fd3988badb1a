//! Devices by name: made, listed, deleted; and requests that are refused.

mod support;

use serde_json::{Value, json};
use support::Daemon;

#[test]
fn memory_devices_live_and_die() {
    let daemon = Daemon::started();
    let mut client = daemon.client();
    let uuid = "11111111-2222-4333-8444-555555555555";
    let params = json!({ "name": "M0", "num_blocks": 256, "block_size": 512, "uuid": uuid });
    assert_eq!(client.call("bdev_malloc_create", params.clone()).unwrap(), "M0");
    assert_eq!(
        client.call("bdev_malloc_create", params).unwrap_err(),
        (-17, "File exists".to_owned())
    );
    let nameless = json!({ "num_blocks": 8, "block_size": 4096 });
    assert_eq!(client.call("construct_malloc_bdev", nameless).unwrap(), "Malloc0");
    let bdevs = client.call("bdev_get_bdevs", json!({ "name": uuid })).unwrap();
    assert_eq!((&bdevs[0]["name"], &bdevs[0]["num_blocks"]), (&json!("M0"), &json!(256)));
    assert_eq!(bdevs[0]["product_name"], "Malloc disk");
    let saved = client.call("framework_get_config", json!({ "name": "bdev" })).unwrap();
    assert_eq!(saved.as_array().unwrap().len(), 2);
    assert_eq!(saved[0]["params"]["uuid"], uuid);

    assert_eq!(client.call("bdev_malloc_delete", json!({ "name": "M0" })), Ok(json!(true)));
    let gone = client.call("bdev_malloc_delete", json!({ "name": "M0" })).unwrap_err();
    assert_eq!(gone, (-19, "No such device".to_owned()));
    let events = client.call("notify_get_notifications", json!({ "id": 2 })).unwrap();
    assert_eq!(events, json!([{ "type": "bdev_unregister", "ctx": "M0", "id": 2 }]));
    let saved = client.call("framework_get_config", json!({ "name": "bdev" })).unwrap();
    assert_eq!(saved.as_array().unwrap().len(), 1);
    // The saved call makes the same device again.
    let again = saved[0]["params"].clone();
    client.call("bdev_malloc_delete", json!({ "name": "Malloc0" })).unwrap();
    client.call("bdev_malloc_create", again.clone()).unwrap();
    let saved = client.call("framework_get_config", json!({ "name": "bdev" })).unwrap();
    assert_eq!(saved[0]["params"], again);
}

#[test]
fn bad_devices_are_refused_whole() {
    let daemon = Daemon::started();
    let mut client = daemon.client();
    for (params, code) in [
        (json!({ "num_blocks": 8 }), -32602),
        (json!({ "num_blocks": 8, "block_size": "512" }), -32602),
        (json!({ "num_blocks": 8, "block_size": 512, "colour": 1 }), -32602),
        (json!({ "num_blocks": 8, "block_size": 512, "md_size": 8 }), -32602),
        (json!({ "num_blocks": 0, "block_size": 512 }), -22),
        (json!({ "num_blocks": 8, "block_size": 513 }), -22),
        (json!({ "num_blocks": u64::MAX, "block_size": 512 }), -22),
        (json!({ "num_blocks": 1u64 << 50, "block_size": 512 }), -12),
        (json!({ "name": "a\nb", "num_blocks": 8, "block_size": 512 }), -22),
        (json!({ "name": "", "num_blocks": 8, "block_size": 512 }), -22),
        (json!({ "name": "x".repeat(256), "num_blocks": 8, "block_size": 512 }), -22),
        (json!({ "uuid": "x", "num_blocks": 8, "block_size": 512 }), -32602),
    ] {
        let error = client.call("bdev_malloc_create", params.clone()).unwrap_err();
        assert_eq!(error.0, code, "{params}: {error:?}");
    }
    assert_eq!(client.call("bdev_get_bdevs", Value::Null).unwrap(), json!([]));
    let unsupported = json!({ "num_blocks": 8, "block_size": 512, "dif_type": 1 });
    let error = client.call("bdev_malloc_create", unsupported).unwrap_err();
    assert_eq!(error.1, "parameter dif_type is not supported");
}

#[test]
fn a_device_never_stands_on_itself() {
    let daemon = Daemon::started();
    let mut client = daemon.client();
    let on = |name: &str, base: &str| json!({ "name": name, "base_bdev_name": base });
    let itself = client.call("bdev_passthru_create", on("a", "a")).unwrap_err();
    assert_eq!(itself, (-22, "Invalid argument".to_owned()));
    // Each device waits for the next.
    client.call("bdev_passthru_create", on("a", "b")).unwrap();
    client.call("bdev_passthru_create", on("b", "cp0")).unwrap();
    let round = client.call("bdev_passthru_create", on("c", "a")).unwrap();
    assert_eq!(round, "c", "nothing says yet that cp0 will be a part of c");
    let split = json!({ "base_bdev": "c", "split_count": 2 });
    assert_eq!(client.call("bdev_split_create", split).unwrap_err().0, -32602);
    assert_eq!(client.call("bdev_passthru_create", on("cp0", "a")).unwrap_err().0, -22);
    // A circle of waiting devices gives a finite reason as well, and the name stays taken.
    let missing = client.call("bdev_get_bdevs", json!({ "name": "c" })).unwrap_err();
    assert_eq!(missing.0, -19);
    let taken = json!({ "name": "a", "num_blocks": 8, "block_size": 512 });
    assert_eq!(client.call("bdev_malloc_create", taken).unwrap_err().0, -17);
}
