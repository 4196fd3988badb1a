//! Rates that namespaces, hosts and subsystems do not exceed: one clock for each limit, shared by all cores without a lock.
//!
//! A limit is a time line on which each command takes as much time as it may cost: at 1,000 commands per second, 1 ms.
//! A command reserves the next free part of the time line when it comes, and begins when that part begins. So commands of
//! all cores begin in the order in which they came, nobody tries twice, and a core that is late loses nothing. Time that
//! was not used is there for [`QosLimits::burst`]. A core that reserves often takes several parts at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// For how long unused time can be used later, by default: as long as timers and threads may be late.
pub const DEFAULT_BURST: Duration = Duration::from_millis(10);
/// The longest such time.
pub const MAX_BURST: Duration = Duration::from_secs(60);

/// Bits behind the point in the cost of a unit.
const FRACTION_BITS: u32 = 20;
/// The time that a core reserves at once.
const BATCH_NS: u64 = 100_000;
/// Costs of which more than this number fit into a batch are reserved in batches. What a batch leaves unused is then less
/// than a thirtieth of it.
const BATCH_COMMANDS: u64 = 32;
/// Where the clock of a target begins: later than any burst.
const CLOCK_BEGINS_NS: u64 = 1 << 40;

/// Limits; 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QosLimits {
    /// Reads, writes and compares per second.
    pub rw_ios_per_sec: u64,
    /// Bytes per second that these move together.
    pub rw_bytes_per_sec: u64,
    /// Bytes per second that are read or compared.
    pub r_bytes_per_sec: u64,
    /// Bytes per second that are written.
    pub w_bytes_per_sec: u64,
    /// For how long what was not used can be used later, at most [`MAX_BURST`].
    pub burst: Duration,
}

impl Default for QosLimits {
    fn default() -> Self {
        Self {
            rw_ios_per_sec: 0,
            rw_bytes_per_sec: 0,
            r_bytes_per_sec: 0,
            w_bytes_per_sec: 0,
            burst: DEFAULT_BURST,
        }
    }
}

impl QosLimits {
    /// Whether nothing is limited.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        let Self { rw_ios_per_sec, rw_bytes_per_sec, r_bytes_per_sec, w_bytes_per_sec, .. } = self;
        [rw_ios_per_sec, rw_bytes_per_sec, r_bytes_per_sec, w_bytes_per_sec]
            .iter()
            .all(|l| **l == 0)
    }
}

/// Limits that are enforced, for all that is done with them. Cloning gives another handle: namespaces with the same one
/// share the limits.
#[derive(Clone, Debug)]
pub struct Throttle(Arc<Lines>);

#[derive(Debug)]
struct Lines {
    limits: QosLimits,
    ios: Option<TimeLine>,
    bytes: Option<TimeLine>,
    read_bytes: Option<TimeLine>,
    written_bytes: Option<TimeLine>,
}

/// What a command takes of limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    pub(crate) is_write: bool,
    pub(crate) bytes: u64,
}

impl Throttle {
    /// Enforces limits on that number of cores.
    pub(crate) fn new(limits: QosLimits, cores: usize) -> Self {
        let burst = limits.burst.min(MAX_BURST);
        let line = |rate| TimeLine::new(rate, burst, cores);
        Self(Arc::new(Lines {
            limits,
            ios: line(limits.rw_ios_per_sec),
            bytes: line(limits.rw_bytes_per_sec),
            read_bytes: line(limits.r_bytes_per_sec),
            written_bytes: line(limits.w_bytes_per_sec),
        }))
    }

    /// Whether both are one: what is done under one of them counts for the other.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// What it enforces.
    #[must_use]
    pub fn limits(&self) -> QosLimits {
        self.0.limits
    }

    fn lines(&self, cost: Cost) -> impl Iterator<Item = (&TimeLine, u64)> {
        let Lines { ios, bytes, read_bytes, written_bytes, .. } = &*self.0;
        let directed = if cost.is_write { written_bytes } else { read_bytes };
        let all = [(ios, 1), (bytes, cost.bytes), (directed, cost.bytes)];
        all.into_iter().filter_map(|(line, units)| Some((line.as_ref()?, units)))
    }

    /// Reserves what a command takes; gives when it may begin.
    pub(crate) fn reserve(&self, core: usize, now_ns: u64, cost: Cost) -> u64 {
        let starts = self.lines(cost).map(|(line, units)| line.reserve(core, now_ns, units));
        starts.max().unwrap_or(now_ns)
    }

    /// Gives back what a command has reserved that does not begin.
    pub(crate) fn refund(&self, cost: Cost) {
        self.lines(cost).for_each(|(line, units)| line.refund(units));
    }
}

/// One limit.
#[derive(Debug)]
struct TimeLine {
    /// The time that a unit takes in ns, with [`FRACTION_BITS`].
    unit: u64,
    burst_ns: u64,
    /// Up to where it is reserved.
    reserved: AtomicU64,
    /// What each core has reserved and not used.
    batches: Box<[Batch]>,
}

/// A part of the time line that belongs to one core, which alone writes it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Batch {
    next: AtomicU64,
    end: AtomicU64,
}

impl TimeLine {
    fn new(rate: u64, burst: Duration, cores: usize) -> Option<Self> {
        let unit = (1_000_000_000_u64 << FRACTION_BITS).checked_div(rate)?.max(1);
        Some(Self {
            unit,
            burst_ns: u64::try_from(burst.as_nanos()).unwrap_or(u64::MAX),
            reserved: AtomicU64::new(0),
            batches: (0..cores).map(|_| Batch::default()).collect(),
        })
    }

    fn cost_ns(&self, units: u64) -> u64 {
        let cost = (u128::from(units) * u128::from(self.unit)) >> FRACTION_BITS;
        u64::try_from(cost).unwrap_or(u64::MAX >> 8).min(u64::MAX >> 8)
    }

    fn reserve(&self, core: usize, now_ns: u64, units: u64) -> u64 {
        let cost = self.cost_ns(units);
        let earliest = now_ns.saturating_sub(self.burst_ns);
        let batch = self.batches.get(core).filter(|_| cost * BATCH_COMMANDS <= BATCH_NS);
        let Some(Batch { next, end }) = batch else { return self.take(earliest, cost) };
        let mut start = next.load(Ordering::Relaxed).max(earliest);
        if start.saturating_add(cost) > end.load(Ordering::Relaxed) {
            let most = BATCH_NS - BATCH_NS % cost.max(1);
            start = self.take(earliest, most);
            end.store(start.saturating_add(most), Ordering::Relaxed);
        }
        next.store(start.saturating_add(cost), Ordering::Relaxed);
        start
    }

    /// The next free part of this length that is not before `earliest`; gives its start.
    fn take(&self, earliest: u64, length: u64) -> u64 {
        let end = |reserved: u64| reserved.max(earliest).saturating_add(length);
        // The time line orders nothing but itself.
        let before = self
            .reserved
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |reserved| Some(end(reserved)));
        before.unwrap_or_else(|reserved| reserved).max(earliest)
    }

    fn refund(&self, units: u64) {
        let cost = self.cost_ns(units);
        let _ = self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |reserved| {
            Some(reserved.saturating_sub(cost))
        });
    }
}

/// The clock of the time lines. It begins with its first use, so that simulated runs can be repeated.
#[derive(Debug, Default)]
pub(crate) struct QosClock(OnceLock<Instant>);

impl QosClock {
    pub(crate) fn ns(&self, now: Instant) -> u64 {
        let begun = *self.0.get_or_init(|| now);
        let since = now.saturating_duration_since(begun).as_nanos();
        u64::try_from(since).unwrap_or(u64::MAX >> 2).min(u64::MAX >> 2) + CLOCK_BEGINS_NS
    }

    /// The moment of a time that follows on one that [`Self::ns`] has given for `now`.
    pub(crate) fn at(&self, ns: u64, now: Instant) -> Instant {
        now + Duration::from_nanos(ns.saturating_sub(self.ns(now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const BEGIN: u64 = CLOCK_BEGINS_NS;

    fn limits(ios: u64, bytes: u64) -> QosLimits {
        QosLimits { rw_ios_per_sec: ios, rw_bytes_per_sec: bytes, ..QosLimits::default() }
    }

    const fn read(bytes: u64) -> Cost {
        Cost { is_write: false, bytes }
    }

    /// How many commands begin within each second, when `depth` of them are under way on each core all the time and
    /// a command takes no time.
    fn per_second(throttle: &Throttle, cores: usize, depth: usize, cost: Cost) -> Vec<u64> {
        let mut waiting: Vec<(u64, usize)> = Vec::new();
        for _ in 0..depth {
            for core in 0..cores {
                waiting.push((throttle.reserve(core, BEGIN, cost).max(BEGIN), core));
            }
        }
        let mut counts = vec![0; 3];
        loop {
            let first = waiting.iter().enumerate().min_by_key(|(_, (at, _))| *at).unwrap().0;
            let (at, core) = waiting.swap_remove(first);
            let Some(count) = counts.get_mut(usize::try_from((at - BEGIN) / SECOND).unwrap())
            else {
                return counts;
            };
            *count += 1;
            waiting.push((throttle.reserve(core, at, cost).max(at), core));
        }
    }

    #[test]
    fn rates_are_kept_within_two_percent_for_all_sizes_and_cores() {
        for cores in [1, 3] {
            for ios in [100, 1_000, 50_000, 400_000] {
                let throttle = Throttle::new(limits(ios, 0), cores);
                for count in per_second(&throttle, cores, 4, read(512)) {
                    assert!(count.abs_diff(ios) <= ios / 50, "{count} of {ios}, {cores} cores");
                }
            }
            for bytes in [512, 4096, 131_072, 1 << 20] {
                let rate = 200 << 20;
                let throttle = Throttle::new(limits(0, rate), cores);
                for count in per_second(&throttle, cores, 4, read(bytes)) {
                    let moved = count * bytes;
                    assert!(moved.abs_diff(rate) <= rate / 50, "{moved}, {bytes}, {cores} cores");
                }
            }
        }
    }

    #[test]
    fn the_tightest_of_several_limits_counts() {
        let both = QosLimits { w_bytes_per_sec: 1 << 20, ..limits(1000, 0) };
        let throttle = Throttle::new(both, 1);
        let write = Cost { is_write: true, bytes: 1 << 19 };
        assert_eq!(per_second(&throttle, 1, 2, write)[1], 2);
        let throttle = Throttle::new(both, 1);
        assert!(per_second(&throttle, 1, 2, read(1 << 19))[1].abs_diff(1000) <= 1);
    }

    #[test]
    fn what_was_not_used_is_there_for_the_time_of_the_burst() {
        let with_burst = QosLimits { burst: Duration::from_secs(1), ..limits(100, 0) };
        let throttle = Throttle::new(with_burst, 1);
        let at = BEGIN + 60 * SECOND;
        let starts: Vec<u64> = (0..150).map(|_| throttle.reserve(0, at, read(512))).collect();
        let at_once = starts.iter().filter(|start| **start <= at).count();
        assert!((100..=101).contains(&at_once), "{at_once}");
        assert!(starts[149] - at >= 480_000_000, "{}", starts[149] - at);
    }

    #[test]
    fn what_is_given_back_is_there_for_others() {
        let throttle = Throttle::new(limits(10, 0), 1);
        let first = throttle.reserve(0, BEGIN, read(512));
        for _ in 0..100 {
            throttle.reserve(0, BEGIN, read(512));
        }
        (0..100).for_each(|_| throttle.refund(read(512)));
        let next = throttle.reserve(0, BEGIN, read(512));
        assert_eq!(next - first, SECOND / 10);
    }

    #[test]
    fn impossible_sizes_and_rates_do_not_overflow() {
        for rate in [1, u64::MAX] {
            let throttle = Throttle::new(limits(rate, rate), 1);
            for bytes in [0, 1, u64::MAX] {
                throttle.reserve(0, BEGIN, read(bytes));
                throttle.refund(read(bytes));
            }
        }
        assert!(QosLimits::default().is_unlimited());
        assert_eq!(Throttle::new(QosLimits::default(), 1).reserve(0, BEGIN, read(9)), BEGIN);
    }
}
