//! `raceline iscsi`: what a daemon exports by iSCSI.

mod import;

use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};

use super::{Daemon, elements, names, none_of_that_name, text};
use crate::cli::iscsi::{
    AuthVerb, ChapChoice, InitiatorVerb, IscsiArgs, IscsiVerb, LunVerb, Map, PortalVerb, TargetAdd,
    TargetVerb,
};
use crate::failure::Failure;
use crate::secrets;
use crate::table::Table;

/// Runs the verb.
pub(crate) fn run(args: &IscsiArgs) -> Result<(), Failure> {
    let mut daemon = Daemon::connect(&args.daemon)?;
    match &args.verb {
        IscsiVerb::Target { verb } => target(&mut daemon, verb),
        IscsiVerb::Lun { verb } => lun(&mut daemon, verb),
        IscsiVerb::Portal { verb } => portal(&mut daemon, verb),
        IscsiVerb::Initiator { verb } => initiator(&mut daemon, verb),
        IscsiVerb::Auth { verb } => auth(&mut daemon, verb),
        IscsiVerb::Connections => connections(&mut daemon),
        IscsiVerb::Import { file, dry_run } => import::run(&mut daemon, file, *dry_run),
    }
}

/// The target node of that name, or all.
fn nodes(daemon: &mut Daemon, name: Option<&str>) -> Result<Vec<Value>, Failure> {
    let listed = daemon.list("iscsi_get_target_nodes", Value::Null)?;
    let Some(name) = name else { return Ok(listed) };
    // Names are in lower case (RFC 7143, 4.2.7.2).
    let lower = name.to_ascii_lowercase();
    let (found, others): (Vec<Value>, Vec<Value>) =
        listed.into_iter().partition(|node| node["name"] == lower);
    if found.is_empty() {
        return Err(none_of_that_name("target node", name, &names(&others, "name")));
    }
    Ok(found)
}

// ------------------------------------------------------------------------------ target nodes

fn target(daemon: &mut Daemon, verb: &TargetVerb) -> Result<(), Failure> {
    match verb {
        TargetVerb::Ls { name } => list_nodes(daemon, name.as_deref()),
        TargetVerb::Add(add) => add_node(daemon, add),
        TargetVerb::Set { name, chap, auth, add_map, rm_map } => {
            nodes(daemon, Some(name))?;
            if !add_map.is_empty() {
                let params = json!({ "name": name, "pg_ig_maps": maps(add_map) });
                daemon.call("iscsi_target_node_add_pg_ig_maps", params)?;
            }
            if !rm_map.is_empty() {
                let params = json!({ "name": name, "pg_ig_maps": maps(rm_map) });
                daemon.call("iscsi_target_node_remove_pg_ig_maps", params)?;
            }
            if let Some(chap) = chap {
                let mut params = policy(*chap, *auth)?;
                params["name"] = name.as_str().into();
                daemon.call("iscsi_target_node_set_auth", params)?;
            }
            daemon.done(&true.into(), &format!("changed {name}"))
        }
        TargetVerb::Rm { names, force } => {
            names.iter().try_for_each(|name| remove_node(daemon, name, *force))
        }
    }
}

fn list_nodes(daemon: &mut Daemon, name: Option<&str>) -> Result<(), Failure> {
    let listed = nodes(daemon, name)?;
    daemon.print(&listed, || {
        let mut table =
            Table::new(&["name", "alias", "luns", "portals:initiators", "chap", "auth"]);
        for node in &listed {
            let maps = elements(node, "pg_ig_maps").iter();
            let maps: Vec<String> =
                maps.map(|map| format!("{}:{}", map["pg_tag"], map["ig_tag"])).collect();
            table.row([
                text(&node["name"]),
                text(&node["alias_name"]),
                elements(node, "luns").len().to_string(),
                maps.join(" "),
                demand(node).to_owned(),
                if node["chap_group"] == 0 { "-".to_owned() } else { text(&node["chap_group"]) },
            ]);
        }
        table
    })
}

/// What is demanded of initiators, as `--chap` has it.
fn demand(node: &Value) -> &'static str {
    match (&node["disable_chap"], &node["require_chap"], &node["mutual_chap"]) {
        (Value::Bool(true), ..) => "disabled",
        (_, Value::Bool(true), Value::Bool(true)) => "mutual",
        (_, Value::Bool(true), _) => "required",
        _ => "optional",
    }
}

fn add_node(daemon: &mut Daemon, add: &TargetAdd) -> Result<(), Failure> {
    let maps = match add.map.is_empty() {
        true => all_maps(daemon)?,
        false => maps(&add.map),
    };
    let luns = (0..).zip(&add.devices);
    let luns: Vec<Value> =
        luns.map(|(lun, device): (u32, _)| json!({ "bdev_name": device, "lun_id": lun })).collect();
    let mut params = policy(add.chap, add.auth)?;
    if let (Some(members), Value::Object(rest)) = (
        params.as_object_mut(),
        json!({
            "name": add.name,
            "alias_name": add.alias,
            "pg_ig_maps": maps,
            "luns": luns,
            "queue_depth": add.queue_depth,
            "header_digest": add.header_digest,
            "data_digest": add.data_digest,
        }),
    ) {
        members.extend(rest);
    }
    let answer = daemon.call("iscsi_create_target_node", params)?;
    daemon.done(&answer, &format!("added target node {}", add.name))
}

fn maps(maps: &[Map]) -> Vec<Value> {
    let map = |map: &Map| json!({ "pg_tag": map.portals, "ig_tag": map.initiators });
    maps.iter().map(map).collect()
}

/// Every initiator group by every portal group.
fn all_maps(daemon: &mut Daemon) -> Result<Vec<Value>, Failure> {
    let portals = daemon.list("iscsi_get_portal_groups", Value::Null)?;
    let initiators = daemon.list("iscsi_get_initiator_groups", Value::Null)?;
    let missing = match (portals.is_empty(), initiators.is_empty()) {
        (true, _) => "there is no portal group: raceline iscsi portal add ADDR makes one",
        (_, true) => "there is no initiator group: raceline iscsi initiator add NAME makes one",
        (false, false) => {
            let pairs = portals.iter().flat_map(|portals| {
                let map = |initiators: &Value| {
                    json!({ "pg_tag": portals["tag"], "ig_tag": initiators["tag"] })
                };
                initiators.iter().map(map).collect::<Vec<_>>()
            });
            return Ok(pairs.collect());
        }
    };
    Err(Failure::runtime(missing))
}

/// SPDK's flags of a demand.
fn policy(chap: ChapChoice, auth: Option<u32>) -> Result<Value, Failure> {
    let needs = matches!(chap, ChapChoice::Required | ChapChoice::Mutual);
    if needs && auth.is_none() {
        return Err(Failure::usage("who has to prove who it is needs secrets: add --auth TAG"));
    }
    Ok(json!({
        "disable_chap": chap == ChapChoice::Disabled,
        "require_chap": needs,
        "mutual_chap": chap == ChapChoice::Mutual,
        "chap_group": auth.unwrap_or(0),
    }))
}

fn remove_node(daemon: &mut Daemon, name: &str, force: bool) -> Result<(), Failure> {
    let found = nodes(daemon, Some(name))?;
    let connections = daemon.list("iscsi_get_connections", Value::Null)?;
    let of_node = connections.iter().filter(|it| it["target_name"] == found[0]["name"]).count();
    if of_node > 0 && !force {
        return Err(Failure::runtime(format!(
            "{of_node} connections lead to {name}: log out, or use --force"
        )));
    }
    let answer = daemon.call("iscsi_delete_target_node", json!({ "name": name }))?;
    daemon.done(&answer, &format!("removed target node {name}"))
}

// -------------------------------------------------------------------------------------- LUNs

fn lun(daemon: &mut Daemon, verb: &LunVerb) -> Result<(), Failure> {
    match verb {
        LunVerb::Ls { name } => list_luns(daemon, name.as_deref()),
        LunVerb::Add { name, device, lun } => {
            nodes(daemon, Some(name))?;
            let params = json!({ "name": name, "bdev_name": device, "lun_id": lun });
            let answer = daemon.call("iscsi_target_node_add_lun", params)?;
            daemon.done(&answer, &format!("{device} is a LUN of {name}"))
        }
        LunVerb::Rm { name, lun } => {
            nodes(daemon, Some(name))?;
            let params = json!({ "name": name, "lun_id": lun });
            let answer = daemon.call("iscsi_target_node_remove_lun", params)?;
            daemon.done(&answer, &format!("removed LUN {lun} from {name}"))
        }
    }
}

fn list_luns(daemon: &mut Daemon, name: Option<&str>) -> Result<(), Failure> {
    let listed = nodes(daemon, name)?;
    let rows = listed.iter().flat_map(|node| {
        let with_name = |lun: &Value| {
            let mut lun = lun.clone();
            lun["target"] = node["name"].clone();
            lun
        };
        elements(node, "luns").iter().map(with_name).collect::<Vec<_>>()
    });
    let rows: Vec<Value> = rows.collect();
    daemon.print(&rows, || {
        let mut table = Table::new(&["target", "lun", "device", "state"]);
        for lun in &rows {
            let state = if lun["missing"].is_null() { "here" } else { "missing" };
            table.row([
                text(&lun["target"]),
                text(&lun["lun_id"]),
                text(&lun["bdev_name"]),
                state.to_owned(),
            ]);
        }
        table
    })
}

// ------------------------------------------------------------------------------------ portals

fn portal(daemon: &mut Daemon, verb: &PortalVerb) -> Result<(), Failure> {
    match verb {
        PortalVerb::Ls => {
            let listed = daemon.list("iscsi_get_portal_groups", Value::Null)?;
            daemon.print(&listed, || {
                let mut table = Table::new(&["tag", "addresses", "private", "state"]);
                for group in &listed {
                    let state = if group["wait"] == true { "waits" } else { "listens" };
                    table.row([
                        text(&group["tag"]),
                        addresses(group),
                        text(&group["private"]),
                        state.to_owned(),
                    ]);
                }
                table
            })
        }
        PortalVerb::Add { addresses, tag, private, wait } => {
            let tag = free_tag(daemon, "iscsi_get_portal_groups", tag.map(u32::from))?;
            let portal = |address: &SocketAddr| json!({ "host": address.ip().to_string(), "port": address.port().to_string() });
            let portals: Vec<Value> = addresses.iter().map(portal).collect();
            let params =
                json!({ "tag": tag, "portals": portals, "private": private, "wait": wait });
            let answer = daemon.call("iscsi_create_portal_group", params)?;
            daemon.done(&answer, &format!("added portal group {tag}"))
        }
        PortalVerb::Start { tag } => {
            let answer = daemon.call("iscsi_start_portal_group", json!({ "tag": tag }))?;
            daemon.done(&answer, &format!("portal group {tag} listens"))
        }
        PortalVerb::Rm { tags } => tags.iter().try_for_each(|tag| {
            let answer = daemon.call("iscsi_delete_portal_group", json!({ "tag": tag }))?;
            daemon.done(&answer, &format!("removed portal group {tag}"))
        }),
    }
}

fn addresses(group: &Value) -> String {
    let portals = elements(group, "portals").iter();
    let shown = portals.map(|it| format!("{}:{}", text(&it["host"]), text(&it["port"])));
    shown.collect::<Vec<_>>().join(" ")
}

/// The tag that was given, or the lowest that no group has.
fn free_tag(daemon: &mut Daemon, method: &str, given: Option<u32>) -> Result<u32, Failure> {
    if let Some(tag) = given {
        return Ok(tag);
    }
    let groups = daemon.list(method, Value::Null)?;
    let is_free = |tag: &u32| !groups.iter().any(|group| group["tag"] == *tag);
    Ok((1..).find(is_free).unwrap_or(1))
}

// --------------------------------------------------------------------------------- initiators

fn initiator(daemon: &mut Daemon, verb: &InitiatorVerb) -> Result<(), Failure> {
    match verb {
        InitiatorVerb::Ls => {
            let listed = daemon.list("iscsi_get_initiator_groups", Value::Null)?;
            daemon.print(&listed, || {
                let mut table = Table::new(&["tag", "initiators", "from"]);
                for group in &listed {
                    let words = |member| {
                        elements(group, member).iter().map(text).collect::<Vec<_>>().join(" ")
                    };
                    table.row([text(&group["tag"]), words("initiators"), words("netmasks")]);
                }
                table
            })
        }
        InitiatorVerb::Add { names, netmasks, tag } => {
            let tag = free_tag(daemon, "iscsi_get_initiator_groups", *tag)?;
            let params = json!({ "tag": tag, "initiators": names, "netmasks": netmasks });
            let answer = daemon.call("iscsi_create_initiator_group", params)?;
            daemon.done(&answer, &format!("added initiator group {tag}"))
        }
        InitiatorVerb::Set { tag, add, rm, add_from, rm_from } => {
            let changes = [
                ("iscsi_initiator_group_add_initiators", add, add_from),
                ("iscsi_initiator_group_remove_initiators", rm, rm_from),
            ];
            for (method, initiators, netmasks) in changes {
                if !initiators.is_empty() || !netmasks.is_empty() {
                    let params =
                        json!({ "tag": tag, "initiators": initiators, "netmasks": netmasks });
                    daemon.call(method, params)?;
                }
            }
            daemon.done(&true.into(), &format!("changed initiator group {tag}"))
        }
        InitiatorVerb::Rm { tags } => tags.iter().try_for_each(|tag| {
            let answer = daemon.call("iscsi_delete_initiator_group", json!({ "tag": tag }))?;
            daemon.done(&answer, &format!("removed initiator group {tag}"))
        }),
    }
}

// ------------------------------------------------------------------------------------ secrets

fn auth(daemon: &mut Daemon, verb: &AuthVerb) -> Result<(), Failure> {
    match verb {
        AuthVerb::Ls => list_users(daemon),
        AuthVerb::Add { user, secret, tag, mutual_user, mutual_secret } => {
            let read = |option: &str, path: &Path| {
                Ok::<_, Failure>(secrets::text(option, path)?.trim_end_matches('\n').to_owned())
            };
            let secret = read("KEY", secret)?;
            let mutual = mutual_secret.as_deref();
            let mutual = mutual.map(|path| read("--mutual-secret", path)).transpose()?;
            let groups = daemon.list("iscsi_get_auth_groups", Value::Null)?;
            let tag = free_tag(daemon, "iscsi_get_auth_groups", *tag)?;
            if !groups.iter().any(|group| group["tag"] == tag) {
                daemon.call("iscsi_create_auth_group", json!({ "tag": tag }))?;
            }
            let params = json!({
                "tag": tag, "user": user, "secret": secret, "muser": mutual_user, "msecret": mutual,
            });
            let answer = daemon.call("iscsi_auth_group_add_secret", params)?;
            daemon.done(&answer, &format!("auth group {tag} has the secret of {user}"))
        }
        AuthVerb::Rm { tag, user: Some(user) } => {
            let params = json!({ "tag": tag, "user": user });
            let answer = daemon.call("iscsi_auth_group_remove_secret", params)?;
            daemon.done(&answer, &format!("auth group {tag} has no secret of {user} any more"))
        }
        AuthVerb::Rm { tag, user: None } => {
            let answer = daemon.call("iscsi_delete_auth_group", json!({ "tag": tag }))?;
            daemon.done(&answer, &format!("removed auth group {tag}"))
        }
    }
}

/// Lists the users, for programs as well: secrets are nobody's to read here.
fn list_users(daemon: &mut Daemon) -> Result<(), Failure> {
    let groups = daemon.list("iscsi_get_auth_groups", Value::Null)?;
    let rows = groups.iter().flat_map(|group| {
        let user = |secret: &Value| {
            json!({ "tag": group["tag"], "user": secret["user"], "mutual_user": secret["muser"] })
        };
        elements(group, "secrets").iter().map(user).collect::<Vec<_>>()
    });
    let rows: Vec<Value> = rows.collect();
    daemon.print(&rows, || {
        let mut table = Table::new(&["tag", "user", "target proves itself as"]);
        for row in &rows {
            table.row([text(&row["tag"]), text(&row["user"]), text(&row["mutual_user"])]);
        }
        table
    })
}

// -------------------------------------------------------------------------------- connections

fn connections(daemon: &mut Daemon) -> Result<(), Failure> {
    let listed = daemon.list("iscsi_get_connections", Value::Null)?;
    daemon.print(&listed, || {
        let mut table = Table::new(&["initiator", "from", "target", "portals", "at"]);
        for connection in &listed {
            let members =
                ["initiator_name", "initiator_addr", "target_name", "pg_tag", "target_addr"];
            table.row(members.map(|member| text(&connection[member])));
        }
        table
    })
}
