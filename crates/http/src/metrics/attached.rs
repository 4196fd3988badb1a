//! The controllers that this daemon itself is a host of.

use raceline_control::manager::Model;
use raceline_host::RemoteCounts;

use super::LeftOut;
use super::text::{Kind, Labels, Text, Value};

/// The states of an attached controller.
const STATES: [&str; 3] = ["enabled", "resetting", "failed"];

/// A controller that is attached.
pub(super) struct Row {
    labels: Labels,
    state: &'static str,
    /// `None` for a local drive.
    remote: Option<(RemoteCounts, usize, usize)>,
}

/// A count of a remote controller: its name, what it is, and where it is.
type Count = (&'static str, &'static str, fn(&RemoteCounts) -> u64);

const COUNTS: [Count; 9] = [
    ("attached_controller_losses", "Connections of a path that were up and were lost.", |c| {
        c.link.losses
    }),
    ("attached_controller_reconnects", "Paths that came up again after a loss.", |c| {
        c.link.reconnects
    }),
    ("attached_controller_failed_connects", "Attempts to connect a path that failed.", |c| {
        c.link.failed_connects
    }),
    ("attached_controller_failovers", "Losses of a path while another one was up.", |c| {
        c.link.failovers
    }),
    ("attached_controller_ana_changes", "Times that a controller told its ANA states anew.", |c| {
        c.link.ana_changes
    }),
    (
        "attached_controller_commands_resubmitted",
        "Commands sent again on another connection or path.",
        |c| c.queues.resubmitted,
    ),
    (
        "attached_controller_commands_retried",
        "Commands sent again because a data digest did not match.",
        |c| c.queues.retries,
    ),
    ("attached_controller_digest_errors", "Data digests that did not match here.", |c| {
        c.queues.digest_errors
    }),
    ("attached_controller_copied_bytes", "Bytes of data copied in user space.", |c| {
        c.queues.copied_bytes
    }),
];

pub(super) fn read(model: &Model, left_out: &mut LeftOut) -> Vec<Row> {
    let all = model.controllers.values();
    let read = all.map(|controller| Row {
        labels: Labels::new(&[("controller", &controller.name)]),
        state: controller.link.state(),
        remote: controller.link.counts(),
    });
    left_out.bound("attached_controllers", read.collect())
}

pub(super) fn write(text: &mut Text, rows: &[Row]) {
    let mut metric = text.metric(
        "attached_controller_state",
        Kind::Gauge,
        "The state of a controller that this daemon uses: 1 for the one that it is in.",
    );
    for row in rows {
        for known in STATES {
            metric.sample(&row.labels.and(&[("state", known)]), known == row.state);
        }
    }
    let remote: Vec<_> = rows.iter().filter_map(|row| Some((&row.labels, row.remote?))).collect();
    let help = "Paths to a controller, by whether they are up.";
    let mut metric = text.metric("attached_controller_paths", Kind::Gauge, help);
    for (labels, (_, all, up)) in &remote {
        metric.sample(&labels.and(&[("state", "up")]), *up);
        metric.sample(&labels.and(&[("state", "down")]), all.saturating_sub(*up));
    }
    for (name, help, read) in COUNTS {
        let mut metric = text.metric(name, Kind::Counter, help);
        remote.iter().for_each(|(labels, (counts, ..))| {
            metric.sample(labels, Value::Count(read(counts)));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::text::{Form, Names};
    use super::*;

    #[test]
    fn a_local_drive_has_a_state_and_no_paths() {
        let labels = |name| Labels::new(&[("controller", name)]);
        let mut counts = RemoteCounts::default();
        (counts.link.failovers, counts.queues.resubmitted) = (2, 7);
        let rows = [
            Row { labels: labels("d"), state: "enabled", remote: None },
            Row { labels: labels("r"), state: "resetting", remote: Some((counts, 3, 1)) },
        ];
        let mut text = Text::new(Form::Classic, Names::Own);
        write(&mut text, &rows);
        let text = String::from_utf8(text.finish()).unwrap();
        for expected in [
            "raceline_attached_controller_state{controller=\"d\",state=\"enabled\"} 1\n",
            "raceline_attached_controller_state{controller=\"r\",state=\"enabled\"} 0\n",
            "raceline_attached_controller_paths{controller=\"r\",state=\"up\"} 1\n",
            "raceline_attached_controller_paths{controller=\"r\",state=\"down\"} 2\n",
            "raceline_attached_controller_failovers_total{controller=\"r\"} 2\n",
            "raceline_attached_controller_commands_resubmitted_total{controller=\"r\"} 7\n",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        assert!(!text.contains("paths{controller=\"d\""), "{text}");
    }
}
