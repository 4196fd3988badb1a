//! The metrics of a run under load, from what host, target and kernel counted.

use std::collections::BTreeMap;
use std::time::Duration;

use raceline_bench::Latencies;

use super::cpu::Costs;
use super::settings::LoadSettings;
use crate::statistics::{SAMPLES_BEYOND_MIN, little_percent};

/// Everything that a run under load can give.
pub(super) const METRICS: [&str; 35] = [
    "iops",
    "gbit_per_s",
    "mean_us",
    "p50_us",
    "p99_us",
    "p999_us",
    "p9999_us",
    "delta_us",
    "missed_percent",
    "little_percent",
    "depth_at_target",
    "cpu_ns_per_io",
    "cpu_ns_per_byte",
    "user_ns_per_io",
    "system_ns_per_io",
    "softirq_ns_per_io",
    "reserved_ns_per_io",
    "useful_percent",
    "iops_per_core",
    "cpu_percent_per_gbit",
    "reserved_percent_per_gbit",
    "cores_for_100g",
    "host_cpu_ns_per_io",
    "host_user_ns_per_io",
    "host_system_ns_per_io",
    "engine_cpu_ns_per_io",
    "fallback_percent",
    "switches_per_io",
    "system_calls_per_io",
    "pdus_per_send",
    "pdus_per_receive",
    "copied_bytes_per_io",
    "neighbour_gbit_per_s",
    "written_gbit_per_s",
    "reserved_cores",
];

/// Payload of 100GbE with an MTU of 1500 bytes and TCP time stamps, in Gbit/s.
const LINK_GBIT_PER_S: f64 = 94.15;
/// The target is the bottleneck from this share of useful time on.
const BOUND_PERCENT: f64 = 95.0;

/// What was counted in a run.
#[derive(Clone, Debug)]
pub(super) struct Counted {
    /// Latencies of the measured commands.
    pub(super) latencies: Latencies,
    /// How long they were measured.
    pub(super) measured: Duration,
    /// Commands that were due and not issued.
    pub(super) missed: u64,
    /// Bytes of the other jobs: a writer's or a neighbour's.
    pub(super) other_bytes: u64,
    /// Wall time over which the costs were counted.
    pub(super) window: Duration,
    /// Commands in the window, of all jobs.
    pub(super) commands: f64,
    /// Busy time of the target's loops in the window, if it says so.
    pub(super) busy: Option<Duration>,
    /// Processor time in the window.
    pub(super) costs: Costs,
    /// Share of digests that software computed for an engine.
    pub(super) fallback_share: f64,
    /// The host's activity on its sockets per command; `None` without sockets.
    pub(super) host: Option<raceline_bench::cost::CostPerIo>,
}

impl Counted {
    /// The metrics by name.
    pub(super) fn values(&self, settings: &LoadSettings, cpus: usize) -> BTreeMap<String, f64> {
        let mut values = BTreeMap::new();
        let mut put = |name: &str, value: f64| {
            if value.is_finite() {
                values.insert(name.to_owned(), value);
            }
        };
        let seconds = self.measured.as_secs_f64();
        let iops = self.latencies.count() as f64 / seconds;
        let gbit = iops * f64::from(settings.io_bytes) * 8.0 / 1e9;
        put("iops", iops);
        put("gbit_per_s", gbit);
        self.put_latencies(&mut put);
        let mean_us = self.latencies.mean_ns() / 1000.0;
        let due = self.latencies.count() + self.missed;
        put("missed_percent", 100.0 * self.missed as f64 / due as f64);
        put("depth_at_target", iops * mean_us / 1e6);
        if !settings.is_open_loop() {
            put("little_percent", little_percent(iops, mean_us, settings.in_flight()));
        }
        let other_gbit = self.other_bytes as f64 * 8.0 / 1e9 / seconds;
        if settings.maps.is_some() {
            put("written_gbit_per_s", other_gbit);
        } else {
            put("neighbour_gbit_per_s", other_gbit);
        }
        if let Some(host) = &self.host {
            put("system_calls_per_io", host.system_calls);
            put("pdus_per_send", host.pdus_per_send);
            put("pdus_per_receive", host.pdus_per_receive);
            put("copied_bytes_per_io", host.copied_bytes);
        }
        self.put_costs(settings, iops, gbit, cpus as f64, &mut put);
        values
    }

    fn put_latencies(&self, put: &mut dyn FnMut(&str, f64)) {
        if self.latencies.count() == 0 {
            return;
        }
        put("mean_us", self.latencies.mean_ns() / 1000.0);
        for (name, percentile) in
            [("p50_us", 50.0), ("p99_us", 99.0), ("p999_us", 99.9), ("p9999_us", 99.99)]
        {
            let beyond = self.latencies.count() as f64 * (100.0 - percentile) / 100.0;
            if beyond >= SAMPLES_BEYOND_MIN - 1e-6 {
                put(name, self.latencies.percentile_ns(percentile) as f64 / 1000.0);
            }
        }
    }

    fn put_costs(
        &self,
        settings: &LoadSettings,
        iops: f64,
        gbit: f64,
        cpus: f64,
        put: &mut dyn FnMut(&str, f64),
    ) {
        let per_io = |time: Duration| time.as_nanos() as f64 / self.commands;
        let (user, system) = self.costs.host.split();
        put("host_cpu_ns_per_io", per_io(self.costs.host.all));
        put("host_user_ns_per_io", per_io(user));
        put("host_system_ns_per_io", per_io(system));
        let switches = self.costs.host.switches + self.costs.target.switches;
        put("switches_per_io", switches as f64 / self.commands);
        put("fallback_percent", 100.0 * self.fallback_share);
        put("engine_cpu_ns_per_io", per_io(self.costs.other.all));
        let Some(useful) = self.useful() else { return };
        let reserved = self.costs.target.all;
        let (user, system) = self.costs.target.split();
        let (useful_ns, reserved_ns) = (per_io(useful), per_io(reserved));
        put("cpu_ns_per_io", useful_ns);
        put("cpu_ns_per_byte", useful_ns / f64::from(settings.io_bytes));
        put("reserved_ns_per_io", reserved_ns);
        put("user_ns_per_io", per_io(user));
        put("system_ns_per_io", per_io(system));
        put("softirq_ns_per_io", per_io(self.costs.softirq));
        put("useful_percent", self.useful_percent(settings).unwrap_or(f64::NAN));
        put("reserved_cores", reserved.as_secs_f64() / self.window.as_secs_f64());
        put("iops_per_core", 1e9 / useful_ns);
        // One core of all is 100 / cpus percent.
        put("cpu_percent_per_gbit", 100.0 * iops * useful_ns / 1e9 / cpus / gbit);
        put("reserved_percent_per_gbit", 100.0 * iops * reserved_ns / 1e9 / cpus / gbit);
        let link_iops = LINK_GBIT_PER_S * 1e9 / 8.0 / f64::from(settings.io_bytes);
        put("cores_for_100g", (link_iops * useful_ns / 1e9).ceil());
    }

    /// The target's time that served commands: of cores that poll, the turns that found work; of cores that
    /// sleep, all of it, because waking up is work, too.
    fn useful(&self) -> Option<Duration> {
        let all = self.costs.target.all;
        match self.busy {
            Some(busy) => Some(busy),
            None => (!all.is_zero()).then_some(all),
        }
    }

    /// Useful time in percent of the target's cores.
    pub(super) fn useful_percent(&self, settings: &LoadSettings) -> Option<f64> {
        let all = self.window.as_secs_f64() * settings.target_cores as f64;
        Some(100.0 * self.useful()?.as_secs_f64() / all)
    }

    /// Whether the target was the bottleneck.
    pub(super) fn target_bound(&self, settings: &LoadSettings) -> Option<bool> {
        Some(self.useful_percent(settings)? >= BOUND_PERCENT)
    }
}

/// Latencies as a record holds them.
pub(super) fn buckets(latencies: &Latencies) -> Vec<(u64, u64)> {
    latencies.buckets()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::cpu::Used;

    fn counted() -> Counted {
        let mut latencies = Latencies::new();
        latencies.record_ns(100_000, 200_000);
        let ms = Duration::from_millis;
        let used = |all, user, system| Used { all, user, system, switches: 100_000 };
        let costs = Costs {
            target: used(ms(1000), ms(250), ms(750)),
            host: used(ms(500), ms(500), ms(0)),
            ..Costs::default()
        };
        Counted {
            latencies,
            measured: ms(1000),
            missed: 0,
            other_bytes: 125_000_000,
            window: ms(1000),
            commands: 200_000.0,
            busy: Some(ms(800)),
            costs,
            fallback_share: 0.0,
            host: None,
        }
    }

    fn near(value: f64, expected: f64) {
        assert!((value / expected - 1.0).abs() < 1e-3, "{value} is not {expected}");
    }

    #[test]
    fn known_counts_give_known_metrics() {
        let settings = LoadSettings { depth: 20, ..LoadSettings::default() };
        let values = counted().values(&settings, 2);
        for (name, expected) in [
            ("iops", 200_000.0),
            ("gbit_per_s", 6.5536),
            ("mean_us", 100.0),
            ("p9999_us", 100.0),
            ("little_percent", 100.0),
            ("cpu_ns_per_io", 4000.0),
            ("reserved_ns_per_io", 5000.0),
            ("user_ns_per_io", 1250.0),
            ("useful_percent", 80.0),
            ("iops_per_core", 250_000.0),
            // 0.8 of 2 cores are 40 %.
            ("cpu_percent_per_gbit", 40.0 / 6.5536),
            ("switches_per_io", 1.0),
            ("neighbour_gbit_per_s", 1.0),
            // 2.87 million IOPS at 4 us each.
            ("cores_for_100g", 12.0),
        ] {
            near(values[name], expected);
        }
        assert!(values.keys().all(|name| METRICS.contains(&name.as_str())), "{values:?}");
        assert_eq!(counted().target_bound(&settings), Some(false));
    }

    #[test]
    fn a_tail_of_few_commands_is_not_a_value() {
        let mut few = counted();
        few.latencies = Latencies::new();
        few.latencies.record_ns(1000, 9_999);
        let values = few.values(&LoadSettings::default(), 2);
        assert!(values.contains_key("p99_us") && !values.contains_key("p999_us"));
        assert_eq!(buckets(&few.latencies).iter().map(|(_, count)| count).sum::<u64>(), 9_999);
    }

    #[test]
    fn an_open_loop_has_no_depth() {
        let settings = LoadSettings { rate_iops: 1000, ..LoadSettings::default() };
        let values = counted().values(&settings, 2);
        assert!(!values.contains_key("little_percent"));
    }
}
