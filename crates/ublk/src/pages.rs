//! Whether the data of a disk go between the kernel's requests and the device without a copy in this process.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, OnceLock};

use raceline_bdev::Bdev;

use crate::control::release;
use crate::queue::Copier;
use crate::uapi::{data_offset, feature};

/// What a disk without a copy has of the kernel: pages of requests as buffers of a ring, and a way to copy what cannot go so.
const FEATURES: u64 = feature::AUTO_BUF_REG | feature::USER_COPY;

/// What the driver has to have besides. By this one it is of Linux 6.17, which waits for the pages of a process that was killed
/// before it gives their requests to the next one.
const DRIVER: u64 = FEATURES | feature::BUF_REG_OFF_DAEMON;

/// How the data of a disk's requests get to the device, and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The kernel copies them.
    Mapped,
    /// This process copies them.
    Copied,
    /// They are not copied.
    Pages,
}

impl Way {
    /// That of a disk which has these features, whose device may be asked for [`Way::Pages`] or not.
    pub(crate) fn of(features: u64, may_use_pages: bool) -> Self {
        if features & feature::USER_COPY == 0 {
            Self::Mapped
        } else if features & FEATURES == FEATURES && may_use_pages {
            Self::Pages
        } else {
            Self::Copied
        }
    }
}

/// Why data are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Somebody has said so.
    Refused,
    /// They are not in a file of this machine, or something has to look at them.
    Device,
    /// The kernel is too old.
    Kernel,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("as was asked for"),
            Self::Device => {
                f.write_str(
                    "the device is no plain file or block device of this machine, or it needs data that do not change while \
                     they are written (stable_writes)",
                )
            }
            Self::Kernel => {
                let release = release();
                write!(f, "Linux 6.17 and newer can do without that copy, and this is {release}")
            }
        }
    }
}

/// Whether a disk is to go without a copy: allowed, of a device that can, and with a driver that can.
///
/// # Errors
/// What speaks against it.
pub(crate) fn judge(allowed: bool, device: &dyn Bdev, driver: u64) -> Result<(), Reason> {
    if !allowed {
        return Err(Reason::Refused);
    }
    if !device.takes_pages() {
        return Err(Reason::Device);
    }
    if driver & DRIVER == DRIVER { Ok(()) } else { Err(Reason::Kernel) }
}

/// The features that a disk is asked for with.
pub(crate) fn features(judged: Result<(), Reason>) -> u64 {
    if judged.is_ok() { FEATURES } else { 0 }
}

/// The data of a queue's requests, which its character device reads and writes.
pub(crate) struct Pages {
    file: CharacterDevice,
    queue: u16,
}

/// The character device of a disk, once it is open.
pub(crate) type CharacterDevice = Arc<OnceLock<Arc<File>>>;

impl Pages {
    pub(crate) fn new(file: CharacterDevice, queue: u16) -> Self {
        Self { file, queue }
    }

    fn file(&self) -> io::Result<&File> {
        self.file.get().map(|file| &**file).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Copier for Pages {
    fn take(&mut self, tag: u16, buf: &mut [u8]) -> io::Result<()> {
        self.file()?.read_exact_at(buf, data_offset(self.queue, tag))
    }

    fn give(&mut self, tag: u16, data: &[u8]) -> io::Result<()> {
        self.file()?.write_all_at(data, data_offset(self.queue, tag))
    }
}

#[cfg(test)]
mod tests {
    use raceline_bdev::{DeviceSpec, Identity, SharedBdev};

    use super::*;

    fn device(spec: &str) -> SharedBdev {
        let spec: DeviceSpec = spec.parse().unwrap();
        raceline_bdev::open(&spec, &Identity::of_this_machine()).unwrap()
    }

    #[test]
    fn a_disk_goes_without_a_copy_where_all_sides_can() {
        let name = format!("raceline-ublk-pages-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = device(&format!("file:{},size=1M,buffered", path.display()));
        let ram = device("ram:1M");
        let judged = [
            judge(true, &*file, u64::MAX),
            judge(true, &*file, DRIVER),
            judge(false, &*file, u64::MAX),
            judge(true, &*ram, u64::MAX),
            // Linux 6.12 has one of the two, and Linux 6.15 also a table that the server fills in.
            judge(true, &*file, feature::USER_COPY | 1),
            judge(true, &*file, feature::AUTO_BUF_REG),
            // Linux 6.16 gives requests of a killed process away while their pages are in use.
            judge(true, &*file, FEATURES),
        ];
        drop(file);
        std::fs::remove_file(&path).unwrap();
        let kernel = Reason::Kernel;
        let no = [Reason::Refused, Reason::Device, kernel, kernel, kernel].map(Err);
        assert_eq!(judged[..2], [Ok(()), Ok(())]);
        assert_eq!(judged[2..], no);
        assert_eq!((features(judged[0]), features(judged[2])), (FEATURES, 0));
        assert!(Reason::Kernel.to_string().contains("6.17"));
    }

    #[test]
    fn a_disk_that_goes_on_stays_as_it_was_made() {
        for (features, may_use_pages, way) in [
            (0, true, Way::Mapped),
            (feature::AUTO_BUF_REG, true, Way::Mapped),
            (FEATURES, true, Way::Pages),
            // By a process that is told not to, or by a kernel that has given less than it was asked for.
            (FEATURES, false, Way::Copied),
            (feature::USER_COPY, true, Way::Copied),
        ] {
            assert_eq!(Way::of(features, may_use_pages), way, "{features:#x} {may_use_pages}");
        }
    }

    #[test]
    fn data_are_copied_at_the_place_of_their_tag() {
        let path = std::env::temp_dir().join(format!("raceline-ublk-data-{}", std::process::id()));
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        let file = Arc::new(file);
        let mut pages = Pages::new(Arc::new(OnceLock::from(Arc::clone(&file))), 0);
        pages.give(2, b"data of tag 2").unwrap();
        let mut found = [0; 13];
        file.read_exact_at(&mut found, 0x8400_0000).unwrap();
        assert_eq!(&found, b"data of tag 2");
        let mut taken = [0; 13];
        pages.take(2, &mut taken).unwrap();
        assert_eq!(taken, found);
        // The kernel gives fewer bytes than the request should have.
        pages.take(2, &mut [0; 14]).unwrap_err();
        std::fs::remove_file(&path).unwrap();
    }
}
