//! What happens to connections and commands on a core.

pub(crate) mod association;
pub(crate) mod buffers;
pub(crate) mod connection;
pub(crate) mod core;
pub(crate) mod digest;
pub(crate) mod fused;
pub(crate) mod io_queue;
pub(crate) mod poll_group;
pub(crate) mod range_lock;
pub(crate) mod slots;
pub(crate) mod wipe;
