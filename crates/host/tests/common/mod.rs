//! A small scripted target in a simulated world, and a host core to drive against it.

#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "a test fails by panicking; not every test uses all"
)]

pub mod core;
pub mod proxy;

use std::net::SocketAddr;
use std::time::Duration;

use raceline_host::{
    Command, CommandDone, Controller, ControllerEvent, CorePlace, HostConfig, IoQueueEvent,
    IoQueueSet,
};
use raceline_proto::nvme::fabrics::ConnectWords;
use raceline_proto::nvme::opcode::{admin, fabrics, io};
use raceline_proto::nvme::property::{CAP, CC, CSTS, Capabilities, VS};
use raceline_proto::nvme::rw::BlockRange;
use raceline_proto::nvme::{CommandId, Cqe, HostId, Nqn, QueueId, Sqe, Status};
use raceline_proto::tcp::{ControllerQueue, ControllerQueueConfig, DataDest, Event};
use raceline_reactor::io::{RecvBuffers, SocketId};
use raceline_reactor::{
    BufferPool, Context, Io, IoBuf, Outcome, PoolConfig, SendBatch, SimConfig, SimIo, SimWorld,
    Token, Wait,
};

pub const ADDRESS: &str = "10.0.0.1:4420";
pub const BLOCK: usize = 512;
pub const BLOCKS: usize = 4096;
const IN_CAPSULE: u32 = 4096;
const SLOTS: u16 = 128;

pub fn address() -> SocketAddr {
    ADDRESS.parse().unwrap()
}

pub fn config() -> HostConfig {
    let subnqn = Nqn::new("nqn.2024-01.test:subsystem").unwrap();
    let hostnqn = Nqn::new("nqn.2024-01.test:host").unwrap();
    HostConfig::new(address(), subnqn, hostnqn, HostId([7; 16]))
}

/// How the next I/O command is answered wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    R2tForRead,
    DataForWrite,
    UnknownResponse,
    ResponseTwice,
    ShortSuccess,
    DataBeyondEnd,
    Garbage,
    BadDigest,
    /// Of two C2HData, the one with this number.
    BadDigestOf(usize),
    /// A write larger than the capsule ends with Transient Transport Error before its data.
    EarlyRefusal,
}

/// Something that a host waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    IcResp,
    Connect,
    PropertyGet,
    PropertySet,
    Identify,
    SetFeatures,
    IoConnect,
    Io,
}

type Answer = dyn FnMut(&Sqe) -> Vec<u8>;

/// The bytes that answer a command.
pub struct Raw(pub Box<Answer>);

impl std::fmt::Debug for Raw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Raw")
    }
}

/// What the target does other than its best.
#[derive(Debug, Default)]
pub struct Script {
    pub wrong: Option<Wrong>,
    /// The next read or write of the first I/O queue is answered by these bytes.
    pub raw: Option<Raw>,
    /// Whenever the host has come to this step, these bytes are all that it hears of it.
    pub at: Option<(Step, Vec<u8>)>,
    /// I/O commands are read, never answered.
    pub hold_io: bool,
    pub ignore_keep_alive: bool,
    /// Connects are accepted, ICReq is not answered.
    pub silent: bool,
    /// Refuses to turn flow control off: by status, or by not granting it.
    pub refuse_cattr: bool,
    pub ignore_cattr: bool,
    /// Reads end with SUCCESS, flow control or not.
    pub success_always: bool,
    /// Every connection is closed after this many bytes from us.
    pub close_after: Option<usize>,
    /// Connections are closed as soon as they are accepted.
    pub away: bool,
    pub namespace_blocks: Option<u64>,
    /// Reads are answered by one C2HData, as our target does it, not by two.
    pub whole_reads: bool,
    /// I/O queues that are granted; 4 unless it says so.
    pub queues_granted: Option<u16>,
    /// Connect of the admin queue (false) or of I/O queues (true) is refused with this status.
    pub refuse_connect: Option<(bool, Status)>,
}

/// What has come from the host.
#[derive(Debug, Default)]
pub struct Received {
    pub connects: u32,
    pub flow_off_connects: u32,
    pub keep_alives: u32,
    pub shutdowns: u32,
    pub io: Vec<u8>,
    /// The queue and the first LBA of each.
    pub places: Vec<(u16, u64)>,
    pub terminated: u32,
}

struct Connection {
    socket: SocketId,
    queue: ControllerQueue,
    qid: Option<u16>,
    entries: u16,
    flow_off: bool,
    sqhd: u16,
    out: Vec<u8>,
    batch: Option<Box<SendBatch>>,
    closed: bool,
    sent: usize,
    capsule: Option<(Sqe, Vec<u8>)>,
    transfers: Vec<Option<(Sqe, Vec<u8>)>>,
    events: Vec<CommandId>,
    /// Nothing is answered any more.
    deaf: bool,
    /// It has sent bytes that its queue knows nothing of.
    made_up: bool,
}

/// The target: one subsystem with one namespace, in memory.
pub struct Target {
    io: Box<dyn Io>,
    /// Where it listens.
    pub address: SocketAddr,
    connections: Vec<Connection>,
    pub storage: Vec<u8>,
    pub script: Script,
    pub received: Received,
    cc: u32,
    next_cntlid: u16,
}

impl Target {
    pub fn new(mut io: Box<dyn Io>, address: SocketAddr) -> Self {
        let listener = Token { owner: 0, generation: 0, index: u32::MAX };
        let (_, address) = io.listen(address, listener).unwrap();
        Self {
            io,
            address,
            connections: Vec::new(),
            storage: vec![0; BLOCK * BLOCKS],
            script: Script::default(),
            received: Received::default(),
            cc: 0,
            next_cntlid: 1,
        }
    }

    pub fn turn(&mut self, wait: Wait) {
        let mut done = Vec::new();
        self.io.poll(wait, &mut done).unwrap();
        for completion in done {
            let index = completion.token.index as usize;
            match completion.outcome {
                Outcome::Accepted(Ok((socket, _))) => {
                    if self.script.away {
                        continue;
                    }
                    let socket = self.io.adopt(socket).unwrap();
                    let index = self.connections.len();
                    self.connections.push(Connection::new(socket));
                    self.receive(index, IoBuf::heap(64 << 10));
                }
                Outcome::Received(Ok(count), buffers) if count > 0 => {
                    let input = buffers.staging[..count].to_vec();
                    self.input(index, &input);
                    self.receive(index, buffers.staging);
                }
                Outcome::Received(..) => self.close(index),
                Outcome::Sent(_, mut batch) => {
                    batch.clear();
                    self.connections[index].batch = Some(batch);
                }
                _ => {}
            }
        }
        for index in 0..self.connections.len() {
            self.flush(index);
        }
    }

    fn token(index: usize) -> Token {
        Token { owner: 0, generation: 0, index: u32::try_from(index).unwrap() }
    }

    fn receive(&mut self, index: usize, staging: IoBuf) {
        if !self.connections[index].closed {
            let range = 0..staging.len();
            let buffers = RecvBuffers { payload: None, staging, staging_range: range };
            self.io.recv(self.connections[index].socket, buffers, Self::token(index));
        }
    }

    fn close(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if !std::mem::replace(&mut connection.closed, true) {
            self.io.close(connection.socket, false);
        }
    }

    /// Closes all connections at once.
    pub fn drop_connections(&mut self) {
        (0..self.connections.len()).for_each(|index| self.close(index));
    }

    fn flush(&mut self, index: usize) {
        let limit = self.script.close_after;
        let connection = &mut self.connections[index];
        if connection.closed || connection.batch.is_none() {
            return;
        }
        if let Some(limit) = limit {
            connection.out.truncate(limit.saturating_sub(connection.sent));
            if connection.sent >= limit {
                self.close(index);
                return;
            }
        }
        if connection.out.is_empty() {
            return;
        }
        connection.sent += connection.out.len();
        let len = connection.out.len();
        drop(connection.batch.take());
        let mut batch = SendBatch::new(len, 4);
        batch.push_bytes(&std::mem::take(&mut connection.out));
        self.io.send(connection.socket, batch, Self::token(index));
    }

    fn input(&mut self, index: usize, mut input: &[u8]) {
        loop {
            let connection = &mut self.connections[index];
            if connection.made_up && connection.deaf {
                return;
            }
            let event = match connection.queue.receive(&mut input) {
                Ok(Some(event)) => event,
                Ok(None) => return,
                // What a host says to something that we made up means nothing to our queue.
                Err(_) if connection.made_up => {
                    connection.deaf = true;
                    return;
                }
                Err(error) => panic!("the host broke the protocol: {error}"),
            };
            let step = connection.step(&event);
            if let Some((_, bytes)) = self.script.at.as_ref().filter(|(at, _)| Some(*at) == step) {
                connection.out.extend_from_slice(bytes);
                // Whatever it says next, it is heard no more.
                connection.deaf = true;
            }
            if connection.deaf {
                continue;
            }
            match event {
                Event::Connected(_) if self.script.silent => {}
                Event::Connected(_) => connection.queue.ic_resp(&mut connection.out),
                Event::Command { sqe, in_capsule: 0 } => self.command(index, &sqe, Vec::new()),
                Event::Command { sqe, in_capsule } => {
                    connection.capsule = Some((sqe, vec![0; in_capsule as usize]));
                }
                Event::Data { dest, offset, bytes } => {
                    let (_, data) = connection.transfer(dest).as_mut().unwrap();
                    data[offset as usize..][..bytes.len()].copy_from_slice(bytes);
                }
                Event::DataEnd { dest, offset, len, ddgst, last_pdu } => {
                    let (_, data) = connection.transfer(dest).as_mut().unwrap();
                    let part = &data[offset as usize..][..len as usize];
                    assert!(ddgst.is_none_or(|ddgst| ddgst == raceline_crc32c::crc32c(part)));
                    let all = (offset + len) as usize == data.len();
                    if last_pdu && all {
                        let (sqe, data) = connection.transfer(dest).take().unwrap();
                        self.command(index, &sqe, data);
                    } else if last_pdu && let DataDest::Slot(slot) = dest {
                        // The second half of a large write has an R2T of its own.
                        let (start, end) = (offset + len, u32::try_from(data.len()).unwrap());
                        let cid = connection.transfer(dest).as_ref().unwrap().0.command_id();
                        connection.queue.r2t(slot, cid, start, end - start, &mut connection.out);
                    }
                }
                Event::Terminated(_) => {
                    self.received.terminated += 1;
                    self.close(index);
                    return;
                }
            }
        }
    }

    fn command(&mut self, index: usize, sqe: &Sqe, data: Vec<u8>) {
        let connection = &mut self.connections[index];
        if connection.entries > 0 {
            connection.sqhd = (connection.sqhd + 1) % connection.entries;
        }
        let needs = BlockRange::parse(sqe).block_count as usize * BLOCK;
        if connection.qid == Some(1)
            && matches!(sqe.opc, io::READ | io::WRITE)
            && let Some(mut raw) = self.script.raw.take()
        {
            connection.out.extend((raw.0)(sqe));
            connection.made_up = true;
            return;
        }
        let is_write = connection.qid.is_some_and(|qid| qid > 0)
            && matches!(sqe.opc, io::WRITE | io::COMPARE)
            && data.is_empty();
        if is_write {
            let wrong = self.script.wrong.filter(|_| !self.script.hold_io);
            if wrong == Some(Wrong::DataForWrite) {
                self.answer_wrongly(index, sqe, Wrong::DataForWrite);
                return;
            }
            if wrong == Some(Wrong::EarlyRefusal) {
                self.script.wrong = None;
                self.respond(index, sqe, Status::TRANSIENT_TRANSPORT_ERROR, 0, 0);
                return;
            }
            let slot = connection.transfers.iter().position(Option::is_none).unwrap();
            connection.transfers[slot] = Some((*sqe, vec![0; needs]));
            let len = u32::try_from(needs).unwrap();
            let first = if len > 32768 { len / 2 / 4 * 4 } else { len };
            let slot = u16::try_from(slot).unwrap();
            connection.queue.r2t(slot, sqe.command_id(), 0, first, &mut connection.out);
            return;
        }
        match connection.qid {
            None => self.connect(index, sqe),
            Some(0) => self.admin(index, sqe),
            Some(_) => self.io(index, sqe, &data),
        }
    }

    fn respond(&mut self, index: usize, sqe: &Sqe, status: Status, dw0: u32, dw1: u32) {
        let connection = &mut self.connections[index];
        let sqhd = if connection.flow_off { 0 } else { connection.sqhd };
        let cqe = Cqe { dw0, dw1, sqhd, sqid: QueueId(0), cid: sqe.command_id(), status };
        connection.queue.response(&cqe, &mut connection.out);
    }

    fn connect(&mut self, index: usize, sqe: &Sqe) {
        let words = ConnectWords::parse(sqe);
        self.received.connects += 1;
        let wants_off = words.cattr & 4 != 0;
        self.received.flow_off_connects += u32::from(wants_off);
        if wants_off && self.script.refuse_cattr {
            self.respond(index, sqe, Status::CONNECT_INVALID_PARAMETERS.dnr(), 46, 0);
            return;
        }
        if let Some((of_io, status)) = self.script.refuse_connect
            && of_io != words.qid.is_admin()
        {
            self.respond(index, sqe, status, 0, 0);
            return;
        }
        let connection = &mut self.connections[index];
        connection.qid = Some(words.qid.0);
        connection.entries = words.sqsize + 1;
        connection.flow_off = wants_off && !self.script.ignore_cattr;
        connection.queue.set_queue_kind(words.qid.is_admin());
        if words.qid.is_admin() {
            self.next_cntlid += 1;
            self.cc = 0;
        }
        let sqhd = if connection.flow_off { u16::MAX } else { connection.sqhd };
        let dw0 = u32::from(self.next_cntlid);
        let cqe = Cqe { dw0, sqhd, cid: sqe.command_id(), ..Cqe::default() };
        connection.queue.response(&cqe, &mut connection.out);
    }

    fn admin(&mut self, index: usize, sqe: &Sqe) {
        match (sqe.opc, sqe.fctype()) {
            (fabrics::OPCODE, fabrics::PROPERTY_SET) => {
                assert_eq!(sqe.cdw11.get(), CC);
                self.cc = sqe.cdw12.get();
                self.received.shutdowns += u32::from(self.cc >> 14 & 3 == 1);
                self.respond(index, sqe, Status::SUCCESS, 0, 0);
            }
            (fabrics::OPCODE, _) => {
                let value = match sqe.cdw11.get() {
                    CAP => Capabilities::fabrics(127, 15).0,
                    VS => 0x0001_0400,
                    CSTS => {
                        u64::from(self.cc & 1) | if self.cc >> 14 & 3 != 0 { 2 << 2 } else { 0 }
                    }
                    other => panic!("property {other:x}h"),
                };
                let (low, high) = (value & 0xffff_ffff, value >> 32);
                let word = |value| u32::try_from(value).unwrap();
                self.respond(index, sqe, Status::SUCCESS, word(low), word(high));
            }
            (admin::IDENTIFY, _) => self.identify(index, sqe),
            (admin::SET_FEATURES, _) => {
                let last = u32::from(self.script.queues_granted.unwrap_or(4)) - 1;
                self.respond(index, sqe, Status::SUCCESS, last << 16 | last, 0);
            }
            (admin::KEEP_ALIVE, _) => {
                self.received.keep_alives += 1;
                if !self.script.ignore_keep_alive {
                    self.respond(index, sqe, Status::SUCCESS, 0, 0);
                }
            }
            (admin::ASYNC_EVENT_REQUEST, _) => {
                self.connections[index].events.push(sqe.command_id())
            }
            (admin::GET_LOG_PAGE, _) => self.send_data(index, sqe, &vec![0; 4096], &[]),
            other => panic!("admin command {other:?}"),
        }
    }

    /// Completes an event request: a namespace has changed.
    pub fn announce(&mut self, blocks: u64) {
        self.script.namespace_blocks = Some(blocks);
        let with_event = self.connections.iter().position(|c| !c.closed && !c.events.is_empty());
        let index = with_event.expect("the host keeps an event request outstanding");
        let cid = self.connections[index].events.remove(0);
        let sqe = Sqe { cid: cid.0.into(), ..Sqe::default() };
        self.respond(index, &sqe, Status::SUCCESS, 0x0004_0002, 0);
    }

    fn identify(&mut self, index: usize, sqe: &Sqe) {
        let mut page = vec![0; 4096];
        match sqe.cdw10.get() & 0xff {
            0 => {
                let blocks = self.script.namespace_blocks.unwrap_or(BLOCKS as u64).to_le_bytes();
                page[..8].copy_from_slice(&blocks);
                page[8..16].copy_from_slice(&blocks);
                page[130] = 9;
            }
            1 => {
                page[77] = 5;
                page[78..80].copy_from_slice(&self.next_cntlid.to_le_bytes());
                page[92..96].copy_from_slice(&(1u32 << 8).to_le_bytes());
                page[320] = 10;
                page[516] = 1;
                page[520] = 0xd;
                page[536] = 1;
                page[1792..1796].copy_from_slice(&((IN_CAPSULE + 64) / 16).to_le_bytes());
                page[1796] = 1;
            }
            2 => page[0] = 1,
            _ => {}
        }
        self.send_data(index, sqe, &page, &[]);
    }

    fn io(&mut self, index: usize, sqe: &Sqe, data: &[u8]) {
        self.received.io.push(sqe.opc);
        let qid = self.connections[index].qid.unwrap_or(0);
        self.received.places.push((qid, BlockRange::parse(sqe).slba));
        if self.script.hold_io {
            return;
        }
        let range = BlockRange::parse(sqe);
        let start = usize::try_from(range.slba).unwrap() * BLOCK;
        let end = start + range.block_count as usize * BLOCK;
        if let Some(wrong) = self.script.wrong.filter(|_| sqe.opc == io::READ) {
            self.answer_wrongly(index, sqe, wrong);
            return;
        }
        match sqe.opc {
            _ if sqe.opc != io::FLUSH && end > self.storage.len() => {
                self.respond(index, sqe, Status::LBA_OUT_OF_RANGE.dnr(), 0, 0);
            }
            io::READ => {
                let data = self.storage[start..end].to_vec();
                self.send_data(index, sqe, &data, &[]);
            }
            io::WRITE => {
                self.storage[start..end].copy_from_slice(data);
                self.respond(index, sqe, Status::SUCCESS, 0, 0);
            }
            io::FLUSH => self.respond(index, sqe, Status::SUCCESS, 0, 0),
            other => panic!("I/O command {other:x}h"),
        }
    }

    /// Sends data in two PDUs, and the completion in the last of them where that is allowed.
    fn send_data(&mut self, index: usize, sqe: &Sqe, data: &[u8], spoiled: &[usize]) {
        let connection = &mut self.connections[index];
        let cid = sqe.command_id();
        let half = if self.script.whole_reads { 0 } else { data.len() / 8 * 4 };
        let success = connection.flow_off || self.script.success_always;
        let parts = [(0, &data[..half], false), (half, &data[half..], true)];
        for (index, (offset, part, last)) in parts.into_iter().enumerate() {
            if part.is_empty() {
                continue;
            }
            let (offset, len) =
                (u32::try_from(offset).unwrap(), u32::try_from(part.len()).unwrap());
            connection.queue.c2h_data(cid, offset, len, last, last && success, &mut connection.out);
            connection.out.extend_from_slice(part);
            if connection.queue.data_digest() {
                let digest = raceline_crc32c::crc32c(part) ^ u32::from(spoiled.contains(&index));
                connection.out.extend_from_slice(&digest.to_le_bytes());
            }
        }
        if !success {
            self.respond(index, sqe, Status::SUCCESS, 0, 0);
        }
    }

    fn answer_wrongly(&mut self, index: usize, sqe: &Sqe, wrong: Wrong) {
        self.script.wrong = None;
        let connection = &mut self.connections[index];
        let cid = sqe.command_id();
        let len = BlockRange::parse(sqe).block_count * 512;
        match wrong {
            Wrong::R2tForRead => connection.queue.r2t(0, cid, 0, 512, &mut connection.out),
            Wrong::DataForWrite => {
                connection.queue.c2h_data(cid, 0, 512, true, false, &mut connection.out);
                connection.out.extend([0; 512]);
            }
            Wrong::UnknownResponse => {
                let stale = Sqe { cid: (cid.0 ^ 0x8000).into(), ..*sqe };
                self.respond(index, &stale, Status::SUCCESS, 0, 0);
            }
            Wrong::ResponseTwice => {
                self.respond(index, sqe, Status::INTERNAL, 0, 0);
                self.respond(index, sqe, Status::INTERNAL, 0, 0);
            }
            Wrong::ShortSuccess => {
                connection.queue.c2h_data(cid, 0, len - 4, true, false, &mut connection.out);
                connection.out.extend(vec![0; len as usize - 4]);
                self.respond(index, sqe, Status::SUCCESS, 0, 0);
            }
            Wrong::DataBeyondEnd => {
                connection.queue.c2h_data(cid, 0, len + 4, true, false, &mut connection.out);
                connection.out.extend(vec![0; len as usize + 4]);
            }
            Wrong::Garbage => connection.out.extend([0xee; 64]),
            Wrong::BadDigestOf(part) => self.send_data(index, sqe, &vec![1; len as usize], &[part]),
            Wrong::EarlyRefusal => unreachable!("only writes are refused early"),
            Wrong::BadDigest => self.send_data(index, sqe, &vec![1; len as usize], &[0, 1]),
        }
    }
}

impl Connection {
    fn new(socket: SocketId) -> Self {
        Self {
            socket,
            queue: ControllerQueue::new(ControllerQueueConfig {
                max_h2c_data: 8192,
                in_capsule_bytes: IN_CAPSULE,
                max_r2t_slots: SLOTS,
                allow_hdgst: true,
                allow_ddgst: true,
            }),
            qid: None,
            entries: 0,
            flow_off: false,
            sqhd: 0,
            out: Vec::new(),
            batch: Some(SendBatch::new(0, 1)),
            closed: false,
            sent: 0,
            capsule: None,
            transfers: (0..SLOTS).map(|_| None).collect(),
            events: Vec::new(),
            deaf: false,
            made_up: false,
        }
    }

    /// The step of a host that this event belongs to.
    fn step(&self, event: &Event<'_>) -> Option<Step> {
        let Event::Command { sqe, .. } = event else {
            return matches!(event, Event::Connected(_)).then_some(Step::IcResp);
        };
        match (self.qid, sqe.opc, sqe.fctype()) {
            (None, ..) if ConnectWords::parse(sqe).qid.is_admin() => Some(Step::Connect),
            (None, ..) => Some(Step::IoConnect),
            (Some(0), fabrics::OPCODE, fabrics::PROPERTY_SET) => Some(Step::PropertySet),
            (Some(0), fabrics::OPCODE, _) => Some(Step::PropertyGet),
            (Some(0), admin::IDENTIFY, _) => Some(Step::Identify),
            (Some(0), admin::SET_FEATURES, _) => Some(Step::SetFeatures),
            (Some(0), ..) => None,
            (Some(_), ..) => Some(Step::Io),
        }
    }

    fn transfer(&mut self, dest: DataDest) -> &mut Option<(Sqe, Vec<u8>)> {
        match dest {
            DataDest::Capsule => &mut self.capsule,
            DataDest::Slot(slot) => &mut self.transfers[usize::from(slot)],
        }
    }
}

/// A simulated core with a controller and its I/O queues, and the target it talks to.
pub struct World {
    pub world: SimWorld,
    pub target: Target,
    io: SimIo,
    pool: BufferPool,
    pub controller: Controller,
    pub queues: IoQueueSet,
    pub events: Vec<ControllerEvent>,
    pub queue_events: Vec<IoQueueEvent>,
    pub done: Vec<CommandDone>,
}

impl World {
    pub fn new(seed: u64, sim: SimConfig, config: &HostConfig, script: Script) -> Self {
        let world = SimWorld::new(seed, sim);
        let mut target = Target::new(Box::new(world.io()), address());
        target.script = script;
        let mut io = world.io();
        let pool = BufferPool::new(&PoolConfig::new(&[(128 << 10, 4)])).unwrap();
        let token = Token { owner: 1, generation: 0, index: 0 };
        let queues = IoQueueSet::mapped(config, CorePlace::ALONE, Token { index: 2, ..token });
        let now = io.now();
        let mut cx = Context { io: &mut io, pool: &pool, now };
        let controller = Controller::connect(&mut cx, config.clone(), token);
        Self {
            world,
            target,
            io,
            pool,
            controller,
            queues,
            events: Vec::new(),
            queue_events: Vec::new(),
            done: Vec::new(),
        }
    }

    /// Something for the controller or the queues, then everything that follows at once.
    pub fn with<R>(
        &mut self,
        act: impl FnOnce(&mut Controller, &mut IoQueueSet, &mut Context<'_>) -> R,
    ) -> R {
        let now = self.io.now();
        let mut cx = Context { io: &mut self.io, pool: &self.pool, now };
        let result = act(&mut self.controller, &mut self.queues, &mut cx);
        self.follow();
        result
    }

    fn follow(&mut self) {
        let now = self.io.now();
        let mut cx = Context { io: &mut self.io, pool: &self.pool, now };
        while let Some(event) = self.controller.poll_event() {
            match &event {
                ControllerEvent::Up(association) => self.queues.handle_up(&mut cx, association),
                ControllerEvent::Down(error) => self.queues.handle_down(&mut cx, error),
                ControllerEvent::Failed(_) => self.queues.close(&mut cx),
                _ => {}
            }
            self.events.push(event);
        }
        while let Some(event) = self.queues.poll_event() {
            if let IoQueueEvent::Lost { cntlid, error, .. } = &event {
                self.controller.queue_lost(&mut cx, *cntlid, error.clone());
            }
            self.queue_events.push(event);
        }
        while let Some((_, done)) = self.queues.poll_done() {
            self.done.push(done);
        }
        while let Some(done) = self.controller.poll_done() {
            self.done.push(done);
        }
        self.controller.flush(&mut cx);
        self.queues.flush(&mut cx);
    }

    pub fn submit(&mut self, command: Command, user: u64) {
        self.with(|_, queues, cx| queues.submit(cx, 0, command, user)).unwrap();
    }

    /// One event of the world; false when nothing will ever happen.
    pub fn step(&mut self) -> bool {
        let more = self.world.step();
        self.target.turn(Wait::No);
        let mut done = Vec::new();
        self.io.poll(Wait::No, &mut done).unwrap();
        let now = self.io.now();
        for completion in done {
            let mut cx = Context { io: &mut self.io, pool: &self.pool, now };
            if completion.token.index < 2 {
                self.controller.handle_completion(&mut cx, completion);
            } else {
                self.queues.handle_completion(&mut cx, completion);
            }
        }
        self.follow();
        self.target.turn(Wait::No);
        more
    }

    /// Lets the world go on until `until`, for at most `limit` of virtual time.
    #[track_caller]
    pub fn run(&mut self, limit: Duration, mut until: impl FnMut(&mut Self) -> bool) {
        let end = self.world.elapsed() + limit;
        while !until(self) {
            assert!(
                self.world.elapsed() < end,
                "not within {limit:?}: {:?} {:?}",
                self.events,
                self.queue_events
            );
            assert!(
                self.step(),
                "nothing happens any more: {:?} {:?}",
                self.events,
                self.queue_events
            );
        }
    }

    #[track_caller]
    pub fn run_until_ready(&mut self) {
        self.run(Duration::from_secs(5), |world| world.queues.is_ready());
    }

    #[track_caller]
    pub fn take_done(&mut self, user: u64) -> CommandDone {
        self.run(Duration::from_secs(60), |world| world.done.iter().any(|done| done.user == user));
        let index = self.done.iter().position(|done| done.user == user).unwrap();
        self.done.remove(index)
    }
}
