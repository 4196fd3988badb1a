//! A connection: what it receives, which requests it has, and what it answers.

mod order;

use std::fmt::Display;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use raceline_bdev::{DiskCounters, OpKind};
use raceline_reactor::flow::class::Traffic;
use raceline_reactor::flow::{Departure, SocketClass};
use raceline_reactor::io::{RecvBuffers, SocketId};
use raceline_reactor::{Context, IoBuf, Payload, SendBatch, StreamProvider, Token};

use self::order::Order;
use super::ServerTls;
use super::budget::{Budget, Held};
use super::core::Devices;
use super::listen::Place;
use super::order::Behind;
use super::pace::{Needed, Pace};
use crate::protocol::wire::{REQUEST_LEN, command};
use crate::protocol::{
    Agreement, ExportFacts, MAX_HEADER_LEN, Negotiation, Plan, Progress, Refusal, Refused, Request,
    TlsPolicy, plan, push_error,
};

/// Requests of a connection whose replies have not been sent: more than the queue of any client.
pub(super) const DEPTH: u16 = 128;

/// Bytes that one receive puts beside payloads.
const STAGING_BYTES: usize = 64 << 10;

/// Most bytes of one send while another connection waits with a small one.
const SHARE_BYTES: usize = 256 << 10;

/// How long a client may negotiate.
const NEGOTIATION_TIME: Duration = Duration::from_secs(10);

/// Most bytes of replies that lie in memory of the device: they cost no memory here, but a client may take for as long as
/// its pace lets it. One request may always have its reply.
const LIGHT_BYTES: usize = 32 << 20;

/// How long what has come may take when the server ends.
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// What its socket is for.
const CLASS: SocketClass = SocketClass {
    traffic: Traffic::Responses,
    share: SHARE_BYTES,
    core_staging: 0,
    departure: Departure::Copied,
};

/// A request on its way.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) cookie: u64,
    pub(super) plan: Plan,
    /// Bytes of the budget that its data hold.
    pub(super) held: usize,
    /// Bytes of its reply that lie in memory of the device.
    light: usize,
    pub(super) step: Step,
    /// Its age among the changes of the export, while it is one of them.
    pub(super) age: Option<u64>,
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Its data come, its first request is at the device, or its reply waits to be sent.
    First,
    /// The device flushes what the request has changed.
    Flush,
    /// The device is written with zeroes, up to here.
    Zeroes(u64),
}

/// A write whose payload comes.
#[derive(Debug)]
struct Incoming {
    slot: u16,
    /// `None` while a receive fills it.
    buf: Option<IoBuf>,
    filled: usize,
}

/// What a reply that was sent gives back.
#[derive(Debug)]
pub(super) struct Owed {
    slot: u16,
    held: usize,
}

enum Phase {
    Negotiating(Negotiation, Vec<ExportFacts>),
    /// The answer to STARTTLS goes; then TLS begins.
    Securing(Negotiation, Vec<ExportFacts>),
    Serving(Agreement, ExportFacts),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Open,
    /// Nothing more is read; it is closed when all that has come is answered.
    Drains,
    /// The socket is closed; operations come home.
    Closed,
}

/// The state of a connection.
pub(super) struct Connection {
    socket: SocketId,
    token: Token,
    phase: Phase,
    /// Its client is told of another size, not by this connection.
    follows_size: bool,
    /// What makes TLS, until it is there.
    tls: Option<Arc<dyn StreamProvider>>,
    /// `None` while a receive has it.
    staging: Option<IoBuf>,
    /// What was received and not looked at.
    staged: Range<usize>,
    incoming: Option<Incoming>,
    /// Bytes to throw away before the reply to the request they belong to.
    skip: Option<(u32, Request, Refusal)>,
    /// The next request, which waits for a place or for memory; for memory that connections share.
    waiting: Option<Request>,
    wants_memory: bool,
    running: Vec<Option<Running>>,
    free: Vec<u16>,
    /// Requests at the device.
    pub(super) in_flight: usize,
    held: Held,
    light: usize,
    filling: Box<SendBatch>,
    fills: Vec<Owed>,
    /// The other batch; `None` while it is being sent.
    spare: Option<Box<SendBatch>>,
    sends: Vec<Owed>,
    ending: Ending,
    order: Order,
    order_until: Option<Instant>,
    /// Other connections, which wait until what has come for this one has begun.
    behind: Behind,
    /// Nothing of it waited when it was last looked at.
    has_gone_on: bool,
    /// All bytes that have come, and those that had when it was last looked at.
    came: u64,
    came_before: u64,
    negotiate_until: Option<Instant>,
    /// The payload of a write, and the replies that are being sent.
    receives: Pace,
    sends_on: Pace,
    needed: Needed,
    /// Bytes of payloads that have come, and of replies that have gone.
    received: u64,
    sent: Arc<AtomicU64>,
    drain_until: Option<Instant>,
    place: Place,
    /// Where its core counts.
    pub(super) counters: Arc<DiskCounters>,
}

impl Connection {
    pub(super) fn new(
        cx: &mut Context<'_>,
        (socket, place, counters): (SocketId, Place, Arc<DiskCounters>),
        token: Token,
        (exports, tls): (Vec<ExportFacts>, Option<ServerTls>),
    ) -> Self {
        let mut greeting = Vec::new();
        let negotiation = Negotiation::new(ServerTls::policy(tls.as_ref()), &mut greeting);
        let phase = Phase::Negotiating(negotiation, exports);
        let mut connection = Self::in_phase(cx, (socket, place, counters), token, phase);
        connection.tls = tls.map(|tls| tls.provider);
        connection.negotiate_until = Some(cx.now + NEGOTIATION_TIME);
        connection.push_owned(&greeting);
        connection
    }

    /// A connection whose client knows the export, the first one, and has no choices.
    pub(super) fn agreed(
        cx: &mut Context<'_>,
        (socket, place, counters): (SocketId, Place, Arc<DiskCounters>),
        token: Token,
        facts: ExportFacts,
    ) -> Self {
        let agreed = Agreement { export: 0, structured: false, allocation: false };
        let mut connection =
            Self::in_phase(cx, (socket, place, counters), token, Phase::Serving(agreed, facts));
        connection.follows_size = true;
        connection
    }

    fn in_phase(
        cx: &mut Context<'_>,
        (socket, place, counters): (SocketId, Place, Arc<DiskCounters>),
        token: Token,
        phase: Phase,
    ) -> Self {
        cx.io.declare(socket, CLASS);
        let depth = usize::from(DEPTH);
        // Each reply is a header and a payload; there are at most DEPTH of them in both batches.
        let sent = Arc::<AtomicU64>::default();
        let batch = || {
            let mut batch = SendBatch::new(depth * MAX_HEADER_LEN, 3 * depth + 3);
            batch.watch(Arc::clone(&sent));
            batch
        };
        Self {
            socket,
            token,
            phase,
            follows_size: false,
            tls: None,
            staging: Some(take(cx, STAGING_BYTES)),
            staged: 0..0,
            incoming: None,
            skip: None,
            waiting: None,
            wants_memory: false,
            running: (0..DEPTH).map(|_| None).collect(),
            free: (0..DEPTH).rev().collect(),
            in_flight: 0,
            held: Held::default(),
            light: 0,
            filling: batch(),
            fills: Vec::with_capacity(depth),
            spare: Some(batch()),
            sends: Vec::with_capacity(depth),
            ending: Ending::Open,
            order: Order::Open,
            order_until: None,
            behind: Behind::new(),
            has_gone_on: false,
            came: 0,
            came_before: 0,
            negotiate_until: None,
            receives: Pace::default(),
            sends_on: Pace::default(),
            needed: Needed::default(),
            received: 0,
            sent,
            drain_until: None,
            place,
            counters,
        }
    }

    pub(super) fn index(&self) -> u32 {
        self.token.index
    }

    /// The export that it uses, and what was agreed on.
    pub(super) fn serving(&self) -> Option<(Agreement, &ExportFacts)> {
        match &self.phase {
            Phase::Negotiating(..) | Phase::Securing(..) => None,
            Phase::Serving(agreed, facts) => Some((*agreed, facts)),
        }
    }

    pub(super) fn running_mut(&mut self, slot: u16) -> Option<&mut Running> {
        self.running.get_mut(usize::from(slot))?.as_mut()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.ending == Ending::Closed
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.is_some() && self.ending == Ending::Open
    }

    /// Whether nothing of it is left.
    pub(super) fn is_gone(&self) -> bool {
        // What waits for it at other cores is bounded by the places of connections.
        let is_held = matches!(&self.order, Order::Waits(wait) if !wait.is_over());
        let is_idle = self.in_flight == 0 && !is_held;
        self.is_closed() && is_idle && self.staging.is_some() && self.spare.is_some()
    }

    /// Gives all of its memory back to the budget.
    pub(super) fn give_back(&mut self, budget: &mut Budget) {
        budget.give_back_all(&mut self.held);
    }

    pub(super) fn handle_received(
        &mut self,
        cx: &mut Context<'_>,
        devices: &mut Devices,
        result: io::Result<usize>,
        buffers: RecvBuffers,
    ) {
        let has_failed = result.is_err();
        let mut count = result.unwrap_or_else(|error| {
            self.say_failed(&error);
            0
        });
        let ended = count == 0;
        self.came += count as u64;
        if let Some((buf, range)) = buffers.payload
            && let Some(incoming) = &mut self.incoming
        {
            let landed = count.min(range.len());
            incoming.buf = Some(buf);
            incoming.filled += landed;
            self.received += landed as u64;
            count -= landed;
            self.staged = buffers.staging_range.start..buffers.staging_range.start + count;
            self.staging = Some(buffers.staging);
        } else {
            // Bytes before the range were staged before.
            self.staged.end = buffers.staging_range.start + count;
            self.staging = Some(buffers.staging);
        }
        if !ended {
            self.process(cx, devices);
        } else if has_failed || self.serving().is_none() || self.ending == Ending::Closed {
            self.close(cx);
        } else {
            // It may have ended its own direction only, and waits for the replies to what it has asked. All that came whole has
            // begun: nothing was received while a request waited.
            self.ending = Ending::Drains;
            self.receives.end();
        }
    }

    /// A client that has no key for TLS comes to its end here.
    fn say_failed(&self, error: &io::Error) {
        if self.is_closed() {
            return;
        }
        let peer = self.place.peer();
        match self.phase {
            Phase::Serving(..) => tracing::info!(peer, "an NBD connection has failed: {error}"),
            _ => self.say_refused(error),
        }
    }

    fn say_refused(&self, why: &dyn Display) {
        let peer = self.place.peer();
        tracing::info!(event = "refused", peer, "refused an NBD client: {why}");
    }

    pub(super) fn handle_sent(
        &mut self,
        cx: &mut Context<'_>,
        devices: &mut Devices,
        result: io::Result<()>,
        mut batch: Box<SendBatch>,
    ) {
        batch.clear();
        self.spare = Some(batch);
        self.sends_on.end();
        for owed in std::mem::take(&mut self.sends) {
            let running = self.running[usize::from(owed.slot)].take();
            self.light -= running.map_or(0, |running| running.light);
            self.free.push(owed.slot);
            devices.budget.give_back(&mut self.held, owed.held);
        }
        match result {
            Ok(()) => self.process(cx, devices),
            Err(_) => self.close(cx),
        }
    }

    /// Tries the request again that waits.
    pub(super) fn resume(&mut self, cx: &mut Context<'_>, devices: &mut Devices) {
        if self.is_waiting() {
            self.process(cx, devices);
        }
    }

    /// Looks at what was received, as far as that is possible.
    fn process(&mut self, cx: &mut Context<'_>, devices: &mut Devices) {
        while self.ending == Ending::Open && self.step(cx, devices) {}
    }

    /// Takes one thing from what was received; false when there is nothing more to do with it.
    fn step(&mut self, cx: &mut Context<'_>, devices: &mut Devices) -> bool {
        match self.phase {
            Phase::Negotiating(..) => return self.negotiate(),
            Phase::Securing(..) => return false,
            Phase::Serving(..) => {}
        }
        if self.incoming.is_some() {
            return self.fill(cx, devices);
        }
        if let Some((left, request, refusal)) = self.skip {
            let now = usize::try_from(left).map_or(usize::MAX, |left| left.min(self.staged.len()));
            self.staged.start += now;
            let left = left - u32::try_from(now).unwrap_or(left);
            self.skip = Some((left, request, refusal));
            if left > 0 {
                return false;
            }
            self.skip = None;
            self.refuse(&request, refusal);
            return true;
        }
        let request = match self.waiting.take() {
            Some(request) => request,
            None => {
                let Some(request) = self.next_request(cx) else { return false };
                request
            }
        };
        self.begin(cx, devices, request)
    }

    /// The next whole request, if it has come.
    fn next_request(&mut self, cx: &mut Context<'_>) -> Option<Request> {
        let staging = self.staging.as_ref()?;
        let (header, _) = staging[self.staged.clone()].split_first_chunk::<REQUEST_LEN>()?;
        let Some(request) = Request::parse(header) else {
            let peer = self.place.peer();
            tracing::info!(
                peer,
                "an NBD connection was closed: a request without the magic number"
            );
            self.close(cx);
            return None;
        };
        self.staged.start += REQUEST_LEN;
        Some(request)
    }

    /// Begins a request; false if it waits.
    fn begin(&mut self, cx: &mut Context<'_>, devices: &mut Devices, request: Request) -> bool {
        let Phase::Serving(agreed, facts) = &mut self.phase else { return false };
        // Its client may have learned of a device that has grown.
        let end = request.offset.saturating_add(u64::from(request.length));
        if self.follows_size && end > facts.bytes {
            *facts = devices.exports[agreed.export].facts();
        }
        self.wants_memory = false;
        let planned = plan(facts, agreed, &request);
        let in_memory = facts.in_memory;
        let export = agreed.export;
        let Some(&slot) = self.free.last() else {
            self.waiting = Some(request);
            return false;
        };
        let plan = match planned {
            Ok(Plan::Disconnect) => {
                self.drain(cx.now);
                return false;
            }
            Ok(plan) => plan,
            Err(refusal) if refusal.skip > 0 && !refusal.fatal => {
                self.skip = Some((refusal.skip, request, refusal));
                return true;
            }
            Err(refusal) => {
                self.refuse(&request, refusal);
                if refusal.fatal {
                    self.drain(cx.now);
                }
                return true;
            }
        };
        if !matches!(self.order, Order::Settled) && plan.changes() {
            self.waiting = Some(request);
            self.put_in_order(cx, devices);
            return false;
        }
        if let Plan::Write { offset, len, fua } = plan
            && self.staged.len() >= len
            && devices.writes_now(export)
        {
            return self.write_now(devices, (request.cookie, offset, len, fua));
        }
        let held = match plan {
            Plan::Read { len, .. } if !in_memory => len,
            Plan::Write { len, .. } => len,
            _ => 0,
        };
        let light = match plan {
            Plan::Read { len, .. } if in_memory => len,
            _ => 0,
        };
        if light > 0 && self.light > 0 && self.light + light > LIGHT_BYTES {
            self.waiting = Some(request);
            return false;
        }
        self.wants_memory = !devices.budget.take(&mut self.held, held, !self.behind.is_empty());
        if self.wants_memory {
            self.waiting = Some(request);
            return false;
        }
        self.free.pop();
        self.light += light;
        let (cookie, step) = (request.cookie, Step::First);
        let running = Running { cookie, plan, held, light, step, age: None };
        self.running[usize::from(slot)] = Some(running);
        if let Plan::Write { len, .. } = plan {
            self.incoming = Some(Incoming { slot, buf: Some(take(cx, len)), filled: 0 });
            self.receives.begin(cx.now, self.received);
        } else {
            self.submit(cx, devices, slot, (held > 0).then(|| take(cx, held)));
        }
        true
    }

    /// Writes data that have all come straight from where they lie.
    fn write_now(
        &mut self,
        devices: &mut Devices,
        (cookie, offset, len, _fua): (u64, u64, usize, bool),
    ) -> bool {
        let Phase::Serving(agreed, _) = &self.phase else { return false };
        let export = agreed.export;
        let (Some(staging), Some(slot)) = (&self.staging, self.free.pop()) else { return false };
        let data = &staging[self.staged.start..self.staged.start + len];
        let result = devices.write_now(export, offset, data);
        self.staged.start += len;
        if result.is_ok() {
            self.counters.count(OpKind::Write, len as u64, true);
        }
        // A failure is counted with the answer.
        let plan = Plan::Cache;
        self.running[usize::from(slot)] =
            Some(Running { cookie, plan, held: 0, light: 0, step: Step::First, age: None });
        self.answer_plain(slot, result);
        true
    }

    /// Puts what was received into the payload of a write; false if more has to come.
    fn fill(&mut self, cx: &mut Context<'_>, devices: &mut Devices) -> bool {
        let (Some(incoming), Some(staging)) = (&mut self.incoming, &self.staging) else {
            return false;
        };
        let Some(buf) = &mut incoming.buf else { return false };
        let now = self.staged.len().min(buf.len() - incoming.filled);
        let from = self.staged.start;
        buf[incoming.filled..incoming.filled + now].copy_from_slice(&staging[from..from + now]);
        incoming.filled += now;
        self.received += now as u64;
        self.staged.start += now;
        if incoming.filled < buf.len() {
            return false;
        }
        let (slot, buf) = (incoming.slot, incoming.buf.take());
        self.incoming = None;
        self.receives.end();
        self.submit(cx, devices, slot, buf);
        true
    }

    fn negotiate(&mut self) -> bool {
        let Phase::Negotiating(negotiation, exports) = &mut self.phase else { return false };
        let Some(staging) = &self.staging else { return false };
        if self.staged.is_empty() {
            return false;
        }
        let mut out = Vec::new();
        let (taken, progress) =
            negotiation.handle(exports, &staging[self.staged.clone()], &mut out);
        self.staged.start += taken;
        let told = negotiation.take_told();
        let refused = match progress {
            Progress::Goes => told,
            Progress::StartsTls => {
                self.begin_securing();
                told
            }
            Progress::Begins(agreed) => {
                let facts = exports.swap_remove(agreed.export);
                self.phase = Phase::Serving(agreed, facts);
                self.negotiate_until = None;
                None
            }
            Progress::Ends => {
                self.ending = Ending::Drains;
                told
            }
            Progress::Broken(refused) => {
                self.ending = Ending::Drains;
                Some(refused)
            }
        };
        if let Some(refused) = refused {
            self.say_refused(&refused);
        }
        self.push_owned(&out);
        true
    }

    /// Takes the negotiation, if there is one and it is in the clear.
    fn take_negotiation(&mut self) -> Option<(Negotiation, Vec<ExportFacts>)> {
        let none = Phase::Negotiating(Negotiation::new(TlsPolicy::None, &mut Vec::new()), vec![]);
        match std::mem::replace(&mut self.phase, none) {
            Phase::Negotiating(negotiation, exports) | Phase::Securing(negotiation, exports) => {
                Some((negotiation, exports))
            }
            phase @ Phase::Serving(..) => {
                self.phase = phase;
                None
            }
        }
    }

    /// Waits until the answer to STARTTLS has gone. Nothing may have come behind it.
    fn begin_securing(&mut self) {
        let left = self.staged.len();
        if left > 0 {
            let refused = Refused::PlainBehindStartTls(left);
            self.say_refused(&refused);
            self.ending = Ending::Drains;
        } else if let Some((negotiation, exports)) = self.take_negotiation() {
            self.phase = Phase::Securing(negotiation, exports);
        }
    }

    /// Puts TLS around the socket; the negotiation goes on by it.
    fn secure(&mut self, cx: &mut Context<'_>) {
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let Some(provider) = self.tls.take() else { return self.close(cx) };
        // Nothing is in flight: the answer has gone, and nothing was received since.
        let Some(socket) = cx.io.release(self.socket, (nowhere, nowhere)) else {
            let peer = self.place.peer();
            tracing::warn!(
                peer,
                "an NBD connection was closed: its socket is busy where TLS begins"
            );
            return self.close(cx);
        };
        match provider.accepted(socket).and_then(|socket| cx.io.adopt(socket)) {
            Ok(socket) => self.socket = socket,
            Err(error) => {
                self.say_refused(&format_args!("TLS cannot begin: {error}"));
                // Its socket has gone with the error.
                self.ending = Ending::Closed;
                return;
            }
        }
        cx.io.declare(self.socket, CLASS);
        if let Some((mut negotiation, exports)) = self.take_negotiation() {
            negotiation.secured();
            self.phase = Phase::Negotiating(negotiation, exports);
        }
    }

    /// Answers a request that was not begun.
    fn refuse(&mut self, request: &Request, refusal: Refusal) {
        let Some(slot) = self.free.pop() else { return };
        self.counters.count(OpKind::Find, 0, false);
        let structured = self.serving().is_some_and(|(agreed, _)| agreed.structured);
        let chunked =
            structured && matches!(request.command, command::READ | command::BLOCK_STATUS);
        let cookie = request.cookie;
        self.filling.append(|out| push_error(out, chunked, cookie, refusal.error, refusal.text));
        self.fills.push(Owed { slot, held: 0 });
    }

    /// Appends a reply of a request, which is over when the reply was sent.
    pub(super) fn reply(
        &mut self,
        (slot, held): (u16, usize),
        header: impl FnOnce(&mut Vec<u8>),
        payload: Option<Payload>,
    ) {
        self.filling.append(header);
        if let Some(payload) = payload {
            self.filling.push_payload(payload);
        }
        self.fills.push(Owed { slot, held });
    }

    /// Appends bytes in memory of their own.
    fn push_owned(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.filling.push_payload(Payload::Buf(IoBuf::from_slice(bytes), 0..bytes.len()));
        }
    }

    /// Gives memory of a request back before its reply is sent.
    pub(super) fn release(&mut self, budget: &mut Budget, slot: u16) {
        if let Some(running) = self.running.get_mut(usize::from(slot)).and_then(Option::as_mut) {
            let held = std::mem::take(&mut running.held);
            budget.give_back(&mut self.held, held);
        }
    }

    /// Reads no more, and ends when all that has come is answered.
    pub(super) fn drain(&mut self, now: Instant) {
        if self.ending == Ending::Open {
            self.ending = Ending::Drains;
            self.drain_until = Some(now + DRAIN_TIME);
        }
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        if self.ending != Ending::Closed {
            self.ending = Ending::Closed;
            cx.io.close(self.socket, false);
        }
    }

    /// Ends it if it has taken too long.
    pub(super) fn end_if_late(&mut self, cx: &mut Context<'_>, now: Instant) {
        let late = |until: Option<Instant>| until.is_some_and(|until| until <= now);
        let what = if late(self.negotiate_until) {
            "the negotiation"
        } else if late(self.order_until) {
            "what earlier connections have at the device"
        } else if self.receives.is_late(now, self.received) {
            "the data of a write"
        } else if self.sends_on.is_late(now, self.sent.load(Ordering::Relaxed)) {
            "taking the replies"
        } else if late(self.drain_until) {
            "the end"
        } else {
            return;
        };
        let peer = self.place.peer();
        if self.ending != Ending::Closed && late(self.order_until) {
            tracing::warn!(peer, "an NBD connection was closed: {what} took too long");
        } else if self.ending != Ending::Closed {
            tracing::info!(peer, "an NBD connection was closed: {what} took too long");
        }
        self.close(cx);
    }

    /// Sends and receives what can be, and closes what is over.
    pub(super) fn settle(&mut self, cx: &mut Context<'_>) {
        if self.ending == Ending::Closed {
            return;
        }
        if !self.filling.is_empty()
            && let Some(spare) = self.spare.take()
        {
            let batch = std::mem::replace(&mut self.filling, spare);
            std::mem::swap(&mut self.sends, &mut self.fills);
            self.sends_on.begin(cx.now, self.sent.load(Ordering::Relaxed));
            cx.io.send(self.socket, batch, self.token);
        }
        let has_sent = self.filling.is_empty() && self.spare.is_some();
        if self.ending == Ending::Drains && self.in_flight == 0 && has_sent {
            return self.close(cx);
        }
        if matches!(self.phase, Phase::Securing(..)) && self.ending == Ending::Open {
            if !has_sent {
                return;
            }
            self.secure(cx);
        }
        // A client that negotiates reads what it is told before it asks more.
        let may_receive = has_sent || self.serving().is_some();
        let waits = self.waiting.is_some() || matches!(self.order, Order::Waits(_));
        if self.ending == Ending::Open && may_receive && !waits {
            self.receive(cx);
        }
    }

    fn receive(&mut self, cx: &mut Context<'_>) {
        let Some(mut staging) = self.staging.take() else { return };
        staging.copy_within(self.staged.clone(), 0);
        self.staged = 0..self.staged.len();
        let payload = self.incoming.as_mut().and_then(|incoming| {
            let buf = incoming.buf.take()?;
            let range = incoming.filled..buf.len();
            Some((buf, range))
        });
        let staging_range = self.staged.end..staging.len();
        cx.io.recv(self.socket, RecvBuffers { payload, staging, staging_range }, self.token);
    }
}

/// Memory for data. What the pool does not have is allocated: the budget has been asked.
fn take(cx: &Context<'_>, len: usize) -> IoBuf {
    cx.pool.take(len).unwrap_or_else(|| IoBuf::heap(len))
}
