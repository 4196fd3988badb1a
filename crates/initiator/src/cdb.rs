//! Command descriptor blocks that an initiator of disks sends (SBC-4, chapter 5; SPC-5, chapter 6).

/// A CDB, padded with zeroes.
pub type Cdb = [u8; 16];

/// Blocks that the 10-byte forms can name, and blocks that they can move.
#[cfg(test)]
const LBA_LIMIT_10: u64 = 1 << 32;
#[cfg(test)]
const BLOCKS_LIMIT_10: u32 = 1 << 16;

/// READ: blocks from `lba` on.
#[inline]
#[must_use]
pub fn read(lba: u64, blocks: u32) -> Cdb {
    medium(0x28, 0x88, 0, lba, blocks)
}

/// WRITE: blocks from `lba` on; with `fua` they are on stable media when it ends.
#[inline]
#[must_use]
pub fn write(lba: u64, blocks: u32, fua: bool) -> Cdb {
    medium(0x2a, 0x8a, if fua { 1 << 3 } else { 0 }, lba, blocks)
}

/// SYNCHRONIZE CACHE (10) of the whole logical unit.
#[must_use]
pub fn synchronize_cache() -> Cdb {
    medium(0x35, 0x91, 0, 0, 0)
}

/// WRITE SAME (16) of one block of zeroes, which is sent; with `unmap` the target may release the blocks instead, if
/// they then read as zeroes.
#[must_use]
pub fn write_same(lba: u64, blocks: u32, unmap: bool) -> Cdb {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (0x93, if unmap { 1 << 3 } else { 0 });
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// UNMAP with a parameter list of this many bytes, made by [`unmap_list`].
#[must_use]
pub fn unmap(list_len: u16) -> Cdb {
    let mut cdb = [0; 16];
    cdb[0] = 0x42;
    cdb[7..9].copy_from_slice(&list_len.to_be_bytes());
    cdb
}

/// The parameter list of an UNMAP of one range of blocks.
#[must_use]
pub fn unmap_list(lba: u64, blocks: u32) -> [u8; 24] {
    let mut list = [0; 24];
    list[1] = 22;
    list[3] = 16;
    list[8..16].copy_from_slice(&lba.to_be_bytes());
    list[16..20].copy_from_slice(&blocks.to_be_bytes());
    list
}

/// COMPARE AND WRITE: the data are the blocks to compare with, then those to write.
#[must_use]
pub fn compare_and_write(lba: u64, blocks: u8) -> Cdb {
    let mut cdb = [0; 16];
    cdb[0] = 0x89;
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[13] = blocks;
    cdb
}

/// TEST UNIT READY.
#[must_use]
pub fn test_unit_ready() -> Cdb {
    [0; 16]
}

/// INQUIRY; with a page, of vital product data.
#[must_use]
pub fn inquiry(page: Option<u8>, len: u16) -> Cdb {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[2]) = (0x12, u8::from(page.is_some()), page.unwrap_or(0));
    cdb[3..5].copy_from_slice(&len.to_be_bytes());
    cdb
}

/// READ CAPACITY (16).
#[must_use]
pub fn read_capacity() -> Cdb {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[13]) = (0x9e, 0x10, 32);
    cdb
}

/// REPORT LUNS.
#[must_use]
pub fn report_luns(len: u32) -> Cdb {
    let mut cdb = [0; 16];
    cdb[0] = 0xa0;
    cdb[6..10].copy_from_slice(&len.to_be_bytes());
    cdb
}

/// MODE SENSE (6) of a page.
#[must_use]
pub fn mode_sense(page: u8, len: u8) -> Cdb {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[2], cdb[4]) = (0x1a, 1 << 3, page, len);
    cdb
}

/// In 10 bytes where these suffice: old targets know no others.
#[inline]
fn medium(short: u8, long: u8, flags: u8, lba: u64, blocks: u32) -> Cdb {
    let mut cdb = [0; 16];
    cdb[1] = flags;
    match (u32::try_from(lba), u16::try_from(blocks)) {
        (Ok(lba), Ok(blocks)) => {
            cdb[0] = short;
            cdb[2..6].copy_from_slice(&lba.to_be_bytes());
            cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
        }
        _ => {
            cdb[0] = long;
            cdb[2..10].copy_from_slice(&lba.to_be_bytes());
            cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
        }
    }
    cdb
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_form_ends_at_its_limits() {
        assert_eq!(read(0x0102_0304, 0x0506)[..10], [0x28, 0, 1, 2, 3, 4, 0, 5, 6, 0]);
        assert_eq!(write(LBA_LIMIT_10 - 1, 1, true)[..2], [0x2a, 8]);
        assert_eq!(read(LBA_LIMIT_10, 1), [0x88, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(write(0, BLOCKS_LIMIT_10, false)[0], 0x8a);
        assert_eq!(write(0, BLOCKS_LIMIT_10 - 1, false)[0], 0x2a);
    }

    #[test]
    fn lists_name_one_range() {
        let list = unmap_list(5, 7);
        assert_eq!((list[1], list[3], list[15], list[19]), (22, 16, 5, 7));
        assert_eq!(unmap(24)[8], 24);
    }
}
