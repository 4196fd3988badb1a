//! Operations on the streams and listeners of providers, the same over every back end.
//!
//! A back end says when to try ([`Provided::wake`]), tries ([`Provided::attempt`]), and waits for what
//! the answer names. Beside that, a back end keeps one number of its own for each slot
//! ([`Provided::watch`]).

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};

use crate::flow::SocketClass;
use crate::io::nonblocking::is_transient;
use crate::io::slab::Slab;
use crate::io::stream::{ByteStream, Interest, Source, StreamListener};
use crate::io::{Completion, ListenerId, Outcome, RecvBuffers, SocketId, Token};
use crate::memory::stream::fence;
use crate::send::SendBatch;
use crate::thread::stats::IoCounts;

/// The bit that marks ids of this module. [`Slab`] leaves it clear in ids of the kernel's sockets and
/// listeners.
const PROVIDED: u32 = 1 << 31;

/// Connections that one try of a listener accepts, so that a storm does not delay others.
const ACCEPTS_PER_TRY: usize = 64;

/// The streams and listeners of one core that come from providers.
#[derive(Default)]
pub(crate) struct Provided {
    slots: Slab<Slot>,
    /// Slots that are to be tried, each once.
    trying: VecDeque<u32>,
}

struct Slot {
    body: Body,
    /// What its owner has declared.
    class: SocketClass,
    /// The descriptor to wait on for news; without one, only a try tells.
    fd: Option<RawFd>,
    polled: bool,
    /// It is in `trying`.
    trying: bool,
    /// Tries in a row that ended with a wait. An answer of the slot itself that a try finds nothing begins them anew, at 1.
    misses: u32,
    /// What it waits for since the last try.
    interest: Interest,
    /// A back end's name for its wait for news, and what that covers.
    watch: Option<(u64, Interest)>,
    /// Closed by the owner; the descriptor waits for the watch.
    closing: bool,
}

enum Body {
    Stream {
        stream: Box<dyn ByteStream>,
        recv: Option<(Token, RecvBuffers)>,
        send: Option<(Token, Box<SendBatch>)>,
    },
    Listener {
        listener: Box<dyn StreamListener>,
        token: Token,
    },
}

/// What a try leaves to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing, until an operation is started.
    Idle,
    /// To wait for this.
    Wait(Interest),
    /// To try again at the next poll, with or without news.
    Again,
}

/// The slot of a socket, if it is one of a provider's.
pub(crate) fn slot_of(socket: SocketId) -> Option<u32> {
    (socket.0 & PROVIDED != 0).then_some(socket.0 & !PROVIDED)
}

/// The socket of a slot.
pub(crate) fn socket_of(slot: u32) -> SocketId {
    SocketId(slot | PROVIDED)
}

/// The slot of a listener, if it is one of a provider's.
pub(crate) fn slot_of_listener(listener: ListenerId) -> Option<u32> {
    (listener.0 & PROVIDED != 0).then_some(listener.0 & !PROVIDED)
}

impl Provided {
    /// Whether there is any. For a core without one, this question is the only cost.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.slots.live() > 0
    }

    /// How many streams and listeners there are.
    pub(crate) fn live(&self) -> usize {
        self.slots.live()
    }

    /// Their slots.
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.slots.ids().collect()
    }

    /// Takes a stream over. It is tried at once, as it may have to begin its handshake.
    pub(crate) fn adopt(&mut self, stream: Box<dyn ByteStream>) -> io::Result<u32> {
        let source = stream.source();
        let (fd, polled) = (raw(source), source.is_polled());
        self.insert(Body::Stream { stream, recv: None, send: None }, fd, polled)
    }

    /// Takes a listener over; gives its slot, its id and its address.
    pub(crate) fn listen(
        &mut self,
        listener: Box<dyn StreamListener>,
        token: Token,
    ) -> io::Result<(u32, ListenerId, SocketAddr)> {
        let source = listener.source();
        let (fd, polled) = (raw(source), source.is_polled());
        let address = listener.local_address();
        let slot = self.insert(Body::Listener { listener, token }, fd, polled)?;
        Ok((slot, ListenerId(slot | PROVIDED), address))
    }

    fn insert(&mut self, body: Body, fd: Option<RawFd>, polled: bool) -> io::Result<u32> {
        let slot = Slot {
            body,
            class: SocketClass::ADMIN,
            fd,
            polled,
            trying: false,
            misses: 0,
            interest: Interest::NONE,
            watch: None,
            closing: false,
        };
        let id = self.slots.insert(slot).map_err(|_| io::ErrorKind::QuotaExceeded)?;
        self.wake(id);
        Ok(id)
    }

    /// Starts a receive; gives the buffers back if the socket cannot.
    pub(crate) fn recv(
        &mut self,
        socket: SocketId,
        buffers: RecvBuffers,
        token: Token,
    ) -> Result<u32, RecvBuffers> {
        match slot_of(socket).and_then(|id| Some((id, self.slots.get_mut(id)?))) {
            Some((id, Slot { body: Body::Stream { recv, .. }, closing: false, .. }))
                if recv.is_none() && buffers.room() > 0 =>
            {
                *recv = Some((token, buffers));
                self.wake(id);
                Ok(id)
            }
            _ => Err(buffers),
        }
    }

    /// Starts sending; gives the batch back if the socket cannot.
    pub(crate) fn send(
        &mut self,
        socket: SocketId,
        batch: Box<SendBatch>,
        token: Token,
    ) -> Result<u32, Box<SendBatch>> {
        match slot_of(socket).and_then(|id| Some((id, self.slots.get_mut(id)?))) {
            Some((id, Slot { body: Body::Stream { send, .. }, closing: false, .. }))
                if send.is_none() =>
            {
                *send = Some((token, batch));
                self.wake(id);
                Ok(id)
            }
            _ => Err(batch),
        }
    }

    /// Says what a socket is for.
    pub(crate) fn declare(&mut self, socket: SocketId, class: SocketClass) {
        if let Some(slot) = slot_of(socket).and_then(|id| self.slots.get_mut(id)) {
            slot.class = class;
        }
    }

    /// The class of a socket that is not closed.
    pub(crate) fn class(&self, socket: SocketId) -> Option<SocketClass> {
        let slot = slot_of(socket).and_then(|id| self.slots.get(id));
        slot.filter(|slot| !slot.closing).map(|slot| slot.class)
    }

    /// Bytes that a receive would take.
    pub(crate) fn unread(&mut self, socket: SocketId) -> usize {
        match slot_of(socket).and_then(|id| self.slots.get_mut(id)) {
            Some(Slot { body: Body::Stream { stream, .. }, closing: false, .. }) => stream.unread(),
            _ => 0,
        }
    }

    /// The name that the peer has proved to have.
    pub(crate) fn peer_identity(&self, socket: SocketId) -> Option<&str> {
        match &self.slots.get(slot_of(socket)?)?.body {
            Body::Stream { stream, .. } => stream.peer_identity(),
            Body::Listener { .. } => None,
        }
    }

    /// Closes a stream or a listener: its operations come back, and it stays until
    /// [`Self::remove_if_idle`]. False if there is none, or it is closed already.
    pub(crate) fn close(
        &mut self,
        id: u32,
        reset: bool,
        done: &mut impl Extend<Completion>,
    ) -> bool {
        let Some(slot) = self.slots.get_mut(id).filter(|slot| !slot.closing) else { return false };
        slot.closing = true;
        match &mut slot.body {
            Body::Stream { stream, recv, send } => {
                let cancelled = || io::Error::from_raw_os_error(libc::ECANCELED);
                // A device of the stream may read the batch until then.
                stream.close(reset);
                give_back(recv, send, &cancelled, done);
            }
            Body::Listener { listener, .. } => listener.stop(),
        }
        true
    }

    /// Gives up a stream without operations, and the name of the wait for its news.
    pub(crate) fn release(&mut self, id: u32) -> Option<(Box<dyn ByteStream>, Option<u64>)> {
        let slot = self.slots.get(id).filter(|slot| !slot.closing)?;
        let Body::Stream { recv: None, send: None, .. } = &slot.body else { return None };
        let slot = self.slots.remove(id)?;
        match slot.body {
            Body::Stream { stream, .. } => Some((stream, slot.watch.map(|(name, _)| name))),
            Body::Listener { .. } => None,
        }
    }

    /// Drops what is closed and not watched.
    pub(crate) fn remove_if_idle(&mut self, id: u32) {
        if self.slots.get(id).is_some_and(|slot| slot.closing && slot.watch.is_none()) {
            self.slots.remove(id);
        }
    }

    /// The descriptor that tells news of a slot.
    pub(crate) fn fd(&self, id: u32) -> Option<RawFd> {
        self.slots.get(id)?.fd
    }

    /// A back end's wait for news of a slot.
    pub(crate) fn watch(&mut self, id: u32) -> Option<&mut Option<(u64, Interest)>> {
        self.slots.get_mut(id).map(|slot| &mut slot.watch)
    }

    /// What a slot waits for since its last try.
    pub(crate) fn interest(&self, id: u32) -> Interest {
        self.slots.get(id).map_or(Interest::NONE, |slot| slot.interest)
    }

    /// Tries of a slot in a row that ended with a wait.
    pub(crate) fn misses(&self, id: u32) -> u32 {
        self.slots.get(id).map_or(0, |slot| slot.misses)
    }

    /// Puts a slot in line to be tried: it has news or a new operation.
    pub(crate) fn wake(&mut self, id: u32) {
        if let Some(slot) = self.slots.get_mut(id) {
            slot.misses = 0;
            if !std::mem::replace(&mut slot.trying, true) {
                self.trying.push_back(id);
            }
        }
    }

    /// Puts all slots that wait in line to be tried, for a back end that has not asked their sources.
    pub(crate) fn try_all(&mut self) {
        for id in self.ids() {
            if !self.interest(id).is_none() {
                self.try_on(id);
            }
        }
    }

    /// How many slots are to be tried.
    pub(crate) fn trying(&self) -> usize {
        self.trying.len()
    }

    /// The next slot that is to be tried.
    pub(crate) fn next(&mut self) -> Option<u32> {
        let id = self.trying.pop_front()?;
        if let Some(slot) = self.slots.get_mut(id) {
            slot.trying = false;
        }
        Some(id)
    }

    /// Has the next poll try a slot that has no news.
    pub(crate) fn try_on(&mut self, id: u32) {
        if let Some(slot) = self.slots.get_mut(id)
            && !std::mem::replace(&mut slot.trying, true)
        {
            self.trying.push_back(id);
        }
    }

    /// Lets the operations of a slot go on.
    pub(crate) fn attempt(
        &mut self,
        id: u32,
        counts: &mut IoCounts,
        done: &mut impl Extend<Completion>,
    ) -> Next {
        let Some(slot) = self.slots.get_mut(id).filter(|slot| !slot.closing) else {
            return Next::Idle;
        };
        // Without news, a slot says itself whether a try is worth its system calls.
        let may_find = slot.misses == 0
            || match &mut slot.body {
                Body::Stream { stream, .. } => stream.spin(),
                Body::Listener { listener, .. } => listener.spin(),
            };
        let next = match &mut slot.body {
            _ if !may_find => Next::Wait(slot.interest),
            Body::Stream { stream, recv, send } => {
                try_stream(&mut **stream, recv, send, counts, done)
            }
            Body::Listener { listener, token } => try_accept(&mut **listener, *token, done),
        };
        slot.interest = if let Next::Wait(interest) = next { interest } else { Interest::NONE };
        slot.misses = match slot.misses {
            _ if slot.interest.is_none() => 0,
            // It has looked by itself, so it stays in line: the back end's wait would not see what it looks for.
            _ if !may_find => 1,
            misses => misses.saturating_add(1),
        };
        match next {
            Next::Wait(_) if slot.polled => Next::Again,
            next => next,
        }
    }
}

impl Drop for Provided {
    /// Closes all streams, so that they can say their last words.
    fn drop(&mut self) {
        let mut done = Vec::new();
        for id in self.ids() {
            self.close(id, false, &mut done);
        }
    }
}

fn raw(source: Source<'_>) -> Option<RawFd> {
    source.real().ok().flatten().map(|fd| fd.as_raw_fd())
}

/// One try of all that a stream has to do.
fn try_stream(
    stream: &mut dyn ByteStream,
    recv: &mut Option<(Token, RecvBuffers)>,
    send: &mut Option<(Token, Box<SendBatch>)>,
    counts: &mut IoCounts,
    done: &mut impl Extend<Completion>,
) -> Next {
    match stream.advance() {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => return Next::Again,
        Err(error) if !is_transient(&error) => {
            give_back(recv, send, &|| same(&error), done);
            return Next::Idle;
        }
        Ok(()) | Err(_) => {}
    }
    try_recv(stream, recv, counts, done);
    if try_send(stream, send, counts, done) {
        return Next::Again;
    }
    let waiting = Interest { read: recv.is_some(), write: send.is_some() };
    match stream.interest(waiting) {
        Interest::NONE => Next::Idle,
        interest => Next::Wait(interest),
    }
}

fn try_recv(
    stream: &mut dyn ByteStream,
    recv: &mut Option<(Token, RecvBuffers)>,
    counts: &mut IoCounts,
    done: &mut impl Extend<Completion>,
) {
    let Some((token, mut buffers)) = recv.take() else { return };
    let result = loop {
        counts.system_calls += 1;
        match stream.receive(&mut buffers) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => break result,
        }
    };
    if result.as_ref().is_err_and(is_transient) {
        *recv = Some((token, buffers));
        return;
    }
    let count = *result.as_ref().unwrap_or(&0);
    assert!(count <= buffers.room(), "a stream gave {count} bytes for {}", buffers.room());
    counts.received(count);
    done.extend([Completion { token, outcome: Outcome::Received(result, buffers) }]);
}

/// Sends until the batch or its share of this poll is gone, or the stream takes no more. True if only the
/// share is gone.
fn try_send(
    stream: &mut dyn ByteStream,
    send: &mut Option<(Token, Box<SendBatch>)>,
    counts: &mut IoCounts,
    done: &mut impl Extend<Completion>,
) -> bool {
    let Some((token, mut batch)) = send.take() else { return false };
    // The peer may read the batch, such as that a write is done, before the call is over.
    fence();
    let mut share = batch.call_bytes_max();
    let result = loop {
        if batch.is_empty() {
            break stream.advance();
        }
        counts.system_calls += 1;
        match stream.transmit(&mut batch) {
            Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
            Ok(sent) => {
                counts.sent(sent);
                batch.advance(sent);
                share = share.saturating_sub(sent);
                if share == 0 && !batch.is_empty() {
                    *send = Some((token, batch));
                    return true;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break Err(error),
        }
    };
    if result.as_ref().is_err_and(is_transient) {
        *send = Some((token, batch));
    } else {
        done.extend([Completion { token, outcome: Outcome::Sent(result, batch) }]);
    }
    false
}

fn try_accept(
    listener: &mut dyn StreamListener,
    token: Token,
    done: &mut impl Extend<Completion>,
) -> Next {
    for _ in 0..ACCEPTS_PER_TRY {
        match listener.accept() {
            Err(error) if is_transient(&error) => return Next::Wait(Interest::READ),
            result => {
                let failed = result.is_err();
                let accepted = result.map(|socket| {
                    let peer = socket.peer_address();
                    (socket, peer)
                });
                done.extend([Completion { token, outcome: Outcome::Accepted(accepted) }]);
                if failed {
                    // The next try may get the same error, so it waits for news.
                    return Next::Wait(Interest::READ);
                }
            }
        }
    }
    Next::Again
}

/// Gives operations back with an error.
fn give_back(
    recv: &mut Option<(Token, RecvBuffers)>,
    send: &mut Option<(Token, Box<SendBatch>)>,
    error: &dyn Fn() -> io::Error,
    done: &mut impl Extend<Completion>,
) {
    if let Some((token, buffers)) = recv.take() {
        done.extend([Completion { token, outcome: Outcome::Received(Err(error()), buffers) }]);
    }
    if let Some((token, batch)) = send.take() {
        done.extend([Completion { token, outcome: Outcome::Sent(Err(error()), batch) }]);
    }
}

/// The same error for another operation.
fn same(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}
