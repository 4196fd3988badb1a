//! Connections that move from one core to another.

use std::sync::Arc;
use std::time::Duration;

use raceline_proto::nvme::QueueId;
use raceline_reactor::{Context, Token};

use super::{MOVES_END, PollGroup};
use crate::changes::message::Message;
use crate::path::connection::Connection;
use crate::path::traveller::{PackedConnection, Traveller};
use crate::records::names::{ConnKey, Place};
use crate::records::placement::Seat;
use crate::records::registry::Shared;

/// How long a connection may take to have nothing in flight. One whose host is silent stays: it is no load.
const MOVE_LIMIT: Duration = Duration::from_millis(200);

impl PollGroup {
    /// Has a connection move as soon as nothing of it is in flight.
    pub(super) fn begin_move(&mut self, cx: &mut Context<'_>, key: ConnKey, to: usize) {
        if self.stopping || to == self.core.index || to >= self.core.shared.cores() {
            return;
        }
        let mut begun = false;
        self.with(cx, key, |connection, _, core| begun = connection.begin_move(core, to));
        if begun {
            self.moving.push((key, cx.now));
            let token = Token { owner: 0, generation: 0, index: MOVES_END };
            cx.io.timer(cx.now + MOVE_LIMIT, token);
        }
    }

    /// Tells this core to let the connections go that may. What the core has told itself about such a connection
    /// before comes first.
    #[cold]
    pub(super) fn run_moves(&mut self, cx: &mut Context<'_>) {
        let mut moving = std::mem::take(&mut self.moving);
        moving.retain(|&(key, _)| {
            self.with(cx, key, |connection, _, core| {
                if connection.wants_to_depart() {
                    core.send(core.index, Message::Depart { key });
                }
            })
        });
        self.moving.append(&mut moving);
    }

    /// Connections that could not go in time stay.
    #[cold]
    pub(super) fn end_moves(&mut self, cx: &mut Context<'_>) {
        let (late, moving) = std::mem::take(&mut self.moving)
            .into_iter()
            .partition::<Vec<_>, _>(|&(_, since)| since + MOVE_LIMIT <= cx.now);
        self.moving = moving;
        for (key, _) in late {
            self.with(cx, key, |connection, cx, core| connection.end_move(cx, core));
        }
    }

    /// Hands a connection to its new core.
    #[cold]
    pub(super) fn depart(&mut self, cx: &mut Context<'_>, key: ConnKey) {
        let Some(entry) = self.connections.get_mut(key.index as usize) else { return };
        if entry.generation != key.generation || self.stopping {
            return;
        }
        let Some(connection) = &mut entry.connection else { return };
        let Some((to, socket)) = connection.depart(cx) else { return connection.wait_to_depart() };
        connection.leave_share(&mut self.core);
        let packed = entry.connection.take().and_then(|connection| connection.pack());
        let (Some(packed), Some(seat)) = (packed, entry.seat.take()) else { return };
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(key.index);
        self.live -= 1;
        self.moving.retain(|&(other, _)| other != key);
        let shared = Arc::clone(&self.core.shared);
        let (from, generation) = (self.core.place(key), self.core.snapshot.target.generation);
        let traveller = Traveller {
            load: Some((packed, shared.reseat(seat, to))),
            socket: Some(socket),
            from,
            generation,
            lost: lost(shared, from),
        };
        self.core.send(to, Message::Arrive(Box::new(traveller)));
        self.core.shared.note_departure();
    }

    /// Takes over a connection of another core.
    #[cold]
    pub(super) fn arrive(&mut self, cx: &mut Context<'_>, mut traveller: Traveller) {
        let Some(socket) = traveller.socket.take() else { return };
        let Some(index) = (if self.stopping { None } else { self.free_index() }) else { return };
        let socket = match cx.io.adopt(socket) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::warn!(%error, "a connection is lost between two cores");
                return self.free.push(index);
            }
        };
        let Some((packed, seat)) = traveller.load.take() else { return };
        let from = traveller.from;
        let entry = &mut self.connections[index as usize];
        let key = ConnKey { index, generation: entry.generation };
        let to = self.core.place(key);
        self.core.shared.ledger().moved(from, to);
        let (qid, home) = (packed.commands.io.qid, packed.commands.io.home.place);
        self.core.send(home.core, Message::IoMoved { home: home.key, qid, from, to });
        let own = (&mut self.core, cx.now);
        let (connection, waiting) = Connection::unpack(key, socket, packed, own);
        entry.connection = Some(Box::new(connection));
        entry.seat = Some(seat);
        self.live += 1;
        let seen = traveller.generation;
        self.with(cx, key, |connection, cx, core| {
            // This core may have been told of a change while the connection was on its way, or may yet be told.
            if core.snapshot.target.generation > seen {
                connection.handle_snapshot(cx, core);
            }
            connection.update_share(core);
            connection.go_on(cx, core, &waiting);
        });
    }

    /// An I/O queue of a controller has moved.
    #[cold]
    pub(super) fn io_moved(
        &mut self,
        cx: &mut Context<'_>,
        home: ConnKey,
        qid: QueueId,
        (from, to): (Place, Place),
    ) {
        let lives = self.with(cx, home, |connection, _, core| {
            connection.io_queue_moved(core, qid, from, to);
        });
        if !lives {
            self.core.send(to.core, Message::Close { key: to.key });
        }
    }
}

/// Tells the controller of a connection that is lost between two cores.
fn lost(shared: Arc<Shared>, from: Place) -> Box<dyn FnMut(PackedConnection, Seat) + Send> {
    Box::new(move |connection, seat| {
        shared.unplace(seat);
        if connection.admitted {
            shared.depart(connection.ends.peer.ip());
        }
        shared.ledger().detach(from);
        let (qid, home) = (connection.commands.io.qid, connection.commands.io.home.place);
        shared.send(home.core, Message::IoClosed { home: home.key, qid, from });
    })
}
