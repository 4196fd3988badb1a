//! The emulated machines with real Linux kernels: Raceline's target under the kernel's host, and the reverse.

mod adq;
mod auth;
mod cuts;
mod disk;
mod drives;
mod emulator;
mod inside;
mod iscsi;
mod manage;
mod moved;
mod package;
mod paths;
mod rdma_link;
mod tls;
mod vhost;
mod xfstests;

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::child::{Running, Task, tail};
use crate::raceline::{Export, Tree, host, iops, perf_job};
use crate::setup;
use crate::step::{Checks, Outcome};

/// NQN of the subsystem in all of these tests.
const NQN: &str = "nqn.2026-01.io.raceline:interop";
/// Time to download packages and build an image, in seconds.
const IMAGE_LIMIT_S: u64 = 600;
/// Time for one guest, in seconds: about five times what a quiet two-core machine needs.
const GUEST_LIMIT_S: u64 = 420;
/// Time for a guest whose paths are cut, or that starts a program often, in seconds: about five times what a quiet two-core
/// machine needs.
const CUTS_LIMIT_S: u64 = 600;
/// Time for a guest that has a target and its block device, in seconds, also on a machine that does other work meanwhile.
const UBLK_LIMIT_S: u64 = 1200;
/// Time for a guest in which each check goes twice, in seconds: about twice what a quiet two-core machine needs.
const ZERO_COPY_LIMIT_S: u64 = 1800;
/// Time for a guest that is also the target, over soft RoCE, in seconds: about five times what a quiet two-core machine
/// needs.
const RDMA_LIMIT_S: u64 = 1200;
/// Time for two guests at once with a wire between them, which loses packets and goes three times, in seconds: about twice what a
/// quiet two-core machine needs.
const LINK_LIMIT_S: u64 = 600;
/// Time for a guest with hundreds of cuts, in seconds: about twice what a quiet two-core machine needs.
const ALL_CUTS_LIMIT_S: u64 = 6000;
/// Time for a guest to boot and set up its target, in seconds.
const BOOT_LIMIT_S: u64 = 90;
/// How often a request to a guest that does not answer is repeated.
const REQUEST_TRIES: u32 = 5;
/// Ports of the guest that serves: NVMe/TCP, and the requests that nvmet.sh describes.
const GUEST_PORTS: [u16; 2] = [4420, 4499];

/// A kernel to test against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kernel {
    /// Debian 12: kernel 6.1, nvme-cli 2.3.
    #[value(name = "6.1")]
    V6_1,
    /// Debian 13: kernel 6.12, nvme-cli 2.13.
    #[value(name = "6.12")]
    V6_12,
    /// Debian 13 with the kernel of its backports.
    #[value(name = "backports")]
    Backports,
}

impl Kernel {
    fn suite(self) -> &'static str {
        match self {
            Self::V6_1 => "bookworm",
            Self::V6_12 => "trixie",
            Self::Backports => "trixie-backports",
        }
    }

    /// What its image has besides: open-iscsi, and from Linux 6.12 on NBD, ublk, and TLS for NVMe, which the kernel of Debian 12
    /// does not have.
    fn image_options(self) -> &'static [&'static str] {
        match self {
            Self::V6_1 => &["-P", "open-iscsi,sg3-utils", "-M", "iscsi_tcp,sd_mod,sg"],
            Self::V6_12 | Self::Backports => &[
                "-P",
                "ktls-utils,keyutils,open-iscsi,sg3-utils,nbd-client",
                "-M",
                "tls,iscsi_tcp,sd_mod,sg,nbd,ublk_drv",
            ],
        }
    }
}

/// The work of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// The kernel's host against our target: commands, file systems, data.
    Host,
    /// The kernel's host while associations break.
    Faults,
    /// Our host against the kernel's target.
    Target,
    /// The kernel's host on a daemon: it makes namespaces, and is told of changes.
    Manage,
    /// A daemon in the guest, on a drive of that machine.
    Drives,
    /// Hosts and controllers that prove themselves, in both directions: three groups.
    Auth,
    /// The same with all groups.
    AuthAll,
    /// The kernel's host against our target over TLS.
    Tls,
    /// The kernel's host with two paths to a daemon.
    Paths,
    /// The kernel's host with a path to each of two daemons, which are cut: each kind once with each policy.
    Cuts,
    /// The same with at least 200 cuts, and with two paths to one daemon.
    CutsAll,
    /// The queues of devices of the guest.
    Adq,
    /// open-iscsi on a daemon: a bounded set of checks.
    Iscsi,
    /// The same with all checks, and three kills.
    IscsiAll,
    /// The kernel's NBD client on a disk of ours.
    Disk,
    /// A disk of ours in the guest itself, by vhost-user.
    Vhost,
    /// The kernel's own block device on a namespace of a daemon: a bounded set of checks.
    Ublk,
    /// The same with all checks.
    UblkAll,
    /// The kernel's own block device on files and block devices, whose data are not copied.
    ZeroCopy,
    /// New processes take the place of a daemon under the kernel's host.
    Takeover,
    /// xfstests on disks of ours.
    Xfstests,
    /// The kernel's target moves into a daemon, and back.
    Moved,
    /// The package on an ordinary Debian, with a disk of its unit.
    Package,
    /// Our host over RDMA against the kernel's target, in the guest.
    Rdma,
    /// What [`Part::Host`] does, over RDMA, with our target in the guest.
    RdmaHost,
    /// What [`Part::Faults`] does, over RDMA, with our target in the guest.
    RdmaFaults,
    /// The kernel's host over RDMA on a daemon in the guest, which is in its sandbox.
    RdmaDaemon,
    /// The kernel's host and ours over RDMA on a daemon in another guest; the wire between them goes and comes.
    RdmaLink,
}

/// The target of the kernel's host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Peer {
    /// Our target, outside the guest.
    #[default]
    Raceline,
    /// The guest's own nvmet: shows that the checks can pass.
    Kernel,
}

/// The folder that keeps images: RACELINE_VM_CACHE, or `interop` among the build results.
fn cache(tree: &Tree) -> PathBuf {
    std::env::var_os("RACELINE_VM_CACHE").map_or_else(|| tree.target.join("interop"), PathBuf::from)
}

/// The reason why no guest can run here, if there is one.
fn unable(tree: &Tree, kernel: Kernel) -> Option<String> {
    let image = cache(tree).join(format!("{}-amd64", kernel.suite())).join("build-id");
    setup::missing_for("kernel").or_else(|| {
        let may_build = setup::is_root() || image.is_file();
        (!may_build).then(|| "not root, and an image is built in a chroot".to_owned())
    })
}

/// What the parts over RDMA need of an image.
const SOFT_ROCE: &str = "rdma_rxe";

/// Whether an image with this manifest does not suit a part: the script that made it knew nothing of what the part needs.
fn is_outdated(manifest: &str, part: Part) -> bool {
    let over_rdma = matches!(
        part,
        Part::Rdma | Part::RdmaHost | Part::RdmaFaults | Part::RdmaDaemon | Part::RdmaLink
    );
    over_rdma && !knows_module(manifest, SOFT_ROCE)
}

/// Whether the script that wrote the manifest of an image looked for a module: it is there, or this kernel has none.
fn knows_module(manifest: &str, module: &str) -> bool {
    let lists = ["modules:", "not in this kernel:"];
    let lists =
        manifest.lines().filter_map(|line| lists.iter().find_map(|start| line.strip_prefix(start)));
    lists.flat_map(str::split_whitespace).any(|word| word == module)
}

/// Builds the image of a kernel, unless it is there and up to date; returns its folder.
fn image(tree: &Tree, kernel: Kernel) -> Result<PathBuf> {
    let cache = cache(tree);
    let folder = cache.join(format!("{}-amd64", kernel.suite()));
    if !setup::is_root() && folder.join("build-id").is_file() {
        return Ok(folder);
    }
    let ended = Task::new(tree.root.join("interop/build-image.sh"))
        .args(["-s", kernel.suite()])
        .args(kernel.image_options())
        .args([&cache])
        .limit(IMAGE_LIMIT_S)
        .check()
        .context("cannot build the guest's image")?;
    let folder = ended.stdout.lines().last().unwrap_or_default();
    ensure!(Path::new(folder).join("root.img").is_file(), "no image in {folder}");
    Ok(PathBuf::from(folder))
}

/// An empty folder; guests of two steps may run beside each other.
fn scratch(tree: &Tree, image: &Path, part: Part) -> Result<PathBuf> {
    let image = image.file_name().unwrap_or_default().to_string_lossy();
    tree.scratch(&format!("interop-{image}-{part:?}").to_lowercase())
}

/// One of the steps kernel-VERSION-PART.
pub(crate) fn run(tree: &Tree, kernel: Kernel, part: Part, peer: Peer) -> Result<Outcome> {
    if let Some(why) = unable(tree, kernel) {
        return setup::cannot(&why);
    }
    // It starts from a system of its own.
    if part == Part::Package {
        return package::run(tree);
    }
    let image = image(tree, kernel)?;
    // Root has just built it anew if that was necessary.
    if !setup::is_root() {
        let manifest = std::fs::read_to_string(image.join("manifest.txt")).unwrap_or_default();
        if is_outdated(&manifest, part) {
            let image = image.display();
            return setup::cannot(&format!(
                "the image {image} is older than build-image.sh: build it as root"
            ));
        }
    }
    let attempt = || attempt(tree, &image, kernel, (part, peer));
    match attempt() {
        Err(error) if emulator::is_at_fault(&format!("{error:#}")) => {
            println!(
                "{error:#}\n# once more: the emulated processor had flags that no processor has"
            );
            attempt()
        }
        outcome => outcome,
    }
}

fn attempt(
    tree: &Tree,
    image: &Path,
    kernel: Kernel,
    (part, peer): (Part, Peer),
) -> Result<Outcome> {
    match (part, peer) {
        (Part::Target, _) => kernel_target(tree, image),
        (Part::Manage, _) => manage::run(tree, image),
        (Part::Drives, _) => drives::run(tree, image),
        (Part::Auth | Part::AuthAll, _) => auth::run(tree, image, part),
        (Part::Tls, _) => tls::run(tree, image),
        (Part::Paths, _) => paths::run(tree, image),
        (Part::Cuts | Part::CutsAll, _) => cuts::run(tree, image, part),
        (Part::Adq, _) => adq::run(tree, image),
        (Part::Disk, _) => disk::run(tree, image),
        (Part::Vhost, _) => vhost::run(tree, image),
        (Part::UblkAll, _) => inside::run(tree, image, part, &["-e", "WHOLE=1"]),
        (Part::Ublk | Part::ZeroCopy | Part::Takeover, _) => inside::run(tree, image, part, &[]),
        (Part::Moved, _) => moved::run(tree, image),
        (Part::Package, _) => package::run(tree),
        (Part::Xfstests, _) => xfstests::run(tree, image),
        (Part::Rdma | Part::RdmaHost | Part::RdmaFaults | Part::RdmaDaemon, _) => {
            inside::run(tree, image, part, inside::RDMA)
        }
        (Part::RdmaLink, _) => rdma_link::run(tree, image),
        (Part::Iscsi | Part::IscsiAll, _) => iscsi::run(tree, image, part),
        (Part::Host | Part::Faults, Peer::Raceline) => kernel_host(tree, image, kernel, part),
        (Part::Host | Part::Faults, Peer::Kernel) => {
            let mut guest = guest(tree, image, part)
                .args(["-e", "PEER=kernel", "-e", "PORT=4420", "-e", "FIO_MAX=128k"])
                // On loopback the kernel lends the sender's pages to the receiver. Kernel 6.1 then treats
                // a copy that spans two of them as an attack.
                .args(["-a", "hardened_usercopy=off"])
                .args([image, &script(tree, part)])
                .start()?;
            watch(&mut guest, |request| bail!("request {request} without a target of ours"))
        }
    }
}

fn script(tree: &Tree, part: Part) -> PathBuf {
    tree.root.join("interop/guest").join(match part {
        Part::Host | Part::RdmaHost => "host.sh",
        Part::Faults | Part::RdmaFaults => "faults.sh",
        Part::Target => "nvmet.sh",
        Part::Manage => "namespaces.sh",
        Part::Drives => "drives.sh",
        Part::Auth | Part::AuthAll => "auth.sh",
        Part::Tls => "tls.sh",
        Part::Paths => "paths.sh",
        Part::Cuts | Part::CutsAll => "cuts.sh",
        Part::Adq => "adq.sh",
        Part::Disk => "disk.sh",
        Part::Vhost => "vhost.sh",
        Part::Ublk | Part::UblkAll => "ublk.sh",
        Part::ZeroCopy => "ublk-zero-copy.sh",
        Part::Rdma => "rdma.sh",
        Part::Moved => "moved.sh",
        Part::Package => "package.sh",
        Part::Takeover => "takeover.sh",
        Part::Xfstests => "xfstests.sh",
        Part::RdmaDaemon => "rdma-daemon.sh",
        Part::RdmaLink => "rdma-link.sh",
        Part::Iscsi | Part::IscsiAll => "iscsi.sh",
    })
}

/// A guest that will run the script of `part`; the caller adds image and script.
fn guest(tree: &Tree, image: &Path, part: Part) -> Task {
    let console = image.join("console.log");
    let limit_s = match part {
        Part::Cuts | Part::Moved => CUTS_LIMIT_S,
        Part::UblkAll => UBLK_LIMIT_S,
        // The target is emulated as well.
        Part::Rdma | Part::RdmaHost | Part::RdmaFaults | Part::RdmaDaemon | Part::Takeover => {
            RDMA_LIMIT_S
        }
        Part::ZeroCopy => ZERO_COPY_LIMIT_S,
        Part::RdmaLink => LINK_LIMIT_S,
        Part::CutsAll => ALL_CUTS_LIMIT_S,
        _ => GUEST_LIMIT_S,
    };
    let with_four_cpus = matches!(part, Part::Host | Part::RdmaHost | Part::Takeover);
    let common = tree.root.join("interop/guest");
    let task = Task::new(tree.root.join("interop/run-vm.sh"))
        .args(["-t", &limit_s.to_string()])
        // The host's default is one I/O queue per CPU, and four is the most that is tested.
        .args(["-c", if with_four_cpus { "4" } else { "2" }])
        .args(["-e", &format!("NQN={NQN}")])
        .args([Path::new("-l"), &console, Path::new("-f"), &common.join("lib.sh")])
        .limit(limit_s + 20);
    match part {
        Part::Paths | Part::Cuts | Part::CutsAll => {
            task.args([Path::new("-f"), &common.join("multipath.sh")])
        }
        Part::Ublk | Part::UblkAll => task
            .args([Path::new("-f"), &common.join("ublk-disk.sh")])
            .args([Path::new("-f"), &tree.root.join("packaging/raceline-ublk@.service")]),
        Part::ZeroCopy => task.args([Path::new("-f"), &common.join("ublk-disk.sh")]),
        Part::Rdma => task
            .args([Path::new("-f"), &common.join("ublk-disk.sh")])
            .args([Path::new("-f"), &common.join("roce.sh")])
            .args([Path::new("-f"), &tree.root.join("crates/papers/experiments/ch-t2.toml")]),
        Part::RdmaHost | Part::RdmaFaults => task.args([Path::new("-f"), &common.join("roce.sh")]),
        Part::RdmaDaemon => task
            .args([Path::new("-f"), &common.join("multipath.sh")])
            .args([Path::new("-f"), &common.join("roce.sh")])
            .args([Path::new("-f"), &tree.root.join("crates/papers/experiments/converged.toml")]),
        Part::RdmaLink => task
            .args([Path::new("-f"), &common.join("multipath.sh")])
            .args([Path::new("-f"), &common.join("roce.sh")]),
        _ => task,
    }
}

/// Shows a guest's lines, counts its checks, and passes its requests on.
fn watch(guest: &mut Running, mut request: impl FnMut(&str) -> Result<()>) -> Result<Outcome> {
    let mut checks = Checks::default();
    loop {
        match guest.next_line(Duration::from_millis(500)) {
            Some((_, line)) => {
                if let Some(word) = line.strip_prefix("REQUEST ") {
                    println!("# {word} the target");
                    request(word)?;
                } else if !checks.take_line(&line) {
                    println!("{line}");
                }
            }
            None if guest.alive() => {}
            None => break,
        }
    }
    // A guest that crashed or ran out of time has not printed its last line.
    ensure!(
        guest.output().lines().any(|line| line == "# end of checks"),
        "the guest stopped early\n{}",
        tail(guest.output(), 25)
    );
    checks.outcome()
}

/// The kernel's host against our target.
fn kernel_host(tree: &Tree, image: &Path, kernel: Kernel, part: Part) -> Result<Outcome> {
    let scratch = scratch(tree, image, part)?;
    let file = format!("file:{},size=384M,bs=4096", scratch.join("ns3.img").display());
    let mut devices = vec!["ram:96M", "ram:96M,bs=4096", &file, "-n", NQN, "--allow-any-host"];
    // With one of the kernels, an engine computes the digests of connections.
    if kernel == Kernel::V6_12 && part == Part::Host {
        devices.extend(["--accel", "dsa_emulated"]);
    }
    let mut target = Export::start(tree, &devices)?;
    let port = target.port.to_string();
    let mut guest = guest(tree, image, part)
        .args(["-e", "PEER=raceline", "-e", &format!("PORT={port}")])
        .args([image, &script(tree, part)])
        .start()?;
    let outcome = watch(&mut guest, |request| match request {
        "kill" => {
            target.healthy()?;
            target.kill();
            Ok(())
        }
        "start" => target.restart(),
        other => bail!("the guest asks for '{other}'"),
    });
    let health = target.stop("TERM");
    std::fs::remove_dir_all(&scratch)?;
    let outcome = outcome?;
    health.context("the target after the guest's checks")?;
    Ok(outcome)
}

/// A guest with the kernel's target in it.
struct Nvmet {
    guest: Running,
    control: u16,
    address: Vec<String>,
}

impl Nvmet {
    fn start(tree: &Tree, image: &Path) -> Result<Self> {
        Self::start_with(tree, image, &[])
    }

    /// Starts it with these settings of nvmet.sh.
    fn start_with(tree: &Tree, image: &Path, settings: &[String]) -> Result<Self> {
        let ports = [free_port()?, free_port()?];
        let mut task = guest(tree, image, Part::Target);
        for (outside, inside) in ports.iter().zip(GUEST_PORTS) {
            task = task.args(["-p", &format!("{outside}:{inside}")]);
        }
        for setting in settings {
            task = task.args(["-e", setting]);
        }
        let mut guest = task.args([image, &script(tree, Part::Target)]).start()?;
        guest.wait_for("READY", BOOT_LIMIT_S).context("the guest with the kernel's target")?;
        let address = ["-a", "127.0.0.1", "-s", &ports[0].to_string(), "-n", NQN];
        Ok(Self { guest, control: ports[1], address: address.map(str::to_owned).to_vec() })
    }

    /// Lets the guest carry out a request of nvmet.sh.
    fn request(&self, line: &str) -> Result<()> {
        let mut tries = 0;
        let answer = loop {
            match self.ask(line) {
                // The guest's next listener needs a moment, and more of it on a busy machine.
                Err(error) if tries < REQUEST_TRIES => {
                    println!("# request '{line}' to the guest, again: {error}");
                    tries += 1;
                    std::thread::sleep(Duration::from_secs(1));
                }
                other => break other?,
            }
        };
        std::thread::sleep(Duration::from_millis(300));
        ensure!(answer.trim() == "ok", "request '{line}' to the guest: {}", answer.trim());
        Ok(())
    }

    /// Sends one line to the guest, and gives its answer.
    fn ask(&self, line: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.control))?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        writeln!(stream, "{line}")?;
        let mut answer = String::new();
        // Without a listener, the connection ends without an answer, or is reset.
        match BufReader::new(stream).read_line(&mut answer)? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(answer),
        }
    }
}

pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Our host against the kernel's target.
fn kernel_target(tree: &Tree, image: &Path) -> Result<Outcome> {
    let nvmet = Nvmet::start(tree, image)?;
    let scratch = scratch(tree, image, Part::Target)?;
    let mut checks = Checks::default();
    checks.run("discover", || {
        let ended = host(tree, "discover", &nvmet.address[..4], &[])?;
        ensure!(ended.stdout.contains(NQN), "{NQN} is not listed\n{}", ended.tail(10));
        Ok(())
    });
    checks.run("identify", || {
        let ended = host(tree, "identify", &nvmet.address, &[])?;
        ensure!(ended.stdout.contains(NQN), "no {NQN} in\n{}", ended.tail(10));
        host(tree, "identify", &nvmet.address, &["--namespace", "2", "-o", "json"])?;
        Ok(())
    });
    checks.run("unknown-subsystem", || {
        let mut address = nvmet.address.clone();
        address[5] = "nqn.2014-08.org.example:unknown".to_owned();
        ensure!(host(tree, "identify", &address, &[]).is_err(), "identify succeeded");
        Ok(())
    });
    checks.run("write-read", || {
        for (namespace, blocks) in [("1", "1"), ("1", "256"), ("2", "1"), ("2", "64")] {
            write_read(tree, &nvmet.address, &scratch, namespace, blocks)?;
        }
        Ok(())
    });
    let digests: [(&str, &[&str]); 4] = [
        ("verify-plain", &[]),
        ("verify-header-digest", &["-g"]),
        ("verify-data-digest", &["-G"]),
        ("verify-both-digests", &["-g", "-G", "--namespace", "2"]),
    ];
    for (name, options) in digests {
        checks.run(name, || verify(tree, &nvmet, options));
    }
    // The dots stand for spaces; the line is the result of unknown-subsystem.
    let provoked = "connect.request.for.invalid.subsystem.nqn.2014-08.org.example:unknown";
    checks.run("log-clean", || nvmet.request(&format!("clean {provoked}")));
    checks.run("link-loss", || {
        nvmet.request("lossy")?;
        verify(tree, &nvmet, &["-g", "-G"])?;
        nvmet.request("lossless")
    });
    checks.run("queue-loss", || under_loss(tree, &nvmet, &["drop-io"]));
    checks.run("port-off-on", || under_loss(tree, &nvmet, &["port-off", "port-on"]));
    checks.run("identify-after", || host(tree, "identify", &nvmet.address, &[]).map(drop));
    if !checks.all_passed() {
        println!("{}", tail(nvmet.guest.output(), 20));
    }
    drop(nvmet);
    std::fs::remove_dir_all(&scratch)?;
    checks.outcome()
}

fn verify(tree: &Tree, nvmet: &Nvmet, options: &[&str]) -> Result<()> {
    for (kind, size) in [("randwrite", "4k"), ("randwrite", "64k"), ("randrw", "4k")] {
        let mut words = vec!["--rw", kind, "--bs", size, "--size", "16m", "--iodepth", "8"];
        words.extend(["-i", "2", "--runtime", "2", "--ramp_time", "0", "--verify"]);
        words.extend(options);
        let job = perf_job(tree, &nvmet.address, &words)?;
        ensure!(iops(&job) > 0.0, "{kind} {size}: no I/O");
    }
    Ok(())
}

/// Runs a verifying job while the guest breaks connections as requested.
///
/// The job only reads: the host resubmits reads, but must not replay a write of unknown fate.
fn under_loss(tree: &Tree, nvmet: &Nvmet, requests: &[&str]) -> Result<()> {
    let job = "--bs 4k --size 4m --iodepth 8 -i 2 --ramp_time 0 --verify -o json";
    let words = |rest: &str| -> Vec<String> {
        let address = nvmet.address.iter().cloned();
        let rest = job.split(' ').chain(rest.split(' ')).map(str::to_owned);
        std::iter::once("perf".to_owned()).chain(address).chain(rest).collect()
    };
    let fill = words("--rw write --runtime 3");
    tree.raceline(fill.iter().map(String::as_str))?.check().context("filling")?;
    let read = words("--rw randread --runtime 12");
    let perf = tree.raceline(read.iter().map(String::as_str))?.limit(90).start()?;
    std::thread::sleep(Duration::from_secs(3));
    for request in requests {
        nvmet.request(request)?;
        std::thread::sleep(Duration::from_secs(2));
    }
    let ended = perf.wait()?;
    ensure!(ended.success(), "perf: {}\n{}", ended.why(), ended.tail(15));
    Ok(())
}

/// Random bytes through `raceline write` and back through `raceline read`.
pub(crate) fn write_read(
    tree: &Tree,
    address: &[String],
    scratch: &Path,
    namespace: &str,
    blocks: &str,
) -> Result<()> {
    let block_size = if namespace == "1" { 512 } else { 4096 };
    let count: usize = blocks.parse()?;
    let data: Vec<u8> = (0_u32..)
        .flat_map(|n| n.wrapping_mul(0x9E37_79B1).to_le_bytes())
        .take(count * block_size)
        .collect();
    let (from, to) = (scratch.join("from"), scratch.join("to"));
    std::fs::write(&from, &data)?;
    let (from, to) = (from.to_string_lossy(), to.to_string_lossy());
    let range = ["--namespace", namespace, "--slba", "64", "--blocks", blocks];
    host(tree, "write", address, &[&range[..], &[&*from]].concat())?;
    host(tree, "read", address, &[&range[..], &[&*to]].concat())?;
    let back = std::fs::read(&*to)?;
    ensure!(back == data, "namespace {namespace}, {blocks} blocks: read differs from written");
    std::fs::remove_file(&*to)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_of_a_script_that_knew_no_soft_roce_is_outdated_for_rdma() {
        assert!(is_outdated("", Part::Rdma), "no manifest");
        let old =
            "kernel: 6.12\nmodules: nvme-tcp nvmet\nnot in this kernel:\npackages:\n  rdma_rxe\n";
        for part in [Part::Rdma, Part::RdmaHost, Part::RdmaFaults, Part::RdmaDaemon, Part::RdmaLink]
        {
            assert!(is_outdated(old, part), "{part:?}");
        }
        assert!(!is_outdated(old, Part::Host));
        for known in
            ["modules: nvme-tcp rdma_rxe nvmet", "modules: nvmet\nnot in this kernel: rdma_rxe"]
        {
            assert!(!is_outdated(known, Part::Rdma), "{known}");
        }
    }
}
