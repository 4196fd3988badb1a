//! Logical units as block devices: what a target can export again.

mod channel;
mod memory;
mod operation;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use raceline_bdev::{Bdev, BdevInfo, Channel};
use raceline_reactor::Context;

use crate::blocking::BlockingSession;
use crate::config::SessionConfig;
use crate::error::SessionError;
use crate::facts::UnitInfo;
use channel::LunChannel;

/// A logical unit of an iSCSI target. Each channel has a session, with its own connection, on the core that opened it.
///
/// While a session is lost, requests wait; writes whose fate is unknown end with [`raceline_bdev::BdevError::Unknown`].
#[derive(Debug)]
pub struct LunBdev {
    config: Arc<SessionConfig>,
    unit: UnitInfo,
    info: BdevInfo,
    block_count: AtomicU64,
}

impl LunBdev {
    /// Logs in once to find out what the unit is.
    ///
    /// # Errors
    /// When the target cannot be reached, or the unit is not there or cannot be used.
    pub fn open(config: SessionConfig) -> Result<Self, SessionError> {
        let unit = ask(&config)?;
        if !matches!(unit.block_size, 512 | 4096) {
            let text = format!("blocks of {} bytes cannot be exported", unit.block_size);
            return Err(SessionError::Invalid(text));
        }
        let target = config.target_name.as_ref().map_or("", |name| name.as_str());
        let name = format!("iscsi://{}/{target}/{}", config.address, config.lun);
        let info = describe(name, unit.uuid(target, config.lun), &unit);
        let block_count = AtomicU64::new(info.block_count);
        Ok(Self { config: Arc::new(config), unit, info, block_count })
    }

    /// What the unit told of itself.
    #[must_use]
    pub fn unit(&self) -> &UnitInfo {
        &self.unit
    }

    /// How its sessions are made.
    #[must_use]
    pub fn config(&self) -> &SessionConfig {
        &self.config
    }
}

fn ask(config: &SessionConfig) -> Result<UnitInfo, SessionError> {
    let session = BlockingSession::connect(config.clone())?;
    let unit = UnitInfo::read(&session);
    session.close();
    unit
}

fn describe(name: String, uuid: [u8; 16], unit: &UnitInfo) -> BdevInfo {
    BdevInfo {
        name,
        block_size: unit.block_size,
        block_count: unit.block_count,
        physical_block_size: unit.physical_block_size.max(unit.block_size),
        io_boundary_bytes: 0,
        volatile_write_cache: unit.volatile_write_cache,
        read_only: unit.write_protected,
        deallocate: unit.max_unmap_blocks.is_some(),
        deallocate_zeroes: unit.max_unmap_blocks.is_some() && unit.unmapped_read_zeroes,
        copies: false,
        knows_holes: false,
        uncorrectable: false,
        reads_in_place: false,
        copies_data: false,
        numa_node: None,
        uuid,
    }
}

impl Bdev for LunBdev {
    fn info(&self) -> BdevInfo {
        let block_count = self.block_count.load(Ordering::Relaxed);
        BdevInfo { block_count, ..self.info.clone() }
    }

    fn open_channel(&self, cx: &mut Context<'_>, owner: u16) -> io::Result<Box<dyn Channel>> {
        Ok(Box::new(LunChannel::open(cx, &self.config, &self.unit, owner)))
    }

    fn rescan(&self) -> io::Result<()> {
        let now = ask(&self.config).map_err(io::Error::other)?;
        let known = self.block_count.load(Ordering::Relaxed);
        if now.block_size != self.unit.block_size || now.block_count < known {
            return Err(io::Error::other(format!(
                "the logical unit has {} blocks of {} bytes now, and had {known} of {}",
                now.block_count, now.block_size, self.unit.block_size
            )));
        }
        self.block_count.store(now.block_count, Ordering::Relaxed);
        Ok(())
    }
}
