//! Host and target verify data whose digests engines compute: in time, late, and wrongly.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use raceline_accel::{Framework, Injection, InjectionKind, OpCode};
use raceline_bdev::RamBdev;
use raceline_bench::RwMode;
use raceline_bench::runner::{Outcome, RunConfig, run};
use raceline_dsa::EmulatedEngine;
use raceline_dsa::emulated::EmulatedConfig;
use raceline_host::HostConfig;
use raceline_proto::nvme::{HostId, NamespaceId, Nqn};
use raceline_reactor::{Backend, HugePages, Mode};
use raceline_target::{HostAccess, NamespaceConfig, SubsystemConfig, Target, TargetConfig};

const NQN: &str = "nqn.2026-01.io.example:offload";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:7d2ab6ae-8f2c-4f6e-8a55-5b6e3c1d9f21";

/// A framework that gives the digests to an emulated device.
fn emulated(config: EmulatedConfig) -> Framework {
    let engine = EmulatedEngine::start(config, 2).expect("a thread");
    let framework = Framework::new(vec![Arc::new(engine)]).expect("one engine");
    for operation in [OpCode::Crc32c, OpCode::CopyCrc32c] {
        framework.assign(operation, "dsa_emulated").expect("it can do that");
    }
    framework
}

/// Mixed reads and writes with digests for a short time, all verified.
fn verified(target: &Framework, host: &Framework, io_bytes: u32) -> Outcome {
    let nqn = Nqn::new(NQN).expect("a name");
    let config = TargetConfig {
        mode: Mode::Interrupt,
        accel: Some(target.clone()),
        ..TargetConfig::default()
    };
    let target = Target::start(config).expect("a target");
    let subsystem = SubsystemConfig {
        serial: "RLOFFLOAD".to_owned(),
        hosts: HostAccess::Any,
        ..SubsystemConfig::new(nqn.clone())
    };
    target.add_subsystem(subsystem).expect("a subsystem");
    let bdev = Arc::new(RamBdev::with_pages(8 << 20, HugePages::None).expect("memory"));
    let namespace = NamespaceConfig::new(bdev);
    target.add_namespace(&nqn, namespace).expect("a namespace");
    let address = target.add_listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port");
    let mut config =
        HostConfig::new(address, nqn, Nqn::new(HOST).expect("a name"), HostId([7; 16]));
    config.header_digest = true;
    config.data_digest = true;
    config.io_queues = 2;
    let config = RunConfig {
        host: config,
        accel: Some(host.clone()),
        nsid: NamespaceId(1),
        mode: RwMode::RandReadWrite,
        mixed_read_percent: 50,
        io_bytes,
        depth: 8,
        offset_bytes: 0,
        size_bytes: None,
        seed: u64::from(io_bytes),
        verify: true,
        rate_iops: None,
        ramp: Duration::ZERO,
        runtime: Duration::from_millis(300),
        polled: false,
        cores: Vec::new(),
        reactor_mode: Mode::Interrupt,
        backend: Backend::Auto,
    };
    let outcome = run(&config, &mut |_| true).expect("a run");
    target.shutdown().expect("the target ends");
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    assert!(outcome.verified > 0);
    outcome
}

#[test]
fn engines_compute_the_digests_of_both_ends() {
    let disorderly = EmulatedConfig {
        reorder: 8,
        fault_every: NonZeroU64::new(5),
        latency: Duration::from_micros(50),
        ..EmulatedConfig::default()
    };
    for io_bytes in [4096, 128 << 10] {
        let (target, host) = (emulated(disorderly.clone()), emulated(disorderly.clone()));
        verified(&target, &host, io_bytes);
        for (who, framework) in [("target", target), ("host", host)] {
            let statistics = framework.statistics();
            let crc32c = statistics.of(OpCode::Crc32c);
            assert!(crc32c.executed > crc32c.fallbacks, "{who}, {io_bytes}: {statistics:?}");
            assert_eq!(crc32c.failed, 0, "{who}, {io_bytes}: {statistics:?}");
        }
    }
}

/// Every eleventh digest is corrupt, at either end: the command is sent again, and in the end all data are
/// right.
#[test]
fn the_host_sends_again_what_a_bad_digest_spoils() {
    for io_bytes in [4096, 128 << 10] {
        for spoil_target in [true, false] {
            let (target, host) = (Framework::software(), Framework::software());
            let spoiled = if spoil_target { &target } else { &host };
            for operation in [OpCode::Crc32c, OpCode::CopyCrc32c] {
                let (kind, count) = (InjectionKind::Corrupt, u64::MAX);
                spoiled.inject(operation, Some(Injection { kind, interval: 11, count }));
            }
            let outcome = verified(&target, &host, io_bytes);
            assert!(
                outcome.cost.counts.digest_retries > 0,
                "{io_bytes} bytes, target {spoil_target}"
            );
        }
    }
}
