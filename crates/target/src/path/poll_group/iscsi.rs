//! The iSCSI connections of a core, beside those of NVMe/TCP.
//!
//! Their operations have an owner of their own ([`ISCSI_OWNER`]) and their indexes a bit of their own
//! ([`ISCSI_BIT`]), so what arrives for an NVMe/TCP connection is never asked whether it is for them.

use std::ops::Range;

use raceline_bdev::Done;
use raceline_proto::reservation::Registrant;
use raceline_reactor::{Completion, Context, Outcome, Socket};

use super::PollGroup;
use crate::changes::iscsi_message::{IscsiMessage, Scope};
use crate::changes::message::Leavers;
use crate::changes::snapshot::DeviceId;
use crate::path::core::Core;
use crate::path::iscsi::connection::{Connection, STEP_BYTES};
use crate::path::range_lock::LockId;
use crate::records::early::Ticket;
use crate::records::names::{CommandPlace, ConnKey, Ends, LocalCommand, Tag};
use crate::records::placement::Seat;

/// Token generation of the timer that begins the next pass over deferred connections; its index names none.
const NEXT_PASS: u32 = 0;

impl PollGroup {
    /// Runs `f` on a connection, if it still lives, and removes the connection if it has ended.
    #[inline]
    fn with_iscsi(
        &mut self,
        cx: &mut Context<'_>,
        key: ConnKey,
        f: impl FnOnce(&mut Connection, &mut Context<'_>, &mut Core),
    ) -> bool {
        self.iscsi.with(cx, &mut self.core, key, f)
    }

    /// A connection that was accepted belongs to this core.
    pub(super) fn adopt_iscsi(
        &mut self,
        cx: &mut Context<'_>,
        seat: Seat,
        socket: Socket,
        (ends, ticket): (Ends, Ticket),
    ) {
        let socket = if self.stopping { None } else { cx.io.adopt(socket).ok() };
        let adopted =
            socket.is_some_and(|socket| self.iscsi.add(cx, &mut self.core, (socket, ends, ticket)));
        if adopted {
            self.iscsi.seat_last(seat);
        } else {
            self.core.shared.leave(ticket);
            self.core.shared.unplace(seat);
        }
    }

    pub(super) fn drain_iscsi(&mut self, cx: &mut Context<'_>) {
        self.iscsi.stop();
        self.each_iscsi(cx, |connection, cx, core| connection.drain(cx, core));
    }

    /// Asks all initiators to log out; gives how many have been asked.
    pub(super) fn ask_for_logouts(&mut self, cx: &mut Context<'_>, why: Leavers) -> usize {
        let asked = std::cell::Cell::new(0);
        self.each_iscsi(cx, |connection, cx, core| {
            asked.set(asked.get() + usize::from(connection.give_notice(cx, core, why)));
        });
        asked.get()
    }

    /// What exists has changed.
    pub(super) fn show_iscsi(&mut self, cx: &mut Context<'_>) {
        self.each_iscsi(cx, |connection, cx, core| {
            connection.handle_snapshot(cx, core);
            connection.update_share(core);
        });
    }

    fn each_iscsi(
        &mut self,
        cx: &mut Context<'_>,
        f: impl Fn(&mut Connection, &mut Context<'_>, &mut Core),
    ) {
        for key in self.iscsi.keys() {
            self.with_iscsi(cx, key, &f);
        }
    }

    /// A device has finished a request that no NVMe/TCP connection made.
    #[inline(never)]
    pub(super) fn run_foreign(&mut self, cx: &mut Context<'_>, tag: Tag, done: Done) {
        if let Some(number) = tag.other_number() {
            return self.core.wipe_on(cx, number, done.result);
        }
        if !self.iscsi.handle_done(cx, &mut self.core, tag, done) {
            super::report_stale("a device");
        }
    }

    /// A lowered fence lets a command go.
    pub(super) fn unfence_iscsi(&mut self, cx: &mut Context<'_>, command: LocalCommand) {
        self.with_iscsi(cx, command.key, |connection, cx, core| {
            connection.handle_unfenced(cx, core, command.slot);
        });
    }

    /// An I/O buffer is there for a command.
    pub(super) fn serve_iscsi(
        &mut self,
        cx: &mut Context<'_>,
        command: LocalCommand,
        sizes: Range<usize>,
    ) {
        self.with_iscsi(cx, command.key, |connection, cx, core| {
            connection.serve(cx, core, command.slot, sizes);
        });
    }

    pub(super) fn iscsi_gives_way(&mut self, cx: &mut Context<'_>, key: ConnKey) {
        self.with_iscsi(cx, key, |connection, cx, core| connection.give_way(cx, core));
    }

    pub(super) fn lock_iscsi(
        &mut self,
        cx: &mut Context<'_>,
        to: CommandPlace,
        (device, lock): (DeviceId, Option<LockId>),
    ) {
        let lives = self.with_iscsi(cx, to.conn.key, |connection, cx, core| {
            connection.handle_lock(cx, core, to.slot, (device, lock));
        });
        if !lives {
            self.core.unlock(device, lock);
        }
    }

    pub(super) fn iscsi_completion(&mut self, cx: &mut Context<'_>, completion: Completion) {
        let token = completion.token;
        let key = ConnKey { index: token.index, generation: token.generation };
        match completion.outcome {
            Outcome::Received(result, buffers) => {
                self.with_iscsi(cx, key, |connection, cx, core| {
                    connection.handle_received(cx, core, result, buffers);
                });
            }
            Outcome::Sent(result, batch) => {
                self.with_iscsi(cx, key, |connection, cx, core| {
                    connection.handle_sent(cx, core, result, batch);
                });
            }
            Outcome::Timer if token.index == NEXT_PASS => self.resume_iscsi(cx),
            Outcome::Timer => {
                self.with_iscsi(cx, key, |connection, cx, core| connection.handle_timer(cx, core));
            }
            _ => debug_assert!(false, "iSCSI connections start no such operation"),
        }
    }

    /// Connections that had their share of the last pass go on.
    fn resume_iscsi(&mut self, cx: &mut Context<'_>) {
        self.core.iscsi.next_pass = false;
        let mut keys = std::mem::take(&mut self.core.iscsi.deferred);
        for key in keys.drain(..) {
            self.with_iscsi(cx, key, |connection, cx, core| connection.resume(cx, core));
        }
        if self.core.iscsi.deferred.is_empty() {
            self.core.iscsi.deferred = keys;
        }
        let mut resting = std::mem::take(&mut self.core.iscsi.resting).into_iter();
        let mut is_first = true;
        // The first one goes on in any case, so that each gets on.
        while std::mem::take(&mut is_first) || cx.io.flight().turn.take(cx.now, STEP_BYTES) {
            let Some((key, slot)) = resting.next() else { break };
            self.with_iscsi(cx, key, |connection, cx, core| {
                connection.part_done(cx, core, slot, Ok(()), None);
            });
        }
        // Those that have rested for longer are first.
        let newer = std::mem::replace(&mut self.core.iscsi.resting, resting.collect());
        self.core.iscsi.resting.extend(newer);
    }

    /// Sends what connections have gathered.
    #[inline]
    pub(super) fn flush_iscsi(&mut self, cx: &mut Context<'_>) {
        if !self.core.iscsi.is_idle() {
            self.flush_dirty_iscsi(cx);
        }
    }

    #[inline(never)]
    fn flush_dirty_iscsi(&mut self, cx: &mut Context<'_>) {
        if self.core.iscsi.ended {
            self.iscsi.check_endings(&mut self.core);
        }
        let mut keys = std::mem::take(&mut self.core.iscsi.dirty);
        for key in keys.drain(..) {
            self.with_iscsi(cx, key, |connection, cx, _| connection.flush(cx));
        }
        if self.core.iscsi.dirty.is_empty() {
            self.core.iscsi.dirty = keys;
        }
        let iscsi = &mut self.core.iscsi;
        let waits = !iscsi.deferred.is_empty() || !iscsi.resting.is_empty();
        if waits && !std::mem::replace(&mut self.core.iscsi.next_pass, true) {
            let token = raceline_reactor::Token {
                owner: crate::records::names::ISCSI_OWNER,
                generation: 0,
                index: NEXT_PASS,
            };
            // This timer expires at once, and is handled after all other events of the next poll.
            cx.io.timer(cx.now, token);
        }
    }

    /// Ends the commands of those of the preempted that are I_T nexuses, unless that was done before; counts those that
    /// are still with the device.
    pub(super) fn abort_preempted_iscsi(
        &mut self,
        cx: &mut Context<'_>,
        device: DeviceId,
        preempted: &[Registrant],
        again: bool,
    ) -> usize {
        let nexuses = preempted.iter().filter_map(Registrant::as_nexus).cloned();
        let nexuses: Vec<_> = nexuses.collect();
        if nexuses.is_empty() {
            return 0;
        }
        let scope = Scope::Nexuses(device, nexuses.into());
        if !again {
            // What comes later is judged by the new reservation: it is not to be aborted.
            self.each_iscsi(cx, |connection, _, core| connection.abort_scope(core, &scope));
        }
        self.iscsi.count_aborted(&self.core, &scope)
    }

    pub(super) fn handle_iscsi(&mut self, cx: &mut Context<'_>, message: IscsiMessage) {
        match message {
            IscsiMessage::GiveUp { key, to } => {
                let lives = self.with_iscsi(cx, key, |connection, cx, core| {
                    connection.give_up(cx, core, to);
                });
                if !lives {
                    let gone = IscsiMessage::PredecessorGone { to: to.key };
                    self.core.send(to.core, crate::changes::message::Message::Iscsi(gone));
                }
            }
            IscsiMessage::PredecessorGone { to } => {
                self.with_iscsi(cx, to, |connection, cx, core| {
                    connection.predecessor_gone(cx, core);
                });
            }
            IscsiMessage::RequestLogout { node, portal_group } => {
                self.each_iscsi(cx, |connection, cx, core| {
                    connection.request_logout(cx, core, &node, portal_group);
                });
            }
            IscsiMessage::Abort { scope, from, number } => {
                self.each_iscsi(cx, |connection, _, core| {
                    connection.abort_scope(core, &scope);
                });
                self.iscsi.await_end(&mut self.core, scope, from, number);
            }
            IscsiMessage::Aborted { to, number } => {
                self.with_iscsi(cx, to, |connection, cx, core| {
                    connection.aborted(cx, core, number);
                });
            }
            IscsiMessage::Reserved { to, result } => {
                self.with_iscsi(cx, to.conn.key, |connection, _, core| {
                    connection.reserved(core, to.slot, &result);
                });
            }
            IscsiMessage::CloseNode { node } => {
                self.each_iscsi(cx, |connection, cx, core| {
                    connection.close_node(cx, core, &node);
                });
            }
        }
    }
}
