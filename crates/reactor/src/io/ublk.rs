//! Queues of ublk disks (Documentation/block/ublk.rst of Linux): what is told to the kernel, and what it asks for.

use std::io;

/// A queue of a disk, as its character device (`/dev/ublkcN`) has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UblkQueue {
    /// Its number.
    pub queue: u16,
    /// Requests at a time, each with a tag below this.
    pub depth: u16,
    /// Most bytes of data of a request. The memory of each command has at least as many.
    pub max_io_bytes: u32,
    /// Commands have the numbers of ioctl(2) (Linux 6.4, `UBLK_F_CMD_IOCTL_ENCODE`).
    pub ioctl_encode: bool,
    /// The kernel copies no data to or from the memory of commands (Linux 6.17, `UBLK_F_AUTO_BUF_REG`). It makes the pages of
    /// a request a buffer of the ring, under the number of its tag, until the request is committed: see [`UblkMove`].
    pub pages: bool,
}

/// What the kernel asks for. Nothing of it has been checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UblkDescriptor {
    /// The operation (bits 7:0), and flags.
    pub op_flags: u32,
    /// How many sectors of 512 bytes.
    pub nr_sectors: u32,
    /// The first of them.
    pub start_sector: u64,
}

/// Asks the kernel for the next request of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UblkCommand {
    /// The tag.
    pub tag: u16,
    /// The result of the request that this tag had: bytes, or the negative number of an error. `None` for the first
    /// command of the tag.
    pub commit: Option<i32>,
}

/// Data that go between a file and the pages of a request of the kernel, without a copy in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UblkMove {
    /// The tag of the request.
    pub tag: u16,
    /// From the pages to the file, instead of from the file to the pages.
    pub writes: bool,
    /// On stable media before it ends (RWF_DSYNC).
    pub durable: bool,
    /// Where in the file.
    pub offset: u64,
    /// How many bytes, from the first one of the request on.
    pub len: u32,
}

/// Most requests of a queue at a time (`UBLK_MAX_QUEUE_DEPTH`).
pub const MAX_DEPTH: u16 = 4096;

/// `UBLK_IO_FETCH_REQ` and `UBLK_IO_COMMIT_AND_FETCH_REQ`.
const FETCH: u32 = 0x20;
const COMMIT_AND_FETCH: u32 = 0x21;

/// `UBLK_AUTO_BUF_REG_FALLBACK`: a request whose pages cannot be a buffer comes without them.
const REGISTRATION_MAY_FAIL: u64 = 1 << 16;

/// Bytes of `struct ublksrv_io_cmd`.
pub(crate) const COMMAND_LEN: usize = 16;

/// Bytes of `struct ublksrv_io_desc`.
pub(crate) const DESCRIPTOR_LEN: usize = 24;

impl UblkQueue {
    /// Where the descriptors of the queue begin in its device, and how many bytes they are.
    pub(crate) fn descriptors(self, page_size: usize) -> io::Result<(u64, usize)> {
        if self.depth == 0 || self.depth > MAX_DEPTH || self.max_io_bytes == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let all = usize::from(MAX_DEPTH) * DESCRIPTOR_LEN;
        let offset = u64::from(self.queue) * all.next_multiple_of(page_size) as u64;
        let len = (usize::from(self.depth) * DESCRIPTOR_LEN).next_multiple_of(page_size);
        Ok((offset, len))
    }

    /// The number and the bytes of a command whose data are at `address`, which the kernel is told only if it copies them.
    pub(crate) fn command(self, command: UblkCommand, address: u64) -> (u32, [u8; COMMAND_LEN]) {
        let address = if self.pages { 0 } else { address };
        let number = if command.commit.is_some() { COMMIT_AND_FETCH } else { FETCH };
        let mut bytes = [0; COMMAND_LEN];
        bytes[..2].copy_from_slice(&self.queue.to_ne_bytes());
        bytes[2..4].copy_from_slice(&command.tag.to_ne_bytes());
        bytes[4..8].copy_from_slice(&command.commit.unwrap_or(0).to_ne_bytes());
        bytes[8..].copy_from_slice(&address.to_ne_bytes());
        // `_IOWR('u', number, struct ublksrv_io_cmd)`.
        let encoded = 3 << 30 | 16 << 16 | 0x75 << 8 | number;
        (if self.ioctl_encode { encoded } else { number }, bytes)
    }

    /// The number under which the next request of a tag becomes a buffer of the ring, as its command has it
    /// (`struct ublk_auto_buf_reg`).
    pub(crate) fn registration(self, tag: u16) -> Option<u64> {
        self.pages.then(|| u64::from(tag) | REGISTRATION_MAY_FAIL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_as_the_kernel_reads_them() {
        let queue = UblkQueue {
            queue: 3,
            depth: 128,
            max_io_bytes: 4096,
            ioctl_encode: true,
            pages: false,
        };
        let fetch = UblkCommand { tag: 7, commit: None };
        let (number, bytes) = queue.command(fetch, 0x1122_3344_5566_7788);
        assert_eq!(number, 0xc010_7520);
        assert_eq!(bytes[..8], [3, 0, 7, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[8..], 0x1122_3344_5566_7788_u64.to_ne_bytes());
        let commit = UblkCommand { tag: 7, commit: Some(-5) };
        let (number, bytes) = queue.command(commit, 0);
        assert_eq!(number, 0xc010_7521);
        assert_eq!(bytes[4..8], (-5_i32).to_ne_bytes());
        let old = UblkQueue { ioctl_encode: false, ..queue };
        assert_eq!((old.command(fetch, 0).0, old.command(commit, 0).0), (0x20, 0x21));
        assert_eq!(queue.registration(7), None);
        // The kernel refuses an address where it copies nothing.
        let pages = UblkQueue { pages: true, ..queue };
        assert_eq!(pages.command(commit, 0x1000).1[8..], [0; 8]);
        assert_eq!(pages.registration(7), Some(0x1_0007));
    }

    #[test]
    fn descriptors_lie_where_the_kernel_maps_them() {
        let queue =
            UblkQueue { queue: 2, depth: 128, max_io_bytes: 1, ioctl_encode: true, pages: false };
        assert_eq!(queue.descriptors(4096).unwrap(), (2 * 24 * 4096, 4096));
        let whole = UblkQueue { depth: MAX_DEPTH, ..queue };
        assert_eq!(whole.descriptors(4096).unwrap().1, 24 * 4096);
        for bad in [
            UblkQueue { depth: 0, ..queue },
            UblkQueue { depth: 4097, ..queue },
            UblkQueue { max_io_bytes: 0, ..queue },
        ] {
            bad.descriptors(4096).unwrap_err();
        }
    }
}
