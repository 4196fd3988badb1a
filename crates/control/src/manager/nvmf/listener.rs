//! Addresses as SPDK writes them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use raceline_proto::controller::Transport;
use raceline_target::ListenerAt;
use serde::{Deserialize, Serialize};

use crate::manager::ManagerError;

/// Where to listen, in canonical form: alternative spellings give the same value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ListenAddress {
    /// `TCP`, or `RDMA` for a listener.
    pub trtype: String,
    /// `IPv4` or `IPv6`.
    pub adrfam: String,
    /// The IP address.
    pub traddr: String,
    /// The port.
    pub trsvcid: String,
}

/// The transport type of NVMe/RDMA.
pub(crate) const RDMA: &str = "RDMA";
/// What stands before an address for RDMA.
pub(crate) const RDMA_SCHEME: &str = "rdma://";

impl ListenAddress {
    /// [`Self::parse`] for a listener, which may be one for RDMA.
    ///
    /// # Errors
    /// When a part is not valid; the error names it.
    pub fn parse_listener(
        trtype: &str,
        adrfam: Option<&str>,
        traddr: &str,
        trsvcid: Option<&str>,
    ) -> Result<Self, ManagerError> {
        if !trtype.eq_ignore_ascii_case(RDMA) {
            return Self::parse(trtype, adrfam, traddr, trsvcid);
        }
        let address = Self::parse("TCP", adrfam, traddr, trsvcid)?;
        Ok(Self { trtype: RDMA.to_owned(), ..address })
    }

    /// Whether it is one for RDMA.
    #[must_use]
    pub fn is_rdma(&self) -> bool {
        self.trtype == RDMA
    }

    /// An address from its parts, as clients spell them.
    ///
    /// # Errors
    /// When a part is not valid for TCP; the error names it.
    pub fn parse(
        trtype: &str,
        adrfam: Option<&str>,
        traddr: &str,
        trsvcid: Option<&str>,
    ) -> Result<Self, ManagerError> {
        let invalid = |text: String| ManagerError::Invalid(text);
        if !trtype.eq_ignore_ascii_case("tcp") {
            return Err(invalid(format!("trtype {} is not supported: use TCP", quoted(trtype))));
        }
        let ip: IpAddr = traddr.parse().map_err(|_| {
            invalid(format!("traddr {} is not an IPv4 or IPv6 address", quoted(traddr)))
        })?;
        let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
        if let Some(adrfam) = adrfam
            && !adrfam.eq_ignore_ascii_case(family)
        {
            let adrfam = quoted(adrfam);
            return Err(invalid(format!("traddr {traddr} is {family}, and adrfam is {adrfam}")));
        }
        let text = trsvcid.unwrap_or("");
        let port = text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
        let port: u16 =
            port.ok_or_else(|| invalid(format!("trsvcid {} is not a port", quoted(text))))?;
        Ok(Self::from(SocketAddr::new(ip, port)))
    }

    /// Where the target has this listener.
    ///
    /// # Errors
    /// Never for a value that [`ListenAddress::parse`] made.
    pub fn place(&self) -> Result<ListenerAt, ManagerError> {
        let transport = if self.is_rdma() { Transport::Rdma } else { Transport::Tcp };
        Ok((transport, self.socket()?).into())
    }

    /// The address to bind.
    ///
    /// # Errors
    /// Never for a value that [`ListenAddress::parse`] made.
    pub fn socket(&self) -> Result<SocketAddr, ManagerError> {
        let parsed = self.traddr.parse().ok().zip(self.trsvcid.parse().ok());
        let (ip, port): (IpAddr, u16) =
            parsed.ok_or_else(|| ManagerError::Invalid(format!("{self} is no address")))?;
        Ok(SocketAddr::new(ip, port))
    }
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        Self {
            trtype: "TCP".to_owned(),
            adrfam: if address.is_ipv4() { "IPv4" } else { "IPv6" }.to_owned(),
            traddr: address.ip().to_string(),
            trsvcid: address.port().to_string(),
        }
    }
}

/// As the command line spells it: an address for RDMA is another one than the same for TCP.
impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_rdma() { RDMA_SCHEME } else { "" };
        match self.adrfam.as_str() {
            "IPv6" => write!(f, "{scheme}[{}]:{}", self.traddr, self.trsvcid),
            _ => write!(f, "{scheme}{}:{}", self.traddr, self.trsvcid),
        }
    }
}

fn quoted(text: &str) -> String {
    format!("`{}`", text.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_may_be_for_rdma() {
        let address = ListenAddress::parse_listener("rdma", None, "192.0.2.1", Some("4420"));
        let address = address.unwrap();
        assert!(address.is_rdma());
        assert_eq!(
            (&*address.trtype, address.to_string()),
            ("RDMA", "rdma://192.0.2.1:4420".to_owned())
        );
        let tcp = ListenAddress::parse_listener("tcp", None, "192.0.2.1", Some("4420")).unwrap();
        assert!(!tcp.is_rdma() && tcp != address);
        assert!(ListenAddress::parse_listener("fc", None, "192.0.2.1", Some("4420")).is_err());
    }

    #[test]
    fn spellings_of_one_address_are_equal() {
        let parse = |trtype, adrfam, traddr, trsvcid| {
            ListenAddress::parse(trtype, adrfam, traddr, trsvcid).map(|address| address.to_string())
        };
        assert_eq!(parse("tcp", None, "127.0.0.1", Some("4420")).unwrap(), "127.0.0.1:4420");
        let six = parse("TCP", Some("ipv6"), "::0:1", Some("04420")).unwrap();
        assert_eq!(six, "[::1]:4420");
        for (trtype, adrfam, traddr, trsvcid, culprit) in [
            ("rdma", None, "127.0.0.1", Some("1"), "trtype `rdma`"),
            ("tcp", Some("ipv6"), "127.0.0.1", Some("1"), "adrfam is `ipv6`"),
            ("tcp", None, "localhost", Some("1"), "traddr `localhost`"),
            ("tcp", None, "127.0.0.1", Some("+1"), "trsvcid `+1`"),
            ("tcp", None, "127.0.0.1", Some("65536"), "trsvcid `65536`"),
            ("tcp", None, "127.0.0.1", None, "trsvcid ``"),
            ("tcp\n", None, "127.0.0.1", None, "trtype `tcp\\n`"),
        ] {
            let error = parse(trtype, adrfam, traddr, trsvcid).unwrap_err().to_string();
            assert!(error.contains(culprit), "{error}");
        }
    }
}
