//! Sends of which the network device reads the bytes from where they lie (IORING_OP_SENDMSG_ZC).
//!
//! A batch leaves as it is, headers included. The device may read its memory until the peer has acknowledged
//! the bytes, so the batch stays in its operation's slot until the kernel has told that it is done with
//! it (a notice), whatever becomes of the connection meanwhile. The owner gets another batch of the same
//! size back as soon as the kernel has taken all bytes, as for a send that is copied.
//!
//! Memory of a region may be written while it waits to be sent, or to be sent again: the peer then gets
//! a mixture, as when a copy and a write run at the same time. A host that has received the end of a read
//! has received all of its bytes, so what it or another host writes after that is in no read before.

use std::io;

use io_uring::types::Fd;
use io_uring::{opcode, squeue};

use super::ops::Kind;
use super::{UringIo, sent_whole};
use crate::io::{Completion, Outcome, SocketId, Token};
use crate::send::SendBatch;

/// The notice tells whether the kernel has copied (IORING_SEND_ZC_REPORT_USAGE; Linux 6.2).
const REPORT_USAGE: u16 = 1 << 3;

/// It has (IORING_NOTIF_USAGE_ZC_COPIED).
const COPIED: u32 = 1 << 31;

/// Batches that wait to be used again. Beyond that they are freed.
const SPARE_MAX: usize = 64;

/// What a core needs for sends without a copy.
pub(super) struct ZeroCopy {
    /// The system does not let us do this.
    refused: bool,
    /// Sends that are over, and of which a notice has yet to come.
    waiting: usize,
    /// Empty batches.
    #[expect(clippy::vec_box, reason = "owners hold a batch in its box, and it is given as it is")]
    spare: Vec<Box<SendBatch>>,
}

/// How far a send is.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Notices that have yet to come. A notice may come before the result that announces it.
    notices: i32,
    /// The rest is copied.
    copying: bool,
    /// The owner knows its result.
    over: bool,
}

impl Kept {
    /// The system call for what is left of the batch.
    pub(super) fn submission(&self, fd: Fd, batch: &mut SendBatch) -> squeue::Entry {
        // As for a send that is copied.
        let flags = (libc::MSG_WAITALL | libc::MSG_NOSIGNAL).cast_unsigned();
        let message: *const libc::msghdr = batch.prepare();
        if self.copying {
            return opcode::SendMsg::new(fd, message).flags(flags).build();
        }
        opcode::SendMsgZc::new(fd, message).ioprio(REPORT_USAGE).flags(flags).build()
    }
}

impl ZeroCopy {
    pub(super) fn new(known: bool) -> ZeroCopy {
        ZeroCopy { refused: !known, waiting: 0, spare: Vec::new() }
    }

    /// Whether a batch is sent without a copy.
    pub(super) fn takes(&self, copies_anyway: bool, batch: &SendBatch, least: usize) -> bool {
        !self.refused && !copies_anyway && batch.may_be_kept(least)
    }

    /// Sends that are over, and whose memory the kernel may still read.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// An empty batch in place of one that is kept.
    fn substitute(&mut self, batch: &SendBatch) -> Box<SendBatch> {
        let found = self.spare.iter().position(|spare| spare.is_as_large_as(batch));
        found.map_or_else(|| batch.twin(), |index| self.spare.swap_remove(index))
    }

    fn recycle(&mut self, mut batch: Box<SendBatch>) {
        batch.clear();
        if self.spare.len() < SPARE_MAX {
            self.spare.push(batch);
        }
    }

    /// After an error that will come again, all sends from now on are copied. After another error, such as
    /// that of a limit on memory, this one is.
    #[cold]
    fn note_refusal(&mut self, error: &io::Error) {
        if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) {
            self.refused = true;
            tracing::info!("this system does not send without a copy: {error}");
        } else {
            tracing::debug!("a send is copied: {error}");
        }
    }
}

impl UringIo {
    /// Sends on a usable socket without a copy.
    #[inline(never)]
    pub(super) fn send_kept(&mut self, socket: SocketId, batch: Box<SendBatch>, token: Token) {
        self.departures.zero_copy_sends.add(1);
        self.departures.zero_copy_bytes.add(batch.len() as u64);
        let kept = Kept::default();
        let user_data = self.start(token, Kind::SendKept { socket: socket.0, batch, kept });
        if let Some(slot) = self.sockets.get_mut(socket.0) {
            slot.send = Some(user_data);
        }
    }

    /// A system call of such a send has a result; a notice follows if there is `more`.
    #[cold]
    pub(super) fn handle_kept(
        &mut self,
        user_data: u64,
        token: Token,
        result: io::Result<usize>,
        more: bool,
        done: &mut Vec<Completion>,
    ) {
        let Some(slot) = self.ops.get_mut(user_data) else { return };
        let Kind::SendKept { socket, batch, kept } = slot.kind_mut() else { return };
        let socket = *socket;
        kept.notices += i32::from(more);
        let again = match &result {
            Ok(sent) => {
                self.counts.sent(*sent);
                batch.advance(*sent);
                true
            }
            Err(error) if !kept.copying && is_refusal(error) => {
                kept.copying = true;
                self.departures.zero_copy_refused.add(1);
                self.zero_copy.note_refusal(error);
                true
            }
            Err(error) => matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)),
        };
        let closing = self.sockets.get(socket).is_none_or(|slot| slot.closing);
        if again && !batch.is_empty() && !closing {
            return self.submit_op(user_data);
        }
        let result = sent_whole(result, batch);
        let owners = if kept.notices > 0 {
            kept.over = true;
            self.zero_copy.waiting += 1;
            self.zero_copy.substitute(batch)
        } else {
            let Some(Kind::SendKept { batch, .. }) = self.ops.remove(user_data) else { return };
            batch
        };
        if let Some(slot) = self.sockets.get_mut(socket) {
            slot.send = None;
        }
        self.close_if_idle(socket);
        done.push(Completion { token, outcome: Outcome::Sent(result, owners) });
    }

    /// The kernel has done with the memory of a system call.
    #[cold]
    pub(super) fn handle_notice(&mut self, user_data: u64, result: i32) {
        let Some(slot) = self.ops.get_mut(user_data) else {
            debug_assert!(false, "a notice for no operation");
            return;
        };
        let Kind::SendKept { socket, kept, .. } = slot.kind_mut() else {
            debug_assert!(false, "a notice for another operation than a send");
            return;
        };
        kept.notices -= 1;
        let is_last = kept.over && kept.notices <= 0;
        if result.cast_unsigned() & COPIED != 0 {
            self.departures.zero_copy_copied.add(1);
            if let Some(slot) = self.sockets.get_mut(*socket) {
                slot.copies_anyway = true;
            }
        }
        if is_last && let Some(Kind::SendKept { batch, .. }) = self.ops.remove(user_data) {
            self.zero_copy.waiting -= 1;
            self.zero_copy.recycle(batch);
        }
    }
}

/// Errors after which a copy can do: the system does not know how, or has no memory to lock or to count.
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOBUFS | libc::ENOMEM | libc::EFAULT)
    )
}
