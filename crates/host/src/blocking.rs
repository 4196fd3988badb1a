//! A host for programs that may wait: every call returns when its command has completed.

use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use raceline_proto::host::discovery::DiscoveryLog;
use raceline_proto::host::{
    AdminRequest, BlockRange, ControllerInfo, DiscoveryReader, NamespaceInfo, command,
};
use raceline_proto::nvme::{Cqe, Direction, NamespaceId, Sqe};
use raceline_reactor::{ReactorHandle, SendError};

use crate::config::{Association, HostConfig};
use crate::error::{CommandError, CommandFailure, HostError};
use crate::service::{self, Message, Reply, Shared, Submission};

/// Bytes of one command at most, where the controller allows more.
const MAX_CHUNK_BYTES: u32 = 128 << 10;
/// Commands that one call keeps outstanding.
const WINDOW: usize = 8;
/// Blocks that one Write Zeroes names at most.
const MAX_ZERO_BLOCKS: u32 = BlockRange::MAX_BLOCKS;

/// A connected controller. It has a thread of its own and may be used by many.
///
/// A lost connection is made again; calls wait meanwhile. Dropped, it disconnects without
/// waiting.
#[derive(Debug)]
pub struct Host {
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
        let own_queues =
            if config.subnqn.is_discovery() { 0 } else { config.queue_request().total() };
        Self::start(config, own_queues)
    }

    /// Connects with an admin queue and `own_queues` of the `io_queues` that are asked for.
    pub(crate) fn start(config: HostConfig, own_queues: u16) -> Result<Self, HostError> {
        let (reactor, shared) = service::start(config, own_queues)?;
        let sender = reactor.sender().clone();
        let state = shared.get();
        let Some(first) = state.association else {
            return Err(state.failed.unwrap_or(HostError::Closed));
        };
        Ok(Self { reactor: Mutex::new(Some(reactor)), sender, shared, first })
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
        self.shared.get().association.unwrap_or_else(|| self.first.clone())
    }

    /// Whether an association is up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.shared.get().association.is_some()
    }

    /// Waits until its state, its namespaces or its discovery log are newer than `seen`, 0 at first,
    /// or the time is over; gives what to wait with next.
    #[must_use]
    pub fn wait_change(&self, seen: u64, timeout: Duration) -> u64 {
        self.shared.wait(seen, timeout)
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
        let direction = if receive_len > 0 { Direction::ControllerToHost } else { Direction::None };
        let data = vec![0; to_usize(receive_len)];
        let mut answer = None;
        self.execute(std::iter::once((sqe, data, direction)), true, |_, cqe, data| {
            answer = Some((cqe, data));
        })?;
        answer.ok_or(HostError::Closed)
    }

    /// Reads blocks from `slba` until `buf` is full; its length is a multiple of the block size.
    ///
    /// # Errors
    /// When a command fails; the message names its blocks.
    pub fn read(&self, nsid: NamespaceId, slba: u64, buf: &mut [u8]) -> Result<(), HostError> {
        let block_size = self.block_size(nsid, buf.len())?;
        let chunk = self.chunk_bytes(block_size);
        let commands = ranges(slba, buf.len(), chunk, block_size)?.map(|(range, bytes)| {
            (command::read(nsid, range), vec![0; bytes.len()], Direction::ControllerToHost)
        });
        self.execute(commands, false, |index, _, data| {
            let start = index * chunk;
            buf[start..start + data.len()].copy_from_slice(&data);
        })
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
        self.send(nsid, slba, data, |range| command::write(nsid, range, fua))
    }

    /// Compares blocks from `slba` on with `data`.
    ///
    /// # Errors
    /// When they differ (Compare Failure), or a command fails.
    pub fn compare(&self, nsid: NamespaceId, slba: u64, data: &[u8]) -> Result<(), HostError> {
        self.send(nsid, slba, data, |range| command::compare(nsid, range))
    }

    /// Everything written before is on stable media when it returns.
    ///
    /// # Errors
    /// When the command fails.
    pub fn flush(&self, nsid: NamespaceId) -> Result<(), HostError> {
        let command = (command::flush(nsid), Vec::new(), Direction::None);
        self.execute(std::iter::once(command), false, |_, _, _| {})
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
        let mut commands = Vec::new();
        let mut done = 0;
        while done < block_count {
            let count = (block_count - done).min(u64::from(MAX_ZERO_BLOCKS));
            let range = slba.checked_add(done).and_then(|slba| {
                BlockRange::new(slba, u32::try_from(count).unwrap_or(MAX_ZERO_BLOCKS))
            });
            let range = range.ok_or_else(beyond)?;
            let sqe = command::write_zeroes(nsid, range, deallocate, false);
            commands.push((sqe, Vec::new(), Direction::None));
            done += count;
        }
        self.execute(commands.into_iter(), false, |_, _, _| {})
    }

    /// Frees ranges of (first block, number of blocks).
    ///
    /// # Errors
    /// When a command fails.
    pub fn deallocate(&self, nsid: NamespaceId, ranges: &[(u64, u32)]) -> Result<(), HostError> {
        let commands = ranges.chunks(command::MAX_DEALLOCATE_RANGES).map(|ranges| {
            let data =
                ranges.iter().flat_map(|&(slba, count)| command::deallocate_range(slba, count));
            let last = u8::try_from(ranges.len() - 1).unwrap_or(u8::MAX);
            (command::deallocate(nsid, last), data.collect(), Direction::HostToController)
        });
        self.execute(commands, false, |_, _, _| {})
    }

    /// Shuts the controller down in order and waits until that is done.
    pub fn disconnect(self) {
        self.end();
    }

    /// As [`Self::disconnect`]; calls from then on fail.
    pub(crate) fn end(&self) {
        self.stop();
        let reactor = self.reactor.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(error)) = reactor.map(ReactorHandle::join) {
            tracing::warn!(%error, "the host's thread ended badly");
        }
    }

    /// How the controller is.
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Sends what needs no answer. A full mailbox has news enough; a thread that has ended needs
    /// none.
    pub(crate) fn tell(&self, message: Message) {
        drop(self.sender.send(message));
    }

    fn stop(&self) {
        // A thread that has ended needs no stopping.
        drop(self.sender.send(Message::Stop));
    }

    fn send(
        &self,
        nsid: NamespaceId,
        slba: u64,
        data: &[u8],
        sqe: impl Fn(BlockRange) -> Sqe,
    ) -> Result<(), HostError> {
        let block_size = self.block_size(nsid, data.len())?;
        let chunk = self.chunk_bytes(block_size);
        let commands = ranges(slba, data.len(), chunk, block_size)?
            .map(|(range, bytes)| (sqe(range), data[bytes].to_vec(), Direction::HostToController));
        self.execute(commands, false, |_, _, _| {})
    }

    fn block_size(&self, nsid: NamespaceId, len: usize) -> Result<usize, HostError> {
        let info = self
            .namespace(nsid)
            .ok_or_else(|| HostError::Invalid(format!("there is no namespace {nsid}")))?;
        let block_size = to_usize(info.block_size);
        if len.is_multiple_of(block_size) {
            return Ok(block_size);
        }
        Err(HostError::Invalid(format!(
            "{len} bytes are no multiple of the block size, {block_size}"
        )))
    }

    fn chunk_bytes(&self, block_size: usize) -> usize {
        let limit = self.controller().max_transfer_bytes.unwrap_or(MAX_CHUNK_BYTES);
        let limit = to_usize(limit.min(MAX_CHUNK_BYTES)) / block_size * block_size;
        limit.max(block_size)
    }

    /// Executes commands, [`WINDOW`] at a time; stops at the first that fails, after those on
    /// their way have ended.
    fn execute(
        &self,
        mut commands: impl Iterator<Item = (Sqe, Vec<u8>, Direction)>,
        admin: bool,
        mut done: impl FnMut(usize, Cqe, Vec<u8>),
    ) -> Result<(), HostError> {
        let (reply, replies) = mpsc::channel();
        let (mut outstanding, mut tag) = (0, 0);
        let mut failure = None;
        loop {
            while outstanding < WINDOW
                && failure.is_none()
                && let Some((sqe, data, direction)) = commands.next()
            {
                let submission =
                    Submission { sqe, data, direction, admin, tag, reply: reply.clone() };
                self.post(Message::Submit(submission))?;
                outstanding += 1;
                tag += 1;
            }
            if outstanding == 0 {
                break;
            }
            // Our own `reply` keeps the channel open, so look whether the thread is alive.
            let answer = loop {
                match replies.recv_timeout(ALIVE_CHECK_INTERVAL) {
                    Ok(answer) => break answer,
                    Err(_) if self.is_running() => {}
                    Err(_) => return Err(HostError::Closed),
                }
            };
            outstanding -= 1;
            let Reply { tag, result, data } = answer;
            match result {
                Ok(cqe) => done(tag, cqe, data),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(()), |failure| Err(HostError::Command(failure)))
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

impl Drop for Host {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Cuts `len` bytes from block `slba` on into commands of `chunk` bytes: blocks, and which bytes.
fn ranges(
    slba: u64,
    len: usize,
    chunk: usize,
    block_size: usize,
) -> Result<impl Iterator<Item = (BlockRange, std::ops::Range<usize>)>, HostError> {
    let blocks = u64::try_from(len / block_size).map_err(|_| beyond())?;
    slba.checked_add(blocks).ok_or_else(beyond)?;
    Ok((0..len).step_by(chunk).filter_map(move |start| {
        let bytes = start..len.min(start + chunk);
        let first = slba + u64::try_from(start / block_size).ok()?;
        let count = u32::try_from(bytes.len() / block_size).ok()?;
        Some((BlockRange::new(first, count)?, bytes))
    }))
}

fn beyond() -> HostError {
    HostError::Invalid("the blocks end beyond 2^64".to_owned())
}

fn to_usize(len: u32) -> usize {
    usize::try_from(len).expect("32 bits fit a usize")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_all_bytes_once() {
        let cut: Vec<_> = ranges(10, 9 * 512, 2048, 512).unwrap().collect();
        let blocks: Vec<_> =
            cut.iter().map(|(range, _)| (range.slba(), range.block_count())).collect();
        assert_eq!(blocks, [(10, 4), (14, 4), (18, 1)]);
        assert_eq!(cut[2].1, 4096..4608);
        assert!(ranges(u64::MAX, 1024, 2048, 512).is_err());
        assert_eq!(ranges(0, 0, 2048, 512).unwrap().count(), 0);
    }
}
