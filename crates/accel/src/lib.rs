//! CRC32C and other data operations, on the CPU or on offload engines.
//!
//! [`crc32c`] and [`Crc32c`], which come from the crate `raceline-crc32c`, are the way to a digest that
//! costs no submission: for headers, and wherever waiting makes no sense. Everything else goes through
//! a [`Channel`], one per core, that a [`Framework`] opens: the table of the process says which engine
//! does which [`Operation`]. The engines themselves are other crates.
//!
//! ```
//! use std::time::Instant;
//! use raceline_accel::{ChannelConfig, Framework, Output, Submitted, Work};
//!
//! let framework = Framework::software();
//! let mut channel = framework.open_channel::<Vec<u8>, Vec<u8>>(&ChannelConfig::default())?;
//! let mut done = Vec::new();
//! match channel.submit(7, Work::crc32c(0, b"123456789".to_vec())) {
//!     Submitted::Done(now) => done.push(now),
//!     Submitted::Pending => channel.kick(),
//!     Submitted::Full(_) => panic!("the first operation finds a slot"),
//! }
//! while done.is_empty() {
//!     channel.poll(Instant::now(), &mut done);
//! }
//! assert_eq!((done[0].token, done[0].result), (7, Ok(Output::Crc32c(0xE306_9283))));
//! # Ok::<(), raceline_accel::TableError>(())
//! ```

mod channel;
mod copier;
mod deflate;
mod engine;
mod flights;
mod inject;
mod memory;
mod operation;
mod queued;
mod software;
mod stats;
mod table;
mod work;

pub use channel::{Channel, ChannelConfig, Submitted};
pub use copier::Copier;
pub use engine::{Capabilities, Engine, EngineQueue, RawRequest, RawResult, Refused, SlotId};
pub use inject::{Injection, InjectionKind};
pub use memory::{Piece, PieceMut, Source, Target, Upcoming};
pub use operation::{AccelError, OpCode, OpSet, Operation, Output, UnknownOpCode};
pub use raceline_crc32c::{Crc32c, CrcPath, CrcPathError, crc32c};
pub use stats::{OpStatistics, Statistics};
pub use table::{Framework, ModuleInfo, SOFTWARE, TableError};
pub use work::{Done, Part, Work};
