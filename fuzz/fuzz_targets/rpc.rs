//! Whatever clients send, the control plane splits, reads and refuses it without a panic.
//! Input: a byte that chooses a method, a byte that says where the stream is cut, then a stream of
//! requests, which also serves as the parameters of the method.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use raceline_control::codec::{Bounds, Splitter};
use raceline_control::manager::{Manager, ManagerConfig};
use raceline_control::method::Registry;
use raceline_control::request::Dispatcher;
use raceline_control::role::{Peer, Role, Via};
use serde_json::value::RawValue;

static REGISTRY: LazyLock<Arc<Registry>> = LazyLock::new(|| Arc::new(Registry::new()));
static MANAGER: LazyLock<Manager> = LazyLock::new(|| {
    let manager = Manager::new(ManagerConfig::default(), REGISTRY.clone());
    manager.start();
    manager
});

/// A client with read-only rights: it changes nothing, so every input meets the same manager.
const PEER: Peer =
    Peer { uid: 1, pid: 1, role: Role::ReadOnly, is_internal: false, via: Via::Socket };

fn answers(stream: &[u8], piece: usize) -> (Vec<String>, bool) {
    let dispatcher = Dispatcher { registry: &REGISTRY, manager: &MANAGER, peer: PEER };
    let mut splitter = Splitter::new(Bounds::REQUEST);
    let mut answers = Vec::new();
    for bytes in stream.chunks(piece) {
        splitter.push(bytes);
        loop {
            match splitter.next_value() {
                Ok(Some(value)) => answers.extend(dispatcher.answer(&value)),
                Ok(None) => break,
                Err(_) => return (answers, true),
            }
        }
    }
    (answers, false)
}

fuzz_target!(|data: &[u8]| {
    let [method, cut, stream @ ..] = data else { return };
    // Such a method waits for a device.
    if stream.windows(7).any(|window| window == b"timeout") {
        return;
    }
    let whole = answers(stream, usize::MAX);
    let pieces = answers(stream, usize::from(*cut).max(1));
    assert_eq!(whole.0.len(), pieces.0.len());
    assert_eq!(whole.1, pieces.1);
    for answer in &whole.0 {
        serde_json::from_str::<serde_json::Value>(answer).expect("every answer is JSON");
    }
    let methods: Vec<&str> = REGISTRY.methods().map(|method| method.name).collect();
    let name = methods[usize::from(*method) % methods.len()];
    if let Ok(params) = serde_json::from_slice::<&RawValue>(stream) {
        let _ = REGISTRY.check(name, Some(params));
    }
});
