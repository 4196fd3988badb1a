//! Which I/O queues of a controller are connected.

use super::connect::{ConnectError, IPO_QID};
use crate::nvme::{QueueId, Status};

/// Connected I/O queues and how many may be.
#[derive(Debug)]
pub(crate) struct IoQueues {
    /// By QID - 1; as long as the subsystem's limit.
    connected: Vec<bool>,
    /// How many the host was granted: QIDs 1..=granted.
    granted: u16,
}

impl IoQueues {
    pub(crate) fn new(limit: u16) -> Self {
        Self { connected: vec![false; limit.into()], granted: limit }
    }

    /// Whether that queue may exist and does not.
    pub(crate) fn check(&self, qid: QueueId) -> Result<usize, ConnectError> {
        let index = qid.0.checked_sub(1).filter(|_| qid.0 <= self.granted).map(usize::from);
        match index.and_then(|index| Some((index, self.connected.get(index)?))) {
            None => Err(ConnectError::in_sqe(IPO_QID)),
            // not DNR: the old queue may be on its way out
            Some((_, true)) => Err(ConnectError::status(Status::COMMAND_SEQUENCE_ERROR)),
            Some((index, false)) => Ok(index),
        }
    }

    pub(crate) fn open(&mut self, qid: QueueId) -> Result<(), ConnectError> {
        let index = self.check(qid)?;
        if let Some(connected) = self.connected.get_mut(index) {
            *connected = true;
        }
        Ok(())
    }

    pub(crate) fn close(&mut self, qid: QueueId) {
        let index = qid.0.checked_sub(1).map(usize::from);
        if let Some(connected) = index.and_then(|index| self.connected.get_mut(index)) {
            *connected = false;
        }
    }

    pub(crate) fn close_all(&mut self) {
        self.connected.fill(false);
    }

    /// What a controller reset leaves.
    pub(crate) fn reset(&mut self) {
        self.granted = self.limit();
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.connected.contains(&true)
    }

    /// How many the subsystem allows.
    pub(crate) fn limit(&self) -> u16 {
        u16::try_from(self.connected.len()).unwrap_or(u16::MAX)
    }

    /// How many the host may connect.
    pub(crate) fn granted(&self) -> u16 {
        self.granted
    }

    /// The host asked for that many; it gets what the limit allows.
    pub(crate) fn grant(&mut self, asked: u16) {
        self.granted = asked.min(self.limit());
    }
}
