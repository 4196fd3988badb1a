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
use crate::counters::{LinkTotals, QueueCounters, QueueTotals};
use crate::error::{CommandError, CommandFailure, HostError};
use crate::maps::{QueueKind, QueueMaps};
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
/// opened it; or more, each for some commands ([`RemoteController::connect_exactly`]).
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
    maps: QueueMaps,
    free_slots: Mutex<Vec<Slot>>,
    injections: Injections,
    counted: Mutex<Counted>,
}

/// What the channels of a controller have done.
#[derive(Debug, Default)]
struct Counted {
    live: Vec<Arc<QueueCounters>>,
    closed: QueueTotals,
}

/// What a remote controller has been used for, and what has become of its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteCounts {
    /// Its connections.
    pub link: LinkTotals,
    /// All channels, closed ones included.
    pub queues: QueueTotals,
}

/// The queues of one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    /// For what has no queue of its own.
    default: u16,
    /// For reads.
    read: Option<u16>,
    /// For reads and writes, for which the core polls.
    poll: Option<u16>,
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
        Self::connect_exactly(config)
    }

    /// The same with room for as many channels as `io_queues` in `config` says.
    ///
    /// With `write_queues`, that many channels have two queues: one for reads, and one for all other commands. Channels
    /// that are opened later have one queue for everything.
    ///
    /// With `poll_queues`, that many channels have one more queue, which all their reads and writes take, because no
    /// request of a device says whether its sender polls. While some of these are under way, the channel's core does not
    /// sleep.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_exactly(mut config: HostConfig) -> Result<Self, HostError> {
        config.write_queues = config.write_queues.min(config.io_queues);
        config.poll_queues = config.poll_queues.min(config.io_queues);
        let admin = AdminLink::connect(config.clone())?;
        let maps = config.queue_request().grant(admin.association().io_queues);
        let free_slots = Mutex::new(slots(&maps));
        Ok(Self {
            remote: Arc::new(Remote {
                config,
                admin,
                maps,
                free_slots,
                injections: Injections::default(),
                counted: Mutex::default(),
            }),
        })
    }

    /// The I/O queues that the controller has granted, by what they are for.
    #[must_use]
    pub fn queue_maps(&self) -> QueueMaps {
        self.remote.maps
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

    /// What it has done so far.
    #[must_use]
    pub fn counts(&self) -> RemoteCounts {
        let link = self.remote.admin.state().totals();
        let counted = self.remote.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let mut queues = counted.closed;
        counted.live.iter().for_each(|counters| queues.add(&counters.totals()));
        RemoteCounts { link, queues }
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

    /// As [`RemoteController::connect_exactly`], for one of its namespaces.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_exactly(config: HostConfig, nsid: NamespaceId) -> Result<Self, HostError> {
        let controller = RemoteController::connect_exactly(config)?;
        controller.namespace(nsid).inspect_err(|_| controller.disconnect())
    }

    /// As [`RemoteController::queue_maps`].
    #[must_use]
    pub fn queue_maps(&self) -> QueueMaps {
        self.remote.maps
    }

    /// Its controller.
    #[must_use]
    pub fn controller(&self) -> RemoteController {
        RemoteController { remote: Arc::clone(&self.remote) }
    }

    /// Why the controller was given up, if it was: from then on every request fails.
    #[must_use]
    pub fn failure(&self) -> Option<HostError> {
        self.remote.admin.failure()
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
        let slot = self.remote.free_slots.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(slot) = slot else {
            let text = format!(
                "all {} I/O queues of the remote controller are in use: each core has one for each namespace that it \
                 uses. Ask for more (num_io_queues, --nr-io-queues), as far as the controller grants them",
                self.remote.maps.total()
            );
            return Err(io::Error::other(text));
        };
        let namespace = (Arc::clone(&self.remote), self.scope);
        Ok(Box::new(RemoteChannel::open(cx, namespace, slot, owner)))
    }
}

impl Remote {
    /// A channel begins.
    fn count(&self, counters: &Arc<QueueCounters>) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.live.push(Arc::clone(counters));
    }

    /// A channel is being closed.
    fn count_closed(&self, counters: &Arc<QueueCounters>) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = counted.live.iter().position(|live| Arc::ptr_eq(live, counters)) {
            counted.live.swap_remove(at);
            counted.closed.add(&counters.totals());
        }
    }

    fn give_back(&self, slot: Slot) {
        self.free_slots.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
    }
}

/// The queues of all channels, those of the first channel last. Where reads have queues of their own, each channel has one
/// of these; default queues go to the first channels, and the others use theirs for everything. Queues for polling go to the
/// first channels, too.
fn slots(maps: &QueueMaps) -> Vec<Slot> {
    let defaults = maps.qids(QueueKind::Default);
    let mut slots: Vec<Slot> = match maps.count(QueueKind::Read) {
        0 => defaults.map(|default| Slot { default, read: None, poll: None }).collect(),
        _ => {
            let own = defaults.map(Some).chain(std::iter::repeat(None));
            let pair = |(read, default): (u16, Option<u16>)| match default {
                Some(default) => Slot { default, read: Some(read), poll: None },
                None => Slot { default: read, read: None, poll: None },
            };
            maps.qids(QueueKind::Read).zip(own).map(pair).collect()
        }
    };
    slots.iter_mut().zip(maps.qids(QueueKind::Poll)).for_each(|(slot, qid)| slot.poll = Some(qid));
    slots.reverse();
    slots
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::QueueRequest;

    /// The queues of each channel, in the order in which channels are opened.
    fn opened(io: u16, write: u16, granted: u16) -> Vec<(u16, Option<u16>)> {
        let mut slots = slots(&QueueRequest { io, write, poll: 0 }.grant(granted));
        slots.reverse();
        slots.into_iter().map(|slot| (slot.default, slot.read)).collect()
    }

    #[test]
    fn channels_have_a_queue_for_reads_and_one_for_the_rest_as_far_as_there_are_some() {
        assert_eq!(opened(3, 0, 3), [(1, None), (2, None), (3, None)]);
        assert_eq!(opened(3, 0, 2), [(1, None), (2, None)]);
        assert_eq!(opened(2, 2, 4), [(1, Some(3)), (2, Some(4))]);
        assert_eq!(opened(3, 1, 4), [(1, Some(2)), (3, None), (4, None)]);
        // The controller grants fewer: reads keep theirs.
        assert_eq!(opened(2, 2, 3), [(1, Some(2)), (3, None)]);
        assert_eq!(opened(2, 2, 2), [(1, None), (2, None)]);
        assert_eq!(opened(2, 2, 1), [(1, None)]);
    }

    #[test]
    fn the_first_channels_have_the_queues_for_polling() {
        let polled = |io, write, poll, granted| {
            let mut slots = slots(&QueueRequest { io, write, poll }.grant(granted));
            slots.reverse();
            slots.into_iter().map(|slot| slot.poll).collect::<Vec<_>>()
        };
        assert_eq!(polled(2, 0, 1, 3), [Some(3), None]);
        assert_eq!(polled(2, 2, 2, 6), [Some(5), Some(6)]);
        assert_eq!(polled(2, 2, 2, 5), [Some(5), None]);
        assert_eq!(polled(2, 2, 2, 4), [None, None]);
    }
}
