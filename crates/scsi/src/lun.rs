//! What a logical unit is, and where it is seen: the facts that commands are checked against.

pub use raceline_proto::reservation::Port;
use sha2::{Digest as _, Sha256};

/// Text in a field of fixed length: ASCII, left-aligned, padded with spaces (SPC-5, 4.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AsciiField<const N: usize>([u8; N]);

impl<const N: usize> AsciiField<N> {
    /// From text. Characters other than 20h to 7Eh become `_`; what is too long is cut.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let mut field = [b' '; N];
        for (byte, char) in field.iter_mut().zip(text.chars()) {
            let printable = (' '..='~').contains(&char);
            *byte = if printable { u8::try_from(char).unwrap_or(b'_') } else { b'_' };
        }
        Self(field)
    }

    /// The bytes of the field.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; N] {
        &self.0
    }
}

/// Who a logical unit is, the same through every port and after every restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// UUID of the device. It is that of the NVMe namespace over the same device, and the page Device
    /// Identification has it as it is (designator type Ah), so a person can tell that both are one disk.
    pub uuid: [u8; 16],
    /// NGUID of the namespace over the same device; zeroes are none. It becomes an EUI-64 designator of 16 bytes.
    pub nguid: [u8; 16],
    /// EUI64 of the namespace over the same device; zeroes are none.
    pub eui64: [u8; 8],
    /// Serial number, for the page Unit Serial Number: 1 to 252 characters of ASCII.
    pub serial: String,
    /// T10 VENDOR IDENTIFICATION.
    pub vendor: AsciiField<8>,
    /// PRODUCT IDENTIFICATION.
    pub product: AsciiField<16>,
    /// PRODUCT REVISION LEVEL.
    pub revision: AsciiField<4>,
}

/// The company identifier in our NAA identifiers. No company has it: in its first byte, the bit is set that makes
/// an identifier locally administered (IEEE 802, 8.2).
const NAA_COMPANY: [u8; 3] = [0x52, 0x41, 0x43];

impl Identity {
    /// The identity of a device of which only the UUID is known. It is the serial number, as 32 hexadecimal digits.
    #[must_use]
    pub fn of_uuid(uuid: [u8; 16]) -> Self {
        Self {
            uuid,
            nguid: [0; 16],
            eui64: [0; 8],
            serial: uuid.iter().map(|byte| format!("{byte:02x}")).collect(),
            vendor: AsciiField::new("RACELINE"),
            product: AsciiField::new("Raceline disk"),
            revision: AsciiField::new(env!("CARGO_PKG_VERSION")),
        }
    }

    /// The NAA IEEE Registered Extended identifier (SPC-5, 7.7.6.6.5): 6h, the company identifier, and the first
    /// 100 bits of SHA-256 of the UUID. So every UUID has one of its own, which never changes.
    #[must_use]
    pub fn naa(&self) -> [u8; 16] {
        let hash = Sha256::digest(self.uuid);
        let mut naa = [0; 16];
        let [a, b, c] = NAA_COMPANY;
        naa[0] = 0x60 | a >> 4;
        naa[1] = a << 4 | b >> 4;
        naa[2] = b << 4 | c >> 4;
        naa[3] = c << 4 | hash[0] >> 4;
        for (byte, pair) in naa[4..].iter_mut().zip(hash.windows(2)) {
            *byte = pair[0] << 4 | pair[1] >> 4;
        }
        naa
    }

    /// All designators of the logical unit, in every form that initiators look for. The NVMe namespace over the same device
    /// has the same UUID, NGUID and EUI64: those are here unchanged, as designators of the types Ah (UUID) and 2h (EUI-64, of
    /// 16 and 8 bytes).
    pub(crate) fn designators(&self) -> Vec<Designator> {
        let binary = |kind, id| Designator { code_set: BINARY, kind, id };
        let mut all = vec![binary(0x3, self.naa().to_vec())];
        if self.nguid != [0; 16] {
            all.push(binary(0x2, self.nguid.to_vec()));
        }
        if self.eui64 != [0; 8] {
            all.push(binary(0x2, self.eui64.to_vec()));
        }
        let mut vendor_id = self.vendor.as_bytes().to_vec();
        vendor_id.extend(self.serial_bytes().take(64));
        all.push(Designator { code_set: ASCII, kind: 0x1, id: vendor_id });
        let mut uuid = vec![0x10, 0]; // UUID TYPE 1h
        uuid.extend(self.uuid);
        all.push(binary(0xa, uuid));
        all
    }

    /// The serial number as bytes: at most 252, and only printable ASCII.
    pub(crate) fn serial_bytes(&self) -> impl Iterator<Item = u8> + '_ {
        self.serial.bytes().take(252).map(|byte| match byte {
            0x20..=0x7e => byte,
            _ => b'_',
        })
    }
}

/// CODE SET: binary.
pub(crate) const BINARY: u8 = 1;
/// CODE SET: ASCII.
const ASCII: u8 = 2;

/// A designator of a logical unit (SPC-5, 7.7.6).
pub(crate) struct Designator {
    pub(crate) code_set: u8,
    /// DESIGNATOR TYPE; ASSOCIATION is 0.
    pub(crate) kind: u8,
    pub(crate) id: Vec<u8>,
}

/// Most that one command may ask for. The page Block Limits tells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes that a command moves to or from the medium, a multiple of the block size.
    pub max_transfer_bytes: u32,
    /// Most blocks of Compare and Write; 0: the command is not supported.
    pub max_compare_and_write_blocks: u8,
    /// Most blocks of all descriptors of one Unmap together; all ones: there is no limit.
    pub max_unmap_blocks: u32,
    /// Most descriptors of one Unmap, at most [`Limits::MAX_UNMAP_DESCRIPTORS`].
    pub max_unmap_descriptors: u32,
    /// Most blocks of Write Same; 0: there is no limit.
    pub max_write_same_blocks: u64,
}

impl Limits {
    /// Most descriptors that the length of a parameter list of Unmap, 16 bits, has room for.
    pub const MAX_UNMAP_DESCRIPTORS: u32 = (0xffff - 8) / 16;

    /// Limits of a disk whose commands move at most this much.
    #[must_use]
    pub fn new(max_transfer_bytes: u32) -> Self {
        Self {
            max_transfer_bytes,
            max_compare_and_write_blocks: 255,
            max_unmap_blocks: 1 << 20,
            max_unmap_descriptors: 256,
            max_write_same_blocks: 1 << 15,
        }
    }
}

/// A logical unit: what it is and can do, as of one moment. A change of its size makes a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lun {
    /// Bytes of a logical block, a power of two of at least 512.
    pub block_size: u32,
    /// Capacity in logical blocks, at least 1.
    pub block_count: u64,
    /// Bytes of a physical block, a power of two of at least `block_size`.
    pub physical_block_size: u32,
    /// Commands that do not cross a multiple of this are faster; 0: there is no boundary.
    pub io_boundary_bytes: u64,
    /// Writes are refused by the device or by whoever exports it.
    pub read_only: bool,
    /// Completed writes may be lost in a power cut until Synchronize Cache.
    pub volatile_write_cache: bool,
    /// Unmap, and Write Same with UNMAP, have an effect.
    pub deallocate: bool,
    /// Deallocated blocks read zeroes.
    pub deallocate_zeroes: bool,
    /// Which blocks are allocated is known.
    pub knows_holes: bool,
    /// Who it is.
    pub identity: Identity,
    /// Most that one command may ask for.
    pub limits: Limits,
}

impl Lun {
    /// Blocks of the longest transfer.
    #[must_use]
    pub fn max_transfer_blocks(&self) -> u32 {
        self.limits.max_transfer_bytes / self.block_size
    }

    /// LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT.
    pub(crate) fn physical_exponent(&self) -> u8 {
        let ratio = (self.physical_block_size / self.block_size.max(1)).max(1);
        u8::try_from(ratio.ilog2().min(15)).expect("at most 15")
    }

    /// Whether blocks that are deallocated are told to read zeroes (LBPRZ).
    pub(crate) fn reads_zeroes(&self) -> bool {
        self.deallocate && self.deallocate_zeroes
    }
}

/// ASYMMETRIC ACCESS STATE of a target port group (SPC-5, 5.17.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PortGroupState {
    /// All commands run, as fast as they can.
    #[default]
    Optimized,
    /// All commands run, maybe slower.
    NonOptimized,
    /// The medium cannot be used.
    Standby,
    /// Nor can anything else of the logical unit.
    Unavailable,
    /// It is on its way to another state.
    Transitioning,
}

impl PortGroupState {
    /// The four bits on the wire.
    #[must_use]
    pub fn to_wire(self) -> u8 {
        match self {
            Self::Optimized => 0x0,
            Self::NonOptimized => 0x1,
            Self::Standby => 0x2,
            Self::Unavailable => 0x3,
            Self::Transitioning => 0xf,
        }
    }
}

/// A target port group and its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortGroup {
    /// Its number: the target portal group tag.
    pub tag: u16,
    /// What its ports let initiators do.
    pub state: PortGroupState,
    /// Relative target port identifiers, from 1.
    pub ports: Vec<u16>,
}

/// What is the same for all logical units of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetFacts {
    /// The target's name, `iqn...`, at most 223 bytes.
    pub name: String,
    /// Its port groups, at least one, with at least one port each.
    pub groups: Vec<PortGroup>,
    /// The numbers of its logical units, ascending, each below 16,384.
    pub luns: Vec<u16>,
}

/// Writes a LUN as the eight bytes on the wire (SAM-6, 4.7): peripheral device addressing below 256, else flat space.
#[must_use]
pub fn lun_to_wire(number: u16) -> [u8; 8] {
    let [high, low] = number.to_be_bytes();
    let high = if number < 256 { 0 } else { 0x40 | high & 0x3f };
    [high, low, 0, 0, 0, 0, 0, 0]
}

/// Reads a LUN of one level: peripheral device addressing on bus 0, or flat space. `None`: any other form, which no
/// logical unit here has.
#[must_use]
pub fn lun_from_wire(lun: [u8; 8]) -> Option<u16> {
    let [high, low, rest @ ..] = lun;
    if rest != [0; 6] {
        return None;
    }
    match high >> 6 {
        0 if high == 0 => Some(u16::from(low)),
        1 => Some(u16::from_be_bytes([high & 0x3f, low])),
        _ => None,
    }
}
