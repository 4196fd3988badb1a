//! A local drive that is attached: what was seen of it last, and what has changed since.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use raceline_bdev::{
    Drive, DriveError, DriveNamespace, Drives, Identity, IoPath, PciAddress, SharedBdev,
};
use raceline_proto::host::ControllerInfo;

/// A drive at a PCI address. The kernel tells nobody that looks at sysfs: who follows it looks.
pub struct LocalDrive {
    drives: Drives,
    address: PciAddress,
    /// Of the drive that was attached: another one in its place is not taken for it.
    serial: String,
    io_path: IoPath,
    seen: Mutex<Seen>,
    woken: Condvar,
}

/// What was seen last.
struct Seen {
    /// The drive; the reason if it is not there.
    drive: Result<Drive, String>,
    /// What it says of itself, if it may be asked.
    info: Option<Arc<ControllerInfo>>,
    /// How often what is seen has changed, from 1.
    generation: u64,
    is_ended: bool,
}

impl LocalDrive {
    /// The drive at an address; with a serial number only if it is that one.
    ///
    /// # Errors
    /// When it is not there, or not the kernel's.
    pub fn find(
        drives: &Drives,
        address: PciAddress,
        serial: Option<&str>,
        io_path: IoPath,
    ) -> Result<Self, DriveError> {
        let drive = find(drives, address, serial)?;
        let info = identify(drives, &drive);
        Ok(Self {
            drives: drives.clone(),
            address,
            serial: drive.serial.clone(),
            io_path,
            seen: Mutex::new(Seen { drive: Ok(drive), info, generation: 1, is_ended: false }),
            woken: Condvar::new(),
        })
    }

    /// Where it is plugged in.
    #[must_use]
    pub fn address(&self) -> PciAddress {
        self.address
    }

    /// SN: serial number.
    #[must_use]
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// The drive as it was seen last.
    ///
    /// # Errors
    /// Why it is not there.
    pub fn drive(&self) -> Result<Drive, String> {
        self.seen().drive.clone()
    }

    /// What it says of itself; `None` if this process may not ask it.
    #[must_use]
    pub fn info(&self) -> Option<Arc<ControllerInfo>> {
        self.seen().info.clone()
    }

    /// SPDK's word for how it is.
    #[must_use]
    pub fn state(&self) -> &'static str {
        match self.seen().drive.as_ref().map(|drive| drive.state.as_str()) {
            Ok("live") => "enabled",
            Ok("new" | "connecting" | "resetting") => "resetting",
            Ok(_) | Err(_) => "failed",
        }
    }

    /// The way of data.
    #[must_use]
    pub fn io_path(&self) -> IoPath {
        self.io_path
    }

    /// The node through which the data of a namespace go.
    #[must_use]
    pub fn path(&self, namespace: &DriveNamespace) -> Option<String> {
        Some(self.drives.path(namespace, self.io_path)?.display().to_string())
    }

    /// Opens a namespace.
    ///
    /// # Errors
    /// When it is in use, or of no use.
    pub fn open(&self, nsid: u32, identity: &Identity) -> Result<SharedBdev, DriveError> {
        self.drives.open(&self.now()?, nsid, identity, self.io_path)
    }

    /// The SMART log.
    ///
    /// # Errors
    /// When the drive is not there, or may not be asked.
    pub fn health(&self) -> Result<Vec<u8>, DriveError> {
        self.drives.health(&self.now()?)
    }

    /// Resets the controller, and waits until it is back.
    ///
    /// # Errors
    /// When the drive is not there, or this process may not.
    pub fn reset(&self) -> Result<(), DriveError> {
        let reset = self.drives.reset(&self.now()?);
        // Whoever asks next is told of what it is like now.
        self.look();
        reset
    }

    /// Looks again after `interval`, or at the end; gives how often what is seen has changed.
    #[must_use]
    pub fn wait_change(&self, interval: Duration) -> u64 {
        let waited = self.woken.wait_timeout_while(self.seen(), interval, |seen| !seen.is_ended);
        if waited.is_ok_and(|(seen, _)| seen.is_ended) {
            return 0;
        }
        self.look()
    }

    /// Sees what there is now; gives how often that has changed.
    fn look(&self) -> u64 {
        // Asking the drive takes time, in which others may look.
        let drive = self.now();
        let mut seen = self.seen();
        let drive = drive.map_err(|error| error.to_string());
        if drive == seen.drive {
            return seen.generation;
        }
        match (&seen.drive, &drive) {
            (Err(_), Ok(_)) => tracing::info!("the drive at {} has come back", self.address),
            (Ok(_), Err(reason)) => tracing::warn!("a drive is gone: {reason}"),
            _ => {}
        }
        seen.drive = drive.clone();
        seen.generation += 1;
        let generation = seen.generation;
        drop(seen);
        if let Ok(drive) = drive {
            let info = identify(&self.drives, &drive);
            self.seen().info = info;
        }
        generation
    }

    /// Ends the waiting.
    pub fn end(&self) {
        self.seen().is_ended = true;
        self.woken.notify_all();
    }

    fn now(&self) -> Result<Drive, DriveError> {
        find(&self.drives, self.address, Some(&self.serial))
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        super::super::lock(&self.seen)
    }
}

fn find(drives: &Drives, address: PciAddress, serial: Option<&str>) -> Result<Drive, DriveError> {
    let drive = drives.find(address)?;
    match serial {
        Some(wanted) if wanted != drive.serial => {
            Err(DriveError::OtherDrive { address, found: drive.serial, wanted: wanted.to_owned() })
        }
        _ => Ok(drive),
    }
}

/// A drive that resets does not answer, and whoever asks it would wait.
fn identify(drives: &Drives, drive: &Drive) -> Option<Arc<ControllerInfo>> {
    if drive.state != "live" {
        return None;
    }
    let identified = drives.identify(drive).map_err(|error| error.to_string());
    let info =
        identified.and_then(|data| ControllerInfo::parse(&data).map_err(|error| error.to_string()));
    info.map(Arc::new).inspect_err(|error| tracing::debug!("{error}")).ok()
}
