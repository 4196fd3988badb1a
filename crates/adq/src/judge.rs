//! What the devices behind a target's listeners lack for queues of their own.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

use crate::error::{Error, Result};
use crate::facts::read;
use crate::machine::{self, Machine};
use crate::plan::{Request, Way, plan};

/// One line for each thing that the devices of these listeners cannot do, or are not set up for.
///
/// # Errors
/// When the addresses of the interfaces cannot be read.
pub fn judge(machine: &dyn Machine, listeners: &[SocketAddr]) -> Result<Vec<String>> {
    let text = machine::ask(machine, "ip", "-j addr show")?;
    let interfaces = addresses(&text)?;
    let mut lines = Vec::new();
    let mut devices: BTreeMap<&str, Vec<SocketAddr>> = BTreeMap::new();
    for listener in listeners {
        if listener.ip().is_unspecified() {
            lines.push(format!(
                "{listener} stands for all addresses, and so for no device: see `raceline adq plan IFACE` \
                 for each"
            ));
        } else if listener.ip().is_loopback() {
            lines.push(format!(
                "{listener} is on the loopback, which has no receive queues: placement by queue is \
                 balanced there, and there is nothing to poll"
            ));
        } else {
            match interfaces.get(&listener.ip()) {
                None => lines.push(format!("no interface here has the address of {listener}")),
                Some(name) => devices.entry(name).or_default().push(*listener),
            }
        }
    }
    for (name, listeners) in devices {
        lines.extend(device(machine, name, listeners)?);
    }
    Ok(lines)
}

/// The interface of each address, as `ip -j addr show` has them.
fn addresses(text: &str) -> Result<BTreeMap<IpAddr, String>> {
    let wrong = |error: serde_json::Error| Error::Output {
        command: "ip -j addr show".to_owned(),
        reason: error.to_string(),
    };
    let parsed: Value = serde_json::from_str(text).map_err(wrong)?;
    let links = parsed.as_array().into_iter().flatten();
    let pairs = links.flat_map(|link| {
        let name = link["ifname"].as_str().unwrap_or_default();
        let all = link["addr_info"].as_array().into_iter().flatten();
        all.filter_map(|address| Some((address["local"].as_str()?.parse().ok()?, name.to_owned())))
    });
    Ok(pairs.collect())
}

fn device(machine: &dyn Machine, name: &str, listeners: Vec<SocketAddr>) -> Result<Vec<String>> {
    let facts = read::read(machine, name)?;
    let options: String =
        listeners.iter().map(|listener| format!(" --listener {listener}")).collect();
    let plan = plan(&facts, &Request { listeners, ..Request::default() })?;
    let driver = if facts.driver.is_empty() { "driver unknown" } else { &facts.driver };
    let lacks = match plan.way {
        Way::Channels => None,
        Way::Tables => Some("no traffic classes: a table of queues and rules take their place"),
        Way::Rules => Some("no traffic classes: a rule for each listener takes their place"),
        Way::Veth => {
            Some("no traffic classes and no interrupts: maps of send queues take their place")
        }
        Way::Hash => Some("no rules that choose queues: all packets share all queues"),
    };
    let mut lines: Vec<String> =
        lacks.map(|lacks| format!("{name} ({driver}) has {lacks}")).into_iter().collect();
    let steps = plan.to_do().count();
    if steps > 0 {
        lines.push(format!(
            "{name} ({driver}) is not set up: `raceline adq apply {name}{options}` makes {steps} steps"
        ));
    }
    Ok(lines)
}
