//! `raceline list` and `raceline list-subsys`: subsystems, their controllers and namespaces, in nvme-cli's tables.
//!
//! What is listed is what an address or a file of connections leads to, or else the disks of `raceline connect` and what a daemon
//! is connected to.

mod disks;

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use raceline_control::client::Address;
use raceline_host::blocking::Host;
use raceline_host::{HostConfig, NamespaceInfo, Transport};
use raceline_proto::nvme::Nqn;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::device::{overrides, plain};
use super::files::{self, Connection};
use super::refuse_binary;
use super::unopened::{Unopened, unopened};
use crate::cli::nvme::{ControllerArgs, DeviceArgs, NvmeFormat};
use crate::cli::values;
use crate::failure::{Failure, code};
use crate::remote::failure;
use crate::table::printable;
use crate::{manage, shell};

const DAEMON_TIMEOUT: Duration = Duration::from_secs(60);
/// TRTYPE of TCP and of RDMA in discovery records.
const TCP: u8 = 3;
const RDMA: u8 = 1;
/// SUBTYPE of subsystems with namespaces.
const NVME_SUBSYSTEM: u8 = 2;

/// A controller, or a path of a host with several.
struct Controller {
    name: String,
    /// As nvme-cli writes it.
    transport: String,
    /// As the kernel shows it.
    address: String,
    state: String,
    cntlid: String,
}

struct Namespace {
    node: String,
    nsid: u32,
    used_bytes: u64,
    block_count: u64,
    block_size: u32,
    metadata_bytes: u16,
}

/// A subsystem as a host knows it.
struct Subsystem {
    nqn: String,
    hostnqn: String,
    hostid: String,
    serial: String,
    model: String,
    firmware: String,
    controllers: Vec<Controller>,
    namespaces: Vec<Namespace>,
    /// Namespaces that are no devices of the daemon.
    unopened: Vec<Unopened>,
}

/// `raceline list`; verbosely, JSON has subsystems and controllers as well.
pub(crate) fn namespaces(args: &ControllerArgs, is_verbose: bool) -> Result<(), Failure> {
    refuse_binary(&args.device, "list")?;
    let subsystems = gather(&args.device)?;
    for unopened in subsystems.iter().flat_map(|subsystem| &subsystem.unopened) {
        shell::note(&format!("{}: {}", unopened.what(), printable(&unopened.reason)));
    }
    let text = match args.device.named.format() {
        NvmeFormat::Json if is_verbose => format!("{:#}\n", namespaces_document(&subsystems)),
        NvmeFormat::Json => format!("{:#}\n", namespaces_flat(&subsystems)),
        _ => namespaces_normal(&subsystems),
    };
    shell::print(text.as_bytes())
}

/// `raceline list-subsys`.
pub(crate) fn subsystems(args: &ControllerArgs) -> Result<(), Failure> {
    refuse_binary(&args.device, "list-subsys")?;
    let subsystems = gather(&args.device)?;
    let text = match args.device.named.format() {
        NvmeFormat::Json => format!("{:#}\n", subsystems_document(&subsystems)),
        _ => subsystems_normal(&subsystems),
    };
    shell::print(text.as_bytes())
}

// ------------------------------------------------------------------------ what there is

fn gather(args: &DeviceArgs) -> Result<Vec<Subsystem>, Failure> {
    if args.connect.address.iscsi.iscsi {
        return Err(Failure::usage(
            "this verb is for NVMe: raceline discover --iscsi lists what an iSCSI target has",
        ));
    }
    if args.has_address && args.has_nqn {
        return inquire(&plain(args)?).map(|found| vec![found]);
    }
    if args.has_address {
        return offered(args);
    }
    if let Some(path) = &args.named.config {
        return of_file(path, args);
    }
    if args.has_nqn {
        return of_file(Path::new(files::CONFIG), args);
    }
    of_this_machine(args)
}

/// Every subsystem that the discovery service offers at the address itself.
fn offered(args: &DeviceArgs) -> Result<Vec<Subsystem>, Failure> {
    let service = plain(args)?;
    let config = HostConfig { subnqn: Nqn::discovery(), ..service.config()? };
    let address = config.address;
    let trtype = if config.transport == Transport::Rdma { RDMA } else { TCP };
    let host = Host::connect(config).map_err(|error| failure(&error))?;
    let log = host.discover().map_err(|error| failure(&error));
    host.disconnect();
    let mut found: Vec<Subsystem> = Vec::new();
    let mut last = None;
    let log = log?;
    let here = |record: &&raceline_proto::host::discovery::DiscoveryRecord| {
        record.trtype == trtype
            && record.subtype == NVME_SUBSYSTEM
            && record.trsvcid == address.port().to_string()
    };
    for record in log.records.iter().filter(here) {
        if found.iter().any(|known| known.nqn == record.subnqn) {
            continue;
        }
        let Ok(nqn) = Nqn::new(&record.subnqn) else { continue };
        let mut connection = service.clone();
        connection.connect.nqn = nqn;
        keep(&mut found, &mut last, &connection);
    }
    none_but(found, last)
}

/// Every subsystem of a file, or the named one.
fn of_file(path: &Path, args: &DeviceArgs) -> Result<Vec<Subsystem>, Failure> {
    let mut found: Vec<Subsystem> = Vec::new();
    let mut last = None;
    let wanted = |connection: &&Connection| {
        !connection.is_discovery && (!args.has_nqn || connection.connect.nqn == args.connect.nqn)
    };
    let connections = files::config(path, overrides(args))?;
    for connection in connections.iter().filter(wanted) {
        keep(&mut found, &mut last, connection);
    }
    if found.is_empty() && last.is_none() {
        let text = "names no such subsystem: -a ADDRESS lists what is offered there";
        return Err(Failure::usage(format!("{} {text}", path.display())));
    }
    none_but(found, last)
}

/// Asks a controller; several of one subsystem are one entry. What does not answer is said, and keeps nothing else back.
fn keep(found: &mut Vec<Subsystem>, last: &mut Option<Failure>, connection: &Connection) {
    match inquire(connection) {
        Ok(mut new) => match found
            .iter_mut()
            .find(|known| known.nqn == new.nqn && known.hostnqn == new.hostnqn)
        {
            Some(known) => known.controllers.append(&mut new.controllers),
            None => found.push(new),
        },
        Err(failure) => {
            let nqn = &connection.connect.nqn;
            shell::note(&format!("{nqn} at {}: {}", connection.shown(), failure.message));
            *last = Some(failure);
        }
    }
}

/// If nothing answered, that is the failure.
fn none_but(found: Vec<Subsystem>, last: Option<Failure>) -> Result<Vec<Subsystem>, Failure> {
    match last {
        Some(failure) if found.is_empty() => Err(failure),
        _ => Ok(found),
    }
}

fn inquire(connection: &Connection) -> Result<Subsystem, Failure> {
    let config = HostConfig { io_queues: 0, ..connection.config()? };
    let (hostnqn, hostid) =
        (config.hostnqn.to_string(), Uuid::from_bytes(config.hostid.0).to_string());
    let target = config.address;
    let transport = match config.transport {
        Transport::Tcp => "tcp",
        Transport::Rdma => "rdma",
    };
    let source = config.source.map(|source| format!(",src_addr={source}")).unwrap_or_default();
    let host = Host::connect(config).map_err(|error| failure(&error))?;
    let info = host.controller();
    let name = connection.shown();
    let namespaces = host.namespaces().iter().map(|namespace| describe(&name, namespace)).collect();
    let controller = Controller {
        address: format!("traddr={},trsvcid={}{source}", target.ip(), target.port()),
        name,
        transport: transport.to_owned(),
        state: "live".to_owned(),
        cntlid: info.cntlid.to_string(),
    };
    host.disconnect();
    Ok(Subsystem {
        nqn: connection.connect.nqn.to_string(),
        hostnqn,
        hostid,
        serial: info.serial.clone(),
        model: info.model.clone(),
        firmware: info.firmware.clone(),
        controllers: vec![controller],
        namespaces,
        unopened: Vec::new(),
    })
}

fn describe(controller: &str, info: &NamespaceInfo) -> Namespace {
    Namespace {
        node: controller.to_owned(),
        nsid: info.nsid.0,
        used_bytes: info.used_blocks.saturating_mul(u64::from(info.block_size)),
        block_count: info.block_count,
        block_size: info.block_size,
        metadata_bytes: 0,
    }
}

/// The disks of this user, and what a daemon is connected to. Disks need no daemon, unless its socket was named.
fn of_this_machine(args: &DeviceArgs) -> Result<Vec<Subsystem>, Failure> {
    let mut disks = disks::gather(args);
    if args.named.device.is_some() && !disks.is_empty() {
        return Ok(disks);
    }
    match of_daemon(args) {
        Ok(mut found) => {
            found.append(&mut disks);
            Ok(found)
        }
        Err(failure) if args.named.socket.is_some() => Err(failure),
        Err(failure) if disks.is_empty() && failure.code == code::CONNECT => {
            let text = format!("no disk of raceline connect runs, and {}", failure.message);
            Err(Failure { message: text, ..failure })
        }
        Err(failure) if disks.is_empty() => Err(failure),
        Err(failure) => {
            let is_there =
                |address: &Address| matches!(address, Address::Unix(path) if path.exists());
            if Address::usual().iter().any(is_there) {
                shell::note(&format!("only disks are listed: {}", failure.message));
            }
            Ok(disks)
        }
    }
}

/// What a daemon is connected to.
fn of_daemon(args: &DeviceArgs) -> Result<Vec<Subsystem>, Failure> {
    let connected = manage::connect(args.named.socket.as_deref(), DAEMON_TIMEOUT);
    let mut daemon = connected.map_err(|failure| Failure {
        message: format!(
            "{}; without a daemon, say where to look: -a ADDRESS, or --config FILE",
            failure.message
        ),
        ..failure
    })?;
    let controllers = daemon.list("bdev_nvme_get_controllers", Value::Null)?;
    let bdevs = daemon.list("bdev_get_bdevs", Value::Null)?;
    let wanted = |controller: &&Value| {
        args.named.device.as_ref().is_none_or(|name| controller["name"] == **name)
    };
    let found: Vec<Subsystem> = controllers
        .iter()
        .filter(wanted)
        .filter_map(|controller| of_controller(controller, &bdevs))
        .collect();
    match (&args.named.device, found.is_empty()) {
        (Some(name), true) => {
            Err(Failure::usage(format!("the daemon has no remote controller {}", printable(name))))
        }
        _ => Ok(found),
    }
}

fn word(value: &Value) -> String {
    value.as_str().map(str::to_owned).unwrap_or_default()
}

/// A remote controller of the daemon with its namespaces; a local drive is none.
fn of_controller(controller: &Value, bdevs: &[Value]) -> Option<Subsystem> {
    let name = word(&controller["name"]);
    let paths = controller["ctrlrs"].as_array()?;
    let first =
        paths.first().filter(|path| values::transport(&word(&path["trid"]["trtype"])).is_ok())?;
    let controllers = paths.iter().map(|path| of_path(&name, path));
    let nvme = |bdev: &Value| bdev["driver_specific"]["nvme"][0].clone();
    let own =
        bdevs.iter().filter(|bdev| is_of(&word(&bdev["name"]), &name) && nvme(bdev).is_object());
    // A path that is lost may not say what it leads to.
    let of_paths =
        own.clone().filter_map(|bdev| bdev["driver_specific"]["nvme"].as_array()).flatten();
    let data =
        of_paths.map(|path| &path["ctrlr_data"]).find(|data| data["serial_number"].is_string());
    let data = data.cloned().unwrap_or_default();
    let namespaces = own.map(|bdev| {
        let (count, size) =
            (bdev["num_blocks"].as_u64().unwrap_or(0), bdev["block_size"].as_u64().unwrap_or(0));
        Namespace {
            node: word(&bdev["name"]),
            nsid: nvme(bdev)["ns_data"]["id"]
                .as_u64()
                .and_then(|id| u32::try_from(id).ok())
                .unwrap_or(0),
            used_bytes: count.saturating_mul(size),
            block_count: count,
            block_size: u32::try_from(size).unwrap_or(0),
            metadata_bytes: 0,
        }
    });
    Some(Subsystem {
        nqn: word(&first["trid"]["subnqn"]),
        hostnqn: word(&first["host"]["nqn"]),
        // SPDK's daemon does not tell it.
        hostid: word(&first["host"]["hostid"]),
        serial: word(&data["serial_number"]),
        model: word(&data["model_number"]),
        firmware: word(&data["firmware_revision"]),
        controllers: controllers.collect(),
        namespaces: namespaces.collect(),
        unopened: unopened(controller),
    })
}

/// A path as `bdev_nvme_get_controllers` describes it, of the controller or the disk of this name.
fn of_path(name: &str, path: &Value) -> Controller {
    let trid = &path["trid"];
    let source = word(&path["host"]["addr"]);
    let source = if source.is_empty() { source } else { format!(",src_addr={source}") };
    let state = if path["state"] == "enabled" { "live".into() } else { word(&path["state"]) };
    Controller {
        name: name.to_owned(),
        transport: word(&trid["trtype"]).to_ascii_lowercase(),
        address: format!(
            "traddr={},trsvcid={}{source}",
            word(&trid["traddr"]),
            word(&trid["trsvcid"])
        ),
        state,
        cntlid: path["cntlid"].to_string(),
    }
}

/// Whether a device is a namespace of the controller: NAMEnN.
fn is_of(bdev: &str, controller: &str) -> bool {
    let number = bdev.strip_prefix(controller).and_then(|rest| rest.strip_prefix('n'));
    number.is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

// --------------------------------------------------------------------------- for people

/// Widths of the columns of `nvme list`, with their names.
const COLUMNS: [(&str, usize); 8] = [
    ("Node", 21),
    ("Generic", 21),
    ("SN", 20),
    ("Model", 40),
    ("Namespace", 10),
    ("Usage", 26),
    ("Format", 16),
    ("FW Rev", 8),
];

fn row(cells: [&str; 8]) -> String {
    let mut text = String::new();
    for (cell, (_, width)) in cells.iter().zip(COLUMNS) {
        let cell = printable(cell.trim_end());
        let _ = write!(text, "{cell:<width$} ");
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn namespaces_normal(subsystems: &[Subsystem]) -> String {
    let mut text = row(COLUMNS.map(|(name, _)| name));
    let lines: Vec<String> = COLUMNS.iter().map(|(_, width)| "-".repeat(*width)).collect();
    let _ = writeln!(text, "{}", lines.join(" "));
    for subsystem in subsystems {
        for namespace in &subsystem.namespaces {
            let size = namespace.block_count.saturating_mul(u64::from(namespace.block_size));
            let usage = format!("{} / {}", si(namespace.used_bytes), si(size));
            let (block, unit) = match namespace.block_size {
                size if size >= 1024 && size.is_multiple_of(1024) => (size / 1024, "KiB"),
                size => (size, "B"),
            };
            let format = format!("{block:3} {unit:>3} + {:2} B", namespace.metadata_bytes);
            // 0 is no number of a namespace: it is a device of this machine.
            let nsid = match namespace.nsid {
                0 => "-".to_owned(),
                nsid => format!("{nsid:#x}"),
            };
            let (serial, model, firmware) =
                (&subsystem.serial, &subsystem.model, &subsystem.firmware);
            text += &row([&namespace.node, "-", serial, model, &nsid, &usage, &format, firmware]);
        }
    }
    text
}

/// Bytes in powers of 1000, in the width of `nvme list`.
fn si(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    let mut unit = 0;
    let mut scale = 1_u128;
    while unit + 1 < UNITS.len() && u128::from(bytes) >= scale * 1000 {
        scale *= 1000;
        unit += 1;
    }
    let hundredths = (u128::from(bytes) * 100 + scale / 2) / scale;
    format!("{:3}.{:02} {:>2}B", hundredths / 100, hundredths % 100, UNITS[unit])
}

/// Those that are subsystems: a device of this machine is none.
fn remote(subsystems: &[Subsystem]) -> impl Iterator<Item = &Subsystem> {
    subsystems.iter().filter(|subsystem| !subsystem.nqn.is_empty())
}

fn subsystems_normal(subsystems: &[Subsystem]) -> String {
    let mut text = String::new();
    for (number, subsystem) in remote(subsystems).enumerate() {
        let name = format!("nvme-subsys{number}");
        let indent = name.len();
        let (nqn, host) = (printable(&subsystem.nqn), printable(&subsystem.hostnqn));
        let _ = writeln!(text, "{name} - NQN={nqn}\n{:indent$}   hostnqn={host}\n\\", "");
        for Controller { name, transport, address, state, .. } in &subsystem.controllers {
            let [name, transport, address, state] =
                [name, transport, address, state].map(|it| printable(it));
            let _ = writeln!(text, " +- {name} {transport} {address} {state}");
        }
    }
    text
}

// -------------------------------------------------------------------------- for programs

/// Subsystems by the host that they are connected as.
fn by_host<'a>(
    subsystems: impl Iterator<Item = &'a Subsystem>,
    describe: impl Fn(usize, &Subsystem) -> Value,
) -> Vec<Value> {
    let mut hosts: Vec<(&str, Map<String, Value>)> = Vec::new();
    for (number, subsystem) in subsystems.enumerate() {
        let place =
            hosts.iter().position(|(nqn, _)| *nqn == subsystem.hostnqn).unwrap_or_else(|| {
                let mut host = Map::new();
                host.insert("HostNQN".to_owned(), subsystem.hostnqn.as_str().into());
                if !subsystem.hostid.is_empty() {
                    host.insert("HostID".to_owned(), subsystem.hostid.as_str().into());
                }
                host.insert("Subsystems".to_owned(), Value::Array(Vec::new()));
                hosts.push((&subsystem.hostnqn, host));
                hosts.len() - 1
            });
        if let Some(Value::Array(list)) = hosts[place].1.get_mut("Subsystems") {
            list.push(describe(number, subsystem));
        }
    }
    hosts.into_iter().map(|(_, host)| host.into()).collect()
}

/// Every namespace with what its subsystem says of itself.
fn namespaces_flat(subsystems: &[Subsystem]) -> Value {
    let of_subsystem = |subsystem: &Subsystem| {
        let describe = |namespace: &Namespace| {
            json!({
                "NameSpace": namespace.nsid,
                "DevicePath": namespace.node,
                "GenericPath": "",
                "Firmware": subsystem.firmware.trim_end(),
                "ModelNumber": subsystem.model.trim_end(),
                "SerialNumber": subsystem.serial.trim_end(),
                "UsedBytes": namespace.used_bytes,
                "MaximumLBA": namespace.block_count,
                "PhysicalSize": namespace.block_count.saturating_mul(u64::from(namespace.block_size)),
                "SectorSize": namespace.block_size,
            })
        };
        subsystem.namespaces.iter().map(describe).collect::<Vec<_>>()
    };
    json!({ "Devices": subsystems.iter().flat_map(of_subsystem).collect::<Vec<_>>() })
}

fn namespaces_document(subsystems: &[Subsystem]) -> Value {
    let devices = by_host(subsystems.iter(), |number, subsystem| {
        let controllers = subsystem.controllers.iter().map(|controller| {
            json!({
                "Controller": controller.name,
                "Cntlid": controller.cntlid,
                "SerialNumber": subsystem.serial.trim_end(),
                "ModelNumber": subsystem.model.trim_end(),
                "Firmware": subsystem.firmware.trim_end(),
                "Transport": controller.transport,
                "Address": controller.address,
                "Slot": "",
                "Namespaces": [],
                "Paths": [],
            })
        });
        let namespaces = subsystem.namespaces.iter().map(|namespace| {
            json!({
                "NameSpace": namespace.node,
                "Generic": "",
                "NSID": namespace.nsid,
                "UsedBytes": namespace.used_bytes,
                "MaximumLBA": namespace.block_count,
                "PhysicalSize": namespace.block_count.saturating_mul(u64::from(namespace.block_size)),
                "SectorSize": namespace.block_size,
            })
        });
        let mut described = json!({
            "Subsystem": format!("nvme-subsys{number}"),
            "SubsystemNQN": subsystem.nqn,
            "Controllers": controllers.collect::<Vec<_>>(),
            "Namespaces": namespaces.collect::<Vec<_>>(),
        });
        // nvme-cli knows no such member.
        if !subsystem.unopened.is_empty() {
            let unopened = subsystem.unopened.iter();
            let unopened =
                unopened.map(|one| json!({ "NSID": one.nsid, "Reason": one.reason })).collect();
            described["Unopened"] = Value::Array(unopened);
        }
        described
    });
    json!({ "Devices": devices })
}

fn subsystems_document(subsystems: &[Subsystem]) -> Value {
    let hosts = by_host(remote(subsystems), |number, subsystem| {
        let paths = subsystem.controllers.iter().map(|controller| {
            json!({
                "Name": controller.name,
                "Transport": controller.transport,
                "Address": controller.address,
                "State": controller.state,
            })
        });
        json!({
            "Name": format!("nvme-subsys{number}"),
            "NQN": subsystem.nqn,
            "Paths": paths.collect::<Vec<_>>(),
        })
    });
    hosts.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one() -> Subsystem {
        Subsystem {
            nqn: "nqn.2014-08.org.example:1".to_owned(),
            hostnqn: "nqn.2014-08.org.example:host".to_owned(),
            hostid: String::new(),
            serial: "RL1".to_owned(),
            model: "Raceline".to_owned(),
            firmware: "0.1".to_owned(),
            controllers: vec![Controller {
                name: "127.0.0.1:4420".to_owned(),
                transport: "tcp".to_owned(),
                address: "traddr=127.0.0.1,trsvcid=4420".to_owned(),
                state: "live".to_owned(),
                cntlid: "1".to_owned(),
            }],
            namespaces: vec![Namespace {
                node: "127.0.0.1:4420".to_owned(),
                nsid: 17,
                used_bytes: 0,
                block_count: 2_097_152,
                block_size: 512,
                metadata_bytes: 0,
            }],
            unopened: Vec::new(),
        }
    }

    #[test]
    fn the_table_is_that_of_nvme_list() {
        let text = namespaces_normal(&[one()]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "Node                  Generic               SN                   Model                                    Namespace  Usage                      Format           FW Rev"
        );
        assert_eq!(lines[1].len(), COLUMNS.iter().map(|(_, width)| width + 1).sum::<usize>() - 1);
        assert_eq!(
            lines[2],
            "127.0.0.1:4420        -                     RL1                  Raceline                                 0x11         0.00   B /   1.07  GB    512   B +  0 B   0.1"
        );
    }

    #[test]
    fn subsystems_are_those_of_their_hosts() {
        let mut other = one();
        other.hostnqn.push('2');
        let document = namespaces_document(&[one(), other, one()]);
        assert_eq!(document["Devices"].as_array().map(Vec::len), Some(2));
        assert_eq!(document["Devices"][0]["Subsystems"][1]["Subsystem"], "nvme-subsys2");
        let namespace = &document["Devices"][0]["Subsystems"][0]["Namespaces"][0];
        assert_eq!(namespace["PhysicalSize"], 1_073_741_824_u64);
        let flat = namespaces_flat(&[one(), one()]);
        let expected = json!({
            "NameSpace": 17, "DevicePath": "127.0.0.1:4420", "GenericPath": "", "Firmware": "0.1",
            "ModelNumber": "Raceline", "SerialNumber": "RL1", "UsedBytes": 0, "MaximumLBA": 2_097_152,
            "PhysicalSize": 1_073_741_824_u64, "SectorSize": 512,
        });
        assert_eq!(flat, json!({ "Devices": [expected.clone(), expected] }));
        let text = subsystems_normal(&[one()]);
        let expected = "nvme-subsys0 - NQN=nqn.2014-08.org.example:1\n               hostnqn=nqn.2014-08.org.example:host\n\\\n \
                        +- 127.0.0.1:4420 tcp traddr=127.0.0.1,trsvcid=4420 live\n";
        assert_eq!(text, expected);
    }

    /// The answers of a daemon with two paths, of which the first is lost, and what is printed of them.
    #[test]
    fn a_daemon_is_listed_as_the_files_in_golden_say() {
        let path = |port: &str, state: &str, cntlid: u16| {
            json!({
                "state": state, "cntlid": cntlid,
                "trid": {
                    "trtype": "TCP", "adrfam": "IPv4", "traddr": "192.0.2.1", "trsvcid": port,
                    "subnqn": "nqn.2014-08.org.example:golden",
                },
                "host": {
                    "nqn": "nqn.2014-08.org.example:host", "addr": "192.0.2.9", "svcid": "",
                    "hostid": "8a1b2c3d-0000-4000-8000-00000000000a",
                },
            })
        };
        let controller = json!({
            "name": "Nvme0",
            "ctrlrs": [path("4420", "resetting", 0), path("4421", "enabled", 7)],
        });
        let bdev = |nsid: u32, blocks: u64| {
            json!({
                "name": format!("Nvme0n{nsid}"), "block_size": 4096, "num_blocks": blocks,
                "driver_specific": { "nvme": [
                    { "ns_data": { "id": nsid } },
                    { "ns_data": { "id": nsid }, "ctrlr_data": {
                        "model_number": "A model of a drive", "serial_number": "SERIAL-7",
                        "firmware_revision": "1.2.3",
                    } },
                ] },
            })
        };
        let bdevs = [bdev(1, 262_144), bdev(2, 1 << 32), json!({ "name": "m0" })];
        let listed = [of_controller(&controller, &bdevs).unwrap()];
        assert_eq!(namespaces_normal(&listed), include_str!("golden/list.txt"));
        assert_eq!(subsystems_normal(&listed), include_str!("golden/list-subsys.txt"));
        let golden = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(namespaces_flat(&listed), golden(include_str!("golden/list.json")));
        assert_eq!(subsystems_document(&listed), golden(include_str!("golden/list-subsys.json")));
    }

    #[test]
    fn only_namespaces_of_a_controller_are_its_own() {
        assert!(is_of("Nvme1n12", "Nvme1"));
        for other in ["Nvme1", "Nvme1n", "Nvme1n1p1", "Nvme10n1"] {
            assert!(!is_of(other, "Nvme1"), "{other}");
        }
    }
}
