//! Job files: those of papers, those with mistakes, and arbitrary text.

use std::time::Duration;

use proptest::prelude::*;

mod forms;

use super::*;
use crate::job::Batch;
use crate::runner::stage::{Cpus, Size, Volume};
use crate::workload::RwMode;

fn read(text: &str) -> Result<Vec<FioJob>, String> {
    let environment = |name: &str| (name == "JOBS").then(|| "3".to_owned());
    parse("test.fio", text, &environment).map_err(|error| error.to_string())
}

fn one(text: &str) -> FioJob {
    let mut jobs = read(text).unwrap();
    assert_eq!(jobs.len(), 1);
    jobs.remove(0)
}

/// The names in `filename`, and their lines.
fn names(job: &FioJob) -> Vec<(usize, String)> {
    job.filenames.iter().map(|file| (file.line, file.name.clone())).collect()
}

#[test]
fn the_job_of_the_adq_paper() {
    let job = one(include_str!("../../tests/fio/adq.fio"));
    assert_eq!(job.name, "filename0");
    assert!(job.stonewall && job.group_reporting && !job.exit_all);
    let named = (1..=6).map(|number| (26 + number, format!("Nvme0n{number}")));
    assert_eq!(names(&job), named.collect::<Vec<_>>(), "each line adds one");
    assert_eq!(job.percentiles, Some(vec![99.0, 99.9, 99.99]));
    let spec = &job.spec;
    assert_eq!((spec.mode, spec.io_bytes, spec.depth), (RwMode::RandRead, 4096, 32));
    assert_eq!((spec.clones, spec.random_map), (3, false));
    let batch = Batch { submit: Some(8), complete_min: 1, complete_max: Some(32), low: None };
    assert_eq!(spec.batch, batch);
    assert_eq!(spec.cpus, Cpus::Split(vec![1, 3, 5]));
    assert_eq!((spec.ramp, spec.runtime), (Duration::from_secs(10), Some(Duration::from_secs(90))));
    assert_eq!(spec.volume, Volume::Endless);
}

#[test]
fn the_jobs_of_the_jbof_paper() {
    let jobs = read(include_str!("../../tests/fio/jbof-bandwidth.fio")).unwrap();
    let sizes: Vec<u32> = jobs.iter().map(|job| job.spec.io_bytes).collect();
    // With kb_base=1000, KiB is 1024, and a g of size is 10^9.
    assert_eq!(sizes, [8 << 10, 64 << 10, 256 << 10]);
    assert_eq!(jobs.iter().map(|job| job.stonewall).collect::<Vec<_>>(), [false, true, true]);
    assert!(jobs.iter().all(|job| job.exit_all && job.any_seed && job.group_reporting));
    assert!(jobs.iter().all(|job| job.size_bytes == Some(512_000_000_000)));
    assert_eq!(jobs[1].spec.cpus, Cpus::Shared((10..20).collect()));

    let jobs = read(include_str!("../../tests/fio/jbof-latency.fio")).unwrap();
    assert_eq!((jobs[0].spec.mode, jobs[1].spec.mode), (RwMode::RandRead, RwMode::RandWrite));
    assert_eq!((jobs[1].spec.depth, jobs[1].spec.random_map), (1, true));

    let fill = one(include_str!("../../tests/fio/jbof-precondition.fio"));
    assert_eq!(
        (fill.spec.mode, fill.spec.io_bytes, fill.spec.depth),
        (RwMode::Write, 512 << 10, 64)
    );
    // Without a time: once over the whole namespace.
    assert_eq!((fill.spec.runtime, fill.spec.volume), (None, Volume::Passes(1)));
    assert_eq!(fill.size_bytes, Some(512 << 30));
}

#[test]
fn the_jobs_of_the_talk() {
    let jobs = read(include_str!("../../tests/fio/talk-mix.fio")).unwrap();
    assert_eq!((jobs[0].spec.clones, jobs[0].spec.depth), (32, 1));
    assert_eq!((jobs[1].spec.mode, jobs[1].spec.io_bytes), (RwMode::Write, 1 << 20));
    assert!(jobs[1].new_group && !jobs[1].stonewall);
    assert_eq!(jobs[1].spec.rate_iops, Some(200));

    let jobs = read(include_str!("../../tests/fio/talk-depth.fio")).unwrap();
    assert_eq!(jobs.iter().map(|job| job.spec.depth).collect::<Vec<_>>(), [1, 32, 32]);
    assert_eq!((jobs[2].spec.batch.submit, jobs[2].spec.batch.complete_min), (Some(8), 8));
    assert_eq!(jobs[2].options["iodepth_batch_complete_min"], "8", "named by its own name");
}

#[test]
fn fio_has_these_defaults() {
    let job = one("[x]\n");
    assert_eq!((job.spec.mode, job.spec.io_bytes, job.spec.depth), (RwMode::Read, 4096, 1));
    assert_eq!((job.spec.clones, job.spec.batch, job.spec.random_map), (1, Batch::NONE, true));
    assert_eq!(
        (job.spec.volume, job.spec.runtime, job.spec.size),
        (Volume::Passes(1), None, Size::Rest)
    );
    assert_eq!((job.spec.cpus, job.filenames.len()), (Cpus::Any, 0));
}

#[test]
fn later_globals_and_the_job_itself_count() {
    let jobs =
        read("[global]\nbs=8k\n[a]\n[global]\nBS = 16k ; comment\n[b]\n[c]\nbs=4k # x\nbs=512\n");
    let sizes: Vec<u32> = jobs.unwrap().iter().map(|job| job.spec.io_bytes).collect();
    assert_eq!(sizes, [8192, 16_384, 512]);
    let job = one("[x]\nloops=3\nio_size=1m\nruntime=5\nsize=50%\nthread\ndirect=0\n");
    assert_eq!((job.spec.volume, job.spec.size), (Volume::Bytes(3 << 20), Size::Percent(50)));
    let job = one(
        "[x]\nfilename=traddr=10.0.0.1 trsvcid=4420 subnqn=nqn.2014-08.org.example\\:1 ns=2:b\n",
    );
    let spdk = "traddr=10.0.0.1 trsvcid=4420 subnqn=nqn.2014-08.org.example:1 ns=2";
    assert_eq!(names(&job), [(2, spdk.to_owned()), (2, "b".to_owned())]);
    let job = one("[x]\ntraddr=10.0.0.1\nnqn=nqn.2014-08.org.example:1\nnsid=7\ndata_digest\n");
    assert_eq!((job.remote.nsid, job.remote.data_digest), (Some(7), Some(true)));
}

#[test]
fn mistakes_are_named_with_file_and_line() {
    for (text, message) in [
        ("", "test.fio: there is no job: a job begins with its name in brackets, [name]"),
        (
            "[global]\nbs=4k\n",
            "test.fio: there is no job: a job begins with its name in brackets, [name]",
        ),
        ("bs=4k\n[x]\n", "test.fio:1: `bs=4k` stands before any section: put [global] before it"),
        ("[x\n", "test.fio:1: `[x` is not a section: write [name]"),
        ("[]\n", "test.fio:1: `[]` is not a section: write [name]"),
        (
            "[x]\ninclude other.fio\n",
            "test.fio:2: include is not supported: put the lines of that file here",
        ),
        (
            "[x]\n\nbssplit=4k/50:8k/50\n",
            "test.fio:3: `bssplit` is not a key that raceline perf knows, but fio does: a job has one size: write bs, and a job for each size",
        ),
        ("[x]\nxx=1\n", "test.fio:2: `xx` is not a key that raceline perf knows"),
        (
            "[x]\niodept=1\n",
            "test.fio:2: `iodept` is not a key that raceline perf knows; did you mean `iodepth`?",
        ),
        (
            "[global]\nnumjob=2\n[x]\n",
            "test.fio:2: `numjob` is not a key that raceline perf knows; did you mean `numjobs`?",
        ),
        (
            "[x]\nrw=trim\n",
            "test.fio:2: rw: `trim` is not a workload: use read, write, randread, randwrite, rw or randrw",
        ),
        ("[x]\nbs=\n", "test.fio:2: bs: a value is needed"),
        ("[x]\nbs=4q\n", "test.fio:2: bs: `4q` is not a size: write 4096, 4k, 1m, 2g or 0x1000"),
        (
            "[x]\nbs=100\n",
            "test.fio:2: bs: `100` is 100 bytes: a command moves a multiple of 512 bytes, at most 16m",
        ),
        (
            "[x]\nkb_base=1000\nbs=8Ki\n",
            "test.fio:3: bs: `8Ki` is 8000 bytes (kb_base is 1000: write kib for 1024): a command moves a multiple of 512 bytes, at most 16m",
        ),
        ("[x]\niodepth=0\n", "test.fio:2: iodepth: `0` is not a number from 1 to 4095"),
        (
            "[x]\nruntime=1w\n",
            "test.fio:2: runtime: `1w` is not a time: write 90 (seconds), 90s, 500ms, 500us, 2m, 1h or 1d, one number with one unit; fio takes a unit that it does not know for microseconds",
        ),
        ("[x]\ndirect=1\nnorandommap=yes\n", "test.fio:3: norandommap: `yes` is neither 0 nor 1"),
        ("[x]\nnumjobs=${JOB}\n", "test.fio:2: the environment has no variable JOB"),
        ("[x]\nnumjobs=${JOBS\n", "test.fio:2: `${JOBS` has no closing brace"),
        (
            "[x]\ncpus_allowed=3-1\n",
            "test.fio:2: cpus_allowed: `3-1` is not a list of CPUs: write 0,2-4",
        ),
        (
            "[x]\ncpus_allowed_policy=any\n",
            "test.fio:2: cpus_allowed_policy: `any` is not a policy: write shared or split",
        ),
        (
            "[x]\npercentile_list=0:1\n",
            "test.fio:2: percentile_list: a percentile is more than 0 and at most 100, and `0` is not",
        ),
        (
            "[x]\nverify=md5\n",
            "test.fio:2: verify: `md5` is not how blocks are verified: write crc32c",
        ),
        ("[x]\nfilename=:\n", "test.fio:2: filename: a value is needed"),
        (
            "[x]\nnumjobs=$ncpus\n",
            "test.fio:2: numjobs: fio's keyword $ncpus is not supported: write the number",
        ),
        (
            "[x]\nrw=randread:8\n",
            "test.fio:2: rw: `randread:8`: fio's number after the colon is not supported: write randread",
        ),
    ] {
        assert_eq!(read(text).map(|_| ()), Err(message.to_owned()), "{text:?}");
    }
}

/// An error of several keys together is reported at the last of them, also if it is in [global]; and at the
/// header only if no key is wrong.
#[test]
fn keys_that_do_not_go_together_are_named_with_their_line() {
    for (text, message) in [
        ("[global]\ntime_based\n[x]\nrw=read\n", "test.fio:2: time_based needs a runtime"),
        (
            "[x]\nfilename=a\nbs=4k\nnsid=1\niodepth=4\n",
            "test.fio:4: filename and traddr, nqn or nsid both say where: use one of them",
        ),
        (
            "[global]\niodepth_batch_complete_min=4\n[x]\niodepth_batch_complete_max=2\nbs=4k\n",
            "test.fio:4: iodepth_batch_complete_max 2 is less than iodepth_batch_complete_min 4",
        ),
        (
            "[x]\nrate=1m\nrate_iops=5\nbs=4k\n",
            "test.fio:3: rate and rate_iops both say how fast: use one of them",
        ),
        (
            "[x]\nbs=4k,8k\nrw=randrw\nnumjobs=2\n",
            "test.fio:3: bs: 4096 bytes for reads and 8192 for writes: a job that does both has one size here; write two jobs, one that reads and one that writes",
        ),
        (
            "[x]\nrw=rw\nrate=,1m\nnumjobs=2\n",
            "test.fio:3: rate: a job that reads and writes has limits for both here, which make whole percents of all: write one limit, or two jobs, one that reads and one that writes",
        ),
        (
            "[x]\nsize=1m\nfilesize=1m\nnumjobs=2\n",
            "test.fio:3: filesize and size both say how much of each namespace is used: write size for all namespaces of the job together, or filesize for each",
        ),
    ] {
        assert_eq!(read(text).map(|_| ()), Err(message.to_owned()), "{text:?}");
    }
}

/// fio 3.33: `fio --debug=file`, lines "add file".
#[test]
fn lines_of_filename_add_up() {
    let jobs = read(
        "[global]\nfilename=f1\n[a]\nfilename=f2\nfilename=f3:f4\n[b]\n[global]\nfilename=f5\n\
         [c]\nfilename=f2:f2\n",
    );
    let names = |job: &FioJob| names(job).into_iter().map(|(_, name)| name).collect::<Vec<_>>();
    let jobs: Vec<Vec<String>> = jobs.unwrap().iter().map(names).collect();
    assert_eq!(jobs[0], ["f1", "f2", "f3", "f4"]);
    assert_eq!(jobs[1], ["f1"]);
    assert_eq!(jobs[2], ["f1", "f5", "f2", "f2"], "twice is twice");
    for (text, expected) in [
        ("f1::f2", &["f1", "f2"][..]),
        (":f1:", &["f1"]),
        ("f1 : f2", &["f1", "f2"]),
        (r"a\:b:c", &["a:b", "c"]),
        (r"a\\:b", &[r"a\:b"]),
    ] {
        assert_eq!(names(&one(&format!("[x]\nfilename={text}\n"))), expected, "{text}");
    }
    let reported = one("[global]\nfilename=f1\n[x]\nfilename=f2\n");
    assert_eq!(reported.options["filename"], "f1:f2");
}

/// fio 3.33: all other supported keys override earlier values, and `kb_base` counts for settings below its
/// own header and for later sections.
#[test]
fn sections_are_read_as_fio_reads_them() {
    let job = one("[global]\nsize=8k\noffset=8k\n[x]\nio_size=8k\noffset=1k\nkb_base=1000\n");
    assert_eq!((job.size_bytes, job.spec.offset_bytes), (Some(8192), 1000));
    assert_eq!(job.spec.volume, Volume::Bytes(8000));
    let job = one("[global]\nkb_base=1000\n[x]\nio_size=8k\ncpus_allowed=1\ncpus_allowed=2\n");
    assert_eq!(job.spec.volume, Volume::Bytes(8000));
    assert_eq!(job.spec.cpus, Cpus::Shared(vec![2]));
    // A name that begins with `global` is [global]; other spellings are not.
    let jobs = read("[globals]\nbs=8k\n[Global]\n[x]\nname=y\n").unwrap();
    let of = |job: &FioJob| (job.name.clone(), job.spec.io_bytes);
    let jobs: Vec<_> = jobs.iter().map(of).collect();
    assert_eq!(jobs, [("Global".to_owned(), 8192), ("y".to_owned(), 8192)]);
    let marked = one("\u{feff}; a comment\r\n[x] # y\r\niodepth = 4 ; 5\r\n");
    assert_eq!((marked.spec.depth, marked.lines.of(&["iodepth"]), marked.lines.of(&[])), (4, 3, 2));
}

/// fio 3.33: a comma separates reads, writes and trims, as do a colon and a minus; one value is for all,
/// and omitted values stay as they were.
#[test]
fn reads_and_writes_may_have_values_of_their_own() {
    let size = |lines: &str, rw: &str| one(&format!("[x]\n{lines}\nrw={rw}\n")).spec.io_bytes;
    for (lines, read, write) in [
        ("bs=8k", 8192, 8192),
        ("bs=8k,16k", 8192, 16_384),
        ("bs=8k,16k,32k", 8192, 16_384),
        ("bs=,16k", 4096, 16_384),
        ("bs=8k,", 8192, 4096),
        ("bs=8k-16k", 8192, 16_384),
        ("bs=8k:16k", 8192, 16_384),
        ("bs=32k\nbs=8k,", 8192, 32_768),
    ] {
        assert_eq!((size(lines, "read"), size(lines, "randwrite")), (read, write), "{lines}");
    }
    let rate = |line: &str, rw: &str| one(&format!("[x]\n{line}\nrw={rw}\n")).spec.rate_iops;
    assert_eq!(
        (rate("rate_iops=1k,2", "read"), rate("rate_iops=1k,2", "write")),
        (Some(1024), Some(2))
    );
    assert_eq!((rate("rate=,1m", "read"), rate("rate=,1m", "write")), (None, Some(256)));
    assert_eq!(rate("rate_iops=0", "read"), None);
    // fio --name=x --ioengine=null --rw=randrw --rwmixread=70 --rate_iops=...: each has its own limit.
    let mixed = |line: &str| one(&format!("[x]\nrw=randrw\nrwmixread=70\n{line}\n")).spec;
    let of = |spec: JobSpec| (spec.rate_iops, spec.mixed_read_percent);
    assert_eq!(of(mixed("rate_iops=100")), (Some(200), 50));
    assert_eq!(of(mixed("rate_iops=300,100")), (Some(400), 75));
    assert_eq!(of(mixed("rate=1m")), (Some(512), 50));
    assert_eq!(of(mixed("rate_iops=0")), (None, 70));
    assert_eq!(one("[x]\nrw=randrw\nrwmixread=100\nbs=4k,8k\n").spec.io_bytes, 4096);
}

#[test]
fn every_key_has_one_name_and_the_manual_says_it() {
    let manual = include_str!("../../../../docs/manual.md");
    let mut seen = std::collections::BTreeSet::new();
    for key in KEYS {
        for name in std::iter::once(&key.name).chain(key.aliases) {
            assert!(seen.insert(*name), "{name} is there twice");
            assert!(manual.contains(&format!("`{name}`")), "the manual does not name {name}");
        }
        if let Some(why) = key.without_effect {
            let row = format!("| `{}` | {why} |", key.name);
            assert!(manual.contains(&row), "the manual lacks the line {row}");
        }
    }
    for (keys, instead) in REFUSED {
        for key in *keys {
            assert!(seen.insert(*key), "{key} is there twice");
        }
        let keys: Vec<String> = keys.iter().map(|key| format!("`{key}`")).collect();
        let row = format!("| {} | {instead} |", keys.join(", "));
        assert!(manual.contains(&row), "the manual lacks the line {row}");
    }
}

/// A value that the key accepts.
fn value_of(key: &str, number: u64) -> String {
    let pick = |words: &[&str]| {
        let index = usize::try_from(number).unwrap_or(0) % words.len();
        words[index].to_owned()
    };
    match key {
        "rw" => pick(&["read", "write", "randread", "randwrite", "rw", "readwrite", "randrw"]),
        "bs" => pick(&["512", "4k", "128k", "1m", "0x1000"]),
        "runtime" | "ramp_time" => pick(&["1", "10s", "500ms", "2m"]),
        "size" | "io_size" | "offset" => pick(&["1m", "4096", "0x10000", "2g"]),
        "cpus_allowed" => pick(&["0", "1,3,5", "0-7"]),
        "percentile_list" => pick(&["99", "99:99.9:99.99"]),
        _ => (number % 8 + 1).to_string(),
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_with_its_line(text in "(\\[?[a-z_]{0,12}\\]?(=[ -~]{0,12})?\n){0,20}") {
        if let Err(error) = parse("x", &text, &|_| None) {
            prop_assert!(error.line <= text.lines().count());
            prop_assert!(!error.message.is_empty());
        }
    }

    #[test]
    fn any_bytes_are_no_panic(text in "\\PC{0,200}") {
        let _ = parse("x", &text, &|_| Some("1".to_owned()));
    }

    #[test]
    fn spaces_comments_and_order_change_nothing(
        settings in proptest::sample::subsequence(
            vec!["rw", "bs", "iodepth", "numjobs", "runtime", "ramp_time", "size", "offset", "io_size",
                 "cpus_allowed", "percentile_list", "iodepth_batch", "loops", "rate_iops"], 0..14),
        numbers in proptest::collection::vec(any::<u64>(), 14),
        seed in any::<u64>(),
    ) {
        let lines: Vec<(String, String)> = settings.iter().zip(&numbers)
            .map(|(key, &number)| ((*key).to_owned(), value_of(key, number)))
            .collect();
        let plain: String = lines.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
        let mut turned = lines;
        let middle = usize::try_from(seed).unwrap_or(0).checked_rem(turned.len()).unwrap_or(0);
        turned.rotate_left(middle);
        let dressed: String =
            turned.iter().map(|(key, value)| format!("\n# x\n  {key} = {value}  ; [y] bs=1\r\n")).collect();
        let read = |text: String| {
            let job = parse("x", &text, &|_| None).unwrap().remove(0);
            (format!("{:?}", job.spec), job.options, job.size_bytes)
        };
        let expected = read(format!("[job]\n{plain}"));
        prop_assert_eq!(&expected, &read(format!("[job]\n{dressed}")));
        prop_assert_eq!(&expected, &read(format!("[global]\n{plain}[job]\n")));
    }
}
