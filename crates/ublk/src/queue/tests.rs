//! A model of the kernel and of a device against the state of the tags.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use proptest::prelude::*;

use super::*;
use crate::plan::errno;
use crate::uapi::op;

const BYTES: u64 = 1 << 20;
const MAX_IO: u32 = 16 << 10;
const DEPTH: u16 = 4;

const FACTS: Facts = Facts {
    block_bytes: 512,
    bytes: BYTES,
    max_io_bytes: MAX_IO,
    read_only: false,
    discards: true,
};

/// A device of zeroes and bytes, which may be unable to zero, and may fail.
struct Device {
    bytes: Vec<u8>,
    zeroes: bool,
    fails: bool,
    /// Writes that had to be on stable media, and flushes.
    durable: usize,
    flushes: usize,
}

impl Device {
    fn new(zeroes: bool) -> Self {
        let bytes = vec![0; usize::try_from(BYTES).unwrap()];
        Self { bytes, zeroes, fails: false, durable: 0, flushes: 0 }
    }

    fn run(&mut self, request: Request) -> Done {
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
struct Kernel {
    queue: Queue,
    buffers: Vec<Option<IoBuf>>,
    results: Vec<Option<i32>>,
}

impl Kernel {
    fn new() -> Self {
        let none = || (0..DEPTH).map(|_| None).collect::<Vec<_>>();
        let buffers = (0..DEPTH).map(|_| None).collect();
        let mut kernel = Self { queue: Queue::new(FACTS, DEPTH), buffers, results: none() };
        kernel.collect();
        assert!(kernel.results.iter().all(Option::is_none));
        kernel
    }

    /// Takes the commands: no tag has two, and each has a buffer of the whole size.
    fn collect(&mut self) {
        while let Some((command, buf)) = self.queue.poll_command() {
            let tag = usize::from(command.tag);
            assert!(self.buffers[tag].is_none(), "tag {tag} has two commands");
            assert!(buf.capacity() >= usize::try_from(MAX_IO).unwrap());
            self.buffers[tag] = Some(buf);
            self.results[tag] = command.commit;
        }
    }

    /// Asks for something; `data` is what is written.
    fn ask(&mut self, tag: u16, asked: UblkDescriptor, data: &[u8]) -> bool {
        let Some(mut buf) = self.buffers[usize::from(tag)].take() else { return false };
        self.results[usize::from(tag)] = None;
        buf.set_len(buf.capacity());
        buf[..data.len()].copy_from_slice(data);
        self.queue.handle_fetched(tag, Ok(asked), buf);
        true
    }

    fn run(&mut self, device: &mut Device) {
        while let Some(request) = self.queue.poll_request() {
            let done = device.run(request);
            self.queue.handle_done(done);
        }
        self.collect();
    }

    /// Asks, and gives the result.
    fn call(&mut self, device: &mut Device, asked: (u32, u64, u32), data: &[u8]) -> i32 {
        let (op_flags, start_sector, nr_sectors) = asked;
        assert!(self.ask(0, UblkDescriptor { op_flags, nr_sectors, start_sector }, data));
        self.run(device);
        self.results[0].unwrap()
    }
}

#[test]
fn what_is_written_is_read() {
    let (mut kernel, mut device) = (Kernel::new(), Device::new(true));
    let data = [7; 4096];
    assert_eq!(kernel.call(&mut device, (op::WRITE | op::FUA, 8, 8), &data), 4096);
    assert_eq!(kernel.call(&mut device, (op::READ, 8, 8), &[]), 4096);
    assert_eq!(kernel.buffers[0].as_ref().unwrap()[..4096], data);
    assert_eq!(kernel.call(&mut device, (op::FLUSH, 0, 0), &[]), 0);
    assert_eq!((device.durable, device.flushes), (1, 1));
    assert_eq!(kernel.call(&mut device, (op::DISCARD, 8, 4), &[]), 0);
    assert_eq!(device.bytes[4096..8192], [[0; 2048], [7; 2048]].concat());
}

#[test]
fn a_device_that_cannot_zero_is_written_with_zeroes() {
    let (mut kernel, mut device) = (Kernel::new(), Device::new(false));
    device.bytes.fill(9);
    let sectors = u32::try_from(BYTES / 512).unwrap() - 2;
    let asked = (op::WRITE_ZEROES | op::FUA, 1, sectors);
    assert_eq!(kernel.call(&mut device, asked, &[]), 0);
    assert_eq!(device.bytes[..512], [9; 512]);
    assert!(device.bytes[512..device.bytes.len() - 512].iter().all(|byte| *byte == 0));
    assert_eq!(device.bytes[device.bytes.len() - 512..], [9; 512]);
    assert_eq!(device.durable, 4);
}

#[test]
fn errors_of_the_device_are_told_and_the_tag_goes_on() {
    let (mut kernel, mut device) = (Kernel::new(), Device::new(true));
    device.fails = true;
    for operation in [op::READ, op::WRITE, op::FLUSH, op::DISCARD, op::WRITE_ZEROES] {
        let result = kernel.call(&mut device, (operation, 0, 8), &[1; 4096]);
        assert_eq!(result, -errno::EIO, "{operation}");
    }
    device.fails = false;
    assert_eq!(kernel.call(&mut device, (op::READ, 0, 8), &[]), 4096);
}

#[test]
fn a_queue_is_over_when_all_its_tags_are() {
    let (mut kernel, mut device) = (Kernel::new(), Device::new(true));
    let read = UblkDescriptor { op_flags: op::READ, nr_sectors: 1, start_sector: 0 };
    kernel.ask(0, read, &[]);
    for tag in 1..DEPTH {
        let buf = kernel.buffers[usize::from(tag)].take().unwrap();
        kernel.queue.handle_fetched(tag, Err(io::Error::from_raw_os_error(ENODEV)), buf);
    }
    assert!(!kernel.queue.is_over());
    kernel.run(&mut device);
    assert!(!kernel.queue.is_over());
    let buf = kernel.buffers[0].take().unwrap();
    kernel.queue.handle_fetched(0, Err(io::Error::from_raw_os_error(ENODEV)), buf);
    assert!(kernel.queue.is_over());
    assert!(kernel.queue.take_fault().is_none());
}

#[test]
fn a_refused_command_is_a_fault() {
    let mut kernel = Kernel::new();
    let buf = kernel.buffers[1].take().unwrap();
    kernel.queue.handle_fetched(1, Err(io::Error::from_raw_os_error(errno::EINVAL)), buf);
    assert_eq!(kernel.queue.take_fault().unwrap().raw_os_error(), Some(errno::EINVAL));
    assert!(kernel.queue.take_fault().is_none());
}

#[test]
fn a_disk_that_grows_takes_requests_behind_its_old_end() {
    let (mut kernel, mut device) = (Kernel::new(), Device::new(true));
    let end = BYTES / 512;
    device.bytes.resize(usize::try_from(2 * BYTES).unwrap(), 5);
    assert_eq!(kernel.call(&mut device, (op::READ, end, 1), &[]), -errno::EINVAL);
    kernel.queue.set_bytes(2 * BYTES);
    assert_eq!(kernel.call(&mut device, (op::READ, end, 1), &[]), 512);
}

proptest! {
    /// Whatever the kernel asks for, with any tags in any order: each is answered once, by bytes that were asked for or by
    /// an error, and the device is asked for nothing outside.
    #[test]
    fn any_descriptors_are_answered_once(
        asked in proptest::collection::vec(
            (0..DEPTH, any::<u32>(), 0..8_u32, any::<u32>(), any::<u64>(), any::<bool>(), any::<bool>()),
            1..64,
        ),
        zeroes in any::<bool>(),
    ) {
        let (mut kernel, mut device) = (Kernel::new(), Device::new(zeroes));
        for (tag, flags, operation, sectors, start, sane, now) in asked {
            let mut asked = UblkDescriptor { op_flags: flags, nr_sectors: sectors, start_sector: start };
            if sane {
                asked.op_flags = flags & !op::MASK | operation;
                asked.start_sector %= BYTES / 512 + 4;
                asked.nr_sectors %= 40;
            }
            // A tag that works is asked for nothing.
            let asked_now = kernel.ask(tag, asked, &[3; 512]);
            if now {
                kernel.run(&mut device);
                if let Some(result) = kernel.results[usize::from(tag)].filter(|_| asked_now) {
                    let bytes = i64::from(asked.nr_sectors) * 512;
                    prop_assert!(result <= 0 || i64::from(result) == bytes, "{result} of {bytes}");
                }
            }
        }
        kernel.run(&mut device);
        prop_assert!(kernel.buffers.iter().all(Option::is_some), "a tag was not answered");
        prop_assert!(kernel.queue.take_fault().is_none());
        prop_assert!(!kernel.queue.is_over());
    }
}
