//! A disk: added, started, served, and ended; or taken over from a process that was killed.

mod error;
mod recovery;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use raceline_bdev::{BdevInfo, DiskFigures, DiskStats, DiskTotals, SharedBdev};
use raceline_reactor::ublk::{MAX_DEPTH, UblkQueue};
use raceline_reactor::{Backend, Context, CoreLoop, Cores, Mode, PoolConfig, ReactorConfig};

use crate::control::Control;
use crate::pages::{self, CharacterDevice, Reason, Way};
use crate::plan::Facts;
use crate::serve::{Core, Message, Part};
use crate::size::{Refusal, Size};
use crate::uapi::{Command, DeviceInfo, Params, SECTOR, attribute, feature, state};
use crate::users::{self, User};

pub use self::error::DiskError;
use self::recovery::{ABANDON_TIME, Found, wait_for_end};

/// Requests of a queue at a time, unless told otherwise.
pub const DEFAULT_DEPTH: u16 = 128;

/// Most bytes of data of a request, unless told otherwise.
pub const DEFAULT_MAX_IO_BYTES: u32 = 512 << 10;

/// The most that can be chosen.
pub const MAX_IO_BYTES: u32 = 4 << 20;

/// Most memory for data of all requests together. It is taken when it is first used.
pub const MAX_MEMORY_BYTES: u64 = 1 << 30;

/// The least that can be chosen, and its unit: a page.
const IO_UNIT: u32 = 4096;

/// Most bytes that are discarded or zeroed by one request.
const MAX_RANGE_BYTES: u64 = 1 << 30;

/// How long the kernel may need to make the files of a disk, and to go on with a command that waits for a process.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long the kernel may need to see that a process has ended. Up to Linux 6.14, where all requests of a queue were with the
/// process, it sees that when it looks after their time, which is 30 s.
const DEATH_TIME: Duration = Duration::from_secs(60);

/// How often it looks.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// How often it is looked whether all cores have made their queues usable.
const OPEN_INTERVAL: Duration = Duration::from_millis(1);

/// How long the kernel may take, after it has said that a process has ended, to take back the places of that one's requests.
const SETTLE_TIME: Duration = Duration::from_millis(100);

/// How long what is at the device of a disk that is left may still take.
const LEAVE_TIME: Duration = Duration::from_secs(5);

/// How long the end of a disk waits until all have closed it.
const CLOSE_TIME: Duration = Duration::from_secs(5);

/// Sizes and numbers of a core's buffers: those of the network; data have their own.
const POOL: [(usize, usize); 2] = [(4 << 10, 256), (64 << 10, 64)];

/// What the kernel keeps with a disk, so that it is known again: whose it is, and of which device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u64);

impl Mark {
    /// The upper 16 bits of all marks.
    const OURS: u64 = 0x726c << 48;

    /// The mark of a device by a text that names it and no other.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, step);
        Self(Self::OURS | hash >> 16)
    }

    fn is_ours(mark: u64) -> bool {
        mark >> 48 == Self::OURS >> 48
    }
}

/// What to make.
#[derive(Clone)]
pub struct DiskConfig {
    /// The device.
    pub device: SharedBdev,
    /// How the disk is known again.
    pub mark: Mark,
    /// The number N of `/dev/ublkbN`; the kernel chooses if there is none.
    pub id: Option<u32>,
    /// The cores, with a queue each: a number to pin the thread to, or none to let it float.
    pub cores: Vec<Option<usize>>,
    /// How eagerly cores look for work.
    pub mode: Mode,
    /// Requests of a queue at a time.
    pub depth: u16,
    /// Most bytes of data of a request.
    pub max_io_bytes: u32,
    /// Writes are refused, although the device may take them.
    pub read_only: bool,
    /// Data are not copied where kernel and device can do without.
    pub zero_copy: bool,
}

impl DiskConfig {
    /// One core that floats, and the defaults.
    #[must_use]
    pub fn new(device: SharedBdev, mark: Mark) -> Self {
        Self {
            device,
            mark,
            id: None,
            cores: vec![None],
            mode: Mode::default(),
            depth: DEFAULT_DEPTH,
            max_io_bytes: DEFAULT_MAX_IO_BYTES,
            read_only: false,
            zero_copy: true,
        }
    }
}

/// What has become of a disk whose process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It is gone.
    Removed,
    /// It is still there: its I/O waits for the next process, as this one uses it.
    Left(User),
}

/// A running disk. Dropped without [`Disk::stop`], its threads run on.
pub struct Disk {
    control: Control,
    id: u32,
    device: SharedBdev,
    cores: Cores<Message>,
    failed: Arc<AtomicBool>,
    left: Arc<AtomicUsize>,
    stats: Arc<DiskStats>,
    /// The kernel keeps it for the next process.
    outlives: bool,
    size: Size,
    recovered: bool,
    way: Way,
}

impl Disk {
    /// Makes a disk, or goes on with that of the same mark whose process has ended. It is there on return.
    ///
    /// # Errors
    /// When that is not possible.
    pub fn start(config: &DiskConfig) -> Result<Self, DiskError> {
        check_config(config)?;
        let mut control = Control::open()?;
        if let Some(info) = find(&mut control, config)? {
            match wait_for_end(info.id, DEATH_TIME, || control.info(info.id))? {
                Found::Left => return Self::recover(control, config, &info),
                Found::Served => return Err(DiskError::InUse(info.id)),
                Found::Removed => {}
            }
        }
        Self::create(control, config)
    }

    fn create(mut control: Control, config: &DiskConfig) -> Result<Self, DiskError> {
        let device = config.device.info();
        let judged = pages::judge(config.zero_copy, &*config.device, control.features());
        let asked = asked(config, &device, control.resizes(), judged);
        let info = control.add(&asked).map_err(|source| match source.raw_os_error() {
            Some(EEXIST) => DiskError::InUse(asked.id),
            _ => refused(Command::Add, asked.id, source),
        })?;
        let (id, told, way) = (info.id, Told::default(), Way::of(info.features, judged.is_ok()));
        tell_way(id, way, judged);
        let mut params = params(&device, info.max_io_bytes, config.read_only);
        if way != Way::Mapped {
            // What is moved has to lie as a direct read or write of the device has it.
            params.memory_alignment = device.block_size;
        }
        let mut cores = Cores::default();
        let mut begin = || -> Result<(), DiskError> {
            let set = control.set_params(id, &params);
            set.map_err(|source| refused(Command::SetParams, id, source))?;
            serve(config, (&info, control.is_encoded(), way), &told, &mut cores)?;
            open_queues(id, &told, &cores)?;
            let worth = || told.is_well() && cores.is_running();
            let started = control.simple(Command::Start, id, process_id(), &worth);
            started.map_err(|source| refused(Command::Start, id, source))
        };
        if let Err(error) = begin() {
            // It has the character device open, for which the removal waits, as do the cores.
            drop(told);
            give_up(id, cores);
            return Err(error);
        }
        let bytes = params.sectors * SECTOR;
        let (device, Told { failed, left, stats, .. }) = (Arc::clone(&config.device), told);
        let outlives = info.features & feature::USER_RECOVERY != 0;
        let (recovered, size) = (false, Size::new(bytes));
        Ok(Self { control, id, device, cores, failed, left, stats, outlives, size, recovered, way })
    }

    /// Goes on with a disk whose process has ended.
    fn recover(
        mut control: Control,
        config: &DiskConfig,
        info: &DeviceInfo,
    ) -> Result<Self, DiskError> {
        let id = info.id;
        let before =
            control.params(id).map_err(|source| refused(Command::GetParams, id, source))?;
        let wanted = params(&config.device.info(), info.max_io_bytes, config.read_only);
        fits(&before, &wanted).map_err(|why| DiskError::Other { id, why })?;
        let (told, mut cores) = (Told::default(), Cores::default());
        let judged = pages::judge(config.zero_copy, &*config.device, control.features());
        let way = Way::of(info.features, judged.is_ok());
        tell_way(id, way, judged);
        // Before the kernel is told: after a recovery in which it has seen some of the queues only, Linux up to 6.14 breaks at the
        // next one.
        let begun = serve(config, (info, control.is_encoded(), way), &told, &mut cores);
        let (cores, control) = recovery::finish((id, ABANDON_TIME), (cores, begun), |cores| {
            recovery::start(id, PATIENCE, || {
                control.simple(Command::StartRecovery, id, process_id(), &|| true)
            })?;
            open_queues(id, &told, cores)?;
            recovery::end(id, &told, PATIENCE, |worth| {
                control.simple(Command::EndRecovery, id, process_id(), worth)
            })?;
            Ok(control)
        })?;
        let bytes = before.sectors * SECTOR;
        let (device, Told { failed, left, stats, .. }) = (Arc::clone(&config.device), told);
        let (recovered, outlives, size) = (true, true, Size::new(bytes));
        Ok(Self { control, id, device, cores, failed, left, stats, outlives, size, recovered, way })
    }

    /// `/dev/ublkbN`.
    #[must_use]
    pub fn path(&self) -> String {
        path(self.id)
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.size.bytes()
    }

    /// What it has done for the kernel since this process has it.
    #[must_use]
    pub fn totals(&self) -> DiskTotals {
        self.stats.totals()
    }

    /// A way for other threads to read the same, and what its cores do.
    #[must_use]
    pub fn figures(&self) -> DiskFigures {
        DiskFigures::new(&self.stats, self.cores.watch())
    }

    /// What the loops of its cores have done, one for each queue.
    #[must_use]
    pub fn core_loops(&self) -> Vec<CoreLoop> {
        self.cores.loops()
    }

    /// Whether it was made by another process before.
    #[must_use]
    pub fn is_recovered(&self) -> bool {
        self.recovered
    }

    /// Whether its data go between the kernel's requests and the device without a copy in this process.
    #[must_use]
    pub fn is_zero_copy(&self) -> bool {
        self.way == Way::Pages
    }

    /// False once a core has ended by itself, or the kernel has refused a command of one.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.failed.load(Ordering::Acquire) && self.cores.is_running()
    }

    /// Looks whether the device has another size, and gives it to the disk; tells the new size. A kernel that refuses it is
    /// asked again, at longer and longer intervals.
    ///
    /// # Errors
    /// When the kernel cannot; each size is told once.
    pub fn follow_size(&mut self) -> Result<Option<u64>, DiskError> {
        let info = self.device.info();
        let wanted = info.block_count * u64::from(info.block_size);
        let before = self.size.bytes();
        let (control, cores, id) = (&mut self.control, &self.cores, self.id);
        let resizes = control.resizes();
        let mut update = |bytes| control.simple(Command::UpdateSize, id, bytes / SECTOR, &|| true);
        let kernel: Option<&mut dyn FnMut(u64) -> io::Result<()>> =
            if resizes { Some(&mut update) } else { None };
        let tell = |bytes| cores.tell(|| Message::Resized(bytes));
        self.size.follow((wanted, Instant::now()), kernel, tell).map_err(|refusal| match refusal {
            Refusal::Never => DiskError::NoResize { before, now: wanted },
            Refusal::Now(source) => refused(Command::UpdateSize, id, source),
        })
    }

    /// Ends the disk with its process: removes it if nobody uses it, and else leaves it to the process that follows. A disk
    /// that is left has threads that run on, to the end of the process, and answers nothing any more.
    ///
    /// # Errors
    /// Those of [`Disk::stop`].
    pub fn end(self) -> Result<Ended, DiskError> {
        let user = if self.outlives { users::user(&self.path()) } else { None };
        match user {
            // Also if the kernel has refused a command: the process that follows is asked again.
            Some(user) if self.cores.is_running() => {
                self.leave();
                Ok(Ended::Left(user))
            }
            _ => self.stop().map(|()| Ended::Removed),
        }
    }

    /// Answers what is at the device, for as long as that takes little time, and nothing more.
    fn leave(self) {
        self.cores.tell(|| Message::Leave);
        let until = Instant::now() + LEAVE_TIME;
        let count = self.cores.senders().len();
        while self.left.load(Ordering::Acquire) < count && Instant::now() < until {
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Ends the disk after what is in flight, and removes its files, whoever uses it: from then on, that one gets errors. The
    /// character device stays until all have closed the disk, which is waited for a short time only.
    ///
    /// # Errors
    /// When the kernel refuses; then the disk may be left over.
    pub fn stop(mut self) -> Result<(), DiskError> {
        self.cores.tell(|| Message::Ends);
        let stopped = self.control.simple(Command::Stop, self.id, 0, &|| true);
        let stopped = stopped.map_err(|source| refused(Command::Stop, self.id, source));
        if stopped.is_err() && self.is_running() {
            return stopped;
        }
        self.cores.join();
        match delete(&mut self.control, self.id) {
            // Somebody else has removed it.
            Err(source) if source.raw_os_error() == Some(ENODEV) => Ok(()),
            deleted => deleted.map_err(|source| refused(Command::Delete, self.id, source)),
        }
    }
}

const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const ENODEV: i32 = 19;

/// The path of a disk.
#[must_use]
pub fn path(id: u32) -> String {
    format!("/dev/ublkb{id}")
}

/// Looks whether this machine can have disks.
///
/// # Errors
/// When it cannot, or this process may not make any.
pub fn check() -> Result<(), DiskError> {
    Control::open().map(drop)
}

/// Has the kernel not wait for disks when it needs memory for this thread, and those that it starts: the disk may be
/// the one that waits.
pub fn be_io_flusher() {
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::warn!("a disk may hang when memory runs out: PR_SET_IO_FLUSHER: {error}");
    }
}

/// Removes a disk of ours whose process has ended; false if there is none at this path.
///
/// # Errors
/// When the driver cannot be used, or the kernel refuses.
pub fn remove_orphan(path: &str) -> Result<bool, DiskError> {
    let id = path.strip_prefix("/dev/ublkb").and_then(|number| number.parse().ok());
    let Some(id) = id.filter(|_| Path::new(path).exists() || character_device(path)) else {
        return Ok(false);
    };
    let mut control = Control::open()?;
    match control.info(id) {
        Ok(info) if Mark::is_ours(info.mark) && is_orphan(&info) => {
            if wait_for_end(id, DEATH_TIME, || control.info(id))? != Found::Left {
                return Ok(false);
            }
        }
        _ => return Ok(false),
    }
    let stopped = control.simple(Command::Stop, id, 0, &|| true);
    stopped.map_err(|source| refused(Command::Stop, id, source))?;
    let deleted = delete(&mut control, id);
    deleted.map(|()| true).map_err(|source| refused(Command::Delete, id, source))
}

/// Removes the files of a disk that has ended.
fn delete(control: &mut Control, id: u32) -> io::Result<()> {
    let until = Instant::now() + CLOSE_TIME;
    match control.simple(Command::Delete, id, 0, &|| Instant::now() < until) {
        // The kernel has it go when the last program closes it.
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        deleted => deleted,
    }
}

/// Whether the character device of a disk is there, whose block device is gone.
fn character_device(path: &str) -> bool {
    Path::new(&path.replace("ublkb", "ublkc")).exists()
}

fn check_config(config: &DiskConfig) -> Result<(), DiskError> {
    let invalid = |text: String| Err(DiskError::Invalid(text));
    if config.cores.is_empty() || config.cores.len() > 64 {
        return invalid("a ublk disk has 1 to 64 cores".to_owned());
    }
    if config.depth == 0 || config.depth > MAX_DEPTH {
        return invalid(format!("a queue of a ublk disk has 1 to {MAX_DEPTH} requests at a time"));
    }
    let max = config.max_io_bytes;
    if max == 0 || max > MAX_IO_BYTES || !max.is_multiple_of(IO_UNIT) {
        return invalid(format!(
            "a request of a ublk disk has at most 4 KiB to {} KiB, in steps of 4 KiB",
            MAX_IO_BYTES >> 10
        ));
    }
    let memory = config.cores.len() as u64 * u64::from(config.depth) * u64::from(max);
    if memory > MAX_MEMORY_BYTES {
        return invalid(format!(
            "{} queues of {} requests of {} KiB would need {} MiB of memory, and {} MiB is the most; choose less of one",
            config.cores.len(),
            config.depth,
            max >> 10,
            memory >> 20,
            MAX_MEMORY_BYTES >> 20
        ));
    }
    let info = config.device.info();
    if info.block_count == 0 || !(512..=4096).contains(&info.block_size) {
        return invalid(format!("{} has no blocks that a disk can have", info.name));
    }
    Ok(())
}

/// The disk to go on with, if there is one.
fn find(control: &mut Control, config: &DiskConfig) -> Result<Option<DeviceInfo>, DiskError> {
    if let Some(id) = config.id {
        return match control.info(id) {
            Ok(info) if info.mark == config.mark.0 && is_orphan(&info) && outlives(&info) => {
                Ok(Some(info))
            }
            Ok(_) => Err(DiskError::InUse(id)),
            Err(_) => Ok(None),
        };
    }
    let mut ids: Vec<u32> = fs::read_dir("/dev")
        .map_err(|error| DiskError::Open("/dev".to_owned(), error))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok())
        .collect();
    ids.sort_unstable();
    let infos = ids.into_iter().filter_map(|id| control.info(id).ok());
    let mut fitting = infos.filter(|info| info.mark == config.mark.0);
    Ok(fitting.find(|info| is_orphan(info) && outlives(info)))
}

/// Whether nobody serves a disk any more.
fn is_orphan(info: &DeviceInfo) -> bool {
    match info.state {
        state::LIVE | state::DEAD => {
            info.pid <= 0 || !Path::new(&format!("/proc/{}", info.pid)).exists()
        }
        _ => true,
    }
}

/// Whether a disk waits for the next process.
fn outlives(info: &DeviceInfo) -> bool {
    info.features & feature::USER_RECOVERY != 0
        && matches!(info.state, state::LIVE | state::QUIESCED)
}

/// What the kernel is asked for.
fn asked(
    config: &DiskConfig,
    device: &BdevInfo,
    resizes: bool,
    judged: Result<(), Reason>,
) -> DeviceInfo {
    // What was in memory of the process is gone with it, and must not be taken for the same disk.
    let recovery = match device.reads_in_place {
        true => 0,
        false => feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE,
    };
    let resize = if resizes { feature::UPDATE_SIZE } else { 0 };
    DeviceInfo {
        queues: u16::try_from(config.cores.len()).unwrap_or(u16::MAX),
        depth: config.depth,
        state: state::DEAD,
        max_io_bytes: config.max_io_bytes,
        id: config.id.unwrap_or(u32::MAX),
        pid: i32::try_from(std::process::id()).unwrap_or(0),
        features: feature::COMP_IN_TASK
            | feature::CMD_IOCTL_ENCODE
            | recovery
            | resize
            | pages::features(judged),
        mark: config.mark.0,
    }
}

/// What the disk is like.
fn params(device: &BdevInfo, max_io_bytes: u32, read_only: bool) -> Params {
    let read_only = read_only || device.read_only;
    let cache =
        if device.volatile_write_cache { attribute::VOLATILE_CACHE | attribute::FUA } else { 0 };
    let shift = |bytes: u32| u8::try_from(bytes.max(1).ilog2()).unwrap_or(9);
    let sectors = |bytes: u64| u32::try_from(bytes / SECTOR).unwrap_or(u32::MAX);
    let range = if read_only { 0 } else { sectors(MAX_RANGE_BYTES) };
    Params {
        attributes: cache | if read_only { attribute::READ_ONLY } else { 0 },
        logical_shift: shift(device.block_size),
        physical_shift: shift(device.physical_block_size.clamp(device.block_size, 1 << 20)),
        max_sectors: sectors(max_io_bytes.into()),
        sectors: device.block_count * (u64::from(device.block_size) / SECTOR),
        discard_granularity: device.physical_block_size.clamp(device.block_size, 1 << 20),
        max_discard_sectors: if device.deallocate { range } else { 0 },
        max_zeroes_sectors: range,
        memory_alignment: 0,
    }
}

/// Says in the log how data go, and why they are copied.
fn tell_way(id: u32, way: Way, judged: Result<(), Reason>) {
    let path = path(id);
    match (way, judged) {
        (Way::Pages, _) => tracing::info!("{path}: data go to and from the device without a copy"),
        (_, Err(reason)) => tracing::info!("{path}: data are copied: {reason}"),
        // A disk keeps for its life what it was made with.
        (_, Ok(())) => tracing::info!("{path}: data are copied: the disk was made so"),
    }
}

/// Whether a disk can be of a device now, as it was of the same before.
fn fits(before: &Params, now: &Params) -> Result<(), String> {
    if before.logical_shift != now.logical_shift {
        let (had, has) = (1_u32 << (before.logical_shift & 31), 1_u32 << (now.logical_shift & 31));
        return Err(format!("its blocks have {had} bytes, and those of the device {has}"));
    }
    if before.sectors > now.sectors {
        let (had, has) = (before.sectors, now.sectors);
        return Err(format!("it has {had} sectors, and the device only {has}"));
    }
    let is_read_only = |params: &Params| params.attributes & attribute::READ_ONLY != 0;
    if is_read_only(now) && !is_read_only(before) {
        return Err("it can be written, and the device cannot".to_owned());
    }
    Ok(())
}

/// What cores tell.
#[derive(Default)]
struct Told {
    failed: Arc<AtomicBool>,
    /// Before the disk is there, no place of a request may be taken back: the kernel would wait for it without end.
    ended: Arc<AtomicBool>,
    /// Cores that have made their queues usable.
    opened: Arc<AtomicUsize>,
    left: Arc<AtomicUsize>,
    stats: Arc<DiskStats>,
    /// What the cores are told.
    file: CharacterDevice,
}

impl Told {
    /// Whether the disk may still come.
    fn is_well(&self) -> bool {
        !self.failed.load(Ordering::Acquire) && !self.ended.load(Ordering::Acquire)
    }
}

/// Starts the cores of a disk's queues.
fn serve(
    config: &DiskConfig,
    (info, ioctl_encode, way): (&DeviceInfo, bool, Way),
    told: &Told,
    cores: &mut Cores<Message>,
) -> Result<(), DiskError> {
    let facts = Facts::new(&config.device.info(), info.max_io_bytes, config.read_only);
    let (depth, max_io_bytes) = (info.depth, info.max_io_bytes);
    let pages = info.features & feature::USER_COPY != 0;
    let reactor = ReactorConfig {
        mode: config.mode,
        backend: Backend::Uring,
        pool: PoolConfig::new(&POOL),
        name: "ublk".to_owned(),
        ..ReactorConfig::default()
    };
    let pinned = config.cores.iter().copied().cycle().take(info.queues.into());
    let started = cores.start(&reactor, pinned, |place| {
        let queue = u16::try_from(place).expect("there are as many cores as queues");
        let part = Part {
            file: Arc::clone(&told.file),
            device: Arc::clone(&config.device),
            queue: UblkQueue { queue, depth, max_io_bytes, ioctl_encode, pages },
            facts,
            way,
            failed: Arc::clone(&told.failed),
            ended: Arc::clone(&told.ended),
            opened: Arc::clone(&told.opened),
            left: Arc::clone(&told.left),
            counters: told.stats.core(),
        };
        move |cx: &mut Context<'_>| Core::new(cx, part)
    });
    started.map_err(DiskError::Core)
}

/// Has the cores ask the kernel for requests: none of them before all can.
fn open_queues(id: u32, told: &Told, cores: &Cores<Message>) -> Result<(), DiskError> {
    let _ = told.file.set(Arc::new(open_character_device(id)?));
    cores.tell(|| Message::Open);
    let (until, count) = (Instant::now() + PATIENCE, cores.senders().len());
    while told.opened.load(Ordering::Acquire) < count {
        if !told.is_well() || !cores.is_running() || Instant::now() > until {
            let text = "a queue of the disk cannot be opened; the log says why";
            return Err(DiskError::Core(io::Error::other(text)));
        }
        std::thread::sleep(OPEN_INTERVAL);
    }
    cores.tell(|| Message::Fetch);
    Ok(())
}

/// Opens `/dev/ublkcN`, which udev may still have to make, or another program to let go of.
fn open_character_device(id: u32) -> Result<File, DiskError> {
    let path = format!("/dev/ublkc{id}");
    let until = Instant::now() + PATIENCE;
    loop {
        match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => return Ok(file),
            Err(error) if Instant::now() > until => return Err(DiskError::Open(path, error)),
            Err(_) => std::thread::sleep(LOOK_INTERVAL),
        }
    }
}

/// Removes a disk that was not started.
fn give_up(id: u32, cores: Cores<Message>) {
    cores.tell(|| Message::Abandon);
    // The other way to the driver may still have a command.
    let deleted = Control::open().map(|mut control| {
        let until = Instant::now() + PATIENCE;
        control.simple(Command::Delete, id, 0, &|| Instant::now() < until)
    });
    match deleted {
        Ok(Ok(())) => cores.join(),
        Ok(Err(error)) => tracing::error!("{} is left over: {error}", path(id)),
        Err(error) => tracing::error!("{} is left over: {error}", path(id)),
    }
}

fn refused(command: Command, id: u32, source: io::Error) -> DiskError {
    DiskError::Command { command: command.name(), id, source }
}

fn process_id() -> u64 {
    std::process::id().into()
}

#[cfg(test)]
mod tests;
