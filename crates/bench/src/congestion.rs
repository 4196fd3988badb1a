//! The system's TCP congestion control: it decides when bytes leave, on the loopback, too (lab 0003).

use std::fmt;

/// The default for sockets of this network namespace (ip-sysctl of the kernel's documentation).
const FILE: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// The algorithm that paces its sends by the rate that it has observed, also on the loopback.
const PACES: &str = "bbr";

/// The congestion control of connections that ask for none.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(transparent)]
pub struct CongestionControl(String);

impl CongestionControl {
    /// The system's present one; `unknown` where the kernel does not tell.
    #[must_use]
    pub fn of_system() -> Self {
        let name = std::fs::read_to_string(FILE).unwrap_or_default();
        let name = name.trim();
        Self(if name.is_empty() { "unknown" } else { name }.to_owned())
    }
}

/// One line for the head of a table.
impl fmt::Display for CongestionControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TCP's congestion control: {}", self.0)?;
        if self.0 == PACES {
            f.write_str(
                " (paces what is sent, on the loopback, too; Linux's own default is cubic)",
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_has_one_and_pacing_is_said() {
        let system = CongestionControl::of_system();
        let name = std::fs::read_to_string(FILE);
        assert_eq!(system.0, name.as_deref().map_or("unknown", str::trim));
        let line = |name: &str| CongestionControl(name.to_owned()).to_string();
        assert_eq!(line("cubic"), "TCP's congestion control: cubic");
        assert!(line("bbr").contains("bbr (paces"));
    }
}
