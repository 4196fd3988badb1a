//! A queue over RDMA: a queue pair of a device takes the place of the socket, and everything above is the same.
//!
//! The queues of a core share a device ([`super::hub`]). Data are copied between the buffers of commands and registered memory
//! of the core. So a controller reaches nothing but data of commands over the device, and a command that is given up leaves
//! its buffer to its owner at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_proto::nvme::{CommandId, Cqe, Status};
use raceline_proto::rdma::{KeyedBlock, MAX_BLOCK_BYTES, QueueRequest};
use raceline_rdma::verbs::{DomainId, Provider};
use raceline_rdma::{
    ConnectConfig, ConnectError, HostEvent, HostPortEvent, HostTransfer, SubmitError,
};
use raceline_reactor::Context;
use raceline_reactor::io::{RecvBuffers, is_taken_back};

use super::hub::{Joining, Lent, Membership};
use super::memory::Kind;
use super::{Ending, QueuePair, SqFlow, State};
use crate::command::Data;
use crate::error::{CommandError, HostError};
use crate::transport::{RdmaDevices, source_towards};

/// More than this is not sent in a capsule, whatever the controller offers.
const MAX_IN_CAPSULE_BYTES: u32 = 8192;
/// Bytes of a submission queue entry in a capsule.
const SQE_BYTES: u32 = 64;
/// How often a connection is asked for again of a target that still has one from before, and the first delay; each
/// further one is twice as long.
const STALE_ATTEMPTS: u32 = 8;
const STALE_DELAY: Duration = Duration::from_millis(10);
/// How often a queue that waits for memory looks for some, if nobody calls it before.
const STARVED_INTERVAL: Duration = Duration::from_millis(100);
/// How often a queue looks whether its connection has ended.
const DRAIN_INTERVAL: Duration = Duration::from_millis(100);

/// A connection over RDMA: what exists while there is a device.
#[derive(Debug)]
pub(super) struct RdmaLink {
    hub: Membership,
    /// When a target that had a connection from before is asked again, and how often it was.
    retry_at: Option<Instant>,
    attempts: u32,
    /// The connection is being ended from this end.
    closing: bool,
    /// Nothing is left of the connection.
    closed: bool,
    /// The commands that were sent, by the slots of their identifiers on the wire.
    outstanding: Vec<Option<Outstanding>>,
    pub(super) flow: SqFlow,
}

/// A command that was sent.
#[derive(Clone, Copy, Debug)]
struct Outstanding {
    cid: CommandId,
    lent: Option<Lent>,
}

/// What became of a command that was to be sent.
enum Sent {
    Yes,
    /// There is no room for it now.
    Later,
    /// There is no memory for its data, until other commands have ended.
    Starved,
    /// There is no memory for its data, and none will become free.
    Never(String),
}

impl RdmaLink {
    /// Whether nothing is in flight any more.
    pub(super) fn is_over(&self) -> bool {
        self.closed
    }

    fn take(&mut self, wire: CommandId) -> Option<Outstanding> {
        let slot = usize::from(wire.0) & (self.outstanding.len() - 1);
        self.outstanding[slot].take()
    }

    /// The command has ended: its memory is free.
    fn free(&self, outstanding: &Outstanding) {
        if let Some(lent) = outstanding.lent {
            self.hub.core().give_back(lent);
        }
    }

    /// No queue pair is left that could reach the memory of commands.
    fn free_all(&mut self) {
        for outstanding in std::mem::take(&mut self.outstanding).into_iter().flatten() {
            self.free(&outstanding);
        }
    }
}

/// A queue that is dropped waits for nothing. As a closed socket does, its connection ends in order.
impl Drop for RdmaLink {
    fn drop(&mut self) {
        self.hub.abandon();
        self.free_all();
    }
}

impl QueuePair {
    /// Asks for a connection over RDMA. What fails at once is reported by the next timer, as everything else is.
    pub(super) fn dial_rdma(&mut self, cx: &mut Context<'_>, devices: &Arc<dyn RdmaDevices>) {
        match self.open_rdma(cx, devices) {
            Ok(link) => {
                self.rdma = Some(Box::new(link));
                self.drive_rdma(cx);
            }
            Err(error) => {
                self.refused = Some(Box::new(error));
                self.arm(cx, cx.now);
            }
        }
    }

    fn open_rdma(
        &self,
        cx: &mut Context<'_>,
        devices: &Arc<dyn RdmaDevices>,
    ) -> Result<RdmaLink, HostError> {
        let config = &self.config;
        if let Some(what) = self.impossible_over_rdma() {
            let text = format!("{what}: leave it out, or connect to {} over TCP", config.address);
            return Err(HostError::Invalid(text));
        }
        let failed = |why: String| HostError::Rdma(config.address, why);
        let joining = Joining {
            target: config.address,
            source: config.source,
            commands: u32::from(config.entries) - 1,
            token: self.token,
        };
        let mut hub = Membership::join(cx, devices, joining).map_err(failed)?;
        if let Err(error) = hub.connect(cx, self.connect_config()) {
            hub.leave(cx);
            return Err(failed(error.to_string()));
        }
        let slots = usize::from(config.entries - 1).next_power_of_two();
        Ok(RdmaLink {
            hub,
            retry_at: None,
            attempts: 0,
            closing: false,
            closed: false,
            outstanding: vec![None; slots],
            flow: SqFlow::Off,
        })
    }

    /// What is configured and RDMA does not have.
    fn impossible_over_rdma(&self) -> Option<&'static str> {
        let config = &self.config;
        if config.streams.is_some() || config.generated.is_some() || config.concatenator.is_some() {
            return Some("RDMA has no TLS");
        }
        let digests = config.header_digest || config.data_digest;
        digests.then_some("RDMA has no digests, because its links have checksums of their own")
    }

    /// Bytes of data that a capsule of this queue may have.
    fn capsule_data(&self) -> u32 {
        match self.config.qid.is_admin() {
            true => 0,
            false => self.config.in_capsule_bytes.min(MAX_IN_CAPSULE_BYTES),
        }
    }

    fn connect_config(&self) -> ConnectConfig {
        let config = &self.config;
        ConnectConfig {
            address: config.address,
            source: config.source.map(|source| source_towards(source, config.address)),
            // The hub puts that of the target in its place.
            domain: DomainId::OWN,
            request: QueueRequest {
                qid: config.qid,
                receives: config.entries,
                entries: config.entries.into(),
                cntlid: (!config.qid.is_admin()).then_some(config.cntlid),
            },
            // Those with data are made in memory that the queues of the core share.
            capsule_len: SQE_BYTES,
        }
    }

    /// The device has news for some of its queues.
    pub(super) fn handle_bell(
        &mut self,
        cx: &mut Context<'_>,
        result: std::io::Result<usize>,
        buffers: RecvBuffers,
    ) {
        let Some(rdma) = self.rdma.as_ref().filter(|rdma| !rdma.closed) else { return };
        if result.as_ref().is_err_and(is_taken_back) {
            // Of a bell that was closed.
            return;
        }
        rdma.hub.handle_bell(buffers);
        match result {
            Ok(_) => self.drive_rdma(cx),
            Err(error) => self.lose_bell(cx, error),
        }
    }

    /// Takes everything that the device has, and asks to be woken by what comes next.
    fn drive_rdma(&mut self, cx: &mut Context<'_>) {
        let Some(rdma) = self.rdma.as_ref().filter(|rdma| !rdma.closed) else { return };
        self.counters.receives.add(1);
        let listening = rdma.hub.pump(cx);
        self.take_rdma_events(cx);
        if let Err(error) = listening {
            self.lose_bell(cx, error);
        }
    }

    /// Looks at the device, without a system call. The first queue of a device in each turn of the core does it for all.
    pub(crate) fn spin(&self, cx: &mut Context<'_>) {
        if let Some(rdma) = self.rdma.as_ref().filter(|rdma| !rdma.closed) {
            rdma.hub.spin(cx);
        }
    }

    /// The core cannot wait for the device.
    fn lose_bell(&mut self, cx: &mut Context<'_>, error: std::io::Error) {
        if !matches!(self.state, State::Draining(_) | State::Lost | State::Closed) {
            let error = HostError::Broken(self.config.address, Arc::new(error));
            self.lose(cx, Ending::Lost(error), None);
        }
    }

    /// Another queue of the core may have called this one.
    pub(super) fn handle_call(&mut self, cx: &mut Context<'_>) {
        match &self.rdma {
            // The queue whose receive it was has left.
            Some(rdma) if !rdma.closed && !rdma.hub.is_listening() => self.drive_rdma(cx),
            _ => self.take_rdma_events(cx),
        }
    }

    /// Takes what the device has had for this queue.
    fn take_rdma_events(&mut self, cx: &mut Context<'_>) {
        self.take_port_events(cx);
        if let Some(rdma) = &self.rdma
            && !rdma.closed
        {
            rdma.hub.core().call_starved(cx);
            if rdma.hub.has_ending() {
                self.arm(cx, cx.now + DRAIN_INTERVAL);
            }
        }
    }

    fn take_port_events(&mut self, cx: &mut Context<'_>) {
        while let Some(rdma) = &mut self.rdma
            && !rdma.closed
            && let Some(event) = rdma.hub.poll_event()
        {
            match event {
                HostPortEvent::Connected if matches!(self.state, State::Tcp) => {
                    self.send_connect(cx);
                }
                HostPortEvent::Connected => {}
                HostPortEvent::Failed(error) => self.handle_failed(cx, &error),
                HostPortEvent::Queue(HostEvent::Completed { cid, cqe, .. }) => {
                    self.handle_rdma_response(cx, cid, &cqe);
                }
                HostPortEvent::Queue(HostEvent::Ended(cid)) => {
                    if let Some(outstanding) = rdma.take(cid) {
                        rdma.free(&outstanding);
                    }
                }
                HostPortEvent::Queue(HostEvent::Lost(loss)) => {
                    if !matches!(self.state, State::Draining(_)) {
                        let error = HostError::RdmaLost(self.config.address, loss);
                        self.lose(cx, Ending::Lost(error), None);
                    }
                }
                HostPortEvent::Closed => self.handle_gone(cx),
            }
        }
    }

    /// The target has answered a command.
    fn handle_rdma_response(&mut self, cx: &mut Context<'_>, wire: CommandId, cqe: &Cqe) {
        let Some(rdma) = &mut self.rdma else { return };
        let Some(outstanding) = rdma.take(wire) else { return };
        let is_wanted = !matches!(self.state, State::Draining(_));
        if is_wanted
            && cqe.status.is_success()
            && let Some(Lent { kind: Kind::Data, region, .. }) = &outstanding.lent
            && let Some(entry) = self.commands.get_mut(outstanding.cid)
            && let Data::Read(buf) = &mut entry.data
        {
            rdma.hub.core().port.provider().read(region, 0, buf);
            self.counters.copied_bytes.add(buf.len() as u64);
        }
        rdma.free(&outstanding);
        rdma.flow.handle_head(cqe.sqhd, self.config.entries);
        self.counters.pdus_received.add(1);
        if is_wanted {
            self.handle_response(cx, &Cqe { cid: outstanding.cid, ..*cqe });
        }
    }

    /// There is no connection.
    fn handle_failed(&mut self, cx: &mut Context<'_>, error: &ConnectError) {
        let Some(rdma) = &mut self.rdma else { return };
        rdma.hub.connection = None;
        let asks = matches!(self.state, State::Tcp) && rdma.attempts < STALE_ATTEMPTS;
        if asks && error.is_transient() {
            let at = cx.now + STALE_DELAY * (1 << rdma.attempts);
            rdma.attempts += 1;
            rdma.retry_at = Some(at);
            return self.arm(cx, at);
        }
        if !matches!(self.state, State::Draining(_)) {
            // It is closed before it is lost: nothing of it is left.
            self.finish_rdma(cx);
            let error = HostError::Rdma(self.config.address, error.to_string());
            return self.lose(cx, Ending::Lost(error), None);
        }
        self.handle_gone(cx);
    }

    /// Nothing is left of the connection.
    fn handle_gone(&mut self, cx: &mut Context<'_>) {
        self.finish_rdma(cx);
        if matches!(self.state, State::Draining(_)) {
            self.check_drained(cx);
        } else {
            let error = HostError::ClosedByPeer(self.config.address);
            self.lose(cx, Ending::Lost(error), None);
        }
    }

    fn finish_rdma(&mut self, cx: &mut Context<'_>) {
        let Some(rdma) = &mut self.rdma else { return };
        rdma.closed = true;
        // First: memory of a target whose last queue leaves is not kept.
        rdma.hub.leave(cx);
        rdma.free_all();
    }

    /// Ends the connection from this end, and waits until nothing can reach memory any more.
    pub(super) fn close_rdma(&mut self, cx: &mut Context<'_>) {
        let Some(rdma) = &mut self.rdma else { return };
        if rdma.closed || std::mem::replace(&mut rdma.closing, true) {
            return;
        }
        match rdma.hub.connection {
            Some(connection) => {
                rdma.hub.core().port.close(connection, cx.now);
                rdma.hub.begin_closing(cx);
                self.arm(cx, cx.now);
            }
            None => self.finish_rdma(cx),
        }
    }

    /// What a queue over RDMA does by time.
    pub(super) fn tend_rdma(&mut self, cx: &mut Context<'_>) {
        if let Some(error) = self.refused.take() {
            if matches!(self.state, State::Tcp) {
                self.lose(cx, Ending::Lost(*error), None);
            }
            return;
        }
        let config = self.connect_config();
        let Some(rdma) = &mut self.rdma else { return };
        if !rdma.closed && rdma.retry_at.is_some_and(|at| cx.now >= at) {
            rdma.retry_at = None;
            if let Err(error) = rdma.hub.connect(cx, config) {
                return self.handle_failed(cx, &error);
            }
        }
        rdma.hub.core().port.check_deadlines(cx.now);
        self.drive_rdma(cx);
        if let Some(rdma) = &self.rdma {
            let drains = matches!(self.state, State::Draining(_)) && !rdma.closed;
            let at = if drains { Some(cx.now + DRAIN_INTERVAL) } else { rdma.retry_at };
            if let Some(at) = at {
                self.arm(cx, at);
            }
        }
    }

    /// Sends the commands that are ready, as many as the submission queue takes.
    #[cold]
    pub(super) fn flush_rdma(&mut self, cx: &mut Context<'_>) {
        match &self.rdma {
            // Nobody is called for news: the queue whose receive that was was dropped.
            Some(rdma) if !rdma.closed && !rdma.hub.is_listening() => self.drive_rdma(cx),
            // A command that has ended there has its identifier no longer, which the next one may get.
            _ => self.take_rdma_events(cx),
        }
        if self.rdma.as_ref().is_none_or(|rdma| rdma.closed || rdma.closing)
            || self.pending.is_empty()
            || self.waits_for_more(cx)
        {
            return;
        }
        let only = self.only();
        let mut count = 0;
        while let Some(cid) = self.pending.pop_front() {
            let is_first = only.is_none_or(|only| only == Some(cid));
            match if is_first { self.put_rdma(cid) } else { Sent::Later } {
                Sent::Yes => count += 1,
                Sent::Later => {
                    self.pending.push_front(cid);
                    break;
                }
                Sent::Starved => {
                    self.pending.push_front(cid);
                    self.arm(cx, cx.now + STARVED_INTERVAL);
                    break;
                }
                Sent::Never(why) => {
                    self.pending.push_front(cid);
                    let error = HostError::Rdma(self.config.address, why);
                    return self.lose(cx, Ending::Lost(error), None);
                }
            }
        }
        self.gathering.handle_sent(self.pending.len());
        if count == 0 {
            return;
        }
        self.counters.pdus_sent.add(count);
        self.counters.sends.add(1);
        let link = self.rdma.as_ref().and_then(|rdma| Some((rdma, rdma.hub.connection?)));
        if link.is_some_and(|(rdma, connection)| rdma.hub.core().port.post_to(connection)) {
            self.arm(cx, cx.now);
        }
        self.watch_deadlines(cx);
    }

    /// Puts one command into the queue pair.
    fn put_rdma(&mut self, cid: CommandId) -> Sent {
        let sent = self.commands.len() - self.pending.len() - 1;
        let capsule_data = self.capsule_data();
        let entries = self.config.entries;
        let Some(entry) = self.commands.get_mut(cid) else { return Sent::Yes };
        if entry.len > MAX_BLOCK_BYTES {
            self.finish(cid, Err(CommandError::Status(Status::INVALID_FIELD.dnr())));
            return Sent::Yes;
        }
        let Some(rdma) = &mut self.rdma else { return Sent::Later };
        let Some(connection) = rdma.hub.connection else { return Sent::Later };
        let (member, domain) = (rdma.hub.member(), rdma.hub.domain);
        let core = &mut *rdma.hub.core();
        let Some((queue, _)) = core.port.queue(connection) else { return Sent::Later };
        if sent >= usize::from(entries) - 1 || queue.outstanding() >= usize::from(entries) - 1 {
            return Sent::Later;
        }
        let in_capsule = entry.len <= capsule_data && matches!(entry.data, Data::Write(_));
        let block = match (&entry.data, in_capsule) {
            (Data::None, _) => Ok(None),
            (_, true) => core.lend(domain, Kind::Capsule, SQE_BYTES + entry.len).map(Some),
            (_, false) => core.lend(domain, Kind::Data, entry.len).map(Some),
        };
        let lent = match block {
            Ok(lent) => lent,
            Err(_) if core.starve(member) || sent > 0 => return Sent::Starved,
            Err(error) => return Sent::Never(error.to_string()),
        };
        let (transfer, data_at) = match lent {
            None => (HostTransfer::None, None),
            Some(Lent { kind: Kind::Capsule, region: memory, .. }) => {
                (HostTransfer::CapsuleIn { memory, len: entry.len }, Some((memory, SQE_BYTES)))
            }
            Some(Lent { kind: Kind::Data, region, .. }) => {
                let (address, key) = (region.address, region.rkey);
                let block = KeyedBlock { address, len: entry.len, key };
                (HostTransfer::Keyed { block, invalidate: false }, Some((region, 0)))
            }
        };
        if let (Data::Write(buf), Some((region, at))) = (&entry.data, data_at) {
            core.port.provider().write(&region, at, buf);
            self.counters.copied_bytes.add(buf.len() as u64);
        }
        let submitted = match (rdma.flow.take_entry(entries, sent), core.port.queue(connection)) {
            (true, Some((queue, device))) => queue.submit(device, &entry.sqe, transfer),
            _ => Err(SubmitError::Full),
        };
        match submitted {
            Ok(wire) => {
                entry.sent = true;
                let slot = usize::from(wire.0) & (rdma.outstanding.len() - 1);
                rdma.outstanding[slot] = Some(Outstanding { cid, lent });
                Sent::Yes
            }
            Err(error) => {
                if let Some(lent) = lent {
                    core.give_back(lent);
                }
                match error {
                    SubmitError::Full | SubmitError::Lost => Sent::Later,
                    SubmitError::TooLong => Sent::Never("a capsule is too short".to_owned()),
                }
            }
        }
    }
}

/// The largest block of registered memory holds the largest command.
const _: () = assert!(super::memory::LARGEST > MAX_BLOCK_BYTES);
