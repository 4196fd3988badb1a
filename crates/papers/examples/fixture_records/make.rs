//! Records with plausible, invented values. They say of themselves that they are fixtures.

use std::collections::BTreeMap;

use raceline_papers::catalogue::Catalogue;
use raceline_papers::experiment::{Experiment, Series};
use raceline_papers::record::{Bed, Effort, Missing, Point, Record, Run, SCHEMA, StandIn};

/// Blocks of each point.
const BLOCKS: u32 = 12;
/// Commands of a run whose latencies are kept.
const COMMANDS: u64 = 200_000;

/// The experiments of the program.
pub(crate) fn experiments() -> Vec<Experiment> {
    Catalogue::builtin().map(|catalogue| catalogue.all().to_vec()).unwrap_or_default()
}

/// The name of an experiment's record.
pub(crate) fn file_name(id: &str) -> String {
    format!("{}.json", id.replace('/', "_"))
}

/// A record of the experiment. Series that need hardware are missing.
pub(crate) fn record(experiment: &Experiment) -> Record {
    let mut chance = Chance(experiment.id.bytes().map(u64::from).sum::<u64>() + 7);
    let mut points = Vec::new();
    let mut missing = Vec::new();
    for (number, series) in experiment.series.iter().enumerate() {
        if let Some(piece) = series.needs.first() {
            // As long as real reasons are, so that the page has to give them room.
            let what_to_do = "name the folder in which it was built, or install its package";
            let why = format!("this machine has no {piece}: {what_to_do}, and measure again");
            missing.push(Missing { what: series.id.clone(), why });
            continue;
        }
        for (place, column) in experiment.axis.columns.iter().enumerate() {
            let runs = (0..BLOCKS)
                .map(|block| run(experiment, series, (number, place, block), &mut chance));
            points.push(Point {
                series: series.id.clone(),
                x: column.id.clone(),
                runs: runs.collect(),
            });
        }
    }
    let text = |text: &str| text.to_owned();
    Record {
        schema: SCHEMA,
        experiment: experiment.id.clone(),
        version: text("fixture: invented values"),
        started_unix_s: 1_795_564_800,
        took_s: 41.5,
        seed: 1,
        effort: Effort::Quick,
        bed: Bed {
            kind: text("veth"),
            description: text("Two namespaces with a veth pair of 4 queues; fixture."),
        },
        stand_ins: vec![StandIn {
            of: text("100 Gbit/s NIC with ADQ"),
            by: text("veth pair with 4 queues"),
            effect: text(
                "No interrupts and no DMA: the gain of moderated interrupts does not show.",
            ),
        }],
        settings: BTreeMap::from([
            (text("io_bytes"), text("4096")),
            (text("runtime_s"), text("0.25")),
            (text("note"), text("fixture: nothing was measured")),
        ]),
        environment: serde_json::json!({
            "cpu": { "model": "invented", "cores": 2, "microcode": null },
            "kernel": "6.18.0-fixture",
            "mitigations": ["spectre_v2: invented", "meltdown: invented"],
            "checks": [{ "id": "governor", "value": "performance", "severity": "ok" }],
        }),
        points,
        missing,
        discarded_blocks: 2,
        complete: true,
    }
}

fn run(
    experiment: &Experiment,
    series: &Series,
    (number, place, block): (usize, usize, u32),
    chance: &mut Chance,
) -> Run {
    let better = ratio(experiment, series, place);
    let mut values = BTreeMap::new();
    for (at, metric) in experiment.metrics.iter().enumerate() {
        let base = match metric.unit.as_str() {
            "1/s" => 180_000.0 * (1.0 + 0.55 * (place as f64)),
            "us" => 40.0 + 25.0 * (place as f64) + 8.0 * (at as f64),
            "ns" => 900.0 + 40.0 * (at as f64),
            "%" => 90.0,
            _ => 6.0 + (at as f64),
        };
        let named =
            experiment.comparisons.iter().any(|one| one.metric == metric.id && one.of == series.id);
        let factor = if named { better } else { 1.0 + 0.06 * (number as f64) };
        values.insert(metric.id.clone(), base * factor * chance.near_one(0.03));
    }
    let whole = values.get("mean_us").copied().unwrap_or(60.0);
    if let Some(delta) = values.get_mut("delta_us") {
        *delta = whole * 0.6;
    }
    let latencies = latencies(whole * 1000.0 * chance.near_one(0.05), chance);
    Run {
        block,
        values,
        latencies,
        target_bound: Some(place != 0),
        foreign_percent: 0.4 * chance.near_one(0.5),
        stolen_percent: 0.1,
    }
}

/// Somewhat less of an effect than the source prints.
fn ratio(experiment: &Experiment, series: &Series, place: usize) -> f64 {
    let column = &experiment.axis.columns[place].id;
    let comparison = experiment.comparisons.iter().find(|one| one.of == series.id);
    let published = comparison.and_then(|one| one.published.get(column).or(one.published.get("*")));
    published.map_or(1.1, |value| value.powf(0.85))
}

/// Latencies with a long tail.
fn latencies(mean_ns: f64, chance: &mut Chance) -> Vec<(u64, u64)> {
    let mut left = COMMANDS;
    let mut bound = mean_ns * 0.7;
    let mut all = Vec::new();
    while left > 0 {
        let count = (left / 6).max(1);
        // From the text: the bounds have no fraction then.
        let ns = format!("{bound:.0}").parse().unwrap_or(1);
        all.push((ns, count));
        left -= count;
        bound *= 1.0 + 0.07 * chance.near_one(0.3);
    }
    all
}

/// Numbers that look random and are always the same.
struct Chance(u64);

impl Chance {
    /// A factor around 1.
    fn near_one(&mut self, spread: f64) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let share = (self.0 >> 33) as f64 / f64::from(u32::MAX >> 1);
        1.0 + spread * (share * 2.0 - 1.0)
    }
}
