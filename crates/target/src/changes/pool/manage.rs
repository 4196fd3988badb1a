//! Does what hosts ask for: creates, deletes, attaches, detaches and formats namespaces of a pool.
//!
//! Runs on a thread of its own, because it waits for cores, for the store, and for devices to be
//! zeroed. The state of the target is not locked while a device is zeroed.

use std::sync::mpsc::{self, Receiver};

use raceline_bdev::{BdevError, SharedBdev};
use raceline_proto::controller::ManagementCommand;
use raceline_proto::nvme::{ControllerId, HostNqn, NamespaceId, Nqn, Status};
use uuid::Uuid;

use super::device::BusyBdev;
use crate::changes::config::TargetError;
use crate::changes::control::{Control, Exported, State};
use crate::changes::management::{HostWish, ManagementRequest};
use crate::changes::message::Message;
use crate::changes::namespaces::with_device;
use crate::changes::pool_map::{PoolNamespace, best_fit};
use crate::changes::pool_state::PoolState;
use crate::changes::snapshot::DeviceId;

/// Executes requests until the target is shut down.
pub(super) fn run(control: &Control, requests: &Receiver<ManagementRequest>) {
    for ManagementRequest { nqn, host, wish, from } in requests {
        let result = match &wish {
            HostWish::Namespaces(command) => control.manage(&nqn, &host, command),
            HostWish::Register(registration, peer) => control.register(&host, *peer, registration),
        };
        match result {
            Ok(_) => {
                tracing::info!(event = "namespace", %nqn, %host, ?wish, "done as the host wants")
            }
            Err(status) => {
                tracing::warn!(event = "namespace", %nqn, %host, ?wish, %status, "refused")
            }
        }
        control.shared.send(from.conn.core, Message::Managed { to: from, result });
    }
}

/// The status that a host gets for a failure inside the target.
fn internal(error: TargetError) -> Status {
    if matches!(error, TargetError::HeldBack) {
        return Status::COMMAND_INTERRUPTED;
    }
    tracing::error!(%error, "a change of namespaces failed");
    Status::INTERNAL
}

impl Control {
    pub(crate) fn manage(
        &self,
        nqn: &Nqn,
        host: &HostNqn,
        command: &ManagementCommand,
    ) -> Result<u32, Status> {
        if self.lock().holds_namespaces {
            return Err(internal(TargetError::HeldBack));
        }
        match command {
            ManagementCommand::Create { block_count, block_size, shared } => {
                self.create(nqn, *block_count, *block_size, *shared)
            }
            ManagementCommand::Delete { nsid } => self.delete(nqn, *nsid),
            ManagementCommand::Attach { nsid, controllers } => {
                self.attach(nqn, *nsid, controllers, true)
            }
            ManagementCommand::Detach { nsid, controllers } => {
                self.attach(nqn, *nsid, controllers, false)
            }
            ManagementCommand::Format { nsid, block_size } => {
                self.format(nqn, host, *nsid, *block_size)
            }
        }
    }

    // ------------------------------------------------------------------- create and delete

    fn create(
        &self,
        nqn: &Nqn,
        block_count: u64,
        block_size: u32,
        shared: bool,
    ) -> Result<u32, Status> {
        let mut state = self.lock();
        let (nsid, units) = reserve(&mut state, nqn, block_count, block_size)?;
        let uuid = Uuid::new_v4().into_bytes();
        let namespace =
            PoolNamespace { nsid, units, block_size, block_count, shared, uuid, hosts: Vec::new() };
        let pool = pool(&mut state, nqn)?.clone();
        let made = match self.open_carved(&mut state, &pool, &namespace) {
            Ok(exported) => {
                drop(state);
                // The previous contents must not show through.
                let wiped = self.wipe(exported.device, block_count * u64::from(block_size));
                state = self.lock();
                let shown = wiped.and_then(|()| self.show(&mut state, nqn, &exported, namespace));
                if shown.is_err() {
                    self.close_device(&mut state, exported.device).map_err(internal)?;
                }
                shown
            }
            Err(error) => Err(internal(error)),
        };
        if let Ok(pool) = pool_mut(&mut state, nqn) {
            pool.reserved.retain(|(reserved, _)| *reserved != nsid);
        }
        if let Ok(entry) = state.entry(nqn) {
            entry.describe_anew();
        }
        self.publish(&mut state).map_err(internal)?;
        made.map(|()| nsid.0)
    }

    /// Saves a namespace that is ready, and adds it to the subsystem.
    fn show(
        &self,
        state: &mut State,
        nqn: &Nqn,
        exported: &Exported,
        namespace: PoolNamespace,
    ) -> Result<(), Status> {
        let nsid = namespace.nsid;
        let shown = self.change(state, nqn, |entry| {
            // If another pool has replaced the one that the namespace was made of, the namespace is
            // dropped.
            let pool = entry.pool.as_mut().filter(|pool| pool.has_reserved(nsid));
            pool.ok_or_else(|| TargetError::NoPool(nqn.clone()))?.map.insert(namespace);
            entry.namespaces.insert(nsid.0, exported.clone());
            Ok(())
        });
        shown.map_err(internal)
    }

    fn delete(&self, nqn: &Nqn, nsid: NamespaceId) -> Result<u32, Status> {
        let mut state = self.lock();
        let doomed = if nsid == NamespaceId::BROADCAST {
            let namespaces = &pool(&mut state, nqn)?.map.namespaces;
            namespaces.iter().map(|namespace| namespace.nsid).collect()
        } else {
            vec![nsid]
        };
        for nsid in doomed {
            self.delete_from_pool(&mut state, nqn, nsid).map_err(|error| match error {
                TargetError::NoNamespace { .. } => Status::INVALID_NAMESPACE.dnr(),
                TargetError::PoolBusy(_) => Status::FORMAT_IN_PROGRESS,
                error => internal(error),
            })?;
        }
        Ok(0)
    }

    /// Deletes a namespace of a pool; commands in flight finish first.
    pub(crate) fn delete_from_pool(
        &self,
        state: &mut State,
        nqn: &Nqn,
        nsid: NamespaceId,
    ) -> Result<(), TargetError> {
        let exported = self.change(state, nqn, |entry| {
            if entry.is_formatting(nsid) {
                return Err(TargetError::PoolBusy(nqn.clone()));
            }
            if let Some(pool) = &mut entry.pool {
                pool.map.namespaces.retain(|namespace| namespace.nsid != nsid);
            }
            entry.reservations.remove(&nsid.0);
            let missing = || TargetError::NoNamespace { nqn: nqn.clone(), nsid };
            entry.namespaces.remove(&nsid.0).ok_or_else(missing)
        })?;
        self.publish(state)?;
        self.close_device(state, exported.device)
    }

    // ------------------------------------------------------------------- attach and detach

    /// Attaches a namespace to the hosts of those controllers, or detaches it.
    fn attach(
        &self,
        nqn: &Nqn,
        nsid: NamespaceId,
        controllers: &[ControllerId],
        attach: bool,
    ) -> Result<u32, Status> {
        let mut state = self.lock();
        let hosts = self.hosts_of(nqn, controllers)?;
        let namespace = pool_mut(&mut state, nqn)?.map.find(nsid);
        let attached = &namespace.ok_or(Status::INVALID_NAMESPACE.dnr())?.hosts;
        let mut after = attached.clone();
        for host in &hosts {
            match (attached.contains(host), attach) {
                (true, true) => return Err(Status::NAMESPACE_ALREADY_ATTACHED.dnr()),
                (false, false) => return Err(Status::NAMESPACE_NOT_ATTACHED.dnr()),
                (false, true) => after.push(host.clone()),
                (true, false) => after.retain(|other| other != host),
            }
        }
        let changed = self.change(&mut state, nqn, |entry| {
            let shared = entry.namespace(nsid)?.namespace.shared;
            if after.len() > 1 && !shared {
                return Ok(false);
            }
            entry.set_hosts_of(nsid, after).map(|()| true)
        });
        if !changed.map_err(internal)? {
            return Err(Status::NAMESPACE_IS_PRIVATE.dnr());
        }
        self.publish(&mut state).map_err(internal)?;
        Ok(0)
    }

    /// The hosts of controllers, each once. The map cannot name a host without a name.
    fn hosts_of(&self, nqn: &Nqn, controllers: &[ControllerId]) -> Result<Vec<Nqn>, Status> {
        let known = self.shared.controllers_of(nqn);
        let mut hosts: Vec<Nqn> = Vec::new();
        for cntlid in controllers {
            match known.binary_search_by_key(cntlid, |(id, _)| *id).map(|place| &known[place].1) {
                Ok(HostNqn::Named(host)) if hosts.contains(host) => {}
                Ok(HostNqn::Named(host)) => hosts.push(host.clone()),
                Ok(HostNqn::Unnamed) | Err(_) => {
                    return Err(Status::CONTROLLER_LIST_INVALID.dnr());
                }
            }
        }
        Ok(hosts)
    }

    // ------------------------------------------------------------------------------- format

    fn format(
        &self,
        nqn: &Nqn,
        host: &HostNqn,
        nsid: NamespaceId,
        block_size: u32,
    ) -> Result<u32, Status> {
        let nsids: Vec<NamespaceId> = if nsid == NamespaceId::BROADCAST {
            let mut state = self.lock();
            let entry = state.entry(nqn).map_err(internal)?;
            let all = entry.namespaces.values().filter(|ns| ns.is_of_pool());
            let attached = all.filter(|ns| ns.namespace.visibility.includes(host));
            attached.map(|ns| ns.namespace.nsid).collect()
        } else {
            vec![nsid]
        };
        for nsid in nsids {
            self.format_one(nqn, nsid, block_size)?;
        }
        Ok(0)
    }

    /// Zeroes a namespace and gives it that block size. Meanwhile its commands fail with Format In
    /// Progress; commands in flight finish before. After a failure the namespace is as it was, except for
    /// blocks that are zero already.
    fn format_one(&self, nqn: &Nqn, nsid: NamespaceId, block_size: u32) -> Result<(), Status> {
        let mut state = self.lock();
        let before = pool(&mut state, nqn)?.clone();
        let found = before.map.namespaces.iter().find(|namespace| namespace.nsid == nsid);
        let noted = found.ok_or(Status::INVALID_NAMESPACE.dnr())?;
        if before.formatting.contains(&nsid) {
            return Err(Status::FORMAT_IN_PROGRESS);
        }
        let bytes = noted.block_count * u64::from(noted.block_size);
        let block_count = (bytes / u64::from(block_size)).max(1);
        let wanted = PoolNamespace { block_size, block_count, ..noted.clone() };
        let exported = state.entry(nqn).and_then(|entry| entry.namespace(nsid));
        let old = exported.map_err(internal)?.clone();
        let busy = self.stand_in(&mut state, nqn, &old).map_err(internal)?;
        pool_mut(&mut state, nqn)?.formatting.push(nsid);
        let formatted = match self.open_carved(&mut state, &before, &wanted) {
            Ok(new) => {
                drop(state);
                let wiped = self.wipe(new.device, block_count * u64::from(block_size));
                state = self.lock();
                let shown = wiped.and_then(|()| {
                    self.put(&mut state, nqn, nsid, (new.device, &new.bdev)).map_err(internal)
                });
                if shown.is_err() {
                    self.close_device(&mut state, new.device).map_err(internal)?;
                }
                shown
            }
            Err(error) => Err(internal(error)),
        };
        let was_removed = !state.entry(nqn).is_ok_and(|entry| entry.is_formatting(nsid));
        if was_removed {
            return Err(Status::INVALID_NAMESPACE.dnr());
        }
        if formatted.is_err() {
            let device = self.open_device(&mut state, &old.bdev).map_err(internal)?;
            self.put(&mut state, nqn, nsid, (device, &old.bdev)).map_err(internal)?;
        }
        pool_mut(&mut state, nqn)?.formatting.retain(|other| *other != nsid);
        self.publish(&mut state).map_err(internal)?;
        self.close_device(&mut state, busy).map_err(internal)?;
        formatted
    }

    /// Puts a stand-in behind a namespace and closes its device.
    fn stand_in(
        &self,
        state: &mut State,
        nqn: &Nqn,
        old: &Exported,
    ) -> Result<DeviceId, TargetError> {
        let bdev = BusyBdev::instead_of(&old.bdev);
        let device = self.open_device(state, &bdev)?;
        self.change(state, nqn, |entry| {
            entry.namespace(old.namespace.nsid)?.device = device;
            Ok(())
        })?;
        self.publish(state)?;
        self.close_device(state, old.device)?;
        Ok(device)
    }

    /// Gives a namespace of the pool that is being formatted another device; the next snapshot
    /// shows it.
    fn put(
        &self,
        state: &mut State,
        nqn: &Nqn,
        nsid: NamespaceId,
        (device, bdev): (DeviceId, &SharedBdev),
    ) -> Result<(), TargetError> {
        let info = bdev.info();
        self.change(state, nqn, |entry| {
            if !entry.is_formatting(nsid) {
                return Err(TargetError::NoPool(nqn.clone()));
            }
            let (noted, exported) = entry.carved(nsid)?;
            (noted.block_size, noted.block_count) = (info.block_size, info.block_count);
            exported.namespace = with_device(&exported.namespace, &info);
            exported.bdev = bdev.clone();
            exported.device = device;
            Ok(())
        })
    }

    /// Zeroes the beginning of a device that no snapshot shows, however long it takes.
    fn wipe(&self, id: DeviceId, bytes: u64) -> Result<(), Status> {
        let core = id.warden(self.shared.cores());
        let (reply, answer) = mpsc::channel();
        self.shared.send(core, Message::Wipe { id, bytes, reply });
        match answer.recv() {
            Ok((_, Ok(()))) => Ok(()),
            Ok((_, Err(BdevError::NoSpace))) => Err(Status::NAMESPACE_INSUFFICIENT_CAPACITY.dnr()),
            Ok((_, Err(error))) => {
                tracing::error!(?error, "a namespace cannot be zeroed");
                Err(Status::INTERNAL)
            }
            // The target is shutting down.
            Err(mpsc::RecvError) => Err(Status::ABORTED_SQ_DELETION),
        }
    }
}

impl PoolState {
    fn has_reserved(&self, nsid: NamespaceId) -> bool {
        self.reserved.iter().any(|(reserved, _)| *reserved == nsid)
    }
}

fn pool<'a>(state: &'a mut State, nqn: &Nqn) -> Result<&'a PoolState, Status> {
    pool_mut(state, nqn).map(|pool| &*pool)
}

/// There may be none any more.
fn pool_mut<'a>(state: &'a mut State, nqn: &Nqn) -> Result<&'a mut PoolState, Status> {
    let pool = state.entry(nqn).ok().and_then(|entry| entry.pool.as_mut());
    pool.ok_or(Status::INVALID_OPCODE.dnr())
}

/// Finds a number and room for a namespace, and keeps both from others.
fn reserve(
    state: &mut State,
    nqn: &Nqn,
    block_count: u64,
    block_size: u32,
) -> Result<(NamespaceId, std::ops::Range<u64>), Status> {
    let entry = state.entry(nqn).map_err(internal)?;
    let max = entry.config.max_namespaces;
    let Some(pool) = &mut entry.pool else { return Err(Status::INVALID_OPCODE.dnr()) };
    let taken = |nsid: &u32| {
        let mut reserved = pool.reserved.iter().map(|(reserved, _)| reserved.0);
        entry.namespaces.contains_key(nsid) || reserved.any(|reserved| reserved == *nsid)
    };
    let nsid = (1..=max).find(|nsid| !taken(nsid)).map(NamespaceId);
    let nsid = nsid.ok_or(Status::NAMESPACE_ID_UNAVAILABLE.dnr())?;
    let bytes = block_count.checked_mul(block_size.into());
    let units = bytes.map(|bytes| bytes.div_ceil(pool.map.unit_bytes));
    let room = units.and_then(|units| best_fit(pool.total_units(), &pool.used(), units));
    let units = room.ok_or(Status::NAMESPACE_INSUFFICIENT_CAPACITY.dnr())?;
    pool.reserved.push((nsid, units.clone()));
    Ok((nsid, units))
}
