//! `iscsi_*` and `scsi_get_devices`: the exports by iSCSI, by SPDK's names and with SPDK's answers.

mod auth;
mod initiators;
mod nodes;
mod options;
mod portals;
mod watch;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use raceline_target::{ChapDemand, ChapPolicy};

use super::nvmf::invalid;
use crate::error::RpcError;
use crate::method::Registry;
use crate::schema::schema;
use crate::spelling::old_names;

pub(super) fn register(registry: &mut Registry) {
    options::register(registry);
    auth::register(registry);
    initiators::register(registry);
    portals::register(registry);
    nodes::register(registry);
    watch::register(registry);
    let of_group = schema().methods().iter().filter(|method| method.group == "iscsi");
    let here: Vec<&str> =
        of_group.map(|method| method.name).filter(|name| registry.get(name).is_some()).collect();
    for name in here {
        for old in old_names(name) {
            registry.alias(old, name);
        }
    }
}

/// SPDK's four combinations of flags.
fn policy(disable: bool, require: bool, mutual: bool, group: i32) -> Result<ChapPolicy, String> {
    let demand = match (disable, require, mutual) {
        (false, false, false) => ChapDemand::Optional,
        (true, false, false) => ChapDemand::Disabled,
        (false, true, false) => ChapDemand::Required,
        (false, true, true) => ChapDemand::Mutual,
        _ => {
            let text = "disable_chap excludes require_chap, and mutual_chap needs require_chap";
            return Err(text.to_owned());
        }
    };
    let wrong = |_| format!("chap_group {group} is no tag: 0 is none, others are 1 and more");
    Ok(ChapPolicy { demand, group: u32::try_from(group).map_err(wrong)? })
}

/// The tag of an initiator group or an auth group.
fn tag(tag: i32) -> Result<u32, RpcError> {
    let wrong = || RpcError::invalid_params(format!("tag {tag} is not within 1 to 2147483647"));
    u32::try_from(tag).ok().filter(|tag| *tag > 0).ok_or_else(wrong)
}

/// The tag of a portal group, which initiators see (TPGT).
fn portal_tag(tag: i32) -> Result<u16, RpcError> {
    let wrong = || RpcError::invalid_params(format!("tag {tag} is not within 1 to 65535"));
    u16::try_from(tag).ok().filter(|tag| *tag > 0).ok_or_else(wrong)
}

/// An address as SPDK writes it: that of IPv6 in brackets or without, `*` for all addresses.
fn address(host: &str, port: &str) -> Result<SocketAddr, RpcError> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    let ip: Option<IpAddr> = match (host, bare) {
        ("*", _) => Some(Ipv4Addr::UNSPECIFIED.into()),
        ("[*]", _) => Some(Ipv6Addr::UNSPECIFIED.into()),
        (_, bare) => bare.parse().ok(),
    };
    let wrong = |what: &str, text: &str, need: &str| {
        RpcError::invalid_params(format!("{what} `{}` is no {need}", text.escape_debug()))
    };
    let ip = ip.ok_or_else(|| wrong("host", host, "IP address"))?;
    let port = port.parse().map_err(|_| wrong("port", port, "port from 0 to 65535"))?;
    Ok(SocketAddr::new(ip, port))
}
