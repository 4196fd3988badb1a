//! The work of one core: a [`Service`] driven by completions and messages.

use std::time::Instant;

use crate::io::{Completion, Io};
use crate::memory::buffer::BufferPool;

/// What a service may use while it handles something.
pub struct Context<'a> {
    /// This core's I/O.
    pub io: &'a mut dyn Io,
    /// This core's buffers.
    pub pool: &'a BufferPool,
    /// The time of this turn of the loop.
    pub now: Instant,
}

/// The work of one core. Built on its thread, runs there for life.
pub trait Service {
    /// What other threads may send.
    type Message: Send + 'static;

    /// Takes one message.
    fn handle_message(&mut self, cx: &mut Context<'_>, message: Self::Message);

    /// Takes one finished operation or expired timer.
    fn handle_completion(&mut self, cx: &mut Context<'_>, completion: Completion);

    /// Called once per turn after all completions and messages of the turn: everything that is
    /// ready to go leaves now, coalesced.
    ///
    /// The core may wait after it. A service that has stopped short of finishing, to give
    /// others their turn, asks for a timer at `cx.now` to get its next one.
    fn flush(&mut self, cx: &mut Context<'_>);

    /// True once the service has drained after it was told to stop; the thread then ends.
    fn is_finished(&self) -> bool;
}
