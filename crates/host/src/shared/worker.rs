//! The thread that drives shared queues while the program does not poll.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use raceline_reactor::{Mode, Sleeper};

use super::Core;
use super::group::Turn;

/// How often the worker looks, while there is a `Poller`, whether the program still polls. If it has not
/// polled for this long, the worker drives the queues, so that time limits hold.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);

/// Starts the worker. It ends after [`Core::stop`], when the queues are closed.
pub(super) fn spawn(core: Arc<Core>, sleeper: Sleeper) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("raceline-queues".to_owned())
        .spawn(move || run(&core, &sleeper))
}

fn run(core: &Core, sleeper: &Sleeper) {
    let mut last_work = Instant::now();
    let mut polls = 0;
    loop {
        let stopping = core.stopping.load(Ordering::SeqCst);
        if !stopping && core.is_attended() {
            sleeper.sleep_until_woken(Some(Instant::now() + WATCH_INTERVAL));
            let seen = std::mem::replace(&mut polls, core.polls.load(Ordering::Relaxed));
            if seen != polls {
                continue;
            }
        }
        let may_sleep = match core.mode {
            Mode::Poll => false,
            Mode::Adaptive { spin } => last_work.elapsed() >= spin,
            Mode::Interrupt => true,
        };
        let Some(after) = core.drive(Turn::Worker { may_sleep, stopping }) else {
            // Another thread drives, and is about to end its turn.
            std::thread::yield_now();
            continue;
        };
        if after.closed {
            return;
        }
        if after.has_worked {
            last_work = Instant::now();
        } else if !after.again && may_sleep {
            sleeper.sleep(after.until);
        } else {
            std::hint::spin_loop();
        }
    }
}
