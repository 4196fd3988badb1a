//! The namespaces of a subsystem: `nvmf_subsystem_{add,remove}_ns`.

use std::path::PathBuf;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use uuid::Uuid;

use crate::error::RpcError;
use crate::manager::nvmf::NewNamespace;
use crate::method::{Call, Registry, States};

pub(super) fn register(registry: &mut Registry) {
    registry.change("nvmf_subsystem_add_ns", States::Runtime, add);
    registry.change("nvmf_subsystem_remove_ns", States::Runtime, remove);
    registry.change("nvmf_ns_add_host", States::Runtime, show);
    registry.change("nvmf_ns_remove_host", States::Runtime, hide);
}

/// SPDK's decoder is relaxed here, but strict inside `namespace`.
#[derive(Deserialize)]
struct Add {
    nqn: String,
    namespace: NamespaceParams,
    tgt_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamespaceParams {
    #[serde(default)]
    nsid: u32,
    bdev_name: String,
    #[serde(default, deserialize_with = "identifier::<16, _>")]
    nguid: Option<[u8; 16]>,
    #[serde(default, deserialize_with = "identifier::<8, _>")]
    eui64: Option<[u8; 8]>,
    uuid: Option<Uuid>,
    ptpl_file: Option<PathBuf>,
    anagrpid: Option<u32>,
    #[serde(default)]
    no_auto_visible: bool,
    /// Ignored: there is no metadata to hide.
    #[serde(default, rename = "hide_metadata")]
    _hide_metadata: bool,
}

/// Hexadecimal digits, two for each byte.
fn identifier<'de, const LEN: usize, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<[u8; LEN]>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let wrong = || D::Error::custom(format!("an identifier has {} hexadecimal digits", 2 * LEN));
    if text.len() != 2 * LEN || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    let mut bytes = [0; LEN];
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| wrong())?;
    }
    Ok(Some(bytes))
}

fn add(call: &Call<'_>, params: Add) -> Result<u32, RpcError> {
    let new = params.namespace;
    let target = super::target_name(params.tgt_name);
    super::check_target(call.manager, &target)?;
    let nqn = super::nqn(&params.nqn)?;
    let new = NewNamespace {
        bdev_name: new.bdev_name,
        nsid: (new.nsid != 0).then_some(new.nsid),
        uuid: new.uuid.filter(|uuid| !uuid.is_nil()),
        nguid: new.nguid,
        eui64: new.eui64.filter(|eui64| *eui64 != [0; 8]),
        no_auto_visible: new.no_auto_visible,
        anagrpid: new.anagrpid.filter(|group| *group != 0),
        ptpl_file: new.ptpl_file,
    };
    call.manager.change(|change| change.add_namespace(&target, &nqn, &new)).map_err(super::invalid)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Remove {
    nqn: String,
    nsid: u32,
    tgt_name: Option<String>,
}

fn remove(call: &Call<'_>, params: Remove) -> Result<bool, RpcError> {
    let target = super::target_name(params.tgt_name);
    super::check_target(call.manager, &target)?;
    let nqn = super::nqn(&params.nqn)?;
    call.manager
        .change(|change| change.remove_namespace(&target, &nqn, params.nsid))
        .map_err(super::invalid)?;
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Visible {
    nqn: String,
    nsid: u32,
    host: String,
    tgt_name: Option<String>,
}

fn show(call: &Call<'_>, params: Visible) -> Result<bool, RpcError> {
    set_visible(call, params, true)
}

fn hide(call: &Call<'_>, params: Visible) -> Result<bool, RpcError> {
    set_visible(call, params, false)
}

fn set_visible(call: &Call<'_>, params: Visible, visible: bool) -> Result<bool, RpcError> {
    let target = super::target_name(params.tgt_name);
    super::check_target(call.manager, &target)?;
    let (nqn, host) = (super::nqn(&params.nqn)?, super::host_nqn(&params.host)?);
    call.manager
        .change(|change| change.set_visible(&target, &nqn, params.nsid, &host, visible))
        .map_err(super::invalid)?;
    Ok(true)
}
