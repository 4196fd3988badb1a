//! Versions of a driver and of its device's firmware, which only an ioctl tells (netdevice(7)).

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd as _;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::netlink::name_field;
use crate::reading::Reading;
use raceline_netlink::text;

/// The ioctl of ethtool, and its command that asks about the driver.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
const GET_DRIVER: u32 = 3;

/// What the driver says about itself.
#[derive(Clone, Debug)]
pub(super) struct Information {
    /// The driver's version.
    pub(super) version: String,
    /// The firmware's version; empty where there is none.
    pub(super) firmware: String,
}

/// `struct ethtool_drvinfo` of linux/ethtool.h.
#[repr(C)]
struct DriverInformation {
    command: u32,
    driver: [u8; 32],
    version: [u8; 32],
    firmware: [u8; 32],
    bus: [u8; 32],
    option_rom: [u8; 32],
    reserved: [u8; 12],
    counts: [u32; 5],
}

/// `struct ifreq` of linux/if.h with its pointer; the union there has 24 bytes.
#[repr(C)]
struct Request {
    name: [u8; 16],
    data: *mut DriverInformation,
    rest: [u8; 16],
}

/// Asks the driver of an interface.
pub(super) fn information(interface: &str) -> Reading<Information> {
    let Some(name) = name_field(interface) else {
        return Reading::unread("the interface's name is too long for the kernel");
    };
    match ask(name) {
        Ok(found) => Reading::Read(Information {
            version: text(&found.version),
            firmware: text(&found.firmware).trim().to_owned(),
        }),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            Reading::unread("the driver does not tell")
        }
        Err(error) => Reading::unread(format!("the kernel refuses to tell: {error}")),
    }
}

fn ask(name: [u8; 16]) -> io::Result<DriverInformation> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut information = DriverInformation {
        command: GET_DRIVER,
        driver: [0; 32],
        version: [0; 32],
        firmware: [0; 32],
        bus: [0; 32],
        option_rom: [0; 32],
        reserved: [0; 12],
        counts: [0; 5],
    };
    let mut request = Request { name, data: &raw mut information, rest: [0; 16] };
    // SAFETY: the request and what it points to are laid out as the kernel's, and live until the call ends;
    // the kernel writes one `ethtool_drvinfo` and no more.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(information) }
}
