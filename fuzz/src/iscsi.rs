//! Either end of an iSCSI connection under any bytes: the harness of the tests of `raceline-iscsi`.

#[path = "../../crates/iscsi/tests/common/mod.rs"]
mod common;

/// Any bytes from an initiator: the target's end keeps its promises, and how the bytes are cut does not matter.
pub fn run_target(setup: u8, stream: &[u8]) {
    common::stream::run_target(setup, stream);
}

/// Any bytes from a target: the initiator's end keeps its promises, and how the bytes are cut does not matter.
pub fn run_initiator(setup: u8, stream: &[u8]) {
    common::stream::run_initiator(setup, stream);
}
