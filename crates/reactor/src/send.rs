//! What one vectored send carries: header bytes and payload segments, in wire order.
//!
//! API contract (implementation in progress).
//!
//! ```ignore
//! pub enum Payload {
//!     Buf(IoBuf, Range<usize>),               // owned, freed when sent
//!     Shared(SharedBuf, Range<usize>),        // e.g. a host's write buffer
//!     Region(RegionHandle, Range<u64>),       // straight from a RAM namespace
//!     Zeroes(usize),                          // from one static page
//! }
//! impl Payload { pub fn len(&self) -> usize; pub fn copy_to(&self, &mut [u8]) }
//! pub struct SendBatch { /* header bytes: Vec<u8> of fixed capacity; parts; progress */ }
//! impl SendBatch {
//!     pub fn new(header_capacity: usize, part_capacity: usize) -> Box<SendBatch>;
//!     pub fn has_room(&self, header_bytes: usize, payloads: usize) -> bool;
//!     pub fn push_bytes(&mut self, bytes: &[u8]);          // appended, adjacent bytes are one part
//!     pub fn bytes_mut(&mut self) -> HeaderWriter<'_>;     // Vec-like: encoders append here
//!     pub fn push_payload(&mut self, payload: Payload);
//!     pub fn len(&self) -> usize;   // bytes not yet sent
//!     pub fn is_empty(&self) -> bool;
//!     pub fn clear(&mut self);      // frees payloads, keeps capacity
//! }
//! ```
//! No allocation after `new`. `Io` implementations build the iovec array from it and continue
//! after partial sends by themselves.
