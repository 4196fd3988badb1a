//! Keys of NVMe-oF hosts and controllers, and DH-HMAC-CHAP, as state machines that do no I/O.
//!
//! * [`DhchapSecret`] (`DHHC-1:...`): what a host and a controller share to prove who they are;
//! * [`TlsKey`] (`NVMeTLSkey-1:...`), [`RetainedPsk`], [`GeneratedPsk`] and [`TlsPsk`]: pre-shared keys of TLS 1.3,
//!   and the identities by which peers name them;
//! * [`Initiator`] (host) and [`Responder`] (controller): the two ends of an authentication on one queue.
//!
//! Secrets are overwritten when they are dropped, are compared in constant time, and never show in `Debug`.
//! Arithmetic with secrets takes a time that does not depend on them. Reading the text of a key does not promise
//! that: base64 looks characters up in a table.
#![forbid(unsafe_code)]

mod chap;
mod group;
mod hash;
mod initiator;
mod interchange;
mod memory;
mod primes;
mod psk;
mod responder;
mod secret;
mod work;
mod worker;

pub use chap::{Algorithms, Concatenation, Names};
pub use group::{DhGroup, PublicValueError};
pub use hash::Hash;
pub use initiator::{AuthenticationError, Initiator, InitiatorConfig, InitiatorStep};
pub use interchange::KeyError;
pub use psk::{
    Derivation, GeneratedKeys, GeneratedPsk, IdentityVersion, PskIdentity, RetainedPsk, TlsKey,
    TlsPsk, identity_is_generated, identity_names,
};
pub use responder::{KeyPair, Keys, Received, Responder, ResponderConfig, Verdict};
pub use secret::{DhchapSecret, SecretBytes};
pub use work::{Finished, Work};
pub use worker::{Busy, Waiting, Worker};
