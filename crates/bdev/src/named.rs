//! A device under a name and an identity of its own, which counts what it does.

use std::io;
use std::sync::Arc;

use raceline_reactor::Context;

use crate::stats::DeviceStats;
use crate::wrap::pass_to_base;
use crate::{Bdev, BdevError, BdevInfo, Channel, SharedBdev};

/// A device as people know it. Its channels are those of the device below: the code that opens one counts
/// what it does with a [`crate::Meter`] of [`Bdev::stats`].
pub struct NamedBdev {
    inner: SharedBdev,
    name: String,
    uuid: [u8; 16],
    stats: Arc<DeviceStats>,
}

impl NamedBdev {
    /// Gives a device a name; with `uuid` `None` it keeps the identity that it has.
    #[must_use]
    pub fn new(inner: SharedBdev, name: String, uuid: Option<[u8; 16]>) -> Self {
        let uuid = uuid.unwrap_or_else(|| inner.info().uuid);
        Self { inner, name, uuid, stats: Arc::default() }
    }
}

impl Bdev for NamedBdev {
    fn info(&self) -> BdevInfo {
        BdevInfo { name: self.name.clone(), uuid: self.uuid, ..self.inner.info() }
    }

    fn open_channel(&self, cx: &mut Context<'_>, owner: u16) -> io::Result<Box<dyn Channel>> {
        self.inner.open_channel(cx, owner)
    }

    fn resize(&self, block_count: u64) -> Result<(), BdevError> {
        self.inner.resize(block_count)
    }

    fn stats(&self) -> Option<&Arc<DeviceStats>> {
        Some(&self.stats)
    }

    fn wrapper_levels(&self) -> u32 {
        self.inner.wrapper_levels()
    }

    fn takes_pages(&self) -> bool {
        self.inner.takes_pages()
    }

    pass_to_base!(inner);
}
