//! A command as Linux's nvme driver takes it from a process, by ioctl or by io_uring.

use zerocopy::{Immutable, IntoBytes};

use super::command::Sqe;

/// The kernel's `struct nvme_passthru_cmd`; `struct nvme_uring_cmd` differs only in the name of the
/// last word (`include/uapi/linux/nvme_ioctl.h`). Its integers have the machine's byte order.
///
/// It is a submission queue entry without the fields that the driver fills in (CID, PSDT, FUSE and SGL), plus
/// the address and the length of the data in the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, Immutable)]
#[repr(C)]
pub struct PassthroughCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    address: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    /// 0 means the driver's own timeout.
    timeout_ms: u32,
    /// The driver writes DW0 of the completion here when it was called by ioctl.
    result: u32,
}

const _: () = assert!(size_of::<PassthroughCommand>() == PassthroughCommand::LEN);

impl PassthroughCommand {
    /// Size in bytes, which the numbers of the driver's requests contain.
    pub const LEN: usize = 72;

    /// The command of an entry, without data.
    #[must_use]
    pub fn new(sqe: &Sqe) -> Self {
        Self {
            opcode: sqe.opc,
            nsid: sqe.nsid.get(),
            cdw2: sqe.cdw2.get(),
            cdw3: sqe.cdw3.get(),
            cdw10: sqe.cdw10.get(),
            cdw11: sqe.cdw11.get(),
            cdw12: sqe.cdw12.get(),
            cdw13: sqe.cdw13.get(),
            cdw14: sqe.cdw14.get(),
            cdw15: sqe.cdw15.get(),
            ..Self::default()
        }
    }

    /// The same with `len` bytes of data at this address of the process.
    #[must_use]
    pub const fn with_data(self, address: u64, len: u32) -> Self {
        Self { address, data_len: len, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::NamespaceId;
    use crate::nvme::command::{self, BlockRange};

    #[test]
    fn the_kernels_layout() {
        let range = BlockRange::new(0x0102_0304_0506_0708, 8).unwrap();
        let sqe = command::write(NamespaceId(9), range, true);
        let command = PassthroughCommand::new(&sqe).with_data(0x1122_3344_5566_7788, 4096);
        let bytes = command.as_bytes();
        assert_eq!((bytes[0], bytes[1]), (0x01, 0));
        assert_eq!(bytes[4..8], 9_u32.to_ne_bytes());
        assert_eq!(bytes[8..24], [0; 16], "CDW2, CDW3, metadata");
        assert_eq!(bytes[24..32], 0x1122_3344_5566_7788_u64.to_ne_bytes());
        assert_eq!(bytes[32..36], [0; 4], "length of the metadata");
        assert_eq!(bytes[36..40], 4096_u32.to_ne_bytes());
        assert_eq!(bytes[40..44], 0x0506_0708_u32.to_ne_bytes());
        assert_eq!(bytes[44..48], 0x0102_0304_u32.to_ne_bytes());
        assert_eq!(bytes[48..52], (7 | 1_u32 << 30).to_ne_bytes());
        assert_eq!(bytes[52..], [0; 20], "CDW13 to CDW15, timeout, result");
    }

    #[test]
    fn all_words_of_an_entry_are_taken() {
        let sqe = Sqe {
            opc: 0xaa,
            cdw2: 2.into(),
            cdw3: 3.into(),
            cdw13: 13.into(),
            cdw14: 14.into(),
            cdw15: 15.into(),
            ..Sqe::default()
        };
        let command = PassthroughCommand::new(&sqe);
        assert_eq!((command.opcode, command.cdw2, command.cdw3), (0xaa, 2, 3));
        assert_eq!((command.cdw13, command.cdw14, command.cdw15), (13, 14, 15));
    }
}
