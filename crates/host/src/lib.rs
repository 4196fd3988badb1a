//! NVMe/TCP host: queue pairs, controllers, remote namespaces as block devices.
//!
//! Three ways to use it:
//!
//! * the poll API, for programs that own their reactor: a [`Controller`] brings an association up
//!   and keeps it alive, an [`IoQueueSet`] holds I/O queues of one core, both driven by the
//!   completions of [`raceline_reactor::Io`];
//! * queues that the program's own threads drive ([`caller::CallerHost`]), without a reactor: the
//!   shortest way for a thread that submits and waits itself;
//! * the blocking API ([`blocking::Host`]): calls that return when it is done, from any number of
//!   threads, over queues that these threads share and drive.
//!
//! A [`RemoteController`] has namespaces that are each a [`raceline_bdev::Bdev`].
//!
//! The poll API never blocks and does not allocate per command. One turn of the loop is:
//! completions into `handle_completion`, results out of `poll_done` and `poll_event`, new
//! commands into `submit`, and once at its end `flush`, which sends all that is ready at once.
//!
//! With several cores, the core of the [`Controller`] sends [`ControllerEvent`]s to the others
//! (an [`Association`] and a [`HostError`] are `Clone + Send`), which give them to their
//! [`IoQueueSet`], and send [`IoQueueEvent::Lost`] back for [`Controller::queue_lost`].
//!
//! A lost controller is connected again, with growing delays. Commands wait meanwhile. Reads that
//! were in flight are sent again; whatever else was in flight ends with
//! [`CommandError::UnknownFate`], because it may have been executed, and is never replayed.

mod admin_link;
pub mod blocking;
pub mod caller;
pub mod command;
pub mod config;
pub mod controller;
mod counters;
pub mod error;
mod follower;
pub mod gather;
pub mod maps;
pub mod naming;
pub mod placement;
pub mod queue;
pub mod queue_set;
pub mod remote;
pub mod shared;
mod split;
mod summary;
mod sync;

pub use admin_link::AdminLink;
pub use caller::{CallerHost, CallerOptions, CallerQueues};
pub use command::{Command, CommandDone, CommandSummary, Data, Hints, Rejected};
pub use config::{Association, HostConfig, QueuePairConfig};
pub use controller::{Controller, ControllerEvent};
pub use counters::{QueueCounters, QueueTotals};
pub use error::{CommandError, HostError, RejectedReason};
pub use gather::I10Config;
pub use maps::{CoreMaps, CorePlace, QueueKind, QueueMaps, QueueRequest};
pub use placement::HostPlacement;
pub use queue::{QueueEvent, QueuePair};
pub use queue_set::{IoQueueEvent, IoQueueSet};
pub use raceline_proto::host::{BackoffConfig, BlockRange, ControllerInfo, NamespaceInfo};
pub use raceline_reactor::Arrival;
pub use remote::{RemoteController, RemoteNamespace, RemoteState};
pub use shared::{Pending, Poller, SharedError, SharedOptions, SharedQueues, SharedTotals};
