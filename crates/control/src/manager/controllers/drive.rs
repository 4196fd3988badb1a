//! An attached local drive: what was last seen of it, and how often that has changed.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use raceline_bdev::{
    Drive, DriveError, DriveNamespace, Drives, Identity, IoPath, PciAddress, SharedBdev,
};
use raceline_proto::host::ControllerInfo;

/// A drive at a PCI address. The kernel sends no event to a reader of sysfs, so the follower polls.
pub struct LocalDrive {
    drives: Drives,
    address: PciAddress,
    /// Serial number of the attached drive: another drive in its place is not mistaken for it.
    serial: String,
    io_path: IoPath,
    last: Mutex<Observation>,
    woken: Condvar,
}

/// What was found when the drive was looked at last.
struct Observation {
    /// The drive, or the reason why it is absent.
    drive: Result<Drive, String>,
    /// Its Identify data, if this process may ask for it.
    info: Option<Arc<ControllerInfo>>,
    /// How often the observation has changed, from 1.
    generation: u64,
    is_ended: bool,
}

impl LocalDrive {
    /// The drive at an address; if a serial number is given, only a drive that has it.
    ///
    /// # Errors
    /// When there is no such drive, or the kernel does not drive it.
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
            last: Mutex::new(Observation {
                drive: Ok(drive),
                info,
                generation: 1,
                is_ended: false,
            }),
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

    /// The drive as last observed.
    ///
    /// # Errors
    /// Why the drive is absent.
    pub fn drive(&self) -> Result<Drive, String> {
        self.last().drive.clone()
    }

    /// Its Identify data; `None` if this process may not ask for it.
    #[must_use]
    pub fn info(&self) -> Option<Arc<ControllerInfo>> {
        self.last().info.clone()
    }

    /// SPDK's word for its state.
    #[must_use]
    pub fn state(&self) -> &'static str {
        match self.last().drive.as_ref().map(|drive| drive.state.as_str()) {
            Ok("live") => "enabled",
            Ok("new" | "connecting" | "resetting") => "resetting",
            Ok(_) | Err(_) => "failed",
        }
    }

    /// The path that its data take.
    #[must_use]
    pub fn io_path(&self) -> IoPath {
        self.io_path
    }

    /// The device node through which the data of a namespace pass.
    #[must_use]
    pub fn path(&self, namespace: &DriveNamespace) -> Option<String> {
        Some(self.drives.path(namespace, self.io_path)?.display().to_string())
    }

    /// Opens a namespace.
    ///
    /// # Errors
    /// When it is in use, or cannot be used.
    pub fn open(&self, nsid: u32, identity: &Identity) -> Result<SharedBdev, DriveError> {
        self.drives.open(&self.now()?, nsid, identity, self.io_path)
    }

    /// The SMART log.
    ///
    /// # Errors
    /// When the drive is absent, or this process may not ask it.
    pub fn health(&self) -> Result<Vec<u8>, DriveError> {
        self.drives.health(&self.now()?)
    }

    /// Resets the controller, and waits until it is back.
    ///
    /// # Errors
    /// When the drive is absent, or this process may not reset it.
    pub fn reset(&self) -> Result<(), DriveError> {
        let reset = self.drives.reset(&self.now()?);
        // The next caller sees the state after the reset.
        self.look();
        reset
    }

    /// Observes the drive after `interval`, or at the end; gives how often the observation has changed.
    #[must_use]
    pub fn wait_change(&self, interval: Duration) -> u64 {
        let waited = self.woken.wait_timeout_while(self.last(), interval, |last| !last.is_ended);
        if waited.is_ok_and(|(last, _)| last.is_ended) {
            return 0;
        }
        self.look()
    }

    /// Observes the drive now; gives how often the observation has changed.
    fn look(&self) -> u64 {
        // Asking the drive takes time; others may read the last observation meanwhile.
        let drive = self.now();
        let mut last = self.last();
        let drive = drive.map_err(|error| error.to_string());
        if drive == last.drive {
            return last.generation;
        }
        match (&last.drive, &drive) {
            (Err(_), Ok(_)) => tracing::info!("the drive at {} has come back", self.address),
            (Ok(_), Err(reason)) => tracing::warn!("a drive is gone: {reason}"),
            _ => {}
        }
        last.drive = drive.clone();
        last.generation += 1;
        let generation = last.generation;
        drop(last);
        if let Ok(drive) = drive {
            let info = identify(&self.drives, &drive);
            self.last().info = info;
        }
        generation
    }

    /// Ends waits in `wait_change`.
    pub fn end(&self) {
        self.last().is_ended = true;
        self.woken.notify_all();
    }

    fn now(&self) -> Result<Drive, DriveError> {
        find(&self.drives, self.address, Some(&self.serial))
    }

    fn last(&self) -> MutexGuard<'_, Observation> {
        super::super::lock(&self.last)
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

/// A drive that is being reset does not answer, and a caller that asks it would wait.
fn identify(drives: &Drives, drive: &Drive) -> Option<Arc<ControllerInfo>> {
    if drive.state != "live" {
        return None;
    }
    let identified = drives.identify(drive).map_err(|error| error.to_string());
    let info =
        identified.and_then(|data| ControllerInfo::parse(&data).map_err(|error| error.to_string()));
    info.map(Arc::new).inspect_err(|error| tracing::debug!("{error}")).ok()
}
