//! What several paths to one subsystem have in common.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::Topology;
use crate::transport::Transport;

/// What is assumed for controllers that do not report how long they need to quiesce (CQT).
pub const DEFAULT_QUIESCE: Duration = Duration::from_secs(5);

/// One more way to the controllers of a subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathAddress {
    /// Where a controller listens.
    pub address: SocketAddr,
    /// The address of this machine from which connections are made; `None`: the kernel chooses one.
    pub source: Option<IpAddr>,
    /// What carries its queues.
    pub transport: Transport,
}

/// Which of several usable paths a command takes. A path whose namespace is optimized (ANA) always comes before one
/// that is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// One path until it cannot be used: the preferred one, else the first in order.
    #[default]
    ActivePassive,
    /// All optimized paths in turn, each for so many commands.
    RoundRobin {
        /// Commands until the next path, at least 1.
        min_io: u32,
    },
    /// The path with the fewest commands outstanding on this core.
    QueueDepth,
    /// One path until it cannot be used: the preferred one, else the first of those whose network device is nearest to
    /// this core, by [`MultipathConfig::topology`]. A path whose node is unknown counts as one of another node.
    Numa,
}

impl Policy {
    /// Its name, as [`Policy::from_str`] reads it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ActivePassive => "active-passive",
            Self::RoundRobin { .. } => "round-robin",
            Self::QueueDepth => "queue-depth",
            Self::Numa => "numa",
        }
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "active-passive" | "active_passive" => Ok(Self::ActivePassive),
            "round-robin" | "round_robin" => Ok(Self::RoundRobin { min_io: 1 }),
            "queue-depth" | "queue_depth" => Ok(Self::QueueDepth),
            "numa" => Ok(Self::Numa),
            _ => Err(format!(
                "`{}` is no policy: active-passive, round-robin, queue-depth and numa are",
                text.escape_debug()
            )),
        }
    }
}

/// How commands find their path, and what becomes of them when a path is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MultipathConfig {
    /// Which path a command takes.
    pub policy: Policy,
    /// Whether a better path is used again as soon as it is back; without, commands stay with the path that they have
    /// while it is as good by its ANA state.
    pub failback: bool,
    /// How long commands without a usable path wait after the last path was lost, before they end with an error
    /// (fast_io_fail_tmo of Linux); `None`: until all paths are given up. A path that is connected counts as one that
    /// may come back, whatever its ANA state is, except persistent loss.
    pub fast_io_fail: Option<Duration>,
    /// The quiesce time of a controller that does not report one: part of the time for which a write whose path
    /// was lost is held back before it is sent on another path.
    pub default_quiesce: Duration,
    /// Where cores and network devices are, for [`Policy::Numa`]. An empty one knows nothing, and the order of the
    /// paths counts.
    pub topology: Arc<Topology>,
}

impl MultipathConfig {
    /// Options with this policy, and with what the policy has to know of this machine.
    #[must_use]
    pub fn with_policy(policy: Policy) -> Self {
        let topology = match policy {
            Policy::Numa => Arc::new(Topology::of_this_machine()),
            _ => Arc::default(),
        };
        Self { policy, topology, ..Self::default() }
    }
}

impl Default for MultipathConfig {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            failback: true,
            fast_io_fail: None,
            default_quiesce: DEFAULT_QUIESCE,
            topology: Arc::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_by_name() {
        let round_robin = Policy::RoundRobin { min_io: 1 };
        for policy in [Policy::ActivePassive, round_robin, Policy::QueueDepth, Policy::Numa] {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        let error = "best\n".parse::<Policy>().unwrap_err();
        assert_eq!(
            error,
            "`best\\n` is no policy: active-passive, round-robin, queue-depth and numa are"
        );
    }
}
