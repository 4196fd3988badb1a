//! `cargo xtask fuzz`: the libFuzzer targets of the `fuzz` crate, each for a bounded time.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};

use crate::child::{Ended, Task, has_program};
use crate::raceline::Tree;
use crate::step::{Checks, Outcome};

/// Time to install cargo-fuzz, and to build all targets, in seconds.
const BUILD_LIMIT_S: u64 = 1800;
/// How many targets run at the same time.
const AT_A_TIME: usize = 2;
/// The leaks that LeakSanitizer must ignore, with reasons.
const LEAKS_FILE: &str = "leaks.txt";
/// Time for one input, in seconds. Each takes milliseconds, but a virtual machine may stand still for longer than 10 s.
const INPUT_LIMIT_S: u32 = 60;
/// Memory limit of a fuzz target, in MiB.
const MEMORY_MIB: u32 = 2048;

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

/// Makes `cargo +nightly fuzz` work, or says why it does not.
fn tools() -> Result<Option<String>> {
    let nightly = Task::new("cargo").args(["+nightly", "--version"]).run()?;
    if !nightly.success() {
        return Ok(Some("no nightly toolchain (rustup toolchain install nightly)".to_owned()));
    }
    if !has_program("c++") && !has_program("clang++") {
        return Ok(Some("no C++ compiler for libFuzzer (package g++)".to_owned()));
    }
    if Task::new("cargo").args(["fuzz", "--version"]).run()?.success() {
        return Ok(None);
    }
    println!("installing cargo-fuzz");
    let args = ["install", "--quiet", "--locked", "cargo-fuzz"];
    let ended = Task::new("cargo").args(args).limit(BUILD_LIMIT_S).run()?;
    if !ended.success() {
        println!("{}", ended.tail(15));
        return Ok(Some(format!("cargo install cargo-fuzz: {}", ended.why())));
    }
    Ok(None)
}

/// Runs every target, or the one named, for `seconds` each.
pub(crate) fn run(tree: &Tree, only: Option<&str>, seconds: u64) -> Result<Outcome> {
    let fuzz = tree.root.join("fuzz");
    if !fuzz.join("fuzz_targets").is_dir() {
        return Ok(Outcome::Skipped("there is no fuzz crate".to_owned()));
    }
    let mut names = targets(&fuzz)?;
    if let Some(only) = only {
        ensure!(
            names.iter().any(|name| name == only),
            "no target {only}, but: {}",
            names.join(", ")
        );
        names = vec![only.to_owned()];
    }
    if let Some(why) = tools()? {
        return Ok(Outcome::Skipped(why));
    }
    println!("building {} targets", names.len());
    // Guests may run beside it, and wait for time of a processor.
    let mut build = vec!["-n", "10", "cargo", "+nightly", "fuzz", "build"];
    build.extend(only);
    Task::new("nice").args(build).dir(&tree.root).limit(BUILD_LIMIT_S).check()?;
    let mut checks = Checks::default();
    for group in names.chunks(AT_A_TIME) {
        let running: Vec<_> = group
            .iter()
            .map(|name| Ok((name, start(tree, &fuzz, name, seconds)?.start()?)))
            .collect::<Result<_>>()?;
        for (name, running) in running {
            let ended = running.wait()?;
            checks.run(name, || judge(&ended));
        }
    }
    checks.outcome()
}

/// One target; new inputs go into the build results, and the checked-in corpus stays as it is.
fn start(tree: &Tree, fuzz: &Path, name: &str, seconds: u64) -> Result<Task> {
    let corpus = tree.target.join("fuzz-corpus").join(name);
    let artifacts = fuzz.join("artifacts").join(name);
    std::fs::create_dir_all(&corpus)?;
    std::fs::create_dir_all(&artifacts)?;
    let mut folders: Vec<PathBuf> = vec![corpus];
    folders.extend(Some(fuzz.join("corpus").join(name)).filter(|folder| folder.is_dir()));
    Ok(Task::new("cargo")
        .args(["+nightly", "fuzz", "run", name])
        .args(folders)
        .args(["--".to_owned(), format!("-max_total_time={seconds}")])
        .args([format!("-rss_limit_mb={MEMORY_MIB}"), format!("-timeout={INPUT_LIMIT_S}")])
        .args(["-print_final_stats=1"])
        .env("LSAN_OPTIONS", format!("suppressions={}", fuzz.join(LEAKS_FILE).display()))
        .dir(&tree.root)
        .limit(seconds + 240))
}

fn judge(ended: &Ended) -> Result<()> {
    if !ended.success() {
        let said = what_libfuzzer_said(&ended.output);
        bail!("{}; {said}; to repeat it, see below\n{}", ended.why(), ended.tail(30));
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
