//! Commands that have arrived but not been received yet.

use zerocopy::FromBytes;

use super::pdu::{CapsuleCmdPdu, CommonHeader, PduType};
use crate::nvme::Sqe;

/// The commands of the whole PDUs at the front of some input, as hints: their content is
/// unchecked, and not all of them need be received. See [`ControllerQueue::commands_ahead`].
///
/// [`ControllerQueue::commands_ahead`]: super::ControllerQueue::commands_ahead
#[derive(Clone, Debug)]
pub struct CommandsAhead<'a> {
    input: &'a [u8],
}

impl<'a> CommandsAhead<'a> {
    /// The commands of `input`, which begins with a PDU.
    pub(super) fn new(input: &'a [u8]) -> Self {
        Self { input }
    }

    /// How much of the input is behind the last command given.
    #[must_use]
    pub fn rest(&self) -> usize {
        self.input.len()
    }
}

impl<'a> Iterator for CommandsAhead<'a> {
    type Item = &'a Sqe;

    #[inline]
    fn next(&mut self) -> Option<&'a Sqe> {
        loop {
            let (common, _) = CommonHeader::ref_from_prefix(self.input).ok()?;
            let plen = common.plen.get() as usize;
            let (pdu, rest) = self.input.split_at_checked(plen.max(CommonHeader::LEN))?;
            self.input = rest;
            if PduType::from_wire(common.pdu_type) == Some(PduType::CapsuleCmd) {
                return CapsuleCmdPdu::ref_from_prefix(pdu).ok().map(|(capsule, _)| &capsule.sqe);
            }
        }
    }
}
