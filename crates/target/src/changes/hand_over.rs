//! How the connections of a target go to another process.
//!
//! 0. [`Target::give_notice`]: hosts whose connections cannot be handed over hear that these end, and may end them first.
//! 1. [`Target::suspend`]: the cores accept nothing more, finish the commands that they have, and stop receiving between
//!    two PDUs. Everything stays where it is.
//! 2. The other process gets the state of each connection and a copy of its socket, and makes the connections with
//!    [`Target::install`]. They do nothing yet. If it fails, [`Target::resume`] here goes on as if nothing had been.
//! 3. [`Target::leave`]: what could not be handed over (TLS, iSCSI, hosts that are just connecting) ends in good order.
//! 4. The other process calls [`Target::resume`], and this one ends without another system call on these sockets.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use raceline_proto::controller::Transport;
use raceline_proto::nvme::feature::WriteProtection;
use raceline_proto::nvme::{NamespaceId, Nqn, QueueId};
use raceline_proto::reservation::Reservations;
use raceline_reactor::Socket;

use crate::changes::config::TargetError;
use crate::changes::control::{ANSWER_TIMEOUT, Control};
use crate::changes::message::{Leavers, Message};
use crate::changes::target::Target;
use crate::path::handed::{HandedConnection, HandedTarget};
use crate::path::suspension::{Incoming, Packed, Settled};
use crate::records::names::{Ends, Home, Place, Protocol};

/// So long a target that stops waits until those who were told have heard of it.
const END_NOTICE: Duration = Duration::from_secs(1);

/// What has become of [`Target::give_notice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Hosts and initiators on cores where all know.
    pub told: usize,
    /// Whether all who were told know in time.
    pub all_know: bool,
}

/// What another process needs to go on with the connections of a target.
#[derive(Debug, Default)]
pub struct HandOver {
    /// The state of each connection.
    pub state: HandedTarget,
    /// Their sockets, in the same order.
    pub sockets: Vec<OwnedFd>,
    /// What stays behind, for the log.
    pub left: Vec<String>,
    places: HashSet<Place>,
}

impl Target {
    /// Accepts nothing more, and tells those whose connections cannot be handed over: a host that follows ANA that its paths
    /// change, an initiator of iSCSI to log out. Everything is served meanwhile. [`Target::resume`] takes it back.
    pub fn give_notice(&self, limit: Duration) -> Notice {
        self.tell(Leavers::NotHandedOver, limit)
    }

    /// Accepts nothing more, and tells all that the target stops: a host that follows ANA that its paths change, so that it
    /// takes others before their commands fail, an initiator of iSCSI to log out. Everything is served meanwhile.
    /// It takes at most [`END_NOTICE`].
    pub fn announce_end(&self) -> Notice {
        self.tell(Leavers::All, END_NOTICE)
    }

    fn tell(&self, to: Leavers, limit: Duration) -> Notice {
        let control = &self.control;
        let (reply, heard) = mpsc::channel();
        for core in 0..control.shared.cores() {
            control.shared.send(core, Message::GiveNotice { to, reply: reply.clone() });
        }
        drop(reply);
        let deadline = Instant::now() + limit;
        let mut notice = Notice { told: 0, all_know: true };
        for _ in 0..control.shared.cores() {
            let left = deadline.saturating_duration_since(Instant::now());
            match heard.recv_timeout(left) {
                Ok(told) => notice.told += told,
                Err(_) => notice.all_know = false,
            }
        }
        notice
    }

    /// From here on hosts change no namespaces of pools and no write protection: another process has read them, or is about
    /// to. Hosts are asked to try again. [`Target::let_go`] ends it.
    pub fn hold_back(&self) {
        self.control.lock().holds_namespaces = true;
    }

    /// Ends what [`Target::hold_back`] has begun: no other process takes the place of this one.
    pub fn let_go(&self) {
        self.control.lock().holds_namespaces = false;
    }

    /// Has all connections stop between two commands, within this time, and gives what can be handed over.
    ///
    /// # Errors
    /// When a core does not answer; [`Target::resume`] has to follow then, too.
    pub fn suspend(&self, limit: Duration) -> Result<HandOver, TargetError> {
        let control = &self.control;
        let (reply, settled) = mpsc::channel();
        for core in 0..control.shared.cores() {
            control.shared.send(core, Message::Suspend { reply: reply.clone() });
        }
        drop(reply);
        let deadline = Instant::now() + limit;
        for _ in 0..control.shared.cores() {
            let left = deadline.saturating_duration_since(Instant::now());
            // What is not at rest by then stays behind.
            if settled.recv_timeout(left).is_err() {
                break;
            }
        }
        // Initiators of iSCSI and hosts over TLS are served until they leave. What they changed now, the other process
        // would not learn.
        control.lock().holds_reservations = true;
        let packed = control.ask_all(ANSWER_TIMEOUT, |reply| Message::Pack { reply })?;
        let generation = self.generation();
        Ok(collect(generation, packed.into_iter().flatten().collect()))
    }

    /// Goes on after [`Target::suspend`] or [`Target::install`].
    pub fn resume(&self) {
        self.control.lock().holds_reservations = false;
        for core in 0..self.control.shared.cores() {
            self.control.shared.send(core, Message::Resume);
        }
    }

    /// Ends what is not handed over, within this time: commands in flight finish, connections close. What is handed over
    /// stays suspended until [`Target::resume`].
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn leave(&self, handed: &HandOver, limit: Duration) -> Result<(), TargetError> {
        let keep = Arc::new(handed.places.clone());
        self.control.ask_all(limit, |reply| Message::Leave { keep: Arc::clone(&keep), reply })?;
        Ok(())
    }

    /// Makes the connections of another process, which wait for [`Target::resume`]. Everything that they lead to exists.
    ///
    /// # Errors
    /// When one of them cannot be a connection of this target.
    pub fn install(&self, state: &HandedTarget, sockets: Vec<OwnedFd>) -> Result<(), TargetError> {
        let control = &self.control;
        if state.connections.len() != sockets.len() {
            return Err(TargetError::HandOver("there is not one socket for each".to_owned()));
        }
        control.continue_from(state.generation)?;
        let (mut admins, mut others) = (Vec::new(), Vec::new());
        for (connection, socket) in state.connections.iter().zip(sockets) {
            let socket = Socket::of_process(socket, connection.local, connection.peer);
            let is_admin = connection.queue.as_ref().is_some_and(|q| q.controller.is_some());
            if is_admin { &mut admins } else { &mut others }.push((connection, socket));
        }
        let mut homes = HashMap::new();
        for (connection, socket) in admins {
            let settled = control.install(connection, socket, None)?;
            if let Some(queue) = &connection.queue {
                homes.insert((&queue.subsystem, queue.cntlid), settled);
            }
        }
        for (connection, socket) in others {
            let Some(queue) = &connection.queue else {
                control.install(connection, socket, None)?;
                continue;
            };
            let home = homes.get(&(&queue.subsystem, queue.cntlid)).ok_or_else(|| {
                TargetError::HandOver(format!("controller {} is not among them", queue.cntlid))
            })?;
            let settled = control.install(connection, socket, Some(home))?;
            let (qid, from) = (QueueId(queue.qid), settled.place);
            let (core, home) = (home.place.core, home.place.key);
            let joined = Message::IoRestored { home, qid, from, counters: settled.counters };
            control.shared.send(core, joined);
        }
        Ok(())
    }

    /// Write protects a namespace until this target ends, as a host has asked another process.
    ///
    /// # Errors
    /// When there is no such namespace, or a core does not answer.
    pub fn restore_protection(&self, nqn: &Nqn, nsid: NamespaceId) -> Result<(), TargetError> {
        let mut state = self.control.lock();
        self.control.change(&mut state, nqn, |entry| {
            entry.namespace(nsid)?.namespace.protection = WriteProtection::UntilPowerCycle;
            Ok(())
        })?;
        self.control.publish(&mut state)
    }

    /// Gives a namespace, and the LUNs over its device, the reservations that it had in another process. They are not kept
    /// anew.
    ///
    /// # Errors
    /// When there is no such namespace, or a core does not answer.
    pub fn restore_reservations(
        &self,
        nqn: &Nqn,
        nsid: NamespaceId,
        reservations: Reservations,
    ) -> Result<(), TargetError> {
        let mut state = self.control.lock();
        let device = state.entry(nqn)?.namespace(nsid)?.device;
        self.control.restore(&mut state, device, reservations)
    }
}

/// What can be handed over: controllers with all of their queues, and connections on which nothing has come.
fn collect(generation: u64, packed: Vec<Packed>) -> HandOver {
    let controller = |packed: &Packed| {
        let queue = packed.connection.queue.as_ref()?;
        Some((queue.subsystem.clone(), queue.cntlid))
    };
    let mut complete = HashSet::new();
    for admin in packed.iter().filter(|packed| packed.queues.is_some()) {
        let (Some(of), Some(queues)) = (controller(admin), &admin.queues) else { continue };
        let mut places = HashSet::new();
        places.extend(packed.iter().filter(|it| it.queues.is_none()).map(|it| it.place));
        if queues.iter().all(|place| places.contains(place)) {
            complete.insert(of);
        }
    }
    let mut handed = HandOver::default();
    handed.state.generation = generation;
    let mut left = HashSet::new();
    for Packed { connection, place, socket, .. } in packed {
        let of = connection.queue.as_ref().map(|q| (q.subsystem.clone(), q.cntlid));
        if of.is_none_or(|of| complete.contains(&of)) {
            handed.places.insert(place);
            handed.sockets.push(socket);
            handed.state.connections.push(connection);
        } else if let Some(queue) = connection.queue
            && left.insert((queue.subsystem.clone(), queue.cntlid))
        {
            let why =
                "one of its queues uses TLS or RDMA, or had commands that did not finish in time";
            let (peer, cntlid) = (connection.peer.ip(), queue.cntlid);
            handed
                .left
                .push(format!("controller {cntlid} of {} for {peer}: {why}", queue.subsystem));
        }
    }
    handed
}

impl Control {
    fn install(
        &self,
        connection: &HandedConnection,
        socket: Socket,
        home: Option<&Settled>,
    ) -> Result<Settled, TargetError> {
        let failed = |why: String| TargetError::HandOver(format!("{}: {why}", connection.peer));
        let port_id = self
            .port_at(connection.listener)
            .ok_or_else(|| failed(format!("there is no listener at {}", connection.listener)))?;
        let seat = self.shared.seat(connection.core);
        let (core, cntlid) = (seat.core(), connection.queue.as_ref().map(|queue| queue.cntlid));
        let home = home.zip(cntlid).map(|(settled, cntlid)| {
            let cntlid = raceline_proto::nvme::ControllerId(cntlid);
            (Home { place: settled.place, cntlid }, settled.hostid, settled.copies_across.clone())
        });
        let (peer, local) = (connection.peer, connection.local);
        // Streams of providers are not handed over.
        let ends = Ends { peer, local, port_id, protocol: Protocol::Nvme, is_rdma: false };
        let queue = connection.queue.clone().map(Box::new);
        let incoming = Box::new(Incoming { ends, seat, socket, queue, home });
        let installed = self.ask(core, |reply| Message::Install { incoming, reply })?;
        installed.map_err(failed)
    }

    fn port_at(&self, address: SocketAddr) -> Option<u16> {
        let state = self.lock();
        // Connections over RDMA are not handed over.
        state.port_at((Transport::Tcp, address).into()).ok()
    }

    /// Hosts have been shown a generation of another process: the next one is above.
    fn continue_from(&self, generation: u64) -> Result<(), TargetError> {
        let mut state = self.lock();
        state.generation = state.generation.max(generation);
        self.publish(&mut state)
    }
}
