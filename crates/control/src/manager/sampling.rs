//! Samples the queue depth of a device at a fixed interval, when a client asks for that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use raceline_bdev::DeviceStats;

/// The shortest interval: a thread sleeps between two samples.
const MIN_INTERVAL: Duration = Duration::from_micros(100);

/// The results of sampling one device. Sampling ends when this is dropped.
#[derive(Debug)]
pub struct Sampling {
    stats: Arc<DeviceStats>,
    period_us: u64,
    depth: AtomicU64,
    busy_us: AtomicU64,
    weighted_us: AtomicU64,
}

impl Sampling {
    /// Starts to sample.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(stats: &Arc<DeviceStats>, period_us: u64) -> std::io::Result<Arc<Self>> {
        stats.want_depth(true);
        let sampling = Arc::new(Self {
            stats: Arc::clone(stats),
            period_us,
            depth: AtomicU64::new(0),
            busy_us: AtomicU64::new(0),
            weighted_us: AtomicU64::new(0),
        });
        let weak = Arc::downgrade(&sampling);
        let interval = Duration::from_micros(period_us).max(MIN_INTERVAL);
        std::thread::Builder::new()
            .name("bdev-depth".into())
            .spawn(move || run(&weak, interval))?;
        Ok(sampling)
    }

    /// The interval that was asked for.
    #[must_use]
    pub fn period_us(&self) -> u64 {
        self.period_us
    }

    /// Requests in flight at the last sample.
    #[must_use]
    pub fn depth(&self) -> u64 {
        self.depth.load(Ordering::Relaxed)
    }

    /// Microseconds in which there were requests in flight.
    #[must_use]
    pub fn busy_us(&self) -> u64 {
        self.busy_us.load(Ordering::Relaxed)
    }

    /// The same microseconds, each multiplied by the number of requests in flight.
    #[must_use]
    pub fn weighted_us(&self) -> u64 {
        self.weighted_us.load(Ordering::Relaxed)
    }
}

impl Drop for Sampling {
    fn drop(&mut self) {
        self.stats.want_depth(false);
    }
}

fn run(sampling: &Weak<Sampling>, interval: Duration) {
    let mut last = Instant::now();
    loop {
        std::thread::sleep(interval);
        let Some(sampling) = sampling.upgrade() else { return };
        let now = Instant::now();
        let elapsed_us = u64::try_from((now - last).as_micros()).unwrap_or(u64::MAX);
        last = now;
        let depth = sampling.stats.in_flight();
        sampling.depth.store(depth, Ordering::Relaxed);
        if depth > 0 {
            sampling.busy_us.fetch_add(elapsed_us, Ordering::Relaxed);
            let weighted = elapsed_us.saturating_mul(depth);
            sampling.weighted_us.fetch_add(weighted, Ordering::Relaxed);
        }
    }
}
