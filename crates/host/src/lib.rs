//! NVMe/TCP host: queue pairs, controllers, remote namespaces as block devices.
//!
//! There is one queue, [`QueuePair`], and there are five faces over it:
//!
//! | face | who sends and receives | when to use it |
//! |---|---|---|
//! | [`queue_set`]: [`IoQueueSet`], with a [`Controller`] | the core's loop, over any [`raceline_reactor::Io`] | the program has a reactor and wants all that a core can do: the poll API |
//! | [`caller`]: [`CallerQueues`] | the thread that has the queues, when it calls | one thread submits and waits by itself, with memory of its own, and there is no reactor: the shortest way of such a thread |
//! | [`shared`]: [`SharedQueues`] | whichever thread calls, else a worker | many threads, or futures on any executor, share few queues |
//! | [`blocking`]: [`blocking::Host`] | the threads that call | calls are to return when they are done: tools, few operations at a time |
//! | [`remote`]: [`RemoteController`] | the core that has opened the channel | a namespace is to be a [`raceline_bdev::Bdev`], which a target can export again |
//!
//! `caller` and `remote` are made of `queue_set`, `shared` of `caller`, and `blocking` of `shared`. All but
//! `queue_set` leave the admin queue to a thread in the background ([`AdminLink`]).
//!
//! # The poll API
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
mod credentials;
pub mod error;
mod follower;
pub mod gather;
mod generated;
pub mod maps;
pub mod multipath;
pub mod naming;
mod path;
pub mod placement;
pub mod queue;
pub mod queue_set;
pub mod remote;
pub mod shared;
mod split;
mod summary;
mod sync;
pub mod transport;

pub use admin_link::AdminLink;
pub use caller::{CallerHost, CallerOptions, CallerQueues};
pub use command::{Command, CommandDone, CommandSummary, Data, Hints, Rejected};
pub use config::{Association, Concatenator, HostConfig, QueuePairConfig};
pub use controller::{Controller, ControllerEvent};
pub use counters::{LinkTotals, QueueCounters, QueueTotals};
pub use credentials::{CredentialStore, Credentials};
pub use error::{CommandError, HostError, RejectedReason};
pub use gather::I10Config;
pub use generated::GeneratedStreams;
pub use maps::{CoreMaps, CorePlace, QueueKind, QueueMaps, QueueRequest};
pub use multipath::{
    MultipathConfig, PathAddress, PathEvent, PathId, PathSet, PathSetEvent, Paths, Policy, Topology,
};
pub use placement::HostPlacement;
pub use queue::{QueueEvent, QueuePair};
pub use queue_set::{IoQueueEvent, IoQueueSet};
pub use raceline_auth::{Algorithms, DhGroup, DhchapSecret, Hash, KeyError};
pub use raceline_proto::host::{BackoffConfig, BlockRange, ControllerInfo, NamespaceInfo};
pub use raceline_reactor::Arrival;
pub use remote::{
    InjectedKind, Injection, MAX_INJECTED_DELAY, RemoteController, RemoteCounts, RemoteNamespace,
    RemotePath, RemoteState,
};
pub use shared::{Pending, Poller, SharedError, SharedOptions, SharedQueues, SharedTotals};
pub use transport::{RdmaDevices, SystemDevices, Transport};
