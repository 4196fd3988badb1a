//! The iSCSI connections of one core, by their keys.

use std::ops::Range;

use raceline_bdev::Done;
use raceline_reactor::Context;
use raceline_reactor::io::SocketId;

use super::connection::Connection;
use crate::changes::iscsi_message::{IscsiMessage, Scope};
use crate::changes::message::Message;
use crate::changes::snapshot::DeviceId;
use crate::path::core::Core;
use crate::records::early::Ticket;
use crate::records::names::{ConnKey, Ends, ISCSI_BIT, MAX_ISCSI_CONNECTIONS, Place, Tag};
use crate::records::placement::Seat;

struct Entry {
    generation: u16,
    connection: Option<Box<Connection>>,
    /// Taken with the connection, given back when the connection is gone.
    seat: Option<Seat>,
}

/// A task management function that waits for commands of this core.
struct Ending {
    scope: Scope,
    from: Place,
    number: u32,
}

/// The iSCSI connections of one core.
#[derive(Default)]
pub(crate) struct IscsiGroup {
    entries: Vec<Entry>,
    free: Vec<u32>,
    live: usize,
    stopping: bool,
    endings: Vec<Ending>,
    /// Index of the connection that was added last.
    last: usize,
}

impl IscsiGroup {
    pub(crate) fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// The target stops: connections close when their commands have ended.
    pub(crate) fn stop(&mut self) {
        self.stopping = true;
    }

    /// Whether all initiators that were asked to log out have done so.
    pub(crate) fn all_have_logged_out(&self) -> bool {
        !self.connections().any(Connection::is_asked)
    }

    /// Adds a connection; false: there are as many as tags can name.
    pub(crate) fn add(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        (socket, ends, ticket): (SocketId, Ends, Ticket),
    ) -> bool {
        let Some(index) = self.free_index() else {
            cx.io.close(socket, true);
            return false;
        };
        core.iscsi.epoch.get_or_insert(cx.now);
        let entry = &mut self.entries[index as usize];
        let key = ConnKey { index: index | ISCSI_BIT, generation: entry.generation };
        core.shared.settle(ticket, core.place(key));
        entry.connection = Some(Box::new(Connection::new(cx, core, key, (socket, ends, ticket))));
        self.last = index as usize;
        self.live += 1;
        true
    }

    /// The seat of the connection that was added last.
    pub(crate) fn seat_last(&mut self, seat: Seat) {
        self.entries[self.last].seat = Some(seat);
    }

    fn free_index(&mut self) -> Option<u32> {
        if let Some(index) = self.free.pop() {
            return Some(index);
        }
        let index = u32::try_from(self.entries.len()).ok();
        let Some(index) = index.filter(|index| *index < MAX_ISCSI_CONNECTIONS) else {
            tracing::warn!(max = MAX_ISCSI_CONNECTIONS, "a core has as many connections as it can");
            return None;
        };
        self.entries.push(Entry { generation: 0, connection: None, seat: None });
        Some(index)
    }

    /// The connections that there are.
    pub(crate) fn keys(&self) -> Vec<ConnKey> {
        let indexed = (0u32..).zip(&self.entries);
        indexed
            .filter(|(_, entry)| entry.connection.is_some())
            .map(|(index, entry)| ConnKey {
                index: index | ISCSI_BIT,
                generation: entry.generation,
            })
            .collect()
    }

    /// Runs `f` on a connection, if it still lives, and removes the connection if it has ended.
    #[inline]
    pub(crate) fn with(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        key: ConnKey,
        f: impl FnOnce(&mut Connection, &mut Context<'_>, &mut Core),
    ) -> bool {
        self.with_index(cx, core, key.index, |generation| generation == key.generation, f)
    }

    #[inline]
    fn with_index(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        index: u32,
        is_wanted: impl FnOnce(u16) -> bool,
        f: impl FnOnce(&mut Connection, &mut Context<'_>, &mut Core),
    ) -> bool {
        let index = index & !ISCSI_BIT;
        let Some(entry) = self.entries.get_mut(index as usize) else { return false };
        if !is_wanted(entry.generation) {
            return false;
        }
        let Some(connection) = &mut entry.connection else { return false };
        f(connection, cx, core);
        if self.stopping && connection.is_drained() {
            connection.close(cx, core, "the target is shutting down");
        }
        if connection.is_gone() {
            connection.leave(core);
            connection.leave_share(core);
            entry.connection = None;
            entry.generation = entry.generation.wrapping_add(1);
            self.free.push(index);
            self.live -= 1;
            // Commands of its may have been waited for.
            core.iscsi.ended = true;
            if let Some(seat) = entry.seat.take() {
                core.shared.unplace(seat);
            }
        }
        true
    }

    /// A device request has finished. Gives whether a command was waiting for that.
    #[inline]
    pub(crate) fn handle_done(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        tag: Tag,
        done: Done,
    ) -> bool {
        let mut expected = false;
        let is_wanted = |generation| tag.is_of(generation);
        self.with_index(cx, core, tag.connection, is_wanted, |connection, cx, core| {
            expected = connection.handle_done(cx, core, tag.slot, done);
        });
        expected
    }

    fn connections(&self) -> impl Iterator<Item = &Connection> {
        self.entries.iter().filter_map(|entry| entry.connection.as_deref())
    }

    /// Counts the writes within the range that are at their device now.
    pub(crate) fn changing(&self, device: DeviceId, bytes: &Range<u64>) -> usize {
        self.connections().map(|connection| connection.changing(device, bytes)).sum()
    }

    /// Counts the sessions of which commands in the scope were told to end and have not.
    pub(crate) fn count_aborted(&self, core: &Core, scope: &Scope) -> usize {
        self.connections().filter(|connection| connection.has_aborted(scope, core.index)).count()
    }

    /// The commands in the scope have been told to end: answers when the last of them has.
    pub(crate) fn await_end(&mut self, core: &mut Core, scope: Scope, from: Place, number: u32) {
        self.endings.push(Ending { scope, from, number });
        self.check_endings(core);
    }

    /// Answers the task management functions whose commands have all ended.
    pub(crate) fn check_endings(&mut self, core: &mut Core) {
        core.iscsi.ended = false;
        let endings = std::mem::take(&mut self.endings);
        for ending in endings {
            let waits = self
                .connections()
                .any(|connection| connection.has_aborted(&ending.scope, core.index));
            if waits {
                self.endings.push(ending);
            } else {
                let to = ending.from.key;
                let answer = IscsiMessage::Aborted { to, number: ending.number };
                core.send(ending.from.core, Message::Iscsi(answer));
            }
        }
    }
}
