//! The client: SPDK's JSON-RPC over a Unix or TCP socket, with the spelling and the output of
//! SPDK's `rpc.py`.
//!
//! [`arguments`] turns words into a [`Request`], [`connection`] carries it to a daemon, [`output`]
//! prints what came back. [`config`] is what `rpc.py` does with several requests.

pub mod arguments;
pub mod config;
pub mod connection;
pub mod output;

pub use arguments::{Request, UsageError};
pub use connection::{Address, ClientError, Connection, Refusal};

/// Where a daemon's socket is by default: where SPDK's clients look for it.
pub const DEFAULT_SOCKET: &str = "/var/tmp/spdk.sock";
/// Where the daemon of the packages has it.
pub const PACKAGED_SOCKET: &str = "/run/raceline/rpc.sock";
/// The TCP port of SPDK's RPC proxies.
pub const DEFAULT_PORT: u16 = 5260;
