//! The configurations of the targets that read one, in SPDK's form: SPDK's and Raceline's daemon.

use serde_json::{Value, json};

use super::point::Target;
use super::program::{BLOCK_BYTES, HOST_NQN, NAMESPACE_MIB, NQN};

/// In-capsule data of SPDK's tuned target and of Raceline's.
const IN_CAPSULE_BYTES: u32 = 8192;

/// Name of the key for TLS.
const KEY: &str = "tls";

/// Two namespaces in one subsystem, on one listener, over TLS if there is the file of a key.
///
/// SPDK's tuned target differs in options that were likely to help; it is not proved to be its best: no
/// copy between the memory device and the socket, writes of 8 KiB inside their capsules as Raceline has
/// them, deeper queues, reads ahead from the socket, large socket buffers. Raceline's daemon has the
/// limits of `raceline export`.
pub(super) fn configuration(kind: Target, port: u16, key: Option<&str>) -> Value {
    let block_count = u64::from(NAMESPACE_MIB) * (1 << 20) / u64::from(BLOCK_BYTES);
    let device =
        |name: &str| json!({"name": name, "num_blocks": block_count, "block_size": BLOCK_BYTES});
    let mut memory = device("Memory");
    if kind == Target::RacelineHuge {
        memory["hugepages"] = true.into();
    }
    let namespace = |number: u32, device: &str| {
        let namespace = json!({"nsid": number, "bdev_name": device});
        call("nvmf_subsystem_add_ns", json!({"nqn": NQN, "namespace": namespace}))
    };
    let address = json!({
        "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": port.to_string(),
    });
    let is_open = key.is_none();
    let subsystem = json!({"nqn": NQN, "allow_any_host": is_open, "serial_number": "SIDEBYSIDE"});
    let mut devices =
        vec![call("bdev_malloc_create", memory), call("bdev_null_create", device("Null"))];
    if kind.is_spdk() {
        devices.insert(0, call("bdev_set_options", json!({"bdev_auto_examine": false})));
    }
    let mut listener = json!({"nqn": NQN, "listen_address": address});
    let mut fabric = vec![
        call("nvmf_create_transport", transport(kind)),
        call("nvmf_create_subsystem", subsystem),
        namespace(1, "Memory"),
        namespace(2, "Null"),
    ];
    let mut keys = Vec::new();
    if let Some(path) = key {
        keys.push(call("keyring_file_add_key", json!({"name": KEY, "path": path})));
        let host = json!({"nqn": NQN, "host": HOST_NQN, "psk": KEY});
        fabric.push(call("nvmf_subsystem_add_host", host));
        listener["secure_channel"] = true.into();
    }
    fabric.push(call("nvmf_subsystem_add_listener", listener));
    json!({"subsystems": [
        {"subsystem": "keyring", "config": keys},
        {"subsystem": "sock", "config": sockets(kind, key.is_some())},
        {"subsystem": "bdev", "config": devices},
        {"subsystem": "nvmf", "config": fabric},
    ]})
}

pub(super) fn call(method: &str, params: Value) -> Value {
    json!({"method": method, "params": params})
}

fn sockets(kind: Target, tls: bool) -> Vec<Value> {
    if !kind.is_spdk() {
        return Vec::new();
    }
    let mut calls = vec![call("sock_set_default_impl", json!({"impl_name": "posix"}))];
    if kind == Target::SpdkTuned {
        let options = json!({
            "impl_name": if tls { "ssl" } else { "posix" },
            "enable_recv_pipe": true,
            "recv_buf_size": 4 << 20,
            "send_buf_size": 4 << 20,
        });
        calls.push(call("sock_impl_set_options", options));
    }
    calls
}

fn transport(kind: Target) -> Value {
    match kind {
        Target::Spdk => json!({"trtype": "TCP"}),
        Target::SpdkTuned => json!({
            "trtype": "TCP",
            "zcopy": true,
            "in_capsule_data_size": IN_CAPSULE_BYTES,
            "max_queue_depth": 256,
        }),
        Target::Raceline | Target::RacelineHuge => {
            json!({"trtype": "TCP", "in_capsule_data_size": IN_CAPSULE_BYTES})
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(kind: Target) -> String {
        configuration(kind, 4420, None).to_string()
    }

    #[test]
    fn only_the_tuned_target_of_spdk_has_its_options() {
        for option in ["zcopy", "max_queue_depth", "sock_impl_set_options"] {
            assert!(text(Target::SpdkTuned).contains(option), "{option}");
            for kind in [Target::Spdk, Target::Raceline, Target::RacelineHuge] {
                assert!(!text(kind).contains(option), "{option}");
            }
        }
        assert!(text(Target::Spdk).contains("\"trsvcid\":\"4420\""));
    }

    #[test]
    fn over_tls_nobody_comes_without_the_key() {
        for kind in [Target::Raceline, Target::Spdk, Target::SpdkTuned] {
            let text = configuration(kind, 4420, Some("/tmp/key")).to_string();
            for words in ["\"allow_any_host\":false", "\"psk\":\"tls\"", "\"path\":\"/tmp/key\""] {
                assert!(text.contains(words), "{words}: {text}");
            }
            assert!(text.contains("\"secure_channel\":true"), "{text}");
            assert!(!self::text(kind).contains("secure_channel"));
            let tunes = text.contains("\"impl_name\":\"ssl\"");
            assert_eq!(tunes, kind == Target::SpdkTuned, "{text}");
        }
    }

    #[test]
    fn a_daemon_has_the_capsules_of_export_and_its_own_pages() {
        for kind in [Target::Raceline, Target::RacelineHuge] {
            assert!(text(kind).contains("\"in_capsule_data_size\":8192"));
            assert_eq!(text(kind).contains("hugepages"), kind == Target::RacelineHuge);
            assert!(!text(kind).contains("bdev_set_options"));
        }
        assert!(!text(Target::SpdkTuned).contains("hugepages"));
    }
}
