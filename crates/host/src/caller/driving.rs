//! What shared queues need to know of a group that one thread of several drives.

use std::io;
use std::time::Instant;

use raceline_reactor::Sleeper;

use super::CallerQueues;

impl CallerQueues {
    /// What a thread waits with that does not have the group meanwhile.
    pub(crate) fn sleeper(&self) -> io::Result<Sleeper> {
        self.driver.io.sleeper()
    }

    /// To be called before the last poll before a sleep.
    pub(crate) fn prepare_sleep(&mut self) {
        self.driver.io.ask_events();
    }

    /// Whether there is something to do of which no event will tell.
    pub(crate) fn wants_poll(&self) -> bool {
        self.driver.io.wants_poll() || self.ended() > 0
    }

    /// When there will be something to do, at the latest.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.driver.io.next_timer()
    }

    /// The queue with the most room, if any has some.
    pub(crate) fn roomiest(&self) -> Option<usize> {
        let rooms = (0..self.len()).map(|queue| (self.room(queue), queue));
        rooms.max().filter(|&(room, _)| room > 0).map(|(_, queue)| queue)
    }
}
