//! The test beds of a run: each is made when the first experiment wants it, and removed at the end.

use std::collections::BTreeMap;
use std::net::IpAddr;

use raceline_papers::bed::link::{LinkOptions, Shape};
use raceline_papers::bed::veth::Veth;
use raceline_papers::bed::{Bed, Loopback, Remote};
use raceline_papers::experiment::Experiment;

use crate::cli::bench::papers::{BedChoice, RunArgs};
use crate::failure::Failure;

/// What a shaped link carries in each direction.
const SHAPED_BITS_PER_S: u64 = 1_000_000_000;

/// The beds made so far, by name.
#[derive(Default)]
pub(super) struct Beds {
    made: BTreeMap<&'static str, Box<dyn Bed>>,
    /// The bed could not be made: it is not tried again.
    failed: BTreeMap<&'static str, String>,
}

impl Beds {
    /// The bed of an experiment: the chosen one, or the one that fits best and can be made here.
    pub(super) fn of(
        &mut self,
        args: &RunArgs,
        experiment: &Experiment,
    ) -> Result<&dyn Bed, Failure> {
        let choice = args.bed;
        if args.rdma.is_some() && matches!(choice, BedChoice::Veth | BedChoice::Shaped) {
            let message = "--bed: an RDMA device is in none of the network namespaces of such a link: leave --bed or --rdma out";
            return Err(Failure::usage(message.to_owned()));
        }
        let running = args.target.as_ref().or(args.nvmet.as_ref()).map(|(address, _)| address.ip());
        if let Some(address) = running {
            return self.of_running(choice, address);
        }
        let name = match choice {
            BedChoice::Auto => wanted(experiment),
            BedChoice::Loopback => "loopback",
            BedChoice::Veth => "veth",
            BedChoice::Shaped => "shaped",
        };
        if choice != BedChoice::Auto {
            self.make(name).map_err(Failure::runtime)?;
            return Ok(&*self.made[name]);
        }
        // The loopback is always there; the record says what it stands in for.
        let name = [name, "veth", "loopback"]
            .into_iter()
            .filter(|other| name != "loopback" || *other == "loopback")
            .find(|name| self.make(name).is_ok())
            .unwrap_or("loopback");
        Ok(&*self.made[name])
    }

    /// The bed of targets that run already: what the run would make, they do not listen in.
    fn of_running(&mut self, choice: BedChoice, address: IpAddr) -> Result<&dyn Bed, Failure> {
        if matches!(choice, BedChoice::Veth | BedChoice::Shaped) {
            let message = format!(
                "--bed: the target at {address} runs already, and is not in a test bed of this run: leave --bed out"
            );
            return Err(Failure::usage(message));
        }
        let name = if address.is_loopback() { "loopback" } else { "remote" };
        let bed = self.made.entry(name).or_insert_with(|| match name {
            "loopback" => Box::new(Loopback),
            _ => Box::new(Remote { address }),
        });
        Ok(&**bed)
    }

    fn make(&mut self, name: &'static str) -> Result<(), String> {
        if self.made.contains_key(name) {
            return Ok(());
        }
        if let Some(why) = self.failed.get(name) {
            return Err(why.clone());
        }
        let shape = Shape { bits_per_s: Some(SHAPED_BITS_PER_S), ..Shape::default() };
        let made: Result<Box<dyn Bed>, String> = match name {
            "veth" => veth(&LinkOptions::default()),
            "shaped" => veth(&LinkOptions { shape, ..LinkOptions::default() }),
            _ => Ok(Box::new(Loopback)),
        };
        match made {
            Ok(bed) => {
                self.made.insert(name, bed);
                Ok(())
            }
            Err(why) => {
                eprintln!("raceline: there is no test bed `{name}` here: {why}");
                self.failed.insert(name, why.clone());
                Err(why)
            }
        }
    }
}

fn veth(options: &LinkOptions) -> Result<Box<dyn Bed>, String> {
    match Veth::make(options) {
        Ok(bed) => Ok(Box::new(bed)),
        Err(error) => Err(error.to_string()),
    }
}

/// The bed that fits an experiment best.
fn wanted(experiment: &Experiment) -> &'static str {
    match experiment.procedure.settings.get("bed").and_then(|bed| bed.as_str()) {
        Some("veth") => "veth",
        Some("shaped") => "shaped",
        _ => "loopback",
    }
}
