//! What a new connection waits for: changes of earlier requests that are still at the device.
//!
//! A client that has lost its connection makes a new one, and sends again what was not answered, and then more. What the
//! former connection has left at the device must not land after that. Nobody can tell whose former connection it was,
//! and the server may not have noticed its end. So the first change of a connection waits for all changes of the export
//! that are at the device when it comes, on all cores. Later changes of other connections are not waited for.
//!
//! A request that has come and has not begun counts as well: one that waits for memory or for a place, and what has come
//! behind it, for connections that were accepted before. [`Behind`] knows how far a connection has to read until all that
//! had come has begun.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
    /// Asks all cores for the end of what has come for an export and of what is at its device. `number` counts connections in
    /// the order in which they were accepted.
    pub(super) fn ask(&self, export: usize, (connection, number): (u32, u64)) -> Wait {
        let over = Arc::new(AtomicBool::new(false));
        let to = self.cores.get(self.own).cloned();
        let hold = Arc::new(Hold { to, connection, number, over: Arc::clone(&over) });
        let unasked = (0..self.cores.len()).collect();
        let mut wait = Wait { export, over, hold: Some(hold), unasked };
        self.ask_rest(&mut wait);
        wait
    }

    /// Asks the cores whose mailboxes were full.
    pub(super) fn ask_rest(&self, wait: &mut Wait) {
        let Some(hold) = &wait.hold else { return };
        let export = wait.export;
        wait.unasked.retain(|&core| {
            let message = Message::Settle { export, hold: Arc::clone(hold) };
            // A core that has ended has nothing at its devices.
            matches!(self.cores[core].send(message), Err(SendError::Full(_)))
        });
        if wait.unasked.is_empty() {
            wait.hold = None;
        }
    }
}

/// What a connection waits for. [`Message::Settled`] says when to look; it may be lost.
pub(super) struct Wait {
    export: usize,
    over: Arc<AtomicBool>,
    /// This share is kept until all cores were asked.
    hold: Option<Arc<Hold>>,
    /// Cores that could not be asked yet.
    unasked: Vec<usize>,
}

impl Wait {
    /// Asks no more cores: the connection is closed.
    pub(super) fn ask_nobody(&mut self) {
        self.unasked.clear();
        self.hold = None;
    }

    /// Whether nothing is in the way any more.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

/// Holds a connection back. Each core drops its share when what was at its device is over; the last one tells.
pub(super) struct Hold {
    to: Option<Sender<Message>>,
    connection: u32,
    number: u64,
    over: Arc<AtomicBool>,
}

impl Hold {
    /// Which connection of all it was that was accepted.
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        // A core that has ended has no connections, and one whose mailbox is full looks by itself.
        if let Some(to) = &self.to {
            let _ = to.send(Message::Settled { connection: self.connection });
        }
    }
}

/// Who waits until a connection has begun what had come for it. Then they wait for the changes that have begun, as all do.
/// `H` is as for [`Changes`].
pub(super) struct Behind<H = Arc<Hold>> {
    /// Who came first is the first. All that had come then: this many bytes since the connection's beginning.
    held: VecDeque<(H, u64)>,
}

impl<H> Behind<H> {
    pub(super) fn new() -> Self {
        Self { held: VecDeque::new() }
    }

    /// Keeps another connection back. `came` bytes have come so far, with those that nobody has read yet.
    pub(super) fn hold(&mut self, hold: H, came: u64) {
        // How much nobody has read may be told too small.
        let before = self.held.back().map_or(0, |(_, until)| *until);
        self.held.push_back((hold, came.max(before)));
    }

    /// The next one for which all that had come is among the first so many bytes.
    pub(super) fn let_past(&mut self, bytes: u64) -> Option<H> {
        self.held.pop_front_if(|(_, until)| *until <= bytes).map(|(hold, _)| hold)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
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

    use raceline_reactor::mailbox::{Mailbox, mailbox};
    use raceline_reactor::waker::Waker;

    use super::*;

    /// Notes down when it is let go.
    struct Held<'a>(u32, &'a RefCell<Vec<u32>>);

    impl Drop for Held<'_> {
        fn drop(&mut self) {
            self.1.borrow_mut().push(self.0);
        }
    }

    /// A core that does not take its messages loses the word for a connection, or is not asked: neither holds the
    /// connection back for ever.
    #[test]
    fn a_full_mailbox_delays_a_connection_and_does_not_hold_it_back() {
        let fill = |sender: &Sender<Message>| while sender.send(Message::Stop).is_ok() {};
        let (own, mut mine) = mailbox(Waker::none());
        let (other, mut others) = mailbox(Waker::none());
        let cores = vec![own.clone(), other.clone()];
        let peers = Peers { cores, ..Peers::default() };
        let asked = |mailbox: &mut Mailbox<Message>| {
            let all = std::iter::from_fn(|| mailbox.receive());
            let mut holds = all.filter_map(|message| match message {
                Message::Settle { hold, .. } => Some(hold),
                _ => None,
            });
            holds.next()
        };
        // The other core is not asked at first.
        fill(&other);
        let mut wait = peers.ask(0, (7, 0));
        let ours = asked(&mut mine).unwrap();
        drop(ours);
        assert!(!wait.is_over(), "the other core may have something at its device");
        assert!(asked(&mut others).is_none());
        peers.ask_rest(&mut wait);
        let theirs = asked(&mut others).unwrap();
        assert!(!wait.is_over());
        // The word of its end finds no room.
        fill(&own);
        drop(theirs);
        assert!(wait.is_over());
        peers.ask_rest(&mut wait);
        assert!(asked(&mut others).is_none(), "it was asked once");
        // Without a core of its own there is nothing to wait for, and no end without that.
        assert!(Peers::default().ask(0, (7, 0)).is_over());
    }

    /// Who comes later does not keep those back for longer that wait already.
    #[test]
    fn each_waits_for_what_had_come_when_it_came() {
        let mut behind = Behind::new();
        behind.hold('a', 100);
        behind.hold('b', 300);
        behind.hold('c', 200);
        assert_eq!(behind.let_past(99), None);
        assert_eq!((behind.let_past(100), behind.let_past(299)), (Some('a'), None));
        assert!(!behind.is_empty());
        assert_eq!((behind.let_past(300), behind.let_past(300)), (Some('b'), Some('c')));
        assert!(behind.is_empty());
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
