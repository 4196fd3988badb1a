//! Local NVMe drives: what the kernel's `nvme` driver has at a PCI address, found in sysfs.
//!
//! A drive stays with the kernel. Its namespaces are opened as block devices, exclusively; their data may
//! go through their generic devices (`/dev/ng0n1`) instead. Health, reset and the rest of the drive's identity
//! go through its character device (`/dev/nvme0`).

mod address;
pub(crate) mod generic;
mod ioctl;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use uuid::Uuid;

pub use address::{PciAddress, PciAddressError};

use crate::{Backing, DeviceSpec, Identity, OpenError, SharedBdev, block, confined};
use generic::Generic;

/// The class of an NVM Express controller: mass storage, non-volatile memory, NVMe interface.
const NVME_CLASS: &str = "0x010802";

/// Where udev keeps what it knows of a device, by its number.
const UDEV_DATA: &str = "/run/udev/data";

/// The driver that makes block devices of drives.
const NVME_DRIVER: &str = "nvme";

/// The way of data to and from a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoPath {
    /// Reads and writes of the block device.
    #[default]
    Block,
    /// NVMe commands to the generic device, by io_uring passthrough. The block device is open meanwhile, so
    /// that nothing else uses it.
    Passthrough,
}

/// Where the kernel shows its drives and their nodes.
#[derive(Clone, Debug)]
pub struct Drives {
    sys: PathBuf,
    dev: PathBuf,
    udev: PathBuf,
}

/// A drive as it is at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drive {
    /// Where it is plugged in.
    pub address: PciAddress,
    /// The kernel's name of the controller, e.g. `nvme0`.
    pub controller: String,
    /// What the kernel says of its state, e.g. `live`, `resetting` or `dead`.
    pub state: String,
    /// VID: PCI vendor.
    pub vendor: u16,
    /// MN: model number.
    pub model: String,
    /// SN: serial number.
    pub serial: String,
    /// FR: firmware revision.
    pub firmware: String,
    /// SUBNQN.
    pub subnqn: String,
    /// CNTLID.
    pub cntlid: u16,
    /// Its namespaces that the kernel can use, by number.
    pub namespaces: Vec<DriveNamespace>,
}

/// A namespace of a drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriveNamespace {
    /// NSID.
    pub nsid: u32,
    /// Its block device, e.g. `nvme0n1`; none if the kernel made none that can be used.
    pub block: Option<String>,
    /// It has a generic device, e.g. `ng0n1`.
    pub generic: bool,
    /// Capacity in units of 512 bytes, whatever its block size.
    pub sectors: u64,
    /// Logical block size in bytes.
    pub block_size: u32,
    /// UUID, or NGUID as one, if it has either.
    pub uuid: Option<Uuid>,
    /// It is write protected.
    pub read_only: bool,
    /// Another number each time that the kernel finds it: a drive that went and came back has others.
    pub instance: u64,
}

/// Why a drive cannot be used; one line with what to do.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// Nothing is plugged in there.
    #[error(
        "there is no PCI device at {0}: lspci -D lists them (echo 1 > /sys/bus/pci/rescan looks again)"
    )]
    NoDevice(PciAddress),
    /// Something else is plugged in there.
    #[error("the PCI device at {address} is no NVMe drive (class {class}): lspci -D lists them")]
    NotNvme {
        /// Where.
        address: PciAddress,
        /// Its class.
        class: String,
    },
    /// No driver has it, or another one (one for user space, such as vfio-pci).
    #[error(
        "the drive at {address} is bound to {}, not to the kernel's nvme driver, through which it is \
         used here: {}echo nvme > /sys/bus/pci/devices/{address}/driver_override; \
         echo {address} > /sys/bus/pci/drivers_probe (or SPDK's setup.sh reset)",
        driver.as_deref().unwrap_or("no driver"), unbind(*address, driver.as_deref())
    )]
    NotBound {
        /// Where.
        address: PciAddress,
        /// What is bound, if anything.
        driver: Option<String>,
    },
    /// The driver has it, and could not start it.
    #[error(
        "the kernel has no controller for the drive at {0} (it is starting, or has failed): dmesg says why"
    )]
    NoController(PciAddress),
    /// Another drive than the one that was attached.
    #[error(
        "the drive at {address} has the serial number `{found}`, and not `{wanted}`: another drive is \
         in that place. To use it, detach the controller and attach it again"
    )]
    OtherDrive {
        /// Where.
        address: PciAddress,
        /// Its serial number.
        found: String,
        /// The one of the drive that was attached.
        wanted: String,
    },
    /// The kernel can do nothing with the namespace.
    #[error(
        "namespace {nsid} of the drive at {address} has no block device that can be used: it is \
         formatted with metadata or for another command set (nvme format changes that)"
    )]
    NoBlockDevice {
        /// Where.
        address: PciAddress,
        /// Which.
        nsid: u32,
    },
    /// It has no such namespace.
    #[error("the drive at {address} has no namespace {nsid}: nvme list-ns shows those it has")]
    NoNamespace {
        /// Where.
        address: PciAddress,
        /// Which.
        nsid: u32,
    },
    /// A namespace could not be opened.
    #[error("namespace {nsid} of the drive at {address}: {source}")]
    Open {
        /// Where.
        address: PciAddress,
        /// Which.
        nsid: u32,
        /// Why not.
        source: OpenError,
    },
    /// A namespace cannot be used by passthrough.
    #[error(
        "namespace {nsid} of the drive at {address} cannot be used by passthrough: {reason}. \
         Its block device may serve (\"io_path\": \"block\")"
    )]
    Passthrough {
        /// Where.
        address: PciAddress,
        /// Which.
        nsid: u32,
        /// Why not.
        reason: String,
    },
    /// An admin command or a reset did not succeed.
    #[error("the drive at {address}: cannot {action} through {}: {source}{}", path.display(), right(path, source))]
    Admin {
        /// Where.
        address: PciAddress,
        /// The character device.
        path: PathBuf,
        /// What was asked for.
        action: &'static str,
        /// What the kernel or the drive answered.
        source: io::Error,
    },
    /// sysfs could not be read.
    #[error("the drive at {address}: cannot read {}: {source}", path.display())]
    Sysfs {
        /// Where.
        address: PciAddress,
        /// What.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// The command that frees a drive of its driver.
fn unbind(address: PciAddress, driver: Option<&str>) -> String {
    let command = |driver| format!("echo {address} > /sys/bus/pci/drivers/{driver}/unbind; ");
    driver.map(command).unwrap_or_default()
}

/// What else to say of a refusal.
fn right(path: &Path, error: &io::Error) -> String {
    if let Some(reason) = confined::refusal(path, error) {
        return format!(": {reason}");
    }
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            ": it needs access to that device, and the capability CAP_SYS_ADMIN".to_owned()
        }
        _ => String::new(),
    }
}

impl DriveError {
    /// The errno that says it in short.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoDevice(_) | Self::NoController(_) | Self::NoNamespace { .. } => libc::ENODEV,
            Self::NotNvme { .. } | Self::OtherDrive { .. } => libc::ENODEV,
            Self::NotBound { .. } => libc::EBUSY,
            Self::NoBlockDevice { .. } => libc::ENOTBLK,
            Self::Passthrough { .. } => libc::EOPNOTSUPP,
            Self::Open { source, .. } => match source {
                OpenError::InUse { .. } => libc::EBUSY,
                OpenError::Permission(_) | OpenError::Outside { .. } => libc::EACCES,
                OpenError::ReadOnly(_) => libc::EROFS,
                _ => libc::EIO,
            },
            Self::Admin { source, .. } | Self::Sysfs { source, .. } => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
        }
    }
}

impl Default for Drives {
    fn default() -> Self {
        Self::new("/sys", "/dev")
    }
}

impl Drives {
    /// Drives as these two directories show them.
    #[must_use]
    pub fn new(sys: impl Into<PathBuf>, dev: impl Into<PathBuf>) -> Self {
        Self { sys: sys.into(), dev: dev.into(), udev: UDEV_DATA.into() }
    }

    /// The same with another directory for what udev knows of devices.
    #[must_use]
    pub fn with_udev(self, udev: impl Into<PathBuf>) -> Self {
        Self { udev: udev.into(), ..self }
    }

    /// Looks at the drive at an address.
    ///
    /// # Errors
    /// When there is none, or the kernel's driver does not have it.
    pub fn find(&self, address: PciAddress) -> Result<Drive, DriveError> {
        let device = self.sys.join("bus/pci/devices").join(address.to_string());
        if !device.exists() {
            return Err(DriveError::NoDevice(address));
        }
        let class = attribute(&device, "class").unwrap_or_default();
        if class != NVME_CLASS {
            return Err(DriveError::NotNvme { address, class });
        }
        let driver = fs::read_link(device.join("driver")).ok();
        let driver = driver.and_then(|link| Some(link.file_name()?.to_string_lossy().into_owned()));
        if driver.as_deref() != Some(NVME_DRIVER) {
            return Err(DriveError::NotBound { address, driver });
        }
        let entries = names(&device.join("nvme")).unwrap_or_default();
        let controller = entries.into_iter().find(|name| numbered(name, "nvme").is_some());
        let Some(controller) = controller else {
            return Err(DriveError::NoController(address));
        };
        let own = device.join("nvme").join(&controller);
        let failed = |source| DriveError::Sysfs { address, path: own.clone(), source };
        let text = |name: &str| attribute(&own, name).unwrap_or_default();
        let vendor = attribute(&device, "vendor").unwrap_or_default();
        Ok(Drive {
            address,
            state: text("state"),
            vendor: u16::from_str_radix(vendor.trim_start_matches("0x"), 16).unwrap_or(0),
            model: text("model"),
            serial: text("serial"),
            firmware: text("firmware_rev"),
            subnqn: text("subsysnqn"),
            cntlid: text("cntlid").parse().unwrap_or(0),
            namespaces: self.namespaces(&own).map_err(failed)?,
            controller,
        })
    }

    /// Where drives are plugged in, whatever driver has them, in order.
    #[must_use]
    pub fn addresses(&self) -> Vec<PciAddress> {
        let devices = self.sys.join("bus/pci/devices");
        let names = names(&devices).unwrap_or_default();
        let is_drive =
            |name: &&String| attribute(&devices.join(name), "class").as_deref() == Some(NVME_CLASS);
        let mut addresses: Vec<PciAddress> =
            names.iter().filter(is_drive).filter_map(|name| name.parse().ok()).collect();
        addresses.sort();
        addresses
    }

    /// What a namespace of a drive holds as far as this machine knows: partitions that the kernel sees,
    /// or what udev has recognised. `None` says only that nothing is known.
    #[must_use]
    pub fn contents(&self, drive: &Drive) -> Option<String> {
        let disks = drive.namespaces.iter().filter_map(|namespace| namespace.block.as_deref());
        disks.into_iter().find_map(|disk| {
            let own = self.sys.join("class/block").join(disk);
            let names = names(&own).unwrap_or_default();
            let part = names.into_iter().find(|name| own.join(name).join("partition").exists());
            if let Some(part) = part {
                return Some(format!("{disk} has a partition, {part}"));
            }
            let number = attribute(&own, "dev")?;
            let known = fs::read_to_string(self.udev.join(format!("b{number}"))).ok()?;
            let kinds = ["E:ID_FS_TYPE=", "E:ID_PART_TABLE_TYPE="];
            let kind = |line: &str| {
                let kind = kinds.iter().find_map(|kind| line.strip_prefix(kind))?;
                Some(format!("udev has found {} on {disk}", kind.escape_debug()))
            };
            known.lines().find_map(kind)
        })
    }

    /// The namespaces below a controller. A controller by itself has disks `nvme0n1`; one of a
    /// subsystem with several has hidden ones, `nvme0c1n1`, and the disk of that namespace,
    /// `nvme0n1`, is the subsystem's.
    fn namespaces(&self, controller: &Path) -> io::Result<Vec<DriveNamespace>> {
        let mut namespaces = Vec::new();
        for name in names(controller)? {
            let Some(disk) = disk_of(&name) else { continue };
            let own = controller.join(&name);
            // A namespace that goes away at this moment counts as not there.
            let Ok(metadata) = fs::metadata(&own) else { continue };
            let Some(nsid) = number(&own, "nsid") else { continue };
            let head = self.sys.join("class/block").join(&disk);
            let sectors = number(&head, "size").unwrap_or(0);
            let uuid = ["uuid", "nguid"].iter().find_map(|name| {
                let uuid = Uuid::try_parse(&attribute(&own, name)?).ok()?;
                (!uuid.is_nil()).then_some(uuid)
            });
            namespaces.push(DriveNamespace {
                nsid,
                generic: generic::is_there(&self.sys, &disk),
                block: (sectors > 0).then_some(disk),
                sectors,
                block_size: number(&head, "queue/logical_block_size").unwrap_or(0),
                uuid,
                read_only: number(&head, "ro").unwrap_or(0) != 0,
                instance: metadata.ino(),
            });
        }
        namespaces.sort_by_key(|namespace| namespace.nsid);
        Ok(namespaces)
    }

    /// Opens a namespace for exclusive use. Blocks while it works.
    ///
    /// # Errors
    /// When it is not there, in use, or cannot be used.
    pub fn open(
        &self,
        drive: &Drive,
        nsid: u32,
        identity: &Identity,
        io_path: IoPath,
    ) -> Result<SharedBdev, DriveError> {
        let address = drive.address;
        let found = drive.namespaces.iter().find(|namespace| namespace.nsid == nsid);
        let namespace = found.ok_or(DriveError::NoNamespace { address, nsid })?;
        let disk = namespace.block.as_deref();
        let disk = disk.ok_or(DriveError::NoBlockDevice { address, nsid })?;
        let path = self.dev.join(disk);
        let spec = DeviceSpec {
            uuid: namespace.uuid,
            read_only: namespace.read_only,
            ..DeviceSpec::new(Backing::Block { path: path.clone() })
        };
        let opened = block::open(&spec, &path, identity);
        let device = opened.map_err(|source| DriveError::Open { address, nsid, source })?;
        if io_path == IoPath::Block {
            return Ok(Arc::new(device));
        }
        let refused = |reason| DriveError::Passthrough { address, nsid, reason };
        if !namespace.generic {
            let text = "the kernel has no generic device for it (it is older than Linux 5.13?)";
            return Err(refused(text.to_owned()));
        }
        let own = self.sys.join("class/block").join(disk);
        let generic = Generic::open(&generic::node_of(&self.dev, disk), &own, namespace);
        Ok(Arc::new(device.through(generic.map_err(refused)?)))
    }

    /// The node through which data go.
    #[must_use]
    pub fn path(&self, namespace: &DriveNamespace, io_path: IoPath) -> Option<PathBuf> {
        let disk = namespace.block.as_ref()?;
        Some(match io_path {
            IoPath::Block => self.dev.join(disk),
            IoPath::Passthrough => generic::node_of(&self.dev, disk),
        })
    }

    /// Identify Controller (CNS 01h): 4096 bytes.
    ///
    /// # Errors
    /// When the command cannot be sent, or fails.
    pub fn identify(&self, drive: &Drive) -> Result<Vec<u8>, DriveError> {
        self.admin(drive, "identify it", ioctl::identify_controller)
    }

    /// The log page SMART / Health Information (LID 02h): 512 bytes.
    ///
    /// # Errors
    /// When the command cannot be sent, or fails.
    pub fn health(&self, drive: &Drive) -> Result<Vec<u8>, DriveError> {
        self.admin(drive, "read its health", ioctl::smart_log)
    }

    /// Resets the controller, and waits until that is done. I/O in flight waits and is repeated.
    ///
    /// # Errors
    /// When that is not allowed, or the controller does not come back.
    pub fn reset(&self, drive: &Drive) -> Result<(), DriveError> {
        self.admin(drive, "reset it", ioctl::reset)
    }

    fn admin<T>(
        &self,
        drive: &Drive,
        action: &'static str,
        call: impl FnOnce(&File) -> io::Result<T>,
    ) -> Result<T, DriveError> {
        let path = self.dev.join(&drive.controller);
        let done = OpenOptions::new().read(true).open(&path).and_then(|file| call(&file));
        done.map_err(|source| DriveError::Admin { address: drive.address, path, action, source })
    }
}

/// The disk of a namespace, by the name of what lies below its controller: `nvme0n1` of `nvme0n1` and
/// of `nvme0c1n1`; nothing of `nvme0n1p1`, `ng0n1` or `hwmon2`.
fn disk_of(name: &str) -> Option<String> {
    let (controller, namespace) = name.strip_prefix("nvme")?.split_once('n')?;
    let subsystem = controller.split_once('c').map_or(controller, |(subsystem, _)| subsystem);
    let path = controller.split_once('c').map_or("0", |(_, path)| path);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let all = [subsystem, path, namespace].into_iter().all(is_number);
    all.then(|| format!("nvme{subsystem}n{namespace}"))
}

/// The number after a word.
fn numbered(name: &str, word: &str) -> Option<u32> {
    name.strip_prefix(word)?.parse().ok()
}

fn attribute(directory: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(directory.join(name)).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn number<T: std::str::FromStr>(directory: &Path, name: &str) -> Option<T> {
    attribute(directory, name)?.parse().ok()
}

fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(directory)?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
}

#[cfg(test)]
mod tests;
