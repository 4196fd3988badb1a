//! Which requests are in flight, in memory that the front end keeps: another process of ours finds it there.
//!
//! The layout for split rings is that of "Inflight I/O tracking" in vhost-user.rst. A request is noted before it
//! is carried out. When a process is killed, its successor carries out again what was not returned.

use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::memory::{Area, Memory, Outside};
use crate::ring::MAX_RING;

/// The layout's version.
const VERSION: u16 = 1;
/// Bytes before the entries of a ring.
const HEADER_LEN: u64 = 16;
/// Bytes of an entry.
const ENTRY_LEN: u64 = 16;

/// What stands behind the rings, before the choice of a cache; it is ours, and no part of the layout.
const CACHE_NOTE: [u8; 7] = *b"rlcache";
/// Bytes of that note: the last one is 1 for a cache and 0 for none.
const NOTE_LEN: usize = 8;

/// The memory, for all rings.
#[derive(Debug)]
pub(crate) struct Inflight {
    memory: Memory,
    queues: u16,
    ring_size: u16,
}

/// The bytes that a ring has.
fn part_len(ring_size: u16) -> u64 {
    (HEADER_LEN + ENTRY_LEN * u64::from(ring_size)).next_multiple_of(64)
}

impl Inflight {
    /// Makes a file for this many rings of this size; gives it with its length.
    pub(crate) fn create(queues: u16, ring_size: u16) -> io::Result<(File, u64)> {
        let len =
            (part_len(ring_size) * u64::from(queues) + NOTE_LEN as u64).next_multiple_of(4096);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("raceline-vhost-inflight", flags)?);
        file.set_len(len)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((file, len))
    }

    /// Uses what the front end has kept.
    ///
    /// # Errors
    /// When it is too short, or cannot be mapped.
    pub(crate) fn adopt(
        file: File,
        (offset, len): (u64, u64),
        (queues, ring_size): (u16, u16),
    ) -> io::Result<Self> {
        if ring_size == 0 || ring_size > MAX_RING || len < part_len(ring_size) * u64::from(queues) {
            return Err(io::Error::other("the memory for requests in flight is too short"));
        }
        let area = Area { guest: 0, user: 0, len, offset, file: Arc::new(file) };
        Ok(Self { memory: Memory::new(vec![area])?, queues, ring_size })
    }

    fn note_at(&self) -> u64 {
        part_len(self.ring_size) * u64::from(self.queues)
    }

    /// Notes whether the guest has chosen a cache.
    pub(crate) fn note_cache(&self, on: bool) {
        let [n0, n1, n2, n3, n4, n5, n6] = CACHE_NOTE;
        let note = [n0, n1, n2, n3, n4, n5, n6, u8::from(on)];
        // Memory that another program has made may have no room for it. Who comes back with that has no note.
        if let Err(outside) = self.memory.write(self.note_at(), &note) {
            tracing::debug!("the choice of a cache is not noted: {outside}");
        }
    }

    /// What was noted, if anything was.
    pub(crate) fn noted_cache(&self) -> Option<bool> {
        let mut note = [0; NOTE_LEN];
        self.memory.read(self.note_at(), &mut note).ok()?;
        let [name @ .., on] = note;
        (name == CACHE_NOTE && on <= 1).then_some(on == 1)
    }
}

/// What a ring has in it.
#[derive(Debug)]
pub(crate) struct Part {
    inflight: Arc<Inflight>,
    base: u64,
    counter: u64,
}

impl Part {
    /// The part of a ring; `None` if there is none for it.
    pub(crate) fn new(inflight: &Arc<Inflight>, queue: u16, ring_size: u16) -> Option<Self> {
        if queue >= inflight.queues || ring_size > inflight.ring_size {
            return None;
        }
        let base = part_len(inflight.ring_size) * u64::from(queue);
        Some(Self { inflight: Arc::clone(inflight), base, counter: 0 })
    }

    fn entry(&self, head: u16) -> u64 {
        self.base + HEADER_LEN + ENTRY_LEN * u64::from(head)
    }

    fn memory(&self) -> &Memory {
        &self.inflight.memory
    }

    /// Notes that a request was taken.
    pub(crate) fn note_taken(&mut self, head: u16) -> Result<(), Outside> {
        let entry = self.entry(head);
        self.memory().write(entry + 8, &self.counter.to_le_bytes())?;
        self.counter = self.counter.wrapping_add(1);
        // A store with Release: the counter is there before it.
        self.memory().store(entry, 1)
    }

    /// Notes which request is about to be returned.
    pub(crate) fn note_returning(&mut self, head: u16) -> Result<(), Outside> {
        let last = self.memory().load(self.base + 12)?;
        self.memory().store(self.entry(head) + 6, last)?;
        self.memory().store(self.base + 12, head)
    }

    /// Notes that it was returned, and where the used index is now.
    pub(crate) fn note_returned(&mut self, head: u16, used_index: u16) -> Result<(), Outside> {
        self.memory().store(self.entry(head), 0)?;
        self.memory().store(self.base + 14, used_index)
    }

    /// The requests that were taken and not returned, in the order in which they were taken; `None` if nothing was
    /// noted before.
    ///
    /// # Errors
    /// When the memory is of another layout.
    pub(crate) fn recover(
        &mut self,
        ring_size: u16,
        used_index: u16,
    ) -> io::Result<Option<Vec<u16>>> {
        let lost = |outside: Outside| io::Error::other(outside);
        let version = self.memory().load(self.base + 8).map_err(lost)?;
        if version == 0 {
            self.memory().store(self.base + 10, ring_size).map_err(lost)?;
            self.memory().store(self.base + 14, used_index).map_err(lost)?;
            self.memory().store(self.base + 8, VERSION).map_err(lost)?;
            return Ok(None);
        }
        let entries = self.memory().load(self.base + 10).map_err(lost)?;
        if version != VERSION || entries != ring_size {
            return Err(io::Error::other(format!(
                "requests in flight are noted in version {version} for a ring of {entries}, where the ring has {ring_size}"
            )));
        }
        self.end_last_batch(ring_size, used_index).map_err(lost)?;
        let mut taken = Vec::new();
        for head in 0..ring_size {
            let entry = self.entry(head);
            // The bytes beside the flag are padding, and may be anything.
            if self.memory().load(entry).map_err(lost)?.to_le_bytes()[0] == 1 {
                let mut counter = [0; 8];
                self.memory().read(entry + 8, &mut counter).map_err(lost)?;
                taken.push((u64::from_le_bytes(counter), head));
            }
        }
        taken.sort_unstable();
        self.counter = taken.last().map_or(0, |&(counter, _)| counter.wrapping_add(1));
        Ok(Some(taken.into_iter().map(|(_, head)| head).collect()))
    }

    /// Ends what was cut off between the used index and the notes: those requests were returned.
    fn end_last_batch(&mut self, ring_size: u16, used_index: u16) -> Result<(), Outside> {
        let noted = self.memory().load(self.base + 14)?;
        let mut head = self.memory().load(self.base + 12)?;
        for _ in 0..used_index.wrapping_sub(noted).min(ring_size) {
            if head >= ring_size {
                break;
            }
            self.memory().store(self.entry(head), 0)?;
            head = self.memory().load(self.entry(head) + 6)?;
        }
        self.memory().store(self.base + 14, used_index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part() -> Part {
        let (file, len) = Inflight::create(2, 8).unwrap();
        let inflight = Arc::new(Inflight::adopt(file, (0, len), (2, 8)).unwrap());
        Part::new(&inflight, 1, 8).unwrap()
    }

    #[test]
    fn what_was_not_returned_is_found_in_its_order() {
        let mut part = part();
        assert_eq!(part.recover(8, 65_534).unwrap(), None);
        for head in [5, 2, 7, 0] {
            part.note_taken(head).unwrap();
        }
        part.note_returning(2).unwrap();
        part.note_returned(2, 65_535).unwrap();
        let inflight = Arc::clone(&part.inflight);
        let again = |used| {
            let mut part = Part::new(&inflight, 1, 8).unwrap();
            part.recover(8, used).unwrap().unwrap()
        };
        assert_eq!(again(65_535), [5, 7, 0]);
        // Killed after the used index was written, and before that was noted.
        part.note_returning(7).unwrap();
        assert_eq!(again(0), [5, 0]);
        let mut other = Part::new(&part.inflight, 1, 4).unwrap();
        assert!(other.recover(4, 0).unwrap_err().to_string().contains("a ring of 8"));
        assert!(Part::new(&part.inflight, 2, 8).is_none());
    }

    #[test]
    fn the_choice_of_a_cache_is_noted_where_there_is_room() {
        // The parts of the rings fill whole pages here.
        let (file, len) = Inflight::create(8, 31).unwrap();
        assert_eq!((part_len(31) * 8, len), (4096, 8192));
        let again = || Inflight::adopt(file.try_clone().unwrap(), (0, len), (8, 31)).unwrap();
        assert_eq!(again().noted_cache(), None);
        for on in [true, false] {
            again().note_cache(on);
            assert_eq!(again().noted_cache(), Some(on));
        }
        let short = Inflight::adopt(file.try_clone().unwrap(), (0, 4096), (8, 31)).unwrap();
        short.note_cache(true);
        assert_eq!(short.noted_cache(), None);
        assert_eq!(again().noted_cache(), Some(false));
    }

    #[test]
    fn nonsense_in_it_ends() {
        let mut part = part();
        part.recover(8, 0).unwrap();
        part.memory().write(part.base + 12, &[0xff; 4]).unwrap();
        for head in 0..8 {
            part.memory().write(part.entry(head), &[0xff; 16]).unwrap();
        }
        assert!(part.recover(8, 100).unwrap().unwrap().len() <= 8);
        let (file, len) = Inflight::create(2, 8).unwrap();
        assert!(Inflight::adopt(file, (0, len), (64, 128)).is_err());
    }
}
