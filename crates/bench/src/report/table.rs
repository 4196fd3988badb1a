//! The report for users.

use std::fmt::Write as _;
use std::time::Duration;

use super::{
    JobReport, Report, Side, StageReport, Verified, binary_bytes, grouped, latency_text, per_second,
};

/// The percentiles that are shown by default.
const SHOWN: [f64; 4] = [50.0, 99.0, 99.9, 99.99];
/// The least width of the first column.
const NAME_WIDTH_MIN: usize = 7;

impl Report {
    /// The report for users, several lines.
    #[must_use]
    pub fn to_table(&self) -> String {
        let mut out = String::new();
        for pass in &self.precondition {
            let _ = writeln!(
                out,
                "precondition  {} {}: {} written in {:.1} s",
                pass.rw,
                binary_bytes(u64::from(pass.io_bytes)),
                binary_bytes(pass.bytes),
                pass.millis as f64 / 1000.0
            );
        }
        for stage in &self.stages {
            if !out.is_empty() {
                out.push('\n');
            }
            stage.append_table(&mut out);
        }
        out
    }
}

impl StageReport {
    fn append_table(&self, out: &mut String) {
        let mut titles: Vec<&str> = self.jobs.iter().map(|job| job.title.as_str()).collect();
        titles.dedup();
        for title in titles {
            let _ = writeln!(out, "{title}");
        }
        let rows = self.rows();
        let names = rows.iter().map(|row| row.name.chars().count() + 1);
        let width = names.max().unwrap_or(0).max(NAME_WIDTH_MIN);
        let asked = self.jobs.iter().find_map(|job| job.percentiles.clone());
        let percentiles = asked.unwrap_or_else(|| SHOWN.to_vec());
        let _ = write!(out, "\n{:<width$}{:>12}{:>14}{:>10}", "", "IOPS", "bandwidth", "mean");
        for percentile in &percentiles {
            let _ = write!(out, "{:>10}", format!("p{percentile}"));
        }
        let _ = writeln!(out, "{:>10}", "max");
        for row in &rows {
            row.append(out, width, &percentiles);
        }
        if rows.is_empty() {
            out.push_str("nothing completed in the measured time\n");
        }
        let (user, system) = self.cpu.percent_of(self.window);
        let _ = writeln!(
            out,
            "\nCPU    {user:.1} % user, {system:.1} % system of one core (this process, {:.1} s)",
            self.window.as_secs_f64()
        );
        self.append_notes(out);
        if self.cost.ios > 0 {
            out.push('\n');
            out.push_str(&self.cost.to_table("this side"));
        }
        if !self.acceleration.is_empty() {
            out.push('\n');
            out.push_str(&self.acceleration.to_table());
        }
    }

    /// A row for each side of each job that has commands; below several jobs, their sum.
    fn rows(&self) -> Vec<Row> {
        let alone = self.jobs.len() == 1;
        let mut rows = Vec::new();
        let sides: [(&str, SideOf); 2] = [("read", |job| &job.read), ("write", |job| &job.write)];
        for job in &self.jobs {
            for (kind, side) in sides {
                let name = if alone { kind.to_owned() } else { format!("{} {kind}", job.name) };
                rows.extend(Row::new(name, side(job), job));
            }
        }
        if !alone {
            for (kind, side) in sides {
                let used =
                    self.jobs.iter().filter_map(|job| Row::new(String::new(), side(job), job));
                let sum = used.reduce(Row::plus);
                rows.extend(sum.map(|row| Row { name: format!("all {kind}"), ..row }));
            }
        }
        rows
    }

    fn append_notes(&self, out: &mut String) {
        let count = |job: &JobReport| job.read.latencies.count() + job.write.latencies.count();
        let commands: u64 = self.jobs.iter().map(count).sum();
        if commands > 0 && self.loops.busy_turns > 0 {
            let _ = writeln!(
                out,
                "loop   {:.2} commands per turn, {:.2} sleeps per command",
                commands as f64 / self.loops.busy_turns as f64,
                self.loops.waits as f64 / commands as f64
            );
        }
        let missed: u64 = self.jobs.iter().map(|job| job.missed).sum();
        if missed > 0 {
            let _ = writeln!(
                out,
                "late   {} commands were due and not issued in time: the rate is more than the target serves",
                grouped(missed)
            );
        }
        let recorded =
            |job: &JobReport| job.read.latencies.max_ns().max(job.write.latencies.max_ns());
        let recorded = Duration::from_nanos(self.jobs.iter().map(recorded).max().unwrap_or(0));
        let beyond = self.jobs.iter().map(|job| job.beyond_end).max();
        if let Some(beyond) = beyond.filter(|&beyond| beyond > recorded) {
            let _ = writeln!(
                out,
                "stuck  a command that was under way at the end took {}, which no figure above shows",
                latency_text(beyond.as_nanos() as f64)
            );
        }
        if self.reconnects > 0 {
            let _ = writeln!(
                out,
                "lost   {} reconnects: commands that waited for one have that time in their latencies",
                grouped(self.reconnects)
            );
        }
        let verified = self.jobs.iter().filter_map(|job| job.verified);
        let sum =
            |a: Verified, b: Verified| Verified { ios: a.ios + b.ios, bytes: a.bytes + b.bytes };
        if let Some(Verified { ios, bytes }) = verified.reduce(sum) {
            let _ = writeln!(
                out,
                "verify {} in {} reads compared, all as written",
                binary_bytes(bytes),
                grouped(ios)
            );
        }
    }
}

type SideOf = fn(&JobReport) -> &Side;

/// A line of the table.
struct Row {
    name: String,
    side: Side,
    /// Per second.
    ios: u64,
    bytes: u64,
}

impl Row {
    /// `None` for a side without commands.
    fn new(name: String, side: &Side, job: &JobReport) -> Option<Self> {
        let count = side.latencies.count();
        (count > 0).then(|| Self {
            name,
            side: side.clone(),
            ios: per_second(count, job.measured),
            bytes: per_second(side.bytes, job.measured),
        })
    }

    fn plus(mut self, other: Self) -> Self {
        self.side.merge(&other.side);
        self.ios += other.ios;
        self.bytes += other.bytes;
        self
    }

    fn append(&self, out: &mut String, width: usize, percentiles: &[f64]) {
        let latencies = &self.side.latencies;
        let _ = write!(
            out,
            "{:<width$}{:>12}{:>14}{:>10}",
            self.name,
            grouped(self.ios),
            format!("{}/s", binary_bytes(self.bytes)),
            latency_text(latencies.mean_ns()),
        );
        for &percentile in percentiles {
            let _ = write!(out, "{:>10}", latency_text(latencies.percentile_ns(percentile) as f64));
        }
        let _ = writeln!(out, "{:>10}", latency_text(latencies.max_ns() as f64));
    }
}
