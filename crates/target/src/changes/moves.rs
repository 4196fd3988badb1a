//! Which core has an I/O queue, as the program decides it.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use raceline_proto::nvme::{ControllerId, Nqn, QueueId};

use crate::changes::balance::Balancer;
use crate::changes::config::TargetError;
use crate::changes::message::Message;
use crate::changes::target::Target;
use crate::records::names::Place;

impl Target {
    /// Has a thread look at the cores at this interval, and move I/O queues from full cores to those that have time;
    /// `None`: every connection stays on the core that it was placed on, as at the start.
    ///
    /// # Errors
    /// When the target has a placement policy that says where a connection belongs, or there can be no thread.
    pub fn set_balancing(&self, interval: Option<Duration>) -> Result<(), TargetError> {
        let mut balancer = self.balancer.lock().unwrap_or_else(PoisonError::into_inner);
        *balancer = match interval {
            None => None,
            Some(_) if !self.control.shared.may_move() => return Err(TargetError::PlacedByPolicy),
            Some(interval) => {
                let loops = self.cores.iter().map(|core| Arc::clone(core.stats())).collect();
                let interval = interval.max(Duration::from_millis(1));
                let started = Balancer::start(Arc::clone(&self.control), loops, interval);
                Some(started.map_err(TargetError::Balancer)?)
            }
        };
        Ok(())
    }

    /// The interval of [`Self::set_balancing`].
    #[must_use]
    pub fn balancing(&self) -> Option<Duration> {
        let balancer = self.balancer.lock().unwrap_or_else(PoisonError::into_inner);
        balancer.as_ref().map(|balancer| balancer.interval)
    }

    /// Asks for an I/O queue to move to another core, by its index. It moves when it next has nothing in flight, within
    /// 200 ms, or stays. [`crate::QueueInfo::core`] says where it is.
    ///
    /// # Errors
    /// When there is no such queue or core, the queue is over RDMA, or the queues of the target do not move.
    pub fn move_queue(
        &self,
        nqn: &Nqn,
        cntlid: ControllerId,
        qid: QueueId,
        core: usize,
    ) -> Result<(), TargetError> {
        let shared = &self.control.shared;
        if !shared.may_move() {
            return Err(TargetError::PlacedByPolicy);
        }
        let name = (cntlid, qid, nqn.clone());
        let load = self.control.loads().into_iter().find(|load| load.name == name);
        let load = load.filter(|_| core < shared.cores());
        let load = load.ok_or(TargetError::NoQueue { cntlid, qid, core })?;
        if load.is_rdma {
            return Err(TargetError::StaysOnCore { cntlid, qid });
        }
        let Place { core: from, key } = load.place;
        shared.send(from, Message::Move { key, to: core });
        Ok(())
    }
}
