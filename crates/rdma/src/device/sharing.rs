//! One real device for several cores: requests for queues that go from the event channel of one core to that of another.
//!
//! librdmacm has one context of a device for a whole process. So an identifier of one core's channel is good for the queues
//! of another core once `rdma_migrate_id` has moved it. The kernel takes the events of an identifier along; one that was read
//! before is lost, and the connection then ends by its deadline, or with its device.
#![allow(unsafe_code)]

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::Arc;

use zerocopy::IntoBytes;

use super::layout::{CmId, EventChannel};
use super::library::Functions;
use super::{RdmaDevice, last_error};
use crate::verbs::{ConnectionId, ProviderError};
use crate::waiting::{Given, Kin};

/// What taking a request over is called in errors.
const WHAT: &str = "taking a request for a queue over from another core";

/// An event channel of librdmacm. It ends with the last who has an identifier of it.
#[derive(Debug)]
pub(super) struct Channel {
    functions: &'static Functions,
    channel: *mut EventChannel,
}

// SAFETY: the library's channels belong to no thread: its calls on them are system calls on a descriptor, and nothing of the
// structure changes while it is alive.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    pub(super) fn new(functions: &'static Functions) -> Result<Arc<Self>, ProviderError> {
        // SAFETY: no arguments.
        let channel = unsafe { (functions.rdma_create_event_channel)() };
        if channel.is_null() {
            return Err(last_error("opening the RDMA connection manager (module rdma_ucm)"));
        }
        Ok(Arc::new(Self { functions, channel }))
    }

    pub(super) fn as_ptr(&self) -> *mut EventChannel {
        self.channel
    }

    pub(super) fn fd(&self) -> RawFd {
        // SAFETY: the channel lives as long as this value.
        unsafe { (*self.channel).fd }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: alive until here, and no identifier of it is left: each owner of one has this value, too.
        unsafe { (self.functions.rdma_destroy_event_channel)(self.channel) };
    }
}

/// An identifier with a request that nobody has answered.
struct Request {
    functions: &'static Functions,
    /// Null: somebody has taken it over.
    id: *mut CmId,
    /// That of the identifier.
    channel: Arc<Channel>,
}

// SAFETY: an identifier belongs to no thread, and this is the only value that has it.
unsafe impl Send for Request {}

impl Drop for Request {
    fn drop(&mut self) {
        if self.id.is_null() {
            return;
        }
        let words = Given::last_words();
        let words = words.as_bytes();
        let len = u8::try_from(words.len()).unwrap_or(0);
        // SAFETY: alive until here, and nobody else has it; the words live until the call returns. A reject that fails means
        // that the peer is gone.
        unsafe {
            (self.functions.rdma_reject)(self.id, words.as_ptr().cast(), len);
            (self.functions.rdma_destroy_id)(self.id);
        }
    }
}

impl RdmaDevice {
    /// Opens the device of this address again and again.
    pub(super) fn open_again(address: SocketAddr, completions: u32) -> Kin {
        Box::new(move || Self::open(address, completions).map(|device| Box::new(device) as _))
    }

    /// Gives an identifier up that has no queue pair.
    pub(super) fn give_up(&mut self, request: ConnectionId) -> Option<Given> {
        let id = self.connections.give_up(request)?;
        let (functions, channel) = (self.functions, Arc::clone(&self.channel));
        Some(Given::new(Request { functions, id, channel }))
    }

    /// Makes an identifier one of this value's channel.
    pub(super) fn take_over(&mut self, request: Given) -> Result<ConnectionId, ProviderError> {
        let Some(mut request) = request.into_kind::<Request>() else {
            return Err(ProviderError::new(WHAT, "it is no real device's"));
        };
        // SAFETY: the identifier is alive; the library has filled in its device with the request.
        if unsafe { (*request.id).verbs } != self.context {
            return Err(ProviderError::new(WHAT, "it is another device's"));
        }
        if !Arc::ptr_eq(&request.channel, &self.channel) {
            // SAFETY: identifier and channel are alive, and so is the channel before.
            let failed =
                unsafe { (self.functions.rdma_migrate_id)(request.id, self.channel.as_ptr()) };
            if failed != 0 {
                return Err(last_error(WHAT));
            }
            request.channel = Arc::clone(&self.channel);
        }
        // The table has it from now on.
        let id = std::mem::replace(&mut request.id, null_mut());
        Ok(self.connections.add(id))
    }
}
