//! A fleet of agents that run their loads at the same time, and what they measured together.

use std::time::{Duration, Instant};

use raceline_bench::Latencies;

use super::link::{Agent, Offset};
use super::load::Load;
use super::message::{AgentOutcome, Answer, Request};
use crate::environment;

/// How far ahead the common start is. All agents must have been told by then.
const LEAD: Duration = Duration::from_secs(2);
/// How long an agent may take to connect.
const PREPARE_LIMIT: Duration = Duration::from_secs(60);
/// How long after the end of its run an agent may be silent.
const RESULT_LIMIT: Duration = Duration::from_secs(40);
/// Clocks that move against each other by more than this share of the run void it.
const SKEW_MAX: f64 = 0.01;
/// A common window that is shorter than this share of the run voids it.
const WINDOW_MIN: f64 = 0.9;
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
    /// An agent recorded too little of the common window.
    #[error(
        "agent {agent} leaves a common window of {} ms of {} ms: this run is void, repeat it{}",
        .window.as_millis(), .runtime.as_millis(), advice(*.late)
    )]
    Late {
        /// Its name.
        agent: String,
        /// How long after the begin of the recording it took up its work.
        late: Duration,
        /// The time that all agents recorded.
        window: Duration,
        /// The time that they were to record.
        runtime: Duration,
    },
    /// The clocks of two machines moved against each other.
    #[error(
        "the clock of agent {agent} moved by {} ms against this one during {} ms: this run is void, repeat it",
        .by.as_millis(), .runtime.as_millis()
    )]
    Clock {
        /// The agent's name.
        agent: String,
        /// How far.
        by: Duration,
        /// The time that was recorded.
        runtime: Duration,
    },
    /// The caller's arguments do not fit each other.
    #[error("{0}")]
    Invalid(String),
    /// The caller has asked to stop.
    #[error("stopped")]
    Stopped,
}

fn advice(late: Duration) -> String {
    if late.is_zero() {
        return String::new();
    }
    let late = late.as_millis() + 1;
    format!(", with a ramp that is {late} ms longer or on a machine that is less busy")
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
    lead: Duration,
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
    /// The time that all agents recorded: what was recorded outside of it counts for nothing.
    pub window: Duration,
    /// The time that they were to record.
    pub runtime: Duration,
    /// How far an agent's clock moved against this one during the run, at most.
    pub skew: Duration,
    /// The largest error of an agent's clock.
    pub clock_error: Duration,
}

/// What one agent did.
#[derive(Clone, Debug)]
pub struct Share {
    /// Its name.
    pub agent: String,
    /// Its machine, as it was read when the agent was greeted.
    pub environment: serde_json::Value,
    /// Its commands per second in the common window.
    pub iops: f64,
    /// Latencies of its reads in the common window.
    pub reads: Latencies,
    /// Latencies of its writes in the common window.
    pub writes: Latencies,
    /// What it measured, also outside of the common window.
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

    /// In what the agents' environments differ that changes results: each one with the first.
    #[must_use]
    pub fn differences(&self) -> Vec<String> {
        let Some((first, others)) = self.shares.split_first() else { return Vec::new() };
        let shown = |value: Option<String>| value.unwrap_or_else(|| "nothing".to_owned());
        let mut found = Vec::new();
        for other in others {
            for one in environment::differences(&first.environment, &other.environment) {
                found.push(format!(
                    "{}: {} ({}); {} ({})",
                    one.field,
                    shown(one.left),
                    first.agent,
                    shown(one.right),
                    other.agent
                ));
            }
        }
        found
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
        Ok(Self { agents, clock: Instant::now(), lead: LEAD, ramp, runtime })
    }

    /// The same with starts that are this far ahead: agents on this machine need less than the usual 2 s.
    #[must_use]
    pub fn with_lead(self, lead: Duration) -> Self {
        Self { lead, ..self }
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
        let start = clock.elapsed() + self.lead;
        for (agent, offset) in self.agents.iter_mut().zip(&offsets) {
            agent.say(&Request::Start { at_ns: offset.agent_ns(start) }, "starting the run")?;
        }
        let outcomes = self.collect(start, watch)?;
        let mut skew = Duration::ZERO;
        for (agent, before) in self.agents.iter_mut().zip(&offsets) {
            let after = agent.offset(clock)?;
            let by = after.apart(*before);
            let known = before.error + after.error + self.runtime.mul_f64(SKEW_MAX);
            if by > known {
                let (agent, runtime) = (agent.name().to_owned(), self.runtime);
                return Err(FleetError::Clock { agent, by, runtime });
            }
            skew = skew.max(by);
        }
        let clock_error = offsets.iter().map(|offset| offset.error).max().unwrap_or_default();
        let agents =
            self.agents.iter().map(|agent| (agent.name().to_owned(), agent.environment().clone()));
        let together = merge(self.runtime, agents.zip(outcomes).collect())?;
        Ok(Together { skew, clock_error, ..together })
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
}

/// The slices that an agent recorded whole: the first one, and the one after the last.
fn recorded(outcome: &AgentOutcome) -> (u64, u64) {
    (outcome.late_ns.div_ceil(outcome.slice_ns), outcome.measured_ns / outcome.slice_ns)
}

/// Adds up the slices that all agents recorded whole.
fn merge(
    runtime: Duration,
    agents: Vec<((String, serde_json::Value), AgentOutcome)>,
) -> Result<Together, FleetError> {
    let slice_ns = agents.first().map_or(1, |(_, outcome)| outcome.slice_ns);
    if let Some(((agent, _), outcome)) = agents.iter().find(|(_, it)| it.slice_ns != slice_ns) {
        let why = format!("slices of {} ns, and others of {slice_ns} ns", outcome.slice_ns);
        return Err(FleetError::protocol(agent, why));
    }
    let windows = || agents.iter().map(|(_, outcome)| recorded(outcome));
    let first = windows().map(|(first, _)| first).max().unwrap_or(0);
    let end = windows().map(|(_, end)| end).min().unwrap_or(0);
    let window = Duration::from_nanos(end.saturating_sub(first).saturating_mul(slice_ns));
    if window.as_secs_f64() < runtime.as_secs_f64() * WINDOW_MIN {
        let kept = |outcome: &AgentOutcome| {
            let (first, end) = recorded(outcome);
            end.saturating_sub(first)
        };
        let least = agents.iter().min_by_key(|(_, outcome)| kept(outcome));
        let (agent, late) = least
            .map_or((String::new(), 0), |((agent, _), outcome)| (agent.clone(), outcome.late_ns));
        return Err(FleetError::Late { agent, late: Duration::from_nanos(late), window, runtime });
    }
    let mut together = Together {
        reads: Latencies::new(),
        writes: Latencies::new(),
        iops: 0.0,
        shares: Vec::new(),
        window,
        runtime,
        skew: Duration::ZERO,
        clock_error: Duration::ZERO,
    };
    for ((agent, environment), outcome) in agents {
        let (mut reads, mut writes) = (Latencies::new(), Latencies::new());
        for (_, slice) in (0..end).zip(&outcome.slices).filter(|(number, _)| *number >= first) {
            slice.reads.add_to(&mut reads);
            slice.writes.add_to(&mut writes);
        }
        together.reads.merge(&reads);
        together.writes.merge(&writes);
        let iops = (reads.count() + writes.count()) as f64 / window.as_secs_f64();
        together.iops += iops;
        together.shares.push(Share { agent, environment, iops, reads, writes, outcome });
    }
    Ok(together)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::agent::message::{Histogram, Slice};

    const RUNTIME: Duration = Duration::from_secs(2);

    /// An agent with ten reads of 1 us in each of 20 slices of 100 ms.
    fn outcome(late_ms: u64, measured_ms: u64) -> AgentOutcome {
        let reads =
            |count| Histogram { buckets: vec![(1000, count)], mean_ns: 1000.0, max_ns: 1000 };
        let slice = Slice { reads: reads(10), writes: Histogram::default() };
        AgentOutcome {
            measured_ns: measured_ms * 1_000_000,
            late_ns: late_ms * 1_000_000,
            slice_ns: 100_000_000,
            slices: vec![slice; 20],
            reads: reads(200),
            writes: Histogram::default(),
            missed: 0,
            user_ns: 0,
            system_ns: 0,
            pdus_by_second: Vec::new(),
        }
    }

    fn merged(outcomes: &[(u64, u64)]) -> Result<Together, FleetError> {
        let agent = |(number, &(late, measured)): (usize, &(u64, u64))| {
            let environment = json!({ "cpu": { "cpus": 2 + number % 2 } });
            ((format!("host{number}"), environment), outcome(late, measured))
        };
        merge(RUNTIME, outcomes.iter().enumerate().map(agent).collect())
    }

    #[test]
    fn windows_are_cut_to_what_all_agents_recorded() {
        let whole = merged(&[(0, 2000), (0, 2000)]).unwrap();
        assert_eq!((whole.window, whole.reads.count()), (RUNTIME, 400));
        // The second one begins within the first slice, and the third ends within the last.
        let cut = merged(&[(0, 2000), (1, 2000), (0, 1999)]).unwrap();
        assert_eq!(cut.window, Duration::from_millis(1800));
        assert!(cut.shares.iter().all(|share| share.reads.count() == 180), "{:?}", cut.shares);
        assert_eq!(cut.reads.count(), 540);
        assert!((cut.iops - 300.0).abs() < 1e-9, "{}", cut.iops);
        assert!(cut.is_fair());
    }

    #[test]
    fn too_short_a_window_is_void_and_names_who_is_late() {
        let error = merged(&[(0, 2000), (250, 2000)]).unwrap_err();
        let text = error.to_string();
        assert!(matches!(&error, FleetError::Late { agent, .. } if agent == "host1"), "{text}");
        assert!(text.contains("1700 ms of 2000 ms") && text.contains("251 ms longer"), "{text}");
        let error = merged(&[(0, 500), (0, 2000)]).unwrap_err();
        assert!(error.to_string().contains("agent host0"), "{error}");
        let nothing = merged(&[(9000, 2000), (0, 2000)]).unwrap_err();
        assert!(nothing.to_string().contains("0 ms of 2000 ms"), "{nothing}");
    }

    #[test]
    fn agents_with_other_slices_do_not_fit() {
        let of = |slice_ns| {
            let outcome = AgentOutcome { slice_ns, ..outcome(0, 2000) };
            ((format!("{slice_ns}"), Value::Null), outcome)
        };
        let error = merge(RUNTIME, vec![of(100_000_000), of(7)]).unwrap_err();
        assert!(error.to_string().contains("agent 7"), "{error}");
    }

    #[test]
    fn machines_that_differ_are_named() {
        let together = merged(&[(0, 2000), (0, 2000), (0, 2000)]).unwrap();
        assert_eq!(together.differences(), ["cpu.cpus: 2 (host0); 3 (host1)"]);
    }
}
