//! Where connections land when they come over loopback, or by RDMA: neither has receive queues of the kernel.

use raceline_target::{PlacementPolicy, TargetConfig};

use crate::common::{RawHost, Wants, config, eventually, pattern, ram, start, status};

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
