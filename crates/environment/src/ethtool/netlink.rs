//! A netlink socket on which the kernel's ethtool family answers.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

use super::message::{
    GENERIC_BYTES, HEADER_BYTES, NESTED, append, attributes, half, messages, text, word,
};
use crate::reading::Reading;

/// The kernel answers at once: this bound only keeps a fault from blocking.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Longer than any answer about one interface.
const BUFFER_BYTES: usize = 128 << 10;

/// The kind of messages to the controller of families, its command, and its attributes: the family's
/// number and name.
const CONTROLLER: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// The kind of a message that is an error, or an acknowledgement.
const ERROR: u16 = 2;
/// A flag of all requests.
const REQUEST: u16 = 1;

/// The attribute of all requests to ethtool that says which interface; and of its value, the name.
const HEADER: u16 = 1;
const DEVICE_NAME: u16 = 2;

/// A socket, and the number of the ethtool family.
pub(super) struct Connection {
    socket: OwnedFd,
    family: u16,
    sequence: u32,
}

impl Connection {
    /// Opens a socket and looks up the family.
    pub(super) fn open() -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(GENERIC),
        )?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_LIMIT))?;
        let mut connection = Self { socket, family: CONTROLLER, sequence: 0 };
        let mut body = Vec::new();
        append(&mut body, FAMILY_NAME, b"ethtool\0");
        let answer = connection.exchange(GET_FAMILY, &body)?;
        let family = attributes(&answer).find(|attribute| attribute.kind == FAMILY_ID);
        let family = family.and_then(|found| half(found.value, 0));
        connection.family = family.ok_or_else(|| io::Error::other("the kernel names no family"))?;
        Ok(connection)
    }

    /// The attributes of the answer to a command about an interface.
    pub(super) fn ask(&mut self, command: u8, interface: &str) -> Reading<Vec<u8>> {
        let mut name = Vec::new();
        append(&mut name, DEVICE_NAME, format!("{interface}\0").as_bytes());
        let mut body = Vec::new();
        append(&mut body, HEADER | NESTED, &name);
        match self.exchange(command, &body) {
            Ok(answer) => Reading::Read(answer),
            Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => {
                Reading::unread("the driver does not tell")
            }
            Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
                Reading::unread("the kernel tells root only")
            }
            Err(error) => Reading::unread(format!("the kernel refuses to tell: {error}")),
        }
    }

    fn exchange(&mut self, command: u8, body: &[u8]) -> io::Result<Vec<u8>> {
        self.sequence += 1;
        let length = u32::try_from(HEADER_BYTES + GENERIC_BYTES + body.len());
        let mut request = Vec::new();
        request.extend(length.map_err(io::Error::other)?.to_ne_bytes());
        request.extend(self.family.to_ne_bytes());
        request.extend(REQUEST.to_ne_bytes());
        request.extend(self.sequence.to_ne_bytes());
        request.extend(0_u32.to_ne_bytes());
        request.extend([command, 1, 0, 0]);
        request.extend(body);
        sendto(&self.socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut buffer = vec![0; BUFFER_BYTES];
        let (received, _) = recv(&self.socket, &mut buffer[..], RecvFlags::empty())?;
        let answer = buffer.get(..received).unwrap_or_default();
        let (kind, answer) = messages(answer)
            .next()
            .ok_or_else(|| io::Error::other("the kernel's answer is no message"))?;
        if kind == ERROR {
            let code = word(answer, 0).unwrap_or(0).cast_signed();
            return Err(io::Error::from_raw_os_error(code.saturating_neg()));
        }
        Ok(answer.get(GENERIC_BYTES..).unwrap_or_default().to_vec())
    }
}

/// The name of an interface fits its field in the kernel's structures.
pub(super) fn name_field(interface: &str) -> Option<[u8; 16]> {
    let mut field = [0; 16];
    field[..15].get_mut(..interface.len())?.copy_from_slice(interface.as_bytes());
    debug_assert_eq!(text(&field), interface);
    Some(field)
}
