//! The static-binary step: the static program and its archive, in a root that holds nothing else.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::supply::Supply;
use super::{check, differences, portable, source_date};
use crate::child::{Ended, Running, Task, has_program};
use crate::raceline::Tree;
use crate::setup;
use crate::step::{Checks, Outcome};

/// A key of tests: anyone may know it.
const KEY: &str =
    "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";
const HOSTNQN: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000008";
const NQN: &str = "nqn.2026-01.io.raceline:static";
/// Time from the start of a target to its ready line, in seconds.
const READY_LIMIT_S: u64 = 20;
/// The word of /proc/PID/status for a filter of system calls.
const FILTERED: &str = "Seccomp:\t2";

/// Builds the program and its archive, and tries both.
pub(crate) fn run(tree: &Tree) -> Result<Outcome> {
    for (program, package) in [("readelf", "binutils"), ("ldd", "libc-bin"), ("tar", "tar")] {
        if !has_program(program) {
            return Ok(Outcome::Skipped(format!("missing: {program} (package {package})")));
        }
    }
    if !setup::is_root() {
        return Ok(Outcome::Skipped("only root can change to another root".to_owned()));
    }
    let scratch = tree.scratch("static-binary")?;
    let program = portable::program(tree)?;
    let time_s = source_date(&tree.root)?;
    let archive = portable::make(tree, &program, &scratch.join("first"), time_s)?;
    let mut checks = Checks::default();
    checks.run("the-same-again", || {
        let again = portable::make(tree, &program, &scratch.join("second"), time_s)?;
        let different = differences::files(&archive, &again)?;
        ensure!(different.is_empty(), "{}", different.join("\n"));
        Ok(())
    });
    let folder = format!("raceline-{}", Supply::read(&tree.root)?.version);
    let unpacked = scratch.join("unpacked");
    std::fs::create_dir(&unpacked)?;
    Task::new("tar")
        .args(["-xzf".as_ref(), archive.as_os_str(), "-C".as_ref(), unpacked.as_os_str()])
        .check()?;
    let unpacked = unpacked.join(folder);
    checks.run("archive", || holds_all(&unpacked));
    match check::validator(tree) {
        Ok(python) => checks.run("bill-of-materials", || {
            check::valid_bill(&python, &unpacked.join("sbom.cdx.json"))
        }),
        Err(error) => checks.skip("bill-of-materials", &format!("{error:#}")),
    }
    let program = unpacked.join("raceline");
    checks.run("stands-alone", || portable::stands_alone(&program));
    let root = Root { folder: scratch.join("root") };
    std::fs::create_dir(&root.folder)?;
    std::fs::copy(&program, root.folder.join("raceline"))?;
    checks.run("version-in-an-empty-root", || {
        let said = root.raceline(["--version"]).check()?.stdout;
        ensure!(said.starts_with("raceline "), "--version says {said}");
        Ok(())
    });
    checks.run("rdma-is-refused", || no_rdma(&root));
    checks.run("names", || names(&root));
    checks.run("demo", || {
        let said = root.raceline(["demo", "--seconds", "2"]).check()?.output;
        ensure!(said.contains("every block is as written"), "demo says:\n{said}");
        // Without the system call, there would be a file that is not here.
        ensure!(!said.contains("no random number"), "demo says:\n{said}");
        Ok(())
    });
    checks.run("serve", || serve(&root));
    for io in ["uring", "epoll"] {
        checks.run(&format!("export-tls-{io}"), || export(&root, io));
    }
    let outcome = checks.outcome();
    std::fs::remove_dir_all(&scratch)?;
    outcome
}

/// The archive has the program, its licences, its pages and its bill of materials.
fn holds_all(folder: &std::path::Path) -> Result<()> {
    for (name, word) in [
        ("CHANGELOG.md", "# Changelog"),
        ("LICENSE-APACHE", "Apache License"),
        ("LICENSE-MIT", "Permission is hereby granted"),
        ("licences.txt", "==== "),
        ("licences-of-the-c-library.txt", "GNU LESSER GENERAL PUBLIC LICENSE"),
        ("licences-of-the-c-library.txt", "GCC RUNTIME LIBRARY EXCEPTION"),
        ("licences-of-the-c-library.txt", "GNU GENERAL PUBLIC LICENSE"),
        ("man/man1/raceline-export.1", ".TH"),
        ("sbom.cdx.json", "\"CycloneDX\""),
        ("sbom.cdx.json", "pkg:deb/debian/libc6-dev@"),
    ] {
        let text = std::fs::read_to_string(folder.join(name)).with_context(|| name.to_owned())?;
        ensure!(text.contains(word), "{name} does not say {word}");
    }
    Ok(())
}

/// A root with the program and nothing else.
struct Root {
    folder: PathBuf,
}

impl Root {
    /// A verb in this root.
    fn raceline<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Task {
        Task::new("chroot").args([&self.folder]).args(["/raceline"]).args(words)
    }

    /// Writes a file there.
    fn write(&self, name: &str, text: &str, mode: u32) -> Result<()> {
        let file = self.folder.join(name);
        std::fs::create_dir_all(file.parent().context("no folder")?)?;
        std::fs::write(&file, text)?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode))?;
        Ok(())
    }

    /// Starts a target; gives it with its ready line.
    fn start<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Result<(Running, Value)> {
        let mut target = self.raceline(words).env("RACELINE_LOG", "info").limit(120).start()?;
        let line = target.wait_for("\"ready\"", READY_LIMIT_S)?;
        let ready = serde_json::from_str(&line).with_context(|| line.clone())?;
        let status = std::fs::read_to_string(format!("/proc/{}/status", target.pid()))?;
        ensure!(status.contains(FILTERED), "the target has no filter of system calls:\n{status}");
        Ok((target, ready))
    }

    /// Writes to a subsystem over two queues, and verifies.
    fn verify(&self, port: &str, nqn: &str, io: &str, key: Option<&str>) -> Result<()> {
        let address = ["perf", "-a", "127.0.0.1", "-s", port, "-n", nqn, "--hostnqn", HOSTNQN];
        let load = ["--verify", "--rw", "randrw", "-i", "2", "--iodepth", "16", "--size", "16M"];
        let more = ["--runtime", "2", "--ramp_time", "0", "--io", io, "-o", "json"];
        let mut task = self.raceline(address.into_iter().chain(load).chain(more)).limit(90);
        if let Some(key) = key {
            task = task.env("RACELINE_TLS_PSK", key);
        }
        let report: Value = serde_json::from_str(&task.check()?.stdout)?;
        for kind in ["read", "write"] {
            let done = report["jobs"][0][kind]["total_ios"].as_u64();
            ensure!(done.is_some_and(|count| count > 0), "no {kind} was verified: {report}");
        }
        Ok(())
    }
}

/// Ends a target in order; it must have used io_uring where that was asked for.
fn end(target: Running, io: &str) -> Result<()> {
    target.signal("TERM");
    let ended = target.wait()?;
    ensure!(ended.success(), "the target ended badly ({}): {}", ended.why(), ended.tail(5));
    let fell_back = ended.output.lines().find(|line| line.contains("io_uring cannot be used"));
    ensure!(!ended.output.contains("no random number"), "no random numbers: {}", ended.tail(5));
    ensure!(io != "uring" || fell_back.is_none(), "io_uring was asked for: {fell_back:?}");
    Ok(())
}

/// A daemon is configured by verbs, and serves.
fn serve(root: &Root) -> Result<()> {
    let socket = "/rpc.sock";
    let (target, _) = root.start(["serve", "-r", socket])?;
    let verb = |words: &[&str]| -> Result<Ended> {
        root.raceline(words.iter().copied().chain(["-s", socket])).check()
    };
    verb(&["bdev", "add", "ram:64M", "--name", "memory"])?;
    verb(&["subsys", "add", NQN])?;
    verb(&["ns", "add", NQN, "memory"])?;
    verb(&["host", "add", NQN, HOSTNQN])?;
    // The port is one that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    verb(&["port", "add", NQN, &format!("127.0.0.1:{port}")])?;
    for io in ["uring", "epoll"] {
        root.verify(&port, NQN, io, None)?;
    }
    end(target, "uring")
}

/// An export over TLS with a key serves a host that has it, and no other.
fn export(root: &Root, io: &str) -> Result<()> {
    root.write("tls.key", KEY, 0o600)?;
    let listen = ["export", "ram:64M", "-l", "127.0.0.1:0", "--host", HOSTNQN, "--io", io];
    let (target, ready) = root.start(listen.into_iter().chain(["--tls-psk", "/tls.key"]))?;
    let nqn = ready["nqn"].as_str().context("no NQN in the ready line")?;
    let listener = ready["listeners"][0].as_str().context("no listener in the ready line")?;
    let port = listener.rsplit(':').next().unwrap_or_default();
    root.verify(port, nqn, io, Some(KEY))?;
    ensure!(root.verify(port, nqn, io, None).is_err(), "a host without the key got in");
    end(target, io)
}

/// RDMA is refused by name, and nothing is loaded.
fn no_rdma(root: &Root) -> Result<()> {
    let nobody = ["-a", "127.0.0.1", "-s", "4420", "-n", NQN];
    let host = ["identify", "-t", "rdma"].into_iter().chain(nobody).collect();
    for words in [
        vec!["serve", "-r", "/rpc.sock", "--rdma"],
        vec!["export", "ram:1M", "-l", "rdma://127.0.0.1:4421"],
        host,
    ] {
        let ended = root.raceline(words.iter().copied()).limit(30).run()?;
        let code = ended.status.and_then(|status| status.code());
        ensure!(code.is_some_and(|code| code != 0), "{words:?} was not refused: {}", ended.why());
        for text in ["this is the static program", "use the program of the Debian or RPM package"] {
            ensure!(ended.output.contains(text), "{words:?} says:\n{}", ended.tail(5));
        }
    }
    Ok(())
}

/// Names are found in /etc/hosts, whatever modules the machine names; those that nobody knows are refused with a remedy.
fn names(root: &Root) -> Result<()> {
    let discover = |name: &str| {
        let free = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
        let ended = root.raceline(["discover", "-a", name, "-s", &free]).limit(60).run()?;
        ensure!(ended.status.is_some_and(|status| status.code().is_some()), "{}", ended.why());
        Ok(ended.output)
    };
    for name in ["localhost", "disks.example"] {
        let said = discover(name)?;
        ensure!(said.contains("cannot find the address of"), "{name} without any file: {said}");
        ensure!(said.contains("give the address in numbers"), "{name}: {said}");
    }
    // The modules of this file would be libraries of another C library.
    root.write("etc/nsswitch.conf", "hosts: mdns4_minimal [NOTFOUND=return] resolve\n", 0o644)?;
    root.write("etc/hosts", "127.0.0.1 localhost disks.example\n", 0o644)?;
    for name in ["localhost", "disks.example"] {
        let said = discover(name)?;
        ensure!(said.contains("refused"), "{name} is in /etc/hosts, and discover says: {said}");
    }
    std::fs::remove_dir_all(root.folder.join("etc"))?;
    Ok(())
}
