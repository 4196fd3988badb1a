//! iSCSI initiator: sessions over a reactor, and logical units as block devices.
//!
//! A [`Session`] is one iSCSI session with one TCP connection, driven by the completions of
//! [`raceline_reactor::Io`]. It never blocks, and allocates nothing per command. One turn of the loop is: completions
//! into [`Session::handle_completion`], results out of [`Session::poll_done`] and [`Session::poll_event`], new tasks
//! into [`Session::submit`], and once at its end [`Session::flush`], which sends all that is ready in one call.
//!
//! Data of reads land in the buffer of their task, and data of writes leave from theirs. A target that wants several
//! cores to be used gets several sessions, one on each core.
//!
//! [`BlockingSession`] is the same for calls that wait. [`LunBdev`] is a logical unit as a [`raceline_bdev::Bdev`], which
//! a target can export again.
//!
//! A lost session is made again, with growing delays. Tasks wait meanwhile. Reads that were in flight are sent again;
//! whatever else was in flight ends with [`TaskError::UnknownFate`], because it may have been executed, and is never
//! replayed.

pub mod blocking;
pub mod cdb;
mod check;
mod config;
mod counters;
mod error;
mod facts;
pub mod lun;
mod session;
mod task;
mod url;

pub use blocking::BlockingSession;
pub use check::CheckCondition;
pub use config::{Chap, SessionConfig};
pub use counters::{SessionCounters, SessionTotals};
pub use error::{LoginPhase, SessionError};
pub use facts::{UnitInfo, luns};
pub use lun::LunBdev;
pub use raceline_iscsi::chap::Secret;
pub use raceline_iscsi::initiator::DiscoveredTarget;
pub use raceline_iscsi::names::{Isid, Name, NameError};
pub use raceline_proto::host::BackoffConfig;
pub use session::{Session, SessionEvent};
pub use task::{Rejected, RejectedReason, Task, TaskData, TaskDone, TaskError};
pub use url::{IscsiUrl, UrlError};
