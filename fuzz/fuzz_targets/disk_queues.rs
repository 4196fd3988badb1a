//! A queue of a ublk disk against any descriptors of the kernel, answered by a device in any order and in any way. Input: what
//! the disk is, then steps of kernel and device.
#![no_main]

use std::io;

use libfuzzer_sys::fuzz_target;
use raceline_bdev::{BdevError, Done, Request};
use raceline_reactor::ublk::UblkDescriptor;
use raceline_reactor::{IoBuf, Payload};

// What a queue of ublk is without I/O, and the model of its tests.
#[path = "../../crates/ublk/src/queue/model.rs"]
#[allow(dead_code, reason = "the unit tests use the rest of it")]
mod model;
#[path = "../../crates/ublk/src/plan.rs"]
#[allow(dead_code, reason = "a disk uses the rest of it")]
mod plan;
#[path = "../../crates/ublk/src/queue.rs"]
#[allow(dead_code, reason = "a disk uses the rest of it")]
mod queue;
#[path = "../../crates/ublk/src/uapi.rs"]
#[allow(dead_code, reason = "a disk uses the rest of it")]
mod uapi;

use model::{Device, Kernel, Mode};
use plan::Facts;
use uapi::op;

/// What is left of an input.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.bytes().map(|[byte]| byte)
    }

    /// A number that is near `end` or small more often than any number would be.
    fn number(&mut self, end: u64) -> Option<u64> {
        let (near, small) = (self.byte()?, u64::from(self.byte()?));
        Some(match near % 6 {
            0..=2 => small,
            3 => end.wrapping_sub(small),
            4 => u64::MAX - small,
            _ => u64::from_le_bytes(self.bytes()?),
        })
    }
}

/// The kernel and a device on the two sides of a queue of ublk.
struct Ublk {
    kernel: Kernel,
    device: Device,
    facts: Facts,
    /// What the device has been asked for.
    asked: Vec<Request>,
    /// What the kernel asks for, by tag; none: the answer was seen.
    open: Vec<Option<UblkDescriptor>>,
    /// Tags with which the kernel never asks again.
    over: Vec<bool>,
}

impl Ublk {
    fn new(input: &mut Input<'_>) -> Option<Self> {
        let [shape, size, depth] = input.bytes()?;
        let facts = Facts {
            block_bytes: if shape & 1 == 0 { 512 } else { 4096 },
            bytes: 4096 * (1 + u64::from(size)),
            max_io_bytes: 4096 << (shape >> 1 & 3),
            read_only: shape & 0x18 == 0x18,
            discards: shape & 0x20 == 0,
        };
        let depth = u16::from(depth % 8) + 1;
        let mode = if shape & 0x80 == 0 { Mode::Mapped } else { Mode::Pages };
        let kernel = Kernel::with(facts, depth, mode);
        Some(Self {
            device: Device::under(&kernel, facts.bytes, shape & 0x40 == 0),
            kernel,
            facts,
            asked: Vec::new(),
            open: vec![None; depth.into()],
            over: vec![false; depth.into()],
        })
    }

    fn ask(&mut self, input: &mut Input<'_>) -> Option<()> {
        let tag = usize::from(input.byte()?) % self.open.len();
        let [operation, flags] = input.bytes()?;
        let sectors = self.facts.bytes / 512;
        let mut asked = UblkDescriptor {
            op_flags: u32::from(operation % 8),
            nr_sectors: u32::try_from(input.number(sectors)? & 0xffff_ffff).unwrap_or(u32::MAX),
            start_sector: input.number(sectors)?,
        };
        asked.op_flags |= if flags & 1 != 0 { op::FUA } else { 0 };
        asked.op_flags |= if flags & 2 != 0 { op::NOUNMAP } else { 0 };
        if flags > 250 {
            asked.op_flags = u32::from_le_bytes(input.bytes()?);
        }
        let tag_number = u16::try_from(tag).expect("there are few tags");
        if self.kernel.ask(tag_number, asked, &[operation; 512]) {
            self.open[tag] = Some(asked);
        }
        Some(())
    }

    /// The device has done one of its requests, in some way.
    fn finish(&mut self, which: u8, manner: u8) {
        if self.asked.is_empty() {
            return;
        }
        let request = self.asked.swap_remove(usize::from(which) % self.asked.len());
        self.device.fails = manner & 7 == 7;
        self.device.refuses = manner & 7 == 4;
        let done = self.device.run(request);
        let payload = match (done.payload, manner >> 3) {
            // Data in memory of others, or fewer than were asked for, or none.
            (Some(Payload::Buf(buf, range)), 1) => {
                let mut other = IoBuf::heap(range.len());
                other.copy_from_slice(&buf[range.clone()]);
                Some(Payload::Shared(other.share(), 0..range.len()))
            }
            (Some(Payload::Buf(buf, range)), 2) => Some(Payload::Buf(buf, 0..range.len() / 2)),
            (_, 3) => None,
            (payload, _) => payload,
        };
        let result = match manner {
            250.. => Err(BdevError::Gone),
            _ => done.result,
        };
        self.kernel.queue.handle_done(Done { tag: done.tag, result, payload });
        self.take_requests();
    }

    fn take_requests(&mut self) {
        while let Some(request) = self.kernel.queue.poll_request() {
            self.asked.push(request);
        }
    }

    /// The kernel sees the answers: each is of a request that it has, and says what can be.
    fn see_answers(&mut self) {
        self.kernel.collect();
        for (tag, open) in self.open.iter_mut().enumerate() {
            if self.kernel.buffers[tag].is_none() {
                continue;
            }
            let Some(asked) = open.take() else { continue };
            let result = self.kernel.results[tag].expect("an answer has a result");
            let bytes = i64::from(asked.nr_sectors) * 512;
            let operation = asked.op_flags & op::MASK;
            let has_bytes = operation == op::READ || operation == op::WRITE;
            let wanted = if has_bytes { bytes } else { 0 };
            assert!(result < 0 || i64::from(result) == wanted, "{result} for {asked:?}");
        }
    }

    /// A command of the kernel fails, by the end of the disk or by something else.
    fn fail(&mut self, tag: u8, number: i32) {
        let tag = usize::from(tag) % self.over.len();
        if let Some(buf) = self.kernel.buffers[tag].take() {
            let error = io::Error::from_raw_os_error(number);
            let number = u16::try_from(tag).expect("there are few tags");
            self.kernel.queue.handle_fetched(number, Err(error), buf);
            self.over[tag] = true;
        }
    }

    fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        match input.byte()? % 8 {
            0..=2 => self.ask(input)?,
            3 => self.take_requests(),
            4 => {
                let [which, manner] = input.bytes()?;
                self.finish(which, manner);
            }
            5 => self.see_answers(),
            6 => {
                // A disk grows only.
                let more = usize::from(input.byte()?) * 512;
                self.device.bytes.resize(self.device.bytes.len() + more / 4096 * 4096, 0);
                self.kernel.queue.set_bytes(self.device.bytes.len() as u64);
            }
            _ => {
                let [tag, number] = input.bytes()?;
                self.fail(tag, if number < 200 { 19 } else { number.into() });
            }
        }
        Some(())
    }
}

fn run_ublk(input: &mut Input<'_>) -> Option<()> {
    let mut ublk = Ublk::new(input)?;
    while ublk.step(input).is_some() {}
    ublk.take_requests();
    while !ublk.asked.is_empty() {
        ublk.finish(0, 0);
    }
    ublk.see_answers();
    assert!(ublk.open.iter().all(Option::is_none), "a tag was not answered");
    let is_over = ublk.over.iter().all(|over| *over);
    assert_eq!(ublk.kernel.queue.is_over(), is_over);
    for (buffer, over) in ublk.kernel.buffers.iter().zip(&ublk.over) {
        assert!(buffer.is_some() != *over, "a tag has lost its buffer");
    }
    Some(())
}

fuzz_target!(|data: &[u8]| {
    // An input that is too short for a queue is none.
    let _ = run_ublk(&mut Input(data));
});
