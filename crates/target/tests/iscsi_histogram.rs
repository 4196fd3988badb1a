//! The latency histogram of an iSCSI target node: which commands it counts, and when.
#![allow(clippy::unwrap_used)] // a test

mod common;
#[path = "common/iscsi.rs"]
mod initiator_end;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::{config, ram};
use initiator_end::{Initiator, TARGET};
use raceline_bdev::{DelayBdev, Delays, SharedBdev};
use raceline_target::{
    InitiatorGroupConfig, LunConfig, PortalGroupConfig, PortalMap, Target, TargetNodeConfig,
};

/// How long each request of the slow device takes.
const DELAY: Duration = Duration::from_millis(2);

fn start(cores: usize, devices: Vec<SharedBdev>) -> (Target, SocketAddr) {
    let target = Target::start(config(cores)).unwrap();
    let iscsi = target.iscsi();
    iscsi.set_initiator_group(InitiatorGroupConfig::any(1)).unwrap();
    let portals = vec!["127.0.0.1:0".parse().unwrap()];
    let group = PortalGroupConfig { wait: true, ..PortalGroupConfig::new(1, portals) };
    iscsi.add_portal_group(group).unwrap();
    let maps = vec![PortalMap { portal_group: 1, initiator_group: 1 }];
    let luns = devices.into_iter().map(LunConfig::new).collect();
    let node = TargetNodeConfig { maps, luns, ..TargetNodeConfig::new(TARGET) };
    iscsi.add_target_node(node).unwrap();
    let address = iscsi.start_portal_group(1).unwrap()[0];
    (target, address)
}

/// The commands that were counted.
fn counted(target: &Target) -> Option<u64> {
    let histogram = target.iscsi().histogram(TARGET).unwrap()?;
    Some(histogram.counts.iter().sum())
}

#[test]
fn every_command_counts_once_on_whatever_core() {
    let (target, address) = start(2, vec![ram("1M")]);
    assert_eq!(counted(&target), None);
    let mut sessions: Vec<Initiator> = (1..=4).map(|n| Initiator::login(address, n)).collect();
    for session in &mut sessions {
        // What has changed at a LUN is told to the first command.
        session.test_unit_ready(0);
    }
    target.iscsi().set_histogram(TARGET, true).unwrap();
    for session in &mut sessions {
        session.read(0, 0, 8).good();
        session.write(0, 0, &[7; 4096]).good();
        session.write(0, 0, &[7; 128 << 10]).good();
        session.test_unit_ready(0).good();
        assert_ne!(session.read(0, u32::MAX, 1).status, 0, "beyond the end");
    }
    // Once more keeps what there is, and so does the end of a session.
    target.iscsi().set_histogram(TARGET, true).unwrap();
    drop(sessions.pop());
    common::eventually("a session ends", || target.iscsi().connections().len() == 3);
    assert_eq!(counted(&target), Some(20));
    target.iscsi().set_histogram(TARGET, false).unwrap();
    sessions[0].read(0, 0, 8).good();
    assert_eq!(counted(&target), None);
    target.iscsi().set_histogram(TARGET, true).unwrap();
    assert_eq!(counted(&target), Some(0));
    sessions[0].read(0, 0, 8).good();
    assert_eq!(counted(&target), Some(1));
    assert!(target.iscsi().set_histogram("iqn.2026-01.io.raceline:none", true).is_err());
    target.shutdown().unwrap();
}

#[test]
fn the_time_of_the_device_is_in_it() {
    let slow: SharedBdev = Arc::new(DelayBdev::new(ram("1M"), Delays::all(DELAY)));
    let (target, address) = start(1, vec![slow]);
    let mut session = Initiator::login(address, 1);
    session.test_unit_ready(0);
    target.iscsi().set_histogram(TARGET, true).unwrap();
    for _ in 0..5 {
        session.read(0, 0, 8).good();
        session.write(0, 0, &[7; 4096]).good();
    }
    let histogram = target.iscsi().histogram(TARGET).unwrap().unwrap();
    let delay_ns = u64::try_from(DELAY.as_nanos()).unwrap();
    let ends = (0..).zip(&histogram.counts);
    let counts = ends.map(|(bucket, count)| (histogram.shape.bucket_end(bucket), *count));
    let shorter: u64 =
        counts.clone().filter(|(end, _)| *end < delay_ns).map(|(_, count)| count).sum();
    assert_eq!((shorter, counts.map(|(_, count)| count).sum::<u64>()), (0, 10));
    target.shutdown().unwrap();
}
