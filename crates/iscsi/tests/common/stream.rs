//! Any bytes into either end: nothing panics, memory is bounded, and how the bytes are cut does not matter.

use raceline_iscsi::Violation;

use super::disk::Setup;
use super::{Pair, config};

/// Bit of the setup byte: the stream begins with the login.
pub(crate) const RAW: u8 = 1;

/// Other bits of the setup byte.
mod setup {
    pub(super) const HEADER_DIGEST: u8 = 2;
    pub(super) const DATA_DIGEST: u8 = 4;
    /// Unsolicited data, and reads that end in a response.
    pub(super) const VARIANT: u8 = 8;
    /// Few bytes in a PDU.
    pub(super) const SMALL: u8 = 16;
}

/// Both ends, logged in unless the setup says otherwise.
fn pair(bits: u8) -> Pair {
    let has = |bit: u8| bits & bit != 0;
    let mut host = config();
    host.wishes.header_digest = has(setup::HEADER_DIGEST);
    host.wishes.data_digest = has(setup::DATA_DIGEST);
    let mut setup = Setup { window: 8, responses: has(setup::VARIANT), ..Setup::default() };
    if has(setup::SMALL) {
        setup.config.max_recv_data_segment_len = 1000;
        host.wishes.max_data_segment_len = 700;
        setup.config.first_burst_len = 1024;
        setup.config.max_burst_len = 2048;
    }
    let mut pair = Pair::new(host, setup, 64);
    pair.host.unsolicited = has(setup::VARIANT);
    if !has(RAW) {
        pair.log_in();
        assert!(pair.host.logged_in);
    }
    pair
}

/// What a run has shown: the bytes sent, and what ended it.
type Shown = (Vec<u8>, Option<Violation>);

fn target_run(bits: u8, stream: &[u8], chunk: usize) -> (Shown, Vec<u8>) {
    let mut disk = pair(bits).disk;
    let mut out = Vec::new();
    let mut error = None;
    for piece in stream.chunks(chunk) {
        error = disk.feed(piece, &mut out).err().map(|error| error.violation());
        if error.is_some() || disk.closing {
            break;
        }
    }
    assert!(out.len() <= (1 << 20) + 1000 * stream.len(), "answers without bound");
    assert!(disk.target.live_tasks() <= disk.target.task_slots());
    ((out, error), disk.data)
}

/// Any bytes from an initiator.
///
/// # Panics
/// When the target's end breaks a promise.
pub(crate) fn run_target(bits: u8, stream: &[u8]) {
    let whole = target_run(bits, stream, usize::MAX);
    assert!(whole == target_run(bits, stream, 1), "whole and byte by byte differ");
    assert!(whole == target_run(bits, stream, 100), "whole and in pieces differ");
}

fn initiator_run(bits: u8, stream: &[u8], chunk: usize) -> (Shown, usize) {
    let mut host = pair(bits).host;
    let mut out = Vec::new();
    if host.logged_in {
        host.write(0, 1, &[0x11; 4096], &mut out);
        host.read(1, 0, 16, &mut out);
        host.read(2, 9, 1, &mut out);
        host.initiator.ping(&mut out);
        host.initiator.send_targets("", &mut out);
    } else {
        host.initiator.login(&mut out);
    }
    let mut error = None;
    for piece in stream.chunks(chunk) {
        error = host.feed(piece, &mut out).err().map(|error| error.violation());
        if error.is_some() {
            break;
        }
    }
    assert!(out.len() <= (1 << 20) + 1000 * stream.len(), "requests without bound");
    ((out, error), host.ended.len())
}

/// Any bytes from a target.
///
/// # Panics
/// When the initiator's end breaks a promise.
pub(crate) fn run_initiator(bits: u8, stream: &[u8]) {
    let whole = initiator_run(bits, stream, usize::MAX);
    assert!(whole == initiator_run(bits, stream, 1), "whole and byte by byte differ");
    assert!(whole == initiator_run(bits, stream, 100), "whole and in pieces differ");
}
