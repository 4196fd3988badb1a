//! Logs that are taken over: numbers, addresses, and which subsystems are left alone.

mod rdma;

use std::net::IpAddr;

use raceline_host::RdmaDevices;
use raceline_host::transport::{ProviderError, WaitingDevice};
use raceline_proto::host::RdmaSubtype;
use raceline_proto::nvme::HostId;

use super::*;

fn record(nqn: &str, address: &str) -> DiscoveryRecord {
    let (traddr, trsvcid) = address.rsplit_once(':').unwrap();
    DiscoveryRecord {
        trtype: TRTYPE_TCP,
        adrfam: 1,
        subtype: if nqn == "referral" { 1 } else { SUBTYPE_NVM },
        treq: 0,
        portid: 0,
        cntlid: 0xffff,
        asqsz: 32,
        eflags: 0,
        trsvcid: trsvcid.to_owned(),
        subnqn: format!("nqn.2026-01.io.raceline:{nqn}"),
        traddr: traddr.to_owned(),
        sectype: 0,
        rdma: None,
    }
}

/// RDMA devices of a machine that has some, or none.
#[derive(Debug)]
struct Devices(bool);

impl RdmaDevices for Devices {
    fn open(
        &self,
        target: SocketAddr,
        _source: Option<IpAddr>,
        _completions: u32,
    ) -> Result<Box<dyn WaitingDevice>, ProviderError> {
        Err(ProviderError::new("a test opens none", target.to_string()))
    }

    fn are_there(&self) -> bool {
        self.0
    }
}

fn discovery() -> Arc<Discovery> {
    discovery_with(false)
}

fn discovery_with(rdma: bool) -> Arc<Discovery> {
    let nqn = |name: &str| Nqn::new(&format!("nqn.2026-01.io.raceline:{name}")).unwrap();
    let address = "127.0.0.1:8009".parse().unwrap();
    let mut config = HostConfig::new(address, Nqn::discovery(), nqn("host"), HostId([1; 16]));
    config.rdma_devices = Arc::new(Devices(rdma));
    Discovery::new("D", Origin::Client, config, 128, vec![nqn("old")])
}

fn take(discovery: &Discovery, records: Vec<DiscoveryRecord>) -> (bool, Vec<String>) {
    let is_new = discovery.take(&DiscoveryLog { generation: 1, records });
    let listed = discovery.listed().into_iter();
    let names = listed.map(|it| format!("{} {}", it.name, it.nqn.rsplit_once(':').unwrap().1));
    (is_new, names.collect())
}

#[test]
fn a_subsystem_keeps_its_number() {
    let discovery = discovery();
    let (b, a) = (record("b", "127.0.0.1:1"), record("a", "127.0.0.1:1"));
    assert_eq!(take(&discovery, vec![]), (false, vec![]));
    // In the order of the log; number 0 is reserved for the subsystem that was here before.
    let both = vec!["D1 b".to_owned(), "D2 a".to_owned()];
    assert_eq!(take(&discovery, vec![b.clone(), a.clone()]), (true, both.clone()));
    assert_eq!(take(&discovery, vec![a.clone()]), (false, vec!["D2 a".to_owned()]));
    assert_eq!(take(&discovery, vec![a, b.clone()]), (false, both));
    let old = record("old", "127.0.0.1:2");
    assert_eq!(take(&discovery, vec![b, old]).1, ["D0 old", "D1 b"]);
    assert!(discovery.makes("D2n1") && !discovery.makes("D02n1") && !discovery.makes("Dn1"));
    let reason = discovery.why_missing("D2").unwrap();
    assert_eq!(reason, "discovery service D lists no nqn.2026-01.io.raceline:a");
    assert_eq!(discovery.why_missing("E0"), None);
}

#[test]
fn a_log_may_hold_anything() {
    let discovery = discovery();
    let fc = DiscoveryRecord { trtype: 2, ..record("fc", "127.0.0.1:1") };
    let tls = DiscoveryRecord { treq: 1, ..record("tls", "127.0.0.1:1") };
    let concat = DiscoveryRecord { treq: 2, sectype: 2, ..record("concat", "127.0.0.1:1") };
    let over_rdma = |name, qptype| {
        let rdma = Some(RdmaSubtype { qptype, prtype: 1, cms: 1 });
        DiscoveryRecord { trtype: TRTYPE_RDMA, rdma, ..record(name, "127.0.0.1:1") }
    };
    let error = usable(&over_rdma("ud", 2)).unwrap_err();
    assert!(error.contains("queue pairs of type 2") && !error.contains("secure"), "{error}");
    assert!(usable(&over_rdma("rc", 1)).is_ok());
    let name = DiscoveryRecord { subnqn: String::new(), ..record("x", "127.0.0.1:1") };
    let records = vec![
        fc,
        tls,
        concat,
        name,
        over_rdma("ud", 2),
        record("host", "localhost:1"),
        record("port", "127.0.0.1:65536"),
        record("good", "127.0.0.1:1"),
        record("good", "127.0.0.1:2"),
        record("referral", "127.0.0.1:8010"),
        record("referral", "nowhere:8010"),
    ];
    assert_eq!(take(&discovery, records), (true, vec!["D1 good".to_owned()]));
    assert_eq!(discovery.lock().found[1].addresses.len(), 2);
    let referral: SocketAddr = "127.0.0.1:8010".parse().unwrap();
    assert_eq!(discovery.referrals(), [Endpoint::from(referral)]);
    // More subsystems than there are numbers: the first get one, and no more ever do.
    let many = |from: usize| {
        (from..from + MAX_SUBSYSTEMS).map(|n| record(&format!("n{n}"), "127.0.0.1:1"))
    };
    assert_eq!(take(&discovery, many(0).collect()).1.len(), MAX_SUBSYSTEMS - 2);
    assert_eq!(take(&discovery, many(MAX_SUBSYSTEMS).collect()), (false, vec![]));
    assert_eq!(discovery.lock().found.len(), MAX_SUBSYSTEMS);
}

#[test]
fn a_place_is_an_address_and_a_transport() {
    let rdma = |nqn, address| DiscoveryRecord { trtype: 1, ..record(nqn, address) };
    let records = || {
        vec![
            record("both", "127.0.0.1:4420"),
            rdma("both", "127.0.0.1:4420"),
            DiscoveryRecord { adrfam: 2, ..rdma("fast", "::1:4420") },
            rdma("referral", "127.0.0.1:8009"),
        ]
    };
    let discovery = discovery_with(true);
    assert_eq!(take(&discovery, records()).1, ["D1 both", "D2 fast"]);
    let shown = |number: usize| {
        let found = &discovery.lock().found[number];
        found.addresses.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(shown(1), ["127.0.0.1:4420", "rdma://127.0.0.1:4420"]);
    assert_eq!(shown(2), ["rdma://[::1]:4420"]);
    let referral = discovery.referrals()[0];
    assert_eq!(referral.to_string(), "rdma://127.0.0.1:8009");
    assert_ne!(referral, discovery.address, "the service itself is reached by TCP");
    let source = Some("127.0.0.2".parse().unwrap());
    let config = HostConfig { source, ..discovery.subsystem.clone() };
    assert_eq!(Endpoint::of(&referral.reached_by(config.clone())), referral);
    assert_eq!(referral.reached_by(config.clone()).source, None);
    assert_eq!(discovery.address.reached_by(config).source, source);
    // Without a device, what is offered over RDMA is as if it were not there.
    let discovery = discovery_with(false);
    assert_eq!(take(&discovery, records()).1, ["D1 both"]);
    assert_eq!(discovery.lock().found[1].addresses.len(), 1);
    assert_eq!(discovery.referrals(), []);
}
