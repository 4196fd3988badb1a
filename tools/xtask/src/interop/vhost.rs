//! Disks that `raceline connect --as vhost-user` makes outside, in a guest: QEMU is the front end. One is a guest's second
//! disk, the others are what guests start from: the small system of the other guests, and an ordinary Debian.

use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};

use super::{Part, cache, guest, script, watch};
use crate::child::{Task, has_program};
use crate::nbd::Disk;
use crate::raceline::Tree;
use crate::setup;
use crate::step::Outcome;

/// Size of the second disk at first.
const MIB: u64 = 160;
/// What it grows by when the guest asks for it.
const MORE_MIB: u64 = 96;
/// By what the guest finds the second disk.
const SERIAL: &str = "raceline-vhost";
/// By what the guest finds the disk that it started from.
const BOOT_SERIAL: &str = "raceline-boot";
/// The longest that it may take to make a disk to start from.
const MAKE_LIMIT_S: u64 = 60;
/// The longest that it may take to make a Debian, in seconds.
const DEBIAN_LIMIT_S: u64 = 900;
/// The longest that a Debian may run, in seconds: it reads all files of its packages.
const RUN_LIMIT_S: u64 = 1200;

/// What a machine starts from.
struct System<'a> {
    name: &'a str,
    /// A folder with its root, kernel and initramfs.
    image: &'a Path,
}

/// The disk's process, which can be killed and started again.
struct Server<'a> {
    tree: &'a Tree,
    words: Vec<String>,
    disk: Option<Disk>,
}

impl<'a> Server<'a> {
    /// Starts it. The file is made with a size, if one is named.
    fn start(
        tree: &'a Tree,
        place: (&Path, &Path),
        serial: &str,
        mib: Option<u64>,
    ) -> Result<Self> {
        let (file, socket) = (place.0.display(), place.1.display().to_string());
        let words = |device: &str| {
            let words = ["--bdev", device, "--socket", &socket, "--serial", serial];
            words.map(str::to_owned).to_vec()
        };
        let first = match mib {
            Some(mib) => format!("file:{file},size={mib}M,buffered"),
            None => format!("file:{file},buffered"),
        };
        let mut server = Self { tree, words: words(&first), disk: None };
        server.again()?;
        // A disk that was killed has left the file as it was.
        server.words = words(&format!("file:{file},buffered"));
        Ok(server)
    }

    /// Starts it again, and kills it before where it runs.
    fn again(&mut self) -> Result<()> {
        if let Some(mut killed) = self.disk.take() {
            killed.kill();
        }
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        self.disk = Some(Disk::start_as(self.tree, "vhost-user", &words)?);
        Ok(())
    }

    fn end(self) -> Result<()> {
        self.disk.map_or(Ok(()), |disk| disk.disconnect(self.tree))
    }
}

/// Runs a guest with such a disk beside its own, then one that starts from such a disk.
pub(super) fn run(tree: &Tree, image: &Path) -> Result<Outcome> {
    if let Some(missing) = setup::missing_for("vhost") {
        return setup::cannot(&missing);
    }
    let second = second_disk(tree, image)?;
    let mut said = format!("second disk: {}", crate::text(&second));
    let debian = debian(tree, "debian", &[])?;
    if debian.is_none() {
        println!(
            "# no start from a Debian: that needs root and mmdebstrap (apt install mmdebstrap)"
        );
    }
    let small = System { name: "small", image };
    let debian = debian.as_ref().map(|image| System { name: "debian", image });
    for system in [Some(small), debian].into_iter().flatten() {
        let (first, again) = start_from(tree, image, &system)?;
        let [first, again] = [&first, &again].map(crate::text);
        write!(said, "; start from it ({}): {first}, again: {again}", system.name)?;
    }
    Ok(Outcome::Passed(said))
}

/// A folder of this name with an ordinary Debian, which is made once by these words of debian-disk.sh; none where it cannot be
/// made.
pub(super) fn debian(tree: &Tree, name: &str, words: &[&str]) -> Result<Option<PathBuf>> {
    if !setup::is_root() || !has_program("mmdebstrap") {
        return Ok(None);
    }
    let make = Task::new(tree.root.join("interop/debian-disk.sh"));
    let made = make.args([cache(tree).join(name)]).args(words).limit(DEBIAN_LIMIT_S).check()?;
    let folder = PathBuf::from(made.stdout.lines().last().unwrap_or_default());
    ensure!(folder.is_dir(), "no folder {}", folder.display());
    Ok(Some(folder))
}

fn second_disk(tree: &Tree, image: &Path) -> Result<Outcome> {
    let scratch = super::scratch(tree, image, Part::Vhost)?;
    let (file, socket) = (scratch.join("disk.img"), scratch.join("disk.sock"));
    let mut server = Server::start(tree, (&file, &socket), SERIAL, Some(MIB))?;
    // The memory is what run-vm.sh gives the machine. QEMU connects again once a second.
    let machine = format!(
        "-object memory-backend-memfd,id=shared,size=1024M,share=on -machine memory-backend=shared \
         -chardev socket,id=disk,path={},reconnect=1 -device vhost-user-blk-pci,chardev=disk,num-queues=2",
        socket.display()
    );
    let mut guest = guest(tree, image, Part::Vhost)
        .env("QEMU_ARGS", &machine)
        .args(["-m", "1024", "-e", &format!("SERIAL={SERIAL}"), "-e", &format!("MIB={MIB}")])
        .args([image, &script(tree, Part::Vhost)])
        .start()?;
    let outcome = watch(&mut guest, |request| match request {
        "kill" => server.again(),
        "grow" => {
            let file = File::options().write(true).open(&file)?;
            Ok(file.set_len((MIB + MORE_MIB) << 20)?)
        }
        other => bail!("the guest asks for '{other}'"),
    });
    let ended = server.end();
    std::fs::remove_dir_all(&scratch)?;
    let outcome = outcome?;
    ended?;
    Ok(outcome)
}

/// Starts a machine twice from the disk that has its loader, its kernel and its root. The second start finds what the first
/// one wrote.
fn start_from(tree: &Tree, image: &Path, system: &System<'_>) -> Result<(Outcome, Outcome)> {
    let scratch = super::scratch(tree, image, Part::Vhost)?;
    let (file, socket) = (scratch.join("boot.img"), scratch.join("boot.sock"));
    let make = Task::new(tree.root.join("interop/boot-disk.sh"));
    make.args([system.image, &file]).limit(MAKE_LIMIT_S).check()?;
    let mut server = Server::start(tree, (&file, &socket), BOOT_SERIAL, None)?;
    let mut start = |boot: &str| {
        let mut guest = guest(tree, image, Part::Vhost)
            .args([Path::new("-b"), &socket])
            .args(["-e", &format!("SERIAL={BOOT_SERIAL}"), "-e", &format!("BOOT={boot}")])
            .args(["-e", &format!("SYSTEM={}", system.name), "-t", &RUN_LIMIT_S.to_string()])
            .limit(RUN_LIMIT_S + 20)
            .args([image, &tree.root.join("interop/guest/vhost-boot.sh")])
            .start()?;
        watch(&mut guest, |request| match request {
            "kill" => server.again(),
            other => bail!("the guest asks for '{other}'"),
        })
    };
    let outcomes = start("first").and_then(|first| Ok((first, start("again")?)));
    let ended = server.end();
    std::fs::remove_dir_all(&scratch)?;
    let outcomes = outcomes?;
    ended?;
    Ok(outcomes)
}
