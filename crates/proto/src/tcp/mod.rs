//! NVMe/TCP: PDUs, framing, digests, and the two ends of one queue's connection
//! (NVMe/TCP Transport 1.0).
//!
//! The driver of a queue (a target's or a host's connection) owns socket, buffers and the NVMe
//! commands. A queue end takes received bytes and says what they mean; it appends the PDUs to
//! send to a byte vector of the driver, who puts payload and data digest after them.
//!
//! API contract (implementation in progress):
//!
//! ```ignore
//! // pdu.rs: PduType, CommonHeader, typed header structs (zerocopy), flags, sizes.
//! // error.rs
//! pub enum Fes { InvalidHeaderField=1, SequenceError=2, HeaderDigestError=3, DataOutOfRange=4,
//!                DataLimitExceeded=5 /* R2T limit for H2C */, UnsupportedParameter=6 }
//! pub struct FatalError { pub fes: Fes, pub fei: u32, /* copy of the offending header, <=128 */ }
//!   impl Display (what was wrong, for logs); fn reason(&self) -> Violation (an enum of all cases)
//!
//! // receive.rs: Receiver: framing for one direction (role), any split of the stream.
//!
//! // controller_queue.rs: the target's end
//! pub struct ControllerQueueConfig { pub max_h2c_data: u32, pub in_capsule_bytes: u32 /* I/O */,
//!     pub max_r2t_slots: u16 /* ttag range */, pub allow_hdgst: bool, pub allow_ddgst: bool }
//! impl ControllerQueue {
//!   pub fn new(config) -> Self;
//!   // receive: call until None; `input` is advanced; errors are fatal: send term_req, then close.
//!   pub fn receive<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, FatalError>;
//!   // bytes of the current PDU's data that have not come yet: may be received directly into place
//!   pub fn payload_wanted(&self) -> Option<PayloadWanted>;  // {dest: DataDest, offset: u32, len: u32}
//!   pub fn payload_received(&mut self, len: usize);         // that many came directly
//!   // After Connect the driver says what kind of queue it is (admin: 8192 in-capsule limit; the
//!   // limit for Fabrics commands is 8192 on any queue).
//!   pub fn set_queue_kind(&mut self, admin: bool);
//!   // sending: append to `out`
//!   pub fn ic_resp(&mut self, out: &mut Vec<u8>);           // answers Event::Connected
//!   pub fn r2t(&mut self, slot: u16, cid: CommandId, offset: u32, len: u32, out: &mut Vec<u8>);
//!   pub fn cancel_transfer(&mut self, slot: u16);           // forget (command torn down)
//!   pub fn response(&mut self, cqe: &Cqe, out: &mut Vec<u8>);
//!   // header + HDGST + PAD of a C2HData; the driver appends `len` payload bytes, then DDGST (4
//!   // bytes LE) if data_digest()
//!   pub fn c2h_data(&mut self, cid, offset: u32, len: u32, last: bool, success: bool, out);
//!   pub fn data_digest(&self) -> bool; pub fn header_digest(&self) -> bool;
//!   pub fn c2h_overhead(&self) -> usize; // upper bound of header bytes per PDU
//!   pub fn term_req(&mut self, error: &FatalError, out: &mut Vec<u8>);
//! }
//! pub enum Event<'a> {
//!   Connected(IcReq),                       // valid ICReq; the driver calls ic_resp
//!   Command { sqe: Sqe, in_capsule: u32 },  // in_capsule>0: Data{dest: Capsule}.. DataEnd follow;
//!                                           // the driver may stop calling receive() until it has a
//!                                           // buffer (this pauses its socket)
//!   Data { dest: DataDest, offset: u32, bytes: &'a [u8] },   // offset within the command's data
//!   DataEnd { dest: DataDest, offset: u32, len: u32, ddgst: Option<u32>, transfer_done: bool },
//!                                           // one PDU's data has come; the driver checks ddgst over
//!                                           // [offset, offset+len) of the command's buffer
//!   Terminated(TermReqInfo),                // peer's H2CTermReq: close at once
//! }
//! pub enum DataDest { Capsule, Slot(u16) }
//!
//! // host_queue.rs: the host's end
//! pub struct HostQueueConfig { hpda: u8, hdgst: bool, ddgst: bool, maxr2t: u32 /*0's based*/, slots: u16 }
//! impl HostQueue {
//!   pub fn new(config) -> Self;
//!   pub fn ic_req(&mut self, out: &mut Vec<u8>);
//!   pub fn receive<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<HostEvent<'a>>, FatalError>;
//!   pub fn payload_wanted(&self) -> Option<..>; payload_received(..)   // as above, dest = cid
//!   // Registers the command in `slot` (slot < slots; cid chosen by the caller, cid % slots == slot
//!   // with power-of-two slots) and appends its capsule header (+HDGST+PAD by CPDA when in-capsule
//!   // data follow; the driver appends the data and DDGST).
//!   pub fn command(&mut self, sqe: &Sqe, direction: Direction, len: u32, in_capsule: bool, out);
//!   pub fn h2c_data(&mut self, grant: &R2tGrant, offset: u32, len: u32, last: bool, out);
//!   pub fn forget(&mut self, cid);          // command done or given up
//!   pub fn max_h2c_data(&self) -> u32;
//!   pub fn term_req(..); data_digest(); header_digest();
//! }
//! pub enum HostEvent<'a> { Connected(IcResp), Response(Cqe),
//!   Data { cid, offset, bytes }, DataEnd { cid, offset, len, ddgst, last, success },
//!   SendData(R2tGrant { cid, ttag, offset, len }), Terminated(..) }
//! ```
