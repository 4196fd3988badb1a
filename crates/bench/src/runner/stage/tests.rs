//! The threads and queues that jobs get.

use std::net::{Ipv4Addr, SocketAddr};

use raceline_proto::nvme::{HostId, Nqn};

use super::*;

fn host() -> HostConfig {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 4420));
    let name = |name: &str| Nqn::new(name).unwrap();
    HostConfig::new(
        address,
        name("nqn.2014-08.org.example:1"),
        name("nqn.2014-08.org.example:h"),
        HostId([1; 16]),
    )
}

fn job(clones: u16, queues: u16, cpus: Cpus) -> JobSpec {
    JobSpec {
        files: vec![FileSpec { host: 0, nsid: NamespaceId(1) }],
        clones,
        queues,
        cpus,
        ..JobSpec::new(4096, 32)
    }
}

fn layout(jobs: Vec<JobSpec>, hosts: usize) -> Layout {
    let config = StageConfig {
        hosts: vec![host(); hosts],
        accel: None,
        jobs,
        exit_all: false,
        reactor_mode: Mode::default(),
        backend: Backend::Auto,
    };
    config.layout().unwrap()
}

/// The threads of the loads, and their queues on the first host.
fn dealt(layout: &Layout) -> Vec<(usize, u16)> {
    layout.loads.iter().map(|load| (load.thread, load.qids.get(&0).copied().unwrap_or(0))).collect()
}

#[test]
fn queues_are_dealt_out_evenly() {
    let five = layout(vec![job(1, 5, Cpus::Split(vec![0, 1]))], 1);
    assert_eq!(five.threads, [[0], [1]]);
    assert_eq!(dealt(&five), [(0, 1), (1, 2), (0, 3), (1, 4), (0, 5)]);
    assert_eq!(five.queues, [5]);
    let alone = layout(vec![job(1, 3, Cpus::Any)], 1);
    assert_eq!(alone.threads, [Vec::<usize>::new()]);
    assert_eq!(dealt(&alone), [(0, 1), (0, 2), (0, 3)]);
}

#[test]
fn split_gives_each_clone_a_cpu_and_shared_gives_all_of_them() {
    let split = layout(vec![job(3, 1, Cpus::Split(vec![4, 6]))], 1);
    assert_eq!(split.threads, [[4], [6]]);
    assert_eq!(dealt(&split), [(0, 1), (1, 2), (0, 3)]);
    let shared = layout(vec![job(3, 1, Cpus::Shared(vec![4, 6]))], 1);
    assert_eq!(shared.threads, [[4, 6], [4, 6]]);
    assert_eq!(dealt(&shared), [(0, 1), (1, 2), (0, 3)]);
    // More CPUs than clones: the rest stay idle.
    let few = layout(vec![job(1, 1, Cpus::Split(vec![4, 6])), job(1, 1, Cpus::Split(vec![4]))], 1);
    assert_eq!(few.threads, [[4]]);
    assert_eq!(dealt(&few), [(0, 1), (0, 2)]);
}

#[test]
fn jobs_share_the_queues_of_maps() {
    let mapped =
        |clones, cpus| JobSpec { route: Route::Maps { polled: false }, ..job(clones, 1, cpus) };
    let jobs = vec![mapped(3, Cpus::Split(vec![4, 6])), mapped(1, Cpus::Split(vec![7]))];
    let layout = layout(jobs, 1);
    assert_eq!((layout.queues[0], layout.mapped[0]), (0, true));
    assert_eq!(dealt(&layout), [(0, BY_MAP), (1, BY_MAP), (0, BY_MAP), (2, BY_MAP)]);
    let places = [0, 1, 2].map(|thread| layout.place(0, thread));
    assert_eq!(places, [0, 1, 2].map(|index| CorePlace { index, count: 3 }));
    let maps = |io, write| raceline_host::QueueRequest { io, write, poll: 0 };
    assert!(layout.check_maps(0, &maps(3, 3).grant(6)).is_ok());
    let error = layout.check_maps(0, &maps(3, 3).grant(5)).unwrap_err().to_string();
    assert!(error.starts_with("2 default queues, of the 5 that the controller grants"), "{error}");
    assert!(layout.check_maps(0, &maps(3, 3).grant(3)).is_ok(), "reads share with all else");
}

#[test]
fn a_clone_has_one_queue_for_all_namespaces_of_a_controller() {
    let files = [(0, 1), (1, 1), (0, 2)];
    let files = files.map(|(host, nsid)| FileSpec { host, nsid: NamespaceId(nsid) });
    let both = JobSpec { files: files.to_vec(), ..job(2, 1, Cpus::Split(vec![0, 1])) };
    let only = JobSpec { files: files[1..2].to_vec(), ..job(1, 1, Cpus::Split(vec![1])) };
    let layout = layout(vec![both, only], 2);
    assert_eq!(layout.queues, [2, 3]);
    assert_eq!(layout.admins, [0, 0]);
    assert_eq!(layout.loads[1].qids, BTreeMap::from([(0, 2), (1, 2)]));
    assert_eq!(layout.ports(0), BTreeMap::from([(0, vec![(1, 0)]), (1, vec![(1, 0)])]));
    assert_eq!(layout.ports(1), BTreeMap::from([(0, vec![(2, 0)]), (1, vec![(2, 0), (3, 1)])]));
}

#[test]
fn clones_that_verify_divide_the_range() {
    let span = Span { block_size: 512, blocks_per_io: 8, first_block: 0, block_count: 8 * 100 };
    let plan = |job: &JobSpec, clone| Plan::new(job, clone, vec![span]);
    let verify = JobSpec {
        verify: true,
        rate_iops: Some(100),
        volume: Volume::Passes(1),
        ..job(4, 2, Cpus::Any)
    };
    let last = plan(&verify, 3);
    assert_eq!((last.first_part, last.parts), (6, 8));
    assert_eq!(last.workload.rate_iops, Some(400));
    assert_eq!((last.commands_of(0, 2), last.commands_of(1, 2)), (Some(13), Some(12)));
    let plain = plan(&JobSpec { verify: false, ..verify }, 3);
    assert_eq!((plain.first_part, plain.parts), (0, 2));
    assert_eq!((plain.workload.rate_iops, plain.commands), (Some(100), Some(100)));
}

#[test]
fn jobs_may_not_write_what_another_verifies() {
    let at = |first_block| Span { block_size: 512, blocks_per_io: 8, first_block, block_count: 80 };
    let check = |jobs: [JobSpec; 2], second: u64| {
        let plans = [
            vec![Plan::new(&jobs[0], 0, vec![at(0)])],
            vec![Plan::new(&jobs[1], 0, vec![at(second)])],
        ];
        check_overlaps(&jobs, &plans).is_ok()
    };
    let reads = job(1, 1, Cpus::Any);
    let verifies = JobSpec { verify: true, mode: RwMode::RandWrite, ..reads.clone() };
    let writes = JobSpec { mode: RwMode::Write, ..reads.clone() };
    assert!(!check([verifies.clone(), writes.clone()], 79));
    assert!(check([verifies.clone(), writes.clone()], 80));
    assert!(check([reads, writes.clone()], 0), "nobody looks");
    let elsewhere = FileSpec { host: 0, nsid: NamespaceId(2) };
    assert!(check([verifies, JobSpec { files: vec![elsewhere], ..writes }], 0));
}

/// The message gives the controller's number only if the controller is the reason.
#[test]
fn a_depth_that_does_not_fit_names_its_reason() {
    assert_eq!(check_depth(128, 129, 129), Ok(()));
    assert_eq!(check_depth(128, 129, 1024), Ok(()));
    let (key, message) = check_depth(128, 129, 128).unwrap_err();
    assert_eq!(key, "iodepth");
    let expected = "--iodepth 128 needs a queue of 129 entries and the controller allows 128 (CAP.MQES): \
                    use --iodepth 127, or let the target allow more";
    assert!(message.starts_with(expected), "{message}");
    let (_, message) = check_depth(128, 64, 1024).unwrap_err();
    assert_eq!(message, "--iodepth 128 needs a queue of 129 entries, and 64 were asked for");
}

#[test]
fn a_namespace_that_is_named_twice_is_not_verified() {
    let file = |nsid| FileSpec { host: 0, nsid: NamespaceId(nsid) };
    let twice = JobSpec { files: vec![file(1), file(2), file(1)], ..job(1, 1, Cpus::Any) };
    assert!(check_twice(std::slice::from_ref(&twice)).is_ok(), "nobody looks");
    let verifies = JobSpec { verify: true, ..twice.clone() };
    let Err(RunError::Misfit(misfit)) = check_twice(&[twice, verifies]) else {
        panic!("it is not refused")
    };
    assert_eq!((misfit.job, misfit.key, misfit.file), (1, "filename", Some(2)));
}
