//! open-iscsi and the kernel's initiator on `raceline serve`, which changes its LUNs and is killed.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{Part, free_port, guest, script, watch};
use crate::raceline::Tree;
use crate::serve::Serve;
use crate::step::Outcome;

/// The target node; the guest's script knows what it and the two others have.
const IQN: &str = "iqn.2026-01.io.raceline:interop";
/// Secrets of tests: anyone may know them.
const SECRET: &str = "secret-of-guest-1";
const BACK_SECRET: &str = "secret-of-disk-22";
/// LUN 0 before and after it has grown.
const FILE_BYTES: u64 = 384 << 20;
const GROWN_BYTES: u64 = 448 << 20;

/// A daemon with a state directory, and the verbs on it.
struct Disks<'a> {
    tree: &'a Tree,
    dir: &'a Path,
    daemon: Option<Serve>,
    file: PathBuf,
}

/// Runs the guest's script.
pub(super) fn run(tree: &Tree, image: &Path, part: Part) -> Result<Outcome> {
    let image_name = image.file_name().unwrap_or_default().to_string_lossy();
    let dir = tree.scratch(&format!("interop-iscsi-{image_name}"))?;
    let port = free_port()?;
    let mut disks = Disks { tree, dir: &dir, daemon: None, file: dir.join("lun0.img") };
    disks.start()?;
    disks.set_up(port)?;
    let mut task = guest(tree, image, part);
    for (name, value) in [
        ("PORT", port.to_string().as_str()),
        ("IQN", IQN),
        ("SECRET", SECRET),
        ("BACK_SECRET", BACK_SECRET),
    ] {
        task = task.args(["-e", &format!("{name}={value}")]);
    }
    if part == Part::IscsiAll {
        task = task.args(["-e", "ALL=1", "-e", "KILLS=3"]);
    }
    let mut guest = task.args([image, &script(tree, part)]).start()?;
    let outcome = watch(&mut guest, |request| disks.request(request));
    let health = disks.daemon.take().context("no daemon")?.stop();
    std::fs::remove_dir_all(&dir)?;
    let outcome = outcome?;
    health.context("the daemon after the guest's checks")?;
    Ok(outcome)
}

impl Disks<'_> {
    fn start(&mut self) -> Result<()> {
        let state = self.dir.join("state").display().to_string();
        self.daemon = Some(Serve::start(self.tree, self.dir, &["--state-dir", &state])?);
        Ok(())
    }

    /// A verb of the program on the daemon.
    fn verb(&self, line: &str) -> Result<()> {
        let socket = &self.daemon.as_ref().context("no daemon")?.socket;
        let words = line.split_whitespace();
        self.tree.raceline(words)?.args(["-s"]).args([socket]).limit(60).check()?;
        Ok(())
    }

    fn secret(&self, name: &str, secret: &str) -> Result<String> {
        let path = self.dir.join(name);
        std::fs::write(&path, secret)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        Ok(path.display().to_string())
    }

    fn set_up(&self, port: u16) -> Result<()> {
        std::fs::File::create(&self.file)?.set_len(FILE_BYTES)?;
        let secret = self.secret("secret", SECRET)?;
        let back = self.secret("back", BACK_SECRET)?;
        self.verb(&format!("bdev add file:{} --name file", self.file.display()))?;
        for (name, size) in
            [("memory", "32M"), ("one-way", "4M"), ("mutual", "4M"), ("extra", "8M")]
        {
            self.verb(&format!("bdev add ram:{size} --name {name}"))?;
        }
        self.verb("iscsi initiator add ANY")?;
        self.verb(&format!("iscsi portal add 127.0.0.1:{port} --wait"))?;
        let mutual = format!("--mutual-user disk --mutual-secret {back}");
        self.verb(&format!("iscsi auth add me {secret} --tag 1 {mutual}"))?;
        self.verb(&format!("iscsi target add {IQN} file memory"))?;
        self.verb(&format!("iscsi target add {IQN}-chap one-way --chap required --auth 1"))?;
        self.verb(&format!("iscsi target add {IQN}-mutual mutual --chap mutual --auth 1"))?;
        self.verb("iscsi portal start 1")
    }

    fn request(&mut self, request: &str) -> Result<()> {
        match request {
            "kill" => {
                let mut daemon = self.daemon.take().context("no daemon")?;
                daemon.healthy()?;
                daemon.kill();
                Ok(())
            }
            "start" => self.start(),
            "grow" => {
                std::fs::OpenOptions::new().write(true).open(&self.file)?.set_len(GROWN_BYTES)?;
                self.verb("bdev set file --rescan")
            }
            "add-lun" => self.verb(&format!("iscsi lun add {IQN} extra --lun 5")),
            "remove-lun" => self.verb(&format!("iscsi lun rm {IQN} 5")),
            other => bail!("the guest asks for '{other}'"),
        }
    }
}
