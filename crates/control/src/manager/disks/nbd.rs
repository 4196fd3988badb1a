//! Disks of the kernel's NBD client, `/dev/nbdN`, by servers of this process.

use raceline_bdev::SharedBdev;
use raceline_nbd::{Disk, DiskConfig, DiskError, ServerError, index_of, path};
use serde_json::json;

use super::super::bdevs::Claim;
use super::super::catalogue::{Entry, Key, Section};
use super::super::{Change, ManagerError};

/// The method that makes a disk of the kernel's NBD client.
pub const START_NBD: &str = "nbd_start_disk";

/// SPDK's name of the module.
pub(super) const NBD: &str = "nbd";

/// A disk of the kernel's NBD client.
pub struct NbdDisk {
    /// Its device.
    pub bdev_name: String,
    pub(super) disk: Option<Disk>,
}

impl NbdDisk {
    /// Whether it is there: its device is.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.disk.is_some()
    }
}

/// Ends a disk with the daemon. One that is mounted waits for the next daemon, as after the daemon was killed.
pub(super) fn end(disk: Disk) {
    if !disk.is_held() {
        return stop(disk);
    }
    let path = path(disk.index());
    tracing::warn!(
        "{path} is in use, by a mount, swap, RAID or device mapper: it stays, and its I/O waits for 60 s at most until this \
         daemon starts again, and fails after that; `nbd-client -d {path}` removes it"
    );
    disk.leave();
}

/// Ends a disk of a daemon that goes on without it, or ends.
pub(super) fn stop(disk: Disk) {
    let path = path(disk.index());
    if let Err(error) = disk.stop() {
        tracing::error!("{path} may be left over: {error}");
    }
}

fn key(index: u32) -> Key {
    Key::new(&[NBD, &index.to_string()])
}

fn missing(index: u32) -> ManagerError {
    ManagerError::missing("nbd disk", &path(index))
}

/// A disk over this device; the first that is free if there is no number. One whose process was killed goes on.
fn serve(index: Option<u32>, bdev_name: &str, device: SharedBdev) -> Result<Disk, ManagerError> {
    let uuid: String = device.info().uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let mark = format!("raceline bdev {bdev_name} {uuid}");
    // Memory for what the kernel writes to a disk must not wait for that disk.
    raceline_ublk::be_io_flusher();
    let made = Disk::start(&DiskConfig { device, mark, index, core: None });
    made.map_err(|error| ManagerError::Disk { errno: errno(&error), text: error.to_string() })
}

fn errno(error: &DiskError) -> i32 {
    match error {
        DiskError::NoDriver | DiskError::NoneFree => libc::ENODEV,
        DiskError::NotPermitted => libc::EPERM,
        DiskError::InUse(_) | DiskError::Mounted(_) => libc::EBUSY,
        DiskError::BlockSize(_) | DiskError::Server(ServerError::Invalid(_)) => libc::EINVAL,
        DiskError::NoNetlink(source)
        | DiskError::Server(ServerError::Core(source) | ServerError::Connect(source))
        | DiskError::Kernel { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        DiskError::Server(_) => libc::EIO,
    }
}

impl Change<'_> {
    /// Makes a disk of the kernel's NBD client; gives its number.
    ///
    /// # Errors
    /// When its number is taken, or when the device or the kernel does not let it be.
    pub fn add_nbd_disk(
        &mut self,
        index: Option<u32>,
        bdev_name: &str,
    ) -> Result<u32, ManagerError> {
        if let Some(index) = index.filter(|index| self.model().disks.nbd.contains_key(index)) {
            let text = format!("{} is there already: choose another number", path(index));
            return Err(ManagerError::Disk { errno: libc::EBUSY, text });
        }
        let name = index.map_or_else(|| bdev_name.to_owned(), path);
        let claim = Claim::Disk { module: NBD, name: name.clone() };
        let disk = match self.device_for_disk(bdev_name, claim)? {
            None => None,
            Some(device) => {
                let made = serve(index, bdev_name, device);
                self.started(bdev_name, &name, made)?
            }
        };
        let Some(number) = disk.as_ref().map(Disk::index).or(index) else {
            let text = format!("device `{bdev_name}` is not there: name the disk that is to wait");
            return Err(ManagerError::Disk { errno: libc::ENODEV, text });
        };
        if index.is_none() {
            // The claim has the name by which the disk is ended.
            self.release_bdev(bdev_name);
            self.claim_bdev(bdev_name, Claim::Disk { module: NBD, name: path(number) })?;
        }
        let params = json!({ "bdev_name": bdev_name, "nbd_device": path(number) });
        let entry = Entry::new(Section::Nbd, START_NBD, &params)?;
        let disk = NbdDisk { bdev_name: bdev_name.to_owned(), disk };
        self.model_mut().disks.nbd.insert(number, disk);
        self.put(key(number), entry);
        Ok(number)
    }

    /// Ends a disk of the kernel's NBD client, and forgets it.
    ///
    /// # Errors
    /// When there is no such disk, or when it is mounted or the like.
    pub fn remove_nbd_disk(&mut self, index: u32) -> Result<(), ManagerError> {
        let is_held = {
            let model = self.model();
            let disk = model.disks.nbd.get(&index).ok_or_else(|| missing(index))?;
            disk.disk.as_ref().is_some_and(Disk::is_held)
        };
        if is_held {
            let error = DiskError::Mounted(index);
            return Err(ManagerError::Disk { errno: errno(&error), text: error.to_string() });
        }
        self.forget_nbd_disk(index)
    }

    fn forget_nbd_disk(&mut self, index: u32) -> Result<(), ManagerError> {
        let removed = self.model_mut().disks.nbd.remove(&index);
        let disk = removed.ok_or_else(|| missing(index))?;
        if let Some(running) = disk.disk {
            stop(running);
            self.release_bdev(&disk.bdev_name);
        }
        self.remove(key(index));
        Ok(())
    }

    /// Ends a disk whose device goes; with `forget`, it is not made again.
    pub(super) fn end_nbd_disk(&mut self, name: &str, forget: bool) -> Result<(), ManagerError> {
        let Some(index) = index_of(name) else { return Ok(()) };
        if forget {
            return self.forget_nbd_disk(index);
        }
        let running = self.model_mut().disks.nbd.get_mut(&index).and_then(|it| it.disk.take());
        running.into_iter().for_each(stop);
        Ok(())
    }

    /// Forgets disks that wait for a device which is not to come.
    pub(super) fn remove_nbd_disks_waiting(&mut self, is_gone: impl Fn(&str) -> bool) {
        for (index, _) in self.nbd_disks_waiting(is_gone) {
            // It is there: only changes remove disks.
            let _ = self.forget_nbd_disk(index);
        }
    }

    /// A device has come: makes the disks that wait for it.
    pub(super) fn show_waiting_nbd_disks(&mut self, bdev_name: &str) {
        for (index, _) in self.nbd_disks_waiting(|waited| waited == bdev_name) {
            let claim = Claim::Disk { module: NBD, name: path(index) };
            let made = self.device_for_disk(bdev_name, claim).and_then(|device| match device {
                None => Ok(None),
                Some(device) => {
                    let made = serve(Some(index), bdev_name, device);
                    self.started(bdev_name, &path(index), made)
                }
            });
            match made {
                Ok(made) => {
                    if let Some(disk) = self.model_mut().disks.nbd.get_mut(&index) {
                        disk.disk = made;
                    }
                }
                Err(error) => tracing::warn!("{} cannot be made: {error}", path(index)),
            }
        }
    }

    /// Disks that are configured and not there, whose device is one of these.
    fn nbd_disks_waiting(&self, is_it: impl Fn(&str) -> bool) -> Vec<(u32, String)> {
        let model = self.model();
        let waiting = model.disks.nbd.iter();
        let waiting = waiting.filter(|(_, disk)| !disk.is_there() && is_it(&disk.bdev_name));
        waiting.map(|(index, disk)| (*index, disk.bdev_name.clone())).collect()
    }
}
