//! Host queue against controller queue: reads, in-capsule writes and R2T writes, with every
//! combination of digests and with every alignment.
#![allow(clippy::unwrap_used)] // a test

mod tcp_support;

use raceline_proto::nvme::{CommandId, Cqe, Status};
use raceline_proto::tcp::{ControllerQueueConfig, HostQueueConfig};
use tcp_support::*;

/// All kinds of transfers over one connection.
fn traffic(mut pair: Pair, delivery: Delivery, in_capsule: bool) {
    pair.delivery = delivery;
    let mut random = Random(1);

    // A read in three PDUs and a response; one with SUCCESS.
    let data = random.bytes(1000);
    pair.read_command(8, 1000);
    pair.exchange();
    assert_eq!(pair.commands.len(), 1);
    assert_eq!(pair.commands[0].sgl1.length.get(), 1000);
    assert!(pair.commands[0].uses_sgl());
    pair.c2h_data(8, 0, &data[..4], false, false);
    pair.c2h_data(8, 4, &data[4..900], false, false);
    pair.c2h_data(8, 900, &data[900..], true, false);
    pair.respond(8);
    pair.read_command(9, 4096);
    pair.exchange();
    assert_eq!(pair.host_data[&8], data);
    let data = random.bytes(4096);
    pair.c2h_data(9, 0, &data, true, true);
    pair.exchange();
    assert_eq!(pair.host_data[&9], data);

    // Two writes in their capsules, pipelined.
    if in_capsule {
        let data = [random.bytes(4), random.bytes(4096)];
        pair.write_command(10, &data[0], true);
        pair.write_command(11, &data[1], true);
        pair.exchange();
        assert_eq!(pair.capsule_data.len(), 2);
        for ((sqe, got), (cid, sent)) in
            pair.capsule_data.iter().zip([(10, &data[0]), (11, &data[1])])
        {
            assert_eq!((sqe.cid.get(), got), (cid, sent));
        }
        pair.respond(11);
        pair.respond(10);
        pair.exchange();
    }

    // A write in two R2Ts, one after the other, in several H2CData each; and a short one between.
    let (long, short) = (random.bytes(20_000), random.bytes(12));
    pair.write_command(12, &long, false);
    pair.write_command(13, &short, false);
    pair.exchange();
    pair.r2t(5, 12, 0, 12_000);
    pair.r2t(0, 13, 0, 12);
    pair.exchange();
    assert_eq!(pair.r2ts_done, [5, 0]);
    pair.r2t(5, 12, 12_000, 8_000);
    pair.exchange();
    assert_eq!(pair.r2ts_done, [5, 0, 5]);
    assert_eq!(pair.slot_data[&5], long);
    assert_eq!(pair.slot_data[&0], short);
    pair.respond(12);
    pair.respond(13);
    pair.exchange();

    let completed = |cid| Outcome::Completed(Cqe { cid: CommandId(cid), ..Cqe::default() });
    let mut expected = vec![completed(8), Outcome::Succeeded(CommandId(9))];
    if in_capsule {
        expected.extend([completed(11), completed(10)]);
    }
    expected.extend([completed(12), completed(13)]);
    assert_eq!(pair.outcomes, expected);
}

#[test]
fn transfers_with_every_alignment_and_digest() {
    for pda in 0..=31 {
        for (hdgst, ddgst) in [(false, false), (true, false), (false, true), (true, true)] {
            let host = HostQueueConfig { hpda: pda, hdgst, ddgst, ..host_config() };
            let pair = Pair::new(host, controller_config(), pda);
            assert_eq!(pair.controller.header_digest(), hdgst);
            assert_eq!(pair.host.header_digest(), hdgst);
            assert_eq!(pair.controller.data_digest(), ddgst);
            assert_eq!(pair.host.data_digest(), ddgst);
            // See Framing::data_offset: with these the data begin behind 128, which a controller
            // that asks for no alignment takes for nonsense.
            let in_capsule = pda != 16 && !(pda == 17 && hdgst);
            for delivery in [Delivery::Whole, Delivery::Pieces(1), Delivery::Direct(40)] {
                let pair = Pair::new(host, controller_config(), pda);
                traffic(pair, delivery, in_capsule);
            }
        }
    }
}

#[test]
fn payload_is_aligned_as_the_peer_asks() {
    for pda in 0..=31_u8 {
        for hdgst in [false, true] {
            let alignment = (usize::from(pda) + 1) * 4;
            let host = HostQueueConfig { hpda: pda, hdgst, ..host_config() };
            let mut pair = Pair::new(host, controller_config(), pda);
            let digest = if hdgst { 4 } else { 0 };
            let check = |bytes: &[u8], header: usize| {
                let pdo = usize::from(bytes[3]);
                assert_eq!(pdo % alignment, 0, "PDO {pdo}, alignment {alignment}");
                assert!((header + digest..header + digest + alignment).contains(&pdo));
                assert!(bytes[header + digest..pdo].iter().all(|&b| b == 0), "padding");
                assert_eq!(bytes[pdo..pdo + 8], [0x55; 8]);
                assert_eq!(bytes.len(), pdo + 8);
                assert_eq!(bytes[4..8], u32::try_from(bytes.len()).unwrap().to_le_bytes());
                bytes.len() - 8
            };
            pair.write_command(1, &[0x55; 8], true);
            assert_eq!(check(&pair.to_controller, 72), pair.host.capsule_overhead());
            pair.to_controller.clear();
            pair.c2h_data(1, 0, &[0x55; 8], true, false);
            assert_eq!(check(&pair.to_host, 24), pair.controller.c2h_overhead());
            pair.to_host.clear();
            pair.write_command(2, &[0x55; 8], false);
            pair.to_controller.clear();
            pair.r2t(0, 2, 0, 8);
            pair.deliver_to_host().unwrap();
            assert_eq!(check(&pair.to_controller, 24), pair.host.h2c_overhead());
        }
    }
}

#[test]
fn several_r2ts_of_one_command_are_outstanding() {
    let host = HostQueueConfig { maxr2t: 2, ..host_config() };
    let controller = ControllerQueueConfig { max_h2c_data: 4096, ..controller_config() };
    let mut pair = Pair::new(host, controller, 0);
    assert_eq!(pair.controller.r2t_limit(), 3);
    pair.answer_grants = false;
    let data = Random(2).bytes(30_000);
    pair.write_command(3, &data, false);
    pair.exchange();
    for (slot, offset, len) in [(1, 0, 10_000), (2, 10_000, 5_000), (3, 15_000, 15_000)] {
        pair.r2t(slot, 3, offset, len);
    }
    pair.exchange();
    assert_eq!(pair.grants.len(), 3);
    // Answered out of order: the TTAG names the R2T.
    for index in [1, 0, 2] {
        let grant = pair.grants[index];
        pair.answer(&grant);
    }
    pair.exchange();
    assert_eq!(pair.r2ts_done, [2, 1, 3]);
    assert_eq!(pair.slot_data[&1], data[..10_000]);
    assert_eq!(pair.slot_data[&2][10_000..], data[10_000..15_000]);
    assert_eq!(pair.slot_data[&3][15_000..], data[15_000..]);
}

#[test]
fn a_slot_has_a_new_tag_for_every_r2t() {
    let mut pair = Pair::new(host_config(), controller_config(), 0);
    let mut tags = Vec::new();
    for round in 0..100 {
        pair.write_command(round, &[1; 512], false);
        pair.exchange();
        pair.r2t(7, round, 0, 512);
        pair.exchange();
        tags.push(pair.grants.last().unwrap().ttag);
        pair.respond(round);
        pair.exchange();
    }
    tags.sort_unstable();
    tags.dedup();
    assert_eq!(tags.len(), 100);
    assert!(tags.iter().all(|tag| tag % 8 == 7));
}

#[test]
fn short_success_is_an_error_except_for_fabrics() {
    let mut pair = Pair::new(host_config(), controller_config(), 0);
    pair.read_command(1, 512);
    pair.c2h_data(1, 0, &[7; 256], true, false);
    pair.respond(1);
    pair.exchange();
    let Outcome::Completed(cqe) = pair.outcomes.pop().unwrap() else { panic!("a response") };
    assert_eq!(cqe.status, Status::DATA_TRANSFER_ERROR);
    assert_eq!(pair.host.bytes_received(CommandId(1)), 256);

    // An error may come with fewer bytes; it stays the same error.
    pair.read_command(2, 512);
    pair.exchange();
    let status = Status::LBA_OUT_OF_RANGE;
    let cqe = Cqe { cid: CommandId(2), status, ..Cqe::default() };
    pair.controller.response(&cqe, &mut pair.to_host);
    pair.exchange();
    assert_eq!(pair.outcomes.pop(), Some(Outcome::Completed(cqe)));

    // Authentication Receive: the buffer may be longer than the message.
    pair.host_data.insert(3, vec![0; 512]);
    let direction = raceline_proto::nvme::Direction::ControllerToHost;
    pair.host.command(&sqe(0x7f, 3), direction, 512, false, &mut pair.to_controller);
    pair.c2h_data(3, 0, &[7; 16], true, false);
    pair.respond(3);
    pair.exchange();
    let cqe = Cqe { cid: CommandId(3), ..Cqe::default() };
    assert_eq!(pair.outcomes.pop(), Some(Outcome::Completed(cqe)));
    assert_eq!(pair.host.bytes_received(CommandId(3)), 16);
}

#[test]
fn data_of_a_cancelled_transfer_vanish() {
    let mut pair = Pair::new(host_config(), controller_config(), 0);
    pair.write_command(1, &[9; 2048], false);
    pair.exchange();
    pair.r2t(4, 1, 0, 2048);
    pair.deliver_to_host().unwrap();
    let rest = pair.to_controller.split_off(1000);
    pair.deliver_to_controller().unwrap();
    assert!(pair.controller.payload_wanted().is_some());
    pair.controller.cancel_r2t(4);
    assert_eq!(pair.controller.payload_wanted(), None);
    pair.to_controller = rest;
    pair.write_command(2, &[8; 16], true);
    pair.exchange();
    assert!(pair.r2ts_done.is_empty());
    assert_eq!(pair.capsule_data.last().unwrap().1, [8; 16]);
}

#[test]
fn data_of_a_forgotten_command_vanish() {
    let mut pair = Pair::new(host_config(), controller_config(), 0);
    pair.read_command(1, 2048);
    pair.exchange();
    pair.c2h_data(1, 0, &[9; 2048], true, true);
    let rest = pair.to_host.split_off(1000);
    pair.deliver_to_host().unwrap();
    pair.host.forget(CommandId(1));
    assert_eq!(pair.host.payload_wanted(), None);
    pair.read_command(9, 16); // the same slot, the next generation
    pair.exchange();
    pair.to_host = rest;
    pair.c2h_data(9, 0, &[8; 16], true, true);
    pair.exchange();
    assert_eq!(pair.outcomes, [Outcome::Succeeded(CommandId(9))]);
    assert_eq!(pair.host_data[&9], [8; 16]);
}
