//! Disks in the life of a target: a disk of a virtual machine as an official client makes it, and what no kernel here has.

use std::path::Path;

use anyhow::{Result, ensure};

use super::RELEASES;
use super::life::Life;

const DISK: &str = "vm1.sock";

impl Life<'_> {
    /// A disk that comes and goes, and one that is refused. The newest client is enough: older ones send the same.
    pub(super) fn disks(&mut self) -> Result<()> {
        if RELEASES.last().is_some_and(|newest| newest.version != self.version()) {
            return Ok(());
        }
        let client = self.client();
        client.run(&["bdev_malloc_create", "-b", "Disk0", "8", "512"])?;
        client.run(&["vhost_create_blk_controller", DISK, "Disk0", "-r"])?;
        let known = &client.json(&["vhost_get_controllers"])?[0];
        let block = &known["backend_specific"]["block"];
        ensure!(known["ctrlr"] == DISK && block["bdev"] == "Disk0", "{known}");
        let socket = known["socket"].as_str().unwrap_or_default();
        ensure!(Path::new(socket).exists(), "there is no {socket}");
        let saved = client.run(&["save_config"])?;
        ensure!(saved.contains("\"vhost_create_blk_controller\""), "save_config has no disk");
        client.run(&["vhost_delete_controller", DISK])?;
        client.run(&["bdev_malloc_delete", "Disk0"])?;
        if !Path::new("/dev/ublk-control").exists() {
            client.refused(&["ublk_start_disk", "M0", "1"], -19, "No such device")?;
        }
        Ok(())
    }
}
