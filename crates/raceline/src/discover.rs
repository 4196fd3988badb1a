//! `raceline discover`: the subsystems that a target offers.

use std::time::{Duration, Instant};

use raceline_mdns::{Browser, Service};
use raceline_proto::host::discovery::{DiscoveryLog, DiscoveryRecord};
use serde_json::{Value, json};

use crate::cli::host::{DiscoverArgs, OptionalAddress};
use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::nvme::files::Overrides;
use crate::table::Table;
use crate::{nvme, remote, shell};

/// Prints the discovery log, or who announces that there is one.
pub(crate) fn run(args: &DiscoverArgs) -> Result<(), Failure> {
    let address = &args.target.0;
    if address.iscsi.iscsi && address.address.is_empty() {
        return Err(Failure::usage("-a ADDRESS is missing: the portal of the iSCSI target"));
    }
    if address.iscsi.iscsi {
        return crate::initiator::discover(address);
    }
    if args.mdns {
        let found = search(args.wait)?;
        let text = match address.output {
            OutputFormat::Table => found_table(&found),
            OutputFormat::Json => format!("{:#}\n", found_document(&found)),
        };
        return shell::print(text.as_bytes());
    }
    if address.address.is_empty() {
        return files(args);
    }
    let log = remote::discover(address, args.target.1.has("port"))?;
    let text = match address.output {
        OutputFormat::Table => table(&log),
        OutputFormat::Json => format!("{:#}\n", document(&log)),
    };
    shell::print(text.as_bytes())
}

/// Asks every discovery controller that a file names, and prints each log under its address.
fn files(args: &DiscoverArgs) -> Result<(), Failure> {
    let OptionalAddress(line, given) = &args.target;
    let over = Overrides { given, line, are_names: false };
    let found = match &args.config {
        Some(path) => nvme::files::discovery_controllers(path, over)?,
        None => nvme::files::known_discovery_controllers(over)?,
    };
    let mut last = None;
    let mut logs: Vec<(String, DiscoveryLog)> = Vec::new();
    for connection in &found {
        let name = connection.shown();
        match connection.config().and_then(remote::discovery_log) {
            Ok(log) => logs.push((name, log)),
            Err(failure) => {
                shell::note(&format!("{name}: {}", failure.message));
                last = Some(failure);
            }
        }
    }
    if let (Some(failure), true) = (last, logs.is_empty()) {
        return Err(failure);
    }
    let text = match args.target.0.output {
        OutputFormat::Table => logs
            .iter()
            .map(|(name, log)| format!("{name}\n{}", table(log)))
            .collect::<Vec<_>>()
            .join("\n"),
        OutputFormat::Json => {
            let list = logs.iter().map(|(name, log)| {
                let mut shown = document(log);
                shown["address"] = name.as_str().into();
                shown
            });
            format!("{:#}\n", Value::from(list.collect::<Vec<_>>()))
        }
    };
    shell::print(text.as_bytes())
}

/// The services that announce themselves within this time.
fn search(time: Duration) -> Result<Vec<Service>, Failure> {
    let mut browser = Browser::start().map_err(Failure::runtime)?;
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        browser.wait(left).map_err(Failure::runtime)?;
        if left.is_zero() {
            return Ok(browser.services().cloned().collect());
        }
    }
}

fn found_table(found: &[Service]) -> String {
    if found.is_empty() {
        return "no discovery controller has announced itself\n".to_owned();
    }
    let mut table = Table::new(&["address", "port", "nqn", "name"]);
    for service in found {
        for address in &service.addresses {
            table.row([
                address.ip().to_string(),
                address.port().to_string(),
                service.nqn.to_string(),
                service.instance.clone(),
            ]);
        }
    }
    table.render("")
}

fn found_document(found: &[Service]) -> Value {
    let services = found.iter().map(|service| {
        let addresses = service.addresses.iter().map(
            |address| json!({ "traddr": address.ip().to_string(), "trsvcid": address.port().to_string() }),
        );
        json!({
            "instance": service.instance,
            "trtype": "tcp",
            "subnqn": service.nqn.as_str(),
            "addresses": addresses.collect::<Vec<_>>(),
        })
    });
    json!({ "services": services.collect::<Vec<_>>() })
}

fn table(log: &DiscoveryLog) -> String {
    if log.records.is_empty() {
        return "the target offers nothing to this host\n".to_owned();
    }
    let mut table = Table::new(&["type", "transport", "address", "port", "security", "nqn"]);
    for record in &log.records {
        table.row([
            subtype(record).to_owned(),
            transport(record).to_owned(),
            record.traddr.clone(),
            record.trsvcid.clone(),
            security(record).to_owned(),
            record.subnqn.clone(),
        ]);
    }
    table.render("")
}

/// The log with the field names of nvme-cli.
fn document(log: &DiscoveryLog) -> Value {
    let records: Vec<Value> = log
        .records
        .iter()
        .map(|record| {
            json!({
                "trtype": transport(record),
                "adrfam": family(record),
                "subtype": subtype(record),
                "treq": treq(record),
                "portid": record.portid,
                "cntlid": record.cntlid,
                "trsvcid": record.trsvcid,
                "subnqn": record.subnqn,
                "traddr": record.traddr,
                "asqsz": record.asqsz,
                "eflags": record.eflags,
                "sectype": security(record),
            })
        })
        .collect();
    json!({ "genctr": log.generation, "records": records })
}

fn transport(record: &DiscoveryRecord) -> &'static str {
    match record.trtype {
        1 => "rdma",
        2 => "fc",
        3 => "tcp",
        254 => "loop",
        _ => "unknown",
    }
}

fn family(record: &DiscoveryRecord) -> &'static str {
    match record.adrfam {
        1 => "ipv4",
        2 => "ipv6",
        3 => "ib",
        4 => "fc",
        _ => "unknown",
    }
}

fn subtype(record: &DiscoveryRecord) -> &'static str {
    match record.subtype {
        1 => "discovery referral",
        2 => "nvme subsystem",
        3 => "current discovery subsystem",
        _ => "unknown",
    }
}

fn treq(record: &DiscoveryRecord) -> &'static str {
    match record.treq & 0b11 {
        0 => "not specified",
        1 => "required",
        2 => "not required",
        _ => "reserved",
    }
}

fn security(record: &DiscoveryRecord) -> &'static str {
    match (record.trtype, record.sectype) {
        (3, 0) => "none",
        (3, 1) => "tls1.2",
        (3, 2) => "tls1.3",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> DiscoveryLog {
        let record = DiscoveryRecord {
            trtype: 3,
            adrfam: 1,
            subtype: 2,
            treq: 0,
            portid: 1,
            cntlid: 0xffff,
            asqsz: 128,
            eflags: 0,
            trsvcid: "4420".to_owned(),
            subnqn: "nqn.2014-08.org.example:1".to_owned(),
            traddr: "127.0.0.1".to_owned(),
            sectype: 0,
            rdma: None,
        };
        DiscoveryLog { generation: 7, records: vec![record] }
    }

    #[test]
    fn json_has_the_names_of_nvme_cli() {
        let document = document(&log());
        assert_eq!(document["genctr"], 7);
        let record = &document["records"][0];
        assert_eq!(record["trtype"], "tcp");
        assert_eq!(record["adrfam"], "ipv4");
        assert_eq!(record["subtype"], "nvme subsystem");
        assert_eq!(record["trsvcid"], "4420");
        assert_eq!(record["subnqn"], "nqn.2014-08.org.example:1");
    }

    #[test]
    fn the_table_has_a_line_per_record() {
        let text = table(&log());
        assert_eq!(text.lines().count(), 2);
        assert!(
            text.contains("nvme subsystem  tcp        127.0.0.1  4420  none      nqn.2014"),
            "{text}"
        );
        let nothing = DiscoveryLog { generation: 0, records: Vec::new() };
        assert_eq!(table(&nothing), "the target offers nothing to this host\n");
    }
}
