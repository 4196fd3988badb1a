//! What one core of a host has of one RDMA device: its completion queue and memory, and the queues that share them. Queues to
//! different targets are in different protection domains.
//!
//! Whichever queue the core calls takes what the device has for all of them, and calls the others by a timer that is due at
//! once. A connection's end is of its queue alone; a removed device ends all.

use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use raceline_rdma::verbs::{Capabilities, ConnectionId, Provider, ProviderError, Region};
use raceline_rdma::{ConnectConfig, ConnectError, HostPort, HostPortEvent, Table, WaitingDevice};
use raceline_reactor::io::{RecvBuffers, SocketId};
use raceline_reactor::{Context, IoBuf, Socket, Token};

use super::bell::Bell;
use super::memory::{Kind, Memory};
use crate::transport::RdmaDevices;

/// A core's completion queue has room for so many queues like the first, as long as it has no more than [`MOST_COMPLETIONS`]
/// entries. A queue that finds no room has the core open another device.
const QUEUES: u32 = 32;
/// The entries are locked memory. Adapters round their number and one more up to a power of two: that is 512 KiB.
const MOST_COMPLETIONS: u32 = 8191;
/// Connections in the array of [`Table`].
const CONNECTIONS_NEAR: usize = 32;
/// No member of a device.
const NOBODY: usize = usize::MAX;

type Device = Box<dyn WaitingDevice>;

/// One device of one core. It is closed when its last queue has ended.
#[derive(Debug)]
pub(super) struct Hub {
    devices: Arc<dyn RdmaDevices>,
    place: SocketAddr,
    core: RefCell<Core>,
}

/// What the queues share.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) port: HostPort<Device>,
    memory: Memory,
    members: Vec<Option<Member>>,
    /// Positions of members.
    by_connection: Table<usize>,
    /// The member that had an event last: the next one is probably for it, too.
    recent: usize,
    /// Completions that all members can have at a time.
    promised: u32,
    /// Members that wait for memory, and whether some has come back since they were called.
    starved: Vec<usize>,
    has_freed: bool,
    bell: BellState,
    /// The time of the turn that has asked the device last.
    spun: Option<Instant>,
}

/// The stream that tells the core of news.
#[derive(Debug, Default)]
struct BellState {
    socket: Option<SocketId>,
    /// What a receive takes along.
    staging: Option<IoBuf>,
    /// Whose token the receive has that is in flight.
    listener: Option<usize>,
    /// That queue was dropped: nobody gets the receive.
    is_deaf: bool,
    /// The core has asked the device since the bell was tried last.
    was_spun: Arc<AtomicBool>,
}

/// A queue.
#[derive(Debug)]
struct Member {
    /// Under which its owner is called.
    token: Token,
    /// What it has not taken yet.
    events: VecDeque<HostPortEvent>,
    /// Completions that it can have at a time.
    completions: u32,
    /// The place of its target's domain in the core's memory.
    domain: usize,
    /// It will be called.
    is_called: bool,
    /// It ends, and may be dropped at any time.
    is_closing: bool,
}

/// Memory that a command has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lent {
    pub(super) kind: Kind,
    pub(super) region: Region,
    /// The place of its domain in the core's memory.
    domain: usize,
}

/// The place of a queue in a [`Hub`]. Whoever drops it without [`Self::leave`] waits for nothing: the connection ends in
/// order, as that of a closed socket does.
#[derive(Debug)]
pub(super) struct Membership {
    hub: Rc<Hub>,
    member: usize,
    /// The place of the target's domain in the core's memory.
    pub(super) domain: usize,
    pub(super) connection: Option<ConnectionId>,
    has_left: bool,
}

/// Whom to reach, and how much of a completion queue that takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joining {
    pub(super) target: SocketAddr,
    pub(super) source: Option<IpAddr>,
    /// Commands at a time.
    pub(super) commands: u32,
    pub(super) token: Token,
}

impl Hub {
    fn open(devices: &Arc<dyn RdmaDevices>, joining: &Joining) -> Result<Self, ProviderError> {
        let Joining { target, source, .. } = *joining;
        let place = devices.place(target, source)?;
        let needed = completions_of(joining);
        let all = needed.saturating_mul(QUEUES).min(MOST_COMPLETIONS).max(needed);
        let device = devices.open(target, source, all)?;
        let core = Core {
            port: HostPort::new(device),
            memory: Memory::new(),
            members: Vec::new(),
            by_connection: Table::new(CONNECTIONS_NEAR),
            recent: 0,
            promised: 0,
            starved: Vec::new(),
            has_freed: false,
            bell: BellState::default(),
            spun: None,
        };
        Ok(Self { devices: Arc::clone(devices), place, core: RefCell::new(core) })
    }

    /// Whether a queue can join.
    fn suits(&self, devices: &Arc<dyn RdmaDevices>, place: SocketAddr, completions: u32) -> bool {
        if !Arc::ptr_eq(&self.devices, devices) || self.place != place {
            return false;
        }
        let core = &mut *self.core.borrow_mut();
        let Capabilities { completions: all, .. } = core.port.provider().capabilities();
        // One that overflows ends all its queues.
        !core.port.is_device_gone() && completions <= all.saturating_sub(core.promised)
    }
}

/// Each command has a send and a receive.
fn completions_of(joining: &Joining) -> u32 {
    2 * joining.commands
}

impl Membership {
    /// Joins a device that the core has open for the same place, or opens one.
    ///
    /// # Errors
    /// When there is no such device, it refuses or has no further protection domain, or the core cannot wait for it.
    pub(super) fn join(
        cx: &mut Context<'_>,
        devices: &Arc<dyn RdmaDevices>,
        joining: Joining,
    ) -> Result<Self, String> {
        let completions = completions_of(&joining);
        let place = devices.place(joining.target, joining.source);
        let place = place.map_err(|error| error.to_string())?;
        let companions = cx.pool.companions();
        let hub = match companions.find(|hub: &Hub| hub.suits(devices, place, completions)) {
            Some(hub) => hub,
            None => {
                let hub = Hub::open(devices, &joining).map_err(|error| error.to_string())?;
                let hub = Rc::new(hub);
                companions.add(&hub);
                hub
            }
        };
        let (member, domain) = {
            let core = &mut *hub.core.borrow_mut();
            let domain = core.memory.enter(core.port.provider(), joining.target);
            let domain = domain.map_err(|error| error.to_string())?;
            (core.add(joining.token, completions, domain), domain)
        };
        let membership = Self { hub, member, domain, connection: None, has_left: false };
        let listening = membership.core().listen(cx, member);
        match listening {
            Ok(()) => Ok(membership),
            Err(error) => Err(format!("cannot wait for its device: {error}")),
        }
    }

    /// What the queues of the device share.
    pub(super) fn core(&self) -> RefMut<'_, Core> {
        self.hub.core.borrow_mut()
    }

    /// Begins a connection, in the domain of the queue's target.
    ///
    /// # Errors
    /// When the device does not reach the address.
    pub(super) fn connect(
        &mut self,
        cx: &Context<'_>,
        config: ConnectConfig,
    ) -> Result<(), ConnectError> {
        let core = &mut *self.hub.core.borrow_mut();
        let config = ConnectConfig { domain: core.memory.id(self.domain), ..config };
        let connection = core.port.connect(config, cx.now)?;
        core.by_connection.insert(connection.0, self.member);
        self.connection = Some(connection);
        Ok(())
    }

    /// Takes everything that the device has, and sees to it that the core is called for what comes next.
    pub(super) fn pump(&self, cx: &mut Context<'_>) -> std::io::Result<()> {
        let core = &mut *self.core();
        // What comes from now on is told; what is there already is not.
        core.port.provider().arm();
        loop {
            let is_busy = core.port.poll(cx.now);
            core.hand_out(cx, self.member);
            if !is_busy {
                break;
            }
        }
        // A bell that rings for its own queue costs no call.
        let is_there = core.members[core.recent].is_some();
        core.listen(cx, if is_there { core.recent } else { self.member })
    }

    /// Takes what the device has done, and makes no system call: in turns of the core, which may spin. The queues are
    /// called. After a turn without this, the bell asks the descriptor. The first queue of a turn does it for all sets of queues of
    /// the core. A core that sleeps after it is woken at once: the first completion since the last [`Self::pump`] has left a
    /// notice, which the bell tells.
    pub(super) fn spin(&self, cx: &mut Context<'_>) {
        let core = &mut *self.core();
        if core.spun.replace(cx.now) == Some(cx.now) {
            return;
        }
        core.bell.was_spun.store(true, Ordering::Relaxed);
        if core.port.poll_work(cx.now) {
            core.hand_out(cx, NOBODY);
        }
    }

    /// The receive of the bell has come back to this queue.
    pub(super) fn handle_bell(&self, buffers: RecvBuffers) {
        let bell = &mut self.core().bell;
        if bell.listener == Some(self.member) {
            bell.listener = None;
            bell.staging = Some(buffers.staging);
        }
    }

    /// Whether the core is called for news.
    pub(super) fn is_listening(&self) -> bool {
        self.core().bell.listener.is_some()
    }

    /// The next event of the queue's connection.
    pub(super) fn poll_event(&self) -> Option<HostPortEvent> {
        let core = &mut *self.core();
        let member = core.members[self.member].as_mut()?;
        member.is_called = false;
        member.events.pop_front()
    }

    /// Whether a connection of the device is ending. The device may say nothing more of it, so somebody has to look at its
    /// time: whoever asks.
    pub(super) fn has_ending(&self) -> bool {
        self.core().port.has_ending()
    }

    /// The queue's name among those of the device.
    pub(super) fn member(&self) -> usize {
        self.member
    }

    /// Ends the connection at once, and leaves. If the receive of the bell was this queue's, the next one that takes what the
    /// device has begins another. One that has commands does so by its deadlines at the latest.
    pub(super) fn abandon(&mut self) {
        if std::mem::replace(&mut self.has_left, true) {
            return;
        }
        let core = &mut *self.hub.core.borrow_mut();
        if let Some(connection) = self.connection.take() {
            core.port.abandon_one(connection);
            core.by_connection.remove(connection.0);
        }
        core.remove(self.member);
        core.bell.is_deaf |= core.bell.listener.take_if(|it| *it == self.member).is_some();
    }

    /// The queue begins to end its connection: others listen for news.
    pub(super) fn begin_closing(&self, cx: &mut Context<'_>) {
        let core = &mut *self.core();
        if let Some(member) = &mut core.members[self.member] {
            member.is_closing = true;
        }
        core.pass_bell_on(cx, self.member);
    }

    /// Nothing is left of the queue's connection: others go on with the device.
    pub(super) fn leave(&mut self, cx: &mut Context<'_>) {
        if std::mem::replace(&mut self.has_left, true) {
            return;
        }
        let core = &mut *self.hub.core.borrow_mut();
        core.remove(self.member);
        core.pass_bell_on(cx, self.member);
        if core.bell.listener == Some(self.member) || core.members.iter().all(Option::is_none) {
            // Those that end, too, look by time.
            core.close_bell(cx);
        }
        core.call_starved(cx);
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl Core {
    fn add(&mut self, token: Token, completions: u32, domain: usize) -> usize {
        self.promised += completions;
        let events = VecDeque::new();
        let (is_called, is_closing) = (false, false);
        let member = Member { token, events, completions, domain, is_called, is_closing };
        match self.members.iter().position(Option::is_none) {
            Some(place) => {
                self.members[place] = Some(member);
                place
            }
            None => {
                self.members.push(Some(member));
                self.members.len() - 1
            }
        }
    }

    /// A queue leaves. Nothing is left of its connection.
    fn remove(&mut self, member: usize) {
        if let Some(left) = self.members[member].take() {
            self.promised -= left.completions;
            self.memory.leave(self.port.provider(), left.domain);
            // Its queue pair had memory, too.
            self.has_freed = true;
        }
        self.starved.retain(|starved| *starved != member);
    }

    /// Gives events to their queues, and calls those that are not `caller`.
    fn hand_out(&mut self, cx: &mut Context<'_>, caller: usize) {
        while let Some((connection, event)) = self.port.poll_event() {
            let is_last = matches!(event, HostPortEvent::Failed(_) | HostPortEvent::Closed);
            let known = match is_last {
                true => self.by_connection.remove(connection.0),
                false => self.by_connection.get(connection.0).copied(),
            };
            let Some(member) = known else { continue };
            if let Some(member) = &mut self.members[member] {
                member.events.push_back(event);
            }
            self.recent = member;
            if member != caller {
                self.call(cx, member);
            }
        }
    }

    /// Has a queue look at what there is for it, in the core's next turn.
    fn call(&mut self, cx: &mut Context<'_>, member: usize) {
        if let Some(member) = &mut self.members[member]
            && !std::mem::replace(&mut member.is_called, true)
        {
            cx.io.timer(cx.now, member.token);
        }
    }

    /// A queue waits until commands have given memory back. False: none has any. Those that are dropped with their queue give theirs
    /// back without a call, so whoever waits looks by time as well.
    pub(super) fn starve(&mut self, member: usize) -> bool {
        let waits = self.memory.is_lent();
        if waits && !self.starved.contains(&member) {
            self.starved.push(member);
        }
        waits
    }

    /// Memory has come back: those who wait for some try again.
    pub(super) fn call_starved(&mut self, cx: &mut Context<'_>) {
        if std::mem::take(&mut self.has_freed) {
            for member in std::mem::take(&mut self.starved) {
                self.call(cx, member);
            }
        }
    }

    /// A block for so many bytes of a command.
    ///
    /// # Errors
    /// When no more memory can be registered.
    #[inline]
    pub(super) fn lend(
        &mut self,
        domain: usize,
        kind: Kind,
        bytes: u32,
    ) -> Result<Lent, ProviderError> {
        let region = self.memory.lend(self.port.provider(), domain, kind, bytes)?;
        Ok(Lent { kind, region, domain })
    }

    /// A command has ended: its block is free.
    #[inline]
    pub(super) fn give_back(&mut self, lent: Lent) {
        self.has_freed = true;
        self.memory.give_back(self.port.provider(), lent.domain, lent.kind, lent.region);
    }

    /// Sees to it that the core is called for news: under this queue's name, if it is not already under another's.
    fn listen(&mut self, cx: &mut Context<'_>, member: usize) -> std::io::Result<()> {
        if self.bell.listener.is_some() {
            return Ok(());
        }
        let is_closing = self.members[member].as_ref().is_none_or(|member| member.is_closing);
        let other = if is_closing { self.one_that_stays() } else { None };
        let member = other.unwrap_or(member);
        let Some(token) = self.members[member].as_ref().map(|member| member.token) else {
            return Ok(());
        };
        if self.bell.is_deaf {
            self.close_bell(cx);
        }
        let socket = match self.bell.socket {
            Some(socket) => socket,
            None => {
                let news = self.port.provider().news().try_clone_to_owned()?;
                let bell = Bell::new(news, Arc::clone(&self.bell.was_spun));
                let nowhere = SocketAddr::new([0, 0, 0, 0].into(), 0);
                cx.io.adopt(Socket::provided(Box::new(bell), nowhere, nowhere))?
            }
        };
        self.bell.socket = Some(socket);
        self.bell.listener = Some(member);
        let staging = self.bell.staging.take().unwrap_or_else(|| IoBuf::heap(1));
        cx.io.recv(socket, RecvBuffers { payload: None, staging, staging_range: 0..1 }, token);
        Ok(())
    }

    /// Another queue listens from now on, if there is one that stays. The receive that is in flight comes back to this one, which
    /// knows nothing of it.
    fn pass_bell_on(&mut self, cx: &mut Context<'_>, member: usize) {
        if self.bell.listener == Some(member) {
            self.close_bell(cx);
        }
        // Those that end, too, look by time.
        let Some(next) = self.one_that_stays() else { return };
        if self.listen(cx, next).is_err() {
            // It tries again, and says so.
            self.call(cx, next);
        }
    }

    fn one_that_stays(&self) -> Option<usize> {
        let stays = |member: &Option<Member>| member.as_ref().is_some_and(|it| !it.is_closing);
        self.members.iter().position(stays)
    }

    fn close_bell(&mut self, cx: &mut Context<'_>) {
        (self.bell.listener, self.bell.is_deaf) = (None, false);
        if let Some(socket) = self.bell.socket.take() {
            cx.io.close(socket, true);
        }
    }
}
