//! A namespace of a remote controller as a block device: what a target can export again.

mod channel;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use raceline_bdev::{Bdev, BdevInfo, Channel};
use raceline_proto::host::{ControllerInfo, NamespaceInfo};
use raceline_proto::nvme::identify::{ONCS_DATASET_MANAGEMENT, ONCS_WRITE_ZEROES};
use raceline_proto::nvme::{ControllerId, NamespaceId};
use raceline_reactor::{Context, ReactorHandle, Sender};

use crate::config::HostConfig;
use crate::error::HostError;
use crate::service::{self, Message, Shared, SharedState};
use channel::RemoteChannel;

/// Cores that can use a remote namespace at a time, unless `io_queues` asks for more.
const DEFAULT_CHANNELS: u16 = 16;

/// Bytes of one command at most, where the controller allows more.
const MAX_COMMAND_BYTES: u32 = 1 << 20;

/// A remote namespace. A thread in the background keeps the association alive; each channel has
/// an I/O queue, with its own connection, on the core that opened it.
///
/// While the controller is lost, requests wait; writes whose fate is unknown end with
/// [`raceline_bdev::BdevError::Unknown`].
#[derive(Debug)]
pub struct RemoteNamespace {
    remote: Arc<Remote>,
    info: BdevInfo,
}

/// What the device and its channels share.
#[derive(Debug)]
struct Remote {
    config: HostConfig,
    nsid: NamespaceId,
    block_size: u32,
    max_transfer_bytes: usize,
    write_zeroes: bool,
    sender: Sender<Message>,
    shared: Arc<Shared>,
    free_qids: Mutex<Vec<u16>>,
    reactor: Mutex<Option<ReactorHandle<Message>>>,
}

impl RemoteNamespace {
    /// Connects to the controller and finds the namespace. With `io_queues` 1 or less in
    /// `config`, room for 16 channels is asked for.
    ///
    /// # Errors
    /// When the controller cannot be reached, or the namespace is not there or of no use.
    pub fn open(mut config: HostConfig, nsid: NamespaceId) -> Result<Self, HostError> {
        if config.io_queues <= 1 {
            config.io_queues = DEFAULT_CHANNELS;
        }
        let (reactor, shared) = service::start(config.clone(), 0)?;
        let sender = reactor.sender().clone();
        let opened = Self::find(&config, nsid, &shared.get());
        let (info, max_transfer_bytes, write_zeroes, granted) = match opened {
            Ok(found) => found,
            Err(error) => {
                drop(sender.send(Message::Stop));
                drop(reactor.join());
                return Err(error);
            }
        };
        let remote = Remote {
            config,
            nsid,
            block_size: info.block_size,
            max_transfer_bytes,
            write_zeroes,
            sender,
            shared,
            free_qids: Mutex::new((1..=granted).rev().collect()),
            reactor: Mutex::new(Some(reactor)),
        };
        Ok(Self { remote: Arc::new(remote), info })
    }

    fn find(
        config: &HostConfig,
        nsid: NamespaceId,
        state: &SharedState,
    ) -> Result<(BdevInfo, usize, bool, u16), HostError> {
        let Some(association) = &state.association else {
            return Err(state.failed.clone().unwrap_or(HostError::Closed));
        };
        let namespace = association.namespaces.iter().find(|info| info.nsid == nsid);
        let Some(namespace) = namespace else {
            return Err(HostError::Invalid(format!("{} has no namespace {nsid}", config.subnqn)));
        };
        if !matches!(namespace.block_size, 512 | 4096) {
            let text = format!("blocks of {} bytes cannot be exported", namespace.block_size);
            return Err(HostError::Invalid(text));
        }
        let controller = &association.controller;
        let limit =
            controller.max_transfer_bytes.unwrap_or(MAX_COMMAND_BYTES).min(MAX_COMMAND_BYTES);
        let limit = usize::try_from(limit).expect("32 bits fit a usize");
        let name = format!("nvme-tcp://{}/{}/{nsid}", config.address, config.subnqn);
        let info = describe(name, controller, namespace);
        let write_zeroes = controller.oncs & ONCS_WRITE_ZEROES != 0;
        Ok((info, limit, write_zeroes, association.io_queues))
    }

    /// Where the controller is.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.remote.config.address
    }

    /// Shuts the association down in order and waits until that is done. Channels end with it.
    pub fn disconnect(&self) {
        drop(self.remote.sender.send(Message::Stop));
        let reactor = self.remote.reactor.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(error)) = reactor.map(ReactorHandle::join) {
            tracing::warn!(%error, "the thread of a remote namespace ended badly");
        }
    }
}

fn describe(name: String, controller: &ControllerInfo, namespace: &NamespaceInfo) -> BdevInfo {
    let uuid = if namespace.uuid == [0; 16] { namespace.nguid } else { namespace.uuid };
    BdevInfo {
        name,
        block_size: namespace.block_size,
        block_count: namespace.block_count,
        physical_block_size: namespace.physical_block_size.max(namespace.block_size),
        volatile_write_cache: controller.volatile_write_cache,
        read_only: namespace.read_only,
        deallocate: controller.oncs & ONCS_DATASET_MANAGEMENT != 0,
        deallocate_zeroes: namespace.deallocate_zeroes,
        reads_in_place: false,
        copies_data: false,
        uuid,
    }
}

impl Bdev for RemoteNamespace {
    fn info(&self) -> BdevInfo {
        self.info.clone()
    }

    fn open_channel(&self, cx: &mut Context<'_>, owner: u16) -> io::Result<Box<dyn Channel>> {
        let qid = self.remote.free_qids.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(qid) = qid else {
            return Err(io::Error::other("all I/O queues of the remote controller are in use"));
        };
        Ok(Box::new(RemoteChannel::open(cx, self.remote.clone(), qid, owner)))
    }
}

impl Remote {
    fn queue_lost(&self, cntlid: ControllerId, error: HostError) {
        // A full mailbox has news enough; a thread that has ended needs none.
        drop(self.sender.send(Message::QueueLost(cntlid, error)));
    }

    fn give_back(&self, qid: u16) {
        self.free_qids.lock().unwrap_or_else(PoisonError::into_inner).push(qid);
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        drop(self.sender.send(Message::Stop));
    }
}
