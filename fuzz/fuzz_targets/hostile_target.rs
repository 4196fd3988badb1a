//! The production host against a target that says anything, in virtual time.
//!
//! Whatever it sends: no panic, every command ends within its time, no byte outside of a read's buffer
//! changes, and once the target behaves correctly again, commands succeed again.
//!
//! Input: settings, the step at which the target misbehaves (or none), then answers to commands: how
//! many PDUs, and changes to each PDU's fields, which start from the correct values.
#![no_main]

#[path = "../../crates/host/tests/common/mod.rs"]
mod common;

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use raceline_crc32c::crc32c;
use raceline_host::{BlockRange, Command, ControllerEvent, Data, HostConfig, IoQueueEvent};
use raceline_proto::nvme::{NamespaceId, Sqe};
use raceline_reactor::{IoBuf, SimConfig};

use common::{BLOCK, Raw, Script, Step, World, config};

const STEPS: [Step; 8] = [
    Step::IcResp,
    Step::Connect,
    Step::PropertyGet,
    Step::PropertySet,
    Step::Identify,
    Step::SetFeatures,
    Step::IoConnect,
    Step::Io,
];
/// Commands of one run.
const COMMANDS_MAX: u64 = 16;
const COMMAND_LIMIT: Duration = Duration::from_secs(8);
/// A command may be sent again on a new connection, which may be lost as well.
const END_LIMIT: Duration = Duration::from_secs(120);
const BLOCKS: u32 = 16;
const BYTES: usize = 16 * BLOCK;
const BUFFER_BYTES: usize = 128 << 10;
const CANARY: u8 = 0xc5;

/// Bytes of the input; zeroes when it is at its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.byte()).collect()
    }
}

/// A correct PDU, apart from the changes of the input.
fn pdu(input: &mut Input<'_>, cid: u16, digests: (bool, bool)) -> Vec<u8> {
    let kind = [7, 7, 7, 9, 9, 5, 5, 3][usize::from(input.byte() & 7)];
    let what = input.byte();
    let cid = cid ^ if what & 1 == 0 { 0 } else { u16::from(input.byte()) << 8 };
    let (offset, len) = match what >> 1 & 3 {
        0 => (0, BYTES as u32),
        1 => (0, BYTES as u32 / 2),
        2 => (BYTES as u32 / 2, BYTES as u32 / 2),
        _ => (input.word(), input.word() % 20_000),
    };
    let mut rest = Vec::new();
    if kind == 5 {
        rest.extend([0; 12]);
        rest.extend(cid.to_le_bytes());
        rest.extend(if what & 8 == 0 { [0; 2] } else { [input.byte(), input.byte()] });
    } else {
        rest.extend(cid.to_le_bytes());
        rest.extend([input.byte() & 7, 0]);
        rest.extend(offset.to_le_bytes());
        rest.extend(len.to_le_bytes());
        rest.extend([0; 4]);
    }
    let payload = if kind == 7 { len as usize } else { 0 };
    let (header_digest, data_digest) = (digests.0 && kind != 3, digests.1 && kind == 7);
    let pdo = 24 + if header_digest { 4 } else { 0 };
    let total = pdo + payload + if data_digest { 4 } else { 0 };
    let mut flags = u8::from(header_digest) | u8::from(data_digest) << 1;
    flags |= if kind == 7 { input.byte() & 12 } else { 0 };
    let mut bytes = vec![kind, flags, 24, if kind == 7 { pdo as u8 } else { 0 }];
    bytes.extend((total as u32).to_le_bytes());
    bytes.extend(rest);
    if what & 16 != 0 {
        // Before the digest, so that it is right.
        let at = usize::from(input.byte()) % bytes.len();
        bytes[at] ^= input.byte();
    }
    if header_digest {
        let crc = crc32c(&bytes);
        bytes.extend(crc.to_le_bytes());
    }
    let start = bytes.len();
    bytes.resize(start + payload, 0xdd);
    if data_digest {
        let crc = crc32c(&bytes[start..]);
        bytes.extend(crc.to_le_bytes());
    }
    if what & 32 != 0 {
        bytes.truncate(usize::from(input.byte()));
    }
    bytes
}

fn answer(input: &mut Input<'_>, cid: u16, digests: (bool, bool)) -> Vec<u8> {
    let count = input.byte();
    if count & 0x80 != 0 {
        let len = usize::from(input.byte());
        return input.take(len);
    }
    (0..count & 7).flat_map(|_| pdu(input, cid, digests)).collect()
}

/// Sends one command, and waits for its end.
fn command(world: &mut World, user: u64, write: bool) {
    world.with(|_, queues, cx| {
        let range = BlockRange::new(8, BLOCKS).expect("a valid range");
        let command = if write {
            Command::write(NamespaceId(1), range, IoBuf::from_slice(&[7; BYTES]).share(), false)
        } else {
            let mut buf = cx.pool.take(BUFFER_BYTES).unwrap_or_else(|| IoBuf::heap(BUFFER_BYTES));
            buf.fill(CANARY);
            buf.set_len(BYTES);
            Command::read(NamespaceId(1), range, buf)
        };
        // A lost queue accepts the command all the same, or gives it back.
        let _ = queues.submit(cx, 0, command, user);
    });
    let end = world.world.elapsed() + END_LIMIT;
    while world.queues.outstanding() > 0 {
        assert!(world.world.elapsed() < end, "a command that does not end: {:?}", world.events);
        if !world.step() {
            break;
        }
    }
    for done in world.done.drain(..) {
        if let Data::Read(mut buf) = done.data {
            buf.set_len(BUFFER_BYTES);
            assert!(buf[BYTES..].iter().all(|&byte| byte == CANARY), "written past a buffer's end");
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&[setup, step], rest)) = bytes.split_first_chunk::<2>() else { return };
    let mut input = Input(rest);
    let host = HostConfig {
        header_digest: setup & 1 != 0,
        data_digest: setup & 2 != 0,
        disable_sq_flow: setup & 4 != 0,
        command_timeout: Some(COMMAND_LIMIT),
        kato_ms: 0,
        ..config()
    };
    let digests = (host.header_digest, host.data_digest);
    let sim = SimConfig {
        max_chunk: if setup & 8 == 0 { 100_000 } else { 29 },
        engines: setup & 16 != 0,
        ..SimConfig::default()
    };
    let mut script = Script { whole_reads: setup & 32 != 0, ..Script::default() };
    let stumbles = STEPS.get(usize::from(step)).copied();
    if let Some(step) = stumbles {
        // A made-up CID: the CIDs of the first commands are small numbers.
        let cid = u16::from(input.byte() & 3);
        script.at = Some((step, answer(&mut input, cid, digests)));
    }
    let mut world = World::new(1, sim, &host, script);
    let over = |world: &World| world.queues.is_ready() || world.controller.is_finished();
    let limit = world.world.elapsed() + END_LIMIT;
    // One disturbance is enough: each new connection would meet the same.
    let disturbed = |world: &World| {
        let lost = |event: &IoQueueEvent| matches!(event, IoQueueEvent::Lost { .. });
        let down = |event: &ControllerEvent| matches!(event, ControllerEvent::Down(_));
        world.queue_events.iter().any(lost) || world.events.iter().any(down)
    };
    while !over(&world) && !disturbed(&world) && world.world.elapsed() < limit && world.step() {}
    if stumbles.is_some() {
        assert!(over(&world) || !world.events.is_empty(), "a host that waits for ever");
        world.target.script.at = None;
        while !over(&world) && world.world.elapsed() < limit + END_LIMIT && world.step() {}
    }
    if world.controller.is_finished() {
        // The first connection failed: the host reports that, and does not try again.
        return;
    }
    let mut user = 0;
    while !input.0.is_empty() && user < COMMANDS_MAX {
        let which = input.byte();
        // The CID is known when the command comes.
        let template = answer(&mut input, 0, digests);
        if which & 0x40 == 0 {
            let patched = move |sqe: &Sqe| patch(&template, sqe.cid.get(), digests.0);
            world.target.script.raw = Some(Raw(Box::new(patched)));
        }
        user += 1;
        command(&mut world, user, which & 1 != 0);
    }
    world.target.script.raw = None;
    if world.controller.is_finished() {
        return;
    }
    // The target behaves correctly, and everything works again.
    let limit = world.world.elapsed() + END_LIMIT;
    while !world.queues.is_ready() && !world.controller.is_finished() {
        assert!(world.world.elapsed() < limit, "no connection any more: {:?}", world.events);
        assert!(world.step(), "nothing happens any more: {:?}", world.events);
    }
    command(&mut world, 1000, false);
});

/// Puts the command's CID into the PDUs that were made for CID 0.
fn patch(template: &[u8], cid: u16, header_digest: bool) -> Vec<u8> {
    let mut bytes = template.to_vec();
    let mut at = 0;
    while let Some(header) = bytes.get_mut(at..at + 24) {
        let plen = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
        let field = match header[0] {
            5 => 20,
            7 | 9 => 8,
            _ => break,
        };
        let found = u16::from_le_bytes([header[field], header[field + 1]]);
        header[field..field + 2].copy_from_slice(&(found ^ cid).to_le_bytes());
        let crc = crc32c(header);
        if header_digest && let Some(digest) = bytes.get_mut(at + 24..at + 28) {
            digest.copy_from_slice(&crc.to_le_bytes());
        }
        if plen < 24 {
            break;
        }
        at += plen;
    }
    bytes
}
