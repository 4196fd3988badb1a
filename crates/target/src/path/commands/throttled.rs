//! Commands that wait because of a limit: they hold neither a buffer nor, if it can be helped, data.

use std::collections::VecDeque;

use raceline_proto::controller::{IoCommand, parse_io};
use raceline_proto::nvme::{Direction, Transfer};
use raceline_reactor::{Context, Token};

use super::Commands;
use crate::changes::snapshot::{DeviceId, Parsed};
use crate::path::core::Core;
use crate::path::slots::{CommandSlot, Phase};
use crate::records::limited::Levels;
use crate::records::names::SlotKey;
use crate::records::throttle::Cost;

/// Bit in the index of a token that marks the timer of commands that wait here.
pub(crate) const THROTTLE_BIT: u32 = 1 << 30;

/// The commands of a connection that wait because of a limit, in the order in which they came.
#[derive(Default)]
pub(crate) struct Throttled {
    waiting: VecDeque<Held>,
    /// When the timer that is set expires.
    timer_ns: Option<u64>,
}

/// A command that waits.
struct Held {
    key: SlotKey,
    device: DeviceId,
    begins_ns: u64,
    cost: Cost,
    levels: Levels,
}

impl Held {
    /// The command does not begin as it was to: gives back what it has reserved.
    fn refund(&self) {
        self.levels.iter().for_each(|throttle| throttle.refund(self.cost));
    }
}

/// What a command takes of limits; `None`: it moves no data of blocks, and is not limited.
fn cost(command: &IoCommand, transfer: Transfer) -> Option<Cost> {
    let is_write = match command {
        IoCommand::Read { .. } | IoCommand::Compare { .. } => false,
        IoCommand::Write { .. } => true,
        _ => return None,
    };
    Some(Cost { is_write, bytes: transfer.len.into() })
}

impl Commands {
    /// A command for a namespace that another host has reserved or that has limits: begins it, has it wait, or refuses
    /// it.
    #[cold]
    pub(super) fn begin_apart(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
        rest: &[u8],
    ) {
        let Some(io) = &self.io else { return };
        let (parsed, levels) = match io.visible.parse_apart(&self.slots.get(command.key()).sqe) {
            Ok(parsed) => parsed,
            Err(status) => return self.fused_refuse(core, command, status),
        };
        let Parsed { command: what, transfer, device, block_size } = parsed;
        let cost = cost(&what, transfer).filter(|_| !levels.is_empty());
        let described = self.describe(core, command, (what, transfer), device, block_size);
        let Some(command) = described else { return };
        if let Some(cost) = cost
            && self.waits(cx, core, (command.key(), device), &levels, cost)
        {
            return;
        }
        self.begin_with_data(cx, core, command, device, rest);
    }

    /// Reserves what the command takes of its limits. Gives whether it waits for its time.
    fn waits(
        &mut self,
        cx: &mut Context<'_>,
        core: &Core,
        (key, device): (SlotKey, DeviceId),
        levels: &Levels,
        cost: Cost,
    ) -> bool {
        let now_ns = core.shared.qos_clock.ns(cx.now);
        let starts = levels.iter().map(|throttle| throttle.reserve(core.index, now_ns, cost));
        let begins_ns = starts.max().unwrap_or(now_ns);
        let slot = self.slots.get(key);
        let in_capsule = slot.in_capsule;
        // Half of a fused operation must not wait alone. And while others are owed data, the data of this command stand
        // before theirs on the socket, which must be read. Both have reserved what they take.
        let must_go = slot.half.is_some() || in_capsule && self.are_owed_data();
        if begins_ns <= now_ns || must_go {
            return false;
        }
        self.slots.get(key).phase = Phase::Throttled;
        if in_capsule {
            self.paused = Some(key);
        }
        self.out.counters.throttled.add(1);
        self.out.counters.throttled_us.add((begins_ns - now_ns).div_ceil(1000));
        let held = Held { key, device, begins_ns, cost, levels: Levels::clone(levels) };
        self.throttled.waiting.push_back(held);
        self.arm_throttled(cx, core, begins_ns);
        true
    }

    /// Makes sure that the commands that wait are looked at then.
    fn arm_throttled(&mut self, cx: &mut Context<'_>, core: &Core, at_ns: u64) {
        if self.throttled.timer_ns.is_some_and(|armed| armed <= at_ns) {
            return;
        }
        self.throttled.timer_ns = Some(at_ns);
        let (index, generation) = (self.key.index | THROTTLE_BIT, self.key.generation);
        let at = core.shared.qos_clock.at(at_ns, cx.now);
        cx.io.timer(at, Token { owner: 0, generation, index });
    }

    /// Begins the commands whose time has come.
    pub(crate) fn run_throttled(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        self.throttled.timer_ns = None;
        let now_ns = core.shared.qos_clock.ns(cx.now);
        let mut left = std::mem::take(&mut self.throttled.waiting);
        let all = left.len();
        for _ in 0..all {
            let Some(held) = left.pop_front() else { break };
            if held.begins_ns > now_ns {
                left.push_back(held);
                continue;
            }
            if let Some(command) = self.resume_throttled(held.key) {
                self.begin_with_data(cx, core, command, held.device, &[]);
            }
        }
        // What began may have had others wait.
        left.append(&mut self.throttled.waiting);
        self.throttled.waiting = left;
        let next = self.throttled.waiting.iter().map(|held| held.begins_ns).min();
        if let Some(next) = next {
            self.arm_throttled(cx, core, next);
        }
    }

    /// The command, if it still waits here: one that began before may have let it go.
    fn resume_throttled(&mut self, key: SlotKey) -> Option<CommandSlot> {
        let command = self.slots.resume(key)?;
        (self.slots.get(key).phase == Phase::Throttled).then_some(command)
    }

    /// The command must not wait any longer: it goes on now, and has reserved what it takes.
    pub(super) fn release_throttled(&mut self, key: SlotKey) {
        self.throttled.waiting.retain(|held| held.key != key);
    }

    /// The namespaces or limits of the queue are others: the commands that wait begin anew.
    pub(crate) fn restart_throttled(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        // No half of a fused operation waits here, and these commands came before a first half whose second half has not
        // come: they do not stand between the two.
        let pending = std::mem::take(&mut self.pending_fuse);
        for held in std::mem::take(&mut self.throttled.waiting) {
            let Some(command) = self.resume_throttled(held.key) else { continue };
            held.refund();
            self.paused.take_if(|paused| *paused == held.key);
            let Some(io) = &self.io else { continue };
            let slot = self.slots.get(held.key);
            let sqe = slot.sqe;
            slot.job = None;
            let subsystem = &io.visible.devices.subsystem;
            let parsed = parse_io(&sqe, &subsystem.namespaces, &subsystem.limits);
            self.begin_io(cx, core, command, parsed, &[]);
        }
        self.pending_fuse = pending;
    }

    /// The connection closes: those that wait do not begin.
    pub(super) fn drop_throttled(&mut self) {
        for held in std::mem::take(&mut self.throttled.waiting) {
            held.refund();
        }
    }

    /// Whether commands wait because of limits.
    pub(crate) fn has_throttled(&self) -> bool {
        !self.throttled.waiting.is_empty()
    }

    /// Begins a command that is described: gets it its buffer and its data, and executes it once it has them.
    #[inline]
    pub(super) fn begin_with_data(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
        device: DeviceId,
        rest: &[u8],
    ) {
        let direction = self.slots.get(command.key()).transfer.direction;
        let executable = match direction {
            Direction::ControllerToHost => self.begin_read(cx, core, command, device),
            Direction::HostToController => self.begin_write(cx, core, command, rest),
            Direction::None => Some(command),
        };
        if let Some(command) = executable {
            self.execute_io(cx, core, command);
        }
    }
}
