//! `raceline_get_disk`: what a process with one disk and no daemon tells of it.

use raceline_bdev::{DiskFigures, SharedBdev};
use raceline_host::RemoteController;
use raceline_proto::nvme::NamespaceId;
use serde_json::{Value, json};
use uuid::Uuid;

use super::bdev::describe_paths;
use super::{log, rpc};
use crate::method::Registry;

/// The method.
pub const GET_DISK: &str = "raceline_get_disk";

/// What the process of a disk says of a method that it does not have.
const ELSEWHERE: &str = "this process serves one disk and is no daemon: rpc_get_methods lists the few methods that it has";

/// A disk that a process serves without a daemon.
#[derive(Clone)]
pub struct ServedDisk {
    /// `nbd`, `ublk` or `vhost-user`.
    pub kind: String,
    /// Its sockets, addresses or device files.
    pub places: Vec<String>,
    /// What it is of.
    pub device: SharedBdev,
    /// The namespace that the device is, unless it is one of this machine.
    pub namespace: Option<(RemoteController, NamespaceId)>,
    /// Its users may only read.
    pub read_only: bool,
    /// What it has done.
    pub figures: DiskFigures,
}

impl ServedDisk {
    /// What it is now, and what it has done, as the method gives it.
    #[must_use]
    pub fn describe(&self) -> Value {
        let mut all = self.describe_without_figures();
        all["counts"] = counts(&self.figures);
        all["cores"] = cores(&self.figures).into();
        all
    }

    /// The same without what it has done.
    #[must_use]
    pub fn describe_without_figures(&self) -> Value {
        let info = self.device.info();
        json!({
            "pid": std::process::id(),
            "kind": self.kind,
            "places": self.places,
            "name": info.name,
            "uuid": Uuid::from_bytes(info.uuid).to_string(),
            "block_size": info.block_size,
            "num_blocks": info.block_count,
            "read_only": self.read_only || info.read_only,
            "controller": self.namespace.as_ref().map(controller),
        })
    }
}

fn controller((remote, nsid): &(RemoteController, NamespaceId)) -> Value {
    let (config, info) = (remote.config(), remote.controller());
    let blank = |text: &str| text.trim_end().to_owned();
    json!({
        "subnqn": config.subnqn.as_str(),
        "hostnqn": config.hostnqn.as_str(),
        "hostid": Uuid::from_bytes(config.hostid.0).to_string(),
        "nsid": nsid.0,
        "serial_number": blank(&info.serial),
        "model_number": blank(&info.model),
        "firmware_revision": blank(&info.firmware),
        "ctrlrs": describe_paths(remote),
    })
}

fn counts(figures: &DiskFigures) -> Value {
    let totals = figures.totals();
    json!({
        "queues": totals.queues(),
        "reads": totals.reads,
        "writes": totals.writes,
        "flushes": totals.flushes,
        "discards": totals.discards,
        "write_zeroes": totals.zeroes,
        "read_bytes": totals.read_bytes,
        "written_bytes": totals.written_bytes,
        "discarded_bytes": totals.discarded_bytes,
        "zeroed_bytes": totals.zeroed_bytes,
        "uncopied": totals.uncopied,
        "errors": totals.errors,
    })
}

/// Times in microseconds.
fn cores(figures: &DiskFigures) -> Vec<Value> {
    let micros = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let one = |core: raceline_reactor::CoreLoop| {
        let loops = core.loops;
        json!({
            "name": core.name,
            "cpu": core.core,
            "age_us": micros(core.age),
            "busy_us": micros(loops.busy),
            "longest_us": micros(loops.longest),
            "turns": loops.turns,
            "busy_turns": loops.busy_turns,
            "waits": loops.waits,
        })
    };
    figures.core_loops().into_iter().map(one).collect()
}

impl Registry {
    /// The methods of a process that serves one disk: its log, itself, and what `tell` gives of the disk.
    #[must_use]
    pub fn of_disk(tell: impl Fn() -> Value + Send + Sync + 'static) -> Self {
        let mut registry = Self::elsewhere(ELSEWHERE);
        rpc::register(&mut registry);
        log::register(&mut registry);
        registry.tell(GET_DISK, tell);
        registry
    }
}
