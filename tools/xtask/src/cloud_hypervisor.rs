//! The step cloud-hypervisor: a machine of cloud-hypervisor uses disks that `raceline connect --as vhost-user` makes.
//!
//! The guest (`interop/cloud-hypervisor`) is a driver and nothing else, so the step also runs where KVM emulates each
//! instruction. Its disk is a namespace of a target on a file, and the file shows what the guest has written.

mod machine;

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use self::machine::{Machine, signal};
use crate::child::Task;
use crate::nbd::Disk;
use crate::raceline::{Export, Tree};
use crate::setup;
use crate::step::{Checks, Outcome};

/// Names the program.
const PROGRAM: &str = "RACELINE_CLOUD_HYPERVISOR";
/// The target's file in bytes.
const DISK_BYTES: u64 = 64 << 20;
/// By what it grows.
const MORE_BYTES: u64 = 32 << 20;
/// Machines that may start before one of them finds that.
const LOOKS: usize = 20;
/// What the guest reads as the disk's identity.
const SERIAL: &str = "raceline-ch";
/// Bytes of the blocks that the guest writes, and 32-bit words of them.
const BLOCK: usize = 4096;
/// Its sectors.
const SECTORS: u32 = 8;
/// Lines `ok` of a guest that has ended, and of one that has begun with a reset of its machine.
const CHECKS: usize = 24;
const CHECKS_BEFORE_RESET: usize = 3;
/// Rounds of load in which nothing happens, and in which the disk's process does not stay.
const FEW_ROUNDS: u32 = 4;
const ROUNDS: u32 = 26;
/// Requests of a round on each queue.
const DEPTH: u32 = 8;
/// How long a machine is left alone with a device that does not answer: its requests are at the device then.
const STANDSTILL: Duration = Duration::from_millis(500);

/// Runs the step.
pub(crate) fn run(tree: &Tree) -> Result<Outcome> {
    let Some(program) = std::env::var_os(PROGRAM) else {
        let text = format!("{PROGRAM} does not name a program of cloud-hypervisor");
        return Ok(Outcome::Skipped(text));
    };
    let program = PathBuf::from(program);
    ensure!(program.is_file(), "{PROGRAM} names {}, which is no file", program.display());
    if let Err(error) = File::options().read(true).write(true).open("/dev/kvm") {
        return Ok(Outcome::Skipped(format!("/dev/kvm: {error}")));
    }
    if let Some(missing) = setup::missing_for("cloud-hypervisor") {
        return setup::cannot(&missing);
    }
    let version = Task::new(&program).args(["--version"]).check()?.stdout;
    println!("{}", version.trim());
    let dir = tree.scratch("cloud-hypervisor")?;
    let kernel = dir.join("guest");
    Task::new(tree.root.join("interop/cloud-hypervisor/build.sh")).args([&kernel]).check()?;
    let bed = Bed { tree, program, kernel, dir };
    let mut checks = Checks::default();
    checks.run("a machine uses both queues, is reset, and another one follows it", || use_it(&bed));
    checks.run("the disk's process is killed and started again under load", || kill_it(&bed));
    checks.run("a machine that is paused, and gets memory, goes on", || pause_it(&bed));
    checks.run("a machine that wants more queues than there are is refused", || refuse_it(&bed));
    std::fs::remove_dir_all(&bed.dir)?;
    checks.outcome()
}

/// What all machines have.
struct Bed<'a> {
    tree: &'a Tree,
    program: PathBuf,
    kernel: PathBuf,
    dir: PathBuf,
}

/// A target on a file, and the disk that is made of its namespace.
struct Served<'a> {
    tree: &'a Tree,
    file: PathBuf,
    socket: PathBuf,
    target: Export,
    words: Vec<String>,
    disk: Disk,
}

impl<'a> Served<'a> {
    fn start(bed: &Bed<'a>, name: &str, queues: &str) -> Result<Self> {
        let (file, socket) =
            (bed.dir.join(format!("{name}.img")), bed.dir.join(format!("{name}.sock")));
        let device = format!("file:{},size={DISK_BYTES},buffered", file.display());
        let target = Export::start(bed.tree, &[&device])?;
        let mut words = target.address();
        let place = socket.display().to_string();
        let more = ["--socket", &place, "--serial", SERIAL, "--queues", queues];
        words.extend(more.map(str::to_owned));
        let disk = connect(bed.tree, &words)?;
        Ok(Self { tree: bed.tree, file, socket, target, words, disk })
    }

    /// Starts the disk's process again, which has ended.
    fn again(&mut self) -> Result<()> {
        self.disk = connect(self.tree, &self.words)?;
        Ok(())
    }

    /// Ends both. Neither may have had a fault.
    fn end(self) -> Result<()> {
        self.disk.disconnect(self.tree)?;
        self.target.stop("TERM")
    }
}

fn connect(tree: &Tree, words: &[String]) -> Result<Disk> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Disk::start_as(tree, "vhost-user", &words)
}

/// Machines one after the other, of which the first one is reset, and the last one finds that the disk has grown.
fn use_it(bed: &Bed<'_>) -> Result<()> {
    let served = Served::start(bed, "use", "2")?;
    let pid = served.disk.pid();
    let mut first =
        Machine::start(bed, &served.socket, &format!("reboot=1 load={FEW_ROUNDS}"), &[])?;
    for line in ["capacity 131072", "boot 1", "reset", "boot 2", &format!("serial {SERIAL}")] {
        first.reach(line)?;
    }
    ensure!(
        first.end()? == CHECKS_BEFORE_RESET + CHECKS,
        "checks of the first machine are missing"
    );
    check_file(&served.file, 2, FEW_ROUNDS)?;
    // The target, and then the disk's process, look for a new size once a second.
    File::options().write(true).open(&served.file)?.set_len(DISK_BYTES + MORE_BYTES)?;
    let larger = format!("capacity {}", (DISK_BYTES + MORE_BYTES) / 512);
    let mut sizes = Vec::new();
    while !sizes.contains(&larger) {
        ensure!(sizes.len() < LOOKS, "the disk has grown to {larger}, and machines find {sizes:?}");
        std::thread::sleep(STANDSTILL);
        let mut next = Machine::start(bed, &served.socket, "load=0", &[])?;
        sizes.push(next.reach_beginning("capacity ")?);
        let boots = 2 + u32::try_from(sizes.len())?;
        next.reach(&format!("boot {boots}"))?;
        ensure!(next.end()? == CHECKS, "checks of a later machine are missing");
        check_file(&served.file, boots, FEW_ROUNDS)?;
    }
    ensure!(served.disk.pid() == pid, "another process serves the disk");
    served.end()
}

/// The disk's process ends in four ways while the guest writes and reads: amid requests, with requests that it has taken and
/// the device has not done, with requests that it has not taken, and in order.
fn kill_it(bed: &Bed<'_>) -> Result<()> {
    let mut served = Served::start(bed, "kill", "4")?;
    let mut machine = Machine::start(bed, &served.socket, &format!("load={ROUNDS}"), &[])?;
    machine.reach("round 5")?;
    served.disk.kill();
    served.again()?;

    machine.reach("round 10")?;
    signal(served.target.pid(), "STOP")?;
    std::thread::sleep(STANDSTILL);
    served.disk.kill();
    signal(served.target.pid(), "CONT")?;
    served.again()?;

    machine.reach("round 15")?;
    signal(served.disk.pid(), "STOP")?;
    std::thread::sleep(STANDSTILL);
    served.disk.kill();
    served.again()?;

    machine.reach("round 20")?;
    let words = served.words.clone();
    served.disk.disconnect(served.tree)?;
    std::thread::sleep(STANDSTILL);
    served.disk = connect(served.tree, &words)?;

    ensure!(machine.end()? == CHECKS, "checks of the machine are missing");
    check_file(&served.file, 1, ROUNDS)?;
    served.end()
}

/// Calls of cloud-hypervisor's API that reach the disk's process: its rings are disabled and enabled, and it gets another
/// region of memory while it serves them.
fn pause_it(bed: &Bed<'_>) -> Result<()> {
    let served = Served::start(bed, "pause", "2")?;
    let api = bed.dir.join("api.sock");
    let options = ["--api-socket", &format!("path={}", api.display())];
    let mut machine = Machine::start(bed, &served.socket, &format!("load={ROUNDS}"), &options)?;
    machine.reach("round 5")?;
    machine::call(&api, "vm.pause", "")?;
    let standing = machine.rounds();
    std::thread::sleep(STANDSTILL);
    let later = machine.rounds();
    ensure!(later <= standing + 1, "{} rounds went by in a pause", later - standing);
    machine::call(&api, "vm.resume", "")?;
    machine.reach("round 10")?;
    machine::call(&api, "vm.resize", "{\"desired_ram\":268435456}")?;
    machine.reach("round 20")?;
    // Disks by vhost-user keep the size that they had when the machine began.
    let resized =
        machine::call(&api, "vm.resize-disk", "{\"id\":\"_disk0\",\"desired_size\":134217728}");
    ensure!(resized.is_err(), "cloud-hypervisor resizes disks by vhost-user now: check that");
    ensure!(machine.end()? == CHECKS, "checks of the machine are missing");
    check_file(&served.file, 1, ROUNDS)?;
    served.end()
}

fn refuse_it(bed: &Bed<'_>) -> Result<()> {
    let served = Served::start(bed, "refuse", "1")?;
    let refused = Machine::start(bed, &served.socket, "load=0", &[])?.refused()?;
    ensure!(refused.contains("too many queues"), "{refused}");
    served.end()
}

/// Looks into the target's file for what the guest has written: how often machines have started, and blocks.
fn check_file(path: &Path, boots: u32, rounds: u32) -> Result<()> {
    let file = File::open(path)?;
    let read = |sector: u32, bytes: &mut [u8]| {
        let at = u64::from(sector) * 512;
        file.read_exact_at(bytes, at).with_context(|| format!("{}: {at}", path.display()))
    };
    let mut count = [0; 4];
    read(8, &mut count)?;
    ensure!(u32::from_le_bytes(count) == boots, "the file counts {count:?}, not {boots} starts");
    let load = [8192, 8192 + 16384]
        .into_iter()
        .flat_map(|from| (0..rounds * DEPTH).map(move |block| from + block * SECTORS));
    let mut bytes = [0; BLOCK];
    for sector in [64, 128, 512, 1024].into_iter().chain(load) {
        read(sector, &mut bytes)?;
        ensure!(bytes == block(sector), "sector {sector} of the file has other data");
    }
    for sector in [256, 264] {
        read(sector, &mut bytes)?;
        ensure!(bytes == [0; BLOCK], "sector {sector} of the file has data, and should be zero");
    }
    Ok(())
}

/// What the guest writes at a sector.
fn block(sector: u32) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    for (index, word) in (0_u32..).zip(block.chunks_exact_mut(4)) {
        let value =
            sector.wrapping_mul(0x9e37_79b1) ^ index.wrapping_mul(0x85eb_ca6b) ^ 0x5bd1_e995;
        word.copy_from_slice(&value.to_le_bytes());
    }
    block
}
