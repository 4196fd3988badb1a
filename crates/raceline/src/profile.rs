//! What the devices behind a target's listeners cannot do of its profile.

use std::net::SocketAddr;

use raceline_adq::judge::judge;
use raceline_adq::machine::Live;

use crate::shell;

/// Says it on standard error, a line for each.
pub(crate) fn tell(listeners: &[SocketAddr]) {
    match judge(&Live::default(), listeners) {
        Ok(lines) => lines.iter().for_each(|line| shell::note(&format!("profile adq: {line}"))),
        Err(error) => shell::note(&format!("profile adq: the devices cannot be judged: {error}")),
    }
}
