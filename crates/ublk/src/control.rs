//! `/dev/ublk-control`: commands about disks, one at a time.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::time::Duration;

use io_uring::register::Restriction;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use crate::disk::DiskError;
use crate::uapi::{self, Command, DeviceInfo, Params, feature};

/// The device.
const CONTROL: &str = "/dev/ublk-control";

/// How often it looks whether a command is still worth waiting for.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Bytes of the memory of a command: as many as the largest structure has.
const MEMORY: usize = 128;

/// The way to the driver.
pub(crate) struct Control {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    file: File,
    /// What the driver can do.
    features: u64,
    encoded: bool,
}

impl Control {
    /// Opens it, and looks what the driver can do.
    ///
    /// # Errors
    /// When this machine has no driver, or this process may not use it or io_uring.
    pub(crate) fn open() -> Result<Self, DiskError> {
        let ring = ring()?;
        let file = OpenOptions::new().read(true).write(true).open(CONTROL);
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => DiskError::NoDriver(release()),
            io::ErrorKind::PermissionDenied => DiskError::NotPermitted,
            _ => DiskError::Open(CONTROL.to_owned(), error),
        })?;
        let mut control = Self { ring, file, features: 0, encoded: true };
        match control.ask_features() {
            Ok(features) => control.features = features,
            // Before Linux 6.5 the question is unknown, and before 6.4 its encoding, too.
            Err(error) => {
                tracing::debug!("{CONTROL} does not tell what it can do: {error}");
                control.encoded = knows_encoding();
            }
        }
        Ok(control)
    }

    fn ask_features(&mut self) -> io::Result<u64> {
        let (memory, _) = self.run(Command::GetFeatures, u32::MAX, 0, (&[], 8), &|| true)?;
        let mut features = [0; 8];
        features.copy_from_slice(&memory[..8]);
        Ok(u64::from_ne_bytes(features))
    }

    /// Whether the driver can give a disk another size.
    pub(crate) fn resizes(&self) -> bool {
        self.features & feature::UPDATE_SIZE != 0
    }

    /// What the driver can do.
    pub(crate) fn features(&self) -> u64 {
        self.features
    }

    /// Whether commands have the numbers of ioctl(2).
    pub(crate) fn is_encoded(&self) -> bool {
        self.encoded
    }

    /// What the kernel knows of a disk.
    pub(crate) fn info(&mut self, id: u32) -> io::Result<DeviceInfo> {
        let (memory, _) = self.run(Command::GetInfo, id, 0, (&[], DeviceInfo::LEN), &|| true)?;
        Ok(device_info(&memory))
    }

    /// Adds a disk; gives what became of it.
    pub(crate) fn add(&mut self, info: &DeviceInfo) -> io::Result<DeviceInfo> {
        let bytes = info.encode();
        let (memory, _) = self.run(Command::Add, info.id, 0, (&bytes, bytes.len()), &|| true)?;
        Ok(device_info(&memory))
    }

    pub(crate) fn set_params(&mut self, id: u32, params: &Params) -> io::Result<()> {
        let bytes = params.encode();
        self.run(Command::SetParams, id, 0, (&bytes, bytes.len()), &|| true).map(drop)
    }

    pub(crate) fn params(&mut self, id: u32) -> io::Result<Params> {
        // The kernel reads how much is asked for.
        let bytes = Params { memory_alignment: 1, ..Params::default() }.encode();
        let (memory, _) = self.run(Command::GetParams, id, 0, (&bytes, bytes.len()), &|| true)?;
        let mut params = [0; Params::LEN];
        params.copy_from_slice(&memory[..Params::LEN]);
        Ok(Params::decode(&params))
    }

    /// A command without memory; `data` is its argument. Gives up when it is not `worth` waiting for any more.
    pub(crate) fn simple(
        &mut self,
        command: Command,
        id: u32,
        data: u64,
        worth: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        self.run(command, id, data, (&[], 0), worth).map(drop)
    }

    /// Sends a command with `bytes` in memory of which the kernel is told `len`, and waits for its end.
    fn run(
        &mut self,
        command: Command,
        id: u32,
        data: u64,
        (bytes, len): (&[u8], usize),
        worth: &dyn Fn() -> bool,
    ) -> io::Result<(Box<[u8; MEMORY]>, i32)> {
        let mut memory = Box::new([0; MEMORY]);
        memory[..bytes.len()].copy_from_slice(bytes);
        let told = u16::try_from(len).ok().filter(|_| len <= MEMORY);
        let told = told.ok_or(io::ErrorKind::InvalidInput)?;
        // The kernel writes to it: from here on nothing else touches it until the command has completed.
        let memory = Box::into_raw(memory);
        let address = if len == 0 { 0 } else { memory.expose_provenance() as u64 };
        let room = uapi::control(id, (address, told), data);
        let entry =
            opcode::UringCmd80::new(Fd(self.file.as_raw_fd()), command.number(self.encoded));
        // SAFETY: the memory has `len` bytes, and is given back only after the completion, or never.
        let pushed = unsafe { self.ring.submission().push(&entry.cmd(room).build()) };
        // One command at a time.
        pushed.map_err(|_| io::ErrorKind::ResourceBusy)?;
        let result = self.wait(worth)?;
        // SAFETY: it came from a box, and the kernel is done with it.
        let memory = unsafe { Box::from_raw(memory) };
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        Ok((memory, result))
    }

    fn wait(&mut self, worth: &dyn Fn() -> bool) -> io::Result<i32> {
        loop {
            let time = Timespec::from(LOOK_INTERVAL);
            let args = SubmitArgs::new().timespec(&time);
            match self.ring.submitter().submit_with_args(1, &args) {
                Ok(_) => {}
                Err(error) => match error.raw_os_error() {
                    Some(ETIME | EINTR | EBUSY | EAGAIN) => {}
                    _ => return Err(error),
                },
            }
            if let Some(entry) = self.ring.completion().next() {
                return Ok(entry.result());
            }
            if !worth() {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
    }
}

/// The structure at the beginning of a command's memory.
fn device_info(memory: &[u8; MEMORY]) -> DeviceInfo {
    let mut bytes = [0; DeviceInfo::LEN];
    bytes.copy_from_slice(&memory[..DeviceInfo::LEN]);
    DeviceInfo::decode(&bytes)
}

const EINTR: i32 = 4;
const EAGAIN: i32 = 11;
const EBUSY: i32 = 16;
const ETIME: i32 = 62;

/// A ring that takes nothing but passthrough commands.
fn ring() -> Result<IoUring<squeue::Entry128, cqueue::Entry>, DiskError> {
    let made = || -> io::Result<_> {
        let mut builder = IoUring::<squeue::Entry128, cqueue::Entry>::builder();
        let ring = builder.setup_r_disabled().build(4)?;
        let submitter = ring.submitter();
        submitter.register_restrictions(&mut [Restriction::sqe_op(opcode::UringCmd80::CODE)])?;
        submitter.register_enable_rings()?;
        Ok(ring)
    };
    made().map_err(DiskError::NoRing)
}

/// Whether this is Linux 6.4 or newer.
fn knows_encoding() -> bool {
    let release = release();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return true };
    (major, minor) >= (6, 4)
}

/// The version of the running kernel.
pub(crate) fn release() -> String {
    let read = std::fs::read_to_string(Path::new("/proc/sys/kernel/osrelease"));
    read.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}
