//! What the devices behind a target's listeners cannot do of its profile.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use raceline_adq::judge::judge;
use raceline_adq::machine::Live;

use crate::shell;

/// A thread that judges them. It runs other programs (ip, tc, ethtool), so it starts before this process gives up to
/// run any, and ends when it has told.
pub(crate) struct Judge {
    listeners: Sender<Vec<SocketAddr>>,
    thread: JoinHandle<()>,
}

impl Judge {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn start() -> io::Result<Self> {
        let (listeners, given) = channel::<Vec<SocketAddr>>();
        let thread = std::thread::Builder::new().name("profile".to_owned()).spawn(move || {
            if let Ok(listeners) = given.recv() {
                tell(&listeners);
            }
        })?;
        Ok(Self { listeners, thread })
    }

    /// Says it on standard error, a line for each, and waits until that is done.
    pub(crate) fn tell(self, listeners: Vec<SocketAddr>) {
        // A thread that has panicked has said so.
        let _ = self.listeners.send(listeners);
        let _ = self.thread.join();
    }
}

fn tell(listeners: &[SocketAddr]) {
    match judge(&Live::default(), listeners) {
        Ok(lines) => lines.iter().for_each(|line| shell::note(&format!("profile adq: {line}"))),
        Err(error) => shell::note(&format!("profile adq: the devices cannot be judged: {error}")),
    }
}
