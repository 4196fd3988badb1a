//! Where connections land when they come over loopback, which has no receive queues.

mod common;

use std::time::Duration;

use common::{RawHost, Wants, config, eventually, pattern, ram, start, status};
use raceline_target::{PlacementPolicy, Target, TargetConfig, TargetError};

const BS: u32 = 512;

#[test]
fn without_receive_queues_connections_are_spread_evenly() {
    for placement in [PlacementPolicy::Balanced, PlacementPolicy::Napi] {
        let config = TargetConfig { placement, ..config(2) };
        let (target, address) = start(config, vec![ram("1M")]);
        let (admin, cntlid) = RawHost::admin(address, Wants::default());
        let queues: Vec<RawHost> =
            (1..8).map(|qid| RawHost::io(address, cntlid, qid, Wants::default())).collect();
        assert_eq!(target.stats().connections, [4, 4], "{placement:?}");
        drop((queues, admin));
        eventually("all connections are gone", || target.stats().connections == [0, 0]);
        target.shutdown().unwrap();
    }
}

#[test]
fn by_cpu_every_connection_has_a_core_and_works() {
    let config = TargetConfig { placement: PlacementPolicy::Cpu, ..config(2) };
    let (target, address) = start(config, vec![ram("1M")]);
    let (admin, cntlid) = RawHost::admin(address, Wants::default());
    for qid in 1..5 {
        let mut queue = RawHost::io(address, cntlid, qid, Wants::default());
        let data = pattern(u64::from(qid), BS as usize);
        assert!(status(&queue.write(1, u64::from(qid), &data, BS)).is_success());
        assert_eq!(queue.read(1, u64::from(qid), 1, BS).data, data);
    }
    drop(admin);
    eventually("all connections are gone", || target.stats().connections == [0, 0]);
    target.shutdown().unwrap();
}

#[test]
fn busy_polling_works_or_is_refused_at_the_start() {
    let busy_poll = Some(Duration::from_micros(50));
    let config = TargetConfig { busy_poll, ..config(1) };
    match Target::start(config.clone()) {
        Err(TargetError::BusyPoll(error)) => {
            assert!(error.to_string().starts_with("cannot busy poll for 50 us: "), "{error}");
            return;
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
