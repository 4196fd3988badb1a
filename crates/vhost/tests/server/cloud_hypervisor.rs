//! cloud-hypervisor's messages in their order, as its source has them: `vhost_user/blk.rs`, `vhost_user/mod.rs` and
//! `vhost_user/vu_common_ctrl.rs` of its crate `virtio-devices`, after version 53 (commit ae44c2971c83).

use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_bdev::{InjectBdev, InjectControl, Injected, Injection, OpKind};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend as _};
use vhost::{VhostBackend as _, VhostUserMemoryRegionInfo};

use crate::guest::{
    Bed, DATA, FLUSH, Guest, Layout, MEMORY, Manner, PATIENCE, SIZE, USER, USUAL, WRITE, connect,
    region,
};
use crate::pattern;

/// The features of virtio that it offers its guests, if the back end has them: SIZE_MAX, SEG_MAX, GEOMETRY, RO, BLK_SIZE,
/// FLUSH, TOPOLOGY, CONFIG_WCE, MQ, DISCARD, WRITE_ZEROES; LOG_ALL, INDIRECT_DESC, EVENT_IDX, PROTOCOL_FEATURES; VERSION_1,
/// IN_ORDER, ORDER_PLATFORM, NOTIFICATION_DATA.
const OFFERED: [u32; 19] = [1, 2, 4, 5, 6, 9, 10, 11, 12, 13, 14, 26, 28, 29, 30, 32, 35, 36, 38];

/// The protocol features that it uses, if the back end has them.
fn protocol() -> VhostUserProtocolFeatures {
    VhostUserProtocolFeatures::CONFIG
        | VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::INFLIGHT_SHMFD
        | VhostUserProtocolFeatures::LOG_SHMFD
        | VhostUserProtocolFeatures::DEVICE_STATE
}

/// Long enough for a request that is carried out, or an answer that comes, although it must not.
const LOOK: Duration = Duration::from_secs(1);

/// A machine: a guest, and what was agreed on when its device was made.
struct Machine {
    guest: Guest,
    features: u64,
    protocol: VhostUserProtocolFeatures,
}

impl Machine {
    /// `Blk::new`, with the size of the configuration space that it knows.
    fn new(path: &Path, manner: Manner) -> Self {
        let mut front = connect(path, manner.queues);
        let features = OFFERED.iter().fold(0, |all, bit| all | 1 << bit);
        let features = features & front.get_features().unwrap();
        let protocol = protocol() & front.get_protocol_features().unwrap();
        front.set_protocol_features(protocol).unwrap();
        front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        assert!(front.get_queue_num().unwrap() >= manner.queues.into());
        let space = front.get_config(0, 60, VhostUserConfigFlags::WRITABLE, &[0; 60]).unwrap().1;
        assert_eq!(space.len(), 60);
        Self { guest: Guest::new(front, manner), features, protocol }
    }

    /// `VhostUserHandle::setup_vhost_user`, when the driver is ready and when the connection is made again.
    fn set_up(&mut self) {
        let queues: Vec<u16> = (0..).take(self.guest.kicks.len()).collect();
        let front = &mut self.guest.front;
        front.set_features(self.features).unwrap();
        front.set_mem_table(&[region(&self.guest.memory.file)]).unwrap();
        for queue in &queues {
            front.set_vring_num(usize::from(*queue), SIZE).unwrap();
        }
        let (inflight, file) = self.guest.inflight.get_or_insert_with(|| {
            let count = u16::try_from(queues.len()).unwrap();
            front.get_inflight_fd(&VhostUserInflight::new(0, 0, count, SIZE)).unwrap()
        });
        front.set_inflight_fd(inflight, file.as_raw_fd()).unwrap();
        for queue in &queues {
            let (layout, index) = (Layout::of(*queue), usize::from(*queue));
            front.set_vring_addr(index, &layout.place()).unwrap();
            // Not where the used ring ends: what was not taken by then would be lost.
            let base = self.guest.memory.index(layout.available + 2);
            front.set_vring_base(index, base).unwrap();
            front.set_vring_call(index, &self.guest.interrupts[index]).unwrap();
            front.set_vring_kick(index, &self.guest.kicks[index]).unwrap();
        }
        self.enable(true);
    }

    fn enable(&mut self, enabled: bool) {
        for queue in 0..self.guest.kicks.len() {
            self.guest.front.set_vring_enable(queue, enabled).unwrap();
        }
    }

    /// `VhostUserEpollHandler::reconnect`: it does not ask for the configuration space and not for protocol features.
    fn connect_again(&mut self, path: &Path) {
        let mut front = Frontend::connect(path, self.guest.kicks.len() as u64).unwrap();
        front.set_owner().unwrap();
        front.get_features().unwrap();
        front.set_protocol_features(self.protocol).unwrap();
        front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        self.guest.front = front;
        self.set_up();
    }

    /// `VhostUserHandle::reset_vhost_user`, when the driver resets the device: its rings are empty then,
    /// and a new note of requests in flight is asked for.
    fn reset(&mut self) {
        for queue in 0..self.guest.kicks.len() {
            self.guest.front.set_vring_enable(queue, false).unwrap();
            self.guest.front.get_vring_base(queue).unwrap();
        }
        self.guest = Guest::new(self.guest.front.clone(), USUAL);
    }

    fn check_both_queues(&mut self, from: u64) {
        for queue in [0, 1] {
            let sector = from + 128 * u64::from(queue);
            assert_eq!(self.guest.write(queue, sector, &pattern(sector, 65536)), 0);
            assert_eq!(self.guest.call(queue, (FLUSH, 0), &[]), (0, 1));
            assert!(self.guest.read(1 - queue, sector, 65536) == pattern(sector, 65536));
        }
    }
}

#[test]
fn a_device_is_made_used_reset_and_used_again() {
    let bed = Bed::start("ram:16M", |_| {});
    let mut machine = Machine::new(&bed.path(), USUAL);
    machine.set_up();
    machine.check_both_queues(0);
    machine.guest.front.set_config(32, VhostUserConfigFlags::WRITABLE, &[0]).unwrap();
    machine.check_both_queues(512);
    // `vm.resize` brings another region of memory while the rings run.
    let more = tempfile::tempfile().unwrap();
    more.set_len(MEMORY).unwrap();
    let region = VhostUserMemoryRegionInfo {
        guest_phys_addr: MEMORY,
        memory_size: MEMORY,
        userspace_addr: USER + 0x1_0000_0000,
        mmap_offset: 0,
        mmap_handle: more.as_raw_fd(),
    };
    machine.guest.front.add_mem_region(&region).unwrap();
    machine.check_both_queues(1024);
    let far = [(MEMORY + 4096, 512)];
    std::os::unix::fs::FileExt::write_all_at(&more, &pattern(3, 512), 4096).unwrap();
    assert_eq!(machine.guest.call(0, (WRITE, 3), &far), (0, 1));
    assert!(machine.guest.read(1, 3, 512) == pattern(3, 512));
    machine.reset();
    machine.set_up();
    machine.check_both_queues(2048);
}

/// Requests that are at the device and in the ring when the server ends: cloud-hypervisor restores the available index, behind
/// all of them.
#[test]
fn requests_that_were_not_taken_are_carried_out_after_a_new_connection() {
    let dir = tempfile::tempdir().unwrap();
    let device = format!("file:{}/disk,size=16M,buffered", dir.path().display());
    let socket = dir.path().join("s");
    let start = || Bed::start(&device, |config| config.socket.clone_from(&socket));
    let bed = start();
    let mut machine = Machine::new(&socket, USUAL);
    machine.set_up();
    machine.check_both_queues(0);
    bed.stop();
    let mut posted = Vec::new();
    for n in 0..6 {
        let (at, sector) = (DATA + 4096 * n, 4096 + 8 * n);
        machine.guest.memory.put(at, &pattern(sector, 4096));
        posted.push(machine.guest.post(0, (WRITE, sector), &[(at, 4096)]));
    }
    machine.guest.kick(0);
    let _bed = start();
    machine.connect_again(&socket);
    let returned: Vec<u16> = posted.iter().map(|_| machine.guest.next_used(0).0).collect();
    assert_eq!(returned, posted);
    for n in 0..6 {
        let sector = 4096 + 8 * n;
        assert!(machine.guest.read(1, sector, 4096) == pattern(sector, 4096), "{sector}");
    }
    machine.check_both_queues(8192);
}

/// For how long the server waits for its device when rings are disabled.
const STOP_TIME: Duration = Duration::from_secs(10);

/// Lets go of what a device holds, also when a test fails: a server waits for it.
struct Held(InjectControl);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.resume();
    }
}

/// A server whose device holds the next write.
fn holding() -> (Bed, Held) {
    let mut control = None;
    let bed = Bed::start("ram:16M", |config| {
        let (device, orders) = InjectBdev::new(Arc::clone(&config.device));
        control = Some(orders);
        config.device = Arc::new(device);
    });
    let control = control.unwrap();
    control.inject(OpKind::Write, Injection { what: Injected::Held, count: 1, depth: 0 });
    (bed, Held(control))
}

/// `vm.pause` stops the processors and disables the rings; a snapshot is of the memory after that, and the machine that is made
/// of it takes everything in its rings for done.
#[test]
fn a_machine_is_paused_when_what_is_in_its_rings_is_done() {
    let (bed, held) = holding();
    let mut machine = Machine::new(&bed.path(), USUAL);
    machine.set_up();
    machine.guest.memory.put(DATA, &pattern(7, 4096));
    let posted: Vec<u16> =
        (0..3).map(|n| machine.guest.post(0, (WRITE, 8 * n), &[(DATA, 4096)])).collect();
    machine.guest.kick(0);
    let mut front = machine.guest.front.clone();
    let pause = std::thread::spawn(move || {
        for queue in [0, 1] {
            front.set_vring_enable(queue, false).unwrap();
        }
    });
    std::thread::sleep(LOOK);
    assert!(!pause.is_finished(), "the device still has a request");
    drop(held);
    pause.join().unwrap();
    assert_eq!(machine.guest.memory.index(Layout::of(0).used + 2), 3);
    assert!(posted.iter().all(|&head| machine.guest.status(0, head) == 0));
    // What comes now waits for the end of the pause.
    let late = machine.guest.post(0, (WRITE, 64), &[(DATA, 4096)]);
    machine.guest.kick(0);
    std::thread::sleep(LOOK);
    assert_eq!(machine.guest.memory.index(Layout::of(0).used + 2), 3);
    machine.enable(true);
    let returned: Vec<u16> = (0..4).map(|_| machine.guest.next_used(0).0).collect();
    assert_eq!(returned[3], late);
    machine.check_both_queues(1024);
}

#[test]
fn a_pause_is_not_held_up_by_a_device_that_does_not_answer() {
    let (bed, held) = holding();
    let mut machine = Machine::new(&bed.path(), USUAL);
    machine.set_up();
    // A pause before it takes nothing from its time.
    machine.enable(false);
    machine.enable(true);
    std::thread::sleep(2 * LOOK);
    let head = machine.guest.post(0, (WRITE, 0), &[(DATA, 4096)]);
    machine.guest.kick(0);
    let begun = Instant::now();
    machine.enable(false);
    let took = begun.elapsed();
    assert!(took >= STOP_TIME && took < PATIENCE, "{took:?}");
    assert_eq!(machine.guest.status(0, head), 0xff);
    machine.enable(true);
    drop(held);
    assert_eq!(machine.guest.next_used(0).0, head);
    machine.check_both_queues(1024);
}
