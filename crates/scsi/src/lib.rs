//! The SCSI disk that an iSCSI target exports (SPC-5, SBC-4), without I/O: no sockets, clock or threads.
//!
//! [`plan`] says what a command means for a logical unit, once, against facts that do not change while it looks: the
//! [`Lun`], its [`LunState`], what reservations leave to the I_T nexus ([`Admission`]). The answer is a [`Plan`]: data,
//! a refusal, or work on blocks that are on the disk. The driver does the work and sends status and data; the
//! [`Transfer`] says how much moves and what the response says of the rest.
//!
//! ```
//! use raceline_scsi::*;
//!
//! let identity = Identity {
//!     uuid: [7; 16],
//!     nguid: [0; 16],
//!     eui64: [0; 8],
//!     serial: "0001".to_owned(),
//!     vendor: AsciiField::new("RACELINE"),
//!     product: AsciiField::new("disk"),
//!     revision: AsciiField::new("1"),
//! };
//! let lun = Lun {
//!     block_size: 512,
//!     block_count: 1 << 20,
//!     physical_block_size: 512,
//!     io_boundary_bytes: 0,
//!     read_only: false,
//!     volatile_write_cache: true,
//!     deallocate: true,
//!     deallocate_zeroes: true,
//!     knows_holes: false,
//!     identity,
//!     limits: Limits::new(1 << 20),
//! };
//! let port = Port { group: 1, relative: 1 };
//! let groups = vec![PortGroup { tag: 1, state: PortGroupState::Optimized, ports: vec![1] }];
//! let target = TargetFacts { name: "iqn.2026-01.org.example:a".to_owned(), groups, luns: vec![0] };
//! let state = LunState::default();
//! let view = View {
//!     lun: &lun,
//!     state: &state,
//!     admission: Admission::ALL,
//!     target: &target,
//!     port,
//!     port_state: PortGroupState::Optimized,
//! };
//! // READ (10) of two blocks from block 8 on, for which the initiator expects 1,024 bytes
//! let cdb = [0x28, 0, 0, 0, 0, 8, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
//! let request = Request { cdb, edtl: 1024, direction: DataDirection::In };
//! let Plan::Read { blocks, transfer, .. } = plan(&view, &mut Attentions::default(), &request) else {
//!     panic!("it is valid");
//! };
//! assert_eq!((blocks.lba, blocks.count), (8, 2));
//! assert_eq!((transfer.bytes, transfer.residual), (1024, Residual::None));
//! ```

#![forbid(unsafe_code)]

pub mod capacity;
pub mod cdb;
pub mod copy;
pub mod data;
pub mod inquiry;
mod lun;
pub mod mode;
pub mod opcodes;
mod plan;
pub mod reservation;
mod sense;
mod state;
mod status;
mod transfer;
mod unit_attention;
pub mod unmap;
pub mod vpd;

pub use lun::{
    AsciiField, Identity, Limits, Lun, Port, PortGroup, PortGroupState, TargetFacts, lun_from_wire,
    lun_to_wire,
};
pub use mode::ModeSettings;
pub use plan::{
    Check, Parameters, Plan, Refused, Reply, SameData, View, plan, plan_without_lun, refuse,
    reply_copy_status, reply_lba_status,
};
pub use reservation::{Admission, Nexus, Reservations};
pub use sense::{DeviceError, FieldPointer, MAX_SENSE_LEN, Sense, SenseData, SenseKey};
pub use state::{Change, LunState, Outcome, Whom};
pub use status::{Refusal, Status};
pub use transfer::{DataDirection, Request, Residual, Transfer};
pub use unit_attention::{Attentions, UnitAttention};
pub use unmap::{Blocks, unmapped_blocks};
