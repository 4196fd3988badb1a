//! I/O queues move from a core that is full to one that has time.
//!
//! A connection is placed when it is accepted, before it is known how much work it brings. Where several of the busy
//! ones have come together, other cores stay idle. A look at the cores once in a while finds such a core, and the
//! queue whose move evens the two cores out best.

use std::collections::HashMap;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use raceline_proto::nvme::{ControllerId, Nqn, QueueId};
use raceline_reactor::LoopStats;

use crate::changes::control::Control;
use crate::changes::message::Message;
use crate::records::names::Place;

/// The time between two looks, unless the caller says another one.
pub const BALANCE_INTERVAL: Duration = Duration::from_secs(1);
/// A core is full when it has work for at least this part of the time.
const FULL: f64 = 0.85;
/// What a move has to take off the fuller core, as a part of the time of a core: less is not worth the pause.
const GAIN: f64 = 0.1;
/// Looks for which a queue that has moved stays where it is.
const REST: u64 = 10;
/// Bytes whose way through a core counts as one more command.
const COMMAND_BYTES: u64 = 16 << 10;

/// Queues of a target, across the moves of one: controller, number, subsystem.
pub(crate) type QueueName = (ControllerId, QueueId, Nqn);

/// A queue, and what it does.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) name: QueueName,
    pub(crate) place: Place,
    /// Work since the target began, in commands and their bytes.
    work: u64,
    /// It has a queue pair, which belongs to its core.
    pub(crate) is_rdma: bool,
}

/// What was seen at the last look, and what came of it.
#[derive(Debug, Default)]
pub(crate) struct Balance {
    looks: u64,
    before: Option<Seen>,
    /// When queues have moved, by the number of the look.
    moved: HashMap<QueueName, u64>,
}

#[derive(Debug)]
struct Seen {
    at: Instant,
    busy: Vec<Duration>,
    work: HashMap<QueueName, u64>,
}

impl Balance {
    /// Looks at all cores: the time that each has worked so far, and the I/O queues. Gives the queue that should
    /// move, and to which core.
    fn look(
        &mut self,
        now: Instant,
        busy: Vec<Duration>,
        queues: &[Load],
    ) -> Option<(Place, usize)> {
        self.looks += 1;
        let work = queues.iter().map(|queue| (queue.name.clone(), queue.work)).collect();
        let before = self.before.replace(Seen { at: now, busy, work });
        let (before, now) = (before?, self.before.as_ref()?);
        let time = now.at.saturating_duration_since(before.at).as_secs_f64();
        if time <= 0.0 || before.busy.len() != now.busy.len() {
            return None;
        }
        let used = now.busy.iter().zip(&before.busy);
        let used: Vec<f64> =
            used.map(|(now, before)| now.saturating_sub(*before).as_secs_f64() / time).collect();
        // What came since the last look counts from its beginning.
        let done = |queue: &Load| {
            queue.work - before.work.get(&queue.name).map_or(0, |work| *work.min(&queue.work))
        };
        let mut loads: Vec<(&Load, u64)> =
            queues.iter().map(|queue| (queue, done(queue))).collect();
        loads.sort_by_key(|(queue, _)| (queue.place.core, queue.name.clone()));
        let looks = self.looks;
        self.moved.retain(|_, at| looks - *at <= REST);
        let movable = |queue: &Load| !queue.is_rdma && !self.moved.contains_key(&queue.name);
        let (queue, to) = choose(&used, &loads, movable)?;
        self.moved.insert(queue.name.clone(), looks);
        Some((queue.place, to))
    }
}

/// The queue of the fullest core whose move to the idlest one makes the fuller of the two least full.
fn choose<'a>(
    used: &[f64],
    loads: &[(&'a Load, u64)],
    movable: impl Fn(&Load) -> bool,
) -> Option<(&'a Load, usize)> {
    let cores = || used.iter().copied().enumerate();
    let (fullest, most) = cores().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let (idlest, least) = cores().min_by(|a, b| a.1.total_cmp(&b.1))?;
    if most < FULL || fullest == idlest {
        return None;
    }
    let here = || loads.iter().filter(|(queue, _)| queue.place.core == fullest);
    let all: u64 = here().map(|(_, done)| done).sum();
    if all == 0 {
        return None;
    }
    #[expect(clippy::cast_precision_loss, reason = "shares of a core")]
    let share = |done: u64| most * done as f64 / all as f64;
    let after = |done: u64| (most - share(done)).max(least + share(done));
    let fitting = here().filter(|(queue, done)| movable(queue) && after(*done) <= most - GAIN);
    let (queue, _) = fitting.min_by(|a, b| after(a.1).total_cmp(&after(b.1)))?;
    Some((queue, idlest))
}

/// Looks at the cores of a target from time to time, until it is dropped.
#[derive(Debug)]
pub(crate) struct Balancer {
    /// Dropped, it ends the thread.
    _end: Sender<()>,
    pub(crate) interval: Duration,
}

impl Balancer {
    pub(crate) fn start(
        control: Arc<Control>,
        loops: Vec<Arc<LoopStats>>,
        interval: Duration,
    ) -> std::io::Result<Self> {
        let (end, ended) = mpsc::channel::<()>();
        let mut balance = Balance::default();
        std::thread::Builder::new().name("balance".to_owned()).spawn(move || {
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let busy = loops.iter().map(|stats| stats.snapshot().busy).collect();
                control.balance(&mut balance, Instant::now(), busy);
            }
        })?;
        Ok(Self { _end: end, interval })
    }
}

impl Control {
    pub(crate) fn loads(&self) -> Vec<Load> {
        let ledger = self.shared.ledger();
        let queues = ledger.live.iter().filter(|(_, record)| !record.qid.is_admin());
        queues
            .map(|(place, record)| {
                let totals = record.counters.totals();
                let bytes = totals.read_bytes + totals.written_bytes;
                Load {
                    name: (record.cntlid, record.qid, record.subsystem.clone()),
                    place: *place,
                    work: totals.commands + bytes / COMMAND_BYTES,
                    is_rdma: record.is_rdma,
                }
            })
            .collect()
    }

    fn balance(&self, balance: &mut Balance, now: Instant, busy: Vec<Duration>) {
        if let Some((Place { core, key }, to)) = balance.look(now, busy, &self.loads()) {
            tracing::info!(from = core, to, "a core is full: one of its queues moves");
            self.shared.send(core, Message::Move { key, to });
        }
    }
}

/// Where a target keeps its balancer.
pub(crate) type BalancerSlot = Mutex<Option<Balancer>>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::names::ConnKey;

    fn queue(qid: u16, core: usize, work: u64) -> Load {
        let nqn = Nqn::new("nqn.2026-01.io.raceline:s").unwrap();
        let key = ConnKey { index: u32::from(qid), generation: 0 };
        let (name, place) = ((ControllerId(1), QueueId(qid), nqn), Place { core, key });
        Load { name, place, work, is_rdma: false }
    }

    /// The moves of looks one second apart; queues share the time of their core by their weight.
    fn moves(
        cores: usize,
        mut queues: Vec<Load>,
        weights: &[u64],
        looks: usize,
    ) -> Vec<(u16, usize)> {
        let mut balance = Balance::default();
        let (mut moves, mut busy) = (Vec::new(), vec![Duration::ZERO; cores]);
        let start = Instant::now();
        for look in 0..looks {
            let at = start + Duration::from_secs(look as u64);
            for (core, busy) in busy.iter_mut().enumerate() {
                let here =
                    || queues.iter().zip(weights).filter(|(queue, _)| queue.place.core == core);
                let all: u64 = here().map(|(_, weight)| weight).sum();
                *busy += Duration::from_millis(all.min(1000));
            }
            for (queue, weight) in queues.iter_mut().zip(weights) {
                queue.work += weight;
            }
            if let Some((place, to)) = balance.look(at, busy.clone(), &queues) {
                let queue = queues.iter_mut().find(|queue| queue.place == place).unwrap();
                queue.place.core = to;
                moves.push((queue.name.1.0, to));
            }
        }
        moves
    }

    #[test]
    fn queues_of_a_full_core_spread_and_then_stay() {
        let queues = (1..=4).map(|qid| queue(qid, 0, 7)).collect();
        assert_eq!(moves(2, queues, &[400, 400, 400, 400], 30), [(1, 1), (2, 1)]);
        // The heavy one stays, since a move would only exchange the cores.
        let queues = vec![queue(1, 0, 0), queue(2, 0, 0)];
        assert_eq!(moves(2, queues, &[980, 20], 30), []);
        // What evens out best moves: of 0.9, 0.5 go and 0.4 stay.
        let queues = (1..=3).map(|qid| queue(qid, 0, 0)).collect();
        assert_eq!(moves(2, queues, &[500, 300, 100], 30), [(1, 1)]);
    }

    #[test]
    fn cores_with_time_and_cores_that_are_all_full_are_left_alone() {
        let queues = || (1..=4).map(|qid| queue(qid, 0, 0)).collect::<Vec<_>>();
        assert_eq!(moves(2, queues(), &[100, 200, 200, 300], 30), []);
        let both = (1..=4).map(|qid| queue(qid, usize::from(qid % 2), 0)).collect();
        assert_eq!(moves(2, both, &[600, 600, 600, 600], 30), []);
        assert_eq!(moves(1, queues(), &[600, 600, 600, 600], 30), []);
        assert_eq!(moves(2, Vec::new(), &[], 3), []);
    }

    #[test]
    fn a_queue_that_has_moved_rests() {
        // Two queues that take turns in being busy would follow each other for ever.
        let mut balance = Balance::default();
        let start = Instant::now();
        let mut queues = vec![queue(1, 0, 0), queue(2, 0, 0), queue(3, 0, 0)];
        let (mut moves, mut busy) = (0, vec![Duration::ZERO; 2]);
        for look in 0..=REST {
            let full = queues[0].place.core;
            busy[full] += Duration::from_secs(1);
            queues.iter_mut().filter(|queue| queue.place.core == full).for_each(|q| q.work += 100);
            let at = start + Duration::from_secs(look);
            if let Some((place, to)) = balance.look(at, busy.clone(), &queues) {
                queues.iter_mut().find(|queue| queue.place == place).unwrap().place.core = to;
                moves += 1;
            }
        }
        assert!((1..=3).contains(&moves), "{moves}");
    }
}
