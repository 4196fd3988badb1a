//! What a front end asks for, before and beside the rings (vhost-user.rst, "Front-end message types").

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use raceline_reactor::Sender;
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Backend, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

use crate::cache::Cache;
use crate::config::{Facts, chosen_writeback, feature};
use crate::core::Message;
use crate::eventfd::{self, Interrupt};
use crate::inflight::{Inflight, Part};
use crate::link::Link;
use crate::memory::{Area, Memory};
use crate::queue::Start;
use crate::ring::{MAX_RING, Place, Ring};

/// Most parts of a front end's memory.
const MAX_AREAS: u64 = 64;

/// How long a front end that stops its rings waits for what the device has of all of them: a virtual machine stands still
/// meanwhile.
const STOP_TIME: Duration = Duration::from_secs(10);

/// What a ring has at least, when the others have taken that time.
const LEAST_STOP_TIME: Duration = Duration::from_millis(50);

/// What a front end has said of a ring.
#[derive(Default)]
struct Setup {
    size: u16,
    /// In the front end's addresses.
    place: Option<Place>,
    base: u16,
    kicks: Option<File>,
    interrupt: Option<File>,
    enabled: bool,
    /// A core serves it.
    runs: bool,
}

/// What a front end's thread uses.
pub(crate) struct Shared {
    pub(crate) facts: Arc<Facts>,
    pub(crate) cores: Vec<Sender<Message>>,
    pub(crate) link: Arc<Link>,
}

/// A front end, while it is connected.
pub(crate) struct FrontEnd {
    shared: Arc<Shared>,
    features: u64,
    memory: Option<Arc<Memory>>,
    inflight: Option<Arc<Inflight>>,
    cache: Cache,
    rings: Vec<Setup>,
    /// Until when rings that are stopped may wait for the device; none before the first one is.
    stop_until: Option<Instant>,
}

/// Refuses a request, which ends the connection.
fn refused(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::ReqHandlerError(io::Error::other(error))
}

impl FrontEnd {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let rings = (0..shared.facts.queues).map(|_| Setup::default()).collect();
        let cache = Cache::default();
        let (features, memory, inflight, stop_until) = (0, None, None, None);
        let new = Self { shared, features, memory, inflight, cache, rings, stop_until };
        new.use_cache();
        new
    }

    /// Has the cores do as the guest has chosen, and notes it down for a server after this one.
    fn use_cache(&self) {
        self.shared.facts.set_writeback(self.cache.is_on());
        if let (Some(inflight), Some(choice)) = (&self.inflight, self.cache.choice()) {
            inflight.note_cache(choice);
        }
    }

    /// Has all rings stopped. What they leave at the device is waited for before the next front end's requests begin.
    pub(crate) fn end(&mut self) {
        for number in 0..self.shared.facts.queues {
            self.stop(number);
        }
    }

    fn ring(&mut self, index: u32) -> Result<(u16, &mut Setup)> {
        let number = u16::try_from(index).map_err(|_| Error::InvalidParam)?;
        let count = self.rings.len();
        match self.rings.get_mut(usize::from(number)) {
            Some(setup) => Ok((number, setup)),
            None => Err(refused(format!("there is no ring {index}: the device has {count}"))),
        }
    }

    fn tell(&self, number: u16, message: Message) -> Result<()> {
        let cores = &self.shared.cores;
        let core = &cores[usize::from(number) % cores.len()];
        core.send(message).map_err(|_| refused("a core of the server has ended"))
    }

    /// Has a core serve a ring, once all of it is known.
    fn start_if_known(&mut self, number: u16) -> Result<()> {
        let Some(memory) = self.memory.clone() else { return Ok(()) };
        let event_index = self.features & feature::RING_EVENT_IDX != 0;
        let needs_enable = self.features & feature::PROTOCOL_FEATURES != 0;
        let inflight = self.inflight.clone();
        let setup = &mut self.rings[usize::from(number)];
        if setup.runs || setup.kicks.is_none() {
            return Ok(());
        }
        let Some(place) = setup.place else { return Ok(()) };
        let translate = |user: u64| {
            let guest = memory.guest_address(user);
            guest.ok_or_else(|| {
                refused(format!("ring {number} is at {user:#x}, which is not shared"))
            })
        };
        let place = Place {
            descriptors: translate(place.descriptors)?,
            available: translate(place.available)?,
            used: translate(place.used)?,
        };
        let ring = Ring::new(&memory, place, (setup.size, event_index), setup.base);
        let mut ring = ring.map_err(|fault| refused(format!("ring {number}: {fault}")))?;
        let part = inflight.and_then(|inflight| Part::new(&inflight, number, setup.size));
        let (part, again) = recover(part, &mut ring)?;
        if !again.is_empty() {
            tracing::info!(
                "ring {number} of a guest: {} requests are carried out again",
                again.len()
            );
        }
        let interrupt = match &setup.interrupt {
            Some(file) => {
                Some(Interrupt::new(file.try_clone().map_err(refused)?).map_err(refused)?)
            }
            None => None,
        };
        let Some(kicks) = setup.kicks.take() else { return Ok(()) };
        let kicks = eventfd::kicks(kicks).map_err(refused)?;
        setup.runs = true;
        self.stop_until = None;
        self.cache.handle_start();
        let enabled = setup.enabled || !needs_enable;
        let start = Start { number, ring, memory, interrupt, inflight: part, again, enabled };
        self.tell(number, Message::Start(Box::new(start), kicks))
    }

    /// Has a ring stopped; gives the index of the next request. What the device has of it is waited for, but not for long:
    /// while all paths to a device are lost, it would hold a virtual machine up that is to stop. The front end keeps a note of
    /// such requests, and they are carried out again when it starts the ring. Who keeps none waits: its requests would be lost.
    fn stop(&mut self, number: u16) -> u16 {
        let setup = &mut self.rings[usize::from(number)];
        let base = setup.base;
        if !std::mem::take(&mut setup.runs) {
            return base;
        }
        let (ended, end) = sync_channel(1);
        let base = match self.tell(number, Message::Stop(number, ended)) {
            Ok(()) => {
                let mut told = end.recv_timeout(self.time_to_stop());
                if told == Err(RecvTimeoutError::Timeout) {
                    // A core that has ended has told so.
                    let _ = self.tell(number, Message::Leave(number));
                    told = end.recv().map_err(RecvTimeoutError::from);
                }
                told.unwrap_or(base)
            }
            Err(_) => base,
        };
        self.rings[usize::from(number)].base = base;
        base
    }

    /// How long a ring that is stopped, or disabled, may wait for the device.
    fn time_to_stop(&mut self) -> Duration {
        let now = Instant::now();
        let until = self.stop_until.filter(|until| now < *until + STOP_TIME);
        let until = until.unwrap_or(now + STOP_TIME);
        self.stop_until = Some(until);
        until.saturating_duration_since(now).max(LEAST_STOP_TIME)
    }

    /// Has a ring disabled, once what is in it now has been returned: cloud-hypervisor disables the rings of a machine whose
    /// processors stand still, and takes a snapshot of its memory after that. A machine that is made of the snapshot takes all
    /// that is in its rings for done. What the device has is not waited for for long, as with [`Self::stop`].
    fn drain(&mut self, number: u16) -> Result<()> {
        let (drained, end) = sync_channel(1);
        self.tell(number, Message::Drain(number, drained))?;
        if end.recv_timeout(self.time_to_stop()) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(
                "ring {number} of a guest was disabled while requests were at the device: a snapshot of the guest that is taken \
                 now lacks their ends"
            );
        }
        self.tell(number, Message::Enable(number, false))
    }

    /// Uses this memory from now on, in rings that run, too.
    fn set_areas(&mut self, areas: Vec<Area>) -> Result<()> {
        let memory = Arc::new(Memory::new(areas).map_err(refused)?);
        for core in &self.shared.cores {
            let (taken, answer) = sync_channel(1);
            let told = core.send(Message::Memory(Arc::clone(&memory), taken));
            told.map_err(|_| refused("a core of the server has ended"))?;
            answer.recv().map_err(|_| refused("a core of the server has ended"))?;
        }
        self.memory = Some(memory);
        Ok(())
    }

    fn areas(&self) -> Vec<Area> {
        self.memory.as_ref().map_or_else(Vec::new, |memory| memory.areas().to_vec())
    }
}

/// Finds what another process has left of a ring.
fn recover(part: Option<Part>, ring: &mut Ring) -> Result<(Option<Part>, Vec<u16>)> {
    let Some(mut part) = part else { return Ok((None, Vec::new())) };
    let used = ring.next_used();
    let Some(again) = part.recover(ring.size(), used).map_err(refused)? else {
        return Ok((Some(part), Vec::new()));
    };
    let count = u16::try_from(again.len()).unwrap_or(MAX_RING);
    ring.skip_to(used.wrapping_add(count));
    Ok((Some(part), again))
}

fn area(region: &VhostUserMemoryRegion, file: File) -> Area {
    Area {
        guest: region.guest_phys_addr,
        user: region.user_addr,
        len: region.memory_size,
        offset: region.mmap_offset,
        file: Arc::new(file),
    }
}

impl VhostUserBackendReqHandlerMut for FrontEnd {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.end();
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.end();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.shared.facts.features())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let unknown = features & !self.shared.facts.features();
        if unknown != 0 {
            return Err(refused(format!("features {unknown:#x} were not offered")));
        }
        self.features = features;
        self.cache.handle_features(features);
        self.use_cache();
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let areas = regions.iter().zip(files).map(|(region, file)| area(region, file)).collect();
        self.set_areas(areas)?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let (number, setup) = self.ring(index)?;
        match u16::try_from(num) {
            Ok(size) if size.is_power_of_two() && size <= MAX_RING => {
                setup.size = size;
                Ok(())
            }
            _ => Err(refused(format!(
                "ring {number} has {num} entries; it must be a power of two, at most {MAX_RING}"
            ))),
        }
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let (number, setup) = self.ring(index)?;
        setup.place = Some(Place { descriptors, available, used });
        self.start_if_known(number)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let (_, setup) = self.ring(index)?;
        // The upper half is of packed rings.
        setup.base = u16::try_from(base & 0xffff).unwrap_or(0);
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let (number, _) = self.ring(index)?;
        let base = self.stop(number);
        let (_, setup) = self.ring(index)?;
        (setup.kicks, setup.interrupt) = (None, None);
        Ok(VhostUserVringState::new(index, base.into()))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let (number, _) = self.ring(index.into())?;
        let Some(file) = fd else {
            return Err(refused(format!(
                "ring {number} would have to be polled, which is not done"
            )));
        };
        self.stop(number);
        self.rings[usize::from(number)].kicks = Some(file);
        self.start_if_known(number)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let (number, setup) = self.ring(index.into())?;
        let runs = setup.runs;
        let interrupt = fd.as_ref().map(File::try_clone).transpose().map_err(refused)?;
        setup.interrupt = fd;
        if !runs {
            return Ok(());
        }
        let interrupt = interrupt.map(Interrupt::new).transpose().map_err(refused)?;
        self.tell(number, Message::Interrupt(number, interrupt))
    }

    fn set_vring_err(&mut self, index: u8, _fd: Option<File>) -> Result<()> {
        self.ring(index.into()).map(|_| ())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.shared.facts.queues.into())
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        let (number, setup) = self.ring(index)?;
        setup.enabled = enable;
        match (setup.runs, enable) {
            (true, true) => {
                // The next pause has all its time.
                self.stop_until = None;
                self.tell(number, Message::Enable(number, true))
            }
            (true, false) => self.drain(number),
            (false, _) => self.start_if_known(number),
        }
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        self.cache.handle_read();
        self.use_cache();
        let space = self.shared.facts.space();
        let start = usize::try_from(offset).map_err(|_| Error::InvalidParam)?;
        let end = usize::try_from(size).ok().and_then(|size| start.checked_add(size));
        let part = end.and_then(|end| space.get(start..end));
        part.map(<[u8]>::to_vec).ok_or(Error::InvalidParam)
    }

    fn set_config(
        &mut self,
        offset: u32,
        bytes: &[u8],
        _flags: VhostUserConfigFlags,
    ) -> Result<()> {
        if let Some(on) = chosen_writeback(offset, bytes) {
            self.cache.handle_choice(on);
            self.use_cache();
        }
        Ok(())
    }

    // The server has looked at the message itself: this object cannot tell of changes.
    fn set_backend_req_fd(&mut self, _backend: Backend) {}

    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (queues, size) = (wanted.num_queues, wanted.queue_size);
        if queues == 0 || queues > self.shared.facts.queues || size == 0 || size > MAX_RING {
            return Err(refused(format!("{queues} rings of {size} entries cannot be tracked")));
        }
        let (file, len) = Inflight::create(queues, size).map_err(refused)?;
        let kept = file.try_clone().map_err(refused)?;
        let inflight = Inflight::adopt(kept, (0, len), (queues, size)).map_err(refused)?;
        self.inflight = Some(Arc::new(inflight));
        self.use_cache();
        Ok((VhostUserInflight::new(len, 0, queues, size), file))
    }

    fn set_inflight_fd(&mut self, inflight: &VhostUserInflight, file: File) -> Result<()> {
        let range = (inflight.mmap_offset, inflight.mmap_size);
        let shape = (inflight.num_queues, inflight.queue_size);
        let inflight = Inflight::adopt(file, range, shape).map_err(refused)?;
        self.cache.handle_note(inflight.noted_cache());
        self.inflight = Some(Arc::new(inflight));
        self.use_cache();
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MAX_AREAS)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        let mut areas = self.areas();
        if areas.len() as u64 >= MAX_AREAS {
            return Err(refused(format!("there are {MAX_AREAS} memory regions already")));
        }
        areas.push(area(region, file));
        self.set_areas(areas)?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let is_it = |area: &Area| {
            (area.guest, area.user, area.len)
                == (region.guest_phys_addr, region.user_addr, region.memory_size)
        };
        let mut areas = self.areas();
        let Some(index) = areas.iter().position(is_it) else {
            let user = region.user_addr;
            return Err(refused(format!("no memory region is at {user:#x}")));
        };
        areas.remove(index);
        self.set_areas(areas)
    }

    fn set_gpu_socket(&mut self, _backend: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("there is no GPU"))
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("there are no shared objects"))
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation("there is no state to transfer"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("there is no state to transfer"))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidOperation("there is no shared memory"))
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        Err(Error::InvalidOperation("dirty pages are not logged"))
    }
}
