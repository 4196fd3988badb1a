//! Facts, printed as ethtool, tc and devlink print them.

#![allow(clippy::unwrap_used, reason = "a fixture that is wrong ends its test")]

use raceline_adq::facts::{Facts, Rule};
use serde_json::{Value, json};

/// What a program prints; nothing if it fails.
pub(crate) fn print(facts: &Facts, program: &str, words: &[&str]) -> Option<String> {
    match (program, words) {
        (_, ["--version"]) => Some("1".to_owned()),
        ("ip", ["-j", "addr", "show"]) => {
            let address = json!([{ "family": "inet", "local": "192.0.2.1", "prefixlen": 24 }]);
            Some(json!([{ "ifname": facts.interface, "addr_info": address }]).to_string())
        }
        ("modinfo", _) => facts.driver_in_tree.map(|own| if own { "Y\n" } else { "\n" }.to_owned()),
        ("systemctl", ["is-active", name]) => {
            Some(facts.services.get(*name).map_or("unknown", String::as_str).to_owned())
        }
        ("ethtool", ["-i", _]) => Some(format!(
            "driver: {}\nversion: {}\nfirmware-version: \nbus-info: {}\nsupports-priv-flags: no\n",
            facts.driver,
            facts.driver_version,
            facts.bus.as_deref().unwrap_or_default().trim_start_matches("pci/")
        )),
        ("ethtool", ["-k", name]) => Some(features(facts, name)),
        ("ethtool", ["-l", _]) => channels(facts),
        ("ethtool", ["-c", _]) => coalescing(facts),
        ("ethtool", ["--show-priv-flags", name]) => {
            let flags = facts.private_flags.iter();
            let lines = flags.map(|(flag, on)| format!("{flag}: {}\n", switch(*on)));
            Some(format!("Private flags for {name}:\n{}", lines.collect::<String>()))
        }
        ("ethtool", ["-x", name]) => table(name, facts.indirection.as_deref()?),
        ("ethtool", ["-x", name, "context", number]) => {
            table(name, facts.contexts.get(&number.parse().ok()?)?)
        }
        ("ethtool", ["-n", _]) => {
            let rules = facts.rules.as_ref()?;
            let all: String = rules.iter().map(rule).collect();
            Some(format!("8 RX rings available\nTotal {} rules\n\n{all}", rules.len()))
        }
        ("tc", ["-j", "qdisc", ..]) => Some(qdiscs(facts)),
        ("tc", ["-j", "filter", ..]) => Some(filters(facts)),
        ("devlink", ["-j", "dev", "param", "show", bus]) => {
            let parameter = |(name, value): (&String, &String)| {
                let value: Value = serde_json::from_str(value).unwrap_or(json!(value));
                json!({ "name": name, "values": [{ "cmode": "runtime", "value": value }] })
            };
            let list: Vec<Value> = facts.devlink.iter().map(parameter).collect();
            Some(json!({ "param": { *bus: list } }).to_string())
        }
        _ => None,
    }
}

fn switch(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn features(facts: &Facts, name: &str) -> String {
    let line = |(name, feature): (&String, &raceline_adq::facts::Feature)| {
        let fixed = if feature.fixed { " [fixed]" } else { "" };
        format!("{name}: {}{fixed}\n", switch(feature.on))
    };
    format!("Features for {name}:\n{}", facts.features.iter().map(line).collect::<String>())
}

fn channels(facts: &Facts) -> Option<String> {
    let all = facts.channels?;
    let number = |n: u32| if n == 0 { "n/a".to_owned() } else { n.to_string() };
    Some(format!(
        "Channel parameters for eth0:\nPre-set maximums:\nRX:\t\t{}\nTX:\t\t{}\nOther:\t\tn/a\n\
         Combined:\t{}\nCurrent hardware settings:\nRX:\t\t{}\nTX:\t\t{}\nOther:\t\tn/a\nCombined:\t{}\n",
        number(all.rx_max),
        number(all.tx_max),
        number(all.combined_max),
        number(all.rx),
        number(all.tx),
        number(all.combined)
    ))
}

fn coalescing(facts: &Facts) -> Option<String> {
    let all = facts.coalescing?;
    let flag = |on: Option<bool>| on.map_or("n/a", switch);
    let number = |n: Option<u32>| n.map_or("n/a".to_owned(), |n| n.to_string());
    Some(format!(
        "Coalesce parameters for eth0:\nAdaptive RX: {}  TX: {}\nsample-interval: n/a\n\nrx-usecs: {}\n\
         rx-frames: 1\n\ntx-usecs: {}\n",
        flag(all.adaptive_rx),
        flag(all.adaptive_tx),
        number(all.rx_usecs),
        number(all.tx_usecs)
    ))
}

fn table(name: &str, table: &[u32]) -> Option<String> {
    let mut out = format!("RX flow hash indirection table for {name} with 8 RX ring(s):\n");
    for (at, row) in table.chunks(8).enumerate() {
        let row: Vec<String> = row.iter().map(|queue| format!("{queue:5}")).collect();
        out.push_str(&format!("{:5}: {}\n", at * 8, row.join(" ")));
    }
    Some(format!("{out}RSS hash key:\n6d:5a:56\n"))
}

fn rule(rule: &Rule) -> String {
    let (kind, any) = if rule.flow == "tcp6" { ("IPv6", "::") } else { ("IPv4", "0.0.0.0") };
    let address = |side: &str, address: &Option<String>| {
        format!("\t{side} IP addr: {} mask: x\n", address.as_deref().unwrap_or(any))
    };
    let port =
        |side: &str, port: Option<u16>| format!("\t{side} port: {} mask: x\n", port.unwrap_or(0));
    let context = rule.context.map_or(String::new(), |id| format!("\tRSS Context ID: {id}\n"));
    format!(
        "Filter: {}\n\tRule Type: TCP over {kind}\n{}{}\tTOS: 0x0 mask: 0xff\n{}{}{context}\
         \tAction: Direct to queue {}\n\n",
        rule.id,
        address("Src", &rule.source),
        address("Dest", &rule.destination),
        port("Src", rule.source_port),
        port("Dest", rule.destination_port),
        rule.queue.unwrap_or(0)
    )
}

fn qdiscs(facts: &Facts) -> String {
    let qdisc = |qdisc: &raceline_adq::facts::Qdisc| {
        let mut value = json!({ "kind": qdisc.kind, "handle": qdisc.handle, "options": {} });
        if qdisc.root {
            value["root"] = true.into();
        }
        if qdisc.kind == "mqprio" {
            value["options"] = mqprio(&qdisc.options);
        }
        value
    };
    Value::Array(facts.qdiscs.iter().map(qdisc).collect()).to_string()
}

/// `num_tc 2 map 0 1 queues 2@0 4@2 hw 1 mode channel` as the kernel keeps it.
fn mqprio(options: &str) -> Value {
    let words: Vec<&str> = options.split_whitespace().collect();
    let between = |from: &str, to: &str| {
        let at = |key: &str| words.iter().position(|word| *word == key).unwrap();
        words[at(from) + 1..at(to)].to_vec()
    };
    let mut map: Vec<u64> = between("map", "queues").iter().map(|n| n.parse().unwrap()).collect();
    map.resize(16, 0);
    let queues: Vec<[u64; 2]> = between("queues", "hw")
        .iter()
        .map(|pair| {
            let (count, first) = pair.split_once('@').unwrap();
            let (count, first): (u64, u64) = (count.parse().unwrap(), first.parse().unwrap());
            [first, first + count - 1]
        })
        .collect();
    json!({ "tc": map.iter().max().unwrap() + 1, "map": map, "queues": queues, "mode": "channel",
            "shaper": "dcb" })
}

fn filters(facts: &Facts) -> String {
    let filter = |filter: &raceline_adq::facts::Filter| {
        let handle = u64::from_str_radix(filter.handle.trim_start_matches("0x"), 16).unwrap();
        let (kind, pref) = (&filter.kind, filter.pref);
        [
            json!({ "protocol": "ip", "pref": pref, "kind": kind, "chain": 0 }),
            json!({ "protocol": "ip", "pref": pref, "kind": kind, "chain": 0,
                    "options": { "handle": handle, "keys": {}, "in_hw": filter.in_hw } }),
        ]
    };
    Value::Array(facts.filters.iter().flat_map(filter).collect()).to_string()
}

/// /proc/interrupts.
pub(crate) fn interrupts(facts: &Facts) -> String {
    let mut out = "           CPU0       CPU1\n".to_owned();
    for irq in &facts.interrupts {
        out.push_str(&format!(
            "{:4}:  7  0  PCI-MSIX-0000:01:00.0  1-edge  {}\n",
            irq.number, irq.name
        ));
    }
    out
}
