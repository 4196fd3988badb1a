//! A TLS connection as a byte stream of the reactor: the handshake, then records between a socket and an owner's memory.

use std::io::{self, Read as _, Write as _};
use std::ops::Range;
use std::os::fd::BorrowedFd;

use raceline_reactor::io::RecvBuffers;
use raceline_reactor::{ByteStream, Interest, SendBatch, Source, Transport};

use crate::counts::{Active, Counts};
use crate::error::TlsError;
use crate::handshake::{Established, Handshake};
use crate::offload::{Kernel, Offload};
use crate::pace;
use crate::record::{DATA_MAX, HEADER, OVERHEAD, RECORD_MAX, record_len};
use crate::session::{Opened, Session};

/// Records that are written by one call, at most, and that are read by one.
const RECORDS: usize = 4;
/// Most bytes that are sealed and not written.
const OUT_BYTES: usize = RECORDS * Session::sealed_max(DATA_MAX);
/// Bytes that are read by one call.
const RAW_BYTES: usize = RECORDS * RECORD_MAX;
/// Bytes that are read by one call during the handshake.
const HANDSHAKE_BYTES: usize = 4 << 10;

enum Phase {
    Handshake(Box<Handshake>),
    Open(Box<Open>),
}

/// A connection after its handshake.
struct Open {
    session: Session,
    kernel: Kernel,
    _active: Active,
}

/// See the module.
pub(crate) struct TlsStream {
    transport: Transport,
    phase: Phase,
    offload: Offload,
    counts: &'static Counts,
    out: Outbox,
    raw: Raw,
    identity: Option<String>,
    /// The peer has said that it sends nothing more.
    ended: bool,
    /// Why the connection is over.
    failed: Option<Failure>,
}

/// An error that is given again and again.
enum Failure {
    Tls(TlsError),
    Socket(io::ErrorKind, Option<i32>),
}

impl Failure {
    fn of(error: &io::Error) -> Failure {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>()) {
            Some(error) => Failure::Tls(error.clone()),
            None => Failure::Socket(error.kind(), error.raw_os_error()),
        }
    }

    fn to_error(&self) -> io::Error {
        match self {
            Failure::Tls(error) => error.clone().into(),
            Failure::Socket(_, Some(code)) => io::Error::from_raw_os_error(*code),
            Failure::Socket(kind, None) => (*kind).into(),
        }
    }
}

/// Bytes for the peer that the socket has not taken yet.
#[derive(Default)]
struct Outbox {
    bytes: Vec<u8>,
    filled: Range<usize>,
}

impl Outbox {
    fn push(&mut self, bytes: &[u8]) {
        self.room(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.filled.end += bytes.len();
    }

    /// Memory behind what is there, for at least `len` bytes. Whoever fills it says so in `filled`.
    fn room(&mut self, len: usize) -> &mut [u8] {
        let end = self.filled.end;
        if self.bytes.len() < end + len {
            self.bytes.resize(end + len, 0);
        }
        &mut self.bytes[end..]
    }

    /// Writes all that is there.
    fn pay(&mut self, transport: &mut Transport) -> io::Result<()> {
        while !self.filled.is_empty() {
            match transport.write(&self.bytes[self.filled.clone()]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.filled.start += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.filled = 0..0;
        Ok(())
    }
}

/// Bytes of the peer: data that nobody has taken yet, then records that are not opened yet.
#[derive(Default)]
struct Raw {
    bytes: Vec<u8>,
    data: Range<usize>,
    records: Range<usize>,
}

impl Raw {
    /// What follows a handshake.
    fn beginning(rest: &[u8]) -> Raw {
        let mut bytes = vec![0; RAW_BYTES.max(rest.len())];
        bytes[..rest.len()].copy_from_slice(rest);
        Raw { bytes, data: 0..0, records: 0..rest.len() }
    }

    /// Opens the next record; `None`: it is not whole. Its data go to `place` if there is room for all of them, and
    /// what was put there is given, too. Else they stay here.
    fn open_next(
        &mut self,
        session: &mut Session,
        place: &mut [u8],
    ) -> Result<Option<(Opened, usize)>, TlsError> {
        let Some(len) = session.record_len(&self.bytes[self.records.clone()])? else {
            return Ok(None);
        };
        if self.records.len() < len {
            return Ok(None);
        }
        let start = self.records.start;
        self.records.start += len;
        let record = &mut self.bytes[start..start + len];
        if place.len() >= Session::opened_max(len) {
            let opened = session.open_into(record, place)?;
            let put = if let Opened::Data { len, .. } = opened { len } else { 0 };
            return Ok(Some((opened, put)));
        }
        let opened = session.open(record)?;
        if let Opened::Data { start: within, len } = opened {
            self.data = start + within..start + within + len;
        }
        Ok(Some((opened, 0)))
    }

    /// Reads more. There are no data, and the records are less than one. With `one`, it reads no byte behind the record
    /// that has begun.
    fn fill(&mut self, transport: &mut Transport, one: bool) -> io::Result<usize> {
        self.bytes.copy_within(self.records.clone(), 0);
        self.records = 0..self.records.len();
        let end = match record_len(&self.bytes[self.records.clone()])? {
            _ if !one => self.bytes.len(),
            Some(len) => len,
            None => HEADER,
        };
        let count = transport.read(&mut self.bytes[self.records.end..end])?;
        self.records.end += count;
        Ok(count)
    }
}

impl TlsStream {
    /// Around a fresh connection.
    pub(crate) fn new(
        transport: Transport,
        mut handshake: Handshake,
        offload: Offload,
    ) -> TlsStream {
        let mut out = Outbox::default();
        out.push(&handshake.take_output());
        TlsStream {
            transport,
            counts: Counts::of(handshake.is_of_host()),
            phase: Phase::Handshake(Box::new(handshake)),
            offload,
            out,
            raw: Raw::default(),
            identity: None,
            ended: false,
            failed: None,
        }
    }

    /// Gives the result; remembers an error that is final, and tells the peer.
    fn settle<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        let Err(error) = &result else { return result };
        if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) {
            return result;
        }
        let failure = Failure::of(error);
        if let Failure::Tls(error) = &failure {
            let error = error.clone();
            if self.failed.is_none() {
                self.counts.failed(&error);
            }
            self.say_end(Some(&error));
        }
        // The last words leave now or never.
        let _ = self.out.pay(&mut self.transport);
        self.failed = Some(failure);
        result
    }

    /// Makes the last record: close_notify, or the alert of an error.
    fn say_end(&mut self, error: Option<&TlsError>) {
        let Phase::Open(open) = &mut self.phase else { return };
        if open.kernel.sends_already() {
            let alert = match error {
                None => Some([1, 0]),
                Some(error) => error.alert().map(|description| [2, description]),
            };
            alert.iter().for_each(|alert| open.kernel.alert(&self.transport, *alert));
        } else {
            let len = open.session.close(error, self.out.room(Session::sealed_max(DATA_MAX)));
            self.out.filled.end += len;
        }
    }

    /// Gives the error that has ended the connection. A socket that has failed to receive says itself what it does with
    /// what is to be sent.
    fn check(&self, receives: bool) -> io::Result<()> {
        match &self.failed {
            Some(failure @ Failure::Tls(_)) => Err(failure.to_error()),
            Some(failure) if receives || self.identity.is_none() => Err(failure.to_error()),
            _ => Ok(()),
        }
    }

    fn shake_hands(&mut self) -> io::Result<()> {
        loop {
            self.out.pay(&mut self.transport)?;
            let Phase::Handshake(handshake) = &mut self.phase else { return Ok(()) };
            if !pace::allows() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let mut piece = [0; HANDSHAKE_BYTES];
            let count = match self.transport.read(&mut piece) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if count == 0 {
                return Err(TlsError::CutOffEarly(handshake.has_begun()).into());
            }
            let result = pace::step(|| handshake.handle(&piece[..count]));
            self.out.push(&handshake.take_output());
            if let Some(established) = result? {
                self.open(established);
            }
        }
    }

    fn open(&mut self, established: Established) {
        let Established { identity, suite, session, rest } = established;
        tracing::debug!(identity = %identity.escape_debug(), suite = suite.name(), "TLS is established");
        self.raw = Raw::beginning(&rest);
        self.identity = Some(identity);
        self.phase = Phase::Open(Box::new(Open {
            session,
            kernel: Kernel::new(self.offload),
            _active: self.counts.established(suite),
        }));
    }

    /// Sends, if the kernel makes the records, or takes them over now.
    fn transmit_by_kernel(&mut self, batch: &mut SendBatch) -> io::Result<Option<usize>> {
        // Bytes that are sealed, or of the handshake, leave before.
        self.out.pay(&mut self.transport)?;
        let Phase::Open(open) = &mut self.phase else { return Ok(None) };
        let Open { session, kernel, .. } = &mut **open;
        if !kernel.sends(&self.transport, session)? {
            return Ok(None);
        }
        kernel.transmit(&mut self.transport, session, batch).map(Some)
    }

    fn receive_some(&mut self, into: &mut RecvBuffers) -> io::Result<usize> {
        let Phase::Open(open) = &mut self.phase else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let Open { session, kernel, .. } = &mut **open;
        let room = into.room();
        let mut filled = 0;
        loop {
            let taken = into.put(filled, &self.raw.bytes[self.raw.data.clone()]);
            self.raw.data.start += taken;
            filled += taken;
            if filled == room || self.ended {
                return Ok(filled);
            }
            let [payload, staging] = into.parts(filled);
            let place = if payload.is_empty() { staging } else { payload };
            match self.raw.open_next(session, place) {
                Ok(Some((Opened::Closed, _))) => self.ended = true,
                Ok(Some((Opened::Data { .. }, put))) => filled += put,
                Ok(Some((Opened::Nothing, _))) => {
                    if session.owes_answer()
                        && !kernel.sends_already()
                        && self.out.filled.len() < OUT_BYTES
                    {
                        let len = session.answer(self.out.room(Session::sealed_max(DATA_MAX)));
                        self.out.filled.end += len;
                        ignore_full(self.out.pay(&mut self.transport))?;
                    }
                }
                Err(error) if filled == 0 => return Err(error.into()),
                Err(error) => {
                    // What came before it is authentic, and is given first.
                    let _ = self.settle::<()>(Err(error.into()));
                    return Ok(filled);
                }
                Ok(None) if filled > 0 => return Ok(filled),
                Ok(None)
                    if self.raw.records.is_empty()
                        && kernel.receives(&self.transport, session)? =>
                {
                    self.raw = Raw::default();
                    let received = kernel.receive(&mut self.transport, session, into)?;
                    self.ended = received.is_none();
                    return Ok(received.unwrap_or(0));
                }
                Ok(None) => {
                    let one = kernel.waits_for_boundary();
                    if self.raw.fill(&mut self.transport, one)? == 0 {
                        return Err(TlsError::CutOff.into());
                    }
                }
            }
        }
    }
}

/// A full socket is no error: what it has not taken is owed.
fn ignore_full(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        result => result,
    }
}

impl ByteStream for TlsStream {
    fn advance(&mut self) -> io::Result<()> {
        self.check(false)?;
        match &self.phase {
            Phase::Handshake(_) => {
                let result = self.shake_hands();
                self.settle(result)
            }
            Phase::Open(_) => self.out.pay(&mut self.transport),
        }
    }

    fn receive(&mut self, into: &mut RecvBuffers) -> io::Result<usize> {
        self.check(true)?;
        let result = self.receive_some(into);
        self.settle(result)
    }

    /// Seals one record, and writes only when as many are sealed as one call writes: the caller gives the rest of the
    /// batch at once, and then calls [`Self::advance`].
    fn transmit(&mut self, batch: &mut SendBatch) -> io::Result<usize> {
        self.check(false)?;
        if matches!(self.phase, Phase::Handshake(_)) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if matches!(&self.phase, Phase::Open(open) if open.kernel.will_send()) {
            let result = self.transmit_by_kernel(batch);
            if let Some(sent) = self.settle(result)? {
                return Ok(sent);
            }
        }
        if self.out.filled.end + Session::sealed_max(DATA_MAX) > OUT_BYTES {
            self.out.pay(&mut self.transport)?;
        }
        let Phase::Open(open) = &mut self.phase else { return Ok(0) };
        let session = &mut open.session;
        let needed = Session::sealed_max(batch.len().min(DATA_MAX));
        let (sealed, taken) = session.seal(self.out.room(needed), |room| batch.copy_unsent(room));
        self.out.filled.end += sealed;
        Ok(taken)
    }

    /// Exact if all records that are not opened are as long as they can be, but for the last one.
    fn unread(&mut self) -> usize {
        let sealed = self.raw.records.len() + self.transport.unread();
        let records = sealed.div_ceil(DATA_MAX + OVERHEAD);
        self.raw.data.len() + sealed.saturating_sub(records * OVERHEAD)
    }

    fn interest(&self, waiting: Interest) -> Interest {
        let shakes_hands = matches!(self.phase, Phase::Handshake(_));
        if matches!(self.failed, Some(Failure::Tls(_))) {
            return Interest::NONE;
        }
        let owes = !self.out.filled.is_empty();
        let by_kernel = matches!(&self.phase, Phase::Open(open) if open.kernel.sends_already());
        Interest {
            read: waiting.read || shakes_hands && !owes,
            write: owes || by_kernel && waiting.write,
        }
    }

    fn source(&self) -> Source<'_> {
        self.transport.source()
    }

    fn kernel_socket(&self) -> Option<BorrowedFd<'_>> {
        self.transport.kernel_socket()
    }

    fn peer_identity(&self) -> Option<&str> {
        self.identity.as_deref()
    }

    fn close(&mut self, reset: bool) {
        if !reset && self.failed.is_none() {
            self.say_end(None);
            if matches!(self.phase, Phase::Open(_)) {
                let _ = self.out.pay(&mut self.transport);
            }
        }
        self.transport.close(reset);
    }
}
