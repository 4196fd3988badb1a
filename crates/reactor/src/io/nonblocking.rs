//! Receives and sends that do not block, between a socket and the memory of an operation.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::io::RecvBuffers;
use crate::send::SendBatch;

/// Receives what is there, at most what fits; `WouldBlock` when nothing is.
pub(crate) fn receive(fd: &OwnedFd, buffers: &mut RecvBuffers) -> io::Result<usize> {
    let (mut iovecs, count) = buffers.iovecs();
    let result = if count == 1 {
        let [iovec, _] = iovecs;
        // SAFETY: the vector names memory that `buffers` owns.
        unsafe { libc::recv(fd.as_raw_fd(), iovec.iov_base, iovec.iov_len, libc::MSG_DONTWAIT) }
    } else {
        // SAFETY: msghdr is plain data for which zeroes are valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = iovecs.as_mut_ptr();
        message.msg_iovlen = count;
        // SAFETY: the vectors name memory that `buffers` owns, and live across the call.
        unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) }
    };
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Sends as much of the batch's next segments as the socket takes; the caller notes how much
/// with [`SendBatch::advance`]. `WouldBlock` when it takes nothing.
pub(crate) fn transmit(fd: &OwnedFd, batch: &mut SendBatch) -> io::Result<usize> {
    let message: *const libc::msghdr = batch.prepare();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | batch.flags();
    // SAFETY: the vectors name memory that the batch owns, which has not changed since.
    let result = unsafe { libc::sendmsg(fd.as_raw_fd(), message, flags) };
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// True for errors after which the same call may succeed later.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
