//! Peers that break the rules, go silent or vanish: each gets what the specification says, and
//! no other host notices.
//!
//! Over TCP only: the peers write bytes by hand. Those over RDMA are in `rdma/bad_input.rs`, and Connects that are refused
//! over either transport in `suites/connecting.rs`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{
    PATIENCE, RawHost, Wants, block_sqe, config, dial_from, eventually, namespace, nqn, pattern,
    ram,
};
use common::{start, status};
use raceline_bdev::{DelayBdev, Delays};
use raceline_proto::nvme::opcode::{admin, fabrics, io};
use raceline_proto::nvme::{Direction, Sqe, Status};
use raceline_proto::tcp::Fes;
use raceline_target::{Target, TargetConfig};

const BS: u32 = 512;

/// A host that must not notice what happens to others.
struct Witness {
    _admin: RawHost,
    queue: RawHost,
    round: u64,
}

impl Witness {
    fn new(address: SocketAddr) -> Self {
        let (admin, cntlid) = RawHost::admin(address, Wants::default());
        let queue = RawHost::io(address, cntlid, 1, Wants::default());
        Self { _admin: admin, queue, round: 0 }
    }

    fn check(&mut self) {
        self.round += 1;
        let data = pattern(self.round, 16 << 10);
        assert!(status(&self.queue.write(1, 512, &data, BS)).is_success());
        assert_eq!(self.queue.read(1, 512, 32, BS).data, data);
    }
}

fn settled(target: &Target, controllers: usize, connections: usize) {
    eventually("everything of the others is gone", || {
        let stats = target.stats();
        stats.controllers == controllers
            && stats.connections.iter().sum::<usize>() == connections
            && stats.pre_connect == 0
    });
}

/// Bytes to send after a given point of the protocol, and the TermReq they must bring.
struct Offence {
    name: &'static str,
    after: After,
    bytes: Vec<u8>,
    fes: Fes,
    fei: u32,
}

#[derive(Clone, Copy, PartialEq)]
enum After {
    Accept,
    IcResp,
    IoConnect,
}

fn header(pdu_type: u8, flags: u8, hlen: u8, pdo: u8, plen: u32) -> Vec<u8> {
    let mut bytes = vec![pdu_type, flags, hlen, pdo];
    bytes.extend_from_slice(&plen.to_le_bytes());
    bytes.resize(usize::from(hlen).max(8), 0);
    bytes
}

fn offences() -> Vec<Offence> {
    use After::{Accept, IcResp, IoConnect};
    let offence = |name, after, bytes, fes, fei| Offence { name, after, bytes, fes, fei };
    let with = |mut bytes: Vec<u8>, at: usize, value: &[u8]| {
        bytes[at..at + value.len()].copy_from_slice(value);
        bytes
    };
    let ic_req = header(0, 0, 128, 0, 128);
    let h2c = |ttag: u16| with(header(6, 4, 24, 24, 24 + 512), 10, &ttag.to_le_bytes());
    vec![
        offence("garbage", Accept, b"GET / HTTP/1.1\r\n\r\n".to_vec(), Fes::SequenceError, 0),
        offence("capsule first", Accept, header(4, 0, 72, 0, 72), Fes::SequenceError, 0),
        offence("PFV", Accept, with(ic_req.clone(), 8, &[1]), Fes::InvalidHeaderField, 8),
        offence("HPDA", Accept, with(ic_req.clone(), 10, &[32]), Fes::InvalidHeaderField, 10),
        offence("ICReq twice", IcResp, ic_req, Fes::SequenceError, 0),
        offence("type 08h", IoConnect, header(8, 0, 24, 0, 24), Fes::InvalidHeaderField, 0),
        offence("C2HData", IoConnect, header(7, 0, 24, 24, 536), Fes::InvalidHeaderField, 0),
        offence("HLEN", IoConnect, header(4, 0, 71, 0, 72), Fes::InvalidHeaderField, 2),
        offence("PLEN 0", IoConnect, header(4, 0, 72, 0, 0), Fes::InvalidHeaderField, 4),
        offence("no SGL", IoConnect, header(4, 0, 72, 72, u32::MAX), Fes::UnsupportedParameter, 47),
        offence(
            "no R2T",
            IoConnect,
            with(h2c(u16::MAX), 16, &512u32.to_le_bytes()),
            Fes::SequenceError,
            10,
        ),
    ]
}

fn bring_to(address: SocketAddr, after: After) -> (RawHost, Option<RawHost>) {
    match after {
        After::Accept => (RawHost::dial(address, Wants::default()), None),
        After::IcResp => (RawHost::open(address, Wants::default()), None),
        After::IoConnect => {
            let (admin, cntlid) = RawHost::admin(address, Wants::default());
            (RawHost::io(address, cntlid, 1, Wants::default()), Some(admin))
        }
    }
}

/// The TermReq, read by hand: the queue of a host that has not sent ICReq takes nothing.
fn read_term_req(stream: &mut TcpStream) -> (u16, u32) {
    use std::io::Read;
    let mut bytes = [0; 24];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!((bytes[0], bytes[2]), (3, 24), "C2HTermReq");
    let plen = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    assert!((24..=152).contains(&plen), "PLEN {plen}");
    stream.read_exact(&mut vec![0; plen as usize - 24]).unwrap();
    let fes = u16::from_le_bytes([bytes[8], bytes[9]]);
    (fes, u32::from_le_bytes([bytes[10], bytes[11], bytes[12], bytes[13]]))
}

#[test]
fn each_violation_gets_its_term_req_and_disturbs_nobody() {
    let (target, address) = start(config(2), vec![ram("1M")]);
    let mut witness = Witness::new(address);
    for offence in offences() {
        let (mut host, admin) = bring_to(address, offence.after);
        host.stream.write_all(&offence.bytes).unwrap();
        let (fes, fei) = read_term_req(&mut host.stream);
        assert_eq!((fes, fei), (offence.fes.to_wire(), offence.fei), "{}", offence.name);
        witness.check();
        drop((host, admin));
    }
    settled(&target, 1, 2);
    target.shutdown().unwrap();
}

#[test]
fn a_host_that_does_not_close_after_a_term_req_is_closed() {
    let (target, address) = start(config(1), vec![ram("1M")]);
    let mut host = RawHost::dial(address, Wants::default());
    let start = Instant::now();
    host.stream.write_all(b"\xff\xff\xff\xff\xff\xff\xff\xff").unwrap();
    read_term_req(&mut host.stream);
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut host.stream, &mut rest).unwrap();
    assert!(rest.is_empty(), "nothing follows a TermReq");
    let waited = start.elapsed();
    assert!(waited > Duration::from_secs(4) && waited < Duration::from_secs(30), "{waited:?}");
    settled(&target, 0, 0);
    target.shutdown().unwrap();
}

#[test]
fn silence_before_connect_has_deadlines() {
    let mut config = config(1);
    config.pre_connect.ic_req = Duration::from_secs(2);
    config.pre_connect.connect = Duration::from_secs(4);
    let (target, address) = start(config, vec![ram("1M")]);
    for (after, least) in [(After::Accept, 1900), (After::IcResp, 3900)] {
        let start = Instant::now();
        let (mut host, _) = bring_to(address, after);
        // The host still misses the deadline when it sends one byte at a time.
        host.stream.write_all(&[0]).unwrap();
        let mut rest = Vec::new();
        let _ = std::io::Read::read_to_end(&mut host.stream, &mut rest);
        let waited = start.elapsed();
        assert!(waited >= Duration::from_millis(least) && waited < PATIENCE, "{waited:?}");
    }
    settled(&target, 0, 0);
    target.shutdown().unwrap();
}

#[test]
fn a_crowd_of_idle_sockets_keeps_no_real_host_out() {
    let (target, address) = start(config(2), vec![ram("1M")]);
    let crowd: Vec<TcpStream> =
        (0..2000).filter_map(|_| dial_from([127, 0, 0, 66], address).ok()).collect();
    assert!(crowd.len() > 1900, "only {} sockets", crowd.len());
    eventually("the crowd is capped", || {
        let stats = target.stats();
        let open = stats.connections.iter().sum::<usize>();
        open <= 128 && stats.pre_connect > 100
    });
    let start = Instant::now();
    let mut witness = Witness::new(address);
    witness.check();
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
    drop(crowd);
    settled(&target, 1, 2);
    target.shutdown().unwrap();
}

fn slow(millis: u64) -> raceline_bdev::SharedBdev {
    let delays = Delays::all(Duration::from_millis(millis));
    Arc::new(DelayBdev::new(ram("1M"), delays))
}

#[test]
fn a_queue_that_is_overrun_is_ended_and_an_identifier_in_use_is_refused() {
    let (target, address) = start(config(1), vec![slow(300)]);
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    // Written by hand: the queue end of a well-behaved host would not send this.
    let capsule = |cid: u16| {
        let sqe = Sqe {
            flags: Sqe::PSDT_SGL,
            cid: cid.into(),
            sgl1: raceline_proto::nvme::SglDescriptor::transport(BS),
            ..block_sqe(io::READ, 1, 0, 1)
        };
        let mut bytes = header(4, 0, 72, 0, 72);
        bytes[8..72].copy_from_slice(zerocopy::IntoBytes::as_bytes(&sqe));
        bytes
    };
    queue.stream.write_all(&[capsule(5), capsule(5)].concat()).unwrap();
    let mut resp = [0; 24];
    std::io::Read::read_exact(&mut queue.stream, &mut resp).unwrap();
    assert_eq!(resp[0], 5, "CapsuleResp");
    let word = u16::from_le_bytes([resp[22], resp[23]]);
    assert!(Status::from_wire(word).same_code(Status::CID_CONFLICT));

    let mut queue = RawHost::io(address, cntlid, 2, Wants::default());
    let flood: Vec<u8> = (0..129).flat_map(capsule).collect();
    queue.stream.write_all(&flood).unwrap();
    assert_eq!(read_term_req(&mut queue.stream), (2, 0));
    target.shutdown().unwrap();
}

#[test]
fn a_command_takes_the_place_of_an_event_request_with_its_identifier() {
    let (target, address) = start(config(1), vec![ram("1M")]);
    let (mut admin, _) = RawHost::admin(address, Wants::default());
    // Written by hand: a host that has forgotten its requests does this before it disconnects.
    let mut exchange = |capsules: &[(u16, Sqe)], answers: usize| -> Vec<(u16, Status, u32)> {
        for &(cid, sqe) in capsules {
            let sgl1 = raceline_proto::nvme::SglDescriptor::transport(0);
            let sqe = Sqe { flags: Sqe::PSDT_SGL, cid: cid.into(), sgl1, ..sqe };
            let mut bytes = header(4, 0, 72, 0, 72);
            bytes[8..72].copy_from_slice(zerocopy::IntoBytes::as_bytes(&sqe));
            admin.stream.write_all(&bytes).unwrap();
        }
        let mut responses = vec![[0; 24]; answers];
        for response in &mut responses {
            std::io::Read::read_exact(&mut admin.stream, response).unwrap();
            assert_eq!(response[0], 5, "CapsuleResp");
        }
        let half = |r: &[u8; 24], at| u16::from_le_bytes([r[at], r[at + 1]]);
        let word = |r: &[u8; 24]| u32::from(half(r, 8)) | u32::from(half(r, 10)) << 16;
        responses.iter().map(|r| (half(r, 20), Status::from_wire(half(r, 22)), word(r))).collect()
    };
    let set_events =
        Sqe { opc: admin::SET_FEATURES, cdw10: 0x0b.into(), cdw11: 0x100.into(), ..Sqe::default() };
    let aer = Sqe { opc: admin::ASYNC_EVENT_REQUEST, ..Sqe::default() };
    let csts = Sqe {
        opc: fabrics::OPCODE,
        nsid: u32::from(fabrics::PROPERTY_GET).into(),
        cdw11: 0x1c.into(),
        ..Sqe::default()
    };
    assert_eq!(exchange(&[(5, aer), (5, csts)], 1), [(5, Status::SUCCESS, 1)]);
    // Another request may take the freed place, too. The place of the first request is free again, so none
    // of these exceeds the limit.
    let requests = [(6, aer), (6, aer), (7, aer), (8, aer), (9, aer)];
    assert_eq!(exchange(&requests, 0), []);
    assert_eq!(exchange(&[(6, set_events)], 1), [(6, Status::SUCCESS, 0)]);
    target.add_namespace(&nqn(), namespace(ram("1M"))).unwrap();
    assert_eq!(exchange(&[], 1), [(7, Status::SUCCESS, 0x0004_0002)], "6 is forgotten");
    target.shutdown().unwrap();
}

/// How far a connection gets before it vanishes.
fn vanish(address: SocketAddr, step: u32) {
    let mut host = RawHost::dial(address, Wants::default());
    if step == 0 {
        return;
    }
    let mut out = Vec::new();
    host.queue.ic_req(&mut out);
    let cut = if step == 1 { 64 } else { out.len() };
    host.stream.write_all(&out[..cut]).unwrap();
    if step <= 2 {
        return;
    }
    drop(host);
    let (admin, cntlid) = RawHost::admin(address, Wants::default());
    if step == 3 {
        return;
    }
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    if step == 4 {
        drop(admin);
        queue.until_closed();
        return;
    }
    let read = block_sqe(io::READ, 1, 0, 8);
    let write = block_sqe(io::WRITE, 1, 0, 128);
    for _ in 0..step.min(20) {
        queue.submit(read, Direction::ControllerToHost, 8 * BS);
        queue.submit(write, Direction::HostToController, 128 * BS);
    }
    if step.is_multiple_of(2) {
        // Reset instead of a clean end.
        let _ = socket2::SockRef::from(&queue.stream).set_linger(Some(Duration::ZERO));
    }
}

#[test]
fn a_storm_of_vanishing_hosts_leaves_nothing_behind() {
    for backend in [raceline_reactor::Backend::Uring, raceline_reactor::Backend::Epoll] {
        let config = TargetConfig {
            backend,
            large_buffers_per_core: 8,
            small_buffers_per_core: 8,
            ..config(2)
        };
        let (target, address) = start(config, vec![slow(5)]);
        let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let mut witness = Witness::new(address);
        witness.check();
        let before = descriptors();
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                std::thread::spawn(move || {
                    for step in 0..60 {
                        vanish(address, (step + thread) % 12);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        settled(&target, 1, 2);
        // Leaked buffers would be missing now: there are 16 in all, and more commands than that.
        for _ in 0..4 {
            witness.check();
        }
        eventually("all descriptors are back", || descriptors() <= before);
        target.shutdown().unwrap();
    }
}
