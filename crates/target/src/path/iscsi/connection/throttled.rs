//! Commands that wait because of a limit. The socket is read on, so that pings and task management are answered.
//!
//! A command that has to wait holds none of the pool's buffers: it asks for its data when its time has come. Data that
//! come without being asked for land in memory outside the pool; the window limits how many commands have such.

use std::time::Instant;

use raceline_reactor::{Context, IoBuf};
use raceline_scsi::Check;

use super::{Connection, LifeState};
use crate::path::core::Core;
use crate::path::iscsi::execute::{Kind, Work};
use crate::path::iscsi::slots::Phase;
use crate::records::limited::Levels;
use crate::records::names::SlotKey;
use crate::records::throttle::Cost;

/// The commands of a connection that wait because of a limit.
#[derive(Default)]
pub(crate) struct Throttled {
    waiting: Vec<Held>,
}

/// A command that waits.
struct Held {
    key: SlotKey,
    begins: Instant,
    cost: Cost,
    levels: Levels,
}

impl Held {
    /// The command does not begin as it was to: gives back what it has reserved.
    fn refund(&self) {
        self.levels.iter().for_each(|throttle| throttle.refund(self.cost));
    }
}

impl Throttled {
    /// When the first of them may begin.
    pub(super) fn next(&self) -> Option<Instant> {
        self.waiting.iter().map(|held| held.begins).min()
    }

    /// Whether the command waits.
    pub(super) fn holds(&self, key: SlotKey) -> bool {
        self.waiting.iter().any(|held| held.key == key)
    }

    /// The command ends before its time.
    pub(super) fn forget(&mut self, key: SlotKey) {
        if let Some(place) = self.waiting.iter().position(|held| held.key == key) {
            self.waiting.swap_remove(place).refund();
        }
    }

    /// A command whose time has come: the one that was to begin first.
    fn pop(&mut self, now: Instant) -> Option<SlotKey> {
        let all = self.waiting.iter().enumerate();
        let due = all.filter(|(_, held)| held.begins <= now);
        let (first, _) = due.min_by_key(|(_, held)| held.begins)?;
        Some(self.waiting.swap_remove(first).key)
    }
}

/// What a command takes of limits; `None`: it moves no data of blocks, and is not limited.
fn cost(work: &Work) -> Option<Cost> {
    let is_write = match work.kind {
        Kind::Read | Kind::Verify(Check::Data | Check::OneBlock) => false,
        Kind::Write | Kind::WriteAndVerify(_) | Kind::OrWrite | Kind::CompareAndWrite => true,
        _ => return None,
    };
    Some(Cost { is_write, bytes: work.bytes.into() })
}

impl Connection {
    /// A command that is described has limits: reserves what it takes of them. Gives whether it waits for its time.
    #[cold]
    pub(super) fn waits(&mut self, cx: &mut Context<'_>, core: &mut Core, key: SlotKey) -> bool {
        if !self.reserve(cx, core, key) {
            return false;
        }
        let Some(slot) = self.slots.get(key) else { return false };
        if slot.unsolicited > 0 && slot.expected > 0 {
            let buf = IoBuf::sparse(slot.expected);
            self.give_buffer(cx, core, key, buf);
        } else {
            slot.phase = Phase::Throttled;
        }
        true
    }

    /// Reserves what a command takes of limits. Gives whether that is later.
    fn reserve(&mut self, cx: &mut Context<'_>, core: &Core, key: SlotKey) -> bool {
        let Some(slot) = self.slots.get(key) else { return false };
        let (number, cost) = (slot.lun, cost(&slot.work));
        let session = self.session.as_ref();
        let levels = session.and_then(|session| session.lun_as_seen(number)?.levels.clone());
        let Some((levels, cost)) = levels.zip(cost) else { return false };
        let clock = &core.shared.qos_clock;
        let now_ns = clock.ns(cx.now);
        let starts = levels.iter().map(|throttle| throttle.reserve(core.index, now_ns, cost));
        let begins_ns = starts.max().unwrap_or(now_ns);
        if begins_ns <= now_ns {
            return false;
        }
        let waits = &core.shared.iscsi_waits[core.index];
        waits.count.add(1);
        waits.us.add((begins_ns - now_ns).div_ceil(1000));
        let begins = clock.at(begins_ns, cx.now);
        self.throttled.waiting.push(Held { key, begins, cost, levels });
        self.arm_timers(cx, core);
        true
    }

    /// Begins the commands whose time has come.
    pub(super) fn run_throttled(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        while let Some(key) = self.throttled.pop(cx.now) {
            self.begin_held(cx, core, key);
        }
    }

    /// Nothing holds the command any more.
    fn begin_held(&mut self, cx: &mut Context<'_>, core: &mut Core, key: SlotKey) {
        // Unsolicited data may still be coming: then the command goes on when they are here.
        let slot = self.slots.get(key).filter(|slot| slot.phase == Phase::Throttled);
        let Some(slot) = slot else { return };
        if slot.buf.is_none() {
            return self.begin_with_data(cx, core, key);
        }
        slot.phase = Phase::Data;
        self.measure(core, cx.now, key);
        self.data_here(cx, core, key);
    }

    /// The limits are others: the commands that wait go by the new ones.
    pub(super) fn limit_anew(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        for held in std::mem::take(&mut self.throttled.waiting) {
            held.refund();
            if self.state >= LifeState::Ending {
                continue;
            }
            if !self.reserve(cx, core, held.key) {
                self.begin_held(cx, core, held.key);
            }
        }
    }
}
