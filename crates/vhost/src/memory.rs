//! The memory that a front end shares, and checked access to it.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestRegionMmap,
};

use crate::guard::Guard;

/// A part of the memory.
#[derive(Clone, Debug)]
pub(crate) struct Area {
    /// Where the guest has it.
    pub(crate) guest: u64,
    /// Where the front end has it.
    pub(crate) user: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Where it begins in the file.
    pub(crate) offset: u64,
    /// The file.
    pub(crate) file: Arc<File>,
}

/// Bytes of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Where.
    pub(crate) address: u64,
    /// How many.
    pub(crate) len: u32,
}

/// An address is not in the memory that the front end has shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("address {0:#x} is outside of the memory that the front end shares")]
pub(crate) struct Outside(pub(crate) u64);

/// All of the memory.
#[derive(Debug)]
pub(crate) struct Memory {
    // Before the map: a guard ends before its mapping does.
    guards: Vec<Guard>,
    map: GuestMemoryMmap,
    areas: Vec<Area>,
}

impl Memory {
    /// Maps the areas.
    ///
    /// # Errors
    /// When they overlap, or a file is too short or cannot be mapped.
    pub(crate) fn new(mut areas: Vec<Area>) -> io::Result<Self> {
        areas.sort_by_key(|area| area.guest);
        let mut guards = Vec::with_capacity(areas.len());
        let mut regions = Vec::with_capacity(areas.len());
        for area in &areas {
            let end = area.offset.checked_add(area.len);
            let len = usize::try_from(area.len).ok().filter(|&len| len > 0);
            let (Some(end), Some(len)) = (end, len) else {
                return Err(io::Error::other("a memory region has no possible length"));
            };
            let size = area.file.metadata()?.len();
            if size < end {
                return Err(io::Error::other(format!(
                    "a memory region ends at {end} of a file of {size} bytes"
                )));
            }
            let file = FileOffset::from_arc(Arc::clone(&area.file), area.offset);
            let region = GuestRegionMmap::from_range(GuestAddress(area.guest), len, Some(file));
            let region = region.map_err(io::Error::other)?;
            let whole_pages = len.checked_next_multiple_of(4096).unwrap_or(len);
            guards.push(Guard::new(region.as_ptr() as usize, whole_pages)?);
            regions.push(region);
        }
        let map = GuestMemoryMmap::from_regions(regions).map_err(io::Error::other)?;
        Ok(Self { guards, map, areas })
    }

    /// The areas it has.
    pub(crate) fn areas(&self) -> &[Area] {
        &self.areas
    }

    /// False once a part of a file was gone when it was accessed: nothing that was read means anything.
    pub(crate) fn is_whole(&self) -> bool {
        self.guards.iter().all(Guard::is_whole)
    }

    /// Where the guest has what the front end has at `user`.
    pub(crate) fn guest_address(&self, user: u64) -> Option<u64> {
        self.areas.iter().find_map(|area| {
            let offset = user.checked_sub(area.user).filter(|&offset| offset < area.len)?;
            area.guest.checked_add(offset)
        })
    }

    /// Whether all of a range is shared.
    pub(crate) fn contains(&self, address: u64, len: usize) -> bool {
        self.map.check_range(GuestAddress(address), len)
    }

    pub(crate) fn read(&self, address: u64, out: &mut [u8]) -> Result<(), Outside> {
        let read = self.map.read_slice(out, GuestAddress(address));
        read.map_err(|_| Outside(address))
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Outside> {
        let written = self.map.write_slice(bytes, GuestAddress(address));
        written.map_err(|_| Outside(address))
    }

    /// Reads an index that another processor writes, and with it what was written before it.
    pub(crate) fn load(&self, address: u64) -> Result<u16, Outside> {
        let loaded = self.map.load::<u16>(GuestAddress(address), Ordering::Acquire);
        loaded.map(u16::from_le).map_err(|_| Outside(address))
    }

    /// Writes an index that another processor reads, after all that was written before it.
    pub(crate) fn store(&self, address: u64, value: u16) -> Result<(), Outside> {
        let stored = self.map.store(value.to_le(), GuestAddress(address), Ordering::Release);
        stored.map_err(|_| Outside(address))
    }

    /// Copies bytes out of segments, beginning `skip` bytes after the first.
    pub(crate) fn gather(
        &self,
        segments: &[Segment],
        skip: usize,
        out: &mut [u8],
    ) -> Result<(), Outside> {
        let mut left = out;
        for_each_part(segments, skip, left.len(), |address, len| {
            let (now, rest) = std::mem::take(&mut left).split_at_mut(len);
            left = rest;
            self.read(address, now)
        })
    }

    /// Copies bytes into segments, beginning `skip` bytes after the first.
    pub(crate) fn scatter(
        &self,
        segments: &[Segment],
        skip: usize,
        bytes: &[u8],
    ) -> Result<(), Outside> {
        let mut left = bytes;
        for_each_part(segments, skip, left.len(), |address, len| {
            let (now, rest) = left.split_at(len);
            left = rest;
            self.write(address, now)
        })
    }
}

/// Gives the parts of segments that a range of `len` bytes after the first `skip` has.
fn for_each_part(
    segments: &[Segment],
    mut skip: usize,
    mut len: usize,
    mut take: impl FnMut(u64, usize) -> Result<(), Outside>,
) -> Result<(), Outside> {
    for segment in segments {
        if len == 0 {
            return Ok(());
        }
        let whole = segment.len as usize;
        if skip >= whole {
            skip -= whole;
            continue;
        }
        let now = (whole - skip).min(len);
        let address = segment.address.checked_add(skip as u64);
        take(address.ok_or(Outside(segment.address))?, now)?;
        skip = 0;
        len -= now;
    }
    if len == 0 { Ok(()) } else { Err(Outside(0)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(len: u64) -> Arc<File> {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len).unwrap();
        Arc::new(file)
    }

    fn area(guest: u64, len: u64, offset: u64, file: &Arc<File>) -> Area {
        Area { guest, user: guest.wrapping_add(0x7000_0000), len, offset, file: Arc::clone(file) }
    }

    #[test]
    fn access_is_inside_or_refused() {
        let file = shared(0x4000);
        let areas = vec![area(0x10_0000, 0x2000, 0x2000, &file), area(0, 0x2000, 0, &file)];
        let memory = Memory::new(areas).unwrap();
        memory.write(0x1ffc, &[1, 2, 3, 4]).unwrap();
        // What fits may have been written.
        assert_eq!(memory.write(0x1ffd, &[9; 4]), Err(Outside(0x1ffd)));
        assert_eq!(memory.read(u64::MAX - 2, &mut [0; 8]), Err(Outside(u64::MAX - 2)));
        assert_eq!(memory.load(0x1001), Err(Outside(0x1001)), "not aligned");
        assert_eq!(memory.guest_address(0x7010_0010), Some(0x10_0010));
        assert_eq!(memory.guest_address(0x7000_2000), None);
        let segments =
            [Segment { address: 0x1ffe, len: 2 }, Segment { address: 0x10_0000, len: 3 }];
        memory.scatter(&segments, 1, &[7, 8, 9]).unwrap();
        let mut back = [0; 4];
        memory.gather(&segments, 0, &mut back).unwrap();
        assert_eq!(back, [9, 7, 8, 9]);
        assert!(memory.gather(&segments, 2, &mut back).is_err(), "there are only three");
    }

    #[test]
    fn what_cannot_be_mapped_is_refused() {
        let file = shared(0x2000);
        for areas in [
            vec![area(0, 0x3000, 0, &file)],
            vec![area(0, 0x1000, 0x2000, &file)],
            vec![area(0, 0, 0, &file)],
            vec![area(0, 0x2000, 0, &file), area(0x1000, 0x1000, 0, &file)],
            vec![area(0, 0x1000, 0x10, &file)],
            vec![area(0, 0x1000, u64::MAX - 1, &file)],
            vec![area(u64::MAX - 1, 0x1000, 0, &file)],
        ] {
            let text = format!("{areas:?}");
            assert!(Memory::new(areas).is_err(), "{text}");
        }
    }

    #[test]
    fn a_file_that_is_truncated_is_noticed() {
        let file = shared(0x4000);
        let memory = Memory::new(vec![area(0, 0x4000, 0, &file)]).unwrap();
        memory.write(0x3000, &[5; 16]).unwrap();
        assert!(memory.is_whole());
        file.set_len(0x1000).unwrap();
        memory.write(0x3000, &[6; 16]).unwrap();
        assert!(!memory.is_whole());
        // Another mapping of the same process is not touched.
        let other = Memory::new(vec![area(0, 0x1000, 0, &file)]).unwrap();
        drop(memory);
        other.write(0, &[1]).unwrap();
        assert!(other.is_whole());
    }
}
