//! Clocks of start-time fair queueing: how far a part has come with what it was served, divided by its weight.

use crate::records::limited::Weight;

/// Bits behind the point. At the largest weight the shortest command goes on by more than 500 units.
const FRACTION_BITS: u32 = 10;
/// What a host with the default weight that had no commands for a moment may catch up with.
pub(crate) const CREDIT_BYTES: u64 = 4 * super::TURN_BYTES as u64;

/// The clock of one part. The part whose clock is furthest behind is served next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Clock(u128);

impl Clock {
    /// The clock when a part of this weight was served this many bytes more.
    #[must_use]
    pub(crate) fn after(self, bytes: u64, weight: Weight) -> Self {
        let served = u128::from(bytes) << FRACTION_BITS;
        Self(self.0 + served * u128::from(Weight::DEFAULT.get()) / u128::from(weight.get()))
    }

    /// The clock of a part that has commands again, after a time without any. `latest` is that of the part that was
    /// served last. What a part may catch up with is limited, whenever it was served last.
    #[must_use]
    pub(crate) fn caught_up(self, latest: Self) -> Self {
        let credit = u128::from(CREDIT_BYTES) << FRACTION_BITS;
        Self(self.0.max(latest.0.saturating_sub(credit)))
    }
}
