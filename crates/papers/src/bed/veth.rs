//! Two network namespaces, joined by a veth pair with several queues.
//!
//! The namespaces have no names, so the kernel removes them with this process, however it ends. What is sent through
//! queue n of one end arrives at queue n of the other. `link0` carries what is measured. `link1` is a second pair, whose
//! queues no connection over `link0` shares.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use raceline_environment::interface::Interface;
use raceline_environment::network::Network;
use raceline_environment::{Reading, System};

use super::Bed;
use super::link::{LinkOptions, LinkState, Shape};
use super::namespace::Namespace;
use super::netlink::Generic;
use super::program::{ProgramError, run};
use crate::record::{self, StandIn};

/// The links, with the target's and the host's address, from networks that are reserved for documentation.
const LINKS: [(&str, Ipv4Addr, Ipv4Addr); 2] = [
    ("link0", Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)),
    ("link1", Ipv4Addr::new(198, 51, 100, 1), Ipv4Addr::new(198, 51, 100, 2)),
];
/// The features behind the options.
const GRO: &str = "rx-gro";
const TSO: [&str; 5] = [
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-generic-segmentation",
];
/// Below this rate, packets of 64 KiB would leave in bursts that are longer than the queue.
const SMALL_RATE: u64 = 1_000_000_000;
/// Bytes that a token bucket lets through at once.
const BURST: &str = "256k";
/// How long a packet waits at most before it is dropped. The queue of a switch port is of that order.
const QUEUE_TIME: &str = "5ms";

/// One end of the links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Where targets listen.
    Target,
    /// Where hosts connect from.
    Host,
}

impl Side {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Target, Self::Host];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Target => "target",
            Self::Host => "host",
        }
    }
}

/// Which queues a connection uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueSet {
    /// Those of the measured link.
    Shared,
    /// Queues of its own: those of the second link.
    Own,
}

impl QueueSet {
    pub(super) fn link(self) -> (&'static str, Ipv4Addr, Ipv4Addr) {
        match self {
            Self::Shared => LINKS[0],
            Self::Own => LINKS[1],
        }
    }
}

/// Why there is no bed.
#[derive(Debug, thiserror::Error)]
pub enum VethError {
    /// The options are out of range.
    #[error("the link cannot be made so: {0}")]
    Options(String),
    /// The process may not make namespaces.
    #[error(
        "a network namespace cannot be made: {0}: run this as root, or use the loopback device \
         instead of a veth pair"
    )]
    Refused(io::Error),
    /// A step failed.
    #[error("the test bed cannot be set up: {step}: {error}")]
    Step {
        /// What was done.
        step: &'static str,
        /// Why it failed.
        error: io::Error,
    },
    /// The kernel has set the link otherwise than it was told.
    #[error("the {side} end of the link has {found}; wanted was {wanted}")]
    ReadBack {
        /// Which end.
        side: &'static str,
        /// What was asked for.
        wanted: String,
        /// What was read back.
        found: String,
    },
    /// The kernel lacks a queueing discipline.
    #[error(
        "this kernel cannot limit the link to {shape}: {why} (a rate takes sch_tbf, delay and loss take sch_netem)"
    )]
    Shape {
        /// What was asked for.
        shape: Shape,
        /// What the kernel lacks.
        why: String,
    },
}

/// The bed. It is gone when this value and all threads in it are.
#[derive(Debug)]
pub struct Veth {
    target: Namespace,
    host: Namespace,
    options: LinkOptions,
}

impl Veth {
    /// Makes the namespaces and the links, and reads back their settings.
    ///
    /// # Errors
    /// When the process may not, when a program is missing, or when the kernel lacks something.
    pub fn make(options: &LinkOptions) -> Result<Self, VethError> {
        options.check().map_err(VethError::Options)?;
        let target = Namespace::make().map_err(VethError::Refused)?;
        let host = Namespace::make().map_err(VethError::Refused)?;
        let bed = Self { target, host, options: options.clone() };
        for (link, ..) in LINKS {
            bed.add_link(link)?;
        }
        for side in Side::BOTH {
            bed.set_up(side)?;
        }
        for side in Side::BOTH {
            bed.limit(side)?;
            bed.check(side)?;
        }
        Ok(bed)
    }

    /// The settings that were asked for.
    #[must_use]
    pub fn options(&self) -> &LinkOptions {
        &self.options
    }

    /// The namespace of one side.
    #[must_use]
    pub fn namespace(&self, side: Side) -> &Namespace {
        match side {
            Side::Target => &self.target,
            Side::Host => &self.host,
        }
    }

    /// The address of one side, on the link with these queues.
    #[must_use]
    pub fn address(&self, side: Side, queues: QueueSet) -> Ipv4Addr {
        let (_, target, host) = queues.link();
        match side {
            Side::Target => target,
            Side::Host => host,
        }
    }

    /// The settings of one end of a link, as the kernel has them now.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn state(&self, side: Side, queues: QueueSet) -> io::Result<LinkState> {
        let (link, ..) = queues.link();
        self.namespace(side).run_with_sysfs(|| read_state(link))
    }

    /// Makes one side send all that goes over the measured link through these queues only (XPS), so that it arrives at
    /// the same queues of the other side.
    ///
    /// # Errors
    /// When there is no such queue, or the kernel refuses.
    pub fn send_through(&self, side: Side, queues: &[u32]) -> io::Result<()> {
        let wrong = queues.is_empty() || queues.iter().any(|&queue| queue >= self.options.queues);
        if wrong {
            let last = self.options.queues - 1;
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("queues {queues:?}: name at least one of 0 to {last}"),
            ));
        }
        let (link, ..) = QueueSet::Shared.link();
        self.namespace(side).run_with_sysfs(|| {
            let every = every_cpu()?;
            for queue in 0..self.options.queues {
                let mask = if queues.contains(&queue) { &every[..] } else { "0" };
                fs::write(xps_file(link, queue), mask)?;
            }
            Ok(())
        })
    }

    fn add_link(&self, link: &str) -> Result<(), VethError> {
        let queues = self.options.queues.to_string();
        let queues = ["numtxqueues", &queues, "numrxqueues", &queues];
        let host = self.host.path();
        let words = [
            &["link", "add", link],
            &queues[..],
            &["type", "veth", "peer", "name", link, "netns", &host],
            &queues[..],
        ]
        .concat();
        step("adding a veth pair", self.target.run(|| Ok(run("ip", &words).map(drop)?)))
    }

    /// Settings, then addresses, then up: a link that is up loses packets while its settings change.
    fn set_up(&self, side: Side) -> Result<(), VethError> {
        let options = &self.options;
        let namespace = self.namespace(side);
        step("starting the loopback device", namespace.run(|| ip(&["link", "set", "lo", "up"])))?;
        for queues in [QueueSet::Shared, QueueSet::Own] {
            let (link, ..) = queues.link();
            let address = format!("{}/24", self.address(side, queues));
            let mtu = options.mtu.to_string();
            let set = || {
                ip(&["link", "set", link, "mtu", &mtu])?;
                let mut features = vec![(GRO, options.gro)];
                features.extend(TSO.map(|name| (name, options.tso)));
                Generic::open()?.set_features(link, &features)?;
                ip(&["address", "add", &address, "dev", link])?;
                ip(&["link", "set", link, "up"])
            };
            step("setting a link", namespace.run(set))?;
        }
        Ok(())
    }

    /// Limits what one side sends over the measured link.
    fn limit(&self, side: Side) -> Result<(), VethError> {
        let shape = self.options.shape;
        if shape.is_none() {
            return Ok(());
        }
        let (link, ..) = QueueSet::Shared.link();
        let words = discipline(link, &shape);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let set = || {
            if shape.bits_per_s.is_some_and(|rate| rate < SMALL_RATE) {
                ip(&["link", "set", link, "gso_max_size", "16384"])?;
            }
            Ok(run("tc", &words))
        };
        match step("limiting a link", self.namespace(side).run(set))? {
            Ok(_) => Ok(()),
            Err(ProgramError::Refused { output, .. }) => {
                Err(VethError::Shape { shape, why: output })
            }
            Err(error) => Err(VethError::Step { step: "limiting a link", error: error.into() }),
        }
    }

    /// Compares the settings with what was asked for.
    fn check(&self, side: Side) -> Result<(), VethError> {
        let state = step("reading back a link", self.state(side, QueueSet::Shared))?;
        let LinkOptions { queues, mtu, gro, tso, .. } = self.options;
        let ids = if gro { usize::try_from(queues).unwrap_or(usize::MAX) } else { 0 };
        // Kernels before 6.8 do not list NAPI ids.
        let ids_fit = state.napi_ids.len() == ids || (gro && state.napi_ids.is_empty());
        let found = (state.rx_queues, state.tx_queues, state.mtu, state.gro, state.tso);
        if found == (queues, queues, mtu, gro, tso) && ids_fit {
            return Ok(());
        }
        let on = |on| if on { "on" } else { "off" };
        let wanted =
            format!("{queues} queues, MTU {mtu}, GRO {}, TSO {}, {ids} NAPI ids", on(gro), on(tso));
        Err(VethError::ReadBack { side: side.name(), wanted, found: state.to_string() })
    }
}

impl Bed for Veth {
    fn describe(&self) -> record::Bed {
        let LinkOptions { queues, mtu, gro, tso, shape } = self.options;
        let on = |on| if on { "on" } else { "off" };
        let ids = match self.state(Side::Target, QueueSet::Shared) {
            Ok(state) if !state.napi_ids.is_empty() => {
                format!("NAPI ids {:?} at the target", state.napi_ids)
            }
            Ok(_) => "no NAPI ids".to_owned(),
            Err(error) => format!("NAPI ids that cannot be read ({error})"),
        };
        record::Bed {
            kind: if shape.is_none() { "veth" } else { "shaped" }.to_owned(),
            description: format!(
                "Host and target run in two network namespaces, joined by a veth pair with {queues} queues: MTU {mtu}, \
                 GRO {}, TSO {}, {shape}, {ids}.",
                on(gro),
                on(tso)
            ),
        }
    }

    fn target_addr(&self) -> IpAddr {
        self.address(Side::Target, QueueSet::Shared).into()
    }

    fn stand_ins(&self) -> Vec<StandIn> {
        vec![StandIn {
            of: "NIC and link between two machines".to_owned(),
            by: format!("a veth pair with {} queues", self.options.queues),
            effect: "There are no interrupts, no DMA and no line rate. The sender's core processes what arrives, unless \
                     the receiver polls for it."
                .to_owned(),
        }]
    }

    fn network(&self) -> io::Result<(Network, Reading<Interface>)> {
        let (link, ..) = QueueSet::Shared.link();
        self.target.run_with_sysfs(|| {
            let system = System::here();
            Ok((Network::read(&system), Interface::read(&system, link)))
        })
    }

    fn enter_target(&self) -> io::Result<()> {
        self.target.enter()
    }

    fn enter_host(&self) -> io::Result<()> {
        self.host.enter()
    }
}

/// The words of `tc` that limit a link.
fn discipline(link: &str, shape: &Shape) -> Vec<String> {
    let mut words = ["qdisc", "add", "dev", link, "root"].join(" ");
    if shape.is_rate_only() {
        let rate = shape.bits_per_s.unwrap_or(0);
        words += &format!(" tbf rate {rate}bit burst {BURST} latency {QUEUE_TIME}");
    } else {
        words += " netem limit 100000";
        if let Some(delay) = shape.delay {
            words += &format!(" delay {}us", delay.as_micros());
        }
        if let Some(loss) = shape.loss_percent {
            words += &format!(" loss {loss}%");
        }
        if let Some(rate) = shape.bits_per_s {
            words += &format!(" rate {rate}bit");
        }
    }
    words.split(' ').map(str::to_owned).collect()
}

/// Reads the settings of a link, on a thread whose /sys shows it.
pub(super) fn read_state(link: &str) -> io::Result<LinkState> {
    let folder = format!("/sys/class/net/{link}");
    let mtu = fs::read_to_string(format!("{folder}/mtu"))?;
    let generic = Generic::open()?;
    let features: BTreeMap<String, bool> = generic.features(link)?;
    let on = |name: &str| features.contains_key(name);
    let mut queues = (0, 0);
    for entry in fs::read_dir(format!("{folder}/queues"))? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        queues.0 += u32::from(name.starts_with("rx-"));
        queues.1 += u32::from(name.starts_with("tx-"));
    }
    let xps = |queue| fs::read_to_string(xps_file(link, queue)).unwrap_or_default();
    let shown = run("ip", &["-o", "link", "show", link])?;
    let mut words = shown.split_whitespace();
    let qdisc = words.find(|&word| word == "qdisc").and_then(|_| words.next());
    Ok(LinkState {
        name: link.to_owned(),
        mtu: mtu.trim().parse().map_err(|_| io::Error::other(format!("an MTU of {mtu}")))?,
        rx_queues: queues.0,
        tx_queues: queues.1,
        gro: on(GRO),
        tso: on(TSO[0]),
        // Kernels before 6.8 do not list them.
        napi_ids: generic.napi_ids(link).unwrap_or_default(),
        xps_cpus: (0..queues.1).map(|queue| xps(queue).trim().to_owned()).collect(),
        qdisc: qdisc.unwrap_or("unknown").to_owned(),
    })
}

/// A mask of all CPUs, as the kernel reads it.
fn every_cpu() -> io::Result<String> {
    let possible = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = possible.trim().rsplit(['-', ',']).next().and_then(|last| last.parse().ok());
    let count: usize = last.map_or(1, |last: usize| last + 1);
    // Groups of 32 CPUs, the highest first.
    let group = |first: usize| match count - first {
        left @ 1..32 => format!("{:x}", (1_u32 << left) - 1),
        _ => "ffffffff".to_owned(),
    };
    Ok((0..count).step_by(32).rev().map(group).collect::<Vec<_>>().join(","))
}

fn xps_file(link: &str, queue: u32) -> String {
    format!("/sys/class/net/{link}/queues/tx-{queue}/xps_cpus")
}

fn ip(words: &[&str]) -> io::Result<()> {
    Ok(run("ip", words).map(drop)?)
}

fn step<T>(step: &'static str, result: io::Result<T>) -> Result<T, VethError> {
    result.map_err(|error| VethError::Step { step, error })
}

#[cfg(test)]
mod tests;
