//! Generic netlink, as far as test beds need it: features of a link, and the NAPI ids of its queues.
//!
//! Messages are built and read here because `ethtool` is often not installed, and old versions of it cannot show
//! NAPI ids. Numbers are those of the kernel's interface (genetlink(7), the YAML families `ethtool` and `netdev`).

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

/// The family of families, and its command and attributes.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

const FEATURES_GET: u8 = 11;
const FEATURES_SET: u8 = 12;
const FEATURES_HEADER: u16 = 1;
const FEATURES_WANTED: u16 = 3;
const FEATURES_ACTIVE: u16 = 4;
const HEADER_NAME: u16 = 2;
const BITSET_BITS: u16 = 3;
const BITS_BIT: u16 = 1;
const BIT_NAME: u16 = 2;
const BIT_VALUE: u16 = 3;

const NAPI_GET: u8 = 11;
const NAPI_IFINDEX: u16 = 1;
const NAPI_ID: u16 = 2;

const FLAG_REQUEST: u16 = 1;
const FLAG_ACK: u16 = 4;
const FLAG_DUMP: u16 = 0x300;
const FLAG_NESTED: u16 = 0x8000;
const TYPE_ERROR: u16 = 2;
const TYPE_DONE: u16 = 3;

const HEADER_BYTES: usize = 16;
const GENERIC_BYTES: usize = 4;
const ATTRIBUTE_BYTES: usize = 4;
/// One answer of the kernel is never longer.
const ANSWER_BYTES: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(5);

/// A socket for requests, in the network namespace of the thread that opens it.
pub(super) struct Generic {
    socket: OwnedFd,
}

impl Generic {
    pub(super) fn open() -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::GENERIC),
        )?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        Ok(Self { socket })
    }

    /// Turns features of a link, by name as in `rx-gro`, on or off.
    pub(super) fn set_features(&self, link: &str, features: &[(&str, bool)]) -> io::Result<()> {
        let mut bits = Vec::new();
        for &(name, on) in features {
            let mut bit = attribute(BIT_NAME, &text(name));
            if on {
                bit.extend(attribute(BIT_VALUE, &[]));
            }
            bits.extend(attribute(BITS_BIT | FLAG_NESTED, &bit));
        }
        let wanted = attribute(BITSET_BITS | FLAG_NESTED, &bits);
        let mut body = features_header(link);
        body.extend(attribute(FEATURES_WANTED | FLAG_NESTED, &wanted));
        self.ask(self.family("ethtool")?, FEATURES_SET, FLAG_ACK, &body).map(drop)
    }

    /// The features of a link that are on or off, by name.
    pub(super) fn features(&self, link: &str) -> io::Result<BTreeMap<String, bool>> {
        let body = features_header(link);
        let answers = self.ask(self.family("ethtool")?, FEATURES_GET, FLAG_ACK, &body)?;
        let active = answers
            .iter()
            .find_map(|answer| find(answer, FEATURES_ACTIVE))
            .and_then(|set| find(set, BITSET_BITS))
            .ok_or_else(|| malformed("no features"))?;
        // The set lists the names of those that are on.
        let on = attributes(active).filter(|&(kind, _)| kind == BITS_BIT);
        let name = |(_, bit)| {
            let name = find(bit, BIT_NAME)?;
            Some((String::from_utf8_lossy(name).trim_end_matches('\0').to_owned(), true))
        };
        Ok(on.filter_map(name).collect())
    }

    /// The NAPI ids of a link, ascending.
    pub(super) fn napi_ids(&self, link: &str) -> io::Result<Vec<u32>> {
        let index = rustix::net::netdevice::name_to_index(&self.socket, link)?;
        let body = attribute(NAPI_IFINDEX, &index.to_ne_bytes());
        let answers = self.ask(self.family("netdev")?, NAPI_GET, FLAG_DUMP, &body)?;
        let id = |answer: &Vec<u8>| {
            let of = number(find(answer, NAPI_IFINDEX)?)?;
            number(find(answer, NAPI_ID)?).filter(|_| of == index)
        };
        let mut ids: Vec<u32> = answers.iter().filter_map(id).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    fn family(&self, name: &str) -> io::Result<u16> {
        let body = attribute(FAMILY_NAME, &text(name));
        let answers = self.ask(CONTROL, GET_FAMILY, FLAG_ACK, &body).map_err(|error| {
            io::Error::new(error.kind(), format!("the kernel has no netlink family {name}"))
        })?;
        let id = answers.iter().find_map(|answer| find(answer, FAMILY_ID));
        let id = id.and_then(|id| id.get(..2)).ok_or_else(|| malformed("no family id"))?;
        Ok(u16::from_ne_bytes([id[0], id[1]]))
    }

    /// Sends a request and gives the attributes of each answer.
    fn ask(&self, family: u16, command: u8, flags: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let length = HEADER_BYTES + GENERIC_BYTES + body.len();
        let length = u32::try_from(length).map_err(|_| malformed("too long a request"))?;
        let mut request = length.to_ne_bytes().to_vec();
        request.extend(family.to_ne_bytes());
        request.extend((FLAG_REQUEST | flags).to_ne_bytes());
        // Sequence and port: the socket has one request at a time.
        request.extend([0; 8]);
        request.extend([command, 1, 0, 0]);
        request.extend(body);
        send(&self.socket, &request, SendFlags::empty())?;
        let (mut answers, mut buffer) = (Vec::new(), vec![0; ANSWER_BYTES]);
        loop {
            let (received, _) = recv(&self.socket, &mut buffer[..], RecvFlags::empty())?;
            if received == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            if take(&buffer[..received], &mut answers)? {
                return Ok(answers);
            }
        }
    }
}

/// Reads the messages of one receive; gives whether the last answer was among them.
fn take(mut bytes: &[u8], answers: &mut Vec<Vec<u8>>) -> io::Result<bool> {
    while bytes.len() >= HEADER_BYTES {
        let length = number(bytes).and_then(|length| usize::try_from(length).ok()).unwrap_or(0);
        let message = bytes.get(HEADER_BYTES..length).ok_or_else(|| malformed("length"))?;
        match u16::from_ne_bytes([bytes[4], bytes[5]]) {
            TYPE_DONE => return Ok(true),
            TYPE_ERROR => {
                let code = number(message).ok_or_else(|| malformed("error"))?.cast_signed();
                return match code {
                    0 => Ok(true),
                    code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
                };
            }
            _ => answers.push(message.get(GENERIC_BYTES..).unwrap_or_default().to_vec()),
        }
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
    }
    Ok(false)
}

fn features_header(link: &str) -> Vec<u8> {
    attribute(FEATURES_HEADER | FLAG_NESTED, &attribute(HEADER_NAME, &text(link)))
}

/// An attribute with its padding. No value here is longer than the links' and features' names.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(ATTRIBUTE_BYTES + value.len()).unwrap_or(u16::MAX);
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(aligned(bytes.len()), 0);
    bytes
}

/// The attributes in these bytes, up to the first malformed one.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = bytes.get(..ATTRIBUTE_BYTES)?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & !FLAG_NESTED;
        let value = bytes.get(ATTRIBUTE_BYTES..length)?;
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn find(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(kind, value)| (kind == wanted).then_some(value))
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

fn text(name: &str) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}

fn aligned(length: usize) -> usize {
    length.div_ceil(4) * 4
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("a malformed netlink message: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_round_trip_and_malformed_ones_end_the_list() {
        let mut bytes = attribute(7, b"abcde");
        bytes.extend(attribute(8 | FLAG_NESTED, &attribute(1, &5_u32.to_ne_bytes())));
        assert_eq!(find(&bytes, 7), Some(&b"abcde"[..]));
        assert_eq!(find(&bytes, 8).and_then(|nest| find(nest, 1)).and_then(number), Some(5));
        for cut in 0..bytes.len() {
            assert!(attributes(&bytes[..cut]).count() <= 2);
        }
        assert_eq!(attributes(&[3, 0, 0, 0, 0]).count(), 0);
    }

    #[test]
    fn malformed_messages_are_errors() {
        let mut short = [0_u8; HEADER_BYTES];
        assert!(take(&short, &mut Vec::new()).is_err());
        short[..4].copy_from_slice(&1000_u32.to_ne_bytes());
        assert!(take(&short, &mut Vec::new()).is_err());
        assert!(!take(&[], &mut Vec::new()).unwrap());
    }
}
