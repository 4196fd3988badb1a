//! A model, not a measurement: the gain from offloading data digests, computed from the cost in software.
//!
//! A target's core is one station of a closed queueing network, in which the commands circulate that the
//! hosts keep in flight:
//!
//! ```text
//!    +--> core: the rest of an I/O, and the digest in software --------------+
//!    |                                                                       |
//!    |    core: the rest, submit, reap --> engine: bytes at its rate, latency |
//!    |                                                                       v
//!    +------- elsewhere: device, network, host; nobody queues there <--------+
//! ```
//!
//! Mean value analysis (Reiser and Lavenberg, JACM 27(2), 1980) gives the throughput: a command that
//! arrives at a station finds there the average number that one command less in the network would leave.
//!
//! In this model, an engine needs size and depth for these reasons:
//!
//! * While the core is not the bottleneck, throughput is depth over the round-trip time of a command
//!   (Little's law). The digest is a small part of that time wherever it is computed, so nothing is gained:
//!   the core waits either way. This ends at a depth of the time elsewhere over the time on the core, which
//!   grows when the core is relieved.
//! * When the core is the bottleneck, throughput is one over its time for a command. Software takes time
//!   for every byte; the time for submitting and reaping does not grow with the bytes.
//! * Ringing for a batch and looking for completions is paid once for all commands that a turn of the
//!   poller finds. With few commands in flight, a turn has one, and then costs as much as the digest of a
//!   few KiB.

pub mod published;

/// An engine, and its cost for the core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Engine {
    /// Throughput in bytes per second.
    pub bytes_per_second: f64,
    /// Time from submission to completion of an operation of no bytes.
    pub latency_ns: f64,
    /// Number of operations that it holds; further operations wait.
    pub depth: u32,
    /// Core time to describe and submit one operation, and to handle its completion.
    pub operation_ns: f64,
    /// Core time to ring for a turn's submissions and to look for completions.
    pub turn_ns: f64,
    /// Operations that share one turn, at most.
    pub batch: u32,
}

impl Engine {
    /// One Intel DSA of a 4th-generation Xeon, driven from user space.
    pub const DSA: Self = Self {
        // The class of one device, Kuper et al., "A Quantitative Analysis and Guidelines of Data Streaming
        // Accelerator", ASPLOS 2024.
        bytes_per_second: 30e9,
        // Assumed: a few memory accesses, a descriptor fetched and a record written.
        latency_ns: 1000.0,
        // Entries of all work queues of one device, as its capability register says.
        depth: 128,
        // Assumed: 64 bytes written past the cache, and a completion record, written by a
        // device, that misses the core's own caches.
        operation_ns: 100.0,
        // Assumed: two misses more, for a poll that finds nothing, and a store fence.
        turn_ns: 200.0,
        // Assumed: SPDK and Raceline take about this many commands from a socket in one turn.
        batch: 32,
    };

    /// Time for which one operation occupies the engine, when it always has another.
    fn service_ns(&self, io_bytes: u32) -> f64 {
        let transfer_ns = f64::from(io_bytes) / self.bytes_per_second * 1e9;
        // With all its places taken, it finishes `depth` operations per latency.
        transfer_ns.max((self.latency_ns + transfer_ns) / f64::from(self.depth.max(1)))
    }
}

/// The costs of a command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Bytes of data.
    pub io_bytes: u32,
    /// Core time without a digest.
    pub rest_ns: f64,
    /// Core time for a digest in software.
    pub digest_ns: f64,
    /// Time outside of the core: device, network, host.
    pub elsewhere_ns: f64,
}

/// The unit that computes digests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Digest {
    /// None: there are no digests.
    None,
    /// The core computes them.
    Software,
    /// An engine computes them.
    Offload(Engine),
}

/// The prediction for one core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Commands per second.
    pub iops: f64,
    /// The core's time for one command.
    pub core_ns: f64,
}

impl Prediction {
    /// The share of time in which the core is busy.
    #[must_use]
    pub fn busy_share(&self) -> f64 {
        self.iops * self.core_ns / 1e9
    }

    /// Commands per second of busy time: the throughput of a core that always has work.
    #[must_use]
    pub fn iops_per_busy_core(&self) -> f64 {
        if self.core_ns > 0.0 { 1e9 / self.core_ns } else { 0.0 }
    }
}

/// Predicts what `depth` commands in flight reach on one core.
#[must_use]
pub fn predict(costs: &Costs, digest: Digest, depth: u32) -> Prediction {
    let (engine_ns, latency_ns) = match digest {
        Digest::Offload(engine) => (engine.service_ns(costs.io_bytes), engine.latency_ns),
        Digest::None | Digest::Software => (0.0, 0.0),
    };
    let (mut at_core, mut at_engine) = (0.0, 0.0);
    let mut prediction = Prediction { iops: 0.0, core_ns: core_ns(costs, digest, at_core) };
    for population in 1..=depth {
        let core_ns = core_ns(costs, digest, at_core);
        let core_stay_ns = core_ns * (1.0 + at_core);
        let engine_stay_ns = engine_ns * (1.0 + at_engine);
        let round_ns = costs.elsewhere_ns + latency_ns + core_stay_ns + engine_stay_ns;
        let per_ns = f64::from(population) / round_ns.max(f64::MIN_POSITIVE);
        (at_core, at_engine) = (per_ns * core_stay_ns, per_ns * engine_stay_ns);
        prediction = Prediction { iops: per_ns * 1e9, core_ns };
    }
    prediction
}

/// The core's time for a command that finds this number of others at the core: these share its turn.
fn core_ns(costs: &Costs, digest: Digest, others: f64) -> f64 {
    match digest {
        Digest::None => costs.rest_ns,
        Digest::Software => costs.rest_ns + costs.digest_ns,
        Digest::Offload(engine) => {
            let batch = (1.0 + others).min(f64::from(engine.batch.max(1)));
            costs.rest_ns + engine.operation_ns + engine.turn_ns / batch
        }
    }
}

/// The time elsewhere at which `depth` commands reach `iops` without digests; 0 if the core alone limits
/// them.
#[must_use]
pub fn elsewhere_ns(io_bytes: u32, rest_ns: f64, depth: u32, iops: f64) -> f64 {
    let reached = |elsewhere_ns| {
        let costs = Costs { io_bytes, rest_ns, digest_ns: 0.0, elsewhere_ns };
        predict(&costs, Digest::None, depth).iops
    };
    // At most the whole round-trip time of a command.
    let (mut low, mut high) = (0.0, f64::from(depth) / iops.max(f64::MIN_POSITIVE) * 1e9);
    if reached(low) <= iops || !high.is_finite() {
        return 0.0;
    }
    for _ in 0..BISECTIONS {
        let middle = f64::midpoint(low, high);
        if reached(middle) > iops { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

/// Halvings of an interval of some milliseconds: to less than a nanosecond.
const BISECTIONS: u32 = 40;

#[cfg(test)]
mod tests {
    use super::published::{DEPTHS, SIZES};
    use super::*;

    const SIZE_MAX: u32 = 1 << 20;

    /// Possible costs in software, from a fast core to a table on a slow one.
    fn all_costs() -> Vec<Costs> {
        let mut all = Vec::new();
        for io_bytes in [512, 4 << 10, 16 << 10, 128 << 10, SIZE_MAX] {
            for rest_ns in [200.0, 1500.0, 40_000.0] {
                for bytes_per_ns in [0.4, 2.0, 20.0, 90.0] {
                    for elsewhere_ns in [0.0, 10_000.0, 2e6] {
                        let digest_ns = f64::from(io_bytes) / bytes_per_ns;
                        all.push(Costs { io_bytes, rest_ns, digest_ns, elsewhere_ns });
                    }
                }
            }
        }
        all
    }

    fn variants() -> [Digest; 5] {
        let slow = Engine { bytes_per_second: 1e9, latency_ns: 50_000.0, ..Engine::DSA };
        let narrow = Engine { depth: 1, ..slow };
        [
            Digest::None,
            Digest::Software,
            Digest::Offload(Engine::DSA),
            Digest::Offload(slow),
            Digest::Offload(narrow),
        ]
    }

    #[test]
    fn nothing_is_faster_than_no_digest_nor_than_its_bottleneck() {
        for costs in all_costs() {
            for depth in [1, 7, 128, 1024] {
                let none = predict(&costs, Digest::None, depth);
                for digest in variants() {
                    let with = predict(&costs, digest, depth);
                    assert!(with.iops <= none.iops * (1.0 + 1e-9), "{costs:?} {digest:?} {depth}");
                    assert!(with.core_ns >= none.core_ns);
                    // The utilisation law: no station is busy for more than all of the time.
                    assert!(with.busy_share() <= 1.0 + 1e-9, "{costs:?} {digest:?} {depth}");
                    // Little's law: a command takes at least the time of its visits.
                    let visits_ns = costs.elsewhere_ns + with.core_ns;
                    assert!(with.iops * visits_ns <= f64::from(depth) * 1e9 * (1.0 + 1e-9));
                    if let Digest::Offload(engine) = digest {
                        let bytes = with.iops * f64::from(costs.io_bytes);
                        assert!(bytes <= engine.bytes_per_second * (1.0 + 1e-9));
                        let held = with.iops * engine.latency_ns / 1e9;
                        assert!(held <= f64::from(engine.depth) * (1.0 + 1e-9));
                    }
                }
            }
        }
    }

    #[test]
    fn more_in_flight_is_never_slower() {
        for costs in all_costs() {
            for digest in variants() {
                let mut before = 0.0;
                for depth in [1, 2, 8, 32, 128, 512, 1024] {
                    let iops = predict(&costs, digest, depth).iops;
                    assert!(iops >= before * (1.0 - 1e-9), "{costs:?} {digest:?} {depth}");
                    before = iops;
                }
            }
        }
    }

    #[test]
    fn one_command_takes_the_sum_of_its_visits() {
        let costs =
            Costs { io_bytes: 3000, rest_ns: 1000.0, digest_ns: 500.0, elsewhere_ns: 8500.0 };
        let iops = |digest| predict(&costs, digest, 1).iops.round();
        assert_eq!(iops(Digest::Software), 100_000.0);
        // 1000 + 100 + 200 on the core, 8500 elsewhere, 1000 + 3000 bytes at 30 bytes/ns.
        assert_eq!(iops(Digest::Offload(Engine::DSA)), (1e9f64 / 10_900.0).round());
    }

    #[test]
    fn turns_are_shared_where_commands_queue() {
        let costs = Costs { io_bytes: 4096, rest_ns: 1000.0, digest_ns: 300.0, elsewhere_ns: 1e6 };
        let core_ns = |depth| predict(&costs, Digest::Offload(Engine::DSA), depth).core_ns;
        assert_eq!(core_ns(1), 1300.0);
        assert!(core_ns(128) > 1200.0, "{}", core_ns(128));
        assert!(core_ns(2000) < 1110.0, "{}", core_ns(2000));
    }

    #[test]
    fn time_elsewhere_is_found_from_what_was_reached() {
        for elsewhere_ns in [0.0, 900.0, 1e5, 3e6] {
            let costs = Costs { io_bytes: 4096, rest_ns: 2000.0, digest_ns: 0.0, elsewhere_ns };
            let iops = predict(&costs, Digest::None, 128).iops;
            let found = super::elsewhere_ns(4096, 2000.0, 128, iops);
            let again = predict(&Costs { elsewhere_ns: found, ..costs }, Digest::None, 128).iops;
            assert!((again / iops - 1.0).abs() < 1e-6, "{elsewhere_ns}: {found}");
        }
        assert_eq!(super::elsewhere_ns(4096, 2000.0, 128, 0.0), 0.0);
    }

    /// Offload over software, by size and depth.
    fn gains(engine: Engine) -> Vec<Vec<f64>> {
        let gain = |io_bytes, depth| {
            let costs = published::costs(io_bytes, &engine).unwrap();
            let offload = predict(&costs, Digest::Offload(engine), depth).iops;
            offload / predict(&costs, Digest::Software, depth).iops
        };
        SIZES.iter().map(|&size| DEPTHS.iter().map(|&depth| gain(size, depth)).collect()).collect()
    }

    fn assert_published_shape(engine: Engine) {
        let gains = gains(engine);
        // Nothing at 4 KiB, nor at the lowest depth.
        assert!(gains[0].iter().all(|gain| (0.97..1.15).contains(gain)), "{gains:?}");
        assert!(gains.iter().all(|row| (0.97..1.07).contains(&row[0])), "{gains:?}");
        // Growing with depth, and at the highest depth with size.
        for row in &gains {
            assert!(row.windows(2).all(|pair| pair[1] >= pair[0] - 0.005), "{gains:?}");
        }
        let deepest: Vec<f64> = gains.iter().map(|row| row[DEPTHS.len() - 1]).collect();
        assert!(deepest[1] > deepest[0] + 0.15 && deepest[2] > deepest[1], "{gains:?}");
        assert!(deepest[1] > 1.25 && deepest[2] > 1.4, "{gains:?}");
    }

    #[test]
    fn the_published_shape_follows_from_the_published_costs() {
        assert_published_shape(Engine::DSA);
    }

    #[test]
    fn the_shape_stays_when_what_is_assumed_is_halved_or_doubled() {
        let dsa = Engine::DSA;
        for factor in [0.5, 2.0] {
            assert_published_shape(Engine { latency_ns: dsa.latency_ns * factor, ..dsa });
            assert_published_shape(Engine { operation_ns: dsa.operation_ns * factor, ..dsa });
            assert_published_shape(Engine { turn_ns: dsa.turn_ns * factor, ..dsa });
        }
        assert_published_shape(Engine { batch: dsa.batch / 2, ..dsa });
        assert_published_shape(Engine { batch: dsa.batch * 2, ..dsa });
    }
}
