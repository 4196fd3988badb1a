//! The operations in flight of a ring: slots that own memory and never move.

use std::io;
use std::os::fd::OwnedFd;

use io_uring::register::Restriction;
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, squeue};
use raceline_proto::nvme::{PassthroughCommand, Sqe};
use socket2::SockAddr;

use super::FILE_IO_MAX;
use super::fixed::{FIXED_INDEX, FixedMemory};
use super::zero_copy::Kept;
use crate::io::nvme::{self, NvmeFormat};
use crate::io::stream::Interest;
use crate::io::{AllocateMode, RecvBuffers, Token};
use crate::memory::buffer::{IoBuf, SharedBuf};
use crate::send::SendBatch;

/// Slots allocated at a time. A core starts with one chunk and gets more as connections come;
/// they are kept, so a core that has seen its peak allocates no more.
const CHUNK: usize = 256;

/// All that a ring may do.
const OPCODES: [u8; 13] = [
    opcode::Accept::CODE,
    opcode::AsyncCancel::CODE,
    opcode::Connect::CODE,
    opcode::Fallocate::CODE,
    opcode::Fsync::CODE,
    opcode::PollAdd::CODE,
    opcode::Read::CODE,
    opcode::ReadFixed::CODE,
    opcode::Recv::CODE,
    opcode::RecvMsg::CODE,
    opcode::SendMsg::CODE,
    opcode::Write::CODE,
    opcode::WriteFixed::CODE,
];

/// `IORING_REGISTER_BUFFERS` and `IORING_REGISTER_NAPI` (Linux 6.9), which a running ring permits.
const REGISTER_BUFFERS: u8 = 0;
const REGISTER_NAPI: u8 = 27;

/// Most bytes that one Dataset Management command releases.
const RELEASE_MAX: u64 = 1 << 30;

/// All that a ring may do, as the kernel wants to know it.
/// A kernel refuses a list with an operation that it does not know.
pub(super) fn permitted(zero_copy: bool, busy_poll: bool) -> Vec<Restriction> {
    let newer = zero_copy.then_some(opcode::SendMsgZc::CODE);
    let operations = OPCODES.into_iter().chain(newer).map(Restriction::sqe_op);
    let registers = [REGISTER_BUFFERS].into_iter().chain(busy_poll.then_some(REGISTER_NAPI));
    operations.chain(registers.map(Restriction::register_op)).collect()
}

/// What an operation does, with everything it owns.
pub(super) enum Kind {
    Accept {
        listener: u32,
        /// One connection, instead of all that come.
        one: bool,
    },
    /// A wait for news of a provider's slot.
    Watch {
        slot: u32,
        interest: Interest,
    },
    Connect {
        fd: OwnedFd,
        address: Box<SockAddr>,
    },
    Recv {
        socket: u32,
        buffers: RecvBuffers,
    },
    Send {
        socket: u32,
        batch: Box<SendBatch>,
    },
    /// A send without a copy. The batch stays here until the kernel has told that nobody reads its memory.
    SendKept {
        socket: u32,
        batch: Box<SendBatch>,
        kept: Kept,
    },
    Read {
        file: u32,
        buf: IoBuf,
        offset: u64,
        progress: usize,
    },
    Write {
        file: u32,
        buf: SharedBuf,
        offset: u64,
        durable: bool,
        progress: usize,
    },
    Sync {
        file: u32,
    },
    Allocate {
        file: u32,
        mode: AllocateMode,
        offset: u64,
        len: u64,
        progress: u64,
    },
}

impl Kind {
    /// The file that it is about.
    pub(super) fn file(&self) -> Option<u32> {
        match self {
            Self::Read { file, .. }
            | Self::Write { file, .. }
            | Self::Sync { file }
            | Self::Allocate { file, .. } => Some(*file),
            Self::Accept { .. }
            | Self::Watch { .. }
            | Self::Connect { .. }
            | Self::Recv { .. }
            | Self::Send { .. }
            | Self::SendKept { .. } => None,
        }
    }
}

/// One operation in flight, or a free slot.
pub(super) struct OpSlot {
    /// Which use of the slot this is, so that a completion can be checked against it.
    generation: u32,
    token: Token,
    kind: Option<Kind>,
    /// What recvmsg reads while the operation is in flight.
    iovecs: [libc::iovec; 2],
    message: libc::msghdr,
    /// What Dataset Management reads meanwhile.
    range: nvme::Range,
}

impl OpSlot {
    fn empty() -> OpSlot {
        let iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        OpSlot {
            generation: 0,
            token: Token { owner: 0, generation: 0, index: 0 },
            kind: None,
            iovecs: [iovec; 2],
            // SAFETY: msghdr is plain data for which zeroes are valid.
            message: unsafe { std::mem::zeroed() },
            range: nvme::Range::default(),
        }
    }

    pub(super) fn token(&self) -> Token {
        self.token
    }

    pub(super) fn kind(&self) -> &Kind {
        self.kind.as_ref().expect("the slot is in use")
    }

    pub(super) fn kind_mut(&mut self) -> &mut Kind {
        self.kind.as_mut().expect("the slot is in use")
    }

    /// The submission for what is left to do. It points into the slot and the memory it owns.
    pub(super) fn prepare(&mut self, fd: Fd, fixed: &FixedMemory) -> squeue::Entry {
        let kind = self.kind.as_mut().expect("the slot is in use");
        match kind {
            Kind::Accept { one: true, .. } => {
                let nowhere = std::ptr::null_mut();
                let accept = opcode::Accept::new(fd, nowhere, std::ptr::null_mut());
                accept.flags(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK).build()
            }
            Kind::Accept { .. } => {
                opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK).build()
            }
            Kind::Watch { interest, .. } => {
                let events = interest.poll_events().cast_unsigned();
                opcode::PollAdd::new(fd, events.into()).build()
            }
            Kind::Connect { address, .. } => {
                opcode::Connect::new(fd, address.as_ptr().cast(), address.len()).build()
            }
            Kind::Recv { buffers, .. } => {
                let (iovecs, count) = buffers.iovecs();
                if count == 1 {
                    let [iovec, _] = iovecs;
                    let len = io_len(iovec.iov_len, u32::MAX);
                    return opcode::Recv::new(fd, iovec.iov_base.cast(), len).build();
                }
                self.iovecs = iovecs;
                self.message.msg_iov = self.iovecs.as_mut_ptr();
                self.message.msg_iovlen = count;
                opcode::RecvMsg::new(fd, &raw mut self.message).build()
            }
            Kind::Send { batch, .. } => {
                // MSG_WAITALL: the kernel itself goes on after a partial send.
                let message: *const libc::msghdr = batch.prepare();
                let more = if batch.is_flagged() { batch.flags() } else { 0 };
                let flags = libc::MSG_WAITALL | libc::MSG_NOSIGNAL | more;
                opcode::SendMsg::new(fd, message).flags(flags.cast_unsigned()).build()
            }
            Kind::SendKept { batch, kept, .. } => kept.submission(fd, batch),
            Kind::Read { buf, offset, progress, .. } => {
                let offset = *offset + *progress as u64;
                let rest = &mut buf[*progress..];
                let len = io_len(rest.len(), FILE_IO_MAX);
                let memory = rest.as_mut_ptr();
                if fixed.holds(memory.addr(), len) {
                    return opcode::ReadFixed::new(fd, memory, len, FIXED_INDEX)
                        .offset(offset)
                        .build();
                }
                opcode::Read::new(fd, memory, len).offset(offset).build()
            }
            Kind::Write { buf, offset, durable, progress, .. } => {
                let offset = *offset + *progress as u64;
                let rest = &buf[*progress..];
                let len = io_len(rest.len(), FILE_IO_MAX);
                let flags = if *durable { libc::RWF_DSYNC } else { 0 };
                let memory = rest.as_ptr();
                if fixed.holds(memory.addr(), len) {
                    let write = opcode::WriteFixed::new(fd, memory, len, FIXED_INDEX);
                    return write.offset(offset).rw_flags(flags).build();
                }
                opcode::Write::new(fd, memory, len).offset(offset).rw_flags(flags).build()
            }
            Kind::Sync { .. } => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
            Kind::Allocate { mode, offset, len, .. } => {
                opcode::Fallocate::new(fd, *len).offset(*offset).mode(mode.flags()).build()
            }
        }
    }

    /// The NVMe command for the next piece of what is left to do. It points into the slot and the
    /// memory it owns.
    pub(super) fn prepare_nvme(&mut self, format: NvmeFormat) -> io::Result<PassthroughCommand> {
        let piece = self.nvme_piece(format);
        let data_len = u32::try_from(piece).unwrap_or(u32::MAX);
        match self.kind.as_mut().expect("the slot is in use") {
            Kind::Read { buf, offset, progress, .. } => {
                let sqe = format.read(*offset + *progress as u64, data_len)?;
                Ok(with_data(&sqe, buf[*progress..].as_mut_ptr(), data_len))
            }
            Kind::Write { buf, offset, durable, progress, .. } => {
                let sqe = format.write(*offset + *progress as u64, data_len, *durable)?;
                Ok(with_data(&sqe, buf[*progress..].as_ptr(), data_len))
            }
            Kind::Sync { .. } => Ok(PassthroughCommand::new(&format.flush())),
            Kind::Allocate { mode: AllocateMode::Release, offset, progress, .. } => {
                let (sqe, range) = format.deallocate(*offset + *progress, piece as u64)?;
                self.range = range;
                Ok(with_data(&sqe, &raw const self.range, nvme::Range::LEN))
            }
            Kind::Allocate { mode, offset, progress, .. } => {
                let deallocate = *mode == AllocateMode::PunchHole;
                let sqe = format.write_zeroes(*offset + *progress, data_len, deallocate)?;
                Ok(PassthroughCommand::new(&sqe))
            }
            Kind::Accept { .. }
            | Kind::Watch { .. }
            | Kind::Connect { .. }
            | Kind::Recv { .. }
            | Kind::Send { .. }
            | Kind::SendKept { .. } => unreachable!("an operation on a socket"),
        }
    }

    /// How many bytes the next, or running, NVMe command is about.
    pub(super) fn nvme_piece(&self, format: NvmeFormat) -> usize {
        match self.kind() {
            Kind::Read { buf, progress, .. } => format.piece(buf.len() - progress) as usize,
            Kind::Write { buf, progress, .. } => format.piece(buf.len() - progress) as usize,
            Kind::Allocate { mode: AllocateMode::Release, len, progress, .. } => {
                (len - progress).min(RELEASE_MAX) as usize
            }
            Kind::Allocate { len, progress, .. } => format.zeroes_piece(len - progress) as usize,
            _ => 0,
        }
    }
}

/// All operations in flight. Grows by whole chunks; what is in a chunk never moves.
pub(super) struct OpSlab {
    chunks: Vec<Box<[OpSlot]>>,
    free: Vec<u32>,
    live: usize,
}

impl OpSlab {
    pub(super) fn new() -> OpSlab {
        let mut slab = OpSlab { chunks: Vec::new(), free: Vec::new(), live: 0 };
        slab.grow();
        slab
    }

    /// Number of operations in flight.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// Takes an operation; gives the `user_data` that names it.
    pub(super) fn insert(&mut self, token: Token, kind: Kind) -> u64 {
        if self.free.is_empty() {
            self.grow();
        }
        let index = self.free.pop().expect("just grown");
        let slot = &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK];
        slot.token = token;
        slot.kind = Some(kind);
        self.live += 1;
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    /// The operation of this name, if it is still in flight.
    pub(super) fn get_mut(&mut self, user_data: u64) -> Option<&mut OpSlot> {
        let (generation, index) = parts(user_data)?;
        let slot = self.chunks.get_mut(index / CHUNK)?.get_mut(index % CHUNK)?;
        (slot.generation == generation && slot.kind.is_some()).then_some(slot)
    }

    /// Ends an operation: its slot is free, what it owned is the caller's.
    pub(super) fn remove(&mut self, user_data: u64) -> Option<Kind> {
        let slot = self.get_mut(user_data)?;
        let kind = slot.kind.take();
        // Stays below 2^31: the highest values of `user_data` have other meanings.
        slot.generation = (slot.generation + 1) % (1 << 31);
        self.live -= 1;
        self.free.push(u32::try_from(user_data % (1 << 32)).ok()?);
        kind
    }

    /// Leaks all memory, as the kernel may still write to it.
    pub(super) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.chunks));
        self.live = 0;
    }

    fn grow(&mut self) {
        let first = self.chunks.len() * CHUNK;
        self.chunks.push((0..CHUNK).map(|_| OpSlot::empty()).collect());
        let indices = first..first + CHUNK;
        self.free.extend(indices.rev().map(|index| u32::try_from(index).expect("fewer than 2^32")));
    }
}

fn parts(user_data: u64) -> Option<(u32, usize)> {
    let generation = u32::try_from(user_data >> 32).ok()?;
    Some((generation, usize::try_from(user_data % (1 << 32)).ok()?))
}

/// The command of an entry with its data here.
fn with_data<T>(sqe: &Sqe, data: *const T, len: u32) -> PassthroughCommand {
    PassthroughCommand::new(sqe).with_data(data.expose_provenance() as u64, len)
}

fn io_len(len: usize, max: u32) -> u32 {
    u32::try_from(len).unwrap_or(max).min(max)
}

/// The result of a read or write that moved `progress` of `len` bytes.
pub(super) fn whole(
    result: io::Result<usize>,
    progress: usize,
    len: usize,
    short: io::ErrorKind,
) -> io::Result<()> {
    result.and_then(|_| if progress == len { Ok(()) } else { Err(short.into()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_does_nothing_that_is_not_on_the_list() {
        use io_uring::types::Fd;
        let mut ring = match super::super::ring::open_ring() {
            Ok(ring) => ring,
            Err(error) => return eprintln!("SKIPPED: no io_uring here: {error}"),
        };
        let (here, name) = (Fd(libc::AT_FDCWD), c"/dev/null".as_ptr());
        for (what, entry) in [
            ("no operation", opcode::Nop::new().build()),
            ("open", opcode::OpenAt::new(here, name).build()),
            ("unlink", opcode::UnlinkAt::new(here, c"/nonexistent".as_ptr()).build()),
            ("socket", opcode::Socket::new(libc::AF_PACKET, libc::SOCK_RAW, 0).build()),
        ] {
            // SAFETY: the entries point at constants.
            unsafe { ring.submission().push(&entry) }.unwrap();
            ring.submit_and_wait(1).unwrap();
            let answer = ring.completion().next().unwrap().result();
            assert_eq!(answer, -libc::EACCES, "{what}");
        }
        let refused = ring.submitter().register_eventfd(0).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EACCES));
    }

    #[test]
    fn slots_do_not_move_and_names_are_not_reused() {
        let token = Token { owner: 1, generation: 2, index: 3 };
        let mut slab = OpSlab::new();
        let first = slab.insert(token, Kind::Sync { file: 1 });
        let address: *const OpSlot = slab.get_mut(first).unwrap();
        let more: Vec<u64> =
            (0..1000).map(|file| slab.insert(token, Kind::Sync { file })).collect();
        assert_eq!(slab.live(), 1001);
        assert!(std::ptr::eq(address, slab.get_mut(first).unwrap()));
        assert!(slab.remove(first).is_some());
        assert!(slab.remove(first).is_none());
        let again = slab.insert(token, Kind::Sync { file: 9 });
        assert_ne!(first, again);
        assert!(slab.get_mut(first).is_none());
        assert!(more.iter().all(|&name| slab.remove(name).is_some()));
        assert_eq!(slab.live(), 1);
    }
}
