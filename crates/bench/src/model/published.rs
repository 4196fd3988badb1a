//! Measurements of Kariuki (Intel): "Protecting NVMe/TCP data at 400 Gbps with DSA", SDC 2022.
//!
//! The talk states none of the costs that the [model](super) needs. They follow from four of its figures
//! for each size, none of which is in the table that the model is compared with: the number of cores that
//! fill the line with DSA, how many fewer these are than with ISA-L, the number of commands in flight, and
//! the line's rate. Core time is cores over IOPS; the round-trip time is commands in flight over IOPS
//! (Little's law).
//!
//! Read with care: the slides call their figures estimated or simulated on pre-production parts. We read
//! the largest number of cores plotted as the number that DSA needs: the talk counts the saved cores in
//! another way than it plots them. The depth at which the line was full is an upper bound for the time
//! elsewhere.

use super::{Costs, Engine};

/// Sizes of the table, in bytes.
pub const SIZES: [u32; 3] = [4 << 10, 16 << 10, 128 << 10];

/// Commands in flight at the target in the table.
pub const DEPTHS: [u32; 4] = [128, 256, 512, 1024];

/// IOPS of one core with DSA over those with ISA-L's AVX-512 CRC, by [`SIZES`] and [`DEPTHS`].
/// 4 and 16 KiB are random reads, 128 KiB sequential ones.
pub const GAINS: [[f64; 4]; 3] =
    [[0.97, 1.05, 1.02, 1.06], [1.07, 1.06, 1.17, 1.34], [0.99, 1.28, 1.45, 1.71]];

/// Rate of the line, four ports of 100 Gbit/s, in bytes per second.
const LINE_BYTES_PER_SECOND: f64 = 400e9 / 8.0;

/// The resources that filled the line.
struct AtLineRate {
    io_bytes: u32,
    /// Cores with DSA.
    cores: f64,
    /// The part of ISA-L's cores that DSA saves.
    saved: f64,
    /// Commands in flight.
    in_flight: f64,
}

const AT_LINE_RATE: [AtLineRate; 3] = [
    AtLineRate { io_bytes: 4 << 10, cores: 20.0, saved: 0.10, in_flight: 8192.0 },
    AtLineRate { io_bytes: 16 << 10, cores: 6.0, saved: 0.28, in_flight: 4096.0 },
    AtLineRate { io_bytes: 128 << 10, cores: 3.0, saved: 0.33, in_flight: 1024.0 },
];

/// The published gain.
#[must_use]
pub fn gain(io_bytes: u32, depth: u32) -> Option<f64> {
    let row = SIZES.iter().position(|&size| size == io_bytes)?;
    let column = DEPTHS.iter().position(|&known| known == depth)?;
    Some(GAINS[row][column])
}

/// The costs of a command there, if the core paid the costs of `engine` for its engine.
#[must_use]
pub fn costs(io_bytes: u32, engine: &Engine) -> Option<Costs> {
    let point = AT_LINE_RATE.iter().find(|point| point.io_bytes == io_bytes)?;
    let command_ns = f64::from(io_bytes) / LINE_BYTES_PER_SECOND * 1e9;
    let offload_ns = point.cores * command_ns;
    let software_ns = offload_ns / (1.0 - point.saved);
    // Cores that fill a line with thousands of commands in flight have full batches.
    let engine_ns = engine.operation_ns + engine.turn_ns / f64::from(engine.batch.max(1));
    let rest_ns = offload_ns - engine_ns;
    Some(Costs {
        io_bytes,
        rest_ns,
        digest_ns: software_ns - rest_ns,
        elsewhere_ns: point.in_flight * command_ns - offload_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_found_by_size_and_depth() {
        assert_eq!(gain(4 << 10, 128), Some(0.97));
        assert_eq!(gain(128 << 10, 1024), Some(1.71));
        assert_eq!(gain(16 << 10, 512), Some(1.17));
        assert_eq!((gain(8 << 10, 128), gain(4 << 10, 1)), (None, None));
    }

    #[test]
    fn costs_follow_from_cores_and_commands_in_flight() {
        let costs = costs(128 << 10, &Engine::DSA).unwrap();
        // 128 KiB take 2.62 us of the line; three cores, so 7.86 us of each, 11.74 without DSA.
        assert!((costs.rest_ns - 7758.0).abs() < 1.0, "{costs:?}");
        assert!((costs.rest_ns + costs.digest_ns - 11_738.0).abs() < 1.0, "{costs:?}");
        assert!((costs.elsewhere_ns - 2_676_490.0).abs() < 10.0, "{costs:?}");
        assert_eq!(super::costs(512, &Engine::DSA), None);
    }

    #[test]
    fn their_crc_is_one_that_a_core_can_reach() {
        for size in SIZES {
            let costs = costs(size, &Engine::DSA).unwrap();
            let bytes_per_ns = f64::from(size) / costs.digest_ns;
            assert!((10.0..60.0).contains(&bytes_per_ns), "{size}: {bytes_per_ns} GB/s");
        }
    }
}
