//! Flipped bits: each PDU with data is received once for each bit that can be flipped, and its data
//! digest never matches the received data.
#![allow(clippy::unwrap_used)] // a test

mod tcp_support;

use raceline_crc32c::crc32c;
use raceline_proto::nvme::Direction;
use raceline_proto::tcp::{
    ControllerQueue, Event, HostEvent, HostQueue, HostQueueConfig, R2tGrant,
};
use tcp_support::*;

/// Data of a PDU.
const LEN: usize = 4096;
/// Data and digest.
const PROTECTED: usize = LEN + 4;
/// Total number of random corruptions.
const CORRUPTIONS: usize = 1_000_000;

/// The receiver and the kind of PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    InCapsule,
    H2cData,
    C2hData,
}

const KINDS: [Kind; 3] = [Kind::InCapsule, Kind::H2cData, Kind::C2hData];

/// A connection that carries one PDU repeatedly.
struct Line {
    host: HostQueue,
    controller: ControllerQueue,
    kind: Kind,
    /// Where the PDU is made.
    wire: Vec<u8>,
    cid: u16,
    /// The received data, as a driver would have them.
    received: Vec<u8>,
}

impl Line {
    fn new(kind: Kind) -> Self {
        let config = HostQueueConfig { hdgst: true, ddgst: true, ..host_config() };
        let pair = Pair::new(config, controller_config(), 0);
        let Pair { host, controller, .. } = pair;
        Self { host, controller, kind, wire: Vec::new(), cid: 0, received: vec![0; LEN] }
    }

    /// Makes the PDU; gives where its data begin. Data and digest end it.
    fn make(&mut self, data: &[u8]) -> usize {
        // Eight slots: the others hold their generations.
        self.cid = self.cid.wrapping_add(8);
        let len = u32::try_from(data.len()).unwrap();
        let (write, in_capsule) = (self.kind != Kind::C2hData, self.kind == Kind::InCapsule);
        let direction =
            if write { Direction::HostToController } else { Direction::ControllerToHost };
        let command = sqe(if write { WRITE } else { READ }, self.cid);
        self.wire.clear();
        self.host.command(&command, direction, len, in_capsule, &mut self.wire);
        match self.kind {
            Kind::InCapsule => {}
            Kind::C2hData => {
                self.deliver_command();
                let cid = command.command_id();
                self.controller.c2h_data(cid, 0, len, true, true, &mut self.wire);
            }
            Kind::H2cData => {
                self.deliver_command();
                self.controller.r2t(3, command.command_id(), 0, len, &mut self.wire);
                let grant = self.granted();
                self.host.h2c_data(&grant, 0, len, true, &mut self.wire);
            }
        }
        let start = self.wire.len();
        append(&mut self.wire, data, true);
        start
    }

    /// The command arrives; the wire is free again.
    fn deliver_command(&mut self) {
        let wire = std::mem::take(&mut self.wire);
        let event = self.controller.receive(&mut &wire[..]).unwrap();
        assert!(matches!(event, Some(Event::Command { in_capsule: 0, .. })));
        self.wire = wire;
        self.wire.clear();
    }

    fn granted(&mut self) -> R2tGrant {
        let wire = std::mem::take(&mut self.wire);
        let event = self.host.receive(&mut &wire[..]).unwrap();
        let Some(HostEvent::SendData(grant)) = event else { panic!("{event:?}") };
        self.wire = wire;
        self.wire.clear();
        grant
    }

    /// The PDU arrives; true if its digest is that of its data.
    fn is_good(&mut self) -> bool {
        let wire = std::mem::take(&mut self.wire);
        let mut input = &wire[..];
        let mut verdict = None;
        if self.kind == Kind::C2hData {
            while let Some(event) = self.host.receive(&mut input).unwrap() {
                match event {
                    HostEvent::Data { offset, bytes, .. } => {
                        place(&mut self.received, offset, bytes)
                    }
                    HostEvent::DataEnd { ddgst, .. } => verdict = ddgst,
                    other => panic!("{other:?}"),
                }
            }
        } else {
            while let Some(event) = self.controller.receive(&mut input).unwrap() {
                match event {
                    Event::Command { .. } => {}
                    Event::Data { offset, bytes, .. } => place(&mut self.received, offset, bytes),
                    Event::DataEnd { ddgst, .. } => verdict = ddgst,
                    other => panic!("{other:?}"),
                }
            }
            // The command ends: its slot is free for the next.
            let cid = sqe(WRITE, self.cid).command_id();
            let cqe = raceline_proto::nvme::Cqe { cid, ..Default::default() };
            let mut response = Vec::new();
            self.controller.response(&cqe, &mut response);
            assert!(matches!(
                self.host.receive(&mut &response[..]).unwrap(),
                Some(HostEvent::Response(_))
            ));
        }
        self.wire = wire;
        verdict.expect("a digest came") == crc32c(&self.received)
    }
}

fn place(to: &mut [u8], offset: u32, bytes: &[u8]) {
    let offset = usize::try_from(offset).unwrap();
    to[offset..offset + bytes.len()].copy_from_slice(bytes);
}

#[test]
fn every_single_bit_is_noticed() {
    let data = Random(9).bytes(LEN);
    for kind in KINDS {
        let mut line = Line::new(kind);
        line.make(&data);
        assert!(line.is_good(), "{kind:?}");
        assert!(line.received == data);
        for bit in 0..PROTECTED * 8 {
            let start = line.make(&data);
            line.wire[start + bit / 8] ^= 1 << (bit % 8);
            assert!(!line.is_good(), "{kind:?}: bit {bit}");
        }
        line.make(&data);
        assert!(line.is_good(), "{kind:?}");
    }
}

/// From one flipped bit to many, anywhere in the data and the digest.
#[test]
fn a_million_random_corruptions_are_noticed() {
    let mut random = Random(0x1234_5678_9abc_def1);
    let data = random.bytes(LEN);
    for kind in KINDS {
        let mut line = Line::new(kind);
        for round in 0..CORRUPTIONS / KINDS.len() + 1 {
            let start = line.make(&data);
            for _ in 0..random.below(8) + 1 {
                let bit = random.below(PROTECTED * 8);
                line.wire[start + bit / 8] ^= 1 << (bit % 8);
            }
            let untouched = line.wire[start..start + LEN] == data[..]
                && line.wire[start + LEN..] == crc32c(&data).to_le_bytes();
            assert_eq!(line.is_good(), untouched, "{kind:?}, round {round}");
        }
    }
}
