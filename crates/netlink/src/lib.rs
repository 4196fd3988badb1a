//! Generic netlink: a family of the kernel by its name, and requests to it, one at a time.
#![forbid(unsafe_code)]

mod message;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

pub use message::{Attribute, NESTED, append, attributes, text, unsigned};
use message::{GENERIC_BYTES, HEADER_BYTES, half, messages, word};

/// The kernel answers at once: this bound only keeps a fault from blocking.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Longer than any answer about one thing.
const BUFFER_BYTES: usize = 128 << 10;

/// The kind of messages to the controller of families, its command, and its attributes: the family's
/// number and name.
const CONTROLLER: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// The kind of a message that is an error, or an acknowledgement.
const ERROR: u16 = 2;
/// A flag of all requests, and that of requests that are to be acknowledged.
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;

/// A socket, and the number of a family.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    family: u16,
    sequence: u32,
}

impl Connection {
    /// Opens a socket and looks up the family.
    ///
    /// # Errors
    /// When there can be no such socket, or when the kernel has no such family ([`io::ErrorKind::NotFound`]).
    pub fn open(family: &str) -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(GENERIC),
        )?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_LIMIT))?;
        let mut connection = Self { socket, family: CONTROLLER, sequence: 0 };
        let mut body = Vec::new();
        append(&mut body, FAMILY_NAME, format!("{family}\0").as_bytes());
        let answer = connection.ask(GET_FAMILY, &body)?;
        let family = attributes(&answer).find(|attribute| attribute.kind == FAMILY_ID);
        let family = family.and_then(|found| half(found.value, 0));
        connection.family = family.ok_or_else(|| io::Error::other("the kernel names no family"))?;
        Ok(connection)
    }

    /// Sends a command that the kernel answers; gives the attributes of the answer.
    ///
    /// # Errors
    /// The kernel's error, or that of the socket.
    pub fn ask(&mut self, command: u8, attributes: &[u8]) -> io::Result<Vec<u8>> {
        self.exchange(command, REQUEST, attributes)
    }

    /// Sends a command that the kernel only carries out.
    ///
    /// # Errors
    /// As for [`Connection::ask`].
    pub fn tell(&mut self, command: u8, attributes: &[u8]) -> io::Result<()> {
        self.exchange(command, REQUEST | ACKNOWLEDGE, attributes).map(drop)
    }

    fn exchange(&mut self, command: u8, flags: u16, body: &[u8]) -> io::Result<Vec<u8>> {
        self.sequence += 1;
        let length = u32::try_from(HEADER_BYTES + GENERIC_BYTES + body.len());
        let mut request = Vec::new();
        request.extend(length.map_err(io::Error::other)?.to_ne_bytes());
        request.extend(self.family.to_ne_bytes());
        request.extend(flags.to_ne_bytes());
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
        if kind != ERROR {
            return Ok(answer.get(GENERIC_BYTES..).unwrap_or_default().to_vec());
        }
        match word(answer, 0).unwrap_or(0).cast_signed() {
            0 => Ok(Vec::new()),
            code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_knows_its_controller_and_no_family_of_ours() {
        let mut controller = match Connection::open("nlctrl") {
            Ok(controller) => controller,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return eprintln!("SKIPPED: netlink is not permitted: {error}");
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(controller.family, CONTROLLER);
        // The answer to the same question again has the same number.
        let mut body = Vec::new();
        append(&mut body, FAMILY_NAME, b"nlctrl\0");
        let answer = controller.ask(GET_FAMILY, &body).unwrap();
        let number = attributes(&answer).find(|attribute| attribute.kind == FAMILY_ID).unwrap();
        assert_eq!(unsigned(number.value), Some(u64::from(CONTROLLER)));
        let error = Connection::open("no-family").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
    }
}
