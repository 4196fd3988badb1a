//! The reservations of a device, which a namespace and the logical unit of LUNs have in common.
//!
//! Each of the two has the whole state: the namespace for the snapshots of the cores, the unit for its sessions. A change
//! is kept in the places of both before one of them shows it, and both show it before it is answered. What comes
//! later to a device takes over what is there ([`Control::join_namespace`], [`Control::join_unit`]).

use std::io;
use std::sync::Arc;

use raceline_proto::nvme::{NamespaceId, Nqn};
use raceline_proto::reservation::{Registrant, Reservations, Who};

use crate::changes::config::TargetError;
use crate::changes::control::{Control, State};
use crate::changes::iscsi_state::IscsiState;
use crate::changes::reservation_state::{KeptReservations, ReservationPlace, ReservationStore};
use crate::changes::snapshot::DeviceId;

type Store = Arc<dyn ReservationStore>;

/// Why a change of reservations is not made, or not seen by all.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("it cannot be kept: nothing has changed: {0}")]
    Store(#[from] io::Error),
    #[error("it cannot be shown to all cores: {0}")]
    Show(#[from] TargetError),
}

impl State {
    /// The namespace on a device, and whether its reservations show to hosts: not if other numbers of its subsystem's
    /// controllers are those of another target.
    pub(super) fn namespace_on(&self, device: DeviceId) -> Option<(Nqn, NamespaceId, bool)> {
        self.subsystems.iter().find_map(|(nqn, entry)| {
            let mut namespaces = entry.namespaces.iter();
            let (nsid, _) = namespaces.find(|(_, exported)| exported.device == device)?;
            Some((nqn.clone(), NamespaceId(*nsid), entry.is_alone()))
        })
    }

    /// What is kept of a namespace.
    pub(super) fn kept(&self, nqn: &Nqn, nsid: NamespaceId) -> KeptReservations {
        let kept = self.subsystems.get(nqn).and_then(|entry| entry.reservations.get(&nsid.0));
        kept.cloned().unwrap_or_default()
    }

    /// The places where the reservations of a device are kept.
    fn stores(&self, device: DeviceId) -> Vec<Store> {
        let namespace = self.namespace_on(device).filter(|(_, _, is_alone)| *is_alone);
        let of_namespace = namespace.and_then(|(nqn, nsid, _)| self.kept(&nqn, nsid).store);
        let unit = self.iscsi.units.get(&device);
        let of_unit = unit.and_then(|unit| unit.store.clone());
        of_namespace.into_iter().chain(of_unit).collect()
    }
}

impl Control {
    /// Keeps what a command has made of the reservations of a device, and shows it to all cores.
    pub(super) fn replace_reservations(
        &self,
        state: &mut State,
        device: DeviceId,
        (before, next): (&Reservations, &Reservations),
    ) -> Result<(), Failure> {
        save(&state.stores(device), before, next)?;
        if let Some(exported) = state.iscsi.units.get(&device) {
            exported.unit.install(before, next);
        }
        Ok(self.show_reservations(state, device, next)?)
    }

    /// Shows hosts the reservations of the namespace on a device.
    pub(super) fn show_reservations(
        &self,
        state: &mut State,
        device: DeviceId,
        next: &Reservations,
    ) -> Result<(), TargetError> {
        let Some((nqn, nsid, true)) = state.namespace_on(device) else { return Ok(()) };
        let kept = KeptReservations { state: Arc::new(next.clone()), ..state.kept(&nqn, nsid) };
        self.change(state, &nqn, |entry| {
            entry.reservations.insert(nsid.0, kept);
            Ok(())
        })?;
        self.publish(state)
    }

    /// Gives a device the reservations that it had in another process, in which they are kept.
    pub(super) fn restore(
        &self,
        state: &mut State,
        device: DeviceId,
        reservations: Reservations,
    ) -> Result<(), TargetError> {
        let can_persist = !state.stores(device).is_empty();
        let mut next = Reservations { can_persist, ..reservations };
        state.iscsi.renumber(&mut next);
        if let Some(exported) = state.iscsi.units.get(&device) {
            let before = exported.unit.state();
            exported.unit.install(&before.reservations, &next);
        }
        self.show_reservations(state, device, &next)
    }

    /// A namespace comes to a device that may be a logical unit already. The next snapshot shows what they have in common.
    pub(super) fn join_namespace(
        &self,
        state: &mut State,
        (nqn, nsid): (&Nqn, NamespaceId),
        place: Option<&ReservationPlace>,
    ) -> Result<(), TargetError> {
        let entry = state.entry(nqn)?;
        let (device, is_alone) = (entry.namespace(nsid)?.device, entry.is_alone());
        let Some(exported) = state.iscsi.units.get(&device) else { return Ok(()) };
        let live = exported.unit.state();
        let live = &live.reservations;
        if !is_alone {
            return refuse_strangers(live, &exported.bdev.info().name);
        }
        let stores: Vec<Store> = exported.store.iter().cloned().collect();
        let mut next = join(live, place, &stores).map_err(keep_error)?;
        state.iscsi.renumber(&mut next);
        exported.unit.install(live, &next);
        let store = place.map(|place| Arc::clone(&place.store));
        let kept = KeptReservations { state: Arc::new(next), store };
        self.change(state, nqn, |entry| {
            entry.reservations.insert(nsid.0, kept);
            Ok(())
        })
    }

    /// A logical unit comes to a device that may be a namespace already. Gives its reservations; the next snapshot shows
    /// them to hosts.
    pub(super) fn join_unit(
        &self,
        state: &mut State,
        device: DeviceId,
        place: Option<&ReservationPlace>,
    ) -> Result<Reservations, TargetError> {
        let namespace = state.namespace_on(device);
        let kept = namespace.as_ref().filter(|(_, _, is_alone)| *is_alone);
        let kept = kept.map(|(nqn, nsid, _)| state.kept(nqn, *nsid)).unwrap_or_default();
        let stores: Vec<Store> = kept.store.iter().cloned().collect();
        let mut next = join(&kept.state, place, &stores).map_err(keep_error)?;
        state.iscsi.renumber(&mut next);
        let Some((nqn, nsid, is_alone)) = namespace else { return Ok(next) };
        if !is_alone {
            return refuse_strangers(&next, &format!("namespace {nsid} of {nqn}")).map(|()| next);
        }
        let kept = KeptReservations { state: Arc::new(next.clone()), ..kept };
        self.change(state, &nqn, |entry| {
            entry.reservations.insert(nsid.0, kept);
            Ok(())
        })?;
        Ok(next)
    }
}

impl IscsiState {
    /// Gives I_T nexuses that were kept the relative target port identifiers that their ports have now; 0: their port is
    /// not there.
    fn renumber(&self, reservations: &mut Reservations) {
        for registrant in &mut reservations.registrants {
            let Registrant { who: Who::Nexus(nexus), .. } = registrant else { continue };
            let node = self.view.nodes.get(&nexus.target);
            let relative = node.and_then(|node| node.ports.get(&nexus.port.group));
            nexus.port.relative = relative.copied().unwrap_or(0);
        }
    }
}

/// Reservations that another target does not know of would bind only some of the hosts.
fn refuse_strangers(state: &Reservations, device: &str) -> Result<(), TargetError> {
    if state.is_empty() {
        return Ok(());
    }
    let reason = "initiators are registered with it by iSCSI, and the subsystem shares its controllers with another \
                  target, whose hosts would not be bound by that; have them unregister first";
    Err(TargetError::Unsuitable { device: device.to_owned(), reason: reason.to_owned() })
}

fn keep_error(error: io::Error) -> TargetError {
    TargetError::Config {
        what: "a place where reservations are kept",
        need: if error.kind() == io::ErrorKind::StorageFull {
            "one with free space"
        } else {
            "one that can be written; the log says why it cannot"
        },
    }
}

/// Keeps a new state in all places, or in none.
fn save(stores: &[Store], before: &Reservations, next: &Reservations) -> io::Result<()> {
    let wanted = match (before.persists, next.persists) {
        (_, true) => Some(next),
        (true, false) => None,
        (false, false) => return Ok(()),
    };
    for (index, store) in stores.iter().enumerate() {
        let Err(error) = store.save(wanted) else { continue };
        let was = before.persists.then_some(before);
        for store in &stores[..index] {
            if let Err(error) = store.save(was) {
                tracing::error!(%error, "a place of reservations has a change that was not made");
            }
        }
        return Err(error);
    }
    Ok(())
}

/// What a device has when something with a place of its own comes to it. Registrants that are there count; if there are
/// none, those of the place do. `stores`: the places of what is there.
fn join(
    live: &Reservations,
    place: Option<&ReservationPlace>,
    stores: &[Store],
) -> io::Result<Reservations> {
    let can_persist = !stores.is_empty() || place.is_some();
    let here = Reservations { can_persist, ..live.clone() };
    let Some(place) = place else { return Ok(here) };
    let was_kept = !place.saved.registrants.is_empty();
    if was_kept && live.registrants.is_empty() {
        let Reservations { generation, reserved_by, .. } = here;
        let back = Reservations { can_persist, generation, reserved_by, ..place.saved.clone() };
        save(stores, live, &back)?;
        return Ok(back);
    }
    if here.persists {
        place.store.save(Some(&here))?;
    } else if was_kept {
        place.store.save(None)?;
    }
    Ok(here)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use raceline_proto::nvme::HostId;

    use super::*;

    /// A place that may be full.
    #[derive(Default)]
    struct Shelf {
        kept: Mutex<Option<Reservations>>,
        is_full: bool,
    }

    impl ReservationStore for Shelf {
        fn save(&self, reservations: Option<&Reservations>) -> io::Result<()> {
            if self.is_full {
                return Err(io::ErrorKind::StorageFull.into());
            }
            *self.kept.lock().unwrap() = reservations.cloned();
            Ok(())
        }
    }

    impl Shelf {
        fn of(kept: &Reservations) -> Arc<Self> {
            Arc::new(Self { kept: Mutex::new(Some(kept.clone())), is_full: false })
        }

        fn kept(&self) -> Option<Reservations> {
            self.kept.lock().unwrap().clone()
        }
    }

    fn registered(number: u8, persists: bool) -> Reservations {
        let registrant = Registrant::host(HostId([number; 16]), None, number.into());
        Reservations {
            registrants: vec![registrant],
            persists,
            can_persist: true,
            ..Reservations::default()
        }
    }

    fn place(shelf: &Arc<Shelf>) -> ReservationPlace {
        let saved = shelf.kept().unwrap_or_default();
        ReservationPlace { store: Arc::clone(shelf) as Store, saved }
    }

    #[test]
    fn who_is_there_counts_and_the_place_of_who_comes_is_corrected() {
        let live = registered(1, true);
        let stale = Shelf::of(&registered(2, true));
        assert_eq!(join(&live, Some(&place(&stale)), &[]).unwrap(), live);
        assert_eq!(stale.kept(), Some(live));
        let live = registered(1, false);
        let stale = Shelf::of(&registered(2, true));
        assert_eq!(join(&live, Some(&place(&stale)), &[]).unwrap(), live);
        assert_eq!(stale.kept(), None, "a restart would bring back who is not registered");
    }

    #[test]
    fn what_was_kept_comes_back_where_nobody_is() {
        let kept = registered(2, true);
        let (own, other) = (Shelf::of(&kept), Arc::new(Shelf::default()));
        let live = Reservations { generation: 7, ..Reservations::default() };
        let joined = join(&live, Some(&place(&own)), &[Arc::clone(&other) as Store]).unwrap();
        assert_eq!(joined, Reservations { generation: 7, ..kept });
        assert_eq!(other.kept(), Some(joined), "both places have it from now on");
    }

    #[test]
    fn a_place_that_fails_leaves_all_places_as_they_were() {
        let before = registered(1, true);
        let good = Shelf::of(&before);
        let full = Arc::new(Shelf { is_full: true, ..Shelf::default() });
        let stores = [Arc::clone(&good) as Store, full as Store];
        save(&stores, &before, &registered(2, true)).unwrap_err();
        assert_eq!(good.kept(), Some(before.clone()));
        save(&stores, &before, &registered(2, false)).unwrap_err();
        assert_eq!(good.kept(), Some(before));
        save(&stores, &registered(1, false), &registered(2, false)).unwrap();
    }
}
