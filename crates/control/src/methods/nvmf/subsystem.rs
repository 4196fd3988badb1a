//! `nvmf_create_subsystem`, `nvmf_delete_subsystem`, `nvmf_get_subsystems`.

use raceline_proto::nvme::Nqn;
use raceline_target::{PoolNamespace, Security};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::error::{RpcError, code};
use crate::manager::Model;
use crate::manager::nvmf::{
    AllowedHost, DEFAULT_MAX_NAMESPACES, ListenAddress, Namespace, NvmfTarget, Pool, PortLevel,
    Subsystem, SubsystemOptions, hex,
};
use crate::method::{Call, Registry, States};
use crate::params::refuse;

/// The name of the discovery service, which is listed first.
const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// SPDK's defaults for a subsystem.
const DEFAULT_SERIAL: &str = "00000000000000000000";
const DEFAULT_MODEL: &str = "SPDK bdev Controller";
/// The range of controller numbers.
const CNTLID_RANGE: (u16, u16) = (1, 0xffef);
/// SPDK's bounds of Deallocate (blocks) and Write Zeroes (log2 of pages), which are not limited here.
const SPDK_DMRSL: u32 = 2_097_152;
const SPDK_WZSL: u8 = 12;

pub(super) fn register(registry: &mut Registry) {
    registry.change("nvmf_create_subsystem", States::Runtime, create);
    registry.alias("nvmf_subsystem_create", "nvmf_create_subsystem");
    registry.change("nvmf_delete_subsystem", States::Runtime, delete);
    registry.alias("delete_nvmf_subsystem", "nvmf_delete_subsystem");
    registry.change("nvmf_subsystem_set_security", States::Runtime, set_security);
    registry.read("nvmf_get_subsystems", States::Runtime, get);
    registry.alias("get_nvmf_subsystems", "nvmf_get_subsystems");
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    nqn: String,
    tgt_name: Option<String>,
    serial_number: Option<String>,
    model_number: Option<String>,
    /// A note that SPDK keeps but never shows.
    #[serde(rename = "admin_label")]
    _admin_label: Option<String>,
    #[serde(default)]
    max_namespaces: u32,
    #[serde(default)]
    allow_any_host: bool,
    #[serde(default)]
    ana_reporting: bool,
    security: Option<String>,
    #[serde(default)]
    psk_optional: bool,
    min_cntlid: Option<u16>,
    max_cntlid: Option<u16>,
    dmrsl: Option<u32>,
    wzsl: Option<u8>,
    max_discard_size_kib: Option<u64>,
    max_write_zeroes_size_kib: Option<u64>,
    #[serde(default)]
    passthrough: bool,
    #[serde(default)]
    enable_nssr: bool,
}

fn create(call: &Call<'_>, params: Create) -> Result<bool, RpcError> {
    refuse(&[
        ("passthrough", params.passthrough),
        ("enable_nssr", params.enable_nssr),
        ("dmrsl", params.dmrsl.is_some_and(|dmrsl| dmrsl != 0 && dmrsl != SPDK_DMRSL)),
        ("wzsl", params.wzsl.is_some_and(|wzsl| wzsl != 0 && wzsl != SPDK_WZSL)),
        ("max_discard_size_kib", params.max_discard_size_kib.is_some_and(|kib| kib != 0)),
        ("max_write_zeroes_size_kib", params.max_write_zeroes_size_kib.is_some_and(|k| k != 0)),
    ])?;
    let target = super::target_name(params.tgt_name);
    call.manager.model().nvmf.target(&target).map(|_| ()).map_err(|error| {
        RpcError::internal(format!("Unable to find target {target}")).because(error)
    })?;
    let unable = |detail: String| {
        let text = format!("Unable to create subsystem {}", params.nqn.escape_debug());
        RpcError::internal(text).because(detail)
    };
    // Like SPDK, this makes no other names: some hosts would refuse them.
    let nqn = Nqn::qualified(&params.nqn).map_err(|error| unable(error.to_string()))?;
    if nqn.is_discovery() {
        return Err(unable("the discovery service is always there".to_owned()));
    }
    let (min_cntlid, max_cntlid) =
        (params.min_cntlid.unwrap_or(CNTLID_RANGE.0), params.max_cntlid.unwrap_or(CNTLID_RANGE.1));
    if min_cntlid < CNTLID_RANGE.0 || max_cntlid > CNTLID_RANGE.1 || min_cntlid > max_cntlid {
        let text = format!("Invalid cntlid range [{min_cntlid}-{max_cntlid}]");
        return Err(RpcError::new(code::INVALID_PARAMS, text));
    }
    let options = SubsystemOptions {
        nqn: params.nqn.clone(),
        serial_number: params.serial_number.unwrap_or_else(|| DEFAULT_SERIAL.to_owned()),
        model_number: params.model_number.unwrap_or_else(|| DEFAULT_MODEL.to_owned()),
        max_namespaces: match params.max_namespaces {
            0 => DEFAULT_MAX_NAMESPACES,
            number => number,
        },
        allow_any_host: params.allow_any_host,
        min_cntlid,
        max_cntlid,
        ana_reporting: params.ana_reporting,
        security: super::security(params.security.as_deref())?.unwrap_or_default(),
        psk_optional: params.psk_optional,
    };
    call.manager
        .change(|change| change.create_subsystem(&target, &nqn, options))
        .map_err(|error| unable(error.to_string()))?;
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetSecurity {
    nqn: String,
    tgt_name: Option<String>,
    security: Option<String>,
    psk_optional: Option<bool>,
}

fn set_security(call: &Call<'_>, params: SetSecurity) -> Result<bool, RpcError> {
    let security = super::security(params.security.as_deref())?;
    if security.is_none() && params.psk_optional.is_none() {
        return Err(super::refused("name security, psk_optional or both".to_owned()));
    }
    let set = (security, params.psk_optional);
    let query = Query { nqn: params.nqn, tgt_name: params.tgt_name };
    let (target, nqn) = query.names(call)?;
    call.manager
        .change(|change| change.set_security(&target, &nqn, set))
        .map_err(super::invalid)?;
    Ok(true)
}

/// The parameters of most calls about one subsystem.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Query {
    nqn: String,
    tgt_name: Option<String>,
}

impl Query {
    /// The names of the target, which must exist, and of the subsystem.
    pub(super) fn names(self, call: &Call<'_>) -> Result<(String, Nqn), RpcError> {
        let target = super::target_name(self.tgt_name);
        super::check_target(call.manager, &target)?;
        Ok((target, super::nqn(&self.nqn)?))
    }

    /// The target, and the subsystem's name: the subsystem must exist or be the discovery service.
    pub(super) fn find<'a>(&self, model: &'a Model) -> Result<(&'a NvmfTarget, Nqn), RpcError> {
        let name = super::target_name(self.tgt_name.clone());
        let target = model
            .nvmf
            .target(&name)
            .map_err(|error| RpcError::internal("Unable to find a target").because(error))?;
        let nqn = super::nqn(&self.nqn)?;
        if !nqn.is_discovery() {
            target.subsystem(&nqn).map_err(super::invalid)?;
        }
        Ok((target, nqn))
    }
}

fn delete(call: &Call<'_>, params: Query) -> Result<bool, RpcError> {
    let (target, nqn) = params.names(call)?;
    call.manager.change(|change| change.delete_subsystem(&target, &nqn)).map_err(super::invalid)?;
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Get {
    nqn: Option<String>,
    tgt_name: Option<String>,
}

fn get(call: &Call<'_>, params: Get) -> Result<Vec<Value>, RpcError> {
    let name = super::target_name(params.tgt_name);
    super::check_target(call.manager, &name)?;
    let model = call.manager.model();
    let target = model.nvmf.target(&name)?;
    let Some(wanted) = params.nqn else {
        let subsystems = target.subsystems.values().map(|it| describe(target, it));
        return Ok([describe_discovery(target)].into_iter().chain(subsystems).collect());
    };
    let missing = || RpcError::errno(libc::ENODEV).because("there is no such subsystem");
    let nqn = super::nqn(&wanted).map_err(|_| missing())?;
    if nqn.is_discovery() {
        return Ok(vec![describe_discovery(target)]);
    }
    Ok(vec![describe(target, target.subsystem(&nqn).map_err(|_| missing())?)])
}

fn describe_discovery(target: &NvmfTarget) -> Value {
    json!({
        "nqn": DISCOVERY_NQN,
        "subtype": "Discovery",
        "listen_addresses": describe_addresses(target, &target.discovery_listeners),
        "allow_any_host": true,
        "hosts": [],
    })
}

/// Addresses as SPDK has them; those that are not plain have their level besides.
fn describe_addresses(target: &NvmfTarget, addresses: &[ListenAddress]) -> Vec<Value> {
    let describe = |address: &ListenAddress| {
        let level = target.level(address);
        let mut shown = json!(address);
        if level != PortLevel::default() {
            shown["security"] = level.to_string().into();
        }
        shown
    };
    addresses.iter().map(describe).collect()
}

fn describe(target: &NvmfTarget, subsystem: &Subsystem) -> Value {
    let options = &subsystem.options;
    let hosts: Vec<Value> = subsystem.hosts.iter().map(describe_host).collect();
    let namespaces = subsystem.namespaces.iter();
    let own =
        namespaces.map(|(nsid, ns)| (*nsid, describe_namespace(*nsid, ns, options.ana_reporting)));
    let of_pool = subsystem.pool.iter().flat_map(|pool| {
        let namespaces = pool.map.namespaces.iter();
        namespaces.map(|namespace| (namespace.nsid.0, describe_carved(pool, namespace)))
    });
    let mut namespaces: Vec<(u32, Value)> = own.chain(of_pool).collect();
    namespaces.sort_by_key(|(nsid, _)| *nsid);
    let namespaces: Vec<Value> = namespaces.into_iter().map(|(_, namespace)| namespace).collect();
    let mut shown = json!({
        "nqn": options.nqn,
        "subtype": "NVMe",
        "listen_addresses": describe_addresses(target, &subsystem.listeners),
        "allow_any_host": options.allow_any_host,
        "hosts": hosts,
        "serial_number": options.serial_number,
        "model_number": options.model_number,
        "max_namespaces": options.max_namespaces,
        "passthrough": false,
        "min_cntlid": options.min_cntlid,
        "max_cntlid": options.max_cntlid,
        "namespaces": namespaces,
    });
    // SPDK has no such member.
    if options.security != Security::PLAIN {
        shown["security"] = options.security.to_string().into();
    }
    if options.psk_optional {
        shown["psk_optional"] = true.into();
    }
    shown
}

/// A host with the names of its keys.
fn describe_host(host: &AllowedHost) -> Value {
    // Texts and numbers can always be JSON.
    let mut shown = json!({ "nqn": host.nqn.as_str() });
    if let (Some(members), Ok(Value::Object(keys))) =
        (shown.as_object_mut(), serde_json::to_value(host.keys.names()))
    {
        members.extend(keys);
    }
    if host.security != Security::PLAIN {
        shown["security"] = host.security.to_string().into();
    }
    shown
}

fn describe_namespace(nsid: u32, namespace: &Namespace, reports_ana: bool) -> Value {
    let mut text = json!({
        "nsid": nsid,
        "bdev_name": namespace.bdev_name,
        "name": namespace.bdev_name,
        "nguid": hex(&namespace.nguid.unwrap_or_default()),
        "uuid": namespace.uuid,
    });
    if let Some(members) = text.as_object_mut() {
        if namespace.eui64 != [0; 8] {
            members.insert("eui64".to_owned(), hex(&namespace.eui64).into());
        }
        if reports_ana {
            members.insert("anagrpid".to_owned(), namespace.anagrpid.unwrap_or(nsid).into());
        }
        // SPDK does not list the hosts that see a namespace; the client that set them wants to see them.
        if let Some(hosts) = &namespace.hosts {
            let hosts: Vec<&str> = hosts.iter().map(Nqn::as_str).collect();
            members.insert("no_auto_visible".to_owned(), true.into());
            members.insert("visible_to".to_owned(), json!(hosts));
        }
        if let Some(reason) = &namespace.missing {
            members.insert("missing".to_owned(), reason.as_str().into());
        }
    }
    text
}

/// A namespace that a host has made in a pool.
fn describe_carved(pool: &Pool, namespace: &PoolNamespace) -> Value {
    let uuid = Uuid::from_bytes(namespace.uuid);
    let hosts: Vec<&str> = namespace.hosts.iter().map(Nqn::as_str).collect();
    let mut text = json!({
        "nsid": namespace.nsid.0,
        "bdev_name": pool.bdev_name,
        "name": pool.bdev_name,
        "nguid": hex(&namespace.uuid),
        "uuid": uuid,
        "of_pool": true,
        "block_size": namespace.block_size,
        "num_blocks": namespace.block_count,
        "no_auto_visible": true,
        "visible_to": hosts,
    });
    if let (Some(reason), Some(members)) = (&pool.missing, text.as_object_mut()) {
        members.insert("missing".to_owned(), reason.as_str().into());
    }
    text
}
