//! Network interfaces of this machine, by their names.

use std::net::{IpAddr, SocketAddr};

use nix::ifaddrs::getifaddrs;
use raceline_reactor::socket::Interface;

use crate::failure::Failure;

/// Whether there is such an interface.
pub(crate) fn check(interface: Interface) -> Result<(), Failure> {
    let name = interface.to_string();
    let names = names()?;
    if names.contains(&name) { Ok(()) } else { Err(unknown(&name, &names)) }
}

/// The address of an interface from which the target is reached.
pub(crate) fn address_of(interface: Interface, target: SocketAddr) -> Result<IpAddr, Failure> {
    let name = interface.to_string();
    for entry in getifaddrs().map_err(cannot_list)? {
        let Some(address) = entry.address.filter(|_| entry.interface_name == name) else {
            continue;
        };
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
        let v6 = address.as_sockaddr_in6().map(|address| IpAddr::from(address.ip()));
        if let Some(found) = v4.or(v6).filter(|found| found.is_ipv4() == target.is_ipv4()) {
            return Ok(found);
        }
    }
    let names = names()?;
    if !names.contains(&name) {
        return Err(unknown(&name, &names));
    }
    let target = target.ip();
    Err(Failure::usage(format!("--host-iface: {name} has no address of the family of {target}")))
}

fn unknown(name: &str, names: &[String]) -> Failure {
    let names = names.join(", ");
    Failure::usage(format!("--host-iface: there is no interface {name}; there are {names}"))
}

fn names() -> Result<Vec<String>, Failure> {
    let mut names: Vec<String> = Vec::new();
    for entry in getifaddrs().map_err(cannot_list)? {
        if !names.contains(&entry.interface_name) {
            names.push(entry.interface_name);
        }
    }
    Ok(names)
}

fn cannot_list(error: nix::Error) -> Failure {
    Failure::runtime(format!("cannot list interfaces: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_have_addresses_and_others_are_named() {
        let named = |name: &str| Interface::named(name).unwrap();
        check(named("lo")).unwrap();
        let target = "127.0.0.1:1".parse().unwrap();
        assert!(address_of(named("lo"), target).unwrap().is_loopback());
        for failure in [
            check(named("nothing7")).unwrap_err(),
            address_of(named("nothing7"), target).unwrap_err(),
        ] {
            let says = "there is no interface nothing7; there are ";
            assert!(failure.message.contains(says), "{}", failure.message);
            assert!(failure.message.contains("lo"), "{}", failure.message);
        }
    }
}
