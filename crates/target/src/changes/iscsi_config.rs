//! What a target is told about iSCSI: portal groups, initiator groups, secrets, target nodes and their LUNs.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use raceline_bdev::SharedBdev;

use crate::changes::reservation_state::ReservationPlace;
use crate::records::throttle::Throttle;

/// Commands that a session may have outstanding by default: the window between ExpCmdSN and MaxCmdSN.
pub const DEFAULT_ISCSI_QUEUE_DEPTH: u16 = 128;
/// Most commands that a session may be configured to have outstanding.
pub const MAX_ISCSI_QUEUE_DEPTH: u16 = 1024;
/// Greatest number of a LUN: what fits the peripheral device addressing of SAM-5, 4.7.7.2.
pub const MAX_LUN: u16 = 255;

/// Settings that all portals and target nodes have in common (SPDK's `iscsi_set_options`). A change concerns the logins
/// that come after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IscsiSettings {
    /// How long a connection may be silent before the target pings it (NOP-In); `None`: it never does.
    pub nop_in_interval: Option<Duration>,
    /// How long the answer to such a ping may take before the target closes the connection.
    pub nop_timeout: Duration,
    /// How long a login may take from the accept on.
    pub login_timeout: Duration,
    /// Sessions of all target nodes.
    pub max_sessions: usize,
    /// FirstBurstLength in bytes: immediate and unsolicited data of a command (RFC 7143, 13.14).
    pub first_burst_bytes: u32,
    /// MaxBurstLength in bytes: data of one R2T, or of one sequence of Data-In PDUs (RFC 7143, 13.13).
    pub max_burst_bytes: u32,
    /// MaxRecvDataSegmentLength that the target declares, in bytes (RFC 7143, 13.12).
    pub max_data_segment_bytes: u32,
    /// Data may come in the PDU of their command (ImmediateData).
    pub immediate_data: bool,
    /// Initiators have to ask before data beyond the immediate ones (InitialR2T).
    pub initial_r2t: bool,
    /// DefaultTime2Wait in seconds.
    pub time2wait_seconds: u16,
    /// DefaultTime2Retain in seconds.
    pub time2retain_seconds: u16,
    /// How discovery sessions authenticate.
    pub discovery_auth: ChapPolicy,
}

impl Default for IscsiSettings {
    fn default() -> Self {
        Self {
            nop_in_interval: Some(Duration::from_secs(30)),
            nop_timeout: Duration::from_secs(30),
            login_timeout: Duration::from_secs(15),
            max_sessions: 1024,
            first_burst_bytes: 256 << 10,
            max_burst_bytes: 1 << 20,
            max_data_segment_bytes: 256 << 10,
            immediate_data: true,
            initial_r2t: false,
            time2wait_seconds: 2,
            time2retain_seconds: 0,
            discovery_auth: ChapPolicy::default(),
        }
    }
}

impl IscsiSettings {
    /// Checks whether a target would take these settings.
    ///
    /// # Errors
    /// When a setting is outside its range.
    pub fn check(&self) -> Result<(), IscsiError> {
        match self.flaw() {
            Some((what, need)) => Err(IscsiError::Setting { what, need }),
            None => Ok(()),
        }
    }

    /// The first setting that is outside its range, and that range.
    pub(crate) fn flaw(&self) -> Option<(&'static str, &'static str)> {
        let lengths = 512..=(1 << 24) - 1;
        let checks = [
            (
                lengths.contains(&self.max_data_segment_bytes),
                "MaxRecvDataSegmentLength",
                "512 to 16777215 bytes",
            ),
            (lengths.contains(&self.max_burst_bytes), "MaxBurstLength", "512 to 16777215 bytes"),
            (
                lengths.contains(&self.first_burst_bytes)
                    && self.first_burst_bytes <= self.max_burst_bytes,
                "FirstBurstLength",
                "512 bytes to MaxBurstLength",
            ),
            (self.time2wait_seconds <= 3600, "DefaultTime2Wait", "at most 3600 seconds"),
            (self.time2retain_seconds <= 3600, "DefaultTime2Retain", "at most 3600 seconds"),
            (self.max_sessions > 0, "the number of sessions", "at least 1"),
            (!self.login_timeout.is_zero(), "the time for a login", "more than 0"),
            (!self.nop_timeout.is_zero(), "the time for the answer to a NOP-In", "more than 0"),
        ];
        checks.into_iter().find(|(is_good, ..)| !is_good).map(|(_, what, need)| (what, need))
    }
}

/// Whether initiators prove who they are with CHAP (RFC 7143, 12.1.3), and with which secrets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChapPolicy {
    /// What is demanded.
    pub demand: ChapDemand,
    /// The auth group that has the secrets; 0: there is none, so nobody can prove anything.
    pub group: u32,
}

/// What initiators have to do about CHAP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChapDemand {
    /// An initiator that offers CHAP is asked for its proof if the policy has an auth group; one that does not offer it
    /// is let in.
    #[default]
    Optional,
    /// Nobody is asked.
    Disabled,
    /// Who does not prove who it is is refused.
    Required,
    /// As [`Self::Required`], and the initiator has to ask the target for a proof as well.
    Mutual,
}

/// The secrets of one user for CHAP.
#[derive(Clone, PartialEq, Eq)]
pub struct ChapSecret {
    /// The name that the initiator gives (CHAP_N).
    pub user: String,
    /// Its secret.
    pub secret: String,
    /// Name and secret by which the target proves itself to the initiator; `None`: it cannot.
    pub mutual: Option<(String, String)>,
}

impl fmt::Debug for ChapSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mutual = self.mutual.as_ref().map(|(user, _)| user);
        f.debug_struct("ChapSecret")
            .field("user", &self.user)
            .field("mutual", &mutual)
            .finish_non_exhaustive()
    }
}

/// Addresses at which target nodes can be reached, under one target portal group tag (RFC 7143, 4.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortalGroupConfig {
    /// Its tag (TPGT).
    pub tag: u16,
    /// Where it listens.
    pub portals: Vec<SocketAddr>,
    /// Discovery does not tell its addresses.
    pub private: bool,
    /// Its portals listen only from [`Iscsi::start_portal_group`](crate::Iscsi::start_portal_group) on. An initiator that
    /// connects before its target node exists gives up for good, so nodes come first.
    pub wait: bool,
    /// How discovery sessions by its portals authenticate; `None`: as [`IscsiSettings::discovery_auth`] says.
    pub auth: Option<ChapPolicy>,
}

impl PortalGroupConfig {
    /// One that listens at once, and that discovery tells.
    #[must_use]
    pub fn new(tag: u16, portals: Vec<SocketAddr>) -> Self {
        Self { tag, portals, private: false, wait: false, auth: None }
    }
}

/// Initiators, by name and address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitiatorGroupConfig {
    /// Its tag.
    pub tag: u32,
    /// Which names belong to it. The first pattern that matches a name decides.
    pub initiators: Vec<InitiatorPattern>,
    /// From which addresses.
    pub netmasks: Vec<Netmask>,
}

impl InitiatorGroupConfig {
    /// Every initiator, from every address.
    #[must_use]
    pub fn any(tag: u32) -> Self {
        Self { tag, initiators: vec![InitiatorPattern::Any], netmasks: vec![Netmask::ANY] }
    }

    /// Checks whether a target would take this group.
    ///
    /// # Errors
    /// When a pattern has no iSCSI name.
    pub fn check(&self) -> Result<(), IscsiError> {
        self.initiators.iter().filter_map(InitiatorPattern::name).try_for_each(check_name)
    }

    /// Whether an initiator belongs to it.
    pub(crate) fn includes(&self, initiator: &str, address: IpAddr) -> bool {
        let decided = self.initiators.iter().find_map(|pattern| pattern.decides(initiator));
        decided == Some(true) && self.netmasks.iter().any(|netmask| netmask.includes(address))
    }
}

/// Initiator names that belong to a group, or do not: `ANY`, `!ANY`, a name, or `!` and a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitiatorPattern {
    /// Every name belongs to it.
    Any,
    /// No name belongs to it.
    NotAny,
    /// This name belongs to it.
    Name(String),
    /// This name does not.
    NotName(String),
}

impl InitiatorPattern {
    /// Whether it says that a name belongs to the group, or that it does not; `None`: it says nothing about the name.
    fn decides(&self, initiator: &str) -> Option<bool> {
        match self {
            Self::Any => Some(true),
            Self::NotAny => Some(false),
            Self::Name(name) => name.eq_ignore_ascii_case(initiator).then_some(true),
            Self::NotName(name) => name.eq_ignore_ascii_case(initiator).then_some(false),
        }
    }

    /// The name in it.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Any | Self::NotAny => None,
            Self::Name(name) | Self::NotName(name) => Some(name),
        }
    }
}

impl From<&str> for InitiatorPattern {
    fn from(text: &str) -> Self {
        match text {
            "ANY" | "ALL" => Self::Any,
            "!ANY" | "!ALL" => Self::NotAny,
            text => match text.strip_prefix('!') {
                Some(name) => Self::NotName(name.into()),
                None => Self::Name(text.into()),
            },
        }
    }
}

impl fmt::Display for InitiatorPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("ANY"),
            Self::NotAny => f.write_str("!ANY"),
            Self::Name(name) => f.write_str(name),
            Self::NotName(name) => write!(f, "!{name}"),
        }
    }
}

/// Addresses with a common prefix: `ANY`, `10.0.0.0/8`, `[2001:db8::]/32` or a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Netmask {
    /// `None`: every address.
    network: Option<(IpAddr, u8)>,
}

impl Netmask {
    /// Every address.
    pub const ANY: Self = Self { network: None };

    /// Whether an address has the prefix.
    #[must_use]
    pub fn includes(&self, address: IpAddr) -> bool {
        let Some((network, bits)) = self.network else { return true };
        match (network, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                u32::from(network) & mask == u32::from(address) & mask
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                u128::from(network) & mask == u128::from(address) & mask
            }
            _ => false,
        }
    }
}

/// A text is no netmask.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no netmask: write ANY, an address, or an address and a prefix length such as 10.0.0.0/8"
)]
pub struct NetmaskError(String);

impl FromStr for Netmask {
    type Err = NetmaskError;

    fn from_str(text: &str) -> Result<Self, NetmaskError> {
        if matches!(text, "ANY" | "ALL") {
            return Ok(Self::ANY);
        }
        let wrong = || NetmaskError(text.into());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let address: IpAddr = bare.unwrap_or(address).parse().map_err(|_| wrong())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(longest);
        if bits > longest {
            return Err(wrong());
        }
        Ok(Self { network: Some((address, bits)) })
    }
}

impl fmt::Display for Netmask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.network {
            None => f.write_str("ANY"),
            Some((IpAddr::V4(address), bits)) => write!(f, "{address}/{bits}"),
            Some((IpAddr::V6(address), bits)) => write!(f, "[{address}]/{bits}"),
        }
    }
}

/// A target node: a name with logical units (RFC 7143, 4.4). [`TargetNodeConfig::new`] fills in the defaults.
#[derive(Clone)]
pub struct TargetNodeConfig {
    /// Its name, of type iqn., eui. or naa. (RFC 7143, 4.2.7).
    pub name: String,
    /// TargetAlias; empty: it has none.
    pub alias: String,
    /// Which initiator groups reach it by which portal groups.
    pub maps: Vec<PortalMap>,
    /// Its LUNs.
    pub luns: Vec<LunConfig>,
    /// Commands that a session may have outstanding, 1 to [`MAX_ISCSI_QUEUE_DEPTH`].
    pub queue_depth: u16,
    /// How initiators authenticate.
    pub auth: ChapPolicy,
    /// Every connection has header digests.
    pub header_digest: bool,
    /// Every connection has data digests.
    pub data_digest: bool,
}

impl TargetNodeConfig {
    /// No LUNs, nobody reaches it, no authentication, digests as the initiator wishes.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            alias: String::new(),
            maps: Vec::new(),
            luns: Vec::new(),
            queue_depth: DEFAULT_ISCSI_QUEUE_DEPTH,
            auth: ChapPolicy::default(),
            header_digest: false,
            data_digest: false,
        }
    }
}

/// An initiator group that reaches a target node by a portal group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortalMap {
    /// Tag of the portal group.
    pub portal_group: u16,
    /// Tag of the initiator group.
    pub initiator_group: u32,
}

/// A LUN of a target node.
#[derive(Clone)]
pub struct LunConfig {
    /// Its number, at most [`MAX_LUN`]; `None`: the lowest free.
    pub lun: Option<u16>,
    /// The device behind it. The same device may be a namespace of a subsystem at the same time.
    pub bdev: SharedBdev,
    /// Unit serial number (VPD page 80h); empty: the UUID.
    pub serial: String,
    /// UUID, by which initiators know the unit again (VPD page 83h); `None`: the device's. The LUNs over one device are one
    /// unit: that of the first counts.
    pub uuid: Option<[u8; 16]>,
    /// Where its reservations are kept so that they persist through a power loss (APTPL); `None`: they cannot, unless the
    /// namespace over the same device has a place. The LUNs over one device are one unit: that of the first counts.
    pub reservations: Option<ReservationPlace>,
    /// The limits of the device ([`Target::throttle`](crate::Target::throttle)); `None`: it has none. The LUNs over one
    /// device are one unit: that of the first counts.
    pub throttle: Option<Throttle>,
}

impl LunConfig {
    /// The lowest free number, the identity of the device.
    #[must_use]
    pub fn new(bdev: SharedBdev) -> Self {
        Self {
            lun: None,
            bdev,
            serial: String::new(),
            uuid: None,
            reservations: None,
            throttle: None,
        }
    }
}

/// Why a change of what iSCSI exports is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IscsiError {
    /// A setting is outside its range.
    #[error("{what} must be {need}")]
    Setting {
        /// The setting.
        what: &'static str,
        /// Its range.
        need: &'static str,
    },
    /// A name breaks the rules for iSCSI names.
    #[error(
        "{0:?} is no iSCSI name: write iqn.YYYY-MM.DOMAIN[:TEXT], eui. and 16 hex digits, or naa. and 16 or 32 hex digits"
    )]
    Name(String),
    /// There is such a thing already.
    #[error("{0} exists already")]
    Exists(String),
    /// There is no such thing.
    #[error("there is no {0}")]
    Missing(String),
    /// Something else uses it.
    #[error("{what} is in use by target node {node}: remove its map first")]
    InUse {
        /// What.
        what: String,
        /// By which node.
        node: String,
    },
    /// All numbers are taken.
    #[error("target node {0} has all LUNs from 0 to {MAX_LUN}")]
    Full(String),
}

/// Checks that a name is an iSCSI name (RFC 7143, 4.2.7).
///
/// # Errors
/// When it is none.
pub fn check_name(name: &str) -> Result<(), IscsiError> {
    let lower = name.to_ascii_lowercase();
    let is_hex = |digits: &str, lengths: &[usize]| {
        lengths.contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit())
    };
    let is_good = if let Some(digits) = lower.strip_prefix("eui.") {
        is_hex(digits, &[16])
    } else if let Some(digits) = lower.strip_prefix("naa.") {
        is_hex(digits, &[16, 32])
    } else {
        let allowed =
            |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.:".contains(&b) || b > 0x7f;
        lower.strip_prefix("iqn.").is_some_and(|rest| !rest.is_empty())
            && lower.bytes().all(allowed)
    };
    if is_good && name.len() <= 223 { Ok(()) } else { Err(IscsiError::Name(name.into())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_of_three_types() {
        for name in ["iqn.2026-01.io.raceline:disk", "eui.0123456789abcdef", "naa.0123456789ABCDEF"]
        {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        let long = format!("iqn.2026-01.io.raceline:{}", "x".repeat(220));
        for name in
            ["", "iqn.", "disk", "eui.0123", "naa.xyz", "iqn.2026-01.io:a b", "iqn.a_b", &long]
        {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn the_first_pattern_that_matches_decides() {
        let patterns = |texts: &[&str]| InitiatorGroupConfig {
            tag: 1,
            initiators: texts.iter().map(|text| (*text).into()).collect(),
            netmasks: vec![Netmask::ANY],
        };
        let local = "127.0.0.1".parse().unwrap();
        let group = patterns(&["!iqn.a:bad", "ANY"]);
        assert!(!group.includes("iqn.a:bad", local) && group.includes("iqn.a:good", local));
        let group = patterns(&["iqn.a:one"]);
        assert!(group.includes("IQN.A:One", local) && !group.includes("iqn.a:two", local));
        assert!(!patterns(&["!ANY", "iqn.a:one"]).includes("iqn.a:one", local));
        assert!(!patterns(&[]).includes("iqn.a:one", local));
    }

    #[test]
    fn netmasks_compare_prefixes() {
        let mask = |text: &str| text.parse::<Netmask>().unwrap();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(mask("10.1.0.0/16").includes(address("10.1.255.3")));
        assert!(!mask("10.1.0.0/16").includes(address("10.2.0.1")));
        assert!(mask("10.1.0.0/16").includes(address("::ffff:10.1.0.1")));
        assert!(mask("0.0.0.0/0").includes(address("1.2.3.4")));
        assert!(!mask("0.0.0.0/0").includes(address("::1")));
        assert!(mask("192.0.2.7").includes(address("192.0.2.7")));
        assert!(!mask("192.0.2.7").includes(address("192.0.2.6")));
        assert!(mask("[2001:db8::]/32").includes(address("2001:db8:1::1")));
        assert!(!mask("2001:db8::/32").includes(address("2001:db9::1")));
        assert!(mask("ANY").includes(address("::1")));
        for text in ["", "10.0.0.0/33", "10.0.0/8", "[::1/8", "10.0.0.0/", "any"] {
            assert!(text.parse::<Netmask>().is_err(), "{text}");
        }
        for text in ["ANY", "10.1.0.0/16", "[2001:db8::]/32"] {
            assert_eq!(mask(text).to_string(), text);
        }
    }

    #[test]
    fn settings_have_ranges() {
        let settings = IscsiSettings::default();
        assert_eq!(settings.flaw(), None);
        let flaw = |settings: IscsiSettings| settings.flaw().map(|(what, _)| what);
        let bursts = IscsiSettings { first_burst_bytes: 2 << 20, ..settings.clone() };
        assert_eq!(flaw(bursts), Some("FirstBurstLength"));
        let small = IscsiSettings { max_data_segment_bytes: 511, ..settings };
        assert_eq!(flaw(small), Some("MaxRecvDataSegmentLength"));
    }

    #[test]
    fn a_secret_is_not_printed() {
        let secret = ChapSecret {
            user: "u".into(),
            secret: "hidden".into(),
            mutual: Some(("m".into(), "also hidden".into())),
        };
        assert!(!format!("{secret:?}").contains("hidden"));
    }
}
