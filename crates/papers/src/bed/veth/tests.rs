//! What beds are and what they leave. Without the right to make namespaces, only the error is tested.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::*;
use crate::bed::{in_host_ns, in_target_ns};

fn bed(options: &LinkOptions) -> Option<Veth> {
    match Veth::make(options) {
        Ok(bed) => Some(bed),
        Err(error @ VethError::Refused(_)) => {
            assert!(error.to_string().contains("root"), "{error}");
            println!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The links and named namespaces of this machine.
fn machine() -> (String, String) {
    (run("ip", &["-o", "link"]).unwrap(), run("ip", &["netns", "list"]).unwrap())
}

#[test]
fn a_bed_is_as_asked_for_and_leaves_nothing() {
    let before = machine();
    for options in [
        LinkOptions::default(),
        LinkOptions { mtu: 9000, queues: 2, ..LinkOptions::default() },
        LinkOptions { gro: false, tso: true, ..LinkOptions::default() },
    ] {
        let Some(bed) = bed(&options) else { return };
        let state = bed.state(Side::Host, QueueSet::Shared).unwrap();
        assert_eq!((state.mtu, state.gro, state.tso), (options.mtu, options.gro, options.tso));
        assert_eq!(state.napi_ids.is_empty(), !options.gro, "{state}");
        assert!(bed.describe().description.contains(&format!("MTU {}", options.mtu)));
        assert_eq!(machine(), before, "the bed is seen from outside");
    }
    assert_eq!(machine(), before);
}

#[test]
fn bytes_travel_from_namespace_to_namespace() {
    let Some(bed) = bed(&LinkOptions::default()) else { return };
    let listener = in_target_ns(&bed, || TcpListener::bind((bed.target_addr(), 0))).unwrap();
    let listener = listener.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let sender = in_host_ns(&bed, || {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).unwrap();
        stream.write_all(b"over the link").unwrap();
        stream.local_addr().unwrap().ip()
    });
    assert_eq!(sender.unwrap(), IpAddr::from(bed.address(Side::Host, QueueSet::Shared)));
    let mut text = String::new();
    listener.accept().unwrap().0.read_to_string(&mut text).unwrap();
    assert_eq!(text, "over the link");
    // The address belongs to the bed alone.
    let outside = TcpStream::connect_timeout(&address, Duration::from_millis(300));
    assert!(outside.is_err(), "reached from outside the bed");
}

#[test]
fn senders_keep_to_their_queues() {
    let Some(bed) = bed(&LinkOptions::default()) else { return };
    bed.send_through(Side::Host, &[2, 3]).unwrap();
    let state = bed.state(Side::Host, QueueSet::Shared).unwrap();
    let unused: Vec<bool> =
        state.xps_cpus.iter().map(|mask| mask.chars().all(|c| c == '0' || c == ',')).collect();
    assert_eq!(unused, [true, true, false, false], "{:?}", state.xps_cpus);
    assert!(bed.send_through(Side::Host, &[4]).unwrap_err().to_string().contains("0 to 3"));
    assert!(bed.send_through(Side::Host, &[]).is_err());
}

#[test]
fn a_rate_is_set_or_its_lack_is_named() {
    let shape = Shape { bits_per_s: Some(200_000_000), ..Shape::default() };
    match Veth::make(&LinkOptions { shape, ..LinkOptions::default() }) {
        Ok(bed) => {
            let state = bed.state(Side::Target, QueueSet::Shared).unwrap();
            assert_eq!(state.qdisc, "tbf");
            assert_eq!(bed.describe().kind, "shaped");
        }
        Err(VethError::Refused(_)) => {}
        Err(error) => assert!(error.to_string().contains("200 Mbit/s"), "{error}"),
    }
    let shape = Shape { loss_percent: Some(1.0), ..Shape::default() };
    match Veth::make(&LinkOptions { shape, ..LinkOptions::default() }) {
        Ok(bed) => {
            let state = bed.state(Side::Target, QueueSet::Shared).unwrap();
            assert_eq!(state.qdisc, "netem");
        }
        Err(VethError::Refused(_)) => {}
        Err(error) => assert!(error.to_string().contains("1 % lost"), "{error}"),
    }
}

#[test]
fn what_tc_is_told() {
    let line = |shape| discipline("link0", &shape).join(" ");
    let rate = Shape { bits_per_s: Some(1_000_000_000), ..Shape::default() };
    assert_eq!(
        line(rate),
        "qdisc add dev link0 root tbf rate 1000000000bit burst 256k latency 5ms"
    );
    let delay = Shape { delay: Some(Duration::from_millis(1)), loss_percent: Some(0.1), ..rate };
    assert_eq!(
        line(delay),
        "qdisc add dev link0 root netem limit 100000 delay 1000us loss 0.1% rate 1000000000bit"
    );
}
