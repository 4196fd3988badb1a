//! What has become of the TLS connections of this process.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{REASONS, TlsError};
use crate::record::Suite;

/// The suites, in the order of the counts.
const SUITES: [Suite; 2] = [Suite::Aes128GcmSha256, Suite::Aes256GcmSha384];

/// The counts of one end.
pub(crate) struct Counts {
    established: [AtomicU64; SUITES.len()],
    failures: [AtomicU64; REASONS.len()],
    active: AtomicU64,
}

/// Of connections that listeners have accepted, and of those that hosts have made.
static TARGET: Counts = Counts::new();
static HOST: Counts = Counts::new();

/// What has become of connections, at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsTotals {
    /// Handshakes that succeeded, by the name of their suite.
    pub established: Vec<(&'static str, u64)>,
    /// Connections that TLS has ended, by reason: during the handshake, or later.
    pub failures: Vec<(&'static str, u64)>,
    /// Connections that are open.
    pub active: u64,
}

/// The totals of connections that listeners of this process have accepted.
#[must_use]
pub fn accepted_totals() -> TlsTotals {
    TARGET.totals()
}

/// The totals of connections that hosts of this process have made.
#[must_use]
pub fn connected_totals() -> TlsTotals {
    HOST.totals()
}

impl Counts {
    const fn new() -> Counts {
        Counts {
            established: [const { AtomicU64::new(0) }; SUITES.len()],
            failures: [const { AtomicU64::new(0) }; REASONS.len()],
            active: AtomicU64::new(0),
        }
    }

    pub(crate) fn of(is_host: bool) -> &'static Counts {
        if is_host { &HOST } else { &TARGET }
    }

    pub(crate) fn failed(&self, error: &TlsError) {
        let reason = error.reason();
        if let Some(at) = REASONS.iter().position(|known| *known == reason) {
            self.failures[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A handshake has succeeded. The connection is counted until the guard is dropped.
    pub(crate) fn established(&'static self, suite: Suite) -> Active {
        if let Some(at) = SUITES.iter().position(|known| *known == suite) {
            self.established[at].fetch_add(1, Ordering::Relaxed);
        }
        self.active.fetch_add(1, Ordering::Relaxed);
        Active(self)
    }

    fn totals(&self) -> TlsTotals {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        TlsTotals {
            established: SUITES
                .iter()
                .map(|s| s.name())
                .zip(self.established.iter().map(get))
                .collect(),
            failures: REASONS.into_iter().zip(self.failures.iter().map(get)).collect(),
            active: get(&self.active),
        }
    }
}

/// An open connection.
pub(crate) struct Active(&'static Counts);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_by_suite_reason_and_while_they_live() {
        static OWN: Counts = Counts::new();
        let first = OWN.established(Suite::Aes256GcmSha384);
        let second = OWN.established(Suite::Aes128GcmSha256);
        drop(OWN.established(Suite::Aes256GcmSha384));
        OWN.failed(&TlsError::CutOff);
        OWN.failed(&TlsError::Plain(0));
        OWN.failed(&TlsError::Plain(1));
        let totals = OWN.totals();
        assert_eq!(totals.established[0].1, 1);
        assert_eq!(totals.established[1], ("TLS_AES_256_GCM_SHA384", 2));
        assert_eq!(totals.active, 2);
        let of = |reason| totals.failures.iter().find(|(known, _)| *known == reason).unwrap().1;
        assert_eq!((of("cut_off"), of("plain"), of("not_authentic")), (1, 2, 0));
        drop((first, second));
        assert_eq!(OWN.totals().active, 0);
    }
}
