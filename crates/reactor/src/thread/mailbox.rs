//! Messages to a core from other threads: a bounded queue that wakes its reader.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use crate::thread::waker::Waker;

/// Messages that may wait for one core. Mailboxes carry control, not I/O: a few messages per connection,
/// so even a storm of tens of thousands of disconnects loses none. A full one means that the core is
/// stuck or a sender is out of control. The sender then gets an error and does not wait.
pub const MAILBOX_CAPACITY: usize = 1 << 18;

/// The reading end, owned by a core.
#[derive(Debug)]
pub struct Mailbox<M> {
    receiver: mpsc::Receiver<M>,
    /// Messages sent and not yet received: what a spinning core looks at each turn.
    waiting: Arc<AtomicUsize>,
}

/// A sending end, for any thread.
pub struct Sender<M> {
    sender: mpsc::Sender<M>,
    waiting: Arc<AtomicUsize>,
    waker: Waker,
}

/// A message that was not delivered.
#[derive(PartialEq, Eq)]
pub enum SendError<M> {
    /// [`MAILBOX_CAPACITY`] messages are waiting.
    Full(M),
    /// The core has ended.
    Closed(M),
}

/// A mailbox whose reader is woken by `waker`.
pub fn mailbox<M>(waker: Waker) -> (Sender<M>, Mailbox<M>) {
    let (sender, receiver) = mpsc::channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    (Sender { sender, waiting: waiting.clone(), waker }, Mailbox { receiver, waiting })
}

impl<M> Mailbox<M> {
    /// Messages that wait to be received.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// The next message, if there is one. Costs one load when there is none.
    pub fn receive(&mut self) -> Option<M> {
        // The counter follows the queue: it is raised after a message is in, so one that is
        // counted can be taken.
        if self.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        let message = self.receiver.try_recv().ok()?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(message)
    }
}

impl<M> Sender<M> {
    /// Puts a message in the mailbox and wakes the core. Never blocks.
    ///
    /// # Errors
    /// Gives the message back when the mailbox is full or the core has ended.
    pub fn send(&self, message: M) -> Result<(), SendError<M>> {
        // Several senders may pass this check at once: the bound is not exact, but it holds.
        if self.waiting.load(Ordering::Relaxed) >= MAILBOX_CAPACITY {
            return Err(SendError::Full(message));
        }
        self.sender.send(message).map_err(|error| SendError::Closed(error.0))?;
        self.waiting.fetch_add(1, Ordering::Release);
        self.waker.wake();
        Ok(())
    }
}

impl<M> Clone for Sender<M> {
    fn clone(&self) -> Sender<M> {
        Sender {
            sender: self.sender.clone(),
            waiting: self.waiting.clone(),
            waker: self.waker.clone(),
        }
    }
}

impl<M> fmt::Debug for Sender<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sender({} waiting)", self.waiting.load(Ordering::Relaxed))
    }
}

impl<M> fmt::Display for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendError::Full(_) => "the core's mailbox is full",
            SendError::Closed(_) => "the core has ended",
        })
    }
}

impl<M> fmt::Debug for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendError::Full(_) => "Full(..)",
            SendError::Closed(_) => "Closed(..)",
        })
    }
}

impl<M> std::error::Error for SendError<M> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_in_order_and_the_box_is_bounded() {
        let (sender, mut mailbox) = mailbox(Waker::none());
        assert_eq!(mailbox.receive(), None);
        for number in 0..MAILBOX_CAPACITY {
            sender.send(number).unwrap();
        }
        assert_eq!(sender.send(7), Err(SendError::Full(7)));
        for number in 0..MAILBOX_CAPACITY {
            assert_eq!(mailbox.receive(), Some(number));
        }
        assert_eq!(mailbox.receive(), None);
        drop(mailbox);
        assert_eq!(sender.send(8), Err(SendError::Closed(8)));
    }

    #[test]
    fn every_message_of_many_threads_arrives() {
        let (sender, mut mailbox) = mailbox(Waker::none());
        let threads: Vec<_> = (0..4u64)
            .map(|thread| {
                let sender = sender.clone();
                std::thread::spawn(move || {
                    for number in 0..5000 {
                        while sender.send((thread, number)).is_err() {
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let mut next = [0u64; 4];
        while next.iter().sum::<u64>() < 20_000 {
            if let Some((thread, number)) = mailbox.receive() {
                let next = &mut next[usize::try_from(thread).unwrap()];
                assert_eq!(*next, number);
                *next += 1;
            }
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
