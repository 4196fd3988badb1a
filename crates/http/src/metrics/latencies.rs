//! Histograms of how long reads and writes took: of devices, subsystems and hosts.

use raceline_bdev::{FIRST_BORDER, LATENCY_BUCKETS, Latencies, UNITS_PER_SECOND};

use super::protobuf::Native;
use super::text::{Labels, Metric};

/// The powers of two of units that end a classic bucket: 7.6 us to 1 s.
const BORDERS: [u32; 13] = [13, 14, 15, 16, 17, 18, 19, 20, 22, 24, 26, 28, 30];

/// The reads and the writes of one thing. Operations that have not happened have no series.
pub(super) fn write(metric: &mut Metric<'_>, labels: &Labels, of: &[Latencies; 2]) {
    let borders = BORDERS.map(seconds);
    for (operation, latencies) in ["read", "write"].iter().zip(of) {
        let counts = regrouped(&latencies.buckets);
        if counts.iter().all(|count| *count == 0) {
            continue;
        }
        let native = Native {
            threshold: seconds(FIRST_BORDER),
            below: latencies.buckets[0],
            first: FIRST_BORDER.cast_signed() + 1 - UNITS_PER_SECOND.cast_signed(),
            counts: &latencies.buckets[1..],
        };
        let labels = labels.and(&[("operation", operation)]);
        metric.histogram(&labels, (&borders, &counts), latencies.sum_ns, Some(native));
    }
}

/// The border that is this power of two of units.
fn seconds(power: u32) -> f64 {
    2_f64.powi(power.cast_signed() - UNITS_PER_SECOND.cast_signed())
}

/// The counts between the borders, and that above the last one.
fn regrouped(buckets: &[u64; LATENCY_BUCKETS]) -> [u64; BORDERS.len() + 1] {
    let mut counts = [0; BORDERS.len() + 1];
    for (power, count) in (FIRST_BORDER..).zip(buckets) {
        let at = BORDERS.iter().position(|border| power <= *border).unwrap_or(BORDERS.len());
        counts[at] += count;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::super::text::{Form, Kind, Names, Text};
    use super::*;

    #[test]
    fn buckets_between_two_borders_are_added() {
        let mut buckets = [0; LATENCY_BUCKETS];
        (buckets[0], buckets[7], buckets[8], buckets[9], buckets[17], buckets[18]) =
            (1, 2, 4, 8, 16, 32);
        let mut expected = [0; 14];
        (expected[0], expected[7], expected[8], expected[12], expected[13]) = (1, 2, 12, 16, 32);
        assert_eq!(regrouped(&buckets), expected);
    }

    #[test]
    fn an_operation_that_has_not_happened_has_no_series() {
        let mut slow = [0; LATENCY_BUCKETS];
        slow[1] = 2;
        let of = [Latencies::new(slow, 5, 20_000), Latencies::default()];
        let mut text = Text::new(Form::Classic, Names::Own);
        let mut metric = text.metric("some_seconds", Kind::Histogram, "Times.");
        write(&mut metric, &Labels::new(&[("nqn", "s")]), &of);
        let text = String::from_utf8(text.finish()).unwrap();
        for expected in [
            "raceline_some_seconds_bucket{nqn=\"s\",operation=\"read\",le=\"0.00000762939453125\"} 3\n",
            "raceline_some_seconds_bucket{nqn=\"s\",operation=\"read\",le=\"+Inf\"} 5\n",
            "raceline_some_seconds_sum{nqn=\"s\",operation=\"read\"} 0.000020000\n",
            "raceline_some_seconds_count{nqn=\"s\",operation=\"read\"} 5\n",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        assert!(!text.contains("write"), "{text}");
    }
}
