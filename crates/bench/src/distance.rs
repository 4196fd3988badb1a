//! The distance of two cores: the time that a cache line takes from one to the other and back.
//!
//! On a virtual machine the distance may change from one second to the next, because the hypervisor moves
//! the guest's cores. That changes the speed of everything that two cores do together. A core by itself is
//! as fast as before, and no counter in the guest shows the change. So compared runs must have been made at
//! the same distance: [`Distance`] waits for the shortest one seen so far, and tells afterwards whether it
//! lasted (lab 0001).

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use raceline_reactor::affinity::pin_to_core;

/// A look is this many batches of [`ROUND_TRIPS`] round trips, after one batch that does not count. The
/// result is the least mean of a batch: an interruption of a core spoils only some batches.
const BATCHES: u32 = 8;
const ROUND_TRIPS: u32 = 1000;
/// The threads give up after this time. Usually they need at most a hundredth of it.
const LOOK_LIMIT: Duration = Duration::from_secs(1);
/// How much longer the threads are waited for: a thread that is not scheduled cannot end.
const END_LIMIT: Duration = Duration::from_millis(250);
/// How often a thread reads the line between two reads of the clock.
const SPINS: u32 = 4096;

/// Cores are far apart when a round trip takes more than this many times the least that was seen.
const FAR_FACTOR: u32 = 2;
/// At the first look the usual distance is unknown. Cores of one cluster are never this far apart, so a
/// longer distance may become shorter, and is waited for once. Nothing else depends on this number: as soon
/// as two looks differ by [`FAR_FACTOR`], or a least is known from before, the rule is relative to the
/// distances seen.
pub const SURELY_NEAR: Duration = Duration::from_nanos(150);
/// How long to wait for near cores; below, the pause between two looks.
const PATIENCE: Duration = Duration::from_secs(20);
const NAP: Duration = Duration::from_millis(100);

/// Measures the time that a cache line takes from one core to another and back; takes 1 to 5 ms.
///
/// # Errors
/// `InvalidInput` when both cores are the same, or one of them cannot be used; `TimedOut` when another
/// program has one of them for too long.
pub fn round_trip(a: usize, b: usize) -> io::Result<Duration> {
    if a == b {
        let message = format!("core {a} is not apart from itself: name two cores");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let ball = Arc::new(Ball::new());
    let (sender, ends) = mpsc::channel();
    start("distance-first", a, &ball, sender.clone(), Ball::lead)?;
    start("distance-second", b, &ball, sender, Ball::follow).inspect_err(|_| ball.end())?;
    let mut found = None;
    for _ in 0..2 {
        let left = (ball.deadline + END_LIMIT).saturating_duration_since(Instant::now());
        // A thread that does not answer has not been scheduled; it ends once it is.
        let Ok(end) = ends.recv_timeout(left) else { break };
        found = found.or(end?);
    }
    ball.end();
    found.ok_or_else(|| {
        let message =
            format!("cores {a} and {b} do not answer each other: another program has one");
        io::Error::new(io::ErrorKind::TimedOut, message)
    })
}

/// The result of a thread; the first one has the round trip, unless its time was up.
type End = io::Result<Option<Duration>>;

/// Starts a player thread on this core. The thread is not joined: it might not be scheduled.
fn start(
    name: &str,
    core: usize,
    ball: &Arc<Ball>,
    ends: Sender<End>,
    play: fn(&Ball) -> Option<Duration>,
) -> io::Result<()> {
    let ball = Arc::clone(ball);
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(move || {
        let end = pin_to_core(core).map(|()| play(&ball));
        ball.end();
        // A caller that has stopped waiting needs no answer.
        let _ = ends.send(end);
    })?;
    Ok(())
}

/// A value alone on its cache line, and on the line that is prefetched with it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line<T>(T);

/// The state that the two threads pass to each other.
#[derive(Debug)]
struct Ball {
    /// Odd while the first thread has passed it to the second, even after the second has passed it back.
    turn: Line<AtomicU32>,
    ended: Line<AtomicBool>,
    deadline: Instant,
}

impl Ball {
    fn new() -> Self {
        let deadline = Instant::now() + LOOK_LIMIT;
        Self { turn: Line::default(), ended: Line::default(), deadline }
    }

    fn end(&self) {
        self.ended.0.store(true, Ordering::Relaxed);
    }

    /// Passes the ball until there are enough batches; gives the least mean of a completed batch.
    fn lead(&self) -> Option<Duration> {
        let mut least: Option<Duration> = None;
        let mut turn = 0;
        for batch in 0..=BATCHES {
            let begun = Instant::now();
            for _ in 0..ROUND_TRIPS {
                self.turn.0.store(turn + 1, Ordering::Release);
                turn += 2;
                if !self.comes(turn) {
                    return least;
                }
            }
            let mean = begun.elapsed() / ROUND_TRIPS;
            if batch > 0 {
                least = Some(least.map_or(mean, |least| least.min(mean)));
            }
        }
        least
    }

    /// Passes the ball back each time it comes.
    fn follow(&self) -> Option<Duration> {
        let mut turn = 1;
        while self.comes(turn) {
            self.turn.0.store(turn + 1, Ordering::Release);
            turn += 2;
        }
        None
    }

    /// Waits for a turn, spinning without a pause instruction, which would be most of the measured time.
    /// False when the other thread has ended, or time is up.
    fn comes(&self, turn: u32) -> bool {
        loop {
            for _ in 0..SPINS {
                if self.turn.0.load(Ordering::Acquire) == turn {
                    return true;
                }
            }
            if self.ended.0.load(Ordering::Relaxed) || Instant::now() >= self.deadline {
                return false;
            }
        }
    }
}

/// The distance as text: `cores 0 and 1 are 57 ns apart (a cache line there and back)`.
#[must_use]
pub fn sentence((a, b): (usize, usize), round_trip: Duration) -> String {
    let ns = round_trip.as_nanos();
    format!("cores {a} and {b} are {ns} ns apart (a cache line there and back)")
}

/// The median of some round trips, of an even number the longer of the middle two; `None` of none.
pub(crate) fn median(round_trips: impl Iterator<Item = Option<Duration>>) -> Option<Duration> {
    let mut known: Vec<Duration> = round_trips.flatten().collect();
    known.sort_unstable();
    known.get(known.len() / 2).copied()
}

/// Whole nanoseconds, for JSON.
pub(crate) fn whole_ns(round_trip: Option<Duration>) -> Option<u64> {
    round_trip.and_then(|round_trip| u64::try_from(round_trip.as_nanos()).ok())
}

/// The cores of two sides, and what is known of their distance. If a side floats, or both share a core,
/// there is no distance: it is never measured, and never far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Distance {
    cores: Option<(usize, usize)>,
    /// The least and the greatest round trip seen so far.
    least: Option<Duration>,
    most: Option<Duration>,
    /// Whether the first looks are over, so that the least is reliable.
    settled: bool,
    /// The last wait ended without near cores, and no look since has found them near.
    in_vain: bool,
    /// How long to wait for near cores; `None`: as long as usual.
    patience: Option<Duration>,
    /// Time that is left for looks and waits; `None`: any. Without time the distance is not known any more.
    left: Option<Duration>,
}

/// What is known of the distances of cores, for measurements that follow each other: a later one knows the least
/// distance that an earlier one saw, and does not repeat a wait in vain. Clones share what they know.
#[derive(Clone, Debug, Default)]
pub struct Distances {
    known: Arc<Mutex<BTreeMap<(usize, usize), Distance>>>,
    patience: Option<Duration>,
    budget: Option<Duration>,
}

impl Distances {
    /// Nothing is known yet, and near cores are waited for this long instead of 20 s.
    #[must_use]
    pub fn with_patience(patience: Duration) -> Self {
        Self { patience: Some(patience), ..Self::default() }
    }

    /// The same, with at most this time for all looks and waits of a pair of cores. On a machine that others keep
    /// busy each look may take a second.
    #[must_use]
    pub fn with_budget(self, budget: Duration) -> Self {
        Self { budget: Some(budget), ..self }
    }

    /// What is known of the distance of two cores.
    #[must_use]
    pub fn between(&self, a: Option<usize>, b: Option<usize>) -> Distance {
        let (patience, left) = (self.patience, self.budget);
        let fresh = Distance { patience, left, ..Distance::between(a, b) };
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        fresh.cores.and_then(|cores| known.get(&cores).copied()).unwrap_or(fresh)
    }

    /// Keeps what a measurement has learnt.
    pub fn keep(&self, distance: Distance) {
        if let Some(cores) = distance.cores {
            self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(cores, distance);
        }
    }
}

impl Distance {
    /// A distance of which nothing is known yet.
    #[must_use]
    pub fn between(a: Option<usize>, b: Option<usize>) -> Self {
        Self { cores: a.zip(b).filter(|(a, b)| a != b), ..Self::default() }
    }

    /// The same if a least round trip is known from before: the usual distance is then known.
    #[must_use]
    pub fn knowing(self, least: Duration) -> Self {
        Self { least: Some(least), settled: true, ..self }
    }

    /// The cores, if both are fixed and different.
    #[must_use]
    pub fn cores(&self) -> Option<(usize, usize)> {
        self.cores
    }

    /// The least round trip seen so far.
    #[must_use]
    pub fn least(&self) -> Option<Duration> {
        self.least
    }

    /// The longest round trip that counts as near: twice the least ever seen.
    #[must_use]
    pub fn near_max(&self) -> Option<Duration> {
        self.least.map(|least| least * FAR_FACTOR)
    }

    /// Whether a round trip took longer than [`Self::near_max`].
    #[must_use]
    pub fn is_far(&self, round_trip: Option<Duration>) -> bool {
        self.near_max().zip(round_trip).is_some_and(|(near_max, round_trip)| round_trip > near_max)
    }

    /// Looks once, in 1 to 5 ms. `None` without two cores, and when the cores do not answer: the distance
    /// is then unknown, and other disturbances will show.
    pub fn look(&mut self) -> Option<Duration> {
        let (a, b) = self.cores.filter(|_| self.left != Some(Duration::ZERO))?;
        let begun = Instant::now();
        let found = round_trip(a, b);
        self.left = self.left.map(|left| left.saturating_sub(begun.elapsed()));
        let found = found.inspect_err(|error| tracing::debug!("no round trip: {error}")).ok()?;
        self.note(found);
        Some(found)
    }

    /// Looks until the cores are near, for at most 20 s unless [`Distances`] say otherwise; after a wait in
    /// vain only once, until a look has found them near again. `stop` is asked several times a second. Gives the last look.
    pub fn wait(&mut self, stop: &dyn Fn() -> bool) -> Option<Duration> {
        let (begun, left) = (Instant::now(), self.left);
        let found = self.wait_by(&mut Self::look, (self.patience.unwrap_or(PATIENCE), NAP), stop);
        self.left = left.map(|left| left.saturating_sub(begun.elapsed()));
        found
    }

    fn wait_by(
        &mut self,
        look: &mut dyn FnMut(&mut Self) -> Option<Duration>,
        (patience, nap): (Duration, Duration),
        stop: &dyn Fn() -> bool,
    ) -> Option<Duration> {
        let deadline = Instant::now() + if self.in_vain { Duration::ZERO } else { patience };
        loop {
            let found = look(self)?;
            let both_seen = self.is_far(self.most);
            let usual = self.settled || both_seen || found <= SURELY_NEAR;
            if usual && !self.is_far(Some(found)) {
                (self.settled, self.in_vain) = (true, false);
                return Some(found);
            }
            if Instant::now() >= deadline || stop() {
                self.settled = true;
                self.in_vain = self.is_far(Some(found));
                return Some(found);
            }
            std::thread::sleep(nap);
        }
    }

    /// Notes the result of a look.
    pub fn note(&mut self, found: Duration) {
        self.least = Some(self.least.map_or(found, |least| least.min(found)));
        self.most = self.most.max(Some(found));
    }
}

#[cfg(test)]
mod tests {
    use raceline_reactor::affinity::allowed_cores;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn ns(ns: u64) -> Duration {
        Duration::from_nanos(ns)
    }

    /// Waits while the looks give these values, the last one repeatedly; also gives the number of looks.
    fn waited(distance: &mut Distance, patience: Duration, looks: &[u64]) -> (Duration, usize) {
        let mut count = 0;
        let mut look = |distance: &mut Distance| {
            let found = ns(looks[count.min(looks.len() - 1)]);
            count += 1;
            distance.note(found);
            Some(found)
        };
        let found = distance.wait_by(&mut look, (patience, Duration::ZERO), &|| false).unwrap();
        (found, count)
    }

    #[test]
    fn far_is_more_than_twice_the_least() {
        let mut distance = Distance::between(Some(0), Some(1));
        assert!(!distance.is_far(Some(ns(900))) && distance.least().is_none());
        [70, 60, 320].into_iter().for_each(|found| distance.note(ns(found)));
        assert_eq!(distance.least(), Some(ns(60)));
        assert!(!distance.is_far(Some(ns(120))) && distance.is_far(Some(ns(121))));
        assert!(!distance.is_far(None));
    }

    #[test]
    fn waits_until_the_cores_are_near_again() {
        let mut distance = Distance::between(Some(0), Some(1));
        assert_eq!(waited(&mut distance, LONG, &[60]), (ns(60), 1));
        assert_eq!(waited(&mut distance, LONG, &[300, 310, 130, 70, 300]), (ns(70), 4));
    }

    #[test]
    fn what_is_long_from_the_beginning_may_get_shorter_once() {
        let mut distance = Distance::between(Some(0), Some(1));
        assert_eq!(waited(&mut distance, LONG, &[300, 300, 60]), (ns(60), 3));
        let mut distance = Distance::between(Some(0), Some(1));
        assert_eq!(waited(&mut distance, Duration::ZERO, &[300]), (ns(300), 1));
        // For instance two sockets: from now on this distance is near.
        assert_eq!(waited(&mut distance, LONG, &[320]), (ns(320), 1));
        assert!(distance.is_far(Some(ns(601))));
    }

    #[test]
    fn what_was_seen_decides_and_no_number() {
        // Sockets far from each other, whose near state is still above the number.
        let mut distance = Distance::between(Some(0), Some(1));
        assert_eq!(waited(&mut distance, LONG, &[900, 890, 400]), (ns(400), 3));
        assert_eq!(distance.near_max(), Some(ns(800)));
        // A least known from before is enough: no shorter distance is waited for.
        let mut distance = Distance::between(Some(0), Some(1)).knowing(ns(360));
        assert_eq!(waited(&mut distance, LONG, &[425]), (ns(425), 1));
        let mut distance = Distance::between(Some(0), Some(1)).knowing(ns(50));
        assert_eq!(waited(&mut distance, LONG, &[130, 101, 100]), (ns(100), 3));
    }

    #[test]
    fn after_a_wait_in_vain_it_only_looks() {
        let mut distance = Distance::between(Some(0), Some(1));
        waited(&mut distance, LONG, &[60]);
        assert_eq!(waited(&mut distance, Duration::ZERO, &[300]), (ns(300), 1));
        assert_eq!(waited(&mut distance, LONG, &[300]), (ns(300), 1));
        assert_eq!(waited(&mut distance, LONG, &[60]), (ns(60), 1));
        assert_eq!(waited(&mut distance, LONG, &[300, 60]), (ns(60), 2));
    }

    #[test]
    fn later_measurements_know_what_earlier_ones_saw() {
        let distances = Distances::with_patience(LONG);
        let mut distance = distances.between(Some(0), Some(1));
        assert_eq!(distance.patience, Some(LONG));
        assert_eq!(waited(&mut distance, LONG, &[60]), (ns(60), 1));
        assert_eq!(waited(&mut distance, Duration::ZERO, &[300]), (ns(300), 1));
        distances.clone().keep(distance);
        // Only a look: the measurement before has waited in vain.
        let mut later = distances.between(Some(0), Some(1));
        assert_eq!((later.least(), later.patience), (Some(ns(60)), Some(LONG)));
        assert_eq!(waited(&mut later, LONG, &[300, 60]), (ns(300), 1));
        let mut other = distances.between(Some(0), Some(2));
        assert_eq!(other.least(), None);
        assert_eq!(waited(&mut other, LONG, &[300, 60]), (ns(60), 2));
        let spent = Distances::default().with_budget(Duration::ZERO);
        assert_eq!(spent.between(Some(0), Some(1)).wait(&|| false), None);
        let short = Distances::default().with_budget(Duration::from_nanos(1));
        let mut once = short.between(Some(0), Some(1));
        once.wait(&|| true);
        short.keep(once);
        assert_eq!(short.between(Some(0), Some(1)).look(), None, "its time is over");
        distances.keep(Distance::default());
        assert_eq!(distances.between(None, Some(1)).cores(), None);
    }

    #[test]
    fn whoever_asks_to_stop_does_not_wait() {
        let mut distance = Distance::between(Some(0), Some(1));
        distance.note(ns(60));
        let mut look = |_: &mut Distance| Some(ns(300));
        let found = distance.wait_by(&mut look, (LONG, LONG), &|| true);
        assert_eq!(found, Some(ns(300)));
    }

    #[test]
    fn the_median_is_of_what_is_known() {
        let median_of = |values: &[Option<u64>]| median(values.iter().map(|value| value.map(ns)));
        assert_eq!(median_of(&[Some(300), None, Some(60), Some(70)]), Some(ns(70)));
        assert_eq!(median_of(&[Some(60), Some(70)]), Some(ns(70)));
        assert_eq!(median_of(&[None]), None);
        assert_eq!(whole_ns(Some(ns(70))), Some(70));
    }

    #[test]
    fn one_core_has_no_distance() {
        for (a, b) in [(Some(1), Some(1)), (None, Some(1)), (Some(0), None)] {
            let mut distance = Distance::between(a, b);
            assert_eq!((distance.cores(), distance.look()), (None, None));
            assert_eq!(distance.wait(&|| false), None);
        }
        let error = round_trip(1, 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert_eq!(error.to_string(), "core 1 is not apart from itself: name two cores");
    }

    #[test]
    fn a_line_goes_there_and_back() {
        let cores = allowed_cores().unwrap();
        let error = round_trip(cores[0], 5000).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().starts_with("core 5000 cannot be used"), "{error}");
        if let [a, b, ..] = cores[..] {
            match round_trip(a, b) {
                Ok(found) => assert!(found > Duration::ZERO && found < Duration::from_millis(1)),
                // On a machine that is so busy the test proves nothing.
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}"),
            }
        }
    }
}
