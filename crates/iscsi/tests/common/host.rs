//! A driver of the initiator's end for tests: commands with their memory, bytes in and bytes out.

use raceline_crc32c::Crc32c;
use raceline_iscsi::initiator::{
    Direction, Grant, InitiatorConfig, InitiatorConnection, InitiatorEvent, Outcome, Request,
};
use raceline_iscsi::pdu::{AsyncMessage, LoginStatus, LogoutResponseCode, TmfResponseCode};
use raceline_iscsi::{FatalError, Violation};

use super::disk::BLOCK;

/// The initiator's end with memory for its commands.
pub(crate) struct Host {
    pub(crate) initiator: InitiatorConnection,
    buffers: Vec<Vec<u8>>,
    pub(crate) lun: u64,
    /// Commands sent.
    pub(crate) sent: u16,
    /// Writes send as much as they may without an R2T.
    pub(crate) unsolicited: bool,
    /// Most bytes of immediate data.
    pub(crate) immediate_limit: u32,
    pub(crate) logged_in: bool,
    pub(crate) refused: Option<LoginStatus>,
    /// Slots, outcomes and sense data of commands that have ended.
    pub(crate) ended: Vec<(u16, Outcome, Vec<u8>)>,
    pub(crate) tmf_responses: Vec<Option<TmfResponseCode>>,
    pub(crate) messages: Vec<(AsyncMessage, Vec<u8>)>,
    pub(crate) pongs: usize,
    pub(crate) targets: bool,
    pub(crate) logged_out: Option<Option<LogoutResponseCode>>,
    pub(crate) r2ts: usize,
    /// R2Ts are kept instead of answered.
    pub(crate) keep_grants: bool,
    pub(crate) grants: Vec<Grant>,
}

impl Host {
    pub(crate) fn new(config: InitiatorConfig) -> Self {
        let slots = usize::from(config.slots);
        Self {
            initiator: InitiatorConnection::new(config),
            buffers: vec![Vec::new(); slots],
            lun: 0,
            sent: 0,
            unsolicited: true,
            immediate_limit: u32::MAX,
            logged_in: false,
            refused: None,
            ended: Vec::new(),
            tmf_responses: Vec::new(),
            messages: Vec::new(),
            pongs: 0,
            targets: false,
            logged_out: None,
            r2ts: 0,
            keep_grants: false,
            grants: Vec::new(),
        }
    }

    /// Takes input; appends what the initiator sends.
    pub(crate) fn feed(&mut self, mut input: &[u8], out: &mut Vec<u8>) -> Result<(), FatalError> {
        if let Some(wanted) = self.initiator.payload_wanted() {
            let (bytes, rest) = input.split_at(input.len().min(wanted.len as usize));
            let offset = wanted.offset as usize;
            self.buffers[usize::from(wanted.dest)][offset..offset + bytes.len()]
                .copy_from_slice(bytes);
            self.initiator.payload_received(bytes.len());
            input = rest;
        }
        while let Some(event) = self.initiator.receive(&mut input)? {
            match event {
                InitiatorEvent::Answer => self.initiator.answer(out),
                InitiatorEvent::LoggedIn => self.logged_in = true,
                InitiatorEvent::Refused(status) => self.refused = Some(status),
                InitiatorEvent::Data { slot, offset, bytes } => {
                    let offset = offset as usize;
                    self.buffers[usize::from(slot)][offset..offset + bytes.len()]
                        .copy_from_slice(bytes);
                }
                InitiatorEvent::DataEnd { slot, offset, len, digest, outcome } => {
                    let range = offset as usize..(offset + len) as usize;
                    let data = &self.buffers[usize::from(slot)][range];
                    assert_eq!(digest.is_some(), self.initiator.data_digest());
                    if digest.is_some_and(|digest| !digest.is_right(data)) {
                        return Err(FatalError::new(Violation::DataDigestFromTarget));
                    }
                    if let Some(outcome) = outcome {
                        self.ended.push((slot, outcome, Vec::new()));
                    }
                }
                InitiatorEvent::Response { slot, outcome } => {
                    self.ended.push((slot, outcome, self.initiator.data().to_vec()));
                }
                InitiatorEvent::R2t(grant) => {
                    self.r2ts += 1;
                    if self.keep_grants {
                        self.grants.push(grant);
                    } else {
                        self.send_data(grant, out);
                    }
                }
                InitiatorEvent::TmfResponse { response, .. } => self.tmf_responses.push(response),
                InitiatorEvent::Targets => self.targets = true,
                InitiatorEvent::Pong => self.pongs += 1,
                InitiatorEvent::Async(message) => {
                    self.messages.push((message, self.initiator.data().to_vec()));
                }
                InitiatorEvent::LoggedOut(response) => self.logged_out = Some(response),
            }
        }
        Ok(())
    }

    /// Sends all data of a grant.
    pub(crate) fn send_data(&mut self, mut grant: Grant, out: &mut Vec<u8>) {
        while grant.len > 0 {
            let piece = self.initiator.data_out(&mut grant, out);
            let range = piece.offset as usize..(piece.offset + piece.len) as usize;
            self.put_data(grant.slot, range, out);
        }
    }

    fn put_data(&self, slot: u16, range: std::ops::Range<usize>, out: &mut Vec<u8>) {
        let bytes = &self.buffers[usize::from(slot)][range];
        out.extend_from_slice(bytes);
        let len = u32::try_from(bytes.len()).expect("small");
        let mut crc = Crc32c::new();
        crc.update(bytes);
        self.initiator.data_trailer(len, crc, out);
    }

    /// Sends a command without a direction or a read of `len` bytes.
    pub(crate) fn command(&mut self, slot: u16, cdb: &[u8], len: u32, out: &mut Vec<u8>) {
        let direction = if len > 0 { Direction::Read } else { Direction::None };
        self.buffers[usize::from(slot)] = vec![0; len as usize];
        let request = Request { cdb: cdb_of(cdb), direction, len, attribute: 1, lun: self.lun };
        self.sent += 1;
        self.initiator.command(slot, &request, 0, false, out);
    }

    /// Sends a READ 16.
    pub(crate) fn read(&mut self, slot: u16, lba: u64, blocks: u32, out: &mut Vec<u8>) {
        self.command(slot, &cdb16(0x88, lba, blocks), blocks * 512, out);
    }

    /// Sends a WRITE 16.
    pub(crate) fn write(&mut self, slot: u16, lba: u64, data: &[u8], out: &mut Vec<u8>) {
        let blocks = u32::try_from(data.len() / BLOCK).expect("small");
        self.write_with(slot, &cdb16(0x8a, lba, blocks), data, out);
    }

    /// Sends a command with data.
    pub(crate) fn write_with(&mut self, slot: u16, cdb: &[u8], data: &[u8], out: &mut Vec<u8>) {
        let len = u32::try_from(data.len()).expect("small");
        let request = Request {
            cdb: cdb_of(cdb),
            direction: Direction::Write,
            len,
            attribute: 1,
            lun: self.lun,
        };
        self.buffers[usize::from(slot)] = data.to_vec();
        let immediate = self.initiator.immediate_limit(len).min(self.immediate_limit);
        self.sent += 1;
        let grant = self.initiator.command(slot, &request, immediate, self.unsolicited, out);
        if immediate > 0 {
            self.put_data(slot, 0..immediate as usize, out);
        }
        if let Some(grant) = grant {
            self.send_data(grant, out);
        }
    }

    /// The memory of a command.
    pub(crate) fn buffer(&self, slot: u16) -> &[u8] {
        &self.buffers[usize::from(slot)]
    }

    /// The only command that has ended.
    pub(crate) fn take_ended(&mut self) -> (u16, Outcome, Vec<u8>) {
        assert_eq!(self.ended.len(), 1, "one command has ended");
        self.ended.remove(0)
    }
}

fn cdb_of(bytes: &[u8]) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[..bytes.len()].copy_from_slice(bytes);
    cdb
}

pub(crate) fn cdb16(opcode: u8, lba: u64, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}
