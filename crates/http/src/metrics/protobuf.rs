//! Metrics in the binary form of Prometheus (io.prometheus.client.MetricFamily, each behind its length): the only one that
//! carries native histograms.

use super::values::{Kind, Labels, Value};

/// A histogram whose buckets end at the powers of two of a second (schema 0).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Native<'a> {
    /// What is above this is in a bucket, in seconds.
    pub(crate) threshold: f64,
    /// How many are not.
    pub(crate) below: u64,
    /// The power of two that ends the first bucket.
    pub(crate) first: i32,
    /// The counts of the buckets from the first one on.
    pub(crate) counts: &'a [u64],
}

/// A histogram in both forms.
pub(crate) struct Histogram<'a> {
    /// The upper borders of buckets in seconds, the last of which is infinite, and how many values are not above.
    pub(crate) classic: &'a [(f64, u64)],
    pub(crate) native: Option<Native<'a>>,
    pub(crate) count: u64,
    pub(crate) sum_ns: u64,
}

/// Families of metrics, one behind the other.
#[derive(Default)]
pub(crate) struct Families {
    all: Vec<u8>,
    /// The one that is being written, and whether it has a metric.
    family: Vec<u8>,
    has_metrics: bool,
    kind: u64,
    metric: Vec<u8>,
    part: Vec<u8>,
}

/// Kinds of fields (the three low bits of a key).
const VARINT: u32 = 0;
const FIXED_64: u32 = 1;
const BYTES: u32 = 2;

fn varint(to: &mut Vec<u8>, mut value: u64) {
    loop {
        let low = u8::try_from(value & 0x7f).unwrap_or_default();
        value >>= 7;
        if value == 0 {
            return to.push(low);
        }
        to.push(low | 0x80);
    }
}

fn key(to: &mut Vec<u8>, field: u32, kind: u32) {
    varint(to, u64::from(field << 3 | kind));
}

fn number(to: &mut Vec<u8>, field: u32, value: u64) {
    key(to, field, VARINT);
    varint(to, value);
}

fn double(to: &mut Vec<u8>, field: u32, value: f64) {
    key(to, field, FIXED_64);
    to.extend_from_slice(&value.to_le_bytes());
}

fn bytes(to: &mut Vec<u8>, field: u32, value: &[u8]) {
    key(to, field, BYTES);
    varint(to, value.len() as u64);
    to.extend_from_slice(value);
}

/// Small values of either sign take few bytes.
fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63).cast_unsigned()
}

impl Families {
    pub(crate) fn begin(&mut self, name: &str, help: &str, kind: Kind) {
        self.end_family();
        self.kind = match kind {
            Kind::Counter => 0,
            Kind::Gauge => 1,
            Kind::Histogram => 4,
        };
        bytes(&mut self.family, 1, name.as_bytes());
        bytes(&mut self.family, 2, help.as_bytes());
        number(&mut self.family, 3, self.kind);
    }

    /// What has no metric is left out.
    fn end_family(&mut self) {
        if std::mem::take(&mut self.has_metrics) {
            varint(&mut self.all, self.family.len() as u64);
            self.all.append(&mut self.family);
        }
        self.family.clear();
    }

    fn labels(&mut self, labels: &Labels) {
        self.metric.clear();
        for (name, value) in labels.pairs() {
            self.part.clear();
            bytes(&mut self.part, 1, name.as_bytes());
            bytes(&mut self.part, 2, value.as_bytes());
            bytes(&mut self.metric, 1, &self.part);
        }
    }

    fn end_metric(&mut self, field: u32) {
        bytes(&mut self.metric, field, &self.part);
        bytes(&mut self.family, 4, &self.metric);
        self.has_metrics = true;
    }

    /// A counter or a gauge.
    pub(crate) fn sample(&mut self, labels: &Labels, value: Value) {
        self.labels(labels);
        self.part.clear();
        double(&mut self.part, 1, value.real());
        // Their fields are 3 and 2.
        self.end_metric(if self.kind == 0 { 3 } else { 2 });
    }

    pub(crate) fn histogram(&mut self, labels: &Labels, histogram: &Histogram<'_>) {
        self.labels(labels);
        let (part, mut inner) = (&mut self.part, Vec::new());
        part.clear();
        number(part, 1, histogram.count);
        double(part, 2, Value::Nanoseconds(histogram.sum_ns).real());
        for (border, count) in histogram.classic {
            inner.clear();
            number(&mut inner, 1, *count);
            double(&mut inner, 2, *border);
            bytes(part, 3, &inner);
        }
        if let Some(native) = histogram.native {
            number(part, 5, zigzag(0));
            double(part, 6, native.threshold);
            number(part, 7, native.below);
            if !native.counts.is_empty() {
                inner.clear();
                number(&mut inner, 1, zigzag(native.first.into()));
                number(&mut inner, 2, native.counts.len() as u64);
                bytes(part, 12, &inner);
            }
            // Each count as the difference from the one before.
            inner.clear();
            let mut before = 0_i64;
            for count in native.counts {
                let count = i64::try_from(*count).unwrap_or(i64::MAX);
                varint(&mut inner, zigzag(count - before));
                before = count;
            }
            bytes(part, 13, &inner);
        }
        self.end_metric(7);
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.end_family();
        self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a message holds: fields and their values, those that have a length as bytes.
    fn fields(mut message: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut all = Vec::new();
        while !message.is_empty() {
            let key = take_varint(&mut message);
            let len = match key & 7 {
                0 => {
                    all.push((key >> 3, take_varint(&mut message).to_le_bytes().to_vec()));
                    continue;
                }
                1 => 8,
                _ => usize::try_from(take_varint(&mut message)).unwrap(),
            };
            let (value, rest) = message.split_at(len);
            all.push((key >> 3, value.to_vec()));
            message = rest;
        }
        all
    }

    fn take_varint(from: &mut &[u8]) -> u64 {
        let end = from.iter().position(|byte| byte & 0x80 == 0).unwrap();
        let (bytes, rest) = from.split_at(end + 1);
        *from = rest;
        bytes.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f))
    }

    fn of(message: &[u8], field: u64) -> Vec<Vec<u8>> {
        let all = fields(message).into_iter().filter(|(number, _)| *number == field);
        all.map(|(_, value)| value).collect()
    }

    fn families(mut text: &[u8]) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while !text.is_empty() {
            let len = usize::try_from(take_varint(&mut text)).unwrap();
            let (family, rest) = text.split_at(len);
            all.push(family.to_vec());
            text = rest;
        }
        all
    }

    #[test]
    fn counters_and_gauges_have_names_labels_and_values() {
        let mut written = Families::default();
        written.begin("a_total", "A.", Kind::Counter);
        written.sample(&Labels::new(&[("x", "a\"b\\c\nd"), ("y", "")]), Value::Count(300));
        written.begin("empty", "No metric.", Kind::Gauge);
        written.begin("b", "B.", Kind::Gauge);
        written.sample(&Labels::default(), Value::Nanoseconds(500_000_000));
        let all = families(&written.finish());
        assert_eq!(all.len(), 2, "a family without a metric is left out");
        assert_eq!(of(&all[0], 1), [b"a_total"]);
        assert_eq!(of(&all[0], 2), [b"A."]);
        assert_eq!(of(&all[0], 3), [0_u64.to_le_bytes()]);
        let metric = &of(&all[0], 4)[0];
        let labels = of(metric, 1);
        assert_eq!(
            (of(&labels[0], 1), of(&labels[0], 2)),
            (vec![b"x".to_vec()], vec![b"a\"b\\c\nd".to_vec()])
        );
        assert_eq!((of(&labels[1], 1), of(&labels[1], 2)), (vec![b"y".to_vec()], vec![vec![]]));
        assert_eq!(of(&of(metric, 3)[0], 1), [300_f64.to_le_bytes()]);
        assert_eq!(of(&all[1], 3), [1_u64.to_le_bytes()]);
        assert_eq!(of(&of(&of(&all[1], 4)[0], 2)[0], 1), [0.5_f64.to_le_bytes()]);
    }

    #[test]
    fn histograms_have_both_forms() {
        let mut written = Families::default();
        written.begin("h", "H.", Kind::Histogram);
        let native = Native { threshold: 0.25, below: 5, first: -1, counts: &[3, 0, 7] };
        let classic = &[(0.5, 8), (f64::INFINITY, 15)];
        let histogram =
            Histogram { classic, native: Some(native), count: 15, sum_ns: 2_000_000_000 };
        written.histogram(&Labels::default(), &histogram);
        let family = &families(&written.finish())[0];
        let histogram = &of(&of(family, 4)[0], 7)[0];
        assert_eq!(of(histogram, 1), [15_u64.to_le_bytes()]);
        assert_eq!(of(histogram, 2), [2_f64.to_le_bytes()]);
        let buckets = of(histogram, 3);
        assert_eq!(buckets.len(), 2);
        assert_eq!(
            (of(&buckets[0], 1), of(&buckets[0], 2)),
            (vec![8_u64.to_le_bytes().to_vec()], vec![0.5_f64.to_le_bytes().to_vec()])
        );
        assert_eq!(
            (of(histogram, 6), of(histogram, 7)),
            (vec![0.25_f64.to_le_bytes().to_vec()], vec![5_u64.to_le_bytes().to_vec()])
        );
        let span = &of(histogram, 12)[0];
        assert_eq!(
            (of(span, 1), of(span, 2)),
            (vec![1_u64.to_le_bytes().to_vec()], vec![3_u64.to_le_bytes().to_vec()])
        );
        // 3, -3, 7
        assert_eq!(of(histogram, 13), [[6, 5, 14]]);
    }

    #[test]
    fn numbers_of_either_sign_are_short() {
        assert_eq!([0, -1, 1, -2, 2].map(zigzag), [0, 1, 2, 3, 4]);
        assert_eq!(zigzag(i64::MIN), u64::MAX);
        let mut written = Vec::new();
        [0, 127, 128, u64::MAX].iter().for_each(|value| varint(&mut written, *value));
        assert_eq!(written[..4], [0, 127, 128, 1]);
        assert_eq!(written.len(), 4 + 10);
    }
}
