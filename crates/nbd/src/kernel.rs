//! Disks of the kernel's NBD client, `/dev/nbdN`, whose servers are in this process.
//!
//! The kernel is given one end of a pair of sockets by generic netlink (linux/nbd-netlink.h). Nothing is negotiated: the
//! request has size, block size and flags of the disk. The kernel keeps a text with a disk that says of which device it is,
//! so that a process which follows one that was killed goes on with the disk.

mod command;

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use raceline_bdev::{BdevInfo, DiskTotals, SharedBdev};
use raceline_netlink::Connection;
use raceline_reactor::CoreLoop;

use crate::{Export, Server, ServerConfig, ServerError};
use command::{Facts, connect, disconnect, reconfigure, resize};

/// The family of the kernel's client.
const FAMILY: &str = "nbd";

/// How often a disk is looked for that another process does not take first.
const ATTEMPTS: usize = 16;

/// `O_EXCL` of Linux, which no architecture has another number for.
const EXCLUSIVE: i32 = 0o200;

/// What a disk is made of.
#[derive(Clone)]
pub struct DiskConfig {
    /// The device.
    pub device: SharedBdev,
    /// A text that names the device and no other: a disk whose process was killed is known by it.
    pub mark: String,
    /// The number N of `/dev/nbdN`; the first that is free, if there is none.
    pub index: Option<u32>,
    /// The core: a number to pin the thread to, or none to let it float.
    pub core: Option<usize>,
}

/// Why there is no disk.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The kernel has no client.
    #[error(
        "the kernel has no NBD client for this process: load its module (modprobe nbd), and stay in the network namespace \
         of the machine"
    )]
    NoDriver,
    /// Generic netlink cannot be used.
    #[error(
        "disks of the kernel's NBD client cannot be asked for here: {0}. A daemon in a sandbox can only if the kernel's \
         module nbd was there when it started: modprobe nbd, and start it again"
    )]
    NoNetlink(io::Error),
    /// It takes root.
    #[error("the kernel lets only root make disks of its NBD client (CAP_SYS_ADMIN)")]
    NotPermitted,
    /// Another one has the disk.
    #[error("{} is in use: choose another disk, or none to have one chosen", path(*.0))]
    InUse(u32),
    /// All disks that were found free had another user a moment later.
    #[error("no disk of the kernel's NBD client stays free: name one")]
    NoneFree,
    /// A mount or the like has it.
    #[error("{} is in use, by a mount, swap, RAID or device mapper: let go of it first", path(*.0))]
    Mounted(u32),
    /// The device cannot be a disk of the kernel's client.
    #[error(
        "the kernel's NBD client has blocks of 512 bytes up to the size of a page, and not of {0} bytes"
    )]
    BlockSize(u32),
    /// The server in this process cannot be.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The kernel refused otherwise.
    #[error("the kernel does not {what} {}: {source}", path(*.index))]
    Kernel {
        /// What was asked for.
        what: &'static str,
        /// The disk.
        index: u32,
        /// Why.
        source: io::Error,
    },
}

/// A disk of the kernel. Dropped without [`Disk::stop`], it stays, and its I/O fails.
pub struct Disk {
    index: u32,
    mark: String,
    device: SharedBdev,
    bytes: u64,
    /// A size that the kernel has refused.
    refused: Option<u64>,
    server: Server,
}

impl Disk {
    /// Starts a server, and has the kernel use it. A disk of the same mark whose process was killed goes on.
    ///
    /// # Errors
    /// When that is not possible; then nothing of it is left.
    pub fn start(config: &DiskConfig) -> Result<Self, DiskError> {
        let info = config.device.info();
        // The kernel's limits (nbd_set_size); the size of a page is at least 4 KiB.
        if !(512..=4096).contains(&info.block_size) {
            return Err(DiskError::BlockSize(info.block_size));
        }
        let mut kernel = open()?;
        let export = Export {
            name: String::new(),
            description: String::new(),
            device: config.device.clone(),
            read_only: false,
        };
        let flags = export.facts().flags(false);
        let mut serving = ServerConfig::new(vec![export], Vec::new());
        serving.cores = vec![config.core];
        let server = Server::start(&serving)?;
        let facts = Facts { bytes: bytes(&info), block_bytes: info.block_size, flags };
        match attach(&mut kernel, config, &facts, &server) {
            Ok(index) => Ok(Self {
                index,
                mark: config.mark.clone(),
                device: config.device.clone(),
                bytes: facts.bytes,
                refused: None,
                server,
            }),
            Err(error) => {
                server.stop();
                Err(error)
            }
        }
    }

    /// The number N of `/dev/nbdN`.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// What it has done for the kernel since this process has it.
    #[must_use]
    pub fn totals(&self) -> DiskTotals {
        self.server.totals()
    }

    /// What the loop of its core has done.
    #[must_use]
    pub fn core_loops(&self) -> Vec<CoreLoop> {
        self.server.core_loops()
    }

    /// Looks how large the device is, and tells the kernel of a change; gives a new size.
    ///
    /// # Errors
    /// When the kernel does not take it. It is told once for each size, and asked again at each look.
    pub fn follow_size(&mut self) -> Result<Option<u64>, DiskError> {
        let info = self.device.info();
        let now = bytes(&info);
        if now == self.bytes {
            self.refused = None;
            return Ok(None);
        }
        let told = open().and_then(|mut kernel| {
            resize(&mut kernel, self.index, &self.mark, (now, info.block_size))
                .map_err(|source| failed("resize", self.index, source))
        });
        match told {
            Ok(()) => {
                (self.bytes, self.refused) = (now, None);
                Ok(Some(now))
            }
            Err(_) if self.refused == Some(now) => Ok(None),
            Err(error) => {
                self.refused = Some(now);
                Err(error)
            }
        }
    }

    /// Whether a mount, swap, RAID or device mapper has it: whoever ends the disk asks before.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let opened = OpenOptions::new().read(true).custom_flags(EXCLUSIVE).open(path(self.index));
        opened.is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
    }

    /// Ends the server, after what has come: the kernel keeps the disk for the process that follows, for as long as it keeps
    /// one whose process was killed.
    pub fn leave(self) {
        self.server.stop();
    }

    /// Has the kernel end the disk, then ends the server. What is in flight fails.
    ///
    /// # Errors
    /// When the kernel refuses; the server has ended all the same, so that I/O fails.
    pub fn stop(self) -> Result<(), DiskError> {
        let told = open().and_then(|mut kernel| {
            disconnect(&mut kernel, self.index)
                .map_err(|source| failed("disconnect", self.index, source))
        });
        self.server.stop();
        told
    }
}

/// The path of a disk.
#[must_use]
pub fn path(index: u32) -> String {
    format!("/dev/nbd{index}")
}

/// The number of the disk at a path.
#[must_use]
pub fn index_of(path: &str) -> Option<u32> {
    let digits = path.strip_prefix("/dev/nbd")?;
    let index = digits.parse().ok().filter(|index: &u32| index.to_string() == digits)?;
    // A minor number has 20 bits, and a disk has 16 partitions or more.
    (index < 1 << 16).then_some(index)
}

fn bytes(info: &BdevInfo) -> u64 {
    info.block_count * u64::from(info.block_size)
}

fn open() -> Result<Connection, DiskError> {
    Connection::open(FAMILY).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => DiskError::NoDriver,
        _ => DiskError::NoNetlink(error),
    })
}

/// Gives the kernel a connection with the server; returns the number of the disk.
fn attach(
    kernel: &mut Connection,
    config: &DiskConfig,
    facts: &Facts,
    server: &Server,
) -> Result<u32, DiskError> {
    let Some(index) = config.index else {
        for _ in 0..ATTEMPTS {
            let index = first_free();
            match attach_as(kernel, index, (facts, &config.mark), server) {
                Err(DiskError::InUse(_)) => {}
                made => return made.map(|()| index),
            }
        }
        return Err(DiskError::NoneFree);
    };
    match attach_as(kernel, index, (facts, &config.mark), server) {
        Err(DiskError::InUse(_)) if mark_of(index).as_deref() == Some(&*config.mark) => {
            // The kernel takes the connection only if the one that it has is dead.
            reconfigure(kernel, index, &config.mark, &server.connect()?)
                .map_err(|_| DiskError::InUse(index))?;
            tracing::info!("{} goes on", path(index));
            let size = (facts.bytes, facts.block_bytes);
            if let Err(error) = resize(kernel, index, &config.mark, size) {
                tracing::warn!("{} may keep its former size: {error}", path(index));
            }
            Ok(index)
        }
        made => made.map(|()| index),
    }
}

fn attach_as(
    kernel: &mut Connection,
    index: u32,
    (facts, mark): (&Facts, &str),
    server: &Server,
) -> Result<(), DiskError> {
    // What was not there before goes with the disk.
    let is_new = !place(index).exists();
    connect(kernel, (index, is_new), (facts, mark), &server.connect()?)
        .map_err(|source| failed("make", index, source))
}

fn failed(what: &'static str, index: u32, source: io::Error) -> DiskError {
    match source.kind() {
        io::ErrorKind::ResourceBusy => DiskError::InUse(index),
        io::ErrorKind::PermissionDenied => DiskError::NotPermitted,
        _ => DiskError::Kernel { what, index, source },
    }
}

fn place(index: u32) -> std::path::PathBuf {
    Path::new("/sys/block").join(format!("nbd{index}"))
}

/// The first disk that nobody uses; one that there is not yet, if all are used.
fn first_free() -> u32 {
    let is_free = |index: &u32| !place(*index).join("pid").exists();
    (0..1 << 16).find(is_free).unwrap_or_default()
}

/// What the kernel keeps with a disk (since Linux 5.15).
fn mark_of(index: u32) -> Option<String> {
    let text = fs::read_to_string(place(index).join("backend")).ok()?;
    Some(text.trim_end_matches(['\n', '\0']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_that_of_a_disk() {
        assert_eq!(index_of("/dev/nbd0"), Some(0));
        assert_eq!(index_of(&path(65_535)), Some(65_535));
        for wrong in [
            "/dev/nbd",
            "/dev/nbd01",
            "/dev/nbd0p1",
            "/dev/nbd-1",
            "/dev/nbd+1",
            "nbd0",
            "",
            "/dev/nbd65536",
        ] {
            assert_eq!(index_of(wrong), None, "{wrong}");
        }
    }
}
