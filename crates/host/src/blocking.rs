//! A host for programs that may wait: every call returns when its command has completed.
//!
//! Reads and writes go over shared queues ([`crate::SharedQueues`]): the calling thread sends, and receives
//! by itself if that does not take long, into and from the caller's memory. Admin commands go to the
//! thread in the background that keeps the controller alive.

use std::ops::Deref;
use std::time::{Duration, Instant};

use raceline_proto::host::command;
use raceline_proto::nvme::NamespaceId;
use raceline_reactor::Mode;

use crate::admin_link::AdminLink;
use crate::caller::{CallerHost, Operation};
use crate::config::HostConfig;
use crate::error::HostError;
use crate::shared::{Poller, SharedOptions, SharedQueues};

/// A connected controller. It has threads of its own and may be used by many threads.
///
/// It is an [`AdminLink`] with I/O queues, so what an [`AdminLink`] can do, it can. A lost connection
/// is made again; calls wait meanwhile. Dropped, it disconnects without waiting.
#[derive(Debug)]
pub struct Host {
    // Dropped in this order: queues end before their controller.
    io: Option<BlockingQueues>,
    admin: AdminLink,
}

/// I/O queues that the calling threads drive.
#[derive(Debug)]
struct BlockingQueues {
    /// Never polled: its existence says that the calling threads receive.
    _poller: Poller,
    queues: SharedQueues,
}

impl Host {
    /// Connects and brings the controller up; with `io_queues` 0, or for a discovery subsystem,
    /// only its admin queue.
    ///
    /// # Errors
    /// When the controller cannot be reached or used.
    pub fn connect(config: HostConfig) -> Result<Self, HostError> {
        if config.is_discovery() || config.queue_request().total() == 0 {
            return Ok(Self { io: None, admin: AdminLink::connect(config)? });
        }
        let caller = CallerHost::connect(config)?;
        let queues = u16::try_from(caller.free_queues()).unwrap_or(u16::MAX);
        if queues == 0 {
            return Err(HostError::Invalid("the controller grants no I/O queue".to_owned()));
        }
        // The worker sleeps: it is for operations that take long.
        let options = SharedOptions { queues, mode: Mode::Interrupt, ..SharedOptions::default() };
        let queues = SharedQueues::open(&caller, &options)?;
        let io = BlockingQueues { _poller: queues.poller(), queues };
        Ok(Self { io: Some(io), admin: caller.admin().clone() })
    }

    /// Reads blocks from `slba` until `buf` is full; its length is a multiple of the block size.
    ///
    /// # Errors
    /// When a command fails; the message names its blocks.
    pub fn read(&self, nsid: NamespaceId, slba: u64, buf: &mut [u8]) -> Result<(), HostError> {
        if self.check_len(nsid, buf.len())? {
            self.io(|queues| queues.read(nsid, slba, buf))?;
        }
        Ok(())
    }

    /// Writes blocks from `slba` on; with `fua` they are on stable media when it returns.
    ///
    /// # Errors
    /// When a command fails; [`crate::CommandError::UnknownFate`] says that it may have been executed.
    pub fn write(
        &self,
        nsid: NamespaceId,
        slba: u64,
        data: &[u8],
        fua: bool,
    ) -> Result<(), HostError> {
        if self.check_len(nsid, data.len())? {
            self.io(|queues| queues.write(nsid, slba, data, fua))?;
        }
        Ok(())
    }

    /// Compares blocks from `slba` on with `data`.
    ///
    /// # Errors
    /// When they differ (Compare Failure), or a command fails.
    pub fn compare(&self, nsid: NamespaceId, slba: u64, data: &[u8]) -> Result<(), HostError> {
        if self.check_len(nsid, data.len())? {
            self.io(|queues| queues.compare(nsid, slba, data))?;
        }
        Ok(())
    }

    /// Everything written before is on stable media when it returns.
    ///
    /// # Errors
    /// When the command fails.
    pub fn flush(&self, nsid: NamespaceId) -> Result<(), HostError> {
        self.io(|queues| queues.run(Operation::Flush { nsid }))
    }

    /// Zeroes blocks; with `deallocate` the controller may free them instead.
    ///
    /// # Errors
    /// When a command fails.
    pub fn write_zeroes(
        &self,
        nsid: NamespaceId,
        slba: u64,
        block_count: u64,
        deallocate: bool,
    ) -> Result<(), HostError> {
        let beyond = || HostError::Invalid("the blocks end beyond 2^64".to_owned());
        slba.checked_add(block_count).ok_or_else(beyond)?;
        let mut done = 0;
        while done < block_count {
            let count = u32::try_from(block_count - done).unwrap_or(u32::MAX);
            let slba = slba + done;
            let zero =
                Operation::WriteZeroes { nsid, slba, block_count: count, deallocate, fua: false };
            self.io(|queues| queues.run(zero))?;
            done += u64::from(count);
        }
        Ok(())
    }

    /// Frees ranges of (first block, number of blocks).
    ///
    /// # Errors
    /// When a command fails.
    pub fn deallocate(&self, nsid: NamespaceId, ranges: &[(u64, u32)]) -> Result<(), HostError> {
        for ranges in ranges.chunks(command::MAX_DEALLOCATE_RANGES) {
            let free = Operation::Deallocate { nsid, ranges: ranges.to_vec() };
            self.io(|queues| queues.run(free))?;
        }
        Ok(())
    }

    /// Resets the controller: gives the association up, and waits until another one is up.
    ///
    /// # Errors
    /// When the controller was given up, or is not back in this time.
    pub fn reset(&self, timeout: Duration) -> Result<(), HostError> {
        let before = self.admin.association();
        let end = Instant::now() + timeout;
        let mut version = self.admin.wait_change(0, Duration::ZERO);
        self.admin.reset(None);
        loop {
            if let Some(error) = self.admin.failure() {
                return Err(error);
            }
            if self.admin.is_up() && !self.admin.association().is(&before) {
                return Ok(());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let text =
                    format!("the controller is not back {} s after its reset", timeout.as_secs());
                return Err(HostError::Invalid(text));
            }
            version = self.admin.wait_change(version, left);
        }
    }

    /// Shuts the controller down in order and waits until that is done.
    pub fn disconnect(mut self) {
        if let Some(BlockingQueues { _poller: poller, queues }) = self.io.take() {
            drop(poller);
            queues.close();
        }
        self.admin.disconnect();
    }

    /// Does something on the I/O queues. When they are closed, it says why.
    fn io(
        &self,
        run: impl FnOnce(&SharedQueues) -> Result<(), HostError>,
    ) -> Result<(), HostError> {
        let Some(BlockingQueues { queues, .. }) = &self.io else {
            return Err(HostError::Invalid("connected without I/O queues".to_owned()));
        };
        run(queues).map_err(|error| match error {
            HostError::Closed => self.admin.failure().unwrap_or(HostError::Closed),
            other => other,
        })
    }

    /// Refuses a length that is no whole number of blocks. Returns whether there are any.
    fn check_len(&self, nsid: NamespaceId, len: usize) -> Result<bool, HostError> {
        let info = self
            .namespace(nsid)
            .ok_or_else(|| HostError::Invalid(format!("there is no namespace {nsid}")))?;
        let block_size = usize::try_from(info.block_size).expect("32 bits fit a usize");
        if len.is_multiple_of(block_size) {
            return Ok(len > 0);
        }
        Err(HostError::Invalid(format!(
            "{len} bytes are no multiple of the block size, {block_size}"
        )))
    }
}

impl Deref for Host {
    type Target = AdminLink;

    fn deref(&self) -> &AdminLink {
        &self.admin
    }
}
