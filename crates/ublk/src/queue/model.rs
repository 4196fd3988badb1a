//! Models of the kernel and of a device, for tests and for the fuzz target `disk_queues`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use raceline_bdev::{BdevError, Done, Op, Request};
use raceline_reactor::ublk::UblkDescriptor;
use raceline_reactor::{IoBuf, Payload};

use crate::plan::Facts;
use crate::queue::{Copier, Data, Ended, Queue};

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

/// How the data of requests go, see [`Data`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Mapped,
    Copied,
    Pages,
}

/// The pages of each tag's request, which the kernel, the device and who copies have in common.
type Pages = Rc<RefCell<Vec<Vec<u8>>>>;

/// Copies from and to the pages, unless the kernel refuses that.
struct ModelCopier {
    pages: Pages,
    fails: Rc<Cell<bool>>,
}

impl ModelCopier {
    fn check(&self) -> io::Result<()> {
        if self.fails.get() { Err(io::Error::other("refused")) } else { Ok(()) }
    }
}

impl Copier for ModelCopier {
    fn take(&mut self, tag: u16, buf: &mut [u8]) -> io::Result<()> {
        self.check()?;
        buf.copy_from_slice(&self.pages.borrow()[usize::from(tag)][..buf.len()]);
        Ok(())
    }

    fn give(&mut self, tag: u16, data: &[u8]) -> io::Result<()> {
        self.check()?;
        self.pages.borrow_mut()[usize::from(tag)][..data.len()].copy_from_slice(data);
        Ok(())
    }
}

/// A device of zeroes and bytes, which may be unable to zero, and may fail.
pub(crate) struct Device {
    pub(crate) bytes: Vec<u8>,
    zeroes: bool,
    pub(crate) fails: bool,
    /// Data in pages are refused.
    pub(crate) refuses: bool,
    /// Requests whose data were in pages, and were moved.
    pub(crate) moved: usize,
    pages: Pages,
    /// Writes that had to be on stable media, and flushes.
    pub(crate) durable: usize,
    pub(crate) flushes: usize,
}

impl Device {
    /// A device of that many bytes.
    pub(crate) fn new(bytes: u64, zeroes: bool) -> Self {
        let bytes = vec![0; usize::try_from(bytes).unwrap()];
        let (fails, refuses, pages) = (false, false, Pages::default());
        Self { bytes, zeroes, fails, refuses, moved: 0, pages, durable: 0, flushes: 0 }
    }

    /// A device that takes the pages of this kernel's requests.
    pub(crate) fn under(kernel: &Kernel, bytes: u64, zeroes: bool) -> Self {
        Self { pages: Rc::clone(&kernel.pages), ..Self::new(bytes, zeroes) }
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
            Op::ReadPages { .. } | Op::WritePages { .. } if self.refuses => {
                result = Err(BdevError::NotSupported);
                None
            }
            Op::ReadPages { offset, len, tag } => {
                self.moved += 1;
                self.pages.borrow_mut()[usize::from(tag)][..len]
                    .copy_from_slice(&self.bytes[at(offset)..at(offset) + len]);
                None
            }
            Op::WritePages { offset, len, tag, fua } => {
                self.moved += 1;
                self.durable += usize::from(fua);
                self.bytes[at(offset)..at(offset) + len]
                    .copy_from_slice(&self.pages.borrow()[usize::from(tag)][..len]);
                None
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
    mode: Mode,
    pages: Pages,
    /// It refuses to copy from and to pages.
    pub(crate) refuses: Rc<Cell<bool>>,
    pub(crate) queue: Queue,
    pub(crate) buffers: Vec<Option<IoBuf>>,
    pub(crate) results: Vec<Option<i32>>,
    /// What has ended, to be counted.
    pub(crate) ended: Vec<Ended>,
}

impl Kernel {
    pub(crate) fn new(facts: Facts, depth: u16) -> Self {
        Self::with(facts, depth, Mode::Mapped)
    }

    pub(crate) fn with(facts: Facts, depth: u16, mode: Mode) -> Self {
        let most = usize::try_from(facts.max_io_bytes).unwrap();
        let pages = Rc::new(RefCell::new(vec![vec![0xDD; most]; depth.into()]));
        let refuses = Rc::<Cell<bool>>::default();
        let copier = ModelCopier { pages: Rc::clone(&pages), fails: Rc::clone(&refuses) };
        let data = match mode {
            Mode::Mapped => Data::Mapped,
            Mode::Copied => Data::Copied(Box::new(copier)),
            Mode::Pages => Data::Pages(Box::new(copier)),
        };
        let buffers = (0..depth).map(|_| None).collect();
        let results = vec![None; depth.into()];
        let (queue, ended) = (Queue::new(facts, depth, data), Vec::new());
        let mut kernel = Self { facts, mode, pages, refuses, queue, buffers, results, ended };
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
        if self.mode == Mode::Mapped {
            buf[..data.len()].copy_from_slice(data);
        } else {
            // Nothing of an earlier request is there.
            let page = &mut self.pages.borrow_mut()[usize::from(tag)];
            page.fill(0xDD);
            page[..data.len()].copy_from_slice(data);
        }
        self.ended.extend(self.queue.handle_fetched(tag, Ok(asked), buf));
        true
    }

    /// What a read that was answered has given.
    pub(crate) fn data(&self, tag: u16, len: usize) -> Vec<u8> {
        match self.mode {
            Mode::Mapped => self.buffers[usize::from(tag)].as_ref().unwrap()[..len].to_vec(),
            Mode::Copied | Mode::Pages => self.pages.borrow()[usize::from(tag)][..len].to_vec(),
        }
    }

    /// Has the device carry out all that is asked of it.
    pub(crate) fn run(&mut self, device: &mut Device) {
        while let Some(request) = self.queue.poll_request() {
            let done = device.run(request);
            self.ended.extend(self.queue.handle_done(done));
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
