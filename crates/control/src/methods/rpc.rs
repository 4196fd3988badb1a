//! `rpc_get_methods`, `spdk_get_version` and `raceline_get_caller`.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::RpcError;
use crate::method::{Call, Registry, States};
use crate::params::NoParams;
use crate::role::Role;

/// The release of SPDK whose calls and answers this program follows.
const SPDK_VERSION: (u32, u32, u32) = (26, 5, 0);

pub(super) fn register(registry: &mut Registry) {
    registry.read("rpc_get_methods", States::Both, get_methods);
    registry.alias("get_rpc_methods", "rpc_get_methods");
    registry.read("spdk_get_version", States::Both, get_version);
    registry.alias("get_spdk_version", "spdk_get_version");
    registry.read("raceline_get_caller", States::Both, get_caller);
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetMethods {
    #[serde(default)]
    current: bool,
    #[serde(default)]
    include_aliases: bool,
}

fn get_methods(call: &Call<'_>, params: GetMethods) -> Result<Vec<&'static str>, RpcError> {
    let phase = call.manager.phase();
    let methods = call.registry.methods();
    let mut names: Vec<&str> = methods
        .filter(|method| !params.current || method.states.admits(phase))
        .map(|method| method.name)
        .collect();
    if params.include_aliases {
        let aliases = call.registry.aliases();
        names.extend(
            aliases
                .filter(|(_, name)| names.contains(name))
                .map(|(old, _)| old)
                .collect::<Vec<_>>(),
        );
    }
    Ok(names)
}

/// Clients take the dialect from `version` and `fields`; `server` names the real program.
fn get_version(_call: &Call<'_>, _params: NoParams) -> Result<Value, RpcError> {
    let (major, minor, patch) = SPDK_VERSION;
    let own = env!("CARGO_PKG_VERSION");
    Ok(json!({
        "version": format!("SPDK v{major}.{minor:02} (Raceline {own})"),
        "fields": { "major": major, "minor": minor, "patch": patch, "suffix": "" },
        "server": { "name": "raceline", "version": own },
    }))
}

/// Who calls, as the daemon sees it: a client learns what its token or its user may do, and changes nothing.
fn get_caller(call: &Call<'_>, _params: NoParams) -> Result<Value, RpcError> {
    let role = match call.peer.role {
        Role::Admin => "admin",
        Role::ReadOnly => "read_only",
    };
    Ok(json!({ "via": call.peer.via.word(), "role": role }))
}
