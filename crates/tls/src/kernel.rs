//! Records made by the kernel (tls(7)): the only file with its socket options and control messages.
//!
//! A socket takes the keys of each direction by itself. From then on, plain sends become records of data and plain
//! receives give data. Any other record is sent and received with a control message that says its type.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use zeroize::Zeroize as _;

use crate::record::{APPLICATION_DATA, Suite, TrafficKeys};

/// From linux/tls.h and linux/tcp.h.
const SOL_TLS: libc::c_int = 282;
const TLS_TX: libc::c_int = 1;
const TLS_RX: libc::c_int = 2;
const TLS_RX_EXPECT_NO_PAD: libc::c_int = 4;
const TLS_SET_RECORD_TYPE: libc::c_int = 1;
const TLS_GET_RECORD_TYPE: libc::c_int = 2;
const TLS_1_3_VERSION: u16 = 0x0304;
const TLS_CIPHER_AES_GCM_128: u16 = 51;
const TLS_CIPHER_AES_GCM_256: u16 = 52;

/// Bytes of the nonce that the kernel calls the salt; it calls the others the IV.
const SALT: usize = 4;
/// Bytes of `tls12_crypto_info_aes_gcm_256`, the longer one: two numbers of 16 bits, IV, key, salt, record number.
const INFO_MAX: usize = 4 + 8 + 32 + SALT + 8;

/// A direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Send,
    Receive,
}

/// Memory for one control message with a byte, as the kernel wants it aligned.
#[repr(C, align(8))]
struct Control([u8; 32]);

/// Has the kernel's TLS take a connected socket, which goes on as before until it has keys.
pub(crate) fn attach(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SOL_TCP, libc::TCP_ULP, b"tls")
}

/// Gives a direction of the socket its keys, or others when it has some.
pub(crate) fn set_keys(
    socket: BorrowedFd<'_>,
    direction: Direction,
    keys: &TrafficKeys,
) -> io::Result<()> {
    let cipher = match keys.suite {
        Suite::Aes128GcmSha256 => TLS_CIPHER_AES_GCM_128,
        Suite::Aes256GcmSha384 => TLS_CIPHER_AES_GCM_256,
    };
    let mut info = [0; INFO_MAX];
    let mut len = 0;
    let (salt, iv) = keys.iv.split_at(SALT);
    let parts: [&[u8]; 6] = [
        &TLS_1_3_VERSION.to_ne_bytes(),
        &cipher.to_ne_bytes(),
        iv,
        keys.key(),
        salt,
        &keys.sequence.to_be_bytes(),
    ];
    for part in parts {
        info[len..len + part.len()].copy_from_slice(part);
        len += part.len();
    }
    let name = match direction {
        Direction::Send => TLS_TX,
        Direction::Receive => TLS_RX,
    };
    let result = set(socket, SOL_TLS, name, &info[..len]);
    info.zeroize();
    result
}

/// Says that the peer pads no record, so that the kernel decrypts into our memory. If one is padded, the kernel decrypts
/// it twice. Kernels before 6.0 do not know this.
pub(crate) fn expect_no_padding(socket: BorrowedFd<'_>) {
    let _ = set(socket, SOL_TLS, TLS_RX_EXPECT_NO_PAD, &1i32.to_ne_bytes());
}

fn set(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &[u8],
) -> io::Result<()> {
    let len = libc::socklen_t::try_from(value.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the kernel reads `len` bytes of `value`, which lives across the call.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value.as_ptr().cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends a record of this type. All of its content leaves, or nothing does (`WouldBlock`).
pub(crate) fn send_record(socket: BorrowedFd<'_>, kind: u8, content: &[u8]) -> io::Result<()> {
    let mut control = Control([0; 32]);
    let mut part =
        libc::iovec { iov_base: content.as_ptr().cast_mut().cast(), iov_len: content.len() };
    // SAFETY: msghdr is plain data for which zeroes are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: a computation.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(1) } as _;
    // SAFETY: the control memory is aligned and has room for one message with a byte: CMSG_SPACE(1) is 24.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = SOL_TLS;
        (*header).cmsg_type = TLS_SET_RECORD_TYPE;
        (*header).cmsg_len = libc::CMSG_LEN(1) as _;
        *libc::CMSG_DATA(header) = kind;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the message names memory that lives across the call, and that the kernel only reads.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    match usize::try_from(sent) {
        Ok(sent) if sent == content.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Receives the rest of a record, or as much of it as there is room for. Gives its type and the number of bytes; 0 bytes
/// of data are the end of the stream.
pub(crate) fn receive_record(socket: BorrowedFd<'_>, room: &mut [u8]) -> io::Result<(u8, usize)> {
    let mut control = Control([0; 32]);
    let mut part = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    // SAFETY: msghdr is plain data for which zeroes are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    // SAFETY: the message names memory that lives across the call and that nothing else uses.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has filled the control memory as the header now says.
    let kind = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        let is_type = !header.is_null()
            && (*header).cmsg_level == SOL_TLS
            && (*header).cmsg_type == TLS_GET_RECORD_TYPE;
        if is_type { *libc::CMSG_DATA(header) } else { APPLICATION_DATA }
    };
    Ok((kind, got))
}
