//! Servers that end, or are killed, while a guest uses the disk.

use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::guest::{Bed, DATA, FLUSH, Guest, Layout, PATIENCE, SIZE, USUAL, WRITE};
use crate::pattern;
use crate::spy::Spy;

/// Names the folder where [`serve_until_killed`] serves.
const DIR: &str = "RACELINE_VHOST_TEST_DIR";

/// Writes into what the front end keeps.
fn keep(guest: &Guest, at: u64, bytes: &[u8]) {
    let (_, file) = guest.inflight.as_ref().unwrap();
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at).unwrap();
}

#[test]
fn what_was_taken_and_not_returned_is_carried_out_again() {
    use std::os::fd::AsRawFd as _;
    use vhost::vhost_user::VhostUserFrontend as _;
    use vhost::vhost_user::message::VhostUserInflight;
    let bed = Bed::start("ram:1M", |_| {});
    let mut guest = Guest::prepare(&bed.path(), USUAL);
    let wanted = VhostUserInflight::new(0, 0, USUAL.queues, SIZE);
    guest.inflight = Some(guest.front.get_inflight_fd(&wanted).unwrap());
    let (inflight, file) = guest.inflight.as_ref().unwrap();
    guest.front.set_inflight_fd(inflight, file.as_raw_fd()).unwrap();
    guest.memory.put(DATA, &pattern(7, 3 * 512));
    let heads: Vec<u16> =
        (0..3).map(|n| guest.post(0, (WRITE, n), &[(DATA + 512 * n, 512)])).collect();
    // Its predecessor took all three, and was killed when it had returned the second, before that was noted.
    let layout = Layout::of(0);
    guest.memory.put(layout.used + 4, &[heads[1].to_le_bytes(), [0; 2], [1, 0], [0; 2]].concat());
    guest.memory.set_index(layout.used + 2, 1);
    keep(&guest, 8, &[1_u16, SIZE, heads[1], 0].map(u16::to_le_bytes).concat());
    for (counter, head) in (40_u64..).zip(&heads) {
        let entry = 16 + 16 * u64::from(*head);
        keep(&guest, entry, &[1, 0, 0, 0, 0, 0, 0, 0]);
        keep(&guest, entry + 8, &counter.to_le_bytes());
    }
    guest.start();
    assert_eq!(guest.next_used(0), (heads[1], 1), "that one was returned before");
    let mut again = [guest.next_used(0).0, guest.next_used(0).0];
    again.sort_unstable();
    assert_eq!(again, [heads[0], heads[2]]);
    assert_eq!([0, 2].map(|n| guest.status(0, heads[n])), [0, 0]);
    assert_eq!(guest.status(0, heads[1]), 0xff, "it was not carried out again");
    assert_eq!(guest.call(0, (FLUSH, 0), &[]), (0, 1));
    let read = guest.read(0, 0, 3 * 512);
    assert!(read[..512] == pattern(7, 512) && read[1024..] == pattern(9, 512));
    assert_eq!(read[512..1024], [0; 512]);
}

#[test]
fn a_server_that_ends_is_followed_by_another() {
    let dir = tempfile::tempdir().unwrap();
    let device = format!("file:{}/disk,size=16M,buffered", dir.path().display());
    let socket = dir.path().join("s");
    let start = || Bed::start(&device, |config| config.socket.clone_from(&socket));
    let bed = start();
    let mut guest = Guest::boot(&socket, USUAL);
    assert_eq!(guest.write(0, 0, &pattern(0, 65536)), 0);
    bed.stop();
    assert!(!socket.exists());
    let bed = start();
    guest.connect_again(&socket);
    assert!(guest.read(1, 0, 65536) == pattern(0, 65536));
    assert_eq!(guest.write(0, 128, &pattern(128, 65536)), 0);
    // A front end that comes back finds the same server, and no other one can come meanwhile.
    guest.connect_again(&socket);
    assert!(guest.read(0, 128, 65536) == pattern(128, 65536));
    drop(bed);
}

/// QEMU says once that the guest has turned its cache off, and repeats features whenever it starts the rings.
#[test]
fn a_cache_that_was_turned_off_stays_off() {
    use std::sync::atomic::Ordering;
    use vhost::VhostBackend as _;
    use vhost::vhost_user::VhostUserFrontend as _;
    use vhost::vhost_user::message::VhostUserConfigFlags;
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let start = || {
        let spy = Spy::new("ram:1M");
        let durable = Arc::clone(&spy.durable);
        let bed = Bed::start("ram:1M", |config| {
            config.device = Arc::new(spy);
            config.socket.clone_from(&socket);
        });
        (bed, durable)
    };
    let write = |guest: &mut Guest| assert_eq!(guest.write(0, 0, &pattern(0, 4096)), 0);
    let (bed, durable) = start();
    let mut guest = Guest::boot(&socket, USUAL);
    write(&mut guest);
    assert_eq!(durable.load(Ordering::Relaxed), 0);
    guest.front.set_config(32, VhostUserConfigFlags::WRITABLE, &[0]).unwrap();
    // The machine is stopped and goes on; then its system boots again, whose firmware does not flush.
    let features = guest.front.get_features().unwrap();
    for features in [features, features & !(1 << 9), features] {
        for queue in 0..2 {
            guest.front.get_vring_base(queue).unwrap();
        }
        guest.front.set_features(features).unwrap();
        guest.start();
    }
    write(&mut guest);
    assert_eq!(durable.load(Ordering::Relaxed), 1, "the guest has no cache to flush");
    // The connection is made again, and then the server.
    guest.connect_again(&socket);
    write(&mut guest);
    assert_eq!(durable.load(Ordering::Relaxed), 2);
    bed.stop();
    let (bed, durable) = start();
    guest.connect_again(&socket);
    write(&mut guest);
    assert_eq!(durable.load(Ordering::Relaxed), 1, "the front end has brought the choice along");
    guest.front.set_config(32, VhostUserConfigFlags::WRITABLE, &[1]).unwrap();
    bed.stop();
    let (bed, durable) = start();
    guest.connect_again(&socket);
    write(&mut guest);
    assert_eq!(durable.load(Ordering::Relaxed), 0, "it has turned the cache on again");
    bed.stop();
    // A front end that brings nothing may have a guest that has chosen anything.
    let (_bed, durable) = start();
    guest.inflight = None;
    guest.connect_again(&socket);
    write(&mut guest);
    assert_eq!(durable.load(Ordering::Relaxed), 1);
}

/// Paths to a device may be lost for minutes. A machine that stops its rings meanwhile is held up for 10 s only, and what was at
/// the device lands before anything that comes later.
mod stops {
    use std::time::Duration;

    use raceline_bdev::{InjectBdev, InjectControl, Injected, Injection, OpKind};
    use vhost::VhostBackend as _;

    use super::*;

    /// For how long the server waits for its device when rings stop.
    const STOP_TIME: Duration = Duration::from_secs(10);
    /// How long a request that must wait is looked at.
    const LOOK: Duration = Duration::from_millis(200);

    fn start() -> (Bed, InjectControl) {
        let mut control = None;
        let bed = Bed::start("ram:1M", |config| {
            let (device, orders) = InjectBdev::new(Arc::clone(&config.device));
            control = Some(orders);
            config.device = Arc::new(device);
            config.cores = vec![None, None];
        });
        (bed, control.unwrap())
    }

    /// Posts a write of sector 0, which the device holds when this returns; gives its head.
    fn hold(guest: &mut Guest, control: &InjectControl) -> u16 {
        control.inject(OpKind::Write, Injection { what: Injected::Held, count: 1, depth: 0 });
        let head = post(guest, 0, DATA, &pattern(7, 4096));
        let end = Instant::now() + PATIENCE;
        while control.left(OpKind::Write) > 0 {
            assert!(Instant::now() < end, "the write has not come to the device");
            std::thread::sleep(Duration::from_millis(1));
        }
        head
    }

    /// Posts a write of 4 KiB of sector 0, or of sector 64 on the second ring.
    fn post(guest: &mut Guest, ring: u16, at: u64, data: &[u8]) -> u16 {
        guest.memory.put(at, data);
        let head = guest.post(ring, (WRITE, 64 * u64::from(ring)), &[(at, 4096)]);
        guest.kick(ring);
        head
    }

    /// What is on the second ring waits for the device, however long that takes.
    fn waits(guest: &Guest) {
        std::thread::sleep(LOOK);
        assert_eq!(guest.memory.index(Layout::of(1).used + 2), 0, "what was left comes first");
    }

    /// The device still holds its request: whatever ends now has not waited for it.
    fn check_stop(begun: Instant) {
        let took = begun.elapsed();
        assert!(took >= STOP_TIME, "the device gets its time: {took:?}");
        assert!(took < PATIENCE, "{took:?}");
    }

    #[test]
    fn a_machine_that_stops_is_not_held_up_by_its_device() {
        let (bed, control) = start();
        let mut guest = Guest::boot(&bed.path(), USUAL);
        let head = hold(&mut guest, &control);
        let begun = Instant::now();
        assert_eq!([0, 1].map(|ring| guest.front.get_vring_base(ring).unwrap()), [1, 0]);
        check_stop(begun);
        assert_eq!(guest.status(0, head), 0xff, "nothing is returned to a machine that is stopped");
        guest.start();
        post(&mut guest, 1, DATA + 8192, &pattern(99, 4096));
        waits(&guest);
        control.resume();
        assert_eq!(guest.next_used(0), (head, 1), "it is carried out again");
        assert_eq!(guest.status(0, head), 0);
        assert_eq!(guest.next_used(1).1, 1);
        assert_eq!(guest.memory.index(Layout::of(0).used + 2), 1, "once");
        assert!(guest.read(0, 0, 4096) == pattern(7, 4096));
        assert!(guest.read(1, 64, 4096) == pattern(99, 4096));
    }

    #[test]
    fn what_a_front_end_leaves_lands_before_the_requests_of_the_next_one() {
        let (bed, control) = start();
        let mut first = Guest::boot(&bed.path(), USUAL);
        hold(&mut first, &control);
        let begun = Instant::now();
        drop(first);
        // Its place is free before the device is done.
        let mut second = Guest::boot(&bed.path(), USUAL);
        check_stop(begun);
        second.memory.put(DATA, &pattern(50, 4096));
        let head = second.post(1, (WRITE, 0), &[(DATA, 4096)]);
        second.kick(1);
        waits(&second);
        control.resume();
        assert_eq!(second.next_used(1), (head, 1));
        assert_eq!(second.status(1, head), 0);
        std::thread::sleep(Duration::from_millis(300));
        assert!(second.read(0, 0, 4096) == pattern(50, 4096));
    }
}

/// The server ends while a front end is there and another one waits for its place: neither holds it up.
#[test]
fn a_server_ends_while_a_front_end_waits() {
    for _ in 0..5 {
        let bed = Bed::start("ram:16M", |_| {});
        let present = UnixStream::connect(bed.path()).unwrap();
        let start = Instant::now();
        while !bed.server().is_used() {
            assert!(start.elapsed() < PATIENCE, "the front end was not accepted");
            std::thread::sleep(Duration::from_millis(1));
        }
        let waiting = UnixStream::connect(bed.path()).unwrap();
        // The thread that accepts waits for the end of the first one by now.
        std::thread::sleep(Duration::from_millis(50));
        let (ended, end) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            bed.stop();
            ended.send(())
        });
        end.recv_timeout(PATIENCE).expect("the server ends");
        drop((present, waiting));
    }
}

/// The server that is killed, a process of its own: what `a_server_that_is_killed_loses_nothing` starts.
#[test]
#[ignore = "a server for another test"]
fn serve_until_killed() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let dir = std::path::PathBuf::from(dir);
    let device = format!("file:{}/disk,size=16M,buffered,delay=2000", dir.display());
    let _bed = Bed::start(&device, |config| config.socket = dir.join("s"));
    // Whatever becomes of the test, this ends.
    std::thread::sleep(4 * PATIENCE);
}

/// A process with a server, which is killed when this is dropped.
struct Served(Child);

impl Served {
    fn start(dir: &std::path::Path) -> Self {
        let socket = dir.join("s");
        // What a killed one has left would be taken for the new one's.
        let _ = std::fs::remove_file(&socket);
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "restart::serve_until_killed", "--ignored"]).env(DIR, dir);
        let served = Self(command.stdout(std::process::Stdio::null()).spawn().unwrap());
        let end = Instant::now() + PATIENCE;
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < end, "no server");
            std::thread::sleep(Duration::from_millis(5));
        }
        served
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_server_that_is_killed_loses_nothing() {
    const ROUNDS: u64 = 6;
    const REQUESTS: u64 = 12;
    let dir = tempfile::tempdir().unwrap();
    let mut served = Served::start(dir.path());
    let mut guest = Guest::boot(&dir.path().join("s"), USUAL);
    for round in 0..ROUNDS {
        let sector = |n: u64| (round * REQUESTS + n) * 8;
        let mut posted = Vec::new();
        for n in 0..REQUESTS {
            let at = DATA + n * 4096;
            guest.memory.put(at, &pattern(sector(n), 4096));
            posted.push(guest.post(0, (WRITE, sector(n)), &[(at, 4096)]));
        }
        guest.kick(0);
        // Killed after some of them, which differ from round to round.
        let mut returned: Vec<u16> = (0..round).map(|_| guest.next_used(0).0).collect();
        drop(served);
        served = Served::start(dir.path());
        guest.connect_again(&dir.path().join("s"));
        returned.extend((round..REQUESTS).map(|_| guest.next_used(0).0));
        assert!(returned.iter().all(|&head| guest.status(0, head) == 0));
        returned.sort_unstable();
        posted.sort_unstable();
        assert_eq!(returned, posted, "each once, round {round}");
        for n in 0..REQUESTS {
            assert!(guest.read(1, sector(n), 4096) == pattern(sector(n), 4096));
        }
    }
}
