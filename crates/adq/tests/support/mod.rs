//! A machine made of facts: it prints them as the field's programs do, and changes them as a driver does.

#![allow(dead_code, reason = "each test uses its part")]
#![allow(clippy::unwrap_used, reason = "a fixture that is wrong ends its test")]

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use raceline_adq::facts::{Facts, Feature, Filter, Qdisc, Rule, parse};
use raceline_adq::machine::{Ended, Machine};

pub(crate) mod print;

/// The facts of a recorded or constructed device.
pub(crate) fn facts(name: &str) -> Facts {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/facts/{name}.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// What happens at the change with this number, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accident {
    /// The change is refused.
    Refuse(usize),
    /// The program dies before the change.
    DieBefore(usize),
    /// The program dies after the change.
    DieAfter(usize),
    /// The change is taken, and has no effect.
    Ignore(usize),
    /// The interface goes after the change.
    Vanish(usize),
    /// The interface gets the name lan0 after the change.
    Rename(usize),
}

/// Such a machine.
#[derive(Debug)]
pub(crate) struct Fake {
    /// What there is.
    pub(crate) facts: Facts,
    /// Other names in /sys/class/net, with numbers.
    pub(crate) others: Vec<(String, u32)>,
    /// Whether the interface is there.
    pub(crate) exists: bool,
    /// What goes wrong.
    pub(crate) accident: Option<Accident>,
    /// Changes so far.
    pub(crate) changes: usize,
    /// Effective user and capabilities.
    pub(crate) user: (u32, &'static str),
    /// The boot.
    pub(crate) boot: &'static str,
    /// Time waited.
    pub(crate) waited: Duration,
}

impl Fake {
    pub(crate) fn new(facts: Facts) -> Self {
        Self {
            facts,
            others: vec![("lo".to_owned(), 1)],
            exists: true,
            accident: None,
            changes: 0,
            user: (0, "000001ffffffffff"),
            boot: "boot-1",
            waited: Duration::ZERO,
        }
    }

    /// Counts a change, and lets the accident happen. Whether the change has an effect.
    fn begin(&mut self) -> io::Result<bool> {
        let number = self.changes;
        self.changes += 1;
        match self.accident {
            Some(Accident::Refuse(at)) if at == number => Err(io::Error::other("refused")),
            Some(Accident::DieBefore(at)) if at == number => panic!("killed"),
            Some(Accident::Ignore(at)) if at == number => Ok(false),
            _ => Ok(true),
        }
    }

    fn end(&mut self) {
        let number = self.changes - 1;
        match self.accident {
            Some(Accident::DieAfter(at)) if at == number => panic!("killed"),
            Some(Accident::Vanish(at)) if at == number => self.exists = false,
            Some(Accident::Rename(at)) if at == number => self.facts.interface = "lan0".to_owned(),
            _ => {}
        }
    }

    /// The driver builds its queues anew.
    fn rebuild(&mut self) {
        for map in &mut self.facts.xps_rxqs {
            *map = "0".to_owned();
        }
        for interrupt in &mut self.facts.interrupts {
            // New vectors have new numbers.
            interrupt.number += 100;
            interrupt.affinity = "0-7".to_owned();
        }
    }

    fn own<'a>(&self, path: &'a Path) -> Option<&'a str> {
        let folder = format!("/sys/class/net/{}/", self.facts.interface);
        path.to_str()?.strip_prefix(&folder).filter(|_| self.exists)
    }

    fn read_text(&self, path: &Path) -> Option<String> {
        if let Some(name) = self.own(path) {
            if let Some(queue) = name.strip_prefix("queues/tx-") {
                let queue: usize = queue.split('/').next()?.parse().ok()?;
                return self.facts.xps_rxqs.get(queue).cloned();
            }
            return match name {
                "ifindex" => Some(self.facts.ifindex.to_string()),
                "address" => Some(self.facts.address.clone()),
                "mtu" => Some(self.facts.mtu.to_string()),
                "device/local_cpulist" => {
                    let cpus: Vec<String> = self.facts.cpus.iter().map(u32::to_string).collect();
                    Some(cpus.join(","))
                }
                _ => None,
            };
        }
        let text = path.to_str()?;
        for (name, number) in &self.others {
            if text == format!("/sys/class/net/{name}/ifindex") {
                return Some(number.to_string());
            }
        }
        if let Some(number) = text.strip_prefix("/proc/irq/") {
            let number: u32 = number.split('/').next()?.parse().ok()?;
            let mut all = self.facts.interrupts.iter();
            return all.find(|irq| irq.number == number).map(|irq| irq.affinity.clone());
        }
        match text {
            "/proc/interrupts" => Some(print::interrupts(&self.facts)),
            "/proc/self/status" => {
                let (user, set) = self.user;
                Some(format!(
                    "Name:\traceline\nUid:\t{user}\t{user}\t{user}\t{user}\nCapEff:\t{set}\n"
                ))
            }
            "/proc/sys/kernel/random/boot_id" => Some(self.boot.to_owned()),
            "/proc/sys/kernel/osrelease" => Some(self.facts.kernel.clone()),
            "/proc/meminfo" => Some(format!("MemTotal: {} kB\n", self.facts.memory_bytes / 1024)),
            _ if text.ends_with("modules.dep") => {
                let loadable = self.facts.modules.iter().filter(|(_, state)| *state == "loadable");
                Some(loadable.map(|(name, _)| format!("kernel/net/{name}.ko.xz:\n")).collect())
            }
            _ => {
                let key = text.strip_prefix("/proc/sys/")?.replace('/', ".");
                self.facts.sysctls.get(&key).map(|sysctl| sysctl.value.replace(' ', "\t"))
            }
        }
    }

    fn write_text(&mut self, path: &Path, text: &str) -> Option<()> {
        if let Some(queue) = self.own(path)?.strip_prefix("queues/tx-") {
            let queue: usize = queue.split('/').next()?.parse().ok()?;
            *self.facts.xps_rxqs.get_mut(queue)? = parse::mask(text);
            return Some(());
        }
        None
    }

    fn write_system(&mut self, path: &Path, text: &str) -> Option<()> {
        let path = path.to_str()?;
        if let Some(number) = path.strip_prefix("/proc/irq/") {
            let number: u32 = number.split('/').next()?.parse().ok()?;
            let mut all = self.facts.interrupts.iter_mut();
            all.find(|irq| irq.number == number)?.affinity = text.to_owned();
            return Some(());
        }
        let key = path.strip_prefix("/proc/sys/")?.replace('/', ".");
        self.facts.sysctls.get_mut(&key)?.value = text.to_owned();
        Some(())
    }

    /// What a program does; a reason if it refuses.
    fn perform(&mut self, program: &str, words: &[&str]) -> Result<(), String> {
        let facts = &mut self.facts;
        let on = words.last() == Some(&"on");
        match (program, words) {
            ("systemctl", [verb, name]) => {
                let state = if *verb == "start" { "active" } else { "inactive" };
                facts.services.insert((*name).to_owned(), state.to_owned());
            }
            ("modprobe", ["-r", name]) => {
                facts.modules.insert((*name).to_owned(), "loadable".to_owned());
            }
            ("modprobe", [name]) => {
                facts.modules.insert((*name).to_owned(), "loaded".to_owned());
            }
            ("devlink", ["dev", "param", "set", _, "name", name, "value", value, ..]) => {
                facts.devlink.insert((*name).to_owned(), (*value).to_owned());
            }
            ("ethtool", ["-K", _, name, _]) => {
                let name = if *name == "ntuple" { "ntuple-filters" } else { name };
                let classes = facts.qdiscs.iter().any(|qdisc| qdisc.kind == "mqprio");
                if name == "hw-tc-offload" && classes {
                    return Err("cannot change hw-tc-offload while ADQ is active".to_owned());
                }
                facts.features.insert(name.to_owned(), Feature { on, fixed: false });
            }
            ("ethtool", ["--set-priv-flags", _, name, _]) => {
                facts.private_flags.insert((*name).to_owned(), on);
            }
            ("ethtool", ["-L", _, "combined", count]) => {
                let count: u32 = count.parse().unwrap();
                facts.channels.as_mut().unwrap().combined = count;
                let length = usize::try_from(count).unwrap();
                facts.xps_rxqs.resize(length, "0".to_owned());
                facts.interrupts.retain(|irq| irq.queue < count);
                let first = facts.interrupts.first().cloned();
                for queue in u32::try_from(facts.interrupts.len()).unwrap()..count {
                    let Some(mut new) = first.clone() else { break };
                    new.name = format!("ice-eth0-TxRx-{queue}");
                    (new.number, new.queue) = (new.number + queue, queue);
                    facts.interrupts.push(new);
                }
                self.rebuild();
            }
            ("ethtool", ["-C", _, rest @ ..]) => {
                let all = facts.coalescing.as_mut().unwrap();
                for pair in rest.chunks(2) {
                    match pair {
                        ["adaptive-rx", value] => all.adaptive_rx = Some(*value == "on"),
                        ["adaptive-tx", value] => all.adaptive_tx = Some(*value == "on"),
                        ["rx-usecs", value] => all.rx_usecs = value.parse().ok(),
                        ["tx-usecs", value] => all.tx_usecs = value.parse().ok(),
                        _ => return Err(format!("bad parameter {pair:?}")),
                    }
                }
            }
            ("ethtool", ["-X", _, rest @ ..]) => return table(facts, rest),
            ("ethtool", ["-U", _, rest @ ..]) => return rule(facts, rest),
            ("tc", _) => return self.tc(words),
            _ => return Err(format!("{program} {words:?} is not known")),
        }
        Ok(())
    }

    fn tc(&mut self, words: &[&str]) -> Result<(), String> {
        let facts = &mut self.facts;
        match words {
            ["qdisc", verb, "dev", _, rest @ ..] => match (*verb, rest) {
                ("add", ["root", "mqprio", options @ ..]) => {
                    let (handle, kind) = ("8001:".to_owned(), "mqprio".to_owned());
                    let options = options.join(" ");
                    facts.qdiscs[0] = Qdisc { kind, handle, root: true, options };
                    self.rebuild();
                }
                ("del", ["root"]) if !facts.filters.is_empty() => {
                    return Err("filters are still there".to_owned());
                }
                ("del", ["root"]) => {
                    let (handle, kind) = ("0:".to_owned(), "mq".to_owned());
                    facts.qdiscs[0] = Qdisc { kind, handle, root: true, ..Qdisc::default() };
                    self.rebuild();
                }
                ("add", ["clsact"]) => {
                    let (handle, kind) = ("ffff:".to_owned(), "clsact".to_owned());
                    facts.qdiscs.push(Qdisc { kind, handle, ..Qdisc::default() });
                }
                ("del", ["clsact"]) => {
                    facts.qdiscs.retain(|qdisc| qdisc.kind != "clsact");
                    facts.filters.clear();
                }
                _ => return Err(format!("tc {words:?}")),
            },
            ["filter", verb, ..] => {
                let after =
                    |key| words.iter().position(|word| *word == key).map(|at| words[at + 1]);
                let (pref, handle) = (after("prio").unwrap(), after("handle").unwrap().to_owned());
                let pref = pref.parse().unwrap();
                if *verb == "add" {
                    assert!(facts.qdiscs.iter().any(|qdisc| qdisc.kind == "clsact"));
                    let in_hw = facts.features["hw-tc-offload"].on;
                    facts.filters.push(Filter { pref, handle, kind: "flower".to_owned(), in_hw });
                } else {
                    facts.filters.retain(|filter| filter.handle != handle || filter.pref != pref);
                }
            }
            _ => return Err(format!("tc {words:?} is not known")),
        }
        Ok(())
    }
}

fn spread(first: u32, count: u32) -> Vec<u32> {
    (0..16).map(|at| first + at % count).collect()
}

fn table(facts: &mut Facts, words: &[&str]) -> Result<(), String> {
    match words {
        ["default"] => facts.indirection = Some(spread(0, facts.queues())),
        ["equal", count] => facts.indirection = Some(spread(0, count.parse().unwrap())),
        ["context", "new", "start", first, "equal", count] => {
            let number = (1..).find(|number| !facts.contexts.contains_key(number)).unwrap();
            let table = spread(first.parse().unwrap(), count.parse().unwrap());
            facts.contexts.insert(number, table);
        }
        ["context", number, "delete"] => {
            let number: u32 = number.parse().unwrap();
            if facts.rules.iter().flatten().any(|rule| rule.context == Some(number)) {
                return Err("Device or resource busy".to_owned());
            }
            facts.contexts.remove(&number).ok_or("no such context")?;
        }
        _ => return Err(format!("-X {words:?}")),
    }
    Ok(())
}

fn rule(facts: &mut Facts, words: &[&str]) -> Result<(), String> {
    let on = facts.features["ntuple-filters"].on;
    let rules = facts.rules.as_mut().ok_or("Operation not supported")?;
    if let ["delete", id] = words {
        let id: u32 = id.parse().unwrap();
        rules.retain(|rule| rule.id != id);
        return Ok(());
    }
    if !on {
        return Err("ntuple is off".to_owned());
    }
    let after = |key| words.iter().position(|word| *word == key).map(|at| words[at + 1]);
    rules.push(Rule {
        id: 1023 - u32::try_from(rules.len()).unwrap(),
        flow: after("flow-type").unwrap().to_owned(),
        source: after("src-ip").map(str::to_owned),
        destination: after("dst-ip").map(str::to_owned),
        source_port: after("src-port").and_then(|port| port.parse().ok()),
        destination_port: after("dst-port").and_then(|port| port.parse().ok()),
        context: after("context").and_then(|number| number.parse().ok()),
        queue: after("action").and_then(|queue| queue.parse().ok()),
    });
    Ok(())
}

impl Machine for Fake {
    fn read(&self, path: &Path) -> io::Result<String> {
        self.read_text(path).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn write(&mut self, path: &Path, text: &str) -> io::Result<()> {
        if !self.begin()? {
            return Ok(());
        }
        let done = if path.starts_with("/proc") {
            self.write_system(path, text)
        } else {
            self.write_text(path, text)
        };
        self.end();
        done.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn list(&self, path: &Path) -> Vec<String> {
        if path == Path::new("/sys/class/net") {
            let own = self.exists.then(|| self.facts.interface.clone());
            return self.others.iter().map(|(name, _)| name.clone()).chain(own).collect();
        }
        if self.own(path) == Some("device/msi_irqs") {
            return self.facts.interrupts.iter().map(|irq| irq.number.to_string()).collect();
        }
        if self.own(path) == Some("bonding") && self.facts.made_of.is_some() {
            return vec!["mode".to_owned()];
        }
        let module = path.strip_prefix("/sys/module").ok().and_then(Path::to_str);
        let loaded = module.and_then(|name| self.facts.modules.get(name));
        if loaded.is_some_and(|state| state == "loaded") {
            vec!["refcnt".to_owned()]
        } else {
            vec![]
        }
    }

    fn link(&self, path: &Path) -> Option<PathBuf> {
        match path.to_str()? {
            "/proc/self/ns/net" => Some(self.facts.network_namespace.clone().into()),
            "/proc/1/ns/net" => Some("net:[4026531840]".into()),
            _ if self.own(path) == Some("master") => {
                self.facts.master.as_ref().map(|name| PathBuf::from(format!("../{name}")))
            }
            _ => None,
        }
    }

    fn is_writable(&self, path: &Path) -> bool {
        let key = path.strip_prefix("/proc/sys").map(|path| path.display().to_string());
        let key = key.unwrap_or_default().replace('/', ".");
        self.facts.sysctls.get(&key).is_some_and(|sysctl| sysctl.writable)
    }

    fn look(&self, program: &str, arguments: &[String]) -> io::Result<Ended> {
        if self.facts.missing_programs.iter().any(|name| name == program) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let of_machine = program == "systemctl";
        let named = ["ethtool", "tc"].contains(&program) && words != ["--version"];
        let is_there = self.exists && (!named || words.contains(&self.facts.interface.as_str()));
        let facts = if is_there || of_machine { Some(&self.facts) } else { None };
        let printed = facts.and_then(|facts| print::print(facts, program, &words));
        let success = printed.is_some();
        let stderr = if success { "" } else { "Operation not supported" }.to_owned();
        Ok(Ended { success, stdout: printed.unwrap_or_default(), stderr })
    }

    fn change(&mut self, program: &str, arguments: &[String]) -> io::Result<Ended> {
        if self.facts.missing_programs.iter().any(|name| name == program) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let effect = match self.begin() {
            Ok(effect) => effect,
            Err(_) => {
                return Ok(Ended {
                    stderr: "netlink error: refused".to_owned(),
                    ..Ended::default()
                });
            }
        };
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let named = ["ethtool", "tc"].contains(&program);
        let is_there = !named || (self.exists && words.contains(&self.facts.interface.as_str()));
        let done = match (is_there, effect) {
            (false, _) => Err("No such device".to_owned()),
            (true, true) => self.perform(program, &words),
            (true, false) => Ok(()),
        };
        self.end();
        let stderr = done.as_ref().err().cloned().unwrap_or_default();
        Ok(Ended { success: done.is_ok(), stdout: String::new(), stderr })
    }

    fn pause(&mut self, time: Duration) {
        self.waited += time;
    }
}
