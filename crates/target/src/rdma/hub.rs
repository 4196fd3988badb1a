//! What one core has of a listener's device: its queue pairs, and the connections over them.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use raceline_proto::rdma::{QueueRequest, RejectStatus};
use raceline_rdma::verbs::{Access, ConnectionId, Provider};
use raceline_rdma::waiting::Given;
use raceline_rdma::{Asked, Loss, Refusal, Table, TargetEvent, TargetPort, TargetPortEvent};
use raceline_reactor::io::RecvBuffers;
use raceline_reactor::{Interest, IsController, SendBatch};

use super::buffers::Buffers;
use super::config::{Device, RdmaConfig};
use super::counted::{Done, LastCounts};
use super::line::Line;
use super::pdus::REUSED;
use super::places::Places;
use super::sources::Sources;
use super::works::Works;

/// The time between two looks at the deadlines of queue pairs.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Responses that are under way have this long to leave when a connection is closed.
const LINGER: Duration = Duration::from_secs(1);
/// At the end of all connections of a listener that is gone, the core waits no longer than this for them.
const LAST_LINGER: Duration = Duration::from_millis(10);
/// Connections in the array of [`Table`].
const LINES_NEAR: usize = 64;
/// Times that a core asks the device in a row.
const MAX_PUMPS: usize = 64;

/// A request for a queue that could be granted, on its way to the core that is to have the connection.
pub(super) struct Arrival {
    id: ConnectionId,
    /// `None`: the device is one for all cores, and its hub answers.
    given: Option<Given>,
    asked: Asked,
    pub(super) peer: SocketAddr,
}

impl Arrival {
    /// Whether the hub of any core of the device can answer.
    pub(super) fn is_given(&self) -> bool {
        self.given.is_some()
    }
}

/// The queue pairs of one core.
pub(super) struct Hub {
    works: Works,
    lines: Table<Line>,
    arrivals: VecDeque<Arrival>,
    /// Connections that are closed, whose last responses leave.
    closing: Vec<(ConnectionId, Instant)>,
    checked: Instant,
    /// The listener is gone: the streams poll.
    is_orphaned: bool,
    /// Requests may go to other cores.
    gives: bool,
    /// `None`: nobody knows which controllers there are.
    controllers: Option<IsController>,
    /// Where it writes at its end what it has done.
    last: LastCounts,
}

impl Hub {
    /// For one of so many cores.
    pub(super) fn new(
        device: Device,
        config: &RdmaConfig,
        cores: usize,
        controllers: Option<IsController>,
        last: LastCounts,
    ) -> Self {
        // iWARP's RDMA READs write as if they came from the peer, and tell it the buffer's key (RFC 5040, 4.4).
        let open = Access { remote_write: true, ..Access::LOCAL };
        let fetched = if device.capabilities().is_iwarp { open } else { Access::LOCAL };
        let half = config.buffer_bytes_of_core(cores) / 2;
        let gives = device.kin().is_some();
        let mut port = TargetPort::new(device, config.port());
        port.hold_requests();
        let works = Works {
            port,
            fetched: Buffers::new(fetched, half),
            given: Buffers::new(Access::LOCAL, half),
            sources: Sources::default(),
            places: Places::new(config.reads_regions),
            starved: Vec::new(),
            released: false,
        };
        Self {
            works,
            lines: Table::new(LINES_NEAR),
            arrivals: VecDeque::new(),
            closing: Vec::new(),
            checked: Instant::now(),
            is_orphaned: false,
            gives,
            controllers,
            last,
        }
    }

    /// The device's name, what was done with it, and how many data it has read in place.
    pub(super) fn counts(&mut self) -> Done {
        let name = self.works.port.provider().name().to_owned();
        (name, self.works.port.counts(), self.works.places.leased())
    }

    /// Whether the device was removed, or has lost its address: no connection comes any more.
    pub(super) fn is_device_gone(&self) -> bool {
        self.works.port.is_device_gone()
    }

    /// Whether another device has the address by now.
    pub(super) fn has_address_moved(&self) -> bool {
        self.works.port.has_address_moved()
    }

    /// Whether there are connections.
    pub(super) fn has_lines(&self) -> bool {
        !self.lines.is_empty()
    }

    /// The descriptor that is readable when the device has news.
    pub(super) fn news(&mut self) -> BorrowedFd<'_> {
        self.works.port.provider().news()
    }

    // -------------------------------------------------------------------------- events

    /// Takes what the device has, of the connection manager as well.
    fn pump(&mut self) -> bool {
        let now = Instant::now();
        let any = self.works.port.poll(now);
        self.look_after(now);
        any
    }

    /// Takes what the device has to say of work requests.
    fn pump_work(&mut self) {
        if self.is_orphaned {
            self.pump();
            return;
        }
        let now = Instant::now();
        self.works.port.poll_work(now);
        self.look_after(now);
    }

    fn look_after(&mut self, now: Instant) {
        self.settle(now);
        if now >= self.checked + CHECK_INTERVAL {
            self.checked = now;
            self.works.port.check_deadlines(now);
            self.settle(now);
            self.works.places.forget_ended(self.works.port.provider());
            if !self.works.starved.is_empty() {
                // The device may have refused them memory, of which none may come back.
                self.feed();
                self.settle(now);
            }
        }
        if self.closing.is_empty() {
            return;
        }
        for (id, until) in std::mem::take(&mut self.closing) {
            let leaves = self.works.port.queue(id).is_some_and(|queue| queue.awaits_host());
            if leaves && now < until {
                self.closing.push((id, until));
            } else {
                self.finish_closing(id, now);
            }
        }
        self.settle(now);
    }

    /// Posts what there is to post, and hands out what has happened, until nothing happens any more.
    #[inline]
    fn settle(&mut self, now: Instant) {
        loop {
            self.works.port.settle(now);
            let mut quiet = true;
            while let Some((id, event)) = self.works.port.poll_event() {
                quiet = false;
                self.handle(id, event);
            }
            if std::mem::take(&mut self.works.released) {
                quiet = false;
                self.feed();
            }
            if quiet {
                return;
            }
        }
    }

    fn handle(&mut self, id: ConnectionId, event: TargetPortEvent) {
        match event {
            TargetPortEvent::Asked(asked) => {
                let device = self.works.port.provider();
                // A peer without an address counts as one of the listener's own machine.
                let peer = device.peer(id).unwrap_or(SocketAddr::new(asked.listener.ip(), 0));
                if self.is_orphaned {
                    // It has come before the listener was gone.
                    return self.works.port.turn_away(id);
                }
                if !self.has_controller_of(&asked) {
                    let refusal = Refusal::from(RejectStatus::ControllerId);
                    self.works.port.refuse(id, refusal.status());
                    return tell_refusal(Some(peer), &refusal);
                }
                let device = self.works.port.provider();
                let given = if self.gives { device.give(id) } else { None };
                self.arrivals.push_back(Arrival { id, given, asked, peer });
            }
            TargetPortEvent::Refused { peer, refusal } => tell_refusal(peer, &refusal),
            // The hub answers requests.
            TargetPortEvent::Accepted { .. } => {}
            TargetPortEvent::Queue(event) => match self.lines.get_mut(id.0) {
                Some(line) => {
                    line.handle(&mut self.works, event);
                    line.ring_if_waited_for();
                }
                None => self.give_back(id, event),
            },
            TargetPortEvent::Closed => {
                let Some(line) = self.lines.get_mut(id.0) else { return };
                line.is_over = true;
                if line.is_dropped {
                    self.forget(id);
                }
            }
        }
    }

    /// Whether the controller is there that a host names with its request. Hosts need not name it (Linux before 6.12).
    fn has_controller_of(&self, asked: &Asked) -> bool {
        let named = QueueRequest::parse(&asked.private).ok().and_then(|request| request.cntlid);
        match (named, &self.controllers) {
            (Some(cntlid), Some(is_there)) => is_there(cntlid.0),
            _ => true,
        }
    }

    /// Nobody has the connection, and its queue pair is no more.
    fn forget(&mut self, id: ConnectionId) {
        if let Some(mut line) = self.lines.remove(id.0) {
            line.end(&mut self.works);
            self.works.sources.leave(line.source);
        }
    }

    /// A command of a connection that never came to be.
    fn give_back(&mut self, id: ConnectionId, event: TargetEvent) {
        if let TargetEvent::Command { token, sqe, .. } = event
            && let Some(queue) = self.works.port.queue(id)
        {
            let cid = sqe.command_id();
            let status = raceline_proto::nvme::Status::ABORT_REQUESTED;
            let cqe = raceline_proto::nvme::Cqe { cid, status, ..Default::default() };
            queue.respond(token, cqe, None, u32::MAX);
        }
    }

    /// Buffers have come back, or it is time: those who wait for one try again.
    fn feed(&mut self) {
        for id in std::mem::take(&mut self.works.starved) {
            let Some(line) = self.lines.get_mut(id.0) else { continue };
            line.is_starved = false;
            line.fetch(&mut self.works);
            line.is_stalled = false;
            line.ring_if_waited_for();
        }
    }

    // ------------------------------------------------------------------------- listener

    /// Takes what the device has done, and makes no system call. Without a full look ([`Self::accept`]) before the core
    /// sleeps nothing is lost: the first completion since the last one has left a notice, which the news tell.
    pub(super) fn spin(&mut self) {
        self.pump_work();
    }

    /// The next connection.
    pub(super) fn accept(&mut self) -> Option<Arrival> {
        self.pump();
        if self.arrivals.is_empty() {
            self.works.port.provider().arm();
            // What was there before is not told; what comes from now on is.
            for _ in 0..MAX_PUMPS {
                if !self.pump() {
                    break;
                }
            }
        }
        self.arrivals.pop_front()
    }

    /// The listener is gone: whom nobody has accepted is refused, and the streams look for themselves.
    pub(super) fn orphan(&mut self) {
        self.is_orphaned = true;
        self.works.port.stop_listening();
        for arrival in std::mem::take(&mut self.arrivals) {
            self.turn_away(arrival);
        }
        self.lines.values_mut().for_each(Line::ring);
    }

    /// Refuses a request, because nobody takes its connection.
    pub(super) fn turn_away(&mut self, arrival: Arrival) {
        // One that was given is refused as it is dropped.
        if arrival.given.is_none() {
            self.works.port.turn_away(arrival.id);
            self.settle(Instant::now());
        }
    }

    /// Answers a request. Gives the connection, whose stream has the other end of this bell.
    pub(super) fn take_in(
        &mut self,
        arrival: Arrival,
        bell: UnixStream,
    ) -> io::Result<ConnectionId> {
        if self.is_orphaned || self.is_device_gone() {
            self.turn_away(arrival);
            return Err(refused("the device is gone"));
        }
        let now = Instant::now();
        let Arrival { id, given, asked, peer } = arrival;
        let id = match given {
            Some(given) => self.works.port.provider().take(given).map_err(|error| {
                tracing::info!(event = "refused", %peer, %error, "an RDMA queue was refused");
                refused(error)
            })?,
            None => id,
        };
        match self.works.port.admit(id, &asked, now) {
            Ok((request, grant)) => {
                let source = self.works.sources.enter(peer);
                let line = Line::new((id, source), request.qid, grant.entries, bell);
                self.lines.insert(id.0, line);
                self.settle(now);
                Ok(id)
            }
            Err(refusal) => {
                tell_refusal(Some(peer), &refusal);
                self.settle(now);
                Err(refused(refusal))
            }
        }
    }

    // -------------------------------------------------------------------------- streams

    /// A stream begins a try: its bell is silent from now on.
    ///
    /// # Errors
    /// `WouldBlock` while the device may read data of a batch that was taken.
    #[inline]
    pub(super) fn begin(&mut self, id: ConnectionId, bell: &mut UnixStream) -> io::Result<()> {
        if let Some(line) = self.lines.get_mut(id.0) {
            line.waiting = Interest::NONE;
            if std::mem::take(&mut line.is_rung) {
                // It was rung once; an error means that there is nothing to silence.
                let _ = bell.read(&mut [0; 8]);
            }
        }
        self.pump_work();
        match self.lines.get_mut(id.0) {
            Some(line) => {
                line.owes = line.leases > 0;
                if line.owes { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            }
            None => Ok(()),
        }
    }

    /// A stream ends a try, and waits for this.
    #[inline]
    pub(super) fn wait(&mut self, id: ConnectionId, waiting: Interest) {
        if let Some(line) = self.lines.get_mut(id.0) {
            line.waiting = waiting;
            // Something may have come since it has looked.
            line.ring_if_waited_for();
            if self.is_orphaned && !waiting.is_none() {
                line.ring();
            }
        }
    }

    pub(super) fn unread(&self, id: ConnectionId) -> usize {
        self.lines.get(id.0).map_or(0, Line::unread)
    }

    /// [`raceline_reactor::ByteStream::receive`].
    #[inline]
    pub(super) fn receive(
        &mut self,
        id: ConnectionId,
        into: &mut RecvBuffers,
    ) -> io::Result<usize> {
        let line = self.lines.get_mut(id.0).ok_or_else(lost)?;
        match line.loss {
            // As when a socket is closed.
            Some(Loss::Disconnected) => return Ok(0),
            Some(loss) => return Err(io::Error::new(io::ErrorKind::ConnectionReset, loss)),
            None => {}
        }
        match line.receive(&mut self.works, into) {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => {
                if self.works.released {
                    self.settle(Instant::now());
                }
                Ok(count)
            }
        }
    }

    /// [`raceline_reactor::ByteStream::transmit`].
    #[inline]
    pub(super) fn transmit(
        &mut self,
        id: ConnectionId,
        batch: &mut SendBatch,
    ) -> io::Result<usize> {
        let line = self.lines.get_mut(id.0).ok_or_else(lost)?;
        line.owes = line.loss.is_some() && line.leases > 0;
        if line.owes {
            // The batch stays where it is until its data are not read any longer.
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if let Some(loss) = line.loss {
            return Err(io::Error::new(io::ErrorKind::ConnectionReset, loss));
        }
        let taken = line.transmit(&mut self.works, &mut batch.unsent_reader());
        let now = Instant::now();
        match taken {
            Ok(taken) => {
                self.settle(now);
                if taken > 0 { Ok(taken) } else { Err(io::ErrorKind::WouldBlock.into()) }
            }
            Err(what) => {
                let peer = self.works.port.provider().peer(id).map(|peer| peer.to_string());
                if what == REUSED {
                    tracing::warn!(peer, what, "an RDMA queue ends");
                } else {
                    tracing::error!(peer, what, "the target has sent a PDU that RDMA cannot carry");
                }
                self.works.port.abort(id, now);
                self.settle(now);
                Err(io::Error::other(what))
            }
        }
    }

    /// Nobody has the connection any longer.
    pub(super) fn close(&mut self, id: ConnectionId, reset: bool) {
        let now = Instant::now();
        let Some(line) = self.lines.get_mut(id.0).filter(|line| !line.is_dropped) else { return };
        line.is_dropped = true;
        line.waiting = Interest::NONE;
        line.drop_input(&mut self.works);
        let is_read = line.leases > 0;
        if line.is_over {
            self.forget(id);
            return self.settle(now);
        }
        let leaves = self.works.port.queue(id).is_some_and(|queue| queue.awaits_host());
        if is_read {
            // The memory of the controller's batch is used for other data from now on.
            self.works.port.abort(id, now);
        }
        if leaves && !reset && !is_read {
            self.closing.push((id, now + LINGER));
        } else {
            self.finish_closing(id, now);
        }
        self.settle(now);
    }

    fn finish_closing(&mut self, id: ConnectionId, now: Instant) {
        self.works.port.close(id, now);
        if let Some(line) = self.lines.get_mut(id.0) {
            line.abandon(&mut self.works);
        }
    }
}

impl Drop for Hub {
    /// Nobody is left who could wait for last responses to leave.
    fn drop(&mut self) {
        // Whoever counts finds this hub no more.
        let done = self.counts();
        self.last.set(done);
        let until = Instant::now() + LAST_LINGER;
        let leaves = |hub: &mut Self| {
            let ids = hub.lines.numbers();
            ids.into_iter()
                .map(ConnectionId)
                .any(|id| hub.works.port.queue(id).is_some_and(|queue| queue.awaits_host()))
        };
        while leaves(self) && Instant::now() < until {
            self.pump();
            std::thread::yield_now();
        }
        for id in self.lines.numbers().into_iter().map(ConnectionId) {
            self.finish_closing(id, Instant::now());
        }
        self.settle(Instant::now());
        let done = self.counts();
        self.last.set(done);
        // Memory is given back when no queue pair is left that could touch it.
        self.works.port.end();
        for (_, mut line) in self.lines.drain() {
            line.end(&mut self.works);
        }
        let Works { port, fetched, given, places, .. } = &mut self.works;
        fetched.end(port.provider());
        given.end(port.provider());
        places.clear(port.provider());
    }
}

fn lost() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

fn refused(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionRefused, why)
}

fn tell_refusal(peer: Option<SocketAddr>, refusal: &Refusal) {
    let peer = peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string());
    tracing::info!(event = "refused", peer, %refusal, "an RDMA queue was refused");
}
