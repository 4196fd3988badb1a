//! The same bytes in any pieces give the same answers.

mod common;

use common::disk::{Disk, Setup};
use common::host::Host;
use common::{Pair, config};
use raceline_iscsi::initiator::InitiatorConfig;

/// A configuration with digests, so every kind of piece is on the wire.
fn digested() -> InitiatorConfig {
    let mut config = config();
    config.wishes.header_digest = true;
    config.wishes.data_digest = true;
    config.wishes.max_data_segment_len = 1024;
    config
}

/// Data segments of at most 600 bytes: padding, and several PDUs for a few blocks.
fn small_segments() -> Setup {
    let mut setup = Setup::default();
    setup.config.max_recv_data_segment_len = 602;
    setup.config.max_burst_len = 1400;
    setup.config.first_burst_len = 1000;
    setup
}

/// A short session of everything: what went each way, and the disk at its end.
fn session(chunk: usize) -> Pair {
    let mut pair = Pair::new(digested(), small_segments(), 16);
    pair.chunk = chunk;
    pair.log_in();
    pair.host.write(0, 1, &[0x5a; 2048], &mut pair.to_target);
    pair.run_well();
    pair.host.read(1, 0, 6, &mut pair.to_target);
    pair.run_well();
    pair.host.command(2, &[0x12, 0, 0, 0, 255, 0], 255, &mut pair.to_target);
    pair.host.read(3, 99, 1, &mut pair.to_target);
    assert!(pair.host.initiator.ping(&mut pair.to_target));
    pair.run_well();
    assert!(pair.host.initiator.send_targets("", &mut pair.to_target));
    pair.run_well();
    assert!(pair.host.initiator.logout(&mut pair.to_target));
    pair.run_well();
    assert_eq!(pair.host.ended.len(), 4);
    assert!(pair.host.logged_out.is_some());
    assert!(pair.disk.data[512..2560] == [0x5a; 2048]);
    assert!(pair.host.buffer(1)[512..2560] == [0x5a; 2048]);
    pair
}

#[test]
fn a_session_in_pieces_of_every_length() {
    let whole = session(usize::MAX);
    for chunk in (1..80).chain([127, 128, 512, 601, 4096]) {
        let pieces = session(chunk);
        // The order in which the ends answer may differ; what each of them says at its end may not.
        assert_eq!(pieces.sent_to_target.len(), whole.sent_to_target.len(), "chunk {chunk}");
        assert_eq!(pieces.sent_to_host.len(), whole.sent_to_host.len(), "chunk {chunk}");
        assert!(pieces.disk.data == whole.disk.data, "chunk {chunk}");
        assert!(pieces.host.buffer(2) == whole.host.buffer(2), "chunk {chunk}");
    }
}

#[test]
fn a_target_takes_its_input_split_anywhere() {
    let whole = session(usize::MAX);
    let input = &whole.sent_to_target;
    for at in 0..=input.len() {
        let mut disk = Disk::new(small_segments(), 16);
        let mut out = Vec::new();
        let (first, second) = input.split_at(at);
        disk.feed(first, &mut out).expect("no fault");
        disk.feed(second, &mut out).expect("no fault");
        assert!(out == whole.sent_to_host, "split at {at}");
        assert!(disk.data == whole.disk.data, "split at {at}");
        assert!(disk.closing, "split at {at}");
    }
}

#[test]
fn an_initiator_takes_its_input_split_anywhere() {
    // One command after the login; what the target sent is played again.
    let mut pair = Pair::new(digested(), small_segments(), 16);
    pair.log_in();
    let login_len = pair.sent_to_host.len();
    pair.host.read(1, 0, 6, &mut pair.to_target);
    pair.host.read(3, 99, 1, &mut pair.to_target);
    pair.run_well();
    let (login, commands) = pair.sent_to_host.split_at(login_len);
    for at in 0..=commands.len() {
        let mut host = Host::new(digested());
        let mut out = Vec::new();
        host.initiator.login(&mut out);
        let (first, second) = login.split_at(at.min(login.len()));
        host.feed(first, &mut out).expect("no fault");
        host.feed(second, &mut out).expect("no fault");
        assert!(host.logged_in);
        host.read(1, 0, 6, &mut out);
        host.read(3, 99, 1, &mut out);
        let (first, second) = commands.split_at(at);
        host.feed(first, &mut out).expect("no fault");
        host.feed(second, &mut out).expect("no fault");
        assert!(out == pair.sent_to_target, "split at {at}");
        assert_eq!(host.ended, pair.host.ended, "split at {at}");
    }
}
