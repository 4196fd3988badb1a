//! Where connections land by the sockets that listen, and busy polling of sockets: over TCP only. What holds over either
//! transport is in `suites/placement.rs`.

mod common;

use std::time::Duration;

use common::{RawHost, Wants, config, eventually, pattern, ram, start, status};
use raceline_reactor::Backend;
use raceline_target::{PlacementPolicy, Target, TargetConfig, TargetError};

const BS: u32 = 512;

/// CPUs that this process may use, at most two.
fn cpus() -> Vec<usize> {
    let mut cpus = raceline_reactor::affinity::allowed_cores().expect("a list of cores");
    cpus.truncate(2);
    cpus
}

#[test]
fn the_listener_of_the_cpu_gets_the_connection() {
    for backend in [Backend::Auto, Backend::Epoll] {
        let cores = cpus();
        let placement = PlacementPolicy::Listener;
        let base = config(1);
        let config = TargetConfig { cores: cores.clone(), placement, backend, ..base };
        let (target, address) = start(config, vec![ram("1M")]);
        // Another socket on the port would get some of the connections.
        let again = target.add_listener(address).unwrap_err();
        assert!(again.to_string().contains("somebody listens there"), "{again}");
        let mut expected = vec![0; cores.len()];
        let mut hosts = Vec::new();
        for (index, &cpu) in cores.iter().enumerate() {
            for _ in 0..=index {
                let connect = move || {
                    raceline_reactor::affinity::pin_to_core(cpu).unwrap();
                    RawHost::admin(address, Wants::default()).0
                };
                hosts.push(std::thread::spawn(connect).join().unwrap());
                expected[index] += 1;
                assert_eq!(target.stats().connections, expected, "{backend:?}");
            }
        }
        drop(hosts);
        eventually("all connections are gone", || {
            target.stats().connections.iter().sum::<usize>() == 0
        });
        target.remove_listener(address).unwrap();
        std::net::TcpListener::bind(address).unwrap();
        target.shutdown().unwrap();
    }
}

#[test]
fn listeners_by_cpu_need_bound_cores() {
    let placement = PlacementPolicy::Listener;
    let config = TargetConfig { cores: Vec::new(), placement, ..config(1) };
    let error = Target::start(config).err().unwrap();
    assert_eq!(error.to_string(), "cores whose listeners are chosen by CPU must be bound to CPUs");
}

#[test]
fn busy_polling_works_or_is_refused_at_the_start() {
    let busy_poll = Some(Duration::from_micros(50));
    let config = TargetConfig { busy_poll, ..config(1) };
    match Target::start(config.clone()) {
        Err(TargetError::BusyPoll(error)) => {
            assert!(error.to_string().starts_with("cannot busy poll for 50 us: "), "{error}");
            return eprintln!("SKIPPED: connections that are busy polled: {error}");
        }
        other => other.unwrap().shutdown().unwrap(),
    }
    let (target, address) = start(config, vec![ram("1M")]);
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    let data = pattern(1, BS as usize);
    assert!(status(&queue.write(1, 0, &data, BS)).is_success());
    assert_eq!(queue.read(1, 0, 1, BS).data, data);
    target.shutdown().unwrap();
}
