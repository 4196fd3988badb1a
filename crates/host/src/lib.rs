//! NVMe/TCP host: queue pairs, controllers, remote namespaces as block devices.
//!
//! Two ways to use it:
//!
//! * the poll API, for programs that own their reactor: a [`Controller`] brings an association up
//!   and keeps it alive, an [`IoQueueSet`] holds I/O queues of one core, both driven by the
//!   completions of [`raceline_reactor::Io`];
//! * the blocking API ([`blocking::Host`]), for everything where a thread per host is no burden.
//!
//! A [`RemoteNamespace`] is a namespace of a remote controller as a [`raceline_bdev::Bdev`].
//!
//! API contract (implementation in progress; the types of command.rs, error.rs, config.rs are
//! final):
//!
//! ```ignore
//! // config.rs
//! HostConfig::new(address: SocketAddr, subnqn: Nqn, hostnqn: Nqn, hostid: HostId)
//!     // + pub fields: kato_ms, header_digest, data_digest, io_queues, io_entries, admin_entries,
//!     //   disable_sq_flow, command_timeout, backoff: BackoffConfig
//!
//! // queue.rs: one connection
//! impl QueuePair {
//!   pub fn connect(cx: &mut Context, config: QueuePairConfig, token: Token) -> QueuePair;
//!   pub fn submit(&mut self, cx, command: Command, user: u64) -> Result<(), Rejected>; // queued
//!   pub fn handle_completion(&mut self, cx, completion: Completion);
//!   pub fn flush(&mut self, cx);                      // one vectored send, once per turn
//!   pub fn poll_done(&mut self) -> Option<CommandDone>;
//!   pub fn poll_event(&mut self) -> Option<QueueEvent>;
//!   pub fn room(&self) -> usize;                      // commands that submit still takes
//!   pub fn outstanding(&self) -> usize;
//! }
//! // controller.rs: the admin queue of one association
//! impl Controller {
//!   pub fn connect(cx, config: HostConfig, token: Token) -> Controller;
//!   pub fn submit(&mut self, cx, command: Command, user: u64) -> Result<(), Rejected>; // admin
//!   pub fn handle_completion(..); pub fn flush(..); pub fn poll_done(..);  // as above
//!   pub fn poll_event(&mut self) -> Option<ControllerEvent>;
//!   pub fn queue_lost(&mut self, cx, error);          // an I/O queue somewhere was lost
//!   pub fn disconnect(&mut self, cx);                 // CC.SHN, close; then event Closed
//! }
//! pub enum ControllerEvent { Up(Association), Down(HostError), Namespaces(Arc<[NamespaceInfo]>),
//!     DiscoveryChanged, Failed(HostError), Closed }
//! // queue_set.rs: I/O queues of one core; Association and HostError are Send + Clone: a program
//! // with several cores sends them from the core of the Controller to the others and back.
//! impl IoQueueSet {
//!   // the queues with these QIDs (1..=io_queues, spread by the program over its cores); tokens:
//!   // owner as given, index = token.index + position in the set
//!   pub fn new(config: &HostConfig, qids: impl IntoIterator<Item = u16>, token: Token) -> IoQueueSet;
//!   pub fn handle_up(&mut self, cx, &Association); pub fn handle_down(&mut self, cx, &HostError);
//!   pub fn handle_completion(..); pub fn flush(..);
//!   pub fn len(&self) -> usize;
//!   pub fn submit(&mut self, cx, queue: usize, command: Command, user: u64) -> Result<(), Rejected>;
//!   pub fn poll_done(&mut self) -> Option<(usize, CommandDone)>;
//!   pub fn poll_event(&mut self) -> Option<IoQueueEvent>; // Ready{queue}, Lost{queue, error}
//!   pub fn close(&mut self, cx); pub fn is_closed(&self) -> bool;
//! }
//! ```

pub mod blocking;
pub mod command;
pub mod config;
pub mod controller;
pub mod error;
pub mod queue;
pub mod queue_set;
pub mod remote;
mod service;

pub use command::{Command, CommandDone, CommandSummary, Data};
pub use config::{Association, HostConfig, QueuePairConfig};
pub use controller::{Controller, ControllerEvent};
pub use error::{CommandError, HostError, Rejected, RejectedReason};
pub use queue::{QueueEvent, QueuePair};
pub use queue_set::{IoQueueEvent, IoQueueSet};
pub use raceline_proto::host::{BackoffConfig, BlockRange, ControllerInfo, NamespaceInfo};
pub use remote::RemoteNamespace;
