//! A core that is held: its process names it, and gives systemd's watchdog no sign of life until it turns again.

use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Scratch, Served, call, configure, program, run, wait_for};

const NQN: &str = "nqn.2026-01.io.raceline:stuck";
/// A core is looked at for 8 s before it counts as stuck. Signs of life come more often than twice a second.
const FOUND_WITHIN: Duration = Duration::from_secs(30);
/// How long there must be no sign of life.
const SILENCE: Duration = Duration::from_secs(4);

/// Stops one thread, as a debugger does, until its standard input ends.
const HOLDER: &str = "
import ctypes, os, sys
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
ptrace.restype = ctypes.c_long
SEIZE, INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000
thread = int(sys.argv[1])
if ptrace(SEIZE, thread, None, None) != 0:
    print('refused:', os.strerror(ctypes.get_errno()), flush=True)
    sys.exit()
ptrace(INTERRUPT, thread, None, None)
os.waitpid(thread, WALL)
print('held', flush=True)
sys.stdin.read()
";

/// A thread that is held.
struct Held(Child);

impl Held {
    /// Holds the thread; the error says why that may not be.
    fn hold(thread: u32) -> Result<Self, String> {
        let mut command = Command::new("python3");
        command.args(["-c", HOLDER, &thread.to_string()]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| e.to_string())?;
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let held = Self(child);
        if said.trim() == "held" { Ok(held) } else { Err(said) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The thread of a core of a process.
fn core_of(pid: u32, name: &str) -> u32 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let is_core = |path: &PathBuf| {
        let running = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        running.trim() == name
    };
    let path = threads.map(|thread| thread.unwrap().path()).find(is_core).unwrap();
    path.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// Whether a sign of life comes within a time.
fn sign_within(systemd: &UnixDatagram, time: Duration) -> bool {
    let until = Instant::now() + time;
    let mut message = [0; 4096];
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|t| !t.is_zero()) {
        systemd.set_read_timeout(Some(left)).unwrap();
        let Ok(len) = systemd.recv(&mut message) else { continue };
        if message[..len].split(|&byte| byte == b'\n').any(|line| line == b"WATCHDOG=1") {
            return true;
        }
    }
    false
}

/// A process with systemd's socket, and what it logs.
struct Bed {
    scratch: Scratch,
    log: String,
    systemd: UnixDatagram,
    /// For a shell: the environment, and standard error into the log.
    begin: String,
}

impl Bed {
    fn new() -> Self {
        let scratch = Scratch::new();
        let (log, notify) = (scratch.path("log"), scratch.path("notify"));
        let systemd = UnixDatagram::bind(&notify).unwrap();
        let begin = format!(
            "export NOTIFY_SOCKET='{notify}' WATCHDOG_USEC=2000000 WATCHDOG_PID=$$; exec \"$0\" \"$@\" 2> '{log}'"
        );
        Self { scratch, log, systemd, begin }
    }

    fn served(&self) -> (Served, PathBuf) {
        let socket = PathBuf::from(self.scratch.path("rpc.sock"));
        let served = Served::start_by(&["sh", "-c", &self.begin], &socket, &["--sandbox", "off"]);
        (served, socket)
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Holds a core of a process, which names it and gives no sign of life until it turns again. False where no thread can be
    /// held.
    fn hold(&self, pid: u32, core: &str) -> bool {
        assert!(sign_within(&self.systemd, FOUND_WITHIN), "no sign of life from one that is well");
        let held = match Held::hold(core_of(pid, core)) {
            Ok(held) => held,
            // Where no process may stop another's thread, there is nothing to see.
            Err(why) => {
                eprintln!("SKIPPED: a thread cannot be held here: {why}");
                return false;
            }
        };
        let begun = Instant::now();
        let named = format!("core {core} (thread ");
        wait_for("the core that is stuck to be named", || {
            assert!(begun.elapsed() < FOUND_WITHIN, "{}", self.said());
            self.said().lines().any(|line| line.contains(&named) && line.contains("is stuck"))
        });
        // Those that came before nobody has read.
        while sign_within(&self.systemd, Duration::from_millis(100)) {}
        assert!(!sign_within(&self.systemd, SILENCE), "a sign of life while a core is stuck");
        drop(held);
        wait_for("the core to turn again", || self.said().contains("turns again"));
        let sign = sign_within(&self.systemd, FOUND_WITHIN);
        assert!(sign, "no sign of life after the core turns again");
        true
    }
}

#[test]
fn a_core_that_is_held_gives_no_sign_of_life_until_it_turns_again() {
    let bed = Bed::new();
    let (served, socket) = bed.served();
    configure(&socket, NQN, 2048);
    if bed.hold(served.pid(), "target-0") {
        let port = crate::port_of(&socket, NQN);
        let output = run(&["identify", "-a", "127.0.0.1", "-s", &port, "-n", NQN]);
        assert_eq!(output.code, Some(0), "{}", output.stderr);
    }
    served.end(Signal::TERM);
}

/// A disk has cores of its own beside those of targets, of which there is none here.
#[test]
fn the_cores_of_a_disk_of_the_daemon_are_watched() {
    let bed = Bed::new();
    let (served, socket) = bed.served();
    let memory = json!({ "name": "M", "num_blocks": 2048, "block_size": 512 });
    call(&socket, "bdev_malloc_create", memory).unwrap();
    let disk = json!({ "ctrlr": "disk", "dev_name": "M" });
    call(&socket, "vhost_create_blk_controller", disk).unwrap();
    bed.hold(served.pid(), "vhost-0");
    served.end(Signal::TERM);
}

#[test]
fn the_cores_of_a_disk_of_its_own_process_are_watched() {
    let bed = Bed::new();
    let socket = bed.scratch.path("disk.sock");
    let mut command = Command::new("sh");
    command.args(["-c", &bed.begin, &program(), "connect", "--as", "nbd", "--bdev", "ram:4M"]);
    command.args(["--socket", &socket]).stdin(Stdio::null()).stdout(Stdio::null());
    let mut disk = command.env_remove("RACELINE_LOG").spawn().unwrap();
    bed.hold(disk.id(), "nbd-0");
    rustix::process::kill_process(rustix::process::Pid::from_child(&disk), Signal::TERM).unwrap();
    assert!(disk.wait().unwrap().success(), "{}", bed.said());
}
