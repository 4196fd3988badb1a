//! One core's queue to a DSA work queue: the same code for hardware and for the emulation.
//!
//! Operations become descriptors when they are submitted, and go to the device together when the
//! queue is kicked: several in one batch descriptor, one alone. An operation on memory in several
//! pieces is a batch of its own; a digest is carried from piece to piece through the completion
//! records (DSA specification 8.3.12), each piece behind a fence.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use raceline_accel::{
    Capabilities, EngineQueue, OpCode, OpSet, Operation, Output, Piece, PieceMut, RawRequest,
    RawResult, Refused, SlotId,
};

use crate::descriptor::{
    BATCH_MIN, Completion, CompletionRecord, CrcSeed, DUALCAST_SAME_BITS, Descriptor,
    DescriptorSlot, DeviceOperation, Flags, Status,
};
use crate::discover::WorkQueue;
use crate::portal::{Portal, Submission};

/// What DSA can do; it does not compress.
pub const DSA_OPERATIONS: OpSet = OpSet::of(&[
    OpCode::Copy,
    OpCode::Fill,
    OpCode::DualCast,
    OpCode::Compare,
    OpCode::Crc32c,
    OpCode::CopyCrc32c,
]);

/// Most operations of a queue in flight, if not told otherwise.
pub const DEPTH: usize = 256;
/// Most pieces of an operand.
const PIECES_MAX: usize = 4;
/// Most descriptors of an operation: three operands of four pieces each have at most nine ends
/// inside, so ten parts (dual cast).
const SEGMENTS_MAX: usize = 3 * (PIECES_MAX - 1) + 1;
/// Most descriptors of a batch; devices allow more, but the first result should come soon.
const BATCH_MAX: usize = 32;
/// Most batches in flight.
const BATCHES_MAX: usize = 32;
/// How long operations wait for room in the work queue while none of this queue leaves it (other
/// submitters fill a shared one, or the device hangs) before they are given back untouched.
const ROOM_LIMIT: Duration = Duration::from_millis(50);
/// How often in a row that may happen. A work queue that was disabled, or a halted device, has no room
/// for ever (5.7).
const NO_ROOM_MAX: u32 = 16;
/// How long [`DsaQueue::stop`] waits for what is in flight.
const STOP_LIMIT: Duration = Duration::from_secs(1);
/// How often it looks.
const STOP_INTERVAL: Duration = Duration::from_micros(100);

/// The operation that DSA does for one of ours.
const fn device_operation(code: OpCode) -> Option<DeviceOperation> {
    match code {
        OpCode::Copy => Some(DeviceOperation::MemoryMove),
        OpCode::Fill => Some(DeviceOperation::Fill),
        OpCode::DualCast => Some(DeviceOperation::Dualcast),
        OpCode::Compare => Some(DeviceOperation::Compare),
        OpCode::Crc32c => Some(DeviceOperation::CrcGeneration),
        OpCode::CopyCrc32c => Some(DeviceOperation::CopyCrc),
        OpCode::Compress | OpCode::Decompress => None,
    }
}

/// What a work queue can do for us.
pub(super) fn operations(queue: &WorkQueue) -> OpSet {
    let mut codes = [OpCode::Copy; OpCode::COUNT];
    let mut count = 0;
    for code in OpCode::ALL {
        if device_operation(code).is_some_and(|operation| !queue.missing.contains(&operation)) {
            codes[count] = code;
            count += 1;
        }
    }
    OpSet::of(&codes[..count])
}

/// One core's queue.
pub struct DsaQueue {
    portal: Box<dyn Portal>,
    capabilities: Capabilities,
    /// Most descriptors of a batch; fewer than two if the device has none.
    batch_max: usize,
    /// Flags of descriptors that write memory.
    write_flags: Flags,
    /// What the device writes: a record for each part of an operation, then one for each batch.
    records: Arc<[CompletionRecord]>,
    /// What the device reads of batches: `batch_max` for each.
    lists: Arc<[DescriptorSlot]>,
    /// The descriptor that belongs to each record.
    prepared: Vec<Descriptor>,
    free_records: Vec<usize>,
    operations: Vec<InFlight>,
    free_operations: Vec<usize>,
    /// Operations that are not reported.
    flying: Vec<usize>,
    /// Those of `flying` that the device does not have, in order.
    pending: VecDeque<usize>,
    batches: Vec<Batch>,
    free_batches: Vec<usize>,
    /// Descriptors in the work queue, as far as we know.
    in_window: usize,
    /// Since when pending operations have found no room.
    no_room_since: Option<Instant>,
    /// How often in a row operations were given back for that, with none taken since.
    no_room_count: u32,
    /// [`EngineQueue::stop`] has waited.
    waited: bool,
    /// Nothing is done any more.
    ended: bool,
}

/// An operation.
#[derive(Clone, Copy)]
struct InFlight {
    slot: SlotId,
    operation: Operation,
    /// Records of its parts, in order.
    records: [usize; SEGMENTS_MAX],
    parts: usize,
    carrier: Carrier,
}

/// How an operation went to the device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Carrier {
    /// Not yet.
    Pending,
    Alone,
    Batch(usize),
}

/// A batch's place.
#[derive(Clone, Copy, Default)]
struct Batch {
    in_flight: bool,
    /// What its record says, while its operations are gone through.
    done: Option<Completion>,
}

impl DsaQueue {
    /// A queue through this portal to a work queue, for at most `depth` operations.
    #[must_use]
    pub fn new(portal: Box<dyn Portal>, queue: &WorkQueue, depth: usize) -> Self {
        let depth = depth.max(1);
        let batch_max = queue.batch_max.min(BATCH_MAX);
        let in_pieces = batch_max >= SEGMENTS_MAX;
        let records = depth.max(SEGMENTS_MAX);
        let batches = if batch_max < BATCH_MIN { 0 } else { BATCHES_MAX.min(portal.window()) };
        let transfer_max = queue.transfer_bytes_max.min(u64::from(u32::MAX));
        let cache_control = if queue.cache_control { Flags::CACHE_CONTROL } else { Flags::NONE };
        let idle = InFlight {
            slot: SlotId(0),
            operation: Operation::Copy,
            records: [0; SEGMENTS_MAX],
            parts: 0,
            carrier: Carrier::Pending,
        };
        Self {
            capabilities: Capabilities {
                operations: operations(queue),
                max_bytes: usize::try_from(transfer_max).unwrap_or(usize::MAX),
                max_pieces: if in_pieces { PIECES_MAX } else { 1 },
                depth,
            },
            portal,
            batch_max,
            write_flags: cache_control,
            records: (0..records + batches).map(|_| CompletionRecord::default()).collect(),
            lists: (0..batches * batch_max).map(|_| DescriptorSlot::default()).collect(),
            prepared: vec![Descriptor::nop(0, Flags::NONE); records],
            free_records: (0..records).rev().collect(),
            operations: vec![idle; depth],
            free_operations: (0..depth).rev().collect(),
            flying: Vec::with_capacity(depth),
            pending: VecDeque::with_capacity(depth),
            batches: vec![Batch::default(); batches],
            free_batches: (0..batches).rev().collect(),
            in_window: 0,
            no_room_since: None,
            no_room_count: 0,
            waited: false,
            ended: false,
        }
    }

    /// The address of a record, as the device gets it.
    fn record_address(&self, index: usize) -> u64 {
        let record: *const CompletionRecord = &raw const self.records[index];
        record.expose_provenance() as u64
    }

    /// Writes the descriptors of a request; gives the operation, with the records of its parts.
    fn prepare(&mut self, request: &RawRequest<'_>) -> Result<InFlight, Refused> {
        let mut walk = Walk::new(request);
        let mut new = InFlight {
            slot: SlotId(0),
            operation: request.operation(),
            records: [0; SEGMENTS_MAX],
            parts: 0,
            carrier: Carrier::Pending,
        };
        let mut left = request.bytes();
        while left > 0 {
            let part = walk.next(left).ok_or(Refused::Unsuitable);
            let part = part.and_then(|part| self.prepare_part(&mut new, &part));
            match part {
                Ok(bytes) => left -= bytes,
                Err(refused) => {
                    self.free_records.extend(&new.records[..new.parts]);
                    return Err(refused);
                }
            }
        }
        Ok(new)
    }

    /// Writes the descriptor of one part; gives its number of bytes.
    fn prepare_part(&mut self, new: &mut InFlight, part: &Part) -> Result<usize, Refused> {
        let bytes = u32::try_from(part.bytes).map_err(|_| Refused::Unsuitable)?;
        if new.parts == SEGMENTS_MAX {
            return Err(Refused::Unsuitable);
        }
        let previous = new.parts.checked_sub(1).map(|last| new.records[last]);
        let chain = |seed| match previous {
            None => (CrcSeed::Value(seed), Flags::NONE),
            Some(previous) => {
                let place = self.record_address(previous) + CompletionRecord::CRC_OFFSET;
                (CrcSeed::At(place), Flags::FENCE)
            }
        };
        let index = *self.free_records.last().ok_or(Refused::Busy)?;
        let record = self.record_address(index);
        let ([from, other], [to, second]) = (part.sources, part.targets);
        let descriptor = match new.operation {
            Operation::Copy => Descriptor::memory_move(record, self.write_flags, from, to, bytes),
            Operation::Fill { byte } => {
                let pattern = u64::from_ne_bytes([byte; 8]);
                Descriptor::fill(record, self.write_flags, pattern, to, bytes)
            }
            Operation::DualCast if (to ^ second) & DUALCAST_SAME_BITS == 0 => {
                Descriptor::dualcast(record, self.write_flags, from, [to, second], bytes)
            }
            Operation::Compare => Descriptor::compare(record, Flags::NONE, from, other, bytes),
            Operation::Crc32c { seed } => {
                let (seed, flags) = chain(seed);
                Descriptor::crc(record, flags, from, bytes, seed)
            }
            Operation::CopyCrc32c { seed } => {
                let (seed, flags) = chain(seed);
                let flags = flags.union(self.write_flags);
                Descriptor::copy_crc(record, flags, from, to, bytes, seed)
            }
            Operation::DualCast | Operation::Compress { .. } | Operation::Decompress => {
                return Err(Refused::Unsuitable);
            }
        };
        self.records[index].clear();
        self.prepared[index] = descriptor;
        self.free_records.pop();
        new.records[new.parts] = index;
        new.parts += 1;
        Ok(part.bytes)
    }

    /// Gives the device what it has room for.
    fn flush(&mut self) {
        while let Some(&first) = self.pending.front() {
            if self.in_window >= self.portal.window() || self.portal.is_stopped() {
                return;
            }
            let single = |index: &&usize| self.operations[**index].parts == 1;
            let together = self.pending.iter().take(self.batch_max).take_while(single).count();
            let alone = self.operations[first].parts == 1;
            let accepted = match self.free_batches.last() {
                Some(&batch) if together >= BATCH_MIN => self.submit_batch(batch, together),
                Some(&batch) if !alone => self.submit_batch(batch, 1),
                _ if alone => self.submit_alone(first),
                _ => return,
            };
            if !accepted {
                return;
            }
        }
    }

    /// Submits the first pending operation alone. False if the device has no room.
    fn submit_alone(&mut self, index: usize) -> bool {
        let operation = &mut self.operations[index];
        let descriptor = &self.prepared[operation.records[0]];
        // SAFETY: the submitter of the operation keeps its memory until it is reported, which happens
        // after the record is written or the device has stopped; the record is kept likewise, or leaked.
        // The window was looked at.
        if unsafe { self.portal.submit(descriptor) } == Submission::Retry {
            return false;
        }
        operation.carrier = Carrier::Alone;
        self.pending.pop_front();
        self.accepted();
        true
    }

    /// Submits the first `count` pending operations in a batch. False if the device has no room.
    fn submit_batch(&mut self, batch: usize, count: usize) -> bool {
        let list = &self.lists[batch * self.batch_max..][..self.batch_max];
        let mut entries = 0_u32;
        let operations = self.pending.iter().take(count).map(|index| &self.operations[*index]);
        let records = operations.flat_map(|operation| &operation.records[..operation.parts]);
        for (place, record) in list.iter().zip(records) {
            place.store(&self.prepared[*record]);
            entries += 1;
        }
        let record = self.prepared.len() + batch;
        self.records[record].clear();
        let list = list.as_ptr().expose_provenance() as u64;
        let address = self.record_address(record);
        let descriptor = Descriptor::batch(address, Flags::NONE, list, entries);
        // SAFETY: as for one alone; the list is not changed until the batch's record is written.
        if unsafe { self.portal.submit(&descriptor) } == Submission::Retry {
            return false;
        }
        for index in self.pending.drain(..count) {
            self.operations[index].carrier = Carrier::Batch(batch);
        }
        self.batches[batch].in_flight = true;
        self.free_batches.pop();
        self.accepted();
        true
    }

    /// Counts a descriptor that the device has taken.
    fn accepted(&mut self) {
        self.in_window += 1;
        (self.no_room_since, self.no_room_count) = (None, 0);
    }

    /// How an operation ended, if it has. `stopped`: the device does nothing any more.
    fn outcome(&self, operation: &InFlight, stopped: bool) -> Option<RawResult> {
        let batch = match operation.carrier {
            Carrier::Pending if !stopped => return None,
            Carrier::Pending | Carrier::Alone => None,
            Carrier::Batch(batch) => self.batches[batch].done,
        };
        let records = &operation.records[..operation.parts];
        // A record that is not written now never will be: its batch is over, or the device is.
        let over = stopped || batch.is_some();
        if !over && records.iter().any(|index| self.records[*index].poll().is_none()) {
            return None;
        }
        let (mut done, mut crc) = (0, seed(operation.operation));
        for &index in records {
            let bytes = self.prepared[index].transfer_size() as usize;
            let Some(completion) = self.records[index].poll() else {
                // The batch itself failed before it came to this part.
                if let Some(Status::Error(code)) = batch.map(|batch| batch.status) {
                    return Some(RawResult::Failed { status: u32::from(code) });
                }
                return Some(RawResult::Partial { bytes_completed: done, crc32c: crc });
            };
            match completion.status {
                Status::Success | Status::FalsePredicate => {
                    if operation.operation == Operation::Compare && completion.result != 0 {
                        return Some(RawResult::Completed(Output::Equal(false)));
                    }
                    done += bytes;
                    crc = completion.crc;
                }
                Status::PageFault | Status::PageRequestFailed => {
                    let part = completed(operation.operation, &completion);
                    if part > bytes {
                        let status = u32::from(completion.status.code());
                        return Some(RawResult::Failed { status });
                    }
                    // With no byte done the CRC Value is undefined (8.3.12).
                    let crc32c = if part == 0 { crc } else { completion.crc };
                    return Some(RawResult::Partial { bytes_completed: done + part, crc32c });
                }
                status => return Some(RawResult::Failed { status: u32::from(status.code()) }),
            }
        }
        Some(RawResult::Completed(match operation.operation.code() {
            OpCode::Compare => Output::Equal(true),
            OpCode::Crc32c | OpCode::CopyCrc32c => Output::Crc32c(crc),
            _ => Output::Nothing,
        }))
    }

    /// Frees the places of an operation that the device does not have.
    fn release(&mut self, index: usize) {
        let operation = &self.operations[index];
        self.free_records.extend(&operation.records[..operation.parts]);
        self.free_operations.push(index);
    }

    /// Gives pending operations back that have found no room for too long.
    fn check_room(&mut self, report: &mut dyn FnMut(SlotId, RawResult)) {
        let now = Instant::now();
        if now.duration_since(*self.no_room_since.get_or_insert(now)) < ROOM_LIMIT {
            return;
        }
        self.no_room_since = None;
        self.no_room_count += 1;
        while let Some(index) = self.pending.pop_front() {
            self.flying.retain(|flying| *flying != index);
            let InFlight { slot, operation, .. } = self.operations[index];
            self.release(index);
            let crc32c = seed(operation);
            report(slot, RawResult::Partial { bytes_completed: 0, crc32c });
        }
    }

    /// Finds out which batches are over. Their operations' records were written before (3.8).
    fn look_at_batches(&mut self) {
        let records = &self.records[self.prepared.len()..];
        for (batch, record) in self.batches.iter_mut().zip(records) {
            if batch.in_flight {
                batch.done = record.poll();
            }
        }
    }

    /// Whether the device touches no memory of this queue any more.
    fn is_quiet(&mut self) -> bool {
        let stopped = self.portal.is_stopped();
        self.look_at_batches();
        let batches_over =
            self.batches.iter().all(|batch| !batch.in_flight || batch.done.is_some());
        let mut flying = self.flying.iter().map(|index| &self.operations[*index]);
        let operations_over = flying.all(|operation| {
            operation.carrier == Carrier::Pending || self.outcome(operation, stopped).is_some()
        });
        stopped || (batches_over && operations_over)
    }
}

/// How many bytes of the front of its operands a part has done that stopped at a page fault.
fn completed(operation: Operation, completion: &Completion) -> usize {
    // A copy that went backwards has done the end (8.3.4); it does that for overlapping operands
    // only, which ours are not.
    if operation == Operation::Copy && completion.result != 0 {
        return 0;
    }
    usize::try_from(completion.bytes_completed).unwrap_or(usize::MAX)
}

/// The digest of no bytes of an operation.
const fn seed(operation: Operation) -> u32 {
    match operation {
        Operation::Crc32c { seed } | Operation::CopyCrc32c { seed } => seed,
        _ => 0,
    }
}

// SAFETY: a completion is reported when the device has written the records of all parts of the
// operation, or that of its batch, or when the portal says that the device has stopped; `stop`
// gives true under the same conditions for all operations.
unsafe impl EngineQueue for DsaQueue {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    unsafe fn submit(&mut self, slot: SlotId, request: &RawRequest<'_>) -> Result<(), Refused> {
        let fits = (1..=self.capabilities.max_bytes).contains(&request.bytes())
            && self.capabilities.operations.contains(request.operation().code());
        if !fits || self.ended || self.portal.is_stopped() {
            return Err(Refused::Unsuitable);
        }
        let index = *self.free_operations.last().ok_or(Refused::Busy)?;
        let new = self.prepare(request)?;
        if new.parts > 1 && self.batches.is_empty() {
            self.free_records.extend(&new.records[..new.parts]);
            return Err(Refused::Unsuitable);
        }
        self.free_operations.pop();
        self.operations[index] = InFlight { slot, ..new };
        self.flying.push(index);
        self.pending.push_back(index);
        if self.pending.len() >= self.batch_max.max(1) {
            self.flush();
        }
        Ok(())
    }

    fn kick(&mut self) {
        self.flush();
    }

    fn poll(&mut self, report: &mut dyn FnMut(SlotId, RawResult)) {
        if self.ended {
            return;
        }
        // This before the records: then what the device wrote before it stopped is seen.
        let stopped = self.portal.is_stopped();
        self.look_at_batches();
        if stopped {
            self.pending.clear();
        }
        let mut place = 0;
        while let Some(&index) = self.flying.get(place) {
            let Some(result) = self.outcome(&self.operations[index], stopped) else {
                place += 1;
                continue;
            };
            let InFlight { slot, carrier, .. } = self.operations[index];
            self.flying.swap_remove(place);
            if carrier == Carrier::Alone {
                self.in_window -= 1;
            }
            self.no_room_since = None;
            self.release(index);
            report(slot, result);
        }
        for (index, batch) in self.batches.iter_mut().enumerate() {
            if batch.done.take().is_some() {
                batch.in_flight = false;
                self.free_batches.push(index);
                self.in_window -= 1;
            }
        }
        self.flush();
        if !self.pending.is_empty() {
            self.check_room(report);
        }
    }

    fn is_healthy(&self) -> bool {
        !self.ended && self.no_room_count < NO_ROOM_MAX && !self.portal.is_stopped()
    }

    fn stop(&mut self) -> bool {
        let limit = if self.waited { Duration::ZERO } else { STOP_LIMIT };
        let deadline = Instant::now() + limit;
        self.waited = true;
        loop {
            if self.is_quiet() {
                self.ended = true;
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(STOP_INTERVAL);
        }
    }
}

impl Drop for DsaQueue {
    fn drop(&mut self) {
        if !self.stop() {
            // The device may still write records and read lists.
            mem::forget(Arc::clone(&self.records));
            mem::forget(Arc::clone(&self.lists));
        }
    }
}

/// A part of an operation that is in one piece in every operand: addresses and length.
struct Part {
    sources: [u64; 2],
    targets: [u64; 2],
    bytes: usize,
}

/// Goes through the pieces of all operands at once.
struct Walk<'a> {
    sources: [Cursor<'a, Piece>; 2],
    targets: [Cursor<'a, PieceMut>; 2],
}

impl<'a> Walk<'a> {
    fn new(request: &RawRequest<'a>) -> Self {
        Self {
            sources: request.sources().map(Cursor::new),
            targets: request.targets().map(Cursor::new),
        }
    }

    /// The next part, of at most `limit` bytes. None when an operand has ended, which its lengths
    /// should not allow.
    fn next(&mut self, limit: usize) -> Option<Part> {
        let mut bytes = limit;
        self.sources.iter_mut().for_each(|cursor| bytes = bytes.min(cursor.left()));
        self.targets.iter_mut().for_each(|cursor| bytes = bytes.min(cursor.left()));
        if bytes == 0 {
            return None;
        }
        let sources = self.sources.each_mut().map(|cursor| cursor.advance(bytes));
        let targets = self.targets.each_mut().map(|cursor| cursor.advance(bytes));
        Some(Part { sources, targets, bytes })
    }
}

/// A place in an operand's pieces.
struct Cursor<'a, P> {
    /// The pieces from here on; none at all if the operation has no such operand.
    pieces: &'a [P],
    absent: bool,
    offset: usize,
}

/// A piece of either kind, by address.
trait Located {
    fn address(&self) -> u64;
    fn bytes(&self) -> usize;
}

impl Located for Piece {
    fn address(&self) -> u64 {
        self.pointer().expose_provenance() as u64
    }

    fn bytes(&self) -> usize {
        self.len()
    }
}

impl Located for PieceMut {
    fn address(&self) -> u64 {
        self.pointer().expose_provenance() as u64
    }

    fn bytes(&self) -> usize {
        self.len()
    }
}

impl<'a, P: Located> Cursor<'a, P> {
    fn new(pieces: &'a [P]) -> Self {
        Self { pieces, absent: pieces.is_empty(), offset: 0 }
    }

    /// Bytes left in this piece; empty pieces are passed over.
    fn left(&mut self) -> usize {
        if self.absent {
            return usize::MAX;
        }
        while let [first, rest @ ..] = self.pieces {
            if self.offset < first.bytes() {
                return first.bytes() - self.offset;
            }
            (self.pieces, self.offset) = (rest, 0);
        }
        0
    }

    /// The address here; then goes on by `bytes` bytes, not more than are left.
    fn advance(&mut self, bytes: usize) -> u64 {
        let Some(first) = self.pieces.first() else { return 0 };
        let here = first.address() + self.offset as u64;
        self.offset += bytes;
        here
    }
}
