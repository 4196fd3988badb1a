//! The fio engine: its build against the sources of Debian's fio, and its checks with that fio.

mod relay;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use relay::Relay;
use serde_json::Value;

use crate::capi::{SYSTEM_LIBRARIES, static_library};
use crate::child::{Ended, Task};
use crate::raceline::{Export, Tree};
use crate::setup;
use crate::step::{Checks, Outcome};

/// The version of fio that this engine is built for: engines and fio share structures, so another version
/// needs another build.
const VERSION: &str = "3.33";
/// SHA-256 of its source, from Debian's `fio_3.33-3.dsc`.
const SOURCE_SHA256: &str = "d2410e13e0f379d061d077cc5ae325835bb7c6186aa7bafc1df954cbc9b014fc";
/// Where the source is in a Debian archive.
const SOURCE_PATH: &str = "pool/main/f/fio/fio_3.33.orig.tar.gz";
/// Debian's configuration, without options that only add engines and the graphical front end.
const CONFIGURE: [&str; 2] = ["--disable-native", "--prefix=/usr"];
/// The program with which apt downloads.
const APT_HELPER: &str = "/usr/lib/apt/apt-helper";
/// Options of the compiler; fio's headers count as system headers, without warnings.
const FLAGS: [&str; 12] = [
    "-std=gnu11",
    "-O2",
    "-g",
    "-fPIC",
    "-shared",
    "-D_GNU_SOURCE",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused-parameter",
    "-Wno-missing-field-initializers",
    "-Wno-sign-compare",
];
/// Time for one run of fio, in seconds.
const RUN_LIMIT_S: u64 = 60;
/// Time within which fio must end after a target has died and is given up.
const DEATH_LIMIT: Duration = Duration::from_secs(20);
/// What goes over the first path before it is cut, and how long that may take.
const CUT_AFTER_BYTES: u64 = 1 << 20;
const CUT_LIMIT: Duration = Duration::from_secs(30);

/// Builds the engine; the inner error says why this machine cannot, which is not a failure.
pub(crate) fn build(tree: &Tree) -> Result<Result<PathBuf, String>> {
    if let Some(missing) = setup::missing_for("fio-engine") {
        return Ok(Err(missing));
    }
    let source = match source(tree)? {
        Ok(source) => source,
        Err(why) => return Ok(Err(why)),
    };
    let archive = static_library(tree)?;
    let engine = tree.target.join("release/libraceline_fio.so");
    Task::new("cc")
        .args(FLAGS)
        .args(["-isystem"])
        .args([&source])
        .args(["-I"])
        .args([tree.root.join("crates/capi/include")])
        .args([tree.root.join("fio/engine.c"), archive])
        // fio looks only for the engine's own name; a library that has had a thread must stay loaded.
        .args(["-Wl,--exclude-libs,ALL", "-Wl,-z,nodelete", "-Wl,--gc-sections"])
        .args(SYSTEM_LIBRARIES)
        .args(["-o"])
        .args([&engine])
        .limit(120)
        .check()?;
    Ok(Ok(engine))
}

/// The verb: builds the engine and says how to use it.
pub(crate) fn build_and_tell(tree: &Tree) -> Result<Outcome> {
    match build(tree)? {
        Ok(engine) => {
            println!(
                "Built. For example:\n\n    fio --name=try --ioengine=external:{} --thread \\",
                engine.display()
            );
            println!("        --traddr=127.0.0.1 --nqn=NQN --rw=randread --bs=4k --iodepth=32\n");
            Ok(Outcome::Passed(engine.display().to_string()))
        }
        Err(why) => setup::cannot(&why),
    }
}

/// A part of `cargo xtask setup`: the headers that the engine is built with.
pub(crate) fn prepare(tree: &Tree) -> Result<Outcome> {
    if let Some(missing) = setup::missing_for("fio-engine") {
        return setup::cannot(&missing);
    }
    match source(tree)? {
        Ok(source) => Ok(Outcome::Passed(format!("fio {VERSION}: {}", source.display()))),
        Err(why) => setup::cannot(&why),
    }
}

/// The configured source of fio, downloaded once through the machine's apt.
fn source(tree: &Tree) -> Result<Result<PathBuf, String>> {
    let folder = tree.target.join("xtask/fio-source");
    let source = folder.join(format!("fio-{VERSION}"));
    if source.join("config-host.h").is_file() {
        return Ok(Ok(source));
    }
    if !Path::new(APT_HELPER).exists() {
        return Ok(Err("no apt here: the source of Debian's fio cannot be fetched".to_owned()));
    }
    std::fs::create_dir_all(&folder)?;
    let tarball = folder.join("fio.tar.gz");
    let mirrors = Task::new("apt-get")
        .args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"])
        .limit(60)
        .check()?;
    let mut tried = Vec::new();
    for mirror in mirrors.stdout.lines().filter(|line| line.contains("debian")) {
        if tried.contains(&mirror) {
            continue;
        }
        tried.push(mirror);
        let uri = format!("{}/{SOURCE_PATH}", mirror.trim_end_matches('/'));
        let ended = Task::new(APT_HELPER)
            .args(["download-file", &uri])
            .args([&tarball])
            .args([format!("SHA256:{SOURCE_SHA256}")])
            .limit(120)
            .run()?;
        if ended.success() {
            return configure(&folder, &tarball, source).map(Ok);
        }
    }
    Ok(Err(format!("the source of Debian's fio {VERSION} cannot be fetched from {tried:?}")))
}

fn configure(folder: &Path, tarball: &Path, source: PathBuf) -> Result<PathBuf> {
    Task::new("tar").args(["xzf"]).args([tarball]).dir(folder).limit(60).check()?;
    Task::new(source.join("configure")).args(CONFIGURE).dir(&source).limit(300).check()?;
    ensure!(source.join("config-host.h").is_file(), "fio's configure left no config-host.h");
    Ok(source)
}

/// The step: Debian's fio over our engine.
pub(crate) fn run(tree: &Tree) -> Result<Outcome> {
    let engine = match build(tree)? {
        Ok(engine) => engine,
        Err(why) => return setup::cannot(&why),
    };
    let version = Task::new("fio").args(["--version"]).limit(20).check()?;
    if version.stdout.trim() != format!("fio-{VERSION}") {
        let is = version.stdout.trim().to_owned();
        return setup::cannot(&format!("the engine is for fio {VERSION}, and this is {is}"));
    }
    let mut checks = Checks::default();
    let target = Export::start(tree, &["ram:256M", "ram:64M,bs=4096"])?;
    let bench = Bench { tree, engine, target, scratch: tree.scratch("fio")? };
    jobs(&bench, &mut checks);
    refusals(&bench, &mut checks);
    paths(&bench, &mut checks);
    let Bench { tree, engine, target, .. } = bench;
    checks.run("healthy", || target.stop("TERM"));
    checks.run("target-dies", || target_dies(tree, &engine));
    checks.outcome()
}

struct Bench<'a> {
    tree: &'a Tree,
    engine: PathBuf,
    target: Export,
    scratch: PathBuf,
}

impl Bench<'_> {
    /// fio on one of our job files.
    fn job(&self, name: &str, rest: &[&str]) -> Task {
        let file = self.tree.root.join("fio/jobs").join(name);
        self.fio(rest).args([file])
    }

    /// fio with the words of a job.
    fn words(&self, rest: &[&str]) -> Task {
        let address = ["--thread", "--traddr=127.0.0.1"].map(str::to_owned);
        let of_target =
            [format!("--trsvcid={}", self.target.port), format!("--nqn={}", self.target.nqn)];
        let engine = format!("--ioengine=external:{}", self.engine.display());
        self.fio(&[]).args(["--name=words", &engine]).args(address).args(of_target).args(rest)
    }

    fn fio(&self, rest: &[&str]) -> Task {
        Task::new("fio")
            // fio writes the state of interrupted verification into its working folder.
            .dir(&self.scratch)
            .args(["--output-format=json"])
            .args(rest)
            .env("ENGINE", &self.engine)
            .env("TRADDR", "127.0.0.1")
            .env("TRSVCID", self.target.port.to_string())
            .env("NQN", &self.target.nqn)
            .env("RUNTIME", "2")
            .env("RAMP", "0")
            .limit(RUN_LIMIT_S)
    }
}

/// The jobs in the report of a run, which must have succeeded.
fn report(task: Task) -> Result<Vec<Value>> {
    report_of(&task.check()?)
}

fn report_of(ended: &Ended) -> Result<Vec<Value>> {
    let start = ended.stdout.find('{').context("fio printed no report")?;
    let report: Value = serde_json::from_str(&ended.stdout[start..])
        .with_context(|| format!("fio's report:\n{}", ended.tail(10)))?;
    let jobs = report["jobs"].as_array().context("no jobs in fio's report")?.clone();
    for job in &jobs {
        ensure!(job["error"] == 0, "job {} ended with error {}", job["jobname"], job["error"]);
    }
    Ok(jobs)
}

/// How many operations of a kind a job has done.
fn total(job: &Value, kind: &str) -> u64 {
    job[kind]["total_ios"].as_u64().unwrap_or(0)
}

fn jobs(bench: &Bench<'_>, checks: &mut Checks) {
    checks.run("verify", || {
        let jobs = report(bench.job("verify.fio", &[]))?;
        let both = [total(&jobs[0], "write"), total(&jobs[0], "read")];
        ensure!(both == [16_384, 16_384], "{both:?} writes and reads, not 16384 of each");
        Ok(())
    });
    for (name, rest) in [
        ("verify-thread", &["--thread", "--bs=16k", "--hdr_digest=1", "--data_digest=1"][..]),
        ("verify-large", &["--thread", "--bs=1m", "--iodepth=8", "--nr_write_queues=1"]),
        ("verify-batch", &["--thread", "--iodepth_batch=8", "--iodepth_batch_complete_min=4"]),
        ("verify-poll-i10", &["--thread", "--poll=1", "--nr_poll_queues=1", "--i10=1"]),
        ("verify-4096", &["--filename=nsid=2", "--size=32m"]),
        ("verify-two", &["--thread", "--filename=nsid=1:nsid=2", "--size=32m"]),
    ] {
        checks.run(name, || {
            let base = ["--rw=randwrite", "--bs=4k", "--size=64m", "--iodepth=32"];
            let verify = ["--verify=crc32c", "--verify_fatal=1", "--do_verify=1"];
            let jobs = report(bench.words(&base).args(verify).args(rest.iter().copied()))?;
            ensure!(total(&jobs[0], "read") > 0, "nothing was verified");
            Ok(())
        });
    }
    checks.run("processes", || {
        let rest = ["--thread=0", "--numjobs=3", "--rw=randrw", "--bs=4k", "--iodepth=8"];
        let jobs = report(bench.words(&rest).args(["--size=16m", "--fsync=64"]))?;
        ensure!(jobs.len() == 3, "{} jobs, not 3", jobs.len());
        Ok(())
    });
    checks.run("trim", || {
        let rest = ["--rw=randtrim", "--bs=64k", "--size=16m", "--iodepth=4"];
        let jobs = report(bench.words(&rest))?;
        ensure!(total(&jobs[0], "trim") == 256, "{} trims, not 256", total(&jobs[0], "trim"));
        Ok(())
    });
    for name in ["adq.fio", "digest.fio", "latency.fio", "queue-maps.fio", "precondition.fio"] {
        checks.run(name, || {
            let jobs = report(bench.job(name, &[]))?;
            let idle = |job: &&Value| total(job, "read") + total(job, "write") == 0;
            ensure!(jobs.iter().find(idle).is_none(), "a job did nothing");
            Ok(())
        });
    }
}

/// A user's mistakes are reported by name.
fn refusals(bench: &Bench<'_>, checks: &mut Checks) {
    let cases: [(&str, &[&str], &str); 13] = [
        ("wrong-nqn", &["--nqn=nqn.2026-01.io.raceline:wrong"], "(subsystem NQN)"),
        ("wrong-port", &["--trsvcid=1"], "nothing listens there"),
        ("wrong-name", &["--traddr=no-such-name.invalid"], "cannot find the address"),
        ("wrong-nsid", &["--nsid=9"], "has no namespace 9; it has: 1, 2"),
        ("wrong-bs", &["--bs=1000"], "no multiple of the block size, 512"),
        ("wrong-file", &["--filename=traddr=127.0.0.1 color=red"], "color is unknown"),
        ("wrong-path", &["--path=127.0.0.1:x"], "has no port that is one"),
        ("wrong-policy", &["--policy=best"], "`best` is no policy"),
        ("wrong-time", &["--fast_io_fail_tmo=soon"], "no number of seconds"),
        ("wrong-transport", &["--trtype=FC"], "it has tcp and rdma"),
        ("wrong-transport-of-file", &["--filename=trtype=FC"], "this engine has TCP and RDMA"),
        // No adapter has the address of loopback, where there are adapters and libraries for them.
        ("rdma-without-adapter", &["--filename=trtype=RDMA"], "cannot connect to 127.0.0.1"),
        ("rdma-with-digests", &["--trtype=rdma", "--hdr_digest=1"], "RDMA has no digests"),
    ];
    for (name, rest, words) in cases {
        checks.run(name, || {
            let base = ["--rw=read", "--bs=4k", "--size=1m"];
            let ended = bench.words(&base).args(rest.iter().copied()).run()?;
            fails_with(&ended, words)
        });
    }
}

/// Two paths, the first of which is cut while fio writes and verifies: fio notices nothing.
fn paths(bench: &Bench<'_>, checks: &mut Checks) {
    for policy in ["active-passive", "round-robin", "queue-depth", "numa"] {
        checks.run(&format!("paths-{policy}"), || {
            let relay = Relay::start(bench.target.port)?;
            let both = [
                format!("--trsvcid={}", relay.port),
                format!("--path=127.0.0.1:{}", bench.target.port),
                format!("--policy={policy}"),
            ];
            let rest = ["--rw=randrw", "--bs=4k", "--size=32m", "--iodepth=16", "--time_based"];
            let verify =
                ["--runtime=8", "--verify=crc32c", "--verify_fatal=1", "--verify_backlog=512"];
            let running = bench.words(&rest).args(verify).args(both).start()?;
            let deadline = Instant::now() + CUT_LIMIT;
            while relay.bytes() < CUT_AFTER_BYTES {
                ensure!(Instant::now() < deadline, "{} bytes by the first path", relay.bytes());
                std::thread::sleep(Duration::from_millis(20));
            }
            relay.cut();
            let passed = relay.bytes();
            let ended = running.wait()?;
            ensure!(ended.success(), "fio has failed:\n{}", ended.tail(12));
            let jobs = report_of(&ended)?;
            let moved = 4096 * (total(&jobs[0], "read") + total(&jobs[0], "write"));
            ensure!(
                moved > 2 * passed,
                "{moved} bytes, of which {passed} by the path that was cut"
            );
            Ok(())
        });
    }
}

fn fails_with(ended: &Ended, words: &str) -> Result<()> {
    ensure!(!ended.success(), "fio ends as if all were well");
    ensure!(ended.output.contains(words), "no \"{words}\" in:\n{}", ended.tail(12));
    Ok(())
}

/// A target that is killed under fio gives an error that says so, within [`DEATH_LIMIT`].
fn target_dies(tree: &Tree, engine: &Path) -> Result<()> {
    let target = Export::start(tree, &["ram:64M"])?;
    let scratch = tree.scratch("fio-dies")?;
    let mut bench = Bench { tree, engine: engine.to_owned(), target, scratch };
    let rest = ["--rw=randrw", "--bs=4k", "--iodepth=16", "--time_based", "--runtime=50"];
    let running = bench.words(&rest).args(["--ctrl_loss_tmo=1"]).start()?;
    std::thread::sleep(Duration::from_secs(2));
    bench.target.kill();
    let killed = Instant::now();
    let ended = running.wait()?;
    ensure!(killed.elapsed() < DEATH_LIMIT, "fio ended {:?} after the target", killed.elapsed());
    fails_with(&ended, "the connection was lost")
}
