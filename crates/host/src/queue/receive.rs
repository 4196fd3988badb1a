//! Receiving: payload lands in its buffer, everything else in the staging buffer.

use std::io;
use std::sync::Arc;

use raceline_proto::nvme::{CommandId, Cqe, Status};
use raceline_proto::tcp::HostEvent;
use raceline_reactor::Context;
use raceline_reactor::io::RecvBuffers;

use super::entry::is_large_read;
use super::send::to_usize;
use super::{Ending, QueuePair, STAGING_BYTES, SqFlow, State};
use crate::command::Data;
use crate::error::{CommandError, HostError};

/// Staging offered while large reads are outstanding, or probably next: little beyond headers, so that
/// their payload is not copied (lab 0037).
const SMALL_STAGING_BYTES: usize = 4096;
/// Payload received at once into its buffer, at most: what has been copied out of the socket goes back
/// to the sender the sooner, and its pages are still in the caches (lab 0032).
const PIECE_BYTES: usize = 64 << 10;
/// The same where more is on its way than caches hold (lab 0032).
const LARGE_PIECE_BYTES: usize = 128 << 10;
/// With so much on its way to the few queues of a core, sockets are emptied into staging memory, which
/// stays in the caches, and payloads are copied from there: the sender gets the pages of the sockets
/// back while caches hold them, which is worth more than that copy (lab 0036).
const BULK_BYTES: usize = 3 << 20;
/// With more queues what waits in their sockets has left the caches before its turn comes (lab 0036).
const BULK_QUEUES_MAX: usize = 24;
/// So much on its way to all queues of a core, if the others have as much as this one, is more than
/// caches hold (lab 0034, and lab 0036 for a single queue).
const CACHED_BYTES: usize = 8 << 20;
/// With so much, what is copied from memory to memory is no longer all in the caches (lab 0037).
const PARTLY_CACHED_BYTES: usize = 6 << 20;

/// Whether more than caches hold is on its way to a queue that reads so many bytes, and to the others
/// of its core.
pub(super) fn overflows_caches(read_bytes: usize, cx: &Context<'_>) -> bool {
    read_bytes * cx.io.receiving() > CACHED_BYTES
}

/// Whether large payloads, of which so many bytes are on their way to each of a core's `receiving` queues,
/// come by way of staging memory. A single queue gets its data one after the other and warm, up to what
/// caches hold.
fn comes_in_bulk(read_bytes: usize, receiving: usize) -> bool {
    let least = if receiving > 1 { BULK_BYTES } else { CACHED_BYTES };
    receiving <= BULK_QUEUES_MAX && read_bytes * receiving > least
}

/// Whether the next read of an idle queue had better not come by way of staging memory. At depth 1 its
/// receive is there before the command that it is for, which is probably like the last one. The copy
/// costs little while all that comes to the core's `receiving` queues lies in the caches.
fn next_is_large(last_read: usize, receiving: usize) -> bool {
    is_large_read(last_read) && last_read * receiving > PARTLY_CACHED_BYTES
}

impl QueuePair {
    /// Keeps one receive in flight.
    pub(super) fn post_receive(&mut self, cx: &mut Context<'_>) {
        let Some(link) = &mut self.link else { return };
        if link.receiving || link.closed {
            return;
        }
        let Some(staging) = link.staging.take() else { return };
        let mut payload = None;
        let any_large = self.large_reads > 0;
        let bulk =
            any_large && link.core_staging && comes_in_bulk(self.read_bytes, cx.io.receiving());
        let large = any_large && !bulk
            || self.commands.is_empty() && next_is_large(self.last_read, cx.io.receiving());
        let mut staging_len = if large { SMALL_STAGING_BYTES } else { staging.len() };
        if !bulk
            && let Some(wanted) = link.queue.payload_wanted()
            && let Some(entry) = self.commands.get_mut(wanted.dest)
            && matches!(entry.data, Data::Read(_))
            && let Data::Read(buf) = std::mem::take(&mut entry.data)
        {
            let (start, len) = (to_usize(wanted.offset), to_usize(wanted.len));
            link.payload_of = Some(wanted.dest);
            let overflows = overflows_caches(self.read_bytes, cx);
            let piece = if overflows { LARGE_PIECE_BYTES } else { PIECE_BYTES };
            if len > piece {
                staging_len = 0; // more payload comes before anything else
            }
            payload = Some((buf, start..start + len.min(piece)));
        }
        let buffers = RecvBuffers { payload, staging, staging_range: 0..staging_len };
        link.receiving = true;
        cx.io.recv(link.socket, buffers, self.token);
    }

    pub(super) fn handle_received(
        &mut self,
        cx: &mut Context<'_>,
        result: io::Result<usize>,
        buffers: RecvBuffers,
    ) {
        let Some(link) = &mut self.link else { return };
        link.receiving = false;
        let RecvBuffers { payload, staging, .. } = buffers;
        link.core_staging |= staging.len() > STAGING_BYTES;
        let direct = payload.as_ref().map_or(0, |(_, range)| range.len());
        // The buffer goes back to its command, whatever happened.
        if let (Some((buf, _)), Some(cid)) = (payload, link.payload_of.take())
            && let Some(entry) = self.commands.get_mut(cid)
        {
            entry.data = Data::Read(buf);
        }
        if matches!(self.state, State::Draining(_)) {
            self.check_drained(cx);
            return;
        }
        let address = self.config.address;
        let count = match result {
            Ok(0) => {
                self.lose(cx, Ending::Lost(HostError::ClosedByPeer(address)), None);
                return;
            }
            Ok(count) => count,
            Err(error) => {
                let error = HostError::Broken(address, Arc::new(error));
                self.lose(cx, Ending::Lost(error), None);
                return;
            }
        };
        self.counters.receives.add(1);
        let direct = direct.min(count);
        if direct > 0 {
            link.queue.payload_received(direct);
        }
        self.handle_input(cx, &staging[..count - direct]);
        if let Some(link) = &mut self.link {
            link.staging = Some(staging);
        }
        self.post_receive(cx);
    }

    /// Takes all events of what has come.
    fn handle_input(&mut self, cx: &mut Context<'_>, mut input: &[u8]) {
        while let Some(link) = &mut self.link
            && !link.closed
            && !matches!(self.state, State::Draining(_))
        {
            match link.queue.receive(&mut input) {
                Ok(Some(event)) => self.handle_event(cx, event),
                Ok(None) => return,
                Err(error) => {
                    let lost = HostError::Protocol(self.config.address, error.to_string());
                    self.lose(cx, Ending::Lost(lost), Some(error));
                    return;
                }
            }
        }
    }

    fn handle_event(&mut self, cx: &mut Context<'_>, event: HostEvent<'_>) {
        // A PDU of data is counted when it ends.
        self.counters.pdus_received.add(u64::from(!matches!(event, HostEvent::Data { .. })));
        match event {
            HostEvent::Connected(_) => self.send_connect(cx),
            HostEvent::Response(cqe) => self.handle_response(cx, &cqe),
            HostEvent::Data { cid, offset, bytes } => {
                let digests = self.config.data_digest && self.digests_now(cx);
                if let Some(entry) = self.commands.get_mut(cid)
                    && let Data::Read(buf) = &mut entry.data
                {
                    if digests && bytes.len() == buf.len() {
                        let found = cx.io.accelerator().copy_bytes_crc32c_now(bytes, buf);
                        entry.digest.known = found.ok();
                    } else {
                        let start = to_usize(offset);
                        buf[start..start + bytes.len()].copy_from_slice(bytes);
                        entry.digest.known = None;
                    }
                    self.counters.copied_bytes.add(bytes.len() as u64);
                }
            }
            HostEvent::DataEnd { cid, offset, len, ddgst, success, .. } => {
                if let Some(expected) = ddgst {
                    let start = to_usize(offset);
                    self.check_digest(cx, cid, start..start + to_usize(len), expected);
                }
                if success {
                    self.handle_success(cid);
                }
            }
            HostEvent::SendData(r2t) => self.grant(r2t),
            HostEvent::Terminated(request) => {
                let lost = HostError::Terminated(self.config.address, format!("{request:?}"));
                self.lose(cx, Ending::Lost(lost), None);
            }
        }
    }

    fn handle_response(&mut self, cx: &mut Context<'_>, cqe: &Cqe) {
        if let Some(link) = &mut self.link {
            link.flow.handle_head(cqe.sqhd, self.config.entries);
        }
        if let State::Connect(cid) = self.state
            && cid == cqe.cid
        {
            drop(self.commands.remove(cid));
            self.handle_connect_response(cx, cqe);
            return;
        }
        let result = match cqe.status {
            status if !status.is_success() => Err(CommandError::Status(status)),
            _ => Ok(*cqe),
        };
        self.finish(cqe.cid, result);
    }

    /// The data of a command were its completion, too.
    fn handle_success(&mut self, cid: CommandId) {
        // Without a response there is no SQHD, so SUCCESS is for queues without flow control
        // (NVMe/TCP Transport 1.0, 3.3.2.2). Controllers exist that leave it on and say SUCCESS
        // all the same: their heads are stale, so from here on only commands are counted.
        if let Some(link) = &mut self.link {
            link.flow = SqFlow::Off;
        }
        self.finish(cid, Ok(Cqe { cid, status: Status::SUCCESS, ..Cqe::default() }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_queues_with_much_on_its_way_come_in_bulk() {
        let read = 128 << 10;
        assert!(!comes_in_bulk(32 * read, 1), "a stream that caches hold lands where it belongs");
        assert!(comes_in_bulk(127 * read, 1));
        assert!(!comes_in_bulk(read, 16));
        assert!(comes_in_bulk(8 * read, 4));
        assert!(comes_in_bulk(127 * read, 24));
        assert!(!comes_in_bulk(127 * read, 64), "cold when their turn comes");
    }

    #[test]
    fn idle_queues_expect_large_reads_only_where_copies_leave_the_caches() {
        assert!(next_is_large(128 << 10, 64));
        assert!(!next_is_large(128 << 10, 16));
        assert!(!next_is_large(64 << 10, 64));
        assert!(
            !next_is_large(4 << 10, 10_000),
            "many of them in one receive gain from staging memory"
        );
        assert!(!next_is_large(0, 1000));
    }
}
