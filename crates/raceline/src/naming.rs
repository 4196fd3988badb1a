//! Names of exports that stay the same from start to start; the host library has those of this machine as a
//! host.

use std::net::SocketAddr;

use raceline_bdev::Identity;
pub(crate) use raceline_host::naming::host;
use raceline_proto::nvme::Nqn;

use crate::cli::device::Device;

/// The prefix of NQNs made here.
const NQN_PREFIX: &str = "nqn.2026-01.io.raceline";

/// Longest part of a host's name in an NQN.
const HOST_NAME_MAX: usize = 63;

/// The NQN of an export: the same devices at the same addresses have the same name.
///
/// The addresses are part of the name because two exports of one machine may both have `ram:1G`: if their
/// names were equal, a host would take them for two paths to one disk.
pub(crate) fn subsystem_nqn(
    identity: &Identity,
    host_name: &str,
    devices: &[Device],
    listen: &[SocketAddr],
) -> Nqn {
    let mut parts: Vec<String> = devices.iter().map(device_name).collect();
    parts.extend(listen.iter().map(ToString::to_string));
    let uuid = identity.derive("subsystem", parts.join("\n").as_bytes());
    let name = format!("{NQN_PREFIX}:{}:{uuid}", name_part(host_name));
    Nqn::new(&name).expect("a short ASCII name that begins with nqn. is an NQN")
}

/// The serial number of a subsystem: 20 characters that follow from its NQN.
pub(crate) fn serial(identity: &Identity, nqn: &Nqn) -> String {
    let uuid = identity.derive("serial", nqn.as_str().as_bytes());
    let digits = uuid.simple().to_string().to_ascii_uppercase();
    format!("RL{}", &digits[..18])
}

/// The same wherever the subsystem is: two daemons that are paths to one subsystem have to agree.
pub(crate) fn shared_serial(nqn: &Nqn) -> String {
    serial(&Identity::from_seed(b"every machine"), nqn)
}

/// The name of this machine on the network.
pub(crate) fn machine_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default()
}

/// The device with its path resolved: `./disk`, `/srv/disk` and a link to it are the same device.
fn device_name(device: &Device) -> String {
    let Some(path) = device.path() else { return device.to_string() };
    let resolved = path.canonicalize().or_else(|_| std::path::absolute(path));
    format!("path:{}", resolved.unwrap_or_else(|_| path.to_owned()).display())
}

/// The host's name without characters that an NQN must not contain.
fn name_part(host_name: &str) -> String {
    let name = host_name.trim().split('.').next().unwrap_or_default();
    let safe = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = name.chars().map(safe).take(HOST_NAME_MAX).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(seed: &[u8], host: &str, devices: &[&str], listen: &[&str]) -> String {
        let devices: Vec<Device> = devices.iter().map(|text| text.parse().unwrap()).collect();
        let listen: Vec<SocketAddr> = listen.iter().map(|text| text.parse().unwrap()).collect();
        subsystem_nqn(&Identity::from_seed(seed), host, &devices, &listen).as_str().to_owned()
    }

    #[test]
    fn names_are_stable_and_differ_when_the_export_does() {
        let base = || name(b"m", "box", &["ram:1G"], &["127.0.0.1:4420"]);
        assert_eq!(base(), base());
        assert!(base().starts_with("nqn.2026-01.io.raceline:box:"), "{}", base());
        for other in [
            name(b"n", "box", &["ram:1G"], &["127.0.0.1:4420"]),
            name(b"m", "box", &["ram:2G"], &["127.0.0.1:4420"]),
            name(b"m", "box", &["ram:1G", "ram:1G"], &["127.0.0.1:4420"]),
            name(b"m", "box", &["ram:1G"], &["127.0.0.1:4421"]),
        ] {
            assert_ne!(other, base());
        }
    }

    #[test]
    fn a_file_is_known_by_where_it_is() {
        let listen = ["127.0.0.1:4420"];
        let here = std::env::current_dir().unwrap();
        let absolute = here.join("Cargo.toml");
        let one = name(b"m", "box", &["file:Cargo.toml"], &listen);
        assert_eq!(one, name(b"m", "box", &[absolute.to_str().unwrap()], &listen));
        assert_eq!(one, name(b"m", "box", &["file:./src/../Cargo.toml,readonly"], &listen));
        assert_ne!(one, name(b"m", "box", &["file:build.rs"], &listen));
    }

    #[test]
    fn any_host_name_is_safe() {
        for (host, part) in [
            ("Box-1.example.org\n", "box-1"),
            ("", "localhost"),
            ("...", "localhost"),
            ("a:b c\u{e9}", "a-b-c"),
        ] {
            assert_eq!(name_part(host), part);
        }
        let long = name(b"m", &"x".repeat(300), &["ram:1G"], &[]);
        assert!(long.len() <= Nqn::MAX_LEN);
    }

    #[test]
    fn serials_have_20_characters_and_follow_the_name() {
        let identity = Identity::from_seed(b"m");
        let of = |name: &str| serial(&identity, &Nqn::new(name).unwrap());
        let one = of("nqn.2014-08.org.example:1");
        assert!(one.len() == 20 && one.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        assert_eq!(one, of("nqn.2014-08.org.example:1"));
        assert_ne!(one, of("nqn.2014-08.org.example:2"));
        let shared = |name: &str| shared_serial(&Nqn::new(name).unwrap());
        assert!(shared("nqn.2014-08.org.example:1").len() == 20);
        assert_ne!(shared("nqn.2014-08.org.example:1"), shared("nqn.2014-08.org.example:2"));
    }
}
