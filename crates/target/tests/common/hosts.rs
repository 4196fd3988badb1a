//! Several hosts beside each other, which have weights.

use std::net::SocketAddr;

use raceline_proto::nvme::fabrics::{ConnectData, ConnectWords};
use raceline_proto::nvme::{ControllerId, HostId, Nqn, QueueId};
use raceline_target::Weight;

use super::{RawHost, Wants, nqn};

/// The name of a host.
pub fn host(number: u64) -> Nqn {
    Nqn::new(&format!("nqn.2026-01.io.raceline:host-{number}")).unwrap()
}

/// The admin queue of a host, and its I/O queues with this number of entries.
pub fn connect_with(
    address: SocketAddr,
    number: u64,
    (queues, entries): (u16, u16),
) -> (RawHost, Vec<RawHost>) {
    let open = |qid: u16, cntlid: ControllerId| {
        let mut queue = RawHost::open(address, Wants::default());
        let entries = if qid == 0 { 32 } else { entries };
        let words =
            ConnectWords { recfmt: 0, qid: QueueId(qid), sqsize: entries - 1, cattr: 4, kato: 0 };
        let id = HostId([u8::try_from(number).unwrap(); 16]);
        let data = ConnectData::new(id, cntlid, &nqn(), &host(number));
        let cqe = queue.connect_with(words, &data);
        assert!(cqe.status.is_success(), "{}", cqe.status);
        (queue, ControllerId(u16::try_from(cqe.dw0 & 0xffff).unwrap()))
    };
    let (mut admin, cntlid) = open(0, ControllerId::DYNAMIC);
    assert!(admin.set_property(0x14, 0x0046_0001).status.is_success());
    (admin, (1..=queues).map(|qid| open(qid, cntlid).0).collect())
}

pub fn weight(number: u16) -> Option<Weight> {
    Some(Weight::new(number).unwrap())
}
