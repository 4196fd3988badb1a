//! Discovery controllers in the local network, by multicast DNS (TP8009, RFC 6762, RFC 6763): [`Publisher`] announces
//! our own, [`Browser`] finds others.
//!
//! Both have one thread of the library `mdns-sd`, which sends and receives on UDP port 5353. Nothing here runs on a
//! reactor. What the network says is untrusted: names, addresses and records have limits, and whoever connects to a
//! found controller has to judge it as any other peer.
#![forbid(unsafe_code)]

mod browse;
mod publish;
mod service;

use std::time::Duration;

use mdns_sd::{DaemonStatus, Receiver, ServiceDaemon};

pub use browse::{Browser, MAX_SERVICES};
pub use publish::{Publisher, instance_name, is_reachable};
pub use service::{MAX_ADDRESSES, SERVICE_NAME, Service};

/// How often, and after which pauses, the library's thread is asked to end.
const SHUTDOWN_TRIES: u32 = 50;
const SHUTDOWN_PAUSE: Duration = Duration::from_millis(10);

/// Why multicast DNS cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MdnsError {
    /// The network interfaces of this machine cannot be listed, which a sandbox may forbid.
    #[error("the network interfaces cannot be listed, so multicast DNS cannot be used: {0}")]
    Interfaces(std::io::Error),
    /// The library refuses.
    #[error("multicast DNS: {0}")]
    Library(#[from] mdns_sd::Error),
}

/// Asks the library's thread to end, which it would not do by itself.
fn shut_down(daemon: &ServiceDaemon) -> Option<Receiver<DaemonStatus>> {
    for _ in 0..SHUTDOWN_TRIES {
        match daemon.shutdown() {
            Ok(ended) => return Some(ended),
            // It has more to do than its queue holds.
            Err(mdns_sd::Error::Again) => std::thread::sleep(SHUTDOWN_PAUSE),
            Err(_) => break,
        }
    }
    None
}

/// Checks that this process may list the network interfaces, which the library does without an error.
///
/// # Errors
/// [`MdnsError::Interfaces`] where it may not.
pub fn check_access() -> Result<(), MdnsError> {
    let kind = socket2::Type::RAW.cloexec();
    let opened = socket2::Socket::new(socket2::Domain::from(libc::AF_NETLINK), kind, None);
    opened.map(drop).map_err(MdnsError::Interfaces)
}
