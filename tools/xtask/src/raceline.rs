//! The built `raceline` program: its path, its verbs, and a running target.

use std::cell::{Cell, OnceCell, RefCell};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::child::{Ended, Running, Task, has_program, tail};

/// Time for a release build with empty caches on two cores, in seconds.
const BUILD_LIMIT_S: u64 = 1800;
/// The packages whose programs the steps of `cargo xtask test` run.
const PROGRAMS: [&str; 3] = ["raceline", "cost", "sim"];
/// What makes the program static. getrandom has to call the C library, where it would look for it, in vain.
const STATIC_FLAGS: [&str; 2] =
    ["-Ctarget-feature=+crt-static", "--cfg=getrandom_backend=\"linux_getrandom\""];
/// Time from the start of a target to its ready line, in seconds.
const READY_LIMIT_S: u64 = 20;
/// Time from SIGTERM to the end of a target, in seconds.
const STOP_LIMIT: Duration = Duration::from_secs(15);
/// The longest that a target may run under a test, in seconds.
const EXPORT_LIMIT_S: u64 = 1800;

/// The repository and what is built from it.
pub(crate) struct Tree {
    /// The repository's root.
    pub(crate) root: PathBuf,
    /// Where build results go; test files go into `xtask` in it.
    pub(crate) target: PathBuf,
    binary: OnceCell<PathBuf>,
    /// Whether the release builds of all programs are made at once, and whether that was done.
    together: Cell<Together>,
    /// That build, while it runs in what other work leaves of the processors.
    beneath: RefCell<Option<Running>>,
}

/// How the release builds of [`PROGRAMS`] are made.
#[derive(Clone, Copy)]
enum Together {
    /// Each alone, when it is wanted.
    No,
    /// All of them when the first is wanted.
    Wanted,
    Done,
}

impl Tree {
    /// Finds the repository from where this crate lies.
    pub(crate) fn find() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        Self::at(&root).context("the repository of this xtask is gone")
    }

    /// The repository in a folder.
    pub(crate) fn at(root: &Path) -> Result<Self> {
        let root = root.canonicalize().with_context(|| root.display().to_string())?;
        let target = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(dir) => root.join(dir),
            None => root.join("target"),
        };
        let together = Cell::new(Together::No);
        Ok(Self { root, target, binary: OnceCell::new(), together, beneath: RefCell::default() })
    }

    /// A folder for the files of one test, empty.
    pub(crate) fn scratch(&self, name: &str) -> Result<PathBuf> {
        let dir = self.target.join("xtask").join(name);
        if dir.exists() {
            std::fs::remove_dir_all(&dir)?;
        }
        std::fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    /// Lets one call of cargo make the release builds of all programs. A call for each would choose the features of shared
    /// crates anew, and so compile most of them again; the program `raceline` is the same either way.
    pub(crate) fn build_together(&self) {
        self.together.set(Together::Wanted);
    }

    /// Begins the build of [`Tree::build_together`] in what other work leaves of the processors, where that build is wanted.
    /// [`Tree::program`] waits for its end.
    pub(crate) fn begin_beneath(&self) -> Result<()> {
        if !matches!(self.together.get(), Together::Wanted) || !has_program("chrt") {
            return Ok(());
        }
        let task = Task::new("chrt").args(["--idle", "0", "cargo"]).args(build_words(&PROGRAMS));
        let running = task.dir(&self.root).limit(BUILD_LIMIT_S).start()?;
        *self.beneath.borrow_mut() = Some(running);
        Ok(())
    }

    /// The release build of the program of a package of the same name.
    pub(crate) fn program(&self, package: &str) -> Result<PathBuf> {
        if let Some(running) = self.beneath.take() {
            running.schedule_as_usual()?;
            running.wait()?.checked("cargo build --release")?;
        }
        let alone = [package];
        let packages = match self.together.get() {
            Together::No => &alone[..],
            Together::Wanted => &PROGRAMS[..],
            Together::Done => &[],
        };
        if !packages.is_empty() {
            let args = build_words(packages);
            Task::new("cargo").args(args).dir(&self.root).limit(BUILD_LIMIT_S).echo().check()?;
            if matches!(self.together.get(), Together::Wanted) {
                self.together.set(Together::Done);
            }
        }
        let program = self.target.join("release").join(package);
        ensure!(program.is_file(), "the build left no {}", program.display());
        Ok(program)
    }

    /// The release build of `raceline`, built once.
    pub(crate) fn binary(&self) -> Result<&Path> {
        if let Some(binary) = self.binary.get() {
            return Ok(binary);
        }
        let binary = self.program("raceline")?;
        Ok(self.binary.get_or_init(|| binary))
    }

    /// The release build of `raceline` as a static program. Naming the target keeps the flags from what runs in the build, and
    /// a folder of its own keeps it from other builds.
    pub(crate) fn static_program(&self) -> Result<PathBuf> {
        let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let folder = self.target.join("static");
        let words = ["--target", &target, "--target-dir"].map(str::to_owned);
        Task::new("cargo")
            .args(build_words(&["raceline"]))
            .args(words)
            .args([&folder])
            .env("CARGO_ENCODED_RUSTFLAGS", STATIC_FLAGS.join("\u{1f}"))
            .dir(&self.root)
            .limit(BUILD_LIMIT_S)
            .echo()
            .check()?;
        let program = folder.join(target).join("release/raceline");
        ensure!(program.is_file(), "the build left no {}", program.display());
        Ok(program)
    }

    /// An example of any package, built for development with the features that the unit tests have, so that these and the
    /// example share every crate.
    pub(crate) fn example(&self, name: &str) -> Result<PathBuf> {
        let args = ["build", "--quiet", "--workspace", "--locked", "--example", name];
        Task::new("cargo").args(args).dir(&self.root).limit(BUILD_LIMIT_S).echo().check()?;
        let program = self.target.join("debug/examples").join(name);
        ensure!(program.is_file(), "the build left no {}", program.display());
        Ok(program)
    }

    /// A verb of `raceline`, to be run.
    pub(crate) fn raceline<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Result<Task> {
        Ok(Task::new(self.binary()?).args(args))
    }
}

/// The words that let cargo make the release builds of packages.
fn build_words<'a>(packages: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    let packages = packages.iter().flat_map(|package| ["--package", package]);
    ["build", "--quiet", "--release", "--locked"].into_iter().chain(packages)
}

/// A running `raceline export`.
pub(crate) struct Export {
    running: Running,
    arguments: Vec<String>,
    binary: PathBuf,
    /// NQN of the subsystem.
    pub(crate) nqn: String,
    /// Port of the first listener.
    pub(crate) port: u16,
    /// The ready line.
    pub(crate) ready: Value,
}

impl Export {
    /// Starts a target on a free port of 127.0.0.1; `arguments` begin with the devices.
    pub(crate) fn start(tree: &Tree, arguments: &[&str]) -> Result<Self> {
        let mut all: Vec<String> = vec!["export".to_owned()];
        all.extend(arguments.iter().map(|&word| word.to_owned()));
        if !arguments.contains(&"-l") {
            all.extend(["-l".to_owned(), "127.0.0.1:0".to_owned()]);
        }
        Self::launch(tree.binary()?, all)
    }

    fn launch(binary: &Path, arguments: Vec<String>) -> Result<Self> {
        let mut running = Task::new(binary).args(&arguments).limit(EXPORT_LIMIT_S).start()?;
        let line = running
            .wait_for("\"ready\"", READY_LIMIT_S)
            .with_context(|| format!("raceline {}", arguments.join(" ")))?;
        let ready: Value =
            serde_json::from_str(&line).with_context(|| format!("the ready line: {line}"))?;
        let nqn = ready["nqn"].as_str().context("no nqn in the ready line")?.to_owned();
        let listener = ready["listeners"][0].as_str().context("no listener in the ready line")?;
        let port = listener.rsplit(':').next().unwrap_or("").parse();
        let port = port.with_context(|| format!("the port of listener {listener}"))?;
        Ok(Self { running, arguments, binary: binary.to_owned(), nqn, port, ready })
    }

    /// Process id of the target.
    pub(crate) fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Arguments with which a host verb finds this target.
    pub(crate) fn address(&self) -> Vec<String> {
        let port = self.port.to_string();
        ["-a", "127.0.0.1", "-s", &port, "-n", &self.nqn].map(str::to_owned).to_vec()
    }

    /// Kills the target without warning.
    pub(crate) fn kill(&mut self) {
        self.running.kill();
    }

    /// Starts a killed target again, with the same arguments on the same port.
    pub(crate) fn restart(&mut self) -> Result<()> {
        let mut arguments = self.arguments.clone();
        let listen = format!("127.0.0.1:{}", self.port);
        let at = arguments.iter().position(|word| word == "-l").context("no -l")?;
        arguments[at + 1] = listen;
        *self = Self::launch(&self.binary, arguments)?;
        Ok(())
    }

    /// An error if the target has ended or panicked.
    pub(crate) fn healthy(&mut self) -> Result<()> {
        self.running.drain();
        let output = self.running.output();
        ensure!(!output.contains("panicked at"), "the target panicked:\n{}", tail(output, 15));
        if !self.running.alive() {
            bail!("the target has ended:\n{}", tail(self.running.output(), 15));
        }
        Ok(())
    }

    /// Ends the target by a signal; it must end by itself, with exit code 0.
    pub(crate) fn stop(mut self, signal: &str) -> Result<()> {
        self.healthy()?;
        self.running.signal(signal);
        let end = Instant::now() + STOP_LIMIT;
        while self.running.alive() {
            ensure!(Instant::now() < end, "still runs {STOP_LIMIT:?} after SIG{signal}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let ended = self.running.wait()?;
        ensure!(ended.success(), "after SIG{signal}: {}\n{}", ended.why(), ended.tail(10));
        Ok(())
    }
}

/// Runs a host verb against a target; exit code 0 is required.
pub(crate) fn host(tree: &Tree, verb: &str, address: &[String], rest: &[&str]) -> Result<Ended> {
    let words = address.iter().map(String::as_str).chain(rest.iter().copied());
    tree.raceline(std::iter::once(verb).chain(words))?
        .limit(90)
        .check()
        .with_context(|| format!("raceline {verb} {}", rest.join(" ")))
}

/// A short verifying `raceline perf`; returns its first job's JSON.
pub(crate) fn perf_job(tree: &Tree, address: &[String], rest: &[&str]) -> Result<Value> {
    let mut words = vec!["-o", "json"];
    words.extend(rest);
    let ended = host(tree, "perf", address, &words)?;
    let report: Value = serde_json::from_str(&ended.stdout)
        .with_context(|| format!("perf's output is not JSON:\n{}", ended.tail(10)))?;
    let job = report["jobs"].get(0).context("no jobs in perf's output")?;
    Ok(job.clone())
}

/// How many I/Os of either kind a perf job did per second.
pub(crate) fn iops(job: &Value) -> f64 {
    let of = |kind: &str| job[kind]["iops"].as_f64().unwrap_or(0.0);
    of("read") + of("write")
}
