//! A host of NVMe for tests of reservations, with a name and an identifier of its own.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;

use raceline_proto::nvme::fabrics::{ConnectData, ConnectWords};
use raceline_proto::nvme::opcode::{admin, io};
use raceline_proto::nvme::reservation::ReservationType;
use raceline_proto::nvme::rw::CopyRange;
use raceline_proto::nvme::{CommandId, ControllerId, Direction, HostId, Nqn, QueueId, Sqe, Status};
use zerocopy::IntoBytes;

use crate::common::{RawHost, Wants, block_sqe, nqn, pattern, status};

pub const BS: u32 = 512;

/// What a host has: its two queues, and who it is.
pub struct Host {
    pub admin: RawHost,
    pub queue: RawHost,
}

pub fn host_name(number: u8) -> Nqn {
    Nqn::new(&format!("nqn.2026-01.io.raceline:host{number}")).unwrap()
}

pub fn key(number: u8) -> u64 {
    0x1000 + u64::from(number)
}

impl Host {
    pub fn connect(address: SocketAddr, number: u8) -> Self {
        Self::connect_as(address, number, [HostId([number; 16]); 2])
    }

    /// Admin queue and I/O queue with these host identifiers.
    pub fn connect_as(address: SocketAddr, number: u8, ids: [HostId; 2]) -> Self {
        let words = |qid| ConnectWords { recfmt: 0, qid, sqsize: 31, cattr: 4, kato: 0 };
        let data = |id, cntlid| ConnectData::new(id, cntlid, &nqn(), &host_name(number));
        let mut admin = RawHost::open(address, Wants::default());
        let cqe = admin.connect_with(words(QueueId::ADMIN), &data(ids[0], ControllerId::DYNAMIC));
        assert!(cqe.status.is_success(), "{}", cqe.status);
        let cntlid = ControllerId(u16::try_from(cqe.dw0 & 0xffff).unwrap());
        assert!(admin.set_property(0x14, 0x0046_0001).status.is_success());
        let mut queue = RawHost::open(address, Wants::default());
        let cqe = queue.connect_with(words(QueueId(1)), &data(ids[1], cntlid));
        assert!(cqe.status.is_success(), "{}", cqe.status);
        Self { admin, queue }
    }

    pub fn enable_copy_across(&mut self) {
        let mut page = [0; 512];
        page[4] = 1 << 2;
        let sqe = Sqe { opc: admin::SET_FEATURES, cdw10: 0x16.into(), ..Sqe::default() };
        ok(status(&self.admin.write_command(sqe, &page, true)));
    }

    /// Copies a block of namespace 1 to namespace 2.
    pub fn copy_from(&mut self) -> Status {
        let range = CopyRange { snsid: 1.into(), ..CopyRange::default() };
        let sqe = Sqe { cdw12: (2 << 8).into(), ..block_sqe(io::COPY, 2, 1000, 1) };
        status(&self.queue.write_command(sqe, range.as_bytes(), true))
    }

    pub fn reserve(&mut self, opc: u8, cdw10: u32, keys: [u64; 2]) -> Status {
        let sqe = Sqe { opc, nsid: 1.into(), cdw10: cdw10.into(), ..Sqe::default() };
        let len = if opc == io::RESERVATION_RELEASE { 8 } else { 16 };
        status(&self.queue.write_command(sqe, &keys.as_bytes()[..len], true))
    }

    pub fn register(&mut self, new: u64) -> Status {
        self.reserve(io::RESERVATION_REGISTER, 0, [0, new])
    }

    pub fn acquire(&mut self, current: u64, kind: ReservationType) -> Status {
        self.reserve(io::RESERVATION_ACQUIRE, u32::from(kind.to_wire()) << 8, [current, 0])
    }

    pub fn preempt(&mut self, keys: [u64; 2], kind: ReservationType, abort: bool) -> Status {
        let action = if abort { 2 } else { 1 };
        self.reserve(io::RESERVATION_ACQUIRE, u32::from(kind.to_wire()) << 8 | action, keys)
    }

    pub fn clear(&mut self, current: u64) -> Status {
        self.reserve(io::RESERVATION_RELEASE, 1, [current, 0])
    }

    /// GEN, RTYPE, and for each registrant: the first byte of its identifier, its key, whether it holds the reservation.
    pub fn report(&mut self) -> (u32, u8, Vec<(u8, u64, bool)>) {
        let sqe = Sqe {
            opc: io::RESERVATION_REPORT,
            nsid: 1.into(),
            cdw10: 1023.into(),
            cdw11: 1.into(),
            ..Sqe::default()
        };
        let answer = self.queue.read_command(sqe, 4096);
        assert!(status(&answer).is_success(), "{}", status(&answer));
        let data = answer.data;
        let count = usize::from(u16::from_le_bytes([data[5], data[6]]));
        let registrants = (1..=count).map(|place| {
            let entry = &data[place * 64..][..64];
            let key = u64::from_le_bytes(entry[8..16].try_into().unwrap());
            (entry[16], key, entry[2] & 1 == 1)
        });
        (u32::from_le_bytes(data[..4].try_into().unwrap()), data[4], registrants.collect())
    }

    pub fn write(&mut self, seed: u64, len: usize) -> Status {
        status(&self.queue.write(1, 0, &pattern(seed, len), BS))
    }

    pub fn read(&mut self) -> Status {
        status(&self.queue.read(1, 0, 8, BS))
    }

    pub fn request_event(&mut self) -> CommandId {
        let sqe = Sqe { opc: admin::ASYNC_EVENT_REQUEST, ..Sqe::default() };
        self.admin.submit(sqe, Direction::None, 0)
    }

    /// The Reservation Notification log page: type and NSID.
    pub fn notice(&mut self) -> (u8, u32) {
        let sqe = Sqe {
            opc: admin::GET_LOG_PAGE,
            nsid: u32::MAX.into(),
            cdw10: (0x80 | 15 << 16).into(),
            ..Sqe::default()
        };
        let page = self.admin.read_command(sqe, 64).data;
        (page[8], u32::from_le_bytes(page[12..16].try_into().unwrap()))
    }
}

pub fn ok(status: Status) {
    assert!(status.is_success(), "{status}");
}
