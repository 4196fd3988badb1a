//! What carries NVMe/RDMA: the device that has an address of this machine, or a simulated one.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use raceline_host::blocking::Host;
use raceline_host::{HostConfig, RdmaDevices, SystemDevices, Transport};
use raceline_proto::nvme::{HostId, Nqn};
use raceline_rdma::device::Link;
use raceline_target::{RdmaConfig, RdmaStreams, TargetConfig, load_rdma_libraries};

use crate::record::StandIn;

/// Entries of the completion queue with which a device is tried.
const PROBE_ENTRIES: u32 = 16;
/// A host that asks whether a target is there.
const PROBE_HOST: &str = "nqn.2026-01.io.raceline:papers-probe";
const PROBE_ID: HostId = HostId(*b"raceline-papersq");
/// How long each step of such a connection may take.
const PROBE_LIMIT: Duration = Duration::from_secs(2);

/// Makes what carries the listener for RDMA of a target with this configuration.
type MakeStreams = dyn Fn(&TargetConfig) -> Arc<RdmaStreams> + Send + Sync;

/// What carries NVMe/RDMA.
#[derive(Clone)]
pub struct Rdma {
    pub(crate) address: IpAddr,
    pub(crate) devices: Arc<dyn RdmaDevices>,
    pub(crate) streams: Arc<MakeStreams>,
    pub(crate) link: Link,
}

impl Rdma {
    /// The device of this machine that has the address.
    fn here(address: Option<IpAddr>) -> Result<Self, String> {
        let address = address.ok_or(
            "an RDMA adapter, or rdma_rxe over a network device: name the address of its interface \
             with --rdma ADDR; nothing stands in for it",
        )?;
        let open = || {
            load_rdma_libraries().map_err(|error| error.to_string())?;
            let devices: Arc<dyn RdmaDevices> = SystemDevices::shared();
            let at = SocketAddr::new(address, 0);
            let device = devices.open(at, Some(address), PROBE_ENTRIES);
            let device = device.map_err(|error| error.to_string())?;
            Ok((devices, Link::of(&device)))
        };
        let (devices, link) =
            open().map_err(|why: String| format!("an RDMA device at {address}: {why}"))?;
        let streams = |config: &TargetConfig| Arc::new(RdmaStreams::new(RdmaConfig::of(config)));
        Ok(Self { address, devices, streams: Arc::new(streams), link })
    }

    /// The device and its address, as a record has them.
    pub(crate) fn describe(&self) -> String {
        let hardware = if self.link.is_software { ", without hardware" } else { "" };
        format!("{} at {}{hardware}", self.link, self.address)
    }

    /// What the device stands in for, where a series of the source had RDMA over `published` on an adapter; `None`: it has
    /// the same.
    pub(crate) fn stand_in(&self, published: &str, series: &str) -> Option<StandIn> {
        let link = &self.link;
        let is_other = link.carrier.name() != published;
        if !is_other && !link.is_software {
            return None;
        }
        let mut effects = Vec::new();
        if is_other {
            effects.push(format!(
                "{} carries the data, so no figure of this row is one of {published}.",
                link.carrier.name()
            ));
        }
        if link.is_software {
            effects.push(format!(
                "No hardware is behind {}: the kernel does an adapter's work on the CPUs of this machine, so no figure \
                 of this row is one of an adapter.",
                link.name
            ));
        }
        let place =
            if is_other { format!(", where the paper has {published}") } else { String::new() };
        Some(StandIn {
            of: format!("{published} by an adapter, in the series `{series}`"),
            by: format!("NVMe/RDMA over {link}{place}"),
            effect: effects.join(" "),
        })
    }

    /// The same host over this device.
    pub(crate) fn reaching(&self, host: HostConfig) -> HostConfig {
        HostConfig {
            transport: Transport::Rdma,
            source: Some(self.address),
            rdma_devices: Arc::clone(&self.devices),
            ..host
        }
    }

    /// Connects to a subsystem, and ends the connection.
    ///
    /// # Errors
    /// Why the target does not let a host in.
    pub(crate) fn try_subsystem(&self, target: SocketAddr, nqn: &Nqn) -> Result<(), String> {
        let name = Nqn::new(PROBE_HOST).expect("a constant NQN");
        let usual = HostConfig::new(target, nqn.clone(), name, PROBE_ID).within(PROBE_LIMIT);
        let host = Host::connect(self.reaching(HostConfig { kato_ms: 0, ..usual }));
        host.map(Host::disconnect).map_err(|error| error.to_string())
    }

    /// Where a listener can be. It has a number of its own, which the kernel chooses for TCP here.
    pub(crate) fn free_address(&self) -> Result<SocketAddr, String> {
        let address = self.address;
        let text = |error: std::io::Error| format!("a free port of {address}: {error}");
        let listener = TcpListener::bind((address, 0)).map_err(text)?;
        listener.local_addr().map_err(text)
    }
}

/// Where NVMe/RDMA is. Only an experiment that needs it asks.
#[derive(Clone)]
pub struct RdmaSource(Arc<dyn Fn() -> Result<Rdma, String> + Send + Sync>);

impl RdmaSource {
    /// The device of this machine that has the address; `None`: nobody has named one.
    #[must_use]
    pub fn at(address: Option<IpAddr>) -> Self {
        Self(Arc::new(move || Rdma::here(address)))
    }

    /// What a test has made.
    #[cfg(test)]
    pub(crate) fn of(rdma: Result<Rdma, String>) -> Self {
        Self(Arc::new(move || rdma.clone()))
    }

    /// What carries NVMe/RDMA.
    ///
    /// # Errors
    /// Why there is nothing.
    pub fn find(&self) -> Result<Rdma, String> {
        (self.0)()
    }
}

#[cfg(test)]
mod tests {
    use raceline_rdma::device::Carrier;

    use super::*;
    use crate::subject::fabric::with_fabric;

    #[test]
    fn a_device_stands_in_for_iwarp_unless_it_is_an_iwarp_adapter() {
        with_fabric(|rdma, _| {
            let of = |carrier, is_software| {
                let link = Link { name: "dev0".to_owned(), carrier, is_software };
                Rdma { link, ..rdma.clone() }.stand_in("iWARP", "iwarp")
            };
            assert_eq!(of(Carrier::Iwarp, false), None);
            let soft = of(Carrier::Iwarp, true).unwrap();
            assert_eq!(soft.by, "NVMe/RDMA over iWARP (dev0)");
            assert!(soft.effect.starts_with("No hardware is behind dev0"), "{soft:?}");
            let roce = of(Carrier::Roce, false).unwrap();
            assert_eq!(roce.of, "iWARP by an adapter, in the series `iwarp`");
            assert_eq!(roce.by, "NVMe/RDMA over RoCE (dev0), where the paper has iWARP");
            let effect = "RoCE carries the data, so no figure of this row is one of iWARP.";
            assert_eq!(roce.effect, effect);
            let both = of(Carrier::InfiniBand, true).unwrap().effect;
            assert!(both.contains("InfiniBand carries") && both.contains("No hardware"), "{both}");
            let unknown = of(Carrier::Unknown, false).unwrap();
            assert!(unknown.by.contains("over RoCE or InfiniBand (dev0)"), "{unknown:?}");
        });
    }
}
