//! What a new connection waits for: changes of earlier requests that are still at the device.
//!
//! A client that has lost its connection makes a new one, and sends again what was not answered, and then more. What the
//! former connection has left at the device must not land after that. Nobody can tell whose former connection it was,
//! and the server may not have noticed its end. So the first change of a connection waits for all changes of the export
//! that are at the device when it comes, on all cores. Later changes of other connections are not waited for.

use std::collections::VecDeque;
use std::sync::Arc;

use raceline_reactor::Sender;
use raceline_reactor::mailbox::SendError;

use super::core::Message;

/// The cores of the server, and which of them this is.
#[derive(Clone, Default)]
pub(super) struct Peers {
    pub(super) cores: Vec<Sender<Message>>,
    pub(super) own: usize,
}

impl Peers {
    /// Asks all cores for the end of what is at the device of an export; [`Message::Settled`] says that it has come.
    /// False if a core cannot be asked.
    pub(super) fn ask(&self, export: usize, connection: u32) -> bool {
        let Some(to) = self.cores.get(self.own).cloned() else { return false };
        let hold = Arc::new(Hold { to, connection });
        // A core that has ended has nothing at its devices.
        let is_told = |core: &Sender<Message>| {
            let message = Message::Settle { export, hold: Arc::clone(&hold) };
            !matches!(core.send(message), Err(SendError::Full(_)))
        };
        self.cores.iter().all(is_told)
    }
}

/// Holds a connection back. Each core drops its share when what was at its device is over; the last one tells.
pub(super) struct Hold {
    to: Sender<Message>,
    connection: u32,
}

impl Drop for Hold {
    fn drop(&mut self) {
        // A core that has ended has no connections.
        let _ = self.to.send(Message::Settled { connection: self.connection });
    }
}

/// The changes of one export that are at its device, on one core. `H` keeps back who waits for them until it is dropped.
pub(super) struct Changes<H = Arc<Hold>> {
    /// Ages, the oldest first. Each but the last ends with connections that wait for it and for those before.
    ages: VecDeque<Age<H>>,
    /// How many ages are over.
    over: u64,
}

/// Changes that have begun between two waits.
struct Age<H> {
    running: usize,
    /// At most one of each connection of the server.
    held: Vec<H>,
}

impl<H> Age<H> {
    fn new() -> Self {
        Self { running: 0, held: Vec::new() }
    }
}

impl<H> Changes<H> {
    pub(super) fn new() -> Self {
        Self { ages: VecDeque::new(), over: 0 }
    }

    /// A change begins; gives its age.
    pub(super) fn begin(&mut self) -> u64 {
        if self.ages.is_empty() {
            self.ages.push_back(Age::new());
        }
        if let Some(age) = self.ages.back_mut() {
            age.running += 1;
        }
        self.over + self.ages.len() as u64 - 1
    }

    /// A change of this age is over.
    pub(super) fn end(&mut self, age: u64) {
        let age = age.checked_sub(self.over).and_then(|place| usize::try_from(place).ok());
        let age = age.and_then(|place| self.ages.get_mut(place));
        let age = age.expect("an age lasts as long as its changes");
        age.running -= 1;
        self.retire();
    }

    /// Keeps a connection back until all changes are over that have begun.
    pub(super) fn hold(&mut self, hold: H) {
        let place = match self.ages.back() {
            None => return,
            // Nothing has begun since another connection was kept back.
            Some(age) if age.running == 0 && self.ages.len() > 1 => self.ages.len() - 2,
            Some(_) => {
                self.ages.push_back(Age::new());
                self.ages.len() - 2
            }
        };
        self.ages[place].held.push(hold);
        self.retire();
    }

    /// Forgets what is over, and lets go who has waited for it.
    fn retire(&mut self) {
        while self.ages.len() > 1 && self.ages[0].running == 0 {
            self.ages.pop_front();
            self.over += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Notes down when it is let go.
    struct Held<'a>(u32, &'a RefCell<Vec<u32>>);

    impl Drop for Held<'_> {
        fn drop(&mut self) {
            self.1.borrow_mut().push(self.0);
        }
    }

    #[test]
    fn a_connection_waits_for_what_has_begun_before_it_and_for_nothing_else() {
        let gone = RefCell::new(Vec::new());
        let hold = |connection| Held(connection, &gone);
        let mut changes = Changes::new();
        changes.hold(hold(1));
        assert_eq!(gone.take(), [1], "nothing is at the device");
        let [first, second] = [changes.begin(), changes.begin()];
        changes.hold(hold(2));
        changes.hold(hold(3));
        let third = changes.begin();
        changes.hold(hold(4));
        let fourth = changes.begin();
        changes.end(third);
        changes.end(first);
        assert_eq!(gone.take(), [], "one of the first two is at the device");
        changes.end(second);
        assert_eq!(gone.take(), [2, 3, 4]);
        changes.hold(hold(5));
        assert_eq!(gone.take(), []);
        changes.end(fourth);
        assert_eq!(gone.take(), [5]);
        // What waits for the same changes has one age.
        let fifth = changes.begin();
        for connection in 0..100 {
            changes.hold(hold(connection));
        }
        assert_eq!(changes.ages.len(), 2);
        changes.end(fifth);
        assert_eq!(gone.take().len(), 100);
        changes.hold(hold(6));
        assert_eq!((gone.take(), changes.ages.len()), (vec![6], 1));
    }
}
