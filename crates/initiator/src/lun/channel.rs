//! One core's way to a logical unit.

use std::collections::VecDeque;
use std::sync::Arc;

use raceline_bdev::{Channel, Done, Request};
use raceline_reactor::{Completion, Context, PartPool, Token};

use super::operation::{Limits, Operation};
use crate::config::SessionConfig;
use crate::facts::UnitInfo;
use crate::session::{Session, SessionEvent};
use crate::task::TaskDone;

/// A session, and the requests on it.
#[derive(Debug)]
pub(super) struct LunChannel {
    session: Session,
    limits: Limits,
    operations: Vec<Option<Operation>>,
    free: Vec<usize>,
    /// Operations that found no room for all their commands. Only the first has commands on their way.
    backlog: VecDeque<usize>,
    /// For the parts of requests that are more than one command may move.
    parts: PartPool,
    closed: bool,
}

impl LunChannel {
    pub(super) fn open(
        cx: &mut Context<'_>,
        config: &Arc<SessionConfig>,
        unit: &UnitInfo,
        owner: u16,
    ) -> Self {
        let token = Token { owner, generation: 0, index: 0 };
        Self {
            session: Session::connect(cx, Arc::clone(config), token),
            limits: Limits::new(unit),
            operations: Vec::new(),
            free: Vec::new(),
            backlog: VecDeque::new(),
            // A task that has ended holds its part until its end is taken.
            parts: PartPool::new(2 * usize::from(config.depth)),
            closed: false,
        }
    }

    /// Submits the commands of the operations that wait, as far as there is room.
    fn submit_backlog(&mut self, cx: &mut Context<'_>, done: &mut Vec<Done>) {
        while let Some(&index) = self.backlog.front() {
            if let Some(operation) = &mut self.operations[index] {
                while !operation.is_submitted() {
                    if self.session.room() == 0 && !self.session.is_closed() {
                        return;
                    }
                    let Some(task) = operation.next_task(&self.limits, &self.parts) else {
                        return; // until parts come back
                    };
                    let name = u64::try_from(index).expect("fewer operations than 2^64");
                    if let Err(rejected) = self.session.submit(cx, task, name) {
                        operation.give_up(rejected.task.data);
                    }
                }
            }
            self.backlog.pop_front();
            self.end(index, done);
        }
    }

    fn collect(&mut self, done: &mut Vec<Done>) {
        while let Some(finished) = self.session.poll_done() {
            self.handle_done(finished, done);
        }
        while let Some(event) = self.session.poll_event() {
            let config = self.session.config();
            let target = config.target_name.as_ref().map_or("", |name| name.as_str());
            match event {
                SessionEvent::Lost(error) => {
                    tracing::warn!(target_name = target, lun = config.lun, %error, "session lost");
                }
                SessionEvent::Failed(error) => {
                    tracing::error!(target_name = target, lun = config.lun, %error, "session given up");
                }
                SessionEvent::Attention(check) => {
                    let lun = config.lun;
                    tracing::info!(target_name = target, lun, %check, "the logical unit has changed");
                }
                SessionEvent::Ready | SessionEvent::Closed | SessionEvent::Targets(_) => {}
            }
        }
    }

    fn handle_done(&mut self, finished: TaskDone, done: &mut Vec<Done>) {
        let Ok(index) = usize::try_from(finished.user) else { return };
        let Some(Some(operation)) = self.operations.get_mut(index) else { return };
        let waits = !operation.is_submitted();
        let flush = operation.handle_done(finished.result, finished.data);
        if flush {
            self.backlog.push_back(index);
        } else if waits && operation.is_submitted() {
            self.backlog.retain(|&waiting| waiting != index); // a command has failed
        }
        self.end(index, done);
    }

    /// Gives a request back if it is over.
    fn end(&mut self, index: usize, done: &mut Vec<Done>) {
        let place = &mut self.operations[index];
        let Some(over) = place.take_if(|operation| operation.has_ended()) else { return };
        self.free.push(index);
        let (tag, result, memory) = over.finish();
        let (result, payload) = match memory.into_payload() {
            Ok(payload) => (result, payload),
            Err(error) => (result.and(Err(error)), None),
        };
        done.push(Done { tag, result, payload });
    }
}

impl Channel for LunChannel {
    fn submit(&mut self, cx: &mut Context<'_>, request: Request, done: &mut Vec<Done>) {
        let Request { tag, op } = request;
        let operation = match Operation::new(tag, op, &self.limits) {
            Ok(operation) => operation,
            Err((error, memory)) => {
                let payload = memory.into_payload().ok().flatten();
                done.push(Done { tag, result: Err(error), payload });
                return;
            }
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.operations.push(None);
            self.operations.len() - 1
        });
        self.operations[index] = Some(operation);
        self.backlog.push_back(index);
        self.submit_backlog(cx, done);
    }

    fn handle_completion(
        &mut self,
        cx: &mut Context<'_>,
        completion: Completion,
        done: &mut Vec<Done>,
    ) {
        if self.closed {
            return; // of a session that is given up
        }
        self.session.handle_completion(cx, completion);
        self.collect(done);
        self.submit_backlog(cx, done);
    }

    fn flush(&mut self, cx: &mut Context<'_>, done: &mut Vec<Done>) {
        self.session.flush(cx);
        self.collect(done);
        self.submit_backlog(cx, done);
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        self.closed = true;
        self.session.abandon(cx);
    }
}
