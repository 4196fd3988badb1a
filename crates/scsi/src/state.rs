//! What commands change about a logical unit, apart from its blocks: mode pages and reservations.
//!
//! One thread changes it and shows the new state to all cores. What it has to tell other I_T nexuses is in the
//! [`Outcome`]. The order is: the new state is kept, if it is to survive a power loss; all cores see it; the others are
//! told; commands that are aborted have ended; the command is answered.

use raceline_proto::reservation as registry;

use crate::cdb::ReserveOut;
use crate::mode::ModeSettings;
use crate::reservation::{
    Admission, Nexus, Notice, Registrant, Reservations, ReserveOutParameters, release, reserve,
    reserve_out,
};
use crate::status::Refusal;
use crate::unit_attention::UnitAttention;

/// The state of a logical unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LunState {
    /// The changeable values of its mode pages.
    pub mode: ModeSettings,
    /// The reservations of its device, which hosts of NVMe may share.
    pub reservations: Reservations,
}

/// A change that a command, or the end of an I_T nexus, asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Mode Select: these values.
    Mode(ModeSettings),
    /// Persistent Reserve Out.
    ReserveOut(ReserveOut, ReserveOutParameters),
    /// Reserve (6) or (10).
    Reserve,
    /// Release (6) or (10).
    Release,
    /// The I_T nexus was logged out or lost. What it holds by Reserve is given up; registrations stay.
    NexusLost,
    /// LOGICAL UNIT RESET, or a reset of the target: what anybody holds by Reserve is given up, and mode pages have
    /// their default values. The I_T nexus that asked for it is not told.
    Reset(UnitAttention),
    /// Something else of the logical unit has changed, e.g. its size: all are told, and the state stays as it is.
    Tell(UnitAttention),
}

/// Whom to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whom {
    /// All I_T nexuses with this logical unit.
    All,
    /// All of them but the one that asked for the change.
    Others,
    /// This one.
    Nexus(Nexus),
}

/// What a change makes of a state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The new state; `None`: the old one stays.
    pub next: Option<LunState>,
    /// What to tell whom, once the new state shows.
    pub told: Vec<(Whom, UnitAttention)>,
    /// Hosts of NVMe to tell something, once the new state shows.
    pub notices: Vec<Notice>,
    /// Whose commands for the device have to end before the command is answered.
    pub aborted: Vec<Registrant>,
}

impl Outcome {
    /// Takes over what a command has made of the reservations of `next`.
    fn take(&mut self, next: &mut LunState, changed: registry::Outcome) {
        let nexus_of = |id| {
            let mut registrants = next.reservations.registrants.iter();
            registrants.find(|one| one.id == id).and_then(Registrant::as_nexus)
        };
        for notice in changed.notices {
            match nexus_of(notice.to) {
                Some(nexus) => {
                    self.told.push((Whom::Nexus(nexus.clone()), UnitAttention::from(notice.kind)));
                }
                None => self.notices.push(notice),
            }
        }
        self.aborted = changed.aborted;
        if let Some(reservations) = changed.next {
            next.reservations = reservations;
        }
    }
}

impl LunState {
    /// What an I_T nexus may do.
    #[must_use]
    pub fn admission(&self, nexus: &Nexus) -> Admission {
        Admission::of(nexus, &self.reservations)
    }

    /// What a change that an I_T nexus asks for makes of this state.
    ///
    /// # Errors
    /// What to answer the command with; the state stays as it is.
    pub fn apply(&self, nexus: &Nexus, change: &Change) -> Result<Outcome, Refusal> {
        let mut next = self.clone();
        let mut outcome = Outcome::default();
        match change {
            Change::Mode(settings) => {
                if next.mode != *settings {
                    next.mode = *settings;
                    outcome.told.push((Whom::Others, UnitAttention::ModeChanged));
                }
            }
            Change::ReserveOut(command, parameters) => {
                let changed = reserve_out(&self.reservations, nexus, command, parameters)?;
                outcome.take(&mut next, changed);
            }
            Change::Reserve => outcome.take(&mut next, reserve(&self.reservations, nexus)?),
            Change::Release => outcome.take(&mut next, release(&self.reservations, nexus)?),
            Change::NexusLost => {
                if next.reservations.reserved_by.as_ref() == Some(nexus) {
                    next.reservations.reserved_by = None;
                }
            }
            Change::Tell(attention) => outcome.told.push((Whom::All, *attention)),
            Change::Reset(attention) => {
                next.reservations.reserved_by = None;
                next.mode = ModeSettings::default();
                outcome.told.push((Whom::Others, *attention));
            }
        }
        outcome.next = (next != *self).then_some(next);
        Ok(outcome)
    }
}
