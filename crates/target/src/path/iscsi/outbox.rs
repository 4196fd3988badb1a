//! What an iSCSI connection sends: PDUs and data, gathered and sent in one vectored call.

use raceline_accel::Copier;
use raceline_crc32c::Crc32c;
use raceline_iscsi::target::{Finish, Residual, Status, TargetConfig, TargetConnection, TaskId};
use raceline_reactor::io::SocketId;
use raceline_reactor::{Context, IoBuf, Payload, SendBatch, SharedBuf, Token};

use crate::path::core::Core;
use crate::records::names::ConnKey;

/// Header bytes that one command's answer needs at most: Data-In with header digest, its data digest, and an R2T.
const HEADER_BYTES_PER_COMMAND: usize = 48 + 4 + 4 + 48 + 4;
/// Bytes of sense data, or of the header that a Reject carries, with their length and padding.
const MAX_SENSE_BYTES: usize = 64;
/// Bytes of a PDU of the protocol's own at most: text, or a ping's data.
const MOST_ANSWER_BYTES: usize = 64 + (256 << 10);
/// PDUs that wait to be sent: with more, the socket is not read. The window of commands bounds what an initiator that
/// keeps to it can have waiting, besides pings.
const MIN_WAITING: usize = 256;

/// What a connection sends, and the protocol's state.
pub(crate) struct Outbox {
    key: ConnKey,
    /// The target's end of the protocol. Also decodes received bytes.
    pub(crate) proto: TargetConnection,
    batch: Box<SendBatch>,
    /// `None` while it is being sent.
    spare: Option<Box<SendBatch>>,
    dirty: bool,
    /// Commands are no longer answered.
    muted: bool,
    /// PDUs in the batch, and how many are enough.
    waiting: usize,
    most_waiting: usize,
    /// MaxCmdSN has moved on, and no PDU has told the initiator.
    window_moved: bool,
}

fn new_batch(entries: usize) -> Box<SendBatch> {
    SendBatch::new(entries * HEADER_BYTES_PER_COMMAND + 256, entries * 3 + 4)
}

/// How the data of a read are digested, where data digests are on.
pub(crate) enum Digests {
    /// There are none.
    Off,
    /// While they are copied, just before they leave.
    OnTheWay(Copier),
    /// Before: the data are in a buffer that nobody changes.
    Before,
}

impl Outbox {
    pub(crate) fn new(key: ConnKey, config: TargetConfig) -> Self {
        Self {
            key,
            proto: TargetConnection::new(config),
            batch: new_batch(4),
            spare: Some(new_batch(4)),
            dirty: false,
            muted: false,
            waiting: 0,
            most_waiting: MIN_WAITING,
            window_moved: false,
        }
    }

    /// The login is complete: sets the memory for this number of commands.
    pub(crate) fn set_entries(&mut self, entries: usize) {
        self.most_waiting = (2 * entries).max(MIN_WAITING);
        // A batch in use stays as it is: it grows when needed.
        if self.batch.is_empty() {
            self.batch = new_batch(entries);
        }
        if let Some(spare) = &mut self.spare {
            *spare = new_batch(entries);
        }
    }

    // ----------------------------------------------------------------------------- sending

    /// Sends what is ready, if no send is in flight: one vectored call.
    #[inline]
    pub(crate) fn flush(&mut self, cx: &mut Context<'_>, socket: SocketId, token: Token) {
        self.dirty = false;
        if self.window_moved {
            // Nothing else tells the initiator that it may send another command.
            self.window_moved = false;
            self.batch.make_room(HEADER_BYTES_PER_COMMAND, 1);
            let proto = &mut self.proto;
            self.batch.append(|out| proto.window_update(out));
        }
        if self.batch.is_empty() {
            return;
        }
        if let Some(mut batch) = self.spare.take() {
            std::mem::swap(&mut self.batch, &mut batch);
            self.waiting = 0;
            cx.io.send(socket, batch, token);
        }
    }

    /// A send has finished; its batch comes back. Gives whether more waits to be sent.
    #[inline]
    pub(crate) fn take_back(&mut self, mut batch: Box<SendBatch>) -> bool {
        batch.clear();
        if self.batch.is_empty() {
            std::mem::swap(&mut self.batch, &mut batch);
        }
        self.spare = Some(batch);
        !self.batch.is_empty()
    }

    /// Whether nothing waits to be sent, and nothing is being sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.batch.is_empty() && self.spare.is_some()
    }

    /// Whether a send is in flight.
    pub(crate) fn is_sending(&self) -> bool {
        self.spare.is_none()
    }

    /// Whether so many PDUs wait that the socket is not to be read.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.waiting >= self.most_waiting
    }

    /// Drops the bytes that wait to be sent; commands are no longer answered.
    pub(crate) fn close(&mut self) {
        self.batch.clear();
        self.muted = true;
        self.window_moved = false;
    }

    /// Commands are no longer answered: their connection is about to end.
    pub(crate) fn mute(&mut self) {
        self.muted = true;
    }

    #[inline]
    pub(crate) fn is_muted(&self) -> bool {
        self.muted
    }

    #[inline]
    pub(crate) fn mark_dirty(&mut self, core: &mut Core) {
        if !self.dirty {
            self.dirty = true;
            core.iscsi.dirty.push(self.key);
        }
    }

    // -------------------------------------------------------------------------------- PDUs

    /// Adds the PDU that `put` encodes to what is to be sent.
    #[inline(always)]
    pub(crate) fn push<T>(
        &mut self,
        core: &mut Core,
        put: impl FnOnce(&mut TargetConnection, &mut Vec<u8>) -> T,
    ) -> T {
        if !self.batch.has_room(HEADER_BYTES_PER_COMMAND + MAX_SENSE_BYTES, 1) {
            self.batch.make_room(HEADER_BYTES_PER_COMMAND + MAX_SENSE_BYTES, 1);
        }
        self.waiting += 1;
        let proto = &mut self.proto;
        let mut given = None;
        self.batch.append(|out| given = Some(put(proto, out)));
        self.window_moved = false;
        self.mark_dirty(core);
        given.expect("append calls what it is given")
    }

    /// Adds a PDU that the protocol has made by itself.
    pub(crate) fn push_answer(&mut self, core: &mut Core) {
        self.batch.make_room(MOST_ANSWER_BYTES, 0);
        self.push(core, TargetConnection::answer);
    }

    /// Ends a task that is not answered.
    pub(crate) fn abort(&mut self, core: &mut Core, task: TaskId) {
        self.proto.abort(task);
        if !self.muted {
            self.window_moved = true;
            self.mark_dirty(core);
        }
    }

    /// Ends a command in a SCSI Response.
    #[inline]
    pub(crate) fn push_response(&mut self, core: &mut Core, task: TaskId, status: &Status<'_>) {
        if self.muted {
            return self.proto.abort(task);
        }
        self.push(core, |proto, out| proto.response(task, status, out));
    }

    /// Ends a command that reads: sends its data and, in the last PDU, that it has succeeded.
    #[inline]
    pub(crate) fn push_read(
        &mut self,
        core: &mut Core,
        task: TaskId,
        (payload, residual): (Payload, Residual),
        digests: &Digests,
    ) {
        if self.muted {
            return self.proto.abort(task);
        }
        let len = u32::try_from(payload.len()).expect("transfers are below 4 GiB");
        let finish = Some(Finish { status: 0, residual });
        let piece = self.push(core, |proto, out| proto.data_in(task, 0, len, finish, out));
        if piece.len == len && piece.trailer == 0 {
            return self.batch.push_payload(payload);
        }
        self.push_pieces(core, task, (payload, len, finish), piece, digests);
    }

    /// The data of a read that need more than one PDU, a digest or padding. The first header is there.
    #[cold]
    fn push_pieces(
        &mut self,
        core: &mut Core,
        task: TaskId,
        (payload, len, finish): (Payload, u32, Option<Finish>),
        mut piece: raceline_iscsi::target::DataInPiece,
        digests: &Digests,
    ) {
        let payload = Shared::new(payload);
        let mut offset = 0;
        loop {
            self.push_piece(payload.part(offset, piece.len), piece.trailer, digests);
            offset += piece.len;
            if offset == len {
                return;
            }
            let left = len - offset;
            piece = self.push(core, |proto, out| proto.data_in(task, offset, left, finish, out));
        }
    }

    /// The data of one PDU, and what follows them.
    fn push_piece(&mut self, part: Payload, trailer: u32, digests: &Digests) {
        let len = u32::try_from(part.len()).expect("a data segment is below 16 MiB");
        if trailer == 0 {
            return self.batch.push_payload(part);
        }
        if let (Digests::OnTheWay(copier), true) = (digests, len.is_multiple_of(4)) {
            return self.batch.push_digested(part, *copier);
        }
        let mut crc = Crc32c::new();
        let part = match (digests, part) {
            (Digests::Off, part) => part,
            (_, part @ Payload::Shared(..)) => {
                if let Payload::Shared(buf, range) = &part {
                    crc.update(&buf[range.clone()]);
                }
                part
            }
            (_, part) => {
                // Memory that others may write: digest and data have to agree.
                let mut copy = IoBuf::heap(part.len());
                part.copy_to(&mut copy);
                crc.update(&copy);
                let len = copy.len();
                Payload::Buf(copy, 0..len)
            }
        };
        self.batch.push_payload(part);
        let proto = &self.proto;
        self.batch.append(|out| proto.data_trailer(len, crc, out));
    }

    /// Ends a command with data that fit one buffer and are not the medium's, such as those of INQUIRY.
    pub(crate) fn push_data(
        &mut self,
        core: &mut Core,
        task: TaskId,
        data: &[u8],
        residual: Residual,
    ) {
        if data.is_empty() || self.muted {
            let status = Status { status: 0, residual, sense: &[] };
            return self.push_response(core, task, &status);
        }
        let buf = IoBuf::from_slice(data).share();
        let len = buf.len();
        let payload = Payload::Shared(buf, 0..len);
        self.push_read(core, task, (payload, residual), &Digests::Before);
    }
}

/// A payload of which several PDUs carry parts.
enum Shared {
    Buf(SharedBuf, usize),
    Other(Payload),
}

impl Shared {
    fn new(payload: Payload) -> Self {
        match payload {
            Payload::Buf(buf, range) => Self::Buf(buf.share(), range.start),
            Payload::Shared(buf, range) => Self::Buf(buf, range.start),
            other => Self::Other(other),
        }
    }

    fn part(&self, offset: u32, len: u32) -> Payload {
        let (offset, len) = (offset as usize, len as usize);
        match self {
            Self::Buf(buf, start) => {
                Payload::Shared(buf.clone(), start + offset..start + offset + len)
            }
            Self::Other(Payload::Region(region, range)) => {
                let start = range.start + offset as u64;
                Payload::Region(region.clone(), start..start + len as u64)
            }
            Self::Other(_) => Payload::Zeroes(len),
        }
    }
}
