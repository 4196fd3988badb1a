//! Handshakes of TLS beside I/O: how many a target's core makes per second, and what commands of others wait for them.
//!
//! A target on one core serves a host over TLS. In each round the host runs its load alone, and then while a thread makes
//! connections over TLS at a fixed rate, open loop, and leaves each one when both ends have finished the handshake. The
//! ratio is that of the host's P99 with the handshakes over its P99 without them in the same round.
//!
//! The thread runs on the host's core and gives way to it (a nice value of 19), and the host sleeps when it has nothing
//! to do. So the thread takes time that the host leaves, and what the ratio shows is the target's core.

pub mod report;
mod storm;

use std::time::Duration;

use raceline_reactor::{Backend, HugePages, Mode};
use raceline_tls::Suite;

use crate::distance::Distances;
use crate::gap::product::Product;
use crate::gap::{Case, GapConfig, GapError, Kind, Subject};
use crate::histogram::Latencies;
use crate::quiet::{self, Disturbance, Machine};
use crate::runner::Session;

use self::storm::Storm;
pub use self::storm::Storms;

/// Disturbed rounds are repeated until this many times the requested number has been run.
const ATTEMPTS_FACTOR: usize = 3;
/// Bytes of the namespace.
const MEMORY_BYTES: usize = 64 << 20;

/// The settings of a measurement.
#[derive(Clone, Debug)]
pub struct HandshakesConfig {
    /// The suite of all connections.
    pub suite: Suite,
    /// Handshakes per second that are asked for.
    pub rate: u32,
    /// Bytes of a command; commands are random reads.
    pub io_bytes: u32,
    /// Rounds that count, for each depth.
    pub rounds: usize,
    /// The ramp of each run, and its measured time.
    pub ramp: Duration,
    /// See `ramp`.
    pub time: Duration,
    /// What the target's core does when it is idle.
    pub mode: Mode,
    /// How target and host do I/O.
    pub backend: Backend,
    /// The core of the target.
    pub target_core: usize,
    /// The core of the host, and of the thread that shakes hands.
    pub host_core: usize,
    /// The same seed gives the same addresses.
    pub seed: u64,
}

/// A run of the load alone, and one beside handshakes.
#[derive(Clone, Debug)]
pub struct Round {
    /// Latencies without handshakes.
    pub alone: Latencies,
    /// Latencies with them.
    pub beside: Latencies,
    /// What became of the handshakes.
    pub storms: Storms,
    /// Disturbances during the round.
    pub disturbance: Disturbance,
}

/// The rounds with one depth.
#[derive(Clone, Debug)]
pub struct Point {
    /// Commands in flight of the host.
    pub depth: u16,
    /// The rounds that count: quiet ones, then the least disturbed.
    pub rounds: Vec<Round>,
    /// Rounds that do not count because something disturbed them.
    pub repeated: usize,
}

impl Round {
    /// P99 with handshakes over P99 without.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        let p99 = |latencies: &Latencies| latencies.percentile_ns(99.0) as f64;
        if self.alone.count() == 0 { 0.0 } else { p99(&self.beside) / p99(&self.alone) }
    }
}

/// A target, for one depth after the other.
pub struct Handshakes {
    config: HandshakesConfig,
    gap: GapConfig,
    product: Product,
}

impl Handshakes {
    /// Starts the target.
    ///
    /// # Errors
    /// When memory, threads, keys or a listening socket are not available.
    pub fn start(config: &HandshakesConfig) -> Result<Self, GapError> {
        let gap = gap_config(config);
        let largest = Case { io_bytes: config.io_bytes, write: false, depth: 128, connections: 1 };
        let product = Product::start(Kind::Export, &gap, &[largest])?;
        Ok(Self { config: config.clone(), gap, product })
    }

    /// Measures with this depth, at most 128. `stop` is asked several times a second.
    ///
    /// # Errors
    /// When target or host fails, or `stop` says true.
    pub fn measure(&mut self, depth: u16, stop: &dyn Fn() -> bool) -> Result<Point, GapError> {
        let case = Case { io_bytes: self.config.io_bytes, write: false, depth, connections: 1 };
        let mut watch = |_| !stop();
        let mut session = self.product.connect(&self.gap, case, &mut watch)?;
        let wanted = self.config.rounds;
        let mut rounds: Vec<Round> = Vec::with_capacity(wanted);
        loop {
            let quiet = rounds.iter().filter(|round| !round.disturbance.is_too_much()).count();
            if quiet >= wanted || rounds.len() >= wanted * ATTEMPTS_FACTOR {
                break;
            }
            rounds.push(self.round(&mut session, case)?);
            if stop() {
                return Err(GapError::Stopped);
            }
        }
        let (rounds, rejected) = quiet::choose(rounds, wanted, |round| round.disturbance);
        Ok(Point { depth, rounds, repeated: rejected.len() })
    }

    fn round(&mut self, session: &mut Session<'_>, case: Case) -> Result<Round, GapError> {
        let before = Machine::now();
        let (alone, _) = self.run(session, case, None)?;
        let (beside, storms) = self.run(session, case, Some(self.config.rate))?;
        let disturbance = Machine::now().since(&before);
        Ok(Round { alone, beside, storms, disturbance })
    }

    /// One run, with handshakes at this rate from before it until after it.
    fn run(
        &mut self,
        session: &mut Session<'_>,
        case: Case,
        rate: Option<u32>,
    ) -> Result<(Latencies, Storms), GapError> {
        self.product.set_mode(self.config.mode);
        let offer = self.product.tls_offer();
        let storm = rate.zip(offer).map(|(rate, (address, psk))| {
            Storm::start(address, psk.clone(), rate, self.config.host_core)
        });
        let storm = storm.transpose().map_err(GapError::Storm)?;
        self.gap.seed = self.gap.seed.wrapping_add(1);
        let outcome = session.run(self.gap.seed);
        let storms = storm.map(Storm::stop).unwrap_or_default();
        self.product.set_mode(Mode::Interrupt);
        let outcome = outcome?;
        match outcome.error {
            Some(error) => Err(GapError::command(case, error)),
            None => Ok((outcome.read, storms)),
        }
    }

    /// Ends the target.
    ///
    /// # Errors
    /// When it does not end.
    pub fn stop(self) -> Result<(), GapError> {
        self.product.stop()
    }
}

fn gap_config(config: &HandshakesConfig) -> GapConfig {
    GapConfig {
        subject: Subject::Export,
        memory_bytes: MEMORY_BYTES,
        pages: HugePages::Transparent,
        null: false,
        buffer_each: false,
        staged: false,
        work: Duration::ZERO,
        tls: Some(config.suite),
        mode: config.mode,
        backend: config.backend,
        target_core: Some(config.target_core),
        host_core: Some(config.host_core),
        pairs: config.rounds,
        ramp: config.ramp,
        time: config.time,
        seed: config.seed,
        distances: Distances::default(),
    }
}
