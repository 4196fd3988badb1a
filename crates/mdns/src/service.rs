//! One announced discovery controller, judged record by record before anybody believes it.

use std::net::{IpAddr, SocketAddr};

use raceline_proto::nvme::Nqn;

/// The service that discovery controllers over TCP announce (TP8009), as DNS-SD spells it.
pub const SERVICE_NAME: &str = "_nvme-disc._tcp";
/// The same with its domain.
pub(crate) const SERVICE_DOMAIN: &str = "_nvme-disc._tcp.local.";
/// TXT keys: the transport, and the name of the discovery subsystem.
pub(crate) const KEY_TRANSPORT: &str = "p";
pub(crate) const KEY_NQN: &str = "nqn";
/// The transport of TCP.
pub(crate) const TRANSPORT_TCP: &str = "tcp";

/// The largest number of addresses of one service that are used.
pub const MAX_ADDRESSES: usize = 16;
/// The longest instance name in bytes: a label of DNS has 63 (RFC 6763, 4.1.1), and escapes may double it.
const MAX_INSTANCE_BYTES: usize = 128;

/// A discovery controller that announces itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// The name under which it announces itself; it keeps it over restarts and changes of its addresses.
    pub instance: String,
    /// The discovery subsystem.
    pub nqn: Nqn,
    /// Where it listens: at least one address, IPv4 before IPv6.
    pub addresses: Vec<SocketAddr>,
}

/// The records of a service as they came.
pub(crate) struct Records<'a> {
    /// The instance with the service and the domain.
    pub(crate) full_name: &'a str,
    pub(crate) port: u16,
    pub(crate) addresses: Vec<IpAddr>,
    /// The values of `p` and `nqn`.
    pub(crate) transport: Option<&'a [u8]>,
    pub(crate) nqn: Option<&'a [u8]>,
}

/// Why an announced service is not used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("its instance name is empty, too long, or has control characters")]
    Name,
    #[error("its TXT record has no p=tcp")]
    Transport,
    #[error("its TXT record names no NQN that is valid")]
    Nqn,
    #[error("its port is 0")]
    Port,
    #[error("none of its addresses can be connected to from another machine")]
    Address,
}

/// The instance of a full name; `None` if it is none that can be used.
pub(crate) fn instance_of(full_name: &str) -> Option<&str> {
    let length = full_name.len().checked_sub(SERVICE_DOMAIN.len())?;
    let (instance, domain) = full_name.split_at_checked(length)?;
    let instance = instance.strip_suffix('.')?;
    let is_fine = !instance.is_empty()
        && instance.len() <= MAX_INSTANCE_BYTES
        && !instance.chars().any(char::is_control);
    (is_fine && domain.eq_ignore_ascii_case(SERVICE_DOMAIN)).then_some(instance)
}

impl Records<'_> {
    /// The service that they describe.
    pub(crate) fn service(self) -> Result<Service, Unusable> {
        let instance = instance_of(self.full_name).ok_or(Unusable::Name)?.to_owned();
        let transport = self.transport.ok_or(Unusable::Transport)?;
        if !transport.eq_ignore_ascii_case(TRANSPORT_TCP.as_bytes()) {
            return Err(Unusable::Transport);
        }
        // Without a name it is the well-known one.
        let nqn = match self.nqn {
            None => Nqn::discovery(),
            Some(bytes) => {
                let text = std::str::from_utf8(bytes).map_err(|_| Unusable::Nqn)?;
                // It is shown on terminals.
                if text.chars().any(char::is_control) {
                    return Err(Unusable::Nqn);
                }
                Nqn::new(text).map_err(|_| Unusable::Nqn)?
            }
        };
        if self.port == 0 {
            return Err(Unusable::Port);
        }
        let mut ips: Vec<IpAddr> = self.addresses.into_iter().filter(can_be_connected_to).collect();
        ips.sort_unstable();
        ips.dedup();
        ips.truncate(MAX_ADDRESSES);
        if ips.is_empty() {
            return Err(Unusable::Address);
        }
        let addresses = ips.into_iter().map(|ip| SocketAddr::new(ip, self.port)).collect();
        Ok(Service { instance, nqn, addresses })
    }
}

/// Whether an address that the network names may be connected to: one of this machine itself would let others choose
/// which of its services get our bytes, and a link-local one of IPv6 says nothing without its link.
fn can_be_connected_to(ip: &IpAddr) -> bool {
    let ip = ip.to_canonical();
    let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !(ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || is_link_local || is_broadcast)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;

    const FULL: &str = "shelf 1._nvme-disc._tcp.local.";

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn records<'a>() -> Records<'a> {
        let addresses = vec![ip("2001:db8::1"), ip("192.0.2.1"), ip("192.0.2.1")];
        Records { full_name: FULL, port: 8009, addresses, transport: Some(b"tcp"), nqn: None }
    }

    #[test]
    fn records_that_are_right_make_a_service() {
        let service = records().service().unwrap();
        assert_eq!(service.instance, "shelf 1");
        assert!(service.nqn.is_discovery());
        let addresses = ["192.0.2.1:8009", "[2001:db8::1]:8009"].map(|it| it.parse().unwrap());
        assert_eq!(service.addresses, addresses);
        let nqn = "nqn.2014-08.org.example:discovery";
        let named = Records { nqn: Some(nqn.as_bytes()), transport: Some(b"TCP"), ..records() };
        assert_eq!(named.service().unwrap().nqn.as_str(), nqn);
        let upper = Records { full_name: "x._NVME-disc._TCP.Local.", ..records() };
        assert_eq!(upper.service().unwrap().instance, "x");
    }

    #[test]
    fn records_that_are_wrong_make_none() {
        let long = format!("{}.{SERVICE_DOMAIN}", "a".repeat(MAX_INSTANCE_BYTES + 1));
        for full_name in [
            "",
            "x",
            ".",
            SERVICE_DOMAIN,
            "._nvme-disc._tcp.local.",
            "x_nvme-disc._tcp.local.",
            "x._http._tcp.local.",
            "a\u{1b}[2J._nvme-disc._tcp.local.",
            // The domain would begin within a character.
            "éééééééééééééééééééééé",
            &long,
        ] {
            let wrong = Records { full_name, ..records() };
            assert_eq!(wrong.service(), Err(Unusable::Name), "{full_name:?}");
        }
        for transport in [None, Some(&b""[..]), Some(b"rdma"), Some(b"tcp\0"), Some(b"\xff")] {
            let wrong = Records { transport, ..records() };
            assert_eq!(wrong.service(), Err(Unusable::Transport), "{transport:?}");
        }
        let long = format!("nqn.2014-08.org.example:{}", "x".repeat(224));
        for nqn in [&b""[..], b"\xff\xfe", b"nqn.2014-08.org.example:\x1b", long.as_bytes()] {
            let wrong = Records { nqn: Some(nqn), ..records() };
            assert_eq!(wrong.service(), Err(Unusable::Nqn), "{nqn:?}");
        }
        assert_eq!(Records { port: 0, ..records() }.service(), Err(Unusable::Port));
        let none =
            ["127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "224.0.0.251", "ff02::fb"];
        let addresses =
            none.iter().chain(&["fe80::1", "255.255.255.255"]).map(|it| ip(it)).collect();
        assert_eq!(Records { addresses, ..records() }.service(), Err(Unusable::Address));
        let addresses = Vec::new();
        assert_eq!(Records { addresses, ..records() }.service(), Err(Unusable::Address));
    }

    #[test]
    fn a_service_has_a_bounded_number_of_addresses() {
        let addresses = (0..=255).map(|last| ip(&format!("192.0.2.{last}"))).collect();
        let service = Records { addresses, ..records() }.service().unwrap();
        assert_eq!(service.addresses.len(), MAX_ADDRESSES);
    }
}
