//! What a scrape of a large daemon costs, with the hosts connected and some of them at work: run by name, in release.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use raceline_host::HostConfig;
use raceline_host::blocking::Host;
use raceline_proto::nvme::{HostId, NamespaceId, Nqn};
use serde_json::json;

use crate::counts::value;
use crate::support::Served;

const NQN: &str = "nqn.2016-06.io.spdk:large";
const NAMESPACES: u32 = 1000;
const HOSTS: u8 = 50;
/// Hosts that read, and how often each does.
const BUSY: usize = 8;
const INTERVAL: Duration = Duration::from_millis(2);
/// Namespaces that each of them reads.
const SHARE: usize = NAMESPACES as usize / BUSY;
/// How long a run of reads takes, and how often a run with scrapes is scraped.
const RUN: Duration = Duration::from_secs(4);
const SCRAPE_INTERVAL: Duration = Duration::from_secs(1);
const PAIRS: usize = 5;
/// How long a scrape may take.
const SCRAPE_MAX: Duration = Duration::from_millis(50);

/// One subsystem with all namespaces, which are memory, and a listener; gives its port.
fn export(served: &Served) -> u16 {
    served.change("nvmf_create_transport", json!({ "trtype": "TCP" }));
    let subsystem = json!({ "nqn": NQN, "allow_any_host": true, "max_namespaces": NAMESPACES });
    served.change("nvmf_create_subsystem", subsystem);
    for number in 1..=NAMESPACES {
        let name = format!("M{number}");
        let disk = json!({ "name": name, "num_blocks": 256, "block_size": 512 });
        served.change("bdev_malloc_create", disk);
        let namespace = json!({ "nqn": NQN, "namespace": { "bdev_name": name, "nsid": number } });
        served.change("nvmf_subsystem_add_ns", namespace);
    }
    let address =
        json!({ "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": "0" });
    let listen = json!({ "nqn": NQN, "listen_address": address });
    served.change("nvmf_subsystem_add_listener", listen);
    let listeners = served.change("nvmf_subsystem_get_listeners", json!({ "nqn": NQN }));
    listeners[0]["address"]["trsvcid"].as_str().unwrap().parse().unwrap()
}

fn connect(port: u16, number: u8) -> Host {
    let name = Nqn::new(&format!("nqn.2014-08.org.example:host{number}")).unwrap();
    let address = (std::net::Ipv4Addr::LOCALHOST, port).into();
    let mut config = HostConfig::new(address, Nqn::new(NQN).unwrap(), name, HostId([number; 16]));
    config.io_queues = 1;
    Host::connect(config).unwrap()
}

/// Reads of a host at its rate until `end`, each with the time from when it was due.
fn read(host: &Host, number: usize, end: Instant) -> Vec<Duration> {
    let mut block = [0; 4096];
    let mut times = Vec::new();
    let mut due = Instant::now();
    while due < end {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let place = u32::try_from(number * SHARE + times.len() % SHARE + 1).unwrap();
        host.read(NamespaceId(place), 8 * (times.len() as u64 % 32), &mut block).unwrap();
        times.push(due.elapsed());
        due += INTERVAL;
    }
    times
}

/// A scrape: how long it took, its lines and its bytes.
fn scrape(served: &Served) -> (Duration, usize, usize) {
    let began = Instant::now();
    let text = served.get("/metrics").body;
    (began.elapsed(), text.lines().count(), text.len())
}

/// The times of all reads of a run, in order. Scrapes come beside it, if there are any.
fn run(served: &Served, hosts: &[Host], scrapes: Option<&Mutex<Vec<Duration>>>) -> Vec<Duration> {
    let end = Instant::now() + RUN;
    let mut times = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..BUSY)
            .map(|number| scope.spawn(move || read(&hosts[number], number, end)))
            .collect();
        if let Some(scrapes) = scrapes {
            while Instant::now() < end {
                scrapes.lock().unwrap().push(scrape(served).0);
                std::thread::sleep(SCRAPE_INTERVAL);
            }
        }
        readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
    });
    times.sort_unstable();
    times
}

/// The value below which so many of a thousand values are.
fn quantile<T: Copy>(sorted: &[T], per_mille: usize) -> T {
    sorted[(sorted.len() - 1) * per_mille / 1000]
}

#[test]
#[ignore = "measures"]
fn a_scrape_of_a_thousand_namespaces_and_fifty_hosts() {
    let served = Served::start();
    let port = export(&served);
    let hosts: Vec<Host> = (0..HOSTS).map(|number| connect(port, number)).collect();
    // Each host has done something, so that it has histograms.
    for host in &hosts {
        host.write(NamespaceId(1), 0, &[1; 4096], false).unwrap();
        host.read(NamespaceId(1), 0, &mut [0; 4096]).unwrap();
    }
    let text = served.get("/metrics").body;
    let labels = format!("target=\"nvmf_tgt\",nqn=\"{NQN}\"");
    assert_eq!(value(&text, "subsystem_namespaces", &labels), Some(f64::from(NAMESPACES)));
    let connected: f64 = (0..HOSTS)
        .filter_map(|number| {
            let host = format!("{labels},host_nqn=\"nqn.2014-08.org.example:host{number}\"");
            value(&text, "host_connection_state", &host)
        })
        .sum();
    assert_eq!(connected, f64::from(HOSTS));

    let mut idle: Vec<_> = (0..20).map(|_| scrape(&served)).collect();
    idle.sort_unstable();
    let (median, lines, bytes) = quantile(&idle, 500);
    println!(
        "{NAMESPACES} namespaces, {HOSTS} hosts, nothing at work: {lines} lines, {bytes} bytes; a scrape takes {median:?}, the slowest {:?}",
        quantile(&idle, 1000).0
    );
    let scrapes = Mutex::new(Vec::new());
    let mut ratios = Vec::new();
    for pair in 0..PAIRS {
        // They begin in turn.
        let with_first = pair % 2 == 1;
        let first = run(&served, &hosts, with_first.then_some(&scrapes));
        let second = run(&served, &hosts, (!with_first).then_some(&scrapes));
        let (with, without) = if with_first { (first, second) } else { (second, first) };
        let p99 = [&with, &without].map(|times| quantile(times, 990).as_secs_f64());
        ratios.push(p99[0] / p99[1]);
        for (name, times) in [("with scrapes", &with), ("without", &without)] {
            println!(
                "{name}: {} reads, P50 {:?}, P99 {:?}, P99.9 {:?}",
                times.len(),
                quantile(times, 500),
                quantile(times, 990),
                quantile(times, 999)
            );
        }
    }
    ratios.sort_unstable_by(f64::total_cmp);
    println!(
        "P99 with scrapes / without: median {:.3} ({:.3} - {:.3})",
        quantile(&ratios, 500),
        quantile(&ratios, 0),
        quantile(&ratios, 1000)
    );
    let mut scrapes = scrapes.into_inner().unwrap();
    scrapes.sort_unstable();
    println!(
        "{} scrapes beside reads: median {:?}, slowest {:?}",
        scrapes.len(),
        quantile(&scrapes, 500),
        quantile(&scrapes, 1000)
    );
    assert!(scrapes.len() >= PAIRS * 3, "too few scrapes: {}", scrapes.len());
    for median in [median, quantile(&scrapes, 500)] {
        assert!(median <= SCRAPE_MAX, "a scrape takes {median:?}");
    }
}
