//! Latencies at 70 % of the highest rate of a target, in an open loop, also beside another target.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::figures::{Figure, Perf};
use super::{NAMESPACE, Options, fill};
use crate::distance::Cores;
use crate::quiet::watched_near;
use crate::raceline::{Export, Tree};

/// The closed loop that finds the highest rate, and the open loop over the same queues.
const LOAD: [&str; 10] =
    ["--rw", "randread", "--bs", "4k", "--iodepth", "32", "-i", "4", "--cores", "1"];
const TIMES: [&str; 4] = ["--runtime", "5", "--ramp_time", "1"];
/// Part of the highest rate that is offered, in percent.
const PERCENT_OF_MOST: u64 = 70;
/// The open loop must reach this part of its rate, or the run does not count.
const RATE_REACHED: f64 = 0.98;

/// Another target.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    address: String,
    port: String,
    nqn: String,
}

impl std::str::FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not ADDR:PORT,NQN");
        let (socket, nqn) = text.split_once(',').ok_or_else(wrong)?;
        let socket: std::net::SocketAddr = socket.parse().map_err(|_| wrong())?;
        if nqn.is_empty() {
            return Err(wrong());
        }
        let (address, port) = (socket.ip().to_string(), socket.port().to_string());
        Ok(Self { address, port, nqn: nqn.to_owned() })
    }
}

/// A target that is measured: its name, its address, and its processes on this machine.
struct Subject {
    name: &'static str,
    address: Vec<String>,
    pids: Vec<u32>,
}

/// Measures and prints.
pub(super) fn run(tree: &Tree, options: &Options) -> Result<Value> {
    let target = Export::start(tree, &[NAMESPACE, "--cores", "0", "--mode", "poll"])?;
    fill(tree, &target)?;
    let ours = Subject { name: "raceline", address: target.address(), pids: vec![target.pid()] };
    let mut found = vec![measure(tree, options, &ours)?];
    target.stop("TERM")?;
    if let Some(peer) = &options.peer {
        let words = ["-a", &peer.address, "-s", &peer.port, "-n", &peer.nqn];
        let address = words.map(str::to_owned).to_vec();
        let pids = options.peer_pid.into_iter().collect();
        found.push(measure(tree, options, &Subject { name: "peer", address, pids })?);
    }
    Ok(Value::Array(found))
}

fn measure(tree: &Tree, options: &Options, subject: &Subject) -> Result<Value> {
    let name = subject.name;
    let cores = Cores::new(tree, options.noisy);
    let perf = |rest: &[&str]| {
        let words = [&LOAD[..], &TIMES, rest].concat();
        let run = || Perf::run(tree, &subject.address, &words);
        watched_near(name, &cores, options.noisy, &subject.pids, run)
    };
    let (closed, mut rejected) = perf(&[])?;
    let rate = whole(closed.iops)? * PERCENT_OF_MOST / 100;
    let rate_text = rate.to_string();
    let mut runs = Vec::new();
    for _ in 0..options.runs {
        let (open, disturbed) = perf(&["--rate_iops", &rate_text])?;
        let wanted = f64::from(u32::try_from(rate)?) * RATE_REACHED;
        ensure!(open.iops >= wanted, "{name}: {:.0} IOPS in an open loop of {rate}", open.iops);
        rejected += disturbed;
        runs.push(open);
    }
    let figure = |of: fn(&Perf) -> f64| Figure::of(runs.iter().map(of).collect());
    let (p50, p99, p999) =
        (figure(|run| run.p50_us)?, figure(|run| run.p99_us)?, figure(|run| run.p999_us)?);
    println!("{name}: {:.0} IOPS at most; at {rate} IOPS, us ({rejected} rejected):", closed.iops);
    println!("  P50 {p50}, P99 {p99}, P99.9 {p999}");
    Ok(json!({
        "target": name, "most_iops": closed.iops, "rate_iops": rate, "p50_us": p50.json(),
        "p99_us": p99.json(), "p999_us": p999.json(), "rejected": rejected,
    }))
}

/// A rate as a whole number.
fn whole(iops: f64) -> Result<u64> {
    format!("{iops:.0}").parse().with_context(|| format!("{iops} IOPS"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_read() {
        let peer: Peer = "127.0.0.1:4420,nqn.2016-06.io.spdk:cnode1".parse().unwrap();
        assert_eq!((peer.port.as_str(), peer.nqn.as_str()), ("4420", "nqn.2016-06.io.spdk:cnode1"));
        for text in ["127.0.0.1:4420", "127.0.0.1,nqn", "127.0.0.1:4420,"] {
            assert!(text.parse::<Peer>().is_err(), "{text}");
        }
        assert_eq!(whole(12345.6).unwrap(), 12346);
    }
}
