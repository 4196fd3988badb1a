//! A target with 1,000 idle iSCSI sessions, each of which it pings: its CPU and its memory.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};

use super::figures::at_most;
use super::process::{Resident, allow_files, bind_to_core, cpu_ns};
use super::{Options, fill};
use crate::quiet::watched;
use crate::raceline::{Export, Tree};
use crate::wire::iscsi::session::{COMMAND, DATA_IN, FINAL, RESPONSE, Session};

const SESSIONS: u16 = 1000;
const NAMESPACE: &str = "ram:64m";
const IQN: &str = "iqn.2026-01.io.raceline:idle";
const INITIATOR: &str = "iqn.2026-01.io.raceline:bench";
/// The core of the target, and the core of the initiator.
const TARGET_CORE: usize = 0;
const HOST_CORE: usize = 1;
/// Most files of this process.
const FILES_MAX: u32 = 2048;
/// Reads of 4 KiB on each session before it is left alone: a target may give a session more memory at its first use.
const FIRST_READS: usize = 4;
const READ_BYTES: u32 = 4096;
/// How long the target is left alone first: until the timers have expired within which a login must be complete.
const SETTLE: Duration = Duration::from_secs(16);
/// How long the CPU is measured: two intervals of the pings, by default 30 s each.
const WATCHED: Duration = Duration::from_secs(60);
/// Time between two looks for pings.
const NAP: Duration = Duration::from_millis(300);
/// Bars.
const CPU_PERCENT_MAX: f64 = 0.5;
const SESSION_KIB_MAX: f64 = 64.0;

/// What was measured.
struct Measured {
    cpu_percent: f64,
    rejected: u32,
    after: Resident,
    /// Pings answered while the CPU was measured.
    pings: u32,
}

/// Measures and prints.
pub(super) fn run(tree: &Tree, options: &Options) -> Result<Value> {
    allow_files(FILES_MAX)?;
    let (core, iqn) = (TARGET_CORE.to_string(), format!("--iscsi={IQN}"));
    let words = [NAMESPACE, &iqn, "--iscsi-listen", "127.0.0.1:0", "--cores", &core];
    let target = Export::start(tree, &[&words[..], &["--mode", "adaptive"]].concat())?;
    fill(tree, &target)?;
    let before = Resident::of(target.pid())?;
    let portal = target.ready["iscsi"]["portals"][0].as_str().context("no portal")?;
    let port: u16 = portal.rsplit(':').next().unwrap_or_default().parse()?;
    let (pid, noisy) = (target.pid(), options.noisy);
    // A thread of its own can be bound to a core without binding its children.
    let host = thread::spawn(move || measure(pid, port, noisy)).join();
    let found = host.unwrap_or_else(|_| Err(anyhow!("the initiator's thread panicked")))?;
    let grown = found.after.now_bytes.saturating_sub(before.now_bytes);
    let per_session = grown / u64::from(SESSIONS);
    println!(
        "{SESSIONS} iSCSI sessions, adaptive; in {} s the target has pinged {} times; {} runs rejected",
        WATCHED.as_secs(),
        found.pings,
        found.rejected
    );
    println!(
        "memory: {} KiB resident before, {} KiB after",
        before.now_bytes >> 10,
        found.after.now_bytes >> 10
    );
    let bars = [
        at_most("CPU with idle sessions", found.cpu_percent, CPU_PERCENT_MAX, "% of a core"),
        at_most("memory of an idle session", per_session as f64 / 1024.0, SESSION_KIB_MAX, "KiB"),
    ];
    target.stop("TERM")?;
    Ok(json!({
        "sessions": SESSIONS, "rejected": found.rejected, "pings": found.pings,
        "resident_before_bytes": before.now_bytes, "resident_bytes": found.after.now_bytes,
        "bytes_per_session": per_session, "bars": bars,
    }))
}

fn measure(pid: u32, port: u16, noisy: bool) -> Result<Measured> {
    bind_to_core(HOST_CORE)?;
    let mut sessions = Vec::with_capacity(SESSIONS.into());
    for number in 0..SESSIONS {
        sessions.push(session(port, number).with_context(|| format!("session {number}"))?);
        // Logins take time: the target may ping the first sessions meanwhile.
        if number % 100 == 0 {
            answer(&mut sessions)?;
        }
    }
    stay(&mut sessions, SETTLE)?;
    let mut pings = 0;
    let idle = || {
        let (from, used) = (Instant::now(), cpu_ns(pid)?);
        pings = stay(&mut sessions, WATCHED)?;
        let used = Duration::from_nanos(cpu_ns(pid)?.saturating_sub(used));
        Ok(100.0 * used.as_secs_f64() / from.elapsed().as_secs_f64())
    };
    let (cpu_percent, rejected) = watched("idle sessions", noisy, &[pid], idle)?;
    ensure!(pings >= SESSIONS.into(), "{pings} pings: the target does not ping idle sessions");
    Ok(Measured { cpu_percent, rejected, after: Resident::of(pid)?, pings })
}

/// A session that has been used.
fn session(port: u16, number: u16) -> Result<Session> {
    let mut session = Session::open(port)?;
    let keys = format!(
        "InitiatorName={INITIATOR}\0TargetName={IQN}\0SessionType=Normal\0HeaderDigest=None\0DataDigest=None\0"
    );
    let (status, _) = session.login_step(number, [1, 3], &keys)?;
    ensure!(status == [0, 0], "login status {status:?}");
    // A new nexus is told of itself first, by CHECK CONDITION.
    let mut header = [0; 48];
    (header[0], header[1]) = (COMMAND, FINAL);
    session.request(header, &[])?;
    session.expect(RESPONSE)?;
    for _ in 0..FIRST_READS {
        let mut header = [0; 48];
        // READ (10) of 8 blocks of 512 bytes, a simple task.
        (header[0], header[1], header[32], header[40]) = (COMMAND, FINAL | 0x41, 0x28, 8);
        header[20..24].copy_from_slice(&READ_BYTES.to_be_bytes());
        session.request(header, &[])?;
        let (answer, data) = session.expect(DATA_IN)?;
        ensure!(answer[1] & 1 != 0 && answer[3] == 0, "a read without the status GOOD");
        ensure!(data.len() == READ_BYTES as usize, "{} bytes of a read", data.len());
    }
    Ok(session)
}

/// Only answers pings for this time; gives their number.
fn stay(sessions: &mut [Session], time: Duration) -> Result<u32> {
    let (from, mut pings) = (Instant::now(), 0);
    while from.elapsed() < time {
        pings += answer(sessions)?;
        thread::sleep(NAP.min(time.saturating_sub(from.elapsed())));
    }
    Ok(pings)
}

/// Answers the pings that have come; gives their number.
fn answer(sessions: &mut [Session]) -> Result<u32> {
    sessions.iter_mut().try_fold(0, |sum, session| Ok(sum + session.answer_pings()?))
}
