//! Disks of this machine and of its virtual machines: devices that the daemon shows by vhost-user-blk, by ublk and by NBD.
//!
//! A disk has cores of its own beside those of targets, and is the exclusive user of its device. Where the device is
//! removed, the disk ends before it. Where the device only goes away, the disk ends as well, and is made again when the
//! device comes back. A disk of the configuration that cannot be made at the start waits in the same way.

mod counts;
mod nbd;

use std::collections::BTreeMap;
use std::path::PathBuf;

use raceline_bdev::SharedBdev;
use raceline_ublk::{Disk, DiskConfig, DiskError, Ended, Mark};
use raceline_vhost::{Server, ServerConfig, ServerError};
use serde_json::json;

use super::bdevs::Claim;
use super::catalogue::{Entry, Key, Section};
use super::{Change, Manager, ManagerError};
pub use counts::DiskCounts;
pub use nbd::{NbdDisk, START_NBD};

/// The method that makes a disk for a virtual machine.
pub const CREATE_VHOST: &str = "vhost_create_blk_controller";
/// The method that sets how a virtual machine is told of completions.
pub const SET_COALESCING: &str = "vhost_controller_set_coalescing";
/// The method that makes disks of the kernel possible.
pub const CREATE_UBLK_TARGET: &str = "ublk_create_target";
/// The method that makes a disk of the kernel.
pub const START_UBLK: &str = "ublk_start_disk";

/// The kinds of disks, by SPDK's names of their modules.
const VHOST: &str = "vhost_blk";
const UBLK: &str = "ublk";

/// The longest name of a controller: it is the end of an address of a socket, which has at most 107 bytes.
const MAX_CONTROLLER_NAME: usize = 100;
/// Most queues of a disk of the kernel.
const MAX_UBLK_QUEUES: u32 = 64;
/// Letters of a serial number that guests see.
const SERIAL_LEN: usize = 20;

/// All disks.
#[derive(Default)]
pub struct Disks {
    /// Those of virtual machines, by the names of their controllers.
    pub vhost: BTreeMap<String, VhostDisk>,
    /// Those of the kernel, once they are possible.
    pub ublk: Option<UblkTarget>,
    /// Those of the kernel's NBD client by their numbers.
    pub nbd: BTreeMap<u32, NbdDisk>,
}

/// What a disk for a virtual machine is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostParams {
    /// Its device.
    pub bdev_name: String,
    /// Writes are refused.
    pub read_only: bool,
    /// Its CPUs; empty: one core that is not pinned.
    pub cores: Vec<usize>,
}

/// A disk for a virtual machine.
pub struct VhostDisk {
    /// What it is made of.
    pub params: VhostParams,
    /// Where a virtual machine connects.
    pub socket: PathBuf,
    /// What a client has set: a delay in microseconds, and the rate above which it holds.
    pub coalescing: (u32, u32),
    server: Option<Server>,
}

impl VhostDisk {
    /// Whether it is there: its device is.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.server.is_some()
    }

    /// Whether a virtual machine is connected.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.server.as_ref().is_some_and(Server::is_used)
    }
}

/// What disks of the kernel have in common.
#[derive(Default)]
pub struct UblkTarget {
    /// Their CPUs; empty: no core is pinned.
    pub cores: Vec<usize>,
    /// Data are not copied where kernel and device can do without.
    pub zero_copy: bool,
    /// The disks by their numbers.
    pub disks: BTreeMap<u32, UblkDisk>,
}

/// What a disk of the kernel is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UblkParams {
    /// Its device.
    pub bdev_name: String,
    /// Requests of a queue at a time.
    pub queue_depth: u32,
    /// Its queues, with a core each.
    pub num_queues: u32,
}

/// A disk of the kernel.
pub struct UblkDisk {
    /// What it is made of.
    pub params: UblkParams,
    disk: Option<Disk>,
}

impl UblkDisk {
    /// Whether it is there: its device is.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.disk.is_some()
    }

    /// Whether its data go to and from the device without a copy in this process.
    #[must_use]
    pub fn is_zero_copy(&self) -> bool {
        self.disk.as_ref().is_some_and(Disk::is_zero_copy)
    }
}

impl Disks {
    /// Whether any disk is served.
    #[must_use]
    pub fn any_is_there(&self) -> bool {
        let mut ublk = self.ublk.iter().flat_map(|target| target.disks.values());
        self.vhost.values().any(VhostDisk::is_there)
            || ublk.any(UblkDisk::is_there)
            || self.nbd.values().any(NbdDisk::is_there)
    }

    /// Has the users of disks learn of devices that have grown.
    pub(super) fn follow_sizes(&mut self) {
        self.vhost.values().filter_map(|disk| disk.server.as_ref()).for_each(Server::refresh);
        let ublk = self.ublk.iter_mut().flat_map(|target| target.disks.values_mut());
        for disk in ublk.filter_map(|disk| disk.disk.as_mut()) {
            match disk.follow_size() {
                Ok(None) => {}
                Ok(Some(bytes)) => tracing::info!("{} has {bytes} bytes now", disk.path()),
                Err(error) => tracing::warn!("{}: {error}", disk.path()),
            }
        }
        for (index, disk) in &mut self.nbd {
            let path = raceline_nbd::path(*index);
            match disk.disk.as_mut().map_or(Ok(None), raceline_nbd::Disk::follow_size) {
                Ok(None) => {}
                Ok(Some(bytes)) => tracing::info!("{path} has {bytes} bytes now"),
                Err(error) => tracing::warn!("{path}: {error}"),
            }
        }
    }
}

/// What a disk of a virtual machine that waits for its device is to be.
type WaitingVhost = (String, (VhostParams, PathBuf));

/// Ends the disks of a daemon that ends.
pub(super) fn end_all(disks: Disks) {
    disks.vhost.into_values().filter_map(|disk| disk.server).for_each(Server::stop);
    let ublk = disks.ublk.into_iter().flat_map(|target| target.disks.into_values());
    ublk.filter_map(|disk| disk.disk).for_each(end_ublk);
    disks.nbd.into_values().filter_map(|disk| disk.disk).for_each(nbd::end);
}

/// Ends a disk with the daemon: who uses it waits for the next one.
fn end_ublk(disk: Disk) {
    let path = disk.path();
    match disk.end() {
        Ok(Ended::Removed) => {}
        Ok(Ended::Left(user)) => tracing::warn!(
            "{path} is in use by {user}: it stays, and its I/O waits until this daemon starts again; `raceline disconnect -d \
             {path}` removes it, and what waits fails"
        ),
        Err(error) => tracing::error!("{path} may be left over: {error}"),
    }
}

fn stop_ublk(disk: Disk) {
    let path = disk.path();
    if let Err(error) = disk.stop() {
        tracing::error!("{path} may be left over: {error}");
    }
}

fn vhost_key(name: &str) -> Key {
    Key::new(&["vhost", name])
}

fn ublk_key(id: u32) -> Key {
    Key::new(&["ublk", "disk", &id.to_string()])
}

impl Manager {
    /// Where the socket of a controller is: the name is a path, or that of a file beside the RPC socket.
    fn vhost_socket(&self, name: &str) -> Result<PathBuf, ManagerError> {
        let invalid = |text: String| Err(ManagerError::Invalid(text));
        let shown = name.escape_debug();
        if name.is_empty() || name.len() > MAX_CONTROLLER_NAME {
            return invalid(format!(
                "`{shown}` cannot be a name: 1 to {MAX_CONTROLLER_NAME} bytes"
            ));
        }
        if name.starts_with('/') && !name.contains('\0') {
            return Ok(PathBuf::from(name));
        }
        if name.contains(['/', '\0']) || name == "." || name == ".." {
            return invalid(format!(
                "`{shown}` cannot be a name: it is that of a file, or a path that begins with /"
            ));
        }
        match &self.config().sockets {
            Some(folder) => Ok(folder.join(name)),
            None => invalid(format!("`{shown}` has no folder here: give its path")),
        }
    }

    fn serve_vhost(
        &self,
        (params, socket): (&VhostParams, &PathBuf),
        device: SharedBdev,
    ) -> Result<Server, ManagerError> {
        let digits: String = device.info().uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut config = ServerConfig::new(device, socket.clone());
        config.read_only = params.read_only;
        config.serial = digits[digits.len() - SERIAL_LEN..].to_owned();
        if !params.cores.is_empty() {
            config.cores = params.cores.iter().copied().map(Some).collect();
        }
        Server::start(&config).map_err(|error| ManagerError::Disk {
            errno: vhost_errno(&error),
            text: error.to_string(),
        })
    }
}

/// A disk of the kernel over this device. One whose process was killed goes on.
fn serve_ublk(
    id: u32,
    params: &UblkParams,
    (cores, zero_copy): (&[usize], bool),
    device: SharedBdev,
) -> Result<Disk, ManagerError> {
    let info = device.info();
    let uuid: String = info.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let mark = Mark::of(&format!("bdev {} {uuid}", params.bdev_name));
    let mut config = DiskConfig::new(device, mark);
    config.id = Some(id);
    config.zero_copy = zero_copy;
    config.depth = u16::try_from(params.queue_depth).unwrap_or(u16::MAX);
    let count = usize::try_from(params.num_queues).unwrap_or(1);
    config.cores = match cores {
        [] => vec![None; count],
        cores => cores.iter().copied().map(Some).cycle().take(count).collect(),
    };
    Disk::start(&config).map_err(|error| ublk_error(&error))
}

fn vhost_errno(error: &ServerError) -> i32 {
    match error {
        ServerError::Invalid(_) => libc::EINVAL,
        ServerError::Socket(error) => error.errno(),
        ServerError::Thread(source) | ServerError::Core(source) => {
            source.raw_os_error().unwrap_or(libc::EIO)
        }
    }
}

fn ublk_error(error: &DiskError) -> ManagerError {
    ManagerError::Disk { errno: ublk_errno(error), text: error.to_string() }
}

fn ublk_errno(error: &DiskError) -> i32 {
    match error {
        DiskError::Invalid(_) => libc::EINVAL,
        DiskError::NoDriver(_) => libc::ENODEV,
        DiskError::NoRing(_) | DiskError::NotPermitted => libc::EPERM,
        DiskError::InUse(_) | DiskError::TakenBack(_) | DiskError::Unseen { .. } => libc::EBUSY,
        DiskError::Unended(_) => libc::ETIMEDOUT,
        DiskError::Stuck { source, .. } => ublk_errno(source),
        DiskError::Open(_, source)
        | DiskError::Core(source)
        | DiskError::Command { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        DiskError::Other { .. } | DiskError::NoResize { .. } => libc::EIO,
    }
}

impl Change<'_> {
    /// The device of a disk, claimed for it; `None`: the disk of a configuration waits for it.
    fn device_for_disk(
        &mut self,
        bdev_name: &str,
        claim: Claim,
    ) -> Result<Option<SharedBdev>, ManagerError> {
        if self.may_wait() && self.model().why_missing(bdev_name).is_some() {
            tracing::warn!("{claim} waits for device `{bdev_name}`");
            return Ok(None);
        }
        self.claim_bdev(bdev_name, claim)?;
        Ok(Some(self.model().bdev(bdev_name)?.device.clone()))
    }

    /// What has become of the start of a disk: an error is one of the caller, or at the start of the daemon one that the
    /// rest does not end for.
    fn started<T>(
        &mut self,
        bdev_name: &str,
        what: &str,
        made: Result<T, ManagerError>,
    ) -> Result<Option<T>, ManagerError> {
        match made {
            Ok(disk) => Ok(Some(disk)),
            Err(error) => {
                self.release_bdev(bdev_name);
                if !self.may_wait() {
                    return Err(error);
                }
                tracing::error!("{what} is configured, but not there: {error}");
                Ok(None)
            }
        }
    }

    /// Makes a disk for virtual machines; `entry` is the call that makes it again.
    ///
    /// # Errors
    /// When the name is taken or unusable, or when the device or the socket cannot be used.
    pub fn add_vhost_disk(
        &mut self,
        name: &str,
        params: VhostParams,
        entry: Entry,
    ) -> Result<(), ManagerError> {
        let socket = self.manager().vhost_socket(name)?;
        if self.model().disks.vhost.contains_key(name) {
            return Err(ManagerError::exists("controller", name));
        }
        let claim = Claim::Disk { module: VHOST, name: name.to_owned() };
        let server = match self.device_for_disk(&params.bdev_name, claim)? {
            None => None,
            Some(device) => {
                let made = self.manager().serve_vhost((&params, &socket), device);
                self.started(&params.bdev_name, &format!("disk `{name}`"), made)?
            }
        };
        let disk = VhostDisk { params, socket, coalescing: (0, 0), server };
        self.model_mut().disks.vhost.insert(name.to_owned(), disk);
        self.put(vhost_key(name), entry);
        Ok(())
    }

    /// Keeps how a virtual machine is to be told of completions. It has no effect: each is told at once.
    ///
    /// # Errors
    /// When there is no such controller.
    pub fn set_coalescing(&mut self, name: &str, values: (u32, u32)) -> Result<(), ManagerError> {
        let mut model = self.model_mut();
        let disk = model.disks.vhost.get_mut(name);
        disk.ok_or_else(|| ManagerError::missing("controller", name))?.coalescing = values;
        drop(model);
        let params =
            json!({ "ctrlr": name, "delay_base_us": values.0, "iops_threshold": values.1 });
        let entry = Entry::new(Section::VhostBlk, SET_COALESCING, &params)?;
        self.put(Key::new(&["vhost", name, "coalescing"]), entry);
        Ok(())
    }

    /// Ends a disk for virtual machines after what is in flight, and forgets it.
    ///
    /// # Errors
    /// When there is no such controller.
    pub fn remove_vhost_disk(&mut self, name: &str) -> Result<(), ManagerError> {
        let removed = self.model_mut().disks.vhost.remove(name);
        let disk = removed.ok_or_else(|| ManagerError::missing("controller", name))?;
        if let Some(server) = disk.server {
            server.stop();
            self.release_bdev(&disk.params.bdev_name);
        }
        self.remove(vhost_key(name));
        Ok(())
    }

    /// Makes disks of the kernel possible, by `target`, which has none yet; `entry` is the call that does it again.
    ///
    /// # Errors
    /// When they are already, or when the kernel has no ublk for this process.
    pub fn add_ublk_target(
        &mut self,
        target: UblkTarget,
        entry: Entry,
    ) -> Result<(), ManagerError> {
        if self.model().disks.ublk.is_some() {
            let text = "there is a ublk target already: ublk_destroy_target ends it".to_owned();
            return Err(ManagerError::Disk { errno: libc::EBUSY, text });
        }
        match raceline_ublk::check() {
            // Memory for what the kernel writes to a disk must not wait for that disk. It holds for the cores, too, which
            // this thread starts.
            Ok(()) => raceline_ublk::be_io_flusher(),
            Err(error) if self.manager().replaying.is_restoring() => {
                tracing::error!("disks of ublk are configured, but cannot be made: {error}");
            }
            Err(error) => return Err(ublk_error(&error)),
        }
        self.model_mut().disks.ublk = Some(target);
        self.put(Key::new(&["ublk"]), entry);
        Ok(())
    }

    /// Ends all disks of the kernel, and lets no more be made.
    ///
    /// # Errors
    /// When none were possible, or when one is mounted or the like; then all go on.
    pub fn remove_ublk_target(&mut self) -> Result<(), ManagerError> {
        let ids: Vec<u32> = self
            .model()
            .disks
            .ublk
            .iter()
            .flat_map(|target| target.disks.keys().copied())
            .collect();
        ids.into_iter().try_for_each(|id| self.check_ublk_unused(id))?;
        let taken = self.model_mut().disks.ublk.take();
        let target = taken.ok_or_else(|| no_ublk_target(libc::ENOENT))?;
        for disk in target.disks.into_values() {
            if let Some(running) = disk.disk {
                stop_ublk(running);
                self.release_bdev(&disk.params.bdev_name);
            }
        }
        self.remove(Key::new(&["ublk"]));
        Ok(())
    }

    /// Makes a disk of the kernel; `entry` is the call that makes it again.
    ///
    /// # Errors
    /// When its number is taken, or when the device or the kernel does not let it be.
    pub fn add_ublk_disk(
        &mut self,
        id: u32,
        params: UblkParams,
        entry: Entry,
    ) -> Result<(), ManagerError> {
        let (cores, zero_copy) = {
            let model = self.model();
            let target = model.disks.ublk.as_ref().ok_or_else(|| no_ublk_target(libc::ENODEV))?;
            if target.disks.contains_key(&id) {
                let text = format!("/dev/ublkb{id} is there already: choose another number");
                return Err(ManagerError::Disk { errno: libc::EBUSY, text });
            }
            (target.cores.clone(), target.zero_copy)
        };
        if !(1..=MAX_UBLK_QUEUES).contains(&params.num_queues) {
            let text =
                format!("num_queues {} is not within 1 to {MAX_UBLK_QUEUES}", params.num_queues);
            return Err(ManagerError::Invalid(text));
        }
        let claim = Claim::Disk { module: UBLK, name: id.to_string() };
        let disk = match self.device_for_disk(&params.bdev_name, claim)? {
            None => None,
            Some(device) => {
                let made = serve_ublk(id, &params, (&cores, zero_copy), device);
                self.started(&params.bdev_name, &format!("/dev/ublkb{id}"), made)?
            }
        };
        if let Some(target) = &mut self.model_mut().disks.ublk {
            target.disks.insert(id, UblkDisk { params, disk });
        }
        self.put(ublk_key(id), entry);
        Ok(())
    }

    /// Ends a disk of the kernel after what is in flight, and forgets it.
    ///
    /// # Errors
    /// When there is no such disk, or when it is mounted or the like.
    pub fn remove_ublk_disk(&mut self, id: u32) -> Result<(), ManagerError> {
        self.check_ublk_unused(id)?;
        self.forget_ublk_disk(id)
    }

    /// Refuses the end of a disk that a mount or the like has.
    fn check_ublk_unused(&self, id: u32) -> Result<(), ManagerError> {
        let path = raceline_ublk::path(id);
        let model = self.model();
        let disk = model.disks.ublk.as_ref().and_then(|target| target.disks.get(&id));
        if disk.is_some_and(UblkDisk::is_there) && raceline_ublk::is_held(&path) {
            let text = format!(
                "{path} is in use, by a mount, swap, RAID or device mapper: let go of it first"
            );
            return Err(ManagerError::Disk { errno: libc::EBUSY, text });
        }
        Ok(())
    }

    fn forget_ublk_disk(&mut self, id: u32) -> Result<(), ManagerError> {
        let taken = self.model_mut().disks.ublk.as_mut().and_then(|it| it.disks.remove(&id));
        let disk = taken.ok_or_else(|| ManagerError::missing("ublk disk", &id.to_string()))?;
        if let Some(running) = disk.disk {
            stop_ublk(running);
            self.release_bdev(&disk.params.bdev_name);
        }
        self.remove(ublk_key(id));
        Ok(())
    }

    /// Ends a disk whose device goes; with `forget`, it is not made again.
    pub(super) fn end_disk(
        &mut self,
        module: &str,
        name: &str,
        forget: bool,
    ) -> Result<(), ManagerError> {
        tracing::warn!(module, "disk `{name}` ends: its device goes");
        if module == nbd::NBD {
            return self.end_nbd_disk(name, forget);
        }
        let id = name.parse().ok().filter(|_| module == UBLK);
        match (id, forget) {
            (None, true) => self.remove_vhost_disk(name)?,
            (Some(id), true) => self.forget_ublk_disk(id)?,
            (None, false) => {
                let mut model = self.model_mut();
                let server = model.disks.vhost.get_mut(name).and_then(|disk| disk.server.take());
                drop(model);
                server.into_iter().for_each(Server::stop);
            }
            (Some(id), false) => {
                let mut model = self.model_mut();
                let disks = model.disks.ublk.as_mut().map(|target| &mut target.disks);
                let disk = disks.and_then(|disks| disks.get_mut(&id)?.disk.take());
                drop(model);
                disk.into_iter().for_each(stop_ublk);
            }
        }
        Ok(())
    }

    /// Forgets disks that wait for a device which is not to come.
    pub(super) fn remove_disks_waiting(&mut self, is_gone: impl Fn(&str) -> bool) {
        let (vhost, ublk) = self.disks_waiting(&is_gone);
        for (name, _) in vhost {
            // It is there: only changes remove disks.
            let _ = self.remove_vhost_disk(&name);
        }
        for (id, _) in ublk {
            let _ = self.forget_ublk_disk(id);
        }
        self.remove_nbd_disks_waiting(is_gone);
    }

    /// A device has come: makes the disks that wait for it.
    pub(super) fn show_waiting_disks(&mut self, bdev_name: &str) {
        let (vhost, ublk) = self.disks_waiting(|waited| waited == bdev_name);
        for (name, disk) in vhost {
            let claim = Claim::Disk { module: VHOST, name: name.clone() };
            let made = self.device_for_disk(bdev_name, claim).and_then(|device| match device {
                None => Ok(None),
                Some(device) => {
                    let made = self.manager().serve_vhost((&disk.0, &disk.1), device);
                    self.started(bdev_name, &name, made)
                }
            });
            match made {
                Ok(server) => {
                    if let Some(disk) = self.model_mut().disks.vhost.get_mut(&name) {
                        disk.server = server;
                    }
                }
                Err(error) => tracing::warn!("disk `{name}` cannot be made: {error}"),
            }
        }
        let target = self.model().disks.ublk.as_ref().map(|it| (it.cores.clone(), it.zero_copy));
        let (cores, zero_copy) = target.unwrap_or_default();
        for (id, params) in ublk {
            let claim = Claim::Disk { module: UBLK, name: id.to_string() };
            let made = self.device_for_disk(bdev_name, claim).and_then(|device| match device {
                None => Ok(None),
                Some(device) => {
                    let made = serve_ublk(id, &params, (&cores, zero_copy), device);
                    self.started(bdev_name, &format!("/dev/ublkb{id}"), made)
                }
            });
            match made {
                Ok(made) => {
                    let mut model = self.model_mut();
                    let disks = model.disks.ublk.as_mut().map(|target| &mut target.disks);
                    if let Some(disk) = disks.and_then(|disks| disks.get_mut(&id)) {
                        disk.disk = made;
                    }
                }
                Err(error) => tracing::warn!("/dev/ublkb{id} cannot be made: {error}"),
            }
        }
        self.show_waiting_nbd_disks(bdev_name);
    }

    /// Disks that are configured and not there, whose device is one of these.
    fn disks_waiting(
        &self,
        is_it: impl Fn(&str) -> bool,
    ) -> (Vec<WaitingVhost>, Vec<(u32, UblkParams)>) {
        let model = self.model();
        let vhost = model.disks.vhost.iter();
        let vhost = vhost.filter(|(_, disk)| !disk.is_there() && is_it(&disk.params.bdev_name));
        let vhost =
            vhost.map(|(name, disk)| (name.clone(), (disk.params.clone(), disk.socket.clone())));
        let ublk = model.disks.ublk.iter().flat_map(|target| &target.disks);
        let ublk = ublk.filter(|(_, disk)| !disk.is_there() && is_it(&disk.params.bdev_name));
        (vhost.collect(), ublk.map(|(id, disk)| (*id, disk.params.clone())).collect())
    }
}

fn no_ublk_target(errno: i32) -> ManagerError {
    let text = "there is no ublk target: ublk_create_target makes it".to_owned();
    ManagerError::Disk { errno, text }
}
