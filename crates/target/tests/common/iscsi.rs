//! A blocking iSCSI initiator for tests: one session over one socket.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use raceline_crc32c::Crc32c;
use raceline_iscsi::initiator::{
    Direction, Grant, InitiatorConfig, InitiatorConnection, InitiatorCredentials, InitiatorEvent,
    Outcome, Request,
};
use raceline_iscsi::names::{Isid, Name};
use raceline_iscsi::pdu::{
    AsyncEvent, LoginStatus, LogoutResponseCode, TmfFunction, TmfResponseCode,
};

use crate::common::PATIENCE;

pub const TARGET: &str = "iqn.2026-01.io.raceline:test";
pub const INITIATOR: &str = "iqn.2026-01.io.raceline:initiator";

/// How a command ended.
#[derive(Debug)]
pub struct Answer {
    pub status: u8,
    /// Sense key, ASC and ASCQ.
    pub sense: Option<(u8, u8, u8)>,
    pub data: Vec<u8>,
    pub outcome: Outcome,
}

impl Answer {
    pub fn good(self) -> Vec<u8> {
        assert_eq!((self.status, self.sense), (0, None), "{:?}", self.outcome);
        self.data
    }
}

/// What has come, and owns its data.
#[derive(Debug)]
pub enum Heard {
    LoggedIn,
    Refused(LoginStatus),
    Response { slot: u16, answer: Answer },
    Tmf(Option<TmfResponseCode>),
    Targets(Vec<(String, Vec<(String, u16)>)>),
    Pong,
    Async(Option<AsyncEvent>),
    LoggedOut(Option<LogoutResponseCode>),
    Closed,
}

/// A session.
pub struct Initiator {
    pub stream: TcpStream,
    pub proto: InitiatorConnection,
    input: Vec<u8>,
    /// By slot: data to send, data that came.
    sending: Vec<Vec<u8>>,
    received: Vec<Vec<u8>>,
    next_slot: u16,
    /// Answers to pings of the target are held back.
    pub deaf: bool,
}

pub fn config(target: Option<&str>, number: u32) -> InitiatorConfig {
    let initiator = Name::new(INITIATOR).unwrap();
    let target = target.map(|target| Name::new(target).unwrap());
    InitiatorConfig::new(initiator, target, Isid::random(number, 0))
}

pub fn credentials(name: &str, secret: &str) -> InitiatorCredentials {
    InitiatorCredentials {
        name: name.into(),
        secret: raceline_iscsi::chap::Secret::new(secret.as_bytes().to_vec()),
        algorithms: raceline_iscsi::chap::Algorithm::ALL,
        target: None,
        id: 7,
        challenge: [9; raceline_iscsi::chap::CHALLENGE_LEN],
    }
}

impl Initiator {
    /// Logs in, or says why not.
    pub fn try_login(address: SocketAddr, config: InitiatorConfig) -> Result<Self, LoginStatus> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let slots = usize::from(config.slots);
        let mut proto = InitiatorConnection::new(config);
        let mut out = Vec::new();
        proto.login(&mut out);
        let mut this = Self {
            stream,
            proto,
            input: Vec::new(),
            sending: vec![Vec::new(); slots],
            received: vec![Vec::new(); slots],
            next_slot: 0,
            deaf: false,
        };
        this.send(&out);
        match this.listen() {
            Heard::LoggedIn => Ok(this),
            Heard::Refused(status) => Err(status),
            other => panic!("{other:?} instead of the end of the login"),
        }
    }

    /// A session with the test's target.
    pub fn login(address: SocketAddr, number: u32) -> Self {
        Self::try_login(address, config(Some(TARGET), number)).unwrap()
    }

    pub fn send(&mut self, bytes: &[u8]) {
        match self.stream.write_all(bytes) {
            // What comes next says that it is closed.
            Err(error)
                if [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset].contains(&error.kind()) => {}
            sent => sent.unwrap(),
        }
    }

    /// The next thing that is not a step of something else.
    pub fn listen(&mut self) -> Heard {
        loop {
            let mut input = &self.input[..];
            let mut out = Vec::new();
            let (mut heard, mut granted) = (None, None);
            let event = self.proto.receive(&mut input).unwrap();
            let none = event.is_none();
            match event {
                None => {}
                Some(InitiatorEvent::Answer) if self.deaf => panic!("the target pings"),
                Some(InitiatorEvent::Answer) => self.proto.answer(&mut out),
                Some(InitiatorEvent::LoggedIn) => heard = Some(Heard::LoggedIn),
                Some(InitiatorEvent::Refused(status)) => heard = Some(Heard::Refused(status)),
                Some(InitiatorEvent::Data { slot, offset, bytes }) => {
                    let data = &mut self.received[usize::from(slot)];
                    data.resize(offset as usize, 0);
                    data.extend_from_slice(bytes);
                }
                Some(InitiatorEvent::DataEnd { slot, offset, len, digest, outcome }) => {
                    let data = &mut self.received[usize::from(slot)];
                    if let Some(digest) = digest {
                        let bytes = &data[offset as usize..(offset + len) as usize];
                        assert!(digest.is_right(bytes), "a data digest is wrong");
                    }
                    heard = outcome.map(|outcome| {
                        let data = std::mem::take(data);
                        let answer = Answer { status: outcome.status, sense: None, data, outcome };
                        Heard::Response { slot, answer }
                    });
                }
                Some(InitiatorEvent::Response { slot, outcome }) => {
                    let sense = self.proto.data();
                    let sense = match sense.first().map(|code| code & 0x7f) {
                        Some(0x70 | 0x71) if sense.len() >= 14 => {
                            Some((sense[2] & 0xf, sense[12], sense[13]))
                        }
                        Some(0x72 | 0x73) if sense.len() >= 8 => {
                            Some((sense[1] & 0xf, sense[2], sense[3]))
                        }
                        _ => None,
                    };
                    let data = std::mem::take(&mut self.received[usize::from(slot)]);
                    let answer = Answer { status: outcome.status, sense, data, outcome };
                    heard = Some(Heard::Response { slot, answer });
                }
                Some(InitiatorEvent::R2t(grant)) => granted = Some(grant),
                Some(InitiatorEvent::TmfResponse { response, .. }) => {
                    heard = Some(Heard::Tmf(response));
                }
                Some(InitiatorEvent::Targets) => {
                    let targets = self.proto.targets().unwrap().into_iter();
                    let targets = targets.map(|t| (t.name.as_str().to_owned(), t.addresses));
                    heard = Some(Heard::Targets(targets.collect()));
                }
                Some(InitiatorEvent::Pong) => heard = Some(Heard::Pong),
                Some(InitiatorEvent::Async(message)) => {
                    heard = Some(Heard::Async(AsyncEvent::from_wire(message.event)));
                }
                Some(InitiatorEvent::LoggedOut(code)) => heard = Some(Heard::LoggedOut(code)),
            }
            let left = input.len();
            self.input.drain(..self.input.len() - left);
            if let Some(grant) = granted {
                self.send_data(grant, &mut out);
            }
            self.send(&out);
            if let Some(heard) = heard {
                return heard;
            }
            if none && !self.read_more() {
                return Heard::Closed;
            }
        }
    }

    fn read_more(&mut self) -> bool {
        let mut bytes = vec![0; 64 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => false,
            Ok(len) => {
                self.input.extend_from_slice(&bytes[..len]);
                true
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => panic!("nothing comes: {error}"),
        }
    }

    fn send_data(&mut self, mut grant: Grant, out: &mut Vec<u8>) {
        while grant.len > 0 {
            let piece = self.proto.data_out(&mut grant, out);
            let start = piece.offset as usize;
            let bytes = &self.sending[usize::from(grant.slot)][start..start + piece.len as usize];
            out.extend_from_slice(bytes);
            let mut crc = Crc32c::new();
            crc.update(bytes);
            self.proto.data_trailer(piece.len, crc, out);
        }
    }

    /// Sends a command; `read`: bytes that are expected. Gives its slot.
    pub fn start(&mut self, lun: u16, cdb: &[u8], read: u32, data: &[u8]) -> u16 {
        let slot = self.next_slot;
        self.next_slot = (slot + 1) % u16::try_from(self.sending.len()).unwrap();
        let mut whole = [0; 16];
        whole[..cdb.len()].copy_from_slice(cdb);
        let (direction, len) = match (read, data.len()) {
            (0, 0) => (Direction::None, 0),
            (0, len) => (Direction::Write, u32::try_from(len).unwrap()),
            (read, _) => (Direction::Read, read),
        };
        let request = Request {
            lun: u64::from_be_bytes(raceline_scsi::lun_to_wire(lun)),
            cdb: whole,
            direction,
            len,
            attribute: 1,
        };
        self.sending[usize::from(slot)] = data.to_vec();
        let immediate = if data.is_empty() { 0 } else { self.proto.immediate_limit(len) };
        let mut out = Vec::new();
        let grant = self.proto.command(slot, &request, immediate, false, &mut out);
        assert!(grant.is_none());
        let bytes = &data[..immediate as usize];
        out.extend_from_slice(bytes);
        if immediate > 0 {
            let mut crc = Crc32c::new();
            crc.update(bytes);
            self.proto.data_trailer(immediate, crc, &mut out);
        }
        self.send(&out);
        slot
    }

    /// The same with all data that may be sent unsolicited in PDUs of their own.
    pub fn start_unsolicited(&mut self, lun: u16, cdb: &[u8], data: &[u8]) -> u16 {
        let slot = self.next_slot;
        self.next_slot = (slot + 1) % u16::try_from(self.sending.len()).unwrap();
        let mut whole = [0; 16];
        whole[..cdb.len()].copy_from_slice(cdb);
        let request = Request {
            lun: u64::from_be_bytes(raceline_scsi::lun_to_wire(lun)),
            cdb: whole,
            direction: Direction::Write,
            len: u32::try_from(data.len()).unwrap(),
            attribute: 1,
        };
        self.sending[usize::from(slot)] = data.to_vec();
        let mut out = Vec::new();
        let grant = self.proto.command(slot, &request, 0, true, &mut out);
        self.send_data(grant.unwrap(), &mut out);
        self.send(&out);
        slot
    }

    /// Waits for the answer to a command.
    pub fn finish(&mut self, slot: u16) -> Answer {
        match self.listen() {
            Heard::Response { slot: found, answer } if found == slot => answer,
            other => panic!("{other:?} instead of the answer to {slot}"),
        }
    }

    pub fn execute(&mut self, lun: u16, cdb: &[u8], read: u32, data: &[u8]) -> Answer {
        let slot = self.start(lun, cdb, read, data);
        self.finish(slot)
    }

    pub fn read(&mut self, lun: u16, lba: u32, blocks: u16) -> Answer {
        self.execute(lun, &rw(0x28, lba, blocks), u32::from(blocks) * 512, &[])
    }

    pub fn write(&mut self, lun: u16, lba: u32, data: &[u8]) -> Answer {
        let blocks = u16::try_from(data.len() / 512).unwrap();
        self.execute(lun, &rw(0x2a, lba, blocks), 0, data)
    }

    pub fn test_unit_ready(&mut self, lun: u16) -> Answer {
        self.execute(lun, &[0; 6], 0, &[])
    }

    /// PERSISTENT RESERVE OUT with two keys.
    pub fn reserve_out(&mut self, action: u8, kind: u8, key: u64, new: u64) -> Answer {
        let mut cdb = [0; 10];
        (cdb[0], cdb[1], cdb[2], cdb[8]) = (0x5f, action, kind, 24);
        let mut list = [0; 24];
        list[..8].copy_from_slice(&key.to_be_bytes());
        list[8..16].copy_from_slice(&new.to_be_bytes());
        self.execute(0, &cdb, 0, &list)
    }

    /// COMPARE AND WRITE of one block.
    pub fn compare_and_write(&mut self, lba: u8, old: &[u8], new: &[u8]) -> Answer {
        let mut cdb = [0; 16];
        (cdb[0], cdb[9], cdb[13]) = (0x89, lba, 1);
        self.execute(0, &cdb, 0, &[old, new].concat())
    }

    pub fn manage(&mut self, function: TmfFunction, slot: Option<u16>) -> Option<TmfResponseCode> {
        let mut out = Vec::new();
        self.proto.task_management(function, 0, slot, &mut out).unwrap();
        self.send(&out);
        match self.listen() {
            Heard::Tmf(code) => code,
            other => panic!("{other:?} instead of the answer to {function}"),
        }
    }

    pub fn targets(&mut self, which: &str) -> Vec<(String, Vec<(String, u16)>)> {
        let mut out = Vec::new();
        assert!(self.proto.send_targets(which, &mut out));
        self.send(&out);
        match self.listen() {
            Heard::Targets(targets) => targets,
            other => panic!("{other:?} instead of targets"),
        }
    }

    /// Waits until the target has asked for data, and answers nothing.
    pub fn await_r2t(&mut self) {
        let mut bytes = [0; 48];
        let mut seen = 0;
        while seen < bytes.len() {
            seen = self.stream.peek(&mut bytes).unwrap();
        }
        assert_eq!(bytes[0] & 0x3f, 0x31, "an R2T");
    }

    pub fn ping(&mut self) {
        let mut out = Vec::new();
        assert!(self.proto.ping(&mut out));
        self.send(&out);
        assert!(matches!(self.listen(), Heard::Pong));
    }
}

/// READ (10) or WRITE (10).
pub fn rw(opcode: u8, lba: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = [0; 10];
    cdb[0] = opcode;
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}
