//! The RDMA devices of listeners: what they have done, core by core, and the queues that they refused.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use raceline_target::RdmaDeviceStats;

use super::text::{Kind, Labels, Text};
use super::{LeftOut, Running};

/// A device that a core has for a listener.
struct Device {
    labels: Labels,
    /// In the order of [`COUNTS`].
    counts: [u64; COUNTS.len()],
}

/// A count of a device: its name, what it is, and where it is.
type DeviceCount = (&'static str, &'static str, fn(&RdmaDeviceStats) -> u64);

const COUNTS: [DeviceCount; 11] = [
    ("rdma_refused_queues", "Requests for queues that an RDMA listener refused.", |it| {
        it.counts.refused
    }),
    ("rdma_lost_receives", "Shared receives that an RDMA device may have lost.", |it| {
        it.counts.lost_receives
    }),
    ("rdma_polls", "Looks for completions of an RDMA device.", |it| it.counts.polls),
    ("rdma_idle_polls", "Those that found none.", |it| it.counts.idle_polls),
    ("rdma_completions", "Completions of an RDMA device.", |it| it.counts.completions),
    ("rdma_requests", "Commands that have come by an RDMA device.", |it| it.counts.requests),
    ("rdma_sends", "Requests that were posted to send queues.", |it| it.counts.sends),
    ("rdma_send_posts", "Calls that posted to send queues.", |it| it.counts.send_posts),
    ("rdma_receives", "Receives that were posted after those with which queues begin.", |it| {
        it.counts.receives
    }),
    ("rdma_receive_posts", "Calls that posted receives.", |it| it.counts.receive_posts),
    ("rdma_responses_in_place", "Responses whose data the device has read without a copy.", |it| {
        it.in_place
    }),
];

/// The devices of all targets. A device that was taken away, and the next one of the same core and listener, are one series.
fn devices(of: &Labels, cpus: &[usize], all: &[RdmaDeviceStats]) -> Vec<Device> {
    let mut sums: BTreeMap<(SocketAddr, usize, &str), [u64; COUNTS.len()]> = BTreeMap::new();
    for device in all {
        let sum = sums.entry((device.address, device.core, &device.name)).or_default();
        let counts = sum.iter_mut().zip(COUNTS);
        counts.for_each(|(sum, (_, _, read))| *sum = sum.saturating_add(read(device)));
    }
    let named = |((address, core, name), counts): ((SocketAddr, usize, &str), _)| {
        let cpu = cpus.get(core).copied().unwrap_or(core).to_string();
        let listener = address.to_string();
        let labels = of.and(&[("address", &listener), ("core", &cpu), ("device", name)]);
        Device { labels, counts }
    };
    sums.into_iter().map(named).collect()
}

pub(super) fn write(text: &mut Text, running: &[Running], left_out: &mut LeftOut) {
    let all = running.iter().flat_map(|running| {
        let stats =
            running.rdma.iter().flat_map(|streams| streams.devices_ever()).collect::<Vec<_>>();
        devices(&running.labels, &running.cpus, &stats)
    });
    let all = left_out.bound("rdma_device", all.collect());
    write_counts(text, &all);
}

fn write_counts(text: &mut Text, devices: &[Device]) {
    for (index, (name, help, _)) in COUNTS.into_iter().enumerate() {
        let mut metric = text.metric(name, Kind::Counter, help);
        devices.iter().for_each(|device| metric.sample(&device.labels, device.counts[index]));
    }
}

#[cfg(test)]
mod tests {
    use super::super::text::{Form, Names};
    use super::*;

    #[test]
    fn devices_of_one_core_and_listener_are_one_series() {
        let device = |core, refused, completions| {
            let (address, name) = ("192.0.2.1:4420".parse().unwrap(), "rxe0".to_owned());
            let mut it =
                RdmaDeviceStats { address, core, name, counts: Default::default(), in_place: 1 };
            it.counts.refused = refused;
            it.counts.completions = completions;
            it.counts.lost_receives = 2;
            it
        };
        let all = [device(0, 3, 100), device(1, 5, 7), device(0, 4, 11)];
        let devices = devices(&Labels::new(&[("target", "t")]), &[8, 9], &all);
        let mut text = Text::new(Form::Classic, Names::Own);
        write_counts(&mut text, &devices);
        let text = String::from_utf8(text.finish()).unwrap();
        let labels =
            |cpu| format!("target=\"t\",address=\"192.0.2.1:4420\",core=\"{cpu}\",device=\"rxe0\"");
        for (name, cpu, value) in [
            ("refused_queues", 8, 7),
            ("refused_queues", 9, 5),
            ("completions", 8, 111),
            ("lost_receives", 8, 4),
            ("responses_in_place", 9, 1),
        ] {
            let expected = format!("raceline_rdma_{name}_total{{{}}} {value}\n", labels(cpu));
            assert!(text.contains(&expected), "{expected}\n{text}");
        }
        let series = text.lines().filter(|line| line.starts_with("raceline_rdma_polls_total{"));
        assert_eq!(series.count(), 2, "{text}");
    }
}
