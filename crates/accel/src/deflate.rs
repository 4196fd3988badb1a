//! DEFLATE (RFC 1951) over scatter-gather lists, in software.

use std::fmt;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use crate::memory::Piece;
use crate::operation::AccelError;
use crate::software::{Sink, with_bytes};

/// One core's states, made when the first operation needs them and used again: a state is
/// hundreds of KiB.
#[derive(Default)]
pub(crate) struct Deflate {
    compress: Option<(u8, Box<Compress>)>,
    decompress: Option<Box<Decompress>>,
}

impl fmt::Debug for Deflate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deflate").finish_non_exhaustive()
    }
}

/// What a step over one piece of source found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// More source, please.
    Hungry,
    /// The stream is complete.
    Ended,
    Failed(AccelError),
}

impl Deflate {
    /// Compresses a source; gives the bytes written.
    pub(crate) fn compress(
        &mut self,
        level: u8,
        source: &[Piece],
        sink: &mut Sink<'_>,
    ) -> Result<usize, AccelError> {
        let level = level.clamp(1, 9);
        let kept = self.compress.take().filter(|&(kept, _)| kept == level);
        let fresh = || (level, Box::new(Compress::new(Compression::new(level.into()), false)));
        let (_, stream) = self.compress.insert(kept.unwrap_or_else(fresh));
        stream.reset();
        let mut state = State::Hungry;
        for piece in source {
            with_bytes(piece, |bytes| {
                if state == State::Hungry {
                    state = compress_into(stream, bytes, sink, FlushCompress::None);
                }
            });
        }
        if state == State::Hungry {
            state = compress_into(stream, &[], sink, FlushCompress::Finish);
        }
        match state {
            State::Failed(error) => Err(error),
            State::Hungry | State::Ended => Ok(bytes_of(stream.total_out())),
        }
    }

    /// Decompresses a source, which is one complete stream; gives the bytes written. What follows
    /// the stream is ignored.
    pub(crate) fn decompress(
        &mut self,
        source: &[Piece],
        sink: &mut Sink<'_>,
    ) -> Result<usize, AccelError> {
        let stream = self.decompress.get_or_insert_with(|| Box::new(Decompress::new(false)));
        stream.reset(false);
        let mut state = State::Hungry;
        for piece in source {
            with_bytes(piece, |bytes| {
                if state == State::Hungry {
                    state = decompress_into(stream, bytes, sink);
                }
            });
        }
        match state {
            State::Ended => Ok(bytes_of(stream.total_out())),
            State::Hungry => Err(AccelError::NotDeflate),
            State::Failed(error) => Err(error),
        }
    }
}

fn compress_into(
    stream: &mut Compress,
    mut bytes: &[u8],
    sink: &mut Sink<'_>,
    flush: FlushCompress,
) -> State {
    loop {
        let (step, status) = step(sink, |room| {
            let before = (stream.total_in(), stream.total_out());
            let status = stream.compress(bytes, room, flush).ok();
            (bytes_since(before, (stream.total_in(), stream.total_out())), status)
        });
        let Some(read) = step else { return too_small(stream.total_out()) };
        bytes = &bytes[read..];
        match status {
            Some(Status::StreamEnd) => return State::Ended,
            Some(_) if bytes.is_empty() && flush == FlushCompress::None => return State::Hungry,
            Some(_) => {}
            // A compressor has no reason to fail but misuse.
            None => return too_small(stream.total_out()),
        }
    }
}

fn decompress_into(stream: &mut Decompress, mut bytes: &[u8], sink: &mut Sink<'_>) -> State {
    loop {
        let before = (stream.total_in(), stream.total_out());
        let (step, status) = step(sink, |room| {
            let status = stream.decompress(bytes, room, FlushDecompress::None).ok();
            (bytes_since(before, (stream.total_in(), stream.total_out())), status)
        });
        let Some(read) = step else { return too_small(stream.total_out()) };
        bytes = &bytes[read..];
        match status {
            Some(Status::StreamEnd) => return State::Ended,
            Some(_) if (stream.total_in(), stream.total_out()) != before => {}
            Some(_) if bytes.is_empty() => return State::Hungry,
            _ => return State::Failed(AccelError::NotDeflate),
        }
    }
}

/// Lets a stream write to the sink, and gives the bytes it read. `None` if it wrote more than there
/// is room for.
///
/// A full sink does not mean that the stream wants to write more; given no room at all, it would not say.
/// So it gets a byte that is not used.
fn step(
    sink: &mut Sink<'_>,
    run: impl FnOnce(&mut [u8]) -> ((usize, usize), Option<Status>),
) -> (Option<usize>, Option<Status>) {
    let room = sink.room();
    if room.is_empty() {
        let ((read, written), status) = run(&mut [0]);
        return ((written == 0).then_some(read), status);
    }
    let ((read, written), status) = run(room);
    sink.advance(written);
    (Some(read), status)
}

/// Bytes read and written, from the totals before and after.
fn bytes_since(before: (u64, u64), after: (u64, u64)) -> (usize, usize) {
    (bytes_of(after.0 - before.0), bytes_of(after.1 - before.1))
}

/// `written` counts the byte too many.
fn too_small(written: u64) -> State {
    State::Failed(AccelError::TargetTooSmall { available: bytes_of(written.saturating_sub(1)) })
}

/// A count of bytes that are in memory.
fn bytes_of(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
