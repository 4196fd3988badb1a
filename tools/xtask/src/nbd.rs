//! The nbd step: QEMU's tools, libnbd's and fio judge the disks that `raceline connect --as nbd` makes.

mod paths;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::child::{Running, Task};
use crate::raceline::{Export, Tree};
use crate::setup;
use crate::step::{Checks, Outcome};

/// Time for one run of a tool, in seconds.
const TOOL_LIMIT_S: u64 = 60;
/// Time until a disk is there, and until it has ended, in seconds.
const DISK_LIMIT_S: u64 = 30;
/// The longest that a disk may run under a test, in seconds.
const DISK_LIFE_S: u64 = 900;
/// The name of the subsystem that is started again.
const NQN: &str = "nqn.2026-01.io.raceline:nbd";
/// Debian's Python, which has the module of libnbd.
const PYTHON: &str = "/usr/bin/python3";
/// The size of the disks.
const DISK_BYTES: u64 = 64 << 20;

/// A running `raceline connect`.
pub(crate) struct Disk {
    running: Running,
    uri: String,
    place: String,
}

impl Disk {
    /// Starts `connect --as nbd`, and waits until the disk is there.
    pub(crate) fn start(tree: &Tree, arguments: &[&str]) -> Result<Self> {
        Self::start_as(tree, "nbd", arguments)
    }

    /// Starts a disk of this kind, and waits until it is there.
    pub(crate) fn start_as(tree: &Tree, kind: &str, arguments: &[&str]) -> Result<Self> {
        let words = ["connect", "--as", kind].into_iter().chain(arguments.iter().copied());
        Self::of(tree.raceline(words)?)
    }

    /// Starts what makes a disk, and waits until it is there.
    fn of(connect: Task) -> Result<Self> {
        let mut running = connect.limit(DISK_LIFE_S).start()?;
        let line = running.wait_for("\"ready\"", DISK_LIMIT_S)?;
        let ready: Value = serde_json::from_str(&line).with_context(|| line.clone())?;
        let text = |name: &str| ready[name].as_str().map(str::to_owned).context(name.to_owned());
        Ok(Self { uri: text("uri")?, place: text("device")?, running })
    }

    /// How clients name it.
    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Kills it without warning.
    pub(crate) fn kill(&mut self) {
        self.running.kill();
    }

    /// Its port, if it is at a TCP address.
    pub(crate) fn port(&self) -> Result<u16> {
        let port = self.place.rsplit(':').next().and_then(|port| port.parse().ok());
        port.with_context(|| format!("{} is no TCP address", self.place))
    }

    /// Ends it by `raceline disconnect`; it must end by itself, and without a panic.
    pub(crate) fn disconnect(self, tree: &Tree) -> Result<()> {
        tree.raceline(["disconnect", "-d", &self.place])?.limit(DISK_LIMIT_S).check()?;
        let ended = self.running.wait()?;
        ensure!(ended.success(), "{}\n{}", ended.why(), ended.tail(10));
        ensure!(!ended.output.contains("panicked at"), "it panicked:\n{}", ended.tail(10));
        Ok(())
    }
}

/// Runs the step.
pub(crate) fn run(tree: &Tree) -> Result<Outcome> {
    if let Some(missing) = setup::missing_for("nbd") {
        return setup::cannot(&missing);
    }
    let dir = tree.scratch("nbd")?;
    let mut checks = Checks::default();
    checks.run("a namespace is a disk for qemu-io, nbdcopy and fio", || namespace(tree, &dir));
    checks.run("a target that dies and comes back is only late", || restart(tree, &dir));
    checks.run("a disk by TLS over two paths outlives each, and its target", || {
        paths::run(tree, &dir)
    });
    checks.run("a file is a disk with holes for nbdinfo and qemu-img", || file(tree, &dir));
    checks.run("libnbd sees what is refused", || refused(tree, &dir));
    checks.run("a disk for a virtual machine has its socket", || machine(tree, &dir));
    checks.run("a disk by TLS is for who has a key", || keys(tree, &dir));
    checks.run("a disk by TLS is for who has a certificate", || certificates(tree, &dir));
    checks.run("a file that grows makes the disk of a namespace grow", || growth(tree, &dir));
    checks.run("wrong command lines are refused with a reason", || command_lines(tree, &dir));
    checks.outcome()
}

fn tool<'a>(program: &str, words: impl IntoIterator<Item = &'a str>) -> Result<String> {
    Ok(Task::new(program).args(words).limit(TOOL_LIMIT_S).check()?.stdout)
}

/// Commands of qemu-io, which says "failed" and ends well.
fn qemu_io(uri: &str, commands: &[&str]) -> Result<()> {
    let mut words = vec!["-f", "raw"];
    for command in commands {
        words.extend(["-c", command]);
    }
    words.push(uri);
    let text = tool("qemu-io", words)?;
    ensure!(!text.contains("failed"), "qemu-io {commands:?}: {text}");
    Ok(())
}

/// A file of bytes that do not repeat.
fn random_file(dir: &Path) -> Result<PathBuf> {
    let path = dir.join("data");
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = (0..DISK_BYTES / 8).flat_map(|_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state ^ (state >> 29)).to_le_bytes()
    });
    fs::write(&path, words.collect::<Vec<u8>>())?;
    Ok(path)
}

fn namespace(tree: &Tree, dir: &Path) -> Result<()> {
    let mut target = Export::start(tree, &["ram:64M", "ram:64M,bs=4096"])?;
    let address = target.address();
    let socket = dir.join("ns.sock").display().to_string();
    for (nsid, block) in [("1", 512), ("2", 4096)] {
        let mut words: Vec<&str> = address.iter().map(String::as_str).collect();
        words.extend(["-N", nsid, "--socket", &socket]);
        let disk = Disk::start(tree, &words)?;
        let info: Value = serde_json::from_str(&tool("nbdinfo", ["--json", &disk.uri])?)?;
        let export = &info["exports"][0];
        ensure!(export["export-size"] == DISK_BYTES, "{info}");
        ensure!(export["block_size_minimum"] == block, "{info}");
        for flag in
            ["can_fua", "can_flush", "can_multi_conn", "can_trim", "can_zero", "can_fast_zero"]
        {
            ensure!(export[flag] == true, "{flag}: {info}");
        }
        qemu_io(
            &disk.uri,
            &[
                "write -P 0x5a 0 1M",
                "write -f -P 0x3c 4k 4k",
                "write -z 64k 64k",
                "write -z -u 256k 64k",
                "discard 512k 64k",
                "flush",
                "read -P 0x5a 0 4k",
                "read -P 0x3c 4k 4k",
                "read -P 0 64k 64k",
                "read -P 0 256k 64k",
                "read -P 0x5a 128k 128k",
            ],
        )?;
        let data = random_file(dir)?.display().to_string();
        let back = dir.join("back").display().to_string();
        tool("nbdcopy", ["--flush", &data, &disk.uri])?;
        tool("nbdcopy", [disk.uri.as_str(), &back])?;
        ensure!(fs::read(&data)? == fs::read(&back)?, "what nbdcopy reads is not what it wrote");
        tool("qemu-img", ["compare", "-f", "raw", "-F", "raw", &data, &disk.uri])?;
        let uri = format!("--uri={}", disk.uri);
        let job = ["--name=x", "--ioengine=nbd", &uri, "--rw=randrw", "--bs=16k", "--iodepth=16"];
        let verify = ["--size=16M", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"];
        tool("fio", job.into_iter().chain(verify))?;
        disk.disconnect(tree)?;
        ensure!(!Path::new(&socket).exists(), "the socket is still there");
        target.healthy()?;
    }
    target.stop("TERM")
}

fn restart(tree: &Tree, dir: &Path) -> Result<()> {
    let file = dir.join("restart.img");
    fs::File::create(&file)?.set_len(DISK_BYTES)?;
    let device = format!("file:{},buffered", file.display());
    let mut target = Export::start(tree, &[&device, "-n", NQN])?;
    let address = target.address();
    let mut words: Vec<&str> = address.iter().map(String::as_str).collect();
    words.extend(["--listen", "0"]);
    let disk = Disk::start(tree, &words)?;
    qemu_io(&disk.uri, &["write -P 0x77 1M 1M", "flush"])?;
    target.kill();
    let read = Task::new("qemu-io").args(["-f", "raw", "-c", "read -P 0x77 1M 1M", &disk.uri]);
    let read = read.limit(TOOL_LIMIT_S).start()?;
    std::thread::sleep(Duration::from_millis(300));
    target.restart()?;
    let ended = read.wait()?;
    ensure!(ended.success() && !ended.output.contains("failed"), "{}", ended.tail(10));
    qemu_io(&disk.uri, &["write -P 0x78 1M 1M", "read -P 0x78 1M 1M", "flush"])?;
    disk.disconnect(tree)?;
    target.stop("TERM")
}

fn file(tree: &Tree, dir: &Path) -> Result<()> {
    let file = dir.join("holes.img");
    let device = format!("file:{},size=64M,buffered", file.display());
    let socket = dir.join("file.sock").display().to_string();
    let disk = Disk::start(tree, &["--bdev", &device, "--socket", &socket])?;
    qemu_io(
        &disk.uri,
        &["write -P 1 1M 1M", "write -P 2 8M 2M", "flush", "discard 9M 1M", "flush"],
    )?;
    let map: Value = serde_json::from_str(&tool("nbdinfo", ["--map", "--json", &disk.uri])?)?;
    let map = map.as_array().context("no list of extents")?;
    let data = map.iter().filter(|extent| extent["type"] == 0);
    let data: u64 = data.filter_map(|extent| extent["length"].as_u64()).sum();
    ensure!(data == 2 << 20, "{data} bytes are allocated: {map:?}");
    let copy = dir.join("copy.qcow2").display().to_string();
    tool("qemu-img", ["convert", "-f", "raw", "-O", "qcow2", &disk.uri, &copy])?;
    tool("qemu-img", ["compare", "-f", "qcow2", "-F", "raw", &copy, &disk.uri])?;
    disk.disconnect(tree)
}

fn refused(tree: &Tree, dir: &Path) -> Result<()> {
    let socket = dir.join("refused.sock").display().to_string();
    let device = "ram:64M,bs=4096";
    let disk = Disk::start(tree, &["--bdev", device, "--socket", &socket, "--name", "mine"])?;
    let script = r#"
import nbd
h = nbd.NBD()
h.set_strict_mode(0)
h.connect_uri(URI)
def fails(call, number):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum == number, error
        return
    raise AssertionError("it works")
import errno
fails(lambda: h.pread(512, 0), errno.EINVAL)
fails(lambda: h.pwrite(b"x" * 100, 0), errno.EINVAL)
fails(lambda: h.pread(4096, 64 << 20), errno.EINVAL)
fails(lambda: h.pwrite(b"x" * 4096, 64 << 20), errno.ENOSPC)
h.pwrite(b"y" * 8192, 4096, nbd.CMD_FLAG_FUA)
assert h.pread(8192, 4096) == b"y" * 8192
assert h.pread(33554432, 0)[:4096] == bytes(4096)
h.cache(4096, 0)
h.shutdown()
"#;
    let script = script.replace("URI", &format!("{:?}", disk.uri));
    tool(PYTHON, ["-c", &script])?;
    let list = tool("nbdinfo", ["--list", "--json", &disk.uri])?;
    ensure!(list.contains("\"mine\""), "{list}");
    let other = disk.uri.replace("///", "///other");
    let ended = Task::new("nbdinfo").args([&other]).limit(TOOL_LIMIT_S).run()?;
    ensure!(!ended.success(), "there is no export `other`: {}", ended.tail(5));
    disk.disconnect(tree)
}

/// Runs a program of libnbd or QEMU that has to fail and to say why.
fn fails(program: &str, words: &[&str], why: &str) -> Result<()> {
    let ended = Task::new(program).args(words.iter().copied()).limit(TOOL_LIMIT_S).run()?;
    ensure!(!ended.success(), "{program} {words:?} has worked");
    ensure!(ended.output.contains(why), "{program} {words:?}: no `{why}`: {}", ended.tail(5));
    Ok(())
}

/// Copies a file to the disk and back.
fn copy(dir: &Path, uri: &str) -> Result<()> {
    let data = random_file(dir)?.display().to_string();
    let back = dir.join("back").display().to_string();
    tool("nbdcopy", ["--flush", &data, uri])?;
    tool("nbdcopy", [uri, &back])?;
    ensure!(fs::read(&data)? == fs::read(&back)?, "what nbdcopy reads is not what it wrote");
    Ok(())
}

fn keys(tree: &Tree, dir: &Path) -> Result<()> {
    let write = |name: &str, user: &str, key: &str| -> Result<String> {
        let path = dir.join(name);
        fs::write(&path, format!("{user}:{}\n", key.repeat(32)))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        Ok(path.display().to_string())
    };
    let right = write("right.psk", "alice", "5a")?;
    let wrong = write("wrong.psk", "alice", "a5")?;
    let other = write("other.psk", "mallory", "5a")?;
    let socket = dir.join("keys.sock").display().to_string();
    let words = ["--bdev", "ram:64M", "--socket", &socket, "--nbd-tls-psk", &right];
    let disk = Disk::start(tree, &words)?;
    ensure!(disk.uri.starts_with("nbds+unix://"), "{}", disk.uri);
    let uri = |user: &str, file: &str| {
        format!("nbds+unix://{user}@/disk?socket={socket}&tls-psk-file={file}")
    };
    copy(dir, &uri("alice", &right))?;
    let info: Value = serde_json::from_str(&tool("nbdinfo", ["--json", &uri("alice", &right)])?)?;
    ensure!(info["TLS"] == true && info["structured"] == true, "{info}");
    let plain = format!("nbd+unix:///disk?socket={socket}");
    fails("nbdinfo", &[&plain], "")?;
    fails("qemu-img", &["info", "-f", "raw", &plain], "TLS is required")?;
    fails("nbdinfo", &[&uri("alice", &wrong)], "TLS")?;
    fails("nbdinfo", &[&uri("mallory", &other)], "TLS")?;
    tool("nbdinfo", [uri("alice", &right).as_str()])?;
    disk.disconnect(tree)?;
    let optional: Vec<&str> = words.into_iter().chain(["--nbd-tls-optional"]).collect();
    let disk = Disk::start(tree, &optional)?;
    tool("nbdinfo", [plain.as_str()])?;
    tool("nbdinfo", [uri("alice", &right).as_str()])?;
    disk.disconnect(tree)
}

/// An authority, and certificates of a server and of a client, in the layout of QEMU's and libnbd's tools.
fn make_certificates(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir)?;
    let at = |name: &str| dir.join(name).display().to_string();
    let (authority, authority_key) = (at("ca-cert.pem"), at("ca-key.pem"));
    let key = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let own = ["-days", "2", "-subj", "/CN=authority", "-keyout", &authority_key];
    tool("openssl", key.into_iter().chain(own).chain(["-out", &authority]))?;
    for (name, usage) in [("server", "serverAuth"), ("client", "clientAuth")] {
        let (out, out_key) = (at(&format!("{name}-cert.pem")), at(&format!("{name}-key.pem")));
        let usage = format!("extendedKeyUsage={usage}");
        let own = ["-days", "2", "-subj", "/CN=localhost", "-keyout", &out_key, "-out", &out];
        let by = ["-CA", &authority, "-CAkey", &authority_key, "-addext", &usage];
        let of =
            ["-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=CA:FALSE"];
        tool("openssl", key.into_iter().chain(own).chain(by).chain(of))?;
        fs::set_permissions(&out_key, fs::Permissions::from_mode(0o600))?;
    }
    Ok(())
}

fn certificates(tree: &Tree, dir: &Path) -> Result<()> {
    let (ours, others) = (dir.join("ours"), dir.join("others"));
    make_certificates(&ours)?;
    make_certificates(&others)?;
    // One who trusts the server, and has no certificate.
    let nobody = dir.join("nobody");
    fs::create_dir_all(&nobody)?;
    fs::copy(ours.join("ca-cert.pem"), nobody.join("ca-cert.pem"))?;
    let ours = ours.display().to_string();
    let words = ["--bdev", "ram:64M", "--listen", "0", "--nbd-tls-certificates", &ours];
    let disk = Disk::start(tree, &words)?;
    let port = disk.port()?;
    let uri =
        |with: &Path| format!("nbds://localhost:{port}/disk?tls-certificates={}", with.display());
    copy(dir, &uri(Path::new(&ours)))?;
    let credentials = format!("tls-creds-x509,id=t,endpoint=client,dir={ours}");
    let image = format!("driver=nbd,host=localhost,port={port},export=disk,tls-creds=t");
    let text = tool("qemu-img", ["info", "--object", &credentials, "--image-opts", &image])?;
    ensure!(text.contains("64 MiB"), "{text}");
    fails("nbdinfo", &[&format!("nbd://localhost:{port}/disk")], "")?;
    fails("nbdcopy", &[&uri(&nobody), "null:"], "")?;
    fails("nbdcopy", &[&uri(&others), "null:"], "")?;
    tool("nbdinfo", [uri(Path::new(&ours)).as_str()])?;
    disk.disconnect(tree)?;
    let open: Vec<&str> = words.into_iter().chain(["--nbd-tls-any-client"]).collect();
    let disk = Disk::start(tree, &open)?;
    let uri =
        format!("nbds://localhost:{}/disk?tls-certificates={}", disk.port()?, nobody.display());
    tool("nbdcopy", [uri.as_str(), "null:"])?;
    disk.disconnect(tree)
}

/// Waits until nbdinfo tells a size.
fn wait_for_size(uri: &str, bytes: u64) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(DISK_LIMIT_S);
    loop {
        let size = tool("nbdinfo", ["--size", uri])?;
        if size.trim() == bytes.to_string() {
            return Ok(());
        }
        ensure!(Instant::now() < end, "the disk has {} bytes instead of {bytes}", size.trim());
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn growth(tree: &Tree, dir: &Path) -> Result<()> {
    let path = dir.join("grows.img");
    let file = fs::File::create(&path)?;
    file.set_len(DISK_BYTES)?;
    let target = Export::start(tree, &[&format!("file:{},buffered", path.display())])?;
    let address = target.address();
    let socket = dir.join("grows.sock").display().to_string();
    let mut words: Vec<&str> = address.iter().map(String::as_str).collect();
    words.extend(["--socket", &socket]);
    let disk = Disk::start(tree, &words)?;
    wait_for_size(&disk.uri, DISK_BYTES)?;
    file.set_len(2 * DISK_BYTES)?;
    wait_for_size(&disk.uri, 2 * DISK_BYTES)?;
    qemu_io(&disk.uri, &["write -P 0x11 100M 1M", "flush", "read -P 0x11 100M 1M"])?;
    disk.disconnect(tree)?;
    target.stop("TERM")
}

fn machine(tree: &Tree, dir: &Path) -> Result<()> {
    let path = dir.join("machine.sock");
    let socket = path.display().to_string();
    let disk = Disk::start_as(tree, "vhost-user", &["--bdev", "ram:64M", "--socket", &socket])?;
    ensure!(disk.uri == format!("unix:{socket}"), "{}", disk.uri);
    ensure!(path.exists(), "there is no socket");
    disk.disconnect(tree)?;
    ensure!(!path.exists(), "the socket is still there");
    Ok(())
}

fn command_lines(tree: &Tree, dir: &Path) -> Result<()> {
    let file = dir.join("file");
    fs::write(&file, "mine")?;
    let file = file.display().to_string();
    for (words, code, text) in [
        (vec!["connect", "--as", "nbd"], 2, "--nqn"),
        (
            vec!["connect", "--as", "nbd", "--bdev", "ram:1M", "--listen", "0.0.0.0:0"],
            2,
            "--insecure",
        ),
        (vec!["connect", "--as", "nbd", "--bdev", "ram:1M", "--socket", &file], 1, "no socket"),
        (
            vec!["connect", "--as", "vhost-user", "--bdev", "ram:1M", "--socket", &file],
            1,
            "no socket",
        ),
        (vec!["connect", "--as", "vhost-user", "--bdev", "ram:1M", "--listen", "0"], 2, "--socket"),
        (
            vec![
                "connect",
                "--as",
                "nbd",
                "-a",
                "127.0.0.1",
                "-s",
                "1",
                "-n",
                "nqn.2026-01.io.x:y",
            ],
            3,
            "127.0.0.1",
        ),
        (vec!["connect", "--as", "nbd", "--bdev", "ram:1M", "--nbd-tls-optional"], 2, "it needs"),
        (
            vec![
                "connect",
                "--as",
                "nbd",
                "--bdev",
                "ram:1M",
                "--nbd-tls-certificates",
                "/nowhere",
            ],
            2,
            "/nowhere/ca-cert.pem",
        ),
        (
            vec!["connect", "--as", "vhost-user", "--bdev", "ram:1M", "--nbd-tls-psk", &file],
            2,
            "only a disk by --as nbd",
        ),
        (vec!["disconnect", "-d", "/nowhere"], 1, "there is no such disk"),
        (vec!["disconnect"], 2, "--all"),
    ] {
        let ended = tree.raceline(words.iter().copied())?.limit(DISK_LIMIT_S).run()?;
        let status = ended.status.and_then(|status| status.code());
        ensure!(status == Some(code), "{words:?}: {}\n{}", ended.why(), ended.tail(5));
        ensure!(ended.output.contains(text), "{words:?}: no `{text}` in {}", ended.tail(5));
    }
    Ok(())
}
