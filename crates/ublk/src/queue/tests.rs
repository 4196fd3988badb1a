//! The models of the kernel and of a device against the state of the tags.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use proptest::prelude::*;

use super::model::{BYTES, DEPTH, Device, FACTS, Kernel, Mode};
use super::*;
use crate::plan::errno;
use crate::uapi::op;

const MODES: [Mode; 3] = [Mode::Mapped, Mode::Copied, Mode::Pages];

/// A kernel whose data go in this way, and a device under it.
fn pair(mode: Mode, zeroes: bool) -> (Kernel, Device) {
    let kernel = Kernel::with(FACTS, DEPTH, mode);
    let device = Device::under(&kernel, BYTES, zeroes);
    (kernel, device)
}

#[test]
fn what_is_written_is_read() {
    for mode in MODES {
        let (mut kernel, mut device) = pair(mode, true);
        let data = [7; 4096];
        assert_eq!(kernel.call(&mut device, (op::WRITE | op::FUA, 8, 8), &data), 4096);
        assert_eq!(device.bytes[4096..8192], data);
        assert_eq!(kernel.call(&mut device, (op::READ, 8, 8), &[]), 4096);
        assert_eq!(kernel.data(0, 4096), data, "{mode:?}");
        assert_eq!(kernel.call(&mut device, (op::FLUSH, 0, 0), &[]), 0);
        assert_eq!((device.durable, device.flushes), (1, 1));
        assert_eq!(kernel.call(&mut device, (op::DISCARD, 8, 4), &[]), 0);
        assert_eq!(device.bytes[4096..8192], [[0; 2048], [7; 2048]].concat());
        assert_eq!(device.moved, if mode == Mode::Pages { 2 } else { 0 });
        let uncopied: Vec<bool> = kernel.ended.iter().map(|it| it.uncopied).collect();
        assert_eq!(uncopied, [mode == Mode::Pages, mode == Mode::Pages, false, false]);
    }
}

/// Pages that the device does not take, or that did not become a buffer, are copied: the answer is the same.
#[test]
fn what_cannot_go_by_pages_is_copied() {
    let (mut kernel, mut device) = pair(Mode::Pages, true);
    device.refuses = true;
    assert_eq!(kernel.call(&mut device, (op::WRITE, 8, 8), &[5; 4096]), 4096);
    assert_eq!(kernel.call(&mut device, (op::READ, 8, 8), &[]), 4096);
    assert_eq!(kernel.data(0, 4096), [5; 4096]);
    device.refuses = false;
    for (operation, data) in [(op::WRITE, &[6; 4096][..]), (op::READ, &[])] {
        assert_eq!(kernel.call(&mut device, (operation | op::NEED_REG_BUF, 8, 8), data), 4096);
    }
    assert_eq!(kernel.data(0, 4096), [6; 4096]);
    assert_eq!(device.moved, 0);
    assert!(kernel.ended.iter().all(|it| it.succeeded && !it.uncopied));
    assert_eq!(kernel.ended.len(), 4, "each request ends once");
    assert_eq!(kernel.call(&mut device, (op::READ, 8, 8), &[]), 4096);
    assert_eq!(device.moved, 1, "the next one goes by pages again");
}

/// A read whose pages were not filled is never told as read: they have what other programs had in memory.
#[test]
fn data_that_cannot_be_copied_are_an_error() {
    for mode in [Mode::Copied, Mode::Pages] {
        let (mut kernel, mut device) = pair(mode, true);
        (device.refuses, device.bytes[0]) = (true, 9);
        kernel.refuses.set(true);
        assert_eq!(kernel.call(&mut device, (op::WRITE, 0, 8), &[5; 4096]), -errno::EIO);
        assert_eq!(device.bytes[0], 9, "nothing is written");
        assert_eq!(kernel.call(&mut device, (op::READ, 0, 8), &[]), -errno::EIO);
        assert_eq!(kernel.ended.iter().filter(|it| !it.succeeded).count(), 2);
        kernel.refuses.set(false);
        assert_eq!(kernel.call(&mut device, (op::READ, 0, 8), &[]), 4096, "{mode:?}");
    }
}

#[test]
fn a_device_that_cannot_zero_is_written_with_zeroes() {
    let (mut kernel, mut device) = (Kernel::new(FACTS, DEPTH), Device::new(BYTES, false));
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
fn each_request_ends_once() {
    let (mut kernel, mut device) = (Kernel::new(FACTS, DEPTH), Device::new(BYTES, false));
    // The device cannot zero, so zeroes are several writes, and one request of the kernel.
    let sectors = u32::try_from(BYTES / 512).unwrap();
    for asked in [
        (op::WRITE, 0, 8),
        (op::READ, 0, 8),
        (op::FLUSH, 0, 0),
        (op::DISCARD, 8, 4),
        (op::WRITE_ZEROES, 0, sectors),
    ] {
        assert!(kernel.call(&mut device, asked, &[]) >= 0, "{asked:?}");
    }
    let ends: Vec<_> = kernel.ended.drain(..).map(|it| (it.kind, it.bytes, it.succeeded)).collect();
    let expected = [
        (OpKind::Write, 4096, true),
        (OpKind::Read, 4096, true),
        (OpKind::Flush, 0, true),
        (OpKind::Deallocate, 2048, true),
        (OpKind::WriteZeroes, BYTES, true),
    ];
    assert_eq!(ends, expected);
    device.fails = true;
    assert!(kernel.call(&mut device, (op::READ, 0, 8), &[]) < 0);
    // One that is refused.
    assert!(kernel.call(&mut device, (op::READ, u64::from(sectors), 8), &[]) < 0);
    let failed: Vec<_> = kernel.ended.iter().map(|it| it.succeeded).collect();
    assert_eq!(failed, [false, false]);
}

#[test]
fn errors_of_the_device_are_told_and_the_tag_goes_on() {
    for mode in MODES {
        let (mut kernel, mut device) = pair(mode, true);
        device.fails = true;
        for operation in [op::READ, op::WRITE, op::FLUSH, op::DISCARD, op::WRITE_ZEROES] {
            let result = kernel.call(&mut device, (operation, 0, 8), &[1; 4096]);
            assert_eq!(result, -errno::EIO, "{operation} {mode:?}");
        }
        assert!(kernel.ended.iter().all(|it| !it.succeeded), "{mode:?}");
        device.fails = false;
        assert_eq!(kernel.call(&mut device, (op::READ, 0, 8), &[]), 4096);
    }
}

#[test]
fn a_queue_is_over_when_all_its_tags_are() {
    let (mut kernel, mut device) = (Kernel::new(FACTS, DEPTH), Device::new(BYTES, true));
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
    let mut kernel = Kernel::new(FACTS, DEPTH);
    let buf = kernel.buffers[1].take().unwrap();
    kernel.queue.handle_fetched(1, Err(io::Error::from_raw_os_error(errno::EINVAL)), buf);
    assert_eq!(kernel.queue.take_fault().unwrap().raw_os_error(), Some(errno::EINVAL));
    assert!(kernel.queue.take_fault().is_none());
}

#[test]
fn a_request_that_the_kernel_takes_back_is_no_fault() {
    let (mut kernel, mut device) = pair(Mode::Pages, true);
    assert_eq!(kernel.call(&mut device, (op::READ, 0, 8), &[]), 4096);
    let busy = || io::Error::from_raw_os_error(EBUSY);
    let buf = kernel.buffers[0].take().unwrap();
    kernel.queue.handle_fetched(0, Err(busy()), buf);
    assert!(kernel.queue.take_fault().is_none() && kernel.queue.has_doubts());
    // The disk ends, as another tag learns.
    let gone = || io::Error::from_raw_os_error(ENODEV);
    let buf = kernel.buffers[2].take().unwrap();
    kernel.queue.handle_fetched(2, Err(gone()), buf);
    assert!(!kernel.queue.has_doubts());
    kernel.queue.end_doubts();
    assert!(kernel.queue.take_fault().is_none(), "the answer of a disk that ends");
    let buf = kernel.buffers[1].take().unwrap();
    kernel.queue.handle_fetched(1, Err(busy()), buf);
    assert!(kernel.queue.take_fault().is_some(), "the first command of a tag");
}

/// A disk that goes on has lost a tag, with the request on it: whoever serves it has to know.
#[test]
fn an_answer_that_is_not_taken_is_a_fault_unless_the_disk_ends() {
    let busy = || io::Error::from_raw_os_error(EBUSY);
    let refused = |ends: bool| {
        let (mut kernel, mut device) = pair(Mode::Pages, true);
        assert_eq!(kernel.call(&mut device, (op::READ, 0, 8), &[]), 4096);
        let buf = kernel.buffers[0].take().unwrap();
        kernel.queue.handle_fetched(0, Err(busy()), buf);
        assert!(kernel.queue.has_doubts() && kernel.queue.take_fault().is_none());
        if ends {
            kernel.queue.end_is_seen();
        }
        kernel.queue.end_doubts();
        let fault = kernel.queue.take_fault();
        assert!(!kernel.queue.has_doubts() && kernel.queue.take_fault().is_none());
        fault.and_then(|error| error.raw_os_error())
    };
    assert_eq!(refused(false), Some(EBUSY));
    assert_eq!(refused(true), None);
}

/// With the last tag it is not known yet why the queue has nothing to do any more.
#[test]
fn a_queue_whose_last_answer_was_not_taken_is_not_over_before_the_reason_is_known() {
    let mut kernel = Kernel::new(FACTS, 1);
    let mut device = Device::under(&kernel, BYTES, true);
    assert_eq!(kernel.call(&mut device, (op::READ, 0, 8), &[]), 4096);
    let buf = kernel.buffers[0].take().unwrap();
    kernel.queue.handle_fetched(0, Err(io::Error::from_raw_os_error(EBUSY)), buf);
    assert!(!kernel.queue.is_over() && kernel.queue.has_doubts());
    kernel.queue.end_doubts();
    assert!(kernel.queue.is_over() && kernel.queue.take_fault().is_some());
}

#[test]
fn a_disk_that_grows_takes_requests_behind_its_old_end() {
    let (mut kernel, mut device) = (Kernel::new(FACTS, DEPTH), Device::new(BYTES, true));
    let end = BYTES / 512;
    device.bytes.resize(usize::try_from(2 * BYTES).unwrap(), 5);
    assert_eq!(kernel.call(&mut device, (op::READ, end, 1), &[]), -errno::EINVAL);
    kernel.queue.set_bytes(2 * BYTES);
    assert_eq!(kernel.call(&mut device, (op::READ, end, 1), &[]), 512);
}

/// What is at the device when a disk is left may still end well; nothing else is told to the kernel, which asks the next
/// process for it.
#[test]
fn a_queue_that_leaves_begins_nothing_and_tells_no_errors() {
    for mode in MODES {
        let (mut kernel, mut device) = pair(mode, false);
        let ask = |kernel: &mut Kernel, tag: u16, operation: u32| {
            let asked = UblkDescriptor { op_flags: operation, nr_sectors: 8, start_sector: 0 };
            assert!(kernel.ask(tag, asked, &[7; 4096]));
        };
        for (tag, operation) in [(0, op::WRITE), (1, op::WRITE), (2, op::WRITE_ZEROES)] {
            ask(&mut kernel, tag, operation);
        }
        let requests: Vec<Request> = std::iter::from_fn(|| kernel.queue.poll_request()).collect();
        assert!(!kernel.queue.has_left());
        kernel.queue.leave();
        ask(&mut kernel, 3, op::WRITE);
        for (request, fails) in requests.into_iter().zip([false, true, false]) {
            assert!(!kernel.queue.has_left(), "something is at the device");
            device.fails = fails;
            let done = device.run(request);
            kernel.queue.handle_done(done);
        }
        kernel.run(&mut device);
        assert!(kernel.queue.has_left());
        assert_eq!(kernel.results, [Some(4096), None, None, None], "{mode:?}");
        assert!(!kernel.queue.is_over());
    }
}

/// The kernel keeps its commands, and a queue that waited for their ends would never be over.
#[test]
fn an_abandoned_queue_is_over_once_nothing_is_at_the_device() {
    let (mut kernel, mut device) = pair(Mode::Mapped, true);
    let asked = UblkDescriptor { op_flags: op::WRITE, nr_sectors: 8, start_sector: 0 };
    assert!(kernel.ask(0, asked, &[7; 4096]) && kernel.ask(1, asked, &[8; 4096]));
    let begun = kernel.queue.poll_request().unwrap();
    assert!(!kernel.queue.is_over());
    kernel.queue.abandon();
    assert!(!kernel.queue.is_over(), "a write is at the device");
    kernel.queue.handle_done(device.run(begun));
    assert!(kernel.queue.is_over());
    assert!(kernel.queue.poll_request().is_none(), "the device is asked for nothing more");
    let (mut idle, _) = pair(Mode::Mapped, true);
    assert!(!idle.queue.is_over());
    idle.queue.abandon();
    assert!(idle.queue.is_over(), "the kernel has all of its tags");
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
        refuses in any::<bool>(),
        mode in proptest::sample::select(&MODES[..]),
    ) {
        let (mut kernel, mut device) = pair(mode, zeroes);
        device.refuses = refuses;
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
