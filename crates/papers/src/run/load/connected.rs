//! The measured host of a series, connected: queues of NVMe, or sessions of iSCSI.

use std::net::SocketAddr;

use raceline_bench::runner::iscsi::{Initiators, IscsiUnit};
use raceline_bench::runner::{Progress, RunError, Session, StageOutcome};
use raceline_initiator::{BlockingSession, Name, SessionConfig, SessionError, UnitInfo};
use raceline_reactor::Mode;

use super::stage::{self, Pace};
use crate::run::settings::{Digest, LoadSettings};
use crate::subject::{Export, Subject};

/// Initiators have this name and a number.
const INITIATOR: &str = "iqn.2026-01.io.raceline:papers-host";

/// A host whose connections are there. Dropped, it ends them.
pub(super) enum Connected<'a> {
    /// Boxed: it is large.
    Queues(Box<Session<'a>>),
    Sessions(Box<Initiators<'a>>),
}

impl<'a> Connected<'a> {
    /// Makes all connections of a series; `watch` gives false to stop that, or a run.
    pub(super) fn make(
        settings: &LoadSettings,
        subject: &dyn Subject,
        cores: &[usize],
        pace: Pace,
        watch: &'a mut dyn FnMut(Progress) -> bool,
    ) -> Result<Self, RunError> {
        match subject.export() {
            Export::Subsystem(nqn) => {
                let config = stage::config(settings, subject, &nqn, cores, pace);
                let session = Session::connect_stage(&config, watch)?;
                Ok(Self::Queues(Box::new(session)))
            }
            Export::Nodes { names, lun } => {
                let units = units(settings, subject.address(), &names, lun)?;
                let config = stage::sessions(settings, cores, pace);
                let initiators = Initiators::connect(&config, &units, watch)?;
                Ok(Self::Sessions(Box::new(initiators)))
            }
        }
    }

    /// Runs all jobs once.
    pub(super) fn run_stage(&mut self) -> Result<StageOutcome, RunError> {
        match self {
            Self::Queues(session) => session.run_stage(),
            Self::Sessions(initiators) => initiators.run_stage(),
        }
    }

    /// What the host's cores do when they are idle.
    pub(super) fn set_mode(&self, mode: Mode) {
        match self {
            Self::Queues(session) => session.set_mode(mode),
            Self::Sessions(initiators) => initiators.set_mode(mode),
        }
    }

    /// Commands that have ended so far; `None`: the target counts them.
    pub(super) fn commands(&self) -> Option<u64> {
        match self {
            Self::Queues(_) => None,
            Self::Sessions(initiators) => Some(initiators.commands()),
        }
    }
}

/// The units of all sessions, by session. All nodes have the same device, so the first is asked what it is.
fn units(
    settings: &LoadSettings,
    address: SocketAddr,
    names: &[Name],
    lun: u16,
) -> Result<Vec<IscsiUnit>, RunError> {
    let session = |number: usize| -> Result<SessionConfig, RunError> {
        let initiator = format!("{INITIATOR}-{}", number / names.len());
        let initiator = Name::new(&initiator).map_err(|error| invalid(&error))?;
        let node = names[number % names.len()].clone();
        let usual = SessionConfig::new(address, initiator, Some(node));
        Ok(SessionConfig {
            lun,
            depth: settings.depth,
            data_digest: settings.digest != Digest::None,
            // A host that sleeps during the runs of others sends no pings.
            ping_interval: std::time::Duration::ZERO,
            busy_poll: (settings.host_busy_poll_us > 0)
                .then(|| std::time::Duration::from_micros(settings.host_busy_poll_us.into())),
            ..usual
        })
    };
    let asked = BlockingSession::connect(session(0)?).map_err(RunError::Session)?;
    let unit = UnitInfo::read(&asked).map_err(RunError::Session)?;
    asked.close();
    (0..usize::from(settings.total_connections()))
        .map(|number| Ok(IscsiUnit { session: session(number)?, unit: unit.clone() }))
        .collect()
}

fn invalid(error: &dyn std::fmt::Display) -> RunError {
    RunError::Session(SessionError::Invalid(error.to_string()))
}
