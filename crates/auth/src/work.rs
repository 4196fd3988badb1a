//! The arithmetic of an authentication, to be done where nobody waits for it: it takes milliseconds.

use std::fmt;

use crate::initiator::Answer;
use crate::interchange::KeyError;
use crate::responder::{Offer, Verification};

/// A computation that an [`Initiator`](crate::Initiator) or a [`Responder`](crate::Responder) asks for. It owns all
/// that it needs, and can go to another thread.
pub struct Work {
    ticket: u64,
    work: Box<dyn FnOnce() -> Outcome + Send>,
}

/// The result of [`Work`], for the end that asked for it.
#[derive(Debug)]
pub struct Finished {
    /// Which of the computations of one end it is.
    pub(crate) ticket: u64,
    pub(crate) outcome: Outcome,
}

#[derive(Debug)]
pub(crate) enum Outcome {
    /// Responder: a challenge for the host.
    Offer(Result<Box<Offer>, KeyError>),
    /// Responder: whether the host's reply is right.
    Verification(Verification),
    /// Initiator: a reply to the controller's challenge.
    Answer(Result<Box<Answer>, crate::initiator::Refusal>),
}

impl Work {
    pub(crate) fn new(ticket: u64, work: impl FnOnce() -> Outcome + Send + 'static) -> Self {
        Self { ticket, work: Box::new(work) }
    }

    /// Computes.
    #[must_use]
    pub fn run(self) -> Finished {
        Finished { ticket: self.ticket, outcome: (self.work)() }
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Work")
    }
}
