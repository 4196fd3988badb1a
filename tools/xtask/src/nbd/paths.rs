//! A disk over two paths, with TLS and authentication on both: a path is lost, and the whole target is.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Disk, TOOL_LIMIT_S, qemu_io};
use crate::child::Task;
use crate::raceline::Tree;
use crate::serve::Serve;

const NQN: &str = "nqn.2026-01.io.raceline:nbd-paths";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:6b7c0f2e-4f0a-4c55-9d0e-0a1b2c3d4e5f";
/// Both paths have an address that no other test uses.
const PATHS: [&str; 2] = ["127.0.0.83:4420", "127.0.0.84:4420"];

pub(super) fn run(tree: &Tree, dir: &Path) -> Result<()> {
    let dir = dir.join("paths");
    std::fs::create_dir_all(dir.join("state"))?;
    let text = |path: &Path| path.display().to_string();
    let (state, socket, rpc) = (dir.join("state"), dir.join("disk.sock"), dir.join("rpc.sock"));
    let (state, socket) = (text(&state), text(&socket));
    for (name, kind) in [("tls", "tls"), ("chap", "dhchap")] {
        let words = ["key", "gen", name, "--kind", kind, "--state-dir", &state];
        tree.raceline(words)?.limit(TOOL_LIMIT_S).check()?;
    }
    let serve = || Serve::start(tree, &dir, &["--state-dir", &state]);
    let daemon = serve()?;
    let manage = |words: &[&str]| {
        let task = tree.raceline(words.iter().copied())?.args(["-s"]).args([&rpc]);
        task.limit(TOOL_LIMIT_S).check().with_context(|| words.join(" ")).map(drop)
    };
    let file = dir.join("disk.img");
    std::fs::File::create(&file)?.set_len(super::DISK_BYTES)?;
    manage(&["bdev", "add", &format!("file:{}", file.display()), "-n", "disk"])?;
    manage(&["subsys", "add", NQN, "--ana"])?;
    manage(&["ns", "add", NQN, "disk"])?;
    for path in PATHS {
        manage(&["port", "add", NQN, path, "--security", "both"])?;
    }
    manage(&["host", "add", NQN, HOST, "--psk", "tls", "--dhchap-key", "chap"])?;

    let first = PATHS[0].split_once(':').context("an address with a port")?;
    let known = ["-a", first.0, "-s", first.1, "-n", NQN, "--path", PATHS[1], "-q", HOST];
    let keys = ["--tls-psk", "tls", "--dhchap-secret", "chap", "--socket", &socket];
    let words = ["connect", "--as", "nbd"].into_iter().chain(known).chain(keys);
    let disk = Disk::of(tree.raceline(words)?.env("RACELINE_STATE_DIR", &state))?;
    qemu_io(disk.uri(), &["write -P 0x71 1M 1M", "flush"])?;
    // Without one path all goes on, and nothing of what was acknowledged is lost.
    manage(&["port", "rm", NQN, PATHS[0]])?;
    qemu_io(disk.uri(), &["read -P 0x71 1M 1M", "write -P 0x72 2M 1M", "flush"])?;
    manage(&["port", "add", NQN, PATHS[0], "--security", "both"])?;
    manage(&["port", "rm", NQN, PATHS[1]])?;
    qemu_io(disk.uri(), &["read -P 0x72 2M 1M", "write -P 0x73 3M 1M", "flush"])?;
    manage(&["port", "add", NQN, PATHS[1], "--security", "both"])?;
    // A target that is killed is only late: TLS and authentication are made anew.
    daemon.kill();
    let read = Task::new("qemu-io").args(["-f", "raw", "-c", "read -P 0x73 3M 1M", disk.uri()]);
    let read = read.limit(TOOL_LIMIT_S).start()?;
    std::thread::sleep(Duration::from_millis(300));
    let daemon = serve()?;
    let ended = read.wait()?;
    ensure!(ended.success() && !ended.output.contains("failed"), "{}", ended.tail(10));
    qemu_io(disk.uri(), &["write -P 0x74 3M 1M", "read -P 0x74 3M 1M", "flush"])?;
    disk.disconnect(tree)?;
    daemon.stop()
}
