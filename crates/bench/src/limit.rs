//! The limit: what the machine's TCP gives to a pair that does nothing but move NVMe's bytes.
//!
//! Two threads exchange the bytes of NVMe/TCP commands over loopback
//! connections: the target's side sends payload straight out of a filled region and receives
//! into it; the host's side keeps a number of commands in flight. There is no protocol to speak
//! of, no reactor and no command table. What is left is the kernel and the memory, and the
//! choices that decide how well they work ([`Tuning`]); [`Limit::calibrate`] finds good ones (lab 0004).
//!
//! For reads the pair can take turns with and without data digests: with them the target's side
//! copies each payload and digests it in one pass, and the host's side checks it. The ratio of the
//! two is what digests must cost on this machine, whoever handles the protocol.

mod digest;
mod link;
mod pair;
pub mod report;
mod requester;
mod responder;
mod tuning;
mod wire;
mod work;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use raceline_reactor::HugePages;

pub use pair::{Limit, fill_region};
pub use tuning::{ALL, Fixed, Landing, Look, Prefetch, Tuning};

use self::wire::Shape;

/// A region that the caches hold.
pub const HOT_BYTES: usize = 1 << 20;
/// Most commands in flight on a connection.
pub const DEPTH_MAX: usize = 4096;
/// Most connections.
pub const CONNECTIONS_MAX: usize = 1024;
/// Most bytes of a command.
pub const IO_BYTES_MAX: usize = 16 << 20;

/// What to exchange.
#[derive(Clone, Debug)]
pub struct LimitConfig {
    /// Bytes of payload per command.
    pub io_bytes: usize,
    /// Writes; else reads.
    pub write: bool,
    /// Commands in flight on each connection.
    pub depth: usize,
    /// Number of connections.
    pub connections: usize,
    /// Bytes of the region.
    pub memory_bytes: usize,
    /// What the region is made of.
    pub pages: HugePages,
    /// How the sides wait.
    pub mode: Mode,
    /// The core of the target's side; `None` lets it float.
    pub target_core: Option<usize>,
    /// The core of the host's side; `None` lets it float.
    pub host_core: Option<usize>,
    /// What is not left to [`Limit::calibrate`].
    pub fixed: Fixed,
    /// The same seed gives the same addresses and data.
    pub seed: u64,
}

/// How the sides wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They look without a pause.
    Polled,
    /// They sleep in the kernel: in a receive, or with several connections in epoll.
    Blocking,
}

/// What a window gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Commands finished while it was measured.
    pub commands: u64,
    /// How long it was measured.
    pub time: Duration,
    /// Commands finished at all, ramp and end included.
    pub total: u64,
    /// How long the target's side had something to do for these; where it sleeps that is not known,
    /// and zero.
    pub busy: Duration,
}

/// One of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It answers.
    Target,
    /// It asks.
    Host,
}

/// Why a limit could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// The options do not fit each other.
    #[error("{0}")]
    Invalid(String),
    /// The memory cannot be had.
    #[error("cannot map {bytes} bytes of memory: {error}{}", if *.huge {
        "; reserve huge pages with sysctl vm.nr_hugepages, or use --pages transparent"
    } else { "" })]
    Memory {
        /// How much.
        bytes: usize,
        /// Whether huge pages were asked for that must be reserved.
        huge: bool,
        /// Why.
        error: io::Error,
    },
    /// The connections cannot be made.
    #[error("cannot make {count} connections over the loopback: {error}")]
    Connect {
        /// How many.
        count: usize,
        /// Why.
        error: io::Error,
    },
    /// A thread cannot be started or bound to its core.
    #[error("cannot start the thread of the {side}'s side: {error}")]
    Thread {
        /// Which.
        side: Side,
        /// Why.
        error: io::Error,
    },
    /// A socket failed.
    #[error("a socket of the {side}'s side failed: {error}")]
    Socket {
        /// Which.
        side: Side,
        /// Why.
        error: io::Error,
    },
    /// The two sides do not agree: a fault of this program.
    #[error("{0}: this is a fault of this program, please report it")]
    Protocol(&'static str),
    /// Nothing moves any more.
    #[error(
        "the {0}'s side got no answer for 5 s: the machine is overloaded, or the cores are shared"
    )]
    Stalled(Side),
}

impl LimitError {
    /// Says on which side a socket failed.
    fn on(side: Side) -> impl Fn(io::Error) -> Self {
        move |error| Self::Socket { side, error }
    }
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Target => "target",
            Self::Host => "host",
        })
    }
}

impl Measured {
    /// Commands per second.
    #[must_use]
    pub fn iops(&self) -> f64 {
        if self.time.is_zero() {
            return 0.0;
        }
        self.commands as f64 / self.time.as_secs_f64()
    }

    /// Time of the target's core per command, in nanoseconds, if it is known.
    #[must_use]
    pub fn core_ns(&self) -> Option<f64> {
        let known = !self.busy.is_zero() && self.total > 0;
        known.then(|| self.busy.as_nanos() as f64 / self.total as f64)
    }
}

impl LimitConfig {
    /// Checks what the options promise to each other.
    ///
    /// # Errors
    /// When they do not fit.
    pub fn check(&self) -> Result<(), LimitError> {
        let invalid = |message: String| Err(LimitError::Invalid(message));
        if !(1..=IO_BYTES_MAX).contains(&self.io_bytes) {
            return invalid(format!(
                "a command moves 1 to {IO_BYTES_MAX} bytes, not {}",
                self.io_bytes
            ));
        }
        if !(1..=DEPTH_MAX).contains(&self.depth) {
            return invalid(format!("the depth is 1 to {DEPTH_MAX}, not {}", self.depth));
        }
        if !(1..=CONNECTIONS_MAX).contains(&self.connections) {
            let count = self.connections;
            return invalid(format!(
                "there may be 1 to {CONNECTIONS_MAX} connections, not {count}"
            ));
        }
        if self.memory_bytes < self.io_bytes {
            return invalid(format!(
                "{} bytes of memory have no room for a command of {}",
                self.memory_bytes, self.io_bytes
            ));
        }
        Ok(())
    }

    fn shape(&self) -> Shape {
        Shape::of(self.write, self.io_bytes)
    }

    /// Bytes per command in the direction of the payload.
    fn payload_direction_bytes(&self) -> usize {
        if self.write {
            self.shape().bytes_to_target(self.io_bytes)
        } else {
            self.shape().bytes_to_host(self.io_bytes)
        }
    }

    /// Memory for the payload of all commands in flight.
    fn per_command_bytes(&self) -> usize {
        self.depth * self.connections * self.payload_direction_bytes()
    }
}

/// Whether the two sides are to go on; shared by them for one window.
#[derive(Debug, Default)]
struct Window {
    closed: AtomicBool,
    failed: AtomicBool,
}

impl Window {
    fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Relaxed)
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Ends the window; the host's side has received everything.
    fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Ends the window because a side is broken.
    fn fail(&self) {
        self.failed.store(true, Ordering::Release);
        self.close();
    }
}
