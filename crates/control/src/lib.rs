//! The control plane: SPDK's JSON-RPC on a Unix socket, over a manager of what is exported.
//!
//! Bytes become values in [`codec`], values become calls in [`request`], calls find their method in
//! [`method`], and methods change things through the [`manager`], which imports no method: it makes the
//! calls of a configuration again through [`manager::Replay`]. None of this runs on a reactor. The other end
//! of the socket is in [`client`]; both ends know SPDK's methods from [`schema`].

pub mod absent;
pub mod allowance;
pub mod client;
pub mod codec;
pub mod configuration;
pub mod cores;
pub mod daemon;
mod duplicates;
pub mod error;
pub mod events;
mod folders;
pub mod hand_over;
pub mod keyring;
pub mod logging;
pub mod manager;
mod masked;
pub mod method;
pub mod methods;
pub mod params;
pub mod ptpl;
pub mod reconcile;
pub mod reference;
pub mod request;
pub mod role;
pub mod schema;
pub mod server;
pub mod similar;
pub mod spelling;
pub mod state;
