//! SIGINT and SIGTERM: the first requests the end, the second ends the process. SIGUSR1 requests a report, SIGUSR2 a
//! successor.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::failure::code;
use crate::log;

/// The signals that ask this process to end.
#[derive(Debug)]
pub(crate) struct Interrupt {
    /// The first signal; 0 before it arrives.
    first: Arc<AtomicI32>,
    /// SIGUSR1 has arrived, and [`Self::report_requested`] has not reported it yet.
    report: Arc<AtomicBool>,
    /// SIGUSR2 has arrived, and [`Self::successor_requested`] has not reported it yet.
    successor: Arc<AtomicBool>,
    arrived: Receiver<()>,
}

impl Interrupt {
    /// Catches the signals: the first is a request, and the second ends the process at once.
    ///
    /// # Errors
    /// When the signals cannot be caught.
    pub(crate) fn catch() -> io::Result<Self> {
        Self::catch_all(&[SIGINT, SIGTERM])
    }

    /// The same, and SIGUSR1 ends only [`Self::wait`] instead of the process.
    ///
    /// # Errors
    /// When the signals cannot be caught.
    pub(crate) fn catch_with_reports() -> io::Result<Self> {
        Self::catch_all(&[SIGINT, SIGTERM, SIGUSR1])
    }

    /// The same as [`Self::catch`], and SIGUSR2 ends only [`Self::wait`] instead of the process.
    ///
    /// # Errors
    /// When the signals cannot be caught.
    pub(crate) fn catch_with_successors() -> io::Result<Self> {
        Self::catch_all(&[SIGINT, SIGTERM, SIGUSR2])
    }

    /// The same as [`Self::catch`], and the end of the terminal's session requests the end as well.
    ///
    /// # Errors
    /// When the signals cannot be caught.
    pub(crate) fn catch_with_hangup() -> io::Result<Self> {
        Self::catch_all(&[SIGINT, SIGTERM, SIGHUP])
    }

    /// The same as [`Self::catch`], and the process goes on when its terminal's session ends: what it serves has other users.
    ///
    /// # Errors
    /// When the signals cannot be caught.
    pub(crate) fn catch_without_hangup() -> io::Result<Self> {
        // A handler that does nothing, not SIG_IGN: programs that are started from here do not inherit it.
        signal_hook::flag::register(SIGHUP, Arc::default())?;
        Self::catch()
    }

    fn catch_all(numbers: &[i32]) -> io::Result<Self> {
        let mut signals = Signals::new(numbers)?;
        let (sender, arrived) = mpsc::channel();
        let (first, report) = (Arc::new(AtomicI32::new(0)), Arc::new(AtomicBool::new(false)));
        let successor = Arc::new(AtomicBool::new(false));
        let (shared, wanted, replaced) = (first.clone(), report.clone(), successor.clone());
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for number in signals.forever() {
                if number == SIGUSR1 {
                    wanted.store(true, Ordering::Release);
                } else if number == SIGUSR2 {
                    replaced.store(true, Ordering::Release);
                } else if shared.swap(number, Ordering::AcqRel) != 0 {
                    log::finish();
                    std::process::exit(i32::from(code::SIGNAL) + number);
                }
                // If the receiver is gone, the stored number is enough.
                let _ = sender.send(());
            }
        })?;
        Ok(Self { first, report, successor, arrived })
    }

    /// Whether a report was requested since the last call.
    pub(crate) fn report_requested(&self) -> bool {
        self.report.swap(false, Ordering::AcqRel)
    }

    /// Whether a successor was requested since the last call.
    pub(crate) fn successor_requested(&self) -> bool {
        self.successor.swap(false, Ordering::AcqRel)
    }

    /// Waits for a signal for `time` at most; gives the first one that requests the end.
    pub(crate) fn wait(&self, time: Duration) -> Option<i32> {
        let _ = self.arrived.recv_timeout(time);
        self.requested()
    }

    /// Tells at any time whether the end was requested.
    pub(crate) fn asker(&self) -> impl Fn() -> bool + use<> {
        let first = Arc::clone(&self.first);
        move || first.load(Ordering::Acquire) != 0
    }

    /// The first signal, if it has come.
    pub(crate) fn requested(&self) -> Option<i32> {
        match self.first.load(Ordering::Acquire) {
            0 => None,
            number => Some(number),
        }
    }
}
