//! From a request to its reply: what the device is asked, and what the client is told.

use std::ops::Range;

use raceline_bdev::{BdevError, Done, Op, OpKind, Request, Sought, found_parts};
use raceline_reactor::{Context, IoBuf, Payload};

use super::connection::{Connection, Step};
use super::core::{Devices, tag};
use crate::protocol::wire::Errno;
use crate::protocol::{Extent, Plan, push_block_status, push_error, push_read, push_simple};

/// Most allocated parts that one BLOCK_STATUS looks for. Clients ask again for the rest.
const MAX_PARTS: usize = 256;

impl Connection {
    /// Asks the device for the first step of a request; `buf` has the data of a write, or room for those of
    /// a read.
    pub(super) fn submit(
        &mut self,
        cx: &mut Context<'_>,
        devices: &mut Devices,
        slot: u16,
        buf: Option<IoBuf>,
    ) {
        let Some(running) = self.running_mut(slot) else { return };
        let op = match running.plan {
            Plan::Read { offset, len } => Op::Read { offset, len, buf },
            Plan::Write { offset, fua, .. } => {
                let Some(buf) = buf else { return };
                Op::Write { offset, data: buf.share(), fua }
            }
            Plan::Flush => Op::Flush,
            Plan::Trim { offset, len, .. } => Op::Deallocate { offset, len },
            Plan::WriteZeroes { offset, len, fua, may_release, .. } => {
                Op::WriteZeroes { offset, len, deallocate: may_release, fua }
            }
            Plan::BlockStatus { offset, len, one } => {
                let most = if one { 1 } else { MAX_PARTS };
                Op::Find { sought: Sought::Data, offset, len, most }
            }
            Plan::Cache | Plan::Disconnect => return self.answer_plain(slot, Ok(())),
        };
        self.ask(cx, devices, slot, op);
    }

    fn ask(&mut self, cx: &mut Context<'_>, devices: &mut Devices, slot: u16, op: Op) {
        let Some((agreed, _)) = self.serving() else { return };
        let Some(running) = self.running_mut(slot) else { return };
        if running.plan.changes() && running.age.is_none() {
            running.age = Some(devices.changes[agreed.export].begin());
        }
        self.in_flight += 1;
        let request = Request { tag: tag(self.index(), slot), op };
        devices.submit(cx, agreed.export, request);
    }

    /// Takes what the device has done.
    pub(super) fn handle_done(
        &mut self,
        cx: &mut Context<'_>,
        devices: &mut Devices,
        slot: u16,
        done: Done,
    ) {
        self.in_flight -= 1;
        let others = self.in_flight;
        if !self.is_closed() {
            self.go_on(cx, devices, slot, done);
        }
        let is_over = self.in_flight == others;
        let export = self.serving().map(|(agreed, _)| agreed.export);
        if is_over
            && let (Some(export), Some(running)) = (export, self.running_mut(slot))
            && let Some(age) = running.age.take()
        {
            devices.changes[export].end(age);
        }
    }

    /// Answers a request whose step is done, or asks the device for the next step.
    fn go_on(&mut self, cx: &mut Context<'_>, devices: &mut Devices, slot: u16, done: Done) {
        let Some(running) = self.running_mut(slot) else { return };
        let (plan, step) = (running.plan, running.step);
        match (plan, step, done.result) {
            (Plan::Read { offset, len }, _, Ok(())) => {
                self.answer_read(slot, (offset, len), done.payload);
            }
            (Plan::BlockStatus { offset, len, one }, _, Ok(())) => {
                let most = if one { 1 } else { MAX_PARTS };
                let parts = found_parts(done.payload.as_ref());
                self.answer_status(slot, offset, len, (&parts, most));
            }
            (Plan::Trim { fua: true, .. }, Step::First, Ok(())) => {
                running.step = Step::Flush;
                self.ask(cx, devices, slot, Op::Flush);
            }
            (
                Plan::WriteZeroes { offset, fast: false, .. },
                Step::First,
                Err(BdevError::NotSupported),
            ) => self.write_zeroes(cx, devices, slot, offset),
            (Plan::WriteZeroes { offset, len, .. }, Step::Zeroes(end), Ok(()))
                if end < offset + len =>
            {
                self.write_zeroes(cx, devices, slot, end);
            }
            (_, _, result) => {
                drop(done.payload);
                self.release(&mut devices.budget, slot);
                self.answer_plain(slot, result);
            }
        }
    }

    /// Writes the next zeroes to a device that cannot zero by itself.
    fn write_zeroes(&mut self, cx: &mut Context<'_>, devices: &mut Devices, slot: u16, from: u64) {
        let Some(running) = self.running_mut(slot) else { return };
        let Plan::WriteZeroes { offset, len, fua, .. } = running.plan else { return };
        let (op, piece) = devices.zero_write(from, offset + len - from, fua);
        running.step = Step::Zeroes(from + piece);
        self.ask(cx, devices, slot, op);
    }

    fn answer_read(&mut self, slot: u16, (offset, len): (u64, usize), payload: Option<Payload>) {
        let Some((agreed, _)) = self.serving() else { return };
        let Some(running) = self.running_mut(slot) else { return };
        let (cookie, held) = (running.cookie, running.held);
        let Some(payload) = payload.filter(|payload| payload.len() == len) else {
            return self.answer_plain(slot, Err(BdevError::Internal));
        };
        self.counters.count(OpKind::Read, len as u64, true);
        let header = |out: &mut Vec<u8>| push_read(out, agreed.structured, cookie, offset, len);
        self.reply((slot, held), header, Some(payload));
    }

    fn answer_status(
        &mut self,
        slot: u16,
        offset: u64,
        len: u64,
        (parts, most): (&[Range<u64>], usize),
    ) {
        let Some((_, facts)) = self.serving() else { return };
        let range = offset..offset + len;
        let mut extents = extents(&range, parts, most, u64::from(facts.block_bytes));
        if most == 1 {
            extents.truncate(1);
        }
        let Some(running) = self.running_mut(slot) else { return };
        let mut bytes = Vec::new();
        push_block_status(&mut bytes, running.cookie, &extents);
        let payload = Payload::Buf(IoBuf::from_slice(&bytes), 0..bytes.len());
        self.reply((slot, 0), |_| {}, Some(payload));
    }

    /// Answers without data.
    pub(super) fn answer_plain(&mut self, slot: u16, result: Result<(), BdevError>) {
        let Some((agreed, _)) = self.serving() else { return };
        let Some(running) = self.running_mut(slot) else { return };
        let (cookie, held) = (running.cookie, running.held);
        let plan = running.plan;
        let (kind, bytes) = measure(plan);
        self.counters.count(kind, bytes, result.is_ok());
        let chunked =
            agreed.structured && matches!(plan, Plan::Read { .. } | Plan::BlockStatus { .. });
        let header = |out: &mut Vec<u8>| match result {
            Ok(()) => push_simple(out, cookie, 0),
            Err(error) => {
                let (errno, text) = told(error);
                push_error(out, chunked, cookie, errno, text);
            }
        };
        self.reply((slot, held), header, None);
    }
}

/// What kind of request a plan is, and its bytes. What asks the device for nothing is of none of the kinds that are counted.
fn measure(plan: Plan) -> (OpKind, u64) {
    match plan {
        Plan::Read { len, .. } => (OpKind::Read, len as u64),
        Plan::Write { len, .. } => (OpKind::Write, len as u64),
        Plan::Flush => (OpKind::Flush, 0),
        Plan::Trim { len, .. } => (OpKind::Deallocate, len),
        Plan::WriteZeroes { len, .. } => (OpKind::WriteZeroes, len),
        Plan::Cache | Plan::BlockStatus { .. } | Plan::Disconnect => (OpKind::Find, 0),
    }
}

/// What a client is told of an error of a device.
fn told(error: BdevError) -> (Errno, &'static str) {
    match error {
        BdevError::NoSpace => (Errno::NoSpc, "the device has no space left"),
        BdevError::ReadOnly => (Errno::Perm, "the device refuses writes"),
        BdevError::NotSupported => (Errno::NotSup, "the device cannot do this"),
        BdevError::Gone => (Errno::Io, "the device is gone"),
        BdevError::Unknown => (Errno::Io, "it is not known whether the write has been done"),
        BdevError::ReadFault
        | BdevError::WriteFault
        | BdevError::Transient
        | BdevError::Internal
        | BdevError::Status { .. } => (Errno::Io, "the device has failed"),
    }
}

/// The extents from the beginning of `range` on, of the allocated parts that were found in it. If as many were found
/// as were looked for, what lies behind the last is not known.
fn extents(range: &Range<u64>, parts: &[Range<u64>], most: usize, block: u64) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    let mut at = range.start;
    let mut push = |from: &mut u64, to: u64, hole: bool| {
        // `range` is that of a request, whose length has 32 bits.
        let len = u32::try_from(to.saturating_sub(*from)).unwrap_or(u32::MAX);
        if len == 0 {
            return;
        }
        match extents.last_mut() {
            Some(last) if last.hole == hole => last.len = last.len.saturating_add(len),
            _ => extents.push(Extent { len, hole }),
        }
        *from = to;
    };
    for part in parts {
        let start = (part.start - part.start % block).clamp(at, range.end);
        let end = part.end.checked_next_multiple_of(block).unwrap_or(range.end);
        push(&mut at, start, true);
        push(&mut at, end.clamp(start, range.end), false);
    }
    if parts.len() < most {
        push(&mut at, range.end, true);
    }
    extents
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(parts: &[Range<u64>], most: usize) -> Vec<(u32, bool)> {
        let extents = extents(&(512..8192), parts, most, 512);
        extents.iter().map(|extent| (extent.len, extent.hole)).collect()
    }

    #[test]
    fn extents_are_whole_blocks_and_cover_what_is_known() {
        assert_eq!(lengths(&[], 8), [(7680, true)]);
        assert_eq!(lengths(std::slice::from_ref(&(512..8192)), 8), [(7680, false)]);
        let two = [1024..1536, 4096..5000];
        let all = [(512, true), (512, false), (2560, true), (1024, false), (3072, true)];
        assert_eq!(lengths(&two, 8), all);
        assert_eq!(lengths(&two, 2), all[..4]);
        assert_eq!(lengths(&[600..700, 800..900], 8), [(512, false), (7168, true)]);
        assert_eq!(lengths(std::slice::from_ref(&(0..100_000)), 1), [(7680, false)]);
    }
}
