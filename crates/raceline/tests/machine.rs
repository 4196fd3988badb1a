//! A disk of a virtual machine (`connect --as vhost-user`) over two paths with TLS. Each path is lost under the machine's
//! requests and comes back; the machine sees no error, and the target has what was written. Then one over a path that is given up.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

/// A front end with its guest, which the tests of the server have as well.
#[path = "../../vhost/tests/server/guest.rs"]
#[allow(dead_code, reason = "the server's own tests use the rest of it")]
mod guest;
mod support;

use std::net::SocketAddr;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use guest::{DATA, DISCARD, FLUSH, Guest, READ, USUAL, WRITE, ZEROES};
use rustix::process::Signal;
use serde_json::{Value, json};
use support::{Disk, Export, Scratch, Served, call, own_address, run, run_with_input, wait_for};

const NQN: &str = "nqn.2026-01.io.raceline:machine";
const HOST: &str = "nqn.2014-08.org.example:machine";
const UUID: &str = "6e0ff3a5-93cd-4f5f-8c1c-6f5c3c4f3c0d";
/// Keys of tests: anyone may know them.
const TLS_KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:\n";
const CHAP_KEY: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:\n";

/// Bytes of a place that the machine writes, and their number.
const PLACE: u64 = 4096;
const PLACES: u64 = 512;
/// Behind the places is a range that is written once and discarded again and again.
const SPARE: u64 = 256 << 10;
const DISK_BYTES: u64 = PLACE * PLACES + SPARE;
/// Requests of one kind that the machine has outstanding, half of them on each of two rings.
const AT_ONCE: u64 = 16;
/// How many rounds of requests the machine does between two changes of its paths, at least.
const ROUNDS: u64 = 5;

/// A daemon that exports the file to one host, which needs its keys.
struct Daemon {
    served: Option<Served>,
    socket: PathBuf,
    state: String,
    /// What the host needs besides TLS.
    security: &'static str,
}

impl Daemon {
    /// Starts the daemon of this number, with the file.
    fn new(scratch: &Scratch, number: u16, file: &Path, security: &'static str) -> Self {
        let socket = PathBuf::from(scratch.path(&format!("rpc{number}.sock")));
        let state = scratch.path(&format!("state{number}"));
        for (name, text) in [("tls", TLS_KEY), ("chap", CHAP_KEY)] {
            let words = ["key", "--state-dir", &state, "import", name];
            let imported = run_with_input(&words, text.as_bytes());
            assert_eq!(imported.code, Some(0), "{}", imported.stderr);
        }
        let mut daemon = Self { served: None, socket, state, security };
        daemon.start();
        // With short keep alive timeouts, the writes of a daemon that was killed are held back for seconds only.
        let transport = json!({ "trtype": "TCP", "kas": 1, "min_kato": 100 });
        call(&daemon.socket, "nvmf_create_transport", transport).unwrap();
        let file = format!("file:{},shared", file.display());
        let numbers = format!("{}-{}", 1000 * number + 1, 1000 * number + 999);
        daemon.manage(&["bdev", "add", &file, "--name", "disk"]);
        let facts = ["--ana", "--serial", "MACHINE", "--cntlids", &numbers];
        daemon.manage(&[&["subsys", "add", NQN], &facts[..]].concat());
        daemon.manage(&["ns", "add", NQN, "disk", "--nsid", "1", "--uuid", UUID]);
        let keys: &[&str] = match security {
            "both" => &["--psk", "tls", "--dhchap-key", "chap"],
            _ => &["--psk", "tls"],
        };
        daemon.manage(&[&["host", "add", NQN, HOST], keys].concat());
        daemon
    }

    /// Starts it with what it had before.
    fn start(&mut self) {
        let words = ["--state-dir", &self.state, "--quiesce-time", "100ms"];
        self.served = Some(Served::start(&self.socket, &words));
    }

    fn end(&mut self, signal: Signal) {
        let ended = self.served.take().unwrap().end(signal);
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
        if signal != Signal::KILL {
            assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        }
    }

    /// A verb on the daemon.
    fn manage(&self, words: &[&str]) {
        let ended = run(&[words, &["-s", self.socket.to_str().unwrap()]].concat());
        assert_eq!(ended.code, Some(0), "{words:?}: {}", ended.stderr);
    }

    /// Begins to listen at an address, where a host without keys gets nothing.
    fn listen(&self, at: SocketAddr) {
        self.manage(&["port", "add", NQN, &at.to_string(), "--security", self.security]);
        let (ip, port) = (at.ip().to_string(), at.port().to_string());
        let words = ["identify", "-a", &ip, "-s", &port, "-n", NQN, "-q", HOST, "-l", "0"];
        let stranger = run(&words);
        let says = stranger.code == Some(3) && stranger.stderr.contains("over TLS only");
        assert!(says, "{:?}: {}", stranger.code, stranger.stderr);
    }

    fn cut(&self, at: SocketAddr) {
        self.manage(&["port", "rm", NQN, &at.to_string()]);
    }

    /// How many writes the present I/O queues at an address have done; none: there is no such queue.
    fn writes(&self, at: SocketAddr) -> Option<u64> {
        let queues = call(&self.socket, "nvmf_subsystem_get_qpairs", json!({ "nqn": NQN }));
        let queues = queues.unwrap();
        let is_there = |queue: &&Value| {
            let address = &queue["listen_address"];
            let is_at = address["traddr"] == at.ip().to_string()
                && address["trsvcid"].as_str() == Some(&at.port().to_string());
            is_at && queue["qid"] != 0
        };
        let of = |queue: &Value| queue["statistics"]["num_write_ops"].as_u64().unwrap();
        queues.as_array().unwrap().iter().filter(is_there).map(of).reduce(|sum, of| sum + of)
    }

    /// Bytes that its device has discarded.
    fn discarded(&self) -> u64 {
        let stats = call(&self.socket, "bdev_get_iostat", json!({ "name": "disk" })).unwrap();
        stats["bdevs"][0]["bytes_unmapped"].as_u64().unwrap()
    }
}

/// What a place has after the round of this number has written it; nothing but zeroes before the first one.
fn block(place: u64, round: u64) -> Vec<u8> {
    let word = (place << 32 | round).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let word = if round == 0 { 0 } else { word };
    word.to_le_bytes().repeat(usize::try_from(PLACE / 8).unwrap())
}

/// A machine that goes on with its requests until it is told to end.
struct Machine {
    enough: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    /// Gives which round has written each place.
    thread: JoinHandle<Vec<u64>>,
}

impl Machine {
    fn boot(disk: &Disk) -> Self {
        let socket = disk.ready["device"].as_str().unwrap().to_owned();
        let (enough, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (told, counts) = (Arc::clone(&enough), Arc::clone(&rounds));
        let thread = std::thread::spawn(move || {
            let mut guest = Guest::boot(Path::new(&socket), USUAL);
            let mut places = vec![0; usize::try_from(PLACES).unwrap()];
            while !told.load(Ordering::Relaxed) {
                let round = counts.load(Ordering::Relaxed) + 1;
                work(&mut guest, round, &mut places);
                counts.store(round, Ordering::Relaxed);
            }
            places
        });
        Self { enough, rounds, thread }
    }

    /// Waits until the machine has done some rounds more.
    fn goes_on(&self) {
        let wanted = self.rounds.load(Ordering::Relaxed) + ROUNDS;
        wait_for("the next round of the machine", || {
            assert!(!self.thread.is_finished(), "the machine has seen an error");
            self.rounds.load(Ordering::Relaxed) >= wanted
        });
    }

    /// Lets it end; gives which round has written each place.
    fn end(self) -> Vec<u64> {
        self.enough.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// A round of a machine: writes, reads, a flush, zeroes and a discard. None of them may fail, and each read finds what was
/// written last.
fn work(guest: &mut Guest, round: u64, places: &mut [u64]) {
    let index = |place: u64| usize::try_from(place).unwrap();
    // 5 has no divisor in common with the number of places, so these are all different.
    let place = |number: u64| (round * AT_ONCE + number) * 5 % PLACES;
    let mut heads = Vec::new();
    for number in 0..AT_ONCE {
        let (at, place) = (DATA + number * PLACE, place(number));
        guest.memory.put(at, &block(place, round));
        places[index(place)] = round;
        heads.push(post(guest, number, (WRITE, place), at));
    }
    finish(guest, &heads);
    // Half of these were written now, and the other half at any time before.
    let place = |number: u64| (place(number) + number % 2 * PLACES / 3) % PLACES;
    heads.clear();
    for number in 0..AT_ONCE {
        let at = DATA + number * PLACE;
        guest.memory.put(at, &[0xaa; 4096]);
        heads.push(post(guest, number, (READ, place(number)), at));
    }
    finish(guest, &heads);
    for number in 0..AT_ONCE {
        let (read, place) = (guest.memory.get(DATA + number * PLACE, 4096), place(number));
        let expected = block(place, places[index(place)]);
        assert!(read == expected, "round {round}, place {place}: {:?}", &read[..8]);
    }
    assert_eq!(guest.call(0, (FLUSH, 0), &[]), (0, 1), "flush");
    let zeroed = round * 7 % PLACES;
    assert_eq!(guest.ranges(ZEROES, &[(zeroed * PLACE / 512, 8, 0)]), 0, "zeroes");
    places[index(zeroed)] = 0;
    let spare = (PLACES * PLACE / 512, u32::try_from(SPARE / 512).unwrap(), 0);
    assert_eq!(guest.ranges(DISCARD, &[spare]), 0, "discard");
}

/// Posts the request of this number for a place; gives its ring and its head.
fn post(guest: &mut Guest, number: u64, (kind, place): (u32, u64), at: u64) -> (u16, u16) {
    let ring = u16::from(number % 2 == 1);
    (ring, guest.post(ring, (kind, place * PLACE / 512), &[(at, 4096)]))
}

/// Waits for all of these: each comes back once, and has succeeded.
fn finish(guest: &mut Guest, heads: &[(u16, u16)]) {
    [0, 1].iter().for_each(|&ring| guest.kick(ring));
    let mut returned: Vec<_> =
        heads.iter().map(|&(ring, _)| (ring, guest.next_used(ring).0)).collect();
    for &(ring, head) in &returned {
        assert_eq!(guest.status(ring, head), 0, "a request of ring {ring} has failed");
    }
    returned.sort_unstable();
    let mut heads = heads.to_vec();
    heads.sort_unstable();
    assert_eq!(returned, heads);
}

/// The file of the disk, whose spare range has data.
fn file(scratch: &Scratch) -> PathBuf {
    let path = PathBuf::from(scratch.path("disk.img"));
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(DISK_BYTES).unwrap();
    file.write_all_at(&vec![0x55; usize::try_from(SPARE).unwrap()], PLACE * PLACES).unwrap();
    path
}

/// A key as the host has it.
fn own_key(scratch: &Scratch, name: &str, text: &str) -> String {
    let path = scratch.file(name, text.as_bytes());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// The disk over two paths.
fn connect(scratch: &Scratch, [one, two]: [SocketAddr; 2], more: &[&str]) -> Disk {
    let (ip, port, two) = (one.ip().to_string(), one.port().to_string(), two.to_string());
    let (key, socket) = (own_key(scratch, "own.tls", TLS_KEY), scratch.path("disk.sock"));
    let place = ["-a", &ip, "-s", &port, "--path", &two, "-n", NQN, "-q", HOST];
    // However long a busy machine takes to start a daemon again, its path is not given up.
    let own = ["--as", "vhost-user", "--tls-psk", &key, "--socket", &socket, "-l", "-1"];
    Disk::start(&[&own[..], &place, more].concat())
}

/// The file has what the machine has written last, and nothing where the machine has discarded.
fn check(file: &Path, places: &[u64]) {
    let found = std::fs::read(file).unwrap();
    assert_eq!(found.len() as u64, DISK_BYTES);
    let (blocks, spare) = found.split_at(usize::try_from(PLACE * PLACES).unwrap());
    for (place, (found, round)) in (0..).zip(blocks.chunks(4096).zip(places)) {
        assert!(found == block(place, *round), "place {place} is not as round {round} wrote it");
    }
    assert!(spare.iter().all(|&byte| byte == 0), "the spare range was not discarded");
}

/// Waits until a path does writes.
fn wait_for_path(daemon: &Daemon, at: SocketAddr) {
    wait_for("a path that does writes", || daemon.writes(at) > Some(0));
}

/// TLS and DH-HMAC-CHAP on both paths, which are two listeners of a daemon and both in use.
#[test]
fn a_listener_is_removed_and_then_the_other_one() {
    let scratch = Scratch::new();
    let file = file(&scratch);
    let mut daemon = Daemon::new(&scratch, 1, &file, "both");
    let paths = [own_address(), own_address()];
    paths.iter().for_each(|&at| daemon.listen(at));
    let secret = own_key(&scratch, "own.chap", CHAP_KEY);
    let disk = connect(&scratch, paths, &["--dhchap-secret", &secret, "--policy", "round-robin"]);
    let machine = Machine::boot(&disk);
    for at in [paths, paths].concat() {
        paths.iter().for_each(|&at| wait_for_path(&daemon, at));
        machine.goes_on();
        daemon.cut(at);
        machine.goes_on();
        assert_eq!(daemon.writes(at), None, "the path is still there");
        daemon.listen(at);
    }
    machine.goes_on();
    let places = machine.end();
    assert!(daemon.discarded() >= SPARE, "no discard has come to the target");
    let people = disk.disconnect();
    assert!(people.contains("lost"), "{people}");
    daemon.end(Signal::TERM);
    check(&file, &places);
}

/// TLS on paths to two daemons with one file, of which one is killed and starts again, and then the other one.
#[test]
fn a_daemon_is_killed_and_then_the_other_one() {
    let scratch = Scratch::new();
    let file = file(&scratch);
    let mut daemons = [1, 2].map(|number| Daemon::new(&scratch, number, &file, "tls"));
    let paths = daemons.each_ref().map(|daemon| {
        let at = own_address();
        daemon.listen(at);
        at
    });
    let disk = connect(&scratch, paths, &["-k", "1", "--policy", "round-robin"]);
    let machine = Machine::boot(&disk);
    for lost in [0, 1] {
        daemons.iter().zip(paths).for_each(|(daemon, at)| wait_for_path(daemon, at));
        machine.goes_on();
        daemons[lost].end(Signal::KILL);
        machine.goes_on();
        daemons[lost].start();
    }
    daemons.iter().zip(paths).for_each(|(daemon, at)| wait_for_path(daemon, at));
    machine.goes_on();
    let places = machine.end();
    let people = disk.disconnect();
    assert!(people.contains("lost"), "{people}");
    daemons.iter_mut().for_each(|daemon| daemon.end(Signal::TERM));
    check(&file, &places);
}

/// The state of its unit that a program tells systemd, by a socket.
fn unit_state(notified: &UnixDatagram) -> String {
    notified.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut bytes = [0; 4096];
    loop {
        let len = notified.recv(&mut bytes).expect("the unit has no state");
        let text = String::from_utf8_lossy(&bytes[..len]).into_owned();
        if let Some(state) = text.lines().find_map(|line| line.strip_prefix("STATUS=")) {
            return state.to_owned();
        }
    }
}

/// The only path is away for longer than `-l` says: the requests of the machine fail, and the process stays until the machine is
/// gone.
#[test]
fn a_disk_that_is_given_up_answers_its_machine_with_errors() {
    let scratch = Scratch::new();
    let target = Export::start(&["ram:4M"]);
    let (socket, notify) = (scratch.path("disk.sock"), scratch.path("notify.sock"));
    let notified = UnixDatagram::bind(&notify).unwrap();
    let unit = format!("NOTIFY_SOCKET={notify}");
    let words = ["--as", "vhost-user", "--socket", &socket, "-l", "1", "-c", "1"];
    let disk = Disk::start_by(&["env", &unit], &target.host(&words));
    let mut guest = Guest::boot(Path::new(&socket), USUAL);
    assert_eq!(guest.write(0, 0, &[7; 4096]), 0);
    drop(target);
    let state = unit_state(&notified);
    let used = format!("A virtual machine is connected to {socket}");
    assert!(state.contains("every request fails") && state.contains(&used), "{state}");
    // For longer than two looks at who uses the disk.
    for _ in 0..3 {
        assert_eq!(guest.write(0, 0, &[7; 4096]), 1, "no error");
        std::thread::sleep(Duration::from_secs(1));
    }
    drop(guest);
    let (code, people) = disk.finish();
    assert_eq!(code, Some(1), "{people}");
    assert_eq!(
        people.matches("so this process stays and answers with errors").count(),
        1,
        "{people}"
    );
    assert!(
        people.contains("this process ends. The same command line makes the disk anew"),
        "{people}"
    );
}
