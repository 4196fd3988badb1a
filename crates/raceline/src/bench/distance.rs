//! `raceline bench distance`: the distance of each core from each other core.

use std::time::{Duration, Instant};

use raceline_bench::distance::{Distance, round_trip};
use raceline_reactor::affinity::allowed_cores;
use serde::Serialize;

use crate::cli::bench::DistanceArgs;
use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::shell;
use crate::signals::Interrupt;
use crate::table::Table;

/// Approximate time for looking at all pairs in turn; below, the least number of looks.
const TIME: Duration = Duration::from_secs(1);
const LOOKS_MIN: u32 = 2;

/// Two cores and the results for them.
#[derive(Debug)]
struct Pair {
    cores: [usize; 2],
    /// The least and the greatest round trip of the looks.
    round_trip: Duration,
    most: Duration,
    /// What is known of their distance, including earlier knowledge.
    distance: Distance,
}

/// The same as JSON.
#[derive(Debug, Serialize)]
struct PairJson {
    cores: [usize; 2],
    round_trip_ns: u128,
    most_ns: u128,
    /// The least round trip ever seen, also earlier, and the longest one that counts as near to it.
    least_ns: u128,
    near_max_ns: u128,
    /// Whether the compiler optimised the measured code.
    optimised: bool,
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
    let mut found = pairs(&cores, args.least.map(Duration::from_nanos));
    let looks = if args.wait {
        let [pair] = &mut found[..] else {
            return Err(Failure::usage("--wait is for two cores: name them, as in --cores 0,1"));
        };
        pair.wait(&interrupt)?;
        1
    } else {
        look(args, &mut found, &interrupt)?
    };
    match args.output {
        OutputFormat::Table => shell::print(table(&cores, &found, looks).as_bytes()),
        OutputFormat::Json => {
            let found: Vec<PairJson> = found.iter().map(Pair::json).collect();
            let text = serde_json::to_string_pretty(&found).map_err(Failure::runtime)?;
            shell::print((text + "\n").as_bytes())
        }
    }
}

/// Looks at all pairs in turn, and gives the number of looks.
fn look(args: &DistanceArgs, found: &mut [Pair], interrupt: &Interrupt) -> Result<u32, Failure> {
    let (begun, mut looks) = (Instant::now(), 0);
    while looks == 0 || (!args.once && (looks < LOOKS_MIN || begun.elapsed() < TIME)) {
        for pair in &mut *found {
            if let Some(signal) = interrupt.requested() {
                return Err(Failure::signal(signal));
            }
            let [a, b] = pair.cores;
            pair.add(round_trip(a, b).map_err(Failure::runtime)?);
        }
        looks += 1;
    }
    Ok(looks)
}

/// All pairs of different cores.
fn pairs(cores: &[usize], least: Option<Duration>) -> Vec<Pair> {
    let after = |at: usize| cores[at + 1..].iter().map(move |&b| [cores[at], b]);
    let pair = |cores: [usize; 2]| {
        let distance = Distance::between(Some(cores[0]), Some(cores[1]));
        let distance = least.map_or(distance, |least| distance.knowing(least));
        Pair { cores, round_trip: Duration::MAX, most: Duration::ZERO, distance }
    };
    (0..cores.len()).flat_map(after).map(pair).collect()
}

impl Pair {
    fn add(&mut self, look: Duration) {
        self.round_trip = self.round_trip.min(look);
        self.most = self.most.max(look);
        self.distance.note(look);
    }

    /// Waits for near cores; the last look is the result.
    fn wait(&mut self, interrupt: &Interrupt) -> Result<(), Failure> {
        let found = self.distance.wait(&|| interrupt.requested().is_some());
        if let Some(signal) = interrupt.requested() {
            return Err(Failure::signal(signal));
        }
        // If cores did not answer, another look gives the reason.
        let [a, b] = self.cores;
        self.add(found.map_or_else(|| round_trip(a, b), Ok).map_err(Failure::runtime)?);
        Ok(())
    }

    fn json(&self) -> PairJson {
        let ns = |time: Option<Duration>| time.unwrap_or(self.round_trip).as_nanos();
        PairJson {
            cores: self.cores,
            round_trip_ns: self.round_trip.as_nanos(),
            most_ns: self.most.as_nanos(),
            least_ns: ns(self.distance.least()),
            near_max_ns: ns(self.distance.near_max()),
            optimised: !cfg!(debug_assertions),
        }
    }

    fn cell(&self) -> String {
        let [least_ns, most_ns] = [self.round_trip, self.most].map(|time| time.as_nanos());
        if least_ns == most_ns {
            return least_ns.to_string();
        }
        format!("{least_ns}-{most_ns}")
    }
}

/// A table with a line and a column for each core.
fn table(cores: &[usize], found: &[Pair], looks: u32) -> String {
    let names: Vec<String> = cores.iter().map(ToString::to_string).collect();
    let heading: Vec<&str> =
        std::iter::once("core").chain(names.iter().map(String::as_str)).collect();
    let mut table = Table::new(&heading);
    for (&a, name) in cores.iter().zip(&names) {
        let cell = |&b: &usize| {
            let between = |pair: &&Pair| pair.cores == [a, b] || pair.cores == [b, a];
            found.iter().find(between).map_or("-".to_owned(), Pair::cell)
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
        let mut found = pairs(&cores, None);
        assert_eq!(
            found.iter().map(|pair| pair.cores).collect::<Vec<_>>(),
            [[3, 0], [3, 1], [0, 1]]
        );
        for (pair, least_ns) in found.iter_mut().zip([100, 200, 60]) {
            pair.add(Duration::from_nanos(2 * least_ns));
            pair.add(Duration::from_nanos(least_ns));
        }
        let json = found[0].json();
        assert_eq!((json.round_trip_ns, json.least_ns, json.near_max_ns), (100, 100, 200));
        let mut known = pairs(&cores[..2], Some(Duration::from_nanos(45)));
        known[0].add(Duration::from_nanos(100));
        let json = known[0].json();
        assert_eq!((json.round_trip_ns, json.least_ns, json.near_max_ns), (100, 45, 90));
        found[2].most = Duration::from_nanos(60);
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
