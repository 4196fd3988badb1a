//! How a connection leaves its core for another one.
//!
//! It moves when nothing of it is in flight: no byte that was received and not parsed, no byte that was not sent, no
//! command but writes whose data the host was not asked for. So only its state moves, and the bytes that come meanwhile
//! wait in its socket. The order of its commands stays, since one core after another has it.

use std::time::Instant;

use raceline_proto::nvme::{QueueId, Sqe};
use raceline_proto::tcp::FatalError;
use raceline_reactor::io::SocketId;
use raceline_reactor::{Context, Socket};

use super::{Connection, Role};
use crate::changes::message::Message;
use crate::path::commands::Commands;
use crate::path::core::Core;
use crate::path::inbox::Inbox;
use crate::path::life::{Life, LifeState};
use crate::path::traveller::PackedConnection;
use crate::records::names::{ConnKey, Place};

/// A connection that another core is to have.
pub(crate) struct Moving {
    to: usize,
    /// The core has told itself to let it go.
    departing: bool,
}

impl Connection {
    /// Another core is to have the connection, if it is an I/O queue in use. It receives no more here. Gives whether it
    /// moves. A connection over RDMA stays where its queue pair is.
    pub(crate) fn begin_move(&mut self, core: &mut Core, to: usize) -> bool {
        let in_use = matches!(self.role, Role::Io)
            && self.life.state == LifeState::Open
            && !self.ends.is_rdma;
        let moves =
            in_use && !self.life.draining && self.moving.is_none() && self.suspended.is_none();
        if moves {
            self.moving = Some(Moving { to, departing: false });
            self.commands.begin_move(core);
        }
        moves
    }

    /// It stays after all.
    pub(crate) fn end_move(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        if self.moving.take().is_some() {
            self.commands.end_move(cx, core);
            self.start_recv(cx);
        }
    }

    /// Whether it is to move, and no command that it has needs more bytes.
    pub(super) fn holds_back(&self) -> bool {
        match &self.suspended {
            Some(_) => !self.needs_bytes(),
            None => self.moving.is_some() && !self.commands.await_bytes(),
        }
    }

    /// Whether it is to move, and nothing of it is in flight.
    pub(crate) fn may_depart(&self) -> bool {
        self.moving.is_some()
            && self.life.state == LifeState::Open
            && !self.life.draining
            && self.life.awaiting == 0
            && self.inbox.is_idle()
            && self.commands.may_move()
            && self.commands.out.is_idle()
    }

    /// Whether it is time for the core to tell itself to let the connection go; true once.
    pub(crate) fn wants_to_depart(&mut self) -> bool {
        self.may_depart()
            && self.moving.as_mut().is_some_and(|m| !std::mem::replace(&mut m.departing, true))
    }

    /// It could not go now, and tries again.
    pub(crate) fn wait_to_depart(&mut self) {
        if let Some(moving) = &mut self.moving {
            moving.departing = false;
        }
    }

    /// Gives its socket up. Gives that and where it goes; `None`: it cannot go yet.
    pub(crate) fn depart(&mut self, cx: &mut Context<'_>) -> Option<(usize, Socket)> {
        let to = self.moving.as_ref().filter(|_| self.may_depart())?.to;
        let socket = cx.io.release(self.socket, (self.ends.local, self.ends.peer))?;
        Some((to, socket))
    }

    /// What another core needs to go on, after [`Self::depart`].
    pub(crate) fn pack(self) -> Option<PackedConnection> {
        let Self { ends, admitted, is_carried, commands, .. } = self;
        Some(PackedConnection { ends, admitted, is_carried, commands: commands.pack()? })
    }

    /// A connection that has come from another core, and its writes that have yet to begin.
    pub(crate) fn unpack(
        key: ConnKey,
        socket: SocketId,
        packed: PackedConnection,
        (core, now): (&mut Core, Instant),
    ) -> (Self, Vec<Sqe>) {
        let PackedConnection { ends, admitted, is_carried, commands } = packed;
        let (commands, waiting) = Commands::unpack(key, commands, core);
        core.digests |= commands.out.queue.data_digest();
        let mut inbox = Inbox::of(&core.shared.config, &ends);
        inbox.set_queue(false);
        let (role, life) = (Role::Io, Life::of_queue(now));
        let moving = None;
        let connection = Self {
            key,
            socket,
            ends,
            life,
            admitted,
            role,
            inbox,
            commands,
            moving,
            is_carried,
            suspended: None,
        };
        (connection, waiting)
    }

    /// Goes on after a move, with the writes that have waited for it.
    pub(crate) fn go_on(&mut self, cx: &mut Context<'_>, core: &mut Core, waiting: &[Sqe]) {
        if self.life.state == LifeState::Open
            && let Err(violation) = self.commands.take_again(cx, core, waiting)
        {
            self.fatal(cx, core, &FatalError::new(violation));
        }
        self.start_recv(cx);
    }

    /// An I/O queue of the controller that lives here has moved.
    pub(crate) fn io_queue_moved(&mut self, core: &Core, qid: QueueId, from: Place, to: Place) {
        let closing = self.life.state == LifeState::Closing;
        let known = match &mut self.role {
            Role::Admin(association) => association.queue_moved(qid, from, to),
            _ => None,
        };
        // What was told to close at its former place did not hear it.
        if closing || known != Some(true) {
            core.send(to.core, Message::Close { key: to.key });
        }
    }
}
