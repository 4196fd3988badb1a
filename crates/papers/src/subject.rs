//! Who is measured: targets that a host reaches over a test bed.

#[cfg(test)]
pub(crate) mod fabric;
pub mod missing;
mod raceline;
mod rdma;
mod spdk;
mod tgt;

use std::net::SocketAddr;
use std::time::Duration;

use raceline_bdev::SharedBdev;
use raceline_bench::accel::Device;
use raceline_initiator::Name;
use raceline_proto::nvme::Nqn;
use raceline_reactor::Mode;

use crate::bed::Bed;
use crate::record::StandIn;
use crate::run::LoadSettings;

pub use raceline::Raceline;
pub(crate) use raceline::TemporaryFile;
pub use rdma::{Rdma, RdmaSource};
pub use spdk::Spdk;
pub use tgt::Tgt;

/// A running target.
pub trait Subject: Send {
    /// Where it listens.
    fn address(&self) -> SocketAddr;

    /// What hosts find there.
    fn export(&self) -> Export;

    /// Its process, if it is another one.
    fn process(&self) -> Option<u32>;

    /// It is measured from now on: its cores do what their settings say.
    fn wake(&self);

    /// It is not measured from now on: it takes as little time as it can.
    fn sleep(&self);

    /// What carries a host's queues to it over RDMA; `None`: it is reached over TCP.
    fn rdma(&self) -> Option<&Rdma> {
        None
    }

    /// What it has counted so far.
    fn counts(&self) -> Counts;

    /// An error if it has ended.
    ///
    /// # Errors
    /// How it ended.
    fn check(&mut self) -> Result<(), String>;

    /// Ends it.
    ///
    /// # Errors
    /// When it does not end.
    fn stop(self: Box<Self>) -> Result<(), String>;
}

/// What hosts find at a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Export {
    /// A subsystem of NVMe, of which namespace 1 is measured.
    Subsystem(Nqn),
    /// Target nodes of iSCSI, of each of which one logical unit is measured.
    Nodes {
        /// Their names, at least one.
        names: Vec<Name>,
        /// The number of the logical unit.
        lun: u16,
    },
}

/// What a target has counted so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Time of turns of its loops that found work; `None` if it does not say, or sleeps when idle.
    pub busy: Option<Duration>,
    /// Commands that transfer data; `None` if it does not say.
    pub commands: Option<u64>,
    /// Digests in all, and those that an engine was to compute and software did.
    pub digests: (u64, u64),
}

/// What a subject needs.
pub struct Needs<'a> {
    /// Settings of its point.
    pub settings: &'a LoadSettings,
    /// The network.
    pub bed: &'a dyn Bed,
    /// The target's CPUs.
    pub cpus: &'a [usize],
    /// The namespace, for targets in this process.
    pub device: &'a SharedBdev,
    /// The engine for digests.
    pub engine: Option<&'a Device>,
    /// What carries NVMe/RDMA.
    pub rdma: &'a RdmaSource,
}

/// A target that runs already.
#[derive(Clone)]
pub struct Running {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its subsystem.
    pub nqn: Nqn,
    /// What carries hosts to it over RDMA; `None`: it is reached over TCP.
    pub rdma: Option<Rdma>,
}

impl Subject for Running {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn export(&self) -> Export {
        Export::Subsystem(self.nqn.clone())
    }

    fn process(&self) -> Option<u32> {
        None
    }

    fn rdma(&self) -> Option<&Rdma> {
        self.rdma.as_ref()
    }

    fn wake(&self) {}

    fn sleep(&self) {}

    fn counts(&self) -> Counts {
        Counts::default()
    }

    fn check(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn stop(self: Box<Self>) -> Result<(), String> {
        Ok(())
    }
}

/// The names of the target nodes of a series.
pub(crate) fn node_names(settings: &LoadSettings) -> Vec<Name> {
    let name = |number| format!("iqn.2026-01.io.raceline:papers-{number}");
    let name = |number| Name::new(&name(number)).expect("an iSCSI name of constant form");
    (0..settings.used_nodes()).map(name).collect()
}

/// What the hand-off kind stands in for.
#[must_use]
pub fn handoff_stand_in() -> StandIn {
    StandIn {
        of: "the Linux kernel's NVMe/TCP target (nvmet-tcp)".to_owned(),
        by: "Raceline's target with interrupts (epoll) and blocking file calls on worker threads"
            .to_owned(),
        effect: "Each command is handed to another thread and back, as work queues do; the code on both sides is Raceline's, so only the cost of the shape is measured."
            .to_owned(),
    }
}

/// What a thread that plays a DSA device stands in for.
#[must_use]
pub fn engine_stand_in() -> StandIn {
    StandIn {
        of: "Intel Data Streaming Accelerator".to_owned(),
        by: "a thread on the host's core that plays a DSA device".to_owned(),
        effect: "The thread takes processor time of the host and computes in software: the gain of a device in throughput cannot be seen, only the time that the target's core saves."
            .to_owned(),
    }
}

/// The mode of a target's cores by its settings.
pub(crate) fn mode_of(settings: &LoadSettings) -> Mode {
    settings.target_mode.into()
}
