//! Cores that the caller drives turn by turn, for simulation: the production code, without
//! threads and with whatever [`Io`] the caller has.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use raceline_reactor::mailbox::mailbox;
use raceline_reactor::{BufferPool, Completion, Context, Io, Mailbox, Service, Wait};

use crate::changes::config::{TargetConfig, TargetError};
use crate::changes::management::DeviceRequest;
use crate::changes::message::Message;
use crate::changes::target::Target;
use crate::path::poll_group::PollGroup;
use crate::records::registry::Shared;

/// One core of a target. Lives on the thread that made it.
pub struct ManualCore {
    // The service lets go of its buffers before the pool goes.
    service: PollGroup,
    mailbox: Mailbox<Message>,
    completions: Vec<Completion>,
    pool: BufferPool,
    shared: Arc<Shared>,
}

impl Target {
    /// A target with one core per [`Io`], which [`ManualCore::turn`] drives. The target ignores the
    /// cores in `config`.
    ///
    /// Changes wait for answers of the cores: make them on another thread while this thread drives.
    ///
    /// # Errors
    /// When a setting is out of range or there is no memory for buffers.
    pub fn manual(
        config: TargetConfig,
        ios: &[&dyn Io],
    ) -> Result<(Self, Vec<ManualCore>), TargetError> {
        config.check()?;
        let pool_config = config.buffers();
        let shared = Arc::new(Shared::without_threads(config, ios.len()));
        let mut senders = Vec::new();
        let mut cores = Vec::new();
        for (index, io) in ios.iter().enumerate() {
            let pool = BufferPool::new(&pool_config)
                .map_err(|error| TargetError::Reactor { core: index, error })?;
            let (sender, mailbox) = mailbox(io.waker());
            senders.push(sender);
            let service = PollGroup::new(index, Arc::clone(&shared));
            let shared = Arc::clone(&shared);
            cores.push(ManualCore { service, mailbox, completions: Vec::new(), pool, shared });
        }
        shared.set_senders(senders);
        Ok((Self::with_cores(shared, Vec::new()), cores))
    }
}

/// How far the thread is that changes reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReserverProgress {
    /// It has nothing to do, or waits for commands to end.
    pub is_idle: bool,
    /// How often all cores have been asked something, by this thread and by calls.
    pub rounds: u64,
}

impl Target {
    /// How far the thread is that changes reservations. A run of manual cores can be repeated if the clock stands still
    /// while the thread is not idle, and all cores take a turn when `rounds` has grown by one.
    #[must_use]
    pub fn reserver_progress(&self) -> ReserverProgress {
        let progress = &self.control.shared.reserver_progress;
        // What was asked comes last: what is asked meanwhile shows as work.
        let done = progress.done.load(Ordering::SeqCst);
        let is_idle = done == progress.asked.load(Ordering::SeqCst);
        ReserverProgress { is_idle, rounds: progress.rounds.load(Ordering::SeqCst) }
    }

    /// Has that thread look whether the commands have ended for which it waits, if it waits. With manual cores, it does not
    /// look by itself.
    pub fn look_after_reservations(&self) {
        if self.control.shared.reserver_progress.waiting.load(Ordering::SeqCst) > 0 {
            self.control.shared.reserve_at_once(DeviceRequest::Look);
        }
    }
}

impl ManualCore {
    /// Runs one turn of the core's loop, without waiting. True: the core had work.
    ///
    /// Takes only the messages that were there when the turn began. A run whose turns begin at
    /// known [`ManualCore::waiting_messages`] can therefore be repeated.
    ///
    /// # Errors
    /// When the I/O is broken.
    pub fn turn(&mut self, io: &mut dyn Io) -> io::Result<bool> {
        let messages = self.mailbox.waiting();
        io.poll(Wait::No, &mut self.completions)?;
        let now = io.now();
        let mut cx = Context { io, pool: &self.pool, now };
        let mut busy = !self.completions.is_empty();
        for completion in self.completions.drain(..) {
            self.service.handle_completion(&mut cx, completion);
        }
        for _ in 0..messages {
            let Some(message) = self.mailbox.receive() else { break };
            busy = true;
            self.service.handle_message(&mut cx, message);
        }
        self.service.flush(&mut cx);
        self.shared.release_requests();
        Ok(busy)
    }

    /// Messages of other cores and of the control handle for the next turn.
    #[must_use]
    pub fn waiting_messages(&self) -> usize {
        self.mailbox.waiting()
    }

    /// Whether the core has stopped after [`Target::shutdown`].
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.service.is_finished()
    }

    /// I/O buffers that are free, of all sizes.
    #[must_use]
    pub fn free_buffers(&self) -> usize {
        self.pool.available_total()
    }
}
