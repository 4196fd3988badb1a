//! Memory of a program that an operation owns until it completes.

#![allow(unsafe_code)]

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use raceline_proto::nvme::Direction;
use raceline_reactor::{BufferPool, HugePages, PageBuf};

use crate::command::Data;
use crate::split::{Part, SplitMemory};

/// Memory for the data of one operation: handed over with it, and given back with its end. What
/// the socket receives is written here, and what it sends is read here; there is no copy between.
#[derive(Debug)]
pub struct Memory(Kind);

#[derive(Debug)]
enum Kind {
    Pages(PageBuf),
    Bytes(Vec<u8>),
    Foreign(Foreign),
}

/// Memory whose owner has promised to leave it alone.
#[derive(Debug)]
struct Foreign {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: whoever made it has promised that nobody else uses the memory, on whatever thread.
unsafe impl Send for Foreign {}

impl Memory {
    /// Whole pages of zeroes, for a program to allocate once and to use for many operations.
    ///
    /// # Errors
    /// The error of mmap(2).
    pub fn pages(len: usize) -> io::Result<Self> {
        Ok(Self(Kind::Pages(PageBuf::new(len, HugePages::None)?)))
    }

    /// Memory that belongs to code in another language.
    ///
    /// # Safety
    /// Until the operation that it goes with has ended, or the queues are dropped, the memory is valid for
    /// reads and writes of `len` bytes and no other code uses it. For an operation that sends it, it is
    /// enough that it is valid for reads and that no code writes it; then it must not be borrowed mutably
    /// through this. As an owner of such memory, this may be moved to another thread.
    #[must_use]
    pub unsafe fn foreign(start: NonNull<u8>, len: usize) -> Self {
        Self(Kind::Foreign(Foreign { start, len }))
    }

    /// The bytes, where they are the program's own and not foreign.
    #[must_use]
    pub fn into_bytes(self) -> Option<Vec<u8>> {
        match self.0 {
            Kind::Bytes(bytes) => Some(bytes),
            Kind::Pages(pages) => Some(pages.to_vec()),
            Kind::Foreign(_) => None,
        }
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "slices have is_empty, through Deref")]
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Kind::Pages(pages) => pages.len(),
            Kind::Bytes(bytes) => bytes.len(),
            Kind::Foreign(foreign) => foreign.len,
        }
    }

    /// Where the memory begins. An access through the pointer, while the owner stays where it is, counts as
    /// an access by the owner.
    pub(super) fn start(&mut self) -> NonNull<u8> {
        match &mut self.0 {
            // Other code may read memory that is only sent, so no exclusive borrow is made of it.
            Kind::Foreign(foreign) => foreign.start,
            Kind::Pages(pages) => NonNull::from(&mut pages[..]).cast(),
            Kind::Bytes(bytes) => NonNull::from(&mut bytes[..]).cast(),
        }
    }
}

/// The memory of an operation on its way, lent to its commands part by part.
#[derive(Debug)]
pub(super) struct LentMemory {
    memory: Option<Memory>,
    /// Where it begins.
    start: NonNull<u8>,
    /// Bytes that were lent, from its start on.
    given: usize,
}

impl LentMemory {
    /// # Safety
    /// Until all buffers that this gives are gone, it is not dropped, and [`Self::into_memory`] is not
    /// called.
    pub(super) unsafe fn new(mut memory: Option<Memory>) -> Self {
        let start = memory.as_mut().map_or(NonNull::dangling(), Memory::start);
        Self { memory, start, given: 0 }
    }

    /// The memory, which no buffer lies over any more.
    pub(super) fn into_memory(self) -> Option<Memory> {
        self.memory
    }
}

impl SplitMemory for LentMemory {
    type Room = BufferPool;

    fn give(&mut self, pool: &BufferPool, part: &Part) -> Option<Data> {
        let end = part.offset.checked_add(part.len);
        let end = end.filter(|&end| Some(end) <= self.memory.as_ref().map(Memory::len));
        let (true, Some(end)) = (part.offset == self.given, end) else {
            unreachable!("parts are asked for in order, and are inside the memory");
        };
        // SAFETY: the part is inside the memory, and no other buffer has a byte of it. The memory
        // stays where it is, and nobody uses it, until all buffers are gone: `memory` is private and
        // `new` was promised the rest.
        let buf = unsafe { pool.lend(self.start.add(part.offset), part.len) }?;
        self.given = end;
        Some(match part.direction {
            Direction::ControllerToHost => Data::Read(buf),
            Direction::HostToController | Direction::None => Data::Write(buf.share()),
        })
    }

    fn take_back(&mut self, data: Data) {
        drop(data); // its buffer is over the memory here
    }
}

impl From<Vec<u8>> for Memory {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Kind::Bytes(bytes))
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Kind::Pages(pages) => pages,
            Kind::Bytes(bytes) => bytes,
            // SAFETY: valid and left alone, as its maker has promised.
            Kind::Foreign(foreign) => unsafe {
                std::slice::from_raw_parts(foreign.start.as_ptr(), foreign.len)
            },
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Kind::Pages(pages) => pages,
            Kind::Bytes(bytes) => bytes,
            // SAFETY: as in `deref`, and this is its only owner.
            Kind::Foreign(foreign) => unsafe {
                std::slice::from_raw_parts_mut(foreign.start.as_ptr(), foreign.len)
            },
        }
    }
}
