//! Which NUMA node a core belongs to, and which one the network device of a path.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;

/// The distance of a node to itself, and to another one of which no distance is known (ACPI, SLIT).
const LOCAL_DISTANCE: u32 = 10;
const REMOTE_DISTANCE: u32 = 20;

/// Where the kernel describes the machine.
const SYSFS: &str = "/sys";

/// The NUMA nodes of a machine, of its cores, and of the network devices with its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    cores: BTreeMap<usize, u32>,
    addresses: BTreeMap<IpAddr, u32>,
    /// Distances between nodes that are known, in units in which a node has 10 to itself.
    distances: BTreeMap<(u32, u32), u32>,
}

impl Topology {
    /// That of this machine. What cannot be read is left out; a sandbox may forbid to list addresses.
    #[must_use]
    pub fn of_this_machine() -> Self {
        Self::read(Path::new(SYSFS), &local_addresses())
    }

    /// That of a machine whose sysfs is in this folder and whose devices have these addresses.
    fn read(sysfs: &Path, addresses: &[(String, IpAddr)]) -> Self {
        let mut topology = Self::default();
        let nodes = fs::read_dir(sysfs.join("devices/system/node")).into_iter().flatten().flatten();
        let nodes: BTreeMap<u32, _> = nodes
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                Some((name.strip_prefix("node")?.parse().ok()?, entry.path()))
            })
            .collect();
        for (node, folder) in &nodes {
            let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
            topology.cores.extend(cores(&text("cpulist")).map(|core| (core, *node)));
            // One number for each node that is online, in their order.
            let distances = text("distance");
            let distances = distances.split_whitespace().filter_map(|word| word.parse().ok());
            let pairs = nodes.keys().map(|other| (*node, *other));
            topology.distances.extend(pairs.zip(distances));
        }
        let node_of = |device: &String| node_of_device(&sysfs.join("class/net").join(device));
        let known = addresses.iter().filter_map(|(device, ip)| Some((*ip, node_of(device)?)));
        topology.addresses.extend(known);
        topology
    }

    /// How far the network device of a path is from a core: 10 for the same node, more for others. `None` where the
    /// node of either is unknown.
    #[must_use]
    pub fn distance(&self, core: usize, path: (Option<IpAddr>, SocketAddr)) -> Option<u32> {
        if self.addresses.is_empty() {
            return None;
        }
        let near = *self.cores.get(&core)?;
        let (source, target) = path;
        let local = source.or_else(|| local_towards(target))?;
        let far = *self.addresses.get(&local.to_canonical())?;
        let unless_known = if near == far { LOCAL_DISTANCE } else { REMOTE_DISTANCE };
        Some(self.distances.get(&(near, far)).copied().unwrap_or(unless_known))
    }

    /// The distance of a path whose node is unknown: that of another node.
    #[must_use]
    pub fn unknown_distance() -> u32 {
        REMOTE_DISTANCE
    }
}

/// The core that the calling thread runs on.
pub(crate) fn current_core() -> usize {
    rustix::thread::sched_getcpu()
}

/// The devices and addresses of this machine.
fn local_addresses() -> Vec<(String, IpAddr)> {
    let found = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let address = |it: nix::ifaddrs::InterfaceAddress| {
        let address = it.address?;
        let v4 = address.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
        let v6 = || address.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip()));
        Some((it.interface_name, v4.or_else(v6)?))
    };
    found.filter_map(address).collect()
}

/// The address from which the kernel would connect. Nothing is sent.
fn local_towards(target: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = if target.is_ipv4() { ([0; 4], 0).into() } else { ([0; 16], 0).into() };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(target).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The node of a network device, or of the one below it: a VLAN or a bond has none itself.
fn node_of_device(folder: &Path) -> Option<u32> {
    let own = |folder: &Path| {
        // -1 is none.
        fs::read_to_string(folder.join("device/numa_node")).ok()?.trim().parse().ok()
    };
    own(folder).or_else(|| {
        let entries = fs::read_dir(folder).ok()?.flatten();
        let lower = entries.filter(|it| it.file_name().to_string_lossy().starts_with("lower_"));
        let mut nodes: Vec<u32> = lower.filter_map(|it| own(&it.path())).collect();
        nodes.dedup();
        // A bond over several nodes is near none.
        if let [node] = nodes[..] { Some(node) } else { None }
    })
}

/// The cores of a list such as `0-3,8`.
fn cores(list: &str) -> impl Iterator<Item = usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: usize = first.trim().parse().ok()?;
        Some(first..=last.trim().parse().ok()?)
    };
    list.trim().split(',').filter_map(range).flatten()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;

    /// Two nodes with two cores each, `eth0` on node 0, `eth1` on node 1, a VLAN over `eth1`, and a device without a node.
    fn machine() -> Topology {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("devices/system/node/node0/cpulist", "0-1\n");
        write("devices/system/node/node0/distance", "10 31\n");
        write("devices/system/node/node1/cpulist", "2,3\n");
        write("devices/system/node/node1/distance", "31 10\n");
        write("devices/system/node/possible", "0-1\n");
        write("class/net/eth0/device/numa_node", "0\n");
        write("class/net/eth1/device/numa_node", "1\n");
        write("class/net/vlan7/lower_eth1/device/numa_node", "1\n");
        write("class/net/eth2/device/numa_node", "-1\n");
        write("class/net/bond0/lower_eth0/device/numa_node", "0\n");
        write("class/net/bond0/lower_eth1/device/numa_node", "1\n");
        let addresses = [
            ("eth0", "192.0.2.1"),
            ("eth1", "198.51.100.1"),
            ("vlan7", "2001:db8::7"),
            ("eth2", "203.0.113.1"),
            ("bond0", "203.0.113.2"),
            ("lo", "127.0.0.1"),
        ];
        let addresses = addresses.map(|(name, ip)| (name.to_owned(), ip.parse().unwrap()));
        Topology::read(folder.path(), &addresses)
    }

    fn distance(topology: &Topology, core: usize, source: &str) -> Option<u32> {
        let target = "192.0.2.99:4420".parse().unwrap();
        topology.distance(core, (Some(source.parse().unwrap()), target))
    }

    #[test]
    fn the_distance_of_a_core_and_a_device() {
        let machine = machine();
        for (core, source, expected) in [
            (0, "192.0.2.1", Some(10)),
            (1, "198.51.100.1", Some(31)),
            (2, "198.51.100.1", Some(10)),
            (3, "192.0.2.1", Some(31)),
            (3, "2001:db8::7", Some(10)),
            (0, "::ffff:192.0.2.1", Some(10)),
            (0, "203.0.113.1", None),
            (0, "203.0.113.2", None),
            (0, "127.0.0.1", None),
            (4, "192.0.2.1", None),
        ] {
            assert_eq!(distance(&machine, core, source), expected, "core {core}, {source}");
        }
        let nowhere = Topology::read(Path::new("/nonexistent"), &[]);
        assert_eq!(nowhere, Topology::default());
        assert_eq!(distance(&nowhere, 0, "192.0.2.1"), None);
    }

    #[test]
    fn the_kernel_says_from_where_it_would_connect() {
        let local = local_towards("127.0.0.1:4420".parse().unwrap());
        assert_eq!(local, Some("127.0.0.1".parse().unwrap()));
        let addresses = [("eth0".to_owned(), "127.0.0.1".parse().unwrap())];
        let mut topology = Topology::read(Path::new("/nonexistent"), &addresses);
        topology.cores.insert(0, 0);
        topology.addresses.insert("127.0.0.1".parse().unwrap(), 1);
        assert_eq!(topology.distance(0, (None, "127.0.0.1:4420".parse().unwrap())), Some(20));
    }

    #[test]
    fn lists_of_cores_as_the_kernel_writes_them() {
        let list = |text: &str| cores(text).collect::<Vec<_>>();
        assert_eq!(list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(list("\n"), Vec::<usize>::new());
        assert_eq!(list("x,1-,5"), [5]);
    }
}
