//! The two threads, and the search for their best tuning.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use raceline_reactor::affinity::pin_to_core;
use raceline_reactor::{HugePages, buffer::PageBuf};

use super::requester::Requester;
use super::responder::Responder;
use super::tuning::Tuning;
use super::{LimitConfig, LimitError, Measured, Side, Window, link};
use crate::random::Random;

/// How long each alternative is tried, and its ramp before that; at least one round trip of all commands in
/// flight.
const TRY_TIME: Duration = Duration::from_millis(25);
const TRY_RAMP: Duration = Duration::from_millis(5);
/// Time limit of the search, which then ends with its best result so far.
const SEARCH_LIMIT: Duration = Duration::from_secs(8);
/// Bound on a round trip of all commands in flight, for slow machines.
const ROUND_LIMIT: Duration = Duration::from_secs(2);
/// How often all choices are tried: a later choice may change the best value of an earlier one.
const TRY_ROUNDS: usize = 2;
/// An alternative must be better by this factor, so that noise alone changes little.
const BETTER: f64 = 1.01;
/// How much longer than requested a window may take: both sides notice a standstill earlier.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// A connected pair, which is idle between windows.
#[derive(Debug)]
pub struct Limit {
    config: LimitConfig,
    tuning: Tuning,
    /// The choices for windows with digests, once a search has found them.
    digest_tuning: Option<Tuning>,
    /// The same for windows with TLS.
    tls_tuning: Option<Tuning>,
    /// Approximate round trip of all commands in flight; known after the first window.
    round: Duration,
    target: Worker<Option<PageBuf>>,
    host: Worker<()>,
    results: Receiver<(Side, Result<Measured, LimitError>)>,
}

#[derive(Debug)]
struct Worker<T> {
    orders: Sender<Order>,
    thread: JoinHandle<T>,
}

struct Order {
    tuning: Tuning,
    window: Arc<Window>,
    ramp: Duration,
    time: Duration,
}

/// Maps and fills a region, which another limit may use again.
///
/// # Errors
/// When the memory cannot be allocated.
pub fn fill_region(bytes: usize, pages: HugePages, seed: u64) -> Result<PageBuf, LimitError> {
    let huge = pages == HugePages::Explicit;
    let mut region =
        PageBuf::new(bytes, pages).map_err(|error| LimitError::Memory { bytes, huge, error })?;
    Random::new(seed).fill(&mut region);
    Ok(region)
}

impl Limit {
    /// Connects the two sides. `region` is at least as large as `config` says.
    ///
    /// # Errors
    /// When the options do not fit, or connections or threads cannot be made.
    pub fn start(config: &LimitConfig, region: PageBuf) -> Result<Self, LimitError> {
        config.check()?;
        if region.len() < config.memory_bytes {
            return Err(LimitError::Invalid("the region is smaller than asked for".to_owned()));
        }
        let (target, host) = link::connect(config.connections, config.mode)?;
        let (sender, results) = mpsc::channel();
        let target = start_target(config, target, region, sender.clone())?;
        let host = start_host(config, host, sender)?;
        let limit = Self {
            tuning: Tuning::start(config),
            digest_tuning: None,
            tls_tuning: None,
            round: Duration::ZERO,
            config: config.clone(),
            target,
            host,
            results,
        };
        // Both sides report that they are ready, or why not.
        for _ in 0..2 {
            limit.answer(ANSWER_LIMIT)?;
        }
        Ok(limit)
    }

    /// The choices that [`Limit::run`] uses.
    #[must_use]
    pub fn tuning(&self) -> Tuning {
        self.tuning
    }

    /// The choices that [`Limit::run_with_digests`] uses.
    #[must_use]
    pub fn digest_tuning(&self) -> Tuning {
        self.digest_tuning.unwrap_or(Tuning { digest: true, ..self.tuning })
    }

    /// The choices that [`Limit::run_with_tls`] uses.
    #[must_use]
    pub fn tls_tuning(&self) -> Tuning {
        let own = Tuning { tls: true, by_reference: false, ..self.tuning };
        self.tls_tuning.unwrap_or(own)
    }

    /// Tries alternatives for all choices that the user has not fixed, and keeps the fastest.
    ///
    /// # Errors
    /// When a side fails.
    pub fn calibrate(&mut self) -> Result<(), LimitError> {
        self.tuning = self.search(self.tuning)?;
        Ok(())
    }

    /// The same for windows with digests.
    ///
    /// # Errors
    /// When a side fails, or payload goes to the target.
    pub fn calibrate_with_digests(&mut self) -> Result<(), LimitError> {
        self.check_digests()?;
        self.digest_tuning = Some(self.search(self.digest_tuning())?);
        Ok(())
    }

    /// The same for windows with TLS.
    ///
    /// # Errors
    /// When a side fails, or the pair has no suite.
    pub fn calibrate_with_tls(&mut self) -> Result<(), LimitError> {
        self.check_tls()?;
        self.tls_tuning = Some(self.search(self.tls_tuning())?);
        Ok(())
    }

    /// The fastest choices found, beginning with `start`.
    fn search(&mut self, start: Tuning) -> Result<Tuning, LimitError> {
        let deadline = Instant::now() + SEARCH_LIMIT;
        let mut kept = start;
        self.tried(kept)?;
        let mut best = self.tried(kept)?;
        for _ in 0..TRY_ROUNDS {
            let before = kept;
            let lists = kept.alternatives(&self.config).len();
            for list in 0..lists {
                // Made anew each time, because the best choices have changed since.
                let alternatives = kept.alternatives(&self.config).swap_remove(list);
                for alternative in alternatives {
                    if alternative == kept {
                        continue;
                    }
                    if Instant::now() > deadline {
                        return Ok(kept);
                    }
                    if self.tried(alternative)? <= best * BETTER {
                        continue;
                    }
                    // One fast try may be a spike: both are tried again.
                    let (again, reference) = (self.tried(alternative)?, self.tried(kept)?);
                    best = reference.max(again);
                    if again > reference * BETTER {
                        kept = alternative;
                    }
                }
            }
            if kept == before {
                break;
            }
        }
        Ok(kept)
    }

    fn tried(&mut self, tuning: Tuning) -> Result<f64, LimitError> {
        let (ramp, time) = (TRY_RAMP.max(self.round), TRY_TIME.max(self.round));
        let iops = self.window(tuning, ramp, time)?.iops();
        let in_flight = self.config.depth * self.config.connections;
        if iops > 0.0 {
            self.round = Duration::from_secs_f64(in_flight as f64 / iops).min(ROUND_LIMIT);
        }
        Ok(iops)
    }

    /// Approximate round trip of all commands in flight; zero before [`Limit::calibrate`].
    #[must_use]
    pub fn round(&self) -> Duration {
        self.round
    }

    /// One window: runs for `ramp`, then measures for `time`.
    ///
    /// # Errors
    /// When a side fails.
    pub fn run(&mut self, ramp: Duration, time: Duration) -> Result<Measured, LimitError> {
        self.window(self.tuning, ramp, time)
    }

    /// One window whose payloads carry digests: the target's side copies and digests them, the host's side
    /// checks them.
    ///
    /// # Errors
    /// When a side fails, or payload goes to the target.
    pub fn run_with_digests(
        &mut self,
        ramp: Duration,
        time: Duration,
    ) -> Result<Measured, LimitError> {
        self.check_digests()?;
        self.window(self.digest_tuning(), ramp, time)
    }

    /// One window whose bytes go in records of TLS.
    ///
    /// # Errors
    /// When a side fails, or the pair has no suite.
    pub fn run_with_tls(&mut self, ramp: Duration, time: Duration) -> Result<Measured, LimitError> {
        self.check_tls()?;
        self.window(self.tls_tuning(), ramp, time)
    }

    fn check_tls(&self) -> Result<(), LimitError> {
        match self.config.tls {
            Some(_) => Ok(()),
            None => Err(LimitError::Invalid("the pair has no suite of TLS".to_owned())),
        }
    }

    fn check_digests(&self) -> Result<(), LimitError> {
        if self.config.write {
            let message = "digests are measured with reads: leave out writes";
            return Err(LimitError::Invalid(message.to_owned()));
        }
        Ok(())
    }

    /// Closes the connections, waits for the threads, and gives the region back.
    pub fn stop(self) -> Option<PageBuf> {
        drop((self.target.orders, self.host.orders));
        // A thread that panicked has reported it on standard error.
        let _ = self.host.thread.join();
        self.target.thread.join().ok().flatten()
    }

    fn window(
        &mut self,
        tuning: Tuning,
        ramp: Duration,
        time: Duration,
    ) -> Result<Measured, LimitError> {
        let window = Arc::new(Window::default());
        for orders in [&self.target.orders, &self.host.orders] {
            let order = Order { tuning, window: Arc::clone(&window), ramp, time };
            // The answer of a side that is gone will be missing below.
            let _ = orders.send(order);
        }
        let (mut asked, mut answered, mut failed) = (None, None, None);
        for _ in 0..2 {
            match self.answer(ramp + time + ANSWER_LIMIT) {
                Ok((Side::Host, measured)) => asked = Some(measured),
                Ok((Side::Target, measured)) => answered = Some(measured),
                Err(error) => {
                    window.fail();
                    // The other side fails because of the first.
                    failed = failed.or(Some(error));
                }
            }
        }
        match (failed, asked, answered) {
            (Some(error), ..) => Err(error),
            (None, Some(asked), Some(answered)) if asked.total == answered.total => {
                Ok(Measured { busy: answered.busy, ..asked })
            }
            _ => Err(LimitError::Protocol("the two sides counted differently")),
        }
    }

    fn answer(&self, limit: Duration) -> Result<(Side, Measured), LimitError> {
        match self.results.recv_timeout(limit) {
            Ok((side, result)) => result.map(|measured| (side, measured)),
            Err(_) => Err(LimitError::Protocol("a side does not answer")),
        }
    }
}

type Results = Sender<(Side, Result<Measured, LimitError>)>;

fn start_target(
    config: &LimitConfig,
    streams: Vec<TcpStream>,
    region: PageBuf,
    results: Results,
) -> Result<Worker<Option<PageBuf>>, LimitError> {
    let config = config.clone();
    start("limit-target", Side::Target, move |orders| {
        let made = prepare(Side::Target, config.target_core).and_then(|()| {
            Responder::new(&config, streams, region).map_err(LimitError::on(Side::Target))
        });
        let mut responder = ready(Side::Target, made, &results)?;
        for order in orders {
            let result = responder.run(order.tuning, &order.window);
            if result.is_err() {
                order.window.fail();
            }
            let time = Duration::ZERO;
            let measured = |(total, busy)| Measured { commands: total, time, total, busy };
            let _ = results.send((Side::Target, result.map(measured)));
        }
        Some(responder.into_region())
    })
}

fn start_host(
    config: &LimitConfig,
    streams: Vec<TcpStream>,
    results: Results,
) -> Result<Worker<()>, LimitError> {
    let config = config.clone();
    start("limit-host", Side::Host, move |orders| {
        let made = prepare(Side::Host, config.host_core)
            .and_then(|()| Requester::new(&config, streams).map_err(LimitError::on(Side::Host)));
        let Some(mut requester) = ready(Side::Host, made, &results) else { return };
        for order in orders {
            let result = requester.run(order.tuning, &order.window, order.ramp, order.time);
            match result {
                Ok(_) => order.window.close(),
                Err(_) => order.window.fail(),
            }
            let _ = results.send((Side::Host, result));
        }
    })
}

fn start<T: Send + 'static>(
    name: &str,
    side: Side,
    work: impl FnOnce(Receiver<Order>) -> T + Send + 'static,
) -> Result<Worker<T>, LimitError> {
    let (orders, receiver) = mpsc::channel();
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || work(receiver));
    let thread = thread.map_err(|error| LimitError::Thread { side, error })?;
    Ok(Worker { orders, thread })
}

fn prepare(side: Side, core: Option<usize>) -> Result<(), LimitError> {
    match core {
        Some(core) => pin_to_core(core).map_err(|error| LimitError::Thread { side, error }),
        None => Ok(()),
    }
}

/// Reports whether a side is ready.
fn ready<T>(side: Side, made: Result<T, LimitError>, results: &Results) -> Option<T> {
    let none = Duration::ZERO;
    let nothing = Measured { commands: 0, time: none, total: 0, busy: none };
    let (made, result) = match made {
        Ok(made) => (Some(made), Ok(nothing)),
        Err(error) => (None, Err(error)),
    };
    let _ = results.send((side, result));
    made
}
