//! The limit: the machine's TCP speed for a pair of threads that only move NVMe's bytes.
//!
//! Two threads exchange the bytes of NVMe/TCP commands over loopback connections. The target's side sends
//! payload straight out of a filled region and receives into it; the host's side keeps a number of commands
//! in flight. There is almost no protocol, no reactor and no command table. What remains is the kernel, the
//! memory, and the choices that decide how well they work ([`Tuning`]); [`Limit::calibrate`] finds good
//! ones (lab 0004).
//!
//! For reads the pair can take turns with and without data digests: with digests the target's side copies
//! each payload and digests it in one pass, and the host's side checks it. The ratio of the two is the
//! unavoidable cost of digests on this machine, for any implementation of the protocol. With and without
//! records of TLS the pair takes turns in the same way.

mod digest;
mod link;
mod pair;
pub mod report;
mod requester;
mod responder;
mod tls;
mod tuning;
mod wire;
mod work;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use raceline_reactor::HugePages;
use raceline_tls::Suite;

pub use pair::{Limit, fill_region};
pub use tuning::{ALL, Fixed, Landing, Look, Prefetch, Tuning};

use self::wire::Shape;

/// Size of a region that fits in the caches.
pub const HOT_BYTES: usize = 1 << 20;
/// Most commands in flight on a connection.
pub const DEPTH_MAX: usize = 4096;
/// Most connections.
pub const CONNECTIONS_MAX: usize = 1024;
/// Most bytes of a command.
pub const IO_BYTES_MAX: usize = 16 << 20;

/// The settings of an exchange.
#[derive(Clone, Debug)]
pub struct LimitConfig {
    /// Bytes of payload per command.
    pub io_bytes: usize,
    /// Whether they are writes; otherwise reads.
    pub write: bool,
    /// Commands in flight on each connection.
    pub depth: usize,
    /// Number of connections.
    pub connections: usize,
    /// Bytes of the region.
    pub memory_bytes: usize,
    /// The pages of the region.
    pub pages: HugePages,
    /// How the sides wait.
    pub mode: Mode,
    /// The core of the target's side; `None` lets it float.
    pub target_core: Option<usize>,
    /// The core of the host's side; `None` lets it float.
    pub host_core: Option<usize>,
    /// The choices that [`Limit::calibrate`] must not change.
    pub fixed: Fixed,
    /// The suite of windows with TLS; `None` if there are none.
    pub tls: Option<Suite>,
    /// The same seed gives the same addresses and data.
    pub seed: u64,
}

/// How the sides wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They poll without a pause.
    Polled,
    /// They sleep in the kernel: in a receive, or with several connections in epoll.
    Blocking,
}

/// The results of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Commands finished during the measured time.
    pub commands: u64,
    /// The measured time.
    pub time: Duration,
    /// All finished commands, including those of the ramp and the end.
    pub total: u64,
    /// How long the target's side was busy with these commands; zero if it sleeps, because the time is then
    /// unknown.
    pub busy: Duration,
}

/// One of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that answers.
    Target,
    /// The side that asks.
    Host,
}

/// Why a limit could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// The options exclude each other.
    #[error("{0}")]
    Invalid(String),
    /// The memory cannot be allocated.
    #[error("cannot map {bytes} bytes of memory: {error}{}", if *.huge {
        "; reserve huge pages with sysctl vm.nr_hugepages, or use --pages transparent"
    } else { "" })]
    Memory {
        /// Size of the memory.
        bytes: usize,
        /// Whether huge pages were requested that must be reserved.
        huge: bool,
        /// The reason.
        error: io::Error,
    },
    /// The connections cannot be made.
    #[error("cannot make {count} connections over the loopback: {error}")]
    Connect {
        /// Number of connections.
        count: usize,
        /// The reason.
        error: io::Error,
    },
    /// A thread cannot be started or bound to its core.
    #[error("cannot start the thread of the {side}'s side: {error}")]
    Thread {
        /// The side of the thread.
        side: Side,
        /// The reason.
        error: io::Error,
    },
    /// A socket failed.
    #[error("a socket of the {side}'s side failed: {error}")]
    Socket {
        /// The side of the socket.
        side: Side,
        /// The reason.
        error: io::Error,
    },
    /// The two sides disagree: a bug of this program.
    #[error("{0}: this is a fault of this program, please report it")]
    Protocol(&'static str),
    /// No bytes move any more.
    #[error(
        "the {0}'s side got no answer for 5 s: the machine is overloaded, or the cores are shared"
    )]
    Stalled(Side),
}

impl LimitError {
    /// Makes an error of this side's socket.
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
    /// Checks that the options fit each other.
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

/// The state of one window, shared by the two sides: whether they are to continue.
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

    /// Ends the window; the host's side has received all responses.
    fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Ends the window because a side has failed.
    fn fail(&self) {
        self.failed.store(true, Ordering::Release);
        self.close();
    }
}
