//! The sizes of files and drives, which may grow while they are served.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use raceline_bdev::{BdevInfo, SharedBdev};

use crate::failure::Failure;

/// The time between two looks of [`Following`].
const INTERVAL: Duration = Duration::from_secs(1);

/// Devices whose sizes are looked at now and then.
pub(crate) struct Sizes(Vec<Followed>);

struct Followed {
    device: SharedBdev,
    bytes: u64,
    /// It has become smaller, and that was said.
    refused: bool,
}

impl Sizes {
    pub(crate) fn follow(devices: impl IntoIterator<Item = SharedBdev>) -> Self {
        let follow =
            |device: SharedBdev| Followed { bytes: bytes(&device.info()), device, refused: false };
        Self(devices.into_iter().map(follow).collect())
    }

    /// Looks again; says whether any has another size. One that has become smaller keeps its size: what lies behind its
    /// end fails when it is read, and nothing of the rest is touched.
    pub(crate) fn look(&mut self) -> bool {
        let mut changed = false;
        for followed in &mut self.0 {
            let looked = followed.device.rescan();
            if let Err(error) = &looked
                && !followed.refused
            {
                tracing::warn!("the size of a device stays as it was: {error}");
            }
            followed.refused = looked.is_err();
            let info = followed.device.info();
            if bytes(&info) != followed.bytes {
                followed.bytes = bytes(&info);
                tracing::info!("{} has {} bytes now", info.name, followed.bytes);
                changed = true;
            }
        }
        changed
    }
}

/// Has a thread of its own look once a second, until it is dropped. A device may take long to say its size: one over iSCSI waits
/// for its target, and a file for its medium.
pub(crate) struct Following(#[expect(dead_code, reason = "its end ends the thread")] Sender<()>);

impl Following {
    /// Begins with this device.
    ///
    /// # Errors
    /// When the system makes no thread.
    pub(crate) fn start(device: SharedBdev) -> Result<Self, Failure> {
        let mut sizes = Sizes::follow([device]);
        let (end, ended) = channel();
        let look = move || {
            while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                sizes.look();
            }
        };
        let thread = std::thread::Builder::new().name("sizes".to_owned()).spawn(look);
        thread.map_err(|error| Failure::runtime(format!("cannot follow sizes: {error}")))?;
        Ok(Self(end))
    }
}

fn bytes(info: &BdevInfo) -> u64 {
    info.block_count * u64::from(info.block_size)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use raceline_bdev::{DeviceSpec, Identity};

    use super::*;

    #[test]
    fn a_file_that_grows_is_followed_and_one_that_shrinks_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let file = File::create(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        let spec: DeviceSpec = format!("file:{},buffered", path.display()).parse().unwrap();
        let device = raceline_bdev::open(&spec, &Identity::from_seed(b"test")).unwrap();
        let mut sizes = Sizes::follow([device.clone()]);
        for (len, changed, bytes_now) in [
            (1 << 20, false, 1 << 20),
            (2 << 20, true, 2 << 20),
            (1 << 20, false, 2 << 20),
            (2 << 20, false, 2 << 20),
            (3 << 20, true, 3 << 20),
        ] {
            file.set_len(len).unwrap();
            assert_eq!((sizes.look(), bytes(&device.info())), (changed, bytes_now), "{len}");
        }
    }
}
