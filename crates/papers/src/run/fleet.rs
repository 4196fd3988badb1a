//! The procedure `fleet`: the measured host and its neighbours are agents, each a process of its own.
//!
//! The load of a point is that of [`LoadSettings`]; `neighbour` says what each of the other agents does. All of them
//! start at the same time, and what counts is what all of them recorded.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use raceline_bdev::SharedBdev;
use raceline_bench::gap::filled_ram;
use raceline_bench::quiet::Machine;
use raceline_proto::nvme::Nqn;
use raceline_reactor::HugePages;

use super::load::{bed_as_wanted, neighbour_load};
use super::settings::{CoreMode, LoadSettings};
use super::{Journal, Options, RunError, columns, merged, read, values};
use crate::agent::fleet::{Fleet, FleetError, Share, Together};
use crate::agent::link::Agent;
use crate::agent::load::Load;
use crate::bed;
use crate::experiment::{Column, Experiment, Series};
use crate::record::Run;
use crate::statistics::SAMPLES_BEYOND_MIN;
use crate::subject::{Export, Needs, Raceline, Running, Subject};

/// What this procedure measures, of the first agent unless the name says otherwise.
pub(super) const METRICS: [&str; 8] = [
    "iops",
    "mean_us",
    "p50_us",
    "p99_us",
    "p999_us",
    "missed_percent",
    "neighbour_gbit_per_s",
    "fairness",
];

/// How far ahead the start of agents on this machine is.
const LEAD: Duration = Duration::from_millis(200);
/// Runs without a common window that are repeated, for each block.
const REPEATS_MAX: u32 = 3;

/// Measures all columns.
pub(super) fn measure(
    experiment: &Experiment,
    options: &Options<'_>,
    journal: &mut Journal<'_>,
) -> Result<(), RunError> {
    // Agents start for all blocks of a column.
    if options.until < options.timing.blocks {
        return Ok(());
    }
    let total = experiment.series.len() * options.timing.blocks as usize;
    let Some(program) = &options.agent else {
        journal.missing("all series", "the program that runs as an agent (raceline)", total);
        return Ok(());
    };
    if options.cpus.len() < 2 {
        journal.missing("all series", "a second CPU for the agents", total);
        return Ok(());
    }
    bed_as_wanted(experiment, options, journal)?;
    journal.stand_in(
        "load generators on several machines",
        "processes on one machine, each an agent",
        "The agents share the CPUs of this machine, and no network device tells their connections apart.",
    );
    for column in columns(experiment, options) {
        for block in 0..options.timing.blocks {
            let mut runs = Vec::new();
            let mut series: Vec<&Series> = experiment.series.iter().collect();
            if block % 2 == 1 {
                series.reverse();
            }
            let ids: Vec<&str> = series.iter().map(|series| series.id.as_str()).collect();
            if block < journal.next_block(&ids, &column.id) {
                continue;
            }
            for series in series {
                let settings: LoadSettings = read(merged(experiment, series, column))?;
                let point = Point { column, series, settings, options };
                let run = point.run(program, block).map_err(|error| point.failed(&error))?;
                if run.latencies.is_empty() {
                    let what =
                        format!("series {}, column {}, at least one run", series.id, column.id);
                    let why = "no command ended: the machine is overloaded, or the run too short";
                    journal.missing(&what, why, 1);
                    continue;
                }
                runs.push((series.id.clone(), run));
            }
            journal.add_block(&column.id, runs)?;
        }
    }
    Ok(())
}

struct Point<'a> {
    column: &'a Column,
    series: &'a Series,
    settings: LoadSettings,
    options: &'a Options<'a>,
}

impl Point<'_> {
    /// One run: a target, its agents, and what the first of them measured.
    fn run(&self, program: &std::path::Path, block: u32) -> Result<Run, String> {
        let (options, settings) = (self.options, &self.settings);
        let bytes = settings.memory_mib as usize * (1 << 20);
        let device: SharedBdev = filled_ram(bytes, HugePages::Transparent, options.seed)
            .map_err(|error| format!("cannot map {bytes} bytes for the namespace: {error}"))?;
        let needs = Needs {
            settings,
            bed: options.bed,
            cpus: &options.cpus[..1],
            device: &device,
            engine: None,
            rdma: &options.rdma,
        };
        let target: Box<dyn Subject> = match options.target.clone() {
            Some((address, nqn)) => Box::new(Running { address, nqn, rdma: None }),
            None => Box::new(Raceline::start(&needs)?),
        };
        target.wake();
        let together = self.fleet(program, &*target, block);
        let stopped = target.stop();
        let (together, disturbance) = together?;
        stopped?;
        let values = values_of(&together, settings);
        let victim = together.shares.first().ok_or("the fleet has no agent")?;
        Ok(Run {
            block,
            values,
            latencies: values::buckets(&victim.reads),
            target_bound: None,
            foreign_percent: 0.0,
            stolen_percent: disturbance,
        })
    }

    /// Runs all agents together; gives the time that the hypervisor took, too.
    fn fleet(
        &self,
        program: &std::path::Path,
        target: &dyn Subject,
        block: u32,
    ) -> Result<(Together, f64), String> {
        let Export::Subsystem(nqn) = target.export() else {
            return Err("agents are hosts of NVMe/TCP".to_owned());
        };
        let loads = self.loads(target, &nqn, block);
        let address = target.address().ip();
        let agents: Result<Vec<Agent>, FleetError> = bed::in_host_ns(self.options.bed, || {
            let spawn = |number: usize| {
                let mut command = Command::new(program);
                command.args(["bench", "agent", "--stdio"]);
                Agent::spawn(&format!("agent {number}"), &mut command, Some(address))
            };
            (0..loads.len()).map(spawn).collect()
        })
        .map_err(|error| format!("the test bed: {error}"))?;
        let text = |error: FleetError| error.to_string();
        let fleet = Fleet::prepare(agents.map_err(text)?, &loads).map_err(text)?;
        let mut fleet = fleet.with_lead(LEAD);
        let machine = Machine::now();
        let mut left = REPEATS_MAX;
        let together = loop {
            match fleet.run(&mut |_| !(self.options.stop)()) {
                // A machine that is busy may delay an agent so far.
                Err(FleetError::Late { .. } | FleetError::Clock { .. }) if left > 0 => left -= 1,
                result => break result.map_err(text)?,
            }
        };
        Ok((together, Machine::now().since(&machine).stolen_percent))
    }

    /// The loads of the victim, which is the first, and its neighbours.
    fn loads(&self, target: &dyn Subject, nqn: &Nqn, block: u32) -> Vec<Load> {
        let (settings, timing) = (&self.settings, &self.options.timing);
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
        let victim = Load {
            rw: settings.rw.clone(),
            io_bytes: settings.io_bytes,
            depth: settings.depth,
            queues: settings.total_connections(),
            seed: self.options.seed.wrapping_add(block.into()),
            rate_iops: (settings.rate_iops > 0).then_some(settings.rate_iops),
            ramp_ms: millis(timing.ramp),
            runtime_ms: millis(settings.time(timing)),
            cores: self.options.cpus[1..].to_vec(),
            poll: settings.host_mode == CoreMode::Poll,
            ..Load::new(target.address(), nqn.as_str())
        };
        let mut loads = vec![victim.clone()];
        if let Some((io_bytes, depth, queues)) = neighbour_load(settings.neighbour) {
            loads.extend((1..=u64::from(settings.neighbour_agents)).map(|number| Load {
                io_bytes,
                depth,
                queues,
                rw: "randread".to_owned(),
                rate_iops: None,
                seed: victim.seed.wrapping_add(number << 32),
                ..victim.clone()
            }));
        }
        loads
    }

    fn failed(&self, why: &str) -> RunError {
        if (self.options.stop)() {
            return RunError::Stopped;
        }
        RunError::Failed(format!("series {}, column {}: {why}", self.series.id, self.column.id))
    }
}

/// The metrics of a run.
fn values_of(together: &Together, settings: &LoadSettings) -> BTreeMap<String, f64> {
    let mut found = BTreeMap::new();
    let Some((victim, neighbours)) = together.shares.split_first() else { return found };
    let us = |ns: f64| ns / 1000.0;
    let mut latencies = victim.reads.clone();
    latencies.merge(&victim.writes);
    let due = latencies.count() + victim.outcome.missed;
    found.insert("iops".to_owned(), victim.iops);
    found.insert("mean_us".to_owned(), us(latencies.mean_ns()));
    for (name, percentile) in [("p50_us", 50.0), ("p99_us", 99.0), ("p999_us", 99.9)] {
        let beyond = latencies.count() as f64 * (100.0 - percentile) / 100.0;
        if beyond >= SAMPLES_BEYOND_MIN - 1e-6 {
            found.insert(name.to_owned(), us(latencies.percentile_ns(percentile) as f64));
        }
    }
    let missed = 100.0 * victim.outcome.missed as f64 / due.max(1) as f64;
    found.insert("missed_percent".to_owned(), missed);
    found.insert("fairness".to_owned(), together.fairness());
    let io_bytes = neighbour_load(settings.neighbour).map_or(0, |(io_bytes, ..)| io_bytes);
    // A sum of nothing is -0.
    let iops = neighbours.iter().fold(0.0, |sum, share: &Share| sum + share.iops);
    found.insert("neighbour_gbit_per_s".to_owned(), iops * f64::from(io_bytes) * 8.0 / 1e9);
    found
}
