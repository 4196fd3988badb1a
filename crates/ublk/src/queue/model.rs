//! Models of the kernel and of a device, for tests and for the fuzz target `disk_queues`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use raceline_bdev::{BdevError, Done, Op, Request};
use raceline_reactor::ublk::UblkDescriptor;
use raceline_reactor::{IoBuf, Payload};

use crate::plan::Facts;
use crate::queue::Queue;

pub(crate) const BYTES: u64 = 1 << 20;
const MAX_IO: u32 = 16 << 10;
pub(crate) const DEPTH: u16 = 4;

pub(crate) const FACTS: Facts = Facts {
    block_bytes: 512,
    bytes: BYTES,
    max_io_bytes: MAX_IO,
    read_only: false,
    discards: true,
};

/// A device of zeroes and bytes, which may be unable to zero, and may fail.
pub(crate) struct Device {
    pub(crate) bytes: Vec<u8>,
    zeroes: bool,
    pub(crate) fails: bool,
    /// Writes that had to be on stable media, and flushes.
    pub(crate) durable: usize,
    pub(crate) flushes: usize,
}

impl Device {
    /// A device of that many bytes.
    pub(crate) fn new(bytes: u64, zeroes: bool) -> Self {
        let bytes = vec![0; usize::try_from(bytes).unwrap()];
        Self { bytes, zeroes, fails: false, durable: 0, flushes: 0 }
    }

    /// Carries out a request, which must be inside of the device.
    pub(crate) fn run(&mut self, request: Request) -> Done {
        let at = |offset: u64| usize::try_from(offset).unwrap();
        let mut result = if self.fails { Err(BdevError::WriteFault) } else { Ok(()) };
        let payload = match request.op {
            Op::Read { offset, len, buf } => {
                let mut buf = buf.unwrap();
                assert_eq!(buf.len(), len);
                buf.copy_from_slice(&self.bytes[at(offset)..at(offset) + len]);
                Some(Payload::Buf(buf, 0..len))
            }
            Op::Write { offset, data, fua } => {
                self.durable += usize::from(fua);
                self.bytes[at(offset)..at(offset) + data.len()].copy_from_slice(&data);
                let len = data.len();
                Some(Payload::Shared(data, 0..len))
            }
            Op::Flush => {
                self.flushes += 1;
                None
            }
            Op::WriteZeroes { offset, len, .. } if self.zeroes => {
                self.bytes[at(offset)..at(offset + len)].fill(0);
                None
            }
            Op::WriteZeroes { .. } => {
                result = Err(BdevError::NotSupported);
                None
            }
            Op::Deallocate { offset, len } => {
                self.bytes[at(offset)..at(offset + len)].fill(0);
                None
            }
            other => panic!("{other:?}"),
        };
        Done { tag: request.tag, result, payload }
    }
}

/// What the kernel has of each tag.
pub(crate) struct Kernel {
    facts: Facts,
    pub(crate) queue: Queue,
    pub(crate) buffers: Vec<Option<IoBuf>>,
    pub(crate) results: Vec<Option<i32>>,
}

impl Kernel {
    pub(crate) fn new(facts: Facts, depth: u16) -> Self {
        let buffers = (0..depth).map(|_| None).collect();
        let results = vec![None; depth.into()];
        let mut kernel = Self { facts, queue: Queue::new(facts, depth), buffers, results };
        kernel.collect();
        assert!(kernel.results.iter().all(Option::is_none));
        kernel
    }

    /// Takes the commands: no tag has two, and each has a buffer of the whole size.
    pub(crate) fn collect(&mut self) {
        while let Some((command, buf)) = self.queue.poll_command() {
            let tag = usize::from(command.tag);
            assert!(self.buffers[tag].is_none(), "tag {tag} has two commands");
            assert!(buf.capacity() >= usize::try_from(self.facts.max_io_bytes).unwrap());
            self.buffers[tag] = Some(buf);
            self.results[tag] = command.commit;
        }
    }

    /// Asks for something; `data` is what is written.
    pub(crate) fn ask(&mut self, tag: u16, asked: UblkDescriptor, data: &[u8]) -> bool {
        let Some(mut buf) = self.buffers[usize::from(tag)].take() else { return false };
        self.results[usize::from(tag)] = None;
        buf.set_len(buf.capacity());
        buf[..data.len()].copy_from_slice(data);
        self.queue.handle_fetched(tag, Ok(asked), buf);
        true
    }

    /// Has the device carry out all that is asked of it.
    pub(crate) fn run(&mut self, device: &mut Device) {
        while let Some(request) = self.queue.poll_request() {
            let done = device.run(request);
            self.queue.handle_done(done);
        }
        self.collect();
    }

    /// Asks, and gives the result.
    pub(crate) fn call(&mut self, device: &mut Device, asked: (u32, u64, u32), data: &[u8]) -> i32 {
        let (op_flags, start_sector, nr_sectors) = asked;
        assert!(self.ask(0, UblkDescriptor { op_flags, nr_sectors, start_sector }, data));
        self.run(device);
        self.results[0].unwrap()
    }
}
