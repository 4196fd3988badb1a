//! The plan: which settings, in which order, and why. Made of facts alone.

mod queues;
mod steer;
mod system;
mod text;

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::facts::Facts;
use crate::setting::{Flow, Setting};

pub use text::{commands, render};

/// Queues that packets of everything else keep, as in the papers' recipe.
pub const GENERAL_QUEUES: u32 = 2;
/// The most queues that are taken when nobody says how many.
const QUEUES_DEFAULT_MAX: u32 = 8;
/// The most queues that Intel's driver gives to its channels.
pub const QUEUES_MAX: u32 = 256;

/// The side that this machine is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It has the listeners.
    #[default]
    Target,
    /// It connects to them.
    Host,
}

/// The recipe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// The best that the device has: ADQ, or what comes close to it.
    #[default]
    Adq,
    /// Without ADQ, also where the device has it.
    Rss,
    /// As the papers print it, with what today's kernels need.
    Paper,
}

/// What is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Addresses and ports of the listeners, also for a host.
    pub listeners: Vec<SocketAddr>,
    /// The side.
    pub role: Role,
    /// Queues for the application; absent: as many as there are CPUs and channels, at most eight.
    pub queues: Option<u32>,
    /// The recipe.
    pub profile: Profile,
}

/// How packets come to the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Traffic classes of the device, and filters that it carries out.
    Channels,
    /// A table of its own for the queues, and rules that lead to it.
    Tables,
    /// One rule for each listener, which leads to one queue.
    Rules,
    /// Send queues that are receive queues of the peer.
    Veth,
    /// The hash over all queues.
    Hash,
}

/// Whether a step is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It is.
    Do,
    /// Its value is there already.
    Already,
    /// It is not, for this reason.
    Skipped(String),
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What it sets.
    pub setting: Setting,
    /// The value now, if it can be read.
    pub current: Option<String>,
    /// The value afterwards.
    pub wanted: String,
    /// The reason.
    pub why: String,
    /// Whether it is made.
    pub state: State,
    /// How long the driver needs afterwards, in milliseconds.
    pub pause_ms: u64,
}

/// A plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The interface.
    pub interface: String,
    /// Its driver.
    pub driver: String,
    /// What was asked for.
    pub request: Request,
    /// How packets come to the queues.
    pub way: Way,
    /// The first of the application's queues.
    pub first_queue: u32,
    /// Their number.
    pub queues: u32,
    /// The CPU of each queue.
    pub cpus: Vec<u32>,
    /// The steps in order.
    pub steps: Vec<Step>,
    /// Settings that some step clears, and that therefore must be given back too.
    pub watched: Vec<Setting>,
    /// What else a reader must know.
    pub notes: Vec<String>,
}

impl Plan {
    /// Numbers and steps of what is to be done.
    pub fn to_do(&self) -> impl Iterator<Item = (usize, &Step)> {
        let numbered = self.steps.iter().enumerate().map(|(at, step)| (at + 1, step));
        numbered.filter(|(_, step)| step.state == State::Do)
    }
}

/// The plan under construction.
struct Planner<'a> {
    facts: &'a Facts,
    request: &'a Request,
    way: Way,
    first: u32,
    queues: u32,
    cpus: Vec<u32>,
    steps: Vec<Step>,
    notes: Vec<String>,
}

impl Planner<'_> {
    /// Appends a step, which is left out where the setting is not there or has the value.
    fn push(&mut self, setting: Setting, wanted: impl Into<String>, why: &str) {
        let (current, wanted) = (setting.value_in(self.facts), wanted.into());
        // What has the value now is set again, if a step before it makes the driver clear it.
        let cleared = setting.is_cleared_with_queues() && self.rebuilds_queues();
        let state = match &current {
            None if self.comes_with_channels(&setting) => State::Do,
            None => State::Skipped(self.reason_of_absence(&setting)),
            Some(current) if *current == wanted && !cleared => State::Already,
            Some(_) => State::Do,
        };
        self.steps.push(Step { setting, current, wanted, why: why.to_owned(), state, pause_ms: 0 });
    }

    /// Appends a step that is not made.
    fn skip(&mut self, setting: Setting, wanted: impl Into<String>, why: &str, reason: &str) {
        let (current, wanted) = (setting.value_in(self.facts), wanted.into());
        let state = match &current {
            Some(current) if *current == wanted => State::Already,
            _ => State::Skipped(reason.to_owned()),
        };
        self.steps.push(Step { setting, current, wanted, why: why.to_owned(), state, pause_ms: 0 });
    }

    fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Whether a step so far makes the driver build its queues anew.
    fn rebuilds_queues(&self) -> bool {
        let rebuilds = |step: &Step| {
            step.state == State::Do
                && matches!(step.setting, Setting::RootQdisc | Setting::Channels)
        };
        self.steps.iter().any(rebuilds)
    }

    /// Whether the setting belongs to a queue that a step so far makes.
    fn comes_with_channels(&self, setting: &Setting) -> bool {
        let makes = |step: &Step| step.state == State::Do && step.setting == Setting::Channels;
        let is_new = setting.queue().is_some_and(|queue| queue >= self.facts.queues());
        is_new && self.steps.iter().any(makes)
    }

    fn reason_of_absence(&self, setting: &Setting) -> String {
        let missing =
            |program: &str| self.facts.missing_programs.iter().any(|name| name == program);
        match setting {
            Setting::Service(name) if missing("systemctl") => {
                format!("systemctl is not installed, so nobody can say whether {name} runs")
            }
            Setting::Service(name) => format!("there is no service {name}"),
            Setting::Module(name) => {
                format!("kernel {} has no module {name}", self.facts.kernel)
            }
            Setting::Sysctl(_) if !self.facts.is_initial_namespace => {
                "this network namespace does not have it: the machine's value counts".to_owned()
            }
            Setting::Sysctl(_) => "this kernel does not have it".to_owned(),
            Setting::XpsRxqs(_) => "the device has no such map for this queue".to_owned(),
            Setting::Affinity { .. } => "the device has no such interrupt".to_owned(),
            _ if missing("ethtool") => {
                "ethtool is not installed, so it cannot be read: install the package ethtool"
                    .to_owned()
            }
            _ => format!("the driver {} does not have it", self.facts.driver),
        }
    }

    /// The application's queues.
    fn range(&self) -> std::ops::Range<u32> {
        self.first..self.first + self.queues
    }

    /// The packets of each listener, as this role receives them.
    fn flows(&self) -> Vec<Flow> {
        let comes_from = self.request.role == Role::Host;
        let flow = |listener: &SocketAddr| Flow {
            address: listener.ip(),
            port: listener.port(),
            comes_from,
        };
        self.request.listeners.iter().map(flow).collect()
    }
}

/// Makes the plan.
///
/// # Errors
/// When the request cannot be met on any device, or not on this one.
pub fn plan(facts: &Facts, request: &Request) -> Result<Plan> {
    check(request)?;
    let (way, first, queues, excuse) = queues::choose(facts, request)?;
    let cpus = queues::cpus(facts, queues);
    let mut planner =
        Planner { facts, request, way, first, queues, cpus, steps: Vec::new(), notes: Vec::new() };
    planner.notes.extend(excuse);
    system::services(&mut planner);
    queues::channels(&mut planner);
    steer::steer(&mut planner);
    queues::own(&mut planner);
    steer::within(&mut planner);
    queues::moderation(&mut planner);
    system::sysctls(&mut planner);
    system::advice(&mut planner);
    let watched = queues::watched(&planner);
    Ok(Plan {
        interface: facts.interface.clone(),
        driver: facts.driver.clone(),
        request: request.clone(),
        way,
        first_queue: first,
        queues,
        cpus: planner.cpus,
        steps: planner.steps,
        watched,
        notes: planner.notes,
    })
}

fn check(request: &Request) -> Result<()> {
    for listener in &request.listeners {
        let reason = if listener.ip().is_unspecified() {
            "a filter names one address: write the address that hosts connect to"
        } else if listener.ip().is_multicast() {
            "nobody can listen for TCP on a multicast address"
        } else if listener.port() == 0 {
            "a filter names one port: write the port that hosts connect to"
        } else {
            continue;
        };
        return Err(Error::Request(format!("--listener {listener}: {reason}")));
    }
    for (at, listener) in request.listeners.iter().enumerate() {
        if request.listeners[..at].contains(listener) {
            return Err(Error::Request(format!("--listener {listener} is there twice")));
        }
    }
    if request.queues == Some(0) {
        return Err(Error::Request("--queues 0: an application has at least 1 queue".to_owned()));
    }
    Ok(())
}
