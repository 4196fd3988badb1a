//! A target and requests made by hand.

use raceline_crc32c::crc32c;
use raceline_iscsi::Violation;
use raceline_iscsi::pdu::{
    DataIn, DataOut, LoginRequest, LoginResponse, LoginStatus, NopIn, NopOut, R2t, RESERVED_TAG,
    Reject, RejectReason, ScsiCommand, ScsiResponse, opcode,
};

use super::disk::{Disk, Setup, TARGET};

/// A PDU that the target sent: header and data.
pub(crate) type Answer = ([u8; 48], Vec<u8>);

/// A target, and what a hand-made initiator needs to know.
pub(crate) struct Bench {
    pub(crate) disk: Disk,
    pub(crate) cmd_sn: u32,
    pub(crate) header_digest: bool,
    pub(crate) data_digest: bool,
    pub(crate) error: Option<Violation>,
}

impl Bench {
    pub(crate) fn new(setup: Setup) -> Self {
        let disk = Disk::new(setup, 64);
        Self { disk, cmd_sn: 10, header_digest: false, data_digest: false, error: None }
    }

    /// With a login that is complete, and these keys besides the necessary ones.
    pub(crate) fn logged_in(setup: Setup, keys: &str) -> Self {
        let mut bench = Self::new(setup);
        let text = format!("InitiatorName=iqn.2026-11.test:i TargetName={TARGET} {keys}");
        let answers = bench.log_in(0x87, &text);
        assert_eq!(login_status(&answers), LoginStatus::SUCCESS);
        assert!(bench.disk.target.is_full_feature());
        bench.header_digest = bench.disk.target.header_digest();
        bench.data_digest = bench.disk.target.data_digest();
        bench
    }

    pub(crate) fn plain() -> Self {
        Self::logged_in(Setup::default(), "")
    }

    /// Sends a Login Request; blanks in the text stand for the ends of pairs.
    pub(crate) fn log_in(&mut self, flags: u8, text: &str) -> Vec<Answer> {
        let request = LoginRequest {
            immediate: true,
            flags,
            isid: [0x80, 0, 0, 0, 0, 1],
            itt: 1,
            cmd_sn: self.cmd_sn,
            ..LoginRequest::default()
        };
        let text = text.replace(' ', "\0") + "\0";
        let text = if text == "\0" { Vec::new() } else { text.into_bytes() };
        self.send(&request.encode(len(&text)), &text)
    }

    /// Sends a PDU; gives what the target answers.
    pub(crate) fn send(&mut self, header: &[u8], data: &[u8]) -> Vec<Answer> {
        let mut bytes = header.to_vec();
        if self.header_digest {
            bytes.extend_from_slice(&crc32c(header).to_le_bytes());
        }
        let mut padded = data.to_vec();
        padded.resize(data.len().next_multiple_of(4), 0);
        bytes.extend_from_slice(&padded);
        if self.data_digest && !data.is_empty() {
            bytes.extend_from_slice(&crc32c(&padded).to_le_bytes());
        }
        self.send_bytes(&bytes)
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) -> Vec<Answer> {
        let mut out = Vec::new();
        self.error = self.disk.feed(bytes, &mut out).err().map(|error| error.violation());
        self.parse(&out)
    }

    pub(crate) fn parse(&self, mut bytes: &[u8]) -> Vec<Answer> {
        let mut answers = Vec::new();
        while !bytes.is_empty() {
            let header: [u8; 48] = bytes[..48].try_into().expect("48 bytes");
            let len = usize::from(header[6]) << 8 | usize::from(header[7]);
            let start = if self.header_digest { 52 } else { 48 };
            let digest = if self.data_digest && len > 0 { 4 } else { 0 };
            answers.push((header, bytes[start..start + len].to_vec()));
            bytes = &bytes[start + len.next_multiple_of(4) + digest..];
        }
        answers
    }

    /// A command; takes a CmdSN.
    pub(crate) fn command(
        &mut self,
        itt: u32,
        flags: u8,
        edtl: u32,
        opcode: u8,
        blocks: u8,
    ) -> ScsiCommand {
        let mut cdb = [0; 16];
        (cdb[0], cdb[8]) = (opcode, blocks);
        let cmd_sn = self.next_sn();
        ScsiCommand { flags, itt, edtl, cmd_sn, cdb, ..ScsiCommand::default() }
    }

    pub(crate) fn next_sn(&mut self) -> u32 {
        self.cmd_sn += 1;
        self.cmd_sn - 1
    }

    /// Sends a write of `blocks` without data; gives the TTT of its R2T.
    pub(crate) fn write(&mut self, itt: u32, blocks: u8) -> u32 {
        let command = self.command(itt, 0xa0, u32::from(blocks) * 512, 0x2a, blocks);
        let answers = self.send(&command.encode(0), &[]);
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0].0[0], opcode::R2T);
        R2t::decode(&answers[0].0).ttt
    }

    pub(crate) fn data_out(&mut self, pdu: DataOut, data: &[u8]) -> Vec<Answer> {
        self.send(&pdu.encode(len(data)), data)
    }

    /// A ping is answered, so the connection is alive.
    pub(crate) fn assert_alive(&mut self) {
        let ping = NopOut { immediate: true, itt: 0x7777, ttt: RESERVED_TAG, ..NopOut::default() };
        let answers = self.send(&ping.encode(3), b"abc");
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0].0[0], opcode::NOP_IN);
        assert_eq!(NopIn::decode(&answers[0].0).itt, 0x7777);
        assert_eq!(answers[0].1, b"abc");
        assert_eq!(self.disk.target.live_tasks(), 0);
    }

    /// A read works, so the window is where it should be.
    pub(crate) fn assert_works(&mut self) {
        let read = self.command(0x5555, 0xc0, 512, 0x28, 1);
        let answers = self.send(&read.encode(0), &[]);
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0].0[0], opcode::DATA_IN);
        assert_eq!(DataIn::decode(&answers[0].0).flags, 0x81);
        self.assert_alive();
    }
}

pub(crate) fn len(data: &[u8]) -> u32 {
    u32::try_from(data.len()).expect("small")
}

pub(crate) fn login_status(answers: &[Answer]) -> LoginStatus {
    let (header, _) = answers.last().expect("a Login Response");
    assert_eq!(header[0], opcode::LOGIN_RESPONSE);
    LoginResponse::decode(header).login_status()
}

/// The only answer is a Reject with this reason, which carries the header that was rejected.
pub(crate) fn assert_rejected(answers: &[Answer], reason: RejectReason, header: &[u8]) {
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].0[0], opcode::REJECT);
    assert_eq!(Reject::decode(&answers[0].0).reason, reason.to_wire());
    assert_eq!(answers[0].1, header);
}

/// The only answer is CHECK CONDITION with ABORTED COMMAND and these codes.
pub(crate) fn assert_aborted(answers: &[Answer], asc: u8, ascq: u8) {
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].0[0], opcode::SCSI_RESPONSE);
    assert_eq!(ScsiResponse::decode(&answers[0].0).status, 2);
    let sense = &answers[0].1[2..];
    assert_eq!((sense[2], sense[12], sense[13]), (0x0b, asc, ascq));
}
