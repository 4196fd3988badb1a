//! Requests to the kernel's NBD client: commands and attributes of linux/nbd-netlink.h.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use raceline_netlink::{Connection, NESTED, append, attributes, unsigned};

/// Commands.
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;

/// Attributes of requests.
const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const SERVER_FLAGS: u16 = 5;
const CLIENT_FLAGS: u16 = 6;
const SOCKETS: u16 = 7;
const DEAD_CONNECTION_TIMEOUT: u16 = 8;
const BACKEND_IDENTIFIER: u16 = 10;

/// What the attribute of the sockets holds: items with a descriptor each.
const SOCKET_ITEM: u16 = 1;
const SOCKET_DESCRIPTOR: u16 = 1;

/// A flag: the disk goes when it is disconnected.
const DESTROY_ON_DISCONNECT: u64 = 1;

/// How many seconds I/O waits for a process that follows one that was killed.
const RETURN_TIME_S: u64 = 60;

/// What a disk is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) bytes: u64,
    pub(super) block_bytes: u32,
    /// Transmission flags.
    pub(super) flags: u16,
}

/// Makes a disk of a connection; `is_new` has the kernel forget it at its end.
pub(super) fn connect(
    kernel: &mut Connection,
    (index, is_new): (u32, bool),
    (facts, mark): (&Facts, &str),
    socket: &OwnedFd,
) -> io::Result<()> {
    let answer = kernel.ask(CONNECT, &connect_request(index, is_new, (facts, mark), socket))?;
    let given = attributes(&answer).find(|attribute| attribute.kind == INDEX);
    let given = given.and_then(|attribute| unsigned(attribute.value));
    if given != Some(u64::from(index)) {
        return Err(io::Error::other(format!("it has made another disk: {given:?}")));
    }
    Ok(())
}

fn connect_request(
    index: u32,
    is_new: bool,
    (facts, mark): (&Facts, &str),
    socket: &OwnedFd,
) -> Vec<u8> {
    let mut request = about(index, Some(mark));
    size(&mut request, (facts.bytes, facts.block_bytes));
    append(&mut request, SERVER_FLAGS, &u64::from(facts.flags).to_ne_bytes());
    append(&mut request, DEAD_CONNECTION_TIMEOUT, &RETURN_TIME_S.to_ne_bytes());
    if is_new {
        append(&mut request, CLIENT_FLAGS, &DESTROY_ON_DISCONNECT.to_ne_bytes());
    }
    sockets(&mut request, socket);
    request
}

/// Gives a disk another connection in place of a dead one.
pub(super) fn reconfigure(
    kernel: &mut Connection,
    index: u32,
    mark: &str,
    socket: &OwnedFd,
) -> io::Result<()> {
    let mut request = about(index, Some(mark));
    append(&mut request, DEAD_CONNECTION_TIMEOUT, &RETURN_TIME_S.to_ne_bytes());
    sockets(&mut request, socket);
    kernel.tell(RECONFIGURE, &request)
}

/// Gives a disk another size, in bytes, of blocks of so many bytes.
pub(super) fn resize(
    kernel: &mut Connection,
    index: u32,
    mark: &str,
    bytes: (u64, u32),
) -> io::Result<()> {
    let mut request = about(index, Some(mark));
    size(&mut request, bytes);
    kernel.tell(RECONFIGURE, &request)
}

/// Ends a disk.
pub(super) fn disconnect(kernel: &mut Connection, index: u32) -> io::Result<()> {
    kernel.tell(DISCONNECT, &about(index, None))
}

fn about(index: u32, mark: Option<&str>) -> Vec<u8> {
    let mut request = Vec::new();
    append(&mut request, INDEX, &index.to_ne_bytes());
    if let Some(mark) = mark {
        append(&mut request, BACKEND_IDENTIFIER, format!("{mark}\0").as_bytes());
    }
    request
}

fn size(request: &mut Vec<u8>, (bytes, block_bytes): (u64, u32)) {
    append(request, SIZE_BYTES, &bytes.to_ne_bytes());
    append(request, BLOCK_SIZE_BYTES, &u64::from(block_bytes).to_ne_bytes());
}

fn sockets(request: &mut Vec<u8>, socket: &OwnedFd) {
    let (mut descriptor, mut item) = (Vec::new(), Vec::new());
    append(&mut descriptor, SOCKET_DESCRIPTOR, &socket.as_raw_fd().to_ne_bytes());
    append(&mut item, SOCKET_ITEM | NESTED, &descriptor);
    append(request, SOCKETS | NESTED, &item);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_all_that_the_kernel_needs() {
        let socket = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let facts = Facts { bytes: 1 << 40, block_bytes: 4096, flags: 0x6d };
        let request = connect_request(3, true, (&facts, "raceline M0"), &socket);
        let of = |bytes: &[u8], kind: u16| {
            attributes(bytes).find(|attribute| attribute.kind == kind).unwrap().value.to_vec()
        };
        let number = |kind| unsigned(&of(&request, kind)).unwrap();
        assert_eq!(
            (number(INDEX), number(SIZE_BYTES), number(BLOCK_SIZE_BYTES)),
            (3, 1 << 40, 4096)
        );
        assert_eq!((number(SERVER_FLAGS), number(CLIENT_FLAGS)), (0x6d, 1));
        assert_eq!(of(&request, BACKEND_IDENTIFIER), b"raceline M0\0");
        let item = of(&of(&request, SOCKETS), SOCKET_ITEM);
        let descriptor = unsigned(&of(&item, SOCKET_DESCRIPTOR)).unwrap();
        assert_eq!(descriptor, u64::try_from(socket.as_raw_fd()).unwrap());
        let lasting = connect_request(3, false, (&facts, "raceline M0"), &socket);
        assert!(attributes(&lasting).all(|attribute| attribute.kind != CLIENT_FLAGS));
    }
}
