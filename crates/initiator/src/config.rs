//! What a session is made with.

use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use raceline_iscsi::chap::Secret;
use raceline_iscsi::names::{Isid, Name};
use raceline_proto::host::BackoffConfig;

/// Where a session goes, who logs in, and how.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// The portal of the target.
    pub address: SocketAddr,
    /// Address of this machine to connect from; `None`: the kernel chooses it.
    pub source: Option<IpAddr>,
    /// InitiatorName.
    pub initiator_name: Name,
    /// TargetName; `None` for a discovery session.
    pub target_name: Option<Name>,
    /// The logical unit that tasks are for, below 16,384.
    pub lun: u16,
    /// Tasks that may be outstanding, 1..=4096. The target may take fewer at a time; the others wait.
    pub depth: u16,
    /// How the initiator proves who it is; `None`: not at all.
    pub chap: Option<Chap>,
    /// Asks for header digests.
    pub header_digest: bool,
    /// Asks for data digests.
    pub data_digest: bool,
    /// Time limit of TCP's connect.
    pub connect_timeout: Duration,
    /// Time limit of the login.
    pub login_timeout: Duration,
    /// Time limit of a task; then it is aborted at the target.
    pub task_timeout: Duration,
    /// A target that was silent for this long is pinged, and has as long to answer; zero: it is never pinged.
    pub ping_interval: Duration,
    /// How a lost session is tried again.
    pub backoff: BackoffConfig,
    /// Have a receive that finds nothing look into the receive queue itself for at most this time.
    pub busy_poll: Option<Duration>,
}

/// What CHAP needs (RFC 7143, 12.1.3).
#[derive(Clone, Debug)]
pub struct Chap {
    /// The name of the user.
    pub user: String,
    /// The secret of the user.
    pub secret: Secret,
    /// Name and secret of the target, where it has to prove itself as well.
    pub target: Option<(String, Secret)>,
}

impl SessionConfig {
    /// A session without CHAP and digests, 128 tasks deep.
    #[must_use]
    pub fn new(address: SocketAddr, initiator_name: Name, target_name: Option<Name>) -> Self {
        Self {
            address,
            source: None,
            initiator_name,
            target_name,
            lun: 0,
            depth: 128,
            chap: None,
            header_digest: false,
            data_digest: false,
            connect_timeout: Duration::from_secs(5),
            login_timeout: Duration::from_secs(15),
            task_timeout: Duration::from_secs(30),
            ping_interval: Duration::from_secs(5),
            backoff: BackoffConfig::default(),
            busy_poll: None,
        }
    }

    /// LUN as it is on the wire (SAM-5, 4.7): peripheral addressing below 256, flat space addressing from there on.
    pub(crate) fn lun_field(&self) -> u64 {
        let lun = u64::from(self.lun);
        if lun < 256 { lun << 48 } else { (0x4000 | lun) << 48 }
    }
}

/// An ISID that no other session of this process has, and with some certainty none of another process.
pub(crate) fn fresh_isid() -> Option<Isid> {
    static NUMBER: OnceLock<Option<u32>> = OnceLock::new();
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let number = *NUMBER.get_or_init(|| {
        let mut bytes = [0; 4];
        getrandom::fill(&mut bytes).ok().map(|()| u32::from_be_bytes(bytes))
    });
    Some(Isid::random(number?, NEXT.fetch_add(1, Ordering::Relaxed)))
}
