//! A disk for tests.

#![allow(dead_code, reason = "each test file uses a part of it")]

use raceline_scsi::{
    Admission, AsciiField, Attentions, DataDirection, Identity, Limits, Lun, LunState, Nexus, Plan,
    Port, PortGroup, PortGroupState, Refusal, Reply, Request, Residual, Sense, TargetFacts, View,
    plan,
};

pub(crate) const BLOCK_SIZE: u32 = 512;
pub(crate) const BLOCK_COUNT: u64 = 10_000;
pub(crate) const PORT: Port = Port { group: 1, relative: 1 };
/// `12345678-9abc-4def-8123-456789abcdef`
pub(crate) const UUID: [u8; 16] = [
    0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0x4d, 0xef, 0x81, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef,
];

pub(crate) fn lun() -> Lun {
    Lun {
        block_size: BLOCK_SIZE,
        block_count: BLOCK_COUNT,
        physical_block_size: 4096,
        io_boundary_bytes: 128 << 10,
        read_only: false,
        volatile_write_cache: true,
        deallocate: true,
        deallocate_zeroes: true,
        knows_holes: false,
        identity: Identity {
            uuid: UUID,
            nguid: [0xa0; 16],
            eui64: [0xe0; 8],
            serial: "0123456789".to_owned(),
            vendor: AsciiField::new("RACELINE"),
            product: AsciiField::new("disk"),
            revision: AsciiField::new("0.1"),
        },
        limits: Limits {
            max_transfer_bytes: 1 << 20,
            max_compare_and_write_blocks: 8,
            max_unmap_blocks: 4096,
            max_unmap_descriptors: 4,
            max_write_same_blocks: 5000,
        },
    }
}

pub(crate) fn target() -> TargetFacts {
    TargetFacts {
        name: "iqn.2026-01.org.example:disk".to_owned(),
        groups: vec![
            PortGroup { tag: 1, state: PortGroupState::Optimized, ports: vec![1] },
            PortGroup { tag: 2, state: PortGroupState::Standby, ports: vec![2, 3] },
        ],
        luns: vec![0, 5, 300],
    }
}

pub(crate) fn nexus(number: u8) -> Nexus {
    Nexus {
        initiator: format!("iqn.1994-05.com.example:{number}"),
        isid: [0, 2, 0x3d, 0, 0, number],
        target: "iqn.2026-01.org.example:disk".to_owned(),
        port: PORT,
    }
}

/// A disk with all that commands are checked against.
pub(crate) struct Disk {
    pub(crate) lun: Lun,
    pub(crate) state: LunState,
    pub(crate) target: TargetFacts,
    pub(crate) admission: Admission,
    pub(crate) attentions: Attentions,
    pub(crate) port_state: PortGroupState,
}

impl Disk {
    pub(crate) fn new() -> Self {
        Self {
            lun: lun(),
            state: LunState::default(),
            target: target(),
            admission: Admission::ALL,
            attentions: Attentions::NONE,
            port_state: PortGroupState::Optimized,
        }
    }

    pub(crate) fn plan(&mut self, request: &Request) -> Plan {
        let view = View {
            lun: &self.lun,
            state: &self.state,
            admission: self.admission,
            target: &self.target,
            port: PORT,
            port_state: self.port_state,
        };
        plan(&view, &mut self.attentions, request)
    }

    /// A command that reads as much as there is.
    pub(crate) fn data_in(&mut self, cdb: &[u8]) -> Plan {
        self.plan(&request(cdb, DataDirection::In, 1 << 24))
    }

    /// The data of a command that only tells something.
    pub(crate) fn data(&mut self, cdb: &[u8]) -> Vec<u8> {
        match self.data_in(cdb) {
            Plan::Reply(Reply { data, transfer }) => {
                assert_eq!(transfer.bytes as usize, data.len());
                data
            }
            other => panic!("{cdb:02x?}: {other:?}"),
        }
    }

    /// The sense of a command that is refused.
    pub(crate) fn sense(&mut self, cdb: &[u8], direction: DataDirection, edtl: u32) -> Sense {
        match self.plan(&request(cdb, direction, edtl)) {
            Plan::Refuse(refused) => match refused.why {
                Refusal::Check(sense) => sense,
                other => panic!("{cdb:02x?}: {other:?}"),
            },
            other => panic!("{cdb:02x?}: {other:?}"),
        }
    }
}

/// A CDB padded to 16 bytes.
pub(crate) fn cdb(bytes: &[u8]) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[..bytes.len()].copy_from_slice(bytes);
    cdb
}

pub(crate) fn request(bytes: &[u8], direction: DataDirection, edtl: u32) -> Request {
    Request { cdb: cdb(bytes), edtl, direction }
}

/// Hexadecimal digits, with any space between them, as bytes.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|char| char.to_digit(16)).collect();
    let byte = |pair: &[u32]| u8::try_from(pair[0] << 4 | pair[1]).expect("two digits");
    digits.chunks_exact(2).map(byte).collect()
}

/// The residual that must follow from what moves.
pub(crate) fn check_residual(request: &Request, plan: &Plan) {
    let transfer = match plan {
        Plan::Refuse(_) => return,
        Plan::Reply(reply) => reply.transfer,
        Plan::LbaStatus { .. } | Plan::CopyStatus { .. } => return,
        Plan::Read { transfer, .. }
        | Plan::Write { transfer, .. }
        | Plan::WriteAndVerify { transfer, .. }
        | Plan::OrWrite { transfer, .. }
        | Plan::CompareAndWrite { transfer, .. }
        | Plan::Verify { transfer, .. }
        | Plan::WriteSame { transfer, .. }
        | Plan::PreFetch { transfer, .. }
        | Plan::Flush { transfer }
        | Plan::Collect { transfer, .. }
        | Plan::Change { transfer, .. } => *transfer,
    };
    assert!(transfer.bytes <= request.edtl, "no more than is expected");
    assert_eq!(transfer.bytes == 0, transfer.direction == DataDirection::None);
    if transfer.bytes > 0 {
        assert_eq!(transfer.direction, request.direction);
    }
    let expects = request.direction != DataDirection::None;
    match transfer.residual {
        Residual::None => assert!(!expects || transfer.bytes == request.edtl),
        Residual::Underflow(rest) => {
            assert!(rest > 0 && expects);
            assert_eq!(transfer.bytes + rest, request.edtl);
        }
        Residual::Overflow(rest) => {
            assert!(rest > 0);
            let fills = transfer.bytes == request.edtl || transfer.bytes == 0;
            assert!(fills, "what is left over did not fit");
        }
    }
}
