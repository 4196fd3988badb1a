//! One core's share of the target: its connections and listeners, driven by completions.

mod iscsi;
mod listening;
mod moves;
mod suspending;

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use raceline_bdev::Done;
use raceline_proto::nvme::Nqn;
use raceline_proto::nvme::cross_reset::ResetStatus;
use raceline_proto::reservation::Registrant;
use raceline_reactor::inheritance::Offer;
use raceline_reactor::io::ListenerId;
use raceline_reactor::{
    Completion, Context, Outcome, Payload, Service, Socket, StreamProvider, Token,
};

use crate::changes::config::TargetError;
use crate::changes::message::{CrossReset, Message, Reply};
use crate::changes::snapshot::{DeviceId, Snapshot};
use crate::path::association::controller_gone;
use crate::path::commands::THROTTLE_BIT;
use crate::path::connection::Connection;
use crate::path::core::Core;
use crate::path::iscsi::group::IscsiGroup;
use crate::path::range_lock::{Order, Warden};
use crate::records::early::Ticket;
use crate::records::names::{
    CommandPlace, ConnKey, Ends, EngineToken, ISCSI_OWNER, MAX_CONNECTIONS, Protocol, Tag,
};
use crate::records::placement::{Arrival, Seat};
use crate::records::registry::Shared;

use suspending::Suspending;

/// Token index bit that marks a listener.
const LISTENER_BIT: u32 = 1 << 31;
/// Token index of the timer that begins the next pass over deferred connections.
const NEXT_PASS: u32 = u32::MAX;
/// Token index of the timer after which connections that could not move stay.
const MOVES_END: u32 = u32::MAX - 1;

struct Listener {
    id: ListenerId,
    index: u32,
    port: (Protocol, u16),
    /// Carries the bytes of the connections that the kernel accepts; `None`: the kernel does, or the
    /// connections are already carried.
    streams: Option<Arc<dyn StreamProvider>>,
    is_rdma: bool,
    /// A successor of this process gets it.
    _offer: Option<Offer>,
}

struct Entry {
    generation: u16,
    connection: Option<Box<Connection>>,
    /// Taken with the connection, given back when the connection is gone.
    seat: Option<Seat>,
}

/// One core's connections and listeners.
pub(crate) struct PollGroup {
    core: Core,
    connections: Vec<Entry>,
    free: Vec<u32>,
    listeners: Vec<Listener>,
    next_listener: u32,
    stopping: bool,
    live: usize,
    iscsi: IscsiGroup,
    batch: Vec<Done>,
    flushing: Vec<ConnKey>,
    /// Deferred connections whose turn it is.
    resuming: Vec<ConnKey>,
    /// The timer of the next pass is set.
    next_pass: bool,
    /// Connections that are to move, and since when.
    moving: Vec<(ConnKey, Instant)>,
    suspending: Suspending,
}

impl PollGroup {
    pub(crate) fn new(index: usize, shared: Arc<Shared>) -> Self {
        Self {
            core: Core::new(index, shared),
            connections: Vec::new(),
            free: Vec::new(),
            listeners: Vec::new(),
            next_listener: 0,
            stopping: false,
            live: 0,
            iscsi: IscsiGroup::default(),
            batch: Vec::new(),
            flushing: Vec::new(),
            resuming: Vec::new(),
            next_pass: false,
            moving: Vec::new(),
            suspending: Suspending::default(),
        }
    }

    /// Runs `f` on a connection, if it still lives, and removes the connection if it has ended.
    fn with(
        &mut self,
        cx: &mut Context<'_>,
        key: ConnKey,
        f: impl FnOnce(&mut Connection, &mut Context<'_>, &mut Core),
    ) -> bool {
        self.with_index(cx, key.index, |generation| generation == key.generation, f)
    }

    /// [`Self::with`], on the connection with this index if its generation is the wanted one.
    #[inline]
    fn with_index(
        &mut self,
        cx: &mut Context<'_>,
        index: u32,
        is_wanted: impl FnOnce(u16) -> bool,
        f: impl FnOnce(&mut Connection, &mut Context<'_>, &mut Core),
    ) -> bool {
        let Some(entry) = self.connections.get_mut(index as usize) else { return false };
        if !is_wanted(entry.generation) {
            return false;
        }
        let Some(connection) = &mut entry.connection else { return false };
        f(connection, cx, &mut self.core);
        if (self.stopping || self.suspending.is_leaving()) && connection.is_drained() {
            connection.close(cx, &mut self.core, "the target is shutting down");
        }
        if connection.is_gone() {
            connection.leave(&self.core, cx.now);
            connection.leave_share(&mut self.core);
            entry.connection = None;
            entry.generation = entry.generation.wrapping_add(1);
            self.free.push(index);
            self.live -= 1;
            if let Some(seat) = entry.seat.take() {
                self.core.shared.unplace(seat);
            }
        }
        true
    }

    // --------------------------------------------------------------- coming and going

    /// A connection was accepted: hands it to its core, unless there are too many.
    fn accepted(&mut self, cx: &mut Context<'_>, token: Token, socket: Socket, peer: SocketAddr) {
        let index = token.index & !LISTENER_BIT;
        let listener = self.listeners.iter().find(|l| l.index == index);
        let Some(listener) = listener.filter(|_| !self.stopping) else { return };
        let ((protocol, port_id), is_rdma) = (listener.port, listener.is_rdma);
        let streams = listener.streams.clone();
        let local = socket.local_address();
        let ticket = match self.core.shared.enter(peer.ip(), cx.now) {
            Ok(ticket) => ticket,
            Err(crowded) => {
                tracing::debug!(%peer, ?crowded, "refused: too many sockets wait for Connect");
                return;
            }
        };
        if let Some(time) = self.core.shared.config.busy_poll
            && let Err(error) = socket.set_busy_poll(time)
        {
            // Busy polling was permitted when the target started.
            tracing::warn!(%peer, %error, "a connection without busy polling");
        }
        let priority = self.core.shared.config.socket_priority;
        if priority != 0
            && let Err(error) = socket.set_priority(priority)
        {
            // This priority was permitted when the target started.
            tracing::warn!(%peer, %error, "a connection without priority");
        }
        if let Some(time) = self.core.shared.config.ack_timeout
            && let Err(error) = socket.set_user_timeout(time)
        {
            tracing::warn!(%peer, %error, "a connection without acknowledgement timeout");
        }
        if self.core.shared.config.quick_ack
            && let Err(error) = socket.set_quick_ack()
        {
            tracing::warn!(%peer, %error, "a connection without quick acknowledgements");
        }
        let (napi_id, cpu) = (socket.incoming_napi_id(), socket.incoming_cpu());
        let arrival = Arrival { napi_id, cpu, mark: socket.mark() };
        let carried = match streams {
            Some(streams) => streams.accepted(socket),
            None => Ok(socket),
        };
        let socket = match carried {
            Ok(socket) => socket,
            Err(error) => {
                tracing::warn!(%peer, %error, "refused: its stream cannot be made");
                return self.core.shared.leave(ticket);
            }
        };
        let seat = self.core.shared.place(arrival, self.core.index);
        let core = seat.core();
        let Arrival { napi_id, cpu, mark } = arrival;
        tracing::debug!(%peer, core, napi_id, cpu, mark, "accepted");
        let ends = Ends { peer, local, port_id, protocol, is_rdma };
        if core == self.core.index {
            self.adopt(cx, seat, socket, ends, ticket);
        } else {
            self.core.send(core, Message::Adopt { seat, socket, ends, ticket });
        }
    }

    fn adopt(
        &mut self,
        cx: &mut Context<'_>,
        seat: Seat,
        socket: Socket,
        ends: Ends,
        ticket: Ticket,
    ) {
        if ends.protocol == Protocol::Iscsi {
            return self.adopt_iscsi(cx, seat, socket, (ends, ticket));
        }
        let index = if self.stopping { None } else { self.free_index() };
        let shakes_hands = socket.is_provided();
        let adopted = index.and_then(|_| cx.io.adopt(socket).ok());
        let (Some(index), Some(socket)) = (index, adopted) else {
            self.free.extend(index);
            self.core.shared.leave(ticket);
            self.core.shared.unplace(seat);
            return;
        };
        let entry = &mut self.connections[index as usize];
        let key = ConnKey { index, generation: entry.generation };
        let mut connection =
            Box::new(Connection::new(key, socket, (ends, ticket), &self.core, cx.now));
        self.core.shared.settle(ticket, self.core.place(key));
        if shakes_hands {
            connection.allow_handshake(&self.core);
        }
        connection.arm_timer(cx);
        connection.start_recv(cx);
        entry.connection = Some(connection);
        entry.seat = Some(seat);
        self.live += 1;
        if self.suspending.is_active() {
            self.with(cx, key, Connection::suspend);
        }
    }

    /// An index for one more connection; `None`: all indices that a tag can name are in use.
    fn free_index(&mut self) -> Option<u32> {
        if let Some(index) = self.free.pop() {
            return Some(index);
        }
        let index = u32::try_from(self.connections.len()).ok();
        let Some(index) = index.filter(|index| *index < MAX_CONNECTIONS) else {
            tracing::warn!(max = MAX_CONNECTIONS, "a core has as many connections as it can");
            return None;
        };
        self.connections.push(Entry { generation: 0, connection: None, seat: None });
        Some(index)
    }

    fn keys(&self) -> Vec<ConnKey> {
        let indexed = (0u32..).zip(&self.connections);
        indexed
            .filter(|(_, entry)| entry.connection.is_some())
            .map(|(index, entry)| ConnKey { index, generation: entry.generation })
            .collect()
    }

    fn shutdown(&mut self, cx: &mut Context<'_>) {
        self.stopping = true;
        for listener in std::mem::take(&mut self.listeners) {
            cx.io.close_listener(listener.id);
        }
        for key in self.keys() {
            self.with(cx, key, |connection, cx, _| connection.drain(cx));
        }
        self.drain_iscsi(cx);
    }

    // --------------------------------------------------------------------- changes

    fn replace_snapshot(
        &mut self,
        cx: &mut Context<'_>,
        snapshot: &Arc<Snapshot>,
        reply: &Reply<()>,
    ) {
        self.core.snapshot = Arc::clone(snapshot);
        for key in self.keys() {
            self.with(cx, key, |connection, cx, core| connection.handle_snapshot(cx, core));
        }
        self.show_iscsi(cx);
        // The control thread may have given up waiting.
        let _ = reply.send((self.core.index, ()));
    }

    /// Closes a host's controllers of a subsystem; their I/O queues go with them.
    fn disconnect_host(&mut self, cx: &mut Context<'_>, nqn: &Nqn, host: &Nqn) {
        for key in self.keys() {
            self.with(cx, key, |connection, cx, core| {
                connection.disconnect(cx, core, nqn, host);
            });
        }
    }

    /// Counts this core's writes within the range that are at their device now.
    fn changing(&self, device: DeviceId, bytes: &Range<u64>) -> usize {
        let connections = self.connections.iter().filter_map(|e| e.connection.as_ref());
        connections
            .flat_map(|connection| connection.commands().slots.active())
            .filter(|(_, slot)| slot.is_changing(device, bytes))
            .count()
            + self.iscsi.changing(device, bytes)
    }

    /// The commands for these devices that came by the port and are not completed.
    fn in_flight(&self, port_id: u16, devices: &[DeviceId]) -> usize {
        let connections = self.connections.iter().filter_map(|e| e.connection.as_ref());
        connections
            .filter(|connection| connection.port_id() == port_id)
            .flat_map(|connection| connection.commands().slots.active())
            .filter(|(_, slot)| slot.device().is_some_and(|device| devices.contains(&device)))
            .count()
    }

    /// Aborts the commands of these hosts for a device, as far as they have not reached it; counts those that have.
    fn abort_preempted(
        &mut self,
        cx: &mut Context<'_>,
        device: DeviceId,
        hosts: &[Registrant],
    ) -> usize {
        let mut count = 0;
        for key in self.keys() {
            self.with(cx, key, |connection, _, core| {
                count += connection.abort_preempted(core, device, hosts);
            });
        }
        count
    }

    // ------------------------------------------------------------------------- work

    /// Hands finished device requests to their commands, which may start new ones.
    fn run_done(&mut self, cx: &mut Context<'_>) {
        while !self.core.done.is_empty() {
            let mut batch = std::mem::replace(&mut self.core.done, std::mem::take(&mut self.batch));
            let mut finished = batch.drain(..);
            while let Some(done) = finished.next() {
                if self.core.digests {
                    let next = finished.as_slice().first();
                    let payload = next.and_then(|next| next.payload.as_ref());
                    self.core.upcoming = payload.and_then(Payload::upcoming);
                }
                let tag = Tag::from_bits(done.tag);
                if let Some(tag) = tag.filter(|tag| tag.is_foreign()) {
                    self.run_foreign(cx, tag, done);
                    continue;
                }
                let mut expected = false;
                if let Some(tag) = tag {
                    let is_wanted = |generation| tag.is_of(generation);
                    self.with_index(cx, tag.connection, is_wanted, |connection, cx, core| {
                        expected = connection.handle_done(cx, core, tag.slot, done);
                    });
                }
                if !expected {
                    report_stale("a device");
                }
            }
            drop(finished);
            self.batch = batch;
        }
    }

    /// Connections that had their share of the last pass go on.
    fn run_deferred(&mut self, cx: &mut Context<'_>) {
        self.next_pass = false;
        let resuming = std::mem::take(&mut self.resuming);
        let mut keys = std::mem::replace(&mut self.core.deferred, resuming);
        for key in keys.drain(..) {
            self.with(cx, key, |connection, cx, core| connection.resume(cx, core));
        }
        self.resuming = keys;
    }

    /// Serves the connections that wait for the turns of their hosts, until the core's turn is over.
    #[cold]
    fn run_shares(&mut self, cx: &mut Context<'_>) {
        let mut turn = self.core.shares.begin_turn(cx.now);
        let pass_bytes = self.core.shared.config.pass_bytes as usize;
        while let Some(slice) = turn.slice(pass_bytes)
            && let Some((share, key)) = self.core.shares.next()
        {
            let mut served = 0;
            self.with(cx, key, |connection, cx, core| {
                served = connection.take_turn(cx, core, slice);
            });
            self.core.shares.settle(share);
            turn.pass(served);
        }
    }

    /// Commands that a lowered fence lets go.
    fn run_released(&mut self, cx: &mut Context<'_>) {
        while let Some(command) = self.core.released.pop() {
            if command.key.is_iscsi() {
                self.unfence_iscsi(cx, command);
                continue;
            }
            self.with(cx, command.key, |connection, cx, core| {
                connection.handle_unfenced(cx, core, command.slot);
            });
        }
    }

    /// Gives I/O buffers to the commands that wait, in the order of their lines.
    #[inline(never)]
    fn serve_buffer_lines(&mut self, cx: &mut Context<'_>) {
        while let Some((line, command, sizes)) = self.core.buffer_lines.next(cx.pool) {
            self.core.buffer_lines.leave(line, &self.core.shares);
            if command.key.is_iscsi() {
                self.serve_iscsi(cx, command, sizes);
            } else {
                self.with(cx, command.key, |connection, cx, core| {
                    connection.serve(cx, core, command.slot, sizes);
                });
            }
            self.run_done(cx);
        }
    }

    /// A controller wants the one of this connection to end. Without it, its association has ended.
    fn cross_reset(&mut self, cx: &mut Context<'_>, home: ConnKey, reset: CrossReset) {
        let mut waits = false;
        self.with(cx, home, |connection, cx, core| waits = connection.cross_reset(cx, core, reset));
        if !waits {
            reset.answer(&self.core, ResetStatus::Succeeded);
        }
    }

    /// On the warden core: a command wants the lock of a range, which a device that is gone cannot give.
    fn lock_range(
        &mut self,
        device: DeviceId,
        who: CommandPlace,
        request: impl FnOnce(&mut Warden<CommandPlace>, &mut Vec<Order<CommandPlace>>),
    ) {
        if self.core.device(device).is_some() {
            self.core.warden(device, request);
        } else {
            let granted = Message::LockGranted { to: who, device, lock: None };
            self.core.send(who.conn.core, granted);
        }
    }
}

/// The name by which a successor finds a listener.
pub(super) fn name_of(address: SocketAddr, protocol: Protocol, core: usize) -> String {
    format!("the listener of {protocol:?} at {address} on core {core}")
}

#[cold]
fn report_stale(who: &str) {
    tracing::error!("{who} has finished something that nobody waits for; it is ignored");
}

impl Service for PollGroup {
    type Message = Message;

    #[expect(clippy::too_many_lines, reason = "one table")]
    fn handle_message(&mut self, cx: &mut Context<'_>, message: Message) {
        match message {
            Message::Listen { address, port, streams, reply } => {
                let result = self
                    .listen(cx, address, port, streams)
                    .map_err(|error| TargetError::Listen { address, error });
                let _ = reply.send((self.core.index, result));
            }
            Message::Attend { address, port, streams, reply } => {
                let result = self
                    .attend(cx, address, port, &*streams)
                    .map_err(|error| TargetError::Listen { address, error });
                let _ = reply.send((self.core.index, result));
            }
            // It has turned.
            Message::Nudge => {}
            Message::CloseListener { port, reply } => {
                self.close_listener(cx, port);
                let _ = reply.send((self.core.index, ()));
            }
            Message::OpenDevice { id, bdev, reply } => {
                let result = self.core.open_device(cx, id, &bdev);
                let _ = reply.send((self.core.index, result));
            }
            Message::CloseDevice { id, reply } => self.core.close_device(cx, id, reply),
            Message::Wipe { id, bytes, reply } => self.core.wipe(cx, id, bytes, reply),
            Message::Managed { to, result } => {
                self.with(cx, to.conn.key, |connection, _, core| {
                    connection.managed(core, to.slot, result);
                });
            }
            Message::Authenticated { to, finished } => {
                self.with(cx, to.conn.key, |connection, _, core| {
                    connection.computed(core, to.slot, *finished);
                });
            }
            Message::Judged { key, verdict } => {
                self.with(cx, key, |connection, cx, core| connection.judge(cx, core, verdict));
            }
            Message::Snapshot { snapshot, reply } => self.replace_snapshot(cx, &snapshot, &reply),
            Message::CountInFlight { port_id, devices, reply } => {
                let _ = reply.send((self.core.index, self.in_flight(port_id, &devices)));
            }
            Message::AbortPreempted { device, preempted, again, reply } => {
                let of_hosts = self.abort_preempted(cx, device, &preempted);
                let of_nexuses = self.abort_preempted_iscsi(cx, device, &preempted, again);
                let _ = reply.send((self.core.index, of_hosts + of_nexuses));
            }
            Message::CountWrites { device, reply } => {
                let _ = reply.send((self.core.index, self.changing(device, &(0..u64::MAX))));
            }
            Message::ReservationNotices { nqn, nsid, notices } => {
                for key in self.keys() {
                    self.with(cx, key, |connection, cx, core| {
                        connection.note_reservations(cx, core, &nqn, (nsid, &notices));
                    });
                }
            }
            Message::DisconnectHost { nqn, host, reply } => {
                self.disconnect_host(cx, &nqn, &host);
                let _ = reply.send((self.core.index, ()));
            }
            Message::Shutdown => self.shutdown(cx),
            Message::GiveWay { key } if key.is_iscsi() => self.iscsi_gives_way(cx, key),
            Message::GiveWay { key } => {
                self.with(cx, key, |connection, cx, core| connection.give_way(cx, core));
            }
            Message::Adopt { seat, socket, ends, ticket } => {
                self.adopt(cx, seat, socket, ends, ticket);
            }
            Message::IoConnect { home, from, request, counters } => {
                let mut answer = None;
                self.with(cx, home, |connection, cx, core| {
                    answer = connection.handle_io_connect(cx, core, from, &request, counters);
                });
                let result = answer.unwrap_or_else(|| Err(controller_gone()));
                let reply = Message::IoConnected { to: from.key, result };
                self.core.send(from.core, reply);
            }
            Message::IoConnected { to, result } => {
                self.with(cx, to, |connection, cx, core| {
                    connection.io_connected(cx, core, result);
                });
            }
            Message::IoClosed { home, qid, from } => {
                self.with(cx, home, |connection, cx, core| {
                    connection.io_queue_closed(cx, core, qid, from);
                });
            }
            Message::Move { key, to } => self.begin_move(cx, key, to),
            Message::Depart { key } => self.depart(cx, key),
            Message::Arrive(traveller) => self.arrive(cx, *traveller),
            Message::IoMoved { home, qid, from, to } => self.io_moved(cx, home, qid, (from, to)),
            Message::Close { key } => {
                self.with(cx, key, |connection, cx, core| {
                    connection.close(cx, core, "its controller was reset, shut down or lost");
                });
            }
            Message::CrossReset { home, reset } => self.cross_reset(cx, home, reset),
            Message::CrossResetEnded { to, instance, status } => {
                self.with(cx, to, |connection, cx, core| {
                    connection.cross_reset_ended(cx, core, instance, status);
                });
            }
            Message::CommandFailed { home, entry } => {
                self.with(cx, home, |connection, _, _| {
                    connection.record_failure(entry);
                });
            }
            Message::Abort { key, cid, from } => {
                let mut is_aborted = false;
                self.with(cx, key, |connection, _, core| {
                    is_aborted = connection.abort(core, cid);
                });
                let result = Ok(u32::from(!is_aborted));
                self.core.send(from.conn.core, Message::Managed { to: from, result });
            }
            Message::LockRange { device, bytes, who } => {
                self.lock_range(device, who, |w, orders| w.request(bytes, who, orders));
            }
            Message::FenceRange { device, bytes, who } => {
                self.lock_range(device, who, |w, orders| w.barrier(bytes, who, orders));
            }
            Message::Fence { device, lock, bytes } => {
                let draining = self.changing(device, &bytes);
                self.core.fence(device, lock, bytes, draining);
            }
            Message::Fenced { device, lock } => {
                self.core.warden(device, |w, orders| w.fenced(lock, orders));
            }
            Message::LockGranted { to, device, lock } if to.conn.key.is_iscsi() => {
                self.lock_iscsi(cx, to, (device, lock));
            }
            Message::LockGranted { to, device, lock } => {
                let lives = self.with(cx, to.conn.key, |connection, cx, core| {
                    connection.handle_lock(cx, core, to.slot, (device, lock));
                });
                if !lives {
                    // The lock was for a write that its connection has left at the device, and that has ended.
                    self.core.unlock(device, lock);
                }
            }
            Message::UnlockRange { device, lock } => {
                self.core.warden(device, |w, orders| w.release(lock, orders));
            }
            Message::Unfence { device, lock } => self.core.unfence(device, lock),
            Message::Iscsi(message) => self.handle_iscsi(cx, message),
            Message::GiveNotice { .. }
            | Message::Suspend { .. }
            | Message::Pack { .. }
            | Message::Resume
            | Message::Leave { .. }
            | Message::Install { .. }
            | Message::IoRestored { .. } => self.handle_suspension(cx, message),
        }
    }

    fn handle_completion(&mut self, cx: &mut Context<'_>, completion: Completion) {
        let token = completion.token;
        if token.owner != 0 {
            return match token.owner {
                ISCSI_OWNER => self.iscsi_completion(cx, completion),
                _ => self.core.device_completion(cx, completion),
            };
        }
        let key = ConnKey { index: token.index, generation: token.generation };
        match completion.outcome {
            Outcome::Accepted(Ok((socket, peer))) => self.accepted(cx, token, socket, peer),
            Outcome::Accepted(Err(error)) => tracing::warn!(%error, "cannot accept a connection"),
            Outcome::Received(result, buffers) => {
                self.with(cx, key, |connection, cx, core| {
                    connection.handle_received(cx, core, result, buffers);
                });
            }
            Outcome::Sent(result, batch) => {
                self.with(cx, key, |connection, cx, core| {
                    connection.handle_sent(cx, core, result, batch);
                });
            }
            Outcome::Timer if token.index == NEXT_PASS => self.run_deferred(cx),
            Outcome::Timer if token.index == MOVES_END => self.end_moves(cx),
            Outcome::Timer if token.index & THROTTLE_BIT != 0 => {
                let key = ConnKey { index: token.index & !THROTTLE_BIT, ..key };
                self.with(cx, key, |connection, cx, core| connection.run_throttled(cx, core));
            }
            Outcome::Timer => {
                self.with(cx, key, |connection, cx, core| connection.handle_timer(cx, core));
            }
            Outcome::Accelerated(finished) => {
                let Some(done) = cx.io.accelerated(finished) else { return };
                let token = EngineToken::new(token);
                let mut expected = false;
                // The connection lives for as long as a command of its is with an engine.
                self.with_index(
                    cx,
                    token.connection,
                    |_| true,
                    |connection, cx, core| {
                        expected = connection.handle_accelerated(cx, core, token, done);
                    },
                );
                if !expected {
                    report_stale("an engine");
                }
            }
            Outcome::Connected(_)
            | Outcome::Read(..)
            | Outcome::Written(..)
            | Outcome::Synced(_)
            | Outcome::Called(..)
            | Outcome::Ublk(..) => {
                debug_assert!(false, "connections start no such operation");
            }
        }
    }

    fn flush(&mut self, cx: &mut Context<'_>) {
        if self.core.shares.is_waiting() {
            self.run_shares(cx);
        }
        // One step may make work for the next, and the core may sleep afterwards.
        // Received commands bound the number of rounds.
        loop {
            self.run_done(cx);
            self.run_released(cx);
            if !self.core.buffer_lines.is_empty() {
                self.serve_buffer_lines(cx);
            }
            self.core.flush_devices(cx);
            if self.core.done.is_empty() && self.core.released.is_empty() {
                break;
            }
        }
        let mut dirty = std::mem::replace(&mut self.core.dirty, std::mem::take(&mut self.flushing));
        for key in dirty.drain(..) {
            self.with(cx, key, |connection, cx, _| connection.flush(cx));
        }
        self.flushing = dirty;
        self.flush_iscsi(cx);
        if !self.moving.is_empty() {
            self.run_moves(cx);
        }
        if self.suspending.is_active() {
            self.run_suspension(cx);
        } else if self.suspending.is_giving_notice() {
            self.run_notice(cx);
        }
        let waits = !self.core.deferred.is_empty() || self.core.shares.is_waiting();
        if waits && !std::mem::replace(&mut self.next_pass, true) {
            // This timer expires at once, and is handled after all other events of the next poll.
            cx.io.timer(cx.now, Token { owner: 0, generation: 0, index: NEXT_PASS });
        }
        if self.is_finished() {
            self.core.close_devices(cx);
        }
    }

    fn is_finished(&self) -> bool {
        self.stopping && self.live == 0 && self.iscsi.is_empty()
    }
}
