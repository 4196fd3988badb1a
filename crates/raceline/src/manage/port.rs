//! `raceline port`: the addresses at which subsystems are reached.

use serde_json::{Value, json};

use super::subsystem::{documents, rows};
use super::{Daemon, text};
use crate::cli::manage::{PortAdd, PortArgs, PortChange, PortSet, PortVerb};
use crate::cli::values::Listen;
use crate::failure::Failure;
use crate::table::Table;

/// Runs the verb.
pub(crate) fn run(args: &PortArgs) -> Result<(), Failure> {
    let mut daemon = Daemon::connect(&args.daemon)?;
    match &args.verb {
        PortVerb::Ls { nqn } => list(&mut daemon, nqn.as_deref()),
        PortVerb::Add(PortAdd { change: PortChange { nqn, address }, tls, security }) => {
            known(&mut daemon, nqn)?;
            make_transport(&mut daemon, *address)?;
            let mut listener = params(nqn, *address);
            let level = security.as_deref().unwrap_or(if *tls { "tls" } else { "plain" });
            match level {
                "plain" => {}
                "tls" => listener["secure_channel"] = true.into(),
                other => listener["security"] = other.into(),
            }
            let answer = daemon.call("nvmf_subsystem_add_listener", listener)?;
            daemon.done(&answer, &format!("{nqn} is reached at {address}{}", way(level)))
        }
        PortVerb::Set(PortSet { change: PortChange { nqn, address }, ana, group }) => {
            known(&mut daemon, nqn)?;
            let mut state = params(nqn, *address);
            state["ana_state"] = ana.word().into();
            if let Some(group) = group {
                state["anagrpid"] = (*group).into();
            }
            let answer = daemon.call("nvmf_subsystem_listener_set_ana_state", state)?;
            let of = group.map_or_else(String::new, |group| format!(" for group {group}"));
            let word = ana.word();
            daemon.done(&answer, &format!("{nqn} is {word} at {address}{of}"))
        }
        PortVerb::Rm(PortChange { nqn, address }) => {
            known(&mut daemon, nqn)?;
            let answer = daemon.call("nvmf_subsystem_remove_listener", params(nqn, *address))?;
            daemon.done(&answer, &format!("{nqn} is not reached at {address} any more"))
        }
    }
}

/// The cores start with the transport; users need not know that.
fn make_transport(daemon: &mut Daemon, address: Listen) -> Result<(), Failure> {
    let trtype = transport(address);
    let transports = daemon.list("nvmf_get_transports", Value::Null)?;
    let is_there = transports
        .iter()
        .any(|it| it["trtype"].as_str().is_some_and(|name| name.eq_ignore_ascii_case(trtype)));
    if !is_there {
        daemon.call("nvmf_create_transport", json!({ "trtype": trtype }))?;
    }
    Ok(())
}

fn transport(address: Listen) -> &'static str {
    if address.is_rdma { "RDMA" } else { "TCP" }
}

/// What a level means for those that connect.
fn way(level: &str) -> &'static str {
    match level {
        "authenticated" => " by hosts that prove who they are",
        "tls" => " over TLS",
        "both" => " over TLS, by hosts that prove who they are",
        "concat" => " over TLS, also with a key that an authentication makes",
        _ => "",
    }
}

/// Fails for an unknown subsystem, and lists the existing ones. The discovery service, `discovery` for
/// short, always exists.
fn known(daemon: &mut Daemon, nqn: &str) -> Result<(), Failure> {
    if nqn == "discovery" || nqn == raceline_proto::nvme::Nqn::discovery().as_str() {
        return Ok(());
    }
    daemon.subsystems(Some(nqn)).map(drop)
}

fn params(nqn: &str, listen: Listen) -> Value {
    let address = listen.address;
    json!({
        "nqn": nqn,
        "listen_address": {
            "trtype": transport(listen),
            "adrfam": if address.is_ipv4() { "IPv4" } else { "IPv6" },
            "traddr": address.ip().to_string(),
            "trsvcid": address.port().to_string(),
        },
    })
}

fn list(daemon: &mut Daemon, nqn: Option<&str>) -> Result<(), Failure> {
    let subsystems = daemon.subsystems(nqn)?;
    daemon.print(&documents(&subsystems, "listen_addresses"), || {
        let mut table = Table::new(&["subsystem", "transport", "address", "security"]);
        for (subsystem, listener) in rows(&subsystems, "listen_addresses") {
            let [transport, level] = ["trtype", "security"].map(|name| text(&listener[name]));
            table.row([text(&subsystem["nqn"]), transport, address(listener), level]);
        }
        table
    })
}

/// ADDR:PORT, an IPv6 address in brackets, and rdma:// before one of RDMA: as `port add` takes it.
pub(super) fn address(listener: &Value) -> String {
    let (ip, port) = (text(&listener["traddr"]), text(&listener["trsvcid"]));
    let is_rdma = text(&listener["trtype"]).eq_ignore_ascii_case("rdma");
    let scheme = if is_rdma { "rdma://" } else { "" };
    if ip.contains(':') { format!("{scheme}[{ip}]:{port}") } else { format!("{scheme}{ip}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_listed_as_it_is_added() {
        for text in ["192.0.2.1:4420", "rdma://192.0.2.1:4421", "rdma://[2001:db8::1]:1", "[::1]:1"]
        {
            let listen = crate::cli::values::listen(text).unwrap();
            let made = params("nqn.a", listen);
            assert_eq!(address(&made["listen_address"]), text);
            assert_eq!(made["listen_address"]["trtype"] == "RDMA", text.starts_with("rdma"));
        }
    }
}
