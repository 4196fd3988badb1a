//! Changes of listeners and of the other contents of the Discovery log.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_proto::controller::{DiscoveryFilter, ListenerInfo, Referral, Security, Transport};
use raceline_proto::nvme::Nqn;
use raceline_reactor::StreamProvider;

use crate::changes::ana::ListenerAna;
use crate::changes::config::TargetError;
use crate::changes::control::State;
use crate::changes::target::Target;
use crate::records::names::{ListenerAt, Protocol};

/// How connections come in by a listener.
#[derive(Clone, Debug, Default)]
pub struct Entrance {
    /// The provider that carries their bytes; `None`: the kernel's TCP.
    pub streams: Option<Arc<dyn StreamProvider>>,
    /// Every host has to authenticate, also for the discovery service: there, by any of its keys. A host without keys is
    /// refused.
    pub authentication: bool,
}

impl Entrance {
    /// What carries the connections, as hosts know it.
    fn transport(&self) -> Transport {
        let is_rdma = self.streams.as_ref().is_some_and(|streams| streams.is_rdma());
        if is_rdma { Transport::Rdma } else { Transport::Tcp }
    }
}

impl From<Option<Arc<dyn StreamProvider>>> for Entrance {
    fn from(streams: Option<Arc<dyn StreamProvider>>) -> Self {
        Self { streams, authentication: false }
    }
}

/// How long the target retries to listen on an address that is in use after a restart.
const LISTEN_PATIENCE: Duration = Duration::from_secs(10);

/// The time between two attempts to listen.
const LISTEN_INTERVAL: Duration = Duration::from_millis(50);

impl Target {
    /// Listens by `listen`, and retries for up to 10 s while the address is in use. The kernel takes
    /// down the io_uring of a killed process, and its listening sockets with it, after the process is
    /// gone: a restart may come before that, and a busy machine takes seconds for it.
    ///
    /// # Errors
    /// Those of `listen`.
    pub fn listen_after_restart<T>(
        mut listen: impl FnMut() -> Result<T, TargetError>,
    ) -> Result<T, TargetError> {
        let give_up = Instant::now() + LISTEN_PATIENCE;
        loop {
            match listen() {
                Err(TargetError::Listen { error, .. })
                    if error.kind() == std::io::ErrorKind::AddrInUse
                        && Instant::now() < give_up =>
                {
                    std::thread::sleep(LISTEN_INTERVAL);
                }
                result => return result,
            }
        }
    }

    /// Listens on an address, for every subsystem and for discovery. Gives the real address:
    /// port 0 takes any free one. A listener of some subsystems becomes a listener of all.
    ///
    /// # Errors
    /// When the address cannot be listened on, or already leads to every subsystem.
    pub fn add_listener(&self, address: SocketAddr) -> Result<SocketAddr, TargetError> {
        self.add_listener_with(address, Entrance::default())
    }

    /// [`Self::add_listener`], by which connections come in this way.
    ///
    /// # Errors
    /// As [`Self::add_listener`], and when they come in another way there.
    pub fn add_listener_with(
        &self,
        address: SocketAddr,
        entrance: impl Into<Entrance>,
    ) -> Result<SocketAddr, TargetError> {
        let entrance = entrance.into();
        let mut state = self.control.lock();
        state.check_entrance(address, &entrance)?;
        let is_there = is_at((entrance.transport(), address).into());
        match state.listeners.iter_mut().find(|listener| is_there(listener)) {
            Some(listener) if listener.open => {
                let error = std::io::ErrorKind::AddrInUse.into();
                Err(TargetError::Listen { address, error })
            }
            Some(listener) => {
                listener.open = true;
                self.control.publish(&mut state)?;
                Ok(address)
            }
            None => self.listen(&mut state, (address, true), entrance, |_, _| Ok(())),
        }
    }

    /// Stops listening on an address, for all its users. Connections that came by it close.
    ///
    /// # Errors
    /// When nothing listens there, or two listeners do and no transport is named.
    pub fn remove_listener(&self, at: impl Into<ListenerAt>) -> Result<(), TargetError> {
        let mut state = self.control.lock();
        let port_id = state.port_at(at.into())?;
        state.listeners.iter_mut().for_each(|l| l.open &= l.port_id != port_id);
        state.discovery_ports.retain(|id| *id != port_id);
        let users = state.subsystems.values().filter(|entry| entry.ports.contains(&port_id));
        for nqn in users.map(|entry| entry.config.nqn.clone()).collect::<Vec<_>>() {
            self.forget_port(&mut state, &nqn, port_id)?;
        }
        self.close_unused_listeners(&mut state)?;
        self.control.publish(&mut state)
    }

    /// Lets hosts reach a subsystem by an address, which need not have a listener yet; subsystems may
    /// share a listener. Gives the real address: port 0 takes any free one.
    ///
    /// The NQN of the discovery service is allowed, too: the Discovery log then names the address as an
    /// entrance to that service. The service answers at every listener in any case.
    ///
    /// # Errors
    /// When there is no such subsystem, it has that listener already, or the address cannot be
    /// listened on.
    pub fn add_subsystem_listener(
        &self,
        nqn: &Nqn,
        address: SocketAddr,
    ) -> Result<SocketAddr, TargetError> {
        self.add_subsystem_listener_with(nqn, address, Entrance::default())
    }

    /// [`Self::add_subsystem_listener`], by which connections come in this way.
    ///
    /// # Errors
    /// As [`Self::add_subsystem_listener`], and when they come in another way there.
    pub fn add_subsystem_listener_with(
        &self,
        nqn: &Nqn,
        address: SocketAddr,
        entrance: impl Into<Entrance>,
    ) -> Result<SocketAddr, TargetError> {
        self.add_subsystem_listener_in(nqn, address, entrance, &ListenerAna::default())
    }

    /// [`Self::add_subsystem_listener_with`], with these states of the ANA groups from the first connection on.
    ///
    /// # Errors
    /// As [`Self::add_subsystem_listener_with`], and when a state is another than optimized and the
    /// subsystem reports no ANA or has no such group.
    pub fn add_subsystem_listener_in(
        &self,
        nqn: &Nqn,
        address: SocketAddr,
        entrance: impl Into<Entrance>,
        ana: &ListenerAna,
    ) -> Result<SocketAddr, TargetError> {
        let entrance = entrance.into();
        let mut state = self.control.lock();
        if nqn.is_discovery() {
            if *ana != ListenerAna::default() {
                return Err(TargetError::NoAna(nqn.clone()));
            }
        } else {
            state.entry(nqn)?;
        }
        state.check_entrance(address, &entrance)?;
        let at = (entrance.transport(), address).into();
        let Ok(port_id) = state.port_at(at) else {
            return self.listen(&mut state, (address, false), entrance, |state, port_id| {
                self.use_port(state, nqn, (address, port_id), ana)
            });
        };
        self.use_port(&mut state, nqn, (address, port_id), ana)?;
        self.control.publish(&mut state)?;
        Ok(address)
    }

    /// Stops hosts from reaching a subsystem by an address: its connections that came by it close.
    /// The target closes the socket when the address leads to nothing any more.
    ///
    /// # Errors
    /// When there is no such subsystem, it has no such listener, or two listeners are there and no transport is named.
    pub fn remove_subsystem_listener(
        &self,
        nqn: &Nqn,
        at: impl Into<ListenerAt>,
    ) -> Result<(), TargetError> {
        let at = at.into();
        let mut state = self.control.lock();
        let port_id = state.port_at(at)?;
        if nqn.is_discovery() {
            if !state.discovery_ports.contains(&port_id) {
                return Err(TargetError::NoListener(at.address));
            }
            state.discovery_ports.retain(|id| *id != port_id);
        } else {
            if !state.entry(nqn)?.ports.contains(&port_id) {
                return Err(TargetError::NoListener(at.address));
            }
            self.forget_port(&mut state, nqn, port_id)?;
        }
        self.close_unused_listeners(&mut state)?;
        self.control.publish(&mut state)
    }

    /// Points hosts that ask for discovery to another place; connected hosts are told.
    ///
    /// # Errors
    /// When there is such a referral.
    pub fn add_referral(&self, referral: Referral) -> Result<(), TargetError> {
        let mut state = self.control.lock();
        if state.referrals.iter().any(|other| is_same(other, &referral)) {
            let Referral { traddr, trsvcid, subnqn, .. } = referral;
            return Err(TargetError::ReferralExists { traddr, trsvcid, subnqn });
        }
        state.referrals.push(referral);
        self.control.publish(&mut state)
    }

    /// Removes the referral to the same address and NQN; the hosts that may see it and whether the
    /// channel must be secure do not matter.
    ///
    /// # Errors
    /// When there is none.
    pub fn remove_referral(&self, referral: &Referral) -> Result<(), TargetError> {
        let mut state = self.control.lock();
        let place = state.referrals.iter().position(|other| is_same(other, referral));
        let Some(place) = place else {
            let Referral { traddr, trsvcid, subnqn, .. } = referral.clone();
            return Err(TargetError::NoReferral { traddr, trsvcid, subnqn });
        };
        state.referrals.remove(place);
        self.control.publish(&mut state)
    }

    /// The referrals, in the order in which they came.
    #[must_use]
    pub fn referrals(&self) -> Vec<Referral> {
        self.control.lock().referrals.clone()
    }

    /// Sets which listeners the Discovery log shows to which host.
    ///
    /// # Errors
    /// When a core does not answer.
    pub fn set_discovery_filter(&self, filter: DiscoveryFilter) -> Result<(), TargetError> {
        let mut state = self.control.lock();
        state.discovery_filter = filter;
        self.control.publish(&mut state)
    }

    // ------------------------------------------------------------------------ internals

    /// Opens a listener; `user` notes its purpose. The cores know of it before it accepts the
    /// first connection, unless its port is not known before.
    fn listen(
        &self,
        state: &mut State,
        (address, open): (SocketAddr, bool),
        entrance: Entrance,
        user: impl FnOnce(&mut State, u16) -> Result<(), TargetError>,
    ) -> Result<SocketAddr, TargetError> {
        let port_id = state.next_port_id();
        let transport = entrance.transport();
        let Entrance { streams, authentication } = entrance;
        let tls = streams.as_ref().is_some_and(|streams| streams.is_secure());
        let concatenates = streams.as_ref().is_some_and(|streams| streams.takes_plain());
        let security = Security { authentication, tls };
        let listener = ListenerInfo { address, port_id, open, security, concatenates, transport };
        state.listeners.push(listener);
        if let Some(streams) = &streams {
            state.streams.insert(port_id, Arc::clone(streams));
        }
        let listening = user(state, port_id).and_then(|()| {
            if address.port() != 0 {
                self.control.publish(state)?;
            }
            self.control.open_listener(address, (Protocol::Nvme, port_id), streams.as_ref())
        });
        match listening {
            Ok(real) => {
                let mut listeners = state.listeners.iter_mut();
                if let Some(listener) = listeners.find(|l| l.port_id == port_id)
                    && listener.address != real
                {
                    listener.address = real;
                    self.control.publish(state)?;
                }
                Ok(real)
            }
            Err(error) => {
                state.listeners.retain(|listener| listener.port_id != port_id);
                state.streams.remove(&port_id);
                state.discovery_ports.retain(|id| *id != port_id);
                let names: Vec<Nqn> = state.subsystems.keys().cloned().collect();
                for nqn in names {
                    self.forget_port(state, &nqn, port_id)?;
                }
                self.control.publish(state)?;
                Err(error)
            }
        }
    }

    fn use_port(
        &self,
        state: &mut State,
        nqn: &Nqn,
        (address, port_id): (SocketAddr, u16),
        ana: &ListenerAna,
    ) -> Result<(), TargetError> {
        let add = |ports: &mut Vec<u16>| {
            if ports.contains(&port_id) {
                return Err(TargetError::ListenerExists { nqn: nqn.clone(), address });
            }
            ports.push(port_id);
            Ok(())
        };
        if nqn.is_discovery() {
            add(&mut state.discovery_ports)
        } else {
            self.control.change(state, nqn, |entry| {
                add(&mut entry.ports)?;
                if *ana == ListenerAna::default() {
                    return Ok(());
                }
                for group in ana.groups.keys() {
                    entry.ana_groups_named(Some(*group))?;
                }
                for group in entry.ana_groups_named(None)? {
                    let states = entry.ana.as_mut();
                    states.into_iter().for_each(|s| s.set(port_id, group, ana.state(group)));
                }
                Ok(())
            })
        }
    }

    fn forget_port(&self, state: &mut State, nqn: &Nqn, port_id: u16) -> Result<(), TargetError> {
        if !state.entry(nqn)?.ports.contains(&port_id) {
            return Ok(());
        }
        self.control.change(state, nqn, |entry| {
            entry.ports.retain(|id| *id != port_id);
            if let Some(ana) = &mut entry.ana {
                ana.forget_port(port_id);
            }
            Ok(())
        })
    }

    /// Closes the sockets that lead to nothing; the caller publishes the snapshot without them afterwards.
    pub(crate) fn close_unused_listeners(&self, state: &mut State) -> Result<(), TargetError> {
        let unused = |listener: &&ListenerInfo| {
            let id = listener.port_id;
            let used = state.subsystems.values().any(|entry| entry.ports.contains(&id));
            !(listener.open || used || state.discovery_ports.contains(&id))
        };
        let unused: Vec<ListenerInfo> = state.listeners.iter().filter(unused).copied().collect();
        for ListenerInfo { port_id, .. } in unused {
            state.listeners.retain(|listener| listener.port_id != port_id);
            state.streams.remove(&port_id);
            self.control.close_listener((Protocol::Nvme, port_id))?;
        }
        Ok(())
    }
}

impl State {
    /// The listener at a place.
    ///
    /// # Errors
    /// When there is none, or there are two and the place names no transport.
    pub(crate) fn listener_at(&self, at: ListenerAt) -> Result<&ListenerInfo, TargetError> {
        let is_there = is_at(at);
        let mut found = self.listeners.iter().filter(|listener| is_there(listener));
        match (found.next(), found.next()) {
            (Some(listener), None) => Ok(listener),
            (None, _) => Err(TargetError::NoListener(at.address)),
            (Some(_), Some(_)) => Err(TargetError::TwoListeners(at.address)),
        }
    }

    /// The port id of the listener at a place.
    ///
    /// # Errors
    /// As [`Self::listener_at`].
    pub(crate) fn port_at(&self, at: ListenerAt) -> Result<u16, TargetError> {
        Ok(self.listener_at(at)?.port_id)
    }

    /// Checks that a listener of this transport at this address has this provider and this level, if there is one: its connections must
    /// not be carried by another, nor need less.
    fn check_entrance(&self, address: SocketAddr, entrance: &Entrance) -> Result<(), TargetError> {
        let at = (entrance.transport(), address).into();
        let Ok(listener) = self.listener_at(at) else { return Ok(()) };
        let same_streams = match (self.streams.get(&listener.port_id), &entrance.streams) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (own, other) => own.is_none() && other.is_none(),
        };
        if same_streams && listener.security.authentication == entrance.authentication {
            return Ok(());
        }
        let text = "the listener there has other byte streams or another level of security: remove it first, or take \
             another port";
        let error = std::io::Error::new(std::io::ErrorKind::InvalidInput, text);
        Err(TargetError::Listen { address, error })
    }
}

/// Whether a listener is at a place.
fn is_at(at: ListenerAt) -> impl Fn(&ListenerInfo) -> bool {
    move |listener| {
        listener.address == at.address && at.transport.is_none_or(|it| it == listener.transport)
    }
}

/// Whether two referrals point to the same.
fn is_same(a: &Referral, b: &Referral) -> bool {
    let key = |r: &Referral| (r.trtype, r.traddr.clone(), r.trsvcid.clone(), r.subnqn.clone());
    key(a) == key(b)
}
