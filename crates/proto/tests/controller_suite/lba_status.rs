//! Get LBA Status: what it asks, what is refused, and how the answer is put together.

use std::ops::Range;
use std::slice::from_ref;

use raceline_proto::controller::{AdminOutcome, Controller, LbaState, LbaStatusQuery};
use raceline_proto::nvme::identify::cns;
use raceline_proto::nvme::opcode::admin;
use raceline_proto::nvme::{NamespaceId, SglDescriptor, Sqe, Status};

use super::support::{Host, subsystem};

/// Namespace 1 knows its holes, namespace 2 takes Write Uncorrectable.
fn host() -> Host {
    let mut special = subsystem();
    special.namespaces[0].knows_holes = true;
    special.namespaces[1].uncorrectable = true;
    Host::ready_with(special)
}

fn status(nsid: u32, action: u32, slba: u32, blocks: u32, dwords: u32) -> Sqe {
    Sqe {
        opc: admin::GET_LBA_STATUS,
        flags: Sqe::PSDT_SGL,
        nsid: nsid.into(),
        sgl1: SglDescriptor::transport(dwords * 4),
        cdw10: slba.into(),
        cdw12: (dwords - 1).into(),
        cdw13: (action << 24 | blocks).into(),
        ..Sqe::default()
    }
}

fn run(
    controller: &mut Controller,
    host: (std::time::Instant, &Sqe),
    reply: &mut [u8],
) -> AdminOutcome {
    controller.handle_admin(
        host.0,
        host.1,
        &[],
        reply,
        &raceline_proto::controller::Facts::default(),
    )
}

#[test]
fn a_query_names_its_blocks_and_its_room() {
    let mut host = host();
    for (sqe, nsid, state, blocks, most) in [
        (status(1, 0x02, 0, 0, 1024), 1, LbaState::Allocated, 0..2048, 255),
        (status(1, 0x02, 7, 9, 2), 1, LbaState::Allocated, 7..16, 0),
        (status(2, 0x10, 2047, 1, 6), 2, LbaState::Unreadable, 2047..2048, 1),
        (status(2, 0x11, 0, 2048, 13), 2, LbaState::Unreadable, 0..2048, 2),
    ] {
        let len = usize::try_from(host.controller.transfer(&sqe).unwrap().len).unwrap();
        let outcome = run(&mut host.controller, (host.now, &sqe), &mut vec![0; len]);
        let query = LbaStatusQuery { nsid: NamespaceId(nsid), state, blocks, most };
        assert_eq!(outcome, AdminOutcome::LbaStatus(query.into()), "{sqe:?}");
    }
    // A device without marks is not asked.
    let mut reply = [0; 64];
    let sqe = status(1, 0x10, 0, 0, 16);
    assert_eq!(run(&mut host.controller, (host.now, &sqe), &mut reply), AdminOutcome::success(0));
    assert_eq!(reply[..8], [0, 0, 0, 0, 2, 0, 0, 0]);
}

#[test]
fn what_cannot_be_told_is_refused() {
    let mut host = host();
    for (sqe, expected) in [
        (status(2, 0x02, 0, 0, 16), Status::INVALID_FIELD),
        (status(1, 0x00, 0, 0, 16), Status::INVALID_FIELD),
        (status(1, 0x02, 2048, 0, 16), Status::LBA_OUT_OF_RANGE),
        (status(1, 0x02, 2000, 49, 16), Status::LBA_OUT_OF_RANGE),
        (status(0, 0x02, 0, 0, 16), Status::INVALID_NAMESPACE),
        (status(3, 0x02, 0, 0, 16), Status::INVALID_NAMESPACE),
        (status(u32::MAX, 0x02, 0, 0, 16), Status::INVALID_NAMESPACE),
    ] {
        let outcome = run(&mut host.controller, (host.now, &sqe), &mut [0; 64]);
        assert_eq!(outcome, AdminOutcome::status(expected.dnr()), "{sqe:?}");
    }
    // No namespace of the subsystem knows anything.
    let mut other = Host::ready();
    let sqe = status(1, 0x10, 0, 0, 16);
    assert_eq!(other.controller.transfer(&sqe), Err(Status::INVALID_OPCODE.dnr()));
    let outcome = run(&mut other.controller, (other.now, &sqe), &mut [0; 64]);
    assert_eq!(outcome, AdminOutcome::status(Status::INVALID_OPCODE.dnr()));
}

#[test]
fn support_is_advertised_with_the_devices() {
    let mut host = host();
    let data = host.identify(cns::CONTROLLER, 0).ok().data;
    assert_eq!((data[257] & 0b10, data[520] & 0b10), (0b10, 0b10), "OACS bit 9, ONCS bit 1");
}

/// An answer with room for some bytes: NLSD, CMPC, and the descriptors.
fn put(most: usize, found: &[Range<u64>], len: usize) -> (u32, u8, Vec<(u64, u32)>) {
    let (nsid, state) = (NamespaceId(1), LbaState::Allocated);
    let query = LbaStatusQuery { nsid, state, blocks: 0..u64::MAX, most };
    let mut reply = vec![0; len];
    query.put(found, &mut reply);
    let (head, list) = reply.split_at(8);
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    let descriptors = list
        .chunks_exact(16)
        .map(|part| (u64::from_le_bytes(part[..8].try_into().unwrap()), number(&part[8..12])));
    (number(&head[..4]), head[4], descriptors.collect())
}

#[test]
fn an_answer_says_whether_it_is_whole() {
    const FULL: u8 = 1;
    const ALL: u8 = 2;
    assert_eq!(put(2, &[], 40), (0, ALL, vec![(0, 0), (0, 0)]));
    assert_eq!(put(2, from_ref(&(3..5)), 40), (1, ALL, vec![(3, 2), (0, 0)]));
    // There may be more.
    assert_eq!(put(2, &[3..5, 9..10], 40), (2, FULL, vec![(3, 2), (9, 1)]));
    // More blocks than a descriptor can tell.
    let large = 1 << 33;
    let most = u32::MAX;
    let rest = u32::try_from(large - 2 * u64::from(most)).unwrap();
    let third = (2 * u64::from(most), rest);
    assert_eq!(
        put(9, from_ref(&(0..large)), 56),
        (3, ALL, vec![(0, most), (most.into(), most), third])
    );
    assert_eq!(put(9, from_ref(&(0..large)), 40).1, FULL);
    assert_eq!(put(0, &[], 8), (0, FULL, vec![]));
    // A host that has room for half of the head gets that.
    let (nsid, state) = (NamespaceId(1), LbaState::Unreadable);
    let query = LbaStatusQuery { nsid, state, blocks: 0..1, most: 0 };
    let mut reply = [7; 4];
    query.put(&[], &mut reply);
    assert_eq!(reply, [0; 4]);
}
