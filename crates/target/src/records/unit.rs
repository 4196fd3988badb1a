//! A logical unit, as all sessions on all cores share it: what it is, its mode pages and reservations, and what each I_T
//! nexus has yet to be told.
//!
//! A session keeps what commands need to know, with the number of the change that it has seen last ([`Unit::epoch`]). So
//! a command costs the comparison of two numbers, and takes the lock only if something has changed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use raceline_bdev::BdevInfo;
use raceline_scsi::{
    Admission, Attentions, Change, Foreign, Identity, Limits, Lun, LunState, Nexus, Refusal,
    UnitAttention, Whom,
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
    /// Over a device like this, for transfers of at most `max_transfer_bytes`.
    pub(crate) fn new(info: &BdevInfo, serial: &str, max_transfer_bytes: u32) -> Self {
        let identity = match serial {
            "" => Identity::of_uuid(info.uuid),
            serial => Identity { serial: serial.into(), ..Identity::of_uuid(info.uuid) },
        };
        let limits = Limits {
            max_compare_and_write_blocks: MAX_COMPARE_AND_WRITE_BLOCKS,
            ..Limits::new(max_transfer_bytes)
        };
        let lun = Arc::new(describe(info, identity, limits));
        let shared = Shared { lun, state: Arc::default(), attached: Vec::new() };
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
            shared.attached.push(Attached { nexus: nexus.clone(), attentions: Attentions::NONE });
        }
        let admission = shared.state.admission(nexus);
        Seen { epoch, lun: Arc::clone(&shared.lun), state: Arc::clone(&shared.state), admission }
    }

    /// A session has ended, and the I_T nexus is lost.
    pub(crate) fn detach(&self, nexus: &Nexus) {
        // It gives up what it holds by Reserve, which cannot fail.
        let _ = self.change(nexus, &Change::NexusLost);
        self.lock().attached.retain(|attached| attached.nexus != *nexus);
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

    /// What the registry of NVMe/TCP hosts says of the same device.
    pub(crate) fn set_foreign(&self, foreign: Foreign) {
        let mut shared = self.lock();
        if shared.state.reservations.foreign != foreign {
            Arc::make_mut(&mut shared.state).reservations.foreign = foreign;
            self.count_change();
        }
    }

    /// What NVMe/TCP hosts have to know of the registry here.
    pub(crate) fn as_foreign(&self) -> Foreign {
        self.lock().state.reservations.as_foreign()
    }

    /// Tells some nexuses something.
    pub(crate) fn tell(&self, is_meant: impl Fn(&Nexus) -> bool, attention: UnitAttention) {
        let mut shared = self.lock();
        let meant = shared.attached.iter_mut().filter(|attached| is_meant(&attached.nexus));
        meant.for_each(|attached| attached.attentions.add(attention));
        self.count_change();
    }

    /// Makes a change that a nexus asks for. Gives the nexuses whose commands have to end before it is told.
    pub(crate) fn change(&self, nexus: &Nexus, change: &Change) -> Result<Vec<Nexus>, Refusal> {
        let mut shared = self.lock();
        let outcome = shared.state.apply(nexus, change)?;
        if outcome.next.is_none() && outcome.told.is_empty() {
            return Ok(outcome.aborted);
        }
        if let Some(next) = outcome.next {
            shared.state = Arc::new(next);
        }
        for (whom, attention) in outcome.told {
            let is_meant = |attached: &Attached| match &whom {
                Whom::All => true,
                Whom::Others => attached.nexus != *nexus,
                Whom::Nexus(one) => attached.nexus == *one,
            };
            for attached in shared.attached.iter_mut().filter(|attached| is_meant(attached)) {
                attached.attentions.add(attention);
            }
        }
        self.count_change();
        Ok(outcome.aborted)
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
