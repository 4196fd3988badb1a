//! Every PDU type, byte by byte: what is sent, and how it is decoded.
#![allow(clippy::unwrap_used)] // a test

mod tcp_support;

use raceline_proto::nvme::{CommandId, Cqe, Direction, QueueId, Status};
use raceline_proto::tcp::{
    CommandsAhead, ControllerQueue, ControllerQueueConfig, DataDest, Event, FatalError, Fes,
    HostEvent, HostQueue, HostQueueConfig, IcReq, IcResp, R2tGrant, Violation,
};
use tcp_support::{READ, WRITE, controller_config, host_config, sqe};

/// PDU length 128, HPDA 3, both digests, MAXR2T 1.
const IC_REQ: [u8; 16] = [
    0x00, 0x00, 0x80, 0x00, 0x80, 0x00, 0x00, 0x00, // type, flags, HLEN 128, PDO, PLEN 128
    0x00, 0x00, 0x03, 0x03, 0x01, 0x00, 0x00, 0x00, // PFV, HPDA, DGST, MAXR2T
];

/// CPDA 0, both digests, MAXH2CDATA 128 KiB.
const IC_RESP: [u8; 16] = [
    0x01, 0x00, 0x80, 0x00, 0x80, 0x00, 0x00, 0x00, // type, flags, HLEN 128, PDO, PLEN 128
    0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x02, 0x00, // PFV, CPDA, DGST, MAXH2CDATA
];

/// Read with CID 0102h of 4096 bytes, no digest.
const CAPSULE_CMD: [u8; 72] = [
    0x04, 0x00, 0x48, 0x00, 0x48, 0x00, 0x00, 0x00, // type, flags, HLEN 72, PDO, PLEN 72
    0x02, 0x40, 0x02, 0x01, 0x07, 0x00, 0x00, 0x00, // OPC, PSDT 01b, CID, NSID 7
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // CDW2, CDW3
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // MPTR
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // SGL1: address
    0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x5a, // SGL1: length, reserved, type 5Ah
    0x11, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // CDW10, CDW11
    0x07, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // CDW12, CDW13
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // CDW14, CDW15
];

/// Write with CID 0102h, 4 bytes in the capsule at PDO 72, no digest.
const CAPSULE_CMD_WITH_DATA: [u8; 76] = [
    0x04, 0x00, 0x48, 0x48, 0x4c, 0x00, 0x00, 0x00, // type, flags, HLEN 72, PDO 72, PLEN 76
    0x01, 0x40, 0x02, 0x01, 0x00, 0x00, 0x00, 0x00, // OPC, PSDT 01b, CID, NSID
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // CDW2, CDW3
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // MPTR
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // SGL1: offset 0
    0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, // SGL1: length, reserved, type 01h
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // CDW10, CDW11
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // CDW12, CDW13
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // CDW14, CDW15
    0xde, 0xad, 0xbe, 0xef, // data
];

/// The example of the digest: all zero completion, HDGST 9B 12 03 89.
const CAPSULE_RESP_WITH_DIGEST: [u8; 28] = [
    0x05, 0x01, 0x18, 0x00, 0x1c, 0x00, 0x00, 0x00, // type, HDGSTF, HLEN 24, PDO, PLEN 28
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // DW0, DW1
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // SQHD, SQID, CID, status
    0x9b, 0x12, 0x03, 0x89, // HDGST
];

/// Invalid Field with DNR for CID 0102h.
const CAPSULE_RESP: [u8; 24] = [
    0x05, 0x00, 0x18, 0x00, 0x18, 0x00, 0x00, 0x00, // type, flags, HLEN 24, PDO, PLEN 24
    0x44, 0x33, 0x22, 0x11, 0x88, 0x77, 0x66, 0x55, // DW0, DW1
    0x34, 0x12, 0x01, 0x00, 0x02, 0x01, 0x04,
    0x80, // SQHD 1234h, SQID 1, CID, status 02h, DNR
];

/// R2T for CID 0102h: slot 5 of 8 for the first time, 8 bytes from 1000h.
const R2T: [u8; 24] = [
    0x09, 0x00, 0x18, 0x00, 0x18, 0x00, 0x00, 0x00, // type, flags, HLEN 24, PDO, PLEN 24
    0x02, 0x01, 0x0d, 0x00, 0x00, 0x10, 0x00, 0x00, // CCCID, TTAG 000Dh, R2TO 1000h
    0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // R2TL 8, reserved
];

/// Answer to it in one PDU.
const H2C_DATA: [u8; 32] = [
    0x06, 0x04, 0x18, 0x18, 0x20, 0x00, 0x00,
    0x00, // type, LAST_PDU, HLEN 24, PDO 24, PLEN 32
    0x02, 0x01, 0x0d, 0x00, 0x00, 0x10, 0x00, 0x00, // CCCID, TTAG 000Dh, DATAO 1000h
    0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // DATAL 8, reserved
    1, 2, 3, 4, 5, 6, 7, 8, // data
];

/// 8 bytes for CID 0102h, padded to PDO 32 (HPDA 3 is 16 bytes), SUCCESS.
const C2H_DATA: [u8; 40] = [
    0x07, 0x0c, 0x18, 0x20, 0x28, 0x00, 0x00,
    0x00, // type, SUCCESS LAST_PDU, HLEN, PDO 32, PLEN 40
    0x02, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // CCCID, reserved, DATAO 0
    0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // DATAL 8, reserved
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // PAD
    1, 2, 3, 4, 5, 6, 7, 8, // data
];

/// 32 zero bytes with both digests on, no padding: DDGST of 32 zero bytes is AA 36 91 8A.
const C2H_DATA_DIGEST_FLAGS: [u8; 24] = [
    0x07, 0x07, 0x18, 0x1c, 0x40, 0x00, 0x00,
    0x00, // type, LAST DDGSTF HDGSTF, HLEN, PDO 28, PLEN 64
    0x02, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // CCCID, reserved, DATAO 0
    0x20, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // DATAL 32, reserved
];
const DDGST_OF_32_ZEROES: [u8; 4] = [0xaa, 0x36, 0x91, 0x8a];

/// HLEN of a capsule is wrong: FES 1, FEI 2 (unaligned), copy of the common header.
const C2H_TERM_REQ: [u8; 32] = [
    0x03, 0x00, 0x18, 0x00, 0x20, 0x00, 0x00, 0x00, // type, flags, HLEN 24, PDO, PLEN 32
    0x01, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, // FES 1, FEI 2, reserved
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // reserved
    0x04, 0x00, 0x49, 0x00, 0x48, 0x00, 0x00, 0x00, // the header
];

/// R2T for an unknown command: FES 1, FEI 8, copy of the whole header.
const H2C_TERM_REQ: [u8; 48] = [
    0x02, 0x00, 0x18, 0x00, 0x30, 0x00, 0x00, 0x00, // type, flags, HLEN 24, PDO, PLEN 48
    0x01, 0x00, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, // FES 1, FEI 8, reserved
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // reserved
    0x09, 0x00, 0x18, 0x00, 0x18, 0x00, 0x00, 0x00, // the header
    0x02, 0x01, 0x0d, 0x00, 0x00, 0x10, 0x00, 0x00, //
    0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, //
];

/// CRC32C bit by bit, as the digest is defined.
fn digest(bytes: &[u8]) -> [u8; 4] {
    let mut register = u32::MAX;
    for &byte in bytes {
        register ^= u32::from(byte);
        for _ in 0..8 {
            register = (register >> 1) ^ if register & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    (!register).to_le_bytes()
}

/// Padded with zeroes to 128 bytes.
fn ic(head: [u8; 16]) -> Vec<u8> {
    let mut pdu = head.to_vec();
    pdu.resize(128, 0);
    pdu
}

fn command_id() -> CommandId {
    CommandId(0x0102)
}

/// A controller queue after the exchange with a host that asks for this.
fn controller(hpda: u8, dgst: u8) -> ControllerQueue {
    let mut queue = ControllerQueue::new(controller_config());
    let mut request = ic(IC_REQ);
    request[10] = hpda;
    request[11] = dgst;
    assert!(matches!(queue.receive(&mut &request[..]), Ok(Some(Event::Connected(_)))));
    queue.ic_resp(&mut Vec::new());
    queue
}

/// A host queue after the exchange.
fn host(hpda: u8, dgst: u8) -> HostQueue {
    let (hdgst, ddgst) = (dgst & 1 != 0, dgst & 2 != 0);
    let mut queue = HostQueue::new(HostQueueConfig { hpda, hdgst, ddgst, ..host_config() });
    queue.ic_req(&mut Vec::new());
    let mut response = ic(IC_RESP);
    response[11] = dgst;
    assert!(matches!(queue.receive(&mut &response[..]), Ok(Some(HostEvent::Connected(_)))));
    queue
}

fn controller_events<'a>(
    queue: &mut ControllerQueue,
    mut bytes: &'a [u8],
) -> Result<Vec<Event<'a>>, FatalError> {
    let mut events = Vec::new();
    while let Some(event) = queue.receive(&mut bytes)? {
        events.push(event);
    }
    assert!(bytes.is_empty());
    Ok(events)
}

fn host_events<'a>(
    queue: &mut HostQueue,
    mut bytes: &'a [u8],
) -> Result<Vec<HostEvent<'a>>, FatalError> {
    let mut events = Vec::new();
    while let Some(event) = queue.receive(&mut bytes)? {
        events.push(event);
    }
    assert!(bytes.is_empty());
    Ok(events)
}

#[test]
fn ic_req() {
    let mut out = Vec::new();
    HostQueue::new(HostQueueConfig { hpda: 3, hdgst: true, ddgst: true, maxr2t: 1, slots: 8 })
        .ic_req(&mut out);
    assert_eq!(out, ic(IC_REQ));

    let request = IcReq { hpda: 3, header_digest: true, data_digest: true, maxr2t: 1 };
    let mut queue = ControllerQueue::new(controller_config());
    assert_eq!(controller_events(&mut queue, &out), Ok(vec![Event::Connected(request)]));
}

#[test]
fn ic_resp() {
    let config = ControllerQueueConfig { max_h2c_data: 128 << 10, ..controller_config() };
    let mut queue = ControllerQueue::new(config);
    let mut out = Vec::new();
    controller_events(&mut queue, &ic(IC_REQ)).unwrap();
    queue.ic_resp(&mut out);
    assert_eq!(out, ic(IC_RESP));

    let config = HostQueueConfig { hdgst: true, ddgst: true, ..host_config() };
    let mut queue = HostQueue::new(config);
    let response =
        IcResp { cpda: 0, header_digest: true, data_digest: true, max_h2c_data: 128 << 10 };
    assert_eq!(host_events(&mut queue, &out), Ok(vec![HostEvent::Connected(response)]));
    assert_eq!(queue.max_h2c_data(), 128 << 10);
}

#[test]
fn controllers_decline_digests_when_told() {
    for (allow_hdgst, allow_ddgst, dgst) in [(false, true, 2), (true, false, 1), (false, false, 0)]
    {
        let config = ControllerQueueConfig { allow_hdgst, allow_ddgst, ..controller_config() };
        let mut queue = ControllerQueue::new(config);
        let mut out = Vec::new();
        controller_events(&mut queue, &ic(IC_REQ)).unwrap();
        queue.ic_resp(&mut out);
        assert_eq!(out[11], dgst);
        assert_eq!((queue.header_digest(), queue.data_digest()), (allow_hdgst, allow_ddgst));
    }
}

#[test]
fn capsule_cmd() {
    let mut command = sqe(READ, 0x0102);
    command.nsid = 7.into();
    command.cdw10 = 0x11.into();
    command.cdw12 = 7.into();
    let mut out = Vec::new();
    host(0, 0).command(&command, Direction::ControllerToHost, 4096, false, &mut out);
    assert_eq!(out, CAPSULE_CMD);

    let events = controller_events(&mut controller(0, 0), &out).unwrap();
    let [Event::Command { sqe, in_capsule: 0 }] = events[..] else { panic!("{events:?}") };
    assert_eq!(sqe.command_id(), command_id());
    assert_eq!(sqe.namespace_id().0, 7);
    assert_eq!((sqe.sgl1.length.get(), sqe.sgl1.kind), (4096, 0x5a));
    assert_eq!((sqe.cdw10.get(), sqe.cdw12.get()), (0x11, 7));

    // With a digest: flag, PLEN, and the digest over the 72 bytes.
    let mut out = Vec::new();
    host(0, 1).command(&command, Direction::ControllerToHost, 4096, false, &mut out);
    let mut expected = CAPSULE_CMD.to_vec();
    expected[1] = 0x01;
    expected[4] = 0x4c;
    let hdgst = digest(&expected);
    expected.extend(hdgst);
    assert_eq!(out, expected);
    assert_eq!(controller_events(&mut controller(0, 1), &out), Ok(events));
}

#[test]
fn capsule_cmd_with_data() {
    let direction = Direction::HostToController;
    let mut out = Vec::new();
    host(0, 0).command(&sqe(WRITE, 0x0102), direction, 4, true, &mut out);
    out.extend([0xde, 0xad, 0xbe, 0xef]);
    assert_eq!(out, CAPSULE_CMD_WITH_DATA);

    let events = controller_events(&mut controller(0, 0), &out).unwrap();
    let dest = DataDest::Capsule;
    assert!(matches!(events[0], Event::Command { in_capsule: 4, .. }));
    assert_eq!(
        events[1..],
        [
            Event::Data { dest, offset: 0, bytes: &[0xde, 0xad, 0xbe, 0xef] },
            Event::DataEnd { dest, offset: 0, len: 4, ddgst: None, last_pdu: true },
        ]
    );
}

#[test]
fn a_data_digest_is_seen_ahead_only_when_all_of_it_is_there() {
    let mut out = Vec::new();
    host(0, 2).command(&sqe(WRITE, 0x0102), Direction::HostToController, 4, true, &mut out);
    let digest = 0x0403_0201_u32;
    out.extend([0xde, 0xad, 0xbe, 0xef]);
    out.extend(digest.to_le_bytes());
    for missing in [0, 1, 4] {
        let mut queue = controller(0, 2);
        let mut input = &out[..out.len() - missing];
        assert!(matches!(queue.receive(&mut input), Ok(Some(Event::Command { .. }))));
        assert_eq!(queue.data_digest_ahead(input), None, "data come first");
        assert!(matches!(queue.receive(&mut input), Ok(Some(Event::Data { .. }))));
        assert_eq!(queue.data_digest_ahead(input), (missing == 0).then_some(digest));
    }
    let mut half = controller(0, 2);
    let mut input = &out[..out.len() - 6];
    assert!(matches!(half.receive(&mut input), Ok(Some(Event::Command { .. }))));
    assert!(matches!(half.receive(&mut input), Ok(Some(Event::Data { bytes: [_, _], .. }))));
    assert_eq!(half.data_digest_ahead(&[0; 8]), None, "two bytes of data are missing");
}

#[test]
fn data_in_a_capsule_are_taken_at_once_only_when_they_are_all_there() {
    let write = |digests| {
        let mut out = Vec::new();
        host(0, digests).command(
            &sqe(WRITE, 0x0102),
            Direction::HostToController,
            4,
            true,
            &mut out,
        );
        out.extend([0xde, 0xad, 0xbe, 0xef]);
        out
    };
    // Behind the first are the second's header and a part of its data.
    let stream = [write(0), write(0)[..74].to_vec()].concat();
    let mut queue = controller(0, 0);
    let mut input = &stream[..];
    assert_eq!(queue.take_capsule_data(&[0; 4], 4), None, "a header comes first");
    assert!(matches!(queue.receive(&mut input), Ok(Some(Event::Command { in_capsule: 4, .. }))));
    assert_eq!(queue.take_capsule_data(&input[..3], 4), None, "one byte is missing");
    assert_eq!(queue.take_capsule_data(input, 3), None, "there are more");
    assert_eq!(queue.take_capsule_data(input, 4), Some(&[0xde, 0xad, 0xbe, 0xef][..]));
    assert_eq!(queue.take_capsule_data(input, 4), None, "they were taken");
    input = &input[4..];
    assert!(matches!(queue.receive(&mut input), Ok(Some(Event::Command { in_capsule: 4, .. }))));
    assert_eq!(queue.take_capsule_data(input, 4), None, "two bytes are missing");
    assert!(matches!(queue.receive(&mut input), Ok(Some(Event::Data { bytes: [0xde, 0xad], .. }))));
    assert_eq!(queue.take_capsule_data(&[0xbe, 0xef], 2), None, "these are the end of more");
    let mut rest = &[0xbe, 0xef][..];
    assert!(matches!(queue.receive(&mut rest), Ok(Some(Event::Data { bytes: [0xbe, 0xef], .. }))));
    assert!(matches!(queue.receive(&mut rest), Ok(Some(Event::DataEnd { len: 4, .. }))));

    let mut digested = controller(0, 2);
    let stream = [write(2), vec![1, 2, 3, 4]].concat();
    let mut input = &stream[..];
    assert!(matches!(digested.receive(&mut input), Ok(Some(Event::Command { .. }))));
    assert_eq!(digested.take_capsule_data(input, 4), None, "a digest is to be checked");
}

#[test]
fn commands_are_seen_ahead_as_far_as_they_have_come_whole() {
    let capsule = |opcode, in_capsule: &[u8], digests| {
        let mut out = Vec::new();
        let (sqe, len) = (sqe(opcode, 0x0102), u32::try_from(in_capsule.len()).unwrap());
        let direction = if len == 0 { Direction::None } else { Direction::HostToController };
        host(0, digests).command(&sqe, direction, len, len > 0, &mut out);
        out.extend(in_capsule);
        out
    };
    let opcodes = |ahead: CommandsAhead<'_>| ahead.map(|sqe| sqe.opc).collect::<Vec<_>>();
    let whole = [capsule(WRITE, &[1; 4], 0), capsule(READ, &[], 0)].concat();
    let stream = [&whole, &capsule(READ, &[], 0)[..71]].concat();
    let mut queue = controller(0, 0);
    assert_eq!(opcodes(queue.commands_ahead(&stream)), [WRITE, READ]);
    let mut ahead = queue.commands_ahead(&stream);
    assert_eq!((ahead.next().map(|sqe| sqe.opc), ahead.rest()), (Some(WRITE), 72 + 71));
    assert_eq!((ahead.by_ref().count(), ahead.rest()), (1, 71));

    let mut input = &stream[..];
    assert!(matches!(queue.receive(&mut input), Ok(Some(Event::Command { in_capsule: 4, .. }))));
    assert_eq!(opcodes(queue.commands_ahead(input)), [], "data come first");
    assert!(matches!(queue.receive(&mut input), Ok(Some(Event::Data { .. }))));
    assert!(matches!(queue.receive(&mut input), Ok(Some(Event::DataEnd { .. }))));
    assert_eq!(opcodes(queue.commands_ahead(input)), [READ]);

    let digested = [capsule(READ, &[], 1), capsule(READ, &[], 1)].concat();
    assert_eq!(opcodes(controller(0, 1).commands_ahead(&digested)), [READ, READ]);

    // Whatever the bytes are, decoding ends.
    for len in 0..200 {
        for byte in [0, 4, 6, 255] {
            assert!(queue.commands_ahead(&vec![byte; len]).count() <= len / 8);
        }
    }
    let mut short = stream.clone();
    short[4..8].copy_from_slice(&8_u32.to_le_bytes());
    assert_eq!(opcodes(controller(0, 0).commands_ahead(&short)), [], "a capsule of 8 bytes");
}

#[test]
fn capsule_resp() {
    let status = Status::INVALID_FIELD.dnr();
    let (dw0, dw1) = (0x1122_3344, 0x5566_7788);
    let cqe = Cqe { dw0, dw1, sqhd: 0x1234, sqid: QueueId(1), cid: command_id(), status };
    let mut out = Vec::new();
    controller(0, 0).response(&cqe, &mut out);
    assert_eq!(out, CAPSULE_RESP);

    let mut queue = host(0, 0);
    queue.command(&sqe(WRITE, 0x0102), Direction::None, 0, false, &mut Vec::new());
    assert_eq!(host_events(&mut queue, &out), Ok(vec![HostEvent::Response(cqe)]));
}

#[test]
fn capsule_resp_with_digest() {
    let mut out = Vec::new();
    controller(0, 1).response(&Cqe::default(), &mut out);
    assert_eq!(out, CAPSULE_RESP_WITH_DIGEST);
    assert_eq!(digest(&out[..24]), out[24..]);

    let mut queue = host(0, 1);
    queue.command(&sqe(WRITE, 0), Direction::None, 0, false, &mut Vec::new());
    assert_eq!(host_events(&mut queue, &out), Ok(vec![HostEvent::Response(Cqe::default())]));
}

#[test]
fn r2t_and_h2c_data() {
    let mut out = Vec::new();
    let mut controller = controller(0, 0);
    controller.r2t(5, command_id(), 0x1000, 8, &mut out);
    assert_eq!(out, R2T);

    // An R2T for the first 1000h bytes goes before it.
    let mut queue = host(0, 0);
    let direction = Direction::HostToController;
    queue.command(&sqe(WRITE, 0x0102), direction, 0x1008, false, &mut Vec::new());
    let mut first = R2T;
    first[10..20].copy_from_slice(&[0x03, 0, 0, 0, 0, 0, 0x00, 0x10, 0, 0]);
    let grant = R2tGrant { cid: command_id(), ttag: 3, offset: 0, len: 0x1000 };
    assert_eq!(host_events(&mut queue, &first), Ok(vec![HostEvent::SendData(grant)]));
    queue.h2c_data(&grant, 0, 0x1000, true, &mut Vec::new());

    let grant = R2tGrant { cid: command_id(), ttag: 0x0d, offset: 0x1000, len: 8 };
    assert_eq!(host_events(&mut queue, &out), Ok(vec![HostEvent::SendData(grant)]));
    out.clear();
    queue.h2c_data(&grant, 0x1000, 8, true, &mut out);
    out.extend([1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(out, H2C_DATA);

    let dest = DataDest::Slot(5);
    assert_eq!(
        controller_events(&mut controller, &out),
        Ok(vec![
            Event::Data { dest, offset: 0x1000, bytes: &[1, 2, 3, 4, 5, 6, 7, 8] },
            Event::DataEnd { dest, offset: 0x1000, len: 8, ddgst: None, last_pdu: true },
        ])
    );
}

#[test]
fn c2h_data() {
    let mut out = Vec::new();
    controller(3, 0).c2h_data(command_id(), 0, 8, true, true, &mut out);
    out.extend([1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(out, C2H_DATA);

    let mut queue = host(3, 0);
    let cid = command_id();
    queue.command(&sqe(READ, 0x0102), Direction::ControllerToHost, 8, false, &mut Vec::new());
    assert_eq!(
        host_events(&mut queue, &out),
        Ok(vec![
            HostEvent::Data { cid, offset: 0, bytes: &[1, 2, 3, 4, 5, 6, 7, 8] },
            HostEvent::DataEnd { cid, offset: 0, len: 8, ddgst: None, last: true, success: true },
        ])
    );
}

#[test]
fn c2h_data_with_digests() {
    let mut out = Vec::new();
    controller(0, 3).c2h_data(command_id(), 0, 32, true, false, &mut out);
    let mut expected = C2H_DATA_DIGEST_FLAGS.to_vec();
    expected.extend(digest(&C2H_DATA_DIGEST_FLAGS));
    assert_eq!(out, expected);
    out.extend([0; 32]);
    out.extend(DDGST_OF_32_ZEROES);

    let mut queue = host(0, 3);
    let cid = command_id();
    queue.command(&sqe(READ, 0x0102), Direction::ControllerToHost, 32, false, &mut Vec::new());
    let ddgst = Some(0x8a91_36aa);
    assert_eq!(
        host_events(&mut queue, &out),
        Ok(vec![
            HostEvent::Data { cid, offset: 0, bytes: &[0; 32] },
            HostEvent::DataEnd { cid, offset: 0, len: 32, ddgst, last: true, success: false },
        ])
    );
}

#[test]
fn c2h_term_req() {
    let mut bad = CAPSULE_CMD;
    bad[2] = 0x49;
    let mut queue = controller(0, 0);
    let error = controller_events(&mut queue, &bad).unwrap_err();
    let mut out = Vec::new();
    queue.term_req(&error, &mut out);
    assert_eq!(out, C2H_TERM_REQ);

    let events = host_events(&mut host(0, 0), &out).unwrap();
    let [HostEvent::Terminated(reason)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((reason.fes, reason.fei), (Fes::InvalidHeaderField, 2));
    assert_eq!(reason.header[..], bad[..8]);
}

#[test]
fn h2c_term_req() {
    let mut queue = host(0, 0);
    let error = host_events(&mut queue, &R2T).unwrap_err();
    let mut out = Vec::new();
    queue.term_req(&error, &mut out);
    assert_eq!(out, H2C_TERM_REQ);

    let events = controller_events(&mut controller(0, 0), &out).unwrap();
    let [Event::Terminated(reason)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((reason.fes, reason.fei), (Fes::InvalidHeaderField, 8));
    assert_eq!(reason.header[..], R2T);
}

#[test]
fn header_digest_error_names_the_digest() {
    let mut bad = CAPSULE_RESP_WITH_DIGEST;
    bad[27] ^= 0x80;
    let mut queue = host(0, 1);
    queue.command(&sqe(WRITE, 0), Direction::None, 0, false, &mut Vec::new());
    let error = host_events(&mut queue, &bad).unwrap_err();
    assert_eq!(error.violation(), Violation::HdgstMismatch);
    assert_eq!(error.fei(), 0x0903_129b);
    assert_eq!(error.header(), &bad[..24], "without its digest");
}

#[test]
fn an_error_without_header_sends_some_bytes() {
    let mut out = Vec::new();
    let mut queue = controller(0, 0);
    queue.term_req(&FatalError::new(Violation::QueueOverrun), &mut out);
    assert_eq!(out.len(), 32);
    assert_eq!(out[4..16], [32, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(out[16..], [0; 16]);
    assert!(queue.is_closing());
}
