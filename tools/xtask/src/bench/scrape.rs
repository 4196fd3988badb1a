//! What a scrape of metrics costs: its time with a thousand namespaces, and the latency of I/O beside one every second.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Options;
use super::control::{Rpc, at};
use super::figures::{Figure, Perf, at_most};
use crate::quiet::watched;
use crate::raceline::Tree;
use crate::serve::Serve;

const NQN: &str = "nqn.2016-06.io.spdk:scrape";
/// Namespaces: one that is loaded, and others.
const NAMESPACES: usize = 1000;
const OTHER_BLOCKS: u64 = 2048;
/// Blocks of 4 KiB of the namespace that is loaded.
const LOADED_BLOCKS: u64 = 1 << 16;
/// Scrapes whose time is measured.
const SCRAPES: usize = 20;
const PERIOD: Duration = Duration::from_secs(1);
/// How long a scrape may take at all.
const PATIENCE: Duration = Duration::from_secs(30);
/// A rate that leaves both cores time, so that what is late is late by the scrape.
const LOAD: [&str; 16] = [
    "--rw",
    "randread",
    "--bs",
    "4k",
    "--iodepth",
    "32",
    "--rate_iops",
    "20000",
    "--runtime",
    "4",
    "--ramp_time",
    "0.5",
    "--cores",
    "1",
    "--mode",
    "poll",
];
/// Bars.
const SCRAPE_MS_MAX: f64 = 50.0;
const P99_RATIO_MAX: f64 = 1.05;

/// Measures and prints.
pub(super) fn run(tree: &Tree, options: &Options) -> Result<Value> {
    let dir = tree.scratch("bench-scrape")?;
    let daemon = Serve::start(tree, &dir, &["-m", "[0]", "--metrics", "127.0.0.1:0"])?;
    let metrics = daemon.ready["http"][0].as_str().context("the ready line has no http")?;
    let metrics = metrics.trim_start_matches("http://").trim_end_matches('/').parse();
    let metrics: SocketAddr = metrics.context("where the metrics are")?;
    let address = export(&daemon)?;
    let mut times_ms = Vec::new();
    let mut bytes = 0;
    for _ in 0..SCRAPES {
        let began = Instant::now();
        bytes = scrape(metrics)?;
        times_ms.push(began.elapsed().as_secs_f64() * 1e3);
    }
    let time_ms = Figure::of(times_ms)?;
    println!("a scrape of {NAMESPACES} namespaces: {time_ms:.1} ms, {bytes} bytes");
    let mut p99s = [Vec::new(), Vec::new()];
    let (mut ratios, mut rejected) = (Vec::new(), 0);
    for round in 0..options.runs {
        let pair = || -> Result<[f64; 2]> {
            let mut found = [0.0; 2];
            for side in [round % 2, 1 - round % 2] {
                found[side] = p99_us(tree, &address, (side == 0).then_some(metrics))?;
            }
            Ok(found)
        };
        let (found, disturbed) = watched("scrapes", options.noisy, &[daemon.pid()], pair)?;
        rejected += disturbed;
        ratios.push(found[0] / found[1]);
        p99s.iter_mut().zip(found).for_each(|(all, one)| all.push(one));
    }
    daemon.stop()?;
    let [with, without] = p99s.map(Figure::of);
    let (with, without, ratio) = (with?, without?, Figure::of(ratios)?);
    println!("P99 of 4 KiB reads at 20,000 IOPS, a scrape every second: {with:.1} us");
    println!(
        "the same without scrapes: {without:.1} us; ratio {ratio:.3}; {rejected} pairs rejected"
    );
    let bars = [
        at_most("a scrape", time_ms.median, SCRAPE_MS_MAX, "ms"),
        at_most("P99 with / without scrapes", ratio.median, P99_RATIO_MAX, "x"),
    ];
    Ok(json!({
        "namespaces": NAMESPACES, "bytes": bytes, "scrape_ms": time_ms.json(),
        "p99_us": with.json(), "p99_without_us": without.json(), "ratio": ratio.json(),
        "rejected": rejected, "bars": bars,
    }))
}

/// Makes the namespaces; gives where they are.
fn export(daemon: &Serve) -> Result<Vec<String>> {
    let mut rpc = Rpc::open(&daemon.socket)?;
    rpc.call("nvmf_create_transport", json!({"trtype": "TCP"}))?;
    let subsystem = json!({"nqn": NQN, "allow_any_host": true, "max_namespaces": NAMESPACES});
    rpc.call("nvmf_create_subsystem", subsystem)?;
    for index in 0..NAMESPACES {
        let name = format!("Scraped{index}");
        if index == 0 {
            let device = json!({"name": name, "num_blocks": LOADED_BLOCKS, "block_size": 4096});
            rpc.call("bdev_malloc_create", device)?;
        } else {
            let device = json!({"name": name, "num_blocks": OTHER_BLOCKS, "block_size": 512});
            rpc.call("bdev_null_create", device)?;
        }
        let namespace = json!({"nqn": NQN, "namespace": {"bdev_name": name}});
        rpc.call("nvmf_subsystem_add_ns", namespace)?;
    }
    let listener = json!({"nqn": NQN, "listen_address": at("0")});
    rpc.call("nvmf_subsystem_add_listener", listener)?;
    let found = rpc.call("nvmf_subsystem_get_listeners", json!({"nqn": NQN}))?;
    let port = found[0]["address"]["trsvcid"].as_str().context("the listener has no port")?;
    Ok(["-a", "127.0.0.1", "-s", port, "-n", NQN].map(str::to_owned).to_vec())
}

/// P99 of a run, with scrapes or without.
fn p99_us(tree: &Tree, address: &[String], metrics: Option<SocketAddr>) -> Result<f64> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let scrapes = metrics.map(|metrics| {
            let stop = &stop;
            scope.spawn(move || -> Result<usize> {
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    let next = Instant::now() + PERIOD;
                    scrape(metrics)?;
                    count += 1;
                    while Instant::now() < next && !stop.load(Ordering::Relaxed) {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                }
                Ok(count)
            })
        });
        let found = Perf::run(tree, address, &LOAD);
        stop.store(true, Ordering::Relaxed);
        if let Some(scrapes) = scrapes {
            let count = scrapes.join().map_err(|_| anyhow::anyhow!("the scraper panicked"))??;
            ensure!(count >= 3, "only {count} scrapes in a run");
        }
        Ok(found?.p99_us)
    })
}

/// Reads all metrics; gives the number of bytes.
fn scrape(metrics: SocketAddr) -> Result<usize> {
    let mut stream = TcpStream::connect_timeout(&metrics, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {metrics}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let head = String::from_utf8_lossy(&answer[..answer.len().min(200)]).into_owned();
    ensure!(head.starts_with("HTTP/1.1 200"), "no metrics: {head}");
    ensure!(
        answer.ends_with(b"# EOF\n") || answer.len() > NAMESPACES * 100,
        "a short answer: {head}"
    );
    Ok(answer.len())
}
