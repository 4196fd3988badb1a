//! The reservations and the write protection of a namespace, as the target keeps them, and the places that outlive it.

use std::sync::Arc;

use raceline_proto::reservation::Reservations;

/// Where the reservations of a namespace or of a logical unit are kept.
pub trait ReservationStore: Send + Sync {
    /// Keeps them, or, with `None`, forgets what was kept: when this returns, a crash does not undo it. Only
    /// afterwards do hosts and initiators see the change and get their answer. The caller holds the lock on the target's state:
    /// this method must not call the target.
    ///
    /// # Errors
    /// When they cannot be kept; then the change is not made, and what was kept before must still be there.
    fn save(&self, reservations: Option<&Reservations>) -> std::io::Result<()>;
}

/// A place for the reservations of a namespace or of a logical unit.
#[derive(Clone)]
pub struct ReservationPlace {
    /// Where they are kept from now on.
    pub store: Arc<dyn ReservationStore>,
    /// As they were kept last.
    pub saved: Reservations,
}

/// Where the write protection of a namespace is kept.
pub trait ProtectionStore: Send + Sync {
    /// Keeps whether the namespace is write protected: when this returns, a crash does not undo it. The caller holds
    /// the lock on the target's state: this method must not call the target.
    ///
    /// # Errors
    /// When it cannot be kept; then the protection stays as it is.
    fn save(&self, is_protected: bool) -> std::io::Result<()>;
}

/// A place for the write protection of a namespace.
#[derive(Clone)]
pub struct ProtectionPlace {
    /// Where it is kept from now on.
    pub store: Arc<dyn ProtectionStore>,
    /// As it was kept last.
    pub is_protected: bool,
}

/// The reservations of a namespace, with the place where they are kept.
#[derive(Clone, Default)]
pub(crate) struct KeptReservations {
    pub(crate) state: Arc<Reservations>,
    pub(crate) store: Option<Arc<dyn ReservationStore>>,
}

impl KeptReservations {
    pub(crate) fn of(place: &ReservationPlace) -> Self {
        let state = Reservations { can_persist: true, generation: 0, ..place.saved.clone() };
        Self { state: Arc::new(state), store: Some(Arc::clone(&place.store)) }
    }
}
