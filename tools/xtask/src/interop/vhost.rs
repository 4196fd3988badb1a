//! A guest's own disk, which `raceline connect --as vhost-user` makes outside: QEMU is the front end.

use std::fs::File;
use std::path::Path;

use anyhow::{Result, bail};

use super::{Part, guest, script, watch};
use crate::nbd::Disk;
use crate::raceline::Tree;
use crate::step::Outcome;

/// Size of the disk at first.
const MIB: u64 = 160;
/// What it grows by when the guest asks for it.
const MORE_MIB: u64 = 96;
/// By what the guest finds the disk.
const SERIAL: &str = "raceline-vhost";

/// Runs the guest's script.
pub(super) fn run(tree: &Tree, image: &Path) -> Result<Outcome> {
    let scratch = super::scratch(tree, image)?;
    let (file, socket) = (scratch.join("disk.img"), scratch.join("disk.sock"));
    let device = format!("file:{},size={MIB}M,buffered", file.display());
    let socket = socket.display().to_string();
    let words = ["--bdev", &device, "--socket", &socket, "--serial", SERIAL];
    // A disk that was killed has left the file as it was.
    let again = format!("file:{},buffered", file.display());
    let words_again = ["--bdev", &again, "--socket", &socket, "--serial", SERIAL];
    let mut disk = Some(Disk::start_as(tree, "vhost-user", &words)?);
    // The memory is what run-vm.sh gives the machine. QEMU connects again once a second.
    let machine = format!(
        "-object memory-backend-memfd,id=shared,size=1024M,share=on -machine memory-backend=shared \
         -chardev socket,id=disk,path={socket},reconnect=1 -device vhost-user-blk-pci,chardev=disk,num-queues=2"
    );
    let mut guest = guest(tree, image, Part::Vhost)
        .env("QEMU_ARGS", &machine)
        .args(["-m", "1024", "-e", &format!("SERIAL={SERIAL}"), "-e", &format!("MIB={MIB}")])
        .args([image, &script(tree, Part::Vhost)])
        .start()?;
    let outcome = watch(&mut guest, |request| match request {
        "kill" => {
            if let Some(mut killed) = disk.take() {
                killed.kill();
            }
            disk = Some(Disk::start_as(tree, "vhost-user", &words_again)?);
            Ok(())
        }
        "grow" => {
            let file = File::options().write(true).open(&file)?;
            Ok(file.set_len((MIB + MORE_MIB) << 20)?)
        }
        other => bail!("the guest asks for '{other}'"),
    });
    let ended = disk.map_or(Ok(()), |disk| disk.disconnect(tree));
    std::fs::remove_dir_all(&scratch)?;
    let outcome = outcome?;
    ended?;
    Ok(outcome)
}
