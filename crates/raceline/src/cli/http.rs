//! Arguments of the HTTP server of a daemon.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// Arguments of `serve` about HTTP.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct HttpArgs {
    /// Take calls (JSON-RPC by POST) here by HTTP: PORT of this machine alone, or ADDRESS:PORT [default: off]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    #[arg(help_heading = "HTTP")]
    pub(crate) http: Option<SocketAddr>,

    /// Show metrics to Prometheus here, at /metrics; may be the address of --http [default: off]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    #[arg(help_heading = "HTTP")]
    pub(crate) metrics: Option<SocketAddr>,

    /// Show a page for browsers here, which also takes calls; may be the address of the others [default: off]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    #[arg(help_heading = "HTTP")]
    pub(crate) ui: Option<SocketAddr>,

    /// The file with the token that lets an HTTP client change things, as a bearer token or as the password of any user
    /// [default: http.token in --state-dir, which is made]
    #[arg(long, value_name = "FILE")]
    #[arg(help_heading = "HTTP")]
    pub(crate) http_token: Option<PathBuf>,

    /// The file with a token that lets an HTTP client look, for instance Prometheus on another machine
    #[arg(long, value_name = "FILE")]
    #[arg(help_heading = "HTTP")]
    pub(crate) http_read_token: Option<PathBuf>,

    /// A name by which HTTP clients call this machine, repeatable [default: its addresses, localhost, and its host name]
    #[arg(long, value_name = "NAME")]
    #[arg(help_heading = "HTTP")]
    pub(crate) http_name: Vec<String>,
}

/// An address; a port alone is one of this machine alone.
fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    if let Some(port) = text.strip_prefix("localhost:").and_then(|port| port.parse().ok()) {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    text.parse().map_err(|_| {
        "write PORT, IPV4:PORT or [IPV6]:PORT, for instance 9009, 0.0.0.0:9009 or [::1]:9009"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_of_this_machine_alone() {
        for (text, expected) in [
            ("9009", "127.0.0.1:9009"),
            ("localhost:9009", "127.0.0.1:9009"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("[::1]:80", "[::1]:80"),
        ] {
            assert_eq!(address(text).unwrap().to_string(), expected);
        }
        for text in ["", "65536", "localhost", "::1:80", "example.com:80"] {
            assert!(address(text).unwrap_err().contains("PORT"), "{text}");
        }
    }
}
