//! The models of the kernel and of a device against the state of the tags.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use proptest::prelude::*;

use super::model::{BYTES, DEPTH, Device, FACTS, Kernel};
use super::*;
use crate::plan::errno;
use crate::uapi::op;

#[test]
fn what_is_written_is_read() {
    let (mut kernel, mut device) = (Kernel::new(FACTS, DEPTH), Device::new(BYTES, true));
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
fn errors_of_the_device_are_told_and_the_tag_goes_on() {
    let (mut kernel, mut device) = (Kernel::new(FACTS, DEPTH), Device::new(BYTES, true));
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
fn a_disk_that_grows_takes_requests_behind_its_old_end() {
    let (mut kernel, mut device) = (Kernel::new(FACTS, DEPTH), Device::new(BYTES, true));
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
        let (mut kernel, mut device) = (Kernel::new(FACTS, DEPTH), Device::new(BYTES, zeroes));
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
