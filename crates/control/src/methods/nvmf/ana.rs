//! Asymmetric Namespace Access: `nvmf_subsystem_listener_set_ana_state`, `nvmf_subsystem_set_ns_ana_group`.

use raceline_target::AnaState;
use serde::Deserialize;

use super::AddressParams;
use crate::error::RpcError;
use crate::manager::nvmf::ana_of_word;
use crate::method::{Call, Registry, States};

pub(super) fn register(registry: &mut Registry) {
    registry.change("nvmf_subsystem_listener_set_ana_state", States::Runtime, set_state);
    registry.change("nvmf_subsystem_set_ns_ana_group", States::Runtime, set_group);
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetState {
    nqn: String,
    listen_address: AddressParams,
    ana_state: String,
    anagrpid: Option<u32>,
    tgt_name: Option<String>,
}

/// The state that a call asks for. `change` is left out: it is a state that ends within 10 s.
pub(super) fn state(word: &str) -> Result<AnaState, RpcError> {
    ana_of_word(word).filter(|state| *state != AnaState::Change).ok_or_else(|| {
        super::refused(format!(
            "ana_state `{}` is none of optimized, non_optimized, inaccessible, persistent_loss",
            word.escape_debug()
        ))
    })
}

fn set_state(call: &Call<'_>, params: SetState) -> Result<bool, RpcError> {
    let target = super::target_name(params.tgt_name);
    super::check_target(call.manager, &target)?;
    let (nqn, address) = (super::nqn(&params.nqn)?, params.listen_address.parse_listener()?);
    // As in SPDK, 0 is no group, and stands for all of them.
    let group = params.anagrpid.filter(|group| *group != 0);
    let wanted = (group, state(&params.ana_state)?);
    call.manager
        .change(|change| change.set_ana_state(&target, &nqn, &address, wanted))
        .map_err(super::invalid)?;
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetGroup {
    nqn: String,
    nsid: u32,
    anagrpid: u32,
    tgt_name: Option<String>,
}

fn set_group(call: &Call<'_>, params: SetGroup) -> Result<bool, RpcError> {
    let target = super::target_name(params.tgt_name);
    super::check_target(call.manager, &target)?;
    let nqn = super::nqn(&params.nqn)?;
    call.manager
        .change(|change| change.set_ana_group(&target, &nqn, params.nsid, params.anagrpid))
        .map_err(super::invalid)?;
    Ok(true)
}
