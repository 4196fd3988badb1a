//! `raceline bench distance`: how far the cores are apart, each from each.

use std::time::{Duration, Instant};

use raceline_bench::distance::round_trip;
use raceline_reactor::affinity::allowed_cores;
use serde::Serialize;

use crate::cli::bench::DistanceArgs;
use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::shell;
use crate::signals::Interrupt;
use crate::table::Table;

/// All pairs are looked at in turn for about so long, and at least so often.
const TIME: Duration = Duration::from_secs(1);
const LOOKS_MIN: u32 = 2;

/// What was found for two cores.
#[derive(Debug, Serialize)]
struct Found {
    cores: [usize; 2],
    /// The least and the greatest of the looks.
    round_trip_ns: u128,
    most_ns: u128,
}

/// Looks at all pairs and prints them.
pub(crate) fn run(args: &DistanceArgs) -> Result<(), Failure> {
    let interrupt = Interrupt::catch().map_err(Failure::runtime)?;
    let cores = match &args.cores {
        Some(list) => list.0.clone(),
        None => allowed_cores().map_err(Failure::runtime)?,
    };
    if cores.len() < 2 {
        return Err(Failure::usage(
            "a distance is between two cores, and there is only one: name others with --cores, as in --cores 0,1",
        ));
    }
    let mut found = pairs(&cores);
    let (begun, mut looks) = (Instant::now(), 0);
    while looks == 0 || (!args.once && (looks < LOOKS_MIN || begun.elapsed() < TIME)) {
        for pair in &mut found {
            if let Some(signal) = interrupt.requested() {
                return Err(Failure::signal(signal));
            }
            let [a, b] = pair.cores;
            pair.add(round_trip(a, b).map_err(Failure::runtime)?);
        }
        looks += 1;
    }
    match args.output {
        OutputFormat::Table => shell::print(table(&cores, &found, looks).as_bytes()),
        OutputFormat::Json => {
            let text = serde_json::to_string_pretty(&found).map_err(Failure::runtime)?;
            shell::print((text + "\n").as_bytes())
        }
    }
}

/// Each core with each that comes after it.
fn pairs(cores: &[usize]) -> Vec<Found> {
    let after = |at: usize| cores[at + 1..].iter().map(move |&b| [cores[at], b]);
    let pair = |cores| Found { cores, round_trip_ns: u128::MAX, most_ns: 0 };
    (0..cores.len()).flat_map(after).map(pair).collect()
}

impl Found {
    fn add(&mut self, look: Duration) {
        self.round_trip_ns = self.round_trip_ns.min(look.as_nanos());
        self.most_ns = self.most_ns.max(look.as_nanos());
    }

    fn cell(&self) -> String {
        let Self { round_trip_ns, most_ns, .. } = self;
        if round_trip_ns == most_ns {
            return round_trip_ns.to_string();
        }
        format!("{round_trip_ns}-{most_ns}")
    }
}

/// A line and a column for each core.
fn table(cores: &[usize], found: &[Found], looks: u32) -> String {
    let names: Vec<String> = cores.iter().map(ToString::to_string).collect();
    let heading: Vec<&str> =
        std::iter::once("core").chain(names.iter().map(String::as_str)).collect();
    let mut table = Table::new(&heading);
    for (&a, name) in cores.iter().zip(&names) {
        let cell = |&b: &usize| {
            let between = |pair: &&Found| pair.cores == [a, b] || pair.cores == [b, a];
            found.iter().find(between).map_or("-".to_owned(), Found::cell)
        };
        table.row(std::iter::once(name.clone()).chain(cores.iter().map(cell)));
    }
    let of = if looks == 1 { "one look".to_owned() } else { format!("{looks} looks, least-most") };
    format!("{}ns for a cache line there and back; {of}\n", table.render(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_core_stands_beside_each_other() {
        let cores = [3, 0, 1];
        let mut found = pairs(&cores);
        assert_eq!(
            found.iter().map(|pair| pair.cores).collect::<Vec<_>>(),
            [[3, 0], [3, 1], [0, 1]]
        );
        for (pair, least_ns) in found.iter_mut().zip([100, 200, 60]) {
            pair.add(Duration::from_nanos(2 * least_ns));
            pair.add(Duration::from_nanos(least_ns));
        }
        found[2].most_ns = 60;
        assert_eq!(
            table(&cores, &found, 2),
            "core  3        0        1\n\
             3     -        100-200  200-400\n\
             0     100-200  -        60\n\
             1     200-400  60       -\n\
             ns for a cache line there and back; 2 looks, least-most\n"
        );
    }
}
