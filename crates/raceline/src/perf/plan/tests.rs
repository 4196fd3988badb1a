//! Command lines and job files as stages.

use clap::Parser as _;
use raceline_proto::nvme::NamespaceId;

use super::*;
use crate::cli::{Cli, Verb};

const NQN: &str = "nqn.2014-08.org.example:1";

fn plan(options: &str) -> Result<Vec<Stage>, String> {
    let line = format!("raceline perf -a 127.0.0.1 -n {NQN} {options}");
    let Verb::Perf(args) = Cli::try_parse_from(line.split_whitespace()).unwrap().verb else {
        unreachable!()
    };
    let mut targets = Targets::new(&args).map_err(|failure| failure.message)?;
    stages(&args, &mut targets).map_err(|failure| failure.message)
}

fn file(text: &str, options: &str) -> Result<Vec<Stage>, String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let name = file.path().display().to_string();
    plan(&format!("--job {name} {options}")).map_err(|error| error.replace(&name, "FILE"))
}

fn one(options: &str) -> StageConfig {
    let mut stages = plan(options).unwrap();
    assert_eq!(stages.len(), 1);
    stages.remove(0).config
}

#[test]
fn queues_are_as_deep_as_they_have_to_be() {
    assert_eq!(one("").hosts[0].io_entries, 128);
    assert_eq!(one("--iodepth 128").hosts[0].io_entries, 129);
    assert_eq!(one("--iodepth 32 -Q 33").hosts[0].io_entries, 33);
    assert_eq!(
        plan("--iodepth 32 -Q 32").map(|_| ()),
        Err("--iodepth 32 needs -Q 33 or more: a queue holds one command less than it has entries"
            .to_owned())
    );
}

#[test]
fn cores_without_a_queue_are_refused() {
    assert!(plan("--cores 0,1 -i 2").is_ok());
    assert_eq!(
        plan("--cores 0,1").map(|_| ()),
        Err("--cores names 2 cores and -i 1 queues cannot use them all: use -i 2".to_owned())
    );
    assert!(plan("--cores 0,1 --numjobs 2").is_ok());
    assert_eq!(
        plan("--cores 0-4 -i 2 --numjobs 2").map(|_| ()),
        Err("--cores names 5 cores, and 2 jobs of 2 queues cannot use them all".to_owned())
    );
}

#[test]
fn queues_of_maps_hold_what_their_submitters_have_in_flight() {
    let entries = |options: &str| plan(options).map(|stages| stages[0].config.hosts[0].io_entries);
    assert_eq!(entries("-i 4 -W 4 --iodepth 32"), Ok(128));
    assert_eq!(entries("-i 8 -W 2 --iodepth 32"), Ok(129));
    assert_eq!(entries("-i 8 -W 2 --iodepth 32 --cores 0,1"), Ok(129));
    assert_eq!(entries("-i 2 -W 2 --iodepth 32 --numjobs 4"), Ok(257));
    let message = "--iodepth 32 where queues are shared needs -Q 129 or more: a queue holds one command less than it has entries";
    assert_eq!(entries("-i 8 -W 2 --iodepth 32 -Q 64"), Err(message.to_owned()));
    let mapped = file("[a]\nnumjobs=32\n[b]\niodepth=100\n", "-i 2 -W 1").unwrap();
    assert_eq!(mapped[0].config.jobs[0].route, Route::Maps { polled: false });
    assert_eq!(mapped[0].config.hosts[0].io_entries, 133);
    let own = file("[a]\n", "-i 2").map(|_| ()).unwrap_err();
    assert!(own.starts_with("with --job, each job has one queue of its own"), "{own}");
}

#[test]
fn polled_commands_have_cores_that_poll() {
    assert_eq!(one("--hipri -P 1 --mode interrupt").reactor_mode, Mode::Poll);
    assert!(one("--i10=8").hosts[0].i10.is_some_and(|i10| i10.requests == 8));
    assert!(one("--i10").hosts[0].i10.is_some() && one("").hosts[0].i10.is_none());
    assert_eq!(one("").jobs[0].route, Route::Own);
}

#[test]
fn the_command_line_is_one_job_on_all_targets() {
    let config = one(&format!(
        "--target Nvme1=127.0.0.2:77,{NQN} --namespace 1-2 --numjobs 3 --iodepth_batch 8 \
         --iodepth_batch_complete_max 4 --norandommap --cpus_allowed 0 --cpus_allowed_policy shared"
    ));
    let addresses: Vec<String> = config.hosts.iter().map(|host| host.address.to_string()).collect();
    assert_eq!(addresses, ["127.0.0.1:4420", "127.0.0.2:77"]);
    let job = &config.jobs[0];
    let files: Vec<(usize, u32)> = job.files.iter().map(|file| (file.host, file.nsid.0)).collect();
    assert_eq!(files, [(0, 1), (0, 2), (1, 1), (1, 2)]);
    assert_eq!((job.clones, job.random_map), (3, false));
    let batch = Batch { submit: Some(8), complete_min: 1, complete_max: Some(4), low: None };
    assert_eq!((job.batch, &job.cpus), (batch, &Cpus::Shared(vec![0])));
    assert!(one("").jobs[0].random_map, "as in fio");
    let twice = plan(&format!("--target nvme0=127.0.0.2,{NQN}")).map(|_| ()).unwrap_err();
    assert!(twice.contains("another target has this name"), "{twice}");
}

#[test]
fn a_job_file_is_a_stage_for_each_stonewall() {
    let text = "[global]\nbs=8k\nfilename=/dev/nvme0n2\n[a]\n[b]\nnumjobs=2\n[c]\nstonewall\n\
                iodepth=200\n[d]\nnew_group\ngroup_reporting\n";
    let stages = file(text, "").unwrap();
    let names: Vec<Vec<&str>> = stages
        .iter()
        .map(|stage| stage.jobs.iter().map(|job| job.name.as_str()).collect())
        .collect();
    assert_eq!(names, [vec!["a", "b"], vec!["c", "d"]]);
    let groups: Vec<u32> = stages.iter().flat_map(|s| s.jobs.iter().map(|job| job.group)).collect();
    assert_eq!(groups, [0, 0, 1, 2]);
    assert_eq!(stages[0].config.jobs[1].clones, 2);
    assert_eq!(stages[0].config.jobs[0].files, [FileSpec { host: 0, nsid: NamespaceId(2) }]);
    assert_eq!(stages[0].config.hosts[0].io_entries, 128);
    assert_eq!(stages[1].config.hosts[0].io_entries, 201);
    assert_eq!(stages[1].jobs[1].options["bs"], "8k");
    assert_eq!(stages[0].jobs[1].title, "b: read 8 KiB, 2 jobs of 1 queue of depth 1");
}

#[test]
fn job_files_name_targets_in_three_ways() {
    let target = format!("--target Back-n2=127.0.0.2,{NQN}");
    let files = |text: &str| {
        let stages = file(&format!("[x]\n{text}\n"), &target)?;
        let config = &stages[0].config;
        let address = |file: &FileSpec| config.hosts[file.host].address.to_string();
        Ok::<_, String>(
            config.jobs[0].files.iter().map(|f| (address(f), f.nsid.0)).collect::<Vec<_>>(),
        )
    };
    let at = |address: &str, nsid| (address.to_owned(), nsid);
    let both = files("filename=Nvme0n3:back-n2n1").unwrap();
    assert_eq!(both, [at("127.0.0.1:4420", 3), at("127.0.0.2:4420", 1)]);
    let spelled =
        format!("trtype=tcp traddr=127.0.0.3 trsvcid=9 subnqn={NQN} ns=4").replace(':', "\\:");
    assert_eq!(files(&format!("filename={spelled}")).unwrap(), [at("127.0.0.3:9", 4)]);
    assert_eq!(files("traddr=127.0.0.4\nnsid=2").unwrap(), [at("127.0.0.4:4420", 2)]);
    // Without names: all namespaces of the command line.
    assert_eq!(files("").unwrap(), [at("127.0.0.1:4420", 1), at("127.0.0.2:4420", 1)]);
    for wrong in ["disk", "Nvme7n1", "Nvme0n0", "Nvme0", "n"] {
        let message = files(&format!("filename={wrong}")).unwrap_err();
        let expected = format!("FILE:2: filename `{wrong}` names no target: write Nvme0n1 for");
        assert!(message.starts_with(&expected), "{message}");
        assert!(message.contains("known are Nvme0, Back-n2 (--target adds others)"), "{message}");
    }
    let message = files("filename=trtype=fc traddr=1.2.3.4").unwrap_err();
    assert!(message.contains("`trtype=fc` is not understood"), "{message}");
}

#[test]
fn size_is_divided_among_the_namespaces_of_a_job() {
    let stages = file("[x]\nsize=100k\nfilename=Nvme0n1:Nvme0n2:Nvme0n3\n", "").unwrap();
    assert_eq!(stages[0].config.jobs[0].size, Size::Bytes(32 << 10));
}

/// Each line of `filename` has its own errors; errors in the keys of the engine name the key's line.
#[test]
fn errors_name_the_line_that_is_wrong() {
    for (text, message) in [
        (
            "[global]\nfilename=Nvme0n1\n[x]\nrw=read\nfilename=Nvme0n2:Nvme7n1\n",
            "FILE:5: filename `Nvme7n1`",
        ),
        ("[x]\nnsid=1\ntraddr=no-such-name.invalid\nrw=read\n", "FILE:3: cannot find the address"),
        (
            "[x]\nsize=1k\nfilename=Nvme0n1:Nvme0n2\n",
            "FILE:2: size: 1024 bytes for 2 namespaces are less than a command of 4096 bytes for each",
        ),
    ] {
        let error = file(text, "").map(|_| ()).unwrap_err();
        assert!(error.starts_with(message), "{error}");
    }
    let error = file("[a]\n[x]\niodepth=40\n", "-Q 32").map(|_| ()).unwrap_err();
    assert!(error.starts_with("FILE:3: iodepth 40 needs -Q 41 or more"), "{error}");
    let described = file("[x]\nfilesize=1m\noffset_increment=4k\nnsid=2\n", "").unwrap();
    let origin = described[0].jobs[0].origin.clone().unwrap();
    let misfit = |key, file| Misfit { job: 0, key, file, message: format!("--{key} is wrong") };
    assert!(origin.describe(&misfit("size", None)).ends_with(":2: size is wrong"));
    assert!(origin.describe(&misfit("offset", Some(0))).ends_with(":3: offset is wrong"));
    assert!(origin.describe(&misfit("filename", Some(0))).ends_with(":4: --filename is wrong"));
    assert!(origin.describe(&misfit("bs", None)).ends_with(":1: bs is wrong"), "not said");
}

#[test]
fn options_of_a_job_are_the_files() {
    let line = format!("raceline perf -a h -n {NQN} --job x --bs 4k");
    let error = Cli::try_parse_from(line.split_whitespace()).unwrap_err().to_string();
    assert!(error.contains("'--job <FILE>' cannot be used with"), "{error}");
    let wrong = file("[x]\nfoo=1\n", "").map(|_| ()).unwrap_err();
    assert_eq!(wrong, "FILE:2: `foo` is not a key that raceline perf knows");
}

#[test]
fn preconditioning_writes_each_namespace_once_in_order_and_once_at_random() {
    let text = "[a]\nfilename=Nvme0n1:Nvme0n2\n[b]\nstonewall\nfilename=Nvme0n2\n";
    let line = format!("raceline perf -a 127.0.0.1 -n {NQN} --precondition");
    let Verb::Perf(args) = Cli::try_parse_from(line.split_whitespace()).unwrap().verb else {
        unreachable!()
    };
    let stages = file(text, "").unwrap();
    let passes = precondition(&args, &stages, &mut |_, _| Ok((128 << 10, 512))).unwrap();
    let jobs: Vec<Vec<(RwMode, u32, u32)>> = passes
        .iter()
        .map(|pass| {
            let jobs = pass.config.jobs.iter();
            jobs.map(|job| (job.mode, job.io_bytes, job.files[0].nsid.0)).collect()
        })
        .collect();
    let (fill, over) = ((RwMode::Write, 128 << 10), (RwMode::RandWrite, 4096));
    let expected = [fill, over].map(|(mode, bytes)| vec![(mode, bytes, 1), (mode, bytes, 2)]);
    assert_eq!(jobs, expected);
    assert!(passes[1].config.jobs[0].random_map && passes[0].config.hosts.len() == 1);
}
