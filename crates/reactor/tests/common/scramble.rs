//! A provider of byte streams for tests: records, scrambled, after a handshake of two messages.
//!
//! A record is 4 bytes (length of what follows, little-endian; kind; number) and up to [`RECORD_MAX`]
//! scrambled bytes. The connecting end begins, the accepting end answers. Neither end sends data before that.
//! A stream ends with a record, so that a connection that is cut off is told from one that has ended.
#![allow(unreachable_pub, reason = "shared by tests")]
#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;

use raceline_reactor::io::RecvBuffers;
use raceline_reactor::{
    ByteStream, Interest, SendBatch, Socket, Source, StreamProvider, Transport,
};

/// Most bytes of a record.
pub const RECORD_MAX: usize = 4000;
const HEADER: usize = 4;

/// Records that are written together.
const RECORDS: usize = 8;

/// Bytes read ahead of receives, at most.
const AHEAD_MAX: usize = 64 << 10;

pub const HELLO: u8 = 1;
pub const DATA: u8 = 2;
pub const END: u8 = 3;

/// Scrambles with this key; both ends need the same.
#[derive(Clone, Debug)]
pub struct Scrambler {
    pub key: u8,
    /// The name that this end gives itself; empty: it has none.
    pub name: &'static str,
    /// Has no descriptor to wait for, although there is one.
    pub polled: bool,
}

impl Scrambler {
    pub fn new(key: u8, name: &'static str) -> Scrambler {
        Scrambler { key, name, polled: false }
    }

    fn wrap(&self, socket: Socket, begins: bool) -> io::Result<Socket> {
        let (local, peer) = (socket.local_address(), socket.peer_address());
        let stream = Scrambled {
            transport: socket.into_transport()?,
            key: self.key,
            polled: self.polled,
            name: self.name,
            begins,
            hello_sent: false,
            peer: None,
            finished: false,
            numbers: (0, 0),
            raw: Vec::new(),
            plain: VecDeque::new(),
            ended: false,
            cut_off: false,
            failed: None,
            owed: VecDeque::new(),
        };
        Ok(Socket::provided(Box::new(stream), local, peer))
    }
}

impl StreamProvider for Scrambler {
    fn accepted(&self, socket: Socket) -> io::Result<Socket> {
        self.wrap(socket, false)
    }

    fn connected(&self, socket: Socket) -> io::Result<Socket> {
        self.wrap(socket, true)
    }
}

/// Hands the bytes on as they are.
#[derive(Clone, Copy, Debug)]
pub struct HandedOn;

impl StreamProvider for HandedOn {
    fn accepted(&self, socket: Socket) -> io::Result<Socket> {
        let (local, peer) = (socket.local_address(), socket.peer_address());
        Ok(Socket::provided(Box::new(socket.into_transport()?), local, peer))
    }

    fn connected(&self, socket: Socket) -> io::Result<Socket> {
        self.accepted(socket)
    }
}

/// A record as it goes over the wire.
pub fn record(key: u8, kind: u8, number: u8, bytes: &[u8]) -> Vec<u8> {
    let len = u16::try_from(bytes.len()).unwrap().to_le_bytes();
    let mut record = vec![len[0], len[1], kind, number];
    record.extend(bytes.iter().enumerate().map(|(at, byte)| byte ^ mask(at) ^ key));
    record
}

fn mask(at: usize) -> u8 {
    (at * 31 % 251).to_le_bytes()[0]
}

struct Scrambled {
    transport: Transport,
    key: u8,
    polled: bool,
    name: &'static str,
    /// It is the connecting end.
    begins: bool,
    hello_sent: bool,
    /// The name of the other end, when its first message has come.
    peer: Option<String>,
    /// The handshake is done.
    finished: bool,
    /// Numbers of the next record to be sent, and of the next to come.
    numbers: (u8, u8),
    /// Read and not yet taken apart: less than a record, after a read.
    raw: Vec<u8>,
    plain: VecDeque<u8>,
    ended: bool,
    /// The transport has ended.
    cut_off: bool,
    /// The error that ended reading, and stays.
    failed: Option<(io::ErrorKind, Option<i32>)>,
    owed: VecDeque<u8>,
}

impl Scrambled {
    fn owe(&mut self, kind: u8, bytes: &[u8]) {
        let (number, _) = self.numbers;
        self.owed.extend(record(self.key, kind, number, bytes));
        self.numbers.0 = number.wrapping_add(1);
    }

    /// Writes what is owed.
    fn pay(&mut self) -> io::Result<()> {
        while !self.owed.is_empty() {
            let (front, _) = self.owed.as_slices();
            let count = self.transport.write(front)?;
            self.owed.drain(..count);
        }
        Ok(())
    }

    /// Reads until there is no more or enough; `WouldBlock` only if nothing is left to be read.
    fn read_ahead(&mut self) -> io::Result<()> {
        if let Some((kind, code)) = self.failed {
            return Err(code.map_or(kind.into(), io::Error::from_raw_os_error));
        }
        let result = self.read_on();
        if let Err(error) = &result
            && error.kind() != io::ErrorKind::WouldBlock
        {
            self.failed = Some((error.kind(), error.raw_os_error()));
        }
        result
    }

    fn read_on(&mut self) -> io::Result<()> {
        let mut piece = [0; 16 << 10];
        while self.plain.len() < AHEAD_MAX && !self.cut_off && !self.ended {
            match self.transport.read(&mut piece)? {
                0 => self.cut_off = true,
                count => {
                    self.raw.extend(&piece[..count]);
                    self.take_apart()?;
                }
            }
        }
        Ok(())
    }

    fn take_apart(&mut self) -> io::Result<()> {
        let wrong = |text: &str| Err(io::Error::new(io::ErrorKind::InvalidData, text));
        while let [a, b, kind, number, rest @ ..] = &self.raw[..] {
            let len = usize::from(u16::from_le_bytes([*a, *b]));
            if len > RECORD_MAX {
                return wrong("a record that is too long");
            }
            if rest.len() < len {
                break;
            }
            if *number != self.numbers.1 {
                return wrong("a record out of order");
            }
            self.numbers.1 = number.wrapping_add(1);
            let key = self.key;
            let bytes = rest[..len].iter().enumerate().map(|(at, byte)| byte ^ mask(at) ^ key);
            match *kind {
                HELLO => match String::from_utf8(bytes.collect()) {
                    Ok(text) => match text.strip_prefix("hello from ") {
                        Some(name) => self.peer = Some(name.to_owned()),
                        None => return wrong("another key"),
                    },
                    Err(_) => return wrong("another key"),
                },
                DATA if self.finished => self.plain.extend(bytes),
                END if self.peer.is_some() => self.ended = true,
                _ => return wrong("not the time for such a record"),
            }
            self.raw.drain(..HEADER + len);
            self.step();
        }
        Ok(())
    }

    /// The next message of the handshake, if it is our turn.
    fn step(&mut self) {
        let may_speak = self.begins || self.peer.is_some();
        if may_speak && !self.hello_sent {
            self.hello_sent = true;
            let text = format!("hello from {}", self.name);
            self.owe(HELLO, text.as_bytes());
        }
        self.finished = self.hello_sent && self.peer.is_some();
    }
}

impl ByteStream for Scrambled {
    fn advance(&mut self) -> io::Result<()> {
        self.step();
        self.pay()?;
        if !self.finished {
            let read = self.read_ahead();
            self.pay()?;
            if self.cut_off && !self.finished {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if !self.finished {
                read?;
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        Ok(())
    }

    fn receive(&mut self, into: &mut RecvBuffers) -> io::Result<usize> {
        if !self.finished {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let read = if self.plain.len() < into.room() { self.read_ahead() } else { Ok(()) };
        let (front, back) = self.plain.as_slices();
        let mut filled = into.put(0, front);
        if filled == front.len() {
            filled += into.put(filled, back);
        }
        self.plain.drain(..filled);
        match read {
            _ if filled > 0 => Ok(filled),
            _ if self.ended => Ok(0),
            Ok(()) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => Err(error),
        }
    }

    fn transmit(&mut self, batch: &mut SendBatch) -> io::Result<usize> {
        if !self.finished {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.pay()?;
        let mut bytes = [0; RECORDS * RECORD_MAX];
        let count = batch.copy_unsent(&mut bytes);
        bytes[..count].chunks(RECORD_MAX).for_each(|record| self.owe(DATA, record));
        match self.pay() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(count),
        }
    }

    fn unread(&mut self) -> usize {
        if self.finished {
            let _ = self.read_ahead();
        }
        self.plain.len()
    }

    fn interest(&self, waiting: Interest) -> Interest {
        Interest { read: waiting.read || !self.finished, write: !self.owed.is_empty() }
    }

    fn source(&self) -> Source<'_> {
        if self.polled { Source::polled() } else { self.transport.source() }
    }

    fn kernel_socket(&self) -> Option<BorrowedFd<'_>> {
        self.transport.kernel_socket()
    }

    fn peer_identity(&self) -> Option<&str> {
        self.peer.as_deref().filter(|name| self.finished && !name.is_empty())
    }

    fn close(&mut self, reset: bool) {
        if !reset && self.finished && self.owed.is_empty() {
            self.owe(END, &[]);
            let _ = self.pay();
        }
        self.transport.close(reset);
    }
}
