//! A logical unit, as all sessions on all cores share it: what it is, its mode pages and reservations, and what each I_T
//! nexus has yet to be told.
//!
//! A session keeps what commands need to know, with the number of the change that it has seen last ([`Unit::epoch`]). So
//! a command costs the comparison of two numbers, and takes the lock only if something has changed.
//!
//! The reservations are those of the device, which a namespace may share. One thread changes them, for both
//! protocols ([`crate::changes::reserve`]), and [`Unit::install`] shows the change here. Sessions only ever give up what an
//! I_T nexus holds by Reserve.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use raceline_bdev::BdevInfo;
use raceline_proto::nvme::HostId;
use raceline_proto::reservation::{AccessGroup, Notice, Reservations};
use raceline_scsi::{
    Admission, Attentions, Change, Identity, Limits, Lun, LunState, Nexus, UnitAttention, Whom,
};

/// Most blocks of COMPARE AND WRITE, which needs two buffers beside each other.
const MAX_COMPARE_AND_WRITE_BLOCKS: u8 = 128;

/// A logical unit.
#[derive(Debug)]
pub(crate) struct Unit {
    epoch: AtomicU64,
    shared: Mutex<Shared>,
}

#[derive(Debug)]
struct Shared {
    lun: Arc<Lun>,
    state: Arc<LunState>,
    attached: Vec<Attached>,
}

/// An I_T nexus with a session.
#[derive(Debug)]
struct Attached {
    nexus: Nexus,
    /// By which notices name it.
    id: HostId,
    attentions: Attentions,
}

/// What a session knows of a unit.
#[derive(Debug)]
pub(crate) struct Seen {
    epoch: u64,
    pub(crate) lun: Arc<Lun>,
    pub(crate) state: Arc<LunState>,
    pub(crate) admission: Admission,
}

impl Unit {
    /// Over a device like this, with these reservations, for transfers of at most `max_transfer_bytes`.
    pub(crate) fn new(
        info: &BdevInfo,
        serial: &str,
        max_transfer_bytes: u32,
        reservations: Reservations,
    ) -> Self {
        let identity = match serial {
            "" => Identity::of_uuid(info.uuid),
            serial => Identity { serial: serial.into(), ..Identity::of_uuid(info.uuid) },
        };
        let limits = Limits {
            max_compare_and_write_blocks: MAX_COMPARE_AND_WRITE_BLOCKS,
            ..Limits::new(max_transfer_bytes)
        };
        let lun = Arc::new(describe(info, identity, limits));
        let state = Arc::new(LunState { reservations, ..LunState::default() });
        let shared = Shared { lun, state, attached: Vec::new() };
        Self { epoch: AtomicU64::new(1), shared: Mutex::new(shared) }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the last change.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    fn count_change(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Its device may be of another size now.
    pub(crate) fn set_device(&self, info: &BdevInfo) {
        let mut shared = self.lock();
        let old = &shared.lun;
        let lun = describe(info, old.identity.clone(), old.limits);
        if lun == **old {
            return;
        }
        if lun.block_count != old.block_count {
            for attached in &mut shared.attached {
                attached.attentions.add(UnitAttention::CapacityChanged);
            }
        }
        shared.lun = Arc::new(lun);
        self.count_change();
    }

    /// A session begins. Gives what it has to know.
    pub(crate) fn attach(&self, nexus: &Nexus) -> Seen {
        let mut shared = self.lock();
        let epoch = self.epoch();
        if !shared.attached.iter().any(|attached| attached.nexus == *nexus) {
            let (nexus, id) = (nexus.clone(), nexus.host_id());
            shared.attached.push(Attached { nexus, id, attentions: Attentions::NONE });
        }
        let admission = shared.state.admission(nexus);
        Seen { epoch, lun: Arc::clone(&shared.lun), state: Arc::clone(&shared.state), admission }
    }

    /// A session has ended, and the I_T nexus is lost. Gives whether it held the logical unit by Reserve, and has given
    /// it up.
    pub(crate) fn detach(&self, nexus: &Nexus) -> bool {
        let gave_up = self.change(nexus, &Change::NexusLost);
        self.lock().attached.retain(|attached| attached.nexus != *nexus);
        gave_up
    }

    /// Learns what has changed, and what the nexus has to be told.
    #[cold]
    pub(crate) fn look(&self, nexus: &Nexus, seen: &mut Seen, attentions: &mut Attentions) {
        let mut shared = self.lock();
        *seen = Seen {
            epoch: self.epoch(),
            lun: Arc::clone(&shared.lun),
            state: Arc::clone(&shared.state),
            admission: shared.state.admission(nexus),
        };
        let own = shared.attached.iter_mut().find(|attached| attached.nexus == *nexus);
        if let Some(own) = own {
            let mut told = std::mem::take(&mut own.attentions);
            while let Some(attention) = told.take() {
                attentions.add(attention);
            }
        }
    }

    /// Whether an I_T nexus may run commands of a group now.
    #[cold]
    pub(crate) fn admits(&self, nexus: &Nexus, group: AccessGroup) -> bool {
        self.lock().state.admission(nexus).admits(Some(group))
    }

    /// Its state.
    pub(crate) fn state(&self) -> Arc<LunState> {
        Arc::clone(&self.lock().state)
    }

    /// Shows what was made of the reservations `before`. What a session has given up meanwhile stays given up.
    pub(crate) fn install(&self, before: &Reservations, next: &Reservations) {
        let mut shared = self.lock();
        let own = &mut Arc::make_mut(&mut shared.state).reservations;
        let is_given_up = own.reserved_by != before.reserved_by;
        let reserved_by = if is_given_up { &own.reserved_by } else { &next.reserved_by };
        *own = Reservations { reserved_by: reserved_by.clone(), ..next.clone() };
        self.count_change();
    }

    /// Tells I_T nexuses what a host has done to the reservations.
    pub(crate) fn notify(&self, notices: &[Notice]) {
        let mut shared = self.lock();
        for attached in &mut shared.attached {
            let own = notices.iter().filter(|notice| notice.to == attached.id);
            own.for_each(|notice| attached.attentions.add(notice.kind.into()));
        }
        self.count_change();
    }

    /// Tells some nexuses something.
    pub(crate) fn tell(&self, is_meant: impl Fn(&Nexus) -> bool, attention: UnitAttention) {
        let mut shared = self.lock();
        let meant = shared.attached.iter_mut().filter(|attached| is_meant(&attached.nexus));
        meant.for_each(|attached| attached.attentions.add(attention));
        self.count_change();
    }

    /// Makes a change that concerns the logical unit alone, and that cannot be refused: all but those of reservations.
    /// Gives whether it has ended what an I_T nexus held by Reserve.
    pub(crate) fn change(&self, nexus: &Nexus, change: &Change) -> bool {
        let mut shared = self.lock();
        let Ok(outcome) = shared.state.apply(nexus, change) else { return false };
        if outcome.next.is_none() && outcome.told.is_empty() {
            return false;
        }
        let had = shared.state.reservations.reserved_by.is_some();
        if let Some(next) = outcome.next {
            shared.state = Arc::new(next);
        }
        let has = shared.state.reservations.reserved_by.is_some();
        add_attentions(&mut shared.attached, nexus, &outcome.told);
        self.count_change();
        had && !has
    }

    /// Tells I_T nexuses what `nexus` has changed.
    pub(crate) fn tell_changed(&self, nexus: &Nexus, told: &[(Whom, UnitAttention)]) {
        if !told.is_empty() {
            add_attentions(&mut self.lock().attached, nexus, told);
            self.count_change();
        }
    }
}

fn add_attentions(attached: &mut [Attached], from: &Nexus, told: &[(Whom, UnitAttention)]) {
    for (whom, attention) in told {
        let is_meant = |attached: &Attached| match whom {
            Whom::All => true,
            Whom::Others => attached.nexus != *from,
            Whom::Nexus(one) => attached.nexus == *one,
        };
        for attached in attached.iter_mut().filter(|attached| is_meant(attached)) {
            attached.attentions.add(*attention);
        }
    }
}

impl Seen {
    /// Whether the unit has changed since.
    #[inline]
    pub(crate) fn is_stale(&self, unit: &Unit) -> bool {
        self.epoch != unit.epoch()
    }
}

fn describe(info: &BdevInfo, identity: Identity, limits: Limits) -> Lun {
    Lun {
        block_size: info.block_size,
        block_count: info.block_count,
        physical_block_size: info.physical_block_size.max(info.block_size),
        io_boundary_bytes: info.io_boundary_bytes,
        read_only: info.read_only,
        volatile_write_cache: info.volatile_write_cache,
        deallocate: info.deallocate,
        deallocate_zeroes: info.deallocate_zeroes,
        knows_holes: info.knows_holes,
        identity,
        limits,
    }
}
