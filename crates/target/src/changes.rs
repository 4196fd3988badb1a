//! What is exported, and how the cores come to know of a change.

pub(crate) mod ana;
pub(crate) mod balance;
pub(crate) mod central;
pub(crate) mod config;
pub(crate) mod connections;
pub(crate) mod control;
pub(crate) mod info;
pub(crate) mod listeners;
pub(crate) mod management;
pub(crate) mod manual;
pub(crate) mod message;
pub(crate) mod moves;
pub(crate) mod namespaces;
pub(crate) mod pool;
pub(crate) mod pool_map;
pub(crate) mod pool_state;
pub(crate) mod qos;
pub(crate) mod reservation_state;
pub(crate) mod reserve;
pub(crate) mod snapshot;
pub(crate) mod subsystems;
pub(crate) mod target;
