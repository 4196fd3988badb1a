//! Sense data in both formats (SPC-5, 4.5), and what an error of the device becomes.

use crate::status::Refusal;

/// Most bytes of sense data that are made here.
pub const MAX_SENSE_LEN: usize = 28;

/// What kind of thing went wrong (SPC-5, table 47).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SenseKey {
    /// Nothing did.
    NoSense,
    /// The logical unit cannot be used now.
    NotReady,
    /// The medium is damaged.
    MediumError,
    /// Something other than the medium is.
    HardwareError,
    /// The command or its parameters are wrong.
    IllegalRequest,
    /// Something has changed that the initiator has to know.
    UnitAttention,
    /// The medium must not be written.
    DataProtect,
    /// A copy ended early.
    CopyAborted,
    /// The command ended early; it may be sent again.
    AbortedCommand,
    /// Data are not what they were compared with.
    Miscompare,
}

impl SenseKey {
    /// The four bits on the wire.
    #[must_use]
    pub fn to_wire(self) -> u8 {
        match self {
            Self::NoSense => 0x0,
            Self::NotReady => 0x2,
            Self::MediumError => 0x3,
            Self::HardwareError => 0x4,
            Self::IllegalRequest => 0x5,
            Self::UnitAttention => 0x6,
            Self::DataProtect => 0x7,
            Self::CopyAborted => 0xa,
            Self::AbortedCommand => 0xb,
            Self::Miscompare => 0xe,
        }
    }
}

/// Where the wrong field is (SPC-5, 4.5.2.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldPointer {
    /// It is in the CDB; otherwise in the parameter data.
    pub in_cdb: bool,
    /// The most significant bit of the field; `None`: it begins with the byte.
    pub bit: Option<u8>,
    /// The first byte of the field.
    pub byte: u16,
}

/// Why a command failed, or what has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sense {
    /// What kind of thing it is.
    pub key: SenseKey,
    /// ADDITIONAL SENSE CODE in the upper byte, its qualifier in the lower one.
    pub code: u16,
    /// INFORMATION: what it says depends on the command, e.g. the offset of a miscompare.
    pub information: Option<u64>,
    /// The field that is wrong.
    pub field: Option<FieldPointer>,
    /// The segment of a copy at which it ended, which COMMAND-SPECIFIC INFORMATION tells.
    pub segment: Option<u16>,
}

/// All codes that are used here: name, key, code.
macro_rules! senses {
    ($($(#[doc = $doc:literal])+ $name:ident = $key:ident $code:literal;)+) => {
        impl Sense {
            $($(#[doc = $doc])+ pub const $name: Self = Self::new(SenseKey::$key, $code);)+
        }
    };
}

senses! {
    /// Nothing is wrong.
    NONE = NoSense 0x0000;
    /// The logical unit is on its way to being ready.
    BECOMING_READY = NotReady 0x0401;
    /// The device behind the logical unit is gone.
    DEVICE_GONE = NotReady 0x0400;
    /// The port's target port group is standby.
    PORT_STANDBY = NotReady 0x040b;
    /// The port's target port group is unavailable.
    PORT_UNAVAILABLE = NotReady 0x040c;
    /// The port's target port group is in transition.
    PORT_TRANSITION = NotReady 0x040a;
    /// There is no medium.
    NO_MEDIUM = NotReady 0x3a00;
    /// A block cannot be read.
    READ_ERROR = MediumError 0x1100;
    /// A block cannot be written.
    WRITE_ERROR = MediumError 0x0c00;
    /// Something inside went wrong.
    INTERNAL_FAILURE = HardwareError 0x4400;
    /// A copy with this list identifier is under way.
    OPERATION_IN_PROGRESS = IllegalRequest 0x0016;
    /// The parameter list is shorter than what it must contain.
    PARAMETER_LIST_LENGTH = IllegalRequest 0x1a00;
    /// There is no such command.
    INVALID_OPCODE = IllegalRequest 0x2000;
    /// A block is not on the disk.
    LBA_OUT_OF_RANGE = IllegalRequest 0x2100;
    /// A field of the CDB has a value that is not supported.
    INVALID_FIELD_IN_CDB = IllegalRequest 0x2400;
    /// There is no logical unit of this number.
    NO_SUCH_LUN = IllegalRequest 0x2500;
    /// A field of the parameter list has a value that is not supported.
    INVALID_FIELD_IN_PARAMETERS = IllegalRequest 0x2600;
    /// There are more descriptors of copy targets than one command may have.
    TOO_MANY_TARGET_DESCRIPTORS = IllegalRequest 0x2606;
    /// A copy target is described in a way that is not supported.
    UNSUPPORTED_TARGET_DESCRIPTOR = IllegalRequest 0x2607;
    /// There are more segments than one command may have.
    TOO_MANY_SEGMENT_DESCRIPTORS = IllegalRequest 0x2608;
    /// A segment is of a type that is not supported.
    UNSUPPORTED_SEGMENT_DESCRIPTOR = IllegalRequest 0x2609;
    /// There are more inline data than one command may have.
    INLINE_DATA_LENGTH_EXCEEDED = IllegalRequest 0x260b;
    /// Release names another type than the reservation has.
    INVALID_RELEASE = IllegalRequest 0x2604;
    /// The expected data transfer length is not what the command needs.
    INVALID_TRANSFER_LENGTH = IllegalRequest 0x0e03;
    /// Values cannot be saved.
    SAVING_NOT_SUPPORTED = IllegalRequest 0x3900;
    /// There is no room for another registration.
    NO_REGISTRATION_RESOURCES = IllegalRequest 0x5504;
    /// The device is read-only.
    WRITE_PROTECTED = DataProtect 0x2700;
    /// The SWP bit of the control mode page is set.
    SOFTWARE_WRITE_PROTECTED = DataProtect 0x2702;
    /// A thin device has no space left.
    SPACE_EXHAUSTED = DataProtect 0x2707;
    /// A descriptor names no logical unit that can be reached.
    UNREACHABLE_COPY_TARGET = CopyAborted 0x0804;
    /// Source or destination refuses a part of a copy.
    THIRD_PARTY_DEVICE_FAILURE = CopyAborted 0x0d01;
    /// A copy target is no disk.
    INCORRECT_COPY_TARGET_TYPE = CopyAborted 0x0d03;
    /// The bytes of a segment are no whole blocks of its destination, or of its source.
    UNEXPECTED_INEXACT_SEGMENT = CopyAborted 0x260a;
    /// Ended early, for no reason that has a code.
    ABORTED = AbortedCommand 0x0000;
    /// Data came that nobody had asked for.
    UNEXPECTED_UNSOLICITED_DATA = AbortedCommand 0x0c0c;
    /// More or fewer unsolicited data came than the command had announced.
    WRONG_AMOUNT_OF_DATA = AbortedCommand 0x0c0d;
    /// A digest of the protocol is wrong.
    PROTOCOL_CRC_ERROR = AbortedCommand 0x4705;
    /// A request to send again was refused.
    SNACK_REJECTED = AbortedCommand 0x1113;
    /// The data differ from those on the disk; see [`Sense::miscompare`].
    MISCOMPARE = Miscompare 0x1d00;
}

/// Bytes of sense data in fixed format.
const FIXED_LEN: usize = 18;

impl Sense {
    /// Without information and without a field.
    #[must_use]
    pub const fn new(key: SenseKey, code: u16) -> Self {
        Self { key, code, information: None, field: None, segment: None }
    }

    /// A field of the CDB, from this byte on, is wrong.
    #[must_use]
    pub const fn bad_cdb(byte: u16) -> Self {
        Self::INVALID_FIELD_IN_CDB.at(FieldPointer { in_cdb: true, bit: None, byte })
    }

    /// A field of the CDB that begins at this bit is wrong.
    #[must_use]
    pub const fn bad_cdb_bit(byte: u16, bit: u8) -> Self {
        Self::INVALID_FIELD_IN_CDB.at(FieldPointer { in_cdb: true, bit: Some(bit), byte })
    }

    /// A field of the parameter list, from this byte on, is wrong.
    #[must_use]
    pub const fn bad_parameter(byte: u16) -> Self {
        Self::INVALID_FIELD_IN_PARAMETERS.at(FieldPointer { in_cdb: false, bit: None, byte })
    }

    /// With the place of the wrong field.
    #[must_use]
    pub const fn at(mut self, field: FieldPointer) -> Self {
        self.field = Some(field);
        self
    }

    /// With a value in INFORMATION.
    #[must_use]
    pub const fn with_information(mut self, information: u64) -> Self {
        self.information = Some(information);
        self
    }

    /// Of a copy that ended at this segment.
    #[must_use]
    pub const fn in_segment(mut self, segment: u16) -> Self {
        self.segment = Some(segment);
        self
    }

    /// The data differ, first in this byte of the data that were compared (SBC-4, 5.3 and 5.36).
    #[must_use]
    pub const fn miscompare(offset_bytes: u64) -> Self {
        Self::MISCOMPARE.with_information(offset_bytes)
    }

    /// As bytes: descriptor format if the control mode page says so (D_SENSE), else fixed format.
    ///
    /// Fixed format has 32 bits for INFORMATION. A larger value is left out there, with VALID zero
    /// (SPC-5, 4.5.3).
    #[must_use]
    pub fn encode(&self, descriptors: bool) -> SenseData {
        if descriptors { self.encode_descriptors() } else { self.encode_fixed() }
    }

    fn encode_fixed(&self) -> SenseData {
        let mut bytes = [0; MAX_SENSE_LEN];
        bytes[0] = 0x70;
        bytes[2] = self.key.to_wire();
        if let Some(information) = self.information.and_then(|value| u32::try_from(value).ok()) {
            bytes[0] |= 0x80;
            bytes[3..7].copy_from_slice(&information.to_be_bytes());
        }
        bytes[7] = 10; // ADDITIONAL SENSE LENGTH
        if let Some(segment) = self.segment {
            // the first two bytes are places of sense data of source and destination: there are none (SPC-4, 6.4.3)
            bytes[10..12].copy_from_slice(&segment.to_be_bytes());
        }
        bytes[12..14].copy_from_slice(&self.code.to_be_bytes());
        if let Some(field) = self.field {
            bytes[15..18].copy_from_slice(&field.encode());
        }
        SenseData { bytes, len: FIXED_LEN }
    }

    fn encode_descriptors(&self) -> SenseData {
        let mut bytes = [0; MAX_SENSE_LEN];
        bytes[0] = 0x72;
        bytes[1] = self.key.to_wire();
        bytes[2..4].copy_from_slice(&self.code.to_be_bytes());
        let mut len = 8;
        if let Some(information) = self.information {
            // information descriptor: type 00h, VALID
            bytes[len..len + 4].copy_from_slice(&[0x00, 0x0a, 0x80, 0]);
            bytes[len + 4..len + 12].copy_from_slice(&information.to_be_bytes());
            len += 12;
        }
        if let Some(segment) = self.segment {
            // command-specific information descriptor: type 01h
            bytes[len..len + 2].copy_from_slice(&[0x01, 0x0a]);
            bytes[len + 6..len + 8].copy_from_slice(&segment.to_be_bytes());
            len += 12;
        }
        if let Some(field) = self.field {
            // sense key specific descriptor: type 02h
            bytes[len..len + 2].copy_from_slice(&[0x02, 0x06]);
            bytes[len + 4..len + 7].copy_from_slice(&field.encode());
            len += 8;
        }
        bytes[7] = u8::try_from(len - 8).expect("at most 20");
        SenseData { bytes, len }
    }
}

impl FieldPointer {
    /// SENSE KEY SPECIFIC of ILLEGAL REQUEST: SKSV, C/D, BPV, BIT POINTER, FIELD POINTER.
    fn encode(self) -> [u8; 3] {
        let place = if self.in_cdb { 0xc0 } else { 0x80 };
        let bit = self.bit.map_or(0, |bit| 0x08 | (bit & 0x07));
        let [high, low] = self.byte.to_be_bytes();
        [place | bit, high, low]
    }
}

/// Sense data as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenseData {
    bytes: [u8; MAX_SENSE_LEN],
    len: usize,
}

impl SenseData {
    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Why a device failed, in the terms of a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceError {
    /// The medium failed to read.
    ReadFault,
    /// The medium failed to write, flush or deallocate.
    WriteFault,
    /// There is no space left for the data.
    NoSpace,
    /// The device refuses writes.
    ReadOnly,
    /// The device is gone.
    Gone,
    /// A write of unknown fate: the initiator has to send it again.
    Unknown,
    /// It had no effect and may be tried again.
    Transient,
    /// The device cannot do this.
    NotSupported,
    /// Anything else that went wrong inside.
    Internal,
    /// An NVMe status, which a test injects or a remote device has answered.
    Nvme {
        /// Status Code Type.
        sct: u8,
        /// Status Code.
        sc: u8,
    },
}

impl DeviceError {
    /// What the initiator is told (section 7 of "NVM Express: SCSI Translation Reference" for NVMe statuses).
    #[must_use]
    pub fn refusal(self) -> Refusal {
        let sense = match self {
            Self::ReadFault | Self::Nvme { sct: 2, sc: 0x81 } => Sense::READ_ERROR,
            Self::WriteFault | Self::Nvme { sct: 2, sc: 0x80 } => Sense::WRITE_ERROR,
            Self::NoSpace | Self::Nvme { sct: 0, sc: 0x81 } => Sense::SPACE_EXHAUSTED,
            Self::ReadOnly | Self::Nvme { sct: 0, sc: 0x20 } | Self::Nvme { sct: 1, sc: 0x82 } => {
                Sense::WRITE_PROTECTED
            }
            Self::Gone => Sense::DEVICE_GONE,
            Self::Nvme { sct: 0, sc: 0x82 } => Sense::BECOMING_READY,
            Self::Nvme { sct: 0, sc: 0x80 } => Sense::LBA_OUT_OF_RANGE,
            Self::Nvme { sct: 2, sc: 0x85 } => Sense::MISCOMPARE,
            Self::Nvme { sct: 0, sc: 0x83 } => return Refusal::Conflict,
            Self::Transient => return Refusal::Busy,
            Self::Unknown
            | Self::Nvme { sct: 0, sc: 0x04 | 0x07 | 0x08 }
            | Self::Nvme { sct: 3, .. } => Sense::ABORTED,
            Self::NotSupported | Self::Internal | Self::Nvme { .. } => Sense::INTERNAL_FAILURE,
        };
        Refusal::Check(sense)
    }
}
