//! Initiators of iSCSI that break the rules over a socket: the data of a neighbour, and the neighbour's session, are
//! unharmed, and a target that can go on with a session does.
#![allow(clippy::unwrap_used)] // a test

mod common;
#[path = "common/iscsi.rs"]
mod initiator_end;

use std::io::Read as _;
use std::net::SocketAddr;

use common::{PATIENCE, config, eventually, pattern, ram};
use initiator_end::{Heard, Initiator, TARGET, config as initiator, rw};
use raceline_iscsi::names::Name;
use raceline_iscsi::pdu::{TmfFunction, TmfResponseCode};
use raceline_target::{
    InitiatorGroupConfig, LunConfig, PortalGroupConfig, PortalMap, Target, TargetNodeConfig,
};

/// Blocks of a write that is longer than what comes with it unasked, and the first of them.
const BLOCKS: u16 = 768;
const FIRST: u32 = 64;
/// Bytes that come with such a write, unasked.
const IMMEDIATE: usize = 256 << 10;
const BYTES: usize = BLOCKS as usize * 512;
/// Sense of data in a wrong amount or order: ABORTED COMMAND.
const WRONG_AMOUNT: (u8, u8, u8) = (0x0b, 0x0c, 0x0d);
const REJECT: u8 = 0x3f;

/// A target with a disk, and the session of a neighbour, who has written all that the test touches and more.
struct Bed {
    target: Target,
    address: SocketAddr,
    neighbour: Initiator,
}

/// What the neighbour has written, before, at and behind the blocks of the test.
const REGION: (u32, u16) = (FIRST - 32, BLOCKS + 64);

fn before() -> Vec<u8> {
    pattern(99, usize::from(REGION.1) * 512)
}

impl Bed {
    fn new() -> Self {
        let target = Target::start(config(2)).unwrap();
        let iscsi = target.iscsi();
        iscsi.set_initiator_group(InitiatorGroupConfig::any(1)).unwrap();
        let portals = vec!["127.0.0.1:0".parse().unwrap()];
        let address = iscsi.add_portal_group(PortalGroupConfig::new(1, portals)).unwrap()[0];
        let map = PortalMap { portal_group: 1, initiator_group: 1 };
        let luns = vec![LunConfig::new(ram("2M")), LunConfig::new(ram("1M"))];
        let node = TargetNodeConfig { maps: vec![map], luns, ..TargetNodeConfig::new(TARGET) };
        iscsi.add_target_node(node).unwrap();
        let mut neighbour = Initiator::login(address, 50);
        neighbour.write(0, REGION.0, &before()).good();
        Self { target, address, neighbour }
    }

    /// The neighbour finds what it has written, and can go on.
    fn is_unharmed(&mut self, what: &str) {
        assert!(self.neighbour.read(0, REGION.0, REGION.1).good() == before(), "{what}");
        self.neighbour.ping();
    }
}

/// A target that asks for data.
#[derive(Clone, Copy, Debug)]
struct R2t {
    itt: [u8; 4],
    ttt: [u8; 4],
    stat_sn: [u8; 4],
    max_cmd_sn: u32,
    offset: usize,
    len: usize,
}

impl R2t {
    /// Begins a write, and waits until the target asks for the rest of its data.
    fn of_a_write(host: &mut Initiator, data: &[u8]) -> (u16, Self) {
        let slot = host.start(0, &rw(0x2a, FIRST, BLOCKS), 0, data);
        let mut pdu = [0; 48];
        host.stream.read_exact(&mut pdu).unwrap();
        assert_eq!(pdu[0] & 0x3f, 0x31, "an R2T");
        let word = |at: usize| u32::from_be_bytes(pdu[at..at + 4].try_into().unwrap());
        let bytes = |at: usize| pdu[at..at + 4].try_into().unwrap();
        let r2t = Self {
            itt: bytes(16),
            ttt: bytes(20),
            stat_sn: bytes(24),
            max_cmd_sn: word(32),
            offset: word(40) as usize,
            len: word(44) as usize,
        };
        assert_eq!((r2t.offset, r2t.len), (IMMEDIATE, BYTES - IMMEDIATE));
        (slot, r2t)
    }

    /// A Data-Out: its number, where its data belong, and whether it is the last.
    fn data_out(&self, number: u32, offset: usize, data: &[u8], is_last: bool) -> Vec<u8> {
        let mut pdu = vec![0; 48];
        (pdu[0], pdu[1]) = (0x05, if is_last { 0x80 } else { 0 });
        pdu[5..8].copy_from_slice(&u32::try_from(data.len()).unwrap().to_be_bytes()[1..]);
        pdu[16..20].copy_from_slice(&self.itt);
        pdu[20..24].copy_from_slice(&self.ttt);
        pdu[28..32].copy_from_slice(&self.stat_sn);
        pdu[36..40].copy_from_slice(&number.to_be_bytes());
        pdu[40..44].copy_from_slice(&u32::try_from(offset).unwrap().to_be_bytes());
        pdu.extend_from_slice(data);
        pdu
    }
}

#[test]
fn data_that_are_not_what_was_asked_for_fail_their_command_alone() {
    let mut bed = Bed::new();
    let mut host = Initiator::login(bed.address, 1);
    let data = pattern(1, BYTES);
    let longer = pattern(1, BYTES + 4096);
    type Answer<'a> = &'a dyn Fn(&R2t) -> Vec<Vec<u8>>;
    let half = (BYTES - IMMEDIATE) / 2;
    let cases: [(&str, Answer<'_>); 7] = [
        ("too long", &|r2t| vec![r2t.data_out(0, r2t.offset, &longer[IMMEDIATE..], true)]),
        ("too long in its second part", &|r2t| {
            let middle = r2t.offset + half;
            vec![
                r2t.data_out(0, r2t.offset, &longer[r2t.offset..middle], false),
                r2t.data_out(1, middle, &longer[middle..], true),
            ]
        }),
        ("too short", &|r2t| {
            vec![r2t.data_out(0, r2t.offset, &data[r2t.offset..BYTES - 512], true)]
        }),
        ("without an end", &|r2t| vec![r2t.data_out(0, r2t.offset, &data[r2t.offset..], false)]),
        ("at the place of the neighbour", &|r2t| {
            vec![r2t.data_out(0, BYTES, &data[r2t.offset..], true)]
        }),
        ("a second time before the end", &|r2t| {
            let part = &data[r2t.offset..][..half];
            let twice = [0, 0].map(|number| r2t.data_out(number, r2t.offset, part, false));
            twice.to_vec()
        }),
        ("in the wrong order", &|r2t| {
            let middle = r2t.offset + half;
            vec![
                r2t.data_out(0, middle, &data[middle..], true),
                r2t.data_out(1, r2t.offset, &data[r2t.offset..middle], true),
            ]
        }),
    ];
    for (what, answer) in cases {
        let (slot, r2t) = R2t::of_a_write(&mut host, &data);
        answer(&r2t).iter().for_each(|pdu| host.send(pdu));
        assert_eq!(host.finish(slot).sense, Some(WRONG_AMOUNT), "{what}");
        // The session is as good as before, and no byte of the write has landed.
        host.ping();
        bed.is_unharmed(what);
    }
    host.write(0, FIRST, &data).good();
    assert_eq!(bed.neighbour.read(0, FIRST, BLOCKS).good(), data);
    bed.target.shutdown().unwrap();
}

#[test]
fn data_that_come_again_after_their_command_are_rejected() {
    let mut bed = Bed::new();
    let mut host = Initiator::login(bed.address, 1);
    let data = pattern(1, BYTES);
    let (slot, r2t) = R2t::of_a_write(&mut host, &data);
    let answer = r2t.data_out(0, r2t.offset, &data[r2t.offset..], true);
    host.send(&answer);
    host.finish(slot).good();
    // The neighbour writes, and the data that come twice do not overwrite that.
    bed.neighbour.write(0, REGION.0, &before()).good();
    host.send(&answer);
    let mut pdu = [0; 96];
    host.stream.read_exact(&mut pdu).unwrap();
    assert_eq!(pdu[0] & 0x3f, REJECT);
    assert_eq!(pdu[48..96], answer[..48], "the header that was rejected");
    bed.is_unharmed("twice");
    assert_eq!(bed.target.iscsi().connections().len(), 2);
    bed.target.shutdown().unwrap();
}

#[test]
fn data_that_never_come_hold_nobody_up() {
    let mut bed = Bed::new();
    let data = pattern(1, BYTES);
    // More sessions than the target has buffers for their writes.
    let mut silent: Vec<_> = (1..=24)
        .map(|number| {
            let mut host = Initiator::login(bed.address, number);
            let slot = host.start(0, &rw(0x2a, FIRST, BLOCKS), 0, &data);
            (host, slot)
        })
        .collect();
    // Those who hold buffers leave. The sockets of those who wait for one are not read until they have it.
    silent.drain(..12).for_each(drop);
    eventually("those who have left are gone", || bed.target.iscsi().connections().len() == 13);
    // A command that needs no buffer, and one that waits for one until somebody gives his up.
    bed.neighbour.ping();
    bed.neighbour.test_unit_ready(0).good();
    silent.clear();
    bed.is_unharmed("silence");
    bed.target.shutdown().unwrap();
}

#[test]
fn a_write_that_is_aborted_with_its_data_in_flight_does_not_land() {
    let mut bed = Bed::new();
    let mut host = Initiator::login(bed.address, 1);
    let data = pattern(1, BYTES);
    let half = (BYTES - IMMEDIATE) / 2;
    for function in
        [TmfFunction::AbortTask, TmfFunction::AbortTaskSet, TmfFunction::LogicalUnitReset]
    {
        let (slot, r2t) = R2t::of_a_write(&mut host, &data);
        let middle = r2t.offset + half;
        host.send(&r2t.data_out(0, r2t.offset, &data[r2t.offset..middle], false));
        let named = (function == TmfFunction::AbortTask).then_some(slot);
        assert_eq!(host.manage(function, named), Some(TmfResponseCode::Complete));
        host.proto.forget(slot);
        // The rest was on its way.
        host.send(&r2t.data_out(1, middle, &data[middle..], true));
        host.ping();
        bed.neighbour.test_unit_ready(0);
        bed.is_unharmed(&format!("{function}"));
    }
    host.test_unit_ready(0);
    host.write(0, FIRST, &data).good();
    bed.target.shutdown().unwrap();
}

#[test]
fn commands_beyond_the_window_are_not_executed() {
    let mut bed = Bed::new();
    let mut host = Initiator::login(bed.address, 1);
    let data = pattern(1, BYTES);
    let (slot, r2t) = R2t::of_a_write(&mut host, &data);
    let evil = pattern(7, 512);
    for (tag, cmd_sn) in [
        (0x7001_u32, r2t.max_cmd_sn.wrapping_add(1)),
        (0x7002, r2t.max_cmd_sn.wrapping_add(5000)),
        (0x7003, 0),
    ] {
        let mut pdu = vec![0; 48];
        (pdu[0], pdu[1]) = (0x01, 0xa1); // final, write, simple
        pdu[6..8].copy_from_slice(&512_u16.to_be_bytes());
        pdu[16..20].copy_from_slice(&tag.to_be_bytes());
        pdu[20..24].copy_from_slice(&512_u32.to_be_bytes());
        pdu[24..28].copy_from_slice(&cmd_sn.to_be_bytes());
        pdu[28..32].copy_from_slice(&r2t.stat_sn);
        pdu[32..42].copy_from_slice(&rw(0x2a, REGION.0, 1));
        pdu.extend_from_slice(&evil);
        host.send(&pdu);
    }
    // What is within the window goes on.
    host.send(&r2t.data_out(0, r2t.offset, &data[r2t.offset..], true));
    host.finish(slot).good();
    host.ping();
    assert_eq!(bed.neighbour.read(0, REGION.0, 1).good(), before()[..512]);
    assert_eq!(bed.neighbour.read(0, FIRST, BLOCKS).good(), data);
    bed.target.shutdown().unwrap();
}

#[test]
fn initiators_that_fight_for_one_isid_harm_only_each_other() {
    let mut bed = Bed::new();
    let data = pattern(1, BYTES);
    let mut last: Option<Initiator> = None;
    for round in 0..12 {
        // Each login ends the session before it, whose write waits for its data.
        let mut host = Initiator::login(bed.address, 1);
        if let Some(mut old) = last.take() {
            assert!(matches!(old.listen(), Heard::Closed), "round {round}");
            assert_eq!(host.test_unit_ready(0).sense, Some((6, 0x29, 0x07)), "nexus loss");
        }
        R2t::of_a_write(&mut host, &data);
        bed.is_unharmed("a fight");
        last = Some(host);
    }
    // Another initiator may have the same ISID: it is another initiator port.
    let mut other = initiator(Some(TARGET), 1);
    other.initiator_name = Name::new("iqn.2026-01.io.raceline:another").unwrap();
    let mut other = Initiator::try_login(bed.address, other).unwrap();
    other.test_unit_ready(0).good();
    let last = last.unwrap();
    last.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(bed.target.iscsi().connections().len(), 3);
    bed.is_unharmed("two of one ISID");
    bed.target.shutdown().unwrap();
}

/// Simple random numbers of sufficient quality (SplitMix64: Steele, Lea, Flood, OOPSLA 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> usize {
        usize::try_from(self.next() % limit).unwrap()
    }
}

#[test]
fn any_cdb_on_a_lun_is_answered_beside_a_neighbour_on_another() {
    const COMMANDS: usize = 4000;
    let mut bed = Bed::new();
    let mut host = Initiator::login(bed.address, 1);
    let mut random = Random(5);
    let known = raceline_scsi::cdb::COMMANDS;
    let (mut good, mut refused) = (0, 0);
    for number in 0..COMMANDS {
        let mut cdb: [u8; 16] = std::array::from_fn(|_| random.next().to_le_bytes()[0]);
        if random.below(8) > 0 {
            let row = &known[random.below(known.len() as u64)];
            cdb[0] = row.opcode;
            if let Some(action) = row.service_action {
                cdb[1] = cdb[1] & 0xe0 | action & 0x1f;
            }
        }
        // Mostly small numbers, as most fields have few right values.
        for byte in &mut cdb[1..] {
            if random.below(4) > 0 {
                *byte &= 1 << random.below(8);
            }
        }
        let blocks = random.below(17);
        let (read, data) = match random.below(3) {
            0 => (0, Vec::new()),
            1 => (u32::try_from(blocks * 512 + random.below(3)).unwrap(), Vec::new()),
            _ => (0, pattern(number as u64, blocks * 512 + random.below(3))),
        };
        let answer = host.execute(1, &cdb, read, &data);
        match answer.status {
            0 => good += 1,
            _ => refused += 1,
        }
        if number % 500 == 0 {
            bed.is_unharmed(&format!("{cdb:02x?}"));
        }
    }
    assert!(good > COMMANDS / 50 && refused > COMMANDS / 50, "{good} good, {refused} refused");
    host.ping();
    bed.is_unharmed("any CDB");
    bed.target.shutdown().unwrap();
}
