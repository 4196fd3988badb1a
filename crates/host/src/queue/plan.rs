//! How the bytes of a queue travel, decided once for each change of what it has under way.

use raceline_reactor::Context;
use raceline_reactor::flow::policy::{self, Landing};
use raceline_reactor::flow::{Load, Regime};

use super::QueuePair;

/// What was decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// What the caches hold of the data that the core reads and writes.
    pub(super) reading: Regime,
    pub(super) writing: Regime,
    /// Where the payloads of large reads land.
    pub(super) landing: Landing,
}

impl Default for Plan {
    fn default() -> Self {
        Self { reading: Regime::Warm, writing: Regime::Warm, landing: Landing::InPlace }
    }
}

impl QueuePair {
    /// Tells the core what this queue has under way, and decides anew.
    pub(super) fn make_plan(&mut self, cx: &mut Context<'_>) {
        let Some(link) = self.link.as_ref().filter(|link| !link.closed) else { return };
        let flight = cx.io.flight();
        flight.tell(&mut self.told, self.load);
        let reading = flight.reading();
        let landing = policy::landing(reading, flight.readers(), link.core_staging);
        self.plan = Plan { reading, writing: flight.writing(), landing };
    }

    /// Nothing is under way any more: the socket is closed.
    pub(super) fn forget_plan(&mut self, cx: &mut Context<'_>) {
        cx.io.flight().tell(&mut self.told, Load::default());
        self.plan = Plan::default();
    }
}
