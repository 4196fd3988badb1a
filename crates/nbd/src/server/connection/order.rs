//! When the first change of a connection begins: after all that earlier connections have left.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use raceline_reactor::Context;

use super::super::core::Devices;
use super::super::order::{Hold, Wait};
use super::super::pace::Way;
use super::{Connection, Ending, Phase};
use crate::protocol::wire::REQUEST_LEN;

/// How long the first change waits for what earlier connections have left at the device.
const ORDER_TIME: Duration = Duration::from_secs(600);

/// Whether the first change may begin.
pub(super) enum Order {
    /// It has not come.
    Open,
    /// It waits for what earlier connections have left.
    Waits(Wait),
    /// Nothing is in its way.
    Settled,
}

impl Connection {
    /// Waits for what earlier connections have left, before the first change.
    pub(super) fn put_in_order(&mut self, cx: &mut Context<'_>, devices: &Devices) {
        let Phase::Serving(agreed, _) = &self.phase else { return };
        if matches!(self.order, Order::Open) {
            self.order_until = Some(cx.now + ORDER_TIME);
            let who = (self.index(), self.place.number());
            self.order = Order::Waits(devices.peers.ask(agreed.export, who));
        }
    }

    /// Goes on with the first change, if nothing is in its way any more.
    pub(in super::super) fn look_whether_settled(
        &mut self,
        cx: &mut Context<'_>,
        devices: &mut Devices,
    ) {
        let Order::Waits(wait) = &mut self.order else { return };
        if self.ending == Ending::Closed {
            return wait.ask_nobody();
        }
        devices.peers.ask_rest(wait);
        if wait.is_over() {
            self.order = Order::Settled;
            self.order_until = None;
            self.process(cx, devices);
        }
    }

    /// Keeps a later connection back, if something has come that has not begun.
    ///
    /// Only a later one: so of two that have changes to begin, one does not wait for the other.
    pub(in super::super) fn keep_back(
        &mut self,
        cx: &mut Context<'_>,
        export: usize,
        hold: &Arc<Hold>,
    ) {
        let is_of_export = self.serving().is_some_and(|(agreed, _)| agreed.export == export);
        let is_earlier = self.place.number() < hold.number();
        if !is_of_export || !is_earlier || self.ending != Ending::Open {
            return;
        }
        let unread = cx.io.unread(self.socket) as u64;
        if unread > 0 || self.waiting.is_some() {
            self.has_gone_on = false;
            self.behind.hold(Arc::clone(hold), self.came + unread);
        }
    }

    /// Lets those go on that wait for this connection, when all that had come has begun or never will.
    pub(in super::super) fn let_go(&mut self, devices: &mut Devices) {
        if self.behind.is_empty() {
            return;
        }
        if self.ending != Ending::Open {
            return self.let_all_go(devices);
        }
        let begins = match self.waiting {
            // All before the request that waits has begun.
            Some(_) => self.came - self.staged.len() as u64 - REQUEST_LEN as u64,
            None => self.came,
        };
        self.let_past(devices, begins);
    }

    /// The same, once in a while. How much has come over TLS is not known exactly, and what a client has not sent whole may
    /// never be. Nobody waits for that.
    pub(in super::super) fn let_go_in_time(&mut self, devices: &mut Devices) {
        // While bytes still come in, all that had come is still on its way.
        let stands_still = std::mem::replace(&mut self.came_before, self.came) == self.came;
        let goes_on = self.waiting.is_none() && stands_still;
        if goes_on && std::mem::replace(&mut self.has_gone_on, goes_on) {
            self.let_all_go(devices);
        }
        self.has_gone_on = goes_on;
    }

    fn let_all_go(&mut self, devices: &mut Devices) {
        self.let_past(devices, u64::MAX);
    }

    /// Who waited for these bytes waits for what this connection has begun, as for what all others have.
    fn let_past(&mut self, devices: &mut Devices, bytes: u64) {
        let export = self.serving().map(|(agreed, _)| agreed.export);
        if let Some(changes) = export.and_then(|export| devices.changes.get_mut(export)) {
            while let Some(hold) = self.behind.let_past(bytes) {
                changes.hold(hold);
            }
        }
    }

    /// Whether later connections wait for this one, which waits for memory that connections share.
    pub(in super::super) fn needs_memory_for_others(&self) -> bool {
        self.wants_memory && self.is_waiting() && !self.behind.is_empty()
    }

    /// Ends it if others have waited for its client for too long. They may go on then: what was not begun never will be.
    ///
    /// It is in their way while its request waits for a place, as its replies are not taken; and while another connection
    /// waits for memory that it holds. What is at the device is not its client's doing.
    pub(in super::super) fn end_if_in_the_way(
        &mut self,
        cx: &mut Context<'_>,
        is_memory_needed: bool,
        time: Duration,
    ) {
        if self.ending == Ending::Closed {
            return;
        }
        let waits_for_itself = self.is_waiting()
            && !self.wants_memory
            && !self.behind.is_empty()
            && !matches!(self.order, Order::Waits(_));
        let is_in_the_way = waits_for_itself || (is_memory_needed && self.held.is_shared());
        let is_slow = self.sends_on.is_due() || self.receives.is_due();
        let moved = self.received + self.sent.load(Ordering::Relaxed);
        let way = match is_in_the_way && is_slow {
            true => Way::Client(moved),
            false if self.behind.is_empty() && !is_memory_needed => Way::Free,
            false => Way::Device,
        };
        if self.needed.is_late(cx.now, way, time) {
            let peer = self.place.peer();
            tracing::warn!(
                peer,
                "an NBD connection was closed: its client takes replies or sends data too slowly, and the first changes of \
                 later connections wait for that"
            );
            self.close(cx);
        }
    }
}
