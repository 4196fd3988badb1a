//! Prefetch: tells devices in memory which data the next commands read.

use raceline_proto::controller::find_namespace;
use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::rw::BlockRange;
use raceline_reactor::flow::policy;

use super::Commands;
use crate::path::core::Core;

impl Commands {
    /// Tells devices where the next commands in `input` read; gives how many bytes of it are behind these.
    /// Writes to memory go past the caches.
    ///
    /// The processor has to look up each address in page tables that no cache may hold. It makes several
    /// look-ups at once when the commands come directly one after the other, and waits for
    /// each when a command's work is in between (lab 0044).
    #[inline(always)]
    pub(crate) fn look_ahead(&self, core: &mut Core, input: &[u8]) -> usize {
        let Some(queue) = &self.io else { return 0 };
        let devices = &queue.visible.devices;
        let mut ahead = self.out.queue.commands_ahead(input);
        for sqe in ahead.by_ref().take(policy::PREFETCH_COMMANDS) {
            if sqe.opc != io::READ {
                continue;
            }
            let namespaces = &devices.subsystem.namespaces;
            let Some(namespace) = find_namespace(namespaces, sqe.namespace_id()) else { continue };
            let block_size = namespaces[namespace].block_size;
            let BlockRange { slba, block_count } = BlockRange::parse(sqe);
            let offset = slba.saturating_mul(u64::from(block_size));
            let len = block_count as usize * block_size as usize;
            core.prefetch(devices.devices[namespace], offset, len);
        }
        ahead.rest()
    }
}
