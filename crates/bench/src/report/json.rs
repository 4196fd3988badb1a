//! The report for programs.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::{JobReport, LoopCounters, Precondition, Report, Side, StageReport, per_second};
use crate::acceleration::Acceleration;
use crate::cost::CostPerIo;
use crate::histogram::PERCENTILES;

impl Report {
    /// The report as JSON, ended by a line feed. Latencies count from the submission of a command, or from
    /// its due time if there is a rate; `lat_ns` and `clat_ns` are therefore the same. CPU time and costs
    /// belong to the process, and so to a stage; a job that runs alone has them as well.
    #[must_use]
    pub fn to_json(&self) -> String {
        let job = |stage| move |job| JobJson::new(stage, job);
        let document = DocumentJson {
            version: concat!("raceline-", env!("CARGO_PKG_VERSION")),
            precondition: &self.precondition,
            jobs: self.stages.iter().flat_map(|stage| stage.jobs.iter().map(job(stage))).collect(),
            stages: self.stages.iter().map(StageJson::new).collect(),
        };
        let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
        text.push('\n');
        text
    }
}

#[derive(Serialize)]
struct DocumentJson<'a> {
    #[serde(rename = "raceline version")]
    version: &'static str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    precondition: &'a [Precondition],
    jobs: Vec<JobJson<'a>>,
    stages: Vec<StageJson<'a>>,
}

#[derive(Serialize)]
struct JobJson<'a> {
    jobname: &'a str,
    groupid: u32,
    error: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_text: Option<&'a str>,
    elapsed: u64,
    #[serde(rename = "job options")]
    job_options: &'a BTreeMap<String, String>,
    read: SideJson,
    write: SideJson,
    job_runtime: u64,
    missed_ios: u64,
    beyond_end_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    verified_ios: Option<u64>,
    #[serde(flatten)]
    used: Option<StageJson<'a>>,
}

/// The resources that the process used for all jobs of a stage.
#[derive(Serialize)]
struct StageJson<'a> {
    usr_cpu: f64,
    sys_cpu: f64,
    #[serde(rename = "loop")]
    loops: LoopCounters,
    cost: CostPerIo,
    reconnects: u64,
    #[serde(skip_serializing_if = "Acceleration::is_empty")]
    acceleration: &'a Acceleration,
}

#[derive(Serialize)]
struct SideJson {
    io_bytes: u64,
    io_kbytes: u64,
    bw_bytes: u64,
    bw: u64,
    iops: f64,
    runtime: u64,
    total_ios: u64,
    lat_ns: LatencyJson,
    clat_ns: LatencyJson,
}

#[derive(Serialize)]
struct LatencyJson {
    min: u64,
    max: u64,
    mean: f64,
    stddev: f64,
    #[serde(rename = "N")]
    n: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    percentile: Option<BTreeMap<String, u64>>,
}

impl<'a> StageJson<'a> {
    fn new(stage: &'a StageReport) -> Self {
        let (usr_cpu, sys_cpu) = stage.cpu.percent_of(stage.window);
        Self {
            usr_cpu,
            sys_cpu,
            loops: stage.loops,
            cost: stage.cost.per_io(),
            reconnects: stage.reconnects,
            acceleration: &stage.acceleration,
        }
    }
}

impl<'a> JobJson<'a> {
    fn new(stage: &'a StageReport, job: &'a JobReport) -> Self {
        Self {
            jobname: &job.name,
            groupid: job.group,
            error: i32::from(job.error.is_some()),
            error_text: job.error.as_deref(),
            elapsed: job.measured.as_secs(),
            job_options: &job.options,
            read: side(job, &job.read),
            write: side(job, &job.write),
            job_runtime: millis(job.measured),
            missed_ios: job.missed,
            beyond_end_ns: u64::try_from(job.beyond_end.as_nanos()).unwrap_or(u64::MAX),
            verified_ios: job.verified.map(|verified| verified.ios),
            used: (stage.jobs.len() == 1).then(|| StageJson::new(stage)),
        }
    }
}

fn side(job: &JobReport, side: &Side) -> SideJson {
    let latencies = &side.latencies;
    let bw_bytes = per_second(side.bytes, job.measured);
    let wanted = job.percentiles.as_deref().unwrap_or(&PERCENTILES);
    let latency = |percentiles: bool| LatencyJson {
        min: latencies.min_ns(),
        max: latencies.max_ns(),
        mean: latencies.mean_ns(),
        stddev: latencies.stddev_ns(),
        n: latencies.count(),
        percentile: (percentiles && latencies.count() > 0).then(|| {
            let entry = |&p: &f64| (format!("{p:.6}"), latencies.percentile_ns(p));
            wanted.iter().map(entry).collect()
        }),
    };
    SideJson {
        io_bytes: side.bytes,
        io_kbytes: side.bytes >> 10,
        bw_bytes,
        bw: bw_bytes >> 10,
        iops: job.iops(side),
        runtime: millis(job.measured),
        total_ios: latencies.count(),
        lat_ns: latency(false),
        clat_ns: latency(true),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
