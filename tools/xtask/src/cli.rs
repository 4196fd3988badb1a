//! The cli step: the program as a user meets it, end to end, with valid and invalid input.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::child::Task;
use crate::interop::write_read;
use crate::raceline::{Export, Tree, host, iops, perf_job};
use crate::raw;
use crate::step::{Checks, Outcome};

/// Silent sockets from one address.
const IDLE_SOCKETS: &str = "2000";
/// A host from another address must connect within this time, process start included.
const IDLE_BOUND: Duration = Duration::from_secs(1);
/// When the target must have closed a socket without ICReq, and one without Connect: the bounds
/// of 5 s and 10 s, with allowance for a busy machine.
const NO_ICREQ: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(8)];
const NO_CONNECT: [Duration; 2] = [Duration::from_secs(8), Duration::from_secs(14)];
/// Most CPU time that an idle target may use, in clock ticks (10 ms) over three seconds.
const IDLE_TICKS: u64 = 6;

/// Runs all checks of the step.
pub(crate) fn run(tree: &Tree) -> Result<Outcome> {
    let scratch = tree.scratch("cli")?;
    tree.binary()?;
    let mut checks = Checks::default();
    words(tree, &mut checks);
    refusals(tree, &scratch, &mut checks);
    data(tree, &scratch, &mut checks);
    admission(tree, &mut checks);
    hostile(tree, &scratch, &mut checks);
    checks.run("demo", || {
        let ended = tree.raceline(["demo", "--seconds", "2"])?.limit(60).check()?;
        ensure!(!ended.stdout.trim().is_empty(), "demo prints nothing");
        Ok(())
    });
    std::fs::remove_dir_all(&scratch)?;
    checks.outcome()
}

/// Help, version, and invalid words.
fn words(tree: &Tree, checks: &mut Checks) {
    checks.run("help", || {
        let ended = tree.raceline(["--help"])?.check()?;
        for verb in ["export", "discover", "identify", "perf", "read", "write", "demo"] {
            ensure!(ended.stdout.contains(verb), "--help does not name {verb}");
            tree.raceline([verb, "--help"])?.check()?;
        }
        ensure!(tree.raceline(["--version"])?.check()?.stdout.contains("raceline"), "--version");
        Ok(())
    });
    let bad: [(&str, &[&str]); 6] = [
        ("unknown-verb", &["fly"]),
        ("no-device", &["export"]),
        ("bad-device-size", &["export", "ram:lots"]),
        ("bad-block-size", &["export", "ram:1M,bs=777"]),
        ("bad-device-option", &["export", "ram:1M,colour=red"]),
        ("bad-port", &["discover", "-a", "127.0.0.1", "-s", "99999"]),
    ];
    for (name, words) in bad {
        checks.run(name, || refused(tree, words, ""));
    }
}

/// The verb must end by itself, with an error that says `text`, and without a panic.
fn refused(tree: &Tree, words: &[&str], text: &str) -> Result<()> {
    let ended = tree.raceline(words.iter().copied())?.limit(30).run()?;
    let status = ended.status.context("it did not end by itself")?;
    ensure!(!status.success(), "accepted: {}", words.join(" "));
    ensure!(status.code().is_some(), "ended by a signal: {status}");
    ensure!(!ended.output.contains("panicked at"), "panic:\n{}", ended.tail(10));
    ensure!(!ended.output.trim().is_empty(), "no word of why");
    ensure!(ended.output.to_lowercase().contains(text), "no '{text}' in:\n{}", ended.tail(5));
    Ok(())
}

/// Devices and addresses that must be refused, each with its reason.
fn refusals(tree: &Tree, scratch: &Path, checks: &mut Checks) {
    let path = |name: &str| scratch.join(name).to_string_lossy().into_owned();
    checks.run("file-missing", || {
        refused(
            tree,
            &["export", &format!("file:{}", path("missing")), "-l", "127.0.0.1:0"],
            "missing",
        )
    });
    checks.run("ram-too-large", || refused(tree, &["export", "ram:900T", "-l", "127.0.0.1:0"], ""));
    checks.run("port-in-use", || {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let listen = taken.local_addr()?.to_string();
        refused(tree, &["export", "ram:1M", "-l", &listen], &listen)
    });
    checks.run("wildcard-address", || {
        let words = ["export", "ram:1M", "-l", "0.0.0.0:0", "--allow-any-host", "--insecure"];
        refused(tree, &words, "--allow-wildcard")
    });
    checks.run("foreign-address-without-insecure", || {
        refused(tree, &["export", "ram:1M", "-l", "192.0.2.1:0", "--allow-any-host"], "--insecure")
    });
    checks.run("foreign-address-without-hosts", || {
        refused(tree, &["export", "ram:1M", "-l", "192.0.2.1:0", "--insecure"], "host")
    });
    checks.run("read-only-file", || {
        let file = path("readonly");
        std::fs::write(&file, vec![0; 1 << 20])?;
        let mut permissions = std::fs::metadata(&file)?.permissions();
        permissions.set_readonly(true);
        std::fs::set_permissions(&file, permissions)?;
        // Root may write to it all the same; then exporting it is valid.
        if std::fs::OpenOptions::new().append(true).open(&file).is_ok() {
            return Ok(());
        }
        refused(tree, &["export", &format!("file:{file}"), "-l", "127.0.0.1:0"], "read")
    });
    checks.run("file-exported-twice", || {
        let device = format!("file:{},size=16M", path("twice"));
        let first = Export::start(tree, &[&device])?;
        refused(tree, &["export", &device, "-l", "127.0.0.1:0"], "twice")?;
        first.stop("TERM")
    });
    checks.run("nobody-listens", || {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port().to_string();
        refused(tree, &["discover", "-a", "127.0.0.1", "-s", &free], "refused")
    });
}

/// Writing and reading through every combination of loop, mode and digests.
fn data(tree: &Tree, scratch: &Path, checks: &mut Checks) {
    let file = format!("file:{},size=64M,bs=4096", scratch.join("data.img").display());
    for io in ["uring", "epoll"] {
        for mode in ["adaptive", "interrupt", "poll"] {
            let name = format!("data-{io}-{mode}");
            checks.run(&name, || {
                let mut target =
                    Export::start(tree, &["ram:64M", &file, "--io", io, "--mode", mode])?;
                moves_data(tree, scratch, &target)?;
                target.healthy()?;
                target.stop(if io == "uring" { "TERM" } else { "INT" })
            });
        }
    }
    checks.run("ready-line", || {
        let target = Export::start(tree, &["ram:64M", &file])?;
        let namespaces = &target.ready["namespaces"];
        ensure!(target.ready["pid"].as_u64() == Some(u64::from(target.pid())), "pid");
        ensure!(namespaces[0]["block_size"] == 512 && namespaces[1]["block_size"] == 4096, "sizes");
        ensure!(namespaces[0]["block_count"] == 131_072, "block_count");
        // The NQN follows from the machine, the devices and the addresses asked for.
        let once = Export::start(tree, &["ram:1M"])?;
        let again = Export::start(tree, &["ram:1M"])?;
        ensure!(again.nqn == once.nqn, "the NQN changes from one start to the next");
        ensure!(again.nqn != target.nqn, "two exports share an NQN");
        target.stop("TERM")
    });
    checks.run("idle-cpu", || {
        let target = Export::start(tree, &["ram:64M"])?;
        host(tree, "identify", &target.address(), &[])?;
        std::thread::sleep(Duration::from_secs(1));
        let before = cpu_ticks(target.pid())?;
        std::thread::sleep(Duration::from_secs(3));
        let used = cpu_ticks(target.pid())? - before;
        ensure!(used <= IDLE_TICKS, "an idle target used {} ms of CPU in 3 s", used * 10);
        target.stop("TERM")
    });
}

fn moves_data(tree: &Tree, scratch: &Path, target: &Export) -> Result<()> {
    let address = target.address();
    let listed = host(tree, "discover", &address[..4], &[])?;
    ensure!(listed.stdout.contains(&target.nqn), "discover does not list {}", target.nqn);
    for (namespace, blocks) in [("1", "1"), ("1", "512"), ("2", "1"), ("2", "100")] {
        write_read(tree, &address, scratch, namespace, blocks)?;
    }
    for options in [&["-i", "2"][..], &["-g", "-G", "--namespace", "2"]] {
        let mut words = vec!["--rw", "randwrite", "--bs", "4k", "--iodepth", "8"];
        words.extend(["--runtime", "1", "--ramp_time", "0", "--verify"]);
        words.extend(options);
        let job = perf_job(tree, &address, &words)?;
        ensure!(iops(&job) > 100.0, "perf: {} IOPS", iops(&job));
    }
    Ok(())
}

/// User and system time of a process, in clock ticks.
pub(crate) fn cpu_ticks(pid: u32) -> Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may hold anything; utime and stime are the 12th and 13th after it.
    let (_, rest) = stat.rsplit_once(')').context("/proc/PID/stat")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    ensure!(fields.len() > 13, "/proc/PID/stat is short");
    Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
}

/// Which hosts get in.
fn admission(tree: &Tree, checks: &mut Checks) {
    let [friend, stranger] = ["nqn.2014-08.org.example:friend", "nqn.2014-08.org.example:stranger"];
    checks.run("only-named-hosts", || {
        let target = Export::start(tree, &["ram:16M", "--host", friend])?;
        let address = target.address();
        host(tree, "identify", &address, &["-q", friend])?;
        ensure!(host(tree, "identify", &address, &["-q", stranger]).is_err(), "a stranger got in");
        // Whether discovery is refused or comes back empty, the stranger must not see the NQN.
        let mut words = vec!["discover".to_owned(), "-q".to_owned(), stranger.to_owned()];
        words.extend_from_slice(&address[..4]);
        let listed = tree.raceline(words.iter().map(String::as_str))?.limit(30).run()?;
        ensure!(!listed.output.contains(&target.nqn), "a stranger sees the subsystem");
        target.stop("TERM")
    });
}

/// Invalid bytes, and too many sockets: other hosts must not notice.
fn hostile(tree: &Tree, scratch: &Path, checks: &mut Checks) {
    let file = scratch.join("vanishes.img");
    let device = format!("file:{},size=16M", file.display());
    let mut target = match Export::start(tree, &["ram:64M", &device]) {
        Ok(target) => target,
        Err(error) => return checks.not_ok("hostile", &format!("{error:#}")),
    };
    let port = target.port;
    // At the same time a well-behaved host verifies its data.
    let mut words = vec!["perf".to_owned()];
    words.extend(target.address());
    let load =
        "--rw randwrite --bs 4k --iodepth 4 --runtime 40 --ramp_time 0 --rate_iops 500 --verify";
    words.extend(load.split(' ').map(str::to_owned));
    let bystander =
        tree.raceline(words.iter().map(String::as_str)).and_then(|task| task.limit(90).start());
    let cases: [(&str, u16, Vec<u8>); 6] = [
        ("garbage", 1, b"GET / HTTP/1.1\r\nHost: storage\r\n\r\n".to_vec()),
        ("capsule-before-icreq", 2, raw::header(4, 72, 72)),
        ("wrong-hlen", 1, raw::header(0, 127, 128)),
        ("huge-plen", 1, raw::header(0, 128, u32::MAX)),
        ("short-plen", 1, raw::header(0, 128, 8)),
        ("wrong-direction", 1, raw::header(5, 24, 24)),
    ];
    for (name, status, bytes) in cases {
        checks.run(name, || {
            let mut stream = raw::open(port)?;
            stream.write_all(&bytes)?;
            let seen = raw::expect_term_req(&mut stream)?;
            ensure!(seen == status || seen == 2, "fatal error status {seen}, not {status}");
            Ok(())
        });
    }
    checks.run("truncated", || {
        for length in [1, 7, 8, 9, 127] {
            raw::open(port)?.write_all(&raw::ic_req()[..length])?;
        }
        Ok(())
    });
    checks.run("no-icreq-deadline", || {
        let mut stream = raw::open(port)?;
        within(raw::time_to_close(&mut stream, Duration::from_secs(20))?, NO_ICREQ)
    });
    checks.run("no-connect-deadline", || {
        let (mut stream, _) = raw::negotiated(port)?;
        within(raw::time_to_close(&mut stream, Duration::from_secs(25))?, NO_CONNECT)
    });
    checks.run("idle-sockets", || idle_sockets(tree, &target));
    checks.run("vanished-file", || {
        std::fs::OpenOptions::new().write(true).open(&file)?.set_len(0)?;
        let range = ["--namespace", "2", "--slba", "64", "--blocks", "8", "-"];
        // An error and zeroes are both valid answers.
        let mut words = vec!["read".to_owned()];
        words.extend(target.address());
        words.extend(range.map(str::to_owned));
        let ended = tree.raceline(words.iter().map(String::as_str))?.limit(30).run()?;
        ensure!(ended.status.is_some(), "no answer to a read of a truncated file");
        std::fs::remove_file(&file)?;
        host(tree, "identify", &target.address(), &[])?;
        Ok(())
    });
    checks.run("bystander", || {
        let ended = bystander?.wait()?;
        ensure!(ended.success(), "{}\n{}", ended.why(), ended.tail(10));
        target.healthy()
    });
    checks.run("stops-after-all", || target.stop("TERM"));
}

fn within(took: Duration, bounds: [Duration; 2]) -> Result<()> {
    ensure!((bounds[0]..=bounds[1]).contains(&took), "closed after {took:?}, not in {bounds:?}");
    Ok(())
}

/// Many silent sockets from one address; a host from another address must connect at once.
fn idle_sockets(tree: &Tree, target: &Export) -> Result<()> {
    let me = std::env::current_exe()?;
    let script = format!(
        "ulimit -n 4096 && exec '{}' hold-idle {} {IDLE_SOCKETS}",
        me.display(),
        target.port
    );
    let mut holder = Task::new("sh").args(["-c", &script]).start()?;
    holder.wait_for("holding", 40)?;
    let started = Instant::now();
    host(tree, "identify", &target.address(), &[])?;
    let took = started.elapsed();
    holder.kill();
    ensure!(took <= IDLE_BOUND, "identify took {took:?} beside {IDLE_SOCKETS} idle sockets");
    Ok(())
}
