//! Reservations at a controller: what Identify, features and log pages tell of them, and the notices for the
//! host (Base 2.0, 8.19). The commands on I/O queues are the driver's.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use zerocopy::IntoBytes;

use super::event::EventKind;
use super::log::copy_page;
use super::sgl::sgl_transfer;
use super::{AdminOutcome, Controller};
use crate::nvme::feature::{
    CAPABILITY_CHANGEABLE, CAPABILITY_NAMESPACE_SPECIFIC, Select, feature_id, fid, save,
};
use crate::nvme::opcode::{admin, io};
use crate::nvme::reservation::{
    NOTIFICATION_MASK, NoticeKind, PERSIST_THROUGH_POWER_LOSS, RESCAP_ALL_TYPES, RESCAP_PERSIST,
    ReservationNotification,
};
use crate::nvme::{Direction, Fuse, NamespaceId, Sqe, Status, Transfer};
use crate::reservation::{AccessGroup, ReservationCommand, Reservations, ReservingHost};

/// The reservations of namespaces, by NSID. A namespace that is not here has none, and none of its can persist.
pub type ReservedNamespaces = BTreeMap<u32, Arc<Reservations>>;

/// Most notices that wait for a host to read them. What comes then is lost, and leaves a gap in the count.
const MAX_NOTICES: usize = 64;

/// How many bytes go which way with a reservation command of an I/O queue.
///
/// # Errors
/// The status to complete it with: it is fused, it has no data, or its SGL is wrong.
pub fn reservation_transfer(sqe: &Sqe, max_bytes: u32) -> Result<Transfer, Status> {
    if sqe.fuse() != Fuse::Normal {
        return Err(Status::INVALID_FIELD.dnr());
    }
    let direction = if sqe.opc == io::RESERVATION_REPORT {
        Direction::ControllerToHost
    } else {
        Direction::HostToController
    };
    let transfer = sgl_transfer(sqe, direction, max_bytes)?;
    if transfer.len == 0 {
        return Err(Status::DATA_SGL_LENGTH_INVALID.dnr());
    }
    Ok(transfer)
}

/// What the host is to be told of reservations, and what it does not want to know.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    /// Count, what has happened, and where.
    pub(super) waiting: VecDeque<(u64, NoticeKind, NamespaceId)>,
    /// The count of the last one.
    pub(super) count: u64,
    /// Feature 82h of each namespace where it is not 0.
    pub(super) masks: BTreeMap<u32, u32>,
}

impl Notices {
    /// Notes what has happened; gives whether the host is to be told.
    fn push(&mut self, nsid: NamespaceId, kind: NoticeKind) -> bool {
        if self.masks.get(&nsid.0).is_some_and(|mask| mask & kind.mask_bit() != 0) {
            return false;
        }
        // 0 is the count of an empty page.
        self.count = self.count.checked_add(1).unwrap_or(1);
        if self.waiting.len() < MAX_NOTICES {
            self.waiting.push_back((self.count, kind, nsid));
        }
        true
    }

    fn page(&self) -> ReservationNotification {
        let Some((count, kind, nsid)) = self.waiting.front() else {
            return ReservationNotification::default();
        };
        ReservationNotification {
            count: (*count).into(),
            kind: kind.to_wire(),
            available: u8::try_from(self.waiting.len() - 1).unwrap_or(u8::MAX),
            nsid: nsid.0.into(),
            ..ReservationNotification::default()
        }
    }
}

impl Controller {
    /// Something has happened to the reservations of a namespace that the host is to be told of.
    pub fn note_reservation(&mut self, nsid: NamespaceId, kind: NoticeKind) {
        if self.abandoned || self.namespace(nsid).is_none() {
            return;
        }
        if self.notices.push(nsid, kind) {
            self.events.raise(EventKind::Reservation, &mut self.actions);
        }
    }

    /// Who its host is to reservations.
    #[must_use]
    pub fn reserving_host(&self) -> ReservingHost {
        ReservingHost { id: self.hostid, name: self.hostnqn.clone() }
    }

    /// Whether namespaces of the subsystem can be reserved.
    fn has_reservations(&self) -> bool {
        self.subsystem().is_some_and(|subsystem| subsystem.reservations.is_some())
    }

    fn reservations(&self, nsid: NamespaceId) -> Option<&Arc<Reservations>> {
        self.whole()?.reservations.as_ref()?.get(&nsid.0)
    }

    /// Checks whether the reservation of a namespace lets the host change it.
    pub(super) fn reservation_admits(&self, nsid: NamespaceId) -> Result<(), Status> {
        self.reservations(nsid).map_or(Ok(()), |reservations| {
            reservations.admit(&self.reserving_host(), AccessGroup::Write)
        })
    }

    /// RESCAP of a namespace.
    pub(super) fn rescap(&self, nsid: NamespaceId) -> u8 {
        if !self.has_reservations() {
            return 0;
        }
        let persist = self.reservations(nsid).is_some_and(|reservations| reservations.can_persist);
        RESCAP_ALL_TYPES | if persist { RESCAP_PERSIST } else { 0 }
    }

    /// The log page: the oldest notice. A reading with RAE 0 removes it; if others are left, the host is told again.
    pub(super) fn reservation_notification(
        &mut self,
        offset: u64,
        retain_event: bool,
        reply: &mut [u8],
    ) -> Result<(), Status> {
        copy_page(self.notices.page().as_bytes(), offset, reply)?;
        if !retain_event {
            self.notices.waiting.pop_front();
            let is_empty = self.notices.waiting.is_empty();
            if !is_empty {
                self.events.raise(EventKind::Reservation, &mut self.actions);
            }
            self.events.log_read(EventKind::Reservation, is_empty, &mut self.actions);
        }
        Ok(())
    }

    /// Whether Get or Set Features is about reservations, which only [`Self::reservation_feature`] knows.
    pub(super) fn is_reservation_feature(&self, sqe: &Sqe) -> bool {
        let is_one = matches!(
            feature_id(sqe),
            fid::RESERVATION_NOTIFICATION_MASK | fid::RESERVATION_PERSISTENCE
        );
        is_one && self.has_reservations()
    }

    /// Get or Set Features of Reservation Notification Mask and Reservation Persistence, which belong to a
    /// namespace (Base 2.0, 5.27.1.26 and 5.27.1.27).
    pub(super) fn reservation_feature(&mut self, sqe: &Sqe) -> Result<AdminOutcome, Status> {
        let is_mask = feature_id(sqe) == fid::RESERVATION_NOTIFICATION_MASK;
        let nsid = sqe.namespace_id();
        if sqe.opc == admin::SET_FEATURES {
            if save(sqe) {
                return Err(Status::FEATURE_NOT_SAVEABLE.dnr());
            }
            let value = sqe.cdw11.get();
            return if is_mask {
                self.set_mask(nsid, value)
            } else {
                self.set_persists(nsid, value)
            };
        }
        match Select::parse(sqe).ok_or(Status::INVALID_FIELD.dnr())? {
            Select::Capabilities => {
                let capabilities = CAPABILITY_CHANGEABLE | CAPABILITY_NAMESPACE_SPECIFIC;
                return Ok(AdminOutcome::success(capabilities));
            }
            Select::Default | Select::Saved => return Ok(AdminOutcome::success(0)),
            Select::Current => {}
        }
        self.check_feature_namespace(nsid)?;
        let value = if is_mask {
            self.notices.masks.get(&nsid.0).copied().unwrap_or(0)
        } else {
            self.reservations(nsid).is_some_and(|reservations| reservations.persists).into()
        };
        Ok(AdminOutcome::success(value))
    }

    fn check_feature_namespace(&self, nsid: NamespaceId) -> Result<(), Status> {
        self.namespace(nsid).ok_or(Status::INVALID_NAMESPACE.dnr())?;
        self.ana_refusal(nsid).map_or(Ok(()), Err)
    }

    fn set_mask(&mut self, nsid: NamespaceId, value: u32) -> Result<AdminOutcome, Status> {
        if value & !NOTIFICATION_MASK != 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let nsids: Vec<u32> = if nsid == NamespaceId::BROADCAST {
            let namespaces = self.subsystem().into_iter().flat_map(|s| &s.namespaces);
            namespaces.map(|namespace| namespace.nsid.0).collect()
        } else {
            self.check_feature_namespace(nsid)?;
            vec![nsid.0]
        };
        for nsid in nsids {
            if value == 0 {
                self.notices.masks.remove(&nsid);
            } else {
                self.notices.masks.insert(nsid, value);
            }
        }
        Ok(AdminOutcome::success(0))
    }

    /// The driver keeps the change and answers the command.
    fn set_persists(&self, nsid: NamespaceId, value: u32) -> Result<AdminOutcome, Status> {
        self.check_feature_namespace(nsid)?;
        if value & !PERSIST_THROUGH_POWER_LOSS != 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let command = ReservationCommand::Persist(value != 0);
        Ok(AdminOutcome::Reserve { nsid, command })
    }
}
