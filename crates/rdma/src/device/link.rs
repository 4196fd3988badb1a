//! What carries the messages of an RDMA device: iWARP, RoCE or InfiniBand, and whether hardware is behind it.

use std::fmt;
use std::path::Path;

use super::quirks::{self, SYSFS};
use crate::verbs::Provider;

/// What carries the messages of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// TCP, by RFC 5040 and those that belong to it.
    Iwarp,
    /// InfiniBand's transport over Ethernet.
    Roce,
    /// An InfiniBand network.
    InfiniBand,
    /// InfiniBand's transport, over a network that the kernel does not tell.
    Unknown,
}

impl Carrier {
    /// Its usual name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Iwarp => "iWARP",
            Self::Roce => "RoCE",
            Self::InfiniBand => "InfiniBand",
            Self::Unknown => "RoCE or InfiniBand",
        }
    }
}

/// A device, as people know it: `RoCE (rxe0)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The device's name, as the system has it.
    pub name: String,
    /// What carries its messages.
    pub carrier: Carrier,
    /// No hardware is behind it: the kernel does an adapter's work on the CPUs of the machine.
    pub is_software: bool,
}

impl Link {
    /// The link of a device. The verbs tell iWARP; for the others, the kernel's list of devices says what their ports are.
    #[must_use]
    pub fn of(device: &dyn Provider) -> Self {
        Self::read(device.name(), device.capabilities().is_iwarp, Path::new(SYSFS))
    }

    fn read(name: &str, is_iwarp: bool, sysfs: &Path) -> Self {
        let carrier = if is_iwarp { Carrier::Iwarp } else { carrier_of_ports(&sysfs.join(name)) };
        Self { name: name.to_owned(), carrier, is_software: quirks::is_software(name, sysfs) }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.carrier.name(), self.name)
    }
}

/// What all ports of a device have in `link_layer`.
fn carrier_of_ports(device: &Path) -> Carrier {
    let Ok(ports) = std::fs::read_dir(device.join("ports")) else { return Carrier::Unknown };
    let of_port = |port: std::io::Result<std::fs::DirEntry>| {
        let layer = std::fs::read_to_string(port.ok()?.path().join("link_layer")).ok()?;
        match layer.trim() {
            "Ethernet" => Some(Carrier::Roce),
            "InfiniBand" => Some(Carrier::InfiniBand),
            _ => None,
        }
    };
    let mut found = ports.map(of_port);
    let Some(Some(first)) = found.next() else { return Carrier::Unknown };
    // A device may have a port of each kind, and its name does not say which one is in use.
    if found.all(|other| other == Some(first)) { first } else { Carrier::Unknown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_say_what_carries_a_device() {
        let sysfs = std::env::temp_dir().join(format!("raceline-link-{}", std::process::id()));
        let port = |device: &str, number: &str, layer: &str| {
            let port = sysfs.join(device).join("ports").join(number);
            std::fs::create_dir_all(&port).unwrap();
            std::fs::write(port.join("link_layer"), layer).unwrap();
        };
        port("rxe0", "1", "Ethernet\n");
        port("mlx5_0", "1", "InfiniBand\n");
        std::fs::create_dir_all(sysfs.join("mlx5_0/device")).unwrap();
        port("mixed", "1", "InfiniBand\n");
        port("mixed", "2", "Ethernet\n");
        port("strange", "1", "Unknown\n");
        let read = |name, is_iwarp| {
            let link = Link::read(name, is_iwarp, &sysfs);
            (link.to_string(), link.is_software)
        };
        let found = [
            read("rxe0", false),
            read("mlx5_0", false),
            read("mixed", false),
            read("strange", false),
            read("nowhere", false),
            read("rxe0", true),
        ];
        std::fs::remove_dir_all(&sysfs).unwrap();
        let expected = [
            ("RoCE (rxe0)", true),
            ("InfiniBand (mlx5_0)", false),
            ("RoCE or InfiniBand (mixed)", true),
            ("RoCE or InfiniBand (strange)", true),
            ("RoCE or InfiniBand (nowhere)", false),
            ("iWARP (rxe0)", true),
        ];
        assert_eq!(found, expected.map(|(text, is_software)| (text.to_owned(), is_software)));
    }
}
