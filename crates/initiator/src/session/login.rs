//! How a connection of a session begins: TCP, then the login; and how it is logged out.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use raceline_iscsi::chap::{Algorithm, CHALLENGE_LEN};
use raceline_iscsi::initiator::{InitiatorConfig, InitiatorConnection, InitiatorCredentials};
use raceline_iscsi::pdu::LoginStatus;
use raceline_reactor::flow::{Departure, SocketClass, Traffic, policy};
use raceline_reactor::io::SocketId;
use raceline_reactor::socket::ConnectOptions;
use raceline_reactor::{Context, IoBuf, Socket};

use super::{Ending, LOGOUT_TIMEOUT, Link, STAGING_BYTES, Session, SessionEvent, State};
use crate::config::Chap;
use crate::error::SessionError;

/// Redirections that are followed one after the other.
const MAX_REDIRECTIONS: u8 = 4;
/// Fewest slots of the protocol's table.
const MIN_SLOTS: u16 = 8;

impl Session {
    /// Begins a connection's life.
    pub(super) fn start(&mut self, cx: &mut Context<'_>) {
        self.token.generation = self.token.generation.wrapping_add(1);
        self.alarm = None;
        self.pinged = None;
        self.pause_until = None;
        self.control.clear();
        self.state = State::Tcp;
        self.expect(cx, self.config.connect_timeout);
        let options = ConnectOptions { source: self.config.source, ..ConnectOptions::default() };
        cx.io.connect_with(self.target.0, options, self.token);
    }

    pub(super) fn handle_connected(&mut self, cx: &mut Context<'_>, result: io::Result<Socket>) {
        if !matches!(self.state, State::Tcp) {
            return;
        }
        let adopted = result.and_then(|socket| {
            if let Some(time) = self.config.busy_poll {
                socket.set_busy_poll(time)?;
            }
            cx.io.adopt(socket)
        });
        match adopted {
            Ok(socket) => self.begin_login(cx, socket),
            Err(error) => {
                let error = SessionError::Connect(self.target.0, Arc::new(error));
                self.lose(cx, Ending::Lost(error));
            }
        }
    }

    fn begin_login(&mut self, cx: &mut Context<'_>, socket: SocketId) {
        let class = SocketClass {
            traffic: Traffic::Commands,
            share: policy::SHARE_BYTES,
            core_staging: policy::TURN_BYTES,
            departure: Departure::ByReference,
        };
        cx.io.declare(socket, class);
        let staging = cx.pool.take(STAGING_BYTES).unwrap_or_else(|| IoBuf::heap(STAGING_BYTES));
        let config = self.login_config();
        let failed = config.is_none();
        let proto = InitiatorConnection::new(config.unwrap_or_else(|| self.anonymous()));
        self.link = Some(Link {
            socket,
            proto,
            staging: Some(staging),
            receiving: false,
            payload_of: None,
            sending: false,
            closed: false,
            batches_started: 0,
            batches_done: 0,
        });
        if failed {
            return self.lose(cx, Ending::Lost(SessionError::NoRandom));
        }
        self.state = State::Login;
        self.expect(cx, self.config.login_timeout);
        if let Some(link) = &mut self.link {
            link.proto.login(&mut self.control);
        }
        self.send_control(cx);
        self.post_receive(cx);
    }

    /// Who logs in, without authentication.
    fn anonymous(&self) -> InitiatorConfig {
        let config = &self.config;
        let (name, target) = (config.initiator_name.clone(), config.target_name.clone());
        let mut login = InitiatorConfig::new(name, target, self.isid.unwrap_or_default());
        login.slots = config.depth.next_power_of_two().max(MIN_SLOTS);
        login.wishes.header_digest = config.header_digest;
        login.wishes.data_digest = config.data_digest;
        // A digest that was asked for is not given up: the target has to have it.
        login.wishes.no_header_digest = !config.header_digest;
        login.wishes.no_data_digest = !config.data_digest;
        login
    }

    /// The same with CHAP; `None` without random numbers.
    fn login_config(&self) -> Option<InitiatorConfig> {
        self.isid?;
        let mut login = self.anonymous();
        if let Some(Chap { user, secret, target }) = &self.config.chap {
            let (mut id, mut challenge) = ([0; 1], [0; CHALLENGE_LEN]);
            getrandom::fill(&mut id).and_then(|()| getrandom::fill(&mut challenge)).ok()?;
            login.credentials = Some(InitiatorCredentials {
                name: user.clone(),
                secret: secret.clone(),
                algorithms: Algorithm::ALL,
                target: target.clone(),
                id: id[0],
                challenge,
            });
        }
        Some(login)
    }

    /// Commands flow from here on.
    pub(super) fn handle_logged_in(&mut self, cx: &mut Context<'_>) {
        self.state = State::Ready;
        self.phase_deadline = None;
        self.heard = cx.now;
        for slot in self.slots.iter_mut().filter(|slot| slot.live) {
            slot.since = Some(cx.now); // all its time again
        }
        self.backoff = None;
        self.target.1 = 0;
        self.events.push_back(SessionEvent::Ready);
        self.arm_next(cx);
    }

    /// The target says no, or where to go instead.
    #[cold]
    pub(super) fn handle_refused(&mut self, cx: &mut Context<'_>, status: LoginStatus) {
        let address = self.target.0;
        let redirected = self.link.as_ref().and_then(|link| link.proto.redirected_to());
        let ending = match (status.class(), redirected) {
            (1, Some(to)) => match to.parse::<SocketAddr>() {
                Ok(to) if self.target.1 < MAX_REDIRECTIONS => Ending::Redirected(to),
                _ => Ending::Lost(SessionError::Redirected(address, to.to_owned())),
            },
            _ => Ending::Lost(SessionError::Refused { address, status }),
        };
        self.lose(cx, ending);
    }

    /// Closes the session: logs out if nothing is outstanding and a login is complete. Everything outstanding ends with
    /// an error; then [`SessionEvent::Closed`] comes.
    pub fn close(&mut self, cx: &mut Context<'_>) {
        let idle = self.outstanding() == 0;
        match &mut self.state {
            State::Closed => {}
            State::Lost(_) => self.end_all(),
            State::Draining(ending) => *ending = Ending::Closed,
            State::Ready if idle => self.log_out(cx, true),
            State::LoggingOut { for_good, .. } => *for_good = true,
            State::Tcp | State::Login | State::Ready => self.lose(cx, Ending::Closed),
        }
    }

    /// Closes the session at once: the socket is given up in this call.
    pub fn abandon(&mut self, cx: &mut Context<'_>) {
        match &mut self.state {
            State::Closed => {}
            State::Lost(_) => self.end_all(),
            State::Draining(ending) => *ending = Ending::Closed,
            State::Tcp | State::Login | State::Ready | State::LoggingOut { .. } => {
                self.lose(cx, Ending::Closed);
            }
        }
    }

    /// Begins to log out: commands that were sent are answered first.
    pub(super) fn log_out(&mut self, cx: &mut Context<'_>, for_good: bool) {
        self.state = State::LoggingOut { for_good, asked: false };
        self.expect(cx, LOGOUT_TIMEOUT);
        self.ask_for_logout(cx);
    }

    /// Sends the Logout Request once no command is under way at the target.
    pub(super) fn ask_for_logout(&mut self, cx: &mut Context<'_>) {
        let State::LoggingOut { asked, .. } = &mut self.state else { return };
        let under_way = self.slots.iter().any(|slot| slot.live && slot.sent);
        let Some(link) = self.link.as_mut().filter(|_| !*asked && !under_way) else { return };
        *asked = link.proto.logout(&mut self.control);
        self.send_control(cx);
    }
}
