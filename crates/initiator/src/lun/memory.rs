//! The buffer of a request, and what its tasks get of it.

use raceline_bdev::BdevError;
use raceline_reactor::{IoBuf, PartPool, PartedBuf, Payload, SharedBuf};

use crate::task::TaskData;

/// The buffer of a request. A task that moves all of it gets the buffer itself, and others get parts, which are no copies.
#[derive(Debug)]
pub(super) enum Memory {
    None,
    Write(SharedBuf),
    Read(IoBuf),
    /// A read whose buffer is with its only task.
    Given,
    Parted(PartedBuf),
}

impl Memory {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::None | Self::Given => 0,
            Self::Write(buf) => buf.len(),
            Self::Read(buf) => buf.len(),
            Self::Parted(buf) => buf.len(),
        }
    }

    /// The data of a task that moves `len` bytes from `offset` on; `None`: all parts are in use. Tasks come in order.
    pub(super) fn give(&mut self, parts: &PartPool, offset: usize, len: usize) -> Option<TaskData> {
        let (all, range) = (0..self.len(), offset..offset + len);
        match std::mem::replace(self, Self::None) {
            Self::Write(buf) => {
                let given = if range == all { Some(buf.clone()) } else { parts.share(&buf, range) };
                *self = Self::Write(buf);
                given.map(TaskData::Write)
            }
            Self::Read(buf) if range == all => {
                *self = Self::Given;
                Some(TaskData::Read(buf))
            }
            Self::Read(buf) => self.give_part(PartedBuf::new(buf), parts, len),
            Self::Parted(buf) => self.give_part(buf, parts, len),
            Self::None | Self::Given => unreachable!("a task moves what the request has"),
        }
    }

    fn give_part(&mut self, mut buf: PartedBuf, parts: &PartPool, len: usize) -> Option<TaskData> {
        let given = buf.give(parts, len);
        *self = Self::Parted(buf);
        given.map(TaskData::Read)
    }

    /// Takes the data of a task back that has ended.
    pub(super) fn take_back(&mut self, data: TaskData) {
        if let (Self::Given, TaskData::Read(buf)) = (&*self, data) {
            *self = Self::Read(buf);
        }
    }

    /// What the request gets back.
    pub(super) fn into_payload(self) -> Result<Option<Payload>, BdevError> {
        let buf = match self {
            Self::None | Self::Given => return Ok(None),
            Self::Write(buf) => {
                let len = buf.len();
                return Ok(Some(Payload::Shared(buf, 0..len)));
            }
            Self::Read(buf) => buf,
            Self::Parted(buf) => buf.try_join().map_err(|_| BdevError::Transient)?,
        };
        let len = buf.len();
        Ok(Some(Payload::Buf(buf, 0..len)))
    }
}
