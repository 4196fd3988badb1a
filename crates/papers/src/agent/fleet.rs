//! A fleet of agents that run their loads at the same time, and what they measured together.

use std::time::{Duration, Instant};

use raceline_bench::Latencies;

use super::link::{Agent, Offset};
use super::load::Load;
use super::message::{AgentOutcome, Answer, Request};

/// How far ahead the common start is. All agents must have been told by then.
const LEAD: Duration = Duration::from_secs(2);
/// How long an agent may take to connect.
const PREPARE_LIMIT: Duration = Duration::from_secs(60);
/// How long after the end of its run an agent may be silent.
const RESULT_LIMIT: Duration = Duration::from_secs(40);
/// A window that is off by more than this share of the run voids it.
const SKEW_MAX: f64 = 0.01;
/// Below this ratio of the least to the greatest share, the shares are unfair.
const FAIR_MIN: f64 = 0.9;
/// How often the fleet looks at its agents.
const TICK: Duration = Duration::from_millis(20);

/// Why a run counts for nothing.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The connection to an agent failed.
    #[error("agent {agent} vanished while {during}: {why}; this run is void")]
    Vanished {
        /// Its name.
        agent: String,
        /// What was going on.
        during: &'static str,
        /// How it is known.
        why: String,
    },
    /// An agent does not answer.
    #[error("agent {agent} has said nothing for {} s while {during}; this run is void", .limit.as_secs())]
    Silent {
        /// Its name.
        agent: String,
        /// What was going on.
        during: &'static str,
        /// The time that it had.
        limit: Duration,
    },
    /// An agent could not do what it was asked for.
    #[error("agent {agent} failed while {during}: {why}")]
    Failed {
        /// Its name.
        agent: String,
        /// What was going on.
        during: &'static str,
        /// What it said.
        why: String,
    },
    /// An agent is another program.
    #[error("agent {agent} has version {theirs}, and this is {ours}: use the same on all machines")]
    Version {
        /// Its name.
        agent: String,
        /// Its version.
        theirs: String,
        /// The version of this program.
        ours: String,
    },
    /// An agent said something wrong.
    #[error("agent {agent} does not keep to the protocol: {why}")]
    Protocol {
        /// Its name.
        agent: String,
        /// What was wrong.
        why: String,
    },
    /// An agent's window is not that of the others.
    #[error(
        "agent {agent} measured {} ms beside the common window of {} ms: this run is void, repeat it",
        .by.as_millis(), .window.as_millis()
    )]
    Late {
        /// Its name.
        agent: String,
        /// How far its window is off.
        by: Duration,
        /// The window.
        window: Duration,
    },
    /// The caller's arguments do not fit each other.
    #[error("{0}")]
    Invalid(String),
    /// The caller has asked to stop.
    #[error("stopped")]
    Stopped,
}

impl FleetError {
    pub(super) fn vanished(agent: &str, during: &'static str, why: &std::io::Error) -> Self {
        Self::Vanished { agent: agent.to_owned(), during, why: why.to_string() }
    }

    pub(super) fn protocol(agent: &str, why: String) -> Self {
        Self::Protocol { agent: agent.to_owned(), why }
    }
}

/// Agents with their loads.
#[derive(Debug)]
pub struct Fleet {
    agents: Vec<Agent>,
    clock: Instant,
    /// The time of the common window, with its ramp.
    ramp: Duration,
    runtime: Duration,
}

/// What a fleet measured in the common window.
#[derive(Clone, Debug)]
pub struct Together {
    /// Latencies of all reads.
    pub reads: Latencies,
    /// Latencies of all writes.
    pub writes: Latencies,
    /// Commands per second of all agents.
    pub iops: f64,
    /// What each agent did.
    pub shares: Vec<Share>,
    /// The largest distance of an agent's start from the common one.
    pub skew: Duration,
    /// The largest error of an agent's clock.
    pub clock_error: Duration,
}

/// What one agent did.
#[derive(Clone, Debug)]
pub struct Share {
    /// Its name.
    pub agent: String,
    /// Its commands per second.
    pub iops: f64,
    /// What it measured.
    pub outcome: AgentOutcome,
}

impl Together {
    /// The least of the agents' rates, over the greatest one.
    #[must_use]
    pub fn fairness(&self) -> f64 {
        let rates = || self.shares.iter().map(|share| share.iops);
        let (least, most) = (rates().fold(f64::INFINITY, f64::min), rates().fold(0.0, f64::max));
        if most > 0.0 { least / most } else { 0.0 }
    }

    /// Whether the agents got about the same.
    #[must_use]
    pub fn is_fair(&self) -> bool {
        self.fairness() >= FAIR_MIN
    }
}

impl Fleet {
    /// Has each agent connect with its load. All loads have the same ramp and the same runtime.
    ///
    /// # Errors
    /// When the numbers of agents and loads differ, or an agent cannot connect.
    pub fn prepare(mut agents: Vec<Agent>, loads: &[Load]) -> Result<Self, FleetError> {
        let Some(first) = loads.first().filter(|_| loads.len() == agents.len()) else {
            let (agents, loads) = (agents.len(), loads.len());
            return Err(FleetError::Invalid(format!("{agents} agents for {loads} loads")));
        };
        let times = |load: &Load| (load.ramp_ms, load.runtime_ms);
        if loads.iter().any(|load| times(load) != times(first)) {
            let why = "the loads of a fleet must have the same ramp and the same runtime";
            return Err(FleetError::Invalid(why.to_owned()));
        }
        for (agent, load) in agents.iter_mut().zip(loads) {
            agent.say(&Request::Prepare { load: Box::new(load.clone()) }, "connecting")?;
        }
        for agent in &mut agents {
            match agent.wait(PREPARE_LIMIT, "connecting")? {
                Answer::Ready {} => {}
                other => return Err(agent.unexpected(&other, "connecting")),
            }
        }
        let ramp = Duration::from_millis(first.ramp_ms);
        let runtime = Duration::from_millis(first.runtime_ms);
        Ok(Self { agents, clock: Instant::now(), ramp, runtime })
    }

    /// Runs all loads once, in one window. `watch` is called several times a second with the time since the start, and
    /// ends the run by giving false. After an error the fleet is of no use: its agents may still be running.
    ///
    /// # Errors
    /// When an agent vanishes, fails, or measures beside the common window. The run is then void.
    pub fn run(&mut self, watch: &mut dyn FnMut(Duration) -> bool) -> Result<Together, FleetError> {
        let result = self.try_run(watch);
        if result.is_err() {
            for agent in &mut self.agents {
                // Those that are gone cannot be told.
                let _ = agent.say(&Request::Stop {}, "stopping");
            }
        }
        result
    }

    fn try_run(&mut self, watch: &mut dyn FnMut(Duration) -> bool) -> Result<Together, FleetError> {
        let clock = self.clock;
        let offsets = self.agents.iter_mut().map(|agent| agent.offset(clock));
        let offsets = offsets.collect::<Result<Vec<Offset>, _>>()?;
        let start = clock.elapsed() + LEAD;
        for (agent, offset) in self.agents.iter_mut().zip(&offsets) {
            agent.say(&Request::Start { at_ns: offset.agent_ns(start) }, "starting the run")?;
        }
        let outcomes = self.collect(start, watch)?;
        self.merge(start, &offsets, outcomes)
    }

    /// Waits for all results, and notices at once when an agent is gone.
    fn collect(
        &mut self,
        start: Duration,
        watch: &mut dyn FnMut(Duration) -> bool,
    ) -> Result<Vec<AgentOutcome>, FleetError> {
        let mut outcomes: Vec<Option<AgentOutcome>> = vec![None; self.agents.len()];
        let deadline = start + self.ramp + self.runtime + RESULT_LIMIT;
        loop {
            for (agent, outcome) in self.agents.iter_mut().zip(&mut outcomes) {
                if outcome.is_some() {
                    continue;
                }
                match agent.look("running its load")? {
                    None => {}
                    Some(Answer::Result { outcome: result }) if result.is_sound() => {
                        *outcome = Some(*result);
                    }
                    Some(other) => return Err(agent.unexpected(&other, "running its load")),
                }
            }
            let missing = outcomes.iter().position(Option::is_none);
            let Some(missing) = missing else {
                return Ok(outcomes.into_iter().flatten().collect());
            };
            let now = self.clock.elapsed();
            if now > deadline {
                let agent = self.agents[missing].name().to_owned();
                let (during, limit) = ("running its load", RESULT_LIMIT);
                return Err(FleetError::Silent { agent, during, limit });
            }
            if !watch(now.saturating_sub(start)) {
                return Err(FleetError::Stopped);
            }
            std::thread::sleep(TICK);
        }
    }

    fn merge(
        &self,
        start: Duration,
        offsets: &[Offset],
        outcomes: Vec<AgentOutcome>,
    ) -> Result<Together, FleetError> {
        let clock_error = offsets.iter().map(|offset| offset.error).max().unwrap_or_default();
        let (reads, writes) = (Latencies::new(), Latencies::new());
        let (shares, skew) = (Vec::new(), Duration::ZERO);
        let mut together = Together { reads, writes, iops: 0.0, shares, skew, clock_error };
        for ((agent, offset), outcome) in self.agents.iter().zip(offsets).zip(outcomes) {
            let measured = Duration::from_nanos(outcome.measured_ns);
            let skew = offset.here(outcome.began_ns).abs_diff(start);
            // Both ends of the window: its begin, and its length.
            let by = skew.max(measured.abs_diff(self.runtime));
            if by.as_secs_f64() > self.runtime.as_secs_f64() * SKEW_MAX + offset.error.as_secs_f64()
            {
                let (agent, window) = (agent.name().to_owned(), self.runtime);
                return Err(FleetError::Late { agent, by, window });
            }
            outcome.reads.add_to(&mut together.reads);
            outcome.writes.add_to(&mut together.writes);
            let commands = outcome.reads.count() + outcome.writes.count();
            let iops = commands as f64 / measured.as_secs_f64();
            together.iops += iops;
            together.skew = together.skew.max(skew);
            together.shares.push(Share { agent: agent.name().to_owned(), iops, outcome });
        }
        Ok(together)
    }
}
