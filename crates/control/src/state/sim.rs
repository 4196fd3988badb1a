//! A simulated disk that can lose power after every operation, become full, and fail to sync.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::disk::{Disk, DiskFile};

/// The unit that a power cut does not tear.
const SECTOR_BYTES: usize = 512;
/// Zeroes are written in pieces of this size, and power may be cut after each.
const ZEROES_BYTES: usize = 16 << 10;

/// Simple random numbers of sufficient quality (SplitMix64: Steele, Lea, Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }

    pub(super) fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }
}

#[derive(Clone, Debug)]
enum FileChange {
    Write { offset: usize, bytes: Vec<u8> },
    Truncate(usize),
}

#[derive(Clone, Debug)]
enum NameChange {
    Set(String, u64),
    Rename { from: String, to: String, inode: u64 },
    Remove(String),
}

#[derive(Clone, Debug, Default)]
struct Inode {
    /// The content that programs see.
    now: Vec<u8>,
    /// The content on the medium.
    durable: Vec<u8>,
    pending: Vec<FileChange>,
    /// End of its reserved room, if that is beyond its own end.
    reserved_to: usize,
}

/// The content of a disk, including changes that are not durable yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Image {
    inodes: BTreeMap<u64, Inode>,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    pending_names: Vec<NameChange>,
    last_inode: u64,
    pub(super) faults: Faults,
    /// Syncs of files so far.
    pub(super) syncs: u64,
}

/// The faults of the disk.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    /// No more room can be reserved.
    pub(super) no_room: bool,
    /// Writes fail, although room was reserved.
    pub(super) no_room_to_write: bool,
    /// Only the first piece of a request can be zeroed.
    pub(super) no_room_to_zero: bool,
    /// Zeroes are not written at all, as on file systems that copy on write.
    pub(super) no_zeroes: bool,
    /// The file system cannot reserve room.
    pub(super) no_reserving: bool,
    /// The total room of all files in bytes.
    pub(super) room_bytes: Option<usize>,
    /// Syncs of files fail.
    pub(super) failing_sync: bool,
    /// Syncs of files succeed and do nothing.
    pub(super) lying_sync: bool,
}

type Observer = Box<dyn FnMut(&Image) + Send>;

/// A disk in memory.
#[derive(Clone, Default)]
pub(super) struct SimDisk {
    image: Arc<Mutex<Image>>,
    /// Called after every operation that changes the disk.
    observer: Arc<Mutex<Option<Observer>>>,
}

struct SimFile {
    disk: SimDisk,
    inode: u64,
}

/// The part of a list of changes that survives.
#[derive(Clone, Copy, Debug)]
enum Survival {
    All,
    Nothing,
    Prefix,
    Any,
}

impl Survival {
    fn pick(random: &mut Random) -> Self {
        [Self::All, Self::Nothing, Self::Prefix, Self::Any][random.below(4)]
    }
}

impl Image {
    /// The image after a power cut: everything that was synced, and a random part of the rest.
    pub(super) fn crash(&self, random: &mut Random) -> Self {
        let mut names = self.durable_names.clone();
        let survival = Survival::pick(random);
        let kept = random.below(self.pending_names.len() + 1);
        for (index, change) in self.pending_names.iter().enumerate() {
            let survives = match survival {
                Survival::All => true,
                Survival::Nothing => false,
                Survival::Prefix => index < kept,
                Survival::Any => random.one_in(2),
            };
            if survives {
                apply_name(&mut names, change);
            }
        }
        let mut inodes = BTreeMap::new();
        for inode in names.values() {
            let bytes = self.inodes[inode].crash(random);
            let after = Inode { now: bytes.clone(), durable: bytes, ..Inode::default() };
            inodes.insert(*inode, after);
        }
        let durable_names = names.clone();
        Self { inodes, names, durable_names, last_inode: self.last_inode, ..Self::default() }
    }

    /// Changes one byte, as a failing medium does.
    pub(super) fn flip(&mut self, name: &str, offset: usize) {
        let inode = self.inodes.get_mut(&self.names[name]).unwrap();
        inode.now[offset] ^= 0x10;
        inode.durable.clone_from(&inode.now);
    }

    /// The names of all files.
    pub(super) fn names(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }

    /// The size of a file.
    pub(super) fn size(&self, name: &str) -> usize {
        self.inodes[&self.names[name]].now.len()
    }

    /// Removes a file durably.
    pub(super) fn take_away(&mut self, name: &str) {
        self.names.remove(name);
        self.durable_names.remove(name);
    }
}

impl Inode {
    fn crash(&self, random: &mut Random) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        let survival = Survival::pick(random);
        let kept = random.below(self.pending.len() + 1);
        for (index, change) in self.pending.iter().enumerate() {
            match survival {
                Survival::All => apply_file(&mut bytes, change),
                Survival::Nothing => {}
                Survival::Prefix if index < kept => apply_file(&mut bytes, change),
                Survival::Prefix => {
                    // The first change that is not kept whole.
                    if index == kept {
                        apply_sectors(&mut bytes, change, random, true);
                    }
                }
                Survival::Any => apply_sectors(&mut bytes, change, random, false),
            }
        }
        bytes
    }
}

fn apply_name(names: &mut BTreeMap<String, u64>, change: &NameChange) {
    match change {
        NameChange::Set(name, inode) => {
            names.insert(name.clone(), *inode);
        }
        NameChange::Rename { from, to, inode } => {
            names.remove(from);
            names.insert(to.clone(), *inode);
        }
        NameChange::Remove(name) => {
            names.remove(name);
        }
    }
}

fn apply_file(file: &mut Vec<u8>, change: &FileChange) {
    match change {
        FileChange::Write { offset, bytes } => {
            let end = offset + bytes.len();
            if file.len() < end {
                file.resize(end, 0);
            }
            file[*offset..end].copy_from_slice(bytes);
        }
        FileChange::Truncate(length) => file.resize(*length, 0),
    }
}

/// Applies part of a change: some of its sectors, or those before some point; one may hold nonsense.
fn apply_sectors(file: &mut Vec<u8>, change: &FileChange, random: &mut Random, prefix: bool) {
    let FileChange::Write { offset, bytes } = change else {
        if random.one_in(2) {
            apply_file(file, change);
        }
        return;
    };
    let sectors = bytes.len().div_ceil(SECTOR_BYTES);
    let cut = random.below(sectors + 1);
    for (index, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
        let survives = if prefix { index < cut } else { random.one_in(2) };
        if survives {
            let offset = offset + index * SECTOR_BYTES;
            let mut bytes = sector.to_vec();
            if random.one_in(40) {
                let at = random.below(bytes.len());
                bytes[at..].fill(0xee);
            }
            apply_file(file, &FileChange::Write { offset, bytes });
        }
    }
}

impl SimDisk {
    /// A disk with this content.
    pub(super) fn new(image: Image) -> Self {
        Self { image: Arc::new(Mutex::new(image)), observer: Arc::default() }
    }

    /// Calls `observer` after every operation that changes the disk.
    pub(super) fn observe(&self, observer: impl FnMut(&Image) + Send + 'static) {
        *lock(&self.observer) = Some(Box::new(observer));
    }

    /// The content.
    pub(super) fn image(&self) -> MutexGuard<'_, Image> {
        lock(&self.image)
    }

    fn change<T>(&self, make: impl FnOnce(&mut Image) -> io::Result<T>) -> io::Result<T> {
        let result = make(&mut self.image());
        let mut observer = lock(&self.observer);
        if let Some(observer) = &mut *observer {
            let image = self.image().clone();
            observer(&image);
        }
        result
    }

    fn file(&self, inode: u64) -> Box<dyn DiskFile> {
        Box::new(SimFile { disk: self.clone(), inode })
    }
}

impl Disk for SimDisk {
    fn path(&self) -> &Path {
        Path::new("/simulated")
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.image().names())
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let image = self.image();
        let inode = image.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(image.inodes[inode].now.clone())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let inode = self.change(|image| {
            if image.faults.no_room_to_write {
                return Err(io::ErrorKind::StorageFull.into());
            }
            if let Some(&inode) = image.names.get(name) {
                image.inodes.get_mut(&inode).unwrap().change(FileChange::Truncate(0));
                return Ok(inode);
            }
            image.last_inode += 1;
            let inode = image.last_inode;
            image.inodes.insert(inode, Inode::default());
            image.name(NameChange::Set(name.to_owned(), inode));
            Ok(inode)
        })?;
        Ok(self.file(inode))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let inode = *self.image().names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(self.file(inode))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change(|image| {
            let inode = *image.names.get(from).ok_or(io::ErrorKind::NotFound)?;
            image.name(NameChange::Rename { from: from.to_owned(), to: to.to_owned(), inode });
            Ok(())
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.change(|image| {
            image.names.get(name).ok_or(io::ErrorKind::NotFound)?;
            image.name(NameChange::Remove(name.to_owned()));
            Ok(())
        })
    }

    fn sync_names(&self) -> io::Result<()> {
        self.change(|image| {
            image.durable_names = image.names.clone();
            image.pending_names.clear();
            let named: Vec<u64> = image.names.values().copied().collect();
            image.inodes.retain(|inode, _| named.contains(inode));
            Ok(())
        })
    }
}

impl Image {
    fn name(&mut self, change: NameChange) {
        apply_name(&mut self.names, &change);
        self.pending_names.push(change);
    }
}

impl Inode {
    fn room_bytes(&self) -> usize {
        self.now.len().max(self.reserved_to)
    }

    fn change(&mut self, change: FileChange) {
        apply_file(&mut self.now, &change);
        self.pending.push(change);
    }
}

impl SimFile {
    /// Changes the file; `make` receives the offset up to which the file may grow.
    fn change<T>(
        &self,
        make: impl FnOnce(&mut Inode, &mut Faults, usize) -> io::Result<T>,
    ) -> io::Result<T> {
        self.disk.change(|image| {
            // A file may be written after its name is removed, and is then never read again.
            image.inodes.entry(self.inode).or_default();
            let others = image.inodes.iter().filter(|(inode, _)| **inode != self.inode);
            let used_bytes: usize = others.map(|(_, inode)| inode.room_bytes()).sum();
            let limit = image.faults.room_bytes.map_or(usize::MAX, |room| room - used_bytes);
            let inode = image.inodes.get_mut(&self.inode).unwrap();
            make(inode, &mut image.faults, limit)
        })
    }

    /// Writes the bytes for which there is room.
    fn write(inode: &mut Inode, offset: u64, bytes: &[u8], limit: usize) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        let written = &bytes[..bytes.len().min(limit.saturating_sub(offset))];
        inode.change(FileChange::Write { offset, bytes: written.to_vec() });
        if written == bytes { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
    }
}

impl DiskFile for SimFile {
    fn reserve(&self, offset: u64, length: u64) -> io::Result<()> {
        self.change(|inode, faults, limit| {
            let to = usize::try_from(offset + length).unwrap();
            if faults.no_reserving {
                return Err(io::ErrorKind::Unsupported.into());
            }
            if faults.no_room || to > limit {
                return Err(io::ErrorKind::StorageFull.into());
            }
            inode.reserved_to = inode.reserved_to.max(to);
            Ok(())
        })
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        let end = offset + length;
        for (index, offset) in (offset..end).step_by(ZEROES_BYTES).enumerate() {
            self.change(|inode, faults, limit| {
                if faults.no_zeroes {
                    return Err(io::ErrorKind::Unsupported.into());
                }
                let bytes = vec![0; usize::try_from(end - offset).unwrap().min(ZEROES_BYTES)];
                let full = faults.no_room_to_write || faults.no_room_to_zero && index > 0;
                let limit = if full { usize::try_from(offset).unwrap() + 1000 } else { limit };
                Self::write(inode, offset, &bytes, limit)
            })?;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.change(|inode, faults, limit| {
            let half = usize::try_from(offset).unwrap() + bytes.len() / 2;
            let limit = if faults.no_room_to_write { half } else { limit };
            Self::write(inode, offset, bytes, limit)
        })
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let length = usize::try_from(length).unwrap();
        self.change(|inode, _, _| {
            inode.reserved_to = 0;
            inode.change(FileChange::Truncate(length));
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.image().syncs += 1;
        self.change(|inode, faults, _| {
            if faults.failing_sync {
                return Err(io::Error::other("simulated failure of the medium"));
            }
            if !faults.lying_sync {
                inode.durable.clone_from(&inode.now);
                inode.pending.clear();
            }
            Ok(())
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
