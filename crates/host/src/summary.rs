//! What a command was about, for messages that name the culprit.

use std::fmt;

use raceline_proto::host::BlockRange;
use raceline_proto::nvme::opcode::{admin, fabrics, io};
use raceline_proto::nvme::{NamespaceId, Sqe};

/// What a command was about: enough to name the culprit in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandSummary {
    /// OPC.
    pub opcode: u8,
    /// Whether it was on the admin queue.
    pub admin: bool,
    /// NSID, or FCTYPE of a Fabrics command.
    pub nsid: NamespaceId,
    /// The blocks of a Read, Write, Compare or Write Zeroes.
    pub blocks: Option<BlockRange>,
}

impl CommandSummary {
    /// Of a command on the admin queue or on an I/O queue.
    #[must_use]
    pub fn new(sqe: &Sqe, admin: bool) -> Self {
        let ranged =
            !admin && matches!(sqe.opc, io::READ | io::WRITE | io::COMPARE | io::WRITE_ZEROES);
        let blocks = ranged.then(|| BlockRange::of(sqe));
        Self { opcode: sqe.opc, admin, nsid: sqe.namespace_id(), blocks }
    }

    /// The command's name in the specification.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match (self.opcode, self.admin) {
            (fabrics::OPCODE, _) => match self.nsid.0.to_le_bytes()[0] {
                fabrics::PROPERTY_SET => "Property Set",
                fabrics::CONNECT => "Connect",
                fabrics::PROPERTY_GET => "Property Get",
                _ => "Fabrics command",
            },
            (admin::GET_LOG_PAGE, true) => "Get Log Page",
            (admin::IDENTIFY, true) => "Identify",
            (admin::ABORT, true) => "Abort",
            (admin::SET_FEATURES, true) => "Set Features",
            (admin::GET_FEATURES, true) => "Get Features",
            (admin::ASYNC_EVENT_REQUEST, true) => "Asynchronous Event Request",
            (admin::KEEP_ALIVE, true) => "Keep Alive",
            (io::FLUSH, false) => "Flush",
            (io::WRITE, false) => "Write",
            (io::READ, false) => "Read",
            (io::COMPARE, false) => "Compare",
            (io::WRITE_ZEROES, false) => "Write Zeroes",
            (io::DATASET_MANAGEMENT, false) => "Dataset Management",
            _ => "command",
        }
    }
}

impl fmt::Display for CommandSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        if self.opcode == fabrics::OPCODE {
            return Ok(());
        }
        if self.nsid.0 != 0 {
            write!(f, " of namespace {}", self.nsid)?;
        }
        if let Some(blocks) = self.blocks {
            write!(f, ", LBA {} ({} blocks)", blocks.slba(), blocks.block_count())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use raceline_proto::host::command;

    use super::*;

    #[test]
    fn a_summary_names_the_blocks() {
        let range = BlockRange::new(16, 8).unwrap();
        let sqe = command::read(NamespaceId(2), range);
        let text = CommandSummary::new(&sqe, false).to_string();
        assert_eq!(text, "Read of namespace 2, LBA 16 (8 blocks)");
        let keep_alive = CommandSummary::new(&command::keep_alive(), true).to_string();
        assert_eq!(keep_alive, "Keep Alive");
    }
}
