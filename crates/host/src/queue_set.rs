//! The I/O queues of one core, following an association that lives on any core.

use std::collections::VecDeque;
use std::sync::Arc;

use raceline_proto::nvme::{ControllerId, QueueId};
use raceline_reactor::{Completion, Context, Token};

use crate::command::{Command, CommandDone};
use crate::config::{Association, HostConfig};
use crate::counters::QueueCounters;
use crate::error::{HostError, Rejected, RejectedReason};
use crate::queue::{QueueEvent, QueuePair};

/// What happened to one of the queues.
#[derive(Clone, Debug)]
pub enum IoQueueEvent {
    /// Commands flow.
    Ready {
        /// Position in the set.
        queue: usize,
    },
    /// The connection is lost: the owner of the [`crate::Controller`] must be told.
    Lost {
        /// Position in the set.
        queue: usize,
        /// The association that is over with it.
        cntlid: ControllerId,
        /// Why.
        error: HostError,
    },
}

/// Some I/O queues of an association, driven like a [`QueuePair`].
///
/// The program tells it what the [`crate::Controller`] reports, by message if that lives on
/// another core, and reports lost queues back.
#[derive(Debug)]
pub struct IoQueueSet {
    config: HostConfig,
    token: Token,
    qids: Vec<u16>,
    /// Made when the first association is up.
    queues: Vec<Member>,
    /// The association that is up.
    association: Option<Association>,
    /// Queues with something to flush or to give back, each once: a turn costs what these cost,
    /// however many others are quiet.
    touched: VecDeque<usize>,
    closed: bool,
    events: VecDeque<IoQueueEvent>,
    counters: Arc<QueueCounters>,
}

/// A queue and the association that it was last connected to.
#[derive(Debug)]
struct Member {
    pair: QueuePair,
    cntlid: ControllerId,
    /// It is among those touched.
    touched: bool,
}

impl Member {
    /// Connects to `association` unless that was tried before; a queue that still holds an older
    /// connection ends it first.
    fn follow(&mut self, cx: &mut Context<'_>, association: &Association) {
        if self.cntlid == association.cntlid {
            return;
        }
        if self.pair.is_lost() {
            self.cntlid = association.cntlid;
            self.pair.reconnect(cx, association.cntlid, association.controller.in_capsule_bytes);
        } else {
            self.pair.disconnect(cx, HostError::Closed);
        }
    }
}

impl IoQueueSet {
    /// Queues with these QIDs (from 1). Operations are started with the token's owner, and its
    /// index plus the queue's position.
    #[must_use]
    pub fn new(config: &HostConfig, qids: impl IntoIterator<Item = u16>, token: Token) -> Self {
        let qids: Vec<u16> = qids.into_iter().collect();
        let capacity = qids.len();
        let queues = Vec::with_capacity(capacity);
        let events = VecDeque::with_capacity(2 * qids.len());
        Self {
            config: config.clone(),
            token,
            qids,
            queues,
            association: None,
            touched: VecDeque::with_capacity(capacity),
            closed: false,
            events,
            counters: Arc::default(),
        }
    }

    /// An association is up: queues connect. Those that the controller did not grant do not.
    pub fn handle_up(&mut self, cx: &mut Context<'_>, association: &Association) {
        if self.closed {
            return;
        }
        self.association = Some(association.clone());
        if self.queues.is_empty() {
            for (index, &qid) in (self.token.index..).zip(&self.qids) {
                if qid <= association.io_queues {
                    let config = self.config.io_queue(association, QueueId(qid));
                    let token = Token { index, ..self.token };
                    let mut pair = QueuePair::connect(cx, config, token);
                    pair.share_counters(Arc::clone(&self.counters));
                    let cntlid = association.cntlid;
                    self.queues.push(Member { pair, cntlid, touched: false });
                }
            }
            self.touch_all();
            return;
        }
        for queue in &mut self.queues {
            queue.follow(cx, association);
        }
        self.touch_all();
    }

    /// The association is lost: queues give their connections up and wait for the next.
    pub fn handle_down(&mut self, cx: &mut Context<'_>, error: &HostError) {
        self.association = None;
        for queue in &mut self.queues {
            queue.cntlid = ControllerId::DYNAMIC; // none
            queue.pair.disconnect(cx, error.clone());
        }
        self.touch_all();
    }

    /// Closes all queues, because the association was given up or the program has finished.
    pub fn close(&mut self, cx: &mut Context<'_>) {
        self.closed = true;
        for queue in &mut self.queues {
            queue.pair.close(cx);
        }
        self.touch_all();
    }

    /// Whether all queues are closed, with nothing in flight.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed && self.queues.iter().all(|queue| queue.pair.is_closed())
    }

    /// Whether all queues wait for a connection, with nothing in flight.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.queues.iter().all(|queue| queue.pair.is_lost())
    }

    /// Number of queues; 0 before the first association.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// Whether there are no queues (yet).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Whether commands flow on all queues.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.queues.is_empty() && self.queues.iter().all(|queue| queue.pair.is_ready())
    }

    /// How many more commands a queue takes.
    #[must_use]
    pub fn room(&self, queue: usize) -> usize {
        self.queues.get(queue).map_or(0, |queue| queue.pair.room())
    }

    /// Commands outstanding on all queues.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.queues.iter().map(|queue| queue.pair.outstanding()).sum()
    }

    /// Accepts a command for the queue at this position.
    ///
    /// # Errors
    /// Gives the command back when there is no such queue, or it does not take it.
    pub fn submit(
        &mut self,
        cx: &mut Context<'_>,
        queue: usize,
        command: Command,
        user: u64,
    ) -> Result<(), Rejected> {
        self.touch(queue);
        match self.queues.get_mut(queue) {
            Some(queue) => queue.pair.submit(cx, command, user),
            None => Err(Rejected { reason: RejectedReason::Closed, command }),
        }
    }

    /// Takes a completion of an operation of one of the queues.
    pub fn handle_completion(&mut self, cx: &mut Context<'_>, completion: Completion) {
        let position = completion.token.index.checked_sub(self.token.index);
        let position = position.and_then(|position| usize::try_from(position).ok());
        let Some(index) = position.filter(|&position| position < self.queues.len()) else { return };
        self.touch(index);
        let queue = &mut self.queues[index];
        queue.pair.handle_completion(cx, completion);
        while let Some(event) = queue.pair.poll_event() {
            match (event, &self.association) {
                (QueueEvent::Ready { .. }, _) => {
                    self.events.push_back(IoQueueEvent::Ready { queue: index })
                }
                (QueueEvent::Lost(error), Some(association)) => {
                    let cntlid = association.cntlid;
                    if queue.cntlid == cntlid {
                        self.events.push_back(IoQueueEvent::Lost { queue: index, cntlid, error });
                    } else {
                        queue.follow(cx, association);
                    }
                }
                // Given up on purpose, or together with its controller.
                (QueueEvent::Lost(_), None) | (QueueEvent::Closed, _) => {}
            }
        }
    }

    /// Sends what is ready on all queues; once per turn.
    pub fn flush(&mut self, cx: &mut Context<'_>) {
        for _ in 0..self.touched.len() {
            let Some(index) = self.touched.pop_front() else { return };
            let queue = &mut self.queues[index];
            queue.pair.flush(cx);
            queue.touched = queue.pair.has_done();
            if queue.touched {
                self.touched.push_back(index);
            }
        }
    }

    /// The next finished command and the position of its queue.
    pub fn poll_done(&mut self) -> Option<(usize, CommandDone)> {
        for _ in 0..self.touched.len() {
            let index = *self.touched.front()?;
            if let Some(done) = self.queues[index].pair.poll_done() {
                return Some((index, done));
            }
            self.touched.rotate_left(1);
        }
        None
    }

    fn touch(&mut self, index: usize) {
        if let Some(queue) = self.queues.get_mut(index).filter(|queue| !queue.touched) {
            queue.touched = true;
            self.touched.push_back(index);
        }
    }

    fn touch_all(&mut self) {
        (0..self.queues.len()).for_each(|index| self.touch(index));
    }

    /// What all queues have done so far; readable from other threads.
    #[must_use]
    pub fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    /// What happened to one of the queues.
    pub fn poll_event(&mut self) -> Option<IoQueueEvent> {
        self.events.pop_front()
    }
}
