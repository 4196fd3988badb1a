//! The cores of targets and of disks: their time, their turns, and what the queues of targets have done.

use std::time::Duration;

use raceline_control::manager::Manager;
use raceline_control::manager::disks::DiskCounts;
use raceline_reactor::LoopSnapshot;
use raceline_reactor::stats::LOOP_TIME_BUCKETS;
use raceline_target::{PollGroupStats, QueueTotals};

use super::text::{Kind, Labels, Text, Value};
use super::{LeftOut, MAX_HISTOGRAMS, Running, transport};

/// The label `core` of a thread that is not pinned to a CPU.
const FLOATS: &str = "any";

/// The first and the last power of two of nanoseconds that ends a bucket: 1 us and 1.07 s.
const BORDERS: std::ops::RangeInclusive<usize> = 10..=30;

/// One core.
pub(super) struct Core {
    labels: Labels,
    loops: LoopSnapshot,
    /// The time that its busy and idle times are parts of.
    age: Duration,
    /// What it serves, if it is a target's.
    queues: Option<Queues>,
}

/// What a core of a target serves.
struct Queues {
    group: Option<PollGroupStats>,
    connections: usize,
}

/// A count of queues: its name, what it is, and where it is.
pub(super) type QueueCount = (&'static str, &'static str, fn(&QueueTotals) -> Value);

/// The cores of disks. Each has one thread for all of its disk, or one for each queue of the disk.
pub(super) fn of_disks(disks: &[DiskCounts], left_out: &mut LeftOut) -> Vec<Core> {
    let all = disks.iter().flat_map(|disk| disk.cores.iter().map(move |core| (disk, core)));
    left_out.note("disk_cores", all.clone().count(), MAX_HISTOGRAMS);
    let listed = all.take(MAX_HISTOGRAMS);
    listed
        .map(|(disk, core)| {
            let cpu = core.core.map_or_else(|| FLOATS.to_owned(), |cpu| cpu.to_string());
            let labels = [
                ("disk", disk.name.as_str()),
                ("core", &cpu),
                ("name", &core.name),
                ("serves", disk.kind),
            ];
            let (labels, loops, age) = (Labels::new(&labels), core.loops, core.age);
            Core { labels, loops, age, queues: None }
        })
        .collect()
}

fn read(running: &Running, age: Duration) -> Vec<Core> {
    let stats = running.target.stats();
    let groups = running.target.poll_groups();
    let cores = stats.loops.into_iter().enumerate();
    cores
        .map(|(index, loops)| {
            let core = running.cpus.get(index).copied().unwrap_or(index).to_string();
            let name = format!("{}_poll_group_{index:03}", running.name);
            Core {
                labels: running.labels.and(&[
                    ("core", &core),
                    ("name", &name),
                    ("serves", "target"),
                ]),
                loops,
                age,
                queues: Some(Queues {
                    group: groups.get(index).copied(),
                    connections: stats.connections.get(index).copied().unwrap_or(0),
                }),
            }
        })
        .collect()
}

pub(super) fn write(text: &mut Text, manager: &Manager, running: &[Running], of_disks: Vec<Core>) {
    let age = manager.began().elapsed();
    let of_targets = running.iter().flat_map(|running| read(running, age));
    let cores: Vec<Core> = of_targets.chain(of_disks).collect();
    write_cores(text, &cores);
    let moves =
        running.iter().map(|running| (running.labels.clone(), running.target.stats().moves.into()));
    text.counter("queue_moves", "I/O queues that have moved to another core.", moves);
}

fn write_cores(text: &mut Text, cores: &[Core]) {
    let mut metric = text.metric(
        "reactor_seconds",
        Kind::Counter,
        "Time of a core: busy with work, or idle, which is asleep or looking for work.",
    );
    for core in cores {
        let busy = nanoseconds(core.loops.busy);
        let mode = |mode| core.labels.and(&[("mode", mode)]);
        metric.sample(&mode("busy"), Value::Nanoseconds(busy));
        let idle = nanoseconds(core.age).saturating_sub(busy);
        metric.sample(&mode("idle"), Value::Nanoseconds(idle));
    }
    turns(text, cores);
    io(text, cores);
    let of_targets = || {
        let cores = cores.iter();
        cores.filter_map(|core| Some((core.labels.clone(), core.queues.as_ref()?)))
    };
    let connections = of_targets().map(|(labels, queues)| (labels, queues.connections.into()));
    text.gauge("core_connections", "Connections of a core.", connections);
    let groups: Vec<(Labels, PollGroupStats)> =
        of_targets().filter_map(|(labels, queues)| Some((labels, queues.group?))).collect();
    queues(text, &groups);
}

fn turns(text: &mut Text, cores: &[Core]) {
    let each = |read: fn(&LoopSnapshot) -> Value| {
        cores.iter().map(move |core| (core.labels.clone(), read(&core.loops))).collect::<Vec<_>>()
    };
    text.counter("core_turns", "Turns of a core's loop.", each(|l| l.turns.into()));
    text.counter("core_busy_turns", "Turns that had work.", each(|l| l.busy_turns.into()));
    text.counter("core_waits", "Turns that could sleep in the kernel.", each(|l| l.waits.into()));
    let longest = each(|l| Value::Nanoseconds(nanoseconds(l.longest)));
    text.gauge(
        "core_longest_turn_seconds",
        "The longest turn: the core served nothing else.",
        longest,
    );
    let borders: Vec<f64> = BORDERS.map(|power| (1_u64 << power) as f64 / 1e9).collect();
    let help = "Turns that had work, by their time; the sum has the polls that found the work.";
    let mut metric = text.metric("core_turn_seconds", Kind::Histogram, help);
    for core in cores {
        let buckets = &core.loops.buckets;
        let mut counts = vec![buckets[..*BORDERS.start()].iter().sum()];
        counts.extend(&buckets[*BORDERS.start()..*BORDERS.end()]);
        counts.push(buckets[*BORDERS.end()..LOOP_TIME_BUCKETS].iter().sum());
        let sum_ns = nanoseconds(core.loops.busy);
        metric.histogram(&core.labels, (&borders, &counts), sum_ns, None);
    }
}

fn io(text: &mut Text, cores: &[Core]) {
    type Count = (&'static str, &'static str, fn(&LoopSnapshot) -> u64);
    const COUNTS: [Count; 8] = [
        ("core_system_calls", "System calls of a core.", |l| l.io.system_calls),
        ("core_receives", "Receives of a core.", |l| l.io.receives),
        ("core_sends", "Sends of a core.", |l| l.io.sends),
        ("core_received_bytes", "Bytes that a core has received.", |l| l.io.received_bytes),
        ("core_sent_bytes", "Bytes that a core has sent.", |l| l.io.sent_bytes),
        ("core_zero_copy_sends", "Sends without a copy.", |l| l.departures.zero_copy_sends),
        ("core_zero_copy_sent_bytes", "Bytes sent without a copy.", |l| {
            l.departures.zero_copy_bytes
        }),
        (
            "core_zero_copy_fallbacks",
            "Sends without a copy that the kernel has copied or refused.",
            |l| l.departures.zero_copy_copied + l.departures.zero_copy_refused,
        ),
    ];
    for (name, help, read) in COUNTS {
        let samples = cores.iter().map(|core| (core.labels.clone(), read(&core.loops).into()));
        text.counter(name, help, samples);
    }
}

fn queues(text: &mut Text, groups: &[(Labels, PollGroupStats)]) {
    const COUNTS: [QueueCount; 17] = [
        ("core_commands", "Commands that hosts have sent to a core.", |t| t.commands.into()),
        ("core_reads_completed", "Reads completed by a core.", |t| t.reads.into()),
        ("core_writes_completed", "Writes completed by a core.", |t| t.writes.into()),
        ("core_read_bytes", "Bytes that hosts have read from a core.", |t| t.read_bytes.into()),
        ("core_written_bytes", "Bytes that hosts have written by a core.", |t| {
            t.written_bytes.into()
        }),
        ("core_command_errors", "Commands that a core has ended with an error.", |t| {
            t.errors.into()
        }),
        ("core_media_errors", "Commands that a core has ended with a media error.", |t| {
            t.media_errors.into()
        }),
        ("core_digest_errors", "Data digests that did not match.", |t| t.digest_errors.into()),
        ("core_buffer_waits", "Commands that had to wait for an I/O buffer.", |t| {
            t.buffer_waits.into()
        }),
        ("core_small_buffer_waits", "Those for which a small buffer would do.", |t| {
            t.small_buffer_waits.into()
        }),
        ("core_small_buffers_taken", "Small I/O buffers taken.", |t| t.small_buffers.into()),
        ("core_large_buffers_taken", "Large I/O buffers taken.", |t| t.large_buffers.into()),
        ("core_throttled", "Commands that had to wait because of a limit.", |t| t.throttled.into()),
        ("core_throttled_seconds", "The sum of the times for which they were to wait.", |t| {
            Value::Nanoseconds(t.throttled_us.saturating_mul(1000))
        }),
        ("core_pdus_received", "PDUs received.", |t| t.pdus_received.into()),
        ("core_pdus_sent", "PDUs sent.", |t| t.pdus_sent.into()),
        ("core_copied_bytes", "Bytes of data copied in user space.", |t| t.copied_bytes.into()),
    ];
    for (name, help, read) in COUNTS {
        let samples = groups.iter().map(|(labels, group)| (labels.clone(), read(&group.totals)));
        text.counter(name, help, samples);
    }
    let kinds = groups.iter().flat_map(|(labels, group)| {
        let (admin, io) = (group.admin_queues_ever, group.io_queues_ever);
        [("admin", admin), ("io", io)].map(|(kind, count)| (labels.and(&[("kind", kind)]), count))
    });
    connected(text, groups);
    text.counter(
        "core_queues_connected",
        "Queues that have ever connected: more than once for a host that reconnects.",
        kinds.map(|(labels, count)| (labels, count.into())),
    );
    let samples = groups.iter().map(|(labels, group)| (labels.clone(), group.unassociated.into()));
    text.gauge("core_unassociated_connections", "Sockets without a queue.", samples);
}

/// The queues of now, by kind and by transport.
fn connected(text: &mut Text, groups: &[(Labels, PollGroupStats)]) {
    let mut metric = text.metric("core_queues", Kind::Gauge, "Queues that are connected.");
    for (labels, group) in groups {
        let (all, rdma) = ([group.admin_queues, group.io_queues], group.rdma);
        let of_rdma = [rdma.admin_queues, rdma.io_queues];
        for (index, kind) in ["admin", "io"].into_iter().enumerate() {
            let counts = [all[index].saturating_sub(of_rdma[index]), of_rdma[index]];
            for (is_rdma, count) in [false, true].into_iter().zip(counts) {
                let labels = labels.and(&[("kind", kind), ("transport", transport(is_rdma))]);
                metric.sample(&labels, count);
            }
        }
    }
}

pub(super) fn nanoseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use raceline_reactor::CoreLoop;
    use raceline_target::RdmaQueues;

    use super::super::text::{Form, Names};
    use super::*;

    fn disk(kind: &'static str, name: &str, cores: Vec<CoreLoop>) -> DiskCounts {
        let (name, bdev_name) = (name.to_owned(), "M0".to_owned());
        DiskCounts { kind, name, bdev_name, totals: None, cores }
    }

    fn core(name: &str, core: Option<usize>) -> CoreLoop {
        let loops = LoopSnapshot { turns: 7, busy: Duration::from_secs(2), ..Default::default() };
        CoreLoop { name: name.to_owned(), core, age: Duration::from_secs(5), loops }
    }

    #[test]
    fn cores_of_disks_are_beside_those_of_targets_and_have_no_queues_of_hosts() {
        let cores = vec![core("ublk-0", Some(3)), core("ublk-1", None)];
        let disks = [disk("ublk", "/dev/ublkb4", cores), disk("nbd", "/dev/nbd0", Vec::new())];
        let mut left_out = LeftOut::default();
        let cores = of_disks(&disks, &mut left_out);
        assert_eq!(left_out.0, [("disk_cores", 0)]);
        let mut text = Text::new(Form::Classic, Names::Own);
        write_cores(&mut text, &cores);
        let text = String::from_utf8(text.finish()).unwrap();
        let labels = |cpu: &str, name: &str| {
            format!("disk=\"/dev/ublkb4\",core=\"{cpu}\",name=\"{name}\",serves=\"ublk\"")
        };
        for (name, labels, value) in [
            ("core_turns_total", labels("3", "ublk-0"), "7"),
            ("core_turns_total", labels("any", "ublk-1"), "7"),
            ("reactor_seconds_total", labels("3", "ublk-0") + ",mode=\"busy\"", "2.000000000"),
            ("reactor_seconds_total", labels("3", "ublk-0") + ",mode=\"idle\"", "3.000000000"),
            ("core_system_calls_total", labels("3", "ublk-0"), "0"),
            ("core_turn_seconds_sum", labels("3", "ublk-0"), "2.000000000"),
        ] {
            let expected = format!("raceline_{name}{{{labels}}} {value}\n");
            assert!(text.contains(&expected), "{expected}\n{text}");
        }
        // They have no connections and no commands of hosts: no samples of 0 pretend that they could.
        for name in ["core_connections", "core_commands_total", "core_queues"] {
            assert!(!text.contains(&format!("raceline_{name}{{")), "{text}");
        }
    }

    #[test]
    fn cores_of_many_disks_are_bounded() {
        let cores = || (0..8).map(|place| core(&format!("ublk-{place}"), None)).collect();
        let disks: Vec<DiskCounts> =
            (0..200).map(|number| disk("ublk", &format!("/dev/ublkb{number}"), cores())).collect();
        let mut left_out = LeftOut::default();
        assert_eq!(of_disks(&disks, &mut left_out).len(), MAX_HISTOGRAMS);
        assert_eq!(left_out.0, [("disk_cores", 1600 - MAX_HISTOGRAMS)]);
    }

    #[test]
    fn queues_are_told_apart_by_their_transport() {
        let rdma = RdmaQueues { admin_queues: 2, io_queues: 5, buffer_waits: 0 };
        let group = PollGroupStats {
            admin_queues_ever: 9,
            io_queues_ever: 40,
            admin_queues: 3,
            io_queues: 12,
            unassociated: 0,
            totals: QueueTotals::default(),
            rdma,
        };
        let mut text = Text::new(Form::Classic, Names::Own);
        queues(&mut text, &[(Labels::new(&[("core", "4")]), group)]);
        let text = String::from_utf8(text.finish()).unwrap();
        for expected in [
            "raceline_core_queues{core=\"4\",kind=\"admin\",transport=\"tcp\"} 1\n",
            "raceline_core_queues{core=\"4\",kind=\"admin\",transport=\"rdma\"} 2\n",
            "raceline_core_queues{core=\"4\",kind=\"io\",transport=\"tcp\"} 7\n",
            "raceline_core_queues{core=\"4\",kind=\"io\",transport=\"rdma\"} 5\n",
            "raceline_core_queues_connected_total{core=\"4\",kind=\"io\"} 40\n",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
    }
}
