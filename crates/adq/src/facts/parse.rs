//! The output of the field's programs, read into facts. What is not understood is left out, never guessed.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Channels, Coalescing, Feature, Filter, Interrupt, Qdisc, Rule};

/// `key: value` lines.
fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key.trim(), value.trim()))
}

/// `ethtool -i`: driver, version, place on the bus.
pub fn driver(text: &str) -> (String, String, String) {
    let map: BTreeMap<&str, &str> = pairs(text).collect();
    let get = |key| map.get(key).copied().unwrap_or_default().to_owned();
    (get("driver"), get("version"), get("bus-info"))
}

/// `ethtool -k`.
pub fn features(text: &str) -> BTreeMap<String, Feature> {
    let parse = |(name, value): (&str, &str)| {
        let mut words = value.split_whitespace();
        let on = match words.next()? {
            "on" => true,
            "off" => false,
            _ => return None,
        };
        Some((name.to_owned(), Feature { on, fixed: words.any(|word| word == "[fixed]") }))
    };
    pairs(text).filter_map(parse).collect()
}

/// `ethtool --show-priv-flags`.
pub fn private_flags(text: &str) -> BTreeMap<String, bool> {
    let parse = |(name, value): (&str, &str)| match value {
        "on" => Some((name.to_owned(), true)),
        "off" => Some((name.to_owned(), false)),
        _ => None,
    };
    pairs(text).filter_map(parse).collect()
}

/// `ethtool -l`: first what is possible, then what is set.
pub fn channels(text: &str) -> Option<Channels> {
    let (most, now) = text.split_once("Current hardware settings")?;
    let number = |part: &str, key: &str| {
        pairs(part).find(|(name, _)| *name == key).and_then(|(_, n)| n.parse().ok()).unwrap_or(0)
    };
    Some(Channels {
        combined: number(now, "Combined"),
        combined_max: number(most, "Combined"),
        rx: number(now, "RX"),
        rx_max: number(most, "RX"),
        tx: number(now, "TX"),
        tx_max: number(most, "TX"),
    })
}

/// `ethtool -c`.
pub fn coalescing(text: &str) -> Coalescing {
    let map: BTreeMap<&str, &str> = pairs(text).collect();
    let number = |key| map.get(key).and_then(|value: &&str| value.parse().ok());
    let flag = |word: Option<&str>| match word {
        Some("on") => Some(true),
        Some("off") => Some(false),
        _ => None,
    };
    // "Adaptive RX: off  TX: n/a"
    let mut adaptive = map.get("Adaptive RX").copied().unwrap_or_default().split_whitespace();
    let rx = flag(adaptive.next());
    let tx = flag(adaptive.nth(1));
    Coalescing {
        adaptive_rx: rx,
        adaptive_tx: tx,
        rx_usecs: number("rx-usecs"),
        tx_usecs: number("tx-usecs"),
    }
}

/// `ethtool -x`: the queue of each entry of the table, or nothing if the driver shows none.
pub fn indirection(text: &str) -> Option<Vec<u32>> {
    let mut table = Vec::new();
    for line in text.lines() {
        let Some((at, queues)) = line.split_once(':') else { continue };
        if at.trim().parse::<usize>() != Ok(table.len()) {
            continue;
        }
        for word in queues.split_whitespace() {
            table.push(word.parse().ok()?);
        }
    }
    (!table.is_empty()).then_some(table)
}

/// `ethtool -n`: rules for TCP. Rules of other kinds are left out.
pub fn rules(text: &str) -> Vec<Rule> {
    text.split("Filter: ").skip(1).filter_map(rule).collect()
}

fn rule(text: &str) -> Option<Rule> {
    let id = text.lines().next()?.trim().parse().ok()?;
    let map: BTreeMap<&str, &str> = pairs(text).collect();
    let flow = match *map.get("Rule Type")? {
        "TCP over IPv4" => "tcp4",
        "TCP over IPv6" => "tcp6",
        _ => return None,
    };
    let value = |key| map.get(key).copied().unwrap_or_default();
    // Behind the value stands "mask: M", of which all ones mean that the field does not matter.
    let first = |key| value(key).split_whitespace().next().unwrap_or_default().to_owned();
    let address =
        |key| Some(first(key)).filter(|text| !text.is_empty() && text != "0.0.0.0" && text != "::");
    let port = |key| first(key).parse().ok().filter(|port| *port != 0);
    let queue = value("Action").strip_prefix("Direct to queue ").and_then(|n| n.parse().ok());
    let context: Option<u32> = first("RSS Context ID").parse().ok();
    Some(Rule {
        id,
        flow: flow.to_owned(),
        source: address("Src IP addr"),
        destination: address("Dest IP addr"),
        source_port: port("Src port"),
        destination_port: port("Dest port"),
        // With a table, the queue is an offset that is added to the table's entry.
        queue: queue.filter(|_| context.is_none()),
        context,
    })
}

/// `tc -j qdisc show`.
pub fn qdiscs(text: &str) -> Option<Vec<Qdisc>> {
    let parsed: Value = serde_json::from_str(text).ok()?;
    let parse = |value: &Value| Qdisc {
        kind: text_of(&value["kind"]),
        handle: text_of(&value["handle"]),
        root: value["root"] == true,
        options: if value["kind"] == "mqprio" { mqprio(&value["options"]) } else { String::new() },
    };
    Some(parsed.as_array()?.iter().map(parse).collect())
}

/// The options of mqprio in the form in which they are typed; the map without its last zeroes.
fn mqprio(options: &Value) -> String {
    let numbers = |value: &Value| -> Vec<u64> {
        value.as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
    };
    let classes = options["tc"].as_u64().unwrap_or(0);
    let mut map = numbers(&options["map"]);
    while map.len() > 1 && map.last() == Some(&0) {
        map.pop();
    }
    let map: Vec<String> = map.iter().map(u64::to_string).collect();
    let queues: Vec<String> = options["queues"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|pair| match numbers(pair)[..] {
            [first, last] if last >= first => Some(format!("{}@{first}", last - first + 1)),
            _ => None,
        })
        .collect();
    let mode = match options["mode"].as_str() {
        Some(mode) => format!(" hw 1 mode {mode}"),
        None => String::new(),
    };
    format!("num_tc {classes} map {} queues {}{mode}", map.join(" "), queues.join(" "))
}

/// `tc -j filter show ... ingress`.
pub fn filters(text: &str) -> Option<Vec<Filter>> {
    let parsed: Value = serde_json::from_str(text).ok()?;
    let parse = |value: &Value| {
        let options = &value["options"];
        let handle = match &options["handle"] {
            Value::Number(number) => format!("{:#x}", number.as_u64()?),
            Value::String(text) => text.clone(),
            // Before the filters of a preference stands one entry for the preference.
            _ => return None,
        };
        Some(Filter {
            pref: u32::try_from(value["pref"].as_u64()?).ok()?,
            handle,
            kind: text_of(&value["kind"]),
            in_hw: options["in_hw"] == true,
        })
    };
    Some(parsed.as_array()?.iter().filter_map(parse).collect())
}

/// `devlink -j dev param show DEVICE`: the run-time value of each parameter.
pub fn devlink(text: &str) -> BTreeMap<String, String> {
    let Ok(parsed) = serde_json::from_str::<Value>(text) else { return BTreeMap::new() };
    let devices = parsed["param"].as_object().into_iter().flatten();
    let parameters = devices.flat_map(|(_, list)| list.as_array().into_iter().flatten());
    parameters
        .filter_map(|parameter| {
            let values = parameter["values"].as_array()?;
            let runtime = values.iter().find(|value| value["cmode"] == "runtime")?;
            let value = match &runtime["value"] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            Some((text_of(&parameter["name"]), value))
        })
        .collect()
}

/// The interrupts of /proc/interrupts with these numbers whose names end in the number of a queue.
pub fn interrupts(text: &str, numbers: &[u32]) -> Vec<Interrupt> {
    let parse = |line: &str| {
        let (number, rest) = line.split_once(':')?;
        let number = number.trim().parse().ok().filter(|number| numbers.contains(number))?;
        let name = rest.split_whitespace().last()?.to_owned();
        let queue = queue_in(&name)?;
        let lower = name.to_lowercase();
        let sends_only = lower.contains("output")
            || (lower.contains("tx") && !lower.contains("txrx") && !lower.contains("tx-rx"));
        Some(Interrupt { number, name, queue, sends_only, affinity: String::new() })
    };
    text.lines().filter_map(parse).collect()
}

/// The number of the queue in `ice-eth0-TxRx-3`, `mlx5_comp3@pci:0000:01:00.0` or `virtio0-input.3`.
fn queue_in(name: &str) -> Option<u32> {
    let lower = name.to_lowercase();
    let queue_like = ["txrx", "tx-rx", "comp", "input", "output", "-rx-", "-tx-", "queue"];
    if !queue_like.iter().any(|word| lower.contains(word)) {
        return None;
    }
    let name = name.split('@').next()?;
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    name[name.len() - digits..].parse().ok()
}

/// A list of CPUs such as `0,2-4`.
pub fn cpu_list(text: &str) -> Vec<u32> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
            cpus.extend(first..=last.min(first.saturating_add(4095)));
        }
    }
    cpus
}

/// A mask without commas and leading zeroes, so that two ways of writing it are equal.
pub fn mask(text: &str) -> String {
    let digits: String = text.trim().chars().filter(|c| *c != ',').collect();
    match digits.trim_start_matches('0') {
        "" => "0".to_owned(),
        rest => rest.to_lowercase(),
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ethtool_is_read() {
        let text = "Features for va:\ntx-checksumming: on\n\ttx-checksum-ipv4: off [fixed]\n\
                    ntuple-filters: off [requested on]\n";
        let found = features(text);
        assert_eq!(found["tx-checksumming"], Feature { on: true, fixed: false });
        assert_eq!(found["tx-checksum-ipv4"], Feature { on: false, fixed: true });
        assert_eq!(found["ntuple-filters"], Feature { on: false, fixed: false });
        let text = "Channel parameters for e:\nPre-set maximums:\nRX:\t\t4\nTX:\t\t4\nOther:\t\tn/a\n\
                    Combined:\tn/a\nCurrent hardware settings:\nRX:\t\t2\nTX:\t\t4\nCombined:\tn/a\n";
        let found = channels(text).unwrap();
        assert_eq!((found.rx, found.rx_max, found.tx, found.combined), (2, 4, 4, 0));
        assert_eq!(channels("netlink error: Operation not supported\n"), None);
        let text =
            "Coalesce parameters for e:\nAdaptive RX: off  TX: n/a\nrx-usecs: 50\ntx-usecs: n/a\n";
        let found = coalescing(text);
        assert_eq!((found.adaptive_rx, found.adaptive_tx), (Some(false), None));
        assert_eq!((found.rx_usecs, found.tx_usecs), (Some(50), None));
        let text = "RX flow hash indirection table for e with 4 RX ring(s):\n    0:      0     1     0     1\n\
                    \x20   4:      0     1     0     1\nRSS hash key:\n01:02:03\n";
        assert_eq!(indirection(text).unwrap(), [0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(indirection("Operation not supported\n"), None);
    }

    #[test]
    fn rules_are_read() {
        let text = "8 RX rings available\nTotal 2 rules\n\nFilter: 1023\n\tRule Type: TCP over IPv4\n\
                    \tSrc IP addr: 0.0.0.0 mask: 255.255.255.255\n\tDest IP addr: 192.0.2.1 mask: 0.0.0.0\n\
                    \tTOS: 0x0 mask: 0xff\n\tSrc port: 0 mask: 0xffff\n\tDest port: 4420 mask: 0x0\n\
                    \tRSS Context ID: 1\n\tAction: Direct to queue 0\n\nFilter: 7\n\tRule Type: TCP over IPv4\n\
                    \tSrc IP addr: 192.0.2.9 mask: 0.0.0.0\n\tSrc port: 4420 mask: 0x0\n\
                    \tAction: Direct to queue 3\n";
        let found = rules(text);
        assert_eq!((found[0].id, found[0].context, found[0].queue), (1023, Some(1), None));
        assert_eq!((found[0].source_port, found[0].destination_port), (None, Some(4420)));
        assert_eq!(found[0].destination.as_deref(), Some("192.0.2.1"));
        assert_eq!((found[1].queue, found[1].source_port), (Some(3), Some(4420)));
    }

    #[test]
    fn tc_and_devlink_are_read() {
        let text = r#"[{"kind":"mqprio","handle":"8001:","root":true,"options":{"tc":2,
            "map":[0,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0],"queues":[[0,1],[2,9]],"mode":"channel","shaper":"dcb"}},
            {"kind":"clsact","handle":"ffff:","parent":"ffff:fff1","options":{}}]"#;
        let found = qdiscs(text).unwrap();
        assert_eq!(found[0].options, "num_tc 2 map 0 1 queues 2@0 8@2 hw 1 mode channel");
        assert!(found[0].root && !found[1].root);
        let text = r#"[{"protocol":"ip","pref":1,"kind":"flower","chain":0},{"protocol":"ip","pref":1,
            "kind":"flower","chain":0,"options":{"handle":1,"keys":{"dst_port":4420},"hw_tc":1,"in_hw":true}}]"#;
        let found = filters(text).unwrap();
        assert_eq!((found.len(), found[0].handle.as_str(), found[0].in_hw), (1, "0x1", true));
        let text = r#"{"param":{"pci/0000:01:00.0":[{"name":"tc1_inline_fd","type":"driver-specific",
            "values":[{"cmode":"runtime","value":false}]}]}}"#;
        assert_eq!(devlink(text)["tc1_inline_fd"], "false");
        assert!(qdiscs("Cannot open netlink socket").is_none() && devlink("").is_empty());
    }

    #[test]
    fn interrupts_have_queues() {
        let text = " 37:   0   0 PCI-MSIX-0000:00:03.0   0-edge      virtio2-config\n\
                    \x2038:   0   9 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0\n\
                    \x2039:   2   0 PCI-MSIX-0000:00:03.0   2-edge      virtio2-output.0\n\
                    \x2040:   2   0 PCI-MSIX  4-edge  ice-eth0-TxRx-11\n 41: 1 0 x mlx5_comp3@pci:0000:01:00.0\n";
        let found = interrupts(text, &[37, 38, 39, 40, 41]);
        let seen: Vec<(u32, u32, bool)> =
            found.iter().map(|irq| (irq.number, irq.queue, irq.sends_only)).collect();
        assert_eq!(seen, [(38, 0, false), (39, 0, true), (40, 11, false), (41, 3, false)]);
        assert_eq!(cpu_list("0,2-4"), [0, 2, 3, 4]);
        assert_eq!((mask("00000000,00000004"), mask("0,00000000")), ("4".into(), "0".into()));
    }
}
