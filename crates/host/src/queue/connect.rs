//! How a connection of a queue begins: TCP, ICReq and ICResp, Connect. Over RDMA, Connect is the first message.

use std::sync::Arc;

use raceline_proto::nvme::fabrics::{
    CATTR_DISABLE_SQ_FLOW, ConnectData, ConnectResponse, ConnectWords,
};
use raceline_proto::nvme::{ControllerId, Cqe, Status};
use raceline_proto::tcp::{HostQueue, HostQueueConfig};
use raceline_reactor::flow::{Departure, SocketClass, Traffic, policy};
use raceline_reactor::io::SocketId;
use raceline_reactor::socket::ConnectOptions;
use raceline_reactor::{Arrival, Context, IoBuf, Socket};

use super::{Ending, Link, QueueEvent, QueuePair, Renewal, SqFlow, State};
use crate::command::{Command, Data};
use crate::config::{MAX_ENTRIES, QueuePairConfig};
use crate::credentials::Credentials;
use crate::error::HostError;

/// Bytes received beside payloads, per call: sixteen 4 KiB reads with their headers.
pub(super) const STAGING_BYTES: usize = 68 << 10;
/// IPO of CATTR in a refused Connect.
const CATTR_OFFSET: u16 = 46;

impl QueuePair {
    /// Begins a connection's life.
    pub(super) fn start(&mut self, cx: &mut Context<'_>) {
        self.token.generation = self.token.generation.wrapping_add(1);
        self.alarm = None;
        self.gathering.forget_alarm();
        self.state = State::Tcp;
        self.search.begin();
        self.expect(cx, self.config.tcp_connect_timeout);
        self.dial(cx);
    }

    /// Asks for a connection. A provider's own stack has one at once, and connects as a part of its
    /// handshake.
    fn dial(&mut self, cx: &mut Context<'_>) {
        if let Some(devices) = self.config.rdma.clone() {
            return self.dial_rdma(cx, &devices);
        }
        let QueuePairConfig { address, source, .. } = &self.config;
        match self.streams().and_then(|streams| streams.connect(*address, *source)) {
            Some(socket) => {
                let adopted = socket.and_then(|socket| cx.io.adopt(socket));
                self.begin(cx, adopted);
            }
            None => {
                let priority = self.config.priority.unwrap_or_default();
                let QueuePairConfig { tos, interface, .. } = self.config;
                let options = ConnectOptions { source: *source, priority, tos, interface };
                cx.io.connect_with(*address, options, self.token);
            }
        }
    }

    pub(super) fn handle_connected(
        &mut self,
        cx: &mut Context<'_>,
        result: std::io::Result<Socket>,
    ) {
        if !matches!(self.state, State::Tcp) {
            return;
        }
        let adopted = result.and_then(|socket| {
            if !self.keeps(&socket)? {
                return Ok(None);
            }
            let socket = match self.streams() {
                Some(streams) => streams.connected(socket)?,
                None => socket,
            };
            cx.io.adopt(socket).map(Some)
        });
        match adopted.transpose() {
            Some(adopted) => self.begin(cx, adopted),
            // Again, from another port; the time limit is for all attempts together.
            None => self.dial(cx),
        }
    }

    /// The first words on a socket that was adopted.
    fn begin(&mut self, cx: &mut Context<'_>, adopted: std::io::Result<SocketId>) {
        let socket = match adopted {
            Ok(socket) => socket,
            Err(error) => {
                let error = HostError::tcp(self.config.address, self.config.source, error);
                self.lose(cx, Ending::Lost(error), None);
                return;
            }
        };
        if !self.config.qid.is_admin() {
            let class = SocketClass {
                traffic: Traffic::Commands,
                share: policy::SHARE_BYTES,
                core_staging: policy::TURN_BYTES,
                departure: match (self.config.send_flags, self.config.zero_copy) {
                    (true, _) => Departure::Flagged,
                    (false, true) => Departure::ByReference,
                    (false, false) => Departure::Copied,
                },
            };
            cx.io.declare(socket, class);
        }
        let slots = u16::try_from(self.commands.capacity()).unwrap_or(MAX_ENTRIES);
        let queue = HostQueue::new(HostQueueConfig {
            hpda: 0,
            hdgst: self.config.header_digest,
            ddgst: self.config.data_digest,
            maxr2t: 0, // one R2T per command
            slots,
        });
        let staging = cx.pool.take(STAGING_BYTES).unwrap_or_else(|| IoBuf::heap(STAGING_BYTES));
        self.link = Some(Link {
            socket,
            queue,
            staging: Some(staging),
            core_staging: false,
            receiving: false,
            payload_of: None,
            sending: false,
            closed: false,
            batches_started: 0,
            batches_done: 0,
            flow: SqFlow::Off,
        });
        self.state = State::IcResp;
        self.expect(cx, self.config.connect_timeout);
        self.send_with(cx, |queue, batch| batch.append(|out| queue.ic_req(out)));
        self.post_receive(cx);
    }

    /// Prepares a connection. Returns whether its packets come in where they are wanted.
    fn keeps(&mut self, socket: &Socket) -> std::io::Result<bool> {
        if let Some(time) = self.config.busy_poll {
            socket.set_busy_poll(time)?;
        }
        if let Some(time) = self.config.ack_timeout {
            socket.set_user_timeout(time)?;
        }
        let (napi_id, cpu) = (socket.incoming_napi_id(), socket.incoming_cpu());
        self.arrival = Arrival { napi_id, cpu, mark: None };
        let kept = self.search.accepts(self.arrival);
        tracing::debug!(
            qid = self.config.qid.0,
            core = self.search.own_cpu(),
            napi_id = self.arrival.napi_id,
            cpu = self.arrival.cpu,
            attempt = self.search.attempts(),
            kept,
            "connected"
        );
        Ok(kept)
    }

    /// ICResp has come: Connect is the first command (Fabrics 1.1, 3.3).
    pub(super) fn send_connect(&mut self, cx: &mut Context<'_>) {
        let config = &self.config;
        let words = ConnectWords {
            recfmt: 0,
            qid: config.qid,
            sqsize: config.entries - 1,
            cattr: if self.disable_sq_flow { CATTR_DISABLE_SQ_FLOW } else { 0 },
            kato: if config.qid.is_admin() { config.kato_ms } else { 0 },
        };
        let data = ConnectData::new(config.hostid, config.cntlid, &config.subnqn, &config.hostnqn);
        let buf = IoBuf::from_slice(zerocopy::IntoBytes::as_bytes(&data));
        let len = u32::try_from(ConnectData::LEN).unwrap_or(u32::MAX);
        let command = Command::new(words.to_sqe(), Data::Write(buf.share()));
        let cid = self.insert(command, 0, len, None);
        // Before all commands that wait already.
        self.pending.rotate_right(1);
        self.state = State::Connect(cid);
        self.expect(cx, self.config.connect_timeout);
    }

    pub(super) fn handle_connect_response(&mut self, cx: &mut Context<'_>, cqe: &Cqe) {
        let address = self.config.address;
        if !cqe.status.is_success() {
            let [o0, o1, attributes, _] = cqe.dw0.to_le_bytes();
            let offset = u16::from_le_bytes([o0, o1]);
            let in_data = attributes & 1 != 0;
            let about_flow = cqe.status.same_code(Status::CONNECT_INVALID_PARAMETERS)
                && !in_data
                && offset == CATTR_OFFSET;
            let ending = if about_flow && self.disable_sq_flow {
                Ending::RetryWithFlow
            } else {
                Ending::Lost(HostError::ConnectRefused {
                    address,
                    status: cqe.status,
                    offset,
                    in_data,
                })
            };
            self.lose(cx, ending, None);
            return;
        }
        let response = ConnectResponse::from_dw0(cqe.dw0);
        if self.config.credentials.are_withdrawn() {
            self.lose(cx, Ending::Lost(HostError::CredentialsWithdrawn(address)), None);
            return;
        }
        let credentials = self.config.credentials.current();
        if response.secure_channel_required && !self.only_makes_key() {
            self.lose(cx, Ending::Lost(HostError::SecureChannelRequired(address)), None);
            return;
        }
        let has_to_prove = response.authentication_required || self.only_makes_key();
        if has_to_prove && credentials.is_none() {
            self.lose(cx, Ending::Lost(HostError::AuthenticationRequired(address)), None);
            return;
        }
        if !self.config.qid.is_admin() && response.cntlid != self.config.cntlid {
            let text =
                format!("Connect of controller {} gave {}", self.config.cntlid, response.cntlid);
            self.lose(cx, Ending::Lost(HostError::Protocol(address, text)), None);
            return;
        }
        // A controller grants what was asked by FFFFh; else both counters start at what it says.
        let flow = if self.disable_sq_flow && cqe.sqhd == u16::MAX {
            SqFlow::Off
        } else {
            let head = cqe.sqhd % self.config.entries;
            SqFlow::On { tail: head, head }
        };
        match (&mut self.link, &mut self.rdma) {
            (Some(link), _) => link.flow = flow,
            (None, Some(rdma)) => rdma.flow = flow,
            (None, None) => {}
        }
        // A controller that has to prove itself is asked, whatever it says. Over TLS with a key that an authentication has
        // made, it has proved itself.
        let asks = self.config.generated.is_none();
        let proves = |(_, credentials): &(u64, Arc<Credentials>)| {
            has_to_prove || asks && credentials.controller_secret.is_some()
        };
        let version_of_key = self.version_of_key();
        self.renewal = Renewal::default();
        match credentials.filter(proves) {
            Some(credentials) => self.prove(cx, &credentials, response.cntlid),
            None => {
                self.get_ready(cx, response.cntlid);
                self.begin_renewals(cx, version_of_key);
            }
        }
    }

    /// Commands flow from here on.
    pub(super) fn get_ready(&mut self, cx: &mut Context<'_>, cntlid: ControllerId) {
        self.state = State::Ready;
        self.phase_deadline = None;
        self.restart_deadlines(cx.now);
        self.gathering.release();
        self.events.push_back(QueueEvent::Ready { cntlid });
    }
}
