//! The host's jobs of a point.

use std::net::SocketAddr;
use std::time::Duration;

use raceline_bench::Batch;
use raceline_bench::runner::stage::{Cpus, FileSpec, JobSpec, Route, StageConfig};
use raceline_bench::workload::RwMode;
use raceline_host::{HostConfig, I10Config};
use raceline_proto::nvme::{HostId, NamespaceId, Nqn};
use raceline_reactor::{Backend, Mode};

use crate::run::settings::{Digest, LoadSettings, Maps, Neighbour, Protocol};
use crate::subject::Subject;

const HOST: &str = "nqn.2026-01.io.raceline:papers-host";
const NEIGHBOUR: &str = "nqn.2026-01.io.raceline:papers-neighbour";
const HOST_ID: HostId = HostId(*b"raceline-papersh");
const NEIGHBOUR_ID: HostId = HostId(*b"raceline-papersn");
/// Fewest entries of a queue.
const ENTRIES_MIN: u16 = 32;
/// A run of many connections needs a longer ramp until all take part.
const RAMP_PER_CONNECTION: Duration = Duration::from_millis(1);

/// The times and rate of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) ramp: Duration,
    pub(super) time: Duration,
    pub(super) rate_iops: Option<u64>,
    pub(super) seed: u64,
}

/// Whether the commands of the job at this position are measured: of NVMe those of the first job, of iSCSI all.
pub(super) fn is_measured(settings: &LoadSettings, job: usize) -> bool {
    job == 0 || settings.protocol == Protocol::Iscsi
}

/// A job for each session of a point over iSCSI, with the unit at the job's position. The host sleeps until its mode is
/// set.
pub(super) fn sessions(settings: &LoadSettings, cores: &[usize], pace: Pace) -> StageConfig {
    let connections = settings.total_connections();
    let job = |number: usize| JobSpec {
        files: vec![FileSpec { host: number, nsid: NamespaceId(1) }],
        mode: settings.mode(),
        batch: batch(settings),
        cpus: Cpus::Split(vec![cores[number % cores.len()]]),
        ramp: pace.ramp.max(RAMP_PER_CONNECTION * connections.into()),
        runtime: Some(pace.time),
        seed: pace.seed,
        ..JobSpec::new(settings.io_bytes, settings.depth)
    };
    // The units have the addresses and names. What is here gives the number of them.
    let address = SocketAddr::from(([0, 0, 0, 0], 0));
    let host = HostConfig::new(address, name(HOST), name(HOST), HOST_ID);
    StageConfig {
        hosts: vec![host; connections.into()],
        accel: None,
        jobs: (0..connections.into()).map(job).collect(),
        exit_all: false,
        reactor_mode: Mode::Interrupt,
        backend: Backend::default(),
    }
}

/// All jobs of a point over NVMe. The host sleeps until its mode is set.
pub(super) fn config(
    settings: &LoadSettings,
    subject: &dyn Subject,
    nqn: &Nqn,
    cores: &[usize],
    pace: Pace,
) -> StageConfig {
    let mut hosts = vec![host(settings, subject, nqn)];
    let mut jobs = if settings.maps.is_some() {
        readers_and_writer(settings)
    } else {
        vec![JobSpec {
            mode: settings.mode(),
            queues: settings.total_connections(),
            batch: batch(settings),
            rate_iops: pace.rate_iops,
            ..JobSpec::new(settings.io_bytes, settings.depth)
        }]
    };
    if let Some(job) = neighbour(settings) {
        hosts.push(HostConfig {
            hostnqn: name(NEIGHBOUR),
            hostid: NEIGHBOUR_ID,
            io_queues: job.queues,
            i10: None,
            ..hosts[0].clone()
        });
        jobs.push(job);
    }
    let connections = jobs.iter().map(|job| u32::from(job.queues)).sum();
    let ramp = pace.ramp.max(RAMP_PER_CONNECTION * connections);
    for job in &mut jobs {
        // The neighbour is the only job on the second host.
        let host = usize::from(job.files.first().is_some_and(|file| file.host == 1));
        job.files = vec![FileSpec { host, nsid: NamespaceId(1) }];
        job.cpus = Cpus::Split(cores.to_vec());
        (job.ramp, job.runtime, job.seed) = (ramp, Some(pace.time), pace.seed);
    }
    StageConfig {
        hosts,
        accel: None,
        jobs,
        exit_all: false,
        reactor_mode: Mode::Interrupt,
        backend: Backend::default(),
    }
}

fn host(settings: &LoadSettings, subject: &dyn Subject, nqn: &Nqn) -> HostConfig {
    let address = subject.address();
    let mut usual = HostConfig::new(address, nqn.clone(), name(HOST), HOST_ID);
    if let Some(rdma) = subject.rdma() {
        usual = rdma.reaching(usual);
    }
    let connections = settings.total_connections();
    let (io_queues, write_queues) = match settings.maps {
        Some(Maps::Split) => (connections - connections / 2, connections / 2),
        _ => (connections, 0),
    };
    let depth = settings.depth.max(settings.writer_depth);
    HostConfig {
        io_queues,
        write_queues,
        io_entries: depth.saturating_add(1).max(ENTRIES_MIN),
        // A host that sleeps during the runs of others sends no keep alive.
        kato_ms: 0,
        data_digest: settings.digest != Digest::None,
        busy_poll: (settings.host_busy_poll_us > 0)
            .then(|| Duration::from_micros(settings.host_busy_poll_us.into())),
        placement: settings.host_placement.into(),
        i10: settings.i10.then(I10Config::default),
        send_flags: settings.send_flags,
        send_pdus: if settings.send_pdus > 0 { settings.send_pdus } else { usual.send_pdus },
        ..usual
    }
}

fn batch(settings: &LoadSettings) -> Batch {
    let bound = |count: u16| (count > 0).then_some(count);
    Batch {
        submit: bound(settings.batch_submit),
        complete_max: bound(settings.batch_complete_max),
        ..Batch::NONE
    }
}

/// Synchronous readers beside one writer that spreads its commands over all queues for writes.
fn readers_and_writer(settings: &LoadSettings) -> Vec<JobSpec> {
    let route = Route::Maps { polled: false };
    let read = JobSpec {
        mode: settings.mode(),
        clones: settings.readers,
        route,
        ..JobSpec::new(settings.io_bytes, settings.depth)
    };
    let lanes = settings.total_connections().min(settings.writer_depth);
    let write = JobSpec {
        mode: RwMode::RandWrite,
        queues: lanes,
        rate_iops: rate(settings.writer_mib_per_s, settings.writer_bytes),
        route,
        ..JobSpec::new(settings.writer_bytes, (settings.writer_depth / lanes).max(1))
    };
    vec![read, write]
}

/// Bytes of a command of the jobs beside the measured one.
pub(super) fn other_io_bytes(settings: &LoadSettings) -> u32 {
    neighbour_load(settings.neighbour).map_or(settings.writer_bytes, |(io_bytes, ..)| io_bytes)
}

/// Bytes of a neighbour's commands, its depth on each connection, and its connections.
pub(in crate::run) fn neighbour_load(neighbour: Neighbour) -> Option<(u32, u16, u16)> {
    match neighbour {
        Neighbour::None => None,
        Neighbour::Bulk => Some((128 << 10, 8, 1)),
        Neighbour::Many => Some((4096, 4, 32)),
    }
}

fn neighbour(settings: &LoadSettings) -> Option<JobSpec> {
    let (io_bytes, depth, queues) = neighbour_load(settings.neighbour)?;
    Some(JobSpec {
        files: vec![FileSpec { host: 1, nsid: NamespaceId(1) }],
        queues,
        rate_iops: rate(settings.neighbour_mib_per_s, io_bytes),
        ..JobSpec::new(io_bytes, depth)
    })
}

fn rate(mib_per_s: u64, io_bytes: u32) -> Option<u64> {
    (mib_per_s > 0).then(|| ((mib_per_s << 20) / u64::from(io_bytes)).max(1))
}

fn name(nqn: &str) -> Nqn {
    Nqn::new(nqn).expect("a constant NQN")
}
