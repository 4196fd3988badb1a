//! Announcing the listeners of a discovery service, and withdrawing them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use mdns_sd::{IfKind, IfPredicate, ServiceDaemon, ServiceInfo};
use raceline_proto::nvme::Nqn;

use crate::MdnsError;
use crate::service::{KEY_NQN, KEY_TRANSPORT, SERVICE_DOMAIN, TRANSPORT_TCP};

/// The longest label of DNS in bytes.
const MAX_LABEL_BYTES: usize = 63;
/// How long the end waits until the withdrawals are sent.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// Announces listeners while it exists; its end withdraws them.
pub struct Publisher {
    daemon: ServiceDaemon,
    /// The full names of what is announced.
    announced: BTreeMap<SocketAddr, String>,
}

/// Whether another machine could connect to a listener: such ones are announced.
#[must_use]
pub fn is_reachable(listener: &SocketAddr) -> bool {
    let ip = listener.ip().to_canonical();
    let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    listener.port() != 0 && !ip.is_loopback() && !is_link_local
}

/// The name under which this machine announces a listener, unless another machine has it.
#[must_use]
pub fn instance_name(listener: SocketAddr) -> String {
    label(&machine_name(), listener)
}

fn machine_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

impl Publisher {
    /// One that announces nothing yet.
    ///
    /// # Errors
    /// When the interfaces cannot be listed, or there is no thread or no socket for it.
    pub fn start() -> Result<Self, MdnsError> {
        crate::check_access()?;
        Ok(Self { daemon: ServiceDaemon::new()?, announced: BTreeMap::new() })
    }

    /// Announces those of these listeners that other machines can reach, and withdraws all others.
    ///
    /// An address that stands for all (`0.0.0.0`, `[::]`) is announced with the addresses of that family that this
    /// machine has, on the interface that has them.
    ///
    /// # Errors
    /// When the thread that announces has ended or is too busy: what is left to do is done by the next call.
    pub fn announce(&mut self, listeners: &BTreeSet<SocketAddr>) -> Result<(), MdnsError> {
        let gone: Vec<SocketAddr> =
            self.announced.keys().filter(|it| !listeners.contains(it)).copied().collect();
        for listener in gone {
            if let Some(full_name) = self.announced.get(&listener) {
                self.daemon.unregister(full_name)?;
            }
            self.announced.remove(&listener);
        }
        for listener in listeners.iter().filter(|it| is_reachable(it)) {
            if self.announced.contains_key(listener) {
                continue;
            }
            let service = service(&machine_name(), *listener)?;
            let full_name = service.get_fullname().to_owned();
            self.daemon.register(service)?;
            self.announced.insert(*listener, full_name);
        }
        Ok(())
    }

    /// The listeners that are announced.
    pub fn announced(&self) -> impl Iterator<Item = SocketAddr> {
        self.announced.keys().copied()
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if let Some(ended) = crate::shut_down(&self.daemon) {
            let _ = ended.recv_timeout(GOODBYE_TIMEOUT);
        }
    }
}

/// What is announced of a listener.
fn service(machine: &str, listener: SocketAddr) -> Result<ServiceInfo, MdnsError> {
    let label = label(machine, listener);
    let nqn = Nqn::discovery();
    let properties = [(KEY_TRANSPORT, TRANSPORT_TCP), (KEY_NQN, nqn.as_str())];
    // The host name is of this listener alone: its addresses are those that are listened on.
    let host = format!("{label}.local.");
    let ip = listener.ip();
    if !ip.is_unspecified() {
        let port = listener.port();
        return Ok(ServiceInfo::new(SERVICE_DOMAIN, &label, &host, ip, port, &properties[..])?);
    }
    let service =
        ServiceInfo::new(SERVICE_DOMAIN, &label, &host, (), listener.port(), &properties[..])?;
    let mut service = service.enable_addr_auto();
    let is_meant = move |own: IpAddr| {
        own.is_ipv4() == ip.is_ipv4() && is_reachable(&SocketAddr::new(own, listener.port()))
    };
    service.set_interfaces(vec![IfKind::Predicate(IfPredicate::new(move |it| is_meant(it.ip())))]);
    Ok(service)
}

/// A name for a listener that no other in the network has, unless two machines have one name and one address.
fn label(machine: &str, listener: SocketAddr) -> String {
    let place = match listener.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => "ipv4".to_owned(),
        IpAddr::V6(ip) if ip.is_unspecified() => "ipv6".to_owned(),
        ip => plain(&ip.to_string()),
    };
    let end = format!("-{place}-{}", listener.port());
    let begin = plain(&format!("raceline-{machine}"));
    let room = MAX_LABEL_BYTES.saturating_sub(end.len());
    format!("{}{end}", begin.get(..room).unwrap_or(&begin).trim_end_matches('-'))
}

/// Letters, digits and hyphens only.
fn plain(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    text.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;

    #[test]
    fn labels_fit_into_dns_and_differ() {
        let label =
            |machine: &str, listener: &str| super::label(machine, listener.parse().unwrap());
        assert_eq!(
            label("Shelf.example", "192.0.2.1:8009"),
            "raceline-shelf-example-192-0-2-1-8009"
        );
        assert_eq!(label("a", "0.0.0.0:8009"), "raceline-a-ipv4-8009");
        assert_eq!(label("a", "[::]:4420"), "raceline-a-ipv6-4420");
        let long = "[2001:db8:1111:2222:3333:4444:5555:6666]:65535";
        for machine in ["", "größe", &"m".repeat(64), "\u{1b}."] {
            let label = label(machine, long);
            assert!(label.len() <= MAX_LABEL_BYTES, "{label}");
            assert!(label.ends_with("-2001-db8-1111-2222-3333-4444-5555-6666-65535"), "{label}");
            assert!(label.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'-'), "{label}");
        }
    }

    #[test]
    fn what_is_announced_has_the_records_of_tp8009() {
        let service = super::service("a", "192.0.2.1:8009".parse().unwrap()).unwrap();
        assert_eq!(service.get_fullname(), "raceline-a-192-0-2-1-8009._nvme-disc._tcp.local.");
        assert_eq!(service.get_property_val_str("p"), Some("tcp"));
        assert_eq!(service.get_property_val_str("nqn"), Some(Nqn::discovery().as_str()));
        assert_eq!(service.get_port(), 8009);
        assert!(!service.is_addr_auto());
        assert!(super::service("a", "[::]:8009".parse().unwrap()).unwrap().is_addr_auto());
    }

    #[test]
    fn only_listeners_that_others_can_reach_are_announced() {
        let reachable = |text: &str| is_reachable(&text.parse().unwrap());
        for text in ["192.0.2.1:8009", "0.0.0.0:8009", "[::]:8009", "[2001:db8::1]:8009"] {
            assert!(reachable(text), "{text}");
        }
        for text in ["127.0.0.1:8009", "127.9.9.9:1", "[::1]:8009", "192.0.2.1:0", "[fe80::1]:8009"]
        {
            assert!(!reachable(text), "{text}");
        }
    }
}
