//! What a controller does with commands: Connect checks, properties, admin commands, asynchronous
//! events, keep alive, discovery, and the parsing of I/O commands.
//!
//! API contract (implementation in progress):
//!
//! ```ignore
//! // subsystem.rs: what exists; immutable snapshots, replaced as a whole (Arc).
//! pub struct Namespace { pub nsid: NamespaceId, pub block_size: u32, pub block_count: u64,
//!     pub physical_block_size: u32, pub uuid: [u8;16], pub nguid: [u8;16],
//!     pub volatile_write_cache: bool, pub read_only: bool, pub deallocate: bool,
//!     pub deallocate_zeroes: bool }
//! pub enum HostAccess { Any, List(Vec<Nqn>) }
//! pub struct Limits { max_io_bytes: u32 (4096<<n), in_capsule_bytes: u32, max_queue_entries: u16,
//!     max_admin_entries: u16, max_io_queues: u16 }
//! pub struct Subsystem { nqn, serial: String, model: String, firmware: String, hosts: HostAccess,
//!     namespaces: Vec<Namespace> (sorted by nsid), limits, ... }
//! pub struct ListenerInfo { address: SocketAddr, port_id: u16, subsystems: served by all }
//! pub struct TargetView { generation: u64, subsystems: Vec<Arc<Subsystem>>, listeners: Vec<ListenerInfo>,
//!     tls required flags later }           // discovery is computed from it
//!
//! // connect.rs
//! pub struct ConnectRequest { sqe fields + data parsed: qid, sqsize (entries), kato, disable_sq_flow,
//!     hostid, cntlid, subnqn, hostnqn }
//! pub fn parse_connect(sqe: &Sqe, data: &[u8]) -> Result<ConnectRequest, ConnectError>;
//! pub struct ConnectError { status: Status, ipo: u16, in_data: bool }  // dw0() for the CQE
//! pub fn find_subsystem(view: &TargetView, request: &ConnectRequest, ...) -> Result<Arc<Subsystem>|Discovery, ConnectError>;
//!
//! // admin.rs + identify.rs, features.rs, log.rs, discovery.rs, aer.rs, keep_alive.rs, property.rs
//! pub struct Controller { .. }   // one per association, lives on its admin queue's core
//! impl Controller {
//!   pub fn new(association: Association { cntlid, request: ConnectRequest, subsystem or discovery,
//!       view: Arc<TargetView>, local_address: SocketAddr, now }) -> Result<Self, ConnectError>;
//!   pub fn cntlid(&self); pub fn hostnqn(&self); pub fn subsystem(&self) -> Option<&Arc<Subsystem>>;
//!   // The direction and number of data bytes of an admin/fabrics command, checked against its SGL.
//!   pub fn transfer(&self, sqe: &Sqe) -> Result<Transfer, Status>;
//!   // Executes; `data` is what the host sent, `reply` is a zeroed buffer of the transfer length.
//!   pub fn handle_admin(&mut self, now: Instant, sqe: &Sqe, data: &[u8], reply: &mut [u8],
//!       counters: &IoCounters) -> AdminOutcome;
//!       // Complete{status, dw0, dw1}: with success and a C2H transfer the reply is sent
//!       // Held: an AER, completed later by an action; Abort{sqid, cid}: the driver looks for it
//!       //   and answers with dw0 bit 0
//!   // An I/O queue of this association connects (all checks); gives the number of entries etc.
//!   pub fn handle_io_connect(&mut self, request: &ConnectRequest) -> Result<(), ConnectError>;
//!   pub fn io_queue_closed(&mut self, qid: QueueId);
//!   pub fn handle_view(&mut self, now, view: Arc<TargetView>);  // namespace/discovery change -> AEN
//!   pub fn record_error(&mut self, entry: ErrorEntry);          // error log
//!   pub fn command_seen(&mut self, now);                        // traffic based keep alive (TBKAS)
//!   pub fn poll_timeout(&self) -> Option<Instant>; pub fn handle_timeout(&mut self, now);
//!   pub fn poll_action(&mut self) -> Option<Action>;
//!       // CompleteAer{cid, dw0}, CloseIoQueues (EN 1->0, SHN, reset: driver closes them all, then
//!       //   calls io_queues_drained()), Abandon{reason} (keep alive expired, fatal)
//!   pub fn io_queues_drained(&mut self, now);   // CSTS.RDY=0 / SHST=2 only now
//!   pub fn is_ready(&self) -> bool;             // CSTS.RDY
//! }
//! // io.rs: parse an I/O command against a snapshot
//! pub enum IoCommand { Read{ns, slba, block_count, fua}, Write{..}, Compare{..}, Flush{ns},
//!     WriteZeroes{.., deallocate, fua}, DatasetManagement{ns, ranges: u16, deallocate: bool} }
//! pub fn parse_io(sqe: &Sqe, namespaces: &[Namespace], limits: &Limits) -> Result<(IoCommand, Transfer), Status>;
//! pub fn parse_ranges(data: &[u8], namespace) -> iterator of Result<(slba, count), Status>;
//! pub enum Direction { None, ToController, ToHost }
//! pub struct Transfer { direction: Direction, len: u32 }
//! ```
