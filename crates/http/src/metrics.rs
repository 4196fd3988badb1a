//! `/metrics`: everything that is counted anyway, read when a scraper asks.
//!
//! Cores count for themselves, and this reads what they have written: a scrape sends no message to a core. The model is
//! locked for as long as it takes to copy names and counts; the text is written afterwards. The number of things of
//! each kind that are listed is bounded, and the rest is counted.

mod attached;
mod bdevs;
mod cores;
mod disks;
mod errors;
mod hosts;
mod iscsi;
mod latencies;
mod listeners;
mod process;
mod protobuf;
mod rdma;
mod subsystems;
pub(crate) mod text;
mod values;

use std::sync::Arc;

use raceline_control::manager::Manager;
use raceline_control::manager::nvmf::NvmfTarget;
use raceline_target::{RdmaStreams, Target};

use crate::server::Counts;
use text::{Form, Labels, Names, Text, Value};

/// How many things of each kind are listed: devices, namespaces, subsystems, and so on.
const MAX_LISTED: usize = 4096;

/// How many things of a kind have histograms, which are thirty lines each: pairs of host and subsystem are many.
const MAX_HISTOGRAMS: usize = 1024;

/// Counts what a list leaves out.
#[derive(Default)]
struct LeftOut(Vec<(&'static str, usize)>);

impl LeftOut {
    /// The first of many things.
    fn bound<T>(&mut self, kind: &'static str, mut all: Vec<T>) -> Vec<T> {
        self.note(kind, all.len(), MAX_LISTED);
        all.truncate(MAX_LISTED);
        all
    }

    /// Of so many, that at most `max` are listed.
    fn note(&mut self, kind: &'static str, count: usize, max: usize) {
        self.0.push((kind, count.saturating_sub(max)));
    }
}

/// A running target and its name.
struct Running {
    labels: Labels,
    name: String,
    cpus: Vec<usize>,
    target: Arc<Target>,
    /// What carries its RDMA listeners, if it has that transport.
    rdma: Option<Arc<RdmaStreams>>,
}

/// The text of everything.
pub(crate) fn write(manager: &Manager, counts: &Counts, form: Form, names: Names) -> Vec<u8> {
    let mut text = Text::new(form, names);
    let mut left_out = LeftOut::default();
    process::write(&mut text, manager, counts);
    // What is in the model is copied first.
    let (bdevs, disks, subsystems, attached, running) = {
        let model = manager.model();
        let bdevs = bdevs::read(&model, &mut left_out);
        let disks = left_out.bound("disks", model.disks.counts());
        let subsystems = subsystems::read(&model, &mut left_out);
        let attached = attached::read(&model, &mut left_out);
        let running: Vec<Running> = model.nvmf.targets.iter().filter_map(running).collect();
        (bdevs, disks, subsystems, attached, running)
    };
    let cores_of_disks = cores::of_disks(&disks, &mut left_out);
    cores::write(&mut text, manager, &running, cores_of_disks);
    errors::write(&mut text, &running);
    bdevs::write(&mut text, &bdevs);
    disks::write(&mut text, &disks);
    subsystems::write(&mut text, &subsystems, &running, &mut left_out);
    hosts::write(&mut text, &running, &mut left_out);
    iscsi::write(&mut text, &running, &mut left_out);
    rdma::write(&mut text, &running, &mut left_out);
    attached::write(&mut text, &attached);
    let label = |kind: &str| Labels::new(&[("kind", kind)]);
    let samples = left_out.0.iter().map(|(kind, count)| (label(kind), Value::from(*count)));
    text.gauge(
        "metrics_left_out",
        "Things that these metrics do not list, as there are too many.",
        samples,
    );
    text.finish()
}

/// The value of the label `transport`.
fn transport(is_rdma: bool) -> &'static str {
    if is_rdma { "rdma" } else { "tcp" }
}

fn running((name, target): (&String, &NvmfTarget)) -> Option<Running> {
    let running = target.running.as_ref()?;
    Some(Running {
        labels: Labels::new(&[("target", name)]),
        name: name.clone(),
        cpus: running.cpus.clone(),
        target: Arc::clone(&running.target),
        rdma: target.rdma.clone(),
    })
}
