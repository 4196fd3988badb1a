//! The Debian package on an ordinary Debian 13 with systemd, which starts twice: the guide's commands, and a disk of
//! `raceline-ublk@.service` under faults.

use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

use super::{Part, guest, script, vhost, watch};
use crate::package;
use crate::raceline::Tree;
use crate::setup;
use crate::step::Outcome;

/// The release, and what it has besides the smallest system: programs that judge.
const DEBIAN: [&str; 2] = ["trixie", "fio,iproute2,nbd-client,libnbd-bin"];
/// Bytes of the guest's NVMe drive.
const DRIVE_BYTES: u64 = 384 << 20;
/// The longest that the guest may run, in seconds: about four times what a quiet two-core machine needs.
const RUN_LIMIT_S: u64 = 1800;
/// What a guest has in the place of what the guide names: the machine is its own target.
const INSTEAD: [(&str, &str); 2] =
    [("192.0.2.1", "127.0.0.1"), ("HOSTNQN", "nqn.2026-01.com.example:host")];
/// The guide's section whose commands the guest runs.
const SECTION: &str = "## Install it";
/// How the guide's line for /etc/fstab begins.
const FSTAB: &str = "/dev/ublkb1 ";

/// Runs the guest's script.
pub(super) fn run(tree: &Tree) -> Result<Outcome> {
    let Some(image) = vhost::debian(tree, "debian-trixie", &DEBIAN)? else {
        return setup::cannot("a Debian is made by root, with mmdebstrap (apt install mmdebstrap)");
    };
    let dir = tree.scratch("interop-package")?;
    let deb = package::deb(tree, &dir.join("made"))?;
    let text = std::fs::read_to_string(tree.root.join("docs/OPERATORS.md"))?;
    let guide = Guide::read(&text)?;
    let commands = dir.join("guide.sh");
    std::fs::write(&commands, &guide.script)?;
    let drive = dir.join("drive.img");
    File::create(&drive)?.set_len(DRIVE_BYTES)?;
    // The machine starts again where others end.
    let machine = format!(
        "-action reboot=reset -drive if=none,id=n0,format=raw,cache=unsafe,file={} -device nvme,serial=guest,drive=n0",
        drive.display()
    );
    let mut guest = guest(tree, &image, Part::Package)
        .env("QEMU_ARGS", &machine)
        .args(["-t", &RUN_LIMIT_S.to_string(), "-a", "root=LABEL=guest"])
        .args(["-e", &format!("FSTAB={}", guide.fstab)])
        .args([Path::new("-f"), &deb, Path::new("-f"), &commands])
        .args([&image, &script(tree, Part::Package)])
        .limit(RUN_LIMIT_S + 20)
        .start()?;
    let outcome = watch(&mut guest, |request| bail!("the guest asks for '{request}'"));
    std::fs::remove_dir_all(&dir)?;
    outcome
}

/// What the guest takes from the operator's guide.
struct Guide {
    /// The commands, each of which is shown before it runs.
    script: String,
    /// The line for /etc/fstab.
    fstab: String,
}

impl Guide {
    fn read(text: &str) -> Result<Self> {
        let fstab = text.split('`').find(|quoted| quoted.starts_with(FSTAB));
        let fstab = fstab.context("the guide has no line for /etc/fstab")?.to_owned();
        let section = text.split("\n## ").find(|part| part.starts_with(&SECTION[3..]));
        let mut script = String::new();
        let mut commands = 0;
        for line in section.context("the guide has no section about the installation")?.lines() {
            let Some(command) = line.strip_prefix("    ") else { continue };
            if command.starts_with("podman ") {
                continue;
            }
            let command =
                INSTEAD.iter().fold(command.to_owned(), |text, (from, to)| text.replace(from, to));
            writeln!(script, "echo '+ {}'\n{command}", command.replace('\'', "'\\''"))?;
            commands += 1;
        }
        ensure!(commands >= 15, "the guide installs by {commands} commands");
        Ok(Self { script, fstab })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_says_how_to_install_and_mount() {
        let guide = include_str!("../../../../docs/OPERATORS.md");
        let Guide { script, fstab } = Guide::read(guide).unwrap();
        for command in [
            "apt install ./raceline_*.deb",
            "systemctl enable raceline-ublk@disk1",
            "raceline port add nqn.2026-01.com.example:disks 127.0.0.1:4420",
        ] {
            assert!(script.lines().any(|line| line == command), "{command}: {script}");
        }
        assert!(!script.contains("podman") && !script.contains("raceline config save"));
        assert!(fstab.contains("x-systemd.after=raceline-ublk@disk1.service"), "{fstab}");
        assert!(Guide::read("# Guide\n\n## Install it\n\n    one\n").is_err());
    }
}
