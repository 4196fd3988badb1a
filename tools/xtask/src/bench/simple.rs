//! The smallest host there can be, for time spans: blocking sockets, one command at a time.

use std::io::Write;
use std::net::TcpStream;

use anyhow::{Context, Result, ensure};

use crate::raw::{header, ic_req, open, read_pdu};

/// PDU types (NVMe/TCP 3.6.2).
const CAPSULE_CMD: u8 = 4;
const CAPSULE_RESP: u8 = 5;
const C2H_DATA: u8 = 7;
/// C2HData's flag that no response follows (NVMe/TCP 3.6.2.10).
const SUCCESS: u8 = 1 << 3;
/// C2HData's flag of the last one for a command.
const LAST_PDU: u8 = 1 << 2;
/// Offset of a read's first block in its entry (SLBA, NVM Command Set 3.2.4).
const SLBA_AT: usize = 40;
/// Header of CapsuleCmd, and of C2HData.
pub(super) const CAPSULE_CMD_LEN: u8 = 72;
const C2H_DATA_LEN: usize = 24;
/// Opcodes, and Fabrics command types (NVMe base 6.1).
const FABRICS: u8 = 0x7F;
const PROPERTY_SET: u8 = 0;
const CONNECT: u8 = 1;
const PROPERTY_GET: u8 = 4;
const SET_FEATURES: u8 = 0x09;
const KEEP_ALIVE: u8 = 0x18;
const READ: u8 = 0x02;
/// Number of Queues, a feature.
const NUMBER_OF_QUEUES: u32 = 7;
/// CC with EN, and entries of 64 and 16 bytes; CSTS.RDY.
const CC_ENABLE: u64 = 1 | 6 << 16 | 4 << 20;
const CSTS_RDY: u32 = 1;
/// SGL descriptors: data in the capsule, data in PDUs (NVMe/TCP 3.3.2).
const SGL_IN_CAPSULE: u8 = 0x01;
const SGL_TRANSPORT: u8 = 0x5A;
/// Connect's data.
const CONNECT_DATA_LEN: u32 = 1024;
/// Entries of each queue, 0's based.
const SQSIZE: u16 = 31;
/// CATTR: no flow control, so that a read's data need no response after them.
const NO_FLOW_CONTROL: u8 = 1 << 2;
/// How many times CSTS is read.
const READY_ATTEMPTS: usize = 1000;
/// Bytes of a read.
pub(super) const READ_BYTES: u32 = 4096;
/// The namespace's blocks.
pub(super) const BLOCK_BYTES: u32 = 512;
const HOST_NQN: &[u8] = b"nqn.2026-01.io.raceline:xtask-host";

/// A controller's admin queue; it ends with this value.
pub(super) struct Admin {
    queue: Queue,
    controller_id: u16,
    port: u16,
    nqn: String,
}

/// A queue, admin or I/O.
pub(super) struct Queue {
    stream: TcpStream,
}

impl Admin {
    /// Connects to a subsystem on 127.0.0.1 and enables a controller for `io_queues` I/O queues.
    pub(super) fn connect(port: u16, nqn: &str, io_queues: u16, kato_ms: u32) -> Result<Self> {
        let mut queue = Queue::negotiate(port)?;
        let controller_id = queue.connect(0, 0xFFFF, nqn, kato_ms)?;
        let mut admin = Self { queue, controller_id, port, nqn: nqn.to_owned() };
        admin.enable()?;
        let count = u32::from(io_queues) - 1;
        let mut command = command(SET_FEATURES);
        put(&mut command, 40, &NUMBER_OF_QUEUES.to_le_bytes());
        // By its opcode it may carry data; the descriptor says that it carries 0 bytes.
        command[39] = SGL_TRANSPORT;
        put(&mut command, 44, &(count << 16 | count).to_le_bytes());
        let granted = admin.queue.command(&command, &[])?;
        ensure!(granted & 0xFFFF >= count, "the target grants only {} I/O queues", granted + 1);
        Ok(admin)
    }

    /// Connects one of its I/O queues, counted from 1.
    pub(super) fn io_queue(&self, id: u16) -> Result<Queue> {
        let mut queue = Queue::negotiate(self.port)?;
        queue.connect(id, self.controller_id, &self.nqn, 0)?;
        Ok(queue)
    }

    /// Sends Keep Alive and awaits the response.
    pub(super) fn keep_alive(&mut self) -> Result<()> {
        self.queue.command(&command(KEEP_ALIVE), &[]).context("Keep Alive").map(|_| ())
    }

    fn enable(&mut self) -> Result<()> {
        let mut set = fabrics(PROPERTY_SET);
        put(&mut set, 44, &0x14_u32.to_le_bytes());
        put(&mut set, 48, &CC_ENABLE.to_le_bytes());
        self.queue.command(&set, &[])?;
        let mut get = fabrics(PROPERTY_GET);
        put(&mut get, 44, &0x1C_u32.to_le_bytes());
        for _ in 0..READY_ATTEMPTS {
            if self.queue.command(&get, &[])? & CSTS_RDY != 0 {
                return Ok(());
            }
        }
        anyhow::bail!("the controller does not get ready")
    }
}

impl Queue {
    /// A connection to a peer that only answers reads.
    pub(super) fn bare(port: u16) -> Result<Self> {
        Ok(Self { stream: open(port)? })
    }

    /// Reads 4 KiB of namespace 1, from this block on.
    pub(super) fn read(&mut self, block: u64) -> Result<()> {
        let mut command = command(READ);
        put(&mut command, 4, &1_u32.to_le_bytes());
        put(&mut command, 32, &READ_BYTES.to_le_bytes());
        command[39] = SGL_TRANSPORT;
        put(&mut command, SLBA_AT, &block.to_le_bytes());
        put(&mut command, 48, &(READ_BYTES / BLOCK_BYTES - 1).to_le_bytes());
        self.send(&command, &[])?;
        let pdu = read_pdu(&mut self.stream).context("no data for a read")?;
        let want = C2H_DATA_LEN + usize::try_from(READ_BYTES)?;
        ensure!(
            pdu[0] == C2H_DATA && pdu.len() == want,
            "PDU type {} of {} bytes instead of C2HData of {want}",
            pdu[0],
            pdu.len()
        );
        if pdu[1] & SUCCESS == 0 {
            self.response()?;
        }
        Ok(())
    }

    fn negotiate(port: u16) -> Result<Self> {
        let mut stream = open(port)?;
        stream.write_all(&ic_req())?;
        let pdu = read_pdu(&mut stream).context("no ICResp")?;
        ensure!(pdu[0] == 1, "PDU type {} instead of ICResp", pdu[0]);
        Ok(Self { stream })
    }

    /// The Connect command; gives the controller's number.
    fn connect(&mut self, id: u16, controller_id: u16, nqn: &str, kato_ms: u32) -> Result<u16> {
        let mut command = fabrics(CONNECT);
        put(&mut command, 32, &CONNECT_DATA_LEN.to_le_bytes());
        command[39] = SGL_IN_CAPSULE;
        put(&mut command, 42, &id.to_le_bytes());
        put(&mut command, 44, &SQSIZE.to_le_bytes());
        command[46] = if id == 0 { 0 } else { NO_FLOW_CONTROL };
        put(&mut command, 48, &kato_ms.to_le_bytes());
        let mut data = vec![0; usize::try_from(CONNECT_DATA_LEN)?];
        put(&mut data, 0, b"raceline-xtask-1");
        put(&mut data, 16, &controller_id.to_le_bytes());
        put(&mut data, 256, nqn.as_bytes());
        put(&mut data, 512, HOST_NQN);
        let dword_0 = self.command(&command, &data).with_context(|| format!("queue {id}"))?;
        Ok(u16::try_from(dword_0 & 0xFFFF)?)
    }

    /// Sends a command and awaits its response; gives its first dword.
    fn command(&mut self, command: &[u8], data: &[u8]) -> Result<u32> {
        self.send(command, data)?;
        self.response()
    }

    fn send(&mut self, command: &[u8], data: &[u8]) -> Result<()> {
        let plen = u32::from(CAPSULE_CMD_LEN) + u32::try_from(data.len())?;
        let mut pdu = header(CAPSULE_CMD, CAPSULE_CMD_LEN, plen);
        if !data.is_empty() {
            pdu[3] = CAPSULE_CMD_LEN;
        }
        pdu.extend(command);
        pdu.extend(data);
        Ok(self.stream.write_all(&pdu)?)
    }

    fn response(&mut self) -> Result<u32> {
        let pdu = read_pdu(&mut self.stream).context("no response")?;
        ensure!(pdu[0] == CAPSULE_RESP && pdu.len() == 24, "PDU type {} as response", pdu[0]);
        let status = u16::from_le_bytes([pdu[22], pdu[23]]) >> 1;
        ensure!(status == 0, "a command failed with status {status:#05x}");
        Ok(u32::from_le_bytes([pdu[8], pdu[9], pdu[10], pdu[11]]))
    }
}

/// C2HData's header for a whole read, without a response after it.
pub(super) fn data_header() -> [u8; C2H_DATA_LEN] {
    let mut header = [0; C2H_DATA_LEN];
    let len = u8::try_from(C2H_DATA_LEN).unwrap_or(u8::MAX);
    header[..4].copy_from_slice(&[C2H_DATA, SUCCESS | LAST_PDU, len, len]);
    put(&mut header, 4, &(u32::from(len) + READ_BYTES).to_le_bytes());
    put(&mut header, 16, &READ_BYTES.to_le_bytes());
    header
}

/// The first block of the read in this capsule.
pub(super) fn slba(capsule: &[u8; CAPSULE_CMD_LEN as usize]) -> u64 {
    let bytes = capsule[8 + SLBA_AT..].first_chunk();
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// A command with number 0 and its data, if any, described by an SGL.
fn command(opcode: u8) -> Vec<u8> {
    let mut command = vec![0; 64];
    command[0] = opcode;
    command[1] = 0x40;
    command
}

fn fabrics(kind: u8) -> Vec<u8> {
    let mut command = command(FABRICS);
    command[4] = kind;
    command
}

fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
    to[at..at + bytes.len()].copy_from_slice(bytes);
}
