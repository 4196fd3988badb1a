//! Get LBA Status: which blocks are allocated, and which cannot be read (NVM Command Set 1.1, 4.2.1).

use std::ops::Range;

use zerocopy::IntoBytes;

use super::extent::check_range;
use super::{AdminOutcome, Controller};
use crate::nvme::lba_status::{
    ACTION_ALLOCATED, ACTION_SCAN, ACTION_TRACKED, COMPLETE, FULL, LbaStatusDescriptor,
    LbaStatusList,
};
use crate::nvme::rw::BlockRange;
use crate::nvme::{NamespaceId, Sqe, Status};

/// Most descriptors of an answer; the host asks again behind the last one.
const DESCRIPTORS: usize = 4096;

/// What a host wants to know of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LbaState {
    /// They are allocated: the others read zeroes.
    Allocated,
    /// They cannot be read.
    Unreadable,
}

/// A Get LBA Status: which blocks of a range are in a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LbaStatusQuery {
    /// Of which namespace.
    pub nsid: NamespaceId,
    /// Which state.
    pub state: LbaState,
    /// The blocks that are looked at.
    pub blocks: Range<u64>,
    /// Ends the search when it has found this many ranges; 0: there is no room for any.
    pub most: usize,
}

impl LbaStatusQuery {
    /// Puts the ranges that were found, in ascending order, into the answer, which is zeroed.
    pub fn put(&self, found: &[Range<u64>], reply: &mut [u8]) {
        let (head, mut rest) = reply.split_at_mut(LbaStatusList::LEN.min(reply.len()));
        let (mut count, mut is_whole) = (0_u32, found.len() < self.most);
        for mut range in found.iter().cloned() {
            while range.start < range.end {
                let room = std::mem::take(&mut rest);
                let Some((place, after)) = room.split_at_mut_checked(LbaStatusDescriptor::LEN)
                else {
                    is_whole = false;
                    break;
                };
                let blocks = u32::try_from(range.end - range.start).unwrap_or(u32::MAX);
                let descriptor = LbaStatusDescriptor {
                    dslba: range.start.into(),
                    nlb: blocks.into(),
                    ..LbaStatusDescriptor::default()
                };
                place.copy_from_slice(descriptor.as_bytes());
                (rest, count, range.start) = (after, count + 1, range.start + u64::from(blocks));
            }
        }
        let list = LbaStatusList {
            nlsd: count.into(),
            cmpc: if is_whole { COMPLETE } else { FULL },
            ..LbaStatusList::default()
        };
        // A host that asks for less than the head of the list gets the beginning of it.
        head.copy_from_slice(&list.as_bytes()[..head.len()]);
    }
}

impl Controller {
    /// Whether a namespace that the host sees has anything to tell.
    pub(crate) fn knows_lba_status(&self) -> bool {
        let namespaces = self.subsystem().into_iter().flat_map(|subsystem| &subsystem.namespaces);
        namespaces.into_iter().any(|namespace| namespace.knows_holes || namespace.uncorrectable)
    }

    pub(crate) fn lba_status(&self, sqe: &Sqe, reply: &mut [u8]) -> Result<AdminOutcome, Status> {
        let nsid = sqe.namespace_id();
        let namespace = self.namespace(nsid).ok_or(Status::INVALID_NAMESPACE.dnr())?;
        if let Some(status) = self.ana_refusal(nsid) {
            return Err(status);
        }
        let [l0, l1, _, action] = sqe.cdw13.get().to_le_bytes();
        let (state, is_known) = match action {
            ACTION_ALLOCATED if namespace.knows_holes => (LbaState::Allocated, true),
            // No scan finds more than the device knows.
            ACTION_SCAN | ACTION_TRACKED => (LbaState::Unreadable, namespace.uncorrectable),
            _ => return Err(Status::INVALID_FIELD.dnr()),
        };
        let slba = BlockRange::parse(sqe).slba;
        check_range(slba, 1, namespace)?;
        let len = u64::from(u16::from_le_bytes([l0, l1]));
        // 0 is up to the end of the namespace.
        let end = if len == 0 { namespace.block_count } else { slba.saturating_add(len) };
        if end > namespace.block_count {
            return Err(Status::LBA_OUT_OF_RANGE.dnr());
        }
        // MNDW is 0's based.
        let asked = (u64::from(sqe.cdw12.get()) + 1) * 4;
        let asked = usize::try_from(asked).unwrap_or(usize::MAX).min(reply.len());
        let room = asked.saturating_sub(LbaStatusList::LEN) / LbaStatusDescriptor::LEN;
        let query = LbaStatusQuery { nsid, state, blocks: slba..end, most: room.min(DESCRIPTORS) };
        if is_known {
            return Ok(AdminOutcome::LbaStatus(query.into()));
        }
        // Nothing that can be read is unreadable.
        LbaStatusQuery { most: usize::MAX, ..query }.put(&[], reply);
        Ok(AdminOutcome::success(0))
    }
}
