//! `cargo xtask lint`: formatting, clippy, and the rules of this repository that no tool knows.

pub(crate) mod skips;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::child::Task;
use crate::modules::Crates;
use crate::report;
use crate::step::Outcome;

/// Files that may contain `unsafe`; each block in them stands under a `// SAFETY:` comment.
const UNSAFE_FILES: &[&str] = &[
    "crates/accel/src/copier.rs",
    "crates/accel/src/engine.rs",
    "crates/accel/src/memory.rs",
    "crates/accel/src/queued.rs",
    "crates/accel/src/software.rs",
    "crates/accel/src/work.rs",
    "crates/accel/tests/support/engine.rs",
    "crates/accel/tests/support/memory.rs",
    "crates/bdev/src/drive/ioctl.rs",
    "crates/bench/src/local/ring.rs",
    "crates/capi/src/boundary.rs",
    "crates/capi/src/buffer.rs",
    "crates/capi/src/config.rs",
    "crates/capi/src/handle.rs",
    "crates/capi/src/host.rs",
    "crates/capi/src/queues.rs",
    "crates/capi/src/rdma_tests.rs",
    "crates/capi/src/status.rs",
    "crates/capi/tests/boundary.rs",
    "crates/crc32c/src/fused.rs",
    "crates/crc32c/src/sse42.rs",
    "crates/dsa/src/emulated.rs",
    "crates/dsa/src/emulated/execute.rs",
    "crates/dsa/src/portal.rs",
    "crates/dsa/src/queue.rs",
    "crates/dsa/tests/device.rs",
    "crates/dsa/tests/queue.rs",
    "crates/environment/src/ethtool/driver.rs",
    "crates/host/src/caller/memory.rs",
    "crates/host/src/caller/queues.rs",
    "crates/host/src/caller/queues/in_flight.rs",
    "crates/host/src/shared/execute.rs",
    "crates/host/src/shared/submission.rs",
    "crates/raceline/src/names.rs",
    "crates/rdma/src/device.rs",
    "crates/rdma/src/device/alarms.rs",
    "crates/rdma/src/device/connections.rs",
    "crates/rdma/src/device/layout.rs",
    "crates/rdma/src/device/library.rs",
    "crates/rdma/src/device/memory.rs",
    "crates/rdma/src/device/news.rs",
    "crates/rdma/src/device/removal.rs",
    "crates/rdma/src/device/sharing.rs",
    "crates/rdma/src/device/stub.rs",
    "crates/rdma/src/foreign.rs",
    "crates/reactor/src/accel/access.rs",
    "crates/reactor/src/epoll.rs",
    "crates/reactor/src/epoll/sleeper.rs",
    "crates/reactor/src/io/busy_poll.rs",
    "crates/reactor/src/io/file_op.rs",
    "crates/reactor/src/io/file_threads.rs",
    "crates/reactor/src/io/nonblocking.rs",
    "crates/reactor/src/io/socket_option.rs",
    "crates/reactor/src/memory/buffer.rs",
    "crates/reactor/src/memory/heap.rs",
    "crates/reactor/src/memory/mapping.rs",
    "crates/reactor/src/memory/parts.rs",
    "crates/reactor/src/memory/region.rs",
    "crates/reactor/src/memory/stream.rs",
    "crates/reactor/src/send.rs",
    "crates/reactor/src/send/pages.rs",
    "crates/reactor/src/thread/affinity.rs",
    "crates/reactor/src/thread/waker.rs",
    "crates/reactor/src/uring.rs",
    "crates/reactor/src/uring/accept.rs",
    "crates/reactor/src/uring/fixed.rs",
    "crates/reactor/src/uring/nvme.rs",
    "crates/reactor/src/uring/ops.rs",
    "crates/reactor/src/uring/ublk.rs",
    "crates/reactor/tests/common/counting.rs",
    "crates/sandbox/tests/attempts/denied.rs",
    "crates/sandbox/tests/attempts/support.rs",
    "crates/sandbox/tests/attempts/works.rs",
    "crates/target/src/rdma/places.rs",
    "crates/tls/src/kernel.rs",
    "crates/tls/src/library.rs",
    "crates/ublk/src/control.rs",
    "crates/vhost/src/guard.rs",
];

/// The longest a source file may be.
const MAX_LINES: usize = 800;

/// The longest subject of a commit, in letters.
const MAX_SUBJECT_LETTERS: usize = 72;
/// Crates below the target and the host: of `proto` they may use only the structures and commands of NVMe,
/// not the state machines.
const BELOW_STATE_MACHINES: [&str; 3] =
    ["crates/auth/src/", "crates/bdev/src/", "crates/reactor/src/"];

/// The commit after which subjects must be that short.
const SUBJECTS_AFTER: &str = "51172720e542930da7f54a0f0cda38af118822e4";

/// `cargo fmt --check`.
pub(crate) fn format(root: &Path) -> Result<Outcome> {
    Task::new("cargo")
        .args(["fmt", "--all", "--", "--check", "-l", "--color", "never"])
        .dir(root)
        .limit(120)
        .check()?;
    Ok(Outcome::Passed(String::new()))
}

/// `cargo clippy` over everything.
pub(crate) fn clippy(root: &Path) -> Result<Outcome> {
    let args = ["clippy", "--quiet", "--workspace", "--all-targets", "--locked"];
    Task::new("cargo").args(args).dir(root).limit(900).echo().check()?;
    fuzz_is_locked(root)?;
    Ok(Outcome::Passed(String::new()))
}

/// The workspace of the fuzz targets has a lock file of its own, which a new dependency of a crate leaves behind.
fn fuzz_is_locked(root: &Path) -> Result<()> {
    let args = ["metadata", "--quiet", "--locked", "--format-version", "1", "--manifest-path"];
    let task = Task::new("cargo").args(args).args([root.join("fuzz/Cargo.toml")]);
    task.dir(root).limit(300).check().map(drop).context(
        "fuzz/Cargo.lock is not up to date: `cargo metadata --manifest-path fuzz/Cargo.toml` writes it",
    )
}

/// The repository's own rules.
pub(crate) fn tidy(root: &Path) -> Result<Outcome> {
    let ended = Task::new("git").args(["ls-files"]).dir(root).check()?;
    let mut complaints = long_subjects(root)?;
    let mut crates = Crates::default();
    let mut count = 0;
    for name in ended.stdout.lines() {
        // Binary files, and files deleted but not yet committed, are not checked.
        let Ok(text) = fs::read_to_string(root.join(name)) else { continue };
        complaints.extend(look_at(name, &text));
        crates.take(name, &text);
        count += 1;
    }
    complaints.extend(crates.complaints());
    complaints.extend(report::check(root)?);
    for name in UNSAFE_FILES {
        let text = fs::read_to_string(root.join(name)).unwrap_or_default();
        if first_unsafe(&text).is_none() {
            complaints.push(format!("{name}: listed in tools/xtask, but has no unsafe code"));
        }
    }
    if !complaints.is_empty() {
        for complaint in &complaints {
            println!("{complaint}");
        }
        bail!("{} complaints, first: {}", complaints.len(), complaints[0]);
    }
    Ok(Outcome::Passed(format!("{count} files")))
}

/// The commits after [`SUBJECTS_AFTER`] whose subjects are too long, if the history is available.
fn long_subjects(root: &Path) -> Result<Vec<String>> {
    let range = format!("{SUBJECTS_AFTER}..HEAD");
    let ended = Task::new("git").args(["log", "--format=%h %s", &range]).dir(root).run()?;
    if !ended.success() {
        return Ok(Vec::new());
    }
    let too_long = |line: &&str| {
        line.split_once(' ').is_some_and(|(_, text)| text.chars().count() > MAX_SUBJECT_LETTERS)
    };
    let complain = |line: &str| {
        format!("commit {line}: the subject is longer than {MAX_SUBJECT_LETTERS} letters")
    };
    Ok(ended.stdout.lines().filter(too_long).map(complain).collect())
}

/// The faults of one file.
fn look_at(name: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    // Spelled in two parts so that this file passes.
    for parts in [["../", "shared"], ["/work", "/"], ["../", ".library"]] {
        let word = parts.concat();
        if let Some(line) = text.lines().position(|line| line.contains(&word)) {
            complaints.push(format!("{name}:{}: refers to {word}", line + 1));
        }
    }
    if !name.ends_with(".rs") {
        return complaints;
    }
    let lines = text.lines().count();
    if lines > MAX_LINES {
        complaints.push(format!("{name}: {lines} lines, more than {MAX_LINES}"));
    }
    if !text.starts_with("//! ") && !text.starts_with("#![no_main]") {
        complaints.push(format!("{name}: the first line is not a sentence of purpose (//! ...)"));
    }
    if !UNSAFE_FILES.contains(&name)
        && let Some(line) = first_unsafe(text)
    {
        complaints.push(format!("{name}:{line}: unsafe outside the files listed in tools/xtask"));
    }
    for line in skips::silent(name, text) {
        let spelled = skips::SKIPPED;
        complaints.push(format!(
            "{name}:{line}: a test that is skipped says so with `{spelled}`, or `unit` does not show it"
        ));
    }
    if BELOW_STATE_MACHINES.iter().any(|folder| name.starts_with(folder))
        && let Some(line) = text.lines().position(uses_state_machines)
    {
        complaints.push(format!("{name}:{}: uses more of proto than proto::nvme", line + 1));
    }
    complaints
}

/// Whether a line names a part of `proto` other than `nvme`.
fn uses_state_machines(line: &str) -> bool {
    let is_nvme = |path: &str| path.split(|c: char| !c.is_alphanumeric()).next() == Some("nvme");
    line.split("raceline_proto::").skip(1).any(|path| !is_nvme(path))
}

/// The first line, from 1, with the word `unsafe` outside comments, or a permission for it.
fn first_unsafe(text: &str) -> Option<usize> {
    let keyword = ["uns", "afe"].concat();
    let lint = format!("{keyword}_code");
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.lines()
        .position(|line| {
            let code = line.split("//").next().unwrap_or("");
            if code.contains("forbid(") || code.contains("deny(") || code.contains('"') {
                return false;
            }
            code.split(|c| !is_word(c)).any(|word| word == keyword || word == lint)
        })
        .map(|at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_is_found_where_it_is_code() {
        let block = ["//! A.\nfn f() { uns", "afe { g() } }\n"].concat();
        assert_eq!(first_unsafe(&block), Some(2));
        let allow = ["#![allow(uns", "afe_code)]"].concat();
        assert_eq!(first_unsafe(&allow), Some(1));
        let forbid = ["#![forbid(uns", "afe_code)]\n// uns", "afe is bad\n"].concat();
        assert_eq!(first_unsafe(&forbid), None);
    }

    #[test]
    fn state_machines_are_found_below_target_and_host() {
        let text = "//! A.\nuse raceline_proto::nvme::Sqe;\nuse raceline_proto::host::Backoff;\n";
        let complaints = look_at("crates/reactor/src/a.rs", text);
        assert_eq!(complaints, ["crates/reactor/src/a.rs:3: uses more of proto than proto::nvme"]);
        assert_eq!(look_at("crates/bdev/src/a.rs", text).len(), 1);
        assert!(look_at("crates/host/src/a.rs", text).is_empty());
        assert!(uses_state_machines("use raceline_proto::{host, nvme};"));
        assert!(!uses_state_machines("use raceline_proto::nvme;"));
    }

    #[test]
    fn long_files_and_references_are_found() {
        let text = format!("//! A.\n{}", "\n".repeat(MAX_LINES));
        assert_eq!(look_at("crates/x/src/a.rs", &text).len(), 1);
        let text = ["see ../", "shared/x"].concat();
        assert_eq!(look_at("docs/a.md", &text).len(), 1);
        assert!(look_at("crates/x/src/a.rs", "//! A.\n").is_empty());
        assert_eq!(look_at("crates/x/src/a.rs", "fn main() {}\n").len(), 1);
    }
}
