//! Arguments about several paths to one subsystem, named as in nvme-cli where nvme-cli has them.

use std::net::IpAddr;
use std::time::Duration;

use raceline_host::{Policy, Transport};

use super::perf::split_port;
use super::values;

/// Further paths, and how commands find theirs.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct PathArgs {
    /// Another path to the same subsystem, ADDR[:PORT][,SOURCE] with an address of this machine to connect from;
    /// tcp:// or rdma:// before it if it is not of the type of -t; may be repeated
    #[arg(long, value_name = "PATH", value_parser = path, help_heading = "Paths")]
    pub(crate) path: Vec<PathSpec>,

    /// Wait for a lost path rather than fail commands, even if it is the only one
    #[arg(long, help_heading = "Paths")]
    pub(crate) multipath: bool,

    /// Which path a command takes: active-passive, round-robin, queue-depth or numa [default: active-passive]
    #[arg(long, visible_alias = "iopolicy", value_name = "POLICY", help_heading = "Paths")]
    pub(crate) policy: Option<Policy>,

    /// Stay with a path that is as good as the first when the first is back
    #[arg(long, help_heading = "Paths")]
    pub(crate) no_failback: bool,

    /// Seconds after the loss of the last path after which its commands fail, -1 for --ctrl-loss-tmo
    #[arg(
        short = 'F',
        long = "fast-io-fail-tmo",
        alias = "fast_io_fail_tmo",
        value_name = "SECONDS"
    )]
    #[arg(allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..=86_400))]
    #[arg(help_heading = "Paths")]
    pub(crate) fast_io_fail_tmo: Option<i64>,

    /// Seconds between attempts to connect a lost path [default: 0.1 s, doubled up to 10 s]
    #[arg(short = 'c', long = "reconnect-delay", value_name = "TIME", help_heading = "Paths")]
    #[arg(value_parser = values::positive_time)]
    pub(crate) reconnect_delay: Option<Duration>,

    /// How long a lost controller may need to quiesce, if it does not say so itself (CQT)
    #[arg(long, value_name = "TIME", value_parser = values::time, help_heading = "Paths")]
    pub(crate) quiesce: Option<Duration>,
}

impl PathArgs {
    /// Whether any of them is about several paths.
    pub(crate) fn wants_multipath(&self) -> bool {
        self.multipath
            || !self.path.is_empty()
            || self.policy.is_some()
            || self.no_failback
            || self.fast_io_fail_tmo.is_some()
            || self.quiesce.is_some()
    }
}

/// `--path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathSpec {
    /// Its address, or its name in DNS.
    pub(crate) address: String,
    /// Its port.
    pub(crate) port: u16,
    /// The address of this machine.
    pub(crate) source: Option<IpAddr>,
    /// Its own transport.
    pub(crate) transport: Option<Transport>,
}

/// `[tcp://|rdma://]ADDR[:PORT][,SOURCE]`.
fn path(text: &str) -> Result<PathSpec, String> {
    let wrong = || "a path is written ADDR[:PORT][,SOURCE]".to_owned();
    let (transport, text) = match text.split_once("://") {
        Some((name, rest)) => (Some(values::transport(name)?), rest),
        None => (None, text),
    };
    let (place, source) = match text.split_once(',') {
        Some((place, source)) => (place, Some(source.parse().map_err(|_| wrong())?)),
        None => (text, None),
    };
    let (address, port) = split_port(place).ok_or_else(wrong)?;
    Ok(PathSpec { address: address.to_owned(), port, source, transport })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let spec = |address: &str, port, source: Option<&str>| PathSpec {
            address: address.to_owned(),
            port,
            source: source.map(|source| source.parse().unwrap()),
            transport: None,
        };
        assert_eq!(path("192.0.2.1"), Ok(spec("192.0.2.1", 4420, None)));
        let full = spec("::1", 77, Some("192.0.2.9"));
        assert_eq!(path("[::1]:77,192.0.2.9"), Ok(full));
        let rdma = PathSpec { transport: Some(Transport::Rdma), ..spec("192.0.2.1", 77, None) };
        assert_eq!(path("rdma://192.0.2.1:77"), Ok(rdma));
        assert!(path("fc://192.0.2.1").unwrap_err().contains("-t rdma"));
        for text in ["", ":4420", "a:0", "192.0.2.1,", "192.0.2.1,name"] {
            assert_eq!(path(text), Err("a path is written ADDR[:PORT][,SOURCE]".to_owned()));
        }
    }
}
