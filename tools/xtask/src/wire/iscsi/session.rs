//! A session of hand-made iSCSI PDUs over a plain socket: numbers, digests and padding, and nothing that decides.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use raceline_crc32c::crc32c;

use crate::raw;

/// Opcodes of an initiator (RFC 7143, 11.2.1.2).
pub(super) const NOP_OUT: u8 = 0x00;
pub(crate) const COMMAND: u8 = 0x01;
pub(super) const TMF: u8 = 0x02;
pub(super) const LOGIN: u8 = 0x03;
pub(super) const TEXT: u8 = 0x04;
pub(super) const DATA_OUT: u8 = 0x05;
pub(super) const LOGOUT: u8 = 0x06;
pub(super) const SNACK: u8 = 0x10;
/// Opcodes of a target.
pub(super) const NOP_IN: u8 = 0x20;
pub(crate) const RESPONSE: u8 = 0x21;
pub(super) const TMF_RESPONSE: u8 = 0x22;
pub(super) const LOGIN_RESPONSE: u8 = 0x23;
pub(super) const TEXT_RESPONSE: u8 = 0x24;
pub(crate) const DATA_IN: u8 = 0x25;
pub(super) const LOGOUT_RESPONSE: u8 = 0x26;
pub(super) const R2T: u8 = 0x31;
pub(super) const ASYNC: u8 = 0x32;
pub(super) const REJECT: u8 = 0x3f;

/// I: immediate delivery. F, or T of a login.
pub(super) const IMMEDIATE: u8 = 0x40;
pub(crate) const FINAL: u8 = 0x80;
/// The tag of a login, and a tag that names nothing.
const LOGIN_TAG: [u8; 4] = [0x10, 0, 0, 0];
pub(super) const NO_TAG: [u8; 4] = [0xff; 4];

/// Time for any answer; a silent target pings after a second.
const ANSWER: Duration = Duration::from_secs(30);
/// Bytes of a header, and the most data bytes of a PDU here.
const HEADER: usize = 48;
const MOST_DATA: usize = 1 << 20;

pub(crate) type Header = [u8; HEADER];

/// Four bytes of a header from this offset on.
pub(super) fn word(header: &Header, at: usize) -> [u8; 4] {
    std::array::from_fn(|index| header[at + index])
}

/// A connection, and the next numbers.
pub(crate) struct Session {
    stream: TcpStream,
    header_digest: bool,
    data_digest: bool,
    cmd_sn: u32,
    exp_stat_sn: u32,
    tag: u32,
}

impl Session {
    /// A connection that has not logged in.
    pub(crate) fn open(port: u16) -> Result<Self> {
        let stream = raw::open(port)?;
        stream.set_read_timeout(Some(ANSWER))?;
        let (header_digest, data_digest) = (false, false);
        Ok(Self { stream, header_digest, data_digest, cmd_sn: 1, exp_stat_sn: 0, tag: 1 })
    }

    /// Sends a login request of the stage `current`, which asks for `next`; gives status and text of the response.
    pub(crate) fn login_step(
        &mut self,
        number: u16,
        [current, next]: [u8; 2],
        keys: &str,
    ) -> Result<([u8; 2], String)> {
        let mut header = [0; HEADER];
        header[0] = LOGIN | IMMEDIATE;
        header[1] = FINAL | current << 2 | next;
        // ISID: random, with this number.
        header[8] = 0x80;
        header[12..14].copy_from_slice(&number.to_be_bytes());
        // All requests of a login have one tag (11.12.4).
        header[16..20].copy_from_slice(&LOGIN_TAG);
        self.request(header, keys.as_bytes())?;
        let (answer, text) = self.expect(LOGIN_RESPONSE)?;
        Ok(([answer[36], answer[37]], String::from_utf8_lossy(&text).into_owned()))
    }

    /// From now on, PDUs have these digests.
    pub(super) fn with_digests(mut self, header: bool, data: bool) -> Self {
        (self.header_digest, self.data_digest) = (header, data);
        self
    }

    /// Sends a request with its numbers: tag (unless byte 16 on has one), CmdSN, which an immediate one does not take,
    /// and ExpStatSN. Gives the tag.
    pub(crate) fn request(&mut self, mut header: Header, data: &[u8]) -> Result<[u8; 4]> {
        if word(&header, 16) == [0; 4] {
            header[16..20].copy_from_slice(&self.tag.to_be_bytes());
            self.tag += 1;
        }
        header[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        if header[0] & IMMEDIATE == 0 {
            self.cmd_sn += 1;
        }
        self.send(header, data)?;
        Ok(word(&header, 16))
    }

    /// Sends a PDU with ExpStatSN, lengths, padding and digests.
    pub(super) fn send(&mut self, mut header: Header, data: &[u8]) -> Result<()> {
        header[28..32].copy_from_slice(&self.exp_stat_sn.to_be_bytes());
        let length = u32::try_from(data.len())?.to_be_bytes();
        header[5..8].copy_from_slice(&length[1..]);
        let mut bytes = header.to_vec();
        if self.header_digest {
            bytes.extend(crc32c(&header).to_le_bytes());
        }
        if !data.is_empty() {
            let mut padded = data.to_vec();
            padded.resize(data.len().next_multiple_of(4), 0);
            bytes.extend(&padded);
            if self.data_digest {
                bytes.extend(crc32c(&padded).to_le_bytes());
            }
        }
        Ok(self.stream.write_all(&bytes)?)
    }

    /// The next PDU. Whether its digests are right is for tshark to say.
    fn receive(&mut self) -> Result<(Header, Vec<u8>)> {
        let mut header = [0; HEADER];
        self.stream.read_exact(&mut header).context("no PDU comes")?;
        let length = u32::from_be_bytes([0, header[5], header[6], header[7]]);
        let length = usize::try_from(length)?;
        ensure!(length <= MOST_DATA && header[4] == 0, "a PDU with {length} bytes of data");
        let mut digest = [0; 4];
        if self.header_digest {
            self.stream.read_exact(&mut digest)?;
        }
        let mut data = vec![0; length.next_multiple_of(4)];
        self.stream.read_exact(&mut data)?;
        data.truncate(length);
        if self.data_digest && length > 0 {
            self.stream.read_exact(&mut digest)?;
        }
        // A status takes a StatSN: not an R2T, not data without status, not a ping of the target.
        let takes = match header[0] {
            R2T => false,
            DATA_IN => header[1] & 1 != 0,
            NOP_IN => word(&header, 16) != NO_TAG,
            _ => true,
        };
        if takes {
            self.exp_stat_sn = u32::from_be_bytes(word(&header, 24)).wrapping_add(1);
        }
        Ok((header, data))
    }

    /// The next PDU that is no NOP-In of the target's own. Its pings are answered: on a busy machine they may come at
    /// any time.
    pub(super) fn next(&mut self) -> Result<(Header, Vec<u8>)> {
        loop {
            let (header, data) = self.receive()?;
            if header[0] != NOP_IN || word(&header, 16) != NO_TAG {
                return Ok((header, data));
            }
            self.answer_ping(&header)?;
        }
    }

    /// The next PDU, which must have this opcode.
    pub(crate) fn expect(&mut self, opcode: u8) -> Result<(Header, Vec<u8>)> {
        let (header, data) = self.next()?;
        ensure!(header[0] == opcode, "opcode {:#04x} instead of {opcode:#04x}", header[0]);
        Ok((header, data))
    }

    /// Waits in silence until the target pings, and answers.
    pub(super) fn pinged(&mut self) -> Result<()> {
        loop {
            let (header, _) = self.receive()?;
            let is_own = header[0] == NOP_IN && word(&header, 16) == NO_TAG;
            ensure!(is_own, "opcode {:#04x} instead of a ping", header[0]);
            if self.answer_ping(&header)? {
                return Ok(());
            }
        }
    }

    /// Answers the pings of the target that have come, without waiting for one; gives their number.
    pub(crate) fn answer_pings(&mut self) -> Result<u32> {
        let mut answered = 0;
        loop {
            self.stream.set_nonblocking(true)?;
            let waiting = self.stream.peek(&mut [0]);
            self.stream.set_nonblocking(false)?;
            match waiting {
                Ok(0) => bail!("the target has closed the connection"),
                Ok(_) => self.pinged()?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(answered),
                Err(error) => return Err(error.into()),
            }
            answered += 1;
        }
    }

    /// Answers a NOP-In of the target's own, if it asks for an answer; gives whether it does.
    fn answer_ping(&mut self, ping: &Header) -> Result<bool> {
        if word(ping, 20) == NO_TAG {
            return Ok(false);
        }
        let mut header = [0; HEADER];
        (header[0], header[1]) = (NOP_OUT | IMMEDIATE, FINAL);
        header[8..16].copy_from_slice(&ping[8..16]);
        header[16..20].copy_from_slice(&NO_TAG);
        header[20..24].copy_from_slice(&word(ping, 20));
        self.request(header, &[])?;
        Ok(true)
    }
}
