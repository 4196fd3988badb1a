//! From the start of a target on a file to the first block that a waiting host has read.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Options;
use super::figures::{Figure, at_most};
use super::process::drop_cached;
use super::simple::Admin;
use crate::child::tail;
use crate::quiet::watched;
use crate::raceline::Tree;

/// Size of the file, which is sparse.
const FILE_BYTES: u64 = 1 << 30;
const NQN: &str = "nqn.2026-01.io.raceline:xtask-start";
/// Starts of either kind.
const STARTS: usize = 10;
/// Time between two attempts to connect; refused attempts cost the target's core time, too.
const RETRY: Duration = Duration::from_micros(200);
/// Time after which a target that does not answer has failed.
const LIMIT: Duration = Duration::from_secs(10);
/// Bar.
const MS_MAX: f64 = 100.0;

/// Measures and prints.
pub(super) fn run(tree: &Tree, options: &Options) -> Result<Value> {
    let file = tree.scratch("bench-start")?.join("namespace");
    std::fs::File::create(&file)?.set_len(FILE_BYTES)?;
    let mut bars = Vec::new();
    for cold in [true, false] {
        let name = if cold { "cold" } else { "warm" };
        let mut times_ms = Vec::new();
        let mut rejected = 0;
        for _ in 0..STARTS {
            let run = || start(tree, &file, cold);
            let (time, disturbed) = watched(name, options.noisy, &[], run)?;
            rejected += disturbed;
            times_ms.push(time.as_secs_f64() * 1e3);
        }
        let figure = Figure::of(times_ms)?;
        println!("{name}, of {STARTS}, {rejected} rejected, ms: {figure}");
        let bar = at_most(&format!("start to first read, {name}"), figure.median, MS_MAX, "ms");
        bars.push(json!({ "ms": figure.json(), "rejected": rejected, "bar": bar }));
    }
    std::fs::remove_file(&file)?;
    Ok(Value::Array(bars))
}

/// One start; cold: neither program nor file is in the page cache.
fn start(tree: &Tree, file: &Path, cold: bool) -> Result<Duration> {
    let port = free_port()?;
    if cold {
        drop_cached(tree.binary()?)?;
        drop_cached(file)?;
    }
    let listen = format!("127.0.0.1:{port}");
    let device = file.to_str().context("a path that is not UTF-8")?;
    let task = tree.raceline(["export", device, "-n", NQN, "-l", &listen, "--cores", "0"])?;
    let started = Instant::now();
    let mut target = task.start()?;
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        ensure!(started.elapsed() < LIMIT && target.alive(), "{}", {
            target.drain();
            format!("the target does not listen:\n{}", tail(target.output(), 10))
        });
        thread::sleep(RETRY);
    }
    let admin = Admin::connect(port, NQN, 1, 0)?;
    admin.io_queue(1)?.read(0)?;
    let time = started.elapsed();
    target.signal("TERM");
    let ended = target.wait()?;
    ensure!(ended.success(), "the target: {}\n{}", ended.why(), ended.tail(10));
    Ok(time)
}

/// A port that was free when this function looked.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
