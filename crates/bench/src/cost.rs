//! The cost of one command: processor time, system calls, copies, and how well PDUs share calls.

mod usage;

use std::fmt::Write as _;
use std::time::Duration;

use raceline_host::QueueTotals;
use raceline_reactor::stats::LoopSnapshot;
use serde::Serialize;

pub use usage::{Meter, Usage};

/// Socket activity of one side, host or target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// System calls of the cores' loops, see [`raceline_reactor::stats::IoCounts`].
    pub system_calls: u64,
    /// Receives that brought bytes.
    pub receives: u64,
    /// Batches given to sends.
    pub sends: u64,
    /// PDUs received.
    pub pdus_received: u64,
    /// PDUs sent.
    pub pdus_sent: u64,
    /// Bytes of data copied in user space.
    pub copied_bytes: u64,
    /// Commands sent again because a data digest was wrong; always 0 for a target.
    pub digest_retries: u64,
}

impl Counts {
    /// The counts of the queues of one core of a host.
    #[must_use]
    pub fn of_host(queues: QueueTotals, core: &LoopSnapshot) -> Self {
        Self {
            system_calls: core.io.system_calls,
            receives: queues.receives,
            sends: queues.sends,
            pdus_received: queues.pdus_received,
            pdus_sent: queues.pdus_sent,
            copied_bytes: queues.copied_bytes,
            digest_retries: queues.retries,
        }
    }

    /// Adds the counts of another core.
    pub fn add(&mut self, other: Self) {
        self.system_calls += other.system_calls;
        self.receives += other.receives;
        self.sends += other.sends;
        self.pdus_received += other.pdus_received;
        self.pdus_sent += other.pdus_sent;
        self.copied_bytes += other.copied_bytes;
        self.digest_retries += other.digest_retries;
    }

    /// The counts since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            system_calls: self.system_calls.saturating_sub(earlier.system_calls),
            receives: self.receives.saturating_sub(earlier.receives),
            sends: self.sends.saturating_sub(earlier.sends),
            pdus_received: self.pdus_received.saturating_sub(earlier.pdus_received),
            pdus_sent: self.pdus_sent.saturating_sub(earlier.pdus_sent),
            copied_bytes: self.copied_bytes.saturating_sub(earlier.copied_bytes),
            digest_retries: self.digest_retries.saturating_sub(earlier.digest_retries),
        }
    }

    /// Text for users, per command: `0.06 system calls, 15.9 PDUs per receive, ...`.
    #[must_use]
    pub fn describe(&self, ios: u64) -> String {
        format!(
            "{:.3} system calls, {:.2} PDUs per receive, {:.2} PDUs per send, {:.0} bytes copied",
            ratio(self.system_calls, ios),
            ratio(self.pdus_received, self.receives),
            ratio(self.pdus_sent, self.sends),
            ratio(self.copied_bytes, ios)
        )
    }
}

/// The total cost of a number of commands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cost {
    /// Number of commands that transfer data.
    pub ios: u64,
    /// The resources that the process used.
    pub usage: Usage,
    /// The activity on its sockets.
    pub counts: Counts,
}

impl Cost {
    /// The cost of one command, for programs; zero if there was none.
    #[must_use]
    pub fn per_io(&self) -> CostPerIo {
        let Self { ios, usage, counts } = self;
        let per_io = |count: u64| ratio(count, *ios);
        let (user_ns, system_ns) = (nanos(usage.user), nanos(usage.system));
        CostPerIo {
            ios: *ios,
            cpu_ns: per_io(user_ns.saturating_add(system_ns)),
            user_ns: per_io(user_ns),
            system_ns: per_io(system_ns),
            softirq_percent: usage.softirq_percent,
            instructions: usage.instructions.as_ref().ok().map(|&count| per_io(count)),
            instructions_missing: usage.instructions.clone().err(),
            system_calls: per_io(counts.system_calls),
            voluntary_switches: per_io(usage.voluntary_switches),
            involuntary_switches: per_io(usage.involuntary_switches),
            copied_bytes: per_io(counts.copied_bytes),
            digest_retries: counts.digest_retries,
            pdus_received: per_io(counts.pdus_received),
            pdus_sent: per_io(counts.pdus_sent),
            pdus_per_receive: ratio(counts.pdus_received, counts.receives),
            pdus_per_send: ratio(counts.pdus_sent, counts.sends),
        }
    }

    /// Text for users with the CPU time of one command: `2100 ns: 700 user, 1400 system; ...`.
    #[must_use]
    pub fn describe_cpu(&self) -> String {
        let CostPerIo { cpu_ns, user_ns, system_ns, softirq_percent, .. } = self.per_io();
        let softirq = softirq_percent.map_or_else(String::new, |percent| {
            format!("; soft interrupts are {percent:.1} % of what its cores did")
        });
        format!("{cpu_ns:.0} ns: {user_ns:.0} user, {system_ns:.0} system{softirq}")
    }

    /// Text for users with the cost of one command, several lines; empty if there was none. `side` names
    /// the side that it belongs to.
    #[must_use]
    pub fn to_table(&self, side: &str) -> String {
        if self.ios == 0 {
            return String::new();
        }
        let cost = self.per_io();
        let mut out = format!("cost per I/O, {side}\n");
        let _ = writeln!(out, "  CPU           {}", self.describe_cpu());
        let _ = match (cost.instructions, &cost.instructions_missing) {
            (Some(count), _) => writeln!(out, "  instructions  {count:.0} in user mode"),
            (None, why) => {
                let why = why.as_deref().unwrap_or("");
                writeln!(out, "  instructions  not available here: {why}")
            }
        };
        let _ = writeln!(
            out,
            "  kernel        {:.3} system calls, {:.4} context switches ({:.4} forced)",
            cost.system_calls,
            cost.voluntary_switches + cost.involuntary_switches,
            cost.involuntary_switches
        );
        let _ = writeln!(
            out,
            "  PDUs          {:.2} per receive, {:.2} per send",
            cost.pdus_per_receive, cost.pdus_per_send
        );
        let _ = writeln!(out, "  copied        {:.0} bytes in user space", cost.copied_bytes);
        if cost.digest_retries > 0 {
            let retries = cost.digest_retries;
            let _ =
                writeln!(out, "  digests       {retries} commands sent again: data were spoiled");
        }
        out
    }
}

/// The cost of one command, as in JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CostPerIo {
    /// Number of commands over which the averages are taken.
    pub ios: u64,
    /// CPU time.
    pub cpu_ns: f64,
    /// CPU time in user mode.
    pub user_ns: f64,
    /// CPU time in the kernel.
    pub system_ns: f64,
    /// Share of soft interrupts in the busy time of the cores used.
    pub softirq_percent: Option<f64>,
    /// Instructions in user mode.
    pub instructions: Option<f64>,
    /// Why instructions are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions_missing: Option<String>,
    /// System calls.
    pub system_calls: f64,
    /// Context switches because a thread slept.
    pub voluntary_switches: f64,
    /// Context switches in favour of another thread.
    pub involuntary_switches: f64,
    /// Bytes copied in user space.
    pub copied_bytes: f64,
    /// Commands sent again because a data digest was wrong: their number, not per command.
    pub digest_retries: u64,
    /// PDUs received.
    pub pdus_received: f64,
    /// PDUs sent.
    pub pdus_sent: f64,
    /// PDUs in one receive; not per command.
    pub pdus_per_receive: f64,
    /// PDUs in one send; not per command.
    pub pdus_per_send: f64,
}

fn ratio(count: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { count as f64 / of as f64 }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost() -> Cost {
        Cost {
            ios: 1000,
            usage: Usage {
                user: Duration::from_micros(400),
                system: Duration::from_micros(850),
                softirq_percent: Some(12.5),
                voluntary_switches: 10,
                involuntary_switches: 2,
                instructions: Ok(2_500_000),
            },
            counts: Counts {
                system_calls: 125,
                receives: 100,
                sends: 50,
                pdus_received: 1000,
                pdus_sent: 1000,
                copied_bytes: 4_096_000,
                digest_retries: 0,
            },
        }
    }

    #[test]
    fn json_is_per_command() {
        let json = serde_json::to_value(cost().per_io()).unwrap();
        let expected = serde_json::json!({
            "ios": 1000,
            "cpu_ns": 1250.0, "user_ns": 400.0, "system_ns": 850.0,
            "softirq_percent": 12.5,
            "instructions": 2500.0,
            "system_calls": 0.125,
            "voluntary_switches": 0.01, "involuntary_switches": 0.002,
            "copied_bytes": 4096.0,
            "digest_retries": 0,
            "pdus_received": 1.0, "pdus_sent": 1.0,
            "pdus_per_receive": 10.0, "pdus_per_send": 20.0,
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn what_cannot_be_counted_says_why() {
        let mut cost = cost();
        cost.usage.instructions = Err("no counters".to_owned());
        let json = serde_json::to_value(cost.per_io()).unwrap();
        assert!(json["instructions"].is_null());
        assert_eq!(json["instructions_missing"], "no counters");
        let table = cost.to_table("this side");
        assert!(table.contains("not available here: no counters\n"), "{table}");
    }

    #[test]
    fn people_read_the_same_figures() {
        let table = cost().to_table("this side");
        let expected = "\
cost per I/O, this side
  CPU           1250 ns: 400 user, 850 system; soft interrupts are 12.5 % of what its cores did
  instructions  2500 in user mode
  kernel        0.125 system calls, 0.0120 context switches (0.0020 forced)
  PDUs          10.00 per receive, 20.00 per send
  copied        4096 bytes in user space
";
        assert_eq!(table, expected);
    }

    #[test]
    fn nothing_done_costs_nothing() {
        let nothing = Cost::default();
        assert_eq!(nothing.to_table("this side"), "");
        assert!(nothing.per_io().cpu_ns == 0.0 && nothing.per_io().pdus_per_send == 0.0);
    }

    #[test]
    fn counts_add_up_and_differ() {
        let one = cost().counts;
        let mut two = one;
        two.add(one);
        assert_eq!(two.receives, 200);
        assert_eq!(two.since(one), one);
        assert_eq!(Counts::default().since(one), Counts::default());
    }
}
