//! Namespaces of a remote controller as block devices: what a target can export again.

mod channel;
mod inject;
mod paths;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use raceline_bdev::{Bdev, BdevInfo, Channel};
use raceline_proto::host::{ControllerInfo, NamespaceInfo, command};
use raceline_proto::nvme::identify::{ONCS_DATASET_MANAGEMENT, ONCS_WRITE_ZEROES};
use raceline_proto::nvme::opcode::admin;
use raceline_proto::nvme::{NamespaceId, Status};
use raceline_reactor::Context;

use crate::admin_link::AdminLink;
use crate::command::CommandSummary;
use crate::config::HostConfig;
use crate::error::{CommandError, CommandFailure, HostError};
use crate::split::{Limits, max_transfer_bytes};
use channel::RemoteChannel;
use inject::Injections;
pub use inject::{InjectedKind, Injection, MAX_INJECTED_DELAY};
pub use paths::RemotePath;

/// Channels that can be open at a time, over all namespaces and cores, unless `io_queues` asks for more;
/// the controller may grant fewer.
const DEFAULT_CHANNELS: u16 = 64;

/// A remote controller. A thread in the background keeps the association alive.
#[derive(Clone, Debug)]
pub struct RemoteController {
    remote: Arc<Remote>,
}

/// The state of a remote controller.
#[derive(Clone, Debug)]
pub enum RemoteState {
    /// It answers.
    Up,
    /// It was lost, and is being connected again.
    Reconnecting,
    /// It was given up, or closed, and stays so.
    Failed(HostError),
}

/// A remote namespace. Each channel has an I/O queue, with its own connection, on the core that
/// opened it.
///
/// While the controller is lost, requests wait; writes whose fate is unknown end with
/// [`raceline_bdev::BdevError::Unknown`].
#[derive(Debug)]
pub struct RemoteNamespace {
    remote: Arc<Remote>,
    info: BdevInfo,
    scope: Scope,
}

/// What the devices of a controller and their channels share.
#[derive(Debug)]
struct Remote {
    config: HostConfig,
    admin: AdminLink,
    free_qids: Mutex<Vec<u16>>,
    injections: Injections,
}

/// The namespace that requests are for, and what its controller takes.
#[derive(Clone, Copy, Debug)]
struct Scope {
    nsid: NamespaceId,
    limits: Limits,
    write_zeroes: bool,
}

impl RemoteController {
    /// Connects to the controller. With `io_queues` 1 or less in `config`, room for 64 channels is
    /// asked for.
    ///
    /// # Errors
    /// When the controller cannot be reached or used.
    pub fn connect(mut config: HostConfig) -> Result<Self, HostError> {
        if config.io_queues <= 1 {
            config.io_queues = DEFAULT_CHANNELS;
        }
        let admin = AdminLink::connect(config.clone())?;
        let granted = admin.association().io_queues;
        let free_qids = Mutex::new((1..=granted).rev().collect());
        Ok(Self {
            remote: Arc::new(Remote {
                config,
                admin,
                free_qids,
                injections: Injections::default(),
            }),
        })
    }

    /// One of its namespaces as a device.
    ///
    /// # Errors
    /// When it is not there, or its blocks have neither 512 nor 4096 bytes.
    pub fn namespace(&self, nsid: NamespaceId) -> Result<RemoteNamespace, HostError> {
        let Remote { config, admin, .. } = &*self.remote;
        let Some(namespace) = admin.namespace(nsid) else {
            return Err(HostError::Invalid(format!("{} has no namespace {nsid}", config.subnqn)));
        };
        if !matches!(namespace.block_size, 512 | 4096) {
            let text = format!("blocks of {} bytes cannot be exported", namespace.block_size);
            return Err(HostError::Invalid(text));
        }
        let controller = admin.controller();
        let limits = Limits {
            block_size: namespace.block_size,
            max_transfer_bytes: max_transfer_bytes(&controller),
        };
        let scope = Scope { nsid, limits, write_zeroes: controller.oncs & ONCS_WRITE_ZEROES != 0 };
        let name = format!("nvme-tcp://{}/{}/{nsid}", config.address, config.subnqn);
        let info = describe(name, &controller, &namespace);
        Ok(RemoteNamespace { remote: Arc::clone(&self.remote), info, scope })
    }

    /// The namespaces that it has now.
    #[must_use]
    pub fn namespaces(&self) -> Arc<[NamespaceInfo]> {
        self.remote.admin.namespaces()
    }

    /// What it is and can do.
    #[must_use]
    pub fn controller(&self) -> Arc<ControllerInfo> {
        self.remote.admin.controller()
    }

    /// The configuration that it was connected with.
    #[must_use]
    pub fn config(&self) -> &HostConfig {
        &self.remote.config
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> RemoteState {
        let state = self.remote.admin.state().get();
        match (state.failed, state.association) {
            (Some(error), _) => RemoteState::Failed(error),
            (None, Some(_)) => RemoteState::Up,
            (None, None) => RemoteState::Reconnecting,
        }
    }

    /// Waits until its state or its namespaces are newer than `version` (0 at first), or the time is
    /// over. Returns the version to wait with next.
    #[must_use]
    pub fn wait_change(&self, version: u64, timeout: Duration) -> u64 {
        self.remote.admin.wait_change(version, timeout)
    }

    /// Bytes of a log page.
    ///
    /// # Errors
    /// When the command fails, or `len` is 0 or no multiple of 4.
    pub fn get_log(&self, lid: u8, nsid: NamespaceId, len: u32) -> Result<Vec<u8>, HostError> {
        if let Some(injection) =
            self.remote.injections.take(InjectedKind::Admin, admin::GET_LOG_PAGE)
        {
            return self.injected_log(injection, (lid, nsid, len));
        }
        self.remote.admin.get_log(lid, nsid, 0, len)
    }

    /// The log page, or what is injected instead of it.
    #[cold]
    fn injected_log(
        &self,
        injection: Injection,
        (lid, nsid, len): (u8, NamespaceId, u32),
    ) -> Result<Vec<u8>, HostError> {
        let page = match injection.instead {
            None => self.remote.admin.get_log(lid, nsid, 0, len)?,
            Some(delay) => {
                std::thread::sleep(delay);
                vec![0; usize::try_from(len).unwrap_or(0)]
            }
        };
        if injection.status == Status::SUCCESS {
            return Ok(page);
        }
        let sqe = command::get_log_page(lid, nsid, 0, len, false);
        let error = CommandError::Status(injection.status);
        Err(HostError::Command(CommandFailure { summary: CommandSummary::new(&sqe, false), error }))
    }

    /// Gives the associations of all paths up, and makes new ones without waiting for them. Commands in flight end as
    /// when the controller is lost.
    pub fn reset(&self) {
        self.reset_paths(None);
    }

    /// Shuts the association down in order and waits until that is done. Channels end with it.
    pub fn disconnect(&self) {
        self.remote.admin.disconnect();
    }
}

impl RemoteNamespace {
    /// Connects to the controller for one of its namespaces.
    ///
    /// # Errors
    /// When the controller cannot be reached, or the namespace is not there or cannot be used.
    pub fn open(config: HostConfig, nsid: NamespaceId) -> Result<Self, HostError> {
        let controller = RemoteController::connect(config)?;
        controller.namespace(nsid).inspect_err(|_| controller.disconnect())
    }

    /// Where the controller is.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.remote.config.address
    }

    /// As [`RemoteController::disconnect`].
    pub fn disconnect(&self) {
        self.remote.admin.disconnect();
    }
}

fn describe(name: String, controller: &ControllerInfo, namespace: &NamespaceInfo) -> BdevInfo {
    let uuid = if namespace.uuid == [0; 16] { namespace.nguid } else { namespace.uuid };
    BdevInfo {
        name,
        block_size: namespace.block_size,
        block_count: namespace.block_count,
        physical_block_size: namespace.physical_block_size.max(namespace.block_size),
        io_boundary_bytes: 0,
        volatile_write_cache: controller.volatile_write_cache,
        read_only: namespace.read_only,
        deallocate: controller.oncs & ONCS_DATASET_MANAGEMENT != 0,
        deallocate_zeroes: namespace.deallocate_zeroes,
        copies: false,
        knows_holes: false,
        uncorrectable: false,
        reads_in_place: false,
        copies_data: false,
        numa_node: None,
        uuid,
    }
}

impl Bdev for RemoteNamespace {
    fn info(&self) -> BdevInfo {
        let now = self.remote.admin.namespace(self.scope.nsid);
        let block_count = now
            .filter(|now| now.block_size == self.scope.limits.block_size)
            .map_or(self.info.block_count, |now| now.block_count);
        BdevInfo { block_count, ..self.info.clone() }
    }

    fn open_channel(&self, cx: &mut Context<'_>, owner: u16) -> io::Result<Box<dyn Channel>> {
        let qid = self.remote.free_qids.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(qid) = qid else {
            return Err(io::Error::other("all I/O queues of the remote controller are in use"));
        };
        let namespace = (Arc::clone(&self.remote), self.scope);
        Ok(Box::new(RemoteChannel::open(cx, namespace, qid, owner)))
    }
}

impl Remote {
    fn give_back(&self, qid: u16) {
        self.free_qids.lock().unwrap_or_else(PoisonError::into_inner).push(qid);
    }
}
