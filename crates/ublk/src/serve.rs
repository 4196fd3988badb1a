//! The work of a core: one queue of a disk, and a channel to the device.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use raceline_bdev::{Channel, Done, SharedBdev};
use raceline_reactor::ublk::UblkQueue;
use raceline_reactor::{Completion, Context, Outcome, Service, Token};

use crate::plan::Facts;
use crate::queue::Queue;

/// The owner of commands to the kernel.
const COMMANDS: u16 = 0;
/// The owner of the channel's operations.
const CHANNEL: u16 = 1;

/// What other threads tell a core.
pub(crate) enum Message {
    /// The disk has this many bytes from now on.
    Resized(u64),
}

/// What a core serves.
pub(crate) struct Part {
    pub(crate) file: Arc<File>,
    pub(crate) device: SharedBdev,
    pub(crate) queue: UblkQueue,
    pub(crate) facts: Facts,
    /// Set when the kernel refuses commands.
    pub(crate) failed: Arc<AtomicBool>,
}

/// The service.
pub(crate) struct Core {
    queue: Queue,
    number: u16,
    channel: Box<dyn Channel>,
    done: Vec<Done>,
    failed: Arc<AtomicBool>,
    finished: bool,
}

impl Core {
    pub(crate) fn new(cx: &mut Context<'_>, part: Part) -> io::Result<Self> {
        let channel = part.device.open_channel(cx, CHANNEL)?;
        let (number, depth) = (part.queue.queue, part.queue.depth);
        cx.io.open_ublk(part.file, part.queue)?;
        let mut core = Self {
            queue: Queue::new(part.facts, depth),
            number,
            channel,
            done: Vec::new(),
            failed: part.failed,
            finished: false,
        };
        core.send(cx);
        Ok(core)
    }

    /// Sends what is ready to go, both ways.
    fn send(&mut self, cx: &mut Context<'_>) {
        loop {
            while let Some(request) = self.queue.poll_request() {
                self.channel.submit(cx, request, &mut self.done);
            }
            self.channel.flush(cx, &mut self.done);
            if self.done.is_empty() {
                break;
            }
            for done in self.done.drain(..) {
                self.queue.handle_done(done);
            }
        }
        while let Some((command, buf)) = self.queue.poll_command() {
            let token = Token { owner: COMMANDS, generation: 0, index: command.tag.into() };
            cx.io.ublk(command, buf, token);
        }
    }
}

impl Service for Core {
    type Message = Message;

    fn handle_message(&mut self, _cx: &mut Context<'_>, message: Message) {
        let Message::Resized(bytes) = message;
        self.queue.set_bytes(bytes);
    }

    fn handle_completion(&mut self, cx: &mut Context<'_>, completion: Completion) {
        match (completion.token.owner, completion.outcome) {
            (COMMANDS, Outcome::Ublk(fetched, buf)) => {
                if let Ok(tag) = u16::try_from(completion.token.index) {
                    self.queue.handle_fetched(tag, fetched, buf);
                }
            }
            (_, outcome) => {
                let completion = Completion { token: completion.token, outcome };
                self.channel.handle_completion(cx, completion, &mut self.done);
                for done in self.done.drain(..) {
                    self.queue.handle_done(done);
                }
            }
        }
    }

    fn flush(&mut self, cx: &mut Context<'_>) {
        self.send(cx);
        if let Some(error) = self.queue.take_fault() {
            self.failed.store(true, Ordering::Release);
            tracing::error!(
                queue = self.number,
                "the kernel refuses a command of the disk: {error}"
            );
        }
        if self.queue.is_over() && !self.finished {
            self.finished = true;
            self.channel.close(cx);
        }
    }

    fn is_finished(&self) -> bool {
        self.finished
    }
}
