//! `raceline identify`: a controller and its namespaces.

use std::fmt::Write as _;

use raceline_bench::report::{binary_bytes, grouped};
use raceline_host::{ControllerInfo, NamespaceInfo};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::cli::host::IdentifyArgs;
use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::remote::Remote;
use crate::shell;
use crate::table::{Table, printable};

/// Connects, prints the controller's Identify data, disconnects.
pub(crate) fn run(args: &IdentifyArgs) -> Result<(), Failure> {
    if args.connect.address.iscsi.iscsi {
        return crate::initiator::identify(&args.connect);
    }
    let remote = Remote::connect_admin(&args.connect)?;
    let namespaces: Vec<NamespaceInfo> = match args.namespace {
        Some(nsid) => vec![remote.namespace(nsid)?],
        None => remote.namespaces().to_vec(),
    };
    let controller = remote.controller();
    let text = match args.connect.address.output {
        OutputFormat::Table => table(&controller, &namespaces),
        OutputFormat::Json => format!("{:#}\n", document(&controller, &namespaces)),
    };
    remote.disconnect();
    shell::print(text.as_bytes())
}

fn table(controller: &ControllerInfo, namespaces: &[NamespaceInfo]) -> String {
    let nqn = controller.subnqn.as_ref().map_or("unknown", |nqn| nqn.as_str());
    let transfer = controller
        .max_transfer_bytes
        .map_or("unlimited".to_owned(), |bytes| binary_bytes(u64::from(bytes)));
    let cache = if controller.volatile_write_cache { "yes" } else { "no" };
    let mut text = String::new();
    for (name, value) in [
        ("subsystem", nqn.to_owned()),
        ("model", controller.model.clone()),
        ("serial", controller.serial.clone()),
        ("firmware", controller.firmware.clone()),
        ("NVMe version", version(controller.version)),
        ("controller", controller.cntlid.to_string()),
        ("largest transfer", transfer),
        ("in-capsule data", binary_bytes(u64::from(controller.in_capsule_bytes))),
        ("volatile write cache", cache.to_owned()),
    ] {
        let _ = writeln!(text, "{name:<22}{}", printable(&value));
    }
    if namespaces.is_empty() {
        text.push_str("\nno namespaces\n");
        return text;
    }
    let mut table = Table::new(&["nsid", "size", "blocks", "block", "access", "uuid"]);
    for namespace in namespaces {
        table.row([
            namespace.nsid.to_string(),
            binary_bytes(namespace.size_bytes()),
            grouped(namespace.block_count),
            namespace.block_size.to_string(),
            (if namespace.read_only { "read only" } else { "read/write" }).to_owned(),
            Uuid::from_bytes(namespace.uuid).to_string(),
        ]);
    }
    let _ = write!(text, "\n{}", table.render(""));
    text
}

fn document(controller: &ControllerInfo, namespaces: &[NamespaceInfo]) -> Value {
    let namespaces: Vec<Value> = namespaces
        .iter()
        .map(|namespace| {
            json!({
                "nsid": namespace.nsid.0,
                "block_size": namespace.block_size,
                "block_count": namespace.block_count,
                "size_bytes": namespace.size_bytes(),
                "used_blocks": namespace.used_blocks,
                "physical_block_size": namespace.physical_block_size,
                "read_only": namespace.read_only,
                "deallocate_zeroes": namespace.deallocate_zeroes,
                "uuid": Uuid::from_bytes(namespace.uuid),
                "nguid": hex(&namespace.nguid),
                "eui64": hex(&namespace.eui64),
            })
        })
        .collect();
    json!({
        "controller": {
            "cntlid": controller.cntlid.0,
            "subnqn": controller.subnqn.as_ref().map(|nqn| nqn.as_str()),
            "model": controller.model,
            "serial": controller.serial,
            "firmware": controller.firmware,
            "version": version(controller.version),
            "max_transfer_bytes": controller.max_transfer_bytes,
            "in_capsule_bytes": controller.in_capsule_bytes,
            "keep_alive_granularity_ms": u32::from(controller.kas) * 100,
            "volatile_write_cache": controller.volatile_write_cache,
            "namespace_count": controller.namespace_count,
        },
        "namespaces": namespaces,
    })
}

/// VER: major 31:16, minor 15:8, tertiary 7:0 (Base 2.0, 3.1.3.2).
fn version(ver: u32) -> String {
    let [tertiary, minor, m0, m1] = ver.to_le_bytes();
    format!("{}.{minor}.{tertiary}", u16::from_le_bytes([m0, m1]))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_identifiers() {
        assert_eq!(version(0x0001_0400), "1.4.0");
        assert_eq!(version(0x0002_0001), "2.0.1");
        assert_eq!(hex(&[0, 0xab, 0x10]), "00ab10");
    }
}
