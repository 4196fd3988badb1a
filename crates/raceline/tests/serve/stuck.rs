//! A core that is held: the daemon names it, and gives systemd's watchdog no sign of life until it turns again.

use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{Scratch, Served, configure, run, wait_for};

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

/// The thread of the first core of a process.
fn core_of(pid: u32) -> u32 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let is_core = |path: &PathBuf| {
        let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        name.starts_with("target-0")
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

#[test]
fn a_core_that_is_held_gives_no_sign_of_life_until_it_turns_again() {
    let scratch = Scratch::new();
    let (socket, log) = (PathBuf::from(scratch.path("rpc.sock")), scratch.path("log"));
    let notify = scratch.path("notify");
    let systemd = UnixDatagram::bind(&notify).unwrap();
    let begin = format!(
        "export NOTIFY_SOCKET='{notify}' WATCHDOG_USEC=2000000 WATCHDOG_PID=$$; exec \"$0\" \"$@\" 2> '{log}'"
    );
    let served = Served::start_by(&["sh", "-c", &begin], &socket, &["--sandbox", "off"]);
    configure(&socket, NQN, 2048);
    assert!(sign_within(&systemd, FOUND_WITHIN), "no sign of life from a daemon that is well");

    let held = match Held::hold(core_of(served.pid())) {
        Ok(held) => held,
        // Where no process may stop another's thread, there is nothing to see.
        Err(why) => return eprintln!("a thread cannot be held here: {why}"),
    };
    let said = |words: &str| std::fs::read_to_string(&log).unwrap().contains(words);
    let begun = Instant::now();
    wait_for("the core that is stuck to be named", || {
        assert!(begun.elapsed() < FOUND_WITHIN, "{}", std::fs::read_to_string(&log).unwrap());
        said("is stuck")
    });
    // Those that came before nobody has read.
    while sign_within(&systemd, Duration::from_millis(100)) {}
    assert!(!sign_within(&systemd, SILENCE), "a sign of life while a core is stuck");

    drop(held);
    wait_for("the core to turn again", || said("turns again"));
    assert!(sign_within(&systemd, FOUND_WITHIN), "no sign of life after the core turns again");
    let port = crate::port_of(&socket, NQN);
    let output = run(&["identify", "-a", "127.0.0.1", "-s", &port, "-n", NQN]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    served.end(Signal::TERM);
}
