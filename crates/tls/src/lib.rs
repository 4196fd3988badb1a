//! TLS 1.3 with external pre-shared keys for NVMe/TCP (NVMe/TCP 1.1, 3.6.1), as a provider of byte streams.
//!
//! [`TlsAcceptor`] is what a listener has, [`TlsConnector`] what a host has. Neither knows a way without TLS.
//!
//! | what | which |
//! |---|---|
//! | protocol | TLS 1.3 only (RFC 8446): no tickets, resumption, or early data; certificates only where an acceptor is given one ([`Certificates`]) |
//! | key exchange | psk_dhe_ke over P-256, P-384 or P-521 |
//! | suites | TLS_AES_128_GCM_SHA256 for keys of 32 bytes, TLS_AES_256_GCM_SHA384 for keys of 48 bytes |
//! | identities | versions 0 and 1 ([`raceline_auth::PskIdentity`]) |
//!
//! The handshake is s2n-tls's, over memory ([`Handshake`]). When it is done, records are made and opened here
//! ([`Session`]): an application's bytes are encrypted where they were copied to, and many PDUs share a record. Both
//! do no I/O; [`stream`] moves their bytes. The kernel may make and open the records instead ([`Ktls`]).

mod binder;
mod client_hello;
mod counts;
mod either;
mod error;
mod handshake;
mod kernel;
mod keys;
mod library;
mod offload;
mod pace;
mod provider;
mod record;
mod session;
mod stream;

pub use counts::{TlsTotals, accepted_totals, connected_totals};
pub use error::TlsError;
pub use handshake::{Established, Handshake};
pub use keys::{ClientPsk, ClientPskStore, GENERATED_MAX, PskLookup, PskTable, SharedPsk};
pub use library::Certificates;
pub use offload::{Ktls, Offload};
pub use provider::{Concatenate, TlsAcceptor, TlsConnector, concatenate, concatenator};
pub use record::{DATA_MAX, RECORD_MAX, Suite};
pub use session::{Opened, Session};
