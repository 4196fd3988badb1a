//! `nvmf_*`: the exports, by SPDK's names and with SPDK's answers.

mod ana;
mod central;
mod host;
mod listener;
mod mdns;
mod namespace;
mod options;
mod pool;
mod referral;
mod stats;
mod subsystem;
mod target;
mod transport;

pub(in crate::methods) use stats::describe_host;

use raceline_proto::nvme::Nqn;
use raceline_target::Security;
use serde::Deserialize;

use crate::error::RpcError;
use crate::manager::nvmf::{DEFAULT_TARGET, ListenAddress};
use crate::manager::{Manager, ManagerError};
use crate::method::Registry;

pub(super) fn register(registry: &mut Registry) {
    options::register(registry);
    target::register(registry);
    transport::register(registry);
    subsystem::register(registry);
    namespace::register(registry);
    host::register(registry);
    listener::register(registry);
    mdns::register(registry);
    ana::register(registry);
    pool::register(registry);
    referral::register(registry);
    central::register(registry);
    stats::register(registry);
}

/// The discovery service, for short.
const DISCOVERY_WORD: &str = "discovery";

/// The target of a call.
pub(super) fn target_name(name: Option<String>) -> String {
    name.unwrap_or_else(|| DEFAULT_TARGET.to_owned())
}

/// SPDK's answer when there is no such target.
pub(super) fn check_target(manager: &Manager, name: &str) -> Result<(), RpcError> {
    let found = manager.model().nvmf.target(name).map(|_| ());
    found.map_err(|error| RpcError::internal("Unable to find a target.").because(error))
}

/// SPDK's answer to nearly every error in what a call names.
fn refused(error: impl std::fmt::Display) -> RpcError {
    RpcError::invalid_params(error)
}

/// An internal failure keeps its errno; an error that the caller can mend is `Invalid parameters`.
pub(super) fn invalid(error: ManagerError) -> RpcError {
    match error {
        ManagerError::Journal(_) => error.into(),
        other => refused(other),
    }
}

/// The name of a subsystem; `discovery` is short for the discovery service, as SPDK's clients have it.
pub(super) fn nqn(text: &str) -> Result<Nqn, RpcError> {
    if text == DISCOVERY_WORD { Ok(Nqn::discovery()) } else { host_nqn(text) }
}

/// The name of a host.
pub(super) fn host_nqn(text: &str) -> Result<Nqn, RpcError> {
    Nqn::new(text).map_err(|error| refused(format!("`{}`: {error}", text.escape_debug())))
}

/// A level of security by its word; `None`: none is named.
fn security(word: Option<&str>) -> Result<Option<Security>, RpcError> {
    word.map(|word| word.parse().map_err(|error: String| refused(error))).transpose()
}

/// An address as clients write it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AddressParams {
    trtype: String,
    adrfam: Option<String>,
    traddr: String,
    trsvcid: Option<String>,
}

impl AddressParams {
    fn parse(&self) -> Result<ListenAddress, RpcError> {
        let (adrfam, trsvcid) = (self.adrfam.as_deref(), self.trsvcid.as_deref());
        ListenAddress::parse(&self.trtype, adrfam, &self.traddr, trsvcid).map_err(invalid)
    }

    /// The address of a listener.
    fn parse_listener(&self) -> Result<ListenAddress, RpcError> {
        let (adrfam, trsvcid) = (self.adrfam.as_deref(), self.trsvcid.as_deref());
        ListenAddress::parse_listener(&self.trtype, adrfam, &self.traddr, trsvcid).map_err(invalid)
    }
}
