//! A netlink socket on which the kernel's ethtool family answers.

use std::io;

use raceline_netlink::{Connection as Netlink, NESTED, append, text};
use rustix::io::Errno;

use crate::reading::Reading;

/// The attribute of all requests to ethtool that says which interface; and of its value, the name.
const HEADER: u16 = 1;
const DEVICE_NAME: u16 = 2;

/// A connection with the ethtool family.
pub(super) struct Connection(Netlink);

impl Connection {
    /// Opens a socket and looks up the family.
    pub(super) fn open() -> io::Result<Self> {
        Netlink::open("ethtool").map(Self)
    }

    /// The attributes of the answer to a command about an interface.
    pub(super) fn ask(&mut self, command: u8, interface: &str) -> Reading<Vec<u8>> {
        let mut name = Vec::new();
        append(&mut name, DEVICE_NAME, format!("{interface}\0").as_bytes());
        let mut body = Vec::new();
        append(&mut body, HEADER | NESTED, &name);
        match self.0.ask(command, &body) {
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
}

/// The name of an interface fits its field in the kernel's structures.
pub(super) fn name_field(interface: &str) -> Option<[u8; 16]> {
    let mut field = [0; 16];
    field[..15].get_mut(..interface.len())?.copy_from_slice(interface.as_bytes());
    debug_assert_eq!(text(&field), interface);
    Some(field)
}
