//! Has all connections of a core rest, for another process to take them over; and takes over those of another one.

use std::collections::HashSet;
use std::sync::Arc;

use raceline_reactor::Context;

use super::PollGroup;
use crate::changes::message::{Leavers, Message, Reply};
use crate::path::connection::Connection;
use crate::path::suspension::{Incoming, Packed, Settled};
use crate::records::names::{ConnKey, Place, Protocol};

/// How far the core is with it.
#[derive(Default)]
pub(super) struct Suspending {
    is_suspended: bool,
    /// Hosts have been told that connections end: how many, and who waits until all of them know.
    notice: Option<(usize, std::sync::mpsc::Sender<usize>)>,
    /// Waits until all connections rest, or cannot.
    settled: Option<std::sync::mpsc::Sender<()>>,
    leaving: Option<Leaving>,
}

/// The end of all connections but those that are handed over.
struct Leaving {
    keep: Arc<HashSet<Place>>,
    /// Waits for it.
    reply: Option<Reply<()>>,
}

impl Suspending {
    pub(super) fn is_active(&self) -> bool {
        self.is_suspended
    }

    pub(super) fn is_giving_notice(&self) -> bool {
        self.notice.is_some()
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }
}

impl PollGroup {
    /// Accepts nothing more, and tells hosts whose connections are about to end.
    #[cold]
    fn give_notice(
        &mut self,
        cx: &mut Context<'_>,
        to: Leavers,
        reply: std::sync::mpsc::Sender<usize>,
    ) {
        if self.stopping {
            return;
        }
        self.pause_listeners(cx, true);
        let mut told = self.ask_for_logouts(cx, to);
        for key in self.keys() {
            self.with(cx, key, |connection, cx, core| {
                told += usize::from(connection.give_notice(cx, core, to));
            });
        }
        self.suspending = Suspending { notice: Some((told, reply)), ..Suspending::default() };
    }

    /// At the end of a turn: whether all who were told know.
    #[cold]
    pub(super) fn run_notice(&mut self, cx: &mut Context<'_>) {
        let mut all_know = self.iscsi.all_have_logged_out();
        for key in self.keys() {
            self.with(cx, key, |connection, _, _| all_know &= connection.knows_notice());
        }
        if all_know && let Some((told, reply)) = self.suspending.notice.take() {
            // The control thread may have given up waiting.
            let _ = reply.send(told);
        }
    }

    #[cold]
    pub(super) fn suspend(&mut self, cx: &mut Context<'_>, settled: std::sync::mpsc::Sender<()>) {
        if self.stopping {
            return;
        }
        self.pause_listeners(cx, true);
        self.suspending =
            Suspending { is_suspended: true, settled: Some(settled), ..Suspending::default() };
        for key in self.keys() {
            self.with(cx, key, Connection::suspend);
        }
    }

    fn pause_listeners(&self, cx: &mut Context<'_>, paused: bool) {
        let Some(io) = cx.io.hands_over() else { return };
        self.listeners.iter().for_each(|listener| io.pause_listener(listener.id, paused));
    }

    /// Goes on, or begins with what [`Self::install`] has made.
    #[cold]
    pub(super) fn resume_all(&mut self, cx: &mut Context<'_>) {
        self.suspending = Suspending::default();
        if self.stopping {
            return;
        }
        self.pause_listeners(cx, false);
        for key in self.keys() {
            self.with(cx, key, Connection::resume_from_suspension);
        }
    }

    /// At the end of a turn: what has come to rest in it.
    #[cold]
    pub(super) fn run_suspension(&mut self, cx: &mut Context<'_>) {
        let mut all_rest = true;
        for key in self.keys() {
            self.with(cx, key, |connection, cx, _| {
                all_rest &= connection.comes_to_rest(cx) || !connection.may_rest();
            });
        }
        if all_rest && let Some(settled) = self.suspending.settled.take() {
            // The control thread may have given up waiting.
            let _ = settled.send(());
        }
        let core = self.core.index;
        let live = (0u32..).zip(&self.connections).filter(|(_, entry)| entry.connection.is_some());
        let mut live = live.map(|(index, entry)| {
            let key = ConnKey { index, generation: entry.generation };
            Place { core, key }
        });
        if let Some(Leaving { keep, reply }) = &mut self.suspending.leaving
            && live.all(|place| keep.contains(&place))
            && self.iscsi.is_empty()
            && let Some(reply) = reply.take()
        {
            let _ = reply.send((core, ()));
        }
    }

    /// The connections that rest, as another process needs them.
    #[cold]
    pub(super) fn pack(&mut self, cx: &mut Context<'_>) -> Vec<Packed> {
        let mut all = Vec::new();
        for key in self.keys() {
            self.with(cx, key, |connection, cx, core| all.extend(connection.hand_over(cx, core)));
        }
        all
    }

    /// Ends all connections but these.
    #[cold]
    pub(super) fn leave(
        &mut self,
        cx: &mut Context<'_>,
        keep: Arc<HashSet<Place>>,
        reply: Reply<()>,
    ) {
        self.suspending.leaving = Some(Leaving { keep: Arc::clone(&keep), reply: Some(reply) });
        for key in self.keys() {
            if !keep.contains(&self.core.place(key)) {
                self.with(cx, key, |connection, cx, _| connection.drain(cx));
            }
        }
        self.drain_iscsi(cx);
    }

    /// Makes a connection of another process, which does nothing yet.
    #[cold]
    pub(super) fn install(
        &mut self,
        cx: &mut Context<'_>,
        incoming: Incoming,
    ) -> Result<Settled, String> {
        let Incoming { ends, seat, socket, queue, home } = incoming;
        debug_assert_eq!(ends.protocol, Protocol::Nvme);
        let index = if self.stopping { None } else { self.free_index() };
        let adopted = index.and_then(|_| cx.io.adopt(socket).ok());
        let (Some(index), Some(socket)) = (index, adopted) else {
            self.free.extend(index);
            self.core.shared.unplace(seat);
            return Err("its socket cannot be used".to_owned());
        };
        let key = ConnKey { index, generation: self.connections[index as usize].generation };
        let core = &mut self.core;
        let made = match queue {
            None => Connection::take_over_fresh(cx, core, (key, socket), ends),
            Some(queue) => Connection::take_over(cx, core, (key, socket), (ends, &queue, home)),
        };
        let (connection, settled) = match made {
            Ok(made) => made,
            Err(why) => {
                self.free.push(index);
                self.core.shared.unplace(seat);
                return Err(why);
            }
        };
        let entry = &mut self.connections[index as usize];
        entry.connection = Some(Box::new(connection));
        entry.seat = Some(seat);
        self.live += 1;
        self.suspending.is_suspended = true;
        self.with(cx, key, |connection, _, core| connection.update_share(core));
        Ok(settled)
    }

    pub(super) fn handle_suspension(&mut self, cx: &mut Context<'_>, message: Message) {
        match message {
            Message::GiveNotice { to, reply } => self.give_notice(cx, to, reply),
            Message::Suspend { reply } => self.suspend(cx, reply),
            Message::Resume => self.resume_all(cx),
            Message::Pack { reply } => {
                let packed = self.pack(cx);
                let _ = reply.send((self.core.index, packed));
            }
            Message::Leave { keep, reply } => self.leave(cx, keep, reply),
            Message::Install { incoming, reply } => {
                let settled = self.install(cx, *incoming);
                let _ = reply.send((self.core.index, settled));
            }
            Message::IoRestored { home, qid, from, counters } => {
                self.with(cx, home, |connection, _, _| {
                    connection.io_queue_restored(qid, from, counters);
                });
            }
            _ => {}
        }
    }
}
