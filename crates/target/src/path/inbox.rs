//! What a connection receives into: staging memory, or a command's buffer and staging memory behind it.

use std::ops::Range;

use raceline_reactor::flow::Departure;
use raceline_reactor::io::{RecvBuffers, SocketId};
use raceline_reactor::{Context, IoBuf, Token};

use crate::changes::config::TargetConfig;
use crate::path::choice::{
    EARLY_STAGING_BYTES, departure, receives_direct, socket_class, staging_bytes, staging_window,
};
use crate::path::commands::Commands;
use crate::records::names::{Ends, SlotKey};

/// How a connection receives.
pub(crate) struct Inbox {
    /// `None` while a receive is in flight.
    staging: Option<IoBuf>,
    staging_bytes: usize,
    /// The received bytes of the staging memory that have not been parsed.
    unparsed: Range<usize>,
    receiving: bool,
    /// The command whose buffer is with the receive in flight.
    direct: Option<SlotKey>,
    /// How many bytes the connection may move in a pass.
    pass_bytes: usize,
    /// How many it may move in this one.
    pass_limit: usize,
    /// How sent bytes leave.
    departure: Departure,
    /// The rest of what was received waits for the next pass.
    deferred: bool,
}

impl Inbox {
    /// For a connection between these ends.
    pub(crate) fn of(config: &TargetConfig, ends: &Ends) -> Self {
        let departure = departure(config, ends.local.ip(), ends.peer.ip());
        Self {
            staging: Some(IoBuf::heap(EARLY_STAGING_BYTES)),
            staging_bytes: EARLY_STAGING_BYTES,
            unparsed: 0..0,
            receiving: false,
            direct: None,
            pass_bytes: config.pass_bytes as usize,
            pass_limit: config.pass_bytes as usize,
            departure,
            deferred: false,
        }
    }

    /// The queue is connected: sets the size of its staging memory, from the next receive on.
    pub(crate) fn set_queue(&mut self, is_admin: bool) {
        self.staging_bytes = staging_bytes(is_admin);
    }

    #[inline]
    pub(crate) fn pass_limit(&self) -> usize {
        self.pass_limit
    }

    pub(crate) fn is_receiving(&self) -> bool {
        self.receiving
    }

    /// Starts a receive, unless one is in flight. `open`: the connection takes data of commands.
    #[inline]
    pub(crate) fn start(
        &mut self,
        cx: &mut Context<'_>,
        commands: &mut Commands,
        open: bool,
        (socket, token): (SocketId, Token),
    ) {
        if self.receiving {
            return;
        }
        let Some(mut staging) = self.staging.take() else { return };
        if staging.len() < self.staging_bytes {
            staging = IoBuf::sparse(self.staging_bytes);
            let class = socket_class(self.staging_bytes, self.pass_bytes, self.departure);
            if let Some(class) = class {
                cx.io.declare(socket, class);
            }
        }
        let payload = if open { self.direct_payload(commands) } else { None };
        let window = staging_window(commands.large_data_next());
        let staging_range = 0..staging.len().min(window);
        self.receiving = true;
        cx.io.recv(socket, RecvBuffers { payload, staging, staging_range }, token);
    }

    /// The buffer of a large payload in progress, with the range that has not arrived.
    #[inline]
    fn direct_payload(&mut self, commands: &mut Commands) -> Option<(IoBuf, Range<usize>)> {
        let wanted = commands.out.queue.payload_wanted()?;
        if !receives_direct(wanted.len) {
            return None;
        }
        let key = commands.receiver(wanted.dest)?.key();
        let buf = commands.lend_buffer(key)?;
        self.direct = Some(key);
        let start = wanted.offset as usize;
        Some((buf, start..start + (wanted.len as usize).min(self.pass_bytes)))
    }

    /// A receive has finished: its buffers come back. Gives how many bytes of a payload were to land in a
    /// command's buffer, and where the other bytes begin in the staging memory.
    #[inline]
    pub(crate) fn take_back(
        &mut self,
        commands: &mut Commands,
        buffers: RecvBuffers,
    ) -> (usize, usize) {
        self.receiving = false;
        self.staging = Some(buffers.staging);
        let mut direct_len = 0;
        if let (Some(key), Some((buf, range))) = (self.direct.take(), buffers.payload) {
            direct_len = range.len();
            commands.return_buffer(key, buf);
        }
        (direct_len, buffers.staging_range.start)
    }

    /// These bytes of the staging memory have arrived, and have to be parsed.
    #[inline]
    pub(crate) fn set_unparsed(&mut self, bytes: Range<usize>) {
        self.unparsed = bytes;
    }

    /// Lends the staging memory for parsing, with the range that has not been parsed.
    /// `None`: a receive is in flight.
    #[inline]
    pub(crate) fn lend_staging(&mut self) -> Option<(IoBuf, Range<usize>)> {
        Some((self.staging.take()?, self.unparsed.clone()))
    }

    /// The staging memory comes back. Gives whether all of it was parsed.
    #[inline]
    pub(crate) fn return_staging(&mut self, staging: IoBuf, unparsed: Range<usize>) -> bool {
        self.unparsed = unparsed;
        self.staging = Some(staging);
        self.unparsed.is_empty()
    }

    /// Whether nothing is in flight, and all that was received has been parsed.
    pub(crate) fn is_idle(&self) -> bool {
        !self.receiving && !self.deferred && self.unparsed.is_empty()
    }

    /// Whether the rest waits for the next pass.
    pub(crate) fn is_deferred(&self) -> bool {
        self.deferred
    }

    /// The rest waits for the next pass. Gives whether it did not wait for that already.
    pub(crate) fn defer(&mut self) -> bool {
        !std::mem::replace(&mut self.deferred, true)
    }

    /// The next pass has come.
    pub(crate) fn resume(&mut self) {
        self.deferred = false;
        self.pass_limit = self.pass_bytes;
    }

    /// The next pass has come, in which the connection may move so many bytes.
    pub(crate) fn resume_for(&mut self, bytes: usize) {
        self.deferred = false;
        self.pass_limit = bytes;
    }
}
