//! `cargo xtask asan`: tests in which engines own memory, under AddressSanitizer.

use anyhow::Result;

use crate::child::Task;
use crate::raceline::Tree;
use crate::step::Outcome;

/// The sanitizer needs a target of its own, so that build scripts do without it.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Time for each run, built from scratch on two cores, in seconds.
const LIMIT_S: u64 = 1800;

/// One run of tests.
struct Run {
    arguments: &'static str,
    /// Memory that a hung engine keeps is never freed: some tests leak on purpose.
    leaks: bool,
}

const RUNS: [Run; 3] = [
    Run {
        arguments: "-p raceline-accel -p raceline-crc32c -p raceline-dsa --lib --tests -- --skip on_purpose",
        leaks: false,
    },
    Run { arguments: "-p raceline-accel -p raceline-dsa --tests -- on_purpose", leaks: true },
    Run {
        arguments: "-p raceline-target -p raceline-host -p raceline-bench \
                    --test digest --test corruption --test offload",
        leaks: true,
    },
];

/// Builds and runs the tests.
pub(crate) fn run(tree: &Tree) -> Result<Outcome> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(Outcome::Skipped(format!("only for {TARGET}")));
    }
    if !Task::new("cargo").args(["+nightly", "--version"]).run()?.success() {
        let why = "no nightly toolchain (rustup toolchain install nightly)";
        return Ok(Outcome::Skipped(why.to_owned()));
    }
    let mut count = 0;
    for Run { arguments, leaks } in RUNS {
        let ended = Task::new("cargo")
            .args(["+nightly", "test", "--locked", "--no-fail-fast", "--target", TARGET])
            .args(arguments.split_whitespace())
            // Another compiler has other lints.
            .env("RUSTFLAGS", "-Zsanitizer=address --cap-lints warn")
            .env("ASAN_OPTIONS", if leaks { "detect_leaks=0" } else { "" })
            .dir(&tree.root)
            .limit(LIMIT_S)
            .echo()
            .check()?;
        let passed = ended.stdout.lines().filter(|line| line.ends_with("... ok"));
        count += passed.count();
    }
    anyhow::ensure!(count > 0, "no test ran");
    Ok(Outcome::Passed(format!("{count} tests")))
}
