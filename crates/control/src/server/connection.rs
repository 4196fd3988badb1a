//! One client: values in, answers out, within bounds of size and time.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::Shared;
use crate::codec::Splitter;
use crate::error::{RpcError, code};
use crate::request::{self, Dispatcher};
use crate::role::{Peer, Via};

/// Pause before the next attempt to accept after an error.
pub(super) const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Bytes that are read at a time.
const READ_BYTES: usize = 64 << 10;

/// Serves a client until it goes away or breaks a rule.
pub(super) async fn serve(mut stream: UnixStream, shared: Arc<Shared>) {
    let peer = match stream.peer_cred() {
        Ok(cred) => Peer {
            via: Via::Socket,
            uid: cred.uid(),
            pid: cred.pid().unwrap_or(0),
            role: shared.roles.of(cred.uid()),
            is_internal: false,
        },
        Err(error) => {
            tracing::warn!("an RPC client without credentials was refused: {error}");
            return;
        }
    };
    if let Err(error) = converse(&mut stream, &shared, peer).await {
        tracing::debug!(uid = peer.uid, pid = peer.pid, "RPC connection ended: {error}");
    }
}

/// Tells a client that all places are taken.
pub(super) async fn refuse(mut stream: UnixStream, connections: usize) {
    let error = RpcError::new(code::INTERNAL_ERROR, "Too many connections")
        .because(format!("{connections} clients are connected already: close some"));
    let line = request::refused(&error);
    let _ = tokio::time::timeout(ACCEPT_RETRY, stream.write_all(line.as_bytes())).await;
}

async fn converse(stream: &mut UnixStream, shared: &Arc<Shared>, peer: Peer) -> io::Result<()> {
    let limits = shared.limits;
    let mut splitter = Splitter::new(limits.request);
    let mut piece = vec![0; READ_BYTES];
    // When the client was last owed nothing, and when the value began that it has sent in part.
    let (mut quiet, mut began) = (Instant::now(), None);
    loop {
        let value = match splitter.next_value() {
            Ok(value) => value,
            Err(error) => {
                // Reading cannot resume within the stream: answer, and close.
                return write(stream, request::broken_stream(error), limits.answer_time).await;
            }
        };
        if let Some(value) = value {
            shared.answering.fetch_add(1, Ordering::Relaxed);
            let answered = match call(shared, peer, value, stream).await {
                Some(answer) => write(stream, answer, limits.answer_time).await,
                None => Ok(()),
            };
            shared.answering.fetch_sub(1, Ordering::Relaxed);
            answered?;
            (quiet, began) = (Instant::now(), None);
            continue;
        }
        // A client that sends a byte at a time has no more of it than one that sends nothing.
        let end = match splitter.is_inside() {
            true => Some(*began.get_or_insert_with(Instant::now) + limits.request_time),
            false => limits.quiet_time.map(|time| quiet + time),
        };
        let len = match end.map(|end| end.saturating_duration_since(Instant::now())) {
            Some(time) => in_time(time, stream.read(&mut piece)).await?,
            None => stream.read(&mut piece).await?,
        };
        if len == 0 {
            return Ok(());
        }
        splitter.push(&piece[..len]);
    }
}

/// Executes one value on a thread that may block. A panic of a method ends its call, not the
/// server.
async fn call(
    shared: &Arc<Shared>,
    peer: Peer,
    value: Vec<u8>,
    stream: &UnixStream,
) -> Option<String> {
    let shared = Arc::clone(shared);
    // Without a descriptor of its own, the thread cannot look whether the client is gone, and does the whole work.
    let stream = stream.as_fd().try_clone_to_owned().ok();
    let called = tokio::task::spawn_blocking(move || {
        let dispatcher = Dispatcher { registry: &shared.registry, manager: &shared.manager, peer };
        dispatcher.answer_while(&value, &|| stream.as_ref().is_some_and(is_gone))
    });
    called.await.unwrap_or_else(|_| {
        let error =
            RpcError::internal("Internal error").because("the method panicked: see the log");
        Some(request::refused(&error))
    })
}

/// Whether a client has closed its end. One that only sends no more still reads answers.
fn is_gone(stream: &OwnedFd) -> bool {
    let mut looked = [PollFd::new(stream, PollFlags::empty())];
    let looked_at = poll(&mut looked, Some(&Timespec::default()));
    looked_at.is_ok() && looked[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

async fn write(stream: &mut UnixStream, answer: String, time: Duration) -> io::Result<()> {
    in_time(time, stream.write_all(answer.as_bytes())).await
}

async fn in_time<T>(
    limit: Duration,
    operation: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    match tokio::time::timeout(limit, operation).await {
        Ok(result) => result,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}
