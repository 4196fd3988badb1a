//! An engine that does what it is told: complete later and out of order, fail, hang, refuse, lie.

#![allow(unsafe_code)]

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use raceline_accel::{
    Capabilities, Engine, EngineQueue, OpSet, Operation, Output, Piece, PieceMut, RawRequest,
    RawResult, Refused, SlotId,
};

use super::model::crc32c_by_bits;
use super::random::Random;

/// What the engine does, in parts per hundred of the operations it is given; what is left completes
/// as it should, at a random poll.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    /// Refuses as busy.
    pub(crate) busy: usize,
    /// Refuses as unsuitable.
    pub(crate) unsuitable: usize,
    /// Fails.
    pub(crate) fail: usize,
    /// Stops halfway, as at a page fault.
    pub(crate) partial: usize,
    /// Reports what does not fit the operation.
    pub(crate) nonsense: usize,
    /// Reports twice.
    pub(crate) twice: usize,
    /// Reports slots that it was never given.
    pub(crate) bogus: usize,
    /// Never completes until [`Control::let_go`].
    pub(crate) hang: usize,
    /// What it says of its health.
    pub(crate) healthy: bool,
    /// Whether it can be stopped.
    pub(crate) stops: bool,
    /// Most bytes, pieces and operations at a time.
    pub(crate) limits: (usize, usize, usize),
}

impl Default for Manners {
    fn default() -> Manners {
        Manners {
            busy: 0,
            unsuitable: 0,
            fail: 0,
            partial: 0,
            nonsense: 0,
            twice: 0,
            bogus: 0,
            hang: 0,
            healthy: true,
            stops: true,
            limits: (1 << 20, 64, 32),
        }
    }
}

/// The status of operations that fail.
pub(crate) const STATUS: u32 = 0x1f;

/// The test's hold on the engine. The engine touches the memory of its operations as late as it may, so
/// that a sanitizer sees a channel that frees it too early.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) manners: Manners,
    random: Random,
    pending: Vec<Pending>,
    hung: Vec<Pending>,
    /// Submissions that were taken.
    pub(crate) taken: usize,
    let_go: bool,
}

#[derive(Debug)]
struct Pending {
    slot: SlotId,
    operation: Operation,
    sources: [Vec<Piece>; 2],
    targets: [Vec<PieceMut>; 2],
}

// SAFETY: the addresses are used under the lock of the control, while channels keep the memory.
unsafe impl Send for Pending {}

impl Control {
    /// From now on it completes what hung, too.
    pub(crate) fn let_go(&mut self) {
        self.let_go = true;
    }

    /// Reads and writes all memory that it still has.
    pub(crate) fn touch_everything(&mut self) {
        for pending in self.pending.iter().chain(&self.hung) {
            pending.execute(usize::MAX);
        }
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.random.below(100) < percent
    }
}

/// The engine.
#[derive(Debug)]
pub(crate) struct TestEngine {
    control: Arc<Mutex<Control>>,
}

impl TestEngine {
    /// An engine, and what controls it.
    pub(crate) fn new(manners: Manners, seed: u64) -> (Arc<TestEngine>, Arc<Mutex<Control>>) {
        let control = Arc::new(Mutex::new(Control {
            manners,
            random: Random(seed),
            pending: Vec::new(),
            hung: Vec::new(),
            taken: 0,
            let_go: false,
        }));
        (Arc::new(TestEngine { control: Arc::clone(&control) }), control)
    }
}

impl Engine for TestEngine {
    fn name(&self) -> &'static str {
        "test"
    }

    fn operations(&self) -> OpSet {
        OpSet::ALL
    }

    fn open_queue(&self, _cpu: Option<usize>) -> io::Result<Box<dyn EngineQueue>> {
        Ok(Box::new(TestQueue { control: Arc::clone(&self.control) }))
    }
}

struct TestQueue {
    control: Arc<Mutex<Control>>,
}

impl TestQueue {
    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap()
    }
}

// SAFETY: memory is touched under `poll` before the report, and by `touch_everything` only what was
// not reported; `stop` gives true after it has forgotten everything.
unsafe impl EngineQueue for TestQueue {
    fn capabilities(&self) -> Capabilities {
        let (max_bytes, max_pieces, depth) = self.control().manners.limits;
        Capabilities { operations: OpSet::ALL, max_bytes, max_pieces, depth }
    }

    unsafe fn submit(&mut self, slot: SlotId, request: &RawRequest<'_>) -> Result<(), Refused> {
        let mut control = self.control();
        let (max_bytes, max_pieces, depth) = control.manners.limits;
        let longest = request.sources().map(<[_]>::len).into_iter();
        let longest = longest.chain(request.targets().map(<[_]>::len)).max().unwrap();
        assert!(request.bytes() <= max_bytes && longest <= max_pieces && request.bytes() > 0);
        assert!(control.pending.len() + control.hung.len() < depth, "deeper than {depth}");
        let (busy, unsuitable) = (control.manners.busy, control.manners.unsuitable);
        if control.chance(busy) {
            return Err(Refused::Busy);
        }
        if control.chance(unsuitable) {
            return Err(Refused::Unsuitable);
        }
        let pending = Pending {
            slot,
            operation: request.operation(),
            sources: request.sources().map(<[_]>::to_vec),
            targets: request.targets().map(<[_]>::to_vec),
        };
        control.taken += 1;
        let hang = control.manners.hang;
        if control.chance(hang) && !control.let_go {
            control.hung.push(pending);
        } else {
            control.pending.push(pending);
        }
        Ok(())
    }

    fn kick(&mut self) {}

    fn poll(&mut self, report: &mut dyn FnMut(SlotId, RawResult)) {
        let mut control = self.control();
        let manners = control.manners;
        if control.let_go {
            let hung = std::mem::take(&mut control.hung);
            control.pending.extend(hung);
        }
        for _ in 0..control.pending.len() {
            if control.random.one_in(2) {
                continue;
            }
            let pending = control.pending.len();
            let at = control.random.below(pending);
            let pending = control.pending.swap_remove(at);
            let result = if control.chance(manners.fail) {
                RawResult::Failed { status: STATUS }
            } else if control.chance(manners.partial) {
                let most = pending.most_completed();
                let bytes_completed = control.random.below(most + 1);
                let crc32c = pending.execute(bytes_completed).1;
                RawResult::Partial { bytes_completed, crc32c }
            } else if control.chance(manners.nonsense) {
                match control.random.below(3) {
                    0 => RawResult::Completed(Output::Written(usize::MAX)),
                    1 => RawResult::Partial { bytes_completed: usize::MAX, crc32c: 0 },
                    _ => RawResult::Completed(pending.wrong_output()),
                }
            } else {
                match pending.execute(usize::MAX).0 {
                    Some(output) => RawResult::Completed(output),
                    None => RawResult::Partial { bytes_completed: 0, crc32c: 0 },
                }
            };
            if control.chance(manners.bogus) {
                let slot = SlotId(pending.slot.0 ^ (1 << control.random.below(64)));
                if control.pending.iter().chain(&control.hung).all(|other| other.slot != slot) {
                    report(slot, result);
                }
            }
            report(pending.slot, result);
            if control.chance(manners.twice) {
                report(pending.slot, RawResult::Failed { status: 2 });
            }
        }
    }

    fn is_healthy(&self) -> bool {
        self.control().manners.healthy
    }

    fn stop(&mut self) -> bool {
        let mut control = self.control();
        if control.manners.stops {
            control.pending.clear();
            control.hung.clear();
        }
        control.manners.stops
    }
}

impl Pending {
    /// Where it may stop halfway: of a comparison before the first difference.
    fn most_completed(&self) -> usize {
        let sources = self.sources[0].iter().map(Piece::len).sum::<usize>();
        let bytes = sources.max(self.targets[0].iter().map(PieceMut::len).sum());
        if self.operation != Operation::Compare {
            return bytes;
        }
        let (first, second) = (read(&self.sources[0]), read(&self.sources[1]));
        first.iter().zip(&second).position(|(a, b)| a != b).unwrap_or(bytes)
    }

    /// Does the first `most` bytes, byte by byte; gives the output, and the digest if it digests. It
    /// cannot do streams.
    fn execute(&self, most: usize) -> (Option<Output>, u32) {
        let mut source = read(&self.sources[0]);
        source.truncate(most);
        let digest = crc32c_by_bits(self.operation.seed(), &source);
        let output = match self.operation {
            Operation::Crc32c { .. } => Output::Crc32c(digest),
            Operation::Copy => write(&self.targets[0], &source),
            Operation::CopyCrc32c { .. } => {
                write(&self.targets[0], &source);
                Output::Crc32c(digest)
            }
            Operation::Fill { byte } => {
                let len = self.targets[0].iter().map(PieceMut::len).sum::<usize>().min(most);
                write(&self.targets[0], &vec![byte; len])
            }
            Operation::DualCast => {
                write(&self.targets[1], &source);
                write(&self.targets[0], &source)
            }
            Operation::Compare => {
                let other = read(&self.sources[1]);
                Output::Equal(source == other[..source.len()])
            }
            Operation::Compress { .. } | Operation::Decompress => return (None, 0),
        };
        (Some(output), digest)
    }

    /// An output of the wrong kind.
    fn wrong_output(&self) -> Output {
        match self.operation {
            Operation::Compare => Output::Crc32c(1),
            Operation::Copy | Operation::Fill { .. } | Operation::DualCast => Output::Equal(true),
            _ => Output::Nothing,
        }
    }
}

fn read(pieces: &[Piece]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in pieces {
        // SAFETY: channels keep the memory until the completion is reported.
        bytes
            .extend_from_slice(unsafe { std::slice::from_raw_parts(piece.pointer(), piece.len()) });
    }
    bytes
}

fn write(pieces: &[PieceMut], mut bytes: &[u8]) -> Output {
    for piece in pieces {
        let (now, later) = bytes.split_at(piece.len().min(bytes.len()));
        // SAFETY: as above, and a target is the operation's alone.
        unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), piece.pointer(), now.len()) };
        bytes = later;
    }
    Output::Nothing
}
