//! Rates that are kept.

use raceline_target::QosLimits;

/// A limit of commands per second and of nothing else.
pub(crate) fn ios(rate: u64) -> QosLimits {
    QosLimits { rw_ios_per_sec: rate, ..QosLimits::default() }
}

/// Whether a rate is kept: never exceeded, and reached. A busy machine stops the program for longer than the burst of a
/// limit, so it has some tries to reach it.
pub(crate) fn keeps(expected: u64, slack: u64, mut measure: impl FnMut() -> u64) {
    let mut all = Vec::new();
    for _ in 0..8 {
        let answered = measure();
        assert!(answered <= expected + slack, "{answered} of {expected}");
        if answered + slack >= expected {
            return;
        }
        all.push(answered);
    }
    panic!("the rate of {expected} is not reached: {all:?}");
}
