//! A host queue and a controller queue joined in memory, with drivers that move payload as real
//! ones do.
#![allow(dead_code, unreachable_pub, missing_docs)] // each test uses a part
#![allow(clippy::unwrap_used)] // a test

use std::collections::HashMap;

use raceline_crc32c::crc32c;
use raceline_proto::nvme::{CommandId, Cqe, Direction, Sqe};
use raceline_proto::tcp::{
    ControllerQueue, ControllerQueueConfig, DataDest, Event, FatalError, HostEvent, HostQueue,
    HostQueueConfig, PayloadWanted, R2tGrant,
};

pub const WRITE: u8 = 0x01;
pub const READ: u8 = 0x02;

/// Small and fixed: the same numbers on every run.
pub struct Random(pub u64);

impl Random {
    /// xorshift64*
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `limit`, which is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(limit).unwrap()).unwrap()
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[7]).collect()
    }
}

pub fn sqe(opc: u8, cid: u16) -> Sqe {
    Sqe { opc, cid: cid.into(), ..Sqe::default() }
}

pub fn controller_config() -> ControllerQueueConfig {
    ControllerQueueConfig {
        max_h2c_data: 4096,
        in_capsule_bytes: 4096,
        max_r2t_slots: 8,
        allow_hdgst: true,
        allow_ddgst: true,
    }
}

pub fn host_config() -> HostQueueConfig {
    HostQueueConfig { hpda: 0, hdgst: false, ddgst: false, maxr2t: 0, slots: 8 }
}

/// How bytes get from one end to the other.
#[derive(Clone, Copy, Debug)]
pub enum Delivery {
    /// All at once.
    Whole,
    /// In pieces of at most this many bytes.
    Pieces(usize),
    /// As a driver with a staging buffer of this many bytes does, payload straight into place.
    Direct(usize),
}

/// Receives for one end: calls `event` for every event, copies payload with `place`.
macro_rules! deliver {
    ($queue:expr, $delivery:expr, $bytes:expr, $on_event:expr, $place:expr) => {{
        let mut bytes: &[u8] = $bytes;
        loop {
            let mut input: &[u8] = match $delivery {
                Delivery::Whole => std::mem::take(&mut bytes),
                Delivery::Pieces(max) | Delivery::Direct(max) => {
                    let (piece, rest) = bytes.split_at(max.min(bytes.len()));
                    bytes = rest;
                    piece
                }
            };
            while let Some(event) = $queue.receive(&mut input)? {
                $on_event(event);
            }
            assert!(input.is_empty(), "a queue takes all input");
            if let (Delivery::Direct(_), Some(wanted)) = ($delivery, $queue.payload_wanted()) {
                let len = bytes.len().min(usize::try_from(wanted.len).unwrap());
                let (payload, rest) = bytes.split_at(len);
                bytes = rest;
                $place(wanted, payload);
                $queue.payload_received(len);
                while let Some(event) = $queue.receive(&mut &[][..])? {
                    $on_event(event);
                }
            }
            if bytes.is_empty() {
                break;
            }
        }
        Ok::<(), FatalError>(())
    }};
}

/// How a command ended, as its driver saw it.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// By a response capsule.
    Completed(Cqe),
    /// By C2HData with SUCCESS.
    Succeeded(CommandId),
}

/// The two ends, the bytes in flight, and the data.
pub struct Pair {
    pub host: HostQueue,
    pub controller: ControllerQueue,
    pub delivery: Delivery,
    pub to_controller: Vec<u8>,
    pub to_host: Vec<u8>,
    /// CPDA that the ICResp is changed to: our controller always offers 0.
    pub cpda: u8,
    /// Host's buffers, by CID.
    pub host_data: HashMap<u16, Vec<u8>>,
    /// Data that came in capsules, in order of arrival.
    pub capsule_data: Vec<(Sqe, Vec<u8>)>,
    /// Data that came for R2T slots: buffer per slot, and how many R2Ts have ended.
    pub slot_data: HashMap<u16, Vec<u8>>,
    pub commands: Vec<Sqe>,
    pub r2ts_done: Vec<u16>,
    pub outcomes: Vec<Outcome>,
    pub grants: Vec<R2tGrant>,
    /// Host answers grants by itself.
    pub answer_grants: bool,
    /// Bytes per H2CData; at most MAXH2CDATA.
    pub h2c_piece: u32,
}

impl Pair {
    /// Connected.
    pub fn new(host: HostQueueConfig, controller: ControllerQueueConfig, cpda: u8) -> Self {
        let mut pair = Self {
            host: HostQueue::new(host),
            controller: ControllerQueue::new(controller),
            delivery: Delivery::Whole,
            to_controller: Vec::new(),
            to_host: Vec::new(),
            cpda,
            host_data: HashMap::new(),
            capsule_data: Vec::new(),
            slot_data: HashMap::new(),
            commands: Vec::new(),
            r2ts_done: Vec::new(),
            outcomes: Vec::new(),
            grants: Vec::new(),
            answer_grants: true,
            h2c_piece: controller.max_h2c_data,
        };
        pair.host.ic_req(&mut pair.to_controller);
        pair.exchange();
        pair
    }

    /// Moves bytes both ways until none are left.
    pub fn exchange(&mut self) {
        while !self.to_controller.is_empty() || !self.to_host.is_empty() {
            self.deliver_to_controller().expect("our host is faultless");
            self.deliver_to_host().expect("our controller is faultless");
        }
    }

    pub fn deliver_to_controller(&mut self) -> Result<(), FatalError> {
        let bytes = std::mem::take(&mut self.to_controller);
        let Self { controller, capsule_data, slot_data, .. } = self;
        let (commands, r2ts_done) = (&mut self.commands, &mut self.r2ts_done);
        let mut connected = false;
        let header_or_data = std::cell::RefCell::new((capsule_data, slot_data));
        let write = |dest: DataDest, offset: u32, bytes: &[u8]| {
            let mut places = header_or_data.borrow_mut();
            let buffer = match dest {
                DataDest::Capsule => &mut places.0.last_mut().unwrap().1,
                DataDest::Slot(slot) => places.1.get_mut(&slot).unwrap(),
            };
            let offset = usize::try_from(offset).unwrap();
            buffer[offset..offset + bytes.len()].copy_from_slice(bytes);
        };
        let check = |dest: DataDest, offset: u32, len: u32, ddgst: Option<u32>| {
            let places = header_or_data.borrow();
            let buffer = match dest {
                DataDest::Capsule => &places.0.last().unwrap().1,
                DataDest::Slot(slot) => &places.1[&slot],
            };
            let range = usize::try_from(offset).unwrap()..usize::try_from(offset + len).unwrap();
            if let Some(ddgst) = ddgst {
                assert_eq!(ddgst, crc32c(&buffer[range]), "data digest");
            }
        };
        deliver!(
            controller,
            self.delivery,
            &bytes,
            |event: Event<'_>| match event {
                Event::Connected(_) => connected = true,
                Event::Command { sqe, in_capsule } => {
                    commands.push(sqe);
                    if in_capsule > 0 {
                        let len = usize::try_from(in_capsule).unwrap();
                        header_or_data.borrow_mut().0.push((sqe, vec![0; len]));
                    }
                }
                Event::Data { dest, offset, bytes } => write(dest, offset, bytes),
                Event::DataEnd { dest, offset, len, ddgst, last_pdu } => {
                    check(dest, offset, len, ddgst);
                    if let (DataDest::Slot(slot), true) = (dest, last_pdu) {
                        r2ts_done.push(slot);
                    }
                }
                Event::Terminated(reason) => panic!("terminated: {reason:?}"),
            },
            |wanted: PayloadWanted<DataDest>, bytes: &[u8]| {
                write(wanted.dest, wanted.offset, bytes);
            }
        )?;
        if connected {
            let start = self.to_host.len();
            self.controller.ic_resp(&mut self.to_host);
            self.to_host[start + 10] = self.cpda;
        }
        Ok(())
    }

    pub fn deliver_to_host(&mut self) -> Result<(), FatalError> {
        let bytes = std::mem::take(&mut self.to_host);
        let Self { host, outcomes, grants, .. } = self;
        let first_grant = grants.len();
        let data = std::cell::RefCell::new(&mut self.host_data);
        let write = |cid: CommandId, offset: u32, bytes: &[u8]| {
            let offset = usize::try_from(offset).unwrap();
            let mut data = data.borrow_mut();
            let buffer = data.get_mut(&cid.0).unwrap();
            buffer[offset..offset + bytes.len()].copy_from_slice(bytes);
        };
        deliver!(
            host,
            self.delivery,
            &bytes,
            |event: HostEvent<'_>| match event {
                HostEvent::Connected(_) => {}
                HostEvent::Response(cqe) => outcomes.push(Outcome::Completed(cqe)),
                HostEvent::Data { cid, offset, bytes } => write(cid, offset, bytes),
                HostEvent::DataEnd { cid, offset, len, ddgst, success, .. } => {
                    let range =
                        usize::try_from(offset).unwrap()..usize::try_from(offset + len).unwrap();
                    if let Some(ddgst) = ddgst {
                        assert_eq!(ddgst, crc32c(&data.borrow()[&cid.0][range]), "data digest");
                    }
                    if success {
                        outcomes.push(Outcome::Succeeded(cid));
                    }
                }
                HostEvent::SendData(grant) => grants.push(grant),
                HostEvent::Terminated(reason) => panic!("terminated: {reason:?}"),
            },
            |wanted: PayloadWanted<CommandId>, bytes: &[u8]| {
                write(wanted.dest, wanted.offset, bytes);
            }
        )?;
        if self.answer_grants {
            for index in first_grant..self.grants.len() {
                let grant = self.grants[index];
                self.answer(&grant);
            }
        }
        Ok(())
    }

    /// Sends the data of a grant.
    pub fn answer(&mut self, grant: &R2tGrant) {
        let mut offset = grant.offset;
        let end = grant.offset + grant.len;
        while offset < end {
            let len = self.h2c_piece.min(end - offset);
            let last = offset + len == end;
            self.host.h2c_data(grant, offset, len, last, &mut self.to_controller);
            let data = &self.host_data[&grant.cid.0];
            let range = usize::try_from(offset).unwrap()..usize::try_from(offset + len).unwrap();
            append(&mut self.to_controller, &data[range], self.host.data_digest());
            offset += len;
        }
    }

    /// Host sends a command that reads `len` bytes.
    pub fn read_command(&mut self, cid: u16, len: u32) {
        self.host_data.insert(cid, vec![0; usize::try_from(len).unwrap()]);
        let direction = Direction::ControllerToHost;
        self.host.command(&sqe(READ, cid), direction, len, false, &mut self.to_controller);
    }

    /// Host sends a command that writes `data`.
    pub fn write_command(&mut self, cid: u16, data: &[u8], in_capsule: bool) {
        self.host_data.insert(cid, data.to_vec());
        let len = u32::try_from(data.len()).unwrap();
        let direction = Direction::HostToController;
        let out = &mut self.to_controller;
        self.host.command(&sqe(WRITE, cid), direction, len, in_capsule, out);
        if in_capsule {
            append(out, data, self.host.data_digest());
        }
    }

    /// Controller sends data of a read.
    pub fn c2h_data(&mut self, cid: u16, offset: u32, data: &[u8], last: bool, success: bool) {
        let len = u32::try_from(data.len()).unwrap();
        let out = &mut self.to_host;
        self.controller.c2h_data(CommandId(cid), offset, len, last, success, out);
        append(out, data, self.controller.data_digest());
    }

    /// Controller asks for data.
    pub fn r2t(&mut self, slot: u16, cid: u16, offset: u32, len: u32) {
        let end = usize::try_from(offset + len).unwrap();
        let buffer = self.slot_data.entry(slot).or_default();
        if buffer.len() < end {
            buffer.resize(end, 0);
        }
        self.controller.r2t(slot, CommandId(cid), offset, len, &mut self.to_host);
    }

    /// Controller completes a command with success.
    pub fn respond(&mut self, cid: u16) {
        let cqe = Cqe { cid: CommandId(cid), ..Cqe::default() };
        self.controller.response(&cqe, &mut self.to_host);
    }
}

/// Payload and its digest, as a driver sends them.
pub fn append(out: &mut Vec<u8>, data: &[u8], digest: bool) {
    out.extend_from_slice(data);
    if digest {
        out.extend_from_slice(&crc32c(data).to_le_bytes());
    }
}
