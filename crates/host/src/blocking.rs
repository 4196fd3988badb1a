//! A host for programs that may wait: every call returns when its command has completed.
//!
//! Reads and writes go over shared queues ([`crate::SharedQueues`]): the calling thread sends, and receives
//! by itself if that does not take long, into and from the caller's memory. Admin commands go to the
//! thread in the background that keeps the controller alive.

use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use raceline_proto::host::discovery::DiscoveryLog;
use raceline_proto::host::{AdminRequest, ControllerInfo, DiscoveryReader, NamespaceInfo, command};
use raceline_proto::nvme::{Cqe, NamespaceId, Sqe};
use raceline_reactor::{Mode, ReactorHandle, SendError};

use crate::caller::{CallerHost, Operation};
use crate::config::{Association, HostConfig};
use crate::error::{CommandError, CommandFailure, HostError};
use crate::service::{self, Message, Reply, Shared, Submission};
use crate::shared::{Poller, SharedOptions, SharedQueues};

/// A connected controller. It has threads of its own and may be used by many.
///
/// A lost connection is made again; calls wait meanwhile. Dropped, it disconnects without
/// waiting.
#[derive(Debug)]
pub struct Host {
    // Dropped in this order: queues end before their controller.
    io: Option<BlockingQueues>,
    link: Arc<Link>,
}

/// I/O queues that the calling threads drive.
#[derive(Debug)]
struct BlockingQueues {
    /// Never polls: it says that those who call do.
    _poller: Poller,
    queues: SharedQueues,
}

/// The thread of the admin queue; told to stop with the last that holds it.
#[derive(Debug)]
struct Link {
    reactor: Mutex<Option<ReactorHandle<Message>>>,
    sender: raceline_reactor::Sender<Message>,
    shared: Arc<Shared>,
    first: Association,
}

impl Host {
    /// Connects and brings the controller up; with `io_queues` 0, or for a discovery subsystem,
    /// only its admin queue.
    ///
    /// # Errors
    /// When the controller cannot be reached or used.
    pub fn connect(config: HostConfig) -> Result<Self, HostError> {
        if config.subnqn.is_discovery() || config.queue_request().total() == 0 {
            return Self::start(config);
        }
        let caller = CallerHost::connect(config)?;
        let queues = u16::try_from(caller.free_queues()).unwrap_or(u16::MAX);
        if queues == 0 {
            return Err(HostError::Invalid("the controller grants no I/O queue".to_owned()));
        }
        // The worker sleeps: it is for what takes long.
        let options = SharedOptions { queues, mode: Mode::Interrupt, ..SharedOptions::default() };
        let queues = SharedQueues::open(&caller, &options)?;
        let io = BlockingQueues { _poller: queues.poller(), queues };
        Ok(Self { io: Some(io), link: Arc::clone(&caller.host().link) })
    }

    /// Connects with an admin queue, for I/O queues that live elsewhere.
    pub(crate) fn start(config: HostConfig) -> Result<Self, HostError> {
        let (reactor, shared) = service::start(config)?;
        let sender = reactor.sender().clone();
        let state = shared.get();
        let Some(first) = state.association else {
            return Err(state.failed.unwrap_or(HostError::Closed));
        };
        let link = Link { reactor: Mutex::new(Some(reactor)), sender, shared, first };
        Ok(Self { io: None, link: Arc::new(link) })
    }

    /// What the controller is and can do.
    #[must_use]
    pub fn controller(&self) -> Arc<ControllerInfo> {
        self.association().controller
    }

    /// Its active namespaces.
    #[must_use]
    pub fn namespaces(&self) -> Arc<[NamespaceInfo]> {
        self.association().namespaces
    }

    /// One of its namespaces.
    #[must_use]
    pub fn namespace(&self, nsid: NamespaceId) -> Option<NamespaceInfo> {
        self.namespaces().iter().find(|info| info.nsid == nsid).cloned()
    }

    /// The association that is up, or the first one while none is.
    #[must_use]
    pub fn association(&self) -> Association {
        self.link.shared.get().association.unwrap_or_else(|| self.link.first.clone())
    }

    /// Whether an association is up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.link.shared.get().association.is_some()
    }

    /// Waits until its state, its namespaces or its discovery log are newer than `seen`, 0 at first,
    /// or the time is over; gives what to wait with next.
    #[must_use]
    pub fn wait_change(&self, seen: u64, timeout: Duration) -> u64 {
        self.link.shared.wait(seen, timeout)
    }

    /// An Identify structure.
    ///
    /// # Errors
    /// When the command fails.
    pub fn identify(&self, cns: u8, nsid: NamespaceId) -> Result<Vec<u8>, HostError> {
        self.admin(command::identify(cns, nsid), 4096).map(|(_, data)| data)
    }

    /// `len` bytes of a log page from `offset`; both are multiples of 4.
    ///
    /// # Errors
    /// When the command fails, or `len` is 0 or no multiple of 4.
    pub fn get_log(
        &self,
        lid: u8,
        nsid: NamespaceId,
        offset: u64,
        len: u32,
    ) -> Result<Vec<u8>, HostError> {
        if len == 0 || !len.is_multiple_of(4) || !offset.is_multiple_of(4) {
            return Err(HostError::Invalid("log pages are read in units of 4 bytes".to_owned()));
        }
        let sqe = command::get_log_page(lid, nsid, offset, len, false);
        self.admin(sqe, len).map(|(_, data)| data)
    }

    /// The discovery log, in one state.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn discover(&self) -> Result<DiscoveryLog, HostError> {
        let mut reader = DiscoveryReader::new();
        loop {
            if let Some(log) = reader.poll_done() {
                return Ok(log);
            }
            let Some(AdminRequest { sqe, receive_len }) = reader.poll_request() else {
                unreachable!("a reader that is not done asks for something");
            };
            match self.admin(sqe, receive_len) {
                Ok((cqe, data)) => reader.handle_completion(&cqe, &data)?,
                Err(HostError::Command(CommandFailure {
                    error: CommandError::Status(status),
                    ..
                })) => {
                    reader.handle_completion(&Cqe { status, ..Cqe::default() }, &[])?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Executes an admin command that receives `receive_len` bytes.
    ///
    /// # Errors
    /// When it fails.
    pub fn admin(&self, sqe: Sqe, receive_len: u32) -> Result<(Cqe, Vec<u8>), HostError> {
        let (reply, replies) = mpsc::channel();
        self.link.post(Message::Submit(Submission { sqe, receive_len, reply: reply.clone() }))?;
        // Our own `reply` keeps the channel open, so look whether the thread is alive.
        let Reply { result, data } = loop {
            match replies.recv_timeout(ALIVE_CHECK_INTERVAL) {
                Ok(answer) => break answer,
                Err(_) if self.link.is_running() => {}
                Err(_) => return Err(HostError::Closed),
            }
        };
        result.map(|cqe| (cqe, data)).map_err(HostError::Command)
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
    /// When a command fails; [`CommandError::UnknownFate`] says that it may have been executed.
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

    /// Shuts the controller down in order and waits until that is done.
    pub fn disconnect(mut self) {
        if let Some(BlockingQueues { _poller: poller, queues }) = self.io.take() {
            drop(poller);
            queues.close();
        }
        self.end();
    }

    /// As [`Self::disconnect`], of a controller whose I/O queues live elsewhere; calls from then on fail.
    pub(crate) fn end(&self) {
        self.link.stop();
        let reactor = self.link.reactor.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(error)) = reactor.map(ReactorHandle::join) {
            tracing::warn!(%error, "the host's thread ended badly");
        }
    }

    /// How the controller is.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.link.shared
    }

    /// Sends what needs no answer. A full mailbox has news enough; a thread that has ended needs
    /// none.
    pub(crate) fn tell(&self, message: Message) {
        drop(self.link.sender.send(message));
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
            HostError::Closed => self.link.shared.get().failed.unwrap_or(HostError::Closed),
            other => other,
        })
    }

    /// Refuses what is no whole number of blocks; whether there are any.
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

impl Link {
    fn stop(&self) {
        // A thread that has ended needs no stopping.
        drop(self.sender.send(Message::Stop));
    }

    fn is_running(&self) -> bool {
        let reactor = self.reactor.lock().unwrap_or_else(PoisonError::into_inner);
        reactor.as_ref().is_some_and(ReactorHandle::is_running)
    }

    fn post(&self, mut message: Message) -> Result<(), HostError> {
        loop {
            match self.sender.send(message) {
                Ok(()) => return Ok(()),
                // Many threads at once: the reactor empties its mailbox in microseconds.
                Err(SendError::Full(back)) => message = back,
                Err(SendError::Closed(_)) => {
                    return Err(self.shared.get().failed.unwrap_or(HostError::Closed));
                }
            }
            std::thread::yield_now();
        }
    }
}

/// How often a waiting call looks whether the thread that is to answer still runs.
const ALIVE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Drop for Link {
    fn drop(&mut self) {
        self.stop();
    }
}
