//! Receiving: payload lands in its buffer, everything else in the staging buffer.

use std::io;
use std::sync::Arc;

use raceline_proto::nvme::{CommandId, Cqe, Status};
use raceline_proto::tcp::HostEvent;
use raceline_reactor::Context;
use raceline_reactor::flow::policy::{self, HEADER_STAGING_BYTES, Landing};
use raceline_reactor::io::RecvBuffers;

use super::connect::STAGING_BYTES;
use super::send::to_usize;
use super::{Ending, QueuePair, SqFlow, State};
use crate::command::Data;
use crate::error::{CommandError, HostError};

impl QueuePair {
    /// Whether there is a connection without a receive.
    #[inline]
    pub(super) fn can_receive(&self) -> bool {
        self.link.as_ref().is_some_and(|link| !link.receiving && !link.closed)
    }

    /// Keeps one receive in flight.
    pub(super) fn post_receive(&mut self, cx: &mut Context<'_>) {
        if !self.can_receive() {
            return;
        }
        let Some(link) = &mut self.link else { return };
        let Some(staging) = link.staging.take() else { return };
        let large = self.under_way.large_reads > 0;
        let landing = if large { self.plan.landing } else { Landing::InPlace };
        let expects_large = match large {
            true => landing == Landing::InPlace,
            false => self.commands.is_empty() && expects_large(cx, self.under_way.last_read),
        };
        self.counters.landed_in_staging.add(u64::from(landing == Landing::Staging));
        let mut staging_len = if expects_large { HEADER_STAGING_BYTES } else { staging.len() };
        let mut payload = None;
        if landing == Landing::InPlace
            && let Some(wanted) = link.queue.payload_wanted()
            && let Some(entry) = self.commands.get_mut(wanted.dest)
            && matches!(entry.data, Data::Read(_))
            && let Data::Read(buf) = std::mem::take(&mut entry.data)
        {
            let (start, len) = (to_usize(wanted.offset), to_usize(wanted.len));
            link.payload_of = Some(wanted.dest);
            self.counters.landed_in_place.add(1);
            let piece = policy::piece(self.plan.reading);
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
        let Some(link) = &mut self.link else { return self.handle_bell(cx, result, buffers) };
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
        let count = match result {
            Ok(count @ 1..) => count,
            ended => {
                let error = self.why_ended(ended.err());
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

    /// What the end of the connection means; `None`: the peer has closed it.
    #[cold]
    fn why_ended(&self, error: Option<io::Error>) -> HostError {
        let address = self.config.address;
        let early = matches!(self.state, State::IcResp) && self.streams().is_none();
        match error {
            // A peer that closes without having read ICReq resets the connection.
            Some(error) if early && error.kind() == io::ErrorKind::ConnectionReset => {
                HostError::ClosedEarly(address)
            }
            Some(error) => HostError::Broken(address, Arc::new(error)),
            None if early => HostError::ClosedEarly(address),
            None => HostError::ClosedByPeer(address),
        }
    }

    /// Takes all events of what has come.
    fn handle_input(&mut self, cx: &mut Context<'_>, mut input: &[u8]) {
        let mut pdus = 0;
        while let Some(link) = &mut self.link
            && !matches!(self.state, State::Draining(_))
        {
            match link.queue.receive(&mut input) {
                Ok(Some(event)) => {
                    // A PDU of data is counted when it ends.
                    pdus += u64::from(!matches!(event, HostEvent::Data { .. }));
                    self.handle_event(cx, event);
                }
                Ok(None) => break,
                Err(error) => {
                    let address = self.config.address;
                    let lost = match error.other_protocol() {
                        Some(sent) => HostError::OtherProtocol(address, sent),
                        None => HostError::Protocol(address, error.to_string()),
                    };
                    self.lose(cx, Ending::Lost(lost), Some(error));
                    break;
                }
            }
        }
        self.counters.pdus_received.add(pdus);
    }

    fn handle_event(&mut self, cx: &mut Context<'_>, event: HostEvent<'_>) {
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
                    self.handle_success(cx, cid);
                }
            }
            HostEvent::SendData(r2t) => self.grant(r2t),
            HostEvent::Terminated(request) => {
                let lost = HostError::Terminated(self.config.address, format!("{request:?}"));
                self.lose(cx, Ending::Lost(lost), None);
            }
        }
    }

    pub(super) fn handle_response(&mut self, cx: &mut Context<'_>, cqe: &Cqe) {
        if let Some(link) = &mut self.link {
            link.flow.handle_head(cqe.sqhd, self.config.entries);
        }
        if let State::Connect(cid) = self.state
            && cid == cqe.cid
        {
            self.remove_connect(cid);
            self.handle_connect_response(cx, cqe);
            return;
        }
        if self.is_proof(cqe.cid) {
            return self.handle_proof(cx, cqe.cid, cqe.status);
        }
        let result = match cqe.status {
            status if !status.is_success() => Err(CommandError::Status(status)),
            _ => Ok(*cqe),
        };
        self.finish(cqe.cid, result);
    }

    /// The data of a command were its completion, too.
    fn handle_success(&mut self, cx: &mut Context<'_>, cid: CommandId) {
        // Without a response there is no SQHD, so SUCCESS is for queues without flow control (NVMe/TCP
        // Transport 1.0, 3.3.2.2). Controllers exist that leave flow control on and say SUCCESS all the
        // same. Their heads are stale, so from here on only commands are counted.
        if let Some(link) = &mut self.link {
            link.flow = SqFlow::Off;
        }
        if self.is_proof(cid) {
            return self.handle_proof(cx, cid, Status::SUCCESS);
        }
        self.finish(cid, Ok(Cqe { cid, status: Status::SUCCESS, ..Cqe::default() }));
    }
}

/// Predicts, for a queue without commands, whether its next read brings a large payload. A large payload
/// should not land in the queue's own staging memory.
fn expects_large(cx: &mut Context<'_>, last_read: usize) -> bool {
    policy::is_large(last_read) && {
        let flight = cx.io.flight();
        policy::expects_large(last_read, flight.regime_of(flight.load().reading + last_read))
    }
}
