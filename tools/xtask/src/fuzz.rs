//! `cargo xtask fuzz`: the libFuzzer targets of the `fuzz` crate, each for a bounded time.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::child::{Ended, Task, has_program};
use crate::raceline::Tree;
use crate::step::{Checks, Outcome};

/// Time to build all targets, in seconds.
const BUILD_LIMIT_S: u64 = 1800;
/// How many targets run at the same time.
const AT_A_TIME: usize = 2;
/// The leaks that LeakSanitizer must ignore, with reasons.
const LEAKS_FILE: &str = "leaks.txt";
/// Time for one input, in seconds. Each takes milliseconds, but a virtual machine may stand still for longer than 10 s.
const INPUT_LIMIT_S: u64 = 60;
/// Memory limit of a fuzz target, in MiB.
const MEMORY_MIB: u32 = 2048;
/// The machine that targets are built for. It is named so that cargo does not give [`FLAGS`] to build scripts.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// The flags of rustc: counters of edges and comparisons, AddressSanitizer, and all assertions.
const FLAGS: [&str; 10] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-sanitizer-coverage-stack-depth",
    "-Cdebug-assertions",
    "-Zsanitizer=address",
    "--cfg",
    "fuzzing",
];

/// The names of the targets, from their files.
fn targets(fuzz: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(fuzz.join("fuzz_targets"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs")
            && let Some(name) = path.file_stem()
        {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The reason why fuzz targets cannot be built here, if there is one.
fn missing() -> Result<Option<&'static str>> {
    if !Task::new("cargo").args(["+nightly", "--version"]).run()?.success() {
        return Ok(Some("no nightly toolchain (rustup toolchain install nightly)"));
    }
    if !has_program("c++") && !has_program("clang++") {
        return Ok(Some("no C++ compiler for libFuzzer (package g++)"));
    }
    Ok(None)
}

/// How the targets are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Build {
    /// Made to run fast.
    Fast,
    /// Made to be compiled fast: for runs so short that the build takes most of their time.
    Short,
}

impl Build {
    /// The values of the profile that differ from those in `fuzz/Cargo.toml`.
    fn profile(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Fast => &[],
            Self::Short => {
                &[("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"), ("CARGO_PROFILE_RELEASE_DEBUG", "0")]
            }
        }
    }
}

/// Builds all targets, or one, with the coverage that libFuzzer reads, and gives the folder of the programs.
///
/// [`FLAGS`] are those of `cargo fuzz`, but for one that keeps code which no target calls. The program `cargo-fuzz` is not
/// used, because a machine that lacks it would first have to compile it.
fn compile(fuzz: &Path, only: Option<&str>, build: Build) -> Result<PathBuf> {
    let folder = fuzz.join("target");
    // Guests may run beside it, and wait for time of a processor.
    let mut task = Task::new("nice").args(["-n", "10", "cargo", "+nightly", "build", "--quiet"]);
    task = task.args(["--release", "--locked", "--target", TARGET, "--target-dir"]).args([&folder]);
    task = match only {
        Some(name) => task.args(["--bin", name]),
        None => task.args(["--bins"]),
    };
    for (key, value) in build.profile() {
        task = task.env(key, value);
    }
    task.env("RUSTFLAGS", FLAGS.join(" ")).dir(fuzz).limit(BUILD_LIMIT_S).echo().check()?;
    Ok(folder.join(TARGET).join("release"))
}

/// The names of all targets, or the one name if there is such a target.
fn chosen(fuzz: &Path, only: Option<&str>) -> Result<Vec<String>> {
    let names = targets(fuzz)?;
    let Some(only) = only else { return Ok(names) };
    ensure!(names.iter().any(|name| name == only), "no target {only}, but: {}", names.join(", "));
    Ok(vec![only.to_owned()])
}

/// Runs every target, or the one named, for `seconds` each.
pub(crate) fn run(tree: &Tree, only: Option<&str>, seconds: u64, build: Build) -> Result<Outcome> {
    let fuzz = tree.root.join("fuzz");
    let names = chosen(&fuzz, only)?;
    if let Some(why) = missing()? {
        return Ok(Outcome::Skipped(why.to_owned()));
    }
    println!("building {} targets", names.len());
    let programs = compile(&fuzz, only, build)?;
    let mut checks = Checks::default();
    for group in names.chunks(AT_A_TIME) {
        let running: Vec<_> = group
            .iter()
            .map(|name| Ok((name, start(tree, &programs, name, seconds)?.start()?)))
            .collect::<Result<_>>()?;
        for (name, running) in running {
            let ended = running.wait()?;
            checks.run(name, || judge(name, &ended));
        }
    }
    checks.outcome()
}

/// Runs a target once with the input in a file.
pub(crate) fn repeat(tree: &Tree, name: &str, input: &Path) -> Result<Outcome> {
    let fuzz = tree.root.join("fuzz");
    chosen(&fuzz, Some(name))?;
    let input = input.canonicalize().with_context(|| format!("the file {}", input.display()))?;
    if let Some(why) = missing()? {
        return Ok(Outcome::Skipped(why.to_owned()));
    }
    let programs = compile(&fuzz, Some(name), Build::Fast)?;
    let ended =
        program(tree, &programs, name).args([input]).limit(INPUT_LIMIT_S + 240).echo().run()?;
    ensure!(ended.success(), "{}; {}", ended.why(), what_libfuzzer_said(&ended.output));
    Ok(Outcome::Passed("the input does no harm".to_owned()))
}

/// A built target, with its limits.
fn program(tree: &Tree, programs: &Path, name: &str) -> Task {
    let leaks = tree.root.join("fuzz").join(LEAKS_FILE);
    Task::new(programs.join(name))
        .args([format!("-rss_limit_mb={MEMORY_MIB}"), format!("-timeout={INPUT_LIMIT_S}")])
        .env("ASAN_OPTIONS", "detect_odr_violation=0")
        .env("LSAN_OPTIONS", format!("suppressions={}", leaks.display()))
        .dir(&tree.root)
}

/// One target; new inputs go into the build results, and the checked-in corpus stays as it is.
fn start(tree: &Tree, programs: &Path, name: &str, seconds: u64) -> Result<Task> {
    let corpus = tree.target.join("fuzz-corpus").join(name);
    let artifacts = tree.root.join("fuzz/artifacts").join(name);
    std::fs::create_dir_all(&corpus)?;
    std::fs::create_dir_all(&artifacts)?;
    let mut folders: Vec<PathBuf> = vec![corpus];
    let checked_in = tree.root.join("fuzz/corpus").join(name);
    folders.extend(Some(checked_in).filter(|folder| folder.is_dir()));
    Ok(program(tree, programs, name)
        .args([format!("-artifact_prefix={}/", artifacts.display())])
        .args([format!("-max_total_time={seconds}"), "-print_final_stats=1".to_owned()])
        .args(folders)
        .limit(seconds + 240))
}

fn judge(name: &str, ended: &Ended) -> Result<()> {
    if !ended.success() {
        let said = what_libfuzzer_said(&ended.output);
        bail!(
            "{}; {said}; to repeat it, cargo xtask fuzz {name} --repeat FILE, with the file named below\n{}",
            ended.why(),
            ended.tail(30)
        );
    }
    let runs =
        ended.output.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    println!("# {} inputs", runs.unwrap_or("?").trim());
    Ok(())
}

/// The line that tells most of why a target failed: where it panicked and with what words, or the sanitizer's summary.
fn what_libfuzzer_said(output: &str) -> String {
    let lines: Vec<&str> = output.lines().map(str::trim).collect();
    if let Some(at) = lines.iter().position(|line| line.contains("panicked at ")) {
        return lines[at..].iter().take(2).copied().collect::<Vec<_>>().join(" ");
    }
    let summary = ["SUMMARY: ", "ERROR: "]
        .iter()
        .find_map(|word| lines.iter().rev().find(|line| line.contains(word)));
    summary.copied().unwrap_or("no word of libFuzzer").to_owned()
}

#[cfg(test)]
mod tests {
    use super::what_libfuzzer_said;

    #[test]
    fn a_panic_says_more_than_the_summary() {
        let panic = "#1 NEW\nthread '<unnamed>' (7) panicked at src/tls.rs:9:5:\nit stays failed\nstack\n\
                     ==7== ERROR: libFuzzer: deadly signal\nSUMMARY: libFuzzer: deadly signal\n";
        let said = what_libfuzzer_said(panic);
        assert_eq!(said, "thread '<unnamed>' (7) panicked at src/tls.rs:9:5: it stays failed");
        let slow = "ALARM: 61 s\n==7== ERROR: libFuzzer: timeout\nSUMMARY: libFuzzer: timeout\n";
        assert_eq!(what_libfuzzer_said(slow), "SUMMARY: libFuzzer: timeout");
        assert_eq!(what_libfuzzer_said("killed"), "no word of libFuzzer");
    }
}
