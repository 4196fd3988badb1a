//! The I/O queues of one core, following an association that lives on any core.

use std::collections::VecDeque;
use std::sync::Arc;

use raceline_proto::nvme::{ControllerId, QueueId};
use raceline_reactor::{Arrival, Completion, Context, Token};

use crate::command::{Command, CommandDone, Rejected};
use crate::config::{Association, HostConfig};
use crate::counters::QueueCounters;
use crate::error::{HostError, RejectedReason};
use crate::gather::I10Config;
use crate::maps::{CoreMaps, CorePlace};
use crate::path::{Fence, Lease};
use crate::placement::NapiGroup;
use crate::queue::{QueueEvent, QueuePair, Returned};
use crate::transport::Transport;

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
/// The queues of one core share that core's poller: one turn of its loop looks at all of them. In
/// [`raceline_reactor::Mode::Poll`] it never sleeps, so no completion needs a wake-up.
///
/// The program tells it what the [`crate::Controller`] reports, by message if the controller lives on
/// another core, and reports lost queues back.
#[derive(Debug)]
pub struct IoQueueSet {
    config: HostConfig,
    token: Token,
    layout: Layout,
    /// Made when the first association is up.
    queues: Vec<Member>,
    /// The association that is up.
    association: Option<Association>,
    /// Queues with something to flush or to give back, each once: a turn costs what these cost, however
    /// many queues are quiet.
    touched: VecDeque<usize>,
    /// Commands that are to run on another path.
    returned: VecDeque<ReturnedFrom>,
    closed: bool,
    events: VecDeque<IoQueueEvent>,
    counters: Arc<QueueCounters>,
    napi_group: NapiGroup,
}

/// Which of an association's queues are here.
#[derive(Debug)]
enum Layout {
    /// Those that the program named.
    Named(Vec<u16>),
    /// Those of this core. Which these are is known when the controller has granted some.
    Core(CorePlace),
    /// Those of this core.
    Mapped(CoreMaps),
}

/// A command that is to run on another path, and where it comes from.
#[derive(Debug)]
pub(crate) struct ReturnedFrom {
    /// Position of its queue.
    pub(crate) queue: usize,
    pub(crate) returned: Returned,
    /// The fence of the association that may still execute it.
    pub(crate) fence: Option<Arc<Fence>>,
}

/// A queue and the association that it was last connected to.
#[derive(Debug)]
struct Member {
    pair: QueuePair,
    cntlid: ControllerId,
    /// The right to send on that association, while there is a connection.
    lease: Option<Lease>,
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
            self.lease = association.fence.lease();
            if self.lease.is_none() {
                return; // it is lost already, as will be told
            }
            self.pair.set_generated(association.generated.clone());
            self.pair.reconnect(cx, association.cntlid, association.controller.in_capsule_bytes);
        } else {
            self.pair.disconnect(cx, HostError::Closed);
        }
    }
}

impl Layout {
    fn qids(&self) -> &[u16] {
        match self {
            Self::Named(qids) => qids,
            Self::Core(_) => &[],
            Self::Mapped(maps) => maps.qids(),
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
        Self::with_layout(config, Layout::Named(qids), capacity, token)
    }

    /// The queues of one of the cores in use, as [`crate::maps`] divides those that the controller
    /// grants. [`Self::submit_mapped`] chooses among them. Tokens as for [`Self::new`].
    #[must_use]
    pub fn mapped(config: &HostConfig, core: CorePlace, token: Token) -> Self {
        let capacity = usize::from(config.queue_request().total()).div_ceil(core.count.max(1));
        Self::with_layout(config, Layout::Core(core), capacity, token)
    }

    fn with_layout(config: &HostConfig, layout: Layout, capacity: usize, token: Token) -> Self {
        Self {
            config: config.clone(),
            token,
            layout,
            queues: Vec::with_capacity(capacity),
            association: None,
            touched: VecDeque::with_capacity(capacity),
            returned: VecDeque::new(),
            closed: false,
            events: VecDeque::with_capacity(2 * capacity),
            counters: Arc::default(),
            napi_group: NapiGroup::default(),
        }
    }

    /// An association is up: queues connect. The first association may grant fewer queues than the program
    /// named. If it grants none of them, or a later association fewer than are in use, that counts as a
    /// lost connection ([`HostError::QueueNotGranted`]).
    pub fn handle_up(&mut self, cx: &mut Context<'_>, association: &Association) {
        if self.closed {
            return;
        }
        self.association = Some(association.clone());
        if self.queues.is_empty() {
            if let Layout::Core(core) = self.layout {
                let maps = self.config.queue_request().grant(association.io_queues);
                self.layout = Layout::Mapped(maps.core(core));
            }
            for (index, &qid) in (self.token.index..).zip(self.layout.qids()) {
                if qid <= association.io_queues {
                    let config = self.config.io_queue(association, QueueId(qid));
                    let token = Token { index, ..self.token };
                    let mut pair = QueuePair::new(config, token);
                    pair.share_counters(Arc::clone(&self.counters));
                    pair.join(&self.napi_group);
                    let cntlid = ControllerId::DYNAMIC; // none
                    let mut member = Member { pair, cntlid, lease: None, touched: false };
                    member.follow(cx, association);
                    self.queues.push(member);
                }
            }
            if let (true, Some(&qid)) = (self.queues.is_empty(), self.layout.qids().first()) {
                self.not_granted(0, qid, association);
            }
            self.touch_all();
            return;
        }
        for index in 0..self.queues.len() {
            let qid = self.queues[index].pair.qid().0;
            if qid > association.io_queues {
                self.not_granted(index, qid, association);
            } else {
                self.queues[index].follow(cx, association);
            }
        }
        self.touch_all();
    }

    fn not_granted(&mut self, queue: usize, qid: u16, association: &Association) {
        let (address, granted) = (self.config.address, association.io_queues);
        let error = HostError::QueueNotGranted { address, qid, granted };
        self.events.push_back(IoQueueEvent::Lost { queue, cntlid: association.cntlid, error });
    }

    /// The association is lost: queues give their connections up and wait for the next.
    pub fn handle_down(&mut self, cx: &mut Context<'_>, error: &HostError) {
        self.association = None;
        for index in 0..self.queues.len() {
            let queue = &mut self.queues[index];
            queue.cntlid = ControllerId::DYNAMIC; // none
            if let Some(lease) = &queue.lease {
                lease.fence().seal(cx.now);
            }
            queue.pair.disconnect(cx, error.clone());
            self.settle(cx, index);
        }
        self.touch_all();
    }

    /// Closes all queues, because the association was given up or the program has finished.
    pub fn close(&mut self, cx: &mut Context<'_>) {
        self.closed = true;
        for index in 0..self.queues.len() {
            self.queues[index].pair.close(cx);
            self.settle(cx, index);
        }
        self.touch_all();
    }

    /// Takes what a queue gives back for another path, and the lease of a connection that is gone.
    #[cold]
    fn settle(&mut self, cx: &Context<'_>, index: usize) {
        let queue = &mut self.queues[index];
        while let Some(returned) = queue.pair.poll_returned() {
            let fence = queue.lease.as_ref().map(|lease| Arc::clone(lease.fence()));
            self.returned.push_back(ReturnedFrom { queue: index, returned, fence });
        }
        if (queue.pair.is_lost() || queue.pair.is_closed())
            && let Some(lease) = queue.lease.take()
        {
            lease.release(cx.now);
        }
    }

    /// Whether something has happened besides the end of commands.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        !self.returned.is_empty() || !self.events.is_empty()
    }

    /// The next command that is to run on another path.
    pub(crate) fn poll_returned(&mut self) -> Option<ReturnedFrom> {
        self.returned.pop_front()
    }

    /// Counts what these queues do together with other queues of this core.
    pub(crate) fn share_counters(&mut self, counters: Arc<QueueCounters>) {
        self.counters = counters;
    }

    /// Whether commands flow on the queue at this position.
    pub(crate) fn is_queue_ready(&self, queue: usize) -> bool {
        self.queues.get(queue).is_some_and(|queue| queue.pair.is_ready())
    }

    /// Commands outstanding on the queue at this position.
    pub(crate) fn queue_outstanding(&self, queue: usize) -> usize {
        self.queues.get(queue).map_or(0, |queue| queue.pair.outstanding())
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
    #[inline(always)]
    pub fn submit(
        &mut self,
        cx: &mut Context<'_>,
        queue: usize,
        command: Command,
        user: u64,
    ) -> Result<(), Rejected> {
        let Some(member) = self.queues.get_mut(queue) else {
            return Err(Rejected { reason: RejectedReason::Closed, command });
        };
        if !member.touched {
            member.touched = true;
            self.touched.push_back(queue);
        }
        member.pair.submit(cx, command, user)
    }

    /// Another path may have executed the command that was submitted last to the queue at this position.
    pub(crate) fn note_tried(&mut self, queue: usize) {
        if let Some(member) = self.queues.get_mut(queue) {
            member.pair.note_tried();
        }
    }

    /// Whether the queue at this position takes a command.
    pub(crate) fn takes(&self, queue: usize, command: &Command) -> bool {
        self.queues.get(queue).is_some_and(|member| member.pair.takes(command))
    }

    /// Accepts commands for the queue at this position that leave together, from the front of `batch`
    /// ([`QueuePair::submit_batch`]).
    ///
    /// # Errors
    /// When there is no such queue, or it does not take the command that is at the front now.
    pub fn submit_batch(
        &mut self,
        cx: &mut Context<'_>,
        queue: usize,
        batch: &mut VecDeque<(Command, u64)>,
    ) -> Result<(), RejectedReason> {
        self.touch(queue);
        match self.queues.get_mut(queue) {
            Some(queue) => queue.pair.submit_batch(cx, batch),
            None => Err(RejectedReason::Closed),
        }
    }

    /// Accepts a command for the queue of its map: polled commands go to a poll queue, reads to a read
    /// queue, where there are such queues. `lane` names the submitter: among several suitable queues of
    /// this core, a lane always gets the same one. Returns the position of the queue.
    ///
    /// # Errors
    /// Gives the command back as [`Self::submit`] does, and when this core's queue of the map is one
    /// that lives on another core ([`RejectedReason::Elsewhere`]).
    pub fn submit_mapped(
        &mut self,
        cx: &mut Context<'_>,
        (polled, lane): (bool, usize),
        command: Command,
        user: u64,
    ) -> Result<usize, Rejected> {
        let position = match &self.layout {
            Layout::Mapped(maps) => maps.route(command.sqe.opc, polled, lane),
            Layout::Named(_) => lane.checked_rem(self.queues.len()),
            Layout::Core(_) => {
                return Err(Rejected { reason: RejectedReason::Closed, command });
            }
        };
        let Some(position) = position else {
            return Err(Rejected { reason: RejectedReason::Elsewhere, command });
        };
        self.submit(cx, position, command, user).map(|()| position)
    }

    /// How commands find their queue, once that is known: for a set made by [`Self::mapped`].
    #[must_use]
    pub fn maps(&self) -> Option<&CoreMaps> {
        if let Layout::Mapped(maps) = &self.layout { Some(maps) } else { None }
    }

    /// Changes how commands are gathered before they are sent, on all queues from now on and on those
    /// that are made later.
    pub fn set_i10(&mut self, i10: Option<I10Config>) {
        self.config.i10 = i10;
        self.queues.iter_mut().for_each(|queue| queue.pair.set_i10(i10));
        self.touch_all();
    }

    /// Where the packets of the queue at this position come in.
    #[must_use]
    pub fn arrival(&self, queue: usize) -> Arrival {
        self.queues.get(queue).map(|queue| queue.pair.arrival()).unwrap_or_default()
    }

    /// Takes a completion of an operation of one of the queues.
    pub fn handle_completion(&mut self, cx: &mut Context<'_>, completion: Completion) {
        let position = completion.token.index.checked_sub(self.token.index);
        let position = position.and_then(|position| usize::try_from(position).ok());
        let Some(index) = position.filter(|&position| position < self.queues.len()) else { return };
        self.touch(index);
        let queue = &mut self.queues[index];
        queue.pair.handle_completion(cx, completion);
        if !queue.pair.is_ready() || queue.pair.has_returned() {
            self.settle(cx, index);
        }
        let queue = &mut self.queues[index];
        while let Some(event) = queue.pair.poll_event() {
            match (event, &self.association) {
                (QueueEvent::Ready { .. }, _) => {
                    self.events.push_back(IoQueueEvent::Ready { queue: index })
                }
                (QueueEvent::Lost(error), Some(association)) => {
                    let cntlid = association.cntlid;
                    if queue.cntlid == cntlid {
                        association.fence.seal(cx.now);
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

    /// Over RDMA, takes what the device has done, without a system call and without its notice: once per turn, so a core that spins
    /// waits for nothing else. The next turn gives what has ended.
    pub fn spin(&self, cx: &mut Context<'_>) {
        if self.config.transport == Transport::Rdma {
            for queue in &self.queues {
                queue.pair.spin(cx);
            }
        }
    }

    /// The next finished command and the position of its queue.
    #[inline]
    pub fn poll_done(&mut self) -> Option<(usize, CommandDone)> {
        for _ in 0..self.touched.len() {
            let index = *self.touched.front()?;
            if let Some(done) = self.queues[index].pair.poll_done() {
                return Some((index, done));
            }
            self.touched.pop_front();
            self.touched.push_back(index);
        }
        None
    }

    /// How many commands [`Self::poll_done`] has to give.
    #[must_use]
    pub fn done_count(&self) -> usize {
        self.touched.iter().map(|&index| self.queues[index].pair.done_count()).sum()
    }

    /// Takes all finished commands, with the positions of their queues.
    #[inline]
    pub fn take_done(&mut self, mut take: impl FnMut(usize, CommandDone)) {
        for &index in &self.touched {
            let pair = &mut self.queues[index].pair;
            while let Some(done) = pair.poll_done() {
                take(index, done);
            }
        }
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
