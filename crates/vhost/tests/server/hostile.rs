//! Front ends and guests that lie: the server goes on, and the next guest finds its disk.

use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;

use proptest::prelude::*;
use vhost::vhost_user::VhostUserFrontend as _;
use vhost::vhost_user::message::VhostUserInflight;
use vhost::{VhostBackend as _, VhostUserMemoryRegionInfo, VringConfigData};

use crate::guest::{
    Bed, DATA, Guest, Layout, MEMORY, Manner, READ, SIZE, USER, USUAL, WRITE, agree, connect,
    region,
};
use crate::pattern;

/// A guest that behaves gets what it asks for.
fn assert_serves(bed: &Bed) {
    let mut guest = Guest::boot(&bed.path(), USUAL);
    assert_eq!(guest.write(0, 64, &pattern(64, 8192)), 0);
    assert!(guest.read(1, 64, 8192) == pattern(64, 8192));
    assert!(bed.server().is_running());
}

/// A descriptor as no driver makes it: address, length, flags, next.
type Wild = (u64, u32, u16, u16);

fn wild_address() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..MEMORY,
        2 => Just(DATA),
        1 => Just(Layout::of(0).descriptors),
        1 => Just(Layout::of(0).used),
        1 => Just(Layout::of(0).available),
        1 => (MEMORY - 64)..(MEMORY + 64),
        1 => (u64::MAX - 64)..=u64::MAX,
        1 => any::<u64>(),
    ]
}

fn wild_descriptor() -> impl Strategy<Value = Wild> {
    let len = prop_oneof![0..64_u32, Just(16), Just(512), Just(4096), Just(u32::MAX), any::<u32>()];
    let flags = prop_oneof![4 => 0..8_u16, 1 => any::<u16>()];
    let next = prop_oneof![4 => 0..SIZE, 1 => any::<u16>()];
    (wild_address(), len, flags, next)
}

/// A ring of nonsense: descriptors, heads, and the available index.
fn wild_ring() -> impl Strategy<Value = (Vec<Wild>, Vec<u16>, u16)> {
    let size = usize::from(SIZE);
    let head = prop_oneof![8 => 0..SIZE, 1 => any::<u16>()];
    let index = prop_oneof![4 => 1..=SIZE, 1 => any::<u16>()];
    (prop::collection::vec(wild_descriptor(), size), prop::collection::vec(head, size), index)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn rings_of_nonsense_harm_nobody((descriptors, heads, index) in wild_ring(), event_index: bool) {
        static BED: std::sync::OnceLock<Bed> = std::sync::OnceLock::new();
        let bed = BED.get_or_init(|| Bed::start("ram:1M", |_| {}));
        let manner = Manner { event_index, queues: 1, ..USUAL };
        let mut guest = Guest::prepare(&bed.path(), manner);
        let layout = Layout::of(0);
        for (n, &(address, len, flags, next)) in (0_u64..).zip(&descriptors) {
            guest.memory.descriptor(layout.descriptors + 16 * n, (address, len), flags, next);
        }
        for (n, &head) in (0_u64..).zip(&heads) {
            guest.memory.set_index(layout.available + 4 + 2 * n, head);
        }
        guest.memory.set_index(layout.available + 2, index);
        // Headers that mean something, where chains may begin.
        for n in 0..64_u64 {
            guest.memory.put(DATA + 16 * n, &[u8::try_from(n % 14).unwrap(), 0, 0, 0]);
        }
        guest.start();
        guest.kick(0);
        // Answered once nothing of it is in flight.
        guest.front.get_vring_base(0).unwrap();
        drop(guest);
        assert_serves(bed);
    }

    #[test]
    fn nonsense_of_what_was_in_flight_harms_nobody(bytes in prop::collection::vec(any::<u8>(), 512), valid: bool) {
        static BED: std::sync::OnceLock<Bed> = std::sync::OnceLock::new();
        let bed = BED.get_or_init(|| Bed::start("ram:1M", |_| {}));
        let mut guest = Guest::prepare(&bed.path(), Manner { queues: 1, ..USUAL });
        let wanted = VhostUserInflight::new(0, 0, 1, SIZE);
        let (inflight, file) = guest.front.get_inflight_fd(&wanted).unwrap();
        use std::os::unix::fs::FileExt as _;
        file.write_all_at(&bytes, 0).unwrap();
        if valid {
            file.write_all_at(&[1_u16, SIZE].map(u16::to_le_bytes).concat(), 8).unwrap();
        }
        guest.front.set_inflight_fd(&inflight, file.as_raw_fd()).unwrap();
        guest.front.set_mem_table(&[region(&guest.memory.file)]).unwrap();
        // Refused, or served as a ring of nonsense.
        if guest.start_ring(0).is_ok() {
            guest.kick(0);
            guest.front.get_vring_base(0).unwrap();
        }
        drop(guest);
        assert_serves(bed);
    }
}

#[test]
fn messages_that_cannot_be_end_their_connection_only() {
    let bed = Bed::start("ram:1M", |_| {});
    let place = |change: fn(&mut VringConfigData)| {
        let layout = Layout::of(0);
        let mut data = VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: USER + layout.descriptors,
            used_ring_addr: USER + layout.used,
            avail_ring_addr: USER + layout.available,
            log_addr: None,
        };
        change(&mut data);
        data
    };
    let places = [
        place(|data| data.desc_table_addr = 0),
        place(|data| data.desc_table_addr += 8),
        place(|data| data.avail_ring_addr += 1),
        place(|data| data.used_ring_addr = USER + MEMORY - 8),
        place(|data| data.used_ring_addr = USER + MEMORY),
    ];
    for wrong in &places {
        let guest = Guest::prepare(&bed.path(), Manner { queues: 1, ..USUAL });
        guest.front.set_mem_table(&[region(&guest.memory.file)]).unwrap();
        guest.front.set_vring_num(0, SIZE).unwrap();
        let kick = vmm_sys_util::eventfd::EventFd::new(0).unwrap();
        let placed = guest.front.set_vring_addr(0, wrong);
        assert!(placed.is_err() || guest.front.set_vring_kick(0, &kick).is_err());
        drop(guest);
    }
    assert_serves(&bed);
    let memory = crate::guest::Memory::new();
    let usual = region(&memory.file);
    let wrong = |change: fn(&mut VhostUserMemoryRegionInfo)| {
        let mut info = VhostUserMemoryRegionInfo { ..usual };
        change(&mut info);
        info
    };
    for info in [
        wrong(|info| info.memory_size += 4096),
        wrong(|info| info.mmap_offset = 4096),
        wrong(|info| info.mmap_offset = 1),
        wrong(|info| info.guest_phys_addr = u64::MAX - 4096),
    ] {
        let mut front = connect(&bed.path(), 4);
        agree(&mut front, USUAL);
        assert!(front.set_mem_table(&[info]).is_err());
    }
    for number in [0, 3, 2048, u16::MAX] {
        let mut front = connect(&bed.path(), 4);
        agree(&mut front, USUAL);
        assert!(front.set_vring_num(0, number).is_err());
    }
    for (queues, size, accepted) in
        [(4, 128, true), (0, 128, false), (5, 128, false), (1, 2048, false)]
    {
        let mut front = connect(&bed.path(), 4);
        agree(&mut front, USUAL);
        let wanted = VhostUserInflight::new(0, 0, queues, size);
        assert_eq!(front.get_inflight_fd(&wanted).is_ok(), accepted, "{queues} {size}");
    }
    for bytes in
        [vec![0; 12], vec![0xff; 400], vec![5, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f]]
    {
        let mut raw = UnixStream::connect(bed.path()).unwrap();
        // It may be closed before all of it has gone.
        let _ = raw.write_all(&bytes);
    }
    assert_serves(&bed);
}

#[test]
fn memory_that_is_truncated_ends_its_connection_only() {
    let bed = Bed::start("ram:1M", |_| {});
    let other = Bed::start("ram:1M", |_| {});
    let mut bystander = Guest::boot(&other.path(), USUAL);
    for len in [0, DATA, DATA + 4096] {
        let mut guest = Guest::boot(&bed.path(), USUAL);
        assert_eq!(guest.write(0, 0, &pattern(0, 4096)), 0);
        guest.post(0, (WRITE, 0), &[(DATA, 4096)]);
        guest.post(0, (READ, 0), &[(DATA + 4096, 4096)]);
        guest.memory.file.set_len(len).unwrap();
        guest.kick(0);
        // The server ends the connection: the file it was given is not what it was said to be.
        let end = std::time::Instant::now() + crate::guest::PATIENCE;
        while guest.front.get_features().is_ok() {
            assert!(std::time::Instant::now() < end, "{len}: it is still served");
        }
        assert_eq!(bystander.write(1, 8, &pattern(8, 4096)), 0);
        drop(guest);
        let mut next = Guest::boot(&bed.path(), USUAL);
        assert!(next.read(0, 0, 4096) == pattern(0, 4096), "{len}: a lost page was written");
    }
    assert!(bystander.read(0, 8, 4096) == pattern(8, 4096));
}
