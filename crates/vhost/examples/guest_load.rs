//! A guest that loads a vhost-user-blk disk, for measurements: a front end with one ring, and a driver that keeps it full.
//!
//! `guest_load SOCKET read|write BYTES DEPTH SECONDS poll|sleep` prints a line of JSON. With `poll` the driver looks for
//! what has ended without a pause and wants no interrupts; with `sleep` it waits for interrupts, as guests do.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend as _};
use vhost::{VhostBackend as _, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{
    Bytes as _, FileOffset, GuestAddress, GuestMemoryBackend as _, GuestMemoryMmap, VolatileSlice,
};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Entries of the ring, as QEMU has them. A request has three.
const SIZE: u16 = 128;
const PARTS: u16 = 3;
const DEPTH_MAX: u16 = SIZE / PARTS;
/// Where the ring is in the guest's memory.
const DESCRIPTORS: usize = 0;
const AVAILABLE: usize = 0x1000;
const USED: usize = 0x2000;
/// How many requests were ever made available, and used. Which one the driver wants an interrupt for, and which one the
/// device wants to be told of (VIRTIO 1.2, 2.7.6 to 2.7.10).
const AVAILABLE_INDEX: usize = AVAILABLE + 2;
const USED_INDEX: usize = USED + 2;
const INTERRUPT_AT: usize = AVAILABLE + 4 + 2 * SIZE as usize;
const KICK_AT: usize = USED + 4 + 8 * SIZE as usize;
/// Header and status of each request.
const REQUESTS: usize = 0x3000;
const REQUEST_LEN: usize = 32;
const STATUS_AT: usize = 16;
const RINGS_LEN: usize = 0x1_0000;
/// Where the front end says that it has the guest's memory.
const USER: u64 = 0x7000_0000_0000;
/// Kinds of requests, and bytes of a sector.
const READ: u32 = 0;
const WRITE: u32 = 1;
const SECTOR: u64 = 512;
/// Flags of descriptors: another one follows; the device writes.
const NEXT: u16 = 1;
const DEVICE_WRITES: u16 = 2;
/// The driver says which request it wants an interrupt for, and the device which one it wants to be told of.
const EVENT_INDEX: u64 = 1 << 29;
/// The part of the time that is not measured, at the beginning.
const RAMP_PART: u32 = 5;

type Failure = Box<dyn std::error::Error>;

/// What is asked of the guest.
struct Wanted {
    write: bool,
    bytes: u32,
    depth: u16,
    time: Duration,
    polls: bool,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: guest_load SOCKET read|write BYTES DEPTH SECONDS poll|sleep";
    let [socket, rw, bytes, depth, seconds, wait] = arguments.as_slice() else {
        eprintln!("{usage}");
        return ExitCode::from(2);
    };
    let run = || -> Result<String, Failure> {
        let wanted = Wanted {
            write: choice(rw, ["read", "write"])?,
            bytes: bytes.parse()?,
            depth: depth.parse()?,
            time: Duration::try_from_secs_f64(seconds.parse()?)?,
            polls: choice(wait, ["sleep", "poll"])?,
        };
        wanted.check()?;
        let memory = Memory::new(&wanted)?;
        let mut front = Frontend::connect(Path::new(socket), 1)?;
        let disk_bytes = agree(&mut front)?;
        let mut guest = Guest::boot(&mut front, &memory, &wanted, disk_bytes)?;
        guest.run()
    };
    match run() {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("guest_load: {error}; {usage}");
            ExitCode::FAILURE
        }
    }
}

/// Whether it is the second of two words.
fn choice(word: &str, of: [&str; 2]) -> Result<bool, Failure> {
    let at = of.iter().position(|name| *name == word);
    at.map(|at| at == 1).ok_or_else(|| format!("{word}: use {} or {}", of[0], of[1]).into())
}

impl Wanted {
    fn check(&self) -> Result<(), Failure> {
        if !(1..=DEPTH_MAX).contains(&self.depth) {
            return Err(format!("a depth of {}: use 1 to {DEPTH_MAX}", self.depth).into());
        }
        if self.bytes == 0 || !u64::from(self.bytes).is_multiple_of(SECTOR) {
            return Err(format!("{} bytes: use a multiple of {SECTOR}", self.bytes).into());
        }
        Ok(())
    }
}

/// The guest's memory: the ring, the requests, then the data.
struct Memory {
    map: GuestMemoryMmap,
    file: Arc<File>,
    len: u64,
}

impl Memory {
    fn new(wanted: &Wanted) -> Result<Self, Failure> {
        let len = RINGS_LEN as u64 + u64::from(wanted.depth) * u64::from(wanted.bytes);
        let file = Arc::new(tempfile::tempfile_in(shared_memory())?);
        file.set_len(len)?;
        let offset = FileOffset::from_arc(Arc::clone(&file), 0);
        let range = (GuestAddress(0), usize::try_from(len)?, Some(offset));
        Ok(Self { map: GuestMemoryMmap::from_ranges_with_files([range])?, file, len })
    }

    fn region(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: self.len,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        }
    }
}

/// A folder whose files are memory, or the usual one.
fn shared_memory() -> std::path::PathBuf {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() }
}

/// Agrees on features; gives the size of the disk.
fn agree(front: &mut Frontend) -> Result<u64, Failure> {
    front.set_owner()?;
    let features = front.get_features()?;
    if features & EVENT_INDEX == 0 {
        return Err("the disk does not offer event indices".into());
    }
    let unwanted =
        VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS | VhostUserProtocolFeatures::INFLIGHT_SHMFD;
    let offered = front.get_protocol_features()?;
    front.set_protocol_features(offered & !unwanted)?;
    front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    front.set_features(features)?;
    let flags = vhost::vhost_user::message::VhostUserConfigFlags::empty();
    let (_, sectors) = front.get_config(0, 8, flags, &[0; 8])?;
    let sectors = sectors.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    Ok(sectors.ok_or("the disk has no size")? * SECTOR)
}

/// A guest whose ring runs.
struct Guest<'a> {
    wanted: &'a Wanted,
    ring: VolatileSlice<'a>,
    kick: EventFd,
    interrupt: EventFd,
    /// How many requests were ever put into the ring, and taken out of it.
    posted: u16,
    taken: u16,
    free: Vec<u16>,
    since: Vec<Instant>,
    /// Places of the disk, each as long as a request.
    places: u64,
    random: u64,
}

impl<'a> Guest<'a> {
    fn boot(
        front: &mut Frontend,
        memory: &'a Memory,
        wanted: &'a Wanted,
        disk_bytes: u64,
    ) -> Result<Self, Failure> {
        let places = disk_bytes / u64::from(wanted.bytes);
        if places == 0 {
            return Err(format!("the disk has {disk_bytes} bytes only").into());
        }
        let ring = memory.map.get_slice(GuestAddress(0), RINGS_LEN)?;
        let guest = Self {
            wanted,
            ring,
            kick: EventFd::new(EFD_NONBLOCK)?,
            interrupt: EventFd::new(0)?,
            posted: 0,
            taken: 0,
            free: (0..wanted.depth).collect(),
            since: vec![Instant::now(); wanted.depth.into()],
            places,
            random: 0x9e37_79b9_7f4a_7c15,
        };
        guest.describe()?;
        front.set_mem_table(&[memory.region()])?;
        front.set_vring_num(0, SIZE)?;
        front.set_vring_base(0, 0)?;
        let at = |place: usize| USER + place as u64;
        front.set_vring_addr(
            0,
            &VringConfigData {
                queue_max_size: SIZE,
                queue_size: SIZE,
                flags: 0,
                desc_table_addr: at(DESCRIPTORS),
                used_ring_addr: at(USED),
                avail_ring_addr: at(AVAILABLE),
                log_addr: None,
            },
        )?;
        front.set_vring_call(0, &guest.interrupt)?;
        front.set_vring_kick(0, &guest.kick)?;
        front.set_vring_enable(0, true)?;
        Ok(guest)
    }

    /// Writes the descriptors and headers of all requests once: only the sector changes later.
    fn describe(&self) -> Result<(), Failure> {
        let Wanted { write, bytes, depth, .. } = *self.wanted;
        let (kind, data) = if write { (WRITE, 0) } else { (READ, DEVICE_WRITES) };
        for slot in 0..depth {
            let own = request(slot);
            self.ring.write_obj(kind, own)?;
            let data_at = RINGS_LEN as u64 + u64::from(slot) * u64::from(bytes);
            let first = PARTS * slot;
            let parts = [
                (own as u64, 16, NEXT),
                (data_at, bytes, NEXT | data),
                ((own + STATUS_AT) as u64, 1, DEVICE_WRITES),
            ];
            for (place, (address, len, flags)) in (first..).zip(parts) {
                let at = DESCRIPTORS + 16 * usize::from(place);
                self.ring.write_obj::<u64>(address, at)?;
                self.ring.write_obj::<u32>(len, at + 8)?;
                self.ring.write_obj::<u16>(flags, at + 12)?;
                self.ring.write_obj::<u16>(place + 1, at + 14)?;
            }
        }
        Ok(())
    }

    /// Keeps the ring full for the time, and gives what was measured.
    fn run(&mut self) -> Result<String, Failure> {
        let start = Instant::now();
        let measured_from = start + self.wanted.time / RAMP_PART;
        let end = measured_from + self.wanted.time;
        let mut latencies: Vec<u64> = Vec::with_capacity(1 << 20);
        let mut now = start;
        while now < end {
            self.submit(now)?;
            now = self.wait()?;
            self.reap(now, &mut latencies, measured_from)?;
        }
        // What is under way writes into this memory.
        while self.free.len() < usize::from(self.wanted.depth) {
            let now = self.wait()?;
            self.reap(now, &mut Vec::new(), now)?;
        }
        latencies.sort_unstable();
        let of = |per_mille: usize| {
            let at = latencies.len() * per_mille / 1000;
            latencies.get(at).map_or(0.0, |ns| *ns as f64 / 1000.0)
        };
        let iops = latencies.len() as f64 / self.wanted.time.as_secs_f64();
        Ok(format!("{{\"iops\":{iops:.1},\"p50_us\":{:.2},\"p99_us\":{:.2}}}", of(500), of(990)))
    }

    /// Puts all free requests into the ring, and tells the device if it wants that.
    fn submit(&mut self, now: Instant) -> Result<(), Failure> {
        let before = self.posted;
        while let Some(slot) = self.free.pop() {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            let sector = self.random % self.places * (u64::from(self.wanted.bytes) / SECTOR);
            self.ring.store(sector, request(slot) + 8, Ordering::Relaxed)?;
            let entry = AVAILABLE + 4 + 2 * usize::from(self.posted % SIZE);
            self.ring.store(PARTS * slot, entry, Ordering::Relaxed)?;
            self.since[usize::from(slot)] = now;
            self.posted = self.posted.wrapping_add(1);
        }
        if self.posted == before {
            return Ok(());
        }
        self.ring.store(self.posted, AVAILABLE_INDEX, Ordering::Release)?;
        fence(Ordering::SeqCst);
        let event: u16 = self.ring.load(KICK_AT, Ordering::Acquire)?;
        // The device wants to know when the count passes its event (VIRTIO 1.2, 2.7.10).
        let passed = self.posted.wrapping_sub(event).wrapping_sub(1);
        if passed < self.posted.wrapping_sub(before) {
            self.kick.write(1)?;
        }
        Ok(())
    }

    /// Waits until something has ended; gives the time then.
    fn wait(&self) -> Result<Instant, Failure> {
        while self.used()? == self.taken {
            if self.wanted.polls {
                std::hint::spin_loop();
                continue;
            }
            self.ring.store(self.taken, INTERRUPT_AT, Ordering::Release)?;
            fence(Ordering::SeqCst);
            if self.used()? == self.taken {
                // An error is an interruption: the loop looks again.
                let _: io::Result<u64> = self.interrupt.read();
            }
        }
        Ok(Instant::now())
    }

    fn used(&self) -> Result<u16, Failure> {
        Ok(self.ring.load(USED_INDEX, Ordering::Acquire)?)
    }

    /// Takes out what has ended.
    fn reap(&mut self, now: Instant, to: &mut Vec<u64>, from: Instant) -> Result<(), Failure> {
        let used = self.used()?;
        while self.taken != used {
            let entry = USED + 4 + 8 * usize::from(self.taken % SIZE);
            let head: u32 = self.ring.load(entry, Ordering::Relaxed)?;
            let slot = u16::try_from(head)? / PARTS;
            let status: u8 = self.ring.load(request(slot) + STATUS_AT, Ordering::Relaxed)?;
            if status != 0 {
                return Err(format!("a request ended with status {status}").into());
            }
            if now >= from {
                let ns = now.saturating_duration_since(self.since[usize::from(slot)]).as_nanos();
                to.push(u64::try_from(ns)?);
            }
            self.free.push(slot);
            self.taken = self.taken.wrapping_add(1);
        }
        if self.wanted.polls {
            // As far away as it can be.
            self.ring.store(self.taken.wrapping_sub(1), INTERRUPT_AT, Ordering::Relaxed)?;
        }
        Ok(())
    }
}

/// Where header and status of a request are.
fn request(slot: u16) -> usize {
    REQUESTS + REQUEST_LEN * usize::from(slot)
}
