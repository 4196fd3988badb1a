//! The admin queue of a controller, on a thread in the background: what every face has behind it.
//!
//! The thread keeps the controller alive, and makes a lost association again. I/O queues live elsewhere:
//! they follow the association ([`crate::follower`]), and report lost connections here.

mod service;

use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use raceline_proto::host::discovery::DiscoveryLog;
use raceline_proto::host::{AdminRequest, ControllerInfo, DiscoveryReader, NamespaceInfo, command};
use raceline_proto::nvme::{Cqe, NamespaceId, Sqe};
use raceline_reactor::{ReactorHandle, SendError, Sender};

use crate::config::{Association, HostConfig};
use crate::error::{CommandError, CommandFailure, HostError};
use crate::multipath::{PathId, PathSetEvent};
use crate::path::Routing;
pub(crate) use service::{LinkPath, LinkSnapshot, LinkState};
use service::{Message, Reply, Submission};

/// How often a waiting call looks whether the thread that is to answer still runs.
const ALIVE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A connected controller without its I/O queues: for namespaces, log pages and other admin commands.
///
/// Many threads may use it. A lost association is made again, and calls wait meanwhile. A clone is
/// another handle to the same controller. Dropping the last handle disconnects without waiting.
#[derive(Clone, Debug)]
pub struct AdminLink {
    link: Arc<Link>,
}

/// The thread of the admin queue. Dropped, it tells the thread to stop.
#[derive(Debug)]
struct Link {
    reactor: Mutex<Option<ReactorHandle<Message>>>,
    sender: Sender<Message>,
    state: Arc<LinkState>,
    first: Association,
}

impl AdminLink {
    /// Connects, and waits until the controller is up.
    pub(crate) fn connect(config: HostConfig) -> Result<Self, HostError> {
        let (reactor, state) = service::start(config)?;
        let sender = reactor.sender().clone();
        let now = state.get();
        let Some(first) = now.association else {
            return Err(now.failed.unwrap_or(HostError::Closed));
        };
        let link = Link { reactor: Mutex::new(Some(reactor)), sender, state, first };
        Ok(Self { link: Arc::new(link) })
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
        self.link.state.get().association.unwrap_or_else(|| self.link.first.clone())
    }

    /// Whether an association is up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.link.state.get().association.is_some()
    }

    /// Why the controller was given up, if it was.
    #[must_use]
    pub fn failure(&self) -> Option<HostError> {
        self.link.state.get().failed
    }

    /// Waits until its state, its namespaces or its discovery log are newer than `version` (0 at
    /// first), or the time is over. Returns the version to wait with next.
    #[must_use]
    pub fn wait_change(&self, version: u64, timeout: Duration) -> u64 {
        self.link.state.wait(version, timeout)
    }

    /// An Identify structure.
    ///
    /// # Errors
    /// When the command fails.
    pub fn identify(&self, cns: u8, nsid: NamespaceId) -> Result<Vec<u8>, HostError> {
        self.execute(command::identify(cns, nsid), 4096).map(|(_, data)| data)
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
        self.execute(sqe, len).map(|(_, data)| data)
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
            match self.execute(sqe, receive_len) {
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
    pub fn execute(&self, sqe: Sqe, receive_len: u32) -> Result<(Cqe, Vec<u8>), HostError> {
        self.submit(sqe, Vec::new(), receive_len)
    }

    /// Executes an admin command that sends these bytes.
    ///
    /// # Errors
    /// When it fails.
    pub fn execute_with(&self, sqe: Sqe, data: Vec<u8>) -> Result<Cqe, HostError> {
        self.submit(sqe, data, 0).map(|(cqe, _)| cqe)
    }

    fn submit(
        &self,
        sqe: Sqe,
        send: Vec<u8>,
        receive_len: u32,
    ) -> Result<(Cqe, Vec<u8>), HostError> {
        let (reply, replies) = mpsc::channel();
        let submission = Submission { sqe, send, receive_len, reply: reply.clone() };
        self.link.post(Message::Submit(submission))?;
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

    /// Shuts the controller down in order and waits until that is done; calls from then on fail.
    pub(crate) fn disconnect(&self) {
        self.link.tell(Message::Stop);
        let reactor = self.link.reactor.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(error)) = reactor.map(ReactorHandle::join) {
            tracing::warn!(%error, "the host's thread ended badly");
        }
    }

    /// How the controller is, for those that follow it.
    pub(crate) fn state(&self) -> &Arc<LinkState> {
        &self.link.state
    }

    /// Does what follows from an event of I/O queues.
    pub(crate) fn handle_event(&self, event: PathSetEvent) {
        match event {
            PathSetEvent::Ready { .. } => {}
            PathSetEvent::Lost { path, cntlid, error } => {
                self.link.tell(Message::QueueLost(path, cntlid, error));
            }
            PathSetEvent::Outdated { path } => self.link.tell(Message::RefreshAna(path)),
        }
    }

    /// Connects another path, and waits until it is up or its first attempt has failed.
    pub(crate) fn add_path(&self, config: HostConfig) -> Result<PathId, HostError> {
        let (sender, reply) = mpsc::channel();
        self.link.post(Message::AddPath(Box::new(config), sender.clone()))?;
        loop {
            match reply.recv_timeout(ALIVE_CHECK_INTERVAL) {
                Ok(result) => return result,
                Err(_) if self.link.is_running() => {}
                Err(_) => return Err(HostError::Closed),
            }
        }
    }

    /// Shuts a path down in order, without waiting for it.
    pub(crate) fn remove_path(&self, path: PathId) {
        self.link.tell(Message::RemovePath(path));
    }

    /// Shuts a path down until it is enabled, without waiting for it.
    pub(crate) fn disable_path(&self, path: PathId) {
        self.link.tell(Message::DisablePath(path));
    }

    /// Connects a path again that was disabled, without waiting for it.
    pub(crate) fn enable_path(&self, path: PathId) {
        self.link.tell(Message::EnablePath(path));
    }

    /// Changes which path commands take.
    pub(crate) fn change_routing(&self, change: impl FnOnce(&mut Routing)) {
        self.link.state.update(|state| change(&mut state.routing));
    }

    /// Gives the association up and makes a new one, without waiting for it.
    pub(crate) fn reset(&self, path: Option<PathId>) {
        self.link.tell(Message::Reset(path));
    }
}

impl Link {
    /// Sends a message that needs no answer. If the mailbox is full, the thread has news enough; a thread
    /// that has ended needs none.
    fn tell(&self, message: Message) {
        drop(self.sender.send(message));
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
                    return Err(self.state.get().failed.unwrap_or(HostError::Closed));
                }
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.tell(Message::Stop);
    }
}
