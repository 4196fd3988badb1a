//! What a controller's name stands for: a connection to a remote controller, or a local drive.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use raceline_bdev::{Bdev as _, Identity, IoPath, SharedBdev};
use raceline_host::{
    HostConfig, Policy, RemoteController, RemoteCounts, RemotePath, RemoteState, Transport,
};
use raceline_proto::host::ControllerInfo;
use raceline_proto::nvme::NamespaceId;
use raceline_proto::nvme::ana::AnaState;
use raceline_proto::nvme::identify::CMIC_MULTI_CONTROLLER;
use raceline_proto::nvme::log::lid;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::drive::LocalDrive;

/// Bits of OACS, as SPDK names them (Base 2.0, figure 276).
const ADMIN_COMMANDS: [(&str, u16); 4] =
    [("security", 1 << 0), ("format", 1 << 1), ("firmware", 1 << 2), ("ns_manage", 1 << 3)];

/// The health log as controllers send it.
const HEALTH_BYTES: u32 = 512;

/// How a controller is reached.
pub enum Link {
    /// NVMe/TCP.
    Remote(RemoteController),
    /// A local drive, which the kernel drives.
    Drive(Box<LocalDrive>),
}

/// A namespace that exists now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Present {
    /// NSID.
    pub nsid: u32,
    /// Changes when the namespace is another one under the same number.
    pub instance: u64,
    /// A drive that is formatted has the same namespace with another block size. 0 for a remote namespace,
    /// because its host checks that itself.
    pub block_size: u32,
}

impl Link {
    /// SPDK's word for its state.
    #[must_use]
    pub fn state(&self) -> &'static str {
        match self {
            Self::Remote(remote) => state_name(&remote.state()),
            Self::Drive(drive) => drive.state(),
        }
    }

    /// What it has done, how many paths it has, and how many of these are up; `None` for a local drive.
    #[must_use]
    pub fn counts(&self) -> Option<(RemoteCounts, usize, usize)> {
        let Self::Remote(remote) = self else { return None };
        let paths = remote.paths();
        let up = paths.iter().filter(|path| matches!(path.state, RemoteState::Up)).count();
        Some((remote.counts(), paths.len(), up))
    }

    /// Its transport identifier as SPDK shows it.
    #[must_use]
    pub fn trid(&self) -> Value {
        match self {
            Self::Remote(remote) => trid_of(remote.config()),
            Self::Drive(drive) => {
                json!({ "trtype": "PCIe", "traddr": drive.address().to_string() })
            }
        }
    }

    /// The local address of its connections, if one was named.
    #[must_use]
    pub fn source(&self) -> Option<IpAddr> {
        match self {
            Self::Remote(remote) => remote.config().source,
            Self::Drive(_) => None,
        }
    }

    /// CNTLID.
    #[must_use]
    pub fn cntlid(&self) -> u16 {
        match self {
            Self::Remote(remote) => remote.controller().cntlid.0,
            Self::Drive(drive) => drive.drive().map_or(0, |drive| drive.cntlid),
        }
    }

    /// Whether one of its paths leads to this controller.
    #[must_use]
    pub fn has_cntlid(&self, cntlid: u16) -> bool {
        match self {
            Self::Remote(remote) => remote
                .paths()
                .iter()
                .any(|path| path.association.as_ref().is_some_and(|up| up.cntlid.0 == cntlid)),
            Self::Drive(_) => self.cntlid() == cntlid,
        }
    }

    /// Its Identify data; `None` if this process may not ask the drive.
    #[must_use]
    pub fn info(&self) -> Option<Arc<ControllerInfo>> {
        match self {
            Self::Remote(remote) => Some(remote.controller()),
            Self::Drive(drive) => drive.info(),
        }
    }

    /// Its namespaces; `None` while they cannot be known, and all devices stay as they are.
    #[must_use]
    pub fn namespaces(&self) -> Option<Vec<Present>> {
        match self {
            Self::Remote(remote) => match remote.state() {
                RemoteState::Up => {
                    let there =
                        |nsid: NamespaceId| Present { nsid: nsid.0, instance: 0, block_size: 0 };
                    Some(remote.namespaces().iter().map(|info| there(info.nsid)).collect())
                }
                RemoteState::Reconnecting => None,
                RemoteState::Failed(_) => Some(Vec::new()),
            },
            // Its disks outlive a reset, so they stay.
            Self::Drive(drive) if drive.state() == "resetting" => None,
            Self::Drive(drive) => {
                let namespaces = drive.drive().map_or_else(|_| Vec::new(), |it| it.namespaces);
                // The kernel offers no data path to a namespace without a block device.
                let usable = namespaces.into_iter().filter(|namespace| namespace.block.is_some());
                let present = |it: raceline_bdev::DriveNamespace| Present {
                    nsid: it.nsid,
                    instance: it.instance,
                    block_size: it.block_size,
                };
                Some(usable.map(present).collect())
            }
        }
    }

    /// Opens a namespace as a device, with its identity.
    ///
    /// # Errors
    /// When it is absent, in use, or cannot be used.
    pub fn open(&self, nsid: u32, identity: &Identity) -> Result<(SharedBdev, Uuid), OpenFailure> {
        match self {
            Self::Remote(remote) => {
                let namespace = remote.namespace(NamespaceId(nsid));
                let namespace =
                    namespace.map_err(|error| OpenFailure::Remote(error.to_string()))?;
                let uuid = match Uuid::from_bytes(namespace.info().uuid) {
                    uuid if uuid.is_nil() => {
                        let place = format!("{} {nsid}", remote.config().subnqn);
                        identity.derive("remote namespace", place.as_bytes())
                    }
                    uuid => uuid,
                };
                Ok((Arc::new(namespace), uuid))
            }
            Self::Drive(drive) => {
                let device = drive.open(nsid, identity).map_err(OpenFailure::Drive)?;
                let uuid = Uuid::from_bytes(device.info().uuid);
                Ok((device, uuid))
            }
        }
    }

    /// Waits until something has changed since `version`, 0 at first, or for `timeout`; gives the value of
    /// `version` for the next call.
    #[must_use]
    pub fn wait_change(&self, version: u64, timeout: Duration) -> u64 {
        match self {
            Self::Remote(remote) => remote.wait_change(version, timeout),
            Self::Drive(drive) => drive.wait_change(timeout),
        }
    }

    /// The SMART log.
    ///
    /// # Errors
    /// Why the log cannot be read.
    pub fn health(&self) -> Result<Vec<u8>, String> {
        match self {
            Self::Remote(remote) => {
                let page = remote.get_log(lid::SMART, NamespaceId::BROADCAST, HEALTH_BYTES);
                page.map_err(|error| error.to_string())
            }
            Self::Drive(drive) => drive.health().map_err(|error| error.to_string()),
        }
    }

    /// Ends the link.
    pub fn end(&self) {
        match self {
            Self::Remote(remote) => remote.disconnect(),
            Self::Drive(drive) => drive.end(),
        }
    }

    /// A namespace as SPDK describes it, one of the paths to a device.
    #[must_use]
    pub fn describe(&self, nsid: u32) -> Value {
        let mut text = Map::new();
        let info = self.info();
        let mut put = |name: &str, value: Value| drop(text.insert(name.to_owned(), value));
        if let Self::Drive(drive) = self {
            put("pci_address", drive.address().to_string().into());
            let found = drive.drive().ok();
            let namespace = found
                .as_ref()
                .and_then(|it| it.namespaces.iter().find(|namespace| namespace.nsid == nsid));
            put("device", namespace.and_then(|it| drive.path(it)).into());
            let io_path = match drive.io_path() {
                IoPath::Block => "block",
                IoPath::Passthrough => "passthrough",
            };
            put("io_path", io_path.into());
        }
        put("trid", self.trid());
        put("ctrlr_data", self.controller_data());
        if let Some(info) = &info {
            put("vs", json!({ "nvme_version": version(info.version) }));
        }
        put("ns_data", json!({ "id": nsid }));
        text.into()
    }

    /// The controller as SPDK describes it.
    #[must_use]
    pub fn controller_data(&self) -> Value {
        match (self, self.info()) {
            (_, Some(info)) => controller_data(&info),
            (Self::Drive(drive), None) => match drive.drive() {
                // The data that the kernel shows to every user.
                Ok(drive) => json!({
                    "cntlid": drive.cntlid,
                    "vendor_id": format!("0x{:04x}", drive.vendor),
                    "model_number": drive.model,
                    "serial_number": drive.serial,
                    "firmware_revision": drive.firmware,
                    "subnqn": drive.subnqn,
                }),
                Err(_) => json!({ "serial_number": drive.serial() }),
            },
            (Self::Remote(_), None) => Value::Null,
        }
    }
}

/// A controller as SPDK describes it.
fn controller_data(info: &ControllerInfo) -> Value {
    let has = |bit: u16| u8::from(info.raw.oacs.get() & bit != 0);
    let commands = ADMIN_COMMANDS.iter().map(|(name, bit)| (*name, has(*bit)));
    json!({
        "cntlid": info.cntlid.0,
        "vendor_id": format!("0x{:04x}", info.raw.vid.get()),
        "model_number": info.model,
        "serial_number": info.serial,
        "firmware_revision": info.firmware,
        "subnqn": info.subnqn.as_ref().map(|nqn| nqn.as_str()),
        "oacs": commands.collect::<std::collections::BTreeMap<_, _>>(),
        "multi_ctrlr": info.raw.cmic & CMIC_MULTI_CONTROLLER != 0,
        "ana_reporting": info.reports_ana(),
    })
}

/// A namespace by one path, as SPDK describes it. While the path is lost, `last` says what the controller is: what all
/// controllers of the subsystem have in common.
#[must_use]
pub fn describe_path(path: &RemotePath, nsid: u32, last: &ControllerInfo) -> Value {
    let mut text = json!({ "trid": trid_of(&path.config) });
    let mut namespace = json!({ "id": nsid });
    if let Some(association) = &path.association {
        text["ctrlr_data"] = controller_data(&association.controller);
        text["vs"] = json!({ "nvme_version": version(association.controller.version) });
        let shared = association.namespaces.iter().any(|it| it.nsid.0 == nsid && it.shared);
        namespace["can_share"] = shared.into();
        let state = association.ana.as_ref().and_then(|ana| ana.state(NamespaceId(nsid)));
        if let Some(state) = state {
            namespace["ana_state"] = ana_name(state).into();
        }
    } else {
        text["ctrlr_data"] = json!({
            "model_number": last.model,
            "serial_number": last.serial,
            "firmware_revision": last.firmware,
            "subnqn": last.subnqn.as_ref().map(|nqn| nqn.as_str()),
        });
    }
    text["ns_data"] = namespace;
    text
}

fn ana_name(state: AnaState) -> &'static str {
    match state {
        AnaState::Optimized => "optimized",
        AnaState::NonOptimized => "non_optimized",
        AnaState::Inaccessible => "inaccessible",
        AnaState::PersistentLoss => "persistent_loss",
        AnaState::Change => "change",
    }
}

/// SPDK's words for a policy: the policy, and how an active path is selected.
#[must_use]
pub fn policy_names(policy: Policy) -> (&'static str, Option<&'static str>) {
    match policy {
        Policy::ActivePassive => ("active_passive", None),
        Policy::RoundRobin { .. } => ("active_active", Some("round_robin")),
        Policy::QueueDepth => ("active_active", Some("queue_depth")),
        // No call sets it: SPDK has no word for it.
        Policy::Numa => ("active_passive", None),
    }
}

/// SPDK's word for the state of a remote controller.
#[must_use]
pub fn state_name(state: &RemoteState) -> &'static str {
    match state {
        RemoteState::Up => "enabled",
        RemoteState::Reconnecting => "resetting",
        RemoteState::Failed(_) => "failed",
    }
}

/// The transport identifier of a path as SPDK shows it.
#[must_use]
pub fn trid_of(config: &HostConfig) -> Value {
    json!({
        "trtype": match config.transport {
            Transport::Tcp => "TCP",
            Transport::Rdma => "RDMA",
        },
        "adrfam": if config.address.is_ipv4() { "IPv4" } else { "IPv6" },
        "traddr": config.address.ip().to_string(),
        "trsvcid": config.address.port().to_string(),
        "subnqn": config.subnqn.as_str(),
    })
}

/// Why a namespace cannot be opened.
pub enum OpenFailure {
    /// A namespace of a remote controller: it may become usable later, or never.
    Remote(String),
    /// A namespace of a drive.
    Drive(raceline_bdev::DriveError),
}

impl std::fmt::Display for OpenFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Remote(error) => f.write_str(error),
            Self::Drive(error) => error.fmt(f),
        }
    }
}

/// VER as usually written: the third number only if it is not 0.
fn version(ver: u32) -> String {
    let (major, minor, tertiary) = (ver >> 16, ver >> 8 & 0xff, ver & 0xff);
    match tertiary {
        0 => format!("{major}.{minor}"),
        tertiary => format!("{major}.{minor}.{tertiary}"),
    }
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn versions_as_people_write_them() {
        assert_eq!(version(0x0001_0400), "1.4");
        assert_eq!(version(0x0001_0201), "1.2.1");
        assert_eq!(version(0x0002_0000), "2.0");
    }
}
