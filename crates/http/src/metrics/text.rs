//! The text of metrics: OpenMetrics 1.0, the classic form of Prometheus (0.0.4), or its binary form, whichever a scraper
//! prefers.

use std::fmt::Write as _;

use super::protobuf::{Families, Histogram, Native};
pub(crate) use super::values::{Kind, Labels, Value};

/// A form of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    OpenMetrics,
    Classic,
    /// Binary, with native histograms.
    Protobuf,
}

const OPEN_METRICS: &str = "application/openmetrics-text";
const PROTOBUF: &str = "application/vnd.google.protobuf";
/// What the binary form has to be.
const FAMILIES: [&str; 2] = ["proto=io.prometheus.client.MetricFamily", "encoding=delimited"];

impl Form {
    /// What a scraper that sends this Accept header prefers.
    pub(crate) fn preferred(accept: &str) -> Self {
        let (mut open, mut classic, mut binary) = (0, 0, 0);
        for part in accept.split(',') {
            let mut fields = part.split(';').map(str::trim);
            let kind = fields.next().unwrap_or_default();
            let is_families =
                FAMILIES.iter().all(|wanted| fields.clone().any(|field| field == *wanted));
            let weight = fields.find_map(|field| field.strip_prefix("q=")).map_or(1000, weight);
            if kind.eq_ignore_ascii_case(PROTOBUF) && is_families {
                binary = binary.max(weight);
            } else if kind.eq_ignore_ascii_case(OPEN_METRICS) {
                open = open.max(weight);
            } else if kind.eq_ignore_ascii_case("text/plain") {
                classic = classic.max(weight);
            }
        }
        match () {
            () if binary > 0 && binary >= open.max(classic) => Self::Protobuf,
            () if open > 0 && open >= classic => Self::OpenMetrics,
            () => Self::Classic,
        }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }
}

/// A weight in thousandths, as HTTP limits them.
fn weight(text: &str) -> u32 {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole = if whole == "1" { 1000 } else { 0 };
    let digits = fraction.bytes().take(3).filter(u8::is_ascii_digit);
    let mut place = 100;
    let mut sum = whole;
    for digit in digits {
        sum += u32::from(digit - b'0') * place;
        place /= 10;
    }
    sum.min(1000)
}

/// Under which names metrics appear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// `raceline_*`, all of them.
    Own,
    /// `ceph_nvmeof_*`, those that the exporter of ceph-nvmeof has, so that its dashboards work.
    CephNvmeof,
}

/// What the exporter of ceph-nvmeof has: our name, and its name without the prefix.
const CEPH_NVMEOF: &[(&str, &str)] = &[
    ("gateway_info", "gateway_info"),
    ("bdev_metadata", "bdev_metadata"),
    ("bdev_capacity_bytes", "bdev_capacity_bytes"),
    ("bdev_reads_completed", "bdev_reads_completed"),
    ("bdev_writes_completed", "bdev_writes_completed"),
    ("bdev_read_bytes", "bdev_read_bytes"),
    ("bdev_written_bytes", "bdev_written_bytes"),
    ("bdev_read_seconds", "bdev_read_seconds"),
    ("bdev_write_seconds", "bdev_write_seconds"),
    ("reactor_seconds", "reactor_seconds"),
    ("subsystem_metadata", "subsystem_metadata"),
    ("subsystem_listeners", "subsystem_listener_count"),
    ("subsystem_hosts", "subsystem_host_count"),
    ("subsystem_namespace_limit", "subsystem_namespace_limit"),
    ("subsystem_namespaces", "subsystem_namespace_count"),
    ("subsystem_namespace_metadata", "subsystem_namespace_metadata"),
    ("host_connection_state", "host_connection_state"),
    ("host_keep_alive_timeout", "host_keepalive_timeout"),
];

impl Names {
    pub(crate) fn of_query(query: &str) -> Option<Self> {
        match query {
            "" => Some(Self::Own),
            "names=ceph-nvmeof" => Some(Self::CephNvmeof),
            _ => None,
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::Own => "raceline_",
            Self::CephNvmeof => "ceph_nvmeof_",
        }
    }

    /// The name of a metric of ours; `None` if it does not appear.
    fn of(self, name: &'static str) -> Option<&'static str> {
        match self {
            Self::Own => Some(name),
            Self::CephNvmeof => {
                CEPH_NVMEOF.iter().find(|(own, _)| *own == name).map(|(_, theirs)| *theirs)
            }
        }
    }
}

/// A text that grows.
pub(crate) struct Text {
    text: String,
    families: Families,
    form: Form,
    names: Names,
}

impl Text {
    pub(crate) fn new(form: Form, names: Names) -> Self {
        let (text, families) = (String::with_capacity(64 << 10), Families::default());
        Self { text, families, form, names }
    }

    /// Begins a metric; all its samples follow. A counter is named without `_total`.
    pub(crate) fn metric(&mut self, name: &'static str, kind: Kind, help: &str) -> Metric<'_> {
        let shown = self.names.of(name);
        let prefix = self.names.prefix();
        let suffix = if kind == Kind::Counter { "_total" } else { "" };
        if let Some(name) = shown
            && self.form == Form::Protobuf
        {
            self.families.begin(&format!("{prefix}{name}{suffix}"), help, kind);
        } else if let Some(name) = shown {
            // The classic form names a counter by its sample.
            let named = if self.form == Form::Classic { suffix } else { "" };
            let word = match kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            let text = &mut self.text;
            let _ = writeln!(text, "# HELP {prefix}{name}{named} {help}");
            let _ = writeln!(text, "# TYPE {prefix}{name}{named} {word}");
        }
        let (wanted, name) = (shown.is_some(), shown.unwrap_or_default());
        let families = (self.form == Form::Protobuf).then_some(&mut self.families);
        Metric { text: &mut self.text, families, prefix, name, suffix, wanted }
    }

    /// A metric whose samples are at hand.
    pub(crate) fn counter(
        &mut self,
        name: &'static str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels, Value)>,
    ) {
        let mut metric = self.metric(name, Kind::Counter, help);
        samples.into_iter().for_each(|(labels, value)| metric.sample(&labels, value));
    }

    /// A gauge whose samples are at hand.
    pub(crate) fn gauge(
        &mut self,
        name: &'static str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels, Value)>,
    ) {
        let mut metric = self.metric(name, Kind::Gauge, help);
        samples.into_iter().for_each(|(labels, value)| metric.sample(&labels, value));
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        match self.form {
            Form::OpenMetrics => self.text.push_str("# EOF\n"),
            Form::Classic => {}
            Form::Protobuf => return self.families.finish(),
        }
        self.text.into_bytes()
    }
}

/// A metric whose samples are being written.
pub(crate) struct Metric<'a> {
    text: &'a mut String,
    /// There for the binary form.
    families: Option<&'a mut Families>,
    prefix: &'static str,
    name: &'static str,
    suffix: &'static str,
    wanted: bool,
}

impl Metric<'_> {
    pub(crate) fn sample(&mut self, labels: &Labels, value: impl Into<Value>) {
        match &mut self.families {
            _ if !self.wanted => {}
            Some(families) => families.sample(labels, value.into()),
            None => self.line(self.suffix, labels, None, value.into()),
        }
    }

    /// A histogram: counts of values up to each border in seconds, not yet summed up, with the count above the last
    /// border as the last one. The binary form also has the native histogram, if there is one.
    pub(crate) fn histogram(
        &mut self,
        labels: &Labels,
        (borders, counts): (&[f64], &[u64]),
        sum_ns: u64,
        native: Option<Native<'_>>,
    ) {
        if !self.wanted {
            return;
        }
        let mut count = 0;
        let sums = counts.iter().enumerate().map(|(index, more)| {
            count += more;
            (borders.get(index).copied().unwrap_or(f64::INFINITY), count)
        });
        let classic: Vec<(f64, u64)> = sums.collect();
        if let Some(families) = &mut self.families {
            let histogram = Histogram { classic: &classic, native, count, sum_ns };
            return families.histogram(labels, &histogram);
        }
        for (border, count) in &classic {
            self.line("_bucket", labels, Some(*border), Value::Count(*count));
        }
        self.line("_sum", labels, None, Value::Nanoseconds(sum_ns));
        self.line("_count", labels, None, Value::Count(count));
    }

    fn line(&mut self, suffix: &str, labels: &Labels, border: Option<f64>, value: Value) {
        let text = &mut *self.text;
        text.push_str(self.prefix);
        text.push_str(self.name);
        text.push_str(suffix);
        if !labels.text().is_empty() || border.is_some() {
            text.push('{');
            text.push_str(labels.text());
            if let Some(border) = border {
                let comma = if labels.text().is_empty() { "" } else { "," };
                let _ = match border.is_finite() {
                    true => write!(text, "{comma}le=\"{border}\""),
                    false => write!(text, "{comma}le=\"+Inf\""),
                };
            }
            text.push('}');
        }
        let _ = match value {
            Value::Count(count) => writeln!(text, " {count}"),
            Value::Nanoseconds(ns) => {
                writeln!(text, " {}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
            }
            Value::Real(real) => writeln!(text, " {real}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scraper_gets_the_form_that_it_prefers() {
        for (accept, expected) in [
            ("", Form::Classic),
            ("*/*", Form::Classic),
            ("text/plain", Form::Classic),
            ("application/openmetrics-text", Form::OpenMetrics),
            ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", Form::OpenMetrics),
            (
                "application/openmetrics-text; version=1.0.0; q=0.4, text/plain;q=0.75",
                Form::Classic,
            ),
            ("application/openmetrics-text;q=0", Form::Classic),
            (
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,\
                 application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                Form::Protobuf,
            ),
            (
                "application/vnd.google.protobuf;proto=other.Family;encoding=delimited",
                Form::Classic,
            ),
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
                 text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                Form::OpenMetrics,
            ),
        ] {
            assert_eq!(Form::preferred(accept), expected, "{accept}");
        }
    }

    fn example(form: Form, names: Names) -> String {
        let mut text = Text::new(form, names);
        let labels = Labels::new(&[("bdev_name", "a\"b\\c\nd")]);
        let mut metric = text.metric("bdev_reads_completed", Kind::Counter, "Reads.");
        metric.sample(&labels, 7_u64);
        let mut metric = text.metric("latency_seconds", Kind::Histogram, "Times.");
        metric.histogram(&Labels::default(), (&[0.5, 1.0], &[1, 0, 2]), 3_000_000_001, None);
        text.gauge("ratio", "A part.", [(Labels::default(), Value::Real(0.25))]);
        String::from_utf8(text.finish()).unwrap()
    }

    #[test]
    fn each_form_is_written_as_its_specification_has_it() {
        let open = "\
# HELP raceline_bdev_reads_completed Reads.
# TYPE raceline_bdev_reads_completed counter
raceline_bdev_reads_completed_total{bdev_name=\"a\\\"b\\\\c\\nd\"} 7
# HELP raceline_latency_seconds Times.
# TYPE raceline_latency_seconds histogram
raceline_latency_seconds_bucket{le=\"0.5\"} 1
raceline_latency_seconds_bucket{le=\"1\"} 1
raceline_latency_seconds_bucket{le=\"+Inf\"} 3
raceline_latency_seconds_sum 3.000000001
raceline_latency_seconds_count 3
# HELP raceline_ratio A part.
# TYPE raceline_ratio gauge
raceline_ratio 0.25
# EOF
";
        assert_eq!(example(Form::OpenMetrics, Names::Own), open);
        let classic = open
            .replace(
                "HELP raceline_bdev_reads_completed ",
                "HELP raceline_bdev_reads_completed_total ",
            )
            .replace(
                "TYPE raceline_bdev_reads_completed ",
                "TYPE raceline_bdev_reads_completed_total ",
            )
            .replace("# EOF\n", "");
        assert_eq!(example(Form::Classic, Names::Own), classic);
    }

    #[test]
    fn names_of_another_exporter_are_those_that_it_has() {
        let text = example(Form::Classic, Names::CephNvmeof);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[2].starts_with("ceph_nvmeof_bdev_reads_completed_total{"), "{text}");
        assert_eq!(Names::of_query("names=other"), None);
    }
}
