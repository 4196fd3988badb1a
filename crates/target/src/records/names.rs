//! Names of connections and commands where a reference is not possible: in messages between cores, in
//! tags of device requests, in tokens of operations.
//!
//! Every name carries a generation, which exposes a name that outlives its object.

use std::fmt;
use std::net::SocketAddr;
use std::num::{NonZeroU16, NonZeroU32};

use raceline_proto::controller::Transport;
use raceline_proto::nvme::ControllerId;
use raceline_reactor::Token;

/// Bits of a connection's index in a tag or in a token.
const INDEX_BITS: u32 = 20;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
/// Bits of generations that go beside the index.
const GENERATION_MASK: u32 = u32::MAX >> INDEX_BITS;
/// The bit of a connection's index that says that it is one of iSCSI.
pub(crate) const ISCSI_BIT: u32 = 1 << (INDEX_BITS - 1);
/// NVMe/TCP connections of a core.
pub(crate) const MAX_CONNECTIONS: u32 = ISCSI_BIT;
/// iSCSI connections of a core. One index is left to [`Tag::other`].
pub(crate) const MAX_ISCSI_CONNECTIONS: u32 = ISCSI_BIT - 1;
/// The owner of the operations of iSCSI connections; no device has this number.
pub(crate) const ISCSI_OWNER: u16 = u16::MAX;

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// NVMe/TCP.
    Nvme,
    /// iSCSI.
    Iscsi,
}

/// Where a listener is. TCP and RDMA can have one each at the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerAt {
    /// The address as bound.
    pub address: SocketAddr,
    /// What carries its connections; `None`: whichever has the only listener at the address.
    pub transport: Option<Transport>,
}

impl From<SocketAddr> for ListenerAt {
    fn from(address: SocketAddr) -> Self {
        Self { address, transport: None }
    }
}

impl From<(Transport, SocketAddr)> for ListenerAt {
    fn from((transport, address): (Transport, SocketAddr)) -> Self {
        Self { address, transport: Some(transport) }
    }
}

/// Names a device of the target; also the owner of its operations on every core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct DeviceId(pub(crate) u16);

impl DeviceId {
    /// The core that orders the device's range locks.
    pub(crate) fn warden(self, cores: usize) -> usize {
        usize::from(self.0) % cores
    }
}

/// Names a connection of one core; stale once the connection is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnKey {
    pub(crate) index: u32,
    pub(crate) generation: u16,
}

impl ConnKey {
    /// Whether it is an iSCSI connection.
    pub(crate) fn is_iscsi(self) -> bool {
        self.index & ISCSI_BIT != 0
    }
}

/// Where a connection comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    /// The listener that it came by, which its protocol numbers.
    pub(crate) port_id: u16,
    pub(crate) protocol: Protocol,
    /// RDMA carries it.
    pub(crate) is_rdma: bool,
}

/// Names a command of one connection by its slot; stale once the command is completed. One number, because
/// it is passed on with every command: the generation of the slot, and above it the slot's index.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotKey(NonZeroU32);

impl SlotKey {
    #[inline]
    pub(crate) fn new(index: u16, generation: NonZeroU16) -> Self {
        Self(NonZeroU32::from(generation) | u32::from(index) << 16)
    }

    /// The number of the slot.
    #[inline]
    pub(crate) fn index(self) -> u16 {
        let [.., i0, i1] = self.0.get().to_le_bytes();
        u16::from_le_bytes([i0, i1])
    }

    /// The generation, which numbers the successive commands of the slot.
    #[inline]
    pub(crate) fn generation(self) -> u16 {
        let [g0, g1, ..] = self.0.get().to_le_bytes();
        u16::from_le_bytes([g0, g1])
    }
}

impl fmt::Debug for SlotKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index(), self.generation())
    }
}

/// Names a command of one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalCommand {
    pub(crate) key: ConnKey,
    pub(crate) slot: SlotKey,
}

/// Names a connection of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) core: usize,
    pub(crate) key: ConnKey,
}

/// Names a command of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandPlace {
    pub(crate) conn: Place,
    pub(crate) slot: SlotKey,
}

/// Where a controller lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    pub(crate) place: Place,
    pub(crate) cntlid: ControllerId,
}

/// The owner of a device request, as its tag says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    /// Index of the connection.
    pub(crate) connection: u32,
    /// The lowest bits of its generation.
    generation: u16,
    pub(crate) slot: SlotKey,
}

impl Tag {
    /// The tag of a request that no command made; `number` names its owner.
    pub(crate) fn other(number: u16) -> Self {
        let slot = SlotKey::new(number, NonZeroU16::MIN);
        Self { connection: INDEX_MASK, generation: 0, slot }
    }

    /// The number, if the tag was made by [`Self::other`].
    pub(crate) fn other_number(self) -> Option<u16> {
        (self.connection == INDEX_MASK).then_some(self.slot.index())
    }

    /// Whether the request is not of an NVMe/TCP connection.
    #[inline]
    pub(crate) fn is_foreign(self) -> bool {
        self.connection >= ISCSI_BIT
    }

    /// Whether the tag names the connection that has its index and this generation.
    #[inline]
    pub(crate) fn is_of(self, generation: u16) -> bool {
        u32::from(generation) & GENERATION_MASK == self.generation.into()
    }

    /// The tag as a number, for the request: index and generation of the connection, then the slot.
    #[inline]
    pub(crate) fn to_bits(self) -> u64 {
        let connection = u64::from(self.connection) << (64 - INDEX_BITS);
        connection | u64::from(self.generation) << 32 | u64::from(self.slot.0.get())
    }

    /// The tag of a number; `None`: the number is not a tag.
    #[inline]
    pub(crate) fn from_bits(bits: u64) -> Option<Self> {
        let [s0, s1, s2, s3, c0, c1, c2, c3] = bits.to_le_bytes();
        let connection = u32::from_le_bytes([c0, c1, c2, c3]);
        let [g0, g1, ..] = (connection & GENERATION_MASK).to_le_bytes();
        Some(Self {
            connection: connection >> (32 - INDEX_BITS),
            generation: u16::from_le_bytes([g0, g1]),
            slot: SlotKey(NonZeroU32::new(u32::from_le_bytes([s0, s1, s2, s3]))?),
        })
    }
}

impl LocalCommand {
    /// For a device request.
    #[inline]
    pub(crate) fn tag(self) -> Tag {
        let Self { key, slot } = self;
        let [low, high, ..] = (u32::from(key.generation) & GENERATION_MASK).to_le_bytes();
        Tag { connection: key.index, generation: u16::from_le_bytes([low, high]), slot }
    }

    /// The token for an operation of an engine. A connection lives as long as one of its commands is with an
    /// engine, so the token omits its generation.
    pub(crate) fn token(self) -> Token {
        let generation = (u32::from(self.slot.generation()) & GENERATION_MASK) << INDEX_BITS;
        Token { owner: 0, generation: self.slot.index(), index: self.key.index | generation }
    }
}

/// The owner of an engine's operation, as its token says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EngineToken {
    /// Index of the connection.
    pub(crate) connection: u32,
    /// Index of the slot.
    pub(crate) slot: u16,
    /// The lowest bits of the slot's generation.
    generation: u32,
}

impl EngineToken {
    pub(crate) fn new(token: Token) -> Self {
        Self {
            connection: token.index & INDEX_MASK,
            slot: token.generation,
            generation: token.index >> INDEX_BITS,
        }
    }

    /// Whether the token names the command that its slot holds under this name.
    pub(crate) fn is_of(self, slot: SlotKey) -> bool {
        let generation = u32::from(slot.generation()) & GENERATION_MASK;
        slot.index() == self.slot && generation == self.generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(generation: u16) -> LocalCommand {
        LocalCommand {
            key: ConnKey { index: 0x000a_0b0c, generation: 0xa5a6 },
            slot: SlotKey::new(0x7f01, NonZeroU16::new(generation).unwrap()),
        }
    }

    #[test]
    fn a_slot_has_a_name_for_each_of_its_commands() {
        let slot = command(0xfedc).slot;
        assert_eq!((slot.index(), slot.generation()), (0x7f01, 0xfedc));
        assert_ne!(slot, command(0xfedd).slot);
    }

    #[test]
    fn a_tag_names_its_command() {
        let command = command(0xfedc);
        let tag = Tag::from_bits(command.tag().to_bits()).unwrap();
        assert_eq!(tag, command.tag());
        assert_eq!((tag.connection, tag.slot), (command.key.index, command.slot));
        assert!(tag.is_of(command.key.generation) && !tag.is_of(command.key.generation + 1));
        assert_eq!(tag.other_number(), None);
        let other = Tag::from_bits(Tag::other(7).to_bits()).unwrap();
        assert_eq!(other.other_number(), Some(7));
        assert_eq!(Tag::from_bits(0), None);
    }

    #[test]
    fn a_token_names_its_command() {
        let token = EngineToken::new(command(0xfedc).token());
        let LocalCommand { key, slot } = command(0xfedc);
        assert_eq!((token.connection, token.slot), (key.index, slot.index()));
        assert!(token.is_of(slot));
        assert!(!token.is_of(command(0xfedd).slot));
    }
}
