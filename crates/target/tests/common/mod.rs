//! A blocking NVMe/TCP host for tests: one socket, PDUs by hand where a test wants them broken.
//!
//! `over_rdma.rs` is the same over RDMA: a program of tests names one or the other as its module `common`.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    unused_macros,
    reason = "each test uses a part of it"
)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod basics;
pub mod chap;
mod commands;
pub mod hosts;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};

use raceline_proto::nvme::{CommandId, Direction, Sqe};
use raceline_proto::tcp::{HostEvent, HostQueue, HostQueueConfig, R2tGrant, TermReq};
use raceline_target::Entrance;

pub use basics::*;

/// What has no meaning over RDMA: R2Ts, digests, bytes and sockets of TCP.
macro_rules! tcp_only {
    ($($item:item)*) => { $($item)* };
}

/// Commands that a test of rates keeps under way for each that it wants.
pub const DEEPER: usize = 1;

/// What a host without a limit does at least: over this transport, and over the simulated network of RDMA.
pub fn unlimited(here: u64, _over_rdma: u64) -> u64 {
    here
}

/// Where a new listener goes.
pub fn any_address() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Waits until the target has before it what was sent: a socket's peer has it at once.
pub fn settle() {}

/// How its hosts come in.
pub fn entrance() -> Entrance {
    Entrance::default()
}

/// Whether somebody listens there.
pub fn is_reachable(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, PATIENCE).is_ok()
}

/// A connection from a chosen loopback address.
pub fn dial_from(source: [u8; 4], address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(IpAddr::from(source), 0).into())?;
    socket.connect_timeout(&address.into(), PATIENCE)?;
    Ok(socket.into())
}

/// Hosts that begin to connect and go no further.
pub struct Crowd {
    address: SocketAddr,
    /// The bytes of ICReq, and of Connect.
    greeting: Vec<u8>,
    capsule: Vec<u8>,
}

impl Crowd {
    /// How many come.
    pub const SIZE: usize = 10_000;
    /// How many stay at the same time: as many as the target has early ones, and as many again.
    pub const STAY: usize = 2048;
    /// Early connections that the target has.
    pub const EARLY: usize = 1024;

    pub fn new(address: SocketAddr) -> Self {
        let mut host = RawHost::dial(address, Wants::default());
        let mut greeting = Vec::new();
        host.queue.ic_req(&mut greeting);
        host.stream.write_all(&greeting).unwrap();
        host.listen();
        let (words, data) = connect_words();
        let (_, capsule) = host.capsule(words, zerocopy::IntoBytes::as_bytes(&data));
        Self { address, greeting, capsule }
    }

    /// The host of this number: some stop at once, some after ICReq, most after Connect, with the name of the real host.
    /// `None`: it was sent away.
    pub fn come(&self, number: usize) -> Option<TcpStream> {
        let mut socket = dial_from(source_of(number), self.address).ok()?;
        let bytes = match number % 4 {
            0 => Vec::new(),
            1 => self.greeting.clone(),
            _ => [&self.greeting[..], &self.capsule].concat(),
        };
        let _ = socket.write_all(&bytes);
        Some(socket)
    }
}

/// PDUs that answer a read: its data, which say that it has succeeded.
pub const ANSWERS_OF_A_READ: u64 = 1;

/// One queue's connection.
pub struct RawHost {
    pub stream: TcpStream,
    pub queue: HostQueue,
    input: Vec<u8>,
    next_cid: u16,
    pub heard: Vec<Heard>,
}

impl RawHost {
    /// A socket without ICReq.
    pub fn dial(address: SocketAddr, wants: Wants) -> Self {
        Self::over(TcpStream::connect_timeout(&address, PATIENCE).unwrap(), wants)
    }

    /// The same over a socket that is connected.
    pub fn over(stream: TcpStream, wants: Wants) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let Wants { hdgst, ddgst, hpda } = wants;
        let queue = HostQueue::new(HostQueueConfig { hpda, hdgst, ddgst, maxr2t: 0, slots: 1024 });
        Self { stream, queue, input: Vec::new(), next_cid: 1, heard: Vec::new() }
    }

    /// A socket with ICReq and ICResp exchanged.
    pub fn open(address: SocketAddr, wants: Wants) -> Self {
        let mut host = Self::dial(address, wants);
        host.greet();
        host
    }

    /// The same from this address of the machine.
    pub fn open_from(source: [u8; 4], address: SocketAddr, wants: Wants) -> Self {
        let mut host = Self::over(dial_from(source, address).unwrap(), wants);
        host.greet();
        host
    }

    /// Exchanges ICReq and ICResp.
    pub fn greet(&mut self) {
        let mut out = Vec::new();
        self.queue.ic_req(&mut out);
        self.stream.write_all(&out).unwrap();
        assert!(matches!(self.listen(), Heard::Connected));
    }

    /// Its end of the socket.
    pub fn own_address(&self) -> Option<SocketAddr> {
        Some(self.stream.local_addr().unwrap())
    }

    fn tag(&mut self, mut sqe: Sqe) -> Sqe {
        sqe.cid = self.next_cid.into();
        self.next_cid = self.next_cid.wrapping_add(1);
        sqe
    }

    /// Sends a command; gives its identifier.
    pub fn submit(&mut self, sqe: Sqe, direction: Direction, len: u32) -> CommandId {
        let sqe = self.tag(sqe);
        let mut out = Vec::new();
        self.queue.command(&sqe, direction, len, false, &mut out);
        self.stream.write_all(&out).unwrap();
        sqe.command_id()
    }

    /// Sends a command whose data the target asks for later: give them to [`Self::wait`], too.
    pub fn submit_write(&mut self, sqe: Sqe, data: &[u8]) -> CommandId {
        self.submit(sqe, Direction::HostToController, u32::try_from(data.len()).unwrap())
    }

    /// Sends these commands at once, with their data in their capsules.
    pub fn submit_all(&mut self, commands: &[(Sqe, &[u8])]) -> Vec<CommandId> {
        let (cids, capsules): (Vec<_>, Vec<_>) =
            commands.iter().map(|(sqe, data)| self.capsule(*sqe, data)).unzip();
        self.send_bytes(&capsules.concat());
        cids
    }

    /// Sends a command whose bytes `patch` changes first, and waits for its end.
    pub fn patched_command(
        &mut self,
        sqe: Sqe,
        direction: Direction,
        len: u32,
        patch: impl FnOnce(&mut [u8]),
    ) -> Answer {
        let sqe = self.tag(sqe);
        let mut out = Vec::new();
        self.queue.command(&sqe, direction, len, false, &mut out);
        patch(&mut out);
        self.stream.write_all(&out).unwrap();
        self.wait(sqe.command_id(), &[])
    }

    /// Sends a command with its data in the capsule.
    pub fn submit_in_capsule(&mut self, sqe: Sqe, data: &[u8]) -> CommandId {
        let (cid, capsule) = self.capsule(sqe, data);
        self.stream.write_all(&capsule).unwrap();
        cid
    }

    /// The bytes of a command with its data in the capsule.
    pub fn capsule(&mut self, sqe: Sqe, data: &[u8]) -> (CommandId, Vec<u8>) {
        let sqe = self.tag(sqe);
        let mut out = Vec::new();
        let len = u32::try_from(data.len()).unwrap();
        self.queue.command(&sqe, Direction::HostToController, len, true, &mut out);
        out.extend_from_slice(data);
        self.push_digest(data, &mut out);
        (sqe.command_id(), out)
    }

    /// Sends these bytes as they are.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    fn push_digest(&self, data: &[u8], out: &mut Vec<u8>) {
        if self.queue.data_digest() {
            out.extend_from_slice(&raceline_accel::crc32c(data).to_le_bytes());
        }
    }

    /// Data go when the test sends them, and not before.
    pub fn keep_data(&mut self, _keeps: bool) {}

    /// What the target grants for so many writes: it has a buffer for each of them then.
    pub fn grants(&mut self, writes: usize) -> Vec<Heard> {
        (0..writes).map(|_| self.listen()).collect()
    }

    pub fn send_data(&mut self, grant: &R2tGrant, data: &[u8]) {
        let mut offset = grant.offset;
        let end = grant.offset + grant.len;
        while offset < end {
            let len = (end - offset).min(self.queue.max_h2c_data()).min(48 << 10);
            let mut out = Vec::new();
            self.queue.h2c_data(grant, offset, len, offset + len == end, &mut out);
            let part = &data[offset as usize..(offset + len) as usize];
            out.extend_from_slice(part);
            self.push_digest(part, &mut out);
            self.stream.write_all(&out).unwrap();
            offset += len;
        }
    }

    /// The H2CData PDUs of a write, each of at most `pdu` bytes.
    pub fn h2c_data(&mut self, grant: &R2tGrant, data: &[u8], pdu: u32) -> Vec<u8> {
        let mut out = Vec::new();
        for offset in (0..grant.len).step_by(pdu as usize) {
            let len = pdu.min(grant.len - offset);
            self.queue.h2c_data(grant, offset, len, offset + len == grant.len, &mut out);
            out.extend_from_slice(&data[offset as usize..(offset + len) as usize]);
        }
        out
    }

    /// Writes with H2CData PDUs of at most `pdu` bytes, which leave in pieces of `piece` bytes.
    pub fn write_in_pieces(&mut self, sqe: Sqe, data: &[u8], pdu: u32, piece: usize) -> Answer {
        let cid = self.submit_write(sqe, data);
        let Heard::SendData(grant) = self.listen() else { panic!("no R2T") };
        let bytes = self.h2c_data(&grant, data, pdu);
        bytes.chunks(piece).for_each(|piece| self.send_bytes(piece));
        self.wait(cid, data)
    }

    /// The next event.
    pub fn listen(&mut self) -> Heard {
        loop {
            let mut rest = &self.input[..];
            let heard = self.queue.receive(&mut rest).unwrap().map(own);
            let used = self.input.len() - rest.len();
            self.input.drain(..used);
            if let Some(heard) = heard {
                return heard;
            }
            let mut chunk = [0; 65536];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Heard::Closed,
                Ok(len) => self.input.extend_from_slice(&chunk[..len]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                    return Heard::Closed;
                }
                Err(error) => panic!("nothing from the target: {error}"),
            }
        }
    }

    /// The TermReq that comes next.
    pub fn expect_term_req(&mut self) -> TermReq {
        loop {
            match self.listen() {
                Heard::Terminated(info) => return info,
                Heard::Closed => panic!("closed without C2HTermReq"),
                _ => {}
            }
        }
    }
}

fn own(event: HostEvent<'_>) -> Heard {
    match event {
        HostEvent::Connected(_) => Heard::Connected,
        HostEvent::Response(cqe) => Heard::Response(cqe),
        HostEvent::Data { cid, offset, bytes } => {
            Heard::Data { cid, offset, bytes: bytes.to_vec() }
        }
        HostEvent::DataEnd { cid, offset, len, ddgst, success, .. } => {
            let bytes = offset as usize..(offset + len) as usize;
            Heard::DataEnd { cid, bytes, ddgst, success }
        }
        HostEvent::SendData(grant) => Heard::SendData(grant),
        HostEvent::Terminated(info) => Heard::Terminated(info),
    }
}
