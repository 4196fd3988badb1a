//! Which I/O queues of a controller are connected.

use super::connect::{ConnectError, IPO_QID};
use crate::nvme::{QueueId, Status};

/// Connected I/O queues and how many may be.
#[derive(Debug)]
pub(crate) struct IoQueues {
    /// By QID - 1; as long as the subsystem's limit.
    pub(super) connected: Vec<bool>,
    /// How many the host was granted: QIDs 1..=granted.
    pub(super) granted: u16,
}

impl IoQueues {
    pub(crate) fn new(limit: u16) -> Self {
        Self { connected: vec![false; limit.into()], granted: limit }
    }

    /// Whether the host may have a queue of that number.
    pub(crate) fn check(&self, qid: QueueId) -> Result<(), ConnectError> {
        if qid.is_admin() || qid.0 > self.granted {
            return Err(ConnectError::in_sqe(IPO_QID));
        }
        Ok(())
    }

    /// Connects a queue whose number was checked.
    pub(crate) fn open(&mut self, qid: QueueId) -> Result<(), ConnectError> {
        self.check(qid)?;
        match self.place(qid) {
            Some(connected) if !*connected => {
                *connected = true;
                Ok(())
            }
            // not DNR: the old queue may be about to close
            _ => Err(ConnectError::status(Status::COMMAND_SEQUENCE_ERROR)),
        }
    }

    fn place(&mut self, qid: QueueId) -> Option<&mut bool> {
        let index = usize::from(qid.0.checked_sub(1)?);
        self.connected.get_mut(index)
    }

    pub(crate) fn close(&mut self, qid: QueueId) {
        if let Some(connected) = self.place(qid) {
            *connected = false;
        }
    }

    pub(crate) fn close_all(&mut self) {
        self.connected.fill(false);
    }

    /// Sets the state after a controller reset.
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

    /// The host asked for that many queues; it gets at most the limit.
    pub(crate) fn grant(&mut self, asked: u16) {
        self.granted = asked.min(self.limit());
    }
}
