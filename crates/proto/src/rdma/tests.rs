//! Private data, capsules and descriptors byte by byte, and every wrong length of them.

use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;
use crate::nvme::{CommandId, ControllerId, Cqe, QueueId, SglDescriptor, Sqe, Status};

/// QID 3, HRQSIZE 128, HSQSIZE 127, CNTLID 5.
const REQUEST: [u8; 10] = [0, 0, 3, 0, 128, 0, 127, 0, 5, 0];

const LIMITS: CapsuleLimits =
    CapsuleLimits { in_capsule_bytes: 4096, descriptors: 16, transfer_bytes: 1 << 20 };

/// Opcodes of the NVM command set: to the controller, to the host.
const WRITE: u8 = 1;
const READ: u8 = 2;

fn request() -> QueueRequest {
    QueueRequest { qid: QueueId(3), receives: 128, entries: 128, cntlid: Some(ControllerId(5)) }
}

/// A command with these bytes in place of SGL1, and these behind it.
fn capsule(opc: u8, sgl1: [u8; 16], behind: &[u8]) -> Vec<u8> {
    let sqe = Sqe { opc, flags: Sqe::PSDT_SGL, cid: 0x0102.into(), ..Sqe::default() };
    let mut bytes = sqe.as_bytes().to_vec();
    bytes[24..40].copy_from_slice(&sgl1);
    bytes.extend(behind);
    bytes
}

fn data(opc: u8, sgl1: [u8; 16], behind: &[u8]) -> Result<HostData, Status> {
    CommandCapsule::parse(&capsule(opc, sgl1, behind), &LIMITS).unwrap().data
}

/// A descriptor: address or offset, 24 bits of length, key, type.
fn descriptor(address: u64, len: u32, key: u32, kind: u8) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..11].copy_from_slice(&len.to_le_bytes()[..3]);
    bytes[11..15].copy_from_slice(&key.to_le_bytes());
    bytes[15] = kind;
    bytes
}

/// A descriptor with 32 bits of length and no key.
fn offset(offset: u64, len: u32, kind: u8) -> [u8; 16] {
    let mut bytes = descriptor(offset, 0, 0, kind);
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes
}

#[test]
fn a_request_is_read_at_every_length_from_32_on() {
    let sent = request().to_bytes();
    assert_eq!(sent[..10], REQUEST);
    assert_eq!(sent[10..], [0; 22]);
    // InfiniBand and RoCE pad to 56 bytes, and a provider may give more.
    let mut padded = sent.to_vec();
    padded.resize(256, 0xee);
    for len in 0..=padded.len() {
        let expected = if len < 32 { Err(RejectStatus::Length) } else { Ok(request()) };
        assert_eq!(QueueRequest::parse(&padded[..len]), expected, "{len} bytes");
    }
}

#[test]
fn every_field_of_a_request_is_checked() {
    let with = |at: usize, value: u16| {
        let mut bytes = request().to_bytes();
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        QueueRequest::parse(&bytes)
    };
    assert_eq!(with(0, 1), Err(RejectStatus::Recfmt));
    assert_eq!(with(4, 0), Err(RejectStatus::Hrqsize));
    assert_eq!(with(6, 0), Err(RejectStatus::Hsqsize));
    assert_eq!(with(6, 0xffff).unwrap().entries, 0x1_0000);
    for unsaid in [0, 0xffff] {
        assert_eq!(with(8, unsaid).unwrap().cntlid, None, "{unsaid:x}");
    }
    assert_eq!(with(2, 0).unwrap().cntlid, None, "an admin queue has no controller yet");
    let mut reserved = request().to_bytes();
    reserved[10..].fill(0xff);
    assert_eq!(QueueRequest::parse(&reserved), Ok(request()), "reserved bytes are not looked at");
}

#[test]
fn a_grant_is_the_least_of_all() {
    let limits = GrantLimits { admin_entries: 32, io_entries: 100, io_queues: 4, reads: 16 };
    let grant = |change: &dyn Fn(&mut QueueRequest), reads| {
        let mut asked = request();
        change(&mut asked);
        asked.grant(&limits, reads)
    };
    assert_eq!(grant(&|_| {}, 8), Ok(Grant { entries: 100, reads: 8 }));
    assert_eq!(grant(&|asked| asked.receives = 7, 99), Ok(Grant { entries: 7, reads: 16 }));
    assert_eq!(grant(&|asked| asked.entries = 9, 16), Ok(Grant { entries: 9, reads: 16 }));
    assert_eq!(grant(&|asked| asked.qid = QueueId(0), 1), Ok(Grant { entries: 32, reads: 1 }));
    assert_eq!(grant(&|asked| asked.qid = QueueId(5), 1), Err(RejectStatus::QueueId));
    assert_eq!(grant(&|_| {}, 0), Err(RejectStatus::Ird));
    let granted = Grant { entries: 32, reads: 1 };
    assert!(granted.allows_sqsize(31) && !granted.allows_sqsize(32));
}

#[test]
fn accept_and_reject_as_they_are_sent_and_at_every_length() {
    let accept = AcceptData::new(0x0102);
    assert_eq!(accept.as_bytes()[..4], [0, 0, 2, 1]);
    let mut padded = accept.as_bytes().to_vec();
    padded[4..].fill(0xaa); // SPDK's targets send what was on the stack
    padded.resize(196, 0);
    for len in 0..=padded.len() {
        assert_eq!(AcceptData::parse(&padded[..len]), (len >= 32).then_some(0x0102), "{len}");
    }
    for (number, &status) in (1..).zip(RejectStatus::ALL) {
        let reject = RejectData::new(status);
        assert_eq!(reject.as_bytes(), [0, 0, number, 0], "{status}");
        let mut padded = reject.as_bytes().to_vec();
        padded.resize(148, 0);
        for len in 0..=padded.len() {
            assert_eq!(RejectData::parse(&padded[..len]), (len >= 4).then_some(status), "{len}");
        }
    }
    assert_eq!(RejectStatus::ALL.len(), 9);
    assert_eq!(RejectData::parse(&[0, 0, 0x34, 0x12]), Some(RejectStatus::Other(0x1234)));
    assert_eq!(RejectStatus::Other(0x1234).to_wire(), 0x1234);
    assert_eq!(RejectData::parse(&[1, 0, 1, 0]), None, "of another format");
    assert_eq!(AcceptData::parse(&[1; 32]), None, "of another format");
}

#[test]
fn a_capsule_has_at_least_a_command() {
    let whole = capsule(READ, descriptor(0, 0, 0, 0x40), &[]);
    for len in 0..64 {
        let parsed = CommandCapsule::parse(&whole[..len], &LIMITS);
        assert_eq!(parsed, Err(Violation::CommandShort), "{len} bytes");
    }
    let parsed = CommandCapsule::parse(&whole, &LIMITS).unwrap();
    assert_eq!((parsed.sqe.command_id(), parsed.data), (CommandId(0x0102), Ok(HostData::None)));
}

#[test]
fn a_response_has_exactly_16_bytes() {
    let cqe = Cqe { sqhd: 5, cid: CommandId(7), ..Cqe::default() };
    let mut bytes = cqe.to_bytes().to_vec();
    assert_eq!(parse_response(&bytes), Ok(cqe));
    bytes.push(0);
    for len in (0..=17).filter(|&len| len != 16) {
        assert_eq!(parse_response(&bytes[..len]), Err(Violation::ResponseLength), "{len} bytes");
    }
}

#[test]
fn keyed_blocks_byte_by_byte() {
    let block = KeyedBlock { address: 0x0102_0304_0506_0708, len: 0x0a_0b0c, key: 0xd1d2_d3d4 };
    let wire = [8, 7, 6, 5, 4, 3, 2, 1, 0x0c, 0x0b, 0x0a, 0xd4, 0xd3, 0xd2, 0xd1, 0x40];
    assert_eq!(block.descriptor(false).as_bytes(), wire);
    assert_eq!(data(READ, wire, &[]), Ok(HostData::Keyed { block, invalidate: false }));
    let mut invalidating = wire;
    invalidating[15] = 0x4f;
    assert_eq!(block.descriptor(true).as_bytes(), invalidating);
    let parsed = data(WRITE, invalidating, &[]).unwrap();
    assert_eq!(parsed, HostData::Keyed { block, invalidate: true });
    assert_eq!((parsed.key_to_invalidate(), parsed.len()), (Some(block.key), block.len));
    assert_eq!(parsed.blocks(&[]).collect::<Vec<_>>(), [block]);
    // Without bytes the key means nothing, and is not invalidated.
    assert_eq!(data(READ, descriptor(1, 0, 2, 0x4f), &[]), Ok(HostData::None));
    // Above MDTS.
    let long = descriptor(0, (1 << 20) + 1, 1, 0x40);
    assert_eq!(data(READ, long, &[]), Err(Status::DATA_SGL_LENGTH_INVALID.dnr()));
}

#[test]
fn other_descriptors_are_refused_by_type_and_subtype() {
    let known = [0x01, 0x31, 0x40, 0x4f];
    for kind in (0..=255u8).filter(|kind| !known.contains(kind)) {
        let expected = match kind >> 4 {
            0 | 3 | 4 => Status::INVALID_FIELD,
            _ => Status::SGL_DESCRIPTOR_TYPE_INVALID,
        };
        assert_eq!(data(READ, descriptor(0, 512, 1, kind), &[]), Err(expected.dnr()), "{kind:x}");
    }
    assert_eq!(data(READ, [0; 16], &[]), Ok(HostData::None), "empty, and of zeroes");
    let mut prp = capsule(READ, descriptor(0, 512, 1, 0x40), &[]);
    prp[1] = 0;
    let parsed = CommandCapsule::parse(&prp, &LIMITS).unwrap();
    assert_eq!(parsed.data, Err(Status::INVALID_FIELD.dnr()), "PSDT 00b is a PRP");
}

#[test]
fn data_in_the_capsule_are_bounded_by_what_was_received() {
    let sgl = |at, len| offset(at, len, 0x01);
    let behind = [0xab; 512];
    let found = data(WRITE, sgl(0, 512), &behind);
    assert_eq!(found, Ok(HostData::InCapsule { start: 64, len: 512 }));
    assert_eq!(data(WRITE, sgl(12, 500), &behind), Ok(HostData::InCapsule { start: 76, len: 500 }));
    for received in 0..512 {
        let found = data(WRITE, sgl(0, 512), &behind[..received]);
        assert_eq!(found, Err(Status::DATA_SGL_LENGTH_INVALID.dnr()), "{received} bytes");
    }
    for (at, len, status) in [
        (13, 500, Status::DATA_SGL_LENGTH_INVALID),
        (0, u32::MAX, Status::DATA_SGL_LENGTH_INVALID),
        (513, 1, Status::INVALID_SGL_OFFSET),
        (u64::MAX, 1, Status::INVALID_SGL_OFFSET),
        (u64::MAX - 63, 512, Status::INVALID_SGL_OFFSET),
    ] {
        assert_eq!(data(WRITE, sgl(at, len), &behind), Err(status.dnr()), "{at} {len}");
    }
    let to_host = data(READ, sgl(0, 512), &behind);
    assert_eq!(to_host, Err(Status::INVALID_FIELD.dnr()), "a response has no data");
    // Above what the queue's capsules hold, even if they were received.
    let capsule = capsule(WRITE, sgl(0, 512), &behind);
    let none = CapsuleLimits { in_capsule_bytes: 0, ..LIMITS };
    let parsed = CommandCapsule::parse(&capsule, &none).unwrap();
    assert_eq!(parsed.data, Err(Status::DATA_SGL_LENGTH_INVALID.dnr()));
}

#[test]
fn lists_are_bounded_by_what_was_received() {
    let blocks: Vec<_> =
        (1..=17).map(|n| KeyedBlock { address: n.into(), len: n * 100, key: n }).collect();
    let list: Vec<u8> =
        blocks.iter().flat_map(|block| block.descriptor(false).as_bytes().to_vec()).collect();
    for count in 1..=16 {
        let message = capsule(READ, offset(0, count * 16, 0x31), &list);
        let parsed = CommandCapsule::parse(&message, &LIMITS).unwrap().data.unwrap();
        let expected = &blocks[..usize::try_from(count).unwrap()];
        assert_eq!(parsed.blocks(&message).collect::<Vec<_>>(), expected);
        assert_eq!(parsed.len(), expected.iter().map(|block| block.len).sum::<u32>());
        assert_eq!(parsed.key_to_invalidate(), None);
    }
    let refused = |sgl1, behind: &[u8], status: Status| {
        assert_eq!(data(READ, sgl1, behind), Err(status.dnr()), "{sgl1:?}");
    };
    refused(offset(0, 17 * 16, 0x31), &list, Status::INVALID_SGL_COUNT);
    refused(offset(0, u32::MAX - 15, 0x31), &list, Status::INVALID_SGL_COUNT);
    refused(offset(16, 16, 0x31), &list, Status::INVALID_SGL_OFFSET);
    refused(offset(0, 0, 0x31), &list, Status::INVALID_SGL_SEGMENT);
    for odd in 1..16 {
        refused(offset(0, 16 + odd, 0x31), &list, Status::INVALID_SGL_SEGMENT);
        let short = usize::try_from(16 + odd).unwrap();
        refused(offset(0, 32, 0x31), &list[..short], Status::INVALID_SGL_SEGMENT);
    }
    // One key per response can be invalidated; lists are of plain blocks.
    refused(offset(0, 16, 0x31), &descriptor(0, 1, 1, 0x4f), Status::INVALID_FIELD);
    refused(offset(0, 16, 0x31), &descriptor(0, 1, 1, 0x5a), Status::SGL_DESCRIPTOR_TYPE_INVALID);
    let large = [descriptor(0, 1 << 20, 1, 0x40), descriptor(0, 1, 1, 0x40)].concat();
    refused(offset(0, 32, 0x31), &large, Status::DATA_SGL_LENGTH_INVALID);
    // Admin queues take one descriptor, in the command.
    let admin = capsule(READ, offset(0, 16, 0x31), &list);
    let parsed = CommandCapsule::parse(&admin, &CapsuleLimits::admin(&LIMITS)).unwrap();
    assert_eq!(parsed.data, Err(Status::INVALID_SGL_COUNT.dnr()));
}

#[test]
fn fabrics_commands_say_their_direction_with_fctype() {
    // Connect, FCTYPE 1, goes to the controller: 1,024 bytes in the capsule, from hosts that do so.
    let mut connect = capsule(0x7f, offset(0, 1024, 0x01), &[0; 1024]);
    connect[4] = 1;
    let parsed = CommandCapsule::parse(&connect, &LIMITS).unwrap();
    assert_eq!(parsed.data, Ok(HostData::InCapsule { start: 64, len: 1024 }));
    connect[4] = 6; // Authentication Receive
    let parsed = CommandCapsule::parse(&connect, &LIMITS).unwrap();
    assert_eq!(parsed.data, Err(Status::INVALID_FIELD.dnr()));
}

#[test]
fn a_controller_sees_a_transfer_of_as_many_bytes() {
    let message = capsule(READ, descriptor(0x1000, 8192, 9, 0x4f), &[]);
    let CommandCapsule { sqe, data } = CommandCapsule::parse(&message, &LIMITS).unwrap();
    let seen = data.unwrap().for_controller(&sqe);
    assert_eq!(seen.sgl1, SglDescriptor::transport(8192));
    assert_eq!(Sqe { sgl1: sqe.sgl1, ..seen }, sqe);
}

#[test]
fn longest_capsules() {
    assert_eq!(LIMITS.capsule_len(), 64 + 4096);
    assert_eq!(CapsuleLimits { in_capsule_bytes: 0, ..LIMITS }.capsule_len(), 64 + 256);
    // Those of admin queues hold data, and no list.
    assert_eq!(CapsuleLimits::admin(&LIMITS).capsule_len(), 64 + 4096);
    let small = CapsuleLimits { in_capsule_bytes: 128, ..LIMITS };
    assert_eq!(CapsuleLimits::admin(&small).capsule_len(), 64 + 128);
}

#[test]
fn tsas_of_a_listener() {
    let tsas = Tsas::new(PRTYPE_NONE);
    assert_eq!(tsas.to_bytes()[..10], [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert!(tsas.is_usable() && !Tsas::default().is_usable());
    assert!(!Tsas { qptype: 2, ..tsas }.is_usable(), "unreliable datagrams");
}

#[test]
fn outcomes_have_a_cause() {
    for status in (0..=23).map(WorkStatus) {
        assert_eq!(status.cause().is_none(), status.is_success(), "{status}");
    }
    assert_eq!(WorkStatus::WR_FLUSH_ERR.cause(), Some(Cause::Flushed));
    assert_eq!(WorkStatus::REM_ACCESS_ERR.cause(), Some(Cause::PeerRefused));
    assert_eq!(WorkStatus::RNR_RETRY_EXC_ERR.cause(), Some(Cause::PeerNotReady));
    assert_eq!(WorkStatus(999).cause(), Some(Cause::Local), "unknown ones are not overlooked");
}

proptest! {
    /// Any bytes: no panic, and what is found lies within the message and the limits.
    #[test]
    fn any_message(
        mut message in prop::collection::vec(any::<u8>(), 0..512),
        kind in prop::sample::select(vec![0x01, 0x31, 0x40, 0x4f, 0x00, 0x5a]),
        in_capsule_bytes in 0u32..512,
        descriptors in 0u8..=255,
    ) {
        if message.len() >= 64 {
            message[1] = Sqe::PSDT_SGL;
            message[39] = kind;
            message[34..36].fill(0); // lengths that are not always too large
        }
        let limits = CapsuleLimits { in_capsule_bytes, descriptors, transfer_bytes: 1 << 16 };
        if let Ok(CommandCapsule { data: Ok(data), .. }) = CommandCapsule::parse(&message, &limits) {
            prop_assert!(data.len() <= limits.transfer_bytes);
            if let HostData::InCapsule { start, len } = data {
                let end = usize::try_from(start + len).unwrap();
                prop_assert!(start >= 64 && end <= message.len());
                prop_assert!(start + len - 64 <= in_capsule_bytes);
            } else {
                let total: u32 = data.blocks(&message).map(|block| block.len).sum();
                prop_assert_eq!(total, data.len());
            }
        }
        let _ = (QueueRequest::parse(&message), parse_response(&message));
    }
}
