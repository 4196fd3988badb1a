//! One look at a daemon, and what has happened between two.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::manage::elements;

/// Numbers of a device, in the order of the answer's `bdev_columns`.
const COLUMNS: usize = 8;

/// The counters of a daemon at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// Since the start of the daemon.
    pub(super) time_ns: u64,
    /// The number of the next event: it moves with everything that happens.
    pub(super) next_event: u64,
    cpu_ns: u64,
    cores: Vec<(String, [u64; 4])>,
    hosts: BTreeMap<(String, String), Host>,
    bdevs: BTreeMap<String, Device>,
    borders: Vec<u64>,
    latencies: Vec<u64>,
}

#[derive(Clone, Debug, Default)]
struct Device {
    counters: [u64; COLUMNS],
    latencies: Option<Vec<u64>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Host {
    controllers: u64,
    queues: u64,
    /// Reads, read bytes, writes, written bytes, errors.
    counters: [u64; 5],
}

/// Rates of I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) reads: f64,
    pub(super) writes: f64,
    pub(super) others: f64,
    pub(super) read_bytes: f64,
    pub(super) written_bytes: f64,
    /// The average time of a read or write, in ns.
    pub(super) average_ns: Option<f64>,
    /// Half of the requests took no longer.
    pub(super) p50_ns: Option<f64>,
    /// 99 of 100 requests took no longer.
    pub(super) p99_ns: Option<f64>,
    /// Errors since the daemon started.
    pub(super) errors: u64,
}

/// A host at a subsystem.
#[derive(Clone, Debug)]
pub(super) struct HostRates {
    pub(super) host: String,
    pub(super) subsystem: String,
    pub(super) controllers: u64,
    pub(super) queues: u64,
    pub(super) rates: Rates,
}

/// A core.
#[derive(Clone, Debug)]
pub(super) struct CoreRates {
    pub(super) name: String,
    /// The part of the time with useful work, 0 to 1.
    pub(super) useful: f64,
    pub(super) turns: f64,
    /// The bytes of all sockets, in either direction.
    pub(super) received: f64,
    pub(super) sent: f64,
}

/// What has happened between two looks.
#[derive(Clone, Debug, Default)]
pub(super) struct Interval {
    pub(super) seconds: f64,
    pub(super) total: Rates,
    pub(super) bdevs: BTreeMap<String, Rates>,
    pub(super) hosts: Vec<HostRates>,
    pub(super) cores: Vec<CoreRates>,
    /// CPU time of the daemon for each second.
    pub(super) spent: f64,
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().map(|list| list.iter().map(number).collect()).unwrap_or_default()
}

impl Sample {
    /// Reads the answer of `raceline_get_activity`. What is not there counts as 0.
    pub(super) fn read(answer: &Value) -> Self {
        let devices = answer["bdevs"].as_object().into_iter().flatten();
        let bdevs = devices.map(|(name, row)| {
            let counters = std::array::from_fn(|at| number(&row[at]));
            let latencies = row.get(COLUMNS).map(numbers);
            (name.clone(), Device { counters, latencies })
        });
        let hosts = elements(answer, "hosts").iter().map(|host| {
            let name = |member: &str| host[member].as_str().unwrap_or_default().to_owned();
            let counted = &host["statistics"];
            let columns =
                ["num_read_ops", "bytes_read", "num_write_ops", "bytes_written", "errors"];
            let counters = columns.map(|column| number(&counted[column]));
            let (controllers, queues) = (number(&host["controllers"]), number(&host["io_qpairs"]));
            ((name("subnqn"), name("hostnqn")), Host { controllers, queues, counters })
        });
        let cores = elements(answer, "cores").iter().map(|core| {
            let name = core["name"].as_str().unwrap_or_default().to_owned();
            let columns = ["busy_ns", "turns", "received_bytes", "sent_bytes"];
            (name, columns.map(|column| number(&core[column])))
        });
        Self {
            time_ns: number(&answer["time_ns"]),
            next_event: number(&answer["next_event"]),
            cpu_ns: number(&answer["cpu_ns"]),
            cores: cores.collect(),
            hosts: hosts.collect(),
            bdevs: bdevs.collect(),
            borders: numbers(&answer["latency"]["borders_ns"]),
            latencies: numbers(&answer["latency"]["counts"]),
        }
    }

    /// What has happened since an earlier look. Counters that have gone back, because the daemon is another one or
    /// they were reset, count from 0.
    pub(super) fn since(&self, before: &Self) -> Interval {
        let is_new = self.time_ns < before.time_ns;
        let elapsed_ns = if is_new { self.time_ns } else { self.time_ns - before.time_ns };
        let seconds = (float(elapsed_ns) / 1e9).max(1e-3);
        let mut total = Rates::default();
        let bdevs: BTreeMap<String, Rates> = self
            .bdevs
            .iter()
            .map(|(name, device)| {
                let past = before.bdevs.get(name).cloned().unwrap_or_default();
                (name.clone(), self.device(device, &past, seconds))
            })
            .collect();
        let (mut time_ns, mut timed) = (0.0, 0.0);
        for rates in bdevs.values() {
            total.add(rates);
            let count = rates.reads + rates.writes;
            time_ns += rates.average_ns.unwrap_or(0.0) * count;
            timed += count;
        }
        total.average_ns = (timed > 0.0).then(|| time_ns / timed);
        let passed = deltas(&self.latencies, &before.latencies);
        total.p50_ns = percentile(&self.borders, &passed, 0.50);
        total.p99_ns = percentile(&self.borders, &passed, 0.99);
        Interval {
            seconds,
            total,
            bdevs,
            hosts: self.hosts_since(before, seconds),
            cores: self.cores_since(before, seconds),
            spent: rate(self.cpu_ns, before.cpu_ns, seconds) / 1e9,
        }
    }

    fn device(&self, now: &Device, past: &Device, seconds: f64) -> Rates {
        let at = |column: usize| rate(now.counters[column], past.counters[column], seconds);
        let timed = at(0) + at(1);
        let passed =
            now.latencies.as_ref().map(|now| deltas(now, past.latencies.as_deref().unwrap_or(&[])));
        let within = |share: f64| {
            passed.as_ref().and_then(|passed| percentile(&self.borders, passed, share))
        };
        Rates {
            reads: at(0),
            writes: at(1),
            others: at(2),
            read_bytes: at(3),
            written_bytes: at(4),
            average_ns: (timed > 0.0).then(|| (at(5) + at(6)) / timed),
            p50_ns: within(0.50),
            p99_ns: within(0.99),
            errors: now.counters[7],
        }
    }

    fn hosts_since(&self, before: &Self, seconds: f64) -> Vec<HostRates> {
        let hosts = self.hosts.iter().map(|((subsystem, host), now)| {
            let past = before.hosts.get(&(subsystem.clone(), host.clone())).copied();
            let past = past.unwrap_or_default();
            let at = |column: usize| rate(now.counters[column], past.counters[column], seconds);
            let rates = Rates {
                reads: at(0),
                read_bytes: at(1),
                writes: at(2),
                written_bytes: at(3),
                errors: now.counters[4],
                ..Rates::default()
            };
            let (host, subsystem) = (host.clone(), subsystem.clone());
            HostRates { host, subsystem, controllers: now.controllers, queues: now.queues, rates }
        });
        hosts.collect()
    }

    fn cores_since(&self, before: &Self, seconds: f64) -> Vec<CoreRates> {
        let cores = self.cores.iter().map(|(name, now)| {
            let past = before.cores.iter().find(|(known, _)| known == name);
            let past = past.map_or([0; 4], |(_, past)| *past);
            let at = |column: usize| rate(now[column], past[column], seconds);
            let useful = (at(0) / 1e9).min(1.0);
            CoreRates { name: name.clone(), useful, turns: at(1), received: at(2), sent: at(3) }
        });
        cores.collect()
    }
}

impl Rates {
    /// Requests of all kinds for each second.
    pub(super) fn iops(&self) -> f64 {
        self.reads + self.writes + self.others
    }

    /// Adds up what can be added; times cannot.
    pub(super) fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.others += other.others;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.errors += other.errors;
    }
}

#[expect(clippy::cast_precision_loss, reason = "what is shown has four digits")]
fn float(value: u64) -> f64 {
    value as f64
}

fn rate(now: u64, past: u64, seconds: f64) -> f64 {
    // A counter that has gone back was reset.
    float(now.checked_sub(past).unwrap_or(now)) / seconds
}

fn deltas(now: &[u64], past: &[u64]) -> Vec<u64> {
    let past = past.iter().copied().chain(std::iter::repeat(0));
    now.iter().zip(past).map(|(now, past)| now.checked_sub(past).unwrap_or(*now)).collect()
}

/// The time within which a share of all requests ended, from how many ended within each range. Within a range,
/// requests count as spread evenly.
fn percentile(borders: &[u64], counts: &[u64], share: f64) -> Option<f64> {
    let all: u64 = counts.iter().sum();
    if all == 0 {
        return None;
    }
    let wanted = float(all) * share;
    let mut before = 0.0;
    for (at, count) in counts.iter().enumerate() {
        let count = float(*count);
        if before + count >= wanted && count > 0.0 {
            let low = at.checked_sub(1).and_then(|at| borders.get(at)).copied().unwrap_or(0);
            // The last range has no end.
            let high = borders.get(at).copied().unwrap_or(low);
            return Some(float(low) + float(high - low) * (wanted - before) / count);
        }
        before += count;
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    pub(crate) fn answer(seconds: u64, reads: u64, latencies: [u64; 4]) -> Value {
        json!({
            "time_ns": seconds * 1_000_000_000, "next_event": 5, "cpu_ns": seconds * 500_000_000,
            "cores": [{ "name": "core0", "busy_ns": seconds * 250_000_000, "turns": 10 * seconds,
                "received_bytes": 0, "sent_bytes": reads * 4096 }],
            "hosts": [{ "subnqn": "nqn.s", "hostnqn": "nqn.h", "controllers": 1, "io_qpairs": 2,
                "statistics": { "num_read_ops": reads, "bytes_read": reads * 4096,
                    "num_write_ops": 0, "bytes_written": 0, "errors": 1 } }],
            "bdevs": { "m0": [reads, 0, 0, reads * 4096, 0, reads * 20_000, 0, 3, latencies] },
            "latency": { "borders_ns": [1000, 10_000, 100_000], "counts": latencies },
        })
    }

    #[test]
    fn rates_are_those_of_the_interval() {
        let before = Sample::read(&answer(10, 1000, [5, 5, 5, 5]));
        let now = Sample::read(&answer(12, 3000, [5, 105, 5, 5]));
        let interval = now.since(&before);
        let device = interval.bdevs["m0"];
        assert_eq!((device.reads, device.read_bytes, device.errors), (1000.0, 4_096_000.0, 3));
        assert_eq!(device.average_ns, Some(20_000.0));
        assert_eq!(device.p50_ns, Some(5_500.0));
        assert_eq!(interval.total.p99_ns, Some(9_910.0));
        assert_eq!((interval.spent, interval.cores[0].useful), (0.5, 0.25));
        assert_eq!(interval.hosts[0].rates.reads, 1000.0);
    }

    #[test]
    fn another_daemon_counts_from_nothing() {
        let before = Sample::read(&answer(1000, 9_000_000, [9; 4]));
        let now = Sample::read(&answer(2, 400, [0, 4, 0, 0]));
        let interval = now.since(&before);
        assert_eq!(interval.seconds, 2.0);
        assert_eq!(interval.bdevs["m0"].reads, 200.0);
        assert!(interval.total.p50_ns.is_some());
    }

    #[test]
    fn an_answer_that_is_none_is_nothing() {
        for value in [json!(null), json!([1]), json!({ "bdevs": { "x": 3 }, "cores": 7 })] {
            let sample = Sample::read(&value);
            assert_eq!(sample.since(&sample).total.iops(), 0.0, "{value}");
        }
        assert_eq!(percentile(&[10], &[0, 4], 0.5), Some(10.0));
        assert_eq!(percentile(&[], &[], 0.5), None);
    }
}
