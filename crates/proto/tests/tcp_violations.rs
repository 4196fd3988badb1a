//! One case per violation of the protocol: FES, FEI, and that the queue is closed after it.
#![allow(clippy::unwrap_used)] // a test

mod tcp_support;

use std::collections::HashSet;

use raceline_proto::nvme::{Direction, SglDescriptor, Sqe};
use raceline_proto::tcp::{
    ControllerQueue, ControllerQueueConfig, Event, FatalError, HostEvent, HostQueue,
    HostQueueConfig, Violation,
};
use tcp_support::{READ, WRITE, controller_config, host_config, sqe};
use zerocopy::IntoBytes;

const HDGSTF: u8 = 1;
const DDGSTF: u8 = 2;
const LAST: u8 = 4;
const SUCCESS: u8 = 8;

/// CommandIds that the host has sent: a read and a write of 8192 bytes, a write with its data in
/// the capsule, a Flush.
const READ_CID: u16 = 1;
const WRITE_CID: u16 = 2;
const CAPSULE_CID: u16 = 3;
const FLUSH_CID: u16 = 4;
/// The command that the controller has sent an R2T for, and its tag: slot 6 of 8, first use.
const R2T_CID: u16 = 9;
const R2T_TTAG: u16 = 14;

/// A PDU from the values of its common header and the rest.
fn pdu(pdu_type: u8, flags: u8, hlen: u8, pdo: u8, plen: u32, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![pdu_type, flags, hlen, pdo];
    bytes.extend(plen.to_le_bytes());
    bytes.extend(rest);
    bytes
}

fn ic(pdu_type: u8, pfv: u16, pda: u8, dgst: u8, last: u32) -> Vec<u8> {
    let mut bytes = pdu(pdu_type, 0, 128, 0, 128, &pfv.to_le_bytes());
    bytes.extend([pda, dgst]);
    bytes.extend(last.to_le_bytes());
    bytes.resize(128, 0);
    bytes
}

fn capsule(pdo: u8, plen: u32, sqe: &Sqe) -> Vec<u8> {
    pdu(4, 0, 72, pdo, plen, sqe.as_bytes())
}

fn in_capsule(opc: u8, address: u64, length: u32) -> Sqe {
    let mut sqe = sqe(opc, 7);
    sqe.sgl1 = SglDescriptor { address: address.into(), ..SglDescriptor::in_capsule(length) };
    sqe
}

/// H2CData, C2HData or R2T.
fn data_pdu(head: (u8, u8, u8, u32), cccid: u16, ttag: u16, offset: u32, len: u32) -> Vec<u8> {
    let (pdu_type, flags, pdo, plen) = head;
    let mut bytes = pdu(pdu_type, flags, 24, pdo, plen, &cccid.to_le_bytes());
    bytes.extend(ttag.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes.resize(24, 0);
    bytes
}

fn h2c(flags: u8, cccid: u16, ttag: u16, offset: u32, len: u32) -> Vec<u8> {
    data_pdu((6, flags, 24, len.wrapping_add(24)), cccid, ttag, offset, len)
}

fn c2h(flags: u8, cccid: u16, offset: u32, len: u32) -> Vec<u8> {
    data_pdu((7, flags, 24, len.wrapping_add(24)), cccid, 0, offset, len)
}

fn r2t(cccid: u16, offset: u32, len: u32) -> Vec<u8> {
    data_pdu((9, 0, 0, 24), cccid, 0x77, offset, len)
}

fn response(cid: u16) -> Vec<u8> {
    let mut bytes = pdu(5, 0, 24, 0, 24, &[0; 16]);
    bytes[20..22].copy_from_slice(&cid.to_le_bytes());
    bytes
}

fn term_req(pdu_type: u8, fes: u16, plen: u32) -> Vec<u8> {
    let mut bytes = pdu(pdu_type, 0, 24, 0, plen, &fes.to_le_bytes());
    bytes.resize(152, 0);
    bytes
}

/// Which digests the connection has, and whether it is past ICReq and ICResp.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    New,
    Plain,
    Hdgst,
    Ddgst,
}

use Start::{Ddgst, Hdgst, New, Plain};

impl Start {
    fn dgst(self) -> u8 {
        match self {
            New | Plain => 0,
            Hdgst => 1,
            Ddgst => 2,
        }
    }
}

/// A controller queue with an R2T out for 8192 bytes from 4096.
fn controller(start: Start) -> ControllerQueue {
    let config = ControllerQueueConfig { in_capsule_bytes: 512, ..controller_config() };
    let mut queue = ControllerQueue::new(config);
    if start != New {
        let request = ic(0, 0, 0, start.dgst(), 0);
        assert!(matches!(queue.receive(&mut &request[..]), Ok(Some(Event::Connected(_)))));
        queue.ic_resp(&mut Vec::new());
        let mut out = Vec::new();
        queue.r2t(6, raceline_proto::nvme::CommandId(R2T_CID), 4096, 8192, &mut out);
        assert_eq!(out[10..12], R2T_TTAG.to_le_bytes());
    }
    queue
}

/// A host queue with its commands out.
fn host(start: Start) -> HostQueue {
    let (hdgst, ddgst) = (start == Hdgst, start == Ddgst);
    let config = HostQueueConfig { hpda: 1, hdgst, ddgst, maxr2t: 1, slots: 16 };
    let mut queue = HostQueue::new(HostQueueConfig { ..config });
    let out = &mut Vec::new();
    queue.ic_req(out);
    if start != New {
        let response = ic(1, 0, 0, start.dgst(), 4096);
        assert!(matches!(queue.receive(&mut &response[..]), Ok(Some(HostEvent::Connected(_)))));
        queue.command(&sqe(READ, READ_CID), Direction::ControllerToHost, 8192, false, out);
        queue.command(&sqe(WRITE, WRITE_CID), Direction::HostToController, 8192, false, out);
        queue.command(&sqe(WRITE, CAPSULE_CID), Direction::HostToController, 512, true, out);
        queue.command(&sqe(0, FLUSH_CID), Direction::None, 0, false, out);
    }
    queue
}

/// Either end.
enum End {
    Controller(ControllerQueue),
    Host(HostQueue),
}

impl End {
    /// Feeds pieces; gives the first error. Payload is ignored.
    fn feed(&mut self, bytes: &[u8], piece: usize) -> Result<(), FatalError> {
        for mut input in bytes.chunks(piece) {
            match self {
                Self::Controller(queue) => while queue.receive(&mut input)?.is_some() {},
                Self::Host(queue) => while queue.receive(&mut input)?.is_some() {},
            }
        }
        Ok(())
    }

    fn term_req(&mut self, error: &FatalError, out: &mut Vec<u8>) {
        match self {
            Self::Controller(queue) => queue.term_req(error, out),
            Self::Host(queue) => queue.term_req(error, out),
        }
    }

    fn is_closing(&self) -> bool {
        match self {
            Self::Controller(queue) => queue.is_closing(),
            Self::Host(queue) => queue.is_closing(),
        }
    }
}

struct Case {
    name: &'static str,
    start: Start,
    bytes: Vec<u8>,
    fes: u16,
    fei: u32,
}

fn case(name: &'static str, start: Start, bytes: Vec<u8>, fes: u16, fei: u32) -> Case {
    Case { name, start, bytes, fes, fei }
}

/// Runs the cases; gives the violations seen.
fn run(cases: Vec<Case>, term_type: u8, end: impl Fn(Start) -> End) -> HashSet<Violation> {
    let mut seen = HashSet::new();
    for Case { name, start, bytes, fes, fei } in cases {
        let mut first = None;
        for piece in [usize::MAX, 1, 3, 8] {
            let mut end = end(start);
            let error = end.feed(&bytes, piece).expect_err(name);
            // FEI of a header digest error is the digest.
            let fei = if fes == 3 { error.fei() } else { fei };
            assert_eq!((error.fes().to_wire(), error.fei()), (fes, fei), "{name}: {error}");
            assert_eq!(first.get_or_insert_with(|| error.clone()), &error, "{name}: {piece}");
            assert!(!error.header().is_empty() && bytes.starts_with(error.header()), "{name}");
            assert!(end.is_closing(), "{name}");

            // Closed: valid or not, no input is read any more.
            end.feed(&bytes, usize::MAX).expect("input is thrown away");
            let mut out = Vec::new();
            end.term_req(&error, &mut out);
            assert_eq!(out[..2], [term_type, 0], "{name}");
            assert_eq!(out[8..10], fes.to_le_bytes(), "{name}");
            assert_eq!(out[10..14], fei.to_le_bytes(), "{name}");
            assert_eq!(&out[24..], error.header(), "{name}");
            end.term_req(&error, &mut out);
            assert_eq!(out.len(), 24 + error.header().len(), "{name}: one TermReq only");
            seen.insert(error.violation());
        }
    }
    seen
}

#[expect(clippy::too_many_lines, reason = "one table")]
fn controller_cases() -> Vec<Case> {
    let flush = sqe(0, 7);
    let mut sgl_5a = sqe(WRITE, 7);
    sgl_5a.sgl1 = SglDescriptor::transport(512);
    let good_512 = in_capsule(WRITE, 0, 512);
    let mut bad_digest = pdu(4, HDGSTF, 72, 0, 76, flush.as_bytes());
    bad_digest.extend([1, 2, 3, 4]);
    let with_flags = |mut bytes: Vec<u8>, flags| {
        bytes[1] = flags;
        bytes
    };
    let h2c_h = |pdo, plen| data_pdu((6, HDGSTF | LAST, pdo, plen), R2T_CID, R2T_TTAG, 4096, 4096);
    vec![
        // Type and state.
        case("capsule first", New, capsule(0, 72, &flush), 2, 0),
        case("TermReq first", New, term_req(2, 1, 32), 2, 0),
        case("garbage first", New, b"GET / HTTP/1.1\r\n\r\n".to_vec(), 2, 0),
        case("second ICReq", Plain, ic(0, 0, 0, 0, 0), 2, 0),
        case("reserved type", Plain, pdu(8, 0, 24, 0, 24, &[]), 1, 0),
        case("type FFh", Plain, pdu(0xff, 0xff, 0xff, 0xff, u32::MAX, &[]), 1, 0),
        case("ICResp to controller", Plain, ic(1, 0, 0, 0, 4096), 1, 0),
        case("C2HTermReq to controller", Plain, term_req(3, 1, 32), 1, 0),
        case("CapsuleResp to controller", Plain, response(1), 1, 0),
        case("C2HData to controller", Plain, c2h(LAST, 1, 0, 512), 1, 0),
        case("R2T to controller", Plain, r2t(1, 0, 512), 1, 0),
        // HLEN.
        case("ICReq HLEN 127", New, pdu(0, 0, 127, 0, 128, &[]), 1, 2),
        case("capsule HLEN 0", Plain, pdu(4, 0, 0, 0, 72, &[]), 1, 2),
        case("capsule HLEN 255", Plain, pdu(4, 0, 255, 0, 255, &[]), 1, 2),
        case("H2CData HLEN 72", Plain, pdu(6, 0, 72, 72, 76, &[]), 1, 2),
        case("TermReq HLEN 25", Plain, pdu(2, 0, 25, 0, 32, &[]), 1, 2),
        // FLAGS against the negotiation.
        case("HDGSTF without HDGST", Plain, pdu(4, HDGSTF, 72, 0, 76, &[]), 1, 1),
        case("no HDGSTF with HDGST", Hdgst, capsule(0, 72, &flush), 1, 1),
        case("DDGSTF without DDGST", Plain, pdu(6, DDGSTF, 24, 24, 532, &[]), 1, 1),
        case("no DDGSTF with DDGST", Ddgst, h2c(0, R2T_CID, R2T_TTAG, 4096, 512), 1, 1),
        case("no DDGSTF, capsule", Ddgst, capsule(72, 584, &good_512), 1, 1),
        // PDO.
        case("capsule PDO 0", Plain, capsule(0, 584, &good_512), 1, 3),
        case("capsule PDO in header", Plain, capsule(68, 580, &good_512), 1, 3),
        case("capsule PDO 74", Plain, capsule(74, 586, &good_512), 1, 3),
        case("capsule PDO 132", Plain, capsule(132, 644, &good_512), 1, 3),
        case("capsule PDO 252", Plain, capsule(252, 764, &good_512), 1, 3),
        case("H2CData PDO 20", Plain, pdu(6, 0, 24, 20, 532, &[]), 1, 3),
        case("H2CData PDO 25", Plain, pdu(6, 0, 24, 25, 537, &[]), 1, 3),
        case("H2CData PDO in HDGST", Hdgst, h2c_h(24, 4120), 1, 3),
        // PLEN.
        case("ICReq PLEN 127", New, pdu(0, 0, 128, 0, 127, &[]), 1, 4),
        case("ICReq PLEN 132", New, pdu(0, 0, 128, 0, 132, &[]), 1, 4),
        case("ICReq PLEN max", New, pdu(0, 0, 128, 0, u32::MAX, &[]), 1, 4),
        case("TermReq PLEN 23", Plain, term_req(2, 1, 23), 1, 4),
        case("TermReq PLEN 153", Plain, term_req(2, 1, 153), 1, 4),
        case("TermReq PLEN max", Plain, term_req(2, 1, u32::MAX), 1, 4),
        case("capsule PLEN 0", Plain, capsule(0, 0, &flush), 1, 4),
        case("capsule PLEN 71", Plain, capsule(0, 71, &flush), 1, 4),
        case("capsule PLEN 72 with HDGST", Hdgst, pdu(4, HDGSTF, 72, 0, 72, &[]), 1, 4),
        case("capsule PLEN below PDO", Plain, capsule(128, 100, &good_512), 1, 4),
        case("capsule PLEN at PDO", Plain, capsule(128, 128, &good_512), 1, 4),
        case("capsule only DDGST", Ddgst, pdu(4, DDGSTF, 72, 72, 76, good_512.as_bytes()), 1, 4),
        case("H2CData PLEN 0", Plain, pdu(6, 0, 24, 24, 0, &[]), 1, 4),
        case("H2CData PLEN 23", Plain, pdu(6, 0, 24, 24, 23, &[]), 1, 4),
        case("H2CData PLEN below PDO", Plain, pdu(6, 0, 24, 128, 127, &[]), 1, 4),
        case("H2CData no DDGST", Ddgst, pdu(6, DDGSTF, 24, 24, 27, &[]), 1, 4),
        case(
            "H2CData DATAL below PLEN",
            Plain,
            data_pdu((6, 0, 24, 1024), R2T_CID, R2T_TTAG, 4096, 512),
            1,
            4,
        ),
        case(
            "H2CData DATAL max",
            Plain,
            data_pdu((6, 0, 24, 23_u32.wrapping_add(24)), R2T_CID, R2T_TTAG, 4096, u32::MAX),
            1,
            4,
        ),
        // HDGST.
        case("HDGST wrong", Hdgst, bad_digest, 3, 0),
        // ICReq.
        case("PFV 1", New, ic(0, 1, 0, 0, 0), 1, 8),
        case("PFV 256", New, ic(0, 256, 0, 0, 0), 1, 8),
        case("HPDA 32", New, ic(0, 0, 32, 0, 0), 1, 10),
        case("HPDA 255", New, ic(0, 0, 255, 0, 0), 1, 10),
        // H2CTermReq.
        case("FES 0", Plain, term_req(2, 0, 32), 1, 8),
        case("FES 7", Plain, term_req(2, 7, 152), 1, 8),
        // CapsuleCmd.
        case("SGL 5Ah with data", Plain, capsule(72, 584, &sgl_5a), 6, 47),
        case("in-capsule offset 1", Plain, capsule(72, 584, &in_capsule(WRITE, 1, 512)), 6, 32),
        case(
            "in-capsule offset max",
            Plain,
            capsule(72, 584, &in_capsule(WRITE, u64::MAX, 512)),
            6,
            32,
        ),
        case("SGL longer than data", Plain, capsule(72, 584, &in_capsule(WRITE, 0, 508)), 1, 4),
        case("SGL shorter than data", Plain, capsule(72, 580, &good_512), 1, 4),
        case("SGL without data", Plain, capsule(0, 72, &good_512), 1, 4),
        case("data far longer", Plain, capsule(72, u32::MAX, &good_512), 1, 4),
        case("I/O capsule", Plain, capsule(72, 588, &in_capsule(WRITE, 0, 516)), 5, 0),
        case("Fabrics capsule", Plain, capsule(72, 8268, &in_capsule(0x7f, 0, 8196)), 5, 0),
        case(
            "4 GiB capsule",
            Plain,
            capsule(72, u32::MAX, &in_capsule(WRITE, 0, u32::MAX - 72)),
            5,
            0,
        ),
        // H2CData.
        case("DATAL 0", Plain, h2c(0, R2T_CID, R2T_TTAG, 4096, 0), 1, 16),
        case(
            "DATAL 6 with DDGST",
            Ddgst,
            data_pdu((6, DDGSTF, 24, 34), R2T_CID, R2T_TTAG, 4096, 6),
            1,
            16,
        ),
        case("TTAG of no slot", Plain, h2c(0, R2T_CID, 0xffff, 4096, 512), 2, 10),
        case("TTAG of older use", Plain, h2c(0, R2T_CID, 6, 4096, 512), 2, 10),
        case("TTAG 0, no R2T sent", Plain, h2c(0, R2T_CID, 0, 4096, 512), 1, 10),
        case("CCCID of another", Plain, h2c(0, R2T_CID + 1, R2T_TTAG, 4096, 512), 2, 8),
        case("DATAO below", Plain, h2c(0, R2T_CID, R2T_TTAG, 0, 512), 4, 0),
        case("DATAO above", Plain, h2c(0, R2T_CID, R2T_TTAG, 4100, 512), 4, 0),
        case("DATAO max", Plain, h2c(0, R2T_CID, R2T_TTAG, u32::MAX, 512), 4, 0),
        case("beyond R2T", Plain, h2c(LAST, R2T_CID, R2T_TTAG, 4096, 8196), 4, 0),
        case("far beyond R2T", Plain, h2c(LAST, R2T_CID, R2T_TTAG, 4096, u32::MAX - 24), 4, 0),
        case("DATAL above MAXH2CDATA", Plain, h2c(0, R2T_CID, R2T_TTAG, 4096, 4100), 5, 0),
        case("LAST_PDU too early", Plain, h2c(LAST, R2T_CID, R2T_TTAG, 4096, 4096), 1, 1),
        case(
            "H2CData flags do not excuse",
            Plain,
            with_flags(h2c(0, R2T_CID, 0x6, 4096, 512), SUCCESS),
            2,
            10,
        ),
    ]
}

#[test]
fn hosts_violations() {
    let end = |start| End::Controller(controller(start));
    let mut seen = run(controller_cases(), 3, end);

    // Cases that need a PDU before the bad one.
    let mut first_half = h2c(0, R2T_CID, R2T_TTAG, 4096, 4096);
    first_half.resize(24 + 4096, 0);
    let mut all = first_half.clone();
    let mut second_half = h2c(LAST, R2T_CID, R2T_TTAG, 8192, 4096);
    second_half.resize(24 + 4096, 0);
    all.extend(&second_half);
    for (name, before, bad, fes, fei) in [
        ("no LAST_PDU", &first_half, h2c(0, R2T_CID, R2T_TTAG, 8192, 4096), 1, 1),
        ("DATAO again", &first_half, h2c(0, R2T_CID, R2T_TTAG, 4096, 4096), 4, 0),
        ("R2T is done", &all, h2c(0, R2T_CID, R2T_TTAG, 12288, 4), 1, 10),
    ] {
        let mut end = end(Plain);
        end.feed(before, usize::MAX).unwrap();
        let error = end.feed(&bad, usize::MAX).expect_err(name);
        assert_eq!((error.fes().to_wire(), error.fei()), (fes, fei), "{name}: {error}");
        seen.insert(error.violation());
    }

    // Between ICReq and ICResp.
    for (bytes, violation) in [
        (ic(0, 0, 0, 0, 0), Violation::AlreadyInitialized),
        (capsule(0, 72, &sqe(0, 1)), Violation::NotInitialized),
    ] {
        let mut end = end(New);
        end.feed(&ic(0, 0, 0, 0, 0), usize::MAX).unwrap();
        assert_eq!(end.feed(&bytes, usize::MAX).unwrap_err().violation(), violation);
    }

    use Violation as V;
    let not_hosts: HashSet<_> = HashSet::from([
        V::DgstUnexpected,
        V::Maxh2cdataInvalid,
        V::ResponseCidUnknown,
        V::CccidUnknown,
        V::C2hDataUnexpected,
        V::C2hDataAfterLast,
        V::C2hDataoNotNext,
        V::C2hDataOutOfRange,
        V::SuccessWithoutLast,
        V::SuccessShort,
        V::R2tUnexpected,
        V::R2toNotNext,
        V::R2tlZero,
        V::R2tlUnaligned,
        V::R2tOutOfRange,
        V::TooManyR2ts,
        V::QueueOverrun, // the driver's
    ]);
    for violation in V::ALL {
        assert!(seen.contains(violation) != not_hosts.contains(violation), "{violation:?}");
    }
}

fn host_cases() -> Vec<Case> {
    let mut bad_digest = response(FLUSH_CID);
    bad_digest[1] = HDGSTF;
    bad_digest[4] = 28;
    bad_digest.extend([1, 2, 3, 4]);
    vec![
        case("response first", New, response(1), 2, 0),
        case("garbage first", New, vec![0xaa; 64], 2, 0),
        case("second ICResp", Plain, ic(1, 0, 0, 0, 4096), 2, 0),
        case("reserved type", Plain, pdu(8, 0, 24, 0, 24, &[]), 1, 0),
        case("ICReq to host", Plain, ic(0, 0, 0, 0, 0), 1, 0),
        case("H2CTermReq to host", Plain, term_req(2, 1, 32), 1, 0),
        case("capsule to host", Plain, capsule(0, 72, &sqe(0, 1)), 1, 0),
        case("H2CData to host", Plain, h2c(LAST, WRITE_CID, 0, 0, 512), 1, 0),
        // HLEN.
        case("C2HData HLEN 23", Plain, pdu(7, 0, 23, 24, 512, &[]), 1, 2),
        case("R2T HLEN 72", Plain, pdu(9, 0, 72, 0, 72, &[]), 1, 2),
        case("response HLEN 25", Plain, pdu(5, 0, 25, 0, 25, &[]), 1, 2),
        case("ICResp HLEN 24", New, pdu(1, 0, 24, 0, 128, &[]), 1, 2),
        // FLAGS.
        case("HDGSTF without HDGST", Plain, pdu(5, HDGSTF, 24, 0, 28, &[]), 1, 1),
        case("no HDGSTF with HDGST", Hdgst, response(FLUSH_CID), 1, 1),
        case("DDGSTF without DDGST", Plain, pdu(7, DDGSTF, 24, 24, 532, &[]), 1, 1),
        case("no DDGSTF with DDGST", Ddgst, c2h(LAST, READ_CID, 0, 512), 1, 1),
        // PDO: this host asks for multiples of 8.
        case("C2HData PDO 28", Plain, pdu(7, 0, 24, 28, 540, &[]), 1, 3),
        case("C2HData PDO 16", Plain, pdu(7, 0, 24, 16, 528, &[]), 1, 3),
        case("C2HData PDO 136", Plain, pdu(7, 0, 24, 136, 648, &[]), 1, 3),
        case("C2HData PDO in HDGST", Hdgst, pdu(7, HDGSTF, 24, 24, 540, &[]), 1, 3),
        // PLEN.
        case("response PLEN 25", Plain, pdu(5, 0, 24, 0, 25, &[]), 1, 4),
        case("response PLEN max", Plain, pdu(5, 0, 24, 0, u32::MAX, &[]), 1, 4),
        case("R2T PLEN 20", Plain, pdu(9, 0, 24, 0, 20, &[]), 1, 4),
        case("R2T PLEN 24 with HDGST", Hdgst, pdu(9, HDGSTF, 24, 0, 24, &[]), 1, 4),
        case("C2HData PLEN below PDO", Plain, pdu(7, 0, 24, 24, 20, &[]), 1, 4),
        case("DATAL is not PLEN", Plain, data_pdu((7, 0, 24, 540), READ_CID, 0, 0, 512), 1, 4),
        case("C2HTermReq PLEN 8", Plain, term_req(3, 1, 8), 1, 4),
        case("HDGST wrong", Hdgst, bad_digest, 3, 0),
        // ICResp.
        case("ICResp PFV 1", New, ic(1, 1, 0, 0, 4096), 1, 8),
        case("CPDA 32", New, ic(1, 0, 32, 0, 4096), 1, 10),
        case("DGST not asked for", New, ic(1, 0, 0, 1, 4096), 6, 11),
        case("DDGST not asked for", New, ic(1, 0, 0, 2, 4096), 6, 11),
        case("MAXH2CDATA 0", New, ic(1, 0, 0, 0, 0), 1, 12),
        case("MAXH2CDATA 4092", New, ic(1, 0, 0, 0, 4092), 1, 12),
        case("MAXH2CDATA 4098", New, ic(1, 0, 0, 0, 4098), 1, 12),
        case("FES 7", Plain, term_req(3, 7, 25), 1, 8),
        case("FES FFFFh before ICResp", New, term_req(3, 0xffff, 24), 1, 8),
        // CapsuleResp.
        case("response to no command", Plain, response(5), 1, 20),
        case("response to older generation", Plain, response(READ_CID + 16), 1, 20),
        case("second response", Plain, [response(1), response(1)].concat(), 1, 20),
        // C2HData.
        case("CCCID unknown", Plain, c2h(LAST, 5, 0, 512), 1, 8),
        case("CCCID max", Plain, c2h(LAST, 0xffff, 0, 512), 1, 8),
        case("C2HData for a write", Plain, c2h(LAST, WRITE_CID, 0, 512), 1, 8),
        case("C2HData for a Flush", Plain, c2h(LAST, FLUSH_CID, 0, 512), 1, 8),
        case("DATAL 0", Plain, c2h(LAST, READ_CID, 0, 0), 1, 16),
        case("DATAL 2, DDGST", Ddgst, data_pdu((7, DDGSTF, 24, 30), READ_CID, 0, 0, 2), 1, 16),
        case("DATAO 4", Plain, c2h(0, READ_CID, 4, 512), 1, 12),
        case("DATAO max", Plain, c2h(0, READ_CID, u32::MAX, 512), 1, 12),
        case("beyond the read", Plain, c2h(LAST, READ_CID, 0, 8196), 4, 0),
        case("far beyond the read", Plain, c2h(LAST, READ_CID, 0, u32::MAX - 24), 4, 0),
        case("SUCCESS without LAST_PDU", Plain, c2h(SUCCESS, READ_CID, 0, 8192), 1, 1),
        case("SUCCESS, data missing", Plain, c2h(SUCCESS | LAST, READ_CID, 0, 4096), 1, 1),
        // R2T.
        case("R2T CCCID unknown", Plain, r2t(5, 0, 512), 1, 8),
        case("R2T for a read", Plain, r2t(READ_CID, 0, 512), 1, 8),
        case("R2T for a Flush", Plain, r2t(FLUSH_CID, 0, 512), 1, 8),
        case("R2T for in-capsule data", Plain, r2t(CAPSULE_CID, 0, 512), 1, 8),
        case("R2TO 4", Plain, r2t(WRITE_CID, 4, 512), 1, 12),
        case("R2TO max", Plain, r2t(WRITE_CID, u32::MAX, 512), 1, 12),
        case("R2TL 0", Plain, r2t(WRITE_CID, 0, 0), 1, 16),
        case("R2TL 6 with DDGST", Ddgst, r2t(WRITE_CID, 0, 6), 1, 16),
        case("R2T beyond the write", Plain, r2t(WRITE_CID, 0, 8196), 4, 0),
        case("R2T far beyond", Plain, r2t(WRITE_CID, 0, u32::MAX), 4, 0),
        case(
            "third R2T of two",
            Plain,
            [r2t(WRITE_CID, 0, 512), r2t(WRITE_CID, 512, 512), r2t(WRITE_CID, 1024, 512)].concat(),
            5,
            0,
        ),
    ]
}

#[test]
fn controllers_violations() {
    // Where a valid PDU goes before the bad one, only the bad one is in the error.
    let (plain, preceded): (Vec<_>, Vec<_>) = host_cases()
        .into_iter()
        .partition(|case| !matches!(case.name, "second response" | "third R2T of two"));
    let end = |start| End::Host(host(start));
    let mut seen = run(plain, 2, end);
    for case in preceded {
        for piece in [usize::MAX, 1] {
            let error = end(case.start).feed(&case.bytes, piece).expect_err(case.name);
            assert_eq!((error.fes().to_wire(), error.fei()), (case.fes, case.fei), "{error}");
            assert!(case.bytes.ends_with(error.header()));
            seen.insert(error.violation());
        }
    }

    // C2HData after LAST_PDU; and data of a read whose response has come.
    let mut part = c2h(LAST, READ_CID, 0, 512);
    part.resize(24 + 512, 0);
    let mut end = End::Host(host(Plain));
    end.feed(&part, usize::MAX).unwrap();
    let error = end.feed(&c2h(LAST, READ_CID, 512, 512), usize::MAX).unwrap_err();
    assert_eq!((error.fes().to_wire(), error.fei()), (2, 0));
    seen.insert(error.violation());
    let mut end = End::Host(host(Plain));
    end.feed(&response(READ_CID), usize::MAX).unwrap();
    let error = end.feed(&part, usize::MAX).unwrap_err();
    assert_eq!((error.fes().to_wire(), error.fei()), (1, 8));

    use Violation as V;
    let not_controllers = HashSet::from([
        V::SglNotInCapsule,
        V::SglOffsetInvalid,
        V::SglLengthMismatch,
        V::InCapsuleTooLong,
        V::QueueOverrun,
        V::TtagUnknown,
        V::TtagNotWaiting,
        V::CccidMismatch,
        V::H2cDataoNotNext,
        V::H2cDataOutOfRange,
        V::H2cDataTooLong,
        V::H2cLastInvalid,
    ]);
    for violation in V::ALL {
        assert!(seen.contains(violation) != not_controllers.contains(violation), "{violation:?}");
    }
}

/// A header that begins like the one before it takes a short path, when it has arrived completely.
#[test]
fn a_good_pdu_before_it_hides_nothing() {
    let write = |address, length| {
        let mut bytes = capsule(72, 584, &in_capsule(WRITE, address, length));
        bytes.resize(584, 0);
        bytes
    };
    let responses = || [response(FLUSH_CID), response(FLUSH_CID)];
    for piece in [usize::MAX, 1] {
        for ([good, bad], violation, mut end) in [
            ([write(0, 512), write(8, 512)], Violation::SglOffsetInvalid, controller_end()),
            ([write(0, 512), write(0, 256)], Violation::SglLengthMismatch, controller_end()),
            ([write(0, 512), write(0, 1024)], Violation::InCapsuleTooLong, controller_end()),
            (responses(), Violation::ResponseCidUnknown, End::Host(host(Plain))),
        ] {
            end.feed(&good, piece).unwrap();
            let error = end.feed(&bad, piece).unwrap_err();
            assert_eq!(error.violation(), violation);
            assert!(!error.header().is_empty() && bad.starts_with(error.header()));
        }
    }
}

fn controller_end() -> End {
    End::Controller(controller(Plain))
}

#[test]
fn a_controller_that_declines_digests_is_refused() {
    let config = HostQueueConfig { hdgst: true, ..host_config() };
    let mut queue = HostQueue::new(config);
    queue.ic_req(&mut Vec::new());
    let error = queue.receive(&mut &ic(1, 0, 0, 0, 4096)[..]).unwrap_err();
    assert_eq!((error.fes().to_wire(), error.fei()), (6, 11));
}

/// Unusual but legal PDUs.
#[test]
fn accepted() {
    let mut fabrics = in_capsule(0x7f, 0, 8192);
    fabrics.cid = 1.into();
    let limit = in_capsule(WRITE, 0, 512);
    let with_data = |mut bytes: Vec<u8>, len| {
        bytes.resize(len, 0);
        bytes
    };
    let nothing = in_capsule(0, 0, 0);
    let odd = in_capsule(WRITE, 0, 3);
    for (name, start, bytes) in [
        ("HPDA 31, reserved DGST bits, MAXR2T max", New, ic(0, 0, 31, 0xfc, u32::MAX)),
        ("bare TermReq", Plain, term_req(2, 6, 24)[..24].to_vec()),
        ("longest TermReq", Plain, term_req(2, 1, 152)),
        ("Fabrics capsule on an I/O queue", Plain, with_data(capsule(72, 8264, &fabrics), 8264)),
        ("longest I/O capsule", Plain, with_data(capsule(72, 584, &limit), 584)),
        ("PDO 128", Plain, with_data(capsule(128, 640, &limit), 640)),
        ("PDO without data", Plain, capsule(99, 72, &sqe(0, 1))),
        ("DDGSTF without data", Plain, pdu(4, DDGSTF, 72, 0, 72, sqe(0, 1).as_bytes())),
        ("empty in-capsule SGL", Plain, capsule(0, 72, &nothing)),
        ("three bytes", Plain, with_data(capsule(72, 75, &odd), 75)),
    ] {
        for piece in [usize::MAX, 1] {
            let mut end = End::Controller(controller(start));
            end.feed(&bytes, piece).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(end.is_closing(), bytes[0] == 2, "{name}");
        }
    }

    // Admin queues take 8192 bytes with any command.
    let mut queue = controller(Plain);
    queue.set_queue_kind(true);
    let bytes = with_data(capsule(72, 8264, &in_capsule(0x81, 0, 8192)), 8264);
    End::Controller(queue).feed(&bytes, usize::MAX).unwrap();

    // A controller may refuse an ICReq; that is not answered.
    let mut queue = host(New);
    let bytes = term_req(3, 1, 152);
    let reason = queue.receive(&mut &bytes[..]).unwrap();
    assert!(matches!(reason, Some(HostEvent::Terminated(_))));
    let mut out = Vec::new();
    queue.term_req(&FatalError::new(Violation::QueueOverrun), &mut out);
    assert!(out.is_empty(), "no TermReq answers a TermReq");
}

#[test]
fn a_closing_queue_sends_nothing() {
    let mut queue = controller(Plain);
    let mut out = Vec::new();
    queue.term_req(&FatalError::new(Violation::QueueOverrun), &mut out);
    let len = out.len();
    queue.response(&raceline_proto::nvme::Cqe::default(), &mut out);
    queue.c2h_data(raceline_proto::nvme::CommandId(1), 0, 512, true, false, &mut out);
    queue.r2t(0, raceline_proto::nvme::CommandId(1), 0, 512, &mut out);
    assert_eq!(out.len(), len);
    let mut input = &[0xff; 100][..];
    assert_eq!(queue.receive(&mut input), Ok(None));
    assert!(input.is_empty());
}

#[test]
fn errors_name_the_fault() {
    let error = controller(Plain).receive(&mut &capsule(0, 71, &sqe(0, 7))[..]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "PLEN contradicts the PDU type, PDO or data length (FES 01h, FEI 4h, PDU type 04h)"
    );
}
