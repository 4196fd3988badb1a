//! What a device has done: counters of each core, and a latency histogram that is off until asked for.
//!
//! Every counter has one writer, the core that counts, which never takes a lock: it adds with a
//! plain load and store. Readers add the cores up. While neither a histogram nor the depth is wanted, times
//! are those of the loop (the same for a whole turn), which cost nothing. A histogram or depth sampling
//! makes the core look at the clock for each request.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::histogram::{CoreHistogram, Histogram, HistogramShape};
use crate::latency::{Latencies, LatencyCounters, SlowOnes};
use crate::{BdevError, OpKind};

const KINDS: usize = OpKind::ALL.len();

/// The statistics of one device.
#[derive(Debug, Default)]
pub struct DeviceStats {
    inner: Mutex<Inner>,
    /// The depth is sampled.
    depth_wanted: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    cores: Vec<Arc<CoreStats>>,
    /// Counts of channels that are closed.
    closed: IoTotals,
    closed_slow: SlowOnes,
    closed_histogram: Option<Histogram>,
    /// What the counters were when they were reset.
    baseline: IoTotals,
    histogram: Option<HistogramSettings>,
    /// The number of the next core, for callers that look at cores one by one.
    next_core: u64,
}

#[derive(Clone, Copy, Debug)]
struct HistogramSettings {
    shape: HistogramShape,
    /// `None`: all kinds of requests.
    kind: Option<OpKind>,
}

/// Totals of the requests of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindTotals {
    /// Requests that succeeded.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The sum of their times.
    pub latency_ns: u64,
    /// The longest.
    pub max_latency_ns: u64,
    /// The shortest; `u64::MAX` if there was none.
    pub min_latency_ns: u64,
}

impl Default for KindTotals {
    fn default() -> Self {
        Self { operations: 0, bytes: 0, latency_ns: 0, max_latency_ns: 0, min_latency_ns: u64::MAX }
    }
}

/// What a device, or one core of it, has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoTotals {
    kinds: [KindTotals; KINDS],
    /// Requests that failed.
    pub failures: u64,
}

impl IoTotals {
    /// Requests of one kind.
    #[must_use]
    pub const fn of(&self, kind: OpKind) -> &KindTotals {
        &self.kinds[kind as usize]
    }

    fn add(&mut self, other: &Self) {
        for (sum, part) in self.kinds.iter_mut().zip(&other.kinds) {
            sum.operations += part.operations;
            sum.bytes += part.bytes;
            sum.latency_ns += part.latency_ns;
            sum.max_latency_ns = sum.max_latency_ns.max(part.max_latency_ns);
            sum.min_latency_ns = sum.min_latency_ns.min(part.min_latency_ns);
        }
        self.failures += other.failures;
    }

    /// These sums without those of `baseline`; extremes stay.
    fn since(mut self, baseline: &Self) -> Self {
        for (sum, part) in self.kinds.iter_mut().zip(&baseline.kinds) {
            sum.operations = sum.operations.saturating_sub(part.operations);
            sum.bytes = sum.bytes.saturating_sub(part.bytes);
            sum.latency_ns = sum.latency_ns.saturating_sub(part.latency_ns);
        }
        self.failures = self.failures.saturating_sub(baseline.failures);
        self
    }

    fn forget_extremes(&mut self) {
        for kind in &mut self.kinds {
            kind.max_latency_ns = 0;
            kind.min_latency_ns = u64::MAX;
        }
    }
}

impl DeviceStats {
    /// One more core (or channel) that counts.
    #[must_use]
    pub fn meter(self: &Arc<Self>) -> Meter {
        let mut inner = self.lock();
        let core = Arc::new(CoreStats { number: inner.next_core, ..CoreStats::default() });
        inner.next_core += 1;
        core.set_detail(inner.histogram, self.depth_wanted.load(Ordering::Relaxed));
        inner.cores.push(Arc::clone(&core));
        drop(inner);
        Meter { device: Arc::clone(self), core, version: 0, detail: Detail::default() }
    }

    /// What all cores have done since the last [`Self::reset`].
    #[must_use]
    pub fn totals(&self) -> IoTotals {
        let inner = self.lock();
        inner.sum().since(&inner.baseline)
    }

    /// What all cores have ever done. [`Self::reset`] does not touch this.
    #[must_use]
    pub fn ever(&self) -> IoTotals {
        self.lock().sum()
    }

    /// How long the reads, and the writes, of all cores have ever taken. Times are those of the loop, as long as neither
    /// a histogram nor the depth is wanted.
    #[must_use]
    pub fn latencies(&self) -> [Latencies; 2] {
        let inner = self.lock();
        let mut slow = inner.closed_slow;
        inner.cores.iter().for_each(|core| core.latencies.add_to(&mut slow));
        // Summed later than the slow ones, so that no slow one is missing.
        let totals = inner.sum();
        [OpKind::Read, OpKind::Write].map(|kind| {
            let KindTotals { operations, latency_ns, .. } = *totals.of(kind);
            slow.latencies(kind, operations, latency_ns)
        })
    }

    /// What each core that has the device open has done, ever, by its number.
    #[must_use]
    pub fn per_core(&self) -> Vec<(u64, IoTotals)> {
        self.lock().cores.iter().map(|core| (core.number, core.totals())).collect()
    }

    /// Starts all counts again.
    pub fn reset(&self) {
        let mut inner = self.lock();
        inner.baseline = inner.sum();
        inner.forget_extremes();
    }

    /// Forgets the longest and shortest times.
    pub fn reset_extremes(&self) {
        self.lock().forget_extremes();
    }

    /// Forgets the failures.
    pub fn reset_failures(&self) {
        let mut inner = self.lock();
        inner.baseline.failures = inner.sum().failures;
    }

    /// Requests in flight on all cores; known while the depth is wanted.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.lock().cores.iter().map(|core| core.in_flight.load(Ordering::Relaxed)).sum()
    }

    /// Whether [`Self::in_flight`] must be known.
    pub fn want_depth(&self, wanted: bool) {
        self.depth_wanted.store(wanted, Ordering::Relaxed);
        let inner = self.lock();
        inner.cores.iter().for_each(|core| core.set_detail(inner.histogram, wanted));
    }

    /// Starts a histogram with all counts at zero, of one kind of requests or of all.
    pub fn start_histogram(&self, shape: HistogramShape, kind: Option<OpKind>) {
        self.set_histogram(Some(HistogramSettings { shape, kind }));
    }

    /// Ends the histogram.
    pub fn stop_histogram(&self) {
        self.set_histogram(None);
    }

    /// The histogram so far, if one was started.
    #[must_use]
    pub fn histogram(&self) -> Option<Histogram> {
        let inner = self.lock();
        let settings = inner.histogram?;
        let closed = inner.closed_histogram.clone();
        let mut sum = closed.unwrap_or_else(|| Histogram::empty(settings.shape));
        for core in &inner.cores {
            if let Some(counts) = &core.detail().histogram {
                counts.add_to(&mut sum);
            }
        }
        Some(sum)
    }

    fn set_histogram(&self, settings: Option<HistogramSettings>) {
        let mut inner = self.lock();
        inner.histogram = settings;
        inner.closed_histogram = None;
        let depth = self.depth_wanted.load(Ordering::Relaxed);
        inner.cores.iter().for_each(|core| {
            core.detail().histogram = None;
            core.set_detail(settings, depth);
        });
    }

    fn detach(&self, core: &Arc<CoreStats>) {
        let mut inner = self.lock();
        inner.closed.add(&core.totals());
        core.latencies.add_to(&mut inner.closed_slow);
        if let (Some(settings), Some(counts)) = (inner.histogram, &core.detail().histogram) {
            let empty = || Histogram::empty(settings.shape);
            counts.add_to(inner.closed_histogram.get_or_insert_with(empty));
        }
        inner.cores.retain(|other| !Arc::ptr_eq(other, core));
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn sum(&self) -> IoTotals {
        let mut sum = self.closed;
        self.cores.iter().for_each(|core| sum.add(&core.totals()));
        sum
    }

    fn forget_extremes(&mut self) {
        self.closed.forget_extremes();
        for kind in self.cores.iter().flat_map(|core| &core.kinds) {
            // The core may write at the same time: then one extreme of before survives.
            kind.max_latency_ns.store(0, Ordering::Relaxed);
            kind.no_min_latency_ns.store(0, Ordering::Relaxed);
        }
    }
}

/// The counters of one core, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CoreStats {
    kinds: [KindCounters; KINDS],
    failures: AtomicU64,
    in_flight: AtomicU64,
    latencies: LatencyCounters,
    /// Changes with `detail`.
    version: AtomicU64,
    detail: Mutex<Detail>,
    number: u64,
}

#[derive(Debug, Default)]
struct KindCounters {
    operations: AtomicU64,
    bytes: AtomicU64,
    latency_ns: AtomicU64,
    max_latency_ns: AtomicU64,
    /// The complement of the shortest time, so that 0 means none.
    no_min_latency_ns: AtomicU64,
}

/// What a core does beyond counting.
#[derive(Clone, Debug, Default)]
struct Detail {
    histogram: Option<Arc<CoreHistogram>>,
    kind: Option<OpKind>,
    depth: bool,
}

impl Detail {
    fn is_precise(&self) -> bool {
        self.histogram.is_some() || self.depth
    }
}

impl CoreStats {
    fn detail(&self) -> MutexGuard<'_, Detail> {
        self.detail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_detail(&self, settings: Option<HistogramSettings>, depth: bool) {
        let mut detail = self.detail();
        let counts = detail.histogram.take();
        let fresh = settings.map(|settings| Arc::new(CoreHistogram::new(settings.shape)));
        *detail = Detail {
            histogram: settings.and(counts.or(fresh)),
            kind: settings.and_then(|settings| settings.kind),
            depth,
        };
        drop(detail);
        self.version.fetch_add(1, Ordering::Release);
    }

    fn totals(&self) -> IoTotals {
        let mut totals = IoTotals { failures: get(&self.failures), ..IoTotals::default() };
        for (totals, counters) in totals.kinds.iter_mut().zip(&self.kinds) {
            *totals = KindTotals {
                operations: get(&counters.operations),
                bytes: get(&counters.bytes),
                latency_ns: get(&counters.latency_ns),
                max_latency_ns: get(&counters.max_latency_ns),
                min_latency_ns: !get(&counters.no_min_latency_ns),
            };
        }
        totals
    }
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Adds to a counter that only this thread writes.
fn bump(counter: &AtomicU64, by: u64) {
    counter.store(get(counter).wrapping_add(by), Ordering::Relaxed);
}

/// One core's pen: counts what its channel does.
#[derive(Debug)]
pub struct Meter {
    device: Arc<DeviceStats>,
    core: Arc<CoreStats>,
    /// The version of `detail`.
    version: u64,
    detail: Detail,
}

impl Meter {
    /// When a request that starts now starts: `now` or, if [`Self::is_precise`], the time of the clock.
    pub fn start(&mut self, now: Instant) -> Instant {
        if self.is_precise() { Instant::now() } else { now }
    }

    /// Whether more than counts is wanted: a histogram, or the depth.
    #[inline]
    pub fn is_precise(&mut self) -> bool {
        if self.core.version.load(Ordering::Relaxed) != self.version {
            self.refresh();
        }
        self.detail.is_precise()
    }

    /// Counts a request of `bytes` that succeeded in the turn in which it came, so in no time (lab 0054).
    /// Only for callers for which [`Self::is_precise`] is false.
    #[inline]
    pub fn tick(&self, kind: OpKind, bytes: u64) {
        let counters = &self.core.kinds[kind as usize];
        bump(&counters.operations, 1);
        bump(&counters.bytes, bytes);
        counters.no_min_latency_ns.store(u64::MAX, Ordering::Relaxed);
    }

    /// Counts a request of `bytes` that ends now.
    pub fn finish(
        &self,
        kind: OpKind,
        bytes: u64,
        (started, now): (Instant, Instant),
        result: Result<(), BdevError>,
    ) {
        if result.is_err() {
            return bump(&self.core.failures, 1);
        }
        let counters = &self.core.kinds[kind as usize];
        bump(&counters.operations, 1);
        bump(&counters.bytes, bytes);
        let now = if self.detail.is_precise() { Instant::now() } else { now };
        let latency_ns = nanoseconds(now.saturating_duration_since(started));
        if latency_ns > 0 {
            bump(&counters.latency_ns, latency_ns);
            self.core.latencies.record(kind, latency_ns);
            if latency_ns > get(&counters.max_latency_ns) {
                counters.max_latency_ns.store(latency_ns, Ordering::Relaxed);
            }
        }
        if !latency_ns > get(&counters.no_min_latency_ns) {
            counters.no_min_latency_ns.store(!latency_ns, Ordering::Relaxed);
        }
        if let Some(histogram) = &self.detail.histogram
            && self.detail.kind.is_none_or(|wanted| wanted == kind)
        {
            histogram.record(latency_ns);
        }
    }

    /// Stores how many requests are in flight, if the depth is wanted.
    pub fn set_in_flight(&self, in_flight: usize) {
        if self.detail.depth {
            self.core.in_flight.store(in_flight as u64, Ordering::Relaxed);
        }
    }

    #[cold]
    fn refresh(&mut self) {
        self.version = self.core.version.load(Ordering::Acquire);
        self.detail = self.core.detail().clone();
        if !self.detail.depth {
            self.core.in_flight.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.device.detach(&self.core);
    }
}

/// 2^64 ns are 584 years.
fn nanoseconds(duration: Duration) -> u64 {
    duration.as_secs().wrapping_mul(1_000_000_000) + u64::from(duration.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_survive_a_reset_and_the_end_of_a_core() {
        let stats = Arc::new(DeviceStats::default());
        let mut meter = stats.meter();
        count(&mut meter, OpKind::Read, 512, 10);
        count(&mut meter, OpKind::Read, 512, 0);
        count(&mut meter, OpKind::Write, 512, 1000);
        let before = stats.latencies();
        assert_eq!(before[0].buckets[..2], [1, 1]);
        assert_eq!((before[1].buckets[8], before[1].sum_ns), (1, 1_000_000));
        drop(meter);
        stats.reset();
        assert_eq!(stats.latencies(), before);
        assert_eq!(stats.ever().of(OpKind::Read).operations, 2);
        assert_eq!(stats.totals().of(OpKind::Read).operations, 0);
    }

    fn count(meter: &mut Meter, kind: OpKind, bytes: u64, micros: u64) {
        let now = Instant::now();
        let started = meter.start(now);
        let end = started + Duration::from_micros(micros);
        meter.finish(kind, bytes, (started, end), Ok(()));
    }

    #[test]
    fn cores_are_added_up_and_survive_their_channels() {
        let stats = Arc::new(DeviceStats::default());
        let (mut one, mut two) = (stats.meter(), stats.meter());
        count(&mut one, OpKind::Read, 4096, 5);
        count(&mut two, OpKind::Read, 512, 20);
        count(&mut two, OpKind::Write, 512, 1);
        let now = Instant::now();
        two.finish(OpKind::Write, 512, (now, now), Err(BdevError::WriteFault));
        assert_eq!(stats.per_core().len(), 2);
        drop(two);
        let totals = stats.totals();
        let reads = KindTotals {
            operations: 2,
            bytes: 4608,
            latency_ns: 25_000,
            max_latency_ns: 20_000,
            min_latency_ns: 5_000,
        };
        assert_eq!(*totals.of(OpKind::Read), reads);
        assert_eq!((totals.of(OpKind::Write).operations, totals.failures), (1, 1));
        assert_eq!(totals.of(OpKind::Flush).min_latency_ns, u64::MAX);

        stats.reset_extremes();
        assert_eq!(stats.totals().of(OpKind::Read).max_latency_ns, 0);
        assert_eq!(stats.totals().of(OpKind::Read).operations, 2);
        stats.reset();
        assert_eq!(stats.totals(), IoTotals::default());
        count(&mut one, OpKind::Read, 512, 7);
        assert_eq!(stats.totals().of(OpKind::Read).bytes, 512);
    }

    #[test]
    fn a_tick_is_a_request_that_took_no_time() {
        let stats = Arc::new(DeviceStats::default());
        let (mut long, mut short) = (stats.meter(), stats.meter());
        let now = Instant::now();
        let started = long.start(now);
        long.finish(OpKind::Read, 4096, (started, now), Ok(()));
        let expected = stats.totals();
        stats.reset();
        stats.reset_extremes();
        assert!(!short.is_precise());
        short.tick(OpKind::Read, 4096);
        assert_eq!(stats.totals(), expected);
        stats.want_depth(true);
        assert!(short.is_precise(), "it is told at once");
        stats.want_depth(false);
        assert!(!short.is_precise());
    }

    #[test]
    fn a_histogram_counts_while_it_is_on() {
        let stats = Arc::new(DeviceStats::default());
        let mut meter = stats.meter();
        count(&mut meter, OpKind::Read, 512, 9);
        assert_eq!(stats.histogram(), None);
        stats.start_histogram(HistogramShape::default(), Some(OpKind::Read));
        let mut late = stats.meter();
        count(&mut meter, OpKind::Read, 512, 9);
        count(&mut meter, OpKind::Write, 512, 9);
        count(&mut late, OpKind::Read, 512, 9);
        let counts = |stats: &DeviceStats| stats.histogram().unwrap().counts.iter().sum::<u64>();
        assert_eq!(counts(&stats), 2);
        drop(late);
        assert_eq!(counts(&stats), 2, "the channel is gone, its counts are not");
        stats.want_depth(true);
        assert_eq!(counts(&stats), 2, "another wish changes nothing");
        count(&mut meter, OpKind::Read, 512, 9);
        meter.set_in_flight(3);
        assert_eq!((counts(&stats), stats.in_flight()), (3, 3));
        stats.start_histogram(HistogramShape::default(), None);
        assert_eq!(counts(&stats), 0);
        stats.stop_histogram();
        assert_eq!(stats.histogram(), None);
    }
}
