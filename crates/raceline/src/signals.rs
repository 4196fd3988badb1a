//! SIGINT and SIGTERM: the first asks to end, the second ends.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::code;

/// The signals that ask this process to end.
#[derive(Debug)]
pub(crate) struct Interrupt {
    /// The first signal, 0 before it came.
    first: Arc<AtomicI32>,
    arrived: Receiver<()>,
}

impl Interrupt {
    /// From now on the first signal is a request, and the second ends the process at once.
    ///
    /// # Errors
    /// When the signals cannot be caught.
    pub(crate) fn catch() -> io::Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let (sender, arrived) = mpsc::channel();
        let first = Arc::new(AtomicI32::new(0));
        let shared = first.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for number in signals.forever() {
                if shared.swap(number, Ordering::AcqRel) != 0 {
                    std::process::exit(i32::from(code::SIGNAL) + number);
                }
                // Without a reader the number is enough.
                let _ = sender.send(());
            }
        })?;
        Ok(Self { first, arrived })
    }

    /// Waits for the first signal, at most this long.
    pub(crate) fn wait(&self, time: Duration) -> Option<i32> {
        let _ = self.arrived.recv_timeout(time);
        self.requested()
    }

    /// The first signal, if it has come.
    pub(crate) fn requested(&self) -> Option<i32> {
        match self.first.load(Ordering::Acquire) {
            0 => None,
            number => Some(number),
        }
    }
}
