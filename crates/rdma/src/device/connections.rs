//! Connections of a real device: the calls and the events of librdmacm.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::io;
use std::net::{SocketAddr, SocketAddrV6};
use std::ptr::null_mut;

use super::layout::{
    CHANGE_MIN_RNR_TIMER, CmEvent, CmId, ConnectionParameters, PORT_SPACE_TCP, PairAttributes,
    PairAttributesToChange, PairCapabilities, QPT_RC, QueuePair,
};
use super::{RdmaDevice, last_error};
use crate::numbers::Numbers;
use crate::verbs::{ConnectionId, Event, PairConfig, ProviderError, Rejection};

/// Requests that wait for the target, at most.
const BACKLOG: c_int = 128;
/// Each step of finding a target has so long.
const RESOLVE_MS: c_int = 2000;
/// How often a packet is sent again that was not acknowledged: the field has three bits. 7 would be the most, but soft RoCE
/// (rxe) takes that for "without end", and a queue whose packets get lost for good would never fail: its commands
/// would, after their timeout. 6 ends everywhere.
const PACKET_RETRIES: u8 = 6;
/// How often a message is sent again to a peer without receives: 7 is "without end" by the specification. The peer is
/// there and posts receives later, or its keep alive ends the queue.
const NOT_READY_RETRIES: u8 = 7;
/// Bytes of inline requests that are tried, when a device refuses more.
const INLINE: [u32; 3] = [32, 16, 0];
/// A code for 0.64 ms: the time after which a peer sends a message again that has found no receive.
const RETRY_AFTER: u8 = 12;
/// A status of a reject: the peer still has a connection of these numbers.
const REJECTED_STALE: c_int = 10;
/// A status of a reject: by the peer's program.
const REJECTED_BY_CONSUMER: c_int = 28;

/// Names of `enum rdma_cm_event_type`.
mod kind {
    pub(super) const ADDR_RESOLVED: u32 = 0;
    pub(super) const ADDR_ERROR: u32 = 1;
    pub(super) const ROUTE_RESOLVED: u32 = 2;
    pub(super) const ROUTE_ERROR: u32 = 3;
    pub(super) const CONNECT_REQUEST: u32 = 4;
    pub(super) const CONNECT_ERROR: u32 = 6;
    pub(super) const UNREACHABLE: u32 = 7;
    pub(super) const REJECTED: u32 = 8;
    pub(super) const ESTABLISHED: u32 = 9;
    pub(super) const DISCONNECTED: u32 = 10;
    pub(super) const DEVICE_REMOVAL: u32 = 11;
    pub(super) const ADDR_CHANGE: u32 = 14;
}

#[derive(Debug)]
struct Connection {
    id: *mut CmId,
    pair: *mut QueuePair,
    number: u32,
}

/// All connections, and the listeners.
#[derive(Debug, Default)]
pub(super) struct Connections {
    connections: HashMap<ConnectionId, Connection>,
    /// By the address of the manager's identifier, and by the number of the queue pair.
    by_id: HashMap<usize, ConnectionId>,
    pub(super) numbers: Numbers,
    listeners: Vec<(*mut CmId, SocketAddr)>,
    next: u32,
}

impl Connections {
    pub(super) fn add(&mut self, id: *mut CmId) -> ConnectionId {
        let name = ConnectionId(self.next);
        self.next = self.next.wrapping_add(1);
        self.connections.insert(name, Connection { id, pair: null_mut(), number: 0 });
        self.by_id.insert(id.addr(), name);
        name
    }

    /// Takes an identifier without a queue pair out of the table.
    pub(super) fn give_up(&mut self, connection: ConnectionId) -> Option<*mut CmId> {
        let id = self.connections.get(&connection).filter(|known| known.pair.is_null())?.id;
        self.connections.remove(&connection);
        self.by_id.remove(&id.addr());
        Some(id)
    }

    fn id(&self, connection: ConnectionId) -> Option<*mut CmId> {
        Some(self.connections.get(&connection)?.id)
    }

    pub(super) fn pair(&self, connection: ConnectionId) -> Option<*mut QueuePair> {
        let pair = self.connections.get(&connection)?.pair;
        (!pair.is_null()).then_some(pair)
    }

    /// The connection that has the queue pair at this address.
    pub(super) fn by_pair(&self, address: usize) -> Option<ConnectionId> {
        let mut all = self.connections.iter();
        let has = |known: &Connection| !known.pair.is_null() && known.pair.addr() == address;
        all.find(|(_, known)| has(known)).map(|(connection, _)| *connection)
    }

    /// All of them, in the order in which they came.
    pub(super) fn all(&self) -> Vec<ConnectionId> {
        let mut all: Vec<ConnectionId> = self.connections.keys().copied().collect();
        all.sort_unstable();
        all
    }

    fn listens(&self, id: *mut CmId) -> bool {
        self.listeners.iter().any(|(listener, _)| *listener == id)
    }
}

/// An event, copied out of the library's memory.
struct Copied {
    id: *mut CmId,
    listener: *mut CmId,
    kind: u32,
    status: c_int,
    private: Vec<u8>,
    host_reads: u8,
}

fn gone(what: &'static str) -> ProviderError {
    ProviderError::new(what, "the connection is no more")
}

impl RdmaDevice {
    pub(super) fn create_id(&self) -> Result<*mut CmId, ProviderError> {
        let mut id = null_mut();
        // SAFETY: the channel is alive; the identifier is written on success.
        let failed = unsafe {
            (self.functions.rdma_create_id)(
                self.channel.as_ptr(),
                &raw mut id,
                null_mut(),
                PORT_SPACE_TCP,
            )
        };
        if failed != 0 { Err(last_error("making a connection identifier")) } else { Ok(id) }
    }

    pub(super) fn bind(&self, id: *mut CmId, address: SocketAddr) -> Result<(), ProviderError> {
        let mut address = SocketBytes::new(address);
        // SAFETY: the identifier is alive, and the address is a whole one of its family.
        let failed = unsafe { (self.functions.rdma_bind_addr)(id, address.as_mut_ptr()) };
        if failed != 0 {
            Err(last_error("binding to an address of an RDMA device"))
        } else {
            Ok(())
        }
    }

    pub(super) fn begin_listening(&mut self, address: SocketAddr) -> Result<(), ProviderError> {
        let id = self.create_id()?;
        let listened = self.bind(id, address).and_then(|()| {
            // SAFETY: the identifier is alive.
            let failed = unsafe { (self.functions.rdma_listen)(id, BACKLOG) };
            if failed != 0 { Err(last_error("listening for RDMA connections")) } else { Ok(()) }
        });
        if let Err(error) = listened {
            // SAFETY: nobody else has it.
            unsafe { (self.functions.rdma_destroy_id)(id) };
            return Err(error);
        }
        self.connections.listeners.push((id, address));
        Ok(())
    }

    pub(super) fn begin_resolving(
        &mut self,
        address: SocketAddr,
        source: Option<SocketAddr>,
    ) -> Result<ConnectionId, ProviderError> {
        let id = self.create_id()?;
        let mut address = SocketBytes::new(address);
        let mut source = source.map(SocketBytes::new);
        let from = source.as_mut().map_or(null_mut(), SocketBytes::as_mut_ptr);
        // SAFETY: the identifier is alive, and the addresses are whole ones of their families.
        let failed = unsafe {
            (self.functions.rdma_resolve_addr)(id, from, address.as_mut_ptr(), RESOLVE_MS)
        };
        if failed != 0 {
            let error = last_error("resolving the target's address");
            // SAFETY: nobody else has it.
            unsafe { (self.functions.rdma_destroy_id)(id) };
            return Err(error);
        }
        Ok(self.connections.add(id))
    }

    pub(super) fn make_pair(
        &mut self,
        connection: ConnectionId,
        config: &PairConfig,
    ) -> Result<PairConfig, ProviderError> {
        let what = "making a queue pair";
        let id = self.connections.id(connection).ok_or(gone(what))?;
        let domain = self.memory.domain(config.domain)?;
        let mut attributes = PairAttributes {
            qp_context: null_mut(),
            send_cq: self.completions,
            recv_cq: self.completions,
            srq: if config.shares_receives { self.shared } else { null_mut() },
            cap: PairCapabilities {
                max_send_wr: config.sends,
                max_recv_wr: config.receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: config.inline_bytes,
            },
            qp_type: QPT_RC,
            sq_sig_all: 0,
        };
        loop {
            let asked = attributes.cap;
            // SAFETY: identifier, domain and completion queue are alive and of one device: events of other devices'
            // identifiers are not passed on.
            let failed =
                unsafe { (self.functions.rdma_create_qp)(id, domain, &raw mut attributes) };
            if failed == 0 {
                break;
            }
            let error = last_error(what);
            // How many bytes a device takes inline, it does not say before: it refuses more, and some with this error.
            let less = INLINE.into_iter().find(|bytes| *bytes < asked.max_inline_data);
            let may_be_that = [io::ErrorKind::InvalidInput, io::ErrorKind::OutOfMemory];
            let Some(less) = less.filter(|_| may_be_that.contains(&error.kind)) else {
                return Err(error);
            };
            attributes.cap = PairCapabilities { max_inline_data: less, ..asked };
        }
        // SAFETY: the identifier has its queue pair now.
        let (pair, number) = unsafe { ((*id).qp, (*(*id).qp).qp_num) };
        if let Some(known) = self.connections.connections.get_mut(&connection) {
            (known.pair, known.number) = (pair, number);
        }
        self.connections.numbers.add(number, connection);
        // Devices round up, some of them far: what was asked for is what is used.
        let inline_bytes = attributes.cap.max_inline_data.min(config.inline_bytes);
        Ok(PairConfig { inline_bytes, ..*config })
    }

    fn parameters(private: &[u8]) -> ConnectionParameters {
        ConnectionParameters {
            private_data: private.as_ptr().cast::<c_void>(),
            private_data_len: u8::try_from(private.len()).unwrap_or(u8::MAX),
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: 1,
            retry_count: PACKET_RETRIES,
            rnr_retry_count: NOT_READY_RETRIES,
            srq: 0,
            qp_num: 0,
        }
    }

    pub(super) fn ask(
        &mut self,
        connection: ConnectionId,
        private: &[u8],
        reads: u8,
    ) -> Result<(), ProviderError> {
        let what = "connecting";
        let id = self.connections.id(connection).ok_or(gone(what))?;
        let mut parameters = Self::parameters(private);
        parameters.responder_resources = reads;
        // SAFETY: the identifier is alive; the private data live until the call returns.
        let failed = unsafe { (self.functions.rdma_connect)(id, &raw mut parameters) };
        if failed != 0 { Err(last_error(what)) } else { Ok(()) }
    }

    pub(super) fn agree(
        &mut self,
        connection: ConnectionId,
        private: &[u8],
        reads: u8,
    ) -> Result<(), ProviderError> {
        let what = "accepting a connection";
        let id = self.connections.id(connection).ok_or(gone(what))?;
        let mut parameters = Self::parameters(private);
        parameters.initiator_depth = reads;
        // SAFETY: as in `ask`.
        let failed = unsafe { (self.functions.rdma_accept)(id, &raw mut parameters) };
        if failed != 0 {
            return Err(last_error(what));
        }
        self.shorten_retries(connection);
        Ok(())
    }

    /// A peer whose message finds no receive tries again after a time that this end says. The library leaves it at the
    /// longest, 655 ms. iWARP knows no such retries.
    fn shorten_retries(&self, connection: ConnectionId) {
        let Some(pair) = self.pair(connection).filter(|_| !self.capabilities.is_iwarp) else {
            return;
        };
        let mut attributes = PairAttributesToChange::of_timer(RETRY_AFTER);
        // SAFETY: the queue pair is alive, and the attributes are until the call returns.
        let failed = unsafe {
            (self.functions.ibv_modify_qp)(pair, &raw mut attributes, CHANGE_MIN_RNR_TIMER)
        };
        if failed != 0 {
            tracing::debug!(device = self.name, failed, "an RDMA queue has long retries");
        }
    }

    pub(super) fn refuse(&mut self, connection: ConnectionId, private: &[u8]) {
        let Some(id) = self.connections.id(connection) else { return };
        let len = u8::try_from(private.len()).unwrap_or(u8::MAX);
        // SAFETY: the identifier is alive. A failure means that the peer is gone.
        unsafe { (self.functions.rdma_reject)(id, private.as_ptr().cast(), len) };
    }

    pub(super) fn part(&mut self, connection: ConnectionId) {
        let Some(id) = self.connections.id(connection) else { return };
        // SAFETY: the identifier is alive. iWARP says EINVAL when the peer has gone first.
        unsafe { (self.functions.rdma_disconnect)(id) };
    }

    /// Tells the manager that a message has come on a connection that it does not know to be established: the peer's last word
    /// was lost. The manager then says that the connection is established.
    pub(super) fn notify(&mut self, connection: ConnectionId, event: u32) {
        let Some(id) = self.connections.id(connection) else { return };
        // SAFETY: the identifier is alive.
        if unsafe { (self.functions.rdma_notify)(id, event) } != 0 {
            // It knows by now, or the connection has ended.
            tracing::debug!(device = self.name, "the RDMA manager was not told of a message");
        }
    }

    pub(super) fn forget(&mut self, connection: ConnectionId) {
        let Some(known) = self.connections.connections.remove(&connection) else { return };
        self.connections.by_id.remove(&known.id.addr());
        if !known.pair.is_null() {
            // SAFETY: the identifier has a queue pair, which nobody uses any longer.
            unsafe { (self.functions.rdma_destroy_qp)(known.id) };
            // The next queue pair may have its number.
            self.keep_completions();
            self.connections.numbers.forget(known.number);
            // Another one may get its address: what was said of it is heeded before.
            self.keep_mail();
        }
        // SAFETY: alive until here; every event of it was acknowledged when it was copied, so the call does not wait.
        unsafe { (self.functions.rdma_destroy_id)(known.id) };
    }

    pub(super) fn forget_all(&mut self) {
        let all: Vec<ConnectionId> = self.connections.connections.keys().copied().collect();
        for connection in all {
            self.forget(connection);
        }
        self.end_listening();
    }

    /// What has come for the listeners and was not taken yet, the manager refuses.
    pub(super) fn end_listening(&mut self) {
        for (id, _) in std::mem::take(&mut self.connections.listeners) {
            // SAFETY: alive until here.
            unsafe { (self.functions.rdma_destroy_id)(id) };
        }
    }

    /// The next event of the channel.
    fn copy_event(&mut self) -> Option<Copied> {
        let mut event: *mut CmEvent = null_mut();
        // SAFETY: the channel is alive and does not block.
        if unsafe { (self.functions.rdma_get_cm_event)(self.channel.as_ptr(), &raw mut event) } != 0
        {
            return None;
        }
        // SAFETY: the event is alive until it is acknowledged below; its private data are as long as it says.
        let copied = unsafe {
            let parameters = (*event).parameters;
            let is_with_data = matches!(
                (*event).event,
                kind::CONNECT_REQUEST | kind::REJECTED | kind::ESTABLISHED
            );
            let data = parameters.private_data.cast::<u8>();
            let private = if is_with_data && !data.is_null() {
                std::slice::from_raw_parts(data, usize::from(parameters.private_data_len)).to_vec()
            } else {
                Vec::new()
            };
            Copied {
                id: (*event).id,
                listener: (*event).listen_id,
                kind: (*event).event,
                status: (*event).status,
                private,
                host_reads: parameters.initiator_depth,
            }
        };
        // SAFETY: each event is acknowledged once; nothing of it is used afterwards.
        unsafe { (self.functions.rdma_ack_cm_event)(event) };
        Some(copied)
    }

    pub(super) fn take_event(&mut self) -> Option<Event> {
        loop {
            let copied = self.copy_event()?;
            let is_whole = copied.id == self.anchor || self.connections.listens(copied.id);
            if is_whole && copied.kind == kind::ADDR_CHANGE {
                let (address, device) = (self.address.ip(), &self.name);
                tracing::warn!(%address, device, "a bond has failed over to a link with another hardware address: another RDMA device may have its address now");
                return Some(Event::AddressMoved);
            }
            if copied.kind == kind::DEVICE_REMOVAL
                && (is_whole || self.connections.by_id.contains_key(&copied.id.addr()))
            {
                // SAFETY: the identifier is alive: it is this value's.
                let is_own = self.note_removal(unsafe { (*copied.id).verbs });
                if is_whole && is_own {
                    return Some(Event::DeviceRemoved(ConnectionId::NOBODY));
                }
            }
            if copied.kind == kind::CONNECT_REQUEST {
                if let Some(event) = self.take_request(copied) {
                    return Some(event);
                }
            } else if let Some(&connection) = self.connections.by_id.get(&copied.id.addr())
                && let Some(event) = self.translate(connection, copied)
            {
                return Some(event);
            }
        }
    }

    /// The address of a connection's peer.
    pub(super) fn peer_of(&self, connection: ConnectionId) -> Option<SocketAddr> {
        let id = self.connections.id(connection)?;
        // SAFETY: the identifier is alive: it is in the table. Its addresses are filled in, or zeroes.
        let storage = unsafe { (*id).destination };
        address_of(&storage)
    }

    fn take_request(&mut self, copied: Copied) -> Option<Event> {
        let listener = self
            .connections
            .listeners
            .iter()
            .find(|(id, _)| *id == copied.listener)
            .map(|(_, at)| *at);
        // SAFETY: the library gave this identifier with the request.
        let is_ours = unsafe { (*copied.id).verbs } == self.context;
        let Some(listener) = listener.filter(|_| is_ours) else {
            // SAFETY: nobody else has it.
            unsafe {
                (self.functions.rdma_reject)(copied.id, std::ptr::null(), 0);
                (self.functions.rdma_destroy_id)(copied.id);
            }
            return None;
        };
        let connection = self.connections.add(copied.id);
        let (private, host_reads) = (copied.private, copied.host_reads);
        Some(Event::Request { connection, listener, private, host_reads })
    }

    fn translate(&mut self, connection: ConnectionId, copied: Copied) -> Option<Event> {
        let failed = |why| Some(Event::Failed { connection, why });
        match copied.kind {
            kind::ADDR_RESOLVED => {
                // SAFETY: the identifier is alive: it is in the table.
                if unsafe { (*copied.id).verbs } != self.context {
                    return failed("reaching the target by this device");
                }
                // SAFETY: as above.
                if unsafe { (self.functions.rdma_resolve_route)(copied.id, RESOLVE_MS) } != 0 {
                    return failed("resolving the route");
                }
                None
            }
            kind::ROUTE_RESOLVED => Some(Event::Resolved(connection)),
            kind::ADDR_ERROR => failed("resolving the address"),
            kind::ROUTE_ERROR => failed("resolving the route"),
            kind::CONNECT_ERROR => failed("connecting"),
            kind::UNREACHABLE => failed("reaching the peer"),
            kind::REJECTED => {
                let reason = match copied.status {
                    REJECTED_STALE => Rejection::Stale,
                    // iWARP has an error number instead.
                    REJECTED_BY_CONSUMER => Rejection::Consumer(copied.private),
                    status if status.abs() == libc::ECONNREFUSED && !copied.private.is_empty() => {
                        Rejection::Consumer(copied.private)
                    }
                    status => Rejection::Manager(status),
                };
                Some(Event::Rejected { connection, reason })
            }
            kind::ESTABLISHED => Some(Event::Established { connection, private: copied.private }),
            kind::DISCONNECTED | kind::ADDR_CHANGE => Some(Event::Disconnected(connection)),
            kind::DEVICE_REMOVAL => Some(Event::DeviceRemoved(connection)),
            // TIMEWAIT_EXIT says that numbers may be used again, which they are not here.
            _ => None,
        }
    }
}

/// An address as the libraries give it, with the scope of one that is of a link only.
pub(super) fn address_of(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: an IPv4 address is as the family says, and the storage has room and alignment for it.
            let inet = unsafe { *(&raw const *storage).cast::<libc::sockaddr_in>() };
            let ip = std::net::Ipv4Addr::from_bits(u32::from_be(inet.sin_addr.s_addr));
            Some(SocketAddr::from((ip, u16::from_be(inet.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above, of an IPv6 address.
            let inet = unsafe { *(&raw const *storage).cast::<libc::sockaddr_in6>() };
            let ip = std::net::Ipv6Addr::from(inet.sin6_addr.s6_addr);
            let port = u16::from_be(inet.sin6_port);
            Some(SocketAddrV6::new(ip, port, 0, inet.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// An address as the libraries read it.
struct SocketBytes(libc::sockaddr_storage);

impl SocketBytes {
    fn new(address: SocketAddr) -> Self {
        // SAFETY: a structure of numbers and bytes, for which zeroes are valid.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        match address {
            SocketAddr::V4(address) => {
                let place = (&raw mut storage).cast::<libc::sockaddr_in>();
                // SAFETY: the storage is large enough and aligned for every family.
                unsafe {
                    (*place).sin_family = u16::try_from(libc::AF_INET).unwrap_or(0);
                    (*place).sin_port = address.port().to_be();
                    (*place).sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
                }
            }
            SocketAddr::V6(address) => {
                let place = (&raw mut storage).cast::<libc::sockaddr_in6>();
                // SAFETY: as above.
                unsafe {
                    (*place).sin6_family = u16::try_from(libc::AF_INET6).unwrap_or(0);
                    (*place).sin6_port = address.port().to_be();
                    (*place).sin6_addr.s6_addr = address.ip().octets();
                    (*place).sin6_scope_id = address.scope_id();
                }
            }
        }
        Self(storage)
    }

    fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.0).cast()
    }
}

#[cfg(test)]
mod tests {
    use super::super::removal;
    use super::super::stub::{library, open, stub, tell, tell_with};
    use super::*;
    use crate::verbs::DomainId;

    #[test]
    fn addresses_are_in_network_order() {
        let mut bytes = SocketBytes::new("192.0.2.1:4420".parse().unwrap());
        // SAFETY: 16 bytes of the storage.
        let v4 = unsafe { std::slice::from_raw_parts(bytes.as_mut_ptr().cast::<u8>(), 8) };
        assert_eq!(v4, [2, 0, 0x11, 0x44, 192, 0, 2, 1]);
        let mut bytes = SocketBytes::new("[2001:db8::1]:4420".parse().unwrap());
        // SAFETY: 28 bytes of the storage.
        let v6 = unsafe { std::slice::from_raw_parts(bytes.as_mut_ptr().cast::<u8>(), 12) };
        assert_eq!(v6, [10, 0, 0x11, 0x44, 0, 0, 0, 0, 0x20, 1, 0xd, 0xb8]);
    }

    #[test]
    fn addresses_keep_their_scope() {
        for text in ["192.0.2.1:4420", "[2001:db8::1]:4420", "[fe80::1%7]:4420"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(address_of(&SocketBytes::new(address).0), Some(address));
        }
        stub(|stub| stub.inline = 64);
        let device = RdmaDevice::open_by(library(), "[fe80::1%7]:4420".parse().unwrap(), 16);
        assert!(device.is_ok(), "{device:?}");
        let bound = stub(|stub| std::mem::take(&mut stub.bound));
        assert_eq!(bound, ["[fe80::1%7]:0".parse().unwrap()]);
    }

    #[test]
    fn a_device_gets_as_many_inline_bytes_as_it_takes() {
        for (most, tries, granted) in [
            (400, &[64][..], 64),
            (48, &[64, 32], 32),
            (20, &[64, 32, 16], 16),
            (0, &[64, 32, 16, 0], 0),
        ] {
            stub(|stub| (stub.inline, stub.tries) = (most, Vec::new()));
            let mut device = open();
            let id = device.create_id().unwrap();
            let connection = device.connections.add(id);
            let config = PairConfig {
                domain: DomainId::OWN,
                sends: 8,
                receives: 8,
                shares_receives: false,
                inline_bytes: 64,
            };
            let made = device.make_pair(connection, &config).unwrap();
            assert_eq!(made.inline_bytes, granted);
            assert_eq!(stub(|stub| stub.tries.clone()), tries);
        }
    }

    #[test]
    fn a_connection_comes_from_where_it_is_told() {
        let mut device = open();
        let (address, source) = ("192.0.2.1:4420".parse().unwrap(), "192.0.2.9:0".parse().unwrap());
        device.begin_resolving(address, Some(source)).unwrap();
        device.begin_resolving(address, None).unwrap();
        let resolved = stub(|stub| stub.resolved.clone());
        assert_eq!(resolved, [(Some(source), address), (None, address)]);
    }

    /// Soft RoCE never gives a packet up that may be sent again 7 times.
    #[test]
    fn a_queue_fails_whose_packets_get_lost_for_good() {
        let mut device = open();
        let id = device.create_id().unwrap();
        let connection = device.connections.add(id);
        device.ask(connection, &[], 4).unwrap();
        assert_eq!(stub(|stub| stub.retries.clone()), [(6, 7)]);
    }

    #[test]
    fn a_target_tells_hosts_to_try_again_soon() {
        stub(|stub| stub.inline = 64);
        let mut device = open();
        let id = device.create_id().unwrap();
        let connection = device.connections.add(id);
        let config = PairConfig {
            domain: DomainId::OWN,
            sends: 8,
            receives: 8,
            shares_receives: true,
            inline_bytes: 0,
        };
        device.make_pair(connection, &config).unwrap();
        device.agree(connection, &[], 4).unwrap();
        assert_eq!(stub(|stub| stub.timers.clone()), [RETRY_AFTER]);
    }

    #[test]
    fn the_removal_of_another_device_ends_its_own_connections_only() {
        let mut device = open();
        let id = device.create_id().unwrap();
        let connection = device.connections.add(id);
        // SAFETY: the test's own identifier. It was found to be at another device, of which nothing is read.
        unsafe { (*id).verbs = std::ptr::without_provenance_mut(4096) };
        tell(id, kind::DEVICE_REMOVAL, 0);
        assert_eq!(device.take_event(), Some(Event::DeviceRemoved(connection)));
        assert!(!removal::is_noted(device.context), "this one is there");
        tell(device.anchor, kind::DEVICE_REMOVAL, 0);
        assert_eq!(device.take_event(), Some(Event::DeviceRemoved(ConnectionId::NOBODY)));
        assert!(removal::is_noted(device.context));
    }

    /// `RDMA_CM_EVENT_ADDR_CHANGE` of an identifier that is no connection's.
    #[test]
    fn an_address_that_moves_is_told_and_removes_nothing() {
        let mut device = open();
        let id = device.create_id().unwrap();
        let connection = device.connections.add(id);
        let listener = device.create_id().unwrap();
        device.connections.listeners.push((listener, device.address));
        for moved in [device.anchor, listener] {
            tell(moved, 14, 0);
            assert_eq!(device.take_event(), Some(Event::AddressMoved));
        }
        assert!(!removal::is_noted(device.context), "the device is there");
        tell(id, 14, 0);
        assert_eq!(device.take_event(), Some(Event::Disconnected(connection)));
        let other = device.create_id().unwrap();
        tell(other, 14, 0);
        assert_eq!(device.take_event(), None, "it is nobody's");
    }

    #[test]
    fn only_a_reject_with_data_is_that_of_a_program() {
        let mut device = open();
        let id = device.create_id().unwrap();
        let connection = device.connections.add(id);
        tell(id, kind::REJECTED, -libc::ECONNREFUSED);
        let reason = Rejection::Manager(-libc::ECONNREFUSED);
        assert_eq!(device.take_event(), Some(Event::Rejected { connection, reason }));
    }

    /// The numbers are those of `enum rdma_cm_event_type`. 5 and 12 to 15 but for a change of the address say nothing that
    /// a queue heeds, nor does a number that is not known.
    #[test]
    fn every_event_of_a_connection_is_understood() {
        let mut device = open();
        let id = device.create_id().unwrap();
        let connection = device.connections.add(id);
        let failed = |why| Some(Event::Failed { connection, why });
        for (number, expected) in [
            (1, failed("resolving the address")),
            (2, Some(Event::Resolved(connection))),
            (3, failed("resolving the route")),
            (5, None),
            (6, failed("connecting")),
            (7, failed("reaching the peer")),
            (10, Some(Event::Disconnected(connection))),
            (12, None),
            (13, None),
            (14, Some(Event::Disconnected(connection))),
            (15, None),
            (16, None),
        ] {
            tell_with(id, number, -libc::ETIMEDOUT, b"not theirs");
            assert_eq!(device.take_event(), expected, "event {number}");
        }
        // Nothing is said of an identifier that is not in the table.
        let other = device.create_id().unwrap();
        (0..=16).filter(|number| ![4, 11].contains(number)).for_each(|it| tell(other, it, 0));
        assert_eq!(device.take_event(), None);
    }

    #[test]
    fn an_address_is_reached_by_this_device_or_not_at_all() {
        let mut device = open();
        let id = device.create_id().unwrap();
        let connection = device.connections.add(id);
        tell(id, kind::ADDR_RESOLVED, 0);
        let elsewhere = Event::Failed { connection, why: "reaching the target by this device" };
        assert_eq!(device.take_event(), Some(elsewhere), "it is at no device");
        // SAFETY: the test's own identifier, and the context of its device.
        unsafe { (*id).verbs = device.context };
        tell(id, kind::ADDR_RESOLVED, 0);
        assert_eq!((device.take_event(), stub(|stub| stub.routes)), (None, 1));
        stub(|stub| stub.route = -1);
        tell(id, kind::ADDR_RESOLVED, 0);
        let failed = Event::Failed { connection, why: "resolving the route" };
        assert_eq!(device.take_event(), Some(failed));
    }

    #[test]
    fn private_data_come_with_an_answer_of_a_program() {
        let mut device = open();
        let id = device.create_id().unwrap();
        let connection = device.connections.add(id);
        let data = b"four".to_vec();
        tell_with(id, kind::ESTABLISHED, 0, b"four");
        let established = Event::Established { connection, private: data.clone() };
        assert_eq!(device.take_event(), Some(established));
        for (status, reason) in [
            (10, Rejection::Stale),
            (28, Rejection::Consumer(data.clone())),
            (-libc::ECONNREFUSED, Rejection::Consumer(data.clone())),
            (libc::ECONNREFUSED, Rejection::Consumer(data)),
            (8, Rejection::Manager(8)),
        ] {
            tell_with(id, kind::REJECTED, status, b"four");
            let event = Event::Rejected { connection, reason };
            assert_eq!(device.take_event(), Some(event), "status {status}");
        }
    }

    /// Without an RDMA device this fails, and says why.
    #[test]
    fn an_address_without_a_device_is_refused() {
        let error = RdmaDevice::open("127.0.0.1:0".parse().unwrap(), 16);
        let error = error.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(
            error.contains("install Debian's packages")
                || error.contains("RDMA device")
                || error.contains("rdma_ucm"),
            "{error:?}"
        );
    }
}
