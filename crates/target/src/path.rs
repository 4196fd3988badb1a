//! What happens to connections and commands on a core.

pub(crate) mod association;
pub(crate) mod authentication;
pub(crate) mod buffers;
pub(crate) mod choice;
pub(crate) mod commands;
pub(crate) mod connection;
pub(crate) mod core;
pub(crate) mod fencing;
pub(crate) mod handed;
pub(crate) mod inbox;
pub(crate) mod iscsi;
pub(crate) mod life;
pub(crate) mod outbox;
pub(crate) mod poll_group;
pub(crate) mod range_lock;
pub(crate) mod shares;
pub(crate) mod slots;
pub(crate) mod suspension;
pub(crate) mod traveller;
pub(crate) mod wipe;
