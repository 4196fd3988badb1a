//! A check of an environment: what was seen, how bad that is, why it matters, and what changes it.

use std::fmt;

use serde::Serialize;

/// How bad something is for a measurement. The order is from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// To be recorded, or not readable here: neither good nor bad by itself.
    Info,
    /// It changes results much.
    Warning,
    /// Results are not valid with it.
    Fail,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Fail => "FAIL",
        })
    }
}

/// What a machine does in a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It exports namespaces.
    Target,
    /// It uses them.
    Host,
}

/// The roles of a check that applies to every machine.
pub(crate) const BOTH: &[Role] = &[Role::Target, Role::Host];

/// What a check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Area {
    /// Processor: speed, sleep, weaknesses.
    Processor,
    /// Virtual machine, container, other load.
    Platform,
    /// Memory and NUMA.
    Memory,
    /// The kernel.
    Kernel,
    /// TCP and the network stack.
    Network,
    /// The network interface.
    Interface,
    /// Block devices.
    Drives,
    /// Services and programs.
    Services,
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Processor => "Processor",
            Self::Platform => "Platform",
            Self::Memory => "Memory",
            Self::Kernel => "Kernel",
            Self::Network => "Network",
            Self::Interface => "Interface",
            Self::Drives => "Drives",
            Self::Services => "Services",
        })
    }
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its name for programs, e.g. `cpu-governor`.
    pub id: &'static str,
    /// What it is about.
    pub area: Area,
    /// Its name for people.
    pub title: &'static str,
    /// What was seen, or why it could not be read.
    pub value: String,
    /// How bad that is.
    pub severity: Severity,
    /// Why it matters for a measurement.
    pub why: &'static str,
    /// What it costs on this machine, where that was measured.
    pub cost: Option<String>,
    /// Commands that change it, to be run by root. Lines that begin with `#` say something about them.
    pub fix: Vec<String>,
    /// The roles for which it matters.
    pub roles: &'static [Role],
}

impl Check {
    /// A check with nothing seen yet.
    pub(crate) fn new(
        area: Area,
        id: &'static str,
        title: &'static str,
        why: &'static str,
    ) -> Self {
        Self {
            id,
            area,
            title,
            value: String::new(),
            severity: Severity::Info,
            why,
            cost: None,
            fix: Vec::new(),
            roles: BOTH,
        }
    }

    /// What was seen, and how bad it is.
    pub(crate) fn is(mut self, severity: Severity, value: impl fmt::Display) -> Self {
        self.severity = severity;
        self.value = value.to_string();
        self
    }

    /// What was seen, which is good or else `severity`.
    pub(crate) fn good_or(self, good: bool, severity: Severity, value: impl fmt::Display) -> Self {
        self.is(if good { Severity::Ok } else { severity }, value)
    }

    /// A command that changes it; kept only if there is something to change.
    pub(crate) fn fix(mut self, command: impl Into<String>) -> Self {
        if self.severity >= Severity::Warning {
            self.fix.push(command.into());
        }
        self
    }

    /// A command that is worth knowing although nothing is wrong.
    pub(crate) fn hint(mut self, command: impl Into<String>) -> Self {
        if self.severity >= Severity::Info {
            self.fix.push(command.into());
        }
        self
    }

    /// What was measured.
    pub(crate) fn cost(mut self, cost: Option<String>) -> Self {
        self.cost = cost;
        self
    }

    /// The only role for which it matters.
    pub(crate) fn only(mut self, roles: &'static [Role]) -> Self {
        self.roles = roles;
        self
    }
}
