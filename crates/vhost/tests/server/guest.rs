//! A front end with a driver of its own, which can also do what no driver does.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use raceline_bdev::{DeviceSpec, DiskTotals, Identity, SharedBdev};
use raceline_vhost::{Server, ServerConfig};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend as _};
use vhost::{VhostBackend as _, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes as _, FileOffset, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of the guest's memory.
pub(crate) const MEMORY: u64 = 32 << 20;
/// Where the front end says that it has the guest's memory.
pub(crate) const USER: u64 = 0x7000_0000_0000;
/// Entries of a ring.
pub(crate) const SIZE: u16 = 64;
/// Where data of requests are.
pub(crate) const DATA: u64 = 8 << 20;

pub(crate) const READ: u32 = 0;
pub(crate) const WRITE: u32 = 1;
pub(crate) const FLUSH: u32 = 4;
pub(crate) const IDENTIFY: u32 = 8;
pub(crate) const DISCARD: u32 = 11;
pub(crate) const ZEROES: u32 = 13;

const NEXT: u16 = 1;
const DEVICE_WRITES: u16 = 2;
const INDIRECT: u16 = 4;

/// A server with a disk, at a socket in a folder of its own.
pub(crate) struct Bed {
    server: Option<Server>,
    pub(crate) device: SharedBdev,
    dir: tempfile::TempDir,
}

impl Bed {
    pub(crate) fn start(device: &str, change: impl FnOnce(&mut ServerConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let spec = device.replace("DIR", dir.path().to_str().unwrap());
        let spec: DeviceSpec = spec.parse().unwrap();
        let device = raceline_bdev::open(&spec, &Identity::from_seed(b"test")).unwrap();
        let mut config = ServerConfig::new(Arc::clone(&device), dir.path().join("disk.sock"));
        config.queues = 4;
        change(&mut config);
        Self { server: Some(Server::start(&config).unwrap()), device, dir }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("disk.sock")
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    /// What it has done.
    pub(crate) fn totals(&self) -> DiskTotals {
        self.server.as_ref().unwrap().totals()
    }

    pub(crate) fn stop(mut self) {
        self.server.take().unwrap().stop();
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

/// Addresses of a ring in the guest.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) descriptors: u64,
    pub(crate) available: u64,
    pub(crate) used: u64,
    /// Headers, statuses and indirect tables of requests.
    own: u64,
}

impl Layout {
    pub(crate) fn of(queue: u16) -> Self {
        let base = 0x2_0000 * u64::from(queue);
        Self {
            descriptors: base,
            available: base + 0x4000,
            used: base + 0x8000,
            own: base + 0x1_0000,
        }
    }

    /// The same in the front end's addresses.
    pub(crate) fn place(self) -> VringConfigData {
        VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: USER + self.descriptors,
            used_ring_addr: USER + self.used,
            avail_ring_addr: USER + self.available,
            log_addr: None,
        }
    }
}

/// How a guest behaves.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    pub(crate) event_index: bool,
    pub(crate) indirect: bool,
    pub(crate) flush: bool,
    pub(crate) queues: u16,
}

pub(crate) const USUAL: Manner =
    Manner { event_index: true, indirect: false, flush: true, queues: 2 };

/// A guest's memory, which outlives connections.
pub(crate) struct Memory {
    pub(crate) map: GuestMemoryMmap,
    pub(crate) file: Arc<File>,
}

impl Memory {
    pub(crate) fn new() -> Self {
        let file = Arc::new(tempfile::tempfile().unwrap());
        file.set_len(MEMORY).unwrap();
        let offset = FileOffset::from_arc(Arc::clone(&file), 0);
        let len = usize::try_from(MEMORY).unwrap();
        let map = GuestMemoryMmap::from_ranges_with_files([(GuestAddress(0), len, Some(offset))])
            .unwrap();
        Self { map, file }
    }

    pub(crate) fn put(&self, at: u64, bytes: &[u8]) {
        self.map.write_slice(bytes, GuestAddress(at)).unwrap();
    }

    pub(crate) fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.map.read_slice(&mut bytes, GuestAddress(at)).unwrap();
        bytes
    }

    pub(crate) fn index(&self, at: u64) -> u16 {
        self.map.load(GuestAddress(at), Ordering::Acquire).unwrap()
    }

    pub(crate) fn set_index(&self, at: u64, value: u16) {
        self.map.store(value, GuestAddress(at), Ordering::SeqCst).unwrap();
    }

    pub(crate) fn descriptor(&self, at: u64, (address, len): (u64, u32), flags: u16, next: u16) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.put(at, &bytes);
    }
}

/// What the driver remembers of a ring.
#[derive(Clone, Copy, Default)]
struct Driver {
    available: u16,
    used: u16,
    requests: u16,
}

/// A connected front end with its guest.
pub(crate) struct Guest {
    pub(crate) front: Frontend,
    pub(crate) memory: Memory,
    manner: Manner,
    drivers: Vec<Driver>,
    pub(crate) kicks: Vec<EventFd>,
    pub(crate) interrupts: Vec<EventFd>,
    /// What the front end keeps of requests in flight.
    pub(crate) inflight: Option<(VhostUserInflight, File)>,
}

pub(crate) fn connect(path: &Path, queues: u16) -> Frontend {
    let front = Frontend::connect(path, queues.into()).unwrap();
    front.set_owner().unwrap();
    front
}

/// Agrees on features and protocol features.
pub(crate) fn agree(front: &mut Frontend, manner: Manner) {
    let mut features = front.get_features().unwrap();
    for (bit, wanted) in [(29, manner.event_index), (28, manner.indirect), (9, manner.flush)] {
        assert!(features & 1 << bit != 0);
        if !wanted {
            features &= !(1 << bit);
        }
    }
    let offered = front.get_protocol_features().unwrap();
    front.set_protocol_features(offered & !VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS).unwrap();
    front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    front.set_features(features).unwrap();
}

pub(crate) fn region(file: &File) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: 0,
        memory_size: MEMORY,
        userspace_addr: USER,
        mmap_offset: 0,
        mmap_handle: file.as_raw_fd(),
    }
}

impl Guest {
    /// A guest that has just booted.
    pub(crate) fn boot(path: &Path, manner: Manner) -> Self {
        let mut guest = Self::prepare(path, manner);
        guest.start();
        guest
    }

    /// The same, whose rings do not run yet.
    pub(crate) fn prepare(path: &Path, manner: Manner) -> Self {
        let mut front = connect(path, manner.queues);
        agree(&mut front, manner);
        // As QEMU does once, and not when it connects again.
        front.get_config(0, 60, VhostUserConfigFlags::empty(), &[0; 60]).unwrap();
        Self::new(front, manner)
    }

    /// A guest behind a front end that has agreed on features.
    pub(crate) fn new(front: Frontend, manner: Manner) -> Self {
        let counters = || (0..manner.queues).map(|_| EventFd::new(EFD_NONBLOCK).unwrap()).collect();
        Self {
            front,
            memory: Memory::new(),
            manner,
            drivers: vec![Driver::default(); manner.queues.into()],
            kicks: counters(),
            interrupts: counters(),
            inflight: None,
        }
    }

    /// Connects again, with the same memory and what was in flight.
    pub(crate) fn connect_again(&mut self, path: &Path) {
        self.front = connect(path, self.manner.queues);
        agree(&mut self.front, self.manner);
        self.start();
    }

    pub(crate) fn start(&mut self) {
        match &self.inflight {
            None => {
                let wanted = VhostUserInflight::new(0, 0, self.manner.queues, SIZE);
                self.inflight = Some(self.front.get_inflight_fd(&wanted).unwrap());
                let (inflight, file) = self.inflight.as_ref().unwrap();
                self.front.set_inflight_fd(inflight, file.as_raw_fd()).unwrap();
            }
            Some((inflight, file)) => {
                self.front.set_inflight_fd(inflight, file.as_raw_fd()).unwrap();
            }
        }
        self.front.set_mem_table(&[region(&self.memory.file)]).unwrap();
        for queue in 0..self.manner.queues {
            self.start_ring(queue).unwrap();
        }
    }

    pub(crate) fn start_ring(&mut self, queue: u16) -> Result<(), vhost::Error> {
        let (layout, index) = (Layout::of(queue), usize::from(queue));
        self.front.set_vring_num(index, SIZE)?;
        // What QEMU restores if nobody has told it better.
        self.front.set_vring_base(index, self.memory.index(layout.used + 2))?;
        self.front.set_vring_addr(index, &layout.place())?;
        self.front.set_vring_call(index, &self.interrupts[index])?;
        self.front.set_vring_kick(index, &self.kicks[index])?;
        self.front.set_vring_enable(index, true)
    }

    pub(crate) fn kick(&self, queue: u16) {
        self.kicks[usize::from(queue)].write(1).unwrap();
    }

    /// Puts a request into a ring, of a header, segments and a status; gives its number.
    pub(crate) fn post(
        &mut self,
        queue: u16,
        (kind, sector): (u32, u64),
        segments: &[(u64, u32)],
    ) -> u16 {
        let (layout, indirect) = (Layout::of(queue), self.manner.indirect);
        let driver = &mut self.drivers[usize::from(queue)];
        // Each request has four descriptors, or one for its table.
        let number = driver.requests % (SIZE / 4);
        driver.requests = driver.requests.wrapping_add(1);
        let own = layout.own + 0x400 * u64::from(number);
        let mut header = kind.to_le_bytes().to_vec();
        header.extend([0; 4]);
        header.extend(sector.to_le_bytes());
        self.memory.put(own, &header);
        self.memory.put(own + 16, &[0xff]);
        let data = if kind == READ || kind == IDENTIFY { DEVICE_WRITES } else { 0 };
        let mut parts = vec![((own, 16), 0)];
        parts.extend(segments.iter().map(|&segment| (segment, data)));
        parts.push(((own + 16, 1), DEVICE_WRITES));
        let first = 4 * number;
        let (table, from) = if indirect { (own + 32, 0) } else { (layout.descriptors, first) };
        assert!(indirect || parts.len() <= 4);
        for (place, &(segment, flags)) in (from..).zip(&parts) {
            let last = usize::from(place - from) + 1 == parts.len();
            let flags = if last { flags } else { flags | NEXT };
            self.memory.descriptor(table + 16 * u64::from(place), segment, flags, place + 1);
        }
        if indirect {
            let len = u32::try_from(16 * parts.len()).unwrap();
            let at = layout.descriptors + 16 * u64::from(first);
            self.memory.descriptor(at, (table, len), INDIRECT, 0);
        }
        let entry = u64::from(driver.available % SIZE);
        self.memory.set_index(layout.available + 4 + 2 * entry, first);
        driver.available = driver.available.wrapping_add(1);
        let available = driver.available;
        if self.manner.event_index {
            // An interrupt for the next that returns.
            let event = layout.available + 4 + 2 * u64::from(SIZE);
            self.memory.set_index(event, self.drivers[usize::from(queue)].used);
        }
        self.memory.set_index(layout.available + 2, available);
        first
    }

    /// Waits for the next request of a ring that returns, by its interrupt; gives its head and what was written.
    pub(crate) fn next_used(&mut self, queue: u16) -> (u16, u32) {
        let (layout, index) = (Layout::of(queue), usize::from(queue));
        let end = Instant::now() + PATIENCE;
        let mut interrupted = self.drivers[index].used != self.memory.index(layout.used + 2);
        while !interrupted {
            interrupted = self.interrupts[index].read().is_ok()
                && self.drivers[index].used != self.memory.index(layout.used + 2);
            assert!(Instant::now() < end, "no interrupt");
            std::thread::sleep(Duration::from_micros(200));
        }
        let entry = layout.used + 4 + 8 * u64::from(self.drivers[index].used % SIZE);
        self.drivers[index].used = self.drivers[index].used.wrapping_add(1);
        if self.manner.event_index {
            let event = layout.available + 4 + 2 * u64::from(SIZE);
            self.memory.set_index(event, self.drivers[index].used);
        }
        let bytes = self.memory.get(entry, 8);
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        (u16::try_from(number(0)).unwrap(), number(4))
    }

    pub(crate) fn status(&self, queue: u16, head: u16) -> u8 {
        self.memory.get(Layout::of(queue).own + 0x400 * u64::from(head / 4) + 16, 1)[0]
    }

    /// Carries a request out; gives its status and what was written.
    pub(crate) fn call(
        &mut self,
        queue: u16,
        what: (u32, u64),
        segments: &[(u64, u32)],
    ) -> (u8, u32) {
        let posted = self.post(queue, what, segments);
        self.kick(queue);
        let (head, written) = self.next_used(queue);
        assert_eq!(head, posted);
        (self.status(queue, head), written)
    }

    pub(crate) fn write(&mut self, queue: u16, sector: u64, data: &[u8]) -> u8 {
        self.memory.put(DATA, data);
        let half = u32::try_from(data.len() / 2).unwrap();
        let parts =
            [(DATA, half), (DATA + u64::from(half), u32::try_from(data.len()).unwrap() - half)];
        self.call(queue, (WRITE, sector), &parts).0
    }

    pub(crate) fn read(&mut self, queue: u16, sector: u64, len: u32) -> Vec<u8> {
        let to = DATA + (4 << 20);
        self.memory.put(to, &vec![0xaa; len as usize]);
        let half = len / 2;
        let parts = [(to, half), (to + u64::from(half), len - half)];
        assert_eq!(self.call(queue, (READ, sector), &parts), (0, len + 1), "{sector} {len}");
        self.memory.get(to, len as usize)
    }

    /// Discards or zeroes ranges of sectors.
    pub(crate) fn ranges(&mut self, kind: u32, ranges: &[(u64, u32, u32)]) -> u8 {
        let mut bytes = Vec::new();
        for (sector, sectors, flags) in ranges {
            bytes.extend(sector.to_le_bytes());
            bytes.extend(sectors.to_le_bytes());
            bytes.extend(flags.to_le_bytes());
        }
        self.memory.put(DATA, &bytes);
        self.call(0, (kind, 0), &[(DATA, u32::try_from(bytes.len()).unwrap())]).0
    }
}
